/* router/fleet/discovery/kube_json.h - finding values in JSON text without building a tree.
 *
 * A pod is 2 to 20 KB of which some 200 bytes matter, and five thousand of them are one answer. So
 * values are cut out as text, at any way of splitting the bytes, and only who wants to look inside one
 * parses it (common/text/json.h).
 *
 * LIMITS. Cutting out is not judging: brackets must match, strings and the document must end;
 * whatever stands between is the reader's to refuse. Nesting is at most 64 deep. Pure. */
#ifndef ROUTER_FLEET_DISCOVERY_KUBE_JSON_H
#define ROUTER_FLEET_DISCOVERY_KUBE_JSON_H

#include "common/base/buf.h"

#define KUBE_JSON_DEPTH_MAX 64

/* One value, in pieces. Zeroed: none of it has been seen. */
struct kube_scan {
    uint64_t is_object; /* bit d - 1: the container at depth d */
    uint8_t depth;
    bool has_begun, is_string, is_escaped, is_word; /* word: number, true, false, null */
};

/* Reads on. ST_OK: the value, and blanks before it, are the first *n bytes of the piece (a word may
 * have ended with the piece before: 0); ST_AGAIN: it goes on behind this piece; ST_INVALID. */
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

/* The member's text; STR_NULL when there is none, or `object` is none. */
struct str kube_json_get(struct str object, const char *name);

/* What stands between the quotes of a string that has no escapes; STR_NULL for anything else. */
struct str kube_json_plain(struct str value);

#endif
