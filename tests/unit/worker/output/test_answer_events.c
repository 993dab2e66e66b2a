/* tests/unit/worker/output/test_answer_events.c - what is sent in pieces equals what is sent whole.
 */
#include "common/base/rng.h"
#include "tests/support/cm.h"
#include "tests/support/support.h"
#include "worker/output/answer_events.h"

#define PARTS 24u

/* What a client has put together from events. */
struct received {
    struct {
        enum part_kind kind;
        struct buf text;
        bool is_ended;
    } part[PARTS];
    uint32_t n;
};

static void receive(struct received *r, const struct answer *a, struct answer_mark *mark) {
    struct answer_event e;
    bool has_more = answer_has_more(a, mark);

    while (answer_next(a, mark, &e)) {
        assert_true(has_more);
        if (e.kind == ANSWER_BEGIN) {
            assert_int_equal(e.index, r->n);
            if (r->n > 0) assert_true(r->part[r->n - 1].is_ended);
            buf_init(&r->part[r->n].text, 0);
            r->part[r->n++].kind = e.part->kind;
        }
        assert_int_equal(e.index, r->n - 1);
        assert_false(r->part[e.index].is_ended);
        if (e.kind == ANSWER_TEXT) {
            assert_true(e.text.len > 0);
            buf_append_str(&r->part[e.index].text, e.text);
        }
        r->part[e.index].is_ended = e.kind == ANSWER_END;
        has_more = answer_has_more(a, mark);
    }
    assert_false(has_more);
}

static void grow(struct answer *a, struct rng *rng, bool *in_call) {
    struct str text = {"abcdefgh", (size_t)rng_below(rng, 9)};

    if (*in_call) {
        answer_add_arguments(a, text);
        if (rng_below(rng, 3) == 0) {
            answer_end_call(a, false);
            *in_call = false;
        }
    } else if (rng_below(rng, 4) == 0) {
        answer_begin_call(a, STR("f"), STR("call_1"));
        *in_call = true;
    } else {
        answer_add(a, rng_below(rng, 2) ? PART_TEXT : PART_REASONING, text);
    }
}

static void pieces_join_to_the_whole(void **state) {
    struct rng rng;

    (void)state;
    rng_seed(&rng, support_seed());
    for (uint32_t round = 0; round < 2000; round++) {
        struct received r = {.n = 0};
        struct answer_mark mark = {0};
        struct answer a;
        bool in_call = false;

        answer_init(&a, 1 << 20);
        for (uint32_t i = 0; i < PARTS; i++) {
            grow(&a, &rng, &in_call);
            if (rng_below(&rng, 3) == 0) receive(&r, &a, &mark);
        }
        receive(&r, &a, &mark);
        assert_int_equal(r.n, a.n);
        for (uint32_t i = 0; i < r.n; i++) {
            assert_int_equal(r.part[i].kind, a.part[i].kind);
            assert_int_equal(r.part[i].is_ended, a.part[i].is_whole);
            assert_true(str_eq(buf_str(&r.part[i].text), buf_str(&a.part[i].text)));
            buf_fini(&r.part[i].text);
        }
        answer_fini(&a);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pieces_join_to_the_whole),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
