/* tests/unit/router/prompt/test_client_noise.c - what is cut, what is left alone, and that the rest
 * of any body stays readable. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/rng.h"
#include "router/prompt/client_noise.h"
#include "router/prompt/prompt_hash.h"
#include "router/prompt/prompt_text.h"
#include "tests/support/cm.h"

#define H        "x-anthropic-billing-header: cc_version=2.1; cch=0a1b2;"
#define T        "<total_tokens>12345 tokens left</total_tokens>"
#define USER     "\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]"
#define BLOCK(t) "{\"type\":\"text\",\"text\":\"" t "\"}"
#define BODY(s)  "{\"system\":" s "," USER "}"
#define CHAT(c)  "{\"messages\":[{\"role\":\"system\",\"content\":" c "},{\"role\":\"user\"}]}"

static struct client_noise find(struct str body, struct body_scan *scan) {
    struct client_noise noise;
    struct error err = {0};

    if (body_scan(body, scan, &err) != ST_OK) fail_msg("%s: %.200s", err.message, body.ptr);
    client_noise_find(scan, &noise);
    return noise;
}

/* The body without the cuts. */
static char *without(struct str body, const struct client_noise *noise) {
    char *text = malloc(body.len + 1), *to = text;
    const char *from = body.ptr;

    for (uint32_t i = 0; i < noise->n; i++) {
        struct str cut = noise->cuts[i];

        assert_true(cut.len && cut.ptr >= from && cut.ptr + cut.len <= body.ptr + body.len);
        to = mempcpy(to, from, (size_t)(cut.ptr - from));
        from = cut.ptr + cut.len;
    }
    to = mempcpy(to, from, (size_t)(body.ptr + body.len - from));
    *to = '\0';
    assert_int_equal((size_t)(to - text), body.len - client_noise_len(noise));
    return text;
}

static void becomes(const char *body, const char *want) {
    struct body_scan scan, after;
    struct client_noise noise = find(str_of(body), &scan);
    char *text = without(str_of(body), &noise);

    assert_string_equal(text, want);
    assert_int_equal(body_scan(str_of(text), &after, NULL), ST_OK);
    free(text);
}

static void stays(const char *body) {
    becomes(body, body);
}

static void a_leading_block_or_line_is_cut(void **state) {
    (void)state;
    becomes(BODY("[" BLOCK(H) "," BLOCK("You are") "]"), BODY("[" BLOCK("You are") "]"));
    becomes(BODY("[ " BLOCK(H) " ,\n " BLOCK("You are") " ]"), BODY("[ " BLOCK("You are") " ]"));
    becomes(BODY("[{\"text\" : \"" H
                 "\" , \"cache_control\":{\"a\":[1,{}]}, \"type\": \"text\" }," BLOCK("b") "]"),
            BODY("[" BLOCK("b") "]"));
    becomes(BODY("[" BLOCK(H "\\nYou") "," BLOCK("b") "]"),
            BODY("[" BLOCK("You") "," BLOCK("b") "]"));
    becomes(BODY("[" BLOCK(H "\\n\\n") "," BLOCK("b") "]"), BODY("[" BLOCK("b") "]"));
    becomes(BODY("[" BLOCK(H) "]"), BODY("[" BLOCK("") "]"));
    becomes(BODY("\"" H "\\nYou are\\nme\""), BODY("\"You are\\nme\""));
    becomes(BODY("\"" H "\\u000aYou\""), BODY("\"You\""));
    becomes(BODY("\"" H "\""), BODY("\"\""));
    becomes(CHAT("\"" H "\\nYou\""), CHAT("\"You\""));
    becomes(CHAT("[" BLOCK(H) "," BLOCK("You") "]"), CHAT("[" BLOCK("You") "]"));
}

static void total_tokens_at_the_end_are_cut(void **state) {
    (void)state;
    becomes(BODY("\"You\\n" T "\""), BODY("\"You\\n\""));
    becomes(BODY("\"You" T "\\n \\t\""), BODY("\"You\\n \\t\""));
    becomes(BODY("\"" H "\\nYou" T "\""), BODY("\"You\""));
    becomes(BODY("\"" H "\\n" T "\""), BODY("\"\""));
    becomes(BODY("[" BLOCK("a") "," BLOCK("You" T) "]"), BODY("[" BLOCK("a") "," BLOCK("You") "]"));
    becomes(BODY("[" BLOCK("a") " , " BLOCK(T) "]"), BODY("[" BLOCK("a") "]"));
    becomes(BODY("[" BLOCK(H) "," BLOCK("a") "," BLOCK(T) "]"), BODY("[" BLOCK("a") "]"));
    becomes(BODY("[" BLOCK(H) "," BLOCK(T) "]"), BODY("[" BLOCK("") "]"));
    becomes(BODY("\"a<total_tokens>1,234 tokens left<\\/total_tokens>\""), BODY("\"a\""));
    becomes(CHAT("\"You" T "\""), CHAT("\"You\""));
}

static void escapes_are_the_same_text(void **state) {
    (void)state;
    becomes(BODY("\"\\u0078-anthropic\\u002dbilling-header\\u003A cch=1;\\nYou\""),
            BODY("\"You\""));
    becomes(
        BODY("\"a\\u003ctotal_tokens\\u003E\\u0031 tokens left\\u003c\\u002ftotal_tokens\\u003e\""),
        BODY("\"a\""));
    becomes("{\"s\\u0079stem\":\"" H "\\nYou\"," USER "}", "{\"s\\u0079stem\":\"You\"," USER "}");
    becomes(BODY("[{\"t\\u0079pe\":\"te\\u0078t\",\"te\\u0078t\":\"" H "\"}," BLOCK("b") "]"),
            BODY("[" BLOCK("b") "]"));
    stays(
        BODY("\"a\\\\u003ctotal_tokens>1 tokens left</total_tokens>\"")); /* a backslash and text */
    becomes(BODY("\"" H "\\\\n\\\\\\nYou\""), BODY("\"You\"")); /* the first is no line's end */
    becomes(BODY("\"\\\\\\u003ctotal_tokens>1 tokens left</total_tokens>\""), BODY("\"\\\\\""));
}

static void all_else_is_left_alone(void **state) {
    (void)state;
    stays("{\"messages\":[{\"role\":\"user\",\"content\":\"" H "\\nhi" T "\"}]}");
    stays("{\"messages\":[{\"role\":\"user\",\"content\":[" BLOCK(H) "," BLOCK(T) "]}]}");
    stays("{\"system\":\"You\",\"messages\":[{\"role\":\"user\",\"content\":\"" H "\"},{\"role\":"
          "\"system\",\"content\":\"" H "\"}]}");
    stays(BODY("\"You\\n" H "\\nmore\""));
    stays(BODY("\" " H "\""));
    stays(BODY("\"" T " and more\""));
    stays(BODY("\"X-anthropic-billing-header: a\""));
    stays(BODY("[" BLOCK("a") "," BLOCK(H) "," BLOCK("b") "]"));
    stays(BODY("[" BLOCK("x-anthropic-") "," BLOCK("billing-header: a") "]"));
    stays(BODY("[{\"type\":\"image\",\"text\":\"" H "\"}," BLOCK("b") "]"));
    stays(BODY("[{\"type\":\"text\",\"text\":\"" H "\",\"text\":\"" H "\"}]")); /* which one? */
    stays(BODY("[[" BLOCK(H) "]]"));
    stays(BODY("{\"text\":\"" H "\"}"));
    stays(BODY("[]"));
    stays(BODY("null"));
    stays(BODY("\"a<total_tokens>, tokens left</total_tokens>\""));
    stays(BODY("\"a<total_tokens>x tokens left</total_tokens>\""));
    stays("{\"metadata\":{\"system\":\"" H "\"}," USER "}");
    stays("{\"messages\":[{\"role\":\"system\",\"role\":\"user\",\"content\":\"" H "\"}]}");
    stays("{\"messages\":[]}");
    stays("{\"messages\":[\"" H "\"]}");
    stays("{\"prompt\":\"" H "\"}");
}

static void both_places_are_cut_in_the_order_of_the_body(void **state) {
    (void)state;
    becomes("{\"messages\":[{\"role\":\"developer\",\"content\":\"" H "\\na" T
            "\"}],\"system\":\"" H "\\nb" T "\"}",
            "{\"messages\":[{\"role\":\"developer\",\"content\":\"a\"}],\"system\":\"b\"}");
}

static void a_system_key_twice_is_an_error(void **state) {
    struct body_scan scan;
    (void)state;

    assert_int_equal(body_scan(STR("{\"system\":\"a\",\"sys\\u0074em\":\"b\"}"), &scan, NULL),
                     ST_INVALID);
}

/* 10 MiB in the header, in backslashes before the suffix, in nesting; each is one pass. */
static void large_and_hostile_prompts_are_read_once(void **state) {
    size_t n = 10u << 20;
    char *body = malloc(n + 1024), *to;
    struct body_scan scan;
    struct client_noise noise;
    (void)state;

    to = stpcpy(body, "{\"system\":[{\"type\":\"text\",\"text\":\"" H);
    memset(to, 'x', n);
    strcpy(to + n, "\"}," BLOCK("b") "]," USER "}");
    noise = find(str_of(body), &scan);
    assert_int_equal(noise.n, 1);
    assert_true(noise.cuts[0].len > n);
    to = stpcpy(body, "{\"system\":\"");
    memset(to, '\\', n);
    strcpy(to + n, "\\u003ctotal_tokens>1 tokens left</total_tokens>\"}");
    assert_int_equal(find(str_of(body), &scan).n, 1);
    strcpy(to + n + 1, "\\u003ctotal_tokens>1 tokens left</total_tokens>\"}");
    to[n] = '\\';
    assert_int_equal(find(str_of(body), &scan).n, 0); /* one more: an escaped backslash */
    to = stpcpy(body, "{\"system\":");
    for (int i = 0; i < 60; i++)
        *to++ = '[';
    for (int i = 0; i < 60; i++)
        *to++ = ']';
    strcpy(to, "}");
    assert_int_equal(find(str_of(body), &scan).n, 0);
    free(body);
}

/* A span that was never scanned: no read beyond its end. */
static void unterminated_spans_are_not_read_beyond(void **state) {
    static const char whole[] = "[{\"type\":\"text\",\"text\":\"" H "\\u003c\"}," BLOCK(T) "]";
    static const char chat[] = "[{\"role\":\"system\",\"content\":[" BLOCK(H) "," BLOCK(T) "]}]";
    (void)state;

    for (size_t n = 0; n < sizeof(whole); n++) {
        char *tight = malloc(n ? n : 1); /* an address sanitizer sees one byte too many */
        struct body_scan scan = {0};
        struct client_noise noise;

        memcpy(tight, whole, n);
        scan.spans[BODY_SYSTEM] = (struct str){tight, n};
        client_noise_find(&scan, &noise);
        memcpy(tight, chat, MIN(n, sizeof(chat) - 1));
        scan = (struct body_scan){0};
        scan.spans[BODY_MESSAGES] = (struct str){tight, MIN(n, sizeof(chat) - 1)};
        client_noise_find(&scan, &noise);
        free(tight);
    }
}

static void the_hash_is_that_of_the_prompt_without_noise(void **state) {
    static const char *const bodies[] = {
        BODY("[" BLOCK(H) "," BLOCK("You are a long system prompt of some blocks" T) "]"),
        BODY("[" BLOCK("x-anthropic-billing-header: cch=other;") "," BLOCK(
            "You are a long system prompt of some blocks<total_tokens>7 tokens "
            "left</total_tokens>") "]"),
        BODY("[" BLOCK("You are a long system prompt of some blocks") "]")};
    uint64_t chains[3][64];
    uint32_t n[3];
    (void)state;

    for (int i = 0; i < 3; i++) {
        struct body_scan scan;
        struct client_noise noise = find(str_of(bodies[i]), &scan);
        struct prompt_text text = {&scan, &noise, API_OPENAI};
        struct prompt_hashed hashed;

        prompt_hash_text(&text, 3, 16, chains[i], 64, &hashed);
        n[i] = hashed.n_blocks;
    }
    assert_int_equal(n[0], n[2]);
    assert_int_equal(n[1], n[2]);
    assert_memory_equal(chains[0], chains[2], n[0] * sizeof(uint64_t));
    assert_memory_equal(chains[1], chains[2], n[0] * sizeof(uint64_t));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_leading_block_or_line_is_cut),
        cmocka_unit_test(total_tokens_at_the_end_are_cut),
        cmocka_unit_test(escapes_are_the_same_text),
        cmocka_unit_test(all_else_is_left_alone),
        cmocka_unit_test(both_places_are_cut_in_the_order_of_the_body),
        cmocka_unit_test(a_system_key_twice_is_an_error),
        cmocka_unit_test(large_and_hostile_prompts_are_read_once),
        cmocka_unit_test(unterminated_spans_are_not_read_beyond),
        cmocka_unit_test(the_hash_is_that_of_the_prompt_without_noise),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
