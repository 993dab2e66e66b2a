/* router/queue/hold.c - tries the requests that wait, each against its own worker. */
#include "router/queue/hold.h"

#include <assert.h>
#include <math.h>

#include "common/base/heap.h"
#include "common/base/mem.h"
#include "common/base/rng.h"

/* A price that rose by less keeps its place for this try. */
#define PRICE_MARGIN   1.01
#define PRICE_MARGIN_S 0.001
/* When a refused request is to come again: when one a little shorter would have its turn, and after
 * a multiple of its own prefill. Of requests that obey, load 1.05 and bursts accept 80 and 63 %
 * without the latter, 80 and 81 % with it; no longer time changes the first. */
#define RETRY_PRICE   0.95
#define RETRY_TIMES   2
#define RETRY_OWN     5
#define RETRY_LEAST_S 1.0
#define RETRY_MOST_S  600.0
#define RETRY_JITTER  0.2
#define LEARN_US      100000 /* between two looks at what workers have done */
/* Of those meant for a worker that have to stay when it has become ready, in one walk. */
#define LANE_TRIES 2
#define LANE_LOOKS 16

/* See hold.h. Tenants in debt and others apart, each heap by an order that may have grown since. */
struct lane {
    struct tree_heap free, owing;
};

struct hold {
    struct routing *routing;
    struct admission *queue;
    struct hold_options options;
    struct list waiting; /* the oldest price first */
    uint32_t n_waiting;
    struct lane *lanes;        /* by worker */
    struct list again, tried;  /* off their place in the order: the oldest try first */
    struct worker_mask looked; /* workers to look at in the next walk */
    uint64_t full_walk_us;     /* the last that looked at all */
    uint64_t all_us;           /* the last that tried all */
    uint32_t n_eligible;       /* workers, in the last walk */
    uint32_t n_tries;          /* from the first in order that may fail until the next */
    uint64_t deep_us;          /* tries further down are accounted for up to this time */
    bool is_starving;          /* a worker found none, and no more may be tried */
    uint64_t learned_us;       /* deadlines_learn */
    struct deadlines due;
    struct rng rng; /* of retry times */
};

static struct admission_options queue_options(const struct hold_options *o) {
    return (struct admission_options){
        .queue_size = o->queue_size,
        .max_wait_us = o->max_wait_us,
        .order = o->fcfs_s > 0 ? ADMISSION_BY_PRICE : ADMISSION_BY_TURN,
    };
}

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

static void leave_lane(struct hold *h, struct hold_request *q) {
    if (tree_heap_is_linked(&q->in_lane)) tree_heap_remove(lane_of(h, q), &q->in_lane, is_before);
}

static void enter_lane(struct hold *h, struct hold_request *q, uint32_t w, double work_s) {
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
    leave_lane(h, q);
    enter_lane(h, q, q->lane, q->lane_work_s);
    return false;
}

/* Returns those that were tried to their place in the order. */
static void put_back(struct hold *h, struct list *tried) {
    struct list *link;

    while ((link = list_pop_front(tried)) != NULL)
        admission_put_back(h->queue, &LIST_ENTRY(link, struct hold_request, tried_link)->place);
}

/* --- creation --------------------------------------------------------------------------------- */

struct hold *hold_create(struct routing *routing, const struct hold_options *options) {
    struct admission_options queue = queue_options(options);
    struct hold *h = mem_zalloc(sizeof(*h));

    h->routing = routing;
    h->queue = admission_create(&queue);
    h->lanes = mem_calloc(routing_load(routing)->n_workers, sizeof(*h->lanes));
    list_init(&h->waiting);
    list_init(&h->again);
    list_init(&h->tried);
    deadlines_init(&h->due);
    rng_seed(&h->rng, 1);
    hold_configure(h, options);
    return h;
}

void hold_destroy(struct hold *h) {
    if (!h) return;
    admission_destroy(h->queue);
    mem_free(h->lanes);
    mem_free(h);
}

void hold_configure(struct hold *h, const struct hold_options *options) {
    struct admission_options queue = queue_options(options);

    assert((options->fcfs_s > 0) == (options->srpt_s > 0));
    h->options = *options;
    h->full_walk_us = 0;
    put_back(h, &h->again);
    put_back(h, &h->tried);
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

/* --- deadlines -------------------------------------------------------------------------------- */

static uint32_t band_of(int32_t priority) {
    return (uint32_t)(MIN(MAX(priority, -DEADLINE_BANDS / 2), DEADLINE_BANDS / 2 - 1) +
                      DEADLINE_BANDS / 2);
}

static void learn_share(struct hold *h, uint64_t now_us) {
    double work_s, busy_s;

    if (now_us < h->learned_us + LEARN_US) return;
    h->learned_us = now_us;
    load_get_done(load_of(h), &work_s, &busy_s, now_us);
    deadlines_learn(&h->due, work_s, busy_s, h->n_waiting > 0);
}

static void note_arrival(struct hold *h, int32_t priority, double price_s, uint64_t now_us) {
    learn_share(h, now_us);
    deadlines_arrived(&h->due, band_of(priority), price_s, now_us);
}

static double least_wait_s(const struct hold *h, double price_s, uint64_t now_us) {
    const struct load *l = load_of(h);
    double least_s = INFINITY;

    WORKER_MASK_FOR_EACH(w, l->eligible.words, l->n_words) {
        least_s = fmin(least_s, load_wait_in_order_s(l, w, price_s, now_us));
    }
    return least_s;
}

/* Of requests that wait and arrive, how much goes before it: turns of other tenants aside. */
static double queue_s(const struct hold *h, uint64_t tenant, int32_t priority, double price_s) {
    struct admission_claim claim = {.tenant = tenant, .priority = priority, .work_s = price_s};

    return deadlines_wait_s(
        &h->due, &(struct deadline_claim){.band = band_of(priority),
                                          .work_s = price_s,
                                          .n_workers = load_of(h)->n_eligible,
                                          .fair = admission_fair_share(h->queue, &claim)});
}

/* Others that obey must not all come back together. */
static uint64_t retry_us(struct hold *h, uint64_t tenant, int32_t priority, double price_s) {
    double s = RETRY_TIMES * queue_s(h, tenant, priority, RETRY_PRICE * price_s);

    s += RETRY_OWN * price_s;
    s = fmin(fmax(s, RETRY_LEAST_S), RETRY_MOST_S);

    return (uint64_t)(s * (1 - RETRY_JITTER + 2 * RETRY_JITTER * rng_f64(&h->rng)) * 1e6);
}

enum status hold_judge(struct hold *h, const struct route_request *rq, struct hold_due *due,
                       struct error *err) {
    double left_s = due->by_us > rq->now_us ? (double)(due->by_us - rq->now_us) * 1e-6 : 0;
    struct route_offer offer;
    double price_s, start_s;

    if (routing_offer(h->routing, rq, &offer, NULL) != ST_OK) return ST_OK; /* no worker */
    price_s = routing_offer_price(h->routing);
    start_s =
        least_wait_s(h, price_s, rq->now_us) + queue_s(h, due->tenant, due->priority, price_s);
    due->predicted_s = start_s + price_s;
    if (start_s <= left_s && price_s <= left_s) return ST_OK;
    due->retry_us = retry_us(h, due->tenant, due->priority, price_s);
    return error_set(err, ST_BUSY,
                     "the first token is predicted in %.1f s, and its deadline is in %.1f s: send "
                     "the request again in %.1f s, or with a later deadline",
                     due->predicted_s, left_s, (double)due->retry_us * 1e-6);
}

struct hold_request *hold_hopeless(struct hold *h, uint64_t now_us, uint64_t *retry) {
    struct deadline_entry *e = deadlines_hopeless(&h->due, now_us);
    struct hold_request *q;

    if (!e) return NULL;
    q = CONTAINER_OF(e, struct hold_request, due);
    *retry = retry_us(h, q->tenant, q->priority, e->work_s);
    return q;
}

/* --- placing ---------------------------------------------------------------------------------- */

enum status hold_place(struct hold *h, struct route_request *rq, struct route_ticket *ticket,
                       enum hold_reason *reason, struct error *err) {
    struct route_offer offer;
    enum status st;

    if (!hold_is_on(h)) {
        st = routing_route(h->routing, rq, ticket, err);
        if (st == ST_OK) note_arrival(h, 0, ticket->load.work_s, rq->now_us);
        return st;
    }
    *reason = HOLD_BEHIND;
    if (h->n_waiting) return ST_AGAIN;
    st = routing_offer(h->routing, rq, &offer, err);
    if (st != ST_OK) return st;
    *reason = HOLD_BACKLOG;
    if (offer.wait_s > load_of(h)->hold_s[offer.worker] &&
        load_backlog_share(load_of(h), rq->now_us) >= HOLD_BUSY_SHARE)
        return ST_AGAIN;
    note_arrival(h, 0, routing_offer_price(h->routing), rq->now_us);
    routing_accept(h->routing, rq, ticket);
    return ST_OK;
}

static void forget(struct hold *h, struct hold_request *q) {
    list_remove(&q->link);
    if (list_is_linked(&q->tried_link)) list_remove(&q->tried_link);
    leave_lane(h, q);
    deadlines_leave(&h->due, &q->due);
    h->n_waiting--;
}

enum admission_verdict hold_wait(struct hold *h, struct hold_request *q,
                                 struct hold_request **displaced) {
    struct admission_claim claim = {.tenant = q->tenant,
                                    .priority = q->priority,
                                    .weight = q->weight,
                                    .max_share = q->max_share,
                                    .since_us = q->since_us};
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
    q->was_tried = false;
    list_push_back(&h->waiting, &q->link);
    h->n_waiting++;
    note_arrival(h, q->priority, claim.work_s, q->rq->now_us);
    deadlines_enter(&h->due, &q->due, band_of(q->priority), claim.work_s, q->by_us);
    if (hold_is_on(h) && claim.home != WORKER_NONE) {
        enter_lane(h, q, claim.home, claim.work_s);
        worker_mask_add(h->looked.words, claim.home);
    }
    return verdict;
}

void hold_leave(struct hold *h, struct hold_request *q) {
    admission_remove(h->queue, &q->place);
    forget(h, q);
}

void hold_served(struct hold *h, const struct hold_service *service, uint64_t now_us) {
    const struct admission_claim claim = {.tenant = service->tenant,
                                          .priority = service->priority,
                                          .weight = service->weight,
                                          .work_s = service->work_s};

    admission_served(h->queue, &claim, service->has_waited, now_us);
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

struct walk {
    uint32_t n_max; /* that may be placed yet */
    uint64_t now_us;
    struct list *placed;
};

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
static enum attempt attempt(struct hold *h, struct hold_request *q, const struct walk *k) {
    struct route_offer offer;
    double price_s;
    bool is_dearer;

    q->rq->now_us = k->now_us;
    q->was_tried = true;
    if (!offer_any(h, q->rq, &offer)) return STAYS;
    price_s = routing_offer_price(h->routing);
    is_dearer = price_s > q->place.work_s * PRICE_MARGIN + PRICE_MARGIN_S;
    set_price(h, q, price_s);
    is_dearer = is_dearer && is_overtaken(h, q, offer.worker);
    if (!is_dearer && offer.wait_s <= most_wait_s(h, q, offer.worker)) {
        routing_accept(h->routing, q->rq, q->ticket);
        admission_take(h->queue, &q->place, price_s, k->now_us);
        return PLACED;
    }
    enter_lane(h, q, offer.worker, offer.work_s);
    return is_dearer ? DEARER : STAYS;
}

static enum attempt try_one(struct hold *h, struct hold_request *q, struct list *tried,
                            struct walk *k) {
    enum attempt result;

    if (list_is_linked(&q->tried_link)) list_remove(&q->tried_link);
    admission_take_off(h->queue, &q->place);
    leave_lane(h, q);
    result = attempt(h, q, k);
    switch (result) {
    case PLACED:
        forget(h, q);
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
                      struct walk *k) {
    if (!waits_for_other(h, q, w, k->now_us)) return try_one(h, q, tried, k) == PLACED;
    admission_take_off(h->queue, &q->place);
    list_push_back(tried, &q->tried_link);
    return false;
}

static bool is_idle(const struct hold *h, uint32_t w, uint64_t now_us) {
    return load_wait_s(&load_of(h)->workers[w], now_us) <= 0;
}

static void serve(struct hold *h, uint32_t w, struct walk *k) {
    uint32_t n_stay = 0;

    while (k->n_max && n_stay < LANE_TRIES && load_has_room(load_of(h), k->now_us)) {
        struct hold_request *q = first_for(h, w, k->now_us), *first = NULL;
        bool is_deep = !h->n_tries;

        if (!is_deep || (is_empty(&h->lanes[w]) && is_idle(h, w, k->now_us)))
            first = first_of_all(h, w, k->now_us);
        if (first && is_deep && k->now_us < h->deep_us + HOLD_DEEP_US) {
            h->is_starving = true;
            first = NULL;
        }
        if (q && !first && has_free_before(h, q, w, k->now_us)) return;
        if (!q && !first) return;
        if (q && (!first || admission_precedes(h->queue, &q->place, &first->place))) {
            n_stay += try_one(h, q, &h->tried, k) != PLACED;
        } else if (is_deep) {
            if (!try_first(h, first, w, &h->tried, k)) h->deep_us += HOLD_DEEP_US;
        } else {
            h->n_tries -= !try_first(h, first, w, &h->again, k);
        }
    }
}

static void reprice_oldest(struct hold *h) {
    uint32_t n = h->n_waiting <= HOLD_FEW ? h->n_waiting : HOLD_REPRICED, home;

    while (n--) {
        struct hold_request *q = LIST_ENTRY(list_first(&h->waiting), struct hold_request, link);
        double price_s = routing_price(h->routing, q->rq, &home);
        bool has_lane = tree_heap_is_linked(&q->in_lane);

        leave_lane(h, q);
        set_price(h, q, price_s);
        if (has_lane) {
            enter_lane(h, q, q->lane, q->lane_work_s);
        } else if (home != WORKER_NONE) {
            enter_lane(h, q, home, price_s);
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

            leave_lane(h, q);
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
    h->deep_us = has_more ? now_us - most_us : MAX(h->deep_us, now_us - most_us);
    put_back(h, &h->again);
    if (has_more || !h->is_starving) put_back(h, &h->tried);
    close_lanes(h);
    h->is_starving = false;
    reprice_oldest(h);
}

/* Few wait: each is tried, whatever is thought of its worker. */
static void try_all(struct hold *h, struct walk *k) {
    uint32_t n = 2 * h->n_waiting; /* one that got dearer is tried again */
    struct admission_ticket *t;
    struct worker_mask ready;

    if (!load_get_ready(load_of(h), &ready, k->now_us)) return;
    h->all_us = k->now_us;
    put_back(h, &h->tried);
    while (n-- && k->n_max && load_has_room(load_of(h), k->now_us) &&
           (t = admission_first(h->queue)) != NULL)
        (void)try_one(h, request_of(t), &h->again, k);
}

static void walk_by_price(struct hold *h, struct walk *k) {
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

/* --- all -------------------------------------------------------------------------------------- */

void hold_walk(struct hold *h, uint32_t n_max, uint64_t now_us, struct list *placed) {
    if (!h->n_waiting) return;
    if (hold_is_on(h)) {
        walk_by_price(h, &(struct walk){.n_max = n_max, .now_us = now_us, .placed = placed});
    } else {
        walk_by_turn(h, n_max, now_us, placed);
    }
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

double hold_waiting_s(const struct hold *h) {
    return admission_work_s(h->queue);
}

void hold_check(const struct hold *h) {
    uint32_t n = 0, n_tried = 0, n_off = 0, n_in_lanes = 0;
    size_t n_lanes = 0;

    admission_check(h->queue);
    deadlines_check(&h->due, h->n_waiting);
    LIST_FOR_EACH(it, &h->waiting) {
        const struct hold_request *q = LIST_ENTRY(it, struct hold_request, link);

        assert(hold_is_waiting(q));
        n_off += hold_is_on(h) && !tree_heap_is_linked(&q->place.in_flow);
        n_in_lanes += tree_heap_is_linked(&q->in_lane);
        n++;
    }
    for (int i = 0; i < 2; i++) {
        LIST_FOR_EACH(it, i ? &h->tried : &h->again) {
            n_tried++;
        }
    }
    for (uint32_t w = 0; w < load_of(h)->n_workers; w++)
        n_lanes += tree_heap_check(&h->lanes[w].free, is_before) +
                   tree_heap_check(&h->lanes[w].owing, is_before);
    assert(n == h->n_waiting && n == admission_n_waiting(h->queue));
    assert(n_off == n_tried && n_in_lanes == n_lanes);
}
