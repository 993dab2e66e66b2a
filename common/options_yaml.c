/* common/options_yaml.c - the configuration file: one mapping from names to scalars or lists.
 *
 * libyaml's events are enough: no tree is built. What YAML can say beyond that (nesting, anchors,
 * tags, several documents) is refused, so that a file means the same to every reader. */
#include "common/options_internal.h"

#include <yaml.h>

struct reader {
    yaml_parser_t parser;
    yaml_event_t event; /* the current one; owned */
    bool has_event;
    option_entry_fn *fn;
    void *ctx;
    struct error *err;
};

static enum status refuse(struct reader *r, const char *why) {
    return error_set(r->err, ST_INVALID, "line %zu: %s", r->event.start_mark.line + 1, why);
}

static enum status next(struct reader *r) {
    if (r->has_event) yaml_event_delete(&r->event);
    r->has_event = yaml_parser_parse(&r->parser, &r->event);
    if (!r->has_event) {
        return error_set(r->err, ST_INVALID, "line %zu: not valid YAML: %s",
                         r->parser.problem_mark.line + 1,
                         r->parser.problem ? r->parser.problem : "out of memory");
    }
    if (r->event.type == YAML_ALIAS_EVENT) return refuse(r, "anchors are not supported here");
    return ST_OK;
}

static struct str scalar(const yaml_event_t *e) {
    return (struct str){(const char *)e->data.scalar.value, e->data.scalar.length};
}

/* A plain ~, null or nothing at all: most likely a value was forgotten. */
static bool is_null(const yaml_event_t *e) {
    struct str s = scalar(e);

    if (e->data.scalar.style != YAML_PLAIN_SCALAR_STYLE) return false;
    return s.len == 0 || str_eq(s, STR("~")) || str_eq_nocase(s, STR("null"));
}

static enum status emit(struct reader *r, struct option_entry *e) {
    if (!e->is_empty) {
        if (is_null(&r->event)) return refuse(r, "no value: give one or remove the line");
        e->value = scalar(&r->event);
    }
    e->line = (uint32_t)r->event.start_mark.line + 1;
    return r->fn(r->ctx, e, r->err);
}

/* The current event is the start of the sequence. */
static enum status read_sequence(struct reader *r, struct option_entry *e) {
    enum status st;

    e->is_item = true;
    for (;; e->index++) {
        st = next(r);
        if (st != ST_OK) return st;
        if (r->event.type == YAML_SEQUENCE_END_EVENT) break;
        if (r->event.type != YAML_SCALAR_EVENT) {
            return refuse(r, "an item of a list must be a plain value");
        }
        st = emit(r, e);
        if (st != ST_OK) return st;
    }
    e->is_empty = e->index == 0;
    return e->is_empty ? emit(r, e) : ST_OK;
}

/* The current event is a key; its text is kept beside the events that follow. */
static enum status read_member(struct reader *r) {
    struct option_entry e = {0};
    enum status st;
    char *key;

    if (r->event.type != YAML_SCALAR_EVENT) return refuse(r, "expected the name of an option");
    key = mem_strndup(scalar(&r->event).ptr, scalar(&r->event).len);
    e.key = str_of(key);
    st = next(r);
    if (st != ST_OK) goto done;
    if (r->event.type == YAML_SCALAR_EVENT) {
        st = emit(r, &e);
    } else if (r->event.type == YAML_SEQUENCE_START_EVENT) {
        st = read_sequence(r, &e);
    } else {
        st = refuse(r, "an option's value must be a value or a list, not a mapping");
    }
done:
    mem_free(key);
    return st;
}

static enum status read_stream(struct reader *r) {
    enum status st = next(r); /* the stream's start */

    if (st == ST_OK) st = next(r);
    if (st != ST_OK || r->event.type == YAML_STREAM_END_EVENT)
        return st; /* an empty file is fine */
    st = next(r);
    if (st != ST_OK) return st;
    if (r->event.type == YAML_SCALAR_EVENT && is_null(&r->event)) return ST_OK;
    if (r->event.type != YAML_MAPPING_START_EVENT) {
        return refuse(r, "expected lines of the form 'name: value'");
    }
    for (;;) {
        st = next(r);
        if (st != ST_OK) return st;
        if (r->event.type == YAML_MAPPING_END_EVENT) break;
        st = read_member(r);
        if (st != ST_OK) return st;
    }
    st = next(r); /* the document's end */
    if (st == ST_OK) st = next(r);
    if (st == ST_OK && r->event.type != YAML_STREAM_END_EVENT) {
        return refuse(r, "only one YAML document is read");
    }
    return st;
}

enum status options_yaml_read(struct str text, option_entry_fn *fn, void *ctx, struct error *err) {
    struct reader r = {.fn = fn, .ctx = ctx, .err = err};
    enum status st;

    if (!yaml_parser_initialize(&r.parser)) {
        return error_set(err, ST_NOMEM, "out of memory for the YAML reader");
    }
    yaml_parser_set_input_string(&r.parser, (const unsigned char *)text.ptr, text.len);
    st = read_stream(&r);
    if (r.has_event) yaml_event_delete(&r.event);
    yaml_parser_delete(&r.parser);
    return st;
}
