/* tests/unit/worker/output/test_reader_cuts.c - an answer does not depend on how its text is cut.
 *
 * Random answers in every format, whole, cut by a limit, and broken; with the vocabulary's tokens
 * and without. Each is read in one piece, cut once at each place, byte by byte, and cut at random.
 * READER_CUTS sets how many (text, cut) pairs are read. */
#include <stdio.h>
#include <stdlib.h>

#include "tests/support/cm.h"
#include "tests/support/reader_texts.h"
#include "tests/support/support.h"
#include "worker/output/output_internal.h"

#define PAIRS_DEFAULT 150000u
#define RANDOM_CUTS   6u
#define READ_MOST     64u /* times that a byte is read: a marker's length */

static uint64_t n_pairs(void) {
    const char *s = getenv("READER_CUTS");

    return s ? strtoull(s, NULL, 10) : PAIRS_DEFAULT;
}

static bool never(void *arg, size_t at) {
    (void)arg, (void)at;
    return false;
}

static bool always(void *arg, size_t at) {
    (void)arg, (void)at;
    return true;
}

static bool once(void *arg, size_t at) {
    return *(size_t *)arg == at;
}

static bool at_random(void *arg, size_t at) {
    (void)at;
    return rng_below(arg, 5) == 0;
}

static void check_cut(const struct reader_text *t, struct reader_fixture *f, struct str whole,
                      bool (*is_cut_at)(void *, size_t), void *arg, struct buf *got) {
    uint64_t n_read;

    buf_clear(got);
    n_read = reader_text_read(t, f, is_cut_at, arg, got);
    assert_true(n_read <= READ_MOST * (reader_text_length(t) + t->n + 1));
    if (str_eq(whole, buf_str(got))) return;
    fail_msg("%s, %s, %zu tokens:\n%.*s\nwhole:\n%.*s\ncut:\n%.*s",
             call_format_name(f->setup.calls), reasoning_format_name(f->setup.reasoning),
             (size_t)f->n_tokens, STR_ARG(buf_str(&t->bytes)), STR_ARG(whole),
             STR_ARG(buf_str(got)));
}

static uint64_t check_text(const struct reader_text *t, struct reader_fixture *f, struct rng *rng) {
    size_t length = reader_text_length(t);
    struct buf whole, got;

    buf_init(&whole, 0);
    buf_init(&got, 0);
    reader_text_read(t, f, never, NULL, &whole);
    check_cut(t, f, buf_str(&whole), always, NULL, &got);
    for (size_t at = 1; at < length; at++)
        check_cut(t, f, buf_str(&whole), once, &at, &got);
    for (uint32_t i = 0; i < RANDOM_CUTS; i++)
        check_cut(t, f, buf_str(&whole), at_random, rng, &got);
    buf_fini(&whole);
    buf_fini(&got);
    return 1 + MAX(length, 1u) - 1 + RANDOM_CUTS;
}

/* Formats of one family go together; others are combined with any. */
static const char *reasoning_of(uint32_t i) {
    static const char *const some[] = {NULL,      "deepseek_r1", "mistral",
                                       "hunyuan", "granite",     "kimi"};

    return some[i % ARRAY_LEN(some)];
}

static void answers_do_not_depend_on_cuts(void **state) {
    uint64_t n = 0, most = n_pairs();
    struct reader_text t;

    (void)state;
    reader_text_init(&t);
    for (uint32_t round = 0; n < most; round++) {
        const struct call_format *c;
        struct rng rng;

        rng_seed(&rng, support_seed() + round);
        for (uint32_t i = 0; (c = call_format_at(i)); i++) {
            struct reader_fixture f;
            bool is_harmony = c->body == BODY_HARMONY;

            reader_fixture_init(&f, c->name, is_harmony ? "openai" : reasoning_of(round + i),
                                round % 2);
            f.setup.begins_in_reasoning = f.setup.reasoning && rng_below(&rng, 3) == 0;
            reader_text_draw(&t, &f, &rng);
            n += check_text(&t, &f, &rng);
            reader_fixture_fini(&f);
        }
    }
    reader_text_fini(&t);
    if (getenv("READER_CUTS")) printf("%llu pairs, no difference\n", (unsigned long long)n);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(answers_do_not_depend_on_cuts)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
