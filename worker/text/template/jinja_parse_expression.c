/* worker/text/template/jinja_parse_expression.c - expressions, by recursive descent.
 *
 * Precedence, loosest first, as Jinja has it:
 *
 *      a if b else c | or | and | not | comparisons, in | + - | ~ | * / // % | ** | - + | . [] () | is |
 *
 * Filters and tests bind tighter than any operator: -x|abs is (-x)|abs, a + b|trim is a + (b|trim).
 * Chains (a + b + c, |f|g) are loops here; only nesting recurses, and it is limited. */
#include "worker/text/template/jinja_parser.h"

typedef enum status (*parse_fn)(struct jinja_parser *p, struct jinja_node **out);

static enum status parse_or(struct jinja_parser *p, struct jinja_node **out);
static enum status parse_unary(struct jinja_parser *p, struct jinja_node **out);
static enum status parse_primary(struct jinja_parser *p, struct jinja_node **out);

static bool is_word(const struct jinja_parser *p, const char *word) {
    return p->t->kind == TOK_NAME && str_eq(p->t->text, str_of(word));
}

static struct jinja_node *binary(struct jinja_parser *p, enum jinja_kind kind, struct jinja_node *a,
                                 struct jinja_node *b) {
    struct jinja_node *n = jinja_new_node(p, kind);

    n->a = a;
    n->b = b;
    return n;
}

/* --- operands ----------------------------------------------------------------------------------*/
/* Items up to the operator `close`, which is consumed. */
static enum status parse_items(struct jinja_parser *p, const char *close,
                               struct jinja_node **first) {
    struct jinja_node **last = first;

    while (!jinja_accept_op(p, close)) {
        if (last != first) {
            TRY(jinja_expect_op(p, ","));
            if (jinja_accept_op(p, close)) break;
        }
        TRY(jinja_parse_expression(p, last));
        last = &(*last)->next;
    }
    return ST_OK;
}

static enum status parse_dict(struct jinja_parser *p, struct jinja_node **out) {
    struct jinja_node *n = jinja_new_node(p, NODE_DICT), **last = &n->children;

    while (!jinja_accept_op(p, "}")) {
        if (last != &n->children) {
            TRY(jinja_expect_op(p, ","));
            if (jinja_accept_op(p, "}")) break;
        }
        TRY(jinja_parse_expression(p, last));
        TRY(jinja_expect_op(p, ":"));
        last = &(*last)->next;
        TRY(jinja_parse_expression(p, last));
        last = &(*last)->next;
    }
    *out = n;
    return ST_OK;
}

/* ( expression ), or a tuple, which evaluates as a list. */
static enum status parse_parenthesis(struct jinja_parser *p, struct jinja_node **out) {
    struct jinja_node *n = jinja_new_node(p, NODE_LIST);

    n->value = jv_bool(true); /* a tuple */
    if (jinja_accept_op(p, ")")) {
        *out = n;
        return ST_OK;
    }
    TRY(jinja_parse_expression(p, &n->children));
    if (jinja_accept_op(p, ")")) {
        *out = n->children;
        return ST_OK;
    }
    TRY(jinja_expect_op(p, ","));
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
static struct jv join_strings(struct jinja_parser *p) {
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

static enum status parse_atom(struct jinja_parser *p, struct jinja_node **out) {
    struct jinja_node *n = jinja_new_node(p, NODE_CONST);

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
    if (jinja_accept_op(p, "(")) return parse_parenthesis(p, out);
    if (jinja_accept_op(p, "{")) return parse_dict(p, out);
    if (!jinja_accept_op(p, "[")) return jinja_expected(p, "an expression");
    n->kind = NODE_LIST;
    return parse_items(p, "]", &n->children);
}

/* Arguments after an open parenthesis; a keyword argument is a node with a name around its
 * value. */
static enum status parse_arguments(struct jinja_parser *p, struct jinja_node **first) {
    struct jinja_node **last = first;

    while (!jinja_accept_op(p, ")")) {
        struct jinja_node *argument = jinja_new_node(p, NODE_CONST);

        if (last != first) {
            TRY(jinja_expect_op(p, ","));
            if (jinja_accept_op(p, ")")) break;
        }
        if (p->t->kind == TOK_NAME && p->t[1].kind == TOK_OP && str_eq(p->t[1].text, STR("="))) {
            argument->name = p->t->text;
            p->t += 2;
        }
        TRY(jinja_parse_expression(p, &argument->a));
        *last = argument;
        last = &argument->next;
    }
    return ST_OK;
}

static enum status parse_subscript(struct jinja_parser *p, struct jinja_node *of,
                                   struct jinja_node **out) {
    struct jinja_node *n = binary(p, NODE_ITEM, of, NULL), **parts[] = {&n->b, &n->c, &n->d};

    for (size_t i = 0; i < ARRAY_LEN(parts); i++) {
        if (!jinja_at_op(p, ":") && !jinja_at_op(p, "]")) TRY(jinja_parse_expression(p, parts[i]));
        if (!jinja_accept_op(p, ":")) break;
        n->kind = NODE_SLICE;
    }
    if (n->kind == NODE_ITEM && !n->b) return jinja_expected(p, "a subscript");
    *out = n;
    return jinja_expect_op(p, "]");
}

/* . [] () after an operand. */
static enum status parse_postfix(struct jinja_parser *p, struct jinja_node **out) {
    for (;;) {
        if (jinja_accept_op(p, ".")) {
            struct jinja_node *n = binary(p, NODE_ATTR, *out, NULL);

            if (p->t->kind == TOK_INT) { /* a.0 is a[0] */
                n->kind = NODE_ITEM;
                TRY(parse_atom(p, &n->b));
            } else {
                TRY(jinja_expect_name(p, &n->name));
            }
            *out = n;
        } else if (jinja_accept_op(p, "[")) {
            TRY(parse_subscript(p, *out, out));
        } else if (jinja_accept_op(p, "(")) {
            struct jinja_node *n = binary(p, NODE_CALL, *out, NULL);

            TRY(parse_arguments(p, &n->children));
            *out = n;
        } else {
            return ST_OK;
        }
    }
}

enum status jinja_parse_filter(struct jinja_parser *p, struct jinja_node *of,
                               struct jinja_node **out) {
    struct jinja_node *n = binary(p, NODE_FILTER, of, NULL);

    TRY(jinja_expect_name(p, &n->name));
    if (jinja_accept_op(p, "(")) TRY(parse_arguments(p, &n->children));
    *out = n;
    return ST_OK;
}

/* An argument of a test without parentheses may follow: `is divisibleby 3`. */
static bool begins_test_argument(const struct jinja_parser *p) {
    switch (p->t->kind) {
    case TOK_STRING:
    case TOK_INT:
    case TOK_FLOAT: return true;
    case TOK_NAME:
        return !is_word(p, "else") && !is_word(p, "or") && !is_word(p, "and") &&
               !is_word(p, "is") && !is_word(p, "if") && !is_word(p, "in") && !is_word(p, "not");
    default: return jinja_at_op(p, "[") || jinja_at_op(p, "{");
    }
}

static enum status parse_test(struct jinja_parser *p, struct jinja_node **out) {
    bool is_negated = jinja_accept_word(p, "not");
    struct jinja_node *n = binary(p, NODE_TEST, *out, NULL);

    TRY(jinja_expect_name(p, &n->name));
    if (str_eq(n->name, STR("none")) && jinja_is_content(n->a)) p->program->tests_none = true;
    if (jinja_accept_op(p, "(")) {
        TRY(parse_arguments(p, &n->children));
    } else if (begins_test_argument(p)) {
        n->children = jinja_new_node(p, NODE_CONST);
        TRY(parse_atom(p, &n->children->a));
        TRY(parse_postfix(p, &n->children->a));
    }
    *out = is_negated ? binary(p, NODE_NOT, n, NULL) : n;
    return ST_OK;
}

static enum status parse_filters(struct jinja_parser *p, struct jinja_node **out) {
    for (;;) {
        if (jinja_accept_op(p, "|")) {
            TRY(jinja_parse_filter(p, *out, out));
        } else if (jinja_accept_word(p, "is")) {
            TRY(parse_test(p, out));
        } else if (jinja_accept_op(p, "(")) { /* the result of a filter, called */
            struct jinja_node *n = binary(p, NODE_CALL, *out, NULL);

            TRY(parse_arguments(p, &n->children));
            *out = n;
        } else {
            return ST_OK;
        }
    }
}

static enum status parse_primary(struct jinja_parser *p, struct jinja_node **out) {
    TRY(parse_atom(p, out));
    return parse_postfix(p, out);
}

static enum status parse_sign(struct jinja_parser *p, struct jinja_node **out) {
    if (jinja_accept_op(p, "-")) {
        TRY(jinja_nest(p));
        *out = jinja_new_node(p, NODE_NEGATE);
        TRY(parse_sign(p, &(*out)->a));
        p->nesting--;
        return ST_OK;
    }
    jinja_accept_op(p, "+");
    return parse_primary(p, out);
}

static enum status parse_unary(struct jinja_parser *p, struct jinja_node **out) {
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

static bool accept_one_of(struct jinja_parser *p, const struct operator_name *ops, size_t n,
                          enum jinja_op *out) {
    for (size_t i = 0; i < n; i++) {
        if (!jinja_accept_op(p, ops[i].text)) continue;
        *out = ops[i].op;
        return true;
    }
    return false;
}

/* tighter (op tighter)*, grouping to the left. */
static enum status parse_left(struct jinja_parser *p, parse_fn tighter,
                              const struct operator_name *ops, size_t n, struct jinja_node **out) {
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

static enum status parse_pow(struct jinja_parser *p, struct jinja_node **out) {
    return parse_left(p, parse_unary, pow_ops, ARRAY_LEN(pow_ops), out);
}

static enum status parse_mul(struct jinja_parser *p, struct jinja_node **out) {
    return parse_left(p, parse_pow, mul_ops, ARRAY_LEN(mul_ops), out);
}

static enum status parse_concat(struct jinja_parser *p, struct jinja_node **out) {
    return parse_left(p, parse_mul, concat_ops, ARRAY_LEN(concat_ops), out);
}

static enum status parse_add(struct jinja_parser *p, struct jinja_node **out) {
    return parse_left(p, parse_concat, add_ops, ARRAY_LEN(add_ops), out);
}

static bool accept_comparison(struct jinja_parser *p, enum jinja_op *op) {
    if (accept_one_of(p, compare_ops, ARRAY_LEN(compare_ops), op)) return true;
    if (jinja_accept_word(p, "in")) {
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

static enum status parse_compare(struct jinja_parser *p, struct jinja_node **out) {
    struct jinja_node *chain, **last;
    enum jinja_op op;

    TRY(parse_add(p, out));
    if (!accept_comparison(p, &op)) return ST_OK;
    chain = binary(p, NODE_COMPARE, *out, NULL);
    last = &chain->children;
    do {
        *last = jinja_new_node(p, NODE_CONST);
        (*last)->op = op;
        TRY(parse_add(p, &(*last)->a));
        last = &(*last)->next;
    } while (accept_comparison(p, &op));
    *out = chain;
    return ST_OK;
}

static enum status parse_not(struct jinja_parser *p, struct jinja_node **out) {
    if (!jinja_accept_word(p, "not")) return parse_compare(p, out);
    TRY(jinja_nest(p));
    *out = jinja_new_node(p, NODE_NOT);
    TRY(parse_not(p, &(*out)->a));
    p->nesting--;
    return ST_OK;
}

static enum status parse_and(struct jinja_parser *p, struct jinja_node **out) {
    TRY(parse_not(p, out));
    while (jinja_accept_word(p, "and")) {
        *out = binary(p, NODE_AND, *out, NULL);
        TRY(parse_not(p, &(*out)->b));
    }
    return ST_OK;
}

static enum status parse_or(struct jinja_parser *p, struct jinja_node **out) {
    TRY(parse_and(p, out));
    while (jinja_accept_word(p, "or")) {
        *out = binary(p, NODE_OR, *out, NULL);
        TRY(parse_and(p, &(*out)->b));
    }
    return ST_OK;
}

enum status jinja_parse_expression(struct jinja_parser *p, struct jinja_node **out) {
    TRY(jinja_nest(p));
    TRY(parse_or(p, out));
    while (jinja_accept_word(p, "if")) {
        *out = binary(p, NODE_IF_ELSE, *out, NULL);
        TRY(parse_or(p, &(*out)->b));
        if (jinja_accept_word(p, "else")) TRY(jinja_parse_expression(p, &(*out)->c));
    }
    p->nesting--;
    return ST_OK;
}

enum status jinja_parse_tuple(struct jinja_parser *p, bool has_condition, struct jinja_node **out) {
    parse_fn item = has_condition ? jinja_parse_expression : parse_or;
    struct jinja_node *n, **last;

    TRY(item(p, out));
    if (!jinja_at_op(p, ",")) return ST_OK;
    n = jinja_new_node(p, NODE_LIST);
    n->value = jv_bool(true);
    n->children = *out;
    last = &(*out)->next;
    while (jinja_accept_op(p, ",")) {
        if (p->t->kind == TOK_BLOCK_END || p->t->kind == TOK_VAR_END) break;
        TRY(item(p, last));
        last = &(*last)->next;
    }
    *out = n;
    return ST_OK;
}
