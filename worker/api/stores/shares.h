/* worker/api/stores/shares.h - a memory of some bytes that tenants share: whose entry goes.
 *
 *      tenants by their bytes      each tenant's entries
 *           7 ─────────────────▶   longest unused ... last used
 *           3 ─────────────────▶   ...
 *
 * Where room is wanted, the tenant that would have most, the newcomer included, loses what it used
 * longest ago. So none displaces what others keep below an equal share, except by one entry of at
 * most 1 / SHARES_NEWCOMER of the memory.
 *
 * A memory embeds a share_entry in its own, and finds these by a map of its own. A tenant is here
 * exactly while it has entries. Pure; one thread. */
#ifndef WORKER_API_STORES_SHARES_H
#define WORKER_API_STORES_SHARES_H

#include "common/base/heap.h"
#include "common/base/list.h"
#include "common/base/map.h"

#define SHARES_NEWCOMER 8

struct share_tenant;

struct share_entry {
    struct list link;
    struct share_tenant *tenant;
    size_t n_bytes;
};

struct shares { /* private */
    struct map tenants;
    struct heap largest;
    size_t max_bytes, n_bytes;
};

void shares_init(struct shares *s, size_t max_bytes, uint64_t seed);
void shares_fini(struct shares *s); /* it is empty */

bool shares_has_room(const struct shares *s, size_t n_bytes);

/* The entry to remove next so that one of n_bytes of that tenant has room; to be called again until
 * shares_has_room. NULL: none has to go for it, it is too large. */
struct share_entry *shares_loser(const struct shares *s, uint64_t tenant, size_t n_bytes);

/* The entry is the tenant's, and last used. There must be room. */
void shares_add(struct shares *s, uint64_t tenant, struct share_entry *e, size_t n_bytes);
void shares_use(struct share_entry *e); /* it is last used now */
void shares_remove(struct shares *s, struct share_entry *e);

struct share_entry *shares_any(const struct shares *s); /* NULL: it is empty */

/* Asserts the invariants; returns the number of entries. */
size_t shares_check(const struct shares *s);

#endif
