/* worker/text/jinja_text.c - work on strings, and the methods that values have in Python. */
#include "worker/text/jinja_internal.h"
#include "worker/text/unicode.h"

static bool is_among(uint32_t cp, struct str set) {
    const char *p = set.ptr, *end = p + set.len;
    uint32_t n;

    for (; p < end; p += n) {
        if (unicode_decode(p, end, &n) == cp) return true;
    }
    return false;
}

static bool is_stripped(uint32_t cp, struct jv chars) {
    if (chars.type == JV_STRING) return is_among(cp, chars.as.string);
    return (unicode_class(cp) & UC_SPACE) || (cp >= 0x1C && cp <= 0x1F); /* as str.isspace */
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

enum status jinja_replace(struct jinja_run *r, struct str s, struct str from, struct str to,
                          int64_t max, struct jv *out) {
    struct buf b;

    if (!from.len) return jinja_fail(r, "replace wants something to look for");
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

/* --- methods of strings ------------------------------------------------------------------------*/
static enum status want_string(struct jinja_run *r, struct jv v, struct str *out) {
    if (v.type != JV_STRING) return jinja_fail(r, "a string is wanted, not %s", jv_type_name(v));
    *out = v.as.string;
    return ST_OK;
}

/* Without a separator: runs of white space, and no empty parts. */
static enum status split_words(struct jinja_run *r, struct str s, int64_t max, struct jv *out) {
    TRY(jv_new_list(r, 0, out));
    for (;;) {
        struct str word;

        s = jinja_strip(s, jv_none(), SIDE_LEFT);
        if (!s.len) return ST_OK;
        word = s;
        for (word.len = 0; max != 0 && word.len < s.len;) {
            uint32_t n;

            if (is_stripped(unicode_decode(s.ptr + word.len, s.ptr + s.len, &n), jv_none())) break;
            word.len += n;
        }
        if (max == 0) word.len = s.len;
        max--;
        TRY(jv_push(r, *out, jv_string(word)));
        s.ptr += word.len;
        s.len -= word.len;
    }
}

/* Offset of the last `sep` in `s`, or -1. */
static enum status find_last(struct jinja_run *r, struct str s, struct str sep, ptrdiff_t *out) {
    *out = -1;
    TRY(jinja_charge(r, (s.len / 64 + 1) * (sep.len / 64 + 1)));
    for (size_t at = s.len + 1; at-- > sep.len;) {
        if (memcmp(s.ptr + at - sep.len, sep.ptr, sep.len) != 0) continue;
        *out = (ptrdiff_t)(at - sep.len);
        break;
    }
    return ST_OK;
}

static enum status find(struct jinja_run *r, struct str s, struct str what, bool from_right,
                        ptrdiff_t *out) {
    if (from_right) return find_last(r, s, what, out);
    *out = str_find(s, what);
    return jinja_charge(r, *out < 0 ? s.len / 16 : (size_t)*out / 16);
}

static enum status split(struct jinja_run *r, struct str s, const struct jinja_args *args,
                         bool from_right, struct jv *out) {
    struct jv sep = jinja_arg(args, 0, "sep"), limit = jinja_arg(args, 1, "maxsplit"), swap;
    int64_t max = limit.type == JV_INT ? limit.as.integer : -1;

    if (sep.type != JV_STRING) return split_words(r, s, max, out);
    if (!sep.as.string.len) return jinja_fail(r, "split wants a separator that is not empty");
    TRY(jv_new_list(r, 0, out));
    for (; max != 0; max--) {
        ptrdiff_t at;
        size_t past;

        TRY(find(r, s, sep.as.string, from_right, &at));
        if (at < 0) break;
        past = (size_t)at + sep.as.string.len;
        if (from_right) {
            TRY(jv_push(r, *out, jv_string((struct str){s.ptr + past, s.len - past})));
            s.len = (size_t)at;
        } else {
            TRY(jv_push(r, *out, jv_string((struct str){s.ptr, (size_t)at})));
            s.ptr += past;
            s.len -= past;
        }
    }
    TRY(jv_push(r, *out, jv_string(s)));
    for (size_t i = 0, n = out->as.list->n; from_right && i < n / 2; i++) {
        swap = out->as.list->items[i];
        out->as.list->items[i] = out->as.list->items[n - 1 - i];
        out->as.list->items[n - 1 - i] = swap;
    }
    return ST_OK;
}

static enum status split_lines(struct jinja_run *r, struct str s, struct jv *out) {
    TRY(jv_new_list(r, 0, out));
    while (s.len) {
        const char *end = memchr(s.ptr, '\n', s.len);
        size_t n = end ? (size_t)(end - s.ptr) : s.len;

        TRY(jv_push(r, *out, jv_string((struct str){s.ptr, n})));
        n += end != NULL;
        s.ptr += n;
        s.len -= n;
    }
    return ST_OK;
}

/* startswith and endswith take a string, or a tuple of them. */
static enum status has_affix(struct jinja_run *r, struct str s, struct jv affix, bool at_end,
                             struct jv *out) {
    bool found = false;
    struct jv list = affix;
    struct str one;

    if (affix.type == JV_STRING) {
        TRY(jv_new_list(r, 1, &list));
        TRY(jv_push(r, list, affix));
    }
    if (list.type != JV_LIST)
        return jinja_fail(r, "a string is wanted, not %s", jv_type_name(affix));
    for (size_t i = 0; i < list.as.list->n && !found; i++) {
        TRY(want_string(r, list.as.list->items[i], &one));
        found = at_end ? str_ends(s, one) : str_starts(s, one);
    }
    *out = jv_bool(found);
    return ST_OK;
}

static enum status count_of(struct jinja_run *r, struct str s, struct str what, struct jv *out) {
    int64_t n = 0;
    ptrdiff_t at;

    TRY(jinja_charge(r, s.len / 16));
    while (what.len && (at = str_find(s, what)) >= 0) {
        n++;
        s.ptr += (size_t)at + what.len;
        s.len -= (size_t)at + what.len;
    }
    *out = jv_int(n);
    return ST_OK;
}

static enum status find_in(struct jinja_run *r, struct str s, struct str what, bool from_right,
                           struct jv *out) {
    ptrdiff_t at;

    TRY(find(r, s, what, from_right, &at));
    *out = jv_int(at < 0 ? -1 : (int64_t)jinja_characters((struct str){s.ptr, (size_t)at}));
    return ST_OK;
}

static bool all_digits(struct str s) {
    for (size_t i = 0; i < s.len; i++) {
        if (s.ptr[i] < '0' || s.ptr[i] > '9') return false;
    }
    return s.len != 0;
}

static enum status string_method(struct jinja_run *r, struct str s, struct str name,
                                 const struct jinja_args *args, struct jv *out) {
    struct jv first = jinja_arg(args, 0, "chars");
    struct str a, b;

    TRY(jinja_charge(r, s.len / 64));
    if (str_eq(name, STR("strip")))
        *out = jv_string(jinja_strip(s, first, SIDE_BOTH));
    else if (str_eq(name, STR("lstrip")))
        *out = jv_string(jinja_strip(s, first, SIDE_LEFT));
    else if (str_eq(name, STR("rstrip")))
        *out = jv_string(jinja_strip(s, first, SIDE_RIGHT));
    else if (str_eq(name, STR("split")))
        return split(r, s, args, false, out);
    else if (str_eq(name, STR("rsplit")))
        return split(r, s, args, true, out);
    else if (str_eq(name, STR("splitlines")))
        return split_lines(r, s, out);
    else if (str_eq(name, STR("startswith")))
        return has_affix(r, s, first, false, out);
    else if (str_eq(name, STR("endswith")))
        return has_affix(r, s, first, true, out);
    else if (str_eq(name, STR("upper")))
        return jinja_change_case(r, s, CASE_UPPER, out);
    else if (str_eq(name, STR("lower")))
        return jinja_change_case(r, s, CASE_LOWER, out);
    else if (str_eq(name, STR("title")))
        return jinja_change_case(r, s, CASE_TITLE, out);
    else if (str_eq(name, STR("capitalize")))
        return jinja_change_case(r, s, CASE_CAPITALIZE, out);
    else if (str_eq(name, STR("join")))
        return jinja_join(r, first, s, out);
    else if (str_eq(name, STR("isdigit")))
        *out = jv_bool(all_digits(s));
    else if (str_eq(name, STR("replace"))) {
        struct jv max = jinja_arg(args, 2, "count");

        TRY(want_string(r, first, &a));
        TRY(want_string(r, jinja_arg(args, 1, "new"), &b));
        return jinja_replace(r, s, a, b, max.type == JV_INT ? max.as.integer : -1, out);
    } else {
        bool is_find = str_eq(name, STR("find")), is_rfind = str_eq(name, STR("rfind"));

        if (!is_find && !is_rfind && !str_eq(name, STR("count"))) {
            return jinja_fail(r, "strings have no method '" STR_FMT "'", STR_ARG(name));
        }
        TRY(want_string(r, first, &a));
        return is_find || is_rfind ? find_in(r, s, a, is_rfind, out) : count_of(r, s, a, out);
    }
    return ST_OK;
}

/* --- methods of the others ---------------------------------------------------------------------*/
static enum status dict_method(struct jinja_run *r, struct jv self, struct str name,
                               const struct jinja_args *args, struct jv *out) {
    if (str_eq(name, STR("items"))) return jinja_items(r, self, out);
    if (str_eq(name, STR("keys"))) return jv_iterate(r, self, out);
    if (str_eq(name, STR("values"))) {
        TRY(jv_new_list(r, self.as.dict->n, out));
        for (size_t i = 0; i < self.as.dict->n; i++) {
            TRY(jv_push(r, *out, self.as.dict->entries[i].value));
        }
        return ST_OK;
    }
    if (str_eq(name, STR("get")) && args->n) {
        struct jv otherwise = jinja_arg(args, 1, "default");
        struct jv_entry *entry;

        TRY(jv_find(r, self, args->positional[0], &entry));
        *out = entry ? entry->value : otherwise.type == JV_UNDEFINED ? jv_none() : otherwise;
        return ST_OK;
    }
    return jinja_fail(r, "mappings have no method '" STR_FMT "' here (nothing can be modified)",
                      STR_ARG(name));
}

static enum status list_method(struct jinja_run *r, struct jv self, struct str name,
                               const struct jinja_args *args, struct jv *out) {
    struct jv what = jinja_arg(args, 0, "value");
    int64_t n = 0, first = -1;

    if (!str_eq(name, STR("count")) && !str_eq(name, STR("index"))) {
        return jinja_fail(r, "lists have no method '" STR_FMT "' here (nothing can be modified)",
                          STR_ARG(name));
    }
    for (size_t i = 0; i < self.as.list->n; i++) {
        bool is_equal;

        TRY(jv_equal(r, self.as.list->items[i], what, &is_equal));
        if (is_equal && first < 0) first = (int64_t)i;
        n += is_equal;
    }
    if (str_eq(name, STR("index")) && first < 0) return jinja_fail(r, "it is not in the list");
    *out = jv_int(str_eq(name, STR("index")) ? first : n);
    return ST_OK;
}

enum status jinja_method(struct jinja_run *r, struct jv self, struct str name,
                         const struct jinja_args *args, struct jv *out) {
    switch (self.type) {
    case JV_STRING: return string_method(r, self.as.string, name, args, out);
    case JV_DICT: return dict_method(r, self, name, args, out);
    case JV_LIST: return list_method(r, self, name, args, out);
    case JV_UNDEFINED: return jinja_fail(r, "'" STR_FMT "' is undefined", STR_ARG(self.as.string));
    case JV_LOOP:
        if (str_eq(name, STR("cycle")) && args->n) {
            *out = args->positional[self.as.loop->i % args->n];
            return ST_OK;
        }
        break;
    default: break;
    }
    return jinja_fail(r, "%s has no method '" STR_FMT "'", jv_type_name(self), STR_ARG(name));
}
