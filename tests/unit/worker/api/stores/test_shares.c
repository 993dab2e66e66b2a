/* tests/unit/worker/api/stores/test_shares.c - the shares of a memory beside the obvious model. */
#include "common/base/rng.h"
#include "tests/support/cm.h"
#include "tests/support/support.h"
#include "worker/api/stores/shares.h"

#define N_ENTRIES 40
#define N_TENANTS 5
#define MAX_BYTES 1000

struct known {
    struct share_entry share;
    uint64_t tenant;
    size_t n_bytes; /* 0: it is not there */
    uint32_t used;
};

static size_t bytes_of(const struct known *k, uint64_t tenant) {
    size_t n = 0;

    for (int i = 0; i < N_ENTRIES; i++)
        if (k[i].tenant == tenant) n += k[i].n_bytes;
    return n;
}

/* The tenant of the loser is one of those that have most, or the newcomer; the entry is its longest
 * unused. */
static void check_loser(const struct known *k, const struct known *loser, uint64_t newcomer,
                        size_t n_bytes) {
    size_t own = bytes_of(k, newcomer), most = 0;

    for (uint64_t t = 0; t < N_TENANTS; t++)
        most = MAX(most, bytes_of(k, t));
    for (int i = 0; i < N_ENTRIES; i++)
        if (k[i].n_bytes && k[i].tenant == loser->tenant) assert_true(loser->used <= k[i].used);
    if (own > 0 && own + n_bytes >= most) {
        assert_int_equal(loser->tenant, newcomer);
    } else {
        assert_int_equal(bytes_of(k, loser->tenant), most);
        assert_true(n_bytes <= MAX_BYTES / SHARES_NEWCOMER);
    }
}

static void take_away(struct shares *s, struct known *k) {
    shares_remove(s, &k->share);
    k->n_bytes = 0;
}

static void come(struct shares *s, struct known *k, struct known *e, uint64_t tenant, size_t n,
                 uint32_t now) {
    struct share_entry *loser;

    while (!shares_has_room(s, n) && (loser = shares_loser(s, tenant, n)) != NULL) {
        check_loser(k, CONTAINER_OF(loser, struct known, share), tenant, n);
        take_away(s, CONTAINER_OF(loser, struct known, share));
    }
    if (!shares_has_room(s, n)) {
        assert_true(n > MAX_BYTES / SHARES_NEWCOMER);
        return;
    }
    shares_add(s, tenant, &e->share, n);
    *e = (struct known){.share = e->share, .tenant = tenant, .n_bytes = n, .used = now};
}

static void random_steps_agree_with_a_model(void **state) {
    struct known k[N_ENTRIES] = {0};
    struct share_entry *it;
    struct shares s;
    struct rng rng;

    (void)state;
    rng_seed(&rng, support_seed());
    shares_init(&s, MAX_BYTES, 1);
    for (uint32_t now = 1; now < 20000; now++) {
        struct known *e = &k[rng_below(&rng, N_ENTRIES)];
        size_t total = 0, n = 0;

        if (!e->n_bytes) {
            come(&s, k, e, rng_below(&rng, N_TENANTS),
                 1 + rng_below(&rng, rng_below(&rng, 20) ? 150 : 2 * MAX_BYTES), now);
        } else if (rng_below(&rng, 3) == 0) {
            take_away(&s, e);
        } else {
            shares_use(&e->share);
            e->used = now;
        }
        for (int i = 0; i < N_ENTRIES; i++) {
            total += k[i].n_bytes;
            n += k[i].n_bytes > 0;
        }
        assert_int_equal(shares_check(&s), n);
        assert_int_equal(s.n_bytes, total);
    }
    while ((it = shares_any(&s)) != NULL)
        shares_remove(&s, it);
    shares_fini(&s);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(random_steps_agree_with_a_model)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
