/* router/prefix_index.c - two lines of four records for every key, and moving between them.
 *
 * Where a record may be follows from its key and, of a PART, its worker:
 *
 *     home of a block   its hash, in proportion (hash x lines / 2^64): any number of lines will do
 *     home of a PART    the block's home + a distance that follows from tag and worker
 *     the other line    home + a distance that follows from the tag
 *
 * all modulo the number of lines, so that each step can be taken back: from a record in its place
 * to the home of its block. A new record goes home if there is room, else to its other line, else
 * one of its line-mates is moved to its own other line, if need be after one there, and so on.
 *
 * Invariant: a block has one LONE, or one SET of at least two workers with one PART for each.
 *
 * The word of a set, when there can be more than 64 workers:
 *     up to four ids    id+1 | id+1 | id+1 | id+1     16 bits each, 0: none, in any place
 *     more              0xFFFF | count | row          row of the pool of masks */
#include "router/prefix_index_internal.h"

#include "common/mem.h"
#include "common/rng.h"

#include <assert.h>
#include <string.h>
#ifdef __SSE2__
#include <emmintrin.h>
#endif

#define HEADS_PER_WORKER 3u
#define FULL_PERCENT     89 /* of the slots, when all records are in use: moves stay short */
#define MOVES_DEEP       4  /* others moved for one insertion; at 89 % full 3 were always enough */
#define ROW_BYTES_SHARE  2  /* half a byte of mask pool per record */
#define ROWS_MIN         64
#define ROW_TAG          UINT64_C(0xFFFF000000000000)
#define NARROW_MAX       4
#define ANY_WORKER       WORKER_NONE

/* Where records of one key and kind may be. */
struct place {
    uint32_t tag, home, alt;
};

/* --- creation -------------------------------------------------------------------------------- */

static uint32_t lines_for(uint32_t n_records) {
    return (uint32_t)((uint64_t)n_records * 100 / FULL_PERCENT / PREFIX_LINE) + 4;
}

static uint32_t rows_for(uint32_t n_records, uint32_t n_words) {
    if (n_words == 1) return 0;
    return MAX(n_records / (uint32_t)(ROW_BYTES_SHARE * sizeof(uint64_t)) / n_words, ROWS_MIN);
}

static uint64_t records_bytes(uint32_t n_records, uint32_t n_workers) {
    return ((uint64_t)lines_for(n_records) * PREFIX_LINE + HEADS_PER_WORKER * n_workers) *
           sizeof(struct prefix_record);
}

uint64_t prefix_index_bytes(uint32_t n_records, uint32_t n_workers) {
    uint32_t n_words = CEIL_DIV(n_workers, 64u);

    return records_bytes(n_records, n_workers) +
           (uint64_t)rows_for(n_records, n_words) * n_words * sizeof(uint64_t);
}

struct prefix_index *prefix_index_create(uint32_t n_records, uint32_t n_workers) {
    struct prefix_index *x = mem_zalloc(sizeof(*x));

    _Static_assert(sizeof(struct prefix_record) * PREFIX_LINE == CACHE_LINE,
                   "a line is a cache line");
    assert(n_records && n_records <= UINT32_MAX / 2 && n_workers && n_workers <= WORKERS_MAX);
    x->n_lines = lines_for(n_records);
    x->n_workers = n_workers;
    x->n_max = n_records;
    x->n_words = CEIL_DIV(n_workers, 64u);
    x->n_rows = rows_for(n_records, x->n_words);
    x->records = mem_try_pages(records_bytes(n_records, n_workers));
    if (x->n_rows) x->rows = mem_try_zalloc((size_t)x->n_rows * x->n_words * sizeof(*x->rows));
    if (!x->records || (x->n_rows && !x->rows)) {
        prefix_index_destroy(x);
        return NULL;
    }
    for (uint32_t i = 0; i < HEADS_PER_WORKER * n_workers; i++) {
        uint32_t head = x->n_lines * PREFIX_LINE + i;

        x->records[head].prev = x->records[head].next = head;
    }
    for (uint32_t i = x->n_rows; i > 0; i--) {
        x->rows[(size_t)(i - 1) * x->n_words] = x->first_free_row;
        x->first_free_row = i;
    }
    return x;
}

void prefix_index_destroy(struct prefix_index *x) {
    if (!x) return;
    mem_free(x->rows);
    mem_free_pages(x->records, records_bytes(x->n_max, x->n_workers));
    mem_free(x);
}

/* --- places ---------------------------------------------------------------------------------- */

static struct place place_at(const struct prefix_index *x, uint32_t tag, uint32_t home) {
    return (struct place){tag, home, prefix_add_lines(x, home, prefix_alt_distance(x, tag))};
}

static struct place place_of_block(const struct prefix_index *x, uint64_t hash) {
    uint64_t mixed = prefix_mix(hash);

    return place_at(x, (uint32_t)mixed, prefix_home_of(x, mixed));
}

static struct place place_of_part(const struct prefix_index *x, struct place block, uint32_t w) {
    return place_at(x, block.tag,
                    prefix_add_lines(x, block.home, prefix_part_distance(x, block.tag, w)));
}

/* The place that a record in use is in. */
static struct place place_of_record(const struct prefix_index *x, uint32_t number) {
    const struct prefix_record *r = &x->records[number];
    uint32_t line = number / PREFIX_LINE;

    if (!r->is_alt) return place_at(x, r->tag, line);
    return place_at(x, r->tag,
                    prefix_add_lines(x, line, x->n_lines - prefix_alt_distance(x, r->tag)));
}

/* The place of the block that a PART belongs to. */
static struct place place_behind_part(const struct prefix_index *x, uint32_t number) {
    struct place part = place_of_record(x, number);
    uint32_t back = x->n_lines - prefix_part_distance(x, part.tag, x->records[number].worker);

    return place_at(x, part.tag, prefix_add_lines(x, part.home, back));
}

/* --- finding --------------------------------------------------------------------------------- */

static bool is_wanted(const struct prefix_record *r, bool is_alt, uint32_t w) {
    if (r->is_alt != is_alt) return false;
    if (w == ANY_WORKER) return r->kind >= PREFIX_LONE;
    return r->kind == PREFIX_PART && r->worker == w;
}

/* Bit i: r[i] has this tag. */
static uint32_t same_tags(const struct prefix_record *r, uint32_t tag) {
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

static uint32_t find_in_line(const struct prefix_index *x, uint32_t line, uint32_t tag, bool is_alt,
                             uint32_t w) {
    const struct prefix_record *r = &x->records[(size_t)line * PREFIX_LINE];

    for (uint32_t same = same_tags(r, tag); same; same &= same - 1) {
        uint32_t i = (uint32_t)__builtin_ctz(same);

        if (is_wanted(&r[i], is_alt, w)) return line * PREFIX_LINE + i;
    }
    return PREFIX_NONE;
}

/* The LONE or SET of a block, whose other line is worked out only when it is not at home. */
static uint32_t find_block(const struct prefix_index *x, uint64_t mixed) {
    uint32_t tag = (uint32_t)mixed, home = prefix_home_of(x, mixed);
    uint32_t n = find_in_line(x, home, tag, false, ANY_WORKER);

    if (n != PREFIX_NONE) return n;
    return find_in_line(x, place_at(x, tag, home).alt, tag, true, ANY_WORKER);
}

/* The LONE or SET at this place; or, of a worker's place, its PART. */
static uint32_t find_at(const struct prefix_index *x, struct place p, uint32_t w) {
    uint32_t n = find_in_line(x, p.home, p.tag, false, w);

    return n != PREFIX_NONE ? n : find_in_line(x, p.alt, p.tag, true, w);
}

static uint32_t find_part(const struct prefix_index *x, struct place block, uint32_t w) {
    return find_at(x, place_of_part(x, block, w), w);
}

/* --- slots ----------------------------------------------------------------------------------- */

static uint32_t free_slot_of(const struct prefix_index *x, uint32_t line) {
    for (uint32_t i = 0; i < PREFIX_LINE; i++) {
        if (x->records[(size_t)line * PREFIX_LINE + i].kind == PREFIX_FREE)
            return line * PREFIX_LINE + i;
    }
    return PREFIX_NONE;
}

static void relink(struct prefix_index *x, uint32_t number) {
    struct prefix_record *r = &x->records[number];

    if (r->kind == PREFIX_SET) return;
    x->records[r->prev].next = number;
    x->records[r->next].prev = number;
}

static void clear(struct prefix_index *x, uint32_t number) {
    x->records[number] = (struct prefix_record){0};
    x->n_used--;
}

static uint32_t other_line(const struct prefix_index *x, uint32_t number) {
    struct place p = place_of_record(x, number);

    return x->records[number].is_alt ? p.home : p.alt;
}

/* Moves one record of a full line to its other line, after making room there in the same way if
 * need be. The slot that became free, or PREFIX_NONE. */
static uint32_t make_room(struct prefix_index *x, uint32_t line, int depth) {
    for (uint32_t deep = 0; deep < 2; deep++) { /* first those that may go at once */
        for (uint32_t from = line * PREFIX_LINE; from < (line + 1) * PREFIX_LINE; from++) {
            uint32_t to_line = other_line(x, from), to = free_slot_of(x, to_line);

            if (to == PREFIX_NONE && deep && depth > 1) to = make_room(x, to_line, depth - 1);
            if (x->records[from].kind == PREFIX_FREE) return from; /* moved by that */
            if (to == PREFIX_NONE || to / PREFIX_LINE != other_line(x, from)) continue;
            x->records[to] = x->records[from];
            x->records[to].is_alt = !x->records[from].is_alt;
            x->records[from] = (struct prefix_record){0};
            relink(x, to);
            return from;
        }
    }
    return PREFIX_NONE;
}

/* A free slot for a record of this place, with tag and is_alt set. PREFIX_NONE: none. */
static uint32_t take_slot(struct prefix_index *x, struct place p) {
    uint32_t n = free_slot_of(x, p.home);

    if (n == PREFIX_NONE) n = free_slot_of(x, p.alt);
    if (n == PREFIX_NONE) n = make_room(x, p.home, MOVES_DEEP);
    if (n == PREFIX_NONE) return PREFIX_NONE;
    x->records[n] = (struct prefix_record){.tag = p.tag, .is_alt = n / PREFIX_LINE != p.home};
    x->n_used++;
    return n;
}

/* --- sets of many workers -------------------------------------------------------------------- */

static bool is_wide(uint64_t set) {
    return (set & ROW_TAG) == ROW_TAG;
}

static uint64_t *row_of(const struct prefix_index *x, uint64_t set) {
    return x->rows + (size_t)(uint32_t)set * x->n_words;
}

static uint32_t row_count(uint64_t set) {
    return (uint32_t)(set >> 32 & 0xFFFF);
}

static uint64_t wide_set(uint32_t row, uint32_t count) {
    return ROW_TAG | (uint64_t)count << 32 | row;
}

/* Where the 16-bit `value` is in the word: a shift, or 64 when it is not there. */
static uint32_t place_of_id(uint64_t set, uint64_t value) {
    for (uint32_t shift = 0; shift < 64; shift += 16) {
        if ((set >> shift & 0xFFFF) == value) return shift;
    }
    return 64;
}

static bool widen(struct prefix_index *x, uint64_t *set) {
    uint32_t row = x->first_free_row;
    uint64_t *words;

    if (!row) return false;
    words = x->rows + (size_t)--row * x->n_words;
    x->first_free_row = (uint32_t)words[0];
    memset(words, 0, x->n_words * sizeof(*words));
    for (uint32_t shift = 0; shift < 64; shift += 16)
        worker_mask_add(words, (uint32_t)(*set >> shift & 0xFFFF) - 1);
    *set = wide_set(row, NARROW_MAX);
    return true;
}

static void narrow(struct prefix_index *x, uint64_t *set) {
    uint64_t *words = row_of(x, *set), ids = 0;

    WORKER_MASK_FOR_EACH(w, words, x->n_words) ids = ids << 16 | (w + 1);
    words[0] = x->first_free_row;
    x->first_free_row = (uint32_t)*set + 1;
    *set = ids;
}

static bool set_has(const struct prefix_index *x, uint64_t set, uint32_t w) {
    if (x->n_words == 1) return set >> w & 1;
    if (is_wide(set)) return worker_mask_has(row_of(x, set), w);
    return place_of_id(set, w + 1) < 64;
}

static bool set_add(struct prefix_index *x, uint64_t *set, uint32_t w) {
    if (x->n_words == 1) {
        *set |= UINT64_C(1) << w;
        return true;
    }
    if (!is_wide(*set)) {
        uint32_t shift = place_of_id(*set, 0);

        if (shift < 64) {
            *set |= (uint64_t)(w + 1) << shift;
            return true;
        }
        if (!widen(x, set)) return false;
    }
    worker_mask_add(row_of(x, *set), w);
    *set = wide_set((uint32_t)*set, row_count(*set) + 1);
    return true;
}

static void set_drop(struct prefix_index *x, uint64_t *set, uint32_t w) {
    if (x->n_words == 1) {
        *set &= ~(UINT64_C(1) << w);
    } else if (is_wide(*set)) {
        worker_mask_drop(row_of(x, *set), w);
        *set = wide_set((uint32_t)*set, row_count(*set) - 1);
        if (row_count(*set) == NARROW_MAX) narrow(x, set);
    } else {
        *set &= ~(UINT64_C(0xFFFF) << place_of_id(*set, w + 1));
    }
}

/* The set as a mask. */
static void set_expand(const struct prefix_index *x, uint64_t set, uint64_t *words) {
    if (x->n_words == 1) {
        words[0] = set;
    } else if (is_wide(set)) {
        memcpy(words, row_of(x, set), x->n_words * sizeof(*words));
    } else {
        memset(words, 0, x->n_words * sizeof(*words));
        for (uint32_t shift = 0; shift < 64; shift += 16) {
            uint32_t id = (uint32_t)(set >> shift & 0xFFFF);

            if (id) worker_mask_add(words, id - 1);
        }
    }
}

/* The only worker of the set, or WORKER_NONE when there are more. */
static uint32_t set_only(const struct prefix_index *x, uint64_t set) {
    uint32_t shift = 0;

    if (x->n_words == 1) return set & (set - 1) ? WORKER_NONE : (uint32_t)__builtin_ctzll(set);
    if (is_wide(set)) return WORKER_NONE;
    while (!(set >> shift & 0xFFFF))
        shift += 16;
    return set & ~(UINT64_C(0xFFFF) << shift) ? WORKER_NONE : (uint32_t)(set >> shift & 0xFFFF) - 1;
}

/* --- from one worker to several and back ----------------------------------------------------- */

/* The worker's side of a record, moved into another slot. */
static void carry(struct prefix_index *x, uint32_t from, uint32_t to, enum prefix_kind kind) {
    const struct prefix_record *f = &x->records[from];
    struct prefix_record *t = &x->records[to];

    t->kind = kind;
    t->epoch = f->epoch;
    t->is_computed = f->is_computed;
    t->worker = f->worker;
    t->pins = f->pins;
    t->prev = f->prev;
    t->next = f->next;
    relink(x, to);
}

/* Makes the block's LONE a SET with one PART. False: no room. */
static bool split(struct prefix_index *x, struct place block) {
    uint32_t n = find_at(x, block, ANY_WORKER), w = x->records[n].worker;
    uint32_t part = take_slot(x, place_of_part(x, block, w));

    if (part == PREFIX_NONE) return false;
    n = find_at(x, block, ANY_WORKER); /* it may have been moved */
    carry(x, n, part, PREFIX_PART);
    x->records[n].kind = PREFIX_SET;
    x->records[n].set = 0;
    return set_add(x, &x->records[n].set, w); /* a first one always has room */
}

/* Makes the block's SET a LONE again if one worker is left. */
static void settle(struct prefix_index *x, struct place block) {
    uint32_t n = find_at(x, block, ANY_WORKER), w = set_only(x, x->records[n].set), part;

    if (w == WORKER_NONE) return;
    part = find_part(x, block, w);
    carry(x, part, n, PREFIX_LONE);
    clear(x, part);
}

static void init_record(const struct prefix_index *x, struct prefix_record *r,
                        enum prefix_kind kind, uint32_t w) {
    r->kind = kind;
    r->worker = w;
    r->epoch = worker_mask_has(x->odd.words, w);
}

/* w's PART of a block that has a SET. */
static uint32_t insert_part(struct prefix_index *x, struct place block, uint32_t w) {
    uint32_t part = take_slot(x, place_of_part(x, block, w)), n;

    if (part == PREFIX_NONE) return PREFIX_NONE;
    n = find_at(x, block, ANY_WORKER);
    if (!set_add(x, &x->records[n].set, w)) {
        clear(x, part);
        return PREFIX_NONE;
    }
    init_record(x, &x->records[part], PREFIX_PART, w);
    return part;
}

/* --- the contract ---------------------------------------------------------------------------- */

struct prefix_record *prefix_index_at(const struct prefix_index *x, uint32_t number) {
    return &x->records[number];
}

uint32_t prefix_index_head(const struct prefix_index *x, uint32_t w, uint32_t i) {
    return x->n_lines * PREFIX_LINE + w * HEADS_PER_WORKER + i;
}

/* The record of w of the block whose LONE or SET is at n. */
static uint32_t find_of(const struct prefix_index *x, uint32_t n, uint64_t hash, uint32_t w) {
    if (n == PREFIX_NONE) return n;
    if (x->records[n].kind == PREFIX_LONE) return x->records[n].worker == w ? n : PREFIX_NONE;
    if (!set_has(x, x->records[n].set, w)) return PREFIX_NONE;
    return find_part(x, place_of_block(x, hash), w);
}

uint32_t prefix_index_find(const struct prefix_index *x, uint64_t hash, uint32_t w) {
    return find_of(x, find_block(x, prefix_mix(hash)), hash, w);
}

uint32_t prefix_index_insert(struct prefix_index *x, uint64_t hash, uint32_t w) {
    struct place block = place_of_block(x, hash);
    uint32_t n = find_at(x, block, ANY_WORKER);

    assert(w < x->n_workers);
    if (n == PREFIX_NONE) {
        if (x->n_used == x->n_max || (n = take_slot(x, block)) == PREFIX_NONE) return PREFIX_NONE;
        init_record(x, &x->records[n], PREFIX_LONE, w);
        x->n_blocks++;
        return n;
    }
    if (x->records[n].kind == PREFIX_LONE) {
        assert(x->records[n].worker != w);
        if (x->n_used + 2 > x->n_max || !split(x, block)) return PREFIX_NONE;
    } else if (x->n_used == x->n_max) {
        return PREFIX_NONE;
    }
    n = insert_part(x, block, w);
    if (n == PREFIX_NONE) settle(x, block);
    return n;
}

uint32_t prefix_index_insert_run(struct prefix_index *x, uint32_t w, uint32_t n_blocks) {
    uint64_t mixed = rng_mix(x->n_runs++);
    uint32_t n = PREFIX_NONE;

    assert(n_blocks && n_blocks <= PREFIX_PINS_MAX);
    if (x->n_used < x->n_max)
        n = take_slot(x, place_at(x, (uint32_t)mixed, prefix_home_of(x, mixed)));
    if (n == PREFIX_NONE) return n;
    init_record(x, &x->records[n], PREFIX_RUN, w);
    x->records[n].is_computed = true;
    x->records[n].pins = (uint16_t)n_blocks;
    return n;
}

void prefix_index_remove(struct prefix_index *x, uint32_t number) {
    const struct prefix_record *r = &x->records[number];
    struct place block;
    uint32_t n, w = r->worker;

    if (r->kind != PREFIX_PART) {
        assert(r->kind == PREFIX_LONE || r->kind == PREFIX_RUN);
        x->n_blocks -= r->kind == PREFIX_LONE;
        clear(x, number);
        return;
    }
    block = place_behind_part(x, number);
    clear(x, number);
    n = find_at(x, block, ANY_WORKER);
    set_drop(x, &x->records[n].set, w);
    settle(x, block);
}

bool prefix_index_is_dead(const struct prefix_index *x, const struct prefix_record *r) {
    return prefix_is_dead(x, r);
}

void prefix_index_revive(struct prefix_index *x, struct prefix_record *r) {
    r->epoch = worker_mask_has(x->odd.words, r->worker);
    r->is_computed = false;
    r->pins = 0;
}

void prefix_index_drop(struct prefix_index *x, uint32_t w) {
    assert(!worker_mask_has(x->lost.words, w));
    x->odd.words[w / 64] ^= UINT64_C(1) << w % 64;
    worker_mask_add(x->lost.words, w);
    x->any_lost = true;
}

void prefix_index_drop_done(struct prefix_index *x, uint32_t w) {
    worker_mask_drop(x->lost.words, w);
    x->any_lost = worker_mask_count(x->lost.words, x->n_words) > 0;
}

bool prefix_index_has(const struct prefix_index *x, uint64_t hash, uint32_t w) {
    uint32_t n = prefix_index_find(x, hash, w);

    return n != PREFIX_NONE && !prefix_index_is_dead(x, &x->records[n]);
}

uint32_t prefix_index_n_blocks(const struct prefix_index *x) {
    return x->n_blocks;
}

uint32_t prefix_index_n_records(const struct prefix_index *x) {
    return x->n_used;
}

bool prefix_index_is_full(const struct prefix_index *x) {
    return x->n_used + 2 > x->n_max;
}

void prefix_index_ask_early(const struct prefix_index *x, uint64_t hash) {
    __builtin_prefetch(&x->records[(size_t)prefix_home_of(x, prefix_mix(hash)) * PREFIX_LINE]);
}

void prefix_index_ask_late(const struct prefix_index *x, uint64_t hash, uint32_t w) {
    uint64_t mixed = prefix_mix(hash);
    uint32_t tag = (uint32_t)mixed, home = prefix_home_of(x, mixed), line;
    uint32_t n = find_in_line(x, home, tag, false, ANY_WORKER);

    if (n == PREFIX_NONE) {
        line = place_at(x, tag, home).alt;
    } else {
        if (w == WORKER_NONE || x->records[n].kind == PREFIX_LONE) return;
        line = place_of_part(x, place_at(x, tag, home), w).home;
    }
    __builtin_prefetch(&x->records[(size_t)line * PREFIX_LINE]);
}

/* --- matching -------------------------------------------------------------------------------- */

/* Takes out those whose record of the block is dead: few workers, for a short time. */
static void leave_out_dead(const struct prefix_index *x, struct place block, uint64_t *holders) {
    for (uint32_t k = 0; k < x->n_words; k++) {
        for (uint64_t bits = holders[k] & x->lost.words[k]; bits; bits &= bits - 1) {
            uint32_t w = k * 64 + (uint32_t)__builtin_ctzll(bits);

            if (prefix_index_is_dead(x, &x->records[find_part(x, block, w)]))
                worker_mask_drop(holders, w);
        }
    }
}

/* The workers that hold the block, whose LONE or SET is at n, as a mask. */
static void expand_holders(const struct prefix_index *x, uint32_t n, uint64_t hash,
                           uint64_t *holders) {
    const struct prefix_record *r = &x->records[n];

    if (n != PREFIX_NONE && r->kind == PREFIX_SET) {
        set_expand(x, r->set, holders);
        if (UNLIKELY(x->any_lost)) leave_out_dead(x, place_of_block(x, hash), holders);
        return;
    }
    memset(holders, 0, x->n_words * sizeof(*holders));
    if (n != PREFIX_NONE && !prefix_is_dead(x, r)) worker_mask_add(holders, r->worker);
}

/* Writes `i` as the depth of those of `live` that are not in `holders`, and takes them out.
 * Returns how many of n_live stay. */
static uint32_t keep_holders(uint64_t *live, uint32_t n_live, const uint64_t *holders,
                             uint32_t n_words, uint32_t i, uint32_t *depth) {
    for (uint32_t k = 0; k < n_words; k++) {
        uint64_t gone = live[k] & ~holders[k];

        live[k] &= holders[k];
        for (; gone; gone &= gone - 1, n_live--)
            depth[k * 64 + (uint32_t)__builtin_ctzll(gone)] = i;
    }
    return n_live;
}

/* A block on its way through the walk: asked for, looked for at home, then found. */
struct step {
    uint32_t tag, home, n;
};

struct walk {
    const struct prefix_index *x;
    const uint64_t *chain;
    uint32_t n;
    struct step steps[2 * PREFIX_ASK_EARLY]; /* block i is at i modulo that */
};

static struct step *step_of(struct walk *k, uint32_t i) {
    return &k->steps[i % ARRAY_LEN(k->steps)];
}

static void walk_early(struct walk *k, uint32_t i) {
    struct step *s = step_of(k, i);
    uint64_t mixed;

    if (i >= k->n) return;
    mixed = prefix_mix(k->chain[i]);
    s->tag = (uint32_t)mixed;
    s->home = prefix_home_of(k->x, mixed);
    __builtin_prefetch(&k->x->records[(size_t)s->home * PREFIX_LINE]);
}

static void walk_late(struct walk *k, uint32_t i) {
    struct step *s = step_of(k, i);

    if (i >= k->n) return;
    s->n = find_in_line(k->x, s->home, s->tag, false, ANY_WORKER);
    if (s->n != PREFIX_NONE) return;
    s->home = place_at(k->x, s->tag, s->home).alt;
    __builtin_prefetch(&k->x->records[(size_t)s->home * PREFIX_LINE]);
}

static void walk_begin(struct walk *k) {
    for (uint32_t i = 0; i < PREFIX_ASK_EARLY; i++)
        walk_early(k, i);
    for (uint32_t i = 0; i < PREFIX_ASK_LATE; i++)
        walk_late(k, i);
}

/* The LONE or SET of block i, which is called for in turn. */
static uint32_t walk_find(struct walk *k, uint32_t i) {
    struct step *s = step_of(k, i);

    walk_early(k, i + PREFIX_ASK_EARLY);
    walk_late(k, i + PREFIX_ASK_LATE);
    return s->n != PREFIX_NONE ? s->n : find_in_line(k->x, s->home, s->tag, true, ANY_WORKER);
}

uint32_t prefix_index_match(const struct prefix_index *x, const uint64_t *chain, uint32_t n,
                            const uint64_t *mask, uint32_t *depth, uint32_t *guesses) {
    uint64_t live[WORKER_MASK_WORDS], holders[WORKER_MASK_WORDS];
    uint32_t n_mask = worker_mask_count(mask, x->n_words), n_live = n_mask, n_shared = 0, i, seen;
    struct walk walk;

    walk.x = x, walk.chain = chain, walk.n = n; /* the steps are written before they are read */
    memcpy(live, mask, x->n_words * sizeof(*live));
    walk_begin(&walk);
    for (i = 0; i < n && n_live > 1; i++) {
        seen = walk_find(&walk, i);
        if (guesses) guesses[i] = seen;
        expand_holders(x, seen, chain[i], holders);
        n_live = keep_holders(live, n_live, holders, x->n_words, i, depth);
        if (n_live > n_mask / 2) n_shared = i + 1;
    }
    for (uint32_t k = i; guesses && k < n; k++)
        guesses[k] = PREFIX_NONE;
    if (n_live != 1) {
        WORKER_MASK_FOR_EACH(w, live, x->n_words) depth[w] = n;
        return n_shared;
    }
    uint32_t last = worker_mask_next(live, x->n_words, 0); /* most of the walk is for one */
    for (; i < n; i++) {
        seen = find_of(x, walk_find(&walk, i), chain[i], last);
        if (guesses) guesses[i] = seen;
        if (seen == PREFIX_NONE || prefix_is_dead(x, &x->records[seen])) break;
        if (n_mask == 1) n_shared = i + 1;
    }
    depth[last] = i;
    return n_shared;
}

/* --- checking -------------------------------------------------------------------------------- */

static uint32_t set_count(const struct prefix_index *x, uint64_t set) {
    uint64_t words[WORKER_MASK_WORDS];

    set_expand(x, set, words);
    return worker_mask_count(words, x->n_words);
}

void prefix_index_check(const struct prefix_index *x) {
    uint32_t n_of[PREFIX_SET + 1] = {0}, n_wide = 0, n_members = 0, n_free_rows = 0;

    for (uint32_t n = 0; n < x->n_lines * PREFIX_LINE; n++) {
        const struct prefix_record *r = &x->records[n];
        struct place p = place_of_record(x, n);

        n_of[r->kind]++;
        if (r->kind == PREFIX_FREE || r->kind == PREFIX_RUN) continue;
        assert((r->is_alt ? p.alt : p.home) == n / PREFIX_LINE);
        if (r->kind == PREFIX_PART) { /* its block is there, and knows of it */
            uint32_t set = find_at(x, place_behind_part(x, n), ANY_WORKER);

            assert(set != PREFIX_NONE && x->records[set].kind == PREFIX_SET);
            assert(set_has(x, x->records[set].set, r->worker));
            assert(find_at(x, p, r->worker) == n); /* the only one */
            (void)set;
            continue;
        }
        assert(find_at(x, p, ANY_WORKER) == n);
        if (r->kind != PREFIX_SET) continue;
        assert(set_count(x, r->set) > 1);
        n_members += set_count(x, r->set);
        if (x->n_words == 1 || !is_wide(r->set)) continue;
        n_wide++;
        assert(row_count(r->set) > NARROW_MAX);
        assert(set_count(x, r->set) == row_count(r->set));
    }
    assert(n_members == n_of[PREFIX_PART]);
    assert(n_of[PREFIX_LONE] + n_of[PREFIX_SET] == x->n_blocks);
    assert(x->n_lines * PREFIX_LINE - n_of[PREFIX_FREE] == x->n_used && x->n_used <= x->n_max);
    for (uint32_t row = x->first_free_row; row; n_free_rows++)
        row = (uint32_t)x->rows[(size_t)(row - 1) * x->n_words];
    assert(n_wide + n_free_rows == x->n_rows);
    (void)n_members, (void)n_wide;
}
