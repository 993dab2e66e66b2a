/* kernels/cpu/attend_body.h - attention over the paged pool; included twice by path_body.h.
 *
 * A tile is M = n_queries * heads rows of one KV head. For each group of 64 positions, from absolute
 * position 0 on:
 *
 *      gather   the group's K and V out of their blocks into panels, as weights are packed
 *      scores   (M, 64)       = q K^T          one chain along head_dim
 *      weights  (M, 64)       = exp(scores - running maximum), 0 where masked
 *      result   (M, head_dim) = result * exp(old maximum - new) + weights V    the chain goes on
 *
 * A row sees the same operations whichever rows share its tile: a group that is wholly masked for it
 * multiplies by exp(0) = 1 and adds zeros. Before: ATTEND (the name) and KV_BF16: 1 when the pool holds
 * bf16, whose panels are pairs that meet activations as weights do; 0 when it holds f32. */
#define PASTE2(a, b) a##_##b
#define PASTE(a, b)  PASTE2(a, b)
#define LOCAL(name)  PASTE(ATTEND, name)

#if KV_BF16
typedef uint16_t LOCAL(kv);
typedef act LOCAL(elem); /* what meets it */
#define ROWS       rows_weights
#define STEPS(n)   ((n) / 2)
#else
typedef float LOCAL(kv);
typedef float LOCAL(elem);
#define ROWS       rows_floats
#define STEPS(n)   (n)
#endif

struct LOCAL(work) {
    LOCAL(kv) *k, *v;    /* the group as panels: 64 outputs along head_dim; width along 64 */
    LOCAL(elem) *q;      /* (M, head_dim) */
    LOCAL(elem) *p;      /* (M, 64) */
    float *scores;       /* (M, 64) */
    float *result;       /* (M, width) */
    float *max, *sum;    /* (M) */
    uint32_t n_rows, width;
    const LOCAL(kv) *k_row[GROUP], *v_row[GROUP]; /* of the group; zeros past its end */
};

INLINE void *LOCAL(carve)(char **at, size_t n_bytes) {
    char *p = *at;

    *at += ALIGN_UP(n_bytes, (size_t)CACHE_LINE);
    return p;
}

INLINE void LOCAL(store)(LOCAL(elem) *p, vf v) {
#if KV_BF16
    act_store(p, v);
#else
    vf_store(p, v);
#endif
}

/* Points at the n positions from `first` on, through the block table. Past them are zeros: what is
 * there in the pool may be anything. */
static void LOCAL(find_rows)(struct LOCAL(work) *w, const struct attend *a, uint32_t first, uint32_t n) {
    static const _Alignas(CACHE_LINE) LOCAL(kv) zeros[256]; /* the longest head */
    uint32_t at = 0;

    while (at < n) {
        uint32_t index = (first + at) / a->block_size, offset = (first + at) % a->block_size;
        uint32_t run = MIN(a->block_size - offset, n - at);
        uint64_t block = a->table[index] * a->block_stride;

        for (; run > 0; run--, at++, offset++) {
            w->k_row[at] = (const LOCAL(kv) *)(const void *)(a->k + block) + (size_t)offset * a->head_dim;
            w->v_row[at] = (const LOCAL(kv) *)(const void *)(a->v + block) + (size_t)offset * a->head_dim;
        }
    }
    for (; at < GROUP; at++) w->k_row[at] = w->v_row[at] = zeros;
}

/* K is transposed, in words: a pair of bf16 or a float. V of two positions is interleaved (bf16) or
 * copied (f32). */
static void LOCAL(gather)(struct LOCAL(work) *w, uint32_t hd) {
    uint32_t n_words = hd * sizeof(LOCAL(kv)) / 4, whole = n_words / LANES * LANES;
    const uint32_t *const *rows = (const uint32_t *const *)(const void *)w->k_row;
    uint32_t *k = (uint32_t *)(void *)w->k;

    for (uint32_t j = 0; j < GROUP; j += LANES) {
        for (uint32_t i = 0; i < whole; i += LANES)
            transpose_words(k + (size_t)i * PANEL + j, PANEL, rows + j, i);
    }
    for (uint32_t j = 0; j < GROUP && whole < n_words; j++) {
        for (uint32_t i = whole; i < n_words; i++) k[(size_t)i * PANEL + j] = rows[j][i];
    }
#if KV_BF16
    for (uint32_t j = 0; j < GROUP; j += 2) {
        for (uint32_t i = 0; i < hd; i += LANES) {
            vi pairs = vi_load_half(w->v_row[j] + i) | vi_load_half(w->v_row[j + 1] + i) << 16;

            memcpy(w->v + ((size_t)(i / PANEL * (GROUP / 2) + j / 2) * PANEL + i % PANEL) * 2, &pairs,
                   sizeof(pairs));
        }
    }
#else
    for (uint32_t j = 0; j < GROUP; j++) {
        for (uint32_t i = 0; i < hd; i += LANES)
            vf_store(w->v + (size_t)(i / PANEL * GROUP + j) * PANEL + i % PANEL, vf_load(w->v_row[j] + i));
    }
#endif
}

/* Scores of one row become weights; returns the factor for what came before. */
static float LOCAL(soften)(struct LOCAL(work) *w, uint32_t row, uint32_t first, uint32_t low,
                           uint32_t last, float scale) {
    float *s = w->scores + (size_t)row * GROUP, old = w->max[row], new, factor;
    vf x[GROUP / LANES], max = vf_set1(-__builtin_inff()), sum[2] = {{0}};

    for (uint32_t j = 0; j < GROUP / LANES; j++) {
        vi at = vi_iota() + vi_set1((int32_t)(first + j * LANES));
        vi is_seen = (at <= vi_set1((int32_t)last)) & (at >= vi_set1((int32_t)low));

        x[j] = vf_select(is_seen, vf_load(s + j * LANES) * vf_set1(scale), vf_set1(-__builtin_inff()));
        max = vf_max(max, x[j]);
    }
    new = vf_max_lane(max);
    new = new > old ? new : old;
    if (new == -__builtin_inff()) new = 0; /* nothing seen yet: every weight below is 0 */
    for (uint32_t j = 0; j < GROUP / LANES; j++) {
        x[j] = vf_exp(x[j] - vf_set1(new));
        LOCAL(store)(w->p + (size_t)row * GROUP + j * LANES, x[j]);
#if KV_BF16 && defined(ACT_BF16)
        x[j] = vf_load_bf16(w->p + (size_t)row * GROUP + j * LANES); /* the sum of what is used */
#endif
        sum[j % 2] += x[j];
    }
    factor = exp_f32(old - new);
    w->sum[row] = w->sum[row] * factor + vf_sum(sum[0] + sum[1]);
    w->max[row] = new;
    return factor;
}

static void LOCAL(one_group)(struct LOCAL(work) *w, const struct attend *a, uint32_t first,
                             uint32_t begin, float scale) {
    uint32_t hd = a->head_dim, M = w->n_rows;

    for (uint32_t r = begin, n; r < M; r += n) {
        n = next_rows(M - r);
        ROWS(n, w->k, STEPS(hd), w->q + (size_t)r * hd, hd, w->scores + (size_t)r * GROUP, GROUP, false);
    }
    for (uint32_t r = begin; r < M; r++) {
        uint32_t last = a->position[r / a->heads];
        uint32_t low = a->window && last >= a->window ? last - a->window + 1 : 0;
        vf factor = vf_set1(LOCAL(soften)(w, r, first, low, last, scale));
        float *y = w->result + (size_t)r * w->width;

        for (uint32_t i = 0; i < w->width; i += LANES) vf_store(y + i, vf_load(y + i) * factor);
    }
    for (uint32_t p = 0; p < w->width / PANEL; p++) {
        for (uint32_t r = begin, n; r < M; r += n) {
            n = next_rows(M - r);
            ROWS(n, w->v + (size_t)p * GROUP * PANEL, STEPS(GROUP), w->p + (size_t)r * GROUP, GROUP,
                 w->result + (size_t)r * w->width + p * PANEL, w->width, true);
        }
    }
}

static void ATTEND(const struct attend *a) {
    uint32_t M = a->n_queries * a->heads, hd = a->head_dim, width = ALIGN_UP(hd, PANEL);
    uint32_t last = a->position[a->n_queries - 1], start = 0;
    float scale = 1.0f / __builtin_sqrtf((float)hd);
    struct LOCAL(work) w = {.n_rows = M, .width = width};
    char *at = a->scratch;

    w.k = LOCAL(carve)(&at, sizeof(*w.k) * GROUP * hd);
    w.v = LOCAL(carve)(&at, sizeof(*w.v) * GROUP * width);
    w.q = LOCAL(carve)(&at, sizeof(*w.q) * M * hd);
    w.p = LOCAL(carve)(&at, sizeof(*w.p) * M * GROUP);
    w.scores = LOCAL(carve)(&at, sizeof(float) * M * GROUP);
    w.result = LOCAL(carve)(&at, sizeof(float) * M * width);
    w.max = LOCAL(carve)(&at, sizeof(float) * M);
    w.sum = LOCAL(carve)(&at, sizeof(float) * M);
    memset(w.v, 0, sizeof(*w.v) * GROUP * width); /* head_dim to width stays zero */
    memset(w.result, 0, sizeof(float) * M * width);
    for (uint32_t r = 0; r < M; r++) {
        const float *q = a->q + r / a->heads * a->q_stride + r % a->heads * hd;

        for (uint32_t i = 0; i < hd; i += LANES) LOCAL(store)(w.q + (size_t)r * hd + i, vf_load(q + i));
        w.max[r] = -__builtin_inff();
        w.sum[r] = 0;
    }
    if (a->window && a->position[0] >= a->window) start = (a->position[0] - a->window + 1) / GROUP * GROUP;
    for (uint32_t first = start, begin = 0; first <= last; first += GROUP) {
        while (a->position[begin / a->heads] < first) begin += a->heads; /* rows that end before */
        LOCAL(find_rows)(&w, a, first, MIN(GROUP, last + 1 - first));
        LOCAL(gather)(&w, hd);
        LOCAL(one_group)(&w, a, first, begin, scale);
    }
    for (uint32_t r = 0; r < M; r++) {
        act *y = (act *)a->out + r / a->heads * a->out_stride + r % a->heads * hd;
        vf sum = vf_set1(w.sum[r]);

        for (uint32_t i = 0; i < hd; i += LANES)
            act_store(y + i, vf_load(w.result + (size_t)r * width + i) / sum);
    }
}

#undef ATTEND
#undef KV_BF16
#undef PASTE2
#undef PASTE
#undef LOCAL
#undef ROWS
#undef STEPS
