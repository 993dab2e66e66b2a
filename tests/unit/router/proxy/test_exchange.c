/* tests/unit/router/proxy/test_exchange.c - the states of an exchange: the table, and random
 * events.
 *
 * The moves are listed here once more, as the drawing of exchange.h has them. Each is made, and
 * each other one must abort. Then a proxy is driven by random events from clients, workers and
 * timers: exchange_move itself stops at a forbidden move, and after each turn of the loop what an
 * exchange holds must be what its state promises. */
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/rng.h"
#include "router/proxy/proxy_internal.h"
#include "tests/support/cm.h"
#include "tests/support/proxy_fixture.h"

/* --- the table -------------------------------------------------------------------------------- */

#define MOVE(from, to)                                                                             \
    { EXCHANGE_##from, EXCHANGE_##to }

static const enum exchange_state moves[][2] = {
    MOVE(IDLE, OPEN),           MOVE(OPEN, QUEUED),       MOVE(OPEN, SENDING),
    MOVE(OPEN, ENDED),          MOVE(QUEUED, SENDING),    MOVE(QUEUED, CHOOSING),
    MOVE(QUEUED, MAIL_DUE),     MOVE(CHOOSING, QUEUED),   MOVE(CHOOSING, PAUSED),
    MOVE(CHOOSING, SENDING),    MOVE(CHOOSING, FALLBACK), MOVE(CHOOSING, ENDED),
    MOVE(PAUSED, CHOOSING),     MOVE(PAUSED, ENDED),      MOVE(SENDING, RECEIVING),
    MOVE(SENDING, HELD),        MOVE(SENDING, CHOOSING),  MOVE(RECEIVING, HELD),
    MOVE(RECEIVING, CHOOSING),  MOVE(HELD, ANSWERING),    MOVE(HELD, CHOOSING),
    MOVE(FALLBACK, FINISHING),  MOVE(FALLBACK, CHOOSING), MOVE(FALLBACK, ENDED),
    MOVE(ANSWERING, FINISHING), MOVE(FINISHING, ENDED),   MOVE(MAIL_DUE, ENDED),
    MOVE(ENDED, IDLE),
};

static bool is_listed(enum exchange_state from, enum exchange_state to) {
    for (size_t i = 0; i < ARRAY_LEN(moves); i++) {
        if (moves[i][0] == from && moves[i][1] == to) return true;
    }
    return false;
}

static void every_listed_move_is_made(void **state) {
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(moves); i++) {
        struct exchange x = {.state = moves[i][0]};

        exchange_move(&x, moves[i][1]);
        assert_int_equal(x.state, moves[i][1]);
    }
}

static bool aborts(enum exchange_state from, enum exchange_state to) {
    struct exchange x = {.state = from};
    pid_t child = fork();
    int status;

    assert_true(child >= 0);
    if (child == 0) {
        signal(SIGABRT, SIG_DFL);
        if (!freopen("/dev/null", "w", stderr)) _exit(1);
        exchange_move(&x, to);
        _exit(0);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    return WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT;
}

static void every_other_move_aborts(void **state) {
    (void)state;
    for (int from = 0; from < EXCHANGE_N_STATES; from++) {
        for (int to = 0; to < EXCHANGE_N_STATES; to++) {
            if (!is_listed(from, to) && !aborts(from, to))
                fail_msg("the move from %d to %d was made", from, to);
        }
    }
}

static uint32_t reachable_from(enum exchange_state from) {
    uint32_t seen = 1u << from, before;

    do {
        before = seen;
        for (size_t i = 0; i < ARRAY_LEN(moves); i++) {
            if (seen >> moves[i][0] & 1) seen |= 1u << moves[i][1];
        }
    } while (seen != before);
    return seen;
}

static void every_state_is_reached_and_left(void **state) {
    (void)state;
    for (int s = 0; s < EXCHANGE_N_STATES; s++)
        assert_int_equal(reachable_from(s), (1u << EXCHANGE_N_STATES) - 1);
}

/* --- random events ---------------------------------------------------------------------------- */

enum { WORKERS = 4, CLIENTS = 12, STEPS = 512, ROUNDS = 700, SEEDS = 4 };

#define AT_REST                                                                                    \
    (EXCHANGE_BIT(QUEUED) | EXCHANGE_BIT(PAUSED) | EXCHANGE_BIT(FALLBACK) |                        \
     EXCHANGE_BIT(FINISHING) | EXCHANGE_TICKET)

static const struct fake_step answers[] = {
    {JSON_OK},
    {JSON_OK, FAKE_CLOSE},
    {NULL},
    {NULL, FAKE_RESET},
    {NULL, FAKE_CLOSE},
    {"HTTP/1.1 200 O"},
    {"HTTP/1.1 200 O", FAKE_RESET},
    {"HTTP/1.1 100 Continue\r\n\r\n"},
    {"garbage\r\n\r\n"},
    {SSE_HEAD},
    {SSE_HEAD, FAKE_RESET},
    {SSE_HEAD "9\r\ndata: 1\n\n\r\n"},
    {SSE_HEAD "9\r\ndata: 1\n\n\r\n", FAKE_RESET},
    {SSE_HEAD "9\r\ndata: 1\n\n\r\n0\r\n\r\n"},
    {SSE_HEAD "e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n"},
    {CHUNKED_HEAD "4\r\nhalf\r\n", FAKE_CLOSE},
    {CHUNKED_HEAD, FAKE_KEEP, 3000000},
    {"HTTP/1.1 200 OK\r\ncontent-length: 4000000\r\n\r\n", FAKE_KEEP, 4000000},
    {BUSY("429")},
    {BUSY("503")},
    {"HTTP/1.1 503 Busy\r\ncontent-length: 8\r\n\r\n"},
    {"HTTP/1.1 503 Busy\r\ncontent-length: 8\r\n\r\nnot"},
    {"HTTP/1.1 503 Busy\r\ncontent-length: 8\r\nx-incipit-reason: draining\r\n\r\nnot now!"},
    {BUSY("500")},
    {"HTTP/1.1 302 Found\r\nlocation: /\r\ncontent-length: 0\r\n\r\n"},
    {"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"},
};

struct chaos {
    struct fixture fx;
    struct rng rng;
    struct fake_step steps[STEPS];
    struct client clients[CLIENTS];
    bool is_open[CLIENTS];
    uint32_t n_elsewhere; /* retries of exchanges that are not there: they use the budget up */
    uint32_t seen;        /* states, between two turns */
};

static void check_exchange(const struct exchange *x) {
    assert_true(exchange_is_in(x, AT_REST));
    assert_non_null(x->req);
    assert_true(loop_timer_is_running(&x->timeout));
    assert_int_equal(loop_timer_is_running(&x->retry), x->state == EXCHANGE_PAUSED);
    /* It has run out, and x is still QUEUED, while the registry's decision is on its way. */
    assert_true(x->state == EXCHANGE_QUEUED || !loop_timer_is_running(&x->queue_timer));
    assert_int_equal(x->try.up != NULL, exchange_is_in(x, EXCHANGE_TICKET | EXCHANGE_HEAD));
    assert_true(exchange_is_in(x, EXCHANGE_TICKET) || !x->try.is_retry);
    assert_false(x->try.first_token_unreported);
}

static void check_proxy(struct chaos *c) {
    struct proxy *p = c->fx.proxy;
    uint32_t n_exchanges = 0, n_retrying = 0, n_tickets = 0;

    LIST_FOR_EACH(it, &p->open) {
        struct exchange *x = LIST_ENTRY(it, struct exchange, link);

        check_exchange(x);
        c->seen |= 1u << x->state;
        n_exchanges++;
        n_retrying += x->try.is_retry;
        n_tickets += exchange_is_in(x, EXCHANGE_TICKET);
    }
    assert_int_equal(p->n_open, n_exchanges);
    assert_int_equal(p->n_retrying, n_retrying + c->n_elsewhere);
    assert_in_range(n_open(&c->fx), n_tickets, n_tickets + CLIENTS); /* and those granted by mail */
}

static void use_client(struct chaos *c) {
    static const char *const requests[] = {
        ASK, ASK_1_0, ASK ASK,
        "POST /v1/load_lora HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n{}",
        "POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\n{"};
    size_t i = rng_below(&c->rng, CLIENTS);
    struct client *client = &c->clients[i];

    if (!c->is_open[i]) {
        client_open(client, c->fx.port);
        client_send(client, c->fx.loop, str_of(requests[rng_below(&c->rng, 6) % 5]));
        c->is_open[i] = true;
    } else if (rng_below(&c->rng, 3)) {
        client_read(client);
    } else {
        client_close(client);
        c->is_open[i] = false;
    }
}

static void use_up_budget(struct chaos *c, uint32_t n) {
    c->fx.proxy->n_retrying += n - c->n_elsewhere;
    c->n_elsewhere = n;
}

static void use_worker(struct chaos *c) {
    static const char *const words[] = {"\r\n\r\n", "9\r\ndata: 2\n\n\r\n", "0\r\n\r\n", "x"};
    uint32_t w = (uint32_t)rng_below(&c->rng, WORKERS);

    switch (rng_below(&c->rng, 10)) {
    case 0: fake_drop_all(&c->fx.fake); break;
    case 1: proxy_worker_hung(c->fx.proxy, w, 1); break;
    case 2: proxy_worker_answers(c->fx.proxy, w, 1); break;
    case 3: registry_set_reason(c->fx.registry, w, WORKER_DISABLED, true); break;
    case 4:
    case 5: registry_set_reason(c->fx.registry, w, WORKER_DISABLED, false); break;
    case 6: use_up_budget(c, 100); break;
    case 7: use_up_budget(c, 0); break;
    default:
        if (c->fx.fake.n_open) fake_send(&c->fx.fake, str_of(words[rng_below(&c->rng, 4)]));
    }
}

static void random_round(struct chaos *c) {
    if (c->fx.fake.n_requests >= STEPS) fake_play(&c->fx.fake, c->steps, STEPS);
    for (uint64_t n = rng_below(&c->rng, 4); n > 0; n--) {
        if (rng_below(&c->rng, 4)) {
            use_client(c);
        } else {
            use_worker(c);
        }
    }
    registry_tick(c->fx.registry, loop_now_us(c->fx.loop));
    loop_turn(c->fx.loop, 1000);
    check_proxy(c);
}

static void start_chaos(struct chaos *c, uint64_t seed) {
    struct proxy_config config = usual;

    memset(c, 0, sizeof(*c));
    rng_seed(&c->rng, seed);
    config.request_timeout_us = 80000;
    config.first_byte_timeout_us = config.stream_idle_timeout_us = 30000;
    config.queue_timeout_us = 20000;
    start_with(&c->fx, WORKERS, config, seed % 4 > 1);
    for (uint32_t w = 0; w < WORKERS; w++)
        registry_configure(c->fx.registry, w, 2, "");
    for (size_t i = 0; i < STEPS; i++)
        c->steps[i] = answers[rng_below(&c->rng, ARRAY_LEN(answers))];
    fake_play(&c->fx.fake, c->steps, STEPS);
}

static void stop_chaos(struct chaos *c) {
    struct proxy *p = c->fx.proxy;

    use_up_budget(c, 0);
    for (size_t i = 0; i < CLIENTS; i++) {
        if (c->is_open[i]) client_close(&c->clients[i]);
    }
    TURN_UNTIL(c->fx.loop, n_open(&c->fx) == 0 && p->n_open == 0 && p->n_awaiting_mail == 0);
    loop_turn(c->fx.loop, 0);
    assert_true(list_is_empty(&p->open));
    assert_int_equal(p->n_retrying, 0);
    LIST_FOR_EACH(it, &p->idle) {
        assert_int_equal(LIST_ENTRY(it, struct exchange, link)->state, EXCHANGE_IDLE);
    }
    finish(&c->fx);
}

static void random_events_end_every_exchange(void **state) {
    uint32_t seen = 0;

    (void)state;
    for (uint64_t seed = 1; seed <= SEEDS || (seen != AT_REST && seed <= 8 * SEEDS); seed++) {
        struct chaos *c = malloc(sizeof(*c));

        start_chaos(c, seed);
        for (int i = 0; i < ROUNDS; i++)
            random_round(c);
        stop_chaos(c);
        seen |= c->seen;
        free(c);
    }
    assert_int_equal(seen, AT_REST);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_listed_move_is_made),
        cmocka_unit_test(every_other_move_aborts),
        cmocka_unit_test(every_state_is_reached_and_left),
        cmocka_unit_test(random_events_end_every_exchange),
    };

    signal(SIGPIPE, SIG_IGN);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
