/* worker/kv/tiers/tier.c - names of outcomes. */
#include "worker/kv/tiers/tier.h"

#include <assert.h>

const char *tier_result_name(enum tier_result result) {
    static const char *const names[TIER_N_RESULTS] = {"ok",   "skipped", "absent",  "busy",
                                                      "late", "io",      "rejected"};

    assert(result < TIER_N_RESULTS);
    return names[result];
}
