/* router/routing/prefix_index.c - two lines of four records for every key, displacement, and
 * growth.
 *
 * prefix_index_internal.h defines where a record may be and works out one insert. A new record goes
 * home if there is room, else to its other line; else one of its line-mates is moved to its own
 * other line, after one there if necessary.
 *
 * Invariant: a block has one LONE, or one SET of at least two workers with one PART for each.
 *
 * The table begins with at most 2^(ANCHOR_BITS+1) lines and doubles up to its planned size. Once it
 * is three quarters full each insertion splits two lines, so that a doubling ends before the table
 * is seven eighths full, plus one record for each LONE that became a SET meanwhile. The four
 * records of a line always fit into the two that replace it. Memory is reserved at creation and
 * stays untouched beyond the lines in use. Follows: linear hashing (Litwin, 1980), in key order so
 * that records need no second hash. */
#include <assert.h>
#include <string.h>

#include "common/base/mem.h"
#include "common/base/rng.h"
#include "router/routing/prefix_index_internal.h"

#define HEADS_PER_WORKER 4u
#define FULL_PERCENT     89 /* of the slots at n_max records: keeps displacements short */
#define MOVES_DEEP       4  /* records displaced per insertion; 3 always sufficed at 89 % */
#define ROW_BYTES_SHARE  2  /* half a byte of mask pool per record */
#define ROWS_MIN         64
#define ANCHOR_BITS      12 /* 256 to 512 KiB of lines at first: a second-level cache */
#define GROW_LINES       2  /* split per insertion */

/* --- creation -------------------------------------------------------------------------------- */

/* The number of lines: n_first << n_doublings at most. */
struct plan {
    uint32_t anchor_bits, n_first, n_doublings;
};

static struct plan plan_for(uint32_t n_records, uint32_t anchor_bits) {
    uint32_t n = (uint32_t)((uint64_t)n_records * 100 / FULL_PERCENT / PREFIX_LINE) + 4;
    struct plan plan = {.anchor_bits = 31u - (uint32_t)__builtin_clz(n)};

    if (plan.anchor_bits > anchor_bits) {
        plan.n_doublings = plan.anchor_bits - anchor_bits;
        plan.anchor_bits = anchor_bits;
    }
    plan.n_first = n >> plan.n_doublings;
    if (plan.n_first << plan.n_doublings < n) plan.n_first++;
    return plan;
}

static uint32_t lines_max(struct plan plan) {
    return plan.n_first << plan.n_doublings;
}

static uint32_t head_lines(uint32_t n_workers) {
    return CEIL_DIV(HEADS_PER_WORKER * n_workers, PREFIX_LINE);
}

static uint64_t lines_bytes(uint32_t n_workers, uint32_t n_lines) {
    return ((uint64_t)head_lines(n_workers) + n_lines) * CACHE_LINE;
}

static uint32_t rows_for(uint32_t n_records, uint32_t n_workers) {
    uint32_t n_words = CEIL_DIV(n_workers, 64u);

    if (n_words == 1) return 0;
    return MAX(n_records / (uint32_t)(ROW_BYTES_SHARE * sizeof(uint64_t)) / n_words, ROWS_MIN);
}

uint64_t prefix_index_bytes(uint32_t n_records, uint32_t n_workers) {
    return lines_bytes(n_workers, lines_max(plan_for(n_records, ANCHOR_BITS))) +
           prefix_sets_bytes(n_workers, rows_for(n_records, n_workers));
}

/* Sets what follows from the number of lines. */
static void set_lines(struct prefix_index *x, uint32_t n_lines) {
    x->n_lines = x->n_whole = n_lines;
    x->line_width = UINT64_MAX / n_lines;
}

struct prefix_index *prefix_index_create_small(uint32_t n_records, uint32_t n_workers,
                                               uint32_t anchor_bits) {
    struct prefix_index *x = mem_zalloc(sizeof(*x));
    struct plan plan = plan_for(n_records, anchor_bits);

    _Static_assert(sizeof(struct prefix_record) * PREFIX_LINE == CACHE_LINE,
                   "a line is a cache line");
    assert(n_records && n_records <= UINT32_MAX / 2 && n_workers && n_workers <= WORKERS_MAX);
    x->n_workers = n_workers;
    x->n_max = n_records;
    x->first_line = head_lines(n_workers);
    x->n_lines_max = lines_max(plan);
    x->tag_shift = 32 - plan.anchor_bits;
    x->key_mask = ~((UINT64_C(1) << x->tag_shift) - 1);
    set_lines(x, plan.n_first);
    x->n_moves = mem_calloc(n_workers, sizeof(*x->n_moves));
    x->records = mem_try_pages(lines_bytes(n_workers, x->n_lines_max));
    if (!prefix_sets_init(&x->sets, n_workers, rows_for(n_records, n_workers)) || !x->records) {
        prefix_index_destroy(x);
        return NULL;
    }
    for (uint32_t head = 0; head < HEADS_PER_WORKER * n_workers; head++)
        x->records[head].prev = x->records[head].next = head;
    return x;
}

struct prefix_index *prefix_index_create(uint32_t n_records, uint32_t n_workers) {
    return prefix_index_create_small(n_records, n_workers, ANCHOR_BITS);
}

void prefix_index_destroy(struct prefix_index *x) {
    if (!x) return;
    prefix_sets_fini(&x->sets);
    mem_free(x->n_moves);
    mem_free_pages(x->records, lines_bytes(x->n_workers, x->n_lines_max));
    mem_free(x);
}

static uint32_t lines_in_use(const struct prefix_index *x) {
    return x->n_whole < x->n_lines ? 2 * x->n_lines : x->n_lines;
}

uint64_t prefix_index_bytes_used(const struct prefix_index *x) {
    return lines_bytes(x->n_workers, lines_in_use(x)) +
           prefix_sets_bytes(x->n_workers, x->sets.n_rows_begun);
}

/* --- places ---------------------------------------------------------------------------------- */

/* The position in the record's line whose lower bits follow from its tag and worker. */
static uint64_t position_of(const struct prefix_index *x, uint32_t number) {
    const struct prefix_record *r = &x->records[number];
    uint32_t line = number / PREFIX_LINE - x->first_line;
    bool is_whole = line < x->n_whole;
    uint64_t anchor_unit = UINT64_C(1) << 32 << x->tag_shift;
    uint64_t lower = (uint64_t)r->tag << x->tag_shift, begin, position;

    if (r->kind == PREFIX_PART) lower += prefix_part_distance(r->tag, r->worker);
    if (r->is_alt) lower += prefix_other_distance(r->tag);
    begin = line * (is_whole ? x->line_width : x->line_width / 2);
    position = begin + ((lower - begin) & (anchor_unit - 1));
    /* begin may lie up to n_lines positions below the line */
    if (prefix_scale(position, is_whole ? x->n_lines : 2 * x->n_lines) != line)
        position += anchor_unit;
    return position;
}

/* The place that a record in use is in. */
static struct prefix_place place_of_record(const struct prefix_index *x, uint32_t number) {
    const struct prefix_record *r = &x->records[number];
    uint64_t position = position_of(x, number);

    if (r->is_alt) position -= prefix_other_distance(r->tag);
    return (struct prefix_place){position, r->tag};
}

/* The place of the block that a PART belongs to. */
static struct prefix_place place_behind_part(const struct prefix_index *x, uint32_t number) {
    struct prefix_place place = place_of_record(x, number);

    place.home -= prefix_part_distance(place.tag, x->records[number].worker);
    return place;
}

/* --- slots ----------------------------------------------------------------------------------- */

static uint32_t free_slot_of(const struct prefix_index *x, uint32_t line) {
    for (uint32_t i = 0; i < PREFIX_LINE; i++) {
        if (x->records[(size_t)line * PREFIX_LINE + i].kind == PREFIX_FREE)
            return line * PREFIX_LINE + i;
    }
    return PREFIX_NONE;
}

/* Links the ring neighbours of a moved record to its new slot. */
static void relink(struct prefix_index *x, uint32_t number) {
    struct prefix_record *r = &x->records[number];

    if (r->kind == PREFIX_SET) return;
    x->records[r->prev].next = number;
    x->records[r->next].prev = number;
    x->n_moves[r->worker]++;
}

/* `to` must be free. */
static void move_record(struct prefix_index *x, uint32_t from, uint32_t to) {
    x->records[to] = x->records[from];
    x->records[from] = (struct prefix_record){0};
    relink(x, to);
}

static void clear(struct prefix_index *x, uint32_t number) {
    x->records[number] = (struct prefix_record){0};
    x->n_used--;
}

static uint32_t other_line_of(const struct prefix_index *x, uint32_t number) {
    struct prefix_place place = place_of_record(x, number);

    return x->records[number].is_alt ? prefix_home_line(x, place) : prefix_other_line(x, place);
}

/* Moves one record of a full line to its other line, after making room there in the same way if
 * necessary. Returns the freed slot, or PREFIX_NONE. */
static uint32_t make_room(struct prefix_index *x, uint32_t line, int depth) {
    for (uint32_t deep = 0; deep < 2; deep++) { /* first, records whose other line has room */
        for (uint32_t from = line * PREFIX_LINE; from < (line + 1) * PREFIX_LINE; from++) {
            uint32_t to_line = other_line_of(x, from), to = free_slot_of(x, to_line);

            if (to == PREFIX_NONE && deep && depth > 1) to = make_room(x, to_line, depth - 1);
            if (x->records[from].kind == PREFIX_FREE) return from; /* the recursion moved it */
            if (to == PREFIX_NONE || to / PREFIX_LINE != other_line_of(x, from)) continue;
            x->records[from].is_alt = !x->records[from].is_alt;
            move_record(x, from, to);
            return from;
        }
    }
    return PREFIX_NONE;
}

/* Takes a slot for a record of this place and sets tag and is_alt. PREFIX_NONE: no room. */
static uint32_t take_slot(struct prefix_index *x, struct prefix_place p) {
    uint32_t home = prefix_home_line(x, p), n = free_slot_of(x, home);

    if (n == PREFIX_NONE) n = free_slot_of(x, prefix_other_line(x, p));
    if (n == PREFIX_NONE) n = make_room(x, home, MOVES_DEEP);
    if (n == PREFIX_NONE) return PREFIX_NONE;
    x->records[n] = (struct prefix_record){.tag = p.tag, .is_alt = n / PREFIX_LINE != home};
    x->n_used++;
    return n;
}

/* --- growth ---------------------------------------------------------------------------------- */

/* Splits the last whole line. */
static void split_line(struct prefix_index *x) {
    uint32_t line = x->first_line + x->n_whole - 1;

    for (uint32_t from = line * PREFIX_LINE; from < (line + 1) * PREFIX_LINE; from++) {
        uint32_t to_line;

        if (x->records[from].kind == PREFIX_FREE) continue;
        to_line = x->first_line + prefix_scale(position_of(x, from), 2 * x->n_lines);
        if (to_line != line)
            move_record(x, from, free_slot_of(x, to_line)); /* stays in place for line 0 */
    }
    x->n_whole--;
}

/* One step of growth, when due or begun. Moves records. */
static void grow(struct prefix_index *x) {
    if (x->n_whole == x->n_lines &&
        (x->n_lines == x->n_lines_max || x->n_used < x->n_lines * (PREFIX_LINE * 3 / 4)))
        return;
    for (uint32_t i = 0; i < GROW_LINES && x->n_whole; i++)
        split_line(x);
    if (!x->n_whole) set_lines(x, 2 * x->n_lines);
}

/* --- from one worker to several and back ----------------------------------------------------- */

/* Copies the worker's part of a record to another slot. */
static void carry(struct prefix_index *x, uint32_t from, uint32_t to, enum prefix_kind kind) {
    const struct prefix_record *f = &x->records[from];
    struct prefix_record *t = &x->records[to];

    t->kind = kind;
    t->epoch = f->epoch;
    t->is_computed = f->is_computed;
    t->has_copy = f->has_copy;
    t->worker = f->worker;
    t->pins = f->pins;
    t->prev = f->prev;
    t->next = f->next;
    relink(x, to);
}

/* Makes the block's LONE a SET with one PART. False: no room. */
static bool share(struct prefix_index *x, struct prefix_place block) {
    uint32_t n = prefix_find_at(x, block, PREFIX_ANY_WORKER), w = x->records[n].worker;
    uint32_t part = take_slot(x, prefix_part_place(block, w));

    if (part == PREFIX_NONE) return false;
    n = prefix_find_at(x, block, PREFIX_ANY_WORKER); /* take_slot may have moved it */
    carry(x, n, part, PREFIX_PART);
    x->records[n].kind = PREFIX_SET;
    x->records[n].set = 0;
    return prefix_set_add(&x->sets, &x->records[n].set, w); /* the first worker always fits */
}

/* Makes the block's SET a LONE again if one worker is left. */
static void settle(struct prefix_index *x, struct prefix_place block) {
    uint32_t n = prefix_find_at(x, block, PREFIX_ANY_WORKER), part;
    uint32_t w = prefix_set_only(&x->sets, x->records[n].set);

    if (w == WORKER_NONE) return;
    part = prefix_find_part(x, block, w);
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
static uint32_t insert_part(struct prefix_index *x, struct prefix_place block, uint32_t w) {
    uint32_t part = take_slot(x, prefix_part_place(block, w)), n;

    if (part == PREFIX_NONE) return PREFIX_NONE;
    n = prefix_find_at(x, block, PREFIX_ANY_WORKER);
    if (!prefix_set_add(&x->sets, &x->records[n].set, w)) {
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
    (void)x;
    return w * HEADS_PER_WORKER + i;
}

uint32_t prefix_index_find(const struct prefix_index *x, uint64_t hash, uint32_t w) {
    struct prefix_place block = prefix_place_of(x, hash);
    uint32_t n = prefix_find_at(x, block, PREFIX_ANY_WORKER);
    const struct prefix_record *r = &x->records[n];

    if (n == PREFIX_NONE) return n;
    if (r->kind == PREFIX_LONE) return r->worker == w ? n : PREFIX_NONE;
    return prefix_set_has(&x->sets, r->set, w) ? prefix_find_part(x, block, w) : PREFIX_NONE;
}

uint32_t prefix_index_insert(struct prefix_index *x, uint64_t hash, uint32_t w) {
    struct prefix_place block = prefix_place_of(x, hash);
    uint32_t n;

    assert(w < x->n_workers);
    grow(x);
    n = prefix_find_at(x, block, PREFIX_ANY_WORKER);
    if (n == PREFIX_NONE) {
        if (x->n_used == x->n_max || (n = take_slot(x, block)) == PREFIX_NONE) return PREFIX_NONE;
        init_record(x, &x->records[n], PREFIX_LONE, w);
        x->n_blocks++;
        return n;
    }
    if (x->records[n].kind == PREFIX_LONE) {
        assert(x->records[n].worker != w);
        if (x->n_used + 2 > x->n_max || !share(x, block)) return PREFIX_NONE;
    } else if (x->n_used == x->n_max) {
        return PREFIX_NONE;
    }
    n = insert_part(x, block, w);
    if (n == PREFIX_NONE) settle(x, block);
    return n;
}

uint32_t prefix_index_insert_run(struct prefix_index *x, uint32_t w, uint32_t n_blocks) {
    uint32_t n = PREFIX_NONE;

    assert(n_blocks && n_blocks <= PREFIX_PINS_MAX);
    grow(x);
    if (x->n_used < x->n_max) n = take_slot(x, prefix_place_of(x, rng_mix(x->n_runs++)));
    if (n == PREFIX_NONE) return n;
    init_record(x, &x->records[n], PREFIX_RUN, w);
    x->records[n].is_computed = true;
    x->records[n].pins = n_blocks & PREFIX_PINS_MAX;
    return n;
}

void prefix_index_remove(struct prefix_index *x, uint32_t number) {
    const struct prefix_record *r = &x->records[number];
    struct prefix_place block;
    uint32_t n, w = r->worker;

    if (r->kind != PREFIX_PART) {
        assert(r->kind == PREFIX_LONE || r->kind == PREFIX_RUN);
        x->n_blocks -= r->kind == PREFIX_LONE;
        clear(x, number);
        return;
    }
    block = place_behind_part(x, number);
    clear(x, number);
    n = prefix_find_at(x, block, PREFIX_ANY_WORKER);
    prefix_set_drop(&x->sets, &x->records[n].set, w);
    settle(x, block);
}

uint64_t prefix_index_name(const struct prefix_index *x, uint32_t number) {
    bool is_part = x->records[number].kind == PREFIX_PART;

    return (is_part ? place_behind_part(x, number) : place_of_record(x, number)).home;
}

uint64_t prefix_index_hash_named(uint64_t name) {
    return prefix_unmix(name);
}

bool prefix_index_is_dead(const struct prefix_index *x, const struct prefix_record *r) {
    return prefix_is_dead(x, r);
}

void prefix_index_revive(struct prefix_index *x, struct prefix_record *r) {
    r->epoch = worker_mask_has(x->odd.words, r->worker);
    r->is_computed = r->has_copy = false;
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
    x->any_lost = worker_mask_count(x->lost.words, x->sets.n_words) > 0;
}

bool prefix_index_has(const struct prefix_index *x, uint64_t hash, uint32_t w) {
    uint32_t n = prefix_index_find(x, hash, w);

    return n != PREFIX_NONE && !prefix_index_is_dead(x, &x->records[n]);
}

uint32_t prefix_index_n_blocks(const struct prefix_index *x) {
    return x->n_blocks;
}

bool prefix_index_is_full(const struct prefix_index *x) {
    return x->n_used + 2 > x->n_max;
}

/* --- checking -------------------------------------------------------------------------------- */

/* Asserts the invariants of one record in use at its place. */
static void check_record(const struct prefix_index *x, uint32_t n) {
    const struct prefix_record *r = &x->records[n];
    struct prefix_place p = place_of_record(x, n);

    assert(n / PREFIX_LINE == (r->is_alt ? prefix_other_line(x, p) : prefix_home_line(x, p)));
    if (r->kind == PREFIX_PART) { /* its SET exists and has the worker */
        uint32_t set = prefix_find_at(x, place_behind_part(x, n), PREFIX_ANY_WORKER);

        assert(set != PREFIX_NONE && x->records[set].kind == PREFIX_SET);
        assert(prefix_set_has(&x->sets, x->records[set].set, r->worker));
        assert(prefix_find_at(x, p, r->worker) == n); /* unique */
        (void)set;
    } else if (r->kind != PREFIX_RUN) {
        assert((p.home & ~x->key_mask) == 0); /* a key */
        assert((uint32_t)(p.home >> x->tag_shift) == r->tag);
        assert(prefix_find_at(x, p, PREFIX_ANY_WORKER) == n);
    }
}

void prefix_index_check(const struct prefix_index *x) {
    uint32_t n_of[PREFIX_SET + 1] = {0}, n_wide = 0, n_members = 0;

    assert(x->n_whole && x->n_whole <= x->n_lines && lines_in_use(x) <= x->n_lines_max);
    for (uint32_t line = 0; line < x->n_lines_max; line++) {
        bool is_in_use = line < x->n_whole || (line >= 2 * x->n_whole && line < lines_in_use(x));

        for (uint32_t i = 0; i < PREFIX_LINE; i++) {
            uint32_t n = (x->first_line + line) * PREFIX_LINE + i;
            const struct prefix_record *r = &x->records[n];

            n_of[r->kind]++;
            if (r->kind == PREFIX_FREE) continue;
            assert(is_in_use);
            check_record(x, n);
            if (r->kind != PREFIX_SET) continue;
            assert(prefix_set_count(&x->sets, r->set) > 1);
            n_members += prefix_set_count(&x->sets, r->set);
            n_wide += prefix_set_has_row(&x->sets, r->set);
        }
        (void)is_in_use;
    }
    assert(n_members == n_of[PREFIX_PART]);
    assert(n_of[PREFIX_LONE] + n_of[PREFIX_SET] == x->n_blocks);
    assert(n_of[PREFIX_RUN] + n_of[PREFIX_PART] + x->n_blocks == x->n_used);
    assert(x->n_used <= x->n_max);
    prefix_sets_check(&x->sets, n_wide);
    (void)n_members;
}
