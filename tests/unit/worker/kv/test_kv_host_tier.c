/* tests/unit/worker/kv/test_kv_host_tier.c - blocks that go to host memory and come back hold what
 * they held.
 *
 * A pretended device keeps one number per token slot: the digest of all tokens up to there, so a
 * right slot proves the whole prefix. A step is what it is in the engine: the manager decides, the
 * moves run in their order, all scheduled tokens are written, and then every slot that a scheduled
 * sequence reads is compared. The random test does that with sequences that share prefixes, fork,
 * grow, give way by freeing and by swapping, in both pools far too small, and follows the events
 * beside it. With names, a tier below host memory that has everything brings some of it up. */
#include <string.h>

#include "common/base/rng.h"
#include "tests/support/cm.h"
#include "tests/support/kv_events_reader.h"
#include "tests/support/kv_fixture.h"
#include "tests/support/support.h"

#define BLOCK_SIZE 4
#define N_DEVICE   40
#define N_HOST     40
#define N_SEQS     8
#define MAX_TOKENS 72

struct device {
    uint64_t slots[N_DEVICE * BLOCK_SIZE], host[N_HOST * BLOCK_SIZE];
};

struct tier_fixture {
    struct kv_manager *mgr;
    struct kv_event_log *events;
    struct kv_events_picture picture;
    struct device dev;
    struct kv_req req[N_SEQS];
    bool is_live[N_SEQS], is_scheduled[N_SEQS];
    uint32_t first[N_SEQS]; /* of a scheduled one: tokens from here on are new */
    uint32_t n_moves[KV_MOVE_IN + 1];
    uint32_t n_restored, n_wanted, n_held;
    uint64_t now_us;
    bool is_wanted[N_HOST]; /* host blocks with a content that is to be written below */
    uint32_t n_below;       /* blocks that the place below was told to hold */
    bool has_below;
};

static uint64_t digest_of(const struct kv_req *r, uint32_t position) {
    uint64_t x = 1469598103934665603ull;

    for (uint32_t i = 0; i <= position; i++)
        x = (x ^ (r->tokens[i] + 1)) * 1099511628211ull;
    return x;
}

static uint64_t *slot(struct tier_fixture *w, const struct kv_req *r, uint32_t position) {
    block_id id = r->seq.table[0].ids[position / BLOCK_SIZE];

    return &w->dev.slots[(size_t)id * BLOCK_SIZE + position % BLOCK_SIZE];
}

static void fixture_init_named(struct tier_fixture *w, uint32_t n_device, uint32_t n_host,
                               bool dedup, const struct kv_names_config *names) {
    struct kv_manager_config config = kv_fixture_config(n_device, BLOCK_SIZE);
    struct kv_event_config events = {
        .max_batches = 64, .max_bytes = 1 << 20, .block_size = BLOCK_SIZE, .hash_bytes = 16};

    memset(w, 0, sizeof(*w));
    assert_int_equal(kv_event_log_create(&w->events, &events, NULL), ST_OK);
    kv_events_picture_init(&w->picture);
    config.order = FREE_ORDER_FRESH_FIRST;
    config.n_host_blocks = n_host;
    config.events = w->events;
    config.dedup = dedup;
    config.names = names;
    config.max_reserved = 3;
    config.max_held_blocks = (n_host ? n_host : n_device) / 4;
    w->mgr = kv_manager_create(&config);
}

static void fixture_init(struct tier_fixture *w, uint32_t n_device, uint32_t n_host, bool dedup) {
    fixture_init_named(w, n_device, n_host, dedup, NULL);
}

static void fixture_fini(struct tier_fixture *w) {
    for (uint32_t s = 0; s < N_SEQS; s++) {
        if (w->is_live[s]) kv_req_done(&w->req[s]);
    }
    kv_manager_destroy(w->mgr);
    kv_events_picture_fini(&w->picture);
    kv_event_log_destroy(w->events);
}

static void run_moves(struct tier_fixture *w) {
    size_t n_bytes = BLOCK_SIZE * sizeof(uint64_t);
    uint32_t n;
    const struct kv_move *moves = kv_manager_moves(w->mgr, &n);

    for (uint32_t i = 0; i < n; i++) {
        uint64_t *device_src = &w->dev.slots[(size_t)moves[i].src * BLOCK_SIZE];
        uint64_t *device_dst = &w->dev.slots[(size_t)moves[i].dst * BLOCK_SIZE];

        w->n_moves[moves[i].kind]++;
        switch (moves[i].kind) {
        case KV_MOVE_COPY: memmove(device_dst, device_src, n_bytes); break;
        case KV_MOVE_OUT:
            assert_true(moves[i].dst < N_HOST);
            memcpy(&w->dev.host[(size_t)moves[i].dst * BLOCK_SIZE], device_src, n_bytes);
            break;
        case KV_MOVE_IN:
            assert_true(moves[i].src < N_HOST);
            memcpy(device_dst, &w->dev.host[(size_t)moves[i].src * BLOCK_SIZE], n_bytes);
            break;
        }
    }
}

/* The device runs the step: moves, then all writes, then all reads. */
static void run_step(struct tier_fixture *w) {
    run_moves(w);
    for (uint32_t s = 0; s < N_SEQS; s++) {
        for (uint32_t p = w->first[s]; w->is_scheduled[s] && p < w->req[s].n_computed; p++)
            *slot(w, &w->req[s], p) = digest_of(&w->req[s], p);
    }
    for (uint32_t s = 0; s < N_SEQS; s++) {
        for (uint32_t p = 0; w->is_scheduled[s] && p < w->req[s].n_computed; p++)
            assert_true(*slot(w, &w->req[s], p) == digest_of(&w->req[s], p));
    }
    memset(w->is_scheduled, 0, sizeof(w->is_scheduled));
    kv_manager_clear_moves(w->mgr);
    if (kv_manager_host(w->mgr)) /* the moves are done */
        kv_host_settle(kv_manager_host(w->mgr), kv_host_step(kv_manager_host(w->mgr)));
    kv_manager_check(w->mgr);
    kv_event_log_commit(w->events, 0, true);
    assert_false(kv_events_follow(w->events, &w->picture));
    kv_events_assert_digest(w->events, &w->picture);
}

static enum status admit(struct tier_fixture *w, uint32_t s) {
    struct kv_req *r = &w->req[s];
    enum status st = kv_req_admit(r);

    if (st != ST_OK) return st;
    w->is_scheduled[s] = true;
    w->first[s] = r->n_hit;
    return ST_OK;
}

static void start(struct tier_fixture *w, uint32_t s, uint32_t first_token, uint32_t n_tokens) {
    kv_req_init(&w->req[s], w->mgr, NULL, false);
    kv_req_append_run(&w->req[s], first_token, n_tokens);
    w->is_live[s] = true;
}

static void end(struct tier_fixture *w, uint32_t s) {
    kv_req_done(&w->req[s]);
    w->is_live[s] = w->is_scheduled[s] = false;
}

static void evicted_blocks_are_restored(void **state) {
    struct tier_fixture w;
    uint32_t n;

    (void)state;
    fixture_init(&w, 11, 20, false);
    start(&w, 0, 100, 33); /* 8 full blocks and one token */
    assert_int_equal(admit(&w, 0), ST_OK);
    run_step(&w);
    end(&w, 0);
    start(&w, 1, 500, 37); /* takes ten blocks: all of it must go, but a blank one */
    assert_int_equal(admit(&w, 1), ST_OK);
    run_step(&w);
    end(&w, 1);
    assert_int_equal(w.n_moves[KV_MOVE_OUT], 8);
    start(&w, 2, 100, 33);
    assert_int_equal(admit(&w, 2), ST_OK);
    assert_int_equal(w.req[2].n_hit, 32);
    run_step(&w);
    assert_int_equal(w.n_moves[KV_MOVE_IN], 8);
    assert_int_equal(kv_manager_stats(w.mgr)->host.hits, 32);
    end(&w, 2);
    n = w.n_moves[KV_MOVE_OUT];
    start(&w, 3, 900, 37); /* the same blocks go again, and are there already */
    assert_int_equal(admit(&w, 3), ST_OK);
    run_step(&w);
    assert_true(w.n_moves[KV_MOVE_OUT] - n <= 1);
    fixture_fini(&w);
}

static void a_hit_can_begin_on_the_device_and_end_in_host_memory(void **state) {
    struct tier_fixture w;

    (void)state;
    fixture_init(&w, 11, 20, false);
    start(&w, 0, 100, 33);
    assert_int_equal(admit(&w, 0), ST_OK);
    run_step(&w);
    end(&w, 0);
    start(&w, 1, 500, 20); /* five blocks: two blanks, then the end of the first one's chain */
    assert_int_equal(admit(&w, 1), ST_OK);
    run_step(&w);
    end(&w, 1);
    start(&w, 2, 100, 33);
    assert_int_equal(admit(&w, 2), ST_OK);
    assert_int_equal(w.req[2].n_hit, 32);
    run_step(&w);
    assert_in_range(w.n_moves[KV_MOVE_IN], 1, 7);
    fixture_fini(&w);
}

static void a_block_published_for_this_step_is_not_kept(void **state) {
    struct tier_fixture w;

    (void)state;
    fixture_init(&w, 11, 20, false);
    start(&w, 0, 100, 37); /* all ten blocks, published, never computed */
    assert_int_equal(kv_req_admit(&w.req[0]), ST_OK);
    end(&w, 0);
    start(&w, 1, 500, 37);
    assert_int_equal(admit(&w, 1), ST_OK);
    run_step(&w);
    assert_int_equal(w.n_moves[KV_MOVE_OUT], 0);
    assert_int_equal(kv_host_n_cached(kv_manager_host(w.mgr)), 0);
    fixture_fini(&w);
}

static void a_swapped_sequence_is_restored_whole(void **state) {
    struct tier_fixture w;

    (void)state;
    fixture_init(&w, 11, 10, false);
    start(&w, 0, 100, 30);
    assert_int_equal(admit(&w, 0), ST_OK);
    run_step(&w);
    assert_int_equal(kv_manager_swap_out(w.mgr, &w.req[0].seq, 30), ST_OK);
    assert_true(kv_seq_is_swapped(&w.req[0].seq));
    assert_int_equal(block_pool_n_free(kv_manager_pool(w.mgr)), 10);
    start(&w, 1, 500, 37);
    assert_int_equal(admit(&w, 1), ST_OK);
    run_step(&w);
    assert_int_equal(w.n_moves[KV_MOVE_OUT], 8);
    assert_int_equal(kv_manager_swap_in(w.mgr, &w.req[0].seq), ST_BUSY);
    assert_int_equal(kv_manager_swap_in_need(w.mgr, &w.req[0].seq), 8);
    end(&w, 1);
    assert_int_equal(kv_manager_swap_in(w.mgr, &w.req[0].seq), ST_OK);
    assert_false(kv_seq_is_swapped(&w.req[0].seq));
    assert_int_equal(w.req[0].seq.n_published, 7);
    w.first[0] = w.req[0].n_computed;
    assert_int_equal(kv_req_decode(&w.req[0], 1), ST_OK);
    w.is_scheduled[0] = true;
    run_step(&w);
    assert_int_equal(w.n_moves[KV_MOVE_IN], 8);
    assert_int_equal(kv_host_n_held(kv_manager_host(w.mgr)), 0);
    fixture_fini(&w);
}

static void swapping_is_all_or_nothing(void **state) {
    struct tier_fixture w;

    (void)state;
    fixture_init(&w, 11, 7, false);
    start(&w, 0, 100, 30); /* eight blocks for seven places */
    assert_int_equal(admit(&w, 0), ST_OK);
    run_step(&w);
    assert_int_equal(kv_manager_swap_out(w.mgr, &w.req[0].seq, 30), ST_BUSY);
    assert_false(kv_seq_is_swapped(&w.req[0].seq));
    assert_int_equal(kv_host_n_held(kv_manager_host(w.mgr)), 0);
    assert_int_equal(w.req[0].seq.table[0].n_blocks, 8);
    kv_manager_check(w.mgr);
    fixture_fini(&w);
}

static void forks_share_their_prefix_when_swapped(void **state) {
    struct tier_fixture w;

    (void)state;
    fixture_init(&w, 16, 10, false);
    start(&w, 0, 100, 30);
    assert_int_equal(admit(&w, 0), ST_OK);
    run_step(&w);
    assert_int_equal(kv_req_fork(&w.req[1], &w.req[0], 30), ST_OK);
    w.is_live[1] = true;
    assert_int_equal(kv_manager_swap_out(w.mgr, &w.req[0].seq, 30), ST_OK);
    assert_int_equal(kv_manager_swap_out(w.mgr, &w.req[1].seq, 30), ST_OK);
    assert_int_equal(kv_host_n_held(kv_manager_host(w.mgr)), 9); /* seven shared, two tails */
    run_step(&w);
    assert_int_equal(kv_manager_swap_in(w.mgr, &w.req[1].seq), ST_OK);
    assert_int_equal(kv_manager_swap_in(w.mgr, &w.req[0].seq), ST_OK);
    assert_int_equal(
        block_pool_n_usable(kv_manager_pool(w.mgr)) - block_pool_n_free(kv_manager_pool(w.mgr)), 9);
    for (uint32_t s = 0; s < 2; s++) {
        w.first[s] = 30;
        assert_int_equal(kv_req_decode(&w.req[s], 1 + s), ST_OK);
        w.is_scheduled[s] = true;
    }
    run_step(&w);
    fixture_fini(&w);
}

static void a_swapped_sequence_can_end_where_it_is(void **state) {
    struct tier_fixture w;

    (void)state;
    fixture_init(&w, 11, 10, false);
    start(&w, 0, 100, 30);
    assert_int_equal(admit(&w, 0), ST_OK);
    run_step(&w);
    assert_int_equal(kv_manager_swap_out(w.mgr, &w.req[0].seq, 30), ST_OK);
    end(&w, 0);
    run_step(&w);
    assert_int_equal(kv_host_n_held(kv_manager_host(w.mgr)), 0);
    assert_int_equal(kv_manager_reset_prefix_cache(w.mgr), ST_OK);
    assert_int_equal(kv_host_n_cached(kv_manager_host(w.mgr)), 0);
    fixture_fini(&w);
}

/* --- a tier below ----------------------------------------------------------------------------- */

static const uint8_t nothing[UNIT_DIGEST_BYTES];

static uint32_t count_below(void *arg, const struct unit_key *keys, uint32_t n) {
    (void)arg, (void)keys;
    return n / 2;
}

/* Its key is that of its tokens behind its parent. */
static void on_host(void *arg, block_id id) {
    struct tier_fixture *w = arg;
    const struct kv_name *name = &kv_manager_names(w->mgr)->host[id];
    struct prefix_key key = prefix_cache_key(kv_host_cache(kv_manager_host(w->mgr)), id);
    struct unit_key expected;

    unit_chain_next(NULL, &name->parent, key.tokens, BLOCK_SIZE, nothing, &expected);
    assert_memory_equal(&name->key, &expected, sizeof(expected));
    assert_true(name->is_named && name->is_wanted);
    w->is_wanted[id] = true;
    w->n_wanted++;
}

static void on_host_evict(void *arg, block_id id) {
    ((struct tier_fixture *)arg)->is_wanted[id] = false;
}

/* The place below holds everything, or has nothing of it yet. */
static void hold_below(void *arg, const struct unit_key *keys, uint32_t n, bool is_held) {
    struct tier_fixture *w = arg;

    (void)keys;
    assert_true(is_held || w->n_below >= n);
    w->n_below += is_held ? n : -n;
}

static uint32_t count_held(void *arg, const struct unit_key *keys, uint32_t n) {
    (void)keys;
    return ((struct tier_fixture *)arg)->has_below ? n : 0;
}

static uint32_t max_held(void *arg) {
    (void)arg;
    return 2 * N_HOST;
}

static void fill_host_block(struct tier_fixture *w, const struct kv_req *r, uint32_t index,
                            block_id id) {
    for (uint32_t i = 0; i < BLOCK_SIZE; i++)
        w->dev.host[(size_t)id * BLOCK_SIZE + i] = digest_of(r, index * BLOCK_SIZE + i);
}

/* Brings up to `n` blocks of what a waiting sequence lacks; some are given up on the way. */
static void restore(struct tier_fixture *w, uint32_t s, uint32_t n, uint32_t n_verified) {
    struct kv_host *host = kv_manager_host(w->mgr);
    struct kv_req *r = &w->req[s];
    struct kv_hit hit = kv_manager_lookup(w->mgr, &r->seq, r->tokens, r->n_tokens);
    uint32_t index = hit.n_blocks, n_taken = 0;
    struct kv_name name = {.is_named = true, .is_wanted = true};
    block_id ids[8];
    uint64_t number;

    if (!kv_manager_keys_behind(w->mgr, &r->seq, &hit, &name.key, &number)) return;
    n = MIN(n, (r->n_tokens - 1) / BLOCK_SIZE - index);
    for (; n_taken < n; n_taken++) {
        ids[n_taken] = kv_host_reserve(host);
        if (ids[n_taken] == BLOCK_NONE) break;
        fill_host_block(w, r, index + n_taken, ids[n_taken]);
    }
    for (uint32_t i = 0; i < MIN(n_taken, n_verified); i++) {
        name.parent = name.key;
        name.index = index + i;
        kv_names_chain(kv_manager_names(w->mgr), &name.parent,
                       r->tokens + (size_t)name.index * BLOCK_SIZE, 1, &name.key);
        w->n_restored +=
            kv_manager_restored(w->mgr, &r->seq, r->tokens, name.index, &name, ids[i], &number);
    }
    kv_host_drop(host, ids, n_taken);
}

static struct kv_names_config names_of(struct tier_fixture *w) {
    struct kv_names_config c = {.count_below = count_below,
                                .on_host = on_host,
                                .on_host_evict = on_host_evict,
                                .hold_below = hold_below,
                                .count_held = count_held,
                                .max_held = max_held,
                                .arg = w};

    unit_chain_root(NULL, nothing, nothing, &c.root);
    return c;
}

static void what_came_from_below_is_hit(void **state) {
    struct tier_fixture w;
    struct kv_names_config names = names_of(&w);

    (void)state;
    fixture_init_named(&w, 21, 20, false, &names);
    start(&w, 0, 100, 13); /* three blocks that the device has computed */
    assert_int_equal(admit(&w, 0), ST_OK);
    run_step(&w);
    end(&w, 0);
    start(&w, 1, 100, 33);
    restore(&w, 1, 3, 2); /* and of the five behind them two, from below */
    assert_int_equal(w.n_restored, 2);
    assert_int_equal(kv_host_n_reserved(kv_manager_host(w.mgr)), 0);
    assert_int_equal(admit(&w, 1), ST_OK);
    assert_int_equal(w.req[1].n_hit, 20);
    run_step(&w);
    end(&w, 1);
    fixture_fini(&w);
}

static void what_is_behind_the_prefix_gets_no_name(void **state) {
    struct tier_fixture w;
    struct kv_names_config names = names_of(&w);

    (void)state;
    fixture_init_named(&w, 21, 20, false, &names);
    start(&w, 0, 100, 33);
    w.req[0].seq.prefix_tokens = 11; /* two whole blocks, and a part of the third */
    assert_int_equal(admit(&w, 0), ST_OK);
    run_step(&w);
    for (uint32_t i = 0; i < 8; i++) {
        block_id id = w.req[0].seq.table[0].ids[i];

        assert_int_equal(kv_manager_names(w.mgr)->device[id].is_named, i < 2);
    }
    end(&w, 0);
    fixture_fini(&w);
}

/* --- holds ------------------------------------------------------------------------------------ */

static void compute(struct tier_fixture *w, uint32_t first_token, uint32_t n_hit) {
    start(w, 0, first_token, 33);
    assert_int_equal(admit(w, 0), ST_OK);
    assert_int_equal(w->req[0].n_hit, n_hit);
    run_step(w);
}

/* Other prompts, of a hundred times the blocks of both pools, go through. */
static void held_prefix_outlives(uint32_t n_host) {
    struct tier_fixture w;
    struct kv_hold ask = {.id = 5, .ttl_s = 60};
    const struct block_hold *hold;

    fixture_init(&w, 33, n_host, false);
    compute(&w, 100, 0);
    assert_int_equal(kv_manager_hold(w.mgr, &w.req[0].seq, w.req[0].tokens, 32, &ask, &hold, NULL),
                     ST_OK);
    assert_int_equal(hold->n_blocks, 8);
    end(&w, 0);
    compute(&w, 50, 0); /* not held */
    end(&w, 0);
    for (uint32_t i = 0; i < 100 * (33 + n_host) / 8; i++) {
        compute(&w, 1000 + 100 * i, 0);
        end(&w, 0);
    }
    compute(&w, 50, 0);
    end(&w, 0);
    compute(&w, 100, 32);
    end(&w, 0);
    assert_int_equal(block_holds_at(kv_manager_holds(w.mgr), 0)->n_hits, 1);
    fixture_fini(&w);
}

static void held_prefix_outlives_a_hundred_caches(void **state) {
    (void)state;
    held_prefix_outlives(0);
    held_prefix_outlives(32);
}

/* --- random steps ----------------------------------------------------------------------------- */

/* Prompts of three families, equal up to a random point. */
static void start_random(struct tier_fixture *w, struct rng *rng, uint32_t s) {
    uint32_t family = 1000 * (1 + (uint32_t)rng_below(rng, 3));
    uint32_t n = 5 + (uint32_t)rng_below(rng, 40), own = (uint32_t)rng_below(rng, n);

    start(w, s, family, n - own);
    for (uint32_t i = 0; i < own; i++)
        kv_req_append(&w->req[s], (uint32_t)rng_below(rng, 3));
}

static bool has_blocks(const struct tier_fixture *w, uint32_t s) {
    return w->is_live[s] && list_is_linked(&w->req[s].seq.link);
}

/* Preempts a sequence that is not in this step. */
static bool make_room(struct tier_fixture *w, struct rng *rng, uint32_t s) {
    uint32_t from = (uint32_t)rng_below(rng, N_SEQS);

    for (uint32_t i = 0; i < N_SEQS; i++) {
        uint32_t v = (from + i) % N_SEQS;
        struct kv_req *r = &w->req[v];

        if (v == s || !has_blocks(w, v) || w->is_scheduled[v]) continue;
        if (rng_below(rng, 3) && kv_manager_swap_out(w->mgr, &r->seq, r->n_computed) == ST_OK)
            return true;
        kv_req_free(r);
        return true;
    }
    return false;
}

static void advance(struct tier_fixture *w, struct rng *rng, uint32_t s) {
    struct kv_req *r = &w->req[s];

    if (r->n_computed == r->n_tokens) kv_req_append(r, (uint32_t)rng_below(rng, 3));
    w->first[s] = r->n_computed;
    while (kv_req_advance(r, r->n_tokens - r->n_computed) != ST_OK) {
        if (make_room(w, rng, s)) continue;
        kv_req_free(r);
        return;
    }
    w->is_scheduled[s] = true;
}

static void fork_random(struct tier_fixture *w, struct rng *rng, uint32_t s) {
    uint32_t parent = (uint32_t)rng_below(rng, N_SEQS);
    uint32_t n;

    if (!has_blocks(w, parent) || w->is_scheduled[parent]) return;
    n = 1 + (uint32_t)rng_below(rng, w->req[parent].n_computed);
    assert_int_equal(kv_req_fork(&w->req[s], &w->req[parent], n), ST_OK);
    kv_req_append(&w->req[s], (uint32_t)rng_below(rng, 3));
    w->is_live[s] = true;
}

/* What is cached of its tokens, for one of three holders. */
static void hold_random(struct tier_fixture *w, struct rng *rng, uint32_t s) {
    struct kv_req *r = &w->req[s];
    uint64_t owner = rng_below(rng, 3);
    struct kv_hold ask = {.id = ++w->n_held,
                          .owner = owner,
                          .holder = owner,
                          .ttl_s = 1 + (uint32_t)rng_below(rng, 20)};
    uint32_t n = 1 + (uint32_t)rng_below(rng, r->n_tokens - 1), n_others;
    const struct block_hold *hold;

    if (kv_manager_hold(w->mgr, &r->seq, r->tokens, n, &ask, &hold, NULL) == ST_OK)
        assert_true(hold->n_blocks <= n / BLOCK_SIZE && hold->owner == owner);
    n_others = block_holds_stats(kv_manager_holds(w->mgr)).n_holds;
    if (rng_below(rng, 3) || n_others == 0) return;
    ask.id = block_holds_at(kv_manager_holds(w->mgr), (uint32_t)rng_below(rng, n_others))->id;
    (void)!kv_manager_release_hold(w->mgr, ask.id, owner);
}

static void act(struct tier_fixture *w, struct rng *rng, uint32_t s) {
    struct kv_req *r = &w->req[s];

    if (w->is_live[s] && r->n_tokens > 1 && rng_below(rng, 20) == 0) hold_random(w, rng, s);
    if (!w->is_live[s]) {
        rng_below(rng, 4) ? start_random(w, rng, s) : fork_random(w, rng, s);
    } else if (w->is_scheduled[s]) {
        return;
    } else if (r->n_tokens >= MAX_TOKENS || rng_below(rng, 12) == 0) {
        end(w, s);
    } else if (kv_seq_is_swapped(&r->seq)) {
        if (kv_manager_swap_in(w->mgr, &r->seq) == ST_OK && rng_below(rng, 2)) advance(w, rng, s);
    } else if (has_blocks(w, s)) {
        advance(w, rng, s);
    } else if (kv_manager_names(w->mgr) && rng_below(rng, 2)) {
        restore(w, s, 1 + (uint32_t)rng_below(rng, 4), (uint32_t)rng_below(rng, 4));
    } else if (admit(w, s) != ST_OK && rng_below(rng, 2)) {
        make_room(w, rng, s);
    }
}

static struct block_holds_stats held(const struct tier_fixture *w) {
    return block_holds_stats(kv_manager_holds(w->mgr));
}

/* In host memory no request takes what is held; on the device one that needs it does. */
static void check_ends(const uint64_t n_ended[HOLD_ENDS], bool is_on_host) {
    assert_true(n_ended[HOLD_RELEASED] > 5 && n_ended[HOLD_RESET] > 2);
    assert_true(n_ended[HOLD_EXPIRED] + n_ended[HOLD_DISPLACED] > 2);
    assert_true(is_on_host ? n_ended[HOLD_EVICTED] == 0 : n_ended[HOLD_EVICTED] > 5);
}

static void run_random(uint64_t seed, bool dedup, uint32_t n_host, bool has_names) {
    struct tier_fixture w;
    struct kv_names_config names = names_of(&w);
    struct rng rng;

    rng_seed(&rng, seed);
    fixture_init_named(&w, N_DEVICE, n_host, dedup, has_names ? &names : NULL);
    for (int i = 0; i < 4000; i++) {
        w.now_us += 100000;
        kv_manager_set_now(w.mgr, w.now_us);
        for (uint64_t k = rng_below(&rng, 6); k > 0; k--)
            act(&w, &rng, (uint32_t)rng_below(&rng, N_SEQS));
        run_step(&w);
        w.has_below = rng_below(&rng, 2) == 0;
        assert_int_equal(w.n_below, held(&w).n_charged[HOLD_BELOW]);
        if (rng_below(&rng, 300) == 0) {
            for (uint32_t s = 0; s < N_SEQS; s++) {
                if (has_blocks(&w, s)) kv_req_free(&w.req[s]);
            }
            assert_int_equal(kv_manager_reset_prefix_cache(w.mgr), ST_OK);
        }
    }
    assert_true(w.n_moves[KV_MOVE_COPY] > 20);
    assert_true(n_host == 0 || (w.n_moves[KV_MOVE_IN] > 500 && w.n_moves[KV_MOVE_OUT] > 500));
    assert_true(n_host == 0 || kv_manager_stats(w.mgr)->host.hits > 500);
    assert_true(!has_names || (w.n_restored > 100 && w.n_wanted > 100));
    assert_true(!has_names || held(&w).n_left > 5);
    check_ends(held(&w).n_ended, n_host > 0);
    fixture_fini(&w);
}

static void random_steps_read_what_was_written(void **state) {
    (void)state;
    run_random(support_seed(), false, N_HOST, false);
    run_random(support_seed() + 1, true, N_HOST, false);
    run_random(support_seed() + 2, false, 9, false);
    run_random(support_seed() + 3, false, 0, false);
}

static void random_steps_with_a_tier_below(void **state) {
    (void)state;
    run_random(support_seed() + 4, false, N_HOST, true);
    run_random(support_seed() + 5, true, N_HOST, true);
    run_random(support_seed() + 6, false, 9, true);
}

int main(void) {
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(evicted_blocks_are_restored),
        cmocka_unit_test(a_hit_can_begin_on_the_device_and_end_in_host_memory),
        cmocka_unit_test(a_block_published_for_this_step_is_not_kept),
        cmocka_unit_test(a_swapped_sequence_is_restored_whole),
        cmocka_unit_test(swapping_is_all_or_nothing),
        cmocka_unit_test(forks_share_their_prefix_when_swapped),
        cmocka_unit_test(a_swapped_sequence_can_end_where_it_is),
        cmocka_unit_test(what_came_from_below_is_hit),
        cmocka_unit_test(what_is_behind_the_prefix_gets_no_name),
        cmocka_unit_test(held_prefix_outlives_a_hundred_caches),
        cmocka_unit_test(random_steps_read_what_was_written),
        cmocka_unit_test(random_steps_with_a_tier_below),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
