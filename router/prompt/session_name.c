/* router/prompt/session_name.c - see session_name.h. */
#include "router/prompt/session_name.h"

#include "common/http/http_server.h"
#include "router/prompt/body_scan.h"

struct str session_name(const struct http_request *req, const struct body_scan *scan,
                        const struct session_headers *headers) {
    for (uint32_t i = 0; i < headers->n; i++) {
        struct str value = http_request_header(req, str_of(headers->names[i]));

        if (value.len) return value;
    }
    if (scan->spans[BODY_PROMPT_CACHE_KEY].ptr)
        return body_unquote(scan->spans[BODY_PROMPT_CACHE_KEY]);
    return body_unquote(scan->spans[BODY_SESSION_ID]);
}
