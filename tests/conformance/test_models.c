/* tests/conformance/test_models.c - every architecture and RoPE scaling, against what transformers
 * computed in float32 on the same weights, on every backend and instruction path of this machine.
 *
 * tests/data/models holds small random models as transformers wrote them, in bf16, f16 and f32, and
 * beside each its output: NAME.expected.safetensors with the prompt, the log-probabilities after
 * its last tokens, the greedy tokens that follow and how far each was ahead.
 * tests/reference/models.py and quantised.py write them, and compare many more where PyTorch can be
 * had. The bounds are the ones they have. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "common/base/mem.h"
#include "kernels/dtype.h"
#include "tests/support/cm.h"
#include "tests/support/model_runner.h"
#include "worker/model/checkpoint/safetensors.h"

#define DATA       "tests/data/models/"
#define BOUND_F32  1e-5
#define BOUND_F16  2e-3
#define BOUND_BF16 1e-2

static const char *const names[] = {
    "llama",           "llama3",     "llama-linear", "llama-yarn", "mistral-window",
    "qwen2-window",    "qwen2-yarn", "qwen3",        "llama-f32",  "qwen3-f16",
    "quant-fp8-block", "quant-gptq", "quant-w8a8"};

static const struct run {
    const struct backend_ops *ops;
    const char *path;
    enum dtype dtype; /* of weights and KV */
    uint32_t block_size, n_step_tokens;
} runs[] = {
    {&backend_ref, NULL, DTYPE_F32, 16, 24},
    {&backend_ref, NULL, DTYPE_F16, 4, 48},
    {&backend_ref, NULL, DTYPE_BF16, 4, 5},
    {&backend_cpu, "plain", DTYPE_F32, 16, 24},
    {&backend_cpu, "plain", DTYPE_F16, 16, 24},
    {&backend_cpu, "plain", DTYPE_BF16, 16, 48},
    {&backend_cpu, "avx2", DTYPE_F32, 8, 7},
    {&backend_cpu, "avx2", DTYPE_F16, 5, 48},
    {&backend_cpu, "avx2", DTYPE_BF16, 16, 24},
    {&backend_cpu, "avx512", DTYPE_F32, 32, 24},
    {&backend_cpu, "avx512", DTYPE_F16, 16, 7},
    {&backend_cpu, "avx512", DTYPE_BF16, 1, 24},
    {&backend_cpu, "avx512bf16", DTYPE_F32, 16, 24},
    {&backend_cpu, "avx512bf16", DTYPE_F16, 16, 24},
    {&backend_cpu, "avx512bf16", DTYPE_BF16, 16, 24},
    {&backend_cpu, "neon", DTYPE_F32, 16, 24},
    {&backend_cpu, "neon", DTYPE_F16, 16, 48},
    {&backend_cpu, "neon", DTYPE_BF16, 16, 24},
};

struct expected {
    struct safetensors *file;
    const uint32_t *prompt, *greedy;
    const float *gap, *logprobs; /* (n_greedy); (n_scored, vocab) */
    uint32_t n_prompt, n_greedy, n_scored, vocab;
    double max_logit;
};

static const struct safetensor *part(const struct expected *e, const char *name) {
    const struct safetensor *t = safetensors_find(e->file, str_of(name));

    assert_non_null(t);
    assert_int_equal((uintptr_t)t->data % 4, 0);
    return t;
}

static void expected_open(struct expected *e, const char *name) {
    struct error err = {0};
    char path[256];

    snprintf(path, sizeof(path), DATA "%s.expected.safetensors", name);
    if (safetensors_open(&e->file, path, &err) != ST_OK) fail_msg("%s", err.message);
    e->prompt = (const void *)part(e, "prompt")->data;
    e->greedy = (const void *)part(e, "greedy")->data;
    e->gap = (const void *)part(e, "gap")->data;
    e->logprobs = (const void *)part(e, "logprobs")->data;
    e->max_logit = *(const float *)(const void *)part(e, "max_logit")->data;
    e->n_prompt = (uint32_t)(part(e, "prompt")->n_bytes / 4);
    e->n_greedy = (uint32_t)(part(e, "greedy")->n_bytes / 4);
    e->n_scored = (uint32_t)part(e, "logprobs")->shape[0];
    e->vocab = (uint32_t)part(e, "logprobs")->shape[1];
}

static void check_logprobs(struct model_runner *r, const struct expected *e, double bound,
                           const char *what) {
    size_t n = (size_t)e->n_scored * e->vocab;
    float *got = mem_calloc(n, sizeof(*got));
    struct error err = {0};
    double worst = 0;

    assert_int_equal(r->g.vocab, e->vocab);
    if (model_runner_score(r, e->prompt, e->n_prompt, e->n_scored, got, &err) != ST_OK)
        fail_msg("%s: %s", what, err.message);
    for (size_t i = 0; i < n; i++)
        worst = fmax(worst, fabs((double)got[i] - (double)e->logprobs[i]) / e->max_logit);
    if (!(worst <= bound)) fail_msg("%s: max|delta| / max|logit| = %.2e", what, worst);
    mem_free(got);
}

/* Follows the reference's tokens, and must choose each of them unless another was as good. */
static void check_greedy(struct model_runner *r, const struct expected *e, double bound,
                         bool is_f32, const char *what) {
    uint32_t token = e->prompt[e->n_prompt - 1], next;
    struct error err = {0};

    model_runner_reset(r);
    assert_int_equal(model_runner_score(r, e->prompt, e->n_prompt - 1, 0, NULL, &err), ST_OK);
    for (uint32_t i = 0; i < e->n_greedy; i++) {
        if (model_runner_next(r, token, &next, &err) != ST_OK)
            fail_msg("%s: %s", what, err.message);
        if (next != e->greedy[i] && (is_f32 || (double)e->gap[i] > bound * e->max_logit))
            fail_msg("%s: greedy token %u is %u, not %u", what, i, next, e->greedy[i]);
        token = e->greedy[i];
    }
}

static void check_model(const char *name, const struct run *run) {
    struct model_runner_config config = {.ops = run->ops,
                                         .path = run->path,
                                         .weight_dtype = run->dtype,
                                         .kv_dtype = run->dtype,
                                         .block_size = run->block_size,
                                         .n_step_tokens = run->n_step_tokens};
    double bound = run->dtype == DTYPE_F32   ? BOUND_F32
                   : run->dtype == DTYPE_F16 ? BOUND_F16
                                             : BOUND_BF16;
    bool has_int8_inputs = strcmp(name, "quant-w8a8") == 0;
    struct expected e = {.file = NULL};
    struct model_runner r;
    struct error err = {0};
    char folder[256], what[128];

    snprintf(folder, sizeof(folder), DATA "%s", name);
    snprintf(what, sizeof(what), "%s on %s %s in %s", name, run->ops->name,
             run->path ? run->path : "", dtype_name(run->dtype));
    if (has_int8_inputs) bound = BOUND_BF16; /* an input between two codes goes either way */
    expected_open(&e, name);
    if (model_runner_open(&r, folder, &config, e.n_prompt + e.n_greedy, &err) != ST_OK)
        fail_msg("%s: %s", what, err.message);
    check_logprobs(&r, &e, bound, what);
    check_greedy(&r, &e, bound, run->dtype == DTYPE_F32 && !has_int8_inputs, what);
    model_runner_close(&r);
    safetensors_close(e.file);
}

static void models_answer_as_the_reference(void **state) {
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(runs); i++) {
        struct backend_config config = {.path = runs[i].path};
        struct backend_info info;

        if (runs[i].ops->probe(&config, &info, NULL) != ST_OK) continue; /* not on this machine */
        for (size_t j = 0; j < ARRAY_LEN(names); j++)
            check_model(names[j], &runs[i]);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(models_answer_as_the_reference),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
