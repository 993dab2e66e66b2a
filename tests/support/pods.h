/* tests/support/pods.h - pods and endpoint slices as an API server writes them, managedFields and
 * all. */
#ifndef TESTS_SUPPORT_PODS_H
#define TESTS_SUPPORT_PODS_H

#include "common/base/buf.h"

struct pod_text {                /* NULL and 0: usual, or left away */
    const char *name, *uid, *ip; /* "w-0"; "uid-" and the name; no address yet */
    const char *phase;           /* Running */
    const char *ready;           /* "True"; "" leaves the conditions away */
    const char *labels;          /* more of them: "\"a\":\"b\"" */
    const char *annotations;     /* JSON, as for labels */
    const char *containers;      /* the whole array; one with the port 8000 called http */
    const char *created;         /* "2026-11-21T01:02:03Z" */
    bool is_deleted;             /* has a deletionTimestamp */
    uint64_t version;
};

void pod_text_write(struct buf *out, const struct pod_text *pod);

#endif
