/* worker/grammar/core/expr.c - constructors that simplify.
 *
 * A constructor returns the id of an equal node if there is one. The rules of simplification are
 * those that keep the number of derivatives finite: alternatives and intersections are sets, a
 * concatenation leans to the right, and what is absorbed is dropped. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/hash.h"
#include "common/base/mem.h"
#include "common/base/rng.h"
#include "worker/grammar/core/expr_internal.h"

#define EXPR_MAX_DEPTH 2000u /* of derivatives: some 300 KiB of a thread's stack */

/* --- the store -------------------------------------------------------------------------------- */

bool exprs_grow(struct exprs *x, void *array, uint32_t n, uint32_t *cap, size_t size) {
    uint32_t more = *cap ? *cap * 2 : 64;
    void **at = array, *grown;

    if (n < *cap) return true;
    if (x->failure != EXPRS_OK) return false;
    if (x->n_bytes + (size_t)(more - *cap) * size > x->max_bytes ||
        !(grown = mem_try_realloc(*at, more * size))) {
        x->failure = EXPRS_OUT_OF_MEMORY;
        return false;
    }
    x->n_bytes += (size_t)(more - *cap) * size;
    *at = grown;
    *cap = more;
    return true;
}

bool exprs_pay(struct exprs *x, uint64_t n) {
    if (x->failure != EXPRS_OK) return false;
    if (x->fuel < n) {
        x->fuel = 0;
        x->failure = EXPRS_OUT_OF_WORK;
        return false;
    }
    if (x->stop && atomic_load_explicit(x->stop, memory_order_relaxed)) {
        x->failure = EXPRS_STOPPED;
        return false;
    }
    x->fuel -= n;
    return true;
}

static uint64_t hash_node(const struct exprs *x, const struct expr_node *n) {
    uint64_t h = rng_mix((uint64_t)n->kind << 32 | n->min) ^ rng_mix(n->max + 7);

    switch (n->kind) {
    case EXPR_IS_CLASS: return h ^ hash_64(&x->set[n->a], sizeof(x->set[0]), 1);
    case EXPR_IS_ALT:
    case EXPR_IS_AND: return h ^ hash_64(x->kid + n->a, n->b * sizeof(expr_id), 2);
    default: return h ^ rng_mix((uint64_t)n->a << 32 | n->b);
    }
}

static bool is_equal(const struct exprs *x, const struct expr_node *p, const struct expr_node *q) {
    if (p->kind != q->kind || p->min != q->min || p->max != q->max) return false;
    if (p->kind == EXPR_IS_CLASS)
        return memcmp(&x->set[p->a], &x->set[q->a], sizeof(x->set[0])) == 0;
    if (p->kind == EXPR_IS_ALT || p->kind == EXPR_IS_AND)
        return p->b == q->b && memcmp(x->kid + p->a, x->kid + q->a, p->b * sizeof(expr_id)) == 0;
    return p->a == q->a && p->b == q->b;
}

/* Where a node is in the table, or would be. */
uint32_t exprs_find_slot(const struct exprs *x, const struct expr_node *n) {
    uint32_t at = (uint32_t)hash_node(x, n) & (x->n_slots - 1);

    while (x->slot[at] != 0 && !is_equal(x, &x->node[x->slot[at] - 1], n))
        at = (at + 1) & (x->n_slots - 1);
    return at;
}

static bool grow_slots(struct exprs *x) {
    uint32_t n = x->n_slots * 2;
    uint32_t *slots;

    if (x->n_bytes + x->n_slots * sizeof(*slots) > x->max_bytes ||
        !(slots = mem_try_zalloc(n * sizeof(*slots)))) {
        x->failure = EXPRS_OUT_OF_MEMORY;
        return false;
    }
    x->n_bytes += x->n_slots * sizeof(*slots);
    mem_free(x->slot);
    x->slot = slots;
    x->n_slots = n;
    for (uint32_t id = 0; id < x->n_nodes; id++)
        x->slot[exprs_find_slot(x, &x->node[id])] = id + 1;
    return true;
}

/* The node's id, its own if it is new. */
expr_id exprs_cons(struct exprs *x, struct expr_node n) {
    uint32_t at;

    if (!exprs_pay(x, 1)) return EXPR_NONE;
    at = exprs_find_slot(x, &n);
    if (x->slot[at] != 0) return x->slot[at] - 1;
    if (!exprs_pay(x, 2)) return EXPR_NONE; /* memory that is new takes longer */
    n.depth = exprs_depth_of(x, &n);
    if (n.depth > EXPR_MAX_DEPTH) {
        x->failure = EXPRS_OUT_OF_WORK;
        return EXPR_NONE;
    }
    if (!exprs_grow(x, &x->node, x->n_nodes, &x->cap_nodes, sizeof(n))) return EXPR_NONE;
    if (x->n_nodes * 2 >= x->n_slots) {
        if (!grow_slots(x)) return EXPR_NONE;
        at = exprs_find_slot(x, &n);
    }
    n.flags = exprs_flags_of(x, &n);
    exprs_measure(x, &n);
    x->node[x->n_nodes] = n;
    x->slot[at] = ++x->n_nodes;
    return x->n_nodes - 1;
}

struct exprs *exprs_create(size_t max_bytes) {
    struct exprs *x = mem_zalloc(sizeof(*x));

    x->max_bytes = max_bytes;
    x->fuel = UINT64_MAX;
    x->n_slots = x->n_memo_slots = EXPRS_FIRST_SLOTS;
    x->slot = mem_calloc(x->n_slots, sizeof(*x->slot));
    x->memo = mem_calloc(x->n_memo_slots, sizeof(*x->memo));
    x->n_bytes = sizeof(*x) + x->n_slots * sizeof(*x->slot) + x->n_memo_slots * sizeof(*x->memo);
    for (uint8_t kind = EXPR_IS_NONE; kind <= EXPR_IS_ANY; kind++)
        (void)exprs_cons(x, (struct expr_node){.kind = kind});
    return x;
}

void exprs_destroy(struct exprs *x) {
    if (!x) return;
    mem_free(x->node);
    mem_free(x->set);
    mem_free(x->kid);
    mem_free(x->slot);
    mem_free(x->memo);
    mem_free(x->stack);
    mem_free(x);
}

void exprs_set_max(struct exprs *x, size_t max_bytes) {
    x->max_bytes = max_bytes;
}

void exprs_set_stop(struct exprs *x, const atomic_bool *stop) {
    x->stop = stop;
}

void exprs_set_fuel(struct exprs *x, uint64_t fuel) {
    x->fuel = fuel;
}

uint64_t exprs_fuel(const struct exprs *x) {
    return x->fuel;
}

enum exprs_failure exprs_failure(const struct exprs *x) {
    return x->failure;
}

void exprs_forgive(struct exprs *x) {
    x->failure = EXPRS_OK;
    x->n_stack = 0;
}

void exprs_note(struct exprs *x, const struct buf *b) {
    if (buf_status(b) != ST_OK && x->failure == EXPRS_OK) x->failure = EXPRS_OUT_OF_MEMORY;
}

size_t exprs_bytes(const struct exprs *x) {
    return x->n_bytes;
}

uint32_t exprs_count(const struct exprs *x) {
    return x->n_nodes;
}

/* --- building --------------------------------------------------------------------------------- */

expr_id expr_class(struct exprs *x, struct byte_set set) {
    uint32_t n_nodes = x->n_nodes;
    expr_id e;

    if (byte_set_is_empty(&set)) return EXPR_NONE;
    if (!exprs_grow(x, &x->set, x->n_sets, &x->cap_sets, sizeof(set))) return EXPR_NONE;
    x->set[x->n_sets] = set;
    e = exprs_cons(x, (struct expr_node){.kind = EXPR_IS_CLASS, .a = x->n_sets});
    x->n_sets += x->n_nodes > n_nodes; /* else there is an equal one */
    return e;
}

expr_id expr_byte(struct exprs *x, uint8_t byte) {
    struct byte_set set = {{0}};

    byte_set_add(&set, byte);
    return expr_class(x, set);
}

expr_id expr_literal(struct exprs *x, struct str s) {
    expr_id e = EXPR_EMPTY;

    for (size_t i = s.len; i > 0; i--)
        e = expr_concat(x, expr_byte(x, (uint8_t)s.ptr[i - 1]), e);
    return e;
}

static void push(struct exprs *x, expr_id e) {
    if (exprs_grow(x, &x->stack, x->n_stack, &x->cap_stack, sizeof(e))) x->stack[x->n_stack++] = e;
}

/* A chain leans to the right: the parts of `a` are put in front of `b`, the last one first. */
expr_id expr_concat(struct exprs *x, expr_id a, expr_id b) {
    uint32_t base = x->n_stack;

    if (a == EXPR_NONE || b == EXPR_NONE) return EXPR_NONE;
    if (a == EXPR_EMPTY) return b;
    if (b == EXPR_EMPTY) return a;
    for (; x->node[a].kind == EXPR_IS_CONCAT; a = x->node[a].b)
        push(x, x->node[a].a);
    b = exprs_cons(x, (struct expr_node){.kind = EXPR_IS_CONCAT, .a = a, .b = b});
    while (x->n_stack > base)
        b = exprs_cons(
            x, (struct expr_node){.kind = EXPR_IS_CONCAT, .a = x->stack[--x->n_stack], .b = b});
    return x->failure == EXPRS_OK ? b : EXPR_NONE;
}

/* A list's own parts instead of a list inside a list. */
void exprs_push_flat(struct exprs *x, expr_id e, uint8_t kind) {
    struct expr_node n = x->node[e];

    if (n.kind != kind) {
        push(x, e);
        return;
    }
    for (uint32_t i = 0; i < n.b; i++)
        push(x, x->kid[n.a + i]);
}

static int by_id(const void *a, const void *b) {
    expr_id p = *(const expr_id *)a, q = *(const expr_id *)b;

    return (p > q) - (p < q);
}

/* Insertion, as long as it takes few moves: a list is often one that was sorted, and one more. */
static bool sort_nearly(expr_id *e, uint32_t n) {
    uint64_t moves = 8 * (uint64_t)n;

    for (uint32_t i = 1; i < n; i++) {
        expr_id moved = e[i];
        uint32_t k = i;

        for (; k > 0 && e[k - 1] > moved && moves > 0; k--, moves--)
            e[k] = e[k - 1];
        e[k] = moved;
    }
    return moves > 0;
}

/* Sorts the list above `base` and drops repetitions. */
static void sort(struct exprs *x, uint32_t base) {
    expr_id *e = x->stack + base;
    uint32_t n = x->n_stack - base, kept = 0;

    if (!sort_nearly(e, n)) {
        qsort(e, n, sizeof(*e), by_id);
        (void)exprs_pay(x, n); /* the list is closed in vain then */
    }
    for (uint32_t i = 0; i < n; i++)
        if (i == 0 || e[i] != e[kept - 1]) e[kept++] = e[i];
    x->n_stack = base + kept;
}

/* The node of the list above `base`, which it takes off. */
static expr_id close_list(struct exprs *x, uint32_t base, enum expr_kind kind) {
    uint32_t n = x->n_stack - base, n_nodes = x->n_nodes, at = x->n_kids;
    expr_id e;

    x->n_stack = base;
    if (!exprs_pay(x, n)) return EXPR_NONE;
    for (uint32_t i = 0; i < n; i++) {
        if (!exprs_grow(x, &x->kid, at + i, &x->cap_kids, sizeof(*x->kid))) return EXPR_NONE;
        x->kid[at + i] = x->stack[base + i];
    }
    e = exprs_cons(x, (struct expr_node){.kind = (uint8_t)kind, .a = at, .b = n});
    if (x->n_nodes > n_nodes) x->n_kids += n; /* else there is an equal one */
    return e;
}

/* Alternatives that are single bytes become one class. */
static void merge_classes(struct exprs *x, uint32_t base) {
    struct byte_set all = {{0}};
    uint32_t n_classes = 0, kept = base;

    for (uint32_t i = base; i < x->n_stack; i++)
        n_classes += x->node[x->stack[i]].kind == EXPR_IS_CLASS;
    if (n_classes < 2) return;
    for (uint32_t i = base; i < x->n_stack; i++) {
        const struct expr_node *n = &x->node[x->stack[i]];

        if (n->kind == EXPR_IS_CLASS) {
            all = byte_set_union(all, x->set[n->a]);
        } else {
            x->stack[kept++] = x->stack[i];
        }
    }
    x->n_stack = kept;
    push(x, expr_class(x, all));
    sort(x, base);
}

/* Takes `e` off the list above `base`. */
static void drop(struct exprs *x, uint32_t base, expr_id e) {
    uint32_t kept = base;

    for (uint32_t i = base; i < x->n_stack; i++)
        if (x->stack[i] != e) x->stack[kept++] = x->stack[i];
    x->n_stack = kept;
}

expr_id exprs_alt_above(struct exprs *x, uint32_t base) {
    bool has_other_nullable = false;

    sort(x, base);
    drop(x, base, EXPR_NONE);
    for (uint32_t i = base; i < x->n_stack; i++) {
        expr_id e = x->stack[i];

        if (e == EXPR_ANY) {
            x->n_stack = base;
            return EXPR_ANY;
        }
        has_other_nullable |= e != EXPR_EMPTY && (x->node[e].flags & EXPR_NULLABLE);
    }
    if (has_other_nullable) drop(x, base, EXPR_EMPTY);
    merge_classes(x, base);
    if (x->n_stack - base > 1) return close_list(x, base, EXPR_IS_ALT);
    if (x->n_stack == base) return EXPR_NONE;
    return x->stack[--x->n_stack];
}

/* Does the shortest member of one of the list have more bytes than the longest of another? */
static bool is_too_short(const struct exprs *x, uint32_t base) {
    uint32_t least = 0, most = EXPR_FOREVER;

    for (uint32_t i = base; i < x->n_stack; i++) {
        least = MAX(least, x->node[x->stack[i]].shortest);
        most = MIN(most, x->node[x->stack[i]].longest);
    }
    return least > most;
}

expr_id exprs_and_above(struct exprs *x, uint32_t base) {
    sort(x, base);
    drop(x, base, EXPR_ANY);
    for (uint32_t i = base; i < x->n_stack; i++) {
        expr_id e = x->stack[i];
        bool is_hopeless = e == EXPR_NONE;

        for (uint32_t k = base; e == EXPR_EMPTY && k < x->n_stack; k++)
            is_hopeless |= !(x->node[x->stack[k]].flags & EXPR_NULLABLE);
        if (e != EXPR_EMPTY && !is_hopeless) continue;
        x->n_stack = base;
        return is_hopeless ? EXPR_NONE : EXPR_EMPTY;
    }
    if (is_too_short(x, base)) {
        x->n_stack = base;
        return EXPR_NONE;
    }
    if (x->n_stack - base > 1) return close_list(x, base, EXPR_IS_AND);
    if (x->n_stack == base) return EXPR_ANY;
    return x->stack[--x->n_stack];
}

expr_id expr_alt(struct exprs *x, expr_id a, expr_id b) {
    uint32_t base = x->n_stack;

    if (a == b || b == EXPR_NONE) return a;
    if (a == EXPR_NONE) return b;
    exprs_push_flat(x, a, EXPR_IS_ALT);
    exprs_push_flat(x, b, EXPR_IS_ALT);
    return exprs_alt_above(x, base);
}

expr_id expr_alt_of(struct exprs *x, const expr_id *ids, size_t n) {
    uint32_t base = x->n_stack;

    for (size_t i = 0; i < n; i++)
        exprs_push_flat(x, ids[i], EXPR_IS_ALT);
    return exprs_alt_above(x, base);
}

expr_id expr_and(struct exprs *x, expr_id a, expr_id b) {
    uint32_t base = x->n_stack;

    if (a == b || b == EXPR_ANY) return a;
    if (a == EXPR_ANY) return b;
    exprs_push_flat(x, a, EXPR_IS_AND);
    exprs_push_flat(x, b, EXPR_IS_AND);
    return exprs_and_above(x, base);
}

expr_id expr_not(struct exprs *x, expr_id a) {
    if (x->failure != EXPRS_OK) return EXPR_NONE;
    if (a == EXPR_NONE) return EXPR_ANY;
    if (a == EXPR_ANY) return EXPR_NONE;
    if (x->node[a].kind == EXPR_IS_NOT) return x->node[a].a;
    return exprs_cons(x, (struct expr_node){.kind = EXPR_IS_NOT, .a = a});
}

expr_id expr_multiple(struct exprs *x, uint32_t of) {
    for (uint8_t digit = '0'; digit <= '9'; digit++)
        (void)expr_byte(x, digit); /* each is a class of its own */
    return exprs_cons(x, (struct expr_node){.kind = EXPR_IS_MULTIPLE, .min = of});
}

expr_id expr_repeat(struct exprs *x, expr_id a, uint32_t min, uint32_t max) {
    assert(min <= max);
    if (max == 0 || a == EXPR_EMPTY) return EXPR_EMPTY;
    if (a == EXPR_NONE) return min == 0 ? EXPR_EMPTY : EXPR_NONE;
    if (max == 1 && min == 1) return a;
    if (a == EXPR_ANY) return EXPR_ANY;
    if (x->node[a].flags & EXPR_NULLABLE) min = 0; /* it may be empty as often as it must come */
    if (max == 1 && min == 0 && (x->node[a].flags & EXPR_NULLABLE)) return a;
    return exprs_cons(x,
                      (struct expr_node){.kind = EXPR_IS_REPEAT, .a = a, .min = min, .max = max});
}

/* --- one of many strings ---------------------------------------------------------------------- */

static int by_bytes(const void *a, const void *b) {
    const struct str *p = a, *q = b;
    int order = memcmp(p->ptr, q->ptr, MIN(p->len, q->len));

    return order ? order : (p->len > q->len) - (p->len < q->len);
}

/* Of sorted strings that are equal up to `from`. Recurses once for each place where they part. */
static expr_id one_of_sorted(struct exprs *x, const struct str *s, size_t n, size_t from) {
    const struct str *last = &s[n - 1];
    uint32_t base = x->n_stack;
    size_t same = from;
    expr_id rest;

    if (!exprs_pay(x, n)) return EXPR_NONE;
    while (same < s->len && same < last->len && s->ptr[same] == last->ptr[same])
        same++;
    for (size_t i = 0, next; i < n; i = next) {
        next = i + 1;
        if (s[i].len == same) {
            push(x, EXPR_EMPTY);
            continue;
        }
        while (next < n && s[next].ptr[same] == s[i].ptr[same])
            next++;
        rest = one_of_sorted(x, s + i, next - i, same + 1);
        push(x, expr_concat(x, expr_byte(x, (uint8_t)s[i].ptr[same]), rest));
    }
    rest = exprs_alt_above(x, base);
    return expr_concat(x, expr_literal(x, (struct str){s->ptr + from, same - from}), rest);
}

expr_id expr_one_of(struct exprs *x, struct str *strings, size_t n) {
    if (n == 0) return EXPR_NONE;
    qsort(strings, n, sizeof(*strings), by_bytes);
    return one_of_sorted(x, strings, n, 0);
}
