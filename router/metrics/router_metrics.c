/* router/metrics/router_metrics.c - the table of the router's metrics. */
#include "router/metrics/router_metrics.h"

#define AS_ROW(kind_, name_, labels_, help_, ...)                                                  \
    {.kind = METRIC_##kind_,                                                                       \
     .name = "incipit_" #name_,                                                                    \
     .labels = labels_,                                                                            \
     .help = help_,                                                                                \
     ##__VA_ARGS__},

const double router_decision_buckets[ROUTER_DECISION_BUCKETS] = {5e-7, 1e-6, 2e-6, 5e-6, 1e-5, 2e-5,
                                                                 5e-5, 1e-4, 2e-4, 5e-4, 1e-3};

static const struct metric_def rows[] = {ROUTER_METRICS(AS_ROW) HTTP_METRICS(AS_ROW)};

/* What alerts wait for is shown as 0 before it happens: a counter that begins with 1 has not
 * grown. */
static const struct {
    enum router_metric id;
    const char *value;
} foreseen[] = {
    {ROUTER_retry_budget_exhausted_total, "waited"},
    {ROUTER_retry_budget_exhausted_total, "given_up"},
    {ROUTER_retry_budget_exhausted_total, "passed_on"},
    {ROUTER_poison_suspected_total, "found"},
    {ROUTER_poison_suspected_total, "refused"},
};

struct metrics *router_metrics_create(void) {
    struct metrics *m = metrics_create(rows, ARRAY_LEN(rows));

    for (size_t i = 0; i < ARRAY_LEN(foreseen); i++)
        (void)METRICS_GET(m, foreseen[i].id, foreseen[i].value);
    return m;
}
