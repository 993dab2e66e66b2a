/* router/admin/metrics_page.c - the registered metrics, and those computed from live state. Workers
 * are copied one at a time, each under the lock for a microsecond or two. */
#include "router/admin/metrics_page.h"

#include <string.h>

#include "common/base/mem.h"
#include "common/telemetry/log.h"
#include "common/telemetry/process_stats.h"
#include "router/metrics/router_metrics.h"
#include "router/registry/registry_view.h"

static void collect_totals(struct metrics *m, struct registry *registry, struct log *log) {
    struct registry_totals t;

    registry_totals(registry, &t);
    metric_set(metrics_at(m, ROUTER_requests_in_flight), t.n_open);
    metric_set(metrics_at(m, ROUTER_requests_waiting), t.n_waiting);
    metric_set(metrics_at(m, ROUTER_followed_workers), t.n_followed);
    metric_set(metrics_at(m, ROUTER_shared_requests_in_flight), t.n_remote);
    metric_set(metrics_at(m, ROUTER_index_bytes), (double)t.index_bytes);
    metric_set(metrics_at(m, ROUTER_index_entries), (double)t.n_entries);
    metric_set(metrics_at(m, ROUTER_index_blocks), (double)t.n_blocks);
    metric_reach(metrics_at(m, ROUTER_index_evictions_total), t.n_evicted);
    metric_reach(metrics_at(m, ROUTER_index_refused_total), t.n_refused);
    metric_reach(metrics_at(m, ROUTER_lock_contended_total), t.n_contended);
    metric_reach(metrics_at(m, ROUTER_lock_wait_seconds_total), t.lock_wait_ns);
    metric_reach(metrics_at(m, ROUTER_log_lines_dropped_total), log_n_dropped(log));
    metric_set(METRICS_GET(m, ROUTER_workers, "all"), t.n_workers);
    metric_set(METRICS_GET(m, ROUTER_workers, "eligible"), t.n_eligible);
}

static void collect_sessions(struct metrics *m, const char *model, const struct sessions_stats *s) {
    metric_set(METRICS_GET(m, ROUTER_sessions, model, "active"), s->n_active);
    metric_set(METRICS_GET(m, ROUTER_sessions, model, "waiting"), s->n_waiting);
    metric_set(METRICS_GET(m, ROUTER_sessions, model, "resting"), s->n_resting);
    metric_set(METRICS_GET(m, ROUTER_session_tokens, model, "active"), (double)s->used_tokens);
    metric_set(METRICS_GET(m, ROUTER_session_tokens, model, "limit"), (double)s->capacity_tokens);
    metric_reach(METRICS_GET(m, ROUTER_session_turns_total, model, "new"),
                 s->n_joined[SESSION_BEGUN]);
    metric_reach(METRICS_GET(m, ROUTER_session_turns_total, model, "id"),
                 s->n_joined[SESSION_BY_ID]);
    metric_reach(METRICS_GET(m, ROUTER_session_turns_total, model, "end"),
                 s->n_joined[SESSION_BY_END]);
    metric_reach(METRICS_GET(m, ROUTER_session_turns_total, model, "anchor"),
                 s->n_joined[SESSION_BY_ANCHOR]);
    metric_reach(METRICS_GET(m, ROUTER_session_turns_total, model, "none"), s->n_unknown);
    metric_reach(METRICS_GET(m, ROUTER_sessions_paused_total, model, "idle"), s->n_rested);
    metric_reach(METRICS_GET(m, ROUTER_sessions_paused_total, model, "gone"), s->n_expired);
    metric_reach(METRICS_GET(m, ROUTER_sessions_paused_total, model, "final"), s->n_final);
    metric_reach(METRICS_GET(m, ROUTER_sessions_paused_total, model, "excess"), s->n_excess);
    metric_set(METRICS_GET(m, ROUTER_session_repeated_ratio, model), s->repeated_share);
}

static void collect_models(struct metrics *m, struct registry *registry) {
    struct registry_model_stats s;

    for (uint32_t i = 0; registry_model_stats(registry, i, &s); i++) {
        metric_set(METRICS_GET(m, ROUTER_inflight, s.name), s.n_open);
        metric_set(METRICS_GET(m, ROUTER_queue_depth, s.name), s.n_waiting);
        metric_set(METRICS_GET(m, ROUTER_saturation, s.name), s.saturation);
        metric_set(METRICS_GET(m, ROUTER_bytes_per_token, s.name), s.bytes_per_token);
        if (s.joins_sessions) collect_sessions(m, s.name, &s.sessions);
    }
}

/* --- of each worker --------------------------------------------------------------------------- */

struct worker_row {
    const char *kind, *name, *help, *aliases;
    double (*value)(const struct registry_view *v);
};

#define WORKER_VALUE(kind_, name_, help_, aliases_, value_)                                        \
    static double value_of_##name_(const struct registry_view *v) {                                \
        return value_;                                                                             \
    }
ROUTER_WORKER_METRICS(WORKER_VALUE)

#define KIND_GAUGE   "gauge"
#define KIND_COUNTER "counter"
#define AS_WORKER_ROW(kind_, name_, help_, aliases_, value_)                                       \
    {KIND_##kind_, "incipit_" #name_, help_, aliases_, value_of_##name_},
static const struct worker_row worker_rows[] = {ROUTER_WORKER_METRICS(AS_WORKER_ROW)};

/* Label values come from clients of the admin API and from workers. */
static void append_label_value(struct buf *out, const char *z) {
    for (; *z; z++) {
        if (*z == '"' || *z == '\\') buf_append_char(out, '\\');
        if (*z == '\n') {
            buf_append_str(out, STR("\\n"));
        } else {
            buf_append_char(out, *z);
        }
    }
}

static void write_row(const struct worker_row *row, struct str name,
                      const struct registry_view *views, uint32_t n, struct buf *out) {
    buf_appendf(out, "# HELP %.*s %s\n# TYPE %.*s %s\n", STR_ARG(name), row->help, STR_ARG(name),
                row->kind);
    for (uint32_t i = 0; i < n; i++) {
        double value = row->value(&views[i]);

        if (value < 0) continue;
        buf_append_str(out, name);
        buf_append_str(out, STR("{worker=\""));
        append_label_value(out, views[i].url);
        buf_append_str(out, STR("\",model=\""));
        append_label_value(out, views[i].info.model);
        buf_append_str(out, STR("\"} "));
        buf_append_f64(out, value);
        buf_append_char(out, '\n');
    }
}

static void write_ejections(const struct registry_view *views, uint32_t n, struct buf *out) {
    static const char name[] = "incipit_" ROUTER_EJECTIONS_NAME;

    buf_appendf(out, "# HELP %s %s\n# TYPE %s counter\n", name, ROUTER_EJECTIONS_HELP, name);
    for (uint32_t i = 0; i < n; i++) {
        for (int cause = 0; cause < BREAKER_N_CAUSES; cause++) {
            buf_appendf(out, "%s{worker=\"", name);
            append_label_value(out, views[i].url);
            buf_append_str(out, STR("\",model=\""));
            append_label_value(out, views[i].info.model);
            buf_appendf(out, "\",reason=\"%s\"} %llu\n", breaker_cause_names[cause],
                        (unsigned long long)views[i].n_ejected[cause]);
        }
    }
}

static void write_workers(struct registry *registry, struct buf *out) {
    uint32_t n_ids = registry_n_ids(registry), n = 0;
    struct registry_view *views = mem_try_zalloc((n_ids + 1) * sizeof(*views));

    if (!views) return;
    for (uint32_t id = 0; id < n_ids; id++)
        n += registry_get(registry, id, &views[n]);
    for (size_t i = 0; i < ARRAY_LEN(worker_rows); i++) {
        const struct worker_row *row = &worker_rows[i];
        const char *alias = row->aliases;

        write_row(row, str_of(row->name), views, n, out);
        while (*alias) {
            size_t len = strcspn(alias, ",");

            write_row(row, (struct str){alias, len}, views, n, out);
            alias += len + (alias[len] == ',');
        }
    }
    write_ejections(views, n, out);
    mem_free(views);
}

void metrics_page_write(struct metrics *m, struct registry *registry, struct log *log,
                        struct buf *out) {
    collect_totals(m, registry, log);
    collect_models(m, registry);
    metrics_write(m, out);
    write_workers(registry, out);
    process_stats_write(out);
}
