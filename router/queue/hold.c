/* router/queue/hold.c - the queue, its deadlines, and what is placed at once or by turn. */

#include <assert.h>
#include <math.h>

#include "common/base/mem.h"
#include "common/base/rng.h"
#include "router/queue/hold_internal.h"

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
static struct admission_options queue_options(const struct hold_options *o) {
    return (struct admission_options){
        .queue_size = o->queue_size,
        .max_wait_us = o->max_wait_us,
        .order = o->fcfs_s > 0 ? ADMISSION_BY_PRICE : ADMISSION_BY_TURN,
    };
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
    hold_put_back(h, &h->again);
    hold_put_back(h, &h->tried);
    admission_configure(h->queue, &queue);
    routing_set_hold(h->routing, options->fcfs_s, options->srpt_s);
}

bool hold_is_on(const struct hold *h) {
    return h->options.fcfs_s > 0;
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

void hold_forget(struct hold *h, struct hold_request *q) {
    list_remove(&q->link);
    if (list_is_linked(&q->tried_link)) list_remove(&q->tried_link);
    hold_leave_lane(h, q);
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
        hold_forget(h, *displaced);
    }
    q->was_tried = false;
    list_push_back(&h->waiting, &q->link);
    h->n_waiting++;
    note_arrival(h, q->priority, claim.work_s, q->rq->now_us);
    deadlines_enter(&h->due, &q->due, band_of(q->priority), claim.work_s, q->by_us);
    if (hold_is_on(h) && claim.home != WORKER_NONE) {
        hold_enter_lane(h, q, claim.home, claim.work_s);
        worker_mask_add(h->looked.words, claim.home);
    }
    return verdict;
}

void hold_leave(struct hold *h, struct hold_request *q) {
    admission_remove(h->queue, &q->place);
    hold_forget(h, q);
}

void hold_served(struct hold *h, const struct hold_service *service, uint64_t now_us) {
    const struct admission_claim claim = {.tenant = service->tenant,
                                          .priority = service->priority,
                                          .weight = service->weight,
                                          .work_s = service->work_s};

    if (admission_served(h->queue, &claim, service->has_waited, now_us) && service->has_waited)
        h->uneven_until_us = now_us + ADMISSION_GUEST_US;
}

bool hold_offer_any(struct hold *h, struct route_request *rq, struct route_offer *offer) {
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
        hold_forget(h, q);
        q->rq->now_us = now_us;
        (void)hold_offer_any(h, q->rq, &offer); /* room implies a worker */
        routing_accept(h->routing, q->rq, q->ticket);
        list_push_back(placed, &q->link);
    }
}

/* --- all -------------------------------------------------------------------------------------- */

void hold_walk(struct hold *h, uint32_t n_max, uint64_t now_us, struct list *placed) {
    if (!h->n_waiting) return;
    if (hold_is_on(h)) {
        hold_walk_by_price(h,
                           &(struct hold_walk){.n_max = n_max, .now_us = now_us, .placed = placed});
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
    assert(n == h->n_waiting && n == admission_n_waiting(h->queue));
    assert(n_off == n_tried && n_in_lanes == hold_check_lanes(h));
}
