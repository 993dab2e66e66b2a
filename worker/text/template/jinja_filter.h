/* worker/text/template/jinja_filter.h - what the two files of filters share. */
#ifndef WORKER_TEXT_TEMPLATE_JINJA_FILTER_H
#define WORKER_TEXT_TEMPLATE_JINJA_FILTER_H

#include "worker/text/template/jinja_internal.h"

/* What a filter is given, and where its result goes. */
struct jinja_filter_call {
    struct jinja_run *r;
    struct jv v;
    const struct jinja_args *args;
    struct jv *out;
};

/* Filters of lists (jinja_filter_list.c), by name; NULL for none. */
typedef enum status (*jinja_filter_fn)(const struct jinja_filter_call *c);
jinja_filter_fn jinja_find_list_filter(struct str name);

#endif
