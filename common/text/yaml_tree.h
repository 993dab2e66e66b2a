/* common/text/yaml_tree.h - a YAML document as a tree, for files of other programs.
 *
 * Our own configuration is read as events and rejects unknown parts (options.h); a kubeconfig has
 * parts that do not concern us, so the others are looked up by name. JSON is YAML too. Nodes are
 * numbers, 0 is none, and lookups in none return none: they need no checks in between.
 *
 * LIMITS. One document; later ones are ignored. Of two equal keys the first counts. Merge keys
 * ("<<") are not expanded. One thread per tree. */
#ifndef COMMON_TEXT_YAML_TREE_H
#define COMMON_TEXT_YAML_TREE_H

#include "common/base/buf.h"

struct yaml_tree;

/* ST_INVALID: err has the line; ST_TOO_LARGE: over 1 MiB. Keeps no pointer into `text`. */
MUST_USE enum status yaml_tree_parse(struct yaml_tree **out, struct str text, struct error *err);
void yaml_tree_destroy(struct yaml_tree *t); /* NULL is fine */

int yaml_tree_root(struct yaml_tree *t); /* 0: the document is empty */
int yaml_tree_get(struct yaml_tree *t, int mapping, const char *key);
int yaml_tree_item(struct yaml_tree *t, int sequence, uint32_t i);

/* Of a scalar; STR_NULL of anything else, and of a plain null. Lives with the tree. */
struct str yaml_tree_str(struct yaml_tree *t, int scalar);

#endif
