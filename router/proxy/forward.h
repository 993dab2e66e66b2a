/* router/proxy/forward.h - which calls are forwarded to workers, and with which fields of their bodies.
 *
 * A path is forwarded when the list of the worker's kind has it, byte by byte; other spellings and
 * unknown paths are refused. Engines serve more on the same port (loading adapters, resetting caches,
 * replacing weights), and add to it. The operator extends the lists:
 *
 *      --forward-path /v1/thing        this path
 *      --forward-path /v1/things/'*'   every path that begins so
 *      --forward-field NAME            a field below
 *
 * Top-level fields by which a client could steer a worker to another host, into another client's
 * session or into running its code are refused unless they are null. Pure; any thread. */
#ifndef ROUTER_PROXY_FORWARD_H
#define ROUTER_PROXY_FORWARD_H

#include "common/base/status.h"
#include "common/options/options.h"
#include "router/prompt/body_scan.h"
#include "router/registry/worker_kind.h"

struct forward {
    struct option_list paths, fields; /* --forward-path, --forward-field */
};

/* Checks both lists: ST_INVALID with a sentence. */
MUST_USE enum status forward_check_options(const struct forward *f, struct error *err);

/* The kinds of workers that a POST to this path goes to, a bit each; 0: none. */
uint32_t forward_kinds(const struct forward *f, struct str path);

/* The error for a path that goes to no worker, or not to this kind. */
MUST_USE enum status forward_refuse_path(struct str path, struct error *err);
MUST_USE enum status forward_refuse_kind(struct str path, enum worker_kind kind, struct error *err);

/* The kinds that read no cache_salt on this path although their answers reveal what was cached: refused
 * while tenants are isolated. None for a path that the operator has added. */
uint32_t forward_unsalted_kinds(const struct forward *f, struct str path);
MUST_USE enum status forward_refuse_unsalted(struct str path, struct error *err);

/* ST_FORBIDDEN with a sentence when the body has a field that is refused. */
MUST_USE enum status forward_check_fields(const struct forward *f, const struct body_scan *scan,
                                          struct error *err);

/* Listed calls compute an answer and change nothing in the worker, so they may be sent twice; paths that
 * the operator added may not. */
bool forward_is_listed(struct str path);

/* Whether the call computes a prompt through a prefix cache. */
bool forward_computes(struct str path);

#endif
