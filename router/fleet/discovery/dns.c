/* router/fleet/discovery/dns.c - the addresses of a name, such as a headless service, as workers.
 *
 * Uses the system's resolver on a thread (resolver.h), so /etc/hosts and search domains apply; it
 * reports no time to live, so the name is resolved at a fixed interval. Readiness, draining and
 * reuse of an address are left to probes. For a host with IPv4 and IPv6 addresses IPv4 is used.
 *
 * LIMITS. One port for all. A name without addresses and a failing name server look alike: the set
 * stays. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/mem.h"
#include "common/net/loop.h"
#include "common/net/resolver.h"
#include "common/telemetry/log.h"
#include "router/fleet/discovery.h"

struct dns_source {
    struct discovery discovery;
    struct loop *loop;
    struct loop_timer timer;
    struct log *log;
    struct resolver *resolver;
    discovery_fn *fn;
    void *arg;
    struct address_url url; /* of the name */
    uint32_t max_workers, n_workers, n_too_many;
    uint64_t poll_us, began_us, answered_us;
    uint64_t n_updates, n_failed;
    bool is_failing;
};

static int by_bytes(const void *a, const void *b) {
    return memcmp(a, b, sizeof(struct address));
}

/* Sorts addresses, since name servers rotate them and ids should be stable. */
static void report(struct dns_source *s, struct address *found, uint32_t n) {
    struct discovery_set set = {0};

    qsort(found, n, sizeof(*found), by_bytes);
    for (uint32_t i = 0; i < n && set.n < s->max_workers; i++) {
        struct discovery_worker worker = {0};
        char text[ADDRESS_TEXT_MAX], url[ADDRESS_TEXT_MAX + 8];

        address_text(&found[i], text);
        snprintf(url, sizeof(url), "http://%s", text);
        if (address_split(str_of(url), &worker.url, NULL) != ST_OK) continue;
        snprintf(worker.labels, sizeof(worker.labels), "dns=%.200s", s->url.host);
        if (discovery_set_add(&set, &worker, NULL) != ST_OK) continue; /* duplicate */
    }
    s->n_workers = set.n;
    s->n_updates++;
    s->fn(&set, s->arg);
    discovery_set_fini(&set);
}

static void on_failure(struct dns_source *s, const struct error *err) {
    s->n_failed++;
    if (!s->is_failing) {
        log_event(
            s->log, LOG_WARN, "dns_failed", log_z("name", s->url.host), log_z("why", err->message),
            log_u64("workers", s->n_workers),
            log_z("remedy", "the workers stay as they are: it is asked again every few seconds"));
    }
    s->is_failing = true;
}

static void on_found(enum status st, const struct address *found, uint32_t n,
                     const struct error *err, void *arg) {
    struct dns_source *s = arg;
    struct address *copy;

    loop_timer_start(&s->timer, s->poll_us);
    if (st != ST_OK || n == 0) {
        on_failure(s, err);
        return;
    }
    if (s->is_failing || s->n_updates == 0)
        log_event(s->log, LOG_INFO, "dns_answers", log_z("name", s->url.host),
                  log_u64("addresses", n));
    s->is_failing = false;
    s->answered_us = loop_now_us(s->loop);
    if (n > s->max_workers && n != s->n_too_many)
        log_event(s->log, LOG_WARN, "discovery_truncated", log_u64("workers", n - s->max_workers),
                  log_z("why", "there are more than --max-workers"),
                  log_z("remedy", "raise it, up to 1024"));
    s->n_too_many = n > s->max_workers ? n : 0;
    copy = mem_calloc(n, sizeof(*copy));
    memcpy(copy, found, n * sizeof(*copy));
    report(s, copy, n);
    mem_free(copy);
}

static void on_timer(void *arg) {
    struct dns_source *s = arg;
    struct error err = {0};

    if (resolver_start_all(s->resolver, &s->url, DISCOVERY_MAX_WORKERS, on_found, s, &err) == ST_OK)
        return;
    on_failure(s, &err);
    loop_timer_start(&s->timer, s->poll_us);
}

static void dns_stats(struct discovery *d, struct discovery_stats *out) {
    struct dns_source *s = CONTAINER_OF(d, struct dns_source, discovery);
    uint64_t since_us = s->n_updates ? s->answered_us : s->began_us;

    out->is_synced = s->n_updates > 0;
    if (s->is_failing) out->stale_s = (double)(loop_now_us(s->loop) - since_us) * 1e-6;
    out->n_used = s->n_workers;
    out->n_left_out = s->n_too_many ? s->n_too_many - s->max_workers : 0;
    out->n_updates = s->n_updates;
    out->n_refused = s->n_failed;
}

static void dns_destroy(struct discovery *d) {
    struct dns_source *s = CONTAINER_OF(d, struct dns_source, discovery);

    loop_timer_fini(&s->timer);
    resolver_destroy(s->resolver);
    mem_free(s);
}

static const struct discovery_ops dns_ops = {
    .name = "dns", .stats = dns_stats, .destroy = dns_destroy};

enum status discovery_dns_create(struct discovery **out, const char *name_and_port,
                                 uint32_t max_workers, uint64_t poll_us, struct loop *loop,
                                 struct log *log, discovery_fn *fn, void *arg, struct error *err) {
    struct dns_source *s;
    struct address_url url;
    char text[ADDRESS_URL_MAX];
    enum status st;

    snprintf(text, sizeof(text), "http://%s", name_and_port);
    if (strlen(name_and_port) > ADDRESS_HOST_MAX ||
        address_split(str_of(text), &url, NULL) != ST_OK) {
        return error_set(err, ST_INVALID,
                         "invalid --worker-dns %.100s: use NAME:PORT, such as "
                         "workers.default.svc.cluster.local:8000",
                         name_and_port);
    }
    s = mem_zalloc(sizeof(*s));
    s->discovery.ops = &dns_ops;
    s->loop = loop;
    s->log = log;
    s->fn = fn;
    s->arg = arg;
    s->url = url;
    s->max_workers = MIN(max_workers, DISCOVERY_MAX_WORKERS);
    s->poll_us = poll_us;
    s->began_us = loop_now_us(loop);
    loop_timer_init(&s->timer, loop, on_timer, s);
    st = resolver_create(&s->resolver, loop, err);
    if (st != ST_OK) {
        dns_destroy(&s->discovery);
        return st;
    }
    loop_timer_start(&s->timer, 0);
    *out = &s->discovery;
    return ST_OK;
}
