/* tests/bench/bench_model.c - whole models on the cpu backend: tokens per second, and beside
 * llama.cpp where it is linked (`make bench-cpu LLAMA=DIR`).
 *
 * A model is a real geometry with random bf16 weights. They go to the backend and, for the other
 * engine, into a GGUF file that is removed at the end; so both compute the same, and their next
 * tokens are compared before they are timed. A round is a prefill of 512 tokens and 16 decode steps
 * behind it, taken in turns; figures are medians over all rounds of the ratios of neighbours in
 * time. With one thread, time is processor time; with several, the clock's. What a step includes:
 * ours chooses a token and its logprob, the other stops at the logits. Usage: bench_model [threads]
 * [path] [seconds per model]. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/mem.h"
#include "common/base/rng.h"
#include "kernels/backend.h"
#include "kernels/dtype.h"
#include "tests/bench/peer/gguf.h"
#include "tests/bench/peer/peer.h"

#define N_PROMPT   512u
#define N_DECODE   16u
#define CONTEXT    1024u
#define BLOCK_SIZE 16u
#define MAX_ROUNDS 400u

struct shape {
    const char *name, *arch;
    uint32_t n_layers, d_model, n_heads, n_kv_heads, d_ff, vocab;
    float rope_theta;
    bool has_qkv_bias;
};

static const struct shape shapes[] = {
    {"Qwen2-0.5B", "qwen2", 24, 896, 14, 2, 4864, 151936, 1e6f, true},
    {"Llama-3.2-1B", "llama", 16, 2048, 32, 8, 8192, 128256, 5e5f, false},
};
#define HEAD_DIM 64u

struct bench {
    const struct shape *shape;
    struct backend_device *dev;
    struct backend_model *model;
    struct backend_stage stage;
    struct gguf *gguf;       /* while writing; NULL: no reader */
    struct peer_model *peer; /* or NULL */
    uint32_t n_threads;
    uint16_t numbers[4096]; /* bf16, about normal */
};

static void fail(const char *what, const struct error *err) {
    fprintf(stderr, "bench_model: %s: %s\n", what, err->message);
    exit(2);
}

/* --- weights --------------------------------------------------------------------------------- */

/* How the tensor is called in a GGUF file, after the layer. */
static const char *const names[ROLE_COUNT] = {
    [ROLE_EMBED] = "token_embd.weight",
    [ROLE_FINAL_NORM] = "output_norm.weight",
    [ROLE_ATTN_NORM] = "attn_norm.weight",
    [ROLE_Q] = "attn_q.weight",
    [ROLE_K] = "attn_k.weight",
    [ROLE_V] = "attn_v.weight",
    [ROLE_O] = "attn_output.weight",
    [ROLE_Q_BIAS] = "attn_q.bias",
    [ROLE_K_BIAS] = "attn_k.bias",
    [ROLE_V_BIAS] = "attn_v.bias",
    [ROLE_FFN_NORM] = "ffn_norm.weight",
    [ROLE_GATE] = "ffn_gate.weight",
    [ROLE_UP] = "ffn_up.weight",
    [ROLE_DOWN] = "ffn_down.weight",
};

#define NAME_BYTES 64
static void name_of(char *name, enum tensor_role role, uint32_t layer) {
    if (role > ROLE_LM_HEAD)
        snprintf(name, NAME_BYTES, "blk.%u.%s", layer, names[role]);
    else
        snprintf(name, NAME_BYTES, "%s", names[role]);
}

struct wanted {
    enum tensor_role role;
    uint32_t n, k; /* k 0: a vector */
};

static uint32_t wanted_of(const struct shape *s, struct wanted *all) {
    uint32_t kv = s->n_kv_heads * HEAD_DIM, q = s->n_heads * HEAD_DIM, n = 0;

    all[n++] = (struct wanted){ROLE_EMBED, s->vocab, s->d_model};
    all[n++] = (struct wanted){ROLE_FINAL_NORM, s->d_model, 0};
    all[n++] = (struct wanted){ROLE_ATTN_NORM, s->d_model, 0};
    all[n++] = (struct wanted){ROLE_Q, q, s->d_model};
    all[n++] = (struct wanted){ROLE_K, kv, s->d_model};
    all[n++] = (struct wanted){ROLE_V, kv, s->d_model};
    all[n++] = (struct wanted){ROLE_O, s->d_model, q};
    all[n++] = (struct wanted){ROLE_FFN_NORM, s->d_model, 0};
    all[n++] = (struct wanted){ROLE_GATE, s->d_ff, s->d_model};
    all[n++] = (struct wanted){ROLE_UP, s->d_ff, s->d_model};
    all[n++] = (struct wanted){ROLE_DOWN, s->d_model, s->d_ff};
    if (s->has_qkv_bias) {
        all[n++] = (struct wanted){ROLE_Q_BIAS, q, 0};
        all[n++] = (struct wanted){ROLE_K_BIAS, kv, 0};
        all[n++] = (struct wanted){ROLE_V_BIAS, kv, 0};
    }
    return n;
}

/* GGUF's `llama` turns neighbours (2i, 2i + 1) where checkpoints turn halves (i, i + hd/2). */
static void interleave_halves(uint16_t *to, const uint16_t *from, const struct wanted *w) {
    for (uint32_t row = 0; row < w->n; row++) {
        uint32_t i = row % HEAD_DIM;
        uint32_t at = row - i + (i < HEAD_DIM / 2 ? 2 * i : 2 * (i - HEAD_DIM / 2) + 1);

        memcpy(to + (size_t)at * w->k, from + (size_t)row * w->k, w->k * sizeof(*to));
    }
}

static void write_tensor(struct bench *b, const struct wanted *w, uint32_t layer,
                         const void *data) {
    char name[NAME_BYTES];
    bool is_turned =
        strcmp(b->shape->arch, "llama") == 0 && (w->role == ROLE_Q || w->role == ROLE_K);
    size_t n = (size_t)w->n * MAX(w->k, 1u);

    name_of(name, w->role, layer);
    if (is_turned) {
        uint16_t *turned = mem_alloc(n * 2);

        interleave_halves(turned, data, w);
        gguf_put(b->gguf, name, turned);
        mem_free(turned);
    } else {
        gguf_put(b->gguf, name, data);
    }
}

static void load_tensor(struct bench *b, const struct wanted *w, uint32_t layer) {
    size_t n = (size_t)w->n * MAX(w->k, 1u), elem = w->k ? 2 : 4;
    bool is_norm =
        !w->k && w->role != ROLE_Q_BIAS && w->role != ROLE_K_BIAS && w->role != ROLE_V_BIAS;
    float scale = !w->k ? 0.1f : w->role == ROLE_EMBED ? 0.05f : 1 / sqrtf((float)w->k);
    void *data = mem_alloc(n * elem);
    struct backend_tensor t = {.role = w->role,
                               .layer = layer,
                               .dtype = w->k ? DTYPE_BF16 : DTYPE_F32,
                               .n_dims = w->k ? 2 : 1,
                               .shape = {w->n, w->k},
                               .data = data,
                               .n_bytes = n * elem};
    struct error err = {0};
    struct rng r;

    rng_seed(&r, w->role * 1000u + layer);
    if (w->k) { /* scaled once, then copied: a billion numbers are wanted */
        uint16_t scaled[ARRAY_LEN(b->numbers)], *to = data;

        for (size_t i = 0; i < ARRAY_LEN(scaled); i++)
            scaled[i] = bf16_of_f32(f32_of_bf16(b->numbers[i]) * scale);
        for (size_t i = 0; i < n; i += 4) {
            uint64_t bits = rng_u64(&r);

            for (size_t j = i; j < MIN(i + 4, n); j++, bits >>= 12)
                to[j] = scaled[bits & 4095];
        }
    } else {
        for (size_t i = 0; i < n; i++)
            ((float *)data)[i] = (is_norm ? 1 : 0) + scale * ((float)rng_f64(&r) - 0.5f);
    }
    if (backend_cpu.load_tensor(b->model, &t, &err) != ST_OK) fail("load_tensor", &err);
    if (b->gguf) write_tensor(b, w, layer, data);
    mem_free(data);
}

static void describe(struct bench *b, const struct wanted *all, uint32_t n) {
    const struct shape *s = b->shape;

    gguf_string(b->gguf, "general.architecture", s->arch);
    gguf_string(b->gguf, "tokenizer.ggml.model", "none");
    gguf_u32(b->gguf, s->arch, "context_length", CONTEXT);
    gguf_u32(b->gguf, s->arch, "embedding_length", s->d_model);
    gguf_u32(b->gguf, s->arch, "block_count", s->n_layers);
    gguf_u32(b->gguf, s->arch, "feed_forward_length", s->d_ff);
    gguf_u32(b->gguf, s->arch, "attention.head_count", s->n_heads);
    gguf_u32(b->gguf, s->arch, "attention.head_count_kv", s->n_kv_heads);
    gguf_u32(b->gguf, s->arch, "rope.dimension_count", HEAD_DIM);
    gguf_u32(b->gguf, s->arch, "vocab_size", s->vocab);
    gguf_f32(b->gguf, s->arch, "attention.layer_norm_rms_epsilon", 1e-5f);
    gguf_f32(b->gguf, s->arch, "rope.freq_base", s->rope_theta);
    for (uint32_t i = 0; i < n; i++) {
        bool has_layer = all[i].role > ROLE_LM_HEAD;

        for (uint32_t l = 0; l < (has_layer ? s->n_layers : 1); l++) {
            char name[NAME_BYTES];

            name_of(name, all[i].role, l);
            gguf_declare(b->gguf, name, all[i].n, all[i].k);
        }
    }
}

static void load(struct bench *b, const char *gguf_path) {
    const struct shape *s = b->shape;
    struct wanted all[ROLE_COUNT];
    uint32_t n = wanted_of(s, all);

    if (gguf_path) {
        b->gguf = gguf_create(gguf_path);
        if (!b->gguf) fail(gguf_path, &(struct error){.message = "cannot be written"});
        describe(b, all, n);
    }
    for (uint32_t i = 0; i < n; i++) {
        for (uint32_t l = 0; l < (all[i].role > ROLE_LM_HEAD ? s->n_layers : 1); l++)
            load_tensor(b, &all[i], l);
    }
    if (b->gguf && gguf_finish(b->gguf) != 0)
        fail(gguf_path, &(struct error){.message = "cannot be written: is the disk full?"});
    b->gguf = NULL;
}

static void open_model(struct bench *b, const char *path, const char *gguf_path) {
    const struct shape *s = b->shape;
    struct backend_config config = {.path = path, .n_threads = b->n_threads};
    float inv_freq[HEAD_DIM / 2];
    struct geometry g = {.n_layers = s->n_layers,
                         .d_model = s->d_model,
                         .n_heads = s->n_heads,
                         .n_kv_heads = s->n_kv_heads,
                         .head_dim = HEAD_DIM,
                         .d_ff = s->d_ff,
                         .vocab = s->vocab,
                         .max_context = CONTEXT,
                         .rms_eps = 1e-5f,
                         .inv_freq = inv_freq,
                         .rope_scale = 1,
                         .weight_dtype = DTYPE_BF16,
                         .kv_dtype = DTYPE_BF16,
                         .has_qkv_bias = s->has_qkv_bias,
                         .is_tied = true};
    struct backend_limits limits = {.max_rows = 1,
                                    .max_step_tokens = N_PROMPT,
                                    .max_blocks_per_row = CONTEXT / BLOCK_SIZE,
                                    .max_outputs = 1,
                                    .n_slots = 1,
                                    .block_size = BLOCK_SIZE};
    struct backend_kv_info kv;
    struct backend_step step = {0};
    struct error err = {0};

    for (uint32_t i = 0; i < HEAD_DIM / 2; i++)
        inv_freq[i] = powf(s->rope_theta, -2.0f * (float)i / HEAD_DIM);
    if (backend_cpu.open(&b->dev, &config, &err) != ST_OK) fail("open", &err);
    if (backend_cpu.load_begin(b->dev, &b->model, &g, &limits, &err) != ST_OK) fail("load", &err);
    load(b, gguf_path);
    if (backend_cpu.load_end(b->model, &err) != ST_OK) fail("load_end", &err);
    if (backend_cpu.kv_alloc(b->model, 1 + CONTEXT / BLOCK_SIZE, 0, &kv, &err) != ST_OK)
        fail("kv_alloc", &err);
    backend_cpu.stage(b->model, 0, &b->stage);
    for (uint32_t i = 0; i < CONTEXT / BLOCK_SIZE; i++)
        b->stage.update[step.n_updates++] = (struct backend_table_update){0, i, i + 1};
    if (backend_cpu.submit(b->model, 0, &step, &(backend_fence){0}, &err) != ST_OK)
        fail("the block table", &err);
    if (backend_cpu.row_bind(b->model, 0, NULL, 0, NULL, 0) != ST_OK) fail("row_bind", &err);
}

/* --- steps ----------------------------------------------------------------------------------- */

static double seconds_now(const struct bench *b) {
    struct timespec t;

    clock_gettime(b->n_threads == 1 ? CLOCK_PROCESS_CPUTIME_ID : CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* Tokens at [first, first + n); the next one. */
static int32_t our_eval(struct bench *b, const int32_t *tokens, uint32_t n, uint32_t first) {
    struct backend_step step = {.n_tokens = n, .n_rows = 1, .n_outputs = 1};
    struct backend_stage *s = &b->stage;
    struct error err = {0};
    backend_fence fence;

    s->row[0] = (struct backend_row){0, 0, n, first + n};
    for (uint32_t i = 0; i < n; i++) {
        s->token[i] = tokens[i];
        s->position[i] = first + i;
        s->kv_slot[i] = BLOCK_SIZE + first + i;
    }
    s->output[0] = (struct backend_output){.token_index = n - 1,
                                           .position = first + n,
                                           .top_p = 1,
                                           .repetition_penalty = 1,
                                           .mask = BACKEND_NO_MASK};
    /* the row's output is cleared, so that the rounds do not fill its history */
    if (backend_cpu.row_bind(b->model, 0, NULL, 0, NULL, 0) != ST_OK) fail("row_bind", &err);
    if (backend_cpu.submit(b->model, 0, &step, &fence, &err) != ST_OK) fail("submit", &err);
    return s->out_token[0];
}

static double timed_ours(struct bench *b, const int32_t *tokens, uint32_t n, uint32_t first) {
    double start = seconds_now(b);

    our_eval(b, tokens, n, first);
    return seconds_now(b) - start;
}

static double timed_peer(struct bench *b, const int32_t *tokens, uint32_t n, uint32_t first) {
    double start = seconds_now(b);

    peer_model_eval(b->peer, tokens, n, first);
    return seconds_now(b) - start;
}

static void compare_answers(struct bench *b, const int32_t *tokens) {
    uint32_t n_equal = 0, n = 0;

    for (uint32_t first = 0; first < N_PROMPT; first += 64, n++) {
        int32_t ours = our_eval(b, tokens + first, 64, first), best = 0;
        const float *logits = peer_model_eval(b->peer, tokens + first, 64, first);

        for (uint32_t i = 1; i < b->shape->vocab; i++) {
            if (logits[i] > logits[best]) best = (int32_t)i;
        }
        n_equal += ours == best;
    }
    printf("  same next token as %s at %u of %u positions\n", peer_name(), n_equal, n);
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static double median(double *x, uint32_t n) {
    qsort(x, n, sizeof(*x), by_value);
    return n ? x[n / 2] : 0;
}

static void measure(struct bench *b, double seconds) {
    static double prefill[MAX_ROUNDS], decode[MAX_ROUNDS * N_DECODE];
    static double prefill_ratio[MAX_ROUNDS], decode_ratio[MAX_ROUNDS * N_DECODE];
    uint32_t n = 0, n_decode = 0;
    uint64_t end_us;
    int32_t tokens[N_PROMPT];

    for (uint32_t i = 0; i < N_PROMPT; i++)
        tokens[i] = (int32_t)(i * 2654435761u % b->shape->vocab);
    our_eval(b, tokens, N_PROMPT, 0);
    if (b->peer) compare_answers(b, tokens);
    end_us = clock_now_us() + (uint64_t)(seconds * 1e6);
    while (n < 3 || (n < MAX_ROUNDS && clock_now_us() < end_us)) {
        prefill[n] = timed_ours(b, tokens, N_PROMPT, 0);
        if (b->peer) prefill_ratio[n] = timed_peer(b, tokens, N_PROMPT, 0) / prefill[n];
        for (uint32_t i = 0; i < N_DECODE; i++, n_decode++) {
            decode[n_decode] = timed_ours(b, tokens, 1, N_PROMPT + i);
            if (b->peer)
                decode_ratio[n_decode] = timed_peer(b, tokens, 1, N_PROMPT + i) / decode[n_decode];
        }
        n++;
    }
    printf("  prefill of %u  %8.1f tokens/s", N_PROMPT, N_PROMPT / median(prefill, n));
    if (b->peer) printf("   %.2f times %s (goal 1.5)", median(prefill_ratio, n), peer_name());
    printf("\n  decode          %8.1f tokens/s", 1 / median(decode, n_decode));
    if (b->peer) printf("   %.2f times %s (goal 1.0)", median(decode_ratio, n_decode), peer_name());
    printf("   %u rounds\n", n);
}

int main(int argc, char **argv) {
    static struct bench b;
    double seconds = argc > 3 ? atof(argv[3]) : 30;
    char path[128];
    struct rng r;

    setvbuf(stdout, NULL, _IOLBF, 0);
    b.n_threads = argc > 1 ? (uint32_t)atoi(argv[1]) : 0;
    rng_seed(&r, 1);
    for (size_t i = 0; i < ARRAY_LEN(b.numbers); i++)
        b.numbers[i] =
            bf16_of_f32((float)(rng_f64(&r) + rng_f64(&r) + rng_f64(&r) + rng_f64(&r) - 2) * 1.7f);
    snprintf(path, sizeof(path), "%s/bench_model.%d.gguf",
             getenv("TMPDIR") ? getenv("TMPDIR") : "/tmp", (int)getpid());
    for (size_t i = 0; i < ARRAY_LEN(shapes); i++) {
        struct backend_info info;

        b.shape = &shapes[i];
        open_model(&b, argc > 2 ? argv[2] : NULL, peer_name() ? path : NULL);
        backend_cpu.info(b.dev, &info);
        b.n_threads = info.n_threads;
        if (peer_name()) {
            b.peer = peer_model_open(path, b.n_threads, CONTEXT);
            unlink(path);
        }
        printf("path %s, %u threads, %s\n", info.path, b.n_threads, b.shape->name);
        measure(&b, seconds);
        if (b.peer) peer_model_close(b.peer);
        backend_cpu.unload(b.model);
        backend_cpu.close(b.dev);
    }
    if (!peer_name())
        printf("SKIPPED the comparison: make bench-cpu LLAMA=DIR, the sources of llama.cpp\n");
    return 0;
}
