/* tests/unit/worker/sched/test_scheduler.c - thousands of random submits, cancels, steps and resets
 * against a device that is nothing but a note per KV slot: which prefix the token there ended.
 * After each step, every token that a scheduled row can see must carry the note of that row's own
 * prefix: so no block is read before it is written, handed out while in use, found under a wrong
 * prefix, or shared by a fork beyond what both have in common. Tokens come from the notes: what a
 * step computes behind a token that is not known yet is known here. */
#include <stdio.h>
#include <stdlib.h>

#include "common/base/rng.h"
#include "tests/support/sched_fixture.h"
#include "tests/support/support.h"

#define MAX_LIVE      40
#define MAX_IN_FLIGHT 2

struct scheduler_fixture {
    struct sched_fixture f;
    struct rng rng;
    uint32_t block_size, window;
    uint64_t *note, *host; /* per slot of the pool, and of the blocks in host memory */
    struct request *live[MAX_LIVE];
    uint32_t n_live;
    struct schedule flight[MAX_IN_FLIGHT];
    uint32_t n_flight;
    uint64_t n_tokens, n_done, n_cached, n_searches, n_forced, now_us;
};

static uint64_t chain(uint64_t before, uint32_t token) {
    return rng_mix(before ^ rng_mix(token));
}

static uint32_t token_after(uint64_t note) {
    return note % 16 == 0 ? FIXTURE_EOS : 100 + (uint32_t)(note % 3);
}

/* The note behind the token at position p, when `note` is the one before it. */
static uint64_t next_note(const struct request *r, uint32_t p, uint64_t note) {
    return chain(note, p < r->n_tokens ? r->tokens[p] : token_after(note));
}

static void move_notes(struct scheduler_fixture *w) {
    uint32_t n;
    const struct kv_move *moves = kv_manager_moves(w->f.kv, &n);

    for (uint32_t i = 0; i < n; i++) {
        size_t bytes = w->block_size * sizeof(*w->note);
        uint64_t *dst = (moves[i].kind == KV_MOVE_OUT ? w->host : w->note) +
                        (size_t)moves[i].dst * w->block_size;
        const uint64_t *src = (moves[i].kind == KV_MOVE_IN ? w->host : w->note) +
                              (size_t)moves[i].src * w->block_size;

        memmove(dst, src, bytes);
    }
    kv_manager_clear_moves(w->f.kv);
}

static void write_notes(struct scheduler_fixture *w, const struct schedule_entry *e) {
    uint64_t note = 0;

    for (uint32_t p = 0; p < e->first + e->n_tokens; p++) {
        note = next_note(e->request, p, note);
        if (p >= e->first)
            w->note[block_table_slot(&e->request->kv.table[0], p, w->block_size)] = note;
    }
}

static void read_notes(const struct scheduler_fixture *w, const struct schedule_entry *e) {
    uint32_t seen = w->window > 0 && e->first >= w->window ? e->first - w->window + 1 : 0;
    uint64_t note = 0;

    for (uint32_t p = 0; p < e->first + e->n_tokens; p++) {
        note = next_note(e->request, p, note);
        if (p < seen) continue;
        assert_true(w->note[block_table_slot(&e->request->kv.table[0], p, w->block_size)] == note);
    }
}

/* n requests of one prompt; all but the first may share what it computes. */
static void submit_samples(struct scheduler_fixture *w, const struct request_params *p,
                           uint32_t n) {
    struct request *parent = NULL, *r;

    for (uint32_t i = 0; i < n && w->n_live < MAX_LIVE; i++) {
        assert_int_equal(request_create(&r, p, &w->f.limits, NULL), ST_OK);
        r->arrival_us = w->now_us;
        if (parent) request_set_parent(r, parent);
        if (!parent) parent = r;
        assert_int_equal(scheduler_add(w->f.s, r, NULL), ST_OK);
        w->live[w->n_live++] = r;
    }
}

static void submit_search(struct scheduler_fixture *w, const struct request_params *params,
                          uint32_t width) {
    struct beam_params b = {.width = width,
                            .n = 1 + (uint32_t)rng_below(&w->rng, width),
                            .length_penalty = 1,
                            .stopping = (enum beam_stopping)rng_below(&w->rng, 3)};
    struct request_params p = *params;
    struct request *r[8];

    p.prompt_logprobs = -1;
    if (w->n_live + b.n > MAX_LIVE) return;
    if (beam_group_create(r, &p, &b, &w->f.limits, NULL) != ST_OK) return; /* wider than rows */
    if (scheduler_add(w->f.s, r[0], NULL) != ST_OK) {
        for (uint32_t i = 0; i < b.n; i++)
            request_unref(r[i]);
        return;
    }
    for (uint32_t i = 0; i < b.n; i++) {
        r[i]->arrival_us = w->now_us;
        if (i > 0) assert_int_equal(scheduler_add(w->f.s, r[i], NULL), ST_OK);
        w->live[w->n_live++] = r[i];
    }
    w->n_searches++;
}

static void submit(struct scheduler_fixture *w, const struct scheduler_options *o) {
    struct request_params p = request_params_default;
    uint32_t pool_tokens = block_pool_n_usable(kv_manager_pool(w->f.kv)) * w->block_size;
    uint32_t longest = MIN(o->max_model_len, pool_tokens) - 1;
    uint32_t n = 1 + (uint32_t)rng_below(&w->rng, rng_below(&w->rng, 4) ? longest / 4 : longest);
    uint32_t *prompt = mem_alloc(n * sizeof(*prompt)), family = (uint32_t)rng_below(&w->rng, 4);
    uint32_t differs_at = (uint32_t)rng_below(&w->rng, n + 1);

    for (uint32_t i = 0; i < n; i++)
        prompt[i] = i < differs_at ? family + 1 : 100 + (uint32_t)rng_below(&w->rng, 3);
    p.prompt = prompt;
    p.n_prompt = n;
    p.max_tokens = 1 + (uint32_t)rng_below(&w->rng, MIN(40, longest + 1 - n));
    p.priority = (int32_t)rng_below(&w->rng, rng_below(&w->rng, 2) ? 1 : 3);
    p.tenant = rng_below(&w->rng, 4);
    p.prompt_logprobs = rng_below(&w->rng, 8) == 0 ? 1 : -1;
    switch (rng_below(&w->rng, 4)) {
    case 0: submit_samples(w, &p, 1 + (uint32_t)rng_below(&w->rng, 5)); break;
    case 1: submit_search(w, &p, 1 + (uint32_t)rng_below(&w->rng, 5)); break;
    default: submit_samples(w, &p, 1);
    }
    mem_free(prompt);
}

static void schedule_one(struct scheduler_fixture *w, const struct scheduler_options *o) {
    struct schedule *s = &w->flight[w->n_flight];
    uint32_t n_tokens = 0, n_outputs = 0;
    bool must_run = w->n_flight == 0 && scheduler_has_work(w->f.s);

    w->now_us += rng_below(&w->rng, 200000);
    scheduler_step(w->f.s, s, w->now_us);
    scheduler_check(w->f.s);
    assert_true(s->n_entries > 0 || !must_run);
    for (uint32_t i = 0; i < s->n_entries; i++) {
        const struct schedule_entry *e = &s->entry[i];

        assert_true(e->n_tokens > 0 &&
                    e->first + e->n_tokens <= e->request->n_tokens + e->is_ahead);
        assert_true(o->long_prefill_token_threshold == 0 ||
                    e->n_tokens <= o->long_prefill_token_threshold);
        n_tokens += e->n_tokens;
        n_outputs += e->n_scores + e->is_sampled;
    }
    assert_int_equal(n_tokens, s->n_tokens);
    assert_int_equal(n_outputs, s->n_outputs);
    assert_true(n_tokens <= o->max_num_batched_tokens && n_outputs <= o->max_outputs);
    if (s->n_entries > 0) move_notes(w);
    for (uint32_t i = 0; i < s->n_entries; i++)
        write_notes(w, &s->entry[i]);
    for (uint32_t i = 0; i < s->n_entries; i++)
        read_notes(w, &s->entry[i]);
    w->n_tokens += n_tokens;
    w->n_cached += s->cached_tokens;
    if (s->n_entries > 0) w->n_flight++;
}

/* The end is among the alternatives, somewhere. */
static void take_beam(struct scheduler_fixture *w, const struct schedule_entry *e, uint64_t note) {
    uint32_t n = e->request->group->n_alternatives, end = (uint32_t)(note % 7);
    int32_t token[BEAM_CANDIDATES_MAX];
    float logprob[BEAM_CANDIDATES_MAX];

    for (uint32_t i = 0; i < n; i++) {
        token[i] = i == end ? (int32_t)FIXTURE_EOS : (int32_t)(100 + i);
        logprob[i] = -0.1f * (float)(i * (1 + note / 7 % 5)) - 0.001f * (float)(note % 11);
    }
    scheduler_take_beam(w->f.s, e, token, logprob, 1);
}

/* Tokens that must follow the sampled one: of requests that are never computed ahead. */
static void append_forced(struct scheduler_fixture *w, const struct schedule_entry *e) {
    struct request *r = e->request;

    if (!e->is_sampled || r->n_in_flight > 0 || rng_below(&w->rng, 4) > 0) return;
    for (uint64_t n = rng_below(&w->rng, 12); n > 0 && r->state != REQUEST_DONE; n--) {
        uint32_t token = 200 + (uint32_t)rng_below(&w->rng, 3);
        bool is_end = scheduler_append(w->f.s, r, token, 1);

        assert_int_equal(is_end, r->state == REQUEST_DONE);
        w->n_forced++;
    }
}

static void take_entry(struct scheduler_fixture *w, const struct schedule_entry *e) {
    uint64_t note = 0;

    for (uint32_t p = 0; p < e->first + e->n_tokens; p++)
        note = next_note(e->request, p, note);
    if (rng_below(&w->rng, 400) == 0) /* numbers that are not finite */
        scheduler_end(w->f.s, e->request, FINISH_ERROR, 1);
    if (request_is_beam(e->request)) {
        take_beam(w, e, note);
    } else {
        (void)scheduler_take(w->f.s, e, token_after(note), 1);
        append_forced(w, e);
    }
}

/* The oldest step in flight comes back. */
static void take_one(struct scheduler_fixture *w) {
    struct schedule done = w->flight[0];

    for (uint32_t i = 0; i < done.n_entries; i++)
        take_entry(w, &done.entry[i]);
    while (scheduler_pop_ended(w->f.s) != NULL) {
    }
    scheduler_check(w->f.s);
    scheduler_learn(w->f.s, &done, 1e-4 * (double)rng_below(&w->rng, 100));
    for (uint32_t i = 1; i < w->n_flight; i++)
        w->flight[i - 1] = w->flight[i];
    w->flight[--w->n_flight] = done;
}

/* A step in flight may yet name a beam. */
static bool is_in_flight(const struct request *r) {
    if (!r->group) return r->n_in_flight > 0;
    for (uint32_t i = 0; i < r->group->width; i++)
        if (r->group->beam[i]->n_in_flight > 0) return true;
    return false;
}

static void bury(struct scheduler_fixture *w) {
    for (uint32_t i = 0; i < w->n_live;) {
        struct request *r = w->live[i];

        if (r->state == REQUEST_DONE && !is_in_flight(r)) {
            assert_int_equal(r->kv.table[0].n_blocks, 0);
            assert_true(r->finish != FINISH_NONE);
            assert_true(!request_is_scored(r) || r->finish == FINISH_ABORT ||
                        r->finish == FINISH_ERROR || r->n_scored == r->n_prompt - 1);
            request_unref(r);
            w->live[i] = w->live[--w->n_live];
            w->n_done++;
        } else {
            i++;
        }
    }
}

static void random_run(uint64_t seed, uint32_t n_moves) {
    struct fixture_options o = fixture_defaults();
    struct scheduler_options *so = &o.scheduler;
    struct scheduler_fixture w = {0};
    uint64_t n_forks, n_swaps;

    rng_seed(&w.rng, seed);
    o.block_size = 1u << rng_below(&w.rng, 4);
    o.n_blocks = 8 + (uint32_t)rng_below(&w.rng, rng_below(&w.rng, 2) ? 60 : 12);
    o.watermark = (double)rng_below(&w.rng, 3) * 0.1;
    so->max_model_len = 16 + (uint32_t)rng_below(&w.rng, 200);
    so->max_num_seqs = 1 + (uint32_t)rng_below(&w.rng, 8);
    so->chunked_prefill = rng_below(&w.rng, 4) != 0;
    so->max_num_batched_tokens = so->chunked_prefill
                                     ? so->max_num_seqs + (uint32_t)rng_below(&w.rng, 64)
                                     : so->max_model_len + so->max_num_seqs;
    so->max_outputs = so->max_num_seqs + 1 + (uint32_t)rng_below(&w.rng, 20);
    so->long_prefill_token_threshold = rng_below(&w.rng, 3) ? 0 : 5;
    so->full_sequence_must_fit = rng_below(&w.rng, 2);
    so->policy = (enum scheduler_policy)rng_below(&w.rng, 3);
    so->itl_target_s = rng_below(&w.rng, 4) ? 0 : 0.001 * (double)rng_below(&w.rng, 30);
    so->prefill_tokens_per_s = rng_below(&w.rng, 2) ? 0 : 1000;
    so->attn_context = rng_below(&w.rng, 2) ? 0 : 50;
    so->async = rng_below(&w.rng, 2);
    so->preemption = (enum preemption_mode)rng_below(&w.rng, 3);
    o.n_host_blocks = rng_below(&w.rng, 2) ? (uint32_t)rng_below(&w.rng, 80) : 0;
    o.dedup = rng_below(&w.rng, 2);
    o.window = rng_below(&w.rng, 4) ? 0 : 1 + (uint32_t)rng_below(&w.rng, 40);
    fixture_open(&w.f, &o);
    w.block_size = o.block_size;
    w.window = o.window;
    w.note = mem_calloc((o.n_blocks + 1) * (size_t)o.block_size, sizeof(*w.note));
    w.host = mem_calloc((o.n_host_blocks + 1) * (size_t)o.block_size, sizeof(*w.host));
    for (int i = 0; i < MAX_IN_FLIGHT; i++)
        schedule_init(&w.flight[i], w.f.s);

    for (uint32_t i = 0; i < n_moves; i++) {
        uint64_t dice = rng_below(&w.rng, 100);

        if (dice < 20 && w.n_live < MAX_LIVE)
            submit(&w, so);
        else if (dice < 23 && w.n_live > 0)
            scheduler_end(w.f.s, w.live[rng_below(&w.rng, w.n_live)], FINISH_ABORT, 1);
        else if (dice < 24)
            (void)!scheduler_reset_prefix_cache(w.f.s, rng_below(&w.rng, 2));
        else if (dice < 62 && w.n_flight < MAX_IN_FLIGHT)
            schedule_one(&w, so);
        else if (w.n_flight > 0)
            take_one(&w);
        bury(&w);
    }
    /* Everything finishes: no request is stuck. */
    for (uint32_t i = 0; w.n_live > 0; i++) {
        assert_true(i < 100000);
        if (w.n_flight < MAX_IN_FLIGHT) schedule_one(&w, so);
        if (w.n_flight > 0) take_one(&w);
        bury(&w);
    }
    n_forks = scheduler_counts(w.f.s).forks;
    n_swaps = scheduler_counts(w.f.s).swap_outs;
    for (int i = 0; i < MAX_IN_FLIGHT; i++)
        schedule_fini(&w.flight[i]);
    fixture_close(&w.f);
    mem_free(w.note);
    mem_free(w.host);
    if (getenv("TEST_VERBOSE"))
        printf("seed %llu: %llu requests, %llu tokens, %llu forced, %llu cached, %llu forks, %llu "
               "searches, %llu swaps\n",
               (unsigned long long)seed, (unsigned long long)w.n_done,
               (unsigned long long)w.n_tokens, (unsigned long long)w.n_forced,
               (unsigned long long)w.n_cached, (unsigned long long)n_forks,
               (unsigned long long)w.n_searches, (unsigned long long)n_swaps);
}

static void random_work_keeps_every_invariant(void **state) {
    uint64_t seed = support_seed() * 1000;

    (void)state;
    for (uint32_t i = 0; i < 60; i++)
        random_run(seed + i, 1500);
}

static void options_are_checked(void **state) {
    struct scheduler_options o = scheduler_options_default;
    struct error err = {0};

    (void)state;
    o.max_model_len = 4096;
    assert_int_equal(scheduler_check_options(&o, &err), ST_OK);
    o.chunked_prefill = false;
    assert_int_equal(scheduler_check_options(&o, &err), ST_INVALID);
    assert_string_equal(err.param, "max-num-batched-tokens");
    o.chunked_prefill = true;
    o.max_num_batched_tokens = 100;
    assert_int_equal(scheduler_check_options(&o, &err), ST_INVALID);
    o.max_num_seqs = 0;
    assert_int_equal(scheduler_check_options(&o, &err), ST_INVALID);
    assert_string_equal(err.param, "max-num-seqs");
    o = scheduler_options_default;
    o.max_outputs = o.max_num_seqs;
    assert_int_equal(scheduler_check_options(&o, &err), ST_INVALID);
}

static void a_request_larger_than_the_pool_is_refused(void **state) {
    struct fixture_options o = fixture_defaults();
    struct sched_fixture f;
    struct request *r;
    struct error err = {0};

    (void)state;
    o.n_blocks = 4;
    fixture_open(&f, &o);
    r = fixture_request(&f, 49, 1, NULL); /* and 16 of output: 65 tokens, 64 slots */
    assert_int_equal(scheduler_add(f.s, r, &err), ST_TOO_LARGE);
    assert_non_null(strstr(err.message, "64"));
    assert_int_equal(r->state, REQUEST_NEW);
    request_unref(r);
    r = fixture_add(&f, 48, 1, NULL);
    fixture_close(&f);
    request_unref(r);
}

static void ended_in_flight_is_left_alone(void **state) {
    struct fixture_options o = fixture_defaults();
    struct sched_fixture f;
    struct request *r;

    (void)state;
    fixture_open(&f, &o);
    r = fixture_add(&f, 20, 1, NULL);
    fixture_step(&f);
    scheduler_end(f.s, r, FINISH_ABORT, 5);
    assert_false(scheduler_take(f.s, &f.step.entry[0], 7, 6));
    assert_int_equal(request_n_output(r), 0);
    assert_int_equal(r->finish, FINISH_ABORT);
    assert_int_equal(r->finished_us, 5);
    scheduler_end(f.s, r, FINISH_ERROR, 7); /* nothing happens to what is done */
    assert_int_equal(r->finish, FINISH_ABORT);
    fixture_close(&f);
    request_unref(r);
}

static void second_of_equal_prompts_hits_in_the_same_step(void **state) {
    struct fixture_options o = fixture_defaults();
    struct sched_fixture f;
    struct request *r[2];

    (void)state;
    fixture_open(&f, &o);
    for (uint32_t i = 0; i < 2; i++)
        r[i] = fixture_add(&f, 48, 1, NULL);
    fixture_step(&f);
    assert_int_equal(f.step.entry[0].n_tokens, 48);
    assert_int_equal(f.step.entry[1].first, 32); /* the last token, so its block, is recomputed */
    assert_int_equal(f.step.entry[1].n_tokens, 16);
    assert_int_equal(r[1]->cached_tokens, 32);
    assert_int_equal(f.step.prompt_tokens, 96);
    assert_int_equal(f.step.cached_prompt_tokens, 32);
    fixture_take(&f, 7);
    fixture_close(&f);
    request_unref(r[0]);
    request_unref(r[1]);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_work_keeps_every_invariant),
        cmocka_unit_test(options_are_checked),
        cmocka_unit_test(a_request_larger_than_the_pool_is_refused),
        cmocka_unit_test(ended_in_flight_is_left_alone),
        cmocka_unit_test(second_of_equal_prompts_hits_in_the_same_step),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
