/* worker/text/stop.c - one Knuth-Morris-Pratt automaton per stop string.
 *
 * Its state is how many bytes of the string the text ends with. So the text that must be held back
 * need not be stored: it is the beginning of the longest partial match. */
#include "worker/text/stop.h"

#include <string.h>

#include "common/base/mem.h"

struct stop_string {
    char *ptr;
    size_t len;
    uint16_t *fallback; /* (len) longest proper border of the first i + 1 bytes */
};

struct stop_set {
    size_t n;
    struct stop_string strings[];
};

static enum status check_string(struct str s, size_t i, struct error *err) {
    if (!s.len) {
        return error_set_param(err, ST_INVALID, "stop", "stop string %zu is empty: leave it out",
                               i);
    }
    if (s.len > STOP_MAX_BYTES) {
        return error_set_param(err, ST_INVALID, "stop",
                               "stop string %zu has %zu bytes: send at most %d", i, s.len,
                               STOP_MAX_BYTES);
    }
    return ST_OK;
}

static void stop_string_init(struct stop_string *s, struct str text) {
    uint16_t border = 0;

    s->ptr = mem_strndup(text.ptr, text.len);
    s->len = text.len;
    s->fallback = mem_calloc(text.len, sizeof(*s->fallback));
    for (size_t i = 1; i < text.len; i++) {
        while (border && text.ptr[i] != text.ptr[border])
            border = s->fallback[border - 1];
        if (text.ptr[i] == text.ptr[border]) border++;
        s->fallback[i] = border;
    }
}

enum status stop_set_create(struct stop_set **out, const struct str *strings, size_t n,
                            struct error *err) {
    struct stop_set *set;

    if (n > STOP_MAX_STRINGS) {
        return error_set_param(err, ST_INVALID, "stop",
                               "the request has %zu stop strings: send at most %d", n,
                               STOP_MAX_STRINGS);
    }
    for (size_t i = 0; i < n; i++) {
        enum status st = check_string(strings[i], i, err);

        if (st != ST_OK) return st;
    }
    set = mem_zalloc(sizeof(*set) + n * sizeof(set->strings[0]));
    set->n = n;
    for (size_t i = 0; i < n; i++)
        stop_string_init(&set->strings[i], strings[i]);
    *out = set;
    return ST_OK;
}

void stop_set_destroy(struct stop_set *set) {
    if (!set) return;
    for (size_t i = 0; i < set->n; i++) {
        mem_free(set->strings[i].ptr);
        mem_free(set->strings[i].fallback);
    }
    mem_free(set);
}

size_t stop_set_count(const struct stop_set *set) {
    return set ? set->n : 0;
}

struct str stop_set_string(const struct stop_set *set, size_t i) {
    return (struct str){set->strings[i].ptr, set->strings[i].len};
}

void stop_matcher_init(struct stop_matcher *m, const struct stop_set *set, bool include_stop) {
    *m = (struct stop_matcher){.set = set, .include_stop = include_stop, .matched = -1};
    if (stop_set_count(set)) m->progress = mem_calloc(set->n, sizeof(*m->progress));
}

void stop_matcher_fini(struct stop_matcher *m) {
    mem_free(m->progress);
    m->progress = NULL;
    m->set = NULL;
}

/* Moves the automaton of one string by one byte, on from a complete string too. */
static uint16_t step(const struct stop_string *s, uint16_t at, char byte) {
    if (at == s->len) at = s->fallback[at - 1];
    while (at && s->ptr[at] != byte)
        at = s->fallback[at - 1];
    return at + (s->ptr[at] == byte);
}

/* Moves the automaton of string i over `text`, up to where the string is complete if it `may_end`.
 * Returns the bytes of text up to there, or 0. */
static size_t walk(struct stop_matcher *m, size_t i, struct str text, bool may_end) {
    const struct stop_string *s = &m->set->strings[i];

    for (size_t k = 0; k < text.len; k++) {
        m->progress[i] = step(s, m->progress[i], text.ptr[k]);
        if (may_end && m->progress[i] == s->len) return k + 1;
    }
    if (m->progress[i] == s->len) m->progress[i] = s->fallback[s->len - 1];
    return 0;
}

static struct str longest_start(const struct stop_matcher *m) {
    struct str best = STR_NULL;

    for (size_t i = 0; i < m->set->n; i++) {
        if (m->progress[i] > best.len) {
            best = (struct str){m->set->strings[i].ptr, m->progress[i]};
        }
    }
    return best;
}

/* Appends the first n bytes of `held` followed by `text`. */
static void give(const struct stop_matcher *m, struct str text, size_t n, struct buf *out) {
    size_t from_held = MIN(n, m->held.len);

    buf_append(out, m->held.ptr, from_held);
    buf_append(out, text.ptr, n - from_held);
}

/* Gives out what cannot be the beginning of a stop string any more. */
static void hold(struct stop_matcher *m, struct str text, struct buf *out) {
    struct str held = longest_start(m);

    give(m, text, m->held.len + text.len - held.len, out);
    m->held = held;
}

bool stop_matcher_push(struct stop_matcher *m, struct str text, struct buf *out) {
    if (m->matched >= 0) return true;
    if (!m->progress) {
        buf_append_str(out, text);
        return false;
    }
    for (size_t i = 0; i < m->set->n; i++) {
        size_t end = walk(m, i, text, true), n = m->held.len + end;

        if (!end) continue;
        m->matched = (int32_t)i;
        give(m, text, m->include_stop ? n : n - m->set->strings[i].len, out);
        m->held = STR_NULL;
        return true;
    }
    hold(m, text, out);
    return false;
}

void stop_matcher_pass(struct stop_matcher *m, struct str text, struct buf *out) {
    if (m->matched >= 0) return;
    if (!m->progress) {
        buf_append_str(out, text);
        return;
    }
    for (size_t i = 0; i < m->set->n; i++)
        walk(m, i, text, false);
    hold(m, text, out);
}

void stop_matcher_finish(struct stop_matcher *m, struct buf *out) {
    buf_append_str(out, m->held);
    m->held = STR_NULL;
    if (m->progress) memset(m->progress, 0, m->set->n * sizeof(*m->progress));
}
