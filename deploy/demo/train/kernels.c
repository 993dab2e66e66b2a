/* deploy/demo/train/kernels.c - what the trainer computes itself, because PyTorch does it slowly on
 * a CPU.
 *
 * Matrix products, masked attention, RMSNorm, SwiGLU and rotary position, forward and backward,
 * called from kernels.py through ctypes. All of it in fp32: on the processors this was written on,
 * one bf16 dot-product instruction takes two cycles where two fp32 FMAs take one (115 against 230
 * GFLOP/s per core), so oneDNN's bf16 product at 93 % of its peak is slower than an ordinary fp32
 * kernel. GCC vector extensions throughout: 64-byte vectors, which the compiler cuts to what the
 * machine has.
 *
 * THE MASK. A batch is a row of sequences packed end to end. One sequence is a shared prefix (a
 * table) followed by many branches (questions), each of which sees the prefix and itself:
 *
 *      key j      prefix   branch A   branch B      query i sees key j when
 *      query i  +--------+----------+----------+      j <= i, and
 *      prefix   | \      |          |          |      j < prefix_len  or  j >= branch_start(i)
 *      A        | ###### | \        |          |
 *      B        | ###### |          | \        |    The blank squares are not computed.
 *
 * Attention works on 64 x 64 tiles. For a block of queries the tiles that matter are listed (those
 * of the prefix, then those from the first branch in the block on); scores live in one buffer of
 * n_tiles x 64 columns. All five matrix products are one micro-kernel: C[6][64] (+)= A[6][K] .
 * B[K][64].
 *
 * LIMITS: head size 64; widths of matrices multiples of 64. */
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define HEAD_DIM    64
#define TILE        64 /* keys per tile */
#define QUERY_BLOCK 96 /* queries per block: a multiple of the micro-kernel's 6 rows */
#define LANES       16

typedef float vf __attribute__((vector_size(64)));
typedef float vf_unaligned __attribute__((vector_size(64), aligned(4)));
typedef int32_t vi __attribute__((vector_size(64)));

static inline vf load(const float *p) {
    return *(const vf_unaligned *)p;
}
static inline void store(float *p, vf v) {
    *(vf_unaligned *)p = v;
}
static inline vf splat(float x) {
    return (vf){x, x, x, x, x, x, x, x, x, x, x, x, x, x, x, x};
}

static inline float sum_lanes(vf v) {
    float total = 0;
    for (int i = 0; i < LANES; i++)
        total += v[i];
    return total;
}

static inline vf select_lanes(vi mask, vf yes, vf no) {
    return (vf)(((vi)yes & mask) | ((vi)no & ~mask));
}

/* exp(x): 2^n by the exponent bits times a polynomial for the rest. Relative error about 1e-7.
 * Below -80 it is zero: products of what would be there are denormal, and those made the forward
 * pass three times slower. */
static inline vf exp_lanes(vf x) {
    vi counts = x > splat(-80.f);
    x = select_lanes(counts, x, splat(-80.f));
    x = select_lanes(x < splat(87.f), x, splat(87.f));
    vf t = x * 1.44269504f;
    vf n = (t + 12582912.f) - 12582912.f; /* rounds: 1.5 * 2^23 */
    vf f = (t - n) * 0.693147182f;
    vf p = splat(1.f / 720);
    p = p * f + 1.f / 120;
    p = p * f + 1.f / 24;
    p = p * f + 1.f / 6;
    p = p * f + .5f;
    p = p * f + 1.f;
    p = p * f + 1.f;
    return (vf)(((vi)p + (__builtin_convertvector(n, vi) << 23)) & counts);
}

/* ---- the micro-kernel ------------------------------------------------------------------------ */

/* C[rows][64] (+)= A[rows][k] . B[k][64], rows <= 6. Element (i, p) of A is a[i * a_row + p *
 * a_col]. */
static inline __attribute__((always_inline)) void product_rows(int rows, int k, const float *a,
                                                               long a_row, long a_col,
                                                               const float *b, float *c, long c_row,
                                                               int accumulate) {
    vf acc[6][4];

#pragma GCC unroll 6
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 4
        for (int v = 0; v < 4; v++)
            acc[i][v] = accumulate ? load(c + i * c_row + v * LANES) : splat(0);
    for (int p = 0; p < k; p++) {
        vf b0 = load(b + p * 64), b1 = load(b + p * 64 + 16);
        vf b2 = load(b + p * 64 + 32), b3 = load(b + p * 64 + 48);
#pragma GCC unroll 6
        for (int i = 0; i < rows; i++) {
            vf x = splat(a[i * a_row + p * a_col]);
            acc[i][0] += x * b0;
            acc[i][1] += x * b1;
            acc[i][2] += x * b2;
            acc[i][3] += x * b3;
        }
    }
#pragma GCC unroll 6
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 4
        for (int v = 0; v < 4; v++)
            store(c + i * c_row + v * LANES, acc[i][v]);
}

static void product(int m, int k, const float *a, long a_row, long a_col, const float *b, float *c,
                    long c_row, int accumulate) {
    int i = 0;

    for (; i + 6 <= m; i += 6)
        product_rows(6, k, a + i * a_row, a_row, a_col, b, c + i * c_row, c_row, accumulate);
    for (; i + 2 <= m; i += 2)
        product_rows(2, k, a + i * a_row, a_row, a_col, b, c + i * c_row, c_row, accumulate);
    for (; i < m; i++)
        product_rows(1, k, a + i * a_row, a_row, a_col, b, c + i * c_row, c_row, accumulate);
}

/* C (m, n) = A (m, k) . B (k, n). Element (i, p) of A is a[i * a_row + p * a_col], B in the same
 * way: a stride of one on the other side is a transpose. C is dense. n is a multiple of 64. B is
 * packed, 256 rows of 64 at a time. */
void matrix_product(const float *a, long a_row, long a_col, const float *b, long b_row, long b_col,
                    float *c, int m, int n, int k) {
    enum { K_BLOCK = 256 };

#pragma omp parallel for
    for (int column = 0; column < n; column += 64) {
        float panel[K_BLOCK * 64] __attribute__((aligned(64)));
        for (int first = 0; first < k; first += K_BLOCK) {
            int depth = k - first < K_BLOCK ? k - first : K_BLOCK;
            const float *from = b + first * b_row + column * b_col;
            if (b_col == 1) {
                for (int p = 0; p < depth; p++)
                    memcpy(panel + p * 64, from + p * b_row, 64 * sizeof(float));
            } else {
                for (int j = 0; j < 64; j++)
                    for (int p = 0; p < depth; p++)
                        panel[p * 64 + j] = from[p * b_row + j * b_col];
            }
            product(m, depth, a + first * a_col, a_row, a_col, panel, c + column, n, first > 0);
        }
    }
}

/* ---- attention ------------------------------------------------------------------------------- */

/* What one (sequence, head) works on. All of q, k, v, o are head-major: (heads, tokens, 64). */
struct span {
    int length, prefix_len;
    const int *branch_start; // (length), relative to the sequence
};

/* dst[tile][d][j] = src[tile * 64 + j][d]: tiles whose columns are keys, zero-padded at the end. */
static void transpose_tiles(float *dst, const float *src, int length) {
    int n_tiles = (length + TILE - 1) / TILE;

    for (int tile = 0; tile < n_tiles; tile++)
        for (int j = 0; j < TILE; j++) {
            int token = tile * TILE + j;
            for (int d = 0; d < HEAD_DIM; d++)
                dst[((long)tile * HEAD_DIM + d) * TILE + j] =
                    token < length ? src[(long)token * HEAD_DIM + d] : 0;
        }
}

/* Lists the tiles that queries [first, end) can see. Returns how many. */
static int list_tiles(const struct span *s, int first, int end, int *tiles) {
    int prefix_end = s->prefix_len < end ? s->prefix_len : end;
    int n = 0, next = (prefix_end + TILE - 1) / TILE;

    for (int t = 0; t < next; t++)
        tiles[n++] = t;
    if (s->branch_start[first] / TILE > next) next = s->branch_start[first] / TILE;
    for (int t = next; t * TILE < end; t++)
        tiles[n++] = t;
    return n;
}

static inline vi visible(const struct span *s, int query, vi keys) {
    return ((keys < s->prefix_len) | (keys >= s->branch_start[query])) & (keys <= query);
}

static const vi LANE_INDEX = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};

/* Scores of one query row over its listed tiles -> probabilities, in place. Returns log-sum-exp. */
static float softmax_row(const struct span *s, int query, float *row, const int *tiles, int n_tiles,
                         float scale) {
    vf best = splat(-1e30f), total = splat(0);
    float top = -1e30f, sum;

    for (int t = 0; t < n_tiles; t++)
        for (int j = 0; j < TILE; j += LANES) {
            vi keys = LANE_INDEX + (tiles[t] * TILE + j);
            vf x = select_lanes(visible(s, query, keys), load(row + t * TILE + j) * scale,
                                splat(-1e30f));
            best = select_lanes(x > best, x, best);
            store(row + t * TILE + j, x);
        }
    for (int i = 0; i < LANES; i++)
        top = best[i] > top ? best[i] : top;
    for (int j = 0; j < n_tiles * TILE; j += LANES) {
        vf e = exp_lanes(load(row + j) - top);
        total += e;
        store(row + j, e);
    }
    sum = sum_lanes(total);
    for (int j = 0; j < n_tiles * TILE; j += LANES)
        store(row + j, load(row + j) * (1 / sum));
    return top + logf(sum);
}

/* Pads a tail tile's rows: B must have 64 rows even where the sequence ends. */
static const float *tile_rows(const float *src, int tile, int length, float *padded) {
    int rest = length - tile * TILE;

    if (rest >= TILE) return src + (long)tile * TILE * HEAD_DIM;
    memset(padded, 0, sizeof(float) * TILE * HEAD_DIM);
    memcpy(padded, src + (long)tile * TILE * HEAD_DIM, sizeof(float) * rest * HEAD_DIM);
    return padded;
}

static float *buffer(long n_floats) {
    float *p = aligned_alloc(64, (n_floats * sizeof(float) + 63) / 64 * 64);
    if (!p) abort();
    return p;
}

static void attend(const struct span *s, const float *q, const float *k, const float *v, float *o,
                   float *lse) {
    float scale = 1.f / sqrtf(HEAD_DIM);
    int n_all = (s->length + TILE - 1) / TILE;
    float *keys = buffer((long)n_all * TILE * HEAD_DIM),
          *p = buffer((long)QUERY_BLOCK * n_all * TILE);
    float *padded = buffer(TILE * HEAD_DIM);
    int *tiles = malloc(sizeof(int) * n_all);

    transpose_tiles(keys, k, s->length);
    for (int first = 0; first < s->length; first += QUERY_BLOCK) {
        int end = first + QUERY_BLOCK < s->length ? first + QUERY_BLOCK : s->length;
        int n = list_tiles(s, first, end, tiles);
        long width = (long)n * TILE;
        for (int t = 0; t < n; t++)
            product(end - first, HEAD_DIM, q + (long)first * HEAD_DIM, HEAD_DIM, 1,
                    keys + (long)tiles[t] * TILE * HEAD_DIM, p + t * TILE, width, 0);
        for (int i = first; i < end; i++)
            lse[i] = softmax_row(s, i, p + (i - first) * width, tiles, n, scale);
        for (int t = 0; t < n; t++)
            product(end - first, TILE, p + t * TILE, width, 1,
                    tile_rows(v, tiles[t], s->length, padded), o + (long)first * HEAD_DIM, HEAD_DIM,
                    t > 0);
    }
    free(keys);
    free(p);
    free(padded);
    free(tiles);
}

/* dP and P of one row -> dS, in place of dP; P is rebuilt from the scores and lse. */
static void softmax_row_backward(const struct span *s, int query, float *p, float *dp,
                                 const int *tiles, int n_tiles, float scale, float lse,
                                 float delta) {
    for (int t = 0; t < n_tiles; t++)
        for (int j = t * TILE; j < (t + 1) * TILE; j += LANES) {
            vi keys = LANE_INDEX + (tiles[t] * TILE + j - t * TILE);
            vf e = exp_lanes(load(p + j) * scale - lse);
            e = select_lanes(visible(s, query, keys), e, splat(0));
            store(p + j, e);
            store(dp + j, e * (load(dp + j) - delta) * scale);
        }
}

static void attend_backward(const struct span *s, const float *q, const float *k, const float *v,
                            const float *o, const float *lse, const float *go, float *gq, float *gk,
                            float *gv) {
    float scale = 1.f / sqrtf(HEAD_DIM);
    int n_all = (s->length + TILE - 1) / TILE;
    float *keys = buffer((long)n_all * TILE * HEAD_DIM),
          *values = buffer((long)n_all * TILE * HEAD_DIM);
    float *p = buffer((long)QUERY_BLOCK * n_all * TILE),
          *dp = buffer((long)QUERY_BLOCK * n_all * TILE);
    float *padded = buffer(TILE * HEAD_DIM);
    int *tiles = malloc(sizeof(int) * n_all);

    transpose_tiles(keys, k, s->length);
    transpose_tiles(values, v, s->length);
    memset(gk, 0, sizeof(float) * s->length * HEAD_DIM);
    memset(gv, 0, sizeof(float) * s->length * HEAD_DIM);
    for (int first = 0; first < s->length; first += QUERY_BLOCK) {
        int end = first + QUERY_BLOCK < s->length ? first + QUERY_BLOCK : s->length;
        int n = list_tiles(s, first, end, tiles), m = end - first;
        long width = (long)n * TILE, at = (long)first * HEAD_DIM;
        for (int t = 0; t < n; t++) {
            long tile_at = (long)tiles[t] * TILE * HEAD_DIM;
            product(m, HEAD_DIM, q + at, HEAD_DIM, 1, keys + tile_at, p + t * TILE, width, 0);
            product(m, HEAD_DIM, go + at, HEAD_DIM, 1, values + tile_at, dp + t * TILE, width, 0);
        }
        for (int i = 0; i < m; i++) {
            vf delta = splat(0);
            for (int d = 0; d < HEAD_DIM; d += LANES)
                delta += load(go + at + i * HEAD_DIM + d) * load(o + at + i * HEAD_DIM + d);
            softmax_row_backward(s, first + i, p + i * width, dp + i * width, tiles, n, scale,
                                 lse[first + i], sum_lanes(delta));
        }
        for (int t = 0; t < n; t++) {
            int rest = s->length - tiles[t] * TILE, n_keys = rest < TILE ? rest : TILE;
            long tile_at = (long)tiles[t] * TILE * HEAD_DIM;
            product(m, TILE, dp + t * TILE, width, 1, tile_rows(k, tiles[t], s->length, padded),
                    gq + at, HEAD_DIM, t > 0);
            product(n_keys, m, dp + t * TILE, 1, width, q + at, gk + tile_at, HEAD_DIM, 1);
            product(n_keys, m, p + t * TILE, 1, width, go + at, gv + tile_at, HEAD_DIM, 1);
        }
    }
    free(keys);
    free(values);
    free(p);
    free(dp);
    free(padded);
    free(tiles);
}

/* q, o: (n_heads, n_tokens, 64); k, v: (n_kv_heads, n_tokens, 64); lse: (n_heads, n_tokens). */
void attention_forward(const float *q, const float *k, const float *v, float *o, float *lse,
                       const int *sequence_start, const int *prefix_len, const int *branch_start,
                       int n_sequences, long n_tokens, int n_heads, int n_kv_heads) {
    int group = n_heads / n_kv_heads;

#pragma omp parallel for collapse(2) schedule(dynamic, 1)
    for (int i = 0; i < n_sequences; i++)
        for (int h = 0; h < n_heads; h++) {
            int at = sequence_start[i];
            struct span s = {sequence_start[i + 1] - at, prefix_len[i], branch_start + at};
            long mine = (h * n_tokens + at) * HEAD_DIM,
                 shared = (h / group * n_tokens + at) * HEAD_DIM;
            attend(&s, q + mine, k + shared, v + shared, o + mine, lse + h * n_tokens + at);
        }
}

/* gk, gv are per query head, (n_heads, n_tokens, 64): rope_merge adds those that share a KV
 * head. */
void attention_backward(const float *q, const float *k, const float *v, const float *o,
                        const float *lse, const float *go, float *gq, float *gk, float *gv,
                        const int *sequence_start, const int *prefix_len, const int *branch_start,
                        int n_sequences, long n_tokens, int n_heads, int n_kv_heads) {
    int group = n_heads / n_kv_heads;

#pragma omp parallel for collapse(2) schedule(dynamic, 1)
    for (int i = 0; i < n_sequences; i++)
        for (int h = 0; h < n_heads; h++) {
            int at = sequence_start[i];
            struct span s = {sequence_start[i + 1] - at, prefix_len[i], branch_start + at};
            long mine = (h * n_tokens + at) * HEAD_DIM,
                 shared = (h / group * n_tokens + at) * HEAD_DIM;
            attend_backward(&s, q + mine, k + shared, v + shared, o + mine, lse + h * n_tokens + at,
                            go + mine, gq + mine, gk + mine, gv + mine);
        }
}

/* ---- rotary position ------------------------------------------------------------------------- */

/* x: (n_tokens, (n_heads + 2 n_kv_heads) * 64) -> head-major q, k (rotated) and v.
 * angles: (positions, 64), 32 cosines then 32 sines. */
void rope_split(const float *x, float *q, float *k, float *v, const float *angles,
                const int *position, long n_tokens, int n_heads, int n_kv_heads) {
    int width = (n_heads + 2 * n_kv_heads) * HEAD_DIM, half = HEAD_DIM / 2;

#pragma omp parallel for
    for (long i = 0; i < n_tokens; i++) {
        const float *cosine = angles + (long)position[i] * HEAD_DIM, *sine = cosine + half;
        for (int h = 0; h < n_heads + n_kv_heads; h++) {
            const float *in = x + i * width + h * HEAD_DIM;
            float *out = h < n_heads ? q + (h * n_tokens + i) * HEAD_DIM
                                     : k + ((h - n_heads) * n_tokens + i) * HEAD_DIM;
            for (int j = 0; j < half; j++) {
                float a = in[j], b = in[j + half];
                out[j] = a * cosine[j] - b * sine[j];
                out[j + half] = b * cosine[j] + a * sine[j];
            }
        }
        for (int h = 0; h < n_kv_heads; h++)
            memcpy(v + (h * n_tokens + i) * HEAD_DIM,
                   x + i * width + (n_heads + n_kv_heads + h) * HEAD_DIM, HEAD_DIM * sizeof(float));
    }
}

/* The backward of rope_split: rotates back, adds the query heads of one KV head. */
void rope_merge(float *x, const float *gq, const float *gk, const float *gv, const float *angles,
                const int *position, long n_tokens, int n_heads, int n_kv_heads) {
    int width = (n_heads + 2 * n_kv_heads) * HEAD_DIM, half = HEAD_DIM / 2,
        group = n_heads / n_kv_heads;

#pragma omp parallel for
    for (long i = 0; i < n_tokens; i++) {
        const float *cosine = angles + (long)position[i] * HEAD_DIM, *sine = cosine + half;
        for (int h = 0; h < n_heads + n_kv_heads; h++) {
            float *out = x + i * width + h * HEAD_DIM;
            float sum[HEAD_DIM];
            if (h < n_heads) {
                memcpy(sum, gq + (h * n_tokens + i) * HEAD_DIM, sizeof(sum));
            } else {
                memset(sum, 0, sizeof(sum));
                for (int g = (h - n_heads) * group; g < (h - n_heads + 1) * group; g++)
                    for (int j = 0; j < HEAD_DIM; j++)
                        sum[j] += gk[(g * n_tokens + i) * HEAD_DIM + j];
            }
            for (int j = 0; j < half; j++) {
                out[j] = sum[j] * cosine[j] + sum[j + half] * sine[j];
                out[j + half] = sum[j + half] * cosine[j] - sum[j] * sine[j];
            }
        }
        for (int h = 0; h < n_kv_heads; h++)
            for (int j = 0; j < HEAD_DIM; j++) {
                float sum = 0;
                for (int g = h * group; g < (h + 1) * group; g++)
                    sum += gv[(g * n_tokens + i) * HEAD_DIM + j];
                x[i * width + (n_heads + n_kv_heads + h) * HEAD_DIM + j] = sum;
            }
    }
}

/* ---- RMSNorm and SwiGLU ---------------------------------------------------------------------- */

void rmsnorm_forward(const float *x, const float *weight, float *y, float *inverse_rms, long n,
                     int dim, float eps) {
#pragma omp parallel for
    for (long i = 0; i < n; i++) {
        const float *row = x + i * dim;
        vf squares = splat(0);
        for (int j = 0; j < dim; j += LANES)
            squares += load(row + j) * load(row + j);
        float r = 1 / sqrtf(sum_lanes(squares) / dim + eps);
        inverse_rms[i] = r;
        for (int j = 0; j < dim; j += LANES)
            store(y + i * dim + j, load(row + j) * r * load(weight + j));
    }
}

/* gx: (n, dim) written; gweight: (dim) added to, must be zero at first. */
void rmsnorm_backward(const float *x, const float *weight, const float *inverse_rms,
                      const float *gy, float *gx, float *gweight, long n, int dim) {
#pragma omp parallel
    {
        float *mine = calloc(dim, sizeof(float));
#pragma omp for
        for (long i = 0; i < n; i++) {
            const float *row = x + i * dim;
            float r = inverse_rms[i], along;
            vf dot = splat(0);
            for (int j = 0; j < dim; j += LANES) {
                vf g = load(gy + i * dim + j), xv = load(row + j);
                dot += g * load(weight + j) * xv;
                store(mine + j, load(mine + j) + g * xv * r);
            }
            along = sum_lanes(dot) * r * r * r / dim;
            for (int j = 0; j < dim; j += LANES)
                store(gx + i * dim + j,
                      load(gy + i * dim + j) * load(weight + j) * r - load(row + j) * along);
        }
#pragma omp critical
        for (int j = 0; j < dim; j++)
            gweight[j] += mine[j];
        free(mine);
    }
}

/* gate_up: (n, 2 d_ff), gates then ups -> y: (n, d_ff) = silu(gate) * up. */
void swiglu_forward(const float *gate_up, float *y, long n, int d_ff) {
#pragma omp parallel for
    for (long i = 0; i < n; i++)
        for (int j = 0; j < d_ff; j += LANES) {
            vf gate = load(gate_up + i * 2 * d_ff + j),
               up = load(gate_up + i * 2 * d_ff + d_ff + j);
            store(y + i * d_ff + j, gate / (1.f + exp_lanes(-gate)) * up);
        }
}

void swiglu_backward(const float *gate_up, const float *gy, float *g_gate_up, long n, int d_ff) {
#pragma omp parallel for
    for (long i = 0; i < n; i++)
        for (int j = 0; j < d_ff; j += LANES) {
            long gate_at = i * 2 * d_ff + j, up_at = gate_at + d_ff;
            vf gate = load(gate_up + gate_at), up = load(gate_up + up_at),
               g = load(gy + i * d_ff + j);
            vf s = 1.f / (1.f + exp_lanes(-gate));
            store(g_gate_up + gate_at, g * up * s * (1.f + gate * (1.f - s)));
            store(g_gate_up + up_at, g * gate * s);
        }
}
