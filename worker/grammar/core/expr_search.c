/* worker/grammar/core/expr_search.c - questions about all strings of an expression: is there one,
 * and does every plain text fit? */
#include <string.h>

#include "common/base/mem.h"
#include "worker/grammar/core/expr_internal.h"

/* --- is there a string? ----------------------------------------------------------------------- */

/* A depth-first search for a derivative that is nullable. The path behind it is alive; when nothing
 * is found, all that was visited is dead.
 *
 * From each place the search goes first where the least is missing: behind a byte that all parts of
 * an intersection need, not behind one of a thousand that a counter alone would take. */
struct search {
    struct exprs *x;
    struct search_step {
        expr_id e;
        uint32_t class; /* the next to follow; NEAREST: none has been followed */
        struct byte_set first;
    } * path;
    expr_id *visited;
    uint32_t n_path, cap_path, n_visited, cap_visited;
    uint32_t latest; /* the class that led here: often the best again */
};

#define NEAREST      UINT32_MAX
#define LONGEST_PATH 10000u /* bytes of the string: 10 to 30 ms */

#define FIRST_NODES (1u << 16) /* looked at for the bytes that may come next */

static bool enter(struct search *s, expr_id e) {
    struct exprs *x = s->x;
    uint64_t work = s->n_path < LONGEST_PATH ? 1 : x->fuel + 1; /* more than is left, if limited */
    uint32_t n_nodes;

    if (!exprs_pay(x, work)) return false;
    if (!exprs_grow(x, &s->path, s->n_path, &s->cap_path, sizeof(*s->path))) return false;
    if (!exprs_grow(x, &s->visited, s->n_visited, &s->cap_visited, sizeof(e))) return false;
    s->path[s->n_path] = (struct search_step){.e = e, .class = NEAREST};
    n_nodes = expr_first(x, e, FIRST_NODES, &s->path[s->n_path++].first);
    s->visited[s->n_visited++] = e;
    x->node[e].flags |= EXPR_VISITED;
    return exprs_pay(x, n_nodes / 8);
}

static bool is_surely_alive(const struct exprs *x, expr_id e) {
    uint8_t flags = x->node[e].flags;

    if (flags & EXPR_DEAD) return false;
    return (flags & (EXPR_NULLABLE | EXPR_ALIVE)) || !(flags & EXPR_COMPLEMENTS);
}

/* The bytes that are missing: of an intersection, those of each part. *n_parts: how many of them
 * one byte may take away. */
static uint64_t missing(const struct exprs *x, expr_id e, uint32_t *n_parts) {
    const struct expr_node *n = &x->node[e];
    uint64_t sum = 0;

    *n_parts = 1;
    if (n->kind == EXPR_IS_CONCAT && x->node[n->a].kind == EXPR_IS_AND)
        return missing(x, n->a, n_parts) + x->node[n->b].shortest;
    if (n->kind != EXPR_IS_AND) return n->shortest;
    *n_parts = 0;
    for (uint32_t i = 0; i < n->b; i++) {
        const struct expr_node *kid = &x->node[x->kid[n->a + i]];

        sum += kid->shortest;
        *n_parts += kid->shortest > 0;
    }
    *n_parts = MAX(*n_parts, 1u); /* what is behind it */
    return sum;
}

/* What may follow a byte, and has not been visited; what is surely alive, else what lacks least. */
static expr_id nearest(struct search *s, expr_id e, const struct byte_set *first) {
    struct exprs *x = s->x;
    uint32_t n_parts, n_parts_there, latest = s->latest;
    uint64_t here = missing(x, e, &n_parts), least = UINT64_MAX;
    expr_id found = EXPR_NONE;

    for (uint32_t i = 0; i <= x->n_classes; i++) {
        uint32_t class = i == 0 ? latest : i - 1;
        uint64_t there;
        expr_id d;

        if (i > 0 && class == latest) continue;
        if (!byte_set_has(first, x->byte_of[class])) continue;
        d = expr_derive(x, e, class);
        if (x->failure != EXPRS_OK) return EXPR_NONE;
        if (is_surely_alive(x, d)) return d;
        if (x->node[d].flags & (EXPR_DEAD | EXPR_VISITED)) continue;
        there = missing(x, d, &n_parts_there);
        if (there >= least) continue;
        least = there;
        found = d;
        s->latest = class;
        if (least + n_parts <= here) break; /* none can lack less */
    }
    return found;
}

/* The next place from the end of the path; EXPR_NONE: none behind that class. */
static expr_id follow(struct search *s, struct search_step *top) {
    struct exprs *x = s->x;
    uint32_t class = top->class;

    top->class = class == NEAREST ? 0 : class + 1;
    if (class == NEAREST) return nearest(s, top->e, &top->first);
    return byte_set_has(&top->first, x->byte_of[class]) ? expr_derive(x, top->e, class) : EXPR_NONE;
}

/* True when one was found; the path leads to it. */
static bool find_string(struct search *s, expr_id from) {
    struct exprs *x = s->x;

    if (!enter(s, from)) return false;
    while (s->n_path > 0) {
        struct search_step *top = &s->path[s->n_path - 1];
        expr_id d;

        if (top->class != NEAREST && top->class >= x->n_classes) {
            s->n_path--;
            continue;
        }
        d = follow(s, top);
        if (x->failure != EXPRS_OK) return false;
        if (is_surely_alive(x, d)) return true;
        if (x->node[d].flags & (EXPR_DEAD | EXPR_VISITED)) continue;
        if (!enter(s, d)) return false;
    }
    return false;
}

bool expr_is_alive(struct exprs *x, expr_id e) {
    struct search s = {.x = x};
    bool is_found;

    if (is_surely_alive(x, e)) return true;
    if (x->node[e].flags & EXPR_DEAD) return false;
    is_found = find_string(&s, e);
    for (uint32_t i = 0; i < s.n_visited; i++) {
        x->node[s.visited[i]].flags &= (uint8_t)~EXPR_VISITED;
        if (!is_found && x->failure == EXPRS_OK) x->node[s.visited[i]].flags |= EXPR_DEAD;
    }
    for (uint32_t i = 0; is_found && i < s.n_path; i++)
        x->node[s.path[i].e].flags |= EXPR_ALIVE;
    x->n_bytes -= s.cap_path * sizeof(*s.path) + s.cap_visited * sizeof(*s.visited);
    mem_free(s.path);
    mem_free(s.visited);
    return is_found;
}

bool expr_continues(struct exprs *x, expr_id e) {
    if (e == EXPR_NONE || e == EXPR_EMPTY) return false;
    if (!expr_is_nullable(x, e)) return expr_is_alive(x, e);
    if (!(x->node[e].flags & EXPR_COMPLEMENTS)) return true;
    for (uint32_t class = 0; class < x->n_classes; class ++)
        if (expr_is_alive(x, expr_derive(x, e, class))) return true;
    return false;
}

/* --- how does it begin? ------------------------------------------------------------------------
 * */

static void find_first(const struct exprs *x, expr_id e, uint32_t *n_left, struct byte_set *out);

static void first_of_intersection(const struct exprs *x, const struct expr_node *n,
                                  uint32_t *n_left, struct byte_set *out) {
    struct byte_set both = {{UINT64_MAX, UINT64_MAX, UINT64_MAX, UINT64_MAX}};

    for (uint32_t i = 0; i<n->b && * n_left> 0; i++) {
        struct byte_set first = {{0}};

        find_first(x, x->kid[n->a + i], n_left, &first);
        both = byte_set_intersection(both, first);
    }
    *out = byte_set_union(*out, both);
}

static void find_first(const struct exprs *x, expr_id e, uint32_t *n_left, struct byte_set *out) {
    const struct expr_node *n = &x->node[e];

    if (*n_left == 0) {
        byte_set_add_range(out, 0, 255);
        return;
    }
    --*n_left;
    switch ((enum expr_kind)n->kind) {
    case EXPR_IS_NONE:
    case EXPR_IS_EMPTY: return;
    case EXPR_IS_ANY:
    case EXPR_IS_NOT: byte_set_add_range(out, 0, 255); return;
    case EXPR_IS_MULTIPLE: byte_set_add_range(out, '0', '9'); return;
    case EXPR_IS_CLASS: *out = byte_set_union(*out, x->set[n->a]); return;
    case EXPR_IS_CONCAT:
        find_first(x, n->a, n_left, out);
        if (x->node[n->a].flags & EXPR_NULLABLE) find_first(x, n->b, n_left, out);
        return;
    case EXPR_IS_REPEAT: find_first(x, n->a, n_left, out); return;
    case EXPR_IS_ALT:
        if (n->b > *n_left) {
            byte_set_add_range(out, 0, 255);
            return;
        }
        for (uint32_t i = 0; i < n->b; i++)
            find_first(x, x->kid[n->a + i], n_left, out);
        return;
    case EXPR_IS_AND: first_of_intersection(x, n, n_left, out); return;
    }
}

uint32_t expr_first(const struct exprs *x, expr_id e, uint32_t max_nodes, struct byte_set *out) {
    uint32_t n_left = max_nodes;

    find_first(x, e, &n_left, out);
    return max_nodes - n_left;
}

/* --- does every plain text fit? --------------------------------------------------------------- */

/* What may follow a first byte of UTF-8: a range for the second, and plain bytes of continuation.
 * */
static const struct lead {
    uint8_t first, last, low, high, n_more; /* n_more: continuations behind the second byte */
} leads[] = {{0xC2, 0xDF, 0x80, 0xBF, 0}, {0xE0, 0xE0, 0xA0, 0xBF, 1}, {0xE1, 0xEC, 0x80, 0xBF, 1},
             {0xED, 0xED, 0x80, 0x9F, 1}, {0xEE, 0xEF, 0x80, 0xBF, 1}, {0xF0, 0xF0, 0x90, 0xBF, 2},
             {0xF1, 0xF3, 0x80, 0xBF, 2}, {0xF4, 0xF4, 0x80, 0x8F, 2}};

/* Is every sequence of one byte of [low, high], then n_more continuations, a member of e? Classes
 * that lead to the same are looked at once. */
static bool covers_tail(struct exprs *x, expr_id e, uint8_t low, uint8_t high, uint32_t n_more) {
    uint32_t last_class = UINT32_MAX;
    expr_id last = EXPR_NONE; /* which covers nothing */

    for (uint32_t b = low; b <= high; b++) {
        uint32_t class = x->class_of[b];
        expr_id d;

        if (class == last_class) continue;
        last_class = class;
        if (!exprs_pay(x, 1)) return false;
        d = expr_derive(x, e, class);
        if (d == last && d != EXPR_NONE) continue;
        last = d;
        if (n_more == 0 && !expr_is_nullable(x, d)) return false;
        if (n_more > 0 && !covers_tail(x, d, 0x80, 0xBF, n_more - 1)) return false;
    }
    return true;
}

static bool covers_text(struct exprs *x, expr_id e) {
    for (uint32_t b = 0; b < 0x80; b++)
        if (expr_is_text_byte((uint8_t)b) &&
            !expr_is_nullable(x, expr_derive(x, e, x->class_of[b])))
            return false;
    for (size_t i = 0; i < ARRAY_LEN(leads); i++)
        for (uint32_t b = leads[i].first; b <= leads[i].last; b++)
            if (!covers_tail(x, expr_derive(x, e, x->class_of[b]), leads[i].low, leads[i].high,
                             leads[i].n_more))
                return false;
    return true;
}

static bool covers(struct exprs *x, expr_id e) {
    bool answer;

    if (x->node[e].flags & EXPR_COVERS_KNOWN) return x->node[e].flags & EXPR_COVERS;
    answer = covers_text(x, e);
    if (x->failure != EXPRS_OK) return false;
    x->node[e].flags |= EXPR_COVERS_KNOWN | (answer ? EXPR_COVERS : 0);
    return answer;
}

/* One part that takes any text for ever, and complements of finite languages: what is left behind
 * any text is infinite less something finite, so it is not empty. Other intersections may be. */
static uint32_t free_of_intersection(struct exprs *x, const struct expr_node *n) {
    uint32_t n_free = 0;

    for (uint32_t i = 0; i < n->b; i++) {
        expr_id kid = x->kid[n->a + i];
        const struct expr_node *k = &x->node[kid];

        if (k->kind == EXPR_IS_NOT && (x->node[k->a].flags & EXPR_FINITE)) continue;
        if (expr_free_chars(x, kid) != EXPR_FOREVER) return 0;
        n_free++;
    }
    return n_free == 1 ? EXPR_FOREVER : 0;
}

uint32_t expr_free_chars(struct exprs *x, expr_id e) {
    struct expr_node n = x->node[e];
    uint32_t most = 0;

    switch ((enum expr_kind)n.kind) {
    case EXPR_IS_ANY: return EXPR_FOREVER;
    case EXPR_IS_CONCAT: return x->node[n.a].kind == EXPR_IS_REPEAT ? expr_free_chars(x, n.a) : 0;
    case EXPR_IS_REPEAT: return covers(x, n.a) ? n.max : 0;
    case EXPR_IS_ALT:
        for (uint32_t i = 0; i < n.b; i++) {
            uint32_t chars = expr_free_chars(x, x->kid[n.a + i]);

            most = MAX(most, chars);
        }
        return most;
    case EXPR_IS_AND: return free_of_intersection(x, &n);
    default: return 0;
    }
}
