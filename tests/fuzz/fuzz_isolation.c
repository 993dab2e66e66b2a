/* tests/fuzz/fuzz_isolation.c - a body with its salt put in reads as before, except the salt. */
#include <stdlib.h>
#include <string.h>

#include "router/access/isolation.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define SALT "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

static void check(struct str body, const struct body_scan *before, bool is_generate) {
    enum body_key key = is_generate ? BODY_EXTRA_KEY : BODY_CACHE_SALT;
    struct isolation_splice s;
    struct body_scan after;
    char *text;
    size_t n;

    isolation_splice(&s, body, before, is_generate, SALT);
    if (s.at + s.removed > body.len) abort();
    n = body.len - s.removed + s.len;
    text = malloc(n);
    memcpy(text, body.ptr, s.at);
    memcpy(text + s.at, s.text, s.len);
    memcpy(text + s.at + s.len, body.ptr + s.at + s.removed, body.len - s.at - s.removed);
    if (body_scan((struct str){text, n}, &after, NULL) != ST_OK) {
        /* one key more may be one too many */
        if (before->spans[key].ptr) abort();
        free(text);
        return;
    }
    if (!str_eq(after.spans[key], STR("\"" SALT "\""))) abort();
    for (int i = 0; i < BODY_KEY_COUNT; i++) {
        if (i == (int)key) continue;
        if (!before->spans[i].ptr != !after.spans[i].ptr) abort();
        if (before->spans[i].ptr && !str_eq(before->spans[i], after.spans[i])) abort();
    }
    free(text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct str body = {(const char *)data, size};
    struct body_scan scan;

    if (body_scan(body, &scan, NULL) != ST_OK) return 0;
    check(body, &scan, false);
    check(body, &scan, true);
    return 0;
}
