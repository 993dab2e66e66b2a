/* worker/worker_kv.h - from the options about host memory and KV events to the engine's. */
#ifndef WORKER_WORKER_KV_H
#define WORKER_WORKER_KV_H

#include "worker/engine/engine.h"
#include "worker/kv/tiers/file.h"
#include "worker/kv/tiers/peer/peer.h"
#include "worker/kv/tiers/store/store.h"
#include "worker/worker_options.h"

/* What the engine's options point to. */
struct worker_kv {
    struct tier_file_config file;
    struct tier_store_config store;
    struct tier_peer_config peer;
    struct peer_server *peers; /* NULL: off */
    uint8_t fleet_key[1][32];
};

/* Fills in engine->host_kv_bytes, kv.no_host_cache, kv.events, fleet_key, tiers and peers; the hash
 * and engine->log must be chosen already. *log, and kv->peers also on failure, are the caller's to
 * destroy after the engine, NULL when events or peers are off; *kv must outlive engine_create.
 * ST_INVALID names the option. */
MUST_USE enum status worker_kv_configure(const struct worker_options *o,
                                         struct engine_options *engine, struct kv_event_log **log,
                                         struct worker_kv *kv, struct error *err);

#endif
