/* kernels/cuda/attend/attend_prefill.cu - many query tokens of a row against its pages.
 *
 * The query heads that share a KV head are packed with the tokens: packed row r is head r % group
 * of token r / group, so that K and V are read once for all of them and short prompts still fill a
 * tile. Each of 4 warps owns one or two *slabs* of 16 packed rows; a block, 64 or 128 of them,
 * shares the tiles of K and V.
 *
 *      block = (KV head, item)    TILE_ROWS = 4 * SLABS * 16 packed rows
 *      Q fragments                through shared memory once, then in registers, or from there each time
 *      for each tile of 64 positions, left to right:
 *          wait for its copy; a barrier; copy the next tile into the other stage
 *          S (16 SLABS, 64) = Q K^T; mask, where the tile can cross the diagonal or the window's edge;
 *          running softmax, base 2; O (16 SLABS, HD) += P V
 *
 * One barrier a tile is enough: a warp that has passed it has read the tile before, so that stage
 * may be filled again.
 *
 * Tiles lie at multiples of 64 positions from position 0, whatever the item's range. What is in a
 * tile but not in the range is zeroed, not read: blocks below a window are gone, slots past the
 * sequence's end hold anything, and 0 * NaN is NaN. So a token's sums see the same numbers in the
 * same order whichever item it is in; tiles that it sees nothing of leave its sums as they are, to
 * the bit.
 *
 * Deterministic (CHUNKED): sums restart at each multiple of 256 positions, and finished chunks are
 * added up from left to right, in shared memory here, or by the merge kernel when the chunks are
 * items of their own.
 *
 * Shared memory of a block, and blocks per multiprocessor of 228 KiB and 64 Ki registers (sm_90);
 * what each row sees, 4 bytes, comes on top:
 *
 *      HD    2 stages    64 rows    128 rows: with queries, sums    CHUNKED: with its total    64 rows
 *      64      32 KiB          3                32 KiB         2                     48 KiB          3
 *      96      48 KiB          3                74 KiB         2                     72 KiB          2
 *      128     64 KiB          3                98 KiB         2                     96 KiB          2
 *
 * Why two slabs. A fragment of K or V, 16 x 16, is one load_matrix4: 512 bytes, 4 clocks of shared
 * memory. It feeds two products a slab, and the tensor units of sm_90 could do one a clock: with
 * one slab, shared memory allows half of that. With two, a tile of HD 128 is 64 loads of K and V
 * and 16 of Q, 320 clocks, for 256 products: 80 %, more than mma.sync reaches; HD 64, whose Q stays
 * in registers, has no such bound. The 128 rows also halve what is read of K and V from L2; 64 suit
 * short prompts.
 *
 * O and S of two slabs are 192 registers at HD 128. So queries, row sums and what the rows see live
 * in shared memory there; without this sm_90 spills.
 *
 * A quantised pool: tiles come as codes into two stages of half the size, where the second stage
 * would lie, and are widened to bf16 into the first, with a second barrier; what follows is the
 * same. Scales, a float for each K and V of the tile, multiply scores and weights.
 *
 * LIMITS. Where one block fits, sm_80 and multiprocessors of 100 KiB (sm_86, 89, 120) at HD 128, it
 * is 4 warps alone, and products wait for the softmax. */
#include "kernels/cuda/attend/attend.h"

#include "kernels/cuda/attend/attend_codes.cuh"
#include "kernels/cuda/attend/attend_tile.cuh"
#include "kernels/cuda/device/simt.h"

#define TILE        ((int)ATTEND_TILE)
#define PAGE        ((int)ATTEND_PAGE)
#define CHUNK_TILES ((int)(ATTEND_CHUNK / ATTEND_TILE))
#define WARPS       4
#define THREADS     (WARPS * 32)

struct prefill_args {
    struct attend_args a;
    const struct attend_item *items; /* (gridDim.y) */
};

template <int HD, int SLABS, bool CHUNKED, int KV> struct prefill_shape {
    static constexpr int TILE_ROWS = WARPS * SLABS * 16;
    /* Too many accumulators: queries and row sums stay in shared memory. */
    static constexpr bool IS_TIGHT = SLABS == 2 && HD > 64;
    static constexpr bool IS_CODED = KV != KV_BF16;
    static constexpr bool IS_WIDE = SLABS == 2 || CHUNKED || HD == 96 || (IS_CODED && HD == 128);
    static constexpr int STAGE = 2 * TILE * HD; /* elements: K, then V */
    static constexpr int QUERIES = IS_TIGHT ? 2 * STAGE : IS_CODED ? 0 : STAGE;
    /* Bytes: the stages, then what is there, in this order. */
    static constexpr int TOTAL = 2 * STAGE * 2 + (IS_TIGHT ? TILE_ROWS * HD * 2 : 0);
    static constexpr int ROW_SUMS = TOTAL + (CHUNKED ? TILE_ROWS * HD * 4 : 0);
    static constexpr int LAST_SEEN = ROW_SUMS + (IS_TIGHT ? SLABS * THREADS * 8 : 0);
    static constexpr int SCALES = LAST_SEEN + TILE_ROWS * 4;
    static constexpr int BYTES = SCALES + (IS_CODED ? 2 * TILE * 4 : 0);
    /* Of a multiprocessor, at least. 3 of HD 128 leave 168 registers; by itself ptxas takes 200.
     * Where one spills, 2 is the remedy. */
    static constexpr int BLOCKS = SMALL_SHARED ? 1 : IS_WIDE ? 2 : 3;

    static_assert(!CHUNKED || SLABS == 1, "the total of chunks is of one slab");
};

static __device__ __forceinline__ int window_start(int position, int window) {
    return window && position >= window ? position - window + 1 : 0;
}

/* The last position that a packed row sees; rows past the item's last are as the last. */
static __device__ __forceinline__ int last_seen(const struct attend_item &item, int group,
                                                int packed) {
    int offset = item.position;

    return offset + min(packed, item.n_tokens * group - 1) / group;
}

/* Does every row see all of the tile at `from`? last: last_seen of each row of the block. */
template <int TILE_ROWS>
static __device__ __forceinline__ bool is_clear(const int *last, int window, int from) {
    return from >= window_start(last[TILE_ROWS - 1], window) && from + TILE <= last[0] + 1;
}

/* The tile's queries into shared memory, (TILE_ROWS, HD), rows past the last zero. */
template <int HD, int ROWS>
static __device__ __forceinline__ void copy_queries(bf16 *tile, const struct attend_args &a,
                                                    const struct attend_item &item, int kv_head,
                                                    int group) {
    constexpr int PIECES = HD / 8;
    const bf16 *qkv = (const bf16 *)a.qkv + (int64_t)kv_head * group * HD;

    for (int i = (int)threadIdx.x; i < ROWS * PIECES; i += THREADS) {
        int row = i / PIECES, piece = i % PIECES, packed = item.packed + row;
        int token = packed / group, head = packed % group;
        bf16 *to = tile + tile_at<HD>(row, piece);

        if (token < item.n_tokens)
            copy_async16(to,
                         qkv + (item.first_token + token) * a.qkv_stride + head * HD + piece * 8);
        else
            store_zeros16(to);
    }
}

/* Positions [tile * 64, + 64) of K and V into a stage; unless WHOLE, zeros outside the item's
 * range. A page is (16, HD) in one piece in the pool, so a thread's pieces of it are at the same
 * place in every page. */
template <int HD, bool WHOLE>
static __device__ __forceinline__ void copy_tile(bf16 *stage, const struct attend_args &a,
                                                 const struct attend_item &item,
                                                 const int32_t *table, int tile, int kv_head) {
    constexpr int PIECES = PAGE * HD / 8; /* of a page; at least one for each thread */
    constexpr int PAGES = TILE / PAGE;
    int first = (int)(threadIdx.x % THREADS), at = tile_at<HD>(first / (HD / 8), first % (HD / 8));
    int32_t block[PAGES];

    /* All ids before the first copy: they are waited for once, and not page by page. */
#pragma unroll
    for (int j = 0; WHOLE && j < PAGES; j++)
        block[j] = table[tile * PAGES + j];
#pragma unroll(WHOLE ? PAGES : 1)
    for (int j = 0; j < PAGES; j++) {
        int from = tile * TILE + j * PAGE;
        int low = WHOLE ? 0 : item.begin - from, high = WHOLE ? PAGE : item.end - from;
        int64_t head = 0;

        if (low < PAGE && high > 0)
            head = (WHOLE ? block[j] : table[from / PAGE]) * a.block_stride +
                   (int64_t)kv_head * (PAGE * HD * 2);
#pragma unroll
        for (int i = 0; i < (PIECES + THREADS - 1) / THREADS; i++) {
            int piece = i * THREADS + first, row = piece / (HD / 8);
            bf16 *to = stage + j * PAGE * HD + tile_at_round<HD, THREADS>(at, first, i);

            if (PIECES % THREADS != 0 && piece >= PIECES) break;
            if (row >= low && row < high) {
                copy_async16(to, (const uint8_t *)a.k + head + piece * 16);
                copy_async16(to + TILE * HD, (const uint8_t *)a.v + head + piece * 16);
            } else {
                store_zeros16(to);
                store_zeros16(to + TILE * HD);
            }
        }
    }
}

/* The codes of positions [tile * 64, + 64), K and then V; zeros outside the item's range. */
template <int HD>
static __device__ __forceinline__ void copy_code_tile(uint8_t *stage, const struct attend_args &a,
                                                      const struct attend_item &item,
                                                      const int32_t *table, int tile, int kv_head) {
    constexpr int PIECES = HD / 16; /* of a position */

#pragma unroll 1 /* registers are short */
    for (int i = 0; i < TILE * PIECES / THREADS; i++) {
        int piece = i * THREADS + (int)threadIdx.x, position = tile * TILE + piece / PIECES;
        uint8_t *to = stage + piece * 16;

        if (position >= item.begin && position < item.end) {
            int32_t block = table[position / PAGE];
            int at = piece % (PAGE * PIECES) * 16;

            copy_async16(to, code_page_of<HD>(a.k, a, block, kv_head) + at);
            copy_async16(to + TILE * HD, code_page_of<HD>(a.v, a, block, kv_head) + at);
        } else {
            store_zeros16((bf16 *)(void *)to);
            store_zeros16((bf16 *)(void *)(to + TILE * HD));
        }
    }
}

/* This thread's scale of a tile, as its byte: of K in the first half of the block, of V in the
 * second. 1 outside the item's range, where what is stored may be anything. */
static __device__ __forceinline__ uint32_t fetch_scale(const struct attend_args &a,
                                                       const struct attend_item &item,
                                                       const int32_t *table, int tile,
                                                       int kv_head) {
    int which = (int)threadIdx.x / TILE, position = tile * TILE + (int)threadIdx.x % TILE;

    if (position < item.begin || position >= item.end) return 127;
    return scales_of(a, table[position / PAGE], kv_head)[which * PAGE + position % PAGE];
}

/* Codes to a stage of bf16. */
template <int HD, int KV>
static __device__ __forceinline__ void widen_tile(bf16 *stage, const uint8_t *codes) {
    static_assert(2 * TILE == THREADS, "a thread has one scale of a tile");
#pragma unroll 2
    for (int i = 0; i < HD / 16; i++) {
        int piece = i * THREADS + (int)threadIdx.x, row = piece / (HD / 16), x = piece % (HD / 16);
        uint4 from = *(const uint4 *)(codes + piece * 16);
        uint32_t first[4], second[4];

        widen_codes<KV>(first, from.x);
        widen_codes<KV>(first + 2, from.y);
        widen_codes<KV>(second, from.z);
        widen_codes<KV>(second + 2, from.w);
        *(uint4 *)(stage + tile_at<HD>(row, 2 * x)) =
            make_uint4(first[0], first[1], first[2], first[3]);
        *(uint4 *)(stage + tile_at<HD>(row, 2 * x + 1)) =
            make_uint4(second[0], second[1], second[2], second[3]);
    }
}

/* Scores of a tile times K's scales. */
template <int SLABS>
static __device__ __forceinline__ void scale_tile(float s[SLABS][TILE / 8][4], const float *scales,
                                                  int lane) {
#pragma unroll
    for (int n = 0; n < TILE / 8; n++) {
        float2 by = *(const float2 *)(scales + n * 8 + (lane & 3) * 2);

#pragma unroll
        for (int slab = 0; slab < SLABS; slab++) {
            s[slab][n][0] *= by.x, s[slab][n][1] *= by.y;
            s[slab][n][2] *= by.x, s[slab][n][3] *= by.y;
        }
    }
}

/* What a thread sums for its two rows of a slab, lane / 4 and the 8th after it. */
template <int HD> struct row_sums {
    float o[HD / 8][4]; /* [0], [1]: of the first row, [2], [3]: of the second */
    float max[2], sum[2];
};

template <int HD> static __device__ __forceinline__ void clear_sums(struct row_sums<HD> &sums) {
#pragma unroll
    for (int i = 0; i < HD / 8; i++)
        sums.o[i][0] = sums.o[i][1] = sums.o[i][2] = sums.o[i][3] = 0.0f;
    sums.max[0] = sums.max[1] = -INFINITY;
    sums.sum[0] = sums.sum[1] = 0.0f;
}

/* A warp's queries as A fragments, HD / 16 of each slab: in registers, or, IS_TIGHT, read from
 * shared memory each time they are wanted. */
template <int HD, int SLABS, bool IS_TIGHT> struct queries {
    uint32_t kept[IS_TIGHT ? 1 : HD / 16][SLABS][4];
    int at; /* in shared memory, the first element of this lane's first */
};

template <int HD>
static __device__ __forceinline__ void load_query(uint32_t q[4], const bf16 *shared, int at,
                                                  int slab, int k) {
    load_matrix4(q, shared + fragment_at<HD>(at + slab * 16 * HD, k));
}

/* A slab's row sums, which wait in shared memory from tile to tile: each thread has its own. */
template <int HD>
static __device__ __forceinline__ void park_sum(float2 *place, const struct row_sums<HD> &sums) {
    float2 sum = {sums.sum[0], sums.sum[1]};

    *place = sum;
}
template <int HD>
static __device__ __forceinline__ void take_sum(struct row_sums<HD> &sums, const float2 *place) {
    float2 sum = *place;

    sums.sum[0] = sum.x, sums.sum[1] = sum.y;
}

/* S (16 SLABS, 64) of a warp's rows and a tile, not yet scaled. */
template <int HD, int SLABS, bool IS_TIGHT>
static __device__ __forceinline__ void score_tile(
    float s[SLABS][TILE / 8][4], const struct queries<HD, SLABS, IS_TIGHT> &queries,
    const bf16 *shared, int keys) {
#pragma unroll
    for (int slab = 0; slab < SLABS; slab++)
#pragma unroll
        for (int n = 0; n < TILE / 8; n++)
            s[slab][n][0] = s[slab][n][1] = s[slab][n][2] = s[slab][n][3] = 0.0f;
#pragma unroll
    for (int k = 0; k < HD / 16; k++) {
        uint32_t q[SLABS][4];

#pragma unroll
        for (int slab = 0; slab < SLABS; slab++)
            if constexpr (IS_TIGHT)
                load_query<HD>(q[slab], shared, queries.at, slab, k);
            else
                memcpy(q[slab], queries.kept[k][slab], sizeof(q[slab]));
#pragma unroll
        for (int n = 0; n < TILE / 16; n++) {
            uint32_t b[4];

            load_keys<HD>(b, shared, keys + n * 16 * HD, k);
#pragma unroll
            for (int slab = 0; slab < SLABS; slab++) {
                multiply_add(s[slab][n * 2], q[slab], b[0], b[1]);
                multiply_add(s[slab][n * 2 + 1], q[slab], b[2], b[3]);
            }
        }
    }
}

/* last: last_seen of the thread's first row in the slab; that of its second is 8 rows on. */
static __device__ __forceinline__ void mask_tile(float s[TILE / 8][4], const int *last, int window,
                                                 int from, int lane) {
    int high[2] = {last[0], last[8]};
    int low[2] = {window_start(high[0], window), window_start(high[1], window)};

#pragma unroll
    for (int n = 0; n < TILE / 8; n++)
#pragma unroll
        for (int j = 0; j < 4; j++) {
            int position = from + n * 8 + (lane & 3) * 2 + (j & 1);

            if (position < low[j >> 1] || position > high[j >> 1]) s[n][j] = -INFINITY;
        }
}

/* s becomes weights; what was summed before is scaled to the new maximum. */
template <int HD>
static __device__ __forceinline__ void weigh_tile(struct row_sums<HD> &sums, float s[TILE / 8][4],
                                                  float scale) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
        int a = half * 2, b = half * 2 + 1;
        float top = -INFINITY, sum = 0.0f;

#pragma unroll
        for (int n = 0; n < TILE / 8; n++)
            top = fmaxf(top, fmaxf(s[n][a], s[n][b]));
        float next = fmaxf(sums.max[half], row_max(top) * scale), base = finite_max(next);
        float by = power_of_two(sums.max[half] - base);
        sums.max[half] = next;
#pragma unroll
        for (int n = 0; n < TILE / 8; n++) {
            s[n][a] = power_of_two(fmaf(s[n][a], scale, -base));
            s[n][b] = power_of_two(fmaf(s[n][b], scale, -base));
            sum += s[n][a] + s[n][b];
        }
        sums.sum[half] = fmaf(sums.sum[half], by, sum);
#pragma unroll
        for (int i = 0; i < HD / 8; i++) {
            sums.o[i][a] *= by;
            sums.o[i][b] *= by;
        }
    }
}

/* scales: of V, of a quantised pool; else NULL. */
template <int HD, int SLABS>
static __device__ __forceinline__ void add_values(struct row_sums<HD> sums[SLABS],
                                                  const float s[SLABS][TILE / 8][4],
                                                  const bf16 *shared, int values,
                                                  const float *scales, int lane) {
#pragma unroll
    for (int k = 0; k < TILE / 16; k++) {
        uint32_t weights[SLABS][4];
        float2 by_low = {1.0f, 1.0f}, by_high = {1.0f, 1.0f};

        if (scales) by_low = *(const float2 *)(scales + k * 16 + (lane & 3) * 2);
        if (scales) by_high = *(const float2 *)(scales + k * 16 + 8 + (lane & 3) * 2);

#pragma unroll
        for (int slab = 0; slab < SLABS; slab++) {
            const float *low = s[slab][k * 2], *high = s[slab][k * 2 + 1];

            weights[slab][0] = pack_bf16(low[0] * by_low.x, low[1] * by_low.y);
            weights[slab][1] = pack_bf16(low[2] * by_low.x, low[3] * by_low.y);
            weights[slab][2] = pack_bf16(high[0] * by_high.x, high[1] * by_high.y);
            weights[slab][3] = pack_bf16(high[2] * by_high.x, high[3] * by_high.y);
        }
#pragma unroll
        for (int n = 0; n < HD / 16; n++) {
            uint32_t b[4];

            load_values<HD>(b, shared, values + k * 16 * HD, n);
#pragma unroll
            for (int slab = 0; slab < SLABS; slab++) {
                multiply_add(sums[slab].o[n * 2], weights[slab], b[0], b[1]);
                multiply_add(sums[slab].o[n * 2 + 1], weights[slab], b[2], b[3]);
            }
        }
    }
}

/* The chunks added so far: states in registers, sums in shared memory, where each thread has its
 * own float4s, THREADS apart. */
template <int HD> struct chunk_total {
    float4 *o; /* (HD / 8, THREADS), at this thread's first */
    float max[2], sum[2];
};

/* Adds the chunk in `sums` to the total and clears the sums. */
template <int HD>
static __device__ __forceinline__ void add_chunk(struct chunk_total<HD> &total,
                                                 struct row_sums<HD> &sums, bool is_first) {
    struct attend_scales by[2];

    for (int half = 0; half < 2; half++)
        by[half] =
            add_state(&total.max[half], &total.sum[half], sums.max[half], row_sum(sums.sum[half]));
#pragma unroll
    for (int i = 0; i < HD / 8; i++) {
        float4 o = {0.0f, 0.0f, 0.0f, 0.0f};

        if (!is_first) o = total.o[i * THREADS];
        o.x = add_part(o.x, sums.o[i][0], by[0]);
        o.y = add_part(o.y, sums.o[i][1], by[0]);
        o.z = add_part(o.z, sums.o[i][2], by[1]);
        o.w = add_part(o.w, sums.o[i][3], by[1]);
        total.o[i * THREADS] = o;
    }
    clear_sums<HD>(sums);
}

template <int HD>
static __device__ __forceinline__ void take_total(struct row_sums<HD> &sums,
                                                  const struct chunk_total<HD> &total) {
#pragma unroll
    for (int i = 0; i < HD / 8; i++) {
        float4 o = total.o[i * THREADS];

        sums.o[i][0] = o.x, sums.o[i][1] = o.y, sums.o[i][2] = o.z, sums.o[i][3] = o.w;
    }
    for (int half = 0; half < 2; half++)
        sums.max[half] = total.max[half], sums.sum[half] = total.sum[half];
}

/* One row's mix, or its partial. `sum` is of the whole row. */
template <int HD>
static __device__ __forceinline__ void store_row(const struct row_sums<HD> &sums, int half,
                                                 float sum, const struct attend_args &a,
                                                 const struct attend_item &item, int token,
                                                 int head, int lane) {
    int column = (lane & 3) * 2;

    if (item.partial < 0) {
        bf16 *mix =
            (bf16 *)a.mix + ((int64_t)(item.first_token + token) * a.n_heads + head) * HD + column;
        float by = inverse_of(sum);

#pragma unroll
        for (int i = 0; i < HD / 8; i++) {
            uint32_t pair = pack_bf16(sums.o[i][half * 2] * by, sums.o[i][half * 2 + 1] * by);

            *(uint32_t *)(mix + i * 8) = pair;
        }
    } else {
        int64_t at = (int64_t)(item.partial + token) * a.n_heads + head;
        float2 state = {sums.max[half], sum};

#pragma unroll
        for (int i = 0; i < HD / 8; i++) {
            float2 pair = {sums.o[i][half * 2], sums.o[i][half * 2 + 1]};

            *(float2 *)(a.partial + at * HD + i * 8 + column) = pair;
        }
        if (column == 0) *(float2 *)(a.partial_state + at * 2) = state;
    }
}

template <int HD, int SLABS, bool CHUNKED, int KV>
static __global__ void __launch_bounds__(THREADS, (prefill_shape<HD, SLABS, CHUNKED, KV>::BLOCKS))
    prefill_kernel(const __grid_constant__ struct prefill_args args) {
    simt_wait_for_primary();

    SHARED_DYNAMIC(shared);
    using shape = prefill_shape<HD, SLABS, CHUNKED, KV>;
    constexpr int STAGE = shape::STAGE;
    const struct attend_args &a = args.a;
    const struct attend_item &item = args.items[blockIdx.y];
    int warp = (int)threadIdx.x >> 5, lane = (int)threadIdx.x & 31;
    int kv_head = (int)blockIdx.x, group = a.n_heads / a.n_kv_heads;
    bf16 *stages = (bf16 *)shared;
    struct queries<HD, SLABS, shape::IS_TIGHT> queries;
    struct row_sums<HD> sums[SLABS];

    if (item.row < 0) return;
    const int32_t *table = a.table + (int64_t)item.row * a.table_stride;
    int warp_row = warp * SLABS * 16, thread_row = warp_row + (lane >> 2), at = 0;
    int tile = item.begin / TILE, n_tiles = (item.end + TILE - 1) / TILE; /* of the row */
    int *last = (int *)(shared + shape::LAST_SEEN);
    float2 *parked = (float2 *)(shared + shape::ROW_SUMS) + threadIdx.x;
    bool is_many_chunks = CHUNKED && tile / CHUNK_TILES != (n_tiles - 1) / CHUNK_TILES;
    struct chunk_total<HD> total;
    bool is_first_chunk = true;
    uint8_t *codes = shared + STAGE * 2, *other_codes = codes + STAGE;
    float *scales = KV == KV_BF16 ? NULL : (float *)(shared + shape::SCALES);
    uint32_t scale = 0; /* of the tile that comes next */

    if (threadIdx.x < shape::TILE_ROWS)
        last[threadIdx.x] = last_seen(item, group, item.packed + (int)threadIdx.x);
    copy_queries<HD, shape::TILE_ROWS>(stages + shape::QUERIES, a, item, kv_head, group);
    copy_commit();
    if constexpr (KV == KV_BF16) {
        if (tile < n_tiles) copy_tile<HD, false>(stages, a, item, table, tile, kv_head);
    } else if (tile < n_tiles) {
        copy_code_tile<HD>(codes, a, item, table, tile, kv_head);
        scale = fetch_scale(a, item, table, tile, kv_head);
    }
    copy_commit();
    queries.at = shape::QUERIES + tile_at<HD>(warp_row + (lane & 15), lane >> 4);
    if constexpr (!shape::IS_TIGHT) { /* before the second stage, where they lie, is filled */
        copy_wait<1>();
        __syncthreads();
#pragma unroll
        for (int k = 0; k < HD / 16; k++)
#pragma unroll
            for (int slab = 0; slab < SLABS; slab++)
                load_query<HD>(queries.kept[k][slab], stages, queries.at, slab, k);
    }
#pragma unroll
    for (int slab = 0; slab < SLABS; slab++) {
        clear_sums<HD>(sums[slab]);
        if constexpr (shape::IS_TIGHT) park_sum<HD>(parked + slab * THREADS, sums[slab]);
    }
    total.o = (float4 *)(shared + shape::TOTAL) + threadIdx.x;
    total.max[0] = total.max[1] = -INFINITY;
    total.sum[0] = total.sum[1] = 0.0f;

    for (; tile < n_tiles; tile++) {
        float s[SLABS][TILE / 8][4];

        copy_wait<0>();
        __syncthreads();
        bool is_whole = is_clear<shape::TILE_ROWS>(last, a.window, tile * TILE);
        if constexpr (KV == KV_BF16) {
            bf16 *other = stages + STAGE - at;

            if (tile + 2 < n_tiles)
                copy_tile<HD, true>(other, a, item, table, tile + 1, kv_head);
            else if (tile + 1 < n_tiles)
                copy_tile<HD, false>(other, a, item, table, tile + 1, kv_head);
            copy_commit();
        } else {
            uint8_t *now = codes;

            scales[threadIdx.x] = scale_value(scale);
            if (tile + 1 < n_tiles) {
                copy_code_tile<HD>(other_codes, a, item, table, tile + 1, kv_head);
                scale = fetch_scale(a, item, table, tile + 1, kv_head);
            }
            copy_commit();
            widen_tile<HD, KV>(stages, now);
            codes = other_codes, other_codes = now;
            __syncthreads(); /* all of the tile is there, before anyone reads it */
        }
        score_tile(s, queries, stages, at + first_key<HD>(lane));
        if constexpr (KV != KV_BF16) scale_tile<SLABS>(s, scales, lane);
        if (!is_whole)
#pragma unroll
            for (int slab = 0; slab < SLABS; slab++)
                mask_tile(s[slab], last + thread_row + slab * 16, a.window, tile * TILE, lane);
#pragma unroll
        for (int slab = 0; slab < SLABS; slab++) {
            if constexpr (shape::IS_TIGHT) take_sum<HD>(sums[slab], parked + slab * THREADS);
            weigh_tile<HD>(sums[slab], s[slab], a.scale_log2);
            if constexpr (shape::IS_TIGHT) park_sum<HD>(parked + slab * THREADS, sums[slab]);
        }
        add_values<HD, SLABS>(sums, s, stages, at + TILE * HD + first_value<HD>(lane),
                              KV == KV_BF16 ? NULL : scales + TILE, lane);
        if constexpr (KV == KV_BF16) at = STAGE - at;
        if (is_many_chunks && ((tile + 1) % CHUNK_TILES == 0 || tile + 1 == n_tiles)) {
            add_chunk<HD>(total, sums[0], is_first_chunk);
            is_first_chunk = false;
        }
    }
    copy_wait<0>();
    if (is_many_chunks) take_total<HD>(sums[0], total);
#pragma unroll
    for (int j = 0; j < SLABS * 2; j++) {
        struct row_sums<HD> &of = sums[j / 2];

        if constexpr (shape::IS_TIGHT) take_sum<HD>(of, parked + j / 2 * THREADS);
        float sum = is_many_chunks ? of.sum[j % 2] : row_sum(of.sum[j % 2]);
        int row = item.packed + thread_row + j * 8;

        if (row < item.n_tokens * group)
            store_row<HD>(of, j % 2, sum, a, item, row / group, kv_head * group + row % group,
                          lane);
    }
}

template <int HD, int SLABS, bool CHUNKED, int KV>
static void launch(struct gpu_stream *s, const struct prefill_args &all, uint32_t n_items) {
    using shape = prefill_shape<HD, SLABS, CHUNKED, KV>;
    dim3 grid((uint32_t)all.a.n_kv_heads, n_items);

    LAUNCH_ALONE((prefill_kernel<HD, SLABS, CHUNKED, KV>), grid, THREADS, shape::BYTES, s, all);
}

template <int HD, int SLABS, bool CHUNKED>
static void launch_type(struct gpu_stream *s, const struct prefill_args &all, uint32_t n_items) {
    switch (all.a.kv_dtype) {
    case DTYPE_F8E4M3: launch<HD, SLABS, CHUNKED, KV_E4M3>(s, all, n_items); break;
    case DTYPE_I8: launch<HD, SLABS, CHUNKED, KV_I8>(s, all, n_items); break;
    default: launch<HD, SLABS, CHUNKED, KV_BF16>(s, all, n_items); break;
    }
}

template <int HD>
static void launch_any(struct gpu_stream *s, const struct prefill_args &all, uint32_t n_items,
                       uint32_t tile_rows, bool is_chunked) {
    if (is_chunked)
        launch_type<HD, 1, true>(s, all, n_items);
    else if (tile_rows == 128)
        launch_type<HD, 2, false>(s, all, n_items);
    else
        launch_type<HD, 1, false>(s, all, n_items);
}

extern "C" void attend_launch_prefill(struct gpu_stream *s, const struct attend_args *args,
                                      const struct attend_item *items, uint32_t n_items,
                                      uint32_t tile_rows, bool is_chunked) {
    struct prefill_args all = {*args, items};

    switch (args->head_dim) {
    case 64: launch_any<64>(s, all, n_items, tile_rows, is_chunked); break;
    case 96: launch_any<96>(s, all, n_items, tile_rows, is_chunked); break;
    default: launch_any<128>(s, all, n_items, tile_rows, is_chunked); break;
    }
}

template <int HD, int KV> static void allow_type(void) {
    ALLOW_SHARED((prefill_kernel<HD, 1, false, KV>), (prefill_shape<HD, 1, false, KV>::BYTES));
    ALLOW_SHARED((prefill_kernel<HD, 2, false, KV>), (prefill_shape<HD, 2, false, KV>::BYTES));
    ALLOW_SHARED((prefill_kernel<HD, 1, true, KV>), (prefill_shape<HD, 1, true, KV>::BYTES));
}

template <int HD> static void allow(void) {
    allow_type<HD, KV_BF16>();
    allow_type<HD, KV_E4M3>();
    allow_type<HD, KV_I8>();
}

extern "C" void attend_prepare_prefill(void) {
    allow<64>();
    allow<96>();
    allow<128>();
}
