/* kernels/cuda/graph.c - decode steps, recorded: one graph for each bucket of rows.
 *
 * A graph holds decoder and head for padded shapes. What depends on contents is in the staged
 * arrays, at places that depend on the bucket alone (stage.c).
 *
 * Few rows have two ways through a layer: own products that take norms and additions along, or the
 * library's, with a launch for each of those. Which is faster depends on the device and on the
 * shape of the model, so both are recorded and timed, and the faster one is kept, for other steps
 * of so many rows too. Contexts are empty then: attention, the same in both, does nothing. With
 * is_deterministic, or on a device without a usable clock, there is no choice. */
#include "kernels/cuda/cuda_internal.h"

#define TIMED_RUNS 4u   /* the best counts */
#define CLEARLY    0.98 /* times the own products' time: else what was measured is noise */

void cuda_graphs_init(struct backend_model *m) {
    const struct backend_limits *l = &m->host.limits;
    uint32_t most = MIN(MIN(l->max_rows, l->max_step_tokens), MIN(m->head_rows, 256u));

    for (uint32_t b = 1; m->n_buckets == 0 || m->bucket[m->n_buckets - 1] < most;
         b = b < 8 ? b * 2 : b + 8)
        m->bucket[m->n_buckets++] = MIN(b, most);
}

void cuda_graphs_fini(struct backend_model *m) {
    for (uint32_t i = 0; i < CUDA_MAX_BUCKETS; i++) {
        gpu_graph_close(m->graph[i]);
        m->graph[i] = NULL;
    }
}

/* --- recording -------------------------------------------------------------------------------- */

/* Runs the padded step of a bucket: its kernels are loaded then, for which a recording is no place,
 * and what the device refuses is heard of now and not in the first answer. */
static enum status rehearse(struct backend_model *m, const struct cuda_packed *p,
                            struct error *err) {
    enum status st = cuda_meet(m->dev, err);

    if (st != ST_OK) return st;
    gpu_copy(m->dev->compute, m->staged, m->slot[0].packed, p->n_bytes);
    cuda_decode(m, &p->forward);
    cuda_head(m, &p->forward, 0, p->forward.n_outputs);
    return gpu_stream_wait(m->dev->compute, err);
}

static enum status record(struct backend_model *m, const struct cuda_packed *p,
                          struct gpu_graph **out, struct error *err) {
    gpu_capture_begin(m->dev->compute);
    cuda_decode(m, &p->forward);
    cuda_head(m, &p->forward, 0, p->forward.n_outputs);
    return gpu_capture_end(m->dev->compute, out, err);
}

static enum status time_graph(struct backend_model *m, struct gpu_graph *graph, double *best_us,
                              struct error *err) {
    const struct cuda_slot *s = &m->slot[0]; /* no step is under way: its events are free */
    enum status st = cuda_meet(m->dev, err);

    for (uint32_t i = 0; i < TIMED_RUNS && st == ST_OK; i++) {
        double us;

        gpu_event_record(s->started, m->dev->compute);
        gpu_graph_launch(graph, m->dev->compute);
        gpu_event_record(s->ended, m->dev->compute);
        if ((st = gpu_stream_wait(m->dev->compute, err)) != ST_OK) break;
        us = gpu_event_elapsed_us(s->started, s->ended);
        *best_us = i == 0 ? us : MIN(*best_us, us);
    }
    return st;
}

/* --- the choice ------------------------------------------------------------------------------- */

/* Of all numbers of rows that the bucket is for. */
static void take_library(struct backend_model *m, uint32_t bucket, bool is_taken) {
    uint32_t first = bucket ? m->bucket[bucket - 1] + 1 : 1;

    for (uint32_t n = first; n <= m->bucket[bucket]; n++)
        m->takes_library[n] = is_taken;
}

/* The bucket's graph has the own products; if the library's are faster, theirs takes its place.
 * Ranks may choose differently: they sum and gather as many numbers either way. */
static enum status choose(struct backend_model *m, uint32_t bucket, const struct cuda_packed *p,
                          struct error *err) {
    struct gpu_graph *other = NULL;
    double own_us = 0, library_us = 0;
    enum status st = time_graph(m, m->graph[bucket], &own_us, err);
    bool is_faster;

    if (st != ST_OK) return st;
    take_library(m, bucket, true);
    st = rehearse(m, p, err);
    if (st == ST_OK) st = record(m, p, &other, err);
    if (st == ST_OK) st = time_graph(m, other, &library_us, err);
    is_faster = st == ST_OK && library_us < CLEARLY * own_us;
    take_library(m, bucket, is_faster);
    gpu_graph_close(is_faster ? m->graph[bucket] : other);
    if (is_faster) m->graph[bucket] = other;
    return st;
}

static bool has_choice(const struct backend_model *m, uint32_t n_rows) {
    return n_rows <= GEMV_MAX_ROWS && !m->is_deterministic && gpu_properties(m->dev->gpu)->is_timed;
}

/* Largest first: what the driver sets aside for the first serves the others too. Products of few
 * rows have kernels of their own; those of more were all run when they were tuned. */
enum status cuda_capture(struct backend_model *m, struct error *err) {
    struct cuda_packed p;
    enum status st = ST_OK;

    for (uint32_t i = m->n_buckets; i-- > 0 && st == ST_OK;) {
        cuda_pack(m, 0, NULL, m->bucket[i], &p);
        if (m->bucket[i] <= GEMV_MAX_ROWS || i + 1 == m->n_buckets) st = rehearse(m, &p, err);
        if (st == ST_OK) st = record(m, &p, &m->graph[i], err);
        if (st == ST_OK && has_choice(m, m->bucket[i])) st = choose(m, i, &p, err);
    }
    return st;
}

/* --- the graph of a step ---------------------------------------------------------------------- */

static bool is_decode(const struct backend_stage *s, const struct backend_step *step) {
    return step->n_rows > 0 && s->row[step->n_rows - 1].n_tokens == 1 &&
           s->row[step->n_rows - 1].first_token == step->n_rows - 1;
}

/* The graph of the smallest bucket that holds the step; NULL: none does. */
struct gpu_graph *cuda_graph_of(const struct backend_model *m, uint32_t slot,
                                const struct backend_step *step, uint32_t *bucket) {
    uint32_t n = MAX(step->n_rows, step->n_outputs);

    *bucket = 0;
    if (!is_decode(&m->host.slot[slot], step)) return NULL;
    for (uint32_t i = 0; i < m->n_buckets; i++) {
        if (m->bucket[i] < n || !m->graph[i]) continue;
        *bucket = m->bucket[i];
        return m->graph[i];
    }
    return NULL;
}
