/* worker/engine/tiers/serving.c - blocks that other workers ask for.
 *
 *      want ──▶ found in host memory, or on the device and on its way there ──▶ pinned
 *                  all of them are quiet, or its deadline has come ──▶ returned to the server
 *      want, to be let go ──▶ the pins end ──▶ returned
 *
 * A block of the device is served as it is kept when it is evicted: its content moves to host
 * memory, in the device's order, and is read there once the move is done. So the server reads host
 * memory alone, and reads nothing that is being written.
 *
 * Pins are bounded for all workers that ask together; a run is cut to what is left, and its server
 * adds that there may be more (TIER_BUSY). */
#include <assert.h>

#include "common/base/mem.h"
#include "worker/engine/tiers/lower_internal.h"

#define PINNED_PART       16u /* of host memory, and at least one question, */
#define PINNED_LEAST_PART 4u  /* if that is not more than this part */

struct serving {
    struct lower *w;
    struct list waiting; /* wants whose last blocks are still being moved */
    uint32_t n_pinned, max_pinned;
};

struct serving *serving_create(struct lower *w) {
    struct serving *v = mem_zalloc(sizeof(*v));
    uint32_t n = w->config.n_host_blocks;

    v->w = w;
    list_init(&v->waiting);
    v->max_pinned = MAX(MIN(MAX(n / PINNED_PART, PEER_KEYS_MAX), n / PINNED_LEAST_PART), 1);
    return v;
}

void serving_destroy(struct serving *v) {
    assert(!v || list_is_empty(&v->waiting));
    mem_free(v);
}

static void give_back(struct peer_want *want) {
    mailbox_push(want->home, &want->mail);
}

/* Lets go of the run's blocks from number n on. */
static void cut(struct serving *v, struct peer_want *want, uint32_t n) {
    for (; want->n_found > n; v->n_pinned--)
        kv_host_drop(v->w->host, &want->found[--want->n_found].block, 1);
}

static void add(struct serving *v, struct peer_want *want, block_id id) {
    const struct lower *w = v->w;
    struct prefix_key key = prefix_cache_key(kv_host_cache(w->host), id);
    uint32_t at = want->n_found++;

    kv_host_acquire(w->host, id);
    v->n_pinned++;
    want->found[at].block = id;
    want->found[at].payload = lower_payload(w, id);
    lower_identify(w, &kv_manager_names(w->kv)->host[id], key.tokens, &want->found[at].id);
}

static void find(struct serving *v, struct peer_want *want) {
    want->why = TIER_ABSENT;
    while (want->n_found < want->asked.n) {
        block_id id;

        if (v->n_pinned == v->max_pinned) {
            want->why = TIER_BUSY;
            return;
        }
        id = kv_manager_bring_named(v->w->kv, &want->asked.keys[want->n_found]);
        if (id == BLOCK_NONE) return;
        add(v, want, id);
    }
}

static uint32_t count_quiet(const struct serving *v, const struct peer_want *want) {
    uint32_t n = 0;

    while (n < want->n_found && kv_host_is_quiet(v->w->host, want->found[n].block))
        n++;
    return n;
}

/* Returns it, if it need not wait. */
static bool answer(struct serving *v, struct peer_want *want) {
    uint32_t n = count_quiet(v, want);

    if (n < want->n_found) {
        if (v->w->now_us < want->deadline_us) return false;
        want->why = TIER_LATE;
        cut(v, want, n);
    }
    give_back(want);
    return true;
}

void serving_on_mail(struct serving *v, struct mail *mail) {
    struct peer_want *want = CONTAINER_OF(mail, struct peer_want, mail);

    if (want->op == PEER_WANT_LET_GO) {
        cut(v, want, 0);
        give_back(want);
        return;
    }
    want->n_found = 0;
    if (v->w->is_stopped) {
        want->why = TIER_ABSENT;
        give_back(want);
        return;
    }
    find(v, want);
    if (!answer(v, want)) list_push_back(&v->waiting, &want->link);
}

void serving_turn(struct serving *v) {
    struct list *it, *next;

    for (it = v->waiting.next; it != &v->waiting; it = next) {
        struct peer_want *want = LIST_ENTRY(it, struct peer_want, link);

        next = it->next;
        list_remove(&want->link);
        if (!answer(v, want)) list_insert_before(next, &want->link);
    }
}

uint64_t serving_due_us(const struct serving *v) {
    return list_is_empty(&v->waiting) ? UINT64_MAX : v->w->now_us + UNSETTLED_LOOK_US;
}

void serving_stop(struct serving *v) {
    struct list *link;

    while ((link = list_pop_front(&v->waiting)) != NULL) {
        struct peer_want *want = LIST_ENTRY(link, struct peer_want, link);

        cut(v, want, 0);
        want->why = TIER_ABSENT;
        give_back(want);
    }
}

void serving_check(const struct serving *v) {
    uint32_t n = 0;

    LIST_FOR_EACH(it, &v->waiting) {
        const struct peer_want *want = LIST_ENTRY(it, struct peer_want, link);

        assert(want->n_found > 0 && want->n_found <= want->asked.n);
        n += want->n_found;
    }
    assert(n <= v->n_pinned && v->n_pinned <= v->max_pinned);
}
