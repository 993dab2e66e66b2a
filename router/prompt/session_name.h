/* router/prompt/session_name.h - the name of a request's session.
 *
 * A header, when the policy reads any: of --routing-key-headers, or one of those below. Else a
 * field of the body: prompt_cache_key, session_id or metadata.user_id. The proxy and the dry run of
 * /debug/route both use it. Pure; the request's loop. */
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

/* The headers in which agents and their runners name a session, and the one that started it, for
 * router/sessions:
 *
 *     x-incipit-session, x-incipit-session-parent, x-incipit-session-final: true
 *     x-dynamo-session-id, x-dynamo-parent-session-id, x-dynamo-session-final: true
 *     x-claude-code-session-id, x-claude-code-agent-id, x-claude-code-parent-agent-id
 *     thread-id, x-codex-parent-thread-id; session-id      Codex
 *     x-session-id, x-parent-session-id                    OpenCode
 *
 * The first line whose first header a request has counts. An agent of Claude Code is a
 * session within one: `member`, and its parent is a member too. */
struct session_names {
    struct str session, member, parent; /* point into the request; empty: none */
    bool is_parent_member;
    bool is_final; /* no other request of the session follows */
};
void session_names_of(const struct http_request *req, struct session_names *out);

#endif
