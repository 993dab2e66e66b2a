/* tests/unit/router/upgrade/test_handover.c - both sides of a handover, each against a scripted
 * other. */
#include <fcntl.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/mem.h"
#include "common/net/loop.h"
#include "router/registry/registry.h"
#include "router/upgrade/handover_wire.h"
#include "router/upgrade/snapshot.h"
#include "tests/support/client.h"
#include "tests/support/cm.h"
#include "tests/support/routing_defaults.h"

struct fixture {
    char folder[32], path[64];
    struct loop *loop;
    struct registry *registry;
    struct handover *handover;
    struct handover_config config;
    int n_succeeded;
};

static int listening_socket(void) {
    struct sockaddr_in addr = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    assert_int_equal(bind(fd, (struct sockaddr *)&addr, sizeof(addr)), 0);
    assert_int_equal(listen(fd, 8), 0);
    return fd;
}

static void on_succeeded(void *arg) {
    struct fixture *fx = arg;

    fx->n_succeeded++;
    handover_close(fx->handover); /* it may */
    fx->handover = NULL;
}

static void start(struct fixture *fx, uint32_t n_client) {
    struct registry_config config = {0};

    memset(fx, 0, sizeof(*fx));
    snprintf(fx->folder, sizeof(fx->folder), "/tmp/handover-XXXXXX");
    assert_non_null(mkdtemp(fx->folder));
    snprintf(fx->path, sizeof(fx->path), "%s/router", fx->folder);
    assert_int_equal(loop_create(&fx->loop, NULL), ST_OK);
    routing_options_default(&config.routing);
    config.routing.max_index_bytes = 1 << 20;
    assert_int_equal(registry_create(&fx->registry, &config, NULL), ST_OK);
    fx->config = (struct handover_config){
        .path = fx->path,
        .index = {.registry = fx->registry, .scheme = 5},
        .state = {.n_client = n_client, .n_admin = 1, .hash_seed = UINT64_C(0x0123456789abcdef)},
        .on_succeeded = on_succeeded,
        .arg = fx};
    for (uint32_t i = 0; i < n_client; i++)
        fx->config.state.client[i] = listening_socket();
    fx->config.state.admin = listening_socket();
    assert_int_equal(handover_open(&fx->handover, fx->loop, &fx->config, NULL), ST_OK);
}

static void finish(struct fixture *fx) {
    for (uint32_t i = 0; i < fx->config.state.n_client; i++)
        close(fx->config.state.client[i]);
    close(fx->config.state.admin);
    handover_close(fx->handover);
    registry_destroy(fx->registry);
    loop_destroy(fx->loop);
    (void)!unlink(fx->path);
    assert_int_equal(rmdir(fx->folder), 0);
}

static int connect_to(const char *path) {
    struct sockaddr_un addr;
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

    assert_int_equal(handover_address(path, &addr, NULL), ST_OK);
    assert_int_equal(connect(fd, (struct sockaddr *)&addr, sizeof(addr)), 0);
    return fd;
}

/* The next packet of type `type`; ST_UNAVAILABLE: the other side has closed. */
static enum status receive(struct fixture *fx, int fd, const char *type,
                           struct handover_packet *p) {
    enum status st;

    TURN_UNTIL(fx->loop, (st = handover_receive(fd, p, NULL)) != ST_AGAIN);
    if (st == ST_OK) assert_string_equal(p->type, type);
    return st;
}

#define SEND(fd, text) assert_true(handover_send(fd, STR(text), NULL, 0))

static uint16_t port_of(int fd) {
    struct sockaddr_in addr;
    socklen_t n = sizeof(addr);

    assert_int_equal(getsockname(fd, (struct sockaddr *)&addr, &n), 0);
    return addr.sin_port;
}

static void sockets_seed_and_index_are_handed_over(void **state) {
    enum { N_CLIENT = 70 }; /* more than fit one packet */
    struct fixture fx;
    struct handover_packet p;
    struct snapshot *s = NULL;
    uint32_t n = 0;
    int fd;

    (void)state;
    start(&fx, N_CLIENT);
    fd = connect_to(fx.path);
    SEND(fd, "{\"type\":\"hello\",\"wire\":9,\"since\":\"a later version\",\"pid\":1}");
    SEND(fd, "{\"type\":\"of a later version\"}");
    while (n < N_CLIENT + 1) {
        assert_int_equal(receive(&fx, fd, "sockets", &p), ST_OK);
        for (uint32_t i = 0; i < p.n_fds; i++, n++) {
            int ours = n < N_CLIENT ? fx.config.state.client[n] : fx.config.state.admin;

            assert_int_equal(port_of(p.fds[i]), port_of(ours));
        }
        handover_packet_fini(&p);
    }
    assert_int_equal(receive(&fx, fd, "index", &p), ST_OK);
    assert_int_equal(p.n_fds, 1);
    assert_int_equal(snapshot_read_fd(&s, p.fds[0], 5, NULL), ST_OK);
    snapshot_destroy(s);
    handover_packet_fini(&p);
    assert_int_equal(fx.n_succeeded, 0);
    assert_true(handover_say(fd, "ready"));
    assert_int_equal(receive(&fx, fd, "leaving", &p), ST_OK);
    handover_packet_fini(&p);
    assert_int_equal(fx.n_succeeded, 1);
    close(fd);
    finish(&fx);
}

/* After any message or none: the next one is served. */
static void a_successor_that_disconnects_or_sends_garbage_is_dropped(void **state) {
    static const char *const messages[] = {"{\"type\":\"hello\"}", "{", "\xff", "7",
                                           "{\"type\":3}"};
    struct handover_packet p;
    struct fixture fx;
    int fd, second;

    (void)state;
    start(&fx, 1);
    for (size_t i = 0; i < ARRAY_LEN(messages); i++) {
        fd = connect_to(fx.path);
        assert_true(handover_send(fd, str_of(messages[i]), NULL, 0));
        if (i == 0) {
            assert_int_equal(receive(&fx, fd, "sockets", &p), ST_OK);
            handover_packet_fini(&p);
            second = connect_to(fx.path); /* one at a time */
            assert_int_equal(receive(&fx, second, "busy", &p), ST_OK);
            handover_packet_fini(&p);
            close(second);
            close(fd);
            for (int k = 0; k < 5; k++)
                loop_turn(fx.loop, 2000);
            continue;
        }
        while (receive(&fx, fd, "", &p) == ST_OK)
            handover_packet_fini(&p);
        close(fd);
    }
    fd = connect_to(fx.path);
    SEND(fd, "{\"type\":\"hello\"}");
    assert_int_equal(receive(&fx, fd, "sockets", &p), ST_OK);
    handover_packet_fini(&p);
    assert_int_equal(fx.n_succeeded, 0);
    close(fd);
    finish(&fx);
}

static void the_file_is_this_users_and_replaces_a_stale_one(void **state) {
    struct handover *second = NULL;
    struct error err = {0};
    struct fixture fx;
    struct stat sb;

    (void)state;
    start(&fx, 1);
    assert_int_equal(stat(fx.path, &sb), 0);
    assert_int_equal(sb.st_mode & 0777, 0600);
    assert_int_equal(handover_open(&second, fx.loop, &fx.config, NULL), ST_OK);
    handover_close(fx.handover); /* does not take away what is not its own any more */
    fx.handover = second;
    assert_int_equal(stat(fx.path, &sb), 0);
    handover_close(fx.handover);
    fx.handover = NULL;
    assert_int_equal(stat(fx.path, &sb), -1);
    assert_int_equal(chmod(fx.folder, 0770), 0);
    assert_int_equal(handover_open(&fx.handover, fx.loop, &fx.config, &err), ST_INVALID);
    assert_non_null(strstr(err.message, "other users may write"));
    finish(&fx);
}

/* --- the successor, against a predecessor that follows a script ------------------------------- */

struct script {
    int listener;
    const char *const *lines; /* NULL at the end; "+" before one: a listening socket goes with it */
    int socket, file;
};

static void *play(void *arg) {
    struct script *s = arg;
    struct handover_packet p;
    int fd = accept(s->listener, NULL, NULL);

    if (handover_receive(fd, &p, NULL) == ST_OK) handover_packet_fini(&p);
    for (const char *const *line = s->lines; *line; line++) {
        int with = **line == '+' ? s->socket : s->file;
        bool has_fd = **line == '+' || **line == '*';

        (void)!handover_send(fd, str_of(*line + has_fd), &with, has_fd);
    }
    close(fd);
    return NULL;
}

static enum status ask(const char *const *lines, struct handover_state *state, struct error *err) {
    char folder[] = "/tmp/handover-XXXXXX", path[64];
    struct script script = {.lines = lines, .socket = listening_socket()};
    struct sockaddr_un addr;
    struct takeover_client *client = NULL;
    pthread_t thread;
    enum status st;

    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof(path), "%s/router", folder);
    assert_int_equal(takeover_client_open(&client, path, state, NULL), ST_NOT_FOUND);
    assert_int_equal(handover_address(path, &addr, NULL), ST_OK);
    script.file = open("/dev/null", O_RDONLY | O_CLOEXEC);
    script.listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(script.listener, (struct sockaddr *)&addr, sizeof(addr)), 0);
    assert_int_equal(listen(script.listener, 1), 0);
    assert_int_equal(pthread_create(&thread, NULL, play, &script), 0);
    st = takeover_client_open(&client, path, state, err);
    pthread_join(thread, NULL);
    takeover_client_close(client);
    close(script.listener);
    close(script.socket);
    close(script.file);
    unlink(path);
    rmdir(folder);
    return st;
}

#define SALTED                                                                                     \
    "{\"type\":\"sockets\",\"hash_seed\":\"" SEED "\",\"salt_secret\":\"" SEED SEED SEED SEED      \
    "\",\"n_client\":1,\"n_admin\":0}"
#define SOCKETS(seed, n)                                                                           \
    "{\"type\":\"sockets\",\"hash_seed\":\"" seed "\",\"n_client\":" n ",\"n_admin\":1}"
#define SEED "00000000000000ff"

static void a_successor_takes_complete_parts(void **state) {
    static const char *const good[] = {"{\"type\":\"of a later version\",\"n\":[1]}",
                                       "+" SOCKETS(SEED, "2"), "+" SOCKETS(SEED, "2"),
                                       "+" SOCKETS(SEED, "2"), NULL};
    struct handover_state taken;

    (void)state;
    assert_int_equal(ask(good, &taken, NULL), ST_OK);
    assert_int_equal(taken.n_client, 2);
    assert_int_equal(taken.n_admin, 1);
    assert_int_equal(taken.hash_seed, 255);
    assert_false(taken.has_salt_secret);
    for (uint32_t i = 0; i < 2; i++)
        close(taken.client[i]);
    close(taken.admin);
}

static void tenants_salts_are_handed_over_where_they_are_random(void **state) {
    static const char *const salted[] = {"+" SALTED, NULL};
    struct handover_state taken;

    (void)state;
    assert_int_equal(ask(salted, &taken, NULL), ST_OK);
    assert_true(taken.has_salt_secret);
    for (uint32_t i = 0; i < HANDOVER_SECRET_BYTES; i++)
        assert_int_equal(taken.salt_secret[i], i % 8 == 7 ? 255 : 0);
    close(taken.client[0]);
}

static void a_successor_takes_nothing_else(void **state) {
    static const char *const bad[][3] = {
        {NULL},
        {"{\"type\":\"busy\"}"},
        {"not json"},
        {SOCKETS(SEED, "1")},     /* without any */
        {"*" SOCKETS(SEED, "1")}, /* a file */
        {"+" SOCKETS("ff", "1")}, /* no seed */
        {"+" SOCKETS("00000000000000fg", "1")},
        {"+" SOCKETS(SEED, "1")}, /* and then it goes */
        {"+" SOCKETS(SEED, "100000"), "+" SOCKETS(SEED, "1")},
        {"+" SOCKETS(SEED, "2"), "+" SOCKETS(SEED, "0")},
    };

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        struct handover_state taken;
        struct error err = {0};

        assert_int_not_equal(ask(bad[i], &taken, &err), ST_OK);
        assert_non_null(strstr(err.message, "--handover"));
        assert_int_equal(taken.n_client + taken.n_admin, 0);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sockets_seed_and_index_are_handed_over),
        cmocka_unit_test(a_successor_that_disconnects_or_sends_garbage_is_dropped),
        cmocka_unit_test(the_file_is_this_users_and_replaces_a_stale_one),
        cmocka_unit_test(a_successor_takes_complete_parts),
        cmocka_unit_test(tenants_salts_are_handed_over_where_they_are_random),
        cmocka_unit_test(a_successor_takes_nothing_else),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
