/* tests/fuzz/fuzz_http_response.c - response heads of workers: whole and byte by byte, one
 * result. */
#include <stdlib.h>
#include <string.h>

#include "common/base/mem.h"
#include "common/http/http_parse.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct http_head *whole = mem_alloc(sizeof(*whole)), *bytewise = mem_alloc(sizeof(*bytewise));
    char *copy = mem_alloc(size + 1);
    enum status st, st_bytewise = ST_AGAIN;

    memcpy(copy, data, size);
    http_response_init(whole, size & 1);
    http_response_init(bytewise, size & 1);
    st = http_head_parse(whole, copy, size, NULL);
    for (size_t n = 1; n <= size && st_bytewise == ST_AGAIN; n++) {
        st_bytewise = http_head_parse(bytewise, copy, n, NULL);
    }
    if (st != st_bytewise || whole->refused_code != bytewise->refused_code) abort();
    if (st == ST_OK && (whole->head_len != bytewise->head_len || whole->head_len > size ||
                        whole->status_code < 100 || whole->framing != bytewise->framing)) {
        abort();
    }
    mem_free(copy);
    mem_free(whole);
    mem_free(bytewise);
    return 0;
}
