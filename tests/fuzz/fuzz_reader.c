/* tests/fuzz/fuzz_reader.c - an answer in any format is read to the same parts whole, byte by byte
 * and cut elsewhere, in linear time. The first bytes choose the formats, what the vocabulary has,
 * and the cuts. */
#include <stdlib.h>

#include "tests/support/reader_texts.h"
#include "worker/output/output_internal.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define HEAD      4u
#define READ_MOST 64u /* times that a byte is read: a marker's length */

static bool never(void *arg, size_t at) {
    (void)arg, (void)at;
    return false;
}

static bool always(void *arg, size_t at) {
    (void)arg, (void)at;
    return true;
}

static bool every(void *arg, size_t at) {
    return at % *(size_t *)arg == 0;
}

static void read_in_all_ways(const struct reader_text *t, struct reader_fixture *f, size_t stride) {
    struct buf whole, cut;

    buf_init(&whole, 0);
    buf_init(&cut, 0);
    if (reader_text_read(t, f, never, NULL, &whole) >
        READ_MOST * (reader_text_length(t) + t->n + 1))
        abort();
    reader_text_read(t, f, always, NULL, &cut);
    if (!str_eq(buf_str(&whole), buf_str(&cut))) abort();
    buf_clear(&cut);
    reader_text_read(t, f, every, &stride, &cut);
    if (!str_eq(buf_str(&whole), buf_str(&cut))) abort();
    buf_fini(&whole);
    buf_fini(&cut);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    const struct call_format *calls;
    const struct reasoning_format *reasoning;
    struct reader_fixture f;
    struct reader_text t;
    struct rng rng;

    if (size < HEAD) return 0;
    rng_seed(&rng, data[3]);
    calls = call_format_at(data[0] % 32); /* NULL past the last */
    reasoning = reasoning_format_at(data[1] % 16);
    reader_fixture_init(&f, calls ? calls->name : NULL, reasoning ? reasoning->name : NULL,
                        data[2] & 1);
    f.setup.begins_in_reasoning = data[2] & 2;
    f.setup.is_single = data[2] & 4;
    reader_text_init(&t);
    t.is_cut = data[2] & 8;
    reader_text_add(&t, &f, (struct str){(const char *)data + HEAD, size - HEAD}, &rng,
                    data[2] & 16 ? 4 : 0);
    read_in_all_ways(&t, &f, 2 + data[3] % 32);
    reader_text_fini(&t);
    reader_fixture_fini(&f);
    return 0;
}
