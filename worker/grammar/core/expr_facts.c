/* worker/grammar/core/expr_facts.c - what is known of an expression from its parts, as it is made.
 */
#include "worker/grammar/core/expr_internal.h"

/* --- flags and depth -------------------------------------------------------------------------- */

static uint8_t flags_of_list(const struct exprs *x, const struct expr_node *n) {
    uint8_t all = EXPR_NULLABLE | EXPR_FINITE, any = 0;

    for (uint32_t i = 0; i < n->b; i++) {
        all &= x->node[x->kid[n->a + i]].flags;
        any |= x->node[x->kid[n->a + i]].flags;
    }
    if (n->kind == EXPR_IS_ALT)
        return (any & (EXPR_NULLABLE | EXPR_COMPLEMENTS)) | (all & EXPR_FINITE);
    return (all & EXPR_NULLABLE) | (any & EXPR_FINITE) | EXPR_COMPLEMENTS;
}

uint8_t exprs_flags_of(const struct exprs *x, const struct expr_node *n) {
    uint8_t a, b;

    switch ((enum expr_kind)n->kind) {
    case EXPR_IS_NONE: return EXPR_FINITE | EXPR_DEAD;
    case EXPR_IS_EMPTY: return EXPR_NULLABLE | EXPR_FINITE;
    case EXPR_IS_ANY: return EXPR_NULLABLE;
    case EXPR_IS_CLASS: return EXPR_FINITE;
    case EXPR_IS_MULTIPLE: return (n->a == 0 ? EXPR_NULLABLE : 0) | EXPR_COMPLEMENTS;
    case EXPR_IS_CONCAT:
        a = x->node[n->a].flags;
        b = x->node[n->b].flags;
        return (a & b & (EXPR_NULLABLE | EXPR_FINITE)) | ((a | b) & EXPR_COMPLEMENTS);
    case EXPR_IS_REPEAT:
        a = x->node[n->a].flags;
        return (a & EXPR_COMPLEMENTS) | (n->min == 0 || (a & EXPR_NULLABLE) ? EXPR_NULLABLE : 0) |
               (n->max != EXPR_FOREVER ? a & EXPR_FINITE : 0);
    case EXPR_IS_NOT:
        return (x->node[n->a].flags & EXPR_NULLABLE ? 0 : EXPR_NULLABLE) | EXPR_COMPLEMENTS;
    case EXPR_IS_ALT:
    case EXPR_IS_AND: return flags_of_list(x, n);
    }
    return 0;
}

static uint16_t depth_of_list(const struct exprs *x, const struct expr_node *n) {
    uint16_t most = 0;

    for (uint32_t i = 0; i < n->b; i++)
        most = MAX(most, x->node[x->kid[n->a + i]].depth);
    return most + 1;
}

/* How deep the derivative of a node recurses: past a part of a chain only if that may be empty. */
uint16_t exprs_depth_of(const struct exprs *x, const struct expr_node *n) {
    const struct expr_node *a;

    switch ((enum expr_kind)n->kind) {
    case EXPR_IS_CONCAT:
        a = &x->node[n->a];
        return (a->flags & EXPR_NULLABLE ? MAX(a->depth, x->node[n->b].depth) : a->depth) + 1;
    case EXPR_IS_REPEAT:
    case EXPR_IS_NOT: return x->node[n->a].depth + 1;
    case EXPR_IS_ALT:
    case EXPR_IS_AND: return depth_of_list(x, n);
    default: return 0;
    }
}

/* --- lengths ---------------------------------------------------------------------------------- */

/* Beyond 32 bits: what is shortest stays below EXPR_FOREVER, what is longest becomes that. */
static uint32_t at_least(uint64_t n) {
    return (uint32_t)MIN(n, EXPR_FOREVER - 1u);
}

static uint32_t at_most(uint64_t n) {
    return (uint32_t)MIN(n, EXPR_FOREVER);
}

/* The digits that a remainder lacks: with k of them it grows by any number below 10^k. */
static uint32_t digits_to_multiple(uint64_t remainder, uint64_t of) {
    uint64_t power = 1;
    uint32_t k = 0;

    for (; (of - remainder * (power % of) % of) % of >= power; k++)
        power *= 10;
    return k;
}

static void measure_list(const struct exprs *x, struct expr_node *n) {
    bool is_alt = n->kind == EXPR_IS_ALT;

    n->shortest = is_alt ? EXPR_FOREVER : 0;
    n->longest = is_alt ? 0 : EXPR_FOREVER;
    for (uint32_t i = 0; i < n->b; i++) {
        const struct expr_node *kid = &x->node[x->kid[n->a + i]];

        n->shortest = is_alt ? MIN(n->shortest, kid->shortest) : MAX(n->shortest, kid->shortest);
        n->longest = is_alt ? MAX(n->longest, kid->longest) : MIN(n->longest, kid->longest);
    }
}

static void measure_repeat(const struct expr_node *a, struct expr_node *n) {
    n->shortest = at_least((uint64_t)a->shortest * n->min);
    n->longest = a->longest == 0 ? 0
                 : a->longest == EXPR_FOREVER || n->max == EXPR_FOREVER
                     ? EXPR_FOREVER
                     : at_most((uint64_t)a->longest * n->max);
}

void exprs_measure(const struct exprs *x, struct expr_node *n) {
    n->shortest = 0;
    n->longest = EXPR_FOREVER;
    switch ((enum expr_kind)n->kind) {
    case EXPR_IS_NONE:
    case EXPR_IS_EMPTY: n->longest = 0; return;
    case EXPR_IS_ANY: return;
    case EXPR_IS_CLASS: n->shortest = n->longest = 1; return;
    case EXPR_IS_MULTIPLE: n->shortest = digits_to_multiple(n->a, n->min); return;
    case EXPR_IS_CONCAT:
        n->shortest = at_least((uint64_t)x->node[n->a].shortest + x->node[n->b].shortest);
        n->longest = at_most((uint64_t)x->node[n->a].longest + x->node[n->b].longest);
        return;
    case EXPR_IS_REPEAT: measure_repeat(&x->node[n->a], n); return;
    case EXPR_IS_NOT: n->shortest = x->node[n->a].flags & EXPR_NULLABLE ? 1 : 0; return;
    case EXPR_IS_ALT:
    case EXPR_IS_AND: measure_list(x, n); return;
    }
}
