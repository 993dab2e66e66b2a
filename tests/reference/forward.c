/* tests/reference/forward.c - one model folder on one backend, for tests/reference/models.py.
 *
 *      forward FOLDER BACKEND PATH DTYPE BLOCK_SIZE STEP_TOKENS < job > answer
 *
 * BACKEND is ref or cpu, PATH an instruction path or "-", DTYPE what weights and KV are kept in:
 * f32, f16 or bf16. The job is text: n_prompt n_scored n_forced n_free, then the ids of the prompt
 * and of its continuation. The answer is binary, little endian: (n_scored, vocab) logprobs as f32,
 * after the last tokens of the prompt; then u32: the likeliest token after the prompt and after
 * each token of the continuation but the last; then n_free tokens chosen one after the other. Exit
 * 77: this machine has no such path. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/mem.h"
#include "tests/support/model_runner.h"

static enum dtype dtype_named(const char *name) {
    return strcmp(name, "f32") == 0 ? DTYPE_F32 : strcmp(name, "f16") == 0 ? DTYPE_F16 : DTYPE_BF16;
}

static int fail(const char *what, const struct error *err) {
    fprintf(stderr, "forward: %s: %s\n", what, err->message);
    return 1;
}

static uint32_t read_u32(void) {
    unsigned v = 0;

    if (scanf("%u", &v) != 1) {
        fprintf(stderr, "forward: the job ends too early\n");
        exit(2);
    }
    return v;
}

/* Runs prompt[0 .. n - 1) and then one token at a time: `n_forced` that are given, or as chosen. */
static enum status follow(struct model_runner *r, const uint32_t *tokens, uint32_t n_prompt,
                          const uint32_t *forced, uint32_t n, struct error *err) {
    uint32_t token = tokens[n_prompt - 1];
    enum status st;

    model_runner_reset(r);
    st = model_runner_score(r, tokens, n_prompt - 1, 0, NULL, err);
    for (uint32_t i = 0; i < n && st == ST_OK; i++) {
        uint32_t next = 0;

        st = model_runner_next(r, token, &next, err);
        fwrite(&next, sizeof(next), 1, stdout);
        token = forced ? forced[i] : next;
    }
    return st;
}

int main(int argc, char **argv) {
    struct model_runner_config config = {0};
    struct model_runner r = {.model = NULL};
    uint32_t n_prompt, n_scored, n_forced, n_free, n_tokens, *tokens;
    struct backend_info info;
    struct error err = {0};
    float *logprobs;

    if (argc != 7) return fputs("forward: give six arguments\n", stderr), 2;
    config.ops = strcmp(argv[2], "ref") == 0 ? &backend_ref : &backend_cpu;
    config.path = strcmp(argv[3], "-") == 0 ? NULL : argv[3];
    config.weight_dtype = config.kv_dtype = dtype_named(argv[4]);
    config.block_size = (uint32_t)strtoul(argv[5], NULL, 10);
    config.n_step_tokens = (uint32_t)strtoul(argv[6], NULL, 10);
    if (config.ops->probe(&(struct backend_config){.path = config.path}, &info, &err) != ST_OK)
        return 77;
    n_prompt = read_u32(), n_scored = read_u32(), n_forced = read_u32(), n_free = read_u32();
    n_tokens = n_prompt + n_forced;
    tokens = mem_calloc(n_tokens + 1, sizeof(*tokens));
    for (uint32_t i = 0; i < n_tokens; i++)
        tokens[i] = read_u32();
    if (model_runner_open(&r, argv[1], &config, n_tokens + n_free + 1, &err) != ST_OK)
        return fail("open", &err);
    logprobs = mem_calloc((size_t)n_scored * r.g.vocab, sizeof(*logprobs));
    if (model_runner_score(&r, tokens, n_prompt, n_scored, logprobs, &err) != ST_OK)
        return fail("score", &err);
    fwrite(logprobs, sizeof(*logprobs), (size_t)n_scored * r.g.vocab, stdout);
    if (follow(&r, tokens, n_prompt, tokens + n_prompt, n_forced, &err) != ST_OK)
        return fail("forced", &err);
    if (follow(&r, tokens, n_prompt, NULL, n_free, &err) != ST_OK) return fail("free", &err);
    model_runner_close(&r);
    mem_free(tokens);
    mem_free(logprobs);
    return 0;
}
