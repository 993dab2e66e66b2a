/* common/text/yaml_tree.c - libyaml's document, looked into. Aliases are links in it: nothing is
 * expanded, and lookups follow paths of ours, so a document that is large only when expanded stays
 * small. */
#include "common/text/yaml_tree.h"

#include <yaml.h>

#include "common/base/mem.h"

#define MAX_BYTES ((size_t)1 << 20)

struct yaml_tree {
    yaml_document_t document;
};

enum status yaml_tree_parse(struct yaml_tree **out, struct str text, struct error *err) {
    struct yaml_tree *t;
    yaml_parser_t parser;
    enum status st = ST_OK;

    if (text.len > MAX_BYTES) {
        return error_set(err, ST_TOO_LARGE, "%zu bytes of YAML: at most %zu are read", text.len,
                         MAX_BYTES);
    }
    if (!yaml_parser_initialize(&parser)) {
        return error_set(err, ST_NOMEM, "out of memory for the YAML reader");
    }
    t = mem_zalloc(sizeof(*t));
    yaml_parser_set_input_string(&parser, (const unsigned char *)(text.len ? text.ptr : ""),
                                 text.len);
    if (!yaml_parser_load(&parser, &t->document)) {
        st =
            error_set(err, ST_INVALID, "line %zu: not valid YAML: %s", parser.problem_mark.line + 1,
                      parser.problem ? parser.problem : "out of memory");
        mem_free(t);
    }
    yaml_parser_delete(&parser);
    if (st == ST_OK) *out = t;
    return st;
}

void yaml_tree_destroy(struct yaml_tree *t) {
    if (!t) return;
    yaml_document_delete(&t->document);
    mem_free(t);
}

int yaml_tree_root(struct yaml_tree *t) {
    return yaml_document_get_root_node(&t->document) ? 1 : 0; /* libyaml counts from there */
}

static struct str scalar(const yaml_node_t *n) {
    return (struct str){(const char *)n->data.scalar.value, n->data.scalar.length};
}

static yaml_node_t *node_of(struct yaml_tree *t, int node, yaml_node_type_t type) {
    yaml_node_t *n = node > 0 ? yaml_document_get_node(&t->document, node) : NULL;

    return n && n->type == type ? n : NULL;
}

int yaml_tree_get(struct yaml_tree *t, int mapping, const char *key) {
    yaml_node_t *n = node_of(t, mapping, YAML_MAPPING_NODE), *name;

    if (!n) return 0;
    for (yaml_node_pair_t *p = n->data.mapping.pairs.start; p < n->data.mapping.pairs.top; p++) {
        name = node_of(t, p->key, YAML_SCALAR_NODE);
        if (name && str_eq(scalar(name), str_of(key))) return p->value;
    }
    return 0;
}

int yaml_tree_item(struct yaml_tree *t, int sequence, uint32_t i) {
    yaml_node_t *n = node_of(t, sequence, YAML_SEQUENCE_NODE);

    if (!n || i >= (size_t)(n->data.sequence.items.top - n->data.sequence.items.start)) return 0;
    return n->data.sequence.items.start[i];
}

struct str yaml_tree_str(struct yaml_tree *t, int node) {
    yaml_node_t *n = node_of(t, node, YAML_SCALAR_NODE);
    struct str s;

    if (!n) return STR_NULL;
    s = scalar(n);
    if (n->data.scalar.style != YAML_PLAIN_SCALAR_STYLE) return s;
    return s.len == 0 || str_eq(s, STR("~")) || str_eq_nocase(s, STR("null")) ? STR_NULL : s;
}
