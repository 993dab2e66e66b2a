/* router/proxy/proxy_internal.h - the proxy of one loop, and what its files call in each other.
 *
 * exchange.h has the exchange and its states; README.md lists the files. */
#ifndef ROUTER_PROXY_PROXY_INTERNAL_H
#define ROUTER_PROXY_PROXY_INTERNAL_H

#include <sys/uio.h>

#include "common/base/rng.h"
#include "router/access/refusals.h"
#include "router/prompt/prompt_hash.h"
#include "router/proxy/answer.h"
#include "router/proxy/exchange.h"
#include "router/proxy/proxy.h"
#include "router/proxy/retry.h"
#include "router/registry/registry_view.h"
#include "router/registry/registry_workers.h"

#define PROXY_N_PATHS 7   /* that are counted apart */
#define PROXY_N_CODES 600 /* status codes are below */

/* This loop's parts of the metrics that most exchanges count in: looked up once. */
struct proxy_metrics {
    struct metric *ttft, *duration, *queue_wait, *client_aborts, *streams_broken;
    struct metric *prompt_tokens, *cached_tokens, *predicted_tokens, *output_tokens;
    struct metric *prefix_blocks, *matched_blocks, *prompts_hit, *prompts_missed;
    struct metric *requests[PROXY_N_PATHS][PROXY_N_CODES]; /* NULL until the first such request */
};

struct proxy {
    struct loop *loop;
    struct registry *registry;
    struct metrics *metrics; /* all metrics of the router, for the rare ones */
    struct log *log;
    struct proxy_config config;
    struct upstream_pool *pool;
    struct rng rng;
    struct prompt_seed_memo seed;
    struct list idle, open; /* recycled exchanges; those under way */
    struct loop_timer sweep;
    uint64_t sweep_us;
    uint64_t *next_load_us; /* by worker: when its load is passed to the registry again */
    uint32_t n_idle, n_open, n_retrying;
    struct mailbox *mailbox;  /* what was decided about those that wait */
    uint32_t n_awaiting_mail; /* exchanges that are over but for a mail */
    struct proxy_metrics counts;
    uint64_t n_reported, log_second, n_unlogged;
    uint32_t n_logged;                     /* request lines in that second */
    struct buf line;                       /* of the decision log */
    struct registry_candidate *candidates; /* max_workers of them, once somebody asked why */
    bool identifies_clients;               /* keys, tenants or isolation are on */
};

static inline struct str proxy_request_id(const struct exchange *x) {
    return (struct str){x->request_id, x->request_id_len};
}

/* --- proxy.c ------------------------------------------------------------------------------------ */

/* Closes the ticket and leaves the states that have one; in any other state nothing is done. */
void proxy_account(struct exchange *x, bool is_aborted, enum registry_outcome outcome);
void proxy_end_ticket(struct exchange *x, bool is_aborted, enum registry_outcome outcome);
void proxy_drop_upstream(struct exchange *x);

/* The first token came; the registry hears of it at the end of what is being read, with the end of
 * the answer if that has come too. */
void proxy_report_first_token(struct exchange *x);

/* If this attempt is a retry, it no longer counts as one: it is answered, or over. */
void proxy_release_retry(struct exchange *x);

/* The request is over: metrics, log; x is recycled at the end of the turn. The client's request is
 * the caller's to end. */
void proxy_close(struct exchange *x, int code);

/* The attempt failed before the client saw anything; `cause`: a RETRY_ bit; `is_lost`: the worker died
 * on it. Tries elsewhere, waits for a worker when all are out of service, or answers. Either way x has
 * moved on. */
void proxy_attempt_failed(struct exchange *x, const char *reason, uint32_t cause, bool is_lost,
                          enum registry_outcome outcome);

/* The worker's answer is an error, or none, and nothing of it has been sent. True: another worker has
 * the request now. False: this is the answer to pass on. */
bool proxy_replace_answer(struct exchange *x, const char *reason, uint32_t cause,
                          enum registry_outcome outcome);

/* The answer at hand is passed on, and is an error or none: its worker is blamed, unless others have
 * answered alike, or could not be asked because too many requests were being retried. Else a client whose
 * requests fail everywhere would spend the budget and then have worker after worker ejected. Returns the
 * outcome to account. */
MUST_USE enum registry_outcome proxy_answer_failed(struct exchange *x,
                                                   enum registry_outcome outcome);

/* Sends the request to x->try.target at the end of the turn. `is_fresh`: on a new connection, because
 * the kept-alive one was dead. */
void proxy_attempt(struct exchange *x, bool is_fresh);

/* The worker does not want it (429, 503). True: another worker has it now. False: nobody else does,
 * and this worker's answer is the one to pass on. */
bool proxy_try_another(struct exchange *x);

/* The same of a worker that refused because it drains, which the registry has heard: that is nobody's
 * failure, so it costs neither an attempt nor a retry. */
bool proxy_leave_draining(struct exchange *x);

/* Its worker hangs: another gets it, if one can. */
void proxy_leave_hung(struct exchange *x);

/* --- proxy_report.c ----------------------------------------------------------------------------- */

void proxy_prepare_reports(struct proxy *p);
void proxy_explain(struct exchange *x);          /* before it is routed: x->why */
void proxy_report(struct exchange *x, int code); /* once, while the client's request is there */

/* --- proxy_watch.c ------------------------------------------------------------------------------ */

void proxy_watch_start(struct proxy *p);
void proxy_watch_configure(struct proxy *p); /* the timeouts of p->config have changed */
void proxy_watch_stop(struct proxy *p);

/* --- proxy_relay.c ------------------------------------------------------------------------------ */

extern const struct upstream_user proxy_relay;

void proxy_client_has_room(struct exchange *x);

/* Ends an answer of which the client has seen a part. */
enum break_cause { BROKEN_WORKER_LOST, BROKEN_TIMEOUT, BROKEN_IDLE, BROKEN_SHUTDOWN };
void proxy_break_off(struct exchange *x, enum break_cause cause);

/* Nothing has been sent: answers with an error of our own. */
void proxy_fail(struct exchange *x, enum status st, const struct error *err);

void proxy_recycle(struct exchange *x); /* at the end of the turn */

/* --- proxy_queue.c ------------------------------------------------------------------------------ */

void proxy_queue_init(struct exchange *x);
void proxy_queue_fini(struct proxy *p); /* no exchange is open */

/* Routes the first attempt, or another one when every worker is out of service. ST_AGAIN: it waits its
 * turn, and is attempted or refused later. */
MUST_USE enum status proxy_route_or_queue(struct exchange *x, struct error *err);

/* The exchange is over; it may have been waiting. False: it must be kept for a mail. */
bool proxy_leave_queue(struct exchange *x);

/* --- proxy_permit.c ------------------------------------------------------------------------------ */

/* From the head, before anything is done for the request; from its scanned body; and once it is known
 * where an attempt goes. ST_LOOP, ST_NOT_FOUND, ST_FORBIDDEN with a sentence, counted and logged. */
MUST_USE enum status proxy_permit_call(struct exchange *x, struct error *err);
MUST_USE enum status proxy_permit_body(struct exchange *x, struct error *err);
MUST_USE enum status proxy_permit_target(struct exchange *x, struct error *err);

/* --- proxy_admit.c ------------------------------------------------------------------------------ */

/* Finds out whose the scanned request is, and counts it against the limits of its key. */
MUST_USE enum status proxy_admit(struct exchange *x, struct error *err);

/* The body as the worker gets it: the client's bytes but for a salt. At most 3 pieces. */
size_t proxy_body_len(const struct exchange *x);
int proxy_body_pieces(const struct exchange *x, struct iovec *pieces);

void proxy_release_key(struct exchange *x); /* at its end; once more is fine */

/* The request is refused: once, before its answer is made. */
void proxy_count_refusal(struct exchange *x, enum refusal reason);
void proxy_count_failure(struct exchange *x, enum status st); /* for what `st` says, if not yet */

/* Tells a client that is refused when it may come again. */
void proxy_add_retry_after(struct exchange *x);

/* Whether this client has sent a body that lost as many workers as may be. Asked once it is known
 * whose the request is. One that lost workers to others may lose one, from here on. */
bool proxy_is_poison(struct exchange *x);
void proxy_refuse_poison(struct exchange *x); /* answers 503 */
void proxy_fail_poison(struct exchange *x);   /* the same, and remembers it */

/* --- proxy_head.c ------------------------------------------------------------------------------- */

/* Keeps a request id that is safe to pass on and to log; makes one otherwise. */
void proxy_choose_request_id(struct exchange *x);

void proxy_build_worker_head(struct exchange *x); /* both into x->out: see buf_status */
void proxy_build_client_head(struct exchange *x, const char *data);

#endif
