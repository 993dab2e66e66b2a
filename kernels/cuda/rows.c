/* kernels/cuda/rows.c - the token histories of the rows, on the device.
 *
 * A row may be bound again while a step that still uses its old content is under way. So a binding
 * is a copy on the compute stream, after that step and before the next. What is copied lies in a
 * small pinned buffer of two halves: one is filled until nothing more fits, then the other, after
 * what was last copied out of it. */
#include <string.h>

#include "common/base/mem.h"
#include "kernels/cuda/cuda_internal.h"

enum status cuda_rows_init(struct backend_model *m, struct error *err) {
    const struct backend_limits *l = &m->host.limits;
    uint64_t width = m->g.max_context + 1ull;
    struct cuda_ring *r = &m->ring;
    enum status st = cuda_take(m, &m->history, l->max_rows * width * sizeof(*m->history),
                               "token histories", err);

    if (st == ST_OK)
        st = cuda_take(m, &m->row, l->max_rows * sizeof(*m->row), "token histories", err);
    r->half_bytes = MAX(CUDA_RING_BYTES, sizeof(*m->row) + width * sizeof(*m->history));
    for (int i = 0; i < 2 && st == ST_OK; i++) {
        st = cuda_take_pinned(m, &r->half[i], r->half_bytes, "a buffer for histories", err);
        if (st == ST_OK) st = gpu_event_open(m->dev->gpu, &r->left[i], err);
    }
    if (st == ST_OK) gpu_fill(m->dev->compute, m->row, 0, l->max_rows * sizeof(*m->row));
    return st;
}

void cuda_rows_fini(struct backend_model *m) {
    for (int i = 0; i < 2; i++)
        gpu_event_close(m->ring.left[i]);
}

void *cuda_borrow(struct backend_model *m, uint64_t n_bytes) {
    struct cuda_ring *r = &m->ring;
    void *p;

    n_bytes = ALIGN_UP(n_bytes, 16u);
    if (r->used + n_bytes > r->half_bytes) {
        gpu_event_record(r->left[r->turn], m->dev->compute);
        r->turn ^= 1;
        r->used = 0;
        if (gpu_event_wait(r->left[r->turn], CUDA_PATIENCE_US) != ST_OK) return NULL;
    }
    p = r->half[r->turn] + r->used;
    r->used += n_bytes;
    return p;
}

enum status cuda_row_bind(struct backend_model *m, uint32_t row, const uint32_t *prompt,
                          uint32_t n_prompt, const uint32_t *output, uint32_t n_output) {
    uint64_t n_tokens = (uint64_t)n_prompt + n_output, n_bytes = n_tokens * sizeof(uint32_t);
    enum status st = gpu_status(m->dev->gpu, NULL);
    struct sampling_row *r;
    uint32_t *tokens;

    if (st == ST_OK) st = host_row_take(&m->host, row, prompt, n_prompt, output, n_output);
    if (st != ST_OK) return st;
    r = cuda_borrow(m, sizeof(*r) + n_bytes);
    if (!r) return ST_CLOSED;
    *r = (struct sampling_row){n_prompt, (uint32_t)n_tokens};
    tokens = (uint32_t *)(r + 1);
    if (n_prompt) memcpy(tokens, prompt, n_prompt * sizeof(*tokens));
    if (n_output) memcpy(tokens + n_prompt, output, n_output * sizeof(*tokens));
    gpu_copy(m->dev->compute, &m->row[row], r, sizeof(*r));
    if (n_tokens)
        gpu_copy(m->dev->compute, m->history + row * (m->g.max_context + 1ull), tokens, n_bytes);
    return ST_OK;
}

/* A row that is not bound has no history. */
void cuda_row_free(struct backend_model *m, uint32_t row) {
    if (row >= m->host.limits.max_rows || !m->host.rows[row].is_bound) return;
    host_row_free(m, row);
    gpu_fill(m->dev->compute, &m->row[row], 0, sizeof(*m->row));
}
