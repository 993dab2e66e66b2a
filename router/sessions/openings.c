/* router/sessions/openings.c - see openings.h. */
#include "router/sessions/openings.h"

#include <assert.h>
#include <math.h>

#include "common/base/mem.h"
#include "common/base/rng.h"

#define BUCKETS_PER_OPENING 2
#define TOKENS_MAX          1e9

static uint32_t power_of_two_from(uint32_t n) {
    uint32_t power = 64;

    while (power < n)
        power *= 2;
    return power;
}

uint64_t session_prompt_key(const struct session_prompt *p, uint32_t n_blocks) {
    assert(n_blocks && n_blocks <= p->n_blocks);
    return (rng_mix(p->chain[n_blocks - 1] ^ p->tenant) & ~UINT64_C(0xFFFF)) | n_blocks;
}

static uint32_t family_of(const struct session_prompt *p) {
    return (uint32_t)(session_prompt_key(p, 1) >> 32);
}

/* --- creation -------------------------------------------------------------------------------- */

static size_t openings_size(uint32_t n_max) {
    return ((size_t)n_max + 1) * sizeof(struct opening);
}

static size_t buckets_size(uint32_t n_max) {
    return power_of_two_from(n_max * BUCKETS_PER_OPENING) * sizeof(uint32_t);
}

uint64_t openings_bytes(uint32_t n_max) {
    return openings_size(n_max) + buckets_size(n_max);
}

bool openings_init(struct openings *o, uint32_t n_max) {
    *o = (struct openings){.n_max = n_max,
                           .n_buckets = power_of_two_from(n_max * BUCKETS_PER_OPENING)};
    o->at = mem_try_pages(openings_size(n_max));
    o->buckets = mem_try_pages(buckets_size(n_max));
    if (o->at && o->buckets) return true;
    openings_fini(o);
    return false;
}

void openings_fini(struct openings *o) {
    mem_free_pages(o->at, openings_size(o->n_max));
    mem_free_pages(o->buckets, buckets_size(o->n_max));
    *o = (struct openings){0};
}

/* --- finding --------------------------------------------------------------------------------- */

static uint32_t *bucket_of(const struct openings *o, uint32_t family) {
    return &o->buckets[family & (o->n_buckets - 1)];
}

bool openings_has(const struct openings *o, uint32_t x, const struct session_prompt *p) {
    uint32_t n_blocks = session_key_depth(o->at[x].key);

    return n_blocks <= p->n_blocks && session_prompt_key(p, n_blocks) == o->at[x].key;
}

uint32_t openings_of(const struct openings *o, const struct session_prompt *p,
                     uint32_t found[OPENINGS_ALIKE]) {
    uint32_t family, n = 0;

    if (!p->n_blocks) return 0;
    family = family_of(p);
    for (uint32_t x = *bucket_of(o, family); x; x = o->at[x].next) {
        uint32_t i = n;

        if (o->at[x].family != family || !openings_has(o, x, p)) continue;
        assert(n < OPENINGS_ALIKE);
        for (; i && session_key_depth(o->at[found[i - 1]].key) < session_key_depth(o->at[x].key);
             i--)
            found[i] = found[i - 1];
        found[i] = x;
        n++;
    }
    return n;
}

/* --- references ------------------------------------------------------------------------------ */

static bool has_place(const struct openings *o, uint32_t family) {
    uint32_t n = 0;

    for (uint32_t x = *bucket_of(o, family); x; x = o->at[x].next)
        n += o->at[x].family == family;
    return n < OPENINGS_ALIKE && o->n < o->n_max;
}

static uint32_t tokens_between(const struct session_prompt *p, uint32_t from, uint32_t to) {
    return (uint32_t)fmin((to - from) * p->tokens_per_block, TOKENS_MAX);
}

static uint32_t make(struct openings *o, const struct session_prompt *p, uint32_t n_blocks,
                     uint32_t parent) {
    uint32_t family = family_of(p), *bucket = bucket_of(o, family), x = o->free;
    uint32_t above = parent ? session_key_depth(o->at[parent].key) : 0;

    if (x) {
        o->free = o->at[x].next;
    } else {
        x = ++o->n_ever;
    }
    o->at[x] = (struct opening){.key = session_prompt_key(p, n_blocks),
                                .family = family,
                                .parent = parent,
                                .next = *bucket,
                                .tokens = tokens_between(p, above, n_blocks),
                                .level = parent ? o->at[parent].level + 1 : 0};
    *bucket = x;
    o->n++;
    if (parent) o->at[parent].n_refs++;
    return x;
}

uint32_t openings_refer(struct openings *o, const struct session_prompt *p, uint32_t n_blocks) {
    uint32_t found[OPENINGS_ALIKE], n = openings_of(o, p, found), x = 0;

    for (uint32_t i = 0; i < n && !x; i++)
        if (session_key_depth(o->at[found[i]].key) <= n_blocks) x = found[i];
    if (n_blocks > (x ? session_key_depth(o->at[x].key) : 0) && has_place(o, family_of(p)) &&
        (!x || o->at[x].level + 1 < OPENINGS_NESTED))
        x = make(o, p, n_blocks, x);
    if (x) o->at[x].n_refs++;
    return x;
}

static void forget(struct openings *o, uint32_t x) {
    uint32_t *at = bucket_of(o, o->at[x].family);

    while (*at != x)
        at = &o->at[*at].next;
    *at = o->at[x].next;
    o->at[x] = (struct opening){.next = o->free};
    o->free = x;
    o->n--;
}

void openings_release(struct openings *o, uint32_t x) {
    while (x && --o->at[x].n_refs == 0) {
        uint32_t parent = o->at[x].parent;

        assert(!o->at[x].n_active);
        forget(o, x);
        x = parent;
    }
}

/* --- tokens ---------------------------------------------------------------------------------- */

/* An opening is active as often as it is referred to by active sessions and active openings. */
uint64_t openings_activate(struct openings *o, uint32_t x) {
    uint64_t tokens = 0;

    for (; x; x = o->at[x].parent) {
        if (o->at[x].n_active++) break;
        tokens += o->at[x].tokens;
    }
    return tokens;
}

uint64_t openings_deactivate(struct openings *o, uint32_t x) {
    uint64_t tokens = 0;

    for (; x; x = o->at[x].parent) {
        assert(o->at[x].n_active);
        if (--o->at[x].n_active) break;
        tokens += o->at[x].tokens;
    }
    return tokens;
}

uint64_t openings_tokens(const struct openings *o, uint32_t x) {
    uint64_t tokens = 0;

    for (; x; x = o->at[x].parent)
        tokens += o->at[x].tokens;
    return tokens;
}

uint64_t openings_cost(const struct openings *o, uint32_t x) {
    uint64_t tokens = 0;

    for (; x && !o->at[x].n_active; x = o->at[x].parent)
        tokens += o->at[x].tokens;
    return tokens;
}

/* --- invariants ------------------------------------------------------------------------------ */

static void check_one(const struct openings *o, uint32_t x, uint32_t *n_refs, uint32_t *n_active) {
    const struct opening *a = &o->at[x];
    uint32_t n = 0, above = a->parent ? session_key_depth(o->at[a->parent].key) : 0;

    assert(a->n_refs && session_key_depth(a->key) > above && a->level < OPENINGS_NESTED);
    for (uint32_t y = *bucket_of(o, a->family); y; y = o->at[y].next) {
        assert(y == x || o->at[y].key != a->key || o->at[y].family != a->family);
        n += o->at[y].family == a->family;
    }
    assert(n && n <= OPENINGS_ALIKE);
    n_refs[a->parent]++;
    n_active[a->parent] += a->n_active > 0;
}

void openings_check(const struct openings *o, const uint32_t *n_refs, const uint32_t *n_active) {
    uint32_t *refs = mem_calloc((size_t)o->n_ever + 1, sizeof(*refs)), n = 0;
    uint32_t *active = mem_calloc((size_t)o->n_ever + 1, sizeof(*active));

    for (uint32_t b = 0; b < o->n_buckets; b++) {
        for (uint32_t x = o->buckets[b]; x; x = o->at[x].next) {
            check_one(o, x, refs, active);
            n++;
        }
    }
    for (uint32_t x = 1; x <= o->n_ever; x++) {
        assert(o->at[x].n_refs == refs[x] + n_refs[x]);
        assert(o->at[x].n_active == active[x] + n_active[x]);
    }
    assert(n == o->n && o->n <= o->n_max);
    mem_free(refs);
    mem_free(active);
}
