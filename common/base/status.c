/* common/base/status.c - the one table of failures, and the error record. */
#include "common/base/status.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static const struct {
    const char *name;
    int http_code;
    const char *api_type;
} statuses[ST_COUNT] = {
    [ST_OK] = {"ok", 200, ""},
    [ST_INVALID] = {"invalid", 400, "BadRequestError"},
    [ST_DENIED] = {"denied", 401, "AuthenticationError"},
    [ST_FORBIDDEN] = {"forbidden", 403, "PermissionDeniedError"},
    [ST_NOT_FOUND] = {"not_found", 404, "NotFoundError"},
    [ST_METHOD] = {"method", 405, "MethodNotAllowedError"},
    [ST_EXISTS] = {"exists", 409, "ConflictError"},
    [ST_TOO_LARGE] = {"too_large", 413, "RequestTooLargeError"},
    [ST_BUSY] = {"busy", 429, "RateLimitError"},
    [ST_UNSUPPORTED] = {"unsupported", 501, "NotImplementedError"},
    [ST_UNAVAILABLE] = {"unavailable", 503, "ServiceUnavailableError"},
    [ST_TIMEOUT] = {"timeout", 504, "TimeoutError"},
    [ST_BAD_GATEWAY] = {"bad_gateway", 502, "BadGatewayError"},
    [ST_LOOP] = {"loop", 508, "LoopDetectedError"},
    [ST_AGAIN] = {"again", 500, "InternalServerError"},
    [ST_CLOSED] = {"closed", 502, "BadGatewayError"},
    [ST_IO] = {"io", 500, "InternalServerError"},
    [ST_NOMEM] = {"nomem", 503, "ServiceUnavailableError"},
    [ST_INTERNAL] = {"internal", 500, "InternalServerError"},
};

static enum status fill(struct error *err, enum status st, const char *param, const char *fmt,
                        va_list args) {
    if (!err) return st;
    err->status = st;
    snprintf(err->param, sizeof(err->param), "%s", param);
    vsnprintf(err->message, sizeof(err->message), fmt, args);
    return st;
}

enum status error_set(struct error *err, enum status st, const char *fmt, ...) {
    va_list args;

    va_start(args, fmt);
    fill(err, st, "", fmt, args);
    va_end(args);
    return st;
}

enum status error_set_param(struct error *err, enum status st, const char *param, const char *fmt,
                            ...) {
    va_list args;

    va_start(args, fmt);
    fill(err, st, param, fmt, args);
    va_end(args);
    return st;
}

enum status error_prefix(struct error *err, const char *fmt, ...) {
    char head[ERROR_MESSAGE_MAX], tail[ERROR_MESSAGE_MAX];
    va_list args;
    int n;

    if (!err) return ST_INTERNAL;
    va_start(args, fmt);
    vsnprintf(head, sizeof(head), fmt, args);
    va_end(args);
    memcpy(tail, err->message, sizeof(tail));
    n = snprintf(err->message, sizeof(err->message), "%s: ", head);
    if (n > 0 && (size_t)n < sizeof(err->message)) {
        size_t n_tail = MIN(strlen(tail), sizeof(err->message) - (size_t)n - 1);

        memcpy(err->message + n, tail, n_tail);
        err->message[(size_t)n + n_tail] = '\0';
    }
    return err->status;
}

static void put_before(char *text, size_t size, const char *object) {
    char tail[ERROR_MESSAGE_MAX];
    size_t n = MIN(strlen(object), size - 1), n_tail = MIN(strlen(text), size - n - 1);

    memcpy(tail, text, n_tail);
    memcpy(text, object, n);
    memcpy(text + n, tail, n_tail);
    text[n + n_tail] = '\0';
}

enum status error_within(struct error *err, enum status st, const char *object) {
    char head[ERROR_PARAM_MAX];

    if (st == ST_OK || !err || !err->param[0]) return st;
    snprintf(head, sizeof(head), "%s.", object);
    if (strncmp(err->message, err->param, strlen(err->param)) == 0)
        put_before(err->message, sizeof(err->message), head);
    put_before(err->param, sizeof(err->param), head);
    return st;
}

const char *status_name(enum status st) {
    return (unsigned)st < ST_COUNT ? statuses[st].name : "unknown";
}

int status_http_code(enum status st) {
    return (unsigned)st < ST_COUNT ? statuses[st].http_code : 500;
}

const char *status_api_type(enum status st) {
    return (unsigned)st < ST_COUNT ? statuses[st].api_type : "InternalServerError";
}
