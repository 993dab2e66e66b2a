/* worker/grammar/schema/schema.h - JSON Schema (2020-12), as rules over lexemes.
 *
 * The answer is one JSON value that the schema accepts, in one spelling: no white space around it,
 * properties in the order of the schema, then undeclared ones; each character of a string and each
 * number in one way. What is enforced is exact; what cannot be enforced is refused with its place
 * (`#/properties/a`) and keyword, never ignored. Unknown keywords and formats are annotations.
 *
 *      node of the schema ──▶ shapes: alternatives, each a conjunction, type by type
 *                             (schema_shape: $ref, allOf, anyOf, oneOf, siblings: all intersected)
 *                  shape  ──▶ a lexeme for what is scalar, rules for objects and arrays
 *
 * A rule stands for a set of nodes that hold together, and is written once; so recursion is a rule
 * that mentions itself.
 *
 * Enforced: type, enum, const, minimum, maximum, exclusive*, multipleOf (integers up to 10,000, and
 * powers of ten below 1), minLength, maxLength, pattern, format (date-time, time, date, duration,
 * email, hostname, ipv4, ipv6, uuid, uri), properties, required, additionalProperties,
 * patternProperties (that exclude each other), propertyNames, min/maxProperties, prefixItems,
 * items, min/maxItems, $ref and $anchor (local), $defs, allOf, anyOf, oneOf (whose alternatives
 * exclude each other), unevaluated* false beside no applicator. Refused: not, if, contains,
 * uniqueItems, dependent*, $dynamicRef, remote references, and any beside an $id inside.
 *
 * LIMITS. 64 levels, 10,000 values of enums, 2,000 properties, of an object 500 optional ones
 * without a required one between them; numbers with bounds have no exponent, bounds at most 40
 * digits on each side of the point; minLength beside a pattern or a format at most about 10,000.
 * Two undeclared properties may have one name. */
#ifndef WORKER_GRAMMAR_SCHEMA_SCHEMA_H
#define WORKER_GRAMMAR_SCHEMA_SCHEMA_H

#include "common/base/buf.h"
#include "common/base/status.h"
#include "worker/grammar/core/rules.h"

struct json;

#define SCHEMA_MAX_DEPTH      64u
#define SCHEMA_MAX_VALUES     10000u
#define SCHEMA_MAX_PROPERTIES 2000u
#define SCHEMA_MAX_OPTIONAL   500u /* one behind the other: each is looked at for one mask */

#define SCHEMA_MAX_JSON_DEPTH                                                                      \
    (2 * SCHEMA_MAX_DEPTH + 2) /* an object and its `properties`: two each */

/* An object as parameters one behind the other, strings as they are: how some models were trained
 * to write arguments (schema_raw.c).
 *
 *      <parameter=path>            key, name, text
 *      /etc/hosts                  raw
 *      </parameter>                end
 *      <parameter=lines>           key, name, json
 *      [1, 20]                     JSON
 *      </parameter>                end
 *
 *      path="/etc/hosts", lines=[1, 20]        with strings as JSON, and a text between two */
struct schema_raw {
    symbol key;        /* before a name */
    symbol text, json; /* between a name and a value that is raw text, or JSON */
    symbol end;        /* behind a value */
    symbol between;    /* between two parameters */
    expr_id raw;       /* raw text: what does not hold the end. EXPR_NONE: strings are JSON */
    bool has_python;   /* None, True and False, where the type is named and is no string */
};

/* JSON whose names are bare and whose strings stand, as they are, between marks:
 * {path:<|"|>/etc/hosts<|"|>,lines:[1,20]}. Names that are not declared are identifiers; there is
 * no white space; null is None, as templates that print so print it. */
struct schema_marks {
    symbol mark;
    expr_id text; /* what does not hold the mark */
};

struct schema_options {
    expr_id gap;    /* what may stand before a comma, a colon, a bracket; between brackets */
    expr_id after;  /* and behind a comma or a colon */
    bool is_closed; /* additionalProperties is false where a schema is silent */
    const struct schema_raw *raw;     /* the whole is an object written so; NULL: JSON */
    const struct schema_marks *marks; /* JSON is written so; NULL: as JSON */
    const struct json *document;      /* whose pointers errors have; NULL: the schema itself */
};

/* Writes the rules; *start is the symbol of the whole. ST_INVALID has the place and what was
 * wrong. The schema is not needed afterwards. */
MUST_USE enum status schema_compile(symbol *start, struct rules *rules, const struct json *schema,
                                    const struct schema_options *options, struct error *err);

#endif
