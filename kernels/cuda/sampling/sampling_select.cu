/* kernels/cuda/sampling/sampling_select.cu - where top-k, top-p and the n best end; see sampling.h.
 *
 * The tokens are put in bins by their distance from the maximum: 128 bins for each power of two, so
 * a bin is never wider than 1/128 of the distance. The histogram gives the bin in which the k-th
 * token is and in which the mass of the nucleus is reached; only tokens of those bins are gathered
 * and sorted, a thousand or two of a flat vocabulary. With top-k and top-p together the mass that
 * top-p looks at is known only up to the bin of the k-th token, so the nucleus may end in one of
 * several bins.
 *
 *      bins   0 1 2 ... low ... high ...... k_bin ...      rising distance, falling logits
 *                       └──gathered──┘      └─┘
 *
 * Tokens at which the exponential is far below one unit of mass are left out of a filter: they
 * rank behind all others and nothing is drawn from them. */
#include "kernels/cuda/sampling/sampling_selection.cuh"

#define BINS         SAMPLING_BINS
#define BINS_EACH    (BINS / THREADS)
#define FARTHEST_BIN 0x4200u /* the upper half of 32.0f: bins end there */
#define NOWHERE      SAMPLING_BINS

/* --- bins */

static __device__ __forceinline__ uint32_t bin_of(float distance) { /* >= 0, or a NaN: the last */
    uint32_t u = __float_as_uint(distance) >> 16;

    if (u >= FARTHEST_BIN) return BINS - 1;
    return u <= FARTHEST_BIN - BINS ? 0 : u - (FARTHEST_BIN - BINS);
}

/* The bin of a logit in a selection, or NOWHERE. */
static __device__ __forceinline__ uint32_t bin_in(const struct selection &l, float x, uint32_t id) {
    float y;

    if (!l.is_filter) return id < l.vocab ? bin_of((l.max - x) * l.scale) : NOWHERE;
    y = scaled(x, l.max, l.temperature);
    return y >= -FILTER_REACH ? bin_of(0.0f - y) : NOWHERE; /* -0.0f would be far */
}

static __device__ __forceinline__ uint64_t bins_at(const struct sampling_pass &p, uint32_t k,
                                                   uint32_t which, uint32_t segment) {
    return (((uint64_t)k * SAMPLING_SELECTIONS + which) * p.n_segments + segment) * BINS;
}

/* --- the histogram */

static __device__ __forceinline__ void add_tile(const struct bins &b, const struct selection &l,
                                                uint32_t tile) {
    float x[ITEMS];

    load_selected(x, l, tile);
#pragma unroll
    for (uint32_t i = 0; i < ITEMS; i++) {
        uint32_t bin = bin_in(l, x[i], id_of(tile, i));

        if (bin == NOWHERE) continue;
        atomicAdd(&b.count[bin], 1u);
        if (l.is_nucleus)
            bins_add_mass(b, bin, mass_of(exact_exp(scaled(x[i], l.max, l.temperature))));
    }
}

/* This thread's BINS_EACH bins, summed over the segments. */
static __device__ __forceinline__ void sum_segments(uint32_t n[BINS_EACH], uint64_t m[BINS_EACH],
                                                    const struct sampling_pass &p, uint32_t k,
                                                    uint32_t which, bool is_nucleus) {
#pragma unroll
    for (uint32_t i = 0; i < BINS_EACH; i++)
        n[i] = 0, m[i] = 0;
    for (uint32_t segment = 0; segment < p.n_segments; segment++) {
        uint64_t at = bins_at(p, k, which, segment) + threadIdx.x * BINS_EACH;

#pragma unroll
        for (uint32_t i = 0; i < BINS_EACH; i++) {
            n[i] += p.bin_count[at + i];
            if (is_nucleus) m[i] += p.bin_mass[at + i];
        }
    }
}

/* The bin in which the running mass reaches `limit`; what is known of its beginning. */
static __device__ __forceinline__ bool reaches(uint64_t before, uint64_t mass, uint64_t limit,
                                               uint32_t bin) {
    return limit ? before < limit && limit <= before + mass : bin == 0;
}

/* The whole block. Finds out which bins must be looked into; the plan is in shared memory. */
static __device__ __forceinline__ void plan_gather(struct sampling_select *plan,
                                                   const struct selection &l,
                                                   const struct sampling_pass &p, uint32_t k,
                                                   uint32_t which) {
    SHARED(uint32_t, count_at, 3); /* tokens before low, through high, before k_bin */
    SHARED(uint64_t, mass_through_k, 1);
    uint32_t n[BINS_EACH];
    uint64_t m[BINS_EACH], n_mine = 0, m_mine = 0, n_all, m_all, n_before, m_before, run_n, run_m;

    sum_segments(n, m, p, k, which, l.is_nucleus);
#pragma unroll
    for (uint32_t i = 0; i < BINS_EACH; i++)
        n_mine += n[i], m_mine += m[i];
    n_before = block_before(n_mine, &n_all);
    m_before = block_before(m_mine, &m_all);
    if (threadIdx.x == 0) {
        *plan = {0, 0, m_all, 0, 0, NOWHERE, 0, 0, 0, 0, 0};
        mass_through_k[0] = m_all;
    }
    __syncthreads();
    run_n = n_before, run_m = m_before;
#pragma unroll
    for (uint32_t i = 0; i < BINS_EACH; i++) { /* the bin of the k-th token: one thread has it */
        if (run_n < l.k && l.k <= run_n + n[i]) {
            plan->k_bin = plan->low = plan->high = threadIdx.x * BINS_EACH + i;
            plan->mass_before_k = run_m;
            mass_through_k[0] = run_m + m[i];
            count_at[2] = (uint32_t)run_n;
        }
        run_n += n[i], run_m += m[i];
    }
    __syncthreads();
    if (l.is_nucleus) {
        bool has_k = plan->k_bin != NOWHERE;
        uint64_t least = nucleus_limit(l.top_p, has_k ? plan->mass_before_k : m_all);
        uint64_t most = nucleus_limit(l.top_p, mass_through_k[0]);

        run_n = n_before, run_m = m_before;
#pragma unroll
        for (uint32_t i = 0; i < BINS_EACH; i++) {
            uint32_t bin = threadIdx.x * BINS_EACH + i;

            if (reaches(run_m, m[i], least, bin)) {
                plan->low = bin;
                plan->mass_before_low = run_m;
                count_at[0] = (uint32_t)run_n;
            }
            if (reaches(run_m, m[i], most, bin)) {
                plan->high = bin;
                count_at[1] = (uint32_t)run_n + n[i];
            }
            run_n += n[i], run_m += m[i];
        }
    } else if (!l.is_filter && threadIdx.x == 0) {
        plan->low = 0; /* all of the n best are wanted, not the last alone */
    }
    __syncthreads();
    if (threadIdx.x > 0) return;
    if (plan->k_bin == NOWHERE) {
        plan->is_settled = l.is_filter && !l.is_nucleus; /* all are kept */
        return;
    }
    if (l.is_nucleus) plan->k_first = min(count_at[1], count_at[2]) - count_at[0];
    plan->k_last = plan->k_first + (l.k - count_at[2]) - 1;
}

static __global__ void __launch_bounds__(THREADS, 4)
    histogram_kernel(const __grid_constant__ struct sampling_pass p) {
    simt_wait_for_primary();
    simt_launch_dependents();

    SHARED(uint32_t, room, 3 * BINS);
    SHARED(struct sampling_select, plan, 1);
    uint32_t segment = blockIdx.x, k = blockIdx.y, which = selection_of_block(p, blockIdx.z);
    struct selection l;
    struct bins b = {room};

    if (k >= p.a.step->n_outputs || !find_selection(&l, p, k, which)) return;

    uint32_t each = CEIL_DIV(p.n_tiles, p.n_segments);
    uint32_t end = min(p.n_tiles, (segment + 1) * each);
    uint64_t at = bins_at(p, k, which, segment);
    struct sampling_select *s = &p.state[k].select[which];

    bins_clear(b);
    for (uint32_t tile = segment * each; tile < end; tile++)
        add_tile(b, l, tile);
    __syncthreads();
    for (uint32_t bin = threadIdx.x; bin < BINS; bin += THREADS) {
        p.bin_count[at + bin] = b.count[bin];
        if (l.is_nucleus) p.bin_mass[at + bin] = bins_mass(b, bin);
    }
    if (!ends_last(&s->ended, p.n_segments)) return;
    plan_gather(plan, l, p, k, which);
    if (threadIdx.x == 0) *s = plan[0];
}

/* --- the gathered */

/* Appends the keys of a tile that are in the plan's bins. */
static __device__ __forceinline__ void gather_tile(const struct selection &l,
                                                   struct sampling_select *s, uint64_t *keys,
                                                   uint32_t tile) {
    SHARED(uint32_t, base, 1);
    float x[ITEMS];
    uint32_t low = s->low, high = s->high, k_bin = s->k_bin, is_mine = 0, at;
    uint64_t n;

    load_selected(x, l, tile);
#pragma unroll
    for (uint32_t i = 0; i < ITEMS; i++) {
        uint32_t bin = bin_in(l, x[i], id_of(tile, i));

        if (bin != NOWHERE && ((low <= bin && bin <= high) || bin == k_bin)) is_mine |= 1u << i;
    }
    at = (uint32_t)block_before((uint32_t)__popc(is_mine), &n);
    if (n == 0) return;
    if (threadIdx.x == 0) base[0] = atomicAdd(&s->n_gathered, (uint32_t)n);
    __syncthreads();
    at += base[0];
#pragma unroll
    for (uint32_t i = 0; i < ITEMS; i++) {
        if (!(is_mine >> i & 1)) continue;
        if (at < SAMPLING_GATHER) keys[at] = key_of(x[i], id_of(tile, i));
        at++;
    }
}

/* The index of the last key that the filter keeps, among n sorted keys. */
static __device__ __forceinline__ uint32_t last_kept(const uint64_t *key, uint32_t n,
                                                     const struct selection &l,
                                                     const struct sampling_select *s) {
    SHARED(uint32_t, last, 1);
    uint32_t each = CEIL_DIV(n, THREADS), first = min(threadIdx.x * each, n);
    uint32_t end = min(first + each, n);
    bool has_k = s->k_bin != NOWHERE;
    uint64_t mine = 0, mine_of_k = 0, total, limit, run;

    if (!l.is_nucleus) return s->k_last;
    for (uint32_t i = first; i < end; i++) {
        uint64_t m = mass_of_key(l, key[i]);

        mine += m;
        if (has_k && s->k_first <= i && i <= s->k_last) mine_of_k += m;
    }
    total = block_total(mine_of_k) + s->mass_before_k;
    if (!has_k) total = s->mass;
    limit = nucleus_limit(l.top_p, total);
    if (threadIdx.x == 0) last[0] = limit ? n - 1 : 0;
    run = s->mass_before_low + block_before(mine, &total);
    for (uint32_t i = first; i < end && limit; i++) {
        uint64_t m = mass_of_key(l, key[i]);

        if (run < limit && limit <= run + m) last[0] = i;
        run += m;
    }
    __syncthreads();
    return has_k ? min(last[0], s->k_last) : last[0];
}

static __global__ void __launch_bounds__(THREADS, 4)
    gather_kernel(const __grid_constant__ struct sampling_pass p) {
    simt_wait_for_primary();
    simt_launch_dependents();

    SHARED(uint64_t, key, SAMPLING_GATHER);
    uint32_t tile = blockIdx.x, k = blockIdx.y, which = selection_of_block(p, blockIdx.z), n;
    struct selection l;

    if (k >= p.a.step->n_outputs || !find_selection(&l, p, k, which)) return;

    struct sampling_select *s = &p.state[k].select[which];
    uint64_t *gathered = p.gathered + ((uint64_t)k * SAMPLING_SELECTIONS + which) * SAMPLING_GATHER;

    if (s->is_settled) return;
    gather_tile(l, s, gathered, tile);
    if (!ends_last(&s->ended, p.n_tiles)) return;
    n = s->n_gathered;
    if (n > SAMPLING_GATHER) return; /* too many alike: `search` */
    for (uint32_t i = threadIdx.x; i < n; i += THREADS)
        key[i] = gathered[i];
    sort_keys(key, n);
    if (l.is_filter) {
        uint32_t last = last_kept(key, n, l, s);

        if (threadIdx.x == 0) keep_through(p, k, key[last]);
    } else {
        write_top(p, k, key, n);
    }
}

extern "C" void sampling_histogram(struct gpu_stream *stream, const struct sampling_pass *p) {
    LAUNCH(histogram_kernel, dim3(p->n_segments, p->a.n_bucket, n_selections(p)), THREADS, 0,
           stream, *p);
}

extern "C" void sampling_gather(struct gpu_stream *stream, const struct sampling_pass *p) {
    LAUNCH(gather_kernel, dim3(p->n_tiles, p->a.n_bucket, n_selections(p)), THREADS, 0, stream, *p);
}
