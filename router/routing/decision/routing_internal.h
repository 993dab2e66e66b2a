/* router/routing/decision/routing_internal.h - what the files of routing.h share.
 *
 *      routing.c         workers and requests: what each event does to each part
 *      routing_look.c    what workers hold of a prompt, and what it costs by that
 *      routing_cache.c   how much of each worker's cache is in use, in blocks
 *      routing_learn.c   tokens, capacities and speeds, from answers and counters
 *      routing_pair.c    prompts that one worker computes and another decodes
 *
 * Not for others. */
#ifndef ROUTER_ROUTING_DECISION_ROUTING_INTERNAL_H
#define ROUTER_ROUTING_DECISION_ROUTING_INTERNAL_H

#include "router/routing/decision/capacity.h"
#include "router/routing/decision/speed.h"
#include "router/routing/prefix_index.h"
#include "router/routing/prefix_lru.h"
#include "router/routing/routing.h"

#define ROUTING_BLOCKS_OVERCOUNTED_MAX 16.0    /* blocks of ended requests carried as a debt */
#define ROUTING_FIRST_RATIO_TOKENS     256     /* weight of the first bytes per token, in tokens */
#define ROUTING_REFERENCE_TOKENS_PER_S 10000.0 /* the default speed of load.c */

/* What was sent to a worker, beside what the worker counts. An engine counts a request somewhat
 * before its first token arrives here, so single reports never match; sums do. */
struct report_sums {
    double n_sent, n_with_usage; /* first tokens; of those, answers with cached tokens */
    double n_first_tokens;       /* as the worker counts them */
    double n_unpredicted;        /* requests whose blocks are not all hashed */
    double predicted_tokens, predicted_cached, queried, hits;
    double fresh_n, fresh_bytes, fresh_tokens; /* since the last use; not decayed */
};

struct cache_state {
    uint32_t epoch; /* changes when the worker's cache is lost */
    struct capacity device, below;
    int64_t unrecorded_bytes;   /* prompt bytes of open requests without a record */
    double rest_bytes;          /* of ended requests: less than one block */
    struct report_sums reports; /* decayed */

    /* By routing_note_stored. */
    double stored_tokens; /* counted */
    uint64_t n_entered;   /* blocks, by prefix_lru, at that time */
    double excess_tokens; /* stored less entered; negative: entered, and not yet stored */
};

struct routing {
    struct routing_options options;
    struct load load;
    struct fetch fetch;
    struct prefix_index *index;
    struct prefix_lru *lru;
    void *policy; /* the state of options.policy */
    struct cache_state *caches;
    uint32_t *matched;    /* by worker id, for the current request; */
    uint32_t *on_device;  /* of these */
    struct speed *speeds; /* by worker id */
    uint64_t speeds_as_of_us;
    struct worker_mask candidates; /* of the last choice, like the next two */
    struct policy_view view;
    uint32_t chosen;
    struct policy_term *terms;    /* by worker id, of routing_prefers */
    double sum_bytes, sum_tokens; /* of prompts, decayed */
    double bytes_per_token;       /* sum_bytes / sum_tokens */
    double tokens_per_block;
    uint32_t n_entries_max;       /* of the index */
    struct pair_fetch pair_fetch; /* of second legs */
};

/* --- routing_look.c: the masks must outlive the views */

/* What the workers of a mask hold. `guesses`: of the request being sent, else NULL. */
struct policy_view routing_look(struct routing *r, const struct route_request *rq,
                                const struct worker_mask *mask, uint32_t *guesses);
/* The same of a request that may fetch from workers beside them. */
struct policy_view routing_look_wider(struct routing *r, const struct route_request *rq,
                                      const struct worker_mask *mask, uint32_t *guesses);
/* Prefill seconds on the candidate that has the least to compute. */
double routing_least_prefill_s(const struct routing *r, const struct policy_view *view);

/* --- routing_cache.c */

/* Sets the blocks that w can keep: on its device beside what its open requests fill. now_us 0:
 * unknown. */
void routing_fit_cache(struct routing *r, uint32_t w, uint64_t now_us);
void routing_reset_cache(struct cache_state *c, uint32_t epoch);
void routing_drop_cache(struct routing *r, uint32_t w); /* w has lost it: a new epoch begins */
/* Bytes of the prompt without a recorded block; negative when the last, short block counts in
 * full. */
int64_t routing_unrecorded_bytes(const struct routing *r, const struct route_ticket *t);
/* Blocks that a request leaves in the cache beside those of its chain: its output and the part of
 * its prompt beyond the chain's limit. */
uint32_t routing_anonymous_blocks(struct routing *r, const struct route_ticket *t,
                                  double output_tokens);

/* --- routing_learn.c */

/* What was learned before counts `keep` of its weight. */
void routing_learn_ratio(struct routing *r, double bytes, double tokens, double keep);
void routing_settle_speeds(struct routing *r); /* declared ones, corrected by what was learned */
/* Of a first token, before it is counted, and after. */
void routing_learn_delay(struct routing *r, const struct route_ticket *t, bool is_seen,
                         uint64_t now_us);
void routing_learn_speed(struct routing *r, const struct route_ticket *t,
                         const struct route_feedback *f, uint64_t now_us);
void routing_count_sent(const struct routing *r, const struct route_ticket *t, bool is_handed);
/* Once per request; `f` may be NULL. */
void routing_learn_fetch(struct routing *r, struct route_ticket *t, const struct route_feedback *f,
                         uint64_t now_us);
void routing_learn_answer(struct routing *r, struct route_ticket *t,
                          const struct route_feedback *f);

#endif
