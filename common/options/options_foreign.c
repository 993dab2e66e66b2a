/* common/options/options_foreign.c - flags that users of another program bring along.
 *
 * A start script that worked with another program should work here, or report why not. Three
 * answers: the flag has no meaning here and is passed over, it is another word for something of
 * ours, or it asks for what we do not do, and then the program must not start as if it did. Often
 * the value decides: `--quantization none` asks for nothing. */
#include "common/options/options_internal.h"

#include <stdio.h>

/* --- the table --------------------------------------------------------------------------------*/
bool option_foreign_next(const struct option_foreign *row, const char **cursor,
                         struct foreign_flag *out) {
    struct str word = option_next_name(cursor), equals;

    if (word.len == 0) return false;
    *out = (struct foreign_flag){.row = row, .name = word};
    out->is_short = *word.ptr == '-';
    if (out->is_short) out->name = (struct str){word.ptr + 1, word.len - 1};
    equals = out->name;
    for (out->name.len = 0; out->name.len < equals.len; out->name.len++) {
        if (equals.ptr[out->name.len] != '=') continue;
        out->takes = FOREIGN_ONE;
        if (str_ends(equals, STR("=?"))) out->takes = FOREIGN_PERHAPS;
        if (str_ends(equals, STR("=*"))) out->takes = FOREIGN_ALL;
        break;
    }
    return true;
}

bool option_foreign_find(const struct option_program *p, struct str name, bool is_short,
                         struct foreign_flag *out) {
    for (const struct option_foreign *row = p->foreign; row && row->flags; row++) {
        const char *cursor = row->flags;

        while (option_foreign_next(row, &cursor, out)) {
            if (out->is_short == is_short && option_name_eq(name, out->name)) return true;
        }
    }
    return false;
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

enum status option_foreign_check(const struct foreign_flag *f, struct str value, bool *is_fine,
                                 struct error *err) {
    const struct option_foreign *row = f->row;
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

void option_foreign_warn(const struct option_program *p, const struct foreign_flag *f) {
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
