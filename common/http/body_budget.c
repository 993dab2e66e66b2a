/* common/http/body_budget.c - see body_budget.h. Owners are in a map from their number; one that
 * neither holds nor wants anything is forgotten. */
#include "common/http/body_budget.h"

#include <assert.h>
#include <pthread.h>
#include <stdatomic.h>

#include "common/base/hash.h"
#include "common/base/list.h"
#include "common/base/map.h"
#include "common/base/mem.h"

#define SMALL_PART   4            /* one in so many bytes is for short requests */
#define OWNER_PART   2            /* of all, which one owner gets of the large part */
#define WAITER_BYTES (256u << 10) /* what one that waits has received at most */
#define WAITERS_PART 8            /* share of the total, in addition, for waiting bodies */

struct owner {
    uint64_t bytes;        /* held */
    uint64_t wanted_bytes; /* by claims that wait for its share */
};

struct body_pool {
    struct list link;
    _Atomic uint64_t most_bytes;
    _Atomic uint64_t used_bytes; /* written by its loop alone */
};

struct body_budget {
    pthread_mutex_t lock; /* a leaf */
    uint64_t total_bytes, small_bytes, large_bytes, share_bytes;
    uint64_t used_bytes;   /* of the large part */
    struct map owners;     /* struct owner, by address or key */
    uint64_t wanted_bytes; /* by claims that wait because all is held */
    uint32_t n_pools, most_waiting;
    bool has_no_shares;
    _Atomic uint32_t n_waiting;
    struct list pools;
};

uint64_t body_budget_default(uint64_t process_bytes, uint64_t most) {
    return MIN(process_bytes / BODY_BUDGET_PART, most);
}

static void divide(struct body_budget *b, uint64_t total_bytes) {
    total_bytes = MAX(total_bytes, BODY_BUDGET_LEAST);
    b->total_bytes = total_bytes;
    b->small_bytes = total_bytes / SMALL_PART;
    b->large_bytes = total_bytes - b->small_bytes;
    b->share_bytes = b->has_no_shares ? b->large_bytes : total_bytes / OWNER_PART;
    b->most_waiting = (uint32_t)MIN(total_bytes / WAITERS_PART / WAITER_BYTES, UINT32_MAX);
    LIST_FOR_EACH(it, &b->pools) {
        atomic_store_explicit(&LIST_ENTRY(it, struct body_pool, link)->most_bytes,
                              b->small_bytes / b->n_pools, memory_order_relaxed);
    }
}

struct body_budget *body_budget_create(uint64_t total_bytes, uint32_t n_pools) {
    struct body_budget *b = mem_zalloc(sizeof(*b));
    uint64_t seed;

    assert(n_pools > 0);
    hash_random(&seed, sizeof(seed));
    pthread_mutex_init(&b->lock, NULL);
    b->n_pools = n_pools;
    map_init(&b->owners, seed);
    list_init(&b->pools);
    divide(b, total_bytes);
    return b;
}

void body_budget_set_total(struct body_budget *b, uint64_t total_bytes) {
    pthread_mutex_lock(&b->lock);
    divide(b, total_bytes);
    pthread_mutex_unlock(&b->lock);
}

void body_budget_without_shares(struct body_budget *b) {
    b->has_no_shares = true;
    b->share_bytes = b->large_bytes;
}

void body_budget_destroy(struct body_budget *b) {
    struct list *link;

    if (!b) return;
    assert(b->used_bytes == 0 && b->owners.n == 0 && b->n_waiting == 0);
    while ((link = list_pop_front(&b->pools)))
        mem_free(LIST_ENTRY(link, struct body_pool, link));
    map_fini(&b->owners);
    pthread_mutex_destroy(&b->lock);
    mem_free(b);
}

uint64_t body_budget_seed(const struct body_budget *b) {
    return b->owners.seed;
}

uint64_t body_budget_largest(struct body_budget *b) {
    uint64_t bytes;

    pthread_mutex_lock(&b->lock);
    bytes = b->large_bytes;
    pthread_mutex_unlock(&b->lock);
    return bytes;
}

/* --- long bodies ------------------------------------------------------------------------------ */

static uint64_t held_by(const struct body_budget *b, uint64_t id) {
    const struct owner *o = id ? map_find(&b->owners, id) : NULL;

    return o ? o->bytes : 0;
}

/* An owner's only body is let in whatever its size. */
static bool is_over_share(const struct body_budget *b, uint64_t id, const struct body_claim *claim,
                          uint64_t bytes) {
    uint64_t held = held_by(b, id);

    return held > claim->bytes && held + bytes > b->share_bytes;
}

/* Adds to, or takes from, what an owner holds and wants. */
static void shift(struct body_budget *b, uint64_t id, int64_t bytes, int64_t wanted) {
    struct owner *o = id ? map_find(&b->owners, id) : NULL;

    if (!id || (bytes == 0 && wanted == 0)) return;
    if (!o) {
        o = mem_zalloc(sizeof(*o));
        map_insert(&b->owners, id, o);
    }
    o->bytes += (uint64_t)bytes;
    o->wanted_bytes += (uint64_t)wanted;
    if (o->bytes == 0 && o->wanted_bytes == 0) mem_free(map_erase(&b->owners, id));
}

static void shift_both(struct body_budget *b, const struct body_claim *claim, int64_t bytes,
                       int64_t wanted) {
    shift(b, claim->address, bytes, wanted);
    shift(b, claim->key, bytes, wanted);
}

static void stop_waiting(struct body_budget *b, struct body_claim *claim) {
    if (!claim->wanted_bytes) return;
    b->n_waiting--;
    if (claim->waits_for_share)
        shift_both(b, claim, 0, -(int64_t)claim->wanted_bytes);
    else
        b->wanted_bytes -= claim->wanted_bytes;
    claim->wanted_bytes = 0;
}

enum body_verdict body_budget_take(struct body_budget *b, struct body_claim *claim,
                                   uint64_t bytes) {
    enum body_verdict verdict = BODY_GRANTED;

    pthread_mutex_lock(&b->lock);
    if (b->used_bytes > b->large_bytes || bytes > b->large_bytes - b->used_bytes) {
        verdict = BODY_FULL;
    } else if (is_over_share(b, claim->address, claim, bytes) ||
               is_over_share(b, claim->key, claim, bytes)) {
        verdict = BODY_SHARE;
    } else {
        b->used_bytes += bytes;
        claim->bytes += bytes;
        shift_both(b, claim, (int64_t)bytes, 0);
        stop_waiting(b, claim);
    }
    pthread_mutex_unlock(&b->lock);
    return verdict;
}

bool body_budget_wait(struct body_budget *b, struct body_claim *claim, uint64_t bytes,
                      enum body_verdict verdict) {
    bool may = false;

    assert(bytes > 0 && verdict != BODY_GRANTED);
    pthread_mutex_lock(&b->lock);
    if (claim->wanted_bytes || b->n_waiting < b->most_waiting) {
        stop_waiting(b, claim);
        claim->wanted_bytes = bytes;
        claim->waits_for_share = verdict == BODY_SHARE;
        b->n_waiting++;
        if (claim->waits_for_share)
            shift_both(b, claim, 0, (int64_t)bytes);
        else
            b->wanted_bytes += bytes;
        may = true;
    }
    pthread_mutex_unlock(&b->lock);
    return may;
}

void body_budget_release(struct body_budget *b, struct body_claim *claim) {
    if (!claim->bytes && !claim->wanted_bytes) return;
    pthread_mutex_lock(&b->lock);
    stop_waiting(b, claim);
    assert(b->used_bytes >= claim->bytes);
    b->used_bytes -= claim->bytes;
    shift_both(b, claim, -(int64_t)claim->bytes, 0);
    claim->bytes = 0;
    pthread_mutex_unlock(&b->lock);
}

void body_budget_set_key(struct body_budget *b, struct body_claim *claim, uint64_t key) {
    assert(claim->key == 0 && claim->wanted_bytes == 0);
    claim->key = key;
    if (!claim->bytes) return;
    pthread_mutex_lock(&b->lock);
    shift(b, key, (int64_t)claim->bytes, 0);
    pthread_mutex_unlock(&b->lock);
}

static uint64_t wanted_of(const struct body_budget *b, uint64_t id) {
    const struct owner *o = id ? map_find(&b->owners, id) : NULL;

    return o ? o->wanted_bytes : 0;
}

uint64_t body_budget_pressure(struct body_budget *b, const struct body_claim *claim) {
    uint64_t bytes;

    pthread_mutex_lock(&b->lock);
    bytes = b->wanted_bytes + MAX(wanted_of(b, claim->address), wanted_of(b, claim->key));
    pthread_mutex_unlock(&b->lock);
    return bytes;
}

bool body_budget_is_short(const struct body_budget *b) {
    return atomic_load_explicit(&b->n_waiting, memory_order_relaxed) > 0;
}

/* --- short ones ------------------------------------------------------------------------------- */

struct body_pool *body_pool_open(struct body_budget *b) {
    struct body_pool *pool = mem_zalloc(sizeof(*pool));

    pthread_mutex_lock(&b->lock);
    pool->most_bytes = b->small_bytes / b->n_pools;
    list_push_back(&b->pools, &pool->link);
    pthread_mutex_unlock(&b->lock);
    return pool;
}

bool body_pool_take(struct body_pool *pool, uint32_t bytes) {
    uint64_t used = atomic_load_explicit(&pool->used_bytes, memory_order_relaxed) + bytes;

    if (used > atomic_load_explicit(&pool->most_bytes, memory_order_relaxed)) return false;
    atomic_store_explicit(&pool->used_bytes, used, memory_order_relaxed);
    return true;
}

void body_pool_give(struct body_pool *pool, uint32_t bytes) {
    uint64_t used = atomic_load_explicit(&pool->used_bytes, memory_order_relaxed);

    assert(used >= bytes);
    atomic_store_explicit(&pool->used_bytes, used - bytes, memory_order_relaxed);
}

/* --- looking ---------------------------------------------------------------------------------- */

struct body_budget_stats body_budget_stats(struct body_budget *b) {
    struct body_budget_stats s = {0};

    pthread_mutex_lock(&b->lock);
    s.total_bytes = b->total_bytes;
    s.large_bytes = b->used_bytes;
    s.wanted_bytes = b->wanted_bytes;
    s.n_waiting = b->n_waiting;
    s.n_owners = (uint32_t)b->owners.n;
    LIST_FOR_EACH(it, &b->pools) {
        s.small_bytes += atomic_load_explicit(&LIST_ENTRY(it, struct body_pool, link)->used_bytes,
                                              memory_order_relaxed);
    }
    pthread_mutex_unlock(&b->lock);
    return s;
}

void body_budget_check(struct body_budget *b) {
    const struct map_slot *e;

    pthread_mutex_lock(&b->lock);
    assert(b->n_waiting > 0 || b->wanted_bytes == 0);
    for (size_t i = 0; (e = map_next(&b->owners, &i));) {
        const struct owner *o = e->value;

        assert(o->bytes + o->wanted_bytes > 0 && o->bytes <= b->used_bytes);
    }
    pthread_mutex_unlock(&b->lock);
}
