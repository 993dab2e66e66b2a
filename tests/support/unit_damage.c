/* tests/support/unit_damage.c - see the header. */
#include "tests/support/unit_damage.h"

#include <stdlib.h>

#include "common/base/mem.h"
#include "tests/support/cm.h"

static const struct {
    const char *name;
    uint32_t causes; /* 1 << each that it may be refused for */
} damages[N_DAMAGES] = {
    {"flipped", ~(1u << UNIT_FINE)},
    {"truncated", 1u << UNIT_MAGIC | 1u << UNIT_VERSION | 1u << UNIT_TORN | 1u << UNIT_SIZE |
                      1u << UNIT_CHECKSUM | 1u << UNIT_AUTH},
    {"swapped", 1u << UNIT_POSITION},
    {"stale", 1u << UNIT_TOKENS | 1u << UNIT_PARENT},
    {"other model", 1u << UNIT_FINGERPRINT},
    {"other key", 1u << UNIT_AUTH},
    {"plain or sealed", 1u << UNIT_AUTH},
    {"other salt", 1u << UNIT_PARENT | 1u << UNIT_SALT},
    {"salt, renamed", 1u << UNIT_SALT},
    {"adapter", 1u << UNIT_EXTRAS},
};

uint64_t unit_damages_wanted(void) {
    const char *s = getenv("DAMAGED");

    return s ? (uint64_t)atoll(s) : 3000;
}

/* What another writer would seal. */
static void forge(const struct unit_damages *d, uint8_t model, const uint8_t (*keys)[32],
                  const struct unit_identity *id, uint8_t *unit) {
    struct unit_codec_config c = *d->form;
    uint8_t *payload = mem_alloc(c.block_bytes);
    struct unit_codec *codec;

    memset(payload, 0x77, c.block_bytes);
    c.fingerprint[0] = model;
    c.fleet_keys = keys;
    c.n_fleet_keys = keys != NULL;
    assert_int_equal(unit_codec_create(&codec, &c, NULL), ST_OK);
    assert_int_equal(unit_seal(codec, id, payload, unit), ST_OK);
    unit_codec_destroy(codec);
    mem_free(payload);
}

/* The names that the chain has behind this salt. */
static void rename_by_salt(const struct unit_damages *d, const uint8_t (*keys)[32], uint32_t i,
                           struct unit_identity *id) {
    const uint8_t *key = keys ? keys[0] : NULL;

    unit_chain_root(key, d->form->fingerprint, id->salt, &id->key);
    for (uint32_t k = 0; k <= i; k++) {
        id->parent = id->key;
        unit_chain_next(key, &id->parent, d->blocks[k].tokens, UNIT_TEST_TOKENS, id->extras,
                        &id->key);
    }
}

size_t unit_damage(struct unit_damages *d, enum unit_damage damage, uint32_t i, const void *other,
                   uint8_t *unit) {
    static const uint8_t others[1][32] = {{99}};
    const uint8_t(*ours)[32] = d->form->fleet_keys;
    struct unit_identity id = d->blocks[i].id;
    size_t n = UNIT_HEADER_BYTES + UNIT_TEST_TOKENS * sizeof(uint32_t) + d->form->block_bytes;
    uint64_t at = rng_below(&d->rng, n * 8);
    struct unit_block stale;

    switch (damage) {
    case DAMAGE_FLIP: unit[at / 8] ^= (uint8_t)(1u << at % 8); break;
    case DAMAGE_CUT: memset(unit + at / 8, 0, n - at / 8); return at / 8;
    case DAMAGE_SWAP: memcpy(unit, other, n); break;
    case DAMAGE_STALE:
        unit_block_make(&stale, ours ? ours[0] : NULL, d->form->fingerprint, d->chain + 1 + at, i);
        forge(d, 1, ours, &stale.id, unit);
        break;
    case DAMAGE_MODEL: forge(d, 2, ours, &id, unit); break;
    case DAMAGE_KEY: forge(d, 1, others, &id, unit); break;
    case DAMAGE_OPEN: forge(d, 1, ours ? NULL : others, &id, unit); break;
    case DAMAGE_SALT:
        id.salt[0] = (uint8_t)(1 + at % 255);
        rename_by_salt(d, ours, i, &id);
        forge(d, 1, ours, &id, unit);
        break;
    case DAMAGE_RENAME:
        id.salt[0] = (uint8_t)(1 + at % 255);
        forge(d, 1, ours, &id, unit);
        break;
    case DAMAGE_EXTRAS:
        id.extras[at % UNIT_DIGEST_BYTES] = 1;
        forge(d, 1, ours, &id, unit);
        break;
    default: break;
    }
    return n;
}

void unit_damage_judge(struct unit_damages *d, enum unit_damage damage, bool is_changed,
                       const struct tier_unit *u) {
    if (!is_changed) {
        assert_int_equal(u->result, TIER_OK);
        d->n_fine++;
    } else if (u->result == TIER_REJECTED) {
        if (!(damages[damage].causes & 1u << u->cause))
            fail_msg("%s: refused for %s", damages[damage].name, unit_cause_name(u->cause));
        d->counts[damage][u->cause]++;
    } else {
        assert_int_equal(u->result, TIER_ABSENT);
        d->n_absent++;
    }
}

void unit_damages_report(const struct unit_damages *d, const char *place, uint64_t n) {
    print_message("%s, %s: %llu units, %llu unchanged, %llu absent\n", place,
                  d->form->fleet_keys ? "sealed" : "plain", (unsigned long long)n,
                  (unsigned long long)d->n_fine, (unsigned long long)d->n_absent);
    for (int k = 0; k < N_DAMAGES; k++) {
        uint64_t n_refused = 0;

        print_message("  %-16s", damages[k].name);
        for (int c = 0; c < UNIT_N_CAUSES; c++) {
            n_refused += d->counts[k][c];
            if (d->counts[k][c])
                print_message(" %s %llu", unit_cause_name((enum unit_cause)c),
                              (unsigned long long)d->counts[k][c]);
        }
        print_message("\n");
        assert_true(n_refused > 0);
    }
}
