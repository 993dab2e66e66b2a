/* tests/unit/cuda/shim/test_ops_sum.c - sums of ranks through each other's memory, the ranks'
 * kernels interleaved as the seed has it (tests/shim/gang.c). Bits are compared: with the sum of
 * pairs of neighbours in fp32, rounded once, at every rank. */
#include <stdlib.h>
#include <string.h>

#include "common/base/rng.h"
#include "kernels/cuda/ops/ops.h"
#include "kernels/dtype.h"
#include "tests/shim/shim_control.h"
#include "tests/support/cm.h"

#define N_ROUNDS 6u
#define GUARD    16u /* elements behind y that stay as they are */

struct group {
    uint32_t size;
    bool is_f32;
    struct sum_args args[OPS_SUM_RANKS];
};

static void open_group(struct group *g, uint32_t size, bool is_f32) {
    struct sum_args a = {.size = size, .is_f32 = is_f32, .timeout_ns = 10000000000ull};

    memset(g, 0, sizeof(*g));
    g->size = size;
    g->is_f32 = is_f32;
    for (uint32_t r = 0; r < size; r++) {
        a.slots[r] = calloc(2, OPS_SUM_SLOT_BYTES);
        a.flag[r] = calloc(size * OPS_SUM_BLOCKS, sizeof(uint32_t));
    }
    for (uint32_t r = 0; r < size; r++) {
        g->args[r] = a;
        g->args[r].rank = r;
        g->args[r].epoch = calloc(OPS_SUM_BLOCKS, sizeof(uint32_t));
    }
}

static void close_group(struct group *g) {
    for (uint32_t r = 0; r < g->size; r++) {
        free(g->args[0].slots[r]);
        free(g->args[0].flag[r]);
        free(g->args[r].epoch);
    }
}

/* One sum of all ranks, each with an x and y of its own; `want` (n) of bf16. */
struct sum {
    uint32_t n;
    void *x[OPS_SUM_RANKS];
    uint16_t *y[OPS_SUM_RANKS], *want;
};

static float draw(struct rng *r) {
    return ((float)rng_below(r, 2000001) - 1e6f) * 1e-5f;
}

static float sum_of_pairs(float *part, uint32_t size) {
    for (uint32_t step = 1; step < size; step *= 2)
        for (uint32_t r = 0; r + step < size; r += 2 * step)
            part[r] += part[r + step];
    return part[0];
}

static void open_sum(struct sum *s, const struct group *g, uint32_t n, struct rng *rng) {
    float part[OPS_SUM_RANKS];

    s->n = n;
    s->want = malloc(n * sizeof(uint16_t));
    for (uint32_t r = 0; r < g->size; r++) {
        s->x[r] = malloc(n * sizeof(float));
        s->y[r] = malloc((n + GUARD) * sizeof(uint16_t));
        memset(s->y[r], 0xFF, (n + GUARD) * sizeof(uint16_t));
    }
    for (uint32_t i = 0; i < n; i++) {
        for (uint32_t r = 0; r < g->size; r++) {
            part[r] = draw(rng);
            if (!g->is_f32) part[r] = f32_of_bf16(bf16_of_f32(part[r]));
            dtype_put(g->is_f32 ? DTYPE_F32 : DTYPE_BF16, s->x[r], i, part[r]);
        }
        s->want[i] = bf16_of_f32(sum_of_pairs(part, g->size));
    }
}

static void launch_sum(struct sum *s, struct group *g) {
    for (uint32_t r = 0; r < g->size; r++) {
        g->args[r].n = s->n;
        g->args[r].x = s->x[r];
        g->args[r].y = s->y[r];
        ops_sum(NULL, &g->args[r]);
    }
}

static bool is_right(const struct sum *s, const struct group *g) {
    for (uint32_t r = 0; r < g->size; r++) {
        if (memcmp(s->y[r], s->want, s->n * sizeof(uint16_t))) return false;
        for (uint32_t i = 0; i < GUARD; i++)
            if (s->y[r][s->n + i] != 0xFFFF) return false;
    }
    return true;
}

static void close_sum(struct sum *s) {
    for (uint32_t r = 0; r < OPS_SUM_RANKS; r++) {
        free(s->x[r]);
        free(s->y[r]);
    }
    free(s->want);
}

/* Sums one after the other, of these lengths, the ranks as far apart as their waiting allows. */
static bool sums_are_right(uint32_t size, bool is_f32, const uint32_t *lengths, uint32_t n_lengths,
                           uint64_t seed) {
    struct group g;
    struct sum sums[N_ROUNDS] = {{0}};
    struct rng rng;
    bool is_done, are_right = true;

    rng_seed(&rng, seed + 11);
    shim_set(seed, SHIM_COPIES_LATE);
    open_group(&g, size, is_f32);
    shim_ranks_begin();
    for (uint32_t i = 0; i < N_ROUNDS; i++) {
        open_sum(&sums[i], &g, lengths[i % n_lengths], &rng);
        launch_sum(&sums[i], &g);
    }
    is_done = shim_ranks_run();
    for (uint32_t i = 0; i < N_ROUNDS; i++) {
        are_right &= is_right(&sums[i], &g);
        close_sum(&sums[i]);
    }
    close_group(&g);
    return is_done && are_right;
}

static void every_rank_has_the_bits_of_the_sum_of_pairs(void **state) {
    static const uint32_t sizes[] = {2, 4, 8};
    static const uint32_t lengths[] = {1, 7, 8, 2047, 2049, 4096};

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(sizes); i++)
        for (uint64_t seed = 0; seed < 6; seed++)
            if (!sums_are_right(sizes[i], seed % 2, lengths, ARRAY_LEN(lengths), seed))
                fail_msg("%u ranks, seed %u", sizes[i], (unsigned)seed);
}

static void the_longest_sum_and_all_lengths_between_are_right(void **state) {
    static const uint32_t most[] = {OPS_SUM_MOST, 3, OPS_SUM_MOST - 5};

    (void)state;
    assert_true(sums_are_right(2, false, most, ARRAY_LEN(most), 1));
    assert_true(sums_are_right(4, true, most, 1, 2));
    for (uint64_t seed = 1; seed <= 8; seed++) {
        struct rng rng;
        uint32_t lengths[N_ROUNDS];

        rng_seed(&rng, seed);
        for (uint32_t i = 0; i < N_ROUNDS; i++)
            lengths[i] = 1 + (uint32_t)rng_below(&rng, 1u << rng_below(&rng, 15));
        assert_true(sums_are_right(seed % 2 ? 2 : 4, seed % 3 == 0, lengths, N_ROUNDS, seed));
    }
}

static void in_place_is_allowed(void **state) {
    struct group g;
    struct sum s = {0};
    struct rng rng;
    uint16_t *apart[2];

    (void)state;
    rng_seed(&rng, 3);
    shim_set(3, SHIM_COPIES_EARLY);
    open_group(&g, 2, false);
    open_sum(&s, &g, 2100, &rng);
    for (uint32_t r = 0; r < 2; r++) {
        apart[r] = s.y[r];
        s.y[r] = s.x[r];
    }
    shim_ranks_begin();
    launch_sum(&s, &g);
    assert_true(shim_ranks_run());
    for (uint32_t r = 0; r < 2; r++) {
        assert_memory_equal(s.y[r], s.want, s.n * sizeof(uint16_t));
        s.y[r] = apart[r];
    }
    close_sum(&s);
    close_group(&g);
}

/* Rank 1 of 2 makes one sum fewer: rank 0 gives up instead of waiting for ever. */
static void a_rank_that_does_not_come_ends_the_wait(void **state) {
    struct group g;
    struct sum s = {0};
    struct rng rng;

    (void)state;
    rng_seed(&rng, 3);
    for (uint64_t seed = 0; seed < 3; seed++) {
        shim_set(seed, SHIM_COPIES_LATE);
        open_group(&g, 2, false);
        open_sum(&s, &g, 100, &rng);
        shim_ranks_begin();
        launch_sum(&s, &g);
        ops_sum(NULL, &g.args[0]);
        assert_false(shim_ranks_run());
        close_sum(&s);
        close_group(&g);
    }
}

static void two_parts_of_one_rank_have_the_same_bits(void **state) {
    static const uint32_t lengths[] = {8, 2048, 5000};

    (void)state;
    for (size_t k = 0; k < ARRAY_LEN(lengths); k++) {
        uint32_t n = lengths[k];
        float *part = malloc(2 * n * sizeof(float));
        uint16_t *y = malloc((n + GUARD) * sizeof(uint16_t));
        struct rng rng;

        rng_seed(&rng, n);
        memset(y, 0xFF, (n + GUARD) * sizeof(uint16_t));
        for (uint32_t i = 0; i < 2 * n; i++)
            part[i] = draw(&rng);
        ops_sum_parts(NULL, &(struct sum_parts_args){{part, part + n}, y, n});
        for (uint32_t i = 0; i < n + GUARD; i++)
            assert_int_equal(y[i], i < n ? bf16_of_f32(part[i] + part[n + i]) : 0xFFFF);
        free(part);
        free(y);
    }
}

static bool is_caught(const char *plant) {
    static const uint32_t lengths[] = {4096, 2048, 6000};
    bool are_right = true;

    shim_plant(plant);
    for (uint64_t seed = 0; seed < 20 && are_right; seed++)
        are_right = sums_are_right(4, seed % 2, lengths, ARRAY_LEN(lengths), seed);
    shim_plant(NULL);
    return !are_right;
}

static void planted_bugs_are_caught(void **state) {
    static const char *const plants[] = {"sum_one_slot", "sum_early_flag", "sum_no_wait",
                                         "sum_same_epoch", "sum_own_first"};

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(plants); i++)
        if (!is_caught(plants[i])) fail_msg("%s", plants[i]);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_rank_has_the_bits_of_the_sum_of_pairs),
        cmocka_unit_test(the_longest_sum_and_all_lengths_between_are_right),
        cmocka_unit_test(in_place_is_allowed),
        cmocka_unit_test(a_rank_that_does_not_come_ends_the_wait),
        cmocka_unit_test(two_parts_of_one_rank_have_the_same_bits),
        cmocka_unit_test(planted_bugs_are_caught),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
