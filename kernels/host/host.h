/* kernels/host/host.h - what every backend that runs on the host does the same way.
 *
 * ref, cpu and sim differ in what happens between stage and result. All else is here: the checks of
 * geometry and limits, which weights a geometry needs, the arrays of a slot, block tables and token
 * histories of the rows, the paged pool with its copies, the checks of a step before it runs, the
 * sampling of its outputs, and fences that are done at once.
 *
 * The pool keeps each block in one piece (kv_layout.h), which is also the form that kv_read and
 * kv_write speak. A position's K and V are found through the block
 * table at block[position / block_size], offset position % block_size, for any block size from 1
 * to 128.
 *
 * `struct host_model` is the first member of a backend's struct backend_model, and `struct
 * host_device` of its struct backend_device, so that the functions below can sit in the table of
 * operations as they are. Thread: the engine's. */
#ifndef KERNELS_HOST_HOST_H
#define KERNELS_HOST_HOST_H

#include "kernels/backend.h"
#include "kernels/kv_layout.h"
#include "kernels/sample.h"
#include "kernels/tp/group.h"
#include "kernels/tp/shard.h"

#define HOST_MAX_BLOCK_SIZE 128u
#define HOST_MAX_HEAD_DIM   512u
#define HOST_MAX_LOGPROBS   256u /* alternatives of an output: beam searches want many */

struct host_device {
    backend_fence last;        /* of the newest work; all host work is done when submit returns */
    uint64_t memory_limit;     /* bytes its models may take */
    uint32_t tp_rank, tp_size; /* as in struct backend_config */
    struct tp_group *group;
};

struct host_row {
    uint32_t n_prompt, n_history;
    bool is_bound;
};

struct host_model {
    struct host_device *dev;
    struct geometry g;     /* this rank's; inv_freq and layer_kind are our copies */
    struct geometry whole; /* the model's: what tensors arrive in */
    struct tp_shard shard; /* which part is this rank's */
    struct backend_limits limits;
    struct backend_stage slot[2];
    uint32_t *table;       /* (max_rows, max_blocks_per_row) block ids */
    struct host_row *rows; /* (max_rows) */
    uint32_t *history;     /* (max_rows, max_context + 1) prompt, then output; NULL: not kept */
    uint32_t *ids;         /* (max_step_tokens) tokens of the step, references resolved */
    uint8_t *is_loaded;    /* (ROLE_COUNT, n_layers) */
    uint32_t previous_slot, previous_outputs;
    uint8_t *pool, *host_pool; /* (n_blocks), (n_host_blocks) of block_bytes */
    uint8_t *lent;             /* not ours, to be the host_pool; NULL: we take one */
    uint64_t block_bytes;
    uint32_t n_blocks, n_host_blocks;
    uint64_t bytes; /* allocated through host_alloc */
};

/* Checks geometry and limits and copies them: all that a backend wants whose slots, tables,
 * histories and pool lie elsewhere (a GPU's). Pass a zeroed struct; host_fini accepts whatever is
 * left after a failure. */
MUST_USE enum status host_init_checks(struct host_model *h, struct host_device *dev,
                                      const struct geometry *g, const struct backend_limits *limits,
                                      struct error *err);
/* backend_ops.check: would load_begin take it? `own` is what the backend itself looks at. Allocates
 * little, and frees it. */
MUST_USE enum status host_check(const struct backend_config *config, const struct geometry *g,
                                const struct backend_limits *limits,
                                enum status (*own)(const struct host_model *h, struct error *err),
                                struct error *err);
/* The same as host_init_checks, and allocates slots, tables and histories. */
MUST_USE enum status host_init(struct host_model *h, struct host_device *dev,
                               const struct geometry *g, const struct backend_limits *limits,
                               bool keeps_history, struct error *err);
void host_fini(struct host_model *h);

/* Large buffers, counted against the device's memory limit and freed by mem_free. ST_NOMEM names
 * `what` and both figures. host_alloc: contents undefined, aligned to a cache line, to 2 MiB when
 * large (huge pages). host_zalloc: zeroed, and untouched pages cost nothing. */
MUST_USE enum status host_alloc(struct host_model *h, void **out, uint64_t n_bytes,
                                const char *what, struct error *err);
MUST_USE enum status host_zalloc(struct host_model *h, void **out, uint64_t n_bytes,
                                 const char *what, struct error *err);

/* The host_pool of n_host_blocks: what was lent, counted as if it were ours, or host_alloc's. */
MUST_USE enum status host_take_pool(struct host_model *h, uint32_t n_host_blocks,
                                    struct error *err);

/* --- weights */

/* The shape that this geometry wants for a role; n_dims 0 when it wants none. */
struct host_shape {
    uint32_t n_dims;
    uint64_t dim[2];
};
struct host_shape host_role_shape(const struct geometry *g, enum tensor_role role);
bool host_role_is_per_layer(enum tensor_role role);
const char *host_role_name(enum tensor_role role);

/* Checks a tensor that arrives (role, layer, type, shape, size, not twice; of a quantised one also
 * kernels/quant.h) and marks it as there. */
MUST_USE enum status host_take_tensor(struct host_model *h, const struct backend_tensor *t,
                                      struct error *err);
/* Of a tensor so checked, the part that is this rank's: all of it with one rank. *scratch, to be
 * freed by the caller, holds what had to be gathered (codes, scales), else it is NULL; scratch and
 * `t` outlive *part. ST_UNSUPPORTED: a cut through a group of inputs, or through an order. */
MUST_USE enum status host_rank_part(const struct host_model *h, const struct backend_tensor *t,
                                    struct backend_tensor *part, void **scratch, struct error *err);
/* ST_INVALID naming the first that is missing. */
MUST_USE enum status host_check_loaded(const struct host_model *h, struct error *err);

/* --- the pool */

/* K (which 0) or V (which 1) of one block: (block_size, head_dim) in kv_dtype. */
static inline uint8_t *host_kv(const struct host_model *h, uint32_t block, uint32_t layer,
                               uint32_t which, uint32_t kv_head) {
    return h->pool + block * h->block_bytes +
           kv_tile_at(&h->g, h->limits.block_size, layer, which, kv_head);
}

/* Their scales, of a quantised pool: (block_size). */
static inline uint8_t *host_kv_scales(const struct host_model *h, uint32_t block, uint32_t layer,
                                      uint32_t which, uint32_t kv_head) {
    return h->pool + block * h->block_bytes +
           kv_scales_at(&h->g, h->limits.block_size, layer, which, kv_head);
}

static inline uint32_t host_block(const struct host_model *h, uint32_t row, uint32_t index) {
    return h->table[(uint64_t)row * h->limits.max_blocks_per_row + index];
}

/* First position that the query at `position` sees in this layer. */
static inline uint32_t host_window_start(const struct geometry *g, uint32_t layer,
                                         uint32_t position) {
    uint32_t window = g->layer_kind && g->layer_kind[layer] ? g->sliding_window : 0;

    return window && position >= window ? position - window + 1 : 0;
}

uint64_t host_kv_block_bytes(const struct backend_model *m);
void host_kv_lend(struct backend_model *m, void *memory);
enum status host_kv_alloc(struct backend_model *m, uint32_t n_blocks, uint32_t n_host_blocks,
                          struct backend_kv_info *out, struct error *err);
enum status host_kv_copy(struct backend_model *m, const struct backend_copy *pairs, uint32_t n,
                         backend_fence *out);
enum status host_kv_swap_out(struct backend_model *m, const struct backend_copy *pairs, uint32_t n,
                             backend_fence *out);
enum status host_kv_swap_in(struct backend_model *m, const struct backend_copy *pairs, uint32_t n,
                            backend_fence *out);
enum status host_kv_read(struct backend_model *m, uint32_t block, void *dst, uint64_t n_bytes);
enum status host_kv_write(struct backend_model *m, uint32_t block, const void *src,
                          uint64_t n_bytes);

/* --- rows and steps */

enum status host_row_bind(struct backend_model *m, uint32_t row, const uint32_t *prompt,
                          uint32_t n_prompt, const uint32_t *output, uint32_t n_output);
void host_row_free(struct backend_model *m, uint32_t row);
void host_stage(struct backend_model *m, uint32_t slot, struct backend_stage *out);

/* Does a bound row's history fit, and are its tokens in the vocabulary? Remembers its length. */
MUST_USE enum status host_row_take(struct host_model *h, uint32_t row, const uint32_t *prompt,
                                   uint32_t n_prompt, const uint32_t *output, uint32_t n_output);
/* Checks the step against every limit. Changes nothing. */
MUST_USE enum status host_step_check(const struct host_model *h, uint32_t slot,
                                     const struct backend_step *step, struct error *err);
/* Checks the step, then applies table updates and resolves token references into h->ids. Nothing
 * has changed when it fails. */
MUST_USE enum status host_step_begin(struct host_model *h, uint32_t slot,
                                     const struct backend_step *step, struct error *err);
/* Samples or scores output i from its logits into the slot. Outputs may run in parallel. */
void host_step_sample(struct host_model *h, uint32_t slot, const struct backend_step *step,
                      uint32_t i, const float *logits, struct sample_scratch *scratch);
/* Rank 0 has sampled outputs [first, first + n): its tokens become every rank's. A meeting, after
 * which the logits may be overwritten; nothing with one rank. */
MUST_USE enum status host_share_tokens(struct host_model *h, uint32_t slot, uint32_t first,
                                       uint32_t n);
/* ST_CLOSED with its sentence: the group was stopped. */
enum status host_rank_lost(struct error *err);
/* Adds the sampled tokens to their rows' histories, and remembers whose outputs the next step
 * names. */
void host_step_end(struct host_model *h, uint32_t slot, const struct backend_step *step);

enum status host_poll(struct backend_device *dev, backend_fence f);
enum status host_wait(struct backend_device *dev, backend_fence f, uint64_t timeout_us);
int host_event_fd(struct backend_device *dev);

/* The rank of a device to be opened, and its share of the memory, `memory_free` by default. */
void host_device_init(struct host_device *dev, const struct backend_config *config,
                      uint64_t memory_free);

/* The processor's name and the machine's memory, for struct backend_info. */
void host_describe(struct backend_info *info);

#endif
