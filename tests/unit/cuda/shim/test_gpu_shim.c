/* tests/unit/cuda/shim/test_gpu_shim.c - the pretended device: order of streams, memory, graphs,
 * ranks. */
#include <math.h>
#include <poll.h>
#include <pthread.h>
#include <string.h>
#include <unistd.h>

#include "kernels/cuda/device/comm.h"
#include "kernels/cuda/device/gemm.h"
#include "kernels/dtype.h"
#include "tests/shim/shim_control.h"
#include "tests/support/cm.h"
#include "tests/unit/cuda/shim/child.h"
#include "tests/unit/cuda/shim/trial_kernels.h"

enum { N = 256, SEEDS = 20 };

struct rig {
    struct gpu *gpu;
    struct gpu_stream *a, *b;
    struct gpu_event *event;
    float *x, *y, *z; /* (N), the device's */
    float *host;      /* (N), pinned */
};

static void rig_open(struct rig *r, uint64_t seed) {
    shim_set(seed, SHIM_COPIES_LATE);
    assert_int_equal(gpu_open(&r->gpu, 0, NULL), ST_OK);
    assert_int_equal(gpu_stream_open(r->gpu, &r->a, NULL), ST_OK);
    assert_int_equal(gpu_stream_open(r->gpu, &r->b, NULL), ST_OK);
    assert_int_equal(gpu_event_open(r->gpu, &r->event, NULL), ST_OK);
    assert_int_equal(gpu_alloc(r->gpu, (void **)&r->x, N * 4, "x", NULL), ST_OK);
    assert_int_equal(gpu_alloc(r->gpu, (void **)&r->y, N * 4, "y", NULL), ST_OK);
    assert_int_equal(gpu_alloc(r->gpu, (void **)&r->z, N * 4, "z", NULL), ST_OK);
    assert_int_equal(gpu_alloc_pinned(r->gpu, (void **)&r->host, N * 4, "host", NULL), ST_OK);
}
static void rig_close(struct rig *r) {
    gpu_event_close(r->event);
    gpu_stream_close(r->a);
    gpu_stream_close(r->b);
    gpu_close(r->gpu);
}
static void add(struct gpu_stream *s, const float *x, float *y, float by) {
    trial_add(s, &(struct trial_add){x, y, by, N});
}
static void set_host(struct rig *r, float value) {
    for (uint32_t i = 0; i < N; i++)
        r->host[i] = value;
}

/* Copies 1 to x on stream a, makes 2 of it there, 5 of that on b, and brings it back. */
static float through_two_streams(uint64_t seed, bool is_waiting) {
    struct rig r;
    float result;

    rig_open(&r, seed);
    set_host(&r, 1);
    gpu_copy(r.a, r.x, r.host, N * 4);
    add(r.a, r.x, r.y, 1);
    gpu_event_record(r.event, r.a);
    if (is_waiting) gpu_stream_wait_event(r.b, r.event);
    add(r.b, r.y, r.z, 3);
    gpu_copy(r.b, r.host, r.z, N * 4);
    assert_int_equal(gpu_stream_wait(r.b, NULL), ST_OK);
    result = r.host[N - 1];
    rig_close(&r);
    return result;
}
static void events_order_streams(void **state) {
    uint32_t n_wrong = 0;

    (void)state;
    for (uint64_t seed = 0; seed < SEEDS; seed++) {
        assert_true(through_two_streams(seed, true) == 5);
        n_wrong += !(through_two_streams(seed, false) == 5);
    }
    assert_true(n_wrong >= SEEDS / 4); /* a forgotten wait shows */
}

static void pinned_memory_is_read_when_the_copy_is_done(void **state) {
    uint32_t n_wrong = 0;

    (void)state;
    for (uint64_t seed = 0; seed < SEEDS; seed++) {
        struct rig r;

        rig_open(&r, seed);
        set_host(&r, 1);
        gpu_copy(r.a, r.x, r.host, N * 4);
        set_host(&r, 7); /* too early */
        gpu_copy(r.a, r.host, r.x, N * 4);
        assert_int_equal(gpu_stream_wait(r.a, NULL), ST_OK);
        n_wrong += r.host[0] != 1;
        rig_close(&r);
    }
    assert_true(n_wrong >= SEEDS / 2);
}

static void polling_gets_there_and_an_announced_event_shows_on_the_fd(void **state) {
    (void)state;
    for (uint64_t seed = 0; seed < SEEDS; seed++) {
        struct rig r;
        uint64_t n;

        rig_open(&r, seed);
        assert_int_equal(gpu_event_poll(r.event), ST_OK); /* a new event has come */
        gpu_fill(r.a, r.x, 0, N * 4);
        for (uint32_t i = 0; i < 40; i++)
            add(r.a, r.x, r.x, 1);
        gpu_event_record(r.event, r.a);
        while (gpu_event_poll(r.event) == ST_AGAIN) {
        }
        gpu_copy(r.a, r.host, r.x, N * 4);
        gpu_event_record(r.event, r.a);
        gpu_event_announce(r.event);
        assert_int_equal(poll(&(struct pollfd){gpu_event_fd(r.gpu), POLLIN, 0}, 1, 1000), 1);
        assert_int_equal(read(gpu_event_fd(r.gpu), &n, 8), 8);
        assert_int_equal(gpu_event_poll(r.event), ST_OK);
        assert_true(r.host[3] == 40);
        assert_int_equal(gpu_event_wait(r.event, 0), ST_OK);
        rig_close(&r);
    }
}

/* --- graphs */
static void record(struct rig *r) {
    gpu_capture_begin(r->a);
    gpu_copy(r->a, r->x, r->host, N * 4);
    add(r->a, r->x, r->y, 1);
}
static void graphs_replay_pointers_not_contents(void **state) {
    struct gpu_graph *graph;
    struct rig r;

    (void)state;
    rig_open(&r, 1);
    record(&r);
    gpu_copy(r.a, r.host, r.y, N * 4);
    assert_int_equal(gpu_capture_end(r.a, &graph, NULL), ST_OK);
    set_host(&r, 3);
    assert_int_equal(gpu_stream_wait(r.a, NULL), ST_OK);
    assert_true(r.host[0] == 3); /* nothing was run while recording */
    gpu_graph_launch(graph, r.a);
    gpu_graph_launch(graph, r.a);
    assert_int_equal(gpu_stream_wait(r.a, NULL), ST_OK);
    assert_true(r.host[0] == 5);
    gpu_graph_close(graph);
    rig_close(&r);
}
static void a_recording_refuses_unrecordable_calls(void **state) {
    struct gpu_graph *graph;
    struct error err;
    struct rig r;
    void *p;

    (void)state;
    rig_open(&r, 1);
    record(&r);
    assert_int_equal(gpu_alloc(r.gpu, &p, 16, "late", NULL), ST_OK);
    assert_int_equal(gpu_capture_end(r.a, &graph, &err), ST_INTERNAL);
    assert_string_equal(err.message, "recording a graph: memory was allocated");
    record(&r);
    assert_int_not_equal(gpu_stream_wait(r.a, NULL), ST_OK);
    assert_int_equal(gpu_capture_end(r.a, &graph, &err), ST_INTERNAL);
    gpu_event_record(r.event, r.b);
    record(&r);
    gpu_stream_wait_event(r.a, r.event);
    assert_int_equal(gpu_capture_end(r.a, &graph, &err), ST_INTERNAL);
    rig_close(&r);
}
static void recorded_streams_must_come_back(void **state) {
    struct gpu_graph *graph;
    struct rig r;

    (void)state;
    for (uint32_t is_joined = 0; is_joined < 2; is_joined++) {
        rig_open(&r, 1);
        record(&r);
        gpu_event_record(r.event, r.a);
        gpu_stream_wait_event(r.b, r.event);
        add(r.b, r.y, r.z, 1);
        gpu_event_record(r.event, r.b);
        if (is_joined) gpu_stream_wait_event(r.a, r.event);
        gpu_copy(r.a, r.host, r.z, N * 4);
        assert_int_equal(gpu_capture_end(r.a, &graph, NULL), is_joined ? ST_OK : ST_INTERNAL);
        set_host(&r, 3);
        if (is_joined) {
            gpu_graph_launch(graph, r.a);
            assert_int_equal(gpu_stream_wait(r.a, NULL), ST_OK);
            assert_true(r.host[0] == 5);
            gpu_graph_close(graph);
        }
        rig_close(&r);
    }
}

/* --- memory, refusals, failures */
static void memory_has_an_end(void **state) {
    struct error err;
    struct gpu *gpu;
    void *p, *q;

    (void)state;
    shim_set_memory(1 << 20);
    assert_int_equal(gpu_open(&gpu, 0, NULL), ST_OK);
    assert_int_equal(gpu_alloc(gpu, &p, 1000 << 10, "weights", NULL), ST_OK);
    assert_int_equal(((uint8_t *)p)[0], 0xFF);
    assert_int_equal((uintptr_t)p % 256, 0);
    assert_int_equal(gpu_alloc(gpu, &q, 100 << 10, "kv", &err), ST_NOMEM);
    assert_string_equal(err.message, "kv: 102400 bytes do not fit: 24576 of 1048576 are free");
    assert_int_equal(gpu_memory_free(gpu), 24576);
    gpu_free(gpu, p);
    assert_int_equal(gpu_alloc(gpu, &q, 100 << 10, "kv", NULL), ST_OK);
    gpu_close(gpu);
    shim_set_memory(256 << 20);
}
static void every_fallible_call_can_be_made_to_fail(void **state) {
    struct gpu *gpu;
    struct gpu_stream *s;
    uint32_t n_failed = 0;

    (void)state;
    for (uint64_t nth = 1; nth <= 3; nth++) {
        shim_fail_call(nth);
        if (gpu_open(&gpu, 0, NULL) != ST_OK) {
            n_failed++;
            continue;
        }
        if (gpu_stream_open(gpu, &s, NULL) == ST_OK)
            gpu_stream_close(s);
        else
            n_failed++;
        gpu_close(gpu);
    }
    shim_fail_call(0);
    assert_int_equal(n_failed, 2);
}
static void a_kernel_that_fails_sticks(void **state) {
    struct error err;
    struct rig r;

    (void)state;
    rig_open(&r, 2);
    gpu_fill(r.a, r.x, 0, N * 4);
    shim_fail_launch(2);
    add(r.a, r.x, r.y, 1);
    add(r.a, r.x, r.y, 2);
    gpu_event_record(r.event, r.a);
    assert_int_equal(gpu_event_wait(r.event, 1000000), ST_CLOSED);
    assert_int_equal(gpu_event_poll(r.event), ST_CLOSED);
    assert_int_equal(gpu_stream_wait(r.a, &err), ST_CLOSED);
    assert_string_equal(err.message, "kernel add: an illegal memory access, as asked for");
    assert_int_equal(gpu_status(r.gpu, NULL), ST_CLOSED);
    rig_close(&r);
}
static void shared_memory_must_be_asked_for(void **state) {
    struct error err;
    struct rig r;

    (void)state;
    rig_open(&r, 2);
    assert_int_equal(trial_big_allow(300 << 10), 1); /* more than the device has */
    trial_big(r.a, &(struct trial_big){(uint32_t *)r.x}, 48 << 10);
    assert_int_equal(gpu_stream_wait(r.a, NULL), ST_OK);
    trial_big(r.a, &(struct trial_big){(uint32_t *)r.x}, 60 << 10);
    assert_int_equal(gpu_stream_wait(r.a, &err), ST_CLOSED);
    assert_non_null(strstr(err.message, "more shared memory than the kernel was allowed"));
    rig_close(&r);
    rig_open(&r, 2);
    assert_int_equal(trial_big_allow(100 << 10), 0);
    trial_big(r.a, &(struct trial_big){(uint32_t *)r.x}, 60 << 10);
    assert_int_equal(gpu_stream_wait(r.a, NULL), ST_OK);
    rig_close(&r);
}

static void writes_behind(void *arg) {
    struct rig r;

    (void)arg;
    rig_open(&r, 1);
    trial_add(r.a, &(struct trial_add){r.x, r.y, 3e38f, N + 1});
    gpu_free(r.gpu, r.y);
}
static void copies_too_much(void *arg) {
    struct rig r;

    (void)arg;
    rig_open(&r, 1);
    gpu_copy(r.a, r.x, r.host, N * 4 + 4);
}
static void copies_from_elsewhere(void *arg) {
    static float elsewhere[N];
    struct rig r;

    (void)arg;
    rig_open(&r, 1);
    gpu_copy(r.a, r.x, elsewhere, N * 4);
}
static void frees_twice(void *arg) {
    struct rig r;

    (void)arg;
    rig_open(&r, 1);
    gpu_free(r.gpu, r.x);
    gpu_free(r.gpu, r.x);
}
static void follows_a_devices_pointer(void *arg) {
    struct rig r;

    (void)arg;
    rig_open(&r, 0);
    gpu_fill(r.a, r.x, 0, N * 4);
    (void)!gpu_stream_wait(r.a, NULL);
    r.x[0] = 1;
}
static void misuse_ends_the_process(void **state) {
    (void)state;
    assert_true(
        child_prints(writes_behind, NULL, "behind the end of 'y' (1024 bytes) was written") ||
        child_prints(writes_behind, NULL, "use-after-poison"));
    assert_true(child_prints(copies_too_much, NULL, "gpu_copy to: 1028 bytes"));
    assert_true(child_prints(copies_from_elsewhere, NULL, "gpu_copy from: 1024 bytes"));
    assert_true(child_prints(frees_twice, NULL, "was not allocated, or was freed before"));
    assert_true(child_dies(follows_a_devices_pointer, NULL));
}

/* --- products */
static void products_match_gemm_h(void **state) {
    enum { M = 3, OUT = 16, K = 24 };
    uint16_t *x, *w, *bias, *y, *host;
    struct gemm *gemm;
    struct rig r;

    (void)state;
    rig_open(&r, 4);
    assert_int_equal(gpu_alloc(r.gpu, (void **)&x, M * K * 2, "x", NULL), ST_OK);
    assert_int_equal(gpu_alloc(r.gpu, (void **)&w, OUT * K * 2, "w", NULL), ST_OK);
    assert_int_equal(gpu_alloc(r.gpu, (void **)&bias, OUT * 2, "bias", NULL), ST_OK);
    assert_int_equal(gpu_alloc(r.gpu, (void **)&y, M * OUT * 2, "y", NULL), ST_OK);
    assert_int_equal(gpu_alloc_pinned(r.gpu, (void **)&host, 4096, "host", NULL), ST_OK);
    assert_int_equal(gemm_open(&gemm, r.gpu, NULL, false, NULL), ST_OK);
    struct gemm_args args = {{OUT, K, false, true, true}, M, x, K, w, bias, y, OUT};
    assert_int_equal(gemm_tune(gemm, r.a, &args, M, NULL), ST_OK);
    for (uint32_t i = 0; i < OUT * K; i++)
        host[i] = bf16_of_f32((float)(i % 7) - 3);
    gpu_copy(r.a, w, host, OUT * K * 2);
    gpu_copy(r.a, x, host + 5, M * K * 2);
    gpu_copy(r.a, bias, host + 3, OUT * 2);
    gpu_copy(r.a, y, host + 1, M * OUT * 2);
    gemm_run(gemm, r.a, &args);
    gpu_copy(r.a, host + 1024, y, M * OUT * 2);
    assert_int_equal(gpu_stream_wait(r.a, NULL), ST_OK);
    for (uint32_t m = 0; m < M; m++)
        for (uint32_t n = 0; n < OUT; n++) {
            float sum = f32_of_bf16(host[3 + n]) + f32_of_bf16(host[1 + m * OUT + n]);

            for (uint32_t k = 0; k < K; k++)
                sum += f32_of_bf16(host[5 + m * K + k]) * f32_of_bf16(host[n * K + k]);
            assert_true(f32_of_bf16(host[1024 + m * OUT + n]) == sum);
        }
    gemm_close(gemm);
    rig_close(&r);
}

/* --- ranks */
struct rank {
    struct tp_group *group;
    uint32_t rank;
    uint64_t seed;
    bool is_right;
};
static void *run_rank(void *arg) {
    struct rank *me = arg;
    uint16_t *x, *host, *all;
    struct comm *comm;
    struct rig r;

    rig_open(&r, me->seed);
    me->is_right = gpu_alloc(r.gpu, (void **)&x, N * 2, "x", NULL) == ST_OK &&
                   gpu_alloc(r.gpu, (void **)&all, N * 2 * 3, "all", NULL) == ST_OK &&
                   gpu_alloc_pinned(r.gpu, (void **)&host, N * 2 * 3, "host", NULL) == ST_OK &&
                   comm_open(&comm, r.gpu, me->group, me->rank, NULL) == ST_OK;
    for (uint32_t i = 0; i < N; i++)
        host[i] = bf16_of_f32((float)(me->rank + 1));
    gpu_copy(r.a, x, host, N * 2);
    for (uint32_t i = 0; i < 4; i++)
        comm_sum(comm, r.a, x, N); /* 1 + 2 + 3 = 6, then 18, 54, 162 */
    comm_gather(comm, r.a, x, all, N * 2);
    gpu_copy(r.a, host, all, N * 2 * 3);
    me->is_right &= gpu_stream_wait(r.a, NULL) == ST_OK;
    for (uint32_t i = 0; i < 3 * N; i++)
        me->is_right &= f32_of_bf16(host[i]) == 162;
    comm_close(comm);
    rig_close(&r);
    return NULL;
}
static void ranks_sum_and_gather(void **state) {
    (void)state;
    for (uint64_t seed = 0; seed < 4; seed++) {
        struct tp_group *group = tp_group_create(3);
        struct rank ranks[3];
        pthread_t threads[3];

        for (uint32_t i = 0; i < 3; i++) {
            ranks[i] = (struct rank){group, i, seed, false};
            assert_int_equal(pthread_create(&threads[i], NULL, run_rank, &ranks[i]), 0);
        }
        for (uint32_t i = 0; i < 3; i++) {
            pthread_join(threads[i], NULL);
            assert_true(ranks[i].is_right);
        }
        tp_group_destroy(group);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(events_order_streams),
        cmocka_unit_test(pinned_memory_is_read_when_the_copy_is_done),
        cmocka_unit_test(polling_gets_there_and_an_announced_event_shows_on_the_fd),
        cmocka_unit_test(graphs_replay_pointers_not_contents),
        cmocka_unit_test(a_recording_refuses_unrecordable_calls),
        cmocka_unit_test(recorded_streams_must_come_back),
        cmocka_unit_test(memory_has_an_end),
        cmocka_unit_test(every_fallible_call_can_be_made_to_fail),
        cmocka_unit_test(a_kernel_that_fails_sticks),
        cmocka_unit_test(shared_memory_must_be_asked_for),
        cmocka_unit_test(misuse_ends_the_process),
        cmocka_unit_test(products_match_gemm_h),
        cmocka_unit_test(ranks_sum_and_gather),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
