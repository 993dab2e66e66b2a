/* router/fleet/discovery/kube_watch.c - list, watch, and the step after either ends.
 *
 * At each moment exactly one of these holds: a call is open (a page of the list, or the watch), the
 * timer runs for the next one, or the watch has stopped for good.
 *
 *      end                                     next            when
 *      ---------------------------------------------------------------------------------------
 *      list is whole                           WATCH           at once
 *      watch: its time was over, or cut        WATCH           at once; again soon: backoff
 *      watch: ended without an event           fresh LIST      at once; again soon: backoff (may be blind)
 *      410, in any form                        fresh LIST      at once; again soon: backoff
 *      unreadable, 400, 422 (watch)            fresh LIST      backoff
 *      401                                     same step       token read again: at once; then backoff
 *      403                                     fresh LIST      backoff; the second: logs the missing Role
 *      404 of the list                         the listener decides
 *      429, 5xx, no connection                 same step       Retry-After, else backoff
 *      5xx: version not reached yet            fresh LIST      Retry-After, else backoff
 *      a list is due                           fresh LIST      at once
 *      a due list is refused, or not answered  WATCH           at once; the list after a tenth
 *
 * A starting server refuses connections, then answers 403 until it has read its own Roles, then
 * 5xx: so a delay is at most a quarter of the time since the last success, and recovery is noticed
 * soon. A lasting failure is retried every half minute.
 *
 * A fresh LIST has no resourceVersion: it returns what etcd holds. The first list asks for any
 * version (0), which a server answers from its memory. A list cancels the watch before it, and the
 * next watch begins where the list was taken, so no event is lost or counted twice. */
#include "router/fleet/discovery/kube_watch.h"

#include <stdio.h>

#include "common/base/backoff.h"
#include "common/base/hash.h"
#include "common/base/mem.h"
#include "common/net/loop.h"
#include "common/telemetry/log.h"
#include "router/fleet/discovery/kube_client.h"
#include "router/fleet/discovery/kube_role.h"
#include "router/fleet/discovery/kube_stream.h"

#define PAGE_ITEMS         500
#define LIST_SILENCE_MS    75000u /* a server gives up after 60 s */
#define MAX_RETRY_AFTER_MS 300000u
#define ROLE_AGAIN_US      30000000u /* interval of logging the missing Role */

enum step { LIST, WATCH };

struct kube_watch {
    struct kube_client *client;
    struct log *log;
    struct loop *loop;
    struct kube_watch_events events;
    void *arg;
    char *path, *selector, *field_selector, *what, *resource, *group, *older_group;

    enum step step;           /* the open call, or the next one */
    struct http_call *call;   /* the open call, or NULL */
    struct loop_timer timer;  /* for the next step */
    struct loop_timer relist; /* the next full list is due */
    struct backoff backoff;
    uint64_t failing_us; /* failing since, while backoff.n_failures > 0 */
    struct rng rng;

    struct kube_list page;
    struct kube_lines lines;
    struct buf refusal;              /* the body of an answer that is not 200 */
    char version[KUBE_VERSION_MAX];  /* where the watch resumes */
    char next[KUBE_CONTINUE_MAX];    /* the list's next page; "": its first */
    char begun_at[KUBE_VERSION_MAX]; /* of the list's first page */
    uint32_t n_listed;

    bool any_version; /* the list may come from the server's memory */
    bool is_due;      /* the list is only due: the watch could go on without it */
    bool has_begun;   /* the list is being delivered */
    bool is_synced, is_failing;
    char why[200];           /* last logged failure */
    bool has_heard;          /* this watch delivered an event or a bookmark */
    bool has_retried;        /* the token was read again since the last success */
    uint32_t n_forbidden[2]; /* in a row, of each step */
    uint64_t role_us;        /* when the Role was last logged */
    uint64_t began_us;       /* this watch */
    uint64_t right_us;       /* when the copy was last confirmed */
};

static void begin_step(struct kube_watch *w);

/* --- what comes next -------------------------------------------------------------------------- */

static void go(struct kube_watch *w, enum step step, uint64_t after_ms) {
    http_call_cancel(w->call);
    w->call = NULL;
    w->step = step;
    if (step == LIST) loop_timer_stop(&w->relist);
    loop_timer_start(&w->timer, after_ms * 1000);
}

/* Starts a fresh list from its first page. */
static void go_list_anew(struct kube_watch *w, uint64_t after_ms) {
    w->any_version = w->is_due = false;
    w->next[0] = '\0';
    go(w, LIST, after_ms);
}

static uint64_t relist_us(const struct kube_watch *w) {
    return (uint64_t)kube_client_intervals(w->client)->relist_ms * 1000;
}

/* A server too busy for a list may still serve the watch. False: this list is needed. */
static bool put_off(struct kube_watch *w, const char *why) {
    if (w->step != LIST || !w->is_due) return false;
    log_event(w->log, LOG_WARN, "kube_list_deferred", log_z("what", w->what), log_z("why", why),
              log_z("remedy", "the watch goes on without it; it is tried again soon"));
    go(w, WATCH, 0);
    loop_timer_start(&w->relist, relist_us(w) / 10);
    return true;
}

/* Full delay for a failure; none for the first plain end. */
static uint32_t delay_ms(struct kube_watch *w, bool has_failed) {
    const struct kube_intervals *i = kube_client_intervals(w->client);
    bool is_first = w->backoff.n_failures == 0;
    uint64_t failing_ms;
    uint32_t ms;

    if (is_first) w->failing_us = loop_now_us(w->loop);
    failing_ms = (loop_now_us(w->loop) - w->failing_us) / 1000;
    w->backoff.max_ms = (uint32_t)MIN(MAX(failing_ms / 4, i->backoff_ms), i->backoff_max_ms);
    ms = backoff_next_ms(&w->backoff, &w->rng);
    return has_failed || !is_first ? ms : 0;
}

/* Compares without numbers: the milliseconds of "Connection timed out after 5001 ms". */
static bool says_the_same(const char *a, const char *b) {
    for (; *a || *b; a++, b++) {
        a += strspn(a, "0123456789");
        b += strspn(b, "0123456789");
        if (*a != *b) return false;
        if (!*a) break;
    }
    return true;
}

/* Logs a first failure and each new reason; true when logged. */
static bool fail_with(struct kube_watch *w, const char *reason, const char *remedy) {
    char why[sizeof(w->why)];
    bool is_new;

    snprintf(why, sizeof(why), "%s", reason);
    is_new = !w->is_failing || !says_the_same(w->why, why);
    if (is_new) {
        log_event(w->log, LOG_WARN, "kube_watch_lost", log_z("what", w->what), log_z("why", why),
                  log_z("remedy", remedy));
    }
    memcpy(w->why, why, sizeof(why));
    w->is_failing = true;
    return is_new;
}

static bool fail(struct kube_watch *w, const char *reason) {
    return fail_with(w, reason, "the workers stay as they are; it is tried again until it works");
}

static void is_right(struct kube_watch *w) {
    w->right_us = loop_now_us(w->loop);
    if (w->is_failing && w->is_synced) {
        log_event(w->log, LOG_INFO, "kube_watch_resumed", log_z("what", w->what));
    }
    w->is_failing = false;
}

/* Records a success. */
static void is_accepted(struct kube_watch *w) {
    w->n_forbidden[w->step] = 0;
    w->has_retried = false;
}

static void notify_change(struct kube_watch *w) {
    if (w->events.change) w->events.change(w->arg);
}

/* --- refusals --------------------------------------------------------------------------------- */

static void on_unauthorized(struct kube_watch *w) {
    kube_client_refused(w->client);
    if (!w->has_retried) {
        w->has_retried = true;
        go(w, w->step, 0);
        return;
    }
    fail(w, "401: the API server rejected the token");
    log_event(w->log, LOG_ERROR, "kube_unauthorized",
              log_z("server", kube_client_server(w->client)), log_z("what", w->what),
              log_z("remedy", "the token is wrong or has expired: it is read again for each "
                              "attempt; mount a projected token, or renew the file of "
                              "--k8s-token-file"));
    go(w, w->step, delay_ms(w, true));
}

/* True: the watch has stopped. */
static bool ask_about_missing(struct kube_watch *w) {
    if (w->step != LIST || !w->events.missing) return false;
    return !w->events.missing(w->arg); /* false: `w` may be gone */
}

/* A starting server forbids everything until it has read its Roles: the second refusal in a row is
 * logged for the operator. */
static void on_forbidden(struct kube_watch *w, const char *why, const char *message) {
    uint64_t now_us = loop_now_us(w->loop);
    uint32_t n = ++w->n_forbidden[w->step];
    bool is_new = fail(w, why);

    if (n == 2 || (n > 2 && (is_new || now_us - w->role_us >= ROLE_AGAIN_US))) {
        w->role_us = now_us;
        kube_role_log(w->log,
                      &(struct kube_role){.path = w->path,
                                          .resource = w->resource,
                                          .group = w->group,
                                          .older_group = w->older_group,
                                          .verbs = "list, watch"},
                      w->step == LIST ? "list" : "watch", message);
    }
    if (n >= 2 && w->step == LIST && !w->is_synced && w->events.forbidden &&
        !w->events.forbidden(w->arg))
        return; /* `w` may be gone */
    go_list_anew(w, delay_ms(w, true));
}

static void on_busy(struct kube_watch *w, const struct kube_status *status,
                    uint32_t retry_after_s) {
    uint64_t least_ms = (uint64_t)MAX(retry_after_s, status->retry_after_s) * 1000;

    uint64_t after_ms = MIN(least_ms, MAX_RETRY_AFTER_MS) + delay_ms(w, true);

    if (status->is_version_too_large) {
        go_list_anew(w, after_ms);
    } else {
        go(w, w->step, after_ms);
    }
}

/* Handles an answer that a retry will hardly change. */
static const char *remedy_of(int code) {
    if (code == 400) {
        return "the workers stay as they are: write --k8s-selector as LABEL=VALUE, each as "
               "kubectl get -l takes it, and start again";
    }
    return "the workers stay as they are: is --k8s-api-server, or the server of the kubeconfig, "
           "the "
           "API server of a cluster?";
}

/* An answer with another code than 200. */
static void on_refused(struct kube_watch *w, int code, uint32_t retry_after_s) {
    struct kube_status status;
    char why[400];

    kube_status_read(&status, buf_str(&w->refusal));
    snprintf(why, sizeof(why), "%s answered with %d: %s",
             w->step == LIST ? "the list" : "the watch", code,
             status.message[0] ? status.message : status.reason);
    if (code == 401) {
        on_unauthorized(w);
    } else if (code == 403) {
        on_forbidden(w, why, status.message);
    } else if (code == 410 || kube_status_is_expired(&status)) {
        go_list_anew(w, delay_ms(w, false));
    } else if (code == 404 && ask_about_missing(w)) {
        return;
    } else if (code == 429 || code >= 500) {
        if (put_off(w, why)) return;
        fail(w, why);
        on_busy(w, &status, retry_after_s);
    } else {
        fail_with(w, why, remedy_of(code));
        go_list_anew(w, delay_ms(w, true));
    }
}

/* --- the list --------------------------------------------------------------------------------- */

static void on_item(struct str item, void *arg) {
    struct kube_watch *w = arg;

    w->n_listed++;
    w->events.object(item, w->arg);
}

static void on_page_data(int code, struct str bytes, void *arg) {
    struct kube_watch *w = arg;
    struct error err = {0};

    if (code != 200) {
        buf_append_str(&w->refusal, bytes); /* longer bodies are cut */
        return;
    }
    if (!w->has_begun) w->events.begin(w->arg);
    w->has_begun = true;
    w->is_due = false; /* a list delivered in part must be completed */
    if (kube_list_feed(&w->page, bytes, &err) == ST_OK) return;
    fail(w, err.message);
    go_list_anew(w, delay_ms(w, true));
}

static void end_list(struct kube_watch *w) {
    uint64_t every_us = relist_us(w);

    snprintf(w->version, sizeof(w->version), "%s", w->begun_at);
    w->next[0] = '\0';
    is_right(w);
    log_event(w->log, w->is_synced ? LOG_DEBUG : LOG_INFO, "kube_listed", log_z("what", w->what),
              log_u64("n", w->n_listed), log_z("server", kube_client_server(w->client)));
    w->is_synced = true;
    loop_timer_start(&w->relist, every_us * 4 / 5 + rng_below(&w->rng, every_us * 2 / 5 + 1));
    w->events.end(w->arg);
    notify_change(w);
    go(w, WATCH, 0);
}

static void on_page_end(const struct http_client_response *r, void *arg) {
    struct kube_watch *w = arg;
    struct error err = {0};
    bool is_first = !w->next[0];
    enum status st;

    w->call = NULL;
    if (r->status != ST_OK) {
        if (put_off(w, r->message)) return;
        fail(w, r->message);
        go(w, LIST, delay_ms(w, true));
        return;
    }
    if (r->code != 200) {
        on_refused(w, r->code, r->retry_after_s);
        return;
    }
    is_accepted(w);
    st = kube_list_end(&w->page, &err);
    if (st == ST_OK && !is_first && strcmp(w->page.next, w->next) == 0) {
        st = error_set(&err, ST_INVALID,
                       "the list's pages repeat: the API server sent a continue token twice");
    }
    if (st != ST_OK) {
        fail(w, err.message);
        go_list_anew(w, delay_ms(w, true));
        return;
    }
    if (is_first) snprintf(w->begun_at, sizeof(w->begun_at), "%s", w->page.version);
    snprintf(w->next, sizeof(w->next), "%s", w->page.next);
    if (w->next[0]) {
        begin_step(w);
    } else {
        end_list(w);
    }
}

/* --- the watch -------------------------------------------------------------------------------- */

/* ERROR: the watch is over. */
static void on_error_event(struct kube_watch *w, struct str object) {
    struct kube_status status;

    kube_status_read(&status, object);
    if (!kube_status_is_expired(&status)) {
        fail(w, status.message[0] ? status.message : "the watch ended with an error");
    }
    go_list_anew(w, delay_ms(w, !kube_status_is_expired(&status)));
}

/* False: the watch is over. */
static bool on_line(struct kube_watch *w, struct str line, bool *has_changed) {
    struct error err = {0};
    struct kube_event e;

    if (kube_event_read(&e, line, &err) != ST_OK) {
        fail(w, err.message);
        go_list_anew(w, delay_ms(w, true));
        return false;
    }
    if (e.type == KUBE_ERROR) {
        on_error_event(w, e.object);
        return false;
    }
    w->has_heard = true;
    snprintf(w->version, sizeof(w->version), STR_FMT, STR_ARG(e.version));
    if (e.type == KUBE_BOOKMARK) return true;
    *has_changed = true;
    if (e.type == KUBE_DELETED) {
        w->events.gone(e.object, w->arg);
    } else {
        w->events.object(e.object, w->arg);
    }
    return true;
}

static void on_watch_data(int code, struct str bytes, void *arg) {
    struct kube_watch *w = arg;
    bool has_changed = false, goes_on = true;
    enum status st = ST_OK;
    struct str line;

    if (code != 200) {
        buf_append_str(&w->refusal, bytes);
        return;
    }
    is_accepted(w);
    is_right(w);
    while (goes_on && (st = kube_lines_next(&w->lines, &bytes, &line)) == ST_OK)
        goes_on = on_line(w, line, &has_changed);
    if (has_changed) notify_change(w);
    if (st != ST_TOO_LARGE) return;
    fail(w, "an event of the watch is longer than 2 MiB");
    go_list_anew(w, delay_ms(w, true));
}

/* A watch that lasted a while is resumed soon, even if a proxy cuts it each time. */
static void forgive(struct kube_watch *w) {
    uint64_t healthy_us = (uint64_t)kube_client_intervals(w->client)->healthy_ms * 1000;
    uint64_t lasted_us = loop_now_us(w->loop) - w->began_us;

    if (lasted_us >= healthy_us / 10) {
        w->backoff.n_failures = MIN(w->backoff.n_failures, 1);
        w->failing_us = loop_now_us(w->loop);
    }
    if (lasted_us >= healthy_us && w->has_heard) w->backoff.n_failures = 0;
}

/* Cut, silent, or its time was over. */
static void on_watch_end(const struct http_client_response *r, void *arg) {
    struct kube_watch *w = arg;
    bool is_blind = !w->has_heard && (r->code == 200 || r->status == ST_TIMEOUT);

    w->call = NULL;
    if (r->code == 200) forgive(w);
    if (r->status == ST_OK && r->code != 200) {
        on_refused(w, r->code, r->retry_after_s);
        return;
    }
    if (r->status != ST_OK) fail(w, r->message);
    if (is_blind) {
        go_list_anew(w, delay_ms(w, false));
    } else {
        go(w, WATCH, delay_ms(w, r->code != 200)); /* 200: it was there until now */
    }
}

/* --- requests --------------------------------------------------------------------------------- */

static void put(struct buf *url, const char *name, struct str value) {
    bool is_first = !memchr(buf_ptr(url), '?', buf_len(url));

    if (value.len == 0) return;
    buf_appendf(url, "%c%s=", is_first ? '?' : '&', name);
    kube_client_encode(url, value);
}

static void put_number(struct buf *url, const char *name, uint64_t value) {
    char digits[STR_U64_MAX];

    put(url, name, (struct str){digits, (size_t)(str_put_u64(digits, value) - digits)});
}

static void put_list(struct kube_watch *w, struct buf *url) {
    put_number(url, "limit", PAGE_ITEMS);
    put(url, "continue", str_of(w->next));
    if (w->any_version && !w->next[0]) put(url, "resourceVersion", STR("0"));
}

static void put_watch(struct kube_watch *w, struct buf *url) {
    uint32_t least_s = MAX(kube_client_intervals(w->client)->watch_ms / 1000, 1u);

    put(url, "watch", STR("true"));
    put(url, "allowWatchBookmarks", STR("true"));
    put(url, "resourceVersion", str_of(w->version));
    put_number(url, "timeoutSeconds", least_s + rng_below(&w->rng, least_s + 1));
}

static enum status send_list(struct kube_watch *w, const char *path, struct error *err) {
    if (!w->next[0]) {
        w->n_listed = 0;
        w->has_begun = false;
    }
    kube_list_clear(&w->page);
    return kube_client_stream(w->client, path, LIST_SILENCE_MS, on_page_data, on_page_end, w,
                              &w->call, err);
}

static enum status send_watch(struct kube_watch *w, const char *path, struct error *err) {
    w->has_heard = false;
    w->began_us = loop_now_us(w->loop);
    kube_lines_clear(&w->lines);
    return kube_client_stream(w->client, path, kube_client_intervals(w->client)->silence_ms,
                              on_watch_data, on_watch_end, w, &w->call, err);
}

static void begin_step(struct kube_watch *w) {
    struct error err = {0};
    enum status st;
    struct buf url;

    buf_clear(&w->refusal);
    buf_init(&url, 0);
    buf_appendf(&url, "%s", w->path);
    put(&url, "labelSelector", str_of(w->selector));
    put(&url, "fieldSelector", str_of(w->field_selector));
    if (w->step == LIST) {
        put_list(w, &url);
    } else {
        put_watch(w, &url);
    }
    buf_append_char(&url, '\0');
    st = w->step == LIST ? send_list(w, buf_ptr(&url), &err) : send_watch(w, buf_ptr(&url), &err);
    buf_fini(&url);
    if (st == ST_OK) return;
    w->call = NULL;
    fail(w, err.message);
    go(w, w->step, delay_ms(w, true));
}

static void on_timer(void *arg) {
    begin_step(arg);
}

static void on_relist(void *arg) {
    struct kube_watch *w = arg;

    go_list_anew(w, 0);
    w->is_due = true;
}

/* --- from outside ----------------------------------------------------------------------------- */

static char *copy(const char *s) {
    return mem_strdup(s ? s : "");
}

enum status kube_watch_create(struct kube_watch **out, struct kube_client *client,
                              const struct kube_watch_config *config, struct error *err) {
    const struct kube_intervals *intervals = kube_client_intervals(client);
    struct kube_watch *w;
    uint64_t seed;

    if (config->path[0] != '/' || strpbrk(config->path, "?# \r\n")) {
        return error_set(err, ST_INVALID, "invalid path of a collection '%s'", config->path);
    }
    w = mem_zalloc(sizeof(*w));
    w->client = client;
    w->loop = kube_client_loop(client);
    w->log = kube_client_log(client);
    w->events = *config->events;
    w->arg = config->arg;
    w->path = copy(config->path);
    w->selector = copy(config->selector);
    w->field_selector = copy(config->field_selector);
    w->what = copy(config->what);
    w->resource = copy(config->resource);
    w->group = copy(config->group);
    w->older_group = copy(config->older_group);
    w->any_version = true;
    w->right_us = loop_now_us(w->loop);
    w->backoff =
        (struct backoff){.first_ms = intervals->backoff_ms, .max_ms = intervals->backoff_max_ms};
    hash_random(&seed, sizeof(seed));
    rng_seed(&w->rng, seed);
    kube_list_init(&w->page, on_item, w);
    kube_lines_init(&w->lines);
    buf_init(&w->refusal, KUBE_STATUS_MAX_BYTES);
    loop_timer_init(&w->timer, w->loop, on_timer, w);
    loop_timer_init(&w->relist, w->loop, on_relist, w);
    go(w, LIST, 0);
    *out = w;
    return ST_OK;
}

void kube_watch_destroy(struct kube_watch *w) {
    if (!w) return;
    http_call_cancel(w->call);
    loop_timer_fini(&w->timer);
    loop_timer_fini(&w->relist);
    kube_list_fini(&w->page);
    kube_lines_fini(&w->lines);
    buf_fini(&w->refusal);
    mem_free(w->path);
    mem_free(w->selector);
    mem_free(w->field_selector);
    mem_free(w->what);
    mem_free(w->resource);
    mem_free(w->group);
    mem_free(w->older_group);
    mem_free(w);
}

static bool is_healthy(const struct kube_watch *w) {
    if (!w->is_synced) return false;
    return !w->is_failing || (w->step == WATCH && w->call && http_call_code(w->call) == 200);
}

double kube_watch_stale_s(const struct kube_watch *w) {
    return is_healthy(w) ? 0 : (double)(loop_now_us(w->loop) - w->right_us) / 1e6;
}

bool kube_watch_is_synced(const struct kube_watch *w) {
    return w->is_synced;
}
