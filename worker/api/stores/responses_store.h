/* worker/api/stores/responses_store.h - responses that clients may name again, for a while.
 *
 * Each is kept with the items of its own input and the id of the response that it continues: a
 * chain, whose items in order are the conversation so far. Bounded in bytes, in which holders have
 * equal shares (shares.h). What is older than the time to live is gone. A use of a response counts
 * for all that it continues, so that a chain loses its newest responses before its oldest.
 *
 * A response is found by its id and the tenant that it was made for. Time is an argument. Pure; one
 * thread. */
#ifndef WORKER_API_STORES_RESPONSES_STORE_H
#define WORKER_API_STORES_RESPONSES_STORE_H

#include "common/base/buf.h"
#include "common/base/status.h"

struct responses_store;

struct stored_response {
    struct str id, previous;  /* previous: the id that it continues, or empty */
    uint64_t tenant;          /* that may name it */
    uint64_t holder;          /* whose share it takes: of one there are several tenants, by salts */
    struct str input, output; /* its items: elements of a JSON array */
    struct str response;      /* JSON */
};

struct responses_store *responses_store_create(size_t max_bytes, uint64_t ttl_us, uint64_t seed);
void responses_store_destroy(struct responses_store *s); /* NULL is fine */

/* Copies. One that finds no room is not kept; an id that is there is replaced. */
void responses_store_put(struct responses_store *s, const struct stored_response *r,
                         uint64_t now_us);

/* False: it is not there. The strings live until the next call. */
bool responses_store_get(struct responses_store *s, struct str id, uint64_t tenant, uint64_t now_us,
                         struct stored_response *out);
bool responses_store_erase(struct responses_store *s, struct str id, uint64_t tenant,
                           uint64_t now_us);

/* Appends a JSON array: the items of input and output of that response and of all that it
 * continues, oldest first. Their responses are not read: what a client has put beside its input
 * costs the turns after it nothing. ST_NOT_FOUND if one of them is gone. */
MUST_USE enum status responses_store_items(struct responses_store *s, struct str id,
                                           uint64_t tenant, uint64_t now_us, struct buf *out);

struct responses_store_stats {
    uint64_t n, bytes, n_evicted; /* evicted: for want of room, or too old */
};
struct responses_store_stats responses_store_stats(const struct responses_store *s);

void responses_store_check(const struct responses_store *s); /* asserts the invariants */

#endif
