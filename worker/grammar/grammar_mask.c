/* worker/grammar/grammar_mask.c - which tokens may follow a row.
 *
 * A token may follow if all its bytes may. The walk keeps the row behind each byte of the current
 * path; a byte that leads nowhere skips all tokens that begin so. The steps it makes are remembered
 * in the rows, so that the next walk through them only looks up.
 *
 * In free text of a tag nearly every byte leads back to one row, and only the beginning of a marker
 * leads on. There the mask begins with all tokens, and the walk passes over nodes behind which that
 * row is left by no byte. */
#include <string.h>

#include "common/base/hash.h"
#include "common/base/mem.h"
#include "worker/grammar/grammar_internal.h"

#define MASKS_SHARE 4u /* of a grammar's bytes, its masks: 1,024 of 131,072 tokens */

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

bool grammar_names(const struct grammar *g, uint32_t token) {
    uint32_t low = 0, high = g->n_named;

    while (low < high) {
        uint32_t mid = low + (high - low) / 2;

        if (g->named[mid] < token) {
            low = mid + 1;
        } else {
            high = mid;
        }
    }
    return low < g->n_named && g->named[low] == token;
}

static void add_tokens(const struct grammar *g, row_id row, uint32_t *mask) {
    const struct row_item *items = rows_tokens(g->rows, row);

    for (uint32_t k = 0; k < g->rows->row[row].n_tokens; k++) {
        uint32_t token = symbol_value(g->rules->code[items[k].at]);

        if (token < g->vocabulary->n_tokens) mask[token / 32] |= 1u << (token % 32);
    }
}

/* --- free text -------------------------------------------------------------------------------- */

#define MOST_LEAVING 32u   /* bytes that leave a row in which text is free */
#define NO_TEXT_BYTE 0xFFu /* of no UTF-8, so of no marker: behind it text is as free as it gets */

/* A row that most bytes lead back to, and those of the others as vocabulary_bit has them. */
struct free_row {
    row_id row;
    uint64_t leaving;
};

/* The row to which free text behind `from` comes back; false if there is none. */
static bool find_free_row(struct grammar *g, row_id from, struct free_row *out) {
    const uint8_t *class_of = exprs_class_of(g->exprs);
    uint32_t n_leaving = 0;
    row_id row = rows_next(g->rows, from, class_of[NO_TEXT_BYTE]);

    *out = (struct free_row){.row = row};
    if (row == ROW_DEAD || row == ROW_UNKNOWN ||
        rows_next(g->rows, row, class_of[NO_TEXT_BYTE]) != row)
        return false;
    for (uint32_t byte = 0; byte < 256 && n_leaving <= MOST_LEAVING; byte++) {
        if (rows_next(g->rows, row, class_of[byte]) == row) continue;
        out->leaving |= vocabulary_bit((uint8_t)byte);
        n_leaving++;
    }
    return n_leaving <= MOST_LEAVING;
}

static void clear_below(const struct vocabulary_slice *s, uint32_t at, uint32_t *mask) {
    for (uint32_t i = at; i < at + s->node[at].n_nodes; i++) {
        uint32_t token = s->node[i].token;

        if (token != VOCABULARY_NONE) mask[token / 32] &= ~(1u << (token % 32));
    }
}

/* As walk, from a mask of all tokens. */
static bool walk_free(struct grammar *g, const struct vocabulary_slice *s, row_id from,
                      const struct free_row *free, uint32_t *mask) {
    const uint8_t *class_of = exprs_class_of(g->exprs);
    row_id path[VOCABULARY_MAX_BYTES + 1];

    path[0] = from;
    for (uint32_t i = 0; i < s->n_nodes;) {
        const struct trie_node *n = &s->node[i];
        row_id row = rows_next(g->rows, path[n->depth - 1], class_of[n->byte]);

        if (row == ROW_UNKNOWN) return false;
        if (row == ROW_DEAD) clear_below(s, i, mask);
        if (row == ROW_DEAD || (row == free->row && !(s->below[i] & free->leaving))) {
            i += n->n_nodes;
            continue;
        }
        path[n->depth] = row;
        i++;
    }
    return true;
}

/* --- all slices ------------------------------------------------------------------------------- */

static bool walk_slices(struct grammar *g, row_id row, uint32_t *mask) {
    const struct vocabulary *v = g->vocabulary;
    uint32_t n_free = rows_free_chars(g->rows, row), from = 0;
    struct free_row free;

    if (find_free_row(g, row, &free)) {
        memcpy(mask, v->slice[VOCABULARY_SLICES - 1].mask, v->n_words * sizeof(*mask));
        for (uint32_t i = 0; i < VOCABULARY_SLICES; i++)
            if (!walk_free(g, &v->slice[i], row, &free, mask)) return false;
        return true;
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
    return true;
}

static void set(uint32_t *mask, uint32_t token, bool value) {
    mask[token / 32] &= ~(1u << (token % 32));
    mask[token / 32] |= (uint32_t)value << (token % 32);
}

static bool fill(struct grammar *g, row_id row, uint32_t *mask) {
    const struct vocabulary *v = g->vocabulary;

    if (!walk_slices(g, row, mask)) return false;
    for (uint32_t i = 0; i < v->n_twins; i++)
        set(mask, v->twin[i][0], mask[v->twin[i][1] / 32] >> (v->twin[i][1] % 32) & 1);
    for (uint32_t i = 0; i < g->n_named; i++)
        set(mask, g->named[i], false);
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
    size_t n_bytes = grammar_allowance(g) / MASKS_SHARE;
    uint32_t most = (uint32_t)MAX(n_bytes / (g->vocabulary->n_words * 4u + 1u), 16u);

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

/* --- the mask of a row ------------------------------------------------------------------------ */

/* The one token of a mask; false if there are more, or none. */
static bool find_one(const struct grammar *g, const uint32_t *mask, uint32_t *token) {
    uint32_t n = 0;

    for (uint32_t i = 0; i < g->vocabulary->n_words && n < 2; i++) {
        if (mask[i] == 0) continue;
        *token = i * 32 + (uint32_t)__builtin_ctz(mask[i]);
        n += (mask[i] & (mask[i] - 1)) == 0 ? 1 : 2;
    }
    return n == 1;
}

/* The number of the row's mask; false beyond the limits. */
static bool compute(struct grammar *g, row_id row, uint32_t *number) {
    uint32_t token, *draft;
    bool is_done;

    if (grammar_force_token(g, row, &token)) {
        *number = MASK_OF_ONE | token;
        return exprs_failure(g->exprs) == EXPRS_OK;
    }
    draft = mem_alloc(MAX(g->vocabulary->n_words, 1u) * sizeof(*draft));
    is_done = fill(g, row, draft);
    if (is_done) *number = find_one(g, draft, &token) ? MASK_OF_ONE | token : keep(g, draft);
    mem_free(draft);
    return is_done;
}

static const uint32_t *mask_of_one(struct grammar *g, uint32_t token) {
    set(g->one, g->one_token, false);
    set(g->one, token, true);
    g->one_token = token;
    return g->one;
}

bool grammar_forced_token(struct grammar_matcher *m, uint32_t *token) {
    struct grammar *g = m->grammar;
    uint32_t number = g->rows->row[m->row].mask;

    if (g->rows->row[m->row].is_accepting) return false;
    if (number == ROW_UNKNOWN) {
        grammar_prepare(g);
        if (!grammar_force_token(g, m->row, token) || exprs_failure(g->exprs) != EXPRS_OK)
            return false;
        g->rows->row[m->row].mask = MASK_OF_ONE | *token;
        grammar_note_bytes(g);
        return true;
    }
    *token = number & ~MASK_OF_ONE;
    return number & MASK_OF_ONE;
}

bool grammar_mask_is_known(const struct grammar_matcher *m) {
    return m->grammar->rows->row[m->row].mask != ROW_UNKNOWN;
}

enum status grammar_mask(struct grammar_matcher *m, const uint32_t **mask, bool *is_new) {
    struct grammar *g = m->grammar;
    uint32_t number = g->rows->row[m->row].mask;

    *is_new = number == ROW_UNKNOWN;
    if (*is_new) {
        grammar_prepare(g); /* which may number rows again */
        if (!compute(g, m->row, &number)) return grammar_limit_status(g);
        g->rows->row[m->row].mask = number;
        grammar_note_bytes(g);
    }
    *mask = number & MASK_OF_ONE ? mask_of_one(g, number & ~MASK_OF_ONE) : g->mask_of.mask[number];
    return ST_OK;
}
