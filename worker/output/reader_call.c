/* worker/output/reader_call.c - tries and calls: from the marker of a call to its end. */
#include <assert.h>
#include <stdio.h>

#include "common/base/rng.h"
#include "common/text/json.h"
#include "worker/output/reader_internal.h"

/* --- from one state to the next --------------------------------------------------------------- */

static enum reader_state after(const struct reader *r, enum reader_state s) {
    switch (s) {
    case READ_SECTION: return READ_OPEN;
    case READ_OPEN: return READ_OPEN_REST;
    case READ_OPEN_REST: return r->calls->body == BODY_OBJECT ? READ_OBJECT : READ_NAME;
    case READ_NAME_AFTER: return READ_ARGS_BEGIN;
    case READ_CLOSE: return r->calls->is_list ? READ_LIST : READ_TEXT;
    default: return READ_TEXT; /* READ_SECTION_END */
    }
}

static bool is_expecting(enum reader_state s) {
    return s >= READ_SECTION && s <= READ_SECTION_END;
}

/* Into a state; those that expect nothing are passed. */
static void enter(struct reader *r, enum reader_state s) {
    while (is_expecting(s) && r->expected[s].len == 0)
        s = after(r, s);
    r->state = s;
    r->n_match = 0;
    if (s == READ_NAME) r->n_name = 0;
    if (s == READ_OBJECT) r->object = (struct object){0};
    if (s == READ_TEXT || s == READ_LIST || s == READ_SECTION_END) buf_clear(&r->held);
}

void reader_try(struct reader *r, const struct marker *m) {
    r->from = r->state;
    r->is_begun = false;
    r->is_bare = m->is_bare;
    r->is_in_section |= m->then == READ_SECTION && !r->calls->is_list;
    buf_clear(&r->held);
    enter(r, m->then);
    if (m->is_bare && r->state == READ_OBJECT)
        reader_again(r, m->text);
    else
        for (size_t i = 0; i < m->text.len; i++)
            (void)reader_hold(r, m->text.ptr[i]);
}

/* What was read is no call, or ends one: it is text. The last bytes are read again: those that
 * began a text which then was another one, and the byte that made the difference. */
void reader_fail(struct reader *r, const char *c) {
    size_t n = buf_len(&r->held) - r->n_match;

    if (c) reader_again(r, (struct str){c, 1});
    reader_again(r, (struct str){buf_ptr(&r->held) + n, r->n_match});
    r->state = r->from;
    r->n_match = 0;
    reader_put(r, r->from, (struct str){buf_ptr(&r->held), n});
    buf_clear(&r->held);
}

/* Returns false if there is too much: then all is text, and the byte is read again. */
bool reader_hold(struct reader *r, char c) {
    if (r->is_begun) return true;
    buf_append_char(&r->held, c);
    if (!r->held.has_failed) return true;
    r->held.has_failed = false;
    r->n_match = 0;
    reader_fail(r, &c);
    return false;
}

/* --- the call --------------------------------------------------------------------------------- */

/* kimi-k2's header: `functions.NAME:N`. */
static struct str kimi_name(const struct reader *r) {
    struct str name = {r->name, r->n_name};
    size_t n = name.len;

    while (n > 0 && name.ptr[n - 1] >= '0' && name.ptr[n - 1] <= '9')
        n--;
    if (n > 1 && n < name.len && name.ptr[n - 1] == ':') name.len = n - 1;
    if (str_starts(name, STR("functions.")) && name.len > 10) {
        name.ptr += 10;
        name.len -= 10;
    } else if (n == 0) { /* a number alone: the tool, if there is one */
        const struct json *tool = json_first(r->setup->tools);
        const struct json *function = json_get(tool, "function");

        if (!tool || json_next(tool) ||
            json_to_str(json_get(function ? function : tool, "name"), &name) != ST_OK)
            return STR_NULL;
    }
    return name;
}

static struct str call_name(const struct reader *r) {
    if (r->calls->ids == IDS_KIMI) return kimi_name(r);
    return (struct str){r->name, r->n_name};
}

static void random_id(const struct reader *r, char *to, uint32_t n) {
    static const char alphabet[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789";
    struct rng rng;

    rng_seed(&rng, rng_at(r->setup->id_seed, r->n_calls));
    for (uint32_t i = 0; i < n; i++)
        to[i] = alphabet[rng_below(&rng, sizeof(alphabet) - 1)];
    to[n] = '\0';
}

static bool is_taken(const struct answer *a, const char *id) {
    for (uint32_t i = 0; i < a->n; i++)
        if (strcmp(a->part[i].id, id) == 0) return true;
    return false;
}

/* The model's own where it writes them, but none twice: clients find a result's call by it. */
static void make_id(const struct reader *r, struct str name, char id[ANSWER_ID_MAX]) {
    int n = ANSWER_ID_MAX;

    if (r->calls->ids == IDS_KIMI && r->n_name > 10 && r->n_name < ANSWER_ID_MAX &&
        str_starts((struct str){r->name, r->n_name}, STR("functions.")) &&
        name.len < r->n_name - 10) {
        n = snprintf(id, ANSWER_ID_MAX, STR_FMT, (int)r->n_name, r->name);
    } else if (r->calls->ids == IDS_KIMI) {
        n = snprintf(id, ANSWER_ID_MAX, "functions." STR_FMT ":%u", STR_ARG(name),
                     r->setup->n_earlier_calls + r->n_calls);
    } else if (r->calls->ids == IDS_MISTRAL) {
        random_id(r, id, 9);
        return;
    }
    if (n < ANSWER_ID_MAX && !is_taken(r->out, id)) return;
    memcpy(id, "call_", 5);
    random_id(r, id + 5, 24);
}

void reader_begin_call(struct reader *r) {
    struct str name = call_name(r);
    char id[ANSWER_ID_MAX];

    if (r->from == READ_REASONING)
        reader_leave_reasoning(r);
    else
        reader_end_text(r, r->calls->before ? strlen(r->calls->before) : 0);
    r->from = READ_TEXT;
    r->is_begun = r->has_part_before = true;
    r->is_muted = r->setup->is_single && r->n_calls > 0;
    make_id(r, name, id);
    if (!r->is_muted) answer_begin_call(r->out, name, str_of(id));
    r->n_calls++;
    buf_clear(&r->held);
}

void reader_put_arguments(struct reader *r, struct str json) {
    if (!r->is_muted) answer_add_arguments(r->out, json);
}

void reader_end_call(struct reader *r, bool is_cut) {
    if (!r->is_muted) answer_end_call(r->out, is_cut);
    r->is_muted = false;
}

static void begin_empty_call(struct reader *r) {
    reader_begin_call(r);
    reader_put_arguments(r, STR("{}"));
    reader_end_call(r, false);
}

/* After a call: what closes it may follow. */
void reader_close_call(struct reader *r) {
    r->is_begun = false;
    r->from = READ_TEXT;
    buf_clear(&r->held);
    enter(r, READ_CLOSE);
}

/* --- a call as an object ---------------------------------------------------------------------- */

static void object_fail(struct reader *r, char c) {
    if (r->is_begun) { /* the call is whole; what follows is not of it */
        reader_again(r, (struct str){&c, 1});
        reader_close_call(r);
    } else {
        reader_fail(r, &c);
    }
}

static void end_object(struct reader *r) {
    if (!r->is_begun && r->object.has_name && !r->is_bare) begin_empty_call(r);
    if (r->is_begun)
        reader_close_call(r);
    else if (reader_hold(r, '}'))
        reader_fail(r, NULL);
}

static void end_key(struct reader *r) {
    struct object *o = &r->object;
    struct str key = {o->text, o->n_text};

    o->key = str_eq(key, STR("name"))                                          ? KEY_NAME
             : str_eq(key, STR("arguments")) || str_eq(key, STR("parameters")) ? KEY_ARGS
                                                                               : KEY_OTHER;
    o->state = OBJECT_COLON;
}

/* An answer may begin with an object that is no call: that is known by its keys. */
static bool is_foreign_key(const struct reader *r) {
    struct str key = {r->object.text, r->object.n_text};

    return r->is_bare && r->object.key == KEY_OTHER && !str_eq(key, STR("type")) &&
           !str_eq(key, STR("id"));
}

static void end_name(struct reader *r) {
    struct object *o = &r->object;
    struct buf held = {0};
    enum json_scan_result result;

    o->has_name = true;
    o->state = OBJECT_AFTER;
    if (!o->has_args) return;
    held = r->held; /* the arguments came first */
    buf_init(&r->held, READER_HELD_MAX);
    reader_begin_call(r);
    r->scan = (struct json_scan){0};
    reader_scan_arguments(r, (struct str){buf_ptr(&held) + o->args_at, o->args_len}, &result);
    reader_end_call(r, false);
    buf_fini(&held);
}

static void object_value(struct reader *r, char c) {
    struct object *o = &r->object;
    bool is_args = o->key == KEY_ARGS && !o->has_args && !r->is_begun;

    r->scan = (struct json_scan){0};
    if (o->key == KEY_NAME && !o->has_name) {
        if (c != '"') {
            object_fail(r, c);
        } else if (reader_hold(r, c)) {
            o->state = OBJECT_NAME;
            r->n_name = 0;
        }
    } else if (is_args && c == '{') {
        o->state = OBJECT_ARGS;
        o->args_at = buf_len(&r->held);
        if (o->has_name)
            reader_begin_arguments(r, c);
        else
            reader_again(r, (struct str){&c, 1});
    } else if (is_args && c != 'n') { /* null are no arguments */
        object_fail(r, c);
    } else {
        o->state = OBJECT_OTHER;
        reader_again(r, (struct str){&c, 1});
    }
}

static void object_name(struct reader *r, char c) {
    if (c == '"' && r->n_name > 0) {
        if (reader_hold(r, c)) end_name(r);
    } else if (c == '"' || c == '\\' || (unsigned char)c < ' ' || r->n_name == READER_NAME_MAX ||
               reader_is_code(c)) {
        object_fail(r, c);
    } else if (reader_hold(r, c)) {
        r->name[r->n_name++] = c;
    }
}

/* A value that is held or of no interest. */
static void object_skip(struct reader *r, char c) {
    struct object *o = &r->object;
    enum json_scan_result result = json_scan_byte(&r->scan, c);

    if (result == SCAN_BAD) {
        object_fail(r, c);
    } else if (result == SCAN_END_BEFORE) {
        o->state = OBJECT_AFTER;
        reader_again(r, (struct str){&c, 1});
    } else if (reader_hold(r, c) && result == SCAN_END) {
        o->has_args |= o->state == OBJECT_ARGS;
        if (o->state == OBJECT_ARGS) o->args_len = buf_len(&r->held) - o->args_at;
        o->state = OBJECT_AFTER;
    }
}

static void object_key(struct reader *r, char c) {
    struct object *o = &r->object;

    if (c == '"') {
        end_key(r);
        if (is_foreign_key(r))
            object_fail(r, c);
        else
            (void)reader_hold(r, c);
    } else if (c == '\\' || (unsigned char)c < ' ' || reader_is_code(c)) {
        object_fail(r, c);
    } else if (reader_hold(r, c)) {
        o->text[o->n_text] = c;
        o->n_text += o->n_text + 1 < sizeof(o->text);
    }
}

/* A bracket, comma or colon, and the state after it. */
static void object_mark(struct reader *r, char c, char expected, enum object_state next) {
    if (reader_is_blank(c)) {
        (void)reader_hold(r, c);
    } else if (c == '}' &&
               (r->object.state == OBJECT_AFTER || r->object.state == OBJECT_FIRST_KEY)) {
        end_object(r);
    } else if (c != expected) {
        object_fail(r, c);
    } else if (reader_hold(r, c)) {
        r->object.state = next;
        r->object.n_text = 0;
    }
}

static void object_byte(struct reader *r, char c) {
    switch (r->object.state) {
    case OBJECT_BEGIN: object_mark(r, c, '{', OBJECT_FIRST_KEY); break;
    case OBJECT_FIRST_KEY:
    case OBJECT_NEXT_KEY: object_mark(r, c, '"', OBJECT_KEY); break;
    case OBJECT_KEY: object_key(r, c); break;
    case OBJECT_COLON: object_mark(r, c, ':', OBJECT_VALUE); break;
    case OBJECT_VALUE:
        if (reader_is_blank(c))
            (void)reader_hold(r, c);
        else
            object_value(r, c);
        break;
    case OBJECT_NAME: object_name(r, c); break;
    case OBJECT_ARGS:
    case OBJECT_OTHER: object_skip(r, c); break;
    case OBJECT_AFTER: object_mark(r, c, ',', OBJECT_NEXT_KEY); break;
    }
}

/* --- other calls ------------------------------------------------------------------------------ */

static void expect_byte(struct reader *r, char c) {
    struct str text = r->expected[r->state];

    bool is_surplus = r->state == READ_CLOSE && c == '}'; /* models write one too many */

    if (r->n_match == 0 && (reader_is_blank(c) || is_surplus)) {
        (void)reader_hold(r, c);
    } else if (c == text.ptr[r->n_match]) {
        if (reader_hold(r, c) && ++r->n_match == text.len) enter(r, after(r, r->state));
    } else if (r->state == READ_NAME_AFTER && r->n_match == 0 && c == '{' && !r->calls->arguments) {
        reader_again(r, (struct str){&c, 1}); /* arguments without a mark before them */
        enter(r, READ_ARGS_BEGIN);
    } else {
        reader_fail(r, &c);
    }
}

static bool is_of_name(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           (c != '\0' && strchr("_-.:/$@", c)) || ((unsigned char)c >= 0x80 && !reader_is_code(c));
}

static void name_byte(struct reader *r, char c) {
    bool is_quote = c == '"' || c == '\'';

    if (is_of_name(c) && r->n_name < READER_NAME_MAX) {
        if (reader_hold(r, c)) r->name[r->n_name++] = c;
    } else if (r->n_name == 0 && (reader_is_blank(c) || is_quote)) {
        (void)reader_hold(r, c);
    } else if (r->n_name == 0 || r->n_name == READER_NAME_MAX || call_name(r).len == 0) {
        reader_fail(r, &c);
    } else {
        if (!is_quote)
            reader_again(r, (struct str){&c, 1});
        else if (!reader_hold(r, c))
            return;
        enter(r, READ_NAME_AFTER);
    }
}

static void arguments_begin_byte(struct reader *r, char c) {
    struct str close = r->expected[READ_CLOSE];

    if (r->calls->arguments) {
        reader_begin_styled(r);
        reader_again(r, (struct str){&c, 1});
    } else if (reader_is_blank(c)) {
        (void)reader_hold(r, c);
    } else if (c == '{') {
        r->state = READ_ARGS;
        reader_begin_arguments(r, c);
    } else if (close.len > 0 && c == close.ptr[0]) {
        reader_again(r, (struct str){&c, 1});
        begin_empty_call(r);
        reader_close_call(r);
    } else {
        reader_fail(r, &c);
    }
}

static void list_byte(struct reader *r, char c) {
    if (reader_is_blank(c)) {
        (void)reader_hold(r, c);
    } else if (c == ',' || c == ';') {
        if (reader_hold(r, c)) enter(r, READ_OPEN);
    } else if (c == ']' && r->calls->section_end) {
        enter(r, READ_SECTION_END);
    } else {
        reader_fail(r, &c);
    }
}

void reader_call_byte(struct reader *r, char c) {
    if (reader_is_in_arguments(r)) {
        uint32_t at = r->n_again;

        if (reader_arguments(r, (struct str){&c, 1}) > 0) return;
        assert(r->n_again < sizeof(r->again)); /* behind what is read again before it */
        memmove(r->again + at + 1, r->again + at, r->n_again++ - at);
        r->again[at] = c;
    } else if (is_expecting(r->state)) {
        expect_byte(r, c);
    } else {
        switch (r->state) {
        case READ_NAME: name_byte(r, c); break;
        case READ_ARGS_BEGIN: arguments_begin_byte(r, c); break;
        case READ_OBJECT: object_byte(r, c); break;
        default: list_byte(r, c); break;
        }
    }
}

/* --- the end ---------------------------------------------------------------------------------- */

void reader_finish_call(struct reader *r, bool is_cut) {
    bool is_between =
        r->state == READ_CLOSE || r->state == READ_LIST || r->state == READ_SECTION_END;

    r->n_match = 0;
    if (r->state == READ_ARGS_BEGIN && r->calls->arguments) reader_begin_styled(r);
    if (reader_is_in_arguments(r)) {
        reader_finish_arguments(r, is_cut);
    } else if (r->state == READ_ARGS_BEGIN && is_cut) {
        reader_begin_call(r);
        reader_end_call(r, true);
    } else if (r->state == READ_ARGS_BEGIN) {
        begin_empty_call(r);
    } else if (r->state == READ_OBJECT && !r->is_begun && r->object.has_name && !r->is_bare) {
        reader_begin_call(r);
        reader_end_call(r, true);
    } else if (!is_between && !r->is_begun) {
        reader_put(r, r->from, buf_str(&r->held));
    }
    r->state = r->from;
}
