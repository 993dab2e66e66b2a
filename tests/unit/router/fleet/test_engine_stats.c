/* tests/unit/router/fleet/test_engine_stats.c - pages as engines write them, and as they should
 * not. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "router/fleet/engine_stats.h"
#include "tests/support/cm.h"

#define assert_near(a, b)                                                                          \
    do {                                                                                           \
        double a_ = (a), b_ = (b);                                                                 \
        if (!(a_ - b_ < 1e-9 && b_ - a_ < 1e-9)) fail_msg(#a " is %.17g, not %.17g", a_, b_);      \
    } while (0)

static void a_vllm_page_is_read(void **state) {
    struct engine_stats s;

    (void)state;
    assert_true(engine_stats_read_page(
        &s,
        STR("# HELP process_start_time_seconds Start time.\n"
            "# TYPE process_start_time_seconds gauge\n"
            "process_start_time_seconds 1.79e+09\n"
            "vllm:num_requests_running{engine=\"0\",model_name=\"m\"} 3.0\n"
            "vllm:num_requests_running{engine=\"1\",model_name=\"m\"} 4.0\n"
            "vllm:num_requests_waiting{engine=\"0\",model_name=\"m\"} 0.0\n"
            "vllm:kv_cache_usage_perc{engine=\"0\",model_name=\"m\"} 0.25\n"
            "vllm:kv_cache_usage_perc{engine=\"1\",model_name=\"m\"} 0.75\n"
            "vllm:prefix_cache_queries_total{engine=\"0\",model_name=\"m\"} 1000.0\n"
            "vllm:prefix_cache_queries_created{engine=\"0\",model_name=\"m\"} 1.79e+09\n"
            "vllm:prefix_cache_hits_total{engine=\"0\",model_name=\"m\"} 640.0\n"
            "vllm:prompt_tokens_total{engine=\"0\",model_name=\"m\"} 1001.0\n"
            "vllm:time_to_first_token_seconds_bucket{engine=\"0\",le=\"0.001\"} 1.0\n"
            "vllm:time_to_first_token_seconds_count{engine=\"0\"} 12.0\n"
            "vllm:cache_config_info{block_size=\"16\",cache_dtype=\"auto\",engine=\"0\","
            "num_gpu_blocks=\"27000\",num_gpu_blocks_override=\"None\"} 1.0\n"
            "vllm:cache_config_info{block_size=\"16\",engine=\"1\",num_gpu_blocks=\"3000\"} 1.0")));
    assert_int_equal(s.kind, ENGINE_VLLM);
    assert_near(s.start_s, 1.79e9);
    assert_near(s.running, 7);
    assert_near(s.waiting, 0);
    assert_near(s.kv_usage, 0.75);
    assert_near(s.queried_tokens, 1000);
    assert_near(s.hit_tokens, 640);
    assert_near(s.prompt_tokens, 1001);
    assert_near(s.first_tokens, 12);
    assert_near(s.n_blocks, 30000);
    assert_near(s.block_size, 16);
}

static void of_old_and_new_spellings_the_new_one_counts(void **state) {
    static const char *const pages[] = {
        "vllm:prefix_cache_hits_total 5\nvllm:gpu_prefix_cache_hits_total 5\n",
        "vllm:gpu_prefix_cache_hits_total 9\nvllm:prefix_cache_hits_total 5\n",
        "vllm:gpu_prefix_cache_hits 5\n", "vllm:prefix_cache_hits{a=\"}\"} 5 1790000000000\r\n"};
    struct engine_stats s;

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(pages); i++) {
        assert_true(engine_stats_read_page(&s, str_of(pages[i])));
        assert_near(s.hit_tokens, 5);
        assert_near(s.queried_tokens, -1);
    }
}

static void an_sglang_page_is_read(void **state) {
    struct engine_stats s;

    (void)state;
    assert_true(engine_stats_read_page(
        &s, STR("sglang:prompt_tokens_total{is_streaming=\"false\",model_name=\"m\"} 100.0\n"
                "sglang:prompt_tokens_total{is_streaming=\"true\",model_name=\"m\"} 300.0\n"
                "sglang:cached_tokens_total{cache_source=\"device\",model_name=\"m\"} 200.0\n"
                "sglang:cached_tokens_total{cache_source=\"host\",model_name=\"m\"} 20.0\n"
                "sglang:num_running_reqs{tp_rank=\"0\"} 2.0\n"
                "sglang:num_running_reqs{tp_rank=\"1\"} 2.0\n"
                "sglang:num_queue_reqs{tp_rank=\"0\"} 1.0\n"
                "sglang:token_usage{tp_rank=\"0\"} 0.5\n"
                "sglang:max_total_num_tokens{tp_rank=\"0\"} 10007.0\n"
                "sglang:page_size{tp_rank=\"0\"} 16.0\n")));
    assert_int_equal(s.kind, ENGINE_SGLANG);
    assert_near(s.prompt_tokens, 400);
    assert_near(s.queried_tokens, 400);
    assert_near(s.hit_tokens, 220);
    assert_near(s.running, 2);
    assert_near(s.n_blocks, 625);
    assert_near(s.block_size, 16);
}

static void server_info_gives_the_size_of_an_older_sglang(void **state) {
    struct engine_stats s;

    (void)state;
    assert_true(engine_stats_read_page(&s, STR("sglang:num_running_reqs 0\n")));
    assert_near(s.n_blocks, -1);
    engine_stats_read_info(&s, STR("not JSON"));
    engine_stats_read_info(&s, STR("{\"max_total_num_tokens\":\"many\"}"));
    engine_stats_read_info(&s, STR("{\"page_size\":4}"));
    assert_near(s.n_blocks, -1);
    engine_stats_read_info(&s, STR("{\"model_path\":\"m\",\"max_total_num_tokens\":1003}"));
    assert_near(s.n_blocks, 1003);
    assert_near(s.block_size, 1);
    engine_stats_read_info(&s, STR("{\"page_size\":16,\"max_total_num_tokens\":1003}"));
    assert_near(s.n_blocks, 62);
    assert_near(s.block_size, 16);
    assert_int_equal(s.part.bootstrap_port, 0);
    engine_stats_read_info(&s, STR("{\"disaggregation_mode\":\"decode\"}"));
    assert_int_equal(s.part.role, WORKER_DECODE);
    assert_int_equal(s.part.bootstrap_port, 8998);
    engine_stats_read_info(&s, STR("{\"disaggregation_mode\":\"prefill\","
                                   "\"disaggregation_bootstrap_port\":9001}"));
    assert_int_equal(s.part.role, WORKER_PREFILL);
    assert_int_equal(s.part.bootstrap_port, 9001);
    engine_stats_read_info(&s, STR("{\"disaggregation_mode\":\"null\"}"));
    assert_int_equal(s.part.role, WORKER_BOTH);
}

static void engines_behind_a_bootstrap_server_are_read(void **state) {
    static const char *const bad[] = {"",
                                      "not JSON",
                                      "[]",
                                      "{}",
                                      "{\"0\":{}}",
                                      "{\"0\":{\"engine_id\":1}}",
                                      "{\"0\":{\"engine_id\":\"\"}}",
                                      "{\"x\":{\"engine_id\":\"a\"}}",
                                      "{\"-1\":{\"engine_id\":\"a\"}}",
                                      "{\"70000\":{\"engine_id\":\"a\"}}",
                                      "{\"0\":{\"engine_id\":\"a\\\"b\"}}",
                                      "{\"0\":{\"engine_id\":\"a\"},\"1\":[]}"};
    struct worker_engines e;
    char text[4096], id[WORKER_ENGINE_ID_MAX + 1];
    size_t at = 0;

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        assert_false(engine_stats_read_engines(&e, str_of(bad[i])));
        assert_int_equal(e.n, 0);
    }
    assert_true(engine_stats_read_engines(
        &e,
        STR("{\"3\":{\"engine_id\":\"a-b_dp3\",\"worker_addr\":{\"0\":{\"0\":\"tcp://x:1\"}}}}")));
    assert_int_equal(e.n, 1);
    assert_int_equal(e.engines[0].rank, 3);
    assert_string_equal(e.engines[0].id, "a-b_dp3");
    for (int i = 0; i <= WORKER_ENGINES_MAX; i++)
        at += (size_t)sprintf(text + at, "%s\"%d\":{\"engine_id\":\"e%d\"}", i ? "," : "{", i, i);
    strcpy(text + at, "}");
    assert_true(engine_stats_read_engines(&e, str_of(text)));
    assert_int_equal(e.n, WORKER_ENGINES_MAX);
    memset(id, 'a', WORKER_ENGINE_ID_MAX);
    id[WORKER_ENGINE_ID_MAX] = '\0';
    sprintf(text, "{\"0\":{\"engine_id\":\"%s\"}}", id);
    assert_false(engine_stats_read_engines(&e, str_of(text)));
    id[WORKER_ENGINE_ID_MAX - 1] = '\0';
    sprintf(text, "{\"0\":{\"engine_id\":\"%s\"}}", id);
    assert_true(engine_stats_read_engines(&e, str_of(text)));
    assert_string_equal(e.engines[0].id, id);
}

static void lines_that_are_no_samples_are_skipped(void **state) {
    struct prom_sample s;
    struct str page = STR("\n   \n# a 1\n{} 1\nname\nname{ 1\nname{a=\"b} 1\nname{a=\"b\\\"} 1\n"
                          "name x\nname 1x\nname NaN\nname +Inf\nname \n"
                          "name 11111111111111111111111111111111111111111\n  good{}  2.5\n");

    (void)state;
    assert_true(prom_next(&page, &s));
    assert_true(str_eq(s.name, STR("good")));
    assert_near(s.value, 2.5);
    assert_false(prom_next(&page, &s));
    assert_false(prom_next(&page, &s));
}

static void numbers_out_of_range_are_ignored(void **state) {
    struct engine_stats s;

    (void)state;
    assert_true(engine_stats_read_page(
        &s, STR("vllm:prompt_tokens_total -1\nvllm:prefix_cache_hits_total 1e300\n"
                "vllm:cache_config_info{block_size=\"0\",num_gpu_blocks=\"5\"} 1\n"
                "vllm:cache_config_info{block_size=\"16\",num_gpu_blocks=\"None\"} 1\n"
                "vllm:cache_config_info{block_size=\"16\"} 1\n")));
    assert_near(s.prompt_tokens, -1);
    assert_near(s.hit_tokens, -1);
    assert_near(s.n_blocks, -1);
    assert_true(engine_stats_read_page(&s, STR("sglang:max_total_num_tokens 8e15\n"
                                               "sglang:page_size 4.3e9\n")));
    assert_near(s.n_blocks, -1);
    assert_near(s.block_size, -1);
    assert_true(engine_stats_read_page(
        &s, STR("vllm:num_requests_running{engine=\"0\"} 9e15\n"
                "vllm:num_requests_running{engine=\"1\"} 9e15\n"
                "vllm:cache_config_info{block_size=\"16\",num_gpu_blocks=\"9e15\"} 1\n"
                "vllm:cache_config_info{block_size=\"16\",num_gpu_blocks=\"9e15\"} 1\n")));
    assert_true(s.running <= 9007199254740992.0);
    assert_near(s.n_blocks, -1);
}

static void a_page_of_another_program_gives_no_stats(void **state) {
    struct engine_stats s;

    (void)state;
    assert_false(engine_stats_read_page(&s, STR("")));
    assert_false(engine_stats_read_page(&s, STR("process_start_time_seconds 5\nup 1\n")));
    assert_false(engine_stats_read_page(&s, STR("<html>not found</html>")));
    assert_near(s.running, -1);
}

static void labels_are_found_by_name(void **state) {
    struct str labels = STR("a=\"1\",bc=\"x\\\"y,z=\\\\\" , d=\"\",e=5");

    (void)state;
    assert_true(str_eq(prom_label(labels, STR("a")), STR("1")));
    assert_true(str_eq(prom_label(labels, STR("bc")), STR("x\\\"y,z=\\\\")));
    assert_true(str_eq(prom_label(labels, STR("d")), STR("")));
    assert_null(prom_label(labels, STR("e")).ptr);
    assert_null(prom_label(labels, STR("z")).ptr);
    assert_null(prom_label(STR(""), STR("a")).ptr);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_vllm_page_is_read),
        cmocka_unit_test(of_old_and_new_spellings_the_new_one_counts),
        cmocka_unit_test(an_sglang_page_is_read),
        cmocka_unit_test(server_info_gives_the_size_of_an_older_sglang),
        cmocka_unit_test(engines_behind_a_bootstrap_server_are_read),
        cmocka_unit_test(lines_that_are_no_samples_are_skipped),
        cmocka_unit_test(numbers_out_of_range_are_ignored),
        cmocka_unit_test(a_page_of_another_program_gives_no_stats),
        cmocka_unit_test(labels_are_found_by_name),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
