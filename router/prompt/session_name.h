/* router/prompt/session_name.h - the name of a request's session.
 *
 * A header, when the policy reads any (--routing-key-headers); else a field of the body. The proxy
 * and the dry run of /debug/route both use it. Pure; the request's loop. */
#ifndef ROUTER_PROMPT_SESSION_NAME_H
#define ROUTER_PROMPT_SESSION_NAME_H

#include "common/base/buf.h"

struct body_scan;
struct http_request;

struct session_headers {
    const char *const *names;
    uint32_t n;
};

/* Points into the request; empty when it has none. */
struct str session_name(const struct http_request *req, const struct body_scan *scan,
                        const struct session_headers *headers);

#endif
