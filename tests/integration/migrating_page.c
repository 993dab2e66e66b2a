/* tests/integration/migrating_page.c - the section Flags of router/MIGRATING.md and
 * worker/MIGRATING.md, out of the option tables: `make pages` puts it there, test_pages.py
 * compares. */
#include <stdio.h>

#include "common/options/options_internal.h"
#include "router/options/router_options.h"
#include "worker/worker_options.h"

static void put_names(const struct option_program *p) {
    printf("\nOptions under these names, which `%s --help NAME` explains:", p->name);
    for (size_t i = 0; i < p->n_defs; i++)
        printf("%s `--%s`", i ? "," : "", p->defs[i].name);
    printf(".\n");
}

static void put_aliases(const struct option_program *p) {
    printf("\n| theirs | ours |\n|---|---|\n");
    for (size_t i = 0; i < p->n_defs; i++) {
        const struct option_def *d = &p->defs[i];
        const char *cursor = d->aliases, *between = "| ";
        struct str alias;
        bool is_opposite = false;

        while ((alias = option_next_name(&cursor)).len) {
            is_opposite = *alias.ptr == '!';
            printf("%s`--%.*s`", between, (int)alias.len - is_opposite, alias.ptr + is_opposite);
            between = ", ";
        }
        if (d->aliases) printf(" | `--%s%s` |\n", is_opposite ? "no-" : "", d->name);
        for (const char *const *a = d->name_aliases; a && a[0] && d->type == OPT_ENUM; a += 2)
            printf("| `--%s %s` | `--%s %s` |\n", d->name, a[0], d->name, a[1]);
    }
}

static bool is_same(const struct option_compat *a, const struct option_compat *b) {
    struct buf fate_a, fate_b;
    bool is_same = a->remark && b->flags && b->remark && strcmp(a->remark, b->remark) == 0;

    buf_init(&fate_a, 0);
    buf_init(&fate_b, 0);
    option_compat_fate(a, &fate_a);
    option_compat_fate(b, &fate_b);
    is_same = is_same && str_eq(buf_str(&fate_a), buf_str(&fate_b));
    buf_fini(&fate_a);
    buf_fini(&fate_b);
    return is_same;
}

static void put_flags(const struct option_compat *row, const char *between) {
    const char *cursor = row->flags;
    struct compat_flag f;

    while (option_compat_next(row, &cursor, &f)) {
        printf("%s`%s" STR_FMT "`", between, f.is_short ? "-" : "--", STR_ARG(f.name));
        between = ", ";
    }
}

static void put_compat(const struct option_compat *row) {
    struct buf fate;

    printf("\n| theirs | here | why |\n|---|---|---|\n");
    for (; row->flags; row++) {
        put_flags(row, "| ");
        for (; is_same(row, row + 1); row++)
            put_flags(row + 1, ", ");
        buf_init(&fate, 0);
        option_compat_fate(row, &fate);
        printf(" | " STR_FMT " | %s |\n", STR_ARG(buf_str(&fate)), row->remark ? row->remark : "");
        buf_fini(&fate);
    }
}

int main(int argc, char **argv) {
    bool is_worker = argc > 1 && strcmp(argv[1], "worker") == 0;
    const struct option_program *p = is_worker ? &worker_program : &router_program;

    if (is_worker) put_names(p);
    put_aliases(p);
    put_compat(p->compat);
    return 0;
}
