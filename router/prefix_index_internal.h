/* router/prefix_index_internal.h - where a record may be, and is it the one that is looked for: what
 * the walks over a chain do at every block, for prefix_index.c and prefix_lru.c alone. */
#ifndef ROUTER_PREFIX_INDEX_INTERNAL_H
#define ROUTER_PREFIX_INDEX_INTERNAL_H

#include "router/prefix_index.h"

#define PREFIX_LINE 4u /* records */

struct prefix_index {
    struct prefix_record *records; /* n_lines x PREFIX_LINE, then the ring heads */
    uint32_t n_lines, n_workers;
    uint32_t n_used, n_max, n_blocks;
    uint32_t n_words;        /* of a mask; 1: the set is the mask */
    struct worker_mask odd;  /* workers whose epoch is 1 */
    struct worker_mask lost; /* workers that have dead records */
    bool any_lost;
    uint64_t *rows; /* n_rows x n_words; a free row's first word is the next free row + 1 */
    uint32_t n_rows, first_free_row; /* + 1; 0: none */
    uint64_t n_runs;                 /* ever inserted: their made-up hashes */
};

static inline uint32_t prefix_add_lines(const struct prefix_index *x, uint32_t line,
                                        uint32_t distance) {
    uint64_t sum = (uint64_t)line + distance;

    return (uint32_t)(sum >= x->n_lines ? sum - x->n_lines : sum);
}

/* From home to the other line: 1 to n_lines - 1. */
static inline uint32_t prefix_alt_distance(const struct prefix_index *x, uint32_t tag) {
    return 1 + (uint32_t)((uint64_t)(tag * 0x9E3779B1u) * (x->n_lines - 1) >> 32);
}

/* From the home of a block to that of w's PART of it. */
static inline uint32_t prefix_part_distance(const struct prefix_index *x, uint32_t tag,
                                            uint32_t w) {
    uint32_t mixed = (tag ^ (w + 1) * 0x85EBCA6Bu) * 0xC2B2AE35u;

    return (uint32_t)((uint64_t)((mixed ^ mixed >> 15) * 0x27D4EB2Fu) * x->n_lines >> 32);
}

static inline uint64_t prefix_mix(
    uint64_t hash) { /* chains are hashes; what tests and traces use is not */
    return (hash ^ hash >> 32) * UINT64_C(0x9E3779B97F4A7C15);
}

static inline uint32_t prefix_home_of(const struct prefix_index *x, uint64_t mixed) {
    return (uint32_t)(((unsigned __int128)mixed * x->n_lines) >> 64);
}

/* True when the record is that of (hash, w): its tag says so, its place, and it itself. */
static inline bool prefix_is_record_of(const struct prefix_index *x, uint32_t number, uint64_t hash,
                                       uint32_t w) {
    const struct prefix_record *r = &x->records[number];
    uint64_t mixed = prefix_mix(hash);
    uint32_t tag = (uint32_t)mixed, line;

    if (r->tag != tag || (r->kind != PREFIX_LONE && r->kind != PREFIX_PART) || r->worker != w)
        return false;
    line = prefix_home_of(x, mixed);
    if (r->kind == PREFIX_PART) line = prefix_add_lines(x, line, prefix_part_distance(x, tag, w));
    if (r->is_alt) line = prefix_add_lines(x, line, prefix_alt_distance(x, tag));
    return line == number / PREFIX_LINE;
}

static inline bool prefix_is_dead(const struct prefix_index *x, const struct prefix_record *r) {
    return r->epoch != worker_mask_has(x->odd.words, r->worker);
}

#endif
