/* tests/unit/router/fleet/test_scrape.c - an engine's pages, one after the other, and what the
 * registry then knows. Engine and scraper share one loop. */
#include <signal.h>
#include <stdio.h>

#include "common/base/clock.h"
#include "common/http/http_client.h"
#include "common/http/http_server.h"
#include "common/net/loop.h"
#include "router/fleet/scrape.h"
#include "router/registry/registry.h"
#include "router/registry/registry_view.h"
#include "router/registry/registry_workers.h"
#include "tests/support/client.h"
#include "tests/support/cm.h"
#include "tests/support/registry_fixture.h"
#include "tests/support/routing_defaults.h"

struct fixture {
    struct loop *loop;
    struct http_server *engine;
    struct http_client *client;
    struct registry *registry;
    struct scrape *scrape;
    const char *page, *info; /* NULL: 404 */
    int n_pages, n_infos, n_queries;
    bool is_replaced; /* by another worker with its id, while it is asked, without metrics */
    uint32_t id;
};

static void replace(struct fixture *fx);

static void on_request(struct http_request *req, void *arg) {
    struct fixture *fx = arg;
    bool is_page = str_eq(req->path, STR("/metrics"));
    const char *answer = is_page ? fx->page : fx->info;

    if (str_eq(req->path, STR("/query"))) { /* the bootstrap server's, at the same port */
        fx->n_queries++;
        http_reply(req, 404, "text/plain", STR(""));
        return;
    }
    fx->n_pages += is_page;
    fx->n_infos += !is_page;
    if (fx->is_replaced) replace(fx);
    http_reply(req, answer ? 200 : 404, "text/plain", str_of(answer ? answer : ""));
}

static void describe(struct fixture *fx, bool is_third_party) {
    const struct wire_server_info info = {.wire = 1, .model = "m", .backend = "vllm"};

    assert_int_equal(registry_describe(fx->registry, fx->id, &info, is_third_party, NULL), ST_OK);
    registry_set_reason(fx->registry, fx->id, WORKER_STARTING, false);
}

static void replace(struct fixture *fx) {
    char url[64];

    fx->is_replaced = false;
    fx->page = NULL;
    snprintf(url, sizeof(url), "http://127.0.0.1:%u", http_server_port(fx->engine));
    assert_int_equal(registry_remove(fx->registry, fx->id), ST_OK);
    assert_int_equal(registry_add(fx->registry, url, &fx->id, NULL), ST_OK);
    describe(fx, true);
}

static void start(struct fixture *fx, const char *page, const char *info) {
    static const struct http_server_events events = {.on_request = on_request};
    const struct scrape_config config = {.interval_us = 2000, .timeout_ms = 5000, .max_workers = 2};
    struct registry_config rc = {0};
    char url[64];

    memset(fx, 0, sizeof(*fx));
    fx->page = page;
    fx->info = info;
    assert_int_equal(loop_create(&fx->loop, NULL), ST_OK);
    fx->engine = http_server_create(fx->loop, NULL, &events, fx);
    assert_int_equal(http_server_listen(fx->engine, "127.0.0.1", 0, false, NULL), ST_OK);
    assert_int_equal(http_client_create(&fx->client, fx->loop, NULL), ST_OK);
    routing_options_default(&rc.routing);
    rc.routing.max_index_bytes = 1 << 20;
    rc.routing.max_workers = 2;
    assert_int_equal(registry_create(&fx->registry, &rc, NULL), ST_OK);
    snprintf(url, sizeof(url), "http://127.0.0.1:%u", http_server_port(fx->engine));
    assert_int_equal(registry_add(fx->registry, url, &fx->id, NULL), ST_OK);
    describe(fx, true);
    fx->scrape = scrape_create(fx->loop, fx->client, fx->registry, NULL, &config);
}

static void finish(struct fixture *fx) {
    scrape_destroy(fx->scrape);
    http_client_destroy(fx->client);
    http_server_destroy(fx->engine);
    registry_destroy(fx->registry);
    loop_destroy(fx->loop);
}

static struct registry_view view_of(struct fixture *fx) {
    struct registry_view view;

    assert_true(registry_get(fx->registry, fx->id, &view));
    return view;
}

static void a_vllm_reports_its_size_and_its_load(void **state) {
    struct fixture fx;
    struct registry_view view;

    (void)state;
    start(&fx,
          "vllm:num_requests_running 3\nvllm:num_requests_waiting 2\nvllm:kv_cache_usage_perc 0.5\n"
          "vllm:cache_config_info{block_size=\"32\",num_gpu_blocks=\"700\"} 1\n",
          NULL);
    assert_int_equal(view_of(&fx).engine_running, -1);
    TURN_UNTIL(fx.loop, view_of(&fx).info.n_blocks == 700);
    view = view_of(&fx);
    assert_int_equal(view.info.block_size, 32);
    assert_int_equal(view.engine_running, 3);
    assert_int_equal(view.engine_waiting, 2);
    assert_float_equal(view.engine_kv_usage, 0.5, 1e-9);
    describe(&fx, true); /* a probe that knows less takes nothing away */
    assert_int_equal(view_of(&fx).info.n_blocks, 700);
    finish(&fx);
}

static void an_sglang_is_asked_for_its_size_once_per_start(void **state) {
    struct fixture fx;
    int n;

    (void)state;
    start(&fx, "sglang:prompt_tokens_total 10\n",
          "{\"max_total_num_tokens\":1600,\"page_size\":4}");
    TURN_UNTIL(fx.loop, view_of(&fx).info.n_blocks == 400);
    n = fx.n_pages;
    TURN_UNTIL(fx.loop, fx.n_pages > n + 3);
    assert_int_equal(fx.n_infos, 1);
    assert_int_equal(view_of(&fx).info.n_blocks, 400);
    fx.info = "{\"max_total_num_tokens\":800}";
    fx.page = "sglang:prompt_tokens_total 5\n";
    TURN_UNTIL(fx.loop, view_of(&fx).info.n_blocks == 800);
    assert_int_equal(fx.n_infos, 2);
    finish(&fx);
}

static void falling_counters_and_a_new_start_time_are_a_restart(void **state) {
    struct fixture fx;
    struct registry_view before;
    int n;

    (void)state;
    start(&fx, "process_start_time_seconds 100\nvllm:prompt_tokens_total 10\n", NULL);
    TURN_UNTIL(fx.loop, view_of(&fx).info.generation[0]);
    before = view_of(&fx);
    fx.page = "process_start_time_seconds 100\nvllm:prompt_tokens_total 11\n";
    n = fx.n_pages;
    TURN_UNTIL(fx.loop, fx.n_pages > n + 2);
    assert_string_equal(view_of(&fx).info.generation, before.info.generation);
    fx.page = "process_start_time_seconds 100\nvllm:prompt_tokens_total 3\n";
    TURN_UNTIL(fx.loop, strcmp(view_of(&fx).info.generation, before.info.generation) != 0);
    before = view_of(&fx);
    fx.page = "process_start_time_seconds 200\nvllm:prompt_tokens_total 4\n";
    TURN_UNTIL(fx.loop, strcmp(view_of(&fx).info.generation, before.info.generation) != 0);
    finish(&fx);
}

static void a_worker_without_metrics_is_scraped_ever_less_often(void **state) {
    struct fixture fx;
    uint64_t began_us;

    (void)state;
    start(&fx, NULL, NULL);
    TURN_UNTIL(fx.loop, fx.n_pages == 4); /* rounds 1, 2, 4, 8 */
    began_us = clock_now_us();
    TURN_UNTIL(fx.loop, fx.n_pages == 5);
    assert_true(clock_now_us() - began_us >= 7 * 2000);
    fx.page = "vllm:num_requests_running 1\n";
    TURN_UNTIL(fx.loop, view_of(&fx).engine_running == 1);
    finish(&fx);
}

/* Where its engine starts again, its worker computes prompts for others from the next round on. */
static void a_bootstrap_server_is_asked_though_there_are_no_metrics(void **state) {
    struct fixture fx;
    char labels[80];
    int n_pages, n_queries;

    (void)state;
    start(&fx, NULL, NULL);
    snprintf(labels, sizeof(labels),
             "role=prefill kv_connector=MooncakeConnector bootstrap_port=%u",
             http_server_port(fx.engine));
    registry_configure(fx.registry, fx.id, 0, labels);
    TURN_UNTIL(fx.loop, fx.n_pages >= 4);
    n_pages = fx.n_pages;
    n_queries = fx.n_queries;
    TURN_UNTIL(fx.loop, fx.n_pages > n_pages); /* rounds 8 to 16 */
    assert_true(fx.n_queries >= n_queries + 7);
    finish(&fx);
}

static void our_own_workers_are_not_scraped(void **state) {
    struct fixture fx;

    (void)state;
    start(&fx, "vllm:num_requests_running 1\n", NULL);
    describe(&fx, false);
    for (int i = 0; i < 100; i++)
        loop_turn(fx.loop, 2000);
    assert_int_equal(fx.n_pages, 0);
    describe(&fx, true);
    TURN_UNTIL(fx.loop, fx.n_pages > 0);
    finish(&fx); /* with a call under way, as likely as not */
}

static void a_worker_removed_during_a_scrape_is_forgotten(void **state) {
    struct fixture fx;

    (void)state;
    start(&fx, "vllm:num_requests_running 1\n", NULL);
    TURN_UNTIL(fx.loop, fx.n_pages > 0);
    assert_int_equal(registry_remove(fx.registry, fx.id), ST_OK);
    for (int i = 0; i < 20; i++)
        loop_turn(fx.loop, 2000);
    finish(&fx);
}

static void a_late_answer_does_not_apply_to_the_successor(void **state) {
    struct fixture fx;
    uint32_t id;

    (void)state;
    start(&fx, "vllm:num_requests_running 1\n", NULL);
    id = fx.id;
    fx.is_replaced = true;
    TURN_UNTIL(fx.loop, fx.n_pages > 1);
    assert_int_equal(fx.id, id);
    assert_true(view_of(&fx).engine_running < 0);
    finish(&fx);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_vllm_reports_its_size_and_its_load),
        cmocka_unit_test(an_sglang_is_asked_for_its_size_once_per_start),
        cmocka_unit_test(falling_counters_and_a_new_start_time_are_a_restart),
        cmocka_unit_test(a_worker_without_metrics_is_scraped_ever_less_often),
        cmocka_unit_test(a_bootstrap_server_is_asked_though_there_are_no_metrics),
        cmocka_unit_test(our_own_workers_are_not_scraped),
        cmocka_unit_test(a_worker_removed_during_a_scrape_is_forgotten),
        cmocka_unit_test(a_late_answer_does_not_apply_to_the_successor),
    };

    signal(SIGPIPE, SIG_IGN);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
