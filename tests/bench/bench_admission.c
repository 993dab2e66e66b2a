/* tests/bench/bench_admission.c - what it costs to wait: 100,000 do, of few or of many tenants.
 *
 * `turn` is one popped and one that enters, `leave` one that gives up somewhere in the queue and
 * one that enters, `displace` one that enters a full queue in another's place. Best of seven rounds
 * (of three, for the last).
 *
 * `hold`: 10,000 requests of 24 blocks wait for 64 workers that are all busy above H (hold.h), of
 * 100 tenants. Processor time of one request that passes, best of many rounds: in all (it arrives
 * and waits, another's first token and end come, and the walks after each place what can go), and
 * without what it costs where none waits (hold off): what holding adds. `idle walk`: a walk that
 * can place nothing. */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "common/base/clock.h"
#include "common/base/mem.h"
#include "common/base/rng.h"
#include "router/queue/hold.h"
#include "tests/support/routing_defaults.h"

#define N_WAITING   100000
#define N_ROUNDS    7
#define N_PER_ROUND 20000

static const struct worker_mask everywhere = {{UINT64_MAX}};

static void enter(struct admission *a, struct admission_ticket *t, uint64_t tenant,
                  int32_t priority, struct admission_ticket **displaced) {
    struct admission_claim claim = {
        .tenant = tenant, .priority = priority, .work_s = 0.1, .home = WORKER_NONE};
    uint64_t wait_us;

    if (admission_push(a, t, &claim, &wait_us, displaced) != ADMISSION_WAITS) abort();
}

static double ns_each(uint64_t began_us) {
    return (double)(clock_now_us() - began_us) * 1e3 / N_PER_ROUND;
}

static void bench(uint64_t n_tenants) {
    struct admission *a =
        admission_create(&(struct admission_options){.queue_size = N_WAITING, .max_wait_us = 0});
    struct admission_ticket *tickets = mem_calloc(N_WAITING + 1, sizeof(*tickets));
    struct admission_ticket *spare = &tickets[N_WAITING], *gone;
    double turn = 1e9, leave = 1e9, displace = 1e9;
    struct rng rng;
    uint64_t began_us;

    rng_seed(&rng, n_tenants);
    for (uint32_t i = 0; i < N_WAITING; i++)
        enter(a, &tickets[i], rng_below(&rng, n_tenants), 0, &gone);
    for (int round = 0; round < N_ROUNDS; round++) {
        began_us = clock_now_us();
        for (uint32_t i = 0; i < N_PER_ROUND; i++)
            enter(a, admission_pop(a, &everywhere, 1), rng_below(&rng, n_tenants), 0, &gone);
        turn = MIN(turn, ns_each(began_us));
        began_us = clock_now_us();
        for (uint32_t i = 0; i < N_PER_ROUND; i++) {
            struct admission_ticket *t = &tickets[rng_below(&rng, N_WAITING + 1)];

            if (t == spare) continue;
            admission_remove(a, t);
            enter(a, t, rng_below(&rng, n_tenants), 0, &gone);
        }
        leave = MIN(leave, ns_each(began_us));
    }
    for (int round = 0; round < N_ROUNDS / 2; round++) { /* while the usual band has enough */
        began_us = clock_now_us();
        for (uint32_t i = 0; i < N_PER_ROUND; i++) {
            enter(a, spare, n_tenants + rng_below(&rng, 16), -1, &gone);
            spare = gone;
        }
        displace = MIN(displace, ns_each(began_us));
    }
    printf("%d waiting, %6llu tenants: turn %.0f ns, leave %.0f, displace %.0f\n", N_WAITING,
           (unsigned long long)n_tenants, turn, leave, displace);
    while (admission_pop(a, &everywhere, 1)) {
    }
    admission_destroy(a);
    mem_free(tickets);
}

/* --- late binding ---------------------------------------------------------------------------- */

#define N_HELD        10000
#define N_HOLDERS     64
#define N_BLOCKS      24
#define N_CHATS       20000
#define N_PREFIXES    8 /* blocks that all have in common */
#define BLOCK_BYTES   256
#define SRPT_S        0.05  /* most prompts are cached: thousands would fit into the usual one */
#define STEPS         20000 /* before the measurement */
#define N_PASSES      2000  /* of a round */
#define N_PASS_ROUNDS 50

struct held {
    struct hold_request q;
    struct route_request rq;
    struct route_ticket ticket;
    uint64_t chain[N_BLOCKS];
};

struct fleet {
    struct routing *routing;
    struct hold *hold;
    struct held *all;
    struct list placed, open, spare; /* of held.q.link */
    uint32_t n_open;
    uint64_t now_us;
    struct rng rng;
};

static void describe(struct fleet *f, struct held *h) {
    uint64_t chat = rng_below(&f->rng, N_CHATS);

    *h = (struct held){.rq = {.chain = h->chain,
                              .n_blocks = N_BLOCKS,
                              .prompt_bytes = N_BLOCKS * BLOCK_BYTES,
                              .now_us = f->now_us}};
    for (uint32_t i = 0; i < N_BLOCKS; i++)
        h->chain[i] = rng_at(i < N_PREFIXES ? 1 : chat + 2, i);
    h->q.rq = &h->rq;
    h->q.ticket = &h->ticket;
    h->q.tenant = chat % 100;
    h->q.since_us = f->now_us;
}

static void walk(struct fleet *f) {
    struct list *link;

    hold_walk(f->hold, UINT32_MAX, f->now_us, &f->placed);
    while ((link = list_pop_front(&f->placed)) != NULL) {
        list_push_back(&f->open, link);
        f->n_open++;
    }
}

static void arrive(struct fleet *f, struct held *h) {
    struct hold_request *displaced;
    enum hold_reason reason;

    describe(f, h);
    if (hold_place(f->hold, &h->rq, &h->ticket, &reason, NULL) == ST_OK) {
        list_push_back(&f->open, &h->q.link);
        f->n_open++;
        return;
    }
    if (hold_wait(f->hold, &h->q, &displaced) != ADMISSION_WAITS) abort();
    walk(f);
}

/* The request that was sent first has its first token and ends. */
static struct held *finish(struct fleet *f) {
    struct list *link = list_pop_front(&f->open);
    struct held *h = (struct held *)(void *)LIST_ENTRY(link, struct hold_request, link);
    const struct route_feedback feedback = {N_BLOCKS * 64, (int64_t)h->ticket.cached_tokens};

    f->n_open--;
    routing_first_token(f->routing, &h->ticket, &feedback, f->now_us);
    walk(f);
    routing_ended(
        f->routing, &h->ticket,
        &(struct route_end){.output_tokens = 100, .now_us = f->now_us, .feedback = {-1, -1}});
    walk(f);
    return h;
}

static struct held *take_spare(struct fleet *f) {
    struct list *link = list_pop_front(&f->spare);

    return (struct held *)(void *)LIST_ENTRY(link, struct hold_request, link);
}

/* Of this process: other programs on the machine do not count. */
static double cpu_us(void) {
    struct timespec t;

    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec * 1e-3;
}

static void fleet_init(struct fleet *f, enum worker_order order, bool fetches, bool is_on) {
    struct routing_options o;

    *f = (struct fleet){.now_us = 1000000};
    rng_seed(&f->rng, 7);
    routing_options_default(&o);
    o.max_index_bytes = UINT64_C(64) << 20;
    if (routing_create(&f->routing, &o, NULL) != ST_OK) abort();
    for (uint32_t w = 0; w < N_HOLDERS; w++)
        routing_worker_up(f->routing, w,
                          &(struct worker_spec){
                              .identity = w, .generation = 1, .n_blocks = 40000, .order = order});
    for (uint32_t w = 0; fetches && w < N_HOLDERS; w++)
        routing_set_peer(f->routing, w, &(struct fetch_peer){1, w / 8, 131072});
    f->hold = hold_create(f->routing, &(struct hold_options){.queue_size = N_HELD + 10,
                                                             .fcfs_s = is_on ? HOLD_FCFS_S : 0,
                                                             .srpt_s = is_on ? SRPT_S : 0});
    f->all = mem_calloc(N_HELD * 4, sizeof(*f->all));
    list_init(&f->placed);
    list_init(&f->open);
    list_init(&f->spare);
    for (uint32_t i = 0; i < N_HELD * 4; i++)
        list_push_back(&f->spare, &f->all[i].q.link);
}

static void fleet_fini(struct fleet *f) {
    while (hold_n_waiting(f->hold))
        hold_leave(f->hold, hold_any(f->hold));
    while (f->n_open)
        (void)finish(f);
    hold_check(f->hold);
    hold_destroy(f->hold);
    routing_check(f->routing);
    routing_destroy(f->routing);
    mem_free(f->all);
}

/* One request ends and one arrives, or as many as keep n_held waiting. */
static void pass(struct fleet *f, uint32_t n_held, uint32_t n_open) {
    list_push_back(&f->spare, &finish(f)->q.link);
    f->now_us += 700; /* 64 workers, 0.045 s each */
    while (hold_n_waiting(f->hold) < n_held || f->n_open < n_open)
        arrive(f, take_spare(f));
}

/* Returns what one request costs in all; *idle_us: a walk that places nothing. */
static double pass_all(struct fleet *f, uint32_t n_held, uint32_t n_open, double *idle_us) {
    double pass_us = 1e9, began_us;

    *idle_us = 1e9;
    while (hold_n_waiting(f->hold) < n_held || f->n_open < n_open)
        arrive(f, take_spare(f));
    for (uint32_t i = 0; i < STEPS; i++)
        pass(f, n_held, n_open);
    for (int round = 0; round < N_PASS_ROUNDS; round++) {
        began_us = cpu_us();
        for (uint32_t i = 0; i < N_PASSES; i++)
            pass(f, n_held, n_open);
        pass_us = MIN(pass_us, (cpu_us() - began_us) / N_PASSES);
        began_us = cpu_us();
        for (uint32_t i = 0; i < N_PASSES; i++)
            walk(f);
        *idle_us = MIN(*idle_us, (cpu_us() - began_us) / N_PASSES);
    }
    return pass_us;
}

/* `fetches`: its workers exchange KV, eight on a host. */
static void bench_hold(enum worker_order order, bool fetches) {
    double with_us, without_us, idle_us, unused;
    struct fleet f;
    uint32_t n_open;

    fleet_init(&f, order, fetches, true);
    with_us = pass_all(&f, N_HELD, 0, &idle_us);
    n_open = f.n_open;
    fleet_fini(&f);
    fleet_init(&f, order, fetches, false);
    without_us = pass_all(&f, 0, n_open, &unused);
    fleet_fini(&f);
    printf("hold: %s workers%s, %u, %u waiting, %u open: %.2f us a request, %.2f by holding; idle "
           "walk %.3f us\n",
           order == WORKER_SRPT ? "srpt" : "fcfs", fetches ? " that fetch" : "", N_HOLDERS, N_HELD,
           n_open, with_us, with_us - without_us, idle_us);
}

int main(void) {
    static const uint64_t tenants[] = {1, 1000, 100000};

    for (size_t i = 0; i < ARRAY_LEN(tenants); i++)
        bench(tenants[i]);
    for (int fetches = 0; fetches < 2; fetches++) {
        bench_hold(WORKER_FCFS, fetches);
        bench_hold(WORKER_SRPT, fetches);
    }
    return 0;
}
