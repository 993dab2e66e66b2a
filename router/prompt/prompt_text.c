/* router/prompt/prompt_text.c - one reader for both APIs of messages with blocks, beside the plain
 * spans of OpenAI's. */
#include "router/prompt/prompt_text.h"

#include "router/prompt/raw_json.h"

#define MEMBERS_MAX 24 /* of a block or message; one with more is taken as it is */
#define LABELS_MAX  32 /* bytes of the roles that are put before `system` and a lone `input` */

struct reader {
    const struct client_noise *noise;
    prompt_take_fn *take;
    void *arg;
    size_t n; /* taken so far */
};

/* --- pieces ----------------------------------------------------------------------------------- */

static void take_between(struct reader *r, const char *from, const char *to) {
    if (from >= to) return;
    r->n += (size_t)(to - from);
    r->take(r->arg, raw_between(from, to));
}

/* A part of the body, without what of it is noise. */
static void take_span(struct reader *r, struct str span) {
    const char *from = span.ptr, *end;

    if (!span.ptr) return;
    end = span.ptr + span.len;
    for (uint32_t i = 0; i < r->noise->n; i++) {
        struct str cut = r->noise->cuts[i];

        if (cut.ptr + cut.len <= from || cut.ptr >= end) continue;
        take_between(r, from, cut.ptr);
        from = cut.ptr + cut.len;
    }
    take_between(r, from, end);
}

static void take_label(struct reader *r, struct str label) {
    take_between(r, label.ptr, label.ptr + label.len);
}

/* --- blocks and messages ---------------------------------------------------------------------- */

struct object {
    struct raw_member members[MEMBERS_MAX];
    uint32_t n;
    bool is_whole; /* all of them are there */
};

static void read_object(struct str raw, struct object *out) {
    struct raw_walk walk = raw_walk_of(raw);
    struct raw_member m;

    out->n = 0;
    out->is_whole = true;
    while (raw_next_member(&walk, &m)) {
        if (out->n == MEMBERS_MAX) {
            out->is_whole = false;
            return;
        }
        out->members[out->n++] = m;
    }
    out->is_whole = !walk.is_broken;
}

/* The value, or STR_NULL; the last of several, as parsers have it. */
static struct str value_of(const struct object *o, const char *name) {
    for (uint32_t i = o->n; i-- > 0;) {
        if (raw_text_is(o->members[i].name, name)) return o->members[i].value;
    }
    return STR_NULL;
}

static void take_members(struct reader *r, const struct object *o) {
    take_label(r, STR("{"));
    for (uint32_t i = 0; i < o->n; i++) {
        if (raw_text_is(o->members[i].name, "cache_control")) continue;
        take_span(r, o->members[i].key);
        take_span(r, o->members[i].value);
    }
}

static bool is_text(struct str type) {
    type = raw_text(type);
    return raw_text_is(type, "text") || raw_text_is(type, "input_text") ||
           raw_text_is(type, "output_text");
}

static void take_block(struct reader *r, struct str raw) {
    struct object o;
    struct str text;

    if (raw.ptr[0] != '{') {
        take_span(r, raw);
        return;
    }
    read_object(raw, &o);
    text = is_text(value_of(&o, "type")) ? value_of(&o, "text") : STR_NULL;
    if (!o.is_whole) {
        take_span(r, raw);
    } else if (text.ptr) {
        take_span(r, text);
    } else {
        take_members(r, &o);
    }
}

/* A string, or blocks. */
static void take_content(struct reader *r, struct str raw) {
    struct raw_walk walk;
    struct str block;

    if (raw.len && raw.ptr[0] != '[') {
        take_span(r, raw);
        return;
    }
    walk = raw_walk_of(raw);
    while (raw_next_item(&walk, &block))
        take_block(r, block);
}

/* A message, or another item of an input. */
static void take_message(struct reader *r, struct str raw) {
    struct str role, content;
    struct object o;

    if (raw.ptr[0] != '{') {
        take_span(r, raw);
        return;
    }
    read_object(raw, &o);
    role = value_of(&o, "role");
    content = value_of(&o, "content");
    if (!o.is_whole) {
        take_span(r, raw);
    } else if (role.ptr && content.ptr) {
        take_label(r, STR("{"));
        take_span(r, role);
        take_content(r, content);
    } else {
        take_members(r, &o);
    }
}

/* --- fields of the body ----------------------------------------------------------------------- */

static bool is_given(struct str raw) {
    return raw.ptr && !str_eq(raw, STR("null"));
}

static void take_system(struct reader *r, struct str raw) {
    if (!is_given(raw)) return;
    take_label(r, STR("{\"system\""));
    take_content(r, raw);
}

/* An array of messages; a string is that of the user. */
static void take_messages(struct reader *r, struct str raw) {
    struct raw_walk walk;
    struct str message;

    if (!is_given(raw)) return;
    if (raw.ptr[0] != '[') {
        take_label(r, STR("{\"user\""));
        take_span(r, raw);
        return;
    }
    walk = raw_walk_of(raw);
    while (raw_next_item(&walk, &message))
        take_message(r, message);
}

size_t prompt_text_read(const struct prompt_text *text, prompt_take_fn *take, void *arg) {
    const struct str *spans = text->scan->spans;
    struct reader r = {.noise = text->noise, .take = take, .arg = arg};
    size_t n_system;

    switch (text->api) {
    case API_MESSAGES: take_system(&r, spans[BODY_SYSTEM]); break;
    case API_RESPONSES: take_system(&r, spans[BODY_INSTRUCTIONS]); break;
    case API_OPENAI: take_span(&r, spans[BODY_SYSTEM]); break;
    }
    n_system = r.n;
    switch (text->api) {
    case API_MESSAGES: take_messages(&r, spans[BODY_MESSAGES]); break;
    case API_RESPONSES: take_messages(&r, spans[BODY_INPUT]); break;
    case API_OPENAI: take_span(&r, body_scan_prompt(text->scan)); break;
    }
    return n_system;
}

size_t prompt_text_max(const struct body_scan *scan, enum api_form api) {
    const struct str *spans = scan->spans;

    switch (api) {
    case API_MESSAGES: return spans[BODY_SYSTEM].len + spans[BODY_MESSAGES].len + LABELS_MAX;
    case API_RESPONSES: return spans[BODY_INSTRUCTIONS].len + spans[BODY_INPUT].len + LABELS_MAX;
    case API_OPENAI: break;
    }
    return spans[BODY_SYSTEM].len + body_scan_prompt(scan).len;
}

enum api_form prompt_api_of(const struct body_scan *scan) {
    if (scan->spans[BODY_INPUT].ptr || scan->spans[BODY_INSTRUCTIONS].ptr) return API_RESPONSES;
    return scan->spans[BODY_SYSTEM].ptr ? API_MESSAGES : API_OPENAI;
}
