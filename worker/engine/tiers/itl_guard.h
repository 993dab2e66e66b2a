/* worker/engine/tiers/itl_guard.h - whether steps take longer while a tier is written to, and so
 * whether writing should pause.
 *
 *      steps of decodes alone, by how many rows they have (1, 2, 4, 8 ...):
 *          quiet     the latest 31 while nothing was written      median ─┐
 *          writing   the latest 31 while this tier was            median ─┴─▶ 5 % more: a pause
 *
 * A pause is a second, doubled by each that follows, up to a minute; a window of writing that costs
 * nothing ends the series. Contexts grow, and with them steps: what is quiet is measured again in
 * every pause, so that a wrong one is not repeated. Medians, for single steps are late for many
 * reasons. Pure: time is an argument. */
#ifndef WORKER_ENGINE_TIERS_ITL_GUARD_H
#define WORKER_ENGINE_TIERS_ITL_GUARD_H

#include "common/base/base.h"

#define ITL_GUARD_SIZES  12u /* of steps, by powers of two */
#define ITL_GUARD_WINDOW 31u

struct itl_window {
    float s[ITL_GUARD_WINDOW]; /* a ring */
    uint32_t n_seen;
};

struct itl_guard {
    struct itl_window quiet[ITL_GUARD_SIZES], writing[ITL_GUARD_SIZES];
    uint64_t pause_us, until_us;
    uint64_t n_pauses;
};

void itl_guard_init(struct itl_guard *g);

/* A step of n_rows decodes took so long while this tier was written to, or nothing was. */
void itl_guard_note(struct itl_guard *g, uint32_t n_rows, double step_s, bool is_writing,
                    uint64_t now_us);
bool itl_guard_is_paused(const struct itl_guard *g, uint64_t now_us);

#endif
