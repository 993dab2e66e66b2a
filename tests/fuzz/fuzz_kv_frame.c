/* tests/fuzz/fuzz_kv_frame.c - any bytes as a worker's own stream of KV events, cut anywhere:
 * reading them whole and in pieces gives the same frames, which lie in what has come. */
#include <stdlib.h>
#include <string.h>

#include "router/kv/kv_frame.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(bool is_true) {
    if (!is_true) abort();
}

static void check_frame(const struct kv_frame *f, const char *bytes, size_t n) {
    check(f->kind <= KV_FRAME_OTHER && f->n_sets <= KV_FRAME_SETS_MAX);
    check((f->kind == KV_FRAME_BATCH) == (f->number != UINT64_MAX));
    check(f->batch.ptr == bytes + KV_FRAME_HEAD && f->batch.len == n - KV_FRAME_HEAD);
    check(memchr(f->generation, '\0', sizeof(f->generation)) != NULL);
    check(memchr(f->why, '\0', sizeof(f->why)) != NULL && !strpbrk(f->generation, " &\r\n"));
    for (uint32_t i = 0; i < f->n_sets; i++)
        check(f->sets[i].tier <= KV_TIER_COUNT && f->sets[i].group >= KV_GROUP_NONE);
}

/* A copy as long as what has come, so that reading behind it is seen. */
static enum status read_prefix(const uint8_t *data, size_t n, struct kv_frame *f, size_t *n_bytes) {
    char *copy = malloc(n ? n : 1);
    enum status st;

    if (n) memcpy(copy, data, n);
    st = kv_frame_read((struct str){copy, n}, f, n_bytes, NULL);
    if (st == ST_OK && *n_bytes <= n) check_frame(f, copy, *n_bytes);
    f->batch = STR_NULL;
    free(copy);
    return st;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    while (size > 0) {
        struct kv_frame piece = {0}, whole = {0};
        size_t n_whole, n = 0, n_bytes = 1;
        enum status st = ST_OK, st_whole = read_prefix(data, size, &whole, &n_whole);

        while (st == ST_OK && n < n_bytes && n_bytes <= size) {
            n = n_bytes;
            st = read_prefix(data, n, &piece, &n_bytes);
        }
        check(st == st_whole && (st != ST_OK || n_bytes == n_whole));
        if (st != ST_OK || n_whole > size) return 0;
        check(memcmp(&piece, &whole, sizeof(piece)) == 0);
        data += n_whole;
        size -= n_whole;
    }
    return 0;
}
