/* router/registry/registry_kv.h - what workers report of their caches by KV events.
 * Thread: control. */
#ifndef ROUTER_REGISTRY_REGISTRY_KV_H
#define ROUTER_REGISTRY_REGISTRY_KV_H

#include "router/registry/registry.h"
#include "router/registry/worker_kind.h"

/* A described worker. */
struct registry_engine {
    uint32_t id, incarnation;
    enum worker_kind kind;
    struct address addr; /* with the port of its HTTP server */
    char url[REGISTRY_URL_MAX];
    char labels[REGISTRY_LABELS_MAX];
};
bool registry_engine(struct registry *r, uint32_t id, struct registry_engine *out);

#define REGISTRY_KV_TIERS 4 /* device, host, disk, remote */

/* A cache as its worker's events picture it. */
struct registry_kv {
    bool is_followed; /* its stream is connected */
    bool is_complete; /* nothing is missing: see kv_picture.h */
    uint64_t n_blocks[REGISTRY_KV_TIERS], n_tokens[REGISTRY_KV_TIERS];
    uint64_t digest; /* XOR of the hashes of the device's blocks */
    uint64_t n_events, n_gaps, n_restarts;
    double capacity_tokens; /* of all tiers, as seen when a block is dropped; 0: unknown */
    double stored_tokens;   /* that have entered the cache while it was followed without a gap */
};

/* The lock is taken so often by one note at most: a worker may report any number. */
#define REGISTRY_KV_TURNS 64u

/* Stores it for readers. Of a third-party worker, a capacity that is known bounds the learned one,
 * and what it stores beyond the requests known here ages its part of the index
 * (routing_note_stored): what is more than REGISTRY_KV_TURNS enter is left to the next note.
 * Ignored when the worker is gone. */
void registry_kv_note(struct registry *r, uint32_t id, uint32_t incarnation,
                      const struct registry_kv *kv);

/* Its cache was emptied: so is its part of the index. Ignored of a worker whose request events are
 * followed: these have reported it already, and the worker may hold new blocks. */
void registry_kv_cleared(struct registry *r, uint32_t id, uint32_t incarnation);

#endif
