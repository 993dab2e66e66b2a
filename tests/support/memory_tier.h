/* tests/support/memory_tier.h - a tier that keeps sealed units in this process's memory, and fails
 * as its plan has it.
 *
 * Contents lie in a store of the test's, so that one engine finds what another has written. Two
 * threads serve jobs, so that jobs come back in any order. Faults are drawn for each unit that is
 * loaded; units are sealed and opened by the real codec, so a flipped bit is found where it would
 * be in a file. */
#ifndef TESTS_SUPPORT_MEMORY_TIER_H
#define TESTS_SUPPORT_MEMORY_TIER_H

#include "worker/engine/engine.h"

enum memory_fault {
    FAULT_NONE,
    FAULT_FLIP,   /* one bit of the unit */
    FAULT_CUT,    /* it ends too early */
    FAULT_SWAP,   /* another unit comes */
    FAULT_STALE,  /* of another model */
    FAULT_ABSENT, /* find has promised it */
    FAULT_BUSY,
    FAULT_LATE,
    FAULT_IO,
    FAULT_NEVER, /* loads are kept until destroy */
    FAULT_COUNT
};

struct memory_plan {
    enum memory_fault fault;
    uint32_t percent; /* of the units that are loaded; 0: all */
    uint64_t seed;
    bool is_read_only; /* stores are TIER_IO, and can_write is false */
    bool stores_fail;  /* TIER_BUSY, every other one */
    bool is_full;      /* it reports so, and stores all the same */
    bool only_guesses; /* find has nothing, guess everything */
};

struct memory_store;
struct memory_store *memory_store_create(void);
void memory_store_destroy(struct memory_store *s); /* after the tiers that use it */

/* Of the tiers that are open, and of those to come. */
void memory_store_plan(struct memory_store *s, const struct memory_plan *plan);
uint32_t memory_store_n_units(struct memory_store *s);
uint32_t memory_store_n_loads(struct memory_store *s); /* jobs that came */
/* Asserts that each unit's parent is there, or the unit is the first of its chain. */
void memory_store_check(struct memory_store *s);

struct engine_tier_source memory_store_source(struct memory_store *s);

#endif
