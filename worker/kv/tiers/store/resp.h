/* worker/kv/tiers/store/resp.h - RESP2, the protocol of Redis and Valkey: the side that asks.
 *
 *      *3\r\n$3\r\nGET\r\n ...      a command is an array of bulks
 *      +OK    -LOADING ...   :1     a reply is a line,
 *      $5\r\nvalue\r\n    $-1       a bulk, nil,
 *      *2\r\n:1\r\n$2\r\nab\r\n     or an array of replies
 *
 * A reply is read as a run of items from the front of what has come. An item has its place in the
 * reply (depth, and index in its array), so that nested replies are taken apart without being
 * built. Nothing is allocated or copied: a bulk lies within the bytes received, whole, so a value
 * of a megabyte is verified where the connection received it.
 *
 * What a server announces is checked before anything waits for it: the length of a bulk, the
 * elements of an array, the depth, the length of a line.
 *
 * Pure; any thread. Follows: the RESP2 specification of Redis. hiredis, which the router uses for
 * streams, copies each bulk twice and has no TLS in Debian 12. */
#ifndef WORKER_KV_TIERS_STORE_RESP_H
#define WORKER_KV_TIERS_STORE_RESP_H

#include "common/base/buf.h"
#include "common/base/status.h"

#define RESP_DEPTH_MAX    8     /* arrays in arrays; CLUSTER SLOTS has 4 */
#define RESP_ELEMENTS_MAX 65536 /* of an array; a cluster has 16,384 slots */
#define RESP_LINE_MAX     4096  /* with its end; errors quote commands */

/* One connection. Zero it and set max_bulk_bytes. */
struct resp {
    uint64_t max_bulk_bytes;
    uint32_t depth;                 /* open arrays */
    uint32_t left[RESP_DEPTH_MAX];  /* elements to come, of each */
    uint32_t index[RESP_DEPTH_MAX]; /* of the next one */
};

enum resp_kind {
    RESP_NONE, /* not whole yet: see `wanted` */
    RESP_STATUS,
    RESP_ERROR,
    RESP_INTEGER,
    RESP_NIL,
    RESP_BULK,
    RESP_ARRAY, /* its elements follow */
};

struct resp_item {
    enum resp_kind kind;
    struct str text;       /* STATUS, ERROR: the line; BULK; within the bytes given */
    int64_t number;        /* INTEGER; ARRAY: elements */
    uint32_t depth, index; /* 0, 0: the reply itself; then the place in its array, from 0 */
    bool ends_reply;       /* the next item begins another reply */
    size_t n_taken;        /* bytes to drop from the front */
    size_t wanted;         /* NONE: how many there must be at least */
};

/* The first item of what has come. ST_INVALID: not RESP2; ST_TOO_LARGE: above a limit. The
 * connection is of no more use then. */
MUST_USE enum status resp_read(struct resp *r, struct str in, struct resp_item *out,
                               struct error *err);

/* The kind of an error: its first word, "LOADING" of "LOADING Redis is loading ...". */
struct str resp_error_kind(struct str text);

/* Appends the head of a command of n arguments; then each argument. */
void resp_put_command(struct buf *out, uint32_t n);
void resp_put_argument(struct buf *out, struct str argument);

#endif
