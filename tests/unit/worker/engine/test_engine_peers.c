/* tests/unit/worker/engine/test_engine_peers.c - what one engine has computed, another takes from
 * its memory: the same answers as computed, whatever becomes of the one that has it. */
#include <string.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/rng.h"
#include "tests/support/cm.h"
#include "tests/support/engine_peer.h"
#include "tests/support/late_backend.h"

#define N_PROMPTS 6
#define BLOCK     16u
#define COMMON    48u /* tokens that all prompts begin with */
#define N_ANSWER  8u

static const uint8_t fleet_key[1][32] = {{3}};

static const struct machine machines[] = {
    {.ops = &backend_ref, .kv_dtype = DTYPE_F32},   {.ops = &backend_ref, .kv_dtype = DTYPE_BF16},
    {.ops = &backend_cpu, .kv_dtype = DTYPE_BF16},  {.ops = &backend_cpu, .kv_dtype = DTYPE_F8E4M3},
    {.ops = &backend_late, .kv_dtype = DTYPE_BF16},
};

struct prompts {
    uint32_t token[N_PROMPTS][CONTEXT], n[N_PROMPTS];
    uint32_t n_blocks; /* different ones that a prompt can find */
    struct answer answer[N_PROMPTS];
};

static struct prompts prompts;

static void draw_prompts(struct prompts *p, uint64_t seed) {
    struct rng rng;

    memset(p, 0, sizeof(*p));
    rng_seed(&rng, seed);
    p->n_blocks = COMMON / BLOCK;
    for (uint32_t i = 0; i < N_PROMPTS; i++) {
        p->n[i] = COMMON + 2 * BLOCK + (uint32_t)rng_below(&rng, 90);
        p->n_blocks += (p->n[i] - 1) / BLOCK - COMMON / BLOCK;
        for (uint32_t t = 0; t < p->n[i]; t++)
            p->token[i][t] = t < COMMON ? t % 100 : (uint32_t)rng_below(&rng, 130);
    }
}

static struct request_params params_of(const struct prompts *p, uint32_t i,
                                       const struct tier_source *source) {
    struct request_params params = request_params_default;

    params.prompt = p->token[i];
    params.n_prompt = p->n[i];
    params.max_tokens = N_ANSWER;
    params.ignore_eos = true;
    params.n_logprobs = 2;
    params.seed = i;
    if (source) {
        params.kv_source = *source;
        params.kv_source.n_tokens = p->n[i];
    }
    return params;
}

/* Device blocks for little more than one sequence, host memory for most of all. */
static struct setup setup_of(const struct machine *m) {
    late_plan_set(&(struct late_plan){.seed = support_seed()});
    return (struct setup){
        .machine = *m, .n_blocks = 30, .host_blocks = 80, .budget = 64, .max_seqs = 8};
}

/* wait_us: 0 for an hour. */
static void worker_open_waiting(struct peer_worker *w, const struct machine *m, uint64_t generation,
                                bool is_sealed, bool shares, uint64_t wait_us) {
    struct setup s = setup_of(m);

    s.shares_host_pool = shares;
    s.tier_wait_us = wait_us;
    s.fleet_key = is_sealed ? fleet_key : NULL;
    peer_worker_open(w, &s, generation, PEER_TEST_PATIENT);
}

static void worker_open(struct peer_worker *w, const struct machine *m, uint64_t generation,
                        bool is_sealed, bool shares) {
    worker_open_waiting(w, m, generation, is_sealed, shares, 0);
}

static void run_each(struct engine_fixture *w, const struct prompts *p,
                     const struct tier_source *source, struct answer *answers) {
    for (uint32_t i = 0; i < N_PROMPTS; i++) {
        struct request_params params = params_of(p, i, source);

        submit(w, &params, &answers[i]);
        fixture_run(w);
    }
}

static void submit_all(struct engine_fixture *w, const struct prompts *p,
                       const struct tier_source *source, struct answer *answers) {
    for (uint32_t i = 0; i < N_PROMPTS; i++) {
        struct request_params params = params_of(p, i, source);

        submit(w, &params, &answers[i]);
    }
}

static void compute_answers(const struct machine *m, struct prompts *p) {
    struct setup s = setup_of(m);
    struct engine_fixture w;

    fixture_open(&w, &s);
    run_each(&w, p, NULL, p->answer);
    fixture_close(&w);
}

static void assert_answers(const struct prompts *p, const struct answer *answers, const char *how) {
    for (uint32_t i = 0; i < N_PROMPTS; i++)
        assert_same(&p->answer[i], &answers[i], how, i);
}

static void fetched_answers_are_those_computed(void **state) {
    (void)state;
    for (size_t i = 0; i < 2 * ARRAY_LEN(machines); i++) {
        struct answer there[N_PROMPTS] = {{.n = 0}}, here[N_PROMPTS] = {{.n = 0}};
        static struct peer_worker source, sink;
        uint64_t n_cached = 0, n_could = 0;
        struct peer_server_stats served;
        bool shares = i % 2;
        size_t m = i / 2;

        draw_prompts(&prompts, support_seed() + m);
        compute_answers(&machines[m], &prompts);
        worker_open(&source, &machines[m], 1, m % 2, shares);
        worker_open(&sink, &machines[m], 2, m % 2, shares);
        run_each(&source.engine, &prompts, NULL, there);
        run_each(&sink.engine, &prompts, &source.door.source, here);
        assert_answers(&prompts, here, "fetched");
        for (uint32_t k = 0; k < N_PROMPTS; k++) {
            n_cached += here[k].cached_tokens;
            n_could += (prompts.n[k] - 1) / BLOCK * BLOCK;
        }
        peer_server_stats(source.peers, &served);
        assert_int_equal(shares ? served.placed_units : served.sent_units, prompts.n_blocks);
        assert_int_equal(shares ? served.sent_units : served.placed_units, 0);
        assert_int_equal(n_cached, n_could);
        assert_int_equal(stats_of(&sink.engine).tiers[0].restored_tokens, prompts.n_blocks * BLOCK);
        assert_at_rest(&source.engine);
        assert_at_rest(&sink.engine);
        peer_worker_close(&sink);
        peer_worker_close(&source);
    }
}

/* At any moment of it. */
static void a_source_that_ends_costs_no_answer(void **state) {
    struct rng rng;

    (void)state;
    rng_seed(&rng, support_seed());
    draw_prompts(&prompts, support_seed());
    compute_answers(&machines[4], &prompts);
    for (int round = 0; round < 12; round++) {
        struct answer there[N_PROMPTS] = {{.n = 0}}, here[N_PROMPTS] = {{.n = 0}};
        static struct peer_worker source, sink;
        uint64_t n_turns = rng_below(&rng, 40);

        worker_open(&source, &machines[4], 1, true, round % 2);
        worker_open(&sink, &machines[4], 2, true, round % 2);
        run_each(&source.engine, &prompts, NULL, there);
        submit_all(&sink.engine, &prompts, &source.door.source, here);
        for (uint64_t i = 0; i < n_turns; i++)
            loop_turn(sink.engine.loop, 200);
        peer_worker_close(&source);
        fixture_run(&sink.engine);
        assert_answers(&prompts, here, "while the source ended");
        assert_at_rest(&sink.engine);
        peer_worker_close(&sink);
    }
}

static void a_sink_that_ends_leaves_no_block_pinned(void **state) {
    struct rng rng;

    (void)state;
    rng_seed(&rng, support_seed());
    draw_prompts(&prompts, support_seed());
    for (int round = 0; round < 6; round++) {
        struct answer there[N_PROMPTS] = {{.n = 0}}, here[N_PROMPTS] = {{.n = 0}};
        static struct peer_worker source, sink;
        uint64_t n_turns = rng_below(&rng, 20);
        struct request *asked[N_PROMPTS];

        worker_open(&source, &machines[4], 1, true, round % 2);
        worker_open(&sink, &machines[4], 2, true, round % 2);
        run_each(&source.engine, &prompts, NULL, there);
        sink.engine.lets_go = true;
        for (uint32_t i = 0; i < N_PROMPTS; i++) {
            struct request_params params = params_of(&prompts, i, &source.door.source);

            asked[i] = submit(&sink.engine, &params, &here[i]);
        }
        for (uint64_t i = 0; i < n_turns; i++)
            loop_turn(sink.engine.loop, 200);
        peer_worker_close(&sink);
        for (uint32_t i = 0; i < N_PROMPTS; i++)
            request_unref(asked[i]);
        assert_at_rest(&source.engine);
        peer_worker_close(&source);
    }
}

/* Neither has anything, and the request to each names the other. */
static void two_that_name_each_other_both_compute(void **state) {
    struct answer first[N_PROMPTS] = {{.n = 0}}, second[N_PROMPTS] = {{.n = 0}};
    static struct peer_worker a, b;

    (void)state;
    draw_prompts(&prompts, support_seed());
    compute_answers(&machines[1], &prompts);
    worker_open(&a, &machines[1], 1, true, true);
    worker_open(&b, &machines[1], 2, true, true);
    submit_all(&a.engine, &prompts, &b.door.source, first);
    submit_all(&b.engine, &prompts, &a.door.source, second);
    fixture_run(&a.engine);
    fixture_run(&b.engine);
    assert_answers(&prompts, first, "of the first");
    assert_answers(&prompts, second, "of the second");
    assert_at_rest(&a.engine);
    assert_at_rest(&b.engine);
    peer_worker_close(&a);
    peer_worker_close(&b);
}

/* The outer keys of the first blocks of a prompt, as a sink without a fleet key names them. */
static void name_blocks(const struct unit_codec_config *form, const uint32_t *tokens,
                        struct peer_asked *asked) {
    static const uint8_t salt[UNIT_KEY_BYTES], extras[UNIT_DIGEST_BYTES];
    struct unit_key parent;

    unit_chain_root(NULL, form->fingerprint, salt, &parent);
    for (uint32_t i = 0; i < asked->n; i++) {
        unit_chain_next(NULL, &parent, tokens + i * BLOCK, BLOCK, extras, &asked->keys[i]);
        parent = asked->keys[i];
    }
}

/* They have no credit, so that nothing that is pinned for them can be sent. */
static void a_thousand_wants_pin_a_part_of_host_memory(void **state) {
    struct answer there[N_PROMPTS] = {{.n = 0}}, here[N_PROMPTS] = {{.n = 0}};
    struct peer_asked asked = {.patience_us = UINT64_MAX, .n = COMMON / BLOCK};
    struct setup s = setup_of(&machines[1]);
    static struct peer_worker source, sink;
    static struct peer_desk desk;
    uint32_t n_busy = 0, n_have = 0, n_pinned = 0;
    struct peer_frame f;
    uint8_t body[256];
    int fd;

    (void)state;
    draw_prompts(&prompts, support_seed());
    compute_answers(&machines[1], &prompts);
    worker_open(&source, &machines[1], 1, false, false);
    run_each(&source.engine, &prompts, NULL, there);
    desk.source = source.door.source;
    desk.form = source.form;
    name_blocks(&desk.form, prompts.token[0], &asked);
    fd = peer_connect(&desk);
    peer_greet_as_sink(&desk, fd);
    for (uint16_t i = 0; i < 1000; i++)
        peer_write(fd, PEER_WANT, i, &asked, PEER_ASKED_BYTES(asked.n));
    while (n_busy + n_have < 1000) {
        assert_true(peer_read(fd, &f, body));
        if (f.type == PEER_HAVE) n_pinned += peer_read_number(&f);
        n_have += f.type == PEER_HAVE;
        n_busy += f.type == PEER_END && peer_read_number(&f) == TIER_BUSY;
    }
    assert_in_range(n_pinned, 1, s.host_blocks / 4);
    close(fd);
    assert_at_rest(&source.engine);
    worker_open(&sink, &machines[1], 2, false, false);
    run_each(&sink.engine, &prompts, &source.door.source, here);
    assert_answers(&prompts, here, "behind a thousand questions");
    assert_int_equal(stats_of(&sink.engine).tiers[0].restored_tokens, prompts.n_blocks * BLOCK);
    peer_worker_close(&sink);
    peer_worker_close(&source);
}

/* Its cache was reset: what it had before has other names. */
static void a_source_that_was_reset_gives_nothing_older(void **state) {
    struct answer there[N_PROMPTS] = {{.n = 0}}, here[N_PROMPTS] = {{.n = 0}};
    static struct peer_worker source, sink;

    (void)state;
    draw_prompts(&prompts, support_seed());
    compute_answers(&machines[1], &prompts);
    worker_open(&source, &machines[1], 1, true, true);
    worker_open(&sink, &machines[1], 2, true, true);
    run_each(&source.engine, &prompts, NULL, there);
    reset_cache(&source.engine, 0);
    run_each(&sink.engine, &prompts, &source.door.source, here);
    assert_answers(&prompts, here, "beside a source that was reset");
    assert_int_equal(stats_of(&sink.engine).tiers[0].restored_tokens, 0);
    peer_worker_close(&sink);
    peer_worker_close(&source);
}

/* The one has been asked, and does not answer; a request that names the other need not compute. */
static void a_source_that_is_late_keeps_no_request_from_another(void **state) {
    struct answer there[N_PROMPTS] = {{.n = 0}}, here[N_PROMPTS] = {{.n = 0}};
    static struct peer_worker source, sink;
    struct tier_source silent;
    struct request_params params;
    int listener = peer_listen(&silent);
    uint64_t until_us = clock_now_us() + PEER_TEST_PATIENT * 1000u / 2; /* it is not given up */

    (void)state;
    worker_open(&source, &machines[1], 1, true, true);
    worker_open_waiting(&sink, &machines[1], 2, true, true, 200000);
    draw_prompts(&prompts, support_seed());
    params = params_of(&prompts, 0, &silent);
    submit(&sink.engine, &params, &here[0]);
    fixture_run(&sink.engine);
    assert_int_equal(stats_of(&sink.engine).tiers[0].n_late, 1);
    for (uint64_t round = 1; stats_of(&sink.engine).tiers[0].restored_tokens == 0; round++) {
        assert_true(clock_now_us() < until_us);
        draw_prompts(&prompts, support_seed() + round);
        run_each(&source.engine, &prompts, NULL, there);
        run_each(&sink.engine, &prompts, &source.door.source, here);
        for (uint32_t i = 0; i < N_PROMPTS; i++)
            assert_same(&there[i], &here[i], "of the other source", i);
    }
    close(listener);
    peer_worker_close(&sink);
    peer_worker_close(&source);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fetched_answers_are_those_computed),
        cmocka_unit_test(a_source_that_ends_costs_no_answer),
        cmocka_unit_test(a_sink_that_ends_leaves_no_block_pinned),
        cmocka_unit_test(a_source_that_is_late_keeps_no_request_from_another),
        cmocka_unit_test(two_that_name_each_other_both_compute),
        cmocka_unit_test(a_thousand_wants_pin_a_part_of_host_memory),
        cmocka_unit_test(a_source_that_was_reset_gives_nothing_older),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
