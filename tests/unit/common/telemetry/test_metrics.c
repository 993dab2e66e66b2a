/* tests/unit/common/telemetry/test_metrics.c - the page, word for word, and the limits. */
#include <math.h>
#include <pthread.h>
#include <stdio.h>

#include "common/base/mem.h"
#include "common/telemetry/metrics.h"
#include "tests/support/cm.h"

static const double few_buckets[] = {0.005, 0.1, 2.5};

#define TEST_METRICS(X)                                                                            \
    X(COUNTER, requests_total, "policy,code", "Requests finished.", 0)                             \
    X(GAUGE, running, "", "Requests running.\nNow.", 0)                                            \
    X(HISTOGRAM, ttft_seconds, "policy", "Received to first token.", 0)                            \
    X(COUNTER, busy_seconds_total, "", "Back\\slash.", 1e-6)
#define AS_ID(kind, name, labels, help, scale) T_##name,
#define AS_ROW(metric_kind, metric_name, metric_labels, metric_help, metric_scale)                 \
    [T_##metric_name] = {.kind = METRIC_##metric_kind,                                             \
                         .name = "vllm:" #metric_name,                                             \
                         .labels = metric_labels,                                                  \
                         .help = metric_help,                                                      \
                         .scale = metric_scale,                                                    \
                         .aliases = T_##metric_name == T_running ? "old_running,older" : NULL,     \
                         .max_children = 4,                                                        \
                         METRIC_BUCKETS(few_buckets)},

enum { TEST_METRICS(AS_ID) T_COUNT };
static const struct metric_def rows[T_COUNT] = {TEST_METRICS(AS_ROW)};

static char *page(struct metrics *m) {
    struct buf out;
    char *text;

    buf_init(&out, 0);
    metrics_write(m, &out);
    text = buf_strdup(&out);
    buf_fini(&out);
    return text;
}

static void assert_shows(struct metrics *m, const char *part) {
    char *text = page(m);

    if (!strstr(text, part)) fail_msg("expected\n%s\nin\n%s", part, text);
    mem_free(text);
}

static void the_page_is_prometheus_text(void **state) {
    struct metrics *m = metrics_create(rows, T_COUNT);
    struct metric *h = METRICS_GET(m, T_ttft_seconds, "prefix");
    char *text;

    (void)state;
    metric_add(METRICS_GET(m, T_requests_total, "prefix", "200"), 3);
    metric_inc(METRICS_GET(m, T_requests_total, "prefix", "200"));
    metric_inc(METRICS_GET(m, T_requests_total, "we\"ird\\\n\xFF", "500"));
    metric_set(metrics_at(m, T_running), 2.5);
    metric_shift(metrics_at(m, T_running), -1);
    metric_add(metrics_at(m, T_busy_seconds_total), 1500000);
    metric_observe(h, 0.005); /* a bound belongs to its bucket */
    metric_observe(h, 0.05);
    metric_observe(h, 3);
    metric_observe(h, NAN);
    assert_int_equal(metric_count(h), 3);
    text = page(m);
    assert_string_equal(
        text, "# HELP vllm:requests_total Requests finished.\n"
              "# TYPE vllm:requests_total counter\n"
              "vllm:requests_total{policy=\"prefix\",code=\"200\"} 4\n"
              "vllm:requests_total{policy=\"we\\\"ird\\\\\\n\xEF\xBF\xBD\",code=\"500\"} 1\n"
              "# HELP vllm:running Requests running.\\nNow.\n"
              "# TYPE vllm:running gauge\n"
              "vllm:running 1.5\n"
              "# HELP old_running Requests running.\\nNow.\n"
              "# TYPE old_running gauge\n"
              "old_running 1.5\n"
              "# HELP older Requests running.\\nNow.\n"
              "# TYPE older gauge\n"
              "older 1.5\n"
              "# HELP vllm:ttft_seconds Received to first token.\n"
              "# TYPE vllm:ttft_seconds histogram\n"
              "vllm:ttft_seconds_bucket{policy=\"prefix\",le=\"0.005\"} 1\n"
              "vllm:ttft_seconds_bucket{policy=\"prefix\",le=\"0.1\"} 2\n"
              "vllm:ttft_seconds_bucket{policy=\"prefix\",le=\"2.5\"} 2\n"
              "vllm:ttft_seconds_bucket{policy=\"prefix\",le=\"+Inf\"} 3\n"
              "vllm:ttft_seconds_sum{policy=\"prefix\"} 3.055\n"
              "vllm:ttft_seconds_count{policy=\"prefix\"} 3\n"
              "# HELP vllm:busy_seconds_total Back\\\\slash.\n"
              "# TYPE vllm:busy_seconds_total counter\n"
              "vllm:busy_seconds_total 1.5\n");
    mem_free(text);
    metrics_destroy(m);
}

static void common_labels_are_on_every_sample(void **state) {
    struct metrics *m = metrics_create(rows, T_COUNT);

    (void)state;
    metrics_add_common_label(m, "model_name", "m\"1");
    metrics_add_common_label(m, "engine", "0");
    metric_inc(METRICS_GET(m, T_requests_total, "p", "200"));
    metric_observe(METRICS_GET(m, T_ttft_seconds, "p"), 1);
    assert_shows(m, "\nvllm:running{model_name=\"m\\\"1\",engine=\"0\"} 0\n");
    assert_shows(m, "{model_name=\"m\\\"1\",engine=\"0\",policy=\"p\",code=\"200\"} 1\n");
    assert_shows(m, "{model_name=\"m\\\"1\",engine=\"0\",policy=\"p\",le=\"2.5\"} 1\n");
    metrics_destroy(m);
}

static void children_are_limited_and_the_rest_is_other(void **state) {
    struct metrics *m = metrics_create(rows, T_COUNT);
    struct metric *first = METRICS_GET(m, T_requests_total, "0", "x");
    char name[16], *text;

    (void)state;
    for (int i = 0; i < 100; i++) {
        snprintf(name, sizeof(name), "%d", i);
        metric_inc(METRICS_GET(m, T_requests_total, name, "x"));
    }
    assert_ptr_equal(METRICS_GET(m, T_requests_total, "0", "x"), first);
    assert_shows(m, "{policy=\"3\",code=\"x\"} 1\n");
    assert_shows(m, "{policy=\"other\",code=\"other\"} 96\n");
    text = page(m);
    assert_null(strstr(text, "policy=\"4\""));
    mem_free(text);
    metrics_destroy(m);
}

static void long_values_are_cut(void **state) {
    struct metrics *m = metrics_create(rows, T_COUNT);
    char big[4000], *text;

    (void)state;
    memset(big, '"', sizeof(big) - 1); /* the worst: each is escaped */
    big[sizeof(big) - 1] = '\0';
    metric_inc(METRICS_GET(m, T_requests_total, big, big));
    text = page(m);
    assert_non_null(strstr(text, "\\\"\",code=\"\\\""));
    assert_true(strlen(text) < 1500);
    mem_free(text);
    metrics_destroy(m);
}

static void odd_gauges_are_spelled_as_prometheus_does(void **state) {
    struct metrics *m = metrics_create(rows, T_COUNT);

    (void)state;
    metric_set(metrics_at(m, T_running), NAN);
    assert_shows(m, "vllm:running NaN\n");
    metric_set(metrics_at(m, T_running), -INFINITY);
    assert_shows(m, "vllm:running -Inf\n");
    metrics_destroy(m);
}

static void set_running(void *ctx) {
    metric_set(metrics_at(ctx, T_running), 42);
    metric_set(metrics_at(ctx, T_running), metric_value(metrics_at(ctx, T_running)) + 1);
}

static void collectors_run_before_the_page(void **state) {
    struct metrics *m = metrics_create(rows, T_COUNT);

    (void)state;
    metrics_on_collect(m, set_running, m);
    assert_shows(m, "vllm:running 43\n");
    metrics_destroy(m);
}

static void the_page_shows_the_sum_of_all_parts(void **state) {
    struct metrics *m = metrics_create(rows, T_COUNT);
    struct metric *count = METRICS_GET(m, T_requests_total, "a", "x"), *count_part;
    struct metric *time = METRICS_GET(m, T_ttft_seconds, "a"), *time_part;

    (void)state;
    count_part = metric_part(m, count);
    time_part = metric_part(m, time);
    metric_add(count, 1);
    metric_add(count_part, 2);
    metric_add(metric_part(m, count), 4);
    metric_observe(time, 1);
    metric_observe(time_part, 1);
    assert_true(metric_value(count) == 7 && metric_value(count_part) == 2);
    assert_true(metric_value(time) == 2 && metric_count(time) == 2);
    assert_shows(m, "{policy=\"a\",code=\"x\"} 7\n");
    metrics_destroy(m);
}

static void *update_many(void *arg) {
    struct metrics *m = arg;
    struct metric *count = metric_part(m, METRICS_GET(m, T_requests_total, "0", "x"));
    struct metric *time = metric_part(m, METRICS_GET(m, T_ttft_seconds, "p"));
    char name[16];

    for (int i = 0; i < 2000; i++) {
        metric_add(count, 2);
        metric_observe(time, 2);
        snprintf(name, sizeof(name), "%d", i % 7);
        metric_inc(METRICS_GET(m, T_requests_total, name, "x"));
        metric_shift(metrics_at(m, T_running), 1);
        metric_observe(METRICS_GET(m, T_ttft_seconds, "p"), 1);
        if (i % 500 == 0) mem_free(page(m));
    }
    return NULL;
}

static void threads_lose_nothing(void **state) {
    struct metrics *m = metrics_create(rows, T_COUNT);
    pthread_t threads[3];
    double total = 0;

    (void)state;
    for (int i = 0; i < 3; i++) {
        assert_int_equal(pthread_create(&threads[i], NULL, update_many, m), 0);
    }
    for (int i = 0; i < 3; i++)
        pthread_join(threads[i], NULL);
    for (int i = 0; i < 4; i++) {
        char name[2] = {(char)('0' + i), '\0'};

        total += metric_value(METRICS_GET(m, T_requests_total, name, "x"));
    }
    total += metric_value(METRICS_GET(m, T_requests_total, "other", "other"));
    assert_true(total == 6000 + 12000);
    assert_true(metric_value(metrics_at(m, T_running)) == 6000);
    assert_int_equal(metric_count(METRICS_GET(m, T_ttft_seconds, "p")), 12000);
    assert_true(metric_value(METRICS_GET(m, T_ttft_seconds, "p")) == 18000);
    metrics_destroy(m);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_page_is_prometheus_text),
        cmocka_unit_test(common_labels_are_on_every_sample),
        cmocka_unit_test(children_are_limited_and_the_rest_is_other),
        cmocka_unit_test(long_values_are_cut),
        cmocka_unit_test(odd_gauges_are_spelled_as_prometheus_does),
        cmocka_unit_test(collectors_run_before_the_page),
        cmocka_unit_test(the_page_shows_the_sum_of_all_parts),
        cmocka_unit_test(threads_lose_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
