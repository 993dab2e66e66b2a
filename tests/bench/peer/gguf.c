/* tests/bench/peer/gguf.c - see gguf.h. The counts in the head are written last. */
#include "tests/bench/peer/gguf.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/mem.h"

#define MAX_TENSORS 1024u
#define ALIGNMENT   32u

enum { TYPE_U32 = 4, TYPE_F32 = 6, TYPE_STRING = 8 }; /* of a value */
enum { TENSOR_F32 = 0, TENSOR_BF16 = 30 };

struct entry {
    char name[64];
    uint64_t n_bytes;
};

struct gguf {
    FILE *f;
    uint64_t n_pairs, n_tensors, n_put, offset;
    struct entry tensor[MAX_TENSORS];
};

static void put(struct gguf *g, const void *p, size_t n) {
    (void)!fwrite(p, 1, n, g->f); /* finish asks ferror */
}

static void put_u32(struct gguf *g, uint32_t x) {
    put(g, &x, sizeof(x));
}

static void put_u64(struct gguf *g, uint64_t x) {
    put(g, &x, sizeof(x));
}

static void put_text(struct gguf *g, const char *text) {
    put_u64(g, strlen(text));
    put(g, text, strlen(text));
}

static void pad(struct gguf *g) {
    static const char zeros[ALIGNMENT];
    long at = ftell(g->f);

    put(g, zeros, (size_t)(ALIGN_UP((uint64_t)at, ALIGNMENT) - (uint64_t)at));
}

static void put_head(struct gguf *g) {
    put(g, "GGUF", 4);
    put_u32(g, 3);
    put_u64(g, g->n_tensors);
    put_u64(g, g->n_pairs);
}

struct gguf *gguf_create(const char *path) {
    FILE *f = fopen(path, "wbe");
    struct gguf *g;

    if (!f) return NULL;
    g = mem_zalloc(sizeof(*g));
    g->f = f;
    put_head(g);
    return g;
}

void gguf_string(struct gguf *g, const char *key, const char *value) {
    g->n_pairs++;
    put_text(g, key);
    put_u32(g, TYPE_STRING);
    put_text(g, value);
}

static void put_number(struct gguf *g, const char *arch, const char *key, uint32_t type,
                       const void *value) {
    char name[96];

    snprintf(name, sizeof(name), "%s.%s", arch, key);
    g->n_pairs++;
    put_text(g, name);
    put_u32(g, type);
    put(g, value, 4);
}

void gguf_u32(struct gguf *g, const char *arch, const char *key, uint32_t value) {
    put_number(g, arch, key, TYPE_U32, &value);
}

void gguf_f32(struct gguf *g, const char *arch, const char *key, float value) {
    put_number(g, arch, key, TYPE_F32, &value);
}

void gguf_declare(struct gguf *g, const char *name, uint32_t n, uint32_t k) {
    struct entry *e = &g->tensor[g->n_tensors++];

    if (g->n_tensors > MAX_TENSORS) abort();
    snprintf(e->name, sizeof(e->name), "%s", name);
    e->n_bytes = k ? (uint64_t)n * k * 2 : (uint64_t)n * 4;
    put_text(g, name);
    put_u32(g, k ? 2 : 1);
    if (k) put_u64(g, k); /* the fastest first */
    put_u64(g, n);
    put_u32(g, k ? TENSOR_BF16 : TENSOR_F32);
    put_u64(g, g->offset);
    g->offset += ALIGN_UP(e->n_bytes, (uint64_t)ALIGNMENT);
}

void gguf_put(struct gguf *g, const char *name, const void *data) {
    const struct entry *e = &g->tensor[g->n_put++];

    if (strcmp(e->name, name) != 0) abort();
    pad(g);
    put(g, data, e->n_bytes);
}

int gguf_finish(struct gguf *g) {
    bool is_bad;

    pad(g);
    rewind(g->f);
    put_head(g);
    is_bad = ferror(g->f) || g->n_put != g->n_tensors;
    is_bad |= fclose(g->f) != 0;
    mem_free(g);
    return is_bad ? -1 : 0;
}
