/* tests/replay/session_model.h - the sessions of a modelled router: the product's sessions
 * (router/sessions), given what a proxy would give it, and beside it what the workload knows.
 *
 * A turn continues its session when its prompt opens with that session's prompt before; a context
 * that was compacted does not. Without names such a turn begins another session, as it must. */
#ifndef TESTS_REPLAY_SESSION_MODEL_H
#define TESTS_REPLAY_SESSION_MODEL_H

#include "common/base/base.h"
#include "tests/replay/workload/workload.h"

struct session_model;

struct session_model_options {
    uint32_t n_requests, block_tokens;
    double device_tokens, host_tokens; /* of all workers; both 0: none waits */
    bool has_names;                    /* requests name their session */
    bool is_final_told;                /* and say which is its last */
};

struct session_model *session_model_create(const struct session_model_options *options);
void session_model_destroy(struct session_model *m);

/* False: it waits. `n_known`: leading blocks that some worker holds. */
bool session_model_arrive(struct session_model *m, const struct workload_request *q,
                          uint32_t number, uint32_t n_known, double now_s);
/* The number of a request that waits no longer, or UINT32_MAX. */
uint32_t session_model_next(struct session_model *m, double now_s);
void session_model_sent(struct session_model *m, uint32_t number, uint32_t worker);
void session_model_ended(struct session_model *m, const struct workload_request *q, uint32_t number,
                         double now_s);
/* A turn that another router sent to the worker, as its event says; and its end. */
struct request_mark;
struct session_turn;
void session_model_remote(struct session_model *m, const struct workload_request *q,
                          const struct request_mark *mark, uint32_t n_known, uint32_t worker,
                          struct session_turn *t, double now_s);
void session_model_remote_ended(struct session_model *m, struct session_turn *t, uint64_t n_tokens,
                                double now_s);
uint32_t session_model_wait_s(const struct session_model *m, double now_s);
uint32_t session_model_n_held(const struct session_model *m);
void session_model_worker_lost(struct session_model *m, uint32_t worker);

struct session_model_result {
    uint32_t n_turns;  /* that continue their session */
    uint32_t n_joined; /* of them, to that session */
    uint32_t n_false;  /* turns that were joined to another session */
    uint32_t n_begun;  /* sessions */
    uint32_t n_rested, n_expired;
    double long_s;
};
void session_model_report(const struct session_model *m, struct session_model_result *out);

#endif
