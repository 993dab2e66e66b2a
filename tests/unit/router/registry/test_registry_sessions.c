/* tests/unit/router/registry/test_registry_sessions.c - turns that wait for their session: released
 * by others' ends, by time, by workers that come and go; nothing lost between loops. */
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>

#include "common/base/mem.h"
#include "common/base/rng.h"
#include "common/net/loop.h"
#include "router/registry/registry.h"
#include "router/registry/registry_internal.h"
#include "tests/support/cm.h"
#include "tests/support/registry_fixture.h"
#include "tests/support/routing_defaults.h"
#include "tests/support/support.h"

#define SECOND   UINT64_C(1000000)
#define KV       16000 /* tokens of two workers; 14,400 may be active */
#define N_BLOCKS 4
#define LONGEST  12000 /* tokens of a context */

static struct wire_server_info description(uint32_t i, uint64_t n_blocks) {
    struct wire_server_info info = {.wire = 1,
                                    .model = "m",
                                    .block_size = 16,
                                    .n_blocks = n_blocks,
                                    .max_num_seqs = 8,
                                    .max_model_len = LONGEST,
                                    .prefill_tokens_per_s = 1e4};

    snprintf(info.generation, sizeof(info.generation), "g%u", i);
    return info;
}

static void add(struct registry *r, uint32_t i, uint64_t n_blocks) {
    struct wire_server_info info = description(i, n_blocks);
    char url[64];
    uint32_t id;

    snprintf(url, sizeof(url), "http://127.0.0.1:%u", 1000 + i);
    assert_int_equal(registry_add(r, url, &id, NULL), ST_OK);
    assert_int_equal(registry_describe(r, id, &info, false, NULL), ST_OK);
    registry_set_reason(r, id, WORKER_STARTING, false);
}

static struct registry *make(uint32_t queue_size) {
    struct registry_config config = {.max_sessions = 1000, .hold.queue_size = queue_size};
    struct registry *r = NULL;

    routing_options_default(&config.routing);
    config.routing.max_index_bytes = 1 << 20;
    config.routing.max_workers = 8;
    assert_int_equal(registry_create(&r, &config, NULL), ST_OK);
    add(r, 0, KV / 32);
    add(r, 1, KV / 32);
    return r;
}

struct request { /* what an exchange holds */
    struct registry_waiter w;
    struct route_request rq;
    struct route_ticket ticket;
    struct registry_target target;
    uint64_t chain[N_BLOCKS];
    bool is_open, is_waiting;
};

/* A turn of so many tokens of a tenant, as a proxy sends it. */
static enum status ask(struct registry *r, struct mailbox *box, struct request *q, uint64_t id,
                       uint32_t n_tokens, uint64_t now_us) {
    struct registry_turn turn = {.id = id << 20, .n_blocks = N_BLOCKS, .tenant = 1};
    enum status st;

    memset(q, 0, sizeof(*q));
    for (uint64_t i = 0; i < N_BLOCKS; i++)
        q->chain[i] = rng_at(id, i) & ~UINT64_C(0xFFFF);
    q->rq = (struct route_request){.chain = q->chain,
                                   .n_blocks = N_BLOCKS,
                                   .prompt_bytes = (uint64_t)n_tokens * 4,
                                   .now_us = now_us};
    q->w.box = box;
    st = registry_begin_turn(r, STR_NULL, &q->rq, &q->ticket, &q->target, &turn, &q->w, NULL);
    if (st == ST_OK) st = registry_enter(r, STR_NULL, &q->rq, &q->ticket, &q->target, &q->w, NULL);
    q->is_open = st == ST_OK;
    q->is_waiting = st == ST_AGAIN;
    return st;
}

static void end(struct registry *r, struct request *q, uint64_t now_us) {
    struct route_end e = {.output_tokens = 1, .feedback = {-1, -1}, .now_us = now_us};

    assert_true(q->is_open);
    q->is_open = false;
    registry_ended(r, &q->target, &q->ticket, &e, OUTCOME_OK);
    registry_end_turn(r, &q->w, q->target.worker, 0, now_us);
}

/* Of requests whose decision has come, those that were granted. */
static uint32_t take(struct mailbox *box) {
    struct list mails, *link;
    uint32_t n = 0;

    list_init(&mails);
    mailbox_take(box, &mails);
    while ((link = list_pop_front(&mails)) != NULL) {
        struct request *q = CONTAINER_OF(mail_of(link), struct request, w.mail);

        assert_true(q->is_waiting);
        q->is_waiting = false;
        q->is_open = q->w.is_granted;
        n += q->is_open;
    }
    return n;
}

static struct sessions_stats stats_of(struct registry *r) {
    struct registry_model_stats s;

    assert_true(registry_model_stats(r, 0, &s) && s.joins_sessions);
    return s.sessions;
}

/* Active and idle. */
static void live(struct registry *r, struct mailbox *box, uint64_t id, uint32_t n_tokens) {
    struct request q;

    for (int i = 0; i < 2; i++) {
        assert_int_equal(ask(r, box, &q, id, n_tokens, SECOND), ST_OK);
        end(r, &q, SECOND);
    }
}

static void finish(struct registry *r, struct mailbox *box) {
    struct registry_totals t;

    registry_totals(r, &t);
    assert_int_equal(t.n_open + t.n_waiting + take(box), 0);
    registry_check(r);
    registry_destroy(r);
    mailbox_close(box);
}

static void a_turn_waits_for_its_session_and_time_lets_it_go(void **state) {
    struct mailbox *box = mailbox_open_waiting();
    struct registry *r = make(10);
    struct request q;

    (void)state;
    assert_int_equal(stats_of(r).capacity_tokens, 14400);
    live(r, box, 1, 8000);
    live(r, box, 2, 6000);
    assert_int_equal(ask(r, box, &q, 3, 5000, SECOND), ST_OK); /* a first turn */
    end(r, &q, SECOND);
    assert_int_equal(ask(r, box, &q, 3, 5000, 2 * SECOND), ST_AGAIN);
    assert_int_equal(q.w.held.reason, HOLD_SESSION);
    assert_int_equal(registry_position(r, &q.w), 1);
    registry_check(r);
    registry_walk(r, 3 * SECOND);
    assert_int_equal(take(box), 0);
    registry_walk(r, 200 * SECOND);
    assert_int_equal(take(box), 1);
    end(r, &q, 200 * SECOND);
    finish(r, box);
}

static void one_that_leaves_while_it_waits_is_forgotten(void **state) {
    struct mailbox *box = mailbox_open_waiting();
    struct registry *r = make(10);
    struct request q;

    (void)state;
    live(r, box, 1, 8000);
    live(r, box, 2, 100);
    assert_int_equal(ask(r, box, &q, 2, 8000, 2 * SECOND), ST_OK); /* it is active, and grows */
    end(r, &q, 2 * SECOND);
    assert_int_equal(ask(r, box, &q, 3, 9000, 2 * SECOND), ST_OK);
    end(r, &q, 2 * SECOND);
    assert_int_equal(ask(r, box, &q, 3, 9000, 3 * SECOND), ST_AGAIN);
    assert_true(registry_leave(r, &q.w));
    assert_false(registry_leave(r, &q.w));
    registry_end_turn(r, &q.w, WORKER_NONE, 0, 4 * SECOND); /* nothing to end */
    registry_walk(r, 300 * SECOND);
    finish(r, box);
}

static void a_full_queue_refuses_a_session(void **state) {
    struct mailbox *box = mailbox_open_waiting();
    struct registry *r = make(1);
    struct request q[3];

    (void)state;
    assert_int_equal(ask(r, box, &q[0], 1, 40000, SECOND), ST_OK); /* alone, it may be larger */
    assert_int_equal(ask(r, box, &q[1], 2, 40000, SECOND), ST_AGAIN);
    assert_int_equal(ask(r, box, &q[2], 3, 40000, SECOND), ST_BUSY);
    assert_string_equal(q[2].w.limit, "queue-size");
    end(r, &q[0], 2 * SECOND);
    registry_walk(r, 200 * SECOND);
    assert_int_equal(take(box), 1);
    end(r, &q[1], 200 * SECOND);
    finish(r, box);
}

static void a_worker_that_restarts_takes_the_tokens_and_not_the_sessions(void **state) {
    struct wire_server_info info = description(7, KV / 32);
    struct mailbox *box = mailbox_open_waiting();
    struct registry *r = make(10);
    struct request q;

    (void)state;
    live(r, box, 1, 8000);
    assert_int_equal(stats_of(r).n_active, 1);
    assert_true(stats_of(r).used_tokens >= 8000);
    for (uint32_t id = 0; id < 2; id++)
        assert_int_equal(registry_describe(r, id, &info, false, NULL), ST_OK);
    assert_int_equal(stats_of(r).n_active, 1);
    assert_true(stats_of(r).used_tokens < 100);
    assert_int_equal(ask(r, box, &q, 1, 8000, 2 * SECOND), ST_OK);
    assert_int_equal(q.w.turn.how, SESSION_BY_ID);
    end(r, &q, 2 * SECOND);
    registry_forget_cache(r, 0);
    registry_forget_cache(r, 1);
    assert_true(stats_of(r).used_tokens < 100);
    finish(r, box);
}

static void a_worker_without_a_known_memory_lets_all_go(void **state) {
    struct mailbox *box = mailbox_open_waiting();
    struct registry *r = make(10);
    struct request q[2];

    (void)state;
    assert_int_equal(ask(r, box, &q[0], 1, 40000, SECOND), ST_OK);
    assert_int_equal(ask(r, box, &q[1], 2, 40000, SECOND), ST_AGAIN);
    add(r, 2, 0);
    assert_int_equal(stats_of(r).capacity_tokens, 0);
    registry_tick(r, 2 * SECOND);
    assert_int_equal(take(box), 1);
    end(r, &q[0], 3 * SECOND);
    end(r, &q[1], 3 * SECOND);
    assert_int_equal(registry_remove(r, 2), ST_OK);
    assert_int_equal(stats_of(r).capacity_tokens, 14400);
    finish(r, box);
}

static void the_last_worker_that_leaves_ends_the_wait(void **state) {
    struct mailbox *box = mailbox_open_waiting();
    struct registry *r = make(10);
    struct request q[2];

    (void)state;
    assert_int_equal(ask(r, box, &q[0], 1, 40000, SECOND), ST_OK);
    assert_int_equal(ask(r, box, &q[1], 2, 40000, SECOND), ST_AGAIN);
    for (uint32_t id = 0; id < 2; id++)
        registry_set_draining(r, id, DRAIN_OPERATOR, true);
    registry_tick(r, 2 * SECOND);
    assert_int_equal(take(box), 0);
    assert_false(q[1].is_waiting);
    assert_null(q[1].w.limit);
    registry_end_turn(r, &q[1].w, WORKER_NONE, 0, 2 * SECOND);
    end(r, &q[0], 3 * SECOND);
    finish(r, box);
}

/* --- turns that another router has sent ------------------------------------------------------- */

struct remote {
    struct registry_remote m;
    uint64_t chain[N_BLOCKS];
};

/* At t_us, as it is heard at now_us. */
static void adopt(struct registry *r, struct remote *q, uint64_t id, uint32_t n_tokens,
                  uint64_t t_us, uint64_t now_us) {
    struct request_mark mark = {.tenant = 1, .session = id << 20, .is_turn = true};
    struct route_request rq = {.chain = q->chain,
                               .n_blocks = N_BLOCKS,
                               .prompt_bytes = (uint64_t)n_tokens * 4,
                               .now_us = t_us};

    for (uint64_t i = 0; i < N_BLOCKS; i++)
        q->chain[i] = rng_at(id, i) & ~UINT64_C(0xFFFF);
    assert_int_equal(registry_add_remote(r, (uint32_t)(id % 2), 1, &rq, &mark, now_us, &q->m),
                     ST_OK);
}

static void end_adopted(struct registry *r, struct remote *q, int64_t n_tokens, uint64_t now_us) {
    struct route_end e = {.output_tokens = 100, .feedback = {-1, -1}, .now_us = now_us};
    struct route_feedback feedback = {.prompt_tokens = n_tokens, .cached_tokens = 0};

    registry_remote_first_token(r, &q->m, &feedback, now_us);
    registry_remote_ended(r, &q->m, &e, now_us);
    registry_check(r);
}

static void one_session_comes_through_two_routers(void **state) {
    struct mailbox *box = mailbox_open_waiting();
    struct registry *r = make(10);
    struct request q, other;
    struct remote m;

    (void)state;
    assert_int_equal(ask(r, box, &q, 1, 5000, SECOND), ST_OK);
    end(r, &q, SECOND);
    adopt(r, &m, 1, 6000, 2 * SECOND, 2 * SECOND);
    assert_int_equal(m.m.turn.how, SESSION_BY_ID);
    end_adopted(r, &m, 7000, 3 * SECOND);
    assert_int_equal(stats_of(r).n_active, 1);
    assert_int_equal(stats_of(r).used_tokens, 7100);
    adopt(r, &m, 2, 5000, 3 * SECOND, 3 * SECOND);
    end_adopted(r, &m, 5000, 3 * SECOND);
    adopt(r, &m, 2, 5000, 3 * SECOND, 3 * SECOND);
    end_adopted(r, &m, 5000, 3 * SECOND);
    assert_int_equal(stats_of(r).used_tokens, 7100 + 5100);
    assert_int_equal(ask(r, box, &q, 1, 7200, 4 * SECOND), ST_OK); /* active through both */
    assert_int_equal(q.w.turn.how, SESSION_BY_ID);
    assert_int_equal(ask(r, box, &other, 3, 40000, 4 * SECOND), ST_AGAIN);
    end(r, &q, 5 * SECOND);
    adopt(r, &m, 3, 40000, 6 * SECOND, 6 * SECOND); /* the client sent it again, to the other */
    assert_int_equal(take(box), 1);
    assert_true(other.is_open && other.target.mark.held_s == 2);
    end(r, &other, 7 * SECOND);
    end_adopted(r, &m, 0, 7 * SECOND);
    finish(r, box);
}

/* Marks and times of a hostile worker are bounded. */
static void reports_that_cannot_be_are_bounded(void **state) {
    struct mailbox *box = mailbox_open_waiting();
    struct registry *r = make(10);
    struct remote m;

    (void)state;
    adopt(r, &m, 1, 1 << 20, SECOND, SECOND); /* no longer than a single request may be */
    end_adopted(r, &m, INT32_MAX, SECOND);
    adopt(r, &m, 1, 1 << 20, 2 * SECOND, 2 * SECOND);
    assert_in_range(stats_of(r).used_tokens, 1, LONGEST + 2000); /* and an answer, as predicted */
    end_adopted(r, &m, INT32_MAX, 3 * SECOND);
    assert_int_equal(stats_of(r).used_tokens, LONGEST);
    adopt(r, &m, 2, 40000, 10 * SECOND, (11 + SESSION_TTL_S) * SECOND); /* from a replay */
    assert_false(m.m.turn.is_open);
    end_adopted(r, &m, 40000, (11 + SESSION_TTL_S) * SECOND);
    assert_int_equal(stats_of(r).used_tokens, LONGEST);
    for (int i = 0; i < 2; i++) {
        adopt(r, &m, 3, 40000, (11 + SESSION_TTL_S) * SECOND, (12 + SESSION_TTL_S) * SECOND);
        assert_true(m.m.turn.is_open);
        end_adopted(r, &m, 5000, (12 + SESSION_TTL_S) * SECOND);
    }
    assert_int_equal(stats_of(r).used_tokens, 5100); /* the first is gone */
    finish(r, box);
}

/* --- two loops, for the thread sanitizer ------------------------------------------------------ */

enum { STEPS = 20000, SLOTS = 24, NAMES = 12 };

struct side {
    struct registry *registry;
    uint64_t seed;
    uint32_t n_waited;
};

static void drain(struct side *s, struct mailbox *box, struct request *q, bool *has_left) {
    struct list mails, *link;

    list_init(&mails);
    mailbox_take(box, &mails);
    while ((link = list_pop_front(&mails)) != NULL) {
        struct request *a = CONTAINER_OF(mail_of(link), struct request, w.mail);

        a->is_waiting = false;
        a->is_open = a->w.is_granted;
        if (has_left[a - q] && a->is_open) end(s->registry, a, a->rq.now_us);
        if (!a->w.is_granted) registry_end_turn(s->registry, &a->w, WORKER_NONE, 0, a->rq.now_us);
        has_left[a - q] = false;
    }
}

static void *work(void *arg) {
    struct side *s = arg;
    struct mailbox *box = mailbox_open_waiting();
    struct request *q = mem_calloc(SLOTS, sizeof(*q));
    bool *has_left = mem_calloc(SLOTS, sizeof(*has_left)); /* but is owed a mail */
    uint32_t n_busy = 0;
    struct rng rng;

    rng_seed(&rng, s->seed);
    for (uint64_t step = 1; step < STEPS || n_busy; step++) {
        uint64_t now_us = step * SECOND / 4;
        struct request *mine = &q[rng_below(&rng, SLOTS)];

        drain(s, box, q, has_left);
        if (mine->is_open) {
            end(s->registry, mine, now_us);
        } else if (mine->is_waiting) {
            assert_true(registry_position(s->registry, &mine->w) >= 1);
            if (!has_left[mine - q] && rng_below(&rng, 4) == 0) {
                has_left[mine - q] = !registry_leave(s->registry, &mine->w);
                mine->is_waiting = has_left[mine - q];
                if (!mine->is_waiting) /* it may have waited for a worker */
                    registry_end_turn(s->registry, &mine->w, WORKER_NONE, 0, now_us);
            }
        } else if (step < STEPS) {
            s->n_waited += ask(s->registry, box, mine, 1 + rng_below(&rng, NAMES),
                               (uint32_t)rng_below(&rng, 9000), now_us) == ST_AGAIN;
        }
        if (step % 8 == 0) registry_walk(s->registry, now_us);
        if (step % 512 == 0) registry_check(s->registry);
        if (step % 64 == 0) sched_yield();
        n_busy = 0;
        for (int i = 0; i < SLOTS; i++)
            n_busy += q[i].is_open || q[i].is_waiting;
    }
    mem_free(has_left);
    mem_free(q);
    mailbox_close(box);
    return NULL;
}

/* What another router sends meanwhile, for the same sessions. */
static void *work_elsewhere(void *arg) {
    struct side *s = arg;
    struct remote q[4] = {0};
    struct rng rng;

    rng_seed(&rng, s->seed);
    for (uint64_t step = 1; step < STEPS; step++) {
        struct remote *m = &q[rng_below(&rng, ARRAY_LEN(q))];
        uint64_t now_us = step * SECOND / 4;

        if (m->m.ticket.load.is_open) {
            end_adopted(s->registry, m, (int64_t)rng_below(&rng, 9000), now_us);
        } else {
            adopt(s->registry, m, 1 + rng_below(&rng, NAMES), (uint32_t)rng_below(&rng, 9000),
                  now_us, now_us);
        }
        if (step % 16 == 0) sched_yield();
    }
    for (size_t i = 0; i < ARRAY_LEN(q); i++)
        if (q[i].m.ticket.load.is_open) end_adopted(s->registry, &q[i], 0, STEPS * SECOND / 4);
    return NULL;
}

static void two_loops_lose_no_turn(void **state) {
    struct registry *r = make(100);
    struct side sides[2] = {{r, support_seed(), 0}, {r, support_seed() + 1, 0}};
    struct side other = {r, support_seed() + 2, 0};
    pthread_t threads[2], control;
    struct registry_totals t;

    (void)state;
    assert_int_equal(pthread_create(&control, NULL, work_elsewhere, &other), 0);
    for (int i = 0; i < 2; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, work, &sides[i]), 0);
    for (int i = 0; i < 2; i++)
        assert_int_equal(pthread_join(threads[i], NULL), 0);
    assert_int_equal(pthread_join(control, NULL), 0);
    registry_totals(r, &t);
    assert_int_equal(t.n_open + t.n_waiting, 0);
    assert_true(sides[0].n_waited && sides[1].n_waited);
    assert_int_equal(r->models[0].n_turns, 0);
    registry_check(r);
    registry_destroy(r);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_turn_waits_for_its_session_and_time_lets_it_go),
        cmocka_unit_test(one_that_leaves_while_it_waits_is_forgotten),
        cmocka_unit_test(a_full_queue_refuses_a_session),
        cmocka_unit_test(a_worker_that_restarts_takes_the_tokens_and_not_the_sessions),
        cmocka_unit_test(a_worker_without_a_known_memory_lets_all_go),
        cmocka_unit_test(the_last_worker_that_leaves_ends_the_wait),
        cmocka_unit_test(one_session_comes_through_two_routers),
        cmocka_unit_test(reports_that_cannot_be_are_bounded),
        cmocka_unit_test(two_loops_lose_no_turn),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
