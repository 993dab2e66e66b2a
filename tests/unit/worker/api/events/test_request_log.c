/* tests/unit/worker/api/events/test_request_log.c - the ring against a list of all that was ever
 * appended. */
#include <stdlib.h>

#include "common/base/mem.h"
#include "common/base/rng.h"
#include "tests/support/cm.h"
#include "worker/api/events/request_log.h"

static struct request_log *make(uint64_t bytes) {
    struct request_log *log;

    assert_int_equal(request_log_create(&log, bytes, NULL), ST_OK);
    return log;
}

static void append_cleared(struct request_log *log, uint64_t n) {
    for (uint64_t i = 0; i < n; i++)
        request_log_append(log, &(struct request_event){.kind = REQUEST_CLEARED, .t_us = i});
}

/* Reads frames until there are no more, and wants exactly [from, next) of them. */
static void assert_reads(const struct request_log *log, uint64_t from, size_t max_bytes) {
    static uint64_t blocks[CHAIN_BLOCKS_MAX];
    struct request_event e;
    uint64_t number = from, next, sequence;
    struct buf out;
    size_t used;

    buf_init(&out, 0);
    while (request_log_read(log, number, max_bytes, &out, &next) == ST_OK) {
        size_t first = 0;

        assert_true(next > number);
        while (buf_len(&out)) {
            assert_int_equal(request_event_read(buf_str(&out), blocks, &e, &sequence, &used, NULL),
                             ST_OK);
            assert_true(used > 0);
            assert_int_equal(sequence, number++);
            first += used;
            buf_consume(&out, used);
            assert_true(first <= max_bytes || number == next);
        }
        assert_int_equal(number, next);
    }
    assert_int_equal(number, request_log_stats(log).next);
    buf_fini(&out);
}

/* --- tests ------------------------------------------------------------------------------------ */

static void a_new_log_has_nothing(void **state) {
    struct request_log *log = make(0);
    struct request_log_stats s = request_log_stats(log);
    uint64_t next = 77;
    struct buf out;

    (void)state;
    buf_init(&out, 0);
    assert_int_equal(s.next, 1);
    assert_int_equal(s.oldest, 1);
    assert_int_equal(request_log_read(log, 1, 1000, &out, &next), ST_AGAIN);
    assert_int_equal(request_log_read(log, 0, 1000, &out, &next), ST_NOT_FOUND);
    assert_int_equal(next, 1);
    assert_int_equal(request_log_read(log, 2, 1000, &out, &next), ST_NOT_FOUND);
    request_log_check(log);
    request_log_destroy(log);
    request_log_destroy(NULL);
    buf_fini(&out);
}

static void a_read_gives_whole_frames_up_to_the_limit_and_one_at_least(void **state) {
    struct request_log *log = make(0);
    struct buf out;
    uint64_t next;

    (void)state;
    buf_init(&out, 0);
    append_cleared(log, 100); /* of 15 bytes each: kind and time take one */
    assert_int_equal(request_log_read(log, 1, 0, &out, &next), ST_OK);
    assert_int_equal(next, 2);
    assert_int_equal(buf_len(&out), 15);
    assert_int_equal(request_log_read(log, 50, 31, &out, &next), ST_OK);
    assert_int_equal(next, 52);
    assert_int_equal(request_log_read(log, 90, 1000000, &out, &next), ST_OK);
    assert_int_equal(next, 101);
    assert_int_equal(request_log_read(log, 101, 1000000, &out, &next), ST_AGAIN);
    buf_fini(&out);
    request_log_destroy(log);
}

static void the_oldest_make_room(void **state) {
    struct request_log *log = make(REQUEST_LOG_BYTES_MIN);
    struct request_log_stats s;
    struct buf out;
    uint64_t next;

    (void)state;
    buf_init(&out, 0);
    append_cleared(log, 100000);
    s = request_log_stats(log);
    assert_int_equal(s.next, 100001);
    assert_int_equal(s.n_appended, 100000);
    assert_true(s.bytes <= REQUEST_LOG_BYTES_MIN && s.bytes > REQUEST_LOG_BYTES_MIN - 20);
    request_log_check(log);
    assert_int_equal(request_log_read(log, s.oldest - 1, 100, &out, &next), ST_NOT_FOUND);
    assert_int_equal(next, s.oldest);
    assert_reads(log, s.oldest, 64 << 10);
    buf_fini(&out);
    request_log_destroy(log);
}

struct model {
    struct buf bytes;     /* of all that was ever appended */
    uint64_t begin[5000]; /* of each number, 1 and on */
    uint64_t n;           /* the next number */
};

/* What is kept is the longest end of what was appended that the memory holds. */
static void assert_as_model(const struct request_log *log, const struct model *m, uint64_t bytes,
                            struct rng *rng) {
    struct request_log_stats s = request_log_stats(log);
    uint64_t from, next, max, end;
    struct buf out;

    assert_int_equal(s.next, m->n);
    assert_int_equal(s.bytes, m->begin[m->n] - m->begin[s.oldest]);
    assert_true(s.bytes <= bytes);
    assert_true(s.oldest == 1 || m->begin[m->n] - m->begin[s.oldest - 1] > bytes);
    if (s.oldest == s.next) return;
    from = s.oldest + rng_below(rng, s.next - s.oldest);
    max = rng_below(rng, 4000);
    buf_init(&out, 0);
    assert_int_equal(request_log_read(log, from, max, &out, &next), ST_OK);
    for (end = from + 1; end < m->n && m->begin[end + 1] - m->begin[from] <= max; end++) {
    }
    assert_int_equal(next, end);
    assert_int_equal(buf_len(&out), m->begin[end] - m->begin[from]);
    assert_memory_equal(buf_ptr(&out), buf_ptr(&m->bytes) + m->begin[from], buf_len(&out));
    buf_fini(&out);
}

static void the_ring_equals_a_list(void **state) {
    static uint64_t blocks[CHAIN_BLOCKS_MAX];
    struct model *m = calloc(1, sizeof(*m));
    struct rng rng;

    (void)state;
    rng_seed(&rng, 60);
    for (int i = 0; i < CHAIN_BLOCKS_MAX; i++)
        blocks[i] = rng_u64(&rng) & ~UINT64_C(0xffff);
    for (int round = 0; round < 6; round++) {
        uint64_t bytes = REQUEST_LOG_BYTES_MIN + rng_below(&rng, 3000);
        struct request_log *log = make(bytes);
        uint32_t longest = round % 2 ? CHAIN_BLOCKS_MAX : 20;

        buf_init(&m->bytes, 0);
        m->n = 1;
        m->begin[1] = 0;
        while (m->n < ARRAY_LEN(m->begin) - 2) {
            struct request_event e = {.kind = REQUEST_CLEARED, .t_us = rng_u64(&rng) >> 20};

            if (rng_below(&rng, 3)) {
                e.kind = REQUEST_ACCEPTED;
                e.chain.n_blocks = (uint32_t)rng_below(&rng, longest + 1);
                e.chain.blocks = blocks;
            }
            request_log_append(log, &e);
            request_event_put(&m->bytes, m->n++, &e);
            m->begin[m->n] = buf_len(&m->bytes);
            assert_as_model(log, m, bytes, &rng);
            if (rng_below(&rng, 50) == 0) request_log_check(log);
        }
        assert_reads(log, request_log_stats(log).oldest, 3000);
        request_log_destroy(log);
        buf_fini(&m->bytes);
    }
    free(m);
}

/* Followers that had read less see a gap; two events that were not consecutive never look so. */
static void an_event_that_memory_was_refused_for_is_a_gap(void **state) {
    static uint64_t blocks[CHAIN_BLOCKS_MAX];
    struct request_log *log = make(0);
    struct request_event e = {.kind = REQUEST_ACCEPTED,
                              .chain = {.n_blocks = CHAIN_BLOCKS_MAX, .blocks = blocks}};
    struct buf out;
    uint64_t next;

    (void)state;
    buf_init(&out, 0);
    append_cleared(log, 40);
    mem_fail_at(1);
    request_log_append(log, &e);
    mem_fail_at(0);
    request_log_check(log);
    assert_int_equal(request_log_stats(log).next, 42);
    assert_int_equal(request_log_read(log, 41, 1000, &out, &next), ST_NOT_FOUND);
    assert_int_equal(next, 42);
    append_cleared(log, 100);
    request_log_append(log, &e);
    request_log_check(log);
    assert_reads(log, 42, 1000);
    buf_fini(&out);
    request_log_destroy(log);
}

static void creation_fails_whole(void **state) {
    struct request_log *log = NULL;
    struct error err;

    (void)state;
    for (uint64_t n = 1; n <= 2; n++) {
        error_init(&err);
        mem_fail_at(n);
        assert_int_equal(request_log_create(&log, 1 << 20, &err), ST_NOMEM);
        assert_non_null(strstr(err.message, "--request-events-buffer-bytes"));
        assert_null(log);
    }
    mem_fail_at(0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_new_log_has_nothing),
        cmocka_unit_test(a_read_gives_whole_frames_up_to_the_limit_and_one_at_least),
        cmocka_unit_test(the_oldest_make_room),
        cmocka_unit_test(the_ring_equals_a_list),
        cmocka_unit_test(an_event_that_memory_was_refused_for_is_a_gap),
        cmocka_unit_test(creation_fails_whole),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
