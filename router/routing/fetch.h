/* router/routing/fetch.h - bringing a prefix from another worker instead of computing it.
 *
 * Workers that serve their KV blocks to each other let a request be computed where there is room,
 * and its prefix come from where it is cached. Source s holds M tokens of the prompt, and sink w
 * has c of them:
 *
 *     fetch(w, s) = queue(w, s) + latency + (M - c) x bytes per token / rate
 *     first token = min(wait(w) + prefill(c, all), max(wait(w), fetch(w, s)) + prefill(M, all))
 *
 * The rate is learned for workers of one host and for those apart (fetch_rate.h). queue is until
 * the transfers at either end are over, by prediction. One source suffices for many sinks: what w
 * saves by s is value(s) = prefill(0, M) - M x bytes per token / rate - queue(s), less what depends
 * on w alone. So the source with the most value is kept for each host of each fabric, and for each
 * fabric, and a sink prices two: O(workers) a request.
 *
 * Before the first report of a path one request at a time goes that way. A path where PATH_MISSES
 * fetches in a row brought nothing is tried by one request at a time, after pauses that double: a
 * network may be so slow that a sink never gets a block in time.
 *
 * No source: a worker with any reason not to be picked, one that failed this request, one that had
 * nothing of what it was named for, for a pause that doubles, one that holds no more than each sink
 * does, and one whose queue is longer than what it saves beside that. No sink: a worker that lacks
 * KV memory. A source may be at its limit of requests: that is when it helps most.
 *
 *     fetch_find ──▶ fetch_plan, each candidate ──▶ fetch_sent ──▶ fetch_done | fetch_missed
 *
 * Pure, as all of routing: no clock, no lock, no allocation after creation. */
#ifndef ROUTER_ROUTING_FETCH_H
#define ROUTER_ROUTING_FETCH_H

#include "common/base/base.h"
#include "router/routing/fetch_rate.h"
#include "router/routing/worker_mask.h"

struct load;
struct policy_view;

enum fetch_path { FETCH_SAME_HOST, FETCH_APART, FETCH_N_PATHS };

/* What a worker publishes of its KV blocks. */
struct fetch_peer {
    uint64_t fabric;        /* equal for workers that can use each other's; 0: for none */
    uint64_t host;          /* equal for workers of one host */
    double bytes_per_token; /* 0: as fabric 0 */
};

/* A worker as a source or a sink; by id. */
struct fetch_worker {
    struct fetch_peer peer;
    uint32_t fabric_id, host_id; /* of its fabric, and of its host there: the id of a member */
    uint64_t busy_until_us;      /* predicted end of the transfers that it takes part in */
    uint64_t away_until_us;      /* no source until then */
    uint32_t n_missed;           /* since a source of ours last had something */
};

/* The most valuable source; a group is a fabric or a host of one. */
struct fetch_source {
    uint32_t worker; /* WORKER_NONE: none */
    double tokens;   /* of the prompt, that it holds */
    double value_s;
};

struct fetch {
    uint32_t n_workers, n_peers; /* of them, with a fabric */
    struct worker_mask peers;
    struct worker_mask full; /* a copy there pushes out what others may ask for */
    struct fetch_worker *workers;
    struct fetch_source *of_host, *of_fabric; /* by host_id and fabric_id; of the last request: */
    struct worker_mask found;                 /* all others have none */
    struct fetch_rate rates[FETCH_N_PATHS];
    struct fetch_trust {
        uint32_t n_open;   /* fetches whose end is not known */
        uint32_t n_missed; /* in a row */
        uint64_t until_us; /* nothing goes that way until then */
    } trust[FETCH_N_PATHS];
    uint64_t now_us; /* of the last request */
};

/* What a sink would fetch. */
struct fetch_plan {
    uint32_t source; /* WORKER_NONE: computing is quicker, or there is nothing to fetch */
    enum fetch_path path;
    double tokens;       /* of the prompt, from its first: held by the source, */
    double fetch_tokens; /* and of them to be brought; 0 without a source */
    double queue_s;      /* until earlier transfers are over */
    double fetch_s;      /* with queue_s */
    double saved_s;      /* prefill of fetch_tokens */
    double displaced_s;  /* prefill of what the copy pushes out and is asked for again */
};
#define FETCH_NONE ((struct fetch_plan){.source = WORKER_NONE})

void fetch_init(struct fetch *f, uint32_t n_workers);
void fetch_fini(struct fetch *f);

void fetch_set_peer(struct fetch *f, uint32_t w, const struct fetch_peer *peer);

/* Whether a prefix can be fetched at all: two workers of one fabric. */
static inline bool fetch_is_possible(const struct fetch *f) {
    return f->n_peers > 1;
}

/* Of the n leading blocks that s has or will have, those that it has: what is still being computed
 * there cannot be fetched. */
typedef uint32_t fetch_ready_fn(const void *ctx, uint32_t s, uint32_t n);

/* Finds the sources of a request among `mask`, peers all, for the plans of that request. The view
 * has its matches for them and for the candidates; `ready` is asked of those that would be best and
 * have prompts pending. One that holds no more than each of the candidates is none. False: there is
 * none. */
bool fetch_find(struct fetch *f, const struct policy_view *view, const uint64_t *mask,
                fetch_ready_fn *ready, const void *ctx, uint64_t now_us);

/* The quickest way to more of the prompt than the `cached` tokens that w has, if it is quicker than
 * computing that. */
struct fetch_plan fetch_plan(const struct fetch *f, const struct policy_view *view, uint32_t w,
                             double cached);

/* Of w for the first `tokens` of a prompt, which `source` has: also where computing is quicker.
 * FETCH_NONE: w has them, or cannot use the other's blocks. */
struct fetch_plan fetch_plan_from(const struct fetch *f, const struct load *load, uint32_t source,
                                  uint32_t w, double tokens, double cached, uint64_t now_us);
bool fetch_may_use(const struct fetch *f, uint32_t w, uint32_t source); /* its blocks */

/* A request with this plan was sent to w. */
void fetch_sent(struct fetch *f, const struct fetch_plan *plan, uint32_t w, uint64_t now_us);

/* Its sink has restored so many tokens in so many seconds; or none. */
void fetch_done(struct fetch *f, const struct fetch_plan *plan, double tokens, double seconds,
                uint64_t now_us);
void fetch_missed(struct fetch *f, const struct fetch_plan *plan, uint64_t now_us);
void fetch_dropped(struct fetch *f, const struct fetch_plan *plan); /* nothing is known of it */

void fetch_check(const struct fetch *f);

#endif
