/* worker/text/template/jinja_text.c - work on strings: what filters and methods share. */
#include "worker/text/template/jinja_internal.h"
#include "worker/text/unicode/unicode.h"

static bool is_among(uint32_t cp, struct str set) {
    const char *p = set.ptr, *end = p + set.len;
    uint32_t n;

    for (; p < end; p += n) {
        if (unicode_decode(p, end, &n) == cp) return true;
    }
    return false;
}

bool jinja_is_space(uint32_t cp) {
    return (unicode_class(cp) & UC_SPACE) || (cp >= 0x1C && cp <= 0x1F);
}

static bool is_stripped(uint32_t cp, struct jv chars) {
    return chars.type == JV_STRING ? is_among(cp, chars.as.string) : jinja_is_space(cp);
}

static const char *previous(const char *begin, const char *p) {
    do {
        p--;
    } while (p > begin && ((uint8_t)*p & 0xC0) == 0x80);
    return p;
}

struct str jinja_strip(struct str s, struct jv chars, enum jinja_side side) {
    const char *p = s.ptr, *end = s.ptr + s.len;
    uint32_t n;

    while (side != SIDE_RIGHT && p < end && is_stripped(unicode_decode(p, end, &n), chars))
        p += n;
    while (side != SIDE_LEFT && p < end) {
        const char *last = previous(p, end);

        if (!is_stripped(unicode_decode(last, end, &n), chars)) break;
        end = last;
    }
    return (struct str){p, (size_t)(end - p)};
}

enum status jinja_charge_strip(struct jinja_run *r, struct str s, struct jv chars) {
    return jinja_charge(r, chars.type == JV_STRING ? s.len / 16 * (chars.as.string.len / 16) : 0);
}

enum status jinja_replace(struct jinja_run *r, struct str s, struct str from, struct str to,
                          int64_t max, struct jv *out) {
    struct buf b;

    if (!from.len) return jinja_fail(r, "replace needs a string that is not empty");
    TRY(jinja_charge(r, s.len / 16));
    buf_init(&b, r->limits.max_memory_bytes);
    for (; max != 0; max--) {
        ptrdiff_t at = str_find(s, from);

        if (at < 0) break;
        buf_append(&b, s.ptr, (size_t)at);
        buf_append_str(&b, to);
        s.ptr += (size_t)at + from.len;
        s.len -= (size_t)at + from.len;
    }
    buf_append_str(&b, s);
    return jinja_take(r, &b, out);
}

enum status jinja_join(struct jinja_run *r, struct jv list, struct str sep, struct jv *out) {
    struct buf b;
    enum status st = ST_OK;

    TRY(jv_iterate(r, list, &list));
    TRY(jinja_charge(r, list.as.list->n));
    buf_init(&b, r->limits.max_memory_bytes);
    for (size_t i = 0; i < list.as.list->n && st == ST_OK; i++) {
        struct str s = STR("");

        st = jv_to_string(r, list.as.list->items[i], &s);
        if (i) buf_append_str(&b, sep);
        buf_append_str(&b, s);
    }
    if (st == ST_OK) return jinja_take(r, &b, out);
    buf_fini(&b);
    return st;
}

static char to_upper(char c) {
    return c >= 'a' && c <= 'z' ? (char)(c - 32) : c;
}

static char to_lower(char c) {
    return c >= 'A' && c <= 'Z' ? (char)(c + 32) : c;
}

static bool is_letter(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (uint8_t)c >= 0x80;
}

static bool ends_word(char c) {
    return c == ' ' || (c >= '\t' && c <= '\r') || (c && strchr("-({[<", c));
}

enum status jinja_change_case(struct jinja_run *r, struct str s, enum jinja_case to,
                              struct jv *out) {
    bool begins_word = true;
    char *text;

    TRY(jv_copy(r, s, out));
    text = (char *)(uintptr_t)out->as.string.ptr; /* ours, and not shared yet */
    for (size_t i = 0; i < s.len; i++) {
        bool is_up = to == CASE_UPPER || (to == CASE_CAPITALIZE && i == 0) ||
                     ((to == CASE_TITLE || to == CASE_WORDS) && begins_word);

        begins_word = to == CASE_WORDS ? ends_word(text[i]) : !is_letter(text[i]);
        text[i] = is_up ? to_upper(text[i]) : to_lower(text[i]);
    }
    return ST_OK;
}

enum status jinja_items(struct jinja_run *r, struct jv dict, struct jv *out) {
    TRY(jv_new_list(r, dict.as.dict->n, out));
    for (size_t i = 0; i < dict.as.dict->n; i++) {
        struct jv pair;

        TRY(jv_new_list(r, 2, &pair));
        pair.as.list->is_tuple = true;
        TRY(jv_push(r, pair, dict.as.dict->entries[i].key));
        TRY(jv_push(r, pair, dict.as.dict->entries[i].value));
        TRY(jv_push(r, *out, pair));
    }
    return ST_OK;
}
