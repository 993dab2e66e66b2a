/* common/options/options_value.c - one value: text to field, field to text.
 *
 * Numbers of every kind are read as one uint64_t (or a double), checked against the row's min and
 * max, which are read by the same code, and only then narrowed to the field. */
#include <assert.h>
#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/options/options_internal.h"

#define NAME_MAX_BYTES 63

struct unit {
    const char *suffix; /* matched without regard to case */
    uint64_t factor;
};

#define BARE_GIB_MAX 1024 /* of a row that is_gib */

/* The first that divides a value exactly is how it is shown. */
static const struct unit byte_units[] = {
    {"TiB", 1ull << 40},
    {"GiB", 1ull << 30},
    {"MiB", 1ull << 20},
    {"KiB", 1ull << 10},
    {"T", 1ull << 40},
    {"G", 1ull << 30},
    {"M", 1ull << 20},
    {"K", 1ull << 10},
    {"TB", 1000000000000u},
    {"GB", 1000000000u},
    {"MB", 1000000u},
    {"KB", 1000u},
    {"Ti", 1ull << 40},
    {"Gi", 1ull << 30},
    {"Mi", 1ull << 20},
    {"Ki", 1ull << 10},
    {"B", 1},
    {"", 1},
};
static const struct unit time_units[] = {{"h", 3600000}, {"m", 60000}, {"s", 1000}, {"ms", 1}};

static void *field(const struct option_def *d, void *target) {
    return (char *)target + d->offset;
}

static const void *const_field(const struct option_def *d, const void *target) {
    return (const char *)target + d->offset;
}

/* --- text to value ----------------------------------------------------------------------------*/
static enum status parse_with_unit(struct str s, const struct unit *units, size_t n_units,
                                   uint64_t bare_factor, uint64_t *out) {
    struct str digits = s, suffix;
    uint64_t value;

    digits.len = 0;
    while (digits.len < s.len && isdigit((unsigned char)s.ptr[digits.len]))
        digits.len++;
    suffix = (struct str){s.ptr + digits.len, s.len - digits.len};
    if (str_to_u64(digits, &value) != ST_OK) return ST_INVALID;
    if (suffix.len == 0)
        return __builtin_mul_overflow(value, bare_factor, out) ? ST_INVALID : ST_OK;
    for (size_t i = 0; i < n_units; i++) {
        if (!str_eq_nocase(suffix, str_of(units[i].suffix))) continue;
        return __builtin_mul_overflow(value, units[i].factor, out) ? ST_INVALID : ST_OK;
    }
    return ST_INVALID;
}

static enum status parse_double(struct str s, double *out) {
    char text[64], *end;
    double value;

    if (s.len == 0 || s.len >= sizeof(text) || isspace((unsigned char)s.ptr[0])) return ST_INVALID;
    memcpy(text, s.ptr, s.len);
    text[s.len] = '\0';
    value = strtod(text, &end);
    if (*end || end != text + s.len || !isfinite(value)) return ST_INVALID;
    *out = value;
    return ST_OK;
}

/* 32k is 32000, 1.5k is 1500, 32K is 32768, as vLLM has it. */
static enum status parse_human(struct str s, uint64_t *out) {
    static const char letters[] = "kmgtKMGT";
    const char *letter = s.len > 1 ? strchr(letters, s.ptr[s.len - 1]) : NULL;
    uint32_t power = letter ? (uint32_t)(letter - letters) % 4 + 1 : 0;
    double value, factor = letter && letter - letters >= 4 ? 1024 : 1000;

    if (!letter || !*letter) return str_to_u64(s, out);
    if (parse_double((struct str){s.ptr, s.len - 1}, &value) != ST_OK) return ST_INVALID;
    while (power-- > 0)
        value *= factor;
    if (value < 0 || value > (double)UINT32_MAX || value != floor(value)) return ST_INVALID;
    *out = (uint64_t)value;
    return ST_OK;
}

/* As vLLM has sizes of host memory: 16 is 16 GiB, 16MiB is 16 MiB. */
static enum status parse_gib(struct str s, uint64_t *out) {
    uint64_t value;
    enum status st = str_to_u64(s, &value);

    if (st == ST_OK) *out = value <= BARE_GIB_MAX ? value << 30 : value;
    return st;
}

/* A value of one of the integer types. */
static enum status parse_integer(const struct option_def *d, struct str s, bool in_seconds,
                                 uint64_t *out) {
    uint64_t value;
    enum status st;

    if (d->type == OPT_BYTES) {
        st = d->is_gib ? parse_gib(s, &value) : ST_INVALID;
        if (st != ST_OK) st = parse_with_unit(s, byte_units, ARRAY_LEN(byte_units), 1, &value);
    } else if (d->type == OPT_MS) {
        st = parse_with_unit(s, time_units, ARRAY_LEN(time_units), in_seconds ? 1000 : 1, &value);
    } else {
        st = d->is_human ? parse_human(s, &value) : str_to_u64(s, &value);
    }
    if (st != ST_OK) return st;
    if (d->size == sizeof(uint32_t) && value > UINT32_MAX) return ST_INVALID;
    *out = value;
    return ST_OK;
}

static enum status parse_bool(struct str s, bool *out) {
    static const char *const words[] = {"false", "true", "no", "yes", "off", "on", "0", "1"};

    for (size_t i = 0; i < ARRAY_LEN(words); i++) {
        if (!str_eq_nocase(s, str_of(words[i]))) continue;
        *out = i & 1;
        return ST_OK;
    }
    return ST_INVALID;
}

/* Brings the value into the row's range where the row permits that. True when the value is in range
 * now. */
static bool clamp_integer(const struct option_def *d, const struct option_text *t,
                          uint64_t *value) {
    uint64_t bound, given = *value;

    if (d->min && parse_integer(d, str_of(d->min), false, &bound) == ST_OK)
        *value = MAX(*value, bound);
    if (d->max && parse_integer(d, str_of(d->max), false, &bound) == ST_OK)
        *value = MIN(*value, bound);
    if (*value == given) return true;
    if (t->was_clamped) *t->was_clamped = d->is_clamped;
    return d->is_clamped;
}

static bool is_integer_in_range(const struct option_def *d, uint64_t value) {
    uint64_t bound;

    if (d->min && parse_integer(d, str_of(d->min), false, &bound) == ST_OK && value < bound) {
        return false;
    }
    return !d->max || parse_integer(d, str_of(d->max), false, &bound) != ST_OK || value <= bound;
}

static bool clamp_double(const struct option_def *d, const struct option_text *t, double *value) {
    double bound, given = *value;

    if (d->min && parse_double(str_of(d->min), &bound) == ST_OK) *value = MAX(*value, bound);
    if (d->max && parse_double(str_of(d->max), &bound) == ST_OK) *value = MIN(*value, bound);
    if (*value == given) return true;
    if (t->was_clamped) *t->was_clamped = d->is_clamped;
    return d->is_clamped;
}

/* What the user wrote, in our words. */
static struct str in_our_words(const struct option_def *d, struct str s) {
    for (const char *const *a = d->name_aliases; a && a[0]; a += 2) {
        if (option_name_eq(s, str_of(a[0]))) return str_of(a[1]);
    }
    return s;
}

static enum status set_integer(const struct option_def *d, const struct option_text *t,
                               void *target) {
    struct str words = in_our_words(d, t->value);
    bool is_word = words.ptr != t->value.ptr; /* may stand for a number out of range */
    uint64_t value;

    if (parse_integer(d, words, t->in_seconds, &value) != ST_OK) return ST_INVALID;
    if (!is_word && !clamp_integer(d, t, &value)) return ST_INVALID;
    if (d->size == sizeof(uint32_t)) {
        *(uint32_t *)field(d, target) = (uint32_t)value;
    } else {
        *(uint64_t *)field(d, target) = value;
    }
    return ST_OK;
}

static enum status set_enum(const struct option_def *d, struct str s, void *target) {
    s = in_our_words(d, s);
    for (int i = 0; d->names[i]; i++) {
        if (!option_name_eq(s, str_of(d->names[i]))) continue;
        memcpy(field(d, target), &i, sizeof(i));
        return ST_OK;
    }
    return ST_INVALID;
}

/* The memory doubles whenever the count reaches a power of two, so no capacity need be kept. */
static void list_add(struct option_list *list, struct str item, struct arena *memory) {
    const char **items = (const char **)(uintptr_t)list->items; /* ours: from the arena */

    if ((list->n & (list->n - 1)) == 0) {
        items = arena_alloc(memory, MAX(list->n * 2, 1u) * sizeof(*items));
        if (list->n) memcpy(items, list->items, list->n * sizeof(*items));
    }
    items[list->n++] = arena_strndup(memory, item.ptr, item.len);
    list->items = items;
}

static enum status set_list(const struct option_def *d, const struct option_text *t, void *target,
                            struct arena *memory) {
    struct option_list list = {NULL, 0};
    bool is_item = t->is_item || d->is_verbatim;
    struct str rest = t->value;
    uint64_t bound;

    if (t->is_more) memcpy(&list, field(d, target), sizeof(list));
    if (is_item && !t->is_empty) list_add(&list, t->value, memory);
    while (!is_item && rest.len > 0) {
        const char *comma = memchr(rest.ptr, ',', rest.len);
        size_t n = comma ? (size_t)(comma - rest.ptr) : rest.len;
        struct str item = str_trim((struct str){rest.ptr, n});

        if (item.len) list_add(&list, item, memory);
        n += comma != NULL;
        rest = (struct str){rest.ptr + n, rest.len - n};
    }
    if (str_to_u64(str_of(d->max), &bound) == ST_OK && list.n > bound) return ST_INVALID;
    if (str_to_u64(str_of(d->min), &bound) == ST_OK && list.n < bound) return ST_INVALID;
    memcpy(field(d, target), &list, sizeof(list));
    return ST_OK;
}

static enum status set_value(const struct option_def *d, const struct option_text *t, void *target,
                             struct arena *memory) {
    double number;
    bool flag;

    if (t->is_empty && d->type != OPT_LIST) return ST_INVALID;
    switch (d->type) {
    case OPT_BOOL:
        if (parse_bool(t->value, &flag) != ST_OK) return ST_INVALID;
        *(bool *)field(d, target) = flag != t->is_inverted;
        return ST_OK;
    case OPT_U32:
    case OPT_U64:
    case OPT_BYTES:
    case OPT_MS: return set_integer(d, t, target);
    case OPT_F64:
        if (parse_double(t->value, &number) != ST_OK) return ST_INVALID;
        if (!clamp_double(d, t, &number)) return ST_INVALID;
        *(double *)field(d, target) = number;
        return ST_OK;
    case OPT_STR:
        if (memchr(t->value.ptr, '\0', t->value.len)) return ST_INVALID;
        *(const char **)field(d, target) = arena_strndup(memory, t->value.ptr, t->value.len);
        return ST_OK;
    case OPT_ENUM: return set_enum(d, t->value, target);
    case OPT_LIST: return set_list(d, t, target, memory);
    }
    return ST_INTERNAL;
}

enum status option_set(const struct option_def *d, const struct option_text *t, void *target,
                       struct arena *memory, struct error *err) {
    struct buf expected;

    if (set_value(d, t, target, memory) == ST_OK) return ST_OK;
    buf_init(&expected, 0);
    option_expected(d, &expected);
    if (d->is_secret) {
        error_set_param(err, ST_INVALID, d->name, "%s must be " STR_FMT, t->label,
                        STR_ARG(buf_str(&expected)));
    } else {
        error_set_param(err, ST_INVALID, d->name, "%s must be " STR_FMT ", not '%.*s'", t->label,
                        STR_ARG(buf_str(&expected)), (int)MIN(t->value.len, (size_t)100),
                        t->value.ptr);
    }
    buf_fini(&expected);
    return ST_INVALID;
}

void option_unset(const struct option_def *d, void *target) {
    memset(field(d, target), 0, d->size);
}

/* --- value to text ----------------------------------------------------------------------------*/
static void append_with_unit(struct buf *out, uint64_t value, const struct unit *units,
                             size_t n_units) {
    size_t i = 0;

    while (i + 1 < n_units && (value == 0 || value % units[i].factor != 0))
        i++;
    buf_appendf(out, "%llu%s", (unsigned long long)(value / units[i].factor), units[i].suffix);
}

/* As a user would write it: a number out of range has a word for it. */
static void append_integer(const struct option_def *d, uint64_t value, struct buf *out) {
    uint64_t number;

    for (const char *const *a = d->name_aliases; a && a[0]; a += 2) {
        if (is_integer_in_range(d, value)) break;
        if (parse_integer(d, str_of(a[1]), false, &number) != ST_OK || number != value) continue;
        buf_append_str(out, str_of(a[0]));
        return;
    }
    buf_appendf(out, "%llu", (unsigned long long)value);
}

void option_format(const struct option_def *d, const void *target, struct buf *out) {
    const void *at = const_field(d, target);
    struct option_list list;
    int index;

    switch (d->type) {
    case OPT_BOOL: buf_append_str(out, *(const bool *)at ? STR("true") : STR("false")); break;
    case OPT_U32: append_integer(d, *(const uint32_t *)at, out); break;
    case OPT_U64: append_integer(d, *(const uint64_t *)at, out); break;
    case OPT_BYTES:
        append_with_unit(out, *(const uint64_t *)at, byte_units, ARRAY_LEN(byte_units));
        break;
    case OPT_MS:
        append_with_unit(out, *(const uint32_t *)at, time_units, ARRAY_LEN(time_units));
        break;
    case OPT_F64: buf_append_f64(out, *(const double *)at); break;
    case OPT_STR: buf_append_str(out, str_of(*(const char *const *)at)); break;
    case OPT_ENUM:
        memcpy(&index, at, sizeof(index));
        buf_append_str(out, str_of(d->names[index]));
        break;
    case OPT_LIST:
        memcpy(&list, at, sizeof(list));
        for (uint32_t i = 0; i < list.n; i++)
            buf_appendf(out, "%s%s", i ? "," : "", list.items[i]);
        break;
    }
}

static void append_range(const struct option_def *d, struct buf *out) {
    if (d->min && d->max) {
        buf_appendf(out, " from %s to %s", d->min, d->max);
    } else if (d->min) {
        buf_appendf(out, " of at least %s", d->min);
    } else if (d->max) {
        buf_appendf(out, " of at most %s", d->max);
    }
}

void option_expected(const struct option_def *d, struct buf *out) {
    switch (d->type) {
    case OPT_BOOL: buf_append_str(out, STR("true or false")); return;
    case OPT_U32:
    case OPT_U64: buf_append_str(out, STR("a whole number")); break;
    case OPT_BYTES: buf_append_str(out, STR("a size such as 64MiB or 2G")); break;
    case OPT_MS: buf_append_str(out, STR("a duration such as 250ms, 5s or 2m")); break;
    case OPT_F64: buf_append_str(out, STR("a number")); break;
    case OPT_STR: buf_append_str(out, STR("a text")); return;
    case OPT_ENUM:
        buf_append_str(out, STR("one of "));
        for (int i = 0; d->names[i]; i++)
            buf_appendf(out, "%s%s", i ? ", " : "", d->names[i]);
        return;
    case OPT_LIST:
        buf_append_str(out, STR("a list"));
        append_range(d, out);
        if (d->min || d->max) buf_append_str(out, STR(" items"));
        return;
    }
    append_range(d, out);
}

/* --- names ------------------------------------------------------------------------------------*/
static char folded(char c) {
    return c == '_' ? '-' : (char)tolower((unsigned char)c);
}

bool option_name_eq(struct str a, struct str b) {
    if (a.len != b.len) return false;
    for (size_t i = 0; i < a.len; i++) {
        if (folded(a.ptr[i]) != folded(b.ptr[i])) return false;
    }
    return true;
}

size_t option_distance(struct str a, struct str b) {
    size_t row[NAME_MAX_BYTES + 1];

    if (a.len > NAME_MAX_BYTES || b.len > NAME_MAX_BYTES) return SIZE_MAX;
    for (size_t j = 0; j <= b.len; j++)
        row[j] = j;
    for (size_t i = 0; i < a.len; i++) {
        size_t diagonal = row[0]; /* the cell above and to the left */

        row[0] = i + 1;
        for (size_t j = 0; j < b.len; j++) {
            size_t replaced = diagonal + (folded(a.ptr[i]) != folded(b.ptr[j]));

            diagonal = row[j + 1];
            row[j + 1] = MIN(replaced, MIN(row[j], row[j + 1]) + 1);
        }
    }
    return row[b.len];
}

void option_env_name(const struct option_def *d, char out[OPTION_ENV_NAME_MAX]) {
    snprintf(out, OPTION_ENV_NAME_MAX, "INCIPIT_%s", d->name);
    for (char *p = out; *p; p++)
        *p = *p == '-' ? '_' : (char)toupper((unsigned char)*p);
}

struct str option_next_name(const char **cursor) {
    const char *p = *cursor;
    size_t n;

    if (!p || !*p) return STR_NULL;
    n = strcspn(p, ",");
    *cursor = p + n + (p[n] == ',');
    return (struct str){p, n};
}
