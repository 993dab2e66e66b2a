/* tests/fuzz/fuzz_safetensors.c - whatever a file claims, a tensor that is found lies inside it. */
#include <stdlib.h>

#include "worker/model/checkpoint/safetensors.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct safetensors *file = NULL;
    struct error err = {0};

    if (safetensors_parse(&file, data, size, "input", &err) != ST_OK) {
        if (!err.message[0]) abort(); /* every refusal has a reason */
        return 0;
    }
    for (uint32_t i = 0; i < safetensors_count(file); i++) {
        const struct safetensor *t = safetensors_at(file, i);

        if (t->data < data || t->data + t->n_bytes > data + size) abort();
        if (safetensors_find(file, t->name) != t) abort();
    }
    safetensors_close(file);
    return 0;
}
