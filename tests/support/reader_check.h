/* tests/support/reader_check.h - an answer against the parts that are expected (reader_fixture.h).
 *
 * Each text is read whole, byte by byte and cut at every place, with markers as tokens and as
 * text. */
#ifndef TESTS_SUPPORT_READER_CHECK_H
#define TESTS_SUPPORT_READER_CHECK_H

#include "tests/support/cm.h"
#include "tests/support/reader_fixture.h"

/* Reads a text whole, byte by byte, and cut once at each place. */
static inline void check_one(const char *calls, const char *reasoning, bool has_tokens,
                             bool is_open, bool is_cut, struct str text, const char *expected) {
    struct reader_fixture f;
    struct buf got;

    buf_init(&got, 0);
    reader_fixture_init(&f, calls, reasoning, has_tokens);
    f.setup.begins_in_reasoning = is_open;
    for (size_t at = 0; at <= text.len; at++) {
        struct str a = {text.ptr, at}, b = {text.ptr + at, text.len - at};

        if (at > 0 && at < text.len && ((unsigned char)*b.ptr & 0xC0) == 0x80) continue;
        reader_fixture_begin(&f);
        if (has_tokens) { /* a cut may not divide a token */
            reader_fixture_push(&f, text, at + 1);
        } else {
            reader_fixture_push(&f, a, SIZE_MAX);
            reader_fixture_push(&f, b, at == 0 ? 1 : SIZE_MAX);
        }
        reader_fixture_end(&f, is_cut);
        buf_clear(&got);
        reader_fixture_print(&f, &got);
        buf_append_char(&got, '\0');
        if (strcmp(buf_ptr(&got), expected) != 0)
            fail_msg("%s, %s, cut at %zu of:\n%s\ngave:\n%swanted:\n%s", calls ? calls : "none",
                     has_tokens ? "tokens" : "text", at, text.ptr, buf_ptr(&got), expected);
        answer_fini(&f.answer);
    }
    reader_fixture_fini(&f);
    buf_fini(&got);
}

static inline void check(const char *calls, const char *text, const char *expected) {
    check_one(calls, NULL, false, false, false, str_of(text), expected);
    check_one(calls, NULL, true, false, false, str_of(text), expected);
}

static inline void check_reasoning(const char *reasoning, bool is_open, const char *text,
                                   const char *expected) {
    check_one(NULL, reasoning, false, is_open, false, str_of(text), expected);
    check_one(NULL, reasoning, true, is_open, false, str_of(text), expected);
}

static inline void check_cut(const char *calls, const char *text, const char *expected) {
    check_one(calls, NULL, false, false, true, str_of(text), expected);
    check_one(calls, NULL, true, false, true, str_of(text), expected);
}

#endif
