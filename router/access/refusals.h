/* router/access/refusals.h - requests rejected before they reach a worker: counted and logged.
 *
 * Each rejection has a reason and is counted at once
 * (incipit_requests_refused_total{limit=REASON}). Log lines are few: the first of a reason has one,
 * then each period has one with the number and the most frequent addresses.
 *
 *      request_refused reason=key-unknown count=1 clients="10.0.0.7 (1)"
 *      request_refused reason=key-unknown count=2999 seconds=10 clients="10.0.0.7 (2996), 10.0.0.9 (3)"
 *
 * Addresses are counted in a few places: a new address takes over the place and the count of the
 * rarest, so a count may be too high by that, and a frequent address is always named ("space
 * saving": Metwally, Agrawal, El Abbadi, 2005).
 *
 * One mutex, a leaf, taken once per refusal. Any thread; the tick is the control loop's. */
#ifndef ROUTER_ACCESS_REFUSALS_H
#define ROUTER_ACCESS_REFUSALS_H

#include "common/base/base.h"
#include "common/base/buf.h"

struct log;
struct metrics;
struct refusals;

#define REFUSALS_PERIOD_US 10000000u

/* Names are public: they are values of the metric's label. */
enum refusal {
    REFUSAL_KEY_LIMIT, /* limits of a known key: rps, tokens_per_s, max_concurrent */
    REFUSAL_QUEUE_SIZE,
    REFUSAL_QUEUE_TIMEOUT,
    REFUSAL_DEADLINE,
    REFUSAL_SESSION_TIMEOUT,
    REFUSAL_KEY_MISSING,
    REFUSAL_KEY_UNKNOWN,
    REFUSAL_ADMIN_KEY_MISSING,
    REFUSAL_ADMIN_KEY_UNKNOWN,
    REFUSAL_ADMIN_PORT, /* a change that only the admin port accepts */
    REFUSAL_ADMIN_PAGE, /* a change requested by a web page of another origin */
    REFUSAL_PATH,       /* unknown path or method, or one that is not forwarded */
    REFUSAL_FORBIDDEN,  /* a field or an explanation not for clients, or a loop */
    REFUSAL_TENANT,     /* the tenant's header */
    REFUSAL_BODY,       /* unreadable or too large */
    REFUSAL_MODEL,      /* no such model here */
    REFUSAL_POISON,
    REFUSAL_NO_WORKER,
    REFUSAL_MEMORY,
    REFUSAL_COUNT,
};

extern const char *const refusal_names[REFUSAL_COUNT];

struct refusals *refusals_create(struct metrics *metrics, struct log *log);
void refusals_destroy(struct refusals *r); /* logs what is not logged yet; NULL is fine */

/* Counts one. `client`: its address. `r` NULL: not counted. */
void refusals_note(struct refusals *r, enum refusal reason, struct str client, uint64_t now_us);

/* Several times a second: logs periods that are over. */
void refusals_tick(struct refusals *r, uint64_t now_us);

#endif
