/* worker/text/tokenizer_load.c - tokenizer.json, checked against what we build.
 *
 * Byte-level vocabularies spell bytes as printable characters (the GPT-2 alphabet): space is U+0120,
 * and so on. Here every entry becomes the bytes it stands for, and the alphabet is not seen again.
 * An entry with other characters is a literal that no byte sequence spells: it can be decoded, and
 * encoded only if it is an added token too. */
#include "worker/text/tokenizer.h"

#include "common/file.h"
#include "common/json.h"
#include "worker/text/tokenizer_internal.h"
#include "worker/text/unicode.h"

#include <stdio.h>

#define MAX_FILE_BYTES ((size_t)256 << 20)
#define MAX_VALUES     16000000u
#define ALPHABET_SIZE  (256 + 68) /* 188 bytes are printable and stand for themselves */

/* What is needed while loading only. */
struct loading {
    struct tokenizer *t;
    int16_t byte_of[ALPHABET_SIZE]; /* code point -> byte, -1 for none */
    struct buf scratch;
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
static bool spell(struct loading *l, struct str spelled) {
    const char *p = spelled.ptr, *end = p + spelled.len;

    while (p < end) {
        uint32_t n, cp = unicode_decode(p, end, &n);

        if (cp >= ALPHABET_SIZE || l->byte_of[cp] < 0) return false;
        buf_append_char(&l->scratch, (char)l->byte_of[cp]);
        p += n;
    }
    return true;
}

static bool is_type(const struct json *object, const char *type) {
    struct str name;

    return json_to_str(json_get(object, "type"), &name) == ST_OK && str_eq(name, str_of(type));
}

static const char *type_of(const struct json *object) {
    struct str name;

    return json_to_str(json_get(object, "type"), &name) == ST_OK ? name.ptr : "(none)";
}

static bool is_true(const struct json *object, const char *name, bool when_absent) {
    bool value = when_absent;

    return json_to_bool(json_get(object, name), &value) == ST_OK ? value : when_absent;
}

/* --- vocabulary and merges ---------------------------------------------------------------------*/
static enum status count_ids(const struct json *vocab, const struct json *added, uint32_t *n,
                             struct error *err) {
    uint64_t max = 0, id;

    JSON_FOR_EACH(v, vocab) {
        if (json_to_u64(v, &id) != ST_OK || id >= TOKENIZER_MAX_VOCAB) {
            struct str key = json_key(v);

            return error_set(err, ST_INVALID, "vocabulary entry '%.40s' has no usable id", key.ptr);
        }
        max = MAX(max, id);
    }
    JSON_FOR_EACH(v, added) {
        if (json_to_u64(json_get(v, "id"), &id) != ST_OK || id >= TOKENIZER_MAX_VOCAB) {
            return error_set(err, ST_INVALID, "an added token has no usable id");
        }
        max = MAX(max, id);
    }
    *n = (uint32_t)max + 1;
    return ST_OK;
}

static enum status load_added(struct loading *l, const struct json *added) {
    static const struct {
        const char *name;
        uint32_t flag;
    } flags[] = {{"special", ADDED_SPECIAL},
                 {"single_word", ADDED_SINGLE_WORD},
                 {"lstrip", ADDED_LSTRIP},
                 {"rstrip", ADDED_RSTRIP},
                 {"normalized", ADDED_NORMALIZED}};
    size_t n = json_count(added);
    struct added_token *raw = mem_calloc(n, sizeof(*raw)),
                       *normalized = mem_calloc(n, sizeof(*raw));
    uint32_t n_raw = 0, n_normalized = 0;
    enum status st = ST_OK;

    JSON_FOR_EACH(v, added) {
        struct added_token a = {.id = 0};
        uint64_t id = 0;

        if (json_to_str(json_get(v, "content"), &a.content) != ST_OK || !a.content.len ||
            a.content.len > ADDED_MAX_BYTES || json_to_u64(json_get(v, "id"), &id) != ST_OK) {
            st = error_set(l->err, ST_INVALID, "an added token has no content of 1 to %d bytes",
                           ADDED_MAX_BYTES);
            break;
        }
        a.id = (uint32_t)id;
        for (size_t i = 0; i < ARRAY_LEN(flags); i++) {
            if (is_true(v, flags[i].name, false)) a.flags |= flags[i].flag;
        }
        if (!tokenizer_set_bytes(l->t, a.id, a.content)) {
            st = error_set(l->err, ST_INVALID, "two added tokens have the id %u", a.id);
            break;
        }
        l->t->tokens[a.id].is_special = a.flags & ADDED_SPECIAL;
        a.content = l->t->tokens[a.id].bytes;
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

static enum status load_entry(struct loading *l, const struct json *v) {
    struct str key = json_key(v), bytes = key;
    uint64_t id = 0;
    bool is_spelled;

    if (json_to_u64(v, &id) != ST_OK) return ST_INTERNAL; /* count_ids saw to it */
    buf_clear(&l->scratch);
    is_spelled = spell(l, key);
    if (is_spelled) bytes = buf_str(&l->scratch);
    if (!tokenizer_set_bytes(l->t, (uint32_t)id, bytes)) {
        struct str there = l->t->tokens[id].bytes;

        if (!str_eq(there, key) && !str_eq(there, bytes)) {
            return error_set(l->err, ST_INVALID, "id %u stands for both '%.40s' and '%.40s'",
                             (uint32_t)id, there.ptr, key.ptr);
        }
        is_spelled = is_spelled && str_eq(there, bytes);
    }
    if (is_spelled && bytes.len && tokenizer_lookup(l->t, bytes) == TOKEN_NONE) {
        tokenizer_index(l->t, (uint32_t)id);
    }
    return ST_OK;
}

static enum status load_vocab(struct loading *l, const struct json *vocab) {
    JSON_FOR_EACH(v, vocab) {
        enum status st = load_entry(l, v);

        if (st != ST_OK) return st;
    }
    for (uint32_t b = 0; b < 256; b++) {
        if (l->t->byte_id[b] == TOKEN_NONE) {
            return error_set(l->err, ST_UNSUPPORTED,
                             "the vocabulary has no token for byte 0x%02x: it is not a byte-level "
                             "one, and only those are built",
                             b);
        }
    }
    return ST_OK;
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

static enum status load_merge(struct loading *l, const struct json *v, uint32_t rank) {
    uint32_t left = TOKEN_NONE, right = TOKEN_NONE, merged = TOKEN_NONE;
    struct str a, b, whole;
    size_t n_left;

    if (!halves_of(v, &a, &b)) {
        return error_set(l->err, ST_INVALID, "merge %u is no pair", rank);
    }
    buf_clear(&l->scratch);
    if (spell(l, a)) {
        n_left = buf_len(&l->scratch);
        if (spell(l, b)) {
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
    return ST_OK;
}

static enum status load_merges(struct loading *l, const struct json *merges) {
    size_t n = json_count(merges);
    uint32_t rank = 0;

    if (n > TOKENIZER_MAX_VOCAB) return error_set(l->err, ST_INVALID, "%zu merges", n);
    if (bpe_init(&l->t->bpe, (uint32_t)n) != ST_OK) {
        return error_set(l->err, ST_NOMEM, "no memory for %zu merges", n);
    }
    JSON_FOR_EACH(v, merges) {
        enum status st = load_merge(l, v, rank++);

        if (st != ST_OK) return st;
    }
    return ST_OK;
}

/* Marks the tokens that merging their own bytes ends in. Most words of most texts are such tokens,
 * and cost one lookup then instead of ten. */
static void find_whole_tokens(struct tokenizer *t) {
    uint32_t ids[64];

    for (uint32_t slot = 0; slot <= t->by_bytes_mask; slot++) {
        uint32_t id = t->by_bytes[slot];
        struct str bytes = tokenizer_bytes(t, id);

        if (id == TOKEN_NONE || bytes.len > ARRAY_LEN(ids)) continue;
        for (size_t i = 0; i < bytes.len; i++)
            ids[i] = t->byte_id[(uint8_t)bytes.ptr[i]];
        t->tokens[id].is_whole = bpe_run(&t->bpe, ids, bytes.len) == 1 && ids[0] == id;
    }
}

static enum status check_model(const struct json *model, struct error *err) {
    static const char *const affixes[] = {"continuing_subword_prefix", "end_of_word_suffix"};
    double dropout = 0;
    struct str affix;

    if (json_type(model) != JSON_OBJECT) return error_set(err, ST_INVALID, "there is no 'model'");
    if (!is_type(model, "BPE")) {
        return error_set(err, ST_UNSUPPORTED,
                         "model.type is '%.40s'; byte-level BPE is what is built", type_of(model));
    }
    if (is_true(model, "byte_fallback", false)) {
        return error_set(
            err, ST_UNSUPPORTED,
            "model.byte_fallback is true: a SentencePiece-style vocabulary; byte-level "
            "BPE is what is built");
    }
    if (json_to_f64(json_get(model, "dropout"), &dropout) == ST_OK && dropout > 0) {
        return error_set(err, ST_UNSUPPORTED, "model.dropout is %g; only 0 is built", dropout);
    }
    for (size_t i = 0; i < ARRAY_LEN(affixes); i++) {
        if (json_to_str(json_get(model, affixes[i]), &affix) == ST_OK && affix.len) {
            return error_set(err, ST_UNSUPPORTED, "model.%s is '%.40s'; only none is built",
                             affixes[i], affix.ptr);
        }
    }
    if (json_type(json_get(model, "vocab")) != JSON_OBJECT ||
        json_type(json_get(model, "merges")) != JSON_ARRAY) {
        return error_set(err, ST_INVALID, "model.vocab is no object or model.merges no array");
    }
    return ST_OK;
}

/* --- what surrounds the model ------------------------------------------------------------------*/
static enum status load_normalizer(struct loading *l, const struct json *v, uint32_t depth) {
    if (json_is_null(v)) return ST_OK;
    if (is_type(v, "NFC")) {
        l->t->has_nfc = true;
        return ST_OK;
    }
    if (is_type(v, "Sequence") && depth == 0) {
        JSON_FOR_EACH(part, json_get(v, "normalizers")) {
            enum status st = load_normalizer(l, part, depth + 1);

            if (st != ST_OK) return st;
        }
        return ST_OK;
    }
    return error_set(l->err, ST_UNSUPPORTED, "the normalizer '%.40s' is not built (NFC is)",
                     type_of(v));
}

static enum status load_split(struct loading *l, const struct json *v) {
    struct str regex = STR_NULL, behavior = STR_NULL;
    bool is_inverted = is_true(v, "invert", false), is_kept;

    if (json_to_str(json_get(json_get(v, "pattern"), "Regex"), &regex) != ST_OK ||
        json_to_str(json_get(v, "behavior"), &behavior) != ST_OK) {
        return error_set(l->err, ST_UNSUPPORTED,
                         "a Split pre-tokenizer without a regex is not built");
    }
    /* The known expressions match everything, so that both ways of asking mean the same. */
    is_kept = is_inverted ? str_eq(behavior, STR("Removed")) : str_eq(behavior, STR("Isolated"));
    if (!is_kept || !pretokenize_recognise(regex, &l->t->pretokenize)) {
        return error_set(l->err, ST_UNSUPPORTED,
                         "the pre-tokenizer Split with behavior '%.20s' and this regex is not "
                         "built (those of GPT-2, Llama-3 and Qwen2 are): %.300s",
                         behavior.ptr, regex.ptr);
    }
    return ST_OK;
}

static enum status load_byte_level(struct loading *l, const struct json *v, bool after_split) {
    bool uses_regex = is_true(v, "use_regex", true);

    if (is_true(v, "add_prefix_space", true)) {
        return error_set(l->err, ST_UNSUPPORTED,
                         "pre_tokenizer ByteLevel with add_prefix_space is not built");
    }
    if (uses_regex && after_split) {
        return error_set(l->err, ST_UNSUPPORTED,
                         "pre_tokenizer ByteLevel with use_regex after a Split is not built");
    }
    if (uses_regex) l->t->pretokenize = PRETOKENIZE_GPT2;
    return ST_OK;
}

static enum status load_pretokenizer(struct loading *l, const struct json *v) {
    const struct json *first, *second;
    enum status st;

    if (is_type(v, "ByteLevel")) return load_byte_level(l, v, false);
    first = is_type(v, "Sequence") ? json_first(json_get(v, "pretokenizers")) : NULL;
    second = first ? json_next(first) : NULL;
    if (is_type(first, "ByteLevel") && !second) return load_byte_level(l, first, false);
    if (is_type(first, "Split") && is_type(second, "ByteLevel") && !json_next(second)) {
        st = load_split(l, first);
        return st == ST_OK ? load_byte_level(l, second, true) : st;
    }
    return error_set(l->err, ST_UNSUPPORTED,
                     "the pre-tokenizer (beginning with '%.40s') is not built: ByteLevel, or one "
                     "known Split and then ByteLevel, are",
                     type_of(is_type(v, "Sequence") ? first : v));
}

static enum status check_decoder(const struct json *v, struct error *err) {
    if (json_is_null(v) || is_type(v, "ByteLevel")) return ST_OK;
    return error_set(err, ST_UNSUPPORTED, "the decoder '%.40s' is not built (ByteLevel is)",
                     type_of(v));
}

/* TemplateProcessing's `single`: special tokens around one sequence. */
static enum status load_template(struct loading *l, const struct json *v) {
    struct tokenizer *t = l->t;
    bool has_sequence = false;

    t->n_before = t->n_after = 0;
    JSON_FOR_EACH(part, json_get(v, "single")) {
        const struct json *special = json_get(part, "SpecialToken");
        uint32_t *n = has_sequence ? &t->n_after : &t->n_before;
        struct str name;

        if (!special) {
            has_sequence = true;
            continue;
        }
        if (json_to_str(json_get(special, "id"), &name) != ST_OK || *n == TOKENIZER_MAX_FRAME ||
            !tokenizer_find(t, name, (has_sequence ? t->after : t->before) + *n)) {
            return error_set(l->err, ST_INVALID,
                             "the post-processor's template names a token that does not exist");
        }
        ++*n;
    }
    return ST_OK;
}

static enum status load_post_processor(struct loading *l, const struct json *v, uint32_t depth) {
    if (json_is_null(v) || is_type(v, "ByteLevel")) return ST_OK;
    if (is_type(v, "TemplateProcessing")) return load_template(l, v);
    if (is_type(v, "Sequence") && depth == 0) {
        JSON_FOR_EACH(part, json_get(v, "processors")) {
            enum status st = load_post_processor(l, part, depth + 1);

            if (st != ST_OK) return st;
        }
        return ST_OK;
    }
    return error_set(
        l->err, ST_UNSUPPORTED,
        "the post-processor '%.40s' is not built (TemplateProcessing and ByteLevel are)",
        type_of(v));
}

/* "bos_token" is a string, or an object with the string as content. */
static uint32_t named_token(const struct tokenizer *t, const struct json *config,
                            const char *name) {
    const struct json *v = json_get(config, name);
    uint32_t id;
    struct str text;

    if (json_type(v) == JSON_OBJECT) v = json_get(v, "content");
    return json_to_str(v, &text) == ST_OK && tokenizer_find(t, text, &id) ? id : TOKEN_NONE;
}

static enum status load_all(struct loading *l, const struct json *root) {
    const struct json *model = json_get(root, "model"), *added = json_get(root, "added_tokens");
    const struct json *vocab = json_get(model, "vocab");
    uint32_t n_tokens = 0;
    enum status st;

    st = check_model(model, l->err);
    if (st == ST_OK) st = count_ids(vocab, added, &n_tokens, l->err);
    if (st != ST_OK) return st;
    l->t = tokenizer_alloc(n_tokens);
    if (!l->t) return error_set(l->err, ST_NOMEM, "no memory for %u tokens", n_tokens);
    st = load_added(l, added);
    if (st == ST_OK) st = load_vocab(l, vocab);
    if (st == ST_OK) st = load_merges(l, json_get(model, "merges"));
    if (st == ST_OK) st = load_normalizer(l, json_get(root, "normalizer"), 0);
    if (st == ST_OK) st = load_pretokenizer(l, json_get(root, "pre_tokenizer"));
    if (st == ST_OK) st = check_decoder(json_get(root, "decoder"), l->err);
    if (st == ST_OK) st = load_post_processor(l, json_get(root, "post_processor"), 0);
    if (st != ST_OK) return st;
    l->t->ignores_merges = is_true(model, "ignore_merges", false);
    find_whole_tokens(l->t);
    return ST_OK;
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

enum status tokenizer_open(struct tokenizer **out, const char *folder, struct error *err) {
    char path[4096], *text = NULL, *config = NULL;
    size_t n = 0, n_config = 0;
    enum status st;

    snprintf(path, sizeof(path), "%s/tokenizer.json", folder);
    st = file_read(path, MAX_FILE_BYTES, &text, &n, err);
    if (st == ST_NOT_FOUND) {
        return error_set(err, st,
                         "the model folder %s has no tokenizer.json; a tokenizer.model or vocab "
                         "files alone are not read: save the tokenizer with the transformers "
                         "library's AutoTokenizer.save_pretrained",
                         folder);
    }
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
