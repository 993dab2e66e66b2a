/* router/proxy/proxy.c - an exchange, from the request to its end.
 *
 *   client loop                     exchange                              worker
 *   on_request ── proxy_start ──▶ scan, hash, route (lock: 1-2 us)
 *                                 proxy_attempt ── head + same body ────▶
 *                                 relay: take_head    ◀── head ──────────   = first token
 *   raw bytes  ◀── relay ──────── send_payload        ◀── body ──────────
 *   raw_end    ◀── finish ─────── account: load released, LRU, metrics, log
 *
 * The states are drawn in exchange.h; what is retried is in proxy_retry.c.
 *
 * Exchanges are recycled with their buffers, at the end of the turn in which they were closed,
 * because their callbacks may still be on the stack. A busy loop allocates nothing. */
#include "router/proxy/proxy.h"

#include <string.h>

#include "common/base/hash.h"
#include "common/base/mem.h"
#include "common/protocol/openai.h"
#include "router/metrics/router_metrics.h"
#include "router/poison/poison.h"
#include "router/prompt/prompt_hash.h"
#include "router/prompt/prompt_text.h"
#include "router/prompt/raw_json.h"
#include "router/proxy/forward.h"
#include "router/proxy/proxy_internal.h"

#define MAX_IDLE_EXCHANGES 256
#define KEPT_CHAIN_BLOCKS  1024 /* a recycled exchange keeps room for; 12 KiB */
#define SMALL_BODY_BYTES   2048 /* copied behind its head rather than gathered by the kernel */

/* --- account: what an attempt leaves behind --------------------------------------------------- */

/* Whether the attempt shows how fast its worker is, and how long its answers are. */
static bool may_learn_from(enum registry_outcome outcome) {
    return outcome == OUTCOME_OK || outcome == OUTCOME_BROKEN || outcome == OUTCOME_UNKNOWN;
}

void proxy_end_ticket(struct exchange *x, bool is_aborted, enum registry_outcome outcome) {
    static const struct route_feedback nothing = {-1, -1};
    struct route_end end = {
        .is_aborted = is_aborted || !may_learn_from(outcome),
        .output_tokens = sse_usage_tokens(&x->try.usage),
        .feedback = may_learn_from(outcome) ? x->try.feedback : nothing,
        .now_us = loop_now_us(x->proxy->loop),
    };

    if (is_aborted) proxy_report_first_token(x); /* else the end implies it */
    x->try.first_token_unreported = false;
    loop_timer_stop(&x->try.prefill);
    proxy_release_retry(x);
    registry_ended(x->proxy->registry, &x->try.target, &x->try.ticket, &end, outcome);
}

void proxy_account(struct exchange *x, bool is_aborted, enum registry_outcome outcome) {
    if (!exchange_is_in(x, EXCHANGE_TICKET)) return;
    proxy_end_ticket(x, is_aborted, outcome);
    exchange_move(x, exchange_is_in(x, EXCHANGE_SENT) ? EXCHANGE_FINISHING : EXCHANGE_CHOOSING);
}

void proxy_report_first_token(struct exchange *x) {
    if (!x->try.first_token_unreported) return;
    x->try.first_token_unreported = false;
    registry_first_token(x->proxy->registry, &x->try.target, &x->try.ticket, &x->try.feedback,
                         x->try.first_token_us);
}

void proxy_release_retry(struct exchange *x) {
    if (x->try.is_retry) x->proxy->n_retrying--;
    x->try.is_retry = false;
}

void proxy_drop_upstream(struct exchange *x) {
    proxy_drop_leg(x);
    loop_defer_cancel(&x->try.send);
    upstream_discard(x->try.up);
    x->try.up = NULL;
}

static void exchange_free(struct exchange *x) {
    proxy_destroy_leg(x);
    loop_timer_fini(&x->timeout);
    loop_timer_fini(&x->retry);
    loop_timer_fini(&x->try.prefill);
    loop_timer_fini(&x->queue_timer);
    buf_fini(&x->out);
    mem_free(x->chain);
    mem_free(x);
}

static void on_recycle(void *arg) {
    struct exchange *x = arg;
    struct proxy *p = x->proxy;

    proxy_destroy_leg(x);
    if (p->n_idle >= MAX_IDLE_EXCHANGES) {
        exchange_free(x);
        return;
    }
    if (x->chain_cap > KEPT_CHAIN_BLOCKS) {
        mem_free(x->chain);
        x->chain = NULL;
        x->chain_cap = 0;
    }
    exchange_move(x, EXCHANGE_IDLE);
    list_push_front(&p->idle, &x->link);
    p->n_idle++;
}

void proxy_close(struct exchange *x, int code) {
    struct proxy *p = x->proxy;

    loop_timer_stop(&x->timeout);
    loop_timer_stop(&x->retry);
    proxy_pardon(x);
    list_remove(&x->link);
    proxy_report(x, code);
    proxy_drop_leg(x);
    proxy_release_key(x); /* its tenant's name may go with it */
    x->req = NULL;
    p->n_open--;
    if (x->state == EXCHANGE_QUEUED) proxy_leave_queue(x);
    if (x->state != EXCHANGE_MAIL_DUE) proxy_recycle(x);
}

void proxy_recycle(struct exchange *x) {
    proxy_end_turn(x);
    exchange_move(x, EXCHANGE_ENDED);
    loop_defer(x->proxy->loop, &x->recycle);
}

void proxy_fail(struct exchange *x, enum status st, const struct error *err) {
    struct http_request *req = x->req;

    proxy_drop_upstream(x);
    proxy_account(x, true, OUTCOME_UNKNOWN);
    if (x->has_early_head) {
        proxy_fail_stream(x, st, err);
        return;
    }
    http_add_header(req, STR("x-request-id"), proxy_request_id(x));
    if (st == ST_UNAVAILABLE || st == ST_BUSY) proxy_add_retry_after(x);
    proxy_close(x, status_http_code(st));
    http_reply_error(req, st, err);
}

/* --- an attempt ------------------------------------------------------------------------------- */

/* A third-party worker shows the first token of a whole answer only with the last: the predicted
 * end of the prefill stands in for it. */
static void watch_prefill(struct exchange *x) {
    double s = x->try.ticket.wait_s + x->try.ticket.load.work_s;

    if (!x->try.target.is_third_party || x->scan.is_stream || !x->is_generation) return;
    loop_timer_start(&x->try.prefill, (uint64_t)(MIN(s, 3600) * 1e6));
}

static void on_prefill_done(void *arg) {
    struct exchange *x = arg;

    registry_first_token(x->proxy->registry, &x->try.target, &x->try.ticket, NULL,
                         loop_now_us(x->proxy->loop));
}

static void reset_attempt(struct attempt *a, bool is_fresh) {
    a->n_connections = is_fresh ? 2 : 1;
    a->is_stream = a->first_token_unreported = false;
    a->form = ANSWER_OTHER;
    a->blame = BLAME_NONE;
    a->outcome = OUTCOME_OK;
    a->first_byte = a->last_byte = '\0';
    a->feedback = (struct route_feedback){-1, -1};
    sse_usage_init(&a->usage, API_OPENAI, false);
    a->first_token_us = a->sent_bytes = a->seen_bytes = a->seen_us = a->hung_us = 0;
    a->n_interim = 0;
    http_response_init(&a->head, false);
}

/* Head and body; the body from the client's buffer. */
static void send_request(void *arg) {
    struct exchange *x = arg;
    struct iovec pieces[1 + PROXY_BODY_PIECES_MAX];
    int n = 1;

    if (conn_is_connecting(&x->try.up->conn)) return; /* on_upstream_connected sends it */
    if (proxy_body_len(x) > SMALL_BODY_BYTES) n += proxy_body_pieces(x, pieces + 1);
    pieces[0] = (struct iovec){buf_ptr(&x->out), buf_len(&x->out)};
    if (n == 1) {
        conn_sendv(&x->try.up->conn, pieces, n);
    } else {
        conn_sendv_lent(&x->try.up->conn, pieces, n); /* pinned while the attempt lasts */
    }
}

/* One piece is cheaper to send than two. */
static void append_small_body(struct exchange *x) {
    struct iovec pieces[PROXY_BODY_PIECES_MAX];
    int n;

    if (proxy_body_len(x) > SMALL_BODY_BYTES) return;
    n = proxy_body_pieces(x, pieces);
    for (int i = 0; i < n; i++)
        buf_append(&x->out, pieces[i].iov_base, pieces[i].iov_len);
}

void proxy_attempt(struct exchange *x, bool is_fresh) {
    struct error err;
    enum status st;

    error_init(&err);
    if (x->n_attempts) reset_attempt(&x->try, is_fresh); /* else it was opened so */
    x->n_attempts += !is_fresh;
    st = proxy_permit_target(x, &err);
    if (st != ST_OK) {
        proxy_fail(x, st, &err);
        return;
    }
    if (!is_fresh) st = proxy_pair(x, &err);
    if (st == ST_AGAIN) return;
    if (st == ST_BUSY) {
        proxy_pause_for_pair(x, &err);
        return;
    }
    if (st != ST_OK) {
        proxy_fail(x, st, &err);
        return;
    }
    proxy_attempt_goes_on(x, is_fresh);
}

void proxy_attempt_goes_on(struct exchange *x, bool is_fresh) {
    struct error err;
    enum status st;

    error_init(&err);
    proxy_build_worker_head(x);
    append_small_body(x);
    st = buf_status(&x->out);
    if (st == ST_OK) {
        st = upstream_acquire(x->proxy->pool, &x->try.target, is_fresh, &proxy_relay, x, &x->try.up,
                              &err);
    }
    if (st != ST_OK) { /* descriptors or memory of this process: another worker would not help */
        PROXY_FAIL(x, ST_UNAVAILABLE,
                   "the router is out of memory or connections: send the request again later");
        return;
    }
    if (!is_fresh) watch_prefill(x);
    loop_defer_last(x->proxy->loop, &x->try.send);
}

/* --- from the client -------------------------------------------------------------------------- */

static void on_client_abort(struct http_request *req) {
    struct exchange *x = req->user;

    proxy_drop_upstream(x); /* the close ends the worker's work */
    proxy_account(x, true, OUTCOME_UNKNOWN);
    metric_inc(x->proxy->counts.client_aborts);
    proxy_close(x, 499);
}

static void on_timeout(void *arg) {
    struct exchange *x = arg;

    if (exchange_is_in(x, EXCHANGE_SENT)) {
        proxy_break_off(x, BROKEN_TIMEOUT);
        return;
    }
    PROXY_FAIL(x, ST_TIMEOUT,
               "no answer within %llu s: raise --request-timeout, or ask for fewer tokens",
               (unsigned long long)(x->proxy->config.request_timeout_us / 1000000));
}

/* What the client writes differently in each request: not hashed, and cut from what is sent where
 * the rule has it. */
static void find_noise(struct exchange *x) {
    static const char *const names[NOISE_KIND_COUNT] = {"billing_header", "total_tokens"};
    enum client_noise_rule rule = x->proxy->config.noise_rule;

    x->noise.n = 0;
    if (rule == NOISE_KEPT || !x->is_generation) return;
    client_noise_find(&x->scan, &x->noise);
    x->cuts_noise = rule == NOISE_CUT_FROM_ALL || x->api == API_MESSAGES;
    for (int i = 0; x->noise.n && i < NOISE_KIND_COUNT; i++) {
        if (x->noise.found[i])
            metric_inc(METRICS_GET(x->proxy->metrics, ROUTER_client_noise_total, names[i]));
    }
}

/* What a request of Responses continues is known to the worker that has stored it. */
static void find_stored(struct exchange *x) {
    struct str id = raw_text(x->scan.spans[BODY_PREVIOUS_RESPONSE_ID]);

    if (!id.len) return;
    x->rq.is_continued = true;
    x->rq.stored_at = registry_find_mark(x->proxy->registry, api_mark_of(id));
    x->rq.n_blocks = 0; /* of another prompt */
    x->system_bytes = 0;
}

/* Chain, size and session, which routing uses. */
static enum status hash_prompt(struct exchange *x, struct error *err) {
    const struct proxy_config *config = &x->proxy->config;
    struct prompt_text prompt = {&x->scan, &x->noise, x->api};
    struct str session = session_name(x->req, &x->scan, &config->session_headers);
    struct prompt_scope scope = prompt_scope_of(&x->scan);
    struct prompt_hashed hashed = {0};
    uint32_t n_max = 0;

    find_noise(x);
    if (x->is_generation)
        n_max = prompt_hash_n_blocks(prompt_text_max(&x->scan, x->api), config->prefix_block_bytes,
                                     config->max_prefix_blocks);
    if (x->is_salted) scope.tenant = x->tenant;
    if (n_max > x->chain_cap) {
        uint64_t *chain = /* followed by the guesses */
            mem_try_realloc(x->chain,
                            n_max * sizeof(*chain) + (n_max + 1) * sizeof(*x->rq.guesses));

        if (!chain) return error_set(err, ST_NOMEM, "out of memory for a prompt's hash chain");
        x->chain = chain;
        x->chain_cap = n_max;
    }
    if (n_max)
        prompt_hash_text(&prompt,
                         prompt_hash_seed_memo(&x->proxy->seed, &scope, config->hash_secret),
                         config->prefix_block_bytes, x->chain, n_max, &hashed);
    x->system_bytes = hashed.n_system;
    x->rq = (struct route_request){
        .chain = x->chain,
        .guesses = (uint32_t *)(x->chain + x->chain_cap),
        .n_blocks = hashed.n_blocks,
        .prompt_bytes = hashed.n_bytes,
        .max_output_tokens = x->scan.max_output_tokens,
        .session_key = session.len ? hash_64(session.ptr, session.len, config->hash_secret) : 0,
        .is_light = x->is_light,
    };
    if (x->api == API_RESPONSES) find_stored(x);
    return ST_OK;
}

static struct exchange *exchange_open(struct proxy *p) {
    struct list *link = list_pop_front(&p->idle);
    struct exchange *x;

    if (link) {
        p->n_idle--;
        x = LIST_ENTRY(link, struct exchange, link);
    } else {
        x = mem_try_zalloc(sizeof(*x));
        if (!x) return NULL;
        x->proxy = p;
        buf_init(&x->out, 4 * HTTP_MAX_HEAD_BYTES);
        loop_timer_init(&x->timeout, p->loop, on_timeout, x);
        loop_timer_init(&x->retry, p->loop, proxy_on_retry_timer, x);
        loop_timer_init(&x->try.prefill, p->loop, on_prefill_done, x);
        loop_task_init(&x->try.send, send_request, x);
        loop_task_init(&x->recycle, on_recycle, x);
        loop_timer_init(&x->queue_timer, p->loop, proxy_on_queue_timeout, x);
    }
    x->rq.n_blocks = x->why.n = 0;
    x->has_price = false;
    list_push_back(&p->open, &x->link);
    x->n_tried = x->n_lost = x->n_attempts = x->n_pauses = x->n_drained = 0;
    x->n_unreached = x->n_accused = 0;
    x->waited_us = x->retry_after_us = x->client_bytes = x->heard_bytes = 0;
    x->held_position = 0;
    x->is_requeued = false;
    x->max_lost = POISON_LOST;
    x->try.up = NULL;
    x->is_salted = x->is_refused = x->cuts_noise = x->try.is_retry = false;
    x->due.by_us = 0;
    x->is_late = x->wants_comments = x->has_early_head = x->is_amid_comment = x->is_route_due =
        false;
    x->tenant = STR_NULL;
    reset_attempt(&x->try, false);
    exchange_move(x, EXCHANGE_OPEN);
    p->n_open++;
    return x;
}

void proxy_start(struct proxy *p, struct http_request *req) {
    struct exchange *x = exchange_open(p);
    struct error err;
    enum status st;

    error_init(&err);
    if (!x) {
        refusals_note(p->config.refusals, REFUSAL_MEMORY, http_request_client(req),
                      loop_now_us(p->loop));
        error_set(&err, ST_NOMEM, "the router is out of memory: send the request again later");
        http_reply_error(req, ST_NOMEM, &err);
        return;
    }
    x->req = req;
    x->start_us = x->heard_us = loop_now_us(p->loop);
    req->user = x;
    req->on_abort = on_client_abort;
    req->on_drain = proxy_on_client_drain;
    x->is_lookup = req->method != HTTP_POST;
    proxy_choose_request_id(x);
    loop_timer_start(&x->timeout, p->config.request_timeout_us);
    if (x->is_lookup) {
        proxy_look_up(x);
        return;
    }
    st = proxy_permit_call(x, &err);
    if (st == ST_OK) st = body_scan(req->body, &x->scan, &err);
    if (st != ST_OK) x->scan = (struct body_scan){0}; /* not that of an earlier request */
    if (st == ST_OK) st = proxy_permit_body(x, &err);
    if (st == ST_OK) proxy_choose_comments(x);
    if (st == ST_OK) st = proxy_read_deadline(x, &err);
    if (st == ST_OK && p->identifies_clients) st = proxy_admit(x, &err);
    if (st == ST_OK && proxy_is_poison(x)) {
        proxy_fail_poison(x, false);
        return;
    }
    if (st == ST_OK) st = hash_prompt(x, &err);
    if (st == ST_OK) proxy_mark(x);
    if (st == ST_OK) st = proxy_begin_turn(x, &err);
    if (st == ST_OK) st = proxy_route_or_queue(x, &err);
    if (st == ST_AGAIN) return; /* QUEUED */
    if (st != ST_OK) {
        proxy_count_failure(x, st);
        proxy_fail(x, st, &err);
        return;
    }
    proxy_attempt(x, false);
}

/* --- the proxy -------------------------------------------------------------------------------- */

struct proxy *proxy_create(struct loop *loop, struct registry *registry, struct metrics *metrics,
                           struct log *log, const struct proxy_config *config) {
    struct proxy *p = mem_zalloc(sizeof(*p));
    struct upstream_pool_config pool = {
        .max_workers = config->max_workers,
        .max_idle_per_worker = 256,
        .idle_timeout_us = config->upstream_idle_us,
        .connect_timeout_us = config->connect_timeout_us,
        .tls = config->worker_tls,
    };
    uint64_t seed;

    hash_random(&seed, sizeof(seed));
    p->loop = loop;
    p->registry = registry;
    p->metrics = metrics;
    p->log = log;
    p->pool = upstream_pool_create(loop, &pool);
    notices_init(&p->notices, loop, p->pool);
    rng_seed(&p->rng, seed);
    list_init(&p->idle);
    list_init(&p->open);
    p->next_load_us = mem_calloc(config->max_workers, sizeof(*p->next_load_us));
    loop_timer_init(&p->sweep, loop, proxy_on_sweep, p);
    loop_timer_init(&p->walk, loop, proxy_on_walk, p);
    proxy_configure(p, config);
    p->identifies_clients =
        keys_are_needed(config->keys) || config->isolation || config->tenant_header;
    proxy_prepare_reports(p);
    return p;
}

void proxy_configure(struct proxy *p, const struct proxy_config *config) {
    p->config = *config;
    p->config.max_attempts = MIN(config->max_attempts, MAX_ATTEMPTS);
    upstream_pool_set_connect_timeout(p->pool, config->connect_timeout_us);
    proxy_watch_configure(p);
    proxy_queue_configure(p);
}

void proxy_destroy(struct proxy *p) {
    struct list *link;

    if (!p) return;
    proxy_queue_fini(p);
    notices_fini(&p->notices);
    while ((link = list_pop_front(&p->idle)) != NULL) {
        exchange_free(LIST_ENTRY(link, struct exchange, link));
    }
    loop_timer_fini(&p->sweep);
    loop_timer_fini(&p->walk);
    upstream_pool_destroy(p->pool);
    mem_free(p->candidates);
    buf_fini(&p->line);
    mem_free(p->next_load_us);
    mem_free(p);
}
