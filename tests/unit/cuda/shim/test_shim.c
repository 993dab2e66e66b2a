/* tests/unit/cuda/shim/test_shim.c - the shim itself: instructions, schedules, and what it
 * forbids. */
#include <math.h>
#include <string.h>

#include "common/base/mem.h"
#include "common/base/rng.h"
#include "kernels/dtype.h"
#include "tests/shim/shim_control.h"
#include "tests/support/cm.h"
#include "tests/unit/cuda/shim/child.h"
#include "tests/unit/cuda/shim/trial_kernels.h"

enum { SEEDS = 6, ROUNDS = 12 };

static void random_bf16(struct rng *rng, uint16_t *x, uint32_t n) {
    for (uint32_t i = 0; i < n; i++)
        x[i] = bf16_of_f32((float)rng_below(rng, 2001) / 1000 - 1);
}

/* --- instructions */
static float product_error(uint64_t seed, enum shim_copies copies) {
    _Alignas(16) uint16_t a[256], b[128];
    struct rng rng;
    float c[128], worst = 0;

    rng_seed(&rng, seed);
    random_bf16(&rng, a, 256);
    random_bf16(&rng, b, 128);
    shim_set(seed, copies);
    trial_product(NULL, &(struct trial_product){a, b, c});
    for (uint32_t i = 0; i < 128; i++) {
        double sum = 0;

        for (uint32_t k = 0; k < 16; k++)
            sum += (double)f32_of_bf16(a[i / 8 * 16 + k]) * f32_of_bf16(b[k * 8 + i % 8]);
        worst = isnan(c[i]) ? INFINITY : fmaxf(worst, fabsf((float)sum - c[i]));
    }
    return worst;
}
static void fragments_are_matrices(void **state) {
    (void)state;
    for (uint64_t seed = 0; seed < SEEDS; seed++) {
        assert_true(product_error(seed, SHIM_COPIES_LATE) < 1e-5f);
        assert_true(product_error(seed, SHIM_COPIES_EARLY) < 1e-5f);
    }
}
static void a_copy_read_before_its_wait_is_poison(void **state) {
    (void)state;
    shim_plant("late_wait");
    for (uint64_t seed = 0; seed < SEEDS; seed++)
        assert_true(product_error(seed, SHIM_COPIES_LATE) == INFINITY);
    shim_plant(NULL);
}
static void shuffles_and_ballots_match_cuda(void **state) {
    uint32_t out[5][32];

    (void)state;
    shim_set(5, SHIM_COPIES_LATE);
    trial_shuffles(NULL, &(struct trial_shuffles){out[0]});
    for (uint32_t l = 0; l < 32; l++) {
        assert_int_equal(out[0][l], 5 * 3 + 1);
        assert_int_equal(out[1][l], (l ^ 7) * 3 + 1);
        assert_int_equal(out[2][l], (l < 28 ? l + 4 : l) * 3 + 1);
        assert_int_equal(out[3][l], (l >= 3 ? l - 3 : l) * 3 + 1);
        assert_int_equal(out[4][l], 0x49249249);
    }
}
static void bank_conflicts_are_counted(void **state) {
    _Alignas(16) uint16_t tile[16 * 64];
    uint32_t swizzled[32], plain[32];
    struct shim_stats stats;
    struct rng rng;

    (void)state;
    rng_seed(&rng, 1);
    random_bf16(&rng, tile, 16 * 64);
    shim_stats_clear();
    trial_tile(NULL, &(struct trial_tile){tile, swizzled, true});
    shim_stats("tile", &stats);
    assert_int_equal(stats.n_matrix_phases, 16);
    assert_int_equal(stats.n_bank_conflicts, 0);
    assert_int_equal(stats.max_shared_bytes, 2048);
    shim_stats_clear();
    trial_tile(NULL, &(struct trial_tile){tile, plain, false});
    shim_stats("", &stats);
    assert_int_equal(stats.n_bank_conflicts,
                     16 * 7); /* all eight rows in one column of the banks */
    assert_int_equal(stats.n_launches, 1);
    assert_memory_equal(swizzled, plain, sizeof(plain));
}

/* --- schedules */
static bool rounds_are_right(uint64_t seed) {
    float in[ROUNDS * 128], out[128], sum = 0;
    struct rng rng;

    rng_seed(&rng, seed);
    for (uint32_t i = 0; i < ROUNDS * 128; i++)
        sum += in[i] = (float)rng_below(&rng, 16);
    shim_set(seed, SHIM_COPIES_LATE);
    trial_rounds(NULL, &(struct trial_rounds){in, out, ROUNDS});
    for (uint32_t i = 0; i < 128; i++)
        if (!(out[i] == sum)) return false;
    return true;
}
static void races_show_under_every_seed(void **state) {
    (void)state;
    for (uint64_t seed = 1; seed <= SEEDS; seed++) {
        assert_true(rounds_are_right(seed));
        shim_plant("no_barrier");
        assert_false(rounds_are_right(seed));
        shim_plant("no_first_barrier");
        assert_false(rounds_are_right(seed));
        shim_plant(NULL);
    }
}
static void shared_memory_is_poisoned_before_each_block(void **state) {
    float out[128];

    (void)state;
    for (uint64_t seed = 0; seed < SEEDS; seed++) {
        memset(out, 0, sizeof(out));
        shim_set(seed, SHIM_COPIES_LATE);
        trial_poison(NULL,
                     &(struct trial_poison){out}); /* three blocks write there; each reads NaN */
        for (uint32_t i = 0; i < 128; i++)
            assert_true(isnan(out[i]));
    }
}

/* --- what no kernel may do */
static void commit(void *arg) {
    static _Alignas(16) float memory[64];

    trial_commit(NULL, &(struct trial_fault_args){*(enum trial_fault *)arg, memory});
}
static void crimes_end_with_a_sentence(void **state) {
    static const char *const sentences[TRIAL_FAULTS] = {
        [TRIAL_BARRIER_BY_SOME] = "the threads of a block must come there together",
        [TRIAL_BARRIER_BY_HALF] = "this thread waits at __syncthreads, line",
        [TRIAL_SHUFFLE_BY_HALF] = "this thread waits at a shuffle, line",
        [TRIAL_SHUFFLES_APART] = "the threads of a warp must come there together",
        [TRIAL_PARTIAL_MASK] = "the mask 0000ffff is not the whole warp",
        [TRIAL_MISALIGNED] = "int4",
        [TRIAL_COPY_MISALIGNED] = "copy_async16 between addresses that are not multiples of 16",
        [TRIAL_MATRIX_ELSEWHERE] = "load_matrix4 of a row that is not in the block's shared memory",
        [TRIAL_BEHIND_SHARED] = "behind the end of its 256 of shared memory",
        [TRIAL_TOO_MUCH_SHARED] = "49408 bytes of shared memory, both kinds together",
    };
    char output[4096];

    (void)state;
    for (enum trial_fault fault = 0; fault < TRIAL_FAULTS; fault++) {
        assert_true(child_run(commit, &fault, output, sizeof(output)));
        if (!strstr(output, sentences[fault])) fail_msg("%s\n%s", sentences[fault], output);
        if (fault != TRIAL_MISALIGNED) /* which a sanitizer may report in its own words */
            assert_non_null(strstr(output, "shim: kernel commit, block (0, 0, 0), thread ("));
    }
}

static void add_one(void *memory) {
    shim_allow_host_memory(false);
    trial_add(NULL, &(struct trial_add){memory, memory, 1, 1});
}
static void launch_unlisted(void *memory) {
    trial_unlisted(NULL, &(struct trial_add){memory, memory, 1, 1});
}
static void a_kernel_that_is_not_loaded_beforehand_ends_the_process(void **state) {
    float *in_room = mem_alloc(sizeof(*in_room));

    (void)state;
    assert_true(
        child_prints(launch_unlisted, in_room, "shim: kernel unlisted was not loaded when"));
    mem_free(in_room);
}

static void add_on_a_stream(void *memory) {
    struct gpu *gpu;
    struct gpu_stream *s;

    shim_allow_host_memory(true); /* which is for NULL streams */
    if (gpu_open(&gpu, 0, NULL) || gpu_stream_open(gpu, &s, NULL)) _exit(0);
    trial_add(s, &(struct trial_add){memory, memory, 1, 1});
}
static void a_launch_with_host_memory_ends_the_process(void **state) {
    static const char sentence[] = "shim: kernel add: byte 0 of its arguments points to";
    static float in_data[1] = {1};
    float on_stack[1] = {1}, *in_room = mem_alloc(sizeof(*in_room));
    char *elsewhere = mem_strdup("not from on_device.h"), output[4096];

    (void)state;
    assert_true(child_prints(add_one, on_stack, sentence));
    assert_true(child_prints(add_one, in_data, sentence));
    assert_true(child_prints(add_one, elsewhere, sentence));
    assert_true(child_prints(add_on_a_stream, in_room, sentence));
    assert_false(child_run(add_one, in_room, output, sizeof(output)));
    mem_free(in_room);
    assert_true(child_prints(add_one, in_room, sentence));
    mem_free(elsewhere);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fragments_are_matrices),
        cmocka_unit_test(a_copy_read_before_its_wait_is_poison),
        cmocka_unit_test(shuffles_and_ballots_match_cuda),
        cmocka_unit_test(bank_conflicts_are_counted),
        cmocka_unit_test(races_show_under_every_seed),
        cmocka_unit_test(shared_memory_is_poisoned_before_each_block),
        cmocka_unit_test(crimes_end_with_a_sentence),
        cmocka_unit_test(a_launch_with_host_memory_ends_the_process),
        cmocka_unit_test(a_kernel_that_is_not_loaded_beforehand_ends_the_process),
    };

    shim_allow_host_memory(true);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
