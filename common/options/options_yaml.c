/* common/options/options_yaml.c - the configuration file: one mapping from names to scalars or
 * lists.
 *
 * libyaml's events are enough: no tree is built. An option whose value is JSON may have a mapping,
 * which is written as JSON. What YAML can express beyond that (anchors, tags, several documents) is
 * refused, so that every reader reads equal values. */
#include <yaml.h>

#include "common/options/options_internal.h"
#include "common/text/json.h"

#define DEPTH_MAX 16

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
    if (r->event.type == YAML_ALIAS_EVENT)
        return refuse(r, "anchors are not supported: write the value out");
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

/* --- mappings ---------------------------------------------------------------------------------*/
static bool is_json_number(struct str s) {
    struct json *root = NULL;
    bool is_number = s.len > 0 && s.len < 64 && json_parse(&root, s, NULL, NULL) == ST_OK &&
                     json_type(root) == JSON_NUMBER;

    json_destroy(root);
    return is_number;
}

static void put_text(struct buf *out, struct str s) {
    buf_append_char(out, '"');
    json_escape(out, s);
    buf_append_char(out, '"');
}

static void put_scalar(struct buf *out, const yaml_event_t *e) {
    struct str s = scalar(e);
    bool is_plain = e->data.scalar.style == YAML_PLAIN_SCALAR_STYLE;

    if (is_null(e)) {
        buf_append_str(out, STR("null"));
    } else if (is_plain && str_eq_nocase(s, STR("true"))) {
        buf_append_str(out, STR("true"));
    } else if (is_plain && str_eq_nocase(s, STR("false"))) {
        buf_append_str(out, STR("false"));
    } else if (is_plain && is_json_number(s)) {
        buf_append_str(out, s);
    } else {
        put_text(out, s);
    }
}

/* Appends what begins with the current event, which becomes its last. */
static enum status put_json(struct reader *r, struct buf *out, uint32_t depth) {
    bool is_mapping = r->event.type == YAML_MAPPING_START_EVENT;
    enum status st;

    if (r->event.type == YAML_SCALAR_EVENT) {
        put_scalar(out, &r->event);
        return ST_OK;
    }
    if (!is_mapping && r->event.type != YAML_SEQUENCE_START_EVENT)
        return refuse(r, "expected a value, a list or a mapping");
    if (depth == DEPTH_MAX) return refuse(r, "mappings are nested too deeply: remove a level");
    buf_append_char(out, is_mapping ? '{' : '[');
    for (bool is_first = true;; is_first = false) {
        st = next(r);
        if (st != ST_OK) return st;
        if (r->event.type == YAML_MAPPING_END_EVENT || r->event.type == YAML_SEQUENCE_END_EVENT)
            break;
        if (!is_first) buf_append_char(out, ',');
        if (is_mapping) {
            if (r->event.type != YAML_SCALAR_EVENT)
                return refuse(r, "the key is no plain value: write the name of an option");
            put_text(out, scalar(&r->event));
            buf_append_char(out, ':');
            st = next(r);
        }
        if (st == ST_OK) st = put_json(r, out, depth + 1);
        if (st != ST_OK) return st;
    }
    buf_append_char(out, is_mapping ? '}' : ']');
    return ST_OK;
}

/* The current event is the start of a mapping. */
static enum status read_mapping(struct reader *r, struct option_entry *e) {
    uint32_t line = (uint32_t)r->event.start_mark.line + 1;
    struct buf text;
    enum status st;

    buf_init(&text, OPTIONS_FILE_MAX_BYTES);
    st = put_json(r, &text, 0);
    if (st == ST_OK) st = buf_status(&text);
    if (st == ST_OK) {
        e->value = buf_str(&text);
        e->line = line;
        e->is_json = true;
        st = r->fn(r->ctx, e, r->err);
    }
    buf_fini(&text);
    return st;
}

/* The current event is the start of the sequence. */
static enum status read_sequence(struct reader *r, struct option_entry *e) {
    enum status st;

    e->is_item = true;
    for (;; e->index++) {
        st = next(r);
        if (st != ST_OK) return st;
        if (r->event.type == YAML_SEQUENCE_END_EVENT) break;
        if (r->event.type == YAML_MAPPING_START_EVENT) {
            st = read_mapping(r, e);
        } else if (r->event.type != YAML_SCALAR_EVENT) {
            return refuse(r, "an item of the list is no plain value: write text or a number");
        } else {
            st = emit(r, e);
        }
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
    } else if (r->event.type == YAML_MAPPING_START_EVENT) {
        st = read_mapping(r, &e);
    } else {
        st = refuse(r, "expected a value or a list");
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
        return refuse(r, "the file has a second YAML document: keep one");
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
