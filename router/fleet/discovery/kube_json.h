/* router/fleet/discovery/kube_json.h - finds values in JSON text without building a tree.
 *
 * A pod is 2 to 20 KB with some 200 relevant bytes, and one answer may have five thousand pods. So
 * values are cut out as text, for any split of the bytes into pieces, and parsed only when needed
 * (common/text/json.h).
 *
 * LIMITS. Cutting out checks brackets, strings and the end of the document alone; the parser of a
 * value checks the rest. Nesting is at most 64 deep. Pure. */
#ifndef ROUTER_FLEET_DISCOVERY_KUBE_JSON_H
#define ROUTER_FLEET_DISCOVERY_KUBE_JSON_H

#include "common/base/buf.h"

#define KUBE_JSON_DEPTH_MAX 64

/* One value, in pieces; zeroed at its beginning. */
struct kube_scan {
    uint64_t is_object; /* bit d - 1: the container at depth d */
    uint8_t depth;
    bool has_begun, is_string, is_escaped, is_word; /* word: number, true, false, null */
};

/* Continues. ST_OK: the value, with blanks before it, ends after *n bytes of the piece (a word may
 * have ended with the piece before: 0); ST_AGAIN: it continues in the next piece; ST_INVALID. */
MUST_USE enum status kube_scan_feed(struct kube_scan *s, struct str piece, size_t *n);

/* The members of a whole object, in order:
 *
 *      struct kube_members m = {.rest = text};
 *      while (kube_members_next(&m, &key, &value)) ...
 *      if (m.is_bad) ...
 *
 * `key` is what stands between the quotes, escapes and all; `value` the text of the value. */
struct kube_members {
    struct str rest;
    bool has_begun, is_bad;
};
bool kube_members_next(struct kube_members *m, struct str *key, struct str *value);

/* The member's text; STR_NULL when it is absent or `object` is not an object. */
struct str kube_json_get(struct str object, const char *name);

/* The text of a string without escapes; STR_NULL for anything else. */
struct str kube_json_plain(struct str value);

#endif
