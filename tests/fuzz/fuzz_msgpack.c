/* tests/fuzz/fuzz_msgpack.c - reading never leaves the bytes, and skipping is reading. */
#include <stdlib.h>

#include "common/text/msgpack.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* What msgpack_skip should do, done by reading: true when a whole value was there. */
static bool walk(struct msgpack_reader *r, uint64_t n_values) {
    struct msgpack_value v;
    uint64_t sum = 0;

    while (n_values-- > 0) {
        if (msgpack_next(r, &v) != ST_OK) return false;
        if (v.type == MSGPACK_ARRAY) n_values += v.n;
        if (v.type == MSGPACK_MAP) n_values += 2ull * v.n;
        if (v.type != MSGPACK_STR && v.type != MSGPACK_BIN) continue;
        for (size_t i = 0; i < v.bytes.len; i++)
            sum += (uint8_t)v.bytes.ptr[i];
    }
    return sum < UINT64_MAX;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct msgpack_reader a = {data, data + size}, b = a;
    bool is_whole = walk(&a, 1);

    if (is_whole != (msgpack_skip(&b) == ST_OK)) abort();
    if (is_whole && a.at != b.at) abort();
    if (a.at > a.end || b.at > b.end) abort();
    return 0;
}
