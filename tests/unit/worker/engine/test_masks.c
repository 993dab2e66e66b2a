/* tests/unit/worker/engine/test_masks.c - masks that several threads compute are those that one
 * computes, whichever are known before. */
#include <string.h>

#include "common/base/rng.h"
#include "tests/support/grammar_fixture.h"
#include "tests/support/sched_fixture.h"
#include "tests/support/support.h"
#include "worker/engine/mask_threads.h"
#include "worker/engine/masks.h"

#define N_REQUESTS 24u
#define N_GRAMMARS 5u
#define N_STEPS    40u
#define WORDS      32u

/* --- threads ---------------------------------------------------------------------------------- */

#define MAX_PARTS 300u

static void count(void *arg, uint32_t part) {
    ((uint32_t *)arg)[part]++; /* plain on purpose: the thread sanitizer would see a race */
}

static void each_part_runs_once(void **state) {
    uint32_t times[MAX_PARTS];
    struct rng rng;

    (void)state;
    rng_seed(&rng, support_seed());
    for (uint32_t n_threads = 0; n_threads <= 5; n_threads++) {
        struct mask_threads *t;

        assert_int_equal(mask_threads_start(&t, n_threads, NULL), ST_OK);
        for (uint32_t round = 0; round < 200; round++) {
            uint32_t n = (uint32_t)rng_below(&rng, round % 10 == 0 ? MAX_PARTS : 8);

            memset(times, 0, sizeof(times));
            mask_threads_run(t, n, count, times);
            for (uint32_t i = 0; i < MAX_PARTS; i++)
                assert_int_equal(times[i], i < n);
        }
        mask_threads_stop(t);
    }
}

/* --- masks ------------------------------------------------------------------------------------ */

struct pair {
    struct request *r, *alone; /* the same, with grammars of their own */
    uint32_t mask[WORDS];
};

static struct grammar *make_grammar(const struct vocabulary *v, uint32_t number) {
    static const char *const patterns[N_GRAMMARS] = {"([a-c]{1,5},)*", "(abc|abd|xyz[0-9]+)*",
                                                     "x(a|b|ab)*(long text that is forced)?[a-z]*",
                                                     "[^a]*", "([0-9]{3}-)*"};

    return fixture_grammar(GRAMMAR_REGEX, patterns[number], false, v);
}

static uint32_t any_allowed(const uint32_t *mask, uint32_t vocab, struct rng *rng) {
    uint32_t at = (uint32_t)rng_below(rng, vocab);

    for (uint32_t i = 0; i < vocab; i++, at = (at + 1) % vocab)
        if (mask[at / 32] >> (at % 32) & 1) return at;
    fail_msg("an empty mask");
    return 0;
}

static void step(struct masks *m, struct pair *p, struct rng *rng) {
    struct constrain_stats stats = {0};
    uint32_t alone[WORDS], n_late = 0;

    for (uint32_t i = 0; i < N_REQUESTS; i++) {
        if (masks_fill(m, p[i].r, p[i].mask)) continue;
        masks_add(m, p[i].r, p[i].mask);
        n_late++;
    }
    assert_int_equal(m->n_jobs, n_late);
    masks_compute(m);
    assert_int_equal(m->n_jobs, 0);
    for (uint32_t i = 0; i < N_REQUESTS; i++) {
        uint32_t token;

        constrain_fill(p[i].alone, &m->ends, alone, m->vocab, &stats);
        assert_memory_equal(alone, p[i].mask, CEIL_DIV(m->vocab, 32) * sizeof(*alone));
        token = any_allowed(alone, m->vocab, rng);
        if (request_is_end(&p[i].r->params, m->ends.eos_ids, m->ends.n_eos, token)) continue;
        assert_int_equal(constrain_take(p[i].r, &m->ends, token), ST_OK);
        assert_int_equal(constrain_take(p[i].alone, &m->ends, token), ST_OK);
        request_append(p[i].r, token);
        request_append(p[i].alone, token);
    }
}

static void open_pairs(struct pair *p, struct sched_fixture *f, const struct vocabulary *v) {
    struct grammar *shared[N_GRAMMARS], *alone[N_GRAMMARS];
    struct request_params params = request_params_default;

    params.max_tokens = N_STEPS;
    for (uint32_t i = 0; i < N_GRAMMARS; i++) {
        shared[i] = make_grammar(v, i);
        alone[i] = make_grammar(v, i);
    }
    for (uint32_t i = 0; i < N_REQUESTS; i++) {
        params.grammar = shared[i % N_GRAMMARS];
        p[i].r = fixture_request(f, 3, 'p', &params);
        params.grammar = alone[i % N_GRAMMARS];
        p[i].alone = fixture_request(f, 3, 'p', &params);
        constrain_begin(p[i].r);
        constrain_begin(p[i].alone);
    }
    for (uint32_t i = 0; i < N_GRAMMARS; i++) {
        grammar_unref(shared[i]);
        grammar_unref(alone[i]);
    }
}

static void close_pairs(struct pair *p) {
    for (uint32_t i = 0; i < N_REQUESTS; i++) {
        constrain_end(p[i].r);
        constrain_end(p[i].alone);
        request_unref(p[i].r);
        request_unref(p[i].alone);
    }
}

static void several_threads_compute_the_masks_of_one(void **state) {
    static const uint32_t eos[] = {FIXTURE_EOS};
    struct fixture_options o = fixture_defaults();
    struct sched_fixture f;
    struct rng rng;

    (void)state;
    rng_seed(&rng, support_seed());
    for (uint32_t n_threads = 1; n_threads <= 4; n_threads++) {
        struct vocabulary *v = fixture_vocabulary(&rng, 300, "abcx0,- lt");
        struct masks m = {.ends = {eos, 1}, .vocab = v->n_tokens};
        struct pair p[N_REQUESTS];

        fixture_open(&f, &o);
        f.limits.vocab = v->n_tokens;
        assert_true(v->n_words <= WORDS);
        assert_int_equal(masks_init(&m, N_REQUESTS, n_threads, NULL), ST_OK);
        open_pairs(p, &f, v);
        for (uint32_t i = 0; i < N_STEPS; i++)
            step(&m, p, &rng);
        assert_int_equal(m.stats.n_new + m.stats.n_known, N_STEPS * N_REQUESTS);
        assert_true(m.stats.n_new > 0 && m.stats.n_known > 0);
        close_pairs(p);
        masks_fini(&m);
        fixture_close(&f);
        vocabulary_destroy(v);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_part_runs_once),
        cmocka_unit_test(several_threads_compute_the_masks_of_one),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
