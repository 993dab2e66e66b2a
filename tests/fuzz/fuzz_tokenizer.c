/* tests/fuzz/fuzz_tokenizer.c - by the first byte: a text for a tokenizer of bytes, a text for one
 * of characters, ids for both, a tokenizer.json, an expression and a text (a NUL between).
 *
 * A text is refused, or encoded to ids that decode to it again (except the blanks that a
 * SentencePiece vocabulary cannot distinguish from spaces). Ids become UTF-8, the same in a stream
 * as at once. Files and expressions are refused with a sentence, or work. */
#include <stdlib.h>

#include "worker/text/detokenize.h"
#include "worker/text/tokenizer/regex.h"
#include "worker/text/tokenizer/tokenizer.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void try_ids(const struct tokenizer *t, const uint32_t *ids, size_t n, struct buf *whole) {
    struct detokenizer d;
    struct buf streamed;

    buf_init(&streamed, 0);
    detokenize(t, ids, n, false, whole);
    if (!str_is_utf8(buf_str(whole))) abort();
    detokenizer_init(&d, t, false);
    for (size_t i = 0; i < n; i++) {
        size_t before = buf_len(&streamed);

        detokenizer_push(&d, ids[i], &streamed);
        if (buf_len(&streamed) > before &&
            !str_is_utf8((struct str){buf_ptr(&streamed) + before, buf_len(&streamed) - before})) {
            abort();
        }
    }
    detokenizer_finish(&d, &streamed);
    if (!str_eq(buf_str(whole), buf_str(&streamed))) abort();
    buf_fini(&streamed);
}

static void try_text(const struct tokenizer *t, struct str text, bool has_blanks) {
    struct token_list ids = {0};
    struct buf back;

    buf_init(&back, 0);
    if (tokenizer_encode(t, text, 0, &ids, NULL) == ST_OK) {
        try_ids(t, ids.ids, ids.n, &back);
        if (!has_blanks && !str_eq(text, buf_str(&back))) abort();
    }
    token_list_fini(&ids);
    buf_fini(&back);
}

static const char of_bytes[] =
    "{\"added_tokens\":[{\"id\":260,\"content\":\"<|x|>\",\"special\":true},"
    "{\"id\":261,\"content\":\"<|\",\"special\":false}],\"pre_tokenizer\":{\"type\":\"ByteLevel\","
    "\"add_prefix_space\":false},\"model\":{\"type\":\"BPE\",\"merges\":[\"a b\",\"ab a\",\"a a\","
    "\"\xC4\xA0 a\"],\"vocab\":{\"ab\":256,\"aba\":257,\"aa\":258,\"\xC4\xA0"
    "a\":259";

/* Normalized in every way that has no table, cut in several, with bytes to fall back on. */
static const char of_characters[] =
    "{\"added_tokens\":[{\"id\":300,\"content\":\"<s>\",\"special\":true,\"lstrip\":true},"
    "{\"id\":301,\"content\":\"ab c\",\"normalized\":true,\"single_word\":true}],\"normalizer\":"
    "{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"Strip\",\"strip_left\":false},{\"type\":"
    "\"Replace\",\"pattern\":{\"Regex\":\"x{2,3}|q\"},\"content\":\"y\"},{\"type\":"
    "\"Prepend\",\"prepend\":\"\xE2\x96\x81\"},{\"type\":\"Replace\",\"pattern\":{\"String\":\" "
    "\"},"
    "\"content\":\"\xE2\x96\x81\"}]},\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[{"
    "\"type\":\"Split\",\"pattern\":{\"Regex\":\"\\\\s?[A-Z]+(?!\\\\d)|\\\\p{N}{1,3}\"},"
    "\"behavior\":"
    "\"MergedWithPrevious\"},{\"type\":\"Metaspace\",\"prepend_scheme\":\"first\"},{\"type\":"
    "\"Punctuation\",\"behavior\":\"Contiguous\"}]},\"decoder\":{\"type\":\"Sequence\","
    "\"decoders\":[{"
    "\"type\":\"Replace\",\"pattern\":{\"String\":\"\xE2\x96\x81\"},\"content\":\" \"},{\"type\":"
    "\"ByteFallback\"},{\"type\":\"Fuse\"},{\"type\":\"Strip\",\"content\":\" "
    "\",\"start\":1,\"stop\":0}]}"
    ",\"model\":{\"type\":\"BPE\",\"byte_fallback\":true,\"fuse_unk\":true,\"unk_token\":\"<unk>\","
    "\"merges\":[\"a b\",\"\xE2\x96\x81 ab\",\"a a\"],\"vocab\":{\"<unk>\":256,\"a\":257,\"b\":258,"
    "\"\xE2\x96\x81\":259,\"ab\":260,\"\xE2\x96\x81"
    "ab\":261,\"aa\":262,\"\xC3\xA9\":263";

static struct tokenizer *make(const char *head, bool is_byte_level) {
    struct tokenizer *t = NULL;
    struct error err = {0};
    struct buf file;
    uint32_t n = 256;

    buf_init(&file, 0);
    buf_append_str(&file, str_of(head));
    for (uint32_t b = 0; b < 256; b++) {
        bool is_printable = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
        uint32_t cp = is_printable ? b : n++;

        if (is_byte_level) {
            buf_appendf(&file, ",\"\\u%04x\":%u", cp, b);
        } else {
            buf_appendf(&file, ",\"<0x%02X>\":%u", b, b);
        }
    }
    buf_append_str(&file, STR("}}}"));
    if (tokenizer_parse(&t, buf_str(&file), STR_NULL, &err) != ST_OK) abort();
    buf_fini(&file);
    return t;
}

static void try_file(struct str file) {
    struct token_list ids = {0};
    struct tokenizer *t = NULL;
    struct error err = {0};
    struct buf text;

    if (tokenizer_parse(&t, file, STR_NULL, &err) != ST_OK) {
        if (!err.message[0]) abort();
        return;
    }
    buf_init(&text, 0);
    if (tokenizer_encode(t, STR("a b<|x|> \n\xC3\xA9 1A"), TOKENIZE_SPECIAL, &ids, NULL) == ST_OK) {
        try_ids(t, ids.ids, ids.n, &text);
    }
    buf_fini(&text);
    token_list_fini(&ids);
    tokenizer_destroy(t);
}

static void try_regex(struct str input) {
    const char *nul = memchr(input.ptr, '\0', input.len);
    struct str source = {input.ptr, nul ? (size_t)(nul - input.ptr) : input.len}, text = STR_NULL;
    uint64_t steps = 100000;
    struct regex *r = NULL;
    size_t at = 0, begin, end;

    if (nul) text = (struct str){nul + 1, input.len - source.len - 1};
    if (!str_is_utf8(source) || !str_is_utf8(text)) return;
    if (regex_compile(&r, source) != ST_OK) return;
    while (at < text.len && regex_find(r, text, at, &steps, &begin, &end)) {
        if (begin < at || end <= begin || end > text.len) abort();
        at = end;
    }
    regex_destroy(r);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static struct tokenizer *bytes, *characters; /* made once: they cost more than a run */
    struct str rest = {(const char *)data + 1, size ? size - 1 : 0};
    uint32_t ids[64];
    struct buf text;

    if (!size) return 0;
    if (!bytes) bytes = make(of_bytes, true);
    if (!characters) characters = make(of_characters, false);
    switch (data[0] % 5) {
    case 0: try_text(bytes, rest, false); break;
    case 1: try_file(rest); break;
    case 2: try_text(characters, rest, true); break;
    case 3: try_regex(rest); break;
    default:
        for (size_t i = 0; i < ARRAY_LEN(ids) && i < rest.len; i++)
            ids[i] = (uint8_t)rest.ptr[i] + (i % 7 == 3 ? 200 : 0);
        buf_init(&text, 0);
        try_ids(data[0] & 128 ? bytes : characters, ids, MIN(ARRAY_LEN(ids), rest.len), &text);
        buf_fini(&text);
    }
    return 0;
}
