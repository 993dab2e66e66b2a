/* tests/gpu/make_random_model.c - a model folder of a well-known shape with random weights.
 *
 *      make_random_model MODEL FOLDER       MODEL: a name of tests/gpu/random_model.h
 *
 * Writes config.json and model.safetensors (bf16; 16 GB for llama-3.1-8b) into FOLDER, which must
 * be there. A tokenizer is copied beside them by who asks; prompts are sent as token ids. For
 * measuring a whole server where no checkpoint is at hand. */
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/mem.h"
#include "common/base/rng.h"
#include "kernels/dtype.h"
#include "tests/gpu/random_model.h"

#define PATTERN     (1u << 24) /* numbers, written again and again from different places */
#define MAX_HEADER  (1u << 18)
#define MAX_TENSORS 512u

struct tensor {
    char name[96];
    uint64_t n, k; /* k 0: a vector */
    bool is_norm;
};

struct writer {
    const struct random_shape *shape;
    struct tensor tensors[MAX_TENSORS];
    uint32_t n_tensors;
    uint16_t *numbers, *ones;
    int fd;
};

static void add(struct writer *w, const char *name, uint64_t n, uint64_t k, bool is_norm) {
    struct tensor *t = &w->tensors[w->n_tensors++];

    snprintf(t->name, sizeof(t->name), "%s", name);
    t->n = n;
    t->k = k;
    t->is_norm = is_norm;
}

static void add_layer(struct writer *w, uint32_t layer) {
    const struct random_shape *s = w->shape;
    uint64_t d = s->d_model, q = (uint64_t)s->n_heads * s->head_dim;
    uint64_t kv = (uint64_t)s->n_kv_heads * s->head_dim, f = s->d_ff;
    const struct {
        const char *name;
        uint64_t n, k;
        bool is_norm, is_there;
    } parts[] = {{"input_layernorm.weight", d, 0, true, true},
                 {"post_attention_layernorm.weight", d, 0, true, true},
                 {"self_attn.q_proj.weight", q, d, false, true},
                 {"self_attn.k_proj.weight", kv, d, false, true},
                 {"self_attn.v_proj.weight", kv, d, false, true},
                 {"self_attn.o_proj.weight", d, q, false, true},
                 {"self_attn.q_proj.bias", q, 0, false, s->has_qkv_bias},
                 {"self_attn.k_proj.bias", kv, 0, false, s->has_qkv_bias},
                 {"self_attn.v_proj.bias", kv, 0, false, s->has_qkv_bias},
                 {"mlp.gate_proj.weight", f, d, false, true},
                 {"mlp.up_proj.weight", f, d, false, true},
                 {"mlp.down_proj.weight", d, f, false, true}};
    char name[96];

    for (size_t i = 0; i < ARRAY_LEN(parts); i++) {
        if (!parts[i].is_there) continue;
        snprintf(name, sizeof(name), "model.layers.%u.%s", layer, parts[i].name);
        add(w, name, parts[i].n, parts[i].k, parts[i].is_norm);
    }
}

static void list_tensors(struct writer *w) {
    const struct random_shape *s = w->shape;

    add(w, "model.embed_tokens.weight", s->vocab, s->d_model, false);
    add(w, "model.norm.weight", s->d_model, 0, true);
    if (!s->is_tied) add(w, "lm_head.weight", s->vocab, s->d_model, false);
    for (uint32_t i = 0; i < s->n_layers; i++)
        add_layer(w, i);
}

static uint64_t bytes_of(const struct tensor *t) {
    return t->n * MAX(t->k, 1) * 2;
}

static void put(struct writer *w, const void *data, uint64_t n_bytes) {
    const char *p = data;

    while (n_bytes) {
        ssize_t n = write(w->fd, p, n_bytes);

        if (n <= 0) {
            perror("make_random_model: write");
            exit(1);
        }
        p += n;
        n_bytes -= (uint64_t)n;
    }
}

static void put_header(struct writer *w) {
    char *text = mem_alloc(MAX_HEADER);
    size_t at = 0;
    uint64_t offset = 0;

    for (uint32_t i = 0; i < w->n_tensors; i++) {
        const struct tensor *t = &w->tensors[i];
        char columns[24] = "";

        if (t->k) snprintf(columns, sizeof(columns), ",%" PRIu64, t->k);
        at += (size_t)snprintf(text + at, MAX_HEADER - at,
                               "%c\"%s\":{\"dtype\":\"BF16\",\"shape\":[%" PRIu64
                               "%s],\"data_offsets\":[%" PRIu64 ",%" PRIu64 "]}",
                               i ? ',' : '{', t->name, t->n, columns, offset, offset + bytes_of(t));
        offset += bytes_of(t);
    }
    text[at++] = '}';
    while (at % 64 != 56) /* the data begins at a multiple of 64 */
        text[at++] = ' ';
    put(w, &(uint64_t){at}, 8);
    put(w, text, at);
    mem_free(text);
}

static void put_tensors(struct writer *w) {
    for (uint32_t i = 0; i < w->n_tensors; i++) {
        uint64_t left = bytes_of(&w->tensors[i]), at = rng_mix(i) % PATTERN / 2, n;

        for (; left; left -= n, at = 0) {
            n = MIN(left, (PATTERN - at) * 2);
            put(w, w->tensors[i].is_norm ? w->ones : w->numbers + at, n);
        }
    }
}

static void draw_numbers(struct writer *w) {
    struct rng rng;

    rng_seed(&rng, 1);
    w->numbers = mem_calloc(PATTERN, 2);
    w->ones = mem_calloc(PATTERN, 2);
    for (uint32_t i = 0; i < PATTERN; i++) {
        double sum = 0; /* of four uniform ones: nearly normal */

        for (int j = 0; j < 4; j++)
            sum += rng_f64(&rng) - 0.5;
        w->numbers[i] = bf16_of_f32((float)(sum * 1.7320508 * 0.02));
        w->ones[i] = bf16_of_f32(1.0f);
    }
}

static void write_config(const struct random_shape *s, const char *folder) {
    char path[4096];
    FILE *f;

    snprintf(path, sizeof(path), "%s/config.json", folder);
    f = fopen(path, "w");
    if (!f) {
        perror(path);
        exit(1);
    }
    fprintf(f,
            "{\"architectures\":[\"%s\"],\"model_type\":\"%s\",\"hidden_size\":%u,"
            "\"intermediate_size\":%u,\"num_hidden_layers\":%u,\"num_attention_heads\":%u,"
            "\"num_key_value_heads\":%u,\"head_dim\":%u,\"vocab_size\":%u,"
            "\"max_position_embeddings\":131072,\"rms_norm_eps\":1e-5,\"rope_theta\":%.1f,"
            "\"hidden_act\":\"silu\",\"tie_word_embeddings\":%s,\"torch_dtype\":\"bfloat16\"}\n",
            s->has_qkv_bias ? "Qwen2ForCausalLM" : "LlamaForCausalLM",
            s->has_qkv_bias ? "qwen2" : "llama", s->d_model, s->d_ff, s->n_layers, s->n_heads,
            s->n_kv_heads, s->head_dim, s->vocab, (double)s->theta, s->is_tied ? "true" : "false");
    if (fclose(f) != 0) exit(1);
}

int main(int argc, char **argv) {
    struct writer *w = mem_zalloc(sizeof(*w));
    char path[4096];

    w->shape = argc == 3 ? random_shape_find(argv[1]) : NULL;
    if (!w->shape) {
        fprintf(stderr, "usage: make_random_model llama-3.1-8b|qwen2.5-1.5b|slice|tiny FOLDER\n");
        return 2;
    }
    snprintf(path, sizeof(path), "%s/model.safetensors", argv[2]);
    w->fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (w->fd < 0) {
        perror(path);
        return 1;
    }
    write_config(w->shape, argv[2]);
    list_tensors(w);
    draw_numbers(w);
    put_header(w);
    put_tensors(w);
    if (close(w->fd) != 0) return 1;
    mem_free(w->numbers);
    mem_free(w->ones);
    mem_free(w);
    return 0;
}
