/* tests/unit/router/fleet/test_discovery.c - files of workers: what is read, and what changes
 * nothing. */
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/net/loop.h"
#include "common/options/options.h"
#include "router/fleet/discovery.h"
#include "tests/support/client.h"
#include "tests/support/cm.h"

static void lines_become_workers(void **state) {
    static const char text[] =
        "# the fleet\n"
        "\n"
        "  http://10.0.0.7:8000  max_in_flight=64 zone=a\track=7 # two GPUs\r\n"
        "http://[::1]:8000/ # next\n"
        "http://GPU-8:1";
    struct discovery_set set = {0};

    (void)state;
    assert_int_equal(discovery_file_parse(str_of(text), "f", &set, NULL), ST_OK);
    assert_int_equal(set.n, 3);
    assert_string_equal(set.workers[0].url.url, "http://10.0.0.7:8000");
    assert_int_equal(set.workers[0].max_in_flight, 64);
    assert_string_equal(set.workers[0].labels, "zone=a rack=7");
    assert_string_equal(set.workers[1].url.url, "http://[::1]:8000");
    assert_string_equal(set.workers[1].labels, "");
    assert_string_equal(set.workers[2].url.url, "http://gpu-8:1");
    discovery_set_fini(&set);
}

static void no_line_is_no_worker(void **state) {
    struct discovery_set set = {0};

    (void)state;
    assert_int_equal(discovery_file_parse(STR(""), "f", &set, NULL), ST_OK);
    assert_int_equal(discovery_file_parse(STR("\n# http://a:1\n"), "f", &set, NULL), ST_OK);
    assert_int_equal(set.n, 0);
    discovery_set_fini(&set);
}

static void an_error_is_named_with_its_line(void **state) {
    static const struct {
        const char *text, *line, *words;
    } rows[] = {
        {"http://a:1\nnonsense\n", "f line 2", "http://host:port"},
        {"http://a:1\n\n\nhttp://A:1/", "f line 4", "twice"},
        {"http://a:1 max_in_flight=many", "f line 1", "from 0"},
        {"http://a:1 max_in_flight=1000001", "f line 1", "1000000"},
        {"http://a:1 max_in_flight=-1", "f line 1", "from 0"},
        {"http://a:1 kv_events=70000", "f line 1", "use a port"},
        {"http://a:1 kv_events=5557 kv_events_replay=x", "f line 1", "use a port"},
        {"http://a:1 kv_events_ranks=0", "f line 1", "number of ranks from 1 to 16"},
        {"http://a:1 zone", "f line 1", "key=value"},
        {"http://a:1 =a", "f line 1", "key=value"},
        {"http://a:1 zone=", "f line 1", "key=value"},
        {"http://a:1 zone=\"a\"", "f line 1", "key=value"},
        {"http://a:1 http://b:1", "f line 1", "key=value"},
        {"http://a:1 zone=a=b", "f line 1", "key=value"},
    };
    struct discovery_set set = {0};
    char longest[400];

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        struct error err = {0};

        if (discovery_file_parse(str_of(rows[i].text), "f", &set, &err) == ST_OK)
            fail_msg("accepted %s", rows[i].text);
        if (!strstr(err.message, rows[i].line) || !strstr(err.message, rows[i].words))
            fail_msg("%s: %s", rows[i].text, err.message);
        assert_int_equal(set.n, 0);
    }
    snprintf(longest, sizeof(longest), "http://a:1 a=%0*d", DISCOVERY_LABELS_MAX - 3, 1);
    assert_int_equal(discovery_file_parse(str_of(longest), "f", &set, NULL), ST_OK);
    discovery_set_fini(&set);
    snprintf(longest, sizeof(longest), "http://a:1 a=%0*d", DISCOVERY_LABELS_MAX - 2, 1);
    assert_int_equal(discovery_file_parse(str_of(longest), "f", &set, NULL), ST_TOO_LARGE);
}

static void a_set_holds_no_more_than_it_may(void **state) {
    struct discovery_set set = {0};
    char url[64];

    (void)state;
    for (uint32_t i = 0; i <= DISCOVERY_MAX_WORKERS; i++) {
        struct discovery_worker w = {0};

        snprintf(url, sizeof(url), "http://a:%u", i + 1);
        assert_int_equal(address_split(str_of(url), &w.url, NULL), ST_OK);
        assert_int_equal(discovery_set_add(&set, &w, NULL),
                         i < DISCOVERY_MAX_WORKERS ? ST_OK : ST_TOO_LARGE);
    }
    discovery_set_fini(&set);
}

/* --- sources -----------------------------------------------------------------------------------*/

struct reported {
    int n;
    uint32_t n_workers;
    char first[ADDRESS_URL_MAX];
};

static void on_set(const struct discovery_set *set, void *arg) {
    struct reported *reported = arg;

    reported->n++;
    reported->n_workers = set->n;
    snprintf(reported->first, sizeof(reported->first), "%s", set->n ? set->workers[0].url.url : "");
}

static void the_command_line_is_reported_once(void **state) {
    const char *const good[] = {"http://127.0.0.1:1", "http://b:2"};
    const char *const bad[] = {"http://127.0.0.1:1", "http://127.0.0.1:1/"};
    struct option_list urls = {good, 2}, none = {NULL, 0};
    struct discovery_static_lists lists = {&urls, &none, &none};
    struct discovery *d = NULL;
    struct reported reported = {0};
    struct error err = {0};

    (void)state;
    assert_int_equal(discovery_static_create(&d, &lists, on_set, &reported, NULL), ST_OK);
    assert_int_equal(reported.n, 1);
    assert_int_equal(reported.n_workers, 2);
    discovery_reload(d);
    assert_int_equal(reported.n, 1);
    discovery_destroy(d);
    urls.items = bad;
    assert_int_equal(discovery_static_create(&d, &lists, on_set, &reported, &err), ST_INVALID);
    assert_non_null(strstr(err.message, "--worker-urls"));
    assert_int_equal(reported.n, 1);
}

static void on_labels(const struct discovery_set *set, void *arg) {
    char *text = arg;

    for (uint32_t i = 0; i < set->n; i++) {
        strcat(text, set->workers[i].labels);
        strcat(text, ";");
    }
}

static void workers_of_a_role_have_its_label_and_their_ports(void **state) {
    const char *const urls[] = {"http://a:1"}, *const decode[] = {"http://d:1", "http://e:1"};
    const char *const prefill[] = {"http://p:1", "9001", "http://q:1", "none", "http://r:1"};
    const char *const bad[] = {"http://p:1", "70000"}, *const port_alone[] = {"8998"};
    struct option_list u = {urls, 1}, p = {prefill, 5}, dec = {decode, 2};
    struct discovery_static_lists lists = {&u, &p, &dec};
    char text[512] = "";
    struct discovery *d = NULL;
    struct error err = {0};

    (void)state;
    assert_int_equal(discovery_static_create(&d, &lists, on_labels, text, NULL), ST_OK);
    assert_string_equal(text, ";role=prefill bootstrap_port=9001;role=prefill;role=prefill;"
                              "role=decode;role=decode;");
    discovery_destroy(d);
    p = (struct option_list){bad, 2};
    assert_int_equal(discovery_static_create(&d, &lists, on_labels, text, &err), ST_INVALID);
    assert_non_null(strstr(err.message, "--prefill"));
    assert_non_null(strstr(err.message, "70000"));
    p = (struct option_list){port_alone, 1};
    assert_int_equal(discovery_static_create(&d, &lists, on_labels, text, NULL), ST_INVALID);
}

struct folder {
    char dir[64], path[80], other[80];
};

static void folder_open(struct folder *f) {
    snprintf(f->dir, sizeof(f->dir), "/tmp/incipit-test-XXXXXX");
    assert_non_null(mkdtemp(f->dir));
    snprintf(f->path, sizeof(f->path), "%s/workers", f->dir);
    snprintf(f->other, sizeof(f->other), "%s/new", f->dir);
}

static void folder_close(struct folder *f) {
    unlink(f->path);
    unlink(f->other);
    rmdir(f->dir);
}

static void write_file(const char *path, const char *text) {
    FILE *f = fopen(path, "w");

    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

static void a_file_is_read_again_on_change_or_on_demand(void **state) {
    struct discovery *d = NULL;
    struct reported reported = {0};
    struct loop *loop;
    struct folder f;

    (void)state;
    folder_open(&f);
    assert_int_equal(loop_create(&loop, NULL), ST_OK);
    write_file(f.path, "http://a:1\n");
    assert_int_equal(discovery_file_create(&d, f.path, loop, NULL, on_set, &reported, NULL), ST_OK);
    assert_int_equal(reported.n, 1);
    assert_string_equal(reported.first, "http://a:1");

    write_file(f.path, "http://b:1\nhttp://c:1\n"); /* at once, when asked */
    discovery_reload(d);
    assert_int_equal(reported.n, 2);
    assert_int_equal(reported.n_workers, 2);

    write_file(f.path, "http://b:1\nrubbish\n"); /* changes nothing */
    discovery_reload(d);
    assert_int_equal(reported.n, 2);
    unlink(f.path);
    discovery_reload(d);
    assert_int_equal(reported.n, 2);

    write_file(f.other, "http://d:1\n"); /* by itself */
    assert_int_equal(rename(f.other, f.path), 0);
    TURN_UNTIL(loop, reported.n == 3);
    assert_string_equal(reported.first, "http://d:1");
    discovery_destroy(d);
    loop_destroy(loop);
    folder_close(&f);
}

static void a_start_with_a_wrong_file_fails(void **state) {
    struct discovery *d = NULL;
    struct reported reported = {0};
    struct error err = {0};
    struct loop *loop;
    struct folder f;

    (void)state;
    folder_open(&f);
    assert_int_equal(loop_create(&loop, NULL), ST_OK);
    assert_int_equal(discovery_file_create(&d, f.path, loop, NULL, on_set, &reported, &err),
                     ST_NOT_FOUND);
    assert_non_null(strstr(err.message, "--worker-file"));
    write_file(f.path, "x\n");
    assert_int_equal(discovery_file_create(&d, f.path, loop, NULL, on_set, &reported, &err),
                     ST_INVALID);
    assert_non_null(strstr(err.message, "line 1"));
    assert_int_equal(reported.n, 0);
    loop_destroy(loop);
    folder_close(&f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lines_become_workers),
        cmocka_unit_test(no_line_is_no_worker),
        cmocka_unit_test(an_error_is_named_with_its_line),
        cmocka_unit_test(a_set_holds_no_more_than_it_may),
        cmocka_unit_test(the_command_line_is_reported_once),
        cmocka_unit_test(workers_of_a_role_have_its_label_and_their_ports),
        cmocka_unit_test(a_file_is_read_again_on_change_or_on_demand),
        cmocka_unit_test(a_start_with_a_wrong_file_fails),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
