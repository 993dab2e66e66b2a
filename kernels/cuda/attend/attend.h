/* kernels/cuda/attend/attend.h - attention over the paged pool.
 *
 * Each query token sees the positions from its window's start (host_window_start of
 * kernels/host/host.h) to its own, all of them in the pool. The work of a step is a list of items
 * that the host builds from the step's rows: an item is some query tokens of one row against one
 * range of positions; the kernels take one item and one KV head per thread block. When the items of
 * whole ranges are too few to fill the device, ranges are split: each part leaves its unfinished
 * sums (a *partial*). A row's decode parts are added up by the block of them that is through last,
 * parts of prefill by the merge kernel.
 *
 *      rows -- attend_plan --> list: [decode items | prefill items | merges], copied to the device
 *      once per layer: attend_layer = decode kernel, prefill kernel, merge kernel, those that have work
 *
 * Layers that see everything and layers that see a window need a list each: plan twice, with window
 * 0 and with the window.
 *
 * In a CUDA graph the grids are fixed: a graph of `bucket` rows runs attend_bucket_grid(bucket),
 * and attend_plan for that bucket fills the items left over with -1.
 *
 * Deterministic: all rows go through one kernel, which sums over chunks of ATTEND_CHUNK positions
 * counted from position 0 and adds the chunks from left to right, in one block or in many; the bits
 * of a (position, head) then do not depend on the batch, on how the prompt was cut, or on what was
 * cached.
 *
 * A quantised pool is as kernels/kv_quant.h defines. Scores are scaled in fp32, weights before they
 * are rounded to bf16; scales of what no query sees may be anything.
 *
 * LIMITS: K and V in bf16, e4m3 or int8, else bf16; pages of 16 tokens; head_dim 64, 96 or 128; 1
 * to 16 query heads per KV head. Threads: the planner belongs to one thread. Follows: Dao,
 * FlashAttention-2, 2023, for tiles and running softmax; Ye et al., FlashInfer, MLSys 2025, for
 * lists planned on the host. */
#ifndef KERNELS_CUDA_ATTEND_ATTEND_H
#define KERNELS_CUDA_ATTEND_ATTEND_H

#include "kernels/backend.h"
#include "kernels/cuda/device/gpu.h"

#ifdef __cplusplus
extern "C" {
#endif

#define ATTEND_PAGE      16u  /* tokens of a block; the k of one mma, and one warp's unit of work */
#define ATTEND_TILE      64u  /* positions that a prefill block takes at once */
#define ATTEND_CHUNK     256u /* positions summed on their own when deterministic */
#define ATTEND_MAX_GROUP 16u  /* query heads per KV head: the rows of one mma tile */

/* Query tokens [0, n_tokens) of a row against positions [begin, end). Token i of them is number
 * first_token + i of the step and stands at position + i. Packed row r is head r % group of token r
 * / group. begin is where the first token that counts starts to see, at least; the kernel masks
 * each token's own range. */
struct attend_item {
    int32_t row; /* index of its block table; -1: nothing to do */
    int32_t first_token, n_tokens, position;
    int32_t packed;     /* first packed row of the item's tile; 0 in decode */
    int32_t begin, end; /* equal: nothing is seen, zeros are written */
    int32_t partial;    /* token i leaves its part in partial + i; -1: it is the whole, for mix */
    int32_t first_part,
        n_parts; /* decode: the row's partials, added up by the last block; else 0 */
};

struct attend_merge { /* mix of a token = its partials first, first + stride, ... n of them */
    int32_t token;    /* of the step; -1: nothing to do */
    int32_t first, stride, n;
};

/* What is fixed when a model is loaded: heads are those of this rank. */
struct attend_shape {
    uint32_t n_heads, n_kv_heads, head_dim;
    uint32_t max_rows, max_step_tokens;
    uint32_t n_sm; /* multiprocessors to fill */
    bool is_deterministic;
};

/* ST_UNSUPPORTED with a sentence when the kernels lack this shape. */
MUST_USE enum status attend_check(const struct attend_shape *shape, struct error *err);

struct attend_planner; /* scratch of attend_plan */

struct attend_planner *attend_planner_create(const struct attend_shape *shape); /* checked before */
void attend_planner_destroy(struct attend_planner *p);                          /* NULL is fine */

/* Buffers to have, sized once: bytes of one list, and how many partials a step can leave, each
 * (n_heads, head_dim) floats in `partial` and (n_heads, 2) floats in `partial_state`. The lists of
 * one step share the partials: layers run one after the other. */
uint64_t attend_list_bytes(const struct attend_planner *p);
uint32_t attend_max_partials(const struct attend_planner *p);

/* How much of a list counts, and where its parts begin: items at 0, decode first; merges at
 * merge_offset. */
struct attend_grid {
    uint32_t n_decode, n_prefill, n_merge;
    uint32_t tile_rows; /* packed rows of a prefill item: 64 or 128 */
    uint32_t merge_offset, n_bytes;
    bool is_chunked; /* deterministic */
};

/* The grid of a graph for steps of at most `bucket` rows with one new token each. */
struct attend_grid attend_bucket_grid(const struct attend_planner *p, uint32_t bucket);

/* Writes the list of a step into `list`, host memory of attend_list_bytes aligned to 16, and
 * returns how much of it counts. Tokens [n_tokens, n_padded) are padding, at most max_rows of them:
 * their mix becomes zero. bucket: 0 for the grid that fits this step; else that of
 * attend_bucket_grid, all rows having one token, n_padded at most bucket. window: 0, or the tokens
 * a query sees. Pure except for the planner's scratch; some microseconds for 256 rows. */
void attend_plan(struct attend_planner *p, const struct backend_row *rows, uint32_t n_rows,
                 uint32_t n_tokens, uint32_t n_padded, uint32_t bucket, uint32_t window, void *list,
                 struct attend_grid *grid);

/* The same for steps of rows of any lengths, at most `bucket` tokens together: the grid depends on
 * the bucket and on whether some rows have one token (has_decode), which needs no more than the
 * rows to be known. Tokens behind the step's get no mix. */
#define ATTEND_MIXED_PROMPTS 16u /* rows of several tokens that such a grid has room for */
bool attend_fits_mixed(const struct backend_row *rows, uint32_t n_rows, bool *has_decode);
struct attend_grid attend_mixed_grid(const struct attend_planner *p, uint32_t bucket,
                                     bool has_decode);
void attend_plan_mixed(struct attend_planner *p, const struct backend_row *rows, uint32_t n_rows,
                       uint32_t n_tokens, uint32_t bucket, bool has_decode, uint32_t window,
                       void *list, struct attend_grid *grid);

/* One layer of one step; all pointers are of the device. bf16 as uint16_t. */
struct attend_args {
    const uint16_t *qkv;   /* (T, qkv_stride): first q, (n_heads, head_dim) */
    const void *k;         /* of this layer, in block 0: (n_kv_heads, 16, head_dim) of kv_dtype */
    const void *v;         /* as k */
    const uint8_t *scales; /* as k: (n_kv_heads, K|V, 16), of a quantised pool (kv_layout.h) */
    const int32_t *table;  /* (max_rows, table_stride) block ids */
    float *partial;        /* (attend_max_partials, n_heads, head_dim) */
    float *partial_state;  /* (attend_max_partials, n_heads, 2) maximum and sum, base 2 */
    uint32_t *ended;    /* (attend_max_partials, n_kv_heads) zeros; zeros again after each layer */
    uint16_t *mix;      /* (T, n_heads, head_dim) */
    int64_t qkv_stride; /* elements, a multiple of 8 */
    int64_t block_stride; /* bytes from block to block of the pool, a multiple of 16 */
    enum dtype kv_dtype;  /* bf16, e4m3 or int8 */
    int32_t table_stride;
    int32_t n_heads, n_kv_heads, head_dim;
    int32_t window;   /* 0: none; that of the list's plan */
    float scale_log2; /* log2(e) / sqrt(head_dim) */
    int32_t unused;   /* in place of padding: the shim reads arguments word by word */
};

/* Once per device, before the first launch: allows the shared memory that the kernels take. */
void attend_prepare(void);

/* The kernels of one layer, in order. `list`: what attend_plan wrote, on the device. */
void attend_layer(struct gpu_stream *s, const struct attend_args *args, const void *list,
                  const struct attend_grid *grid);

/* --- the three launches, one kernel each: for attend_layer and for tests */
void attend_prepare_decode(void);
void attend_prepare_prefill(void);
void attend_launch_decode(struct gpu_stream *s, const struct attend_args *args,
                          const struct attend_item *items, uint32_t n_items);
void attend_launch_prefill(struct gpu_stream *s, const struct attend_args *args,
                           const struct attend_item *items, uint32_t n_items, uint32_t tile_rows,
                           bool is_chunked);
void attend_launch_merge(struct gpu_stream *s, const struct attend_args *args,
                         const struct attend_merge *merges, uint32_t n_merges);

#ifdef __cplusplus
}
#endif
#endif
