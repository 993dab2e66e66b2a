/* kernels/tp/group.c - see group.h: a barrier, and copies between two barriers.
 *
 * A lock and a condition: ranks wait for products, not for each other's nanoseconds, and a rank
 * that spins takes a core from the one it waits for. */
#include "kernels/tp/group.h"

#include <assert.h>
#include <pthread.h>
#include <string.h>

#include "common/base/mem.h"

struct local_group {
    struct tp_group table; /* first */
    pthread_mutex_t lock;
    pthread_cond_t changed;
    uint64_t n_meetings; /* that have ended */
    uint32_t n_arrived;  /* for the next one */
    bool is_stopped;
    const void *data[TP_MAX_RANKS]; /* what each brings to the copy under way */
};

static void arrive(struct local_group *g) {
    if (++g->n_arrived < g->table.size) return;
    g->n_arrived = 0;
    g->n_meetings++;
    pthread_cond_broadcast(&g->changed);
}

static enum status group_meet(struct tp_group *table, uint32_t rank) {
    struct local_group *g = (struct local_group *)table;
    uint64_t mine;
    enum status st = ST_CLOSED;

    (void)rank;
    pthread_mutex_lock(&g->lock);
    mine = g->n_meetings;
    if (!g->is_stopped) arrive(g);
    while (g->n_meetings == mine && !g->is_stopped)
        pthread_cond_wait(&g->changed, &g->lock);
    if (g->n_meetings != mine) st = ST_OK;
    pthread_mutex_unlock(&g->lock);
    return st;
}

/* The end of a copy. Deaf to stop: all have met before, so all will come, and no rank may leave
 * while another still reads its memory. */
static void part(struct local_group *g) {
    uint64_t mine;

    pthread_mutex_lock(&g->lock);
    mine = g->n_meetings;
    arrive(g);
    while (g->n_meetings == mine)
        pthread_cond_wait(&g->changed, &g->lock);
    pthread_mutex_unlock(&g->lock);
}

static enum status group_share(struct tp_group *table, uint32_t rank, void *data,
                               uint64_t n_bytes) {
    struct local_group *g = (struct local_group *)table;
    enum status st;

    if (rank == 0) g->data[0] = data;
    if ((st = group_meet(table, rank)) != ST_OK) return st;
    if (rank != 0 && n_bytes) memcpy(data, g->data[0], n_bytes);
    part(g);
    return ST_OK;
}

static enum status group_gather(struct tp_group *table, uint32_t rank, const void *mine, void *all,
                                uint64_t n_bytes) {
    struct local_group *g = (struct local_group *)table;
    enum status st;

    g->data[rank] = mine;
    if ((st = group_meet(table, rank)) != ST_OK) return st;
    for (uint32_t r = 0; r < table->size && n_bytes; r++)
        memcpy((char *)all + r * n_bytes, g->data[r], n_bytes);
    part(g);
    return ST_OK;
}

struct tp_group *tp_group_create(uint32_t size) {
    struct local_group *g = mem_zalloc(sizeof(*g));

    assert(size >= 1 && size <= TP_MAX_RANKS);
    g->table = (struct tp_group){
        .size = size, .meet = group_meet, .share = group_share, .gather = group_gather};
    pthread_mutex_init(&g->lock, NULL);
    pthread_cond_init(&g->changed, NULL);
    return &g->table;
}

void tp_group_destroy(struct tp_group *table) {
    struct local_group *g = (struct local_group *)table;

    if (!g) return;
    pthread_cond_destroy(&g->changed);
    pthread_mutex_destroy(&g->lock);
    mem_free(g);
}

void tp_group_stop(struct tp_group *table) {
    struct local_group *g = (struct local_group *)table;

    pthread_mutex_lock(&g->lock);
    g->is_stopped = true;
    pthread_cond_broadcast(&g->changed);
    pthread_mutex_unlock(&g->lock);
}
