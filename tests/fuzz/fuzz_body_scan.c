/* tests/fuzz/fuzz_body_scan.c - no input may crash the scan, and all versions must give the result
 * of the plain one, which is their definition. Without the noise of clients a body stays one, and
 * only its system prompt differs; in each API the prompt's text is that of the body without it. */
#include <stdlib.h>
#include <string.h>

#include "router/prompt/body_scan_internal.h"
#include "router/prompt/client_noise.h"
#include "router/prompt/prompt_hash.h"
#include "router/prompt/prompt_text.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* The body without the cuts, which must lie in it, in order. */
static struct str cut_noise(struct str body, const struct client_noise *noise) {
    char *text = malloc(body.len + 1), *to = text;
    const char *from = body.ptr, *end = body.ptr + body.len;

    for (uint32_t i = 0; i < noise->n; i++) {
        struct str cut = noise->cuts[i];

        if (!cut.len || cut.ptr < from || cut.len > (size_t)(end - cut.ptr)) abort();
        to = mempcpy(to, from, (size_t)(cut.ptr - from));
        from = cut.ptr + cut.len;
    }
    to = mempcpy(to, from, (size_t)(end - from));
    if ((size_t)(to - text) != body.len - client_noise_len(noise)) abort();
    return (struct str){text, (size_t)(to - text)};
}

struct copy {
    char *to;
    size_t n, n_max;
};

static void take(void *arg, struct str piece) {
    struct copy *copy = arg;

    if (!piece.len || piece.len > copy->n_max - copy->n) abort();
    memcpy(copy->to + copy->n, piece.ptr, piece.len);
    copy->n += piece.len;
}

static struct copy copy_text(const struct body_scan *scan, const struct client_noise *noise,
                             enum api_form api) {
    const struct prompt_text text = {scan, noise, api};
    struct copy copy = {.n_max = prompt_text_max(scan, api)};

    copy.to = malloc(copy.n_max + 1);
    if (prompt_text_read(&text, take, &copy) > copy.n) abort();
    return copy;
}

/* What is left out as noise is what is cut from the body, and the chain is that of the text. */
static void check_text(const struct body_scan *scan, const struct client_noise *noise,
                       enum api_form api, const struct body_scan *after) {
    static const struct client_noise none;
    const struct prompt_text text = {scan, noise, api};
    struct copy left_out = copy_text(scan, noise, api), cut = copy_text(after, &none, api);
    uint64_t chain[8], whole[8];
    struct prompt_hashed hashed;

    if (left_out.n != cut.n || memcmp(left_out.to, cut.to, cut.n) != 0) abort();
    prompt_hash_text(&text, 1, 16, chain, 8, &hashed);
    if (hashed.n_bytes != cut.n || hashed.n_blocks != prompt_hash_n_blocks(cut.n, 16, 8)) abort();
    prompt_hash_chain((struct str){cut.to, cut.n}, 1, 16, whole, hashed.n_blocks);
    if (memcmp(chain, whole, hashed.n_blocks * sizeof(*chain)) != 0) abort();
    free(left_out.to);
    free(cut.to);
}

static void check_noise(struct str body, const struct body_scan *scan) {
    struct client_noise noise;
    struct body_scan after;
    struct str rest;

    client_noise_find(scan, &noise);
    rest = cut_noise(body, &noise);
    if (body_scan_with(rest, &after, string_scan_at(0), NULL) != ST_OK) abort();
    for (int i = 0; i < BODY_KEY_COUNT; i++) {
        bool may_differ = i == BODY_SYSTEM || i == BODY_MESSAGES;

        if (!scan->spans[i].ptr != !after.spans[i].ptr) abort();
        if (!may_differ && !str_eq(scan->spans[i], after.spans[i])) abort();
    }
    check_text(scan, &noise, API_OPENAI, &after);
    check_text(scan, &noise, API_MESSAGES, &after);
    check_text(scan, &noise, API_RESPONSES, &after);
    free((void *)(uintptr_t)rest.ptr);
}

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
    check_noise(body, &want);
    return 0;
}
