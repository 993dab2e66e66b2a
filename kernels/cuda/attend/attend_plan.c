/* kernels/cuda/attend/attend_plan.c - the work lists of attention.
 *
 * A *span* is what one item would have to read if nothing were split: units [first, last) of pages
 * in decode, of tiles of 64 positions in prefill. Items and KV heads are thread blocks; the device
 * holds so many at once, a wave; `slots` is a wave's items. Too few items leave multiprocessors
 * idle, many small ones cost what beginning an item costs. So spans are cut at multiples of one
 * chunk for all, chosen like this:
 *
 *      the smallest that fits    the grid of a graph is fixed: chunk >= c0 with parts(c0) <= capacity
 *      the fewest parts          among c0 and longest / s for s = 1, 2, 3 ...: the largest chunk whose
 *      that are good enough      time is within 1 / 0.85 of the best; time = waves * (chunk + overhead)
 *
 * which is the rule of FlashAttention-3, for spans of any lengths. Counting parts(c) is a multiply
 * and a shift per span; some twenty counts make a plan.
 *
 * Prefill tiles have 64 or 128 packed rows. 128 read K and V half as often and keep the tensor
 * units busier, so that a unit takes 4/3 of the time for twice the work; two such blocks fit on an
 * sm_90 as well. They are few, but where keys are long, splits make up for it: both plans are
 * estimated, and the shorter one counts.
 *
 * In prefill the cuts lie at multiples of the chunk from position 0 for all tiles of a row: a token
 * whose heads lie in two tiles has the same parts in both. A row is split for all its tiles or for
 * none, since all its tokens then go through the merge.
 *
 * Deterministic: the chunk is ATTEND_CHUNK. A row whose parts fit, in items and in partials, gets
 * an item per chunk; another goes through one block chunk by chunk, to the same bits. */
#include <assert.h>
#include <string.h>

#include "common/base/mem.h"
#include "kernels/cuda/attend/attend.h"

#define BLOCKS_PER_SM     2u /* of decode that fill the memory's bandwidth, and of prefill that fit */
#define DECODE_MIN_PAGES  8u /* a chunk; 2 rounds of a block's 4 warps */
#define DECODE_OVERHEAD   4u /* pages that could be read while an item begins and ends */
#define PREFILL_MIN_TILES 4u
#define PREFILL_OVERHEAD  1u /* tiles */
#define PREFILL_MERGE     2u /* tiles that could be computed while parts are merged */
#define TILE_TIME_64      3u /* of one unit and 64 packed rows, beside */
#define TILE_TIME_128     4u
#define CHUNK_TILES       (ATTEND_CHUNK / ATTEND_TILE)
#define CHUNKED_SLOTS     16u /* a graph's grid has so many times more: chunks are short, then */
#define MAX_UNITS         (1u << 20)
#define MAX_GRID_ITEMS    65535u /* they are the y of a grid */

struct span {
    uint32_t first, last; /* units; empty: nothing to read */
};

struct attend_planner {
    struct attend_shape shape;
    uint32_t group, slots; /* query heads per KV head; items of a wave */
    uint32_t tile_rows;    /* of this plan's tiles; 0: chosen by its rows */
    uint32_t max_items, max_merges, max_partials, max_spans;
    struct span *spans;          /* (max_spans) */
    struct attend_item *items;   /* (max_items) of prefill, before they are sorted */
    struct attend_merge *merges; /* (max_merges) */
};

/* What one plan has written so far. */
struct plan {
    struct attend_planner *p;
    const struct backend_row *rows;
    uint32_t n_rows, window;
    struct attend_item *items;
    uint32_t n_items, n_merges, n_partials;
};

/* --- sizes */

/* Items of a decode grid for `bucket` rows: a wave, or one each, and one more for each row's
 * rest. */
static uint32_t decode_capacity(const struct attend_planner *p, uint32_t bucket) {
    uint32_t slots = p->shape.is_deterministic ? p->slots * CHUNKED_SLOTS : p->slots;

    return MAX(slots, bucket) + bucket;
}

/* Partials that splitting one wave of prefill tiles can need: 128 packed rows an item. */
static uint32_t prefill_partials(const struct attend_planner *p) {
    return 2 * (p->slots + 1) * (CEIL_DIV(128, p->group) + 1);
}

static void set_sizes(struct attend_planner *p, const struct attend_shape *shape) {
    uint32_t tiles;

    p->shape = *shape;
    p->group = shape->n_heads / shape->n_kv_heads;
    p->slots = CEIL_DIV(BLOCKS_PER_SM * MAX(shape->n_sm, 1), shape->n_kv_heads);
    tiles = (uint32_t)CEIL_DIV((uint64_t)shape->max_step_tokens * p->group, 64) + shape->max_rows;
    p->max_items = decode_capacity(p, shape->max_rows) + tiles + p->slots + shape->max_rows;
    p->max_partials = decode_capacity(p, shape->max_rows) + prefill_partials(p);
    p->max_merges = MAX(shape->max_rows, MIN(shape->max_step_tokens, p->max_partials));
    p->max_spans = tiles + shape->max_rows;
}

static enum status check_sizes(const struct attend_shape *s, struct error *err) {
    struct attend_planner p;

    set_sizes(&p, s);
    if (p.max_items <= MAX_GRID_ITEMS) return ST_OK;
    return error_set(err, ST_UNSUPPORTED,
                     "steps of %u tokens and %u rows: attention could take %u items of work, and "
                     "one launch has at most %u: lower --max-num-batched-tokens or --max-num-seqs",
                     s->max_step_tokens, s->max_rows, p.max_items, MAX_GRID_ITEMS);
}

enum status attend_check(const struct attend_shape *s, struct error *err) {
    if (s->head_dim != 64 && s->head_dim != 96 && s->head_dim != 128)
        return error_set(err, ST_UNSUPPORTED,
                         "head_dim %u: the CUDA backend has attention for 64, 96 and 128",
                         s->head_dim);
    if (!s->n_kv_heads || s->n_heads % s->n_kv_heads)
        return error_set(err, ST_UNSUPPORTED, "%u query heads do not share %u KV heads evenly",
                         s->n_heads, s->n_kv_heads);
    if (s->n_heads / s->n_kv_heads > ATTEND_MAX_GROUP)
        return error_set(
            err, ST_UNSUPPORTED,
            "%u query heads per KV head: the CUDA backend has attention for at most %u",
            s->n_heads / s->n_kv_heads, ATTEND_MAX_GROUP);
    return check_sizes(s, err);
}

struct attend_planner *attend_planner_create(const struct attend_shape *shape) {
    struct attend_planner *p = mem_zalloc(sizeof(*p));

    assert(attend_check(shape, NULL) == ST_OK);
    set_sizes(p, shape);
    p->spans = mem_calloc(p->max_spans, sizeof(*p->spans));
    p->items = mem_calloc(p->max_items, sizeof(*p->items));
    p->merges = mem_calloc(p->max_merges, sizeof(*p->merges));
    return p;
}

void attend_planner_destroy(struct attend_planner *p) {
    if (!p) return;
    mem_free(p->spans);
    mem_free(p->items);
    mem_free(p->merges);
    mem_free(p);
}

uint64_t attend_list_bytes(const struct attend_planner *p) {
    return (uint64_t)p->max_items * sizeof(struct attend_item) +
           (uint64_t)p->max_merges * sizeof(struct attend_merge);
}

uint32_t attend_max_partials(const struct attend_planner *p) {
    return p->max_partials;
}

static struct attend_grid grid_of(const struct attend_planner *p, uint32_t n_decode,
                                  uint32_t n_prefill, uint32_t n_merge) {
    struct attend_grid grid = {.n_decode = n_decode,
                               .n_prefill = n_prefill,
                               .n_merge = n_merge,
                               .tile_rows = 64,
                               .is_chunked = p->shape.is_deterministic};

    grid.merge_offset = (n_decode + n_prefill) * (uint32_t)sizeof(struct attend_item);
    grid.n_bytes = grid.merge_offset + n_merge * (uint32_t)sizeof(struct attend_merge);
    return grid;
}

struct attend_grid attend_bucket_grid(const struct attend_planner *p, uint32_t bucket) {
    uint32_t n = decode_capacity(p, bucket);

    return p->shape.is_deterministic ? grid_of(p, 0, n, bucket) : grid_of(p, n, 0, 0);
}

/* --- choosing a chunk */

/* Cutting at multiples of a chunk, by a multiply and a shift: exact for units below MAX_UNITS. */
struct divider {
    uint64_t inverse;
};
static struct divider divider_of(uint32_t chunk) {
    return (struct divider){(1ull << 40) / chunk + 1};
}
static uint32_t divide(struct divider d, uint32_t units) {
    return (uint32_t)(units * d.inverse >> 40);
}

/* In how many parts the chunk cuts the spans. Empty ones are one part. */
static uint32_t count_parts(const struct span *spans, uint32_t n, uint32_t chunk) {
    struct divider d = divider_of(chunk);
    uint32_t parts = 0;

    for (uint32_t i = 0; i < n; i++) {
        uint32_t of_span = divide(d, spans[i].last + chunk - 1) - divide(d, spans[i].first);

        parts += MAX(of_span, 1);
    }
    return parts;
}

/* The smallest chunk in [low, high] that cuts into at most `capacity` parts; high is known to. */
static uint32_t smallest_fitting(const struct span *spans, uint32_t n, uint32_t low, uint32_t high,
                                 uint32_t capacity) {
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;

        if (count_parts(spans, n, middle) <= capacity)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

/* What an item costs beside its units, and how many run at once. */
struct cost {
    uint32_t slots, min_chunk, overhead, merge; /* the last three in units */
};

/* The time of n spans in units, if each part took the whole chunk, or the longest span. */
static uint64_t chunk_time(const struct span *spans, uint32_t n, uint32_t chunk,
                           const struct cost *cost) {
    uint32_t parts = count_parts(spans, n, chunk), longest = 1;

    for (uint32_t i = 0; i < n; i++)
        longest = MAX(longest, spans[i].last - spans[i].first);
    return (uint64_t)CEIL_DIV(parts, cost->slots) * (MIN(chunk, longest) + cost->overhead) +
           (parts > n ? cost->merge : 0);
}

/* The numbers of cuts that are tried: 1 to 8, 12, 18, 27 ... */
static uint32_t next_cut(uint32_t s) {
    return s < 8 ? s + 1 : s + s / 2;
}

/* See the top of the file. The result cuts into at most `capacity` parts, which is n or more. */
static uint32_t choose_chunk(const struct span *spans, uint32_t n, uint32_t capacity,
                             const struct cost *cost) {
    uint32_t longest = 1, smallest;
    uint64_t best;

    for (uint32_t i = 0; i < n; i++)
        longest = MAX(longest, spans[i].last);
    assert(longest < MAX_UNITS);
    if (longest <= cost->min_chunk) return cost->min_chunk;
    smallest = smallest_fitting(spans, n, cost->min_chunk, longest, capacity);
    best = chunk_time(spans, n, smallest, cost);
    for (uint32_t s = 1; longest / s > smallest; s = next_cut(s))
        best = MIN(best, chunk_time(spans, n, CEIL_DIV(longest, s), cost));
    for (uint32_t s = 1; longest / s > smallest; s = next_cut(s)) {
        uint32_t chunk = CEIL_DIV(longest, s);

        if (chunk_time(spans, n, chunk, cost) * 85 <= best * 100 &&
            count_parts(spans, n, chunk) <= capacity)
            return chunk;
    }
    return smallest;
}

/* --- decode */

static uint32_t window_start(uint32_t position, uint32_t window) {
    return window && position >= window ? position - window + 1 : 0;
}

static void put_padding(struct plan *plan, uint32_t n_tokens, uint32_t n_padded) {
    for (uint32_t i = n_tokens; i < n_padded; i++)
        plan->items[plan->n_items++] =
            (struct attend_item){.first_token = (int32_t)i, .n_tokens = 1, .partial = -1};
}

static void put_decode_row(struct plan *plan, const struct backend_row *row, uint32_t chunk) {
    uint32_t begin = window_start(row->context_len - 1, plan->window), end = row->context_len;
    uint32_t page = begin / ATTEND_PAGE, n_pages = CEIL_DIV(end, ATTEND_PAGE) - page;
    uint32_t n_parts = CEIL_DIV(n_pages, chunk),
             even = n_parts > 1 ? CEIL_DIV(n_pages, n_parts) : 0;

    if (n_parts > 1) n_parts = CEIL_DIV(n_pages, even);
    for (uint32_t i = 0; i < n_parts; i++) {
        uint32_t from = (page + i * even) * ATTEND_PAGE, to = from + even * ATTEND_PAGE;

        plan->items[plan->n_items++] = (struct attend_item){
            .row = (int32_t)row->row,
            .first_token = (int32_t)row->first_token,
            .n_tokens = 1,
            .position = (int32_t)end - 1,
            .begin = (int32_t)MAX(begin, from),
            .end = (int32_t)(i + 1 < n_parts ? to : end),
            .partial = n_parts > 1 ? (int32_t)(plan->n_partials + i) : -1,
            .first_part = n_parts > 1 ? (int32_t)plan->n_partials : 0,
            .n_parts = n_parts > 1 ? (int32_t)n_parts : 0,
        };
    }
    if (n_parts > 1) plan->n_partials += n_parts;
}

/* Rows with one token, at most `capacity` items. */
static void plan_decode(struct plan *plan, uint32_t capacity) {
    struct attend_planner *p = plan->p;
    uint32_t n = 0, chunk;

    for (uint32_t i = 0; i < plan->n_rows; i++) {
        const struct backend_row *row = &plan->rows[i];
        uint32_t begin = window_start(row->context_len - 1, plan->window);

        if (row->n_tokens != 1) continue;
        p->spans[n++] =
            (struct span){0, CEIL_DIV(row->context_len, ATTEND_PAGE) - begin / ATTEND_PAGE};
    }
    if (!n) return;
    chunk = choose_chunk(p->spans, n, capacity,
                         &(struct cost){p->slots, DECODE_MIN_PAGES, DECODE_OVERHEAD, 0});
    for (uint32_t i = 0; i < plan->n_rows; i++)
        if (plan->rows[i].n_tokens == 1) put_decode_row(plan, &plan->rows[i], chunk);
}

/* --- prefill */

/* Does the prefill kernel take this row? */
static bool is_tiled(const struct plan *plan, const struct backend_row *row) {
    return row->n_tokens > 1 || (row->n_tokens == 1 && plan->p->shape.is_deterministic);
}

/* One tile of packed rows: what its tokens see together, and the tile as an item. */
static struct attend_item tile_item(const struct plan *plan, const struct backend_row *row,
                                    uint32_t packed, uint32_t tile_rows) {
    uint32_t group = plan->p->group, position = row->context_len - row->n_tokens;
    uint32_t first_token = packed ? packed / group : 0, last_token = row->n_tokens - 1;

    if (packed + tile_rows < row->n_tokens * group) last_token = (packed + tile_rows - 1) / group;
    return (struct attend_item){
        .row = (int32_t)row->row,
        .first_token = (int32_t)row->first_token,
        .n_tokens = (int32_t)row->n_tokens,
        .position = (int32_t)position,
        .packed = (int32_t)packed,
        .begin = (int32_t)window_start(position + first_token, plan->window),
        .end = (int32_t)(position + last_token + 1),
        .partial = -1,
    };
}

static struct span span_of(const struct attend_item *item) {
    return (struct span){(uint32_t)item->begin / ATTEND_TILE,
                         CEIL_DIV((uint32_t)item->end, ATTEND_TILE)};
}

/* The spans of all tiles; their number. */
static uint32_t measure_tiles(const struct plan *plan, uint32_t tile_rows) {
    uint32_t n = 0;

    for (uint32_t i = 0; i < plan->n_rows; i++) {
        const struct backend_row *row = &plan->rows[i];

        if (!is_tiled(plan, row)) continue;
        for (uint32_t at = 0; at < row->n_tokens * plan->p->group; at += tile_rows) {
            struct attend_item item = tile_item(plan, row, at, tile_rows);

            plan->p->spans[n++] = span_of(&item);
        }
    }
    return n;
}

/* Where a row's tokens leave their parts: part k of token i at first + k * n_tokens + i, k counted
 * from the chunk in which the row's first token begins to see. */
struct row_split {
    uint32_t chunk; /* positions; 0: not split */
    struct divider by_chunk;
    uint32_t begin; /* number of the first chunk */
    uint32_t n_parts, first;
};

static uint32_t chunk_at(const struct row_split *split, uint32_t position) {
    return divide(split->by_chunk, position / ATTEND_TILE);
}

static struct row_split split_row(const struct plan *plan, const struct backend_row *row,
                                  uint32_t chunk_tiles) {
    uint32_t position = row->context_len - row->n_tokens;
    struct row_split split = {.chunk = chunk_tiles * ATTEND_TILE, .first = plan->n_partials};

    if (!chunk_tiles) return split;
    split.by_chunk = divider_of(chunk_tiles);
    split.begin = chunk_at(&split, window_start(position, plan->window));
    split.n_parts = chunk_at(&split, row->context_len - 1) + 1 - split.begin;
    if (split.n_parts == 1) split.chunk = 0;
    return split;
}

static void put_tile(struct plan *plan, struct attend_item item, const struct row_split *split) {
    uint32_t begin = (uint32_t)item.begin, end = (uint32_t)item.end, chunk = split->chunk;

    if (!chunk) {
        plan->items[plan->n_items++] = item;
        return;
    }
    for (uint32_t k = chunk_at(split, begin); k * chunk < end; k++) {
        item.begin = (int32_t)MAX(begin, k * chunk);
        item.end = (int32_t)MIN(end, (k + 1) * chunk);
        item.partial = (int32_t)(split->first + (k - split->begin) * (uint32_t)item.n_tokens);
        plan->items[plan->n_items++] = item;
    }
}

static void put_merges(struct plan *plan, const struct backend_row *row,
                       const struct row_split *split) {
    uint32_t position = row->context_len - row->n_tokens;

    for (uint32_t i = 0; i < row->n_tokens; i++) {
        uint32_t from = chunk_at(split, window_start(position + i, plan->window));
        uint32_t to = chunk_at(split, position + i);

        plan->p->merges[plan->n_merges++] = (struct attend_merge){
            .token = (int32_t)(row->first_token + i),
            .first = (int32_t)(split->first + (from - split->begin) * row->n_tokens + i),
            .stride = (int32_t)row->n_tokens,
            .n = (int32_t)(to - from + 1),
        };
    }
}

/* The most items and partials that splits of rows may still add. */
struct spare {
    uint32_t items, partials, merges;
};

/* Takes a split's needs out of what is spare; false, and nothing taken, when they do not fit. */
static bool take_spare(struct spare *spare, const struct plan *plan, const struct backend_row *row,
                       const struct row_split *split, uint32_t tile_rows) {
    uint32_t n = 0;

    if (!split->chunk || (uint64_t)split->n_parts * row->n_tokens > spare->partials ||
        row->n_tokens > spare->merges)
        return false;
    for (uint32_t at = 0; at < row->n_tokens * plan->p->group; at += tile_rows) {
        struct attend_item item = tile_item(plan, row, at, tile_rows);

        n += chunk_at(split, (uint32_t)item.end - 1) - chunk_at(split, (uint32_t)item.begin);
    }
    if (n > spare->items) return false;
    spare->items -= n;
    spare->partials -= split->n_parts * row->n_tokens;
    spare->merges -= row->n_tokens;
    return true;
}

/* Longest first, so that no long item is left for the end: a counting sort by length. */
#define SORT_KEYS 256u
static uint32_t sort_key(const struct attend_item *item, uint64_t scale) {
    return SORT_KEYS - 1 - (uint32_t)((uint32_t)(item->end - item->begin) * scale >> 32);
}
static void sort_items(struct attend_item *to, const struct attend_item *from, uint32_t n) {
    uint32_t at[SORT_KEYS + 1] = {0}, longest = 1;
    uint64_t scale;

    for (uint32_t i = 0; i < n; i++)
        longest = MAX(longest, (uint32_t)(from[i].end - from[i].begin));
    scale = ((uint64_t)(SORT_KEYS - 1) << 32) / longest;
    for (uint32_t i = 0; i < n; i++)
        at[sort_key(&from[i], scale) + 1]++;
    for (uint32_t k = 0; k < SORT_KEYS; k++)
        at[k + 1] += at[k];
    for (uint32_t i = 0; i < n; i++)
        to[at[sort_key(&from[i], scale)]++] = from[i];
}

/* How the tiles of a step are cut. */
struct tiling {
    uint32_t tile_rows, n_tiles;
    uint32_t chunk; /* in units; 0: tiles stay whole */
};

/* The tiling with so many rows a tile, and its time in quarters of a unit of 128 rows. */
static struct tiling tile_step(const struct plan *plan, uint32_t tile_rows, uint64_t *time) {
    const struct attend_planner *p = plan->p;
    struct tiling t = {.tile_rows = tile_rows, .n_tiles = measure_tiles(plan, tile_rows)};
    struct cost cost = {p->slots, PREFILL_MIN_TILES, PREFILL_OVERHEAD, PREFILL_MERGE};

    if (p->shape.is_deterministic)
        t.chunk = CHUNK_TILES;
    else if (t.n_tiles * 5 < p->slots * 4)
        t.chunk = choose_chunk(p->spans, t.n_tiles, t.n_tiles + p->slots, &cost);
    *time = chunk_time(p->spans, t.n_tiles, t.chunk ? t.chunk : MAX_UNITS - 1, &cost) *
            (tile_rows == 64 ? TILE_TIME_64 : TILE_TIME_128);
    return t;
}

/* See the top of the file. */
static struct tiling choose_tiling(const struct plan *plan) {
    uint64_t time_128, time_64;
    struct tiling large, small;

    if (plan->p->shape.is_deterministic) return tile_step(plan, 64, &time_64);
    if (plan->p->tile_rows) return tile_step(plan, plan->p->tile_rows, &time_64);
    large = tile_step(plan, 128, &time_128);
    if (large.n_tiles && !large.chunk) return large; /* they fill the device */
    small = tile_step(plan, 64, &time_64);
    return time_128 <= time_64 && large.n_tiles ? large : small;
}

/* Rows with more tokens, or all when deterministic: at most n_tiles + `extra` items. */
static void plan_prefill(struct plan *plan, const struct tiling *tiling, uint32_t extra) {
    struct attend_planner *p = plan->p;
    struct spare spare = {extra, p->max_partials - plan->n_partials,
                          p->max_merges - plan->n_merges};
    uint32_t tile_rows = tiling->tile_rows;

    for (uint32_t i = 0; i < plan->n_rows; i++) {
        const struct backend_row *row = &plan->rows[i];
        struct row_split split;

        if (!is_tiled(plan, row)) continue;
        split = split_row(plan, row, tiling->chunk);
        if (!take_spare(&spare, plan, row, &split, tile_rows)) split.chunk = 0;
        for (uint32_t at = 0; at < row->n_tokens * p->group; at += tile_rows)
            put_tile(plan, tile_item(plan, row, at, tile_rows), &split);
        if (!split.chunk) continue;
        put_merges(plan, row, &split);
        plan->n_partials += split.n_parts * row->n_tokens;
    }
}

/* --- a step */

static void fill_up(struct attend_item *items, uint32_t n, uint32_t capacity) {
    assert(n <= capacity);
    for (; n < capacity; n++)
        items[n].row = -1;
}

/* The items of the prefill kernel, sorted, at `to`; their number. */
static uint32_t list_prefill(struct plan *plan, struct attend_item *to, const struct tiling *tiling,
                             uint32_t n_tokens, uint32_t n_padded, uint32_t capacity) {
    uint32_t extra = plan->p->slots;

    plan->items = plan->p->items;
    plan->n_items = 0;
    if (plan->p->shape.is_deterministic) {
        put_padding(plan, n_tokens, n_padded);
        extra = capacity - MIN(capacity, tiling->n_tiles + plan->n_items);
    }
    plan_prefill(plan, tiling, extra);
    sort_items(to, plan->items, plan->n_items);
    return plan->n_items;
}

void attend_plan(struct attend_planner *p, const struct backend_row *rows, uint32_t n_rows,
                 uint32_t n_tokens, uint32_t n_padded, uint32_t bucket, uint32_t window, void *list,
                 struct attend_grid *grid) {
    struct plan plan = {.p = p, .rows = rows, .n_rows = n_rows, .window = window, .items = list};
    uint32_t n_padding = n_padded > n_tokens ? n_padded - n_tokens : 0;
    uint32_t n_places = bucket ? bucket : MIN(n_rows + n_padding, p->shape.max_rows);
    uint32_t capacity = decode_capacity(p, n_places), n_decode = 0, n_prefill;
    struct tiling tiling;

    assert(n_padding <= p->shape.max_rows && n_tokens <= p->shape.max_step_tokens);
    if (!p->shape.is_deterministic) {
        plan_decode(&plan, capacity - n_padding);
        put_padding(&plan, n_tokens, n_padded);
        n_decode = plan.n_items;
    }
    tiling = choose_tiling(&plan);
    n_prefill = list_prefill(&plan, (struct attend_item *)list + n_decode, &tiling, n_tokens,
                             n_padded, capacity);
    if (bucket) { /* one of the two is 0, and stays so */
        fill_up(list, n_decode + n_prefill, capacity);
        n_decode = p->shape.is_deterministic ? 0 : capacity;
        n_prefill = p->shape.is_deterministic ? capacity : 0;
    }
    assert(plan.n_merges <= p->max_merges && plan.n_partials <= p->max_partials);
    for (; p->shape.is_deterministic && plan.n_merges < bucket; plan.n_merges++)
        p->merges[plan.n_merges].token = -1;
    *grid = grid_of(p, n_decode, n_prefill, plan.n_merges);
    grid->tile_rows = tiling.tile_rows;
    memcpy((uint8_t *)list + grid->merge_offset, p->merges, plan.n_merges * sizeof(*p->merges));
    assert(grid->n_bytes <= attend_list_bytes(p));
}

/* --- a step in a bucket of tokens */

bool attend_fits_mixed(const struct backend_row *rows, uint32_t n_rows, bool *has_decode) {
    uint32_t n_prompts = 0;

    for (uint32_t i = 0; i < n_rows; i++)
        n_prompts += rows[i].n_tokens > 1;
    *has_decode = n_prompts < n_rows;
    return n_prompts <= ATTEND_MIXED_PROMPTS;
}

struct attend_grid attend_mixed_grid(const struct attend_planner *p, uint32_t bucket,
                                     bool has_decode) {
    uint32_t n_rows = MIN(bucket, p->shape.max_rows), n_decode = decode_capacity(p, n_rows);
    bool is_chunked = p->shape.is_deterministic;
    uint32_t tile_rows = is_chunked || bucket * p->group < 128 ? 64 : 128;
    uint32_t n_tiles = CEIL_DIV(bucket * p->group, tile_rows) +
                       (is_chunked && has_decode ? n_rows : MIN(n_rows, ATTEND_MIXED_PROMPTS));
    uint32_t n_prefill = is_chunked ? MAX(n_decode, n_tiles) : n_tiles + p->slots;
    struct attend_grid grid =
        grid_of(p, is_chunked || !has_decode ? 0 : n_decode, n_prefill, MIN(bucket, p->max_merges));

    grid.tile_rows = tile_rows;
    return grid;
}

/* The plan of the step alone, its three parts moved to their places in the bucket's grid. */
void attend_plan_mixed(struct attend_planner *p, const struct backend_row *rows, uint32_t n_rows,
                       uint32_t n_tokens, uint32_t bucket, bool has_decode, uint32_t window,
                       void *list, struct attend_grid *grid) {
    struct attend_grid fixed = attend_mixed_grid(p, bucket, has_decode), own;
    struct attend_item *items = list;
    struct attend_merge *merges = (void *)((uint8_t *)list + fixed.merge_offset);

    p->tile_rows = fixed.tile_rows;
    attend_plan(p, rows, n_rows, n_tokens, n_tokens, 0, window, list, &own);
    p->tile_rows = 0;
    assert(own.n_merge <= fixed.n_merge);
    memmove(merges, (uint8_t *)list + own.merge_offset, own.n_merge * sizeof(*merges));
    memmove(items + fixed.n_decode, items + own.n_decode, own.n_prefill * sizeof(*items));
    fill_up(items, own.n_decode, fixed.n_decode);
    fill_up(items + fixed.n_decode, own.n_prefill, fixed.n_prefill);
    for (uint32_t i = own.n_merge; i < fixed.n_merge; i++)
        merges[i].token = -1;
    *grid = fixed;
}

/* --- a layer */

void attend_prepare(void) {
    attend_prepare_decode();
    attend_prepare_prefill();
}

void attend_layer(struct gpu_stream *s, const struct attend_args *args, const void *list,
                  const struct attend_grid *grid) {
    const struct attend_item *items = list;
    const void *merges = (const uint8_t *)list + grid->merge_offset;

    if (grid->n_decode) attend_launch_decode(s, args, items, grid->n_decode);
    if (grid->n_prefill)
        attend_launch_prefill(s, args, items + grid->n_decode, grid->n_prefill, grid->tile_rows,
                              grid->is_chunked);
    if (grid->n_merge) attend_launch_merge(s, args, merges, grid->n_merge);
}
