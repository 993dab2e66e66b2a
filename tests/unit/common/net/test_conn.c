/* tests/unit/common/net/test_conn.c - streams over loopback and socket pairs. */
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/mem.h"
#include "common/base/rng.h"
#include "common/net/conn.h"
#include "tests/support/client.h"
#include "tests/support/cm.h"
#include "tests/support/support.h"

/* A connection, and what became of it. */
struct side {
    struct conn conn;
    struct buf got;
    size_t consume_at_most; /* per on_data; 0: all */
    int n_connected, n_drained, n_flushed, n_closed, n_data;
    enum conn_end end;
    bool ends_itself; /* conn_fini inside on_data */
};

static void on_data(struct conn *c, void *owner) {
    struct side *s = owner;
    struct conn_bytes in = conn_input(c);
    size_t n = s->consume_at_most ? MIN(in.len, s->consume_at_most) : in.len;

    s->n_data++;
    if (s->ends_itself) {
        conn_fini(c);
        return;
    }
    buf_append(&s->got, in.ptr, n);
    conn_consume(c, n);
}

static void on_connected(struct conn *c, void *owner) {
    (void)c;
    ((struct side *)owner)->n_connected++;
}

static void on_drain(struct conn *c, void *owner) {
    assert_true(conn_pending(c) <= CONN_LOW_WATER_BYTES);
    ((struct side *)owner)->n_drained++;
}

static void on_flushed(struct conn *c, void *owner) {
    assert_int_equal(conn_pending(c), 0);
    ((struct side *)owner)->n_flushed++;
}

static void on_closed(struct conn *c, enum conn_end end, void *owner) {
    struct side *s = owner;

    s->n_closed++;
    s->end = end;
    conn_fini(c);
}

static const struct conn_events events = {on_data, on_connected, on_drain, on_flushed, on_closed};

struct pair {
    struct loop *loop;
    struct side side;
    int peer; /* the other end, used directly */
};

static void start(struct pair *p) {
    int fds[2];

    memset(p, 0, sizeof(*p));
    buf_init(&p->side.got, 0);
    assert_int_equal(loop_create(&p->loop, NULL), ST_OK);
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fds), 0);
    conn_init(&p->side.conn, p->loop, fds[0], &events, &p->side);
    p->peer = fds[1];
}

static void finish(struct pair *p) {
    conn_fini(&p->side.conn);
    if (p->peer >= 0) close(p->peer);
    loop_destroy(p->loop);
    buf_fini(&p->side.got);
}

static size_t peer_read(struct pair *p, struct buf *got) {
    char *to = buf_reserve(got, 65536);
    ssize_t n = recv(p->peer, to, 65536, 0);

    if (n > 0) buf_commit(got, (size_t)n);
    return n > 0 ? (size_t)n : 0;
}

static void an_idle_one_owns_no_buffer(void **state) {
    struct pair p;

    (void)state;
    start(&p);
    assert_true(sizeof(struct conn) <= 256);
    assert_int_equal(write(p.peer, "abc", 3), 3);
    TURN_UNTIL(p.loop, p.side.n_data == 1);
    assert_null(p.side.conn.in.data);
    conn_write(&p.side.conn, "def", 3);
    loop_turn(p.loop, 0);
    assert_null(p.side.conn.out.data);
    finish(&p);
}

static void unconsumed_bytes_precede_later_ones(void **state) {
    struct pair p;

    (void)state;
    start(&p);
    p.side.consume_at_most = 2;
    assert_int_equal(write(p.peer, "abcd", 4), 4);
    TURN_UNTIL(p.loop, p.side.n_data == 1);
    assert_int_equal(conn_input(&p.side.conn).len, 2);
    assert_int_equal(p.side.conn.in.cap, IOBUF_SMALL_BYTES);
    assert_int_equal(write(p.peer, "ef", 2), 2);
    TURN_UNTIL(p.loop, p.side.n_data == 2);
    assert_memory_equal(conn_input(&p.side.conn).ptr, "ef", 2);
    assert_true(str_eq(buf_str(&p.side.got), STR("abcd")));
    finish(&p);
}

static void writes_of_a_turn_are_one_send_and_flush_is_sooner(void **state) {
    struct pair p;
    struct buf got;

    (void)state;
    start(&p);
    buf_init(&got, 0);
    conn_write(&p.side.conn, "ab", 2);
    conn_write(&p.side.conn, "cd", 2);
    assert_int_equal(peer_read(&p, &got), 0);
    loop_turn(p.loop, 0);
    assert_int_equal(peer_read(&p, &got), 4);
    conn_write(&p.side.conn, "ef", 2);
    conn_flush(&p.side.conn);
    assert_int_equal(peer_read(&p, &got), 2);
    assert_int_equal(p.side.n_flushed, 0);
    buf_fini(&got);
    finish(&p);
}

static void pinned_input_stays_and_fills_no_more_than_its_room(void **state) {
    static char junk[200000];
    const char *at;
    struct pair p;

    (void)state;
    start(&p);
    p.side.consume_at_most = SIZE_MAX;
    assert_int_equal(write(p.peer, junk, 4096), 4096);
    p.side.consume_at_most = 1;
    TURN_UNTIL(p.loop, p.side.n_data == 1);
    conn_pin_input(&p.side.conn);
    p.side.consume_at_most = 0;
    at = conn_input(&p.side.conn).ptr;
    assert_int_equal(conn_input(&p.side.conn).len, 4095);
    assert_true(write(p.peer, junk, sizeof(junk)) > 0);
    p.side.consume_at_most =
        1; /* an owner of pinned input consumes nothing; one byte moves `start` */
    for (int i = 0; i < 5; i++)
        loop_turn(p.loop, 1000);
    assert_ptr_equal(p.side.conn.in.data + p.side.conn.in.start - (p.side.n_data - 1), at);
    assert_true(p.side.conn.in.cap <= IOBUF_LARGE_BYTES);
    conn_unpin_input(&p.side.conn);
    p.side.consume_at_most = 0;
    TURN_UNTIL(p.loop, buf_len(&p.side.got) > 70000);
    finish(&p);
}

static void leave_all(struct conn *c, void *owner) {
    (void)c;
    ((struct side *)owner)->n_data++;
}

static const struct conn_events leaving = {leave_all, on_connected, on_drain, on_flushed,
                                           on_closed};

static void input_grows_to_the_wanted_size_and_no_further(void **state) {
    static char junk[400000];
    size_t sent = 0;
    struct pair p;

    (void)state;
    start(&p);
    p.side.conn.events = &leaving;
    for (int i = 0; i < 50; i++) {
        ssize_t n = write(p.peer, junk, sizeof(junk) - sent);

        if (n > 0) sent += (size_t)n;
        loop_turn(p.loop, 100);
    }
    assert_int_equal(conn_input(&p.side.conn).len, IOBUF_LARGE_BYTES); /* full: reading stopped */
    conn_want_input(&p.side.conn, sizeof(junk));
    TURN_UNTIL(p.loop, ({
                   ssize_t n = sent < sizeof(junk) ? write(p.peer, junk, sizeof(junk) - sent) : 0;

                   if (n > 0) sent += (size_t)n;
                   conn_input(&p.side.conn).len == sizeof(junk);
               }));
    conn_consume(&p.side.conn, sizeof(junk));
    assert_null(p.side.conn.in.data);
    finish(&p);
}

static void paused_ones_are_not_read(void **state) {
    struct pair p;

    (void)state;
    start(&p);
    conn_pause(&p.side.conn);
    assert_int_equal(write(p.peer, "abc", 3), 3);
    for (int i = 0; i < 3; i++)
        loop_turn(p.loop, 1000);
    assert_int_equal(p.side.n_data, 0);
    conn_resume(&p.side.conn);
    TURN_UNTIL(p.loop, p.side.n_data == 1);
    finish(&p);
}

static void a_full_peer_is_waited_for_and_reported(void **state) {
    static char piece[50000];
    struct buf got;
    struct pair p;
    size_t sent = 0;

    (void)state;
    start(&p);
    buf_init(&got, 0);
    for (size_t i = 0; i < sizeof(piece); i++)
        piece[i] = (char)(i * 31 + i / 7);
    while (conn_pending(&p.side.conn) < 500000) {
        conn_write(&p.side.conn, piece, sizeof(piece));
        sent += sizeof(piece);
    }
    for (int i = 0; i < 3; i++)
        loop_turn(p.loop, 1000);
    assert_int_equal(p.side.n_drained, 0);
    TURN_UNTIL(p.loop, (peer_read(&p, &got), p.side.n_drained == 1));
    TURN_UNTIL(p.loop, (peer_read(&p, &got), buf_len(&got) == sent));
    TURN_UNTIL(p.loop, p.side.n_flushed == 1);
    for (size_t i = 0; i < sent; i += sizeof(piece)) {
        assert_memory_equal(buf_ptr(&got) + i, piece, sizeof(piece));
    }
    assert_int_equal(p.side.conn.sent_bytes, sent);
    assert_int_equal(p.side.n_drained, 1);
    buf_fini(&got);
    finish(&p);
}

/* The kernel takes some at once; the rest is sent from where it lies. */
static void lent_bytes_are_not_copied(void **state) {
    const size_t n = 2000000;
    char *body = mem_alloc(n);
    struct iovec pieces[] = {{(void *)(uintptr_t) "head", 4}, {body, n}};
    struct buf got;
    struct pair p;

    (void)state;
    start(&p);
    buf_init(&got, 0);
    for (size_t i = 0; i < n; i++)
        body[i] = (char)(i * 31 + i / 7);
    conn_sendv_lent(&p.side.conn, pieces, 2);
    assert_true(conn_pending(&p.side.conn) > 0);
    assert_ptr_equal(p.side.conn.out.data + conn_pending(&p.side.conn), body + n);
    TURN_UNTIL(p.loop, (peer_read(&p, &got), buf_len(&got) == 4 + n));
    assert_memory_equal(buf_ptr(&got), "head", 4);
    assert_memory_equal(buf_ptr(&got) + 4, body, n);
    TURN_UNTIL(p.loop, p.side.n_flushed == 1);
    assert_null(p.side.conn.out.data);

    conn_sendv_lent(&p.side.conn, pieces, 2); /* what is written behind it comes behind it */
    conn_write(&p.side.conn, "tail", 4);
    mem_free(body);
    TURN_UNTIL(p.loop, (peer_read(&p, &got), buf_len(&got) == 2 * (4 + n) + 4));
    assert_memory_equal(buf_ptr(&got) + 4 + n, buf_ptr(&got), 4 + n);
    assert_memory_equal(buf_ptr(&got) + 2 * (4 + n), "tail", 4);

    body = mem_alloc(n);
    pieces[1].iov_base = body;
    memset(body, 'x', n);
    conn_sendv_lent(&p.side.conn, pieces, 2); /* not freed with the connection */
    assert_true(conn_pending(&p.side.conn) > 0);
    conn_fini(&p.side.conn);
    mem_free(body);
    buf_fini(&got);
    finish(&p);
}

static void the_end_is_reported_once(void **state) {
    struct pair p;

    (void)state;
    start(&p);
    assert_int_equal(write(p.peer, "last", 4), 4);
    close(p.peer);
    p.peer = -1;
    TURN_UNTIL(p.loop, p.side.n_closed == 1);
    assert_int_equal(p.side.end, CONN_EOF);
    assert_true(str_eq(buf_str(&p.side.got), STR("last")));
    assert_false(conn_is_open(&p.side.conn));
    conn_write(&p.side.conn, "x", 1); /* nothing happens */
    for (int i = 0; i < 3; i++)
        loop_turn(p.loop, 100);
    assert_int_equal(p.side.n_closed, 1);
    finish(&p);
}

static void a_failed_write_is_reported_later_and_not_inside(void **state) {
    struct pair p;

    (void)state;
    start(&p);
    conn_pause(&p.side.conn);
    close(p.peer);
    p.peer = -1;
    conn_write(&p.side.conn, "x", 1);
    conn_flush(&p.side.conn);
    assert_int_equal(p.side.n_closed, 0);
    assert_false(conn_is_open(&p.side.conn));
    loop_turn(p.loop, 0);
    assert_int_equal(p.side.n_closed, 1);
    assert_int_equal(p.side.end, CONN_RESET);
    assert_int_equal(p.side.conn.last_errno, EPIPE);
    finish(&p);
}

static void an_owner_may_end_it_inside_its_callback(void **state) {
    struct pair p;

    (void)state;
    start(&p);
    p.side.ends_itself = true;
    assert_int_equal(write(p.peer, "x", 1), 1);
    TURN_UNTIL(p.loop, p.side.n_data == 1);
    assert_int_equal(recv(p.peer, (char[1]){0}, 1, 0), 0); /* the end */
    assert_int_equal(p.side.n_closed, 0);
    finish(&p);
}

static void refused_memory_ends_the_stream(void **state) {
    static char large[100000];
    struct pair p;

    (void)state;
    start(&p);
    mem_fail_at(1);
    conn_write(&p.side.conn, large, 1000);
    mem_fail_at(0);
    assert_int_equal(p.side.n_closed, 0);
    loop_turn(p.loop, 0);
    assert_int_equal(p.side.n_closed, 1);
    assert_int_equal(p.side.end, CONN_NOMEM);
    finish(&p);
}

/* --- connecting ------------------------------------------------------------------------------- */

static int listener_open(struct sockaddr_in *addr, int backlog) {
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    socklen_t n = sizeof(*addr);

    *addr = (struct sockaddr_in){.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    assert_int_equal(bind(fd, (struct sockaddr *)addr, n), 0);
    assert_int_equal(listen(fd, backlog), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)addr, &n), 0);
    return fd;
}

static void begin_connect(struct pair *p, const struct sockaddr_in *addr, uint64_t timeout_us) {
    conn_fini(&p->side.conn);
    assert_int_equal(conn_connect(&p->side.conn, p->loop, (const struct sockaddr *)addr,
                                  sizeof(*addr), timeout_us, &events, &p->side, NULL),
                     ST_OK);
    assert_int_equal(p->side.n_connected + p->side.n_closed, 0);
}

static void bytes_written_before_it_is_up_are_sent(void **state) {
    struct sockaddr_in addr;
    int listener = listener_open(&addr, 8), fd;
    char got[8];
    struct pair p;

    (void)state;
    start(&p);
    begin_connect(&p, &addr, CONN_CONNECT_TIMEOUT_US);
    conn_write(&p.side.conn, "early", 5);
    TURN_UNTIL(p.loop, p.side.n_connected == 1);
    TURN_UNTIL(p.loop, (fd = accept(listener, NULL, NULL)) >= 0);
    for (int i = 0; i < 3; i++)
        loop_turn(p.loop, 1000);
    assert_int_equal(recv(fd, got, sizeof(got), 0), 5);
    assert_memory_equal(got, "early", 5);
    close(fd);
    TURN_UNTIL(p.loop, p.side.n_closed == 1);
    assert_int_equal(p.side.end, CONN_EOF);
    close(listener);
    finish(&p);
}

static void a_refused_connection_is_reported_at_once(void **state) {
    struct sockaddr_in addr;
    struct pair p;

    (void)state;
    close(listener_open(&addr, 8)); /* its port is closed now */
    start(&p);
    begin_connect(&p, &addr, CONN_CONNECT_TIMEOUT_US);
    TURN_UNTIL(p.loop, p.side.n_closed == 1);
    assert_int_equal(p.side.end, CONN_REFUSED);
    assert_int_equal(p.side.conn.last_errno, ECONNREFUSED);
    assert_string_equal(conn_end_name(p.side.end), "refused");
    finish(&p);
}

static void a_silent_address_times_out(void **state) {
    struct sockaddr_in addr;
    int listener = listener_open(&addr, 0), fillers[4];
    uint64_t began_us;
    struct pair p;

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(fillers); i++) { /* then the backlog drops what comes */
        fillers[i] = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
        (void)!connect(fillers[i], (struct sockaddr *)&addr, sizeof(addr));
    }
    start(&p);
    began_us = clock_now_us();
    begin_connect(&p, &addr, 50000);
    TURN_UNTIL(p.loop, p.side.n_closed == 1);
    assert_int_equal(p.side.end, CONN_TIMED_OUT);
    assert_in_range(clock_now_us() - began_us, 40000, 2000000);
    for (size_t i = 0; i < ARRAY_LEN(fillers); i++)
        close(fillers[i]);
    close(listener);
    finish(&p);
}

/* --- chance ----------------------------------------------------------------------------------- */

/* Two connections on one loop write, pause, flush and consume at random: each gets what the other
 * wrote. The bytes are a function of their position, so a wrong one shows where it went wrong. */
struct talker {
    struct side side;
    uint64_t written, checked;
};

static char byte_at(uint64_t i) {
    return (char)(rng_mix(i) & 0xFF);
}

static void check_got(struct talker *t) {
    struct str s = buf_str(&t->side.got);

    for (size_t i = 0; i < s.len; i++) {
        if (s.ptr[i] != byte_at(t->checked + i))
            fail_msg("byte %zu differs", (size_t)t->checked + i);
    }
    t->checked += s.len;
    buf_clear(&t->side.got);
}

static void random_steps_carry_every_byte(void **state) {
    static char bytes[60000];
    struct talker talkers[2] = {0};
    struct loop *loop;
    struct rng rng;
    int fds[2];

    (void)state;
    rng_seed(&rng, support_seed());
    assert_int_equal(loop_create(&loop, NULL), ST_OK);
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fds), 0);
    for (int i = 0; i < 2; i++)
        conn_init(&talkers[i].side.conn, loop, fds[i], &events, &talkers[i].side);
    for (int step = 0; step < 4000; step++) {
        struct talker *t = &talkers[rng_below(&rng, 2)];
        struct conn *c = &t->side.conn;
        size_t n = (size_t)rng_below(&rng, rng_below(&rng, 8) ? 500 : sizeof(bytes));

        switch (rng_below(&rng, 8)) {
        case 0:
        case 1:
            if (conn_pending(c) > 400000) break;
            for (size_t i = 0; i < n; i++)
                bytes[i] = byte_at(t->written + i);
            conn_write(c, bytes, n);
            t->written += n;
            break;
        case 2: conn_flush(c); break;
        case 3: conn_pause(c); break;
        case 4: conn_resume(c); break;
        case 5: t->side.consume_at_most = n; break;
        default: loop_turn(loop, 0); break;
        }
        check_got(t);
    }
    for (int i = 0; i < 2; i++) {
        talkers[i].side.consume_at_most = 0;
        conn_resume(&talkers[i].side.conn);
        on_data(&talkers[i].side.conn, &talkers[i].side); /* what was left lying */
    }
    for (int i = 0; i < 2; i++) {
        TURN_UNTIL(loop, (check_got(&talkers[i]), talkers[i].checked == talkers[1 - i].written));
    }
    for (int i = 0; i < 2; i++) {
        conn_fini(&talkers[i].side.conn);
        buf_fini(&talkers[i].side.got);
    }
    loop_destroy(loop);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_idle_one_owns_no_buffer),
        cmocka_unit_test(unconsumed_bytes_precede_later_ones),
        cmocka_unit_test(writes_of_a_turn_are_one_send_and_flush_is_sooner),
        cmocka_unit_test(pinned_input_stays_and_fills_no_more_than_its_room),
        cmocka_unit_test(input_grows_to_the_wanted_size_and_no_further),
        cmocka_unit_test(paused_ones_are_not_read),
        cmocka_unit_test(a_full_peer_is_waited_for_and_reported),
        cmocka_unit_test(lent_bytes_are_not_copied),
        cmocka_unit_test(the_end_is_reported_once),
        cmocka_unit_test(a_failed_write_is_reported_later_and_not_inside),
        cmocka_unit_test(an_owner_may_end_it_inside_its_callback),
        cmocka_unit_test(refused_memory_ends_the_stream),
        cmocka_unit_test(bytes_written_before_it_is_up_are_sent),
        cmocka_unit_test(a_refused_connection_is_reported_at_once),
        cmocka_unit_test(a_silent_address_times_out),
        cmocka_unit_test(random_steps_carry_every_byte),
    };

    signal(SIGPIPE, SIG_IGN);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
