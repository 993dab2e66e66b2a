/* router/frontend.c - which requests are proxied or answered here, and how a loop begins and
 * ends. */
#include "router/frontend.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "common/base/hash.h"
#include "common/base/mem.h"
#include "common/net/loop.h"
#include "common/net/mailbox.h"
#include "common/protocol/api.h"
#include "common/protocol/wire.h"
#include "common/telemetry/loop_lag.h"
#include "router/access/keys.h"
#include "router/access/refusals.h"
#include "router/admin/admin.h"
#include "router/admin/admin_commands.h"
#include "router/holds/holds.h"
#include "router/metrics/router_metrics.h"
#include "router/proxy/forward.h"

#define KEY_OWNER_SEED 1       /* seed of the hash that counts a key's bodies */
#define FINAL_FLUSH_US 200000u /* time for final writes to clients when a drain times out */

struct frontend {
    struct loop *loop;
    struct mailbox *box, *answers; /* mail of the control loop; answers of admin calls */
    struct mailbox *held;          /* answers of calls about holds */
    struct holds *holds;
    struct http_server *server;
    struct proxy *proxy;
    const struct admin *admin;
    const struct forward *forward; /* NULL: the lists alone */
    struct keys *keys;
    struct refusals *refusals;
    struct loop_timer settle, deadline;
    struct loop_lag loop_lag;
    struct mail drain, second_drain;
    struct mailbox *control;
    char worker_key[KEYS_TEXT_MAX]; /* of the proxy's configuration */
    _Atomic uint64_t settle_us, drain_timeout_us;
    pthread_t thread;
    _Atomic bool is_left; /* a successor has the sockets */
    bool is_started, is_draining, is_hurried;
    bool is_over; /* the drain's time is up */
};

static void call(struct http_request *req, void *arg) {
    struct frontend *f = arg;

    proxy_start(f->proxy, req);
}

/* Calls that every worker has. forward.h lists the others. */
static const struct http_route calls[] = {
    {HTTP_POST, "/v1/completions", call},
    {HTTP_POST, "/v1/chat/completions", call},
    {HTTP_POST, API_MESSAGES_PATH, call},
    {HTTP_POST, API_COUNT_TOKENS_PATH, call},
    {HTTP_POST, API_RESPONSES_PATH, call},
    {HTTP_POST, "/generate", call},
    {HTTP_POST, "/tokenize", call},
    {HTTP_POST, "/detokenize", call},
    {0, NULL, NULL},
};

static bool is_call(struct str path) {
    for (const struct http_route *r = calls; r->path; r++) {
        if (str_eq(path, str_of(r->path))) return true;
    }
    return false;
}

static bool is_forwarded(const struct frontend *f, struct str path) {
    return f->forward && forward_find(f->forward, path).kinds != 0;
}

/* Paths for monitoring, and for routers that mistake this one for a worker. */
static bool needs_no_key(struct str path) {
    static const char *const paths[] = {"/health",   "/livez",     "/readyz",
                                        "/liveness", "/readiness", WIRE_INFO_PATH};

    for (size_t i = 0; i < ARRAY_LEN(paths); i++) {
        if (str_eq(path, str_of(paths[i]))) return true;
    }
    return false;
}

/* Before the body is read. */
static enum status on_head(struct http_request *req, void *arg, struct error *err) {
    struct frontend *f = arg;
    struct str key = proxy_key_of(req);
    enum status st;

    if (needs_no_key(req->path)) return ST_OK;
    if (admin_guards(f->admin, req->path)) return admin_check(f->admin, req, f->answers, err);
    st = keys_check(f->keys, key, err);
    req->owner = hash_64(key.ptr, key.len, KEY_OWNER_SEED) | 1;
    if (st == ST_OK) return ST_OK;
    refusals_note(f->refusals, key.len ? REFUSAL_KEY_UNKNOWN : REFUSAL_KEY_MISSING,
                  http_request_client(req), loop_now_us(f->loop));
    http_add_header(req, STR("www-authenticate"), STR("Bearer"));
    return st;
}

static void on_request(struct http_request *req, void *arg) {
    struct frontend *f = arg;

    if (is_call(req->path)) {
        http_route_request(calls, req, f);
    } else if (req->method == HTTP_POST && is_forwarded(f, req->path)) {
        proxy_start(f->proxy, req);
    } else if (holds_serves(req->path)) {
        holds_take(f->holds, req, f->held);
    } else if (req->method == HTTP_POST && str_starts(req->path, STR("/v1/"))) {
        proxy_start(f->proxy, req);
    } else if (forward_stored_id(req->method, req->path).ptr) {
        proxy_start(f->proxy, req);
    } else {
        admin_handle(f->admin, req, f->answers);
    }
}

static void on_answer(struct mail *mail, void *arg) {
    (void)arg;
    admin_commands_reply(mail);
}

static void on_held(struct mail *mail, void *arg) {
    (void)arg;
    holds_reply(mail);
}

static void on_drained(void *arg) {
    struct frontend *f = arg;

    loop_stop(f->loop);
}

/* Ends open exchanges visibly for their clients; once that is sent, the server has drained. */
static void on_deadline(void *arg) {
    struct frontend *f = arg;

    if (f->is_over) {
        loop_stop(f->loop);
        return;
    }
    f->is_over = true;
    proxy_end_all(f->proxy);
    loop_timer_start(&f->deadline, FINAL_FLUSH_US);
}

/* Balancers have had time to notice the drain; connections silent for as long are closed. */
static void on_settled(void *arg) {
    struct frontend *f = arg;

    http_server_drain_idle(f->server, f->settle_us, on_drained, f);
}

/* What the control loop sends beside drain and its end. */
struct note {
    struct mail mail;
    void (*take)(struct frontend *f, struct note *note);
};

struct hung_note {
    struct note note;
    uint32_t worker, incarnation;
    bool is_hung; /* else it answers again */
};

static void take_hung(struct frontend *f, struct note *note) {
    struct hung_note *hung = CONTAINER_OF(note, struct hung_note, note);

    if (hung->is_hung) {
        proxy_worker_hung(f->proxy, hung->worker, hung->incarnation);
    } else {
        proxy_worker_answers(f->proxy, hung->worker, hung->incarnation);
    }
}

struct config_note {
    struct note note;
    struct http_limits limits;
    struct proxy_config proxy;
    char worker_key[KEYS_TEXT_MAX];
};

static void take_config(struct frontend *f, struct note *note) {
    struct config_note *n = CONTAINER_OF(note, struct config_note, note);
    struct proxy_config config = n->proxy;

    memcpy(f->worker_key, n->worker_key, sizeof(f->worker_key));
    config.worker_key = str_of(f->worker_key);
    http_server_set_limits(f->server, &n->limits);
    proxy_configure(f->proxy, &config);
}

static void on_mail(struct mail *mail, void *arg) {
    struct frontend *f = arg;

    if (mail == &f->drain || mail == &f->second_drain) {
        if (f->is_left) http_server_leave_sockets(f->server);
        http_server_announce_close(f->server);
        loop_timer_start(&f->deadline, f->settle_us + f->drain_timeout_us);
        if (f->settle_us) {
            loop_timer_start(&f->settle, f->settle_us);
        } else {
            loop_timer_stop(&f->settle);
            on_settled(f);
        }
    } else {
        struct note *note = CONTAINER_OF(mail, struct note, mail);

        note->take(f, note);
        mem_free(note);
    }
}

static void copy_key(char out[KEYS_TEXT_MAX], struct str key) {
    snprintf(out, KEYS_TEXT_MAX, STR_FMT, STR_ARG(key));
}

enum status frontend_create(struct frontend **out, const struct frontend_config *config,
                            struct registry *registry, struct metrics *metrics, struct log *log,
                            const struct admin *admin, struct error *err) {
    static const struct http_server_events open_events = {.on_request = on_request};
    static const struct http_server_events key_events = {.on_request = on_request,
                                                         .on_head = on_head};
    const struct http_report report = {metrics, ROUTER_http_connections, log, "client"};
    struct frontend *f = mem_zalloc(sizeof(*f));
    struct proxy_config proxy = config->proxy;
    enum status st;

    *out = NULL;
    copy_key(f->worker_key, proxy.worker_key);
    proxy.worker_key = str_of(f->worker_key);
    f->admin = admin;
    f->keys = config->proxy.keys;
    f->forward = config->proxy.forward;
    f->refusals = config->proxy.refusals;
    f->control = config->control;
    f->holds = config->holds;
    st = loop_create(&f->loop, err);
    if (st != ST_OK) goto fail;
    loop_timer_init(&f->deadline, f->loop, on_deadline, f);
    loop_timer_init(&f->settle, f->loop, on_settled, f);
    st = mailbox_open(&f->box, f->loop, on_mail, f, err);
    if (st == ST_OK) st = mailbox_open(&f->answers, f->loop, on_answer, f, err);
    if (st == ST_OK) st = mailbox_open(&f->held, f->loop, on_held, f, err);
    if (st != ST_OK) goto fail;
    f->server = http_server_create(f->loop, &config->limits,
                                   keys_are_needed(f->keys) ? &key_events : &open_events, f);
    http_server_report(f->server, &report);
    for (uint32_t i = 0; i < config->n_sockets; i++)
        http_server_take_socket(f->server, config->tls, config->sockets[i]);
    if (config->n_sockets == 0) {
        st = http_server_listen_tls(f->server, config->tls, config->host, config->port,
                                    config->share_port, err);
        if (st != ST_OK) error_prefix(err, "--host, --port");
    }
    if (st != ST_OK) goto fail;
    loop_lag_start(&f->loop_lag, f->loop,
                   metric_part(metrics, METRICS_GET(metrics, ROUTER_loop_lag_seconds, "proxy")),
                   metric_part(metrics, METRICS_GET(metrics, ROUTER_loop_turn_seconds, "proxy")));
    f->proxy = proxy_create(f->loop, registry, metrics, log, &proxy);
    *out = f;
    return ST_OK;
fail:
    frontend_destroy(f);
    return st;
}

uint16_t frontend_port(const struct frontend *f) {
    return http_server_port(f->server);
}

uint32_t frontend_sockets(const struct frontend *f, int *fds, uint32_t max) {
    return http_server_sockets(f->server, fds, max);
}

static void *run(void *arg) {
    struct frontend *f = arg;

    loop_run(f->loop);
    mailbox_push(f->control, mem_zalloc(sizeof(struct mail)));
    return NULL;
}

enum status frontend_start(struct frontend *f, struct error *err) {
    int code = pthread_create(&f->thread, NULL, run, f);

    if (code != 0) return error_set(err, ST_IO, "cannot start a thread: %s", strerror(code));
    f->is_started = true;
    return ST_OK;
}

void frontend_worker_hung(struct frontend *f, uint32_t worker, uint32_t incarnation, bool is_hung) {
    struct hung_note *hung = mem_zalloc(sizeof(*hung));

    hung->note.take = take_hung;
    hung->worker = worker;
    hung->incarnation = incarnation;
    hung->is_hung = is_hung;
    mailbox_push(f->box, &hung->note.mail);
}

void frontend_configure(struct frontend *f, const struct http_limits *limits,
                        const struct proxy_config *proxy) {
    struct config_note *n = mem_zalloc(sizeof(*n));

    n->note.take = take_config;
    n->limits = *limits;
    n->proxy = *proxy;
    copy_key(n->worker_key, proxy->worker_key);
    mailbox_push(f->box, &n->note.mail);
}

void frontend_drain(struct frontend *f, uint64_t settle_us, uint64_t timeout_us) {
    f->settle_us = settle_us;
    f->drain_timeout_us = timeout_us;
    if (!f->is_draining) {
        f->is_draining = true;
        mailbox_push(f->box, &f->drain);
    } else if (!f->is_hurried) {
        f->is_hurried = true;
        mailbox_push(f->box, &f->second_drain);
    }
}

void frontend_leave(struct frontend *f, uint64_t settle_us, uint64_t timeout_us) {
    f->is_left = true;
    frontend_drain(f, settle_us, timeout_us);
}

void frontend_destroy(struct frontend *f) {
    struct list unread, *link;

    if (!f) return;
    list_init(&unread);
    if (f->is_started) pthread_join(f->thread, NULL);
    if (f->box) mailbox_take(f->box, &unread);
    while ((link = list_pop_front(&unread)) != NULL) {
        struct mail *mail = mail_of(link);

        if (mail != &f->drain && mail != &f->second_drain) {
            mem_free(CONTAINER_OF(mail, struct note, mail));
        }
    }
    mailbox_close(f->box);          /* no new work */
    http_server_destroy(f->server); /* ends open exchanges */
    if (f->answers) mailbox_take(f->answers, &unread);
    while ((link = list_pop_front(&unread)) != NULL)
        admin_commands_drop(mail_of(link));
    mailbox_close(f->answers);
    if (f->held) mailbox_take(f->held, &unread);
    while ((link = list_pop_front(&unread)) != NULL)
        holds_drop(mail_of(link));
    mailbox_close(f->held);
    if (f->loop) loop_turn(f->loop, 0); /* they are recycled on the next turn */
    proxy_destroy(f->proxy);
    loop_lag_stop(&f->loop_lag);
    loop_timer_fini(&f->settle);
    loop_timer_fini(&f->deadline);
    loop_destroy(f->loop);
    mem_free(f);
}
