/* tests/fuzz/fuzz_kv_batch.c - any bytes as a batch of KV events: hashes lie within it, and the
 * picture stays whole and within its budget. */
#include <stdlib.h>

#include "router/kv/kv_picture.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static uint64_t count_hashes(struct str bytes) {
    struct kv_batch b;
    struct kv_event e;
    uint64_t hash, n = 0;
    bool is_gone;

    if (kv_batch_open(&b, bytes) != ST_OK) return 0;
    while (kv_batch_next(&b, &e) == ST_OK) {
        if (e.kind == KV_STORED && !e.block_tokens) abort();
        while (kv_event_hash(&e, &hash, &is_gone))
            n++;
    }
    return n;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct str bytes = {(const char *)data, size};
    struct kv_budget budget = {.max = 1u << 16};
    struct kv_picture_change change;
    struct kv_picture p;

    if (count_hashes(bytes) > size) abort(); /* each takes a byte */
    kv_picture_init(&p, &budget, 1);
    for (int i = 0; i < 2; i++) {
        if (kv_picture_take(&p, bytes, &change) == ST_OK && p.counts.n_batches == 0) abort();
        kv_picture_check(&p);
    }
    kv_picture_fini(&p);
    if (budget.used) abort();
    return 0;
}
