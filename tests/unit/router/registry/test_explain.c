/* tests/unit/router/registry/test_explain.c - the explanation of a decision, and the page of a
 * large fleet. */
#include <stdio.h>
#include <string.h>

#include "common/telemetry/metrics.h"
#include "router/admin/metrics_page.h"
#include "router/metrics/router_metrics.h"
#include "router/registry/explain.h"
#include "router/registry/registry_workers.h"
#include "tests/support/cm.h"
#include "tests/support/registry_fixture.h"
#include "tests/support/routing_defaults.h"

static struct registry *fleet(uint32_t n, const char *policy, const char *model) {
    struct wire_server_info info = {
        .wire = 1, .block_size = 16, .n_blocks = 1000, .prefill_tokens_per_s = 1e4};
    struct registry_config config = {0};
    struct registry *r = NULL;
    char url[64];
    uint32_t id;

    routing_options_default(&config.routing);
    config.routing.policy = policy_find(str_of(policy));
    config.routing.max_workers = n;
    config.routing.max_index_bytes = 4 << 20;
    assert_int_equal(registry_create(&r, &config, NULL), ST_OK);
    snprintf(info.model, sizeof(info.model), "%s", model);
    for (uint32_t i = 0; i < n; i++) {
        snprintf(url, sizeof(url), "http://127.0.0.1:%u", 1000 + i);
        assert_int_equal(registry_add(r, url, &id, NULL), ST_OK);
        snprintf(info.generation, sizeof(info.generation), "g%u", i);
        assert_int_equal(registry_describe(r, id, &info, false, NULL), ST_OK);
        registry_set_reason(r, id, WORKER_STARTING, false);
    }
    return r;
}

struct open_request {
    struct route_ticket ticket;
    struct registry_target target;
};

static const uint64_t chain[] = {11, 12, 13, 14};
static const struct route_request request = {
    .chain = chain, .n_blocks = 4, .prompt_bytes = 512, .now_us = 5};

static void send_one(struct registry *r, struct open_request *q) {
    memset(q, 0, sizeof(*q));
    assert_int_equal(registry_route(r, STR("m"), &request, &q->ticket, &q->target, NULL), ST_OK);
}

static void finish(struct registry *r, struct open_request *q) {
    registry_ended(r, &q->target, &q->ticket,
                   &(struct route_end){.output_tokens = 1, .feedback = {-1, -1}, .now_us = 9},
                   OUTCOME_OK);
}

static const char *explained(struct buf *out, const struct explanation *e, uint32_t worker) {
    buf_clear(out);
    explain_append(out, e, worker);
    buf_append_char(out, '\0');
    return buf_ptr(out);
}

static void the_choice_comes_first_then_the_cheapest(void **state) {
    struct registry *r = fleet(8, "prefix", "m");
    struct registry_candidate scratch[8];
    struct open_request busy[3], last;
    struct explanation e;
    struct buf out;

    (void)state;
    buf_init(&out, 0);
    explain(r, STR("m"), &request, scratch, 8, &e);
    assert_int_equal(e.n_candidates, 8);
    assert_int_equal(e.n, EXPLANATION_TOP);
    assert_non_null(
        strstr(explained(&out, &e, e.top[0].worker), " candidates=8 why=tie wait_s=0 "));
    for (int i = 0; i < 3; i++)
        send_one(r, &busy[i]);
    explain(r, STR("m"), &request, scratch, 8, &e);
    for (uint32_t i = 2; i < e.n; i++)
        assert_true(e.top[i - 1].term.cost_s <= e.top[i].term.cost_s);
    send_one(r, &last);
    assert_int_equal(last.target.worker, e.top[0].worker);
    finish(r, &last);
    for (int i = 0; i < 3; i++)
        finish(r, &busy[i]);
    explain(r, STR("m"), &request, scratch, 8, &e);
    assert_true(e.top[0].term.matched_tokens > 0 || e.top[0].term.cost_s > 0);
    assert_string_equal(explained(&out, &e, 1000), ""); /* no candidate got it */
    buf_fini(&out);
    registry_destroy(r);
}

static void policies_without_costs_or_choice_report_it(void **state) {
    struct registry *r = fleet(2, "round_robin", "m");
    struct registry_candidate scratch[2];
    struct explanation e;
    struct buf out;

    (void)state;
    buf_init(&out, 0);
    explain(r, STR("m"), &request, scratch, 2, &e);
    assert_non_null(strstr(explained(&out, &e, e.top[0].worker), " why=policy "));
    registry_set_reason(r, 1, WORKER_UNHEALTHY, true);
    explain(r, STR("m"), &request, scratch, 2, &e);
    assert_non_null(strstr(explained(&out, &e, 0), " candidates=1 why=only "));
    registry_set_reason(r, 0, WORKER_UNHEALTHY, true);
    explain(r, STR("m"), &request, scratch, 2, &e);
    assert_int_equal(e.n, 0);
    assert_string_equal(explained(&out, &e, 0), "");
    buf_fini(&out);
    registry_destroy(r);
}

static size_t count(const char *page, const char *needle) {
    size_t n = 0;

    for (const char *at = page; (at = strstr(at, needle)) != NULL; at++)
        n++;
    return n;
}

static void a_thousand_workers_are_all_on_the_page(void **state) {
    struct registry *r = fleet(1000, "prefix", "a \"m\"\\\n");
    struct metrics *m = router_metrics_create();
    struct buf page;

    (void)state;
    buf_init(&page, 0);
    metrics_page_write(m, r, NULL, &page);
    buf_append_char(&page, '\0');
    assert_int_equal(buf_status(&page), ST_OK);
    assert_int_equal(count(buf_ptr(&page), "incipit_worker_in_flight{"), 1000);
    assert_int_equal(count(buf_ptr(&page), "smg_worker_health{"), 1000);
    assert_int_equal(count(buf_ptr(&page), "incipit_worker_engine_running{"), 0); /* not reported */
    assert_non_null(strstr(buf_ptr(&page), "model=\"a \\\"m\\\"\\\\\\n\"} "));
    buf_fini(&page);
    metrics_destroy(m);
    registry_destroy(r);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_choice_comes_first_then_the_cheapest),
        cmocka_unit_test(policies_without_costs_or_choice_report_it),
        cmocka_unit_test(a_thousand_workers_are_all_on_the_page),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
