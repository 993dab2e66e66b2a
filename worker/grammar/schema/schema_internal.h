/* worker/grammar/schema/schema_internal.h - what the files of the schema front end share.
 *
 * A *conjunction* is a set of nodes of the schema that hold together; a *shape* is one alternative
 * of what they say, with the keywords of each type merged. All of it lives in the compiler's
 * arena. */
#ifndef WORKER_GRAMMAR_SCHEMA_SCHEMA_INTERNAL_H
#define WORKER_GRAMMAR_SCHEMA_SCHEMA_INTERNAL_H

#include "common/base/map.h"
#include "common/base/mem.h"
#include "common/text/json.h"
#include "worker/grammar/schema/decimal.h"
#include "worker/grammar/schema/schema.h"

enum { /* types of JSON, as a set */
       TYPE_NULL = 1,
       TYPE_BOOL = 2,
       TYPE_NUMBER = 4,
       TYPE_STRING = 8,
       TYPE_ARRAY = 16,
       TYPE_OBJECT = 32,
       TYPE_ALL = 63,
};

#define SHAPES_MAX 4096u /* alternatives of one node, nested ones multiplied */
#define NESTED_MAX 12u   /* schemas looked into while another is: names of properties, a oneOf's */
#define HOPS_MAX   64u   /* $ref, allOf, anyOf on the way from a node to a type */

struct conjunction {
    const struct json **node; /* (n) */
    uint32_t n, cap;
};

struct property {
    struct str name;
    struct conjunction value;
    bool is_required;
};

struct pattern_property {
    struct str source;
    expr_id name; /* as between the quotes */
    struct conjunction value;
};

struct shape {
    uint8_t types, bools; /* bools: bit 0 false, bit 1 true */
    bool is_integer;
    struct bound low, high;
    uint64_t multiple;     /* 0: of nothing */
    uint32_t max_fraction; /* digits; UINT32_MAX: any number */
    uint32_t min_length, max_length;
    expr_id content; /* of strings, as between the quotes: patterns and formats; EXPR_ANY: all */
    uint32_t min_items, max_items;
    struct conjunction *prefix; /* (n_prefix) */
    uint32_t n_prefix, cap_prefix;
    struct conjunction rest;   /* other items */
    struct property *property; /* (n_properties) in order */
    uint32_t n_properties, cap_properties;
    struct pattern_property *pattern;
    uint32_t n_patterns, cap_patterns;
    struct conjunction extra; /* other properties; a false among them: there are none */
    expr_id names;            /* of properties, as between the quotes; EXPR_ANY: all */
    uint32_t min_properties, max_properties;
    bool has_object;           /* a node with keywords of objects has been merged; */
    bool has_extra;            /* one that restricts or allows undeclared properties */
    const struct json **value; /* (n_values) it is one of them; NULL: any */
    uint32_t n_values;
};

struct shapes {
    struct shape **shape;
    uint32_t n, cap;
};

struct schema {
    struct rules *rules;
    struct exprs *exprs;
    const struct schema_options *options;
    struct arena arena;
    const struct json *root;
    struct strmap rule_of;                 /* conjunction -> its rule */
    struct named_rule *named, **named_end; /* rules that are named and not yet written */
    uint32_t n_nested;                     /* calls of schema_shapes inside each other */
    bool has_nested_id;
    expr_id character, colon, comma; /* of strings; with the white space around */
    struct error *err;
};

/* --- schema.c --------------------------------------------------------------------------------- */

/* ST_INVALID: "#/properties/a: ", then the message. */
enum status schema_refuse(struct schema *s, const struct json *at, const char *fmt, ...)
    PRINTF_LIKE(3, 4);

/* The rule of a conjunction, which is written later if it is new. */
symbol schema_rule(struct schema *s, const struct conjunction *c);

MUST_USE enum status schema_resolve(struct schema *s, const struct json *at, struct str ref,
                                    const struct json **out);

/* Appends to a growing array in the arena; `cap` of a copied array is its n, so that the copy grows
 * elsewhere. */
void *schema_grow(struct schema *s, void *array, uint32_t n, uint32_t *cap, size_t size);
void conjunction_add(struct schema *s, struct conjunction *c, const struct json *node);
void conjunction_add_all(struct schema *s, struct conjunction *c, const struct conjunction *other);
bool conjunction_has_false(const struct conjunction *c);

/* --- schema_shape.c --------------------------------------------------------------------------- */

/* The alternatives of a conjunction. */
MUST_USE enum status schema_shapes(struct schema *s, const struct conjunction *c,
                                   struct shapes *out);

/* --- schema_keywords.c ------------------------------------------------------------------------ */

/* Merges the keywords of `node` that are about types into the shape. */
MUST_USE enum status schema_keywords(struct schema *s, struct shape *shape,
                                     const struct json *node);
MUST_USE enum status schema_object_keywords(struct schema *s, struct shape *shape,
                                            const struct json *node);

/* --- schema_disjoint.c ------------------------------------------------------------------------ */

/* Is there surely no value of both? */
bool schema_are_disjoint(struct schema *s, const struct shape *a, const struct shape *b,
                         uint32_t depth);

/* --- schema_scalar.c -------------------------------------------------------------------------- */

/* A string with its quotes, of that content; what is scalar of a shape; its listed values. */
expr_id schema_quoted(struct schema *s, expr_id content);
expr_id schema_string_content(struct schema *s, const struct shape *shape);
expr_id schema_number(struct schema *s, const struct shape *shape);
expr_id schema_scalars(struct schema *s, const struct shape *shape);
MUST_USE enum status schema_values(struct schema *s, const struct shape *shape, expr_id *out);

/* --- schema_format.c -------------------------------------------------------------------------- */

/* The content of strings of a format; EXPR_ANY for one that is unknown. */
expr_id schema_format(struct schema *s, struct str name);

/* --- schema_write.c --------------------------------------------------------------------------- */

/* The productions of one shape. */
MUST_USE enum status schema_write(struct schema *s, symbol rule, const struct shape *shape,
                                  const struct json *at);

/* --- schema_write.c --------------------------------------------------------------------------- */

/* Refuses more than SCHEMA_MAX_OPTIONAL properties that a place may go on with. */
MUST_USE enum status schema_check_optional(struct schema *s, const struct shape *shape,
                                           const struct json *at);

/* --- schema_raw.c ----------------------------------------------------------------------------- */

/* The strings of a shape, as they are, that are also of `raw`. */
expr_id schema_raw_strings(struct schema *s, const struct shape *shape, expr_id raw);
/* What else than strings a shape has: true if there may be something. */
bool schema_without_strings(struct schema *s, const struct shape *shape, struct shape *out);

/* The productions of a conjunction as parameters (struct schema_raw). */
MUST_USE enum status schema_write_raw(struct schema *s, symbol rule, const struct conjunction *c);

#endif
