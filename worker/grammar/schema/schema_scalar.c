/* worker/grammar/schema/schema_scalar.c - values that are one lexeme: scalars, and listed values.
 * */
#include "worker/grammar/core/char_set.h"
#include "worker/grammar/schema/schema_internal.h"

expr_id schema_quoted(struct schema *s, expr_id content) {
    expr_id quote = expr_byte(s->exprs, '"');

    return expr_concat(s->exprs, quote, expr_concat(s->exprs, content, quote));
}

expr_id schema_string_content(struct schema *s, const struct shape *shape) {
    bool has_length = shape->min_length > 0 || shape->max_length != EXPR_FOREVER;

    if (!has_length && shape->content != EXPR_ANY) return shape->content;
    return expr_and(s->exprs,
                    expr_repeat(s->exprs, s->character, shape->min_length, shape->max_length),
                    shape->content);
}

/* Digits that are a multiple, behind a sign. */
static expr_id multiple(struct schema *s, uint32_t of) {
    struct exprs *x = s->exprs;

    return expr_concat(x, expr_optional(x, expr_byte(x, '-')), expr_multiple(x, of));
}

/* At most so many digits behind the point, and no exponent. */
static expr_id short_fraction(struct schema *s, uint32_t n_digits) {
    struct exprs *x = s->exprs;
    struct byte_set digits = {{0}};
    expr_id e, fraction;

    byte_set_add_range(&digits, '0', '9');
    e = expr_class(x, digits);
    fraction = expr_concat(x, expr_byte(x, '.'), expr_repeat(x, e, 1, MAX(n_digits, 1u)));
    if (n_digits == 0) fraction = EXPR_EMPTY;
    e = expr_concat(x, expr_repeat(x, e, 1, EXPR_FOREVER), expr_optional(x, fraction));
    return expr_concat(x, expr_optional(x, expr_byte(x, '-')), e);
}

expr_id schema_number(struct schema *s, const struct shape *shape) {
    bool is_integer = shape->is_integer || shape->multiple > 0;
    expr_id e = shape->low.is_set || shape->high.is_set
                    ? decimal_between(s->exprs, &shape->low, &shape->high, is_integer)
                    : decimal_any(s->exprs, is_integer);

    if (shape->multiple > 1) e = expr_and(s->exprs, e, multiple(s, (uint32_t)shape->multiple));
    if (shape->max_fraction != UINT32_MAX)
        e = expr_and(s->exprs, e, short_fraction(s, shape->max_fraction));
    return e;
}

expr_id schema_scalars(struct schema *s, const struct shape *shape) {
    struct exprs *x = s->exprs;
    expr_id e = EXPR_NONE;

    if (shape->types & TYPE_NULL) e = expr_literal(x, STR("null"));
    if ((shape->types & TYPE_BOOL) && (shape->bools & 1))
        e = expr_alt(x, e, expr_literal(x, STR("false")));
    if ((shape->types & TYPE_BOOL) && (shape->bools & 2))
        e = expr_alt(x, e, expr_literal(x, STR("true")));
    if (shape->types & TYPE_NUMBER) e = expr_alt(x, e, schema_number(s, shape));
    if (shape->types & TYPE_STRING)
        e = expr_alt(x, e, schema_quoted(s, schema_string_content(s, shape)));
    return e;
}

/* --- listed values ---------------------------------------------------------------------------- */

static void spell_scalar(const struct json *v, struct buf *out) {
    struct json_writer w;
    struct str text;

    if (json_to_str(v, &text) == ST_OK) {
        buf_append_char(out, '"');
        char_spell_json(text, out);
        buf_append_char(out, '"');
        return;
    }
    json_writer_init(&w, out);
    json_put_tree(&w, v);
}

static expr_id spell(struct schema *s, const struct json *v);

/* Elements or members between brackets, with white space where JSON has it; joined from the right,
 * as expressions lean. */
static expr_id spell_list(struct schema *s, const struct json *v, char open, char shut) {
    struct exprs *x = s->exprs;
    expr_id *part = arena_alloc(&s->arena, (json_count(v) * 4 + 4) * sizeof(*part)), e;
    size_t n = 0;

    part[n++] = expr_byte(x, (uint8_t)open);
    part[n++] = s->options->gap;
    JSON_FOR_EACH(it, v) {
        if (n > 2) part[n++] = s->comma;
        if (json_type(v) == JSON_OBJECT) {
            part[n++] = schema_quoted(s, char_text_expr(x, json_key(it), CHARS_IN_JSON));
            part[n++] = s->colon;
        }
        part[n++] = spell(s, it);
    }
    if (n > 2) part[n++] = s->options->gap;
    for (e = expr_byte(x, (uint8_t)shut); n > 0;)
        e = expr_concat(x, part[--n], e);
    return e;
}

static expr_id spell(struct schema *s, const struct json *v) {
    struct buf text;
    expr_id e;

    if (json_type(v) == JSON_ARRAY) return spell_list(s, v, '[', ']');
    if (json_type(v) == JSON_OBJECT) return spell_list(s, v, '{', '}');
    buf_init(&text, 0);
    spell_scalar(v, &text);
    e = expr_literal(s->exprs, buf_str(&text));
    exprs_note(s->exprs, &text);
    buf_fini(&text);
    return e;
}

static bool is_plain_array(const struct shape *sh) {
    return sh->n_prefix == 0 && sh->rest.n == 0 && sh->min_items == 0 &&
           sh->max_items == EXPR_FOREVER;
}

static bool is_plain_object(const struct shape *sh) {
    return !sh->has_object && sh->min_properties == 0 && sh->max_properties == EXPR_FOREVER;
}

/* Arrays and objects of a list are compared with nothing else: what would have to be is refused. */
static enum status add_composite(struct schema *s, const struct shape *shape, const struct json *v,
                                 expr_id *e) {
    bool is_array = json_type(v) == JSON_ARRAY;

    if (!(shape->types & (is_array ? TYPE_ARRAY : TYPE_OBJECT))) return ST_OK;
    if (is_array ? !is_plain_array(shape) : !is_plain_object(shape))
        return schema_refuse(s, v,
                             "an %s in enum or const beside keywords of its type is not supported",
                             is_array ? "array" : "object");
    *e = expr_alt(s->exprs, *e, spell(s, v));
    return ST_OK;
}

/* Scalars are filtered by what is beside the list, as one set of strings. */
enum status schema_values(struct schema *s, const struct shape *shape, expr_id *out) {
    struct shape other = *shape;
    struct str *texts = arena_alloc(&s->arena, MAX(shape->n_values, 1u) * sizeof(*texts));
    struct buf text;
    expr_id allowed, composites = EXPR_NONE;
    enum status st = ST_OK;
    size_t n = 0;

    other.value = NULL;
    allowed = schema_scalars(s, &other);
    for (uint32_t i = 0; i < shape->n_values; i++) {
        buf_init(&text, 0); /* the classes of bytes must know each of its bytes */
        spell_scalar(shape->value[i], &text);
        for (size_t k = 0; k < buf_len(&text); k++)
            (void)expr_byte(s->exprs, (uint8_t)buf_ptr(&text)[k]);
        texts[i] =
            (struct str){arena_strndup(&s->arena, buf_ptr(&text), buf_len(&text)), buf_len(&text)};
        exprs_note(s->exprs, &text);
        buf_fini(&text);
    }
    exprs_freeze(s->exprs);
    for (uint32_t i = 0; i < shape->n_values && st == ST_OK; i++) {
        const struct json *v = shape->value[i];

        if (json_type(v) == JSON_ARRAY || json_type(v) == JSON_OBJECT) {
            st = add_composite(s, shape, v, &composites);
        } else if (expr_matches(s->exprs, allowed, texts[i])) {
            texts[n++] = texts[i];
        }
    }
    *out = expr_alt(s->exprs, expr_one_of(s->exprs, texts, n), composites);
    return st;
}
