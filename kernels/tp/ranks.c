/* kernels/tp/ranks.c - see ranks.h: one order at a time, under one lock. */
#include "kernels/tp/ranks.h"

#include <pthread.h>
#include <string.h>

#include "common/base/mem.h"

struct rank {
    struct tp_ranks *all;
    uint32_t index;
    pthread_t thread;
    bool is_started;
    enum status status; /* of the last order */
    struct error err;
};

struct tp_ranks {
    struct tp_group *group;
    uint32_t size;
    pthread_mutex_t lock; /* of all below */
    pthread_cond_t ordered, answered;
    uint64_t n_orders;
    tp_rank_fn *fn; /* NULL: the threads end */
    void *arg;
    uint32_t n_called; /* ranks [0, n_called) are */
    bool may_meet;
    uint32_t n_busy;
    struct rank rank[TP_MAX_RANKS];
};

static void carry_out(struct rank *self, tp_rank_fn *fn, void *arg, bool may_meet) {
    self->err = (struct error){0};
    self->status = fn(self->index, arg, &self->err);
    if (self->status != ST_OK && may_meet) tp_group_stop(self->all->group);
}

static void *run_rank(void *arg) {
    struct rank *self = arg;
    struct tp_ranks *r = self->all;

    pthread_mutex_lock(&r->lock);
    for (uint64_t n_heard = 0;;) {
        while (r->n_orders == n_heard)
            pthread_cond_wait(&r->ordered, &r->lock);
        n_heard = r->n_orders; /* orders that were not for this rank may have gone by */
        if (!r->fn) break;
        if (self->index >= r->n_called) continue;
        tp_rank_fn *fn = r->fn;
        void *call_arg = r->arg;
        bool may_meet = r->may_meet;

        pthread_mutex_unlock(&r->lock);
        carry_out(self, fn, call_arg, may_meet);
        pthread_mutex_lock(&r->lock);
        if (--r->n_busy == 0) pthread_cond_signal(&r->answered);
    }
    pthread_mutex_unlock(&r->lock);
    return NULL;
}

static void order(struct tp_ranks *r, tp_rank_fn *fn, void *arg, uint32_t n_called, bool may_meet) {
    pthread_mutex_lock(&r->lock);
    r->fn = fn;
    r->arg = arg;
    r->n_called = r->n_busy = n_called;
    r->may_meet = may_meet;
    r->n_orders++;
    pthread_cond_broadcast(&r->ordered);
    while (r->n_busy > 0)
        pthread_cond_wait(&r->answered, &r->lock);
    pthread_mutex_unlock(&r->lock);
}

/* One that is late, or was left alone, is so because of another. */
static int guilt(enum status st) {
    return st == ST_OK ? 0 : st == ST_CLOSED ? 1 : st == ST_AGAIN || st == ST_TIMEOUT ? 2 : 3;
}

static enum status blame(const struct tp_ranks *r, uint32_t n_called, struct error *err) {
    const struct rank *who = &r->rank[0];

    for (uint32_t i = 1; i < n_called; i++) {
        if (guilt(r->rank[i].status) > guilt(who->status)) who = &r->rank[i];
    }
    if (who->status == ST_OK) return ST_OK;
    if (err) {
        *err = who->err;
        err->status = who->status;
        error_prefix(err, "rank %u of %u", who->index, r->size);
    }
    return who->status;
}

static enum status call(struct tp_ranks *r, tp_rank_fn *fn, void *arg, uint32_t n_called,
                        bool may_meet, struct error *err) {
    order(r, fn, arg, n_called, may_meet);
    return blame(r, n_called, err);
}

enum status tp_ranks_call(struct tp_ranks *r, tp_rank_fn *fn, void *arg, struct error *err) {
    return call(r, fn, arg, r->size, true, err);
}

enum status tp_ranks_call_apart(struct tp_ranks *r, tp_rank_fn *fn, void *arg, struct error *err) {
    return call(r, fn, arg, r->size, false, err);
}

enum status tp_ranks_call_first(struct tp_ranks *r, tp_rank_fn *fn, void *arg, struct error *err) {
    return call(r, fn, arg, 1, false, err);
}

struct tp_group *tp_ranks_group(struct tp_ranks *r) {
    return r->group;
}

enum status tp_ranks_create(struct tp_ranks **out, uint32_t size, struct error *err) {
    struct tp_ranks *r = mem_zalloc(sizeof(*r));

    r->group = tp_group_create(size);
    r->size = size;
    pthread_mutex_init(&r->lock, NULL);
    pthread_cond_init(&r->ordered, NULL);
    pthread_cond_init(&r->answered, NULL);
    for (uint32_t i = 0; i < size; i++) {
        struct rank *rank = &r->rank[i];
        int code;

        *rank = (struct rank){.all = r, .index = i};
        code = pthread_create(&rank->thread, NULL, run_rank, rank);
        if (code != 0) {
            tp_ranks_destroy(r);
            return error_set(err, ST_IO, "cannot start the thread of rank %u: %s", i,
                             strerror(code));
        }
        rank->is_started = true;
    }
    *out = r;
    return ST_OK;
}

void tp_ranks_destroy(struct tp_ranks *r) {
    if (!r) return;
    order(r, NULL, NULL, 0, false);
    for (uint32_t i = 0; i < r->size; i++) {
        if (r->rank[i].is_started) pthread_join(r->rank[i].thread, NULL);
    }
    pthread_cond_destroy(&r->answered);
    pthread_cond_destroy(&r->ordered);
    pthread_mutex_destroy(&r->lock);
    tp_group_destroy(r->group);
    mem_free(r);
}
