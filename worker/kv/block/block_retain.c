/* worker/kv/block/block_retain.c - a mark for each block, rings in the order of release. */
#include "worker/kv/block/block_retain.h"

#include <assert.h>

#include "common/base/mem.h"
#include "worker/kv/block/free_queue.h"

struct block_mark {
    uint64_t released_us; /* read while it is on a ring */
    uint8_t time;         /* enum retention; RETAIN_NONE: it is not marked */
    uint8_t place;        /* of its tenant; 0: of no tenant */
    bool is_held;
};

struct block_retain {
    struct block_mark *marks; /* (n_blocks) */
    struct free_queue *queue;
    uint32_t n_blocks, first_ring, max_place; /* max_place: marks of one tenant's place */
    uint32_t n_of_place[RETAIN_TENANTS];      /* marked blocks, in use or free */
    uint64_t now_us;
    struct block_retain_stats stats;
};

static const uint64_t time_us[RETENTIONS] = {[RETAIN_5M] = 300 * UINT64_C(1000000),
                                             [RETAIN_30M] = 1800 * UINT64_C(1000000),
                                             [RETAIN_1H] = 3600 * UINT64_C(1000000),
                                             [RETAIN_12H] = 12 * 3600 * UINT64_C(1000000),
                                             [RETAIN_24H] = 24 * 3600 * UINT64_C(1000000)};

enum retention retention_of_seconds(uint32_t ttl_s) {
    uint32_t time = RETAIN_NONE;

    while (time + 1 < RETENTIONS && time_us[time + 1] <= ttl_s * UINT64_C(1000000))
        time++;
    return (enum retention)time;
}

struct block_retain *block_retain_create(uint32_t n_blocks, uint32_t max_free,
                                         struct free_queue *queue, uint32_t first_ring) {
    struct block_retain *r = mem_zalloc(sizeof(*r));

    r->marks = mem_calloc(n_blocks, sizeof(*r->marks));
    r->queue = queue;
    r->n_blocks = n_blocks;
    r->first_ring = first_ring;
    r->max_place = max_free / 2;
    r->stats.n_max = max_free;
    return r;
}

void block_retain_destroy(struct block_retain *r) {
    if (!r) return;
    mem_free(r->marks);
    mem_free(r);
}

void block_retain_set_now(struct block_retain *r, uint64_t now_us) {
    r->now_us = now_us;
}

bool block_retain_is_marked(const struct block_retain *r, uint32_t id) {
    return r->marks[id].time != RETAIN_NONE;
}

bool block_retain_is_held(const struct block_retain *r, uint32_t id) {
    return r->marks[id].is_held;
}

/* --- marks ------------------------------------------------------------------------------------ */

bool block_retain_mark(struct block_retain *r, uint32_t id, enum retention time, uint64_t tenant) {
    struct block_mark *m = &r->marks[id];

    assert(time != RETAIN_NONE && !free_queue_contains(r->queue, id));
    if (m->time == RETAIN_NONE) {
        uint32_t place = tenant ? 1 + (uint32_t)(tenant % (RETAIN_TENANTS - 1)) : 0;

        if (place > 0 && r->n_of_place[place] >= r->max_place) {
            r->stats.n_refused++;
            return false;
        }
        m->place = (uint8_t)place;
        r->n_of_place[place]++;
    }
    m->time = (uint8_t)MAX(m->time, time);
    return true;
}

void block_retain_forget(struct block_retain *r, uint32_t id) {
    struct block_mark *m = &r->marks[id];

    assert(!free_queue_contains(r->queue, id));
    if (m->time != RETAIN_NONE) r->n_of_place[m->place]--;
    *m = (struct block_mark){.time = RETAIN_NONE};
}

void block_retain_hold(struct block_retain *r, uint32_t id) {
    assert(!free_queue_contains(r->queue, id));
    r->marks[id].is_held = true;
}

void block_retain_unhold(struct block_retain *r, uint32_t id) {
    assert(!free_queue_contains(r->queue, id) && r->marks[id].is_held);
    r->marks[id].is_held = false;
}

/* --- rings ------------------------------------------------------------------------------------ */

static uint32_t ring_of(const struct block_retain *r, uint32_t time) {
    return r->first_ring + time - 1;
}

static uint32_t first_of(const struct block_retain *r, uint32_t time) {
    return free_queue_first_of(r->queue, ring_of(r, time));
}

static uint32_t first_held(const struct block_retain *r) {
    return first_of(r, RETENTIONS);
}

/* Its place on the queue is that of its mark. */
static bool is_on_mark(const struct block_retain *r, uint32_t id) {
    return r->marks[id].time != RETAIN_NONE && !r->marks[id].is_held;
}

bool block_retain_push(struct block_retain *r, uint32_t id) {
    struct block_mark *m = &r->marks[id];

    m->released_us = r->now_us;
    if (m->is_held) {
        free_queue_push_back_to(r->queue, ring_of(r, RETENTIONS), id);
        return true;
    }
    if (m->time == RETAIN_NONE) return false;
    free_queue_push_back_to(r->queue, ring_of(r, m->time), id);
    r->stats.n_free++;
    return true;
}

void block_retain_leave(struct block_retain *r, uint32_t id) {
    if (is_on_mark(r, id)) r->stats.n_free--;
}

void block_retain_hit(struct block_retain *r, uint32_t id) {
    if (is_on_mark(r, id)) r->stats.n_hit++;
    block_retain_leave(r, id);
}

static uint32_t take(struct block_retain *r, uint32_t id, uint64_t *counter) {
    free_queue_remove(r->queue, id);
    r->stats.n_free--;
    (*counter)++;
    block_retain_forget(r, id);
    return id;
}

/* The head that has been idle for the largest share of its time, *idle; of equals the one of the
 * shorter time. Within a ring the head is. */
static uint32_t coldest(const struct block_retain *r, double *idle) {
    uint32_t best = FREE_QUEUE_NONE;

    *idle = -1;
    for (uint32_t time = RETAIN_NONE + 1; time < RETENTIONS; time++) {
        uint32_t id = first_of(r, time);
        double share;

        if (id == FREE_QUEUE_NONE) continue;
        share = (double)(r->now_us - r->marks[id].released_us) / (double)time_us[time];
        if (share <= *idle) continue;
        *idle = share;
        best = id;
    }
    return best;
}

uint32_t block_retain_pop_ended(struct block_retain *r) {
    uint32_t id;
    double idle;

    if (r->stats.n_free == 0) return FREE_QUEUE_NONE;
    id = coldest(r, &idle);
    if (idle >= 1) return take(r, id, &r->stats.n_expired);
    return r->stats.n_free > r->stats.n_max ? take(r, id, &r->stats.n_displaced) : FREE_QUEUE_NONE;
}

uint32_t block_retain_evict(struct block_retain *r) {
    double idle;
    uint32_t id = coldest(r, &idle);

    if (id != FREE_QUEUE_NONE) return take(r, id, &r->stats.n_evicted);
    id = first_held(r);
    free_queue_remove(r->queue, id);
    return id;
}

uint32_t block_retain_next(const struct block_retain *r, uint32_t id) {
    uint32_t time = RETAIN_NONE;

    if (id != FREE_QUEUE_NONE) {
        uint32_t next = free_queue_next(r->queue, id);

        if (next != FREE_QUEUE_NONE) return next;
        time = r->marks[id].is_held ? RETENTIONS : r->marks[id].time;
    }
    while (++time <= RETENTIONS) {
        uint32_t first = first_of(r, time);

        if (first != FREE_QUEUE_NONE) return first;
    }
    return FREE_QUEUE_NONE;
}

struct block_retain_stats block_retain_stats(const struct block_retain *r) {
    return r->stats;
}

void block_retain_check(const struct block_retain *r) {
    uint32_t n_of_place[RETAIN_TENANTS] = {0}, n_free = 0, n_marked_free = 0;

    for (uint32_t id = 0; id < r->n_blocks; id++) {
        const struct block_mark *m = &r->marks[id];

        if (m->time == RETAIN_NONE) continue;
        n_of_place[m->place]++;
        n_marked_free += is_on_mark(r, id) && free_queue_contains(r->queue, id);
    }
    for (uint32_t id = first_held(r); id != FREE_QUEUE_NONE; id = free_queue_next(r->queue, id))
        assert(r->marks[id].is_held);
    for (uint32_t time = RETAIN_NONE + 1; time < RETENTIONS; time++) {
        uint64_t before_us = 0;

        for (uint32_t id = first_of(r, time); id != FREE_QUEUE_NONE;
             id = free_queue_next(r->queue, id)) {
            assert(r->marks[id].time == time && !r->marks[id].is_held);
            assert(r->marks[id].released_us >= before_us);
            before_us = r->marks[id].released_us;
            n_free++;
        }
    }
    assert(n_free == n_marked_free && n_free == r->stats.n_free && n_free <= r->stats.n_max);
    for (uint32_t i = 0; i < RETAIN_TENANTS; i++) {
        assert(n_of_place[i] == r->n_of_place[i]);
        assert(i == 0 || n_of_place[i] <= r->max_place);
    }
    (void)n_free;
    (void)n_marked_free;
    (void)n_of_place;
}
