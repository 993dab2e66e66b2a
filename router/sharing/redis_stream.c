/* router/sharing/redis_stream.c - two hiredis connections on our loop, each reopened when it is
 * lost.
 *
 *      down ──(backoff)──▶ looking up ──▶ connecting ──▶ AUTH, SELECT, TIME ──▶ up ──lost──▶ down
 *
 * Commands and replies keep their order: a connection is up at the reply to its last greeting.
 * hiredis frees a failed context after its disconnect callback, which therefore only clears our
 * pointer. */
#include "router/sharing/redis_stream.h"

#include <stdio.h>
#include <stdlib.h>

#include <hiredis/async.h>
#include <hiredis/hiredis.h>

#include "common/base/clock.h"
#include "common/base/mem.h"
#include "common/base/rng.h"
#include "common/net/loop.h"
#include "common/net/resolver.h"
#include "common/telemetry/log.h"

#define SCHEME         "redis://"
#define DEFAULT_PORT   6379
#define DATABASE_MAX   1023
#define BACKOFF_MIN_US 200000u
#define BACKOFF_MAX_US 10000000u
#define SILENCE_US     15000000u /* silence after which the connection is reopened */
#define READ_BLOCK_MS  "5000"
#define READ_ENTRIES   16 /* entries per turn: with 10 ms of 5,000 requests/s each, some 10 ms */
#define CLOCK_US       60000000u /* interval of reading the server's clock, which drifts or is set */
#define UNSENT_MAX     1024u     /* unanswered appends; more are dropped */

static enum status read_database(struct str text, uint32_t *out) {
    uint64_t n;

    if (str_to_u64(text, &n) != ST_OK || n > DATABASE_MAX) return ST_INVALID;
    *out = (uint32_t)n;
    return ST_OK;
}

/* Parses host and port like a worker's address. */
static enum status split_url(const char *url, struct address_url *out, uint32_t *database,
                             struct error *err) {
    char as_http[ADDRESS_URL_MAX];
    struct str rest = str_of(url);
    const char *slash, *colon, *bracket;

    *database = 0;
    if (!str_starts(rest, STR(SCHEME))) goto invalid;
    rest.ptr += strlen(SCHEME);
    rest.len -= strlen(SCHEME);
    slash = rest.len ? memchr(rest.ptr, '/', rest.len) : NULL;
    if (slash) {
        struct str name = {slash + 1, rest.len - (size_t)(slash + 1 - rest.ptr)};

        if (name.len && read_database(name, database) != ST_OK) goto invalid;
        rest.len = (size_t)(slash - rest.ptr);
    }
    colon = rest.len ? memrchr(rest.ptr, ':', rest.len) : NULL;
    bracket = rest.len ? memrchr(rest.ptr, ']', rest.len) : NULL;
    if (colon && colon > bracket) {
        snprintf(as_http, sizeof(as_http), "http://" STR_FMT, STR_ARG(rest));
    } else {
        snprintf(as_http, sizeof(as_http), "http://" STR_FMT ":%d", STR_ARG(rest), DEFAULT_PORT);
    }
    if (rest.len + strlen("http://:65535") >= sizeof(as_http)) goto invalid;
    if (address_split(str_of(as_http), out, NULL) == ST_OK) return ST_OK;
invalid:
    return error_set(err, ST_INVALID,
                     "invalid Redis URL '%s': use redis://HOST[:PORT][/DATABASE], with the "
                     "password in INCIPIT_SHARE_REDIS_PASSWORD",
                     url);
}

enum status redis_stream_check_url(const char *url, struct error *err) {
    struct address_url address;
    uint32_t database;

    return split_url(url, &address, &database, err);
}

struct connection {
    struct redis_stream *stream;
    const char *name; /* "reader" */
    redisAsyncContext *context;
    struct loop_fd watch;
    unsigned watched;
    struct loop_timer retry, silence;
    uint64_t backoff_us, received_us;
    uint32_t n_failures;
    bool is_up, is_looking_up;
};

struct redis_stream {
    struct loop *loop;
    struct log *log;
    struct resolver *resolver;
    struct rng rng;
    struct address_url url;
    uint32_t database;
    char *password, *key;
    char max_entries[16];
    struct redis_stream_config config;
    struct connection reader, writer;
    char last_id[48];          /* of the last entry delivered */
    int64_t server_minus_ours; /* us: the server's wall clock less our monotonic one */
    uint64_t clock_us;         /* when it was read */
    bool has_reader, is_synced, is_closing;
    uint32_t n_unsent;
    struct redis_stream_stats stats;
};

static void connection_begin(struct connection *c);
static void read_more(struct redis_stream *s);

/* --- a connection ----------------------------------------------------------------------------- */

static void begin_again(void *arg) {
    connection_begin(arg);
}

static void connection_down(struct connection *c, const char *why) {
    struct redis_stream *s = c->stream;
    bool was_up = c->is_up;

    c->is_up = false;
    loop_timer_stop(&c->silence);
    if (s->is_closing) return;
    if (was_up) s->stats.n_lost++;
    if (was_up || c->n_failures++ % 16 == 0) {
        log_event(s->log, LOG_WARN, "redis_lost", log_z("connection", c->name),
                  log_z("server", s->url.authority), log_z("why", why));
    }
    if (c == &s->writer) {
        s->n_unsent = 0;
    } else if (was_up && s->config.on_lost) {
        s->config.on_lost(s->config.arg);
    }
    c->backoff_us = MIN(MAX(c->backoff_us * 2, BACKOFF_MIN_US), BACKOFF_MAX_US);
    loop_timer_start(&c->retry, c->backoff_us / 2 + rng_below(&s->rng, c->backoff_us / 2));
}

static void connection_drop(struct connection *c, const char *why) {
    redisAsyncContext *context = c->context;

    c->context = NULL;
    if (context) {
        context->data = NULL; /* later callbacks are ignored */
        redisAsyncFree(context);
    }
    connection_down(c, why);
}

static void on_silence(void *arg) {
    struct connection *c = arg;
    uint64_t quiet_us = loop_now_us(c->stream->loop) - c->received_us;

    if (c->is_up && c == &c->stream->writer && !c->stream->n_unsent) return; /* no reply is due */
    if (quiet_us >= SILENCE_US) {
        connection_drop(c, "it has not answered for 15 s");
    } else {
        loop_timer_start(&c->silence, SILENCE_US - quiet_us);
    }
}

static void on_ready(unsigned ready, void *arg) {
    struct connection *c = arg;

    if (ready == LOOP_READ) {
        redisAsyncHandleRead(c->context);
    } else {
        redisAsyncHandleWrite(c->context);
    }
}

static void watch(struct connection *c, unsigned set, unsigned clear) {
    c->watched = (c->watched | set) & ~clear;
    loop_fd_watch(&c->watch, c->watched);
}

static void add_read(void *arg) {
    watch(arg, LOOP_READ, 0);
}

static void del_read(void *arg) {
    watch(arg, 0, LOOP_READ);
}

static void add_write(void *arg) {
    watch(arg, LOOP_WRITE, 0);
}

static void del_write(void *arg) {
    watch(arg, 0, LOOP_WRITE);
}

static void cleanup(void *arg) {
    struct connection *c = arg;

    loop_fd_fini(&c->watch);
    c->watched = 0;
}

static void on_disconnect(const redisAsyncContext *context, int status) {
    struct connection *c = context->data;

    (void)status;
    if (!c) return;
    c->context = NULL;
    connection_down(c, context->err ? context->errstr : "the server closed it");
}

static void on_connect(const redisAsyncContext *context, int status) {
    struct connection *c = context->data;

    if (!c || status == REDIS_OK) return;
    c->context = NULL; /* hiredis frees it and does not call on_disconnect */
    connection_down(c, context->errstr);
}

static bool is_error(const redisReply *reply) {
    return !reply || reply->type == REDIS_REPLY_ERROR;
}

static struct connection *heard(redisAsyncContext *context) {
    struct connection *c = context->data;

    if (c) c->received_us = loop_now_us(c->stream->loop);
    return c;
}

/* Logs a refusal by the server and retries, in case an operator corrects it. */
static void on_greeted(redisAsyncContext *context, void *answer, void *arg) {
    struct connection *c = heard(context);
    const redisReply *reply = answer;

    (void)arg;
    if (!c || !reply || !is_error(reply)) return;
    connection_drop(c, reply->str);
}

/* TIME: seconds and microseconds of the server's wall clock. */
static enum status take_clock(struct redis_stream *s, const redisReply *reply) {
    if (reply->type != REDIS_REPLY_ARRAY || reply->elements != 2 || !reply->element[0]->str ||
        !reply->element[1]->str) {
        return ST_INVALID;
    }
    s->clock_us = loop_now_us(s->loop);
    s->server_minus_ours = strtoll(reply->element[0]->str, NULL, 10) * 1000000 +
                           strtoll(reply->element[1]->str, NULL, 10) - (int64_t)s->clock_us;
    return ST_OK;
}

static void on_clock(redisAsyncContext *context, void *answer, void *arg) {
    struct connection *c = heard(context);

    (void)arg;
    if (c && answer) (void)take_clock(c->stream, answer);
}

/* Reply to the last greeting. */
static void on_time(redisAsyncContext *context, void *answer, void *arg) {
    struct connection *c = heard(context);
    const redisReply *reply = answer;
    struct redis_stream *s;

    (void)arg;
    if (!c || !reply) return;
    s = c->stream;
    if (take_clock(s, reply) != ST_OK) {
        connection_drop(c, reply->str ? reply->str : "the server did not report its time");
        return;
    }
    c->is_up = true;
    c->backoff_us = 0;
    c->n_failures = 0;
    log_event(s->log, LOG_INFO, "redis_connected", log_z("connection", c->name),
              log_z("server", s->url.authority));
    if (c != &s->reader) return;
    s->is_synced = false;
    read_more(s);
}

static void greet(struct connection *c) {
    struct redis_stream *s = c->stream;

    if (s->password) redisAsyncCommand(c->context, on_greeted, NULL, "AUTH %s", s->password);
    if (s->database) redisAsyncCommand(c->context, on_greeted, NULL, "SELECT %u", s->database);
    redisAsyncCommand(c->context, on_time, NULL, "TIME");
    c->received_us = loop_now_us(s->loop);
    loop_timer_start(&c->silence, SILENCE_US);
}

static void on_found(enum status st, const struct address *found, const struct error *err,
                     void *arg) {
    struct connection *c = arg;
    char text[ADDRESS_TEXT_MAX], *colon;

    c->is_looking_up = false;
    if (st != ST_OK) {
        connection_down(c, err->message);
        return;
    }
    address_text(found, text);
    colon = strrchr(text, ':');
    *colon = '\0';
    if (text[0] == '[') {
        memmove(text, text + 1, strlen(text));
        *strchr(text, ']') = '\0';
    }
    c->context = redisAsyncConnect(text, c->stream->url.port);
    if (!c->context || c->context->err) {
        if (c->context) redisAsyncFree(c->context);
        c->context = NULL;
        connection_down(c, "no descriptor or memory for a connection");
        return;
    }
    c->context->data = c;
    loop_fd_init(&c->watch, c->stream->loop, c->context->c.fd, on_ready, c);
    c->context->ev.data = c;
    c->context->ev.addRead = add_read;
    c->context->ev.delRead = del_read;
    c->context->ev.addWrite = add_write;
    c->context->ev.delWrite = del_write;
    c->context->ev.cleanup = cleanup;
    redisAsyncSetConnectCallback(c->context, on_connect);
    redisAsyncSetDisconnectCallback(c->context, on_disconnect);
    greet(c);
}

static void connection_begin(struct connection *c) {
    struct redis_stream *s = c->stream;
    struct address address;
    struct error err = {0};
    enum status st = address_resolve_number(&s->url, NULL, &address, &err);

    if (st == ST_AGAIN) {
        st = resolver_start(s->resolver, &s->url, NULL, on_found, c, &err);
        c->is_looking_up = st == ST_OK;
        if (st != ST_OK) connection_down(c, err.message);
        return;
    }
    on_found(st, &address, &err, c);
}

/* --- reading ---------------------------------------------------------------------------------- */

static uint64_t age_of(const struct redis_stream *s, const char *id) {
    int64_t taken_us = strtoll(id, NULL, 10) * 1000;
    int64_t now_us = (int64_t)loop_now_us(s->loop) + s->server_minus_ours;

    return now_us > taken_us ? (uint64_t)(now_us - taken_us) : 0;
}

/* [id, [field, value, ...]]: the value of the field b. */
static void deliver_entry(struct redis_stream *s, const redisReply *entry) {
    const redisReply *fields;

    if (entry->type != REDIS_REPLY_ARRAY || entry->elements != 2 || !entry->element[0]->str ||
        entry->element[0]->len >= sizeof(s->last_id)) {
        return;
    }
    memcpy(s->last_id, entry->element[0]->str, entry->element[0]->len + 1);
    fields = entry->element[1];
    for (size_t i = 0; fields->type == REDIS_REPLY_ARRAY && i + 1 < fields->elements; i += 2) {
        const redisReply *name = fields->element[i], *value = fields->element[i + 1];

        if (!name->str || strcmp(name->str, "b") != 0 || !value->str) continue;
        s->stats.n_read++;
        s->config.on_entry((struct str){value->str, value->len}, age_of(s, s->last_id),
                           s->config.arg);
    }
}

/* [[key, [entry, ...]]], or nil: nothing new. */
static void on_entries(redisAsyncContext *context, void *answer, void *arg) {
    struct connection *c = heard(context);
    const redisReply *reply = answer, *entries = NULL;
    struct redis_stream *s;
    size_t n = 0;

    (void)arg;
    if (!c || !reply) return;
    s = c->stream;
    if (is_error(reply)) {
        connection_drop(c, reply->str);
        return;
    }
    if (reply->type == REDIS_REPLY_ARRAY && reply->elements == 1 &&
        reply->element[0]->type == REDIS_REPLY_ARRAY && reply->element[0]->elements == 2) {
        entries = reply->element[0]->element[1];
    }
    if (entries && entries->type == REDIS_REPLY_ARRAY) n = entries->elements;
    for (size_t i = 0; i < n; i++)
        deliver_entry(s, entries->element[i]);
    if (n < READ_ENTRIES && !s->is_synced) {
        s->is_synced = true;
        if (s->config.on_synced) s->config.on_synced(s->config.arg);
    }
    read_more(s);
}

/* Reads what is there; when the stream has nothing new, blocks for the next entry. */
static void read_more(struct redis_stream *s) {
    char count[16];
    const char *const blocking[] = {"XREAD", "BLOCK",   READ_BLOCK_MS, "COUNT",
                                    count,   "STREAMS", s->key,        s->last_id};
    const char *const at_once[] = {"XREAD", "COUNT", count, "STREAMS", s->key, s->last_id};
    const char **argv = (const char **)(uintptr_t)(s->is_synced ? blocking : at_once);
    int argc = s->is_synced ? (int)ARRAY_LEN(blocking) : (int)ARRAY_LEN(at_once);

    snprintf(count, sizeof(count), "%d", READ_ENTRIES);
    if (loop_now_us(s->loop) - s->clock_us >= CLOCK_US) {
        s->clock_us = loop_now_us(s->loop);
        redisAsyncCommand(s->reader.context, on_clock, NULL, "TIME");
    }
    redisAsyncCommandArgv(s->reader.context, on_entries, NULL, argc, argv, NULL);
}

/* --- writing ---------------------------------------------------------------------------------- */

static void on_appended(redisAsyncContext *context, void *answer, void *arg) {
    struct connection *c = heard(context);
    const redisReply *reply = answer;

    (void)arg;
    if (!c || !reply) return;
    c->stream->n_unsent--;
    if (is_error(reply)) {
        c->stream->stats.n_dropped++;
        connection_drop(c, reply->str); /* out of memory, read only: may be temporary */
    }
}

void redis_stream_append(struct redis_stream *s, struct str bytes) {
    const char *argv[] = {"XADD", s->key, "MAXLEN", "~", s->max_entries, "*", "b", bytes.ptr};
    size_t lengths[ARRAY_LEN(argv)];

    if (!s->writer.is_up || s->n_unsent >= UNSENT_MAX) {
        s->stats.n_dropped++;
        return;
    }
    for (size_t i = 0; i + 1 < ARRAY_LEN(argv); i++)
        lengths[i] = strlen(argv[i]);
    lengths[ARRAY_LEN(argv) - 1] = bytes.len;
    if (!s->n_unsent) { /* an idle connection has no reply due */
        s->writer.received_us = loop_now_us(s->loop);
        loop_timer_start(&s->writer.silence, SILENCE_US);
    }
    if (redisAsyncCommandArgv(s->writer.context, on_appended, NULL, (int)ARRAY_LEN(argv), argv,
                              lengths) == REDIS_OK) {
        s->n_unsent++;
        s->stats.n_appended++;
    }
}

/* --- creation --------------------------------------------------------------------------------- */

static void connection_init(struct connection *c, struct redis_stream *s, const char *name) {
    c->stream = s;
    c->name = name;
    loop_timer_init(&c->retry, s->loop, begin_again, c);
    loop_timer_init(&c->silence, s->loop, on_silence, c);
}

static void connection_fini(struct connection *c) {
    if (!c->stream) return;
    connection_drop(c, "");
    loop_timer_fini(&c->retry);
    loop_timer_fini(&c->silence);
}

enum status redis_stream_create(struct redis_stream **out, struct loop *loop, struct log *log,
                                const struct redis_stream_config *config, struct error *err) {
    struct redis_stream *s = mem_zalloc(sizeof(*s));
    enum status st = split_url(config->url, &s->url, &s->database, err);
    uint64_t seed;

    if (st == ST_OK) st = resolver_create(&s->resolver, loop, err);
    if (st != ST_OK) {
        mem_free(s);
        return st;
    }
    seed = clock_now_ns() ^ (uint64_t)(uintptr_t)s;
    rng_seed(&s->rng, seed);
    s->loop = loop;
    s->log = log;
    s->config = *config;
    s->password = config->password ? mem_strdup(config->password) : NULL;
    s->key = mem_strdup(config->key);
    snprintf(s->max_entries, sizeof(s->max_entries), "%u", config->max_entries);
    snprintf(s->last_id, sizeof(s->last_id), "0");
    connection_init(&s->reader, s, "reader");
    connection_init(&s->writer, s, "writer");
    connection_begin(&s->writer);
    *out = s;
    return ST_OK;
}

void redis_stream_destroy(struct redis_stream *s) {
    if (!s) return;
    s->is_closing = true;
    resolver_destroy(s->resolver);
    connection_fini(&s->reader);
    connection_fini(&s->writer);
    mem_free(s->password);
    mem_free(s->key);
    mem_free(s);
}

void redis_stream_read(struct redis_stream *s) {
    if (s->has_reader) return;
    s->has_reader = true;
    connection_begin(&s->reader);
}

void redis_stream_stats(const struct redis_stream *s, struct redis_stream_stats *out) {
    *out = s->stats;
    out->is_reading = s->reader.is_up;
    out->is_writing = s->writer.is_up;
}
