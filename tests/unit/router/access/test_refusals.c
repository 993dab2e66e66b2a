/* tests/unit/router/access/test_refusals.c - each is counted; lines are few, and name who comes
 * most. */
#include <stdio.h>
#include <stdlib.h>

#include "common/telemetry/log.h"
#include "common/telemetry/metrics.h"
#include "router/access/refusals.h"
#include "router/metrics/router_metrics.h"
#include "tests/support/cm.h"

#define NOW UINT64_C(5000000)

struct fixture {
    struct metrics *metrics;
    struct log *log;
    struct refusals *refusals;
    FILE *file;
    char text[16384];
};

static void init(struct fixture *fx) {
    *fx = (struct fixture){.metrics = router_metrics_create(), .file = tmpfile()};
    fx->log = log_create(&(struct log_config){.fd = fileno(fx->file)});
    fx->refusals = refusals_create(fx->metrics, fx->log);
}

static void fini(struct fixture *fx) {
    refusals_destroy(fx->refusals);
    log_destroy(fx->log);
    metrics_destroy(fx->metrics);
    fclose(fx->file);
}

static int n_lines(struct fixture *fx) {
    size_t n;
    int lines = 0;

    rewind(fx->file);
    n = fread(fx->text, 1, sizeof(fx->text) - 1, fx->file);
    fx->text[n] = '\0';
    for (const char *p = fx->text; (p = strchr(p, '\n')) != NULL; p++)
        lines++;
    return lines;
}

static double counted(struct fixture *fx, enum refusal reason) {
    return metric_value(
        METRICS_GET(fx->metrics, ROUTER_requests_refused_total, refusal_names[reason]));
}

static void a_flood_is_a_line_at_once_and_one_for_each_period(void **state) {
    struct fixture fx;
    uint64_t now = NOW;

    (void)state;
    init(&fx);
    for (int i = 0; i < 3000; i++)
        refusals_note(fx.refusals, REFUSAL_KEY_UNKNOWN,
                      i % 1000 == 7 ? STR("10.0.0.9") : STR("::1"), now += 100);
    assert_int_equal(n_lines(&fx), 1);
    assert_non_null(strstr(fx.text, "warn request_refused reason=key-unknown count=1 seconds=0 "
                                    "clients=\"::1 (1)\" more_clients=false\n"));
    assert_true(counted(&fx, REFUSAL_KEY_UNKNOWN) == 3000);
    refusals_tick(fx.refusals, NOW + REFUSALS_PERIOD_US - 1);
    assert_int_equal(n_lines(&fx), 1);
    refusals_tick(fx.refusals, NOW + 100 + REFUSALS_PERIOD_US);
    assert_int_equal(n_lines(&fx), 2);
    assert_non_null(
        strstr(fx.text, " count=2999 seconds=10 clients=\"::1 (2996), 10.0.0.9 (3)\" "));
    refusals_note(fx.refusals, REFUSAL_KEY_UNKNOWN, STR("::1"), NOW + 12000000);
    assert_int_equal(n_lines(&fx), 2); /* it waits for the end of its period */
    fini(&fx);
}

static void after_a_period_of_peace_the_next_is_written_at_once(void **state) {
    struct fixture fx;

    (void)state;
    init(&fx);
    refusals_note(fx.refusals, REFUSAL_BODY, STR("a"), NOW);
    refusals_tick(fx.refusals, NOW + REFUSALS_PERIOD_US);
    assert_int_equal(n_lines(&fx), 1); /* nothing is no line */
    refusals_note(fx.refusals, REFUSAL_BODY, STR("b"), NOW + REFUSALS_PERIOD_US + 1);
    assert_int_equal(n_lines(&fx), 2);
    fini(&fx);
}

static void reasons_are_apart(void **state) {
    struct fixture fx;

    (void)state;
    init(&fx);
    for (int i = 0; i < REFUSAL_COUNT; i++) {
        refusals_note(fx.refusals, (enum refusal)i, STR("a"), NOW);
        assert_true(counted(&fx, (enum refusal)i) == 1);
        for (int k = 0; k < i; k++)
            assert_string_not_equal(refusal_names[i], refusal_names[k]);
    }
    assert_int_equal(n_lines(&fx), REFUSAL_COUNT);
    refusals_note(NULL, REFUSAL_BODY, STR("a"), NOW);
    fini(&fx);
}

/* However many others come before and between, who sends a tenth is named, with a count that is not
 * too low. */
static void the_most_frequent_client_is_named_among_thousands(void **state) {
    struct fixture fx;
    char address[32];
    const char *at;

    (void)state;
    init(&fx);
    refusals_note(fx.refusals, REFUSAL_KEY_MISSING, STR("first"), NOW);
    for (int i = 0; i < 5000; i++) {
        bool is_hers = i % 5 == 4;

        snprintf(address, sizeof(address), "10.%d.%d.%d", i >> 16, (i >> 8) & 255, i & 255);
        refusals_note(fx.refusals, REFUSAL_KEY_MISSING,
                      is_hers ? STR("192.0.2.1") : str_of(address), NOW);
    }
    refusals_tick(fx.refusals, NOW + REFUSALS_PERIOD_US);
    assert_int_equal(n_lines(&fx), 2);
    at = strstr(fx.text, "clients=\"192.0.2.1 (");
    assert_non_null(at);
    assert_in_range(atoi(strchr(at, '(') + 1), 1000, 5000);
    assert_non_null(strstr(fx.text, "more_clients=true"));
    fini(&fx);
}

static void pending_counts_are_written_at_the_end(void **state) {
    struct fixture fx;

    (void)state;
    init(&fx);
    for (int i = 0; i < 3; i++)
        refusals_note(fx.refusals, REFUSAL_POISON, STR("a"), NOW);
    refusals_destroy(fx.refusals);
    fx.refusals = NULL;
    assert_int_equal(n_lines(&fx), 2);
    assert_non_null(strstr(fx.text, "count=2 "));
    fini(&fx);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_flood_is_a_line_at_once_and_one_for_each_period),
        cmocka_unit_test(after_a_period_of_peace_the_next_is_written_at_once),
        cmocka_unit_test(reasons_are_apart),
        cmocka_unit_test(the_most_frequent_client_is_named_among_thousands),
        cmocka_unit_test(pending_counts_are_written_at_the_end),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
