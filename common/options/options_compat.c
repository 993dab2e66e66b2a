/* common/options/options_compat.c - compat flags: flags of another program.
 *
 * A start script of another program should work here, or fail with the reason. A flag has no
 * effect, or stands for an option of ours, or is refused because this program does not do what the
 * flag sets. The value can decide: `--quantization none` changes nothing. */
#include <stdio.h>

#include "common/options/options_internal.h"

/* --- the table --------------------------------------------------------------------------------*/
bool option_compat_next(const struct option_compat *row, const char **cursor,
                        struct compat_flag *out) {
    struct str word = option_next_name(cursor), equals;

    if (word.len == 0) return false;
    *out = (struct compat_flag){.row = row, .name = word};
    out->is_short = *word.ptr == '-';
    if (out->is_short) out->name = (struct str){word.ptr + 1, word.len - 1};
    equals = out->name;
    for (out->name.len = 0; out->name.len < equals.len; out->name.len++) {
        if (equals.ptr[out->name.len] != '=') continue;
        out->takes = COMPAT_ONE;
        if (str_ends(equals, STR("=?"))) out->takes = COMPAT_PERHAPS;
        if (str_ends(equals, STR("=*"))) out->takes = COMPAT_ALL;
        break;
    }
    return true;
}

bool option_compat_is_family(const struct compat_flag *f) {
    return str_ends(f->name, STR("*"));
}

/* Does the entry's name, or its family, have this name? */
static bool is_named(const struct compat_flag *f, struct str name, bool is_short, bool is_family) {
    struct str beginning = name;

    if (f->is_short != is_short || option_compat_is_family(f) != is_family) return false;
    if (!is_family) return option_name_eq(name, f->name);
    beginning.len = f->name.len - 1;
    return name.len > beginning.len &&
           option_name_eq(beginning, (struct str){f->name.ptr, beginning.len});
}

static bool find(const struct option_program *p, struct str name, bool is_short, bool is_family,
                 struct compat_flag *out) {
    for (const struct option_compat *row = p->compat; row && row->flags; row++) {
        const char *cursor = row->flags;

        while (option_compat_next(row, &cursor, out)) {
            if (is_named(out, name, is_short, is_family)) return true;
        }
    }
    return false;
}

bool option_compat_find(const struct option_program *p, struct str name, bool is_short,
                        struct compat_flag *out) {
    if (find(p, name, is_short, false, out)) return true;
    if (!find(p, name, is_short, true, out)) return false;
    out->name = name;
    return true;
}

static bool is_listed(const char *list, struct str value) {
    struct str word;

    while ((word = option_next_name(&list)).len) {
        bool is_beginning = str_ends(word, STR("*"));
        struct str head = value;

        if (is_beginning) head.len = MIN(head.len, --word.len);
        if (str_eq_nocase(word, head)) return true;
    }
    return false;
}

enum status option_compat_check(const struct compat_flag *f, struct str value, bool *is_fine,
                                struct error *err) {
    const struct option_compat *row = f->row;
    char label[64];

    value = str_trim(value);
    *is_fine = row->fine && value.ptr && is_listed(row->fine, value);
    if (*is_fine) return ST_OK;
    if (!row->is_refused && !(value.ptr && is_listed(row->refuses, value))) return ST_OK;
    snprintf(label, sizeof(label), "%.*s", (int)MIN(f->name.len, sizeof(label) - 1), f->name.ptr);
    return error_set_param(err, ST_UNSUPPORTED, label, "%s%s%s%.*s is not supported: %s",
                           f->is_short ? "-" : "--", label,
                           value.len && (row->fine || row->refuses) ? " " : "",
                           row->fine || row->refuses ? (int)MIN(value.len, (size_t)60) : 0,
                           value.len ? value.ptr : "", row->remark);
}

void option_compat_warn(const struct option_program *p, const struct compat_flag *f) {
    const char *dashes = f->is_short ? "-" : "--";

    if (!f->row->as)
        fprintf(stderr, "%s: %s" STR_FMT " has no effect: %s\n", p->name, dashes, STR_ARG(f->name),
                f->row->remark);
    else if (f->row->value)
        fprintf(stderr, "%s: %s" STR_FMT " is taken as --%s %s\n", p->name, dashes,
                STR_ARG(f->name), f->row->as, f->row->value);
    else if (f->row->remark)
        fprintf(stderr, "%s: %s" STR_FMT " is taken as --%s: %s\n", p->name, dashes,
                STR_ARG(f->name), f->row->as, f->row->remark);
}
