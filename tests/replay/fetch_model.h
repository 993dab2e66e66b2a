/* tests/replay/fetch_model.h - KV that workers of a modelled fleet bring from one another.
 *
 *     seconds = latency + tokens / rate, after earlier transfers of both ends
 *
 * A sink waits no longer than computing would take, and keeps what is there by then.
 *
 * The router names a source and how much it holds; what is really there then is brought. Of choices
 * between fetching and computing one in so many is judged: the fleet replays both ways
 * (rollout.h), with the router's source or, where it named none, the worker that holds most. */
#ifndef TESTS_REPLAY_FETCH_MODEL_H
#define TESTS_REPLAY_FETCH_MODEL_H

#include "tests/replay/worker_model.h"

enum fetch_way { FETCH_WAY_FETCH, FETCH_WAY_COMPUTE, FETCH_N_WAYS };

struct fetch_model_options {
    uint32_t n_workers;
    double tokens_per_s, latency_s;
    uint32_t judged; /* of so many choices one is; 0: none */
};

/* Where a prefix may come from. */
struct fetch_offer {
    uint32_t source; /* WORKER_NONE: from nowhere */
    double tokens;
};

struct fetch_judgement {
    uint32_t n, n_right, n_right_5pc; /* choices; quicker than the other way; or within 5 % */
};

struct fetch_model;

/* `workers` is the fleet's. */
struct fetch_model *fetch_model_create(const struct fetch_model_options *options,
                                       struct worker_model *workers);
void fetch_model_destroy(struct fetch_model *m); /* NULL is fine */

/* True when this choice is judged; *other is what the router's offer is compared with. */
bool fetch_model_is_judged(struct fetch_model *m, struct model_request *q,
                           const struct fetch_offer *chosen, struct fetch_offer *other);
/* The seconds that both ways took. */
void fetch_model_judge(struct fetch_model *m, enum fetch_way chosen,
                       const double seconds[FETCH_N_WAYS]);
struct fetch_judgement fetch_model_judgement(const struct fetch_model *m);

/* q is about to be added to q->worker: sets its fetch_to and ready_s. */
void fetch_model_begin(struct fetch_model *m, struct model_request *q,
                       const struct fetch_offer *offer, double now_s);

#endif
