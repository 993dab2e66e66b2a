/* kernels/cuda/attend/attend_codes.cuh - pages of codes, as the decode kernel reads them: straight
 * from the bytes in shared memory into the fragments of an mma.
 *
 * Dimensions and keys may be summed in any order as long as both factors agree, so a lane takes
 * bytes that lie together, and nothing is transposed. With g = lane / 4 and c = lane % 4:
 *
 *      scores     key 2 g + n of tile n; in product k dimensions HD / 4 * c + 4 k ... + 3, which is
 *                 also how the queries are loaded
 *      a lane's S of tile n: keys 4 c + n and 4 c + n + 2, so it needs the scales of 4 c ... + 3
 *      values     keys 4 c ... + 3; in tile i dimension HD / 8 * g + i
 *      a lane's O of tile i: dimensions HD / 8 * (2 c) + i and HD / 8 * (2 c + 1) + i
 *
 * A tile is (16, HD) bytes, piece x of 16 bytes of row r at x ^ (r / 2 % (HD / 16)), for the banks;
 * rows of 96 need none for keys. Behind K and V of a page lie their 16 scales each. */
#ifndef KERNELS_CUDA_ATTEND_CODES_CUH
#define KERNELS_CUDA_ATTEND_CODES_CUH

#include "kernels/cuda/attend/attend_tile.cuh"
#include "kernels/cuda/device/codes.cuh"

#define CODE_PAGE ((int)ATTEND_PAGE)

/* Byte at which piece `piece` of row `row` begins. */
template <int HD> static __device__ __forceinline__ int code_at(int row, int piece) {
    return row * HD + (HD == 96 ? piece : piece ^ (row >> 1 & (HD / 16 - 1))) * 16;
}

/* One KV head's tokens of a block: (16, HD). */
template <int HD>
static __device__ __forceinline__ const uint8_t *code_page_of(const void *layer,
                                                              const struct attend_args &a,
                                                              int32_t block, int kv_head) {
    return (const uint8_t *)layer + block * a.block_stride + (int64_t)kv_head * CODE_PAGE * HD;
}

/* Its scales: 16 of K, 16 of V. */
static __device__ __forceinline__ const uint8_t *scales_of(const struct attend_args &a,
                                                           int32_t block, int kv_head) {
    return a.scales + block * a.block_stride + (int64_t)kv_head * 2 * CODE_PAGE;
}

/* Slots [low, high) of a page into a tile, zeros elsewhere. */
template <int HD>
static __device__ __forceinline__ void copy_codes(uint8_t *tile, const uint8_t *page, int low,
                                                  int high, int lane) {
    constexpr int PIECES = HD / 16;

#pragma unroll
    for (int i = 0; i < CODE_PAGE * PIECES / 32; i++) {
        int row = (i * 32 + lane) / PIECES, piece = (i * 32 + lane) % PIECES;
        uint8_t *to = tile + code_at<HD>(row, piece);

        if (row >= low && row < high)
            copy_async16(to, page + (i * 32 + lane) * 16);
        else
            store_zeros16((bf16 *)(void *)to);
    }
}

/* A fragments of the group's queries, rows past the group zero. */
template <int HD>
static __device__ __forceinline__ void load_code_queries(uint32_t q[HD / 16][4], const bf16 *query,
                                                         int group, int lane) {
    int row = lane >> 2;
    const bf16 *at = query + row * HD + (lane & 3) * (HD / 4);

#pragma unroll
    for (int k = 0; k < HD / 16; k++) {
        uint2 first = {0, 0}, second = {0, 0};

        if (row < group) first = *(const uint2 *)(at + k * 4);
        if (row + 8 < group) second = *(const uint2 *)(at + 8 * HD + k * 4);
        q[k][0] = first.x, q[k][2] = first.y;
        q[k][1] = second.x, q[k][3] = second.y;
    }
}

/* A lane's HD / 4 codes of one key. */
template <int HD>
static __device__ __forceinline__ void load_key_codes(uint32_t words[HD / 16], const uint8_t *tile,
                                                      int row, int c) {
    if constexpr (HD == 96) {
#pragma unroll
        for (int i = 0; i < 3; i++) {
            uint2 two = *(const uint2 *)(tile + row * HD + c * 24 + i * 8);

            words[i * 2] = two.x, words[i * 2 + 1] = two.y;
        }
    } else {
#pragma unroll
        for (int i = 0; i < HD / 64; i++) {
            uint4 four = *(const uint4 *)(tile + code_at<HD>(row, c * (HD / 64) + i));

            words[i * 4] = four.x, words[i * 4 + 1] = four.y;
            words[i * 4 + 2] = four.z, words[i * 4 + 3] = four.w;
        }
    }
}

/* A lane's HD / 8 codes of one value. */
template <int HD>
static __device__ __forceinline__ void load_value_codes(uint32_t words[HD / 32],
                                                        const uint8_t *tile, int row, int g) {
    if constexpr (HD == 128) {
        uint4 four = *(const uint4 *)(tile + code_at<HD>(row, g));

        words[0] = four.x, words[1] = four.y, words[2] = four.z, words[3] = four.w;
    } else if constexpr (HD == 64) {
        uint2 two = *(const uint2 *)(tile + code_at<HD>(row, g >> 1) + (g & 1) * 8);

        words[0] = two.x, words[1] = two.y;
    } else {
#pragma unroll
        for (int i = 0; i < 3; i++)
            words[i] = *(const uint32_t *)(tile + row * HD + g * 12 + i * 4);
    }
}

/* S (16, 16) of the queries and one page, not yet scaled. */
template <int HD, int KV>
static __device__ __forceinline__ void score_codes(float s[2][4], const uint32_t q[HD / 16][4],
                                                   const uint8_t *tile, int lane) {
#pragma unroll
    for (int n = 0; n < 2; n++) {
        uint32_t words[HD / 16];

        s[n][0] = s[n][1] = s[n][2] = s[n][3] = 0.0f;
        load_key_codes<HD>(words, tile, (lane >> 2) * 2 + n, lane & 3);
#pragma unroll
        for (int k = 0; k < HD / 16; k++) {
            uint32_t b[2];

            widen_codes<KV>(b, words[k]);
            multiply_add(s[n], q[k], b[0], b[1]);
        }
    }
}

/* O (16, HD) += weights times one page, whose scales are in the weights already. */
template <int HD, int KV>
static __device__ __forceinline__ void add_code_values(float o[HD / 8][4],
                                                       const uint32_t weights[4],
                                                       const uint8_t *tile, int lane) {
    uint32_t words[4][HD / 32];

#pragma unroll
    for (int t = 0; t < 4; t++)
        load_value_codes<HD>(words[t], tile, (lane & 3) * 4 + t, lane >> 2);
#pragma unroll
    for (int i = 0; i < HD / 32; i++)
#pragma unroll
        for (int half = 0; half < 2; half++) { /* of four dimensions */
            uint32_t pick = half ? 0x7362 : 0x5140, even[2], odd[2];

            widen_codes<KV>(even, __byte_perm(words[0][i], words[2][i], pick));
            widen_codes<KV>(odd, __byte_perm(words[1][i], words[3][i], pick));
            multiply_add(o[i * 4 + half * 2], weights, even[0], odd[0]);
            multiply_add(o[i * 4 + half * 2 + 1], weights, even[1], odd[1]);
        }
}

/* Scales of slots 4 c ... + 3, of K or of V; 1 outside [low, high), where the bytes may be
 * anything. */
struct slot_scales {
    float of[4];
};
static __device__ __forceinline__ struct slot_scales load_scales(const uint8_t *scales, int low,
                                                                 int high, int lane) {
    struct slot_scales by;
    int first = (lane & 3) * 4;

#pragma unroll
    for (int t = 0; t < 4; t++)
        by.of[t] = scale_value(scales[first + t]);
    if (low > 0 || high < CODE_PAGE)
#pragma unroll
        for (int t = 0; t < 4; t++)
            if (first + t < low || first + t >= high) by.of[t] = 1.0f;
    return by;
}

/* Scores of a page, scaled; slots outside [low, high) are not seen. */
static __device__ __forceinline__ void scale_codes(float s[2][4], const struct slot_scales &by,
                                                   int low, int high, int lane) {
#pragma unroll
    for (int n = 0; n < 2; n++)
#pragma unroll
        for (int j = 0; j < 4; j++)
            s[n][j] *= by.of[(j & 1) * 2 + n];
    if (low > 0 || high < CODE_PAGE)
#pragma unroll
        for (int n = 0; n < 2; n++)
#pragma unroll
            for (int j = 0; j < 4; j++) {
                int slot = (lane & 3) * 4 + (j & 1) * 2 + n;

                if (slot < low || slot >= high) s[n][j] = -INFINITY;
            }
}

#endif
