/* router/routing/policy.h - how a worker is chosen: one vtable, one file per policy in policy/.
 *
 * A policy sees a request (the hash chain of its prompt, its size, its session), the load table,
 * and the set of workers it may choose from: eligible, not excluded by a retry, and below their
 * limits. It returns one of them. Callbacks report each event of a request; a policy keeps what
 * state it likes, `routing` keeps index and load. A policy never sees a clock, a socket or a lock,
 * and allocates in create alone. */
#ifndef ROUTER_ROUTING_POLICY_H
#define ROUTER_ROUTING_POLICY_H

#include "common/base/base.h"
#include "common/base/buf.h"
#include "router/routing/fetch.h"
#include "router/routing/load.h"

struct route_request {
    const uint64_t *chain; /* block hashes of the prompt, first to last (prompt_hash.h) */
    uint32_t *guesses; /* for routing alone: n_blocks + 1 places, kept with the chain; or NULL */
    uint32_t n_blocks;
    uint64_t prompt_bytes;      /* length of the hashed prompt, beyond the chain's limit too */
    uint32_t max_output_tokens; /* what the client allows; 0: unknown */
    uint64_t session_key;       /* hash of a session header or key; 0: none */
    bool is_light;              /* it needs no device (load.h): it is routed as if it were empty */
    bool is_continued;  /* its prompt begins with what a worker has stored: only its end is here */
    uint32_t stored_at; /* of those: which takes it if it can; WORKER_NONE: not known */
    uint64_t now_us;
    const uint32_t *exclude; /* workers already tried for this request */
    uint32_t n_exclude;
    bool may_fetch_from_excluded; /* they did not fail */
};

/* The input of one choice. Masks have load->n_words words. */
struct policy_view {
    const struct load *load;
    const uint64_t *candidates;     /* never empty */
    const uint32_t *matched_blocks; /* by worker id, for candidates; of these */
    const uint32_t *device_blocks;  /* before the first below the device; NULL: all */
    const struct fetch *fetch;      /* has the sources of this request; NULL: there are none */
    uint32_t n_shared_blocks;       /* leading blocks that more than half of those looked at hold */
    double prompt_tokens;           /* predicted */
    double tokens_per_block;
};

/* Whether the price of a worker that computes the shortest prompt first knows that it does. */
enum order_aware {
    ORDER_AWARE_AUTO, /* while answers take less of the workers' time than prompts do */
    ORDER_AWARE_ON,
    ORDER_AWARE_OFF,
};

/* The constants of all policies. Their flags and their defaults are in router_options.c. */
struct policy_options {
    /* prefix; the last two also session. The first four are weights of one second of new prefill,
     * for the delay that it causes to ... */
    double cost_later_arrivals; /* later arrivals */
    double cost_decoding;       /* each request in flight on the worker */
    double cost_queued;         /* each request on the worker without a first token */
    double cost_fleet_busy;     /* each request in flight on the least busy worker */
    double cost_batch_slot_s;   /* cost of each request in flight on the worker */
    enum order_aware order_aware;
    double home_weight;     /* discount at the home of an uncached prompt, in its prefills */
    double max_load_factor; /* above this x mean in flight + floor: not a candidate; 0: off */
    double load_floor;

    /* cache_aware; the last one also hash_trie */
    double cache_threshold;  /* share of the prompt that must be matched */
    uint32_t balance_abs;    /* most less least in flight above this, and */
    double balance_rel;      /* most above this x least: balance instead */
    uint64_t max_tree_bytes; /* prompt text that is remembered */

    /* hash_trie */
    uint64_t prefix_min_match; /* bytes; shorter matches do not count */

    /* prefix_scorer */
    double scorer_queue_weight, scorer_kv_weight, scorer_prefix_weight;
    uint32_t scorer_max_blocks; /* opening that is matched, in blocks of 64 bytes */

    /* chwbl; the first two also simhash */
    double bounded_load;         /* in flight above this x mean: the next on the ring */
    uint32_t ring_replication;   /* points of a worker */
    uint32_t chwbl_prefix_bytes; /* the opening that is the key */

    /* aibrix */
    uint32_t aibrix_imbalance_abs; /* most less least in flight above this: only the least */
    double aibrix_stddev_factor;   /* matches above mean + this x sigma are ignored */
    uint32_t aibrix_table_blocks;  /* blocks of 4 bytes in the table */
    uint32_t aibrix_ttl_ms;        /* lifetime of a block */

    uint64_t seed; /* of random choices; drawn at start by router_build.c, no option sets it */
    uint32_t block_bytes; /* prompt bytes per hash of a chain; routing fills it in */
};

/* One worker's terms in a decision, for explanations. A policy without costs leaves them 0. */
struct policy_term {
    bool is_candidate;     /* may be picked */
    double matched_tokens; /* of the prompt, already computed there */
    double below_tokens;   /* of these, to be brought back from below the device; */
    double fetch_tokens;   /* and to be brought from worker `source`, in fetch_s; 0: none */
    double fetch_s;
    uint32_t source;
    double wait_s, memory_s, prefill_s;
    double cost_s;
};

struct policy_ops {
    const char *name;
    bool uses_session; /* reads session_key from request headers too */
    /* NULL: out of memory. */
    void *(*create)(const struct policy_options *options, uint32_t n_workers);
    void (*destroy)(void *self);

    /* New weights and thresholds for later picks; tables and rings keep their sizes. NULL: the
     * policy has none. */
    void (*configure)(void *self, const struct policy_options *options);

    /* A member of view->candidates. With `terms` (a record per worker id) it is a dry run: the
     * records of the candidates are filled and the policy's state stays as it is. */
    uint32_t (*pick)(void *self, const struct route_request *rq, const struct policy_view *view,
                     struct policy_term *terms);

    /* Events. Any may be NULL. */
    void (*sent)(void *self, const struct route_request *rq, uint32_t w);
    void (*first_token)(void *self, uint32_t w);
    void (*ended)(void *self, uint32_t w, bool is_aborted);
    void (*worker_up)(void *self, uint32_t w, const struct worker_spec *spec);
    void (*worker_down)(void *self, uint32_t w);
};

/* Tokens of whole KV blocks of w that fit into so many leading blocks; never the whole prompt. */
double policy_whole_tokens(const struct policy_view *view, uint32_t w, uint32_t n_blocks);

/* Tokens of the prompt cached on worker w: whole KV blocks, never the whole prompt. */
double policy_matched_tokens(const struct policy_view *view, uint32_t w);

/* What w does before it has the prompt's first token. What is cached below its device is brought
 * back, which takes the worker's time, or computed where that is quicker: then it does not count as
 * cached. What another worker holds beyond that is fetched where that is quicker: it counts as
 * cached, and w works on other prompts meanwhile. */
struct policy_prefill {
    double cached_tokens, below_tokens; /* below_tokens: of cached_tokens, as is what is fetched */
    double work_s;
    bool may_recompute; /* bringing back and computing take about as long */
    struct fetch_plan fetch;
};
struct policy_prefill policy_prefill_of_all(const struct policy_view *view, uint32_t w);

static inline struct policy_prefill policy_prefill(const struct policy_view *view, uint32_t w) {
    double cached;

    if (UNLIKELY(view->device_blocks || view->fetch)) return policy_prefill_of_all(view, w);
    cached = policy_matched_tokens(view, w);
    return (struct policy_prefill){
        .cached_tokens = cached,
        .work_s = load_prefill_s(&view->load->workers[w], cached, view->prompt_tokens),
        .fetch = FETCH_NONE};
}

/* By name ("prefix", "round_robin" ...), or NULL. */
const struct policy_ops *policy_find(struct str name);

/* All policies: X(NAME) is policy_NAME of policy/NAME.c. */
#define POLICIES(X)                                                                                \
    X(prefix)                                                                                      \
    X(least_load)                                                                                  \
    X(round_robin)                                                                                 \
    X(random)                                                                                      \
    X(power_of_two)                                                                                \
    X(session)                                                                                     \
    X(chwbl)                                                                                       \
    X(simhash)                                                                                     \
    X(cache_aware)                                                                                 \
    X(hash_trie)                                                                                   \
    X(aibrix)                                                                                      \
    X(prefix_scorer)

/* Their names in that order, NULL at the end: for option tables. */
extern const char *const policy_names[];

#define POLICY_DECLARE(name) extern const struct policy_ops policy_##name;
POLICIES(POLICY_DECLARE)
#undef POLICY_DECLARE

#endif
