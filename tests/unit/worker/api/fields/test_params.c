/* tests/unit/worker/api/fields/test_params.c - every field of a request: absent, null, at its
 * bounds, beyond them, of another type. A refusal names the field. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/mem.h"
#include "tests/fuzz/fuzz_params.c"
#include "tests/support/cm.h"
#include "tests/support/support.h"
#include "worker/text/stop.h"

struct parsed {
    struct json *json;
    struct call_params p;
    enum status st;
    struct error err;
};

static void finish(struct parsed *c) {
    if (c->st == ST_OK) call_params_fini(&c->p);
    json_destroy(c->json);
}

static struct json *read_json(const char *text) {
    struct json *root;
    struct error err = {0};

    if (json_parse(&root, str_of(text), NULL, &err) != ST_OK) fail_msg("%s: %s", text, err.message);
    return root;
}

static struct parsed parse_with(const char *text, const struct generation_config *defaults) {
    struct parsed c = {.json = read_json(text)};
    struct params_context ctx;
    struct rng rng;

    rng_seed(&rng, 1);
    ctx = (struct params_context){defaults, &fuzz_limits, fuzz_tokenizer(), false, &rng, false};
    c.st = call_params_parse(&c.p, c.json, &ctx, &c.err);
    return c;
}

static struct parsed parse(const char *text) {
    static const struct generation_config none;

    return parse_with(text, &none);
}

static struct parsed parse_sglang(const char *text) {
    static const struct generation_config none;
    struct parsed c = {.json = read_json(text)};
    struct params_context ctx;
    struct rng rng;

    rng_seed(&rng, 1);
    ctx = (struct params_context){&none, &fuzz_limits, fuzz_tokenizer(), false, &rng, false};
    c.st =
        call_params_parse_sglang(&c.p, c.json, json_get(c.json, "sampling_params"), &ctx, &c.err);
    return c;
}

static struct parsed parse_good(const char *text) {
    struct parsed c = parse(text);

    if (c.st != ST_OK) fail_msg("%s: %s", text, c.err.message);
    return c;
}

static void assert_refused(struct parsed c, const char *text, const char *param) {
    if (c.st != ST_INVALID) fail_msg("%s was accepted", text);
    if (strcmp(c.err.param, param) != 0) {
        fail_msg("%s: the refusal names '%s', not '%s'", text, c.err.param, param);
    }
    if (!strstr(c.err.message, param)) fail_msg("%s: %s", text, c.err.message);
    finish(&c);
}

static void refuses(const char *text, const char *param) {
    assert_refused(parse(text), text, param);
}

static void accepts(const char *text) {
    struct parsed c = parse_good(text);

    finish(&c);
}

/* --- what holds ------------------------------------------------------------------------------- */

static void an_empty_body_gives_the_defaults(void **state) {
    struct parsed c = parse_good("{}");
    const struct request_params *r = &c.p.request;

    (void)state;
    assert_float_equal(r->temperature, 1, 0);
    assert_float_equal(r->top_p, 1, 0);
    assert_float_equal(r->min_p, 0, 0);
    assert_int_equal(r->top_k, 0);
    assert_float_equal(r->repetition_penalty, 1, 0);
    assert_float_equal(r->frequency_penalty, 0, 0);
    assert_float_equal(r->presence_penalty, 0, 0);
    assert_int_equal(r->n_logprobs, -1);
    assert_int_equal(r->prompt_logprobs, -1);
    assert_int_equal(c.p.n, 1);
    assert_null(c.p.stops);
    assert_null(r->cache_salt);
    assert_true(c.p.skip_special);
    assert_false(c.p.stream || c.p.has_max_tokens || c.p.has_seed || c.p.echo || c.p.include_stop);
    finish(&c);
}

static void the_models_makers_may_have_other_defaults(void **state) {
    const struct generation_config defaults = {.has_temperature = true,
                                               .temperature = 0.5,
                                               .has_top_k = true,
                                               .top_k = 20,
                                               .has_repetition_penalty = true,
                                               .repetition_penalty = 1.25};
    struct parsed c = parse_with("{\"top_k\":5,\"temperature\":null}", &defaults);

    (void)state;
    assert_int_equal(c.st, ST_OK);
    assert_float_equal(c.p.request.temperature, 0.5, 0);
    assert_int_equal(c.p.request.top_k, 5);
    assert_float_equal(c.p.request.repetition_penalty, 1.25, 0);
    finish(&c);
}

static void null_equals_absent(void **state) {
    static const char *const fields[] = {"temperature",
                                         "top_p",
                                         "top_k",
                                         "min_p",
                                         "n",
                                         "best_of",
                                         "max_tokens",
                                         "max_completion_tokens",
                                         "min_tokens",
                                         "seed",
                                         "stop",
                                         "stop_token_ids",
                                         "logit_bias",
                                         "cache_salt",
                                         "stream",
                                         "stream_options",
                                         "repetition_penalty",
                                         "frequency_penalty",
                                         "presence_penalty",
                                         "echo",
                                         "ignore_eos",
                                         "skip_special_tokens",
                                         "include_stop_str_in_output",
                                         "return_token_ids",
                                         "priority",
                                         "response_format",
                                         "suffix",
                                         "prompt_logprobs",
                                         "lora_path",
                                         "truncate_prompt_tokens",
                                         "guided_json"};
    char text[80];

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(fields); i++) {
        snprintf(text, sizeof(text), "{\"%s\":null}", fields[i]);
        accepts(text);
    }
}

/* A field of each kind, in range and out of it. */
static void every_field_has_bounds_and_a_type(void **state) {
    static const struct {
        const char *field, *good[4], *bad[5];
    } rows[] = {
        {"temperature", {"0", "100", "0.7"}, {"-0.1", "101", "\"1\"", "true", "[]"}},
        {"top_p", {"1", "0.001"}, {"0", "1.1", "-1", "\"x\""}},
        {"min_p", {"0", "1"}, {"-0.1", "1.5", "{}"}},
        {"top_k", {"-1", "0", "50"}, {"-2", "1.5", "\"5\"", "1e12"}},
        {"repetition_penalty", {"0.5", "100"}, {"0", "101", "\"x\""}},
        {"frequency_penalty", {"-2", "2"}, {"-2.1", "2.1", "\"x\""}},
        {"presence_penalty", {"-2", "2"}, {"-2.1", "2.1", "false"}},
        {"n", {"1", "128"}, {"0", "129", "-1", "1.5", "\"1\""}},
        {"max_tokens", {"1", "4294967295"}, {"0", "-1", "4294967296", "1.5", "\"5\""}},
        {"max_completion_tokens", {"1", "7"}, {"0", "-1", "2.5", "[]"}},
        {"min_tokens", {"0", "5"}, {"-1", "0.5", "\"0\""}},
        {"seed", {"0", "-9223372036854775808", "9223372036854775807"}, {"1.5", "1e30", "\"1\""}},
        {"stop", {"\"x\"", "[]", "[\"a\",\"b\"]"}, {"5", "[1]", "\"\"", "[\"\"]", "{}"}},
        {"stop_token_ids", {"[]", "[0,511]"}, {"[512]", "[-1]", "[\"1\"]", "5", "[0.5]"}},
        {"logit_bias",
         {"{}", "{\"511\":-100,\"0\":100}"},
         {"{\"512\":1}", "{\"-1\":1}", "{\"a\":1}", "{\"1\":101}", "{\"1\":\"x\"}"}},
        {"cache_salt", {"\"s\""}, {"\"\"", "5", "[]"}},
        {"stream", {"true", "false"}, {"1", "\"true\""}},
        {"echo", {"true", "false"}, {"1", "\"yes\""}},
        {"ignore_eos", {"true"}, {"1"}},
        {"skip_special_tokens", {"false"}, {"0"}},
        {"include_stop_str_in_output", {"true"}, {"\"x\""}},
        {"return_token_ids", {"true"}, {"1"}},
        {"priority", {"0", "-5", "5"}, {"0.5", "\"high\"", "1e12"}},
        {"response_format",
         {"{\"type\":\"text\"}", "{\"type\":\"json_object\"}",
          "{\"type\":\"json_schema\",\"json_schema\":{\"schema\":{}}}"},
         {"{\"type\":\"json_schema\"}", "{\"type\":\"xml\"}", "{}", "\"json\""}},
        {"best_of", {"1", "2"}, {"129", "0", "\"1\""}},
        {"use_beam_search", {"true", "false"}, {"1", "\"yes\""}},
        {"lora_path", {"null"}, {"\"a\""}},
    };
    char text[200];

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        for (size_t k = 0; k < ARRAY_LEN(rows[i].good) && rows[i].good[k]; k++) {
            snprintf(text, sizeof(text), "{\"%s\":%s}", rows[i].field, rows[i].good[k]);
            accepts(text);
        }
        for (size_t k = 0; k < ARRAY_LEN(rows[i].bad) && rows[i].bad[k]; k++) {
            snprintf(text, sizeof(text), "{\"%s\":%s}", rows[i].field, rows[i].bad[k]);
            refuses(text, rows[i].field);
        }
    }
}

static void values_arrive(void **state) {
    struct parsed c = parse_good(
        "{\"temperature\":0.25,\"top_k\":-1,\"seed\":-1,\"stop\":[\"a\",\"bc\"],\"stop_token_ids\":"
        "[7,9],\"logit_bias\":{\"3\":-2.5},\"cache_salt\":\"salt\",\"n\":3,\"priority\":-4,"
        "\"min_tokens\":2,\"max_tokens\":9,\"skip_special_tokens\":false}");
    const struct request_params *r = &c.p.request;

    (void)state;
    assert_float_equal(r->temperature, 0.25, 0);
    assert_int_equal(r->top_k, 0);
    assert_true(c.p.has_seed && r->seed == UINT64_MAX);
    assert_int_equal(stop_set_count(c.p.stops), 2);
    assert_int_equal(r->n_stop_ids, 2);
    assert_int_equal(r->stop_ids[1], 9);
    assert_int_equal(r->n_bias, 1);
    assert_int_equal(r->bias[0].token, 3);
    assert_float_equal(r->bias[0].bias, -2.5, 0);
    assert_int_equal(r->cache_salt_len, 4);
    assert_memory_equal(r->cache_salt, "salt", 4);
    assert_int_equal(c.p.n, 3);
    assert_int_equal(r->priority, -4);
    assert_int_equal(r->min_tokens, 2);
    assert_int_equal(r->max_tokens, 9);
    assert_false(c.p.skip_special);
    finish(&c);
}

static void the_newer_name_of_max_tokens_wins(void **state) {
    struct parsed c = parse_good("{\"max_tokens\":5,\"max_completion_tokens\":9}");

    (void)state;
    assert_int_equal(c.p.request.max_tokens, 9);
    finish(&c);
    c = parse_good("{\"max_completion_tokens\":9}");
    assert_true(c.p.has_max_tokens && c.p.request.max_tokens == 9);
    finish(&c);
    refuses("{\"min_tokens\":6,\"max_tokens\":5}", "min_tokens");
    accepts("{\"min_tokens\":6}");
}

static void no_tokens_may_be_asked_for_with_an_echo_only(void **state) {
    struct parsed c = parse_good("{\"max_tokens\":0,\"echo\":true}");

    (void)state;
    assert_true(c.p.is_echo_only && c.p.request.max_tokens == 1);
    finish(&c);
    refuses("{\"max_tokens\":0,\"echo\":false}", "max_tokens");
    refuses("{\"max_tokens\":0,\"echo\":true,\"min_tokens\":1}", "min_tokens");
}

static void stream_options_need_a_stream(void **state) {
    struct parsed c = parse_good("{\"stream\":true,\"stream_options\":{\"include_usage\":true}}");

    (void)state;
    assert_true(c.p.include_usage && !c.p.continuous_usage);
    finish(&c);
    refuses("{\"stream_options\":{}}", "stream_options");
    refuses("{\"stream\":false,\"stream_options\":{\"include_usage\":true}}", "stream_options");
    refuses("{\"stream\":true,\"stream_options\":5}", "stream_options");
    refuses("{\"stream\":true,\"stream_options\":{\"include_usage\":1}}",
            "stream_options.include_usage");
}

static void unsupported_fields_that_change_the_answer_are_refused(void **state) {
    static const char *const fields[] = {"prompt_embeds",     "suffix",    "thinking_token_budget",
                                         "logprob_token_ids", "functions", "image_data"};
    static const char *const nothing[] = {"false", "\"\"", "[]", "{}", "null"};
    static const char *const something[] = {"true", "\"x\"", "[1]", "{\"a\":1}", "0"};
    char text[100];

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(fields); i++) {
        for (size_t k = 0; k < ARRAY_LEN(nothing); k++) {
            snprintf(text, sizeof(text), "{\"%s\":%s}", fields[i], nothing[k]);
            accepts(text);
            snprintf(text, sizeof(text), "{\"%s\":%s}", fields[i], something[k]);
            refuses(text, fields[i]);
        }
    }
}

static void tokens_may_be_allowed_and_words_banned(void **state) {
    /* A byte is a token: "ab" is two, and a space before it would make three, another word. */
    struct parsed c =
        parse_good("{\"allowed_token_ids\":[0,33,511],\"bad_words\":[\"ab\",\"  c\"]}");
    const struct request_params *r = &c.p.request;

    (void)state;
    for (uint32_t id = 0; id < fuzz_limits.vocab; id++) {
        bool is_allowed = id == 0 || id == 33 || id == 511;

        assert_int_equal(r->allowed[id / 32] >> (id % 32) & 1, is_allowed);
    }
    assert_int_equal(r->n_bad_words, 5);
    assert_int_equal(r->bad_words[0], 2);
    assert_int_equal(r->bad_words[1], 'a');
    assert_int_equal(r->bad_words[2], 'b');
    assert_int_equal(r->bad_words[3], 1);
    assert_int_equal(r->bad_words[4], 'c');
    finish(&c);
    refuses("{\"allowed_token_ids\":[]}", "allowed_token_ids");
    refuses("{\"allowed_token_ids\":[512]}", "allowed_token_ids");
    refuses("{\"allowed_token_ids\":[-1]}", "allowed_token_ids");
    refuses("{\"allowed_token_ids\":\"1\"}", "allowed_token_ids");
    refuses("{\"bad_words\":[\"\"]}", "bad_words");
    refuses("{\"bad_words\":[1]}", "bad_words");
    refuses("{\"bad_words\":\"x\"}", "bad_words");
}

static void prompt_fields_are_read(void **state) {
    struct parsed c = parse_good("{\"prompt_logprobs\":3,\"truncate_prompt_tokens\":7}");

    (void)state;
    assert_int_equal(c.p.prompt_logprobs, 3);
    assert_int_equal(c.p.request.prompt_logprobs, 3);
    assert_int_equal(c.p.max_prompt_tokens, 7);
    finish(&c);
    c = parse_good("{\"truncate_prompt_tokens\":-1,\"return_tokens_as_token_ids\":true}");
    assert_int_equal(c.p.max_prompt_tokens, fuzz_limits.max_model_len - 1);
    assert_int_equal(c.p.prompt_logprobs, -1);
    assert_true(c.p.tokens_as_ids);
    finish(&c);
    refuses("{\"prompt_logprobs\":-1}", "prompt_logprobs");
    refuses("{\"prompt_logprobs\":21}", "prompt_logprobs");
    refuses("{\"prompt_logprobs\":1,\"stream\":true}", "prompt_logprobs");
    refuses("{\"truncate_prompt_tokens\":0}", "truncate_prompt_tokens");
    refuses("{\"truncate_prompt_tokens\":-2}", "truncate_prompt_tokens");
}

static void unknown_fields_are_ignored(void **state) {
    (void)state;
    accepts("{\"user\":\"me\",\"metadata\":{\"a\":[1,2]},\"x\":1,\"parallel_tool_calls\":true}");
}

static char *repeat(const char *open, const char *item, size_t n, const char *close) {
    struct buf text;
    char *out;

    buf_init(&text, 0);
    buf_append_str(&text, str_of(open));
    for (size_t i = 0; i < n; i++)
        buf_appendf(&text, item, i ? "," : "", (unsigned)i);
    buf_append_str(&text, str_of(close));
    out = mem_strndup(buf_ptr(&text), buf_len(&text));
    buf_fini(&text);
    return out;
}

static void lists_have_limits(void **state) {
    static const struct {
        const char *param, *open, *item, *close;
        size_t most;
    } rows[] = {
        {"stop", "{\"stop\":[", "%s\"s%u\"", "]}", STOP_MAX_STRINGS},
        {"stop_token_ids", "{\"stop_token_ids\":[", "%s%u", "]}", REQUEST_STOP_IDS_MAX},
        {"logit_bias", "{\"logit_bias\":{", "%s\"%u\":1", "}}", REQUEST_BIAS_MAX},
    };

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        char *most = repeat(rows[i].open, rows[i].item, rows[i].most, rows[i].close);
        char *more = repeat(rows[i].open, rows[i].item, rows[i].most + 1, rows[i].close);

        accepts(most);
        refuses(more, rows[i].param);
        mem_free(most);
        mem_free(more);
    }
}

static void a_seed_is_drawn_when_none_is_given(void **state) {
    struct json *json = read_json("{}");
    static const struct generation_config none;
    struct call_params a, b;
    struct rng rng;
    const struct params_context ctx = {&none, &fuzz_limits, fuzz_tokenizer(), false, &rng, false};

    (void)state;
    rng_seed(&rng, 1);
    assert_int_equal(call_params_parse(&a, json, &ctx, NULL), ST_OK);
    assert_int_equal(call_params_parse(&b, json, &ctx, NULL), ST_OK);
    assert_true(a.request.seed != b.request.seed);
    json_destroy(json);
}

static void sglangs_names_are_understood(void **state) {
    struct parsed c = parse_sglang(
        "{\"text\":\"a\",\"stream\":true,\"extra_key\":\"k\",\"sampling_params\":{\"max_new_"
        "tokens\":"
        "7,\"min_new_tokens\":2,\"sampling_seed\":5,\"no_stop_trim\":true,\"stop\":\"x\"}}");

    (void)state;
    assert_int_equal(c.st, ST_OK);
    assert_int_equal(c.p.request.max_tokens, 7);
    assert_int_equal(c.p.request.min_tokens, 2);
    assert_true(c.p.has_max_tokens && c.p.has_seed && c.p.stream && c.p.include_stop);
    assert_int_equal(c.p.request.cache_salt_len, 1);
    finish(&c);
    c = parse_sglang("{\"text\":\"a\"}");
    assert_int_equal(c.p.request.max_tokens, 128);
    assert_false(c.p.has_max_tokens); /* 128 or what is left */
    finish(&c);
}

static void sglangs_fields_are_checked_in_both_places(void **state) {
    static const struct {
        const char *body, *param;
    } rows[] = {
        {"{\"sampling_params\":{\"max_new_tokens\":0}}", "max_new_tokens"},
        {"{\"sampling_params\":{\"suffix\":\"a\"}}", "suffix"},
        {"{\"regex\":\"a\",\"sampling_params\":{\"ebnf\":\"b\"}}", "ebnf"},
        {"{\"sampling_params\":{\"sampling_seed\":\"a\"}}", "sampling_seed"},
        {"{\"image_data\":\"a\"}", "image_data"},
        {"{\"return_hidden_states\":true}", "return_hidden_states"},
        {"{\"lora_path\":\"a\"}", "lora_path"},
        {"{\"cache_salt\":\"a\",\"extra_key\":\"b\"}", "extra_key"},
        {"{\"stream\":1}", "stream"},
    };

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        assert_refused(parse_sglang(rows[i].body), rows[i].body, rows[i].param);
    }
}

static void mutated_bodies_never_break_it(void **state) {
    static const char seed[] =
        "{\"temperature\":0.7,\"top_k\":-1,\"n\":2,\"max_tokens\":16,\"seed\":-1,\"stop\":[\"a\","
        "\"b\"],"
        "\"stop_token_ids\":[1,2],\"logit_bias\":{\"5\":-100,\"6\":1.5},\"cache_salt\":\"s\","
        "\"stream\":"
        "true,\"stream_options\":{\"include_usage\":true},\"echo\":false,\"sampling_params\":"
        "{\"max_new_tokens\":4,\"stop\":\"x\"},"
        "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{},"
        "\"strict\":true}}],\"tool_choice\":{\"type\":\"function\",\"function\":{\"name\":"
        "\"f\"}},\"thinking_token_budget\":7}";
    static const char digits[] = "0123456789-.e\"[]{},:truefalsn";
    char text[sizeof(seed)];
    struct rng rng;

    (void)state;
    rng_seed(&rng, support_seed());
    for (int i = 0; i < 20000; i++) {
        memcpy(text, seed, sizeof(seed));
        for (uint64_t k = 1 + rng_below(&rng, 3); k > 0; k--) {
            text[rng_below(&rng, sizeof(seed) - 1)] = digits[rng_below(&rng, sizeof(digits) - 1)];
        }
        LLVMFuzzerTestOneInput((const uint8_t *)text, sizeof(seed) - 1);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_empty_body_gives_the_defaults),
        cmocka_unit_test(the_models_makers_may_have_other_defaults),
        cmocka_unit_test(null_equals_absent),
        cmocka_unit_test(every_field_has_bounds_and_a_type),
        cmocka_unit_test(values_arrive),
        cmocka_unit_test(the_newer_name_of_max_tokens_wins),
        cmocka_unit_test(no_tokens_may_be_asked_for_with_an_echo_only),
        cmocka_unit_test(stream_options_need_a_stream),
        cmocka_unit_test(unsupported_fields_that_change_the_answer_are_refused),
        cmocka_unit_test(tokens_may_be_allowed_and_words_banned),
        cmocka_unit_test(prompt_fields_are_read),
        cmocka_unit_test(unknown_fields_are_ignored),
        cmocka_unit_test(lists_have_limits),
        cmocka_unit_test(a_seed_is_drawn_when_none_is_given),
        cmocka_unit_test(sglangs_names_are_understood),
        cmocka_unit_test(sglangs_fields_are_checked_in_both_places),
        cmocka_unit_test(mutated_bodies_never_break_it),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
