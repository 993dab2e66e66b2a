/* tests/fuzz/fuzz_sse_usage.c - an answer whole and in pieces, one result. The first byte sets how
 * long the pieces are, and the API. */
#include <stdlib.h>

#include "router/proxy/answers/sse_usage.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static struct sse_usage feed(struct str s, size_t piece, enum api_form api) {
    struct sse_usage t;

    sse_usage_init(&t, api, true);
    for (size_t at = 0; at < s.len; at += piece)
        sse_usage_feed(&t, (struct str){s.ptr + at, MIN(piece, s.len - at)});
    return t;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct sse_usage whole, pieces;
    enum api_form api;
    struct str s;

    if (size < 2) return 0;
    api = (enum api_form)(data[0] / 100 % 3);
    s = (struct str){(const char *)data + 1, size - 1};
    whole = feed(s, s.len, api);
    pieces = feed(s, 1 + data[0] % 100, api);
    if (whole.n_events != pieces.n_events || whole.n_token_events != pieces.n_token_events ||
        whole.sequence != pieces.sequence ||
        sse_usage_tokens(&whole) != sse_usage_tokens(&pieces) ||
        whole.prompt_tokens != pieces.prompt_tokens ||
        whole.cached_tokens != pieces.cached_tokens ||
        whole.completion_tokens != pieces.completion_tokens || whole.has_done != pieces.has_done ||
        whole.has_error != pieces.has_error ||
        sse_usage_is_amid_event(&whole) != sse_usage_is_amid_event(&pieces)) {
        abort();
    }
    return 0;
}
