/* tests/bench/bench_restore.c - the time to the first token of a long prompt that is computed,
 * found in host memory, or found in a folder.
 *
 * A model of random weights, of the demonstration model's shape with a longer context, on the CPU
 * engine. Two prompts have room on the device for one, so each computes the other one away to host
 * memory. Asked for again, they are wanted, and written; an engine that starts on the folder then
 * finds them there. The least of two of each; the bar is a quarter of computing.
 * Arguments: tokens (48000), threads (2). */
#include "kernels/dtype.h"
#include "tests/support/tiny_model.h"

#define ENGINE_FIXTURE_SHAPE
#define LONGEST 131072u

static const struct tiny_shape shape = {.n_layers = 4,
                                        .d_model = 256,
                                        .n_heads = 4,
                                        .n_kv_heads = 2,
                                        .head_dim = 64,
                                        .d_ff = 512,
                                        .vocab = 2048,
                                        .max_context = LONGEST,
                                        .is_tied = true,
                                        .weight_dtype = DTYPE_BF16,
                                        .kv_dtype = DTYPE_BF16};

#include "common/base/clock.h"
#include "tests/support/engine_fixture.h"
#include "tests/support/tier_place.h"

#define BLOCK     16u
#define N_PROMPTS 2
#define BAR       0.25

static uint32_t *prompts[N_PROMPTS], n_tokens;

static double first_token_s(struct engine_fixture *w, uint32_t i, uint32_t *token) {
    struct request_params params = request_params_default;
    struct answer answer = {.n = 0};
    uint64_t began_us = clock_now_us();

    params.prompt = prompts[i];
    params.n_prompt = n_tokens;
    params.max_tokens = 1;
    submit(w, &params, &answer);
    fixture_run(w);
    *token = answer.token[0];
    return (double)(clock_now_us() - began_us) * 1e-6;
}

/* Of both, the lesser; with expected tokens or to learn them. */
static double both_s(struct engine_fixture *w, uint32_t *tokens, bool is_known) {
    double least = 1e9;

    for (uint32_t i = 0; i < N_PROMPTS; i++) {
        uint32_t token;
        double s = first_token_s(w, i, &token);

        least = s < least ? s : least;
        if (is_known && token != tokens[i]) fail_msg("prompt %u has another first token", i);
        tokens[i] = token;
    }
    return least;
}

static void draw_prompts(void) {
    struct rng rng;

    rng_seed(&rng, 1);
    for (uint32_t i = 0; i < N_PROMPTS; i++) {
        prompts[i] = mem_calloc(n_tokens, sizeof(uint32_t));
        for (uint32_t t = 0; t < n_tokens; t++)
            prompts[i][t] = (uint32_t)rng_below(&rng, shape.vocab);
    }
}

static void report(const char *from, double s, double computed_s) {
    printf("  %-12s %8.3f s  %.4f of computing  (bar %.2f)\n", from, s, s / computed_s, BAR);
}

static void bench(uint32_t n_threads, struct tier_place *place) {
    uint32_t n_blocks = n_tokens / BLOCK, tokens[N_PROMPTS];
    struct setup s = {.machine = {.ops = &backend_cpu},
                      .n_threads = n_threads,
                      .n_blocks = n_blocks + 66,
                      .host_blocks = 3 * n_blocks,
                      .budget = 2048,
                      .max_len = n_tokens + BLOCK,
                      .tier = tier_place_source(place)};
    struct engine_fixture w;
    struct lower_stats t;
    double computed_s;

    fixture_open(&w, &s);
    computed_s = both_s(&w, tokens, false);
    printf("%u tokens, %u threads\n  %-12s %8.3f s\n", n_tokens, n_threads, "computed", computed_s);
    report("host memory", both_s(&w, tokens, true), computed_s);
    while (stats_of(&w).tiers[0].stores[TIER_OK] < N_PROMPTS * (uint64_t)(n_blocks - 1))
        both_s(&w, tokens, true);
    fixture_close(&w);
    fixture_open(&w, &s);
    report("folder", both_s(&w, tokens, true), computed_s);
    t = stats_of(&w).tiers[0];
    printf("  %llu of %u tokens restored from the folder, %.0f MB, %.2f s of jobs\n",
           (unsigned long long)t.restored_tokens, N_PROMPTS * n_tokens,
           (double)t.loaded_bytes * 1e-6, t.load_s);
    fixture_close(&w);
}

int main(int argc, char **argv) {
    struct tier_place place;

    n_tokens = argc > 1 ? (uint32_t)atoi(argv[1]) : 48000;
    if (n_tokens < 8 * BLOCK || n_tokens > LONGEST - BLOCK) {
        fprintf(stderr, "%u tokens: use %u to %u\n", n_tokens, 8 * BLOCK, LONGEST - BLOCK);
        return 1;
    }
    setenv("CMOCKA_TEST_ABORT", "1", 1);
    draw_prompts();
    tier_place_init(&place, PLACE_FILE);
    place.file.max_bytes = 4ull << 30;
    place.file.segment_bytes = 0;
    place.file.n_threads = 0;
    bench(argc > 2 ? (uint32_t)atoi(argv[2]) : 2, &place);
    tier_place_fini(&place);
    for (uint32_t i = 0; i < N_PROMPTS; i++)
        mem_free(prompts[i]);
    return 0;
}
