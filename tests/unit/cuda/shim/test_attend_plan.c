/* tests/unit/cuda/shim/test_attend_plan.c - work lists: every position once, and nothing over its
 * capacity. */
#include <string.h>

#include "common/base/mem.h"
#include "common/base/rng.h"
#include "kernels/cuda/attend/attend.h"
#include "tests/support/cm.h"

#define MAX_ROWS   40u
#define MAX_TOKENS 700u

struct step {
    struct attend_shape shape;
    struct backend_row rows[MAX_ROWS];
    uint32_t n_rows, n_tokens, n_padded, bucket, window;
    bool is_mixed; /* the bucket is one of tokens */
};

static uint32_t start_of(const struct step *s, uint32_t position) {
    return s->window && position >= s->window ? position - s->window + 1 : 0;
}

/* Positions with many small, some long. */
static uint32_t random_length(struct rng *rng, uint32_t most) {
    uint32_t n = 1 + (uint32_t)rng_below(rng, most);

    return rng_below(rng, 3) ? 1 + n / 30 : n;
}

/* Half of the steps that fit: into a bucket of tokens, whose padding gets no items. */
static void make_mixed(struct step *s, struct rng *rng) {
    bool has_decode;

    if (s->bucket || !attend_fits_mixed(s->rows, s->n_rows, &has_decode) || rng_below(rng, 2))
        return;
    s->is_mixed = true;
    s->bucket = s->n_tokens + (uint32_t)rng_below(rng, MAX_TOKENS - s->n_tokens + 1);
    s->n_padded = s->n_tokens;
}

static void random_step(struct step *s, struct rng *rng) {
    uint32_t n_kv = 1u << rng_below(rng, 4), group = 1 + (uint32_t)rng_below(rng, 16);
    bool is_decode = rng_below(rng, 2);

    memset(s, 0, sizeof(*s));
    s->shape = (struct attend_shape){
        .n_heads = n_kv * group,
        .n_kv_heads = n_kv,
        .head_dim = 128,
        .max_rows = MAX_ROWS,
        .max_step_tokens = MAX_TOKENS,
        .n_sm = rng_below(rng, 3) ? 132 : 1 + (uint32_t)rng_below(rng, 20),
        .is_deterministic = rng_below(rng, 3) == 0,
    };
    s->window = rng_below(rng, 2) ? 1 + (uint32_t)rng_below(rng, 3000) : 0;
    s->n_rows = 1 + (uint32_t)rng_below(rng, MAX_ROWS);
    for (uint32_t i = 0; i < s->n_rows; i++) {
        uint32_t left = MAX_TOKENS - s->n_tokens - (s->n_rows - i), n = 1;

        if (!is_decode && rng_below(rng, 2)) n += (uint32_t)rng_below(rng, MIN(left, 300) + 1);
        s->rows[i] = (struct backend_row){(i * 11 + 5) % MAX_ROWS, s->n_tokens, n,
                                          n - 1 + random_length(rng, 40000)};
        s->n_tokens += n;
    }
    s->n_padded = s->n_tokens + (uint32_t)rng_below(rng, MAX_ROWS - s->n_rows + 1);
    if (is_decode && rng_below(rng, 2)) s->bucket = MAX(s->n_padded, 1);
    make_mixed(s, rng);
}

/* What one head of one token gets: items' ranges, cut to what it sees, left to right. */
struct coverage {
    uint32_t n, next, partial[2048]; /* next: the position up to which it is covered */
    bool is_whole;                   /* by an item that writes mix */
    struct attend_merge own;         /* how the items of a row of one token name their parts */
};

static void cover(const struct step *s, const struct attend_item *items, uint32_t n_items,
                  uint32_t tile_rows, const struct backend_row *row, uint32_t i, uint32_t head,
                  struct coverage *c) {
    uint32_t group = s->shape.n_heads / s->shape.n_kv_heads, position, packed = i * group + head;
    const struct attend_item *found;

    position = row->context_len - row->n_tokens + i;
    *c = (struct coverage){.next = start_of(s, position)};
    do { /* the item that goes on where the ones before have ended */
        found = NULL;
        for (uint32_t k = 0; k < n_items; k++) {
            const struct attend_item *item = &items[k];

            if (item->row != (int32_t)row->row || item->first_token != (int32_t)row->first_token ||
                item->begin == item->end || packed - (uint32_t)item->packed >= tile_rows)
                continue;
            if ((uint32_t)item->begin > c->next || (uint32_t)item->end <= c->next) continue;
            assert_null(found); /* no position twice */
            found = item;
        }
        assert_non_null(found);
        assert_int_equal(found->n_tokens, row->n_tokens);
        assert_int_equal(found->position, row->context_len - row->n_tokens);
        assert_true((uint32_t)found->end <= row->context_len);
        if (c->own.n) assert_int_equal(c->own.first, found->first_part);
        c->own = (struct attend_merge){0, found->first_part, 1, found->n_parts};
        if (found->partial < 0)
            c->is_whole = true;
        else
            c->partial[c->n++] = (uint32_t)found->partial + i;
        c->next = (uint32_t)found->end;
    } while (c->next <= position);
    assert_true(!c->is_whole || c->n == 0); /* either way, not both */
}

static const struct attend_merge *merge_of(const struct attend_merge *merges, uint32_t n,
                                           uint32_t token) {
    const struct attend_merge *found = NULL;

    for (uint32_t k = 0; k < n; k++)
        if (merges[k].token == (int32_t)token) {
            assert_null(found);
            found = &merges[k];
        }
    return found;
}

static void check_token(const struct step *s, const void *list, const struct attend_grid *grid,
                        const struct backend_row *row, uint32_t i, uint32_t max_partials,
                        uint8_t *is_taken) {
    bool is_tiled = row->n_tokens > 1 || s->shape.is_deterministic;
    const struct attend_item *items =
        (const struct attend_item *)list + (is_tiled ? grid->n_decode : 0);
    const struct attend_merge *listed =
        merge_of((const void *)((const char *)list + grid->merge_offset), grid->n_merge,
                 row->first_token + i);
    uint32_t group = s->shape.n_heads / s->shape.n_kv_heads;
    static struct coverage c;

    for (uint32_t head = 0; head < group; head += MAX(1, group - 1)) { /* the first and the last */
        cover(s, items, is_tiled ? grid->n_prefill : grid->n_decode,
              is_tiled ? grid->tile_rows : group, row, i, head, &c);
        const struct attend_merge *merge = is_tiled || c.own.n == 0 ? listed : &c.own;

        assert_true(is_tiled || !listed); /* the decode kernel merges by itself */
        assert_int_equal(c.is_whole, merge == NULL);
        if (!merge) continue;
        assert_int_equal(c.n, merge->n);
        for (uint32_t k = 0; k < c.n; k++) {
            assert_int_equal(c.partial[k], merge->first + (int32_t)k * merge->stride);
            assert_true(c.partial[k] < max_partials);
            if (head == 0) assert_false(is_taken[c.partial[k]]++);
        }
    }
}

/* Items begin within what their first token sees, and lie inside the rows' chunks. */
static void check_items(const struct step *s, const struct attend_item *items,
                        const struct attend_grid *grid) {
    uint32_t group = s->shape.n_heads / s->shape.n_kv_heads, n_empty = 0;

    for (uint32_t k = 0; k < grid->n_decode + grid->n_prefill; k++) {
        const struct attend_item *item = &items[k];
        bool is_chunk = grid->is_chunked && item->partial >= 0;

        if (item->row < 0) continue;
        if (item->begin == item->end) {
            assert_true(item->first_token >= (int32_t)s->n_tokens);
            assert_true(item->first_token < (int32_t)s->n_padded && item->partial < 0);
            n_empty++;
            continue;
        }
        assert_true(item->begin >= (int32_t)start_of(s, (uint32_t)item->position +
                                                            (uint32_t)item->packed / group));
        if (is_chunk)
            assert_int_equal(item->begin / (int32_t)ATTEND_CHUNK,
                             (item->end - 1) / (int32_t)ATTEND_CHUNK);
        else if (item->partial >= 0 && k >= grid->n_decode)
            assert_true(item->begin % (int32_t)ATTEND_TILE == 0 || item->packed || s->window);
    }
    assert_int_equal(n_empty, s->n_padded - s->n_tokens);
}

/* The plan as a graph or a single step has it; in a bucket its grid must be known beforehand. */
static void plan_step(const struct step *s, struct attend_planner *p, void *list,
                      struct attend_grid *grid) {
    struct attend_grid fixed;
    bool has_decode;

    if (s->is_mixed) {
        assert_true(attend_fits_mixed(s->rows, s->n_rows, &has_decode));
        attend_plan_mixed(p, s->rows, s->n_rows, s->n_tokens, s->bucket, has_decode, s->window,
                          list, grid);
        fixed = attend_mixed_grid(p, s->bucket, has_decode);
    } else {
        attend_plan(p, s->rows, s->n_rows, s->n_tokens, s->n_padded, s->bucket, s->window, list,
                    grid);
        fixed = s->bucket ? attend_bucket_grid(p, s->bucket) : *grid;
    }
    assert_int_equal(grid->n_decode, fixed.n_decode);
    assert_int_equal(grid->n_prefill, fixed.n_prefill);
    assert_int_equal(grid->n_merge, fixed.n_merge);
    assert_int_equal(grid->merge_offset, fixed.merge_offset);
    assert_int_equal(grid->n_bytes, fixed.n_bytes);
    assert_int_equal(grid->tile_rows, fixed.tile_rows);
    assert_int_equal(grid->is_chunked, fixed.is_chunked);
}

static void check_step(const struct step *s) {
    struct attend_planner *p = attend_planner_create(&s->shape);
    uint64_t n_bytes = attend_list_bytes(p);
    uint32_t max_partials = attend_max_partials(p);
    uint8_t *list = mem_alloc(n_bytes + 8), *is_taken = mem_zalloc(max_partials);
    struct attend_grid grid;

    memset(list, 0xA5, n_bytes + 8);
    plan_step(s, p, list, &grid);
    assert_true(grid.n_bytes <= n_bytes);
    for (int i = 0; i < 8; i++)
        assert_int_equal(list[n_bytes + (uint64_t)i], 0xA5);
    check_items(s, (const void *)list, &grid);
    for (uint32_t r = 0; r < s->n_rows; r++)
        for (uint32_t i = 0; i < s->rows[r].n_tokens; i++)
            check_token(s, list, &grid, &s->rows[r], i, max_partials, is_taken);
    mem_free(list);
    mem_free(is_taken);
    attend_planner_destroy(p);
}

static void random_steps_cover_every_position_once(void **state) {
    struct step s;
    struct rng rng;

    (void)state;
    rng_seed(&rng, 17);
    for (int i = 0; i < 1000; i++) {
        random_step(&s, &rng);
        check_step(&s);
    }
}

/* Rows whose chunks would need more partials than there are: the first get them, the others
 * none. */
static void partials_run_out_in_peace(void **state) {
    struct step s = {.shape = {8, 8, 128, MAX_ROWS, MAX_TOKENS, 132, true}, .n_rows = 10};

    (void)state;
    for (uint32_t i = 0; i < s.n_rows; i++)
        s.rows[i] = (struct backend_row){i, i * 64, 64, 5000 + i};
    s.n_tokens = s.n_padded = s.n_rows * 64;
    check_step(&s);
}

/* What the items read of K and V in one layer, in MB of 10^6 bytes: whole tiles of 64 positions. */
static double megabytes_of(const struct attend_shape *shape, const struct attend_item *items,
                           uint32_t n) {
    uint64_t n_tiles = 0;

    for (uint32_t i = 0; i < n; i++)
        n_tiles +=
            CEIL_DIV((uint32_t)items[i].end, ATTEND_TILE) - (uint32_t)items[i].begin / ATTEND_TILE;
    return (double)(n_tiles * ATTEND_TILE * shape->n_kv_heads * shape->head_dim * 4) / 1e6;
}

static double read_megabytes; /* of the last plan_of, by prefill */

static struct attend_grid plan_of(uint32_t n_rows, uint32_t context_len, uint32_t n_tokens) {
    struct attend_shape shape = {32, 8, 128, 256, 8192, 132, false};
    struct attend_planner *p = attend_planner_create(&shape);
    void *list = mem_alloc(attend_list_bytes(p));
    static struct backend_row rows[256];
    struct attend_grid grid;

    for (uint32_t i = 0; i < n_rows; i++)
        rows[i] = (struct backend_row){i, i * n_tokens, n_tokens, context_len};
    attend_plan(p, rows, n_rows, n_rows * n_tokens, 0, 0, 0, list, &grid);
    read_megabytes =
        megabytes_of(&shape, (struct attend_item *)list + grid.n_decode, grid.n_prefill);
    mem_free(list);
    attend_planner_destroy(p);
    return grid;
}

static void work_fills_the_device_and_no_more(void **state) {
    struct attend_grid grid;

    (void)state;
    grid = plan_of(1, 8192, 1); /* 33 items are a wave */
    assert_in_range(grid.n_decode, 25, 34);
    grid = plan_of(1, 100, 1); /* too short to be split */
    assert_int_equal(grid.n_decode, 1);
    assert_int_equal(grid.n_merge, 0);
    grid = plan_of(256, 1024, 1); /* enough as they are */
    assert_int_equal(grid.n_decode, 256);
    grid = plan_of(1, 2048, 2048); /* a long prompt: 64 tiles of 128 rows */
    assert_int_equal(grid.tile_rows, 128);
    assert_int_equal(grid.n_prefill, 64);
    assert_int_equal(grid.n_merge, 0);
}

/* Llama-3.1-8B's shape on 132 multiprocessors, on which 33 items are a wave. Where keys are split
 * over the device, tiles of 128 rows read half of what tiles of 64 would; prompts without a prefix
 * are short, and there is little to split. */
static void tiles_are_large_where_keys_are_split(void **state) {
    static const struct {
        uint32_t n_cached, n_tokens, tile_rows, n_items, megabytes, n_merges;
    } table[] = {
        {8192, 16, 64, 33, 34, 16},     {8192, 64, 128, 24, 68, 64},
        {8192, 128, 128, 28, 136, 128}, /* 272 MB in tiles of 64 */
        {8192, 256, 128, 32, 274, 256}, /* 547 */
        {8192, 512, 128, 32, 556, 512}, /* 1,111 */
        {8192, 1024, 128, 32, 1145, 0}, {0, 128, 64, 8, 3, 0},
        {0, 512, 64, 32, 38, 0},        {0, 1024, 128, 32, 71, 0},
    };

    (void)state;
    for (uint32_t i = 0; i < ARRAY_LEN(table); i++) {
        struct attend_grid grid =
            plan_of(1, table[i].n_cached + table[i].n_tokens, table[i].n_tokens);

        assert_int_equal(grid.tile_rows, table[i].tile_rows);
        assert_int_equal(grid.n_prefill, table[i].n_items);
        assert_int_equal((uint32_t)(read_megabytes + 0.5), table[i].megabytes);
        assert_int_equal(grid.n_merge, table[i].n_merges);
    }
}

static void shapes_that_the_kernels_lack_are_refused(void **state) {
    struct error err = {0};

    (void)state;
    assert_int_equal(attend_check(&(struct attend_shape){32, 8, 80, 1, 1, 1, 0}, &err),
                     ST_UNSUPPORTED);
    assert_non_null(strstr(err.message, "head_dim 80"));
    assert_int_equal(attend_check(&(struct attend_shape){34, 2, 64, 1, 1, 1, 0}, &err),
                     ST_UNSUPPORTED);
    assert_non_null(strstr(err.message, "17 query heads"));
    assert_int_equal(attend_check(&(struct attend_shape){7, 2, 64, 1, 1, 1, 0}, &err),
                     ST_UNSUPPORTED);
    assert_int_equal(attend_check(&(struct attend_shape){28, 4, 128, 1, 1, 1, 0}, &err), ST_OK);
}

/* Items are the y of a grid, which has 16 bits; the x has 31. */
static void steps_that_no_grid_holds_are_refused(void **state) {
    struct attend_shape shape = {32, 8, 128, 256, 1u << 20, 132, 0};
    struct error err;

    (void)state;
    assert_int_equal(attend_check(&shape, &err), ST_UNSUPPORTED);
    assert_non_null(strstr(err.message, "1048576 tokens and 256 rows"));
    shape.max_step_tokens = 131072;
    assert_int_equal(attend_check(&shape, &err), ST_OK);
    shape.max_rows = 65536;
    assert_int_equal(attend_check(&shape, &err), ST_UNSUPPORTED);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_steps_cover_every_position_once),
        cmocka_unit_test(partials_run_out_in_peace),
        cmocka_unit_test(work_fills_the_device_and_no_more),
        cmocka_unit_test(tiles_are_large_where_keys_are_split),
        cmocka_unit_test(shapes_that_the_kernels_lack_are_refused),
        cmocka_unit_test(steps_that_no_grid_holds_are_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
