/* tests/fuzz/fuzz_engine_stats.c - any page and any info: what is read lies within the page, and
 * within reason. */
#include <stdlib.h>
#include <string.h>

#include "router/fleet/engine_stats.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static bool is_within(struct str part, struct str whole) {
    return part.len == 0 || (part.ptr >= whole.ptr && part.ptr + part.len <= whole.ptr + whole.len);
}

/* They are put into bodies as they are. */
static void check_engines(const struct worker_engines *all) {
    if (all->n > WORKER_ENGINES_MAX) abort();
    for (uint32_t i = 0; i < all->n; i++) {
        if (!all->engines[i].id[0] || strpbrk(all->engines[i].id, "\"\\ \n")) abort();
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct str whole = {(const char *)data, size}, page = whole;
    struct worker_engines engines;
    struct engine_stats stats;
    struct prom_sample s;

    while (prom_next(&page, &s)) {
        if (!s.name.len || !is_within(s.name, whole) || !is_within(s.labels, whole)) abort();
        if (!is_within(prom_label(s.labels, STR("block_size")), s.labels)) abort();
    }
    if (engine_stats_read_page(&stats, whole) && stats.kind == ENGINE_UNKNOWN) abort();
    engine_stats_read_info(&stats, whole);
    if (engine_stats_read_engines(&engines, whole)) check_engines(&engines);
    return 0;
}
