/* worker/grammar/schema/schema_write.c - a shape as productions.
 *
 * White space belongs to the lexeme behind it, a key takes its colon, and a comma
 * what follows it. So between two values of an object there is one lexeme, and a row has few items.
 *
 * Objects: the state of an object is the last property that came. From each a chain leads on: the
 * next one, or past it if it is optional. What is counted (minProperties) is part of the state.
 *
 *      rest(i)  ->  comma key(i) value(i) rest(i + 1)  |  rest(i + 1)   if i is optional
 *      rest(n)  ->  loop(comma key value) close */
#include "worker/grammar/core/char_set.h"
#include "worker/grammar/core/regex_expr.h"
#include "worker/grammar/schema/schema_internal.h"

#define MAX_COUNTED_STATES 20000u

/* --- lexemes ---------------------------------------------------------------------------------- */

static symbol text(expr_id e) {
    return rules_text(e);
}

static expr_id before(struct schema *s, char byte) {
    return expr_concat(s->exprs, s->options->gap, expr_byte(s->exprs, (uint8_t)byte));
}

/* A key of that content, between what separates it from the value before it, and its value. */
static symbol key(struct schema *s, expr_id content, bool is_first) {
    struct exprs *x = s->exprs;
    expr_id e = s->options->marks ? content : schema_quoted(s, content);

    e = expr_concat(x, e, s->colon);
    return text(expr_concat(x, is_first ? s->options->gap : s->comma, e));
}

/* --- objects ---------------------------------------------------------------------------------- */

struct object {
    struct schema *s;
    const struct shape *shape;
    symbol undeclared; /* a comma, a key and a value that no property declares; SYMBOL_END: none */
    symbol undeclared_first;
    symbol *state; /* by (place, count, is_first) */
    uint32_t n_counts;
};

static bool is_closed(const struct schema *s, const struct shape *sh) {
    bool is_silent = s->options->is_closed && sh->has_object && !sh->has_extra;

    return is_silent || conjunction_has_false(&sh->extra);
}

static expr_id name_expr(struct schema *s, struct str name) {
    if (s->options->marks) return expr_literal(s->exprs, name);
    return char_text_expr(s->exprs, name, CHARS_IN_JSON);
}

/* Any name that is not declared. */
static expr_id any_name(struct schema *s) {
    struct regex_rules rules = {.form = CHARS_PLAIN, .is_whole = true};
    expr_id e = EXPR_NONE;

    if (!s->options->marks) return expr_repeat(s->exprs, s->character, 0, EXPR_FOREVER);
    (void)!regex_expr_parse(&e, s->exprs, STR("[A-Za-z_][A-Za-z0-9_]*"), &rules, NULL);
    return e;
}

static void add_undeclared(struct object *o, expr_id content, const struct conjunction *value) {
    struct schema *s = o->s;
    symbol member[2];

    content = expr_and(s->exprs, content, o->shape->names);
    member[1] = schema_rule(s, value);
    member[0] = key(s, content, false);
    rules_produce(s->rules, o->undeclared, member, 2);
    member[0] = key(s, content, true);
    rules_produce(s->rules, o->undeclared_first, member, 2);
}

/* A key must show which pattern it matches; other keys are those of none, and not declared. */
static enum status write_undeclared(struct object *o, const struct json *at) {
    struct schema *s = o->s;
    const struct shape *sh = o->shape;
    struct exprs *x = s->exprs;
    expr_id string = any_name(s), taken, seen = EXPR_NONE;
    struct str *names = arena_alloc(&s->arena, (sh->n_properties + 1) * sizeof(*names));

    o->undeclared = rules_add(s->rules);
    o->undeclared_first = rules_add(s->rules);
    for (uint32_t i = 0; i < sh->n_properties; i++) {
        struct buf spelled;

        buf_init(&spelled, 0);
        char_spell_json(sh->property[i].name, &spelled);
        names[i] = (struct str){
            arena_strndup(&s->arena, buf_len(&spelled) ? buf_ptr(&spelled) : "", buf_len(&spelled)),
            buf_len(&spelled)};
        exprs_note(s->exprs, &spelled);
        buf_fini(&spelled);
    }
    taken = expr_one_of(x, names, sh->n_properties);
    for (uint32_t i = 0; i < sh->n_patterns; i++) {
        const struct pattern_property *p = &sh->pattern[i];
        expr_id both = expr_and(x, seen, p->name);

        exprs_freeze(x);
        if (expr_is_alive(x, both))
            return schema_refuse(s, at,
                                 "patternProperties \"%.*s\" may match names of another pattern: "
                                 "patterns that exclude each other are supported",
                                 (int)MIN(p->source.len, 80), p->source.ptr);
        seen = expr_alt(x, seen, p->name);
        add_undeclared(o, expr_and(x, p->name, expr_not(x, taken)), &p->value);
    }
    if (is_closed(s, sh)) return ST_OK;
    add_undeclared(o, expr_and(x, string, expr_not(x, expr_alt(x, taken, seen))), &sh->extra);
    return ST_OK;
}

/* Behind the last declared property, when `count` of them came: the end, or others first. */
static void write_end(struct object *o, symbol rule, uint32_t count, bool is_first) {
    const struct shape *sh = o->shape;
    struct rules *r = o->s->rules;
    uint32_t min = sh->min_properties, max = sh->max_properties, done;
    symbol close = text(is_first ? expr_byte(o->s->exprs, '}') : before(o->s, '}'));
    symbol rest = rules_add(r), all[3] = {o->undeclared_first, rest, close};

    if (is_first) {
        if (min == 0) rules_produce(r, rule, (symbol[]){text(before(o->s, '}'))}, 1);
        if (max == 0) return;
        all[2] = text(before(o->s, '}'));
        done = 1;
    } else {
        if (max != EXPR_FOREVER && count > max) return;
        done = count;
    }
    rules_produce_loop(r, rest, &o->undeclared, 1, min > done ? min - done : 0,
                       max == EXPR_FOREVER ? EXPR_FOREVER : max - done);
    rules_produce(r, rule, is_first ? all : all + 1, is_first ? 3 : 2);
}

static symbol *state_at(struct object *o, uint32_t place, uint32_t count, bool is_first) {
    count = MIN(count, o->n_counts - 1);
    return &o->state[((size_t)place * o->n_counts + count) * 2 + is_first];
}

static symbol name_state(struct object *o, uint32_t place, uint32_t count, bool is_first) {
    symbol *state = state_at(o, place, count, is_first);

    if (*state == 0) *state = rules_add(o->s->rules);
    return *state;
}

/* Whether the property comes here, and what then follows. */
static void write_state(struct object *o, uint32_t place, uint32_t count, bool is_first,
                        const expr_id *name) {
    const struct shape *sh = o->shape;
    symbol rule = *state_at(o, place, count, is_first), member[3];
    const struct property *p;

    if (rule == 0) return; /* nothing leads there */
    if (place == sh->n_properties) {
        write_end(o, rule, count, is_first);
        return;
    }
    p = &sh->property[place];
    if (sh->max_properties == EXPR_FOREVER || count < sh->max_properties) {
        member[0] = key(o->s, name[place], is_first);
        member[1] = schema_rule(o->s, &p->value);
        member[2] = name_state(o, place + 1, count + 1, false);
        rules_produce(o->s->rules, rule, member, 3);
    }
    if (!p->is_required) {
        member[0] = name_state(o, place + 1, count, is_first);
        rules_produce(o->s->rules, rule, member, 1);
    }
}

enum status schema_check_optional(struct schema *s, const struct shape *shape,
                                  const struct json *at) {
    uint32_t n_in_a_row = 0;

    for (uint32_t i = 0; i < shape->n_properties; i++) {
        n_in_a_row = shape->property[i].is_required ? 0 : n_in_a_row + 1;
        if (n_in_a_row > SCHEMA_MAX_OPTIONAL)
            return schema_refuse(s, at,
                                 "it has more than %u optional properties without a required one "
                                 "between them: require some, or nest them",
                                 SCHEMA_MAX_OPTIONAL);
    }
    return ST_OK;
}

static enum status write_object(struct schema *s, symbol rule, const struct shape *shape,
                                const struct json *at) {
    struct object o = {.s = s, .shape = shape};
    uint32_t n = shape->n_properties;
    bool is_counted = shape->min_properties > 0 || shape->max_properties != EXPR_FOREVER;
    expr_id *name = arena_alloc(&s->arena, (n + 1) * sizeof(*name));
    enum status st = schema_check_optional(s, shape, at);

    if (st != ST_OK) return st;
    o.n_counts = is_counted ? n + 2 : 1;
    if ((uint64_t)o.n_counts * (n + 1) > MAX_COUNTED_STATES)
        return schema_refuse(s, at,
                             "minProperties and maxProperties are supported for objects of "
                             "at most 140 declared properties");
    for (uint32_t i = 0; i < n; i++) /* propertyNames is about declared ones too */
        name[i] = expr_and(s->exprs, name_expr(s, shape->property[i].name), shape->names);
    if ((st = write_undeclared(&o, at)) != ST_OK) return st;
    o.state = arena_alloc(&s->arena, (size_t)(n + 1) * o.n_counts * 2 * sizeof(*o.state));
    rules_produce(s->rules, rule,
                  (symbol[]){text(expr_byte(s->exprs, '{')), name_state(&o, 0, 0, true)}, 2);
    for (uint32_t place = 0; place <= n; place++)
        for (uint32_t count = 0; count < o.n_counts; count++) {
            write_state(&o, place, count, true, name);
            write_state(&o, place, count, false, name);
        }
    return ST_OK;
}

/* --- arrays ----------------------------------------------------------------------------------- */

/* The items behind those with a schema of their own. */
static void write_rest(struct schema *s, symbol rule, const struct shape *sh, uint32_t place) {
    struct rules *r = s->rules;
    uint32_t min = sh->min_items, max = sh->max_items, done = place == 0 ? 1 : place;
    symbol close = text(before(s, ']')), value, list = rules_add(r);

    if (place == 0 && min == 0) rules_produce(r, rule, &close, 1);
    if (max != EXPR_FOREVER && max < done) {
        if (place > 0 && place >= min) rules_produce(r, rule, &close, 1);
        return;
    }
    value = schema_rule(s, &sh->rest);
    rules_produce_loop(r, list, (symbol[]){text(s->comma), value}, 2, min > done ? min - done : 0,
                       max == EXPR_FOREVER ? EXPR_FOREVER : max - done);
    if (place == 0) {
        rules_produce(r, rule, (symbol[]){text(s->options->gap), value, list, close}, 4);
    } else {
        rules_produce(r, rule, (symbol[]){list, close}, 2);
    }
}

static void write_array(struct schema *s, symbol rule, const struct shape *shape) {
    struct rules *r = s->rules;
    symbol state = rules_add(r), next, close = text(before(s, ']'));

    rules_produce(r, rule, (symbol[]){text(expr_byte(s->exprs, '[')), state}, 2);
    for (uint32_t place = 0; place < shape->n_prefix; place++) {
        symbol lead = text(place == 0 ? s->options->gap : s->comma);

        if (place >= shape->min_items) rules_produce(r, state, &close, 1);
        if (place >= shape->max_items) return;
        next = rules_add(r);
        rules_produce(r, state, (symbol[]){lead, schema_rule(s, &shape->prefix[place]), next}, 3);
        state = next;
    }
    write_rest(s, state, shape, shape->n_prefix);
}

/* --- a shape ---------------------------------------------------------------------------------- */

/* Without strings, where these stand between marks. */
static enum status write_plain(struct schema *s, symbol rule, const struct shape *shape,
                               const struct json *at) {
    expr_id e;
    enum status st = ST_OK;

    if (shape->value) {
        if ((st = schema_values(s, shape, &e)) != ST_OK) return st;
    } else {
        e = schema_scalars(s, shape);
        if (shape->types & TYPE_ARRAY) write_array(s, rule, shape);
        if (shape->types & TYPE_OBJECT) st = write_object(s, rule, shape, at);
    }
    if (e != EXPR_NONE) rules_produce(s->rules, rule, (symbol[]){text(e)}, 1);
    return st;
}

/* Takes null out of a shape; true if it was there. */
static bool take_null(struct shape *shape) {
    uint32_t n = 0;
    bool has_null = shape->types & TYPE_NULL;

    shape->types &= (uint8_t)~TYPE_NULL;
    if (!shape->value) return has_null;
    for (uint32_t i = 0; i < shape->n_values; i++)
        if (json_type(shape->value[i]) != JSON_NULL) shape->value[n++] = shape->value[i];
    has_null = has_null && n < shape->n_values;
    shape->n_values = n;
    return has_null;
}

/* What is listed is scalar: an array there might hold strings. */
static enum status check_listed(struct schema *s, const struct shape *shape) {
    for (uint32_t i = 0; shape->value && i < shape->n_values; i++) {
        enum json_type type = json_type(shape->value[i]);

        if (type == JSON_ARRAY || type == JSON_OBJECT)
            return schema_refuse(s, shape->value[i],
                                 "arrays and objects in enum or const are supported in JSON alone");
    }
    return ST_OK;
}

enum status schema_write(struct schema *s, symbol rule, const struct shape *shape,
                         const struct json *at) {
    const struct schema_marks *marks = s->options->marks;
    struct shape rest;
    enum status st;
    expr_id e;

    if (!marks) return write_plain(s, rule, shape, at);
    e = schema_raw_strings(s, shape, marks->text);
    if (e != EXPR_NONE)
        rules_produce(s->rules, rule, (symbol[]){marks->mark, text(e), marks->mark}, 3);
    if (!schema_without_strings(s, shape, &rest)) return ST_OK;
    if (take_null(&rest))
        rules_produce(s->rules, rule, (symbol[]){text(expr_literal(s->exprs, STR("None")))}, 1);
    st = check_listed(s, &rest);
    return st == ST_OK ? write_plain(s, rule, &rest, at) : st;
}
