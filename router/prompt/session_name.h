/* router/prompt/session_name.h - the name of the session that a request belongs to.
 *
 * A header, when the policy looks for any (--routing-key-headers); else what the body says. The proxy
 * and the dry run of /debug/route must agree on it. Pure; the request's loop. */
#ifndef ROUTER_PROMPT_SESSION_NAME_H
#define ROUTER_PROMPT_SESSION_NAME_H

#include "common/base/buf.h"

struct body_scan;
struct http_request;

struct session_headers {
    const char *const *names;
    uint32_t n;
};

/* Lies in the request; empty when it has none. */
struct str session_name(const struct http_request *req, const struct body_scan *scan,
                        const struct session_headers *headers);

#endif
