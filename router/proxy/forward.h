/* router/proxy/forward.h - which calls go on to workers, and with which fields of their bodies.
 *
 * A path is forwarded when it is on the list of the worker's kind, byte by byte: whatever is spelt in
 * another way, or not known to be a call for clients, ends here. Engines serve more than that on one
 * port (adapters are loaded, caches reset, weights replaced), and what they will serve tomorrow is not
 * known today. The operator adds to the lists:
 *
 *      --forward-path /v1/thing        this path
 *      --forward-path /v1/things/'*'   and all that begins so
 *      --forward-field NAME            a field below
 *
 * Fields at the top of a body by which a client would steer a worker to another host, into another's
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

/* Both lists are what they can be: ST_INVALID with a sentence. */
MUST_USE enum status forward_check_options(const struct forward *f, struct error *err);

/* The kinds of workers that a POST to this path goes to, a bit each; 0: none. */
uint32_t forward_kinds(const struct forward *f, struct str path);

/* Why a path is not forwarded: to any worker (kinds 0), or to this one. */
MUST_USE enum status forward_refuse_path(struct str path, struct error *err);
MUST_USE enum status forward_refuse_kind(struct str path, enum worker_kind kind, struct error *err);

/* The kinds that are known to read no cache_salt on this path, though their answers say what was
 * cached: no calls for tenants who are kept apart. None of a path that the operator has added. */
uint32_t forward_unsalted_kinds(const struct forward *f, struct str path);
MUST_USE enum status forward_refuse_unsalted(struct str path, struct error *err);

/* ST_FORBIDDEN with a sentence when the body has a field that is refused. */
MUST_USE enum status forward_check_fields(const struct forward *f, const struct body_scan *scan,
                                          struct error *err);

/* Is the path on a list of ours? Such a call computes an answer and leaves nothing behind in the worker, so
 * that it may be sent twice; what the operator has added may. */
bool forward_is_listed(struct str path);

/* Does the answer to this path depend on a prefix cache, so that tenants are kept apart in it? */
bool forward_computes(struct str path);

#endif
