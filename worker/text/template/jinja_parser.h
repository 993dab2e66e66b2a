/* worker/text/template/jinja_parser.h - what the two halves of the parser share: expressions,
 * statements. */
#ifndef WORKER_TEXT_TEMPLATE_JINJA_PARSER_H
#define WORKER_TEXT_TEMPLATE_JINJA_PARSER_H

#include "worker/text/template/jinja_internal.h"

struct jinja_parser {
    const struct jinja_token *t; /* the token to look at */
    struct jinja_program *program;
    uint32_t nesting, loops;
    struct error *err;
};

/* ST_INVALID, with the line, and what was found instead. */
MUST_USE enum status jinja_expected(struct jinja_parser *p, const char *what);

bool jinja_at_op(const struct jinja_parser *p, const char *op);
bool jinja_accept_op(struct jinja_parser *p, const char *op);
bool jinja_accept_word(struct jinja_parser *p, const char *word);
MUST_USE enum status jinja_expect_op(struct jinja_parser *p, const char *op);
MUST_USE enum status jinja_expect_kind(struct jinja_parser *p, enum jinja_token_kind kind,
                                       const char *what);
MUST_USE enum status jinja_expect_name(struct jinja_parser *p, struct str *name);

struct jinja_node *jinja_new_node(struct jinja_parser *p, enum jinja_kind kind);
MUST_USE enum status jinja_nest(
    struct jinja_parser *p); /* one level deeper; p->nesting-- ends it */

/* An expression; one without a conditional; either, or several with commas between as one tuple. */
MUST_USE enum status jinja_parse_expression(struct jinja_parser *p, struct jinja_node **out);
MUST_USE enum status jinja_parse_tuple(struct jinja_parser *p, bool has_condition,
                                       struct jinja_node **out);

/* The name and arguments of a filter of `of`, after its bar. */
MUST_USE enum status jinja_parse_filter(struct jinja_parser *p, struct jinja_node *of,
                                        struct jinja_node **out);

/* Is it message.content, message['content'] or a variable of that name, filtered or not? */
bool jinja_is_content(const struct jinja_node *n);

#endif
