/* common/http/healthcheck.h - a health check of a program on this machine.
 *
 * For the HEALTHCHECK of a container image without shell and curl: the program's command
 * `healthcheck` calls the address that its options, environment and file configure. A worker's
 * `drain` uses the same call. Blocks for two seconds at most. */
#ifndef COMMON_HTTP_HEALTHCHECK_H
#define COMMON_HTTP_HEALTHCHECK_H

#include "common/base/base.h"
#include "common/base/status.h"

struct healthcheck {
    const char *host; /* as it listens: an address that means all is asked on loopback */
    uint32_t port;
    const char *path;   /* "/livez" */
    const char *method; /* NULL: GET */
    const char *header; /* "name: value", or NULL */
    int code;           /* that is wanted; 0: 200 */
    bool is_tls;        /* the certificate is not looked at: it is our own */
};

/* ST_OK: answered with that code. Else ST_UNAVAILABLE, and a sentence with what was answered or
 * failed. */
MUST_USE enum status healthcheck_ask(const struct healthcheck *check, struct error *err);

#endif
