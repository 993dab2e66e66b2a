/* worker/text/template/jinja_internal.h - the tree, the run, and what the files of the interpreter
 * share. */
#ifndef WORKER_TEXT_TEMPLATE_JINJA_INTERNAL_H
#define WORKER_TEXT_TEMPLATE_JINJA_INTERNAL_H

#include "common/base/mem.h"
#include "worker/text/template/jinja.h"

#define TRY(expr)                                                                                  \
    do {                                                                                           \
        enum status try_st_ = (expr);                                                              \
        if (try_st_ != ST_OK) return try_st_;                                                      \
    } while (0)

/* Nesting of the source, and of evaluation (a macro may call itself). A level of evaluation takes
 * under 1 KiB of stack; under the address sanitizer several. */
#define JINJA_MAX_NESTING 100
#define JINJA_MAX_DEPTH   400

/* --- tokens ------------------------------------------------------------------------------------*/
enum jinja_token_kind {
    TOK_END,
    TOK_TEXT,
    TOK_VAR_BEGIN,   /* {{ */
    TOK_VAR_END,     /* }} */
    TOK_BLOCK_BEGIN, /* {% */
    TOK_BLOCK_END,   /* %} */
    TOK_NAME,
    TOK_INT,
    TOK_FLOAT,
    TOK_STRING, /* text is decoded */
    TOK_OP,     /* text is the operator */
};

struct jinja_token {
    enum jinja_token_kind kind;
    uint32_t line;
    struct str text;
    int64_t integer;
    double number;
};

/* The tokens of `source`, ending with TOK_END, in memory of `arena`. */
MUST_USE enum status jinja_lex(struct str source, struct arena *arena, struct jinja_token **out,
                               struct error *err);

/* --- tree --------------------------------------------------------------------------------------*/
enum jinja_kind {
    /* expressions */
    NODE_CONST,
    NODE_NAME,
    NODE_LIST,   /* children */
    NODE_DICT,   /* children: key, value, key, value ... */
    NODE_ATTR,   /* a . name */
    NODE_ITEM,   /* a [ b ] */
    NODE_SLICE,  /* a [ b : c : d ], each of b c d may be NULL */
    NODE_CALL,   /* a ( children ); a child with a name is a keyword argument */
    NODE_FILTER, /* a | name ( children ) */
    NODE_TEST,   /* a is name ( children ) */
    NODE_NOT,
    NODE_NEGATE,
    NODE_AND,
    NODE_OR,
    NODE_BINARY,  /* a op b */
    NODE_COMPARE, /* a, then children: each an op and its right side */
    NODE_IF_ELSE, /* a if b else c */
    /* statements */
    NODE_TEXT,      /* value */
    NODE_PRINT,     /* a */
    NODE_IF,        /* if a: body, else: other (an elif is an NODE_IF alone in other) */
    NODE_FOR,       /* for target (children) in a if b: body, else: other */
    NODE_SET,       /* children = a; a NODE_ATTR child assigns to a namespace */
    NODE_SET_BLOCK, /* children = the text of body, through the filter chain a if there is one */
    NODE_MACRO,     /* name (children: names, default in a): body */
    NODE_BREAK,
    NODE_CONTINUE,
};

enum jinja_op {
    OP_ADD,
    OP_SUB,
    OP_MUL,
    OP_DIV,
    OP_FLOOR_DIV,
    OP_MOD,
    OP_POW,
    OP_CONCAT,
    OP_EQ,
    OP_NE,
    OP_LT,
    OP_LE,
    OP_GT,
    OP_GE,
    OP_IN,
    OP_NOT_IN,
};

struct jinja_node {
    enum jinja_kind kind;
    enum jinja_op op;
    uint32_t line;
    struct str name;
    struct jv value;
    struct jinja_node *a, *b, *c, *d;
    struct jinja_node *children, *body, *other; /* first of a chain */
    struct jinja_node *next;
};

struct jinja_program {
    struct arena arena;
    struct jinja_node *body;
    bool reads_parts, tests_none;
};

/* --- values ------------------------------------------------------------------------------------*/
struct jv_list {
    struct jv *items;
    size_t n, cap;
    bool is_tuple;
};

struct jv_entry {
    struct jv key, value;
};

struct jv_dict {
    struct jv_entry *entries;
    size_t n, cap;
};

struct jinja_scope;

struct jinja_macro {
    const struct jinja_node *node;
    struct jinja_scope *scope; /* where it was defined */
};

struct jinja_loop {
    const struct jv_list *items;
    size_t i;
};

/* Variables of one block; names are looked up from the innermost outwards. */
struct jinja_scope {
    struct jinja_scope *outer;
    struct jv_dict vars;
};

struct jinja_run {
    const struct jinja_program *program;
    struct arena arena;
    struct jinja_limits limits;
    uint64_t steps;
    size_t memory_bytes, output_bytes;
    uint32_t depth;
    uint32_t line; /* being evaluated */
    int64_t now_s;
    struct jinja_scope globals, *scope;
    struct buf *out; /* where text goes: the result, or a block being captured */
    struct error *err;
};

/* Arguments of a call, a filter or a test. */
struct jinja_args {
    const struct jv *positional;
    size_t n;
    const struct jv_entry *named;
    size_t n_named;
};

/* jinja_eval.c */
MUST_USE enum status jinja_eval(struct jinja_run *r, const struct jinja_node *n, struct jv *out);
MUST_USE enum status jinja_enter(struct jinja_run *r, const struct jinja_node *n); /* depth + 1 */
MUST_USE enum status jinja_assign(struct jinja_run *r, struct str name, struct jv v);
MUST_USE enum status jinja_push_scope(struct jinja_run *r, struct jinja_scope *outer);
MUST_USE enum status jinja_fail(struct jinja_run *r, const char *fmt, ...) PRINTF_LIKE(2, 3);
MUST_USE enum status jinja_charge(struct jinja_run *r, uint64_t steps); /* ST_TOO_LARGE */
MUST_USE enum status jinja_call(struct jinja_run *r, struct jv f, const struct jinja_args *args,
                                struct jv *out);

/* jinja_operator.c */
MUST_USE enum status jinja_attribute(struct jinja_run *r, struct jv v, struct str name,
                                     struct jv *out);
MUST_USE enum status jinja_subscript(struct jinja_run *r, struct jv v, struct jv key,
                                     struct jv *out);
MUST_USE enum status jinja_slice(struct jinja_run *r, struct jv v, const struct jv bounds[3],
                                 struct jv *out); /* from, to, step: none where absent */
MUST_USE enum status jinja_binary(struct jinja_run *r, enum jinja_op op, struct jv a, struct jv b,
                                  struct jv *out); /* except comparisons */
MUST_USE enum status jinja_compare(struct jinja_run *r, enum jinja_op op, struct jv a, struct jv b,
                                   bool *out);

/* jinja_run.c: runs a body, and gives what it wrote as a string. */
MUST_USE enum status jinja_capture(struct jinja_run *r, const struct jinja_node *body,
                                   struct jv *out);

/* jinja_value.c */
MUST_USE enum status jinja_alloc(struct jinja_run *r, size_t n, void **out);         /* zeroed */
MUST_USE enum status jinja_take(struct jinja_run *r, struct buf *b, struct jv *out); /* ends b */
bool jv_is_true(struct jv v);
bool jv_is_number(struct jv v); /* bool, int or float */
double jv_to_number(struct jv v);
bool jv_is_string(struct jv v, const char *s);
const char *jv_type_name(struct jv v);
MUST_USE enum status jv_equal(struct jinja_run *r, struct jv a, struct jv b, bool *out);
MUST_USE enum status jv_compare(struct jinja_run *r, struct jv a, struct jv b, int *out);
MUST_USE enum status jv_contains(struct jinja_run *r, struct jv container, struct jv v, bool *out);
MUST_USE enum status jv_find(struct jinja_run *r, struct jv dict, struct jv key,
                             struct jv_entry **out); /* NULL when absent */

/* One step down into nested values: depth + 1. */
MUST_USE enum status jv_descend(struct jinja_run *r);
int jinja_compare_text(struct str a, struct str b); /* by bytes */

/* What a for loop visits: items, keys, characters. */
MUST_USE enum status jv_iterate(struct jinja_run *r, struct jv v, struct jv *list);
size_t jv_length(struct jv v); /* characters, items, entries; 0 for others */
bool jv_has_length(struct jv v);
struct str jinja_slice_text(struct str s, size_t from, size_t n); /* in characters */
size_t jinja_characters(struct str s);

/* jinja_repr.c. Python's str(): what {{ }} prints. The result may be `v`'s own string. */
MUST_USE enum status jv_to_string(struct jinja_run *r, struct jv v, struct str *out);

struct jinja_json {
    int64_t indent; /* < 0: on one line */
    struct str between_items, after_keys;
    bool sorts_keys, is_ascii;
};

MUST_USE enum status jv_to_json(struct jinja_run *r, struct jv v, const struct jinja_json *how,
                                struct jv *out);

/* jinja_filter.c, jinja_filter_list.c, jinja_builtin.c, jinja_method.c, jinja_text.c */
MUST_USE enum status jinja_filter(struct jinja_run *r, struct str name, struct jv v,
                                  const struct jinja_args *args, struct jv *out);
MUST_USE enum status jinja_test(struct jinja_run *r, struct str name, struct jv v,
                                const struct jinja_args *args, bool *out);
MUST_USE enum status jinja_method(struct jinja_run *r, struct jv self, struct str name,
                                  const struct jinja_args *args, struct jv *out);
bool jinja_is_global(struct str name);
MUST_USE enum status jinja_call_global(struct jinja_run *r, struct str name,
                                       const struct jinja_args *args, struct jv *out);

/* The i-th argument, or the one of that name; undefined when neither is given. */
struct jv jinja_arg(const struct jinja_args *args, size_t i, const char *name);

bool jinja_is_space(uint32_t cp); /* as Python's str.isspace */
enum jinja_side { SIDE_BOTH, SIDE_LEFT, SIDE_RIGHT };
struct str jinja_strip(struct str s, struct jv chars, enum jinja_side side);
/* What stripping many characters costs, beyond what a call on `s` does. */
MUST_USE enum status jinja_charge_strip(struct jinja_run *r, struct str s, struct jv chars);
MUST_USE enum status jinja_replace(struct jinja_run *r, struct str s, struct str from,
                                   struct str to, int64_t max, struct jv *out);
MUST_USE enum status jinja_join(struct jinja_run *r, struct jv list, struct str sep,
                                struct jv *out);
/* TITLE: the method, every letter after none; WORDS: the filter, what follows blanks and
 * brackets. */
enum jinja_case { CASE_UPPER, CASE_LOWER, CASE_TITLE, CASE_WORDS, CASE_CAPITALIZE };
MUST_USE enum status jinja_change_case(struct jinja_run *r, struct str s, enum jinja_case to,
                                       struct jv *out);
MUST_USE enum status jinja_items(struct jinja_run *r, struct jv dict, struct jv *out);

#endif
