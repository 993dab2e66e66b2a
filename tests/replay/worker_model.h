/* tests/replay/worker_model.h - one worker of a modelled fleet: the worker's own KV manager under a
 * batching loop in virtual time.
 *
 *     worker_model_add ──▶ queue ──▶ admitted ──▶ prefilling ──▶ running ──▶ ended
 *                                    blocks for    chunks,        a token
 *                                    all of it     in order       a step
 *
 * A step computes WORKER_CHUNK tokens: every running sequence takes one, prompts the rest. It lasts
 *
 *     6 ms + 20 us per sequence + 27 ns per token of context + 50 us per prompt token x (1 + c/30k)
 *
 * at context c, about an 8B model on one H200, and `slow` times as long on a slower one. A request
 * is admitted when its blocks, output included, are free; so none is preempted.
 *
 * Which prompt the next tokens are of:
 *
 *     fcfs    first come, first served: one prompt in progress at a time
 *     srpt    the shortest remaining prefill less aging x the time since it came here, of prompts
 *             in progress and of queued ones. What is cached of a queued prompt is looked up again
 *             while it waits. At most WORKER_PREFILLS_MAX are in progress, so that what is passed
 *             by does not fill the memory
 *
 * With itl_s the prompts' share of a step is cut so that the step takes no longer, but not below
 * WORKER_CHUNK_MIN. With host memory a hit there is restored in the step that admits the request,
 * where that is quicker than computing it.
 *
 * A request may wait for blocks from another worker (ready_s): others pass it, and when it is
 * admitted these blocks are as if computed, in no time.
 *
 * The KV manager (worker/kv) has the cache: its prefix lookup, its order of eviction, its
 * publishing of blocks. It is given a block of the workload as one token and keeps blocks of one
 * token, which changes the unit and nothing else. Blocks of an output stay cached when a request
 * ends, and no later prompt names them.
 *
 * LIMITS: engine_replay.h has the real scheduler too, token by token, for one worker; it is ten
 * times slower. */
#ifndef TESTS_REPLAY_WORKER_MODEL_H
#define TESTS_REPLAY_WORKER_MODEL_H

#include "common/base/heap.h"
#include "common/base/list.h"
#include "common/base/map.h"
#include "router/routing/load.h"
#include "tests/replay/workload/workload.h"
#include "worker/kv/kv_manager.h"

#define WORKER_CHUNK        2048    /* tokens of a step */
#define WORKER_CHUNK_MIN    128     /* prompt tokens of a step at least, whatever itl_s is */
#define WORKER_PREFILLS_MAX 8       /* prompts in progress */
#define WORKER_SEQS_MAX     256     /* running at once */
#define WORKER_STEP_S       6e-3    /* each step */
#define WORKER_SEQ_S        20e-6   /* each running sequence in it */
#define WORKER_CONTEXT_S    27e-9   /* each token of their context */
#define WORKER_PREFILL_S    50e-6   /* each prompt token at the beginning of a context */
#define WORKER_ATTN_CONTEXT 30000.0 /* context at which a prompt token takes twice that */

/* Seconds of prefill for prompt tokens [first, last). */
static inline double worker_prefill_s(double first, double last) {
    return WORKER_PREFILL_S *
           (last - first + (last * last - first * first) / (2 * WORKER_ATTN_CONTEXT));
}

struct worker_options {
    uint32_t cache_tokens, block_tokens;
    enum worker_order order;
    double aging;                /* of srpt: seconds of prefill by second waited */
    double slow;                 /* each step takes so many times as long; 0: once */
    double itl_s;                /* of a step; 0: no target */
    uint32_t host_tokens;        /* of host memory, where evicted blocks go; 0: none */
    double restore_tokens_per_s; /* from there; 0: in no time */
    enum free_order eviction;
};

/* A request on its way; the fleet's, and zeroed before model_request_init. */
struct model_request {
    struct list queue; /* linked while it waits */
    const struct workload_request *in;
    uint32_t number;
    struct kv_seq seq;
    uint32_t *tokens;            /* (n_units) what the KV manager takes for tokens: one per block */
    uint32_t n_units, n_prompt;  /* blocks, the last partly filled one included; of the prompt */
    uint32_t worker;             /* where it was sent */
    uint32_t cached, done, left; /* tokens: found, of the prompt computed, of the output to come */
    uint32_t restored;           /* of the found ones, from host memory, */
    uint32_t fetched;            /* and from another worker */
    uint32_t fetch_to;           /* tokens of the prompt that are there, */
    double ready_s;              /* from then on; until then it is passed over */
    double arrival_s, added_s;   /* when it came, and when it came to this worker */
    double first_s, end_s;       /* when its first token was there, and its last */
    double held_s;               /* waited in a router */
    double by_s;                 /* its first token is due; 0: no deadline */
    uint32_t n_refused;          /* for that, so many times */
    bool is_refused;             /* the last time; it has no first token */
    bool is_lost;                /* its worker crashed after the first */
    struct heap_link later;      /* of a closed loop: until it comes */
};

struct worker_model {
    struct worker_options options;
    struct kv_manager *kv;
    uint32_t block_tokens;
    struct list queue;
    struct model_request *prefilling[WORKER_PREFILLS_MAX]; /* admitted, not in full in this step */
    struct model_request *completing[WORKER_CHUNK];        /* prompts that this step completes */
    struct model_request *running[WORKER_SEQS_MAX];
    uint32_t n_queued, n_prefilling, n_completing, n_running;
    uint32_t n_steps;      /* so far */
    double restore_s;      /* of what was admitted into this step */
    double context_tokens; /* of the running ones */
    double step_end_s;  /* INFINITY: idle; of an empty step: when the first waiting one is ready */
    struct map pending; /* names of prompt blocks of requests here -> how many requests */
    double busy_s, prefill_tokens;
    uint32_t n_requests; /* so far */
};

/* Called at the end of a step; on_back, when its worker has crashed, of each that had no token yet:
 * it may be initialised again. */
struct worker_model_events {
    void (*on_first_token)(void *ctx, struct model_request *q);
    void (*on_ended)(void *ctx, struct model_request *q);
    void (*on_back)(void *ctx, struct model_request *q);
    void *ctx;
};

void worker_model_init(struct worker_model *w, const struct worker_options *options);
void worker_model_fini(struct worker_model *w); /* asserts that it is idle and holds no block */

/* Everything here ends, the cache too; then it is as new. */
void worker_model_crash(struct worker_model *w, const struct worker_model_events *events,
                        double now_s);

/* `any`: one of the workers it may be sent to; all are alike. `number`: no other request has it. */
void model_request_init(struct model_request *q, const struct workload_request *in, uint32_t number,
                        const struct worker_model *any);

void model_request_fini(struct model_request *q); /* of one that no worker has got */

/* q's fetch_to and ready_s may be set before. */
void worker_model_add(struct worker_model *w, struct model_request *q, double now_s);

/* Ends the step that is due and begins the next. */
void worker_model_step(struct worker_model *w, const struct worker_model_events *events,
                       double now_s);

/* --- what an oracle sees */

/* Leading blocks of the prompt that are cached; and that are or will be, when what is here has been
 * computed. */
uint32_t worker_model_cached(struct worker_model *w, struct model_request *q);
uint32_t worker_model_found(struct worker_model *w, struct model_request *q);
/* Seconds until all that is here has been prefilled and n_blocks more are free. */
double worker_model_wait_s(struct worker_model *w, uint32_t n_blocks, double now_s);
double worker_model_slowdown(const struct worker_model *w); /* of prefill, by what is running */
uint32_t worker_model_n_live(const struct worker_model *w); /* requests here */
uint32_t worker_model_n_used(const struct worker_model *w); /* blocks in use */

/* Asserts what holds between steps: among others, that every block is free or in use. */
void worker_model_check(const struct worker_model *w);

#endif
