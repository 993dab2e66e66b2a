/* kernels/cuda/sampling/sampling_draw.cu - drawing a token, its rank, and the end of a step; see
 * sampling.h.
 *
 * The draw is the inverse of the cumulative distribution by rising id. Each block weighs its tile;
 * the last one of a row finds the tile in which the running mass passes the target, and in it the
 * token. */
#include "kernels/cuda/sampling/sampling.cuh"

static __device__ __forceinline__ uint64_t mixed(uint64_t x) { /* rng_mix of common/base/rng.h */
    x += 0x9E3779B97F4A7C15u;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    return x ^ (x >> 31);
}
static __device__ __forceinline__ uint64_t random_at(uint64_t seed, uint64_t counter) {
    return mixed(mixed(seed) ^ (counter * 0xD1342543DE82EF95u + 0x2545F4914F6CDD1Du));
}

/* The upper half of the product. */
static __device__ __forceinline__ uint64_t multiply_high(uint64_t a, uint64_t b) {
    uint64_t a0 = (uint32_t)a, a1 = a >> 32, b0 = (uint32_t)b, b1 = b >> 32;
    uint64_t middle = a1 * b0 + (a0 * b0 >> 32), low = a0 * b1 + (uint32_t)middle;

    return a1 * b1 + (middle >> 32) + (low >> 32);
}

/* What the mass of a token depends on. */
struct drawing {
    struct chosen from;
    float max, temperature, min_p, last_kept;
    uint32_t last_id;
};

static __device__ __forceinline__ struct drawing drawing_of(const struct sampling_pass &p,
                                                            uint32_t k) {
    const struct sampling_state *s = &p.state[k];
    const struct backend_output *o = &p.a.output[k];

    return {chosen_of(p, k), s->max, o->temperature, o->min_p, s->last_kept, s->last_id};
}

/* The mass of token `id`, whose logit is x: 0 where a filter removes it. */
static __device__ __forceinline__ uint64_t weigh(const struct drawing &d, float x, uint32_t id) {
    if (d.from.is_raw) x = finite_or_least(x);
    if (!(x > d.last_kept || (x == d.last_kept && id <= d.last_id))) return 0;

    float weight = exact_exp(scaled(x, d.max, d.temperature));

    return weight < d.min_p ? 0 : mass_of(weight);
}

static __device__ __forceinline__ uint64_t weigh_tile(const struct sampling_pass &p, uint32_t k,
                                                      uint32_t tile) {
    struct drawing d = drawing_of(p, k);
    float x[ITEMS];
    uint64_t sum = 0;

    load_tile(x, d.from.row, tile, p.a.vocab);
#pragma unroll
    for (uint32_t i = 0; i < ITEMS; i++)
        sum += weigh(d, x[i], id_of(tile, i));
    return block_total(sum);
}

/* The whole block: the token of `tile` at which the running mass passes `target`, which is below
 * the mass of the tile. One thread finds it and writes it to *token. */
static __device__ __forceinline__ void find_in_tile(const struct sampling_pass &p, uint32_t k,
                                                    uint32_t tile, uint64_t target,
                                                    uint32_t *token) {
    struct drawing d = drawing_of(p, k);
    uint64_t mass[4], total;

#pragma unroll 1
    for (uint32_t i = 0; i < ITEMS; i += 4) { /* neighbouring threads have neighbouring fours */
        uint32_t id = id_of(tile, i);
        uint64_t run;
        float x[4];

        load_four(x, d.from.row, id, p.a.vocab);
#pragma unroll
        for (uint32_t j = 0; j < 4; j++)
            mass[j] = weigh(d, x[j], id + j);
        run = block_before(mass[0] + mass[1] + mass[2] + mass[3], &total);
#pragma unroll
        for (uint32_t j = 0; j < 4; j++) {
            if (run <= target && target < run + mass[j]) *token = id + j;
            run += mass[j];
        }
        if (target < total) return;
        target -= total;
    }
}

static __global__ void __launch_bounds__(THREADS, 4)
    draw_kernel(const __grid_constant__ struct sampling_pass p) {
    simt_wait_for_primary();
    simt_launch_dependents();

    SHARED(uint64_t, found, 2); /* the tile, and the target within it */
    uint32_t tile = blockIdx.x, k = blockIdx.y;

    if (k >= p.a.step->n_outputs || !(p.state[k].needs & SAMPLING_DRAW)) return;

    struct sampling_state *s = &p.state[k];
    struct sampling_tile *tiles = &p.tile[(uint64_t)k * p.n_tiles];
    uint64_t mass = weigh_tile(p, k, tile), kept, before, target;

    if (threadIdx.x == 0) tiles[tile].mass = mass;
    if (!ends_last(&s->ended, p.n_tiles)) return;

    mass = threadIdx.x < p.n_tiles ? tiles[threadIdx.x].mass : 0;
    before = block_before(mass, &kept);
    target = multiply_high(random_at(p.a.output[k].seed, p.a.output[k].position), kept);
    if (threadIdx.x == 0) s->token = 0; /* for a min-p above 1 */
    if (before <= target && target < before + mass) {
        found[0] = threadIdx.x;
        found[1] = target - before;
    }
    __syncthreads();
    if (kept) find_in_tile(p, k, (uint32_t)found[0], found[1], &s->token);
}

static __device__ __forceinline__ void rank_tile(const struct sampling_pass &p, uint32_t k,
                                                 uint32_t tile) {
    uint32_t token = p.state[k].token, better = 0;
    float chosen = finite_or_least(logits_of(p, k)[token]), x[ITEMS];
    uint64_t total;

    load_raw_tile(x, logits_of(p, k), tile, p.a.vocab);
#pragma unroll
    for (uint32_t i = 0; i < ITEMS; i++)
        better += x[i] > chosen || (x[i] == chosen && id_of(tile, i) < token);
    total = block_total(better);
    if (threadIdx.x == 0) p.tile[(uint64_t)k * p.n_tiles + tile].better = (uint32_t)total;
}

static __global__ void __launch_bounds__(THREADS)
    rank_kernel(const __grid_constant__ struct sampling_pass p) {
    simt_wait_for_primary();
    simt_launch_dependents();

    uint32_t tile = blockIdx.x, k = blockIdx.y;

    if (k >= p.a.step->n_outputs) return;
    if (p.state[k].needs & SAMPLING_RANK) {
        uint64_t better;

        rank_tile(p, k, tile);
        if (!ends_last(&p.state[k].ended, p.n_tiles)) return;
        better = block_total(
            threadIdx.x < p.n_tiles ? p.tile[(uint64_t)k * p.n_tiles + threadIdx.x].better : 0);
        if (threadIdx.x == 0) publish(p, k, (uint32_t)better + 1);
    } else if (tile > 0) {
        return;
    }
    finish_output(p);
}

extern "C" void sampling_draw(struct gpu_stream *stream, const struct sampling_pass *p) {
    LAUNCH(draw_kernel, dim3(p->n_tiles, p->a.n_bucket), THREADS, 0, stream, *p);
}

extern "C" void sampling_rank(struct gpu_stream *stream, const struct sampling_pass *p) {
    LAUNCH(rank_kernel, dim3(p->n_tiles, p->a.n_bucket), THREADS, 0, stream, *p);
}
