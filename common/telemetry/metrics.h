/* common/telemetry/metrics.h - counters, gauges and histograms, shown as Prometheus text.
 *
 * A program lists its metrics in a constant table of rows; the index of a row is the metric's id. A
 * row with labels has one *child* per combination of values, made on first use and then kept by
 * its user: updating a child is a relaxed atomic operation or two (a histogram has a
 * bucket and a sum), never a lock or an allocation. The number of children is limited, so that a
 * client who chooses label values cannot grow the registry: past the limit all go to one child
 * whose values are "other".
 *
 *      #define ROUTER_METRICS(X)                                                            \
 *          X(COUNTER,   requests_total, "policy,code", "Requests finished.")                \
 *          X(HISTOGRAM, ttft_seconds,   "policy",      "Request received to first token.")
 *      #define AS_ID(kind, name, labels, help)  ROUTER_##name,
 *      #define AS_ROW(kind, name, labels, help) {METRIC_##kind, "incipit_" #name, labels, help},
 *      enum { ROUTER_METRICS(AS_ID) ROUTER_METRIC_COUNT };
 *      static const struct metric_def rows[] = { ROUTER_METRICS(AS_ROW) };
 *
 *      metric_inc(METRICS_GET(m, ROUTER_requests_total, "prefix", "200"));
 *
 * Any thread may update, look up and write the page. A thread that updates often takes a *part* of
 * the child, which it updates with plain loads and stores: the page shows the sum of all parts, and
 * no other thread writes to its memory. */
#ifndef COMMON_TELEMETRY_METRICS_H
#define COMMON_TELEMETRY_METRICS_H

#include "common/base/base.h"
#include "common/base/buf.h"

enum metric_kind { METRIC_COUNTER, METRIC_GAUGE, METRIC_HISTOGRAM };

struct metric_def {
    enum metric_kind kind;
    const char *name;   /* the full name; a colon is fine */
    const char *labels; /* "policy,code"; "" or NULL: none */
    const char *help;
    const char *aliases;   /* aliases: other full names for it, "a,b" */
    const double *buckets; /* histogram: ascending upper bounds without +Inf; */
    uint32_t n_buckets;    /* none given: metrics_seconds_buckets */
    double scale;          /* counter: shown times this; 1e-6 shows microseconds as seconds. 0: 1 */
    uint32_t max_children; /* 0: 256 */
};

#define METRIC_MAX_LABELS     6
#define METRIC_BUCKETS(array) .buckets = (array), .n_buckets = ARRAY_LEN(array)

/* Bucket bounds that dashboards of this field expect. */
#define METRICS_TTFT_BUCKETS    22
#define METRICS_LATENCY_BUCKETS 21
#define METRICS_ITL_BUCKETS     19
#define METRICS_TOKEN_BUCKETS   19
#define METRICS_SECONDS_BUCKETS 16
extern const double metrics_ttft_buckets[METRICS_TTFT_BUCKETS];       /* time to first token */
extern const double metrics_latency_buckets[METRICS_LATENCY_BUCKETS]; /* whole requests, phases */
extern const double metrics_itl_buckets[METRICS_ITL_BUCKETS];         /* between tokens */
extern const double metrics_token_buckets[METRICS_TOKEN_BUCKETS];     /* 1-2-5 to one million */
extern const double metrics_seconds_buckets[METRICS_SECONDS_BUCKETS]; /* 100 us to 10 s */

struct metrics; /* the registry */
struct metric;  /* one child: what is updated; lives as long as the registry */

/* `defs` must outlive the registry. Metrics without labels exist from the start and show 0. */
struct metrics *metrics_create(const struct metric_def *defs, uint32_t n_defs);
void metrics_destroy(struct metrics *m); /* NULL is fine */

/* A label that every sample carries (model_name). Before the first update. */
void metrics_add_common_label(struct metrics *m, const char *name, const char *value);

/* The child of row `id` for these label values, in the row's order. Takes a lock: keep it. */
struct metric *metrics_get(struct metrics *m, uint32_t id, const char *const *values,
                           uint32_t n_values);
#define METRICS_GET(m, id, ...)                                                                    \
    metrics_get(m, id, (const char *const[]){__VA_ARGS__},                                         \
                sizeof((const char *const[]){__VA_ARGS__}) / sizeof(const char *))

/* The child of a row without labels; no lock. */
struct metric *metrics_at(struct metrics *m, uint32_t id);

/* A part of a counter or histogram, zero at first, that the caller's thread alone updates, with
 * plain instructions. Keep it: it lives as long as the registry. */
struct metric *metric_part(struct metrics *m, struct metric *whole);

void metric_add(struct metric *c, uint64_t n);       /* counter */
void metric_inc(struct metric *c);                   /* counter, by one */
void metric_reach(struct metric *c, uint64_t total); /* counter kept elsewhere, in one piece (no
                                                      * parts); never falls */
void metric_set(struct metric *g, double value);     /* gauge */
void metric_shift(struct metric *g, double delta);   /* gauge, up or down */
void metric_observe(struct metric *h, double value); /* histogram; NaN is ignored */

double metric_value(const struct metric *c);   /* counter (scaled) or gauge; histogram: its sum */
uint64_t metric_count(const struct metric *h); /* observations of a histogram */

/* Called by metrics_write before it reads anything: the place to set gauges from live state. Runs
 * on the thread that writes the page. Register at start-up, before the first page; at most 8. */
typedef void metrics_collect_fn(void *ctx);
void metrics_on_collect(struct metrics *m, metrics_collect_fn *fn, void *ctx);

/* Appends the page, Prometheus text format 0.0.4. */
#define METRICS_CONTENT_TYPE "text/plain; version=0.0.4; charset=utf-8"
void metrics_write(struct metrics *m, struct buf *out);

#endif
