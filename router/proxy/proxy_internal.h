/* router/proxy/proxy_internal.h - the proxy of one loop, and what its files call in each other.
 *
 * exchange.h has the exchange and its states; README.md lists the files. */
#ifndef ROUTER_PROXY_PROXY_INTERNAL_H
#define ROUTER_PROXY_PROXY_INTERNAL_H

#include <sys/uio.h>

#include "common/base/rng.h"
#include "router/access/refusals.h"
#include "router/prompt/prompt_hash.h"
#include "router/proxy/answers/answer.h"
#include "router/proxy/exchange.h"
#include "router/proxy/leg.h"
#include "router/proxy/proxy.h"
#include "router/proxy/retry.h"
#include "router/proxy/upstream/notice.h"
#include "router/registry/registry_view.h"
#include "router/registry/registry_workers.h"

#define PROXY_N_PATHS 11  /* with a label of their own */
#define PROXY_N_CODES 600 /* above every status code */

/* This loop's parts of the metrics that most exchanges count in, looked up once: field, name. */
#define PROXY_METRICS(X)                                                                           \
    X(ttft, ttft_seconds)                                                                          \
    X(duration, request_duration_seconds)                                                          \
    X(queue_wait, queue_wait_seconds)                                                              \
    X(client_aborts, client_aborts_total)                                                          \
    X(streams_broken, streams_broken_total)                                                        \
    X(prompt_tokens, prompt_tokens_total)                                                          \
    X(cached_tokens, cached_tokens_total)                                                          \
    X(predicted_tokens, predicted_cached_tokens_total)                                             \
    X(below_tokens, cached_below_tokens_total)                                                     \
    X(predicted_below, predicted_below_tokens_total)                                               \
    X(fetches, kv_fetches_total)                                                                   \
    X(fetches_missed, kv_fetches_missed_total)                                                     \
    X(fetch_predicted, kv_fetch_predicted_tokens_total)                                            \
    X(fetched_tokens, kv_fetched_tokens_total)                                                     \
    X(fetch_seconds, kv_fetch_seconds)                                                             \
    X(output_tokens, output_tokens_total)                                                          \
    X(prefix_blocks, prefix_blocks_total)                                                          \
    X(matched_blocks, matched_prefix_blocks_total)                                                 \
    X(prompts_hit, prompts_hit_total)                                                              \
    X(prompts_missed, prompts_missed_total)

struct proxy_metrics {
#define X(field, name) struct metric *field;
    PROXY_METRICS(X)
#undef X
    struct metric *requests[PROXY_N_PATHS][PROXY_N_CODES]; /* NULL until the first such request */
};

struct proxy {
    struct loop *loop;
    struct registry *registry;
    struct metrics *metrics; /* all metrics of the router, for the rare ones */
    struct proxy_metrics counts;
    struct log *log;
    struct proxy_config config;
    struct upstream_pool *pool;
    struct notices notices; /* calls that end requests on workers */
    struct rng rng;
    struct prompt_seed_memo seed;
    struct list idle, open; /* recycled exchanges; exchanges from OPEN to FINISHING */
    uint32_t n_idle, n_open;
    uint32_t n_retrying;      /* retries from the budget, until their first token or end */
    uint32_t n_awaiting_mail; /* exchanges that are MAIL_DUE */
    uint32_t n_queued;
    struct loop_timer walk; /* every HOLD_WALK_US while any is QUEUED */
    struct mailbox
        *mailbox; /* the registry's decisions on queued exchanges; NULL until the first */
    struct loop_timer sweep; /* see proxy_watch.c */
    uint64_t sweep_us;
    uint64_t *next_load_us; /* by worker: when its load is passed to the registry again */
    uint64_t n_reported, n_unlogged, log_second;
    uint32_t n_logged;                     /* request lines in log_second */
    struct buf line;                       /* of the decision log */
    struct registry_candidate *candidates; /* max_workers; NULL: no explanation yet */
    bool identifies_clients;               /* keys, tenants or isolation are on */
};

static inline struct str proxy_request_id(const struct exchange *x) {
    return (struct str){x->request_id, x->request_id_len};
}

/* --- proxy.c ---------------------------------------------------------------------------------- */

/* Sends the request to x->try.target at the end of the turn. `is_fresh`: on a new connection,
 * because the kept-alive one was dead. */
void proxy_attempt(struct exchange *x, bool is_fresh);
void proxy_drop_upstream(struct exchange *x); /* and what its first leg has */

/* Sends the attempt to the worker that answers, once its first leg is over or without one. */
void proxy_attempt_goes_on(struct exchange *x, bool is_fresh);

/* Closes an open ticket and leaves the states that have one. proxy_end_ticket leaves the state. */
void proxy_account(struct exchange *x, bool is_aborted, enum registry_outcome outcome);
void proxy_end_ticket(struct exchange *x, bool is_aborted, enum registry_outcome outcome);

/* Passes a first token on to the registry, at the end of the read in which it came. An account in
 * the same read reports both in one call. */
void proxy_report_first_token(struct exchange *x);
void proxy_release_retry(struct exchange *x); /* gives a retry back to the budget; twice is fine */

/* Ends an exchange whose client has nothing with an error of the router. */
void proxy_fail(struct exchange *x, enum status st, const struct error *err);
#define PROXY_FAIL(x, st, ...)                                                                     \
    do {                                                                                           \
        struct error err_ = {0};                                                                   \
        proxy_fail(x, error_set(&err_, st, __VA_ARGS__), &err_);                                   \
    } while (0)

/* The exchange is over: it is counted, logged, and recycled at the end of the turn. The caller ends
 * the client's request afterwards. */
void proxy_close(struct exchange *x, int code);
void proxy_recycle(struct exchange *x);

/* --- proxy_retry.c ---------------------------------------------------------------------------- */

/* The attempt failed and the client has nothing. `cause`: a RETRY_ bit. `is_lost`: the worker died
 * on it. Another worker gets the request, or it waits, or it ends with an error. */
void proxy_attempt_failed(struct exchange *x, const char *reason, uint32_t cause, bool is_lost,
                          enum registry_outcome outcome);

/* The answer is an error or empty and the client has nothing of it. True: another worker has the
 * request now. False: pass this answer on. proxy_try_another: the worker refused it (429, 503).
 * proxy_leave_draining: it refused because it drains, which costs neither an attempt nor a
 * retry. */
bool proxy_replace_answer(struct exchange *x, const char *reason, uint32_t cause,
                          enum registry_outcome outcome);
bool proxy_try_another(struct exchange *x);
bool proxy_leave_draining(struct exchange *x);
void proxy_leave_hung(struct exchange *x); /* its worker hangs: another one gets it, if one can */

/* An error or an empty answer is passed on. Returns the outcome to account: the worker is blamed,
 * but not when an empty retry budget kept the request from others. Otherwise a client whose
 * requests fail everywhere would spend the budget and have worker after worker ejected. */
MUST_USE enum registry_outcome proxy_answer_failed(struct exchange *x,
                                                   enum registry_outcome outcome);

/* The worker that prefills failed, and the one that decodes cannot go on: both workers are left,
 * and the request is routed again. Where a worker can compute the prompt, it gets the plain request
 * whatever the retry budget. */
void proxy_pair_failed(struct exchange *x, const char *reason);
void proxy_pause_for_pair(struct exchange *x, const struct error *err); /* of proxy_pair */

void proxy_attempt_queued(struct exchange *x); /* one that waited is sent */
void proxy_on_retry_timer(void *x);            /* the retry budget may have room by now */
void proxy_pardon(struct exchange *x);         /* at its end: if no worker answered it without
                                                * an error, it is to blame itself */

/* --- proxy_report.c --------------------------------------------------------------------------- */

void proxy_prepare_reports(struct proxy *p);
void proxy_explain(struct exchange *x);          /* before it is routed: x->why */
void proxy_report(struct exchange *x, int code); /* once, before x->req is cleared */
void proxy_log_failure(const struct exchange *x, const char *reason); /* of the attempt */

/* --- proxy_prefill.c -------------------------------------------------------------------------- */

/* Before an attempt is sent. ST_OK: send it. ST_AGAIN: its first leg comes first, and goes on with
 * it. ST_NOT_FOUND, ST_UNAVAILABLE: this worker cannot serve it alone. ST_BUSY: nor can it now,
 * since no worker prefills for it; err is for when none comes. */
MUST_USE enum status proxy_pair(struct exchange *x, struct error *err);
void proxy_leg_failed(struct exchange *x, const char *reason, enum registry_outcome outcome);
void proxy_drop_leg(struct exchange *x);         /* the attempt is over; twice is fine */
void proxy_destroy_leg(struct exchange *x);      /* at recycling */
bool proxy_awaits_leg(const struct exchange *x); /* the worker that answers waits for the leg */
bool proxy_has_leg_at(const struct exchange *x, uint32_t worker, uint32_t incarnation);
struct str proxy_leg_members(const struct exchange *x); /* of the second leg's body; empty: none */
int64_t proxy_leg_hits(const struct exchange *x); /* tokens its first leg has found; -1: unknown */
bool proxy_is_handed(const struct exchange *x);
void proxy_note_second_leg(struct exchange *x); /* it had its first token */
/* Of its prompt: the ticket of the worker that computed it. */
const struct route_ticket *proxy_prefill_ticket(const struct exchange *x);

/* --- proxy_watch.c ---------------------------------------------------------------------------- */

void proxy_on_sweep(void *p);
void proxy_watch_configure(struct proxy *p); /* the timeouts of p->config have changed */

/* --- proxy_relay.c ---------------------------------------------------------------------------- */

extern const struct upstream_user proxy_relay;

/* A count in a header of a worker of ours, whose bytes are at `data`; -1: none. */
int64_t proxy_token_header(const struct http_head *head, const char *data, struct str name);

void proxy_on_client_drain(struct http_request *req);

/* Ends an answer that the client has a part of. */
enum break_cause { BROKEN_WORKER_LOST, BROKEN_TIMEOUT, BROKEN_IDLE, BROKEN_SHUTDOWN };
void proxy_break_off(struct exchange *x, enum break_cause cause);

const char *proxy_held_by(const struct exchange *x);    /* why it waited; "" when it did not */
const char *proxy_session_of(const struct exchange *x); /* how it was joined; "": to none */

/* --- proxy_comments.c ------------------------------------------------------------------------- */

/* To the client, framed as its head announced. */
void proxy_write_body(struct exchange *x, struct str bytes);

void proxy_choose_comments(struct exchange *x);             /* from the scanned request */
void proxy_comment_position(struct exchange *x);            /* it waits now */
void proxy_comment_route(struct exchange *x);               /* x-incipit-route */
void proxy_keep_alive(struct exchange *x, uint64_t now_us); /* at each sweep */

/* What the worker has sent so far is comments. proxy_pass_comments passes a payload on, and leaves
 * the state as it is: another worker may still get the request. */
bool proxy_has_comments_alone(const struct exchange *x);
void proxy_pass_comments(struct exchange *x, struct str payload);
void proxy_end_comment(struct exchange *x); /* that its worker has not ended */

/* The client has an early head, and this worker's answer is no stream: its body is collected, and
 * becomes an event. */
bool proxy_needs_event(const struct exchange *x);
void proxy_collect(struct exchange *x, struct str payload);
void proxy_send_collected(struct exchange *x);

/* Where an error would stand in what the client has of a stream. */
struct api_stream proxy_stream(const struct exchange *x);

/* proxy_fail for a client with an early head: an event. `json`: or this error body. */
void proxy_fail_stream(struct exchange *x, enum status st, const struct error *err);
void proxy_fail_stream_json(struct exchange *x, int code, struct str json);

/* --- proxy_deadline.c ------------------------------------------------------------------------- */

/* From its headers. ST_INVALID, counted. */
MUST_USE enum status proxy_read_deadline(struct exchange *x, struct error *err);

/* Before it is routed or waits. ST_BUSY, counted: it would miss it. */
MUST_USE enum status proxy_judge_deadline(struct exchange *x, struct error *err);
void proxy_note_late(struct exchange *x, uint64_t retry_us);   /* it is about to be refused */
void proxy_refuse_late(struct exchange *x, uint64_t retry_us); /* one that waited */
uint64_t proxy_deadline_ms(const struct exchange *x);          /* since it arrived; 0: none */
void proxy_count_deadline(struct exchange *x, int code);       /* at its end */

/* --- proxy_queue.c ---------------------------------------------------------------------------- */

void proxy_note_claim(struct exchange *x); /* tenant and priority: x->due, x->waiter.held */
void proxy_on_queue_timeout(void *x);
void proxy_on_walk(void *p);
void proxy_queue_configure(struct proxy *p); /* as proxy_watch_configure */
void proxy_queue_fini(struct proxy *p);      /* no exchange is open */

/* Routes the first attempt, or another one: excluding the workers of x->rq. ST_AGAIN: it is QUEUED,
 * and is sent or refused later. */
MUST_USE enum status proxy_route_or_queue(struct exchange *x, struct error *err);

/* What other routers are to learn of it, beside its prompt; proxy_begin_turn adds its session. */
void proxy_mark(struct exchange *x);

/* Joins it to its session, before it is routed. ST_AGAIN: it is QUEUED until its session may go,
 * and routed then. proxy_end_turn at its end; twice is fine. */
MUST_USE enum status proxy_begin_turn(struct exchange *x, struct error *err);
void proxy_end_turn(struct exchange *x);

/* A QUEUED exchange ends: it is MAIL_DUE if the registry's decision is on its way. */
void proxy_leave_queue(struct exchange *x);

/* --- proxy_permit.c --------------------------------------------------------------------------- */

/* By its head, before any work; by its scanned body; by the worker of an attempt. ST_LOOP,
 * ST_NOT_FOUND or ST_FORBIDDEN, counted and logged. */
MUST_USE enum status proxy_permit_call(struct exchange *x, struct error *err);
MUST_USE enum status proxy_permit_body(struct exchange *x, struct error *err);
MUST_USE enum status proxy_permit_target(struct exchange *x, struct error *err);

/* --- proxy_stored.c --------------------------------------------------------------------------- */

void proxy_look_up(struct exchange *x); /* sends or fails a request that is_lookup */

/* --- proxy_admit.c ---------------------------------------------------------------------------- */

/* Finds key and tenant of the scanned request, and charges it to the limits of its key. */
MUST_USE enum status proxy_admit(struct exchange *x, struct error *err);
void proxy_release_key(struct exchange *x); /* at its end; twice is fine */

/* Counts a refusal once: for a reason, or by its status if it has not been counted. */
void proxy_count_refusal(struct exchange *x, enum refusal reason);
void proxy_count_failure(struct exchange *x, enum status st);
void proxy_add_retry_after(struct exchange *x);

/* After proxy_admit: whether this client has sent a body that killed the most workers allowed. A
 * body that killed workers of other clients may lose one worker from here on. */
bool proxy_is_poison(struct exchange *x);
/* Answers 503. `is_found`: this exchange lost the workers, so its body is remembered. */
void proxy_fail_poison(struct exchange *x, bool is_found);

/* --- proxy_body.c ----------------------------------------------------------------------------- */

/* The body for the worker that answers, and for that of the first leg: the client's bytes without
 * what is cut, and with a salt if it is spliced in, and members of a leg. */
#define PROXY_BODY_PIECES_MAX (CLIENT_NOISE_CUTS_MAX + HANDOVER_CUTS_MAX + 5)
size_t proxy_body_len(const struct exchange *x);
int proxy_body_pieces(const struct exchange *x, struct iovec *pieces);
size_t proxy_leg_body_len(const struct exchange *x);
int proxy_leg_body_pieces(const struct exchange *x, struct iovec *pieces);

/* --- proxy_head.c ----------------------------------------------------------------------------- */

/* Keeps the client's request id if it is safe to log; makes one otherwise. */
void proxy_choose_request_id(struct exchange *x);

/* Both write x->out, proxy_build_head_for another buffer: see buf_status. `data`: the bytes that
 * x->try.head was parsed from. */
void proxy_build_worker_head(struct exchange *x);
void proxy_build_head_for(struct exchange *x, const struct registry_target *target, size_t body_len,
                          const char *own, struct buf *out); /* own: a line of it, or NULL */
void proxy_build_client_head(struct exchange *x, const char *data);

/* The head of a stream before any worker's, into `out`; sets how the body is framed. */
void proxy_put_early_head(struct exchange *x, struct buf *out);
void proxy_put_route(struct exchange *x, struct buf *out); /* "x-incipit-route: ...", without end */

#endif
