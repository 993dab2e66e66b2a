/* worker/text/tokenizer/tokenizer_load.c - tokenizer.json, checked against what we build.
 *
 * Byte-level vocabularies spell bytes as printable characters (the GPT-2 alphabet): space is
 * U+0120, and so on. Here every entry becomes the bytes it stands for, and the alphabet is not seen
 * again. An entry with other characters is a literal that no byte sequence spells: it can be
 * decoded, and encoded only if it is an added token too. */
#include <stdio.h>

#include "common/base/file.h"
#include "common/text/json.h"
#include "worker/text/tokenizer/tokenizer.h"
#include "worker/text/tokenizer/tokenizer_internal.h"
#include "worker/text/tokenizer/tokenizer_json.h"
#include "worker/text/unicode/unicode.h"

#define MAX_FILE_BYTES ((size_t)256 << 20)
#define MAX_VALUES     16000000u
#define ALPHABET_SIZE  (256 + 68) /* 188 bytes are printable and stand for themselves */

/* What is needed while loading only. */
struct loading {
    struct tokenizer *t;
    int16_t byte_of[ALPHABET_SIZE]; /* code point -> byte, -1 for none */
    struct buf scratch;
    size_t n_baked; /* bytes of it */
    struct error *err;
};

static bool is_printable_byte(uint32_t b) {
    return (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
}

static void make_alphabet(int16_t byte_of[ALPHABET_SIZE]) {
    uint32_t n = 256;

    for (uint32_t i = 0; i < ALPHABET_SIZE; i++)
        byte_of[i] = -1;
    for (uint32_t b = 0; b < 256; b++)
        byte_of[is_printable_byte(b) ? b : n++] = (int16_t)b;
}

/* Appends the bytes that `spelled` stands for to the scratch; false when it is no such spelling. */
static bool to_bytes(struct loading *l, struct str spelled) {
    const char *p = spelled.ptr, *end = p + spelled.len;

    while (p < end) {
        uint32_t n, cp = unicode_decode(p, end, &n);

        if (cp >= ALPHABET_SIZE || l->byte_of[cp] < 0) return false;
        buf_append_char(&l->scratch, (char)l->byte_of[cp]);
        p += n;
    }
    return true;
}

/* --- vocabulary and merges ---------------------------------------------------------------------*/
static enum status count_ids(const struct json *vocab, const struct json *added, uint32_t *n,
                             struct error *err) {
    uint64_t max = 0, id;

    JSON_FOR_EACH(v, vocab) {
        if (json_to_u64(v, &id) != ST_OK || id >= TOKENIZER_MAX_VOCAB) {
            struct str key = json_key(v);

            return error_set(err, ST_INVALID, "vocabulary entry '%.40s' has an invalid id",
                             key.ptr);
        }
        max = MAX(max, id);
    }
    JSON_FOR_EACH(v, added) {
        if (json_to_u64(json_get(v, "id"), &id) != ST_OK || id >= TOKENIZER_MAX_VOCAB) {
            return error_set(err, ST_INVALID, "an added token has an invalid id");
        }
        max = MAX(max, id);
    }
    *n = (uint32_t)max + 1;
    return ST_OK;
}

/* A token found in normalized text is looked for as the normalizer writes it. */
static enum status normalize_content(struct loading *l, struct added_token *a) {
    struct pattern_run run;
    struct buf between[2];
    struct str normal = STR_NULL;
    enum status st;

    pattern_run_init(&run, a->content.len);
    buf_init(&between[0], 1 << 20);
    buf_init(&between[1], 1 << 20);
    st = normalizer_apply(&l->t->normalizer, &run, a->content, between, &normal, l->err);
    if (st == ST_OK && !str_eq(normal, a->content)) {
        a->content = (struct str){arena_strndup(&l->t->arena, normal.ptr, normal.len), normal.len};
    }
    pattern_run_fini(&run);
    buf_fini(&between[0]);
    buf_fini(&between[1]);
    return st;
}

static enum status read_added(struct loading *l, const struct json *v, struct added_token *a) {
    static const struct {
        const char *name;
        uint32_t flag;
    } flags[] = {{"special", ADDED_SPECIAL},
                 {"single_word", ADDED_SINGLE_WORD},
                 {"lstrip", ADDED_LSTRIP},
                 {"rstrip", ADDED_RSTRIP},
                 {"normalized", ADDED_NORMALIZED}};
    uint64_t id = 0;

    if (json_to_str(json_get(v, "content"), &a->content) != ST_OK || !a->content.len ||
        a->content.len > ADDED_MAX_BYTES || json_to_u64(json_get(v, "id"), &id) != ST_OK) {
        return error_set(l->err, ST_INVALID, "an added token has no content of 1 to %d bytes",
                         ADDED_MAX_BYTES);
    }
    a->id = (uint32_t)id;
    for (size_t i = 0; i < ARRAY_LEN(flags); i++) {
        if (tokenizer_json_true(v, flags[i].name, false)) a->flags |= flags[i].flag;
    }
    if (!tokenizer_set_key(l->t, a->id, a->content)) {
        return error_set(l->err, ST_INVALID, "two added tokens have the id %u", a->id);
    }
    l->t->flags[a->id] |= TOKEN_ADDED | (a->flags & ADDED_SPECIAL ? TOKEN_SPECIAL : 0);
    a->content = l->t->keys[a->id];
    return a->flags & ADDED_NORMALIZED ? normalize_content(l, a) : ST_OK;
}

static enum status load_added(struct loading *l, const struct json *added) {
    size_t n = json_count(added);
    struct added_token *raw = mem_calloc(n, sizeof(*raw)),
                       *normalized = mem_calloc(n, sizeof(*raw));
    uint32_t n_raw = 0, n_normalized = 0;
    enum status st = ST_OK;

    for (const struct json *v = json_first(added); v && st == ST_OK; v = json_next(v)) {
        struct added_token a = {.id = 0};

        st = read_added(l, v, &a);
        if (st != ST_OK || !a.content.len) continue;
        if (a.flags & ADDED_NORMALIZED) {
            normalized[n_normalized++] = a;
        } else {
            raw[n_raw++] = a;
        }
    }
    added_tokens_init(&l->t->raw, raw, n_raw);
    added_tokens_init(&l->t->normalized, normalized, n_normalized);
    return st;
}

/* The key that an entry of the file is: the bytes it spells, or its characters. False when it is a
 * literal, which no text becomes. */
static bool key_of(struct loading *l, struct str entry, struct str *key) {
    *key = entry;
    if (!tokenizer_is_byte_level(l->t)) return true;
    buf_clear(&l->scratch);
    if (!to_bytes(l, entry)) return false;
    *key = buf_str(&l->scratch);
    return true;
}

static enum status load_entry(struct loading *l, const struct json *v) {
    struct str entry = json_key(v), key;
    uint64_t id = 0;
    bool is_key = key_of(l, entry, &key);

    if (json_to_u64(v, &id) != ST_OK) return ST_INTERNAL; /* count_ids saw to it */
    if (!tokenizer_set_key(l->t, (uint32_t)id, key)) {
        struct str there = l->t->keys[id];

        if (!str_eq(there, entry) && !str_eq(there, key)) {
            return error_set(l->err, ST_INVALID, "id %u belongs to both '%.40s' and '%.40s'",
                             (uint32_t)id, there.ptr, entry.ptr);
        }
        is_key = is_key && str_eq(there, key);
    }
    if (is_key && key.len && tokenizer_lookup(l->t, key) == TOKEN_NONE) {
        tokenizer_index(l->t, (uint32_t)id);
    }
    return ST_OK;
}

static enum status load_vocab(struct loading *l, const struct json *vocab) {
    JSON_FOR_EACH(v, vocab) {
        enum status st = load_entry(l, v);

        if (st != ST_OK) return st;
    }
    return ST_OK;
}

/* <0x00> to <0xFF>, as far as they are there. */
static void find_byte_tokens(struct tokenizer *t) {
    for (uint32_t b = 0; b < 256; b++) {
        char key[8];

        snprintf(key, sizeof(key), "<0x%02X>", b);
        t->byte_id[b] = tokenizer_lookup(t, str_of(key));
    }
}

/* The two halves of a merge: "a b", or ["a", "b"]. */
static bool halves_of(const struct json *v, struct str *a, struct str *b) {
    const char *space;

    if (json_type(v) == JSON_ARRAY) {
        const struct json *first = json_first(v), *second = first ? json_next(first) : NULL;

        return second && !json_next(second) && json_to_str(first, a) == ST_OK &&
               json_to_str(second, b) == ST_OK;
    }
    if (json_to_str(v, a) != ST_OK) return false;
    space = memchr(a->ptr, ' ', a->len);
    if (!space) return false;
    *b = (struct str){space + 1, a->len - (size_t)(space + 1 - a->ptr)};
    a->len = (size_t)(space - a->ptr);
    return true;
}

static bool append_key(struct loading *l, struct str half) {
    if (tokenizer_is_byte_level(l->t)) return to_bytes(l, half);
    buf_append_str(&l->scratch, half);
    return true;
}

/* Whether a blank stands in it behind another character. */
static bool has_inner_blank(struct str key) {
    struct str blank = TOKENIZER_BLANK;

    while (str_starts(key, blank)) {
        key.ptr += blank.len;
        key.len -= blank.len;
    }
    return str_find(key, blank) >= 0;
}

static enum status load_merge(struct loading *l, const struct json *v, uint32_t rank) {
    uint32_t left = TOKEN_NONE, right = TOKEN_NONE, merged = TOKEN_NONE;
    struct str a, b, whole;
    size_t n_left;

    if (!halves_of(v, &a, &b)) {
        return error_set(l->err, ST_INVALID, "merge %u is not a pair", rank);
    }
    buf_clear(&l->scratch);
    if (append_key(l, a)) {
        n_left = buf_len(&l->scratch);
        if (append_key(l, b)) {
            whole = buf_str(&l->scratch);
            left = tokenizer_lookup(l->t, (struct str){whole.ptr, n_left});
            right = tokenizer_lookup(l->t, (struct str){whole.ptr + n_left, whole.len - n_left});
            merged = tokenizer_lookup(l->t, whole);
        }
    }
    if (left == TOKEN_NONE || right == TOKEN_NONE || merged == TOKEN_NONE) {
        return error_set(l->err, ST_INVALID,
                         "merge %u ('%.40s' '%.40s') has a part or a result that is not in the "
                         "vocabulary",
                         rank, a.ptr, b.ptr);
    }
    bpe_add(&l->t->bpe, left, right, rank, merged);
    if (l->t->cuts_at_blanks) l->t->cuts_at_blanks = !has_inner_blank(l->t->keys[merged]);
    return ST_OK;
}

static enum status load_merges(struct loading *l, const struct json *merges) {
    size_t n = json_count(merges);
    uint32_t rank = 0;

    if (n > TOKENIZER_MAX_VOCAB) return error_set(l->err, ST_INVALID, "%zu merges", n);
    if (bpe_init(&l->t->bpe, (uint32_t)n) != ST_OK) {
        return error_set(l->err, ST_NOMEM, "out of memory for %zu merges", n);
    }
    JSON_FOR_EACH(v, merges) {
        enum status st = load_merge(l, v, rank++);

        if (st != ST_OK) return st;
    }
    return ST_OK;
}

/* Marks the tokens that merging their own symbols ends in. Most words of most texts are such
 * tokens, and cost one lookup then instead of ten. */
static void find_whole_tokens(struct tokenizer *t) {
    uint32_t ids[64];

    for (uint32_t slot = 0; slot <= t->mask; slot++) {
        uint32_t id = t->slots[slot].id;
        size_t n;

        if (id == TOKEN_NONE || t->keys[id].len > ARRAY_LEN(ids)) continue;
        n = tokenizer_symbols(t, t->keys[id], ids);
        if (n > 1) n = bpe_run(&t->bpe, ids, n);
        if (n == 1 && ids[0] == id) t->flags[id] |= TOKEN_WHOLE;
    }
}

static enum status decode_one(struct loading *l, uint32_t id, struct str key) {
    struct tokenizer *t = l->t;
    char byte;
    int b;

    buf_clear(&l->scratch);
    if (decoder_bake(&t->decoder, key, &l->scratch, &b) != ST_OK ||
        (l->n_baked += buf_len(&l->scratch)) > MAX_FILE_BYTES) {
        return error_set(l->err, ST_TOO_LARGE,
                         "the decoded token '%.*s' is too long: at most %u bytes each and %zu in "
                         "total are supported",
                         (int)MIN(key.len, 40u), key.ptr, DECODE_MAX_BYTES, MAX_FILE_BYTES);
    }
    byte = (char)b;
    if (b >= 0) {
        t->bytes[id] = (struct str){arena_strndup(&t->arena, &byte, 1), 1};
        t->flags[id] |= TOKEN_BYTE;
    } else if (str_eq(buf_str(&l->scratch), key)) {
        t->bytes[id] = key;
    } else {
        size_t n = buf_len(&l->scratch);

        t->bytes[id] = (struct str){arena_strndup(&t->arena, n ? buf_ptr(&l->scratch) : "", n), n};
    }
    return ST_OK;
}

/* What each id stands for, where that is not its key. Tokens found in normalized text stand for
 * what is found. */
static enum status decode_all(struct loading *l) {
    struct tokenizer *t = l->t;
    enum status st = ST_OK;

    if (tokenizer_is_byte_level(t)) return ST_OK;
    for (uint32_t id = 0; id < t->n_tokens && st == ST_OK; id++) {
        if (t->keys[id].ptr) st = decode_one(l, id, t->keys[id]);
    }
    for (uint32_t i = 0; i < t->normalized.n && st == ST_OK; i++)
        st = decode_one(l, t->normalized.tokens[i].id, t->normalized.tokens[i].content);
    return st;
}

static enum status check_model(const struct json *model, struct error *err) {
    static const char *const affixes[] = {"continuing_subword_prefix", "end_of_word_suffix"};
    double dropout = 0;
    struct str affix;

    if (json_type(model) != JSON_OBJECT) return error_set(err, ST_INVALID, "'model' is missing");
    if (!tokenizer_json_is(model, "BPE")) {
        return error_set(err, ST_UNSUPPORTED, "unsupported model.type '%.40s': supported is BPE",
                         tokenizer_json_type(model));
    }
    if (json_to_f64(json_get(model, "dropout"), &dropout) == ST_OK && dropout > 0) {
        return error_set(err, ST_UNSUPPORTED, "unsupported model.dropout %g: supported is 0",
                         dropout);
    }
    for (size_t i = 0; i < ARRAY_LEN(affixes); i++) {
        if (json_to_str(json_get(model, affixes[i]), &affix) == ST_OK && affix.len) {
            return error_set(err, ST_UNSUPPORTED, "unsupported model.%s '%.40s': supported is none",
                             affixes[i], affix.ptr);
        }
    }
    if (json_type(json_get(model, "vocab")) != JSON_OBJECT ||
        json_type(json_get(model, "merges")) != JSON_ARRAY) {
        return error_set(err, ST_INVALID,
                         "model.vocab must be an object and model.merges an array");
    }
    return ST_OK;
}

/* --- the whole file ----------------------------------------------------------------------------*/
/* "bos_token" is a string, or an object with the string as content. */
static uint32_t named_token(const struct tokenizer *t, const struct json *config,
                            const char *name) {
    const struct json *v = json_get(config, name);
    uint32_t id;
    struct str text;

    if (json_type(v) == JSON_OBJECT) v = json_get(v, "content");
    return json_to_str(v, &text) == ST_OK && tokenizer_find(t, text, &id) ? id : TOKEN_NONE;
}

/* How the model treats unknown characters. */
static enum status load_unknown(struct loading *l, const struct json *model) {
    struct tokenizer *t = l->t;
    struct str unk;

    t->ignores_merges = tokenizer_json_true(model, "ignore_merges", false);
    t->fuses_unk = tokenizer_json_true(model, "fuse_unk", false);
    t->has_byte_fallback = t->char_id && tokenizer_json_true(model, "byte_fallback", false);
    if (t->char_id) find_byte_tokens(t);
    if (json_to_str(json_get(model, "unk_token"), &unk) != ST_OK) return ST_OK;
    t->unk = tokenizer_lookup(t, unk);
    if (t->unk != TOKEN_NONE || tokenizer_is_byte_level(t)) return ST_OK;
    return error_set(l->err, ST_INVALID, "the unk_token '%.40s' is not in the vocabulary", unk.ptr);
}

static enum status load_model(struct loading *l, const struct json *model) {
    struct tokenizer *t = l->t;
    enum status st = load_vocab(l, json_get(model, "vocab"));

    if (st == ST_OK) st = load_unknown(l, model);
    t->cuts_at_blanks =
        t->char_id && !t->ignores_merges && tokenizer_lookup(t, TOKENIZER_BLANK) != TOKEN_NONE;
    return st == ST_OK ? load_merges(l, json_get(model, "merges")) : st;
}

static enum status load_all(struct loading *l, const struct json *root) {
    const struct json *model = json_get(root, "model"), *added = json_get(root, "added_tokens");
    struct pretokenizer pretokenizer = {0};
    uint32_t n_tokens = 0;
    enum status st;

    st = check_model(model, l->err);
    if (st == ST_OK) st = count_ids(json_get(model, "vocab"), added, &n_tokens, l->err);
    if (st == ST_OK) st = pretokenizer_load(&pretokenizer, json_get(root, "pre_tokenizer"), l->err);
    if (st == ST_OK) {
        l->t = tokenizer_alloc(n_tokens, pretokenizer.is_byte_level);
        if (!l->t) st = error_set(l->err, ST_NOMEM, "out of memory for %u tokens", n_tokens);
    }
    if (st != ST_OK) {
        pretokenizer_fini(&pretokenizer);
        return st;
    }
    l->t->pretokenizer = pretokenizer;
    st = normalizer_load(&l->t->normalizer, json_get(root, "normalizer"), l->err);
    if (st == ST_OK) {
        st = decoder_load(&l->t->decoder, json_get(root, "decoder"), pretokenizer.is_byte_level,
                          l->err);
    }
    if (st == ST_OK) st = load_added(l, added);
    if (st == ST_OK) st = load_model(l, model);
    if (st == ST_OK)
        st = tokenizer_post_processor_load(l->t, json_get(root, "post_processor"), l->err);
    if (st != ST_OK) return st;
    find_whole_tokens(l->t);
    return decode_all(l);
}

enum status tokenizer_parse(struct tokenizer **out, struct str tokenizer_json,
                            struct str config_json, struct error *err) {
    static const struct json_limits limits = {.max_bytes = MAX_FILE_BYTES,
                                              .max_values = MAX_VALUES};
    struct loading l = {.err = err};
    struct json *root = NULL, *config = NULL;
    enum status st = json_parse(&root, tokenizer_json, &limits, err);

    if (st != ST_OK) return error_prefix(err, "tokenizer.json"), st;
    make_alphabet(l.byte_of);
    buf_init(&l.scratch, 0);
    st = load_all(&l, root);
    if (st != ST_OK) error_prefix(err, "tokenizer.json");
    if (st == ST_OK && config_json.len) {
        st = json_parse(&config, config_json, NULL, err);
        if (st != ST_OK) error_prefix(err, "tokenizer_config.json");
    }
    if (st == ST_OK && config) {
        l.t->bos = named_token(l.t, config, "bos_token");
        l.t->eos = named_token(l.t, config, "eos_token");
    }
    buf_fini(&l.scratch);
    json_destroy(config);
    json_destroy(root);
    if (st != ST_OK) {
        tokenizer_destroy(l.t);
        return st;
    }
    *out = l.t;
    return ST_OK;
}

/* A folder without tokenizer.json: what it has instead, and how to make one of it. */
static enum status refuse_folder(const char *folder, struct error *err) {
    static const char *const others[] = {"tokenizer.model", "vocab.json", "tiktoken.model"};
    const char *found = "no tokenizer";
    char path[4096];

    for (size_t i = 0; i < ARRAY_LEN(others); i++) {
        snprintf(path, sizeof(path), "%s/%s", folder, others[i]);
        if (!file_exists(path)) continue;
        found = others[i];
        break;
    }
    return error_set(err, ST_NOT_FOUND,
                     "the model folder %s has no tokenizer.json, only %s. Create tokenizer.json: "
                     "cd '%s' && python3 -c \"from transformers import AutoTokenizer; "
                     "AutoTokenizer.from_pretrained('.').save_pretrained('.')\" (pip install "
                     "transformers sentencepiece protobuf)",
                     folder, found, folder);
}

enum status tokenizer_open(struct tokenizer **out, const char *folder, struct error *err) {
    char path[4096], *text = NULL, *config = NULL;
    size_t n = 0, n_config = 0;
    enum status st;

    snprintf(path, sizeof(path), "%s/tokenizer.json", folder);
    st = file_read(path, MAX_FILE_BYTES, &text, &n, err);
    if (st == ST_NOT_FOUND) return refuse_folder(folder, err);
    if (st != ST_OK) return st;
    snprintf(path, sizeof(path), "%s/tokenizer_config.json", folder);
    if (file_exists(path)) st = file_read(path, MAX_FILE_BYTES, &config, &n_config, err);
    if (st == ST_OK) {
        st = tokenizer_parse(out, (struct str){text, n}, (struct str){config, n_config}, err);
        if (st != ST_OK) error_prefix(err, "%s", folder);
    }
    mem_free(text);
    mem_free(config);
    return st;
}
