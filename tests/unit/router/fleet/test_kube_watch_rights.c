/* tests/unit/router/fleet/test_kube_watch_rights.c - what is forbidden, and tokens that change. */
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>

#include "tests/unit/router/fleet/kube_fixture.h"

#define FORBIDDEN                                                                                  \
    STATUS(                                                                                        \
        403, "Forbidden",                                                                          \
        "pods is forbidden: User \\\"system:serviceaccount:prod:router\\\" cannot list resource "  \
        "\\\"pods\\\" in API group \\\"\\\" in the namespace \\\"prod\\\"")

static void a_second_403_is_reported_with_the_missing_role(void **state) {
    struct fixture fx;
    const char *text;

    (void)state;
    init(&fx);
    for (int i = 0; i < 2; i++)
        expect(&fx, &(struct answer){403, FORBIDDEN});
    for (int i = 0; i < 2; i++) {
        expect(&fx, &(struct answer){200, LISTED("50", POD("b", "40"))});
        expect(&fx, &(struct answer){403, STATUS(403, "Forbidden", "no")});
    }
    start(&fx, (struct kube_config){0});
    UNTIL(&fx, fx.n_requests == 7);
    assert_int_equal(fx.n_forbidden, 1);
    assert_true(is_new_list(&fx, 6)); /* what may only be listed is listed */
    text = log_text(&fx);
    assert_non_null(strstr(text, "kube_forbidden verb=list resource=pods namespace=prod"));
    assert_non_null(strstr(text, "kube_forbidden verb=watch"));
    assert_non_null(strstr(text, "{apiVersion: rbac.authorization.k8s.io/v1, kind: Role, metadata: "
                                 "{name: incipit-router-pods, namespace: prod}, rules: "
                                 "[{apiGroups: [''], resources: [pods], verbs: [list, watch]}]}"));
    assert_non_null(strstr(text,
                           "kubectl create rolebinding incipit-router-pods "
                           "--role=incipit-router-pods --serviceaccount=prod:router -n prod"));
    finish(&fx);
}

/* As a server answers that has just begun and has not read its Roles. */
static void forbidden_once_is_a_warning_and_tried_again_at_once(void **state) {
    struct fixture fx;
    const char *text;

    (void)state;
    init(&fx);
    expect(&fx, &(struct answer){200, LISTED("50", POD("b", "40"))});
    expect(&fx, &(struct answer){403, FORBIDDEN});
    expect(&fx, &(struct answer){200, LISTED("60", POD("b", "40"))});
    start(&fx, (struct kube_config){0});
    UNTIL(&fx, fx.open);
    text = log_text(&fx);
    assert_null(strstr(text, "kube_forbidden"));
    assert_non_null(strstr(text, "kube_watch_lost"));
    assert_non_null(strstr(text, "kube_watch_resumed"));
    assert_int_equal(fx.n_forbidden, 0);
    finish(&fx);
}

static void a_role_that_stays_missing_is_named_once_in_half_a_minute(void **state) {
    struct fixture fx;
    const char *text;

    (void)state;
    init(&fx);
    for (int i = 0; i < 8; i++)
        expect(&fx, &(struct answer){403, FORBIDDEN});
    start(&fx, (struct kube_config){0});
    UNTIL(&fx, fx.open);
    text = strstr(log_text(&fx), "kube_forbidden");
    assert_non_null(text);
    assert_null(strstr(text + 1, "kube_forbidden"));
    finish(&fx);
}

static void each_refusal_is_read_by_itself(void **state) {
    struct fixture fx;

    (void)state;
    init(&fx);
    for (int i = 0; i < 2; i++)
        expect(&fx, &(struct answer){403, STATUS(403, "Forbidden", "one")});
    expect(&fx, &(struct answer){403, STATUS(403, "Forbidden", "two")});
    start(&fx, (struct kube_config){0});
    UNTIL(&fx, fx.n_requests == 4);
    assert_non_null(strstr(log_text(&fx), "why=one"));
    assert_non_null(strstr(log_text(&fx), "why=two"));
    finish(&fx);
}

static void a_forbidden_request_backs_off(void **state) {
    struct fixture fx;

    (void)state;
    init(&fx);
    expect(&fx, &(struct answer){403, ""});
    start(&fx, (struct kube_config){.intervals = {.backoff_ms = NEVER, .backoff_max_ms = NEVER}});
    UNTIL(&fx, fx.n_requests == 1);
    turn_idly(&fx);
    assert_int_equal(fx.n_requests, 1);
    finish(&fx);
}

struct token_file {
    char path[64];
};

static void write_token(const struct token_file *f, const char *token) {
    FILE *out;
    char next[80];

    snprintf(next, sizeof(next), "%s.next", f->path);
    out = fopen(next, "w");
    fprintf(out, "%s\n", token);
    fclose(out);
    assert_int_equal(rename(next, f->path), 0);
}

static void make_token(struct token_file *f, const char *token) {
    int fd;

    snprintf(f->path, sizeof(f->path), "/tmp/incipit-token-XXXXXX");
    fd = mkstemp(f->path);
    assert_true(fd >= 0);
    close(fd);
    write_token(f, token);
}

static void a_new_token_is_sent_by_new_requests(void **state) {
    struct token_file file;
    struct fixture fx;

    (void)state;
    init(&fx);
    make_token(&file, "first");
    expect(&fx, &(struct answer){200, LISTED("10", POD("a", "3"))});
    start(&fx, (struct kube_config){.token_file = file.path, .intervals.look_ms = 5});
    UNTIL(&fx, fx.open);
    write_token(&file, "second");
    UNTIL(&fx, strstr(log_text(&fx), "kube_token_read")); /* looked at without being asked */
    watch_write(&fx, EVENT("ADDED", "b", "11"));
    UNTIL(&fx, fx.n_objects == 2); /* what is open goes on */
    assert_int_equal(fx.n_requests, 2);
    end_watch(&fx);
    UNTIL(&fx, fx.n_requests == 3);
    assert_string_equal(fx.tokens[0], "Bearer first");
    assert_string_equal(fx.tokens[1], "Bearer first");
    assert_string_equal(fx.tokens[2], "Bearer second");
    unlink(file.path);
    finish(&fx);
}

static void a_token_that_cannot_be_read_leaves_the_old_one(void **state) {
    struct token_file file;
    struct fixture fx;

    (void)state;
    init(&fx);
    make_token(&file, "first");
    expect(&fx, &(struct answer){200, LISTED("10", POD("a", "3"))});
    expect(&fx, &(struct answer){0, BOOKMARK("11")});
    start(&fx, (struct kube_config){.token_file = file.path});
    UNTIL(&fx, fx.open);
    unlink(file.path);
    end_watch(&fx);
    UNTIL(&fx, fx.n_requests == 3);
    assert_string_equal(fx.tokens[2], "Bearer first");
    assert_non_null(strstr(log_text(&fx), "kube_token_unreadable"));
    finish(&fx);
}

/* Even when the file looks as it did: same inode, size and time. */
static void after_401_the_token_is_read_again_at_once_and_tried_once(void **state) {
    struct token_file file;
    struct timespec times[2];
    struct fixture fx;
    struct stat s;
    int fd;

    (void)state;
    init(&fx);
    make_token(&file, "token1");
    expect(&fx, &(struct answer){401, STATUS(401, "Unauthorized", "Unauthorized")});
    expect(&fx, &(struct answer){200, LISTED("10", POD("a", "3"))});
    for (int i = 0; i < 3; i++)
        expect(&fx, &(struct answer){401, STATUS(401, "Unauthorized", "Unauthorized")});
    start(&fx, (struct kube_config){.token_file = file.path, .intervals.backoff_ms = 1});
    assert_int_equal(stat(file.path, &s), 0);
    fd = open(file.path, O_WRONLY);
    assert_int_equal(pwrite(fd, "token2\n", 7, 0), 7);
    times[0] = s.st_atim;
    times[1] = s.st_mtim;
    assert_int_equal(futimens(fd, times), 0);
    close(fd);
    UNTIL(&fx, fx.n_requests == 3);
    assert_string_equal(fx.tokens[0], "Bearer token1");
    assert_string_equal(fx.tokens[1], "Bearer token2");
    assert_null(strstr(log_text(&fx), "kube_unauthorized")); /* that was the rotation */
    UNTIL(&fx, fx.open);                                     /* the fourth 401 is followed too */
    assert_non_null(strstr(log_text(&fx), "kube_unauthorized"));
    assert_int_equal(fx.n_requests, 6);
    for (int i = 2; i < 6; i++)
        assert_true(is_watch(&fx, i, "10"));
    unlink(file.path);
    finish(&fx);
}

static void each_rotation_may_be_met_with_one_401(void **state) {
    struct fixture fx;

    (void)state;
    init(&fx);
    expect(&fx, &(struct answer){401, ""});
    expect(&fx, &(struct answer){200, LISTED("10", POD("a", "3"))});
    expect(&fx, &(struct answer){401, ""});
    expect(&fx, &(struct answer){0, EVENT("ADDED", "b", "11")});
    start(&fx,
          (struct kube_config){.intervals.backoff_ms = NEVER, .intervals.backoff_max_ms = NEVER});
    UNTIL(&fx, fx.n_objects == 2);
    assert_null(strstr(log_text(&fx), "kube_unauthorized"));
    finish(&fx);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_second_403_is_reported_with_the_missing_role),
        cmocka_unit_test(forbidden_once_is_a_warning_and_tried_again_at_once),
        cmocka_unit_test(a_role_that_stays_missing_is_named_once_in_half_a_minute),
        cmocka_unit_test(each_refusal_is_read_by_itself),
        cmocka_unit_test(a_forbidden_request_backs_off),
        cmocka_unit_test(a_new_token_is_sent_by_new_requests),
        cmocka_unit_test(a_token_that_cannot_be_read_leaves_the_old_one),
        cmocka_unit_test(after_401_the_token_is_read_again_at_once_and_tried_once),
        cmocka_unit_test(each_rotation_may_be_met_with_one_401),
    };

    signal(SIGPIPE, SIG_IGN);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
