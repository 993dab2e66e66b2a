/* worker/sched/request.h - one sequence: the client's parameters and its progress.
 *
 * All memory a request will ever need is taken when it is created: the tokens of prompt and output
 * up to the longest answer it may have, their logprobs, its block table. So the token path
 * allocates nothing, no array moves, and a reader in another thread may keep pointers into them.
 *
 *      tokens   | prompt ................ | output .......... | room up to max_tokens |
 *               0                      n_prompt            n_tokens             n_max
 *               |<--- n_computed: K and V are in the pool --->|
 *
 * Two threads use a request. Each field has one writer:
 *
 *      creator (the worker loop)   the parameters, before engine_submit; never changed afterwards
 *      engine                      everything under "engine's own" and "the answer"
 *
 * The answer is read by the creator without a lock: the engine fills tokens and logprobs, then
 * publishes their number (request_publish); the creator calls request_take_progress and reads below
 * that number. A request dies with its last reference: the creator holds one, the engine one while
 * it works on it, and each of its messages one while it is under way. A request has one state at a
 * time (enum request_state), which the scheduler alone changes.
 *
 * LIMITS: at most REQUEST_BIAS_MAX biased tokens, REQUEST_STOP_IDS_MAX stop ids, 20 logprobs. */
#ifndef WORKER_SCHED_REQUEST_H
#define WORKER_SCHED_REQUEST_H

#include <stdatomic.h>

#include "common/base/base.h"
#include "common/base/list.h"
#include "common/base/status.h"
#include "common/net/mailbox.h"
#include "worker/grammar/grammar.h"
#include "worker/kv/kv_manager.h"
#include "worker/kv/tiers/tier_source.h"
#include "worker/sched/fair_order.h"
#include "worker/sched/thinking.h"

#define REQUEST_LOGPROBS_MAX  20u /* what the chat API permits */
#define REQUEST_STOP_IDS_MAX  64u
#define REQUEST_BIAS_MAX      300u  /* what the public APIs permit for logit_bias */
#define REQUEST_SALT_MAX      1024u /* bytes of cache_salt */
#define REQUEST_BAD_WORDS_MAX 1024u /* entries of bad_words */
#define REQUEST_NO_ROW        UINT32_MAX
#define REQUEST_NO_TOKEN      UINT32_MAX

struct token_bias {
    uint32_t token;
    float bias;
};

/* The client's parameters. Start from request_params_default. */
struct request_params {
    const uint32_t *prompt; /* (n_prompt), at least one; copied, like all arrays here */
    uint32_t n_prompt;
    uint32_t max_tokens; /* of output; 0: as many as the model's length leaves room for */
    uint32_t min_tokens; /* before these, EOS and stop ids are neither sampled nor obeyed */
    float temperature;   /* 0: greedy */
    float top_p, min_p;  /* 1 and 0: all tokens */
    uint32_t top_k;      /* 0: all tokens */
    float repetition_penalty, frequency_penalty, presence_penalty; /* 1, 0, 0: none */
    uint64_t seed;      /* equal seed, equal answer; the caller draws one when none was given */
    int32_t n_logprobs; /* -1: none; 0: of the chosen token; n: and of the n likeliest */
    int32_t prompt_logprobs; /* the same for each prompt token; turns reading of the cache off */
    const struct token_bias *bias;
    uint32_t n_bias;
    const uint32_t *allowed; /* (ceil(vocab / 32)) a bit for each token that may come; NULL: all */
    /* Runs of tokens that must not come: a run's length, then its ids. The last is banned where the
     * output ends with the others. */
    const uint32_t *bad_words; /* (n_bad_words) */
    uint32_t n_bad_words;
    const uint32_t *stop_ids;
    uint32_t n_stop_ids;
    bool ignore_eos;
    int32_t priority;       /* smaller runs first, under the policies priority and srpt */
    uint64_t tenant;        /* who shares the device fairly with others, under srpt; 0: no one's */
    const char *cache_salt; /* requests share cached blocks only with equals; "" or NULL: none */
    size_t cache_salt_len;
    const char *lora_name;          /* NULL: the base model */
    struct grammar *grammar;        /* of the answer, a reference is taken; NULL: any answer */
    struct thinking_limit thinking; /* zero: none */
    struct kv_retain retain[KV_RETAIN_MAX]; /* (n_retain) what of the prompt to keep cached */
    uint32_t n_retain;
    uint32_t prefix_tokens; /* of the prompt, that others share: what is behind is not written to
                             * tiers below host memory; 0: unknown */
    bool is_for_cache;      /* its prompt alone: what it hits is no use of a hold */
    bool explains_cache;    /* fill in `explanation` when it is admitted */
    struct tier_source kv_source; /* who has KV of the prompt, for the tier that asks it */
};
extern const struct request_params request_params_default; /* temperature 1, 16 tokens */

/* What the model and the engine permit; engine_info() has it. */
struct request_limits {
    uint32_t vocab, max_model_len, max_logprobs;
    uint32_t max_beam_candidates; /* alternatives that the device gives for a beam search */
    uint32_t max_num_seqs, n_eos;
    const struct kv_manager *kv; /* for the size of the block table; read at creation only */
};

enum finish_reason {
    FINISH_NONE,   /* still running */
    FINISH_STOP,   /* EOS, a stop id (stop_token has it), or the end of a grammar (is_complete) */
    FINISH_LENGTH, /* max_tokens or the model's length */
    FINISH_ABORT,  /* cancelled */
    FINISH_ERROR,  /* the device failed or gave numbers that are not finite */
};
const char *finish_reason_name(enum finish_reason reason); /* "stop", as clients read it */

enum request_state {
    REQUEST_NEW,
    REQUEST_WAITING,
    REQUEST_RUNNING,
    REQUEST_SWAPPED,   /* its KV waits in host memory */
    REQUEST_SEARCHING, /* an answer of a beam search, which other requests compute */
    REQUEST_DONE,
};

/* KV that another store has; see connector.h. */
enum request_remote { REMOTE_NONE, REMOTE_LOADING, REMOTE_HERE, REMOTE_AWAITED };

/* A message about a request; the engine defines the kinds. */
struct request_mail {
    struct mail mail;
    uint32_t kind;
};

struct request {
    /* The creator's: constant once submitted. Arrays of params point into this request. */
    struct request_params params;
    uint32_t n_prompt, n_max; /* n_max: most tokens, prompt and output together */
    void *owner;              /* for the creator: its own object, or NULL. Engine never looks */
    struct beam_group *group; /* of a beam search, see beam_group.h; NULL: no part of one */

    /* The engine's own. */
    struct list link; /* in the list of its state */
    enum request_state state;
    enum request_remote remote;
    bool is_forked;   /* shares blocks by a fork, or did */
    bool has_offered; /* a beam whose output has come, those of its search not all */
    bool is_child;    /* one of several samples of a prompt, not the first */
    struct request
        *fork_of;      /* admit by a fork of this one; a reference, NULL: no longer, or never */
    uint32_t n_fork;   /* tokens to share */
    uint32_t n_remote; /* tokens that the other store has promised */
    struct list remote_link;     /* the connector's, while the request awaits it */
    uint64_t remote_deadline_us; /* when it waits no longer; 0: it has not awaited anything yet */
    uint32_t remote_from;        /* blocks that it had when it last began to wait */
    bool is_remote_over;         /* nothing more is awaited */
    uint32_t n_seen_restored;    /* blocks of it that had come when it began to */
    uint64_t awaits_since_us;    /* what it awaits now */
    uint32_t beam;               /* number in its search, or BEAM_ANSWER */
    struct grammar_matcher matcher; /* where the output stands in the grammar */
    struct thinking thinking;       /* where it stands in its reasoning, if that is limited */
    struct kv_seq kv;               /* block table and hash chain */
    struct block_extras extras;     /* what the hashes depend on besides tokens */
    uint32_t n_tokens;              /* prompt and output so far */
    uint32_t n_computed;            /* of these, scheduled or found in the cache */
    uint32_t n_before;              /* n_computed before step number `step`, its last */
    uint64_t step;
    uint32_t n_scored;     /* prompt tokens whose logprob is requested already */
    uint32_t n_in_flight;  /* steps that were scheduled and not yet processed */
    uint32_t n_pending;    /* of these, with a token that is being sampled */
    uint32_t row;          /* at the backend; REQUEST_NO_ROW when not running */
    uint32_t n_admissions; /* times it entered the running list with blocks to fill */
    uint32_t n_binds;      /* times its row got other tokens than it had */
    uint32_t n_forced; /* tokens behind the sampled one that are still to compute; while running */
    uint32_t n_preemptions;
    uint64_t seq; /* order of arrival */
    struct {
        struct fair_turn turn;
        struct list link;      /* under srpt, while it waits: in fresh, seen or aside */
        bool is_aside;         /* in the last of these */
        uint32_t n_have;       /* tokens that its key takes for computed or cached */
        double length_s;       /* seconds of its prompt, nothing cached */
    } order;                   /* by_remaining.c has it */
    uint64_t n_started_before; /* requests that had started when it arrived */
    uint32_t n_ahead;          /* that waited then */
    uint32_t n_went_before;    /* that started while it waited, written when it started itself */
    uint32_t n_passed;         /* steps without a token for it, while its prompt was in progress */

    /* The answer: written by the engine, read by the creator up to what was published. */
    uint32_t *tokens; /* (n_max) prompt, then output */
    float *logprob;   /* (n_max - n_prompt) of the chosen token, and its rank from 1 */
    uint32_t *rank;
    int32_t *top_token; /* (n_max - n_prompt, n_logprobs) best first, -1 past the end */
    float *top_logprob;
    float *prompt_logprob; /* (n_prompt); entry 0 has no meaning. NULL unless requested, as above */
    uint32_t *prompt_rank;
    int32_t *prompt_top_token; /* (n_prompt, prompt_logprobs) */
    float *prompt_top_logprob;
    struct kv_explanation explanation; /* if requested: filled with the first token */
    uint32_t cached_tokens;            /* prompt tokens found in the cache at first admission */
    uint32_t host_tokens;              /* of these, brought back from host memory */
    uint32_t restored_tokens; /* of these, brought there from a tier below while it waited; */
    uint64_t restore_us;      /* for so long; both before its first admission */
    uint64_t arrival_us, scheduled_us, first_token_us, finished_us; /* clock_now_us; 0: not yet */
    uint64_t last_token_us;                                         /* the engine's */
    enum finish_reason finish;
    uint32_t stop_token; /* the stop id that ended it, or REQUEST_NO_TOKEN */
    bool is_complete;    /* nothing can follow in its grammar: the last token is text */
    float beam_score;    /* of a beam search: sum of logprobs, divided by length ^ penalty */
    struct error error;  /* why, for FINISH_ERROR */

    /* Shared. */
    atomic_uint published; /* output tokens ready * 2, + 1 when finished */
    atomic_uint refs;
    atomic_bool is_news_sent; /* and not yet received: the next step need not send again */
    struct request_mail submit_mail, cancel_mail, progress_mail;
    uint32_t n_read; /* the creator's: output tokens taken by request_take_progress */
    bool is_end_read;
    enum finish_reason cancel_reason; /* of the cancel that was sent; FINISH_NONE: none was */
};

/* Of cached_tokens, those that were there before the request: what its source has computed for it
 * alone, and this worker has brought, is no hit. */
static inline uint32_t request_hit_tokens(const struct request *r) {
    const struct tier_source *source = &r->params.kv_source;
    uint32_t own = r->cached_tokens - MIN(r->restored_tokens, r->cached_tokens);

    if (!source->n_computed) return r->cached_tokens;
    return MIN(r->cached_tokens, MAX(own, source->n_tokens - source->n_computed));
}

/* Checks the parameters against the limits and copies them. ST_INVALID names the parameter;
 * ST_NOMEM when the memory is refused. One reference, the caller's. */
MUST_USE enum status request_create(struct request **out, const struct request_params *params,
                                    const struct request_limits *limits, struct error *err);
/* Before submission: `r` and `parent`, submitted earlier, have equal prompts. When r is admitted,
 * it shares the parent's blocks if it still can. Nothing happens if the prompt's own logprobs are
 * wanted of r: they must be computed. */
void request_set_parent(struct request *r, struct request *parent);
struct request *request_ref(struct request *r);
void request_unref(struct request *r); /* NULL is fine. The last one frees: no blocks may be held */

static inline uint32_t request_n_output(const struct request *r) {
    return r->n_tokens - r->n_prompt;
}

/* The next token that would complete a bad word behind the output so far; *at is 0 before the first
 * call. False: there is none. */
bool request_next_banned(const struct request *r, uint32_t *at, uint32_t *token);

/* Does its next token depend on the one before by more than what the model computes? */
static inline bool request_is_constrained(const struct request *r) {
    return r->params.grammar != NULL || r->thinking.phase != THINKING_AFTER;
}

/* Do the tokens so far change what is likely? */
static inline bool request_is_penalised(const struct request *r) {
    return r->params.repetition_penalty != 1 || r->params.frequency_penalty != 0 ||
           r->params.presence_penalty != 0;
}

/* Are the logprobs of the prompt's tokens requested? */
static inline bool request_is_scored(const struct request *r) {
    return r->params.prompt_logprobs >= 0;
}

/* --- engine side ------------------------------------------------------------------------------ */

/* The token one position further, its logprobs in place already. */
void request_append(struct request *r, uint32_t token);

/* Gives dst the tokens of src and their logprobs. Equal parameters. */
void request_copy_output(struct request *dst, const struct request *src);

/* Forgets the parent. */
void request_drop_parent(struct request *r);

/* Does `token` end an answer with these parameters, regardless of its length? */
bool request_is_end(const struct request_params *p, const uint32_t *eos_ids, uint32_t n_eos,
                    uint32_t token);

/* Must this request end now? After each appended token, in this order: nothing before min_tokens;
 * EOS; stop ids; the length. Fills finish and stop_token. */
bool request_check_stop(struct request *r, const uint32_t *eos_ids, uint32_t n_eos);

/* Makes all tokens so far, and `finish`, visible to the creator. */
void request_publish(struct request *r);

/* --- creator's side --------------------------------------------------------------------------- */

struct request_progress {
    uint32_t first, n; /* output tokens [first, first + n) are new */
    bool is_first;     /* the first token is among them: cached_tokens and its times are there */
    bool is_finished;  /* nothing follows; finish, stop_token and error are there */
};

/* What is new since the last call. False when nothing is. */
bool request_take_progress(struct request *r, struct request_progress *out);

static inline const uint32_t *request_output(const struct request *r) {
    return r->tokens + r->n_prompt;
}

#endif
