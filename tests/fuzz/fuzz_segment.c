/* tests/fuzz/fuzz_segment.c - a segment file from anywhere: reading its summary, or walking without
 * one, takes no more memory than the file is long, and every row it gives is a row of the file.
 *
 * The first byte chooses: the bytes as they are, or behind rows and a trailer that are right. */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "common/base/mem.h"
#include "tests/support/unit_fixture.h"
#include "worker/kv/tiers/file_segment.h"

#define BLOCK_BYTES 100
#define STEP        ALIGN_UP(UNIT_HEADER_BYTES + 64 + BLOCK_BYTES, SEGMENT_STEP)
#define MAX_BYTES   (16 * FILE_PAGE)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static struct unit_codec *codec(void) {
    static struct unit_codec *codec;
    struct unit_codec_config c = {.block_tokens = UNIT_TEST_TOKENS, .block_bytes = BLOCK_BYTES};

    if (!codec && unit_codec_create(&codec, &c, NULL) != ST_OK) abort();
    return codec;
}

/* A write of n units, one of the same again, and their summary; how long that is. */
static size_t make_segment(uint8_t *to, uint32_t n) {
    uint64_t second = ALIGN_UP(n * STEP, FILE_PAGE), end = second + ALIGN_UP(n * STEP, FILE_PAGE);
    struct segment_row *rows = (struct segment_row *)(to + end);
    uint8_t payload[BLOCK_BYTES];
    struct unit_block b;

    for (uint32_t i = 0; i < 2 * n; i++) {
        uint64_t at = i < n ? i * STEP : second + (i - n) * STEP;

        unit_block_make(&b, NULL, (uint8_t[UNIT_DIGEST_BYTES]){0}, 1, i);
        unit_block_fill(&b, payload, BLOCK_BYTES);
        if (unit_seal(codec(), &b.id, payload, to + at) != ST_OK) abort();
        rows[i] = (struct segment_row){b.id.key, (uint32_t)(at / SEGMENT_STEP), 0};
    }
    segment_finish(rows, 2 * n, end);
    return end + segment_summary_bytes(2 * n);
}

static void read_it(const uint8_t *bytes, size_t n) {
    struct segment_row *rows = NULL, *again = NULL;
    uint32_t n_rows = 0, n_again = 0;
    int fd = memfd_create("segment", 0);

    if (fd < 0 || write(fd, bytes, n) != (ssize_t)n) abort();
    if (segment_read(NULL, fd, n, &rows, &n_rows) == ST_OK) {
        if (n_rows * sizeof(*rows) > n) abort();
        if (segment_read(NULL, fd, n, &again, &n_again) != ST_OK || n_again != n_rows ||
            memcmp(rows, again, n_rows * sizeof(*rows)) != 0)
            abort();
        mem_free(again);
        mem_free(rows);
    }
    rows = NULL;
    if (segment_walk(NULL, fd, n, codec(), &rows, &n_rows) != ST_OK) abort();
    for (uint32_t i = 0; i < n_rows; i++)
        if (rows[i].place * (uint64_t)SEGMENT_STEP + STEP > n) abort();
    mem_free(rows);
    close(fd);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static uint8_t segment[MAX_BYTES];
    size_t n, at;

    if (size < 4) return 0;
    if (data[0] & 1) {
        read_it(data + 4, size - 4);
        return 0;
    }
    memset(segment, 0, sizeof(segment));
    n = make_segment(segment, data[0] >> 1 & 7);
    at = (data[1] | data[2] << 8) % n;
    if (data[3] & 1) at = n - 1 - at % 256; /* the trailer, and rows before it */
    for (size_t i = 4; i < size && at + i - 4 < n; i++)
        segment[at + i - 4] ^= data[i];
    read_it(segment, data[3] & 2 ? at : n);
    return 0;
}
