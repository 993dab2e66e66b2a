/* router/ejection/breaker.h - stops sending to a failing worker, and tries it again.
 *
 *                 failed                  its pause is over               a request was sent
 *      CLOSED ------------> OPEN ------------------------------> HALF_OPEN ------------> TRYING
 *         ^                  | ^                                    ^                    | | |
 *         +---- is back -----+ |                                    |                    | | |
 *         +--- succeeded ------|------------------------------------|--------------------+ | |
 *                              +------------------------------------|------- failed -------+ |
 *                                                                   +---- neither (cancelled)+
 *
 * Half open admits exactly one request; its result decides.
 *
 * The pause depends on what a trial costs. A trial that fails before its client has seen a byte is
 * retried elsewhere and costs that client only time: the pause is BREAKER_COST times that time, at
 * least the caller's minimum, one probe period. So a worker that answers 500 at once is tried in
 * each probe period, one that hangs for 2 s every 40 s. After a failure that a client has seen the
 * pause is 1 s and doubles up to 60 s.
 *
 * Pure: time is an argument. Owner: registry, under its lock. */
#ifndef ROUTER_EJECTION_BREAKER_H
#define ROUTER_EJECTION_BREAKER_H

#include "common/base/base.h"

#define BREAKER_MIN_US 1000000ull  /* first pause after a failure that a client has seen */
#define BREAKER_MAX_US 60000000ull /* longest pause of any kind */
#define BREAKER_COST   20          /* at most about one request in so many meets a trial */

enum breaker_state { BREAKER_CLOSED, BREAKER_OPEN, BREAKER_HALF_OPEN, BREAKER_TRYING };

/* Why it opened. */
enum breaker_cause {
    BREAKER_UNREACHED, /* no connection could be made */
    BREAKER_LOST,      /* a connection broke, was silent too long, or carried what is not HTTP */
    BREAKER_ERRORS,    /* answers of 5xx */
    BREAKER_EMPTY,     /* empty answers, or an error instead of an answer */
    BREAKER_N_CAUSES
};

extern const char *const breaker_cause_names[BREAKER_N_CAUSES]; /* "unreachable" */

struct breaker {
    enum breaker_state state;
    enum breaker_cause cause; /* of the last failure */
    uint32_t n_seen;          /* failures in a row that a client has seen */
    uint64_t pause_us;        /* the last one */
    uint64_t until_us;        /* OPEN: when it becomes half open */
};

struct breaker_failure {
    enum breaker_cause cause;
    bool is_seen;     /* a client has seen a part of the answer */
    uint64_t cost_us; /* from sending the request to its failure */
    uint64_t min_us;  /* shortest pause */
};

static inline bool breaker_admits(const struct breaker *b) {
    return b->state == BREAKER_CLOSED || b->state == BREAKER_HALF_OPEN;
}

void breaker_failed(struct breaker *b, const struct breaker_failure *f, uint64_t now_us);
void breaker_succeeded(struct breaker *b);
void breaker_undecided(struct breaker *b); /* the request ended without a verdict */
void breaker_sent(struct breaker *b);
void breaker_tick(struct breaker *b, uint64_t now_us);

/* Closes it at once, whatever its pause. */
void breaker_close(struct breaker *b);

/* A probe was answered; `was_away`: the previous one was not. A probe shows that the worker is
 * reachable, not that its answers are good. True: this call closed it. */
bool breaker_probed(struct breaker *b, bool was_away);

#endif
