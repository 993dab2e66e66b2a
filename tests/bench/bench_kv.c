/* tests/bench/bench_kv.c - what the KV manager costs, as ratios taken in one process.
 *
 * Hashing is measured against the digest alone over the same bytes: the messages (parent, tokens
 * and, for the CBOR forms, their encoding) lie ready in memory and one call per block digests
 * them. What is left is our encoding and chaining. Each pair is run in turn and the medians are
 * compared, so that a busy machine disturbs both alike. Blocks are measured in nanoseconds per
 * block taken and given back, with every block published in between (so that eviction is paid for
 * too) and without. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/hash.h"
#include "common/base/mem.h"
#include "common/base/rng.h"
#include "worker/kv/kv_manager.h"

#define BLOCK_SIZE    16
#define N_TOKENS      50000
#define N_BLOCKS      (N_TOKENS / BLOCK_SIZE)
#define MESSAGE_MAX   256
#define ROUNDS        101
#define REPEATS       1 /* passes between two readings of the clock */
#define VOCABULARY    151936
#define POOL_BLOCKS   65536
#define SEQ_BLOCKS    64
#define POOL_ROUNDS   31
#define RATIO_XXH3    1.60
#define RATIO_SHA256  1.25
#define BLOCK_GOAL_NS 50.0

struct bench {
    uint32_t tokens[N_TOKENS];
    uint8_t messages[N_BLOCKS][MESSAGE_MAX];
    size_t message_bytes[N_BLOCKS];
};

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static double median(double *v, int n) {
    qsort(v, (size_t)n, sizeof(*v), by_value);
    return v[n / 2];
}

static uint8_t *put_head(uint8_t *p, uint8_t major, uint32_t value) {
    if (value < 24) {
        *p++ = (uint8_t)(major | value);
        return p;
    }
    int n_bytes = value <= UINT8_MAX ? 1 : value <= UINT16_MAX ? 2 : 4;

    *p++ = (uint8_t)(major | (n_bytes == 1 ? 24 : n_bytes == 2 ? 25 : 26));
    while (n_bytes-- > 0)
        *p++ = (uint8_t)(value >> (8 * n_bytes));
    return p;
}

/* What one block's digest is taken of, written the slow way. */
static size_t message_of(enum block_hash_algo algo, const struct block_hash *parent,
                         const uint32_t *tokens, uint8_t *out) {
    size_t n_parent = algo == BLOCK_HASH_SHA256_CBOR ? 32 : 16;
    uint8_t *p = out;

    if (algo == BLOCK_HASH_XXH3_128) {
        memcpy(p, parent->bytes, n_parent);
        memcpy(p + n_parent, tokens, BLOCK_SIZE * sizeof(*tokens));
        return n_parent + BLOCK_SIZE * sizeof(*tokens);
    }
    p = put_head(p, 0x80, 3);
    p = put_head(p, 0x40, (uint32_t)n_parent);
    memcpy(p, parent->bytes, n_parent);
    p = put_head(p + n_parent, 0x80, BLOCK_SIZE);
    for (int i = 0; i < BLOCK_SIZE; i++)
        p = put_head(p, 0x00, tokens[i]);
    *p++ = 0xf6;
    return (size_t)(p - out);
}

static uint64_t digest_once(const struct bench *b, enum block_hash_algo algo, struct sha256 *sha,
                            const struct hash_key *key) {
    uint8_t out[SHA256_BYTES];
    uint64_t sum = 0;

    for (int i = 0; i < N_BLOCKS; i++) {
        switch (algo) {
        case BLOCK_HASH_SHA256_CBOR:
            sha256_begin(sha);
            sha256_add(sha, b->messages[i], b->message_bytes[i]);
            sha256_end(sha, out);
            sum += out[0];
            break;
        case BLOCK_HASH_XXHASH_CBOR: sum += hash_128(b->messages[i], b->message_bytes[i]).lo; break;
        case BLOCK_HASH_XXH3_128:
            sum += hash_keyed_128(key, b->messages[i], b->message_bytes[i]).lo;
            break;
        }
    }
    return sum;
}

static void bench_hash(struct bench *b, enum block_hash_algo algo, double goal) {
    struct kv_manager_config config = {.n_blocks = 2,
                                       .block_size = BLOCK_SIZE,
                                       .max_model_len = N_TOKENS,
                                       .hash_algo = algo,
                                       .hash_seed = STR("b")};
    struct kv_manager *mgr = kv_manager_create(&config);
    struct sha256 *sha = sha256_create();
    double ours[ROUNDS], digest[ROUNDS], ratio;
    static volatile uint64_t sink;
    struct hash_key key;
    struct kv_seq seq;

    if (kv_seq_init(&seq, mgr, N_TOKENS, NULL, false, NULL) != ST_OK) abort();
    hash_key_init(&key, "b", 1);
    kv_seq_extend_hashes(mgr, &seq, b->tokens, N_TOKENS);
    for (int i = 0; i < N_BLOCKS; i++) { /* a root of zeros is as long as the real one */
        static const struct block_hash zeros;

        b->message_bytes[i] = message_of(algo, i ? &seq.hashes[i - 1] : &zeros,
                                         b->tokens + i * BLOCK_SIZE, b->messages[i]);
    }
    for (int r = 0; r < ROUNDS; r++) {
        uint64_t t0 = clock_now_us(), t1, t2;

        for (int k = 0; k < REPEATS; k++) {
            seq.n_hashes = 0; /* as if it had just arrived */
            kv_seq_extend_hashes(mgr, &seq, b->tokens, N_TOKENS);
        }
        t1 = clock_now_us();
        for (int k = 0; k < REPEATS; k++)
            sink = digest_once(b, algo, sha, &key);
        t2 = clock_now_us();
        ours[r] = (double)(t1 - t0);
        digest[r] = (double)(t2 - t1);
    }
    (void)sink;
    ratio = median(ours, ROUNDS) / median(digest, ROUNDS);
    printf("hash %-12s %6.2f ns/token, digest alone %6.2f, ratio %.2f", block_hash_algo_name(algo),
           median(ours, ROUNDS) * 1e3 / (REPEATS * (double)N_TOKENS),
           median(digest, ROUNDS) * 1e3 / (REPEATS * (double)N_TOKENS), ratio);
    if (goal > 0) printf(" (goal %.2f: %s)", goal, ratio <= goal ? "met" : "MISSED");
    printf("\n");
    kv_seq_fini(&seq);
    sha256_destroy(sha);
    kv_manager_destroy(mgr);
}

/* Fills the pool with sequences of SEQ_BLOCKS and frees them in another order, so that the queue
 * is not a run of neighbours. */
static double pool_round(struct block_pool *pool, block_id (*ids)[SEQ_BLOCKS],
                         const uint32_t *order, bool publish, uint64_t *serial) {
    uint32_t n_seqs = POOL_BLOCKS / SEQ_BLOCKS;
    uint64_t t = 0, t0;

    t0 = clock_now_us();
    for (uint32_t s = 0; s < n_seqs; s++) {
        if (block_pool_acquire(pool, ids[s], SEQ_BLOCKS) != ST_OK) abort();
    }
    t += clock_now_us() - t0;
    for (uint32_t s = 0; publish && s < n_seqs; s++) {
        for (uint32_t i = SEQ_BLOCKS; i-- > 0;) { /* not timed; last first, as freed */
            uint32_t tokens[BLOCK_SIZE] = {(uint32_t)*serial, (uint32_t)(*serial >> 32)};
            struct block_hash hash = {{0}};
            struct hash128 x = hash_128(serial, sizeof(*serial));
            struct prefix_key key = {&hash, PREFIX_ROOT, tokens, NULL, 0};

            memcpy(hash.bytes, &x, sizeof(x));
            block_pool_publish(pool, ids[s][i], &key, 0);
            (*serial)++;
        }
    }
    t0 = clock_now_us();
    for (uint32_t s = 0; s < n_seqs; s++)
        block_pool_release(pool, ids[order[s]], SEQ_BLOCKS);
    t += clock_now_us() - t0;
    return (double)t * 1e3 / POOL_BLOCKS;
}

static void bench_pool(bool publish, struct rng *rng) {
    uint32_t n_seqs = POOL_BLOCKS / SEQ_BLOCKS;
    struct block_pool *pool = block_pool_create(
        &(struct block_pool_config){.n_blocks = POOL_BLOCKS + 1, .block_size = BLOCK_SIZE});
    block_id(*ids)[SEQ_BLOCKS] = mem_calloc(n_seqs, sizeof(*ids));
    uint32_t *order = mem_calloc(n_seqs, sizeof(*order));
    double ns[POOL_ROUNDS], m;
    uint64_t serial = 1;

    for (uint32_t i = 0; i < n_seqs; i++) {
        uint32_t j = (uint32_t)rng_below(rng, i + 1);

        order[i] = order[j];
        order[j] = i;
    }
    for (int r = 0; r < POOL_ROUNDS; r++)
        ns[r] = pool_round(pool, ids, order, publish, &serial);
    m = median(ns, POOL_ROUNDS);
    printf("allocate and free, %-22s %6.2f ns/block (goal %.0f: %s)\n",
           publish ? "evicting cached blocks" : "blank blocks", m, BLOCK_GOAL_NS,
           m <= BLOCK_GOAL_NS ? "met" : "MISSED");
    mem_free(order);
    mem_free(ids);
    block_pool_destroy(pool);
}

/* --- the manager, as the scheduler calls it --------------------------------------------------- */

#define SEQS       256
#define SEQ_TOKENS 1024
#define DECODES    512

struct crowd {
    struct kv_manager *mgr;
    struct kv_seq seq[SEQS];
    uint32_t tokens[SEQ_TOKENS + DECODES];
};

static struct crowd *crowd_create(struct rng *rng, struct kv_group_config group) {
    struct crowd *c = mem_zalloc(sizeof(*c));
    uint32_t n_max = SEQ_TOKENS + DECODES;

    c->mgr = kv_manager_create(&(struct kv_manager_config){
        .n_blocks = 2 * SEQS * CEIL_DIV(n_max, BLOCK_SIZE) + 1,
        .block_size = BLOCK_SIZE,
        .max_model_len = n_max,
        .hash_seed = STR("b"),
        .n_groups = 1,
        .group = {group},
    });
    for (uint32_t i = 0; i < n_max; i++)
        c->tokens[i] = (uint32_t)rng_below(rng, VOCABULARY);
    for (int s = 0; s < SEQS; s++)
        if (kv_seq_init(&c->seq[s], c->mgr, n_max, NULL, false, NULL) != ST_OK) abort();
    return c;
}

static void crowd_destroy(struct crowd *c) {
    for (int s = 0; s < SEQS; s++) {
        kv_manager_free(c->mgr, &c->seq[s]);
        kv_seq_fini(&c->seq[s]);
    }
    kv_manager_destroy(c->mgr);
    mem_free(c);
}

static void must_allocate(struct crowd *c, int s, uint32_t n_tokens, const struct kv_alloc *a) {
    if (kv_manager_allocate(c->mgr, &c->seq[s], c->tokens, n_tokens, a) != ST_OK) abort();
}

static void admit_all(struct crowd *c) {
    for (int s = 0; s < SEQS; s++) {
        struct kv_alloc a = {.hit = kv_manager_lookup(c->mgr, &c->seq[s], c->tokens, SEQ_TOKENS)};

        a.n_new = SEQ_TOKENS - a.hit.n_tokens;
        must_allocate(c, s, SEQ_TOKENS, &a);
    }
}

static void free_all(struct crowd *c) {
    for (int s = 0; s < SEQS; s++)
        kv_manager_free(c->mgr, &c->seq[s]);
}

/* Prompts whose hashes are known (the second round on): looked up, all but the last block
 * shared. */
static void bench_admission(struct rng *rng) {
    struct crowd *c = crowd_create(rng, (struct kv_group_config){.kind = KV_FULL});
    double ns[POOL_ROUNDS];

    admit_all(c);
    for (int r = 0; r < POOL_ROUNDS; r++) {
        uint64_t t0;

        free_all(c);
        t0 = clock_now_us();
        admit_all(c);
        ns[r] = (double)(clock_now_us() - t0) * 1e3 / (SEQS * (SEQ_TOKENS / BLOCK_SIZE));
    }
    printf("admit a cached prompt                      %6.2f ns/block\n", median(ns, POOL_ROUNDS));
    crowd_destroy(c);
}

/* One token of each sequence: what a step of a full batch costs per row. */
static void bench_decode(struct rng *rng, struct kv_group_config group, const char *what) {
    struct crowd *c = crowd_create(rng, group);
    double ns[DECODES / BLOCK_SIZE];

    admit_all(c);
    for (uint32_t d = 0; d < DECODES;) { /* a round of a block: each takes one and publishes it */
        uint64_t t0 = clock_now_us();
        uint32_t round = d / BLOCK_SIZE;

        do {
            struct kv_alloc a = {.n_computed = SEQ_TOKENS + d, .n_new = 1};

            for (int s = 0; s < SEQS; s++)
                must_allocate(c, s, SEQ_TOKENS + d + 1, &a);
        } while (++d % BLOCK_SIZE != 0);
        ns[round] = (double)(clock_now_us() - t0) * 1e3 / (SEQS * BLOCK_SIZE);
    }
    printf("one more token, %-26s %6.2f ns/sequence\n", what, median(ns, DECODES / BLOCK_SIZE));
    crowd_destroy(c);
}

static void bench_fork(struct rng *rng) {
    struct crowd *c = crowd_create(rng, (struct kv_group_config){.kind = KV_FULL});
    struct kv_alloc all = {.n_new = SEQ_TOKENS}, last = {.n_computed = SEQ_TOKENS - 1, .n_new = 1};
    double ns[POOL_ROUNDS];

    must_allocate(c, 0, SEQ_TOKENS, &all);
    for (int r = 0; r < POOL_ROUNDS; r++) {
        uint64_t t0 = clock_now_us();

        for (int s = 1; s < SEQS; s++) {
            if (kv_manager_fork(c->mgr, &c->seq[s], &c->seq[0], SEQ_TOKENS - 1) != ST_OK) abort();
            must_allocate(c, s, SEQ_TOKENS, &last);
        }
        ns[r] = (double)(clock_now_us() - t0) * 1e3 / ((SEQS - 1) * (SEQ_TOKENS / BLOCK_SIZE));
        kv_manager_clear_moves(c->mgr);
        for (int s = 1; s < SEQS; s++)
            kv_manager_free(c->mgr, &c->seq[s]);
    }
    printf("fork, and copy one block                   %6.2f ns/block\n", median(ns, POOL_ROUNDS));
    crowd_destroy(c);
}

int main(void) {
    struct bench *b = mem_zalloc(sizeof(*b));
    struct rng rng;

    rng_seed(&rng, 1);
    for (int i = 0; i < N_TOKENS; i++)
        b->tokens[i] = (uint32_t)rng_below(&rng, VOCABULARY);
    bench_hash(b, BLOCK_HASH_XXH3_128, RATIO_XXH3);
    bench_hash(b, BLOCK_HASH_SHA256_CBOR, RATIO_SHA256);
    bench_hash(b, BLOCK_HASH_XXHASH_CBOR, 0);
    bench_pool(false, &rng);
    bench_pool(true, &rng);
    bench_admission(&rng);
    bench_decode(&rng, (struct kv_group_config){.kind = KV_FULL}, "full attention");
    bench_decode(&rng, (struct kv_group_config){KV_SLIDING, 256}, "a window of 256");
    bench_fork(&rng);
    mem_free(b);
    return 0;
}
