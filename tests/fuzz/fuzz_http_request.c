/* tests/fuzz/fuzz_http_request.c - request heads and bodies: whole and cut in two, one result.
 *
 * The first byte sets where to cut. A message that is accepted whole must be accepted in pieces
 * with the same head and payload, and nothing may be read outside the bytes given. What is passed
 * on of an accepted head must be accepted in turn, and have the headers that are kept, in their
 * order. */
#include <stdlib.h>
#include <string.h>

#include "common/base/mem.h"
#include "common/http/http_parse.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* What was understood, in a form that can be compared. */
struct result {
    enum status st;
    uint16_t refused_code;
    uint32_t head_len;
    uint64_t head_sum, payload_bytes, payload_sum, total;
};

static void run_body(const struct http_head *h, const char *data, size_t len, struct result *r) {
    struct http_body body;
    size_t at = h->head_len, used;
    struct str payload;

    http_body_init(&body, h, 1u << 20);
    do {
        r->st = http_body_next(&body, data + at, len - at, &used, &payload, NULL);
        if (used > len - at) abort();
        for (size_t i = 0; i < payload.len; i++) {
            r->payload_sum = r->payload_sum * 31 + (unsigned char)payload.ptr[i];
        }
        r->payload_bytes += payload.len;
        at += used;
    } while (r->st == ST_AGAIN && at < len);
    r->refused_code = r->st == ST_OK || r->st == ST_AGAIN ? 0 : body.refused_code;
    r->total = at;
    if (r->payload_bytes != body.payload_bytes) abort();
}

static bool same(struct http_span a, const char *a_data, struct http_span b, const char *b_data) {
    return str_eq(http_span_str(a, a_data), http_span_str(b, b_data));
}

/* Version 1.0 has no rule about Host that dropping or keeping it could break. */
static void check_rewritten(const struct http_head *h, const char *data) {
    struct str line = STR("GET / HTTP/1.0\r\n");
    char *bytes = mem_alloc(line.len + http_kept_max(h) + 2), *end;
    struct http_head *again = mem_alloc(sizeof(*again));
    uint16_t n = 0;

    memcpy(bytes, line.ptr, line.len);
    end = http_write_kept(bytes + line.len, h, data, 0);
    if ((size_t)(end - bytes) > line.len + http_kept_max(h)) abort();
    memcpy(end, "\r\n", 2);
    http_request_init(again);
    if ((size_t)(end + 2 - bytes) <= HTTP_MAX_HEAD_BYTES) {
        if (http_head_parse(again, bytes, (size_t)(end + 2 - bytes), NULL) != ST_OK) abort();
        if (again->head_len != (size_t)(end + 2 - bytes)) abort();
        for (uint16_t i = 0; i < h->n_headers; i++) {
            const struct http_header *a = &h->headers[i], *b = &again->headers[n];

            if (a->is_option || (HTTP_HOP_BY_HOP & HTTP_NAME_BIT(a->id))) continue;
            if (n++ == again->n_headers || !b->is_plain || a->id != b->id) abort();
            if (!same(a->name, data, b->name, bytes) || !same(a->value, data, b->value, bytes)) {
                abort();
            }
        }
        if (n != again->n_headers) abort();
    }
    mem_free(again);
    mem_free(bytes);
}

static uint64_t add_span(uint64_t sum, struct http_span s) {
    return (sum * 31 + s.off) * 31 + s.len;
}

/* All that was understood of an accepted head. */
static uint64_t sum_head(const struct http_head *h) {
    uint64_t sum = h->names;

    sum = sum * 31 + h->method;
    sum = sum * 31 + h->minor_version;
    sum = sum * 31 + h->framing;
    sum = sum * 31 + h->content_length;
    sum = sum * 31 + h->keep_alive * 2u + h->expects_continue;
    sum = add_span(add_span(sum, h->method_span), h->target);
    sum = add_span(add_span(sum, h->path), h->query);
    for (uint16_t i = 0; i < h->n_headers; i++) {
        const struct http_header *header = &h->headers[i];

        sum = add_span(add_span(sum, header->name), header->value);
        sum = sum * 31 + header->id * 4u + header->is_option * 2u + header->is_plain;
    }
    return sum;
}

static struct result run(const char *data, size_t first, size_t len) {
    struct http_head *h = mem_alloc(sizeof(*h));
    struct result r = {0};

    http_request_init(h);
    r.st = http_head_parse(h, data, first, NULL);
    if (r.st == ST_AGAIN) r.st = http_head_parse(h, data, len, NULL);
    r.refused_code = h->refused_code;
    if (r.st == ST_OK) {
        if (h->head_len > len || h->n_headers > HTTP_MAX_HEADERS) abort();
        r.head_len = h->head_len;
        r.head_sum = sum_head(h);
        (void)http_head_find(h, data, STR("x"));
        check_rewritten(h, data);
        run_body(h, data, len, &r);
    }
    mem_free(h);
    return r;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct result whole, cut;
    char *copy;

    if (size < 2) return 0;
    copy = mem_alloc(size - 1);
    memcpy(copy, data + 1, size - 1);
    whole = run(copy, size - 1, size - 1);
    cut = run(copy, data[0] % (size - 1), size - 1);
    if (memcmp(&whole, &cut, sizeof(whole)) != 0) abort();
    mem_free(copy);
    return 0;
}
