/* router/access/certificates.h - the router's TLS certificates and trusted authorities.
 *
 *      --tls-cert-path, --tls-key-path   listener's certificate; without them clients use plain HTTP
 *      --worker-ca                       authorities of the certificates of https:// workers
 *      --worker-cert, --worker-key       client certificate for workers that require one (mutual TLS)
 *
 * When a file changes, and on SIGHUP, all are read again, for later connections; open connections
 * stay as they are. An unusable file is logged and the previous state stays. A certificate that
 * expires within two weeks is logged; the expiry of each is a metric. Thread: control; the two
 * struct tls inside are for all loops. */
#ifndef ROUTER_ACCESS_CERTIFICATES_H
#define ROUTER_ACCESS_CERTIFICATES_H

#include "common/base/base.h"
#include "common/base/status.h"

struct certificates;
struct log;
struct metrics;
struct tls;

/* Paths of PEM files; NULL: none. */
struct certificates_config {
    const char *cert, *key; /* for clients */
    const char *worker_ca, *worker_cert, *worker_key;
    bool is_worker_insecure; /* workers' certificates are not verified */
};

MUST_USE enum status certificates_open(struct certificates **out,
                                       const struct certificates_config *config, struct log *log,
                                       struct metrics *metrics, struct error *err);
void certificates_close(struct certificates *c); /* after all loops; NULL is fine */

/* Before the first https:// worker is added. The system's authorities are read here and not
 * earlier, because they take 2 MiB that a fleet of plain workers does not need. */
MUST_USE enum status certificates_expect_workers(struct certificates *c, struct error *err);

void certificates_reload(struct certificates *c);

struct tls *certificates_for_clients(const struct certificates *c); /* NULL: plain HTTP */
struct tls *certificates_for_workers(const struct certificates *c);

#endif
