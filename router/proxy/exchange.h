/* router/proxy/exchange.h - one request of a client: its states, its attempts, and what it holds.
 *
 *      IDLE ──proxy_start──▶ OPEN ──every worker is full──▶ QUEUED ◀──no worker is up──┐
 *                             │                               │                       │
 *                             │ routed                        │ granted               │
 *                             ▼                               │                       │
 *      ┌─────▶ SENDING ◀──────┴───────────────────────────────┘                       │
 *      │          │ part of the head                                                  │
 *      │          ▼                                                                   │
 *      │      RECEIVING                           no retry budget                     │
 *      │          │ whole head            ┌─────────────────────────▶ PAUSED          │
 *      │          ▼                       │                             │ retry timer │
 *      │         HELD ──failed (*)──▶ CHOOSING ◀────────────────────────┘             │
 *      │          │                    │ │ ▲ └────────────────────────────────────────┘
 *      └──────────┼──────routed────────┘ │ │ worker lost
 *                 │                      ▼ │
 *                 │ first byte        FALLBACK (no other worker takes it; an answer is there)
 *                 ▼                       │ first byte
 *             ANSWERING ──ended──▶ FINISHING
 *
 *      (*) SENDING and RECEIVING too. Errors, aborts and timeouts lead by CHOOSING or FINISHING, or
 *      straight from OPEN, PAUSED and FALLBACK, to ENDED ──end of the turn──▶ IDLE. A QUEUED one that
 *      ends while the registry's decision is on its way is MAIL_DUE ──mail──▶ ENDED.
 *
 * Only exchange_move changes the state, and asserts that the table below allows the move. An open
 * ticket is accounted once, by proxy_account, which leaves the states that have one. A request is
 * sent to another worker only while its client has nothing, or nothing but comments. Thread: the
 * router loop of its proxy. */
#ifndef ROUTER_PROXY_EXCHANGE_H
#define ROUTER_PROXY_EXCHANGE_H

#include <assert.h>

#include "common/base/list.h"
#include "common/http/http_parse.h"
#include "common/http/http_server.h"
#include "common/net/loop.h"
#include "common/protocol/api.h"
#include "router/access/isolation.h"
#include "router/access/keys.h"
#include "router/prompt/body_scan.h"
#include "router/prompt/client_noise.h"
#include "router/proxy/answers/sse_usage.h"
#include "router/proxy/upstream/upstream.h"
#include "router/registry/explain.h"
#include "router/registry/registry_route.h"

#define MAX_ATTEMPTS   8
#define REQUEST_ID_MAX 128

/* And the timers that run in each, beside --request-timeout, which runs from OPEN to FINISHING. */
enum exchange_state {
    EXCHANGE_IDLE,     /* recycled: it has buffers and no request */
    EXCHANGE_OPEN,     /* permitted, scanned, admitted, hashed; within one turn of the loop */
    EXCHANGE_QUEUED,   /* the registry keeps it. queue_timer: --queue-timeout */
    EXCHANGE_CHOOSING, /* an attempt has ended; within one turn of the loop */
    EXCHANGE_PAUSED,   /* the retry budget is empty. retry: RETRY_PAUSE_US */
    EXCHANGE_SENDING,  /* ticket open, no byte of an answer. sweep: --first-byte-timeout; prefill */
    EXCHANGE_RECEIVING, /* ticket open, a part of the head. sweep: --first-byte-timeout; prefill */
    EXCHANGE_HELD,      /* ticket open, the head kept back. sweep: --first-byte-timeout; prefill */
    EXCHANGE_FALLBACK,  /* ticket closed, the head of an error kept back */
    EXCHANGE_ANSWERING, /* ticket open, the client has bytes. sweep: --stream-idle-timeout;
                         * prefill */
    EXCHANGE_FINISHING, /* ticket closed, the client has bytes. sweep: --stream-idle-timeout */
    EXCHANGE_MAIL_DUE,  /* over; the registry's decision is on its way */
    EXCHANGE_ENDED,     /* over; IDLE at the end of the turn */
    EXCHANGE_N_STATES
};

/* Sets of states: the ticket is open; the worker's head is there; the client has bytes. */
#define EXCHANGE_BIT(state) (1u << EXCHANGE_##state)
#define EXCHANGE_TICKET                                                                            \
    (EXCHANGE_BIT(SENDING) | EXCHANGE_BIT(RECEIVING) | EXCHANGE_BIT(HELD) | EXCHANGE_BIT(ANSWERING))
#define EXCHANGE_HEAD                                                                              \
    (EXCHANGE_BIT(HELD) | EXCHANGE_BIT(FALLBACK) | EXCHANGE_BIT(ANSWERING) |                       \
     EXCHANGE_BIT(FINISHING))
#define EXCHANGE_SENT (EXCHANGE_BIT(ANSWERING) | EXCHANGE_BIT(FINISHING))

/* The states from which each may be entered. */
static const uint16_t exchange_sources[EXCHANGE_N_STATES] = {
    [EXCHANGE_IDLE] = EXCHANGE_BIT(ENDED),
    [EXCHANGE_OPEN] = EXCHANGE_BIT(IDLE),
    [EXCHANGE_QUEUED] = EXCHANGE_BIT(OPEN) | EXCHANGE_BIT(CHOOSING),
    [EXCHANGE_CHOOSING] = EXCHANGE_BIT(QUEUED) | EXCHANGE_BIT(PAUSED) | EXCHANGE_BIT(SENDING) |
                          EXCHANGE_BIT(RECEIVING) | EXCHANGE_BIT(HELD) | EXCHANGE_BIT(FALLBACK),
    [EXCHANGE_PAUSED] = EXCHANGE_BIT(CHOOSING),
    [EXCHANGE_SENDING] = EXCHANGE_BIT(OPEN) | EXCHANGE_BIT(QUEUED) | EXCHANGE_BIT(CHOOSING),
    [EXCHANGE_RECEIVING] = EXCHANGE_BIT(SENDING),
    [EXCHANGE_HELD] = EXCHANGE_BIT(SENDING) | EXCHANGE_BIT(RECEIVING),
    [EXCHANGE_FALLBACK] = EXCHANGE_BIT(CHOOSING),
    [EXCHANGE_ANSWERING] = EXCHANGE_BIT(HELD),
    [EXCHANGE_FINISHING] = EXCHANGE_BIT(ANSWERING) | EXCHANGE_BIT(FALLBACK),
    [EXCHANGE_MAIL_DUE] = EXCHANGE_BIT(QUEUED),
    [EXCHANGE_ENDED] = EXCHANGE_BIT(OPEN) | EXCHANGE_BIT(CHOOSING) | EXCHANGE_BIT(PAUSED) |
                       EXCHANGE_BIT(FALLBACK) | EXCHANGE_BIT(FINISHING) | EXCHANGE_BIT(MAIL_DUE),
};

enum answer_form { ANSWER_OTHER, ANSWER_JSON, ANSWER_SSE }; /* by its content-type */

/* Whether a worker's error counts against the worker. SPARED: the error was passed on because the
 * retry budget was empty; other workers might have answered alike. */
enum attempt_blame { BLAME_NONE, BLAME_ACCUSED, BLAME_SPARED };

/* One try on one worker. The first part is set when it is routed; the rest also when the request is
 * sent to this worker again, on a fresh connection. */
struct attempt {
    struct route_ticket ticket; /* open in the states of EXCHANGE_TICKET */
    struct registry_target target;
    struct upstream *up;   /* its own until it is released or discarded; NULL: none */
    struct loop_task send; /* sends the request, at the end of the turn in which it was routed */
    struct loop_timer prefill; /* until the predicted first token: see watch_prefill */
    bool is_retry; /* it is counted in proxy->n_retrying, until its first token or end */

    struct http_head head;
    struct http_body body;
    struct route_feedback feedback;
    struct sse_usage usage; /* what its body reports of tokens */
    uint64_t first_token_us;
    uint64_t sent_bytes;          /* payload, to the client */
    uint64_t seen_bytes, seen_us; /* sent_bytes when the sweep last found progress, and when */
    uint64_t hung_bytes, hung_us; /* sent_bytes when its worker was found hung, and when; or 0 */
    uint32_t n_interim;           /* 1xx heads so far */
    uint32_t n_connections;       /* 2: the kept-alive one was dead, and a fresh one followed */
    enum answer_form form;
    enum attempt_blame blame;
    enum registry_outcome outcome; /* by what has come: OK, REFUSED, EMPTY, SPOILT */
    char first_byte, last_byte;    /* of a JSON answer, blanks aside */
    /* Facts, which hold in several states. */
    bool first_token_unreported; /* it came in this read: the registry gets it when that is over */
    bool is_stream; /* 200 with events to which comments may be added (proxy_comments.c) */
};

struct leg;

struct exchange {
    struct list link; /* on proxy->open, on proxy->idle while recycled */
    struct proxy *proxy;
    enum exchange_state state; /* changed by exchange_move alone */
    struct attempt try;        /* the current attempt, or the last one */
    struct leg *leg;           /* another worker computes its prompt (leg.h); NULL: never yet */
    struct pair_price pair;    /* of the last attempt that had a choice: has_price */
    struct http_request *req;  /* NULL once it is answered or abandoned */
    struct body_scan scan;
    enum api_form api; /* of its path */
    uint64_t start_us;
    struct route_request rq; /* the registry's while QUEUED */
    struct loop_timer timeout, retry, queue_timer;
    struct registry_waiter waiter;
    uint64_t queued_us, waited_us; /* since when; all waits together */
    uint32_t held_position;        /* in the queue when it last began to wait; 0: never waited */
    bool is_requeued;              /* it waits after a failed attempt: a retry when it is sent */
    struct loop_task recycle;

    struct buf out;  /* request head for the worker, then response head for the client; kept */
    uint64_t *chain; /* grows, is kept */
    uint32_t chain_cap;
    uint32_t tried[MAX_ATTEMPTS], tried_incarnations[MAX_ATTEMPTS]; /* workers */
    uint32_t n_tried, n_attempts;
    uint32_t n_lost, max_lost; /* workers that died on it; at max_lost it is taken for poison */
    uint32_t n_pauses;         /* for the retry budget */
    uint32_t n_drained;        /* workers that were draining when they got it */
    uint32_t n_unreached;      /* attempts that reached no worker */
    uint32_t n_accused;        /* workers that answered it with an error, or with nothing */
    struct registry_accused accused[MAX_ATTEMPTS];
    struct key_use key;             /* by which it was admitted */
    struct hold_due due;            /* by_us 0: it has no deadline */
    struct str tenant;              /* ""; or the name of the tenant that sent it */
    struct isolation_splice splice; /* if is_salted: for workers that take no x-incipit-salt */
    char salt[ISOLATION_SALT_CHARS + 1];
    struct client_noise noise;      /* in the body, and cut from what workers get if cuts_noise */
    uint64_t retry_after_us;        /* of Retry-After in an error of the router; 0: one second */
    uint64_t client_bytes;          /* of the body, to the client, comments included */
    uint64_t heard_bytes, heard_us; /* client_bytes when the sweep last found more, and when */
    const char *failure;            /* why the last attempt failed */
    char request_id[REQUEST_ID_MAX + 1];
    uint8_t request_id_len;
    size_t system_bytes;     /* of the prompt, by a field of their own; 0: unknown */
    uint32_t kinds;          /* of workers that serve its path, a bit each */
    uint32_t kinds_unsalted; /* of them, those that read no salt there, if tenants are isolated */
    struct explanation why;  /* filled if it wants one, or if decisions are logged */
    /* Facts of the request, which hold from OPEN to the end. */
    bool wants_explanation; /* in x-incipit-route */
    bool is_generation;     /* computes its prompt: what is read stays in the worker's cache */
    bool is_light;          /* takes no place on its worker: see forward.h */
    bool is_safe;           /* may be sent twice: see forward.h */
    bool is_lookup;         /* of a stored response: without a body, and for one worker alone */
    bool is_salted;         /* its tenant shares no cache with others */
    bool cuts_noise;        /* by --strip-client-noise, for its path */
    bool is_refused;        /* its refusal has been counted, with a reason */
    bool is_late;           /* refused because of its deadline */
    bool wants_comments;    /* before its worker's head: x-incipit-queue-comments */
    bool has_early_head;  /* its client has a stream's head and comments: it may be retried still */
    bool is_amid_comment; /* of a worker, the last that the client has */
    bool is_route_due;    /* x-incipit-route, which the early head had not */
    bool is_chunked;      /* how the answer is framed for the client */
    bool has_price;       /* prefill and decode could be apart */
    bool will_close;      /* the client's head announces the end of its connection */
};

static inline bool exchange_is_in(const struct exchange *x, uint32_t states) {
    return (1u << x->state & states) != 0;
}

static inline void exchange_move(struct exchange *x, enum exchange_state to) {
    assert(exchange_is_in(x, exchange_sources[to]));
    x->state = to;
}

#endif
