/* tests/support/unit_damage.h - what becomes of a unit that is damaged, replaced or replayed where
 * it is kept or on its way, and what it may be refused for. */
#ifndef TESTS_SUPPORT_UNIT_DAMAGE_H
#define TESTS_SUPPORT_UNIT_DAMAGE_H

#include "tests/support/unit_fixture.h"
#include "worker/kv/tiers/tier.h"

enum unit_damage {
    DAMAGE_FLIP,   /* one bit */
    DAMAGE_CUT,    /* it ends early */
    DAMAGE_SWAP,   /* another block of the chain */
    DAMAGE_STALE,  /* what another chain has at this place */
    DAMAGE_MODEL,  /* this block, of another model */
    DAMAGE_KEY,    /* this block, under the key of another fleet */
    DAMAGE_OPEN,   /* this block, plain where it should be sealed and the reverse */
    DAMAGE_SALT,   /* this block's tokens behind another salt */
    DAMAGE_RENAME, /* the same with the names of this block */
    DAMAGE_EXTRAS, /* this block, of an adapter */
    N_DAMAGES,
};

struct unit_damages {
    const struct unit_codec_config *form; /* of the units that are expected */
    const struct unit_block *blocks;      /* of the chain */
    uint64_t chain;                       /* its number */
    struct rng rng;
    uint64_t counts[N_DAMAGES][UNIT_N_CAUSES], n_fine, n_absent;
};

/* DAMAGED from the environment, else 3000. */
uint64_t unit_damages_wanted(void);

/* Does it to the unit of block i, which has unit_bytes; `other` is a unit of another block. Returns
 * the length that is left; what is cut off is zeros. */
size_t unit_damage(struct unit_damages *d, enum unit_damage damage, uint32_t i, const void *other,
                   uint8_t *unit);

/* Counts what the unit was refused for, and fails the test where it may not be so. is_changed: its
 * bytes differ from those that were kept. */
void unit_damage_judge(struct unit_damages *d, enum unit_damage damage, bool is_changed,
                       const struct tier_unit *u);

/* A row for each damage; fails the test where one was never refused. */
void unit_damages_report(const struct unit_damages *d, const char *place, uint64_t n);

#endif
