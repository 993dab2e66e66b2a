/* tests/fuzz/fuzz_body_scan.c - no input may crash the scan, and all versions must give the result
 * of the plain one, which is their definition. */
#include <stdlib.h>
#include <string.h>

#include "router/prompt/body_scan_internal.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const struct string_scan plain = {"plain", string_scan_end_plain,
                                             string_scan_bad_utf8_plain};
    struct str body = {(const char *)data, size};
    struct body_scan want, got;
    struct error want_err = {0};
    enum status st = body_scan_with(body, &want, &plain, &want_err);

    for (uint32_t i = 0; string_scan_at(i); i++) {
        struct error err = {0};

        if (body_scan_with(body, &got, string_scan_at(i), &err) != st) abort();
        if (strcmp(err.message, want_err.message) != 0) abort();
        if (st == ST_OK && memcmp(got.spans, want.spans, sizeof(got.spans)) != 0) abort();
    }
    if (st != ST_OK) return 0;
    for (size_t i = 0; i < BODY_KEY_COUNT; i++) {
        struct str s = want.spans[i];

        if (s.ptr && (s.ptr < body.ptr || s.ptr + s.len > body.ptr + size || !s.len)) abort();
    }
    return 0;
}
