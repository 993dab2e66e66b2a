/* router/access/refusals.h - requests that were refused before a worker was asked: counted, and seen in the log.
 *
 * Each has a reason. It is counted at once (incipit_requests_refused_total{limit=REASON}); lines are few,
 * however many there are: the first of a reason has one, then each period has one with how many there
 * were and the addresses that most came from.
 *
 *      request_refused reason=key-unknown count=1 clients="10.0.0.7 (1)"
 *      request_refused reason=key-unknown count=2999 seconds=10 clients="10.0.0.7 (2996), 10.0.0.9 (3)"
 *
 * Addresses are counted in a few places: a new one takes over that of the rarest and its count, so a
 * count is at most too high by what was there before, and who comes often is always named ("space
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
    REFUSAL_KEY_LIMIT, /* of a key that is known: rps, tokens_per_s, max_concurrent */
    REFUSAL_QUEUE_SIZE,
    REFUSAL_QUEUE_TIMEOUT,
    REFUSAL_KEY_MISSING,
    REFUSAL_KEY_UNKNOWN,
    REFUSAL_ADMIN_KEY_MISSING,
    REFUSAL_ADMIN_KEY_UNKNOWN,
    REFUSAL_ADMIN_PORT, /* a change that only the admin port takes */
    REFUSAL_ADMIN_PAGE, /* a change that a web page of another origin asked for */
    REFUSAL_PATH,       /* no such path or method here, or none that is forwarded */
    REFUSAL_FORBIDDEN,  /* a field or an explanation that is not for clients, or a loop */
    REFUSAL_TENANT,     /* the tenant's header */
    REFUSAL_BODY,       /* cannot be read, or is too large */
    REFUSAL_MODEL,      /* no such model here */
    REFUSAL_POISON,
    REFUSAL_NO_WORKER,
    REFUSAL_MEMORY,
    REFUSAL_COUNT,
};

extern const char *const refusal_names[REFUSAL_COUNT];

struct refusals *refusals_create(struct metrics *metrics, struct log *log);
void refusals_destroy(struct refusals *r); /* writes what has no line yet; NULL is fine */

/* One was refused. `client`: its address. `r` NULL: it is not counted. */
void refusals_note(struct refusals *r, enum refusal reason, struct str client, uint64_t now_us);

/* Some times a second: writes the lines of periods that are over. */
void refusals_tick(struct refusals *r, uint64_t now_us);

#endif
