/* worker/kv/tiers/kv_names.c - see the header. */
#include "worker/kv/tiers/kv_names.h"

#include <assert.h>
#include <string.h>

#include "common/base/mem.h"

#define MET_PER_BLOCK 8u /* keys remembered, a block of device and host */
#define MET_MOST      (1u << 20)

static const uint8_t no_extras[UNIT_DIGEST_BYTES];

/* --- by key ----------------------------------------------------------------------------------- */

static void index_init(struct kv_names_index *x, uint32_t n) {
    uint32_t n_first = 16;

    while (n_first < n)
        n_first *= 2;
    *x = (struct kv_names_index){
        .first = mem_calloc(n_first, sizeof(*x->first)),
        .next = mem_calloc(n, sizeof(*x->next)),
        .is_in = mem_calloc(n, sizeof(*x->is_in)),
        .mask = n_first - 1,
    };
    memset(x->first, 0xFF, n_first * sizeof(*x->first)); /* KV_NAMES_ROOT */
}

static void index_fini(struct kv_names_index *x) {
    mem_free(x->first);
    mem_free(x->next);
    mem_free(x->is_in);
}

static uint32_t *bucket_of(const struct kv_names_index *x, const struct unit_key *key) {
    uint32_t at;

    memcpy(&at, key->bytes, sizeof(at));
    return &x->first[at & x->mask];
}

/* `names` has the name before this one. */
static void index_remove(struct kv_names_index *x, const struct kv_name *names, uint32_t id) {
    uint32_t *at = bucket_of(x, &names[id].key);

    if (!x->is_in[id]) return;
    while (*at != id)
        at = &x->next[*at];
    *at = x->next[id];
    x->is_in[id] = false;
}

static void index_insert(struct kv_names_index *x, const struct kv_name *names, uint32_t id) {
    uint32_t *first = bucket_of(x, &names[id].key);

    x->next[id] = *first;
    *first = id;
    x->is_in[id] = true;
}

static uint32_t index_find(const struct kv_names_index *x, const struct kv_name *names,
                           const struct unit_key *key, uint32_t after) {
    uint32_t id = after == KV_NAMES_ROOT ? *bucket_of(x, key) : x->next[after];

    while (id != KV_NAMES_ROOT && memcmp(&names[id].key, key, sizeof(*key)) != 0)
        id = x->next[id];
    return id;
}

uint32_t kv_names_find_device(const struct kv_names *names, const struct unit_key *key,
                              uint32_t after) {
    return index_find(&names->by_device_key, names->device, key, after);
}

uint32_t kv_names_find_host(const struct kv_names *names, const struct unit_key *key,
                            uint32_t after) {
    return index_find(&names->by_host_key, names->host, key, after);
}

void kv_names_set_host(struct kv_names *names, uint32_t host, const struct kv_name *name) {
    struct kv_name copy = *name;

    index_remove(&names->by_host_key, names->host, host);
    names->host[host] = copy;
    if (copy.is_named) index_insert(&names->by_host_key, names->host, host);
}

static void index_check(const struct kv_names_index *x, const struct kv_name *names, uint32_t n) {
    uint32_t n_in = 0, n_found = 0;

    for (uint32_t id = 0; id < n; id++)
        n_in += x->is_in[id];
    for (uint32_t i = 0; i <= x->mask; i++) {
        for (uint32_t id = x->first[i]; id != KV_NAMES_ROOT; id = x->next[id]) {
            assert(x->is_in[id] && bucket_of(x, &names[id].key) == &x->first[i]);
            n_found++;
        }
    }
    assert(n_in == n_found);
}

void kv_names_check(const struct kv_names *names, uint32_t n_device, uint32_t n_host) {
    index_check(&names->by_device_key, names->device, n_device);
    index_check(&names->by_host_key, names->host, n_host);
}

/* --- names ------------------------------------------------------------------------------------ */

void kv_names_init(struct kv_names *names, const struct kv_names_config *config, uint32_t n_device,
                   uint32_t n_host, uint32_t block_size, uint32_t longest) {
    uint64_t n_wanted = (uint64_t)MET_PER_BLOCK * (n_device + n_host);
    uint32_t n_met = 64;

    while (n_met < n_wanted && n_met < MET_MOST)
        n_met *= 2;
    *names = (struct kv_names){
        .config = *config,
        .device = mem_calloc(n_device, sizeof(*names->device)),
        .host = mem_calloc(n_host, sizeof(*names->host)),
        .met = mem_calloc(n_met, sizeof(*names->met)),
        .met_mask = n_met - 1,
        .block_size = block_size,
        .keys = mem_calloc(longest, sizeof(*names->keys)),
    };
    index_init(&names->by_device_key, n_device);
    index_init(&names->by_host_key, n_host);
}

void kv_names_fini(struct kv_names *names) {
    index_fini(&names->by_device_key);
    index_fini(&names->by_host_key);
    mem_free(names->device);
    mem_free(names->host);
    mem_free(names->met);
    mem_free(names->keys);
    *names = (struct kv_names){0};
}

bool kv_names_meet(struct kv_names *names, const struct unit_key *key) {
    uint32_t at, tag;
    bool is_met;

    memcpy(&at, key->bytes, sizeof(at));
    memcpy(&tag, key->bytes + sizeof(at), sizeof(tag));
    tag |= 1; /* 0: empty */
    is_met = names->met[at & names->met_mask] == tag;
    names->met[at & names->met_mask] = tag;
    return is_met;
}

void kv_names_chain(const struct kv_names *names, const struct unit_key *parent,
                    const uint32_t *tokens, uint32_t n, struct unit_key *keys) {
    for (uint32_t i = 0; i < n; parent = &keys[i++])
        unit_chain_next(names->config.fleet_key, parent, tokens + (size_t)i * names->block_size,
                        names->block_size, no_extras, &keys[i]);
}

void kv_names_computed(struct kv_names *names, uint32_t id, uint32_t parent, uint32_t index,
                       const uint32_t *tokens, bool is_nameless) {
    struct kv_name *name = &names->device[id];

    index_remove(&names->by_device_key, names->device, id);
    *name = (struct kv_name){.index = index, .parent = names->config.root};
    if (is_nameless) return;
    if (parent != KV_NAMES_ROOT) {
        if (!names->device[parent].is_named) return;
        name->parent = names->device[parent].key;
    }
    kv_names_chain(names, &name->parent, tokens, 1, &name->key);
    name->is_named = true;
    name->is_wanted = kv_names_meet(names, &name->key);
    index_insert(&names->by_device_key, names->device, id);
}
