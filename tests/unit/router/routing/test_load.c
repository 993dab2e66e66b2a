/* tests/unit/router/routing/test_load.c - what goes in comes out, and what it costs meanwhile. */
#include <string.h>

#include "common/base/rng.h"
#include "router/routing/load.h"
#include "tests/support/cm.h"

#define SECOND UINT64_C(1000000)

static const struct worker_spec plain = {
    .block_size = 10, .n_blocks = 100, .prefill_tokens_per_s = 100, .attn_context = 1000};

static void a_worker_is_eligible_iff_no_reason_is_set(void **state) {
    struct load l;
    (void)state;

    load_init(&l, 70);
    assert_int_equal(worker_mask_count(l.eligible.words, l.n_words), 0);
    load_set_reason(&l, 69, WORKER_UNHEALTHY, true);
    load_worker_up(&l, 69, &plain);
    load_worker_up(&l, 3, &plain);
    assert_int_equal(worker_mask_count(l.eligible.words, l.n_words), 1);
    load_set_reason(&l, 69, WORKER_DRAINING, true);
    load_set_reason(&l, 69, WORKER_UNHEALTHY, false);
    assert_false(worker_mask_has(l.eligible.words, 69));
    load_set_reason(&l, 69, WORKER_DRAINING, false);
    assert_true(worker_mask_has(l.eligible.words, 69));
    load_worker_down(&l, 69);
    assert_false(worker_mask_has(l.eligible.words, 69));
    load_check(&l);
    load_fini(&l);
}

static void prefill_is_linear_plus_attention(void **state) {
    struct load l;
    (void)state;

    load_init(&l, 1);
    load_worker_up(&l, 0, &plain);
    assert_float_equal(load_prefill_s(&l.workers[0], 0, 1000), 15, 1e-9); /* (1000 + 500) / 100 */
    assert_float_equal(load_prefill_s(&l.workers[0], 600, 1000), 4 + 3.2, 1e-9);
    assert_float_equal(
        load_prefill_s(&l.workers[0], 0, 600) + load_prefill_s(&l.workers[0], 600, 1000), 15, 1e-9);
    load_fini(&l);
}

static void the_wait_is_the_sent_work_less_the_progress_of_the_head(void **state) {
    struct load_ticket a = {0}, b = {0}, c = {0};
    struct load l;
    const struct load_worker *k;
    (void)state;

    load_init(&l, 1);
    load_worker_up(&l, 0, &plain);
    k = &l.workers[0];
    assert_float_equal(load_wait_s(k, 0), 0, 0);
    load_open(&l, &a, 0, 2.0, 200, 10 * SECOND);
    load_open(&l, &b, 0, 3.0, 300, 11 * SECOND);
    assert_float_equal(load_wait_s(k, 11 * SECOND), 4, 1e-9);
    assert_float_equal(load_wait_s(k, 90 * SECOND), 3, 1e-9); /* the head is late, not negative */
    load_first_token(&l, &a, 13 * SECOND);
    load_first_token(&l, &a, 14 * SECOND); /* twice is once */
    assert_float_equal(load_wait_s(k, 14 * SECOND), 2, 1e-9);
    load_open(&l, &c, 0, 1.0, 100, 14 * SECOND);
    load_close(&l, &c, 0, true,
               15 * SECOND); /* given up behind the head: the head's time goes on */
    assert_float_equal(load_wait_s(k, 15 * SECOND), 1, 1e-9);
    assert_int_equal(k->in_flight, 2);
    load_check(&l);
    load_close(&l, &b, 0, true, 15 * SECOND);
    load_close(&l, &a, 50, false, 15 * SECOND);
    assert_float_equal(load_wait_s(k, 15 * SECOND), 0, 0);
    assert_float_equal(k->resident_tokens, 0, 0);
    assert_int_equal(l.n_open, 0);
    load_check(&l);
    load_fini(&l);
}

static void memory_is_waited_for_only_when_it_is_short(void **state) {
    struct load_ticket t = {0};
    struct load l;
    (void)state;

    load_init(&l, 1);
    load_worker_up(&l, 0, &plain); /* 1000 tokens, 950 usable */
    l.mean_output_tokens = 100;
    l.mean_decode_s = 8;
    load_open(&l, &t, 0, 1, 699, 0); /* 799 resident */
    assert_float_equal(load_memory_wait_s(&l, &l.workers[0], 151), 0, 1e-9);
    assert_float_equal(load_memory_wait_s(&l, &l.workers[0], 251), 100.0 / 800 * 8, 1e-9);
    load_close(&l, &t, 0, true, 1);
    load_fini(&l);
}

static void only_finished_requests_change_the_means(void **state) {
    struct load_ticket t = {0};
    struct load l;
    (void)state;

    load_init(&l, 1);
    load_worker_up(&l, 0, &plain);
    load_open(&l, &t, 0, 1, 1, 0);
    load_first_token(&l, &t, SECOND);
    load_close(&l, &t, 1e6, true, 2 * SECOND);
    assert_float_equal(l.mean_output_tokens, 200, 0);
    load_open(&l, &t, 0, 1, 1, 0);
    load_first_token(&l, &t, SECOND);
    load_close(&l, &t, 300, false, 16 * SECOND);
    assert_float_equal(l.mean_output_tokens, 202, 1e-9);
    assert_float_equal(l.mean_decode_s, 5.2, 1e-9);
    load_fini(&l);
}

static void running_output_is_estimated_from_time(void **state) {
    struct load_ticket a = {0}, b = {0};
    struct load l;
    const struct load_worker *k;
    (void)state;

    load_init(&l, 1);
    load_worker_up(&l, 0, &plain);
    k = &l.workers[0];
    assert_float_equal(l.speed.quiet, 40, 1e-9); /* 200 tokens in 5 seconds */
    assert_float_equal(l.speed.busy, 4, 1e-9);
    assert_float_equal(load_growing_tokens(&l, k, 0), 0, 0);
    load_open(&l, &a, 0, 2.0, 200, SECOND);
    load_open(&l, &b, 0, 0, 200, SECOND);
    /* Half a block each, and what both will have generated when they have their first tokens. */
    assert_float_equal(load_growing_tokens(&l, k, 2 * SECOND), 10 + 4, 1e-9);
    assert_float_equal(load_growing_tokens(&l, k, 9 * SECOND), 10, 1e-9);
    load_first_token(&l, &a, 2 * SECOND);
    assert_float_equal(load_growing_tokens(&l, k, 3 * SECOND), 10 + 4, 1e-9);
    load_first_token(&l, &b, 3 * SECOND);
    assert_float_equal(load_growing_tokens(&l, k, 5 * SECOND), 10 + 4 + 4 * 40, 1e-9);
    assert_float_equal(load_growing_tokens(&l, k, 999999 * SECOND), 10 + 4 * l.mean_output_tokens,
                       1e-9); /* no more than two means each */
    load_close(&l, &a, 0, true, 5 * SECOND);
    assert_float_equal(load_growing_tokens(&l, k, 6 * SECOND), 5 + 3 * 40, 1e-9);
    load_close(&l, &b, 0, true, 6 * SECOND);
    assert_float_equal(load_growing_tokens(&l, k, 7 * SECOND), 0, 0);
    load_check(&l);
    load_fini(&l);
}

/* Each answer has one second beside nothing and `busy_s` beside a prompt, a hundred tokens a second
 * in the one and `busy_speed` in the other. */
static struct load_speed speed_of(double busy_s, double busy_speed) {
    struct load_ticket a = {0}, b = {0};
    struct load_speed speed;
    struct load l;

    load_init(&l, 1);
    load_worker_up(&l, 0, &plain);
    for (uint64_t i = 0; i < 400; i++) {
        uint64_t at = 1000 * i * SECOND, busy_us = (uint64_t)(busy_s * (double)(i % 7) * 1e6);

        load_open(&l, &a, 0, 1, 200, at);
        load_first_token(&l, &a, at);
        load_open(&l, &b, 0, 1, 200, at + SECOND);
        load_close(&l, &b, 0, true, at + SECOND + busy_us);
        load_close(&l, &a, 100 + busy_speed * (double)busy_us * 1e-6, false, at + SECOND + busy_us);
        load_check(&l);
    }
    speed = l.speed;
    load_fini(&l);
    return speed;
}

static void how_fast_busy_workers_generate_is_learned(void **state) {
    struct load_speed speed = speed_of(1, 30);
    (void)state;

    assert_float_equal(speed.quiet, 100, 2);
    assert_float_equal(speed.busy, 30, 1);
    speed = speed_of(1, 0);
    assert_float_equal(speed.quiet, 100, 2);
    assert_float_equal(speed.busy, 0, 1);
    speed = speed_of(0, 0); /* never seen: a tenth */
    assert_float_equal(speed.quiet, 100, 2);
    assert_float_equal(speed.busy, 10, 0.2);
}

static void a_full_worker_is_dropped_unless_all_are(void **state) {
    struct load_ticket t[9];
    struct worker_spec limited = plain;
    struct load l;
    uint64_t mask = 7;
    (void)state;

    limited.max_in_flight = 2;
    memset(t, 0, sizeof(t));
    load_init(&l, 4); /* worker 3 is absent */
    load_worker_up(&l, 0, &plain);
    load_worker_up(&l, 1, &limited);
    load_worker_up(&l, 2, &limited);
    for (uint32_t i = 0; i < 6; i++)
        load_open(&l, &t[i], i % 3, 1, 1, 0);
    assert_float_equal(load_mean_in_flight(&l), 2, 1e-9);
    load_drop_full(&l, &mask);
    assert_int_equal(mask, 1);
    mask = 6;
    load_drop_full(&l, &mask);
    assert_int_equal(mask, 6);
    load_close(&l, &t[1], 0, true, 0);
    load_drop_full(&l, &mask);
    assert_int_equal(mask, 2);
    load_worker_up(&l, 2, &plain); /* the limit is lifted */
    mask = 6;
    load_drop_full(&l, &mask);
    assert_int_equal(mask, 6);
    load_check(&l);
    for (uint32_t i = 0; i < 6; i++) {
        if (t[i].is_open) load_close(&l, &t[i], 0, true, 0);
    }
    load_fini(&l);
}

static uint32_t n_eased(struct load *l, uint32_t *which) {
    struct worker_mask eased;

    load_take_eased(l, &eased);
    *which = worker_mask_next(eased.words, l->n_words, 0);
    return worker_mask_count(eased.words, l->n_words);
}

static void each_event_that_eases_a_worker_is_told_once(void **state) {
    struct load_ticket a = {0}, b = {0};
    struct load l;
    uint32_t w;
    (void)state;

    load_init(&l, 70);
    for (uint32_t i = 0; i < 70; i++)
        load_worker_up(&l, i, &plain);
    assert_int_equal(n_eased(&l, &w), 70);
    load_open(&l, &a, 3, 1, 100, SECOND);
    load_open(&l, &b, 69, 1, 100, SECOND);
    assert_int_equal(n_eased(&l, &w), 0);
    load_first_token(&l, &a, 2 * SECOND);
    assert_int_equal(n_eased(&l, &w), 1);
    assert_int_equal(w, 3);
    load_close(&l, &a, 10, false, 3 * SECOND); /* less beside it */
    load_close(&l, &b, 0, true, 3 * SECOND);
    assert_int_equal(n_eased(&l, &w), 2);
    load_set_reason(&l, 5, WORKER_DRAINING, true);
    assert_int_equal(n_eased(&l, &w), 0);
    load_set_reason(&l, 5, WORKER_DRAINING, false);
    assert_int_equal(n_eased(&l, &w), 1);
    assert_int_equal(w, 5);
    load_fini(&l);
}

static void a_worker_with_enough_has_no_room_and_may_yet_be_picked(void **state) {
    struct worker_spec bounded = plain;
    struct load_ticket t[4];
    struct worker_mask room;
    struct load l;
    uint64_t mask;
    (void)state;

    bounded.enough_in_flight = 2;
    bounded.max_in_flight = 3;
    memset(t, 0, sizeof(t));
    load_init(&l, 2);
    load_worker_up(&l, 0, &bounded);
    load_worker_up(&l, 1, &bounded);
    for (uint32_t i = 0; i < 3; i++) {
        load_get_room(&l, &room, 0);
        assert_int_equal(room.words[0], i < 2 ? 3 : 2);
        load_open(&l, &t[i], 0, 1, 1, 0);
        mask = 3;
        load_drop_full(&l, &mask);
        assert_int_equal(mask, i < 2 ? 3 : 2);
    }
    assert_true(load_has_room(&l, 0));
    load_set_reason(&l, 1, WORKER_DRAINING, true);
    assert_false(load_has_room(&l, 0));
    load_close(&l, &t[2], 1, false, 1);
    load_close(&l, &t[1], 1, false, 1);
    assert_true(load_has_room(&l, 0));
    load_open(&l, &t[3], 0, 1, 1, 1);
    assert_false(load_has_room(&l, 0));
    load_check(&l);
    load_close(&l, &t[0], 1, false, 2);
    load_close(&l, &t[3], 1, false, 2);
    load_fini(&l);
}

static void random_traffic_keeps_the_sums(void **state) {
    struct load_ticket t[50];
    struct load l;
    struct rng r;
    uint64_t now_us = 0;
    (void)state;

    memset(t, 0, sizeof(t));
    rng_seed(&r, 1);
    load_init(&l, 5);
    for (uint32_t w = 0; w < 5; w++)
        load_worker_up(&l, w, &plain);
    for (int step = 0; step < 100000; step++) {
        struct load_ticket *q = &t[rng_below(&r, ARRAY_LEN(t))];

        now_us += rng_below(&r, 50000);
        if (!q->is_open)
            load_open(&l, q, (uint32_t)rng_below(&r, 5), rng_f64(&r), rng_f64(&r) * 1000, now_us);
        else if (rng_below(&r, 2))
            load_first_token(&l, q, now_us);
        else if (q->is_pending && rng_below(&r, 2))
            load_park(&l, q, now_us);
        else if (q->is_parked && rng_below(&r, 2))
            load_unpark(&l, q, now_us);
        else
            load_close(&l, q, rng_f64(&r) * 100, rng_below(&r, 2), now_us);
        for (uint32_t w = 0; w < 5; w++)
            assert_true(load_wait_s(&l.workers[w], now_us) >= -1e-6);
        load_check(&l);
    }
    for (size_t i = 0; i < ARRAY_LEN(t); i++) {
        if (t[i].is_open) load_close(&l, &t[i], 0, true, now_us);
    }
    assert_int_equal(l.n_open, 0);
    load_check(&l);
    load_fini(&l);
}

static void a_parked_prompt_is_no_wait_and_returns_behind_the_others(void **state) {
    struct load_ticket a = {0}, b = {0};
    struct load l;
    (void)state;

    load_init(&l, 1);
    load_worker_up(&l, 0, &plain);
    load_open(&l, &a, 0, 2.0, 200, 0);
    load_open(&l, &b, 0, 1.0, 100, 0);
    load_park(&l, &a, SECOND);
    assert_float_equal(load_wait_s(&l.workers[0], SECOND), 1, 1e-9);
    assert_int_equal(l.workers[0].in_flight, 2);
    assert_true(l.workers[0].resident_tokens >= 300);
    load_unpark(&l, &a, 2 * SECOND);
    assert_float_equal(load_wait_s(&l.workers[0], 2 * SECOND), 2, 1e-9); /* b is done */
    load_check(&l);
    load_park(&l, &a, 2 * SECOND);
    load_first_token(&l, &a, 4 * SECOND);
    assert_true(a.first_us == 4 * SECOND);
    load_first_token(&l, &b, 4 * SECOND);
    load_close(&l, &a, 5, false, 5 * SECOND);
    load_close(&l, &b, 5, false, 5 * SECOND);
    assert_int_equal(l.n_open, 0);
    load_check(&l);
    load_fini(&l);
}

static struct worker_spec of_role(uint8_t role, uint8_t handover) {
    struct worker_spec spec = plain;

    spec.role = role;
    spec.handover = handover;
    return spec;
}

static void a_prefill_worker_answers_only_while_no_other_can(void **state) {
    struct worker_spec p = of_role(WORKER_PREFILL, HANDOVER_NIXL);
    struct worker_spec d = of_role(WORKER_DECODE, HANDOVER_NIXL);
    struct load l;
    (void)state;

    load_init(&l, 70);
    load_worker_up(&l, 1, &p);
    assert_true(worker_mask_has(l.eligible.words, 1)); /* alone, it must */
    load_worker_up(&l, 69, &d);
    assert_false(worker_mask_has(l.eligible.words, 1));
    assert_true(worker_mask_has(l.eligible.words, 69));
    assert_true(worker_mask_has(l.prefills.words, 1));
    assert_false(worker_mask_has(l.prefills.words, 69));
    assert_int_equal(l.n_eligible, 1);
    load_set_reason(&l, 69, WORKER_EJECTED, true);
    assert_true(worker_mask_has(l.eligible.words, 1));
    load_set_reason(&l, 69, WORKER_EJECTED, false);
    load_worker_up(&l, 1, &plain); /* its role has changed */
    assert_int_equal(l.n_eligible, 2);
    load_check(&l);
    load_fini(&l);
}

static void a_prefill_worker_of_ours_answers_while_it_gets_few_legs(void **state) {
    struct worker_spec p = of_role(WORKER_PREFILL, HANDOVER_PEER);
    struct worker_spec d = of_role(WORKER_DECODE, HANDOVER_PEER);
    struct load_ticket t = {0};
    struct load l;
    (void)state;

    load_init(&l, 2);
    load_worker_up(&l, 0, &p);
    load_worker_up(&l, 1, &d);
    load_look_at_legs(&l, SECOND);
    assert_int_equal(l.n_eligible, 1); /* until it is known what comes */
    load_look_at_legs(&l, 30 * SECOND);
    assert_int_equal(l.n_eligible, 1);
    load_look_at_legs(&l, 32 * SECOND);
    assert_int_equal(l.n_eligible, 2);
    assert_true(worker_mask_has(l.prefills.words, 0)); /* it gets legs still */
    for (int i = 0; i < 100; i++)
        load_note_leg(&l, 0, 0.1, 33 * SECOND); /* short ones */
    load_check(&l);
    assert_int_equal(l.n_eligible, 2);
    assert_float_equal(load_held_up(&l, 0, 0.1), 0, 0);
    load_open(&l, &t, 0, 0.1, 1, 33 * SECOND);
    load_first_token(&l, &t, 33 * SECOND);
    assert_float_equal(load_held_up(&l, 0, 0.1), 1, 0);
    assert_float_equal(load_held_up(&l, 0, 2), 0, 0); /* this one reserves it */
    load_close(&l, &t, 1, false, 33 * SECOND);
    load_note_leg(&l, 0, 2, 34 * SECOND);
    load_check(&l);
    assert_false(worker_mask_has(l.eligible.words, 0));
    load_set_reason(&l, 1, WORKER_EJECTED, true);
    assert_true(worker_mask_has(l.eligible.words, 0)); /* no other can */
    load_set_reason(&l, 1, WORKER_EJECTED, false);
    load_end_legs(&l, 0);
    assert_int_equal(l.n_eligible, 2);
    load_note_leg(&l, 0, 2, 35 * SECOND);
    assert_int_equal(l.n_eligible, 1);
    load_look_at_legs(&l, 200 * SECOND);
    assert_int_equal(l.n_eligible, 2);
    load_worker_down(&l, 0);
    load_worker_up(&l, 0, &p); /* another one */
    assert_false(worker_mask_has(l.eligible.words, 0));
    load_check(&l);
    load_fini(&l);
}

static void a_worker_whose_engines_are_unknown_prefills_for_nobody(void **state) {
    struct worker_spec p = of_role(WORKER_PREFILL, HANDOVER_MOONCAKE);
    struct worker_spec d = of_role(WORKER_DECODE, HANDOVER_MOONCAKE);
    struct load l;
    (void)state;

    load_init(&l, 2);
    p.lacks_engines = d.lacks_engines = true;
    load_worker_up(&l, 0, &p);
    load_worker_up(&l, 1, &d);
    assert_false(worker_mask_has(l.prefills.words, 0));
    assert_true(worker_mask_has(l.eligible.words, 1)); /* who decodes needs no id of its own */
    assert_false(worker_mask_has(l.eligible.words, 0));
    p.lacks_engines = false;
    load_worker_up(&l, 0, &p);
    assert_true(worker_mask_has(l.prefills.words, 0));
    load_check(&l);
    load_fini(&l);
}

static void a_worker_that_must_be_fed_waits_for_one_that_prefills(void **state) {
    struct worker_spec p = of_role(WORKER_PREFILL, HANDOVER_BOOTSTRAP);
    struct worker_spec d = of_role(WORKER_DECODE, HANDOVER_BOOTSTRAP);
    struct load l;
    (void)state;

    load_init(&l, 3);
    load_worker_up(&l, 0, &d);
    assert_int_equal(l.n_eligible, 0);
    load_worker_up(&l, 1, &p);
    assert_true(worker_mask_has(l.eligible.words, 0));
    assert_false(worker_mask_has(l.eligible.words, 1));
    load_worker_down(&l, 0);
    assert_int_equal(l.n_eligible, 0); /* it answers nobody by itself */
    load_worker_up(&l, 2, &plain);
    assert_int_equal(l.n_eligible, 1);
    load_check(&l);
    load_fini(&l);
}

/* Opens requests on `w` until it is dropped from the mask; how many it had then. */
static uint32_t fill_until_dropped(struct load *l, uint32_t w, struct load_ticket *t, uint32_t most,
                                   uint64_t now_us) {
    for (uint32_t n = 0; n < most; n++) {
        struct worker_mask mask = l->eligible;

        load_drop_ramping(l, mask.words, now_us);
        if (!worker_mask_has(mask.words, w)) return n;
        load_open(l, &t[n], w, 1, 1, now_us);
    }
    return most;
}

static void close_all(struct load *l, struct load_ticket *t, uint32_t n) {
    for (uint32_t i = 0; i < n; i++)
        load_close(l, &t[i], 1, false, 1);
}

static void a_new_worker_is_given_more_and_more(void **state) {
    struct load_ticket old[40] = {{{0}}}, t[40] = {{{0}}};
    uint32_t early, late;
    struct load l;
    (void)state;

    load_init(&l, 3);
    l.slow_start_us = 10000000;
    for (uint32_t w = 0; w < 3; w++)
        load_worker_up(&l, w, &plain);
    for (int i = 0; i < 40; i++)
        load_open(&l, &old[i], (uint32_t)i % 2, 1, 1, 5);
    load_begin_slow_start(&l, 2, 1000000);

    early = fill_until_dropped(&l, 2, t, 40, 1000000);
    close_all(&l, t, early);
    assert_int_equal(early, 2); /* a tenth of 14 is more than 1 */
    late = fill_until_dropped(&l, 2, t, 40, 6000000);
    close_all(&l, t, late);
    assert_in_range(late, 6, 12);
    assert_int_equal(fill_until_dropped(&l, 2, t, 40, 11000000), 40); /* over */
    close_all(&l, t, 40);
    assert_false(worker_mask_has(l.ramping.words, 2));
    load_check(&l);
    close_all(&l, old, 40);
    load_fini(&l);
}

static void a_fleet_that_starts_together_starts(void **state) {
    struct load_ticket t[40] = {{{0}}};
    struct worker_mask mask;
    struct load l;
    (void)state;

    load_init(&l, 3);
    l.slow_start_us = 10000000;
    for (uint32_t w = 0; w < 3; w++) {
        load_worker_up(&l, w, &plain);
        load_begin_slow_start(&l, w, 1000000 + w);
    }
    assert_int_equal(fill_until_dropped(&l, 0, t, 40, 1000005), 40);
    close_all(&l, t, 40);
    load_set_reason(&l, 1, WORKER_DISABLED, true);
    load_set_reason(&l, 2, WORKER_DISABLED, true);
    load_begin_slow_start(&l, 0, 1000000);
    assert_int_equal(fill_until_dropped(&l, 0, t, 40, 1000005), 40); /* alone: it must do */
    close_all(&l, t, 40);

    l.slow_start_us = 0;
    load_begin_slow_start(&l, 1, 0); /* turned off: nothing */
    mask = l.eligible;
    load_drop_ramping(&l, mask.words, 5000000000);
    assert_true(worker_mask_has(mask.words, 0));
    load_fini(&l);
}

/* Or those who wait would be let in for it, and sent to the others. */
static void a_slow_start_that_has_its_share_is_no_room(void **state) {
    struct worker_spec bounded = plain;
    struct load_ticket t[5] = {{{0}}};
    struct worker_mask room;
    struct load l;
    (void)state;

    bounded.enough_in_flight = 2;
    bounded.max_in_flight = 4;
    load_init(&l, 2);
    l.slow_start_us = 10000000;
    load_worker_up(&l, 0, &bounded);
    load_worker_up(&l, 1, &bounded);
    load_begin_slow_start(&l, 1, 1000000);
    for (int i = 0; i < 4; i++)
        load_open(&l, &t[i], 0, 1, 1, 1000000);
    assert_true(load_has_room(&l, 1000000));
    load_open(&l, &t[4], 1, 1, 1, 1000000);
    load_get_room(&l, &room, 1000000);
    assert_int_equal(room.words[0], 0);
    assert_false(load_has_room(&l, 1000000)); /* though worker 0 is full */
    assert_true(load_has_room(&l, 11000000)); /* it is over */
    load_begin_slow_start(&l, 0, 1000000);
    assert_true(load_has_room(&l, 1000000)); /* all are in theirs */
    load_worker_down(&l, 1);
    assert_false(load_has_room(&l, 1000000));
    load_check(&l);
    close_all(&l, t, 5);
    load_fini(&l);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_worker_is_eligible_iff_no_reason_is_set),
        cmocka_unit_test(prefill_is_linear_plus_attention),
        cmocka_unit_test(the_wait_is_the_sent_work_less_the_progress_of_the_head),
        cmocka_unit_test(memory_is_waited_for_only_when_it_is_short),
        cmocka_unit_test(only_finished_requests_change_the_means),
        cmocka_unit_test(running_output_is_estimated_from_time),
        cmocka_unit_test(how_fast_busy_workers_generate_is_learned),
        cmocka_unit_test(a_full_worker_is_dropped_unless_all_are),
        cmocka_unit_test(a_worker_with_enough_has_no_room_and_may_yet_be_picked),
        cmocka_unit_test(a_new_worker_is_given_more_and_more),
        cmocka_unit_test(a_fleet_that_starts_together_starts),
        cmocka_unit_test(a_slow_start_that_has_its_share_is_no_room),
        cmocka_unit_test(each_event_that_eases_a_worker_is_told_once),
        cmocka_unit_test(random_traffic_keeps_the_sums),
        cmocka_unit_test(a_parked_prompt_is_no_wait_and_returns_behind_the_others),
        cmocka_unit_test(a_prefill_worker_answers_only_while_no_other_can),
        cmocka_unit_test(a_prefill_worker_of_ours_answers_while_it_gets_few_legs),
        cmocka_unit_test(a_worker_whose_engines_are_unknown_prefills_for_nobody),
        cmocka_unit_test(a_worker_that_must_be_fed_waits_for_one_that_prefills),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
