/* tests/gpu/cmocka/cmocka.h - as much of cmocka as the tests of kernels use, for machines without
 * it.
 *
 * The same tests that run on the shim are compiled for the device with this header found first. A
 * test that asks the shim for what a device has not (a planted bug, a failed call) is skipped
 * there. */
#ifndef TESTS_GPU_CMOCKA_H
#define TESTS_GPU_CMOCKA_H

#include <setjmp.h>
#include <stdio.h>
#include <string.h>

struct CMUnitTest {
    const char *name;
    void (*test)(void **state);
};

enum { CM_FAILED = 1, CM_SKIPPED = 2 };
extern jmp_buf cm_end; /* of the test that runs; tests/gpu/on_device.c */

#define cmocka_unit_test(f)                                                                        \
    { #f, f }
#define fail_msg(...)                                                                              \
    (printf("%s:%d: ", __FILE__, __LINE__), printf(__VA_ARGS__), puts(""),                         \
     longjmp(cm_end, CM_FAILED))
#define print_error(...)   printf(__VA_ARGS__)
#define print_message(...) printf(__VA_ARGS__)
#define assert_true(x)                                                                             \
    do {                                                                                           \
        if (!(x)) fail_msg("%s", #x);                                                              \
    } while (0)
#define assert_false(x)    assert_true(!(x))
#define assert_null(p)     assert_true((p) == NULL)
#define assert_non_null(p) assert_true((p) != NULL)
#define assert_int_equal(a, b)                                                                     \
    do {                                                                                           \
        long long cm_a = (long long)(a), cm_b = (long long)(b);                                    \
        if (cm_a != cm_b) fail_msg("%s = %lld, not %lld", #a, cm_a, cm_b);                         \
    } while (0)
#define assert_int_not_equal(a, b)       assert_true((long long)(a) != (long long)(b))
#define assert_in_range(x, low, high)    assert_true((x) >= (low) && (x) <= (high))
#define assert_memory_equal(a, b, n)     assert_true(memcmp(a, b, n) == 0)
#define assert_memory_not_equal(a, b, n) assert_true(memcmp(a, b, n) != 0)
#define assert_ptr_equal(a, b)           assert_true((const void *)(a) == (const void *)(b))
#define assert_float_equal(a, b, e)      assert_true((a) - (b) <= (e) && (b) - (a) <= (e))
#define assert_string_equal(a, b)        assert_true(strcmp(a, b) == 0)

int cm_run(const struct CMUnitTest *tests, size_t n);
#define cmocka_run_group_tests(tests, setup, teardown)                                             \
    ((void)(setup), (void)(teardown), cm_run(tests, sizeof(tests) / sizeof((tests)[0])))
#define cmocka_run_group_tests_name(name, tests, setup, teardown)                                  \
    cmocka_run_group_tests(tests, setup, teardown)

#endif
