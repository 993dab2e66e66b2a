/* common/options_foreign.c - flags that users of another program bring along.
 *
 * A start script that worked in front of another router should work here, or say why not. Three
 * answers: the flag has no meaning here and is passed over, it is another word for something of
 * ours, or it asks for what we do not do, and then the program must not start as if it did. */
#include "common/options_internal.h"

#include <stdio.h>

const struct option_foreign *option_foreign_find(const struct option_program *p, struct str name) {
    for (const struct option_foreign *f = p->foreign; f && f->name; f++) {
        if (option_name_eq(name, str_of(f->name))) return f;
    }
    return NULL;
}

enum status option_foreign_check(const struct option_foreign *f, struct error *err) {
    if (!f->is_refused) return ST_OK;
    return error_set_param(err, ST_UNSUPPORTED, f->name, "--%s is not supported: %s", f->name,
                           f->remark);
}

void option_foreign_warn(const struct option_program *p, const struct option_foreign *f) {
    if (f->as)
        fprintf(stderr, "%s: --%s is taken as --%s %s\n", p->name, f->name, f->as, f->value);
    else
        fprintf(stderr, "%s: --%s has no effect: %s\n", p->name, f->name, f->remark);
}
