/* worker/sched/scheduler.h - which requests run in a step, and with how many tokens.
 *
 * There is no prefill phase and no decode phase. A request has n_computed of its n_tokens in the
 * KV pool, and each step hands out at most `max_num_batched_tokens` tokens to catch up: one to a
 * request that is generating, a chunk to one whose prompt is still being read. Running requests
 * come first, in order of admission; then the waiting ones, in order of arrival. Nothing overtakes
 * a request that does not fit. POLICY_SRPT has another order: all that decode, then the prompts
 * that lack least (by_remaining.c).
 *
 *                 add                admit: blocks found          stop, length
 *      (new) ───────────▶ waiting ───────────────────▶ running ─────────────────▶ done
 *                          ▲                            │  ▲
 *                          ├────────────────────────────┤  │ swap in, before any new request
 *                          │  preempt: no block left;   ▼  │
 *                          │  recompute               swapped: its KV waits in host memory
 *                     the latest arrival gives up its blocks. What is recomputed stays cached,
 *                     so it usually finds its own again.
 *
 * n_computed advances when a step is scheduled, not when it has run, so that a second step may be
 * scheduled while the first one runs. A request that awaits its sampled token is skipped; with
 * `async`, its next step refers to the token by its output (schedule_entry.is_ahead).
 * scheduler_take returns every output, also for requests that were preempted or have ended
 * meanwhile.
 *
 * Samples of one prompt (request_set_parent) wait until the first has computed the prompt, then
 * share its blocks, the partial last one too, and compute only the last token of the prompt in a
 * copy. The beams of a search (beam_group.h) fork at every step. Both are forks: no token is
 * computed twice.
 *
 * A pure state machine: time is an argument, nothing waits, nothing allocates after creation but,
 * under POLICY_SRPT, what arrives.
 * Thread: engine. Follows: Yu et al., Orca, OSDI 2022; Agrawal et al., Sarathi-Serve, OSDI 2024;
 * vLLM's scheduler for every order and tie.
 *
 * LIMITS: one sampled token per request and step, and those that are forced behind it
 * (scheduler_append); beams are never computed ahead. */
#ifndef WORKER_SCHED_SCHEDULER_H
#define WORKER_SCHED_SCHEDULER_H

#include "common/base/base.h"
#include "common/base/status.h"
#include "worker/kv/kv_manager.h"
#include "worker/sched/connector.h"
#include "worker/sched/pace.h"
#include "worker/sched/request.h"

enum scheduler_policy {
    POLICY_FCFS,     /* order of arrival; the latest admitted is preempted first */
    POLICY_PRIORITY, /* smaller params.priority first, then arrival; the reverse for preemption */
    POLICY_SRPT,     /* smaller params.priority first, then the least prefill (by_remaining.c) */
};
const char *scheduler_policy_name(enum scheduler_policy policy); /* "fcfs", as options name it */

#define SCHEDULER_PREFILLS_MAX                                                                     \
    8u /* in progress under POLICY_SRPT: those that are passed hold blocks */
#define SCHEDULER_CHUNK_MIN 128u /* prompt tokens of a step that an ITL target leaves */

/* What happens to the KV of a preempted request. */
enum preemption_mode {
    PREEMPT_RECOMPUTE, /* it is given up, and found in the cache or computed again */
    PREEMPT_SWAP,      /* it is swapped to host memory; dropped when there is no room */
    PREEMPT_AUTO, /* forked sequences swap, whose blocks are not all in the cache; others not */
};

struct scheduler_options {
    uint32_t max_num_seqs;           /* running at once; also the number of rows */
    uint32_t max_num_batched_tokens; /* budget of one step, >= max_num_seqs */
    uint32_t max_model_len;
    uint32_t max_outputs; /* positions with an output in one step, > max_num_seqs; 0: 64 above */
    uint32_t long_prefill_token_threshold; /* most prompt tokens of one request in a step; 0: any */
    bool chunked_prefill;                  /* a prompt may be split between steps */
    bool full_sequence_must_fit;           /* admit only when the whole prompt finds blocks */
    enum scheduler_policy policy;
    enum preemption_mode preemption;
    double prefill_tokens_per_s, attn_context; /* declared by the device, see pace.h; 0: unknown */
    double itl_target_s;                       /* that steps with decoding rows keep to; 0: none */
    bool async;                        /* compute behind a token that is still being sampled */
    const struct connector *connector; /* another store of KV; NULL: none. Outlives the scheduler */
    const uint32_t *eos_ids;           /* (n_eos), copied */
    uint32_t n_eos;
};
#define SCHEDULER_OPTIONS_DEFAULT                                                                  \
    {                                                                                              \
        .max_num_seqs = 128, .max_num_batched_tokens = 2048, .chunked_prefill = true,              \
        .full_sequence_must_fit = true                                                             \
    }
extern const struct scheduler_options scheduler_options_default;

/* One request's part of a step: tokens [first, first + n_tokens) of the request. */
struct schedule_entry {
    struct request *request;
    uint32_t first, n_tokens;
    uint32_t score_first, n_scores; /* positions whose next token, of the prompt, is scored */
    bool is_sampled;                /* the last position gives the next token */
    bool is_ahead;                  /* its one token is the sampled one of the step before */
};

struct schedule {
    struct schedule_entry *entry; /* (max_num_seqs) in order of scheduling */
    uint32_t n_entries, n_tokens, n_outputs;
    uint32_t prefill_tokens; /* of n_tokens, tokens of prompts */
    uint32_t n_decoding;     /* entries of one token, or of tokens that were forced */
    double work;             /* of entries of more than one token, see pace.h */
    uint32_t n_preempted;
    uint32_t n_admitted, n_resumed;     /* into running; those of them that had run before */
    uint32_t n_started;                 /* requests of clients among them, for the first time */
    uint32_t n_forked;                  /* admitted by a fork */
    uint32_t new_tokens, cached_tokens; /* of the admitted: to compute in this step, and found */
    uint64_t prompt_tokens, cached_prompt_tokens; /* of those that run for the first time */
};

struct scheduler_counts {
    uint32_t running, waiting, swapped; /* the swapped are among the waiting */
    uint64_t queued_tokens;             /* to compute before every request has its next token */
    uint64_t in_flight;                 /* entries whose outcome has not come */
    /* since creation */
    uint64_t preemptions, swap_outs; /* swap_outs: of them, with the KV kept */
    uint64_t forks;
    struct kv_counts external; /* admissions that queried the connector; tokens queried, found */
};

struct scheduler;

/* ST_INVALID names the option at fault. */
MUST_USE enum status scheduler_check_options(const struct scheduler_options *o, struct error *err);
uint32_t scheduler_max_outputs(const struct scheduler_options *o); /* the choice made for 0 */

/* Checks the options. `kv` stays the caller's and must outlive the scheduler. */
MUST_USE enum status scheduler_create(struct scheduler **out,
                                      const struct scheduler_options *options,
                                      struct kv_manager *kv, struct error *err);
void scheduler_destroy(struct scheduler *s); /* NULL is fine; nothing may be waiting or running */

/* An empty schedule with room for every request, for scheduler_step. */
void schedule_init(struct schedule *sched, const struct scheduler *s);
void schedule_fini(struct schedule *sched);

/* Inserts a new request into the waiting list. The request must fit alone into the pool: n_max
 * tokens, else ST_TOO_LARGE with what would fit. */
MUST_USE enum status scheduler_add(struct scheduler *s, struct request *r, struct error *err);

/* Fills `sched` with the next step; n_entries 0 when nothing can run. */
void scheduler_step(struct scheduler *s, struct schedule *sched, uint64_t now_us);

/* The step has taken so long at the device: steps to come are predicted from it. */
void scheduler_learn(struct scheduler *s, const struct schedule *sched, double seconds);
double scheduler_prefill_rate(const struct scheduler *s); /* tokens/s at short context */

/* Tokens per second from host memory, as measured. What takes longer to bring back than to compute
 * is computed, except in one admission of SCHEDULER_RESTORE_TRIALS, which measures again. 0:
 * unknown, all is brought back. */
#define SCHEDULER_RESTORE_TRIALS 64u
void scheduler_set_restore_rate(struct scheduler *s, double tokens_per_s);

/* The outcome of entry `e`, one for each: the chosen token, ignored unless is_sampled. Appends it,
 * checks for the end. True when the request has ended and is off every list, its blocks free.
 * Requests that ended before (cancelled in flight) are left alone: false. */
bool scheduler_take(struct scheduler *s, const struct schedule_entry *e, uint32_t token,
                    uint64_t now_us);

/* A token that is forced, behind the sampled one that was just taken: the next step computes it
 * with the others that lack. True when the request has ended. */
bool scheduler_append(struct scheduler *s, struct request *r, uint32_t token, uint64_t now_us);

/* The outcome of a beam's entry (request_is_beam): the likeliest tokens and their logprobs, best
 * first, -1 past the end; group->n_alternatives of them. NULL when !is_sampled. */
void scheduler_take_beam(struct scheduler *s, const struct schedule_entry *e, const int32_t *token,
                         const float *logprob, uint64_t now_us);

/* The next answer of a search that has come to its end, or failed, since the last call; or NULL.
 * Call it after the outputs of a step, and after scheduler_end of a beam. */
struct request *scheduler_pop_ended(struct scheduler *s);

/* The connector's asynchronous load for a waiting request is over: n_tokens of what it promised are
 * there. Harmless when the request has ended. */
void scheduler_remote_arrived(struct scheduler *s, struct request *r, uint32_t n_tokens);

/* What r awaited of the connector is in host memory, or will not come in time: r is looked up again
 * when its turn comes. Harmless when it awaits nothing. */
void scheduler_wake(struct scheduler *s, struct request *r);
/* How many waiting requests await the connector. While they are all there is, scheduler_step finds
 * nothing to run. */
uint32_t scheduler_n_awaiting(const struct scheduler *s);
/* Seconds that the device takes for the prompt tokens [first, last), as far as is known. */
double scheduler_prefill_s(const struct scheduler *s, uint32_t first, uint32_t last);

/* Ends a request wherever it is; its blocks are free on return. Nothing happens if it is done. For
 * a beam: ends its search and all answers of it. */
void scheduler_end(struct scheduler *s, struct request *r, enum finish_reason reason,
                   uint64_t now_us);

/* Forgets every cached block. With `reset_running` all running requests go back to waiting first,
 * in order. ST_BUSY, and nothing forgotten, while blocks are in use. */
MUST_USE enum status scheduler_reset_prefix_cache(struct scheduler *s, bool reset_running);

/* Is there anything to schedule? Not for a search whose last answer has yet to be added. */
bool scheduler_has_work(const struct scheduler *s);

/* Any request of a client, or NULL when none is unfinished: to end them all one by one. */
struct request *scheduler_any(const struct scheduler *s);
/* Position `i` of the running or the waiting list, or NULL. For tests and inspection. */
struct request *scheduler_running_at(const struct scheduler *s, uint32_t i);
struct request *scheduler_waiting_at(const struct scheduler *s, uint32_t i);

struct scheduler_counts scheduler_counts(const struct scheduler *s);

void scheduler_check(const struct scheduler *s); /* asserts every invariant; for tests */

#endif
