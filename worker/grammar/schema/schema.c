/* worker/grammar/schema/schema.c - one schema from text to rules.
 *
 * Rules are written from a list, not by recursion: to mention a conjunction names its rule and puts
 * it on the list. */
#include <stdarg.h>
#include <stdio.h>

#include "worker/grammar/core/char_set.h"
#include "worker/grammar/schema/schema_internal.h"

struct named_rule {
    struct named_rule *next;
    struct conjunction c;
    symbol rule;
    uint32_t code, code_end; /* of `rules`: what was written for it */
};

/* --- places ----------------------------------------------------------------------------------- */

/* "#/properties/a", cut where `size` ends. */
static void write_place(struct schema *s, const struct json *at, char *out, size_t size) {
    struct buf path;

    buf_init(&path, 0);
    buf_append_char(&path, '#');
    (void)json_find(s->options->document ? s->options->document : s->root, at, &path);
    snprintf(out, size, "%.*s", (int)MIN(buf_len(&path), size - 1), buf_ptr(&path));
    buf_fini(&path);
}

enum status schema_refuse(struct schema *s, const struct json *at, const char *fmt, ...) {
    char message[256], place[201];
    va_list args;

    va_start(args, fmt);
    vsnprintf(message, sizeof(message), fmt, args);
    va_end(args);
    write_place(s, at, place, sizeof(place));
    return error_set(s->err, ST_INVALID, "%s: %s", place, message);
}

/* The member of an object or element of an array that a step of a pointer names. */
static const struct json *take_step(const struct json *from, struct str step) {
    char name[256];
    size_t n = 0;
    uint64_t index;

    if (json_type(from) == JSON_ARRAY && str_to_u64(step, &index) == ST_OK) {
        const struct json *it = json_first(from);

        while (it && index-- > 0)
            it = json_next(it);
        return it;
    }
    if (str_percent_decode(step, name, sizeof(name)) != ST_OK) return NULL;
    for (size_t i = 0; name[i] != '\0'; i++) {
        bool is_escape = name[i] == '~' && (name[i + 1] == '0' || name[i + 1] == '1');

        name[n++] = is_escape ? (name[i + 1] == '0' ? '~' : '/') : name[i];
        i += is_escape;
    }
    name[n] = '\0';
    return json_type(from) == JSON_OBJECT ? json_get(from, name) : NULL;
}

static bool is_among(struct str name, const char *const *names, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (str_eq(name, str_of(names[i]))) return true;
    return false;
}

/* The schema with that anchor: not a value that looks like one. `is_map`: of names to schemas. */
static const struct json *find_anchor(const struct json *from, bool is_map, struct str name) {
    static const char *const values[] = {"enum", "const", "default", "examples"};
    static const char *const maps[] = {"properties", "patternProperties", "$defs", "definitions"};
    struct str anchor;
    const struct json *found;

    if (!is_map && json_type(from) == JSON_OBJECT &&
        json_to_str(json_get(from, "$anchor"), &anchor) == ST_OK && str_eq(anchor, name))
        return from;
    JSON_FOR_EACH(it, from) {
        bool has_keywords = !is_map && json_type(from) == JSON_OBJECT;

        if (has_keywords && is_among(json_key(it), values, ARRAY_LEN(values))) continue;
        found =
            find_anchor(it, has_keywords && is_among(json_key(it), maps, ARRAY_LEN(maps)), name);
        if (found) return found;
    }
    return NULL;
}

enum status schema_resolve(struct schema *s, const struct json *at, struct str ref,
                           const struct json **out) {
    const struct json *to = s->root;
    struct str rest = ref;

    if (ref.len == 0 || ref.ptr[0] != '#')
        return schema_refuse(s, at, "$ref \"%.*s\" is not local: use \"#/$defs/...\"",
                             (int)MIN(ref.len, 80), ref.ptr);
    if (s->has_nested_id)
        return schema_refuse(s, at, "$ref is not supported in a schema with an $id inside");
    rest.ptr++;
    rest.len--;
    if (rest.len > 0 && rest.ptr[0] != '/') {
        to = find_anchor(s->root, false, rest);
        rest.len = 0;
    }
    while (to && rest.len > 0) {
        struct str step = {rest.ptr + 1, 0};

        while (step.len + 1 < rest.len && step.ptr[step.len] != '/')
            step.len++;
        to = take_step(to, step);
        rest.ptr += step.len + 1;
        rest.len -= step.len + 1;
    }
    if (!to)
        return schema_refuse(s, at, "$ref \"%.*s\" does not exist", (int)MIN(ref.len, 80), ref.ptr);
    *out = to;
    return ST_OK;
}

/* --- conjunctions ----------------------------------------------------------------------------- */

void *schema_grow(struct schema *s, void *array, uint32_t n, uint32_t *cap, size_t size) {
    void *grown;

    if (n < *cap) return array;
    *cap = MAX(n * 2, 4u);
    grown = arena_alloc(&s->arena, *cap * size);
    if (n > 0) memcpy(grown, array, n * size);
    return grown;
}

/* Sorted by address, each once: equal sets are equal arrays. `true` adds nothing. */
void conjunction_add(struct schema *s, struct conjunction *c, const struct json *node) {
    const struct json **nodes;
    uint32_t at = 0;
    bool is_true = false;

    if (json_to_bool(node, &is_true) == ST_OK && is_true) return;
    if (json_type(node) == JSON_OBJECT && !json_first(node)) return;
    while (at < c->n && (uintptr_t)c->node[at] < (uintptr_t)node)
        at++;
    if (at < c->n && c->node[at] == node) return;
    nodes = arena_alloc(&s->arena, (c->n + 1) * sizeof(*nodes)); /* others may share the old one */
    for (uint32_t i = 0; i <= c->n; i++)
        nodes[i] = i < at ? c->node[i] : i == at ? node : c->node[i - 1];
    c->node = nodes;
    c->n++;
}

void conjunction_add_all(struct schema *s, struct conjunction *c, const struct conjunction *other) {
    for (uint32_t i = 0; i < other->n; i++)
        conjunction_add(s, c, other->node[i]);
}

bool conjunction_has_false(const struct conjunction *c) {
    bool value;

    for (uint32_t i = 0; i < c->n; i++)
        if (json_to_bool(c->node[i], &value) == ST_OK && !value) return true;
    return false;
}

symbol schema_rule(struct schema *s, const struct conjunction *c) {
    struct str key = {c->n ? (const char *)c->node : "", c->n * sizeof(*c->node)};
    void *known = strmap_find(&s->rule_of, key);
    struct named_rule *t;

    if (known) return (symbol)(uintptr_t)known;
    t = arena_alloc(&s->arena, sizeof(*t));
    *t = (struct named_rule){.c = *c, .rule = rules_add(s->rules)};
    *s->named_end = t;
    s->named_end = &t->next;
    strmap_insert(&s->rule_of, key, (void *)(uintptr_t)t->rule);
    return t->rule;
}

static const struct json *node_of(const struct schema *s, const struct named_rule *t) {
    return t->c.n ? t->c.node[0] : s->root;
}

static enum status write_rule(struct schema *s, struct named_rule *t) {
    struct shapes shapes = {0};
    enum status st = schema_shapes(s, &t->c, &shapes);

    t->code = s->rules->n_code;
    for (uint32_t i = 0; i < shapes.n && st == ST_OK; i++)
        st = schema_write(s, t->rule, shapes.shape[i], node_of(s, t));
    t->code_end = s->rules->n_code;
    return st;
}

/* Looks for a member of each lexeme, as rules_finish would, while it is known whose it is. */
static void look_for_members(struct schema *s, const struct named_rule *t) {
    for (uint32_t k = t->code; k < t->code_end; k++)
        if (symbol_kind_of(s->rules->code[k]) == SYMBOL_TEXT)
            (void)expr_is_alive(s->exprs, symbol_value(s->rules->code[k]));
}

/* False once the store has failed; then `rules` has the place. */
static bool is_in_limits(struct schema *s, const struct named_rule *t) {
    if (exprs_pay(s->exprs, 1)) return true;
    if (*s->rules->place == '\0') /* another schema may have been too much before */
        write_place(s, node_of(s, t), s->rules->place, sizeof(s->rules->place));
    return false;
}

/* --- limits ----------------------------------------------------------------------------------- */

struct census {
    uint32_t n_values, n_properties;
};

/* Local references behind it are not those of the whole. Some generators write a fragment alone,
 * which names nothing. */
static bool is_resource(const struct json *it) {
    struct str id;

    return str_eq(json_key(it), STR("$id")) && json_to_str(it, &id) == ST_OK && id.len > 0 &&
           id.ptr[0] != '#';
}

static enum status count(struct schema *s, const struct json *node, struct census *c) {
    enum status st = ST_OK;

    JSON_FOR_EACH(it, node) {
        if (node != s->root && is_resource(it)) s->has_nested_id = true;
        if (str_eq(json_key(it), STR("enum"))) c->n_values += (uint32_t)json_count(it);
        if (str_eq(json_key(it), STR("properties"))) c->n_properties += (uint32_t)json_count(it);
        if (c->n_values > SCHEMA_MAX_VALUES)
            return schema_refuse(s, it, "its enums have more than %u values", SCHEMA_MAX_VALUES);
        if (c->n_properties > SCHEMA_MAX_PROPERTIES)
            return schema_refuse(s, it, "it has more than %u properties", SCHEMA_MAX_PROPERTIES);
        if ((st = count(s, it, c)) != ST_OK) return st;
    }
    return st;
}

/* --- the whole -------------------------------------------------------------------------------- */

static void init(struct schema *s) {
    struct exprs *x = s->exprs;
    expr_id gap = s->options->gap, after = s->options->after;

    arena_init(&s->arena, 0);
    strmap_init(&s->rule_of, 0);
    s->named_end = &s->named;
    s->character = char_any_expr(x, CHARS_IN_JSON);
    s->colon = expr_concat(x, gap, expr_concat(x, expr_byte(x, ':'), after));
    s->comma = expr_concat(x, gap, expr_concat(x, expr_byte(x, ','), after));
}

/* The rule of the whole: of the list, or one that is no JSON. */
static enum status begin(struct schema *s, const struct conjunction *all, symbol *start) {
    if (!s->options->raw) {
        *start = schema_rule(s, all);
        return ST_OK;
    }
    *start = rules_add(s->rules);
    return schema_write_raw(s, *start, all);
}

static enum status compile(struct schema *s, symbol *start) {
    struct conjunction all = {0};
    struct census census = {0};
    enum status st;

    if (json_type(s->root) != JSON_OBJECT && json_type(s->root) != JSON_BOOL)
        return schema_refuse(s, s->root, "a schema is an object or a boolean, not %s",
                             json_type_name(s->root));
    if ((st = count(s, s->root, &census)) != ST_OK) return st;
    conjunction_add(s, &all, s->root);
    st = begin(s, &all, start);
    for (struct named_rule *t = s->named; t && st == ST_OK && !s->rules->is_too_large;
         t = t->next) {
        st = write_rule(s, t);
        if (!is_in_limits(s, t)) return st; /* the caller finds that */
    }
    exprs_freeze(s->exprs);
    for (const struct named_rule *t = s->named; t && st == ST_OK; t = t->next) {
        look_for_members(s, t);
        if (!is_in_limits(s, t)) break;
    }
    return st;
}

enum status schema_compile(symbol *start, struct rules *rules, const struct json *schema,
                           const struct schema_options *options, struct error *err) {
    struct schema s = {
        .rules = rules, .exprs = rules->exprs, .options = options, .root = schema, .err = err};
    enum status st;

    init(&s);
    st = compile(&s, start);
    strmap_fini(&s.rule_of);
    arena_fini(&s.arena);
    return st;
}
