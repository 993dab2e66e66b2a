/* tests/unit/router/registry/test_registry.c - workers that come, change and go while requests are
 * open. */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>

#include "common/base/mem.h"
#include "common/base/rng.h"
#include "router/registry/registry.h"
#include "router/registry/registry_kv.h"
#include "router/registry/registry_pair.h"
#include "router/registry/registry_remote.h"
#include "router/registry/registry_route.h"
#include "router/registry/registry_view.h"
#include "router/registry/registry_workers.h"
#include "tests/support/cm.h"
#include "tests/support/registry_fixture.h"
#include "tests/support/routing_defaults.h"
#include "tests/support/support.h"

#define SECOND UINT64_C(1000000)

static struct registry *create(uint32_t max_workers) {
    struct registry_config config = {0};
    struct registry *r = NULL;

    routing_options_default(&config.routing);
    config.routing.policy = policy_find(STR("round_robin"));
    config.routing.max_workers = max_workers;
    config.routing.max_index_bytes = 1 << 20;
    assert_int_equal(registry_create(&r, &config, NULL), ST_OK);
    return r;
}

static void describe(struct registry *r, uint32_t id, const char *model, const char *generation) {
    struct wire_server_info info = {.wire = 1, .block_size = 16, .n_blocks = 500};

    snprintf(info.model, sizeof(info.model), "%s", model);
    snprintf(info.generation, sizeof(info.generation), "%s", generation);
    assert_int_equal(registry_describe(r, id, &info, false, NULL), ST_OK);
    registry_set_reason(r, id, WORKER_STARTING | WORKER_UNHEALTHY, false);
}

static uint32_t add(struct registry *r, uint32_t port, const char *model) {
    char url[64];
    uint32_t id;

    snprintf(url, sizeof(url), "http://127.0.0.1:%u", port);
    assert_int_equal(registry_add(r, url, &id, NULL), ST_OK);
    if (model) describe(r, id, model, "g1");
    return id;
}

struct open_request {
    uint64_t chain[4];
    struct route_ticket ticket;
    struct registry_target target;
};

static enum status send_at(struct registry *r, struct open_request *q, const char *model,
                           uint64_t now_us) {
    struct route_request rq = {
        .chain = q->chain, .n_blocks = 4, .prompt_bytes = 512, .now_us = now_us};

    memset(&q->ticket, 0, sizeof(q->ticket));
    for (int i = 0; i < 4; i++)
        q->chain[i] = rng_at(7, (uint64_t)i);
    return registry_route(r, str_of(model), &rq, &q->ticket, &q->target, NULL);
}

static void end_at(struct registry *r, struct open_request *q, enum registry_outcome outcome,
                   uint64_t now_us) {
    struct route_end end = {.is_aborted = outcome != OUTCOME_OK,
                            .output_tokens = 3,
                            .feedback = {-1, -1},
                            .now_us = now_us};

    registry_ended(r, &q->target, &q->ticket, &end, outcome);
}

static void fail_once(struct registry *r, uint32_t id, uint64_t now_us) {
    struct open_request q;

    do {
        assert_int_equal(send_at(r, &q, "m", now_us), ST_OK);
        end_at(r, &q, q.target.worker == id ? OUTCOME_FAILED : OUTCOME_OK, now_us);
    } while (q.target.worker != id);
}

static uint32_t reasons(struct registry *r, uint32_t id) {
    struct registry_view view;

    assert_true(registry_get(r, id, &view));
    return view.reasons;
}

static void a_worker_is_picked_once_it_is_identified(void **state) {
    struct registry *r = create(4);
    struct registry_totals totals;
    struct open_request q;
    uint32_t id = add(r, 1000, NULL);

    (void)state;
    assert_int_equal(reasons(r, id), WORKER_STARTING);
    assert_int_equal(send_at(r, &q, "m", 1), ST_UNAVAILABLE);
    describe(r, id, "m", "g1");
    assert_int_equal(reasons(r, id), 0);
    assert_int_equal(send_at(r, &q, "m", 1), ST_OK);
    assert_int_equal(ntohs(((struct sockaddr_in *)&q.target.addr)->sin_port), 1000);
    assert_string_equal(q.target.authority, "127.0.0.1:1000");
    registry_totals(r, &totals);
    assert_int_equal(totals.n_open, 1);
    end_at(r, &q, OUTCOME_OK, 2);
    assert_int_equal(send_at(r, &q, "other", 1), ST_NOT_FOUND);
    registry_destroy(r);
}

static void urls_are_checked_and_kept_whole(void **state) {
    static const char *const wrong[] = {"",
                                        "127.0.0.1:1",
                                        "http://127.0.0.1",
                                        "http://127.0.0.1:0",
                                        "http://127.0.0.1:65536",
                                        "http://127.0.0.1:1x",
                                        "http://user@127.0.0.1:1",
                                        "http://127.0.0.1:1/path",
                                        "http://127.0.0.1:1?a",
                                        "http://::1:1x",
                                        "http://:1"};
    struct registry *r = create(4);
    struct registry_view view;
    struct error err = {0};
    char url[600];
    uint32_t id;

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(wrong); i++) {
        if (registry_add(r, wrong[i], &id, NULL) != ST_INVALID) fail_msg("accepted %s", wrong[i]);
    }
    memset(url, 'a', sizeof(url));
    memcpy(url, "http://", 7);
    memcpy(url + 500, ":80", 4);
    assert_int_equal(registry_add(r, url, &id, &err), ST_INVALID);
    assert_int_equal(registry_add(r, "http://[::1]:81/", &id, NULL), ST_OK);
    assert_true(registry_get(r, id, &view));
    assert_string_equal(view.url, "http://[::1]:81");
    assert_int_equal(registry_add(r, "http://[::1]:81", &id, NULL), ST_EXISTS);
    registry_destroy(r);
}

static void an_id_is_used_again_when_nothing_of_the_old_one_is_open(void **state) {
    struct registry *r = create(2);
    struct open_request q;
    uint32_t a = add(r, 1000, "m"), b, incarnation;

    (void)state;
    assert_int_equal(send_at(r, &q, "m", 1), ST_OK);
    incarnation = q.target.incarnation;
    assert_int_equal(registry_remove(r, a), ST_OK);
    assert_int_equal(registry_remove(r, a), ST_NOT_FOUND);
    b = add(r, 1001, "m");
    assert_true(b != a);
    end_at(r, &q, OUTCOME_FAILED, 2); /* of a worker that is gone: counted for none */
    assert_false(registry_take_suspicion(r, a));
    assert_int_equal(add(r, 1002, "m"), a);
    registry_set_reason(r, b, WORKER_DISABLED, true);
    assert_int_equal(send_at(r, &q, "m", 3), ST_OK);
    assert_int_equal(q.target.worker, a);
    assert_int_not_equal(q.target.incarnation, incarnation);
    end_at(r, &q, OUTCOME_OK, 4);
    registry_destroy(r);
}

static void a_restart_clears_blocks_and_failures(void **state) {
    struct registry *r = create(2);
    struct registry_totals totals;
    struct open_request q;

    (void)state;
    add(r, 1000, "m");
    add(r, 1001, "m");
    for (int i = 0; i < 2; i++) {
        assert_int_equal(send_at(r, &q, "m", 1), ST_OK);
        registry_first_token(r, &q.target, &q.ticket, &(struct route_feedback){-1, -1}, 2);
        end_at(r, &q, OUTCOME_OK, 3);
    }
    registry_totals(r, &totals);
    assert_int_equal(totals.n_entries, 8);
    fail_once(r, 0, 4);
    assert_true(reasons(r, 0) & WORKER_EJECTED);
    describe(r, 0, "m", "g1");
    assert_true(reasons(r, 0) & WORKER_EJECTED);
    describe(r, 0, "m", "g2");
    assert_int_equal(reasons(r, 0), 0);
    registry_totals(r, &totals);
    assert_int_equal(totals.n_entries, 4);
    registry_destroy(r);
}

static void a_worker_may_come_back_with_another_model(void **state) {
    struct registry *r = create(2);
    struct open_request q;
    uint32_t id = add(r, 1000, "m");
    char name[WIRE_MODEL_MAX];
    uint32_t len;

    (void)state;
    assert_int_equal(send_at(r, &q, "m", 1), ST_OK);
    registry_set_reason(r, id, WORKER_DRAINING, true);
    describe(r, id, "n", "g2");
    assert_int_equal(reasons(r, id), WORKER_DRAINING);
    registry_set_reason(r, id, WORKER_DRAINING, false);
    end_at(r, &q, OUTCOME_OK, 2);
    assert_int_equal(send_at(r, &q, "m", 3), ST_NOT_FOUND);
    assert_int_equal(send_at(r, &q, "n", 3), ST_OK);
    end_at(r, &q, OUTCOME_OK, 4);
    assert_true(registry_model(r, 0, name, &len));
    assert_string_equal(name, "n");
    assert_false(registry_model(r, 1, name, &len));
    registry_destroy(r);
}

/* A fleet may go through any number of models, as long as it has not too many at once. */
static void models_without_workers_make_room(void **state) {
    struct registry *r = create(2);
    struct open_request q;
    struct registry_totals totals;
    char name[16];
    uint32_t id = add(r, 1001, "m0");

    (void)state;
    assert_int_equal(send_at(r, &q, "m0", SECOND), ST_OK);
    for (int i = 1; i < 3 * REGISTRY_MAX_MODELS; i++) {
        snprintf(name, sizeof(name), "m%d", i);
        describe(r, id, name, "g1");
    }
    registry_totals(r, &totals);
    assert_int_equal(totals.n_open, 1); /* what is open keeps its model */
    end_at(r, &q, OUTCOME_OK, 2 * SECOND);
    assert_int_equal(send_at(r, &q, name, SECOND), ST_OK);
    assert_int_equal(send_at(r, &(struct open_request){0}, "m1", SECOND), ST_NOT_FOUND);
    end_at(r, &q, OUTCOME_OK, 2 * SECOND);
    assert_int_equal(registry_remove(r, id), ST_OK);
    for (int i = 0; i < 3; i++) { /* and one that was removed holds nothing */
        snprintf(name, sizeof(name), "n%d", i);
        assert_int_equal(add(r, 1001, name), 0);
        assert_int_equal(send_at(r, &q, name, SECOND), ST_OK);
        end_at(r, &q, OUTCOME_OK, 2 * SECOND);
        assert_int_equal(registry_remove(r, 0), ST_OK);
    }
    registry_totals(r, &totals);
    assert_true(totals.n_open == 0 && totals.n_workers == 0);
    registry_destroy(r);
}

static void a_tried_worker_is_not_the_new_owner_of_its_id(void **state) {
    struct registry *r = create(4);
    const char *models[] = {"m0", "m1", "m2"}; /* so that each is chosen */
    uint32_t ids[3], incarnations[3];

    (void)state;
    for (uint32_t i = 0; i < 3; i++) {
        struct open_request q;

        ids[i] = add(r, 1000 + i, models[i]);
        assert_int_equal(send_at(r, &q, models[i], SECOND), ST_OK);
        assert_int_equal(q.target.worker, ids[i]);
        incarnations[i] = q.target.incarnation;
        end_at(r, &q, OUTCOME_OK, 2 * SECOND);
    }
    assert_int_equal(registry_keep_current(r, ids, incarnations, 3), 3);
    assert_int_equal(registry_remove(r, 0), ST_OK);
    assert_int_equal(registry_remove(r, 1), ST_OK);
    assert_int_equal(add(r, 2000, "m3"), 0); /* another, with the first one's id */
    assert_int_equal(registry_keep_current(r, ids, incarnations, 3), 1);
    assert_int_equal(ids[0], 2);
    assert_int_equal(registry_keep_current(r, ids, incarnations, 1), 1);
    registry_destroy(r);
}

static void the_last_ones_standing_are_not_ejected(void **state) {
    struct registry *r;

    (void)state;
    r = create(4);
    add(r, 1000, "m");
    fail_once(r, 0, 1); /* alone */
    assert_int_equal(reasons(r, 0), 0);
    add(r, 1001, "m");
    fail_once(r, 0, 2); /* one of two */
    assert_int_equal(reasons(r, 0), WORKER_EJECTED);
    fail_once(r, 1, 3);
    assert_int_equal(reasons(r, 1), 0);
    registry_destroy(r);

    r = create(4);
    add(r, 1000, "m");
    add(r, 1001, "m");
    registry_set_reason(r, 0, WORKER_UNHEALTHY, true); /* out for another reason */
    fail_once(r, 1, 1);
    assert_int_equal(reasons(r, 1), 0);
    registry_destroy(r);
}

static void an_ejected_one_is_tried_with_one_request(void **state) {
    struct registry *r = create(2);
    struct open_request trial, q;

    (void)state;
    add(r, 1000, "m");
    add(r, 1001, "m");
    fail_once(r, 0, SECOND);
    registry_tick(r, SECOND + BREAKER_MIN_US - 1);
    assert_int_equal(reasons(r, 0), WORKER_EJECTED);
    registry_tick(r, SECOND + BREAKER_MIN_US);
    assert_int_equal(reasons(r, 0), 0);
    do {
        assert_int_equal(send_at(r, &trial, "m", 3 * SECOND), ST_OK);
        if (trial.target.worker != 0) end_at(r, &trial, OUTCOME_OK, 3 * SECOND);
    } while (trial.target.worker != 0);
    for (int i = 0; i < 5; i++) {
        assert_int_equal(send_at(r, &q, "m", 3 * SECOND), ST_OK);
        assert_int_equal(q.target.worker, 1);
        end_at(r, &q, OUTCOME_OK, 3 * SECOND);
    }
    registry_first_token(r, &trial.target, &trial.ticket, NULL, 3 * SECOND); /* only predicted */
    assert_int_equal(reasons(r, 0), WORKER_EJECTED);
    registry_first_token(r, &trial.target, &trial.ticket, &(struct route_feedback){-1, -1},
                         3 * SECOND);
    assert_int_equal(reasons(r, 0), 0); /* long before the end of a long answer */
    end_at(r, &trial, OUTCOME_OK, 4 * SECOND);
    registry_destroy(r);
}

/* The n-th request of worker `id` ends so; those of others well. */
static void end_one_of(struct registry *r, uint32_t id, enum registry_outcome outcome,
                       uint64_t now_us) {
    struct open_request q;

    do {
        assert_int_equal(send_at(r, &q, "m", now_us), ST_OK);
        end_at(r, &q, q.target.worker == id ? outcome : OUTCOME_OK, now_us);
    } while (q.target.worker != id);
}

static void errors_that_others_do_not_have_eject(void **state) {
    static const enum registry_outcome bad[] = {OUTCOME_ERROR, OUTCOME_EMPTY, OUTCOME_SPOILT};

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        struct registry *r = create(4);
        struct registry_view view;
        struct registry_breaker_change news;

        for (uint32_t w = 0; w < 4; w++)
            add(r, 1000 + w, "m");
        for (int n = 1; n < OUTCOMES_IN_A_ROW; n++)
            end_one_of(r, 1, bad[i], SECOND);
        assert_int_equal(reasons(r, 1), 0);
        assert_false(registry_take_breaker_change(r, 1, &news));
        end_one_of(r, 1, bad[i], SECOND);
        assert_int_equal(reasons(r, 1), WORKER_EJECTED);
        assert_true(registry_take_breaker_change(r, 1, &news));
        assert_true(news.was_ejected && !news.has_returned);
        assert_int_equal(news.cause, bad[i] == OUTCOME_ERROR ? BREAKER_ERRORS : BREAKER_EMPTY);
        assert_int_equal(news.latest.n_bad, OUTCOMES_IN_A_ROW);
        assert_true(registry_get(r, 1, &view));
        assert_int_equal(view.n_ejected[news.cause], 1);
        registry_probed(r, 1, true); /* a probe does not count as an answer */
        assert_int_equal(reasons(r, 1), WORKER_EJECTED);
        registry_tick(r, SECOND + BREAKER_MIN_US);
        end_one_of(r, 1, bad[i], 2 * SECOND); /* the trial: no row of them is needed */
        assert_int_equal(reasons(r, 1), WORKER_EJECTED);
        registry_tick(r, 5 * SECOND);
        end_one_of(r, 1, OUTCOME_REFUSED, 5 * SECOND); /* neither: the next one tries */
        assert_true(registry_get(r, 1, &view));
        assert_int_equal(view.breaker, BREAKER_HALF_OPEN);
        end_one_of(r, 1, OUTCOME_OK, 5 * SECOND);
        assert_true(registry_get(r, 1, &view));
        assert_int_equal(view.breaker, BREAKER_CLOSED);
        assert_true(registry_take_breaker_change(r, 1, &news));
        assert_true(news.has_returned);
        registry_destroy(r);
    }
}

static void errors_that_all_have_eject_none(void **state) {
    struct registry *r = create(4);

    (void)state;
    for (uint32_t w = 0; w < 4; w++)
        add(r, 1000 + w, "m");
    for (int i = 0; i < 100; i++) {
        struct open_request q;

        assert_int_equal(send_at(r, &q, "m", SECOND), ST_OK);
        end_at(r, &q, OUTCOME_ERROR, SECOND);
    }
    for (uint32_t w = 0; w < 4; w++)
        assert_int_equal(reasons(r, w), 0);
    registry_destroy(r);
}

static void pardoned_worker_is_back_at_once(void **state) {
    struct registry *r = create(4);
    struct registry_accused accused = {.worker = 2};
    struct registry_view view;

    (void)state;
    for (uint32_t w = 0; w < 4; w++)
        add(r, 1000 + w, "m");
    for (int n = 0; n < OUTCOMES_IN_A_ROW; n++)
        end_one_of(r, 2, OUTCOME_ERROR, SECOND);
    assert_int_equal(reasons(r, 2), WORKER_EJECTED);
    assert_true(registry_get(r, 2, &view));
    accused.incarnation = view.incarnation + 1;
    registry_pardon(r, &accused, 1, SECOND); /* another one */
    assert_int_equal(reasons(r, 2), WORKER_EJECTED);
    accused.incarnation = view.incarnation;
    registry_pardon(r, &accused, 1, SECOND);
    assert_int_equal(reasons(r, 2), 0);
    registry_destroy(r);
}

/* Nothing listens there: leaving it in rotation serves no request, be it the last one. */
static void unreachable_workers_are_all_ejected_until_a_probe_is_answered(void **state) {
    struct registry *r = create(2);
    struct open_request q;

    (void)state;
    add(r, 1000, "m");
    add(r, 1001, "m");
    assert_false(registry_any_down(r, 1));
    for (int i = 0; i < 2; i++) {
        assert_int_equal(send_at(r, &q, "m", SECOND), ST_OK);
        end_at(r, &q, OUTCOME_UNREACHED, SECOND);
    }
    assert_false(registry_any_down(r, 3));
    assert_true(registry_any_down(r, 1) && registry_is_down(r, 0) && registry_is_down(r, 1));
    assert_int_equal(send_at(r, &q, "m", SECOND), ST_UNAVAILABLE);
    registry_probed(r, 1, false);
    assert_int_equal(reasons(r, 1), 0);
    assert_false(registry_any_down(r, 1));
    registry_destroy(r);
}

/* A trial whose first token came may still break: that was what it was ejected for. */
static void first_token_does_not_end_the_trial_of_one_that_broke_later(void **state) {
    struct registry *r = create(2);
    struct open_request trial;

    (void)state;
    add(r, 1000, "m");
    add(r, 1001, "m");
    end_one_of(r, 0, OUTCOME_BROKEN, SECOND);
    assert_int_equal(reasons(r, 0), WORKER_EJECTED);
    registry_tick(r, SECOND + BREAKER_MIN_US);
    do {
        assert_int_equal(send_at(r, &trial, "m", 3 * SECOND), ST_OK);
        if (trial.target.worker != 0) end_at(r, &trial, OUTCOME_OK, 3 * SECOND);
    } while (trial.target.worker != 0);
    registry_first_token(r, &trial.target, &trial.ticket, &(struct route_feedback){-1, -1},
                         3 * SECOND);
    assert_int_equal(reasons(r, 0), WORKER_EJECTED);
    end_at(r, &trial, OUTCOME_OK, 4 * SECOND);
    assert_int_equal(reasons(r, 0), 0);
    registry_destroy(r);
}

static void a_suspect_waits_only_if_others_can_serve(void **state) {
    struct registry *r = create(2);

    (void)state;
    add(r, 1000, "m");
    fail_once(r, 0, 1);
    assert_true(registry_take_suspicion(r, 0));
    assert_false(registry_take_suspicion(r, 0));
    assert_int_equal(reasons(r, 0), 0);
    add(r, 1001, "m");
    fail_once(r, 1, 2);
    assert_true(registry_take_suspicion(r, 1));
    assert_true(reasons(r, 1) & WORKER_STARTING);
    registry_destroy(r);
}

static void random_workers_keep_the_sum_of_loads(void **state) {
    static const char *const models[] = {"m", "n", "o"};
    struct registry *r = create(6);
    static struct open_request open[64];
    bool is_open[64] = {false}, is_there[6] = {false};
    uint32_t n_open = 0, port = 2000, id;
    uint64_t now_us = 1;
    struct rng rng;

    (void)state;
    rng_seed(&rng, support_seed());
    for (int step = 0; step < 60000; step++) {
        size_t i = rng_below(&rng, ARRAY_LEN(open));
        uint32_t w = (uint32_t)rng_below(&rng, 6), sum = 0;
        struct registry_totals totals;
        struct registry_view view;
        char url[64], generation[8];

        now_us += rng_below(&rng, 20000);
        switch (rng_below(&rng, 12)) {
        case 0:
            snprintf(url, sizeof(url), "http://127.0.0.1:%u", port++ % 60000 + 1000);
            if (registry_add(r, url, &id, NULL) == ST_OK) is_there[id] = true;
            break;
        case 1:
            if (rng_below(&rng, 4) == 0 && registry_remove(r, w) == ST_OK) is_there[w] = false;
            break;
        case 2:
            snprintf(generation, sizeof(generation), "g%u", (unsigned)rng_below(&rng, 3));
            if (is_there[w]) describe(r, w, models[rng_below(&rng, 3)], generation);
            break;
        case 3:
            registry_set_reason(r, w, 1u << (1 + rng_below(&rng, 5)), rng_below(&rng, 2));
            break;
        case 4: registry_tick(r, now_us); break;
        case 5: (void)registry_take_suspicion(r, w); break;
        case 6:
            if (is_open[i])
                registry_first_token(r, &open[i].target, &open[i].ticket,
                                     &(struct route_feedback){100, 50}, now_us);
            break;
        default:
            if (is_open[i]) {
                end_at(r, &open[i], (enum registry_outcome)rng_below(&rng, 3), now_us);
                is_open[i] = false;
                n_open--;
            } else if (send_at(r, &open[i], models[rng_below(&rng, 3)], now_us) == ST_OK) {
                assert_true(is_there[open[i].target.worker]);
                is_open[i] = true;
                n_open++;
            }
        }
        registry_totals(r, &totals);
        assert_int_equal(totals.n_open, n_open);
        for (id = 0; id < registry_n_ids(r); id++) {
            assert_int_equal(registry_get(r, id, &view), is_there[id]);
            if (is_there[id]) sum += view.in_flight;
        }
        assert_true(sum <= n_open); /* the rest is on workers that have gone */
    }
    for (size_t i = 0; i < ARRAY_LEN(open); i++)
        if (is_open[i]) end_at(r, &open[i], OUTCOME_UNKNOWN, now_us);
    registry_destroy(r);
}

static uint32_t add_engine_of(struct registry *r, uint32_t port, uint64_t n_blocks) {
    struct wire_server_info info = {.wire = 1, .block_size = 16, .n_blocks = n_blocks};
    uint32_t id = add(r, port, NULL);

    snprintf(info.model, sizeof(info.model), "m");
    snprintf(info.backend, sizeof(info.backend), "vllm");
    assert_int_equal(registry_describe(r, id, &info, true, NULL), ST_OK);
    registry_set_reason(r, id, WORKER_STARTING | WORKER_UNHEALTHY, false);
    return id;
}

static uint32_t add_engine(struct registry *r, uint32_t port) {
    return add_engine_of(r, port, 1000);
}

static struct registry_target target_of(struct registry *r, uint32_t id) {
    struct registry_view view;

    assert_true(registry_get(r, id, &view));
    return (struct registry_target){.worker = id, .incarnation = view.incarnation};
}

/* Until its worker is another process, or another worker. */
static void engines_are_used_in_turn(void **state) {
    struct worker_engines two = {2, {{"a", 0}, {"b", 3}}}, none = {0};
    struct registry_report report = {.generation = "g2"};
    struct registry *r = create(8);
    uint32_t id = add_engine(r, 8000), n = 0;
    struct registry_target at = target_of(r, id), old = at;
    struct worker_engine e;
    (void)state;

    assert_false(registry_next_engine(r, &at, &e, &n));
    registry_set_engines(r, id, at.incarnation + 1, &two);
    assert_false(registry_next_engine(r, &at, &e, &n));
    for (uint32_t i = 0; i < 4; i++) {
        registry_set_engines(r, id, at.incarnation, &two); /* as in each round */
        assert_true(registry_next_engine(r, &at, &e, &n));
        assert_int_equal(n, 2);
        assert_string_equal(e.id, i % 2 ? "b" : "a");
        assert_int_equal(e.rank, i % 2 ? 3 : 0);
    }
    registry_report(r, id, &report);
    assert_false(registry_next_engine(r, &at, &e, &n));
    registry_set_engines(r, id, at.incarnation, &two);
    registry_set_engines(r, id, at.incarnation, &none);
    assert_false(registry_next_engine(r, &at, &e, &n));
    registry_set_engines(r, id, at.incarnation, &two);
    registry_replace(r, id);
    at = target_of(r, id);
    assert_false(registry_next_engine(r, &old, &e, &n));
    assert_false(registry_next_engine(r, &at, &e, &n));
    registry_check(r);
    registry_destroy(r);
}

/* The rest waits for the next note, as when a worker reports what cannot be. */
static void one_note_enters_so_much_at_most(void **state) {
    const uint32_t most = REGISTRY_KV_TURNS * ROUTING_FILL_MAX;
    struct registry *r = create(8);
    uint32_t id = add_engine_of(r, 8000, UINT64_C(1) << 24);
    struct registry_kv kv = {.is_followed = true, .stored_tokens = 1e8};
    struct registry_engine e;
    struct registry_view view;
    (void)state;

    assert_true(registry_engine(r, id, &e));
    for (uint32_t n = 1; n <= 3; n++) {
        registry_kv_note(r, id, e.incarnation, &kv);
        assert_true(registry_get(r, id, &view));
        assert_int_equal(view.routing.n_held_blocks, n * most);
    }
    registry_check(r);
    registry_destroy(r);
}

/* Until the worker is another one, or none: what is reported then is of its predecessor. */
static void counts_of_kv_events_are_shown_and_set_the_capacity(void **state) {
    struct registry *r = create(8);
    uint32_t id = add_engine(r, 8000), ours = add(r, 8001, "m");
    struct registry_kv kv = {.is_followed = true, .n_blocks = {700}, .capacity_tokens = 12000};
    struct registry_engine e;
    struct registry_view view;
    (void)state;

    assert_true(registry_engine(r, ours, &e) && e.kind == WORKER_OURS);
    assert_false(registry_engine(r, 7, &e));
    assert_true(registry_engine(r, id, &e));
    assert_true(e.kind == WORKER_VLLM && strcmp(e.url, "http://127.0.0.1:8000") == 0);
    registry_kv_note(r, id, e.incarnation, &kv);
    assert_true(registry_get(r, id, &view) && view.kv.n_blocks[0] == 700);
    assert_float_equal(view.routing.capacity_factor, 12000 / 16000.0, 1e-9);
    registry_kv_note(r, id, e.incarnation + 1, &(struct registry_kv){0});
    assert_true(registry_get(r, id, &view) && view.kv.n_blocks[0] == 700);
    assert_true(registry_get(r, ours, &view));
    registry_kv_note(r, ours, view.incarnation, &kv); /* which declares its size */
    assert_true(registry_get(r, ours, &view) && view.kv.n_blocks[0] == 700);
    assert_float_equal(view.routing.capacity_factor, 1, 1e-9);
    kv.stored_tokens = 6400; /* of others: entered in several turns */
    registry_kv_note(r, id, e.incarnation, &kv);
    assert_true(registry_get(r, id, &view));
    assert_int_equal(view.routing.n_held_blocks, 6400 * 4 / 256);
    registry_replace(r, id);
    assert_true(registry_get(r, id, &view) && !view.kv.is_followed);
    registry_check(r);
    registry_destroy(r);
}

static void a_cache_that_events_clear_leaves_the_index(void **state) {
    struct registry *r = create(8);
    uint32_t id = add_engine(r, 8000);
    struct open_request q;
    struct registry_engine e;
    struct registry_view view;
    (void)state;

    assert_true(registry_engine(r, id, &e));
    assert_int_equal(send_at(r, &q, "m", 1000), ST_OK);
    assert_true(registry_get(r, id, &view) && view.routing.n_held_blocks == 4);
    registry_kv_cleared(r, id, e.incarnation + 1); /* of another worker */
    assert_true(registry_get(r, id, &view) && view.routing.n_held_blocks == 4);
    registry_set_followed(r, id, e.incarnation, true); /* its request events have reported it */
    registry_kv_cleared(r, id, e.incarnation);
    assert_true(registry_get(r, id, &view) && view.routing.n_held_blocks == 4);
    registry_set_followed(r, id, e.incarnation, false);
    registry_kv_cleared(r, id, e.incarnation);
    assert_true(registry_get(r, id, &view) && view.routing.n_held_blocks == 0);
    registry_check(r);
    end_at(r, &q, OUTCOME_OK, 2000);
    registry_check(r);
    registry_destroy(r);
}

static void responses_are_found_by_their_mark(void **state) {
    struct registry *r = create(4);
    struct wire_server_info info = {.wire = 1, .model = "m", .block_size = 16, .n_blocks = 500};
    uint32_t a = add(r, 7001, "m"), b = add(r, 7002, "m");
    (void)state;

    assert_int_equal(registry_find_mark(r, STR("0123456789ab")), WORKER_NONE);
    assert_int_equal(registry_find_mark(r, STR_NULL), WORKER_NONE); /* nor those without one */
    strcpy(info.response_mark, "0123456789ab");
    assert_int_equal(registry_describe(r, b, &info, false, NULL), ST_OK);
    strcpy(info.response_mark, "ba9876543210");
    assert_int_equal(registry_describe(r, a, &info, false, NULL), ST_OK);
    assert_int_equal(registry_find_mark(r, STR("0123456789ab")), b);
    assert_int_equal(registry_find_mark(r, STR("ba9876543210")), a);
    registry_replace(r, b); /* another process */
    assert_int_equal(registry_find_mark(r, STR("0123456789ab")), WORKER_NONE);
    registry_destroy(r);
}

/* A model may go while a light request, which no worker counts, is open. */
static void a_light_request_is_open_until_it_ends(void **state) {
    struct registry *r = create(2);
    uint32_t id = add(r, 7001, "m");
    struct open_request q = {0};
    struct route_request rq = {.is_light = true};
    struct registry_totals s;
    (void)state;

    assert_int_equal(registry_route(r, STR("m"), &rq, &q.ticket, &q.target, NULL), ST_OK);
    assert_int_equal(registry_remove(r, id), ST_OK);
    add(r, 7002, "other");
    registry_totals(r, &s);
    assert_int_equal(s.n_open, 1);
    registry_check(r);
    end_at(r, &q, OUTCOME_OK, SECOND);
    registry_check(r);
    registry_totals(r, &s);
    assert_int_equal(s.n_open, 0);
    registry_destroy(r);
}

static void end_light_at(struct registry *r, uint32_t id, uint64_t now_us) {
    struct open_request q;

    do {
        struct route_request rq = {.is_light = true, .now_us = now_us};

        q = (struct open_request){0};
        assert_int_equal(registry_route(r, STR("m"), &rq, &q.ticket, &q.target, NULL), ST_OK);
        end_at(r, &q, OUTCOME_OK, now_us);
    } while (q.target.worker != id);
}

/* A tokenizer's answers say nothing about the device. */
static void light_answers_hide_no_errors(void **state) {
    struct registry *r = create(4);
    struct registry_view view;
    (void)state;

    for (uint32_t w = 0; w < 4; w++)
        add(r, 1000 + w, "m");
    for (int n = 0; n < OUTCOMES_IN_A_ROW; n++) {
        end_light_at(r, 1, SECOND);
        assert_int_equal(reasons(r, 1), 0);
        end_one_of(r, 1, OUTCOME_ERROR, SECOND);
    }
    assert_int_equal(reasons(r, 1), WORKER_EJECTED);
    registry_tick(r, SECOND + BREAKER_MIN_US);
    end_light_at(r, 1, 2 * SECOND); /* no trial */
    assert_true(registry_get(r, 1, &view));
    assert_int_equal(view.breaker, BREAKER_HALF_OPEN);
    registry_check(r);
    registry_destroy(r);
}

static enum status route_stored(struct registry *r, struct open_request *q, struct error *err) {
    *q = (struct open_request){0};
    return registry_route_stored(r, STR("0123456789ab"), SECOND, &q->ticket, &q->target, err);
}

/* Whatever the worker has to do, and as long as it serves at all. */
static void a_stored_response_is_read_where_it_is(void **state) {
    struct registry *r = create(2);
    struct wire_server_info info = {.wire = 1, .model = "m", .block_size = 16, .n_blocks = 500};
    struct open_request q;
    struct error err = {0};
    struct registry_totals s;
    uint32_t id;
    (void)state;

    add(r, 7001, "m");
    id = add(r, 7002, "m");
    assert_int_equal(route_stored(r, &q, &err), ST_NOT_FOUND);
    assert_int_equal(registry_route_stored(r, STR_NULL, SECOND, &q.ticket, &q.target, &err),
                     ST_NOT_FOUND);
    strcpy(info.response_mark, "0123456789ab");
    assert_int_equal(registry_describe(r, id, &info, false, NULL), ST_OK);
    for (int draining = 0; draining < 2; draining++) {
        registry_set_draining(r, id, DRAIN_OPERATOR, draining);
        assert_int_equal(route_stored(r, &q, &err), ST_OK);
        assert_int_equal(q.target.worker, id);
        registry_totals(r, &s);
        assert_int_equal(s.n_open, 1);
        registry_check(r);
        end_at(r, &q, OUTCOME_OK, SECOND);
    }
    registry_set_reason(r, id, WORKER_UNHEALTHY, true);
    assert_int_equal(route_stored(r, &q, &err), ST_UNAVAILABLE);
    assert_non_null(strstr(err.message, "out of service"));
    registry_totals(r, &s);
    assert_int_equal(s.n_open, 0);
    registry_destroy(r);
}

static void impossible_counts_of_tokens_are_none(void **state) {
    static const struct {
        uint32_t max_model_len;
        int64_t prompt, cached, want_prompt, want_cached;
    } rows[] = {{100, 100, 100, 100, 100}, {100, 101, 0, -1, -1},    {100, 50, 51, -1, -1},
                {100, -1, 7, -1, 7},       {100, 7, -1, 7, -1},      {0, 1 << 20, 0, 1 << 20, 0},
                {0, INT64_MAX, 0, -1, -1}, {0, 5, INT64_MAX, -1, -1}};

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        struct registry_target target = {.max_model_len = rows[i].max_model_len};
        struct route_feedback f = {.prompt_tokens = rows[i].prompt,
                                   .cached_tokens = rows[i].cached};

        f = registry_bound_usage(&target, f);
        assert_int_equal(f.prompt_tokens, rows[i].want_prompt);
        assert_int_equal(f.cached_tokens, rows[i].want_cached);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(impossible_counts_of_tokens_are_none),
        cmocka_unit_test(a_worker_is_picked_once_it_is_identified),
        cmocka_unit_test(responses_are_found_by_their_mark),
        cmocka_unit_test(a_light_request_is_open_until_it_ends),
        cmocka_unit_test(light_answers_hide_no_errors),
        cmocka_unit_test(a_stored_response_is_read_where_it_is),
        cmocka_unit_test(urls_are_checked_and_kept_whole),
        cmocka_unit_test(an_id_is_used_again_when_nothing_of_the_old_one_is_open),
        cmocka_unit_test(a_restart_clears_blocks_and_failures),
        cmocka_unit_test(a_worker_may_come_back_with_another_model),
        cmocka_unit_test(models_without_workers_make_room),
        cmocka_unit_test(a_tried_worker_is_not_the_new_owner_of_its_id),
        cmocka_unit_test(the_last_ones_standing_are_not_ejected),
        cmocka_unit_test(engines_are_used_in_turn),
        cmocka_unit_test(one_note_enters_so_much_at_most),
        cmocka_unit_test(counts_of_kv_events_are_shown_and_set_the_capacity),
        cmocka_unit_test(a_cache_that_events_clear_leaves_the_index),
        cmocka_unit_test(an_ejected_one_is_tried_with_one_request),
        cmocka_unit_test(errors_that_others_do_not_have_eject),
        cmocka_unit_test(errors_that_all_have_eject_none),
        cmocka_unit_test(pardoned_worker_is_back_at_once),
        cmocka_unit_test(unreachable_workers_are_all_ejected_until_a_probe_is_answered),
        cmocka_unit_test(first_token_does_not_end_the_trial_of_one_that_broke_later),
        cmocka_unit_test(a_suspect_waits_only_if_others_can_serve),
        cmocka_unit_test(random_workers_keep_the_sum_of_loads),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
