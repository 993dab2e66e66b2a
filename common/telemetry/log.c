/* common/telemetry/log.c - one line, one write; or, asynchronously, many lines, one write.
 *
 * A line is composed on the stack: a struct buf whose memory is an array and whose limit is that
 * array's size never allocates. Only the per-event counts are shared; their lock is not held while
 * writing. */
#include "common/telemetry/log.h"

#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <time.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/hash.h"
#include "common/base/mem.h"
#include "common/telemetry/line_sink.h"
#include "common/text/json.h"

#define LINE_MAX_BYTES  4096
#define LINE_TAIL_BYTES 64 /* kept free for suppressed=, cut= and the end of the line */
#define VALUE_MAX_BYTES 1024
#define EVENT_SLOTS     512 /* a power of two, half of it used at most */
#define EVENT_MAX       256
#define DEFAULT_PER_S   50
#define BUFFER_BYTES    (256 * 1024)

const char *const log_level_names[] = {"debug", "info", "warn", "error", NULL};
const char *const log_format_names[] = {"text", "json", NULL};

struct event {
    const char *name; /* the caller's constant; NULL: a free slot */
    const char *was;  /* its former name; NULL: none */
    uint64_t second;  /* that n_in_second counts */
    uint32_t n_in_second, max_per_s;
    uint64_t n_suppressed; /* not yet reported */
};

struct log {
    struct log_config config;
    atomic_int level;
    pthread_mutex_t lock;
    struct event events[EVENT_SLOTS]; /* open addressing by name */
    struct event others;              /* when there are too many names */
    uint32_t n_events;
    struct line_sink *sink; /* NULL: lines are written at once */
};

struct log *log_create(const struct log_config *config) {
    struct log *log = mem_zalloc(sizeof(*log));

    log->config = *config;
    if (!log->config.max_per_s) log->config.max_per_s = DEFAULT_PER_S;
    if (!log->config.wall_us) log->config.wall_us = clock_wall_us;
    log->others.name = "";
    log->others.max_per_s = log->config.max_per_s;
    atomic_init(&log->level, (int)config->level);
    pthread_mutex_init(&log->lock, NULL);
    if (config->is_async) log->sink = line_sink_create(config->fd, false, BUFFER_BYTES);
    return log;
}

void log_set_level(struct log *log, enum log_level level) {
    if (log) atomic_store_explicit(&log->level, (int)level, memory_order_relaxed);
}

bool log_is_on(const struct log *log, enum log_level level) {
    return log && (int)level >= atomic_load_explicit(&log->level, memory_order_relaxed);
}

/* --- counting ---------------------------------------------------------------------------------*/
static uint32_t limit_of(const struct log *log, const char *name) {
    const struct log_limit *other = &log->config.other;

    return other->event && strcmp(other->event, name) == 0 ? other->max_per_s
                                                           : log->config.max_per_s;
}

static const char *former_name(const struct log *log, const char *name) {
    const struct log_renamed *r = log->config.renamed;

    while (r && r->event && strcmp(r->event, name) != 0)
        r++;
    return r ? r->was : NULL;
}

/* Under the lock. */
static struct event *event_of(struct log *log, const char *name) {
    size_t i = hash_64(name, strlen(name), 0) & (EVENT_SLOTS - 1);

    for (; log->events[i].name; i = (i + 1) & (EVENT_SLOTS - 1)) {
        if (strcmp(log->events[i].name, name) == 0) return &log->events[i];
    }
    if (log->n_events == EVENT_MAX) return &log->others;
    log->n_events++;
    log->events[i].name = name;
    log->events[i].was = former_name(log, name);
    log->events[i].max_per_s = limit_of(log, name);
    return &log->events[i];
}

/* What a line has besides its caller's fields. */
struct tail {
    const char *was;       /* the former name of its event; NULL: none */
    uint64_t n_suppressed; /* lines of its event that were left out before it */
};

/* True when the line may be written. */
static bool admit(struct log *log, const char *name, bool is_always, uint64_t second,
                  struct tail *tail) {
    struct event *e;
    bool is_admitted;

    pthread_mutex_lock(&log->lock);
    e = event_of(log, name);
    if (e->second != second) {
        e->second = second;
        e->n_in_second = 0;
    }
    is_admitted = is_always || e->n_in_second < e->max_per_s;
    if (is_admitted) {
        e->n_in_second++;
        *tail = (struct tail){e->was, e->n_suppressed};
        e->n_suppressed = 0;
    } else {
        e->n_suppressed++;
    }
    pthread_mutex_unlock(&log->lock);
    return is_admitted;
}

void log_set_rates(struct log *log, uint32_t max_per_s, uint32_t other_max_per_s) {
    pthread_mutex_lock(&log->lock);
    log->config.max_per_s = log->others.max_per_s = max_per_s;
    log->config.other.max_per_s = other_max_per_s;
    for (uint32_t i = 0; i < EVENT_SLOTS; i++) {
        struct event *e = &log->events[i];

        if (e->name) e->max_per_s = limit_of(log, e->name);
    }
    pthread_mutex_unlock(&log->lock);
}

/* --- composing --------------------------------------------------------------------------------*/
struct line {
    char bytes[LINE_MAX_BYTES];
    struct buf out;
    bool is_json;
};

/* At most VALUE_MAX_BYTES, whole characters. */
static struct str cut(struct str s, bool *is_cut) {
    *is_cut = s.len > VALUE_MAX_BYTES;
    if (!*is_cut) return s;
    s.len = VALUE_MAX_BYTES;
    while (s.len > 0 && ((unsigned char)s.ptr[s.len] & 0xC0) == 0x80)
        s.len--;
    return s;
}

static bool is_bare(struct str s) {
    for (size_t i = 0; i < s.len; i++) {
        if (s.ptr[i] <= ' ' || s.ptr[i] >= 0x7F || s.ptr[i] == '"' || s.ptr[i] == '=') return false;
    }
    return s.len > 0;
}

static void put_string(struct line *l, struct str s) {
    bool is_cut;

    s = cut(s, &is_cut);
    if (!l->is_json && !is_cut && is_bare(s)) {
        buf_append_str(&l->out, s);
        return;
    }
    buf_append_char(&l->out, '"');
    json_escape_visibly(&l->out, s);
    if (is_cut) buf_append_str(&l->out, STR("..."));
    buf_append_char(&l->out, '"');
}

static void put_value(struct line *l, const struct log_field *f) {
    switch (f->kind) {
    case LOG_FIELD_END: break;
    case LOG_FIELD_STR: put_string(l, f->s); break;
    case LOG_FIELD_U64: buf_appendf(&l->out, "%llu", (unsigned long long)f->u); break;
    case LOG_FIELD_I64: buf_appendf(&l->out, "%lld", (long long)f->i); break;
    case LOG_FIELD_BOOL: buf_append_str(&l->out, f->b ? STR("true") : STR("false")); break;
    case LOG_FIELD_F64:
        if (isfinite(f->f)) {
            buf_appendf(&l->out, "%.6g", f->f);
        } else {
            buf_append_str(&l->out, l->is_json ? STR("null") : STR("nan"));
        }
        break;
    }
}

static void put_field(struct line *l, struct log_field f) {
    buf_appendf(&l->out, l->is_json ? ",\"%s\":" : " %s=", f.key);
    put_value(l, &f);
}

static void put_head(struct line *l, uint64_t wall_us, const char *level, const char *event) {
    time_t seconds = (time_t)(wall_us / 1000000);
    char when[64];
    struct tm tm;

    gmtime_r(&seconds, &tm);
    strftime(when, sizeof(when), "%Y-%m-%dT%H:%M:%S", &tm);
    buf_appendf(&l->out,
                l->is_json ? "{\"ts\":\"%s.%03uZ\",\"level\":\"%s\",\"event\":\"%s\""
                           : "%s.%03uZ %s %s",
                when, (unsigned)(wall_us / 1000 % 1000), level, event);
}

static void write_all(int fd, struct str s) {
    while (s.len > 0) {
        ssize_t n = write(fd, s.ptr, s.len);

        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return; /* no output is left */
        s.ptr += n;
        s.len -= (size_t)n;
    }
}

uint64_t log_n_dropped(struct log *log) {
    return log && log->sink ? line_sink_n_dropped(log->sink) : 0;
}

static void compose_and_write(struct log *log, uint64_t wall_us, enum log_level level,
                              const char *event, const struct log_field *fields,
                              const struct tail *tail) {
    struct line l; /* its bytes need no zeroing */
    bool is_cut = false;

    l.is_json = log->config.format == LOG_JSON;
    l.out = (struct buf){.data = l.bytes, .cap = LINE_MAX_BYTES};
    l.out.limit = LINE_MAX_BYTES - LINE_TAIL_BYTES;
    put_head(&l, wall_us, log_level_names[level], event);
    if (tail->was) put_field(&l, log_z("event_was", tail->was));
    for (; fields->kind != LOG_FIELD_END && !is_cut; fields++) {
        size_t mark = l.out.end;

        put_field(&l, *fields);
        if (!l.out.has_failed) continue;
        l.out.end = mark;
        l.out.has_failed = false;
        is_cut = true;
    }
    l.out.limit = LINE_MAX_BYTES;
    if (is_cut) put_field(&l, log_bool("cut", true));
    if (tail->n_suppressed) put_field(&l, log_u64("suppressed", tail->n_suppressed));
    buf_append_str(&l.out, l.is_json ? STR("}\n") : STR("\n"));
    if (log->sink) {
        (void)line_sink_put(log->sink, buf_str(&l.out));
    } else {
        write_all(log->config.fd, buf_str(&l.out));
    }
}

static void write_if(struct log *log, bool is_always, enum log_level level, const char *event,
                     const struct log_field *fields) {
    uint64_t wall_us = log->config.wall_us();
    struct tail tail = {0};
    int saved_errno = errno; /* so that a caller may log and then report */

    if (admit(log, event, is_always, wall_us / 1000000, &tail)) {
        compose_and_write(log, wall_us, level, event, fields, &tail);
    }
    errno = saved_errno;
}

void log_write(struct log *log, enum log_level level, const char *event,
               const struct log_field *fields) {
    if (log_is_on(log, level)) write_if(log, false, level, event, fields);
}

void log_write_always(struct log *log, enum log_level level, const char *event,
                      const struct log_field *fields) {
    if (log) write_if(log, true, level, event, fields);
}

static void report_suppressed(struct log *log, const struct event *e) {
    if (!e->n_suppressed) return;
    compose_and_write(log, log->config.wall_us(), LOG_WARN, "log_suppressed",
                      (const struct log_field[]){log_z("name", e->name), {.kind = LOG_FIELD_END}},
                      &(struct tail){.n_suppressed = e->n_suppressed});
}

void log_destroy(struct log *log) {
    if (!log) return;
    for (size_t i = 0; i < EVENT_SLOTS; i++)
        report_suppressed(log, &log->events[i]);
    report_suppressed(log, &log->others);
    line_sink_destroy(log->sink);
    pthread_mutex_destroy(&log->lock);
    mem_free(log);
}
