/* tests/unit/cuda/shim/test_attend_identity.c - deterministic attention: the bits of a position are
 * its own.
 *
 * One sequence is computed whole, then again in other cuts, beside other rows, in other blocks, on
 * a device so small or so large that its chunks are added in one block or by the merge: every
 * position must have the same bits each time. */
#include "tests/support/cm.h"
#include "tests/unit/cuda/shim/attend_case.h"

#define LENGTH 620

struct sequence {
    struct attend_shape shape;
    uint32_t window;
    uint16_t *q;     /* (LENGTH, n_heads, hd) */
    uint16_t *kv[2]; /* (LENGTH, n_kv_heads, hd) */
    uint16_t *first; /* (LENGTH, n_heads, hd) what came out of the whole prompt */
    uint64_t n_steps;
};

static void fill_normal(uint16_t *x, size_t n, struct rng *rng) {
    for (size_t i = 0; i < n; i++)
        x[i] = bf16_of_f32(case_normal(rng));
}

static void sequence_init(struct sequence *s, uint32_t head_dim, uint32_t group, uint32_t n_kv,
                          uint32_t window) {
    size_t kv_width = (size_t)n_kv * head_dim, width = kv_width * group;
    struct rng rng;

    rng_seed(&rng, head_dim + window);
    *s = (struct sequence){.shape = {group * n_kv, n_kv, head_dim, 8, 1024, 132, true},
                           .window = window};
    s->q = mem_calloc(LENGTH * width, 2);
    s->first = mem_calloc(LENGTH * width, 2);
    fill_normal(s->q, LENGTH * width, &rng);
    for (int which = 0; which < 2; which++) {
        s->kv[which] = mem_calloc(LENGTH * kv_width, 2);
        fill_normal(s->kv[which], LENGTH * kv_width, &rng);
    }
}

static void sequence_fini(struct sequence *s) {
    mem_free(s->q);
    mem_free(s->first);
    mem_free(s->kv[0]);
    mem_free(s->kv[1]);
}

/* Puts the sequence's numbers into row 0 of a case. */
static void write_sequence(struct attend_case *c, const struct sequence *s) {
    const struct backend_row *row = &c->rows[0];
    uint32_t hd = s->shape.head_dim, n_kv = s->shape.n_kv_heads, n_heads = s->shape.n_heads;
    uint32_t position = row->context_len - row->n_tokens;

    for (uint32_t t = case_row_start(c, row); t < row->context_len; t++)
        for (uint32_t which = 0; which < 2; which++)
            for (uint32_t h = 0; h < n_kv; h++)
                case_put(c, row->row, t, which, h, s->kv[which] + ((size_t)t * n_kv + h) * hd);
    for (uint32_t i = 0; i < row->n_tokens; i++)
        memcpy(c->qkv + (size_t)(row->first_token + i) * (n_heads + 2 * n_kv) * hd,
               s->q + (size_t)(position + i) * n_heads * hd, n_heads * hd * 2);
}

/* Positions [from, to) in one step, beside a neighbour with n_beside tokens; to is what there
 * is. */
static void step(struct sequence *s, uint32_t from, uint32_t to, uint32_t n_beside, uint32_t n_sm,
                 uint32_t bucket, bool is_first) {
    size_t bytes = (size_t)(to - from) * s->shape.n_heads * s->shape.head_dim * 2;
    uint16_t *kept = s->first + from * (size_t)s->shape.n_heads * s->shape.head_dim;
    struct backend_row rows[2] = {{3, n_beside, to - from, to}, {6, 0, n_beside, n_beside + 90}};
    struct attend_shape shape = s->shape;
    struct attend_planner *p;
    struct attend_case c;

    shape.n_sm = n_sm;
    p = attend_planner_create(&shape);
    case_init(&c, &shape, rows, n_beside ? 2 : 1, to - from + n_beside + (bucket ? 1 : 0),
              s->window, attend_max_partials(p), ++s->n_steps);
    write_sequence(&c, s);
    case_run(&c, p, to - from + n_beside, bucket);
    const uint16_t *mix = c.mix + (size_t)n_beside * shape.n_heads * shape.head_dim;
    if (is_first)
        memcpy(kept, mix, bytes);
    else if (memcmp(kept, mix, bytes))
        fail_msg("head_dim %u, window %u, positions %u to %u, beside %u, %u multiprocessors",
                 shape.head_dim, s->window, from, to, n_beside, n_sm);
    case_fini(&c);
    attend_planner_destroy(p);
}

static void bits_are_the_positions_own(uint32_t head_dim, uint32_t group, uint32_t n_kv,
                                       uint32_t window) {
    static const uint32_t singles[] = {0, 15, 16, 63, 64, 255, 256, 257, 511, 512, 600};
    struct sequence s;
    struct rng rng;

    sequence_init(&s, head_dim, group, n_kv, window);
    rng_seed(&rng, window);
    shim_set(1, SHIM_COPIES_LATE);
    step(&s, 0, LENGTH, 0, 132, 0, true);
    step(&s, 0, LENGTH, 70, 1, 0, false);
    for (uint32_t from = 0, to; from < LENGTH; from = to) { /* random chunks */
        to = from + 1 + (uint32_t)rng_below(&rng, MIN(150, LENGTH - from));
        step(&s, from, to, (uint32_t)rng_below(&rng, 20), rng_below(&rng, 2) ? 132 : 1, 0, false);
    }
    for (uint32_t i = 0; i < ARRAY_LEN(singles); i++) { /* token by token */
        step(&s, singles[i], singles[i] + 1, 0, 132, 2, false);
        step(&s, singles[i], singles[i] + 1, 1, 1, 3, false);
        step(&s, singles[i], singles[i] + 1, 9, 1, 0, false);
    }
    sequence_fini(&s);
}

static void bits_do_not_depend_on_the_cut(void **state) {
    (void)state;
    bits_are_the_positions_own(64, 3, 2, 0);
    bits_are_the_positions_own(128, 4, 1, 0);
}

static void nor_behind_a_window(void **state) {
    (void)state;
    bits_are_the_positions_own(64, 2, 1, 100);
    bits_are_the_positions_own(64, 7, 1, 300);
    bits_are_the_positions_own(96, 1, 1, 1);
}

static void nor_does_it_of_codes(void **state) {
    (void)state;
    case_kv_dtype = DTYPE_F8E4M3;
    bits_are_the_positions_own(128, 4, 1, 0);
    bits_are_the_positions_own(64, 2, 1, 100);
    case_kv_dtype = DTYPE_I8;
    bits_are_the_positions_own(96, 3, 2, 0);
    case_kv_dtype = DTYPE_BF16;
}

/* The test itself can fail: the other kernels cut where they like. */
static void other_layers_do_depend_on_it(void **state) {
    struct sequence s;
    bool differs;
    uint16_t *kept;

    (void)state;
    sequence_init(&s, 64, 2, 1, 0);
    s.shape.is_deterministic = false;
    step(&s, 600, 601, 0, 1, 0, true);
    kept = mem_calloc(128, 2);
    memcpy(kept, s.first + 600 * 128, 256);
    step(&s, 599, 601, 0, 1, 0, true);
    differs = memcmp(kept, s.first + 600 * 128, 256) != 0;
    assert_true(differs);
    mem_free(kept);
    sequence_fini(&s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bits_do_not_depend_on_the_cut),
        cmocka_unit_test(nor_behind_a_window),
        cmocka_unit_test(nor_does_it_of_codes),
        cmocka_unit_test(other_layers_do_depend_on_it),
    };

    attend_prepare();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
