/* tests/unit/worker/kv/test_kv_device.c - through every kind of attention a step reads what was
 * written, whatever was shared, copied, dropped, evicted, swapped out or fetched in between.
 *
 * A pretended device keeps a number per slot: the digest of group and of all tokens up to there, so
 * that a right slot proves the whole prefix. A step is what it is in the engine: the manager
 * decides, the moves run in order, every scheduled token is written, and then every slot that its
 * attention looks at is compared. What a window does not look at may hold anything. */
#include <stdlib.h>
#include <string.h>

#include "common/base/rng.h"
#include "tests/support/cm.h"
#include "tests/support/kv_fixture.h"
#include "tests/support/support.h"

#define BS         4
#define N_SEQS     7
#define MAX_TOKENS 72
#define MAX_DEVICE 90
#define MAX_HOST   40
#define N_STEPS    1500

struct shape {
    uint32_t n_device, n_host, n_groups;
    struct kv_group_config group[KV_GROUPS_MAX];
};

struct device_fixture {
    const struct shape *shape;
    struct kv_manager *mgr;
    struct rng rng;
    uint64_t device[MAX_DEVICE * BS], host[MAX_HOST * BS];
    struct kv_req req[N_SEQS];
    bool is_live[N_SEQS], is_scheduled[N_SEQS];
    uint32_t first[N_SEQS]; /* of a scheduled one: tokens from here on are new */
    uint64_t n_moves[KV_MOVE_IN + 1], n_hits, n_nulls, n_refused_forks;
};

static uint32_t below(struct device_fixture *w, uint32_t n) {
    return (uint32_t)rng_below(&w->rng, n);
}

/* --- the device ------------------------------------------------------------------------------ */

static bool sees(const struct kv_group_config *g, uint32_t n_prompt, uint32_t position,
                 uint32_t t) {
    switch (g->kind) {
    case KV_FULL: return true;
    case KV_SLIDING: return t + g->window > position;
    case KV_CHUNKED: return t / g->window == position / g->window;
    case KV_REFERENCE: return t < n_prompt || t + g->window >= position;
    }
    return true;
}

static uint64_t *slot(struct device_fixture *w, const struct kv_req *r, uint32_t g,
                      uint32_t position) {
    return &w->device[block_table_slot(&r->seq.table[g], position, BS)];
}

/* digests[p]: of the group and tokens 0 to p. */
static void make_digests(const struct kv_req *r, uint32_t g, uint64_t *digests) {
    uint64_t x = 1469598103934665603ull + g;

    for (uint32_t i = 0; i < r->n_tokens; i++)
        digests[i] = x = (x ^ (r->tokens[i] + 1)) * 1099511628211ull;
}

static void run_moves(struct device_fixture *w) {
    uint32_t n;
    const struct kv_move *moves = kv_manager_moves(w->mgr, &n);

    for (uint32_t i = 0; i < n; i++) {
        bool is_from_host = moves[i].kind == KV_MOVE_IN, is_to_host = moves[i].kind == KV_MOVE_OUT;
        const uint64_t *src = (is_from_host ? w->host : w->device) + (size_t)moves[i].src * BS;
        uint64_t *dst = (is_to_host ? w->host : w->device) + (size_t)moves[i].dst * BS;

        assert_true(moves[i].src < (is_from_host ? w->shape->n_host : w->shape->n_device));
        assert_true(moves[i].dst < (is_to_host ? w->shape->n_host : w->shape->n_device));
        memmove(dst, src, BS * sizeof(*dst));
        w->n_moves[moves[i].kind]++;
    }
}

static void write_scheduled(struct device_fixture *w, uint32_t s, uint32_t g) {
    struct kv_req *r = &w->req[s];
    uint64_t digests[MAX_TOKENS];

    make_digests(r, g, digests);
    for (uint32_t p = w->first[s]; p < r->n_computed; p++)
        *slot(w, r, g, p) = digests[p];
}

static void read_scheduled(struct device_fixture *w, uint32_t s, uint32_t g) {
    struct kv_req *r = &w->req[s];
    uint64_t digests[MAX_TOKENS];

    make_digests(r, g, digests);
    for (uint32_t p = w->first[s]; p < r->n_computed; p++) {
        for (uint32_t t = 0; t <= p; t++) {
            if (!sees(&w->shape->group[g], r->seq.n_prompt, p, t)) continue;
            if (*slot(w, r, g, t) != digests[t])
                fail_msg("group %u, token %u of %u: slot of token %u", g, p, r->n_computed, t);
        }
    }
}

static void run_step(struct device_fixture *w) {
    run_moves(w);
    w->device[0] = w->device[1] = w->device[2] = w->device[3] = 0xbad; /* the null block */
    for (uint32_t s = 0; s < N_SEQS; s++) {
        for (uint32_t g = 0; w->is_scheduled[s] && g < w->shape->n_groups; g++)
            write_scheduled(w, s, g);
    }
    for (uint32_t s = 0; s < N_SEQS; s++) {
        for (uint32_t g = 0; w->is_scheduled[s] && g < w->shape->n_groups; g++)
            read_scheduled(w, s, g);
    }
    memset(w->is_scheduled, 0, sizeof(w->is_scheduled));
    kv_manager_clear_moves(w->mgr);
    kv_manager_check(w->mgr);
}

/* --- what may happen in a step --------------------------------------------------------------- */

static bool has_blocks(const struct device_fixture *w, uint32_t s) {
    return w->is_live[s] && list_is_linked(&w->req[s].seq.link);
}

/* Prompts of three families, equal up to a random point. */
static void start(struct device_fixture *w, uint32_t s) {
    uint32_t family = 1000 * (1 + below(w, 3)), n = 5 + below(w, 40), own = below(w, n);

    kv_req_init(&w->req[s], w->mgr, NULL, false);
    kv_req_append_run(&w->req[s], family, n - own);
    for (uint32_t i = 0; i < own; i++)
        kv_req_append(&w->req[s], below(w, 3));
    w->req[s].seq.n_prompt = n;
    w->is_live[s] = true;
}

/* From tokens computed in earlier steps, as the contract requires. */
static void fork_some(struct device_fixture *w, uint32_t s) {
    uint32_t parent = below(w, N_SEQS), n;
    enum status st;

    if (!has_blocks(w, parent) || w->is_scheduled[parent]) return;
    n = w->req[parent].n_computed;
    n -= below(w, MIN(n, below(w, 4) ? 3u : n));
    st = kv_req_fork(&w->req[s], &w->req[parent], n);
    w->n_refused_forks += st != ST_OK;
    kv_req_append(&w->req[s], below(w, 3));
    if (st != ST_OK) w->req[s].seq.n_prompt = w->req[parent].seq.n_prompt;
    w->is_live[s] = true;
}

static bool admit(struct device_fixture *w, uint32_t s) {
    struct kv_req *r = &w->req[s];

    if (kv_req_admit(r) != ST_OK) return false;
    for (uint32_t g = 0; g < w->shape->n_groups; g++)
        for (uint32_t i = 0; i < r->n_hit / BS; i++)
            w->n_nulls += r->seq.table[g].ids[i] == BLOCK_NULL;
    w->n_hits += r->n_hit / BS;
    w->first[s] = r->n_hit;
    w->is_scheduled[s] = true;
    return true;
}

/* Preempts a sequence that is not in this step: by swapping if there is room. */
static bool give_way(struct device_fixture *w, uint32_t s) {
    uint32_t from = below(w, N_SEQS);

    for (uint32_t i = 0; i < N_SEQS; i++) {
        uint32_t v = (from + i) % N_SEQS;
        struct kv_req *r = &w->req[v];

        if (v == s || !has_blocks(w, v) || w->is_scheduled[v]) continue;
        if (below(w, 3) && kv_manager_swap_out(w->mgr, &r->seq, r->n_computed) == ST_OK)
            return true;
        kv_req_free(r);
        return true;
    }
    return false;
}

static void advance(struct device_fixture *w, uint32_t s) {
    struct kv_req *r = &w->req[s];

    for (uint32_t n = r->n_computed < r->n_tokens ? 0 : 1 + below(w, 2) * below(w, 8); n > 0; n--)
        kv_req_append(r, below(w, 3));
    w->first[s] = r->n_computed;
    while (kv_req_advance(r, r->n_tokens - r->n_computed) != ST_OK) {
        if (give_way(w, s)) continue;
        kv_req_free(r);
        return;
    }
    w->is_scheduled[s] = true;
}

static void act(struct device_fixture *w, uint32_t s) {
    struct kv_req *r = &w->req[s];

    if (!w->is_live[s]) {
        below(w, 2) ? start(w, s) : fork_some(w, s);
    } else if (w->is_scheduled[s]) {
        return;
    } else if (r->n_tokens > MAX_TOKENS - 10 || below(w, 12) == 0) {
        kv_req_done(r);
        w->is_live[s] = false;
    } else if (kv_seq_is_swapped(&r->seq)) {
        if (kv_manager_swap_in(w->mgr, &r->seq) == ST_OK && below(w, 2)) advance(w, s);
    } else if (has_blocks(w, s)) {
        advance(w, s);
    } else if (!admit(w, s) && below(w, 2)) {
        give_way(w, s);
    }
}

/* --- fixtures --- */

static const struct shape shapes[] = {
    {40, 0, 1, {{KV_FULL, 0}}},
    {30, 0, 1, {{KV_SLIDING, 9}}},
    {30, 0, 1, {{KV_CHUNKED, 10}}},
    {50, 0, 2, {{KV_FULL, 0}, {KV_SLIDING, 6}}},
    {70, 0, 3, {{KV_CHUNKED, 10}, {KV_FULL, 0}, {KV_SLIDING, 13}}},
    {60, 0, 2, {{KV_REFERENCE, 7}, {KV_FULL, 0}}},
    {40, 40, 1, {{KV_FULL, 0}}},
    {30, 40, 1, {{KV_SLIDING, 9}}},
    {50, 40, 2, {{KV_FULL, 0}, {KV_SLIDING, 6}}},
    {60, 20, 3, {{KV_CHUNKED, 8}, {KV_FULL, 0}, {KV_SLIDING, 13}}},
};

static void run(const struct shape *shape, enum free_order order, bool dedup, uint64_t seed) {
    struct kv_manager_config config = kv_fixture_config(shape->n_device, BS);
    struct device_fixture *w = calloc(1, sizeof(*w));
    bool has_windows = false;

    for (uint32_t g = 0; g < shape->n_groups; g++)
        has_windows |= shape->group[g].kind == KV_SLIDING || shape->group[g].kind == KV_CHUNKED;
    w->shape = shape;
    config.order = order;
    config.dedup = dedup;
    config.n_host_blocks = shape->n_host;
    config.hash_truncate_bits = seed % 2 ? 8 : 0;
    config.n_groups = shape->n_groups;
    memcpy(config.group, shape->group, sizeof(config.group));
    w->mgr = kv_manager_create(&config);
    rng_seed(&w->rng, seed);
    for (int i = 0; i < N_STEPS; i++) {
        for (uint32_t k = below(w, 6); k > 0; k--)
            act(w, below(w, N_SEQS));
        run_step(w);
    }
    assert_true(w->n_hits > 100 && w->n_moves[KV_MOVE_COPY] > 20);
    assert_int_equal(w->n_nulls > 0, has_windows);
    assert_int_equal(w->n_moves[KV_MOVE_OUT] > 0, shape->n_host > 0);
    assert_int_equal(w->n_moves[KV_MOVE_IN] > 0, shape->n_host > 0);
    for (uint32_t s = 0; s < N_SEQS; s++) {
        if (w->is_live[s]) kv_req_done(&w->req[s]);
    }
    assert_int_equal(block_pool_n_free(kv_manager_pool(w->mgr)),
                     block_pool_n_usable(kv_manager_pool(w->mgr)));
    kv_manager_destroy(w->mgr);
    free(w);
}

static void a_step_reads_what_was_written(void **state) {
    uint64_t seed = support_seed() * 100;

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(shapes); i++) {
        for (int dedup = 0; dedup <= 1; dedup++) {
            run(&shapes[i], FREE_ORDER_FRESH_FIRST, dedup, seed++);
            run(&shapes[i], FREE_ORDER_CLASSIC, dedup, seed++);
            run(&shapes[i], FREE_ORDER_REUSE, dedup, seed++);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_step_reads_what_was_written),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
