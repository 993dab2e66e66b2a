/* worker/kv/tiers/peer/peer_link.c - the sink's end of a connection.
 *
 *      DOWN ─ job ▶ LOOKING_UP ▶ CONNECTING ▶ UPGRADING ▶ GREETING ▶ PROVING ▶ SHARING ▶ UP
 *        ▲                  101 ─────────────────▲ HELLO ────▲ AUTH ────▲ (peer_share.c)  │
 *        └──────────── lost: all its jobs end ────────────────────────────────────────────┘
 *
 * Few jobs are asked for at a time, so that what a request needs first is not behind what it may
 * need later. Bytes are verified where they were received, on their way into the host blocks; a
 * unit longer than a frame is put together in `parts`. Between two jobs a link is idle; a source
 * that closes it then is no failure. */
#include <stdio.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/hash.h"
#include "common/base/mem.h"
#include "worker/kv/tiers/peer/peer_internal.h"

#define ASKED_MAX     8u       /* jobs at a time: a busy source finds a run between its steps */
#define HEAD_MAX      4096u    /* of the answer to the upgrade */
#define GRACE_US      1000000u /* a run that has begun is finished, if it takes no longer */
#define OVERDUE_US    (2 * GRACE_US) /* behind a job's deadline: its source no longer ends it */
#define PINGS_MISSED  2u
#define PATIENCE_MOST 600000000u

static void link_up(struct peer_source *s);

static void start_silence(struct peer_source *s, uint32_t ms) {
    loop_timer_start(&s->silence, (uint64_t)ms * 1000u);
}

/* --- the end ---------------------------------------------------------------------------------- */

void peer_link_close(struct peer_source *s) {
    conn_fini(&s->conn);
    loop_timer_stop(&s->silence);
    peer_share_end(s);
    s->state = SOURCE_DOWN;
    s->n_parts = 0;
    s->parts_of = NULL;
}

static void report_lost(struct peer_source *s, bool is_refusal, const char *why) {
    struct log *log = s->tier->config.log;

    peer_source_failed(s, is_refusal);
    if (is_refusal) {
        log_event(log, LOG_WARN, "kv_peer_refused", log_z("peer", s->at.authority),
                  log_z("differs", why));
    } else {
        log_event(log, LOG_WARN, "kv_peer_lost", log_z("peer", s->at.authority), log_z("why", why));
    }
}

void peer_link_lost(struct peer_source *s, enum tier_result result, const char *why) {
    peer_link_close(s);
    if (!s->tier->is_closing) report_lost(s, result == TIER_ABSENT, why);
    while (!list_is_empty(&s->works))
        peer_work_end(LIST_ENTRY(list_first(&s->works), struct peer_work, link), result);
}

static void lost(struct peer_source *s, const char *why) {
    peer_link_lost(s, TIER_IO, why);
}

/* --- sending ---------------------------------------------------------------------------------- */

static void send_flagged(struct peer_source *s, enum peer_type type, uint8_t flags, uint16_t stream,
                         const void *body, size_t n) {
    uint8_t head[PEER_HEAD_BYTES];
    struct iovec pieces[2] = {{head, sizeof(head)}, {(void *)(uintptr_t)body, n}};

    peer_frame_head(type, flags, stream, n, head);
    conn_writev(&s->conn, pieces, n ? 2 : 1);
}

static void send_frame(struct peer_source *s, enum peer_type type, uint16_t stream,
                       const void *body, size_t n) {
    send_flagged(s, type, 0, stream, body, n);
}

static uint32_t count_asked(const struct peer_source *s) {
    uint32_t n = 0;

    LIST_FOR_EACH(it, &s->works)
    n += LIST_ENTRY(it, struct peer_work, link)->is_asked;
    return n;
}

static void ask(struct peer_source *s, struct peer_work *w, uint64_t now_us) {
    const struct tier_job *job = w->job;
    uint64_t left_us = MIN(job->deadline_us - now_us, PATIENCE_MOST);
    struct peer_asked asked = {.patience_us = left_us + GRACE_US,
                               .credit_bytes = s->tier->window_bytes};

    for (uint32_t i = w->n_come; i < job->n; i++)
        asked.keys[asked.n++] = job->units[i].id.key;
    w->n_first = w->n_have = w->n_come;
    w->used_credit = 0;
    w->stream = s->next_stream++;
    w->is_asked = true;
    w->by_place = s->pool.map && !w->is_lost;
    send_flagged(s, PEER_WANT, w->by_place ? PEER_FLAG_PLACES : 0, w->stream, &asked,
                 PEER_ASKED_BYTES(asked.n));
    if (!loop_timer_is_running(&s->silence)) start_silence(s, s->tier->config.ping_ms);
}

/* Asks for the next jobs, or ends those that no request needs any more. */
static void pump(void *arg) {
    struct peer_source *s = arg;
    uint64_t now_us = clock_now_us();
    struct list *it = s->works.next, *next;
    uint32_t n_asked = count_asked(s);

    if (s->state == SOURCE_DOWN && it != &s->works) link_up(s);
    if (s->state != SOURCE_UP) return;
    for (; it != &s->works && n_asked < s->asked_most; it = next) {
        struct peer_work *w = LIST_ENTRY(it, struct peer_work, link);

        next = it->next;
        if (w->is_asked) continue;
        if (atomic_load_explicit(&w->job->is_cancelled, memory_order_relaxed)) {
            peer_work_end(w, TIER_SKIPPED);
        } else if (now_us > w->job->deadline_us) {
            peer_work_end(w, TIER_LATE);
        } else {
            ask(s, w, now_us);
            n_asked++;
        }
    }
}

void peer_link_add(struct peer_source *s, struct peer_work *w) {
    list_push_back(&s->works, &w->link);
    loop_defer(s->tier->loop, &s->pump);
}

static void cancel(struct peer_source *s, struct peer_work *w) {
    if (w->is_cancelled) return;
    w->is_cancelled = true;
    send_frame(s, PEER_CANCEL, w->stream, NULL, 0);
}

/* --- who answers ------------------------------------------------------------------------------ */

static void on_hello(struct peer_source *s, const struct peer_frame *f) {
    enum peer_refusal why;
    uint8_t proof[PEER_PROOF_BYTES];

    peer_read_hello(f, &s->theirs);
    why = peer_hello_compare(&s->mine, &s->theirs);
    if (why != PEER_WELCOME) {
        peer_link_lost(s, TIER_ABSENT, peer_refusal_name(why));
        return;
    }
    peer_prove(peer_key(s->tier), false, &s->mine, &s->theirs, proof);
    send_frame(s, PEER_AUTH, 0, proof, sizeof(proof));
    s->state = SOURCE_PROVING;
}

void peer_link_ready(struct peer_source *s) {
    s->state = SOURCE_UP;
    s->asked_most = ASKED_MAX;
    loop_timer_stop(&s->silence);
    loop_defer(s->tier->loop, &s->pump);
}

static void on_auth(struct peer_source *s, const struct peer_frame *f) {
    uint8_t proof[PEER_PROOF_BYTES];

    peer_prove(peer_key(s->tier), true, &s->mine, &s->theirs, proof);
    if (!hash_equal(proof, f->body.ptr, sizeof(proof))) {
        peer_link_lost(s, TIER_ABSENT, peer_refusal_name(PEER_DIFFERS_KEY));
        return;
    }
    peer_count_stat(s->tier, &s->tier->stats.n_connections, 1);
    if (peer_share_begin(s)) {
        s->state = SOURCE_SHARING;
        start_silence(s, s->tier->config.share_ms);
    } else {
        peer_link_ready(s);
    }
}

/* Takes its 101. No header of it is needed. False: more must come. */
static bool take_upgrade(struct peer_source *s, struct str in, size_t *used) {
    const char *end = memmem(in.ptr, in.len, "\r\n\r\n", 4);
    char why[64];

    if (!end && in.len <= HEAD_MAX) return false;
    if (!end || !str_starts(in, STR("HTTP/1.1 101 "))) {
        const char *line = memchr(in.ptr, '\r', in.len);

        snprintf(why, sizeof(why), "no upgrade: %.*s", line ? (int)(line - in.ptr) : 0, in.ptr);
        lost(s, why);
        return false;
    }
    *used = (size_t)(end - in.ptr) + 4;
    peer_hello_make(&s->tier->form, s->tier->config.generation, &s->mine);
    if (s->tier->config.can_share) s->mine.flags |= PEER_CAN_SHARE;
    send_frame(s, PEER_HELLO, 0, &s->mine, sizeof(s->mine));
    s->state = SOURCE_GREETING;
    return true;
}

/* --- what comes ------------------------------------------------------------------------------- */

static struct peer_work *find(const struct peer_source *s, uint16_t stream) {
    LIST_FOR_EACH(it, &s->works) {
        struct peer_work *w = LIST_ENTRY(it, struct peer_work, link);

        if (w->is_asked && w->stream == stream) return w;
    }
    return NULL;
}

static void give_credit(struct peer_source *s, struct peer_work *w, size_t n) {
    uint32_t credit;

    w->used_credit += n;
    if (w->used_credit < s->tier->window_bytes / 4) return;
    credit = (uint32_t)w->used_credit;
    w->used_credit = 0;
    send_frame(s, PEER_CREDIT, w->stream, &credit, sizeof(credit));
}

/* A whole unit, into its host block. */
static void land(struct peer_source *s, struct peer_work *w, struct str unit) {
    struct tier_peer *t = s->tier;
    struct tier_unit *u = &w->job->units[w->n_come++];

    peer_work_begin(s, w);
    u->cause = unit_open(t->codec, &u->id, unit.ptr, unit.len, u->payload);
    u->result = u->cause == UNIT_FINE ? TIER_OK : TIER_REJECTED;
    if (u->result == TIER_OK) {
        peer_count_stat(t, &t->base.loaded_bytes, t->form.block_bytes);
    } else {
        cancel(s, w);
    }
    if (atomic_load_explicit(&w->job->is_cancelled, memory_order_relaxed)) cancel(s, w);
    give_credit(s, w, t->unit_bytes);
}

/* NULL, or what is wrong with it. */
static const char *on_unit(struct peer_source *s, struct peer_work *w, const struct peer_frame *f) {
    struct tier_peer *t = s->tier;
    struct str unit = f->body;

    if (w->n_come >= w->n_have) return "more units than it has";
    if (s->parts_of && s->parts_of != w) return "a unit in parts of another";
    if (s->parts_of || f->flags & PEER_FLAG_CONTINUES) {
        if (!s->parts) s->parts = mem_try_aligned(64, ALIGN_UP(t->unit_bytes, 64));
        if (!s->parts) return "no memory for a unit";
        if (f->body.len > t->unit_bytes - s->n_parts) return "a unit that is too long";
        memcpy(s->parts + s->n_parts, f->body.ptr, f->body.len);
        s->n_parts += f->body.len;
        s->parts_of = w;
        if (f->flags & PEER_FLAG_CONTINUES) return NULL;
        unit = (struct str){(const char *)s->parts, s->n_parts};
        s->n_parts = 0;
        s->parts_of = NULL;
    }
    land(s, w, unit);
    return NULL;
}

static const char *on_have(struct peer_work *w, uint32_t n) {
    if (w->n_have > w->n_come || n == 0 || n > w->job->n - w->n_come)
        return "a HAVE that was not asked for";
    w->n_have += n;
    if (!w->have_us) w->have_us = clock_now_us();
    return NULL;
}

/* A source pins so many blocks at a time: it may have had room for a part of the run, or for none
 * while it had others of this link. */
static bool ask_again(struct peer_source *s, struct peer_work *w) {
    uint32_t n_asked = count_asked(s);

    if (w->is_cancelled || (w->n_have == w->n_first && n_asked == 1)) return false;
    if (w->n_have == w->n_first) s->asked_most = n_asked - 1;
    w->is_asked = false;
    return true;
}

static const char *on_end(struct peer_source *s, struct peer_work *w, uint32_t result) {
    bool asks_anew = w->by_place && w->is_lost; /* for the rest, as units */

    if (result >= TIER_REJECTED || s->parts_of == w) return "an END of no known result";
    if (result == TIER_OK && w->n_come < w->job->n && !asks_anew)
        return "an END before the last unit";
    peer_source_worked(s);
    s->end_us = clock_now_us();
    if (asks_anew) {
        w->is_asked = false;
    } else if (result != TIER_BUSY || !ask_again(s, w)) {
        peer_work_end(w, (enum tier_result)result);
    }
    loop_defer(s->tier->loop, &s->pump);
    return NULL;
}

static const char *take_stream(struct peer_source *s, const struct peer_frame *f) {
    struct peer_work *w;

    if (f->type == PEER_PING) return NULL; /* any frame is a sign of life */
    w = find(s, f->stream);
    if (!w) return "a stream that was not asked for";
    switch (f->type) {
    case PEER_HAVE: return on_have(w, peer_read_number(f));
    case PEER_UNIT: return on_unit(s, w, f);
    case PEER_PLACES: return peer_share_take(s, w, f);
    case PEER_END: return on_end(s, w, peer_read_number(f));
    default: return "a frame that no source sends";
    }
}

static void take_frame(struct peer_source *s, const struct peer_frame *f) {
    const char *why = "a frame out of turn";

    if (f->type == PEER_REFUSE) {
        peer_link_lost(s, TIER_ABSENT, peer_refusal_name((enum peer_refusal)peer_read_number(f)));
    } else if (s->state == SOURCE_GREETING && f->type == PEER_HELLO) {
        on_hello(s, f);
    } else if (s->state == SOURCE_PROVING && f->type == PEER_AUTH) {
        on_auth(s, f);
    } else {
        if (s->state == SOURCE_UP) why = take_stream(s, f);
        if (why) lost(s, why);
    }
}

/* Takes what has come, frame by frame. False: the link is down. */
static bool take_frames(struct peer_source *s, struct str in, size_t *used, size_t *wanted) {
    struct error err = {0};
    struct peer_frame f;
    enum status st;

    while ((st = peer_frame_read((struct str){in.ptr + *used, in.len - *used}, &f, wanted, &err)) ==
           ST_OK) {
        take_frame(s, &f);
        if (s->state == SOURCE_DOWN) return false;
        *used += f.n_taken;
    }
    if (st == ST_AGAIN) return true;
    lost(s, err.message);
    return false;
}

/* Its server answers, and nothing behind it does. */
static bool is_overdue(const struct peer_source *s) {
    uint64_t now_us = clock_now_us();

    LIST_FOR_EACH(it, &s->works) {
        const struct peer_work *w = LIST_ENTRY(it, struct peer_work, link);
        uint64_t due_us = w->job->deadline_us;

        if (w->is_asked && now_us > due_us && now_us - due_us > OVERDUE_US) return true;
    }
    return false;
}

/* on_silence finds the source that sends nothing. */
static void on_data(struct conn *c, void *owner) {
    struct peer_source *s = owner;
    struct conn_bytes in = conn_input(c);
    size_t used = 0, wanted = 0;

    if (s->state == SOURCE_UPGRADING && !take_upgrade(s, (struct str){in.ptr, in.len}, &used))
        return;
    if (!take_frames(s, (struct str){in.ptr, in.len}, &used, &wanted)) return;
    conn_consume(c, used);
    conn_want_input(c, wanted > IOBUF_LARGE_BYTES ? wanted : 0);
    if (s->state != SOURCE_UP) return;
    s->n_pings = 0;
    if (is_overdue(s)) {
        lost(s, "it has not ended a run in time");
    } else if (count_asked(s) > 0) {
        start_silence(s, s->tier->config.ping_ms);
    } else {
        loop_timer_stop(&s->silence);
    }
}

static void on_silence(void *arg) {
    struct peer_source *s = arg;

    if (s->state == SOURCE_SHARING) {
        peer_share_end(s);
        peer_link_ready(s);
    } else if (s->state != SOURCE_UP) {
        lost(s, s->state == SOURCE_LOOKING_UP ? "its name was not found in time"
                                              : "it has not answered in time");
    } else if (s->n_pings == PINGS_MISSED) {
        lost(s, "it has not answered in time");
    } else {
        s->n_pings++;
        send_frame(s, PEER_PING, 0, NULL, 0);
        start_silence(s, s->tier->config.ping_ms);
    }
}

/* --- the connection --------------------------------------------------------------------------- */

static void on_connected(struct conn *c, void *owner) {
    struct peer_source *s = owner;
    char head[sizeof("GET " PEER_PATH
                     " HTTP/1.1\r\nhost: \r\nconnection: upgrade\r\nupgrade: " PEER_PROTOCOL
                     "\r\n\r\n") +
              ADDRESS_URL_MAX];
    int n = snprintf(head, sizeof(head),
                     "GET " PEER_PATH
                     " HTTP/1.1\r\nhost: %s\r\nconnection: upgrade\r\nupgrade: " PEER_PROTOCOL
                     "\r\n\r\n",
                     s->at.authority);

    conn_receive_much(c);
    conn_write(c, head, (size_t)n);
    s->state = SOURCE_UPGRADING;
    start_silence(s, s->tier->config.greet_ms);
}

/* An idle source's end is none of ours: what waits goes over another connection. */
static void on_closed(struct conn *c, enum conn_end end, void *owner) {
    struct peer_source *s = owner;

    (void)c;
    if (s->state == SOURCE_UP && count_asked(s) == 0) {
        peer_link_close(s);
        loop_defer(s->tier->loop, &s->pump);
    } else {
        lost(s, conn_end_name(end));
    }
}

static const struct conn_events events = {
    .on_data = on_data,
    .on_connected = on_connected,
    .on_closed = on_closed,
};

/* One that comes after its time is as good as the next. */
static void on_found(enum status st, const struct address *found, const struct error *err,
                     struct peer_source *s) {
    struct error why = {0};

    if (s->state != SOURCE_LOOKING_UP) return;
    loop_timer_stop(&s->silence); /* the connection has a limit of its own */
    if (st != ST_OK) {
        lost(s, err->message);
        return;
    }
    s->state = SOURCE_CONNECTING;
    if (conn_connect(&s->conn, s->tier->loop, (const struct sockaddr *)&found->addr, found->len,
                     (uint64_t)s->tier->config.connect_ms * 1000u, &events, s, &why) != ST_OK)
        lost(s, why.message);
}

static void on_looked_up(enum status st, const struct address *found, const struct error *err,
                         void *arg) {
    struct peer_source *s = arg;

    s->n_lookups--;
    on_found(st, found, err, s);
}

static void link_up(struct peer_source *s) {
    struct error err = {0};
    struct address address;
    enum status st;

    s->state = SOURCE_LOOKING_UP;
    s->n_pings = 0;
    st = address_resolve_number(&s->at, NULL, &address, &err);
    if (st == ST_AGAIN) {
        st = resolver_start(s->tier->resolver, &s->at, NULL, on_looked_up, s, &err);
        if (st == ST_OK) {
            s->n_lookups++;
            start_silence(s, s->tier->config.connect_ms);
            return;
        }
    }
    on_found(st, &address, &err, s);
}

void peer_link_init(struct peer_source *s, struct tier_peer *t) {
    s->tier = t;
    s->pass_fd = -1;
    list_init(&s->works);
    loop_timer_init(&s->silence, t->loop, on_silence, s);
    loop_task_init(&s->pump, pump, s);
}

void peer_link_fini(struct peer_source *s) {
    if (!s->tier) return;
    loop_defer_cancel(&s->pump);
    conn_fini(&s->conn);
    peer_share_end(s);
    loop_timer_fini(&s->silence);
    mem_free(s->parts);
}
