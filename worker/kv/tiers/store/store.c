/* worker/kv/tiers/store/store.c - the store's thread; jobs and their units; what it is assumed to
 * hold.
 *
 * A job becomes a work with a request per unit, each of which goes its own way (store_node.c,
 * store_link.c) and ends in store_unit_done. `n_left` has one more while the requests are being
 * handed out, so that a job never ends under the loop that does that. */
#include "worker/kv/tiers/store/store.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/hash.h"
#include "common/base/mem.h"
#include "common/base/thread.h"
#include "common/net/cipher.h"
#include "worker/kv/tiers/store/store_internal.h"

#define ABSENT_US    5000000u /* what is not there is asked for again after this, */
#define ASKED_US     2000000u /* and what has no answer after this */
#define GONE_FORGETS 8u       /* values that are gone in a row: the store was emptied */
#define WANT_MAX     256u     /* keys asked for by one find: 4,096 tokens of 16 */

#define DEFAULT_TTL_S      86400u
#define DEFAULT_CONNECT_MS 250u
#define DEFAULT_SILENCE_MS 1000u
#define DEFAULT_JOBS       32u
#define DEFAULT_KEYS       (1u << 20)

static struct tier_store *store_of(struct tier *t) {
    return (struct tier_store *)t;
}

/* --- beliefs ---------------------------------------------------------------------------------- */

static void assume(struct tier_store *s, const struct unit_key *key, enum belief belief) {
    uint64_t now_us = loop_now_us(s->loop);
    uint64_t for_us = belief == BELIEF_ABSENT ? ABSENT_US : (uint64_t)s->config.ttl_s * 1000000u;

    pthread_mutex_lock(&s->lock);
    beliefs_set(s->beliefs, key, belief, now_us, now_us + for_us);
    pthread_mutex_unlock(&s->lock);
}

bool store_is_spoiled(struct tier_store *s, const struct unit_key *key) {
    bool is_spoiled;

    pthread_mutex_lock(&s->lock);
    is_spoiled = beliefs_find(s->beliefs, key, loop_now_us(s->loop)) == BELIEF_SPOILED;
    pthread_mutex_unlock(&s->lock);
    return is_spoiled;
}

void store_count(struct tier_store *s, uint64_t *counter) {
    pthread_mutex_lock(&s->lock);
    ++*counter;
    pthread_mutex_unlock(&s->lock);
}

void store_set_used(struct tier_store *s, struct store_node *n, uint64_t used_bytes) {
    pthread_mutex_lock(&s->lock);
    s->base.bytes += used_bytes - n->used_bytes;
    pthread_mutex_unlock(&s->lock);
    n->used_bytes = used_bytes;
}

void store_set_writable(struct tier_store *s, bool can_write) {
    pthread_mutex_lock(&s->lock);
    s->no_write_before_us = can_write ? 0 : loop_now_us(s->loop) + STORE_FULL_US;
    pthread_mutex_unlock(&s->lock);
}

static bool is_away(struct tier_store *s, const struct unit_key *key) {
    uint32_t node = atomic_load_explicit(&s->slots[store_slot(key)], memory_order_relaxed);

    return atomic_load_explicit(&s->is_away[node], memory_order_relaxed);
}

static bool is_same_group(const struct unit_key *a, const struct unit_key *b) {
    return memcmp(a->bytes + UNIT_GROUP_AT, b->bytes + UNIT_GROUP_AT, UNIT_GROUP_BYTES) == 0;
}

/* Keys that nothing is known of are to be asked for. True: the thread must be woken. */
static bool want(struct tier_store *s, const struct unit_key *keys, uint32_t n, uint64_t now_us) {
    bool is_first;

    for (uint32_t i = 0; i < MIN(n, WANT_MAX) && s->n_wanted < STORE_ASKS_MAX; i++) {
        if (beliefs_find(s->beliefs, &keys[i], now_us) != BELIEF_NONE) continue;
        s->wanted[s->n_wanted++] = keys[i];
        beliefs_set(s->beliefs, &keys[i], BELIEF_ASKED, now_us, now_us + ASKED_US);
    }
    is_first = s->n_wanted > 0 && !s->is_woken;
    s->is_woken |= is_first;
    return is_first;
}

static uint32_t store_find(struct tier *t, const struct unit_key *keys, uint32_t n) {
    struct tier_store *s = store_of(t);
    uint64_t now_us = clock_now_us();
    enum belief belief = BELIEF_PRESENT;
    bool wakes = false;
    uint32_t i;

    pthread_mutex_lock(&s->lock);
    for (i = 0; i < n; i++) {
        if ((i == 0 || !is_same_group(&keys[i], &keys[i - 1])) && is_away(s, &keys[i])) break;
        belief = beliefs_find(s->beliefs, &keys[i], now_us);
        if (belief != BELIEF_PRESENT) break;
    }
    if (i < n && belief == BELIEF_NONE) wakes = want(s, keys + i, n - i, now_us);
    pthread_mutex_unlock(&s->lock);
    if (wakes) mailbox_push(s->inbox, &s->wake);
    return i;
}

static uint32_t store_guess(struct tier *t, const struct unit_key *keys, uint32_t n) {
    struct tier_store *s = store_of(t);
    uint64_t now_us = clock_now_us();
    uint32_t i;

    pthread_mutex_lock(&s->lock);
    for (i = 0; i < n; i++) {
        enum belief belief = beliefs_find(s->beliefs, &keys[i], now_us);

        if ((i == 0 || !is_same_group(&keys[i], &keys[i - 1])) && is_away(s, &keys[i])) break;
        if (belief == BELIEF_ABSENT || belief == BELIEF_SPOILED) break;
    }
    pthread_mutex_unlock(&s->lock);
    return i;
}

/* What an EXISTS found may have changed by a SET or GET that ended meanwhile. */
void store_ask_done(struct tier_store *s, struct store_request *r, enum belief belief) {
    enum belief before;

    pthread_mutex_lock(&s->lock);
    before = beliefs_find(s->beliefs, &r->key, loop_now_us(s->loop));
    pthread_mutex_unlock(&s->lock);
    if (belief != BELIEF_NONE && before <= BELIEF_ASKED) assume(s, &r->key, belief);
    list_push_back(&s->free_asks, &r->link);
}

/* Keys for which no request is free are forgotten: the next find asks again. */
static void ask(struct tier_store *s) {
    struct unit_key keys[STORE_ASKS_MAX];
    uint32_t n;

    pthread_mutex_lock(&s->lock);
    n = s->n_wanted;
    memcpy(keys, s->wanted, n * sizeof(*keys));
    s->n_wanted = 0;
    s->is_woken = false;
    s->stats.n_asked += n;
    pthread_mutex_unlock(&s->lock);
    for (uint32_t i = 0; i < n && !list_is_empty(&s->free_asks); i++) {
        struct store_request *r =
            LIST_ENTRY(list_pop_front(&s->free_asks), struct store_request, link);

        *r = (struct store_request){.command = COMMAND_EXISTS, .key = keys[i]};
        store_route(s, r);
    }
}

/* --- jobs ------------------------------------------------------------------------------------- */

static void send_home(struct tier_store *s, struct tier_job *job) {
    job->ended_us = clock_now_us();
    atomic_fetch_sub_explicit(&s->n_jobs, 1, memory_order_relaxed);
    mailbox_push(job->home, &job->mail);
}

static void let_go(struct tier_store *s, struct store_work *w) {
    struct tier_job *job = w->job;

    if (--w->n_left) return;
    for (uint32_t i = 0; i < s->n_nodes; i++)
        if (s->nodes[i]->probe == w) s->nodes[i]->probe = NULL;
    w->job = NULL;
    send_home(s, job);
}

/* So many values that are gone, and none that came, are a store that was emptied: nothing is
 * assumed present any more, so that all is asked for and written again. */
static void note_load(struct tier_store *s, const struct unit_key *key, bool has_come) {
    uint64_t now_us = loop_now_us(s->loop);

    pthread_mutex_lock(&s->lock);
    if (has_come) {
        s->n_gone = 0;
    } else if (beliefs_find(s->beliefs, key, now_us) == BELIEF_PRESENT &&
               ++s->n_gone == GONE_FORGETS) {
        beliefs_forget_present(s->beliefs, now_us + (uint64_t)s->config.ttl_s * 1000000u);
        s->n_gone = 0;
    }
    pthread_mutex_unlock(&s->lock);
}

/* A unit of a later version is not there for us, and is left alone. What is behind a value that did
 * not come has probably gone with it: nothing is assumed of it any more. */
static void learn(struct tier_store *s, const struct store_request *r, enum tier_result result,
                  enum unit_cause cause) {
    bool is_load = r->command == COMMAND_GET, is_foreign = cause == UNIT_VERSION;

    if (is_load && (result == TIER_OK || result == TIER_ABSENT))
        note_load(s, &r->key, result == TIER_OK);
    switch (result) {
    case TIER_OK: assume(s, &r->key, BELIEF_PRESENT); break;
    case TIER_ABSENT: assume(s, &r->key, BELIEF_ABSENT); break;
    case TIER_REJECTED: assume(s, &r->key, is_foreign ? BELIEF_ABSENT : BELIEF_SPOILED); break;
    case TIER_SKIPPED:
        if (is_load && r->unit > r->work->first_bad) assume(s, &r->key, BELIEF_NONE);
        return;
    default: return;
    }
    pthread_mutex_lock(&s->lock);
    if (result == TIER_OK) {
        *(is_load ? &s->base.loaded_bytes : &s->base.stored_bytes) += s->config.unit.block_bytes;
    } else {
        s->base.n_dropped++;
        ++*(result == TIER_ABSENT ? &s->stats.n_absent : &s->stats.n_rejected);
    }
    pthread_mutex_unlock(&s->lock);
}

void store_unit_done(struct tier_store *s, struct store_request *r, enum tier_result result,
                     enum unit_cause cause) {
    struct store_work *w = r->work;
    struct tier_unit *unit = &w->job->units[r->unit];

    unit->result = result;
    unit->cause = cause;
    if (result != TIER_OK) w->first_bad = MIN(w->first_bad, r->unit);
    learn(s, r, result, cause);
    let_go(s, w);
}

void store_request_failed(struct tier_store *s, struct store_request *r, enum tier_result result) {
    if (r->command == COMMAND_EXISTS) {
        store_ask_done(s, r, BELIEF_NONE);
    } else {
        store_unit_done(s, r, result, UNIT_FINE);
    }
}

void store_spoiled(struct tier_store *s, struct store_request *r) {
    if (r->command == COMMAND_EXISTS) {
        store_ask_done(s, r, BELIEF_SPOILED);
    } else {
        store_unit_done(s, r, TIER_REJECTED, UNIT_MAGIC);
    }
}

bool store_is_unwanted(struct tier_store *s, const struct store_request *r,
                       enum tier_result *result) {
    const struct store_work *w = r->work;
    const struct tier_job *job = w->job;
    bool is_behind = job->op == TIER_LOAD && r->unit > w->first_bad;

    *result = TIER_SKIPPED;
    if (s->is_closing || is_behind) return true;
    if (atomic_load_explicit(&job->is_cancelled, memory_order_relaxed)) return true;
    *result = TIER_LATE;
    return loop_now_us(s->loop) > job->deadline_us;
}

static void begin_job(struct tier_store *s, struct tier_job *job) {
    struct store_work *w = s->works;

    while (w->job)
        w++; /* there is one: n_jobs is limited */
    w->job = job;
    w->n_left = job->n + 1;
    w->first_bad = TIER_JOB_UNITS;
    job->began_us = 0;
    for (uint32_t i = 0; i < job->n; i++) {
        struct store_request *r = &w->requests[i];

        *r = (struct store_request){.command = job->op == TIER_LOAD ? COMMAND_GET : COMMAND_SET,
                                    .work = w,
                                    .unit = i,
                                    .key = job->units[i].id.key};
        store_route(s, r);
    }
    let_go(s, w);
}

static void store_submit(struct tier *t, struct tier_job *job) {
    struct tier_store *s = store_of(t);

    assert(job->n <= TIER_JOB_UNITS);
    if (atomic_fetch_add_explicit(&s->n_jobs, 1, memory_order_relaxed) < s->config.max_jobs) {
        mailbox_push(s->inbox, &job->mail);
        return;
    }
    for (uint32_t i = 0; i < job->n; i++) {
        job->units[i].result = TIER_BUSY;
        job->units[i].cause = UNIT_FINE;
    }
    job->began_us = 0;
    send_home(s, job);
}

/* --- the thread ------------------------------------------------------------------------------- */

static void close_all(struct tier_store *s) {
    s->is_closing = true;
    for (uint32_t i = 0; i < s->n_nodes; i++)
        for (int op = 0; op < 2; op++)
            store_link_lost(&s->nodes[i]->links[op], "the store is closed");
    loop_stop(s->loop);
}

static void on_mail(struct mail *mail, void *arg) {
    struct tier_store *s = arg;

    if (mail == &s->wake) {
        ask(s);
    } else if (mail == &s->stop) {
        close_all(s);
    } else {
        begin_job(s, CONTAINER_OF(mail, struct tier_job, mail));
    }
}

static void *run(void *arg) {
    struct tier_store *s = arg;

    loop_run(s->loop);
    return NULL;
}

static enum status start(struct tier_store *s, struct error *err) {
    int code = thread_start(&s->thread, run, s);

    if (code != 0)
        return error_set(err, ST_IO, "cannot start the store's thread: %s", strerror(code));
    s->is_running = true;
    return ST_OK;
}

static void store_destroy(struct tier *t) {
    struct tier_store *s = t ? store_of(t) : NULL;

    if (!s) return;
    if (s->is_running) {
        mailbox_push(s->inbox, &s->stop);
        pthread_join(s->thread, NULL);
    }
    resolver_destroy(s->resolver);
    for (uint32_t i = 0; i < s->n_nodes; i++)
        store_node_destroy(s->nodes[i]);
    mailbox_close(s->inbox);
    loop_destroy(s->loop);
    tls_destroy(s->tls);
    unit_codec_destroy(s->codec);
    beliefs_destroy(s->beliefs);
    pthread_mutex_destroy(&s->lock);
    mem_free(s->works);
    mem_free(s);
}

/* --- what it reports -------------------------------------------------------------------------- */

static uint32_t count_away(struct tier_store *s, uint64_t n_nodes) {
    uint32_t n = 0;

    for (uint64_t i = 0; i < n_nodes; i++)
        n += atomic_load_explicit(&s->is_away[i], memory_order_relaxed);
    return n;
}

static void store_stats(struct tier *t, struct tier_stats *out) {
    struct tier_store *s = store_of(t);
    uint64_t now_us = clock_now_us();

    pthread_mutex_lock(&s->lock);
    *out = s->base;
    out->max_bytes = s->config.max_bytes;
    out->n_units = beliefs_n_present(s->beliefs);
    out->is_open = count_away(s, s->stats.n_nodes) < s->stats.n_nodes;
    out->can_write = out->is_open && now_us >= s->no_write_before_us;
    pthread_mutex_unlock(&s->lock);
}

void tier_store_stats(struct tier *t, struct tier_store_stats *out) {
    struct tier_store *s = store_of(t);

    pthread_mutex_lock(&s->lock);
    *out = s->stats;
    out->n_away = count_away(s, s->stats.n_nodes);
    pthread_mutex_unlock(&s->lock);
}

static const char *const error_names[] = {
    [STORE_LOADING] = "loading",
    [STORE_OOM] = "oom",
    [STORE_READONLY] = "readonly",
    [STORE_NOAUTH] = "noauth",
    [STORE_WRONGTYPE] = "wrongtype",
    [STORE_MOVED] = "moved",
    [STORE_ASK] = "ask",
    [STORE_CLUSTERDOWN] = "clusterdown",
    [STORE_OTHER] = "other",
};

const char *store_error_name(enum store_error error) {
    return (unsigned)error < ARRAY_LEN(error_names) ? error_names[error] : "unknown";
}

/* --- opening ---------------------------------------------------------------------------------- */

static const struct tier_ops store_ops = {
    .name = "store",
    .find = store_find,
    .guess = store_guess,
    .submit = store_submit,
    .stats = store_stats,
    .destroy = store_destroy,
};

/* A node of each URL. */
static enum status make_nodes(struct tier_store *s, struct error *err) {
    struct store_urls *urls = mem_zalloc(sizeof(*urls));
    enum status st = store_urls_read(urls, &s->config, err);

    if (st == ST_OK && urls->has_tls) st = store_tls_open(&s->tls, &s->config, err);
    for (uint32_t i = 0; st == ST_OK && i < urls->n; i++)
        (void)store_node_get(s, &urls->url[i]);
    cipher_erase(urls, sizeof(*urls));
    mem_free(urls);
    return st;
}

static void take_config(struct tier_store *s, const struct tier_store_config *config) {
    struct tier_store_config *c = &s->config;

    *c = *config;
    if (!c->ttl_s) c->ttl_s = DEFAULT_TTL_S;
    if (!c->connect_ms) c->connect_ms = DEFAULT_CONNECT_MS;
    if (!c->silence_ms) c->silence_ms = DEFAULT_SILENCE_MS;
    if (!c->max_jobs) c->max_jobs = DEFAULT_JOBS;
    if (!c->max_keys) c->max_keys = DEFAULT_KEYS;
}

static enum status open_parts(struct tier_store *s, struct error *err) {
    enum status st = unit_codec_create(&s->codec, &s->config.unit, err);
    uint64_t seed[2];

    if (st == ST_OK) st = loop_create(&s->loop, err);
    if (st == ST_OK) st = mailbox_open(&s->inbox, s->loop, on_mail, s, err);
    if (st == ST_OK) st = resolver_create(&s->resolver, s->loop, err);
    if (st != ST_OK) return st;
    s->unit_bytes = unit_bytes(s->codec);
    hash_random(seed, sizeof(seed));
    rng_seed(&s->rng, seed[0]);
    s->works = mem_calloc(s->config.max_jobs, sizeof(*s->works));
    s->beliefs = beliefs_create(s->config.max_keys, seed[1]);
    if (!s->beliefs)
        return error_set(err, ST_NOMEM, "no memory for %u keys of the store", s->config.max_keys);
    st = make_nodes(s, err);
    if (st == ST_OK) store_nodes_shard(s);
    return st;
}

enum status tier_store_open(struct tier **out, const struct tier_store_config *config,
                            struct error *err) {
    struct tier_store *s;
    enum status st;

    if (!config->is_plain && !config->unit.fleet_keys) {
        return error_set(err, ST_INVALID,
                         "KV in a shared store is the prompt: give the fleet's key, with which it "
                         "is encrypted, or say that it may be plain");
    }
    s = mem_zalloc(sizeof(*s));
    s->tier.ops = &store_ops;
    take_config(s, config);
    pthread_mutex_init(&s->lock, NULL);
    list_init(&s->free_asks);
    for (uint32_t i = 0; i < STORE_ASKS_MAX; i++)
        list_push_back(&s->free_asks, &s->asks[i].link);
    st = open_parts(s, err);
    if (st == ST_OK) st = start(s, err);
    if (st != ST_OK) {
        store_destroy(&s->tier);
        return st;
    }
    *out = &s->tier;
    return ST_OK;
}
