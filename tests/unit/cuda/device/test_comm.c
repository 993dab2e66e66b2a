/* tests/unit/cuda/device/test_comm.c - comm.c upon a pretended NCCL: ranks are threads that
 * meet. */
#include <pthread.h>
#include <string.h>

#include "kernels/cuda/device/comm.h"
#include "kernels/dtype.h"
#include "tests/support/cm.h"
#include "tests/unit/cuda/device/fake_cuda.h"

#define MAX_N 4u

struct rank {
    struct tp_group *group;
    uint32_t rank;
    bool is_hidden; /* this one has no NCCL */
    enum status st;
    struct error err;
    uint16_t sum[3];
    uint8_t all[MAX_N * 2];
};

static void *run_rank(void *arg) {
    struct rank *r = arg;
    struct gpu *gpu = NULL;
    struct gpu_stream *s = NULL;
    struct comm *c = NULL;
    uint8_t mine[2] = {(uint8_t)r->rank, (uint8_t)(r->rank + 100)};

    if (r->is_hidden) fake_nccl_hide();
    r->st = gpu_open(&gpu, 0, &r->err);
    if (r->st == ST_OK) r->st = gpu_stream_open(gpu, &s, &r->err);
    if (r->st == ST_OK) r->st = comm_open(&c, gpu, r->group, r->rank, &r->err);
    if (r->st == ST_OK) {
        for (int i = 0; i < 3; i++)
            r->sum[i] = bf16_of_f32((float)(r->rank + 1) * (float)(i + 1));
        comm_sum(c, s, r->sum, 3);
        comm_gather(c, s, mine, r->all, 2);
        r->st = gpu_status(gpu, &r->err);
    }
    comm_close(c);
    gpu_stream_close(s);
    gpu_close(gpu);
    return NULL;
}

static void run(struct rank *ranks, uint32_t n) {
    struct tp_group *group = tp_group_create(n);
    pthread_t threads[MAX_N];

    for (uint32_t i = 0; i < n; i++) {
        ranks[i].group = group;
        ranks[i].rank = i;
        assert_int_equal(pthread_create(&threads[i], NULL, run_rank, &ranks[i]), 0);
    }
    for (uint32_t i = 0; i < n; i++)
        (void)pthread_join(threads[i], NULL);
    tp_group_destroy(group);
    assert_int_equal(fake_cuda.n_nccl_ranks, 0);
}

static void every_rank_gets_the_sum_and_all_parts_in_order(void **state) {
    (void)state;
    for (uint32_t n = 1; n <= MAX_N; n++) {
        struct rank ranks[MAX_N] = {{.rank = 0}};

        fake_cuda_reset();
        run(ranks, n);
        for (uint32_t i = 0; i < n; i++) {
            assert_int_equal(ranks[i].st, ST_OK);
            for (int j = 0; j < 3; j++)
                assert_true(f32_of_bf16(ranks[i].sum[j]) ==
                            (float)(n * (n + 1) / 2) * (float)(j + 1));
            for (uint32_t j = 0; j < n; j++) {
                assert_int_equal(ranks[i].all[2 * j], j);
                assert_int_equal(ranks[i].all[2 * j + 1], j + 100);
            }
        }
    }
}

static void a_rank_without_nccl_ends_every_rank(void **state) {
    (void)state;
    for (uint32_t missing = 0; missing < 3; missing++) {
        struct rank ranks[MAX_N] = {{.rank = 0}};

        fake_cuda_reset();
        ranks[missing].is_hidden = true;
        run(ranks, 3);
        for (uint32_t i = 0; i < 3; i++) {
            assert_int_equal(ranks[i].st, ST_UNSUPPORTED);
            assert_non_null(strstr(ranks[i].err.message, i == missing ? "libnccl2" : "rank"));
        }
    }
}

static void one_rank_needs_no_nccl(void **state) {
    struct rank one = {.rank = 0};

    (void)state;
    fake_cuda_reset();
    fake_cuda.has_nccl = false;
    run(&one, 1);
    assert_int_equal(one.st, ST_OK);
    assert_int_equal(one.all[1], 100);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_rank_gets_the_sum_and_all_parts_in_order),
        cmocka_unit_test(a_rank_without_nccl_ends_every_rank),
        cmocka_unit_test(one_rank_needs_no_nccl),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
