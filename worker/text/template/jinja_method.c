/* worker/text/template/jinja_method.c - the methods that values have in Python: of strings,
 * mappings, lists. */
#include "worker/text/template/jinja_internal.h"
#include "worker/text/unicode/unicode.h"

/* --- methods of strings ------------------------------------------------------------------------*/
static enum status want_string(struct jinja_run *r, struct jv v, struct str *out) {
    if (v.type != JV_STRING)
        return jinja_fail(r, "the method needs a string, not %s", jv_type_name(v));
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

            if (jinja_is_space(unicode_decode(s.ptr + word.len, s.ptr + s.len, &n))) break;
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
    if (!sep.as.string.len) return jinja_fail(r, "split needs a separator that is not empty");
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
        return jinja_fail(r, "the method needs a string, not %s", jv_type_name(affix));
    for (size_t i = 0; i < list.as.list->n && !found; i++) {
        TRY(want_string(r, list.as.list->items[i], &one));
        TRY(jinja_charge(r, 1 + one.len / 64));
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

/* What a method of a string is given, and where its result goes. */
struct method_call {
    struct jinja_run *r;
    struct str self;
    const struct jinja_args *args;
    struct jv first; /* the first argument, by place or as `chars` */
    struct jv *out;
};

static enum status strip(const struct method_call *c, enum jinja_side side) {
    TRY(jinja_charge_strip(c->r, c->self, c->first));
    *c->out = jv_string(jinja_strip(c->self, c->first, side));
    return ST_OK;
}

static enum status method_strip(const struct method_call *c) {
    return strip(c, SIDE_BOTH);
}

static enum status method_lstrip(const struct method_call *c) {
    return strip(c, SIDE_LEFT);
}

static enum status method_rstrip(const struct method_call *c) {
    return strip(c, SIDE_RIGHT);
}

static enum status method_split(const struct method_call *c) {
    return split(c->r, c->self, c->args, false, c->out);
}

static enum status method_rsplit(const struct method_call *c) {
    return split(c->r, c->self, c->args, true, c->out);
}

static enum status method_splitlines(const struct method_call *c) {
    return split_lines(c->r, c->self, c->out);
}

static enum status method_startswith(const struct method_call *c) {
    return has_affix(c->r, c->self, c->first, false, c->out);
}

static enum status method_endswith(const struct method_call *c) {
    return has_affix(c->r, c->self, c->first, true, c->out);
}

static enum status method_removeprefix(const struct method_call *c) {
    struct str affix;

    TRY(want_string(c->r, c->first, &affix));
    *c->out = jv_string(c->self);
    if (!str_starts(c->self, affix)) return ST_OK;
    *c->out = jv_string((struct str){c->self.ptr + affix.len, c->self.len - affix.len});
    return ST_OK;
}

static enum status method_removesuffix(const struct method_call *c) {
    struct str affix;

    TRY(want_string(c->r, c->first, &affix));
    *c->out = jv_string(c->self);
    if (str_ends(c->self, affix)) c->out->as.string.len -= affix.len;
    return ST_OK;
}

static enum status method_upper(const struct method_call *c) {
    return jinja_change_case(c->r, c->self, CASE_UPPER, c->out);
}

static enum status method_lower(const struct method_call *c) {
    return jinja_change_case(c->r, c->self, CASE_LOWER, c->out);
}

static enum status method_title(const struct method_call *c) {
    return jinja_change_case(c->r, c->self, CASE_TITLE, c->out);
}

static enum status method_capitalize(const struct method_call *c) {
    return jinja_change_case(c->r, c->self, CASE_CAPITALIZE, c->out);
}

static enum status method_join(const struct method_call *c) {
    return jinja_join(c->r, c->first, c->self, c->out);
}

static enum status method_replace(const struct method_call *c) {
    struct jv max = jinja_arg(c->args, 2, "count");
    struct str from, to;

    TRY(want_string(c->r, c->first, &from));
    TRY(want_string(c->r, jinja_arg(c->args, 1, "new"), &to));
    return jinja_replace(c->r, c->self, from, to, max.type == JV_INT ? max.as.integer : -1, c->out);
}

static enum status method_find(const struct method_call *c) {
    struct str what;

    TRY(want_string(c->r, c->first, &what));
    return find_in(c->r, c->self, what, false, c->out);
}

static enum status method_rfind(const struct method_call *c) {
    struct str what;

    TRY(want_string(c->r, c->first, &what));
    return find_in(c->r, c->self, what, true, c->out);
}

static enum status method_index(const struct method_call *c) {
    TRY(method_find(c));
    return c->out->as.integer < 0 ? jinja_fail(c->r, "index: the substring is not found") : ST_OK;
}

static enum status method_count(const struct method_call *c) {
    struct str what;

    TRY(want_string(c->r, c->first, &what));
    return count_of(c->r, c->self, what, c->out);
}

/* The text before the separator, the separator, and the text after. */
static enum status method_partition(const struct method_call *c) {
    struct str what, parts[3] = {c->self, STR(""), STR("")};
    ptrdiff_t at;

    TRY(want_string(c->r, c->first, &what));
    if (!what.len) return jinja_fail(c->r, "partition needs a separator that is not empty");
    TRY(find(c->r, c->self, what, false, &at));
    if (at >= 0) {
        size_t past = (size_t)at + what.len;

        parts[0].len = (size_t)at;
        parts[1] = what;
        parts[2] = (struct str){c->self.ptr + past, c->self.len - past};
    }
    TRY(jv_new_list(c->r, 3, c->out));
    c->out->as.list->is_tuple = true;
    for (size_t i = 0; i < ARRAY_LEN(parts); i++)
        TRY(jv_push(c->r, *c->out, jv_string(parts[i])));
    return ST_OK;
}

/* Whether there are characters, and all of them are of these classes. */
static enum status all_are(const struct method_call *c, uint32_t classes) {
    const char *p = c->self.ptr, *end = p + c->self.len;
    bool holds = c->self.len != 0;
    uint32_t n;

    for (; holds && p < end; p += n)
        holds = unicode_class(unicode_decode(p, end, &n)) & classes;
    *c->out = jv_bool(holds);
    return ST_OK;
}

static enum status method_isdigit(const struct method_call *c) {
    return all_are(c, UC_ND);
}

static enum status method_isalpha(const struct method_call *c) {
    return all_are(c, UC_L);
}

static enum status method_isalnum(const struct method_call *c) {
    return all_are(c, UC_L | UC_N);
}

static enum status method_isspace(const struct method_call *c) {
    *c->out = jv_bool(c->self.len && !jinja_strip(c->self, jv_none(), SIDE_LEFT).len);
    return ST_OK;
}

/* Whether there are letters of this case, and none of the other. */
static enum status has_case(const struct method_call *c, uint32_t wanted, uint32_t other) {
    const char *p = c->self.ptr, *end = p + c->self.len;
    bool has_wanted = false, has_other = false;
    uint32_t n;

    for (; p < end; p += n) {
        uint32_t class = unicode_class(unicode_decode(p, end, &n));

        has_wanted = has_wanted || (class & wanted);
        has_other = has_other || (class & other);
    }
    *c->out = jv_bool(has_wanted && !has_other);
    return ST_OK;
}

static enum status method_isupper(const struct method_call *c) {
    return has_case(c, UC_LU, UC_LL | UC_LT);
}

static enum status method_islower(const struct method_call *c) {
    return has_case(c, UC_LL, UC_LU | UC_LT);
}

static const struct {
    const char *name;
    enum status (*run)(const struct method_call *c);
} string_methods[] = {
    {"strip", method_strip},
    {"lstrip", method_lstrip},
    {"rstrip", method_rstrip},
    {"split", method_split},
    {"rsplit", method_rsplit},
    {"splitlines", method_splitlines},
    {"startswith", method_startswith},
    {"endswith", method_endswith},
    {"removeprefix", method_removeprefix},
    {"removesuffix", method_removesuffix},
    {"upper", method_upper},
    {"lower", method_lower},
    {"title", method_title},
    {"capitalize", method_capitalize},
    {"join", method_join},
    {"replace", method_replace},
    {"find", method_find},
    {"rfind", method_rfind},
    {"index", method_index},
    {"count", method_count},
    {"partition", method_partition},
    {"isdigit", method_isdigit},
    {"isalpha", method_isalpha},
    {"isalnum", method_isalnum},
    {"isspace", method_isspace},
    {"isupper", method_isupper},
    {"islower", method_islower},
};

static enum status string_method(struct jinja_run *r, struct str s, struct str name,
                                 const struct jinja_args *args, struct jv *out) {
    const struct method_call c = {r, s, args, jinja_arg(args, 0, "chars"), out};

    TRY(jinja_charge(r, s.len / 16));
    for (size_t i = 0; i < ARRAY_LEN(string_methods); i++) {
        if (str_eq(name, str_of(string_methods[i].name))) return string_methods[i].run(&c);
    }
    return jinja_fail(r, "strings have no method '" STR_FMT "'", STR_ARG(name));
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
    return jinja_fail(r, "mappings have no method '" STR_FMT "' (values cannot be modified)",
                      STR_ARG(name));
}

static enum status list_method(struct jinja_run *r, struct jv self, struct str name,
                               const struct jinja_args *args, struct jv *out) {
    struct jv what = jinja_arg(args, 0, "value");
    int64_t n = 0, first = -1;

    if (!str_eq(name, STR("count")) && !str_eq(name, STR("index"))) {
        return jinja_fail(r, "lists have no method '" STR_FMT "' (values cannot be modified)",
                          STR_ARG(name));
    }
    for (size_t i = 0; i < self.as.list->n; i++) {
        bool is_equal;

        TRY(jv_equal(r, self.as.list->items[i], what, &is_equal));
        if (is_equal && first < 0) first = (int64_t)i;
        n += is_equal;
    }
    if (str_eq(name, STR("index")) && first < 0)
        return jinja_fail(r, "index: the value is not in the list");
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
