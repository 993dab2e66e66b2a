/* tests/unit/common/base/test_mem.c - allocation, its failures on demand, arenas. */
#include <string.h>

#include "common/base/mem.h"
#include "common/base/rng.h"
#include "tests/support/cm.h"
#include "tests/support/support.h"

static void allocations_are_zeroed_on_request(void **state) {
    static const char zeros[100];
    char *p = mem_zalloc(100), *q = mem_calloc(10, 10), *r = mem_alloc(0), *s;

    (void)state;
    assert_memory_equal(p, zeros, 100);
    assert_memory_equal(q, zeros, 100);
    assert_non_null(r);
    p = mem_realloc(p, 1000);
    assert_memory_equal(p, zeros, 100);
    mem_free(p);
    mem_free(q);
    mem_free(r);
    mem_free(NULL);
    s = mem_strndup("abcdef", 3);
    assert_string_equal(s, "abc");
    mem_free(s);
    s = mem_strdup("");
    assert_string_equal(s, "");
    mem_free(s);
    assert_null(mem_strdup(NULL));
}

static void the_nth_try_fails_once(void **state) {
    void *p[4];

    (void)state;
    mem_fail_at(3);
    p[0] = mem_try(1);
    p[1] = mem_try_zalloc(1);
    p[2] = mem_try_aligned(64, 1);
    p[3] = mem_try(1);
    mem_fail_at(0);
    assert_true(p[0] && p[1] && !p[2] && p[3]);
    for (int i = 0; i < 4; i++)
        mem_free(p[i]);
}

static void a_refused_realloc_keeps_the_block(void **state) {
    char *p = mem_try(4), *q;

    (void)state;
    memcpy(p, "abc", 4);
    mem_fail_at(1);
    q = mem_try_realloc(p, 100);
    mem_fail_at(0);
    assert_null(q);
    assert_string_equal(p, "abc");
    p = mem_try_realloc(p, 100);
    assert_string_equal(p, "abc");
    mem_free(p);
}

static void aligned_is_aligned(void **state) {
    (void)state;
    for (size_t align = 8; align <= 4096; align *= 2) {
        void *p = mem_try_aligned(align, 100);

        assert_non_null(p);
        assert_int_equal((uintptr_t)p % align, 0);
        mem_free(p);
    }
}

static void pages_are_zeroed_and_may_be_refused(void **state) {
    unsigned char *pages = mem_try_pages(100000);
    (void)state;

    for (size_t i = 0; i < 100000; i++)
        assert_int_equal(pages[i], 0);
    pages[99999] = 1;
    mem_free_pages(pages, 100000);
    mem_free_pages(NULL, 1);
    mem_fail_at(1);
    assert_null(mem_try_pages(1));
    mem_fail_at(0);
}

static void arena_pieces_do_not_overlap(void **state) {
    enum { N = 500 };
    static unsigned char *pieces[N];
    static size_t sizes[N];
    struct arena a;
    struct rng rng;

    (void)state;
    rng_seed(&rng, support_seed());
    arena_init(&a, 1024);
    for (int round = 0; round < 5; round++) {
        for (int i = 0; i < N; i++) {
            sizes[i] = rng_below(&rng, rng_below(&rng, 20) ? 100 : 5000); /* some over a chunk */
            pieces[i] = arena_alloc(&a, sizes[i]);
            assert_int_equal((uintptr_t)pieces[i] % 16, 0);
            for (size_t k = 0; k < sizes[i]; k++)
                assert_int_equal(pieces[i][k], 0);
            memset(pieces[i], i & 255, sizes[i]);
        }
        for (int i = 0; i < N; i++) {
            for (size_t k = 0; k < sizes[i]; k++)
                assert_int_equal(pieces[i][k], i & 255);
        }
        arena_fini(&a);
        arena_init(&a, 1024);
    }
    assert_string_equal(arena_strndup(&a, "abcdef", 3), "abc");
    arena_fini(&a);
    arena_fini(&a); /* an empty one is fine */
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(allocations_are_zeroed_on_request),
        cmocka_unit_test(the_nth_try_fails_once),
        cmocka_unit_test(a_refused_realloc_keeps_the_block),
        cmocka_unit_test(aligned_is_aligned),
        cmocka_unit_test(pages_are_zeroed_and_may_be_refused),
        cmocka_unit_test(arena_pieces_do_not_overlap),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
