/* worker/engine/tiers/drain.c - the last write-back: what would be lost with the process.
 *
 *      device, host ── kv_manager_leave, a batch ──▶ host memory ── writeback ──▶ tiers
 *                ▲                                                    │
 *                └─────────── nothing is under way any more ◀─────────┘
 *
 * A batch is small beside host memory, so that what it brings there does not push out what the
 * batch before it brought. */
#include "worker/engine/tiers/lower_internal.h"

#define BATCH_PART 4u /* of host memory */
#define BATCH_MOST 256u
#define LOOK_US    1000u /* between two batches: the device moves the first */
#define ROOM_PART  8u    /* of a tier, that no write reaches without evicting */

static uint64_t count_stored(const struct lower *w) {
    uint64_t n = 0;

    for (uint32_t i = 0; i < w->config.n_tiers; i++)
        n += w->tiers[i].stats.stores[TIER_OK];
    return n;
}

void lower_drain(struct lower *w, uint64_t now_us) {
    if (w->drain.is_on) return;
    w->drain = (struct lower_drain){.is_on = true, .began_us = now_us, .n_stored = count_stored(w)};
}

bool lower_is_drained(const struct lower *w) {
    return w->drain.is_over;
}

void lower_drain_stats(const struct lower *w, uint64_t *n_stored, uint64_t *us) {
    *n_stored = count_stored(w) - w->drain.n_stored;
    *us = w->drain.ended_us - w->drain.began_us;
}

static bool is_busy(const struct lower *w) {
    for (uint32_t i = 0; i < w->config.n_tiers; i++)
        if (writeback_is_busy(w->tiers[i].writeback)) return true;
    return false;
}

/* A store without a limit of its own has another's: what is written there may evict. */
static bool has_room(const struct lower *w) {
    for (uint32_t i = 0; i < w->config.n_tiers; i++) {
        const struct lower_stats *s = &w->tiers[i].stats;

        if (s->can_write && s->bytes < s->max_bytes - s->max_bytes / ROOM_PART) return true;
    }
    return false;
}

static bool can_write(const struct lower *w) {
    for (uint32_t i = 0; i < w->config.n_tiers; i++)
        if (w->tiers[i].can_write && w->now_us >= w->tiers[i].stores.retry_us) return true;
    return false;
}

void drain_turn(struct lower *w) {
    uint32_t n = MIN(MAX(w->config.n_host_blocks / BATCH_PART, 1u), BATCH_MOST);

    if (!w->drain.is_on || w->drain.is_over || is_busy(w)) return;
    if (can_write(w) && (kv_manager_leave(w->kv, n, has_room(w)) || is_busy(w))) return;
    w->drain.is_over = true;
    w->drain.ended_us = w->now_us;
}

uint64_t drain_due_us(const struct lower *w) {
    if (!w->drain.is_on || w->drain.is_over) return UINT64_MAX;
    return is_busy(w) ? UINT64_MAX : w->now_us + LOOK_US;
}
