/* worker/kv/tiers/peer/peer.c - the sink's thread, its jobs, and which sources are asked. */
#include "worker/kv/tiers/peer/peer.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/hash.h"
#include "common/base/mem.h"
#include "common/base/thread.h"
#include "common/net/cipher.h"
#include "worker/kv/tiers/peer/peer_internal.h"

#define WINDOW_BYTES   (4u << 20)
#define FAILURES       3u
#define PAUSE_FIRST_US 250000u
#define PAUSE_MOST_US  30000000u

#define DEFAULT_CONNECT_MS 250u
#define DEFAULT_GREET_MS   1000u
#define DEFAULT_PING_MS    350u
#define DEFAULT_SHARE_MS   50u

static struct tier_peer *peer_of(struct tier *t) {
    return (struct tier_peer *)t;
}

void peer_count_stat(struct tier_peer *t, uint64_t *counter, uint64_t n) {
    pthread_mutex_lock(&t->lock);
    *counter += n;
    pthread_mutex_unlock(&t->lock);
}

const uint8_t *peer_key(const struct tier_peer *t) {
    return t->form.fleet_keys ? t->fleet_key[0] : NULL;
}

/* --- sources ---------------------------------------------------------------------------------- */

static void set_away(struct peer_source *s, uint64_t until_us) {
    pthread_mutex_lock(&s->tier->lock);
    s->away_until_us = until_us;
    pthread_mutex_unlock(&s->tier->lock);
}

void peer_source_failed(struct peer_source *s, bool is_refusal) {
    struct tier_peer *t = s->tier;

    peer_count_stat(t, &t->stats.n_lost, 1);
    if (is_refusal) peer_count_stat(t, &t->stats.n_refused, 1);
    if (++s->n_failures < FAILURES && !is_refusal) return;
    s->pause_us = is_refusal    ? PAUSE_MOST_US
                  : s->pause_us ? MIN(2 * s->pause_us, PAUSE_MOST_US)
                                : PAUSE_FIRST_US;
    set_away(s, loop_now_us(t->loop) + s->pause_us);
}

void peer_source_worked(struct peer_source *s) {
    s->n_failures = 0;
    s->pause_us = 0;
}

static struct peer_source *find(struct tier_peer *t, const char *authority) {
    for (uint32_t i = 0; i < PEER_SOURCES_MAX; i++)
        if (strcmp(t->sources[i].at.authority, authority) == 0) return &t->sources[i];
    return NULL;
}

/* The one that was named longest ago, of those that nothing is asked of. */
static struct peer_source *find_idle(struct tier_peer *t) {
    struct peer_source *idle = NULL;

    for (uint32_t i = 0; i < PEER_SOURCES_MAX; i++) {
        struct peer_source *s = &t->sources[i];

        if (!list_is_empty(&s->works) || s->n_lookups > 0) continue;
        if (!idle || s->used_us < idle->used_us) idle = s;
    }
    return idle;
}

/* NULL: there is no place for another. */
static struct peer_source *source_of(struct tier_peer *t, const char *authority) {
    struct peer_source *s = find(t, authority);
    struct address_url at;
    char url[ADDRESS_URL_MAX + sizeof("http://")];

    if (s || !(s = find_idle(t))) return s;
    snprintf(url, sizeof(url), "http://%s", authority);
    if (address_split(str_of(url), &at, NULL) != ST_OK) return NULL;
    peer_link_close(s);
    peer_source_worked(s);
    pthread_mutex_lock(&t->lock);
    s->at = at;
    s->away_until_us = 0;
    pthread_mutex_unlock(&t->lock);
    return s;
}

static bool peer_can_ask(struct tier *tier, const struct tier_source *source) {
    struct tier_peer *t = peer_of(tier);
    const struct peer_source *s;
    bool is_away;

    pthread_mutex_lock(&t->lock);
    s = find(t, source->authority);
    is_away = s && clock_now_us() < s->away_until_us;
    pthread_mutex_unlock(&t->lock);
    return !is_away;
}

/* --- jobs ------------------------------------------------------------------------------------- */

static void send_home(struct tier_peer *t, struct tier_job *job) {
    job->ended_us = clock_now_us();
    atomic_fetch_sub_explicit(&t->n_jobs, 1, memory_order_relaxed);
    mailbox_push(job->home, &job->mail);
}

static void fill_results(struct tier_job *job, uint32_t first, enum tier_result result) {
    for (uint32_t i = first; i < job->n; i++) {
        job->units[i].result = i == first ? result : TIER_SKIPPED;
        job->units[i].cause = UNIT_FINE;
    }
}

void peer_work_begin(struct peer_source *s, struct peer_work *w) {
    if (!w->job->began_us) w->job->began_us = MAX(w->have_us, s->end_us);
}

void peer_work_end(struct peer_work *w, enum tier_result result) {
    struct tier_peer *t = w->source->tier;
    struct tier_job *job = w->job;

    fill_results(job, w->n_come, result);
    list_remove(&w->link);
    list_push_back(&t->free_works, &w->link);
    send_home(t, job);
}

static void refuse(struct tier_peer *t, struct tier_job *job, enum tier_result result) {
    job->began_us = 0;
    fill_results(job, 0, result);
    send_home(t, job);
}

static void begin_job(struct tier_peer *t, struct tier_job *job) {
    struct peer_source *s = NULL;
    struct peer_work *w;

    if (t->is_closing) {
        refuse(t, job, TIER_SKIPPED);
        return;
    }
    if (job->op != TIER_LOAD || !job->source) {
        refuse(t, job, TIER_IO);
        return;
    }
    s = source_of(t, job->source->authority);
    if (!s || loop_now_us(t->loop) < s->away_until_us) {
        refuse(t, job, s ? TIER_IO : TIER_BUSY);
        return;
    }
    w = LIST_ENTRY(list_pop_front(&t->free_works), struct peer_work, link); /* n_jobs is limited */
    *w = (struct peer_work){.job = job, .source = s};
    job->began_us = 0;
    s->used_us = loop_now_us(t->loop);
    peer_link_add(s, w);
}

static void peer_submit(struct tier *tier, struct tier_job *job) {
    struct tier_peer *t = peer_of(tier);

    assert(job->n <= TIER_JOB_UNITS);
    if (atomic_fetch_add_explicit(&t->n_jobs, 1, memory_order_relaxed) < PEER_JOBS_MAX) {
        mailbox_push(t->inbox, &job->mail);
    } else {
        refuse(t, job, TIER_BUSY);
    }
}

/* What a source has is known to the request that names it. */
static uint32_t peer_find(struct tier *tier, const struct unit_key *keys, uint32_t n) {
    (void)tier;
    (void)keys;
    (void)n;
    return 0;
}

/* --- the thread ------------------------------------------------------------------------------- */

static void close_all(struct tier_peer *t) {
    t->is_closing = true;
    for (uint32_t i = 0; i < PEER_SOURCES_MAX; i++)
        peer_link_lost(&t->sources[i], TIER_SKIPPED, "the tier is closed");
    loop_stop(t->loop);
}

static void on_mail(struct mail *mail, void *arg) {
    struct tier_peer *t = arg;

    if (mail == &t->stop) {
        close_all(t);
    } else {
        begin_job(t, CONTAINER_OF(mail, struct tier_job, mail));
    }
}

static void *run(void *arg) {
    struct tier_peer *t = arg;

    loop_run(t->loop);
    return NULL;
}

static enum status start(struct tier_peer *t, struct error *err) {
    int code = thread_start(&t->thread, run, t);

    if (code != 0)
        return error_set(err, ST_IO, "cannot start the thread that asks peers: %s", strerror(code));
    t->is_running = true;
    return ST_OK;
}

static void peer_destroy(struct tier *tier) {
    struct tier_peer *t = tier ? peer_of(tier) : NULL;

    if (!t) return;
    if (t->is_running) {
        mailbox_push(t->inbox, &t->stop);
        pthread_join(t->thread, NULL);
    }
    resolver_destroy(t->resolver);
    for (uint32_t i = 0; i < PEER_SOURCES_MAX; i++)
        peer_link_fini(&t->sources[i]);
    mailbox_close(t->inbox);
    loop_destroy(t->loop);
    unit_codec_destroy(t->codec);
    sha256_destroy(t->digest);
    pthread_mutex_destroy(&t->lock);
    cipher_erase(t->fleet_key, sizeof(t->fleet_key));
    mem_free(t);
}

static void peer_stats(struct tier *tier, struct tier_stats *out) {
    struct tier_peer *t = peer_of(tier);

    pthread_mutex_lock(&t->lock);
    *out = t->base;
    pthread_mutex_unlock(&t->lock);
    out->is_open = true;
}

void tier_peer_stats(struct tier *tier, struct tier_peer_stats *out) {
    struct tier_peer *t = peer_of(tier);

    pthread_mutex_lock(&t->lock);
    *out = t->stats;
    pthread_mutex_unlock(&t->lock);
}

/* --- opening ---------------------------------------------------------------------------------- */

static const struct tier_ops peer_ops = {
    .name = "peer",
    .find = peer_find,
    .can_ask = peer_can_ask,
    .submit = peer_submit,
    .stats = peer_stats,
    .destroy = peer_destroy,
};

static void take_config(struct tier_peer *t, const struct tier_peer_config *config) {
    struct tier_peer_config *c = &t->config;

    *c = *config;
    t->form = *config->codec;
    c->codec = NULL;
    if (t->form.fleet_keys) {
        memcpy(t->fleet_key[0], t->form.fleet_keys[0], sizeof(t->fleet_key[0]));
        t->form.fleet_keys = t->fleet_key;
    }
    if (!c->connect_ms) c->connect_ms = DEFAULT_CONNECT_MS;
    if (!c->greet_ms) c->greet_ms = DEFAULT_GREET_MS;
    if (!c->ping_ms) c->ping_ms = DEFAULT_PING_MS;
    if (!c->share_ms) c->share_ms = DEFAULT_SHARE_MS;
}

static enum status open_parts(struct tier_peer *t, const struct tier_peer_config *config,
                              struct error *err) {
    enum status st = unit_codec_create(&t->codec, config->codec, err);

    if (st == ST_OK) st = loop_create(&t->loop, err);
    if (st == ST_OK) st = mailbox_open(&t->inbox, t->loop, on_mail, t, err);
    if (st == ST_OK) st = resolver_create(&t->resolver, t->loop, err);
    if (st != ST_OK) return st;
    t->digest = sha256_create();
    t->unit_bytes = unit_bytes(t->codec);
    t->window_bytes = (uint32_t)MAX(WINDOW_BYTES, 2 * t->unit_bytes);
    for (uint32_t i = 0; i < PEER_SOURCES_MAX; i++)
        peer_link_init(&t->sources[i], t);
    return ST_OK;
}

enum status tier_peer_open(struct tier **out, const struct tier_peer_config *config,
                           struct error *err) {
    struct tier_peer *t = mem_zalloc(sizeof(*t));
    enum status st;

    t->tier.ops = &peer_ops;
    take_config(t, config);
    pthread_mutex_init(&t->lock, NULL);
    list_init(&t->free_works);
    for (uint32_t i = 0; i < PEER_JOBS_MAX; i++)
        list_push_back(&t->free_works, &t->works[i].link);
    st = open_parts(t, config, err);
    if (st == ST_OK) st = start(t, err);
    if (st != ST_OK) {
        peer_destroy(&t->tier);
        return st;
    }
    *out = &t->tier;
    return ST_OK;
}
