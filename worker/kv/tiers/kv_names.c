/* worker/kv/tiers/kv_names.c - see the header. */
#include "worker/kv/tiers/kv_names.h"

#include <string.h>

#include "common/base/mem.h"

#define MET_PER_BLOCK 8u /* keys remembered, a block of device and host */
#define MET_MOST      (1u << 20)

static const uint8_t no_extras[UNIT_DIGEST_BYTES];

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
}

void kv_names_fini(struct kv_names *names) {
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

    *name = (struct kv_name){.index = index, .parent = names->config.root};
    if (is_nameless) return;
    if (parent != KV_NAMES_ROOT) {
        if (!names->device[parent].is_named) return;
        name->parent = names->device[parent].key;
    }
    kv_names_chain(names, &name->parent, tokens, 1, &name->key);
    name->is_named = true;
    name->is_wanted = kv_names_meet(names, &name->key);
}
