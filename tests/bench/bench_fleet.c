/* tests/bench/bench_fleet.c - the routing library at the size of a large fleet, and for a long
 * time.
 *
 *     soak   10 million requests on 64 workers of 40,000 blocks that restart, leave and come back,
 *            with an index that is always full. Memory of the process at each million: it must
 *            not grow once the index is full.
 *     big    1,000 workers x 100,000 blocks: is 2 GB enough? The same requests with an index that
 *            has room for everything, with --max-index-bytes 2000000000, and with half of that:
 *            the share of the first one's hits that is left. Some 3 minutes each, and 4 GB.
 *
 * Requests are turns of chats: a system prompt of 8 blocks out of 50, then blocks of the chat's
 * own. Each turn repeats the chat so far and adds to it; after five turns on average another chat
 * takes its place. So most blocks live on one worker, and the chats under way fill the fleet.
 * ARGS=soak or ARGS=big runs one of the two, ARGS='big BYTES' one index size alone. Deterministic
 * except its times. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/mem.h"
#include "common/base/rng.h"
#include "router/routing/routing.h"
#include "tests/support/routing_defaults.h"

#define BLOCK_BYTES 256
#define N_SYSTEMS   50
#define N_SYSTEM    8
#define N_CHAIN_MAX 1024

struct chat {
    uint64_t seed;
    uint32_t n_blocks;
};

struct open_request {
    struct route_ticket ticket;
    uint64_t chain[N_CHAIN_MAX];
};

struct shape {
    uint32_t n_workers, n_open, n_chats;
    uint32_t first_min, first_span, turn_span; /* blocks of a first prompt, and of a turn */
    uint64_t blocks_per_worker, index_bytes, us_per_request;
};

struct fleet {
    const struct shape *shape;
    struct routing *routing;
    struct chat *chats;
    struct open_request *open;
    struct rng rng;
    uint64_t now_us, n_routed, matched_blocks, blocks, generation;
    double worst_drop_us;
};

static double resident_mb(void) {
    FILE *f = fopen("/proc/self/statm", "r");
    unsigned long long size, resident = 0;

    if (!f || fscanf(f, "%llu %llu", &size, &resident) != 2) abort();
    fclose(f);
    return (double)resident * (double)sysconf(_SC_PAGESIZE) / 1e6;
}

static void new_chat(struct fleet *f, struct chat *c) {
    c->seed = rng_u64(&f->rng);
    c->n_blocks =
        N_SYSTEM + f->shape->first_min + (uint32_t)rng_below(&f->rng, f->shape->first_span);
}

static void announce(struct fleet *f, uint32_t w) {
    struct worker_spec spec = {.identity = w + 1,
                               .generation = ++f->generation,
                               .block_size = 16,
                               .n_blocks = f->shape->blocks_per_worker * BLOCK_BYTES / 4 / 16};

    routing_worker_up(f->routing, w, &spec);
}

static void fleet_open(struct fleet *f, const struct shape *s) {
    struct routing_options o;
    struct error err = {0};

    *f = (struct fleet){.shape = s};
    rng_seed(&f->rng, s->n_workers);
    routing_options_default(&o);
    o.max_workers = s->n_workers;
    o.max_index_bytes = s->index_bytes;
    o.prefix_block_bytes = BLOCK_BYTES;
    if (routing_create(&f->routing, &o, &err) != ST_OK) {
        fprintf(stderr, "%s\n", err.message);
        exit(1);
    }
    for (uint32_t w = 0; w < s->n_workers; w++)
        announce(f, w);
    f->chats = mem_calloc(s->n_chats, sizeof(*f->chats));
    for (uint32_t c = 0; c < s->n_chats; c++)
        new_chat(f, &f->chats[c]);
    f->open = mem_calloc(s->n_open, sizeof(*f->open));
    for (uint32_t i = 0; i < s->n_open; i++) /* resident from the start */
        memset(f->open[i].chain, 1, sizeof(f->open[i].chain));
}

static void finish(struct fleet *f, struct open_request *q) {
    struct route_ticket *t = &q->ticket;
    struct route_feedback feedback = {(int64_t)(t->prompt_bytes / 4), (int64_t)t->cached_tokens};

    routing_first_token(f->routing, t, &feedback, f->now_us);
    routing_ended(
        f->routing, t,
        &(struct route_end){.output_tokens = 150, .feedback = {-1, -1}, .now_us = f->now_us});
}

static void fleet_close(struct fleet *f) {
    for (uint32_t i = 0; i < f->shape->n_open; i++) {
        if (f->open[i].ticket.load.is_open) finish(f, &f->open[i]);
    }
    routing_check(f->routing);
    routing_destroy(f->routing);
    mem_free(f->chats);
    mem_free(f->open);
}

/* The next turn of a random chat, in place of the oldest open request. */
static void route_one(struct fleet *f) {
    const struct shape *s = f->shape;
    struct open_request *q = &f->open[f->n_routed++ % s->n_open];
    struct chat *c = &f->chats[rng_below(&f->rng, s->n_chats)];
    struct route_request rq = {.chain = q->chain, .n_blocks = c->n_blocks};

    f->now_us += s->us_per_request;
    if (q->ticket.load.is_open) finish(f, q);
    for (uint32_t i = 0; i < c->n_blocks; i++)
        q->chain[i] = rng_at(i < N_SYSTEM ? c->seed % N_SYSTEMS : c->seed, i);
    rq.prompt_bytes = (uint64_t)c->n_blocks * BLOCK_BYTES;
    rq.now_us = f->now_us;
    if (routing_route(f->routing, &rq, &q->ticket, NULL) != ST_OK) abort();
    f->matched_blocks += q->ticket.matched_blocks;
    f->blocks += c->n_blocks;
    c->n_blocks += 1 + (uint32_t)rng_below(&f->rng, s->turn_span);
    if (c->n_blocks > N_CHAIN_MAX || rng_below(&f->rng, 5) == 0) new_chat(f, c);
}

/* A restart, or a departure and a return. */
static void disturb(struct fleet *f, bool is_departure) {
    uint32_t w = (uint32_t)rng_below(&f->rng, f->shape->n_workers);
    uint64_t began = clock_now_us();

    if (is_departure) routing_worker_down(f->routing, w);
    announce(f, w);
    f->worst_drop_us = MAX(f->worst_drop_us, (double)(clock_now_us() - began));
}

static void soak(void) {
    static const struct shape shape = {
        .n_workers = 64,
        .n_open = 512,
        .n_chats = 60000,
        .first_min = 2,
        .first_span = 16,
        .turn_span = 6,
        .blocks_per_worker = 40000,
        .index_bytes = UINT64_C(24) << 20,
        .us_per_request = 2000,
    };
    struct fleet f;

    fleet_open(&f, &shape);
    for (int million = 1; million <= 10; million++) {
        uint64_t began = clock_now_us();
        struct routing_stats stats;

        for (uint32_t i = 1; i <= 1000000; i++) {
            route_one(&f);
            if (i % 10000 == 0) disturb(&f, i % 50000 == 0);
        }
        routing_stats(f.routing, &stats);
        printf(
            "soak: %2d M requests, resident %.1f MB, %llu of %llu entries, hit %.1f %% of blocks, "
            "%.1f us per request\n",
            million, resident_mb(), (unsigned long long)stats.n_entries,
            (unsigned long long)stats.n_entries_max,
            100.0 * (double)f.matched_blocks / (double)f.blocks,
            (double)(clock_now_us() - began) * 1e-6);
        fflush(stdout);
    }
    printf("soak: longest restart or departure %.0f us\n", f.worst_drop_us);
    fleet_close(&f);
}

/* Hits of the requests after the fleet is full. */
static uint64_t big_run(uint64_t index_bytes) {
    enum { N_FILL = 1000000, N_COUNTED = 200000, N_TIMED = 2000 };
    const struct shape shape = {
        .n_workers = 1000,
        .n_open = 4000,
        .n_chats = 420000,
        .first_min = 20,
        .first_span = 300,
        .turn_span = 100,
        .blocks_per_worker = 100000,
        .index_bytes = index_bytes,
        .us_per_request = 500,
    };
    struct policy_term *terms = mem_calloc(shape.n_workers, sizeof(*terms));
    struct fleet f;
    struct routing_stats stats;
    uint64_t hits, began = clock_now_us(), sum = 0;
    double decide_us = 1e9, run_s;

    fleet_open(&f, &shape);
    for (uint32_t i = 0; i < N_FILL; i++)
        route_one(&f);
    hits = f.matched_blocks;
    for (uint32_t i = 0; i < N_COUNTED; i++)
        route_one(&f);
    hits = f.matched_blocks - hits;
    run_s = (double)(clock_now_us() - began) * 1e-6;
    for (uint32_t round = 0; round < 7; round++) {
        began = clock_now_us();
        for (uint32_t i = 0; i < N_TIMED / 10; i++) {
            const struct open_request *q = &f.open[(round * N_TIMED / 10 + i) % shape.n_open];
            struct route_request rq = {.chain = q->chain,
                                       .n_blocks = MIN(q->ticket.n_blocks, 24u),
                                       .prompt_bytes = 24 * BLOCK_BYTES,
                                       .now_us = f.now_us};

            sum += routing_explain(f.routing, &rq, terms);
        }
        decide_us = MIN(decide_us, (double)(clock_now_us() - began) / (N_TIMED / 10.0));
    }
    routing_stats(f.routing, &stats);
    printf(
        "big: index of %.2f GB: resident %.2f GB, %.1f of %.1f M entries, %llu refused, decision "
        "of 24 blocks %.1f us, hits %.2f M blocks, %.0f s%s\n",
        (double)stats.index_bytes_max * 1e-9, resident_mb() * 1e-3, (double)stats.n_entries * 1e-6,
        (double)stats.n_entries_max * 1e-6, (unsigned long long)stats.n_refused, decide_us,
        (double)hits * 1e-6, run_s, sum == 1 ? "." : "");
    fflush(stdout);
    fleet_close(&f);
    mem_free(terms);
    return hits;
}

static void big(void) {
    uint64_t all = big_run(UINT64_C(4000000000)), limited = big_run(UINT64_C(2000000000)),
             half = big_run(UINT64_C(1000000000));

    printf("big: hits left by 2 GB %.2f %%, by 1 GB %.2f %%\n",
           100.0 * (double)limited / (double)all, 100.0 * (double)half / (double)all);
}

int main(int argc, char **argv) {
    if (argc < 2 || strcmp(argv[1], "soak") == 0) soak();
    if (argc == 3 && strcmp(argv[1], "big") == 0) return !big_run(strtoull(argv[2], NULL, 10));
    if (argc < 2 || strcmp(argv[1], "big") == 0) big();
    return 0;
}
