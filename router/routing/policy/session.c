/* router/routing/policy/session.c - every request of a session to the same worker.
 *
 * Follows `session` of production-stack, `consistent_hashing` and `manual` of smg, and
 * session-affinity of AIBrix: the key of the session (a header, --routing-key-headers, or
 * prompt_cache_key or session_id in the body) has a home, the worker that wins its rendezvous.
 * When a worker comes or goes, only the keys that it wins or held move. A request without a key
 * goes to the candidate with the fewest in flight, random among equals, as in production-stack.
 *
 * Constants: a home with more than --max-load-factor (2) x the mean in flight + --load-floor (16)
 * is passed over for the next in the rendezvous.
 * Differs: production-stack and smg walk a hash ring and AIBrix has no bound; here one busy
 * session cannot drown a worker. smg's `manual` keeps a map of sessions, which this needs not. */
#include <math.h>

#include "common/base/mem.h"
#include "router/routing/policy/choose.h"

struct session {
    double max_load_factor, load_floor;
    struct rng rng;
};

static void session_configure(void *self, const struct policy_options *options) {
    struct session *p = self;

    p->max_load_factor = options->max_load_factor;
    p->load_floor = options->load_floor;
}

static void *session_create(const struct policy_options *options, uint32_t n_workers) {
    struct session *p = mem_zalloc(sizeof(*p));

    (void)n_workers;
    session_configure(p, options);
    rng_seed(&p->rng, options->seed);
    return p;
}

static uint32_t session_pick(void *self, const struct route_request *rq,
                             const struct policy_view *view, struct policy_term *terms) {
    struct session *p = self;
    struct rng rng = p->rng;
    double limit = INFINITY;
    uint32_t w;

    choose_mark(view, terms);
    if (!rq->session_key) {
        w = choose_least(view, view->candidates, &rng);
        if (!terms) p->rng = rng;
        return w;
    }
    if (p->max_load_factor > 0)
        limit = p->max_load_factor * choose_spread(view, view->candidates).mean + p->load_floor;
    w = choose_home(view, rq->session_key, limit);
    return w != WORKER_NONE ? w : choose_home(view, rq->session_key, INFINITY);
}

const struct policy_ops policy_session = {
    .name = "session",
    .uses_session = true,
    .create = session_create,
    .destroy = mem_free,
    .configure = session_configure,
    .pick = session_pick,
};
