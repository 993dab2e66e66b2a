/* worker/text/template/jinja.h - the part of the Jinja language that chat templates are written in.
 *
 * Source is compiled once into a tree; a run evaluates it with its own variables and its own
 * memory. The dialect is that of the transformers library: trim_blocks and lstrip_blocks on, a
 * sandbox in which nothing can be modified but namespaces, `tojson` as Python's json.dumps.
 *
 *      {% for if elif else set macro break continue generation %}  {{ expression }}  {# comment #}
 *
 * A template may come from a client, so a run is limited in steps, bytes and depth, and what is not
 * built (include, import, call, filter blocks, recursive loops, % formatting) is an error that
 * names the line. LIMITS: integers are 64 bits, case mapping is ASCII, sorting is of strings and
 * numbers.
 *
 *      source ─jinja_lex─▶ tokens ─jinja_parse(_expression)─▶ tree ─jinja_run, jinja_eval─▶ text
 *                                                                     │ jinja_value     memory, truth, order
 *                                                                     │ jinja_operator  + [] . and slices
 *                                                                     │ jinja_repr      Python's str and json
 *                                                                     │ jinja_filter(_list), jinja_method
 *                                                                     └ jinja_builtin   tests, functions
 *
 * A program is constant: any thread may run it. A run belongs to one thread. */
#ifndef WORKER_TEXT_TEMPLATE_JINJA_H
#define WORKER_TEXT_TEMPLATE_JINJA_H

#include "common/base/base.h"
#include "common/base/buf.h"
#include "common/base/status.h"

struct jinja_program;
struct jinja_run;

MUST_USE enum status jinja_compile(struct jinja_program **out, struct str source,
                                   struct error *err);
void jinja_destroy(struct jinja_program *p); /* NULL is fine */

/* True when the template loops over a message's content, so it accepts a list of parts. */
bool jinja_reads_parts(const struct jinja_program *p);

/* True when the template tests a message's content for none. */
bool jinja_tests_none(const struct jinja_program *p);

/* --- values ------------------------------------------------------------------------------------*/
enum jv_type {
    JV_UNDEFINED,
    JV_NONE,
    JV_BOOL,
    JV_INT,
    JV_FLOAT,
    JV_STRING,
    JV_LIST, /* and tuples */
    JV_DICT,
    JV_NAMESPACE, /* the one thing that can be assigned to */
    JV_FUNCTION,  /* a global function or a macro */
    JV_LOOP,      /* `loop` inside a for */
};

struct jv_list;
struct jv_dict;
struct jinja_macro;
struct jinja_loop;

struct jv {
    enum jv_type type;
    union {
        bool boolean;
        int64_t integer;
        double number;
        struct str string; /* also the name of what is undefined, and of a global function */
        struct jv_list *list;
        struct jv_dict *dict;
        struct jinja_loop *loop;
    } as;
    const struct jinja_macro *macro; /* of a JV_FUNCTION that is one */
};

/* A value's memory lasts until its run ends; strings passed here must last as long. */
static inline struct jv jv_none(void) {
    return (struct jv){.type = JV_NONE};
}

static inline struct jv jv_bool(bool b) {
    return (struct jv){.type = JV_BOOL, .as.boolean = b};
}

static inline struct jv jv_int(int64_t i) {
    return (struct jv){.type = JV_INT, .as.integer = i};
}

static inline struct jv jv_float(double f) {
    return (struct jv){.type = JV_FLOAT, .as.number = f};
}

static inline struct jv jv_string(struct str s) {
    return (struct jv){.type = JV_STRING, .as.string = s};
}

static inline struct jv jv_undefined(struct str name) {
    return (struct jv){.type = JV_UNDEFINED, .as.string = name};
}

/* A string of the run's own. */
MUST_USE enum status jv_copy(struct jinja_run *r, struct str s, struct jv *out);

/* New, empty, with room for n. ST_TOO_LARGE when the run's memory is spent. */
MUST_USE enum status jv_new_list(struct jinja_run *r, size_t n, struct jv *out);
MUST_USE enum status jv_new_dict(struct jinja_run *r, size_t n, struct jv *out);
MUST_USE enum status jv_push(struct jinja_run *r, struct jv list, struct jv v);
MUST_USE enum status jv_set(struct jinja_run *r, struct jv dict, struct jv key, struct jv v);

/* Appends without looking whether the key is there already. */
MUST_USE enum status jv_add(struct jinja_run *r, struct jv dict, struct str key, struct jv v);

size_t jv_list_count(struct jv list);
struct jv jv_list_at(struct jv list, size_t i);

/* The entry of that key; undefined when there is none, or when it is no dict. */
struct jv jv_get(struct jinja_run *r, struct jv dict, struct str key);

/* --- runs --------------------------------------------------------------------------------------*/
struct jinja_limits {        /* 0: the default */
    uint64_t max_steps;      /* 5,000,000: about a tenth of a second */
    size_t max_output_bytes; /* 32 MiB */
    size_t max_memory_bytes; /* 128 MiB */
};

/* `now_s` is what strftime_now shows. `err` receives what goes wrong in any call. */
struct jinja_run *jinja_run_create(const struct jinja_program *p, const struct jinja_limits *limits,
                                   int64_t now_s, struct error *err);
void jinja_run_destroy(struct jinja_run *r);

MUST_USE enum status jinja_run_set(struct jinja_run *r, const char *name, struct jv v);

/* Appends the text to *out. ST_INVALID with a line, or the template's own sentence (param
 * "messages") when it calls raise_exception; ST_TOO_LARGE over a limit; ST_NOMEM. */
MUST_USE enum status jinja_run_render(struct jinja_run *r, struct buf *out);

#endif
