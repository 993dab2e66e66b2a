/* worker/api/events/request_feed.c - publishes request events, and GET /request_events.
 *
 *      GET /request_events?from=SEQ          frames from that number on
 *          ?from=oldest                      all that is kept, then what happens (the default)
 *          ?from=now                         only what happens from here on
 *          &generation=ID                    generation of SEQ; of another one all is sent
 *          &origin=ID                        the follower's own: what it sent itself is not urgent
 *          &format=json                      for people: server-sent events
 *
 * A stream begins with a hello. A follower costs its position in the log and at most PENDING_MAX
 * unsent bytes. A follower that the log overtakes gets a new hello with the gap marked, then all
 * events from the oldest on; disconnecting it would have the same effect later. Draining does not
 * end a stream: routers must see the last requests end.
 *
 * A write costs this loop and the reader's some 10 us each, an event in it less than one. So events
 * are batched: for URGENT_US when another router must learn of a request, because it regards the
 * worker as idle until then, else for LATE_US. Four routers route no worse for it (make
 * replay-shared), and a single router gets at most fifty writes a second about its own requests. */
#include "worker/api/events/request_feed.h"

#include <stdio.h>

#include "common/base/mem.h"
#include "common/http/http_server.h"
#include "common/text/json.h"

#define PENDING_MAX    (256u << 10) /* bytes a follower may be behind before it has to catch up */
#define READ_BYTES     (64u << 10)  /* copied out of the log at a time */
#define LOAD_EVERY_US  100000u      /* routers forecast what is between two of them */
#define HEARTBEAT_US   5000000u     /* what a router may take for the worker's death is longer */
#define FRAMES_TYPE    "application/vnd.incipit.request-events"
#define GENERATION_FMT "%016llx"
#define URGENT_US      2000u
#define LATE_US        20000u
#define EVENT_BYTES    64 /* of an event without a chain, about */
#define UNSENT_SHARE   8  /* no more than this part of the log waits: it must not be overtaken */

struct request_feed {
    struct request_feed_config config;
    struct request_log *log;
    struct list followers;
    uint32_t n_followers;
    struct loop_task task;         /* at the end of this turn, or */
    struct loop_timer due;         /* later, all that is new is sent */
    uint64_t due_us;               /* 0: nothing is new */
    uint64_t n_unsent, max_unsent; /* bytes, about: what is new, and what of it may wait */
    struct loop_timer timer;
    struct wire_load load; /* as last published */
    uint64_t load_sent_us; /* 0: never */
    uint64_t sent_bytes, n_gaps;
    bool is_ending;
    struct buf frames, json;
    uint64_t blocks[CHAIN_BLOCKS_MAX]; /* of the header, or of the event, being read */
};

struct follower {
    struct list link; /* on feed->followers */
    struct request_feed *feed;
    struct http_request *req;
    uint64_t next;   /* the event to send next */
    uint64_t origin; /* of the requests that it sends itself; 0: unknown */
    bool is_json;
};

static uint64_t now_us(const struct request_feed *feed) {
    return loop_now_us(feed->config.loop);
}

/* --- one follower ----------------------------------------------------------------------------- */

static void put_hex_field(struct json_writer *w, const char *key, uint64_t v) {
    char text[20];

    snprintf(text, sizeof(text), GENERATION_FMT, (unsigned long long)v);
    json_field_z(w, key, text);
}

static void put_chain(struct json_writer *w, const struct request_chain *c) {
    json_field_u64(w, "prompt_bytes", c->prompt_bytes);
    put_hex_field(w, "origin", c->origin);
    put_hex_field(w, "scheme", c->scheme);
    json_field_u64(w, "blocks", c->n_blocks); /* a number; the hashes are in frames only */
}

static void put_mark(struct json_writer *w, const struct request_mark *m) {
    if (!m->tenant) return;
    put_hex_field(w, "tenant", m->tenant);
    if (m->session) put_hex_field(w, "session", m->session);
    json_field_bool(w, "has_waited", m->has_waited);
}

static void put_load(struct json_writer *w, const struct wire_load *l) {
    json_field_u64(w, "running", l->running);
    json_field_u64(w, "waiting", l->waiting);
    json_field_u64(w, "queued_tokens", l->queued_tokens);
    json_field_u64(w, "kv_free", l->kv_free);
    json_field_u64(w, "kv_total", l->kv_total);
    json_field_bool(w, "draining", l->draining);
}

static const char *event_name(enum request_event_kind kind) {
    switch (kind) {
    case REQUEST_ACCEPTED: return "accepted";
    case REQUEST_FIRST: return "first";
    case REQUEST_ENDED: return "ended";
    case REQUEST_LOAD: return "load";
    case REQUEST_CLEARED: return "cleared";
    case REQUEST_HELLO: return "hello";
    }
    return "";
}

static void put_fields(struct json_writer *w, const struct request_event *e) {
    switch (e->kind) {
    case REQUEST_ACCEPTED:
        json_field_u64(w, "request", e->request);
        put_chain(w, &e->chain);
        put_mark(w, &e->mark);
        return;
    case REQUEST_FIRST:
        json_field_u64(w, "request", e->request);
        json_field_i64(w, "prompt_tokens", e->prompt_tokens);
        json_field_i64(w, "cached_tokens", e->cached_tokens);
        if (e->below_tokens >= 0) json_field_i64(w, "below_tokens", e->below_tokens);
        return;
    case REQUEST_ENDED:
        json_field_u64(w, "request", e->request);
        json_field_i64(w, "output_tokens", e->output_tokens);
        json_field_bool(w, "is_aborted", e->is_aborted);
        return;
    case REQUEST_LOAD: put_load(w, &e->load); return;
    case REQUEST_CLEARED: return;
    case REQUEST_HELLO:
        json_field_z(w, "generation", e->generation);
        json_field_u64(w, "next", e->next);
        json_field_u64(w, "oldest", e->oldest);
        json_field_bool(w, "is_gap", e->is_gap);
        return;
    }
}

static void append_json(struct buf *out, uint64_t sequence, const struct request_event *e) {
    struct json_writer w;

    if (sequence != REQUEST_EVENT_CONTROL)
        buf_appendf(out, "id: %llu\n", (unsigned long long)sequence);
    buf_append_str(out, STR("data: "));
    json_writer_init(&w, out);
    json_begin_object(&w);
    json_field_z(&w, "event", event_name(e->kind));
    json_field_u64(&w, "t_us", e->t_us);
    put_fields(&w, e);
    json_end_object(&w);
    buf_append_str(out, STR("\n\n"));
}

/* Whole frames, in the requested format. */
static void send_frames(struct follower *f, struct str frames) {
    struct request_feed *feed = f->feed;
    struct request_event e;
    uint64_t sequence;
    size_t used;

    if (f->is_json) {
        buf_clear(&feed->json);
        while (frames.len > 0 &&
               request_event_read(frames, feed->blocks, &e, &sequence, &used, NULL) == ST_OK) {
            append_json(&feed->json, sequence, &e);
            frames.ptr += used;
            frames.len -= used;
        }
        frames = buf_str(&feed->json);
    }
    feed->sent_bytes += frames.len;
    http_stream_write(f->req, frames);
}

static void send_hello(struct follower *f, bool is_gap) {
    struct request_feed *feed = f->feed;
    struct request_log_stats log = request_log_stats(feed->log);
    struct request_event e = {.kind = REQUEST_HELLO,
                              .t_us = now_us(feed),
                              .next = log.next,
                              .oldest = log.oldest,
                              .is_gap = is_gap};

    snprintf(e.generation, sizeof(e.generation), GENERATION_FMT,
             (unsigned long long)feed->config.generation);
    buf_clear(&feed->frames);
    request_event_put(&feed->frames, REQUEST_EVENT_CONTROL, &e);
    send_frames(f, buf_str(&feed->frames));
    feed->n_gaps += is_gap;
}

static void follower_leave(struct follower *f) {
    list_remove(&f->link);
    if (--f->feed->n_followers == 0) loop_timer_stop(&f->feed->timer);
    mem_free(f);
}

/* Sends what there is, as long as it is taken. The follower may be gone afterwards. */
static void pump(struct follower *f) {
    struct request_feed *feed = f->feed;
    struct http_request *req = f->req;

    while (http_pending_bytes(req) < PENDING_MAX) {
        enum status st;

        buf_clear(&feed->frames);
        st = request_log_read(feed->log, f->next, READ_BYTES, &feed->frames, &f->next);
        if (st == ST_OK) {
            send_frames(f, buf_str(&feed->frames));
        } else if (st == ST_NOT_FOUND) {
            send_hello(f, true);
        } else {
            if (st == ST_AGAIN && !feed->is_ending) return;
            follower_leave(f);
            if (st == ST_AGAIN) {
                http_stream_end(req);
            } else {
                http_stream_break(req); /* out of memory: it may come back */
            }
            return;
        }
    }
}

static void on_abort(struct http_request *req) {
    follower_leave(req->user);
}

static void on_drain(struct http_request *req) {
    pump(req->user);
}

/* --- all of them ------------------------------------------------------------------------------ */

static void pump_all(void *arg) {
    struct request_feed *feed = arg;

    feed->due_us = feed->n_unsent = 0;
    loop_timer_stop(&feed->due);
    LIST_FOR_EACH(it, &feed->followers) pump(LIST_ENTRY(it, struct follower, link));
}

/* Urgent are a change of draining, a cleared cache, and a request that some follower did not send
 * itself. */
static bool is_urgent(const struct request_feed *feed, const struct request_event *e) {
    if (e->kind == REQUEST_LOAD) return e->load.draining != feed->load.draining;
    if (e->kind != REQUEST_ACCEPTED) return e->kind == REQUEST_CLEARED;
    LIST_FOR_EACH(it, &feed->followers) {
        uint64_t own = LIST_ENTRY(it, struct follower, link)->origin;

        if (!own || own != e->chain.origin) return true;
    }
    return false;
}

static void publish(struct request_feed *feed, const struct request_event *e) {
    uint64_t delay_us = is_urgent(feed, e) ? URGENT_US : LATE_US, due_us = now_us(feed) + delay_us;

    request_log_append(feed->log, e);
    if (!feed->n_followers) return;
    feed->n_unsent += EVENT_BYTES + (uint64_t)e->chain.n_blocks * CHAIN_HASH_BYTES;
    if (feed->n_unsent >= feed->max_unsent) loop_defer(feed->config.loop, &feed->task);
    if (feed->due_us && feed->due_us <= due_us) return;
    feed->due_us = due_us;
    loop_timer_start(&feed->due, delay_us);
}

static bool is_same_load(const struct wire_load *a, const struct wire_load *b) {
    return a->running == b->running && a->waiting == b->waiting &&
           a->queued_tokens == b->queued_tokens && a->kv_free == b->kv_free &&
           a->kv_total == b->kv_total && a->draining == b->draining;
}

static void publish_load(struct request_feed *feed, const struct wire_load *load) {
    struct request_event e = {.kind = REQUEST_LOAD, .t_us = now_us(feed), .load = *load};

    feed->load_sent_us = e.t_us;
    publish(feed, &e);
    feed->load = *load;
}

static void on_load_time(void *arg) {
    struct request_feed *feed = arg;
    struct wire_load load;

    feed->config.read_load(feed->config.arg, &load);
    if (!is_same_load(&load, &feed->load) || now_us(feed) - feed->load_sent_us >= HEARTBEAT_US) {
        publish_load(feed, &load);
    }
    loop_timer_start(&feed->timer, LOAD_EVERY_US);
}

/* --- publishing ------------------------------------------------------------------------------- */

/* The header, as far as it can be true of this body. */
static void read_header(struct request_feed *feed, const struct http_request *req,
                        uint64_t prompt_bytes, struct request_event *e) {
    struct str value = http_request_header(req, STR(WIRE_CHAIN));
    struct request_chain *chain = &e->chain;

    if (!value.ptr || request_chain_parse(value, feed->blocks, chain, &e->mark) != ST_OK) {
        *chain = (struct request_chain){.prompt_bytes = prompt_bytes};
        return;
    }
    chain->prompt_bytes = MIN(chain->prompt_bytes, (uint64_t)req->body.len);
    chain->n_blocks = (uint32_t)MIN(chain->n_blocks, chain->prompt_bytes);
}

uint64_t request_feed_accepted(struct request_feed *feed, const struct http_request *req,
                               uint64_t prompt_bytes) {
    struct request_event e = {.kind = REQUEST_ACCEPTED};

    if (!feed) return 0;
    e.t_us = now_us(feed);
    e.request = request_log_stats(feed->log).next; /* never used twice, as that is not */
    read_header(feed, req, prompt_bytes, &e);
    publish(feed, &e);
    return e.request;
}

void request_feed_first(struct request_feed *feed, uint64_t request, uint64_t prompt_tokens,
                        uint64_t cached_tokens, int64_t host_tokens) {
    struct request_event e = {.kind = REQUEST_FIRST, .request = request};

    if (!feed || request == 0) return;
    e.t_us = now_us(feed);
    e.prompt_tokens = (int64_t)MIN(prompt_tokens, (uint64_t)INT32_MAX);
    e.cached_tokens = (int64_t)MIN(cached_tokens, (uint64_t)e.prompt_tokens);
    e.below_tokens = MIN(host_tokens, e.cached_tokens);
    publish(feed, &e);
}

void request_feed_ended(struct request_feed *feed, uint64_t request, uint64_t output_tokens,
                        bool is_aborted) {
    struct request_event e = {.kind = REQUEST_ENDED, .request = request, .is_aborted = is_aborted};

    if (!feed || request == 0) return;
    e.t_us = now_us(feed);
    e.output_tokens = (int64_t)MIN(output_tokens, (uint64_t)INT32_MAX);
    publish(feed, &e);
}

void request_feed_cleared(struct request_feed *feed) {
    struct request_event e = {.kind = REQUEST_CLEARED};

    if (!feed) return;
    e.t_us = now_us(feed);
    publish(feed, &e);
}

void request_feed_load(struct request_feed *feed) {
    struct wire_load load;

    if (!feed) return;
    feed->config.read_load(feed->config.arg, &load);
    publish_load(feed, &load);
}

/* --- creation --------------------------------------------------------------------------------- */

enum status request_feed_create(struct request_feed **out, const struct request_feed_config *config,
                                struct error *err) {
    struct request_feed *feed = mem_zalloc(sizeof(*feed));
    enum status st = request_log_create(&feed->log, config->buffer_bytes, err);

    if (st != ST_OK) {
        mem_free(feed);
        return st;
    }
    feed->config = *config;
    feed->max_unsent = MIN(config->buffer_bytes / UNSENT_SHARE, (uint64_t)READ_BYTES);
    list_init(&feed->followers);
    loop_task_init(&feed->task, pump_all, feed);
    loop_timer_init(&feed->timer, config->loop, on_load_time, feed);
    loop_timer_init(&feed->due, config->loop, pump_all, feed);
    buf_init(&feed->frames, 0);
    buf_init(&feed->json, 0);
    *out = feed;
    return ST_OK;
}

void request_feed_destroy(struct request_feed *feed) {
    if (!feed) return;
    loop_defer_cancel(&feed->task);
    loop_timer_fini(&feed->timer);
    loop_timer_fini(&feed->due);
    request_log_destroy(feed->log);
    buf_fini(&feed->frames);
    buf_fini(&feed->json);
    mem_free(feed);
}

void request_feed_end(struct request_feed *feed) {
    if (!feed) return;
    feed->is_ending = true;
    loop_defer(feed->config.loop, &feed->task);
}

struct request_feed_stats request_feed_stats(const struct request_feed *feed) {
    if (!feed) return (struct request_feed_stats){0};
    return (struct request_feed_stats){.log = request_log_stats(feed->log),
                                       .n_followers = feed->n_followers,
                                       .sent_bytes = feed->sent_bytes,
                                       .n_gaps = feed->n_gaps};
}

/* --- the request ------------------------------------------------------------------------------ */

static enum status check(const struct request_feed *feed, struct error *err) {
    if (!feed) {
        return error_set(err, ST_NOT_FOUND,
                         "request events are disabled on this worker: start the worker with "
                         "--request-events-buffer-bytes 16MiB");
    }
    if (feed->is_ending)
        return error_set(err, ST_UNAVAILABLE,
                         "this worker is shutting down: follow another worker");
    if (feed->n_followers >= feed->config.max_followers) {
        return error_set(err, ST_UNAVAILABLE,
                         "all %u streams of request events are in use: raise "
                         "--request-events-subscribers %u, or close a stream",
                         feed->n_followers, feed->config.max_followers);
    }
    return ST_OK;
}

/* A parameter's value, in `out`; "" when it is not there. */
static struct str query_value(const struct http_request *req, struct str name, struct buf *out) {
    buf_clear(out);
    return http_query_param(req->query, name, out) ? buf_str(out) : STR("");
}

/* Of at most 16 hexadecimal digits; 0 for anything else. */
static uint64_t hex_or_0(struct str s) {
    uint64_t v = 0;

    if (s.len > 16) return 0;
    for (size_t i = 0; i < s.len; i++) {
        int digit = str_hex_value((unsigned char)s.ptr[i]);

        if (digit < 0) return 0;
        v = v << 4 | (uint64_t)digit;
    }
    return v;
}

/* Sets where the follower begins. *is_gap: its state is of another generation, or too old. */
static enum status read_from(struct follower *f, bool *is_gap, struct error *err) {
    struct request_log_stats log = request_log_stats(f->feed->log);
    char generation[WIRE_GENERATION_MAX];
    struct buf buf;
    struct str value;
    enum status st = ST_OK;

    buf_init(&buf, 64);
    value = query_value(f->req, STR("from"), &buf);
    if (value.len == 0 || str_eq(value, STR("oldest"))) {
        f->next = log.oldest;
    } else if (str_eq(value, STR("now"))) {
        f->next = log.next;
    } else if (str_to_u64(value, &f->next) != ST_OK) {
        st = error_set_param(err, ST_INVALID, "from",
                             "from is invalid: '" STR_FMT "': use a number, oldest or now",
                             STR_ARG(value));
    } else {
        *is_gap = f->next < log.oldest || f->next > log.next;
    }
    value = query_value(f->req, STR("generation"), &buf);
    snprintf(generation, sizeof(generation), GENERATION_FMT,
             (unsigned long long)f->feed->config.generation);
    if (value.len > 0 && !str_eq(value, str_of(generation))) *is_gap = true;
    if (*is_gap) f->next = log.oldest;
    value = query_value(f->req, STR("origin"), &buf);
    f->origin = hex_or_0(value);
    value = query_value(f->req, STR("format"), &buf);
    f->is_json = str_eq(value, STR("json"));
    buf_fini(&buf);
    return st;
}

void request_feed_follow(struct request_feed *feed, struct http_request *req) {
    struct error err = {0};
    bool is_gap = false;
    struct follower *f;
    enum status st = check(feed, &err);

    f = mem_zalloc(sizeof(*f));
    f->feed = feed;
    f->req = req;
    if (st == ST_OK) st = read_from(f, &is_gap, &err);
    if (st != ST_OK) {
        mem_free(f);
        http_reply_error(req, st, &err);
        return;
    }
    req->user = f;
    req->on_abort = on_abort;
    req->on_drain = on_drain;
    list_push_back(&feed->followers, &f->link);
    http_add_header(req, STR("cache-control"), STR("no-cache"));
    http_stream_begin(req, 200, f->is_json ? HTTP_SSE : FRAMES_TYPE);
    send_hello(f, is_gap);
    if (feed->n_followers++ == 0) loop_timer_start(&feed->timer, LOAD_EVERY_US);
    request_feed_load(feed);
    loop_defer(feed->config.loop, &feed->task); /* sends it behind all requested events */
}
