/* kernels/cuda/kv.c - the paged pool on the device, and whole blocks on the move.
 *
 * A block is one piece of memory, all layers of K and V, the form that kv_read and kv_write speak.
 * Copies within the pool are one launch on the compute stream. Blocks go out to pinned host memory
 * and come in again on two streams of their own, beside the steps, and wait for no more than they
 * must:
 *
 *      swap out   after all steps submitted before it, whose results it takes along
 *      swap in    after all steps submitted before it: they may still read what it overwrites
 *      a step     after the swaps in of blocks that its rows read, and the swaps out of blocks
 *                 that it writes
 *      each swap  after those the other way that have a block in common with it, on either side
 *
 * Each way is a lane: its swaps are numbered, each block remembers the last of them that read or
 * wrote it, and an event stands behind each of the last few. A lane that has nothing under way
 * costs a step nothing; otherwise the block tables of the step's rows are looked through, once for
 * each block. */
#include <string.h>

#include "common/base/mem.h"
#include "kernels/cuda/cuda_internal.h"

#define LANE_EVENTS 32u
#define MOVES_MOST  1024u /* pairs in one launch or call */

struct lane {
    struct gpu_stream *stream;
    struct gpu_event *event[LANE_EVENTS]; /* swap i ends at event[i % LANE_EVENTS] */
    uint64_t last, done;                  /* swaps begun; at least so many have ended */
    uint64_t seen;                        /* the compute stream waits for that one already */
    uint64_t *block, *host_block;         /* (n_blocks), (n_host_blocks) the last that touched it */
};

struct cuda_moves {
    struct lane out, in;
    struct backend_copy *pairs; /* (MOVES_MOST) on the device */
    uint32_t *as_src, *as_dst;  /* (n_blocks) the launch that a block is in, as what */
    uint32_t launch;
    uint8_t *bounce; /* pinned, one block */
    void *to[MOVES_MOST];
    const void *from[MOVES_MOST];
};

/* --- lanes ------------------------------------------------------------------------------------ */

static enum status lane_open(struct lane *l, struct backend_model *m, struct gpu_stream *stream,
                             uint32_t n_blocks, uint32_t n_host_blocks, struct error *err) {
    enum status st = ST_OK;

    l->stream = stream;
    l->block = mem_calloc(n_blocks, sizeof(*l->block));
    l->host_block = mem_calloc(MAX(n_host_blocks, 1u), sizeof(*l->host_block));
    for (uint32_t i = 0; i < LANE_EVENTS && st == ST_OK; i++)
        st = gpu_event_open(m->dev->gpu, &l->event[i], err);
    return st;
}

static void lane_close(struct lane *l) {
    for (uint32_t i = 0; i < LANE_EVENTS; i++)
        gpu_event_close(l->event[i]);
    mem_free(l->block);
    mem_free(l->host_block);
}

/* An event that comes no sooner than the end of a swap: its own, or the oldest that is kept. */
static struct gpu_event *lane_event(const struct lane *l, uint64_t swap) {
    if (swap + LANE_EVENTS <= l->last) swap = l->last - LANE_EVENTS + 1;
    return l->event[swap % LANE_EVENTS];
}

static bool lane_is_done(struct lane *l, uint64_t swap) {
    if (swap > l->done && gpu_event_poll(lane_event(l, swap)) == ST_OK) l->done = swap;
    return swap <= l->done;
}

static void lane_wait(struct lane *l, struct gpu_stream *waiter, uint64_t swap) {
    if (!lane_is_done(l, swap)) gpu_stream_wait_event(waiter, lane_event(l, swap));
}

/* The compute stream waits once for each swap. */
static void lane_before_compute(struct lane *l, struct backend_model *m, uint64_t swap) {
    if (swap <= l->seen) return;
    lane_wait(l, m->dev->compute, swap);
    l->seen = swap;
}

/* Is there anything under way that the compute stream does not wait for yet? */
static bool lane_is_busy(struct lane *l) {
    return l->last > l->seen && !lane_is_done(l, l->last);
}

static void lane_end_swap(struct lane *l) {
    l->last++;
    gpu_event_record(l->event[l->last % LANE_EVENTS], l->stream);
}

/* --- steps ------------------------------------------------------------------------------------ */

/* The last swap in that one of the row's blocks waits for. */
static uint64_t last_in_of_row(const struct backend_model *m, const struct backend_row *r) {
    const struct cuda_moves *v = m->moves;
    uint32_t n = CEIL_DIV(r->context_len, OPS_BLOCK_SIZE);
    uint64_t last = 0;

    for (uint32_t i = 0; i < n; i++)
        last = MAX(last, v->in.block[host_block(&m->host, r->row, i)]);
    return last;
}

void cuda_kv_before_step(struct backend_model *m, const struct backend_stage *s,
                         const struct backend_step *step) {
    struct cuda_moves *v = m->moves;
    uint64_t in = 0, out = 0;
    bool looks_in, looks_out;

    if (!v) return;
    looks_in = lane_is_busy(&v->in);
    looks_out = lane_is_busy(&v->out);
    for (uint32_t i = 0; looks_in && i < step->n_rows; i++)
        in = MAX(in, last_in_of_row(m, &s->row[i]));
    for (uint32_t i = 0; (looks_in || looks_out) && i < step->n_tokens; i++) {
        if (s->kv_slot[i] < 0) continue;
        in = MAX(in, v->in.block[s->kv_slot[i] / OPS_BLOCK_SIZE]);
        out = MAX(out, v->out.block[s->kv_slot[i] / OPS_BLOCK_SIZE]);
    }
    lane_before_compute(&v->in, m, in);
    lane_before_compute(&v->out, m, out);
}

/* --- the pool --------------------------------------------------------------------------------- */

/* What is half-opened is cuda_kv_fini's. */
static enum status open_moves(struct backend_model *m, uint32_t n_blocks, uint32_t n_host_blocks,
                              struct error *err) {
    struct cuda_moves *v = m->moves = mem_zalloc(sizeof(*v));
    enum status st;

    v->as_src = mem_calloc(n_blocks, sizeof(*v->as_src));
    v->as_dst = mem_calloc(n_blocks, sizeof(*v->as_dst));
    st = lane_open(&v->out, m, m->dev->copy_out, n_blocks, n_host_blocks, err);
    if (st == ST_OK) st = lane_open(&v->in, m, m->dev->copy_in, n_blocks, n_host_blocks, err);
    return st;
}

void cuda_kv_fini(struct backend_model *m) {
    struct cuda_moves *v = m->moves;

    if (!v) return;
    lane_close(&v->out);
    lane_close(&v->in);
    mem_free(v->as_src);
    mem_free(v->as_dst);
    mem_free(v);
    m->moves = NULL;
}

static enum status check_room(struct backend_model *m, uint32_t n_blocks, struct error *err) {
    struct backend_info info;
    uint64_t wanted = n_blocks * m->host.block_bytes, fit;

    backend_cuda.info(m->dev, &info);
    if (wanted <= info.memory_free) return ST_OK;
    fit = info.memory_free / m->host.block_bytes;
    return error_set(
        err, ST_NOMEM,
        "a KV pool of %u blocks takes %.1f MiB, but %.1f MiB are free on %s beside %.1f MiB of "
        "weights and buffers: %llu blocks would fit, one sequence of up to %llu tokens; lower "
        "--gpu-memory-utilization, --max-model-len or --max-num-batched-tokens",
        n_blocks, CUDA_MIB(wanted), CUDA_MIB(info.memory_free), info.device,
        CUDA_MIB(m->host.bytes), (unsigned long long)fit,
        (unsigned long long)(fit * OPS_BLOCK_SIZE));
}

static enum status alloc_pool(struct backend_model *m, uint32_t n_blocks, uint32_t n_host_blocks,
                              struct error *err) {
    enum status st = cuda_take(m, &m->kv, n_blocks * m->host.block_bytes, "the KV pool", err);

    if (st == ST_OK && n_host_blocks)
        st = cuda_take_pinned(m, &m->host_pool, n_host_blocks * m->host.block_bytes,
                              "the KV swap space", err);
    if (st == ST_OK) st = open_moves(m, n_blocks, n_host_blocks, err);
    if (st == ST_OK)
        st = cuda_take(m, &m->moves->pairs, MOVES_MOST * sizeof(struct backend_copy),
                       "pairs of blocks", err);
    if (st == ST_OK)
        st = cuda_take_pinned(m, &m->moves->bounce, m->host.block_bytes, "a block", err);
    return st;
}

/* Zeros: what a page holds behind its last token is multiplied by zero, and must be a number. */
enum status cuda_kv_alloc(struct backend_model *m, uint32_t n_blocks, uint32_t n_host_blocks,
                          struct backend_kv_info *out, struct error *err) {
    enum status st = gpu_status(m->dev->gpu, err);

    if (st != ST_OK) return st;
    if (m->loader.buffer[0]) return error_set(err, ST_INVALID, "kv_alloc before load_end");
    if (m->kv) return error_set(err, ST_EXISTS, "the KV pool is already allocated");
    if (n_blocks == 0) return error_set(err, ST_INVALID, "a KV pool of 0 blocks: give at least 1");
    if ((st = check_room(m, n_blocks, err)) != ST_OK) return st;
    if ((st = alloc_pool(m, n_blocks, n_host_blocks, err)) != ST_OK) goto fail;
    m->host.n_blocks = n_blocks;
    m->host.n_host_blocks = n_host_blocks;
    gpu_fill(m->dev->compute, m->kv, 0, n_blocks * m->host.block_bytes);
    if ((st = cuda_capture(m, err)) != ST_OK) goto fail;
    *out = (struct backend_kv_info){m->host.block_bytes, n_blocks, n_host_blocks, m->host_pool};
    return ST_OK;
fail:
    cuda_graphs_fini(m); /* they point into the pool */
    if (m->moves) cuda_give_back(m, m->moves->pairs, MOVES_MOST * sizeof(struct backend_copy));
    if (m->moves) cuda_give_back(m, m->moves->bounce, 0);
    cuda_kv_fini(m);
    cuda_give_back(m, m->host_pool, 0);
    cuda_give_back(m, m->kv, n_blocks * m->host.block_bytes);
    m->kv = NULL;
    m->host_pool = NULL;
    m->host.n_blocks = m->host.n_host_blocks = 0;
    return st;
}

static uint8_t *block_at(const struct backend_model *m, uint32_t block) {
    return m->kv + block * m->host.block_bytes;
}

static uint8_t *host_block_at(const struct backend_model *m, uint32_t block) {
    return m->host_pool + block * m->host.block_bytes;
}

/* --- within the pool -------------------------------------------------------------------------- */

static enum status check_pairs(struct backend_model *m, const struct backend_copy *pairs,
                               uint32_t n, uint32_t n_src, uint32_t n_dst) {
    enum status st = gpu_status(m->dev->gpu, NULL);

    for (uint32_t i = 0; i < n && st == ST_OK; i++) {
        if (pairs[i].src >= n_src || pairs[i].dst >= n_dst) st = ST_INVALID;
    }
    return st;
}

/* How many of the pairs may run in one launch, in no order. */
static uint32_t independent_pairs(struct cuda_moves *v, const struct backend_copy *pairs,
                                  uint32_t n) {
    uint32_t launch = ++v->launch, i;

    for (i = 0; i < MIN(n, MOVES_MOST); i++) {
        if (v->as_dst[pairs[i].dst] == launch || v->as_src[pairs[i].dst] == launch ||
            v->as_dst[pairs[i].src] == launch || pairs[i].src == pairs[i].dst)
            break;
        v->as_dst[pairs[i].dst] = launch;
        v->as_src[pairs[i].src] = launch;
    }
    return i;
}

static enum status copy_independent(struct backend_model *m, const struct backend_copy *pairs,
                                    uint32_t n) {
    struct cuda_moves *v = m->moves;
    struct backend_copy *pinned = cuda_borrow(m, n * sizeof(*pairs));

    if (!pinned) return ST_CLOSED;
    memcpy(pinned, pairs, n * sizeof(*pairs));
    for (uint32_t i = 0; i < n; i++) {
        lane_before_compute(&v->in, m, MAX(v->in.block[pairs[i].src], v->in.block[pairs[i].dst]));
        lane_before_compute(&v->out, m, v->out.block[pairs[i].dst]);
    }
    gpu_copy(m->dev->compute, v->pairs, pinned, n * sizeof(*pairs));
    ops_copy_blocks(m->dev->compute, &(struct copy_blocks_args){.kv = m->kv,
                                                                .pairs = v->pairs,
                                                                .block_bytes = m->host.block_bytes,
                                                                .n_pairs = n});
    return ST_OK;
}

enum status cuda_kv_copy(struct backend_model *m, const struct backend_copy *pairs, uint32_t n,
                         backend_fence *out) {
    enum status st = check_pairs(m, pairs, n, m->host.n_blocks, m->host.n_blocks);
    uint32_t take;

    for (uint32_t at = 0; at < n && st == ST_OK; at += take) {
        take = independent_pairs(m->moves, pairs + at, n - at);
        if (take) st = copy_independent(m, pairs + at, take);
        if (!take) take = 1; /* onto itself */
    }
    return st == ST_OK ? cuda_fence(m->dev, m->dev->compute, out) : st;
}

/* --- to and from host memory ------------------------------------------------------------------ */

/* One call for many blocks; `lane` waits for compute, and for `other` where blocks are shared. */
static enum status swap(struct backend_model *m, struct lane *lane, struct lane *other,
                        const struct backend_copy *pairs, uint32_t n, bool is_out,
                        backend_fence *out) {
    struct cuda_moves *v = m->moves;
    uint64_t last = 0;

    gpu_event_record(m->dev->compute_now, m->dev->compute);
    gpu_stream_wait_event(lane->stream, m->dev->compute_now);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t block = is_out ? pairs[i].src : pairs[i].dst;
        uint32_t host = is_out ? pairs[i].dst : pairs[i].src;

        last = MAX(last, MAX(other->block[block], other->host_block[host]));
        lane->block[block] = lane->host_block[host] = lane->last + 1;
    }
    lane_wait(other, lane->stream, last);
    for (uint32_t at = 0, take; at < n; at += take) {
        take = MIN(n - at, MOVES_MOST);
        for (uint32_t i = 0; i < take; i++) {
            const struct backend_copy *p = &pairs[at + i];

            v->to[i] = is_out ? host_block_at(m, p->dst) : block_at(m, p->dst);
            v->from[i] = is_out ? block_at(m, p->src) : host_block_at(m, p->src);
        }
        gpu_copy_many(lane->stream, v->to, v->from, m->host.block_bytes, take);
    }
    lane_end_swap(lane);
    return cuda_fence(m->dev, lane->stream, out);
}

enum status cuda_kv_swap_out(struct backend_model *m, const struct backend_copy *pairs, uint32_t n,
                             backend_fence *out) {
    enum status st = check_pairs(m, pairs, n, m->host.n_blocks, m->host.n_host_blocks);

    if (st != ST_OK) return st;
    return swap(m, &m->moves->out, &m->moves->in, pairs, n, true, out);
}

enum status cuda_kv_swap_in(struct backend_model *m, const struct backend_copy *pairs, uint32_t n,
                            backend_fence *out) {
    enum status st = check_pairs(m, pairs, n, m->host.n_host_blocks, m->host.n_blocks);

    if (st != ST_OK) return st;
    return swap(m, &m->moves->in, &m->moves->out, pairs, n, false, out);
}

/* --- one block, for tests and moves ----------------------------------------------------------- */

enum status cuda_kv_read(struct backend_model *m, uint32_t block, void *dst, uint64_t n_bytes) {
    enum status st;

    if (block >= m->host.n_blocks || n_bytes != m->host.block_bytes) return ST_INVALID;
    if ((st = cuda_settle(m->dev, NULL)) != ST_OK) return st;
    gpu_copy(m->dev->compute, m->moves->bounce, block_at(m, block), n_bytes);
    if ((st = gpu_stream_wait(m->dev->compute, NULL)) != ST_OK) return st;
    memcpy(dst, m->moves->bounce, n_bytes);
    return ST_OK;
}

enum status cuda_kv_write(struct backend_model *m, uint32_t block, const void *src,
                          uint64_t n_bytes) {
    enum status st;

    if (block >= m->host.n_blocks || n_bytes != m->host.block_bytes) return ST_INVALID;
    if ((st = cuda_settle(m->dev, NULL)) != ST_OK) return st;
    memcpy(m->moves->bounce, src, n_bytes);
    gpu_copy(m->dev->compute, block_at(m, block), m->moves->bounce, n_bytes);
    return gpu_stream_wait(m->dev->compute, NULL);
}
