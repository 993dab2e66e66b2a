/* tests/unit/cuda/shim/test_cuda_fuzz.c - random schedules, with ref as the oracle.
 *
 * Sequences begin, share prefixes, are computed in random pieces beside each other, are preempted,
 * go out to host memory and come in elsewhere, part on a copied block, and end. After each step
 * both backends must agree. The pool begins as NaNs, so that a page read too far shows. */
#include "tests/unit/cuda/shim/cuda_fixture.h"

#define N_STEPS 40u
#define N_HOST  32u

static const struct cuda_fixture_setup setups[] = {
    {.max_rows = 5, .max_step_tokens = 40, .n_blocks = 48, .n_host_blocks = N_HOST},
    {.max_rows = 9,
     .max_step_tokens = 64,
     .n_blocks = 80,
     .n_host_blocks = N_HOST,
     .is_deterministic = true},
    {.max_rows = 5, .max_step_tokens = 40, .n_blocks = 48, .n_host_blocks = N_HOST, .tp_size = 2},
};

static bool chance(struct cuda_fixture *s, uint32_t one_in) {
    return rng_below(&s->rng, one_in) == 0;
}

/* Free blocks, less those that one sequence may still need. */
static bool has_room(const struct cuda_fixture *s) {
    uint32_t n = 0;

    for (uint32_t i = 0; i < s->setup.n_blocks; i++)
        n += s->users[i] == 0;
    return n > CUDA_FIXTURE_TABLE;
}

/* Row `row` begins as a copy of the first full blocks of another. */
static void share_prefix(struct cuda_fixture *s, uint32_t row) {
    struct cuda_fixture_seq *q = &s->seq[row], *other = NULL;
    uint32_t n;

    for (uint32_t i = 0; i < s->setup.max_rows; i++) {
        if (i != row && s->seq[i].is_live && s->seq[i].n_computed > CUDA_FIXTURE_BLOCK)
            other = &s->seq[i];
    }
    if (!other) return;
    n = MIN(other->n_computed, q->n - 1) / CUDA_FIXTURE_BLOCK;
    for (uint32_t i = 0; i < n; i++) {
        q->block[i] = other->block[i];
        s->users[q->block[i]]++;
    }
    memcpy(q->token, other->token, n * CUDA_FIXTURE_BLOCK * sizeof(*q->token));
    q->n_blocks = n;
    q->n_computed = n * CUDA_FIXTURE_BLOCK;
    cuda_fixture_unbind(s, row);
    cuda_fixture_bind(s, row);
}

/* Out and in again, at other blocks. What it shares with others stays theirs. */
static void swap_row(struct cuda_fixture *s, uint32_t row) {
    struct cuda_fixture_side *sides[] = {&s->ref, &s->cuda};
    struct cuda_fixture_seq *q = &s->seq[row];
    struct backend_copy out[CUDA_FIXTURE_TABLE], in[CUDA_FIXTURE_TABLE];
    uint32_t n = q->n_blocks, first = (uint32_t)rng_below(&s->rng, N_HOST);
    backend_fence f;

    for (uint32_t i = 0; i < n; i++)
        out[i] = (struct backend_copy){q->block[i], (first + i) % N_HOST};
    cuda_fixture_drop_blocks(s, row);
    while (q->n_blocks < n)
        q->block[q->n_blocks++] = cuda_fixture_take_block(s);
    for (uint32_t i = 0; i < n; i++)
        in[i] = (struct backend_copy){(first + i) % N_HOST, q->block[i]};
    for (int i = 0; i < 2; i++) {
        assert_int_equal(sides[i]->ops->kv_swap_out(sides[i]->model, out, n, &f), ST_OK);
        assert_int_equal(sides[i]->ops->kv_swap_in(sides[i]->model, in, n, &f), ST_OK);
    }
}

/* The last block is shared no more: it is copied. */
static void copy_last_block(struct cuda_fixture *s, uint32_t row) {
    struct cuda_fixture_side *sides[] = {&s->ref, &s->cuda};
    struct cuda_fixture_seq *q = &s->seq[row];
    uint32_t last = q->n_blocks - 1;
    struct backend_copy pair = {q->block[last], cuda_fixture_take_block(s)};
    backend_fence f;

    for (int i = 0; i < 2; i++)
        assert_int_equal(sides[i]->ops->kv_copy(sides[i]->model, &pair, 1, &f), ST_OK);
    s->users[pair.src]--;
    q->block[last] = pair.dst;
    q->n_sent = MIN(q->n_sent, last);
}

static void change_row(struct cuda_fixture *s, uint32_t row) {
    struct cuda_fixture_seq *q = &s->seq[row];

    if (!q->is_live) {
        if (!has_room(s) || chance(s, 2)) return;
        cuda_fixture_start(s, row, 1 + (uint32_t)rng_below(&s->rng, 70));
        if (chance(s, 2)) share_prefix(s, row);
        return;
    }
    if (q->n + 1 >= CUDA_FIXTURE_CONTEXT || chance(s, 12)) {
        cuda_fixture_end(s, row);
    } else if (q->n_blocks > 0 && has_room(s)) {
        switch (rng_below(&s->rng, 12)) {
        case 0: cuda_fixture_preempt(s, row); break;
        case 1: swap_row(s, row); break;
        case 2: copy_last_block(s, row); break;
        default: break;
        }
    }
}

/* Rows of one token first; what is left of the budget in random pieces. */
static void plan_step(struct cuda_fixture *s) {
    uint32_t left = s->setup.max_step_tokens;

    for (uint32_t row = 0; row < s->setup.max_rows; row++) {
        uint32_t n;

        change_row(s, row);
        if (!s->seq[row].is_live || left == 0 || chance(s, 6) || !has_room(s)) continue;
        n = MIN(cuda_fixture_left(s, row), left);
        if (n > 1 && chance(s, 2)) n = 1 + (uint32_t)rng_below(&s->rng, n);
        cuda_fixture_plan(s, row, n);
        left -= n;
    }
}

static void run_schedule(const struct tiny_shape *shape, const struct cuda_fixture_setup *setup,
                         uint64_t seed) {
    struct cuda_fixture *s = cuda_fixture_open(shape, setup, seed);

    cuda_fixture_poison(&s->cuda, s->setup.n_blocks);
    for (uint32_t i = 0; i < N_STEPS; i++) {
        plan_step(s);
        if (s->n_plan) cuda_fixture_step(s);
    }
    cuda_fixture_close(s);
}

static void random_schedules_agree_with_the_reference(void **state) {
    struct tiny_shape windowed = cuda_fixture_llama;

    (void)state;
    windowed.sliding_window = 21;
    windowed.n_kv_heads = 2;
    windowed.has_qkv_bias = true;
    for (uint64_t i = 0; i < 2 * ARRAY_LEN(setups); i++)
        run_schedule(i % 2 ? &windowed : &cuda_fixture_llama, &setups[i / 2],
                     support_seed() * 100 + i);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_schedules_agree_with_the_reference),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
