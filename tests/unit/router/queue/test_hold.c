/* tests/unit/router/queue/test_hold.c - late binding: who waits, in which order, and that nobody
 * waits for nothing. Case numbers are those of the list of conformance cases of the rule. */
#include <math.h>
#include <string.h>

#include "common/base/mem.h"
#include "router/queue/hold.h"
#include "tests/support/cm.h"
#include "tests/support/routing_fixture.h"
#include "tests/support/support.h"

#define H_S         0.4
#define PROMPT_S(n) ((n)*BLOCK_BYTES / 4 / 1e4) /* prefill of n blocks, attention aside */

/* A request as an exchange would have it. */
struct asked {
    struct hold_request q; /* first: they are cast */
    struct route_request rq;
    struct route_ticket ticket;
    struct prompt prompt;
    uint32_t exclude[4];
};

struct bench { /* a model: its workers and its queue */
    struct routing *routing;
    struct hold *hold;
    struct list placed;
    uint64_t now_us;
};

static struct bench bench_of(uint32_t n_workers, double fcfs_s, double srpt_s) {
    struct bench b = {.routing = fleet(n_workers, "prefix"), .now_us = SECOND};

    b.hold = hold_create(
        b.routing, &(struct hold_options){.queue_size = 10000, .fcfs_s = fcfs_s, .srpt_s = srpt_s});
    return b;
}

static void bench_fini(struct bench *b) {
    assert_int_equal(hold_n_waiting(b->hold), 0);
    hold_check(b->hold);
    routing_check(b->routing);
    assert_int_equal(routing_load(b->routing)->n_open, 0);
    hold_destroy(b->hold);
    routing_destroy(b->routing);
}

static void describe(struct asked *a, uint64_t family, uint32_t n_shared, uint64_t own, uint32_t n,
                     uint64_t tenant) {
    memset(a, 0, sizeof(*a));
    a->prompt = prompt_of(family, n_shared, own, n);
    a->rq = request_of(&a->prompt, 0);
    a->q.rq = &a->rq;
    a->q.ticket = &a->ticket;
    a->q.tenant = tenant;
}

static uint32_t walk(struct bench *b) {
    uint32_t n = 0;

    list_init(&b->placed);
    hold_walk(b->hold, UINT32_MAX, b->now_us, &b->placed);
    LIST_FOR_EACH(it, &b->placed) {
        n++;
    }
    return n;
}

/* As one that finds others waiting. True: placed at once. */
static bool queue_up(struct bench *b, struct asked *a) {
    struct hold_request *displaced;

    a->rq.now_us = b->now_us;
    a->q.since_us = b->now_us;
    assert_int_equal(hold_wait(b->hold, &a->q, &displaced), ADMISSION_WAITS);
    assert_null(displaced);
    walk(b);
    return a->ticket.load.is_open;
}

/* As a registry does it. True: placed at once. */
static bool ask(struct bench *b, struct asked *a) {
    enum hold_reason reason;
    enum status st;

    a->rq.now_us = b->now_us;
    st = hold_place(b->hold, &a->rq, &a->ticket, &reason, NULL);
    if (st == ST_OK) return true;
    assert_int_equal(st, ST_AGAIN);
    a->q.reason = reason;
    return queue_up(b, a);
}

static void first(struct bench *b, struct asked *a) {
    const struct route_feedback f = {.prompt_tokens = a->prompt.n * BLOCK_BYTES / 4,
                                     .cached_tokens = (int64_t)a->ticket.cached_tokens};

    routing_first_token(b->routing, &a->ticket, &f, b->now_us);
}

static void end(struct bench *b, struct asked *a, bool is_aborted) {
    struct route_end e = {
        .is_aborted = is_aborted, .output_tokens = 10, .now_us = b->now_us, .feedback = {-1, -1}};

    routing_ended(b->routing, &a->ticket, &e);
}

static void pass(struct bench *b, double s) {
    b->now_us += (uint64_t)(s * 1e6);
}

/* Fills worker 0 of one with about `s` seconds of prefill. */
static void load_with(struct bench *b, struct asked *a, double s) {
    describe(a, 77, 0, 1, 60, 9);
    a->rq.prompt_bytes = (uint64_t)(s * 1e4 * 4);
    a->rq.now_us = b->now_us;
    assert_int_equal(routing_route(b->routing, &a->rq, &a->ticket, NULL), ST_OK);
}

/* Case 2. */
static void a_wait_just_below_h_places_and_just_above_holds(void **state) {
    (void)state;
    for (int above = 0; above < 2; above++) {
        struct bench b = bench_of(1, H_S, H_S);
        struct asked busy, a;
        double wait_s;

        load_with(&b, &busy, 1);
        wait_s = load_wait_s(&routing_load(b.routing)->workers[0], b.now_us);
        pass(&b, wait_s - H_S + (above ? -0.001 : 0.001));
        describe(&a, 1, 0, 1, 4, 1);
        assert_int_equal(ask(&b, &a), !above);
        if (above) {
            assert_int_equal(a.q.reason, HOLD_BACKLOG);
            pass(&b, 0.002);
            assert_int_equal(walk(&b), 1); /* the timer: nothing else has happened */
        }
        end(&b, &busy, true);
        end(&b, &a, true);
        bench_fini(&b);
    }
}

/* A worker that computes the shortest first has only the shorter ones to do before it. */
static void longer_prompts_of_an_srpt_worker_are_no_wait(void **state) {
    struct bench b = bench_of(1, 4, 4);
    struct asked long_one, same, shorter, longer;

    (void)state;
    routing_worker_up(b.routing, 0,
                      &(struct worker_spec){.identity = 1, .generation = 1, .order = WORKER_SRPT});
    load_with(&b, &long_one, 30); /* with attention more than 30 s */
    describe(&shorter, 1, 0, 1, 60, 1);
    shorter.rq.prompt_bytes = 4 * 30000;
    assert_true(ask(&b, &shorter)); /* 4.5 s */
    describe(&same, 2, 0, 1, 60, 1);
    same.rq.prompt_bytes = 4 * 29000;
    assert_true(ask(&b, &same)); /* what it waits for is shorter yet: nothing */
    describe(&longer, 3, 0, 1, 60, 1);
    longer.rq.prompt_bytes = 4 * 40000;
    assert_false(ask(&b, &longer)); /* 8.8 s; the bound is 4 */
    end(&b, &same, true);
    end(&b, &shorter, true);
    pass(&b, 0.006);
    assert_int_equal(walk(&b), 1);
    end(&b, &longer, true);
    end(&b, &long_one, true);
    bench_fini(&b);
}

/* Case 1, in small: the worker with room is the wrong one, and a queue would not change that. */
static void a_backlog_of_few_workers_holds_nothing(void **state) {
    (void)state;
    for (uint32_t n_busy = 1; n_busy <= 5; n_busy++) {
        struct bench b = bench_of(5, 0.1, 0.1);
        struct asked busy[5], a;
        bool is_placed;

        for (uint32_t w = 0; w < 5; w++)
            routing_set_reason(b.routing, w, WORKER_DISABLED, true);
        for (uint32_t w = 0; w < n_busy; w++) {
            routing_set_reason(b.routing, w, WORKER_DISABLED, false);
            load_with(&b, &busy[w], PROMPT_S(60));
            routing_set_reason(b.routing, w, WORKER_DISABLED, true);
        }
        for (uint32_t w = 0; w < 5; w++)
            routing_set_reason(b.routing, w, WORKER_DISABLED, false);
        describe(&a, 77, 0, 1, 60, 9); /* the busy ones have it */
        is_placed = ask(&b, &a);
        assert_int_equal(is_placed, n_busy < 4);
        if (is_placed) end(&b, &a, true);
        if (!is_placed) hold_leave(b.hold, &a.q);
        for (uint32_t w = 0; w < n_busy; w++)
            end(&b, &busy[w], true);
        bench_fini(&b);
    }
}

/* Case 3. */
static void the_cheapest_worker_counts_and_not_the_idle_one(void **state) {
    struct bench b = bench_of(2, H_S, H_S);
    struct asked warm, busy, a, other;

    (void)state;
    describe(&warm, 5, 64, 1, 64, 1);
    warm.rq.prompt_bytes = 40000 * 4; /* four seconds where it is not cached */
    memset(&busy, 0, sizeof(busy));
    assert_true(ask(&b, &warm));
    pass(&b, 5);
    first(&b, &warm);
    end(&b, &warm, false);
    /* Half a second before it at the worker that holds it. */
    describe(&busy, 6, 64, 1, 64, 1);
    for (uint32_t w = 0; w < 2; w++) {
        if (w != warm.ticket.load.worker) routing_set_reason(b.routing, w, WORKER_DISABLED, true);
    }
    load_with(&b, &busy, 0.5);
    assert_int_equal(busy.ticket.load.worker, warm.ticket.load.worker);
    for (uint32_t w = 0; w < 2; w++)
        routing_set_reason(b.routing, w, WORKER_DISABLED, false);
    describe(&a, 5, 64, 1, 64, 1);
    assert_false(queue_up(&b, &a)); /* 0.5 s here cost less than prefill there */
    describe(&other, 8, 0, 1, 4, 1);
    assert_true(ask(&b, &other)); /* its own worker is the idle one */
    assert_int_equal(other.ticket.load.worker, 1 - warm.ticket.load.worker);
    end(&b, &busy, true);
    assert_int_equal(walk(&b), 1);
    assert_int_equal(a.ticket.load.worker, warm.ticket.load.worker);
    end(&b, &a, true);
    end(&b, &other, true);
    bench_fini(&b);
}

/* Cases 4 and 6. */
static void the_least_price_goes_first_and_an_arrival_overtakes_nobody(void **state) {
    struct bench b = bench_of(1, H_S, H_S);
    struct asked busy, large, middle, small;

    (void)state;
    load_with(&b, &busy, 2);
    describe(&large, 1, 0, 1, 60, 1);
    describe(&middle, 2, 0, 1, 30, 1);
    describe(&small, 3, 0, 1, 10, 1);
    large.rq.prompt_bytes = 4 * 10000;
    middle.rq.prompt_bytes = 4 * 6000;
    assert_false(ask(&b, &large));
    assert_false(ask(&b, &small));
    assert_false(ask(&b, &middle));
    assert_int_equal(small.q.reason, HOLD_BEHIND);
    assert_int_equal(middle.q.n_before, 1);
    end(&b, &busy, true);
    assert_int_equal(walk(&b), 2); /* small, then middle; behind its 0.6 s the large one waits */
    assert_true(list_first(&b.placed) == &small.q.link);
    assert_true(middle.ticket.load.is_open);
    /* A new one of no work would be placed were the queue empty. */
    first(&b, &small);
    end(&b, &small, false);
    describe(&small, 4, 0, 1, 1, 1);
    assert_false(ask(&b, &small));
    end(&b, &middle, true);
    assert_int_equal(walk(&b), 2);
    end(&b, &large, true);
    end(&b, &small, true);
    bench_fini(&b);
}

/* Case 5. */
static void the_price_is_taken_again_at_each_try(void **state) {
    struct bench b = bench_of(1, H_S, H_S);
    struct asked warm, busy, cached, other;

    (void)state;
    describe(&warm, 5, 64, 1, 64, 1);
    warm.rq.prompt_bytes = 64 * BLOCK_BYTES;
    assert_true(ask(&b, &warm));
    pass(&b, 5);
    first(&b, &warm);
    end(&b, &warm, false);
    load_with(&b, &busy, 2);
    describe(&cached, 5, 64, 1, 64, 1);
    describe(&other, 6, 0, 1, 20, 1);
    assert_false(ask(&b, &other));
    assert_false(ask(&b, &cached));
    assert_true(cached.q.place.work_s < other.q.place.work_s);
    routing_forget_cache(b.routing, 0); /* evicted meanwhile */
    end(&b, &busy, true);
    assert_int_equal(walk(&b), 2);
    assert_true(list_first(&b.placed) == &other.q.link);
    end(&b, &cached, true);
    end(&b, &other, true);
    bench_fini(&b);
}

/* Cases 7 (each event) and 8. */
static void every_event_releases(void **state) {
    enum { FIRST, END, ABORT, UP, UNDRAIN, TIMER, N_EVENTS };

    (void)state;
    for (int event = 0; event < N_EVENTS; event++) {
        struct bench b = bench_of(2, H_S, H_S);
        struct asked busy, a;
        uint32_t away = event == UNDRAIN ? WORKER_DRAINING : WORKER_STARTING;

        routing_set_reason(b.routing, 1, away, true);
        load_with(&b, &busy, 1);
        describe(&a, 1, 0, 1, 4, 1);
        assert_false(ask(&b, &a));
        pass(&b, 0.1);
        assert_int_equal(walk(&b), 0);
        if (event == FIRST) first(&b, &busy);
        if (event == END) end(&b, &busy, false);
        if (event == ABORT) end(&b, &busy, true);
        if (event == UP || event == UNDRAIN) routing_set_reason(b.routing, 1, away, false);
        if (event == TIMER) pass(&b, 0.9);
        assert_int_equal(walk(&b), 1);
        end(&b, &a, true);
        if (event != END && event != ABORT) end(&b, &busy, true);
        bench_fini(&b);
    }
}

/* Case 9, the tries; tests/bench/bench_admission.c has the cost. A worker with nothing to do finds
 * its request behind any number that wait for another, a few tries at a time; one that has
 * something to do yet leaves what is behind them where it is. */
static void an_idle_worker_finds_its_request_behind_those_of_others(void **state) {
    enum { N = HOLD_FEW + 100 };
    const double all_s = N * HOLD_DEEP_US * 1e-6; /* to try all of them further down */
    struct bench b = bench_of(2, 2 * all_s, 2 * all_s);
    struct asked warm, busy, brief, *all = mem_calloc(N, sizeof(*all)), other;
    const struct load_worker *idle;
    uint32_t n_walks = 0;

    (void)state;
    describe(&warm, 5, 64, 1, 64, 1);
    warm.rq.prompt_bytes = 40000 * 4;
    assert_true(ask(&b, &warm));
    pass(&b, 5);
    first(&b, &warm);
    end(&b, &warm, false);
    routing_set_reason(b.routing, 1 - warm.ticket.load.worker, WORKER_DISABLED, true);
    load_with(&b, &busy, 10 * all_s);
    routing_set_reason(b.routing, 1 - warm.ticket.load.worker, WORKER_DISABLED, false);
    routing_set_reason(b.routing, warm.ticket.load.worker, WORKER_DISABLED, true);
    load_with(&b, &brief, 1.5 * all_s);
    routing_set_reason(b.routing, warm.ticket.load.worker, WORKER_DISABLED, false);
    idle = &routing_load(b.routing)->workers[brief.ticket.load.worker];
    for (int i = 0; i < N; i++) { /* have failed on the idle one */
        describe(&all[i], 5, 64, 1, 64, 1);
        all[i].exclude[0] = 1 - warm.ticket.load.worker;
        all[i].rq.exclude = all[i].exclude;
        all[i].rq.n_exclude = 1;
        assert_false(queue_up(&b, &all[i]));
    }
    describe(&other, 8, 0, 1, 64, 1);
    other.rq.prompt_bytes = 40000 * 4;
    assert_false(ask(&b, &other)); /* the other worker could begin it, but it is too far behind */
    assert_true(load_wait_s(idle, b.now_us) > all_s);
    while (load_wait_s(idle, b.now_us) > 0) {
        assert_int_equal(walk(&b), 0);
        pass(&b, HOLD_WALK_US * 1e-6);
    }
    while (!other.ticket.load.is_open && n_walks * HOLD_WALK_US * 1e-6 < 2 * all_s) {
        walk(&b);
        pass(&b, HOLD_WALK_US * 1e-6);
        n_walks++;
    }
    assert_true(other.ticket.load.is_open && n_walks > N / (2 * HOLD_TRIES));
    assert_int_equal(other.ticket.load.worker, 1 - warm.ticket.load.worker);
    end(&b, &brief, true);
    for (int i = 0; i < N; i++)
        hold_leave(b.hold, &all[i].q);
    end(&b, &other, true);
    end(&b, &busy, true);
    bench_fini(&b);
    mem_free(all);
}

/* Worker 0 is busy and has many waiting for it, one is idle, and another worker is lost or comes
 * back: the request that was tried in vain before, behind others, can go and is found. */
static void one_that_was_tried_is_found_when_workers_change(void **state) {
    enum { N = HOLD_FEW + 400 };
    const double all_s = N * HOLD_DEEP_US * 1e-6;

    (void)state;
    for (int is_lost = 0; is_lost < 2; is_lost++) {
        uint32_t n_cheaper = is_lost ? N / 2 : HOLD_TRIES + 4, n_walks = 0;
        struct bench b = bench_of(3, H_S, H_S);
        struct asked busy[2], *all = mem_calloc(N, sizeof(*all)), one;

        for (uint32_t w = 0; w < 3; w++)
            routing_set_reason(b.routing, w, WORKER_UNHEALTHY, w != 0);
        load_with(&b, &busy[0], 10 * all_s);
        routing_set_reason(b.routing, 0, WORKER_UNHEALTHY, true);
        routing_set_reason(b.routing, 1, WORKER_UNHEALTHY, false);
        load_with(&b, &busy[1], 10 * all_s);
        for (uint32_t w = 0; w < 3; w++)
            routing_set_reason(b.routing, w, WORKER_UNHEALTHY, false);
        for (uint32_t i = 0; i < N; i++) {
            describe(&all[i], 5, 0, i, i < n_cheaper ? 16 : 64, 1);
            all[i].exclude[0] = 1;
            all[i].exclude[1] = 2;
            all[i].rq.exclude = all[i].exclude;
            all[i].rq.n_exclude = 2;
            assert_false(queue_up(&b, &all[i]));
        }
        if (!is_lost) routing_set_reason(b.routing, 1, WORKER_UNHEALTHY, true);
        describe(&one, 6, 0, 1, 32, 1); /* 2 is idle, but it has failed there, */
        one.exclude[0] = 2;
        one.exclude[1] = 0;
        one.rq.exclude = one.exclude;
        one.rq.n_exclude = is_lost ? 2 : 1; /* and when 1 is lost, at all that there are */
        assert_false(queue_up(&b, &one));
        for (; !list_is_linked(&one.q.tried_link) || n_walks < 2 * n_cheaper; n_walks++) {
            pass(&b, HOLD_WALK_US * 1e-6);
            assert_int_equal(walk(&b), 0);
            assert_true(n_walks * HOLD_WALK_US * 1e-6 < 2 * all_s);
        }
        if (!is_lost) end(&b, &busy[1], true);
        routing_set_reason(b.routing, 1, WORKER_UNHEALTHY, is_lost);
        for (n_walks = 0; !one.ticket.load.is_open; n_walks++) {
            pass(&b, HOLD_WALK_US * 1e-6);
            walk(&b);
            hold_check(b.hold);
            assert_true(n_walks < 10 * HOLD_DEEP_US / HOLD_WALK_US);
        }
        assert_int_equal(one.ticket.load.worker, is_lost ? 2 : 1);
        for (uint32_t i = 0; i < N; i++)
            hold_leave(b.hold, &all[i].q);
        end(&b, &one, true);
        end(&b, &busy[0], true);
        if (is_lost) end(&b, &busy[1], true);
        bench_fini(&b);
        mem_free(all);
    }
}

/* A worker comes back that none of the first in the order can use. Another router serves a
 * tenant in debt: what one without debt has further down is found at once. */
static void a_tenant_that_others_pass_is_looked_for_further_down(void **state) {
    enum { N = HOLD_FREE_TRIES - 4, N_DEBT = 20 };
    struct bench b = bench_of(2, H_S, H_S);
    struct asked busy, owing[N_DEBT], *all = mem_calloc(N, sizeof(*all)), one;

    (void)state;
    routing_set_reason(b.routing, 1, WORKER_UNHEALTHY, true);
    load_with(&b, &busy, 100);
    for (uint32_t i = 0; i < N_DEBT + N; i++) { /* have failed on the other worker */
        struct asked *a = i < N_DEBT ? &owing[i] : &all[i - N_DEBT];

        describe(a, 5, 0, i, 16, i < N_DEBT ? 1 : 2);
        a->exclude[0] = 1;
        a->rq.exclude = a->exclude;
        a->rq.n_exclude = 1;
        assert_false(queue_up(&b, a));
    }
    describe(&one, 6, 0, 1, 64, 2);
    assert_false(queue_up(&b, &one));
    hold_served(b.hold, &(struct hold_service){.tenant = 1, .work_s = 5, .has_waited = true},
                b.now_us);
    assert_true(admission_in_debt(&owing[0].q.place) && !admission_in_debt(&one.q.place));
    assert_true(hold_n_waiting(b.hold) > HOLD_FEW); /* else all are tried */
    routing_set_reason(b.routing, 1, WORKER_UNHEALTHY, false);
    assert_int_equal(walk(&b), 1);
    assert_true(one.ticket.load.is_open);
    assert_int_equal(one.ticket.load.worker, 1);
    while (hold_n_waiting(b.hold))
        hold_leave(b.hold, hold_any(b.hold));
    end(&b, &one, true);
    end(&b, &busy, true);
    bench_fini(&b);
    mem_free(all);
}

static void a_tenant_in_debt_gets_almost_idle_workers_alone(void **state) {
    struct bench b = bench_of(1, 4, 4);
    struct asked first_one, flood[8], other, busy;

    (void)state;
    load_with(&b, &first_one, 6);
    for (uint64_t i = 0; i < 8; i++) {
        describe(&flood[i], 1, 0, i, 60, 1);
        flood[i].rq.prompt_bytes = 4 * 4000;
        assert_false(ask(&b, &flood[i]));
    }
    describe(&other, 2, 0, 1, 60, 2);
    other.rq.prompt_bytes = 4 * 50000;
    assert_false(ask(&b, &other));
    pass(&b, load_wait_s(&routing_load(b.routing)->workers[0], b.now_us) - 1);
    assert_int_equal(walk(&b), 4); /* three until the tenant is in debt, then the other one */
    assert_true(other.ticket.load.is_open);
    assert_int_equal(hold_n_waiting(b.hold), 5);
    describe(&busy, 2, 0, 2, 60, 3); /* waits: again there is one that was served less */
    busy.rq.prompt_bytes = 4 * 50000;
    assert_false(ask(&b, &busy));
    end(&b, &other, true);
    pass(&b, 0.006); /* not an event between: all are tried */
    assert_int_equal(walk(&b), 1);
    assert_true(busy.ticket.load.is_open);
    assert_int_equal(hold_n_waiting(b.hold), 5);
    while (hold_n_waiting(b.hold))
        hold_leave(b.hold, hold_any(b.hold));
    end(&b, &first_one, true);
    end(&b, &busy, true);
    for (int i = 0; i < 8; i++) {
        if (flood[i].ticket.load.is_open) end(&b, &flood[i], true);
    }
    bench_fini(&b);
}

/* Case 37: placed at once, but through the queue. */
static void what_is_placed_without_waiting_is_charged(void **state) {
    struct bench b = bench_of(2, H_S, H_S);
    struct asked busy, stuck, quick[8];

    (void)state;
    routing_set_reason(b.routing, 1, WORKER_DISABLED, true);
    load_with(&b, &busy, 9);
    describe(&stuck, 1, 0, 1, 60, 1);
    assert_false(ask(&b, &stuck));
    hold_leave(b.hold, &stuck.q);
    describe(&stuck, 1, 0, 1, 60, 1);
    assert_false(ask(&b, &stuck));
    for (uint64_t i = 0; i < 8; i++) {
        describe(&quick[i], 2, 0, i, 60, 2);
        quick[i].rq.prompt_bytes = 4 * 3000;
        quick[i].q.priority = -1; /* a band of its own, so that the stuck one stays */
        assert_false(ask(&b, &quick[i]));
    }
    assert_false(admission_in_debt(&quick[7].q.place));
    for (int i = 0; i < 8; i++)
        hold_leave(b.hold, &quick[i].q);
    hold_leave(b.hold, &stuck.q);
    end(&b, &busy, true);
    bench_fini(&b);
}

/* Case 21, and late reports. */
static void h_is_at_least_what_reports_allow(void **state) {
    struct bench b = bench_of(1, H_S, 4);
    struct asked a;

    (void)state;
    assert_float_equal(routing_load(b.routing)->hold_s[0], H_S, 1e-9);
    for (int i = 0; i < 40; i++) { /* 0.5 s late, to an idle worker */
        describe(&a, 1, 0, (uint64_t)i, 4, 1);
        assert_true(ask(&b, &a));
        pass(&b, a.ticket.load.work_s + 0.5);
        first(&b, &a);
        end(&b, &a, false);
        pass(&b, 1);
    }
    assert_float_equal(routing_load(b.routing)->hold_s[0], 1, 0.02);
    for (int i = 0; i < 40; i++) { /* prompt again: it goes back */
        describe(&a, 1, 0, 100 + (uint64_t)i, 4, 1);
        assert_true(ask(&b, &a));
        pass(&b, a.ticket.load.work_s);
        first(&b, &a);
        end(&b, &a, false);
        pass(&b, 1);
    }
    assert_float_equal(routing_load(b.routing)->hold_s[0], H_S, 1e-9);
    for (int i = 0; i < 20; i++) { /* nothing is reported: predictions stand in */
        describe(&a, 1, 0, 200 + (uint64_t)i, 4, 1);
        assert_true(ask(&b, &a));
        pass(&b, a.ticket.load.work_s);
        routing_first_token(b.routing, &a.ticket, NULL, b.now_us);
        end(&b, &a, false);
    }
    assert_float_equal(routing_load(b.routing)->hold_s[0], LOAD_UNSEEN_HOLD_S, 1e-9);
    routing_worker_up(b.routing, 0,
                      &(struct worker_spec){.identity = 1, .generation = 2, .order = WORKER_SRPT});
    assert_float_equal(routing_load(b.routing)->hold_s[0], 4, 1e-9);
    bench_fini(&b);
}

/* Case 16, the decision: nothing waits for a backlog, whatever it is. */
static void h_of_zero_places_on_any_backlog(void **state) {
    struct bench b = bench_of(1, 0, 0);
    struct asked a[20];

    (void)state;
    assert_false(hold_is_on(b.hold));
    for (uint64_t i = 0; i < 20; i++) {
        describe(&a[i], 1, 0, i, 60, 1);
        a[i].rq.prompt_bytes = 4 * 20000;
        assert_true(ask(&b, &a[i]));
    }
    for (int i = 0; i < 20; i++)
        end(&b, &a[i], true);
    bench_fini(&b);
}

/* --- random events ---------------------------------------------------------------------------- */

enum { N_WORKERS = 6, N_ASKED = 400, N_STEPS = 1000000, AT_ONCE = HOLD_TRIES / 2 };
enum { N_LONG = 1500, N_LONG_STEPS = 150000 };

struct random_model {
    struct bench b;
    struct rng rng;
    struct asked *all;
    enum { IDLE, WAITING, OPEN, RUNNING } state[N_LONG];
    uint32_t n_waiting, n_open, most_waiting;
    uint64_t n_placed, n_held, n_left, n_in_debt, n_refused, n_hopeless;
};

/* Of a worker that computes the shortest first the ticket's wait is more than counted. */
static bool is_within_h(const struct random_model *m, const struct asked *a) {
    const struct load *load = routing_load(m->b.routing);
    uint32_t w = a->ticket.load.worker;

    return worker_mask_has(load->srpt.words, w) || a->ticket.wait_s <= load->hold_s[w];
}

static void note_placed(struct random_model *m) {
    LIST_FOR_EACH(it, &m->b.placed) {
        struct asked *a = (struct asked *)(void *)LIST_ENTRY(it, struct hold_request, link);
        ptrdiff_t i = a - m->all;

        assert_int_equal(m->state[i], WAITING);
        assert_false(hold_is_waiting(&a->q));
        list_remove(it);
        m->n_waiting--;
        m->state[i] = IDLE;
        assert_true(is_within_h(m, a));
        m->state[i] = OPEN;
        m->n_open++;
        m->n_placed++;
    }
}

static bool is_refused(struct random_model *m, struct asked *a) {
    struct hold_due due = {.tenant = a->q.tenant, .by_us = a->q.by_us, .priority = a->q.priority};

    if (hold_judge(m->b.hold, &a->rq, &due, NULL) == ST_OK) return false;
    assert_true(due.retry_us >= SECOND / 2);
    m->n_refused++;
    return true;
}

static void refuse_hopeless(struct random_model *m) {
    struct hold_request *q;
    uint64_t retry_us;

    while ((q = hold_hopeless(m->b.hold, m->b.now_us, &retry_us)) != NULL) {
        ptrdiff_t i = (struct asked *)(void *)q - m->all;

        assert_true(q->by_us && (double)m->b.now_us > (double)q->by_us - q->due.work_s * 1e6);
        hold_leave(m->b.hold, q);
        m->state[i] = IDLE;
        m->n_waiting--;
        m->n_hopeless++;
    }
}

static void arrive(struct random_model *m, uint32_t i) {
    struct asked *a = &m->all[i];
    struct hold_request *displaced;
    enum hold_reason reason = HOLD_FULL;
    enum status st = ST_AGAIN;
    double busy_share = load_backlog_share(routing_load(m->b.routing), m->b.now_us);

    describe(a, rng_below(&m->rng, 4), 16, rng_below(&m->rng, 30),
             16 + (uint32_t)rng_below(&m->rng, 48), rng_below(&m->rng, 5) * rng_below(&m->rng, 2));
    a->rq.prompt_bytes = 4 * (100 + rng_below(&m->rng, 4000) * rng_below(&m->rng, 3));
    a->rq.now_us = a->q.since_us = m->b.now_us;
    a->q.priority = rng_below(&m->rng, 10) ? 0 : (int32_t)rng_below(&m->rng, 3) - 1;
    if (rng_below(&m->rng, 20) == 0) { /* a retry */
        a->exclude[0] = (uint32_t)rng_below(&m->rng, N_WORKERS);
        a->rq.exclude = a->exclude;
        a->rq.n_exclude = 1;
    }
    a->q.by_us = rng_below(&m->rng, 4) ? 0 : m->b.now_us + rng_below(&m->rng, 2 * SECOND);
    if (a->q.by_us && is_refused(m, a)) return;
    if (load_has_room(routing_load(m->b.routing), m->b.now_us))
        st = hold_place(m->b.hold, &a->rq, &a->ticket, &reason, NULL);
    if (st == ST_OK) {
        assert_int_equal(m->n_waiting, 0);
        assert_true(is_within_h(m, a) || busy_share < HOLD_BUSY_SHARE);
        m->state[i] = OPEN;
        m->n_open++;
    }
    if (st != ST_AGAIN || m->n_waiting == AT_ONCE) return;
    assert_int_equal(hold_wait(m->b.hold, &a->q, &displaced), ADMISSION_WAITS);
    m->state[i] = WAITING;
    m->n_waiting++;
    m->n_held++;
}

static void change_worker(struct random_model *m) {
    uint32_t w = (uint32_t)rng_below(&m->rng, N_WORKERS);
    static const uint32_t reasons[] = {WORKER_DRAINING, WORKER_UNHEALTHY, WORKER_EJECTED};

    switch (rng_below(&m->rng, 3)) {
    case 0: routing_set_reason(m->b.routing, w, reasons[rng_below(&m->rng, 3)], true); break;
    case 1: routing_set_reason(m->b.routing, w, ~(uint32_t)WORKER_ABSENT, false); break;
    default:
        routing_worker_up(
            m->b.routing, w,
            &(struct worker_spec){.identity = 1000 + w,
                                  .generation = rng_below(&m->rng, 3),
                                  .block_size = 16,
                                  .n_blocks = 4000,
                                  .enough_in_flight = 6,
                                  .max_in_flight = 12,
                                  .order = rng_below(&m->rng, 2) ? WORKER_SRPT : WORKER_FCFS,
                                  .prefill_tokens_per_s = 10000});
    }
}

static void step(struct random_model *m) {
    uint32_t i = (uint32_t)rng_below(&m->rng, N_ASKED);
    struct asked *a = &m->all[i];

    pass(&m->b, (double)rng_below(&m->rng, 1000) * 1e-6);
    if (rng_below(&m->rng, 2000) == 0) change_worker(m);
    switch (m->state[i]) {
    case IDLE:
        if (rng_below(&m->rng, 8) == 0) arrive(m, i);
        break;
    case WAITING:
        if (rng_below(&m->rng, 40)) break;
        m->n_in_debt += admission_in_debt(&a->q.place);
        hold_leave(m->b.hold, &a->q);
        m->state[i] = IDLE;
        m->n_waiting--;
        m->n_left++;
        break;
    case OPEN:
        if (rng_below(&m->rng, 2)) break;
        first(&m->b, a);
        m->state[i] = RUNNING;
        break;
    case RUNNING: break;
    }
    if (m->state[i] >= OPEN && rng_below(&m->rng, 10) == 0) {
        end(&m->b, a, rng_below(&m->rng, 5) == 0);
        m->state[i] = IDLE;
        m->n_open--;
    }
    refuse_hopeless(m);
    walk(&m->b);
    note_placed(m);
}

/* None that waits could go: its own worker is above H, or there is no room. */
static void check_nobody_waits_for_nothing(struct random_model *m) {
    const struct load *load = routing_load(m->b.routing);

    for (uint32_t i = 0; i < N_ASKED; i++) {
        struct asked *a = &m->all[i];
        struct route_offer offer;
        double most_s;

        if (m->state[i] != WAITING) continue;
        a->rq.now_us = m->b.now_us;
        if (!load_has_room(load, m->b.now_us)) continue;
        if (routing_offer(m->b.routing, &a->rq, &offer, NULL) != ST_OK) continue; /* a retry */
        most_s = load->hold_s[offer.worker];
        if (admission_in_debt(&a->q.place)) most_s = MIN(most_s, HOLD_IN_DEBT_S);
        assert_true(offer.wait_s > most_s);
    }
}

/* Cases 7 and 22. */
static void no_wake_up_is_lost_in_random_events(void **state) {
    struct random_model *m = mem_zalloc(sizeof(*m));

    (void)state;
    rng_seed(&m->rng, support_seed());
    m->b = bench_of(N_WORKERS, 0.05, 0.2);
    m->all = mem_calloc(N_ASKED, sizeof(*m->all));
    for (uint32_t i = 0; i < N_STEPS; i++) {
        step(m);
        assert_int_equal(hold_n_waiting(m->b.hold), m->n_waiting);
        if (i % 100) continue;
        for (uint32_t n_placed = 1; n_placed;) { /* one that is placed may take another's debt */
            pass(&m->b, 0.06);                   /* the timer */
            n_placed = walk(&m->b);
            note_placed(m);
        }
        check_nobody_waits_for_nothing(m);
        hold_check(m->b.hold);
        if (i % 1000 == 0) routing_check(m->b.routing);
    }
    assert_true(m->n_refused > 100 && m->n_hopeless > 20);
    assert_true(m->n_held > 3000 && m->n_placed > 3000 && m->n_left > 100 && m->n_in_debt > 5);
    for (uint32_t i = 0; i < N_ASKED; i++) {
        if (m->state[i] == WAITING) hold_leave(m->b.hold, &m->all[i].q);
        if (m->state[i] >= OPEN) end(&m->b, &m->all[i], true);
    }
    bench_fini(&m->b);
    mem_free(m->all);
    mem_free(m);
}

/* --- random events in a long queue ------------------------------------------------------------ */

static void take_placed(struct random_model *m) {
    LIST_FOR_EACH(it, &m->b.placed) {
        struct asked *a = (struct asked *)(void *)LIST_ENTRY(it, struct hold_request, link);

        assert_true(a->ticket.load.is_open && !hold_is_waiting(&a->q));
        assert_int_equal(m->state[a - m->all], WAITING);
        list_remove(it);
        m->state[a - m->all] = OPEN;
        m->n_waiting--;
        m->n_placed++;
    }
}

static void drop_out(struct random_model *m, struct asked *a) {
    assert_int_equal(m->state[a - m->all], WAITING);
    assert_false(hold_is_waiting(&a->q));
    assert_false(tree_heap_is_linked(&a->q.in_lane) || list_is_linked(&a->q.tried_link));
    m->state[a - m->all] = IDLE;
    m->n_waiting--;
    m->n_left++;
}

static void join_queue(struct random_model *m, uint32_t i) {
    struct asked *a = &m->all[i];
    struct hold_request *displaced;

    describe(a, rng_below(&m->rng, 30), 16, rng_below(&m->rng, 30),
             16 + (uint32_t)rng_below(&m->rng, 48), rng_below(&m->rng, 5) * rng_below(&m->rng, 2));
    a->rq.prompt_bytes = 4 * (100 + rng_below(&m->rng, 4000) * rng_below(&m->rng, 3));
    a->rq.now_us = a->q.since_us = m->b.now_us;
    a->q.priority = rng_below(&m->rng, 10) ? 0 : (int32_t)rng_below(&m->rng, 3) - 1;
    if (hold_wait(m->b.hold, &a->q, &displaced) != ADMISSION_WAITS) return;
    m->state[i] = WAITING;
    m->n_waiting++;
    m->most_waiting = MAX(m->most_waiting, m->n_waiting);
    if (displaced) drop_out(m, (struct asked *)(void *)displaced);
}

/* Off and on, with another length of the queue. */
static void change_options(struct random_model *m) {
    bool is_on = rng_below(&m->rng, 3) != 0;

    hold_configure(m->b.hold, &(struct hold_options){
                                  .queue_size = (uint32_t)rng_below(&m->rng, N_LONG + N_LONG / 2),
                                  .fcfs_s = is_on ? 0.05 : 0,
                                  .srpt_s = is_on ? 0.2 : 0});
}

static void serve_elsewhere(struct random_model *m) {
    const struct hold_service service = {.tenant = rng_below(&m->rng, 10),
                                         .weight = rng_f64(&m->rng),
                                         .work_s = rng_f64(&m->rng),
                                         .has_waited = rng_below(&m->rng, 2)};

    hold_served(m->b.hold, &service, m->b.now_us);
}

static void step_of_long(struct random_model *m) {
    uint32_t i = (uint32_t)rng_below(&m->rng, N_LONG);
    struct asked *a = &m->all[i];

    pass(&m->b, (double)rng_below(&m->rng, 500) * 1e-6);
    if (rng_below(&m->rng, 500) == 0) change_worker(m);
    if (rng_below(&m->rng, 3000) == 0) change_options(m);
    if (rng_below(&m->rng, 20) == 0) serve_elsewhere(m);
    if (m->state[i] == IDLE && rng_below(&m->rng, 2)) {
        join_queue(m, i);
    } else if (m->state[i] == WAITING && rng_below(&m->rng, 200) == 0) {
        hold_leave(m->b.hold, &a->q);
        drop_out(m, a);
    } else if (m->state[i] == OPEN && rng_below(&m->rng, 50) == 0) {
        if (rng_below(&m->rng, 5)) first(&m->b, a);
        end(&m->b, a, rng_below(&m->rng, 5) == 0);
        m->state[i] = IDLE;
    }
    walk(&m->b);
    take_placed(m);
}

/* With all workers there, and each request answered when it is placed. */
static void serve_all(struct random_model *m) {
    for (uint32_t w = 0; w < N_WORKERS; w++)
        routing_set_reason(m->b.routing, w, ~(uint32_t)WORKER_ABSENT, false);
    for (uint32_t n = 0; m->n_waiting; n++) {
        for (uint32_t i = 0; i < N_LONG; i++) {
            if (m->state[i] != OPEN) continue;
            end(&m->b, &m->all[i], false);
            m->state[i] = IDLE;
        }
        pass(&m->b, HOLD_WALK_US * 1e-6);
        walk(&m->b);
        take_placed(m);
        assert_true(n < 100 * N_LONG);
    }
}

static void in_a_long_queue_none_is_lost_whatever_happens(void **state) {
    struct random_model *m = mem_zalloc(sizeof(*m));

    (void)state;
    rng_seed(&m->rng, support_seed());
    m->b = bench_of(N_WORKERS, 0.05, 0.2);
    m->all = mem_calloc(N_LONG, sizeof(*m->all));
    for (uint32_t i = 0; i < N_LONG_STEPS; i++) {
        step_of_long(m);
        assert_int_equal(hold_n_waiting(m->b.hold), m->n_waiting);
        if (i % 200 == 0) hold_check(m->b.hold);
        if (i % (N_LONG_STEPS / 5) == 0) serve_all(m);
    }
    assert_true(m->n_placed > 1000 && m->n_left > 100 && m->most_waiting > 10 * HOLD_FEW);
    serve_all(m);
    for (uint32_t i = 0; i < N_LONG; i++)
        if (m->state[i] == OPEN) end(&m->b, &m->all[i], true);
    bench_fini(&m->b);
    mem_free(m->all);
    mem_free(m);
}

static enum status judge(struct bench *b, struct asked *a, double due_s, struct hold_due *due) {
    *due = (struct hold_due){.tenant = a->q.tenant, .by_us = b->now_us + (uint64_t)(due_s * 1e6)};
    a->rq.now_us = b->now_us;
    return hold_judge(b->hold, &a->rq, due, NULL);
}

/* Cases 32 to 34. */
static void what_would_be_late_is_refused_and_accepted_after_the_time_given(void **state) {
    struct bench b = bench_of(1, H_S, H_S);
    struct asked busy, waits, late;
    struct hold_due due;
    uint64_t retry_us;
    double wait_s;

    (void)state;
    load_with(&b, &busy, 10);
    wait_s = load_wait_s(&routing_load(b.routing)->workers[0], b.now_us);
    describe(&late, 1, 0, 1, 60, 1);
    late.rq.prompt_bytes = 4 * 30000;                                /* 3 s, and attention */
    assert_int_equal(judge(&b, &late, 2, &due), ST_BUSY);            /* itself is longer */
    assert_int_equal(judge(&b, &late, wait_s - 0.1, &due), ST_BUSY); /* it could not begin */
    assert_true(due.predicted_s > wait_s + 3 && due.retry_us >= SECOND * 8 / 10);
    assert_int_equal(judge(&b, &late, wait_s + 1, &due), ST_OK);
    describe(&waits, 2, 0, 2, 30, 1);
    assert_false(ask(&b, &waits));
    assert_int_equal(judge(&b, &late, wait_s - 0.1, &due), ST_BUSY);
    pass(&b, (double)due.retry_us * 1e-6);
    assert_int_equal(judge(&b, &late, wait_s - 0.1, &due), ST_OK);
    late.q.by_us = due.by_us;
    assert_false(ask(&b, &late));
    assert_null(hold_hopeless(b.hold, due.by_us - SECOND * 6, &retry_us));
    assert_ptr_equal(hold_hopeless(b.hold, due.by_us - SECOND * 3, &retry_us), &late.q);
    hold_leave(b.hold, &late.q);
    assert_null(hold_hopeless(b.hold, UINT64_MAX, &retry_us)); /* the other has no deadline */
    hold_leave(b.hold, &waits.q);
    end(&b, &busy, true);
    bench_fini(&b);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_wait_just_below_h_places_and_just_above_holds),
        cmocka_unit_test(longer_prompts_of_an_srpt_worker_are_no_wait),
        cmocka_unit_test(a_backlog_of_few_workers_holds_nothing),
        cmocka_unit_test(the_cheapest_worker_counts_and_not_the_idle_one),
        cmocka_unit_test(the_least_price_goes_first_and_an_arrival_overtakes_nobody),
        cmocka_unit_test(the_price_is_taken_again_at_each_try),
        cmocka_unit_test(every_event_releases),
        cmocka_unit_test(an_idle_worker_finds_its_request_behind_those_of_others),
        cmocka_unit_test(one_that_was_tried_is_found_when_workers_change),
        cmocka_unit_test(a_tenant_that_others_pass_is_looked_for_further_down),
        cmocka_unit_test(a_tenant_in_debt_gets_almost_idle_workers_alone),
        cmocka_unit_test(what_is_placed_without_waiting_is_charged),
        cmocka_unit_test(h_is_at_least_what_reports_allow),
        cmocka_unit_test(h_of_zero_places_on_any_backlog),
        cmocka_unit_test(what_would_be_late_is_refused_and_accepted_after_the_time_given),
        cmocka_unit_test(no_wake_up_is_lost_in_random_events),
        cmocka_unit_test(in_a_long_queue_none_is_lost_whatever_happens),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
