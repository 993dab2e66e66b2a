/* worker/text/template/jinja_parse.c - tokens to a tree: the shared steps, and statements.
 *
 * Bodies nest by recursion, which is limited; elif chains are loops. Expressions are
 * jinja_parse_expression.c. */
#include <stdio.h>

#include "worker/text/template/jinja_parser.h"

static enum status parse_body(struct jinja_parser *p, const char *const *ends,
                              struct jinja_node **out);

/* --- tokens ------------------------------------------------------------------------------------*/
enum status jinja_expected(struct jinja_parser *p, const char *expected) {
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

bool jinja_at_op(const struct jinja_parser *p, const char *op) {
    return p->t->kind == TOK_OP && str_eq(p->t->text, str_of(op));
}

static bool is_word(const struct jinja_parser *p, const char *word) {
    return p->t->kind == TOK_NAME && str_eq(p->t->text, str_of(word));
}

bool jinja_accept_op(struct jinja_parser *p, const char *op) {
    bool found = jinja_at_op(p, op);

    p->t += found;
    return found;
}

bool jinja_accept_word(struct jinja_parser *p, const char *word) {
    bool found = is_word(p, word);

    p->t += found;
    return found;
}

enum status jinja_expect_op(struct jinja_parser *p, const char *op) {
    return jinja_accept_op(p, op) ? ST_OK : jinja_expected(p, op);
}

enum status jinja_expect_kind(struct jinja_parser *p, enum jinja_token_kind kind,
                              const char *what) {
    if (p->t->kind != kind) return jinja_expected(p, what);
    p->t++;
    return ST_OK;
}

enum status jinja_expect_name(struct jinja_parser *p, struct str *name) {
    *name = p->t->text;
    return jinja_expect_kind(p, TOK_NAME, "a name");
}

struct jinja_node *jinja_new_node(struct jinja_parser *p, enum jinja_kind kind) {
    struct jinja_node *n = arena_alloc(&p->program->arena, sizeof(*n));

    n->kind = kind;
    n->line = p->t->line;
    return n;
}

enum status jinja_nest(struct jinja_parser *p) {
    if (++p->nesting <= JINJA_MAX_NESTING) return ST_OK;
    return error_set(p->err, ST_INVALID, "chat template, line %u: nested more than %d deep",
                     p->t->line, JINJA_MAX_NESTING);
}

/* --- statements --------------------------------------------------------------------------------*/
static enum status end_block(struct jinja_parser *p) {
    return jinja_expect_kind(p, TOK_BLOCK_END, "'%}'");
}

/* True when the next tag is {% word; it is not consumed. */
static bool at_tag(const struct jinja_parser *p, const char *word) {
    return p->t->kind == TOK_BLOCK_BEGIN && p->t[1].kind == TOK_NAME &&
           str_eq(p->t[1].text, str_of(word));
}

static enum status close_tag(struct jinja_parser *p, const char *word) {
    if (!at_tag(p, word)) return jinja_expected(p, word);
    p->t += 2;
    return end_block(p);
}

/* a, (b, c) or ns.field: what a for and a set assign to. */
static enum status parse_targets(struct jinja_parser *p, struct jinja_node **first) {
    struct jinja_node **last = first;
    bool has_parenthesis = jinja_accept_op(p, "(");

    do {
        struct jinja_node *n = jinja_new_node(p, NODE_NAME);

        if (last != first && p->t->kind != TOK_NAME) break;
        TRY(jinja_expect_name(p, &n->name));
        if (jinja_accept_op(p, ".")) {
            struct jinja_node *attr = jinja_new_node(p, NODE_ATTR);

            attr->a = n;
            TRY(jinja_expect_name(p, &attr->name));
            n = attr;
        }
        *last = n;
        last = &n->next;
    } while (jinja_accept_op(p, ","));
    return has_parenthesis ? jinja_expect_op(p, ")") : ST_OK;
}

bool jinja_is_content(const struct jinja_node *n) {
    while (n && n->kind == NODE_FILTER)
        n = n->a;
    if (!n) return false;
    if (n->kind == NODE_ATTR || n->kind == NODE_NAME) return str_eq(n->name, STR("content"));
    return n->kind == NODE_ITEM && n->b->kind == NODE_CONST && jv_is_string(n->b->value, "content");
}

static enum status parse_for(struct jinja_parser *p, struct jinja_node *n) {
    static const char *const ends[] = {"else", "endfor", NULL};
    static const char *const only_end[] = {"endfor", NULL};

    n->kind = NODE_FOR;
    TRY(parse_targets(p, &n->children));
    if (!jinja_accept_word(p, "in")) return jinja_expected(p, "'in'");
    TRY(jinja_parse_tuple(p, false, &n->a));
    if (jinja_is_content(n->a)) p->program->reads_parts = true;
    if (jinja_accept_word(p, "if")) TRY(jinja_parse_expression(p, &n->b));
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

static enum status parse_if(struct jinja_parser *p, struct jinja_node *n) {
    static const char *const ends[] = {"elif", "else", "endif", NULL};
    static const char *const only_end[] = {"endif", NULL};

    n->kind = NODE_IF;
    for (;;) {
        TRY(jinja_parse_expression(p, &n->a));
        TRY(end_block(p));
        TRY(parse_body(p, ends, &n->body));
        if (!at_tag(p, "elif")) break;
        p->t += 2;
        n->other = jinja_new_node(p, NODE_IF);
        n = n->other;
    }
    if (at_tag(p, "else")) {
        p->t += 2;
        TRY(end_block(p));
        TRY(parse_body(p, only_end, &n->other));
    }
    return close_tag(p, "endif");
}

static enum status parse_set(struct jinja_parser *p, struct jinja_node *n) {
    static const char *const ends[] = {"endset", NULL};

    n->kind = NODE_SET;
    TRY(parse_targets(p, &n->children));
    if (jinja_accept_op(p, "=")) {
        TRY(jinja_parse_tuple(p, true, &n->a));
        return end_block(p);
    }
    n->kind = NODE_SET_BLOCK;
    if (n->children->next) return jinja_expected(p, "'='");
    if (jinja_at_op(p, "|"))
        n->a = jinja_new_node(p, NODE_NAME); /* the text, a variable without a name */
    while (jinja_accept_op(p, "|"))
        TRY(jinja_parse_filter(p, n->a, &n->a));
    TRY(end_block(p));
    TRY(parse_body(p, ends, &n->body));
    return close_tag(p, "endset");
}

static enum status parse_macro(struct jinja_parser *p, struct jinja_node *n) {
    static const char *const ends[] = {"endmacro", NULL};
    struct jinja_node **last = &n->children;
    uint32_t loops = p->loops;

    n->kind = NODE_MACRO;
    TRY(jinja_expect_name(p, &n->name));
    TRY(jinja_expect_op(p, "("));
    while (!jinja_accept_op(p, ")")) {
        struct jinja_node *parameter = jinja_new_node(p, NODE_NAME);

        if (last != &n->children) TRY(jinja_expect_op(p, ","));
        TRY(jinja_expect_name(p, &parameter->name));
        if (jinja_accept_op(p, "=")) TRY(jinja_parse_expression(p, &parameter->a));
        *last = parameter;
        last = &parameter->next;
    }
    TRY(end_block(p));
    p->loops = 0;
    TRY(parse_body(p, ends, &n->body));
    p->loops = loops;
    if (!at_tag(p, "endmacro")) return jinja_expected(p, "endmacro");
    p->t += 2;
    if (p->t->kind == TOK_NAME) p->t++; /* its name may be repeated */
    return end_block(p);
}

/* {% generation %} marks the model's output for training; here it is its body. */
static enum status parse_generation(struct jinja_parser *p, struct jinja_node *n) {
    static const char *const ends[] = {"endgeneration", NULL};

    n->kind = NODE_IF;
    n->a = jinja_new_node(p, NODE_CONST);
    n->a->value = jv_bool(true);
    TRY(end_block(p));
    TRY(parse_body(p, ends, &n->body));
    return close_tag(p, "endgeneration");
}

static enum status parse_statement(struct jinja_parser *p, struct jinja_node *n) {
    if (jinja_accept_word(p, "for")) return parse_for(p, n);
    if (jinja_accept_word(p, "if")) return parse_if(p, n);
    if (jinja_accept_word(p, "set")) return parse_set(p, n);
    if (jinja_accept_word(p, "macro")) return parse_macro(p, n);
    if (jinja_accept_word(p, "generation")) return parse_generation(p, n);
    if (p->loops && (is_word(p, "break") || is_word(p, "continue"))) {
        n->kind = is_word(p, "break") ? NODE_BREAK : NODE_CONTINUE;
        p->t++;
        return end_block(p);
    }
    return jinja_expected(p, "for, if, set, macro, generation, or, in a loop, break or continue");
}

static bool at_one_of(const struct jinja_parser *p, const char *const *ends) {
    for (; *ends; ends++) {
        if (at_tag(p, *ends)) return true;
    }
    return false;
}

/* What comes before one of the tags `ends` (not consumed), or before the end of the template. */
static enum status parse_body(struct jinja_parser *p, const char *const *ends,
                              struct jinja_node **out) {
    struct jinja_node **last = out;

    TRY(jinja_nest(p));
    while (p->t->kind != TOK_END && !at_one_of(p, ends)) {
        struct jinja_node *n = jinja_new_node(p, NODE_TEXT);

        if (p->t->kind == TOK_TEXT) {
            n->value = jv_string(p->t++->text);
        } else if (p->t->kind == TOK_VAR_BEGIN) {
            p->t++;
            n->kind = NODE_PRINT;
            TRY(jinja_parse_tuple(p, true, &n->a));
            TRY(jinja_expect_kind(p, TOK_VAR_END, "'}}'"));
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
    struct jinja_parser p = {.program = program, .err = err};
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

bool jinja_tests_none(const struct jinja_program *p) {
    return p->tests_none;
}
