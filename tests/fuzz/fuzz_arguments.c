/* tests/fuzz/fuzz_arguments.c - arguments pushed whole equal arguments pushed in pieces, what is
 * appended is whole characters, a finished call is JSON, and no call has none. Linked to libFuzzer
 * by `make fuzz`, and included by the unit test.
 *
 * Input: a style, which tokens the vocabulary has, whether a limit ends it; then text, in which the
 * bytes 1 to 8 are tokens. */
#include <stdlib.h>

#include "common/base/rng.h"
#include "common/text/json.h"
#include "worker/output/arguments/arguments.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char *const fuzz_tokens[][ARGUMENTS_MAX_TOKENS] = {
    [ARGUMENTS_QWEN_XML] = {"<tool_call>", "</tool_call>"},
    [ARGUMENTS_SEED_XML] = {"<seed:tool_call>", "</seed:tool_call>"},
    [ARGUMENTS_GLM_XML] = {"<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>",
                           "</arg_value>"},
    [ARGUMENTS_MINIMAX_XML] = {"<minimax:tool_call>", "</minimax:tool_call>"},
    [ARGUMENTS_DEEPSEEK_XML] = {"\xEF\xBD\x9C"
                                "DSML\xEF\xBD\x9C"},
    [ARGUMENTS_PYTHONIC] = {"<|python_end|>"},
    [ARGUMENTS_GEMMA] = {"<|\"|>", "<tool_call|>"},
    [ARGUMENTS_FUNCTIONGEMMA] = {"<escape>", "<end_function_call>"},
};

static const char fuzz_schema[] =
    "{\"properties\":{\"s\":{\"type\":\"string\"},\"x\":{\"type\":\"integer\"},"
    "\"n\":{\"anyOf\":[{\"type\":\"string\"},{\"type\":\"null\"}]},\"b\":{\"type\":\"boolean\"},"
    "\"o\":{\"$ref\":\"#/$defs/o\"},\"u\":{\"type\":[\"string\",\"number\"]}},"
    "\"$defs\":{\"o\":{\"type\":\"object\"}}}";

struct fuzz_end { /* of a call */
    enum arguments_state state;
    size_t n_used;
};

static uint32_t fuzz_count_tokens(enum arguments_style style) {
    uint32_t n = 0;

    while (n < ARGUMENTS_MAX_TOKENS && fuzz_tokens[style][n])
        n++;
    return n;
}

/* Whole characters? Bytes of no character are not appended at all. */
static void fuzz_check_delta(const struct buf *json, size_t before) {
    if (json->has_failed) abort();
    if (buf_len(json) == before) return;
    if (!str_is_utf8((struct str){buf_ptr(json) + before, buf_len(json) - before})) abort();
}

/* The character that a place is in begins there: one that ended a call may have been pushed in
 * parts. */
static size_t fuzz_begin_of_character(struct str text, size_t at) {
    while (at > 0 && at < text.len && ((unsigned char)text.ptr[at] & 0xC0) == 0x80)
        at--;
    return at;
}

/* Pushes pieces of at most `most` bytes; a piece ends at a token. */
static struct fuzz_end fuzz_feed(struct arguments *a, struct str text, uint32_t n_tokens,
                                 size_t most, struct rng *rng, struct buf *json) {
    struct fuzz_end end = {ARGUMENTS_MORE, 0};

    while (end.n_used < text.len && end.state == ARGUMENTS_MORE) {
        struct str rest = {text.ptr + end.n_used, text.len - end.n_used};
        size_t before = buf_len(json), n = 0, n_used = 0;
        unsigned char first = (unsigned char)rest.ptr[0];

        if (first >= 1 && first <= n_tokens) {
            bool is_used = false;

            end.state = arguments_push_token(a, first - 1, &is_used, json);
            end.n_used += is_used;
            if (!is_used && end.state == ARGUMENTS_MORE) abort();
        } else {
            most = rng ? 1 + (size_t)rng_below(rng, 9) : most;
            while (n < rest.len && n < most &&
                   ((unsigned char)rest.ptr[n] < 1 || (unsigned char)rest.ptr[n] > n_tokens))
                n++;
            end.state = arguments_push(a, (struct str){rest.ptr, n}, &n_used, json);
            if (n_used > n || (end.state == ARGUMENTS_MORE && n_used != n)) abort();
            end.n_used += n_used;
        }
        fuzz_check_delta(json, before);
    }
    return end;
}

static struct fuzz_end fuzz_run(enum arguments_style style, const struct json *schema,
                                struct str text, bool has_tokens, bool is_cut, size_t most,
                                struct rng *rng, struct buf *json) {
    uint32_t n_tokens = has_tokens ? fuzz_count_tokens(style) : 0;
    struct arguments *a = arguments_create(style, schema, fuzz_tokens[style], n_tokens);
    struct fuzz_end end = fuzz_feed(a, text, n_tokens, most, rng, json);
    size_t before = buf_len(json);

    if (end.state == ARGUMENTS_MORE) end.state = arguments_finish(a, is_cut, json);
    end.n_used = fuzz_begin_of_character(text, end.n_used);
    fuzz_check_delta(json, before);
    arguments_destroy(a);
    return end;
}

/* What json.h refuses of valid JSON. */
static bool fuzz_is_limit(const char *message) {
    static const char *const limits[] = {"twice", "NUL", "63 characters", "too large"};

    for (size_t i = 0; i < ARRAY_LEN(limits); i++)
        if (strstr(message, limits[i])) return true;
    return false;
}

static void fuzz_check_end(struct fuzz_end end, struct str json) {
    const struct json_limits limits = {.max_depth = 2 * ARGUMENTS_MAX_DEPTH};
    struct error err = {0};
    struct json *root = NULL;

    if (end.state == ARGUMENTS_MORE) abort();
    if (end.state == ARGUMENTS_BROKEN && json.len > 0) abort();
    if (end.state == ARGUMENTS_CUT && json.len > 0 && json.ptr[0] != '{') abort();
    if (end.state != ARGUMENTS_DONE) return;
    if (json_parse(&root, json, &limits, &err) != ST_OK) {
        if (!fuzz_is_limit(err.message)) abort();
        return;
    }
    if (json_type(root) != JSON_OBJECT) abort();
    json_destroy(root);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    const size_t pieces[] = {SIZE_MAX, 1, 2, 3, 0};
    struct json *schema = NULL;
    struct fuzz_end whole = {ARGUMENTS_MORE, 0};
    struct buf json[2];
    struct rng rng;

    if (size < 2) return 0;
    rng_seed(&rng, size);
    if (json_parse(&schema, str_of(fuzz_schema), NULL, NULL) != ST_OK) abort();
    buf_init(&json[0], 0);
    buf_init(&json[1], 0);
    for (size_t i = 0; i < ARRAY_LEN(pieces); i++) {
        struct fuzz_end end;

        buf_clear(&json[i > 0]);
        end = fuzz_run((enum arguments_style)(data[0] % 8), data[1] & 4 ? NULL : schema,
                       (struct str){(const char *)data + 2, size - 2}, data[1] & 1, data[1] & 2,
                       pieces[i], pieces[i] ? NULL : &rng, &json[i > 0]);
        if (i == 0) {
            whole = end;
            fuzz_check_end(whole, buf_str(&json[0]));
        } else if (end.state != whole.state || !str_eq(buf_str(&json[0]), buf_str(&json[1])) ||
                   (end.state != ARGUMENTS_BROKEN && end.n_used != whole.n_used)) {
            abort();
        }
    }
    buf_fini(&json[0]);
    buf_fini(&json[1]);
    json_destroy(schema);
    return 0;
}
