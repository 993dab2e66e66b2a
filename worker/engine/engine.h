/* worker/engine/engine.h - a model on a device, serving requests: the engine as the API sees it.
 *
 * The engine is a thread. It owns the scheduler, the KV manager, the sampler and the backend, and
 * repeats one step for as long as there is work: take requests, schedule, stage, submit, take the
 * outputs of the previous step, report. Its creator (the worker loop) talks to it through the
 * functions below, all of them on the loop's thread; callbacks come on that loop. Only
 * engine_create and engine_destroy block.
 *
 *      worker loop                                        engine thread
 *      request_create
 *      engine_submit(r) ────────────────────────────────▶ waiting, running, ...
 *      on_progress(r, p)  ◀────────────────────────────── a step has run, tokens are published
 *         one call per request for all steps since the last call
 *      engine_cancel(r) ────────────────────────────────▶ ended, blocks free
 *      on_progress(r, is_finished)  ◀──────────────────── always the last call, exactly once,
 *      request_unref(r)                                   after a cancel as well
 *
 * Ownership: the creator keeps its reference while it reads the request. It may release it before
 * the end: set r->owner to NULL, cancel, unref. Each mail under way about a request holds a
 * reference of its own, and on_progress still reports its end, with owner NULL. */
#ifndef WORKER_ENGINE_ENGINE_H
#define WORKER_ENGINE_ENGINE_H

#include "common/base/base.h"
#include "common/base/list.h"
#include "common/base/status.h"
#include "kernels/backend.h"
#include "worker/engine/tiers/lower.h"
#include "worker/kv/kv_manager.h"
#include "worker/sched/request.h"
#include "worker/sched/scheduler.h"

struct engine;
struct log;
struct loop;
struct metric;
struct model;

/* All on the creator's loop. They may submit, cancel and unref. */
struct engine_callbacks {
    void (*on_progress)(void *arg, struct request *r, const struct request_progress *progress);
    void (*on_drained)(void *arg);                         /* may be NULL */
    void (*on_failed)(void *arg, const struct error *err); /* the device is lost; may be NULL */
    void (*on_explained)(void *arg, struct request *r);    /* see engine_explain; may be NULL */
    void (*on_kv_events)(void *arg); /* kv.events has new batches; may be NULL */
    void *arg;
};

/* Forced tokens (constrain.h) that are taken with the outcome of one step, of all its requests: one
 * costs some ten microseconds, in which no other request gets its token. Of a longer text the next
 * step samples one, and so on. */
#define ENGINE_MAX_FORCED 1024u

/* A second step is scheduled and submitted while the first one runs: the device never waits for the
 * host. A device that is the host has nothing to gain by it. */
enum engine_async { ASYNC_AUTO, /* where the device works on its own */ ASYNC_OFF, ASYNC_ON };

/* A tier below host memory, opened on the engine's thread once the pool is there. The codec's
 * config is read during the call. */
struct engine_tier_source {
    enum status (*open)(void *arg, const struct unit_codec_config *codec, struct tier **out,
                        struct error *err);
    void *arg;
};

struct engine_options {
    const struct backend_ops *backend;
    struct backend_config device;

    /* The model; engine_options_set_model fills these six from a model folder. */
    struct geometry geometry;
    uint64_t weight_bytes;
    enum status (*load)(void *arg, const struct backend_ops *ops, struct backend_device *dev,
                        const struct geometry *g, const struct backend_limits *limits,
                        struct backend_model **out, struct error *err);
    /* SHA-256 of all that the weights are; called beside `load`, by a thread of its own. NULL:
     * unknown, and no tier below host memory. */
    enum status (*digest_weights)(void *arg, uint8_t out[32], struct error *err);
    void *load_arg, *digest_arg;

    enum engine_async async;
    bool is_deterministic;  /* see struct backend_limits */
    uint32_t max_model_len; /* 0: the geometry's max_context */
    uint32_t block_size;
    uint32_t max_logprobs; /* most alternatives per token of a request */
    uint32_t max_waiting;  /* requests accepted and not yet running, before ST_BUSY */
    uint32_t mask_threads; /* for masks of grammars, the engine's own counted; 0: chosen */

    /* Number of KV blocks: the first of these that is not zero decides. */
    uint32_t n_blocks;
    uint64_t kv_bytes;
    double memory_fraction; /* for engine_memory_budget, weights included */
    uint64_t host_kv_bytes; /* host memory for evicted and swapped blocks; 0: none */
    uint64_t hold_bytes;    /* of the last place that has KV, for what clients hold; 0: a quarter */
    bool restores_always;   /* whatever is quicker: for tests, whose machines are busy */

    /* Below it, the nearest first. They need host_kv_bytes, prefix caching, a model whose layers
     * all keep their KV, and a backend whose host blocks have an address. */
    struct engine_tier_source tiers[LOWER_TIERS_MAX];
    uint32_t n_tiers;
    const uint8_t (*fleet_key)[32]; /* encrypts what they keep, and names it; read by
                                     * engine_create. NULL: plain */
    struct peer_server *peers;      /* serves their blocks to other workers; started and stopped by
                                     * the engine. NULL: none. Needs a tier */
    bool shares_host_pool;          /* with peers: other processes of this user may map it, to read
                                     * (tiers/peer/shared_pool.h). Not where the backend has its own
                                     * host memory */
    uint64_t tier_wait_us;          /* with restores_always: how long a request waits for a tier */

    struct kv_manager_config kv;        /* the engine fills in n_blocks, n_host_blocks, block_size,
                                  * max_model_len. kv.events must outlive it */
    struct scheduler_options scheduler; /* the engine fills in max_model_len and async */

    struct log *log;                        /* NULL: silent */
    uint64_t log_interval_us;               /* between two lines while active; 0: none */
    struct metric *step_tokens;             /* histogram of the tokens of a step, or NULL */
    struct metric *step_host, *step_device; /* histograms of the seconds that a step took of the
                                             * engine's thread, and of the device; or NULL */
    struct metric *mask_seconds; /* histogram of the seconds of a new mask of a grammar, or NULL */
    struct metric *token_gap;    /* of the seconds between two tokens of a request; the engine's own
                                 * part, or NULL */
    struct engine_callbacks callbacks;
};
extern const struct engine_options engine_options_default;

/* Takes geometry, eos ids, weights and their loader from a model, which must outlive the engine. */
void engine_options_set_model(struct engine_options *o, const struct model *m);

/* Would the device take the model of these options? The sentence of the backend's own check, memory
 * apart; ST_OK where it has none. Opens nothing. */
MUST_USE enum status engine_check_model(const struct engine_options *o, struct error *err);

/* Bytes for all that an engine keeps at a device: of a device's own memory `fraction` of the whole,
 * less what is taken of it; of the host's memory `fraction` of what is free. */
uint64_t engine_memory_budget(const struct backend_info *info, double fraction);

/* What was decided at creation; constant. */
struct engine_info {
    struct backend_info device;
    const char *backend;           /* "cpu" */
    uint32_t n_blocks;             /* usable ones: the null block not counted */
    uint32_t n_host_blocks;        /* for swapping and caching together */
    uint32_t n_cached_host_blocks; /* where evicted blocks can be found again: all, or none */
    uint32_t n_slots;              /* steps in flight, at most */
    uint32_t n_ranks;              /* devices over which the model is divided */
    bool is_deterministic;
    uint32_t block_size, max_model_len;
    enum dtype weight_dtype, kv_dtype;
    uint64_t block_bytes, weight_bytes;
    struct request_limits limits; /* for request_create */
    uint32_t max_waiting;
    enum scheduler_policy policy;
    bool is_by_priority;                       /* request_params.priority counts */
    uint32_t chunk_tokens;                     /* most of a step */
    double itl_target_s;                       /* 0: none */
    uint64_t generation;                       /* differs after each restart */
    uint8_t kv_fingerprint[UNIT_DIGEST_BYTES]; /* of what KV depends on, with tiers; else zeros */
};

/* Opens the device, loads the model, allocates the pool and starts the thread. Blocks until ready:
 * as long as the weights take. ST_NOMEM names weights, KV and memory in figures and the longest
 * max_model_len that would fit. `loop` is the creator's: callbacks come there. */
MUST_USE enum status engine_create(struct engine **out, const struct engine_options *options,
                                   struct loop *loop, struct error *err);

/* Joins the thread and frees all, before the loop is destroyed. Unfinished requests are dropped
 * without on_progress; the creator keeps its references. Resets under way fail, and their callbacks
 * run before this returns. Not from a callback. NULL is fine. */
void engine_destroy(struct engine *e);

const struct engine_info *engine_info(const struct engine *e);

/* For requests to come. The creator's thread. */
void engine_set_max_waiting(struct engine *e, uint32_t max_waiting);

/* Hands a request to the engine. ST_BUSY when max_waiting are waiting, ST_UNAVAILABLE while
 * draining or after the device failed, ST_TOO_LARGE when the pool could never hold it; then the
 * engine has not touched it. */
MUST_USE enum status engine_submit(struct engine *e, struct request *r, struct error *err);

/* Ends a submitted request early; a last on_progress follows. Harmless when it has ended already.
 * */
void engine_cancel(struct engine *e, struct request *r);

/* The same when the creator found the end itself, a stop string: it counts as stopped. */
void engine_complete(struct engine *e, struct request *r);

/* Accepts nothing more; on_drained once the last request has ended, and tiers below host memory
 * have what would be lost with the process (lower_drain). */
void engine_drain(struct engine *e);

/* Forgets the prefix cache, between two steps. Until `on_done` the struct is the engine's. */
struct engine_reset {
    bool reset_running; /* preempt what is running first; else blocks in use make it fail */
    bool is_ok;         /* the outcome */
    void (*on_done)(struct engine_reset *reset); /* on the creator's loop */
    struct request_mail mail;
};
void engine_reset_prefix_cache(struct engine *e, struct engine_reset *reset);

/* Works out why the prompt of a request that is not submitted would find no more of it cached, at
 * this moment. Nothing is computed or kept. on_explained follows, in any case, with the answer in
 * r->explanation; until then the request is the engine's and may only be let go (owner NULL). */
void engine_explain(struct engine *e, struct request *r);

/* Writes all that is cached into the event log again (kv_manager_report_all); only with kv.events.
 * Until `on_done` the struct is the engine's. */
struct engine_snapshot {
    uint64_t next; /* sequence of the first batch behind it; 0: the engine is gone */
    void (*on_done)(struct engine_snapshot *s); /* on the creator's loop */
    struct request_mail mail;
};
void engine_snapshot_kv(struct engine *e, struct engine_snapshot *s);

/* Prefixes that clients hold (kv_manager.h). One call makes a hold, of a request whose prompt has
 * been computed; or releases one; or lists all. Until `on_done` the struct is the engine's. */
enum engine_hold_op { ENGINE_HOLD, ENGINE_RELEASE, ENGINE_LIST };
struct engine_hold {
    struct kv_hold ask;
    uint64_t n_tokens, n_bytes; /* of its blocks, shared ones too */
    bool is_here;               /* they are in the place of holds, else in the tier below alone */
    uint64_t n_below_bytes;     /* of these, what the tier below has */
    double left_s, value;       /* until it expires unless it is used; see block_holds_value */
    uint64_t n_hits, saved_tokens;
    double saved_s; /* to compute these, at the speed of now */
    double byte_s;  /* held since it was made, times seconds */
};
struct engine_holds {
    struct block_holds_stats table;
    uint64_t n_bytes, max_bytes;               /* of distinct blocks */
    const char *below;                         /* the tier that holds too; NULL: none does */
    uint64_t n_below_blocks, max_below_blocks; /* distinct ones that are there */
    double byte_s;
    uint64_t saved_tokens;
    double saved_s;
    bool is_on_host; /* else on the device */
};
struct engine_hold_call {
    enum engine_hold_op op;
    struct request
        *request;      /* ENGINE_HOLD: ended, with a token of output; the caller's reference */
    uint32_t n_tokens; /* of its prompt */
    struct engine_hold hold;   /* in: ask; ENGINE_RELEASE reads id and owner. Out: the hold */
    struct engine_hold *holds; /* ENGINE_LIST: room for BLOCK_HOLDS_MAX */
    uint32_t n_holds;
    struct engine_holds totals; /* ENGINE_LIST */
    enum status status; /* ST_UNAVAILABLE: the engine is gone. ENGINE_RELEASE: ST_NOT_FOUND */
    struct error err;
    void (*on_done)(struct engine_hold_call *call); /* on the creator's loop */
    struct request_mail mail;
};
void engine_call_hold(struct engine *e, struct engine_hold_call *call);

/* A copy as of the last step. Any thread. */
struct engine_stats {
    /* now; with is_draining the numbers of x-incipit-load */
    uint32_t running, waiting, swapped; /* the swapped are among the waiting */
    uint64_t queued_tokens;
    uint32_t kv_free, kv_total; /* blocks; cached, unused ones count as free */
    double kv_waste;            /* share of the slots in use that hold no token */
    uint32_t flights;           /* steps at the device, or on their way there */
    bool is_draining, is_failed;
    /* since the start */
    uint64_t steps;
    uint64_t prompt_tokens;  /* of requests admitted, cached ones included */
    uint64_t cached_tokens;  /* of these, found in the cache */
    uint64_t prefill_tokens; /* computed tokens of prompts, recomputation included */
    double prefill_rate;     /* tokens/s at short context: estimated, then measured */
    double restore_rate;     /* tokens/s from host memory, measured where the calls that move blocks
                              * wait for them; 0: unknown */
    uint64_t generated_tokens;
    uint64_t preemptions, swap_outs; /* swap_outs: of these, with the KV kept in host memory */
    uint64_t masks_new, masks_known; /* of grammars: computed, found */
    uint64_t forced_tokens; /* of those generated, that could be no others and were not sampled */
    uint64_t forks;         /* sequences that took up another one's blocks */
    uint64_t prefix_queries, prefix_hits;        /* tokens, at admission */
    double prefix_hit_rate;                      /* of the last thousand requests */
    uint32_t host_total, host_held, host_cached; /* blocks of host memory: all, in use, findable */
    uint64_t host_queries, host_hits;            /* tokens looked for behind the device's hits */
    uint64_t moved_out, moved_in;                /* blocks, to and from host memory */
    uint64_t misses[KV_MISS_COUNT];              /* first admissions, by why they found no more */
    struct block_retain_stats retained;          /* blocks that clients asked to keep */
    struct engine_holds holds;                   /* prefixes that they hold */
    struct lower_stats tiers[LOWER_TIERS_MAX];   /* n_tiers */
    uint32_t n_tiers;
    uint64_t finished[FINISH_ERROR + 1];
};
void engine_stats(struct engine *e, struct engine_stats *out);

#endif
