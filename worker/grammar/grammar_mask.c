/* worker/grammar/grammar_mask.c - which tokens may follow a row.
 *
 * A token may follow if all its bytes may. The walk keeps the row behind each byte of the current
 * path; a byte that leads nowhere skips all tokens that begin so. The steps it makes are remembered
 * in the rows, so that the next walk through them only looks up. */
#include <string.h>

#include "common/base/hash.h"
#include "common/base/mem.h"
#include "worker/grammar/grammar_internal.h"

#define MASKS_MAX_BYTES ((size_t)16 << 20) /* of a grammar: 1,024 of 131,072 tokens */

/* --- the walk --------------------------------------------------------------------------------- */

/* False beyond the limits. */
static bool walk(struct grammar *g, const struct vocabulary_slice *slice, row_id from,
                 uint32_t *mask) {
    const uint8_t *class_of = exprs_class_of(g->exprs);
    row_id path[VOCABULARY_MAX_BYTES + 1];

    path[0] = from;
    for (uint32_t i = 0; i < slice->n_nodes;) {
        const struct trie_node *n = &slice->node[i];
        row_id row = rows_next(g->rows, path[n->depth - 1], class_of[n->byte]);

        if (row == ROW_DEAD) {
            i += n->n_nodes;
            continue;
        }
        if (row == ROW_UNKNOWN) return false;
        path[n->depth] = row;
        if (n->token != VOCABULARY_NONE) mask[n->token / 32] |= 1u << (n->token % 32);
        i++;
    }
    return true;
}

static void add_tokens(const struct grammar *g, row_id row, uint32_t *mask) {
    const struct row_item *items = rows_tokens(g->rows, row);

    for (uint32_t k = 0; k < g->rows->row[row].n_tokens; k++) {
        uint32_t token = symbol_value(g->rules->code[items[k].at]);

        if (token < g->vocabulary->n_tokens) mask[token / 32] |= 1u << (token % 32);
    }
}

static bool fill(struct grammar *g, row_id row, uint32_t *mask) {
    const struct vocabulary *v = g->vocabulary;
    uint32_t n_free = rows_free_chars(g->rows, row), from = 0, forced;

    if (grammar_force_token(g, row, &forced)) {
        memset(mask, 0, v->n_words * sizeof(*mask));
        mask[forced / 32] |= 1u << (forced % 32);
        return exprs_failure(g->exprs) == EXPRS_OK;
    }

    while (from < VOCABULARY_SLICES - 1 && n_free >= v->slice[from].max_chars)
        from++;
    if (from > 0) {
        memcpy(mask, v->slice[from - 1].mask, v->n_words * sizeof(*mask));
    } else {
        memset(mask, 0, v->n_words * sizeof(*mask));
    }
    for (uint32_t i = from; i < VOCABULARY_SLICES; i++)
        if (!walk(g, &v->slice[i], row, mask)) return false;
    for (uint32_t i = 0; i < v->n_twins; i++) {
        uint32_t token = v->twin[i][0], like = v->twin[i][1];

        if (mask[like / 32] >> (like % 32) & 1) mask[token / 32] |= 1u << (token % 32);
    }
    add_tokens(g, row, mask);
    return exprs_failure(g->exprs) == EXPRS_OK;
}

/* --- masks that are kept ---------------------------------------------------------------------- */

void grammar_masks_drop(struct grammar *g) {
    struct mask_store *s = &g->mask_of;

    for (uint32_t i = 0; i < s->n; i++)
        mem_free(s->mask[i]);
    mem_free(s->mask);
    s->mask = NULL;
    s->n = s->cap = 0;
    if (s->slot) memset(s->slot, 0, s->n_slots * sizeof(*s->slot));
    for (uint32_t id = 0; g->rows && id < g->rows->n_rows; id++)
        g->rows->row[id].mask = ROW_UNKNOWN;
}

static uint32_t find_mask(const struct grammar *g, const uint32_t *mask) {
    const struct mask_store *s = &g->mask_of;
    size_t n_bytes = g->vocabulary->n_words * sizeof(*mask);
    uint32_t at = (uint32_t)hash_64(mask, n_bytes, 0) & (s->n_slots - 1);

    while (s->slot[at] != 0 && memcmp(s->mask[s->slot[at] - 1], mask, n_bytes) != 0)
        at = (at + 1) & (s->n_slots - 1);
    return at;
}

static void make_room(struct grammar *g) {
    struct mask_store *s = &g->mask_of;
    uint32_t most = (uint32_t)MAX(MASKS_MAX_BYTES / (g->vocabulary->n_words * 4u + 1u), 16u);

    if (s->n >= most) grammar_masks_drop(g);
    if (s->n < s->cap) return;
    s->cap = s->cap ? s->cap * 2 : 16;
    s->mask = mem_realloc(s->mask, s->cap * sizeof(*s->mask));
    if (s->n_slots >= s->cap * 2) return;
    mem_free(s->slot);
    s->n_slots = s->cap * 4;
    s->slot = mem_calloc(s->n_slots, sizeof(*s->slot));
    for (uint32_t i = 0; i < s->n; i++)
        s->slot[find_mask(g, s->mask[i])] = i + 1;
}

/* The number of the drafted mask among those that are kept. */
static uint32_t keep(struct grammar *g, uint32_t *draft) {
    struct mask_store *s = &g->mask_of;
    size_t n_bytes = g->vocabulary->n_words * sizeof(*draft);
    uint32_t at;

    make_room(g);
    at = find_mask(g, draft);
    if (s->slot[at] != 0) return s->slot[at] - 1;
    s->mask[s->n] = mem_alloc(n_bytes);
    memcpy(s->mask[s->n], draft, n_bytes);
    s->slot[at] = ++s->n;
    return s->n - 1;
}

enum status grammar_mask(struct grammar_matcher *m, const uint32_t **mask, bool *is_new) {
    struct grammar *g = m->grammar;
    uint32_t *draft;
    uint32_t kept;

    kept = g->rows->row[m->row].mask;
    *is_new = kept == ROW_UNKNOWN;
    if (*is_new) {
        grammar_prepare(g); /* which may number rows again */
        draft = mem_alloc(MAX(g->vocabulary->n_words, 1u) * sizeof(*draft));
        if (!fill(g, m->row, draft)) {
            mem_free(draft);
            return ST_TOO_LARGE;
        }
        kept = keep(g, draft);
        mem_free(draft);
        g->rows->row[m->row].mask = kept;
        grammar_set_bytes(g, g->rows->n_bytes + exprs_bytes(g->exprs) + rules_bytes(g->rules) +
                                 (size_t)g->mask_of.n * g->vocabulary->n_words * 4);
    }
    *mask = g->mask_of.mask[kept];
    return ST_OK;
}
