/* tests/fuzz/fuzz_unit.c - a unit from anywhere: opening never leaves its bytes, what is refused
 * leaves zeros, and what opens has the token ids and the chain that were asked for.
 *
 * The first byte chooses: opened as it is, or put over a valid unit, plain or sealed, with the
 * header's sum made right, so that the fuzzer gets behind it. */
#include <stdlib.h>
#include <string.h>

#include "common/base/hash.h"
#include "common/base/mem.h"
#include "tests/support/unit_fixture.h"

#define BLOCK_BYTES 200

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static struct unit_codec *codec_of(bool is_sealed) {
    static const uint8_t keys[2][32] = {{1}, {2}};
    static struct unit_codec *codecs[2];
    struct unit_codec_config c = {.block_tokens = UNIT_TEST_TOKENS, .block_bytes = BLOCK_BYTES};

    if (is_sealed) c.fleet_keys = keys, c.n_fleet_keys = 2;
    if (!codecs[is_sealed] && unit_codec_create(&codecs[is_sealed], &c, NULL) != ST_OK) abort();
    return codecs[is_sealed];
}

static void sum_again(uint8_t *unit, size_t ids_bytes) {
    uint64_t sum = hash_64(unit + 224, 32, hash_64(unit, 216, 0));

    if (!(unit[12] & 1)) sum = hash_64(unit + UNIT_HEADER_BYTES, ids_bytes, sum);
    memcpy(unit + 216, &sum, sizeof(sum));
}

static void open_it(struct unit_codec *codec, const struct unit_block *b, const uint8_t *in,
                    size_t n) {
    uint8_t out[BLOCK_BYTES], wanted[BLOCK_BYTES];
    struct unit_summary s;
    enum unit_cause cause;

    unit_block_fill(b, wanted, BLOCK_BYTES);
    cause = unit_open(codec, &b->id, in, n, out);
    if (cause != UNIT_FINE) memset(wanted, 0, BLOCK_BYTES);
    if (memcmp(out, wanted, BLOCK_BYTES) != 0) abort();
    if (unit_peek(codec, in, n, &s) && s.n_bytes != unit_bytes(codec)) abort();
    if (cause == UNIT_FINE && !unit_peek(codec, in, n, &s)) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static struct unit_block block;
    static uint8_t payload[BLOCK_BYTES];
    struct unit_codec *codec;
    size_t at, n;
    uint8_t *unit;

    if (size < 3) return 0;
    if (block.id.n_tokens == 0) {
        unit_block_make(&block, NULL, (uint8_t[UNIT_DIGEST_BYTES]){0}, 1, 1);
        unit_block_fill(&block, payload, BLOCK_BYTES);
    }
    codec = codec_of(data[0] & 1);
    if (data[0] & 2) {
        unit = mem_alloc(size);
        memcpy(unit, data, size);
        open_it(codec, &block, unit + 1, size - 1);
    } else {
        n = unit_bytes(codec);
        unit = mem_alloc(n);
        if (unit_seal(codec, &block.id, payload, unit) != ST_OK) abort();
        at = (data[1] | data[2] << 8) % n;
        for (size_t i = 3; i < size && at + i - 3 < n; i++)
            unit[at + i - 3] ^= data[i];
        if (data[0] & 4) sum_again(unit, unit_payload_at(codec) - UNIT_HEADER_BYTES);
        open_it(codec, &block, unit, data[0] & 8 ? at : n);
    }
    mem_free(unit);
    return 0;
}
