/* kernels/cuda/attend/attend_decode.cu - one query token per row against its pages.
 *
 * The bytes of K and V are all that counts here: the arithmetic is a tenth of the time it takes to
 * read them. So each page is read once for the whole group of query heads that share a KV head: the
 * group is padded to the 16 rows of an mma tile, which costs nothing that is short of supply.
 *
 *      block = (KV head, item)      4 warps; warp w takes pages w, w + 4, w + 8 ... of the range
 *      warp  = a page at a time     its own ring of stages in shared memory, filled by copy_async16
 *                                   one page ahead (two with 3 stages): only __syncwarp in the loop
 *                                   S (16, 16) = Q K^T: 2 x HD/16 mma; running softmax, base 2;
 *                                   O (16, HD) += P V: HD/8 mma
 *      end                          the warps' parts meet in shared memory, over the stages; of a row
 *                                   that is split, the block that is through last adds the items'
 *
 * The id of a page is read from the block table one page before it is wanted, so that the copies
 * never wait for it. Slots outside [begin, end) are not read but zeroed: what a block holds past
 * the sequence's end may be anything, and 0 * NaN is NaN.
 *
 * Neighbouring blocks are the KV heads of an item: what they read lies together in the pool.
 *
 * Shared memory of a block, and blocks per multiprocessor of 228 KiB and 64 Ki registers (sm_90):
 *
 *      HD    a page    2 stages    blocks    3 stages    blocks
 *      64     4 KiB      32 KiB         4      48 KiB         4    <- 3 stages
 *      96     6 KiB      48 KiB         3      72 KiB         3    <- 2
 *      128    8 KiB      64 KiB         3      96 KiB         2    <- 2
 *
 * In flight, by Little's law, 4.3 TB/s at 700 ns want 23 KB per multiprocessor; with HD 128 there
 * are 3 x 4 x 8 = 96 KiB. Multiprocessors of 100 KiB (sm_86, 89, 120) hold one block of HD 128. */
#include "kernels/cuda/attend/attend.h"

#include "kernels/cuda/attend/attend_codes.cuh"
#include "kernels/cuda/attend/attend_tile.cuh"
#include "kernels/cuda/device/last_block.cuh"
#include "kernels/cuda/device/simt.h"

#define WARPS   4
#define THREADS (WARPS * 32)
#define GROUP   16 /* rows of the mma tile */
#define PAGE    ((int)ATTEND_PAGE)

struct decode_args {
    struct attend_args a;
    const struct attend_item *items; /* (gridDim.y) */
};

template <int KV> struct element_of { typedef uint8_t type; };
template <> struct element_of<KV_BF16> { typedef bf16 type; };

/* Of one warp: STAGES times K (PAGE, HD), V (PAGE, HD), and, of codes, their scales. */
template <int HD, int KV> struct ring {
    typedef typename element_of<KV>::type element;
    static constexpr int STAGES = KV != KV_BF16 ? 4 : HD == 64 ? 3 : 2;
    static constexpr int SCALES = 2 * PAGE * HD;                          /* where they begin */
    static constexpr int STAGE = SCALES + (KV == KV_BF16 ? 0 : 2 * PAGE); /* elements */
    static constexpr int BYTES = WARPS * STAGES * STAGE * (int)sizeof(element); /* of the block */
    static constexpr int ALLOWED = BYTES + 128;                        /* with ends_last's word */
    static constexpr int BLOCKS = SMALL_SHARED ? 1 : HD == 64 ? 4 : 3; /* at least */
};

/* What a warp knows of its range: pages [page, last) of the row, every WARPS-th. */
struct page_walk {
    const int32_t *table; /* of the row */
    int begin, end;       /* positions */
    int next, last;       /* page to be copied next; one past the range */
    int32_t block;        /* id of `next`, read ahead */
};

/* Slots [low, high) of a page into a tile (16, HD), zeros elsewhere. */
template <int HD, bool WHOLE>
static __device__ __forceinline__ void copy_slots(bf16 *tile, const bf16 *page, int low, int high,
                                                  int lane) {
    constexpr int PIECES = HD / 8;
    int at = tile_at<HD>(lane / PIECES, lane % PIECES);

#pragma unroll
    for (int i = 0; i < PAGE * PIECES / 32; i++) {
        int row = (i * 32 + lane) / PIECES;
        bf16 *to = tile + tile_at_round<HD, 32>(at, lane, i);

        if (WHOLE || (row >= low && row < high))
            copy_async16(to, page + (i * 32 + lane) * 8);
        else
            store_zeros16(to);
    }
}

/* A page's K and V of slots [low, high) into a stage, zeros elsewhere; of codes all scales. */
template <int HD>
static __device__ __forceinline__ void copy_block(bf16 *stage, const struct attend_args &a,
                                                  int32_t block, int kv_head, int low, int high,
                                                  int lane) {
    const bf16 *k = page_of<HD>(a.k, a, block, kv_head), *v = page_of<HD>(a.v, a, block, kv_head);

    if (low <= 0 && high >= PAGE) {
        copy_slots<HD, true>(stage, k, low, high, lane);
        copy_slots<HD, true>(stage + PAGE * HD, v, low, high, lane);
    } else {
        copy_slots<HD, false>(stage, k, low, high, lane);
        copy_slots<HD, false>(stage + PAGE * HD, v, low, high, lane);
    }
}
template <int HD, int KV>
static __device__ __forceinline__ void copy_code_block(uint8_t *stage, const struct attend_args &a,
                                                       int32_t block, int kv_head, int low,
                                                       int high, int lane) {
    copy_codes<HD>(stage, code_page_of<HD>(a.k, a, block, kv_head), low, high, lane);
    copy_codes<HD>(stage + PAGE * HD, code_page_of<HD>(a.v, a, block, kv_head), low, high, lane);
    if (lane < 2)
        copy_async16(stage + ring<HD, KV>::SCALES + lane * 16,
                     scales_of(a, block, kv_head) + lane * 16);
}

/* Copies the next page into a stage, and reads the id of the page after it. */
template <int HD, int KV>
static __device__ __forceinline__ void copy_page(typename ring<HD, KV>::element *stage,
                                                 const struct attend_args &a,
                                                 struct page_walk &walk, int kv_head, int lane) {
    if (walk.next < walk.last) {
        int low = walk.begin - walk.next * PAGE, high = walk.end - walk.next * PAGE;
        int32_t block = walk.block;

        if (walk.next + WARPS < walk.last) walk.block = walk.table[walk.next + WARPS];
        if constexpr (KV == KV_BF16)
            copy_block<HD>(stage, a, block, kv_head, low, high, lane);
        else
            copy_code_block<HD, KV>(stage, a, block, kv_head, low, high, lane);
    }
    walk.next += WARPS;
    copy_commit(); /* an empty group past the end: the count of groups stays what copy_wait
                    * expects */
}

/* A fragments of the group's queries (16, HD), rows past the group zero. */
template <int HD>
static __device__ __forceinline__ void load_queries(uint32_t q[HD / 16][4], const bf16 *query,
                                                    int group, int lane) {
    int row = lane >> 2, column = (lane & 3) * 2;

#pragma unroll
    for (int k = 0; k < HD / 16; k++) {
        const bf16 *at = query + row * HD + k * 16 + column;

        q[k][0] = row < group ? load_pair(at) : 0;
        q[k][1] = row + 8 < group ? load_pair(at + 8 * HD) : 0;
        q[k][2] = row < group ? load_pair(at + 8) : 0;
        q[k][3] = row + 8 < group ? load_pair(at + 8 * HD + 8) : 0;
    }
}

/* S (16, 16) of the queries and one page, not yet scaled. */
template <int HD>
static __device__ __forceinline__ void score_page(float s[2][4], const uint32_t q[HD / 16][4],
                                                  const bf16 *shared, int keys) {
#pragma unroll
    for (int n = 0; n < 2; n++)
        s[n][0] = s[n][1] = s[n][2] = s[n][3] = 0.0f;
#pragma unroll
    for (int k = 0; k < HD / 16; k++) {
        uint32_t b[4];

        load_keys<HD>(b, shared, keys, k);
        multiply_add(s[0], q[k], b[0], b[1]);
        multiply_add(s[1], q[k], b[2], b[3]);
    }
}

/* Slots outside [low, high) are not seen. */
static __device__ __forceinline__ void mask_page(float s[2][4], int low, int high, int lane) {
#pragma unroll
    for (int n = 0; n < 2; n++)
#pragma unroll
        for (int j = 0; j < 4; j++) {
            int slot = n * 8 + (lane & 3) * 2 + (j & 1);

            if (slot < low || slot >= high) s[n][j] = -INFINITY;
        }
}

/* s becomes weights; o, max and sum of rows lane / 4 and lane / 4 + 8 go on to the new maximum. */
template <int HD>
static __device__ __forceinline__ void weigh_page(float o[HD / 8][4], float max[2], float sum[2],
                                                  float s[2][4], float scale) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float *low = s[0] + half * 2, *high = s[1] + half * 2;
        float top = row_max(fmaxf(fmaxf(low[0], low[1]), fmaxf(high[0], high[1])));
        float next = fmaxf(max[half], top * scale), base = finite_max(next);
        float by = power_of_two(max[half] - base);

        max[half] = next;
#pragma unroll
        for (int j = 0; j < 2; j++) {
            low[j] = power_of_two(fmaf(low[j], scale, -base));
            high[j] = power_of_two(fmaf(high[j], scale, -base));
        }
        sum[half] = sum[half] * by + ((low[0] + low[1]) + (high[0] + high[1]));
#pragma unroll
        for (int i = 0; i < HD / 8; i++) {
            o[i][half * 2] *= by;
            o[i][half * 2 + 1] *= by;
        }
    }
}

template <int HD>
static __device__ __forceinline__ void add_values(float o[HD / 8][4], const float s[2][4],
                                                  const bf16 *shared, int values) {
    uint32_t weights[4];

#pragma unroll
    for (int half = 0; half < 2; half++) {
        weights[half] = pack_bf16(s[0][half * 2], s[0][half * 2 + 1]);
        weights[half + 2] = pack_bf16(s[1][half * 2], s[1][half * 2 + 1]);
    }
#pragma unroll
    for (int n = 0; n < HD / 16; n++) {
        uint32_t b[4];

        load_values<HD>(b, shared, values, n);
        multiply_add(o[n * 2], weights, b[0], b[1]);
        multiply_add(o[n * 2 + 1], weights, b[2], b[3]);
    }
}

/* Adds one page; slots outside [low, high) are not seen. */
template <int HD>
static __device__ __forceinline__ void add_page(float o[HD / 8][4], float max[2], float sum[2],
                                                const uint32_t q[HD / 16][4], const bf16 *stages,
                                                int at, int low, int high, float scale, int lane) {
    float s[2][4];

    score_page<HD>(s, q, stages, at + first_key<HD>(lane));
    if (low > 0 || high < PAGE) mask_page(s, low, high, lane);
    weigh_page<HD>(o, max, sum, s, scale);
    add_values<HD>(o, s, stages, at + PAGE * HD + first_value<HD>(lane));
}
template <int HD, int KV>
static __device__ __forceinline__ void add_code_page(float o[HD / 8][4], float max[2], float sum[2],
                                                     const uint32_t q[HD / 16][4],
                                                     const uint8_t *stage, int low, int high,
                                                     float scale, int lane) {
    const uint8_t *scales = stage + ring<HD, KV>::SCALES;
    struct slot_scales by;
    uint32_t weights[4];
    float s[2][4];

    score_codes<HD, KV>(s, q, stage, lane);
    by = load_scales(scales, low, high, lane);
    scale_codes(s, by, low, high, lane);
    weigh_page<HD>(o, max, sum, s, scale);
    by = load_scales(scales + PAGE, low, high, lane);
#pragma unroll
    for (int half = 0; half < 2; half++) {
        weights[half] = pack_bf16(s[0][half * 2] * by.of[0], s[0][half * 2 + 1] * by.of[2]);
        weights[half + 2] = pack_bf16(s[1][half * 2] * by.of[1], s[1][half * 2 + 1] * by.of[3]);
    }
    add_code_values<HD, KV>(o, weights, stage + PAGE * HD, lane);
}

/* The warps' parts, in shared memory. Rows are HD + 8 floats apart, so that the eight rows that a
 * warp stores together lie in different banks. */
template <int HD> struct decode_parts {
    static constexpr int STRIDE = HD + 8;
    float o[WARPS][GROUP][STRIDE];
    float max[WARPS][GROUP], sum[WARPS][GROUP];
};

template <int HD, int KV>
static __device__ __forceinline__ void leave_part(struct decode_parts<HD> *parts,
                                                  const float o[HD / 8][4], const float max[2],
                                                  const float sum[2], int warp, int lane) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
        int row = (lane >> 2) + half * 8;
        float total = row_sum(sum[half]);

        if ((lane & 3) == 0) {
            parts->max[warp][row] = max[half];
            parts->sum[warp][row] = total;
        }
#pragma unroll
        for (int i = 0; i < HD / 8; i++) {
            float2 pair = {o[i][half * 2], o[i][half * 2 + 1]};

            if constexpr (KV == KV_BF16) {
                *(float2 *)&parts->o[warp][row][i * 8 + (lane & 3) * 2] = pair;
            } else {
                float *to = &parts->o[warp][row][(lane & 3) * (HD / 4) + i];

                to[0] = pair.x, to[HD / 8] = pair.y;
            }
        }
    }
}

/* Adds the warps' parts and stores: the mix of the group's heads, or the item's partial. */
template <int HD>
static __device__ __forceinline__ void store_item(const struct decode_parts<HD> *parts,
                                                  const struct attend_args &a,
                                                  const struct attend_item &item, int kv_head,
                                                  int group) {
    for (int e = (int)threadIdx.x; e < group * HD / 2; e += THREADS) {
        int row = e / (HD / 2), column = e % (HD / 2) * 2, head = kv_head * group + row;
        float x = 0.0f, y = 0.0f, max = -INFINITY, sum = 0.0f;

#pragma unroll
        for (int w = 0; w < WARPS; w++) {
            const float *part = &parts->o[w][row][column];
            struct attend_scales by = add_state(&max, &sum, parts->max[w][row], parts->sum[w][row]);

            x = add_part(x, part[0], by);
            y = add_part(y, part[1], by);
        }
        if (item.partial < 0) {
            int64_t at = ((int64_t)item.first_token * a.n_heads + head) * HD + column;
            uint32_t pair = pack_bf16(x * inverse_of(sum), y * inverse_of(sum));

            *(uint32_t *)(a.mix + at) = pair;
        } else {
            int64_t at = (int64_t)item.partial * a.n_heads + head;
            float2 pair = {x, y}, state = {max, sum};

            *(float2 *)(a.partial + at * HD + column) = pair;
            if (column == 0) *(float2 *)(a.partial_state + at * 2) = state;
        }
    }
}

/* Of the row's blocks for this KV head, the last to come here adds what all have left. */
template <int HD>
static __device__ __forceinline__ void merge_row(const struct attend_args &a,
                                                 const struct attend_item &item, int kv_head,
                                                 int group) {
    uint32_t *ended = a.ended + (int64_t)item.first_part * a.n_kv_heads + kv_head;

    if (!ends_last(ended, (uint32_t)item.n_parts)) return;
    for (int e = (int)threadIdx.x; e < group * HD / 4; e += THREADS)
        merge_parts<HD>(a, item.first_token, kv_head * group + e / (HD / 4), e % (HD / 4) * 4,
                        item.first_part, 1, item.n_parts);
}

template <int HD, int KV>
static __global__ void __launch_bounds__(THREADS, (ring<HD, KV>::BLOCKS))
    decode_kernel(const __grid_constant__ struct decode_args args) {
    simt_wait_for_primary();
    simt_launch_dependents();

    SHARED_DYNAMIC(shared);
    constexpr int STAGES = ring<HD, KV>::STAGES, STAGE = ring<HD, KV>::STAGE;
    static_assert(sizeof(struct decode_parts<HD>) <= ring<HD, KV>::BYTES,
                  "parts lie over the stages");
    typedef typename ring<HD, KV>::element element;
    const struct attend_args &a = args.a;
    const struct attend_item &item = args.items[blockIdx.y];
    int warp = (int)threadIdx.x >> 5, lane = (int)threadIdx.x & 31;
    int kv_head = (int)blockIdx.x, group = a.n_heads / a.n_kv_heads;
    element *stages = (element *)shared + warp * STAGES * STAGE;
    uint32_t q[HD / 16][4];
    float o[HD / 8][4], max[2] = {-INFINITY, -INFINITY}, sum[2] = {0.0f, 0.0f};
    int stage = 0;

    if (item.row < 0) return;
    int page = item.begin / PAGE + warp;
    struct page_walk walk = {a.table + (int64_t)item.row * a.table_stride,
                             item.begin,
                             item.end,
                             page,
                             (item.end + PAGE - 1) / PAGE,
                             0};
    if (page < walk.last) walk.block = walk.table[page];
#pragma unroll
    for (int i = 0; i < STAGES - 1; i++)
        copy_page<HD, KV>(stages + i * STAGE, a, walk, kv_head, lane);
    const bf16 *query = (const bf16 *)a.qkv + (int64_t)item.first_token * a.qkv_stride +
                        (int64_t)kv_head * group * HD;
    if constexpr (KV == KV_BF16)
        load_queries<HD>(q, query, group, lane);
    else
        load_code_queries<HD>(q, query, group, lane);
#pragma unroll
    for (int i = 0; i < HD / 8; i++)
        o[i][0] = o[i][1] = o[i][2] = o[i][3] = 0.0f;

    for (; page < walk.last; page += WARPS) {
        int at = stage * STAGE;
        int free_stage = stage == 0 ? STAGES - 1 : stage - 1; /* read in the round before */

        copy_wait<STAGES - 2>();
        __syncwarp();
        copy_page<HD, KV>(stages + free_stage * STAGE, a, walk, kv_head, lane);
        int low = walk.begin - page * PAGE, high = walk.end - page * PAGE;
        if constexpr (KV == KV_BF16)
            add_page<HD>(o, max, sum, q, stages, at, low, high, a.scale_log2, lane);
        else
            add_code_page<HD, KV>(o, max, sum, q, stages + at, low, high, a.scale_log2, lane);
        stage = stage + 1 == STAGES ? 0 : stage + 1;
    }
    copy_wait<0>();
    __syncthreads(); /* they lie over all warps' stages */
    leave_part<HD, KV>((struct decode_parts<HD> *)shared, o, max, sum, warp, lane);
    __syncthreads();
    store_item<HD>((const struct decode_parts<HD> *)shared, a, item, kv_head, group);
    if (item.partial >= 0) merge_row<HD>(a, item, kv_head, group);
}

template <int HD, int KV>
static void launch(struct gpu_stream *s, const struct decode_args &all, dim3 grid) {
    LAUNCH((decode_kernel<HD, KV>), grid, THREADS, (ring<HD, KV>::BYTES), s, all);
}

template <int HD>
static void launch_any(struct gpu_stream *s, const struct decode_args &all, dim3 grid) {
    switch (all.a.kv_dtype) {
    case DTYPE_F8E4M3: launch<HD, KV_E4M3>(s, all, grid); break;
    case DTYPE_I8: launch<HD, KV_I8>(s, all, grid); break;
    default: launch<HD, KV_BF16>(s, all, grid); break;
    }
}

extern "C" void attend_launch_decode(struct gpu_stream *s, const struct attend_args *args,
                                     const struct attend_item *items, uint32_t n_items) {
    struct decode_args all = {*args, items};
    dim3 grid((uint32_t)args->n_kv_heads, n_items);

    switch (args->head_dim) {
    case 64: launch_any<64>(s, all, grid); break;
    case 96: launch_any<96>(s, all, grid); break;
    default: launch_any<128>(s, all, grid); break;
    }
}

template <int HD> static void allow(void) {
    ALLOW_SHARED((decode_kernel<HD, KV_BF16>), (ring<HD, KV_BF16>::ALLOWED));
    ALLOW_SHARED((decode_kernel<HD, KV_E4M3>), (ring<HD, KV_E4M3>::ALLOWED));
    ALLOW_SHARED((decode_kernel<HD, KV_I8>), (ring<HD, KV_I8>::ALLOWED));
}

extern "C" void attend_prepare_decode(void) {
    allow<64>();
    allow<96>();
    allow<128>();
}
