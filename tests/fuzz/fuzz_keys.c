/* tests/fuzz/fuzz_keys.c - no file of keys may crash the router, or be half taken. */
#include <stdlib.h>

#include "router/access/keys.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct str text = {(const char *)data, size};
    struct key_use use = {0};
    struct keys *k = NULL;
    uint64_t wait_us;

    if (keys_create(&k, NULL, "always", NULL) != ST_OK) abort();
    if (keys_enter(k, STR("always"), 1, 1, &use, &wait_us, NULL) != ST_OK) abort();
    if (keys_load(k, text, "fuzz", NULL) != ST_OK && keys_count(k) != 1) abort();
    if (keys_check(k, STR("always"), NULL) != ST_OK) abort();
    keys_check_invariants(k);
    keys_leave(k, &use, 1);
    keys_destroy(k);
    return 0;
}
