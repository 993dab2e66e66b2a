/* router/share.c - what is written every ten milliseconds, and the requests of other routers.
 *
 * `peers` are the routers that were heard of; each has its open requests by its own numbers for them.
 * Each of these is on the registry's books for exactly as long as it is there. A peer that has been
 * silent for long is forgotten. */
#include "router/share.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/hash.h"
#include "common/log.h"
#include "common/loop.h"
#include "common/map.h"
#include "common/mem.h"
#include "common/metrics.h"
#include "common/request_events.h"
#include "router/registry.h"
#include "router/router_metrics.h"

#define FLUSH_US     10000u
#define HEARTBEAT_US 2000000u
#define PEERS_MAX    64
#define OPEN_MAX     65536u              /* requests of one peer */
#define PROMPT_MAX   (UINT64_C(1) << 30) /* bytes that are believed */
#define ORIGIN_CHARS 16

struct shared_request {
    struct registry_mirror mirror;
    uint64_t chain[];
};

struct peer {
    uint64_t origin;         /* 0: a free place */
    uint64_t heard_us, next; /* next: of its entries; 0: any */
    bool hashes_differ;
    struct map open;
};

struct share {
    struct loop *loop;
    struct registry *registry;
    struct log *log;
    struct share_config config;
    struct redis_stream *stream;
    struct loop_timer timer;
    struct buf entry, told;
    uint64_t written_us, n_entries;
    struct peer peers[PEERS_MAX];
    struct metric *events, *dropped, *connected;
    uint64_t blocks[CHAIN_BLOCKS_MAX];
};

/* --- writing ----------------------------------------------------------------------------------- */

static void write_entry(struct share *s, uint64_t now_us) {
    struct request_event hello = {.kind = REQUEST_HELLO, .t_us = now_us, .next = ++s->n_entries};

    snprintf(hello.generation, sizeof(hello.generation), "%0*" PRIx64, ORIGIN_CHARS,
             s->config.origin);
    buf_clear(&s->entry);
    request_event_put(&s->entry, REQUEST_EVENT_CONTROL, &hello);
    buf_append_str(&s->entry, buf_str(&s->told));
    buf_clear(&s->told);
    if (buf_status(&s->entry) != ST_OK) return;
    redis_stream_append(s->stream, buf_str(&s->entry));
    s->written_us = now_us;
}

static void peer_forget(struct share *s, struct peer *p);

static void on_timer(void *arg) {
    struct share *s = arg;
    uint64_t now_us = loop_now_us(s->loop);
    struct redis_stream_stats stats;

    loop_timer_start(&s->timer, FLUSH_US);
    registry_take_outbox(s->registry, &s->told);
    if (buf_len(&s->told) || now_us - s->written_us >= HEARTBEAT_US) write_entry(s, now_us);
    for (int i = 0; i < PEERS_MAX; i++) {
        struct peer *p = &s->peers[i];

        if (p->origin && now_us - MIN(p->heard_us, now_us) > s->config.patience_us)
            peer_forget(s, p);
    }
    redis_stream_stats(s->stream, &stats);
    metric_reach(s->dropped, stats.n_dropped);
    metric_set(s->connected, stats.is_reading && stats.is_writing);
}

/* --- other routers ------------------------------------------------------------------------------ */

static struct peer *find_peer(struct share *s, uint64_t origin) {
    struct peer *free_place = NULL;

    for (int i = 0; i < PEERS_MAX; i++) {
        if (s->peers[i].origin == origin) return &s->peers[i];
        if (!s->peers[i].origin && !free_place) free_place = &s->peers[i];
    }
    if (free_place) {
        uint64_t seed;

        hash_random(&seed, sizeof(seed));
        *free_place = (struct peer){.origin = origin};
        map_init(&free_place->open, seed);
    }
    return free_place;
}

static void end_shared(struct share *s, struct shared_request *q, const struct route_end *end) {
    registry_adopted_ended(s->registry, &q->mirror, end, loop_now_us(s->loop));
    mem_free(q);
}

/* What became of its requests is not known any more. */
static void close_all(struct share *s, struct peer *p) {
    const struct route_end end = {.is_aborted = true,
                                  .output_tokens = -1,
                                  .feedback = {-1, -1},
                                  .now_us = loop_now_us(s->loop)};
    const struct map_slot *slot;

    for (size_t i = 0; (slot = map_next(&p->open, &i));)
        end_shared(s, slot->value, &end);
    map_clear(&p->open);
}

static void peer_forget(struct share *s, struct peer *p) {
    close_all(s, p);
    map_fini(&p->open);
    p->origin = 0;
}

static void warn_of_hashes(struct share *s, struct peer *p) {
    if (p->hashes_differ) return;
    p->hashes_differ = true;
    log_event(s->log, LOG_WARN, "shared_hashes_differ",
              log_z("why", "another router hashes prompts in another way: its load counts, what it "
                           "leaves in caches does not. Give all routers the same "
                           "--prefix-hash-seed and --prefix-block-bytes, and one version"));
}

static void take_accepted(struct share *s, struct peer *p, uint64_t worker,
                          const struct request_event *e, uint64_t t_us) {
    const struct request_chain *chain = &e->chain;
    uint64_t n = MIN(chain->n_blocks, chain->prompt_bytes / s->config.block_bytes + 1);
    struct route_request rq = {.n_blocks = chain->scheme == s->config.scheme ? (uint32_t)n : 0,
                               .prompt_bytes = MIN(chain->prompt_bytes, PROMPT_MAX),
                               .now_us = t_us};
    struct shared_request *q;
    uint32_t id, incarnation;

    if (p->open.n >= OPEN_MAX || map_find(&p->open, e->request)) return;
    if (!registry_find_foreign(s->registry, worker, &id, &incarnation)) return;
    if (chain->scheme != s->config.scheme) warn_of_hashes(s, p);
    q = mem_try_zalloc(sizeof(*q) + rq.n_blocks * sizeof(*q->chain));
    if (!q) return;
    memcpy(q->chain, chain->blocks, rq.n_blocks * sizeof(*q->chain));
    rq.chain = q->chain;
    if (registry_adopt(s->registry, id, incarnation, &rq, &q->mirror) == ST_OK)
        map_insert(&p->open, e->request, q);
    else
        mem_free(q);
}

static void take_event(struct share *s, struct peer *p, uint64_t worker,
                       const struct request_event *e, uint64_t t_us) {
    struct route_feedback feedback = {e->prompt_tokens, e->cached_tokens};
    struct route_end end = {.is_aborted = e->is_aborted,
                            .output_tokens = e->output_tokens,
                            .feedback = {-1, -1},
                            .now_us = t_us};
    struct shared_request *q;

    switch (e->kind) {
    case REQUEST_ACCEPTED: take_accepted(s, p, worker, e, t_us); break;
    case REQUEST_FIRST:
        q = map_find(&p->open, e->request);
        if (q) registry_adopted_first(s->registry, &q->mirror, &feedback, t_us);
        break;
    case REQUEST_ENDED:
        q = map_erase(&p->open, e->request);
        if (q) end_shared(s, q, &end);
        break;
    default: return;
    }
    metric_inc(s->events);
}

/* The frame at the front of `bytes`; false: no whole one, or none of ours. */
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
    if (!p) return;                                    /* more routers than anybody has */
    if (p->next && e.next != p->next) close_all(s, p); /* entries are missing */
    p->next = e.next + 1;
    p->heard_us = MAX(p->heard_us, t_us);
    while (next_event(s, &bytes, &e, &sequence)) {
        uint64_t earlier_us = written_us - MIN(e.t_us, written_us);

        take_event(s, p, sequence, &e, t_us - MIN(earlier_us, t_us));
    }
}

/* --- creation ---------------------------------------------------------------------------------- */

enum status share_create(struct share **out, struct loop *loop, struct registry *registry,
                         struct metrics *metrics, struct log *log,
                         const struct share_config *config, struct error *err) {
    struct share *s = mem_zalloc(sizeof(*s));
    struct redis_stream_config stream = {.url = config->url,
                                         .password = config->password,
                                         .key = config->key,
                                         .max_entries = config->max_entries,
                                         .on_entry = on_entry,
                                         .arg = s};
    enum status st = redis_stream_create(&s->stream, loop, log, &stream, err);

    if (st != ST_OK) {
        mem_free(s);
        return st;
    }
    s->loop = loop;
    s->registry = registry;
    s->log = log;
    s->config = *config;
    buf_init(&s->entry, 0);
    buf_init(&s->told, 0);
    s->events = metrics_at(metrics, ROUTER_redis_events_total);
    s->dropped = metrics_at(metrics, ROUTER_redis_dropped_total);
    s->connected = metrics_at(metrics, ROUTER_redis_connected);
    registry_open_outbox(registry, config->origin, config->scheme);
    loop_timer_init(&s->timer, loop, on_timer, s);
    loop_timer_start(&s->timer, FLUSH_US);
    *out = s;
    return ST_OK;
}

void share_destroy(struct share *s) {
    if (!s) return;
    redis_stream_destroy(s->stream);
    for (int i = 0; i < PEERS_MAX; i++) {
        if (s->peers[i].origin) peer_forget(s, &s->peers[i]);
    }
    loop_timer_fini(&s->timer);
    buf_fini(&s->entry);
    buf_fini(&s->told);
    mem_free(s);
}

void share_check(const struct share *s) {
    for (int i = 0; i < PEERS_MAX; i++) {
        if (!s->peers[i].origin) continue;
        assert(s->peers[i].origin != s->config.origin);
        assert(s->peers[i].open.n <= OPEN_MAX);
        map_check(&s->peers[i].open);
    }
}
