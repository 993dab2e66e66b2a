/* router/proxy/retry.h - which failures are retried on another worker.
 *
 * Each word of --retry-on is a bit. A call that only computes an answer may be sent twice
 * (forward.h). Other calls are sent again only when they never reached a worker. Pure. */
#ifndef ROUTER_PROXY_RETRY_H
#define ROUTER_PROXY_RETRY_H

#include "common/base/buf.h"
#include "common/base/status.h"
#include "common/options/options.h"

enum retry_cause {
    RETRY_CONNECT = 1 << 0,   /* no connection was made, or TLS failed on it */
    RETRY_RESET = 1 << 1,     /* the connection broke before a byte of the answer's body */
    RETRY_TIMEOUT = 1 << 2,   /* --first-byte-timeout */
    RETRY_MALFORMED = 1 << 3, /* the bytes are not HTTP */
    RETRY_EMPTY = 1 << 4,     /* 200 without an answer: empty, truncated, or an error */
    RETRY_500 = 1 << 5,
    RETRY_502 = 1 << 6,
    RETRY_503 = 1 << 7,
    RETRY_504 = 1 << 8,
    RETRY_ALL = (1 << 9) - 1
};

#define RETRY_ON_DEFAULT "connect,reset,timeout,malformed,empty,500,502,503,504"

/* Checks a list of words, and returns its bits; "none" alone is no bit. ST_INVALID names a wrong
 * word. */
MUST_USE enum status retry_check(const struct option_list *words, struct error *err);
uint32_t retry_causes(const struct option_list *words);

uint32_t retry_cause_of_status(int code); /* 0: not retried */
const char *retry_name(uint32_t cause);   /* the word of one bit */

#endif
