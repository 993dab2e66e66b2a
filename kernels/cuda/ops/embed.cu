/* kernels/cuda/ops/embed.cu - token ids to rows of the residual stream; see ops.h.
 *
 * A block per token copies its row in pieces of 16 bytes. A token that the step before has yet to
 * choose when the host stages this one is a reference into that step's outputs, which lie on the
 * device by the time this runs. */
#include "kernels/cuda/device/simt.h"
#include "kernels/cuda/ops/ops.h"

#define MAX_THREADS 256u

/* -1 when it names nothing. */
static __device__ int32_t resolve_token(const struct embed_args &a, uint32_t t) {
    int32_t id = a.token[t];

    if (id < 0) {
        uint32_t k = (uint32_t)(-1 - id);

        id = k < a.n_previous ? a.previous[k] : -1;
    }
    return (uint32_t)id < a.vocab ? id : -1;
}

static __global__ void __launch_bounds__(MAX_THREADS)
    embed_kernel(const __grid_constant__ struct embed_args a) {
    simt_wait_for_primary();
    simt_launch_dependents();

    uint32_t n_pieces = a.d / 8, t = blockIdx.x;
    int32_t id = resolve_token(a, t);
    const uint4 *from = (const uint4 *)a.table + (size_t)(id < 0 ? 0 : id) * n_pieces;
    uint4 *to = (uint4 *)a.x + (size_t)t * n_pieces;

    if (a.id && threadIdx.x == 0) a.id[t] = id;
    for (uint32_t i = threadIdx.x; i < n_pieces; i += blockDim.x)
        to[i] = id < 0 ? make_uint4(0, 0, 0, 0) : from[i];
}

extern "C" void ops_embed(struct gpu_stream *s, const struct embed_args *a) {
    uint32_t n_threads = MIN(MAX_THREADS, CEIL_DIV(a->d / 8, 32u) * 32u);

    if (a->n_tokens == 0) return;
    LAUNCH(embed_kernel, dim3(a->n_tokens), n_threads, 0, s, *a);
}
