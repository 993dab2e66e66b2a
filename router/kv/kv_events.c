/* router/kv/kv_events.c - see the header.
 *
 * Each tick compares the followed workers with the registry's, as follow.c does, and notes the
 * counts of those that changed: the registry's lock is taken once a tick and worker however many
 * batches come. A cache that was emptied is reported in the same turn. */
#include "router/kv/kv_events.h"

#include <assert.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>

#include "common/base/hash.h"
#include "common/base/mem.h"
#include "common/http/http_client.h"
#include "common/net/loop.h"
#include "common/telemetry/log.h"
#include "router/kv/kv_endpoint.h"
#include "router/kv/kv_follower.h"
#include "router/metrics/router_metrics.h"
#include "router/registry/registry_kv.h"
#include "router/registry/registry_view.h"

#define TICK_US        UINT64_C(250000)
#define LARGE_FRAMES   (UINT64_C(64) << 20) /* bytes of large frames that come in at once */
#define INFO_MAX       (1u << 20)
#define INFO_FAILS_MAX 3u /* questions to a worker for its page */

const char *const kv_events_mode_names[] = {"off", "auto", "on", NULL};

struct watched {
    struct kv_events *events;
    bool is_used, has_changed;
    uint32_t id, incarnation;
    struct address addr;
    struct kv_endpoint endpoint; /* port 0: not followed */
    struct http_call *call;      /* for its page; NULL: none */
    struct kv_endpoint of_info;  /* what the page has */
    bool has_info;
    uint32_t n_info_fails;
    uint32_t cleared; /* ranks whose cache was emptied since the index part was dropped */
    struct kv_follower *followers;
    struct kv_picture_counts counted[KV_RANKS_MAX]; /* in metrics so far */
    uint64_t n_counted_gaps[KV_RANKS_MAX], n_counted_lost[KV_RANKS_MAX],
        n_counted_restarts[KV_RANKS_MAX];
};

struct kv_events {
    struct kv_shared shared;
    struct http_client *client;
    struct registry *registry;
    struct kv_events_config config;
    struct loop_timer tick;
    struct watched *workers; /* by id */
    struct metric *streams, *memory, *events[KV_EVENT_KINDS], *ignored, *gaps, *lost, *restarts,
        *refused;
};

/* --- what followers report -------------------------------------------------------------------- */

static struct registry_kv sum_of(const struct watched *w) {
    struct registry_kv kv = {.is_followed = true, .is_complete = true};
    bool has_capacity = true;

    for (uint32_t rank = 0; rank < w->endpoint.n_ranks; rank++) {
        const struct kv_follower *f = &w->followers[rank];
        double capacity = kv_picture_capacity(&f->picture);

        kv.is_followed = kv.is_followed && f->is_connected;
        kv.is_complete = kv.is_complete && f->picture.is_complete;
        for (uint32_t tier = 0; tier < KV_TIER_COUNT; tier++) {
            kv.n_blocks[tier] += f->picture.ledger.n_blocks[tier];
            kv.n_tokens[tier] += f->picture.ledger.n_tokens[tier];
        }
        kv.digest ^= f->picture.ledger.digest[KV_DEVICE];
        for (uint32_t kind = 0; kind < KV_EVENT_KINDS; kind++)
            kv.n_events += f->picture.counts.n_events[kind];
        kv.n_gaps += kv_follower_n_gaps(f);
        kv.n_restarts += f->n_restarts;
        kv.capacity_tokens += capacity;
        kv.stored_tokens += (double)f->live_tokens;
        has_capacity = has_capacity && capacity > 0;
    }
    if (!has_capacity) kv.capacity_tokens = 0; /* of a part of the ranks it would be too small */
    return kv;
}

static void note(struct watched *w) {
    struct registry_kv kv = sum_of(w);

    registry_kv_note(w->events->registry, w->id, w->incarnation, &kv);
    w->has_changed = false;
}

/* A cache of several ranks is gone when each of them has dropped its own. */
static void on_change(struct kv_follower *f) {
    struct watched *w = f->owner;
    uint32_t all = (1u << w->endpoint.n_ranks) - 1;

    w->has_changed = true;
    if (!f->was_cleared) return;
    w->cleared |= 1u << f->config.rank;
    if (w->cleared != all) return;
    w->cleared = 0;
    note(w); /* what was stored before is gone as well */
    registry_kv_cleared(w->events->registry, w->id, w->incarnation);
}

/* --- metrics ---------------------------------------------------------------------------------- */

static void count(struct metric *m, uint64_t now, uint64_t *before) {
    if (now > *before) metric_add(m, now - *before);
    *before = now;
}

static void count_rank(struct kv_events *k, struct watched *w, uint32_t rank) {
    const struct kv_follower *f = &w->followers[rank];
    struct kv_picture_counts *was = &w->counted[rank];

    for (uint32_t kind = 0; kind < KV_EVENT_KINDS; kind++)
        count(k->events[kind], f->picture.counts.n_events[kind], &was->n_events[kind]);
    count(k->ignored, f->picture.counts.n_ignored, &was->n_ignored);
    count(k->refused, f->picture.counts.n_refused, &was->n_refused);
    count(k->gaps, kv_follower_n_gaps(f), &w->n_counted_gaps[rank]);
    count(k->lost, kv_follower_n_lost(f), &w->n_counted_lost[rank]);
    count(k->restarts, f->n_restarts, &w->n_counted_restarts[rank]);
}

/* --- who is followed -------------------------------------------------------------------------- */

static void set_port(struct address *a, uint16_t port) {
    if (a->addr.ss_family == AF_INET6)
        ((struct sockaddr_in6 *)&a->addr)->sin6_port = htons(port);
    else
        ((struct sockaddr_in *)&a->addr)->sin_port = htons(port);
}

static void start_followers(struct watched *w, const struct registry_engine *e,
                            const struct kv_endpoint *endpoint) {
    w->endpoint = *endpoint;
    w->cleared = 0;
    if (endpoint->port == 0) return;
    w->followers = mem_calloc(endpoint->n_ranks, sizeof(*w->followers));
    for (uint16_t rank = 0; rank < endpoint->n_ranks; rank++) {
        struct kv_follower_config config = {.worker = w->id,
                                            .rank = rank,
                                            .url = e->kind == WORKER_OURS ? e->url : NULL,
                                            .stream = w->addr,
                                            .replay = w->addr,
                                            .has_replay = endpoint->replay_port > 0};

        if (!config.url) set_port(&config.stream, (uint16_t)(endpoint->port + rank));
        set_port(&config.replay, (uint16_t)(endpoint->replay_port + rank));
        kv_follower_start(&w->followers[rank], &w->events->shared, &config, on_change, w);
    }
}

static void stop_followers(struct watched *w) {
    static const struct registry_kv none;

    if (!w->followers) return;
    for (uint32_t rank = 0; rank < w->endpoint.n_ranks; rank++)
        kv_follower_stop(&w->followers[rank]);
    mem_free(w->followers);
    w->followers = NULL;
    w->endpoint = (struct kv_endpoint){0};
    memset(w->counted, 0, sizeof(w->counted));
    memset(w->n_counted_gaps, 0, sizeof(w->n_counted_gaps));
    memset(w->n_counted_lost, 0, sizeof(w->n_counted_lost));
    memset(w->n_counted_restarts, 0, sizeof(w->n_counted_restarts));
    registry_kv_note(w->events->registry, w->id, w->incarnation, &none);
}

static void unwatch(struct watched *w) {
    if (!w->is_used) return;
    http_call_cancel(w->call);
    stop_followers(w);
    *w = (struct watched){0};
}

/* SGLang's page; an older one may lack the field, so its absence is final. */
static void on_info(const struct http_client_response *response, void *arg) {
    struct watched *w = arg;
    bool is_page = response->status == ST_OK && response->code == 200;

    w->call = NULL;
    if (is_page) kv_endpoint_of_info(&w->of_info, response->body);
    w->has_info = is_page || ++w->n_info_fails == INFO_FAILS_MAX;
}

static void ask_for_info(struct watched *w, const struct registry_engine *e) {
    char url[REGISTRY_URL_MAX + 32], address[ADDRESS_TEXT_MAX];
    struct http_client_request request = {
        .url = url, .connect_to = address, .timeout_ms = 2000, .max_body_bytes = INFO_MAX};

    address_text(&e->addr, address);
    snprintf(url, sizeof(url), "%s/get_server_info", e->url);
    if (http_client_start(w->events->client, &request, on_info, w, &w->call, NULL) != ST_OK)
        w->has_info = true;
}

static struct kv_endpoint endpoint_of(struct watched *w, const struct registry_engine *e) {
    static const struct kv_endpoint of_ours = {.port = 1, .n_ranks = 1}; /* that of its URL */
    enum kv_events_mode mode = w->events->config.mode;
    struct kv_endpoint endpoint = {0};

    if (e->kind == WORKER_OURS) return mode == KV_EVENTS_ON ? of_ours : endpoint;
    if (mode == KV_EVENTS_OFF || kv_endpoint_of_labels(&endpoint, e->labels)) return endpoint;
    if (e->kind == WORKER_SGLANG && !w->has_info) {
        if (!w->call) ask_for_info(w, e);
        return endpoint;
    }
    if (w->of_info.port) return w->of_info;
    if (mode == KV_EVENTS_ON) endpoint = (struct kv_endpoint){KV_PORT_USUAL, KV_REPLAY_USUAL, 1};
    return endpoint;
}

static void watch(struct kv_events *k, const struct registry_engine *e) {
    struct watched *w = &k->workers[e->id];
    struct kv_endpoint endpoint;

    if (w->is_used && w->incarnation != e->incarnation) unwatch(w);
    if (!w->is_used) {
        *w = (struct watched){.events = k,
                              .is_used = true,
                              .id = e->id,
                              .incarnation = e->incarnation,
                              .addr = e->addr};
    }
    endpoint = endpoint_of(w, e);
    if (memcmp(&endpoint, &w->endpoint, sizeof(endpoint)) == 0) return;
    stop_followers(w);
    start_followers(w, e, &endpoint);
}

static void tick_worker(struct kv_events *k, struct watched *w, uint32_t *n_streams) {
    for (uint32_t rank = 0; w->followers && rank < w->endpoint.n_ranks; rank++) {
        kv_follower_tick(&w->followers[rank]);
        count_rank(k, w, rank);
        *n_streams += w->followers[rank].is_connected;
    }
    if (w->followers && w->has_changed) note(w);
}

static void on_tick(void *arg) {
    struct kv_events *k = arg;
    uint32_t n = MIN(registry_n_ids(k->registry), k->config.max_workers), n_streams = 0;
    struct registry_engine e;

    for (uint32_t id = 0; id < n; id++) {
        if (registry_engine(k->registry, id, &e))
            watch(k, &e);
        else
            unwatch(&k->workers[id]);
        tick_worker(k, &k->workers[id], &n_streams);
    }
    metric_set(k->streams, n_streams);
    metric_set(k->memory, (double)k->shared.ledgers.used);
    loop_timer_start(&k->tick, TICK_US);
}

/* --- its life --------------------------------------------------------------------------------- */

static void find_metrics(struct kv_events *k, struct metrics *m) {
    k->streams = metrics_at(m, ROUTER_kv_event_streams);
    k->memory = metrics_at(m, ROUTER_kv_event_bytes);
    k->events[KV_STORED] = METRICS_GET(m, ROUTER_kv_events_total, "stored");
    k->events[KV_REMOVED] = METRICS_GET(m, ROUTER_kv_events_total, "removed");
    k->events[KV_CLEARED] = METRICS_GET(m, ROUTER_kv_events_total, "cleared");
    k->ignored = METRICS_GET(m, ROUTER_kv_events_total, "ignored");
    k->gaps = METRICS_GET(m, ROUTER_kv_events_total, "gap");
    k->lost = METRICS_GET(m, ROUTER_kv_events_total, "lost");
    k->restarts = METRICS_GET(m, ROUTER_kv_events_total, "restart");
    k->refused = METRICS_GET(m, ROUTER_kv_events_total, "refused");
}

struct kv_events *kv_events_create(struct loop *loop, struct http_client *client,
                                   struct registry *registry, struct metrics *metrics,
                                   struct log *log, const struct kv_events_config *config) {
    struct kv_events *k = mem_zalloc(sizeof(*k));

    k->shared = (struct kv_shared){.loop = loop,
                                   .log = log,
                                   .client = client,
                                   .ledgers.max = config->memory_bytes,
                                   .room.max = LARGE_FRAMES};
    hash_random(&k->shared.seed, sizeof(k->shared.seed));
    k->client = client;
    k->registry = registry;
    k->config = *config;
    k->workers = mem_calloc(config->max_workers, sizeof(*k->workers));
    find_metrics(k, metrics);
    loop_timer_init(&k->tick, loop, on_tick, k);
    loop_timer_start(&k->tick, TICK_US);
    return k;
}

void kv_events_set_mode(struct kv_events *k, enum kv_events_mode mode) {
    k->config.mode = mode;
}

void kv_events_destroy(struct kv_events *k) {
    if (!k) return;
    for (uint32_t id = 0; id < k->config.max_workers; id++)
        unwatch(&k->workers[id]);
    loop_timer_fini(&k->tick);
    mem_free(k->workers);
    mem_free(k);
}

void kv_events_check(const struct kv_events *k) {
    uint64_t bytes = 0;

    for (uint32_t id = 0; id < k->config.max_workers; id++) {
        const struct watched *w = &k->workers[id];

        assert((w->endpoint.port > 0) == (w->followers != NULL));
        for (uint32_t rank = 0; w->followers && rank < w->endpoint.n_ranks; rank++) {
            kv_follower_check(&w->followers[rank]);
            bytes += w->followers[rank].picture.ledger.n_slots * sizeof(struct kv_slot);
        }
    }
    assert(bytes == k->shared.ledgers.used);
}
