/* tests/unit/worker/kv/test_kv_host.c - what is kept, what is held, what goes first.
 *
 * The random test drives the pool against a model that has neither queue nor hash: contents are
 * numbered, each has a last use, and a block's bytes are what was last moved into it. */
#include <string.h>

#include "common/base/rng.h"
#include "tests/support/cm.h"
#include "tests/support/support.h"
#include "worker/kv/kv_host.h"

#define BLOCK_SIZE   4
#define MAX_RESERVED 3

/* Content number c: tokens, hash and prefix number are all made from it; c - 1 is its parent unless
 * c % 8 is 0: chains of eight. Hashes are bad on purpose. */
struct content {
    struct block_hash hash;
    uint32_t tokens[BLOCK_SIZE];
    struct prefix_key key;
};

static struct content *content(uint32_t c) {
    static struct content slots[64];
    struct content *x = &slots[c % ARRAY_LEN(slots)];

    memset(x, 0, sizeof(*x));
    x->hash.bytes[0] = (uint8_t)(c % 5);
    for (uint32_t i = 0; i < BLOCK_SIZE; i++)
        x->tokens[i] = c * 10 + i;
    x->key = (struct prefix_key){
        .hash = &x->hash, .parent = c % 8 ? c : PREFIX_ROOT, .tokens = x->tokens};
    return x;
}

static uint64_t prefix_of(uint32_t c) {
    return c + 1;
}

static struct kv_host *make(uint32_t n_blocks) {
    return kv_host_create(&(struct kv_host_config){
        .n_blocks = n_blocks, .block_size = BLOCK_SIZE, .max_reserved = MAX_RESERVED});
}

static block_id keep(struct kv_host *host, uint32_t c, bool *must_move) {
    return kv_host_keep(host, &content(c)->key, prefix_of(c), must_move);
}

static block_id find(const struct kv_host *host, uint32_t c) {
    return kv_host_find(host, &content(c)->key);
}

static void a_kept_block_is_found_and_moves_once(void **state) {
    struct kv_host *host = make(4);
    bool must_move;
    block_id id;

    (void)state;
    id = keep(host, 1, &must_move);
    assert_true(must_move);
    assert_int_equal(find(host, 1), id);
    assert_int_equal(find(host, 2), BLOCK_NONE);
    assert_int_equal(kv_host_n_held(host), 1);
    kv_host_end_step(host);
    assert_int_equal(kv_host_n_held(host), 0);
    assert_int_equal(keep(host, 1, &must_move), id);
    assert_false(must_move);
    kv_host_end_step(host);
    kv_host_check(host);
    kv_host_destroy(host);
}

static void blocks_moved_by_a_step_are_not_reused_in_it(void **state) {
    struct kv_host *host = make(3);
    block_id ids[3], none;
    bool must_move;

    (void)state;
    for (uint32_t c = 0; c < 3; c++)
        ids[c] = keep(host, c, &must_move);
    none = keep(host, 10, &must_move);
    assert_int_equal(none, BLOCK_NONE);
    assert_false(must_move);
    kv_host_end_step(host);
    kv_host_read(host, ids, 2); /* 0 and 1 are read in this step: 2 is the only one that may go */
    assert_int_equal(keep(host, 10, &must_move), ids[2]);
    assert_int_equal(keep(host, 11, &must_move), BLOCK_NONE);
    assert_int_equal(find(host, 2), BLOCK_NONE);
    assert_int_equal(find(host, 0), ids[0]);
    kv_host_end_step(host);
    kv_host_check(host);
    kv_host_destroy(host);
}

static void a_chain_is_eaten_from_its_end(void **state) {
    struct kv_host *host = make(4);
    block_id chain[3];
    bool must_move;

    (void)state;
    for (uint32_t c = 3; c-- > 0;) /* the device evicts leaves first */
        chain[c] = keep(host, c, &must_move);
    kv_host_end_step(host);
    kv_host_read(host, chain, 3); /* a hit leaves the order as it should be */
    kv_host_end_step(host);
    for (uint32_t i = 0; i < 4; i++) { /* the first takes the blank block */
        assert_int_not_equal(keep(host, 20 + i, &must_move), BLOCK_NONE);
        kv_host_end_step(host);
        for (uint32_t c = 0; c < 3; c++)
            assert_int_equal(find(host, c) != BLOCK_NONE, c < 3 - i);
    }
    kv_host_check(host);
    kv_host_destroy(host);
}

static void holding_is_all_or_nothing(void **state) {
    struct kv_host *host = make(4);
    struct kv_host_slot slots[4] = {{.key = NULL}};
    bool must_move;
    block_id id;

    (void)state;
    id = keep(host, 8, &must_move);
    kv_host_end_step(host);
    slots[0] = (struct kv_host_slot){.key = &content(8)->key, .prefix = prefix_of(8)};
    assert_int_equal(kv_host_hold(host, slots, 3), ST_OK);
    assert_int_equal(slots[0].id, id); /* shared with the cache */
    assert_false(slots[0].must_move);
    assert_true(slots[1].must_move && slots[2].must_move);
    assert_int_equal(kv_host_n_held(host), 3);
    {
        struct kv_host_slot more[2] = {{.key = NULL}};

        assert_int_equal(kv_host_hold(host, more, 2), ST_BUSY);
        assert_int_equal(kv_host_n_held(host), 3);
    }
    assert_int_not_equal(keep(host, 40, &must_move), BLOCK_NONE);
    assert_int_equal(keep(host, 41, &must_move), BLOCK_NONE); /* held ones are safe */
    kv_host_end_step(host);
    kv_host_release(host, (block_id[]){slots[0].id, slots[1].id, slots[2].id}, 3);
    assert_int_equal(kv_host_n_held(host), 3); /* being read */
    kv_host_end_step(host);
    assert_int_equal(kv_host_n_held(host), 0);
    assert_int_equal(find(host, 8), id);
    kv_host_check(host);
    kv_host_destroy(host);
}

static void reset_forgets_content_and_keeps_holders(void **state) {
    struct kv_host *host = make(4);
    struct kv_host_slot slot = {.key = &content(8)->key, .prefix = prefix_of(8)};
    bool must_move;

    (void)state;
    assert_int_not_equal(keep(host, 3, &must_move), BLOCK_NONE);
    assert_int_equal(kv_host_hold(host, &slot, 1), ST_OK);
    kv_host_end_step(host);
    kv_host_reset(host);
    assert_int_equal(find(host, 3), BLOCK_NONE);
    assert_int_equal(find(host, 8), BLOCK_NONE);
    assert_int_equal(kv_host_n_held(host), 1);
    assert_int_equal(kv_host_n_cached(host), 0);
    kv_host_release(host, &slot.id, 1);
    kv_host_end_step(host);
    kv_host_check(host);
    kv_host_destroy(host);
}

static void without_a_cache_only_swapping_takes_room(void **state) {
    struct kv_host *host = kv_host_create(
        &(struct kv_host_config){.n_blocks = 2, .block_size = BLOCK_SIZE, .no_cache = true});
    struct kv_host_slot slot = {.key = &content(8)->key, .prefix = prefix_of(8)};
    bool must_move;

    (void)state;
    assert_int_equal(keep(host, 1, &must_move), BLOCK_NONE);
    assert_int_equal(kv_host_hold(host, &slot, 1), ST_OK);
    assert_int_equal(find(host, 8), BLOCK_NONE);
    kv_host_release(host, &slot.id, 1);
    kv_host_end_step(host);
    kv_host_destroy(host);
}

static void a_reserved_block_is_found_once_it_is_published(void **state) {
    struct kv_host *host = make(4);
    block_id ids[2];
    bool must_move;

    (void)state;
    for (uint32_t c = 0; c < 2; c++) {
        ids[c] = kv_host_reserve(host);
        assert_int_not_equal(ids[c], BLOCK_NONE);
        assert_int_equal(find(host, c), BLOCK_NONE);
    }
    kv_host_publish(host, ids[0], &content(0)->key, prefix_of(0));
    assert_int_equal(find(host, 0), ids[0]);
    kv_host_drop(host, ids, 2); /* the second was abandoned */
    assert_int_equal(find(host, 0), ids[0]);
    assert_int_equal(kv_host_n_held(host), 0);
    assert_int_equal(kv_host_n_reserved(host), 0);
    for (uint32_t c = 10; c < 13; c++) { /* blanks go first, the restored one last */
        assert_int_not_equal(keep(host, c, &must_move), BLOCK_NONE);
        assert_int_equal(find(host, 0), ids[0]);
    }
    kv_host_end_step(host);
    kv_host_check(host);
    kv_host_destroy(host);
}

static void lower_tiers_have_a_share_of_the_blocks(void **state) {
    struct kv_host *host = make(8);
    block_id ids[MAX_RESERVED + 1];

    (void)state;
    for (uint32_t i = 0; i < MAX_RESERVED; i++)
        ids[i] = kv_host_reserve(host);
    assert_int_equal(kv_host_reserve(host), BLOCK_NONE);
    kv_host_drop(host, ids, 1);
    assert_int_not_equal(kv_host_reserve(host), BLOCK_NONE);
    kv_host_check(host);
    kv_host_destroy(host);
}

static void a_block_is_read_and_reserved_after_its_moves(void **state) {
    struct kv_host *host = make(1);
    bool must_move;
    block_id id = keep(host, 1, &must_move);
    uint64_t step = kv_host_step(host);

    (void)state;
    kv_host_end_step(host);
    assert_false(kv_host_is_quiet(host, id)); /* the device may be writing it yet */
    assert_int_equal(kv_host_reserve(host), BLOCK_NONE);
    kv_host_settle(host, step);
    assert_false(kv_host_is_quiet(host, id));
    kv_host_settle(host, step + 1);
    assert_true(kv_host_is_quiet(host, id));
    kv_host_read(host, &id, 1); /* or reading it */
    kv_host_end_step(host);
    assert_false(kv_host_is_quiet(host, id));
    assert_int_equal(kv_host_reserve(host), BLOCK_NONE);
    kv_host_settle(host, step + 2);
    kv_host_acquire(host, id); /* a tier reads it: it stays */
    assert_int_equal(kv_host_reserve(host), BLOCK_NONE);
    assert_int_equal(keep(host, 2, &must_move), BLOCK_NONE);
    kv_host_drop(host, &id, 1);
    assert_int_equal(kv_host_reserve(host), id);
    assert_int_equal(find(host, 1), BLOCK_NONE);
    kv_host_destroy(host);
}

/* --- against a model -------------------------------------------------------------------------- */

#define N_BLOCKS   12
#define N_CONTENTS 40
#define N_SEQS     4
#define N_LOWER    5
#define NAMELESS   1000 /* and up: contents without a key */

struct model {
    struct kv_host *host;
    uint32_t bytes[N_BLOCKS]; /* content that was last moved there; UINT32_MAX: garbage */
    bool in_step[N_BLOCKS];   /* read or written by this step's moves */
    block_id held[N_SEQS][4];
    uint32_t wants[N_SEQS][4]; /* the contents that must be in them */
    uint32_t n_held[N_SEQS];
    uint32_t n_named;
    /* The lower tier: blocks that it fills or reads, and what must be in them. */
    block_id lower[N_LOWER];
    uint32_t lower_wants[N_LOWER], n_lower;
    bool is_filling[N_LOWER];
    uint64_t step, n_settled, moved[N_BLOCKS];
};

/* Nothing that is found, held or pinned may have other bytes than it should. */
static void check_model(const struct model *m) {
    kv_host_check(m->host);
    for (uint32_t c = 0; c < N_CONTENTS; c++) {
        block_id id = find(m->host, c);

        if (id != BLOCK_NONE) assert_int_equal(m->bytes[id], c);
    }
    for (uint32_t s = 0; s < N_SEQS; s++) {
        for (uint32_t i = 0; i < m->n_held[s]; i++)
            assert_int_equal(m->bytes[m->held[s][i]], m->wants[s][i]);
    }
    for (uint32_t i = 0; i < m->n_lower; i++)
        assert_int_equal(m->bytes[m->lower[i]], m->lower_wants[i]);
}

/* A move of this step reads or writes it. */
static void note_move(struct model *m, block_id id) {
    m->in_step[id] = true;
    m->moved[id] = m->step;
}

static void write_block(struct model *m, block_id id, uint32_t c) {
    assert_false(m->in_step[id] && m->bytes[id] != c); /* a pinned block is not overwritten */
    m->bytes[id] = c;
    note_move(m, id);
}

/* What a tier writes at once must be under no move of the device. */
static void model_reserve(struct model *m, uint32_t c) {
    block_id id;

    if (m->n_lower == N_LOWER) return;
    id = kv_host_reserve(m->host);
    if (id == BLOCK_NONE) return;
    assert_true(m->moved[id] < m->n_settled);
    m->bytes[id] = c;
    m->lower[m->n_lower] = id;
    m->lower_wants[m->n_lower] = c;
    m->is_filling[m->n_lower++] = true;
}

static void model_acquire(struct model *m, uint32_t c) {
    block_id id = find(m->host, c);

    if (m->n_lower == N_LOWER || id == BLOCK_NONE) return;
    assert_int_equal(kv_host_is_quiet(m->host, id), m->moved[id] < m->n_settled);
    if (!kv_host_is_quiet(m->host, id)) return;
    kv_host_acquire(m->host, id);
    m->lower[m->n_lower] = id;
    m->lower_wants[m->n_lower] = c;
    m->is_filling[m->n_lower++] = false;
}

/* Publishes the block if it was filled and its content is nowhere, or gives it up. */
static void model_drop(struct model *m, bool is_verified) {
    uint32_t c, at;

    if (m->n_lower == 0) return;
    at = --m->n_lower;
    c = m->lower_wants[at];
    if (m->is_filling[at] && is_verified && find(m->host, c) == BLOCK_NONE)
        kv_host_publish(m->host, m->lower[at], &content(c)->key, prefix_of(c));
    kv_host_drop(m->host, &m->lower[at], 1);
}

static void model_settle(struct model *m, uint64_t step) {
    kv_host_settle(m->host, step);
    m->n_settled = step;
}

static void model_swap_out(struct model *m, struct rng *rng, uint32_t s) {
    uint32_t n = 1 + (uint32_t)rng_below(rng, 4), chain = 8 * (uint32_t)rng_below(rng, 5);
    struct kv_host_slot slots[4];

    for (uint32_t i = 0; i < n; i++) {
        bool is_named = i + 1 < n;

        m->wants[s][i] = is_named ? chain + i : NAMELESS + m->n_named++;
        slots[i] = (struct kv_host_slot){.key = is_named ? &content(chain + i)->key : NULL,
                                         .prefix = is_named ? prefix_of(chain + i) : 0};
    }
    if (kv_host_hold(m->host, slots, n) != ST_OK) return;
    m->n_held[s] = n;
    for (uint32_t i = 0; i < n; i++) {
        m->held[s][i] = slots[i].id;
        if (slots[i].must_move) write_block(m, slots[i].id, m->wants[s][i]);
    }
}

static uint64_t number_of(const struct generation *numbers, block_id id) {
    return atomic_load(&numbers[id].number);
}

/* However a block is taken for another content, and never else. */
static void a_number_is_raised_before_each_reuse(void **state) {
    struct generation numbers[1] = {{0}};
    struct kv_host *host = kv_host_create(&(struct kv_host_config){
        .n_blocks = 1, .block_size = BLOCK_SIZE, .max_reserved = 1, .generations = numbers});
    struct kv_host_slot slot = {.key = NULL};
    block_id id;
    bool must_move;

    (void)state;
    id = keep(host, 1, &must_move);
    assert_int_equal(number_of(numbers, id), 1);
    kv_host_end_step(host);
    assert_int_equal(keep(host, 1, &must_move), id); /* it has that content */
    kv_host_read(host, &id, 1);
    kv_host_end_step(host);
    kv_host_acquire(host, id);
    kv_host_drop(host, &id, 1);
    kv_host_reset(host);
    assert_int_equal(number_of(numbers, id), 1);
    assert_int_equal(kv_host_hold(host, &slot, 1), ST_OK);
    assert_int_equal(number_of(numbers, slot.id), 2);
    kv_host_release(host, &slot.id, 1);
    kv_host_end_step(host);
    assert_int_equal(number_of(numbers, slot.id), 2);
    kv_host_settle(host, kv_host_step(host));
    id = kv_host_reserve(host);
    assert_int_equal(number_of(numbers, id), 3);
    kv_host_publish(host, id, &content(2)->key, prefix_of(2));
    kv_host_drop(host, &id, 1);
    assert_int_equal(number_of(numbers, id), 3);
    id = keep(host, 3, &must_move);
    assert_int_equal(number_of(numbers, id), 4);
    kv_host_end_step(host);
    kv_host_destroy(host);
}

static void random_steps_never_lose_bytes(void **state) {
    struct model m = {.host = make(N_BLOCKS), .step = 1, .n_settled = 1};
    struct rng rng;

    (void)state;
    rng_seed(&rng, support_seed());
    memset(m.bytes, 0xff, sizeof(m.bytes));
    for (int i = 0; i < 60000; i++) {
        uint32_t s = (uint32_t)rng_below(&rng, N_SEQS), c = (uint32_t)rng_below(&rng, N_CONTENTS);
        bool must_move;
        block_id id;

        switch (rng_below(&rng, 12)) {
        case 0:
        case 1:
        case 2:
            id = keep(m.host, c, &must_move);
            if (must_move) write_block(&m, id, c);
            if (id != BLOCK_NONE) m.in_step[id] = true; /* pinned, if nothing more */
            break;
        case 3:
            id = find(m.host, c);
            if (id == BLOCK_NONE) break;
            kv_host_read(m.host, &id, 1);
            note_move(&m, id);
            break;
        case 4:
            if (m.n_held[s] == 0) model_swap_out(&m, &rng, s);
            break;
        case 5:
            kv_host_release(m.host, m.held[s], m.n_held[s]);
            for (uint32_t k = 0; k < m.n_held[s]; k++)
                note_move(&m, m.held[s][k]);
            m.n_held[s] = 0;
            break;
        case 6:
            if (rng_below(&rng, 200) == 0) kv_host_reset(m.host);
            break;
        case 7: model_reserve(&m, c); break;
        case 8: model_acquire(&m, c); break;
        case 9: model_drop(&m, rng_below(&rng, 4) > 0); break;
        case 10: model_settle(&m, m.n_settled + rng_below(&rng, m.step - m.n_settled + 1)); break;
        default:
            kv_host_end_step(m.host);
            memset(m.in_step, 0, sizeof(m.in_step));
            m.step++;
        }
        check_model(&m);
    }
    for (uint32_t s = 0; s < N_SEQS; s++)
        kv_host_release(m.host, m.held[s], m.n_held[s]);
    while (m.n_lower > 0)
        model_drop(&m, true);
    kv_host_end_step(m.host);
    assert_int_equal(kv_host_n_held(m.host), 0);
    assert_int_equal(kv_host_n_reserved(m.host), 0);
    kv_host_destroy(m.host);
}

int main(void) {
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_kept_block_is_found_and_moves_once),
        cmocka_unit_test(blocks_moved_by_a_step_are_not_reused_in_it),
        cmocka_unit_test(a_chain_is_eaten_from_its_end),
        cmocka_unit_test(holding_is_all_or_nothing),
        cmocka_unit_test(reset_forgets_content_and_keeps_holders),
        cmocka_unit_test(without_a_cache_only_swapping_takes_room),
        cmocka_unit_test(a_reserved_block_is_found_once_it_is_published),
        cmocka_unit_test(lower_tiers_have_a_share_of_the_blocks),
        cmocka_unit_test(a_block_is_read_and_reserved_after_its_moves),
        cmocka_unit_test(a_number_is_raised_before_each_reuse),
        cmocka_unit_test(random_steps_never_lose_bytes),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
