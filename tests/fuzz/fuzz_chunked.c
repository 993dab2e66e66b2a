/* tests/fuzz/fuzz_chunked.c - the chunk decoder: whole and byte by byte, one result; and what it
 * accepts, encoded again and decoded again, is the same payload. */
#include <stdlib.h>
#include <string.h>

#include "common/base/mem.h"
#include "common/http/http_parse.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static enum status decode(const char *data, size_t len, size_t piece, struct buf *out,
                          size_t *total) {
    const struct http_head head = {.framing = HTTP_CHUNKED_BODY};
    enum status st = ST_AGAIN;
    struct http_body body;
    size_t at = 0, used;
    struct str payload;

    http_body_init(&body, &head, 1u << 20);
    while (st == ST_AGAIN && at < len) {
        st = http_body_next(&body, data + at, MIN(piece, len - at), &used, &payload, NULL);
        buf_append_str(out, payload);
        at += used;
    }
    *total = at;
    return st;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    size_t n_whole, n_bytewise, n_again;
    struct buf whole, bytewise, again, encoded;
    enum status st;

    buf_init(&whole, 0);
    buf_init(&bytewise, 0);
    buf_init(&again, 0);
    buf_init(&encoded, 0);
    st = decode((const char *)data, size, size, &whole, &n_whole);
    if (decode((const char *)data, size, 1, &bytewise, &n_bytewise) != st) abort();
    if ((st == ST_OK || st == ST_AGAIN) &&
        (n_whole != n_bytewise || !str_eq(buf_str(&whole), buf_str(&bytewise)))) {
        abort();
    }
    if (st == ST_OK) {
        if (buf_len(&whole)) buf_appendf(&encoded, "%zx\r\n", buf_len(&whole));
        buf_append_str(&encoded, buf_str(&whole));
        buf_append_str(&encoded, buf_len(&whole) ? STR("\r\n0\r\n\r\n") : STR("0\r\n\r\n"));
        if (decode(buf_ptr(&encoded), buf_len(&encoded), 7, &again, &n_again) != ST_OK) abort();
        if (!str_eq(buf_str(&whole), buf_str(&again))) abort();
    }
    buf_fini(&whole);
    buf_fini(&bytewise);
    buf_fini(&again);
    buf_fini(&encoded);
    return 0;
}
