/* worker/api/kv_events.c - GET /kv_events and /kv_events/digest: following what is cached.
 *
 *      GET /kv_events?from=SEQ        server-sent events: `id: SEQ`, a batch as JSON
 *          ?format=msgpack            frames: u32 length, u64 sequence (big-endian), MessagePack
 *          ?from=snapshot             all that is cached first, then what happens (the default)
 *          ?from=now                  only what happens from here on
 *          ?generation=ID             SEQ is of this run of the worker; of another: a snapshot
 *          ?digest=SECONDS            time between two digests, 10 by default
 *
 * A follower keeps a set of hashes per medium and group (worker/kv/kv_events.h) and compares it
 * with the digest, which is sent when it has all batches up to the digest's. It resumes with the
 * number behind its last batch (Last-Event-ID does the same). If batches it has not seen are
 * overwritten, it is sent `gap`: discard the sets, a snapshot that rebuilds them follows. In
 * frames, what is not a batch has the sequence 2^64 - 1 and a map as its payload.
 *
 * A follower costs its position in the log and at most PENDING_MAX unsent bytes. A follower that
 * the log overtakes gets `closed` with a reason and may reconnect. The engine never waits: it
 * commits a batch and sends one mail for any number of them.
 *
 * Thread: worker loop. */
#include <stdio.h>
#include <string.h>

#include "common/base/mem.h"
#include "common/http/http_server.h"
#include "common/net/loop.h"
#include "common/protocol/openai.h"
#include "common/text/json.h"
#include "common/text/msgpack.h"
#include "worker/api/api.h"
#include "worker/api/handlers.h"

#define PENDING_MAX      (256u << 10) /* bytes a follower may be behind before it has to catch up */
#define READ_BYTES       (64u << 10)  /* copied out of the log at a time */
#define DIGEST_SECONDS   10u
#define CONTROL_SEQUENCE UINT64_MAX
#define MSGPACK_TYPE     "application/msgpack"

struct kv_stream {
    struct list link; /* on api->kv_streams */
    struct api *api;
    struct http_request *req; /* NULL: gone, and freed when the snapshot is back */
    uint64_t next;            /* the batch to send next */
    uint64_t digest_from;     /* digests are valid from this sequence on */
    uint64_t digest_us;
    struct loop_timer timer;
    struct engine_snapshot snapshot;
    bool is_msgpack, awaits_snapshot, wants_digest, has_begun;
    struct buf frames, out;
};

/* --- JSON of a batch -------------------------------------------------------------------------- */

static const char *const stored_fields[] = {
    "type",      "block_hashes",       "parent_block_hash",
    "token_ids", "block_size",         "lora_id",
    "medium",    "lora_name",          "extra_keys",
    "group_idx", "kv_cache_spec_kind", "kv_cache_spec_sliding_window"};
static const char *const removed_fields[] = {"type", "block_hashes", "medium", "group_idx"};

static void put_hex(struct json_writer *w, struct str bytes) {
    char hex[2 * BLOCK_HASH_BYTES + 1] = "";

    for (size_t i = 0; i < MIN(bytes.len, (size_t)BLOCK_HASH_BYTES); i++)
        snprintf(hex + 2 * i, 3, "%02x", (uint8_t)bytes.ptr[i]);
    json_put_str(w, str_of(hex));
}

/* Any value of a batch; at most four deep. The bytes are our own. */
static void put_value(struct json_writer *w, struct msgpack_reader *r) {
    struct msgpack_value v;

    if (msgpack_next(r, &v) != ST_OK) {
        json_put_null(w);
        return;
    }
    switch (v.type) {
    case MSGPACK_NIL: json_put_null(w); return;
    case MSGPACK_BOOL: json_put_bool(w, v.boolean); return;
    case MSGPACK_U64: json_put_u64(w, v.u64); return;
    case MSGPACK_I64: json_put_i64(w, v.i64); return;
    case MSGPACK_F64: json_put_f64(w, v.f64); return;
    case MSGPACK_STR: json_put_str(w, v.bytes); return;
    case MSGPACK_BIN: put_hex(w, v.bytes); return;
    case MSGPACK_ARRAY:
    case MSGPACK_MAP: break;
    }
    json_begin_array(w);
    for (uint32_t i = 0; i < v.n; i++)
        put_value(w, r);
    json_end_array(w);
}

static void put_event(struct json_writer *w, struct msgpack_reader *r) {
    const char *const *names = removed_fields;
    size_t n_names = ARRAY_LEN(removed_fields);
    struct msgpack_reader first;
    struct msgpack_value fields, type;

    if (msgpack_expect(r, MSGPACK_ARRAY, &fields) != ST_OK) return;
    first = *r;
    if (msgpack_expect(&first, MSGPACK_STR, &type) == ST_OK &&
        str_eq(type.bytes, STR("BlockStored"))) {
        names = stored_fields;
        n_names = ARRAY_LEN(stored_fields);
    }
    json_begin_object(w);
    for (uint32_t i = 0; i < MIN(fields.n, n_names); i++) {
        json_put_key(w, names[i]);
        put_value(w, r);
    }
    json_end_object(w);
}

static void put_batch(struct buf *out, uint64_t sequence, struct str payload) {
    struct msgpack_reader r = msgpack_reader_of(payload);
    struct msgpack_value v, events;
    struct json_writer w;

    if (msgpack_expect(&r, MSGPACK_ARRAY, &v) != ST_OK ||
        msgpack_expect(&r, MSGPACK_F64, &v) != ST_OK ||
        msgpack_expect(&r, MSGPACK_ARRAY, &events) != ST_OK) {
        return;
    }
    buf_appendf(out, "id: %llu\ndata: ", (unsigned long long)sequence);
    json_writer_init(&w, out);
    json_begin_object(&w);
    json_field_u64(&w, "seq", sequence);
    json_field_f64(&w, "ts", v.f64);
    json_put_key(&w, "events");
    json_begin_array(&w);
    for (uint32_t i = 0; i < events.n; i++)
        put_event(&w, &r);
    json_end_array(&w);
    json_put_key(&w, "data_parallel_rank");
    put_value(&w, &r);
    json_end_object(&w);
    buf_append_str(out, STR("\n\n"));
}

static uint64_t big_endian(const char *bytes, size_t n) {
    uint64_t v = 0;

    for (size_t i = 0; i < n; i++)
        v = v << 8 | (uint8_t)bytes[i];
    return v;
}

static void put_frames_as_json(struct buf *out, struct str frames) {
    while (frames.len >= KV_EVENT_HEAD_BYTES) {
        size_t n = (size_t)big_endian(frames.ptr, 4);
        struct str payload = {frames.ptr + KV_EVENT_HEAD_BYTES, n};

        put_batch(out, big_endian(frames.ptr + 4, 8), payload);
        frames.ptr += KV_EVENT_HEAD_BYTES + n;
        frames.len -= KV_EVENT_HEAD_BYTES + n;
    }
}

/* --- what is not a batch ---------------------------------------------------------------------- */

#define GENERATION_MAX 24

/* As in GET /server_info. */
static void generation_text(const struct api *api, char out[GENERATION_MAX]) {
    snprintf(out, GENERATION_MAX, "%016llx",
             (unsigned long long)engine_info(api->engine)->generation);
}

static void put_digest(struct json_writer *w, const struct api *api,
                       const struct kv_event_digest *d) {
    char generation[GENERATION_MAX];

    generation_text(api, generation);
    json_begin_object(w);
    if (d->next > 0) {
        json_field_u64(w, "sequence", d->next - 1);
    } else {
        json_field_null(w, "sequence"); /* nothing was ever cached */
    }
    json_field_u64(w, "next", d->next);
    json_field_u64(w, "oldest", d->oldest);
    json_field_z(w, "generation", generation);
    json_field_u64(w, "events", d->n_events);
    json_field_u64(w, "lost_batches", d->n_lost_batches);
    json_put_key(w, "sets");
    json_begin_array(w);
    for (uint32_t i = 0; i < d->n_sets; i++) {
        const struct kv_event_set *s = &d->sets[i];

        if (s->group == d->n_sets / KV_MEDIUM_COUNT - 1 && s->n_keys == 0) continue;
        json_begin_object(w);
        json_field_z(w, "medium", kv_medium_name(s->medium));
        json_field_u64(w, "group_idx", s->group);
        json_field_u64(w, "blocks", s->n_keys);
        json_put_key(w, "xor");
        put_hex(w, (struct str){(const char *)s->xor_of.bytes, d->hash_bytes});
        json_end_object(w);
    }
    json_end_array(w);
    json_end_object(w);
}

/* `event` with its JSON; in frames, a map of the event's name to the same JSON as a string. */
static void send_control(struct kv_stream *s, const char *event, struct str json) {
    uint8_t head[KV_EVENT_HEAD_BYTES];
    struct buf payload;

    buf_clear(&s->out);
    if (!s->is_msgpack) {
        buf_appendf(&s->out, "event: %s\ndata: " STR_FMT "\n\n", event, STR_ARG(json));
        http_stream_write(s->req, buf_str(&s->out));
        return;
    }
    buf_init(&payload, 0);
    msgpack_begin_map(&payload, 1);
    msgpack_put_str(&payload, str_of(event));
    msgpack_put_str(&payload, json);
    memset(head, 0xff, sizeof(head));
    for (int i = 0; i < 4; i++)
        head[i] = (uint8_t)(buf_len(&payload) >> (24 - 8 * i));
    buf_append(&s->out, head, sizeof(head));
    buf_append_str(&s->out, buf_str(&payload));
    http_stream_write(s->req, buf_str(&s->out));
    buf_fini(&payload);
}

static void send_digest(struct kv_stream *s, const struct kv_event_digest *d) {
    struct json_writer w;
    struct buf json;

    buf_init(&json, 0);
    json_writer_init(&w, &json);
    put_digest(&w, s->api, d);
    send_control(s, "digest", buf_str(&json));
    buf_fini(&json);
}

/* --- streams --------------------------------------------------------------------------- */

static void stream_free(struct kv_stream *s) {
    loop_timer_fini(&s->timer);
    buf_fini(&s->frames);
    buf_fini(&s->out);
    mem_free(s);
}

static void stream_leave(struct kv_stream *s) {
    list_remove(&s->link);
    s->api->n_kv_streams--;
    loop_timer_stop(&s->timer);
    s->req = NULL;
    if (!s->awaits_snapshot) stream_free(s);
}

static void on_abort(struct http_request *req) {
    stream_leave(req->user);
}

static void stream_close(struct kv_stream *s, const char *reason) {
    struct http_request *req = s->req;
    char json[256];

    snprintf(json, sizeof(json), "{\"reason\":\"%s\",\"next\":%llu}", reason,
             (unsigned long long)s->next);
    send_control(s, "closed", str_of(json));
    stream_leave(s);
    http_stream_end(req);
}

static void pump(struct kv_stream *s);

static void on_snapshot(struct engine_snapshot *snapshot) {
    struct kv_stream *s = CONTAINER_OF(snapshot, struct kv_stream, snapshot);

    s->awaits_snapshot = false;
    if (!s->req) {
        stream_free(s);
        return;
    }
    s->digest_from = snapshot->next;
    s->wants_digest = true;
    pump(s);
}

/* The follower's picture is worth nothing: from the next batch on it gets all of it again. */
static void start_over(struct kv_stream *s, uint64_t asked, uint64_t next) {
    char json[224], number[24] = "null"; /* a snapshot was requested */
    char generation[GENERATION_MAX];

    generation_text(s->api, generation);
    if (asked != UINT64_MAX) {
        snprintf(number, sizeof(number), "%llu", (unsigned long long)asked);
    }
    snprintf(json, sizeof(json),
             "{\"asked\":%s,\"resume\":%llu,\"generation\":\"%s\",\"reason\":\"events were lost: "
             "discard the recorded state, a snapshot follows\"}",
             number, (unsigned long long)next, generation);
    send_control(s, "gap", str_of(json));
    s->next = next;
    s->digest_from = UINT64_MAX;
    s->awaits_snapshot = true;
    s->snapshot.on_done = on_snapshot;
    engine_snapshot_kv(s->api->engine, &s->snapshot);
}

static void send_frames(struct kv_stream *s) {
    if (s->is_msgpack) {
        http_stream_write(s->req, buf_str(&s->frames));
        return;
    }
    buf_clear(&s->out);
    put_frames_as_json(&s->out, buf_str(&s->frames));
    http_stream_write(s->req, buf_str(&s->out));
}

/* All batches are sent; a digest of exactly these may follow. False when there are more by now. */
static bool send_digest_if_due(struct kv_stream *s) {
    struct kv_event_digest d;

    if (!s->wants_digest || s->next < s->digest_from) return true;
    kv_event_log_digest(s->api->kv_events, &d);
    if (d.next != s->next) return false;
    s->wants_digest = false;
    send_digest(s, &d);
    return true;
}

/* Sends what there is, as long as it is taken. */
static void pump(struct kv_stream *s) {
    while (http_pending_bytes(s->req) < PENDING_MAX) {
        uint64_t next;
        enum status st;

        buf_clear(&s->frames);
        st = kv_event_log_read(s->api->kv_events, s->next, READ_BYTES, &s->frames, &next);
        if (st == ST_OK && buf_status(&s->frames) == ST_OK) {
            s->next = next;
            s->has_begun = true;
            send_frames(s);
        } else if (st == ST_AGAIN) {
            if (send_digest_if_due(s)) return;
        } else if (st == ST_NOT_FOUND && !s->has_begun) {
            s->has_begun = true;
            start_over(s, s->next, next);
        } else {
            stream_close(
                s, st == ST_NOT_FOUND
                       ? "the subscriber is too slow: batches were overwritten before they were "
                         "read; reconnect, or raise --kv-events-buffer-bytes on the worker"
                       : "out of memory on the worker: reconnect");
            return;
        }
    }
}

static void on_drain(struct http_request *req) {
    pump(req->user);
}

static void on_digest_time(void *arg) {
    struct kv_stream *s = arg;

    s->wants_digest = true;
    loop_timer_start(&s->timer, s->digest_us);
    pump(s);
}

void api_on_kv_events(struct api *api) {
    LIST_FOR_EACH(it, &api->kv_streams) pump(LIST_ENTRY(it, struct kv_stream, link));
}

void api_end_kv_streams(struct api *api, const char *reason) {
    LIST_FOR_EACH(it, &api->kv_streams) {
        stream_close(LIST_ENTRY(it, struct kv_stream, link), reason);
    }
}

/* --- the request ------------------------------------------------------------------------------ */

/* A number from the query; ST_OK and *out untouched when it is not there. */
static enum status query_number(const struct http_request *req, struct str name, uint64_t max,
                                uint64_t *out, struct error *err) {
    struct buf value;
    enum status st = ST_OK;
    uint64_t v;

    buf_init(&value, 64);
    if (http_query_param(req->query, name, &value)) {
        st = str_to_u64(buf_str(&value), &v);
        if (st == ST_OK && v <= max) {
            *out = v;
        } else {
            st = error_set_param(err, ST_INVALID, name.ptr,
                                 STR_FMT " is '" STR_FMT "': use a number up to %llu%s",
                                 STR_ARG(name), STR_ARG(buf_str(&value)), (unsigned long long)max,
                                 str_eq(name, STR("from")) ? ", snapshot or now" : "");
        }
    }
    buf_fini(&value);
    return st;
}

static bool query_is(const struct http_request *req, struct str name, struct str wanted) {
    struct buf value;
    bool is_equal;

    buf_init(&value, 64);
    is_equal = http_query_param(req->query, name, &value) && str_eq(buf_str(&value), wanted);
    buf_fini(&value);
    return is_equal;
}

/* The query names the run of the worker that its position is of, and that is not this one. */
static bool is_of_other_run(const struct api *api, const struct http_request *req) {
    char generation[GENERATION_MAX];
    struct buf value;
    bool is_other;

    generation_text(api, generation);
    buf_init(&value, 64);
    is_other = http_query_param(req->query, STR("generation"), &value) &&
               !str_eq(buf_str(&value), str_of(generation));
    buf_fini(&value);
    return is_other;
}

/* UINT64_MAX: from a snapshot. */
static enum status read_from(const struct api *api, const struct http_request *req, uint64_t *from,
                             struct error *err) {
    struct str last = http_request_header(req, STR("last-event-id"));
    struct kv_event_digest d;
    uint64_t id;

    kv_event_log_digest(api->kv_events, &d);
    *from = UINT64_MAX;
    if (is_of_other_run(api, req)) return ST_OK;
    if (last.ptr && str_to_u64(last, &id) == ST_OK && id < UINT64_MAX) {
        *from = id + 1;
        return ST_OK;
    }
    if (query_is(req, STR("from"), STR("snapshot"))) return ST_OK;
    if (query_is(req, STR("from"), STR("now"))) {
        *from = d.next;
        return ST_OK;
    }
    return query_number(req, STR("from"), UINT64_MAX - 1, from, err);
}

static enum status check(const struct api *api, bool is_stream, struct error *err) {
    if (!api->kv_events) {
        return error_set(
            err, ST_NOT_FOUND,
            "KV events are disabled on this worker: start the worker with --kv-events");
    }
    if (is_stream && api->is_draining) {
        return error_set(err, ST_UNAVAILABLE,
                         "this worker is shutting down: subscribe to another worker");
    }
    if (is_stream && api->n_kv_streams >= api->max_kv_streams) {
        return error_set(err, ST_BUSY,
                         "all %u streams of KV events are in use: raise --kv-events-subscribers "
                         "%u, or close a stream",
                         api->n_kv_streams, api->max_kv_streams);
    }
    return ST_OK;
}

void kv_events_get(struct http_request *req, void *arg) {
    struct api *api = arg;
    struct error err = {0};
    uint64_t from = 0, digest_s = DIGEST_SECONDS;
    enum status st = check(api, true, &err);
    struct kv_stream *s;

    if (st == ST_OK) st = read_from(api, req, &from, &err);
    if (st == ST_OK) st = query_number(req, STR("digest"), 86400, &digest_s, &err);
    if (st != ST_OK) {
        http_reply_error(req, st, &err);
        return;
    }
    s = mem_zalloc(sizeof(*s));
    s->api = api;
    s->req = req;
    s->next = from;
    s->is_msgpack = query_is(req, STR("format"), STR("msgpack")) ||
                    str_find(http_request_header(req, STR("accept")), STR("msgpack")) >= 0;
    s->digest_us = MAX(digest_s, 1) * 1000000;
    s->wants_digest = true;
    buf_init(&s->frames, 0);
    buf_init(&s->out, 0);
    loop_timer_init(&s->timer, api->loop, on_digest_time, s);
    loop_timer_start(&s->timer, s->digest_us);
    req->user = s;
    req->on_abort = on_abort;
    req->on_drain = on_drain;
    list_push_back(&api->kv_streams, &s->link);
    api->n_kv_streams++;
    http_add_header(req, STR("cache-control"), STR("no-cache"));
    http_stream_begin(req, 200, s->is_msgpack ? MSGPACK_TYPE : HTTP_SSE);
    pump(s);
}

void kv_events_digest_get(struct http_request *req, void *arg) {
    const struct api *api = arg;
    struct error err = {0};
    enum status st = check(api, false, &err);
    struct kv_event_digest d;
    struct json_writer w;
    struct buf body;

    if (st != ST_OK) {
        http_reply_error(req, st, &err);
        return;
    }
    kv_event_log_digest(api->kv_events, &d);
    buf_init(&body, 0);
    json_writer_init(&w, &body);
    put_digest(&w, api, &d);
    http_reply(req, 200, OPENAI_JSON, buf_str(&body));
    buf_fini(&body);
}
