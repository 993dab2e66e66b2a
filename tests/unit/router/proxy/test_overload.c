/* tests/unit/router/proxy/test_overload.c - goodput at twice the load that the fleet can take.
 *
 * Registry, routing and admission as they are in the router, before workers that are a few lines of
 * arithmetic, in virtual time: requests come as they like, wait or are refused, and are served.
 * Each worker computes BATCH requests at once and queues what it is sent beyond. Goodput counts
 * what had its first token within the SLO. Nothing here depends on the machine. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "common/base/heap.h"
#include "common/base/mem.h"
#include "common/base/rng.h"
#include "common/net/mailbox.h"
#include "router/registry/registry.h"
#include "router/registry/registry_route.h"
#include "router/registry/registry_workers.h"
#include "tests/support/cm.h"
#include "tests/support/registry_fixture.h"
#include "tests/support/routing_defaults.h"
#include "tests/support/support.h"

enum { WORKERS = 4, BATCH = 8, TENANTS = 3, REQUESTS = 8000, BLOCKS = 64, SHARED = 56 };

#define PREFILL_US  20000.0  /* of each request, whatever else runs */
#define DECODE_US   400000.0 /* mean, exponential */
#define CAPACITY    (WORKERS * BATCH / ((PREFILL_US + DECODE_US) * 1e-6)) /* a second */
#define BLOCK_BYTES 128

struct request {
    struct registry_waiter w;
    struct route_request rq;
    struct route_ticket ticket;
    struct registry_target target;
    struct heap_link event; /* its next one: arrival, end, or its queue timeout */
    uint64_t at_us, due_us, first_us;
    uint64_t chain[BLOCKS];
    double decode_us;
    struct list in_worker; /* while its worker has no place in the batch */
    enum { COMING, WAITING, RUNNING, DONE } state;
};

struct fixture {
    struct registry *registry;
    struct mailbox *box;
    struct heap events;
    struct list queued[WORKERS]; /* inside the workers */
    uint32_t n_running[WORKERS];
    uint64_t prefill_free_us[WORKERS];
    uint64_t slo_us, timeout_us;
    bool has_prefixes; /* what a prompt costs depends on where it goes */
    double cached_tokens, prompt_tokens;
    uint32_t n_good, n_late, n_refused, n_gave_up;
};

static bool comes_before(const struct heap_link *a, const struct heap_link *b) {
    return HEAP_ENTRY_CONST(a, struct request, event)->at_us <
           HEAP_ENTRY_CONST(b, struct request, event)->at_us;
}

static struct registry *make_registry(uint32_t queue_size, uint64_t timeout_us) {
    struct registry_config config = {0};
    struct wire_server_info info = {.wire = 1,
                                    .model = "m",
                                    .block_size = 16,
                                    .n_blocks = 5000,
                                    .max_num_seqs = BATCH,
                                    .prefill_tokens_per_s = 1e4};
    struct registry *r = NULL;
    char url[64];
    uint32_t id;

    routing_options_default(&config.routing);
    config.routing.max_index_bytes = 1 << 20;
    config.routing.prefix_block_bytes = BLOCK_BYTES;
    config.routing.max_workers = WORKERS;
    config.hold = (struct hold_options){.queue_size = queue_size, .max_wait_us = timeout_us};
    assert_int_equal(registry_create(&r, &config, NULL), ST_OK);
    for (uint32_t i = 0; i < WORKERS; i++) {
        snprintf(url, sizeof(url), "http://127.0.0.1:%u", 1000 + i);
        assert_int_equal(registry_add(r, url, &id, NULL), ST_OK);
        snprintf(info.generation, sizeof(info.generation), "g%u", i);
        assert_int_equal(registry_describe(r, id, &info, false, NULL), ST_OK);
        registry_set_reason(r, id, WORKER_STARTING, false);
    }
    return r;
}

/* --- the workers ------------------------------------------------------------------------------ */

static void run(struct fixture *fixture, struct request *q, uint64_t now_us) {
    fixture->n_running[q->target.worker]++;
    q->first_us = now_us + (uint64_t)PREFILL_US;
    if (fixture->has_prefixes) { /* one prefill after the other */
        uint64_t *free_us = &fixture->prefill_free_us[q->target.worker];

        q->first_us = *free_us = MAX(*free_us, now_us) + (uint64_t)(q->ticket.load.work_s * 1e6);
        fixture->cached_tokens += q->ticket.cached_tokens;
        fixture->prompt_tokens += q->ticket.prompt_tokens;
    }
    q->at_us = q->first_us + (uint64_t)q->decode_us;
    heap_push(&fixture->events, &q->event);
}

static void dispatch(struct fixture *fixture, struct request *q, uint64_t now_us) {
    uint32_t w = q->target.worker;

    q->state = RUNNING;
    if (heap_is_linked(&q->event)) heap_remove(&fixture->events, &q->event);
    if (fixture->n_running[w] < BATCH) {
        run(fixture, q, now_us);
    } else {
        list_push_back(&fixture->queued[w], &q->in_worker);
    }
}

/* --- the router ------------------------------------------------------------------------------- */

static void take_grants(struct fixture *fixture, uint64_t now_us) {
    struct list mails, *link;

    list_init(&mails);
    mailbox_take(fixture->box, &mails);
    while ((link = list_pop_front(&mails)) != NULL) {
        struct request *q = CONTAINER_OF(mail_of(link), struct request, w.mail);

        assert_int_equal(q->state, WAITING);
        if (q->w.is_granted) {
            dispatch(fixture, q, now_us);
        } else {
            heap_remove(&fixture->events, &q->event);
            q->state = DONE;
            fixture->n_refused++;
        }
    }
}

static void arrive(struct fixture *fixture, struct request *q) {
    uint64_t now_us = q->due_us;
    enum status st;

    q->rq = (struct route_request){.chain = q->chain,
                                   .n_blocks = fixture->has_prefixes ? BLOCKS : 1,
                                   .prompt_bytes = BLOCKS * BLOCK_BYTES,
                                   .now_us = now_us};
    q->w.box = fixture->box;
    st = registry_enter(fixture->registry, STR_NULL, &q->rq, &q->ticket, &q->target, &q->w, NULL);
    if (st == ST_OK) {
        dispatch(fixture, q, now_us);
    } else if (st == ST_AGAIN) {
        q->state = WAITING;
        q->at_us = now_us + fixture->timeout_us;
        heap_push(&fixture->events, &q->event);
    } else {
        assert_int_equal(st, ST_BUSY);
        q->state = DONE;
        fixture->n_refused++;
    }
}

static void give_up(struct fixture *fixture, struct request *q) {
    assert_true(registry_leave(fixture->registry, &q->w));
    q->state = DONE;
    fixture->n_gave_up++;
}

static void finish(struct fixture *fixture, struct request *q) {
    uint32_t w = q->target.worker;
    struct route_end end = {.output_tokens = 20, .feedback = {-1, -1}, .now_us = q->at_us};
    struct list *next;

    q->state = DONE;
    if (q->first_us - q->due_us <= fixture->slo_us) {
        fixture->n_good++;
    } else {
        fixture->n_late++;
    }
    fixture->n_running[w]--;
    next = list_pop_front(&fixture->queued[w]);
    if (next) run(fixture, LIST_ENTRY(next, struct request, in_worker), q->at_us);
    registry_ended(fixture->registry, &q->target, &q->ticket, &end, OUTCOME_OK);
}

enum { N_FAMILIES = 64 };

/* Offers `load` times what the fleet can take; good answers per second of offered time. */
static double goodput_of(struct fixture *fixture, bool has_prefixes, double load,
                         uint32_t queue_size, uint64_t timeout_us, uint64_t slo_us) {
    struct request *all = mem_calloc(REQUESTS, sizeof(*all));
    struct heap_link *link;
    uint64_t now_us = 1;
    struct rng rng;

    memset(fixture, 0, sizeof(*fixture));
    fixture->has_prefixes = has_prefixes;
    fixture->slo_us = slo_us;
    fixture->timeout_us = timeout_us;
    fixture->registry = make_registry(queue_size, timeout_us);
    fixture->box = mailbox_open_waiting();
    heap_init(&fixture->events, comes_before);
    for (int w = 0; w < WORKERS; w++)
        list_init(&fixture->queued[w]);
    rng_seed(&rng, support_seed());
    for (uint32_t i = 0; i < REQUESTS; i++) {
        now_us += 1 + (uint64_t)(-log(1 - rng_f64(&rng)) / (CAPACITY * load) * 1e6);
        all[i].at_us = all[i].due_us = now_us;
        all[i].decode_us = -log(1 - rng_f64(&rng)) * DECODE_US;
        for (uint64_t b = 0, family = rng_below(&rng, N_FAMILIES); b < BLOCKS; b++)
            all[i].chain[b] = has_prefixes && b < SHARED ? rng_at(family, b) : rng_at(i + 1000, b);
        all[i].w.held.tenant = rng_below(&rng, TENANTS);
        heap_push(&fixture->events, &all[i].event);
    }
    while ((link = heap_pop(&fixture->events)) != NULL) {
        struct request *q = HEAP_ENTRY(link, struct request, event);

        switch (q->state) {
        case COMING: arrive(fixture, q); break;
        case WAITING: give_up(fixture, q); break;
        case RUNNING: finish(fixture, q); break;
        case DONE: fail_msg("an event after the end");
        }
        take_grants(fixture, q->at_us);
    }
    assert_int_equal(fixture->n_good + fixture->n_late + fixture->n_refused + fixture->n_gave_up,
                     REQUESTS);
    registry_destroy(fixture->registry);
    mailbox_close(fixture->box);
    heap_fini(&fixture->events);
    mem_free(all);
    return fixture->n_good / ((double)now_us * 1e-6);
}

static double goodput(struct fixture *fixture, double load, uint32_t queue_size,
                      uint64_t timeout_us, uint64_t slo_us) {
    return goodput_of(fixture, false, load, queue_size, timeout_us, slo_us);
}

static double peak(uint32_t queue_size, uint64_t timeout_us, uint64_t slo_us) {
    struct fixture fixture;
    double best = 0;

    for (double load = 0.7; load < 1.15; load += 0.1)
        best = fmax(best, goodput(&fixture, load, queue_size, timeout_us, slo_us));
    return best;
}

static void twice_the_load_keeps_the_goodput(void **state) {
    static const struct {
        uint32_t queue_size;
        uint64_t timeout_us, slo_us;
    } cases[] = {
        {100, 1000000, 2000000},   /* the default size; clients that wait two seconds */
        {100, 60000000, 2000000},  /* all defaults: the size bounds the wait */
        {10000, 1000000, 2000000}, /* a queue without bound in practice: foresight bounds it */
        {100, 300000, 600000},
    };

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        double best = peak(cases[i].queue_size, cases[i].timeout_us, cases[i].slo_us);
        struct fixture fixture;

        for (double load = 1.5; load <= 3; load += 0.5) {
            double kept =
                goodput(&fixture, load, cases[i].queue_size, cases[i].timeout_us, cases[i].slo_us);

            print_message(
                "queue %u, queue timeout %.1f s, SLO %.1f s, load %.1f: %.1f%% of the peak "
                "%.1f/s; late %u, refused %u, gave up %u\n",
                cases[i].queue_size, (double)cases[i].timeout_us * 1e-6,
                (double)cases[i].slo_us * 1e-6, load, 100 * kept / best, best, fixture.n_late,
                fixture.n_refused, fixture.n_gave_up);
            assert_true(kept >= 0.95 * best);
        }
    }
}

/* Sixty-four openings: a worker can hold less than half of them. Sent to whichever worker is free
 * first, most would be computed again. */
static void a_full_fleet_keeps_its_hits(void **state) {
    struct fixture fixture;
    double best = 0, at = 0, kept, share = 0;

    (void)state;
    for (double load = 0.4; load < 1.25; load += 0.1) {
        double now = goodput_of(&fixture, true, load, 100, 1000000, 2000000);

        print_message("load %.1f: %.1f/s, %.1f%% cached\n", load, now,
                      100 * fixture.cached_tokens / fixture.prompt_tokens);
        if (now > best) {
            best = now;
            at = load;
            share = fixture.cached_tokens / fixture.prompt_tokens;
        }
    }
    kept = goodput_of(&fixture, true, 2 * at, 100, 1000000, 2000000);
    print_message("twice %.1f: %.1f%% of the peak %.1f/s, %.1f%% cached\n", at, 100 * kept / best,
                  best, 100 * fixture.cached_tokens / fixture.prompt_tokens);
    assert_true(kept >= 0.95 * best);
    assert_true(fixture.cached_tokens / fixture.prompt_tokens >= share - 0.1);
}

/* Why the queue is bounded: one that admits every request serves each too late. */
static void without_a_bound_no_request_is_served_in_time(void **state) {
    struct fixture fixture;
    double best = peak(100, 1000000, 2000000);

    (void)state;
    assert_true(goodput(&fixture, 2, REQUESTS, UINT64_C(3600000000), 2000000) < 0.2 * best);
    assert_true(fixture.n_late > REQUESTS / 2);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(twice_the_load_keeps_the_goodput),
        cmocka_unit_test(a_full_fleet_keeps_its_hits),
        cmocka_unit_test(without_a_bound_no_request_is_served_in_time),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
