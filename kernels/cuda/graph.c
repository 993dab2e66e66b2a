/* kernels/cuda/graph.c - recorded steps: a graph for each bucket of rows, two for each of tokens.
 *
 * What depends on contents is in the staged arrays, at places that depend on the bucket alone
 * (stage.c).
 *
 *      rows     1, 2, 4, 8, 16, 24 ... 256 rows of one token, and as many outputs: decoder and head
 *      tokens   64, 128 ... 512 tokens of rows of any lengths, prefix hits and mixed steps: the
 *               decoder; once without and once with attention's kernel for rows of one token
 *
 * Multiples of 64 tokens are what tiles of products are padded to, so padding costs little. Up to
 * GEMV_MAX_ROWS tokens own products are better than padding; beyond 512 the device has ten times
 * the work that launching costs the host.
 *
 * Few rows have two ways through a layer: own products that take norms and additions along, or the
 * library's, with a launch for each of those. Which is faster depends on the device and on the
 * shape of the model, so both are recorded and timed, and the faster one is kept, for other steps
 * of so many rows too. Contexts are empty then: attention, the same in both, does nothing. With
 * is_deterministic, or on a device without a usable clock, there is no choice. */
#include "kernels/cuda/cuda_internal.h"

#define TIMED_RUNS 4u   /* the best counts */
#define CLEARLY    0.98 /* times the own products' time: else what was measured is noise */
#define SPAN_STEP  64u

void cuda_graphs_init(struct backend_model *m) {
    const struct backend_limits *l = &m->host.limits;
    uint32_t most = MIN(MIN(l->max_rows, l->max_step_tokens), MIN(m->head_rows, 256u));

    for (uint32_t b = 1; m->n_buckets == 0 || m->bucket[m->n_buckets - 1] < most;
         b = b < 8 ? b * 2 : b + 8)
        m->bucket[m->n_buckets++] = MIN(b, most);
    most = MIN(l->max_step_tokens, CUDA_MAX_SPANS * SPAN_STEP);
    if (most <= GEMV_MAX_ROWS) return; /* which products such steps take is not settled yet */
    for (uint32_t n = SPAN_STEP; m->n_spans == 0 || m->span[m->n_spans - 1] < most; n += SPAN_STEP)
        m->span[m->n_spans++] = MIN(n, most);
}

void cuda_graphs_fini(struct backend_model *m) {
    for (uint32_t i = 0; i < CUDA_MAX_BUCKETS; i++) {
        gpu_graph_close(m->graph[i]);
        m->graph[i] = NULL;
    }
    for (uint32_t i = 0; i < 2 * CUDA_MAX_SPANS; i++) {
        gpu_graph_close(m->span_graph[i % 2][i / 2]);
        m->span_graph[i % 2][i / 2] = NULL;
    }
}

/* --- recording -------------------------------------------------------------------------------- */

/* All that a graph of its bucket holds. */
static void launch(struct backend_model *m, const struct cuda_packed *p,
                   enum cuda_bucket_kind kind) {
    cuda_decode(m, &p->forward);
    if (kind == CUDA_ROWS) cuda_head(m, &p->forward, 0, p->forward.n_outputs);
}

/* Runs the padded step of a bucket: its kernels are loaded then, for which a recording is no place,
 * and what the device refuses is heard of now and not in the first answer. */
static enum status rehearse(struct backend_model *m, const struct cuda_packed *p,
                            enum cuda_bucket_kind kind, struct error *err) {
    enum status st = cuda_meet(m->dev, err);

    if (st != ST_OK) return st;
    gpu_copy(m->dev->compute, m->staged, m->slot[0].packed, p->n_bytes);
    launch(m, p, kind);
    return gpu_stream_wait(m->dev->compute, err);
}

static enum status record(struct backend_model *m, const struct cuda_packed *p,
                          enum cuda_bucket_kind kind, struct gpu_graph **out, struct error *err) {
    gpu_capture_begin(m->dev->compute);
    launch(m, p, kind);
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
    st = rehearse(m, p, CUDA_ROWS, err);
    if (st == ST_OK) st = record(m, p, CUDA_ROWS, &other, err);
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

/* Products of few rows have kernels of their own; those of more were all run when they were tuned,
 * but sums over ranks may take another way for each size. */
static bool is_rehearsed(const struct backend_model *m, uint32_t bucket) {
    return m->bucket[bucket] <= GEMV_MAX_ROWS || bucket + 1 == m->n_buckets || m->dev->comm;
}

static enum status capture_rows(struct backend_model *m, uint32_t i, struct error *err) {
    struct cuda_packed p;
    enum status st = ST_OK;

    cuda_pack(m, 0, NULL, (struct cuda_bucket){CUDA_ROWS, m->bucket[i]}, &p);
    if (is_rehearsed(m, i)) st = rehearse(m, &p, CUDA_ROWS, err);
    if (st == ST_OK) st = record(m, &p, CUDA_ROWS, &m->graph[i], err);
    if (st == ST_OK && has_choice(m, m->bucket[i])) st = choose(m, i, &p, err);
    return st;
}

static enum status capture_tokens(struct backend_model *m, uint32_t i, enum cuda_bucket_kind kind,
                                  struct error *err) {
    struct cuda_packed p;
    enum status st;

    cuda_pack(m, 0, NULL, (struct cuda_bucket){kind, m->span[i]}, &p);
    st = rehearse(m, &p, kind, err);
    return st == ST_OK ? record(m, &p, kind, &m->span_graph[kind == CUDA_MIXED][i], err) : st;
}

/* Largest first: what the driver sets aside for the first serves the others too. */
enum status cuda_capture(struct backend_model *m, struct error *err) {
    enum status st = ST_OK;

    for (uint32_t i = m->n_spans; i-- > 0 && st == ST_OK;) {
        st = capture_tokens(m, i, CUDA_MIXED, err);
        if (st == ST_OK) st = capture_tokens(m, i, CUDA_PROMPTS, err);
    }
    for (uint32_t i = m->n_buckets; i-- > 0 && st == ST_OK;)
        st = capture_rows(m, i, err);
    return st;
}

/* --- the graph of a step ---------------------------------------------------------------------- */

static bool is_decode(const struct backend_stage *s, const struct backend_step *step) {
    return step->n_rows > 0 && s->row[step->n_rows - 1].n_tokens == 1 &&
           s->row[step->n_rows - 1].first_token == step->n_rows - 1;
}

/* The first of n ascending sizes that has room for `wanted`; n: none has. */
static uint32_t smallest(const uint32_t *size, uint32_t n, uint32_t wanted) {
    uint32_t i = 0;

    while (i < n && size[i] < wanted)
        i++;
    return i;
}

static struct gpu_graph *graph_of_rows(const struct backend_model *m,
                                       const struct backend_step *step,
                                       struct cuda_bucket *bucket) {
    uint32_t i = smallest(m->bucket, m->n_buckets, MAX(step->n_rows, step->n_outputs));

    if (i == m->n_buckets || !m->graph[i]) return NULL;
    *bucket = (struct cuda_bucket){CUDA_ROWS, m->bucket[i]};
    return m->graph[i];
}

static struct gpu_graph *graph_of_tokens(const struct backend_model *m,
                                         const struct backend_stage *s,
                                         const struct backend_step *step,
                                         struct cuda_bucket *bucket) {
    const struct backend_row *last = &s->row[step->n_rows - 1];
    uint32_t n = last->first_token + last->n_tokens, i = smallest(m->span, m->n_spans, n);
    bool has_decode;

    if (n <= GEMV_MAX_ROWS || i == m->n_spans ||
        !attend_fits_mixed(s->row, step->n_rows, &has_decode) || !m->span_graph[has_decode][i])
        return NULL;
    *bucket = (struct cuda_bucket){has_decode ? CUDA_MIXED : CUDA_PROMPTS, m->span[i]};
    return m->span_graph[has_decode][i];
}

struct gpu_graph *cuda_graph_of(const struct backend_model *m, uint32_t slot,
                                const struct backend_step *step, struct cuda_bucket *bucket) {
    const struct backend_stage *s = &m->host.slot[slot];
    struct gpu_graph *graph = NULL;

    *bucket = (struct cuda_bucket){CUDA_EXACT, 0};
    if (is_decode(s, step)) graph = graph_of_rows(m, step, bucket);
    if (!graph && step->n_rows > 0) graph = graph_of_tokens(m, s, step, bucket);
    return graph;
}
