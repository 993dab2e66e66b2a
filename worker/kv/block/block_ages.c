/* worker/kv/block/block_ages.c - see block_ages.h. */
#include "worker/kv/block/block_ages.h"

#include <assert.h>

#include "common/base/mem.h"
#include "common/base/rng.h"

struct block_residency {
    uint64_t born_us, used_us;
    uint32_t n_lives;         /* how often the block was handed out */
    bool is_sampled, was_hit; /* during this residency */
};

struct block_ages {
    struct block_ages_config config;
    struct block_residency *residency; /* (n_blocks) */
    uint32_t n_blocks;
    uint64_t now_us;
};

struct block_ages *block_ages_create(uint32_t n_blocks, const struct block_ages_config *config) {
    struct block_ages *ages = mem_zalloc(sizeof(*ages));

    assert(config->share > 0.0 && config->share <= 1.0 && config->on_age);
    ages->config = *config;
    ages->residency = mem_calloc(n_blocks, sizeof(*ages->residency));
    ages->n_blocks = n_blocks;
    return ages;
}

void block_ages_destroy(struct block_ages *ages) {
    if (!ages) return;
    mem_free(ages->residency);
    mem_free(ages);
}

void block_ages_set_now(struct block_ages *ages, uint64_t now_us) {
    ages->now_us = now_us;
}

static void observe(const struct block_ages *ages, enum block_age age, uint64_t since_us) {
    ages->config.on_age(ages->config.arg, age, ages->now_us - since_us);
}

static bool is_drawn(double share, uint32_t block, uint32_t n_lives) {
    return (double)(rng_at(block, n_lives) >> 11) * 0x1p-53 < share;
}

void block_ages_acquired(struct block_ages *ages, uint32_t block) {
    struct block_residency *l = &ages->residency[block];

    l->n_lives++;
    l->is_sampled = is_drawn(ages->config.share, block, l->n_lives);
    l->was_hit = false;
    l->born_us = l->used_us = ages->now_us;
}

void block_ages_hit(struct block_ages *ages, uint32_t block) {
    struct block_residency *l = &ages->residency[block];

    if (!l->is_sampled) return;
    if (l->was_hit) observe(ages, BLOCK_AGE_REUSE_GAP, l->used_us);
    l->was_hit = true;
    l->used_us = ages->now_us;
}

void block_ages_evicted(struct block_ages *ages, uint32_t block) {
    struct block_residency *l = &ages->residency[block];

    if (!l->is_sampled) return;
    observe(ages, BLOCK_AGE_LIFETIME, l->born_us);
    observe(ages, BLOCK_AGE_IDLE, l->used_us);
    l->is_sampled = false;
}

void block_ages_reset(struct block_ages *ages) {
    for (uint32_t i = 0; i < ages->n_blocks; i++)
        ages->residency[i].is_sampled = false;
}
