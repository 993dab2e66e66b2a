/* common/http/http_fetch.h - large files over HTTP, one after the other, blocking: for start-up.
 *
 * Made for downloads, where http_client is for calls: the body goes to a callback as it comes, a
 * transfer may begin at an offset, nothing but a stall ends it, and what came before a cut is kept
 * by the caller. Redirects are not followed: the caller sees where one leads, and decides what may
 * be sent there. Proxies of the environment (https_proxy, no_proxy) are used.
 * Connections are kept between exchanges. One thread; libcurl is seen in the .c alone. */
#ifndef COMMON_HTTP_HTTP_FETCH_H
#define COMMON_HTTP_HTTP_FETCH_H

#include "common/base/buf.h"
#include "common/base/status.h"

struct http_fetch;

MUST_USE enum status http_fetch_create(struct http_fetch **out, struct error *err);
void http_fetch_destroy(struct http_fetch *f); /* NULL is fine */

/* A piece of the body, of an answer with `code`. Anything but ST_OK ends the exchange with that
 * status. */
typedef enum status http_fetch_fn(void *arg, int code, const void *data, size_t n,
                                  struct error *err);

struct http_fetch_request {
    const char *url;
    bool is_head;        /* HEAD; else GET */
    bool allows_http;    /* http:// beside https:// */
    const char *bearer;  /* sent as Authorization; NULL: none */
    uint64_t first_byte; /* asks for the rest from there; 0: everything */
    uint32_t stall_s;    /* ends after so long without a byte; 0: 30 */
    http_fetch_fn *on_bytes;
    void *arg;
};

/* ST_OK: a complete response, with *code. ST_IO and ST_TIMEOUT are worth a retry; err names what
 * failed, without the URL's query, which may be a secret. */
MUST_USE enum status http_fetch_run(struct http_fetch *f, const struct http_fetch_request *request,
                                    int *code, struct error *err);

/* Of the last answer, until the next exchange: a header's value, or NULL; and the absolute URL of a
 * redirect, or NULL. May be asked in on_bytes. */
const char *http_fetch_header(struct http_fetch *f, const char *name);
const char *http_fetch_location(struct http_fetch *f);

/* "https://host:443" of a URL: what a token belongs to. is_loopback: 127.0.0.0/8, ::1 or localhost.
 * ST_INVALID for anything that is not http or https with a host, or has a user in it. */
struct http_origin {
    char text[300];
    bool is_https, is_loopback;
};
MUST_USE enum status http_origin_of(struct http_origin *out, const char *url, struct error *err);

#endif
