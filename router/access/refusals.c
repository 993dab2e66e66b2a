/* router/access/refusals.c - see the header.
 *
 * A reason rests until its first refusal, which is logged at once and begins a period. Later
 * refusals are summed and logged at the end of the period, which begins the next. A period without
 * refusals ends in rest. */
#include "router/access/refusals.h"

#include <pthread.h>
#include <stdio.h>

#include "common/base/mem.h"
#include "common/http/http_server.h"
#include "common/telemetry/log.h"
#include "common/telemetry/metrics.h"
#include "router/metrics/router_metrics.h"

#define PLACES 16 /* addresses counted */
#define SHOWN  4  /* addresses named */

const char *const refusal_names[REFUSAL_COUNT] = {
    [REFUSAL_KEY_LIMIT] = "key",
    [REFUSAL_QUEUE_SIZE] = "queue-size",
    [REFUSAL_QUEUE_TIMEOUT] = "queue-timeout",
    [REFUSAL_DEADLINE] = "deadline",
    [REFUSAL_SESSION_TIMEOUT] = "session-timeout",
    [REFUSAL_KEY_MISSING] = "key-missing",
    [REFUSAL_KEY_UNKNOWN] = "key-unknown",
    [REFUSAL_ADMIN_KEY_MISSING] = "admin-key-missing",
    [REFUSAL_ADMIN_KEY_UNKNOWN] = "admin-key-unknown",
    [REFUSAL_ADMIN_PORT] = "admin-port",
    [REFUSAL_ADMIN_PAGE] = "admin-page",
    [REFUSAL_PATH] = "path",
    [REFUSAL_FORBIDDEN] = "forbidden",
    [REFUSAL_TENANT] = "tenant",
    [REFUSAL_BODY] = "body",
    [REFUSAL_MODEL] = "model",
    [REFUSAL_POISON] = "poison",
    [REFUSAL_NO_WORKER] = "no-worker",
    [REFUSAL_MEMORY] = "memory",
};

struct place {
    char address[HTTP_ADDRESS_MAX];
    uint64_t n;
};

struct reason {
    struct metric *counter;
    uint64_t since_us; /* begin of its period; 0: at rest */
    uint64_t n;        /* in the period and not logged */
    struct place places[PLACES];
    uint32_t n_places;
};

struct refusals {
    pthread_mutex_t lock;
    struct log *log;
    struct reason reasons[REFUSAL_COUNT];
};

struct refusals *refusals_create(struct metrics *metrics, struct log *log) {
    struct refusals *r = mem_zalloc(sizeof(*r));

    pthread_mutex_init(&r->lock, NULL);
    r->log = log;
    for (uint32_t i = 0; i < REFUSAL_COUNT; i++) /* exported as 0 before the first */
        r->reasons[i].counter =
            METRICS_GET(metrics, ROUTER_requests_refused_total, refusal_names[i]);
    return r;
}

/* --- under the lock --------------------------------------------------------------------------- */

static void count_client(struct reason *reason, struct str client) {
    struct place *rarest = reason->places;

    client.len = MIN(client.len, sizeof(rarest->address) - 1);
    for (uint32_t i = 0; i < reason->n_places; i++) {
        struct place *p = &reason->places[i];

        if (str_eq(str_of(p->address), client)) {
            p->n++;
            return;
        }
        if (p->n < rarest->n) rarest = p;
    }
    if (reason->n_places < PLACES) {
        rarest = &reason->places[reason->n_places++];
        rarest->n = 0;
    }
    memcpy(rarest->address, client.ptr, client.len);
    rarest->address[client.len] = '\0';
    rarest->n++;
}

/* most frequent first; removes them */
static void name_clients(struct reason *reason, char *out, size_t cap) {
    size_t n = 0;

    out[0] = '\0';
    for (int i = 0; i < SHOWN && reason->n_places > 0; i++) {
        struct place *most = reason->places;

        for (uint32_t k = 1; k < reason->n_places; k++) {
            if (reason->places[k].n > most->n) most = &reason->places[k];
        }
        n += (size_t)snprintf(out + n, cap - n, "%s%s (%llu)", i ? ", " : "", most->address,
                              (unsigned long long)most->n);
        *most = reason->places[--reason->n_places];
    }
}

static void write_line(struct refusals *r, struct reason *reason, uint64_t now_us) {
    char clients[SHOWN * (HTTP_ADDRESS_MAX + 32)];
    uint32_t n_clients = reason->n_places;
    bool is_first = reason->since_us == 0;

    name_clients(reason, clients, sizeof(clients));
    log_event(r->log, LOG_WARN, "request_refused",
              log_z("reason", refusal_names[reason - r->reasons]), log_u64("count", reason->n),
              log_u64("seconds", is_first ? 0 : (now_us - reason->since_us + 500000) / 1000000),
              log_z("clients", clients), log_bool("more_clients", n_clients > SHOWN));
    reason->n = 0;
    reason->n_places = 0;
    reason->since_us = now_us;
}

/* --- from outside ----------------------------------------------------------------------------- */

void refusals_note(struct refusals *r, enum refusal which, struct str client, uint64_t now_us) {
    struct reason *reason;

    if (!r) return;
    reason = &r->reasons[which];
    metric_inc(reason->counter);
    pthread_mutex_lock(&r->lock);
    reason->n++;
    count_client(reason, client);
    if (reason->since_us == 0) write_line(r, reason, now_us);
    pthread_mutex_unlock(&r->lock);
}

void refusals_tick(struct refusals *r, uint64_t now_us) {
    pthread_mutex_lock(&r->lock);
    for (struct reason *reason = r->reasons; reason < r->reasons + REFUSAL_COUNT; reason++) {
        if (reason->since_us == 0 || now_us - reason->since_us < REFUSALS_PERIOD_US) continue;
        if (reason->n > 0) {
            write_line(r, reason, now_us);
        } else {
            reason->since_us = 0;
        }
    }
    pthread_mutex_unlock(&r->lock);
}

void refusals_destroy(struct refusals *r) {
    if (!r) return;
    for (struct reason *reason = r->reasons; reason < r->reasons + REFUSAL_COUNT; reason++) {
        if (reason->n > 0) write_line(r, reason, reason->since_us + REFUSALS_PERIOD_US);
    }
    pthread_mutex_destroy(&r->lock);
    mem_free(r);
}
