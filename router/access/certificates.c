/* router/access/certificates.c - two sets of files, opened and read again together. */
#include "router/access/certificates.h"

#include "common/base/clock.h"
#include "common/base/mem.h"
#include "common/net/tls.h"
#include "common/telemetry/log.h"
#include "router/metrics/router_metrics.h"

#define SOON_S (14 * 86400) /* renewals usually happen at a third of the lifetime */

struct certificates {
    struct tls *clients, *workers;
    struct log *log;
    struct metrics *metrics;
    bool is_insecure;
};

/* After the start and after each reload. */
static void show_expiry(const struct certificates *c, struct tls *tls, const char *side) {
    int64_t expires_s = tls && tls_is_loaded(tls) ? tls_expires_s(tls) : 0;
    int64_t left_s = expires_s - (int64_t)(clock_wall_us() / 1000000);

    if (!expires_s) return;
    metric_set(METRICS_GET(c->metrics, ROUTER_tls_certificate_expiry_timestamp_seconds, side),
               (double)expires_s);
    if (left_s < SOON_S) {
        log_event(c->log, LOG_WARN, "certificate_expires_soon", log_z("side", side),
                  log_i64("days", left_s / 86400));
    }
}

static void warn_if_insecure(const struct certificates *c) {
    if (!c->is_insecure) return;
    log_event(c->log, LOG_WARN, "workers_not_verified",
              log_z("why", "--worker-tls-insecure accepts any certificate, so an impostor at a "
                           "worker's address receives the prompts: use --worker-ca instead"));
}

enum status certificates_open(struct certificates **out, const struct certificates_config *config,
                              struct log *log, struct metrics *metrics, struct error *err) {
    struct certificates *c = mem_zalloc(sizeof(*c));
    const struct tls_config clients = {.cert = config->cert, .key = config->key, .is_server = true};
    const struct tls_config workers = {.cert = config->worker_cert,
                                       .key = config->worker_key,
                                       .ca = config->worker_ca,
                                       .is_insecure = config->is_worker_insecure,
                                       .is_late = !config->worker_cert && !config->worker_key &&
                                                  !config->worker_ca};
    enum status st = ST_OK;

    c->log = log;
    c->metrics = metrics;
    c->is_insecure = config->is_worker_insecure;
    if (clients.cert || clients.key) {
        st = tls_create(&c->clients, &clients, err);
        if (st != ST_OK) error_prefix(err, "--tls-cert-path, --tls-key-path");
    }
    if (st == ST_OK) {
        st = tls_create(&c->workers, &workers, err);
        if (st != ST_OK) error_prefix(err, "--worker-ca, --worker-cert, --worker-key");
    }
    if (st != ST_OK) {
        certificates_close(c);
        return st;
    }
    show_expiry(c, c->clients, "clients");
    show_expiry(c, c->workers, "workers");
    warn_if_insecure(c);
    *out = c;
    return ST_OK;
}

void certificates_close(struct certificates *c) {
    if (!c) return;
    tls_destroy(c->clients);
    tls_destroy(c->workers);
    mem_free(c);
}

static void reload(struct certificates *c, struct tls *tls, const char *side) {
    struct error err = {0};

    if (!tls || !tls_is_loaded(tls)) return;
    if (tls_reload(tls, &err) == ST_OK) {
        log_event(c->log, LOG_INFO, "certificates_reloaded", log_z("side", side));
        show_expiry(c, tls, side);
    } else {
        log_event(c->log, LOG_ERROR, "certificates_not_reloaded", log_z("side", side),
                  log_z("why", err.message));
    }
}

enum status certificates_expect_workers(struct certificates *c, struct error *err) {
    return tls_is_loaded(c->workers) ? ST_OK : tls_reload(c->workers, err);
}

void certificates_reload(struct certificates *c) {
    reload(c, c->clients, "clients");
    reload(c, c->workers, "workers");
    warn_if_insecure(c);
}

struct tls *certificates_for_clients(const struct certificates *c) {
    return c->clients;
}

struct tls *certificates_for_workers(const struct certificates *c) {
    return c->workers;
}
