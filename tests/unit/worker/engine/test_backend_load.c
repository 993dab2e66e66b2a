/* tests/unit/worker/engine/test_backend_load.c - backends by name, and the errors for missing ones.
 * */
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

static enum status choose(const char *name, const char *device, const struct backend_ops **ops,
                          struct backend_config *config, struct error *err) {
    const struct backend_request request = {
        .name = name, .device = device, .library = "/nonexistent/" BACKEND_OBJECT};
    struct error why = {0};

    *config = (struct backend_config){.n_threads = 1};
    *ops = NULL;
    return backend_choose(ops, config, &request, &why, err);
}

static void a_device_name_selects_the_backend(void **state) {
    static const struct {
        const char *device, *device_id;
        uint32_t ordinal;
    } gpus[] = {{"cuda", NULL, 0},
                {"cuda:0", NULL, 0},
                {"cuda:12", NULL, 12},
                {"3", NULL, 3},
                {"GPU-1b2c", "GPU-1b2c", 0}};
    const struct backend_ops *ops;
    struct backend_config config;

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(gpus); i++) { /* found out, and then missed: no object */
        struct error err = {0};

        assert_int_equal(choose("auto", gpus[i].device, &ops, &config, &err), ST_NOT_FOUND);
        assert_non_null(strstr(err.message, "/nonexistent"));
        assert_int_equal(config.ordinal, gpus[i].ordinal);
        if (gpus[i].device_id)
            assert_string_equal(config.device_id, gpus[i].device_id);
        else
            assert_null(config.device_id);
    }
    assert_int_equal(choose("auto", "cpu", &ops, &config, NULL), ST_OK);
    assert_ptr_equal(ops, &backend_cpu);
    assert_int_equal(choose(NULL, "sim", &ops, &config, NULL), ST_OK);
    assert_ptr_equal(ops, &backend_sim);
    assert_int_equal(choose("ref", NULL, &ops, &config, NULL), ST_OK);
    assert_ptr_equal(ops, &backend_ref);
    assert_int_equal(choose("cpu", "cpu", &ops, &config, NULL), ST_OK);
}

static void a_device_that_is_none_is_refused_by_name(void **state) {
    static const char *const wrong[] = {
        "",       "cuda:", "cuda:-1", "cuda:1x", "cuda:1024",
        "-1",     "1.5",   "GPU-",    "gpu",     "CUDA",
        "cuda 1", " 1",    "0x1",     "cuda::1", "99999999999999999999"};
    const struct backend_ops *ops;
    struct backend_config config;

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(wrong); i++) {
        struct error err = {0};

        assert_int_equal(choose("auto", wrong[i], &ops, &config, &err), ST_INVALID);
        assert_string_equal(err.param, "device");
        assert_non_null(strstr(err.message, wrong[i]));
        assert_null(ops);
    }
}

static void two_names_that_differ_are_refused(void **state) {
    const struct backend_ops *ops;
    struct backend_config config;
    struct error err = {0};

    (void)state;
    assert_int_equal(choose("cpu", "cuda:1", &ops, &config, &err), ST_INVALID);
    assert_non_null(strstr(err.message, "--backend cpu"));
    assert_int_equal(choose("sim", "cpu", &ops, &config, &err), ST_INVALID);
}

static void auto_without_a_gpu_is_the_cpu_with_the_reason(void **state) {
    const struct backend_request request = {.name = "auto"};
    const struct backend_ops *ops = NULL;
    struct backend_config config = {.n_threads = 1};
    struct error why = {0}, err = {0};

    (void)state;
    assert_int_equal(backend_choose(&ops, &config, &request, &why, &err), ST_OK);
    if (ops == &backend_cpu) assert_true(strlen(why.message) > 20);
    assert_true(ops == &backend_cpu || strcmp(ops->name, "cuda") == 0); /* if there is one here */
    assert_int_equal(choose("auto", NULL, &ops, &config, &err), ST_NOT_FOUND); /* it was named */
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(linked_backends_are_found),
        cmocka_unit_test(an_unknown_name_lists_the_known),
        cmocka_unit_test(an_absent_object_names_the_way_out),
        cmocka_unit_test(a_library_that_is_no_backend_is_refused),
        cmocka_unit_test(a_device_name_selects_the_backend),
        cmocka_unit_test(a_device_that_is_none_is_refused_by_name),
        cmocka_unit_test(two_names_that_differ_are_refused),
        cmocka_unit_test(auto_without_a_gpu_is_the_cpu_with_the_reason),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
