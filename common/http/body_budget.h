/* common/http/body_budget.h - the memory of request bodies in a whole process.
 *
 * The HTTP servers of a process, on any loops, share one budget. It has two parts:
 *
 *      |---------------- large: three quarters ----------------|---- small: a quarter ----|
 *       one claim per long body, of its whole length, before     divided evenly over the
 *       more of it is read; each owner has a share at most       loops: a plain counter each
 *
 * A claim covers a whole body, so an admitted body can always finish and claims cannot deadlock. An
 * owner is a client's address or an API key. One owner has at most half of the total in the large
 * part, except that a single body of the largest size is always possible. Short requests are
 * separate: they pass while long bodies hold all of their part.
 *
 * A refused body may wait, while few wait: the first bytes of waiting bodies take up to an eighth
 * of the total in addition. The budget counts the bytes waited for, so that servers can end bodies
 * without progress.
 *
 * Any thread; a pool belongs to one. Taking from a pool costs an addition, all else a short
 * lock. */
#ifndef COMMON_HTTP_BODY_BUDGET_H
#define COMMON_HTTP_BODY_BUDGET_H

#include "common/base/base.h"

struct body_budget;

/* n_pools: loops that will open a pool, at least 1. Fewer than BODY_BUDGET_LEAST count as so
 * many. */
#define BODY_BUDGET_LEAST (UINT64_C(1) << 20)
struct body_budget *body_budget_create(uint64_t total_bytes, uint32_t n_pools);
void body_budget_destroy(struct body_budget *b); /* all claims given back; NULL is fine */

/* Another total, from any thread. What is held above it stays held until it is released. */
void body_budget_set_total(struct body_budget *b, uint64_t total_bytes);

/* An owner may hold all: its clients are routers, which divide what they send among theirs. At the
 * start. */
void body_budget_without_shares(struct body_budget *b);

/* What a program takes without an option: a part of what the process may use, at most `most`. */
#define BODY_BUDGET_PART 4
uint64_t body_budget_default(uint64_t process_bytes, uint64_t most);

/* Hashes addresses to numbers, equal at each server. */
uint64_t body_budget_seed(const struct body_budget *b);

uint64_t body_budget_largest(struct body_budget *b); /* bytes of one body, at most */

/* --- long bodies ----------------------------------------------------------------------------- */

struct body_claim {
    uint64_t bytes;        /* held; 0: nothing */
    uint64_t wanted_bytes; /* it waits for so many; 0: it does not */
    uint64_t address, key; /* the owners as numbers; 0: unknown, without a share */
    bool waits_for_share;
};

enum body_verdict {
    BODY_GRANTED,
    BODY_FULL,  /* all is held */
    BODY_SHARE, /* its owner holds its share */
};

/* All or nothing; adds to what the claim holds. A claim that waited does so no longer when
 * granted. */
enum body_verdict body_budget_take(struct body_budget *b, struct body_claim *claim, uint64_t bytes);

/* The claim waits for that, after the verdict; false: too many do already. One that waits may be
 * put down again, with the verdict of its last try. */
bool body_budget_wait(struct body_budget *b, struct body_claim *claim, uint64_t bytes,
                      enum body_verdict verdict);

void body_budget_release(struct body_budget *b, struct body_claim *claim); /* held and wanted */

/* From now on the claim, with what it holds already, is this key's as well. Once, before it
 * waits. */
void body_budget_set_key(struct body_budget *b, struct body_claim *claim, uint64_t key);

/* Bytes that others wait for and that the release of this claim would go towards. */
uint64_t body_budget_pressure(struct body_budget *b, const struct body_claim *claim);
bool body_budget_is_short(const struct body_budget *b); /* a claim waits; no lock */

/* --- short ones ------------------------------------------------------------------------------ */

/* The part of one loop. Lives as long as the budget, which frees it. */
struct body_pool;
struct body_pool *body_pool_open(struct body_budget *b);

/* False: more than the pool has. */
bool body_pool_take(struct body_pool *pool, uint32_t bytes);
void body_pool_give(struct body_pool *pool, uint32_t bytes);

/* --- looking --------------------------------------------------------------------------------- */

struct body_budget_stats {
    uint64_t total_bytes, large_bytes, small_bytes; /* the limit; held */
    uint64_t wanted_bytes;
    uint32_t n_waiting, n_owners; /* owners: addresses and keys that hold or wait */
};
struct body_budget_stats body_budget_stats(struct body_budget *b);

void body_budget_check(struct body_budget *b); /* asserts the invariants; O(owners) */

#endif
