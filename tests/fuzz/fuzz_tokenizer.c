/* tests/fuzz/fuzz_tokenizer.c - a text (first byte even) or a tokenizer.json (odd).
 *
 * A text is refused, or encoded to ids that decode and stream to it again. */
#include "worker/text/tokenizer.h"

#include "worker/text/detokenize.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void try_text(const struct tokenizer *t, struct str text) {
    struct token_list ids = {0};
    struct detokenizer d;
    struct buf back, streamed;

    buf_init(&back, 0);
    buf_init(&streamed, 0);
    if (tokenizer_encode(t, text, 0, &ids, NULL) == ST_OK) {
        detokenize(t, ids.ids, ids.n, false, &back);
        if (!str_eq(text, buf_str(&back))) abort();
        detokenizer_init(&d, t, false);
        for (size_t i = 0; i < ids.n; i++)
            detokenizer_push(&d, ids.ids[i], &streamed);
        detokenizer_finish(&d, &streamed);
        if (!str_eq(text, buf_str(&streamed))) abort();
    }
    token_list_fini(&ids);
    buf_fini(&back);
    buf_fini(&streamed);
}

static const char small[] =
    "{\"added_tokens\":[{\"id\":260,\"content\":\"<|x|>\",\"special\":true},"
    "{\"id\":261,\"content\":\"<|\",\"special\":false}],\"pre_tokenizer\":{\"type\":\"ByteLevel\","
    "\"add_prefix_space\":false},\"model\":{\"type\":\"BPE\",\"merges\":[\"a b\",\"ab a\",\"a a\","
    "\"\xC4\xA0 a\"],\"vocab\":{\"ab\":256,\"aba\":257,\"aa\":258,\"\xC4\xA0"
    "a\":259";

/* The small file with all 256 byte tokens. */
static struct tokenizer *make_small(void) {
    struct tokenizer *t = NULL;
    struct buf file;
    uint32_t n = 256;

    buf_init(&file, 0);
    buf_append(&file, small, sizeof(small) - 1);
    for (uint32_t b = 0; b < 256; b++) {
        bool is_printable = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
        uint32_t cp = is_printable ? b : n++;

        buf_appendf(&file, ",\"\\u%04x\":%u", cp, b);
    }
    buf_append_str(&file, STR("}}}"));
    if (tokenizer_parse(&t, buf_str(&file), STR_NULL, NULL) != ST_OK) abort();
    buf_fini(&file);
    return t;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static struct tokenizer *fixed; /* made once: it costs more than a run */
    struct str rest = {(const char *)data + 1, size ? size - 1 : 0};
    struct tokenizer *t = NULL;
    struct error err = {0};

    if (!size) return 0;
    if (data[0] % 2 == 0) {
        if (!fixed) fixed = make_small();
        try_text(fixed, rest);
    } else if (tokenizer_parse(&t, rest, STR_NULL, &err) == ST_OK) {
        struct token_list ids = {0};

        if (tokenizer_encode(t, STR("a b<|x|> \n"), TOKENIZE_SPECIAL, &ids, NULL) != ST_OK)
            ids.n = 0;
        token_list_fini(&ids);
    } else if (!err.message[0]) {
        abort();
    }
    tokenizer_destroy(t);
    return 0;
}
