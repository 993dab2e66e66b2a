/* router/routing/prefix_set.c - a word that is a mask, up to four ids, or a row of a pool. Rows
 * come from the free list, else from the untouched part; a row is freed when four workers are
 * left. */
#include "router/routing/prefix_set.h"

#include <assert.h>
#include <string.h>

#include "common/base/mem.h"

#define ROW_TAG    UINT64_C(0xFFFF000000000000)
#define NARROW_MAX 4

uint64_t prefix_sets_bytes(uint32_t n_workers, uint32_t n_rows) {
    return (uint64_t)n_rows * CEIL_DIV(n_workers, 64u) * sizeof(uint64_t);
}

bool prefix_sets_init(struct prefix_sets *s, uint32_t n_workers, uint32_t n_rows) {
    *s = (struct prefix_sets){.n_words = CEIL_DIV(n_workers, 64u), .n_rows = n_rows};
    if (!n_rows) return true;
    s->rows = mem_try_pages(prefix_sets_bytes(n_workers, n_rows));
    return s->rows != NULL;
}

void prefix_sets_fini(struct prefix_sets *s) {
    mem_free_pages(s->rows, (size_t)s->n_rows * s->n_words * sizeof(*s->rows));
    s->rows = NULL;
}

static bool is_wide(uint64_t set) {
    return (set & ROW_TAG) == ROW_TAG;
}

static uint64_t *row_of(const struct prefix_sets *s, uint64_t set) {
    return s->rows + (size_t)(uint32_t)set * s->n_words;
}

static uint32_t row_count(uint64_t set) {
    return (uint32_t)(set >> 32 & 0xFFFF);
}

static uint64_t wide_set(uint32_t row, uint32_t count) {
    return ROW_TAG | (uint64_t)count << 32 | row;
}

/* The shift of the 16-bit `value` in the word, or 64. */
static uint32_t place_of_id(uint64_t set, uint64_t value) {
    for (uint32_t shift = 0; shift < 64; shift += 16) {
        if ((set >> shift & 0xFFFF) == value) return shift;
    }
    return 64;
}

static bool widen(struct prefix_sets *s, uint64_t *set) {
    uint32_t row;
    uint64_t *words;

    if (s->first_free_row) {
        row = s->first_free_row - 1;
        s->first_free_row = (uint32_t)*row_of(s, row);
    } else if (s->n_rows_begun < s->n_rows) {
        row = s->n_rows_begun++;
    } else {
        return false;
    }
    words = row_of(s, row);
    memset(words, 0, s->n_words * sizeof(*words));
    for (uint32_t shift = 0; shift < 64; shift += 16)
        worker_mask_add(words, (uint32_t)(*set >> shift & 0xFFFF) - 1);
    *set = wide_set(row, NARROW_MAX);
    return true;
}

static void narrow(struct prefix_sets *s, uint64_t *set) {
    uint64_t *words = row_of(s, *set), ids = 0;

    WORKER_MASK_FOR_EACH(w, words, s->n_words) ids = ids << 16 | (w + 1);
    words[0] = s->first_free_row;
    s->first_free_row = (uint32_t)*set + 1;
    *set = ids;
}

bool prefix_set_has(const struct prefix_sets *s, uint64_t set, uint32_t w) {
    if (s->n_words == 1) return set >> w & 1;
    if (is_wide(set)) return worker_mask_has(row_of(s, set), w);
    return place_of_id(set, w + 1) < 64;
}

bool prefix_set_add(struct prefix_sets *s, uint64_t *set, uint32_t w) {
    if (s->n_words == 1) {
        *set |= UINT64_C(1) << w;
        return true;
    }
    if (!is_wide(*set)) {
        uint32_t shift = place_of_id(*set, 0);

        if (shift < 64) {
            *set |= (uint64_t)(w + 1) << shift;
            return true;
        }
        if (!widen(s, set)) return false;
    }
    worker_mask_add(row_of(s, *set), w);
    *set = wide_set((uint32_t)*set, row_count(*set) + 1);
    return true;
}

void prefix_set_drop(struct prefix_sets *s, uint64_t *set, uint32_t w) {
    if (s->n_words == 1) {
        *set &= ~(UINT64_C(1) << w);
    } else if (is_wide(*set)) {
        worker_mask_drop(row_of(s, *set), w);
        *set = wide_set((uint32_t)*set, row_count(*set) - 1);
        if (row_count(*set) == NARROW_MAX) narrow(s, set);
    } else {
        *set &= ~(UINT64_C(0xFFFF) << place_of_id(*set, w + 1));
    }
}

void prefix_set_expand(const struct prefix_sets *s, uint64_t set, uint64_t *words) {
    if (s->n_words == 1) {
        words[0] = set;
    } else if (is_wide(set)) {
        memcpy(words, row_of(s, set), s->n_words * sizeof(*words));
    } else {
        memset(words, 0, s->n_words * sizeof(*words));
        for (uint32_t shift = 0; shift < 64; shift += 16) {
            uint32_t id = (uint32_t)(set >> shift & 0xFFFF);

            if (id) worker_mask_add(words, id - 1);
        }
    }
}

uint32_t prefix_set_only(const struct prefix_sets *s, uint64_t set) {
    uint32_t shift = 0;

    if (s->n_words == 1) return set & (set - 1) ? WORKER_NONE : (uint32_t)__builtin_ctzll(set);
    if (is_wide(set)) return WORKER_NONE;
    while (!(set >> shift & 0xFFFF))
        shift += 16;
    return set & ~(UINT64_C(0xFFFF) << shift) ? WORKER_NONE : (uint32_t)(set >> shift & 0xFFFF) - 1;
}

/* --- checking -------------------------------------------------------------------------------- */

uint32_t prefix_set_count(const struct prefix_sets *s, uint64_t set) {
    uint64_t words[WORKER_MASK_WORDS];

    prefix_set_expand(s, set, words);
    return worker_mask_count(words, s->n_words);
}

bool prefix_set_has_row(const struct prefix_sets *s, uint64_t set) {
    if (s->n_words == 1 || !is_wide(set)) return false;
    assert(row_count(set) > NARROW_MAX && (uint32_t)set < s->n_rows_begun);
    assert(prefix_set_count(s, set) == row_count(set));
    return true;
}

void prefix_sets_check(const struct prefix_sets *s, uint32_t n_used) {
    uint32_t n_free = s->n_rows - s->n_rows_begun;

    for (uint32_t row = s->first_free_row; row; n_free++)
        row = (uint32_t)*row_of(s, row - 1);
    assert(n_used + n_free == s->n_rows);
    (void)n_used;
}
