/* worker/grammar/core/expr_derive.c - classes of bytes, derivatives, and giving memory back. */
#include <assert.h>
#include <string.h>

#include "common/base/mem.h"
#include "common/base/rng.h"
#include "worker/grammar/core/expr_internal.h"

/* --- classes ---------------------------------------------------------------------------------- */

/* Parts each class into the bytes inside and outside of the set. */
static void split_by(struct exprs *x, const struct byte_set *set) {
    int16_t inside[256];

    memset(inside, -1, sizeof(inside)); /* by old class: the new one of its bytes in the set */
    for (uint32_t pass = 0; pass < 2; pass++)
        for (uint32_t b = 0; b < 256; b++) {
            uint8_t class = x->class_of[b];

            if (pass == 0 && !byte_set_has(set, (uint8_t)b)) inside[class] = -2; /* it is parted */
        }
    for (uint32_t b = 0; b < 256; b++) {
        uint8_t class = x->class_of[b];

        if (!byte_set_has(set, (uint8_t)b) || inside[class] == -1) continue;
        if (inside[class] == -2) inside[class] = (int16_t)x->n_classes++;
        x->class_of[b] = (uint8_t)inside[class];
    }
}

/* Classes without bytes (all of them went into a new one) are taken out of the numbering. */
static void number_classes(struct exprs *x) {
    int16_t number[512];

    memset(number, -1, sizeof(number));
    x->n_classes = 0;
    for (uint32_t b = 0; b < 256; b++) {
        uint8_t class = x->class_of[b];

        if (number[class] < 0) {
            number[class] = (int16_t)x->n_classes;
            x->byte_of[x->n_classes++] = (uint8_t)b;
        }
        x->class_of[b] = (uint8_t)number[class];
    }
}

void exprs_freeze(struct exprs *x) {
    if (x->n_classes > 0 && x->n_frozen == x->n_sets) return;
    x->n_frozen = x->n_sets;
    memset(x->memo, 0, x->n_memo_slots * sizeof(*x->memo)); /* of the old classes */
    x->n_memo = 0;
    memset(x->class_of, 0, sizeof(x->class_of));
    x->n_classes = 1;
    for (uint32_t i = 0; i < x->n_sets; i++) {
        split_by(x, &x->set[i]);
        number_classes(x);
    }
    number_classes(x);
}

uint32_t exprs_n_classes(const struct exprs *x) {
    return x->n_classes;
}

const uint8_t *exprs_class_of(const struct exprs *x) {
    return x->class_of;
}

uint8_t exprs_byte_of(const struct exprs *x, uint32_t class) {
    return x->byte_of[class];
}

/* --- derivatives ------------------------------------------------------------------------------ */

/* Eight classes of a node lie side by side: most are asked for one after the other. */
static struct expr_memo *find_memo(const struct exprs *x, uint64_t key) {
    uint32_t at = ((uint32_t)rng_mix(key / 8) * 8 + (uint32_t)key % 8) & (x->n_memo_slots - 1);

    while (x->memo[at].key != 0 && x->memo[at].key != key)
        at = (at + 1) & (x->n_memo_slots - 1);
    return &x->memo[at];
}

static void remember(struct exprs *x, uint64_t key, expr_id value) {
    if (x->n_memo * 2 >= x->n_memo_slots) {
        struct expr_memo *old = x->memo;
        uint32_t n = x->n_memo_slots;

        if (x->n_bytes + n * sizeof(*old) > x->max_bytes ||
            !(x->memo = mem_try_zalloc(2 * n * sizeof(*old)))) {
            x->memo = old;
            x->failure = EXPRS_OUT_OF_MEMORY;
            return;
        }
        x->n_bytes += n * sizeof(*old);
        x->n_memo_slots = 2 * n;
        for (uint32_t i = 0; i < n; i++)
            if (old[i].key != 0) *find_memo(x, old[i].key) = old[i];
        mem_free(old);
    }
    *find_memo(x, key) = (struct expr_memo){key, value};
    x->n_memo++;
}

static expr_id derive_list(struct exprs *x, const struct expr_node *n, uint32_t class) {
    uint32_t base = x->n_stack;

    if (!exprs_pay(x, n->b / 8)) return EXPR_NONE;
    for (uint32_t i = 0; i < n->b; i++) {
        expr_id d = expr_derive(x, x->kid[n->a + i], class);

        exprs_push_flat(x, d, n->kind);
    }
    return n->kind == EXPR_IS_ALT ? exprs_alt_above(x, base) : exprs_and_above(x, base);
}

static expr_id derive_concat(struct exprs *x, const struct expr_node *n, uint32_t class) {
    bool is_nullable = x->node[n->a].flags & EXPR_NULLABLE;
    expr_id d = expr_concat(x, expr_derive(x, n->a, class), n->b);

    return is_nullable ? expr_alt(x, d, expr_derive(x, n->b, class)) : d;
}

static expr_id derive_repeat(struct exprs *x, const struct expr_node *n, uint32_t class) {
    uint32_t max = n->max == EXPR_FOREVER ? EXPR_FOREVER : n->max - 1;
    expr_id d = expr_derive(x, n->a, class);

    return expr_concat(x, d, expr_repeat(x, n->a, n->min > 0 ? n->min - 1 : 0, max));
}

/* The remainder behind one digit more. */
static expr_id derive_multiple(struct exprs *x, const struct expr_node *n, uint32_t class) {
    uint8_t byte = x->byte_of[class];
    struct expr_node next = {.kind = EXPR_IS_MULTIPLE, .min = n->min};

    if (byte < '0' || byte > '9') return EXPR_NONE;
    next.a = (n->a * 10 + byte - '0') % n->min;
    return exprs_cons(x, next);
}

static expr_id derive(struct exprs *x, expr_id e, uint32_t class) {
    struct expr_node n = x->node[e]; /* a copy: the array may move */

    switch ((enum expr_kind)n.kind) {
    case EXPR_IS_NONE:
    case EXPR_IS_EMPTY: return EXPR_NONE;
    case EXPR_IS_ANY: return EXPR_ANY;
    case EXPR_IS_CLASS:
        return byte_set_has(&x->set[n.a], x->byte_of[class]) ? EXPR_EMPTY : EXPR_NONE;
    case EXPR_IS_MULTIPLE: return derive_multiple(x, &n, class);
    case EXPR_IS_CONCAT: return derive_concat(x, &n, class);
    case EXPR_IS_REPEAT: return derive_repeat(x, &n, class);
    case EXPR_IS_NOT: return expr_not(x, expr_derive(x, n.a, class));
    case EXPR_IS_ALT:
    case EXPR_IS_AND: return derive_list(x, &n, class);
    }
    return EXPR_NONE;
}

expr_id expr_derive(struct exprs *x, expr_id e, uint32_t class) {
    uint64_t key = (uint64_t)e * 256 + class + 1;
    const struct expr_memo *known;
    expr_id d;

    if (x->node[e].kind <= EXPR_IS_CLASS) return derive(x, e, class);
    known = find_memo(x, key);
    if (known->key == key) return known->value;
    if (!exprs_pay(x, 1)) return EXPR_NONE;
    d = derive(x, e, class);
    if (x->failure != EXPRS_OK) return EXPR_NONE; /* and nothing wrong is remembered */
    remember(x, key, d);
    return d;
}

bool expr_is_nullable(const struct exprs *x, expr_id e) {
    return x->node[e].flags & EXPR_NULLABLE;
}

bool expr_matches(struct exprs *x, expr_id e, struct str s) {
    for (size_t i = 0; i < s.len && e != EXPR_NONE; i++)
        e = expr_derive(x, e, x->class_of[(uint8_t)s.ptr[i]]);
    return expr_is_nullable(x, e);
}

/* --- giving memory back ----------------------------------------------------------------------- */

static void mark_parts(const struct exprs *x, const struct expr_node *n, uint8_t *is_live) {
    switch ((enum expr_kind)n->kind) {
    case EXPR_IS_CONCAT: is_live[n->b] = 1; /* fall through */
    case EXPR_IS_REPEAT:
    case EXPR_IS_NOT: is_live[n->a] = 1; break;
    case EXPR_IS_ALT:
    case EXPR_IS_AND:
        for (uint32_t i = 0; i < n->b; i++)
            is_live[x->kid[n->a + i]] = 1;
        break;
    default: break;
    }
}

static struct expr_node move_parts(struct exprs *x, struct expr_node n, uint32_t *n_kids,
                                   const expr_id *moved) {
    if (n.kind == EXPR_IS_ALT || n.kind == EXPR_IS_AND) {
        for (uint32_t i = 0; i < n.b; i++)
            x->kid[*n_kids + i] = moved[x->kid[n.a + i]];
        n.a = *n_kids;
        *n_kids += n.b;
    } else if (n.kind == EXPR_IS_CONCAT || n.kind == EXPR_IS_REPEAT || n.kind == EXPR_IS_NOT) {
        n.a = moved[n.a];
        if (n.kind == EXPR_IS_CONCAT) n.b = moved[n.b];
    }
    return n;
}

/* Tables as small as what is left allows, and empty. */
static void shrink(struct exprs *x) {
    x->n_bytes -= x->n_slots * sizeof(*x->slot) + x->n_memo_slots * sizeof(*x->memo) +
                  x->cap_nodes * sizeof(*x->node) + x->cap_kids * sizeof(*x->kid);
    while (x->n_slots > EXPRS_FIRST_SLOTS && x->n_slots / 4 > x->n_nodes)
        x->n_slots /= 2;
    x->n_memo_slots = EXPRS_FIRST_SLOTS;
    x->n_memo = 0;
    x->cap_nodes = MAX(x->n_nodes, 64u);
    x->cap_kids = MIN(x->cap_kids, MAX(x->n_kids, 64u)); /* there may be none */
    mem_free(x->slot);
    mem_free(x->memo);
    x->slot = mem_calloc(x->n_slots, sizeof(*x->slot));
    x->memo = mem_calloc(x->n_memo_slots, sizeof(*x->memo));
    x->node = mem_realloc(x->node, x->cap_nodes * sizeof(*x->node));
    if (x->kid) x->kid = mem_realloc(x->kid, x->cap_kids * sizeof(*x->kid));
    x->n_bytes += x->n_slots * sizeof(*x->slot) + x->n_memo_slots * sizeof(*x->memo) +
                  x->cap_nodes * sizeof(*x->node) + x->cap_kids * sizeof(*x->kid);
}

/* Lists were appended in the order of their nodes, so each moves down, never over another. Sets
 * stay: there are few. */
void exprs_collect(struct exprs *x, uint8_t *is_live, expr_id *moved) {
    uint32_t n = 0, n_kids = 0;

    is_live[EXPR_NONE] = is_live[EXPR_EMPTY] = is_live[EXPR_ANY] = 1;
    for (uint32_t id = x->n_nodes; id-- > 0;)
        if (is_live[id]) mark_parts(x, &x->node[id], is_live);
    for (uint32_t id = 0; id < x->n_nodes; id++) {
        if (!is_live[id]) continue;
        moved[id] = n;
        x->node[n++] = move_parts(x, x->node[id], &n_kids, moved);
    }
    x->n_nodes = n;
    x->n_kids = n_kids;
    shrink(x);
    for (uint32_t id = 0; id < n; id++)
        x->slot[exprs_find_slot(x, &x->node[id])] = id + 1;
}

void exprs_check(const struct exprs *x) {
    for (uint32_t id = 0; id < x->n_nodes; id++) {
        struct expr_node n = x->node[id];
        uint32_t known = EXPR_NULLABLE | EXPR_COMPLEMENTS | EXPR_FINITE;

        assert(x->slot[exprs_find_slot(x, &n)] == id + 1);
        assert((exprs_flags_of(x, &n) & known) == (n.flags & known));
        assert(n.shortest <= n.longest || (n.flags & (EXPR_COMPLEMENTS | EXPR_DEAD)));
        exprs_measure(x, &n);
        assert(n.shortest == x->node[id].shortest && n.longest == x->node[id].longest);
        assert(n.kind != EXPR_IS_CONCAT || (n.a < id && n.b < id));
        for (uint32_t i = 0; (n.kind == EXPR_IS_ALT || n.kind == EXPR_IS_AND) && i < n.b; i++) {
            assert(x->kid[n.a + i] < id);
            assert(i == 0 || x->kid[n.a + i - 1] < x->kid[n.a + i]);
        }
    }
}
