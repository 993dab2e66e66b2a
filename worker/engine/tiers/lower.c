/* worker/engine/tiers/lower.c - see the header. */
#include "worker/engine/tiers/lower.h"

#include <assert.h>
#include <string.h>

#include "common/base/mem.h"
#include "worker/engine/tiers/lower_internal.h"

#define JOB_BYTES      (16u << 20) /* of one job: some tens of milliseconds of a disk */
#define RESERVED_PART  8u          /* of host memory, at most, awaits bytes */
#define PAUSE_FIRST_US (250u * 1000)
#define PAUSE_MOST_US  (30u * 1000 * 1000)
#define STATS_EVERY_US (50u * 1000) /* a tier's own figures: behind a lock of its */

uint32_t lower_max_reserved(uint32_t n_host_blocks) {
    return MAX(n_host_blocks / RESERVED_PART, MIN(n_host_blocks, TIER_JOB_UNITS));
}

/* --- what the kv manager asks ----------------------------------------------------------------- */

/* What other workers are likely to ask for is in host memory before they do: to bring it there
 * takes the steps that are under way. */
static uint32_t count_below(void *arg, const struct unit_key *keys, uint32_t n) {
    struct lower *w = arg;
    uint32_t n_below = w->config.server && !w->drain.is_on ? 0 : n;

    for (uint32_t i = 0; i < w->config.n_tiers; i++) {
        struct lower_tier *t = &w->tiers[i];

        if (t->can_write && (w->drain.is_on || !writeback_is_full(t->writeback)))
            n_below = MIN(n_below, t->tier->ops->find(t->tier, keys, n));
    }
    return n_below;
}

static void on_host(void *arg, block_id id) {
    struct lower *w = arg;

    for (uint32_t i = 0; i < w->config.n_tiers; i++)
        writeback_on_host(w->tiers[i].writeback, id);
}

static void on_host_evict(void *arg, block_id id) {
    struct lower *w = arg;

    for (uint32_t i = 0; i < w->config.n_tiers; i++)
        writeback_on_host_evict(w->tiers[i].writeback, id);
}

/* Of several tiers the nearest that can hold. */
static struct lower_tier *holder_of(struct lower *w) {
    for (uint32_t i = 0; i < w->config.n_tiers && !w->is_stopped; i++)
        if (w->tiers[i].tier->ops->hold) return &w->tiers[i];
    return NULL;
}

static void hold_below(void *arg, const struct unit_key *keys, uint32_t n, bool is_held) {
    const struct lower_tier *t = holder_of(arg);

    if (t) t->tier->ops->hold(t->tier, keys, n, is_held);
}

static uint32_t count_held(void *arg, const struct unit_key *keys, uint32_t n) {
    const struct lower_tier *t = holder_of(arg);

    return t ? t->tier->ops->find(t->tier, keys, n) : 0;
}

static uint32_t max_held(void *arg) {
    const struct lower_tier *t = holder_of(arg);

    return t ? (uint32_t)MIN(t->stats.max_held, UINT32_MAX) : 0;
}

/* --- life ------------------------------------------------------------------------------------- */

static void ask_tiers(struct lower *w) {
    w->stats_us = w->now_us;
    for (uint32_t i = 0; i < w->config.n_tiers; i++) {
        struct lower_tier *t = &w->tiers[i];
        struct tier_stats s = {0};

        t->tier->ops->stats(t->tier, &s);
        t->can_write = s.can_write;
        t->stats.bytes = s.bytes;
        t->stats.max_bytes = s.max_bytes;
        t->stats.n_units = s.n_units;
        t->stats.n_held = s.n_held;
        t->stats.max_held = s.max_held;
        t->stats.can_write = s.can_write;
    }
}

static void set_root(struct lower *w) {
    memcpy(w->salt, &w->n_resets, sizeof(w->n_resets));
    unit_chain_root(w->names.fleet_key, w->config.fingerprint, w->salt, &w->names.root);
}

struct lower *lower_create(const struct lower_config *config) {
    struct lower *w = mem_zalloc(sizeof(*w));

    assert(config->n_tiers >= 1 && config->n_tiers <= LOWER_TIERS_MAX);
    w->config = *config;
    w->job_units = (uint32_t)MIN(MAX(JOB_BYTES / config->block_bytes, 1), TIER_JOB_UNITS);
    w->names = (struct kv_names_config){.count_below = count_below,
                                        .on_host = on_host,
                                        .on_host_evict = on_host_evict,
                                        .hold_below = hold_below,
                                        .count_held = count_held,
                                        .max_held = max_held,
                                        .arg = w};
    if (config->fleet_key) {
        memcpy(w->fleet_key, config->fleet_key, sizeof(w->fleet_key));
        w->config.fleet_key = w->names.fleet_key = w->fleet_key;
    }
    set_root(w);
    w->connector = (struct connector){.find = restores_find, .cancel = restores_cancel, .arg = w};
    for (uint32_t i = 0; i < config->n_tiers; i++) {
        struct lower_tier *t = &w->tiers[i];

        t->tier = config->tiers[i];
        t->stats.name = t->tier->ops->name;
        t->is_of_places = t->tier->ops->can_ask != NULL;
        price_init(&t->price);
        itl_guard_init(&t->guard);
        t->writeback = writeback_create(w, t);
    }
    w->restores = restores_create(w);
    if (config->server) w->serving = serving_create(w);
    ask_tiers(w);
    return w;
}

const struct kv_names_config *lower_names(const struct lower *w) {
    return &w->names;
}

const struct connector *lower_connector(const struct lower *w) {
    return &w->connector;
}

void lower_start(struct lower *w, struct kv_manager *kv, struct scheduler *sched) {
    w->kv = kv;
    w->host = kv_manager_host(kv);
    w->sched = sched;
}

void lower_stop(struct lower *w) {
    lower_check(w);
    w->is_stopped = true;
    if (w->serving) {
        serving_stop(w->serving);
        peer_server_stop(w->config.server);
    }
    for (uint32_t i = 0; i < w->config.n_tiers; i++) {
        w->tiers[i].tier->ops->destroy(w->tiers[i].tier);
        w->tiers[i].tier = NULL;
    }
}

void lower_destroy(struct lower *w) {
    if (!w) return;
    if (!w->is_stopped) lower_stop(w);
    restores_destroy(w->restores);
    serving_destroy(w->serving);
    for (uint32_t i = 0; i < w->config.n_tiers; i++)
        writeback_destroy(w->tiers[i].writeback);
    mem_free(w);
}

/* --- the engine's calls ----------------------------------------------------------------------- */

static struct writeback *writer_of(const struct lower *w, const struct mail *mail) {
    for (uint32_t i = 0; i < w->config.n_tiers; i++)
        if (writeback_own(w->tiers[i].writeback, mail)) return w->tiers[i].writeback;
    return NULL;
}

static bool is_want(const struct lower *w, const struct mail *mail) {
    return w->serving && peer_server_owns(w->config.server, mail);
}

bool lower_owns(const struct lower *w, const struct mail *mail) {
    return restores_own(w->restores, mail) || is_want(w, mail) || writer_of(w, mail);
}

void lower_on_mail(struct lower *w, struct mail *mail) {
    if (is_want(w, mail)) {
        serving_on_mail(w->serving, mail);
        return;
    }
    w->stats_us = 0; /* a tier's own figures have changed */
    if (restores_own(w->restores, mail)) {
        restores_on_mail(w->restores, mail);
    } else {
        writeback_on_mail(writer_of(w, mail), mail);
    }
}

void lower_turn(struct lower *w, uint64_t now_us) {
    w->now_us = now_us;
    if (now_us - w->stats_us >= STATS_EVERY_US) ask_tiers(w);
    restores_turn(w->restores);
    if (w->serving) serving_turn(w->serving);
    for (uint32_t i = 0; i < w->config.n_tiers; i++)
        writeback_turn(w->tiers[i].writeback);
    drain_turn(w);
}

uint64_t lower_due_us(const struct lower *w) {
    uint64_t due_us = MIN(restores_due_us(w->restores), drain_due_us(w));

    if (w->serving) due_us = MIN(due_us, serving_due_us(w->serving));

    for (uint32_t i = 0; i < w->config.n_tiers; i++)
        due_us = MIN(due_us, writeback_due_us(w->tiers[i].writeback));
    return due_us;
}

void lower_note_step(struct lower *w, uint32_t n_rows, double step_s) {
    bool is_quiet = true;

    for (uint32_t i = 0; i < w->config.n_tiers; i++)
        is_quiet &= !writeback_is_writing(w->tiers[i].writeback);
    for (uint32_t i = 0; i < w->config.n_tiers; i++) {
        struct lower_tier *t = &w->tiers[i];

        if (is_quiet || writeback_is_writing(t->writeback))
            itl_guard_note(&t->guard, n_rows, step_s, !is_quiet, w->now_us);
    }
}

void lower_reset(struct lower *w) {
    w->n_resets++;
    set_root(w);
    kv_manager_set_root(w->kv, &w->names.root);
    restores_reset(w->restores);
    for (uint32_t i = 0; i < w->config.n_tiers; i++)
        writeback_reset(w->tiers[i].writeback);
}

/* --- for the parts ---------------------------------------------------------------------------- */

void lower_identify(const struct lower *w, const struct kv_name *name, const uint32_t *tokens,
                    struct unit_identity *out) {
    *out = (struct unit_identity){
        .key = name->key,
        .parent = name->parent,
        .position = name->index * w->config.block_size,
        .n_tokens = w->config.block_size,
        .tokens = tokens,
    };
    memcpy(out->salt, w->salt, sizeof(out->salt));
}

void lower_note_result(const struct lower *w, struct lower_pause *p, enum tier_result result) {
    if (result == TIER_OK) p->pause_us = 0;
    if ((result != TIER_IO && result != TIER_BUSY) || w->now_us < p->retry_us) return;
    p->pause_us = p->pause_us ? MIN(2 * p->pause_us, PAUSE_MOST_US) : PAUSE_FIRST_US;
    p->retry_us = w->now_us + p->pause_us;
}

/* --- looking in ------------------------------------------------------------------------------- */

uint32_t lower_n_tiers(const struct lower *w) {
    return w->config.n_tiers;
}

void lower_stats(const struct lower *w, uint32_t tier, struct lower_stats *out) {
    const struct lower_tier *t = &w->tiers[tier];

    *out = t->stats;
    out->n_unwritten = writeback_n_waiting(t->writeback);
    out->n_pauses = t->guard.n_pauses;
}

void lower_check(const struct lower *w) {
    restores_check(w->restores);
    if (w->serving) serving_check(w->serving);
    for (uint32_t i = 0; i < w->config.n_tiers; i++)
        writeback_check(w->tiers[i].writeback);
}
