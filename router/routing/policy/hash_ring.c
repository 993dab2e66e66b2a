/* router/routing/policy/hash_ring.c - two parallel arrays, sorted by point. */
#include "router/routing/policy/hash_ring.h"

#include <assert.h>
#include <stdlib.h>

#include "common/base/mem.h"
#include "common/base/rng.h"
#include "router/routing/policy/choose.h"

struct hash_ring {
    uint64_t *points; /* ascending; equal ones by worker */
    uint32_t *owners; /* of each point */
    uint64_t *fresh;  /* points of the worker that is being added */
    uint64_t *identities;
    bool *is_member; /* by worker */
    uint32_t n_points, n_workers, replication;
};

struct hash_ring *hash_ring_create(uint32_t n_workers, uint32_t replication) {
    struct hash_ring *ring = mem_zalloc(sizeof(*ring));
    size_t n = (size_t)n_workers * replication;

    assert(replication);
    ring->n_workers = n_workers;
    ring->replication = replication;
    ring->identities = mem_calloc(n_workers, sizeof(*ring->identities));
    ring->is_member = mem_calloc(n_workers, sizeof(*ring->is_member));
    ring->fresh = mem_calloc(replication, sizeof(*ring->fresh));
    ring->points = mem_try(n * sizeof(*ring->points));
    ring->owners = mem_try(n * sizeof(*ring->owners));
    if (ring->points && ring->owners) return ring;
    hash_ring_destroy(ring);
    return NULL;
}

void hash_ring_destroy(struct hash_ring *ring) {
    if (!ring) return;
    mem_free(ring->points);
    mem_free(ring->owners);
    mem_free(ring->fresh);
    mem_free(ring->identities);
    mem_free(ring->is_member);
    mem_free(ring);
}

static int compare_points(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

    return (x > y) - (x < y);
}

void hash_ring_add(struct hash_ring *ring, uint32_t w, uint64_t identity) {
    uint32_t old, new = ring->replication, to;

    assert(w < ring->n_workers);
    if (ring->is_member[w] && ring->identities[w] == identity) return;
    hash_ring_remove(ring, w);
    for (uint32_t i = 0; i < ring->replication; i++)
        ring->fresh[i] = rng_at(identity, i);
    qsort(ring->fresh, ring->replication, sizeof(*ring->fresh), compare_points);
    old = ring->n_points;
    for (to = old + new; new;) { /* merged from the far end, so that nothing is overwritten */
        bool is_old =
            old && (ring->points[old - 1] > ring->fresh[new - 1] ||
                    (ring->points[old - 1] == ring->fresh[new - 1] && ring->owners[old - 1] > w));

        to--;
        ring->points[to] = is_old ? ring->points[old - 1] : ring->fresh[new - 1];
        ring->owners[to] = is_old ? ring->owners[old - 1] : w;
        is_old ? old-- : new --;
    }
    ring->n_points += ring->replication;
    ring->is_member[w] = true;
    ring->identities[w] = identity;
}

void hash_ring_remove(struct hash_ring *ring, uint32_t w) {
    uint32_t n = 0;

    if (!ring->is_member[w]) return;
    for (uint32_t i = 0; i < ring->n_points; i++) {
        if (ring->owners[i] == w) continue;
        ring->points[n] = ring->points[i];
        ring->owners[n++] = ring->owners[i];
    }
    ring->n_points = n;
    ring->is_member[w] = false;
}

uint32_t hash_ring_n_points(const struct hash_ring *ring) {
    return ring->n_points;
}

static uint32_t first_at_or_after(const struct hash_ring *ring, uint64_t key) {
    uint32_t low = 0, high = ring->n_points;

    while (low < high) {
        uint32_t mid = low + (high - low) / 2;

        if (ring->points[mid] >= key)
            high = mid;
        else
            low = mid + 1;
    }
    return low;
}

uint32_t hash_ring_find(const struct hash_ring *ring, uint64_t key, const struct policy_view *view,
                        double bounded_load) {
    struct choose_spread s = choose_spread(view, view->candidates);
    double limit = ((double)s.total + 1) / s.n * bounded_load;
    uint32_t i = first_at_or_after(ring, key), first = WORKER_NONE;

    for (uint32_t n = 0; n < ring->n_points; n++, i++) {
        uint32_t w;

        if (i >= ring->n_points) i = 0;
        w = ring->owners[i];
        if (!worker_mask_has(view->candidates, w)) continue;
        if (!s.total || view->load->workers[w].in_flight <= limit) return w;
        if (first == WORKER_NONE) first = w;
    }
    return first != WORKER_NONE ? first : choose_nth(view, view->candidates, 0);
}

void hash_ring_check(const struct hash_ring *ring) {
    uint32_t n_members = 0;

    for (uint32_t w = 0; w < ring->n_workers; w++)
        n_members += ring->is_member[w];
    assert(ring->n_points == n_members * ring->replication);
    for (uint32_t i = 0; i < ring->n_points; i++) {
        assert(ring->is_member[ring->owners[i]]);
        assert(!i || ring->points[i - 1] < ring->points[i] ||
               (ring->points[i - 1] == ring->points[i] && ring->owners[i - 1] <= ring->owners[i]));
    }
}
