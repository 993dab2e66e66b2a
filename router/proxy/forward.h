/* router/proxy/forward.h - which calls are forwarded to workers, and with which fields of their
 * bodies.
 *
 * A path is forwarded when the list of the worker's kind has it, byte by byte; other spellings and
 * unknown paths are refused. Engines serve more on the same port (loading adapters, resetting
 * caches, replacing weights), and add to it. The operator extends the lists:
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
#include "common/http/http_parse.h"
#include "common/options/options.h"
#include "router/prompt/body_scan.h"
#include "router/registry/worker_kind.h"

struct forward {
    struct option_list paths, fields; /* --forward-path, --forward-field */
};

/* Checks both lists: ST_INVALID with a sentence. */
MUST_USE enum status forward_check_options(const struct forward *f, struct error *err);

/* What a call costs its worker. */
enum forward_work {
    WORK_PROMPT, /* it computes a prompt through a prefix cache */
    WORK_TOKENS, /* the tokenizer's alone, no device: it waits for no place and takes none */
    WORK_OTHER,
};

/* A POST to a path. Kinds of workers are a bit each. */
struct forward_call {
    uint32_t kinds; /* that it is forwarded to; 0: none */
    /* Of them, those that read no cache_salt in it although their answers reveal what was cached.
     * None for a path that the operator has added. */
    uint32_t kinds_unsalted;
    bool is_listed; /* it changes nothing in the worker and may be sent twice; an added path may
                    * not */
    enum forward_work work;
};
struct forward_call forward_find(const struct forward *f, struct str path);

/* The ID of GET and DELETE /v1/responses/ID and GET /v1/responses/ID/input_items, of any form; else
 * STR_NULL. These calls go to the one of our workers that has stored it. */
struct str forward_stored_id(enum http_method method, struct str path);

/* The error for a path that goes to no worker, not to this kind, or only while tenants share
 * caches. */
MUST_USE enum status forward_refuse_path(struct str path, struct error *err);
MUST_USE enum status forward_refuse_kind(struct str path, enum worker_kind kind, struct error *err);
MUST_USE enum status forward_refuse_unsalted(struct str path, struct error *err);
MUST_USE enum status forward_refuse_unsalted_stored(struct error *err);

/* ST_FORBIDDEN with a sentence when the body has a field that is refused. */
MUST_USE enum status forward_check_fields(const struct forward *f, const struct body_scan *scan,
                                          struct error *err);

#endif
