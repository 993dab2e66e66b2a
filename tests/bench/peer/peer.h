/* tests/bench/peer/peer.h - another engine in the same process, so that both can take turns.
 *
 * none.c is linked when there is none; llama.c, when `make bench-cpu LLAMA=DIR` names the folder of
 * the sources of llama.cpp are. All functions abort with a message when the engine fails. */
#ifndef TESTS_BENCH_PEER_PEER_H
#define TESTS_BENCH_PEER_PEER_H

#include "common/base/base.h"

const char *peer_name(void); /* NULL: there is none, and nothing below may be called */

/* Matrix products y = W x with its own random numbers, cycling over layers as bench_cpu does.
 * `product` is (outputs, inputs): q,k,v | o | gate,up | down. PEER_Q4_K_M: Q4_K, and Q6_K for half
 * of the downs; a file of that name has Q6_K for half of the v too. */
enum peer_type { PEER_BF16, PEER_Q8_0, PEER_Q4_K_M, PEER_TYPES };
const char *peer_type_name(enum peer_type type);
struct peer_products;
struct peer_products *peer_products_open(enum peer_type type, const uint32_t product[4][2],
                                         uint32_t n_layers, uint32_t n_threads);
void peer_products_prepare(struct peer_products *p, uint32_t n_rows); /* once, before passes */
void peer_products_pass(struct peer_products *p, uint32_t n_rows);    /* the next layer */
void peer_products_close(struct peer_products *p);

/* A whole model, from a GGUF file. */
struct peer_model;
struct peer_model *peer_model_open(const char *path, uint32_t n_threads, uint32_t n_context);
/* Computes tokens at positions [first, first + n), forgetting what was there; logits of the last,
 * valid until the next call. */
const float *peer_model_eval(struct peer_model *m, const int32_t *tokens, uint32_t n,
                             uint32_t first);
void peer_model_close(struct peer_model *m);

#endif
