/* router/queue/hold_by_price.c - tries the requests that wait, each against its own worker. */
#include "common/base/heap.h"
#include "common/base/mem.h"
#include "router/queue/hold_internal.h"

/* A price that rose by less keeps its place for this try. */
#define PRICE_MARGIN   1.01
#define PRICE_MARGIN_S 0.001
/* Of those meant for a worker that have to stay when it has become ready, in one walk. */
#define LANE_TRIES 2
#define LANE_LOOKS 16

/* --- lanes ------------------------------------------------------------------------------------ */

static struct hold_request *in_lane(struct tree_link *link) {
    return link ? HEAP_ENTRY(link, struct hold_request, in_lane) : NULL;
}

static bool is_before(const struct tree_link *a, const struct tree_link *b) {
    const struct hold_request *x = HEAP_ENTRY_CONST(a, struct hold_request, in_lane);
    const struct hold_request *y = HEAP_ENTRY_CONST(b, struct hold_request, in_lane);

    if (x->due.band != y->due.band) return x->due.band < y->due.band;
    return x->order != y->order ? x->order < y->order : x->place.seq < y->place.seq;
}

static struct tree_heap *lane_of(struct hold *h, const struct hold_request *q) {
    return q->is_owing ? &h->lanes[q->lane].owing : &h->lanes[q->lane].free;
}

static bool is_empty(const struct lane *l) {
    return !l->free.root && !l->owing.root;
}

void hold_leave_lane(struct hold *h, struct hold_request *q) {
    if (tree_heap_is_linked(&q->in_lane)) tree_heap_remove(lane_of(h, q), &q->in_lane, is_before);
}

void hold_enter_lane(struct hold *h, struct hold_request *q, uint32_t w, double work_s) {
    q->lane = w;
    q->lane_work_s = work_s;
    q->is_owing = admission_in_debt(&q->place);
    q->order = admission_order(&q->place);
    tree_heap_push(lane_of(h, q), &q->in_lane, is_before);
}

/* Is it in its place in the lane? If not, it is put there. */
static bool is_settled(struct hold *h, struct hold_request *q) {
    if (q->is_owing == admission_in_debt(&q->place) && q->order == admission_order(&q->place))
        return true;
    hold_leave_lane(h, q);
    hold_enter_lane(h, q, q->lane, q->lane_work_s);
    return false;
}

void hold_put_back(struct hold *h, struct list *tried) {
    struct list *link;

    while ((link = list_pop_front(tried)) != NULL)
        admission_put_back(h->queue, &LIST_ENTRY(link, struct hold_request, tried_link)->place);
}

/* --- walking --------------------------------------------------------------------------------- */

static void set_price(struct hold *h, struct hold_request *q, double price_s) {
    admission_reprice(h->queue, &q->place, price_s);
    deadlines_reprice(&h->due, &q->due, price_s);
    list_remove(&q->link);
    list_push_back(&h->waiting, &q->link);
}

static double most_wait_s(const struct hold *h, const struct hold_request *q, uint32_t w) {
    double most_s = load_of(h)->hold_s[w];

    return admission_in_debt(&q->place) ? MIN(most_s, HOLD_IN_DEBT_S) : most_s;
}

enum attempt { PLACED, STAYS, DEARER };

static bool comes_later(const struct hold *h, const struct hold_request *q,
                        const struct hold_request *than) {
    return than && admission_precedes(h->queue, &than->place, &q->place);
}

/* Another is before it at its price, in the order or for worker w. */
static bool is_overtaken(const struct hold *h, const struct hold_request *q, uint32_t w) {
    struct admission_ticket *first = admission_first(h->queue);

    return comes_later(h, q, first ? request_of(first) : NULL) ||
           comes_later(h, q, in_lane(h->lanes[w].free.root)) ||
           comes_later(h, q, in_lane(h->lanes[w].owing.root));
}

/* Tries a request that is off its place and in no lane. */
static enum attempt attempt(struct hold *h, struct hold_request *q, const struct hold_walk *k) {
    struct route_offer offer;
    double price_s;
    bool is_dearer;

    q->rq->now_us = k->now_us;
    q->was_tried = true;
    if (!hold_offer_any(h, q->rq, &offer)) return STAYS;
    price_s = routing_offer_price(h->routing);
    is_dearer = price_s > q->place.work_s * PRICE_MARGIN + PRICE_MARGIN_S;
    set_price(h, q, price_s);
    is_dearer = is_dearer && is_overtaken(h, q, offer.worker);
    if (!is_dearer && offer.wait_s <= most_wait_s(h, q, offer.worker)) {
        routing_accept(h->routing, q->rq, q->ticket);
        admission_take(h->queue, &q->place, price_s, k->now_us);
        return PLACED;
    }
    hold_enter_lane(h, q, offer.worker, offer.work_s);
    return is_dearer ? DEARER : STAYS;
}

static enum attempt try_one(struct hold *h, struct hold_request *q, struct list *tried,
                            struct hold_walk *k) {
    enum attempt result;

    if (list_is_linked(&q->tried_link)) list_remove(&q->tried_link);
    admission_take_off(h->queue, &q->place);
    hold_leave_lane(h, q);
    result = attempt(h, q, k);
    switch (result) {
    case PLACED:
        hold_forget(h, q);
        list_push_back(k->placed, &q->link);
        k->n_max--;
        break;
    case STAYS: list_push_back(tried, &q->tried_link); break;
    case DEARER: admission_put_back(h->queue, &q->place); break;
    }
    return result;
}

/* It could begin soon on w, where it is so much work. */
static bool is_due(const struct hold *h, const struct hold_request *q, uint32_t w, double work_s,
                   uint64_t now_us) {
    return load_wait_in_order_s(load_of(h), w, work_s, now_us) <= most_wait_s(h, q, w);
}

/* The first in the lane of w that could begin there soon; NULL: none, or more than a few in it are
 * not where they belong any more. */
static struct hold_request *first_for(struct hold *h, uint32_t w, uint64_t now_us) {
    for (int i = 0; i < LANE_LOOKS; i++) {
        struct hold_request *q = in_lane(h->lanes[w].free.root);
        struct hold_request *owing = in_lane(h->lanes[w].owing.root);

        if (owing && !is_settled(h, owing)) continue;
        if (q && !is_settled(h, q)) continue;
        if (q && !is_due(h, q, w, q->lane_work_s, now_us)) q = NULL;
        if (owing && !is_due(h, owing, w, owing->lane_work_s, now_us)) owing = NULL;
        if (!q || !owing) return q ? q : owing;
        return admission_precedes(h->queue, &owing->place, &q->place) ? owing : q;
    }
    return NULL;
}

/* The first in the order that w could be the worker of; NULL: none. */
static struct hold_request *first_of_all(const struct hold *h, uint32_t w, uint64_t now_us) {
    struct admission_ticket *t = admission_first(h->queue);

    if (t && admission_in_debt(t) && !is_due(h, request_of(t), w, t->work_s, now_us))
        t = admission_first_free(h->queue);
    return t && is_due(h, request_of(t), w, t->work_s, now_us) ? request_of(t) : NULL;
}

/* One of a tenant in debt has to stay while w could serve another's that may not be tried yet. */
static bool has_free_before(const struct hold *h, const struct hold_request *q, uint32_t w,
                            uint64_t now_us) {
    struct admission_ticket *t;

    if (!admission_in_debt(&q->place)) return false;
    t = admission_first_free(h->queue);
    return t && admission_precedes(h->queue, t, &q->place) &&
           is_due(h, request_of(t), w, t->work_s, now_us);
}

/* Would it be tried for w in vain? The policy has chosen another worker and still prefers that one.
 * Whether a third is better is found out when that one is looked at. */
static bool waits_for_other(struct hold *h, struct hold_request *q, uint32_t w, uint64_t now_us) {
    if (!q->was_tried || q->lane == w || q->rq->n_exclude || !tree_heap_is_linked(&q->in_lane) ||
        !worker_mask_has(load_of(h)->eligible.words, q->lane))
        return false;
    q->rq->now_us = now_us;
    return !routing_prefers(h->routing, q->rq, w, q->lane);
}

/* Tries the first in the order, which need not be in the lane of w. */
static bool try_first(struct hold *h, struct hold_request *q, uint32_t w, struct list *tried,
                      struct hold_walk *k) {
    if (!waits_for_other(h, q, w, k->now_us)) return try_one(h, q, tried, k) == PLACED;
    admission_take_off(h->queue, &q->place);
    list_push_back(tried, &q->tried_link);
    return false;
}

static bool is_idle(const struct hold *h, uint32_t w, uint64_t now_us) {
    return load_wait_s(&load_of(h)->workers[w], now_us) <= 0;
}

/* The first in the order of tenants without debt; NULL: none, or w could not begin it soon. */
static struct hold_request *first_free(const struct hold *h, uint32_t w, uint64_t now_us) {
    struct admission_ticket *t = admission_first_free(h->queue);

    return t && is_due(h, request_of(t), w, t->work_s, now_us) ? request_of(t) : NULL;
}

/* Which of the first in the order may be tried for w, and the tries that it counts among; *tries is
 * NULL further down, where time alone counts. */
static struct hold_request *first_to_try(struct hold *h, uint32_t w, uint64_t now_us,
                                         uint32_t **tries) {
    struct hold_request *first = NULL;

    *tries = &h->n_tries;
    if (h->n_tries) return first_of_all(h, w, now_us);
    *tries = &h->n_free_tries;
    if (h->n_free_tries) first = first_free(h, w, now_us);
    if (first) return first;
    *tries = NULL;
    if (!is_empty(&h->lanes[w]) || !is_idle(h, w, now_us)) return NULL;
    first = first_of_all(h, w, now_us);
    if (!first || now_us >= h->deep_us + HOLD_DEEP_US) return first;
    h->is_starving = true;
    return NULL;
}

static void serve(struct hold *h, uint32_t w, struct hold_walk *k) {
    uint32_t n_stay = 0, *tries;

    while (k->n_max && n_stay < LANE_TRIES && load_has_room(load_of(h), k->now_us)) {
        struct hold_request *q = first_for(h, w, k->now_us);
        struct hold_request *first = first_to_try(h, w, k->now_us, &tries);

        if (q && !first && has_free_before(h, q, w, k->now_us)) return;
        if (!q && !first) return;
        if (q && (!first || admission_precedes(h->queue, &q->place, &first->place))) {
            n_stay += try_one(h, q, &h->tried, k) != PLACED;
        } else if (!tries) {
            if (!try_first(h, first, w, &h->tried, k)) h->deep_us += HOLD_DEEP_US;
        } else {
            *tries -= !try_first(h, first, w, &h->again, k);
        }
    }
}

static void reprice_oldest(struct hold *h) {
    uint32_t n = h->n_waiting <= HOLD_FEW ? h->n_waiting : HOLD_REPRICED, home;

    while (n--) {
        struct hold_request *q = LIST_ENTRY(list_first(&h->waiting), struct hold_request, link);
        double price_s = routing_price(h->routing, q->rq, &home);
        bool has_lane = tree_heap_is_linked(&q->in_lane);

        hold_leave_lane(h, q);
        set_price(h, q, price_s);
        if (has_lane) {
            hold_enter_lane(h, q, q->lane, q->lane_work_s);
        } else if (home != WORKER_NONE) {
            hold_enter_lane(h, q, home, price_s);
        }
    }
}

/* What was tried in vain for a worker that has left is to be tried for the others. */
static void close_lanes(struct hold *h) {
    const struct load *l = load_of(h);

    for (uint32_t w = 0; w < MIN(l->n_words * 64, l->n_workers); w++) {
        struct lane *lane = &h->lanes[w];

        while (!worker_mask_has(l->eligible.words, w) && !is_empty(lane)) {
            struct hold_request *q = in_lane(lane->free.root ? lane->free.root : lane->owing.root);

            hold_leave_lane(h, q);
            if (!list_is_linked(&q->tried_link)) continue;
            list_remove(&q->tried_link);
            admission_put_back(h->queue, &q->place);
        }
    }
}

static void begin_full_walk(struct hold *h, bool has_more, uint64_t now_us) {
    uint64_t past_us = has_more ? UINT64_MAX : now_us - MIN(now_us, h->full_walk_us);
    uint64_t most_us = MIN(now_us, (uint64_t)HOLD_TRIES * HOLD_DEEP_US);

    h->full_walk_us = now_us;
    h->n_tries = (uint32_t)MIN(past_us / HOLD_TRY_US, (uint64_t)HOLD_TRIES);
    h->n_free_tries = now_us < h->uneven_until_us
                          ? (uint32_t)MIN(past_us / HOLD_FREE_US, (uint64_t)HOLD_FREE_TRIES)
                          : 0;
    h->deep_us = has_more ? now_us - most_us : MAX(h->deep_us, now_us - most_us);
    hold_put_back(h, &h->again);
    if (has_more || !h->is_starving) hold_put_back(h, &h->tried);
    close_lanes(h);
    h->is_starving = false;
    reprice_oldest(h);
}

/* Few wait: each is tried, whatever is thought of its worker. */
static void try_all(struct hold *h, struct hold_walk *k) {
    uint32_t n = 2 * h->n_waiting; /* one that got dearer is tried again */
    struct admission_ticket *t;
    struct worker_mask ready;

    if (!load_get_ready(load_of(h), &ready, k->now_us)) return;
    h->all_us = k->now_us;
    hold_put_back(h, &h->tried);
    while (n-- && k->n_max && load_has_room(load_of(h), k->now_us) &&
           (t = admission_first(h->queue)) != NULL)
        (void)try_one(h, request_of(t), &h->again, k);
}

void hold_walk_by_price(struct hold *h, struct hold_walk *k) {
    const struct load *l = load_of(h);
    bool has_more = l->n_eligible > h->n_eligible; /* one came back */
    bool is_full = has_more || k->now_us >= h->full_walk_us + HOLD_WALK_US;
    struct worker_mask eased;

    h->n_eligible = l->n_eligible;
    if (is_full) begin_full_walk(h, has_more, k->now_us);
    if (is_full && h->n_waiting <= HOLD_FEW && (has_more || k->now_us >= h->all_us + HOLD_ALL_US))
        try_all(h, k);
    routing_take_eased(h->routing, &eased);
    for (uint32_t i = 0; i < l->n_words; i++) {
        h->looked.words[i] |= eased.words[i];
        if (is_full || h->n_waiting <= HOLD_FEW) h->looked.words[i] = UINT64_MAX;
        h->looked.words[i] &= l->eligible.words[i];
    }
    WORKER_MASK_FOR_EACH(w, h->looked.words, l->n_words) {
        if (!k->n_max || !load_has_room(l, k->now_us)) return;
        worker_mask_drop(h->looked.words, w);
        serve(h, w, k);
    }
}

size_t hold_check_lanes(const struct hold *h) {
    size_t n = 0;

    for (uint32_t w = 0; w < load_of(h)->n_workers; w++)
        n += tree_heap_check(&h->lanes[w].free, is_before) +
             tree_heap_check(&h->lanes[w].owing, is_before);
    return n;
}
