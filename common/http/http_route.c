/* common/http/http_route.c - the table of paths: 404, 405 with Allow, OPTIONS; requests of web
 * pages. */
#include "common/http/http_server.h"

static bool serves(const struct http_route *r, enum http_method method) {
    return r->method == method || (r->method == HTTP_GET && method == HTTP_HEAD);
}

static bool matches(const struct http_route *r, struct str path) {
    struct str pattern = str_of(r->path);

    if (pattern.ptr[pattern.len - 1] != '*') return str_eq(path, pattern);
    pattern.len--;
    return path.len > pattern.len && str_starts(path, pattern);
}

/* "GET, HEAD, POST" for the rows of this path; false when there is none. */
static bool append_allowed(const struct http_route *routes, struct str path, struct buf *allow) {
    for (const struct http_route *r = routes; r->path; r++) {
        if (!matches(r, path)) continue;
        if (buf_len(allow)) buf_append_str(allow, STR(", "));
        buf_append_str(allow, str_of(http_method_name(r->method)));
        if (r->method == HTTP_GET) buf_append_str(allow, STR(", HEAD"));
    }
    return buf_len(allow) > 0;
}

static void answer_unrouted(const struct http_route *routes, struct http_request *req) {
    struct error err = {0};
    struct buf allow;

    buf_init(&allow, 0);
    if (!append_allowed(routes, req->path, &allow)) {
        error_set(&err, ST_NOT_FOUND, "no such path: %.*s", (int)MIN(req->path.len, (size_t)200),
                  req->path.ptr);
        http_reply_error(req, ST_NOT_FOUND, &err);
    } else if (req->method == HTTP_OPTIONS) {
        http_add_header(req, STR("allow"), buf_str(&allow));
        http_reply(req, 204, NULL, STR(""));
    } else {
        error_set(&err, ST_METHOD, "%.*s is not allowed for %.*s: use %.*s",
                  STR_ARG(req->method_name), (int)MIN(req->path.len, (size_t)200), req->path.ptr,
                  (int)buf_len(&allow), buf_ptr(&allow));
        http_add_header(req, STR("allow"), buf_str(&allow));
        http_reply_error(req, ST_METHOD, &err);
    }
    buf_fini(&allow);
}

bool http_route_serves(const struct http_route *routes, const struct http_request *req) {
    for (const struct http_route *r = routes; r->path; r++) {
        if (serves(r, req->method) && matches(r, req->path)) return true;
    }
    return false;
}

void http_route_request(const struct http_route *routes, struct http_request *req, void *arg) {
    for (const struct http_route *r = routes; r->path; r++) {
        if (serves(r, req->method) && matches(r, req->path)) {
            r->handler(req, arg);
            return;
        }
    }
    answer_unrouted(routes, req);
}

/* --- web pages -------------------------------------------------------------------------------- */

/* An address or "localhost". The owner of any other name may point it at this machine, so that a
 * page of that name has this origin. */
static bool is_fixed_host(struct str host) {
    static const struct str local = {"localhost", 9};
    size_t n = 0;

    if (host.len && host.ptr[0] == '[') return true;
    if (host.len >= local.len && str_eq_nocase((struct str){host.ptr, local.len}, local)) {
        n = local.len;
    } else {
        while (n < host.len && ((host.ptr[n] >= '0' && host.ptr[n] <= '9') || host.ptr[n] == '.'))
            n++;
    }
    return n > 0 && (n == host.len || host.ptr[n] == ':');
}

bool http_is_from_another_page(const struct http_request *req) {
    struct str origin = http_request_header(req, STR("origin"));
    struct str host = http_request_header(req, STR("host"));
    ptrdiff_t at;

    if (!origin.ptr) return false;
    at = str_find(origin, STR("://"));
    if (at < 0) return true;
    origin.ptr += at + 3;
    origin.len -= (size_t)at + 3;
    return !str_eq_nocase(origin, host) || !is_fixed_host(host);
}
