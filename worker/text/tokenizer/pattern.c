/* worker/text/tokenizer/pattern.c - three ways to search, one budget. */
#include "worker/text/tokenizer/pattern.h"

#include "common/base/mem.h"
#include "worker/text/tokenizer/regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

/* Published expressions take 5 to 30 steps per byte of real text. */
#define STEPS_PER_BYTE 400
#define STEPS_AT_LEAST 100000

void pattern_literal(struct pattern *p, struct str literal) {
    p->kind = PATTERN_LITERAL;
    p->literal = mem_strndup(literal.ptr, literal.len);
    p->n_literal = literal.len;
}

/* As the engine these files are written for: Unicode classes, $ at every line end. */
static enum status compile_by_library(struct pattern *p, struct str source, struct error *err) {
    uint32_t options = PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C;
    PCRE2_UCHAR why[128] = "";
    PCRE2_SIZE at;
    uint32_t may_be_empty = 0;
    int code;

    p->library = pcre2_compile((PCRE2_SPTR)source.ptr, source.len, options, &code, &at, NULL);
    if (!p->library) {
        pcre2_get_error_message(code, why, sizeof(why));
        return error_set(err, ST_UNSUPPORTED, "unsupported expression '%.*s': %s at %zu",
                         (int)MIN(source.len, 300u), source.ptr, (const char *)why, at);
    }
    if (pcre2_pattern_info(p->library, PCRE2_INFO_MATCHEMPTY, &may_be_empty) || may_be_empty) {
        return error_set(err, ST_UNSUPPORTED,
                         "unsupported expression '%.*s': it may match an empty string",
                         (int)MIN(source.len, 300u), source.ptr);
    }
    pcre2_jit_compile(p->library, PCRE2_JIT_COMPLETE); /* without it, it is slower */
    p->kind = PATTERN_LIBRARY;
    return ST_OK;
}

static void *take_memory(PCRE2_SIZE n, void *arg) {
    (void)arg;
    return mem_try(n);
}

static void give_memory(void *memory, void *arg) {
    (void)arg;
    mem_free(memory);
}

/* What a search keeps; it keeps the two functions too, for what a long search takes later. */
static pcre2_match_data *match_data_create(void) {
    pcre2_general_context *context = pcre2_general_context_create(take_memory, give_memory, NULL);
    pcre2_match_data *data = context ? pcre2_match_data_create(1, context) : NULL;

    pcre2_general_context_free(context);
    return data;
}

static enum status no_memory(struct error *err) {
    return error_set(err, ST_NOMEM, "out of memory for searching text");
}

static enum status find_by_library(const struct pattern *p, struct pattern_run *run,
                                   struct str text, size_t from, size_t *begin, size_t *end,
                                   struct error *err) {
    const PCRE2_SIZE *bounds;
    int n;

    if (!run->memory) run->memory = match_data_create();
    if (!run->memory) return no_memory(err);
    n = pcre2_match(p->library, (PCRE2_SPTR)text.ptr, text.len, from, PCRE2_NO_UTF_CHECK,
                    run->memory, NULL);
    if (n == PCRE2_ERROR_NOMATCH) return ST_OK;
    if (n == PCRE2_ERROR_NOMEMORY) return no_memory(err);
    if (n < 0) {
        return error_set(
            err, ST_TOO_LARGE,
            "the tokenizer's expression exceeds its search limit on this text (pcre2: %d)", n);
    }
    bounds = pcre2_get_ovector_pointer(run->memory);
    if (bounds[0] < from || bounds[1] <= bounds[0]) { /* \K, in older versions of the library */
        return error_set(err, ST_UNSUPPORTED,
                         "unsupported expression of the tokenizer: it matches backwards");
    }
    *begin = bounds[0];
    *end = bounds[1];
    return ST_OK;
}

/* {m,n}+, && and \\h are other things to pcre2; before 10.43 its words have no marks. */
static bool differs_in_pcre2(struct str source) {
    static const char *const other[] = {"}+", "&&", "\\h", "\\b", "\\B", "\\w", "\\W"};
    size_t n = ARRAY_LEN(other);

#if PCRE2_MAJOR > 10 || PCRE2_MINOR >= 43
    n = 3;
#endif
    for (size_t i = 0; i < n; i++) {
        if (str_find(source, str_of(other[i])) >= 0) return true;
    }
    return false;
}

enum status pattern_regex(struct pattern *p, struct str source, struct error *err) {
    if (split_builtin_find(source, &p->builtin)) {
        p->kind = PATTERN_CUT;
        return ST_OK;
    }
    if (regex_compile(&p->regex, source) == ST_OK) {
        p->kind = PATTERN_REGEX;
        return ST_OK;
    }
    if (differs_in_pcre2(source)) {
        return error_set(err, ST_UNSUPPORTED,
                         "unsupported expression '%.*s': pcre2 and Oniguruma read it differently",
                         (int)MIN(source.len, 300u), source.ptr);
    }
    return compile_by_library(p, source, err);
}

void pattern_fini(struct pattern *p) {
    mem_free(p->literal);
    regex_destroy(p->regex);
    pcre2_code_free(p->library);
    memset(p, 0, sizeof(*p));
}

void pattern_run_init(struct pattern_run *run, size_t text_bytes) {
    run->steps = STEPS_AT_LEAST + (uint64_t)text_bytes * STEPS_PER_BYTE;
    run->memory = NULL;
}

void pattern_run_fini(struct pattern_run *run) {
    pcre2_match_data_free(run->memory);
    run->memory = NULL;
}

static void find_literal(const struct pattern *p, struct str text, size_t from, size_t *begin,
                         size_t *end) {
    const char *at = memmem(text.ptr + from, text.len - from, p->literal, p->n_literal);

    if (!at) return;
    *begin = (size_t)(at - text.ptr);
    *end = *begin + p->n_literal;
}

enum status pattern_find(const struct pattern *p, struct pattern_run *run, struct str text,
                         size_t from, size_t *begin, size_t *end, struct error *err) {
    *begin = *end = text.len;
    if (from >= text.len) return ST_OK;
    switch (p->kind) {
    case PATTERN_LITERAL: find_literal(p, text, from, begin, end); return ST_OK;
    case PATTERN_CUT:
        *begin = from;
        *end = from + split_builtin_next(p->builtin, text.ptr + from, text.ptr + text.len);
        return ST_OK;
    case PATTERN_REGEX:
        if (!regex_find(p->regex, text, from, &run->steps, begin, end)) *begin = *end = text.len;
        if (run->steps) return ST_OK;
        return error_set(err, ST_TOO_LARGE,
                         "the text costs the tokenizer's expression too much to search");
    case PATTERN_LIBRARY: return find_by_library(p, run, text, from, begin, end, err);
    }
    return ST_INTERNAL;
}
