/* router/routing/prefix_set.h - the workers that hold a shared block, in one word of its record.
 *
 * Up to 64 workers the word is their mask. In larger fleets it is one of two things:
 *
 *     up to four ids    id+1 | id+1 | id+1 | id+1     16 bits each, 0: none, in any place
 *     more              0xFFFF | count | row          row of the pool of masks
 *
 * The pool has its final size from the start; rows become resident when first used. When the pool
 * is exhausted a set takes no fifth worker. Zero is the empty set. prefix_index alone owns the
 * words. */
#ifndef ROUTER_ROUTING_PREFIX_SET_H
#define ROUTER_ROUTING_PREFIX_SET_H

#include "common/base/base.h"
#include "router/routing/worker_mask.h"

struct prefix_sets {
    uint32_t n_words; /* of a mask; 1: the word is the mask, and there is no pool */
    uint32_t n_rows, n_rows_begun, first_free_row; /* first_free_row: + 1; 0: none */
    uint64_t *rows; /* n_rows x n_words; a free row's first word is the next free row + 1 */
};

/* Bytes of a pool of n_rows. */
uint64_t prefix_sets_bytes(uint32_t n_workers, uint32_t n_rows);
/* False when memory is refused. */
MUST_USE bool prefix_sets_init(struct prefix_sets *s, uint32_t n_workers, uint32_t n_rows);
void prefix_sets_fini(struct prefix_sets *s);

bool prefix_set_has(const struct prefix_sets *s, uint64_t set, uint32_t w);
/* w must not be in the set. False: the pool is exhausted and the set unchanged. */
MUST_USE bool prefix_set_add(struct prefix_sets *s, uint64_t *set, uint32_t w);
/* w must be in the set. */
void prefix_set_drop(struct prefix_sets *s, uint64_t *set, uint32_t w);

/* The set as a mask of n_words. */
void prefix_set_expand(const struct prefix_sets *s, uint64_t set, uint64_t *words);
/* The only worker of a set that is not empty, or WORKER_NONE when there are more. */
uint32_t prefix_set_only(const struct prefix_sets *s, uint64_t set);

uint32_t prefix_set_count(const struct prefix_sets *s, uint64_t set);
bool prefix_set_has_row(const struct prefix_sets *s, uint64_t set);
/* Asserts that n_used rows are taken and each other one is free. */
void prefix_sets_check(const struct prefix_sets *s, uint32_t n_used);

#endif
