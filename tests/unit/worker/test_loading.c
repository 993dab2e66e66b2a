/* tests/unit/worker/test_loading.c - the progress lines of loading, and where --model leads. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/telemetry/log.h"
#include "tests/support/cm.h"
#include "worker/loading.h"
#include "worker/worker_options.h"

#define MIB ((uint64_t)1 << 20)

struct place {
    int pipe[2];
    struct log *log;
    struct loading loading;
};

static void place_open(struct place *p) {
    assert_int_equal(pipe(p->pipe), 0);
    p->log = log_create(&(struct log_config){.fd = p->pipe[1], .level = LOG_INFO});
    loading_init(&p->loading, p->log);
}

/* All that was written; closes the place. */
static void place_read(struct place *p, char *text, size_t size) {
    ssize_t n;

    log_destroy(p->log);
    close(p->pipe[1]);
    n = read(p->pipe[0], text, size - 1);
    text[n > 0 ? n : 0] = '\0';
    close(p->pipe[0]);
}

static void progress_has_bytes_and_percent(void **state) {
    struct place p;
    char text[4096];

    (void)state;
    place_open(&p);
    p.loading.interval_us = 0;
    loading_begin_weights(&p.loading);
    loading_on_weights(&p.loading, 375 * MIB, 1000 * MIB);
    loading_on_weights(&p.loading, 0, 0); /* nothing of nothing is no division */
    place_read(&p, text, sizeof(text));
    assert_non_null(strstr(text, "loading file=weights done_mib=375 total_mib=1000 percent=37.5 "));
    assert_non_null(strstr(text, "mib_per_s="));
}

static void nothing_is_logged_before_the_first_interval(void **state) {
    struct place p;
    char text[4096];

    (void)state;
    place_open(&p);
    p.loading.interval_us = UINT64_MAX;
    loading_begin_weights(&p.loading);
    for (uint64_t done = 0; done < 100; done++)
        loading_on_weights(&p.loading, done * MIB, 100 * MIB);
    place_read(&p, text, sizeof(text));
    assert_string_equal(text, "");
}

static void a_folder_is_one_and_a_name_is_the_hubs(void **state) {
    struct worker_options o = {.revision = "main", .download_dir = "/nonexistent", .offline = true};
    char folder[HUB_PATH_MAX];
    struct loading l;
    struct error err = {0};
    bool is_hubs = true;

    (void)state;
    loading_init(&l, NULL);
    assert_int_equal(loading_find(&l, &o, "tests/data", folder, &is_hubs, &err), ST_OK);
    assert_string_equal(folder, "tests/data"); /* looks like a name, but is there */
    assert_false(is_hubs);
    assert_int_equal(loading_find(&l, &o, "/no/such", folder, &is_hubs, &err), ST_OK);
    assert_string_equal(folder, "/no/such"); /* model_open reports the error */
    assert_false(is_hubs);
    assert_int_equal(loading_find(&l, &o, "org/name", folder, &is_hubs, &err), ST_NOT_FOUND);
    assert_true(is_hubs);
    assert_non_null(strstr(err.message, "org/name at main is not in the cache"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(progress_has_bytes_and_percent),
        cmocka_unit_test(nothing_is_logged_before_the_first_interval),
        cmocka_unit_test(a_folder_is_one_and_a_name_is_the_hubs),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
