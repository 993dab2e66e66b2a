/* tests/fuzz/fuzz_resp.c - any bytes from a server, in two pieces: items lie within what came, do
 * not depend on the pieces, and nothing is waited for beyond the limits. */
#include <stdlib.h>

#include "common/base/hash.h"
#include "worker/kv/tiers/store/resp.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define BULK_MAX 4096u

static bool is_within(struct str part, struct str whole) {
    return part.len == 0 || (part.ptr >= whole.ptr && part.ptr + part.len <= whole.ptr + whole.len);
}

/* Reads until the bytes up to `end` are used up. False: the connection is of no more use. */
static bool read_items(struct resp *r, struct str all, size_t end, size_t *at, uint64_t *sum) {
    for (;;) {
        struct str in = {all.ptr + *at, end - *at};
        struct resp_item item;
        struct error err = {0};

        if (resp_read(r, in, &item, &err) != ST_OK) {
            if (!err.message[0]) abort();
            return false;
        }
        if (item.n_taken > in.len || !is_within(item.text, in)) abort();
        if (r->depth > RESP_DEPTH_MAX) abort();
        if (item.kind == RESP_NONE) {
            if (item.wanted <= in.len || item.wanted > BULK_MAX + RESP_LINE_MAX) abort();
            return true;
        }
        if (item.ends_reply != (r->depth == 0)) abort();
        *at += item.n_taken;
        *sum = *sum * 31 + item.kind + item.depth * 7 + item.index + (uint64_t)item.number +
               hash_64(item.text.ptr, item.text.len, item.ends_reply);
    }
}

static uint64_t read_cut(struct str all, size_t cut) {
    struct resp r = {.max_bulk_bytes = BULK_MAX};
    uint64_t sum = 0;
    size_t at = 0;

    if (read_items(&r, all, cut, &at, &sum)) read_items(&r, all, all.len, &at, &sum);
    return sum;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct str all = {(const char *)data, size};
    uint64_t sum = read_cut(all, size);

    if (read_cut(all, size / 2) != sum) abort();
    if (read_cut(all, size > 7 ? 7 : 0) != sum) abort();
    return 0;
}
