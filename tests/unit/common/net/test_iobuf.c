/* tests/unit/common/net/test_iobuf.c - lent buffers against a plain one, at random. */
#include "common/base/mem.h"
#include "common/base/rng.h"
#include "common/net/iobuf.h"
#include "tests/support/cm.h"
#include "tests/support/support.h"

static void check(const struct iobuf *b, const struct buf *model) {
    assert_true(b->start <= b->end && b->end <= b->cap);
    assert_int_equal(iobuf_len(b), buf_len(model));
    if (buf_len(model)) assert_memory_equal(b->data + b->start, buf_ptr(model), buf_len(model));
}

static void random_steps_keep_the_bytes(void **state) {
    struct iobuf_slab *slab = iobuf_slab_create();
    static char bytes[3000000];
    struct iobuf b = {0};
    struct buf model;
    struct rng rng;

    (void)state;
    rng_seed(&rng, support_seed());
    buf_init(&model, 0);
    for (size_t i = 0; i < sizeof(bytes); i++)
        bytes[i] = (char)rng_u64(&rng);
    for (int step = 0; step < 20000; step++) {
        size_t most = rng_below(&rng, 20) ? 3000 : rng_below(&rng, 20) ? 100000 : sizeof(bytes);
        size_t n = (size_t)rng_below(&rng, most);

        switch (rng_below(&rng, 4)) {
        case 0:
        case 1:
            if (iobuf_len(&b) > 3 * IOBUF_HUGE_BYTES) break;
            assert_int_equal(iobuf_append(&b, slab, bytes, n), ST_OK);
            buf_append(&model, bytes, n);
            break;
        case 2:
            n = MIN(n * 2, iobuf_len(&b));
            iobuf_consume(&b, slab, n);
            buf_consume(&model, n);
            break;
        default: iobuf_shrink(&b, slab, rng_below(&rng, 3) ? 0 : n); break;
        }
        if (step % 10 == 0 || iobuf_len(&b) < 100000) check(&b, &model);
        if (rng_below(&rng, 300) == 0) iobuf_slab_trim(slab);
        if (step % 100 == 0) iobuf_slab_check(slab);
        if (rng_below(&rng, 500) == 0) {
            iobuf_release(&b, slab);
            buf_clear(&model);
        }
    }
    iobuf_release(&b, slab);
    iobuf_slab_destroy(slab);
    buf_fini(&model);
}

static void an_empty_one_owns_nothing_and_the_slab_lends_again(void **state) {
    struct iobuf_slab *slab = iobuf_slab_create();
    struct iobuf b = {0};
    char *first;

    (void)state;
    assert_int_equal(iobuf_append(&b, slab, "abc", 3), ST_OK);
    assert_int_equal(b.cap, IOBUF_SMALL_BYTES);
    first = b.data;
    iobuf_consume(&b, slab, 3);
    assert_null(b.data);
    assert_int_equal(iobuf_reserve(&b, slab, 1), ST_OK);
    assert_ptr_equal(b.data, first);
    iobuf_release(&b, slab);
    iobuf_slab_destroy(slab);
}

static void it_shrinks_to_the_size_that_holds_it(void **state) {
    static const struct {
        size_t len, spare, cap;
    } cases[] = {
        {1000, 24, IOBUF_SMALL_BYTES},
        {4000, 96, 4096},
        {4000, 97, 6144},
        {16000, 0, 16384},
        {16000, 1000, 24576},
        {60000, 5000, IOBUF_LARGE_BYTES},
        {65000, 5000, 256 << 10}, /* would not fit: stays */
    };
    struct iobuf_slab *slab = iobuf_slab_create();
    static char bytes[65536];

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct iobuf b = {0};

        assert_int_equal(iobuf_reserve(&b, slab, IOBUF_LARGE_BYTES + 1), ST_OK);
        assert_int_equal(iobuf_append(&b, slab, bytes, cases[i].len), ST_OK);
        iobuf_shrink(&b, slab, cases[i].spare);
        assert_int_equal(b.cap, cases[i].cap);
        assert_int_equal(iobuf_len(&b), cases[i].len);
        iobuf_release(&b, slab);
    }
    iobuf_slab_destroy(slab);
}

static void refused_memory_leaves_it_as_it_was(void **state) {
    struct iobuf_slab *slab = iobuf_slab_create();
    struct iobuf b = {0};

    (void)state;
    assert_int_equal(iobuf_append(&b, slab, "abc", 3), ST_OK);
    mem_fail_at(1);
    assert_int_equal(iobuf_reserve(&b, slab, 1u << 20), ST_NOMEM);
    mem_fail_at(0);
    assert_true(str_eq(iobuf_str(&b), STR("abc")));
    iobuf_release(&b, slab);
    iobuf_slab_destroy(slab);
}

/* Lends n buffers of that size, and takes them back. */
static void burst(struct iobuf_slab *slab, size_t n, size_t bytes) {
    struct iobuf *b = mem_calloc(n, sizeof(*b));

    for (size_t i = 0; i < n; i++)
        assert_int_equal(iobuf_reserve(&b[i], slab, bytes), ST_OK);
    for (size_t i = 0; i < n; i++)
        iobuf_release(&b[i], slab);
    iobuf_slab_check(slab);
    mem_free(b);
}

static void kept_buffers_have_one_limit_for_all_sizes(void **state) {
    const size_t n_small = IOBUF_KEEP_BYTES / IOBUF_SMALL_BYTES;
    struct iobuf_slab *slab = iobuf_slab_create();
    struct iobuf b = {0};
    char *last;

    (void)state;
    burst(slab, n_small + 1, IOBUF_SMALL_BYTES);
    for (size_t bytes = IOBUF_SMALL_BYTES; bytes <= IOBUF_HUGE_BYTES; bytes *= 2)
        burst(slab, 3 * IOBUF_KEEP_BYTES / 2 / bytes, bytes);
    burst(slab, n_small, IOBUF_SMALL_BYTES);
    assert_int_equal(iobuf_reserve(&b, slab, IOBUF_LARGE_BYTES), ST_OK);
    last = b.data;
    iobuf_release(&b, slab); /* to lists full of small ones: it is kept */
    iobuf_slab_check(slab);
    assert_int_equal(iobuf_reserve(&b, slab, IOBUF_LARGE_BYTES), ST_OK);
    assert_ptr_equal(b.data, last);
    iobuf_release(&b, slab);
    iobuf_slab_destroy(slab);
}

static void unused_buffers_are_freed_after_a_while(void **state) {
    struct iobuf_slab *slab = iobuf_slab_create();
    struct iobuf used = {0};

    (void)state;
    burst(slab, 20, 256 << 10);
    burst(slab, 100, 4096);
    assert_true(iobuf_slab_is_full(slab));
    assert_true(iobuf_slab_trim(slab)); /* all were lent since the slab was made */
    assert_int_equal(iobuf_reserve(&used, slab, 256 << 10), ST_OK);
    iobuf_release(&used, slab);
    assert_false(iobuf_slab_trim(slab)); /* of the large ones the unused, and then it is enough */
    iobuf_slab_check(slab);
    assert_false(iobuf_slab_is_full(slab));
    iobuf_slab_destroy(slab);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_steps_keep_the_bytes),
        cmocka_unit_test(kept_buffers_have_one_limit_for_all_sizes),
        cmocka_unit_test(unused_buffers_are_freed_after_a_while),
        cmocka_unit_test(an_empty_one_owns_nothing_and_the_slab_lends_again),
        cmocka_unit_test(it_shrinks_to_the_size_that_holds_it),
        cmocka_unit_test(refused_memory_leaves_it_as_it_was),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
