/* tests/unit/worker/sched/test_beam.c - the search chooses what transformers' chooses, and what a
 * search that sorts everything chooses. The golden file is written by tests/reference/beam.py. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/file.h"
#include "common/base/mem.h"
#include "common/base/rng.h"
#include "common/text/json.h"
#include "tests/support/cm.h"
#include "worker/sched/beam.h"

#define VECTORS "tests/unit/data/beam_vectors.json"
#define VOCAB   12u
#define TABLES  3u
#define WIDEST  8u
#define LONGEST 10u

/* The logprobs of every token after every token, at every length. */
struct table {
    float logprob[LONGEST][VOCAB][VOCAB];
};

struct settings {
    struct beam_options o;
    uint32_t prompt; /* the last token of it */
    bool ends[VOCAB];
};

struct answer {
    uint32_t ids[LONGEST], n;
    float score;
};

/* --- a search that computes its sequences ----------------------------------------------------- */

static void offer_all(struct beam_search *b, const struct table *t, const struct settings *s,
                      uint32_t beam, uint32_t last) {
    const float *logprob = t->logprob[b->n_tokens][last];
    bool is_taken[VOCAB] = {false};

    for (uint32_t k = 0; k < VOCAB; k++) {
        uint32_t best = VOCAB;

        for (uint32_t id = 0; id < VOCAB; id++)
            if (!is_taken[id] && (best == VOCAB || logprob[id] > logprob[best])) best = id;
        is_taken[best] = true;
        if (!beam_offer(b, beam, best, k, logprob[best], s->ends[best])) return;
    }
}

/* Returns how many answers there are, the best first. */
static uint32_t search(const struct table *t, const struct settings *s, struct answer *out) {
    struct answer live[WIDEST] = {{.n = 0}}, next[WIDEST], kept[WIDEST];
    struct beam_search b;
    bool is_over = false;
    uint32_t n;

    beam_init(&b, &s->o);
    while (!is_over) {
        for (uint32_t i = 0; i < b.n_live; i++)
            offer_all(&b, t, s, i, live[i].n ? live[i].ids[live[i].n - 1] : s->prompt);
        is_over = beam_step(&b);
        for (uint32_t i = 0; i < b.n_done; i++) {
            kept[b.done[i].slot] = live[b.done[i].beam];
            kept[b.done[i].slot].ids[kept[b.done[i].slot].n++] = b.done[i].token;
        }
        for (uint32_t i = 0; i < b.n_live; i++) {
            next[i] = live[b.live[i].beam];
            next[i].ids[next[i].n++] = b.live[i].token;
        }
        memcpy(live, next, sizeof(live));
    }
    for (uint32_t i = 0; i < b.n_kept; i++) {
        out[i] = kept[b.kept[i].slot];
        out[i].score = b.kept[i].score;
    }
    n = b.n_kept;
    beam_fini(&b);
    return n;
}

/* --- transformers ----------------------------------------------------------------------------- */

static struct json *read_vectors(struct table *tables) {
    char *text = NULL;
    size_t n;
    struct json *root = NULL;
    struct error err = {0};
    uint32_t i = 0;

    if (file_read(VECTORS, 16 << 20, &text, &n, &err) != ST_OK) fail_msg("%s", err.message);
    if (json_parse(&root, (struct str){text, n}, NULL, &err) != ST_OK) fail_msg("%s", err.message);
    mem_free(text);
    JSON_FOR_EACH(table, json_get(root, "logprobs")) {
        uint32_t k = 0;

        JSON_FOR_EACH(x, table) {
            double v = 0;

            assert_int_equal(json_to_f64(x, &v), ST_OK);
            tables[i].logprob[k / (VOCAB * VOCAB)][k / VOCAB % VOCAB][k % VOCAB] = (float)v;
            k++;
        }
        assert_int_equal(k, LONGEST * VOCAB * VOCAB);
        i++;
    }
    assert_int_equal(i, TABLES);
    return root;
}

static double number_of(const struct json *object, const char *name) {
    double v = 0;

    assert_int_equal(json_to_f64(json_get(object, name), &v), ST_OK);
    return v;
}

static struct settings settings_of(const struct json *c) {
    const struct json *stopping = json_get(c, "early_stopping");
    struct settings s = {.prompt = (uint32_t)number_of(c, "prompt")};
    uint32_t n_ends = 0;
    bool is_early;

    JSON_FOR_EACH(id, json_get(c, "eos")) {
        double v = 0;

        assert_int_equal(json_to_f64(id, &v), ST_OK);
        s.ends[(uint32_t)v] = true;
        n_ends++;
    }
    s.o.width = (uint32_t)number_of(c, "width");
    s.o.n_candidates = beam_candidates(s.o.width, n_ends);
    s.o.max_tokens = (uint32_t)number_of(c, "max_tokens");
    s.o.length_penalty = (float)number_of(c, "length_penalty");
    s.o.stopping = BEAM_STOP_NEVER;
    if (json_to_bool(stopping, &is_early) == ST_OK)
        s.o.stopping = is_early ? BEAM_STOP_EARLY : BEAM_STOP_HOPELESS;
    return s;
}

static void the_golden_searches_have_the_golden_answers(void **state) {
    static struct table tables[TABLES];
    struct json *root = read_vectors(tables);
    uint32_t n_cases = 0;

    (void)state;
    JSON_FOR_EACH(c, json_get(root, "cases")) {
        struct settings s = settings_of(c);
        struct answer got[WIDEST];
        uint32_t n = search(&tables[(uint32_t)number_of(c, "table")], &s, got), i = 0;

        assert_true(n >= s.o.width);
        JSON_FOR_EACH(a, json_get(c, "answers")) {
            const struct json *ids = json_get(a, "ids");
            uint32_t k = 0;

            assert_true(fabs(number_of(a, "score") - (double)got[i].score) < 1e-5);
            if (got[i].n != json_count(ids)) fail_msg("case %u: another length", n_cases);
            JSON_FOR_EACH(id, ids) {
                double v = 0;

                assert_int_equal(json_to_f64(id, &v), ST_OK);
                if ((double)got[i].ids[k++] != v) fail_msg("case %u: other tokens", n_cases);
            }
            i++;
        }
        assert_int_equal(i, s.o.width);
        n_cases++;
    }
    assert_true(n_cases > 300);
    json_destroy(root);
}

/* --- the obvious model: every offer of every beam, sorted ------------------------------------- */

static int by_score(const void *a, const void *b) {
    const struct beam_choice *x = a, *y = b;

    if (x->score != y->score) return x->score > y->score ? -1 : 1;
    if (x->beam != y->beam) return x->beam < y->beam ? -1 : 1;
    return x->token < y->token ? -1 : 1;
}

static void a_step_takes_the_best_of_all_offers(void **state) {
    struct rng rng;

    (void)state;
    rng_seed(&rng, 9);
    for (int round = 0; round < 2000; round++) {
        uint32_t width = 1 + (uint32_t)rng_below(&rng, WIDEST),
                 n_ends = (uint32_t)rng_below(&rng, 4);
        struct beam_options o = {.width = width,
                                 .n_candidates = MIN(beam_candidates(width, n_ends), VOCAB),
                                 .max_tokens = 3,
                                 .length_penalty = 1};
        struct beam_choice all[WIDEST * VOCAB];
        struct beam_search b;
        uint32_t n_all = 0, n_live = 0;

        beam_init(&b, &o);
        b.n_live = width;
        for (uint32_t i = 0; i < width; i++) /* coarse, so that there are ties */
            b.score[i] = -(float)rng_below(&rng, 8);
        for (uint32_t i = 0; i < width; i++) {
            float logprob = 0;
            bool goes_on = true;

            for (uint32_t id = 0; id < VOCAB; id++) {
                logprob -= (float)rng_below(&rng, 3);
                all[n_all++] = (struct beam_choice){
                    .beam = i, .token = id, .score = logprob + b.score[i], .is_end = id < n_ends};
                if (goes_on) goes_on = beam_offer(&b, i, id, 0, logprob, id < n_ends);
            }
        }
        qsort(all, n_all, sizeof(*all), by_score);
        assert_false(beam_step(&b) && b.n_live > 0 && b.n_kept < width);
        for (uint32_t i = 0; i < o.n_candidates && n_live < width; i++) {
            if (all[i].is_end) continue;
            assert_int_equal(b.live[n_live].beam, all[i].beam);
            assert_int_equal(b.live[n_live].token, all[i].token);
            n_live++;
        }
        assert_int_equal(b.n_live, n_live);
        for (uint32_t i = 1; i < b.n_kept; i++)
            assert_true(b.kept[i].score <= b.kept[i - 1].score);
        beam_fini(&b);
    }
}

static void width_one_is_greedy(void **state) {
    static struct table t;
    struct settings s = {.o = {.width = 1, .n_candidates = 2, .max_tokens = LONGEST}};
    struct answer a[WIDEST];
    struct rng rng;
    uint32_t last = 0;

    (void)state;
    rng_seed(&rng, 4);
    for (uint32_t i = 0; i < LONGEST * VOCAB * VOCAB; i++)
        t.logprob[i / (VOCAB * VOCAB)][i / VOCAB % VOCAB][i % VOCAB] =
            -(float)rng_below(&rng, 1000) / 100;
    assert_true(search(&t, &s, a) >= 1);
    assert_int_equal(a[0].n, LONGEST);
    for (uint32_t k = 0; k < LONGEST; k++) {
        uint32_t best = 0;

        for (uint32_t id = 1; id < VOCAB; id++)
            if (t.logprob[k][last][id] > t.logprob[k][last][best]) best = id;
        assert_int_equal(a[0].ids[k], best);
        last = best;
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_golden_searches_have_the_golden_answers),
        cmocka_unit_test(a_step_takes_the_best_of_all_offers),
        cmocka_unit_test(width_one_is_greedy),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
