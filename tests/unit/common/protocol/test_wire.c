/* tests/unit/common/protocol/test_wire.c - the router-worker contract, and the error body. */
#include "common/base/rng.h"
#include "common/protocol/openai.h"
#include "common/protocol/wire.h"
#include "common/text/json.h"
#include "tests/support/cm.h"
#include "tests/support/support.h"

static void load_reports_read_as_written(void **state) {
    struct wire_load a = {.running = 3, .queued_tokens = 1200, .kv_free = 812, .kv_total = 1024}, b;
    char text[WIRE_LOAD_MAX];
    struct rng rng;
    size_t n;

    (void)state;
    n = wire_format_load(&a, text);
    assert_string_equal(text, "running=3 waiting=0 queued_tokens=1200 kv_free=812 kv_total=1024 "
                              "draining=0");
    assert_int_equal(n, strlen(text));
    rng_seed(&rng, support_seed());
    for (int i = 0; i < 1000; i++) {
        a = (struct wire_load){(uint32_t)rng_u64(&rng), (uint32_t)rng_u64(&rng), rng_u64(&rng), 0,
                               rng_u64(&rng),           rng_below(&rng, 2) != 0};
        a.kv_free = rng_below(&rng, a.kv_total | 1);
        n = wire_format_load(&a, text);
        assert_true(n < WIRE_LOAD_MAX);
        assert_int_equal(wire_parse_load((struct str){text, n}, &b), ST_OK);
        assert_true(a.running == b.running && a.waiting == b.waiting &&
                    a.queued_tokens == b.queued_tokens && a.kv_free == b.kv_free &&
                    a.kv_total == b.kv_total && a.draining == b.draining);
    }
}

static void untrustworthy_load_reports_are_refused(void **state) {
    static const char *const bad[] = {
        "",
        "running=3",
        "running=3 waiting=0 queued_tokens=0 kv_free=1 kv_total=1",
        "running=3 waiting=0 queued_tokens=0 kv_free=2 kv_total=1 draining=0",
        "running=3 waiting=0 queued_tokens=0 kv_free=1 kv_total=1 draining=2",
        "running=3  waiting=0 queued_tokens=0 kv_free=1 kv_total=1 draining=0",
        "running=3 waiting=0 queued_tokens=0 kv_free=1 kv_total=1 draining=0 ",
        "running=-3 waiting=0 queued_tokens=0 kv_free=1 kv_total=1 draining=0",
        "running=4294967296 waiting=0 queued_tokens=0 kv_free=1 kv_total=1 draining=0",
        "running=3 running=3 waiting=0 queued_tokens=0 kv_free=1 kv_total=1 draining=0",
        "running= waiting=0 queued_tokens=0 kv_free=1 kv_total=1 draining=0",
        "=3 running=3 waiting=0 queued_tokens=0 kv_free=1 kv_total=1 draining=0",
    };
    struct wire_load load = {.running = 77};

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        assert_int_equal(wire_parse_load(str_of(bad[i]), &load), ST_INVALID);
    }
    assert_int_equal(load.running, 77);
    assert_int_equal(wire_parse_load(STR("new=9 draining=1 kv_total=5 kv_free=5 queued_tokens=1 "
                                         "waiting=2 running=3"),
                                     &load),
                     ST_OK);
    assert_int_equal(load.running, 3);
    assert_true(load.draining);
}

static void token_counts_are_strict(void **state) {
    uint32_t n = 5;

    (void)state;
    assert_int_equal(wire_parse_tokens(STR("1184"), &n), ST_OK);
    assert_int_equal(n, 1184);
    assert_int_equal(wire_parse_tokens(STR("2147483648"), &n), ST_INVALID);
    assert_int_equal(wire_parse_tokens(STR(" 1"), &n), ST_INVALID);
    assert_int_equal(n, 1184);
    assert_true(
        wire_is_salt(STR("0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef")));
    assert_false(
        wire_is_salt(STR("0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdeF")));
    assert_false(wire_is_salt(STR("0123456789abcdef")));
    assert_false(wire_is_salt(STR_NULL));
}

static void server_info_reads_as_written(void **state) {
    const struct wire_server_info a = {
        .wire = WIRE_VERSION,
        .model = "a \"model\"",
        .other_names = "b\norg/c \"d\"\n",
        .backend = "cpu",
        .path = "avx512",
        .dtype = "bfloat16",
        .quantization = "compressed-tensors",
        .kv_dtype = "fp8_e4m3",
        .tensor_parallel_size = 4,
        .block_size = 16,
        .n_blocks = UINT64_C(5000000000),
        .tiers = {{"host", 7000, 400000, true}, {"file", UINT64_C(6000000000), 0, false}},
        .kv_bytes_per_token = 131072,
        .kv_peer = {"g-7", "00ff", 65536, true},
        .n_tiers = 2,
        .max_model_len = 32768,
        .max_num_seqs = 48,
        .trusts_router = true,
        .publishes_events = true,
        .prefill_tokens_per_s = 1234.5,
        .attn_context = 8192,
        .schedule_policy = "srpt",
        .tool_calls = "hermes",
        .reasoning = "none",
        .chunk_tokens = 8192,
        .itl_target_ms = 75.5,
        .generation = "0123456789abcdef",
        .response_mark = "0123456789ab",
    };
    struct wire_server_info b = {0};
    struct error err = {0};
    struct buf json;

    (void)state;
    buf_init(&json, 0);
    wire_append_server_info(&json, &a);
    assert_int_equal(wire_parse_server_info(buf_str(&json), &b, &err), ST_OK);
    assert_string_equal(a.model, b.model);
    assert_string_equal(a.other_names, b.other_names);
    assert_string_equal(a.backend, b.backend);
    assert_string_equal(a.path, b.path);
    assert_string_equal(a.dtype, b.dtype);
    assert_string_equal(a.quantization, b.quantization);
    assert_string_equal(a.kv_dtype, b.kv_dtype);
    assert_string_equal(a.generation, b.generation);
    assert_string_equal(a.response_mark, b.response_mark);
    assert_string_equal(a.schedule_policy, b.schedule_policy);
    assert_string_equal(a.tool_calls, b.tool_calls);
    assert_string_equal(a.reasoning, b.reasoning);
    assert_int_equal(b.n_tiers, 2);
    assert_string_equal(b.tiers[1].name, "file");
    assert_int_equal(wire_tier_blocks(&b), UINT64_C(6000007000));
    assert_true(b.tiers[0].is_inclusive && !b.tiers[1].is_inclusive);
    assert_float_equal(b.tiers[0].restore_tokens_per_s, 400000, 0);
    assert_int_equal(b.kv_bytes_per_token, 131072);
    assert_string_equal(b.kv_peer.generation, "g-7");
    assert_string_equal(b.kv_peer.fingerprint, "00ff");
    assert_int_equal(b.kv_peer.bytes_per_token, 65536);
    assert_true(b.kv_peer.is_encrypted);
    assert_true(a.wire == b.wire && a.block_size == b.block_size && a.n_blocks == b.n_blocks &&
                a.max_model_len == b.max_model_len && a.max_num_seqs == b.max_num_seqs &&
                a.trusts_router == b.trusts_router && a.publishes_events == b.publishes_events &&
                a.tensor_parallel_size == b.tensor_parallel_size &&
                a.prefill_tokens_per_s == b.prefill_tokens_per_s &&
                a.attn_context == b.attn_context && a.chunk_tokens == b.chunk_tokens &&
                a.itl_target_ms == b.itl_target_ms);
    buf_fini(&json);
}

static void names_that_find_no_room_are_left_out(void **state) {
    char names[WIRE_NAMES_MAX] = "", long_name[WIRE_MODEL_MAX];
    const char *cursor = names;

    (void)state;
    memset(long_name, 'x', sizeof(long_name));
    wire_names_add(names, STR("a"));
    wire_names_add(names, STR(""));
    wire_names_add(names, STR("two\nlines"));
    wire_names_add(names, (struct str){long_name, sizeof(long_name)});
    wire_names_add(names, (struct str){long_name, sizeof(long_name) - 1});
    wire_names_add(names, (struct str){long_name, sizeof(long_name) - 2});
    wire_names_add(names, STR("z"));
    assert_true(str_eq(wire_names_next(&cursor), STR("a")));
    assert_int_equal(wire_names_next(&cursor).len, sizeof(long_name) - 1);
    assert_true(str_eq(wire_names_next(&cursor), STR("z")));
    assert_int_equal(wire_names_next(&cursor).len, 0);
    assert_int_equal(wire_names_next(&cursor).len, 0);
}

static void the_speed_below_the_device_is_that_of_a_mean_block(void **state) {
    struct wire_server_info info = {.n_tiers = 3};

    (void)state;
    info.tiers[0] = (struct wire_tier){.n_blocks = 100, .restore_tokens_per_s = 1000};
    info.tiers[1] = (struct wire_tier){.n_blocks = 300, .restore_tokens_per_s = 100};
    info.tiers[2] = (struct wire_tier){.n_blocks = 9999};
    assert_float_equal(wire_restore_tokens_per_s(&info), 400 / (0.1 + 3), 1e-9);
    info.n_tiers = 0;
    assert_float_equal(wire_restore_tokens_per_s(&info), 0, 0);
    assert_int_equal(
        wire_parse_server_info(
            STR("{\"wire\":1,\"tiers\":[{\"n_blocks\":1,\"restore_tokens_per_s\":-1}]}"), &info,
            NULL),
        ST_INVALID);
}

static void tiers_of_cached_tokens_add_up(void **state) {
    static const char *const bad[] = {"",
                                      "host",
                                      "host=",
                                      "=1",
                                      "host=1 ",
                                      "host=-1",
                                      "host=1  d=2",
                                      "host=3000000000",
                                      "a=2147483647 b=1",
                                      "a_name_of_16_xxx=1"};
    uint32_t n = 7;

    (void)state;
    assert_int_equal(wire_parse_tiers(STR("host=512"), &n), ST_OK);
    assert_int_equal(n, 512);
    assert_int_equal(wire_parse_tiers(STR("host=512 disk=64 new=0"), &n), ST_OK);
    assert_int_equal(n, 576);
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        assert_int_equal(wire_parse_tiers(str_of(bad[i]), &n), ST_INVALID);
        assert_int_equal(n, 576);
    }
}

static void foreign_server_info_is_judged(void **state) {
    struct wire_server_info info = {.wire = 9};
    struct error err = {0};

    (void)state;
    assert_int_equal(wire_parse_server_info(STR("{}"), &info, &err), ST_INVALID);
    assert_int_equal(wire_parse_server_info(STR("[1]"), &info, &err), ST_INVALID);
    assert_int_equal(wire_parse_server_info(STR("{\"wire\":1,\"n_blocks\":-1}"), &info, &err),
                     ST_INVALID);
    assert_int_equal(wire_parse_server_info(STR("{\"wire\":1,\"model\":7}"), &info, &err),
                     ST_INVALID);
    assert_int_equal(wire_parse_server_info(STR("not json"), &info, &err), ST_INVALID);
    assert_true(err.message[0]);
    assert_int_equal(info.wire, 9);
    assert_int_equal(wire_parse_server_info(STR("{\"new\":[1],\"wire\":2}"), &info, &err), ST_OK);
    assert_int_equal(info.wire, 2);
    assert_int_equal(info.n_blocks, 0);
    assert_false(info.publishes_events);
    assert_string_equal(info.schedule_policy, "");
    assert_int_equal(wire_parse_server_info(STR("{\"wire\":1,\"request_events\":2}"), &info, &err),
                     ST_OK);
    assert_true(info.publishes_events); /* of a later version, which this one can read */
    assert_int_equal(wire_parse_server_info(STR("{\"wire\":1,\"tiers\":{}}"), &info, &err),
                     ST_INVALID);
    assert_int_equal(wire_parse_server_info(STR("{\"wire\":1,\"tiers\":[3]}"), &info, &err),
                     ST_INVALID);
    assert_int_equal(
        wire_parse_server_info(STR("{\"wire\":1,\"tiers\":[{\"n_blocks\":1},{\"n_blocks\":2},{},"
                                   "{\"n_blocks\":3},{\"n_blocks\":4},{\"n_blocks\":5}]}"),
                               &info, &err),
        ST_OK);
    assert_int_equal(info.n_tiers, WIRE_TIERS_MAX);
    assert_int_equal(wire_tier_blocks(&info), 15);
    assert_int_equal(wire_parse_server_info(STR("{\"wire\":1,\"request_events\":0}"), &info, &err),
                     ST_OK);
    assert_false(info.publishes_events);
}

static void errors_have_one_shape(void **state) {
    struct error err = {0};
    struct buf out;

    (void)state;
    buf_init(&out, 0);
    error_set_param(&err, ST_INVALID, "n", "n is \"%d\": use 1\n", 0);
    openai_append_error(&out, ST_INVALID, 0, &err);
    assert_true(
        str_eq(buf_str(&out), STR("{\"error\":{\"message\":\"n is \\\"0\\\": use 1\\n\",\"type\":"
                                  "\"BadRequestError\",\"param\":\"n\",\"code\":400}}")));
    buf_clear(&out);
    openai_append_error(&out, ST_TIMEOUT, 408, NULL);
    assert_true(str_eq(buf_str(&out), STR("{\"error\":{\"message\":\"timeout\",\"type\":"
                                          "\"TimeoutError\",\"param\":null,\"code\":408}}")));
    buf_clear(&out);
    error_set(&err, ST_INVALID, "bad \xFF\xC3 byte");
    openai_append_error(&out, ST_INVALID, 0, &err);
    assert_true(str_is_utf8(buf_str(&out)));
    buf_fini(&out);
}

/* What survives reading is inside the limits, whatever came in. */
static void mutated_reports_never_pass_half_read(void **state) {
    static const char good[] = "running=3 waiting=0 queued_tokens=1200 kv_free=812 kv_total=1024 "
                               "draining=0";
    struct rng rng;
    char text[sizeof(good)];

    (void)state;
    rng_seed(&rng, support_seed());
    for (int i = 0; i < 20000; i++) {
        struct wire_load load = {.running = 77};
        enum status st;

        memcpy(text, good, sizeof(good));
        for (uint64_t k = 1 + rng_below(&rng, 3); k > 0; k--) {
            text[rng_below(&rng, sizeof(good) - 1)] = "0123= _ax\t-"[rng_below(&rng, 11)];
        }
        st = wire_parse_load((struct str){text, sizeof(good) - 1}, &load);
        if (st == ST_OK) {
            assert_true(load.kv_free <= load.kv_total);
        } else {
            assert_int_equal(load.running, 77);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(load_reports_read_as_written),
        cmocka_unit_test(untrustworthy_load_reports_are_refused),
        cmocka_unit_test(token_counts_are_strict),
        cmocka_unit_test(server_info_reads_as_written),
        cmocka_unit_test(names_that_find_no_room_are_left_out),
        cmocka_unit_test(the_speed_below_the_device_is_that_of_a_mean_block),
        cmocka_unit_test(tiers_of_cached_tokens_add_up),
        cmocka_unit_test(foreign_server_info_is_judged),
        cmocka_unit_test(errors_have_one_shape),
        cmocka_unit_test(mutated_reports_never_pass_half_read),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
