/* router/poison/poison.c - a small ring of hashes and when they were entered. */
#include "router/poison/poison.h"

#include <pthread.h>

#include "common/base/hash.h"
#include "common/base/mem.h"

struct poison {
    pthread_mutex_t lock;
    _Atomic uint32_t n; /* entries; old ones are dropped at the next query */
    uint32_t first;
    _Atomic uint64_t memory_us;
    uint64_t seed; /* random, so that no client can craft a collision */
    struct entry {
        uint64_t client, body, since_us;
    } ring[POISON_MAX];
};

struct poison *poison_create(uint64_t memory_us) {
    struct poison *p = mem_zalloc(sizeof(*p));

    pthread_mutex_init(&p->lock, NULL);
    hash_random(&p->seed, sizeof(p->seed));
    p->memory_us = memory_us;
    return p;
}

void poison_set_memory(struct poison *p, uint64_t memory_us) {
    p->memory_us = memory_us;
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
    while (p->n > 0 && now_us >= at(p, 0)->since_us + p->memory_us)
        drop_first(p);
}

static struct entry entry_of(const struct poison *p, struct str client, struct str body,
                             uint64_t now_us) {
    return (struct entry){.client = hash_64(client.ptr, client.len, p->seed),
                          .body = hash_64(body.ptr, body.len, p->seed),
                          .since_us = now_us};
}

void poison_add(struct poison *p, struct str client, struct str body, uint64_t now_us) {
    struct entry e;

    if (!p || !p->memory_us) return;
    e = entry_of(p, client, body, now_us);
    pthread_mutex_lock(&p->lock);
    drop_old(p, now_us);
    if (p->n == POISON_MAX) drop_first(p);
    *at(p, p->n) = e;
    p->n++;
    pthread_mutex_unlock(&p->lock);
}

enum poison_verdict poison_judge(struct poison *p, struct str client, struct str body,
                                 uint64_t now_us) {
    enum poison_verdict verdict = POISON_UNKNOWN;
    struct entry e;

    if (poison_is_empty(p)) return verdict;
    e = entry_of(p, client, body, now_us);
    pthread_mutex_lock(&p->lock);
    drop_old(p, now_us);
    for (uint32_t i = 0; i < p->n && verdict != POISON_SUSPECT; i++) {
        if (at(p, i)->body != e.body) continue;
        verdict = at(p, i)->client == e.client ? POISON_SUSPECT : POISON_SEEN_ELSEWHERE;
    }
    pthread_mutex_unlock(&p->lock);
    return verdict;
}

void poison_forgive(struct poison *p, uint64_t since_us) {
    if (poison_is_empty(p)) return;
    pthread_mutex_lock(&p->lock);
    while (p->n > 0 && at(p, p->n - 1)->since_us >= since_us)
        p->n--;
    pthread_mutex_unlock(&p->lock);
}

bool poison_is_empty(const struct poison *p) {
    return !p || p->n == 0;
}
