/* tests/bench/load/endpoints.h - where to connect: one address, or those that a file lists just
 * now.
 *
 * As with a Kubernetes Service: the watcher of readiness writes the file again, new connections go
 * to its addresses in turn, and those that are open stay where they are. A file that cannot be
 * read, or lists no address, changes nothing. */
#ifndef TESTS_BENCH_LOAD_ENDPOINTS_H
#define TESTS_BENCH_LOAD_ENDPOINTS_H

#include <netinet/in.h>

#include "common/base/status.h"

#define ENDPOINTS_MAX 64u

struct endpoints {
    const char *path; /* NULL: a single one */
    struct sockaddr_in addrs[ENDPOINTS_MAX];
    uint32_t n, next;
    uint64_t looked_us;
    int64_t changed_ns;
};

/* "http://127.0.0.1:30000" */
MUST_USE enum status endpoint_parse(const char *url, struct sockaddr_in *addr, struct error *err);

/* One URL a line. */
MUST_USE enum status endpoints_open(struct endpoints *e, const char *path, struct error *err);

const struct sockaddr_in *endpoints_next(struct endpoints *e, uint64_t now_us);

#endif
