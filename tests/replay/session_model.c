/* tests/replay/session_model.c - see session_model.h. */
#include "tests/replay/session_model.h"

#include <assert.h>

#include "common/base/map.h"
#include "common/base/mem.h"
#include "common/protocol/request_events.h"
#include "router/sessions/sessions.h"

#define SESSIONS_KEPT 100000
#define ANSWER_TOKENS 600 /* that a router expects */

struct session_model {
    struct session_model_options options;
    struct sessions *sessions;
    struct session_turn *turns; /* (n_requests) */
    uint64_t *owners;           /* (SESSIONS_KEPT + 1) of sessions: those of the workload */
    struct map last;            /* session of the workload -> its last request */
    struct session_model_result result;
};

static uint64_t us(double s) {
    return (uint64_t)(s * 1e6);
}

struct session_model *session_model_create(const struct session_model_options *options) {
    struct session_model *m = mem_zalloc(sizeof(*m));

    m->options = *options;
    m->sessions = sessions_create(SESSIONS_KEPT);
    assert(m->sessions);
    sessions_set_capacity(m->sessions, options->device_tokens, options->host_tokens);
    m->turns = mem_calloc((size_t)options->n_requests + 1, sizeof(*m->turns));
    m->owners = mem_calloc(SESSIONS_KEPT + 1, sizeof(*m->owners));
    map_init(&m->last, 1);
    return m;
}

void session_model_destroy(struct session_model *m) {
    if (!m) return;
    sessions_check(m->sessions);
    sessions_destroy(m->sessions);
    map_fini(&m->last);
    mem_free(m->owners);
    mem_free(m->turns);
    mem_free(m);
}

/* --- what is true ---------------------------------------------------------------------------- */

static bool continues(const struct workload_request *q, const struct workload_request *before) {
    return before && before->n_blocks && before->n_blocks <= q->n_blocks &&
           q->chain[before->n_blocks - 1] == before->chain[before->n_blocks - 1];
}

/* Returns the request before it. */
static const struct workload_request *note(struct session_model *m,
                                           const struct workload_request *q,
                                           const struct session_turn *t) {
    if (t->how == SESSION_BEGUN) m->owners[t->session] = q->session;
    return map_insert(&m->last, q->session, (void *)(uintptr_t)q);
}

static void judge(struct session_model *m, const struct workload_request *q,
                  const struct session_turn *t) {
    const struct workload_request *before = note(m, q, t);
    bool is_new = t->how == SESSION_BEGUN;

    m->result.n_begun += is_new;
    m->result.n_false += m->owners[t->session] != q->session;
    if (continues(q, before)) {
        m->result.n_turns++;
        m->result.n_joined += !is_new && m->owners[t->session] == q->session;
    }
}

/* --- events ---------------------------------------------------------------------------------- */

bool session_model_arrive(struct session_model *m, const struct workload_request *q,
                          uint32_t number, uint32_t n_known, double now_s) {
    struct session_turn *t = &m->turns[number];
    struct session_arrival arrival = {.prompt = {.chain = q->chain,
                                                 .n_blocks = q->n_blocks,
                                                 .n_known = n_known,
                                                 .n_system = q->n_system,
                                                 .tokens_per_block = m->options.block_tokens},
                                      .prompt_tokens = q->n_prompt,
                                      .answer_tokens = ANSWER_TOKENS,
                                      .is_final = m->options.is_final_told && q->is_final,
                                      .now_us = us(now_s)};
    bool goes;

    if (t->is_open) return true; /* it comes back from a worker */
    if (m->options.has_names) arrival.prompt.id = q->session;
    if (m->options.has_names) arrival.prompt.parent_id = q->parent;
    goes = sessions_arrive(m->sessions, &arrival, t);
    if (q->session && t->session) judge(m, q, t);
    return goes;
}

uint32_t session_model_next(struct session_model *m, double now_s) {
    struct session_turn *t = sessions_next(m->sessions, us(now_s));

    return t ? (uint32_t)(t - m->turns) : UINT32_MAX;
}

void session_model_sent(struct session_model *m, uint32_t number, uint32_t worker) {
    sessions_sent(m->sessions, &m->turns[number], worker);
}

void session_model_ended(struct session_model *m, const struct workload_request *q, uint32_t number,
                         double now_s) {
    sessions_ended(m->sessions, &m->turns[number], (uint64_t)q->n_prompt + q->n_output, us(now_s));
}

void session_model_remote(struct session_model *m, const struct workload_request *q,
                          const struct request_mark *mark, uint32_t n_known, uint32_t worker,
                          struct session_turn *t, double now_s) {
    struct session_arrival arrival = {.prompt = {.chain = q->chain,
                                                 .n_blocks = q->n_blocks,
                                                 .n_known = n_known,
                                                 .n_system = mark->n_system,
                                                 .id = mark->session,
                                                 .tokens_per_block = m->options.block_tokens},
                                      .prompt_tokens = q->n_prompt,
                                      .answer_tokens = ANSWER_TOKENS,
                                      .is_final = mark->is_last,
                                      .held_s = mark->held_s,
                                      .origin = mark->origin,
                                      .waits_s = mark->sessions_wait_s,
                                      .now_us = us(now_s)};

    sessions_arrive_remote(m->sessions, &arrival, t);
    sessions_sent(m->sessions, t, worker);
    if (q->session && t->session) note(m, q, t);
}

void session_model_remote_ended(struct session_model *m, struct session_turn *t, uint64_t n_tokens,
                                double now_s) {
    sessions_ended(m->sessions, t, n_tokens, us(now_s));
}

uint32_t session_model_wait_s(const struct session_model *m, double now_s) {
    return sessions_wait_s(m->sessions, us(now_s));
}

uint32_t session_model_n_held(const struct session_model *m) {
    return sessions_n_held(m->sessions);
}

void session_model_worker_lost(struct session_model *m, uint32_t worker) {
    sessions_worker_lost(m->sessions, worker);
}

void session_model_report(const struct session_model *m, struct session_model_result *out) {
    struct sessions_stats stats;

    sessions_stats(m->sessions, &stats);
    *out = m->result;
    out->n_rested = (uint32_t)stats.n_rested;
    out->n_expired = (uint32_t)stats.n_expired;
    out->long_s = stats.long_s;
}
