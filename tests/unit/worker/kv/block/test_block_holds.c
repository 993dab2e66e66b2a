/* tests/unit/worker/kv/block/test_block_holds.c - who may hold how much, for how long, against a
 * list of what was held. */
#include <string.h>

#include "common/base/rng.h"
#include "tests/support/cm.h"
#include "tests/support/support.h"
#include "worker/kv/block/block_holds.h"

#define SECOND UINT64_C(1000000)

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define N_OPS 20000u
#else
#define N_OPS 200000u
#endif
#define N_BLOCKS  64u
#define BUDGET    40u
#define BELOW     80u
#define CHAIN_MAX 16u
#define HOLDS_MAX 64u

/* The pool: what it was told. A chain is a path in a tree, so that equal hashes are equal
 * prefixes: block `at` of path p has the hash of its node, and that node's id. */
struct pool {
    bool is_held[N_BLOCKS];
    uint32_t n_kept[N_BLOCKS]; /* below: how often it is to be kept, and whether it is there */
    bool is_below[N_BLOCKS];
};

static void on_take(void *arg, uint32_t id, bool is_first) {
    struct pool *p = arg;

    assert_int_equal(is_first, !p->is_held[id]);
    p->is_held[id] = true;
}

static void on_give(void *arg, uint32_t id) {
    struct pool *p = arg;

    assert_true(p->is_held[id]);
    p->is_held[id] = false;
}

static uint32_t node_of(const struct block_name *name) {
    uint32_t node;

    memcpy(&node, name->bytes, sizeof(node));
    return node;
}

static void keep_below(void *arg, const struct block_name *names, uint32_t n, bool is_kept) {
    struct pool *p = arg;

    for (uint32_t i = 0; i < n; i++) {
        assert_true(is_kept || p->n_kept[node_of(&names[i])] > 0);
        p->n_kept[node_of(&names[i])] += is_kept ? 1 : -1u;
    }
}

static uint32_t count_below(void *arg, const struct block_name *names, uint32_t n) {
    const struct pool *p = arg;
    uint32_t i = 0;

    while (i < n && p->is_below[node_of(&names[i])])
        i++;
    return i;
}

static struct block_holds *make(struct pool *p, uint32_t budget) {
    memset(p, 0, sizeof(*p));
    return block_holds_create(&(struct block_holds_config){.n_blocks = N_BLOCKS,
                                                           .max_blocks = budget,
                                                           .take = on_take,
                                                           .give = on_give,
                                                           .keep_below = keep_below,
                                                           .count_below = count_below,
                                                           .arg = p});
}

/* A binary tree in an array: node k has the children 2k and 2k + 1; nodes of 1 to 63. */
static uint32_t path_to(uint32_t node, uint32_t ids[CHAIN_MAX],
                        struct block_hash hashes[CHAIN_MAX]) {
    uint32_t n = 0;

    for (uint32_t k = node; k > 0; k /= 2)
        n++;
    for (uint32_t i = n; i-- > 0; node /= 2) {
        ids[i] = node;
        memset(&hashes[i], 0, sizeof(hashes[i]));
        memcpy(hashes[i].bytes, &node, sizeof(node));
    }
    return n;
}

static enum status hold(struct block_holds *h, uint64_t id, uint64_t holder, uint32_t node,
                        uint32_t ttl_s) {
    struct block_hash hashes[CHAIN_MAX];
    struct block_name names[CHAIN_MAX] = {0};
    uint32_t ids[CHAIN_MAX], n = path_to(node, ids, hashes);
    enum status st = block_holds_make_room(h, holder, n, NULL);

    if (st != ST_OK) return st;
    for (uint32_t i = 0; i < n; i++)
        memcpy(names[i].bytes, &ids[i], sizeof(ids[i]));
    block_holds_insert(h, &(struct block_hold){.id = id,
                                               .owner = holder,
                                               .holder = holder,
                                               .ttl_s = ttl_s,
                                               .n_blocks = n,
                                               .ids = ids,
                                               .hashes = hashes,
                                               .names = names});
    block_holds_check(h);
    return ST_OK;
}

static void note(struct block_holds *h, uint32_t node, uint32_t n_hit) {
    struct block_hash hashes[CHAIN_MAX];
    uint32_t ids[CHAIN_MAX];

    (void)path_to(node, ids, hashes);
    block_holds_note(h, hashes, n_hit);
}

/* --- planted ---------------------------------------------------------------------------------- */

static void shared_block_is_given_back_with_its_last_hold(void **state) {
    struct pool p;
    struct block_holds *h = make(&p, 20);

    (void)state;
    assert_int_equal(hold(h, 1, 0, 4, 60), ST_OK); /* 1, 2, 4 */
    assert_int_equal(hold(h, 2, 0, 5, 60), ST_OK); /* 1, 2, 5 */
    assert_int_equal(block_holds_stats(h).n_blocks, 4);
    assert_int_equal(block_holds_stats(h).n_charged[HOLD_HERE], 6);
    assert_int_equal(block_holds_release(h, 1, 0), ST_OK);
    assert_true(p.is_held[1] && p.is_held[2] && !p.is_held[4] && p.is_held[5]);
    assert_int_equal(block_holds_release(h, 1, 0), ST_NOT_FOUND);
    assert_int_equal(block_holds_release(h, 2, 9), ST_NOT_FOUND); /* another's */
    assert_int_equal(block_holds_release(h, 2, 0), ST_OK);
    for (uint32_t id = 0; id < N_BLOCKS; id++)
        assert_false(p.is_held[id]);
    block_holds_destroy(h);
}

static void use_begins_the_time_again(void **state) {
    struct pool p;
    struct block_holds *h = make(&p, 20);

    (void)state;
    assert_int_equal(hold(h, 1, 0, 8, 60), ST_OK); /* 1, 2, 4, 8 */
    block_holds_set_now(h, 30 * SECOND);
    assert_true(block_holds_value(h, block_holds_at(h, 0)) == 0.5);
    note(h, 8, 1); /* less than half of it */
    note(h, 3, 2);
    assert_int_equal(block_holds_at(h, 0)->n_hits, 0);
    note(h, 8, 2);
    assert_int_equal(block_holds_at(h, 0)->n_hits, 1);
    assert_int_equal(block_holds_at(h, 0)->n_saved, 2);
    block_holds_set_now(h, 90 * SECOND - 1);
    assert_int_equal(block_holds_stats(h).n_holds, 1);
    block_holds_set_now(h, 90 * SECOND);
    assert_int_equal(block_holds_stats(h).n_holds, 0);
    assert_int_equal(block_holds_stats(h).n_ended[HOLD_EXPIRED], 1);
    block_holds_destroy(h);
}

static void decayed_hold_makes_room_and_a_fresh_one_does_not(void **state) {
    struct pool p;
    struct block_holds *h = make(&p, 8);

    (void)state;
    assert_int_equal(hold(h, 1, 0, 8, 60), ST_OK);
    block_holds_set_now(h, 10 * SECOND);
    assert_int_equal(hold(h, 2, 0, 9, 60), ST_OK);
    block_holds_set_now(h, 29 * SECOND);
    assert_int_equal(hold(h, 3, 0, 4, 60), ST_BUSY);
    block_holds_set_now(h, 30 * SECOND);
    assert_int_equal(hold(h, 3, 0, 4, 60), ST_OK);
    assert_int_equal(block_holds_release(h, 1, 0), ST_NOT_FOUND);
    assert_int_equal(hold(h, 4, 0, 32, 60), ST_BUSY);  /* six: the other has not decayed */
    assert_int_equal(block_holds_stats(h).n_holds, 2); /* none ended in vain */
    assert_int_equal(block_holds_stats(h).n_refused, 2);
    block_holds_destroy(h);
}

static void holder_has_half_of_the_budget(void **state) {
    struct pool p;
    struct block_holds *h = make(&p, 8);

    (void)state;
    assert_int_equal(hold(h, 1, 7, 8, 60), ST_OK);
    assert_int_equal(hold(h, 2, 7, 1, 60), ST_BUSY);
    assert_int_equal(hold(h, 3, 8, 9, 60), ST_OK);
    assert_int_equal(hold(h, 4, 9, 1, 60), ST_BUSY); /* there is no more for anyone */
    block_holds_destroy(h);
}

static void evicted_block_cuts_every_hold_that_has_it(void **state) {
    struct pool p;
    struct block_holds *h = make(&p, 20);

    (void)state;
    assert_int_equal(hold(h, 1, 0, 8, 60), ST_OK); /* 1, 2, 4, 8 */
    assert_int_equal(hold(h, 2, 0, 9, 60), ST_OK); /* 1, 2, 4, 9 */
    p.is_held[4] = false;                          /* evicted */
    block_holds_evicted(h, 4);
    block_holds_check(h);
    assert_true(p.is_held[8]); /* not from within an eviction */
    block_holds_set_now(h, SECOND);
    block_holds_check(h);
    assert_int_equal(block_holds_at(h, 0)->n_blocks, 2);
    assert_int_equal(block_holds_at(h, 1)->n_blocks, 2);
    assert_false(p.is_held[8] || p.is_held[9]);
    p.is_held[1] = false;
    block_holds_evicted(h, 1);
    block_holds_set_now(h, SECOND);
    assert_int_equal(block_holds_stats(h).n_holds, 0);
    assert_int_equal(block_holds_stats(h).n_ended[HOLD_EVICTED], 2);
    assert_false(p.is_held[2]);
    block_holds_destroy(h);
}

static void hold_that_is_below_leaves_for_another(void **state) {
    struct pool p;
    struct block_holds *h = make(&p, 8);

    (void)state;
    block_holds_set_below(h, 12);
    assert_int_equal(hold(h, 1, 0, 8, 60), ST_OK); /* 1, 2, 4, 8 */
    block_holds_set_now(h, SECOND);
    assert_int_equal(hold(h, 2, 0, 9, 60), ST_OK);   /* 1, 2, 4, 9 */
    assert_int_equal(hold(h, 3, 0, 7, 60), ST_BUSY); /* nothing of it is below yet */
    p.is_below[1] = p.is_below[2] = p.is_below[4] = true;
    assert_int_equal(hold(h, 3, 0, 7, 60), ST_BUSY); /* all but the last block */
    p.is_below[8] = p.is_below[9] = true;
    assert_int_equal(hold(h, 3, 0, 7, 60), ST_OK); /* 1, 3, 7 */
    assert_int_equal(block_holds_stats(h).n_left, 1);
    assert_false(p.is_held[8]); /* the one that was idle for longer */
    assert_true(p.is_held[9] && p.n_kept[8] == 1 && p.n_kept[1] == 3);
    note(h, 8, 4); /* it is used as before */
    assert_int_equal(block_holds_at(h, 0)->n_hits, 1);
    assert_int_equal(block_holds_n_below(h, block_holds_at(h, 0)), 4);
    assert_int_equal(hold(h, 4, 0, 5, 60), ST_OK); /* the budget below has room for one more */
    assert_int_equal(block_holds_stats(h).n_charged[HOLD_BELOW], 11);
    assert_int_equal(block_holds_release(h, 1, 0), ST_OK);
    assert_int_equal(p.n_kept[8], 0);
    block_holds_reset(h);
    for (uint32_t node = 0; node < N_BLOCKS; node++)
        assert_true(p.n_kept[node] == 0 && !p.is_held[node]);
    assert_int_equal(block_holds_stats(h).n_charged[HOLD_BELOW], 0);
    block_holds_destroy(h);
}

/* --- beside a list ---------------------------------------------------------------------------- */

struct model_hold {
    uint64_t id, holder, used_us, n_hits;
    uint32_t ttl_s, node, n;
    bool is_here, is_below;
    int fate; /* 1: leaves, 2: ends */
};

struct fixture {
    struct pool pool;
    struct block_holds *holds;
    struct rng rng;
    struct model_hold list[HOLDS_MAX];
    uint32_t n;
    uint64_t now_us, next_id;
    uint64_t n_ended[HOLD_ENDS], n_refused, n_left;
};

static uint32_t below(struct fixture *w, uint32_t n) {
    return (uint32_t)rng_below(&w->rng, n);
}

static double idle_of(const struct fixture *w, const struct model_hold *m) {
    return (double)(w->now_us - m->used_us) / (double)(m->ttl_s * SECOND);
}

static void drop(struct fixture *w, uint32_t i, enum hold_end why) {
    w->list[i] = w->list[--w->n];
    w->n_ended[why]++;
}

/* Blocks that count against a budget: of the place, and of one holder or of all. */
static uint32_t charged(const struct fixture *w, bool is_below, bool is_all, uint64_t holder) {
    uint32_t n = 0;

    for (uint32_t i = 0; i < w->n; i++) {
        const struct model_hold *m = &w->list[i];
        bool is_in = is_below ? m->is_below && m->fate < 2 : m->is_here && m->fate < 1;

        if (is_in && (is_all || m->holder == holder)) n += m->n;
    }
    return n;
}

static bool is_all_below(const struct fixture *w, const struct model_hold *m) {
    for (uint32_t node = m->node; node > 0; node /= 2)
        if (!w->pool.is_below[node]) return false;
    return m->is_below;
}

/* The idlest whose fate makes room, one at a time. */
static bool make_room(struct fixture *w, bool is_below, bool is_all, uint64_t holder, uint32_t n) {
    uint32_t max = is_below ? BELOW : BUDGET;

    while (n + charged(w, is_below, is_all, holder) > (is_all ? max : max / 2)) {
        struct model_hold *best = NULL;
        int fate = is_below ? 2 : 1;

        for (; fate <= 2 && !best; fate++) {
            for (uint32_t i = 0; i < w->n; i++) {
                struct model_hold *m = &w->list[i];
                bool is_in = is_below ? m->is_below && m->fate < 2 : m->is_here && m->fate < 1;

                if (!is_in || (!is_all && m->holder != holder)) continue;
                if (fate == 1 ? !is_all_below(w, m) : idle_of(w, m) < 0.5) continue;
                if (!best || idle_of(w, m) >= idle_of(w, best)) best = m;
            }
            if (best) best->fate = fate;
        }
        if (!best) return false;
    }
    return true;
}

static bool make_all_room(struct fixture *w, bool is_below, uint64_t holder, uint32_t n) {
    int before[HOLDS_MAX];
    bool fits;

    for (uint32_t i = 0; i < w->n; i++)
        before[i] = w->list[i].fate;
    fits = (holder == 0 || make_room(w, is_below, false, holder, n)) &&
           make_room(w, is_below, true, 0, n);
    for (uint32_t i = 0; i < w->n && !fits; i++)
        w->list[i].fate = before[i];
    return fits;
}

static uint32_t depth_of(uint32_t node) {
    uint32_t n = 0;

    for (; node > 0; node /= 2)
        n++;
    return n;
}

static void hold_some(struct fixture *w) {
    uint64_t holder = below(w, 3);
    uint32_t node = 1 + below(w, N_BLOCKS - 1), n = depth_of(node), ttl_s = 1 + below(w, 100);
    bool fits = make_all_room(w, false, holder, n), fits_below;

    assert_int_equal(hold(w->holds, w->next_id, holder, node, ttl_s), fits ? ST_OK : ST_BUSY);
    w->n_refused += !fits;
    if (!fits) return;
    fits_below = make_all_room(w, true, holder, n);
    for (uint32_t i = w->n; i-- > 0;) {
        struct model_hold *m = &w->list[i];
        int fate = m->fate;

        m->fate = 0;
        w->n_left += fate == 1;
        if (fate == 1) m->is_here = false;
        if (fate == 2) drop(w, i, HOLD_DISPLACED);
    }
    w->list[w->n++] = (struct model_hold){.id = w->next_id++,
                                          .holder = holder,
                                          .used_us = w->now_us,
                                          .ttl_s = ttl_s,
                                          .node = node,
                                          .n = n,
                                          .is_here = true,
                                          .is_below = fits_below};
}

static uint32_t ancestor(uint32_t node, uint32_t n) {
    while (depth_of(node) > n)
        node /= 2;
    return node;
}

static void use_some(struct fixture *w) {
    uint32_t node = 1 + below(w, N_BLOCKS - 1), n_hit = below(w, depth_of(node) + 1);

    note(w->holds, node, n_hit);
    for (uint32_t i = 0; i < w->n; i++) {
        struct model_hold *m = &w->list[i];
        uint32_t n = MIN(n_hit, m->n);

        while (n > 0 && ancestor(node, n) != ancestor(m->node, n))
            n--;
        if (n == 0 || n < m->n / 2) continue;
        m->used_us = w->now_us;
        m->n_hits++;
    }
}

static void release_some(struct fixture *w) {
    uint32_t i = below(w, HOLDS_MAX);
    uint64_t owner = below(w, 3);

    if (i >= w->n) {
        assert_int_equal(block_holds_release(w->holds, w->next_id, owner), ST_NOT_FOUND);
        return;
    }
    assert_int_equal(block_holds_release(w->holds, w->list[i].id, owner),
                     w->list[i].holder == owner ? ST_OK : ST_NOT_FOUND);
    if (w->list[i].holder == owner) drop(w, i, HOLD_RELEASED);
}

static void evict_some(struct fixture *w) {
    uint32_t node = 1 + below(w, N_BLOCKS - 1);

    w->pool.is_held[node] = false;
    block_holds_evicted(w->holds, node);
    block_holds_check(w->holds);
    block_holds_set_now(w->holds, w->now_us);
    for (uint32_t i = w->n; i-- > 0;) {
        struct model_hold *m = &w->list[i];

        if (!m->is_here || m->n < depth_of(node) || ancestor(m->node, depth_of(node)) != node)
            continue;
        m->node = node / 2;
        m->n = depth_of(m->node);
        if (m->n == 0) drop(w, i, HOLD_EVICTED);
    }
}

static void let_time_pass(struct fixture *w) {
    w->now_us += below(w, 20) * SECOND;
    block_holds_set_now(w->holds, w->now_us);
    for (uint32_t i = w->n; i-- > 0;)
        if (idle_of(w, &w->list[i]) >= 1) drop(w, i, HOLD_EXPIRED);
}

static const struct model_hold *find(const struct fixture *w, uint64_t id) {
    for (uint32_t i = 0; i < w->n; i++)
        if (w->list[i].id == id) return &w->list[i];
    fail();
    return NULL;
}

static void compare(const struct fixture *w) {
    struct block_holds_stats s = block_holds_stats(w->holds);
    uint32_t n_blocks = 0, n_kept[N_BLOCKS] = {0};
    bool is_held[N_BLOCKS] = {false};

    assert_int_equal(s.n_holds, w->n);
    for (uint32_t i = 0; i < w->n; i++) {
        const struct block_hold *hold = block_holds_at(w->holds, i);
        const struct model_hold *m = find(w, hold->id);

        assert_int_equal(hold->n_blocks, m->n);
        assert_int_equal(hold->n_hits, m->n_hits);
        assert_int_equal(hold->used_us, m->used_us);
        assert_true(hold->is_in[HOLD_HERE] == m->is_here && hold->is_in[HOLD_BELOW] == m->is_below);
        for (uint32_t node = m->node; node > 0; node /= 2) {
            is_held[node] |= m->is_here;
            n_kept[node] += m->is_below;
        }
    }
    assert_memory_equal(w->pool.n_kept, n_kept, sizeof(n_kept));
    for (uint32_t id = 0; id < N_BLOCKS; id++) {
        assert_int_equal(w->pool.is_held[id], is_held[id]);
        assert_int_equal(block_holds_has(w->holds, id), is_held[id]);
        n_blocks += is_held[id];
    }
    assert_int_equal(s.n_blocks, n_blocks);
    assert_int_equal(s.n_charged[HOLD_HERE], charged(w, false, true, 0));
    assert_int_equal(s.n_charged[HOLD_BELOW], charged(w, true, true, 0));
    assert_int_equal(s.n_left, w->n_left);
    assert_int_equal(s.n_refused, w->n_refused);
    assert_memory_equal(s.n_ended, w->n_ended, sizeof(s.n_ended));
}

static void random_holds_are_those_of_the_list(void **state) {
    struct fixture w = {.next_id = 1};

    (void)state;
    rng_seed(&w.rng, 5);
    w.holds = make(&w.pool, BUDGET);
    block_holds_set_below(w.holds, BELOW);
    for (uint32_t i = 0; i < N_OPS; i++) {
        switch (below(&w, 16)) {
        case 0: evict_some(&w); break;
        case 1: release_some(&w); break;
        case 2:
        case 3:
        case 4: let_time_pass(&w); break;
        case 5:
        case 6:
        case 7:
        case 8:
        case 9: use_some(&w); break;
        default: hold_some(&w);
        }
        w.pool.is_below[1 + below(&w, N_BLOCKS - 1)] = below(&w, 2);
        if (below(&w, 500) == 0) {
            block_holds_reset(w.holds);
            while (w.n > 0)
                drop(&w, 0, HOLD_RESET);
        }
        block_holds_check(w.holds);
        compare(&w);
    }
    for (int why = 0; why < HOLD_ENDS; why++)
        assert_true(w.n_ended[why] > 20);
    assert_true(w.n_refused > 100 && w.n_left > 100);
    block_holds_destroy(w.holds);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shared_block_is_given_back_with_its_last_hold),
        cmocka_unit_test(use_begins_the_time_again),
        cmocka_unit_test(decayed_hold_makes_room_and_a_fresh_one_does_not),
        cmocka_unit_test(holder_has_half_of_the_budget),
        cmocka_unit_test(evicted_block_cuts_every_hold_that_has_it),
        cmocka_unit_test(hold_that_is_below_leaves_for_another),
        cmocka_unit_test(random_holds_are_those_of_the_list),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
