/* worker/text/tokenizer/added_tokens.c - leftmost, then longest, by narrowing a sorted range. */
#include "worker/text/tokenizer/added_tokens.h"

#include <stdlib.h>

#include "common/base/mem.h"
#include "worker/text/unicode/unicode.h"

static int by_content(const void *a, const void *b) {
    const struct added_token *x = a, *y = b;
    size_t n = MIN(x->content.len, y->content.len);
    int c = memcmp(x->content.ptr, y->content.ptr, n);

    if (c) return c;
    return (x->content.len > y->content.len) - (x->content.len < y->content.len);
}

void added_tokens_init(struct added_tokens *set, struct added_token *take, uint32_t n) {
    memset(set, 0, sizeof(*set));
    set->tokens = take;
    if (n) qsort(take, n, sizeof(*take), by_content);
    for (uint32_t i = 0; i < n; i++) {
        uint8_t first = (uint8_t)take[i].content.ptr[0];

        if (i && str_eq(take[i].content, take[set->n - 1].content)) continue;
        take[set->n++] = take[i];
        set->first[first / 64] |= 1ull << (first % 64);
    }
}

void added_tokens_fini(struct added_tokens *set) {
    mem_free(set->tokens);
    memset(set, 0, sizeof(*set));
}

/* First token in [lo, hi) whose byte at `depth` is >= `byte`; all of them share the bytes before,
 * and one that ends there sorts first. */
static uint32_t lower_bound(const struct added_tokens *set, uint32_t lo, uint32_t hi, size_t depth,
                            int byte) {
    while (lo < hi) {
        uint32_t mid = lo + (hi - lo) / 2;
        struct str c = set->tokens[mid].content;
        int here = c.len > depth ? (uint8_t)c.ptr[depth] : -1;

        if (here < byte) {
            lo = mid + 1;
        } else {
            hi = mid;
        }
    }
    return lo;
}

/* The longest token that `s` begins with, or NULL. */
static const struct added_token *longest_at(const struct added_tokens *set, struct str s) {
    const struct added_token *best = NULL;
    uint32_t lo = 0, hi = set->n;

    for (size_t depth = 0; depth < s.len && lo < hi; depth++) {
        int byte = (uint8_t)s.ptr[depth];

        lo = lower_bound(set, lo, hi, depth, byte);
        hi = lower_bound(set, lo, hi, depth, byte + 1);
        if (lo < hi && set->tokens[lo].content.len == depth + 1) best = &set->tokens[lo];
    }
    return best;
}

const struct added_token *added_tokens_find(const struct added_tokens *set, struct str content) {
    struct added_token key = {.content = content};

    if (!set->n) return NULL;
    return bsearch(&key, set->tokens, set->n, sizeof(key), by_content);
}

static bool is_word(uint32_t cp) {
    return unicode_class(cp) & UC_WORD;
}

/* The character that ends at p (begin < p). */
static uint32_t character_before(const char *begin, const char *p, const char **start) {
    const char *q = p - 1;
    uint32_t n;

    while (q > begin && p - q < 4 && ((uint8_t)*q & 0xC0) == 0x80)
        q--;
    *start = q;
    return unicode_decode(q, p, &n);
}

static bool stands_alone(struct str text, const char *begin, const char *end) {
    const char *text_end = text.ptr + text.len, *start;
    uint32_t n;

    if (begin > text.ptr && is_word(character_before(text.ptr, begin, &start))) return false;
    return end == text_end || !is_word(unicode_decode(end, text_end, &n));
}

static const char *strip_left(const char *from, const char *p) {
    while (p > from) {
        const char *start;

        if (!(unicode_class(character_before(from, p, &start)) & UC_SPACE)) break;
        p = start;
    }
    return p;
}

static const char *strip_right(const char *p, const char *end) {
    while (p < end) {
        uint32_t n;

        if (!(unicode_class(unicode_decode(p, end, &n)) & UC_SPACE)) break;
        p += n;
    }
    return p;
}

struct added_match added_tokens_next(const struct added_tokens *set, struct str text,
                                     const char *from, bool skip_special) {
    const char *end = text.ptr + text.len, *p = from;

    while (set->n && p < end) {
        uint8_t byte = (uint8_t)*p;
        const struct added_token *t = NULL;
        struct added_match m;

        if (set->first[byte / 64] >> (byte % 64) & 1) {
            t = longest_at(set, (struct str){p, (size_t)(end - p)});
        }
        if (!t) {
            p++;
            continue;
        }
        m = (struct added_match){t, p, p + t->content.len};
        p = m.end;
        if (skip_special && (t->flags & ADDED_SPECIAL)) continue;
        if ((t->flags & ADDED_SINGLE_WORD) && !stands_alone(text, m.begin, m.end)) continue;
        if (t->flags & ADDED_LSTRIP) m.begin = strip_left(from, m.begin);
        if (t->flags & ADDED_RSTRIP) m.end = strip_right(m.end, end);
        return m;
    }
    return (struct added_match){NULL, end, end};
}
