/* worker/text/jinja_parse.c - tokens to a tree, by recursive descent.
 *
 * Precedence, loosest first, as Jinja has it:
 *
 *      a if b else c | or | and | not | comparisons, in | + - | ~ | * / // % | ** | - + | . [] () | is |
 *
 * Filters and tests bind tighter than any operator: -x|abs is (-x)|abs, a + b|trim is a + (b|trim).
 * Chains (a + b + c, elif, |f|g) are loops here; only nesting recurses, and it is limited. */
#include "worker/text/jinja_internal.h"

#include <stdio.h>

struct parser {
    const struct jinja_token *t; /* the token to look at */
    struct jinja_program *program;
    uint32_t nesting, loops;
    struct error *err;
};

typedef enum status (*parse_fn)(struct parser *p, struct jinja_node **out);

static enum status parse_expression(struct parser *p, struct jinja_node **out);
static enum status parse_or(struct parser *p, struct jinja_node **out);
static enum status parse_unary(struct parser *p, struct jinja_node **out);
static enum status parse_primary(struct parser *p, struct jinja_node **out);
static enum status parse_body(struct parser *p, const char *const *ends, struct jinja_node **out);

/* --- tokens ------------------------------------------------------------------------------------*/
static enum status fail(struct parser *p, const char *expected) {
    static const char *const names[] = {
        "the end of the template", "text", "'{{'", "'}}'", "'{%'", "'%}'"};
    char found[64];

    if (p->t->kind <= TOK_BLOCK_END) {
        snprintf(found, sizeof(found), "%s", names[p->t->kind]);
    } else {
        snprintf(found, sizeof(found), "'%.*s'", (int)MIN(p->t->text.len, 40u), p->t->text.ptr);
    }
    return error_set(p->err, ST_INVALID, "chat template, line %u: expected %s, found %s",
                     p->t->line, expected, found);
}

static bool is_op(const struct parser *p, const char *op) {
    return p->t->kind == TOK_OP && str_eq(p->t->text, str_of(op));
}

static bool is_word(const struct parser *p, const char *word) {
    return p->t->kind == TOK_NAME && str_eq(p->t->text, str_of(word));
}

static bool accept_op(struct parser *p, const char *op) {
    bool found = is_op(p, op);

    p->t += found;
    return found;
}

static bool accept_word(struct parser *p, const char *word) {
    bool found = is_word(p, word);

    p->t += found;
    return found;
}

static enum status expect_op(struct parser *p, const char *op) {
    return accept_op(p, op) ? ST_OK : fail(p, op);
}

static enum status expect_kind(struct parser *p, enum jinja_token_kind kind, const char *what) {
    if (p->t->kind != kind) return fail(p, what);
    p->t++;
    return ST_OK;
}

static enum status expect_name(struct parser *p, struct str *name) {
    *name = p->t->text;
    return expect_kind(p, TOK_NAME, "a name");
}

static struct jinja_node *node(struct parser *p, enum jinja_kind kind) {
    struct jinja_node *n = arena_alloc(&p->program->arena, sizeof(*n));

    n->kind = kind;
    n->line = p->t->line;
    return n;
}

static struct jinja_node *binary(struct parser *p, enum jinja_kind kind, struct jinja_node *a,
                                 struct jinja_node *b) {
    struct jinja_node *n = node(p, kind);

    n->a = a;
    n->b = b;
    return n;
}

static enum status enter(struct parser *p) {
    if (++p->nesting <= JINJA_MAX_NESTING) return ST_OK;
    return error_set(p->err, ST_INVALID, "chat template, line %u: nested more than %d deep",
                     p->t->line, JINJA_MAX_NESTING);
}

/* --- operands ----------------------------------------------------------------------------------*/
/* Items up to the operator `close`, which is consumed. */
static enum status parse_items(struct parser *p, const char *close, struct jinja_node **first) {
    struct jinja_node **last = first;

    while (!accept_op(p, close)) {
        if (last != first) {
            TRY(expect_op(p, ","));
            if (accept_op(p, close)) break;
        }
        TRY(parse_expression(p, last));
        last = &(*last)->next;
    }
    return ST_OK;
}

static enum status parse_dict(struct parser *p, struct jinja_node **out) {
    struct jinja_node *n = node(p, NODE_DICT), **last = &n->children;

    while (!accept_op(p, "}")) {
        if (last != &n->children) {
            TRY(expect_op(p, ","));
            if (accept_op(p, "}")) break;
        }
        TRY(parse_expression(p, last));
        TRY(expect_op(p, ":"));
        last = &(*last)->next;
        TRY(parse_expression(p, last));
        last = &(*last)->next;
    }
    *out = n;
    return ST_OK;
}

/* ( expression ), or a tuple, which evaluates as a list. */
static enum status parse_parenthesis(struct parser *p, struct jinja_node **out) {
    struct jinja_node *n = node(p, NODE_LIST);

    n->value = jv_bool(true); /* a tuple */
    if (accept_op(p, ")")) {
        *out = n;
        return ST_OK;
    }
    TRY(parse_expression(p, &n->children));
    if (accept_op(p, ")")) {
        *out = n->children;
        return ST_OK;
    }
    TRY(expect_op(p, ","));
    TRY(parse_items(p, ")", &n->children->next));
    *out = n;
    return ST_OK;
}

static bool is_constant(struct str name, struct jv *out) {
    if (str_eq(name, STR("true")) || str_eq(name, STR("True"))) {
        *out = jv_bool(true);
    } else if (str_eq(name, STR("false")) || str_eq(name, STR("False"))) {
        *out = jv_bool(false);
    } else if (str_eq(name, STR("none")) || str_eq(name, STR("None"))) {
        *out = jv_none();
    } else {
        return false;
    }
    return true;
}

/* "a" "b" is "ab". */
static struct jv join_strings(struct parser *p) {
    const struct jinja_token *from = p->t;
    size_t n = 0;
    char *text;

    for (; p->t->kind == TOK_STRING; p->t++)
        n += p->t->text.len;
    if (p->t == from + 1) return jv_string(from->text);
    text = arena_alloc(&p->program->arena, n + 1);
    n = 0;
    for (; from < p->t; from++) {
        memcpy(text + n, from->text.ptr, from->text.len);
        n += from->text.len;
    }
    return jv_string((struct str){text, n});
}

static enum status parse_atom(struct parser *p, struct jinja_node **out) {
    struct jinja_node *n = node(p, NODE_CONST);

    *out = n;
    switch (p->t->kind) {
    case TOK_INT: n->value = jv_int(p->t++->integer); return ST_OK;
    case TOK_FLOAT: n->value = jv_float(p->t++->number); return ST_OK;
    case TOK_STRING: n->value = join_strings(p); return ST_OK;
    case TOK_NAME:
        n->name = p->t++->text;
        if (!is_constant(n->name, &n->value)) n->kind = NODE_NAME;
        return ST_OK;
    default: break;
    }
    if (accept_op(p, "(")) return parse_parenthesis(p, out);
    if (accept_op(p, "{")) return parse_dict(p, out);
    if (!accept_op(p, "[")) return fail(p, "an expression");
    n->kind = NODE_LIST;
    return parse_items(p, "]", &n->children);
}

/* Arguments after an open parenthesis; a keyword argument is a node with a name around its value. */
static enum status parse_arguments(struct parser *p, struct jinja_node **first) {
    struct jinja_node **last = first;

    while (!accept_op(p, ")")) {
        struct jinja_node *argument = node(p, NODE_CONST);

        if (last != first) {
            TRY(expect_op(p, ","));
            if (accept_op(p, ")")) break;
        }
        if (p->t->kind == TOK_NAME && p->t[1].kind == TOK_OP && str_eq(p->t[1].text, STR("="))) {
            argument->name = p->t->text;
            p->t += 2;
        }
        TRY(parse_expression(p, &argument->a));
        *last = argument;
        last = &argument->next;
    }
    return ST_OK;
}

static enum status parse_subscript(struct parser *p, struct jinja_node *of,
                                   struct jinja_node **out) {
    struct jinja_node *n = binary(p, NODE_ITEM, of, NULL), **parts[] = {&n->b, &n->c, &n->d};

    for (size_t i = 0; i < ARRAY_LEN(parts); i++) {
        if (!is_op(p, ":") && !is_op(p, "]")) TRY(parse_expression(p, parts[i]));
        if (!accept_op(p, ":")) break;
        n->kind = NODE_SLICE;
    }
    if (n->kind == NODE_ITEM && !n->b) return fail(p, "a subscript");
    *out = n;
    return expect_op(p, "]");
}

/* . [] () after an operand. */
static enum status parse_postfix(struct parser *p, struct jinja_node **out) {
    for (;;) {
        if (accept_op(p, ".")) {
            struct jinja_node *n = binary(p, NODE_ATTR, *out, NULL);

            if (p->t->kind == TOK_INT) { /* a.0 is a[0] */
                n->kind = NODE_ITEM;
                TRY(parse_atom(p, &n->b));
            } else {
                TRY(expect_name(p, &n->name));
            }
            *out = n;
        } else if (accept_op(p, "[")) {
            TRY(parse_subscript(p, *out, out));
        } else if (accept_op(p, "(")) {
            struct jinja_node *n = binary(p, NODE_CALL, *out, NULL);

            TRY(parse_arguments(p, &n->children));
            *out = n;
        } else {
            return ST_OK;
        }
    }
}

static enum status parse_filter_name(struct parser *p, struct jinja_node *of,
                                     struct jinja_node **out) {
    struct jinja_node *n = binary(p, NODE_FILTER, of, NULL);

    TRY(expect_name(p, &n->name));
    if (accept_op(p, "(")) TRY(parse_arguments(p, &n->children));
    *out = n;
    return ST_OK;
}

/* An argument of a test without parentheses may follow: `is divisibleby 3`. */
static bool begins_test_argument(const struct parser *p) {
    switch (p->t->kind) {
    case TOK_STRING:
    case TOK_INT:
    case TOK_FLOAT: return true;
    case TOK_NAME:
        return !is_word(p, "else") && !is_word(p, "or") && !is_word(p, "and") &&
               !is_word(p, "is") && !is_word(p, "if") && !is_word(p, "in") && !is_word(p, "not");
    default: return is_op(p, "[") || is_op(p, "{");
    }
}

static enum status parse_test(struct parser *p, struct jinja_node **out) {
    bool is_negated = accept_word(p, "not");
    struct jinja_node *n = binary(p, NODE_TEST, *out, NULL);

    TRY(expect_name(p, &n->name));
    if (accept_op(p, "(")) {
        TRY(parse_arguments(p, &n->children));
    } else if (begins_test_argument(p)) {
        n->children = node(p, NODE_CONST);
        TRY(parse_atom(p, &n->children->a));
        TRY(parse_postfix(p, &n->children->a));
    }
    *out = is_negated ? binary(p, NODE_NOT, n, NULL) : n;
    return ST_OK;
}

static enum status parse_filters(struct parser *p, struct jinja_node **out) {
    for (;;) {
        if (accept_op(p, "|")) {
            TRY(parse_filter_name(p, *out, out));
        } else if (accept_word(p, "is")) {
            TRY(parse_test(p, out));
        } else if (accept_op(p, "(")) { /* the result of a filter, called */
            struct jinja_node *n = binary(p, NODE_CALL, *out, NULL);

            TRY(parse_arguments(p, &n->children));
            *out = n;
        } else {
            return ST_OK;
        }
    }
}

static enum status parse_primary(struct parser *p, struct jinja_node **out) {
    TRY(parse_atom(p, out));
    return parse_postfix(p, out);
}

static enum status parse_sign(struct parser *p, struct jinja_node **out) {
    if (accept_op(p, "-")) {
        TRY(enter(p));
        *out = node(p, NODE_NEGATE);
        TRY(parse_sign(p, &(*out)->a));
        p->nesting--;
        return ST_OK;
    }
    accept_op(p, "+");
    return parse_primary(p, out);
}

static enum status parse_unary(struct parser *p, struct jinja_node **out) {
    TRY(parse_sign(p, out));
    return parse_filters(p, out);
}

/* --- operators ---------------------------------------------------------------------------------*/
struct operator_name {
    const char *text;
    enum jinja_op op;
};

static const struct operator_name pow_ops[] = {{"**", OP_POW}};
static const struct operator_name mul_ops[] = {
    {"*", OP_MUL}, {"//", OP_FLOOR_DIV}, {"/", OP_DIV}, {"%", OP_MOD}};
static const struct operator_name concat_ops[] = {{"~", OP_CONCAT}};
static const struct operator_name add_ops[] = {{"+", OP_ADD}, {"-", OP_SUB}};
static const struct operator_name compare_ops[] = {{"==", OP_EQ}, {"!=", OP_NE}, {"<=", OP_LE},
                                                   {">=", OP_GE}, {"<", OP_LT},  {">", OP_GT}};

static bool accept_one_of(struct parser *p, const struct operator_name *ops, size_t n,
                          enum jinja_op *out) {
    for (size_t i = 0; i < n; i++) {
        if (!accept_op(p, ops[i].text)) continue;
        *out = ops[i].op;
        return true;
    }
    return false;
}

/* tighter (op tighter)*, grouping to the left. */
static enum status parse_left(struct parser *p, parse_fn tighter, const struct operator_name *ops,
                              size_t n, struct jinja_node **out) {
    enum jinja_op op;

    TRY(tighter(p, out));
    while (accept_one_of(p, ops, n, &op)) {
        struct jinja_node *b = binary(p, NODE_BINARY, *out, NULL);

        b->op = op;
        TRY(tighter(p, &b->b));
        *out = b;
    }
    return ST_OK;
}

static enum status parse_pow(struct parser *p, struct jinja_node **out) {
    return parse_left(p, parse_unary, pow_ops, ARRAY_LEN(pow_ops), out);
}

static enum status parse_mul(struct parser *p, struct jinja_node **out) {
    return parse_left(p, parse_pow, mul_ops, ARRAY_LEN(mul_ops), out);
}

static enum status parse_concat(struct parser *p, struct jinja_node **out) {
    return parse_left(p, parse_mul, concat_ops, ARRAY_LEN(concat_ops), out);
}

static enum status parse_add(struct parser *p, struct jinja_node **out) {
    return parse_left(p, parse_concat, add_ops, ARRAY_LEN(add_ops), out);
}

static bool accept_comparison(struct parser *p, enum jinja_op *op) {
    if (accept_one_of(p, compare_ops, ARRAY_LEN(compare_ops), op)) return true;
    if (accept_word(p, "in")) {
        *op = OP_IN;
        return true;
    }
    if (is_word(p, "not") && p->t[1].kind == TOK_NAME && str_eq(p->t[1].text, STR("in"))) {
        p->t += 2;
        *op = OP_NOT_IN;
        return true;
    }
    return false;
}

static enum status parse_compare(struct parser *p, struct jinja_node **out) {
    struct jinja_node *chain, **last;
    enum jinja_op op;

    TRY(parse_add(p, out));
    if (!accept_comparison(p, &op)) return ST_OK;
    chain = binary(p, NODE_COMPARE, *out, NULL);
    last = &chain->children;
    do {
        *last = node(p, NODE_CONST);
        (*last)->op = op;
        TRY(parse_add(p, &(*last)->a));
        last = &(*last)->next;
    } while (accept_comparison(p, &op));
    *out = chain;
    return ST_OK;
}

static enum status parse_not(struct parser *p, struct jinja_node **out) {
    if (!accept_word(p, "not")) return parse_compare(p, out);
    TRY(enter(p));
    *out = node(p, NODE_NOT);
    TRY(parse_not(p, &(*out)->a));
    p->nesting--;
    return ST_OK;
}

static enum status parse_and(struct parser *p, struct jinja_node **out) {
    TRY(parse_not(p, out));
    while (accept_word(p, "and")) {
        *out = binary(p, NODE_AND, *out, NULL);
        TRY(parse_not(p, &(*out)->b));
    }
    return ST_OK;
}

static enum status parse_or(struct parser *p, struct jinja_node **out) {
    TRY(parse_and(p, out));
    while (accept_word(p, "or")) {
        *out = binary(p, NODE_OR, *out, NULL);
        TRY(parse_and(p, &(*out)->b));
    }
    return ST_OK;
}

static enum status parse_expression(struct parser *p, struct jinja_node **out) {
    TRY(enter(p));
    TRY(parse_or(p, out));
    while (accept_word(p, "if")) {
        *out = binary(p, NODE_IF_ELSE, *out, NULL);
        TRY(parse_or(p, &(*out)->b));
        if (accept_word(p, "else")) TRY(parse_expression(p, &(*out)->c));
    }
    p->nesting--;
    return ST_OK;
}

/* Expressions with commas between them are one tuple. */
static enum status parse_tuple(struct parser *p, parse_fn item, struct jinja_node **out) {
    struct jinja_node *n, **last;

    TRY(item(p, out));
    if (!is_op(p, ",")) return ST_OK;
    n = node(p, NODE_LIST);
    n->value = jv_bool(true);
    n->children = *out;
    last = &(*out)->next;
    while (accept_op(p, ",")) {
        if (p->t->kind == TOK_BLOCK_END || p->t->kind == TOK_VAR_END) break;
        TRY(item(p, last));
        last = &(*last)->next;
    }
    *out = n;
    return ST_OK;
}

/* --- statements --------------------------------------------------------------------------------*/
static enum status end_block(struct parser *p) {
    return expect_kind(p, TOK_BLOCK_END, "'%}'");
}

/* True when the next tag is {% word; it is not consumed. */
static bool at_tag(const struct parser *p, const char *word) {
    return p->t->kind == TOK_BLOCK_BEGIN && p->t[1].kind == TOK_NAME &&
           str_eq(p->t[1].text, str_of(word));
}

static enum status close_tag(struct parser *p, const char *word) {
    if (!at_tag(p, word)) return fail(p, word);
    p->t += 2;
    return end_block(p);
}

/* a, (b, c) or ns.field: what a for and a set assign to. */
static enum status parse_targets(struct parser *p, struct jinja_node **first) {
    struct jinja_node **last = first;
    bool has_parenthesis = accept_op(p, "(");

    do {
        struct jinja_node *n = node(p, NODE_NAME);

        if (last != first && p->t->kind != TOK_NAME) break;
        TRY(expect_name(p, &n->name));
        if (accept_op(p, ".")) {
            struct jinja_node *attr = binary(p, NODE_ATTR, n, NULL);

            TRY(expect_name(p, &attr->name));
            n = attr;
        }
        *last = n;
        last = &n->next;
    } while (accept_op(p, ","));
    return has_parenthesis ? expect_op(p, ")") : ST_OK;
}

/* Notes a loop over message.content, message['content'] or a variable of that name. */
static void note_parts(struct parser *p, const struct jinja_node *n) {
    while (n && n->kind == NODE_FILTER)
        n = n->a;
    if (!n) return;
    if ((n->kind == NODE_ATTR || n->kind == NODE_NAME) && str_eq(n->name, STR("content"))) {
        p->program->reads_parts = true;
    }
    if (n->kind == NODE_ITEM && n->b->kind == NODE_CONST && jv_is_string(n->b->value, "content")) {
        p->program->reads_parts = true;
    }
}

static enum status parse_for(struct parser *p, struct jinja_node *n) {
    static const char *const ends[] = {"else", "endfor", NULL};
    static const char *const only_end[] = {"endfor", NULL};

    n->kind = NODE_FOR;
    TRY(parse_targets(p, &n->children));
    if (!accept_word(p, "in")) return fail(p, "'in'");
    TRY(parse_tuple(p, parse_or, &n->a));
    note_parts(p, n->a);
    if (accept_word(p, "if")) TRY(parse_expression(p, &n->b));
    TRY(end_block(p));
    p->loops++;
    TRY(parse_body(p, ends, &n->body));
    p->loops--;
    if (at_tag(p, "else")) {
        p->t += 2;
        TRY(end_block(p));
        TRY(parse_body(p, only_end, &n->other));
    }
    return close_tag(p, "endfor");
}

static enum status parse_if(struct parser *p, struct jinja_node *n) {
    static const char *const ends[] = {"elif", "else", "endif", NULL};
    static const char *const only_end[] = {"endif", NULL};

    n->kind = NODE_IF;
    for (;;) {
        TRY(parse_expression(p, &n->a));
        TRY(end_block(p));
        TRY(parse_body(p, ends, &n->body));
        if (!at_tag(p, "elif")) break;
        p->t += 2;
        n->other = node(p, NODE_IF);
        n = n->other;
    }
    if (at_tag(p, "else")) {
        p->t += 2;
        TRY(end_block(p));
        TRY(parse_body(p, only_end, &n->other));
    }
    return close_tag(p, "endif");
}

static enum status parse_set(struct parser *p, struct jinja_node *n) {
    static const char *const ends[] = {"endset", NULL};

    n->kind = NODE_SET;
    TRY(parse_targets(p, &n->children));
    if (accept_op(p, "=")) {
        TRY(parse_tuple(p, parse_expression, &n->a));
        return end_block(p);
    }
    n->kind = NODE_SET_BLOCK;
    if (n->children->next) return fail(p, "'='");
    if (is_op(p, "|")) n->a = node(p, NODE_NAME); /* the text, a variable without a name */
    while (accept_op(p, "|"))
        TRY(parse_filter_name(p, n->a, &n->a));
    TRY(end_block(p));
    TRY(parse_body(p, ends, &n->body));
    return close_tag(p, "endset");
}

static enum status parse_macro(struct parser *p, struct jinja_node *n) {
    static const char *const ends[] = {"endmacro", NULL};
    struct jinja_node **last = &n->children;
    uint32_t loops = p->loops;

    n->kind = NODE_MACRO;
    TRY(expect_name(p, &n->name));
    TRY(expect_op(p, "("));
    while (!accept_op(p, ")")) {
        struct jinja_node *parameter = node(p, NODE_NAME);

        if (last != &n->children) TRY(expect_op(p, ","));
        TRY(expect_name(p, &parameter->name));
        if (accept_op(p, "=")) TRY(parse_expression(p, &parameter->a));
        *last = parameter;
        last = &parameter->next;
    }
    TRY(end_block(p));
    p->loops = 0;
    TRY(parse_body(p, ends, &n->body));
    p->loops = loops;
    if (!at_tag(p, "endmacro")) return fail(p, "endmacro");
    p->t += 2;
    if (p->t->kind == TOK_NAME) p->t++; /* its name may be said again */
    return end_block(p);
}

/* {% generation %} marks what a model said, for training; here it is just its body. */
static enum status parse_generation(struct parser *p, struct jinja_node *n) {
    static const char *const ends[] = {"endgeneration", NULL};

    n->kind = NODE_IF;
    n->a = node(p, NODE_CONST);
    n->a->value = jv_bool(true);
    TRY(end_block(p));
    TRY(parse_body(p, ends, &n->body));
    return close_tag(p, "endgeneration");
}

static enum status parse_statement(struct parser *p, struct jinja_node *n) {
    if (accept_word(p, "for")) return parse_for(p, n);
    if (accept_word(p, "if")) return parse_if(p, n);
    if (accept_word(p, "set")) return parse_set(p, n);
    if (accept_word(p, "macro")) return parse_macro(p, n);
    if (accept_word(p, "generation")) return parse_generation(p, n);
    if (p->loops && (is_word(p, "break") || is_word(p, "continue"))) {
        n->kind = is_word(p, "break") ? NODE_BREAK : NODE_CONTINUE;
        p->t++;
        return end_block(p);
    }
    return fail(p, "for, if, set, macro, generation, or, in a loop, break or continue");
}

static bool at_one_of(const struct parser *p, const char *const *ends) {
    for (; *ends; ends++) {
        if (at_tag(p, *ends)) return true;
    }
    return false;
}

/* What comes before one of the tags `ends` (not consumed), or before the end of the template. */
static enum status parse_body(struct parser *p, const char *const *ends, struct jinja_node **out) {
    struct jinja_node **last = out;

    TRY(enter(p));
    while (p->t->kind != TOK_END && !at_one_of(p, ends)) {
        struct jinja_node *n = node(p, NODE_TEXT);

        if (p->t->kind == TOK_TEXT) {
            n->value = jv_string(p->t++->text);
        } else if (p->t->kind == TOK_VAR_BEGIN) {
            p->t++;
            n->kind = NODE_PRINT;
            TRY(parse_tuple(p, parse_expression, &n->a));
            TRY(expect_kind(p, TOK_VAR_END, "'}}'"));
        } else {
            p->t++;
            TRY(parse_statement(p, n));
        }
        *last = n;
        last = &n->next;
    }
    p->nesting--;
    return ST_OK;
}

enum status jinja_compile(struct jinja_program **out, struct str source, struct error *err) {
    static const char *const no_ends[] = {NULL};
    struct jinja_program *program = mem_zalloc(sizeof(*program));
    struct parser p = {.program = program, .err = err};
    struct jinja_token *tokens = NULL;
    enum status st;

    arena_init(&program->arena, 64 * 1024);
    st = jinja_lex(source, &program->arena, &tokens, err);
    p.t = tokens;
    if (st == ST_OK) st = parse_body(&p, no_ends, &program->body);
    if (st != ST_OK) {
        jinja_destroy(program);
        return st;
    }
    *out = program;
    return ST_OK;
}

void jinja_destroy(struct jinja_program *p) {
    if (!p) return;
    arena_fini(&p->arena);
    mem_free(p);
}

bool jinja_reads_parts(const struct jinja_program *p) {
    return p->reads_parts;
}
