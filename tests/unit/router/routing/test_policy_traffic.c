/* tests/unit/router/routing/test_policy_traffic.c - every policy inside `routing`, under random
 * traffic, beside a twin that has the same seed: always a candidate, the same choice as the twin's,
 * the choice that a dry run had announced, and nothing changed by the dry run, for the twin makes
 * none. */
#include <string.h>

#include "common/base/rng.h"
#include "router/routing/routing.h"
#include "tests/support/cm.h"
#include "tests/support/routing_defaults.h"

#define N_MAX     60 /* blocks of a prompt */
#define N_TICKETS 64
#define N_STEPS   3000

struct flight {
    uint64_t chain[N_MAX];
    struct route_ticket tickets[2]; /* of the two twins */
};

struct pair {
    struct routing *twins[2];
    struct flight flights[N_TICKETS];
    struct rng rng;
    uint32_t n_workers;
    uint64_t now_us;
};

static void pair_init(struct pair *p, const char *policy, uint32_t n_workers, uint64_t seed) {
    struct routing_options o;

    memset(p, 0, sizeof(*p));
    routing_options_default(&o);
    o.policy = policy_find(str_of(policy));
    o.max_workers = n_workers;
    o.max_index_bytes = 1 << 20;
    o.policy_options.seed = seed;
    o.policy_options.max_tree_bytes = 200 * 128; /* small enough to overflow */
    o.policy_options.aibrix_table_blocks = 200 * 32;
    for (int i = 0; i < 2; i++)
        assert_int_equal(routing_create(&p->twins[i], &o, NULL), ST_OK);
    p->n_workers = n_workers;
    rng_seed(&p->rng, seed);
}

static uint32_t below(struct pair *p, uint32_t n) {
    return (uint32_t)rng_below(&p->rng, n);
}

static void change_worker(struct pair *p, uint32_t w) {
    struct worker_spec spec = {
        .identity = rng_at(7, w), .generation = 1 + below(p, 2), .n_blocks = 50 + below(p, 5000)};
    uint32_t what = below(p, 4), reason = 1u << (1 + below(p, 5));
    bool is_set = below(p, 3) == 0;

    for (int i = 0; i < 2; i++) {
        if (what == 0)
            routing_worker_down(p->twins[i], w);
        else if (what == 1)
            routing_set_reason(p->twins[i], w, reason, is_set);
        else
            routing_worker_up(p->twins[i], w, &spec);
    }
}

static void route(struct pair *p, struct flight *f) {
    static struct policy_term terms[WORKERS_MAX];
    uint32_t family = below(p, 40), n_shared = below(p, N_MAX), own = below(p, 9);
    uint32_t excluded = below(p, p->n_workers), announced;
    struct route_request rq = {.chain = f->chain,
                               .n_blocks = below(p, N_MAX),
                               .session_key = below(p, 3) ? 1 + below(p, 30) : 0,
                               .now_us = p->now_us,
                               .exclude = &excluded,
                               .n_exclude = below(p, 2)};
    enum status st;

    rq.prompt_bytes = rq.n_blocks * 128 - (rq.n_blocks ? below(p, 128) : 0);
    for (uint32_t i = 0; i < rq.n_blocks; i++)
        f->chain[i] = rng_at(i < n_shared ? family : family * 1000 + own, i);
    announced = routing_explain(p->twins[0], &rq, terms);
    assert_int_equal(routing_explain(p->twins[0], &rq, terms), announced);
    st = routing_route(p->twins[0], &rq, &f->tickets[0], NULL);
    assert_int_equal(routing_route(p->twins[1], &rq, &f->tickets[1], NULL), st);
    if (st != ST_OK) {
        assert_int_equal(announced, WORKER_NONE);
        return;
    }
    assert_int_equal(f->tickets[0].load.worker, announced);
    assert_int_equal(f->tickets[1].load.worker, announced);
    assert_true(terms[announced].is_candidate);
    assert_int_equal(routing_load(p->twins[0])->workers[announced].reasons, 0);
    assert_true(!rq.n_exclude || announced != excluded);
}

static void go_on(struct pair *p, struct flight *f) {
    struct route_feedback feedback = {100 + below(p, 2000), below(p, 500)};
    struct route_end end = {.is_aborted = below(p, 3) == 0,
                            .output_tokens = 10,
                            .feedback = feedback,
                            .now_us = p->now_us};
    bool is_first = below(p, 2);

    for (int i = 0; i < 2; i++) {
        if (is_first)
            routing_first_token(p->twins[i], &f->tickets[i], &feedback, p->now_us);
        else
            routing_ended(p->twins[i], &f->tickets[i], &end);
    }
}

static void pair_fini(struct pair *p) {
    struct route_end end = {.is_aborted = true, .output_tokens = -1, .feedback = {-1, -1}};

    for (int i = 0; i < 2; i++) {
        for (uint32_t k = 0; k < N_TICKETS; k++) {
            if (p->flights[k].tickets[i].load.is_open)
                routing_ended(p->twins[i], &p->flights[k].tickets[i], &end);
        }
        routing_check(p->twins[i]);
        assert_int_equal(routing_load(p->twins[i])->n_open, 0);
        routing_destroy(p->twins[i]);
    }
}

static void drive(const char *policy, uint32_t n_workers, uint64_t seed) {
    static struct pair p;

    pair_init(&p, policy, n_workers, seed);
    for (uint32_t step = 0; step < N_STEPS; step++) {
        struct flight *f = &p.flights[below(&p, N_TICKETS)];

        p.now_us += below(&p, 1000000);
        if (step < 2 * n_workers || below(&p, 20) == 0)
            change_worker(&p, below(&p, n_workers));
        else if (f->tickets[0].load.is_open)
            go_on(&p, f);
        else
            route(&p, f);
        if (step % 100 == 0) routing_check(p.twins[0]);
    }
    pair_fini(&p);
}

static void every_policy_keeps_its_promises(void **state) {
    (void)state;
    for (uint32_t i = 0; policy_names[i]; i++) {
        drive(policy_names[i], 1, 1);
        drive(policy_names[i], 5, 2);
        drive(policy_names[i], 130, 3);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_policy_keeps_its_promises),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
