/* kernels/cuda/sampling/sampling_search.cu - selecting when too many tokens are alike; see
 * sampling.h.
 *
 * A row whose bins held more keys than one block can sort is searched by one block alone, digit by
 * digit of the key, most significant first: a histogram of the next digit over the keys that agree
 * so far, in shared memory. Five readings of the row for any key, whatever the logits are. */
#include "kernels/cuda/sampling/sampling_selection.cuh"

/* A part of a key: `n_bits` from `shift` up, at most 11; what is above it is known. */
struct digit {
    uint32_t shift, n_bits;
};

static __device__ __forceinline__ struct digit digit_at(uint32_t i) { /* ids have 20 bits */
    uint32_t shift = i == 0 ? 53 : i == 1 ? 42 : i == 2 ? 32 : i == 3 ? 10 : 0;

    return {shift, i < 2 ? 11u : 10u};
}

static __device__ __forceinline__ void add_digits(const struct bins &b, const struct selection &l,
                                                  struct digit d, uint64_t known, bool is_mass) {
#pragma unroll 1
    for (uint32_t first = threadIdx.x * 4; first < l.vocab; first += THREADS * 4) {
        float x[4];

        load_selected_four(x, l, first);
#pragma unroll
        for (uint32_t i = 0; i < 4; i++) {
            uint32_t id = first + i;
            uint64_t key = key_of(x[i], id);
            uint32_t bin = (uint32_t)(key >> d.shift) & ((1u << d.n_bits) - 1);

            if (id >= l.vocab) continue;
            /* a shift by 64 is none: the first digit has nothing above it */
            if (d.shift + d.n_bits < 64 && key >> (d.shift + d.n_bits) != known) continue;
            if (is_mass)
                bins_add_mass(b, bin, mass_of_key(l, key));
            else
                atomicAdd(&b.count[bin], 1u);
        }
    }
    __syncthreads();
}

/* The key at which the running count, or mass, of the row reaches `target`, which is above 0 and at
 * most the sum. */
static __device__ __forceinline__ uint64_t search_key(const struct selection &l,
                                                      const struct bins &b, uint64_t target,
                                                      bool is_mass) {
    SHARED(uint64_t, found, 2); /* the digit, and what is left of the target */
    const uint32_t each = SAMPLING_BINS / THREADS;
    uint64_t known = 0;

#pragma unroll 1
    for (uint32_t at = 0; at < 5; at++) {
        struct digit d = digit_at(at);
        uint64_t mine = 0, run, total;

        if (at == 3) known <<= 12; /* between the logit and the id lie zeros */
        bins_clear(b);
        add_digits(b, l, d, known, is_mass);
        for (uint32_t i = threadIdx.x * each; i < (threadIdx.x + 1) * each; i++)
            mine += is_mass ? bins_mass(b, i) : b.count[i];
        run = block_before(mine, &total);
        for (uint32_t i = threadIdx.x * each; i < (threadIdx.x + 1) * each; i++) {
            uint64_t n = is_mass ? bins_mass(b, i) : b.count[i];

            if (run < target && target <= run + n) found[0] = i, found[1] = target - run;
            run += n;
        }
        __syncthreads();
        known = known << d.n_bits | found[0];
        target = found[1];
    }
    return known;
}

/* The mass of the tokens up to a key. */
static __device__ __forceinline__ uint64_t mass_through(const struct selection &l, uint64_t last) {
    uint64_t sum = 0;

#pragma unroll 1
    for (uint32_t first = threadIdx.x * 4; first < l.vocab; first += THREADS * 4) {
        float x[4];

        load_selected_four(x, l, first); /* past the end: minus infinity has no mass */
#pragma unroll
        for (uint32_t i = 0; i < 4; i++) {
            uint64_t key = key_of(x[i], first + i);

            if (key <= last) sum += mass_of_key(l, key);
        }
    }
    return block_total(sum);
}

/* The last key of a selection. */
static __device__ __forceinline__ uint64_t search_row(const struct selection &l,
                                                      const struct bins &b) {
    uint64_t last = NO_KEY;

#pragma unroll 1
    for (uint32_t round = 0; round < 2; round++) { /* top-k, then top-p of what it left */
        uint64_t limit = l.k;

        if (round == 0 ? l.k == 0 : !l.is_nucleus) continue;
        if (round == 1) limit = nucleus_limit(l.top_p, mass_through(l, last));
        last = search_key(l, b, limit ? limit : 1, round == 1 && limit > 0);
    }
    return last;
}

/* Puts the keys up to `last` into `key`, in any order. Returns how many. */
static __device__ __forceinline__ uint32_t collect_row(const struct selection &l, uint64_t last,
                                                       uint64_t *key) {
    SHARED(uint32_t, n, 1);

    if (threadIdx.x == 0) n[0] = 0;
    __syncthreads();
#pragma unroll 1
    for (uint32_t first = threadIdx.x * 4; first < l.vocab; first += THREADS * 4) {
        float x[4];

        load_selected_four(x, l, first);
#pragma unroll
        for (uint32_t i = 0; i < 4; i++) {
            uint64_t mine = key_of(x[i], first + i);

            if (mine <= last && first + i < l.vocab) key[atomicAdd(&n[0], 1u)] = mine;
        }
    }
    __syncthreads();
    return n[0];
}

static __global__ void __launch_bounds__(THREADS)
    search_kernel(const __grid_constant__ struct sampling_pass p) {
    simt_wait_for_primary();
    simt_launch_dependents();

    SHARED(uint32_t, room, 3 * SAMPLING_BINS);
    SHARED(uint64_t, key, SAMPLING_MAX_TOP);
    uint32_t k = blockIdx.x, which = selection_of_block(p, blockIdx.y), n;
    struct selection l;
    struct bins b = {room};
    uint64_t last;

    if (k >= p.a.step->n_outputs || !find_selection(&l, p, k, which)) return;
    if (p.state[k].select[which].n_gathered <= SAMPLING_GATHER) return;
    last = search_row(l, b);
    if (l.is_filter) {
        if (threadIdx.x == 0) keep_through(p, k, last);
        return;
    }
    n = collect_row(l, last, key);
    sort_keys(key, n);
    write_top(p, k, key, n);
}

extern "C" void sampling_search(struct gpu_stream *stream, const struct sampling_pass *p) {
    LAUNCH(search_kernel, dim3(p->a.n_bucket, n_selections(p)), THREADS, 0, stream, *p);
}
