/* router/sharing/follow.c - one event stream per worker, its frames, and the requests in them.
 *
 *      IDLE ──due──▶ stream ──hello──▶ following ──lost──▶ IDLE, due again after a pause
 *                       └────lost, refused────────────────┘
 *
 * `open` holds the remote requests of a worker by the worker's number (remote_requests.h). Each
 * tick compares the followed workers with the registry's.
 *
 * Times. Events carry the worker's clock. The least difference to ours over the last minute or so
 * (clocks drift) belongs to the event with the shortest delay: it is added to each event's time,
 * and what an event is later than that is its lag. So replayed requests enter with their true age,
 * and durations learned from them are right.
 *
 * A replay may be 16 MiB, ten thousand requests and more of some 5 us each. It is taken in turns of
 * FRAMES_PER_TURN, half a millisecond, with the stream paused in between, and from REPLAYS_MAX
 * workers at once, so that the loop's other work waits a few milliseconds at most. Resumed streams
 * do not wait for each other and share the frames of a turn. */
#include "router/sharing/follow.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "common/base/hash.h"
#include "common/base/mem.h"
#include "common/base/rng.h"
#include "common/http/http_client.h"
#include "common/net/loop.h"
#include "common/protocol/request_events.h"
#include "common/telemetry/log.h"
#include "router/metrics/router_metrics.h"
#include "router/registry/registry.h"
#include "router/registry/registry_remote.h"
#include "router/registry/registry_route.h"
#include "router/registry/registry_view.h"
#include "router/registry/registry_workers.h"
#include "router/sharing/remote_requests.h"

#define TICK_US          100000u
#define BACKOFF_FIRST_US 100000u
#define BACKOFF_MAX_US   5000000u
#define OPEN_MAX         4096u      /* remote requests of a worker: more than any engine holds */
#define PIECE_MAX        (4u << 20) /* far above what curl reads in one turn */
#define FRAMES_PER_TURN  128u
#define FRAMES_MIN       4u /* of each, however many there are */
#define REPLAYS_MAX      8u
#define OFFSET_WINDOW_US 60000000u

struct followed {
    struct follow *follow;
    uint32_t worker, incarnation;
    bool is_watched;
    bool has_place;    /* `next` and `generation` are valid */
    bool has_hello;    /* a hello arrived on this stream */
    bool is_held;      /* the stream is paused until `rest` is processed */
    bool is_replaying; /* before replay_end; counted in n_replaying */
    bool is_anew;      /* replaying from `oldest`: earlier events are unknown */
    uint32_t n_failures;
    uint64_t next, replay_end;
    char generation[WIRE_GENERATION_MAX];
    char described[WIRE_GENERATION_MAX]; /* as in the registry */
    struct http_call *call;              /* NULL: none */
    struct loop_timer retry, silence;
    struct loop_task more;
    struct buf rest; /* frames to be processed; the last may be incomplete */
    struct remote_set open;
    uint64_t offset_us, window_offset_us, window_end_us; /* local time less the worker's */
};

struct follow {
    struct loop *loop;
    struct http_client *client;
    struct registry *registry;
    struct log *log;
    struct follow_config config;
    struct loop_timer tick;
    struct followed *workers;              /* by id */
    struct registry_publisher *publishers; /* of the current tick */
    struct rng rng;
    uint32_t n_ids, n_replaying;
    struct remote_requests remote;
    struct metric *events[REQUEST_CLEARED + 1], *gaps, *lag;
    uint64_t blocks[CHAIN_BLOCKS_MAX]; /* of the current frame */
};

/* --- what is received ------------------------------------------------------------------------- */

static void take_accepted(struct followed *w, const struct request_event *e, uint64_t t_us) {
    if (e->chain.origin == w->follow->config.origin) return;
    remote_set_accepted(&w->open, w->worker, w->incarnation, e, t_us, w->is_anew);
}

static void take_load(struct followed *w, const struct wire_load *load) {
    struct registry_target target = {.worker = w->worker, .incarnation = w->incarnation};

    if (w->is_replaying) return; /* already corrected */
    registry_note_load(w->follow->registry, &target, load);
}

static void take_cleared(struct followed *w) {
    struct registry *r = w->follow->registry;
    struct registry_view view;

    if (registry_get(r, w->worker, &view) && view.incarnation == w->incarnation)
        registry_forget_cache(r, w->worker);
}

/* --- time ------------------------------------------------------------------------------------- */

static void learn_offset(struct followed *w, uint64_t t_us, uint64_t now_us) {
    uint64_t offset_us = now_us - t_us; /* may wrap; it is added back */

    if (now_us >= w->window_end_us) {
        if (w->window_end_us) w->offset_us = w->window_offset_us;
        w->window_offset_us = offset_us;
        w->window_end_us = now_us + OFFSET_WINDOW_US;
    }
    if ((int64_t)(offset_us - w->window_offset_us) < 0) w->window_offset_us = offset_us;
    if ((int64_t)(offset_us - w->offset_us) < 0) w->offset_us = offset_us;
}

/* The time of the event by our clock; 0: before that clock began, or unknown. */
static uint64_t time_of(const struct followed *w, uint64_t t_us, uint64_t now_us) {
    int64_t ours_us = (int64_t)(t_us + w->offset_us);

    return ours_us < 0 ? 0 : MIN((uint64_t)ours_us, now_us);
}

static void begin_offset(struct followed *w, uint64_t t_us, uint64_t now_us) {
    w->offset_us = w->window_offset_us = now_us - t_us;
    w->window_end_us = now_us + OFFSET_WINDOW_US;
}

/* --- frames ----------------------------------------------------------------------------------- */

static void set_replaying(struct followed *w, bool is_replaying) {
    w->follow->n_replaying += (uint32_t)is_replaying - w->is_replaying;
    w->is_replaying = is_replaying;
    w->is_anew = w->is_anew && is_replaying;
}

/* Events until `next` are lost: any open request may have ended. */
static void skip_to(struct followed *w, uint64_t next) {
    metric_inc(w->follow->gaps);
    remote_set_close_all(&w->open);
    w->next = next;
}

/* ST_AGAIN: the worker was restarted. The stream is useless: it may begin anywhere, and the
 * registry must first learn the new generation and drop the old cache. */
static enum status take_hello(struct followed *w, const struct request_event *e, uint64_t now_us) {
    struct follow *f = w->follow;
    bool is_other = w->has_place && strcmp(e->generation, w->generation) != 0;
    bool is_known = strcmp(e->generation, w->described) == 0;

    if (is_other || !is_known) {
        w->has_place = false;
        remote_set_close_all(&w->open);
        if (!is_known) registry_suspect(f->registry, w->worker, w->incarnation);
        return ST_AGAIN;
    }
    begin_offset(w, e->t_us, now_us);
    w->is_anew = !w->has_place || e->is_gap;
    if (!w->has_place) {
        w->next = e->oldest;
    } else if (e->is_gap) {
        skip_to(w, e->oldest);
    }
    w->has_place = w->has_hello = true;
    w->replay_end = e->next;
    set_replaying(w, w->next < e->next);
    memcpy(w->generation, e->generation, sizeof(w->generation));
    loop_timer_stop(&w->silence);
    registry_set_followed(f->registry, w->worker, w->incarnation, true);
    return ST_OK;
}

static void take_event(struct followed *w, const struct request_event *e, uint64_t now_us) {
    struct follow *f = w->follow;
    uint64_t t_us;

    learn_offset(w, e->t_us, now_us);
    t_us = time_of(w, e->t_us, now_us);
    switch (e->kind) {
    case REQUEST_ACCEPTED: take_accepted(w, e, t_us); break;
    case REQUEST_FIRST: remote_set_first_token(&w->open, e, t_us, w->is_anew); break;
    case REQUEST_ENDED: remote_set_ended(&w->open, e, t_us); break;
    case REQUEST_LOAD: take_load(w, &e->load); break;
    case REQUEST_CLEARED: take_cleared(w); break;
    default: return; /* unknown kind */
    }
    metric_inc(f->events[e->kind]);
    if (!w->is_replaying) metric_observe(f->lag, (double)(now_us - t_us) * 1e-6);
}

static enum status take_frame(struct followed *w, uint64_t sequence,
                              const struct request_event *e) {
    uint64_t now_us = loop_now_us(w->follow->loop);

    if (sequence == REQUEST_EVENT_CONTROL)
        return e->kind == REQUEST_HELLO ? take_hello(w, e, now_us) : ST_OK;
    if (!w->has_hello) return ST_INVALID; /* a stream begins with a hello */
    w->n_failures = 0;
    if (sequence < w->next) return ST_OK;
    if (sequence > w->next) skip_to(w, sequence);
    w->next = sequence + 1;
    take_event(w, e, now_us);
    if (w->is_replaying && w->next >= w->replay_end) set_replaying(w, false);
    return ST_OK;
}

/* When many streams return at once, as after a partition, each gets fewer frames per turn. */
static uint32_t frames_per_turn(const struct follow *f) {
    return MAX(FRAMES_PER_TURN * REPLAYS_MAX / MAX(f->n_replaying, REPLAYS_MAX), FRAMES_MIN);
}

/* Processes the frames that have arrived, at most one turn's worth; *is_more: frames are left. */
static enum status take_frames(struct followed *w, bool *is_more, struct error *err) {
    uint32_t n_max = frames_per_turn(w->follow);

    *is_more = false;
    for (uint32_t i = 0; i < n_max; i++) {
        struct request_event e;
        uint64_t sequence;
        size_t n;
        enum status st =
            request_event_read(buf_str(&w->rest), w->follow->blocks, &e, &sequence, &n, err);

        if (st != ST_OK || n == 0) return st;
        buf_consume(&w->rest, n);
        st = take_frame(w, sequence, &e);
        if (st == ST_INVALID) return error_set(err, st, "the stream does not begin with a hello");
        if (st != ST_OK) return error_set(err, st, "the worker was restarted: connecting again");
    }
    *is_more = true;
    return ST_OK;
}

/* --- streams ---------------------------------------------------------------------------------- */

static void lost(struct followed *w, const char *why) {
    struct follow *f = w->follow;
    uint64_t pause_us = BACKOFF_FIRST_US << MIN(w->n_failures, 10u);

    w->call = NULL;
    w->is_held = false;
    loop_defer_cancel(&w->more);
    buf_clear(&w->rest);
    if (w->has_hello || w->n_failures == 0) { /* log only the first of several failures */
        log_event(f->log, LOG_INFO, "worker_events_lost", log_u64("worker", w->worker),
                  log_z("why", why));
    }
    if (w->has_hello) {
        registry_set_followed(f->registry, w->worker, w->incarnation, false);
        loop_timer_start(&w->silence, f->config.silence_us);
    }
    w->has_hello = false;
    set_replaying(w, false);
    w->n_failures++;
    pause_us = MIN(pause_us, BACKOFF_MAX_US);
    loop_timer_start(&w->retry, pause_us + rng_below(&f->rng, pause_us / 4));
}

static void on_end(const struct http_client_response *response, void *arg) {
    char why[64];

    snprintf(why, sizeof(why), "GET %s was answered with %d", REQUEST_EVENTS_PATH, response->code);
    lost(arg, response->status != ST_OK ? response->message
              : response->code != 200   ? why
                                        : "the worker ended the stream");
}

static void drop_stream(struct followed *w, const char *why) {
    http_call_cancel(w->call);
    lost(w, why);
}

static void take_turn(void *arg) {
    struct followed *w = arg;
    struct error err = {0};
    bool is_more;

    if (take_frames(w, &is_more, &err) != ST_OK) {
        drop_stream(w, err.message);
        return;
    }
    if (is_more) loop_defer(w->follow->loop, &w->more);
    if (is_more == w->is_held) return;
    w->is_held = is_more;
    http_call_pause(w->call, is_more);
}

static void on_data(int code, struct str bytes, void *arg) {
    struct followed *w = arg;

    if (code != 200) return;
    buf_append_str(&w->rest, bytes);
    if (buf_status(&w->rest) != ST_OK) {
        drop_stream(w, "out of memory");
    } else if (!w->is_held) {
        take_turn(w);
    }
}

/* False: the first event to read is not known yet. */
static bool find_place(struct followed *w, const char *url) {
    const struct follow_config *config = &w->follow->config;
    uint64_t next = 0;

    if (w->has_place || !config->from) return true;
    switch (config->from(url, w->described, &next, config->arg)) {
    case FOLLOW_FROM_LATER: return false;
    case FOLLOW_FROM_NEXT:
        memcpy(w->generation, w->described, sizeof(w->generation));
        w->next = next;
        w->has_place = true;
        return true;
    default: return true;
    }
}

static void begin(void *arg) {
    struct followed *w = arg;
    struct follow *f = w->follow;
    char url[REGISTRY_URL_MAX + 128];
    struct http_client_request request = {.url = url,
                                          .on_data = on_data,
                                          .max_body_bytes = PIECE_MAX,
                                          .silence_ms = f->config.silence_ms};
    struct registry_view view;
    struct error err = {0};
    char place[WIRE_GENERATION_MAX + 48] = "oldest";

    if (w->call) return;
    if (!w->has_place && f->n_replaying >= REPLAYS_MAX) {
        loop_timer_start(&w->retry, TICK_US);
        return;
    }
    if (!registry_get(f->registry, w->worker, &view)) return; /* the next tick handles it */
    if (w->has_place && strcmp(w->generation, w->described) != 0) w->has_place = false;
    if (!find_place(w, view.url)) {
        loop_timer_start(&w->retry, TICK_US);
        return;
    }
    if (w->has_place)
        snprintf(place, sizeof(place), "%llu&generation=%s", (unsigned long long)w->next,
                 w->generation);
    snprintf(url, sizeof(url), "%s" REQUEST_EVENTS_PATH "?origin=%016llx&from=%s", view.url,
             (unsigned long long)f->config.origin, place);
    request.connect_to = view.address;
    if (http_client_start(f->client, &request, on_end, w, &w->call, &err) != ST_OK)
        lost(w, err.message);
    else
        set_replaying(w, !w->has_place);
}

static void on_silence_over(void *arg) {
    struct followed *w = arg;

    remote_set_close_all(&w->open);
}

/* --- who is followed -------------------------------------------------------------------------- */

static void watch(struct follow *f, const struct registry_publisher *t) {
    struct followed *w = &f->workers[t->id];

    *w = (struct followed){
        .follow = f, .worker = t->id, .incarnation = t->incarnation, .is_watched = true};
    buf_init(&w->rest, 2 * PIECE_MAX);
    remote_set_init(&w->open, &f->remote, OPEN_MAX);
    loop_timer_init(&w->retry, f->loop, begin, w);
    loop_timer_init(&w->silence, f->loop, on_silence_over, w);
    loop_task_init(&w->more, take_turn, w);
    memcpy(w->described, t->generation, sizeof(w->described));
    f->n_ids = MAX(f->n_ids, t->id + 1);
    begin(w);
}

static void unwatch(struct followed *w) {
    if (!w->is_watched) return;
    http_call_cancel(w->call);
    registry_set_followed(w->follow->registry, w->worker, w->incarnation, false);
    set_replaying(w, false);
    remote_set_fini(&w->open);
    buf_fini(&w->rest);
    loop_timer_fini(&w->retry);
    loop_timer_fini(&w->silence);
    loop_defer_cancel(&w->more);
    w->is_watched = false;
}

/* The worker was restarted and described. */
static void note_generation(struct followed *w, const struct registry_publisher *t) {
    if (strcmp(w->described, t->generation) == 0) return;
    memcpy(w->described, t->generation, sizeof(w->described));
    if (w->has_hello) drop_stream(w, "it was restarted"); /* of the old process */
    remote_set_close_all(&w->open);
    w->n_failures = 0;
    if (!w->call) loop_timer_start(&w->retry, 0);
}

static void on_tick(void *arg) {
    struct follow *f = arg;
    uint32_t n = registry_publishers(f->registry, f->publishers, f->config.max_workers), next = 0;

    for (uint32_t id = 0; id < f->config.max_workers && (id < f->n_ids || next < n); id++) {
        const struct registry_publisher *t =
            next < n && f->publishers[next].id == id ? &f->publishers[next] : NULL;
        struct followed *w = &f->workers[id];

        if (t) next++;
        if (w->is_watched && (!t || t->incarnation != w->incarnation)) unwatch(w);
        if (!t) continue;
        if (w->is_watched)
            note_generation(w, t);
        else
            watch(f, t);
    }
    loop_timer_start(&f->tick, TICK_US);
}

struct follow *follow_create(struct loop *loop, struct http_client *client,
                             struct registry *registry, struct metrics *metrics, struct log *log,
                             const struct follow_config *config) {
    static const char *const kinds[] = {[REQUEST_ACCEPTED] = "accepted",
                                        [REQUEST_FIRST] = "first",
                                        [REQUEST_ENDED] = "ended",
                                        [REQUEST_LOAD] = "load",
                                        [REQUEST_CLEARED] = "cleared"};
    const struct remote_requests_config remote = {.scheme = config->scheme,
                                                  .block_bytes = config->block_bytes};
    struct follow *f = mem_zalloc(sizeof(*f));
    uint64_t seed;

    assert(config->origin);
    hash_random(&seed, sizeof(seed));
    rng_seed(&f->rng, seed);
    f->loop = loop;
    f->client = client;
    f->registry = registry;
    f->log = log;
    f->config = *config;
    remote_requests_init(&f->remote, loop, registry, log, &remote);
    f->workers = mem_calloc(config->max_workers, sizeof(*f->workers));
    f->publishers = mem_calloc(config->max_workers, sizeof(*f->publishers));
    for (uint32_t kind = REQUEST_ACCEPTED; kind < ARRAY_LEN(kinds); kind++)
        f->events[kind] = METRICS_GET(metrics, ROUTER_shared_events_total, kinds[kind]);
    f->gaps = metrics_at(metrics, ROUTER_shared_gaps_total);
    f->lag = metrics_at(metrics, ROUTER_shared_lag_seconds);
    loop_timer_init(&f->tick, loop, on_tick, f);
    loop_timer_start(&f->tick, 0);
    return f;
}

void follow_destroy(struct follow *f) {
    if (!f) return;
    for (uint32_t id = 0; id < f->n_ids; id++)
        unwatch(&f->workers[id]);
    loop_timer_fini(&f->tick);
    mem_free(f->workers);
    mem_free(f->publishers);
    mem_free(f);
}

uint64_t follow_next(const struct follow *f, uint32_t id, const char *generation) {
    const struct followed *w = f && id < f->config.max_workers ? &f->workers[id] : NULL;
    bool is_known = w && w->is_watched && w->has_place && !w->is_replaying;

    return is_known && strcmp(w->generation, generation) == 0 ? w->next : 0;
}

void follow_check(const struct follow *f) {
    uint32_t n_replaying = 0;

    for (uint32_t id = 0; id < f->config.max_workers; id++) {
        const struct followed *w = &f->workers[id];
        struct registry_view view;

        if (!w->is_watched) continue;
        assert(id < f->n_ids && w->worker == id);
        remote_set_check(&w->open);
        assert(!w->has_hello || (w->call && w->has_place));
        assert(!w->is_replaying || w->call);
        assert(!w->is_held || w->call);
        assert(!w->has_hello || w->is_replaying == (w->next < w->replay_end));
        n_replaying += w->is_replaying;
        if (registry_get(f->registry, id, &view) && view.incarnation == w->incarnation)
            assert(view.n_remote == w->open.requests.n && view.is_followed == w->has_hello);
    }
    assert(n_replaying == f->n_replaying);
}
