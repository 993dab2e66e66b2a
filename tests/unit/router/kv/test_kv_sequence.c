/* tests/unit/router/kv/test_kv_sequence.c - batches in order, whatever is lost: scenes one by one,
 * then a publisher at random beside what a follower may know of it. */
#include <stdio.h>
#include <string.h>

#include "common/base/rng.h"
#include "router/kv/kv_sequence.h"
#include "tests/support/cm.h"
#include "tests/support/support.h"

/* What the sequence did: "begin 0 1 2 batches_lost 7 ask(3)". */
struct follower {
    struct kv_sequence seq;
    char text[2048];
    size_t n;
    uint64_t asked; /* the last question */
    uint32_t n_asked;
};

static void note(struct follower *f, const char *what) {
    f->n += (size_t)snprintf(f->text + f->n, sizeof(f->text) - f->n, "%s%s", f->n ? " " : "", what);
    assert_true(f->n < sizeof(f->text));
}

static void on_apply(struct str batch, void *arg) {
    char text[64];

    snprintf(text, sizeof(text), STR_FMT, STR_ARG(batch));
    note(arg, text);
}

static void on_reset(enum kv_reset why, void *arg) {
    note(arg, kv_reset_names[why]);
}

static void on_ask(uint64_t from, void *arg) {
    struct follower *f = arg;
    char text[32];

    snprintf(text, sizeof(text), "ask(%u)", (unsigned)from);
    note(f, text);
    f->asked = from;
    f->n_asked++;
}

static const struct kv_sequence_ops ops = {on_apply, on_reset, on_ask};

static void begin(struct follower *f, bool has_replay) {
    *f = (struct follower){0};
    kv_sequence_init(&f->seq, has_replay, &ops, f);
}

/* Process 0 writes "N", its successor "bN". */
static struct str batch_of(char text[16], const char *process, uint64_t number) {
    snprintf(text, 16, "%s%u", process, (unsigned)number);
    return str_of(text);
}

static void live(struct follower *f, const char *process, uint64_t number, uint64_t now_s) {
    char text[16];

    kv_sequence_take(&f->seq, number, batch_of(text, process, number), now_s * 1000000);
    kv_sequence_check(&f->seq);
}

static void replay(struct follower *f, const char *process, uint64_t from, uint64_t to,
                   uint64_t now_s) {
    char text[16];

    for (uint64_t n = from; n < to; n++)
        kv_sequence_replayed(&f->seq, n, batch_of(text, process, n), now_s * 1000000);
    kv_sequence_replayed(&f->seq, KV_SEQUENCE_END, STR(""), now_s * 1000000);
    kv_sequence_check(&f->seq);
}

static void connected(struct follower *f, uint64_t now_s) {
    kv_sequence_connected(&f->seq, now_s * 1000000);
}

static void ends(struct follower *f, const char *expected) {
    assert_string_equal(f->text, expected);
    kv_sequence_check(&f->seq);
    kv_sequence_fini(&f->seq);
}

/* --- scenes ----------------------------------------------------------------------------------- */

static void a_follower_from_the_beginning_applies_all(void **state) {
    struct follower f;

    (void)state;
    begin(&f, false);
    connected(&f, 1);
    live(&f, "", 0, 1);
    live(&f, "", 1, 1);
    ends(&f, "begin 0 1");
}

static void without_replay_a_late_one_begins_where_it_is(void **state) {
    struct follower f;

    (void)state;
    begin(&f, false);
    connected(&f, 1);
    live(&f, "", 7, 1);
    live(&f, "", 8, 1);
    ends(&f, "begun_late 7 8");
}

static void a_late_one_asks_and_live_batches_wait(void **state) {
    struct follower f;

    (void)state;
    begin(&f, true);
    connected(&f, 1);
    live(&f, "", 2, 1);
    live(&f, "", 3, 1);
    replay(&f, "", 0, 3, 1); /* overlaps */
    live(&f, "", 4, 1);
    ends(&f, "ask(0) begin 0 1 2 3 4");
}

static void a_replay_too_short_begins_late(void **state) {
    struct follower f;

    (void)state;
    begin(&f, true);
    connected(&f, 1);
    replay(&f, "", 5, 7, 1);
    live(&f, "", 7, 1);
    ends(&f, "ask(0) begun_late 5 6 7");
}

static void an_engine_without_batches_begins_at_0(void **state) {
    struct follower f;

    (void)state;
    begin(&f, true);
    connected(&f, 1);
    replay(&f, "", 0, 0, 1);
    live(&f, "", 0, 1);
    ends(&f, "ask(0) begin 0");
}

static void a_gap_is_asked_for_and_closed(void **state) {
    struct follower f;

    (void)state;
    begin(&f, true);
    connected(&f, 1);
    replay(&f, "", 0, 2, 1);
    live(&f, "", 5, 9);
    live(&f, "", 6, 9);
    replay(&f, "", 2, 7, 9);
    live(&f, "", 7, 9);
    assert_int_equal(f.seq.n_gaps, 1);
    assert_int_equal(f.seq.n_lost, 0);
    ends(&f, "ask(0) begin 0 1 ask(2) 2 3 4 5 6 7");
}

static void a_gap_without_replay_drops_what_is_known(void **state) {
    struct follower f;

    (void)state;
    begin(&f, false);
    connected(&f, 1);
    live(&f, "", 0, 1);
    live(&f, "", 4, 1);
    live(&f, "", 5, 1);
    assert_int_equal(f.seq.n_gaps, 1);
    assert_int_equal(f.seq.n_lost, 1);
    ends(&f, "begin 0 batches_lost 4 5");
}

/* It asks once; for the next half minute it does not ask again. */
static void a_gap_too_old_for_the_replay_is_lost(void **state) {
    struct follower f;

    (void)state;
    begin(&f, true);
    connected(&f, 1);
    replay(&f, "", 0, 1, 1);
    live(&f, "", 9, 5);
    replay(&f, "", 7, 10, 5);
    live(&f, "", 10, 5);
    assert_int_equal(f.seq.n_lost, 1);
    ends(&f, "ask(0) begin 0 ask(1) batches_lost 7 8 9 10");
}

static void after_a_failed_replay_there_is_no_question_for_30_s(void **state) {
    struct follower f;

    (void)state;
    begin(&f, true);
    connected(&f, 1);
    kv_sequence_replay_failed(&f.seq, 1000000);
    live(&f, "", 3, 2);
    live(&f, "", 5, 20);
    live(&f, "", 7, 40);
    replay(&f, "", 6, 8, 40);
    ends(&f, "ask(0) begun_late 3 batches_lost 5 ask(6) 6 7");
}

static void a_second_gap_within_a_second_is_asked_for_later(void **state) {
    struct follower f;

    (void)state;
    begin(&f, true);
    connected(&f, 1);
    replay(&f, "", 0, 1, 1);
    live(&f, "", 2, 1); /* the question at the connection was now */
    kv_sequence_tick(&f.seq, 1500000);
    assert_int_equal(f.n_asked, 1);
    kv_sequence_tick(&f.seq, 2000000);
    replay(&f, "", 1, 3, 2);
    ends(&f, "ask(0) begin 0 ask(1) 1 2");
}

static void a_silent_replay_is_given_up(void **state) {
    struct follower f;

    (void)state;
    begin(&f, true);
    connected(&f, 1);
    live(&f, "", 4, 1);
    kv_sequence_tick(&f.seq, 10000000);
    kv_sequence_tick(&f.seq, 11000000);
    live(&f, "", 5, 11);
    ends(&f, "ask(0) begun_late 4 5");
}

/* The connection is new, and so are the numbers. */
static void a_restart_drops_what_is_known(void **state) {
    struct follower f;

    (void)state;
    begin(&f, false);
    connected(&f, 1);
    live(&f, "", 0, 1);
    live(&f, "", 1, 1);
    live(&f, "", 2, 1);
    connected(&f, 5);
    live(&f, "b", 0, 5);
    live(&f, "b", 1, 5);
    connected(&f, 9);
    live(&f, "c", 1, 9);
    ends(&f, "begin 0 1 2 restart b0 b1 restart_begun_late c1");
}

/* The new process has published less than the old one had, or nothing, or more. */
static void a_restart_shows_in_the_replay(void **state) {
    struct follower f;

    (void)state;
    begin(&f, true);
    connected(&f, 1);
    replay(&f, "", 0, 4, 1);
    connected(&f, 5);
    replay(&f, "b", 9, 9, 5); /* nothing from 3 on */
    replay(&f, "b", 0, 2, 5);
    connected(&f, 9);
    kv_sequence_replayed(&f.seq, 1, STR("c1"), 9000000); /* differs from b1 */
    replay(&f, "c", 0, 3, 9);
    connected(&f, 13);
    replay(&f, "d", 9, 9, 13);
    replay(&f, "d", 9, 9, 13);
    live(&f, "d", 0, 13);
    ends(&f, "ask(0) begin 0 1 2 3 ask(3) ask(0) restart b0 b1 ask(1) ask(0) restart c0 c1 c2 "
             "ask(2) ask(0) restart d0");
}

static void a_live_batch_of_a_new_process_asks_for_its_first(void **state) {
    struct follower f;

    (void)state;
    begin(&f, true);
    connected(&f, 1);
    replay(&f, "", 0, 4, 1);
    connected(&f, 5);
    live(&f, "b", 1, 7);
    replay(&f, "b", 0, 2, 7);
    ends(&f, "ask(0) begin 0 1 2 3 ask(3) ask(0) restart b0 b1");
}

/* Behind a proxy of ZeroMQ the connection outlives the publisher. */
static void numbers_that_fall_on_one_connection_are_a_restart(void **state) {
    struct follower f;

    (void)state;
    begin(&f, false);
    connected(&f, 1);
    live(&f, "", 0, 1);
    live(&f, "", 1, 1);
    live(&f, "b", 0, 1);
    live(&f, "b", 1, 1);
    ends(&f, "begin 0 1 restart b0 b1");
}

static void a_reconnection_continues_behind_the_last(void **state) {
    struct follower f;

    (void)state;
    begin(&f, true);
    connected(&f, 1);
    replay(&f, "", 0, 3, 1);
    connected(&f, 5);
    live(&f, "", 5, 5);
    replay(&f, "", 2, 6, 5);
    ends(&f, "ask(0) begin 0 1 2 ask(2) 3 4 5");
}

/* The engine restarts, and is idle, within a second of the last question. */
static void a_connection_too_soon_for_a_question_is_checked_later(void **state) {
    struct follower f;

    (void)state;
    begin(&f, true);
    connected(&f, 1);
    replay(&f, "", 0, 3, 1);
    connected(&f, 1);
    kv_sequence_tick(&f.seq, 1500000);
    kv_sequence_tick(&f.seq, 2000000);
    kv_sequence_tick(&f.seq, 2000000);
    replay(&f, "b", 9, 9, 2);
    replay(&f, "b", 0, 1, 2);
    kv_sequence_tick(&f.seq, 9000000);
    ends(&f, "ask(0) begin 0 1 2 ask(2) ask(0) restart b0");
}

static void too_many_waiting_batches_end_the_wait(void **state) {
    static char large[1u << 20];
    struct follower f;
    uint64_t n = 9;

    (void)state;
    begin(&f, true);
    connected(&f, 1);
    memset(large, 'x', sizeof(large));
    for (; f.seq.is_replaying; n++) {
        f.n = 0;
        kv_sequence_take(&f.seq, n, (struct str){large, n == 9 ? 3 : sizeof(large)}, 1000000);
        kv_sequence_check(&f.seq);
        assert_true(n < 9 + 5);
        if (!f.seq.is_replaying) break;
    }
    assert_int_equal(f.seq.next, n + 1); /* all that waited, in order */
    assert_int_equal(f.seq.n_waiting, 0);
    kv_sequence_fini(&f.seq);
}

/* --- at random -------------------------------------------------------------------------------- */

#define KEPT 20u

struct publisher {
    uint32_t process;
    uint64_t next;
};

struct model {
    struct kv_sequence seq;
    uint32_t process;  /* of what was applied */
    uint64_t expected; /* the next number; UINT64_MAX: any */
    bool is_whole;     /* all since batch 0 */
    bool is_asked;
    uint64_t from;
    uint32_t n_resets[KV_RESET_COUNT];
};

struct bytes {
    uint32_t process;
    uint64_t number;
};

static void model_apply(struct str batch, void *arg) {
    struct model *m = arg;
    struct bytes b;

    assert_int_equal(batch.len, sizeof(b));
    memcpy(&b, batch.ptr, sizeof(b));
    if (m->expected == UINT64_MAX) {
        assert_true(b.process >= m->process);
        m->process = b.process;
        assert_int_equal(m->is_whole, b.number == 0);
    } else {
        assert_int_equal(b.process, m->process);
        assert_int_equal(b.number, m->expected);
    }
    m->expected = b.number + 1;
}

static void model_reset(enum kv_reset why, void *arg) {
    struct model *m = arg;

    m->n_resets[why]++;
    m->expected = UINT64_MAX;
    m->is_whole = why == KV_RESET_BEGIN || why == KV_RESET_RESTART;
}

static void model_ask(uint64_t from, void *arg) {
    struct model *m = arg;

    m->is_asked = true;
    m->from = from;
}

static struct str bytes_of(struct bytes *b, const struct publisher *p, uint64_t number) {
    memset(b, 0, sizeof(*b));
    b->process = p->process;
    b->number = number;
    return (struct str){(const char *)b, sizeof(*b)};
}

static void answer(struct model *m, const struct publisher *p, uint64_t now_us) {
    uint64_t from = m->from, oldest = p->next > KEPT ? p->next - KEPT : 0;
    struct bytes b;

    m->is_asked = false;
    for (uint64_t n = MAX(from, oldest); n < p->next; n++) {
        kv_sequence_replayed(&m->seq, n, bytes_of(&b, p, n), now_us);
        if (m->is_asked) return; /* another question took its place */
    }
    kv_sequence_replayed(&m->seq, KV_SEQUENCE_END, STR(""), now_us);
}

static void whatever_is_lost_batches_are_applied_in_order(void **state) {
    static const struct kv_sequence_ops model_ops = {model_apply, model_reset, model_ask};
    struct model m = {.expected = UINT64_MAX};
    struct publisher p = {0};
    uint64_t now_us = 1000000;
    struct rng rng;
    struct bytes b;

    (void)state;
    rng_seed(&rng, support_seed());
    kv_sequence_init(&m.seq, true, &model_ops, &m);
    kv_sequence_connected(&m.seq, now_us);
    for (uint32_t i = 0; i < 300000; i++) {
        uint32_t act = (uint32_t)rng_below(&rng, 1000);

        now_us += rng_below(&rng, 50000);
        if (act < 850) {
            struct str bytes = bytes_of(&b, &p, p.next);

            /* Some are dropped on the way; and one of a new process that has the number which the
             * old one would have is beyond recognition when its replay fails. */
            bool is_twin = m.seq.is_first && p.next == m.seq.next && p.process != m.process;

            if (act < 830 && !is_twin) kv_sequence_take(&m.seq, p.next, bytes, now_us);
            p.next++;
        } else if (act < 950) {
            if (m.is_asked) answer(&m, &p, now_us);
        } else if (act < 955) {
            m.is_asked = false;
            kv_sequence_replay_failed(&m.seq, now_us);
        } else if (act < 990) {
            kv_sequence_tick(&m.seq, now_us);
        } else if (act < 995) {
            m.is_asked = false;
            kv_sequence_connected(&m.seq, now_us);
        } else if (act < 998) {
            p = (struct publisher){.process = p.process + 1, .next = rng_below(&rng, 40)};
            m.is_asked = false;
            kv_sequence_connected(&m.seq, now_us);
        }
        kv_sequence_check(&m.seq);
    }
    /* At rest, it is where the publisher is. */
    for (int i = 0; i < 100 && (m.is_asked || m.seq.n_waiting > 0); i++) {
        now_us += KV_SEQUENCE_ASK_US;
        kv_sequence_tick(&m.seq, now_us);
        if (m.is_asked) answer(&m, &p, now_us);
    }
    now_us += KV_SEQUENCE_FAILED_US;
    kv_sequence_take(&m.seq, p.next, bytes_of(&b, &p, p.next), now_us);
    p.next++;
    if (m.is_asked) answer(&m, &p, now_us);
    assert_int_equal(m.seq.next, p.next);
    for (uint32_t why = 0; why < KV_RESET_COUNT; why++) /* the walk has been everywhere */
        assert_true(m.n_resets[why] > 0 || why == KV_RESET_LATE || why == KV_RESET_BEGIN);
    kv_sequence_fini(&m.seq);
}

int main(void) {
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_follower_from_the_beginning_applies_all),
        cmocka_unit_test(without_replay_a_late_one_begins_where_it_is),
        cmocka_unit_test(a_late_one_asks_and_live_batches_wait),
        cmocka_unit_test(a_replay_too_short_begins_late),
        cmocka_unit_test(an_engine_without_batches_begins_at_0),
        cmocka_unit_test(a_gap_is_asked_for_and_closed),
        cmocka_unit_test(a_gap_without_replay_drops_what_is_known),
        cmocka_unit_test(a_gap_too_old_for_the_replay_is_lost),
        cmocka_unit_test(after_a_failed_replay_there_is_no_question_for_30_s),
        cmocka_unit_test(a_second_gap_within_a_second_is_asked_for_later),
        cmocka_unit_test(a_silent_replay_is_given_up),
        cmocka_unit_test(a_restart_drops_what_is_known),
        cmocka_unit_test(a_restart_shows_in_the_replay),
        cmocka_unit_test(a_live_batch_of_a_new_process_asks_for_its_first),
        cmocka_unit_test(numbers_that_fall_on_one_connection_are_a_restart),
        cmocka_unit_test(a_reconnection_continues_behind_the_last),
        cmocka_unit_test(a_connection_too_soon_for_a_question_is_checked_later),
        cmocka_unit_test(too_many_waiting_batches_end_the_wait),
        cmocka_unit_test(whatever_is_lost_batches_are_applied_in_order),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
