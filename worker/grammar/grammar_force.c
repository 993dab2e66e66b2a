/* worker/grammar/grammar_force.c - bytes that must come next, and the one token that begins them.
 *
 * Where a grammar leaves one text only ("city": behind {), that text has many spellings in tokens,
 * and a mask of them all invites ones that the model never saw. So such a mask has one token: the
 * first of the tokenizer's own spelling. What follows the forced text might join its last bytes, so
 * that token is sure only if none that begins inside it reaches past the end of what is forced.
 * Follows: llguidance, which forces canonical tokens too.
 *
 * LIMITS. A tokenizer that puts something before a text of its own (a blank) spells no forced text;
 * nothing is forced then. */
#include <string.h>

#include "worker/grammar/grammar_internal.h"

#define FIRST_NODES (1u << 16) /* more than an enum of 10,000 values has */

/* The byte that must follow a row; false if there is none, or a choice. */
static bool only_byte(struct grammar *g, row_id row, uint8_t *out) {
    const struct row_item *items = rows_texts(g->rows, row);
    struct byte_set first = {{0}};
    uint32_t n = 0;

    if (g->rows->row[row].is_accepting || g->rows->row[row].n_tokens > 0) return false;
    for (uint32_t k = 0; k < g->rows->row[row].n_texts; k++) {
        expr_first(g->exprs, items[k].state, FIRST_NODES, &first);
        n = byte_set_count(&first);
        if (n > 1) return false;
    }
    if (n == 0 || exprs_failure(g->exprs) != EXPRS_OK) return false;
    *out = byte_set_least(&first);
    return true;
}

uint32_t grammar_force(struct grammar *g, row_id row, uint32_t max, char *bytes, row_id *path) {
    uint32_t n = 0;
    uint8_t byte;

    path[0] = row;
    while (n < max && only_byte(g, path[n], &byte)) {
        row_id next = rows_next(g->rows, path[n], exprs_class_of(g->exprs)[byte]);

        if (next == ROW_DEAD || next == ROW_UNKNOWN) break;
        bytes[n++] = (char)byte;
        path[n] = next;
    }
    return n;
}

/* The node of a trie behind `bytes`, and the end of its nodes; false if there is none. */
static bool find_node(const struct vocabulary_slice *s, struct str bytes, uint32_t *at,
                      uint32_t *end) {
    *at = 0;
    *end = s->n_nodes;
    for (size_t i = 0; i < bytes.len; i++) {
        while (*at < *end && s->node[*at].byte != (uint8_t)bytes.ptr[i])
            *at += s->node[*at].n_nodes;
        if (*at >= *end) return false;
        *end = *at + s->node[*at].n_nodes;
        (*at)++;
    }
    return true;
}

/* Is there a token that begins with `bytes`, goes on, and is allowed behind them? */
static bool is_spanned(struct grammar *g, struct str bytes, row_id behind) {
    const uint8_t *class_of = exprs_class_of(g->exprs);
    row_id path[VOCABULARY_MAX_BYTES + 1];
    uint32_t at, end;

    path[bytes.len] = behind;
    for (uint32_t i = 0; i < VOCABULARY_SLICES; i++) {
        const struct vocabulary_slice *s = &g->vocabulary->slice[i];

        if (!find_node(s, bytes, &at, &end)) continue;
        while (at < end) {
            const struct trie_node *n = &s->node[at];
            row_id row = rows_next(g->rows, path[n->depth - 1], class_of[n->byte]);

            if (row == ROW_DEAD) {
                at += n->n_nodes;
                continue;
            }
            if (row == ROW_UNKNOWN || n->token != VOCABULARY_NONE) return true;
            path[n->depth] = row;
            at++;
        }
    }
    return false;
}

static bool spells(const struct vocabulary *v, const uint32_t *ids, uint32_t n, struct str text) {
    size_t at = 0;

    for (uint32_t i = 0; i < n; i++) {
        struct str bytes = vocabulary_bytes(v, ids[i]);

        if (bytes.len == 0 || bytes.len > text.len - at ||
            memcmp(bytes.ptr, text.ptr + at, bytes.len) != 0)
            return false;
        at += bytes.len;
    }
    return at == text.len;
}

bool grammar_force_token(struct grammar *g, row_id row, uint32_t *token) {
    const struct vocabulary *v = g->vocabulary;
    char bytes[GRAMMAR_FORCED_MAX];
    row_id path[GRAMMAR_FORCED_MAX + 1];
    uint32_t ids[GRAMMAR_FORCED_MAX], n_bytes, n;
    struct str first;

    if (!v->encode) return false;
    n_bytes = grammar_force(g, row, GRAMMAR_FORCED_MAX, bytes, path);
    if (n_bytes == 0) return false;
    n = v->encode(v->arg, (struct str){bytes, n_bytes}, ids, GRAMMAR_FORCED_MAX);
    if (n == 0 || !spells(v, ids, n, (struct str){bytes, n_bytes})) return false;
    if (grammar_names(g, ids[0])) return false;
    first = vocabulary_bytes(v, ids[0]);
    for (uint32_t at = 0; n_bytes < GRAMMAR_FORCED_MAX && at < first.len; at++)
        if (is_spanned(g, (struct str){bytes + at, n_bytes - at}, path[n_bytes])) return false;
    *token = ids[0];
    return true;
}
