/* tests/unit/cuda/shim/test_cuda_kv.c - whole blocks on the move, beside steps that use them.
 *
 * The shim does the work of the three streams in any order that events allow; what a copy should
 * have waited for shows as other bytes. The pools of both sides begin with the same random bytes.
 * */
#include "tests/unit/cuda/shim/cuda_fixture.h"

#define N_HOST 20u

static const struct cuda_fixture_setup setup = {
    .max_rows = 4, .max_step_tokens = 40, .n_blocks = 40, .n_host_blocks = N_HOST, .n_slots = 2};

/* The types of pools: a quantised block has scales behind its codes, and moves with them. */
static const enum dtype types[] = {DTYPE_BF16, DTYPE_F8E4M3, DTYPE_I8};

static struct tiny_shape shape_of(enum dtype type) {
    struct tiny_shape shape = cuda_fixture_llama;

    shape.kv_dtype = type;
    return shape;
}

struct pool { /* what the blocks should hold: one number each stands for its content */
    uint32_t device[CUDA_FIXTURE_BLOCKS], host[N_HOST];
};

static void fill_block(const struct cuda_fixture *s, uint8_t *bytes, uint32_t content) {
    struct rng r;

    rng_seed(&r, content);
    for (uint64_t i = 0; i < s->cuda.block_bytes; i++)
        bytes[i] = (uint8_t)rng_u64(&r);
}

static void write_all(struct cuda_fixture *s, struct pool *p) {
    uint8_t *bytes = mem_alloc(s->cuda.block_bytes);

    for (uint32_t i = 0; i < s->setup.n_blocks; i++) {
        p->device[i] = 1000 + i;
        fill_block(s, bytes, p->device[i]);
        assert_int_equal(backend_cuda.kv_write(s->cuda.model, i, bytes, s->cuda.block_bytes),
                         ST_OK);
    }
    mem_free(bytes);
}

static void check_all(struct cuda_fixture *s, const struct pool *p) {
    uint8_t *want = mem_alloc(s->cuda.block_bytes), *got = mem_alloc(s->cuda.block_bytes);

    for (uint32_t i = 0; i < s->setup.n_blocks; i++) {
        if (p->device[i] == 0) continue; /* unknown */
        fill_block(s, want, p->device[i]);
        assert_int_equal(backend_cuda.kv_read(s->cuda.model, i, got, s->cuda.block_bytes), ST_OK);
        if (memcmp(want, got, s->cuda.block_bytes)) fail_msg("block %u holds something else", i);
    }
    mem_free(want);
    mem_free(got);
}

/* Chains, swaps of two, a block onto itself, and more pairs than one launch takes. */
static void check_copies(enum dtype type) {
    struct tiny_shape shape = shape_of(type);
    struct cuda_fixture *s = cuda_fixture_open_alone(&shape, &setup, 3);
    static struct backend_copy pairs[1500];
    struct pool p;
    backend_fence f;

    write_all(s, &p);
    for (uint32_t i = 0; i < ARRAY_LEN(pairs); i++) {
        pairs[i].src = (uint32_t)rng_below(&s->rng, 40);
        pairs[i].dst = (uint32_t)rng_below(&s->rng, 40);
        p.device[pairs[i].dst] = p.device[pairs[i].src];
    }
    assert_int_equal(backend_cuda.kv_copy(s->cuda.model, pairs, ARRAY_LEN(pairs), &f), ST_OK);
    check_all(s, &p);
    pairs[7].src = 40;
    assert_int_equal(backend_cuda.kv_copy(s->cuda.model, pairs, 8, &f), ST_INVALID);
    check_all(s, &p);
    cuda_fixture_close(s);
}

static void copies_are_done_in_order(void **state) {
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(types); i++)
        check_copies(types[i]);
}

/* A few distinct blocks of each pool. */
static uint32_t draw_pairs(struct cuda_fixture *s, struct backend_copy *pairs, bool is_out) {
    uint32_t n = 1 + (uint32_t)rng_below(&s->rng, 4);
    uint32_t block = (uint32_t)rng_below(&s->rng, 40), host = (uint32_t)rng_below(&s->rng, N_HOST);

    for (uint32_t i = 0; i < n; i++) {
        uint32_t b = (block + 7 * i) % 40, h = (host + 3 * i) % N_HOST;

        pairs[i] = is_out ? (struct backend_copy){b, h} : (struct backend_copy){h, b};
    }
    return n;
}

/* One token of row 0 at a chosen block: a step that writes there. */
static void write_by_step(struct cuda_fixture *s, uint32_t slot, uint32_t block, struct pool *p) {
    struct backend_stage *t = &s->cuda.stage[slot];
    struct backend_step step = {.n_tokens = 1, .n_rows = 1, .n_updates = 1};
    backend_fence f;
    struct error err = {0};

    t->token[0] = 5;
    t->position[0] = 0;
    t->kv_slot[0] = (int64_t)block * CUDA_FIXTURE_BLOCK;
    t->row[0] = (struct backend_row){0, 0, 1, 1};
    t->update[0] = (struct backend_table_update){0, 0, block};
    cuda_fixture_must(backend_cuda.submit(s->cuda.model, slot, &step, &f, &err), &err, "submit");
    p->device[block] = 0;
}

/* Nothing is waited for but now and then: moves and steps pile up. */
static void random_moves_keep_every_byte(void **state) {
    (void)state;
    for (uint64_t seed = 1; seed <= 3; seed++) {
        struct tiny_shape shape = shape_of(types[seed % ARRAY_LEN(types)]);
        struct cuda_fixture *s = cuda_fixture_open_alone(&shape, &setup, seed);
        struct backend_copy pairs[4];
        struct pool p = {0};
        backend_fence f, step_fence[2] = {0};

        write_all(s, &p);
        for (uint32_t i = 0; i < 200; i++) {
            uint32_t kind = (uint32_t)rng_below(&s->rng, 8), slot = i % 2;
            uint32_t n = draw_pairs(s, pairs, kind < 3);

            if (kind < 3) {
                assert_int_equal(backend_cuda.kv_swap_out(s->cuda.model, pairs, n, &f), ST_OK);
                for (uint32_t j = 0; j < n; j++)
                    p.host[pairs[j].dst] = p.device[pairs[j].src];
            } else if (kind < 6) {
                for (uint32_t j = 0; j < n; j++)
                    p.device[pairs[j].dst] = p.host[pairs[j].src];
                assert_int_equal(backend_cuda.kv_swap_in(s->cuda.model, pairs, n, &f), ST_OK);
            } else if (kind == 6) {
                for (uint32_t j = 0; j < n; j++) {
                    pairs[j].src = (pairs[j].dst + 1) % 40;
                    p.device[pairs[j].dst] = p.device[pairs[j].src];
                }
                assert_int_equal(backend_cuda.kv_copy(s->cuda.model, pairs, n, &f), ST_OK);
            } else {
                assert_int_equal(backend_cuda.wait(s->cuda.dev, step_fence[slot], 60000000), ST_OK);
                write_by_step(s, slot, pairs[0].dst, &p);
                step_fence[slot] = s->cuda.dev->host.last;
            }
            if (rng_below(&s->rng, 40) == 0) check_all(s, &p);
        }
        check_all(s, &p);
        cuda_fixture_close(s);
    }
}

/* Much is on its way out already, so that what writes a block which is to follow would come first.
 * */
static void busy_lane(struct cuda_fixture *s, bool is_out) {
    backend_fence f;

    for (uint32_t i = 0; i < 40; i++) {
        struct backend_copy pair = {.src = 20 + i % 4, .dst = 20 + i % 4};

        if (is_out) pair.dst = 12 + i % 4;
        if (!is_out) pair.src = 12 + i % 4;
        assert_int_equal(is_out ? backend_cuda.kv_swap_out(s->cuda.model, &pair, 1, &f)
                                : backend_cuda.kv_swap_in(s->cuda.model, &pair, 1, &f),
                         ST_OK);
    }
}

/* Once its swap is done: what a lower tier reads. */
static void assert_host_block(struct cuda_fixture *s, uint32_t block, uint32_t content) {
    uint8_t *want = mem_alloc(s->cuda.block_bytes);

    fill_block(s, want, content);
    assert_memory_equal(s->cuda.host_pool + block * s->cuda.block_bytes, want, s->cuda.block_bytes);
    mem_free(want);
}

static void check_overwriting(uint64_t seed, bool is_copy) {
    struct cuda_fixture *s = cuda_fixture_open_alone(&cuda_fixture_llama, &setup, seed);
    struct backend_copy out = {9, 4}, over = {2, 9}, in = {4, 11};
    struct pool p = {0};
    backend_fence f, is_out;

    write_all(s, &p);
    busy_lane(s, true);
    assert_int_equal(backend_cuda.kv_swap_out(s->cuda.model, &out, 1, &is_out), ST_OK);
    if (is_copy)
        assert_int_equal(backend_cuda.kv_copy(s->cuda.model, &over, 1, &f), ST_OK);
    else
        write_by_step(s, 0, 9, &p);
    assert_int_equal(backend_cuda.wait(s->cuda.dev, s->cuda.dev->host.last, 60000000), ST_OK);
    assert_int_equal(backend_cuda.wait(s->cuda.dev, is_out, 60000000), ST_OK);
    assert_host_block(s, 4, 1000 + 9);
    p.device[11] = 1000 + 9;
    if (is_copy) p.device[9] = p.device[2];
    assert_int_equal(backend_cuda.kv_swap_in(s->cuda.model, &in, 1, &f), ST_OK);
    check_all(s, &p);
    cuda_fixture_close(s);
}

static void a_block_is_not_overwritten_before_it_is_out(void **state) {
    (void)state;
    for (uint64_t seed = 1; seed <= 6; seed++)
        check_overwriting(seed, seed % 2);
}

/* Out, its blocks used by another, in again at other places: it goes on as if nothing had been. */
static void a_sequence_goes_out_and_comes_in(void **state) {
    (void)state;
    for (uint64_t seed = 1; seed <= 3; seed++) {
        struct tiny_shape shape = shape_of(types[seed % ARRAY_LEN(types)]);
        struct cuda_fixture *s = cuda_fixture_open(&shape, &setup, seed);
        struct cuda_fixture_side *sides[] = {&s->ref, &s->cuda};
        struct cuda_fixture_seq *q = &s->seq[0];
        struct backend_copy pairs[CUDA_FIXTURE_TABLE];
        uint32_t n;
        backend_fence f;

        for (uint32_t i = 20; i < 24; i++)
            s->users[i] = 1; /* busy_lane's */
        cuda_fixture_start(s, 0, 37);
        cuda_fixture_plan(s, 0, 37);
        cuda_fixture_step(s);
        n = q->n_blocks;
        for (uint32_t i = 0; i < n; i++)
            pairs[i] = (struct backend_copy){q->block[i], i + 2};
        for (int i = 0; i < 2; i++)
            assert_int_equal(sides[i]->ops->kv_swap_out(sides[i]->model, pairs, n, &f), ST_OK);
        cuda_fixture_drop_blocks(s, 0);
        cuda_fixture_start(s, 1, 40);
        s->seq[1].block[0] = pairs[0].src; /* one of them at least is used again at once */
        s->seq[1].n_blocks = 1;
        s->users[pairs[0].src]++;
        cuda_fixture_plan(s, 1, 40);
        cuda_fixture_step(s);
        while (q->n_blocks < n)
            q->block[q->n_blocks++] = cuda_fixture_take_block(s);
        for (uint32_t i = 0; i < n; i++)
            pairs[i] = (struct backend_copy){i + 2, q->block[i]};
        busy_lane(s, false);
        for (int i = 0; i < 2; i++)
            assert_int_equal(sides[i]->ops->kv_swap_in(sides[i]->model, pairs, n, &f), ST_OK);
        cuda_fixture_plan(s, 0, 1);
        cuda_fixture_plan(s, 1, 1);
        cuda_fixture_step(s);
        cuda_fixture_close(s);
    }
}

/* A copy of a shared, half-full block, on which both go their own ways. */
static void check_parting(enum dtype type) {
    struct tiny_shape shape = shape_of(type);
    struct cuda_fixture *s = cuda_fixture_open(&shape, &setup, 8);
    struct cuda_fixture_side *sides[] = {&s->ref, &s->cuda};
    struct cuda_fixture_seq *a = &s->seq[0], *b = &s->seq[1];
    struct backend_copy pair;
    backend_fence f;

    cuda_fixture_start(s, 0, 21);
    cuda_fixture_plan(s, 0, 21);
    cuda_fixture_step(s);
    *b = *a;
    b->n_sent = 0;
    b->token[21] = (a->token[21] + 1) % 300;
    s->users[a->block[0]]++;
    cuda_fixture_bind(s, 1);
    pair = (struct backend_copy){a->block[1], cuda_fixture_take_block(s)};
    b->block[1] = pair.dst;
    for (int i = 0; i < 2; i++)
        assert_int_equal(sides[i]->ops->kv_copy(sides[i]->model, &pair, 1, &f), ST_OK);
    for (int i = 0; i < 4; i++) {
        cuda_fixture_plan(s, 0, 1);
        cuda_fixture_plan(s, 1, 1);
        cuda_fixture_step(s);
    }
    cuda_fixture_close(s);
}

static void copied_blocks_part(void **state) {
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(types); i++)
        check_parting(types[i]);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(copies_are_done_in_order),
        cmocka_unit_test(random_moves_keep_every_byte),
        cmocka_unit_test(a_block_is_not_overwritten_before_it_is_out),
        cmocka_unit_test(a_sequence_goes_out_and_comes_in),
        cmocka_unit_test(copied_blocks_part),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
