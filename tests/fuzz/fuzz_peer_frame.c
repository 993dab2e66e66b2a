/* tests/fuzz/fuzz_peer_frame.c - any bytes from another worker, in two pieces: frames lie within
 * what came, do not depend on the pieces, and nothing is waited for beyond the limit. */
#include <stdlib.h>
#include <string.h>

#include "common/base/hash.h"
#include "worker/kv/tiers/peer/peer_frame.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static uint64_t read_body(const struct peer_frame *f) {
    struct peer_hello hello;
    struct peer_asked asked;
    struct peer_place places[PEER_KEYS_MAX];
    uint8_t proof[PEER_PROOF_BYTES];
    struct error err = {0};
    uint32_t n;

    switch (f->type) {
    case PEER_HELLO:
        peer_read_hello(f, &hello);
        return hello.generation + (uint64_t)peer_hello_compare(&hello, &hello);
    case PEER_WANT:
        if (peer_read_asked(f, &asked, &err) != ST_OK) return err.message[0] ? 1 : (abort(), 0);
        if (asked.n == 0 || asked.n > PEER_KEYS_MAX) abort();
        return hash_64(asked.keys, asked.n * sizeof(*asked.keys), asked.credit_bytes);
    case PEER_PLACES:
        if (peer_read_places(f, places, &n, proof, &err) != ST_OK)
            return err.message[0] ? 1 : (abort(), 0);
        if (n == 0 || n > PEER_KEYS_MAX) abort();
        return hash_64(places, n * sizeof(places[0]), proof[0]);
    case PEER_REFUSE: return strlen(peer_refusal_name((enum peer_refusal)peer_read_number(f)));
    case PEER_HAVE:
    case PEER_END:
    case PEER_CREDIT: return peer_read_number(f);
    default: return 0;
    }
}

/* Reads until the bytes up to `end` are used up. False: the connection is of no more use. */
static bool read_frames(struct str all, size_t end, size_t *at, uint64_t *sum) {
    for (;;) {
        struct str in = {all.ptr + *at, end - *at};
        struct error err = {0};
        struct peer_frame f;
        size_t wanted;
        enum status st = peer_frame_read(in, &f, &wanted, &err);

        if (st == ST_AGAIN) {
            if (wanted <= in.len || wanted > PEER_FRAME_MAX) abort();
            return true;
        }
        if (st != ST_OK) {
            if (!err.message[0]) abort();
            return false;
        }
        if (f.n_taken > in.len || f.body.ptr != in.ptr + PEER_HEAD_BYTES ||
            f.body.len != f.n_taken - PEER_HEAD_BYTES)
            abort();
        *at += f.n_taken;
        *sum = *sum * 31 + (uint64_t)f.type * 7 + f.flags + f.stream +
               hash_64(f.body.ptr, f.body.len, read_body(&f));
    }
}

static uint64_t read_cut(struct str all, size_t cut) {
    uint64_t sum = 0;
    size_t at = 0;

    if (read_frames(all, cut, &at, &sum)) read_frames(all, all.len, &at, &sum);
    return sum;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct str all = {(const char *)data, size};
    uint64_t sum = read_cut(all, size);

    if (read_cut(all, size / 2) != sum) abort();
    if (read_cut(all, size > 7 ? 7 : 0) != sum) abort();
    return 0;
}
