/* worker/kv/block/block_reuse.c - counts by kind, and a direct-mapped table of ends. */
#include "worker/kv/block/block_reuse.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#include "common/base/mem.h"

/* `make replay-eviction` measured these: a higher exponent hits more in a small cache, and less
 * than LRU in one that has room for most returns. Without the 60 s a kind that rarely returns
 * would keep what was released just now. */
#define EXPONENT     1.5
#define AGE_MIN_S    60.0
#define PRIOR        2.0 /* ends of the mean kind that each kind begins with */
#define MEAN_PROMPTS 1024

struct reuse_end {
    uint64_t tag; /* of its hash; 0: empty */
    uint8_t kind, turn;
};

struct reuse_count {
    double n_ended, n_returned;
};

struct block_reuse {
    struct reuse_end *ends; /* (REUSE_ENDS) by hash; a later one takes the place */
    struct reuse_count count[REUSE_KINDS], all;
    double inverse[REUSE_KINDS]; /* p^-EXPONENT */
    uint64_t now_us;
    double mean_blocks; /* of the prompts */
    uint32_t n_prompts; /* in that mean, at most MEAN_PROMPTS: then it forgets */
};

/* --- kinds --------------------------------------------------------------------------------- */

static uint32_t kind_of(uint32_t turn, double fresh) {
    uint32_t f = (fresh >= 0.08) + (fresh >= 0.25) + (fresh >= 0.66);

    return MIN(turn, REUSE_TURNS - 1u) * REUSE_FRESH + f;
}

static void weigh(struct block_reuse *r, uint32_t kind) {
    const struct reuse_count *c = &r->count[kind];
    double mean = r->all.n_returned / r->all.n_ended;
    double p = (c->n_returned + PRIOR * mean) / (c->n_ended + PRIOR);

    r->inverse[kind] = pow(p, -EXPONENT);
}

static void count(struct block_reuse *r, uint32_t kind, double ended, double returned) {
    struct reuse_count *c = &r->count[kind];

    c->n_ended += ended;
    c->n_returned += returned;
    r->all.n_ended += ended;
    r->all.n_returned += returned;
    if (c->n_ended >= REUSE_COUNT_MAX) {
        c->n_ended /= 2;
        c->n_returned /= 2;
    }
    weigh(r, kind);
}

/* --- ends ------------------------------------------------------------------------------------- */

static uint64_t tag_of(const struct block_hash *hash) {
    uint64_t x;

    memcpy(&x, hash->bytes, sizeof(x));
    return x | 1;
}

static struct reuse_end *place_of(struct block_reuse *r, uint64_t tag) {
    return &r->ends[(tag >> 1) % REUSE_ENDS];
}

static void remember(struct block_reuse *r, const struct block_hash *hash, uint32_t kind,
                     uint32_t turn) {
    uint64_t tag = tag_of(hash);

    *place_of(r, tag) = (struct reuse_end){tag, (uint8_t)kind, (uint8_t)turn};
    count(r, kind, 1, 0);
}

/* --- the module ------------------------------------------------------------------------------- */

struct block_reuse *block_reuse_create(void) {
    struct block_reuse *r = mem_zalloc(sizeof(*r));

    r->ends = mem_calloc(REUSE_ENDS, sizeof(*r->ends));
    r->all = (struct reuse_count){8, 1};
    for (uint32_t c = 0; c < REUSE_KINDS; c++)
        weigh(r, c);
    return r;
}

void block_reuse_destroy(struct block_reuse *r) {
    if (!r) return;
    mem_free(r->ends);
    mem_free(r);
}

void block_reuse_set_now(struct block_reuse *r, uint64_t now_us) {
    r->now_us = now_us;
}

uint64_t block_reuse_now_us(const struct block_reuse *r) {
    return r->now_us;
}

uint32_t block_reuse_arrived(struct block_reuse *r, const struct block_hash *hashes, uint32_t n,
                             uint32_t n_hit) {
    uint32_t turn = 0;

    assert(n_hit <= n);
    for (uint32_t i = 0; i < n; i++) {
        uint64_t tag = tag_of(&hashes[i]);
        struct reuse_end *end = place_of(r, tag);

        if (end->tag != tag) continue;
        turn = end->turn + 1u;
        count(r, end->kind, 0, 1);
        end->tag = 0;
    }
    r->n_prompts = MIN(r->n_prompts + 1, MEAN_PROMPTS);
    r->mean_blocks += (n - r->mean_blocks) / r->n_prompts;
    return kind_of(turn, (n - n_hit) / MAX(r->mean_blocks, 1.0));
}

void block_reuse_ended(struct block_reuse *r, uint32_t kind, const struct block_hash *prompt,
                       const struct block_hash *answer) {
    uint32_t turn = kind / REUSE_FRESH;

    if (prompt) remember(r, prompt, kind, turn);
    if (answer) remember(r, answer, REUSE_GENERATED, turn);
}

double block_reuse_cost(const struct block_reuse *r, uint32_t kind, uint64_t released_us) {
    return (1e-6 * (double)(r->now_us - released_us) + AGE_MIN_S) * r->inverse[kind];
}
