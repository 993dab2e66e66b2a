/* tests/fuzz/fuzz_zmtp.c - any bytes from a publisher, in two pieces: items lie within what came,
 * and do not depend on the pieces. */
#include <stdlib.h>

#include "common/base/hash.h"
#include "common/net/zmtp.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define FRAME_MAX 4096u

static bool is_within(struct str part, struct str whole) {
    return part.len == 0 || (part.ptr >= whole.ptr && part.ptr + part.len <= whole.ptr + whole.len);
}

/* Reads until the bytes up to `end` are used up. False: the connection is of no more use. */
static bool read_items(struct zmtp *z, struct str all, size_t end, size_t *at, uint64_t *sum) {
    for (;;) {
        struct str in = {all.ptr + *at, end - *at};
        struct zmtp_item item;
        struct error err = {0};

        if (zmtp_read(z, in, &item, &err) != ST_OK) {
            if (!err.message[0]) abort();
            return false;
        }
        if (item.n_taken > in.len || !is_within(item.body, in)) abort();
        if (item.n_taken == 0) {
            if (item.wanted <= in.len || item.wanted > FRAME_MAX + 9) abort();
            return true;
        }
        *at += item.n_taken;
        *sum = *sum * 31 + item.kind + hash_64(item.body.ptr, item.body.len, item.has_more);
        if (item.kind == ZMTP_FRAME && item.body.len > FRAME_MAX) abort();
    }
}

static uint64_t read_cut(struct str all, size_t cut, enum zmtp_socket socket) {
    struct zmtp z = {.socket = socket, .max_frame_bytes = FRAME_MAX};
    uint64_t sum = 0;
    size_t at = 0;

    if (read_items(&z, all, cut, &at, &sum)) read_items(&z, all, all.len, &at, &sum);
    return sum;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct str all = {(const char *)data, size};

    for (int socket = ZMTP_SUB; socket <= ZMTP_DEALER; socket++) {
        uint64_t sum = read_cut(all, size, (enum zmtp_socket)socket);

        if (read_cut(all, size / 2, (enum zmtp_socket)socket) != sum) abort();
        if (read_cut(all, size > 70 ? 70 : 0, (enum zmtp_socket)socket) != sum) abort();
    }
    return 0;
}
