/* tests/unit/router/test_kube_watch.c - what API servers really do, and the copy that stays right. */
#include "router/discovery/kube_watch.h"

#include "common/rng.h"
#include "tests/support/support.h"
#include "tests/unit/router/kube_fixture.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>

#define LIST_PATH                                                                                  \
    "/api/v1/namespaces/prod/pods?labelSelector=app%3Dvllm%2Ctier%20in%20%28a%2C%20b%29"

static bool is_watch(const struct fixture *fx, int i, const char *version) {
    char want[200];

    snprintf(want, sizeof(want),
             "&watch=true&allowWatchBookmarks=true&resourceVersion=%s&timeoutSeconds=", version);
    return strstr(fx->targets[i], want) != NULL;
}

static bool is_list_anew(const struct fixture *fx, int i) {
    return strcmp(fx->targets[i], LIST_PATH "&limit=500") == 0;
}

#define NEVER 3600000u /* an hour: a test does not see it pass */

/* --- the ordinary way --------------------------------------------------------------------------------*/

static void a_list_of_any_version_then_a_watch_from_there(void **state) {
    struct fixture fx;
    const char *seconds;

    (void)state;
    init(&fx);
    expect(&fx, &(struct answer){200, LISTED("10", POD("a", "3") "," POD("b", "9"))});
    start(&fx, (struct kube_config){0});
    assert_false(kube_watch_is_synced(fx.watch));
    UNTIL(&fx, fx.open);
    assert_string_equal(fx.targets[0], LIST_PATH "&limit=500&resourceVersion=0");
    assert_true(is_watch(&fx, 1, "10"));
    seconds = strstr(fx.targets[1], "timeoutSeconds=") + strlen("timeoutSeconds=");
    assert_in_range(atoi(seconds), 300, 600);
    assert_string_equal(fx.agent, "incipit/" INCIPIT_VERSION " (router)");
    assert_string_equal(held(&fx), "ab");
    assert_int_equal(fx.n_begun, 1);
    assert_int_equal(fx.n_ended, 1);
    assert_int_equal(fx.n_changes, 1);
    assert_true(kube_watch_is_synced(fx.watch));
    assert_true(kube_watch_stale_s(fx.watch) == 0);
    finish(&fx);
}

static void events_come_through_however_they_are_cut(void **state) {
    static const char stream[] = EVENT("ADDED", "c", "11") EVENT("MODIFIED", "a", "12")
        EVENT("DELETED", "b", "13") BOOKMARK("20");
    struct fixture fx;

    (void)state;
    init(&fx);
    expect(&fx, &(struct answer){200, LISTED("10", POD("a", "3") "," POD("b", "9"))});
    start(&fx, (struct kube_config){0});
    UNTIL(&fx, fx.open);
    for (size_t i = 0; stream[i]; i++) { /* a chunk each, often a read each */
        http_stream_write(fx.open, (struct str){stream + i, 1});
        if (i % 3 == 0) loop_turn(fx.loop, 0);
    }
    UNTIL(&fx, fx.n_gone == 1);
    assert_string_equal(held(&fx), "ac");
    assert_int_equal(fx.n_objects, 4);
    end_watch(&fx);
    UNTIL(&fx, fx.n_requests == 3);
    assert_true(is_watch(&fx, 2, "20")); /* the bookmark's */
    assert_int_equal(fx.n_begun, 1);
    finish(&fx);
}

static void several_events_of_one_read_are_one_change(void **state) {
    struct fixture fx;

    (void)state;
    init(&fx);
    expect(&fx, &(struct answer){200, LISTED("10", "")});
    start(&fx, (struct kube_config){0});
    UNTIL(&fx, fx.open);
    say(&fx, EVENT("ADDED", "c", "11") EVENT("ADDED", "d", "12") BOOKMARK("13"));
    UNTIL(&fx, fx.n_changes == 2);
    assert_string_equal(held(&fx), "cd");
    say(&fx, BOOKMARK("14"));
    turn_idly(&fx);
    assert_int_equal(fx.n_changes, 2); /* nothing to look at */
    finish(&fx);
}

static void pages_are_one_list(void **state) {
    struct fixture fx;

    (void)state;
    init(&fx);
    expect(&fx, &(struct answer){200, PAGE("10", "t/1=", POD("a", "3"))});
    expect(&fx, &(struct answer){200, PAGE("10", "t2", POD("b", "3"))});
    expect(&fx, &(struct answer){200, LISTED("12", POD("c", "3"))});
    start(&fx, (struct kube_config){0});
    UNTIL(&fx, fx.open);
    assert_string_equal(fx.targets[1], LIST_PATH "&limit=500&continue=t%2F1%3D");
    assert_string_equal(fx.targets[2], LIST_PATH "&limit=500&continue=t2");
    assert_string_equal(held(&fx), "abc");
    assert_int_equal(fx.n_begun, 1);
    assert_int_equal(fx.n_ended, 1);
    assert_int_equal(fx.n_changes, 1);
    assert_true(is_watch(&fx, 3, "10")); /* nothing since the first page is missed */
    finish(&fx);
}

/* As from a server that does not look at `continue`. */
static void pages_that_go_round_are_no_list(void **state) {
    struct fixture fx;

    (void)state;
    init(&fx);
    for (int i = 0; i < 2; i++)
        expect(&fx, &(struct answer){200, PAGE("10", "t1", POD("a", "3"))});
    start(&fx,
          (struct kube_config){.intervals.backoff_ms = NEVER, .intervals.backoff_max_ms = NEVER});
    UNTIL(&fx, strstr(log_text(&fx), "in a circle"));
    turn_idly(&fx);
    assert_int_equal(fx.n_requests, 2);
    assert_int_equal(fx.n_ended, 0);
    finish(&fx);
}

/* A server's memory answers the first list whole, whatever the limit says. */
static void a_list_of_any_length_is_told_item_by_item(void **state) {
    enum { N = 1500, BYTES = 20000 };
    struct fixture fx;
    struct buf body;

    (void)state;
    init(&fx);
    buf_init(&body, 0);
    buf_appendf(&body, "{\"metadata\":{\"resourceVersion\":\"10\"},\"items\":[");
    for (int i = 0; i < N; i++) {
        buf_appendf(&body, "%s{\"metadata\":{\"name\":\"%c\",\"managedFields\":\"%0*d\"}}",
                    i ? "," : "", 'a' + i % 26, BYTES, i);
    }
    buf_appendf(&body, "]}");
    buf_append_char(&body, '\0');
    expect(&fx, &(struct answer){200, buf_ptr(&body)});
    start(&fx, (struct kube_config){0});
    UNTIL(&fx, fx.open);
    assert_int_equal(fx.n_objects, N);
    assert_true(fx.object_bytes > (size_t)N * BYTES);
    assert_int_equal(fx.n_ended, 1);
    buf_fini(&body);
    finish(&fx);
}

static void the_list_is_made_anew_from_time_to_time(void **state) {
    struct fixture fx;

    (void)state;
    init(&fx);
    expect(&fx, &(struct answer){200, LISTED("10", POD("a", "3") "," POD("b", "3"))});
    expect(&fx, &(struct answer){0, BOOKMARK("11")});
    expect(&fx, &(struct answer){200, LISTED("30", POD("b", "3"))});
    start(&fx, (struct kube_config){.intervals.relist_ms = 100});
    UNTIL(&fx, fx.n_requests == 4);
    assert_true(is_list_anew(&fx, 2)); /* what is stored now, not what is remembered */
    assert_true(is_watch(&fx, 3, "30"));
    assert_string_equal(held(&fx), "b");
    finish(&fx);
}

static void a_list_that_is_merely_due_may_be_put_off(void **state) {
    struct fixture fx;

    (void)state;
    init(&fx);
    expect(&fx, &(struct answer){200, LISTED("10", POD("a", "3"))});
    expect(&fx, &(struct answer){0, BOOKMARK("11")});
    expect(&fx, &(struct answer){429, STATUS(429, "TooManyRequests", "slow down"), "200"});
    expect(&fx, &(struct answer){0, EVENT("ADDED", "b", "12")});
    expect(&fx, &(struct answer){200, LISTED("30", POD("c", "29"))});
    start(&fx, (struct kube_config){.intervals.relist_ms = 600});
    UNTIL(&fx, fx.n_objects == 2);
    assert_string_equal(held(&fx), "ab");
    assert_true(is_list_anew(&fx, 2));
    assert_true(is_watch(&fx, 3, "11"));
    assert_non_null(strstr(log_text(&fx), "kube_list_put_off"));
    UNTIL(&fx, fx.n_requests == 6);
    assert_true(is_list_anew(&fx, 4));
    assert_string_equal(held(&fx), "c");
    assert_int_equal(fx.n_begun, 2);
    finish(&fx);
}

/* Neither what has been told in part, nor what is asked for because the watch knows too little. */
static void a_list_that_is_needed_is_not_put_off(void **state) {
    struct fixture fx;

    (void)state;
    init(&fx);
    expect(&fx, &(struct answer){200, LISTED("10", POD("a", "3"))});
    expect(&fx, &(struct answer){0, BOOKMARK("11")});
    expect(&fx, &(struct answer){0, "{\"items\":[" POD("b", "4")});
    start(&fx, (struct kube_config){.intervals.relist_ms = 600});
    UNTIL(&fx, fx.n_requests == 3 && fx.n_objects == 2);
    expect(&fx, &(struct answer){429, ""});
    expect(&fx, &(struct answer){200, LISTED("20", POD("b", "4"))});
    expect(&fx, &(struct answer){0, GONE});
    expect(&fx, &(struct answer){429, ""});
    expect(&fx, &(struct answer){200, LISTED("30", POD("c", "29"))});
    http_stream_break(fx.open);
    fx.open = NULL;
    UNTIL(&fx, fx.n_requests == 9);
    assert_true(is_list_anew(&fx, 3));
    assert_true(is_list_anew(&fx, 4));
    assert_true(is_watch(&fx, 5, "20"));
    assert_true(is_list_anew(&fx, 6));
    assert_true(is_list_anew(&fx, 7));
    assert_string_equal(held(&fx), "c");
    finish(&fx);
}

/* --- watches that end ---------------------------------------------------------------------------------*/

static void a_watch_in_which_nothing_was_heard_was_blind(void **state) {
    struct fixture fx;

    (void)state;
    init(&fx);
    expect(&fx, &(struct answer){200, LISTED("99", POD("a", "3"))});
    expect(&fx, &(struct answer){200, ""});
    expect(&fx, &(struct answer){200, LISTED("10", POD("b", "4"))});
    start(&fx, (struct kube_config){0});
    UNTIL(&fx, fx.n_requests == 4);
    assert_true(is_list_anew(&fx, 2));
    assert_true(is_watch(&fx, 3, "10"));
    assert_string_equal(held(&fx), "b");
    finish(&fx);
}

/* Each watch is judged by itself. */
static void what_was_heard_before_does_not_count(void **state) {
    struct fixture fx;

    (void)state;
    init(&fx);
    expect(&fx, &(struct answer){200, LISTED("10", POD("a", "3"))});
    expect(&fx, &(struct answer){200, BOOKMARK("11")});
    expect(&fx, &(struct answer){200, ""});
    start(&fx, (struct kube_config){0});
    UNTIL(&fx, fx.n_requests == 4);
    assert_true(is_watch(&fx, 2, "11"));
    assert_true(is_list_anew(&fx, 3));
    finish(&fx);
}

static void what_merely_ended_goes_on_at_once_but_not_again_and_again(void **state) {
    struct fixture fx;

    (void)state;
    init(&fx);
    expect(&fx, &(struct answer){200, LISTED("10", POD("a", "3"))});
    expect(&fx, &(struct answer){200, BOOKMARK("11")});
    expect(&fx, &(struct answer){200, BOOKMARK("12")});
    start(&fx,
          (struct kube_config){.intervals.backoff_ms = NEVER, .intervals.backoff_max_ms = NEVER});
    UNTIL(&fx, fx.n_requests == 3);
    turn_idly(&fx);
    assert_int_equal(fx.n_requests, 3);
    finish(&fx);
}

static void a_watch_that_lasted_is_followed_by_the_next_at_once(void **state) {
    struct fixture fx;

    (void)state;
    init(&fx);
    expect(&fx, &(struct answer){200, LISTED("10", POD("a", "3"))});
    start(&fx, (struct kube_config){.intervals.healthy_ms = 1,
                                    .intervals.backoff_ms = NEVER,
                                    .intervals.backoff_max_ms = NEVER});
    for (int i = 2; i < 6; i++) {
        UNTIL(&fx, fx.open && fx.n_requests == i);
        say(&fx, BOOKMARK("11"));
        turn_idly(&fx);
        end_watch(&fx);
    }
    UNTIL(&fx, fx.n_requests == 6);
    finish(&fx);
}

static void a_list_that_is_due_does_not_disturb_one_under_way(void **state) {
    struct fixture fx;

    (void)state;
    init(&fx);
    expect(&fx, &(struct answer){200, LISTED("10", POD("a", "3"))});
    expect(&fx, &(struct answer){0, GONE});
    start(&fx, (struct kube_config){.intervals.relist_ms = 20});
    UNTIL(&fx, fx.n_requests == 3); /* a list that takes its time */
    turn_idly(&fx);
    assert_int_equal(fx.n_requests, 3);
    finish(&fx);
}

static void a_silent_watch_is_given_up(void **state) {
    struct fixture fx;

    (void)state;
    init(&fx);
    expect(&fx, &(struct answer){200, LISTED("99", POD("a", "3"))});
    expect(&fx, &(struct answer){0, NULL});
    expect(&fx, &(struct answer){200, LISTED("10", POD("b", "4"))});
    expect(&fx, &(struct answer){0, BOOKMARK("11")});
    start(&fx, (struct kube_config){.intervals.silence_ms = 50});
    UNTIL(&fx, fx.n_requests == 5);
    assert_true(is_list_anew(&fx, 2));
    assert_true(is_watch(&fx, 4, "11")); /* this one had been heard */
    finish(&fx);
}

static void a_cut_in_the_middle_of_an_event_goes_on_from_the_last_one(void **state) {
    struct fixture fx;

    (void)state;
    init(&fx);
    expect(&fx, &(struct answer){200, LISTED("10", POD("a", "3"))});
    start(&fx, (struct kube_config){0});
    UNTIL(&fx, fx.open);
    say(&fx, EVENT("ADDED", "b", "11"));
    say(&fx, "{\"type\":\"DELETED\",\"object\":{\"metadata\":{\"name\":\"a\"");
    UNTIL(&fx, fx.n_objects == 2);
    http_stream_break(fx.open);
    fx.open = NULL;
    UNTIL(&fx, fx.open);
    assert_true(is_watch(&fx, 2, "11"));
    say(&fx, EVENT("DELETED", "a", "12"));
    UNTIL(&fx, fx.n_gone == 1);
    assert_string_equal(held(&fx), "b");
    assert_int_equal(fx.n_begun, 1);
    assert_non_null(strstr(log_text(&fx), "kube_watch_lost"));
    assert_non_null(strstr(log_text(&fx), "kube_watch_resumed"));
    finish(&fx);
}

static void gone_in_whatever_form_means_list_anew(void **state) {
    static const struct answer forms[] = {
        {0, GONE},
        {0, EVENT("ADDED", "z", "11") GONE EVENT("ADDED", "y", "12")},
        {410, STATUS(410, "Expired", "too old")},
        {410, STATUS(410, "Gone", "too old")},
        {410, ""},
        {400, STATUS(400, "Expired", "too old")},
    };

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(forms); i++) {
        struct fixture fx;

        init(&fx);
        expect(&fx, &(struct answer){200, LISTED("10", POD("a", "3"))});
        expect(&fx, &forms[i]);
        expect(&fx, &(struct answer){200, LISTED("50", POD("b", "40"))});
        start(&fx, (struct kube_config){.intervals.backoff_ms = NEVER,
                                        .intervals.backoff_max_ms = NEVER}); /* at once */
        UNTIL(&fx, fx.n_requests == 4);
        assert_true(is_list_anew(&fx, 2));
        assert_true(is_watch(&fx, 3, "50"));
        assert_string_equal(held(&fx), "b");
        assert_int_equal(fx.n_objects, i == 1 ? 3 : 2); /* what stands behind it does not count */
        finish(&fx);
    }
}

static void what_cannot_be_read_means_list_anew(void **state) {
    static const struct answer forms[] = {
        {0, "<html>\n"},
        {0, EVENT("SYNCED", "b", "11")},
        {0, "{\"type\":\"ADDED\",\"object\":{\"metadata\":{\"name\":\"b\"}}}\n"},
        {0, "{\"type\":\"ERROR\",\"object\":" STATUS(500, "InternalError", "etcd") "}\n"},
        {422, STATUS(422, "Invalid", "sendInitialEvents is forbidden")},
        {400, "no"},
        {302, ""},
    };

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(forms); i++) {
        struct fixture fx;

        init(&fx);
        expect(&fx, &(struct answer){200, LISTED("10", POD("a", "3"))});
        expect(&fx, &forms[i]);
        expect(&fx, &(struct answer){200, LISTED("50", POD("b", "40"))});
        start(&fx, (struct kube_config){0});
        UNTIL(&fx, fx.n_requests == 4);
        assert_true(is_list_anew(&fx, 2));
        assert_string_equal(held(&fx), "b");
        assert_non_null(strstr(log_text(&fx), "kube_watch_lost"));
        finish(&fx);
    }
}

/* --- lists that fail ----------------------------------------------------------------------------------*/

static void a_page_that_has_expired_begins_the_list_anew(void **state) {
    struct fixture fx;

    (void)state;
    init(&fx);
    expect(&fx, &(struct answer){200, PAGE("10", "t1", POD("a", "3"))});
    expect(&fx, &(struct answer){410, STATUS(410, "Expired",
                                             "The provided continue parameter is "
                                             "too old")});
    expect(&fx, &(struct answer){200, LISTED("20", POD("b", "3"))});
    start(&fx, (struct kube_config){0});
    UNTIL(&fx, fx.open);
    assert_true(is_list_anew(&fx, 2));
    assert_true(is_watch(&fx, 3, "20"));
    assert_string_equal(held(&fx), "b");
    assert_int_equal(fx.n_begun, 2);
    assert_int_equal(fx.n_ended, 1);
    finish(&fx);
}

#define TOO_LARGE                                                                                  \
    "{\"kind\":\"Status\",\"status\":\"Failure\",\"message\":\"Too large resource version\","      \
    "\"reason\":\"Timeout\",\"details\":{\"causes\":[{\"reason\":\"ResourceVersionTooLarge\"}]},"  \
    "\"code\":504}"

/* Neither by a list nor by a watch. */
static void a_version_of_the_future_is_not_asked_for_again(void **state) {
    struct fixture fx;

    (void)state;
    init(&fx);
    expect(&fx, &(struct answer){504, TOO_LARGE});
    expect(&fx, &(struct answer){200, LISTED("20", POD("b", "3"))});
    expect(&fx, &(struct answer){504, TOO_LARGE});
    expect(&fx, &(struct answer){200, LISTED("10", POD("c", "2"))});
    start(&fx, (struct kube_config){0});
    UNTIL(&fx, fx.open);
    assert_true(is_list_anew(&fx, 1));
    assert_true(is_watch(&fx, 2, "20"));
    assert_true(is_list_anew(&fx, 3));
    assert_true(is_watch(&fx, 4, "10"));
    assert_string_equal(held(&fx), "c");
    finish(&fx);
}

static void what_asking_again_does_not_mend_is_said_with_its_remedy(void **state) {
    struct fixture fx;

    (void)state;
    init(&fx);
    expect(&fx, &(struct answer){400, STATUS(400, "BadRequest", "unable to parse requirement")});
    expect(&fx, &(struct answer){404, "404 page not found"});
    start(&fx, (struct kube_config){0});
    UNTIL(&fx, fx.open);
    assert_non_null(strstr(log_text(&fx), "unable to parse requirement"));
    assert_non_null(strstr(log_text(&fx), "--k8s-selector"));
    assert_non_null(strstr(log_text(&fx), "--k8s-api-server"));
    finish(&fx);
}

static void retry_after_is_waited_for(void **state) {
    static const struct answer forms[] = {
        {429, STATUS(429, "TooManyRequests", "slow down"), "200"},
        {503, "", "200"},
        {504, "{\"details\":{\"retryAfterSeconds\":200}}", NULL},
    };

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(forms); i++) {
        struct fixture fx;

        init(&fx);
        expect(&fx, &forms[i]);
        start(&fx, (struct kube_config){0});
        UNTIL(&fx, fx.n_requests == 1);
        turn_idly(&fx);
        assert_int_equal(fx.n_requests, 1);
        finish(&fx);
    }
}

static void broken_answers_are_tried_again(void **state) {
    static const struct answer forms[] = {
        {500, STATUS(500, "InternalError", "etcdserver: leader changed")},
        {429, STATUS(429, "TooManyRequests", "slow down")},
        {200, "{\"metadata\":{\"resourceVersion\":\"7\"},\"items\":[" POD("x", "1")},
        {200, "<html>sign in</html>"},
        {200, "{\"items\":[]}"},
        {404, "not yet"},
        {409, "?"},
    };

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(forms); i++) {
        struct fixture fx;

        init(&fx);
        for (int k = 0; k < 3; k++)
            expect(&fx, &forms[i]);
        expect(&fx, &(struct answer){200, LISTED("50", POD("b", "40"))});
        start(&fx, (struct kube_config){0});
        UNTIL(&fx, fx.open);
        assert_string_equal(held(&fx), "b");
        assert_int_equal(fx.n_ended, 1);
        assert_true(is_watch(&fx, 4, "50"));
        finish(&fx);
    }
}

static void a_collection_that_is_missing_is_the_listeners_to_judge(void **state) {
    struct fixture fx;

    (void)state;
    init(&fx);
    fx.gives_up = true;
    expect(&fx, &(struct answer){404, STATUS(404, "NotFound", "could not find the resource")});
    start(&fx, (struct kube_config){0});
    UNTIL(&fx, fx.n_missing == 1);
    turn_idly(&fx);
    assert_null(fx.watch);
    assert_int_equal(fx.n_requests, 1);
    finish(&fx);
}

/* --- rights -------------------------------------------------------------------------------------------*/

static void what_is_forbidden_is_said_with_the_role_that_is_missing(void **state) {
    struct fixture fx;
    const char *text;

    (void)state;
    init(&fx);
    expect(&fx,
           &(struct answer){403, STATUS(403, "Forbidden",
                                        "pods is forbidden: User "
                                        "\\\"system:serviceaccount:prod:router\\\" cannot list "
                                        "resource \\\"pods\\\" in API group \\\"\\\" in the "
                                        "namespace \\\"prod\\\"")});
    expect(&fx, &(struct answer){200, LISTED("50", POD("b", "40"))});
    expect(&fx, &(struct answer){403, STATUS(403, "Forbidden", "no")});
    start(&fx, (struct kube_config){0});
    UNTIL(&fx, fx.n_requests == 4);
    assert_true(is_list_anew(&fx, 3)); /* what may only be listed is listed */
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

static void each_refusal_is_read_by_itself(void **state) {
    struct fixture fx;

    (void)state;
    init(&fx);
    expect(&fx, &(struct answer){403, STATUS(403, "Forbidden", "one")});
    expect(&fx, &(struct answer){403, STATUS(403, "Forbidden", "two")});
    start(&fx, (struct kube_config){0});
    UNTIL(&fx, fx.n_requests == 3);
    assert_non_null(strstr(log_text(&fx), "why=one"));
    assert_non_null(strstr(log_text(&fx), "why=two"));
    finish(&fx);
}

static void what_is_forbidden_is_not_asked_for_all_the_time(void **state) {
    struct fixture fx;

    (void)state;
    init(&fx);
    expect(&fx, &(struct answer){403, ""});
    start(&fx, (struct kube_config){.intervals.forbidden_ms = 3600000});
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

static void a_new_token_is_shown_by_what_is_new(void **state) {
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
    say(&fx, EVENT("ADDED", "b", "11"));
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

/* --- outages ------------------------------------------------------------------------------------------*/

static void while_the_server_is_away_everything_stays(void **state) {
    struct fixture fx;

    (void)state;
    init(&fx);
    expect(&fx, &(struct answer){200, LISTED("10", POD("a", "3"))});
    start(&fx, (struct kube_config){0});
    UNTIL(&fx, fx.open);
    say(&fx, BOOKMARK("12"));
    turn_idly(&fx);
    http_server_destroy(fx.server);
    fx.server = NULL;
    UNTIL(&fx, kube_watch_stale_s(fx.watch) > 0);
    turn_idly(&fx);
    assert_string_equal(held(&fx), "a");
    assert_true(kube_watch_is_synced(fx.watch));
    assert_true(kube_watch_stale_s(fx.watch) > 0);
    assert_int_equal(fx.n_changes, 1);

    start_server(&fx);
    UNTIL(&fx, fx.open);
    assert_true(is_watch(&fx, 2, "12"));
    UNTIL(&fx, kube_watch_stale_s(fx.watch) == 0); /* though nothing has been heard yet */
    say(&fx, EVENT("ADDED", "b", "13"));
    UNTIL(&fx, fx.n_changes == 2);
    assert_string_equal(held(&fx), "ab");
    finish(&fx);
}

static void a_list_that_is_whole_is_right_whatever_was_before(void **state) {
    struct fixture fx;

    (void)state;
    init(&fx);
    expect(&fx, &(struct answer){200, LISTED("10", POD("a", "3"))});
    expect(&fx, &(struct answer){503, ""});
    expect(&fx, &(struct answer){410, ""});
    expect(&fx, &(struct answer){200, LISTED("20", POD("a", "3"))});
    expect(&fx, &(struct answer){429, "", "200"}); /* and there it stays */
    start(&fx, (struct kube_config){0});
    UNTIL(&fx, fx.n_ended == 2);
    assert_true(kube_watch_stale_s(fx.watch) == 0);
    UNTIL(&fx, fx.n_requests == 5);
    UNTIL(&fx, kube_watch_stale_s(fx.watch) > 0);
    assert_true(kube_watch_stale_s(fx.watch) < 100);
    finish(&fx);
}

/* --- at random ----------------------------------------------------------------------------------------*/

/* A server with a history, that pages by three, forgets, cuts and refuses; in the end both agree. */
struct world {
    struct rng rng;
    bool has[26], page_has[26]; /* now; when the list that is being paged began */
    struct {
        char name, type; /* 'A', 'M', 'D' */
    } history[4096];
    uint32_t version, oldest; /* of history: [i] made version i + 1; oldest kept */
    bool is_calm;
};

static struct world world;

static void send_event(struct http_request *req, uint32_t version) {
    char text[200];

    snprintf(text, sizeof(text),
             "{\"type\":\"%s\",\"object\":{\"metadata\":{\"name\":\"%c\",\"resourceVersion\":\"%"
             "u\"}}}\n",
             world.history[version - 1].type == 'A'   ? "ADDED"
             : world.history[version - 1].type == 'M' ? "MODIFIED"
                                                      : "DELETED",
             world.history[version - 1].name, version);
    if (rng_below(&world.rng, 2)) { /* in two chunks */
        http_stream_write(req, (struct str){text, 20});
        http_stream_write(req, str_of(text + 20));
    } else {
        http_stream_write(req, str_of(text));
    }
}

static uint32_t number_after(const char *target, const char *name) {
    const char *at = strstr(target, name);

    return at ? (uint32_t)strtoul(at + strlen(name), NULL, 10) : 0;
}

static void answer_list(struct fixture *fx, struct http_request *req, const char *target) {
    uint32_t from = number_after(target, "continue="), n = 0;
    struct buf out;

    (void)fx;
    if (from && !world.is_calm && rng_below(&world.rng, 4) == 0) {
        http_reply(req, 410, NULL, STR(STATUS(410, "Expired", "old")));
        return;
    }
    if (!from) memcpy(world.page_has, world.has, sizeof(world.has));
    buf_init(&out, 0);
    buf_appendf(&out, "{\"items\":[");
    for (; from < 26 && n < 3; from++) {
        if (!world.page_has[from]) continue;
        buf_appendf(&out, "%s{\"metadata\":{\"name\":\"%c\"}}", n++ ? "," : "", 'a' + (int)from);
    }
    /* The snapshot's version: nothing changes between the pages of one list. */
    buf_appendf(&out, "],\"metadata\":{\"resourceVersion\":\"%u\"", world.version);
    if (from < 26) buf_appendf(&out, ",\"continue\":\"%u\"", from);
    buf_appendf(&out, "}}");
    http_reply(req, 200, "application/json", buf_str(&out));
    buf_fini(&out);
}

static void answer_watch(struct fixture *fx, struct http_request *req, const char *target) {
    uint32_t from = number_after(target, "resourceVersion=");

    go_on(fx, req, NULL);
    if (from < world.oldest) {
        http_stream_write(req, STR(GONE));
        end_watch(fx);
        return;
    }
    for (uint32_t v = from + 1; v <= world.version; v++)
        send_event(req, v);
}

static void answer_world(struct fixture *fx, struct http_request *req) {
    char target[700];

    snprintf(target, sizeof(target), "%s", fx->targets[0]);
    fx->n_requests = 0;
    if (!world.is_calm && rng_below(&world.rng, 6) == 0) {
        http_reply(req, rng_below(&world.rng, 2) ? 500 : 429, NULL, STR("{}"));
    } else if (strstr(target, "watch=true")) {
        answer_watch(fx, req, target);
    } else {
        answer_list(fx, req, target);
    }
}

static void mutate(struct fixture *fx) {
    int i = (int)rng_below(&world.rng, 26);
    char type = !world.has[i] ? 'A' : rng_below(&world.rng, 2) ? 'M' : 'D';

    if (world.version == ARRAY_LEN(world.history)) return;
    world.has[i] = type != 'D';
    world.history[world.version].name = (char)('a' + i);
    world.history[world.version].type = type;
    world.version++;
    if (!fx->open) return;
    send_event(fx->open, world.version);
    if (rng_below(&world.rng, 8) == 0) send_event(fx->open, world.version); /* doubled */
}

static void disturb(struct fixture *fx) {
    switch (rng_below(&world.rng, 8)) {
    case 0: world.oldest = world.version; break;
    case 1:
        if (fx->open) http_stream_break(fx->open);
        fx->open = NULL;
        break;
    case 2:
        if (fx->open) end_watch(fx);
        break;
    case 3:
        if (fx->open) http_stream_write(fx->open, STR(BOOKMARK("0") "junk\n"));
        break;
    case 4: /* away */
        http_server_destroy(fx->server);
        fx->server = NULL;
        loop_turn(fx->loop, 1000);
        start_server(fx);
        break;
    default: break;
    }
}

static bool agrees(const struct fixture *fx) {
    for (int i = 0; i < 26; i++) {
        if (world.has[i] != (fx->round_of[i] != 0)) return false;
    }
    return true;
}

static void at_random_the_copy_ends_up_right(void **state) {
    struct fixture fx;

    (void)state;
    memset(&world, 0, sizeof(world));
    rng_seed(&world.rng, support_seed());
    init(&fx);
    fx.on_request = answer_world;
    start(&fx, (struct kube_config){.intervals.relist_ms = 200});
    for (int i = 0; i < 1500; i++) {
        world.is_calm = false;
        mutate(&fx);
        if (rng_below(&world.rng, 4) == 0) disturb(&fx);
        loop_turn(fx.loop, rng_below(&world.rng, 3) * 500);
        if (i % 100) continue;
        world.is_calm = true; /* nothing changes for a while */
        UNTIL(&fx, kube_watch_is_synced(fx.watch) && agrees(&fx));
    }
    finish(&fx);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_list_of_any_version_then_a_watch_from_there),
        cmocka_unit_test(events_come_through_however_they_are_cut),
        cmocka_unit_test(several_events_of_one_read_are_one_change),
        cmocka_unit_test(pages_are_one_list),
        cmocka_unit_test(pages_that_go_round_are_no_list),
        cmocka_unit_test(a_list_of_any_length_is_told_item_by_item),
        cmocka_unit_test(the_list_is_made_anew_from_time_to_time),
        cmocka_unit_test(a_list_that_is_merely_due_may_be_put_off),
        cmocka_unit_test(a_list_that_is_needed_is_not_put_off),
        cmocka_unit_test(a_watch_in_which_nothing_was_heard_was_blind),
        cmocka_unit_test(what_was_heard_before_does_not_count),
        cmocka_unit_test(what_merely_ended_goes_on_at_once_but_not_again_and_again),
        cmocka_unit_test(a_watch_that_lasted_is_followed_by_the_next_at_once),
        cmocka_unit_test(a_list_that_is_due_does_not_disturb_one_under_way),
        cmocka_unit_test(a_silent_watch_is_given_up),
        cmocka_unit_test(a_cut_in_the_middle_of_an_event_goes_on_from_the_last_one),
        cmocka_unit_test(gone_in_whatever_form_means_list_anew),
        cmocka_unit_test(what_cannot_be_read_means_list_anew),
        cmocka_unit_test(a_page_that_has_expired_begins_the_list_anew),
        cmocka_unit_test(a_version_of_the_future_is_not_asked_for_again),
        cmocka_unit_test(what_asking_again_does_not_mend_is_said_with_its_remedy),
        cmocka_unit_test(retry_after_is_waited_for),
        cmocka_unit_test(broken_answers_are_tried_again),
        cmocka_unit_test(a_collection_that_is_missing_is_the_listeners_to_judge),
        cmocka_unit_test(what_is_forbidden_is_said_with_the_role_that_is_missing),
        cmocka_unit_test(each_refusal_is_read_by_itself),
        cmocka_unit_test(what_is_forbidden_is_not_asked_for_all_the_time),
        cmocka_unit_test(a_new_token_is_shown_by_what_is_new),
        cmocka_unit_test(a_token_that_cannot_be_read_leaves_the_old_one),
        cmocka_unit_test(after_401_the_token_is_read_again_at_once_and_tried_once),
        cmocka_unit_test(each_rotation_may_be_met_with_one_401),
        cmocka_unit_test(while_the_server_is_away_everything_stays),
        cmocka_unit_test(a_list_that_is_whole_is_right_whatever_was_before),
        cmocka_unit_test(at_random_the_copy_ends_up_right),
    };

    signal(SIGPIPE, SIG_IGN);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
