/* tests/bench/bench_engine.c - what surrounds the model: the host tier, and the KV manager with
 * everything on that watches it.
 *
 * The host tier is measured against one memcpy of as many bytes between the same two regions, in
 * the same process and in turn: blocks leave in the order the manager would evict them (a shuffled
 * pool) and come back. The manager is run as a scheduler would, admitting and freeing sequences in
 * a pool full of others' blocks, so that each block taken is evicted first; with and without
 * causes of misses, events and host memory. Medians. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/mem.h"
#include "common/base/rng.h"
#include "kernels/backend.h"
#include "worker/kv/kv_manager.h"

#define ROUNDS     15
#define POOL_BYTES (192ull << 20)
#define MEMCPY_BAR 0.80

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static double median(double *v, int n) {
    qsort(v, (size_t)n, sizeof(*v), by_value);
    return v[n / 2];
}

static void must(enum status st, const char *what) {
    if (st == ST_OK) return;
    fprintf(stderr, "%s: %s\n", what, status_name(st));
    exit(1);
}

/* --- the host tier ---------------------------------------------------------------------------- */

struct shape {
    const char *name;
    uint32_t n_layers, n_kv_heads, head_dim;
};

static struct backend_model *open_model(struct backend_device **dev, const struct shape *s,
                                        float *inv_freq) {
    const struct backend_ops *ops = &backend_cpu;
    struct backend_config config = {.n_threads = 1};
    struct backend_model *m;
    struct geometry g = {.n_layers = s->n_layers,
                         .d_model = 64,
                         .n_heads = s->n_kv_heads,
                         .n_kv_heads = s->n_kv_heads,
                         .head_dim = s->head_dim,
                         .d_ff = 64,
                         .vocab = 64,
                         .max_context = 256,
                         .rms_eps = 1e-5f,
                         .rope_scale = 1,
                         .inv_freq = inv_freq,
                         .weight_dtype = DTYPE_BF16,
                         .kv_dtype = DTYPE_BF16,
                         .is_tied = true};
    struct backend_limits limits = {.max_rows = 1,
                                    .max_step_tokens = 16,
                                    .max_blocks_per_row = 16,
                                    .max_outputs = 1,
                                    .n_slots = 1,
                                    .block_size = 16};
    struct error err = {0};

    if (ops->open(dev, &config, &err) != ST_OK ||
        ops->load_begin(*dev, &m, &g, &limits, &err) != ST_OK) {
        fprintf(stderr, "%s\n", err.message);
        exit(1);
    }
    return m;
}

static void shuffle(struct backend_copy *pairs, uint32_t n, struct rng *rng) {
    for (uint32_t i = 0; i < n; i++) {
        uint32_t j = (uint32_t)rng_below(rng, i + 1), other = pairs[j].src;

        pairs[i].dst = i;
        pairs[i].src = i;
        pairs[j].src = i;
        pairs[i].src = j == i ? i : other;
    }
}

static void bench_tier(const struct shape *s, struct rng *rng) {
    const struct backend_ops *ops = &backend_cpu;
    float inv_freq[128] = {1};
    struct backend_device *dev = NULL;
    struct backend_model *m = open_model(&dev, s, inv_freq);
    uint64_t block_bytes = ops->kv_block_bytes(m), n_bytes;
    uint32_t n = (uint32_t)(POOL_BYTES / block_bytes);
    struct backend_copy *out = mem_calloc(n, sizeof(*out)), *in = mem_calloc(n, sizeof(*in));
    double copied[ROUNDS], moved_out[ROUNDS], moved_in[ROUNDS], c, o, i;
    struct backend_kv_info info;
    backend_fence fence;
    uint8_t *a, *b;

    must(ops->kv_alloc(m, n, n, &info, NULL), "kv_alloc");
    n_bytes = n * block_bytes;
    a = mem_alloc(n_bytes);
    b = mem_alloc(n_bytes);
    memset(a, 1, n_bytes);
    memset(b, 2, n_bytes);
    shuffle(out, n, rng);
    for (uint32_t k = 0; k < n; k++)
        in[k] = (struct backend_copy){out[k].dst, out[k].src};
    must(ops->kv_swap_out(m, out, n, &fence), "swap_out"); /* touches every page */
    must(ops->kv_swap_in(m, in, n, &fence), "swap_in");
    for (int r = 0; r < ROUNDS; r++) {
        uint64_t t0 = clock_now_us(), t1, t2, t3;

        memcpy(r % 2 ? a : b, r % 2 ? b : a, n_bytes);
        t1 = clock_now_us();
        must(ops->kv_swap_out(m, out, n, &fence), "swap_out");
        t2 = clock_now_us();
        must(ops->kv_swap_in(m, in, n, &fence), "swap_in");
        t3 = clock_now_us();
        copied[r] = (double)(t1 - t0);
        moved_out[r] = (double)(t2 - t1);
        moved_in[r] = (double)(t3 - t2);
    }
    c = median(copied, ROUNDS);
    o = median(moved_out, ROUNDS);
    i = median(moved_in, ROUNDS);
    printf("host tier, %-14s blocks of %6.1f KiB  memcpy %5.2f GB/s  out %.2fx  in %.2fx (goal "
           "%.2f: %s)\n",
           s->name, (double)block_bytes / 1024, (double)n_bytes / c * 1e-3, c / o, c / i,
           MEMCPY_BAR, c / o >= MEMCPY_BAR && c / i >= MEMCPY_BAR ? "met" : "MISSED");
    mem_free(a);
    mem_free(b);
    mem_free(out);
    mem_free(in);
    ops->unload(m);
    ops->close(dev);
}

/* --- the manager ------------------------------------------------------------------------------ */

#define N_BLOCKS   16384
#define SEQ_TOKENS 1024
#define N_SEQS     (N_BLOCKS * 16 / SEQ_TOKENS)

static double manager_round(struct kv_manager *mgr, struct kv_event_log *events, uint32_t *tokens,
                            uint32_t *serial) {
    uint64_t ns = 0;

    for (uint32_t s = 0; s < N_SEQS; s++) {
        struct kv_seq seq;
        struct kv_alloc alloc = {.n_new = SEQ_TOKENS};
        uint64_t t0;

        for (uint32_t k = 0; k < SEQ_TOKENS; k++)
            tokens[k] = *serial * 7919 + k;
        ++*serial;
        must(kv_seq_init(&seq, mgr, SEQ_TOKENS, NULL, false, NULL), "seq");
        kv_seq_extend_hashes(mgr, &seq, tokens, SEQ_TOKENS); /* hashing has a bench of its own */
        t0 = clock_now_us();
        alloc.hit = kv_manager_lookup(mgr, &seq, tokens, SEQ_TOKENS);
        must(kv_manager_allocate(mgr, &seq, tokens, SEQ_TOKENS, &alloc), "allocate");
        kv_manager_clear_moves(mgr);
        if (events) kv_event_log_commit(events, 0, true);
        kv_manager_free(mgr, &seq);
        ns += (clock_now_us() - t0) * 1000;
        kv_seq_fini(&seq);
    }
    return (double)ns / (N_BLOCKS);
}

struct variant {
    const char *name;
    struct kv_manager_config config;
    bool has_events;
    struct kv_event_log *events;
    struct kv_manager *mgr;
    uint32_t serial;
    double ns[ROUNDS];
};

static void variant_open(struct variant *v) {
    struct kv_event_config c = {
        .max_batches = 1000, .max_bytes = 16 << 20, .block_size = 16, .hash_bytes = 16};

    if (v->has_events) must(kv_event_log_create(&v->events, &c, NULL), "events");
    v->config.n_blocks = N_BLOCKS;
    v->config.block_size = 16;
    v->config.max_model_len = SEQ_TOKENS;
    v->config.hash_seed = STR("b");
    v->config.events = v->events;
    v->mgr = kv_manager_create(&v->config);
    v->serial = 1;
}

/* In turn, so that a busy machine disturbs all alike. */
static void bench_manager(void) {
    struct variant all[] = {
        {.name = "bare", .config = {.no_explain = true}},
        {.name = "with causes of misses (default)"},
        {.name = "with host memory too", .config = {.n_host_blocks = N_BLOCKS}},
        {.name = "with events", .has_events = true},
    };
    uint32_t *tokens = mem_calloc(SEQ_TOKENS, sizeof(*tokens));
    double base = 0;

    for (size_t i = 0; i < ARRAY_LEN(all); i++) {
        variant_open(&all[i]);
        for (int r = 0; r < 2; r++) /* until the pool is full of others' blocks */
            manager_round(all[i].mgr, all[i].events, tokens, &all[i].serial);
    }
    for (int r = 0; r < ROUNDS; r++) {
        for (size_t i = 0; i < ARRAY_LEN(all); i++)
            all[i].ns[r] = manager_round(all[i].mgr, all[i].events, tokens, &all[i].serial);
    }
    for (size_t i = 0; i < ARRAY_LEN(all); i++) {
        double m = median(all[i].ns, ROUNDS);

        if (i == 0) base = m;
        printf("manager, %-32s %7.1f ns per block admitted, evicting another (%+.1f)\n",
               all[i].name, m, m - base);
        kv_manager_destroy(all[i].mgr);
        kv_event_log_destroy(all[i].events);
    }
    mem_free(tokens);
}

int main(void) {
    static const struct shape shapes[] = {{"Qwen2-0.5B", 24, 2, 64},
                                          {"Llama-3.2-1B", 16, 8, 64},
                                          {"8B", 32, 8, 128},
                                          {"demo", 4, 2, 32}};
    struct rng rng;

    rng_seed(&rng, 1);
    for (size_t i = 0; i < ARRAY_LEN(shapes); i++)
        bench_tier(&shapes[i], &rng);
    bench_manager();
    return 0;
}
