/* worker/kv/tiers/kv_names.h - the names by which other processes know cached contents, and which
 * of them are worth keeping there.
 *
 * Block hashes are private to a process, and prefix numbers to a run of it. A tier below host
 * memory goes by outer keys (tiers/unit.h): a chain of its own, computed once for each content,
 * when the device's cache gets it, from the key of the block before it. The name then stays beside
 * the block, and goes with the content to host memory.
 *
 * A content is *wanted* below when it was met twice: it was hit, or computed again after it was
 * lost. Keys met once are remembered in a table that forgets by being overwritten. So prompts that
 * never return write nothing.
 *
 * Other workers ask for contents by key. So both kinds of blocks have an index by it, whose entries
 * stay until their block gets another name: a block that it finds may be published no more.
 *
 * Nameless: what depends on more than tokens (an adapter, a salt, items), and all behind it.
 * Thread: engine. Nothing is allocated after init. */
#ifndef WORKER_KV_TIERS_KV_NAMES_H
#define WORKER_KV_TIERS_KV_NAMES_H

#include "worker/kv/tiers/unit.h"

#define KV_NAMES_ROOT UINT32_MAX

struct kv_name {
    struct unit_key key, parent;
    uint32_t index; /* of the block in its chain */
    bool is_named, is_wanted;
};

struct kv_names_config {
    const uint8_t *fleet_key; /* 32 bytes, outlives the names; NULL: the fixed one */
    struct unit_key root;
    /* How many of keys[0, n), first to last, need not be brought to host memory: they are below
     * already, or would not be written, and no other worker asks for them. */
    uint32_t (*count_below)(void *arg, const struct unit_key *keys, uint32_t n);
    /* Host memory has this wanted content, or is about to; and: it is about to forget a named one.
     * They must not change a pool. */
    void (*on_host)(void *arg, uint32_t host);
    void (*on_host_evict)(void *arg, uint32_t host);
    /* Contents that clients hold: a place below is to keep them once more, or once less; how many
     * of keys[0, n), from the first on, it has; and the most that it keeps. */
    void (*hold_below)(void *arg, const struct unit_key *keys, uint32_t n, bool is_held);
    uint32_t (*count_held)(void *arg, const struct unit_key *keys, uint32_t n);
    uint32_t (*max_held)(void *arg);
    void *arg;
};

struct kv_names_index {
    uint32_t *first, *next, mask; /* (mask + 1), by key; (blocks), KV_NAMES_ROOT at the end */
    bool *is_in;                  /* (blocks) */
};

struct kv_names {
    struct kv_names_config config;
    struct kv_names_index by_device_key, by_host_key;
    struct kv_name *device, *host; /* by block */
    uint32_t *met, met_mask;       /* tags of keys met once */
    uint32_t block_size;
    struct unit_key *keys; /* (longest chain) scratch */
};

void kv_names_init(struct kv_names *names, const struct kv_names_config *config, uint32_t n_device,
                   uint32_t n_host, uint32_t block_size, uint32_t longest);
void kv_names_fini(struct kv_names *names); /* a zeroed one is fine */

/* The device's cache got the content `tokens` behind that of `parent` (KV_NAMES_ROOT: none) as
 * block `index` of its chain, in `id`. is_nameless: it depends on more than tokens, or is not to be
 * kept below. */
void kv_names_computed(struct kv_names *names, uint32_t id, uint32_t parent, uint32_t index,
                       const uint32_t *tokens, bool is_nameless);

/* The host block has this name from now on. */
void kv_names_set_host(struct kv_names *names, uint32_t host, const struct kv_name *name);

/* A block that had, or has, the content with this key, the first one behind `after` (KV_NAMES_ROOT:
 * of all). KV_NAMES_ROOT: there is no other. */
uint32_t kv_names_find_device(const struct kv_names *names, const struct unit_key *key,
                              uint32_t after);
uint32_t kv_names_find_host(const struct kv_names *names, const struct unit_key *key,
                            uint32_t after);
void kv_names_check(const struct kv_names *names, uint32_t n_device, uint32_t n_host);

/* Has this key been met before? From now on it has. */
bool kv_names_meet(struct kv_names *names, const struct unit_key *key);

/* The keys of n blocks behind `parent`: keys[0] is the first's. */
void kv_names_chain(const struct kv_names *names, const struct unit_key *parent,
                    const uint32_t *tokens, uint32_t n, struct unit_key *keys);

#endif
