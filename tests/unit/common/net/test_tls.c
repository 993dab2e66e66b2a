/* tests/unit/common/net/test_tls.c - handshakes, refusals, bytes, ends and reloads, over socket
 * pairs and loopback, with certificates made here. */
#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/mem.h"
#include "common/base/rng.h"
#include "common/net/conn.h"
#include "common/net/tls.h"
#include "tests/support/certs.h"
#include "tests/support/client.h"
#include "tests/support/cm.h"
#include "tests/support/support.h"

static struct certs certs; /* made once: keys are dear */

static const char *at(const char *name) {
    return certs_path(&certs, name);
}

/* --- files ------------------------------------------------------------------------------------ */

static void refuses(const struct tls_config *config, const char *sentence) {
    struct tls *tls = NULL;
    struct error err = {0};

    assert_int_equal(tls_create(&tls, config, &err), ST_INVALID);
    assert_null(tls);
    if (!strstr(err.message, sentence)) fail_msg("'%s' is not in '%s'", sentence, err.message);
}

static void files_that_cannot_be_used_are_refused_with_a_sentence(void **state) {
    static const struct {
        const char *cert, *key, *sentence;
    } cases[] = {
        {"none.pem", "a.key", "none.pem: No such file"},
        {"a.pem", "none.key", "none.key: No such file"},
        {"junk", "a.key", "beginning with -----BEGIN CERTIFICATE-----"},
        {"empty", "a.key", "beginning with -----BEGIN CERTIFICATE-----"},
        {"a.key", "a.key", "beginning with -----BEGIN CERTIFICATE-----"},
        {"a.pem", "junk", "beginning with -----BEGIN PRIVATE KEY-----"},
        {"a.pem", "a.pem", "beginning with -----BEGIN PRIVATE KEY-----"},
        {"a.pem", "b.key", "does not belong to certificate"},
        {"a.pem", "secret.key", "is encrypted: remove its passphrase"},
        {"old.pem", "old.key", "expired on 20"},
        {"early.pem", "early.key", "is not valid before 20"},
        {"oldchain.pem", "a.key", "expired on 20"},
        {"small.pem", "small.key", "key too small"},
    };

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct tls_config config = {
            .cert = at(cases[i].cert), .key = at(cases[i].key), .is_server = true};

        refuses(&config, cases[i].sentence);
        config.is_server = false;
        refuses(&config, cases[i].sentence);
    }
    refuses(&(struct tls_config){.cert = at("a.pem"), .is_server = true}, "without its key");
    refuses(&(struct tls_config){.key = at("a.key"), .is_server = true}, "without a certificate");
    refuses(&(struct tls_config){.key = at("a.key")}, "without its certificate");
    refuses(&(struct tls_config){.ca = at("none.pem")}, "none.pem: No such file");
    refuses(&(struct tls_config){.ca = at("junk")}, "use a file of PEM certificates");
    refuses(&(struct tls_config){.ca = certs.folder}, "run openssl rehash");
}

/* --- two ends on one loop --------------------------------------------------------------------- */

struct side {
    struct conn conn;
    struct buf got;
    size_t n_got; /* counts, where `got` would grow too large */
    uint64_t sum;
    const char *failure;
    int n_connected, n_closed, n_drained;
    enum conn_end end;
    bool only_counts, leaves_all;
};

static void on_data(struct conn *c, void *owner) {
    struct side *s = owner;
    struct conn_bytes in = conn_input(c);

    if (s->leaves_all) return;
    if (s->only_counts) {
        for (size_t i = 0; i < in.len; i++)
            s->sum = s->sum * 31 + (unsigned char)in.ptr[i];
    } else {
        buf_append(&s->got, in.ptr, in.len);
    }
    s->n_got += in.len;
    conn_consume(c, in.len);
}

static void on_connected(struct conn *c, void *owner) {
    (void)c;
    ((struct side *)owner)->n_connected++;
}

static void on_drain(struct conn *c, void *owner) {
    (void)c;
    ((struct side *)owner)->n_drained++;
}

static void on_closed(struct conn *c, enum conn_end end, void *owner) {
    struct side *s = owner;

    s->n_closed++;
    s->end = end;
    s->failure = tls_failure(c);
    conn_fini(c);
}

static const struct conn_events events = {
    .on_data = on_data, .on_connected = on_connected, .on_drain = on_drain, .on_closed = on_closed};

struct pair {
    struct loop *loop;
    struct side server, client;
    struct tls *server_tls, *client_tls;
    struct tls_ticket *ticket;
};

static struct tls *new_tls(const struct tls_config *config) {
    struct tls *tls = NULL;
    struct error err = {0};

    if (tls_create(&tls, config, &err) != ST_OK) fail_msg("%s", err.message);
    return tls;
}

static struct tls *server_with(const char *cert, const char *key, const char *ca) {
    return new_tls(&(struct tls_config){
        .cert = at(cert), .key = at(key), .ca = ca ? at(ca) : NULL, .is_server = true});
}

static struct tls *client_with(const char *ca) {
    return new_tls(&(struct tls_config){.ca = at(ca)});
}

static void start(struct pair *p, struct tls *server, struct tls *client) {
    memset(p, 0, sizeof(*p));
    buf_init(&p->server.got, 0);
    buf_init(&p->client.got, 0);
    p->server_tls = server;
    p->client_tls = client;
    assert_int_equal(loop_create(&p->loop, NULL), ST_OK);
}

static void join_as(struct pair *p, const char *name) {
    int fds[2];

    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fds), 0);
    conn_init(&p->server.conn, p->loop, fds[0], &events, &p->server);
    tls_accept(&p->server.conn, p->server_tls);
    conn_init(&p->client.conn, p->loop, fds[1], &events, &p->client);
    tls_connect(&p->client.conn, p->client_tls, name, &p->ticket);
}

static void shake_hands(struct pair *p, const char *name) {
    int n = p->server.n_connected + p->client.n_connected;

    join_as(p, name);
    TURN_UNTIL(p->loop, p->server.n_connected + p->client.n_connected == n + 2);
}

static void part(struct pair *p) {
    conn_fini(&p->client.conn);
    conn_fini(&p->server.conn);
}

static void finish(struct pair *p) {
    part(p);
    tls_ticket_forget(&p->ticket);
    tls_destroy(p->server_tls);
    tls_destroy(p->client_tls);
    loop_destroy(p->loop);
    buf_fini(&p->server.got);
    buf_fini(&p->client.got);
}

static void bytes_go_both_ways_and_idle_ones_own_no_buffer(void **state) {
    struct pair p;

    (void)state;
    start(&p, server_with("a.pem", "a.key", NULL), client_with("ca.pem"));
    join_as(&p, "localhost");
    conn_write(&p.client.conn, "early", 5); /* waits for the handshake */
    TURN_UNTIL(p.loop, p.server.n_got == 5);
    conn_write(&p.server.conn, "ab", 2);
    conn_write(&p.server.conn, "cd", 2);
    TURN_UNTIL(p.loop, p.client.n_got == 4);
    assert_memory_equal(buf_ptr(&p.client.got), "abcd", 4);
    assert_null(p.server.conn.in.data);
    assert_null(p.client.conn.out.data);
    assert_int_equal(conn_pending(&p.client.conn), 0);
    finish(&p);
}

static void unverifiable_peers_are_rejected(void **state) {
    static const struct {
        const char *cert, *key, *ca, *name, *failure;
    } cases[] = {
        {"a.pem", "a.key", "ca.pem", "elsewhere", "hostname mismatch"},
        {"a.pem", "a.key", "ca.pem", "127.0.0.2", "IP address mismatch"},
        {"self.pem", "self.key", "ca.pem", "localhost", "self-signed certificate"},
        {"a.pem", "a.key", "self.pem", "localhost", "unable to get local issuer certificate"},
    };

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct pair p;

        start(&p, server_with(cases[i].cert, cases[i].key, NULL), client_with(cases[i].ca));
        join_as(&p, cases[i].name);
        TURN_UNTIL(p.loop, p.client.n_closed && p.server.n_closed);
        assert_int_equal(p.client.end, CONN_TLS);
        assert_string_equal(p.client.failure, cases[i].failure);
        assert_int_equal(p.client.n_connected + (int)p.server.n_got, 0);
        finish(&p);
    }
}

static void names_addresses_and_hashed_folders_are_accepted(void **state) {
    static const char *const names[] = {"localhost", "127.0.0.1", "::1", "x.wild.test"};
    struct pair p;

    (void)state;
    start(&p, server_with("a.pem", "a.key", NULL), client_with("hashed"));
    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        shake_hands(&p, names[i]);
        part(&p);
    }
    finish(&p);
}

static void insecure_clients_take_any_certificate(void **state) {
    struct pair p;

    (void)state;
    start(&p, server_with("self.pem", "self.key", NULL),
          new_tls(&(struct tls_config){.is_insecure = true}));
    shake_hands(&p, "elsewhere");
    finish(&p);
}

static void servers_with_authorities_require_a_certificate(void **state) {
    struct pair p;

    (void)state;
    start(
        &p, server_with("a.pem", "a.key", "ca.pem"),
        new_tls(&(struct tls_config){.ca = at("ca.pem"), .cert = at("b.pem"), .key = at("b.key")}));
    shake_hands(&p, "localhost");
    finish(&p);
    start(&p, server_with("a.pem", "a.key", "ca.pem"), client_with("ca.pem"));
    join_as(&p, "localhost");
    TURN_UNTIL(p.loop, p.client.n_closed && p.server.n_closed);
    assert_int_equal(p.server.end, CONN_TLS);
    assert_string_equal(p.server.failure, "peer did not return a certificate");
    finish(&p);
    start(&p, server_with("a.pem", "a.key", "ca.pem"),
          new_tls(&(struct tls_config){
              .ca = at("ca.pem"), .cert = at("self.pem"), .key = at("self.key")}));
    join_as(&p, "localhost");
    TURN_UNTIL(p.loop, p.server.n_closed);
    assert_int_equal(p.server.end, CONN_TLS);
    finish(&p);
}

/* --- ends ------------------------------------------------------------------------------------- */

static void close_notify_is_an_end_and_a_cut_is_not(void **state) {
    struct pair p;

    (void)state;
    for (int is_cut = 0; is_cut < 2; is_cut++) {
        start(&p, server_with("a.pem", "a.key", NULL), client_with("ca.pem"));
        shake_hands(&p, "localhost");
        conn_write(&p.server.conn, "all", 3);
        conn_flush(&p.server.conn);
        if (is_cut) shutdown(p.server.conn.watch.fd, SHUT_RDWR);
        if (!is_cut) conn_fini(&p.server.conn);
        TURN_UNTIL(p.loop, p.client.n_closed);
        assert_int_equal(p.client.n_got, 3);
        assert_int_equal(p.client.end, is_cut ? CONN_RESET : CONN_EOF);
        finish(&p);
    }
}

static void our_end_can_be_shut_while_the_other_is_read(void **state) {
    struct pair p;

    (void)state;
    start(&p, server_with("a.pem", "a.key", NULL), client_with("ca.pem"));
    shake_hands(&p, "localhost");
    p.client.leaves_all = true;
    conn_pause(&p.client.conn);
    conn_shutdown_write(&p.server.conn);
    conn_write(&p.client.conn, "still", 5);
    TURN_UNTIL(p.loop, p.server.n_got == 5);
    conn_resume(&p.client.conn);
    TURN_UNTIL(p.loop, p.client.n_closed);
    assert_int_equal(p.client.end, CONN_EOF);
    finish(&p);
}

static void a_reset_or_unsent_bytes_are_no_orderly_end(void **state) {
    static char much[1 << 20];
    struct pair p;

    (void)state;
    for (int unsent = 0; unsent < 2; unsent++) {
        start(&p, server_with("a.pem", "a.key", NULL), client_with("ca.pem"));
        shake_hands(&p, "localhost");
        p.client.only_counts = true;
        if (unsent) {
            conn_write(&p.server.conn, much, sizeof(much));
            assert_true(conn_pending(&p.server.conn) > 0);
        } else {
            conn_reset_on_close(&p.server.conn);
        }
        conn_fini(&p.server.conn);
        TURN_UNTIL(p.loop, p.client.n_closed);
        assert_int_equal(p.client.end, CONN_RESET);
        finish(&p);
    }
}

/* --- large and small -------------------------------------------------------------------------- */

static void megabytes_go_through_with_back_pressure(void **state) {
    const size_t total = 24u << 20;
    char *block = mem_alloc(65536);
    struct pair p;

    (void)state;
    for (size_t i = 0; i < 65536; i++)
        block[i] = (char)(i * 7);
    start(&p, server_with("a.pem", "a.key", NULL), client_with("ca.pem"));
    shake_hands(&p, "localhost");
    for (int way = 0; way < 2; way++) {
        struct side *from = way ? &p.client : &p.server, *to = way ? &p.server : &p.client;
        size_t sent = 0, most = 0;
        uint64_t sum = 0;
        int n_paused = 0;

        to->n_got = 0;
        to->only_counts = true;
        while (to->n_got < total) {
            if (sent < total && conn_pending(&from->conn) < 262144) {
                conn_writev(
                    &from->conn,
                    (struct iovec[]){{block, 100}, {block + 100, 40000}, {block + 40100, 25436}},
                    3);
                for (size_t i = 0; i < 65536; i++)
                    sum = sum * 31 + (unsigned char)block[i];
                sent += 65536;
            }
            most = MAX(most, conn_pending(&from->conn));
            if (n_paused++ % 50 == 10) conn_pause(&to->conn);
            if (n_paused % 50 == 15) conn_resume(&to->conn);
            loop_turn(p.loop, 1000);
        }
        assert_int_equal(to->n_got, total);
        assert_true(to->sum == sum);
        assert_true(most > 65536 && most < 400000);
        assert_true(from->n_drained > 0);
        assert_int_equal(conn_pending(&from->conn), 0);
    }
    finish(&p);
    mem_free(block);
}

static void random_writes_arrive_as_they_were_made(void **state) {
    struct rng rng;
    struct buf sent[2];
    struct pair p;

    (void)state;
    rng_seed(&rng, support_seed());
    start(&p, server_with("a.pem", "a.key", NULL), client_with("ca.pem"));
    shake_hands(&p, "localhost");
    buf_init(&sent[0], 0);
    buf_init(&sent[1], 0);
    for (int i = 0; i < 3000; i++) {
        int way = (int)rng_below(&rng, 2);
        struct conn *c = way ? &p.client.conn : &p.server.conn;
        size_t n = rng_below(&rng, 8) ? 1 + rng_below(&rng, 40) : 1 + rng_below(&rng, 60000);
        char *at_end = buf_reserve(&sent[way], n);

        for (size_t k = 0; k < n; k++)
            at_end[k] = (char)rng_u64(&rng);
        buf_commit(&sent[way], n);
        conn_write(c, at_end, n);
        switch (rng_below(&rng, 6)) {
        case 0: conn_flush(c); break;
        case 1: conn_pause(c); break;
        case 2: conn_resume(c); break;
        case 3: loop_turn(p.loop, 0); break;
        default: break;
        }
    }
    conn_resume(&p.client.conn);
    conn_resume(&p.server.conn);
    TURN_UNTIL(p.loop, p.client.n_got == buf_len(&sent[0]) && p.server.n_got == buf_len(&sent[1]));
    assert_memory_equal(buf_ptr(&p.client.got), buf_ptr(&sent[0]), buf_len(&sent[0]));
    assert_memory_equal(buf_ptr(&p.server.got), buf_ptr(&sent[1]), buf_len(&sent[1]));
    buf_fini(&sent[0]);
    buf_fini(&sent[1]);
    finish(&p);
}

/* What does not fit stays inside OpenSSL: no event on the wire would announce it again. */
static void bytes_held_back_for_lack_of_room_arrive_when_there_is_room(void **state) {
    static char much[15000];
    struct pair p;

    (void)state;
    start(&p, server_with("a.pem", "a.key", NULL), client_with("ca.pem"));
    shake_hands(&p, "localhost");
    p.client.leaves_all = true;
    conn_write(&p.server.conn, "x", 1);
    TURN_UNTIL(p.loop, conn_input(&p.client.conn).len == 1);
    conn_pin_input(&p.client.conn);
    conn_write(&p.server.conn, much, sizeof(much));
    for (int i = 0; i < 20; i++)
        loop_turn(p.loop, 1000);
    assert_true(conn_input(&p.client.conn).len < sizeof(much));
    p.client.leaves_all = false;
    conn_unpin_input(&p.client.conn);
    TURN_UNTIL(p.loop, p.client.n_got == sizeof(much) + 1);
    finish(&p);
}

/* --- strangers -------------------------------------------------------------------------------- */

/* A server whose peer is a bare descriptor. */
static int stranger(struct pair *p) {
    int fds[2];

    start(p, server_with("a.pem", "a.key", NULL), client_with("ca.pem"));
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fds), 0);
    conn_init(&p->server.conn, p->loop, fds[0], &events, &p->server);
    tls_accept(&p->server.conn, p->server_tls);
    return fds[1];
}

static void garbage_ends_the_handshake(void **state) {
    static const char *const garbage[] = {"\x80\x2e\x01", "\x16garbage that is no hello at all",
                                          "\x16\x03\x01\x00\x05\x01\x00\x00\x01\x00",
                                          "\x15\x03\x01", " GET / HTTP/1.1\r\n\r\n"};
    struct pair p;

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(garbage); i++) {
        int fd = stranger(&p);

        assert_true(write(fd, garbage[i], strlen(garbage[i])) > 0);
        shutdown(fd, SHUT_WR);
        TURN_UNTIL(p.loop, p.server.n_closed);
        assert_int_equal(p.server.end, CONN_TLS);
        assert_true(p.server.failure[0] != '\0');
        close(fd);
        finish(&p);
    }
}

static void random_garbage_never_connects(void **state) {
    struct rng rng;
    struct pair p;

    (void)state;
    rng_seed(&rng, support_seed());
    for (int i = 0; i < 200; i++) {
        unsigned char bytes[300] = {22, 3, 1};
        size_t n = 3 + rng_below(&rng, 297);
        int fd = stranger(&p);

        for (size_t k = 3; k < n; k++)
            bytes[k] = (unsigned char)rng_u64(&rng);
        assert_true(write(fd, bytes, n) > 0);
        shutdown(fd, SHUT_WR);
        TURN_UNTIL(p.loop, p.server.n_closed);
        assert_int_equal(p.server.n_connected, 0);
        close(fd);
        finish(&p);
    }
}

static void a_handshake_cut_anywhere_ends(void **state) {
    unsigned char hello[4096];
    ssize_t len = 0;
    struct pair p;
    int fds[2];

    (void)state;
    start(&p, server_with("a.pem", "a.key", NULL), client_with("ca.pem"));
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fds), 0);
    conn_init(&p.client.conn, p.loop, fds[0], &events, &p.client);
    tls_connect(&p.client.conn, p.client_tls, "localhost", &p.ticket);
    TURN_UNTIL(p.loop, (len = recv(fds[1], hello, sizeof(hello), 0)) > 0);
    close(fds[1]);
    finish(&p);
    for (ssize_t n = 1; n < len; n += 37) {
        int fd = stranger(&p);

        assert_int_equal(write(fd, hello, (size_t)n), n);
        for (int i = 0; i < 3; i++)
            loop_turn(p.loop, 0);
        assert_int_equal(p.server.n_closed, 0); /* it waits */
        close(fd);
        TURN_UNTIL(p.loop, p.server.n_closed);
        assert_int_equal(p.server.end, CONN_TLS);
        finish(&p);
    }
}

static void plain_text_goes_on_without_tls(void **state) {
    struct pair p;
    int fd = stranger(&p);

    (void)state;
    assert_int_equal(write(fd, "GET /", 5), 5);
    TURN_UNTIL(p.loop, p.server.n_connected && p.server.n_got == 5);
    assert_false(tls_is_on(&p.server.conn));
    close(fd);
    finish(&p);
}

static void a_server_that_never_answers_times_out(void **state) {
    struct sockaddr_in addr = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t n = sizeof(addr);
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    struct pair p;

    (void)state;
    assert_int_equal(bind(fd, (struct sockaddr *)&addr, n), 0);
    assert_int_equal(listen(fd, 4), 0);
    getsockname(fd, (struct sockaddr *)&addr, &n);
    start(&p, server_with("a.pem", "a.key", NULL),
          new_tls(&(struct tls_config){.ca = at("ca.pem"), .handshake_timeout_ms = 30}));
    assert_int_equal(conn_connect(&p.client.conn, p.loop, (struct sockaddr *)&addr, n, 5000000,
                                  &events, &p.client, NULL),
                     ST_OK);
    tls_connect(&p.client.conn, p.client_tls, "localhost", &p.ticket);
    TURN_UNTIL(p.loop, p.client.n_closed);
    assert_int_equal(p.client.end, CONN_TIMED_OUT);
    close(fd);
    finish(&p);
}

/* --- memory of former connections, and reload ------------------------------------------------- */

static void a_second_connection_is_resumed_unless_trust_changed(void **state) {
    struct pair p;

    (void)state;
    start(&p, server_with("a.pem", "a.key", NULL), client_with("ca.pem"));
    for (int i = 0; i < 4; i++) {
        if (i == 2) assert_int_equal(tls_reload(p.client_tls, NULL), ST_OK);
        shake_hands(&p, i == 3 ? "127.0.0.1" : "localhost");
        assert_int_equal(tls_was_resumed(&p.client.conn), i == 1);
        conn_write(&p.server.conn, "x", 1); /* tickets come with the first bytes */
        TURN_UNTIL(p.loop, p.client.n_got == (size_t)i + 1);
        part(&p);
    }
    finish(&p);
}

static void a_reload_is_for_new_connections_and_a_bad_one_for_none(void **state) {
    struct error err = {0};
    struct pair p;

    (void)state;
    certs_copy(&certs, "a.pem", "live.pem");
    certs_copy(&certs, "a.key", "live.key");
    start(&p, server_with("live.pem", "live.key", NULL), client_with("ca.pem"));
    certs_copy(&certs, "b.pem", "live.pem");
    assert_int_equal(tls_reload(p.server_tls, &err), ST_INVALID);
    assert_non_null(strstr(err.message, "does not belong to"));
    shake_hands(&p, "localhost"); /* with the old one */
    certs_copy(&certs, "b.key", "live.key");
    assert_int_equal(tls_reload(p.server_tls, &err), ST_OK);
    conn_write(&p.client.conn, "old one lives", 13);
    TURN_UNTIL(p.loop, p.server.n_got == 13);
    part(&p);
    join_as(&p, "localhost"); /* b is for another name */
    TURN_UNTIL(p.loop, p.client.n_closed);
    assert_string_equal(p.client.failure, "hostname mismatch");
    part(&p);
    shake_hands(&p, "b.test");
    finish(&p);
}

static void the_end_of_a_certificate_is_known(void **state) {
    struct tls *server = server_with("a.pem", "a.key", NULL), *client = client_with("ca.pem");
    int64_t left_s = tls_expires_s(server) - (int64_t)(clock_wall_us() / 1000000);

    (void)state;
    assert_true(left_s > 29 * 86400 && left_s <= 30 * 86400);
    assert_int_equal(tls_expires_s(client), 0);
    tls_destroy(server);
    tls_destroy(client);
}

static void late_settings_read_their_files_on_demand(void **state) {
    struct tls_config config = {.ca = at("later.pem"), .is_late = true};
    struct error err = {0};
    struct tls *tls = NULL;
    struct pair p;

    (void)state;
    assert_int_equal(tls_create(&tls, &config, &err), ST_OK); /* there is no such file yet */
    assert_false(tls_is_loaded(tls));
    assert_int_equal(tls_reload(tls, &err), ST_INVALID);
    assert_false(tls_is_loaded(tls));
    certs_copy(&certs, "ca.pem", "later.pem");
    assert_int_equal(tls_reload(tls, &err), ST_OK);
    assert_true(tls_is_loaded(tls));
    start(&p, server_with("a.pem", "a.key", NULL), tls);
    shake_hands(&p, "localhost");
    finish(&p);
}

static void settings_may_go_before_their_connections(void **state) {
    struct pair p;

    (void)state;
    start(&p, server_with("a.pem", "a.key", NULL), client_with("ca.pem"));
    shake_hands(&p, "localhost");
    tls_destroy(p.server_tls);
    tls_destroy(p.client_tls);
    p.server_tls = p.client_tls = NULL;
    conn_write(&p.client.conn, "abc", 3);
    TURN_UNTIL(p.loop, p.server.n_got == 3);
    finish(&p);
}

/* --- all of them ------------------------------------------------------------------------------ */

static int make_certs(void **state) {
    static char text[16384];
    FILE *f;
    size_t n;

    (void)state;
    signal(SIGPIPE, SIG_IGN);
    certs_init(&certs);
    certs_make(&certs, &(struct certs_spec){.name = "a",
                                            .host = "localhost,DNS:*.wild.test",
                                            .address = "127.0.0.1,IP:::1"});
    certs_make(&certs, &(struct certs_spec){.name = "b", .host = "b.test"});
    certs_make(&certs,
               &(struct certs_spec){.name = "self", .host = "localhost", .is_self_signed = true});
    certs_make(&certs, &(struct certs_spec){
                           .name = "old", .host = "localhost", .from_days = -20, .days = 10});
    certs_make(&certs, &(struct certs_spec){.name = "early", .host = "localhost", .from_days = 9});
    certs_small_key(&certs, "small");
    certs_write(&certs, "junk", "no certificate\n");
    certs_write(&certs, "empty", "");
    certs_encrypt_key(&certs, "a.key", "secret.key");
    certs_hashed_folder(&certs, "hashed");
    certs_copy(&certs, "a.pem", "oldchain.pem"); /* a good one, signed by one out of its time */
    f = fopen(at("old.pem"), "r");
    n = fread(text, 1, sizeof(text), f);
    fclose(f);
    f = fopen(at("oldchain.pem"), "a");
    fwrite(text, 1, n, f);
    fclose(f);
    return 0;
}

static int remove_certs(void **state) {
    (void)state;
    certs_fini(&certs);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(files_that_cannot_be_used_are_refused_with_a_sentence),
        cmocka_unit_test(bytes_go_both_ways_and_idle_ones_own_no_buffer),
        cmocka_unit_test(unverifiable_peers_are_rejected),
        cmocka_unit_test(names_addresses_and_hashed_folders_are_accepted),
        cmocka_unit_test(insecure_clients_take_any_certificate),
        cmocka_unit_test(servers_with_authorities_require_a_certificate),
        cmocka_unit_test(close_notify_is_an_end_and_a_cut_is_not),
        cmocka_unit_test(our_end_can_be_shut_while_the_other_is_read),
        cmocka_unit_test(a_reset_or_unsent_bytes_are_no_orderly_end),
        cmocka_unit_test(megabytes_go_through_with_back_pressure),
        cmocka_unit_test(random_writes_arrive_as_they_were_made),
        cmocka_unit_test(bytes_held_back_for_lack_of_room_arrive_when_there_is_room),
        cmocka_unit_test(garbage_ends_the_handshake),
        cmocka_unit_test(random_garbage_never_connects),
        cmocka_unit_test(a_handshake_cut_anywhere_ends),
        cmocka_unit_test(plain_text_goes_on_without_tls),
        cmocka_unit_test(a_server_that_never_answers_times_out),
        cmocka_unit_test(a_second_connection_is_resumed_unless_trust_changed),
        cmocka_unit_test(a_reload_is_for_new_connections_and_a_bad_one_for_none),
        cmocka_unit_test(the_end_of_a_certificate_is_known),
        cmocka_unit_test(late_settings_read_their_files_on_demand),
        cmocka_unit_test(settings_may_go_before_their_connections),
    };

    return cmocka_run_group_tests(tests, make_certs, remove_certs);
}
