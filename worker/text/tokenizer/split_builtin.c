/* worker/text/tokenizer/split_builtin.c - the matchers, one branch per alternative of the
 * expression.
 *
 * The expressions share a skeleton; W is the word class, N number, S white space:
 *
 *      contraction | [^\r\n L N]? W+ | N{1,k} | ' '? [^ S W N]+ [\r\n]* | S* [\r\n]+ | S+ (?!\S) | S+
 *
 * The greedy runs never give a character back except white space, and what it gives back is known:
 * everything after the last line end, or the last character before a word. So each run is walked
 * once here and at most once more by the next call. */
#include "worker/text/tokenizer/split_builtin.h"

#include "worker/text/unicode/unicode.h"

static const struct {
    const char *regex;
    enum builtin_split kind;
} known[] = {
    {BUILTIN_GPT2_REGEX, BUILTIN_GPT2},
    {"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| "
     "?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+",
     BUILTIN_QWEN2},
    {"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| "
     "?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+",
     BUILTIN_LLAMA3},
    {"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}| "
     "?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+",
     BUILTIN_QWEN35},
};

bool split_builtin_find(struct str regex, enum builtin_split *out) {
    for (size_t i = 0; i < ARRAY_LEN(known); i++) {
        if (str_eq(regex, str_of(known[i].regex))) {
            *out = known[i].kind;
            return true;
        }
    }
    return false;
}

/* A character and what it is. */
struct cursor {
    const char *next; /* past the character */
    uint32_t cp, class;
};

static inline struct cursor look(const char *p, const char *end) {
    struct cursor c;
    uint32_t n;

    c.cp = unicode_decode(p, end, &n);
    /* A stray byte is like a symbol: it belongs to no word, and is not white space. */
    c.class = unicode_class(c.cp);
    c.next = p + n;
    return c;
}

static inline bool is_line_end(uint32_t cp) {
    return cp == '\r' || cp == '\n';
}

/* End of the run of at most `max` characters of `p` that have one of the classes in `set`. */
static const char *run_of(uint32_t set, const char *p, const char *end, uint32_t max) {
    for (; p < end && max > 0; max--) {
        struct cursor c = look(p, end);

        if (!(c.class & set)) break;
        p = c.next;
    }
    return p;
}

static const char *run_of_none(uint32_t set, const char *p, const char *end) {
    while (p < end) {
        struct cursor c = look(p, end);

        if (c.class & set) break;
        p = c.next;
    }
    return p;
}

static inline char fold(char c) {
    return c >= 'A' && c <= 'Z' ? (char)(c + 32) : c;
}

/* 's 't 're 've 'm 'll 'd at the quote `p`. Length, or 0. Without case, the long s (U+017F) is
 * an s too, as in the engines that run the expression. */
static size_t contraction(const char *p, const char *end, bool any_case) {
    size_t left = (size_t)(end - p);
    char a, b;

    if (left < 2 || *p != '\'') return 0;
    a = any_case ? fold(p[1]) : p[1];
    if (a == 's' || a == 't' || a == 'm' || a == 'd') return 2;
    if (left < 3) return 0;
    if (any_case && (uint8_t)p[1] == 0xC5 && (uint8_t)p[2] == 0xBF) return 3;
    b = any_case ? fold(p[2]) : p[2];
    return (a == 'r' && b == 'e') || (a == 'v' && b == 'e') || (a == 'l' && b == 'l') ? 3 : 0;
}

/* `p` begins with white space that no earlier alternative took. */
static const char *white(const char *p, const char *end, bool ends_at_line) {
    const char *last_line_end = NULL, *last = p, *q = p;

    while (q < end) {
        struct cursor c = look(q, end);

        if (!(c.class & UC_SPACE)) break;
        last = q;
        q = c.next;
        if (is_line_end(c.cp)) last_line_end = q;
    }
    if (ends_at_line && last_line_end) return last_line_end; /* S* [\r\n]+ */
    if (q < end && last > p) return last;                    /* S+ (?!\S) */
    return q;
}

static const char *next_gpt2(const char *p, const char *end) {
    size_t n = contraction(p, end, false);
    const char *word = *p == ' ' ? p + 1 : p;
    struct cursor c;

    if (n) return p + n;
    if (word < end) {
        c = look(word, end);
        if (c.class & UC_L) return run_of(UC_L, word, end, UINT32_MAX);
        if (c.class & UC_N) return run_of(UC_N, word, end, UINT32_MAX);
        if (!(c.class & UC_SPACE)) return run_of_none(UC_SPACE | UC_L | UC_N, word, end);
    }
    return white(p, end, false);
}

static const char *next_modern(const char *p, const char *end, uint32_t letters, uint32_t digits) {
    size_t n = contraction(p, end, true);
    struct cursor c = look(p, end), second = {0};
    const char *other;

    if (n) return p + n;
    if (c.class & letters) return run_of(letters, p, end, UINT32_MAX);
    if (c.next < end) second = look(c.next, end);
    if (!(c.class & UC_N) && !is_line_end(c.cp) && (second.class & letters)) {
        return run_of(letters, c.next, end, UINT32_MAX);
    }
    if (c.class & UC_N) return run_of(UC_N, p, end, digits);
    other = c.cp == ' ' ? c.next : p;
    if (other < end) {
        const char *q = run_of_none(UC_SPACE | UC_N | letters, other, end);

        if (q > other) {
            while (q < end && is_line_end((uint8_t)*q))
                q++;
            return q;
        }
    }
    return white(p, end, true);
}

size_t split_builtin_next(enum builtin_split kind, const char *p, const char *end) {
    const char *q = end;

    switch (kind) {
    case BUILTIN_GPT2: q = next_gpt2(p, end); break;
    case BUILTIN_QWEN2: q = next_modern(p, end, UC_L, 1); break;
    case BUILTIN_LLAMA3: q = next_modern(p, end, UC_L, 3); break;
    case BUILTIN_QWEN35: q = next_modern(p, end, UC_L | UC_M, 1); break;
    }
    return (size_t)(q - p);
}
