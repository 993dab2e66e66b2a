/* tests/unit/router/fleet/test_local_devices.c - the answer of a worker program, real and
 * otherwise. */
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "router/fleet/local_devices.h"
#include "tests/support/cm.h"

#define TWO                                                                                        \
    "{\"devices\":[{\"index\":0,\"name\":\"A\",\"uuid\":\"GPU-0a\",\"memory_total\":1},"           \
    "{\"index\":1,\"name\":\"B\",\"uuid\":\"\"}]}"

static enum status parse(struct local_devices *out, const char *text, struct error *err) {
    return local_devices_parse(out, str_of(text), err);
}

static void each_device_goes_by_its_uuid_or_its_number(void **state) {
    struct local_devices d;

    (void)state;
    assert_int_equal(parse(&d, TWO, NULL), ST_OK);
    assert_int_equal(d.n, 2);
    assert_string_equal(d.device[0].id, "GPU-0a");
    assert_string_equal(d.device[0].name, "A");
    assert_string_equal(d.device[1].id, "1");
    assert_int_equal(parse(&d, "{\"devices\":[],\"reason\":\"no driver\"}", NULL), ST_OK);
    assert_int_equal(d.n, 0);
}

static void an_invalid_device_list_is_refused(void **state) {
    static const char *const wrong[] = {
        "",
        "[]",
        "{}",
        "{\"devices\":{}}",
        "{\"devices\":[1]}",
        "{\"devices\":[{\"index\":-1}]}",
        "{\"devices\":[{\"uuid\":7}]}",
        TWO "x",
        "{\"devices\":[{\"uuid\":\"GPU-"
        "0123456789012345678901234567890123456789012345678901234567890\"}]}",
    };
    struct local_devices d = {.n = 77};

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(wrong); i++) {
        struct error err = {0};

        assert_int_not_equal(parse(&d, wrong[i], &err), ST_OK);
        assert_true(err.message[0] != '\0');
        assert_int_equal(d.n, 77); /* untouched */
    }
}

static void more_than_a_machine_holds_is_refused(void **state) {
    char text[8192] = "{\"devices\":[{\"index\":0}";
    struct local_devices d;
    size_t n = strlen(text);

    (void)state;
    for (uint32_t i = 1; i < LOCAL_DEVICES_MAX; i++)
        n += (size_t)snprintf(text + n, sizeof(text) - n, ",{\"index\":%u}", i);
    strcpy(text + n, "]}");
    assert_int_equal(parse(&d, text, NULL), ST_OK);
    assert_int_equal(d.n, LOCAL_DEVICES_MAX);
    strcpy(text + n, ",{\"index\":64}]}");
    assert_int_equal(parse(&d, text, NULL), ST_TOO_LARGE);
}

/* A program that is a shell script. */
static enum status ask(const char *script, struct local_devices *out, uint32_t timeout_ms,
                       struct error *err) {
    char path[] = "/tmp/test_local_devices.XXXXXX";
    const char *const args[] = {"--model", "m", NULL};
    int fd = mkstemp(path);
    enum status st;

    assert_true(fd >= 0);
    dprintf(fd, "#!/bin/sh\n%s\n", script);
    assert_int_equal(fchmod(fd, 0700), 0);
    close(fd);
    st = local_devices_ask(out, path, args, timeout_ms, err);
    unlink(path);
    return st;
}

static void the_program_runs_with_the_given_arguments(void **state) {
    struct local_devices d;

    (void)state;
    setenv("INCIPIT_PORT", "1", 1);
    assert_int_equal(ask("[ \"$*\" = 'devices --json --model m' ] && [ -z \"$INCIPIT_PORT\" ] && "
                         "echo '" TWO "'",
                         &d, 5000, NULL),
                     ST_OK);
    assert_int_equal(d.n, 2);
    unsetenv("INCIPIT_PORT");
}

static void a_failed_program_differs_from_one_without_devices(void **state) {
    struct local_devices d;
    struct error err = {0};

    (void)state;
    assert_int_not_equal(ask("exit 3", &d, 5000, &err), ST_OK);
    assert_non_null(strstr(err.message, "status 3"));
    assert_int_equal(ask("echo '{\"devices\":[]}'; exit 1", &d, 5000, NULL), ST_OK);
    assert_int_equal(d.n, 0);
    assert_int_equal(ask("exec sleep 60", &d, 200, &err), ST_TIMEOUT);
    assert_non_null(strstr(err.message, "--launch N"));
    assert_int_equal(ask("exec cat /dev/zero", &d, 5000, &err), ST_TOO_LARGE);
    assert_int_equal(
        local_devices_ask(&d, "/nonexistent/worker", (const char *const[]){NULL}, 1000, &err),
        ST_NOT_FOUND);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_device_goes_by_its_uuid_or_its_number),
        cmocka_unit_test(an_invalid_device_list_is_refused),
        cmocka_unit_test(more_than_a_machine_holds_is_refused),
        cmocka_unit_test(the_program_runs_with_the_given_arguments),
        cmocka_unit_test(a_failed_program_differs_from_one_without_devices),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
