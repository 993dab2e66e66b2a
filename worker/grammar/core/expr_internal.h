/* worker/grammar/core/expr_internal.h - what expr.c (building), expr_facts.c (what is known of a
 * node), expr_derive.c and expr_search.c (is it empty, how does it begin, what is free) share.
 *
 * Nodes lie in one array in order of creation, so that a node's parts have smaller ids than it.
 * That is what exprs_collect relies on. */
#ifndef WORKER_GRAMMAR_CORE_EXPR_INTERNAL_H
#define WORKER_GRAMMAR_CORE_EXPR_INTERNAL_H

#include "worker/grammar/core/expr.h"

enum expr_kind {
    EXPR_IS_NONE,
    EXPR_IS_EMPTY,
    EXPR_IS_ANY,
    EXPR_IS_CLASS,    /* a: index of the set */
    EXPR_IS_MULTIPLE, /* digits that, behind the remainder a, make a multiple of min */
    EXPR_IS_CONCAT,   /* a, b */
    EXPR_IS_REPEAT,   /* a, min, max */
    EXPR_IS_NOT,      /* a */
    EXPR_IS_ALT,      /* b kids from kid[a] on, by rising id, two at least */
    EXPR_IS_AND,      /* the same */
};

#define EXPR_NULLABLE     1u
#define EXPR_COMPLEMENTS  2u /* has an intersection or a complement inside: may be empty */
#define EXPR_FINITE       4u /* surely has finitely many strings */
#define EXPR_ALIVE        8u /* known: it has a string */
#define EXPR_DEAD         16u
#define EXPR_COVERS       32u /* known: every character of plain text is a member */
#define EXPR_COVERS_KNOWN 64u
#define EXPR_VISITED      128u /* during a search */

struct expr_node {
    uint8_t kind, flags;
    uint16_t depth; /* of the recursion of its derivative */
    uint32_t a, b, min, max;
    uint32_t shortest, longest; /* no member has fewer bytes, or more (EXPR_FOREVER) */
};

struct expr_memo { /* a derivative that is known */
    uint64_t key;  /* id * 256 + class + 1; 0: a free place */
    expr_id value;
};

struct exprs {
    struct expr_node *node;
    struct byte_set *set;
    expr_id *kid;
    uint32_t n_nodes, cap_nodes, n_sets, cap_sets, n_kids, cap_kids;
    uint32_t *slot; /* of the hash table of nodes: id + 1; (n_slots), a power of two */
    uint32_t n_slots;
    struct expr_memo *memo;
    uint32_t n_memo, n_memo_slots;
    expr_id *stack; /* of lists under construction */
    uint32_t n_stack, cap_stack;
    uint8_t class_of[256], byte_of[256];
    uint32_t n_classes, n_frozen; /* 0: not frozen; sets that the classes are of */
    size_t n_bytes, max_bytes;
    uint64_t fuel;
    const atomic_bool *stop; /* NULL: never */
    enum exprs_failure failure;
};

/* Makes room for one more of an array of `cap` elements; false once the store has failed. */
bool exprs_grow(struct exprs *x, void *array, uint32_t n, uint32_t *cap, size_t size);

#define EXPRS_FIRST_SLOTS 256u /* of each hash table */

/* Where a node is in the table, or would be. */
uint32_t exprs_find_slot(const struct exprs *x, const struct expr_node *n);

/* What its parts make of a node: flags; shortest and longest, which it sets (expr_facts.c). */
uint8_t exprs_flags_of(const struct exprs *x, const struct expr_node *n);
void exprs_measure(const struct exprs *x, struct expr_node *n);
uint16_t exprs_depth_of(const struct exprs *x, const struct expr_node *n);

/* The node's id, its own if it is new. */
expr_id exprs_cons(struct exprs *x, struct expr_node n);

/* A list under construction is what lies on the stack above `base`. Pushing puts a list's own parts
 * instead of a list inside a list of that kind; closing takes the list off. */
void exprs_push_flat(struct exprs *x, expr_id e, uint8_t kind);
expr_id exprs_alt_above(struct exprs *x, uint32_t base);
expr_id exprs_and_above(struct exprs *x, uint32_t base);

#endif
