/* router/queue/admission_internal.h - what the files of admission share: flows, bands and the heaps
 * that they are in.
 *
 * A flow is a tenant within a band. While it has tickets it is in several heaps of its band, so
 * that each event costs O(log flows) and, by price, O(log tickets), full queue or not:
 *
 *     by turn    `flows`, by start: the virtual time at which its first ticket's service begins
 *     by price   `flows` or, when the flow is in debt, `debtors`: by the key of its first ticket,
 *                which is that of a heap of tickets. All debts of a band change by as much when
 *                its least start does, so that no key does: only `debtors` as a whole moves
 *                against `flows`. `least`, `most` and `relief` find the flows that cross the line.
 *     both       `longest`, by the number of tickets: who gives way
 *
 * Service moves the band's time, and the flow's next start behind the ticket's work. A flow that
 * runs empty keeps its start, on the list of idle flows, until the band's time has passed it:
 * otherwise a tenant with one request at a time would always be served at once. A new tenant takes
 * the oldest idle flow when none is spare. */
#ifndef ROUTER_QUEUE_ADMISSION_INTERNAL_H
#define ROUTER_QUEUE_ADMISSION_INTERNAL_H

#include <math.h>

#include "common/base/heap.h"
#include "common/base/map.h"
#include "common/base/rng.h"
#include "router/queue/admission.h"

#define WORK_MIN_S  0.001 /* a fully cached request still counts */
#define SPARE_FLOWS 64    /* idle tenants kept beyond the queue size */
#define BAND_MIDDLE (ADMISSION_BANDS / 2)
#define N_BINS      64 /* of half an octave, from */
#define BIN_LEAST_S 0.0005

struct admission_flow {
    struct heap_link in_length;         /* of its band, while it has tickets */
    struct heap_link in_turn;           /* in flows or debtors, while it has tickets in place */
    struct heap_link in_start, in_most; /* by price: in least and most, in relief, or in guests */
    struct list link;                   /* on `idle` while it has no tickets */
    struct list tickets;                /* oldest first */
    struct tree_heap first;             /* by price: those in place */
    uint64_t key;                       /* of the map: tenant and band; 0: never used */
    double start;
    double order;       /* in flows or debtors; the least is next */
    uint64_t order_seq; /* decides between equals */
    uint64_t seq;       /* of its oldest ticket's arrival when it began to wait */
    double weight, max_share;
    uint64_t guest_us; /* when it was last served elsewhere after waiting there */
    uint32_t n;        /* tickets, those taken off for a try included */
    uint32_t band;
    bool in_debt;
    bool has_claimed; /* its weight is of a ticket from here */
};

struct band {
    struct heap flows;   /* by order: the next to be served */
    struct heap debtors; /* too; their orders include ADMISSION_DEBT x start */
    struct heap longest; /* by number of tickets: the next to give way */
    struct heap least;   /* not in debt, by start: the least served */
    struct heap most;    /* not in debt: the first to fall into it */
    struct heap relief;  /* in debt: the first to leave it */
    struct heap guests;  /* without tickets, by start: wait elsewhere, or did a while ago */
    double now;          /* virtual time: see admission.h */
    uint64_t last_key;   /* of the flow that began to wait last */
    uint64_t shared_us;  /* when another began to wait than the one before it */
    bool is_shared;      /* that was no longer ago than ADMISSION_ALONE_US, or several wait */
    double most_start;   /* of any flow, ever */
    double weights;      /* sum of those of its flows with tickets */
    uint32_t n;
    uint32_t n_of_price[N_BINS]; /* tickets by price */
};

struct pool { /* of flows, which never move */
    struct pool *next;
    struct admission_flow flows[];
};

struct admission {
    struct admission_options options;
    struct band bands[ADMISSION_BANDS];
    struct map flows; /* by key: flows with tickets, and idle ones */
    struct pool *pools;
    uint32_t n_pool; /* flows in all pools: enough for the longest queue so far */
    uint32_t n;
    double work_s;    /* of all tickets */
    struct list idle; /* longest empty first */
    uint64_t n_pushed;
    uint64_t popped_us; /* last; 0: the queue has been empty since */
    double gap_us;      /* between two pops, running mean */
    uint32_t n_gaps;
};

static inline bool by_price(const struct admission *a) {
    return a->options.order == ADMISSION_BY_PRICE;
}

static inline uint32_t band_of(int32_t priority) {
    return (uint32_t)(MIN(MAX(priority, -BAND_MIDDLE), BAND_MIDDLE - 1) + BAND_MIDDLE);
}

static inline uint64_t flow_key(uint64_t tenant, uint32_t band) {
    return rng_mix(tenant ^ rng_mix(band + 1)) | 1;
}

/* A ticket's place by price: what all of them gain by waiting is left out. */
static inline double key_of(const struct admission_ticket *t) {
    return t->work_s + ADMISSION_AGING * 1e-6 * (double)(int64_t)t->since_us;
}

/* Where debt begins. Who alone has been here for a while owes nothing. */
static inline double band_debt_line(const struct band *b) {
    return b->is_shared ? b->now + ADMISSION_FREE_S : HUGE_VAL;
}

/* Of one of a band's heaps by start: the first. NULL: it is empty. */
static inline struct admission_flow *flow_least_of(const struct heap *starts) {
    struct heap_link *link = heap_first(starts);

    return link ? HEAP_ENTRY(link, struct admission_flow, in_start) : NULL;
}

/* The order of the heap of tickets of a flow. */
bool ticket_is_cheaper(const struct tree_link *a, const struct tree_link *b);
uint32_t admission_bin(double work_s); /* of n_of_price */

/* The tenant's flow. A new one reuses the longest idle flow when none is spare. */
struct admission_flow *flow_get(struct admission *a, uint64_t key, uint32_t band);
/* Of a flow that is to have tickets, or to be another's. */
void flow_leave_guests(struct admission *a, struct admission_flow *f);

/* After its first ticket, its start or its debt changed. */
void flow_place(struct admission *a, struct admission_flow *f);

/* Takes the flow out of all that orders flows, except `longest`. */
void flow_displace(struct admission *a, struct admission_flow *f);

/* The flow has its first ticket. */
void flow_arrive(struct admission *a, struct admission_flow *f);

/* The flow has no ticket any more, or the order changes. */
void flow_depart(struct admission *a, struct admission_flow *f);

/* Its own, or less, with which it gets max_share beside all others that wait. */
double flow_weight(const struct band *b, const struct admission_flow *f);

/* A flow has its first ticket, another than the one before it. */
void band_note_other(struct band *b, const struct admission_flow *f, uint64_t now_us);
/* Has another waited lately? */
void band_note_sharing(struct band *b, uint64_t now_us);

/* Moves flows over the line of debt until all are on their side of it. */
void band_settle_debts(struct admission *a, struct band *b);

/* Puts it in its place among those of its flow. */
void ticket_put_in(struct admission *a, struct admission_ticket *t);
/* Of a ticket off its place. */
void ticket_set_price(struct admission *a, struct admission_ticket *t, double work_s);
/* It does not wait any more. */
void ticket_take_out(struct admission *a, struct admission_ticket *t);

void admission_learn_pace(struct admission *a, uint64_t now_us); /* at each that leaves */

#endif
