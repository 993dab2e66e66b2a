/* router/routing/policy/hash_ring.h - consistent hashing with bounded loads.
 *
 * Each worker has `replication` points on a circle of 64 bits, placed by its identity alone. A key
 * belongs to the worker of the first point at or after it that may take it: one that is a
 * candidate and has at most bounded_load x (total + 1) / n requests in flight. A worker that comes
 * or goes moves only the keys next to its points.
 *
 *      0 ──a──b──a──c────b──a──c──▶ 2^64        key ──▶ b, or a when b has too many, or c
 *
 * Paper: Mirrokni, Thorup, Zadimoghaddam, Consistent Hashing with Bounded Loads, 2016. Memory is
 * taken at creation: 12 bytes a point. */
#ifndef ROUTER_ROUTING_POLICY_HASH_RING_H
#define ROUTER_ROUTING_POLICY_HASH_RING_H

#include "router/routing/policy.h"

struct hash_ring;

struct hash_ring *hash_ring_create(uint32_t n_workers, uint32_t replication) MUST_USE; /* or NULL */
void hash_ring_destroy(struct hash_ring *ring); /* NULL is fine */

/* Inserts the points of w, placed by `identity`; the same identity again does nothing.
 * O(points). */
void hash_ring_add(struct hash_ring *ring, uint32_t w, uint64_t identity);
void hash_ring_remove(struct hash_ring *ring, uint32_t w); /* does nothing for an absent worker */
uint32_t hash_ring_n_points(const struct hash_ring *ring);

/* Returns a candidate. bounded_load >= 1, so that the least loaded may always take it; an empty
 * ring returns the first candidate. */
uint32_t hash_ring_find(const struct hash_ring *ring, uint64_t key, const struct policy_view *view,
                        double bounded_load);

void hash_ring_check(const struct hash_ring *ring); /* asserts the order; O(points) */

#endif
