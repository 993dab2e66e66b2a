/* common/telemetry/log.h - structured log lines: an event and its fields.
 *
 *      2026-11-20T10:02:23.123Z info worker_ready url=http://127.0.0.1:31000 blocks=512
 *      {"ts":"2026-11-20T10:02:23.123Z","level":"info","event":"worker_ready","blocks":512}
 *
 *      log_event(log, LOG_INFO, "worker_ready", log_z("url", url), log_u64("blocks", n));
 *
 * An event's name is a constant in snake_case and public: dashboards match it. Lines are limited
 * per event and second, those left out are counted and the count is put on the next line of that
 * event (suppressed=N). One line is one write(2), so lines of threads and processes do not mix.
 * Some events have a limit of their own; what changes a program is never left out (log_always).
 * A value shows whatever is in it: what a terminal would obey instead is written as \uXXXX.
 *
 * Written at once, a line costs its caller a system call, and a reader who is slow holds the caller
 * up. With `is_async` lines go to a buffer instead, which a thread of the log's own writes out some
 * milliseconds later, many at a time; when it is full, lines are dropped and counted.
 * Never log prompts, completions or keys.
 *
 * LIMITS. A value is cut after 1 KiB and then ends in "..."; a line has at most 4 KiB, fields that
 * do not fit are left out and it ends with cut=true. 256 event names are limited and counted apart;
 * further ones share an entry. Asynchronous lines of the last milliseconds are lost in a crash.
 * Any thread. A log of NULL takes everything and writes nothing. */
#ifndef COMMON_TELEMETRY_LOG_H
#define COMMON_TELEMETRY_LOG_H

#include "common/base/base.h"
#include "common/base/buf.h"

enum log_level { LOG_DEBUG, LOG_INFO, LOG_WARN, LOG_ERROR, LOG_LEVEL_COUNT };

/* For an OPT_ENUM row: "debug", "info", "warn", "error", NULL; and "text", "json", NULL. */
extern const char *const log_level_names[LOG_LEVEL_COUNT + 1];
enum log_format { LOG_TEXT, LOG_JSON };
extern const char *const log_format_names[3];

enum log_field_kind {
    LOG_FIELD_END,
    LOG_FIELD_STR,
    LOG_FIELD_U64,
    LOG_FIELD_I64,
    LOG_FIELD_F64,
    LOG_FIELD_BOOL,
};

struct log_field {
    const char *key; /* constant, snake_case */
    enum log_field_kind kind;
    union {
        struct str s;
        uint64_t u;
        int64_t i;
        double f;
        bool b;
    };
};

struct log_limit {
    const char *event;
    uint32_t max_per_s; /* > 0 */
};

/* An event under a new name: for one version its lines also have the field event_was, so that
 * searches for the old name still find them. */
struct log_renamed {
    const char *event, *was;
};

struct log_config {
    int fd; /* not closed; 2 for stderr */
    enum log_level level;
    enum log_format format;
    uint32_t max_per_s;                /* lines per event and second; 0: 50 */
    struct log_limit other;            /* of one event, instead; event NULL: none */
    const struct log_renamed *renamed; /* the last has event NULL; NULL: none */
    bool is_async;                     /* a thread writes; callers never wait for fd */
    uint64_t (*wall_us)(void);         /* NULL: clock_wall_us */
};

struct log;

struct log *log_create(const struct log_config *config);

/* Logs what is still suppressed and writes the buffer, for a second at most. NULL is fine. */
void log_destroy(struct log *log);

void log_set_level(struct log *log, enum log_level level);

/* Lines per second of each event, and of the event that has a limit of its own; both > 0. */
void log_set_rates(struct log *log, uint32_t max_per_s, uint32_t other_max_per_s);
bool log_is_on(const struct log *log, enum log_level level); /* before costly preparations */

#define log_event(log, level, event, ...)                                                          \
    log_write(log, level, event,                                                                   \
              (const struct log_field[]){__VA_ARGS__ __VA_OPT__(, ){.kind = LOG_FIELD_END}})

/* As log_event at any rate and level: for changes made by operators, not for traffic. */
#define log_always(log, level, event, ...)                                                         \
    log_write_always(                                                                              \
        log, level, event,                                                                         \
        (const struct log_field[]){__VA_ARGS__ __VA_OPT__(, ){.kind = LOG_FIELD_END}})

/* `fields` ends with LOG_FIELD_END. Blocks only as long as write(2) does; if async, never. */
void log_write(struct log *log, enum log_level level, const char *event,
               const struct log_field *fields);
void log_write_always(struct log *log, enum log_level level, const char *event,
                      const struct log_field *fields);

uint64_t log_n_dropped(struct log *log); /* lines that found the buffer full */

static inline struct log_field log_str(const char *key, struct str s) {
    return (struct log_field){.key = key, .kind = LOG_FIELD_STR, .s = s};
}

static inline struct log_field log_z(const char *key, const char *z) {
    return log_str(key, str_of(z));
}

static inline struct log_field log_u64(const char *key, uint64_t v) {
    return (struct log_field){.key = key, .kind = LOG_FIELD_U64, .u = v};
}

static inline struct log_field log_i64(const char *key, int64_t v) {
    return (struct log_field){.key = key, .kind = LOG_FIELD_I64, .i = v};
}

static inline struct log_field log_f64(const char *key, double v) {
    return (struct log_field){.key = key, .kind = LOG_FIELD_F64, .f = v};
}

static inline struct log_field log_bool(const char *key, bool v) {
    return (struct log_field){.key = key, .kind = LOG_FIELD_BOOL, .b = v};
}

#endif
