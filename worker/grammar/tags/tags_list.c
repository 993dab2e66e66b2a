/* worker/grammar/tags/tags_list.c - tags, in free text or with separators between them.
 *
 *      triggered  ->  text more
 *      more       ->  (nothing)  |  begin content end triggered   of each tag
 *
 * What follows a tag is the last symbol of its production, so that the rows of a tag are the same
 * wherever in an answer it begins (rows.h). What all tags begin with is written once: a row at that
 * place has one item instead of hundreds. */
#include <string.h>

#include "worker/grammar/tags/tags_internal.h"

/* --- one tag ---------------------------------------------------------------------------------- */

struct tag {
    const struct json *at;
    struct marks begin; /* parted at its markers */
    struct marks end;   /* several: one of them */
    symbol content;
};

static enum status read_ends(struct tags *t, const struct json *v, struct tag *out) {
    const struct json *end = json_get(v, "end");

    if (!end) return tags_refuse(t, v, "a tag needs its end, which may be \"\"");
    return tags_marks(t, end, "end", &out->end);
}

/* A tag of the newer form, or of the older one: its `schema` is JSON. */
static enum status read_tag(struct tags *t, const struct json *v, struct tag *out) {
    const struct json *begin = json_get(v, "begin"), *content = json_get(v, "content");
    const struct json *schema = json_get(v, "schema");
    struct marks whole = {0};
    struct texts ends = {0};
    enum status st;

    *out = (struct tag){.at = v};
    if (json_type(begin) != JSON_STRING && json_type(begin) != JSON_OBJECT)
        return tags_refuse(t, v, "a tag needs its begin, a text or a token");
    if ((st = tags_marks(t, begin, "begin", &whole)) != ST_OK) return st;
    if ((st = read_ends(t, v, out)) != ST_OK) return st;
    for (uint32_t i = 0; i < whole.n; i++) {
        if (whole.mark[i].is_token) {
            marks_add(t, &out->begin, whole.mark[i]);
        } else {
            tags_split(t, whole.mark[i].text, &out->begin);
        }
    }
    for (uint32_t i = 0; i < out->end.n; i++)
        texts_add(t, &ends, out->end.mark[i].text);
    if (content) return tags_format(t, content, &ends, &out->content);
    if (schema) return tags_schema(t, schema, &out->content);
    return tags_refuse(t, v, "a tag needs its content");
}

static void spell_ends(struct tags *t, const struct tag *tag, struct symbols *out) {
    symbol rule;

    if (tag->end.n == 1) {
        tags_spell(t, &tag->end.mark[0], out);
        return;
    }
    rule = rules_add(t->rules);
    for (uint32_t i = 0; i < tag->end.n; i++) {
        struct symbols one = {0};

        tags_spell(t, &tag->end.mark[i], &one);
        rules_produce(t->rules, rule, one.s, one.n);
    }
    symbols_add(t, out, rule);
}

/* A tag behind the first parts of its begin, and `skip` bytes of the next one. */
static void spell_tag(struct tags *t, const struct tag *tag, uint32_t n_parts, size_t skip,
                      struct symbols *out) {
    for (uint32_t i = n_parts; i < tag->begin.n; i++) {
        struct mark m = tag->begin.mark[i];

        if (i == n_parts && skip > 0) {
            m.text.ptr += skip;
            m.text.len -= skip;
        }
        if (m.is_token) {
            symbols_add(t, out, symbol_of(SYMBOL_TOKEN, m.token));
        } else if (m.text.len > 0) {
            symbols_add(t, out, rules_text(expr_literal(t->exprs, m.text)));
        }
    }
    symbols_add(t, out, tag->content);
    spell_ends(t, tag, out);
}

enum status tags_one(struct tags *t, const struct json *v, struct symbols *out) {
    struct tag tag;
    enum status st = read_tag(t, v, &tag);

    if (st == ST_OK) spell_tag(t, &tag, 0, 0, out);
    return st;
}

/* --- a list of tags --------------------------------------------------------------------------- */

struct tag_list {
    struct tag *tag; /* (n) */
    uint32_t n;
};

static enum status read_tags(struct tags *t, const struct json *v, const char *member,
                             struct tag_list *out) {
    const struct json *list;
    enum status st = tags_array(t, v, member, &list);

    if (st != ST_OK) return st;
    out->tag = arena_alloc(&t->arena, json_count(list) * sizeof(*out->tag));
    out->n = 0;
    JSON_FOR_EACH(it, list) {
        if (json_type(it) != JSON_OBJECT) return tags_refuse(t, it, "a tag must be an object");
        if ((st = read_tag(t, it, &out->tag[out->n++])) != ST_OK) return st;
    }
    return ST_OK;
}

static size_t common_bytes(struct str a, struct str b) {
    size_t n = 0;

    while (n < a.len && n < b.len && a.ptr[n] == b.ptr[n])
        n++;
    return n;
}

static bool is_same_part(const struct mark *a, const struct mark *b) {
    if (a->is_token != b->is_token) return false;
    return a->is_token ? a->token == b->token : str_eq(a->text, b->text);
}

/* How many parts all begin with, and bytes of the next. */
static uint32_t find_common(const struct tag_list *l, size_t *skip) {
    const struct marks *first = &l->tag[0].begin;
    uint32_t n = first->n;

    for (uint32_t i = 1; i < l->n; i++) {
        const struct marks *m = &l->tag[i].begin;
        uint32_t same = 0;

        while (same < n && same < m->n && is_same_part(&first->mark[same], &m->mark[same]))
            same++;
        n = same;
    }
    *skip = 0;
    if (n == first->n || first->mark[n].is_token) return n;
    *skip = first->mark[n].text.len;
    for (uint32_t i = 1; i < l->n; i++) {
        const struct marks *m = &l->tag[i].begin;
        bool has_text = n < m->n && !m->mark[n].is_token;

        *skip = has_text ? MIN(*skip, common_bytes(first->mark[n].text, m->mark[n].text)) : 0;
    }
    return n;
}

/* The productions of `rule`: each tag, and `next` (an END: nothing) behind it. */
static void write_tags(struct tags *t, const struct tag_list *l, symbol rule, symbol next) {
    const struct marks *first = &l->tag[0].begin;
    struct symbols all = {0};
    size_t skip;
    uint32_t n = find_common(l, &skip);

    if (n > 0 || skip > 0) {
        for (uint32_t i = 0; i < n; i++)
            tags_spell(t, &first->mark[i], &all);
        if (skip > 0)
            symbols_add(
                t, &all,
                rules_text(expr_literal(t->exprs, (struct str){first->mark[n].text.ptr, skip})));
        symbols_add(t, &all, rules_add(t->rules));
        rules_produce(t->rules, rule, all.s, all.n);
        rule = all.s[all.n - 1];
    }
    for (uint32_t i = 0; i < l->n; i++) {
        all.n = 0;
        spell_tag(t, &l->tag[i], n, skip, &all);
        if (symbol_kind_of(next) != SYMBOL_END) symbols_add(t, &all, next);
        rules_produce(t->rules, rule, all.s, all.n);
    }
}

/* --- triggered -------------------------------------------------------------------------------- */

/* Does the tag begin with the trigger? */
static bool is_begun_by(struct tags *t, const struct tag *tag, const struct mark *trigger) {
    struct marks parts = {0};

    if (trigger->is_token) {
        marks_add(t, &parts, *trigger);
    } else {
        tags_split(t, trigger->text, &parts);
    }
    if (parts.n == 0 || parts.n > tag->begin.n) return false;
    for (uint32_t i = 0; i < parts.n; i++) {
        const struct mark *have = &tag->begin.mark[i], *want = &parts.mark[i];

        if (is_same_part(have, want)) continue;
        if (i + 1 < parts.n || have->is_token || want->is_token) return false;
        if (!str_starts(have->text, want->text)) return false;
    }
    return true;
}

static enum status check_triggers(struct tags *t, const struct tag_list *l,
                                  const struct marks *triggers) {
    for (uint32_t i = 0; i < l->n; i++) {
        bool is_begun = false;

        for (uint32_t k = 0; k < triggers->n && !is_begun; k++)
            is_begun = is_begun_by(t, &l->tag[i], &triggers->mark[k]);
        if (!is_begun) return tags_refuse(t, l->tag[i].at, "the tag begins with no trigger");
    }
    return ST_OK;
}

/* Members that list marks, under the names of both forms, as texts. */
static enum status read_marks(struct tags *t, const struct json *v, const char *a, const char *b,
                              struct marks *marks, struct texts *texts) {
    const struct json *list = json_get(v, a) ? json_get(v, a) : json_get(v, b);
    enum status st = ST_OK;

    if (list && json_type(list) != JSON_ARRAY)
        return tags_refuse(t, list, "%s must be an array of texts or tokens", a);
    if (list) st = tags_marks(t, list, a, marks);
    for (uint32_t i = 0; st == ST_OK && i < marks->n; i++) {
        if (marks->mark[i].text.len == 0 && !marks->mark[i].is_token)
            return tags_refuse(t, list, "%s must not be empty", a);
        texts_add(t, texts, marks->mark[i].text);
    }
    return st;
}

enum status tags_triggered(struct tags *t, const struct json *v, const struct texts *ends,
                           symbol *out) {
    const char *member = json_get(v, "structures") ? "structures" : "tags";
    struct marks triggers = {0}, excludes = {0};
    struct texts without = {0};
    struct tag_list l;
    bool at_least_one = false, stops = false;
    symbol text, more, next, optional;
    enum status st = read_marks(t, v, "triggers", "trigger_tokens", &triggers, &without);

    if (st == ST_OK && triggers.n == 0) return tags_refuse(t, v, "triggers are missing");
    if (st == ST_OK) st = read_marks(t, v, "excludes", "exclude_tokens", &excludes, &without);
    if (st == ST_OK) st = tags_bool(t, v, "at_least_one", &at_least_one);
    if (st == ST_OK) st = tags_bool(t, v, "stop_after_first", &stops);
    if (st == ST_OK) st = read_tags(t, v, member, &l);
    if (st == ST_OK) st = check_triggers(t, &l, &triggers);
    if (st != ST_OK) return st;
    text = rules_text(tags_text_without(t, &without, ends, &t->named));
    *out = rules_add(t->rules);
    next = stops ? symbol_of(SYMBOL_END, 0) : at_least_one ? rules_add(t->rules) : *out;
    more = rules_add(t->rules);
    write_tags(t, &l, more, next);
    if (at_least_one) rules_produce(t->rules, *out, (symbol[]){text, more}, 2);
    if (at_least_one && stops) return ST_OK;
    optional = rules_add(t->rules);
    rules_produce(t->rules, optional, NULL, 0);
    rules_produce(t->rules, optional, &more, 1);
    rules_produce(t->rules, at_least_one ? next : *out, (symbol[]){text, optional}, 2);
    return ST_OK;
}

/* --- with separators -------------------------------------------------------------------------- */

enum status tags_separated(struct tags *t, const struct json *v, symbol *out) {
    struct symbols behind = {0};
    struct str separator;
    struct tag_list l;
    bool at_least_one = false, stops = false;
    symbol list = rules_add(t->rules), next = rules_add(t->rules);
    enum status st = tags_bool(t, v, "at_least_one", &at_least_one);

    if (st == ST_OK) st = tags_bool(t, v, "stop_after_first", &stops);
    if (st == ST_OK && json_to_str(json_get(v, "separator"), &separator) != ST_OK)
        st = tags_refuse(t, v, "tags_with_separator needs a separator, a string");
    if (st == ST_OK) st = read_tags(t, v, "tags", &l);
    if (st != ST_OK) return st;
    tags_spell(t, &(struct mark){.text = separator}, &behind);
    symbols_add(t, &behind, list);
    if (!stops) rules_produce(t->rules, next, behind.s, behind.n);
    rules_produce(t->rules, next, NULL, 0);
    write_tags(t, &l, list, next);
    *out = rules_add(t->rules);
    rules_produce(t->rules, *out, &list, 1);
    if (!at_least_one) rules_produce(t->rules, *out, NULL, 0);
    return ST_OK;
}
