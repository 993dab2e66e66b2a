/* tests/unit/kernels/test_tp.c - a model over several ranks is the model of one, to the bit.
 *
 * Two models of the same weights, one whole and one of 2 or 4 ranks, run the same random schedule
 * in lockstep: prefill in chunks beside decode, references to the tokens of the step before, every
 * kind of sampling, penalties, biases, masks, scores and alternatives, copies of blocks and swaps.
 * After each step every output is compared, at the end every block of the pool. */
#include <stdio.h>
#include <string.h>

#include "common/base/mem.h"
#include "common/base/rng.h"
#include "tests/support/cm.h"
#include "tests/support/support.h"
#include "tests/support/tiny_model.h"

#define N_ROWS      4u
#define STEP_TOKENS 48u

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || !defined(__x86_64__)
#define N_ROUNDS 1u /* instrumented tiles are fifty times as slow, and threads twenty times */
#define N_STEPS  16u
#else
#define N_ROUNDS 2u
#define N_STEPS  40u
#endif

static const char *const paths[] = {"avx512bf16", "avx512", "avx2", "neon", "plain"};

static bool has_path(const char *path) {
    struct backend_info info;

    return backend_cpu.probe(&(struct backend_config){.path = path}, &info, NULL) == ST_OK;
}

/* --- two models and one schedule ------------------------------------------------------------- */

struct row {
    uint32_t token[160];
    uint32_t n_prompt, n_tokens, n_done; /* n_tokens with those that were sampled */
    int32_t output; /* of the step before, whose token is the last one; -1: none */
};

struct pair {
    struct tiny_model whole, ranks;
    struct row row[N_ROWS];
    struct rng rng;
    uint64_t block_bytes;
    uint32_t n_blocks, n_host_blocks;
    uint32_t n_late_masks; /* that the ranks are to ask for */
};

static uint32_t below(struct pair *p, uint32_t n) {
    return (uint32_t)rng_below(&p->rng, n);
}

/* Every block gets the same content, so that all may be compared at the end. */
static void fill_blocks(struct pair *p) {
    uint64_t n = p->block_bytes;
    uint8_t *bytes = mem_alloc(n), *back = mem_alloc(n);

    for (uint32_t b = 0; b < p->n_blocks; b++) {
        for (uint64_t i = 0; i < n; i++)
            bytes[i] = (uint8_t)(rng_u64(&p->rng) & 0x3F); /* small numbers in either type */
        assert_int_equal(p->whole.setup.ops->kv_write(p->whole.model, b, bytes, n), ST_OK);
        assert_int_equal(backend_tp.kv_write(p->ranks.model, b, bytes, n), ST_OK);
        assert_int_equal(backend_tp.kv_read(p->ranks.model, b, back, n), ST_OK);
        assert_memory_equal(back, bytes, n);
    }
    assert_int_equal(backend_tp.kv_read(p->ranks.model, 0, back, n - 1), ST_INVALID);
    mem_free(bytes);
    mem_free(back);
}

static void assert_blocks_equal(struct pair *p) {
    uint64_t n = p->block_bytes;
    uint8_t *a = mem_alloc(n), *b = mem_alloc(n);

    for (uint32_t i = 0; i < p->n_blocks; i++) {
        assert_int_equal(p->whole.setup.ops->kv_read(p->whole.model, i, a, n), ST_OK);
        assert_int_equal(backend_tp.kv_read(p->ranks.model, i, b, n), ST_OK);
        if (memcmp(a, b, n) != 0) fail_msg("block %u differs", i);
    }
    mem_free(a);
    mem_free(b);
}

static void bind_row(struct pair *p, uint32_t r) {
    struct row *row = &p->row[r];

    *row = (struct row){.n_prompt = 1 + below(p, 70), .output = -1};
    for (uint32_t i = 0; i < row->n_prompt; i++)
        row->token[i] = below(p, p->whole.shape.vocab);
    row->n_tokens = row->n_prompt;
    assert_int_equal(
        p->whole.setup.ops->row_bind(p->whole.model, r, row->token, row->n_prompt, NULL, 0), ST_OK);
    assert_int_equal(backend_tp.row_bind(p->ranks.model, r, row->token, row->n_prompt, NULL, 0),
                     ST_OK);
}

static void open_pair(struct pair *p, const struct backend_ops *ops, const char *path,
                      uint32_t size, const struct tiny_shape *shape, uint64_t seed) {
    struct tiny_setup setup = {ops, path, 1, 8, N_ROWS, STEP_TOKENS};

    memset(p, 0, sizeof(*p));
    rng_seed(&p->rng, seed);
    setup.n_host_blocks = p->n_host_blocks = 12;
    tiny_open(&p->whole, &setup, shape, 3);
    setup.ops = &backend_tp;
    setup.ranks = ops;
    setup.tp_size = size;
    setup.n_threads = size; /* one each */
    tiny_open(&p->ranks, &setup, shape, 3);
    p->n_blocks = N_ROWS * p->whole.blocks_per_row + 1;
    p->block_bytes = ops->kv_block_bytes(p->whole.model);
    assert_true(backend_tp.kv_block_bytes(p->ranks.model) >= p->block_bytes);
    fill_blocks(p);
    for (uint32_t r = 0; r < N_ROWS; r++)
        bind_row(p, r);
}

static void close_pair(struct pair *p) {
    tiny_close(&p->whole);
    tiny_close(&p->ranks);
}

/* --- a step ---------------------------------------------------------------------------------- */

static uint32_t block_of(uint32_t row, uint32_t index) {
    return 1 + index * N_ROWS + (row + index) % N_ROWS;
}

static void add_output(struct pair *p, struct backend_step *step, uint32_t r, uint32_t token) {
    struct backend_stage *s = &p->whole.stage;
    uint32_t k = step->n_outputs++;

    s->output[k] = (struct backend_output){.row = r,
                                           .token_index = token,
                                           .want = below(p, 8) ? WANT_SAMPLE : WANT_SCORE,
                                           .score_token = below(p, p->whole.shape.vocab),
                                           .seed = rng_u64(&p->rng),
                                           .position = p->row[r].n_done,
                                           .temperature = below(p, 3) ? 0.8f : 0,
                                           .top_k = below(p, 2) ? 20 : 0,
                                           .top_p = below(p, 2) ? 0.9f : 1,
                                           .min_p = below(p, 4) ? 0 : 0.05f,
                                           .repetition_penalty = below(p, 2) ? 1.2f : 1,
                                           .frequency_penalty = below(p, 3) ? 0 : 0.4f,
                                           .presence_penalty = below(p, 3) ? 0 : 0.3f,
                                           .n_logprobs = below(p, 6),
                                           .mask = BACKEND_NO_MASK};
    for (uint32_t i = below(p, 4); i > 0; i--)
        s->bias[step->n_bias++] =
            (struct backend_bias){k, below(p, p->whole.shape.vocab), (float)below(p, 9) - 4};
    if (below(p, 4)) return;
    s->output[k].mask = step->n_masks;
    for (uint32_t i = 0, n = CEIL_DIV(p->whole.shape.vocab, 32); i < n; i++)
        s->mask[step->n_masks * n + i] = (uint32_t)rng_u64(&p->rng);
    step->n_masks++;
}

static void add_row(struct pair *p, struct backend_step *step, uint32_t r, uint32_t n) {
    struct backend_stage *s = &p->whole.stage;
    struct row *row = &p->row[r];
    uint32_t size = p->whole.setup.block_size;

    s->row[step->n_rows++] = (struct backend_row){r, step->n_tokens, n, row->n_done + n};
    for (uint32_t i = row->n_done; i < row->n_done + n; i++) {
        bool refers = row->output >= 0 && i == row->n_tokens - 1 && below(p, 2);

        if (i % size == 0 || i == row->n_done)
            s->update[step->n_updates++] =
                (struct backend_table_update){r, i / size, block_of(r, i / size)};
        s->token[step->n_tokens] = refers ? -1 - row->output : (int32_t)row->token[i];
        s->position[step->n_tokens] = i;
        s->kv_slot[step->n_tokens++] = (int64_t)block_of(r, i / size) * size + i % size;
    }
    row->n_done += n;
}

static void lay_out(struct pair *p, struct backend_step *step) {
    for (int is_prefill = 0; is_prefill < 2; is_prefill++) {
        for (uint32_t r = 0; r < N_ROWS; r++) {
            struct row *row = &p->row[r];
            uint32_t left = row->n_tokens - row->n_done, room = STEP_TOKENS - step->n_tokens;
            uint32_t n = MIN(left, room);

            if (row->n_done == row->n_tokens || (left > 1) != is_prefill || !n) continue;
            if (is_prefill && below(p, 3) == 0) n = 1 + below(p, n);
            add_row(p, step, r, n);
            if (row->n_done == row->n_tokens || below(p, 2))
                add_output(p, step, r, step->n_tokens - 1);
        }
    }
}

static void copy_stage(struct pair *p, const struct backend_step *step) {
    const struct backend_stage *from = &p->whole.stage;
    struct backend_stage *to = &p->ranks.stage;

    memcpy(to->token, from->token, step->n_tokens * sizeof(*to->token));
    memcpy(to->position, from->position, step->n_tokens * sizeof(*to->position));
    memcpy(to->kv_slot, from->kv_slot, step->n_tokens * sizeof(*to->kv_slot));
    memcpy(to->row, from->row, step->n_rows * sizeof(*to->row));
    memcpy(to->update, from->update, step->n_updates * sizeof(*to->update));
    memcpy(to->output, from->output, step->n_outputs * sizeof(*to->output));
    memcpy(to->bias, from->bias, step->n_bias * sizeof(*to->bias));
    memcpy(to->mask, from->mask, step->n_masks * CEIL_DIV(p->whole.shape.vocab, 32) * 4);
}

static void run_step(struct tiny_model *m, const struct backend_step *step) {
    struct error err = {0};
    backend_fence fence;

    if (m->setup.ops->submit(m->model, 0, step, &fence, &err) != ST_OK)
        fail_msg("submit: %s", err.message);
    assert_int_equal(m->setup.ops->wait(m->dev, fence, 1000000), ST_OK);
    assert_int_equal(m->setup.ops->poll(m->dev, fence), ST_OK);
}

static void assert_outputs_equal(struct pair *p, const struct backend_step *step) {
    const struct backend_stage *a = &p->whole.stage, *b = &p->ranks.stage;
    uint32_t n = step->n_outputs;

    assert_memory_equal(a->out_token, b->out_token, n * sizeof(*a->out_token));
    assert_memory_equal(a->out_logprob, b->out_logprob, n * sizeof(*a->out_logprob));
    assert_memory_equal(a->out_rank, b->out_rank, n * sizeof(*a->out_rank));
    assert_memory_equal(a->out_flags, b->out_flags, n * sizeof(*a->out_flags));
    for (uint32_t i = 0; i < n; i++) {
        uint32_t n_top = a->output[i].n_logprobs;

        assert_memory_equal(a->out_top_token + i * 5, b->out_top_token + i * 5, n_top * 4);
        assert_memory_equal(a->out_top_logprob + i * 5, b->out_top_logprob + i * 5, n_top * 4);
    }
}

/* What was sampled at the end of a row goes on; a row that is full or done starts again. */
static void take(struct pair *p, const struct backend_step *step) {
    const struct backend_stage *s = &p->whole.stage;

    for (uint32_t r = 0; r < N_ROWS; r++)
        p->row[r].output = -1;
    for (uint32_t i = 0; i < step->n_outputs; i++) {
        struct row *row = &p->row[s->output[i].row];

        if (row->n_done < row->n_tokens) continue; /* within the prompt */
        row->token[row->n_tokens++] = (uint32_t)s->out_token[i];
        row->output = (int32_t)i;
    }
    for (uint32_t r = 0; r < N_ROWS; r++) {
        if (p->row[r].n_tokens >= 110 || p->row[r].n_done == p->row[r].n_tokens) {
            p->whole.setup.ops->row_free(p->whole.model, r);
            backend_tp.row_free(p->ranks.model, r);
            bind_row(p, r);
        }
    }
}

static void move_some_blocks(struct pair *p) {
    const struct backend_ops *ops = p->whole.setup.ops;
    struct backend_copy out[6], in[6], copy = {1 + below(p, p->n_blocks - 1), 0};
    backend_fence fence;
    uint32_t n = 1 + below(p, 6);

    for (uint32_t i = 0; i < n; i++) {
        out[i] = (struct backend_copy){1 + below(p, p->n_blocks - 1), (i * 5 + 1) % 12};
        in[i] = (struct backend_copy){out[i].dst, out[i].src};
    }
    assert_int_equal(ops->kv_swap_out(p->whole.model, out, n, &fence), ST_OK);
    assert_int_equal(backend_tp.kv_swap_out(p->ranks.model, out, n, &fence), ST_OK);
    assert_int_equal(ops->kv_copy(p->whole.model, &copy, 1, &fence), ST_OK);
    assert_int_equal(backend_tp.kv_copy(p->ranks.model, &copy, 1, &fence), ST_OK);
    assert_int_equal(ops->kv_swap_in(p->whole.model, in, n, &fence), ST_OK);
    assert_int_equal(backend_tp.kv_swap_in(p->ranks.model, in, n, &fence), ST_OK);
    out[0].src = p->n_blocks;
    assert_int_equal(backend_tp.kv_swap_out(p->ranks.model, out, 1, &fence), ST_INVALID);
}

/* The masks of the ranks, from those of the whole. */
static void fill_late(void *arg) {
    struct pair *p = arg;
    uint64_t n = p->n_late_masks * CEIL_DIV(p->whole.shape.vocab, 32);

    memcpy(p->ranks.stage.mask, p->whole.stage.mask, n * sizeof(uint32_t));
    p->n_late_masks = 0; /* once */
}

static void run_pair(struct pair *p) {
    for (uint32_t i = 0; i < N_STEPS; i++) {
        struct backend_step step = {0};

        lay_out(p, &step);
        copy_stage(p, &step);
        run_step(&p->whole, &step);
        if (step.n_masks > 0 && below(p, 2)) {
            memset(p->ranks.stage.mask, 0, CEIL_DIV(p->whole.shape.vocab, 32) * sizeof(uint32_t));
            p->n_late_masks = step.n_masks;
            step.fill_masks = fill_late;
            step.fill_arg = p;
        }
        run_step(&p->ranks, &step);
        assert_int_equal(p->n_late_masks, 0);
        assert_outputs_equal(p, &step);
        take(p, &step);
        if (below(p, 4) == 0) move_some_blocks(p);
    }
    assert_blocks_equal(p);
}

static void check(const struct backend_ops *ops, const char *path, uint32_t size,
                  const struct tiny_shape *shape, uint64_t seed) {
    struct pair p;

    open_pair(&p, ops, path, size, shape, seed);
    run_pair(&p);
    close_pair(&p);
}

/* --- shapes ---------------------------------------------------------------------------------- */

/* `which` of a family in which every feature occurs; KV heads fewer than ranks, too. */
static struct tiny_shape shape_at(uint32_t which) {
    struct tiny_shape s = tiny_many_heads;

    if (which == 1) {
        s.has_qkv_bias = s.has_o_bias = s.has_qk_norm = true;
        s.is_tied = false;
        s.kv_dtype = DTYPE_F32;
        s.weight_dtype = DTYPE_F32;
    } else if (which == 2) {
        s.n_kv_heads = 2; /* 4 ranks: each head twice */
        s.sliding_window = 20;
        s.d_model = 70;
        s.has_qk_norm = true;
    } else if (which == 3) {
        s.n_kv_heads = 1;
        s.n_heads = 4;
        s.head_dim = 48;
        s.d_ff = 8 * 13; /* no multiple of a panel, nor of a block of K */
        s.is_tied = false;
        s.has_o_bias = true;
    } else if (which == 4) {
        s.kv_dtype = DTYPE_F8E4M3;
        s.n_kv_heads = 2;
    } else if (which == 5) {
        s.kv_dtype = DTYPE_I8;
    }
    return s;
}
#define N_SHAPES 6u

static void ranks_of_the_cpu_are_one_on_every_path(void **state) {
    (void)state;
    for (uint32_t path = 0; path < ARRAY_LEN(paths); path++) {
        for (uint32_t i = 0; i < N_SHAPES * N_ROUNDS && has_path(paths[path]); i++) {
            struct tiny_shape shape = shape_at(i % N_SHAPES);
            uint32_t size = (path + i + i / N_SHAPES) % 2 ? 2 : 4; /* both, over the rounds */

            check(&backend_cpu, paths[path], size, &shape, support_seed() + i);
        }
    }
}

static void ranks_of_ref_are_one(void **state) {
    (void)state;
    for (uint32_t i = 0; i < N_SHAPES; i++) {
        struct tiny_shape shape = shape_at(i);

        check(&backend_ref, NULL, 2 + i % 2 * 2, &shape, support_seed() + i);
    }
}

/* Groups of inputs that ranks do not cut: the chains go on from rank to rank. */
static void ranks_with_quantised_weights_are_one(void **state) {
    static const struct quant_kind kinds[] = {
        {DTYPE_U4, 1, 32, true, false, QUANT_INPUTS_PLAIN},
        {DTYPE_U4, 1, 16, false, false, QUANT_INPUTS_PLAIN},
        {DTYPE_I8, 1, 32, true, false, QUANT_INPUTS_PLAIN},
        {DTYPE_F8E4M3, 16, 32, false, false, QUANT_INPUTS_PLAIN}};

    (void)state;
    for (uint32_t i = 0; i < ARRAY_LEN(paths) * ARRAY_LEN(kinds); i++) {
        struct tiny_shape shape = shape_at(i % 2 ? 0 : 3);

        if (!has_path(paths[i % ARRAY_LEN(paths)])) continue;
        shape.quant = &kinds[i / ARRAY_LEN(paths)];
        shape.d_ff = 128;
        shape.n_kv_heads = 2;
        if (shape.head_dim == 48) shape.head_dim = 64; /* a rank's inputs of o are whole groups */
        check(&backend_cpu, paths[i % ARRAY_LEN(paths)], 2, &shape, support_seed() + i);
    }
}

static void one_rank_may_be_all(void **state) {
    struct tiny_shape shape = shape_at(1);

    (void)state;
    check(&backend_cpu, NULL, 1, &shape, support_seed());
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_of_the_cpu_are_one_on_every_path),
        cmocka_unit_test(ranks_of_ref_are_one),
        cmocka_unit_test(ranks_with_quantised_weights_are_one),
        cmocka_unit_test(one_rank_may_be_all),
    };

    return cmocka_run_group_tests_name("kernels/tp", tests, NULL, NULL);
}
