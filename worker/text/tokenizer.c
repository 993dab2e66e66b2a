/* worker/text/tokenizer.c - encoding and decoding; the file format is tokenizer_load.c. */
#include "worker/text/tokenizer.h"

#include "common/hash.h"
#include "worker/text/tokenizer_internal.h"
#include "worker/text/unicode.h"

#include <stdlib.h>

void token_list_fini(struct token_list *list) {
    mem_free(list->ids);
    *list = (struct token_list){0};
}

static enum status reserve(struct token_list *list, size_t n) {
    size_t cap = MAX(list->n + n, list->cap + list->cap / 2);
    uint32_t *ids;

    if (list->cap - list->n >= n) return ST_OK;
    ids = mem_try_realloc(list->ids, MAX(cap, (size_t)64) * sizeof(*ids));
    if (!ids) return ST_NOMEM;
    list->ids = ids;
    list->cap = MAX(cap, (size_t)64);
    return ST_OK;
}

enum status token_list_push(struct token_list *list, uint32_t id) {
    if (reserve(list, 1) != ST_OK) return ST_NOMEM;
    list->ids[list->n++] = id;
    return ST_OK;
}

/* --- the object --------------------------------------------------------------------------------*/
struct tokenizer *tokenizer_alloc(uint32_t n_tokens) {
    struct tokenizer *t = mem_zalloc(sizeof(*t));
    uint64_t n_slots = 16;

    arena_init(&t->arena, 256 * 1024);
    t->bos = t->eos = TOKEN_NONE;
    t->n_tokens = n_tokens;
    while (n_slots < (uint64_t)n_tokens * 2)
        n_slots *= 2;
    t->by_bytes_mask = (uint32_t)(n_slots - 1);
    t->tokens = mem_try_zalloc((size_t)n_tokens * sizeof(*t->tokens));
    t->by_bytes = mem_try(n_slots * sizeof(*t->by_bytes));
    if (!t->tokens || !t->by_bytes) {
        tokenizer_destroy(t);
        return NULL;
    }
    memset(t->by_bytes, 0xFF, n_slots * sizeof(*t->by_bytes));
    memset(t->byte_id, 0xFF, sizeof(t->byte_id));
    return t;
}

void tokenizer_destroy(struct tokenizer *t) {
    if (!t) return;
    bpe_fini(&t->bpe);
    added_tokens_fini(&t->raw);
    added_tokens_fini(&t->normalized);
    mem_free(t->tokens);
    mem_free(t->by_bytes);
    arena_fini(&t->arena);
    mem_free(t);
}

bool tokenizer_set_bytes(struct tokenizer *t, uint32_t id, struct str bytes) {
    struct token *token = &t->tokens[id];

    if (token->bytes.ptr) return false;
    token->bytes = (struct str){arena_strndup(&t->arena, bytes.ptr, bytes.len), bytes.len};
    return true;
}

void tokenizer_index(struct tokenizer *t, uint32_t id) {
    struct str bytes = t->tokens[id].bytes;
    uint32_t i = (uint32_t)hash_64(bytes.ptr, bytes.len, 0) & t->by_bytes_mask;

    while (t->by_bytes[i] != TOKEN_NONE)
        i = (i + 1) & t->by_bytes_mask;
    t->by_bytes[i] = id;
    if (bytes.len == 1) t->byte_id[(uint8_t)*bytes.ptr] = id;
}

uint32_t tokenizer_lookup(const struct tokenizer *t, struct str bytes) {
    uint32_t i = (uint32_t)hash_64(bytes.ptr, bytes.len, 0) & t->by_bytes_mask;

    for (;; i = (i + 1) & t->by_bytes_mask) {
        uint32_t id = t->by_bytes[i];

        if (id == TOKEN_NONE || str_eq(t->tokens[id].bytes, bytes)) return id;
    }
}

struct tokenizer *tokenizer_create_bytes(void) {
    static const char *const special[] = {"<|endoftext|>", "<|im_start|>", "<|im_end|>"};
    struct tokenizer *t = tokenizer_alloc(TOKENIZER_BYTES_VOCAB);
    struct added_token *added = mem_calloc(ARRAY_LEN(special), sizeof(*added));

    if (!t || bpe_init(&t->bpe, 0) != ST_OK) abort(); /* 10 KiB */
    for (uint32_t i = 0; i < 256; i++) {
        char byte = (char)i;

        tokenizer_set_bytes(t, i, (struct str){&byte, 1});
        tokenizer_index(t, i);
    }
    for (uint32_t i = 0; i < ARRAY_LEN(special); i++) {
        uint32_t id = 256 + i;

        tokenizer_set_bytes(t, id, str_of(special[i]));
        t->tokens[id].is_special = true;
        added[i] = (struct added_token){t->tokens[id].bytes, id, ADDED_SPECIAL};
    }
    added_tokens_init(&t->raw, added, ARRAY_LEN(special));
    t->pretokenize = PRETOKENIZE_WHOLE;
    t->eos = 256;
    return t;
}

/* --- encoding ----------------------------------------------------------------------------------*/
struct encoding {
    const struct tokenizer *t;
    bool skip_special;
    struct token_list *out;
};

static enum status encode_piece(const struct encoding *e, struct str piece) {
    const struct tokenizer *t = e->t;
    struct token_list *out = e->out;
    uint32_t *ids, whole = tokenizer_lookup(t, piece);
    size_t n;

    if (whole != TOKEN_NONE && (t->ignores_merges || t->tokens[whole].is_whole)) {
        return token_list_push(out, whole);
    }
    if (reserve(out, piece.len) != ST_OK) return ST_NOMEM;
    ids = out->ids + out->n;
    for (size_t i = 0; i < piece.len; i++)
        ids[i] = t->byte_id[(uint8_t)piece.ptr[i]];
    if (!t->bpe.n) {
        out->n += piece.len;
        return ST_OK;
    }
    n = bpe_run(&t->bpe, ids, piece.len);
    out->n += n;
    return n ? ST_OK : ST_NOMEM;
}

/* Text that holds no added token. */
static enum status encode_plain(const struct encoding *e, struct str text, struct error *err) {
    const char *p = text.ptr, *end = text.ptr + text.len;

    (void)err;
    while (p < end) {
        size_t n = pretokenize_next(e->t->pretokenize, p, end);
        enum status st = encode_piece(e, (struct str){p, n});

        if (st != ST_OK) return st;
        p += n;
    }
    return ST_OK;
}

/* Cuts `text` at the tokens of `set`; `between` encodes what lies between them. */
static enum status encode_around(const struct encoding *e, const struct added_tokens *set,
                                 struct str text,
                                 enum status (*between)(const struct encoding *, struct str,
                                                        struct error *),
                                 struct error *err) {
    const char *from = text.ptr, *end = text.ptr + text.len;
    enum status st = ST_OK;

    while (from < end && st == ST_OK) {
        struct added_match m = added_tokens_next(set, text, from, e->skip_special);

        if (m.begin > from) st = between(e, (struct str){from, (size_t)(m.begin - from)}, err);
        if (st == ST_OK && m.token) st = token_list_push(e->out, m.token->id);
        from = m.end;
    }
    return st;
}

static enum status encode_normalized(const struct encoding *e, struct str text, struct error *err) {
    char *composed = NULL;
    enum status st;

    if (e->t->has_nfc && !unicode_is_nfc_quick(text)) {
        st = unicode_to_nfc(text, &composed, &text.len, err);
        if (st != ST_OK) return st;
        text.ptr = composed;
    }
    st = encode_around(e, &e->t->normalized, text, encode_plain, err);
    mem_free(composed);
    return st;
}

static enum status push_all(struct token_list *out, const uint32_t *ids, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) {
        if (token_list_push(out, ids[i]) != ST_OK) return ST_NOMEM;
    }
    return ST_OK;
}

enum status tokenizer_encode(const struct tokenizer *t, struct str text, uint32_t flags,
                             struct token_list *out, struct error *err) {
    struct encoding e = {t, flags & TOKENIZE_PLAIN, out};
    size_t n_before = out->n;
    enum status st = ST_OK;

    if (!str_is_utf8(text)) return error_set(err, ST_INVALID, "the text is not valid UTF-8");
    if (flags & TOKENIZE_SPECIAL) st = push_all(out, t->before, t->n_before);
    if (st == ST_OK) st = encode_around(&e, &t->raw, text, encode_normalized, err);
    if (st == ST_OK && (flags & TOKENIZE_SPECIAL)) st = push_all(out, t->after, t->n_after);
    if (st == ST_OK) return ST_OK;
    out->n = n_before;
    if (st == ST_NOMEM) {
        return error_set(err, ST_NOMEM, "no memory to tokenize %zu bytes of text", text.len);
    }
    return st;
}

/* --- decoding ----------------------------------------------------------------------------------*/
uint32_t tokenizer_vocab(const struct tokenizer *t) {
    return t->n_tokens;
}

struct str tokenizer_bytes(const struct tokenizer *t, uint32_t id) {
    return id < t->n_tokens ? t->tokens[id].bytes : STR_NULL;
}

bool tokenizer_is_special(const struct tokenizer *t, uint32_t id) {
    return id < t->n_tokens && t->tokens[id].is_special;
}

void tokenizer_decode(const struct tokenizer *t, const uint32_t *ids, size_t n, bool skip_special,
                      struct buf *out) {
    for (size_t i = 0; i < n; i++) {
        if (skip_special && tokenizer_is_special(t, ids[i])) continue;
        buf_append_str(out, tokenizer_bytes(t, ids[i]));
    }
}

bool tokenizer_find(const struct tokenizer *t, struct str bytes, uint32_t *id) {
    const struct added_token *a = added_tokens_find(&t->raw, bytes);
    uint32_t found;

    if (!a) a = added_tokens_find(&t->normalized, bytes);
    found = a ? a->id : tokenizer_lookup(t, bytes);
    if (found == TOKEN_NONE) return false;
    *id = found;
    return true;
}

bool tokenizer_find_special(const struct tokenizer *t, struct str text, uint32_t *id) {
    uint32_t found;

    if (!tokenizer_find(t, text, &found) || !t->tokens[found].is_special) return false;
    *id = found;
    return true;
}

uint32_t tokenizer_bos(const struct tokenizer *t) {
    return t->bos;
}

uint32_t tokenizer_eos(const struct tokenizer *t) {
    return t->eos;
}
