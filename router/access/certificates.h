/* router/access/certificates.h - what the router shows to clients and workers, and whom it believes.
 *
 *      --tls-cert-path, --tls-key-path   listener's certificate; without them clients speak plain
 *      --worker-ca                       who may have signed the certificates of https:// workers
 *      --worker-cert, --worker-key       shown to workers that ask for one (mutual TLS)
 *
 * When one changes, and on SIGHUP, all of them are read again, for connections to come; those that are open stay as they are. A
 * file that cannot be used is said in the log, and what was there stays. So is a certificate that ends
 * within two weeks; when each ends is a metric.
 * Thread: control; the two struct tls inside are for all loops. */
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

/* Before the first https:// worker is added. Without files of our own to check, the system's
 * authorities are read only now: a fleet of plain workers need not hold them, 2 MiB. */
MUST_USE enum status certificates_expect_workers(struct certificates *c, struct error *err);

void certificates_reload(struct certificates *c);

struct tls *certificates_for_clients(const struct certificates *c); /* NULL: plain HTTP */
struct tls *certificates_for_workers(const struct certificates *c);

#endif
