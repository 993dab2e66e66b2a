/* tests/bench/load/report.h - what became of the requests, as one JSON object or a line each.
 *
 * The summary counts requests that were due from the end of the warm-up on; rates count what ended
 * between the end of the warm-up and the last arrival. Percentiles are exact. */
#ifndef TESTS_BENCH_LOAD_REPORT_H
#define TESTS_BENCH_LOAD_REPORT_H

#include "tests/bench/load/drive.h"

struct report_config {
    uint64_t warmup_us;
    uint64_t until_us; /* end of the arrivals */
};

void report_summary(const struct drive *d, const struct report_config *config, struct buf *out);
void report_records(const struct drive *d, struct buf *out); /* CSV with a head line */

#endif
