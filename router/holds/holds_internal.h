/* router/holds/holds_internal.h - a call on its way, for the files of the room. */
#ifndef ROUTER_HOLDS_HOLDS_INTERNAL_H
#define ROUTER_HOLDS_HOLDS_INTERNAL_H

#include <stdatomic.h>

#include "common/base/list.h"
#include "common/http/http_client.h"
#include "common/net/loop.h"
#include "common/net/mailbox.h"
#include "router/access/isolation.h"
#include "router/holds/hold_table.h"
#include "router/holds/holds.h"
#include "router/registry/registry_route.h"
#include "router/registry/registry_view.h"

#define HOLDS_TRIED_MAX 16u
#define HOLDS_ATTEMPTS  3u /* workers that one call is sent to, one after the other */

struct holds {
    struct holds_config config;
    struct hold_table *table;
    struct mailbox *box, *left; /* calls; those whose clients have left */
    struct list calls;          /* those of clients, and its own: repeating, asking */
    struct loop_timer look;
    struct registry_candidate *candidates; /* (max_workers) */
    uint64_t polled_us;
    bool is_polling;
    atomic_uint n_calls; /* of clients */
};

enum holds_op {
    HOLDS_HOLD,
    HOLDS_RELEASE,
    HOLDS_PREWARM,
    HOLDS_LIST,
    HOLDS_REPEAT, /* our own: a copy more of an entry */
    HOLDS_POLL,   /* our own: what do workers hold? */
};

/* A call to one worker. */
struct holds_leg {
    struct holds_call *call;
    struct http_call *http;
    struct registry_view view;
    bool is_routed; /* its ticket is open */
    struct route_ticket ticket;
    struct registry_target target;
    uint32_t n_attempts;
    bool is_ok;
    char model[WIRE_MODEL_MAX]; /* as the worker answered */
    struct hold_copy copy;      /* what the worker answered */
    uint64_t prompt_tokens, cached_tokens, restored_tokens, restore_us;
};

struct holds_call {
    struct mail mail, leave;
    atomic_uint n_refs; /* of who has `mail`, and of who has `leave` */
    struct holds *holds;
    struct mailbox *home;     /* NULL: our own */
    struct http_request *req; /* the home loop's; NULL once the client has gone */
    struct list link;         /* on holds->calls */
    bool is_under_way;        /* it is there */
    bool has_left;            /* its client, as far as the control loop knows */
    enum holds_op op;

    /* Asked. */
    struct buf body;
    struct key_use key;
    char tenant[KEY_TENANT_MAX + 1], holder[KEY_NAME_MAX];
    char client[KEY_TENANT_MAX + 1]; /* its tenant's name, or its address */
    uint64_t owner;                  /* who may see and release it */
    struct body_scan scan;
    char salt[ISOLATION_SALT_CHARS + 1];
    struct buf sent; /* the body for workers that do not trust this router: with the salt */
    uint32_t n_wanted, ttl_s;
    uint64_t id; /* of the entry to release, or to repeat */

    /* On its way. */
    uint64_t *chain;
    struct route_request rq;
    uint32_t tried[HOLDS_TRIED_MAX], n_tried;
    uint32_t n_lost, max_lost; /* workers that died on it; at max_lost it is taken for poison */
    struct holds_leg *legs;    /* (n_legs) */
    uint32_t n_legs, n_open, n_max_legs;
    uint64_t asked_us; /* workers what they hold: nothing of what was made since */

    /* Answered. */
    int code; /* 0: err */
    struct error err;
    struct buf answer;
};

extern const char *const holds_op_names[];

/* holds.c */
struct holds_call *holds_call_create(struct holds *h, enum holds_op op);
void holds_call_free(struct holds_call *c);           /* it is over */
uint64_t holds_tenant_of(const struct holds_call *c); /* 0: no tenant's */
void holds_call_ended(struct holds_call *c);          /* the last leg is over */
void holds_call_done(struct holds_call *c, int code); /* answered: 0: c->err */

/* holds_legs.c: each returns with n_open legs on their way; none: c->err, or nothing to ask. */
MUST_USE enum status holds_prepare(struct holds_call *c); /* scan, salt, hash; ST_OK or c->err */
void holds_start_prompts(struct holds_call *c, uint32_t n);
void holds_start_releases(struct holds_call *c, const struct hold_entry *e);
void holds_start_polls(struct holds_call *c);
void holds_cancel(struct holds_call *c);

/* holds_answer.c */
void holds_put_hold(struct holds_call *c, const struct hold_entry *e);
void holds_put_prewarm(struct holds_call *c);
void holds_put_release(struct holds_call *c, uint64_t id);
void holds_put_list(struct holds_call *c);
void holds_set_metrics(const struct holds *h);

static inline uint64_t holds_now_us(const struct holds_call *c) {
    return loop_now_us(c->holds->config.loop);
}

#endif
