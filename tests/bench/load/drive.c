/* tests/bench/load/drive.c - sends requests when they are due and notes what became of them.
 *
 *      due ──▶ idle client, or a new one ──▶ busy ── answer complete ──▶ idle (or the next request)
 *                                             └───── lost, late, left ──▶ gone
 *
 * Arrivals come from a timer of the kernel's, since those of the loop are coarse. */
#include "tests/bench/load/drive.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/mem.h"
#include "common/base/rng.h"
#include "common/http/http_parse.h"
#include "common/net/conn.h"
#include "common/net/tls.h"

#define SWEEP_US           50000
#define SWEEP_ABORTS_US    2000
#define OPENING_AT_ONCE    64u /* of a closed loop, so that no backlog overflows */
#define CONNECT_TIMEOUT_US 5000000

const char *const outcome_names[OUTCOME_COUNT] = {
    [OUTCOME_OK] = "ok",           [OUTCOME_HTTP] = "http_error",     [OUTCOME_CONNECT] = "connect",
    [OUTCOME_BROKEN] = "broken",   [OUTCOME_MALFORMED] = "malformed", [OUTCOME_STREAM] = "stream",
    [OUTCOME_TIMEOUT] = "timeout", [OUTCOME_ABORTED] = "aborted",
};

struct client {
    struct conn conn;
    struct drive *drive;
    struct list link; /* idle, or busy in the order of sending */
    struct loop_task reap;
    struct buf request; /* kept until it is answered */
    uint64_t record;
    uint64_t abort_at_us; /* 0: never */
    struct http_head head;
    struct http_body body;
    bool is_busy, is_reused, has_input, has_head, is_sse, has_error;
    char tail[16]; /* the last bytes of the answer */
    uint32_t n_tail;
};

struct drive {
    struct loop *loop;
    struct drive_config config;
    struct traffic *traffic;
    struct rng rng;
    struct tls_ticket *ticket;
    struct buf fields; /* of every request's head, after the length */
    struct list idle, busy;
    struct loop_fd arrivals;
    struct loop_timer sweep;
    uint64_t start_us, next_due_us; /* the latter since the start */
    struct record *records;
    uint64_t n_records, cap_records, n_resent, n_resets;
    uint32_t n_clients, n_busy;
    bool is_over; /* no request is begun any more */
};

static void client_send(struct client *c);
static void begin(struct drive *d, struct client *c, uint64_t due_us);

static uint64_t elapsed_us(const struct drive *d) {
    return clock_now_us() - d->start_us;
}

static void stop_when_done(struct drive *d) {
    if (d->is_over && d->n_busy == 0) loop_stop(d->loop);
}

/* --- clients ---------------------------------------------------------------------------------- */

static void reap(void *arg) {
    struct client *c = arg;

    buf_fini(&c->request);
    mem_free(c);
}

static void client_drop(struct client *c) {
    struct drive *d = c->drive;

    if (list_is_linked(&c->link)) list_remove(&c->link);
    conn_fini(&c->conn);
    loop_defer(d->loop, &c->reap);
    d->n_clients--;
}

/* The request is over; the client is idle, or the caller drops it. */
static void end_record(struct client *c, enum outcome outcome) {
    struct drive *d = c->drive;
    struct record *r = &d->records[c->record];

    r->end_us = elapsed_us(d);
    r->outcome = (uint8_t)outcome;
    c->is_busy = false;
    d->n_busy--;
    list_remove(&c->link);
}

static bool may_begin(struct drive *d) {
    const struct drive_config *k = &d->config;

    if (!d->is_over &&
        ((k->n_requests && d->n_records >= k->n_requests) || elapsed_us(d) >= k->duration_us)) {
        d->is_over = true;
    }
    return !d->is_over;
}

static struct client *client_open(struct drive *d);

/* A closed loop keeps its connections at work. */
static void go_on(struct drive *d, struct client *c) {
    if (!d->config.is_open && may_begin(d)) {
        if (!c) c = client_open(d);
        if (c) begin(d, c, elapsed_us(d));
    } else if (c) {
        list_push_front(&d->idle, &c->link);
    }
    stop_when_done(d);
}

static void client_failed(struct client *c, enum outcome outcome) {
    struct drive *d = c->drive;

    end_record(c, outcome);
    client_drop(c);
    go_on(d, NULL);
}

/* --- answers ---------------------------------------------------------------------------------- */

static int32_t find_number(struct str text, struct str name) {
    ptrdiff_t at = str_find(text, name);

    return at < 0 ? -1 : (int32_t)strtol(text.ptr + at + name.len, NULL, 10);
}

static void keep_tail(struct client *c, struct str payload) {
    size_t n = MIN(payload.len, sizeof(c->tail)), kept = MIN(c->n_tail, sizeof(c->tail) - n);

    memmove(c->tail, c->tail + c->n_tail - kept, kept);
    memcpy(c->tail + kept, payload.ptr + payload.len - n, n);
    c->n_tail = (uint32_t)(kept + n);
}

static void take_payload(struct client *c, struct record *r, struct str payload) {
    char last = c->n_tail ? c->tail[c->n_tail - 1] : 0;

    if (!r->first_us) r->first_us = elapsed_us(c->drive);
    r->answer_bytes += payload.len;
    for (size_t i = 0; c->is_sse && i < payload.len; i++) {
        r->n_events += payload.ptr[i] == '\n' && last == '\n';
        last = payload.ptr[i];
    }
    if (c->is_sse && str_find(payload, STR("data: {\"error\"")) >= 0) c->has_error = true;
    if (str_find(payload, STR("\"usage\":{")) >= 0) {
        r->prompt_tokens = find_number(payload, STR("\"prompt_tokens\":"));
        r->cached_tokens = find_number(payload, STR("\"cached_tokens\":"));
    }
    keep_tail(c, payload);
}

static enum outcome verdict(const struct client *c) {
    struct str tail = {c->tail, c->n_tail};

    if (c->head.status_code >= 400) return OUTCOME_HTTP;
    if (!c->is_sse) return OUTCOME_OK;
    return !c->has_error && str_ends(tail, STR("data: [DONE]\n\n")) ? OUTCOME_OK : OUTCOME_STREAM;
}

static void answered(struct client *c) {
    struct drive *d = c->drive;
    bool is_kept = c->head.keep_alive && c->head.framing != HTTP_CLOSE_BODY &&
                   conn_pending(&c->conn) == 0 && conn_input(&c->conn).len == 0;

    end_record(c, verdict(c));
    if (!is_kept) client_drop(c);
    go_on(d, is_kept ? c : NULL);
}

/* True when the head is complete. */
static bool take_head(struct client *c, struct record *r) {
    struct conn_bytes in = conn_input(&c->conn);
    enum status st = http_head_parse(&c->head, in.ptr, in.len, NULL);

    if (st == ST_AGAIN) return false;
    if (st != ST_OK) {
        client_failed(c, OUTCOME_MALFORMED);
        return false;
    }
    r->code = c->head.status_code;
    c->has_head = true;
    c->is_sse =
        str_starts(http_head_find(&c->head, in.ptr, STR("content-type")), STR("text/event-stream"));
    if (!c->is_sse) r->first_us = elapsed_us(c->drive);
    http_body_init(&c->body, &c->head, 0);
    conn_consume(&c->conn, c->head.head_len);
    return true;
}

static void on_data(struct conn *conn, void *owner) {
    struct client *c = owner;
    struct record *r = &c->drive->records[c->record];
    struct conn_bytes in;
    enum status st;

    (void)conn;
    if (!c->is_busy) {
        client_drop(c); /* sent unsolicited bytes */
        return;
    }
    c->has_input = true;
    if (!c->has_head && !take_head(c, r)) return;
    while ((in = conn_input(&c->conn)).len || c->body.framing == HTTP_NO_BODY) {
        struct str payload = STR_NULL;
        size_t used = 0;

        st = http_body_next(&c->body, in.ptr, in.len, &used, &payload, NULL);
        if (st != ST_OK && st != ST_AGAIN) {
            client_failed(c, OUTCOME_MALFORMED);
            return;
        }
        if (payload.len) take_payload(c, r, payload);
        if (used) conn_consume(&c->conn, used);
        if (st == ST_OK) {
            answered(c);
            return;
        }
    }
}

static void on_closed(struct conn *conn, enum conn_end end, void *owner) {
    struct client *c = owner;
    struct drive *d = c->drive;
    struct client *again;

    (void)conn;
    d->n_resets += end == CONN_RESET;
    if (!c->is_busy) {
        client_drop(c);
    } else if (c->has_head && end == CONN_EOF && http_body_eof(&c->body, NULL) == ST_OK) {
        answered(c);
    } else if (c->is_reused && !c->has_input && (again = client_open(d))) {
        again->record = c->record;
        again->is_busy = true;
        again->abort_at_us = c->abort_at_us;
        buf_append_str(&again->request, buf_str(&c->request));
        list_push_back(&d->busy, &again->link);
        client_drop(c);
        d->n_resent++;
        client_send(again);
    } else {
        client_failed(c, end == CONN_REFUSED || end == CONN_TIMED_OUT ? OUTCOME_CONNECT
                                                                      : OUTCOME_BROKEN);
    }
}

/* A closed loop opens its connections a few at a time. */
static void on_connected(struct conn *conn, void *owner) {
    struct drive *d = ((struct client *)owner)->drive;

    (void)conn;
    if (!d->config.is_open && d->n_clients < d->config.connections) go_on(d, NULL);
}

static const struct conn_events client_events = {
    .on_data = on_data, .on_closed = on_closed, .on_connected = on_connected};

static struct client *client_open(struct drive *d) {
    struct client *c = mem_zalloc(sizeof(*c));
    const struct sockaddr_in *addr = endpoints_next(d->config.endpoints, clock_now_us());

    c->drive = d;
    buf_init(&c->request, 0);
    loop_task_init(&c->reap, reap, c);
    if (conn_connect(&c->conn, d->loop, (const struct sockaddr *)addr, sizeof(*addr),
                     CONNECT_TIMEOUT_US, &client_events, c, NULL) != ST_OK) {
        mem_free(c);
        return NULL;
    }
    if (d->config.tls) tls_connect(&c->conn, d->config.tls, "127.0.0.1", &d->ticket);
    d->n_clients++;
    return c;
}

/* --- requests --------------------------------------------------------------------------------- */

static void client_send(struct client *c) {
    c->has_input = c->has_head = c->is_sse = c->has_error = false;
    c->n_tail = 0;
    http_response_init(&c->head, false);
    conn_write(&c->conn, buf_ptr(&c->request), buf_len(&c->request));
    conn_flush(&c->conn);
}

static uint64_t add_record(struct drive *d, const struct record *r) {
    if (d->n_records == d->cap_records) {
        d->cap_records = d->cap_records ? d->cap_records * 2 : 4096;
        d->records = mem_realloc(d->records, d->cap_records * sizeof(*d->records));
    }
    d->records[d->n_records] = *r;
    return d->n_records++;
}

/* Makes the next request and sends it on `c`; c NULL: there is no connection for it. */
static void begin(struct drive *d, struct client *c, uint64_t due_us) {
    const struct drive_config *k = &d->config;
    struct traffic_item item;
    struct record r = {.prompt_tokens = -1, .cached_tokens = -1, .due_us = due_us};
    uint64_t id;

    traffic_next(d->traffic, due_us, &item);
    r.session = item.session;
    r.turn = item.turn;
    r.max_tokens = item.max_tokens;
    r.body_bytes = (uint32_t)item.body.len;
    r.sent_us = r.end_us = elapsed_us(d);
    r.outcome = OUTCOME_CONNECT;
    id = add_record(d, &r);
    if (!c) return;
    c->record = id;
    c->is_reused = !c->conn.is_connecting;
    c->is_busy = true;
    c->abort_at_us = 0;
    if (k->abort_share > 0 && rng_f64(&d->rng) < k->abort_share) {
        c->abort_at_us = r.sent_us + rng_below(&d->rng, k->abort_us + 1) + 1;
    }
    list_push_back(&d->busy, &c->link);
    d->n_busy++;
    buf_clear(&c->request);
    buf_appendf(&c->request, "POST %s HTTP/1.1\r\nhost: %s\r\ncontent-length: %zu\r\n", k->path,
                k->authority, item.body.len);
    buf_append_str(&c->request, buf_str(&d->fields));
    buf_append_str(&c->request, item.body);
    client_send(c);
}

/* --- arrivals --------------------------------------------------------------------------------- */

static void wake_at(struct drive *d, uint64_t since_start_us) {
    uint64_t at_us = d->start_us + since_start_us;
    struct itimerspec when = {
        .it_value = {(time_t)(at_us / 1000000), (long)(at_us % 1000000) * 1000}};

    timerfd_settime(d->arrivals.fd, TFD_TIMER_ABSTIME, &when, NULL);
}

static void on_arrivals(unsigned ready, void *arg) {
    struct drive *d = arg;
    uint64_t n, now_us = elapsed_us(d);

    (void)ready;
    if (read(d->arrivals.fd, &n, sizeof(n)) < 0) return;
    while (d->next_due_us <= now_us && may_begin(d) && d->next_due_us < d->config.duration_us) {
        struct list *idle = list_pop_front(&d->idle);
        struct client *c = NULL;

        if (idle) {
            c = LIST_ENTRY(idle, struct client, link);
        } else if (d->n_clients < d->config.connections) {
            c = client_open(d);
        }
        begin(d, c, d->next_due_us);
        d->next_due_us += (uint64_t)(-log(1 - rng_f64(&d->rng)) / d->config.rps * 1e6);
    }
    if (may_begin(d)) {
        wake_at(d, MIN(d->next_due_us, d->config.duration_us));
    } else {
        stop_when_done(d);
    }
}

/* Leaves the requests whose time has come. */
static void on_sweep(void *arg) {
    struct drive *d = arg;
    uint64_t now_us = elapsed_us(d);

    LIST_FOR_EACH(it, &d->busy) {
        struct client *c = LIST_ENTRY(it, struct client, link);

        if (now_us - d->records[c->record].sent_us > d->config.timeout_us) {
            client_failed(c, OUTCOME_TIMEOUT);
        } else if (c->abort_at_us && now_us >= c->abort_at_us) {
            client_failed(c, OUTCOME_ABORTED);
        }
    }
    may_begin(d);
    stop_when_done(d);
    loop_timer_start(&d->sweep, d->config.abort_share > 0 ? SWEEP_ABORTS_US : SWEEP_US);
}

void drive_start(struct drive *d) {
    d->start_us = clock_now_us();
    on_sweep(d);
    if (d->config.is_open) {
        loop_fd_init(&d->arrivals, d->loop,
                     timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC), on_arrivals, d);
        loop_fd_watch(&d->arrivals, LOOP_READ);
        d->next_due_us = (uint64_t)(-log(1 - rng_f64(&d->rng)) / d->config.rps * 1e6);
        wake_at(d, d->next_due_us);
        return;
    }
    for (uint32_t i = 0; i < MIN(d->config.connections, OPENING_AT_ONCE); i++)
        go_on(d, NULL);
}

/* --- life ------------------------------------------------------------------------------------- */

struct drive *drive_create(struct loop *loop, const struct drive_config *config,
                           struct traffic *traffic) {
    struct drive *d = mem_zalloc(sizeof(*d));

    d->loop = loop;
    d->config = *config;
    d->traffic = traffic;
    d->arrivals.fd = -1;
    rng_seed(&d->rng, ~config->seed);
    list_init(&d->idle);
    list_init(&d->busy);
    buf_init(&d->fields, 0);
    buf_append_str(&d->fields, STR("content-type: application/json\r\naccept: */*\r\n"
                                   "user-agent: incipit-bench\r\n"));
    for (uint32_t i = 0; i < config->n_headers; i++)
        buf_appendf(&d->fields, "%s\r\n", config->headers[i]);
    buf_append_str(&d->fields, STR("\r\n"));
    loop_timer_init(&d->sweep, loop, on_sweep, d);
    return d;
}

void drive_destroy(struct drive *d) {
    struct list *link;

    if (!d) return;
    while ((link = list_first(&d->idle)) || (link = list_first(&d->busy)))
        client_drop(LIST_ENTRY(link, struct client, link));
    if (d->arrivals.fd >= 0) {
        loop_fd_fini(&d->arrivals);
        close(d->arrivals.fd);
    }
    loop_timer_fini(&d->sweep);
    tls_ticket_forget(&d->ticket);
    buf_fini(&d->fields);
    mem_free(d->records);
    mem_free(d);
}

const struct record *drive_records(const struct drive *d, uint64_t *n) {
    *n = d->n_records;
    return d->records;
}

uint64_t drive_n_resent(const struct drive *d) {
    return d->n_resent;
}

uint64_t drive_n_resets(const struct drive *d) {
    return d->n_resets;
}

uint32_t drive_n_connections(const struct drive *d) {
    return d->n_clients;
}
