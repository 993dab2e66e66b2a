/* tests/unit/router/prompt/test_body_scan.c - spans, refusals, and all versions against a plain
 * reader. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/rng.h"
#include "router/prompt/body_scan.h"
#include "router/prompt/body_scan_internal.h"
#include "router/prompt/string_scan_inline.h"
#include "tests/support/cm.h"

/* --- the obvious reader: recursive descent, byte by byte ------------------------------------- */

struct reader {
    const uint8_t *p, *end;
    int depth;
};

static void skip_space(struct reader *r) {
    while (r->p < r->end && strchr(" \t\n\r", *r->p) && *r->p)
        r->p++;
}

static bool read_string(struct reader *r) {
    if (r->p == r->end || *r->p != '"') return false;
    const uint8_t *start = ++r->p;
    while (r->p < r->end && *r->p != '"') {
        if (*r->p < 0x20) return false;
        if (*r->p == '\\' && ++r->p == r->end) return false;
        if (*r->p < 0x20) return false;
        r->p++;
    }
    if (r->p == r->end) return false;
    return str_is_utf8((struct str){(const char *)start, (size_t)(r->p++ - start)});
}

static bool read_value(struct reader *r);

static bool read_members(struct reader *r, bool is_object) {
    uint8_t close = is_object ? '}' : ']';

    if (++r->depth > BODY_DEPTH_MAX) return false;
    r->p++;
    skip_space(r);
    if (r->p < r->end && *r->p == close) {
        r->p++, r->depth--;
        return true;
    }
    for (;;) {
        skip_space(r);
        if (is_object) {
            if (!read_string(r)) return false;
            skip_space(r);
            if (r->p == r->end || *r->p++ != ':') return false;
        }
        if (!read_value(r)) return false;
        skip_space(r);
        if (r->p == r->end) return false;
        if (*r->p == close) break;
        if (*r->p++ != ',') return false;
    }
    r->p++, r->depth--;
    return true;
}

static bool read_value(struct reader *r) {
    skip_space(r);
    if (r->p == r->end) return false;
    if (*r->p == '{' || *r->p == '[') return read_members(r, *r->p == '{');
    if (*r->p == '"') return read_string(r);
    const uint8_t *start = r->p;
    while (r->p < r->end &&
           ((*r->p >= '0' && *r->p <= '9') || ((*r->p | 32) >= 'a' && (*r->p | 32) <= 'z') ||
            *r->p == '-' || *r->p == '+' || *r->p == '.'))
        r->p++;
    return r->p > start;
}

static bool reads(struct str s) {
    struct reader r = {(const uint8_t *)s.ptr, (const uint8_t *)s.ptr + s.len, 0};

    skip_space(&r);
    if (r.p == r.end || *r.p != '{') return false;
    if (!read_value(&r)) return false;
    skip_space(&r);
    return r.p == r.end;
}

/* --- helpers --------------------------------------------------------------------------------- */

static struct body_scan scan_ok(const char *body) {
    struct body_scan s;
    struct error err = {0};
    enum status st = body_scan(str_of(body), &s, &err);

    if (st != ST_OK) print_error("%s\n", err.message);
    assert_int_equal(st, ST_OK);
    return s;
}

static void refused(struct str body, const char *why) {
    struct body_scan s;
    struct error err = {0};

    assert_int_equal(body_scan(body, &s, &err), ST_INVALID);
    if (!strstr(err.message, why)) print_error("message: %s\n", err.message);
    assert_non_null(strstr(err.message, why));
}

#define assert_span(s, key, text)                                                                  \
    do {                                                                                           \
        assert_int_equal((s).spans[key].len, strlen(text));                                        \
        assert_memory_equal((s).spans[key].ptr, text, strlen(text));                               \
    } while (0)

/* --- tests ----------------------------------------------------------------------------------- */

static void spans_are_the_raw_values(void **state) {
    (void)state;
    struct body_scan s = scan_ok(
        " {\"model\" : \"m\\\"x\", "
        "\"messages\":[{\"role\":\"user\",\"content\":\"{\\\"model\\\":1}\"}] ,"
        "\"tools\":[],\"cache_salt\":\"s\",\"lora_path\":null,\"stream\":true,\"user\":\"u\","
        "\"max_tokens\":17,\"prompt_cache_key\":\"k\"}\n");

    assert_span(s, BODY_MODEL, "\"m\\\"x\"");
    assert_span(s, BODY_MESSAGES, "[{\"role\":\"user\",\"content\":\"{\\\"model\\\":1}\"}]");
    assert_span(s, BODY_TOOLS, "[]");
    assert_span(s, BODY_LORA_PATH, "null");
    assert_span(s, BODY_PROMPT_CACHE_KEY, "\"k\"");
    assert_null(s.spans[BODY_PROMPT].ptr);
    assert_true(s.is_stream);
    assert_int_equal(s.max_output_tokens, 17);
    assert_ptr_equal(body_scan_prompt(&s).ptr, s.spans[BODY_MESSAGES].ptr);
    assert_int_equal(body_unquote(s.spans[BODY_CACHE_SALT]).len, 1);
}

static void fields_of_messages_and_responses_are_found(void **state) {
    (void)state;
    struct body_scan s = scan_ok("{\"instructions\":\"i\",\"input\":[{}],\"max_output_tokens\":9,"
                                 "\"previous_response_id\":\"resp_1\",\"metadata\":{\"a\":1}}");

    assert_span(s, BODY_INSTRUCTIONS, "\"i\"");
    assert_span(s, BODY_INPUT, "[{}]");
    assert_span(s, BODY_PREVIOUS_RESPONSE_ID, "\"resp_1\"");
    assert_span(s, BODY_METADATA, "{\"a\":1}");
    assert_int_equal(s.max_output_tokens, 9);
    assert_null(s.spans[BODY_MESSAGES].ptr);
    s = scan_ok("{\"system\":[],\"messages\":[],\"max_tokens\":7}");
    assert_span(s, BODY_SYSTEM, "[]");
    assert_null(s.spans[BODY_METADATA].ptr);
    assert_int_equal(s.max_output_tokens, 7);
}

static void a_model_is_its_name_however_it_is_spelt(void **state) {
    static const struct {
        const char *body, *model;
    } cases[] = {
        {"{\"model\":\"a/b\"}", "a/b"},
        {"{\"model\":\"a\\/b\"}", "a/b"},
        {"{\"model\":\"\\u0061\\u00e9\"}", "a\xc3\xa9"},
        {"{\"model\":\"\"}", ""},
        {"{\"model\": null}", NULL},
        {"{}", NULL},
        {"{\"model\": 7}", "7"},
    };

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct body_scan scan = {0};

        assert_int_equal(body_scan(str_of(cases[i].body), &scan, NULL), ST_OK);
        assert_int_equal(scan.model.ptr == NULL, cases[i].model == NULL);
        assert_true(str_eq(scan.model, str_of(cases[i].model)));
    }
}

static void a_model_too_long_for_a_name_stays_as_it_is(void **state) {
    char body[WIRE_MODEL_MAX + 64] = "{\"model\":\"\\/";
    struct body_scan scan = {0};
    size_t n = strlen(body);

    (void)state;
    memset(body + n, 'x', WIRE_MODEL_MAX);
    memcpy(body + n + WIRE_MODEL_MAX, "\"}", 3);
    assert_int_equal(body_scan(str_of(body), &scan, NULL), ST_OK);
    assert_int_equal(scan.model.len, WIRE_MODEL_MAX + 2);
    assert_ptr_equal(scan.model.ptr, body + n - 2);
}

static void only_the_top_level_is_searched(void **state) {
    (void)state;
    struct body_scan s =
        scan_ok("{\"x\":{\"model\":1,\"model\":2},\"prompt\":\"a\",\"y\":[{\"stream\":true}]}");

    assert_null(s.spans[BODY_MODEL].ptr);
    assert_false(s.is_stream);
    assert_span(s, BODY_PROMPT, "\"a\"");
}

static void the_output_limit_has_three_names(void **state) {
    (void)state;
    assert_int_equal(scan_ok("{\"max_completion_tokens\":5,\"max_tokens\":9}").max_output_tokens,
                     5);
    assert_int_equal(
        scan_ok("{\"sampling_params\":{\"a\":[1],\"max_new_tokens\": 7 }}").max_output_tokens, 7);
    assert_int_equal(scan_ok("{\"max_tokens\":-1}").max_output_tokens, 0);
    assert_int_equal(scan_ok("{\"max_tokens\":99999999999}").max_output_tokens, UINT32_MAX);
}

static void an_escaped_key_is_the_same_key(void **state) {
    (void)state;
    assert_span(scan_ok("{\"\\u006dode\\u006C\":\"a\"}"), BODY_MODEL, "\"a\"");
    refused(STR("{\"model\":1,\"mod\\u0065l\":2}"), "key \"mod\\u0065l\" twice");
    refused(STR("{\"mo\\xdel\":1}"), "invalid escape");
    refused(STR("{\"mo\\u12\":1}"), "invalid escape");
}

static void each_mistake_is_reported(void **state) {
    char deep[300] = "{\"a\":";
    (void)state;

    refused(STR(""), "is empty");
    refused(STR("  "), "ends too early");
    refused(STR("[1]"), "not a JSON object");
    refused(STR("\"a\""), "not a JSON object");
    refused(STR("17"), "not a JSON object");
    refused(STR("{\"a\":1,}"), "expected a key in quotes at byte 7, found '}'");
    refused(STR("{\"a\" 1}"), "expected ':' at byte 5, found '1'");
    refused(STR("{\"a\":1 2}"), "expected ',' or the closing bracket at byte 7");
    refused(STR("{\"a\":[1}}"), "found '}'");
    refused(STR("{\"a\":1]"), "found ']'");
    refused(STR("{\"a\":1}}"), "expected nothing more at byte 7");
    refused(STR("{\"a\":1} x"), "expected nothing more");
    refused(STR("{\"a\":\"b"), "expected the end of a string");
    refused(STR("{\"a\":\"b\\\"}"), "ends too early");
    refused(STR("{\"a\":\"x\ny\"}"), "control byte 0x0A in a string at byte 7");
    refused(STR("{\"a\":\"x\0y\"}"), "control byte 0x00");
    refused(STR("{\"a\":\"\xC0\x80\"}"), "UTF-8 at byte 6");
    refused(STR("{\"a\":\"\xED\xA0\x80\"}"), "UTF-8");
    refused(STR("{\"a\":\"\xE2\x82\"}"), "UTF-8");
    refused(STR("{\"a\":#}"), "expected a value at byte 5, found '#'");
    refused(STR("{\"a\":1#}"), "found '#'");
    refused(STR("{\"a\":1,\"b\":2,\"a\":3}"), "\"a\" twice, again at byte 14");
    for (int i = 0; i < BODY_DEPTH_MAX; i++)
        strcat(deep, "[");
    refused(str_of(deep), "deeper than 64 levels at byte 68");
}

static void depth_64_is_allowed(void **state) {
    char body[300] = "{\"a\":";
    (void)state;

    for (int i = 1; i < BODY_DEPTH_MAX; i++)
        strcat(body, "[");
    for (int i = 1; i < BODY_DEPTH_MAX; i++)
        strcat(body, "]");
    scan_ok(strcat(body, "}"));
}

static void too_many_keys_are_refused(void **state) {
    char body[8192] = "{", key[32];
    (void)state;

    for (int i = 0; i < BODY_KEYS_MAX + 1; i++) {
        snprintf(key, sizeof(key), "%s\"k%d\":1", i ? "," : "", i);
        strcat(body, key);
    }
    refused(str_of(strcat(body, "}")), "more than 256");
}

/* A random object: nested, with strings that hold quotes, backslashes and non-ASCII text. */
static size_t random_value(struct rng *r, char *out, int depth, bool is_top) {
    static const char *const texts[] = {"\"\"",
                                        "\"plain text that is a little longer, so there\"",
                                        "\"\\\\\\\"\"",
                                        "\"\\\\\"",
                                        "\"\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80\"",
                                        "17",
                                        "-1.5e3",
                                        "true",
                                        "null",
                                        "\"a{b}[c],:\""};
    char *p = out;
    uint64_t kind = is_top ? 0 : rng_below(r, depth > 5 ? 1 : 3) + (depth > 5 ? 2 : 0);

    if (kind == 2) return (size_t)sprintf(out, "%s", texts[rng_below(r, ARRAY_LEN(texts))]);
    uint64_t n = rng_below(r, 5);
    *p++ = kind ? '[' : '{';
    for (uint64_t i = 0; i < n; i++) {
        if (i) *p++ = ',';
        for (uint64_t k = rng_below(r, 3); k; k--)
            *p++ = " \t\n\r"[rng_below(r, 4)];
        if (!kind) p += sprintf(p, "\"k%d%s\":", (int)i, rng_below(r, 4) ? "" : "\\\\");
        p += random_value(r, p, depth + 1, false);
    }
    *p++ = kind ? ']' : '}';
    return (size_t)(p - out);
}

static const struct string_scan *plain(void) {
    uint32_t i = 0;

    while (string_scan_at(i + 1))
        i++;
    return string_scan_at(i);
}

/* Every version accepts and refuses the same, with the same spans and words, and so does the
 * obvious reader (which does not look for duplicates: the random keys differ unless mutated). */
static void versions_agree_with_a_plain_reader(void **state) {
    static char body[1 << 18];
    struct rng r;
    int n_good = 0;
    (void)state;

    rng_seed(&r, 7);
    for (int round = 0; round < 20000; round++) {
        size_t n = random_value(&r, body, 0, true);
        uint64_t n_mutations = rng_below(&r, 3);
        struct body_scan first, s;
        struct error err = {0}, err2;

        if (n > 3000) continue;
        for (uint64_t i = 0; i < n_mutations; i++) {
            static const char bytes[] = "\"\\{}[]:, a1\n\x01\x80\xC3\xE2";
            size_t at = rng_below(&r, n);

            if (rng_below(&r, 3)) {
                body[at] = bytes[rng_below(&r, sizeof(bytes))];
            } else {
                memmove(body + at, body + at + 1, n - at - 1);
                if (n > 1) n--;
            }
        }
        char *exact = malloc(n); /* so that a sanitizer sees any byte read too far */
        memcpy(exact, body, n);
        enum status st = body_scan_with((struct str){exact, n}, &first, plain(), &err);
        bool is_good = reads((struct str){exact, n});
        if (st != ST_OK && is_good && !strstr(err.message, "twice") &&
            !strstr(err.message, "escape")) {
            print_error("%.*s\n%s\n", (int)n, exact, err.message);
            fail();
        }
        if (st == ST_OK) assert_true(is_good);
        n_good += is_good;
        for (uint32_t i = 0; string_scan_at(i); i++) {
            err2 = (struct error){0};
            assert_int_equal(body_scan_with((struct str){exact, n}, &s, string_scan_at(i), &err2),
                             st);
            assert_string_equal(err.message, err2.message);
            if (st == ST_OK) assert_memory_equal(&s.spans, &first.spans, sizeof(s.spans));
        }
        free(exact);
    }
    assert_in_range(n_good, 4000, 18000);
}

/* From each position of a text full of what matters, in a body that ends anywhere. */
static void all_versions_find_the_same_end(void **state) {
    static const char bytes[] = "\"\\\\\\ax\x1F\x80\xFF \x7F";
    uint8_t body[5 * 64];
    struct rng r;
    (void)state;

    rng_seed(&r, 11);
    for (int round = 0; round < 3000; round++) {
        size_t n = 1 + rng_below(&r, sizeof(body)), pos = rng_below(&r, n + 1);
        uint64_t rarity = 1 + rng_below(&r, 60);

        for (size_t i = 0; i < n; i++)
            body[i] =
                rng_below(&r, rarity) ? 'a' : (uint8_t)bytes[rng_below(&r, sizeof(bytes) - 1)];
        uint8_t *exact = malloc(n);
        memcpy(exact, body, n);
        struct string_scan_end want = string_scan_end_plain(exact, n, pos);
        for (uint32_t i = 0; string_scan_at(i); i++) {
            struct string_scan_end got = string_scan_at(i)->end(exact, n, pos);

            assert_int_equal(got.at, want.at);
            assert_int_equal(got.is_ascii, want.is_ascii);
        }
        free(exact);
    }
}

/* Each byte at each place, in front of others that matter and of others that do not. */
static void a_short_look_stops_at_the_first_special_byte(void **state) {
    uint8_t text[TEXT_SHORT_BYTES];
    struct rng r;
    (void)state;

    rng_seed(&r, 12);
    for (uint32_t at = 0; at < TEXT_SHORT_BYTES; at++) {
        for (uint32_t c = 0; c < 256; c++) {
            bool is_special = c < 0x20 || c >= 0x80 || c == '"' || c == '\\';

            memset(text, 'a', at);
            for (uint32_t i = at; i < TEXT_SHORT_BYTES; i++)
                text[i] = is_special ? (uint8_t)rng_below(&r, 256) : 'z';
            text[at] = (uint8_t)c;
            assert_int_equal(text_short_len(text), is_special ? at : TEXT_SHORT_BYTES);
            assert_int_equal(text_short_len_of_words(text), is_special ? at : TEXT_SHORT_BYTES);
        }
    }
}

/* A random character, well formed. */
static size_t random_char(struct rng *r, uint8_t *out) {
    static const uint32_t limits[] = {0x80, 0x800, 0x10000, 0x110000};
    uint32_t c = (uint32_t)rng_below(r, limits[rng_below(r, 4)]);

    if (c >= 0xD800 && c < 0xE000) c = 0xFFFD;
    if (c < 0x80) {
        out[0] = (uint8_t)c;
        return 1;
    }
    if (c < 0x800) {
        out[0] = (uint8_t)(0xC0 | c >> 6), out[1] = (uint8_t)(0x80 | (c & 0x3F));
        return 2;
    }
    if (c < 0x10000) {
        out[0] = (uint8_t)(0xE0 | c >> 12), out[1] = (uint8_t)(0x80 | (c >> 6 & 0x3F));
        out[2] = (uint8_t)(0x80 | (c & 0x3F));
        return 3;
    }
    out[0] = (uint8_t)(0xF0 | c >> 18), out[1] = (uint8_t)(0x80 | (c >> 12 & 0x3F));
    out[2] = (uint8_t)(0x80 | (c >> 6 & 0x3F)), out[3] = (uint8_t)(0x80 | (c & 0x3F));
    return 4;
}

static void all_versions_find_the_same_bad_sequence(void **state) {
    uint8_t text[300];
    struct rng r;
    int n_bad = 0;
    (void)state;

    rng_seed(&r, 13);
    for (int round = 0; round < 30000; round++) {
        size_t n = 0, n_chars = 1 + rng_below(&r, 70), want;
        bool is_mostly_ascii = rng_below(&r, 2);

        for (size_t i = 0; i < n_chars; i++) {
            if (is_mostly_ascii && rng_below(&r, 40))
                text[n++] = 'a';
            else
                n += random_char(&r, text + n);
        }
        for (uint64_t i = rng_below(&r, 3); i; i--) /* often at the end, where it may be cut */
            text[rng_below(&r, 4) ? rng_below(&r, n) : n - 1] =
                (uint8_t)(0x80 + rng_below(&r, 128));
        uint8_t *exact = malloc(n);
        memcpy(exact, text, n);
        want = string_scan_bad_utf8_plain(exact, n);
        assert_int_equal(want == n, str_is_utf8((struct str){(const char *)exact, n}));
        n_bad += want < n;
        for (uint32_t i = 0; string_scan_at(i); i++)
            assert_int_equal(string_scan_at(i)->bad_utf8(exact, n), want);
        free(exact);
    }
    assert_in_range(n_bad, 10000, 25000);
}

/* Every pair of a lead byte and the next, at each place of a group: every row of the tables. */
static void all_versions_judge_each_pair_of_bytes(void **state) {
    uint8_t text[140];
    (void)state;

    for (size_t at = 58; at < 68; at++) {
        for (uint32_t pair = 0; pair < 0x10000; pair++) {
            memset(text, 'a', sizeof(text));
            text[at] = (uint8_t)(pair >> 8), text[at + 1] = (uint8_t)pair;
            if (text[at] >= 0xE0) text[at + 2] = 0x80;
            if (text[at] >= 0xF0) text[at + 3] = 0xBF;
            size_t want = string_scan_bad_utf8_plain(text, sizeof(text));
            for (uint32_t i = 0; string_scan_at(i); i++) {
                size_t got = string_scan_at(i)->bad_utf8(text, sizeof(text));

                if (got != want) assert_int_equal(got, want);
            }
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(spans_are_the_raw_values),
        cmocka_unit_test(fields_of_messages_and_responses_are_found),
        cmocka_unit_test(a_model_is_its_name_however_it_is_spelt),
        cmocka_unit_test(a_model_too_long_for_a_name_stays_as_it_is),
        cmocka_unit_test(only_the_top_level_is_searched),
        cmocka_unit_test(the_output_limit_has_three_names),
        cmocka_unit_test(an_escaped_key_is_the_same_key),
        cmocka_unit_test(each_mistake_is_reported),
        cmocka_unit_test(depth_64_is_allowed),
        cmocka_unit_test(too_many_keys_are_refused),
        cmocka_unit_test(versions_agree_with_a_plain_reader),
        cmocka_unit_test(all_versions_find_the_same_end),
        cmocka_unit_test(a_short_look_stops_at_the_first_special_byte),
        cmocka_unit_test(all_versions_find_the_same_bad_sequence),
        cmocka_unit_test(all_versions_judge_each_pair_of_bytes),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
