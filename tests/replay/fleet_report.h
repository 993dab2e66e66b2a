/* tests/replay/fleet_report.h - what a replay was like: means and shares over its requests. */
#ifndef TESTS_REPLAY_FLEET_REPORT_H
#define TESTS_REPLAY_FLEET_REPORT_H

#include "tests/replay/fleet_model.h"

/* All have ended. */
struct fleet_record {
    const struct workload *workload;
    const struct workload_bound *bound; /* or NULL */
    const struct fleet_options *options;
    const struct model_request *requests; /* (workload->n) */
    const struct worker_model *workers;   /* (n_workers) */
};

/* When the window begins that is reported apart; INFINITY: there is none. */
double fleet_window_s(const struct workload *workload, const struct fleet_options *options);

void fleet_report(const struct fleet_record *f, struct fleet_result *r);

#endif
