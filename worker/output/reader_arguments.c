/* worker/output/reader_arguments.c - the arguments of a call that has its name.
 *
 * JSON is passed on as it is; another notation becomes JSON (worker/output/arguments/). */
#include <assert.h>

#include "common/text/json.h"
#include "worker/output/reader_internal.h"

/* --- JSON ------------------------------------------------------------------------ */

/* A byte in a string that JSON does not have there: models write newlines into strings, and the
 * text of markers. */
static void put_special(struct reader *r, char c) {
    struct str code = reader_code_text(r, c);
    struct buf json;

    buf_init(&json, 0);
    json_escape(&json, code.len > 0 ? code : (struct str){&c, 1});
    reader_put_arguments(r, buf_str(&json));
    buf_fini(&json);
}

size_t reader_scan_arguments(struct reader *r, struct str text, enum json_scan_result *result) {
    size_t i = 0, from = 0;

    *result = SCAN_MORE;
    while (i < text.len && *result == SCAN_MORE) {
        char c;

        i += json_scan_run(&r->scan, (struct str){text.ptr + i, text.len - i});
        if (i == text.len) break;
        c = text.ptr[i];
        *result = json_scan_byte(&r->scan, c);
        if (*result == SCAN_BAD || *result == SCAN_END_BEFORE) break;
        i++;
        if (!r->scan.in_string || json_scan_is_plain(c)) continue;
        reader_put_arguments(r, (struct str){text.ptr + from, i - 1 - from});
        put_special(r, c);
        from = i;
    }
    reader_put_arguments(r, (struct str){text.ptr + from, i - from});
    return i;
}

static void cut_call(struct reader *r) {
    reader_end_call(r, true);
    reader_close_call(r);
}

/* --- styles ----------------------------------------------------------------------------------- */

static const struct json *find_parameters(const struct reader *r) {
    struct str name;

    JSON_FOR_EACH(tool, r->setup->tools) {
        const struct json *function = json_get(tool, "function");

        if (!function) function = tool;
        if (json_to_str(json_get(function, "name"), &name) == ST_OK &&
            str_eq(name, (struct str){r->name, r->n_name}))
            return json_get(function, "parameters");
    }
    return NULL;
}

void reader_begin_styled(struct reader *r) {
    enum arguments_style style = ARGUMENTS_QWEN_XML;

    assert(r->n_codes <= ARGUMENTS_MAX_TOKENS);
    for (uint32_t i = 0; i < r->n_codes; i++)
        r->code_z[i] = r->code[i].text.ptr;
    (void)arguments_style_find(str_of(r->calls->arguments), &style);
    r->styled = arguments_create(style, find_parameters(r), r->code_z, r->n_codes);
    r->state = READ_ARGS;
}

/* What was held may end with the beginning of another call's marker. */
static void fail_styled(struct reader *r) {
    struct str held = buf_str(&r->held);
    uint32_t longest = 0;

    for (uint32_t i = 0; i < r->n_markers; i++)
        for (size_t n = 1; n < MIN(r->marker[i].text.len, held.len); n++)
            if (r->marker[i].role == MARKER_CALL && n > longest &&
                str_starts(r->marker[i].text, (struct str){held.ptr + held.len - n, n}))
                longest = (uint32_t)n;
    r->n_match = longest;
    reader_fail(r, NULL);
}

static void put_styled(struct reader *r) {
    if (buf_len(&r->json) > 0 && !r->is_begun) reader_begin_call(r);
    reader_put_arguments(r, buf_str(&r->json));
    if (r->json.has_failed) r->out->is_incomplete = true;
    buf_clear(&r->json);
}

static void end_styled(struct reader *r, enum arguments_state st) {
    arguments_destroy(r->styled);
    r->styled = NULL;
    if (st == ARGUMENTS_BROKEN && !r->is_begun) {
        fail_styled(r);
        return;
    }
    if (!r->is_begun) reader_begin_call(r);
    reader_end_call(r, st != ARGUMENTS_DONE);
    reader_close_call(r);
}

/* So many bytes at most, but one character. */
static size_t whole_characters(struct str text, size_t most) {
    size_t n = most;

    while (n > 0 && ((unsigned char)text.ptr[n] & 0xC0) == 0x80)
        n--;
    return n > 0 ? n : MAX(str_utf8_len(text), 1u);
}

/* What is held is pushed no further than it can be held: where it fails does not depend on how the
 * text is divided. */
static size_t push_styled(struct reader *r, struct str text) {
    size_t n = 0, room = READER_HELD_MAX - buf_len(&r->held);
    enum arguments_state st;

    if (!reader_is_code(*text.ptr)) {
        while (n < text.len && !reader_is_code(text.ptr[n]))
            n++;
        if (!r->is_begun && n > room) n = whole_characters(text, room);
        st = arguments_push(r->styled, (struct str){text.ptr, n}, &n, &r->json);
    } else {
        bool is_used = false;

        st = arguments_push_token(r->styled, reader_code_number(r, *text.ptr), &is_used, &r->json);
        n = is_used;
    }
    put_styled(r);
    for (size_t i = 0; i < n; i++)
        if (!reader_hold(r, text.ptr[i])) { /* it is text; the last byte is read again */
            arguments_destroy(r->styled);
            r->styled = NULL;
            return i + 1;
        }
    if (st != ARGUMENTS_MORE) end_styled(r, st);
    return n;
}

/* --- both ------------------------------------------------------------------------------------- */

bool reader_is_in_arguments(const struct reader *r) {
    return r->state == READ_ARGS ||
           (r->state == READ_OBJECT && r->is_begun && r->object.state == OBJECT_ARGS);
}

size_t reader_arguments(struct reader *r, struct str text) {
    enum json_scan_result result;
    size_t n;

    if (r->styled) return push_styled(r, text);
    n = reader_scan_arguments(r, text, &result);
    if (result == SCAN_BAD) {
        cut_call(r);
    } else if (result == SCAN_END) {
        reader_end_call(r, false);
        if (r->state == READ_OBJECT)
            r->object.state = OBJECT_AFTER;
        else
            reader_close_call(r);
    }
    return n;
}

void reader_begin_arguments(struct reader *r, char c) {
    reader_begin_call(r);
    r->scan = (struct json_scan){0};
    reader_arguments(r, (struct str){&c, 1});
}

void reader_finish_arguments(struct reader *r, bool is_cut) {
    if (!r->styled) {
        reader_end_call(r, true);
    } else {
        enum arguments_state st = arguments_finish(r->styled, is_cut, &r->json);

        put_styled(r);
        end_styled(r, st);
    }
}
