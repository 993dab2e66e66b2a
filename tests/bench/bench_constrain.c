/* tests/bench/bench_constrain.c - what grammars add to a step: 256 rows that decode behind 1,000
 * tokens, all of them constrained, over a vocabulary of 131,072 tokens.
 *
 * A whole engine on the sim backend. *Warm*: 16 schemas of tools for 256 rows, whose masks are
 * known. *Cold*: the same from their first token on. *Apart*: 256 schemas, one for each row, from
 * their first token on, so that nearly each mask is new.
 *
 *   time        from step to step, on the device that sim stands for, which takes 18 ms: beside that
 *               of rows without a grammar. The bars are 5 % warm, 15 % cold and apart
 *   processor   of the process, per step, on a device that takes no time
 *
 * They want logprobs, so that each of their tokens has a step. *Forced*: 8 rows of one schema
 * without logprobs, whose forced tokens have none: tokens per second beside those of rows with. A
 * byte is a token there: of real spellings fewer are forced.
 *
 * Medians of some engines. With an argument (warm, cold, apart, forced), that alone. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/base/clock.h"
#include "common/base/mem.h"
#include "common/base/rng.h"
#include "common/net/loop.h"
#include "worker/engine/engine.h"
#include "worker/grammar/core/vocabulary.h"
#include "worker/grammar/grammar.h"
#include "worker/model/model.h"

#define N_ROWS      256u
#define N_PROMPT    1008u
#define N_OWN       16u /* of them, the last: what comes before is the same for all */
#define N_RUNS      5
#define N_TIMED     3 /* runs that take as long as the device */
#define VOCAB       131072u
#define WARM_FROM   600u /* steps; until then masks are computed */
#define WARM_STEPS  400u
#define COLD_STEPS  60u /* the first ones */
#define MAX_LEN     2048u
#define TIMED_FROM  6u
#define TIMED_STEPS 60u
#define FEW_ROWS    8u
#define FEW_STEPS   60u

struct bench {
    struct loop *loop;
    struct engine *e;
    struct model *model;
    struct request *open[N_ROWS];
    uint32_t n_open;
};

enum kind { FREE, WARM, COLD, APART };

static void must(enum status st, const struct error *err) {
    if (st == ST_OK) return;
    fprintf(stderr, "bench_constrain: %s\n", err->message);
    exit(1);
}

/* --- a vocabulary ----------------------------------------------------------------------------- */

struct tokens {
    char text[VOCAB][12];
    uint8_t len[VOCAB];
};

static struct str bytes_of(const void *arg, uint32_t id) {
    const struct tokens *t = arg;

    return (struct str){t->text[id], t->len[id]};
}

static bool is_special(const void *arg, uint32_t id) {
    (void)arg;
    return id >= 256 && id < 260;
}

/* Bytes; words with and without a blank in front, whose first four letters are theirs alone; and
 * one in 32 of the characters of JSON. */
static void make_tokens(struct tokens *t) {
    static const char json[] = "{}[]\":, \n0123456789.-";
    struct rng rng;

    rng_seed(&rng, 1);
    for (uint32_t id = 0; id < VOCAB; id++) {
        uint32_t len = 4 + (uint32_t)rng_below(&rng, 6), blank = (uint32_t)rng_below(&rng, 2);
        uint32_t number = id * 7919u % 456976u; /* of 26^4, each once */

        t->len[id] = (uint8_t)(id < 256 ? 1 : len + blank);
        t->text[id][0] = id < 256 ? (char)id : ' ';
        for (uint32_t i = blank; i < len + blank && id >= 256; i++, number /= 26)
            t->text[id][i] = id % 32 == 0    ? json[rng_below(&rng, sizeof(json) - 1)]
                             : i < blank + 4 ? (char)('a' + number % 26)
                                             : (char)('a' + rng_below(&rng, 26));
    }
}

/* A spelling in tokens that are a byte each: the words above spell no tool. */
static uint32_t encode_bytes(const void *arg, struct str text, uint32_t *ids, uint32_t max) {
    (void)arg;
    for (uint32_t i = 0; i < MIN(text.len, max); i++)
        ids[i] = (uint8_t)text.ptr[i];
    return (uint32_t)MIN(text.len, max);
}

/* --- grammars --------------------------------------------------------------------------------- */

/* Calls of one tool without an end: sim takes the next allowed token, and { is before ~. The values
 * have few characters, as free text is one place however long it is. */
static struct grammar *make_grammar(const struct vocabulary *v, uint32_t number) {
    char text[1024];
    struct grammar_spec spec = {.kind = GRAMMAR_TAG, .spaces = GRAMMAR_SPACES_COMPACT};
    struct grammar *g = NULL;
    struct error err = {0};

    snprintf(
        text, sizeof(text),
        "{\"format\":{\"type\":\"sequence\",\"elements\":[{\"type\":\"plus\",\"content\":{\"type\":"
        "\"json_schema\",\"json_schema\":{\"type\":\"object\",\"properties\":{\"path_%u\":{"
        "\"type\":"
        "\"string\",\"pattern\":\"^[0-9/"
        "]+$\"},\"mode_%u\":{\"enum\":[\"read\",\"write\",\"append\"]},"
        "\"lines\":{\"type\":\"array\",\"items\":{\"type\":\"integer\",\"minimum\":0,\"maximum\":%"
        "u},"
        "\"maxItems\":3},\"deep\":{\"type\":\"boolean\"},\"ratio\":{\"type\":\"number\"}},"
        "\"required\":["
        "\"path_%u\",\"mode_%u\",\"ratio\"],\"additionalProperties\":false}}},{\"type\":"
        "\"const_string\",\"value\":\"~\"}]}}",
        number, number, 1000 + number, number, number);
    spec.text = str_of(text);
    must(grammar_compile(&g, &spec, v, &err), &err);
    return g;
}

/* --- one engine ------------------------------------------------------------------------------- */

static void on_progress(void *arg, struct request *r, const struct request_progress *progress) {
    struct bench *w = arg;

    if (!progress->is_finished) return;
    for (uint32_t i = 0; i < w->n_open; i++)
        if (w->open[i] == r) w->open[i] = w->open[--w->n_open];
    request_unref(r);
}

static void fixture_open(struct bench *w, bool is_timed) {
    struct engine_options o = engine_options_default;
    struct error err = {0};

    *w = (struct bench){.model = model_create_synthetic(0)};
    must(loop_create(&w->loop, &err), &err);
    o.backend = &backend_sim;
    o.device.sim_profile = is_timed ? "h200-8b" : "instant";
    engine_options_set_model(&o, w->model);
    o.geometry.vocab = VOCAB;
    o.weight_bytes = 0;
    o.max_model_len = MAX_LEN;
    o.n_blocks = (N_ROWS + 1) * (MAX_LEN / 16) + 1;
    o.scheduler.max_num_seqs = N_ROWS;
    o.scheduler.max_num_batched_tokens = N_PROMPT + N_ROWS * 2 * N_OWN;
    o.callbacks = (struct engine_callbacks){.on_progress = on_progress, .arg = w};
    must(engine_create(&w->e, &o, w->loop, &err), &err);
}

static uint32_t n_grammars(enum kind kind) {
    return kind == FREE ? 0 : kind == APART ? N_ROWS : 16;
}

static void make_grammars(struct grammar **g, const struct vocabulary *v, enum kind kind) {
    for (uint32_t i = 0; i < n_grammars(kind); i++)
        g[i] = make_grammar(v, i);
}

static void drop_grammars(struct grammar **g, enum kind kind) {
    for (uint32_t i = 0; i < n_grammars(kind); i++)
        grammar_unref(g[i]);
}

static void submit_rows(struct bench *w, struct grammar **g, enum kind kind, uint32_t n_rows,
                        int32_t n_logprobs) {
    uint32_t prompt[N_PROMPT];
    const struct request_limits *limits = &engine_info(w->e)->limits;
    struct error err = {0};

    for (uint32_t row = 0; row < n_rows; row++) {
        struct request_params p = request_params_default;

        for (uint32_t i = 0; i < N_PROMPT; i++)
            prompt[i] = 'a' + (i * 7 + (i + N_OWN >= N_PROMPT ? row * 3 : 0)) % 26;
        p.prompt = prompt;
        p.n_prompt = N_PROMPT;
        p.max_tokens = MAX_LEN - N_PROMPT;
        p.ignore_eos = true;
        p.seed = row;
        p.n_logprobs = n_logprobs;
        p.grammar = kind == FREE ? NULL : g[row % n_grammars(kind)];
        must(request_create(&w->open[w->n_open], &p, limits, &err), &err);
        must(engine_submit(w->e, w->open[w->n_open++], &err), &err);
    }
}

static struct engine_stats stats_after(struct bench *w, uint64_t n_steps) {
    struct engine_stats s;

    do {
        struct timespec pause = {.tv_nsec = 500000};

        nanosleep(&pause, NULL);
        engine_stats(w->e, &s);
    } while (s.steps < n_steps && s.finished[FINISH_LENGTH] == 0 && s.finished[FINISH_ERROR] == 0);
    return s;
}

static void fixture_close(struct bench *w) {
    engine_destroy(w->e);
    for (uint32_t i = 0; i < w->n_open; i++)
        if (w->open[i]->finish == FINISH_ERROR) must(ST_INTERNAL, &w->open[i]->error);
    while (w->n_open > 0)
        request_unref(w->open[--w->n_open]);
    loop_destroy(w->loop);
    model_close(w->model);
}

static double cpu_us(void) {
    struct timespec t;

    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec * 1e-3;
}

struct outcome {
    double us, new_share;
};

static struct outcome measure(struct grammar **g, enum kind kind, bool is_timed) {
    uint64_t from = is_timed ? TIMED_FROM : kind >= COLD ? 2 : WARM_FROM;
    uint64_t n = is_timed ? TIMED_STEPS : kind >= COLD ? COLD_STEPS : WARM_STEPS;
    struct bench w;
    struct engine_stats before, after;
    double began_us, us;

    fixture_open(&w, is_timed);
    submit_rows(&w, g, kind, N_ROWS, 0);
    before = stats_after(&w, from);
    began_us = is_timed ? (double)clock_now_us() : cpu_us();
    after = stats_after(&w, before.steps + n);
    us = (is_timed ? (double)clock_now_us() : cpu_us()) - began_us;
    fixture_close(&w);
    before.masks_known = after.masks_known - before.masks_known;
    before.masks_new = after.masks_new - before.masks_new;
    return (struct outcome){us / (double)MAX(after.steps - before.steps, 1u),
                            (double)before.masks_new /
                                (double)MAX(before.masks_new + before.masks_known, 1u)};
}

static int by_value(const void *a, const void *b) {
    const struct outcome *x = a, *y = b;

    return (x->us > y->us) - (x->us < y->us);
}

/* Grammars that are cold are new for each engine. */
static struct outcome run(const struct vocabulary *v, const char *what, enum kind kind,
                          bool is_timed, double free_us) {
    struct outcome o[N_RUNS];
    struct grammar *g[N_ROWS];
    int n = is_timed ? N_TIMED : N_RUNS;

    make_grammars(g, v, kind);
    if (is_timed && kind == WARM) (void)measure(g, kind, false);
    for (int i = 0; i < n; i++) {
        if (i > 0 && kind >= COLD) {
            drop_grammars(g, kind);
            make_grammars(g, v, kind);
        }
        o[i] = measure(g, kind, is_timed);
    }
    drop_grammars(g, kind);
    qsort(o, (size_t)n, sizeof(*o), by_value);
    printf("%-6s %-9s %8.1f us a step  (%.1f to %.1f)", what, is_timed ? "time" : "processor",
           o[n / 2].us, o[0].us, o[n - 1].us);
    if (kind != FREE)
        printf(", %4.1f %% of masks new: adds %.1f us", 100 * o[n / 2].new_share,
               o[n / 2].us - free_us);
    if (kind != FREE && is_timed) {
        double added = 100 * (o[n / 2].us - free_us) / free_us, bar = kind == WARM ? 5 : 15;

        printf(", %.1f %%, bar %.0f %%: %s", added, bar, added <= bar ? "kept" : "MISSED");
    }
    printf("\n");
    return o[n / 2];
}

/* Tokens per second of a few rows on the device that sim stands for. */
static double rate_of_few(struct grammar **g, int32_t n_logprobs, double *forced_share) {
    struct bench w;
    struct engine_stats before, after;
    double began_us, tokens, us;

    fixture_open(&w, true);
    submit_rows(&w, g, COLD, FEW_ROWS, n_logprobs);
    before = stats_after(&w, TIMED_FROM);
    began_us = (double)clock_now_us();
    after = stats_after(&w, before.steps + FEW_STEPS);
    us = (double)clock_now_us() - began_us;
    tokens = (double)(after.generated_tokens - before.generated_tokens);
    *forced_share = (double)(after.forced_tokens - before.forced_tokens) / tokens;
    fixture_close(&w);
    return tokens / us * 1e6;
}

static void run_forced(const struct vocabulary *v) {
    struct grammar *g[N_ROWS];
    double share, sampled, forced;

    make_grammars(g, v, COLD);
    sampled = rate_of_few(g, 0, &share);
    forced = rate_of_few(g, -1, &share);
    drop_grammars(g, COLD);
    printf("forced %u rows: %.0f tokens/s, %.1f %% of them forced; %.0f with a step each: %.2f x\n",
           FEW_ROWS, forced, 100 * share, sampled, forced / sampled);
}

int main(int argc, char **argv) {
    static const char *const names[] = {"free", "warm", "cold", "apart"};
    struct tokens *t = mem_zalloc(sizeof(*t));
    struct vocabulary_source source = {
        .n_tokens = VOCAB, .arg = t, .bytes = bytes_of, .is_special = is_special};
    struct vocabulary *v;

    setvbuf(stdout, NULL, _IOLBF, 0);
    make_tokens(t);
    v = vocabulary_create(&source);
    for (int is_timed = 1; is_timed >= 0; is_timed--) {
        double free_us = run(v, names[FREE], FREE, is_timed, 0).us;

        for (uint32_t kind = WARM; kind <= APART; kind++)
            if (argc < 2 || strcmp(argv[1], names[kind]) == 0)
                (void)run(v, names[kind], kind, is_timed, free_us);
    }
    v->arg = v;
    v->encode = encode_bytes;
    if (argc < 2 || strcmp(argv[1], "forced") == 0) run_forced(v);
    vocabulary_destroy(v);
    mem_free(t);
    return 0;
}
