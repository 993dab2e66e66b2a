/* worker/engine/mask_threads.c - parts are taken under a lock: each has tens of microseconds of
 * work, and the lock is held for a few instructions. */
#include "worker/engine/mask_threads.h"

#include <pthread.h>
#include <sched.h>
#include <string.h>

#include "common/base/mem.h"

struct mask_threads {
    pthread_t *thread; /* (n_started) */
    uint32_t n_started;
    pthread_mutex_t lock; /* of all below */
    pthread_cond_t has_parts, is_done;
    void (*run)(void *arg, uint32_t part);
    void *arg;
    uint32_t next, n_parts; /* next: the first that is not begun */
    uint32_t n_running;     /* begun, not ended */
    bool is_stopping;
};

/* Under the lock, which it gives up for the part. False when all are begun. */
static bool run_one(struct mask_threads *t) {
    uint32_t part = t->next;

    if (part == t->n_parts) return false;
    t->next++;
    t->n_running++;
    pthread_mutex_unlock(&t->lock);
    t->run(t->arg, part); /* constant while parts run */
    pthread_mutex_lock(&t->lock);
    t->n_running--;
    if (t->next == t->n_parts && t->n_running == 0) pthread_cond_signal(&t->is_done);
    return true;
}

static void *work(void *arg) {
    struct mask_threads *t = arg;

    pthread_mutex_lock(&t->lock);
    while (!t->is_stopping)
        if (!run_one(t)) pthread_cond_wait(&t->has_parts, &t->lock);
    pthread_mutex_unlock(&t->lock);
    return NULL;
}

void mask_threads_run(struct mask_threads *t, uint32_t n_parts,
                      void (*run)(void *arg, uint32_t part), void *arg) {
    if (n_parts == 0) return;
    pthread_mutex_lock(&t->lock);
    t->run = run;
    t->arg = arg;
    t->next = 0;
    t->n_parts = n_parts;
    for (uint32_t i = 0; i < MIN(n_parts - 1, t->n_started); i++)
        pthread_cond_signal(&t->has_parts);
    while (run_one(t)) {
    }
    while (t->n_running > 0)
        pthread_cond_wait(&t->is_done, &t->lock);
    pthread_mutex_unlock(&t->lock);
}

static uint32_t choose(void) {
    cpu_set_t set;
    uint32_t n = 1;

    if (sched_getaffinity(0, sizeof(set), &set) == 0) n = (uint32_t)CPU_COUNT(&set);
    return MIN(n, MASK_THREADS_MAX);
}

enum status mask_threads_start(struct mask_threads **out, uint32_t n, struct error *err) {
    struct mask_threads *t = mem_zalloc(sizeof(*t));
    int code = 0;

    if (n == 0) n = choose();
    pthread_mutex_init(&t->lock, NULL);
    pthread_cond_init(&t->has_parts, NULL);
    pthread_cond_init(&t->is_done, NULL);
    t->thread = mem_calloc(n, sizeof(*t->thread));
    while (t->n_started < n - 1 && code == 0) {
        code = pthread_create(&t->thread[t->n_started], NULL, work, t);
        t->n_started += code == 0;
    }
    if (code == 0) {
        *out = t;
        return ST_OK;
    }
    mask_threads_stop(t);
    return error_set(err, ST_IO, "cannot start a thread for masks: %s", strerror(code));
}

void mask_threads_stop(struct mask_threads *t) {
    if (!t) return;
    pthread_mutex_lock(&t->lock);
    t->is_stopping = true;
    pthread_cond_broadcast(&t->has_parts);
    pthread_mutex_unlock(&t->lock);
    for (uint32_t i = 0; i < t->n_started; i++)
        pthread_join(t->thread[i], NULL);
    pthread_cond_destroy(&t->has_parts);
    pthread_cond_destroy(&t->is_done);
    pthread_mutex_destroy(&t->lock);
    mem_free(t->thread);
    mem_free(t);
}
