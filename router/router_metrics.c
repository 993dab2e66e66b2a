/* router/router_metrics.c - the table, and the gauges that are read from live state. */
#include "router/router_metrics.h"

#include "router/registry.h"

#define AS_ROW(kind_, name_, labels_, help_, ...)                                                  \
    {.kind = METRIC_##kind_,                                                                       \
     .name = "incipit_" #name_,                                                                    \
     .labels = labels_,                                                                            \
     .help = help_,                                                                                \
     ##__VA_ARGS__},

static const struct metric_def rows[] = {ROUTER_METRICS(AS_ROW)};

struct metrics *router_metrics_create(void) {
    return metrics_create(rows, ARRAY_LEN(rows));
}

void router_metrics_collect(struct metrics *m, struct registry *registry) {
    struct registry_totals totals;
    struct registry_view view;

    registry_totals(registry, &totals);
    metric_set(metrics_at(m, ROUTER_requests_in_flight), totals.n_open);
    metric_set(metrics_at(m, ROUTER_index_bytes), (double)totals.index_bytes);
    metric_set(metrics_at(m, ROUTER_index_entries), (double)totals.n_entries);
    metric_set(METRICS_GET(m, ROUTER_workers, "all"), totals.n_workers);
    metric_set(METRICS_GET(m, ROUTER_workers, "eligible"), totals.n_eligible);
    for (uint32_t id = 0; id < registry_n_ids(registry); id++) {
        if (!registry_get(registry, id, &view)) continue;
        metric_set(METRICS_GET(m, ROUTER_worker_in_flight, view.url), view.in_flight);
        metric_set(METRICS_GET(m, ROUTER_worker_eligible, view.url),
                   view.is_described && view.reasons == 0);
    }
}
