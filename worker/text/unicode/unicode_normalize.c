/* worker/text/unicode/unicode_normalize.c - normal forms, stretch by stretch.
 *
 * Most characters are unchanged by the form and join nothing before them. Only the stretches
 * between those, each with the character before it, go through the library:
 *
 *      c o f f e e   c a f e \u0301   b a r
 *      ──────────────────╴└──┬─────┘──────╴       copied, normalized, copied
 *
 * The library decomposes and composes. Marks are ordered here: the library takes quadratic time for
 * a long run, and its tables have marks that the reference lacks (UC_INERT). */
#include <string.h>

#include <utf8proc.h>

#include "common/base/mem.h"
#include "worker/text/unicode/unicode.h"

#define MAX_CLASS   256 /* combining classes are bytes */
#define FEW_MARKS   32  /* sorted in place up to this number */
#define MAX_EXPAND  32  /* U+FDFA becomes 18 characters, the most that there are */
#define FIRST_CHARS 64

struct stretch {
    utf8proc_int32_t *cps;
    size_t n, cap;
};

static enum status reserve(struct stretch *s, size_t n) {
    utf8proc_int32_t *cps;
    size_t cap = MAX(s->cap * 2, (size_t)FIRST_CHARS);

    if (s->cap - s->n >= n) return ST_OK;
    cps = mem_try_realloc(s->cps, MAX(cap, s->n + n) * sizeof(*cps));
    if (!cps) return ST_NOMEM;
    s->cps = cps;
    s->cap = MAX(cap, s->n + n);
    return ST_OK;
}

static uint8_t class_of(utf8proc_int32_t cp) {
    return cp < 0x300 ? 0 : (uint8_t)utf8proc_get_property(cp)->combining_class;
}

/* --- the order of marks ------------------------------------------------------------------------*/
static void sort_few(utf8proc_int32_t *marks, size_t n) {
    for (size_t i = 1; i < n; i++) {
        utf8proc_int32_t mark = marks[i];
        size_t at = i;

        for (; at > 0 && class_of(marks[at - 1]) > class_of(mark); at--)
            marks[at] = marks[at - 1];
        marks[at] = mark;
    }
}

/* By counting: stable, and linear. */
static enum status sort_many(utf8proc_int32_t *marks, size_t n) {
    size_t begins[MAX_CLASS + 1] = {0};
    utf8proc_int32_t *sorted = mem_try(n * sizeof(*sorted));

    if (!sorted) return ST_NOMEM;
    for (size_t i = 0; i < n; i++)
        begins[class_of(marks[i]) + 1]++;
    for (size_t c = 0; c < MAX_CLASS; c++)
        begins[c + 1] += begins[c];
    for (size_t i = 0; i < n; i++)
        sorted[begins[class_of(marks[i])]++] = marks[i];
    memcpy(marks, sorted, n * sizeof(*marks));
    mem_free(sorted);
    return ST_OK;
}

static enum status order_marks(struct stretch *s) {
    enum status st = ST_OK;

    for (size_t i = 0, end; i < s->n && st == ST_OK; i = end + 1) {
        for (end = i; end < s->n && class_of(s->cps[end]); end++) {
        }
        if (end - i <= FEW_MARKS) {
            sort_few(s->cps + i, end - i);
        } else {
            st = sort_many(s->cps + i, end - i);
        }
    }
    return st;
}

/* --- a stretch ---------------------------------------------------------------------------------*/
static enum status decompose(struct stretch *s, struct str text, utf8proc_option_t options) {
    const char *p = text.ptr, *end = p + text.len;
    uint32_t n;

    for (; p < end; p += n) {
        utf8proc_int32_t cp = (utf8proc_int32_t)unicode_decode(p, end, &n);
        utf8proc_ssize_t n_out;

        if (reserve(s, MAX_EXPAND) != ST_OK) return ST_NOMEM;
        n_out = utf8proc_decompose_char(cp, s->cps + s->n, MAX_EXPAND, options, NULL);
        if (n_out < 0 || n_out > MAX_EXPAND) return ST_INTERNAL;
        s->n += (size_t)n_out;
    }
    return ST_OK;
}

static enum status normalize_stretch(enum unicode_form form, struct stretch *s, struct str text,
                                     struct buf *out) {
    bool composes = form == UNICODE_NFC || form == UNICODE_NFKC;
    bool is_compatible = form == UNICODE_NFKC || form == UNICODE_NFKD;
    utf8proc_option_t options = UTF8PROC_STABLE | UTF8PROC_DECOMPOSE;
    enum status st;

    if (is_compatible) options |= UTF8PROC_COMPAT;
    s->n = 0;
    st = decompose(s, text, options);
    if (st == ST_OK) st = order_marks(s);
    if (st != ST_OK) return st;
    if (composes) {
        utf8proc_ssize_t n = utf8proc_normalize_utf32(s->cps, (utf8proc_ssize_t)s->n,
                                                      UTF8PROC_STABLE | UTF8PROC_COMPOSE);

        if (n < 0) return ST_INTERNAL;
        s->n = (size_t)n;
    }
    for (size_t i = 0; i < s->n; i++) {
        char bytes[4];

        buf_append(out, bytes, unicode_encode((uint32_t)s->cps[i], bytes));
    }
    return buf_status(out);
}

/* --- a text ------------------------------------------------------------------------------------*/
/* The end of the run of characters from p on that are calm, or are not. *last: the character that
 * ends it. */
static const char *run_end(const char *p, const char *end, uint32_t touched, bool is_calm,
                           const char **last) {
    uint32_t n;

    *last = p;
    for (; p < end; p += n) {
        n = 1;
        if ((uint8_t)*p < 0x80
                ? !is_calm
                : !(unicode_traits(unicode_decode(p, end, &n)) & touched) != is_calm) {
            break;
        }
        *last = p;
    }
    return p;
}

static bool is_inert(const char *p, const char *end) {
    uint32_t n;

    return unicode_traits(unicode_decode(p, end, &n)) & UC_INERT;
}

enum status unicode_normalize(enum unicode_form form, struct str text, struct buf *out,
                              struct error *err) {
    uint32_t touched = form == UNICODE_NFC ? UC_NFC_TOUCHED : UC_TOUCHED;
    const char *p = text.ptr, *end = p + text.len;
    struct stretch stretch = {0};
    enum status st = ST_OK;

    while (p < end && st == ST_OK) {
        const char *last, *calm_end = run_end(p, end, touched, true, &last), *begin, *ignored;

        begin = calm_end < end && last < calm_end && !is_inert(last, end) ? last : calm_end;
        buf_append(out, p, (size_t)(begin - p));
        p = run_end(calm_end, end, touched, false, &ignored);
        st = buf_status(out);
        if (st == ST_OK && p > begin) {
            st = normalize_stretch(form, &stretch, (struct str){begin, (size_t)(p - begin)}, out);
        }
    }
    mem_free(stretch.cps);
    if (st == ST_OK) return ST_OK;
    return error_set(err, st, "cannot normalize %zu bytes of text: %s", text.len, status_name(st));
}
