/* worker/text/tokenizer/regex.c - a parser to linked nodes, and a matcher that walks them.
 *
 *      'a(?:b|c+)?d'     a ──▶ group ──────────▶ d ──▶ (end: matched)
 *                               ├─ b ─────────▲
 *                               └─ c+ ────────┘      alternatives go on where the group does
 *
 * A node links to its successor, so matching the rest is one call, and the depth is bounded by the
 * number of nodes. */
#include "worker/text/tokenizer/regex.h"

#include "common/base/mem.h"
#include "worker/text/unicode/unicode.h"

#define MAX_NODES  512
#define MAX_RANGES 4096 /* of all classes: each is looked at for each character beyond ASCII */
#define MAX_GROUPS 16   /* nesting */
#define NO_MAX     UINT32_MAX

struct range {
    uint32_t lo, hi;
};

/* Characters: some ASCII ones, those of some classes, those in some ranges; or all but these. */
struct set {
    uint64_t ascii[2]; /* the whole answer below 128 */
    uint32_t classes;
    bool is_negated;
    struct range *ranges;
    uint32_t n_ranges, cap_ranges;
};

enum node_kind { NODE_SET, NODE_GROUP, NODE_AHEAD, NODE_NOT_AHEAD, NODE_LINE_START, NODE_LINE_END };

struct node {
    enum node_kind kind;
    bool is_possessive;
    uint32_t min, max; /* of a set; a group has max 1 */
    struct set set;
    struct node *next; /* NULL: matched */
    struct node *first,
        *sibling; /* of a group: its alternatives; each is the first of a sequence */
};

/* A group's alternatives are empty nodes (NODE_GROUP, max 0) chained by `sibling`, so that an empty
 * alternative has a node too. */
struct regex {
    struct arena arena;
    struct node *start;
    uint64_t first[2]; /* the ASCII characters that a match may begin with */
};

/* --- sets --------------------------------------------------------------------------------------*/
static bool in_ranges(const struct set *s, uint32_t cp) {
    for (uint32_t i = 0; i < s->n_ranges; i++) {
        if (cp >= s->ranges[i].lo && cp <= s->ranges[i].hi) return true;
    }
    return false;
}

static inline bool set_has(const struct set *s, uint32_t cp) {
    if (cp < 128) return s->ascii[cp / 64] >> (cp % 64) & 1;
    return ((unicode_class(cp) & s->classes) || in_ranges(s, cp)) != s->is_negated;
}

static void set_add(struct regex *r, struct set *s, uint32_t lo, uint32_t hi) {
    if (s->n_ranges == s->cap_ranges) {
        uint32_t cap = s->cap_ranges ? 2 * s->cap_ranges : 8;
        struct range *grown = arena_alloc(&r->arena, cap * sizeof(*grown));

        if (s->n_ranges) memcpy(grown, s->ranges, s->n_ranges * sizeof(*grown));
        s->ranges = grown;
        s->cap_ranges = cap;
    }
    s->ranges[s->n_ranges++] = (struct range){lo, hi};
}

/* Without case: the other case of an ASCII letter too, and the two letters beyond that fold to
 * one. */
static void set_add_char(struct regex *r, struct set *s, uint32_t cp, bool any_case) {
    uint32_t lower = cp | 0x20;

    set_add(r, s, cp, cp);
    if (!any_case || lower < 'a' || lower > 'z' || cp > 'z') return;
    set_add(r, s, cp ^ 0x20, cp ^ 0x20);
    if (lower == 's') set_add(r, s, 0x17F, 0x17F);
    if (lower == 'k') set_add(r, s, 0x212A, 0x212A);
}

static void set_close(struct set *s) {
    for (uint32_t cp = 0; cp < 128; cp++) {
        if (((unicode_class(cp) & s->classes) || in_ranges(s, cp)) != s->is_negated) {
            s->ascii[cp / 64] |= 1ull << (cp % 64);
        }
    }
}

/* --- parsing -----------------------------------------------------------------------------------*/
struct parser {
    struct regex *r;
    const char *p, *end;
    uint32_t n_nodes, n_members, depth;
    bool any_case;
};

static bool accept(struct parser *p, const char *s) {
    if (!str_starts((struct str){p->p, (size_t)(p->end - p->p)}, str_of(s))) return false;
    p->p += strlen(s);
    return true;
}

static struct node *new_node(struct parser *p, enum node_kind kind) {
    struct node *n;

    if (p->n_nodes++ == MAX_NODES) return NULL;
    n = arena_alloc(&p->r->arena, sizeof(*n));
    n->kind = kind;
    n->min = n->max = 1;
    return n;
}

/* {L} after \p. */
static bool parse_property(struct parser *p, uint32_t *classes) {
    static const struct {
        const char *name;
        uint32_t classes;
    } known[] = {{"{L}", UC_L},   {"{N}", UC_N},   {"{M}", UC_M},   {"{P}", UC_P},
                 {"{S}", UC_S},   {"{Lu}", UC_LU}, {"{Ll}", UC_LL}, {"{Lt}", UC_LT},
                 {"{Lm}", UC_LM}, {"{Lo}", UC_LO}, {"{Nd}", UC_ND}};

    for (size_t i = 0; i < ARRAY_LEN(known); i++) {
        if (!accept(p, known[i].name)) continue;
        *classes = known[i].classes;
        return true;
    }
    return false;
}

static bool parse_hex(struct parser *p, uint32_t n, uint32_t *cp) {
    *cp = 0;
    for (; n > 0; n--, p->p++) {
        int digit = p->p < p->end ? str_hex_value((unsigned char)*p->p) : -1;

        if (digit < 0) return false;
        *cp = *cp << 4 | (uint32_t)digit;
    }
    return *cp < 0xD800 || *cp > 0xDFFF;
}

/* After a backslash: a class (and whether it is the rest), or one character. */
static bool parse_escape(struct parser *p, uint32_t *classes, bool *is_rest, uint32_t *cp) {
    static const char names[] = "rntfv", values[] = "\r\n\t\f\v";
    const char *simple;
    char c;

    *classes = 0;
    *is_rest = false;
    if (p->p == p->end) return false;
    c = *p->p++;
    *is_rest = c == 'S' || c == 'D' || c == 'W' || c == 'P';
    switch (c) {
    case 'p':
    case 'P': return parse_property(p, classes);
    case 's':
    case 'S': *classes = UC_SPACE; return true;
    case 'd':
    case 'D': *classes = UC_ND; return true;
    case 'w':
    case 'W': *classes = UC_WORD; return true;
    case 'x': return parse_hex(p, 2, cp) && *cp < 128;
    case 'u': return parse_hex(p, 4, cp);
    default: break;
    }
    simple = memchr(names, c, sizeof(names) - 1);
    *cp = simple ? (uint8_t)values[simple - names] : (uint8_t)c;
    return simple || (*cp < 128 && !(unicode_class(*cp) & UC_WORD));
}

static bool parse_char(struct parser *p, uint32_t *cp) {
    uint32_t n;

    if (p->p == p->end) return false;
    *cp = unicode_decode(p->p, p->end, &n);
    p->p += n;
    return true;
}

/* One member of a class, which may be a range. `[` and `&&` within mean more in some engines. */
static bool parse_member(struct parser *p, struct set *s) {
    uint32_t lo, hi, classes;
    bool is_rest;

    if (p->n_members++ == MAX_RANGES || accept(p, "[") || accept(p, "&&")) return false;
    if (accept(p, "\\")) {
        if (!parse_escape(p, &classes, &is_rest, &lo) || is_rest) return false;
        s->classes |= classes;
        if (classes) return true;
    } else if (!parse_char(p, &lo)) {
        return false;
    }
    hi = lo;
    if (p->end - p->p >= 2 && p->p[0] == '-' && p->p[1] != ']') {
        p->p++;
        if (accept(p, "[")) return false;
        if (accept(p, "\\")) {
            if (!parse_escape(p, &classes, &is_rest, &hi) || classes) return false;
        } else if (!parse_char(p, &hi)) {
            return false;
        }
    }
    if (hi < lo) return false;
    if (lo == hi) {
        set_add_char(p->r, s, lo, p->any_case);
    } else {
        set_add(p->r, s, lo, hi);
    }
    return lo == hi || !p->any_case;
}

static bool parse_class(struct parser *p, struct set *s) {
    s->is_negated = accept(p, "^");
    do {
        if (p->p == p->end || !parse_member(p, s)) return false;
    } while (!accept(p, "]"));
    return true;
}

/* A character, an escape, a class or a dot. */
static bool parse_set(struct parser *p, struct set *s) {
    uint32_t cp, classes;
    bool is_rest;

    if (accept(p, "[")) {
        if (!parse_class(p, s)) return false;
    } else if (accept(p, ".")) {
        set_add(p->r, s, '\n', '\n');
        s->is_negated = true;
    } else if (accept(p, "\\")) {
        if (!parse_escape(p, &classes, &is_rest, &cp)) return false;
        s->classes = classes;
        s->is_negated = is_rest;
        if (!classes) set_add_char(p->r, s, cp, p->any_case);
    } else {
        if (p->p == p->end || memchr("*+?{", *p->p, 4) || !parse_char(p, &cp)) return false;
        set_add_char(p->r, s, cp, p->any_case);
    }
    set_close(s);
    return true;
}

static bool parse_number(struct parser *p, uint32_t *n) {
    const char *from = p->p;

    for (*n = 0; p->p < p->end && *p->p >= '0' && *p->p <= '9' && *n < 1000; p->p++)
        *n = *n * 10 + (uint32_t)(*p->p - '0');
    return p->p > from && *n <= 1000;
}

/* {m,n}+ repeats the repetition where these files come from: {1,n}+ is any number. */
static bool parse_braces(struct parser *p, struct node *n) {
    if (!parse_number(p, &n->min)) return false;
    n->max = n->min;
    if (accept(p, ",") && !parse_number(p, &n->max)) n->max = NO_MAX;
    if (!accept(p, "}") || n->max < n->min || !n->max) return false;
    if (accept(p, "+")) {
        if (n->min != 1) return false;
        n->max = NO_MAX;
    }
    return true;
}

static bool parse_repetition(struct parser *p, struct node *n) {
    if (accept(p, "{")) {
        if (!parse_braces(p, n)) return false;
    } else if (accept(p, "?")) {
        n->min = 0;
        n->is_possessive = accept(p, "+");
    } else if (accept(p, "*")) {
        n->min = 0;
        n->max = NO_MAX;
        n->is_possessive = accept(p, "+");
    } else if (accept(p, "+")) {
        n->max = NO_MAX;
        n->is_possessive = accept(p, "+");
    }
    if (p->p < p->end && memchr("*+?{", *p->p, 4)) return false; /* lazy, or a second one */
    return n->kind == NODE_SET || (n->max == 1 && !n->is_possessive);
}

static bool parse_alternatives(struct parser *p, struct node *group);

static bool parse_ahead(struct parser *p, enum node_kind kind, struct node **out) {
    *out = new_node(p, kind);
    return *out && parse_set(p, &(*out)->set) && accept(p, ")");
}

static bool parse_group(struct parser *p, struct node **out) {
    bool outer_case = p->any_case, is_ok;

    if (accept(p, "?!")) return parse_ahead(p, NODE_NOT_AHEAD, out);
    if (accept(p, "?=")) return parse_ahead(p, NODE_AHEAD, out);
    if (accept(p, "?i:")) {
        p->any_case = true;
    } else if (!accept(p, "?:") && p->p < p->end && *p->p == '?') {
        return false;
    }
    *out = new_node(p, NODE_GROUP);
    if (!*out || ++p->depth > MAX_GROUPS) return false;
    is_ok = parse_alternatives(p, *out) && accept(p, ")");
    p->depth--;
    p->any_case = outer_case;
    return is_ok && parse_repetition(p, *out);
}

static bool parse_item(struct parser *p, struct node **out) {
    if (accept(p, "(")) return parse_group(p, out);
    if (accept(p, "^") || accept(p, "$")) {
        *out = new_node(p, p->p[-1] == '^' ? NODE_LINE_START : NODE_LINE_END);
        return *out;
    }
    *out = new_node(p, NODE_SET);
    return *out && parse_set(p, &(*out)->set) && parse_repetition(p, *out);
}

/* Sequences with bars between, up to a closing parenthesis or the end. */
static bool parse_alternatives(struct parser *p, struct node *group) {
    struct node **alternative = &group->first;

    do {
        struct node *head = new_node(p, NODE_GROUP), **last;

        if (!head) return false;
        head->max = 0;
        *alternative = head;
        alternative = &head->sibling;
        last = &head->next;
        while (p->p < p->end && *p->p != '|' && *p->p != ')') {
            if (!parse_item(p, last)) return false;
            last = &(*last)->next;
        }
    } while (accept(p, "|"));
    return true;
}

/* Where the alternatives of a group end, what follows the group follows. */
static void link_tails(struct node *n, struct node *after) {
    for (; n; n = n->next) {
        struct node *next = n->next ? n->next : after;

        for (struct node *a = n->first; a; a = a->sibling)
            link_tails(a, next);
        if (!n->next) {
            n->next = after;
            return;
        }
    }
}

/* Whether a sequence may match nothing. Empty matches would cut text too, and are unsupported. */
static bool may_be_empty(const struct node *n, const struct node *end) {
    for (; n && n != end; n = n->next) {
        bool is_empty = n->kind != NODE_SET || n->min == 0 || n->max == 0;

        if (n->kind == NODE_GROUP && n->min && n->max) {
            is_empty = false;
            for (const struct node *a = n->first; a && !is_empty; a = a->sibling)
                is_empty = may_be_empty(a, n->next);
        }
        if (!is_empty) return false;
    }
    return true;
}

/* Adds the first characters of a sequence: its sets up to the first mandatory one. False when the
 * sequence may be empty. */
static bool collect_first(const struct node *n, const struct node *end, uint64_t first[2]) {
    for (; n && n != end; n = n->next) {
        bool must_be = n->kind == NODE_SET && n->min;

        if (n->kind == NODE_SET) {
            first[0] |= n->set.ascii[0];
            first[1] |= n->set.ascii[1];
        } else if (n->kind == NODE_GROUP && n->max) {
            must_be = n->min;
            for (const struct node *a = n->first; a; a = a->sibling)
                must_be = collect_first(a, n->next, first) && must_be;
        }
        if (must_be) return true;
    }
    return false;
}

enum status regex_compile(struct regex **out, struct str source) {
    struct regex *r = mem_zalloc(sizeof(*r));
    struct parser p = {.r = r, .p = source.ptr, .end = source.ptr + source.len};

    arena_init(&r->arena, 0);
    r->start = new_node(&p, NODE_GROUP);
    if (!source.len || !parse_alternatives(&p, r->start) || p.p < p.end) {
        regex_destroy(r);
        return ST_UNSUPPORTED;
    }
    link_tails(r->start, NULL);
    if (may_be_empty(r->start, NULL)) {
        regex_destroy(r);
        return ST_UNSUPPORTED;
    }
    if (!collect_first(r->start, NULL, r->first)) memset(r->first, 0xFF, sizeof(r->first));
    *out = r;
    return ST_OK;
}

void regex_destroy(struct regex *r) {
    if (!r) return;
    arena_fini(&r->arena);
    mem_free(r);
}

/* --- matching ----------------------------------------------------------------------------------*/
struct matcher {
    const char *begin, *end;
    uint64_t *steps;
};

static const char *match(struct matcher *m, const struct node *n, const char *p);

static bool step(struct matcher *m) {
    if (!*m->steps) return false;
    --*m->steps;
    return true;
}

static bool ahead(const struct matcher *m, const struct set *s, const char *p) {
    uint32_t n;

    return p < m->end && set_has(s, unicode_decode(p, m->end, &n));
}

/* As many as there are, then fewer until the rest fits. */
static const char *match_set(struct matcher *m, const struct node *n, const char *p) {
    const char *first = p;
    uint32_t count = 0, bytes;

    for (; count < n->max && p < m->end; count++, p += bytes) {
        uint32_t cp = (uint8_t)*p;

        bytes = 1;
        if (cp >= 128) cp = unicode_decode(p, m->end, &bytes);
        if (!set_has(&n->set, cp)) break;
    }
    if (count >= *m->steps) {
        *m->steps = 0;
        return NULL;
    }
    *m->steps -= count;
    if (count < n->min) return NULL;
    if (!n->next) return p;
    for (;;) {
        const char *q = match(m, n->next, p);

        if (q || count == n->min || n->is_possessive || !step(m)) return q;
        do {
            p--;
        } while (p > first && ((uint8_t)*p & 0xC0) == 0x80);
        count--;
    }
}

static const char *match_group(struct matcher *m, const struct node *n, const char *p) {
    for (const struct node *a = n->first; a; a = a->sibling) {
        const char *q = match(m, a, p);

        if (q) return q;
    }
    return n->min ? NULL : match(m, n->next, p);
}

/* End of the match of `n` and all that follows it at p, or NULL. */
static const char *match(struct matcher *m, const struct node *n, const char *p) {
    for (; n; n = n->next) {
        if (!step(m)) return NULL;
        switch (n->kind) {
        case NODE_SET: return match_set(m, n, p);
        case NODE_GROUP:
            if (n->max) return match_group(m, n, p);
            break; /* the head of an alternative */
        case NODE_AHEAD:
        case NODE_NOT_AHEAD:
            if (ahead(m, &n->set, p) != (n->kind == NODE_AHEAD)) return NULL;
            break;
        case NODE_LINE_START:
            if (p > m->begin && p[-1] != '\n') return NULL;
            break;
        case NODE_LINE_END:
            if (p < m->end && *p != '\n') return NULL;
            break;
        }
    }
    return p;
}

bool regex_find(const struct regex *r, struct str text, size_t from, uint64_t *steps, size_t *begin,
                size_t *end) {
    struct matcher m = {text.ptr, text.ptr + text.len, steps};
    uint32_t n;

    for (const char *p = text.ptr + from; p < m.end && *steps; p += n) {
        uint8_t byte = (uint8_t)*p;
        const char *q;

        n = 1;
        if (byte < 128 && !(r->first[byte / 64] >> (byte % 64) & 1)) continue;
        q = match(&m, r->start, p);

        if (q && q > p) {
            *begin = (size_t)(p - text.ptr);
            *end = (size_t)(q - text.ptr);
            return true;
        }
        unicode_decode(p, m.end, &n);
    }
    return false;
}
