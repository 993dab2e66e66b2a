/* tests/integration/metrics_page.c - writes worker/METRICS.md from the table of the metrics.
 *
 * `make pages` puts it into its place, and test_pages.py sees that it is there as the program has it. */
#include <stdio.h>
#include <string.h>

#include "common/metrics.h"
#include "worker/worker_metrics.h"

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
    if (def->kind == METRIC_HISTOGRAM) printf(" %c", letter_of(sets, def));
    printf(" | ");
    put_list(def->labels, "");
    printf(" | %s", def->help);
    put_list(def->aliases, " Also ");
    printf(" |\n");
}

static void put_table(const char *prefix, struct bucket_sets *sets) {
    uint32_t n;
    const struct metric_def *rows = worker_metrics_rows(&n);

    printf("\n| metric | kind | labels | what it says |\n|---|---|---|---|\n");
    for (uint32_t i = 0; i < n; i++) {
        if (strncmp(rows[i].name, prefix, strlen(prefix)) == 0) put_row(&rows[i], sets);
    }
}

int main(void) {
    struct bucket_sets sets = {.n = 0};

    printf("# worker: the metrics\n\n"
           "`GET /metrics` answers with these, as Prometheus text. This page is written by `make "
           "pages` from the table in `worker/worker_metrics.h`.\n\n"
           "Every sample carries `model_name` and `engine` (always `0`). Names, labels and buckets "
           "are public: they may be added to, never changed.\nHistograms have `_bucket`, `_sum` "
           "and `_count`.\n\n"
           "## Under vLLM's names\n");
    put_table("vllm:", &sets);
    printf("\n## Our own\n");
    put_table("incipit_", &sets);
    printf("\n## Buckets\n\nUpper bounds, `+Inf` behind them.\n\n| | bounds |\n|---|---|\n");
    for (uint32_t i = 0; i < sets.n; i++) {
        printf("| %c |", (char)('A' + i));
        for (uint32_t b = 0; b < sets.first[i]->n_buckets; b++)
            printf(" %.10g", sets.first[i]->buckets[b]);
        printf(" |\n");
    }
    return 0;
}
