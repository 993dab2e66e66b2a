/* worker/grammar/grammar_thread.c - threads around a queue of compilations.
 *
 * A compilation is the loop's until it is queued, a thread's while it is compiled, and the loop's
 * again when its mail arrives; its list of jobs is the loop's throughout. The lock guards the queue
 * and the vocabulary's pointer. */
#include "worker/grammar/grammar_thread.h"

#include <pthread.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/mem.h"
#include "common/net/mailbox.h"
#include "worker/grammar/grammar_cache.h"

struct compilation {
    struct mail mail; /* in the queue, and on its way back */
    struct list link; /* with all under way */
    struct list jobs;
    struct grammar_spec spec;
    struct hash128 key;
    char *text; /* of the spec, with its pattern of white space behind */
    struct grammar_thread *thread;
    atomic_bool is_abandoned; /* no job waits for it any more */
    bool is_queued;           /* under the lock */
    struct grammar *grammar;
    enum status status;
    struct error err;
    uint64_t spent_us;
};

struct grammar_thread {
    struct vocabulary_source source;
    struct mailbox *done;
    pthread_t threads[GRAMMAR_THREADS];
    uint32_t n_threads; /* started */
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct list queue;
    struct vocabulary *vocabulary; /* NULL until it is built */
    bool is_building, is_stopping;
    /* the loop's */
    struct list under_way;
    uint32_t n_under_way;
    struct grammar_cache cache;
    struct grammar_thread_stats stats;
    atomic_size_t held_bytes; /* changed on each thread that uses a grammar */
    atomic_size_t held_max_bytes;
};

/* --- the threads ------------------------------------------------------------------------------ */

/* The first thread builds; all others wait for it. */
static void build_vocabulary(struct grammar_thread *t) {
    struct vocabulary *v;

    pthread_mutex_lock(&t->lock);
    if (t->is_building) {
        pthread_mutex_unlock(&t->lock);
        return;
    }
    t->is_building = true;
    pthread_mutex_unlock(&t->lock);
    v = vocabulary_create(&t->source);
    pthread_mutex_lock(&t->lock);
    t->vocabulary = v;
    pthread_cond_broadcast(&t->changed);
    pthread_mutex_unlock(&t->lock);
}

static struct compilation *wait_for_one(struct grammar_thread *t) {
    struct compilation *c;
    struct list *link = NULL;

    pthread_mutex_lock(&t->lock);
    while (!t->is_stopping && (!t->vocabulary || !(link = list_pop_front(&t->queue))))
        pthread_cond_wait(&t->changed, &t->lock);
    c = link ? CONTAINER_OF(mail_of(link), struct compilation, mail) : NULL;
    if (c) c->is_queued = false;
    pthread_mutex_unlock(&t->lock);
    return c;
}

static void *run(void *arg) {
    struct grammar_thread *t = arg;
    struct compilation *c;

    build_vocabulary(t);
    while ((c = wait_for_one(t)) != NULL) {
        uint64_t began_us = clock_now_us();

        c->status = grammar_compile(&c->grammar, &c->spec, t->vocabulary, &c->err);
        c->spent_us = clock_now_us() - began_us;
        mailbox_push(t->done, &c->mail);
    }
    return NULL;
}

/* --- back on the loop ------------------------------------------------------------------------- */

static void free_compilation(struct grammar_thread *t, struct compilation *c) {
    list_remove(&c->link);
    t->n_under_way--;
    grammar_unref(c->grammar);
    mem_free(c->text);
    mem_free(c);
}

/* To all that wait for it. A job may submit another, or cancel one that waits too. */
static void deliver(struct compilation *c) {
    struct list *link;

    while ((link = list_pop_front(&c->jobs)) != NULL) {
        struct grammar_job *job = LIST_ENTRY(link, struct grammar_job, link);

        job->status = c->status;
        job->err = c->err;
        job->grammar = c->grammar ? grammar_ref(c->grammar) : NULL;
        job->on_done(job);
    }
}

static void on_compiled(struct mail *mail, void *arg) {
    struct grammar_thread *t = arg;
    struct compilation *c = CONTAINER_OF(mail, struct compilation, mail);

    t->stats.n_compiled += c->status == ST_OK;
    t->stats.n_refused += c->status != ST_OK && c->status != ST_CLOSED;
    t->stats.compile_us += c->spent_us;
    if (c->status == ST_OK) grammar_count_in(c->grammar, &t->held_bytes, &t->held_max_bytes);
    if (c->status == ST_OK) grammar_cache_insert(&t->cache, c->key, c->grammar);
    deliver(c);
    free_compilation(t, c);
}

/* --- from the loop ---------------------------------------------------------------------------- */

static struct compilation *find_under_way(struct grammar_thread *t, struct hash128 key) {
    LIST_FOR_EACH(it, &t->under_way) {
        struct compilation *c = LIST_ENTRY(it, struct compilation, link);

        if (atomic_load(&c->is_abandoned)) continue;
        if (c->key.lo == key.lo && c->key.hi == key.hi) return c;
    }
    return NULL;
}

static struct compilation *begin(struct grammar_thread *t, const struct grammar_spec *spec,
                                 struct hash128 key) {
    struct compilation *c = mem_zalloc(sizeof(*c));

    list_init(&c->jobs);
    c->thread = t;
    c->spec = *spec;
    c->spec.is_abandoned = &c->is_abandoned;
    c->key = key;
    c->text = mem_alloc(spec->text.len + spec->spaces_pattern.len + 1);
    if (spec->text.len > 0) memcpy(c->text, spec->text.ptr, spec->text.len);
    if (spec->spaces_pattern.len > 0)
        memcpy(c->text + spec->text.len, spec->spaces_pattern.ptr, spec->spaces_pattern.len);
    c->spec.text.ptr = c->text;
    c->spec.spaces_pattern.ptr = c->text + spec->text.len;
    list_push_back(&t->under_way, &c->link);
    t->n_under_way++;
    pthread_mutex_lock(&t->lock);
    list_push_back(&t->queue, &c->mail.link);
    c->is_queued = true;
    pthread_cond_signal(&t->changed);
    pthread_mutex_unlock(&t->lock);
    return c;
}

void grammar_thread_submit(struct grammar_thread *t, struct grammar_job *job,
                           const struct grammar_spec *spec) {
    struct hash128 key = grammar_cache_key(spec);
    struct compilation *c = find_under_way(t, key);

    job->grammar = c ? NULL : grammar_cache_find(&t->cache, key);
    job->status = ST_OK;
    error_init(&job->err);
    t->stats.n_hits += c || job->grammar;
    if (!job->grammar && !c && t->n_under_way >= GRAMMAR_MAX_WAITING)
        job->status = error_set(&job->err, ST_BUSY, "%u grammars wait to be compiled: retry later",
                                t->n_under_way);
    if (!job->grammar && !c && atomic_load(&t->held_bytes) > atomic_load(&t->held_max_bytes))
        job->status = error_set(&job->err, ST_BUSY,
                                "the grammars of requests take more than %zu MiB: retry later",
                                atomic_load(&t->held_max_bytes) >> 20);
    if (job->grammar || job->status != ST_OK) {
        job->on_done(job);
        return;
    }
    if (!c) c = begin(t, spec, key);
    job->compilation = c;
    list_push_back(&c->jobs, &job->link);
}

/* It leaves the queue, or the thread that compiles it ends early. */
static void abandon(struct compilation *c) {
    struct grammar_thread *t = c->thread;
    bool was_queued;

    pthread_mutex_lock(&t->lock);
    was_queued = c->is_queued;
    if (was_queued) list_remove(&c->mail.link);
    c->is_queued = false;
    pthread_mutex_unlock(&t->lock);
    atomic_store(&c->is_abandoned, true);
    if (was_queued) free_compilation(t, c);
}

bool grammar_thread_cancel(struct grammar_job *job) {
    if (!list_is_linked(&job->link)) return false;
    list_remove(&job->link);
    if (list_is_empty(&job->compilation->jobs)) abandon(job->compilation);
    return true;
}

void grammar_thread_stats(const struct grammar_thread *t, struct grammar_thread_stats *out) {
    *out = t->stats;
    out->cached_bytes = grammar_cache_bytes(&t->cache);
    out->n_cached = t->cache.n;
    out->held_bytes = atomic_load(&t->held_bytes);
}

void grammar_thread_set_held_max(struct grammar_thread *t, size_t max_bytes) {
    atomic_store(&t->held_max_bytes, max_bytes);
}

/* --- start and stop --------------------------------------------------------------------------- */

enum status grammar_thread_start(struct grammar_thread **out, struct loop *loop,
                                 const struct vocabulary_source *source, struct error *err) {
    struct grammar_thread *t = mem_zalloc(sizeof(*t));
    enum status st;

    t->source = *source;
    atomic_init(&t->held_max_bytes, GRAMMAR_HELD_MAX_BYTES);
    list_init(&t->queue);
    list_init(&t->under_way);
    grammar_cache_init(&t->cache, GRAMMAR_CACHE_MAX_BYTES);
    pthread_mutex_init(&t->lock, NULL);
    pthread_cond_init(&t->changed, NULL);
    st = mailbox_open(&t->done, loop, on_compiled, t, err);
    while (st == ST_OK && t->n_threads < GRAMMAR_THREADS) {
        int code = pthread_create(&t->threads[t->n_threads], NULL, run, t);

        if (code != 0)
            st = error_set(err, ST_IO, "cannot start a grammar thread: %s", strerror(code));
        t->n_threads += code == 0;
    }
    if (st == ST_OK) {
        *out = t;
    } else {
        grammar_thread_stop(t);
    }
    return st;
}

void grammar_thread_stop(struct grammar_thread *t) {
    struct list compiled;

    if (!t) return;
    pthread_mutex_lock(&t->lock);
    t->is_stopping = true;
    pthread_cond_broadcast(&t->changed);
    pthread_mutex_unlock(&t->lock);
    for (uint32_t i = 0; i < t->n_threads; i++)
        pthread_join(t->threads[i], NULL);
    list_init(&compiled);
    if (t->done) mailbox_take(t->done, &compiled);
    LIST_FOR_EACH(it, &t->under_way) {
        LIST_ENTRY(it, struct compilation, link)->is_queued = false; /* here all are freed */
    }
    LIST_FOR_EACH(it, &t->under_way) {
        struct compilation *c = LIST_ENTRY(it, struct compilation, link);

        grammar_unref(c->grammar);
        c->grammar = NULL;
        c->status = error_set(&c->err, ST_UNAVAILABLE,
                              "the worker is shutting down: retry on another worker");
        deliver(c);
        free_compilation(t, c);
    }
    grammar_cache_fini(&t->cache);
    vocabulary_destroy(t->vocabulary);
    mailbox_close(t->done);
    pthread_cond_destroy(&t->changed);
    pthread_mutex_destroy(&t->lock);
    mem_free(t);
}
