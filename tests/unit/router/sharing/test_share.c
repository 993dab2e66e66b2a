/* tests/unit/router/sharing/test_share.c - routers in front of foreign workers, and a pretended
 * Redis between them, all on one loop. */
#include <stdio.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/mem.h"
#include "common/base/rng.h"
#include "common/net/loop.h"
#include "common/protocol/request_events.h"
#include "router/metrics/router_metrics.h"
#include "router/registry/registry.h"
#include "router/registry/registry_route.h"
#include "router/registry/registry_view.h"
#include "router/registry/registry_workers.h"
#include "router/sharing/share.h"
#include "tests/support/cm.h"
#include "tests/support/fake_redis.h"
#include "tests/support/registry_fixture.h"
#include "tests/support/routing_defaults.h"

#define BLOCK_BYTES 256
#define N_BLOCKS    20
#define N_WORKERS   4
#define MODEL       STR("m")

struct side { /* a router */
    struct registry *registry;
    struct metrics *metrics;
    struct share *share;
};

struct share_fixture {
    struct loop *loop;
    struct fake_redis server;
    char url[64];
    struct side sides[3];
};

struct asked { /* a request of one of them */
    struct side *side;
    uint64_t chain[N_BLOCKS];
    struct route_ticket ticket;
    struct registry_target target;
};

static void describe(struct registry *r, uint32_t id) {
    static const struct wire_server_info info = {
        .wire = 1, .model = "m", .block_size = 16, .n_blocks = 4000};

    assert_int_equal(registry_describe(r, id, &info, true, NULL), ST_OK);
    registry_set_reason(r, id, WORKER_STARTING, false);
}

static struct registry *create_registry(bool is_described) {
    struct registry_config config = {0};
    struct registry *r;

    routing_options_default(&config.routing);
    config.routing.policy = policy_find(STR("prefix"));
    config.routing.max_workers = 8;
    config.routing.max_index_bytes = 1 << 20;
    config.routing.prefix_block_bytes = BLOCK_BYTES;
    assert_int_equal(registry_create(&r, &config, NULL), ST_OK);
    for (int i = 0; i < N_WORKERS; i++) {
        char url[64];
        uint32_t id;

        snprintf(url, sizeof(url), "http://127.0.0.1:%d", 20001 + i);
        assert_int_equal(registry_add(r, url, &id, NULL), ST_OK);
        if (is_described) describe(r, id);
    }
    return r;
}

#define UNTIL(s, condition)                                                                        \
    for (uint64_t until_us = clock_now_us() + 10000000u; !(condition);) {                          \
        loop_turn((s)->loop, 10000);                                                               \
        if (clock_now_us() > until_us) fail_msg("never: %s", #condition);                          \
    }

static void join_with(struct share_fixture *s, int i, uint64_t scheme, uint64_t silence_us,
                      bool is_described) {
    struct share_config config = {.url = s->url,
                                  .key = "k",
                                  .max_entries = 1000,
                                  .origin = (uint64_t)i + 1,
                                  .scheme = scheme,
                                  .block_bytes = BLOCK_BYTES,
                                  .silence_us = silence_us,
                                  .outbox_bytes = 16 << 10};
    struct side *side = &s->sides[i];
    struct error err = {0};
    enum status st;

    side->registry = create_registry(is_described);
    side->metrics = router_metrics_create();
    st = share_create(&side->share, s->loop, side->registry, side->metrics, NULL, &config, &err);
    assert_int_equal(st, ST_OK);
}

static void join(struct share_fixture *s, int i, uint64_t scheme, uint64_t silence_us) {
    const struct metric *connected;

    join_with(s, i, scheme, silence_us, true);
    connected = metrics_at(s->sides[i].metrics, ROUTER_redis_connected);
    UNTIL(s, metric_value(connected) == 1); /* what is written before is lost */
}

static void begin(struct share_fixture *s, uint64_t silence_us) {
    memset(s, 0, sizeof(*s));
    assert_int_equal(loop_create(&s->loop, NULL), ST_OK);
    fake_redis_start(&s->server, s->loop);
    snprintf(s->url, sizeof(s->url), "redis://127.0.0.1:%u", s->server.port);
    join(s, 0, 5, silence_us);
    join(s, 1, 5, silence_us);
}

static void leave(struct side *side) {
    if (!side->registry) return;
    if (side->share) share_check(side->share);
    registry_check(side->registry);
    share_destroy(side->share);
    registry_check(side->registry);
    registry_destroy(side->registry);
    metrics_destroy(side->metrics);
    side->registry = NULL;
}

static void end(struct share_fixture *s) {
    for (size_t i = 0; i < ARRAY_LEN(s->sides); i++)
        leave(&s->sides[i]);
    fake_redis_stop(&s->server);
    loop_destroy(s->loop);
}

static struct registry_totals totals(const struct side *side) {
    struct registry_totals t;

    registry_totals(side->registry, &t);
    return t;
}

static struct route_request request_of(struct share_fixture *s, struct asked *a, uint64_t prompt) {
    for (uint32_t i = 0; i < N_BLOCKS; i++)
        a->chain[i] = rng_at(prompt, i) & ~UINT64_C(0xffff);
    return (struct route_request){.chain = a->chain,
                                  .n_blocks = N_BLOCKS,
                                  .prompt_bytes = N_BLOCKS * BLOCK_BYTES,
                                  .now_us = loop_now_us(s->loop)};
}

static void ask(struct share_fixture *s, int i, struct asked *a, uint64_t prompt) {
    struct route_request rq = request_of(s, a, prompt);

    a->side = &s->sides[i];
    a->target.mark = (struct request_mark){.tenant = 1 + prompt};
    assert_int_equal(registry_route(a->side->registry, MODEL, &rq, &a->ticket, &a->target, NULL),
                     ST_OK);
}

static void answer(struct share_fixture *s, struct asked *a) {
    const struct route_feedback feedback = {1280, 0};
    const struct route_end end = {
        .output_tokens = 10, .feedback = {-1, -1}, .now_us = loop_now_us(s->loop)};

    registry_first_token(a->side->registry, &a->target, &a->ticket, &feedback,
                         loop_now_us(s->loop));
    registry_ended(a->side->registry, &a->target, &a->ticket, &end, OUTCOME_OK);
}

/* The worker that router i would choose for the prompt, and how much its index has of it there. */
static double held(struct share_fixture *s, int i, uint64_t prompt, uint32_t *worker) {
    struct registry_candidate candidates[N_WORKERS];
    struct asked a;
    struct route_request rq = request_of(s, &a, prompt);
    uint32_t n;

    assert_int_equal(
        registry_explain(s->sides[i].registry, MODEL, &rq, candidates, N_WORKERS, &n, worker, NULL),
        ST_OK);
    for (uint32_t k = 0; k < n; k++) {
        if (candidates[k].worker == *worker) return candidates[k].term.matched_tokens;
    }
    return 0;
}

static void a_request_of_one_router_is_counted_by_all(void **state) {
    struct asked a;
    struct share_fixture s;
    uint32_t worker;

    (void)state;
    begin(&s, 60000000);
    ask(&s, 0, &a, 77);
    UNTIL(&s, totals(&s.sides[1]).n_remote == 1);
    assert_true(held(&s, 1, 77, &worker) > 1000); /* pending, and already where to go */
    assert_int_equal(worker, a.target.worker);
    answer(&s, &a);
    UNTIL(&s, totals(&s.sides[1]).n_remote == 0);
    assert_true(held(&s, 1, 77, &worker) > 1000);
    assert_int_equal(worker, a.target.worker);
    assert_int_equal(totals(&s.sides[0]).n_remote, 0); /* its own it passes over */
    end(&s);
}

static void a_starting_router_reads_earlier_entries(void **state) {
    struct asked a[8];
    struct share_fixture s;

    (void)state;
    begin(&s, 60000000);
    for (uint64_t i = 0; i < 8; i++) {
        ask(&s, (int)(i % 2), &a[i], i);
        if (i < 6) answer(&s, &a[i]);
    }
    UNTIL(&s, totals(&s.sides[0]).n_remote == 1 && totals(&s.sides[1]).n_remote == 1);
    join(&s, 2, 5, 60000000);
    UNTIL(&s, totals(&s.sides[2]).n_remote == 2);
    for (uint64_t i = 0; i < 8; i++) {
        uint32_t worker;

        assert_true(held(&s, 2, i, &worker) > 1000);
        assert_int_equal(worker, a[i].target.worker);
    }
    answer(&s, &a[6]);
    answer(&s, &a[7]);
    UNTIL(&s, totals(&s.sides[2]).n_remote == 0);
    end(&s);
}

static void a_router_without_entries_is_forgotten(void **state) {
    struct asked a;
    struct share_fixture s;

    (void)state;
    begin(&s, 300000);
    ask(&s, 0, &a, 1);
    UNTIL(&s, totals(&s.sides[1]).n_remote == 1);
    share_destroy(s.sides[0].share);
    s.sides[0].share = NULL;
    UNTIL(&s, totals(&s.sides[1]).n_remote == 0);
    answer(&s, &a);
    end(&s);
}

/* The server's clock was set back: by its stamps all that is written is ten seconds old. */
static void a_writing_router_is_alive_despite_clock_skew(void **state) {
    struct share_fixture s;
    struct asked a;

    (void)state;
    begin(&s, 5000000);
    for (int i = 0; i < 30; i++) /* until the history, which is empty, has been read */
        loop_turn(s.loop, 10000);
    ask(&s, 0, &a, 1);
    UNTIL(&s, totals(&s.sides[1]).n_remote == 1);
    for (int i = 0; i < 10; i++)
        loop_turn(s.loop, 10000);
    assert_int_equal(totals(&s.sides[1]).n_remote, 1);
    answer(&s, &a);
    UNTIL(&s, totals(&s.sides[1]).n_remote == 0);
    end(&s);
}

static void other_hashes_count_as_load_alone(void **state) {
    struct asked a;
    struct share_fixture s;
    uint32_t worker;

    (void)state;
    begin(&s, 60000000);
    join(&s, 2, 6, 60000000);
    ask(&s, 2, &a, 3);
    UNTIL(&s, totals(&s.sides[1]).n_remote == 1);
    assert_true(held(&s, 1, 3, &worker) == 0);
    answer(&s, &a);
    UNTIL(&s, totals(&s.sides[1]).n_remote == 0);
    end(&s);
}

static void without_a_server_each_goes_on_alone(void **state) {
    struct asked a, b;
    struct share_fixture s;

    (void)state;
    begin(&s, 60000000);
    ask(&s, 0, &a, 1);
    UNTIL(&s, totals(&s.sides[1]).n_remote == 1);
    fake_redis_cut(&s.server);
    answer(&s, &a);
    ask(&s, 1, &b, 2);
    answer(&s, &b);
    for (int i = 0; i < 20; i++)
        loop_turn(s.loop, 10000);
    /* Once there is a connection it shows that entries are missing: what ended in them has
     * ended. */
    UNTIL(&s, totals(&s.sides[1]).n_remote == 0);
    ask(&s, 0, &a, 4);
    UNTIL(&s, totals(&s.sides[1]).n_remote == 1);
    answer(&s, &a);
    UNTIL(&s, totals(&s.sides[1]).n_remote == 0);
    end(&s);
}

/* More than a router remembers between two looks at it is lost: the others must see that, or they
 * would wait for ever for the ends of requests whose start they received. */
static void an_overflow_of_the_outbox_is_a_gap(void **state) {
    struct asked a, other;
    struct share_fixture s;

    (void)state;
    begin(&s, 60000000);
    ask(&s, 0, &a, 1);
    UNTIL(&s, totals(&s.sides[1]).n_remote == 1);
    for (uint64_t i = 0; i < 100; i++) { /* 25 KiB of others */
        ask(&s, 0, &other, i);
        answer(&s, &other);
    }
    answer(&s, &a); /* finds no room */
    UNTIL(&s, totals(&s.sides[1]).n_remote == 0);
    ask(&s, 0, &a, 5);
    UNTIL(&s, totals(&s.sides[1]).n_remote == 1);
    answer(&s, &a);
    UNTIL(&s, totals(&s.sides[1]).n_remote == 0);
    end(&s);
}

/* A router that starts is connected before it has asked any worker what it is. */
static void the_history_waits_for_the_workers(void **state) {
    struct registry *registry;
    struct asked a;
    struct share_fixture s;
    uint32_t worker;

    (void)state;
    begin(&s, 60000000);
    ask(&s, 0, &a, 7);
    answer(&s, &a);
    UNTIL(&s, metric_value(metrics_at(s.sides[1].metrics, ROUTER_redis_events_total)) == 3);
    join_with(&s, 2, 5, 60000000, false);
    registry = s.sides[2].registry;
    UNTIL(&s, metric_value(metrics_at(s.sides[2].metrics, ROUTER_redis_connected)) == 0 &&
                  s.server.n_accepted >= 5); /* its writer */
    for (uint32_t id = 0; id < N_WORKERS; id++)
        describe(registry, id);
    UNTIL(&s, metric_value(metrics_at(s.sides[2].metrics, ROUTER_redis_events_total)) == 3);
    assert_true(held(&s, 2, 7, &worker) > 1000);
    assert_int_equal(worker, a.target.worker);
    end(&s);
}

/* Any bytes that another program writes into the stream. */
static void nonsense_is_passed_over(void **state) {
    struct request_event hello = {.kind = REQUEST_HELLO, .generation = "00000000000000ab"};
    struct share_fixture s;
    struct asked a;
    struct buf entry;
    struct rng rng;

    (void)state;
    begin(&s, 60000000);
    rng_seed(&rng, 1);
    buf_init(&entry, 0);
    for (int i = 0; i < 300; i++) {
        uint64_t random[32];

        buf_clear(&entry);
        if (i % 2) request_event_put(&entry, REQUEST_EVENT_CONTROL, &hello);
        for (size_t k = 0; k < ARRAY_LEN(random); k++)
            random[k] = rng_u64(&rng);
        buf_append(&entry, random, rng_below(&rng, sizeof(random)));
        fake_redis_add(&s.server, buf_str(&entry));
    }
    ask(&s, 0, &a, 1);
    UNTIL(&s, totals(&s.sides[1]).n_remote == 1);
    answer(&s, &a);
    UNTIL(&s, totals(&s.sides[1]).n_remote == 0);
    buf_fini(&entry);
    end(&s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_request_of_one_router_is_counted_by_all),
        cmocka_unit_test(a_starting_router_reads_earlier_entries),
        cmocka_unit_test(a_router_without_entries_is_forgotten),
        cmocka_unit_test(a_writing_router_is_alive_despite_clock_skew),
        cmocka_unit_test(other_hashes_count_as_load_alone),
        cmocka_unit_test(without_a_server_each_goes_on_alone),
        cmocka_unit_test(an_overflow_of_the_outbox_is_a_gap),
        cmocka_unit_test(the_history_waits_for_the_workers),
        cmocka_unit_test(nonsense_is_passed_over),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
