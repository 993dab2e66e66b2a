/* tests/unit/router/prompt/test_prompt_text.c - what of a body is hashed in each API; and that a
 * conversation grows at its end in all of them, as it is written by their clients. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/rng.h"
#include "router/prompt/prompt_hash.h"
#include "router/prompt/prompt_text.h"
#include "tests/support/cm.h"

static void take(void *arg, struct str piece) {
    assert_true(piece.len > 0);
    buf_append_str(arg, piece);
}

/* The text of a body. */
static void read_text(struct str body, enum api_form api, struct buf *out, size_t *n_system) {
    struct body_scan scan;
    struct client_noise noise;
    struct prompt_text text = {&scan, &noise, api};
    struct error err = {0};

    if (body_scan(body, &scan, &err) != ST_OK) fail_msg("%s", err.message);
    client_noise_find(&scan, &noise);
    buf_clear(out);
    *n_system = prompt_text_read(&text, take, out);
    assert_true(buf_len(out) <= prompt_text_max(&scan, api));
    assert_int_equal(buf_status(out), ST_OK);
}

static void expect(enum api_form api, const char *body, const char *text, size_t n_system) {
    struct buf got;
    size_t n;

    buf_init(&got, 0);
    read_text(str_of(body), api, &got, &n);
    buf_append_char(&got, '\0');
    assert_string_equal(buf_ptr(&got), text);
    assert_int_equal(n, n_system);
    buf_fini(&got);
}

/* --- the forms -------------------------------------------------------------------------------- */

#define MARK "\"cache_control\":{\"type\":\"ephemeral\"}"

static void a_message_is_its_role_and_its_texts(void **state) {
    (void)state;
    expect(API_MESSAGES, "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]}",
           "{\"user\"\"hi\"", 0);
    expect(API_MESSAGES,
           "{\"messages\" : [ { \"content\" : [ { \"text\" : \"hi\" , \"type\":\"text\"," MARK
           "} ] , \"role\" : \"user\" } ] }",
           "{\"user\"\"hi\"", 0);
    expect(API_MESSAGES,
           "{\"system\":[{\"type\":\"text\",\"text\":\"a\"},{\"type\":\"text\",\"text\":\"b\"," MARK
           "}],\"messages\":[{\"role\":\"user\",\"content\":[]},{\"role\":\"assistant\","
           "\"content\":\"x\"}]}",
           "{\"system\"\"a\"\"b\"{\"user\"{\"assistant\"\"x\"", 15);
    expect(API_MESSAGES, "{\"system\":\"a\",\"messages\":[]}", "{\"system\"\"a\"", 12);
    expect(API_MESSAGES, "{\"system\":null}", "", 0);
    expect(API_RESPONSES, "{\"instructions\":\"a\",\"input\":\"hi\",\"text\":{\"format\":1}}",
           "{\"system\"\"a\"{\"user\"\"hi\"", 12);
    expect(API_RESPONSES,
           "{\"input\":[{\"type\":\"message\",\"id\":\"msg_1\",\"role\":\"user\",\"content\":"
           "[{\"type\":\"input_text\",\"text\":\"hi\"}]}]}",
           "{\"user\"\"hi\"", 0);
    expect(API_OPENAI, "{\"messages\":[ 1 ],\"input\":\"no\"}", "[ 1 ]", 0);
}

static void blocks_keep_their_members_without_markers(void **state) {
    (void)state;
    expect(API_MESSAGES,
           "{\"messages\":[{\"role\":\"assistant\",\"content\":[{\"type\":\"thinking\","
           "\"thinking\":\"t\","
           "\"signature\":\"s\"},{\"type\":\"tool_use\",\"id\":\"u\",\"name\":\"f\",\"input\":{"
           "\"x\": 1}}]},"
           "{\"role\":\"user\",\"content\":[{" MARK
           ",\"type\":\"tool_result\",\"tool_use_id\":\"u\",\"content\":\"r\"}]}]}",
           "{\"assistant\"{\"type\"\"thinking\"\"thinking\"\"t\"\"signature\"\"s\"{\"type\"\"tool_"
           "use\"\"id\"\"u\""
           "\"name\"\"f\"\"input\"{\"x\": "
           "1}{\"user\"{\"type\"\"tool_result\"\"tool_use_id\"\"u\"\"content\"\"r\"",
           0);
    expect(API_RESPONSES,
           "{\"input\":[{\"type\":\"function_call\",\"call_id\":\"c\",\"name\":\"f\",\"arguments\":"
           "\"{}\"},"
           "{\"type\":\"function_call_output\",\"call_id\":\"c\",\"output\":\"r\"}]}",
           "{\"type\"\"function_call\"\"call_id\"\"c\"\"name\"\"f\"\"arguments\"\"{}\""
           "{\"type\"\"function_call_output\"\"call_id\"\"c\"\"output\"\"r\"",
           0);
}

static void what_is_no_message_is_taken_as_it_is(void **state) {
    (void)state;
    expect(API_MESSAGES, "{\"messages\":[1,\"a\",[2],{\"role\":\"user\"},{}]}",
           "1\"a\"[2]{\"role\"\"user\"{", 0);
    expect(API_MESSAGES, "{\"messages\":[{\"role\":\"user\",\"content\":[3,{\"type\":\"text\"}]}]}",
           "{\"user\"3{\"type\"\"text\"", 0);
    expect(API_MESSAGES, "{\"messages\":{\"a\":1},\"system\":7}", "{\"system\"7{\"user\"{\"a\":1}",
           10);
    expect(API_MESSAGES, "{\"max_tokens\":1}", "", 0);
    expect(API_RESPONSES, "{\"input\":null}", "", 0);
}

#define BILLING(nonce) "x-anthropic-billing-header: cc_version=2.1; cch=" nonce ";"

static void noise_is_left_out_and_late_system_messages_stay(void **state) {
    (void)state;
    expect(API_MESSAGES,
           "{\"system\":[{\"type\":\"text\",\"text\":\"" BILLING(
               "1") "\"},{\"type\":\"text\",\"text\":\"a\"}]}",
           "{\"system\"\"a\"", 12);
    expect(API_MESSAGES, "{\"system\":\"" BILLING("2") "\\na\"}", "{\"system\"\"a\"", 12);
    expect(API_MESSAGES,
           "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"system\",\"content\":"
           "\"<total_tokens>9 tokens left</total_tokens>\"}]}",
           "{\"user\"\"a\"{\"system\"\"<total_tokens>9 tokens left</total_tokens>\"", 0);
}

static void a_block_of_too_many_members_is_taken_as_it_is(void **state) {
    char body[2048] = "{\"messages\":[", want[2048] = "{";
    (void)state;

    for (int i = 0; i < 30; i++)
        sprintf(want + strlen(want), "%s\"k%d\":%d", i ? "," : "", i, i);
    strcat(want, "}");
    strcat(strcat(body, want), "]}");
    expect(API_MESSAGES, body, want, 0);
}

static void the_api_of_a_body_is_known_by_its_fields(void **state) {
    struct body_scan scan;
    (void)state;

    assert_int_equal(body_scan(STR("{\"messages\":[]}"), &scan, NULL), ST_OK);
    assert_int_equal(prompt_api_of(&scan), API_OPENAI);
    assert_int_equal(body_scan(STR("{\"messages\":[],\"system\":\"\"}"), &scan, NULL), ST_OK);
    assert_int_equal(prompt_api_of(&scan), API_MESSAGES);
    assert_int_equal(body_scan(STR("{\"input\":\"\"}"), &scan, NULL), ST_OK);
    assert_int_equal(prompt_api_of(&scan), API_RESPONSES);
}

/* --- conversations ---------------------------------------------------------------------------- */

#define TURNS    12
#define TEXT_MAX 3000
#define BLOCK    64
#define N_BLOCKS 4096

/* What one client and a model say to each other; a call has a result. */
struct talk {
    char system[TEXT_MAX], said[TURNS][TEXT_MAX], answer[TURNS][TEXT_MAX], result[TURNS][TEXT_MAX];
    bool has_call[TURNS];
    bool has_late_system;
    uint32_t seed; /* of how it is written */
};

static void speak(struct rng *rng, char *out) {
    static const char *const words[] = {"prefix ", "cache ", "of ",   "\\n", "\\\"quoted\\\" ",
                                        "{}[]",    "a ",     "tool ", "é ",  "\\u0041 "};
    size_t n = 10 + rng_below(rng, 200);

    *out = '\0';
    for (size_t i = 0; i < n && strlen(out) < TEXT_MAX - 40; i++)
        strcat(out, words[rng_below(rng, ARRAY_LEN(words))]);
}

static void make_talk(struct rng *rng, struct talk *t) {
    speak(rng, t->system);
    for (int i = 0; i < TURNS; i++) {
        speak(rng, t->said[i]);
        speak(rng, t->answer[i]);
        speak(rng, t->result[i]);
        t->has_call[i] = rng_below(rng, 2);
    }
    t->has_late_system = rng_below(rng, 2);
    t->seed = rng_below(rng, 1000);
}

/* Turn n of it, for each API. */
static void write_chat(const struct talk *t, int n, struct buf *out) {
    buf_appendf(out, "{\"model\":\"m\",\"messages\":[{\"role\":\"system\",\"content\":\"%s\"}",
                t->system);
    for (int i = 0; i <= n; i++) {
        buf_appendf(out, ",{\"role\":\"user\",\"content\":\"%s\"}", t->said[i]);
        if (i == n) break;
        if (t->has_call[i]) {
            buf_appendf(
                out,
                ",{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[{\"id\":\"c%d\","
                "\"type\":\"function\",\"function\":{\"name\":\"f\",\"arguments\":\"{}\"}}]},"
                "{\"role\":\"tool\",\"tool_call_id\":\"c%d\",\"content\":\"%s\"}",
                i, i, t->result[i]);
        }
        buf_appendf(out, ",{\"role\":\"assistant\",\"content\":\"%s\"}", t->answer[i]);
    }
    buf_appendf(out, "],\"stream\":true}");
}

/* As Claude Code: a nonce in the first block, a marker that is on the last message alone, whose
 * string is an array then. */
static void put_message(struct buf *out, const char *role, const char *text, bool is_last) {
    if (is_last) {
        buf_appendf(out,
                    ",{\"role\":\"%s\",\"content\":[{\"type\":\"text\",\"text\":\"%s\"," MARK "}]}",
                    role, text);
    } else {
        buf_appendf(out, ",{\"role\":\"%s\",\"content\":\"%s\"}", role, text);
    }
}

static void write_messages(const struct talk *t, int n, struct buf *out) {
    buf_appendf(
        out,
        "{\"model\":\"m\",\"max_tokens\":9,\"system\":[{\"type\":\"text\",\"text\":\"" BILLING(
            "%d") "\"},{\"type\":\"text\",\"text\":\"%s\"," MARK
                  "}],\"messages\":[{\"role\":\"user\","
                  "\"content\":\"now\"}",
        n * 7919, t->system);
    for (int i = 0; i <= n; i++) {
        put_message(out, "user", t->said[i], i == n);
        if (i == n) break;
        if (t->has_call[i]) {
            buf_appendf(
                out,
                ",{\"role\":\"assistant\",\"content\":[{\"type\":\"tool_use\",\"id\":\"c%d\","
                "\"name\":\"f\",\"input\":{}}]},{\"role\":\"user\",\"content\":[{\"type\":"
                "\"tool_result\",\"tool_use_id\":\"c%d\",\"content\":\"%s\"}]}",
                i, i, t->result[i]);
            if (t->has_late_system) put_message(out, "system", "90 tokens left", false);
        }
        put_message(out, "assistant", t->answer[i], false);
    }
    buf_appendf(out, "],\"stream\":true}");
}

/* As the Agents SDK: the first input is a string. */
static void write_responses(const struct talk *t, int n, struct buf *out) {
    buf_appendf(out, "{\"model\":\"m\",\"instructions\":\"%s\",\"input\":", t->system);
    if (n == 0) buf_appendf(out, "\"%s\"", t->said[0]);
    for (int i = 0; n > 0 && i <= n; i++) {
        buf_appendf(out, "%s{\"role\":\"user\",\"content\":\"%s\"}", i ? "," : "[", t->said[i]);
        if (i == n) break;
        if (t->has_call[i]) {
            buf_appendf(
                out,
                ",{\"type\":\"function_call\",\"id\":\"fc_%d\",\"call_id\":\"c%d\",\"name\":\"f\","
                "\"arguments\":\"{}\"},{\"type\":\"function_call_output\",\"call_id\":\"c%d\","
                "\"output\":\"%s\"}",
                i, i, i, t->result[i]);
        }
        buf_appendf(out,
                    ",{\"id\":\"msg_%d\",\"type\":\"message\",\"role\":\"assistant\",\"content\":"
                    "[{\"type\":\"output_text\",\"text\":\"%s\",\"annotations\":[]}]}",
                    i, t->answer[i]);
    }
    buf_appendf(out, "%s,\"store\":false,\"stream\":true}", n ? "]" : "");
}

static void write_body(const struct talk *t, int n, enum api_form api, struct buf *out) {
    buf_clear(out);
    if (api == API_MESSAGES) write_messages(t, n, out);
    if (api == API_RESPONSES) write_responses(t, n, out);
    if (api == API_OPENAI) write_chat(t, n, out);
    assert_int_equal(buf_status(out), ST_OK);
}

struct share {
    uint64_t n_hit, n_all;
};

static uint32_t chain_of(struct str body, enum api_form api, uint64_t *chain) {
    struct body_scan scan;
    struct client_noise noise;
    struct prompt_text text = {&scan, &noise, api};
    struct prompt_hashed hashed;

    assert_int_equal(body_scan(body, &scan, NULL), ST_OK);
    client_noise_find(&scan, &noise);
    assert_true(prompt_hash_n_blocks(prompt_text_max(&scan, api), BLOCK, N_BLOCKS) < N_BLOCKS);
    prompt_hash_text(&text, 1, BLOCK, chain, N_BLOCKS, &hashed);
    return hashed.n_blocks;
}

/* The blocks of each turn that the turn before had. */
static void count_hits(const struct talk *t, enum api_form written, enum api_form read,
                       struct share *share) {
    static uint64_t chains[2][N_BLOCKS];
    struct buf body;
    uint32_t n_last = 0;

    buf_init(&body, 0);
    for (int i = 0; i < TURNS; i++) {
        uint32_t n, n_hit = 0;

        write_body(t, i, written, &body);
        n = chain_of(buf_str(&body), read, chains[i % 2]);
        while (n_hit < MIN(n, n_last) && chains[0][n_hit] == chains[1][n_hit])
            n_hit++;
        if (i) share->n_hit += n_hit;
        if (i) share->n_all += n;
        n_last = n;
    }
    buf_fini(&body);
}

static void a_turn_is_a_prefix_of_the_next_one(void **state) {
    static struct talk talk;
    struct buf body, texts[2];
    struct rng rng;
    (void)state;

    rng_seed(&rng, 3);
    buf_init(&body, 0);
    buf_init(&texts[0], 0);
    buf_init(&texts[1], 0);
    for (int round = 0; round < 40; round++) {
        enum api_form api = round % 2 ? API_MESSAGES : API_RESPONSES;

        make_talk(&rng, &talk);
        for (int i = 0; i < TURNS; i++) {
            struct buf *now = &texts[i % 2], *last = &texts[(i + 1) % 2];
            size_t n_system;

            write_body(&talk, i, api, &body);
            read_text(buf_str(&body), api, now, &n_system);
            assert_true(n_system > 0);
            if (!i) continue;
            assert_true(buf_len(now) > buf_len(last));
            assert_memory_equal(buf_ptr(now), buf_ptr(last), buf_len(last));
        }
    }
    buf_fini(&body);
    buf_fini(&texts[0]);
    buf_fini(&texts[1]);
}

static double share_of(const struct share *s) {
    return (double)s->n_hit / (double)s->n_all;
}

static void the_same_conversations_hit_alike_in_all_apis(void **state) {
    static struct talk talk;
    struct share shares[3] = {{0}}, as_it_is = {0};
    struct rng rng;
    (void)state;

    rng_seed(&rng, 4);
    for (int round = 0; round < 40; round++) {
        make_talk(&rng, &talk);
        count_hits(&talk, API_OPENAI, API_OPENAI, &shares[0]);
        count_hits(&talk, API_MESSAGES, API_MESSAGES, &shares[1]);
        count_hits(&talk, API_RESPONSES, API_RESPONSES, &shares[2]);
        count_hits(&talk, API_MESSAGES, API_OPENAI, &as_it_is);
    }
    assert_true(share_of(&shares[0]) > 0.7);
    for (int i = 1; i < 3; i++)
        assert_true(fabs(share_of(&shares[i]) - share_of(&shares[0])) < 0.01);
    assert_true(share_of(&as_it_is) < share_of(&shares[0]) - 0.02); /* without the reader */
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_message_is_its_role_and_its_texts),
        cmocka_unit_test(blocks_keep_their_members_without_markers),
        cmocka_unit_test(what_is_no_message_is_taken_as_it_is),
        cmocka_unit_test(noise_is_left_out_and_late_system_messages_stay),
        cmocka_unit_test(a_block_of_too_many_members_is_taken_as_it_is),
        cmocka_unit_test(the_api_of_a_body_is_known_by_its_fields),
        cmocka_unit_test(a_turn_is_a_prefix_of_the_next_one),
        cmocka_unit_test(the_same_conversations_hit_alike_in_all_apis),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
