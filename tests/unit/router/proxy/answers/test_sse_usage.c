/* tests/unit/router/proxy/answers/test_sse_usage.c - however the network cuts an answer, the same
 * is learned. */
#include <string.h>

#include "common/base/rng.h"
#include "router/proxy/answers/sse_usage.h"
#include "tests/support/cm.h"
#include "tests/support/support.h"

struct expected {
    uint64_t n_events;
    int64_t prompt, cached, completion;
    bool has_done, has_error;
};

static void assert_usage(const struct sse_usage *t, const struct expected *e) {
    assert_int_equal(t->n_events, e->n_events);
    assert_int_equal(t->prompt_tokens, e->prompt);
    assert_int_equal(t->cached_tokens, e->cached);
    assert_int_equal(t->completion_tokens, e->completion);
    assert_int_equal(t->has_done, e->has_done);
    assert_int_equal(t->has_error, e->has_error);
}

static struct sse_usage fed(struct str s, size_t first, size_t second, bool is_stream) {
    struct sse_usage t;

    sse_usage_init(&t, API_OPENAI, is_stream);
    sse_usage_feed(&t, (struct str){s.ptr, first});
    sse_usage_feed(&t, (struct str){s.ptr + first, second - first});
    sse_usage_feed(&t, (struct str){s.ptr + second, s.len - second});
    return t;
}

/* Whole, cut at every place, at every two near places, and byte by byte. */
static void assert_learned(struct str s, bool is_stream, const struct expected *e) {
    struct sse_usage t;

    for (size_t i = 0; i <= s.len; i++) {
        for (size_t k = i; k <= MIN(s.len, i + 60); k++) {
            t = fed(s, i, k, is_stream);
            assert_usage(&t, e);
        }
    }
    sse_usage_init(&t, API_OPENAI, is_stream);
    for (size_t i = 0; i < s.len; i++)
        sse_usage_feed(&t, (struct str){s.ptr + i, 1});
    assert_usage(&t, e);
}

static void a_stock_vllm_stream_is_read(void **state) {
    (void)state;
    assert_learned(
        STR("data: {\"id\":\"cmpl-1\",\"choices\":[{\"index\":0,\"text\":\"a\"}]}\n\n"
            ": ping\n\n"
            "data: "
            "{\"id\":\"cmpl-1\",\"choices\":[{\"index\":0,\"text\":\"\\\"prompt_tokens\\\":7\"}]}"
            "\n\n"
            "data: [DONE]\n\n"),
        true, &(struct expected){2, -1, -1, -1, true, false});
}

static void a_usage_event_is_read(void **state) {
    (void)state;
    assert_learned(
        STR("data: {\"choices\":[{\"delta\":{\"content\":\"x\"}}]}\r\n\r\n"
            "data:{\"choices\":[],\"usage\":{\"prompt_tokens\":1201,\"total_tokens\":1233,"
            "\"completion_tokens\":32,\"prompt_tokens_details\":{\"cached_tokens\": "
            "1184}}}\r\n\r\ndata: [DONE]\r\n\r\n"),
        true, &(struct expected){2, 1201, 1184, 32, true, false});
}

static void an_sglang_stream_counts_up(void **state) {
    (void)state;
    assert_learned(STR("data: {\"text\":\"a\",\"meta_info\":{\"prompt_tokens\":50,"
                       "\"completion_tokens\":1,\"cached_tokens\":48}}\n\n"
                       "data: {\"text\":\"ab\",\"meta_info\":{\"prompt_tokens\":50,"
                       "\"completion_tokens\":12,\"cached_tokens\":48}}\n\ndata: [DONE]\n\n"),
                   true, &(struct expected){2, 50, 48, 12, true, false});
}

static void whole_answers_are_read_with_usage_at_any_position(void **state) {
    (void)state;
    assert_learned(
        STR("{\"usage\":{\"prompt_tokens\" : 9,\"completion_tokens\":16,"
            "\"prompt_tokens_details\":null},\"choices\":[{\"text\":\"data: x\\n\\n\"}]}"),
        false, &(struct expected){0, 9, -1, 16, false, false});
    assert_learned(STR("{\"text\":\"_tokens _ \\\\\",\"meta_info\":{\"cached_tokens\":0,"
                       "\"completion_tokens\":99999999999,\"prompt_tokens\":3}}"),
                   false, &(struct expected){0, 3, 0, INT32_MAX, false, false});
}

static void an_invalid_number_is_ignored(void **state) {
    (void)state;
    assert_learned(STR("{\"text\":\"\\\"prompt_tokens\\\":5, \\\"cached_tokens\\\":6\","
                       "\"cached_tokens\":null,\"xprompt_tokens\":4,\"prompt_tokens\":     1,"
                       "\"prompt_tokens\",\"completion_tokens\":-1}"),
                   false, &(struct expected){0, -1, -1, -1, false, false});
}

static void errors_are_no_tokens(void **state) {
    (void)state;
    assert_learned(STR("data: {\"error\":{\"message\":\"boom\",\"code\":500}}\n\ndata: [DONE]\n\n"),
                   true, &(struct expected){0, -1, -1, -1, true, true});
    assert_learned(STR("event: error\ndata: no memory\n\nevent: token\nid: 4\ndata: t\n\n"), true,
                   &(struct expected){1, -1, -1, -1, false, true});
    assert_learned(STR("data: {\"object\":\"error\",\"message\":\"m\"}\n\n"), true,
                   &(struct expected){0, -1, -1, -1, false, true});
}

static void only_data_makes_an_event(void **state) {
    (void)state;
    assert_learned(STR(": a\n:\n\n\nretry: 10\nid: 1\n\ndata:\n\ndata\n\ndatum: 1\n\n"), true,
                   &(struct expected){0, -1, -1, -1, false, false});
    assert_learned(STR("data: {\ndata: }\n\ndata: cut off"), true,
                   &(struct expected){1, -1, -1, -1, false, false});
}

static void it_detects_a_partial_event(void **state) {
    struct sse_usage t;

    (void)state;
    sse_usage_init(&t, API_OPENAI, true);
    assert_false(sse_usage_is_amid_event(&t));
    sse_usage_feed(&t, STR("da"));
    assert_true(sse_usage_is_amid_event(&t));
    sse_usage_feed(&t, STR("ta: x\n"));
    assert_true(sse_usage_is_amid_event(&t));
    sse_usage_feed(&t, STR("\r\n"));
    assert_false(sse_usage_is_amid_event(&t));
}

/* The same by the plainest means: no '_', no carry, no pieces. */
static void reference(struct str s, struct expected *e) {
    static const char *const names[] = {"prompt_tokens", "cached_tokens", "completion_tokens"};
    int64_t *const out[] = {&e->prompt, &e->cached, &e->completion};

    for (size_t i = 0; i < s.len; i++) {
        for (size_t k = 0; k < 3; k++) {
            size_t n = strlen(names[k]), at = i + n + 2, digits = 0;
            int64_t value = 0;

            if (s.ptr[i] != '"' || (i > 0 && s.ptr[i - 1] == '\\') || s.len - i < n + 3) continue;
            if (memcmp(s.ptr + i + 1, names[k], n) != 0 || s.ptr[i + n + 1] != '"') continue;
            for (int b = 0; b < 4 && at < s.len && s.ptr[at] == ' '; b++)
                at++;
            if (at >= s.len || s.ptr[at++] != ':') continue;
            for (int b = 0; b < 4 && at < s.len && s.ptr[at] == ' '; b++)
                at++;
            for (; digits < 10 && at < s.len && s.ptr[at] >= '0' && s.ptr[at] <= '9'; digits++)
                value = value * 10 + (s.ptr[at++] - '0');
            if (digits) *out[k] = MIN(value, INT32_MAX);
        }
    }
}

static void random_pieces_of_random_answers_give_equal_usage(void **state) {
    static const char *const words[] = {"\"prompt_tokens\"",
                                        "\"cached_tokens",
                                        "\"completion_tokens\":",
                                        "_tokens\"",
                                        ":",
                                        " ",
                                        "    ",
                                        "12",
                                        "7",
                                        "0",
                                        "\\",
                                        "\"",
                                        "\n",
                                        "data: ",
                                        "data:",
                                        "\n\n",
                                        "\r\n",
                                        "[DONE]",
                                        "{\"error\"",
                                        "event: error",
                                        "x",
                                        "prompt",
                                        "a long text without any of it at all",
                                        "98765432109876"};
    struct rng rng;
    char bytes[512];

    (void)state;
    rng_seed(&rng, support_seed());
    for (int round = 0; round < 20000; round++) {
        struct expected e = {0, -1, -1, -1, false, false};
        struct sse_usage whole, pieces;
        size_t n = 0;

        for (uint64_t k = rng_below(&rng, 24); k > 0; k--) {
            const char *word = words[rng_below(&rng, ARRAY_LEN(words))];

            memcpy(bytes + n, word, strlen(word));
            n += strlen(word);
            if (n > sizeof(bytes) - 64) break;
        }
        sse_usage_init(&whole, API_OPENAI, true);
        sse_usage_feed(&whole, (struct str){bytes, n});
        reference((struct str){bytes, n}, &e);
        assert_int_equal(whole.prompt_tokens, e.prompt);
        assert_int_equal(whole.cached_tokens, e.cached);
        assert_int_equal(whole.completion_tokens, e.completion);
        sse_usage_init(&pieces, API_OPENAI, true);
        for (size_t at = 0, step; at < n; at += step) {
            step = 1 + rng_below(&rng, 70);
            step = MIN(step, n - at);
            sse_usage_feed(&pieces, (struct str){bytes + at, step});
        }
        assert_usage(&pieces,
                     &(struct expected){whole.n_events, whole.prompt_tokens, whole.cached_tokens,
                                        whole.completion_tokens, whole.has_done, whole.has_error});
        assert_int_equal(sse_usage_is_amid_event(&pieces), sse_usage_is_amid_event(&whole));
    }
}

static int64_t tokens_of(const char *usage) {
    struct sse_usage t;

    sse_usage_init(&t, API_OPENAI, true);
    sse_usage_feed(&t, str_of(usage));
    return sse_usage_tokens(&t);
}

static void tokens_are_as_reported_or_as_many_as_events(void **state) {
    (void)state;
    assert_int_equal(tokens_of(": waiting\n\n"), -1);
    assert_int_equal(tokens_of("data: {}\n\ndata: {}\n\n"), 2);
    assert_int_equal(tokens_of("data: {}\n\ndata: {\"usage\":{\"completion_tokens\":7}}\n\n"), 7);
    assert_int_equal(tokens_of("data: {}\n\ndata: {\"usage\":{\"completion_tokens\":0}}\n\n"), 0);
}

/* --- the two other APIs ----------------------------------------------------------------------- */

#define EVENT(name, data) "event: " name "\ndata: {\"type\":\"" name "\"" data "}\n\n"

static const char messages_stream[] = EVENT(
    "message_start",
    ",\"message\":{\"id\":\"msg_1\",\"usage\":{\"input_tokens\":12,"
    "\"cache_creation_input_tokens\":100,\"cache_read_input_tokens\":700,\"output_tokens\":1}}")
    EVENT("content_block_start", ",\"index\":0") EVENT("ping", "")
        EVENT("content_block_delta", ",\"delta\":{\"text\":\"\\\"output_tokens\\\": 9\"}")
            EVENT("content_block_delta", "") EVENT("content_block_stop", "")
                EVENT("message_delta", ",\"usage\":{\"output_tokens\": 41}")
                    EVENT("message_stop", "");

static const char responses_stream[] = EVENT(
    "response.created", ",\"sequence_number\":0,\"response\":{\"id\":\"resp_0123456789abcdef\","
                        "\"usage\":null,\"max_output_tokens\":5}")
    EVENT("response.in_progress", ",\"sequence_number\":1") EVENT("response.output_item.added",
                                                                  ",\"sequence_number\":2")
        EVENT("response.output_text.delta", ",\"sequence_number\":3")
            EVENT("response.function_call_arguments.delta", ",\"sequence_number\":4")
                EVENT("response.output_item.done", ",\"sequence_number\":5")
                    EVENT("response.completed",
                          ",\"sequence_number\":6,\"response\":{\"usage\":{\"input_tokens\":812,"
                          "\"input_tokens_details\":{\"cached_tokens\":700},"
                          "\"output_tokens\":41,\"total_tokens\":853}}");

/* In pieces of each length. */
static void assert_stream(enum api_form api, struct str s, const struct expected *e,
                          uint64_t n_tokens) {
    for (size_t piece = 1; piece <= s.len; piece++) {
        struct sse_usage t;

        sse_usage_init(&t, api, true);
        for (size_t at = 0; at < s.len; at += piece)
            sse_usage_feed(&t, (struct str){s.ptr + at, MIN(piece, s.len - at)});
        assert_usage(&t, e);
        assert_int_equal(t.n_token_events, n_tokens);
    }
}

static void streams_of_messages_and_responses_are_read(void **state) {
    (void)state;
    assert_stream(API_MESSAGES, str_of(messages_stream),
                  &(struct expected){8, 812, 700, 41, true, false}, 2);
    assert_stream(API_RESPONSES, str_of(responses_stream),
                  &(struct expected){7, 812, 700, 41, true, false}, 2);
    assert_stream(API_MESSAGES, STR(EVENT("message_start", "") EVENT("error", ",\"error\":{}")),
                  &(struct expected){1, -1, -1, -1, false, true}, 0);
    assert_stream(
        API_RESPONSES, /* a line is read up to its 64th byte, whole or in pieces */
        STR(EVENT("a.name.that.is.longer.than.those.of.any.of.the.events.that.count.delta", "")),
        &(struct expected){1, -1, -1, -1, false, false}, 0);
    assert_stream(API_RESPONSES, STR(EVENT("response.failed", "")),
                  &(struct expected){0, -1, -1, -1, true, true}, 0);
}

static void a_message_that_is_cut_has_as_many_tokens_as_deltas(void **state) {
    size_t n = (size_t)(strstr(messages_stream, "event: content_block_stop") - messages_stream);
    struct sse_usage t;

    (void)state;
    sse_usage_init(&t, API_MESSAGES, true);
    sse_usage_feed(&t, (struct str){messages_stream, n});
    assert_int_equal(sse_usage_tokens(&t), 2);
    sse_usage_feed(&t, (struct str){messages_stream + n, sizeof(messages_stream) - 1 - n});
    assert_int_equal(sse_usage_tokens(&t), 41);
}

/* Its events repeat the tools of the request, which may have any number. */
static void a_response_that_is_cut_has_as_many_tokens_as_deltas(void **state) {
    struct sse_usage t;

    (void)state;
    sse_usage_init(&t, API_RESPONSES, true);
    sse_usage_feed(&t, STR(EVENT("response.created",
                                 ",\"response\":{\"usage\":null,\"tools\":[{\"parameters\":{"
                                 "\"default\":{\"output_tokens\":2000000000}}}]}")
                               EVENT("response.output_text.delta", "")));
    assert_int_equal(sse_usage_tokens(&t), 1);
    sse_usage_feed(&t,
                   STR(EVENT("response.completed",
                             ",\"response\":{\"tools\":[{\"parameters\":{\"default\":{"
                             "\"output_tokens\":2000000000}}}],\"usage\":{\"output_tokens\":3}}")));
    assert_int_equal(sse_usage_tokens(&t), 3);
}

static void a_response_has_an_id_and_a_sequence(void **state) {
    static const char long_id[] = "resp_6969cd39ec45330899525bb169a1885100015b3aea94";
    struct sse_usage t;

    (void)state;
    sse_usage_init(&t, API_RESPONSES, true);
    assert_int_equal(t.sequence, -1);
    sse_usage_feed(&t,
                   STR("event: response.created\ndata: {\"sequence_number\":0,\"response\":{\"id\":"
                       "\"resp_01234"));
    assert_int_equal(t.n_id, 0);
    sse_usage_feed(&t, STR("5\",\"previous_response_id\":\"resp_other\"}}\n\n"));
    assert_true(str_eq((struct str){t.id, t.n_id}, STR("resp_012345")));
    assert_int_equal(t.sequence, 0);
    sse_usage_feed(&t, STR("data: {\"sequence_number\":12}\n\n"));
    assert_int_equal(t.sequence, 12);
    for (size_t n = 1; n < sizeof(long_id); n++) { /* as workers write it, cut anywhere */
        sse_usage_init(&t, API_RESPONSES, true);
        sse_usage_feed(&t, STR("data: {\"response\":{\"id\":\""));
        sse_usage_feed(&t, (struct str){long_id, n});
        sse_usage_feed(&t, (struct str){long_id + n, sizeof(long_id) - 1 - n});
        sse_usage_feed(&t, STR("\"}}\n\n"));
        assert_true(str_eq((struct str){t.id, t.n_id}, str_of(long_id)));
    }
}

static void whole_answers_of_both_are_read(void **state) {
    struct sse_usage t;

    (void)state;
    sse_usage_init(&t, API_MESSAGES, false);
    sse_usage_feed(
        &t, STR("{\"type\":\"message\",\"usage\":{\"input_tokens\":5,\"output_tokens\":3}}"));
    assert_usage(&t, &(struct expected){0, 5, -1, 3, false, false});
    assert_int_equal(sse_usage_tokens(&t), 3);
    sse_usage_init(&t, API_RESPONSES, false);
    sse_usage_feed(
        &t, STR("{\"usage\":{\"input_tokens\":5,\"input_tokens_details\":{\"cached_tokens\":4},"
                "\"output_tokens\":3}}"));
    assert_usage(&t, &(struct expected){0, 5, 4, 3, false, false});
}

static bool begins(struct str s) {
    struct sse_usage pieces, whole;
    bool has_begun = false;

    sse_usage_init(&pieces, API_OPENAI, true);
    sse_usage_init(&whole, API_OPENAI, true);
    for (size_t i = 0; i < s.len; i++) {
        sse_usage_feed(&pieces, (struct str){s.ptr + i, 1});
        assert_true(sse_usage_has_begun(&pieces) || !has_begun); /* for good */
        has_begun = sse_usage_has_begun(&pieces);
    }
    sse_usage_feed(&whole, s);
    assert_int_equal(sse_usage_has_begun(&whole), has_begun);
    return has_begun;
}

static void comments_and_blank_lines_are_no_beginning(void **state) {
    (void)state;
    assert_false(begins(STR("")));
    assert_false(begins(STR(": ping\n\n:\r\n\r\n\n: data: x\n")));
    assert_false(begins(STR(": a comment that is longer than what is kept of a line, data: and")));
    assert_true(begins(STR(": ping\n\nd")));
    assert_true(begins(STR("event: x\n")));
    assert_true(begins(STR("data: x\n\n: ping\n\n")));
    assert_true(begins(STR("\xef\xbb\xbf")));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_stock_vllm_stream_is_read),
        cmocka_unit_test(comments_and_blank_lines_are_no_beginning),
        cmocka_unit_test(streams_of_messages_and_responses_are_read),
        cmocka_unit_test(a_message_that_is_cut_has_as_many_tokens_as_deltas),
        cmocka_unit_test(a_response_that_is_cut_has_as_many_tokens_as_deltas),
        cmocka_unit_test(a_response_has_an_id_and_a_sequence),
        cmocka_unit_test(whole_answers_of_both_are_read),
        cmocka_unit_test(a_usage_event_is_read),
        cmocka_unit_test(an_sglang_stream_counts_up),
        cmocka_unit_test(whole_answers_are_read_with_usage_at_any_position),
        cmocka_unit_test(an_invalid_number_is_ignored),
        cmocka_unit_test(errors_are_no_tokens),
        cmocka_unit_test(only_data_makes_an_event),
        cmocka_unit_test(it_detects_a_partial_event),
        cmocka_unit_test(random_pieces_of_random_answers_give_equal_usage),
        cmocka_unit_test(tokens_are_as_reported_or_as_many_as_events),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
