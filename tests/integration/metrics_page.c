/* tests/integration/metrics_page.c - writes worker/METRICS.md or router/METRICS.md from the tables
 * in the code: `metrics_page worker`, `metrics_page router`.
 *
 * `make pages` puts them into their places, and test_pages.py sees that they are there as the
 * programs have them. */
#include <stdio.h>
#include <string.h>

#include "common/telemetry/metrics.h"
#include "common/telemetry/process_stats.h"
#include "router/metrics/router_metrics.h"
#include "worker/metrics/worker_metrics.h"

enum { BUCKET_SETS_MAX = 26 };

/* Sets of buckets in order of appearance; a row names its own by a letter. */
struct bucket_sets {
    const struct metric_def *first[BUCKET_SETS_MAX];
    uint32_t n;
};

static char letter_of(struct bucket_sets *sets, const struct metric_def *def) {
    uint32_t i = 0;

    while (i < sets->n && sets->first[i]->buckets != def->buckets)
        i++;
    if (i == sets->n && sets->n < BUCKET_SETS_MAX) sets->first[sets->n++] = def;
    return (char)('A' + i);
}

static void put_list(const char *list, const char *before) {
    while (list && *list) {
        size_t n = strcspn(list, ",");

        printf("%s`%.*s`", before, (int)n, list);
        before = ", ";
        list += n + (list[n] == ',');
    }
}

static void put_row(const struct metric_def *def, struct bucket_sets *sets) {
    static const char *const kinds[] = {"counter", "gauge", "histogram"};

    printf("| `%s` | %s", def->name, kinds[def->kind]);
    if (def->kind == METRIC_HISTOGRAM) printf(", [buckets %c](#buckets)", letter_of(sets, def));
    printf(" | ");
    put_list(def->labels, "");
    printf(" | %s", def->help);
    put_list(def->aliases && *def->aliases ? def->aliases : NULL, " Also ");
    printf(" |\n");
}

static void put_head(void) {
    printf("\n| metric | kind | labels | meaning |\n|---|---|---|---|\n");
}

static void put_rows(const struct metric_def *rows, size_t n, const char *prefix,
                     struct bucket_sets *sets) {
    put_head();
    for (size_t i = 0; i < n; i++) {
        if (strncmp(rows[i].name, prefix, strlen(prefix)) == 0) put_row(&rows[i], sets);
    }
}

static void put_process(struct bucket_sets *sets) {
#define AS_PROCESS_ROW(kind_, name_, help_, value_)                                                \
    {.kind = METRIC_##kind_, .name = #name_, .help = help_},
    static const struct metric_def rows[] = {PROCESS_METRICS(AS_PROCESS_ROW)};

    printf("\n## Metrics of the process\n\nThe names are those of Prometheus' client libraries.\n");
    put_rows(rows, ARRAY_LEN(rows), "", sets);
}

static void put_buckets(const struct bucket_sets *sets) {
    printf("\n## Buckets\n\nUpper bounds; `+Inf` is the last bucket of each.\n\n| | bounds "
           "|\n|---|---|\n");
    for (uint32_t i = 0; i < sets->n; i++) {
        printf("| %c |", (char)('A' + i));
        for (uint32_t b = 0; b < sets->first[i]->n_buckets; b++)
            printf(" %.10g", sets->first[i]->buckets[b]);
        printf(" |\n");
    }
}

static void put_worker(struct bucket_sets *sets) {
    uint32_t n;
    const struct metric_def *rows = worker_metrics_rows(&n);

    printf(
        "# worker: the metrics\n\n"
        "`GET /metrics` has these metrics as Prometheus text. `make pages` writes this page from "
        "the "
        "table in `worker/metrics/worker_metrics.h`.\n\n"
        "Every sample has the labels `model_name` and `engine` (always `0`), except those of the "
        "process. Names, labels and buckets are public: new ones may appear, existing ones stay."
        "\nHistograms have `_bucket`, `_sum` and `_count`.\n\n"
        "## Metrics of vLLM\n");
    put_rows(rows, n, "vllm:", sets);
    printf("\n## Metrics of Incipit\n");
    put_rows(rows, n, "incipit_", sets);
}

static void put_router(struct bucket_sets *sets) {
#define AS_ROW(kind_, name_, labels_, help_, ...)                                                  \
    {.kind = METRIC_##kind_,                                                                       \
     .name = "incipit_" #name_,                                                                    \
     .labels = labels_,                                                                            \
     .help = help_,                                                                                \
     ##__VA_ARGS__},
#define AS_WORKER_ROW(kind_, name_, help_, aliases_, value_)                                       \
    {.kind = METRIC_##kind_,                                                                       \
     .name = "incipit_" #name_,                                                                    \
     .labels = "worker,model",                                                                     \
     .help = help_,                                                                                \
     .aliases = aliases_},
    static const struct metric_def rows[] = {ROUTER_METRICS(AS_ROW) HTTP_METRICS(AS_ROW)};
    static const struct metric_def worker_rows[] = {
        ROUTER_WORKER_METRICS(AS_WORKER_ROW){.kind = METRIC_COUNTER,
                                             .name = "incipit_" ROUTER_EJECTIONS_NAME,
                                             .labels = "worker,model,reason",
                                             .help = ROUTER_EJECTIONS_HELP}};

    printf("# router: the metrics\n\n"
           "`GET /metrics` on the admin port has these metrics as Prometheus text. `make pages` "
           "writes "
           "this page from the tables in `router/metrics/router_metrics.h`.\n\n"
           "Metrics with an equal meaning in another router also have its name (\"also\"). "
           "Names, labels and buckets are public: new ones may appear, existing ones stay.\n"
           "Histograms have `_bucket`, `_sum` and `_count`. A metric with labels appears with its "
           "first event.\n\n"
           "## Metrics of the router\n");
    put_rows(rows, ARRAY_LEN(rows), "", sets);
    printf("\n## Metrics of each worker\n\nThe label `worker` is its URL. The router computes them "
           "for each "
           "scrape: they end when the worker is removed.\n");
    put_rows(worker_rows, ARRAY_LEN(worker_rows), "", sets);
}

int main(int argc, char **argv) {
    struct bucket_sets sets = {.n = 0};

    if (argc != 2) return 2;
    if (strcmp(argv[1], "router") == 0) {
        put_router(&sets);
    } else {
        put_worker(&sets);
    }
    put_process(&sets);
    put_buckets(&sets);
    return 0;
}
