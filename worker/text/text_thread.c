/* worker/text/text_thread.c - threads around one queue.
 *
 * The lock guards the queue and the figures, and is held for a choice, never while encoding. A job
 * that was taken off the queue belongs to its thread until it is in the mailbox. */
#include "worker/text/text_thread.h"

#include <pthread.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/mem.h"

/* 4 KiB, the least that travels, is 16 times half of the largest body. */
#define MAX_DEPTH 16
#define ON_LOOP   UINT32_MAX /* nothing goes between there */

/* A text that is interrupted by others keeps one part in OTHERS_SHARE + 1 of its thread's work, in
 * bytes. */
#define OTHERS_SHARE 3

struct text_thread {
    const struct tokenizer *tokenizer;
    struct mailbox *done;
    uint64_t max_bytes_per_token; /* 0: any number */
    uint64_t max_queue_bytes;
    pthread_t threads[TEXT_THREAD_MAX];
    uint32_t n_threads; /* started */
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct text_queue queue;
    struct text_thread_stats stats;
    bool first_is_taken; /* by the thread that takes huge texts */
    atomic_bool is_stopping;
};

/* --- encoding ----------------------------------------------------------------------------------*/
/* A text that is being encoded, on a thread's stack. */
struct running {
    struct text_thread *t;
    struct text_job *job;
    uint32_t depth;
    size_t n_left;         /* bytes, as far as is known */
    uint64_t own, between; /* work since it began: its own, and that of others in its middle */
};

static void encode(struct text_thread *t, struct text_job *job, uint32_t depth);

/* Takes a text that is to go between, if there is one. */
static struct text_job *take_between(struct running *r) {
    struct text_thread *t = r->t;
    struct text_entry *e = NULL;

    pthread_mutex_lock(&t->lock);
    if (r->own * OTHERS_SHARE > r->between && r->depth + 1 < MAX_DEPTH) {
        e = text_queue_pop_shortest(&t->queue, r->n_left / 2);
        t->stats.n_between += e != NULL;
    }
    pthread_mutex_unlock(&t->lock);
    return e ? CONTAINER_OF(e, struct text_job, entry) : NULL;
}

static bool on_slice(void *arg, size_t n_bytes) {
    struct running *r = arg;
    struct text_job *other;

    r->own += TOKENIZE_SLICE;
    r->n_left -= MIN(n_bytes, r->n_left);
    pthread_mutex_lock(&r->t->lock);
    r->t->stats.n_slices++;
    pthread_mutex_unlock(&r->t->lock);
    while (!atomic_load(&r->t->is_stopping) && (other = take_between(r)) != NULL) {
        r->between += other->text.len;
        encode(r->t, other, r->depth + 1);
        mailbox_push(r->t->done, &other->mail);
    }
    return !atomic_load(&r->t->is_stopping) && !atomic_load(&r->job->is_cancelled);
}

static void refuse_tokens(struct text_job *job) {
    job->has_too_many = true;
    job->status = error_set(&job->err, ST_INVALID, "the text has more than %u tokens: shorten it",
                            job->max_tokens);
}

/* Can it never fit? Tokens that a post-processor adds only make it longer. */
static bool is_over_length(const struct text_thread *t, const struct text_job *job) {
    return job->max_tokens && t->max_bytes_per_token &&
           job->text.len > (uint64_t)job->max_tokens * t->max_bytes_per_token;
}

static void refuse_length(struct text_thread *t, struct text_job *job) {
    refuse_tokens(job);
    pthread_mutex_lock(&t->lock);
    t->stats.n_over_length++;
    pthread_mutex_unlock(&t->lock);
}

static void begin(struct text_job *job) {
    token_list_fini(&job->tokens);
    job->has_too_many = false;
    job->status =
        error_set(&job->err, ST_CLOSED, "the worker is shutting down: retry on another worker");
}

static bool is_ended(const struct text_thread *t, const struct text_job *job) {
    return atomic_load(&t->is_stopping) || atomic_load(&job->is_cancelled);
}

static void encode_one(struct text_thread *t, struct text_job *job, uint32_t depth) {
    struct running r = {.t = t, .job = job, .depth = depth, .n_left = job->text.len};
    struct tokenize_pace pace = {.max_tokens = job->max_tokens ? job->max_tokens : SIZE_MAX,
                                 .on_slice = depth == ON_LOOP ? NULL : on_slice,
                                 .arg = &r};

    if (is_over_length(t, job)) {
        refuse_length(t, job);
        return;
    }
    memset(&job->err, 0, sizeof(job->err));
    job->status =
        tokenizer_encode_paced(t->tokenizer, job->text, job->flags, &pace, &job->tokens, &job->err);
    if (!pace.has_too_many) return;
    refuse_tokens(job);
    pthread_mutex_lock(&t->lock);
    t->stats.n_over_tokens++;
    pthread_mutex_unlock(&t->lock);
}

static void encode(struct text_thread *t, struct text_job *job, uint32_t depth) {
    if (job->submitted_us) job->waited_us = clock_now_us() - job->submitted_us;
    if (is_ended(t, job)) return;
    encode_one(t, job, depth);
    while (job->next && !is_ended(t, job) && job->next(job)) {
        begin(job);
        encode_one(t, job, depth);
    }
}

/* --- the threads -------------------------------------------------------------------------------*/
static struct text_job *wait_for_job(struct text_thread *t, size_t max_bytes) {
    struct text_entry *e = NULL;

    pthread_mutex_lock(&t->lock);
    while (!atomic_load(&t->is_stopping) && !(e = text_queue_pop(&t->queue, max_bytes)))
        pthread_cond_wait(&t->changed, &t->lock);
    pthread_mutex_unlock(&t->lock);
    return e ? CONTAINER_OF(e, struct text_job, entry) : NULL;
}

static size_t most_bytes(struct text_thread *t) {
    size_t most;

    pthread_mutex_lock(&t->lock);
    most = t->first_is_taken ? TEXT_THREAD_HUGE : SIZE_MAX;
    t->first_is_taken = true;
    pthread_mutex_unlock(&t->lock);
    return most;
}

static void *run(void *arg) {
    struct text_thread *t = arg;
    size_t max_bytes = most_bytes(t);
    struct text_job *job;

    while ((job = wait_for_job(t, max_bytes)) != NULL) {
        encode(t, job, 0);
        mailbox_push(t->done, &job->mail);
    }
    return NULL;
}

/* On the loop, also for what text_thread_stop found. */
static void on_done(struct mail *mail, void *arg) {
    struct text_job *job = CONTAINER_OF(mail, struct text_job, mail);

    (void)arg;
    job->on_done(job);
}

enum status text_thread_start(struct text_thread **out, struct loop *loop,
                              const struct tokenizer *tokenizer,
                              const struct text_thread_config *config, struct error *err) {
    struct text_thread *t = mem_zalloc(sizeof(*t));
    uint32_t n_threads = MIN(MAX(config->n_threads, 1u), (uint32_t)TEXT_THREAD_MAX);
    enum status st;

    *out = NULL;
    t->tokenizer = tokenizer;
    t->max_bytes_per_token = tokenizer_max_bytes_per_token(tokenizer);
    t->max_queue_bytes = config->max_queue_bytes;
    text_queue_init(&t->queue);
    pthread_mutex_init(&t->lock, NULL);
    pthread_cond_init(&t->changed, NULL);
    st = mailbox_open(&t->done, loop, on_done, t, err);
    if (st != ST_OK) goto fail;
    while (t->n_threads < n_threads) {
        int code = pthread_create(&t->threads[t->n_threads], NULL, run, t);

        if (code != 0) {
            st = error_set(err, ST_IO, "cannot start a text thread: %s", strerror(code));
            goto fail;
        }
        t->n_threads++;
    }
    *out = t;
    return ST_OK;
fail:
    text_thread_stop(t);
    return st;
}

void text_thread_stop(struct text_thread *t) {
    struct list left, *link;
    struct text_entry *e;

    if (!t) return;
    pthread_mutex_lock(&t->lock);
    atomic_store(&t->is_stopping, true);
    pthread_cond_broadcast(&t->changed);
    pthread_mutex_unlock(&t->lock);
    for (uint32_t i = 0; i < t->n_threads; i++)
        pthread_join(t->threads[i], NULL);
    list_init(&left);
    if (t->done) mailbox_take(t->done, &left);
    while ((e = text_queue_pop_shortest(&t->queue, SIZE_MAX)) != NULL)
        list_push_back(&left, &CONTAINER_OF(e, struct text_job, entry)->mail.link);
    while ((link = list_pop_front(&left)) != NULL)
        on_done(mail_of(link), t);
    text_queue_fini(&t->queue);
    mailbox_close(t->done);
    pthread_cond_destroy(&t->changed);
    pthread_mutex_destroy(&t->lock);
    mem_free(t);
}

/* --- the loop's side ---------------------------------------------------------------------------*/
static bool push(struct text_thread *t, struct text_job *job) {
    bool has_room;

    pthread_mutex_lock(&t->lock);
    has_room = t->queue.n_bytes == 0 || t->queue.n_bytes + job->text.len <= t->max_queue_bytes;
    if (has_room) text_queue_push(&t->queue, &job->entry, job->text.len);
    t->stats.n_over_queue += !has_room;
    pthread_cond_broadcast(&t->changed);
    pthread_mutex_unlock(&t->lock);
    return has_room;
}

void text_thread_submit(struct text_thread *t, struct text_job *job) {
    memset(&job->tokens, 0, sizeof(job->tokens));
    memset(&job->mail, 0, sizeof(job->mail));
    job->waited_us = job->submitted_us = 0;
    begin(job);
    if (is_over_length(t, job) && !job->next) {
        refuse_length(t, job);
    } else if (job->text.len > TEXT_THREAD_INLINE_BYTES || job->next) {
        job->submitted_us = clock_now_us();
        if (push(t, job)) return;
        job->status = error_set(&job->err, ST_UNAVAILABLE,
                                "the tokenizer's queue of %llu bytes has no room for %zu bytes "
                                "of text: retry later, or raise --tokenizer-queue-bytes",
                                (unsigned long long)t->max_queue_bytes, job->text.len);
    } else {
        encode(t, job, ON_LOOP);
    }
    job->on_done(job);
}

void text_thread_stats(struct text_thread *t, struct text_thread_stats *out) {
    pthread_mutex_lock(&t->lock);
    *out = t->stats;
    out->n_waiting = t->queue.by_length.n;
    out->waiting_bytes = t->queue.n_bytes;
    pthread_mutex_unlock(&t->lock);
}
