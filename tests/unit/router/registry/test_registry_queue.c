/* tests/unit/router/registry/test_registry_queue.c - waiting for a worker: places handed over
 * between loops, requests that leave, and nothing lost or counted twice. */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "common/base/mem.h"
#include "common/base/rng.h"
#include "common/net/loop.h"
#include "router/registry/registry.h"
#include "router/registry/registry_remote.h"
#include "router/registry/registry_route.h"
#include "router/registry/registry_view.h"
#include "router/registry/registry_workers.h"
#include "tests/support/cm.h"
#include "tests/support/registry_fixture.h"
#include "tests/support/routing_defaults.h"
#include "tests/support/support.h"

/* `batch`: tokens per step that each worker reports; 0: none reported. */
static struct registry *make_waiting(uint32_t n_workers, uint32_t batch, uint32_t limit,
                                     uint32_t max_concurrent, uint32_t queue_size,
                                     uint64_t slow_start_us, uint64_t max_wait_us) {
    struct registry_config config = {0};
    struct wire_server_info info = {
        .wire = 1, .model = "m", .block_size = 16, .n_blocks = 500, .prefill_tokens_per_s = 1e4};
    struct registry *r = NULL;
    char url[64];
    uint32_t id;

    info.max_num_seqs = batch;
    routing_options_default(&config.routing);
    config.routing.max_index_bytes = 1 << 20;
    config.routing.max_workers = 8;
    config.routing.slow_start_us = slow_start_us;
    config.max_worker_requests = limit;
    config.max_concurrent = max_concurrent;
    config.hold.queue_size = queue_size;
    config.hold.max_wait_us = max_wait_us;
    assert_int_equal(registry_create(&r, &config, NULL), ST_OK);
    for (uint32_t i = 0; i < n_workers; i++) {
        snprintf(url, sizeof(url), "http://127.0.0.1:%u", 1000 + i);
        assert_int_equal(registry_add(r, url, &id, NULL), ST_OK);
        snprintf(info.generation, sizeof(info.generation), "g%u", i);
        assert_int_equal(registry_describe(r, id, &info, false, NULL), ST_OK);
        registry_set_reason(r, id, WORKER_STARTING, false);
    }
    return r;
}

static struct registry *make_announced(uint32_t n_workers, uint32_t batch, uint32_t limit,
                                       uint32_t max_concurrent, uint32_t queue_size,
                                       uint64_t slow_start_us) {
    return make_waiting(n_workers, batch, limit, max_concurrent, queue_size, slow_start_us, 0);
}

static struct registry *make(uint32_t n_workers, uint32_t limit, uint32_t max_concurrent,
                             uint32_t queue_size) {
    return make_announced(n_workers, 0, limit, max_concurrent, queue_size, 0);
}

static struct registry_totals totals(struct registry *r) {
    struct registry_totals t;

    registry_totals(r, &t);
    return t;
}

struct request { /* what an exchange holds */
    struct registry_waiter w;
    struct route_request rq;
    struct route_ticket ticket;
    struct registry_target target;
    uint64_t chain[2];
    bool is_open, is_waiting;
};

/* `prompt`: requests with the same one have it in common. */
static enum status enter_with(struct registry *r, struct mailbox *box, struct request *q,
                              uint64_t tenant, uint64_t prompt, uint64_t now_us) {
    enum status st;

    memset(q, 0, sizeof(*q));
    q->chain[0] = prompt * 2 + 1;
    q->chain[1] = prompt * 2 + 2;
    q->rq = (struct route_request){
        .chain = q->chain, .n_blocks = 2, .prompt_bytes = 256, .now_us = now_us};
    q->w.box = box;
    q->w.held.tenant = tenant;
    st = registry_enter(r, STR_NULL, &q->rq, &q->ticket, &q->target, &q->w, NULL);
    q->is_open = st == ST_OK;
    q->is_waiting = st == ST_AGAIN;
    return st;
}

static void end(struct registry *r, struct request *q, uint64_t now_us) {
    struct route_end e = {.output_tokens = 1, .feedback = {-1, -1}, .now_us = now_us};

    assert_true(q->is_open);
    q->is_open = false;
    registry_ended(r, &q->target, &q->ticket, &e, OUTCOME_OK);
}

static enum status enter(struct registry *r, struct mailbox *box, struct request *q,
                         uint64_t tenant, uint64_t now_us) {
    return enter_with(r, box, q, tenant, now_us, now_us);
}

/* Takes the decisions; returns their number. */
static uint32_t take_grants(struct mailbox *box) {
    struct list mails, *link;
    uint32_t n = 0;

    list_init(&mails);
    mailbox_take(box, &mails);
    while ((link = list_pop_front(&mails)) != NULL) {
        struct request *q = CONTAINER_OF(mail_of(link), struct request, w.mail);

        assert_true(q->is_waiting);
        q->is_waiting = false;
        q->is_open = q->w.is_granted;
        n++;
    }
    return n;
}

static void a_slot_goes_to_the_next_in_queue(void **state) {
    struct registry *r = make(2, 1, 0, 10);
    struct mailbox *box = mailbox_open_waiting();
    struct request q[5];

    (void)state;
    assert_int_equal(enter(r, box, &q[0], 1, 1), ST_OK);
    assert_int_equal(enter(r, box, &q[1], 1, 2), ST_OK);
    assert_int_not_equal(q[0].target.worker, q[1].target.worker);
    for (int i = 2; i < 5; i++)
        assert_int_equal(enter(r, box, &q[i], 1, (uint64_t)i + 1), ST_AGAIN);
    assert_int_equal(totals(r).n_waiting, 3);
    assert_int_equal(totals(r).n_open, 2);
    end(r, &q[1], 10);
    assert_int_equal(take_grants(box), 1);
    assert_true(q[2].is_open);
    assert_int_equal(q[2].target.worker, q[1].target.worker);
    assert_int_equal(totals(r).n_open, 2);
    assert_true(registry_leave(r, &q[3].w)); /* the client of the next has left */
    end(r, &q[0], 11);
    assert_int_equal(take_grants(box), 1);
    assert_true(q[4].is_open);
    assert_int_equal(q[4].rq.now_us, 11);
    end(r, &q[2], 12);
    end(r, &q[4], 13);
    assert_int_equal(totals(r).n_waiting + totals(r).n_open + take_grants(box), 0);
    registry_destroy(r);
    mailbox_close(box);
}

static struct registry_model_stats of_the_model(struct registry *r) {
    struct registry_model_stats s;

    assert_true(registry_model_stats(r, 0, &s));
    assert_string_equal(s.name, "m");
    return s;
}

static void saturation_is_the_mean_load_and_1_when_a_request_waits(void **state) {
    struct registry *r = make(2, 4, 0, 10);
    struct mailbox *box = mailbox_open_waiting();
    struct registry_model_stats s;
    struct request q[9];
    uint32_t gone;

    (void)state;
    assert_true(of_the_model(r).saturation == 0);
    for (uint64_t i = 0; i < 6; i++)
        assert_int_equal(enter(r, box, &q[i], 1, i + 1), ST_OK);
    s = of_the_model(r);
    assert_int_equal(s.n_workers, 2);
    assert_int_equal(s.n_open, 6);
    assert_true(s.saturation > 0.749 && s.saturation < 0.751);
    for (uint64_t i = 6; i < 9; i++)
        assert_int_equal(enter(r, box, &q[i], 1, i + 1), i < 8 ? ST_OK : ST_AGAIN);
    assert_int_equal(of_the_model(r).n_waiting, 1);
    assert_true(of_the_model(r).saturation == 1);
    assert_true(registry_leave(r, &q[8].w));
    for (int i = 0; i < 7; i++)
        end(r, &q[i], 20);
    gone = q[7].target.worker;
    assert_true(of_the_model(r).saturation > 0.124 && of_the_model(r).saturation < 0.126);
    registry_set_reason(r, 1 - gone, WORKER_UNHEALTHY, true); /* is counted no more */
    assert_true(of_the_model(r).saturation > 0.249 && of_the_model(r).saturation < 0.251);
    registry_set_reason(r, gone, WORKER_UNHEALTHY, true);
    assert_true(of_the_model(r).saturation == 1); /* a request, and no worker */
    end(r, &q[7], 30);
    assert_true(of_the_model(r).saturation == 0);
    assert_false(registry_model_stats(r, 1, &s));
    registry_destroy(r);
    mailbox_close(box);
}

static void a_late_cancel_still_receives_its_slot(void **state) {
    struct registry *r = make(1, 1, 0, 10);
    struct mailbox *box = mailbox_open_waiting();
    struct request q[2];

    (void)state;
    assert_int_equal(enter(r, box, &q[0], 1, 1), ST_OK);
    assert_int_equal(enter(r, box, &q[1], 1, 2), ST_AGAIN);
    end(r, &q[0], 3);
    assert_false(registry_leave(r, &q[1].w));
    assert_int_equal(totals(r).n_open, 1);
    assert_int_equal(take_grants(box), 1);
    end(r, &q[1], 4);
    assert_int_equal(totals(r).n_open, 0);
    registry_destroy(r);
    mailbox_close(box);
}

static void a_full_queue_displaces_or_refuses(void **state) {
    struct registry *r = make(1, 1, 0, 3);
    struct mailbox *box = mailbox_open_waiting();
    struct request q[6];

    (void)state;
    assert_int_equal(enter(r, box, &q[0], 1, 1), ST_OK);
    for (int i = 1; i < 4; i++)
        assert_int_equal(enter(r, box, &q[i], 1, (uint64_t)i + 1), ST_AGAIN);
    assert_int_equal(enter(r, box, &q[4], 1, 5), ST_BUSY);
    assert_string_equal(q[4].w.limit, "queue-size");
    assert_int_equal(enter(r, box, &q[5], 2, 6), ST_AGAIN);
    assert_int_equal(take_grants(box), 1);
    assert_false(q[3].is_open || q[3].is_waiting); /* it was the last of the longest */
    assert_string_equal(q[3].w.limit, "queue-size");
    assert_int_equal(totals(r).n_waiting, 3);
    for (int i = 0; i < 3; i++) {
        struct request *open = q[0].is_open   ? &q[0]
                               : q[1].is_open ? &q[1]
                               : q[2].is_open ? &q[2]
                                              : &q[5];

        end(r, open, 10 + (uint64_t)i);
        assert_int_equal(take_grants(box), 1);
    }
    assert_int_equal(totals(r).n_waiting, 0);
    for (int i = 0; i < 6; i++) {
        if (q[i].is_open) end(r, &q[i], 20);
    }
    registry_destroy(r);
    mailbox_close(box);
}

static void a_limit_on_all_and_a_worker_that_comes_back(void **state) {
    struct registry *r = make(2, 0, 3, 10);
    struct mailbox *box = mailbox_open_waiting();
    struct request q[5];

    (void)state;
    for (int i = 0; i < 3; i++)
        assert_int_equal(enter(r, box, &q[i], 1, (uint64_t)i + 1), ST_OK);
    assert_int_equal(enter(r, box, &q[3], 1, 5), ST_AGAIN);
    end(r, &q[0], 6);
    assert_int_equal(take_grants(box), 1);
    assert_true(q[3].is_open);
    for (int i = 1; i < 4; i++)
        end(r, &q[i], 7);
    registry_destroy(r);

    r = make(2, 1, 0, 10);
    registry_set_reason(r, 1, WORKER_UNHEALTHY, true);
    assert_int_equal(enter(r, box, &q[0], 1, 1), ST_OK);
    assert_int_equal(enter(r, box, &q[1], 1, 2), ST_AGAIN);
    registry_set_reason(r, 1, WORKER_UNHEALTHY, false);
    registry_tick(r, 3);
    assert_int_equal(take_grants(box), 1);
    assert_int_equal(q[1].target.worker, 1);
    end(r, &q[0], 4);
    end(r, &q[1], 4);
    registry_set_reason(r, 0, WORKER_UNHEALTHY, true);
    registry_set_reason(r, 1, WORKER_UNHEALTHY, true);
    assert_int_equal(enter(r, box, &q[0], 1, 5), ST_AGAIN); /* the first that is back has it */
    registry_set_reason(r, 1, WORKER_UNHEALTHY, false);
    registry_tick(r, 6);
    assert_int_equal(take_grants(box), 1);
    assert_int_equal(q[0].target.worker, 1);
    end(r, &q[0], 7);
    registry_set_reason(r, 0, WORKER_DISABLED, true);
    registry_set_draining(r, 1, DRAIN_OPERATOR, true);
    assert_int_equal(enter(r, box, &q[0], 1, 8), ST_UNAVAILABLE); /* none comes back by itself */
    registry_destroy(r);

    r = make(2, 1, 0, 1);
    registry_set_reason(r, 0, WORKER_UNHEALTHY, true);
    registry_set_reason(r, 1, WORKER_UNHEALTHY, true);
    assert_int_equal(enter(r, box, &q[0], 1, 1), ST_AGAIN);
    assert_int_equal(enter(r, box, &q[1], 1, 2), ST_UNAVAILABLE); /* the queue has one place */
    assert_string_equal(q[1].w.limit, "queue-size");
    assert_true(registry_leave(r, &q[0].w));
    registry_destroy(r);
    mailbox_close(box);
}

/* For as long as a request may wait; then there is no use in it. */
static void while_the_last_worker_is_away_requests_wait_for_it(void **state) {
    struct registry *r = make_waiting(1, 0, 0, 0, 10, 0, 100);
    struct mailbox *box = mailbox_open_waiting();
    struct request q[3];

    (void)state;
    registry_set_reason(r, 0, WORKER_UNHEALTHY, true);
    assert_true(totals(r).may_wait && totals(r).n_eligible == 0); /* however short it was there */
    registry_tick(r, 10);
    assert_int_equal(enter(r, box, &q[2], 1, 9), ST_AGAIN); /* of a loop whose clock is behind */
    assert_true(registry_leave(r, &q[2].w));
    registry_tick(r, 109);
    assert_true(totals(r).may_wait && totals(r).n_eligible == 0);
    assert_int_equal(enter(r, box, &q[0], 1, 109), ST_AGAIN);
    registry_tick(r, 110);
    assert_false(totals(r).may_wait);
    assert_int_equal(enter(r, box, &q[1], 1, 110), ST_UNAVAILABLE);
    registry_set_reason(r, 0, WORKER_UNHEALTHY, false);
    registry_tick(r, 120);
    assert_int_equal(take_grants(box), 1);
    assert_true(q[0].is_open);
    end(r, &q[0], 121);
    registry_destroy(r);
    mailbox_close(box);
}

/* Batches of one: two are enough for a worker, and four the most. */
static void a_prompt_goes_to_its_cache_beyond_the_soft_limit(void **state) {
    enum { BLOCKS = 64 };
    struct registry *r = make_announced(2, 1, 0, 0, 10, 0);
    struct mailbox *box = mailbox_open_waiting();
    struct request q[8];
    uint64_t chain[BLOCKS];
    uint32_t home;

    (void)state;
    for (uint64_t b = 0; b < BLOCKS; b++)
        chain[b] = rng_at(1, b);
    memset(q, 0, sizeof(q));
    for (uint64_t i = 0; i < 8; i++) {
        q[i].w.box = box;
        q[i].rq = (struct route_request){
            .chain = chain, .n_blocks = BLOCKS, .prompt_bytes = BLOCKS * 256, .now_us = i + 1};
    }
    for (int i = 0; i < 4; i++) {
        assert_int_equal(
            registry_enter(r, STR_NULL, &q[i].rq, &q[i].ticket, &q[i].target, &q[i].w, NULL),
            ST_OK);
        registry_first_token(r, &q[i].target, &q[i].ticket, NULL, (uint64_t)i + 1);
        assert_int_equal(q[i].target.worker, q[0].target.worker);
    }
    home = q[0].target.worker;
    for (int i = 4; i < 6; i++) { /* there are the most: the other one must do */
        assert_int_equal(
            registry_enter(r, STR_NULL, &q[i].rq, &q[i].ticket, &q[i].target, &q[i].w, NULL),
            ST_OK);
        assert_int_not_equal(q[i].target.worker, home);
    }
    assert_int_equal(
        registry_enter(r, STR_NULL, &q[6].rq, &q[6].ticket, &q[6].target, &q[6].w, NULL), ST_AGAIN);
    q[6].is_waiting = true;
    for (int i = 0; i < 6; i++)
        q[i].is_open = true;
    end(r, &q[0], 10);
    end(r, &q[1], 10);
    assert_int_equal(take_grants(box), 0); /* both workers still have enough */
    end(r, &q[2], 10);
    assert_int_equal(take_grants(box), 1);
    for (int i = 3; i < 7; i++)
        end(r, &q[i], 11);
    assert_int_equal(totals(r).n_open, 0);
    registry_destroy(r);
    mailbox_close(box);
}

/* --- slow start: batches of 8, so that 10 are enough for a worker and 20 the most ------------- */

enum {
    SLOW_START_US = 10000000,
    SERVICE_US = 1900000, /* of each request */
    STEP_US = 100000,     /* between two ticks */
    RAMP_REQUESTS = 400,
    RAMP_WAITING = 50,
    ENOUGH = 10,
};

struct ramp { /* requests in virtual time, oldest first */
    struct registry *registry;
    struct mailbox *box;
    struct request q[RAMP_REQUESTS];
    uint64_t began_us[RAMP_REQUESTS]; /* 0: not yet */
    uint32_t n_entered, n_served;
    uint64_t back_us; /* when worker 1 came back */
};

static uint32_t in_flight(struct ramp *s, uint32_t id) {
    struct registry_view view;

    assert_true(registry_get(s->registry, id, &view));
    return view.in_flight;
}

/* What worker 1 may have: at most so many, and one more that is begun. */
static double share_of_mean(struct ramp *s, uint64_t now_us) {
    double share = 0.1 + 0.9 * (double)(now_us - s->back_us) / SLOW_START_US;
    double mean = totals(s->registry).n_open / 2.0;

    return share * mean < 1 ? 1 : share * mean;
}

static void begin_granted(struct ramp *s, uint64_t now_us) {
    take_grants(s->box);
    for (uint32_t i = 0; i < s->n_entered; i++) {
        if (!s->q[i].is_open || s->began_us[i]) continue;
        s->began_us[i] = now_us;
        registry_first_token(s->registry, &s->q[i].target, &s->q[i].ticket, NULL, now_us);
    }
}

static void end_those_served(struct ramp *s, uint64_t now_us) {
    for (uint32_t i = 0; i < s->n_entered; i++) {
        if (!s->q[i].is_open || s->began_us[i] + SERVICE_US > now_us) continue;
        end(s->registry, &s->q[i], now_us);
        s->n_served++;
        begin_granted(s, now_us);
    }
}

static void let_wait(struct ramp *s, uint64_t now_us) {
    while (s->n_entered < RAMP_REQUESTS && totals(s->registry).n_waiting < RAMP_WAITING) {
        uint32_t i = s->n_entered++;
        enum status st = enter_with(s->registry, s->box, &s->q[i], 1, i, now_us);

        assert_true(st == ST_OK || st == ST_AGAIN);
        begin_granted(s, now_us);
    }
}

static void a_waiting_request_respects_slow_start(void **state) {
    struct ramp *s = mem_zalloc(sizeof(*s));
    uint64_t now_us = 2 * SLOW_START_US; /* that of the fleet is over */
    uint32_t most = 0;

    (void)state;
    s->registry = make_announced(2, 8, 0, 0, RAMP_WAITING, SLOW_START_US);
    s->box = mailbox_open_waiting();
    registry_set_reason(s->registry, 1, WORKER_UNHEALTHY, true);
    registry_tick(s->registry, now_us);
    let_wait(s, now_us);
    assert_int_equal(in_flight(s, 0), ENOUGH);
    s->back_us = now_us;
    registry_set_reason(s->registry, 1, WORKER_UNHEALTHY, false);
    for (; s->n_served < RAMP_REQUESTS; now_us += STEP_US) {
        uint32_t n_before = in_flight(s, 1), n;

        assert_true(now_us < s->back_us + 100 * SLOW_START_US); /* each is served in time */
        registry_tick(s->registry, now_us);
        begin_granted(s, now_us);
        end_those_served(s, now_us);
        let_wait(s, now_us);
        n = in_flight(s, 1);
        if (now_us - s->back_us < SLOW_START_US && s->n_entered < RAMP_REQUESTS) {
            assert_true(n <= n_before || n < share_of_mean(s, now_us) + 1);
            assert_true(n + 1 > share_of_mean(s, now_us)); /* and it gets what it may have */
            most = MAX(most, n);
        }
        assert_true(in_flight(s, 0) <= ENOUGH);
    }
    assert_in_range(most, ENOUGH - 1, ENOUGH);
    assert_int_equal(totals(s->registry).n_open + totals(s->registry).n_waiting, 0);
    registry_destroy(s->registry);
    mailbox_close(s->box);
    mem_free(s);
}

/* --- two loops, for the thread sanitizer ------------------------------------------------------ */

enum { GRANTS = 1000, SLOTS = 24 };

struct side {
    struct registry *registry;
    uint64_t tenant, seed;
    uint32_t n_granted, n_displaced, n_late;
};

static void *work(void *arg) {
    struct side *s = arg;
    struct mailbox *box = mailbox_open_waiting();
    struct request *q = mem_calloc(SLOTS, sizeof(*q));
    bool *has_left = mem_calloc(SLOTS, sizeof(*has_left)); /* but is owed a mail */
    uint32_t n_busy = 0;
    struct rng rng;

    rng_seed(&rng, s->seed);
    for (uint64_t step = 1; s->n_granted < GRANTS || n_busy; step++) {
        struct request *mine = &q[rng_below(&rng, SLOTS)];
        struct list mails, *link;

        if (step % 64 == 0) sched_yield(); /* the other may have all places */
        list_init(&mails);
        mailbox_take(box, &mails);
        while ((link = list_pop_front(&mails)) != NULL) {
            struct request *granted = CONTAINER_OF(mail_of(link), struct request, w.mail);

            assert_true(granted->is_waiting);
            granted->is_waiting = false;
            granted->is_open = granted->w.is_granted;
            s->n_granted += granted->is_open;
            s->n_displaced += !granted->is_open;
            if (has_left[granted - q] && granted->is_open) end(s->registry, granted, step);
            has_left[granted - q] = false;
        }
        if (mine->is_open) {
            end(s->registry, mine, step);
        } else if (mine->is_waiting) {
            if (has_left[mine - q] || rng_below(&rng, 4)) continue;
            if (registry_leave(s->registry, &mine->w)) {
                mine->is_waiting = false;
            } else {
                has_left[mine - q] = true;
                s->n_late++;
            }
        } else if (s->n_granted < GRANTS) {
            enum status st = enter(s->registry, box, mine, s->tenant, step);

            assert_true(st == ST_OK || st == ST_AGAIN || st == ST_BUSY);
        }
        n_busy = 0;
        for (int i = 0; i < SLOTS; i++)
            n_busy += q[i].is_open || q[i].is_waiting;
    }
    mem_free(has_left);
    mem_free(q);
    mailbox_close(box);
    return NULL;
}

/* The control loop meanwhile: what other routers send to the same workers, until none of ours is
 * left. */
struct others {
    struct registry *registry;
    atomic_bool is_over;
    uint32_t n_ended;
};

static void *adopt(void *arg) {
    static const uint64_t chain[2] = {1 << 20, 2 << 20};
    struct others *s = arg;
    struct registry_remote remote[3] = {0};
    struct route_end end = {.output_tokens = 3, .feedback = {-1, -1}};
    bool is_over = false;
    struct rng rng;

    rng_seed(&rng, support_seed() + 2);
    for (uint64_t step = 1;; step++) {
        struct registry_remote *m = &remote[rng_below(&rng, ARRAY_LEN(remote))];
        struct route_request rq = {
            .chain = chain, .n_blocks = 2, .prompt_bytes = 256, .now_us = step};

        is_over = atomic_load(&s->is_over);
        if (m->ticket.load.is_open && rng_below(&rng, 3) == 0) {
            registry_remote_first_token(s->registry, m, NULL, step);
        } else if (m->ticket.load.is_open) {
            end.is_aborted = rng_below(&rng, 2) == 0;
            end.now_us = step;
            registry_remote_ended(s->registry, m, &end, step);
            s->n_ended++;
        } else if (!is_over) {
            struct request_mark mark = {.tenant = 1 + rng_below(&rng, 3),
                                        .has_waited = rng_below(&rng, 2)};

            assert_int_equal(registry_add_remote(s->registry, (uint32_t)rng_below(&rng, 3), 1, &rq,
                                                 rng_below(&rng, 4) ? &mark : NULL, step, m),
                             ST_OK);
        } else if (totals(s->registry).n_remote == 0) {
            return NULL;
        }
        if (step % 16 == 0) sched_yield(); /* ours shall get places too */
        if (step % 256 == 0) registry_check(s->registry);
    }
}

static void two_loops_hand_slots_to_each_other(void **state) {
    struct registry *r = make(3, 2, 5, 12);
    struct side sides[2] = {{r, 1, support_seed(), 0, 0, 0}, {r, 2, support_seed() + 1, 0, 0, 0}};
    struct others others = {.registry = r};
    pthread_t threads[2], control;

    (void)state;
    assert_int_equal(pthread_create(&control, NULL, adopt, &others), 0);
    for (int i = 0; i < 2; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, work, &sides[i]), 0);
    for (int i = 0; i < 2; i++)
        assert_int_equal(pthread_join(threads[i], NULL), 0);
    atomic_store(&others.is_over, true);
    assert_int_equal(pthread_join(control, NULL), 0);
    assert_int_equal(totals(r).n_open, 0);
    assert_int_equal(totals(r).n_waiting, 0);
    assert_true(others.n_ended > 0);
    registry_check(r);
    registry_destroy(r);
}

/* Limits, queue and policy of models that serve already; what is open and who waits stays. */
static void other_limits_hold_at_once(void **state) {
    struct mailbox *box = mailbox_open_waiting();
    struct registry *r = make(2, 1, 0, 1);
    struct registry_config config = {0};
    struct request q[6];

    (void)state;
    routing_options_default(&config.routing);
    config.routing.max_index_bytes = 1 << 20;
    config.routing.max_workers = 8;
    assert_int_equal(enter(r, box, &q[0], 1, 1), ST_OK);
    assert_int_equal(enter(r, box, &q[1], 2, 1), ST_OK);
    assert_int_equal(enter(r, box, &q[2], 3, 1), ST_AGAIN); /* one in flight on each, one waits */
    assert_int_equal(enter(r, box, &q[3], 3, 1), ST_BUSY);
    config.max_worker_requests = 2;
    config.hold.queue_size = 4;
    config.routing.policy_options.load_floor = 1;
    registry_change(r, &config);
    assert_int_equal(enter(r, box, &q[3], 3, 2), ST_OK); /* who waited is sent first */
    assert_int_equal(take_grants(box), 1);
    assert_int_equal(totals(r).n_open, 4);
    assert_int_equal(enter(r, box, &q[4], 3, 2), ST_AGAIN);
    config.max_concurrent = 2;
    registry_change(r, &config);
    end(r, &q[0], 3);
    assert_int_equal(enter(r, box, &q[5], 3, 3), ST_AGAIN); /* three are open, two may be */
    registry_check(r);
    assert_true(registry_leave(r, &q[4].w));
    assert_true(registry_leave(r, &q[5].w));
    for (int i = 1; i < 4; i++)
        end(r, &q[i], 4);
    registry_check(r);
    registry_destroy(r);
    mailbox_close(box);
}

static void light_requests_take_no_place_of_the_router(void **state) {
    struct registry *r = make(2, 0, 2, 10);
    struct mailbox *box = mailbox_open_waiting();
    struct request light[3] = {0}, q[3];

    (void)state;
    for (int i = 0; i < 3; i++) {
        light[i].rq = (struct route_request){.is_light = true, .now_us = 1};
        assert_int_equal(
            registry_route(r, STR_NULL, &light[i].rq, &light[i].ticket, &light[i].target, NULL),
            ST_OK);
        light[i].is_open = true;
    }
    assert_int_equal(enter(r, box, &q[0], 1, 1), ST_OK);
    assert_int_equal(enter(r, box, &q[1], 2, 1), ST_OK);
    assert_int_equal(enter(r, box, &q[2], 3, 1), ST_AGAIN);
    registry_check(r);
    end(r, &light[0], 2);
    assert_int_equal(take_grants(box), 0);
    end(r, &q[0], 3);
    assert_int_equal(take_grants(box), 1);
    for (int i = 1; i < 3; i++) {
        end(r, &light[i], 4);
        end(r, &q[i], 4);
    }
    registry_check(r);
    assert_int_equal(totals(r).n_open, 0);
    registry_destroy(r);
    mailbox_close(box);
}

/* --- held back for a backlog ------------------------------------------------------------------ */

static void hold_back(struct registry *r) {
    struct registry_config config = {.hold = {.queue_size = 10, .fcfs_s = 0.4, .srpt_s = 4}};

    routing_options_default(&config.routing);
    registry_change(r, &config);
}

/* 256 bytes are 64 tokens, of which a worker reads 10,000 a second; here 40 seconds' worth. */
static enum status enter_bytes(struct registry *r, struct mailbox *box, struct request *q,
                               uint64_t prompt_bytes, uint64_t now_us) {
    memset(q, 0, sizeof(*q));
    q->rq =
        (struct route_request){.chain = q->chain, .prompt_bytes = prompt_bytes, .now_us = now_us};
    q->w.box = box;
    q->is_open = registry_enter(r, STR_NULL, &q->rq, &q->ticket, &q->target, &q->w, NULL) == ST_OK;
    q->is_waiting = !q->is_open;
    return q->is_open ? ST_OK : ST_AGAIN;
}

static enum status enter_long(struct registry *r, struct mailbox *box, struct request *q,
                              uint64_t now_us) {
    return enter_bytes(r, box, q, 1600000, now_us);
}

/* One short prompt that waits a moment does not call for another worker. */
static void saturation_counts_the_prefill_that_is_held(void **state) {
    struct registry *r = make(2, 0, 0, 10);
    struct mailbox *box = mailbox_open_waiting();
    struct request q[4];

    (void)state;
    hold_back(r);
    for (int i = 0; i < 2; i++)
        assert_int_equal(enter_bytes(r, box, &q[i], 4 * 7000, 1), ST_OK);
    assert_true(of_the_model(r).saturation == 0); /* no bound in flight to measure by */
    assert_int_equal(enter_bytes(r, box, &q[2], 4 * 5000, 2), ST_AGAIN);
    assert_true(q[2].w.held.place.work_s > 0.5 && q[2].w.held.place.work_s < 0.6);
    assert_float_equal(of_the_model(r).saturation, q[2].w.held.place.work_s / 4, 1e-9);
    assert_int_equal(enter_long(r, box, &q[3], 3), ST_AGAIN);
    assert_true(of_the_model(r).saturation == 1);
    assert_true(registry_leave(r, &q[3].w));
    assert_true(registry_leave(r, &q[2].w));
    assert_true(of_the_model(r).saturation == 0);
    for (int i = 0; i < 2; i++)
        end(r, &q[i], 100000000);
    registry_destroy(r);
    mailbox_close(box);
}

static void time_alone_lets_a_held_request_go(void **state) {
    struct registry *r = make(1, 0, 0, 10);
    struct mailbox *box = mailbox_open_waiting();
    struct request q[2];
    double work_s;

    (void)state;
    hold_back(r);
    assert_int_equal(enter_long(r, box, &q[0], 1), ST_OK);
    work_s = q[0].ticket.load.work_s;
    assert_int_equal(enter_long(r, box, &q[1], 2), ST_AGAIN);
    assert_int_equal(q[1].w.held.reason, HOLD_BACKLOG);
    registry_walk(r, (uint64_t)((work_s - 0.41) * 1e6));
    assert_int_equal(take_grants(box), 0);
    registry_walk(r, (uint64_t)((work_s - 0.39) * 1e6));
    assert_int_equal(take_grants(box), 1);
    assert_true(q[1].is_open);
    for (int i = 0; i < 2; i++)
        end(r, &q[i], 100000000);
    registry_check(r);
    registry_destroy(r);
    mailbox_close(box);
}

/* What other routers sent keeps ours waiting, and their first tokens let ours go. */
static void first_tokens_of_other_routers_let_held_requests_go(void **state) {
    struct route_feedback feedback = {400000, 0};
    struct route_end e = {.output_tokens = 1, .feedback = {-1, -1}, .now_us = 20};
    struct registry *r = make(1, 0, 0, 10);
    struct mailbox *box = mailbox_open_waiting();
    struct route_request rq = {.prompt_bytes = 1600000, .now_us = 1};
    struct registry_view view;
    struct registry_remote m;
    struct request q;

    (void)state;
    hold_back(r);
    assert_true(registry_get(r, 0, &view));
    assert_int_equal(registry_add_remote(r, 0, view.incarnation, &rq, NULL, 1, &m), ST_OK);
    assert_int_equal(enter_long(r, box, &q, 2), ST_AGAIN);
    registry_remote_first_token(r, &m, &feedback, 10);
    assert_int_equal(take_grants(box), 1);
    assert_true(q.is_open);
    registry_remote_ended(r, &m, &e, 20);
    end(r, &q, 30);
    registry_check(r);
    registry_destroy(r);
    mailbox_close(box);
}

/* A router none of whose requests runs hears of nothing: its timer looks again. */
static void time_frees_a_router_none_of_whose_requests_runs(void **state) {
    struct route_end e = {.output_tokens = 1, .feedback = {-1, -1}, .now_us = 100000000};
    struct registry *r = make(1, 0, 0, 10);
    struct mailbox *box = mailbox_open_waiting();
    struct route_request rq = {.prompt_bytes = 1600000, .now_us = 1};
    struct registry_remote m;
    struct registry_view view;
    struct request q;
    double work_s;

    (void)state;
    hold_back(r);
    assert_true(registry_get(r, 0, &view));
    assert_int_equal(registry_add_remote(r, 0, view.incarnation, &rq, NULL, 1, &m), ST_OK);
    work_s = m.ticket.load.work_s;
    assert_int_equal(enter_long(r, box, &q, 2), ST_AGAIN);
    registry_walk(r, (uint64_t)((work_s - 0.41) * 1e6));
    assert_int_equal(take_grants(box), 0);
    registry_walk(r, (uint64_t)((work_s - 0.39) * 1e6));
    assert_int_equal(take_grants(box), 1);
    assert_true(q.is_open && q.target.mark.has_waited);
    end(r, &q, 100000000);
    registry_remote_ended(r, &m, &e, 100000000);
    registry_check(r);
    registry_destroy(r);
    mailbox_close(box);
}

/* Two tenants wait for one worker, and one of them is served by another router meanwhile. True when
 * that one's request, which was here first, goes first. */
static bool first_comer_goes_first(const struct request_mark *mark, uint64_t reported_us) {
    struct route_request rq = {.prompt_bytes = 1600000, .now_us = 1000000};
    struct route_end e = {.output_tokens = 1, .feedback = {-1, -1}, .now_us = 300000000};
    struct registry *r = make(1, 0, 0, 10);
    struct mailbox *box = mailbox_open_waiting();
    struct registry_remote m[2];
    struct request q[2];
    bool is_first;

    hold_back(r);
    assert_int_equal(registry_add_remote(r, 0, 1, &rq, NULL, 1000000, &m[0]), ST_OK);
    for (uint64_t i = 0; i < 2; i++) {
        memset(&q[i], 0, sizeof(q[i]));
        q[i].rq = (struct route_request){
            .chain = q[i].chain, .prompt_bytes = 1600000, .now_us = 1000000 + i};
        q[i].w.box = box;
        q[i].w.held.tenant = 1 + i;
        q[i].is_waiting = true;
        assert_int_equal(
            registry_enter(r, STR_NULL, &q[i].rq, &q[i].ticket, &q[i].target, &q[i].w, NULL),
            ST_AGAIN);
    }
    assert_int_equal(registry_add_remote(r, 0, 1, &rq, mark, reported_us, &m[1]), ST_OK);
    for (int i = 0; i < 2; i++) {
        registry_remote_ended(r, &m[i], &e, e.now_us);
        if (i == 0) assert_int_equal(take_grants(box), 0);
    }
    assert_int_equal(take_grants(box), 1);
    assert_true(q[0].is_open != q[1].is_open);
    is_first = q[0].is_open;
    end(r, &q[!is_first], e.now_us);
    assert_int_equal(take_grants(box), 1);
    end(r, &q[is_first], e.now_us);
    registry_check(r);
    registry_destroy(r);
    mailbox_close(box);
    return is_first;
}

static void a_tenant_is_charged_for_what_other_routers_sent(void **state) {
    const struct request_mark mark = {.tenant = 1};

    (void)state;
    assert_true(first_comer_goes_first(NULL, 1000010)); /* hashed in another way */
    assert_false(first_comer_goes_first(&mark, 1000010));
    assert_true(first_comer_goes_first(&mark, 1000001 + REGISTRY_CHARGED_US)); /* long ago */
    assert_true(first_comer_goes_first(&(struct request_mark){.tenant = 2}, 1000010));
    assert_true(
        first_comer_goes_first(&(struct request_mark){.tenant = 1, .priority = 1}, 1000010));
}

/* No worker is left that could come back by itself: waiting is in vain. */
static void held_requests_are_refused_when_the_last_worker_drains(void **state) {
    struct registry *r = make(1, 0, 0, 10);
    struct mailbox *box = mailbox_open_waiting();
    struct request q[2];

    (void)state;
    hold_back(r);
    assert_int_equal(enter_long(r, box, &q[0], 1), ST_OK);
    assert_int_equal(enter_long(r, box, &q[1], 2), ST_AGAIN);
    registry_set_draining(r, 0, DRAIN_OPERATOR, true);
    registry_tick(r, 3);
    assert_int_equal(take_grants(box), 1);
    assert_false(q[1].is_open);
    assert_null(q[1].w.limit);
    assert_int_equal(totals(r).n_waiting, 0);
    end(r, &q[0], 4);
    registry_check(r);
    registry_destroy(r);
    mailbox_close(box);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_slot_goes_to_the_next_in_queue),
        cmocka_unit_test(saturation_is_the_mean_load_and_1_when_a_request_waits),
        cmocka_unit_test(a_late_cancel_still_receives_its_slot),
        cmocka_unit_test(a_full_queue_displaces_or_refuses),
        cmocka_unit_test(a_limit_on_all_and_a_worker_that_comes_back),
        cmocka_unit_test(while_the_last_worker_is_away_requests_wait_for_it),
        cmocka_unit_test(a_prompt_goes_to_its_cache_beyond_the_soft_limit),
        cmocka_unit_test(a_waiting_request_respects_slow_start),
        cmocka_unit_test(two_loops_hand_slots_to_each_other),
        cmocka_unit_test(other_limits_hold_at_once),
        cmocka_unit_test(light_requests_take_no_place_of_the_router),
        cmocka_unit_test(saturation_counts_the_prefill_that_is_held),
        cmocka_unit_test(time_alone_lets_a_held_request_go),
        cmocka_unit_test(first_tokens_of_other_routers_let_held_requests_go),
        cmocka_unit_test(time_frees_a_router_none_of_whose_requests_runs),
        cmocka_unit_test(a_tenant_is_charged_for_what_other_routers_sent),
        cmocka_unit_test(held_requests_are_refused_when_the_last_worker_drains),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
