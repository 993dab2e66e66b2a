/* worker/grammar/tags/tags_text.c - markers in texts, and text that holds none of some strings. */
#include <string.h>

#include "worker/grammar/tags/tags_internal.h"

/* --- lists ------------------------------------------------------------------------------------ */

static void *grow(struct tags *t, void *array, uint32_t n, uint32_t *cap, size_t size) {
    void *grown;

    if (n < *cap) return array;
    *cap = MAX(n * 2, 8u);
    grown = arena_alloc(&t->arena, *cap * size);
    if (n > 0) memcpy(grown, array, n * size);
    return grown;
}

void texts_add(struct tags *t, struct texts *list, struct str text) {
    for (uint32_t i = 0; i < list->n; i++)
        if (str_eq(list->text[i], text)) return;
    list->text = grow(t, list->text, list->n, &list->cap, sizeof(*list->text));
    list->text[list->n++] = text;
}

void marks_add(struct tags *t, struct marks *list, struct mark m) {
    list->mark = grow(t, list->mark, list->n, &list->cap, sizeof(*list->mark));
    list->mark[list->n++] = m;
}

void symbols_add(struct tags *t, struct symbols *list, symbol s) {
    list->s = grow(t, list->s, list->n, &list->cap, sizeof(*list->s));
    list->s[list->n++] = s;
}

/* --- markers that are named ------------------------------------------------------------------- */

static void name_those_of(struct tags *t, struct str text) {
    const struct vocabulary_marker *m;
    size_t at;

    while ((m = vocabulary_next_marker(t->vocabulary, text, &at)) != NULL) {
        texts_add(t, &t->named, m->name);
        text.ptr += at + m->name.len;
        text.len -= at + m->name.len;
    }
}

static void name_id(struct tags *t, uint64_t id) {
    const struct vocabulary_marker *m = vocabulary_marker_of(t->vocabulary, id);

    if (m) texts_add(t, &t->named, m->name);
}

/* Not those inside of other languages. */
static bool is_foreign(struct str key) {
    static const char *const names[] = {"json_schema", "schema", "pattern", "grammar"};

    for (size_t i = 0; i < ARRAY_LEN(names); i++)
        if (str_eq(key, str_of(names[i]))) return true;
    return false;
}

void tags_name_markers(struct tags *t, const struct json *v) {
    struct str text;
    uint64_t id;

    if (json_to_str(v, &text) == ST_OK) name_those_of(t, text);
    if (str_eq(json_key(v), STR("token")) && json_to_u64(v, &id) == ST_OK) name_id(t, id);
    JSON_FOR_EACH(it, v) {
        if (!is_foreign(json_key(it))) tags_name_markers(t, it);
    }
}

/* --- marks ------------------------------------------------------------------------------------ */

/* No text is spelt with a token that is named, and a byte has no other spelling. */
static enum status check_token(struct tags *t, const struct json *v, const struct mark *m) {
    if (vocabulary_bytes(t->vocabulary, m->token).len != 1) return ST_OK;
    return tags_refuse(t, v, "a token of one byte is text: use const_string");
}

/* A token by its id or text: the marker of that name, or else the ordinary token spelt so. */
static enum status find_token(struct tags *t, const struct json *v, struct mark *out) {
    const struct vocabulary *vocabulary = t->vocabulary;
    const struct vocabulary_marker *m;
    struct str text;
    uint64_t id;

    *out = (struct mark){.is_token = true};
    if (json_to_u64(v, &id) == ST_OK) {
        if (id >= vocabulary->n_tokens) return tags_refuse(t, v, "there is no such token");
        out->token = (uint32_t)id;
        out->text = vocabulary_bytes(vocabulary, out->token);
        if ((m = vocabulary_marker_of(vocabulary, id)) != NULL) out->text = m->name;
        return check_token(t, v, out);
    }
    if (json_to_str(v, &text) != ST_OK)
        return tags_refuse(t, v, "a token must be its text or id, not %s", json_type_name(v));
    out->text = text;
    if ((m = vocabulary_find_marker(vocabulary, text)) != NULL) {
        out->token = m->id;
    } else if (!vocabulary_find_text(vocabulary, text, &out->token)) {
        return tags_refuse(t, v, "the model has no token \"%.*s\"", (int)MIN(text.len, 60),
                           text.ptr);
    }
    return check_token(t, v, out);
}

enum status tags_marks(struct tags *t, const struct json *v, const char *what, struct marks *out) {
    struct mark m = {0};
    enum status st = ST_OK;

    switch (json_type(v)) {
    case JSON_STRING:
        if (json_to_str(v, &m.text) == ST_OK) marks_add(t, out, m);
        return ST_OK;
    case JSON_NUMBER: st = find_token(t, v, &m); break;
    case JSON_OBJECT: st = find_token(t, json_get(v, "token"), &m); break;
    case JSON_ARRAY:
        JSON_FOR_EACH(it, v) {
            if (json_type(it) == JSON_ARRAY)
                return tags_refuse(t, it, "%s must be texts or tokens", what);
            if ((st = tags_marks(t, it, what, out)) != ST_OK) return st;
        }
        return ST_OK;
    default: return tags_refuse(t, v, "%s must be a text or a token", what);
    }
    if (st == ST_OK) marks_add(t, out, m);
    return st;
}

void tags_split(struct tags *t, struct str text, struct marks *out) {
    const struct vocabulary_marker *m;
    size_t at = 0;

    while ((m = vocabulary_next_marker(t->vocabulary, text, &at)) != NULL) {
        if (at > 0) marks_add(t, out, (struct mark){.text = {text.ptr, at}});
        marks_add(t, out, (struct mark){.is_token = true, .token = m->id, .text = m->name});
        text.ptr += at + m->name.len;
        text.len -= at + m->name.len;
    }
    if (text.len > 0) marks_add(t, out, (struct mark){.text = text});
}

void tags_spell(struct tags *t, const struct mark *m, struct symbols *out) {
    struct marks parts = {0};

    if (m->is_token) {
        marks_add(t, &parts, *m);
    } else {
        tags_split(t, m->text, &parts);
    }
    for (uint32_t i = 0; i < parts.n; i++) {
        const struct mark *p = &parts.mark[i];

        symbols_add(t, out,
                    p->is_token ? symbol_of(SYMBOL_TOKEN, p->token)
                                : rules_text(expr_literal(t->exprs, p->text)));
    }
}

symbol tags_symbol(struct tags *t, struct str text) {
    struct symbols all = {0};

    tags_spell(t, &(struct mark){.text = text}, &all);
    if (all.n == 1) return all.s[0];
    return all.n == 0 ? rules_text(EXPR_EMPTY) : rules_sequence(t->rules, all.s, all.n);
}

/* --- text without ----------------------------------------------------------------------------- */

static expr_id one_of(struct tags *t, const struct texts *list, expr_id e) {
    for (uint32_t i = 0; list && i < list->n; i++)
        if (list->text[i].len > 0) e = expr_alt(t->exprs, e, expr_literal(t->exprs, list->text[i]));
    return e;
}

expr_id tags_text_without(struct tags *t, const struct texts *a, const struct texts *b,
                          const struct texts *c) {
    struct exprs *x = t->exprs;
    expr_id e = one_of(t, c, one_of(t, b, one_of(t, a, EXPR_NONE)));

    return expr_not(x, expr_concat(x, EXPR_ANY, expr_concat(x, e, EXPR_ANY)));
}
