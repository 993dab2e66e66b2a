/* router/queue/hold.c - tries the requests that wait, each against its own worker. */
#include "router/queue/hold.h"

#include <assert.h>
#include <math.h>

#include "common/base/mem.h"

/* A price that rose by less keeps its place for this try. */
#define PRICE_MARGIN   1.01
#define PRICE_MARGIN_S 0.001

struct hold {
    struct routing *routing;
    struct admission *queue;
    struct hold_options options;
    struct list waiting; /* the oldest price first */
    uint32_t n_waiting;
    struct hold_request *fresh; /* began to wait and is not tried yet */
    struct worker_mask ready;   /* when the last walk left requests waiting beside them */
    uint64_t walked_us;         /* then; 0: no walk has */
    uint64_t full_walk_us;      /* the last of HOLD_TRIES */
};

static struct admission_options queue_options(const struct hold_options *o) {
    return (struct admission_options){
        .queue_size = o->queue_size,
        .max_wait_us = o->max_wait_us,
        .order = o->fcfs_s > 0 ? ADMISSION_BY_PRICE : ADMISSION_BY_TURN,
    };
}

struct hold *hold_create(struct routing *routing, const struct hold_options *options) {
    struct admission_options queue = queue_options(options);
    struct hold *h = mem_zalloc(sizeof(*h));

    h->routing = routing;
    h->queue = admission_create(&queue);
    list_init(&h->waiting);
    hold_configure(h, options);
    return h;
}

void hold_destroy(struct hold *h) {
    if (!h) return;
    admission_destroy(h->queue);
    mem_free(h);
}

void hold_configure(struct hold *h, const struct hold_options *options) {
    struct admission_options queue = queue_options(options);

    assert((options->fcfs_s > 0) == (options->srpt_s > 0));
    h->options = *options;
    h->walked_us = 0;
    admission_configure(h->queue, &queue);
    routing_set_hold(h->routing, options->fcfs_s, options->srpt_s);
}

bool hold_is_on(const struct hold *h) {
    return h->options.fcfs_s > 0;
}

static const struct load *load_of(const struct hold *h) {
    return routing_load(h->routing);
}

static struct hold_request *request_of(struct admission_ticket *t) {
    return CONTAINER_OF(t, struct hold_request, place);
}

/* --- placing ---------------------------------------------------------------------------------- */

enum status hold_place(struct hold *h, struct route_request *rq, struct route_ticket *ticket,
                       enum hold_reason *reason, struct error *err) {
    struct route_offer offer;
    enum status st;

    if (!hold_is_on(h)) return routing_route(h->routing, rq, ticket, err);
    *reason = HOLD_BEHIND;
    if (h->n_waiting) return ST_AGAIN;
    st = routing_offer(h->routing, rq, &offer, err);
    if (st != ST_OK) return st;
    *reason = HOLD_BACKLOG;
    if (offer.wait_s > load_of(h)->hold_s[offer.worker] &&
        load_backlog_share(load_of(h), rq->now_us) >= HOLD_BUSY_SHARE)
        return ST_AGAIN;
    routing_accept(h->routing, rq, ticket);
    return ST_OK;
}

static void forget(struct hold *h, struct hold_request *q) {
    list_remove(&q->link);
    h->n_waiting--;
    if (h->fresh == q) h->fresh = NULL;
}

enum admission_verdict hold_wait(struct hold *h, struct hold_request *q,
                                 struct hold_request **displaced) {
    struct admission_claim claim = {
        .tenant = q->tenant, .priority = q->priority, .weight = q->weight, .since_us = q->since_us};
    struct admission_ticket *gone;
    enum admission_verdict verdict;

    *displaced = NULL;
    claim.work_s = routing_price(h->routing, q->rq, &claim.home);
    q->n_before = admission_n_before(h->queue, &claim);
    verdict = admission_push(h->queue, &q->place, &claim, &q->wait_us, &gone);
    if (verdict != ADMISSION_WAITS) return verdict;
    if (gone) {
        *displaced = request_of(gone);
        forget(h, *displaced);
    }
    list_push_back(&h->waiting, &q->link);
    h->n_waiting++;
    q->tried_us = 0;
    h->fresh = q;
    return verdict;
}

void hold_leave(struct hold *h, struct hold_request *q) {
    admission_remove(h->queue, &q->place);
    forget(h, q);
}

/* When it has failed on every worker that there is, it may fail on one of them again. */
static bool offer_any(struct hold *h, struct route_request *rq, struct route_offer *offer) {
    uint32_t n_exclude = rq->n_exclude;
    enum status st = routing_offer(h->routing, rq, offer, NULL);

    if (st == ST_OK) return true;
    rq->n_exclude = 0;
    st = routing_offer(h->routing, rq, offer, NULL);
    rq->n_exclude = n_exclude;
    return st == ST_OK;
}

/* --- by turn ---------------------------------------------------------------------------------- */

static void walk_by_turn(struct hold *h, uint32_t n_max, uint64_t now_us, struct list *placed) {
    while (h->n_waiting && n_max-- && load_has_room(load_of(h), now_us)) {
        struct route_offer offer;
        struct hold_request *q;
        struct worker_mask room;

        load_get_room(load_of(h), &room, now_us);
        q = request_of(admission_pop(h->queue, &room, now_us));
        forget(h, q);
        q->rq->now_us = now_us;
        (void)offer_any(h, q->rq, &offer); /* room implies a worker */
        routing_accept(h->routing, q->rq, q->ticket);
        list_push_back(placed, &q->link);
    }
}

/* --- by price --------------------------------------------------------------------------------- */

enum attempt { PLACED, STAYS, DEARER };

/* Tries a request that is taken off the queue for it. *price_s: the price now, unless PLACED. */
static enum attempt attempt(struct hold *h, struct hold_request *q, uint64_t now_us,
                            double *price_s) {
    struct route_offer offer;
    double most_s;

    q->rq->now_us = now_us;
    *price_s = q->place.work_s;
    if (!offer_any(h, q->rq, &offer)) return STAYS;
    *price_s = routing_offer_price(h->routing);
    if (*price_s > q->place.work_s * PRICE_MARGIN + PRICE_MARGIN_S &&
        !admission_is_first(h->queue, &q->place, *price_s))
        return DEARER;
    most_s = load_of(h)->hold_s[offer.worker];
    if (admission_in_debt(&q->place)) most_s = MIN(most_s, HOLD_IN_DEBT_S);
    q->tried_worker = offer.worker;
    q->tried_us = now_us;
    if (offer.wait_s > most_s) return STAYS;
    routing_accept(h->routing, q->rq, q->ticket);
    admission_take(h->queue, &q->place, *price_s, now_us);
    return PLACED;
}

static void put_back(struct hold *h, struct hold_request *q, double price_s) {
    admission_put_back(h->queue, &q->place, price_s);
    list_remove(&q->link);
    list_push_back(&h->waiting, &q->link);
}

static void move_to(struct hold *h, struct hold_request *q, struct list *placed) {
    forget(h, q);
    list_push_back(placed, &q->link);
}

/* Its worker is as busy as at the last try, which was a moment ago: it would stay. */
static bool is_tried(const struct hold_request *q, const struct worker_mask *ready,
                     uint64_t now_us) {
    return q->tried_us && now_us < q->tried_us + HOLD_STALE_US &&
           !worker_mask_has(ready->words, q->tried_worker);
}

/* Places up to n_max in order; true when all that may be tried were. `ready`: those that are. */
static bool try_in_order(struct hold *h, uint32_t n_max, struct worker_mask ready, bool is_event,
                         uint64_t now_us, struct list *placed) {
    const uint32_t n_stay_max = is_event ? HOLD_EVENT : HOLD_TRIES;
    struct {
        struct hold_request *q;
        double price_s;
    } kept[HOLD_TRIES];
    uint32_t n_kept = 0, n_tries = 0;
    struct admission_ticket *t;
    bool is_ready = true;

    while (n_tries++ < HOLD_TRIES && n_kept < n_stay_max && is_ready && n_max &&
           load_has_room(load_of(h), now_us) && (t = admission_next(h->queue)) != NULL) {
        struct hold_request *q = request_of(t);
        double price_s = t->work_s;
        bool stays = !is_event && is_tried(q, &ready, now_us);

        switch (stays ? STAYS : attempt(h, q, now_us, &price_s)) {
        case PLACED:
            move_to(h, q, placed);
            n_max--;
            is_ready = load_get_ready(load_of(h), &ready, now_us);
            break;
        case STAYS:
            kept[n_kept].q = q;
            kept[n_kept++].price_s = price_s;
            break;
        case DEARER: put_back(h, q, price_s); break;
        }
    }
    for (uint32_t i = 0; i < n_kept; i++)
        put_back(h, kept[i].q, kept[i].price_s);
    return is_ready && n_max;
}

/* Takes the one that began to wait last off the queue and tries it alone. */
static void try_fresh(struct hold *h, uint64_t now_us, struct list *placed) {
    struct hold_request *q = h->fresh;
    double price_s;

    if (!q || h->n_waiting > HOLD_TRIES) return;
    admission_take_off(h->queue, &q->place);
    if (attempt(h, q, now_us, &price_s) == PLACED) {
        move_to(h, q, placed);
    } else {
        put_back(h, q, price_s);
    }
}

/* Is a worker ready that was not, at some time since the last walk left requests waiting? */
static bool has_other_ready(struct hold *h, const struct worker_mask *ready, uint64_t now_us) {
    uint64_t others = 0;

    if (!h->walked_us || now_us >= h->walked_us + HOLD_WALK_US) return true;
    for (uint32_t i = 0; i < load_of(h)->n_words; i++) {
        others |= ready->words[i] & ~h->ready.words[i];
        h->ready.words[i] &= ready->words[i];
    }
    return others != 0;
}

static void reprice_oldest(struct hold *h) {
    uint32_t n = MIN(h->n_waiting, (uint32_t)HOLD_REPRICED), home;

    while (n--) {
        struct hold_request *q = LIST_ENTRY(list_first(&h->waiting), struct hold_request, link);

        admission_reprice(h->queue, &q->place, routing_price(h->routing, q->rq, &home));
        list_remove(&q->link);
        list_push_back(&h->waiting, &q->link);
    }
}

static void walk_by_price(struct hold *h, uint32_t n_max, uint64_t now_us, struct list *placed) {
    struct worker_mask ready;
    bool is_left, is_event;

    if (!n_max || !load_get_ready(load_of(h), &ready, now_us) ||
        !load_has_room(load_of(h), now_us)) {
        h->walked_us = 0;
        return;
    }
    if (!has_other_ready(h, &ready, now_us)) {
        try_fresh(h, now_us, placed);
        return;
    }
    is_event = now_us < h->full_walk_us + HOLD_WALK_US;
    if (!is_event) {
        reprice_oldest(h);
        h->full_walk_us = now_us;
    }
    is_left = try_in_order(h, n_max, ready, is_event, now_us, placed);
    h->walked_us = is_left ? h->full_walk_us : 0;
    if (is_left) (void)load_get_ready(load_of(h), &h->ready, now_us);
}

/* --- all -------------------------------------------------------------------------------------- */

void hold_walk(struct hold *h, uint32_t n_max, uint64_t now_us, struct list *placed) {
    if (!h->n_waiting) return;
    if (hold_is_on(h)) {
        walk_by_price(h, n_max, now_us, placed);
    } else {
        walk_by_turn(h, n_max, now_us, placed);
    }
    h->fresh = NULL;
}

uint32_t hold_position(const struct hold *h, const struct hold_request *q) {
    return admission_position(h->queue, &q->place);
}

struct hold_request *hold_any(struct hold *h) {
    struct list *first = list_first(&h->waiting);

    return first ? LIST_ENTRY(first, struct hold_request, link) : NULL;
}

uint32_t hold_n_waiting(const struct hold *h) {
    return h->n_waiting;
}

void hold_check(const struct hold *h) {
    uint32_t n = 0;

    admission_check(h->queue);
    LIST_FOR_EACH(it, &h->waiting) {
        assert(hold_is_waiting(LIST_ENTRY(it, struct hold_request, link)));
        n++;
    }
    assert(n == h->n_waiting && n == admission_n_waiting(h->queue));
}
