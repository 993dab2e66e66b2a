/* router/upgrade/index_restore.c - one timer: finds a described worker, then enters its blocks
 * piece by piece. */
#include "router/upgrade/index_restore.h"

#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/mem.h"
#include "common/net/loop.h"
#include "common/telemetry/log.h"
#include "router/registry/registry_view.h"

#define LOOK_US     50000u
#define PAUSE_US    1000u /* between pieces: at most a tenth of the lock's time */
#define RUSH_PIECES 32u   /* per turn while no requests are served */

struct part {
    const struct registry_memory *of;
    uint32_t index; /* in the snapshot */
    bool is_over;
};

struct index_restore {
    struct loop *loop;
    struct index_restore_config config;
    struct snapshot *snapshot;
    struct loop_timer timer;
    struct registry_memory *memories;
    struct part *parts; /* by URL */
    uint32_t n_parts, n_left, n_restored;
    struct part *at_hand; /* the current part, of worker `id`; NULL: none */
    uint32_t id;
    uint64_t next_item, n_blocks, began_us;
};

static int by_url(const void *a, const void *b) {
    return strcmp(((const struct part *)a)->of->url, ((const struct part *)b)->of->url);
}

static void end_part(struct index_restore *r, struct part *part) {
    part->is_over = true;
    r->n_left--;
    if (r->at_hand == part) r->at_hand = NULL;
}

/* --- looking ---------------------------------------------------------------------------------- */

static bool is_same(const struct index_restore *r, const struct registry_memory *was,
                    const struct registry_memory *is) {
    if (strcmp(was->model, is->model) != 0 || strcmp(was->generation, is->generation) != 0)
        return false;
    return is->generation[0] || r->config.trusts_unnamed;
}

/* Makes the part of worker `id`, if any, the current one. */
static void look_at(struct index_restore *r, uint32_t id) {
    struct registry_memory is;
    struct part key = {.of = &is}, *part;

    if (!registry_memory_get(r->config.registry, id, &is)) return;
    part = bsearch(&key, r->parts, r->n_parts, sizeof(*r->parts), by_url);
    if (!part || part->is_over) return;
    if (is_same(r, part->of, &is) && registry_memory_set(r->config.registry, id, part->of)) {
        r->at_hand = part;
        r->id = id;
        r->next_item = 0;
        r->n_restored++;
    } else if (is.generation[0]) {
        end_part(r, part); /* the worker has another generation */
    }
}

static void look(struct index_restore *r) {
    uint32_t n = registry_n_ids(r->config.registry);

    for (uint32_t id = 0; id < n && !r->at_hand; id++)
        look_at(r, id);
}

/* --- entering --------------------------------------------------------------------------------- */

static void enter_piece(struct index_restore *r) {
    uint64_t items[SNAPSHOT_PIECE];
    struct part *part = r->at_hand;
    uint32_t n = snapshot_items(r->snapshot, part->index, r->next_item, items, SNAPSHOT_PIECE);
    uint32_t n_taken = registry_memory_restore(r->config.registry, r->id, part->of, items, n);

    r->next_item += n;
    r->n_blocks += n_taken;
    if (n_taken < n || n < SNAPSHOT_PIECE) end_part(r, part); /* full, removed, or complete */
}

static void finish(struct index_restore *r) {
    uint64_t now_s = clock_wall_us() / 1000000, saved_s = snapshot_saved_wall_s(r->snapshot);

    log_event(r->config.log, LOG_INFO, "index_restored", log_u64("workers", r->n_restored),
              log_u64("of", r->n_parts), log_u64("blocks", r->n_blocks),
              log_u64("age_s", now_s - MIN(saved_s, now_s)));
    r->n_left = 0;
    snapshot_destroy(r->snapshot);
    r->snapshot = NULL;
}

static void on_timer(void *arg) {
    struct index_restore *r = arg;
    uint32_t n_pieces = r->config.is_serving ? 1 : RUSH_PIECES;

    for (uint32_t i = 0; i < n_pieces && r->n_left; i++) {
        if (!r->at_hand) look(r);
        if (!r->at_hand) break;
        enter_piece(r);
    }
    if (r->n_left == 0 || loop_now_us(r->loop) - r->began_us > INDEX_RESTORE_TIMEOUT_US) {
        finish(r);
    } else {
        loop_timer_start(&r->timer, r->at_hand ? PAUSE_US : LOOK_US);
    }
}

/* --- the contract ----------------------------------------------------------------------------- */

struct index_restore *index_restore_start(struct loop *loop,
                                          const struct index_restore_config *config,
                                          struct snapshot *snapshot) {
    struct index_restore *r = mem_zalloc(sizeof(*r));

    r->loop = loop;
    r->config = *config;
    r->snapshot = snapshot;
    r->n_parts = r->n_left = snapshot_n_workers(snapshot);
    r->parts = mem_calloc(MAX(r->n_parts, 1u), sizeof(*r->parts));
    r->memories = mem_calloc(MAX(r->n_parts, 1u), sizeof(*r->memories));
    for (uint32_t i = 0; i < r->n_parts; i++) {
        r->memories[i] = *snapshot_worker(snapshot, i); /* copied: they outlive the items */
        r->parts[i] = (struct part){.of = &r->memories[i], .index = i};
    }
    qsort(r->parts, r->n_parts, sizeof(*r->parts), by_url);
    r->began_us = loop_now_us(loop);
    loop_timer_init(&r->timer, loop, on_timer, r);
    loop_timer_start(&r->timer, 0);
    return r;
}

void index_restore_stop(struct index_restore *r) {
    if (!r) return;
    loop_timer_fini(&r->timer);
    snapshot_destroy(r->snapshot);
    mem_free(r->parts);
    mem_free(r->memories);
    mem_free(r);
}

void index_restore_is_serving(struct index_restore *r) {
    if (r) r->config.is_serving = true;
}

uint64_t index_restore_events_next(const struct index_restore *r, const char *url,
                                   const char *generation) {
    for (uint32_t i = 0; i < r->n_parts; i++) {
        const struct registry_memory *m = &r->memories[i];

        if (strcmp(m->url, url) == 0 && strcmp(m->generation, generation) == 0)
            return m->events_next;
    }
    return 0;
}

bool index_restore_is_over(const struct index_restore *r) {
    return !r || r->n_left == 0;
}
