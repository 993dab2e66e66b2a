/* router/sharing/share.c - writes our events every ten milliseconds, and enters the requests of
 * other routers.
 *
 * `peers` are the routers seen so far, each with its open requests by its own numbers
 * (remote_requests.h). A peer silent for long is dropped. Silence is measured by arrival, since
 * clocks differ, except for entries written before our start or while we could not read.
 *
 * Workers are identified by the hash of their URL. The registry is read for them every tenth of a
 * second, not for each event, and reading begins when they are described: the history is delivered
 * once. */
#include "router/sharing/share.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/base/hash.h"
#include "common/base/map.h"
#include "common/base/mem.h"
#include "common/net/loop.h"
#include "common/protocol/request_events.h"
#include "common/telemetry/metrics.h"
#include "router/metrics/router_metrics.h"
#include "router/registry/registry.h"
#include "router/registry/registry_remote.h"
#include "router/sharing/remote_requests.h"

#define FLUSH_US     10000u
#define HEARTBEAT_US 2000000u
#define PEERS_MAX    64
#define OPEN_MAX     65536u   /* requests of one peer */
#define WORKERS_US   100000u  /* between two reads of the workers */
#define UNKNOWN_US   5000000u /* longest wait for workers to be described */
#define ORIGIN_CHARS 16

struct peer {
    uint64_t origin;            /* 0: a free place */
    uint64_t received_us, next; /* next: of its entries; 0: any */
    struct remote_set open;
};

struct share {
    struct loop *loop;
    struct registry *registry;
    struct share_config config;
    struct remote_requests remote;
    struct registry_third_party *workers;
    struct map by_identity;        /* of the workers */
    uint64_t begun_us, workers_us; /* workers_us: of the last read */
    bool is_live;                  /* the history is over */
    struct redis_stream *stream;
    struct loop_timer timer;
    struct buf entry, outbox;
    uint64_t written_us, n_entries;
    struct peer peers[PEERS_MAX];
    struct metric *events, *dropped, *connected;
    uint64_t blocks[CHAIN_BLOCKS_MAX];
};

/* --- workers ---------------------------------------------------------------------------------- */

static void look_for_workers(struct share *s, uint64_t now_us) {
    uint32_t n_unknown,
        n = registry_third_party(s->registry, s->workers, REGISTRY_MAX_WORKERS, &n_unknown);

    s->workers_us = now_us;
    map_clear(&s->by_identity);
    for (uint32_t i = 0; i < n; i++)
        map_insert(&s->by_identity, s->workers[i].identity, &s->workers[i]);
    if ((n && !n_unknown) || now_us - s->begun_us >= UNKNOWN_US) redis_stream_read(s->stream);
}

/* --- other routers ---------------------------------------------------------------------------- */

static struct peer *find_peer(struct share *s, uint64_t origin) {
    struct peer *free_place = NULL;

    for (int i = 0; i < PEERS_MAX; i++) {
        if (s->peers[i].origin == origin) return &s->peers[i];
        if (!s->peers[i].origin && !free_place) free_place = &s->peers[i];
    }
    if (free_place) {
        *free_place = (struct peer){.origin = origin};
        remote_set_init(&free_place->open, &s->remote, OPEN_MAX);
    }
    return free_place;
}

static void peer_forget(struct peer *p) {
    remote_set_fini(&p->open);
    p->origin = 0;
}

static void forget_silent(struct share *s, uint64_t now_us) {
    for (int i = 0; i < PEERS_MAX; i++) {
        struct peer *p = &s->peers[i];

        if (p->origin && now_us - MIN(p->received_us, now_us) > s->config.silence_us)
            peer_forget(p);
    }
}

static void take_event(struct share *s, struct peer *p, uint64_t identity,
                       const struct request_event *e, uint64_t t_us) {
    const struct registry_third_party *w;

    switch (e->kind) {
    case REQUEST_ACCEPTED:
        w = map_find(&s->by_identity, identity);
        if (w) remote_set_accepted(&p->open, w->id, w->incarnation, e, t_us, !s->is_live);
        break;
    case REQUEST_FIRST: remote_set_first_token(&p->open, e, t_us, !s->is_live); break;
    case REQUEST_ENDED: remote_set_ended(&p->open, e, t_us); break;
    default: return;
    }
    metric_inc(s->events);
}

/* The frame at the front of `bytes`; false: incomplete or invalid. */
static bool next_event(struct share *s, struct str *bytes, struct request_event *e,
                       uint64_t *sequence) {
    size_t used;

    if (request_event_read(*bytes, s->blocks, e, sequence, &used, NULL) != ST_OK || !used)
        return false;
    bytes->ptr += used;
    bytes->len -= used;
    return true;
}

static void on_entry(struct str bytes, uint64_t age_us, void *arg) {
    struct share *s = arg;
    uint64_t now_us = loop_now_us(s->loop), written_us, origin, sequence;
    uint64_t t_us = now_us - MIN(age_us, now_us);
    struct request_event e;
    struct peer *p;

    if (!next_event(s, &bytes, &e, &sequence) || e.kind != REQUEST_HELLO) return;
    written_us = e.t_us;
    origin = strtoull(e.generation, NULL, 16);
    if (!origin || origin == s->config.origin) return;
    p = find_peer(s, origin);
    if (!p) return;                                                   /* too many routers */
    if (p->next && e.next != p->next) remote_set_close_all(&p->open); /* entries are missing */
    p->next = e.next + 1;
    p->received_us = s->is_live ? now_us : MAX(p->received_us, t_us);
    while (next_event(s, &bytes, &e, &sequence)) {
        uint64_t earlier_us = written_us - MIN(e.t_us, written_us);

        take_event(s, p, sequence, &e, t_us - MIN(earlier_us, t_us));
    }
}

/* --- writing ---------------------------------------------------------------------------------- */

static void write_entry(struct share *s, uint64_t now_us) {
    struct request_event hello = {.kind = REQUEST_HELLO, .t_us = now_us, .next = ++s->n_entries};

    snprintf(hello.generation, sizeof(hello.generation), "%0*" PRIx64, ORIGIN_CHARS,
             s->config.origin);
    buf_clear(&s->entry);
    request_event_put(&s->entry, REQUEST_EVENT_CONTROL, &hello);
    buf_append_str(&s->entry, buf_str(&s->outbox));
    buf_clear(&s->outbox);
    if (buf_status(&s->entry) != ST_OK) return;
    redis_stream_append(s->stream, buf_str(&s->entry));
    s->written_us = now_us;
}

/* Lost events came after those that fitted: their entry's number is skipped, and the next entry
 * follows at once, so that readers notice the gap. */
static void write_events(struct share *s, uint64_t now_us) {
    bool is_whole =
        registry_take_outbox(s->registry, &s->outbox) && buf_status(&s->outbox) == ST_OK;

    if (buf_len(&s->outbox) || now_us - s->written_us >= HEARTBEAT_US) write_entry(s, now_us);
    if (is_whole) return;
    s->n_entries++;
    s->written_us = 0;
}

static void on_timer(void *arg) {
    struct share *s = arg;
    uint64_t now_us = loop_now_us(s->loop);
    struct redis_stream_stats stats;

    loop_timer_start(&s->timer, FLUSH_US);
    if (now_us - s->workers_us >= WORKERS_US) look_for_workers(s, now_us);
    write_events(s, now_us);
    redis_stream_stats(s->stream, &stats);
    if (s->is_live || !stats.is_reading) forget_silent(s, now_us);
    metric_reach(s->dropped, stats.n_dropped);
    metric_set(s->connected, stats.is_reading && stats.is_writing);
}

static void on_synced(void *arg) {
    struct share *s = arg;

    s->is_live = true;
}

static void on_lost(void *arg) {
    struct share *s = arg;

    s->is_live = false;
}

/* --- creation --------------------------------------------------------------------------------- */

enum status share_create(struct share **out, struct loop *loop, struct registry *registry,
                         struct metrics *metrics, struct log *log,
                         const struct share_config *config, struct error *err) {
    const struct remote_requests_config remote = {.scheme = config->scheme,
                                                  .block_bytes = config->block_bytes};
    struct share *s = mem_zalloc(sizeof(*s));
    struct redis_stream_config stream = {.url = config->url,
                                         .password = config->password,
                                         .key = config->key,
                                         .max_entries = config->max_entries,
                                         .on_entry = on_entry,
                                         .on_synced = on_synced,
                                         .on_lost = on_lost,
                                         .arg = s};
    enum status st = redis_stream_create(&s->stream, loop, log, &stream, err);

    if (st != ST_OK) {
        mem_free(s);
        return st;
    }
    s->loop = loop;
    s->registry = registry;
    s->config = *config;
    s->begun_us = loop_now_us(loop);
    s->workers = mem_calloc(REGISTRY_MAX_WORKERS, sizeof(*s->workers));
    remote_requests_init(&s->remote, loop, registry, log, &remote);
    map_init(&s->by_identity, config->origin);
    buf_init(&s->entry, 0);
    buf_init(&s->outbox, 0);
    s->events = metrics_at(metrics, ROUTER_redis_events_total);
    s->dropped = metrics_at(metrics, ROUTER_redis_dropped_total);
    s->connected = metrics_at(metrics, ROUTER_redis_connected);
    registry_open_outbox(registry, config->origin, config->scheme, config->outbox_bytes);
    loop_timer_init(&s->timer, loop, on_timer, s);
    loop_timer_start(&s->timer, FLUSH_US);
    *out = s;
    return ST_OK;
}

void share_destroy(struct share *s) {
    if (!s) return;
    redis_stream_destroy(s->stream);
    for (int i = 0; i < PEERS_MAX; i++) {
        if (s->peers[i].origin) peer_forget(&s->peers[i]);
    }
    loop_timer_fini(&s->timer);
    buf_fini(&s->entry);
    buf_fini(&s->outbox);
    map_fini(&s->by_identity);
    mem_free(s->workers);
    mem_free(s);
}

void share_check(const struct share *s) {
    for (int i = 0; i < PEERS_MAX; i++) {
        if (!s->peers[i].origin) continue;
        assert(s->peers[i].origin != s->config.origin);
        remote_set_check(&s->peers[i].open);
    }
}
