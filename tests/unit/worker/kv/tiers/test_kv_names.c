/* tests/unit/worker/kv/tiers/test_kv_names.c - names of blocks, found by key: random steps against
 * a list of what each block was last called. */
#include <string.h>

#include "common/base/rng.h"
#include "tests/support/cm.h"
#include "tests/support/support.h"
#include "worker/kv/tiers/kv_names.h"

#define N_DEVICE 40u
#define N_HOST   24u
#define N_KEYS   12u /* few, so that blocks share them */
#define BLOCK    4u

struct model {
    struct kv_name device[N_DEVICE], host[N_HOST];
};

/* All blocks that are found for a key are those that have it, each once. */
static void assert_found(const struct kv_names *names, const struct kv_name *model, uint32_t n,
                         uint32_t (*find)(const struct kv_names *names, const struct unit_key *key,
                                          uint32_t after),
                         const struct unit_key *key) {
    bool seen[N_DEVICE] = {false};
    uint32_t id = KV_NAMES_ROOT, n_found = 0, n_there = 0;

    while ((id = find(names, key, id)) != KV_NAMES_ROOT) {
        assert_true(id < n && !seen[id] && n_found++ < n);
        assert_memory_equal(&model[id].key, key, sizeof(*key));
        seen[id] = true;
    }
    for (uint32_t i = 0; i < n; i++)
        n_there += model[i].is_named && memcmp(&model[i].key, key, sizeof(*key)) == 0;
    assert_int_equal(n_found, n_there);
}

static void names_are_found_by_key(void **state) {
    static const struct kv_names_config config = {.root = {{1}}};
    static struct model model;
    struct kv_names names;
    struct rng rng;

    (void)state;
    memset(&model, 0, sizeof(model));
    rng_seed(&rng, support_seed());
    kv_names_init(&names, &config, N_DEVICE, N_HOST, BLOCK, 8);
    for (int step = 0; step < 5000; step++) {
        uint32_t tokens[BLOCK] = {(uint32_t)rng_below(&rng, N_KEYS)};
        uint32_t id = (uint32_t)rng_below(&rng, N_DEVICE), host = id % N_HOST;
        struct kv_name name = {.is_named = rng_below(&rng, 4) > 0};

        if (rng_below(&rng, 2)) {
            kv_names_computed(&names, id, KV_NAMES_ROOT, 0, tokens, !name.is_named);
            model.device[id] = names.device[id];
            assert_int_equal(model.device[id].is_named, name.is_named);
        } else {
            kv_names_chain(&names, &config.root, tokens, 1, &name.key);
            kv_names_set_host(&names, host, &name);
            model.host[host] = name;
        }
        kv_names_chain(&names, &config.root, tokens, 1, &name.key);
        assert_found(&names, model.device, N_DEVICE, kv_names_find_device, &name.key);
        assert_found(&names, model.host, N_HOST, kv_names_find_host, &name.key);
        if (step % 100 == 0) kv_names_check(&names, N_DEVICE, N_HOST);
    }
    kv_names_fini(&names);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_are_found_by_key),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
