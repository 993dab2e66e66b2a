/* tests/fuzz/fuzz_model_config.c - any config.json and generation_config.json (a NUL stands
 * between them): refused with a sentence, or a shape that can be computed with. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "worker/model/architecture.h"
#include "worker/model/config.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define REQUIRE(x)                                                                                 \
    do {                                                                                           \
        if (!(x)) abort();                                                                         \
    } while (0)

static void require_sane(const struct model_config *m) {
    float table[512], scale;
    uint32_t n_sliding = 0;

    REQUIRE(m->architecture && m->n_layers >= 1 && m->n_layers <= CONFIG_MAX_LAYERS);
    REQUIRE(m->n_kv_heads >= 1 && m->n_heads % m->n_kv_heads == 0);
    REQUIRE(m->head_dim >= 2 && m->head_dim <= 1024 && m->head_dim % 2 == 0);
    REQUIRE(m->max_context >= 1 && m->n_eos <= CONFIG_MAX_EOS);
    for (uint32_t i = 0; i < m->n_eos; i++)
        REQUIRE(m->eos[i] < m->vocab);
    for (uint32_t i = 0; i < m->n_layers; i++) {
        REQUIRE(m->layer_kind[i] <= 1);
        n_sliding += m->layer_kind[i];
    }
    REQUIRE((n_sliding > 0) == (m->sliding_window > 0));
    REQUIRE(m->sliding_window == 0 || m->sliding_window < m->max_context);
    rope_table(&m->rope, m->head_dim, table, &scale);
    REQUIRE(isfinite(scale) && scale > 0);
    for (uint32_t i = 0; i < m->head_dim / 2; i++)
        REQUIRE(isfinite(table[i]) && table[i] >= 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    const uint8_t *nul = size ? memchr(data, 0, size) : NULL;
    size_t n = nul ? (size_t)(nul - data) : size;
    struct str generation = nul ? (struct str){(const char *)nul + 1, size - n - 1} : STR_NULL;
    struct model_config m;
    struct error err = {0};
    enum status st = config_parse(&m, (struct str){(const char *)data, n}, generation, &err);

    if (st == ST_OK) {
        require_sane(&m);
    } else {
        REQUIRE(err.message[0]);
    }
    return 0;
}
