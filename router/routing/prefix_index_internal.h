/* router/routing/prefix_index_internal.h - the places of records, and the comparison that walks
 * over a chain do at every block. For prefix_index.c, prefix_match.c and prefix_lru.c alone.
 *
 * A position is a number of 64 bits; its line is position x lines / 2^64. All positions of a record
 * follow from its key, the first A + 32 bits of the hash:
 *
 *     hash     | anchor: A bits |     tag: 32 bits     | not kept |
 *     home     | anchor         |     tag              | 0        |
 *     of PART  home + a distance that follows from tag and worker
 *     other    either + a distance that follows from the tag
 *
 * modulo 2^64, so that each step can be reversed. A line is at most 2^(64-A) positions wide, so
 * line, tag and worker give a record's exact position (position_of in prefix_index.c) for any
 * number of lines. That is what lets the table grow without hashing again.
 *
 * While it grows from n lines to 2n, top down, line l is split into 2l and 2l + 1; lines below
 * n_whole are not split yet:
 *
 *     0 ........ n_whole ........ 2 n_whole ........ 2n
 *     of n lines    unused           of 2n lines
 *
 * ONE INSERT that splits lines and then displaces a record (test_prefix_index.c runs it). 5 lines,
 * 15 records of blocks A to O; M' is in its other line, M would be at home:
 *
 *     before            0: B C H I   1: A E F K   2: G J L M'   3: D N' O .   4: . . . .     n_whole 5
 *
 * 1. 15 records >= 5 lines x 3: the table grows. Each insertion splits two lines, here 4 (empty)
 * and 3;
 *    the records of 3 move to lines 6 and 7 by their positions among 10 lines:
 *
 *     grown             0: B C H I   1: A E F K   2: G J L M'                                n_whole 3
 *                       6: N' . . .  7: D O . .   8: . . . .    9: . . . .
 *
 * 2. Block P has home line 1 and other line 0. Both are full, so make_room looks in line 1 for a
 * record
 *    whose own other line has a free slot. A's is line 7:
 *
 *     displaced         0: B C H I   1: P E F K   2: G J L M'
 *                       6: N' . . .  7: D O A' .  8: . . . .    9: . . . .
 *
 *    is_alt of A is set, the ring neighbours of A are linked to its new slot, and n_moves of its worker
 *    grows by one, so that a chain's `guesses` look A up again. */
#ifndef ROUTER_ROUTING_PREFIX_INDEX_INTERNAL_H
#define ROUTER_ROUTING_PREFIX_INDEX_INTERNAL_H

#include "router/routing/prefix_index.h"
#include "router/routing/prefix_set.h"

#ifdef __SSE2__
#include <emmintrin.h>
#endif

#define PREFIX_LINE       4u /* records */
#define PREFIX_ANY_WORKER WORKER_NONE

struct prefix_index {
    struct prefix_record *records; /* the ring heads, then n_lines_max x PREFIX_LINE */
    uint32_t first_line;           /* the line behind the heads */
    uint32_t n_lines, n_whole, n_lines_max;
    uint32_t tag_shift;  /* 32 - A */
    uint64_t key_mask;   /* the first A + 32 bits */
    uint64_t line_width; /* in positions, when there are n_lines; rounded down */
    uint32_t n_workers;
    uint32_t n_used, n_max, n_blocks;
    struct prefix_sets sets;
    struct worker_mask odd;  /* workers whose epoch is 1 */
    struct worker_mask lost; /* workers that have dead records */
    bool any_lost;
    uint64_t n_runs;   /* runs ever inserted; seeds their hashes */
    uint32_t *n_moves; /* moves of each worker's records: after one, guesses may be wrong */
};

/* The place of a key, or of a PART of it: home position and tag, from which the other position
 * follows. */
struct prefix_place {
    uint64_t home;
    uint32_t tag;
};

/* As prefix_index_create, of a table that has at most 2^(anchor_bits + 1) lines to begin with. */
struct prefix_index *prefix_index_create_small(uint32_t n_records, uint32_t n_workers,
                                               uint32_t anchor_bits) MUST_USE;

static inline uint32_t prefix_scale(uint64_t position, uint32_t n_lines) {
    return (uint32_t)(((unsigned __int128)position * n_lines) >> 64);
}

/* The line of a position. */
static inline uint32_t prefix_line_at(const struct prefix_index *x, uint64_t position) {
    uint32_t line = prefix_scale(position, x->n_lines);

    if (UNLIKELY(line >= x->n_whole)) line = prefix_scale(position, 2 * x->n_lines);
    return line + x->first_line;
}

/* Between a quarter and three quarters of the table: never the same line. */
static inline uint64_t prefix_other_distance(uint32_t tag) {
    return (tag * UINT64_C(0x9E3779B97F4A7C15) >> 1) + (UINT64_C(1) << 62);
}

/* From the home of a block to that of w's PART of it. */
static inline uint64_t prefix_part_distance(uint32_t tag, uint32_t w) {
    uint64_t mixed = (tag ^ (w + 1) * 0x85EBCA6Bu) * UINT64_C(0xC2B2AE3D27D4EB4F);

    return (mixed ^ mixed >> 32) * UINT64_C(0x9E3779B97F4A7C15);
}

/* Spreads the hashes of tests and traces, which are small numbers. */
static inline uint64_t prefix_mix(uint64_t hash) {
    return (hash ^ hash >> 32) * UINT64_C(0x9E3779B97F4A7C15);
}

/* Reverses prefix_mix: the inverse modulo 2^64, then the same xor. */
static inline uint64_t prefix_unmix(uint64_t mixed) {
    uint64_t hash = mixed * UINT64_C(0xF1DE83E19937733D);

    return hash ^ hash >> 32;
}

static inline struct prefix_place prefix_place_of(const struct prefix_index *x, uint64_t hash) {
    uint64_t mixed = prefix_mix(hash);

    return (struct prefix_place){mixed & x->key_mask, (uint32_t)(mixed >> x->tag_shift)};
}

static inline struct prefix_place prefix_part_place(struct prefix_place block, uint32_t w) {
    block.home += prefix_part_distance(block.tag, w);
    return block;
}

static inline uint32_t prefix_home_line(const struct prefix_index *x, struct prefix_place p) {
    return prefix_line_at(x, p.home);
}

static inline uint32_t prefix_other_line(const struct prefix_index *x, struct prefix_place p) {
    return prefix_line_at(x, p.home + prefix_other_distance(p.tag));
}

/* The head of a record of this worker and kind, at home or not. */
static inline uint64_t prefix_head(uint32_t tag, enum prefix_kind kind, bool is_alt, uint32_t w) {
    return (struct prefix_record){.tag = tag, .kind = kind, .is_alt = is_alt, .worker = w}.head;
}

/* True when the record is that of (block, w), by its head and its place. */
static inline bool prefix_is_record_of(const struct prefix_index *x, uint32_t number,
                                       struct prefix_place block, uint32_t w) {
    const struct prefix_record *r = &x->records[number];
    uint64_t head = r->head & prefix_head(UINT32_MAX, 7, true, WORKERS_MAX - 1);

    if (UNLIKELY(head != prefix_head(block.tag, PREFIX_LONE, false, w))) { /* most are */
        if (r->tag != block.tag || r->worker != w) return false;
        if (r->kind == PREFIX_PART)
            block = prefix_part_place(block, w);
        else if (r->kind != PREFIX_LONE)
            return false;
        if (r->is_alt) block.home += prefix_other_distance(block.tag);
    }
    return prefix_line_at(x, block.home) == number / PREFIX_LINE;
}

static inline bool prefix_is_dead(const struct prefix_index *x, const struct prefix_record *r) {
    return r->epoch != worker_mask_has(x->odd.words, r->worker);
}

/* Bit i: r[i] has this tag. */
static inline uint32_t prefix_same_tags(const struct prefix_record *r, uint32_t tag) {
#ifdef __SSE2__
    const __m128i *v = (const __m128i *)(const void *)r;
    __m128i low = _mm_unpacklo_epi32(_mm_load_si128(v), _mm_load_si128(v + 1));
    __m128i high = _mm_unpacklo_epi32(_mm_load_si128(v + 2), _mm_load_si128(v + 3));
    __m128i same = _mm_cmpeq_epi32(_mm_unpacklo_epi64(low, high), _mm_set1_epi32((int)tag));

    return (uint32_t)_mm_movemask_ps(_mm_castsi128_ps(same));
#else
    return (uint32_t)(r[0].tag == tag) | (uint32_t)(r[1].tag == tag) << 1 |
           (uint32_t)(r[2].tag == tag) << 2 | (uint32_t)(r[3].tag == tag) << 3;
#endif
}

/* The LONE or SET with this tag in the line, or the worker's PART. */
static inline uint32_t prefix_find_in_line(const struct prefix_index *x, uint32_t line,
                                           uint32_t tag, bool is_alt, uint32_t w) {
    const struct prefix_record *r = &x->records[(size_t)line * PREFIX_LINE];

    for (uint32_t same = prefix_same_tags(r, tag); same; same &= same - 1) {
        uint32_t i = (uint32_t)__builtin_ctz(same);

        if (r[i].is_alt != is_alt) continue;
        if (w == PREFIX_ANY_WORKER ? r[i].kind >= PREFIX_LONE
                                   : r[i].kind == PREFIX_PART && r[i].worker == w)
            return line * PREFIX_LINE + i;
    }
    return PREFIX_NONE;
}

/* The LONE or SET at this place, or, for a worker's place, its PART. The other line is computed
 * only when the record is not at home. */
static inline uint32_t prefix_find_at(const struct prefix_index *x, struct prefix_place p,
                                      uint32_t w) {
    uint32_t n = prefix_find_in_line(x, prefix_home_line(x, p), p.tag, false, w);

    if (n != PREFIX_NONE) return n;
    return prefix_find_in_line(x, prefix_other_line(x, p), p.tag, true, w);
}

static inline uint32_t prefix_find_part(const struct prefix_index *x, struct prefix_place block,
                                        uint32_t w) {
    return prefix_find_at(x, prefix_part_place(block, w), w);
}

#endif
