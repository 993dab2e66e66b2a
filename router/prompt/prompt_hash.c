/* router/prompt/prompt_hash.c - each field of the scope is hashed with its position and length, so
 * that different scopes never yield equal bytes. */
#include "router/prompt/prompt_hash.h"

#include <assert.h>
#include <string.h>

#include "common/base/hash.h"
#include "common/base/rng.h"
#include "router/prompt/body_scan.h"
#include "router/prompt/client_noise.h"

#define HASHING_VERSION 1   /* changes when equal bytes get different hashes */
#define PIECE_BYTES     128 /* the longest that XXH3 hashes in one straight line */

static struct str first_of(const struct body_scan *scan, enum body_key a, enum body_key b) {
    return scan->spans[a].ptr ? scan->spans[a] : scan->spans[b];
}

struct prompt_scope prompt_scope_of(const struct body_scan *scan) {
    return (struct prompt_scope){
        .model = scan->spans[BODY_MODEL],
        .adapter = first_of(scan, BODY_LORA_PATH, BODY_ADAPTER),
        .tools = scan->spans[BODY_TOOLS],
        .cache_salt = first_of(scan, BODY_CACHE_SALT, BODY_EXTRA_KEY),
    };
}

uint64_t prompt_hash_seed(const struct prompt_scope *scope, uint64_t secret) {
    const struct str fields[] = {scope->model, scope->adapter, scope->tools, scope->cache_salt,
                                 scope->tenant};
    uint64_t h = rng_mix(secret);

    for (size_t i = 0; i < ARRAY_LEN(fields); i++) {
        if (fields[i].len)
            h = hash_64(fields[i].ptr, fields[i].len, rng_mix(h ^ (fields[i].len << 8 | i)));
    }
    return h;
}

uint64_t prompt_hash_seed_memo(struct prompt_seed_memo *memo, const struct prompt_scope *scope,
                               uint64_t secret) {
    bool is_plain =
        !(scope->adapter.len | scope->tools.len | scope->cache_salt.len | scope->tenant.len);

    if (!is_plain || scope->model.len > PROMPT_MEMO_MODEL_MAX)
        return prompt_hash_seed(scope, secret);
    if (!memo->is_set || !str_eq((struct str){memo->model, memo->model_len}, scope->model)) {
        *memo = (struct prompt_seed_memo){.is_set = true, .model_len = scope->model.len};
        if (scope->model.len) memcpy(memo->model, scope->model.ptr, scope->model.len);
        memo->seed = prompt_hash_seed(scope, secret);
    }
    return memo->seed;
}

uint64_t prompt_hash_scheme(uint64_t secret, uint32_t block_bytes) {
    uint64_t parts[] = {secret, block_bytes, HASHING_VERSION};

    return hash_64(parts, sizeof(parts), 0) | 1; /* 0: none */
}

uint32_t prompt_hash_n_blocks(size_t n, uint32_t block_bytes, uint32_t max_blocks) {
    size_t n_blocks = n / block_bytes + (n % block_bytes != 0);

    return (uint32_t)MIN(n_blocks, (size_t)max_blocks);
}

void prompt_hash_chain(struct str prompt, uint64_t seed, uint32_t block_bytes, uint64_t *chain,
                       uint32_t n_blocks) {
    const char *p = prompt.ptr;
    struct hash_key key;
    uint64_t h = seed;

    assert(prompt_hash_n_blocks(prompt.len, block_bytes, n_blocks) == n_blocks);
    hash_key_from_seed(&key, seed);
    for (uint32_t i = 0; i < n_blocks; i++) {
        size_t left = MIN(prompt.len - (size_t)i * block_bytes, (size_t)block_bytes);

        for (size_t n; left; left -= n, p += n) {
            n = MIN(left, (size_t)PIECE_BYTES);
            h = rng_mix(h ^ hash_keyed_64(&key, p, n));
        }
        chain[i] = h & PROMPT_HASH_MASK;
    }
}

/* --- a prompt in several parts ---------------------------------------------------------------- */

_Static_assert(2 + CLIENT_NOISE_CUTS_MAX <= PROMPT_PARTS_MAX, "each cut makes one part more");

static void add_part(struct prompt_text *out, const char *from, const char *to) {
    if (from == to) return;
    out->parts[out->n++] = (struct str){from, (size_t)(to - from)};
    out->len += (size_t)(to - from);
}

/* The span without the cuts that lie in it. */
static void add_span(struct prompt_text *out, struct str span, const struct client_noise *noise) {
    const char *from = span.ptr, *end = span.ptr + span.len;

    if (!span.ptr) return;
    for (uint32_t i = 0; i < noise->n; i++) {
        struct str cut = noise->cuts[i];

        if (cut.ptr < from || cut.ptr >= end) continue;
        add_part(out, from, cut.ptr);
        from = cut.ptr + cut.len;
    }
    add_part(out, from, end);
}

void prompt_text_of(const struct body_scan *scan, const struct client_noise *noise,
                    struct prompt_text *out) {
    *out = (struct prompt_text){0};
    add_span(out, scan->spans[BODY_SYSTEM], noise);
    add_span(out, body_scan_prompt(scan), noise);
}

size_t prompt_text_within(const struct prompt_text *text, struct str span) {
    size_t n = 0;

    for (uint32_t i = 0; span.ptr && i < text->n; i++) {
        struct str part = text->parts[i];

        if (part.ptr >= span.ptr && part.ptr < span.ptr + span.len) n += part.len;
    }
    return n;
}

/* Where the next bytes are. */
struct part_cursor {
    const struct prompt_text *text;
    uint32_t part;
    size_t at;
};

/* The next n bytes: where they are, or copied to `copy` if they lie in several parts. */
static const char *next_bytes(struct part_cursor *c, size_t n, char *copy) {
    struct str part = c->text->parts[c->part];
    size_t n_copied = 0;

    if (part.len - c->at >= n) {
        c->at += n;
        return part.ptr + c->at - n;
    }
    while (n_copied < n) {
        size_t piece;

        part = c->text->parts[c->part];
        piece = MIN(n - n_copied, part.len - c->at);
        memcpy(copy + n_copied, part.ptr + c->at, piece);
        n_copied += piece;
        c->at += piece;
        if (c->at == part.len && c->part + 1 < c->text->n) {
            c->part++;
            c->at = 0;
        }
    }
    return copy;
}

void prompt_hash_text(const struct prompt_text *text, uint64_t seed, uint32_t block_bytes,
                      uint64_t *chain, uint32_t n_blocks) {
    struct part_cursor cursor = {.text = text};
    struct hash_key key;
    uint64_t h = seed;
    char copy[PIECE_BYTES];

    if (text->n < 2) {
        prompt_hash_chain(text->n ? text->parts[0] : STR(""), seed, block_bytes, chain, n_blocks);
        return;
    }
    hash_key_from_seed(&key, seed);
    for (uint32_t i = 0; i < n_blocks; i++) {
        size_t left = MIN(text->len - (size_t)i * block_bytes, (size_t)block_bytes);

        for (size_t n; left; left -= n) {
            n = MIN(left, (size_t)PIECE_BYTES);
            h = rng_mix(h ^ hash_keyed_64(&key, next_bytes(&cursor, n, copy), n));
        }
        chain[i] = h & PROMPT_HASH_MASK;
    }
}
