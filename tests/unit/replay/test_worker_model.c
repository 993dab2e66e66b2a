/* tests/unit/replay/test_worker_model.c - one modelled worker: the order of its prompts, its target
 * for the time between tokens, its host memory, its speed. */
#include <math.h>

#include "common/base/rng.h"
#include "tests/replay/worker_model.h"
#include "tests/support/cm.h"

#define BLOCK 64
#define N_MAX 64

/* A worker and requests that are all there at the beginning. */
struct bench {
    struct worker_model w;
    struct workload_request in[N_MAX];
    struct model_request q[N_MAX];
    uint64_t names[N_MAX][64];
    double now_s, longest_step_s;
    uint32_t n;
};

static void ignore(void *ctx, struct model_request *q) {
    (void)ctx;
    (void)q;
}

static const struct worker_model_events no_events = {ignore, ignore, ignore, NULL};

static struct worker_options options_of(enum worker_order order) {
    return (struct worker_options){.cache_tokens = 1 << 20, .block_tokens = BLOCK, .order = order};
}

static void open_bench(struct bench *b, struct worker_options o) {
    *b = (struct bench){0};
    worker_model_init(&b->w, &o);
}

/* Its first n_named blocks are named from `text` on. */
static struct model_request *add(struct bench *b, uint32_t n_prompt, uint32_t n_output,
                                 uint64_t text, uint32_t n_named) {
    struct workload_request *in = &b->in[b->n];
    struct model_request *q = &b->q[b->n];

    for (uint32_t i = 0; i < n_named; i++)
        b->names[b->n][i] = workload_name(text + i);
    *in = (struct workload_request){.arrival_s = b->now_s,
                                    .n_prompt = n_prompt,
                                    .n_output = n_output,
                                    .n_blocks = n_named,
                                    .n_names = n_named,
                                    .chain = b->names[b->n]};
    model_request_init(q, in, b->n++, &b->w);
    worker_model_add(&b->w, q, b->now_s);
    return q;
}

static void step(struct bench *b) {
    b->longest_step_s = fmax(b->longest_step_s, b->w.step_end_s - b->now_s);
    b->now_s = b->w.step_end_s;
    worker_model_step(&b->w, &no_events, b->now_s);
    worker_model_check(&b->w);
}

static void run_until(struct bench *b, double until_s) {
    while (b->w.step_end_s < until_s)
        step(b);
}

static void close_bench(struct bench *b) {
    run_until(b, INFINITY);
    worker_model_fini(&b->w);
}

/* --- order ----------------------------------------------------------------------------------- */

static void srpt_lets_a_short_prompt_pass_a_long_one_between_chunks(void **state) {
    struct bench b;
    (void)state;

    for (int order = WORKER_FCFS; order <= WORKER_SRPT; order++) {
        struct model_request *large, *small;

        open_bench(&b, options_of((enum worker_order)order));
        large = add(&b, 20 * WORKER_CHUNK, 1, 0, 0);
        small = add(&b, 100, 1, 0, 0);
        run_until(&b, INFINITY);
        assert_int_equal(small->first_s < large->first_s, order == WORKER_SRPT);
        close_bench(&b);
    }
}

static void srpt_counts_what_is_left_of_a_prompt_in_progress(void **state) {
    struct model_request *nearly_done, *middle;
    struct bench b;
    (void)state;

    open_bench(&b, options_of(WORKER_SRPT));
    nearly_done = add(&b, 4 * WORKER_CHUNK, 1, 0, 0);
    for (int i = 0; i < 3; i++)
        step(&b);
    middle = add(&b, 2 * WORKER_CHUNK, 1, 0, 0);
    run_until(&b, INFINITY);
    assert_true(nearly_done->first_s < middle->first_s);
    close_bench(&b);
}

/* Two with 30 blocks in common, and one of 20: alone the second of the two would be longer. */
static void srpt_looks_up_again_what_is_cached_of_a_queued_prompt(void **state) {
    struct model_request *first, *shares, *other;
    struct bench b;
    (void)state;

    open_bench(&b, options_of(WORKER_SRPT));
    add(&b, 16 * WORKER_CHUNK, 1, 1000, 0);
    first = add(&b, 30 * BLOCK + 1, 1, 1, 30);
    shares = add(&b, 30 * BLOCK + 10, 1, 1, 30);
    other = add(&b, 31 * BLOCK, 1, 5000, 31);
    run_until(&b, INFINITY);
    assert_int_equal(shares->cached, 30 * BLOCK);
    assert_true(first->first_s <= shares->first_s && shares->first_s <= other->first_s);
    close_bench(&b);
}

/* One more short prompt at each step: without aging the long one would be last. */
static double long_wait_s(double aging) {
    struct worker_options o = options_of(WORKER_SRPT);
    struct model_request *large;
    struct bench b;
    double wait_s;

    o.aging = aging;
    open_bench(&b, o);
    large = add(&b, 3 * WORKER_CHUNK, 1, 0, 0);
    for (uint32_t i = 0; i < N_MAX - 2; i++) {
        add(&b, WORKER_CHUNK + 100, 1, 0, 0);
        step(&b);
    }
    run_until(&b, INFINITY);
    wait_s = large->first_s;
    close_bench(&b);
    return wait_s;
}

static void aging_bounds_how_long_a_long_prompt_is_passed(void **state) {
    (void)state;
    assert_true(long_wait_s(0) > 6);
    assert_true(long_wait_s(0.1) < 0.6 * long_wait_s(0));
}

/* Each is shorter than all before it, so each is started and none is finished. */
static void at_most_eight_prompts_are_in_progress(void **state) {
    struct bench b;
    uint32_t most = 0;
    (void)state;

    open_bench(&b, options_of(WORKER_SRPT));
    for (uint32_t i = 0; i < 20; i++) {
        add(&b, (60 - 2 * i) * WORKER_CHUNK, 1, 0, 0);
        step(&b);
        most = MAX(most, b.w.n_prefilling);
    }
    assert_int_equal(most, WORKER_PREFILLS_MAX);
    close_bench(&b);
}

static void srpt_conserves_blocks_where_memory_is_short(void **state) {
    struct worker_options o = options_of(WORKER_SRPT);
    struct bench b;
    struct rng r;
    (void)state;

    o.cache_tokens = 16384;
    open_bench(&b, o);
    rng_seed(&r, 5);
    for (uint32_t i = 0; i < N_MAX; i++) {
        uint32_t n_named = (uint32_t)rng_below(&r, 64);

        add(&b, n_named * BLOCK + 1 + (uint32_t)rng_below(&r, 6000),
            1 + (uint32_t)rng_below(&r, 99), rng_below(&r, 3) << 20, n_named);
        if (rng_below(&r, 2)) step(&b);
    }
    close_bench(&b);
}

/* --- what a step takes ----------------------------------------------------------------------- */

static double longest_step_s(double itl_s) {
    struct worker_options o = options_of(WORKER_SRPT);
    struct bench b;

    o.itl_s = itl_s;
    open_bench(&b, o);
    add(&b, 100, 500, 0, 0);
    step(&b);
    b.longest_step_s = 0;
    add(&b, 10 * WORKER_CHUNK, 1, 0, 0);
    step(&b);
    b.longest_step_s = 0;
    run_until(&b, INFINITY);
    close_bench(&b);
    return b.longest_step_s;
}

static void steps_keep_to_the_target_but_have_a_least_chunk(void **state) {
    (void)state;
    assert_true(longest_step_s(0) > 0.1);
    assert_true(longest_step_s(0.05) <= 0.051 && longest_step_s(0.05) > 0.045);
    assert_float_equal(longest_step_s(0.001), WORKER_STEP_S + WORKER_SEQ_S + 0.0105, 0.004);
}

static void a_slow_worker_takes_so_many_times_as_long(void **state) {
    double end_s[2];
    (void)state;

    for (int i = 0; i < 2; i++) {
        struct worker_options o = options_of(WORKER_FCFS);
        struct bench b;

        o.slow = i ? 2.5 : 0;
        open_bench(&b, o);
        add(&b, 5000, 10, 0, 0);
        run_until(&b, INFINITY);
        end_s[i] = b.now_s;
        close_bench(&b);
    }
    assert_float_equal(end_s[1], 2.5 * end_s[0], 1e-9);
}

/* --- host memory ----------------------------------------------------------------------------- */

/* A prompt, then others that evict it, then the prompt again: seconds to its first token. */
static struct model_request again_after_eviction(uint32_t host_tokens, double rate,
                                                 double *ttft_s) {
    struct worker_options o = options_of(WORKER_FCFS);
    struct model_request *again, out;
    struct bench b;

    o.cache_tokens = 8192;
    o.host_tokens = host_tokens;
    o.restore_tokens_per_s = rate;
    open_bench(&b, o);
    add(&b, 60 * BLOCK, 1, 1, 60);
    run_until(&b, INFINITY);
    for (uint64_t i = 1; i < 4; i++) {
        add(&b, 60 * BLOCK, 1, 1000 * i, 60);
        run_until(&b, INFINITY);
    }
    again = add(&b, 60 * BLOCK, 1, 1, 60);
    run_until(&b, INFINITY);
    *ttft_s = again->first_s - again->added_s;
    out = *again;
    close_bench(&b);
    return out;
}

static void what_was_evicted_is_restored_where_that_is_quicker(void **state) {
    double none_s, quick_s, slow_s;
    (void)state;

    assert_int_equal(again_after_eviction(0, 1e6, &none_s).cached, 0);
    assert_int_equal(again_after_eviction(1 << 20, 1e6, &quick_s).cached, 59 * BLOCK);
    assert_float_equal(quick_s, WORKER_STEP_S + 59 * BLOCK / 1e6 + BLOCK * WORKER_PREFILL_S, 1e-3);
    assert_int_equal(again_after_eviction(1 << 20, 1e3, &slow_s).cached, 0);
    assert_float_equal(slow_s, none_s, 1e-9);
}

/* --- from other workers ---------------------------------------------------------------------- */

static struct model_request *add_fetching(struct bench *b, uint32_t n_prompt, uint64_t text,
                                          uint32_t n_named, uint32_t fetch_to, double ready_s) {
    struct model_request *q = add(b, n_prompt, 1, text, n_named);

    /* as if it had been set before: nothing has looked at it yet, for another is computed */
    q->fetch_to = fetch_to;
    q->ready_s = ready_s;
    return q;
}

static void what_is_fetched_is_not_computed_and_is_cached(void **state) {
    struct model_request *q, *again;
    struct bench b;
    (void)state;

    open_bench(&b, options_of(WORKER_FCFS));
    add(&b, 2048, 1, 1000, 0);
    q = add_fetching(&b, 20 * BLOCK, 1, 19, 16 * BLOCK, 0.5);
    run_until(&b, INFINITY);
    assert_int_equal(q->fetched, 16 * BLOCK);
    assert_int_equal(q->cached, 16 * BLOCK);
    assert_float_equal(q->first_s, 0.5 + WORKER_STEP_S + worker_prefill_s(16 * BLOCK, 20 * BLOCK),
                       1e-9);
    again = add(&b, 20 * BLOCK, 1, 1, 19);
    run_until(&b, INFINITY);
    assert_int_equal(again->cached, 19 * BLOCK);
    close_bench(&b);
}

static void who_awaits_a_fetch_is_passed(void **state) {
    struct model_request *waiting, *other;
    struct bench b;
    (void)state;

    for (int order = WORKER_FCFS; order <= WORKER_SRPT; order++) {
        open_bench(&b, options_of((enum worker_order)order));
        add(&b, 2048, 1, 1000, 0);
        waiting = add_fetching(&b, 128, 1, 2, BLOCK, 3);
        other = add(&b, 4000, 1, 2000, 0);
        run_until(&b, INFINITY);
        assert_true(other->first_s < 1 && waiting->first_s > 3 && waiting->first_s < 3.1);
        close_bench(&b);
    }
}

/* What came by itself meanwhile is not brought. */
static void a_fetch_of_less_than_is_there_brings_nothing(void **state) {
    struct model_request *q;
    struct bench b;
    (void)state;

    open_bench(&b, options_of(WORKER_FCFS));
    add(&b, 10 * BLOCK, 1, 1, 9);
    q = add_fetching(&b, 12 * BLOCK, 1, 9, 4 * BLOCK, 1);
    run_until(&b, INFINITY);
    assert_int_equal(q->fetched, 0);
    assert_int_equal(q->cached, 9 * BLOCK);
    close_bench(&b);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(srpt_lets_a_short_prompt_pass_a_long_one_between_chunks),
        cmocka_unit_test(srpt_counts_what_is_left_of_a_prompt_in_progress),
        cmocka_unit_test(srpt_looks_up_again_what_is_cached_of_a_queued_prompt),
        cmocka_unit_test(aging_bounds_how_long_a_long_prompt_is_passed),
        cmocka_unit_test(at_most_eight_prompts_are_in_progress),
        cmocka_unit_test(srpt_conserves_blocks_where_memory_is_short),
        cmocka_unit_test(steps_keep_to_the_target_but_have_a_least_chunk),
        cmocka_unit_test(a_slow_worker_takes_so_many_times_as_long),
        cmocka_unit_test(what_was_evicted_is_restored_where_that_is_quicker),
        cmocka_unit_test(what_is_fetched_is_not_computed_and_is_cached),
        cmocka_unit_test(who_awaits_a_fetch_is_passed),
        cmocka_unit_test(a_fetch_of_less_than_is_there_brings_nothing),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
