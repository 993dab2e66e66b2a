/* tests/bench/peer/gguf.h - writes a model file that llama.cpp reads: as much of GGUF 3 as a model
 * of random weights needs.
 *
 *      "GGUF", version, number of tensors, number of pairs
 *      the pairs: key, type, value         the tensors: name, dimensions, type, offset
 *      the data, each tensor at a multiple of 32
 *
 * Order of calls: create, the pairs, declare all tensors, put their data in the same order,
 * finish. */
#ifndef TESTS_BENCH_PEER_GGUF_H
#define TESTS_BENCH_PEER_GGUF_H

#include "common/base/base.h"

struct gguf;
struct gguf *gguf_create(const char *path); /* NULL: cannot be written */
void gguf_string(struct gguf *g, const char *key, const char *value);
void gguf_u32(struct gguf *g, const char *arch, const char *key, uint32_t value); /* arch.key */
void gguf_f32(struct gguf *g, const char *arch, const char *key, float value);
/* A matrix (n, k) of bf16, or with k 0 a vector (n) of f32. */
void gguf_declare(struct gguf *g, const char *name, uint32_t n, uint32_t k);
void gguf_put(struct gguf *g, const char *name, const void *data); /* aborts on another name */
int gguf_finish(struct gguf *g); /* closes and frees; 0, or -1 when something was not written */

#endif
