/* router/prompt/session_name.c - see session_name.h. */
#include "router/prompt/session_name.h"

#include "common/http/http_server.h"
#include "router/prompt/body_scan.h"
#include "router/prompt/raw_json.h"

/* Of Messages: Claude Code writes its session there, others the user. */
static struct str user_id_of(struct str metadata) {
    struct raw_walk walk = raw_walk_of(metadata);
    struct raw_member m;

    if (!str_starts(metadata, STR("{"))) return STR_NULL;
    while (raw_next_member(&walk, &m)) {
        if (raw_text_is(m.name, "user_id")) return raw_text(m.value);
    }
    return STR_NULL;
}

static const struct {
    const char *session, *member, *parent, *final;
} clients[] = {
    {"x-incipit-session", NULL, "x-incipit-session-parent", "x-incipit-session-final"},
    {"x-dynamo-session-id", NULL, "x-dynamo-parent-session-id", "x-dynamo-session-final"},
    {"x-claude-code-session-id", "x-claude-code-agent-id", "x-claude-code-parent-agent-id", NULL},
    {"thread-id", NULL, "x-codex-parent-thread-id", NULL},
    {"session-id", NULL, NULL, NULL},
    {"x-session-id", NULL, "x-parent-session-id", NULL},
};

static struct str header(const struct http_request *req, const char *name) {
    return name ? http_request_header(req, str_of(name)) : STR_NULL;
}

void session_names_of(const struct http_request *req, struct session_names *out) {
    *out = (struct session_names){0};
    for (size_t i = 0; i < ARRAY_LEN(clients); i++) {
        out->session = header(req, clients[i].session);
        if (!out->session.len) continue;
        out->member = header(req, clients[i].member);
        out->parent = header(req, clients[i].parent);
        out->is_parent_member = out->parent.len && clients[i].member;
        out->is_final = str_eq_nocase(header(req, clients[i].final), STR("true"));
        return;
    }
}

struct str session_name(const struct http_request *req, const struct body_scan *scan,
                        const struct session_headers *headers) {
    struct session_names names = {0};

    for (uint32_t i = 0; i < headers->n; i++) {
        struct str value = http_request_header(req, str_of(headers->names[i]));

        if (value.len) return value;
    }
    if (headers->n) session_names_of(req, &names);
    if (names.session.len) return names.session;
    if (scan->spans[BODY_PROMPT_CACHE_KEY].ptr)
        return body_unquote(scan->spans[BODY_PROMPT_CACHE_KEY]);
    if (scan->spans[BODY_SESSION_ID].ptr) return body_unquote(scan->spans[BODY_SESSION_ID]);
    return user_id_of(scan->spans[BODY_METADATA]);
}
