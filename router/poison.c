/* router/poison.c - a small ring of hashes and when they were entered. */
#include "router/poison.h"

#include <pthread.h>

#include "common/hash.h"
#include "common/mem.h"

struct poison {
    pthread_mutex_t lock;
    _Atomic uint32_t n; /* entries; old ones are dropped when the ring is asked */
    uint32_t first;
    uint64_t seed; /* so that nobody can make another request look like a given one */
    struct entry {
        uint64_t hash, since_us;
    } ring[POISON_MAX];
};

struct poison *poison_create(void) {
    struct poison *p = mem_zalloc(sizeof(*p));

    pthread_mutex_init(&p->lock, NULL);
    hash_random(&p->seed, sizeof(p->seed));
    return p;
}

void poison_destroy(struct poison *p) {
    if (!p) return;
    pthread_mutex_destroy(&p->lock);
    mem_free(p);
}

static struct entry *at(struct poison *p, uint32_t i) {
    return &p->ring[(p->first + i) % POISON_MAX];
}

static void drop_first(struct poison *p) {
    p->first = (p->first + 1) % POISON_MAX;
    p->n--;
}

static void drop_old(struct poison *p, uint64_t now_us) {
    while (p->n > 0 && now_us >= at(p, 0)->since_us + POISON_MEMORY_US)
        drop_first(p);
}

void poison_add(struct poison *p, struct str body, uint64_t now_us) {
    if (!p) return;
    pthread_mutex_lock(&p->lock);
    drop_old(p, now_us);
    if (p->n == POISON_MAX) drop_first(p);
    *at(p, p->n) = (struct entry){hash_64(body.ptr, body.len, p->seed), now_us};
    p->n++;
    pthread_mutex_unlock(&p->lock);
}

bool poison_is_suspect(struct poison *p, struct str body, uint64_t now_us) {
    bool is_found = false;
    uint64_t hash;

    if (!p || p->n == 0) return false;
    hash = hash_64(body.ptr, body.len, p->seed);
    pthread_mutex_lock(&p->lock);
    drop_old(p, now_us);
    for (uint32_t i = 0; i < p->n && !is_found; i++)
        is_found = at(p, i)->hash == hash;
    pthread_mutex_unlock(&p->lock);
    return is_found;
}
