/* common/base/status.h - how functions report failures.
 *
 * A function that can fail returns `enum status`. When a person will read the failure its last
 * parameter is `struct error *err` (NULL is fine); the message has the object, the value and the
 * remedy. One table maps a status to the HTTP code and the API error type. Pure; any thread. */
#ifndef COMMON_BASE_STATUS_H
#define COMMON_BASE_STATUS_H

#include "common/base/base.h"

enum status {
    ST_OK = 0,
    ST_INVALID,     /* the caller's input is wrong: 400 */
    ST_DENIED,      /* missing or wrong credentials: 401 */
    ST_FORBIDDEN,   /* known, and not allowed: 403 */
    ST_NOT_FOUND,   /* no such thing: 404 */
    ST_METHOD,      /* right path, wrong method: 405 */
    ST_EXISTS,      /* already there: 409 */
    ST_TOO_LARGE,   /* over a limit of the option table: 413 */
    ST_BUSY,        /* no room now, try again: 429 */
    ST_UNSUPPORTED, /* well formed, but not built: 501 */
    ST_UNAVAILABLE, /* not ready, draining, no worker: 503 */
    ST_TIMEOUT,     /* took too long: 504 */
    ST_BAD_GATEWAY, /* the worker's answer cannot be used: 502 */
    ST_LOOP,        /* the request has been here before: 508 */
    ST_AGAIN,       /* not finished; call again when there is more input or room */
    ST_CLOSED,      /* the other side is gone */
    ST_IO,          /* the operating system refused; errno is in the message */
    ST_NOMEM,       /* a large allocation was refused */
    ST_INTERNAL,    /* our own mistake: 500 */
    ST_COUNT
};

#define ERROR_MESSAGE_MAX 480
#define ERROR_PARAM_MAX   48

/* What went wrong, for a person. Zero-initialise or error_init, pass down, read when the status is
 * not ST_OK. */
struct error {
    enum status status;
    char param[ERROR_PARAM_MAX]; /* request field or option at fault, "" when none */
    char message[ERROR_MESSAGE_MAX];
};

/* Nothing, yet. Cheaper than zeroing half a kilobyte, where that is done for every request. */
static inline void error_init(struct error *err) {
    err->status = ST_OK;
    err->param[0] = err->message[0] = '\0';
}

/* Fills *err (NULL is fine) and returns `st`, so that `return error_set(...)` reads well. */
enum status error_set(struct error *err, enum status st, const char *fmt, ...) PRINTF_LIKE(3, 4);

/* The same, naming the request field at fault. */
enum status error_set_param(struct error *err, enum status st, const char *param, const char *fmt,
                            ...) PRINTF_LIKE(4, 5);

/* Puts "context: " before the message that is there. Returns err->status. */
enum status error_prefix(struct error *err, const char *fmt, ...) PRINTF_LIKE(2, 3);

/* The field at fault is a member of `object`: its name becomes OBJECT.NAME, also where the message
 * begins with it. Returns `st`; nothing changes if that is ST_OK. */
enum status error_within(struct error *err, enum status st, const char *object);

const char *status_name(enum status st);     /* "invalid" */
int status_http_code(enum status st);        /* 400 */
const char *status_api_type(enum status st); /* "BadRequestError" */

#endif
