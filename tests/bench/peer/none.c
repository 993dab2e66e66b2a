/* tests/bench/peer/none.c - no other engine is at hand. See peer.h. */
#include <stdlib.h>

#include "tests/bench/peer/peer.h"

const char *peer_name(void) {
    return NULL;
}

const char *peer_type_name(enum peer_type type) {
    (void)type;
    return NULL;
}

struct peer_products *peer_products_open(enum peer_type type, const uint32_t product[4][2],
                                         uint32_t n_layers, uint32_t n_threads) {
    (void)type, (void)product, (void)n_layers, (void)n_threads;
    abort();
}

void peer_products_prepare(struct peer_products *p, uint32_t n_rows) {
    (void)p, (void)n_rows;
    abort();
}

void peer_products_pass(struct peer_products *p, uint32_t n_rows) {
    (void)p, (void)n_rows;
    abort();
}

void peer_products_close(struct peer_products *p) {
    (void)p;
}

struct peer_model *peer_model_open(const char *path, uint32_t n_threads, uint32_t n_context) {
    (void)path, (void)n_threads, (void)n_context;
    abort();
}

const float *peer_model_eval(struct peer_model *m, const int32_t *tokens, uint32_t n,
                             uint32_t first) {
    (void)m, (void)tokens, (void)n, (void)first;
    abort();
}

void peer_model_close(struct peer_model *m) {
    (void)m;
}
