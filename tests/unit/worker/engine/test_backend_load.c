/* tests/unit/worker/engine/test_backend_load.c - backends by name, and what is said about those
 * that are not there. */
#include <string.h>

#include "tests/support/cm.h"
#include "worker/engine/backend_load.h"

static void linked_backends_are_found(void **state) {
    static const char *const names[] = {"cpu", "ref", "sim"};

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        const struct backend_ops *ops = NULL;

        assert_int_equal(backend_load(&ops, names[i], NULL, NULL), ST_OK);
        assert_string_equal(ops->name, names[i]);
    }
}

static void an_unknown_name_lists_the_known(void **state) {
    const struct backend_ops *ops = NULL;
    struct error err = {0};

    (void)state;
    assert_int_equal(backend_load(&ops, "tpu", NULL, &err), ST_NOT_FOUND);
    assert_non_null(strstr(err.message, "tpu"));
    assert_non_null(strstr(err.message, BACKEND_NAMES));
    assert_null(ops);
}

static void an_absent_object_names_the_way_out(void **state) {
    const struct backend_ops *ops = NULL;
    struct error err = {0};

    (void)state;
    assert_int_equal(backend_load(&ops, "cuda", "/nonexistent/libincipit-cuda.so", &err),
                     ST_NOT_FOUND);
    assert_non_null(strstr(err.message, "/nonexistent"));
    assert_non_null(strstr(err.message, "--backend cpu"));
    assert_null(ops);
}

static void a_library_that_is_no_backend_is_refused(void **state) {
    const struct backend_ops *ops = NULL;
    struct error err = {0};

    (void)state;
    assert_int_equal(backend_load(&ops, "cuda", "libm.so.6", &err), ST_UNSUPPORTED);
    assert_non_null(strstr(err.message, "incipit_backend"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(linked_backends_are_found),
        cmocka_unit_test(an_unknown_name_lists_the_known),
        cmocka_unit_test(an_absent_object_names_the_way_out),
        cmocka_unit_test(a_library_that_is_no_backend_is_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
