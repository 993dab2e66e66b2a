/* worker/text/tokenizer/pretokenize.c - the chain, and how tokenizer.json spells it. */
#include "worker/text/tokenizer/pretokenize.h"

#include "common/base/mem.h"
#include "common/text/json.h"
#include "worker/text/tokenizer/tokenizer_json.h"

/* --- loading -----------------------------------------------------------------------------------*/
static enum status add_op(struct pretokenizer *p, struct pretokenize_op **out, struct error *err) {
    if (p->is_byte_level) {
        return error_set(err, ST_UNSUPPORTED,
                         "unsupported pre-tokenizer after ByteLevel: ByteLevel must come last");
    }
    if (p->n == PRETOKENIZE_MAX_OPS) {
        return error_set(err, ST_UNSUPPORTED,
                         "unsupported pre-tokenizer: it has more than %d steps",
                         PRETOKENIZE_MAX_OPS);
    }
    *out = &p->ops[p->n++];
    return ST_OK;
}

static enum status read_behavior(const struct json *v, const char *absent,
                                 enum pretokenize_behavior *out, struct error *err) {
    static const char *const names[] = {"Removed", "Isolated", "MergedWithPrevious",
                                        "MergedWithNext", "Contiguous"};
    struct str name = str_of(absent);

    if (!json_is_null(json_get(v, "behavior")) &&
        json_to_str(json_get(v, "behavior"), &name) != ST_OK) {
        name = STR("?");
    }
    for (uint32_t i = 0; i < ARRAY_LEN(names); i++) {
        if (!str_eq(name, str_of(names[i]))) continue;
        *out = (enum pretokenize_behavior)i;
        return ST_OK;
    }
    return error_set(err, ST_UNSUPPORTED,
                     "unsupported behavior '%.40s' of a pre-tokenizer: supported are Removed, "
                     "Isolated, MergedWithPrevious, MergedWithNext and Contiguous",
                     name.ptr);
}

/* A cut at an expression of our own. */
static enum status add_split(struct pretokenizer *p, const char *regex,
                             enum pretokenize_behavior behavior, bool is_inverted,
                             struct error *err) {
    struct pretokenize_op *op = NULL;
    enum status st = add_op(p, &op, err);

    if (st != ST_OK) return st;
    op->behavior = behavior;
    op->is_inverted = is_inverted;
    return pattern_regex(&op->pattern, str_of(regex), err);
}

static enum status load_split(struct pretokenizer *p, const struct json *v, struct error *err) {
    struct pretokenize_op *op = NULL;
    enum status st = add_op(p, &op, err);

    if (st != ST_OK) return st;
    op->is_inverted = tokenizer_json_true(v, "invert", false);
    st = read_behavior(v, "", &op->behavior, err);
    return st == ST_OK ? tokenizer_json_pattern(v, &op->pattern, err) : st;
}

static enum status load_byte_level(struct pretokenizer *p, const struct json *v,
                                   struct error *err) {
    struct pretokenize_op *op = NULL;
    enum status st = ST_OK;

    if (tokenizer_json_true(v, "add_prefix_space", true)) {
        st = add_op(p, &op, err);
        if (st == ST_OK) op->kind = PRETOKENIZE_SPACE;
    }
    if (st == ST_OK && tokenizer_json_true(v, "use_regex", true)) {
        st = add_split(p, BUILTIN_GPT2_REGEX, SPLIT_ISOLATED, false, err);
    }
    p->is_byte_level = true;
    return st;
}

static enum status load_metaspace(struct pretokenizer *p, const struct json *v, struct error *err) {
    static const char *const names[] = {"always", "first", "never"};
    struct str replacement = STR("\xE2\x96\x81"), scheme;
    struct pretokenize_op *op = NULL;
    enum status st = add_op(p, &op, err);

    if (st != ST_OK) return st;
    op->kind = PRETOKENIZE_METASPACE;
    if (json_to_str(json_get(v, "replacement"), &replacement) == ST_OK &&
        (!replacement.len || str_utf8_len(replacement) != replacement.len)) {
        return error_set(err, ST_INVALID,
                         "the replacement of the pre-tokenizer Metaspace is not one character");
    }
    op->replacement = (struct str){mem_strndup(replacement.ptr, replacement.len), replacement.len};
    if (!tokenizer_json_true(v, "add_prefix_space", true)) op->prepend = METASPACE_NEVER;
    if (json_to_str(json_get(v, "prepend_scheme"), &scheme) == ST_OK) {
        uint32_t i = 0;

        while (i < ARRAY_LEN(names) && !str_eq(scheme, str_of(names[i])))
            i++;
        if (i == ARRAY_LEN(names)) {
            return error_set(
                err, ST_UNSUPPORTED,
                "unsupported prepend_scheme '%.40s': supported are always, first and never",
                scheme.ptr);
        }
        op->prepend = i;
    }
    if (!tokenizer_json_true(v, "split", true)) return ST_OK;
    replacement = op->replacement;
    st = add_op(p, &op, err);
    if (st != ST_OK) return st;
    op->behavior = SPLIT_NEXT;
    pattern_literal(&op->pattern, replacement);
    return ST_OK;
}

static enum status load_delimiter(struct pretokenizer *p, const struct json *v, struct error *err) {
    struct pretokenize_op *op = NULL;
    struct str delimiter;
    enum status st = add_op(p, &op, err);

    if (st != ST_OK) return st;
    if (json_to_str(json_get(v, "delimiter"), &delimiter) != ST_OK || !delimiter.len) {
        return error_set(err, ST_INVALID, "the pre-tokenizer CharDelimiterSplit has no delimiter");
    }
    op->behavior = SPLIT_REMOVED;
    pattern_literal(&op->pattern, delimiter);
    return ST_OK;
}

static enum status load_punctuation(struct pretokenizer *p, const struct json *v,
                                    struct error *err) {
    enum pretokenize_behavior behavior = SPLIT_ISOLATED;
    enum status st = read_behavior(v, "Isolated", &behavior, err);

    return st == ST_OK ? add_split(p, "[\\p{P}$+<=>^`|~]", behavior, false, err) : st;
}

enum status pretokenizer_load(struct pretokenizer *p, const struct json *v, struct error *err) {
    if (json_is_null(v)) return ST_OK;
    if (tokenizer_json_is(v, "Sequence")) {
        JSON_FOR_EACH(part, json_get(v, "pretokenizers")) {
            enum status st = pretokenizer_load(p, part, err);

            if (st != ST_OK) return st;
        }
        return ST_OK;
    }
    if (tokenizer_json_is(v, "Split")) return load_split(p, v, err);
    if (tokenizer_json_is(v, "ByteLevel")) return load_byte_level(p, v, err);
    if (tokenizer_json_is(v, "Metaspace")) return load_metaspace(p, v, err);
    if (tokenizer_json_is(v, "Punctuation")) return load_punctuation(p, v, err);
    if (tokenizer_json_is(v, "CharDelimiterSplit")) return load_delimiter(p, v, err);
    if (tokenizer_json_is(v, "WhitespaceSplit"))
        return add_split(p, "\\s+", SPLIT_REMOVED, false, err);
    if (tokenizer_json_is(v, "Whitespace")) {
        return add_split(p, "\\w+|[^\\w\\s]+", SPLIT_REMOVED, true, err);
    }
    if (tokenizer_json_is(v, "Digits")) {
        bool is_individual = tokenizer_json_true(v, "individual_digits", false);

        return add_split(p, is_individual ? "\\p{N}" : "\\p{N}+", SPLIT_ISOLATED, false, err);
    }
    return error_set(
        err, ST_UNSUPPORTED,
        "unsupported pre-tokenizer '%.40s': supported are ByteLevel, Split, Metaspace, Digits, "
        "Punctuation, Whitespace, WhitespaceSplit, CharDelimiterSplit and Sequence",
        tokenizer_json_type(v));
}

void pretokenizer_fini(struct pretokenizer *p) {
    for (uint32_t i = 0; i < p->n; i++) {
        pattern_fini(&p->ops[i].pattern);
        mem_free((char *)(uintptr_t)p->ops[i].replacement.ptr);
    }
    memset(p, 0, sizeof(*p));
}

void pretokenize_run_fini(struct pretokenize_run *run) {
    for (uint32_t i = 0; i < ARRAY_LEN(run->copies); i++)
        buf_fini(&run->copies[i]);
}

/* --- cutting -----------------------------------------------------------------------------------*/
static enum status run_from(struct pretokenize_run *run, uint32_t i, struct str piece,
                            bool is_first);

/* A stretch of text, a match or what lies between two, on its way to the next operation. */
struct stretch {
    size_t begin, end;
    bool is_match;
};

struct split_run {
    struct pretokenize_run *run;
    uint32_t op;
    struct str text;
    bool is_first;
    struct stretch held; /* may still grow; empty: none */
    bool last_was_match;
};

static enum status emit(struct split_run *c) {
    struct str piece = {c->text.ptr + c->held.begin, c->held.end - c->held.begin};
    bool is_first = c->is_first && c->held.begin == 0;

    c->held.begin = c->held.end;
    return piece.len ? run_from(c->run, c->op + 1, piece, is_first) : ST_OK;
}

/* Whether the stretch that is held takes in the one that follows it. */
static bool joins(const struct split_run *c, enum pretokenize_behavior behavior,
                  const struct stretch *s) {
    if (c->held.begin == c->held.end) return false;
    switch (behavior) {
    case SPLIT_PREVIOUS: return s->is_match && !c->last_was_match;
    case SPLIT_NEXT: return !s->is_match && c->held.is_match;
    case SPLIT_CONTIGUOUS: return s->is_match == c->last_was_match;
    default: return false;
    }
}

static enum status take(struct split_run *c, struct stretch s) {
    const struct pretokenize_op *op = &c->run->chain->ops[c->op];
    enum status st = ST_OK;

    if (s.begin == s.end) return ST_OK;
    s.is_match = s.is_match != op->is_inverted;
    if (joins(c, op->behavior, &s)) {
        c->held.end = s.end;
        c->held.is_match = s.is_match;
    } else {
        st = emit(c);
        c->held = s;
        if (op->behavior == SPLIT_REMOVED && s.is_match) c->held.begin = s.end;
    }
    c->last_was_match = s.is_match;
    return st;
}

static enum status split(struct pretokenize_run *run, uint32_t i, struct str text, bool is_first) {
    const struct pretokenize_op *op = &run->chain->ops[i];
    struct split_run c = {.run = run, .op = i, .text = text, .is_first = is_first};

    for (size_t at = 0, begin, end; at < text.len; at = end) {
        enum status st =
            pattern_find(&op->pattern, run->patterns, text, at, &begin, &end, run->err);

        if (st == ST_OK) st = take(&c, (struct stretch){at, begin, false});
        if (st == ST_OK) st = take(&c, (struct stretch){begin, end, true});
        if (st != ST_OK) return st;
    }
    return emit(&c);
}

/* The last cut of the chain, at an expression that matches all of the text. */
static enum status split_whole(struct pretokenize_run *run, const struct pretokenize_op *op,
                               struct str text) {
    const char *p = text.ptr, *end = p + text.len;

    while (p < end) {
        size_t n = split_builtin_next(op->pattern.builtin, p, end);
        enum status st = run->on_piece(run->arg, (struct str){p, n});

        if (st != ST_OK) return st;
        p += n;
    }
    return ST_OK;
}

/* --- ByteLevel's space, Metaspace's blanks -----------------------------------------------------*/
static enum status put_space(struct pretokenize_run *run, uint32_t i, struct str text,
                             bool is_first) {
    struct buf *copy = &run->copies[i];

    if (*text.ptr == ' ') return run_from(run, i + 1, text, is_first);
    buf_clear(copy);
    buf_append_char(copy, ' ');
    buf_append_str(copy, text);
    return buf_status(copy) == ST_OK ? run_from(run, i + 1, buf_str(copy), is_first) : ST_NOMEM;
}

static enum status put_blanks(struct pretokenize_run *run, uint32_t i, struct str text,
                              bool is_first) {
    const struct pretokenize_op *op = &run->chain->ops[i];
    bool prepends = op->prepend == METASPACE_ALWAYS || (op->prepend == METASPACE_FIRST && is_first);
    struct buf *copy = &run->copies[i];
    const char *p = text.ptr, *end = p + text.len, *space;

    buf_clear(copy);
    if (prepends && *p != ' ' && !str_starts(text, op->replacement)) {
        buf_append_str(copy, op->replacement);
    }
    for (; p < end && (space = memchr(p, ' ', (size_t)(end - p))); p = space + 1) {
        buf_append(copy, p, (size_t)(space - p));
        buf_append_str(copy, op->replacement);
    }
    buf_append(copy, p, (size_t)(end - p));
    return buf_status(copy) == ST_OK ? run_from(run, i + 1, buf_str(copy), is_first) : ST_NOMEM;
}

/* What the operations from the i-th on make of a piece (not empty). */
static enum status run_from(struct pretokenize_run *run, uint32_t i, struct str piece,
                            bool is_first) {
    const struct pretokenize_op *op = &run->chain->ops[i];

    if (i == run->chain->n) return run->on_piece(run->arg, piece);
    switch (op->kind) {
    case PRETOKENIZE_SPACE: return put_space(run, i, piece, is_first);
    case PRETOKENIZE_METASPACE: return put_blanks(run, i, piece, is_first);
    case PRETOKENIZE_CUT: break;
    }
    if (i + 1 == run->chain->n && op->pattern.kind == PATTERN_CUT &&
        (op->is_inverted ? op->behavior == SPLIT_REMOVED : op->behavior == SPLIT_ISOLATED)) {
        return split_whole(run, op, piece);
    }
    return split(run, i, piece, is_first);
}

enum status pretokenize(struct pretokenize_run *run, struct str text, bool is_first) {
    return text.len ? run_from(run, 0, text, is_first) : ST_OK;
}
