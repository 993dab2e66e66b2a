/* worker/text/tokenizer/tokenizer.c - the vocabulary, and encoding; the file format is
 * tokenizer_load.c. */
#include "worker/text/tokenizer/tokenizer.h"

#include <stdlib.h>

#include "common/base/hash.h"
#include "worker/text/tokenizer/tokenizer_internal.h"
#include "worker/text/unicode/unicode.h"

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
struct tokenizer *tokenizer_alloc(uint32_t n_tokens, bool is_byte_level) {
    struct tokenizer *t = mem_zalloc(sizeof(*t));
    uint64_t n_slots = 16;

    arena_init(&t->arena, 256 * 1024);
    t->bos = t->eos = t->unk = TOKEN_NONE;
    t->n_tokens = n_tokens;
    t->pretokenizer.is_byte_level = is_byte_level;
    while (n_slots < (uint64_t)n_tokens * 2)
        n_slots *= 2;
    t->mask = (uint32_t)(n_slots - 1);
    t->keys = mem_try_zalloc((size_t)n_tokens * sizeof(*t->keys));
    t->bytes = is_byte_level ? t->keys : mem_try_zalloc((size_t)n_tokens * sizeof(*t->bytes));
    t->flags = mem_try_zalloc(n_tokens);
    t->slots = mem_try(n_slots * sizeof(*t->slots));
    t->char_id = is_byte_level ? NULL : mem_try(TOKENIZER_CHARS * sizeof(*t->char_id));
    if (!t->keys || !t->bytes || !t->flags || !t->slots || (!is_byte_level && !t->char_id)) {
        tokenizer_destroy(t);
        return NULL;
    }
    memset(t->slots, 0xFF, n_slots * sizeof(*t->slots));
    memset(t->byte_id, 0xFF, sizeof(t->byte_id));
    if (t->char_id) memset(t->char_id, 0xFF, TOKENIZER_CHARS * sizeof(*t->char_id));
    return t;
}

void tokenizer_destroy(struct tokenizer *t) {
    if (!t) return;
    bpe_fini(&t->bpe);
    added_tokens_fini(&t->raw);
    added_tokens_fini(&t->normalized);
    normalizer_fini(&t->normalizer);
    pretokenizer_fini(&t->pretokenizer);
    if (t->bytes != t->keys) mem_free(t->bytes);
    mem_free(t->keys);
    mem_free(t->flags);
    mem_free(t->slots);
    mem_free(t->char_id);
    arena_fini(&t->arena);
    mem_free(t);
}

bool tokenizer_set_key(struct tokenizer *t, uint32_t id, struct str key) {
    if (t->keys[id].ptr) return false;
    t->keys[id] = (struct str){arena_strndup(&t->arena, key.ptr, key.len), key.len};
    return true;
}

/* A character and nothing else: its code point, else TOKENIZER_CHARS. */
static uint32_t lone_char(struct str key) {
    uint32_t n, cp;

    if (!key.len) return TOKENIZER_CHARS;
    cp = unicode_decode(key.ptr, key.ptr + key.len, &n);
    return n == key.len && cp < TOKENIZER_CHARS ? cp : TOKENIZER_CHARS;
}

void tokenizer_index(struct tokenizer *t, uint32_t id) {
    struct str key = t->keys[id];
    uint64_t hash = hash_64(key.ptr, key.len, 0);
    uint32_t i = (uint32_t)hash & t->mask, cp;

    while (t->slots[i].id != TOKEN_NONE)
        i = (i + 1) & t->mask;
    t->slots[i] = (struct token_slot){id, (uint32_t)(hash >> 32)};
    if (!t->char_id) {
        if (key.len == 1) t->byte_id[(uint8_t)*key.ptr] = id;
        return;
    }
    cp = lone_char(key);
    if (cp < TOKENIZER_CHARS) t->char_id[cp] = id;
}

uint32_t tokenizer_lookup(const struct tokenizer *t, struct str key) {
    uint64_t hash = hash_64(key.ptr, key.len, 0);
    uint32_t tag = (uint32_t)(hash >> 32);

    for (uint32_t i = (uint32_t)hash & t->mask;; i = (i + 1) & t->mask) {
        struct token_slot slot = t->slots[i];

        if (slot.id == TOKEN_NONE) return TOKEN_NONE;
        if (slot.tag == tag && str_eq(t->keys[slot.id], key)) return slot.id;
    }
}

struct tokenizer *tokenizer_create_bytes(void) {
    static const char *const special[] = {"<|endoftext|>", "<|im_start|>", "<|im_end|>"};
    struct tokenizer *t = tokenizer_alloc(TOKENIZER_BYTES_VOCAB, true);
    struct added_token *added = mem_calloc(ARRAY_LEN(special), sizeof(*added));

    if (!t || bpe_init(&t->bpe, 0) != ST_OK) abort(); /* 10 KiB */
    for (uint32_t i = 0; i < 256; i++) {
        char byte = (char)i;

        tokenizer_set_key(t, i, (struct str){&byte, 1});
        tokenizer_index(t, i);
    }
    for (uint32_t i = 0; i < ARRAY_LEN(special); i++) {
        uint32_t id = 256 + i;

        tokenizer_set_key(t, id, str_of(special[i]));
        t->flags[id] = TOKEN_SPECIAL | TOKEN_ADDED;
        added[i] = (struct added_token){t->keys[id], id, ADDED_SPECIAL};
    }
    added_tokens_init(&t->raw, added, ARRAY_LEN(special));
    t->eos = 256;
    return t;
}

/* --- one pre-token -----------------------------------------------------------------------------*/
/* The tokens of a character's bytes; false when the vocabulary lacks one. */
static bool fall_back(const struct tokenizer *t, struct str c, uint32_t *ids) {
    for (size_t i = 0; i < c.len; i++) {
        ids[i] = t->byte_id[(uint8_t)c.ptr[i]];
        if (ids[i] == TOKEN_NONE) return false;
    }
    return t->has_byte_fallback;
}

/* Characters the vocabulary lacks: their bytes; else unk, once for a run of them if they are fused,
 * put where the run is seen to have ended (bytes do not end it: so the reference does it); else
 * nothing. */
static size_t char_symbols(const struct tokenizer *t, struct str piece, uint32_t *ids) {
    const char *p = piece.ptr, *end = p + piece.len;
    uint32_t n_bytes;
    bool unk_waits = false;
    size_t n = 0;

    for (; p < end; p += n_bytes) {
        uint32_t cp = unicode_decode(p, end, &n_bytes);
        struct str c = {p, n_bytes};
        uint32_t id = cp < TOKENIZER_CHARS ? t->char_id[cp] : tokenizer_lookup(t, c);

        if (id != TOKEN_NONE) {
            if (unk_waits) ids[n++] = t->unk;
            unk_waits = false;
            ids[n++] = id;
        } else if (fall_back(t, c, ids + n)) {
            n += c.len;
        } else if (t->unk != TOKEN_NONE) {
            if (unk_waits && !t->fuses_unk) ids[n++] = t->unk;
            unk_waits = true;
        }
    }
    if (unk_waits) ids[n++] = t->unk;
    return n;
}

/* The same for a vocabulary of bytes, which nearly always has all of them. */
static size_t byte_symbols(const struct tokenizer *t, struct str piece, uint32_t *ids) {
    bool was_unk = false;
    size_t n = 0;

    for (size_t i = 0; i < piece.len; i++) {
        uint32_t id = t->byte_id[(uint8_t)piece.ptr[i]];
        bool is_unk = id == TOKEN_NONE;

        if (is_unk) id = was_unk && t->fuses_unk ? TOKEN_NONE : t->unk;
        was_unk = is_unk;
        if (id != TOKEN_NONE) ids[n++] = id;
    }
    return n;
}

size_t tokenizer_symbols(const struct tokenizer *t, struct str piece, uint32_t *ids) {
    return t->char_id ? char_symbols(t, piece, ids) : byte_symbols(t, piece, ids);
}

/* --- the stages --------------------------------------------------------------------------------*/
struct encoding {
    const struct tokenizer *t;
    bool skip_special;
    struct token_list *out;
    size_t max_n; /* of out */
    struct error *err;
    struct pattern_run patterns;
    struct pretokenize_run pieces;
    struct buf normal[2];
    struct tokenize_pace *pace; /* or NULL */
    struct bpe_pace within;     /* a piece */
    size_t n_since;             /* bytes since the last slice */
    bool is_ended;              /* by on_slice */
};

static bool slice_done(struct encoding *e, size_t n_bytes) {
    if (!e->pace->on_slice) return true;
    e->is_ended = !e->pace->on_slice(e->pace->arg, n_bytes);
    return !e->is_ended;
}

static bool piece_goes_on(void *arg) {
    return slice_done(arg, 0);
}

static enum status count_piece(struct encoding *e, size_t n_bytes) {
    size_t n_done;

    if (!e->pace) return ST_OK;
    if (e->out->n > e->max_n) {
        e->pace->has_too_many = true;
        return error_set(e->err, ST_TOO_LARGE, "the text has more than %zu tokens: shorten it",
                         e->pace->max_tokens);
    }
    e->n_since += n_bytes;
    if (e->n_since < TOKENIZE_SLICE) return ST_OK;
    n_done = e->n_since;
    e->n_since = 0;
    return slice_done(e, n_done) ? ST_OK : error_set(e->err, ST_CLOSED, "tokenizing was ended");
}

static enum status encode_word(struct encoding *e, struct str piece) {
    const struct tokenizer *t = e->t;
    struct token_list *out = e->out;
    uint32_t whole = tokenizer_lookup(t, piece), *ids;
    size_t n;

    if (whole != TOKEN_NONE && (t->ignores_merges || (t->flags[whole] & TOKEN_WHOLE))) {
        if (token_list_push(out, whole) != ST_OK) return ST_NOMEM;
        return count_piece(e, piece.len);
    }
    if (reserve(out, piece.len) != ST_OK) return ST_NOMEM;
    ids = out->ids + out->n;
    n = tokenizer_symbols(t, piece, ids);
    if (n > 1 && t->bpe.n) {
        n = bpe_run_paced(&t->bpe, ids, n, e->pace ? &e->within : NULL);
        if (e->is_ended) return error_set(e->err, ST_CLOSED, "tokenizing was ended");
        if (!n) return ST_NOMEM;
    }
    out->n += n;
    return count_piece(e, piece.len);
}

static const char *next_blank(const char *p, const char *end) {
    const char *at = p < end ? memmem(p, (size_t)(end - p), "\xE2\x96\x81", 3) : NULL;

    return at ? at : end;
}

/* Words, each with the run of blanks before it. */
static enum status encode_words(struct encoding *e, struct str piece) {
    const char *p = piece.ptr, *end = p + piece.len;

    while (p < end) {
        const char *word = p, *q;
        enum status st;

        while (end - word >= 3 && memcmp(word, "\xE2\x96\x81", 3) == 0)
            word += 3;
        q = next_blank(word, end);
        st = encode_word(e, (struct str){p, (size_t)(q - p)});
        if (st != ST_OK) return st;
        p = q;
    }
    return ST_OK;
}

static enum status encode_piece(void *arg, struct str piece) {
    struct encoding *e = arg;

    return e->t->cuts_at_blanks ? encode_words(e, piece) : encode_word(e, piece);
}

/* Text that holds no added token. */
static enum status encode_plain(struct encoding *e, struct str text, bool is_first) {
    return pretokenize(&e->pieces, text, is_first);
}

/* Cuts `text` at the tokens of `set`; `between` encodes what lies between them. */
static enum status encode_around(struct encoding *e, const struct added_tokens *set,
                                 struct str text, bool is_first,
                                 enum status (*between)(struct encoding *, struct str, bool)) {
    const char *from = text.ptr, *end = text.ptr + text.len;
    enum status st = ST_OK;

    while (from < end && st == ST_OK) {
        struct added_match m = added_tokens_next(set, text, from, e->skip_special);

        if (m.begin > from) {
            st = between(e, (struct str){from, (size_t)(m.begin - from)},
                         is_first && from == text.ptr);
        }
        if (st == ST_OK && m.token) st = token_list_push(e->out, m.token->id);
        if (st == ST_OK && m.token) st = count_piece(e, (size_t)(m.end - m.begin));
        from = m.end;
    }
    return st;
}

static enum status encode_normalized(struct encoding *e, struct str text, bool is_first) {
    enum status st =
        normalizer_apply(&e->t->normalizer, &e->patterns, text, e->normal, &text, e->err);

    return st == ST_OK ? encode_around(e, &e->t->normalized, text, is_first, encode_plain) : st;
}

static enum status push_all(struct token_list *out, const uint32_t *ids, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) {
        if (token_list_push(out, ids[i]) != ST_OK) return ST_NOMEM;
    }
    return ST_OK;
}

/* Normalizing makes text longer, by little: the limit stops steps that multiply. */
static void begin(struct encoding *e, size_t text_bytes) {
    pattern_run_init(&e->patterns, text_bytes);
    buf_init(&e->normal[0], 4096 + 64 * text_bytes);
    buf_init(&e->normal[1], 4096 + 64 * text_bytes);
    memset(&e->pieces, 0, sizeof(e->pieces));
    e->pieces.chain = &e->t->pretokenizer;
    e->pieces.patterns = &e->patterns;
    e->pieces.on_piece = encode_piece;
    e->pieces.arg = e;
    e->pieces.err = e->err;
}

static void finish(struct encoding *e) {
    pattern_run_fini(&e->patterns);
    buf_fini(&e->normal[0]);
    buf_fini(&e->normal[1]);
    pretokenize_run_fini(&e->pieces);
}

enum status tokenizer_encode_paced(const struct tokenizer *t, struct str text, uint32_t flags,
                                   struct tokenize_pace *pace, struct token_list *out,
                                   struct error *err) {
    struct encoding e = {
        .t = t, .skip_special = flags & TOKENIZE_PLAIN, .out = out, .err = err, .pace = pace};
    size_t n_before = out->n;
    enum status st = ST_OK;

    e.within = (struct bpe_pace){piece_goes_on, &e};
    e.max_n =
        pace && pace->max_tokens < SIZE_MAX - n_before ? n_before + pace->max_tokens : SIZE_MAX;
    if (!str_is_utf8(text)) return error_set(err, ST_INVALID, "the text is not valid UTF-8");
    begin(&e, text.len);
    if (flags & TOKENIZE_SPECIAL) st = push_all(out, t->before, t->n_before);
    if (st == ST_OK) st = encode_around(&e, &t->raw, text, true, encode_normalized);
    if (st == ST_OK && (flags & TOKENIZE_SPECIAL)) st = push_all(out, t->after, t->n_after);
    if (st == ST_OK) st = count_piece(&e, 0);
    finish(&e);
    if (st == ST_OK) return ST_OK;
    out->n = n_before;
    if (st == ST_NOMEM) {
        return error_set(err, ST_NOMEM, "out of memory for tokenizing %zu bytes of text", text.len);
    }
    return st;
}

enum status tokenizer_encode(const struct tokenizer *t, struct str text, uint32_t flags,
                             struct token_list *out, struct error *err) {
    return tokenizer_encode_paced(t, text, flags, NULL, out, err);
}

/* --- how much text a token takes at most -------------------------------------------------------*/
/* Every byte has a token, alone or as a part: nothing is dropped, and no run is one unknown. */
static bool covers_all_text(const struct tokenizer *t) {
    if (t->char_id && !t->has_byte_fallback) return false;
    for (uint32_t b = 0; b < 256; b++) {
        if (t->byte_id[b] == TOKEN_NONE) return false;
    }
    for (uint32_t i = 0; i < t->pretokenizer.n; i++) {
        const struct pretokenize_op *op = &t->pretokenizer.ops[i];

        if (op->kind == PRETOKENIZE_CUT && op->behavior == SPLIT_REMOVED) return false;
    }
    return true;
}

static bool swallows_blanks(const struct added_tokens *set) {
    for (uint32_t i = 0; i < set->n; i++) {
        if (set->tokens[i].flags & (ADDED_LSTRIP | ADDED_RSTRIP)) return true;
    }
    return false;
}

/* How many times shorter a step can make a text; 0 when it may drop any part of it. A character
 * becomes at least one, of one byte or more; composing makes 3 bytes of 9 (Hangul) or 10. */
static uint64_t shrinks_by(const struct normalize_step *s) {
    switch (s->kind) {
    case NORMALIZE_FORM: return 4;
    case NORMALIZE_LOWERCASE: return 4;
    case NORMALIZE_PREPEND: return 1;
    case NORMALIZE_REPLACE:
        if (s->pattern.kind != PATTERN_LITERAL || s->n_content == 0) return 0;
        return (s->pattern.n_literal + s->n_content - 1) / s->n_content;
    case NORMALIZE_STRIP:
    case NORMALIZE_STRIP_ACCENTS: return 0;
    }
    return 0;
}

uint64_t tokenizer_max_bytes_per_token(const struct tokenizer *t) {
    uint64_t longest = 1, factor = 1;

    if (!covers_all_text(t) || swallows_blanks(&t->raw) || swallows_blanks(&t->normalized))
        return 0;
    for (uint32_t i = 0; i < t->n_tokens; i++)
        longest = MAX(longest, t->keys[i].len);
    for (uint32_t i = 0; i < t->normalizer.n && factor < 1u << 20; i++)
        factor *= shrinks_by(&t->normalizer.steps[i]);
    return longest * factor;
}

/* --- questions ---------------------------------------------------------------------------------*/
uint32_t tokenizer_vocab(const struct tokenizer *t) {
    return t->n_tokens;
}

struct str tokenizer_bytes(const struct tokenizer *t, uint32_t id) {
    return id < t->n_tokens ? t->bytes[id] : STR_NULL;
}

bool tokenizer_is_special(const struct tokenizer *t, uint32_t id) {
    return id < t->n_tokens && (t->flags[id] & TOKEN_SPECIAL);
}

bool tokenizer_is_added(const struct tokenizer *t, uint32_t id) {
    return id < t->n_tokens && (t->flags[id] & TOKEN_ADDED);
}

/* Tokens of the normalized set are kept as normalized; by name they are called as in the file. */
static uint32_t find_normalized(const struct tokenizer *t, struct str text) {
    for (uint32_t i = 0; i < t->normalized.n; i++) {
        uint32_t id = t->normalized.tokens[i].id;

        if (str_eq(t->keys[id], text)) return id;
    }
    return TOKEN_NONE;
}

bool tokenizer_find(const struct tokenizer *t, struct str text, uint32_t *id) {
    const struct added_token *a = added_tokens_find(&t->raw, text);
    uint32_t found = a ? a->id : find_normalized(t, text);

    if (found == TOKEN_NONE) found = tokenizer_lookup(t, text);
    if (found == TOKEN_NONE) return false;
    *id = found;
    return true;
}

uint32_t tokenizer_bos(const struct tokenizer *t) {
    return t->bos;
}
