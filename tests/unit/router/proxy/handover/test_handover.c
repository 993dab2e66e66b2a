/* tests/unit/router/proxy/handover/test_handover.c - the bodies of both legs. */
#include "router/prompt/body_scan.h"
#include "router/proxy/handover/handover.h"
#include "tests/support/cm.h"

#define CHAT STR("/v1/chat/completions")

static void assert_text(struct buf *b, const char *want) {
    buf_append_char(b, '\0');
    assert_string_equal(buf_ptr(b), want);
    buf_clear(b);
}

/* The first leg's body. */
static void put_first(const struct handover_ops *ops, const struct handover *h, struct buf *out) {
    struct str cuts[HANDOVER_CUTS_MAX], rest = h->body;
    uint32_t n = ops->first_dropped ? handover_cuts(h->body, ops->first_dropped, cuts) : 0;
    size_t n_open;

    for (uint32_t i = 0; i < n; i++) {
        assert_true(cuts[i].len > 0 && cuts[i].ptr >= rest.ptr);
        buf_append(out, rest.ptr, (size_t)(cuts[i].ptr - rest.ptr));
        rest.len -= (size_t)(cuts[i].ptr + cuts[i].len - rest.ptr);
        rest.ptr = cuts[i].ptr + cuts[i].len;
    }
    n_open = handover_open_len(rest);
    buf_append(out, rest.ptr, n_open);
    if (ops->first_members) ops->first_members(h, out);
    buf_append(out, rest.ptr + n_open, rest.len - n_open);
}

static void a_first_leg_has_one_token_and_no_stream(void **state) {
    struct handover h = {
        .body = STR(" { \"stream\" : true, \"a\":[1, {\"max_tokens\":9}],"
                    "\"max\\u005ftokens\":5,\"stream_options\":{},\"min_tokens\":2 }")};
    struct buf out;

    (void)state;
    buf_init(&out, 0);
    put_first(&handover_nixl, &h, &out);
    assert_text(&out, " { \"a\":[1, {\"max_tokens\":9}] ,\"max_tokens\":1,\"min_tokens\":1,"
                      "\"stream\":false,\"kv_transfer_params\":{\"do_remote_decode\":true,"
                      "\"do_remote_prefill\":false,\"remote_engine_id\":null,"
                      "\"remote_block_ids\":null,\"remote_host\":null,\"remote_port\":null}}");
    buf_fini(&out);
}

static void what_is_cut_leaves_the_other_members_and_their_commas(void **state) {
    static const char *const dropped[] = {"x", "y", NULL};
    static const struct {
        const char *body, *want;
    } rows[] = {{"{\"a\":1}", "{\"a\":1}"},
                {"{\"x\":1,\"a\":1}", "{\"a\":1}"},
                {"{\"a\":1,\"x\":1}", "{\"a\":1}"},
                {"{ \"x\" : [1] , \"y\":{} , \"a\":1 }", "{ \"a\":1 }"},
                {"{\"a\":1, \"x\":1, \"y\":2, \"b\":2}", "{\"a\":1, \"b\":2}"},
                {"{\"x\":1,\"a\":1,\"y\":2}", "{\"a\":1}"},
                {"{\"a\":1,\"x\":1,\"b\":2,\"y\":2,\"c\":3}", "{\"a\":1,\"b\":2,\"c\":3}"}};
    struct handover_ops ops = {.first_dropped = dropped};
    struct buf out;

    (void)state;
    buf_init(&out, 0);
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        put_first(&ops, &(struct handover){.body = str_of(rows[i].body)}, &out);
        assert_text(&out, rows[i].want);
    }
    buf_fini(&out);
}

static void what_is_handed_over_is_relayed_as_it_came(void **state) {
    struct handover h = {.host = STR("10.0.0.7")};
    struct buf out;

    (void)state;
    buf_init(&out, 0);
    assert_int_equal(
        handover_nixl.second_members(
            &h,
            STR("{\"id\":1,\"kv_transfer_params\": { \"x\" :[1.0],\"do_remote_prefill\": true}}"),
            &out),
        ST_OK);
    assert_text(&out, ",\"kv_transfer_params\":{ \"x\" :[1.0],\"do_remote_prefill\": true}");
    assert_int_equal(
        handover_nixl.second_members(&h,
                                     STR("{\"kv_transfer_params\":{\"do_remote_prefill\":true,"
                                         "\"remote_host\":\"0.0.0.0\",\"z\":1}}"),
                                     &out),
        ST_OK);
    assert_text(&out, ",\"kv_transfer_params\":{\"do_remote_prefill\":true,"
                      "\"remote_host\":\"10.0.0.7\",\"z\":1}");
    assert_int_equal(
        handover_nixl.second_members(&h,
                                     STR("{\"kv_transfer_params\":{\"do_remote_prefill\":true,"
                                         "\"remote_host\":\"10.0.0.9\"}}"),
                                     &out),
        ST_OK);
    assert_text(&out, ",\"kv_transfer_params\":{\"do_remote_prefill\":true,"
                      "\"remote_host\":\"10.0.0.9\"}");
    buf_fini(&out);
}

static void an_answer_that_hands_nothing_over_is_found(void **state) {
    static const char *const answers[] = {"{}",
                                          "[]",
                                          "{\"kv_transfer_params\":null}",
                                          "{\"kv_transfer_params\":[1]}",
                                          "{\"kv_transfer_params\":{\"do_remote_prefill\":false}}",
                                          "{\"kv_transfer_params\":{}}"};
    struct handover h = {.host = STR("a")};
    struct buf out;

    (void)state;
    buf_init(&out, 0);
    for (size_t i = 0; i < ARRAY_LEN(answers); i++)
        assert_int_equal(handover_nixl.second_members(&h, str_of(answers[i]), &out), ST_NOT_FOUND);
    assert_int_equal(handover_nixl.second_members(
                         &h, STR("{\"kv_transfer_params\":{\"do_remote_prefill\":true"), &out),
                     ST_INVALID);
    assert_int_equal(buf_len(&out), 0);
    buf_fini(&out);
}

static void what_cannot_be_split_is_found(void **state) {
    static const struct {
        const char *body;
        bool fits;
    } rows[] = {{"{\"messages\":[]}", true},
                {"{\"messages\":[],\"n\":1,\"tool_choice\":\"auto\"}", true},
                {"{\"messages\":[],\"n\":2}", false},
                {"{\"messages\":[],\"max_tokens\":1}", false},
                {"{\"messages\":[],\"prompt_logprobs\":0}", false},
                {"{\"messages\":[],\"tool_choice\":{\"type\":\"function\"}}", false}};

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(rows); i++)
        assert_int_equal(handover_nixl.fits(CHAT, str_of(rows[i].body)), rows[i].fits);
    assert_true(handover_nixl.fits(STR("/v1/completions"), STR("{\"prompt\":\"a\"}")));
    assert_false(handover_nixl.fits(STR("/v1/completions"), STR("{\"prompt\":[\"a\",\"b\"]}")));
    assert_false(handover_nixl.fits(STR("/v1/messages"), STR("{\"messages\":[]}")));
    assert_false(handover_nixl.fits(CHAT, STR("{\"stream\":true}")));
}

static void both_legs_of_mooncake_have_one_transfer_id(void **state) {
    struct handover h = {.body = STR("{\"prompt\":\"a\",\"stream\":true}"),
                         .host = STR("10.0.0.7"),
                         .bootstrap_port = 9001,
                         .engine = STR("e_dp1"),
                         .rid = "t"};
    struct buf out;

    (void)state;
    buf_init(&out, 0);
    put_first(&handover_mooncake, &h, &out);
    assert_text(&out,
                "{\"prompt\":\"a\",\"max_tokens\":1,\"stream\":false,\"kv_transfer_params\":{"
                "\"do_remote_decode\":true,\"do_remote_prefill\":false,\"transfer_id\":\"t\"}}");
    assert_int_equal(handover_mooncake.second_members(&h, STR_NULL, &out), ST_OK);
    assert_text(&out, ",\"kv_transfer_params\":{\"do_remote_prefill\":true,"
                      "\"do_remote_decode\":false,\"transfer_id\":\"t\","
                      "\"remote_engine_id\":\"e_dp1\","
                      "\"remote_bootstrap_addr\":\"http://10.0.0.7:9001\"}");
    h.host = STR("fd00::7");
    assert_int_equal(handover_mooncake.second_members(&h, STR_NULL, &out), ST_OK);
    buf_append_char(&out, '\0');
    assert_non_null(strstr(buf_ptr(&out), "\"http://[fd00::7]:9001\""));
    h.engine = STR_NULL;
    assert_int_equal(handover_mooncake.second_members(&h, STR_NULL, &out), ST_NOT_FOUND);
    buf_fini(&out);
}

static void what_our_workers_take_apart(void **state) {
    static const struct {
        const char *path, *body;
        bool fits;
    } rows[] = {{"/v1/chat/completions", "{\"max_tokens\":1,\"tool_choice\":\"required\"}", true},
                {"/v1/messages", "{}", true},
                {"/v1/responses", "{}", true},
                {"/v1/completions", "{\"prompt\":\"a\"}", true},
                {"/v1/completions", "{\"prompt\":[ 1,2]}", true},
                {"/v1/completions", "{\"prompt\":[\"a\",\"b\"]}", false},
                {"/v1/completions", "{\"prompt\":[[1],[2]]}", false},
                {"/v1/completions", "{\"prompt\":[]}", false},
                {"/v1/completions", "{}", false},
                {"/generate", "{\"text\":\"a\"}", false},
                {"/v1/chat/completions", "{\"n\":2}", false},
                {"/v1/chat/completions", "{\"best_of\":2}", false},
                {"/v1/chat/completions", "{\"use_beam_search\":true}", false},
                {"/v1/chat/completions", "{\"prompt_logprobs\":0}", false},
                {"/v1/completions", "{\"prompt\":\"a\",\"echo\":true}", false}};

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(rows); i++)
        assert_int_equal(handover_peer.fits(str_of(rows[i].path), str_of(rows[i].body)),
                         rows[i].fits);
}

static void a_batch_has_ids_and_rooms_that_wrap_below_2_63(void **state) {
    struct handover h = {.body = STR("{\"text\":[\"a\",\"b\"]} "),
                         .host = STR("p"),
                         .bootstrap_port = 8998,
                         .room = INT64_MAX,
                         .rid = "r"};
    struct buf out;

    (void)state;
    buf_init(&out, 0);
    put_first(&handover_bootstrap, &h, &out);
    assert_text(&out, "{\"text\":[\"a\",\"b\"],\"bootstrap_host\":[\"p\",\"p\"],"
                      "\"bootstrap_port\":[8998,8998],"
                      "\"bootstrap_room\":[9223372036854775807,0],\"rid\":[\"r-0\",\"r-1\"]} ");
    h.body = STR("{\"input_ids\":[1,2]}");
    put_first(&handover_bootstrap, &h, &out);
    assert_text(&out, "{\"input_ids\":[1,2],\"bootstrap_host\":\"p\",\"bootstrap_port\":8998,"
                      "\"bootstrap_room\":9223372036854775807,\"rid\":\"r\"}");
    handover_bootstrap.abort_body(&h, &out);
    assert_text(&out, "{\"rid\":\"r\"}");
    buf_fini(&out);
}

/* It would end the requests of others whose ids begin with it. */
static void a_clients_own_rid_ends_nothing(void **state) {
    struct handover h = {.body = STR("{\"text\":\"a\",\"rid\":\"incipit-\"}"),
                         .host = STR("p"),
                         .bootstrap_port = 8998,
                         .room = 7,
                         .rid = "r"};
    struct buf out;

    (void)state;
    buf_init(&out, 0);
    put_first(&handover_bootstrap, &h, &out);
    assert_text(&out, "{\"text\":\"a\",\"rid\":\"incipit-\",\"bootstrap_host\":\"p\","
                      "\"bootstrap_port\":8998,\"bootstrap_room\":7,\"rid\":\"r\"}");
    handover_bootstrap.abort_body(&h, &out);
    assert_text(&out, "{\"rid\":\"r\"}");
    buf_fini(&out);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_first_leg_has_one_token_and_no_stream),
        cmocka_unit_test(what_is_cut_leaves_the_other_members_and_their_commas),
        cmocka_unit_test(what_our_workers_take_apart),
        cmocka_unit_test(what_is_handed_over_is_relayed_as_it_came),
        cmocka_unit_test(an_answer_that_hands_nothing_over_is_found),
        cmocka_unit_test(what_cannot_be_split_is_found),
        cmocka_unit_test(both_legs_of_mooncake_have_one_transfer_id),
        cmocka_unit_test(a_batch_has_ids_and_rooms_that_wrap_below_2_63),
        cmocka_unit_test(a_clients_own_rid_ends_nothing),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
