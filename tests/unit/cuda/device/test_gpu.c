/* tests/unit/cuda/device/test_gpu.c - gpu.c on a fake runtime: what it reports, keeps and
 * signals. */
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cuda_runtime_api.h>

#include "kernels/cuda/device/gpu.h"
#include "tests/support/cm.h"
#include "tests/unit/cuda/device/fake_cuda.h"

#define PATIENCE_MS 20000

static struct gpu *opened(void) {
    struct gpu *gpu = NULL;

    fake_cuda_reset();
    assert_int_equal(gpu_open(&gpu, 0, NULL), ST_OK);
    return gpu;
}

static struct gpu_stream *stream_of(struct gpu *gpu) {
    struct gpu_stream *s = NULL;

    assert_int_equal(gpu_stream_open(gpu, &s, NULL), ST_OK);
    return s;
}

static struct gpu_event *event_of(struct gpu *gpu) {
    struct gpu_event *e = NULL;

    assert_int_equal(gpu_event_open(gpu, &e, NULL), ST_OK);
    return e;
}

static void close_all(struct gpu *gpu, struct gpu_stream *s) {
    gpu_stream_close(s);
    gpu_close(gpu);
    assert_int_equal(fake_cuda.allocated_bytes, 0);
}

/* --- kernels: main lists these three, as the object's initialisers do */

static struct gpu_kernel kernels[3];

static void list_kernels(void) {
    for (size_t i = 0; i < ARRAY_LEN(kernels); i++) {
        kernels[i].address = &kernels[i];
        gpu_list_kernel(&kernels[i]);
    }
}

static void opening_a_device_loads_every_kernel(void **state) {
    (void)state;
    gpu_close(opened());
    assert_int_equal(fake_cuda.n_loaded, ARRAY_LEN(kernels));
}

static void a_kernel_without_code_for_the_card_is_a_sentence(void **state) {
    struct gpu *gpu = NULL;
    struct error err = {0};

    (void)state;
    fake_cuda_reset();
    fake_cuda.foreign_kernel = &kernels[1];
    assert_int_equal(gpu_open(&gpu, 0, &err), ST_CLOSED);
    assert_non_null(
        strstr(err.message, "has no kernels that GPU 0 (sm_90) and its driver can run"));
    assert_null(gpu);
}

/* --- other devices' memory */

static void a_device_reaches_others_once_or_again_but_not_itself(void **state) {
    struct gpu *gpu;

    (void)state;
    gpu = opened();
    assert_true(gpu_reach(gpu, 3));
    assert_int_equal(fake_cuda.peers_enabled, 1u << 3);
    assert_true(gpu_reach(gpu, 3)); /* "already enabled" is no mistake */
    assert_false(gpu_reach(gpu, 0));
    fake_cuda.has_no_peers = true;
    assert_false(gpu_reach(gpu, 2));
    assert_int_equal(fake_cuda.peers_enabled, 1u << 3);
    assert_int_equal(gpu_status(gpu, NULL), ST_OK);
    gpu_close(gpu);
}

/* --- sentences */

static void each_way_to_have_no_gpu_has_its_sentence(void **state) {
    static const struct {
        int count_error, n_devices, driver;
        const char *visible, *words[2];
    } cases[] = {
        {cudaErrorInsufficientDriver, 0, 0, NULL, {"no CUDA driver", "install"}},
        {cudaErrorInsufficientDriver, 0, 12020, NULL, {"knows CUDA 12.2", "needs 1"}},
        {cudaErrorNoDevice, 0, 13000, NULL, {"sees no GPU", "nvidia-smi"}},
        {cudaErrorNoDevice, 0, 13000, "", {"CUDA_VISIBLE_DEVICES is set and empty", "unset"}},
        {cudaErrorNoDevice, 0, 13000, "7", {"CUDA_VISIBLE_DEVICES=7", "nvidia-smi -L"}},
        {cudaErrorStubLibrary, 0, 13000, NULL, {"stub", "LD_LIBRARY_PATH"}},
        {cudaErrorSystemNotReady, 0, 13000, NULL, {"not ready", "nvidia-fabricmanager"}},
        {cudaErrorSystemDriverMismatch, 0, 13000, NULL, {"different versions", "restart"}},
        {cudaErrorUnknown, 0, 13000, NULL, {"does not work", "error number"}},
        {cudaSuccess, 0, 13000, NULL, {"sees no GPU", "nvidia-smi"}},
    };

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct error err;
        struct gpu *gpu = NULL;
        uint32_t n = 77;

        fake_cuda_reset();
        fake_cuda.count_error = cases[i].count_error;
        fake_cuda.n_devices = cases[i].n_devices;
        fake_cuda.driver = cases[i].driver;
        unsetenv("CUDA_VISIBLE_DEVICES");
        if (cases[i].visible) setenv("CUDA_VISIBLE_DEVICES", cases[i].visible, 1);
        assert_int_equal(gpu_count(&n, &err), ST_UNSUPPORTED);
        assert_int_equal(n, 77);
        for (int w = 0; w < 2; w++)
            if (!strstr(err.message, cases[i].words[w])) fail_msg("%zu: %s", i, err.message);
        assert_int_equal(gpu_open(&gpu, 0, NULL), ST_UNSUPPORTED);
        assert_null(gpu);
    }
    unsetenv("CUDA_VISIBLE_DEVICES");
}

static void a_busy_device_differs_from_a_missing_one(void **state) {
    struct gpu *gpu = NULL;
    struct error err;

    (void)state;
    fake_cuda_reset();
    fake_cuda.open_error = cudaErrorDevicesUnavailable;
    assert_int_equal(gpu_open(&gpu, 0, &err), ST_UNAVAILABLE);
    assert_non_null(strstr(err.message, "exclusive"));
    assert_non_null(strstr(err.message, "prohibited"));
    fake_cuda.open_error = 0;
    assert_int_equal(gpu_open(&gpu, 1, &err), ST_NOT_FOUND);
    assert_non_null(strstr(err.message, "no GPU 1"));
    assert_null(gpu);
}

static void a_device_is_described(void **state) {
    struct gpu *gpu = opened();
    const struct gpu_properties *p = gpu_properties(gpu);

    (void)state;
    assert_string_equal(p->uuid, "GPU-a0a1a2a3-a4a5-a6a7-a8a9-aaabacadaeaf");
    assert_string_equal(p->name, "Pretended GPU");
    assert_int_equal(p->sm, 90);
    assert_int_equal(p->driver, 13000);
    assert_int_equal(p->memory_free, fake_cuda.memory_bytes);
    gpu_close(gpu);
}

/* --- memory */

static void memory_that_is_refused_is_named_with_both_figures(void **state) {
    struct gpu *gpu = opened();
    struct error err;
    void *p = NULL, *q = NULL;

    (void)state;
    assert_int_equal(gpu_alloc(gpu, &p, 1 << 27, "weights", NULL), ST_OK);
    assert_int_equal(gpu_alloc(gpu, &q, 1 << 28, "the KV pool", &err), ST_NOMEM);
    assert_string_equal(err.message,
                        "the KV pool takes 0.250 GiB of GPU 0, which has 0.125 GiB free");
    assert_int_equal(gpu_alloc_pinned(gpu, &q, UINT64_C(1) << 40, "the host tier", &err), ST_NOMEM);
    assert_non_null(strstr(err.message, "the host tier takes 1024.000 GiB of pinned"));
    assert_int_equal(gpu_status(gpu, NULL), ST_OK); /* a refusal is no failure */
    gpu_free(gpu, p);
    gpu_free(gpu, NULL);
    assert_int_equal(fake_cuda.allocated_bytes, 0);
    assert_int_equal(gpu_alloc(gpu, &q, 1 << 27, "weights", NULL), ST_OK);
    gpu_close(gpu); /* frees what is left */
    assert_int_equal(fake_cuda.allocated_bytes, 0);
}

static void freeing_an_unknown_pointer_fails_for_good(void **state) {
    struct gpu *gpu = opened();
    int x;

    (void)state;
    gpu_free(gpu, &x);
    assert_int_equal(gpu_status(gpu, NULL), ST_CLOSED);
    gpu_close(gpu);
}

static void *allocate_elsewhere(void *gpu) {
    void *p = NULL;

    assert_int_equal(gpu_alloc(gpu, &p, 64, "a thread's", NULL), ST_OK);
    return p;
}

static void each_thread_uses_the_device_that_it_calls(void **state) {
    struct gpu *one = NULL, *two = NULL;
    void *p = NULL;
    pthread_t thread;

    (void)state;
    fake_cuda_reset();
    fake_cuda.n_devices = 2;
    assert_int_equal(gpu_open(&one, 0, NULL), ST_OK);
    assert_int_equal(gpu_open(&two, 1, NULL), ST_OK);
    assert_int_equal(gpu_alloc(one, &p, 64, "first", NULL), ST_OK);
    assert_int_equal(fake_cuda.allocated_on, 0);
    assert_int_equal(gpu_alloc(two, &p, 64, "second", NULL), ST_OK);
    assert_int_equal(fake_cuda.allocated_on, 1);
    assert_int_equal(pthread_create(&thread, NULL, allocate_elsewhere, two), 0);
    (void)pthread_join(thread, NULL);
    assert_int_equal(fake_cuda.allocated_on, 1);
    gpu_close(one);
    gpu_close(two);
    assert_int_equal(fake_cuda.allocated_bytes, 0);
}

/* --- mistakes */

static void the_first_mistake_sticks(void **state) {
    struct gpu *gpu = opened();
    struct gpu_stream *s = stream_of(gpu);
    struct gpu_event *e = event_of(gpu);
    char from[4] = "abc", to[4];
    struct error err;

    (void)state;
    assert_int_equal(gpu_event_poll(e), ST_OK);
    fake_cuda.copy_error = cudaErrorIllegalAddress;
    gpu_copy(s, to, from, 4);
    fake_cuda.copy_error = cudaErrorLaunchFailure;
    gpu_copy(s, to, from, 4);
    assert_int_equal(gpu_status(gpu, &err), ST_CLOSED);
    assert_non_null(strstr(err.message, "GPU 0 failed while starting a copy: error number 700"));
    assert_int_equal(gpu_event_poll(e), ST_CLOSED);
    assert_int_equal(gpu_event_wait(e, 10), ST_CLOSED);
    assert_int_equal(gpu_stream_wait(s, NULL), ST_CLOSED);
    gpu_event_close(e);
    close_all(gpu, s);
}

static void a_kernel_that_was_not_launched_is_noticed(void **state) {
    struct gpu *gpu;
    struct gpu_stream *s;
    struct gpu_event *e;
    struct error err;

    (void)state;
    for (int way = 0; way < 3; way++) {
        gpu = opened();
        s = stream_of(gpu);
        e = event_of(gpu);
        fake_cuda_hold();
        gpu_event_record(e, s);
        fake_cuda.launch_error = cudaErrorInvalidConfiguration;
        if (way == 0) assert_int_equal(gpu_event_poll(e), ST_CLOSED);
        if (way == 1) assert_int_equal(gpu_stream_wait(s, NULL), ST_CLOSED);
        assert_int_equal(gpu_status(gpu, &err), ST_CLOSED);
        assert_non_null(strstr(err.message, "running a kernel"));
        fake_cuda_let_go();
        gpu_event_close(e);
        close_all(gpu, s);
    }
}

static void an_object_for_other_devices_names_the_remedy(void **state) {
    struct gpu *gpu = opened();
    struct error err;

    (void)state;
    fake_cuda.launch_error = cudaErrorNoKernelImageForDevice;
    assert_int_equal(gpu_status(gpu, &err), ST_CLOSED);
    assert_non_null(strstr(err.message, "build it with CUDA_ARCHS=\"90\""));
    gpu_close(gpu);
}

/* --- copies */

static void many_copies_are_one_call_where_the_driver_can(void **state) {
    enum { N = 600, BYTES = 8 };
    static const struct {
        int driver, batch_error;
        uint32_t n_batches, n_copies;
    } cases[] = {{13000, 0, 3, 0}, {12070, 0, 0, N}, {13000, cudaErrorNotSupported, 0, N}};
    static char from[N][BYTES], to[N][BYTES];
    void *dst[N];
    const void *src[N];

    (void)state;
    for (size_t c = 0; c < ARRAY_LEN(cases); c++) {
        struct gpu *gpu;
        struct gpu_stream *s;

        fake_cuda_reset();
        fake_cuda.driver = cases[c].driver;
        fake_cuda.batch_error = cases[c].batch_error;
        assert_int_equal(gpu_open(&gpu, 0, NULL), ST_OK);
        s = stream_of(gpu);
        for (int i = 0; i < N; i++) {
            memset(from[i], i % 251, BYTES);
            dst[i] = to[i];
            src[i] = from[N - 1 - i];
        }
        memset(to, 0xEE, sizeof(to));
        gpu_copy_many(s, dst, src, BYTES, N);
        assert_int_equal(gpu_stream_wait(s, NULL), ST_OK);
        for (int i = 0; i < N; i++)
            assert_memory_equal(to[i], from[N - 1 - i], BYTES);
        assert_int_equal(fake_cuda.n_batches, cases[c].n_batches);
        assert_int_equal(fake_cuda.n_copies, cases[c].n_copies);
        close_all(gpu, s);
    }
}

static void rows_are_copied_with_their_pitches(void **state) {
    struct gpu *gpu = opened();
    struct gpu_stream *s = stream_of(gpu);
    char from[12] = "abcdefghijk", to[9] = "........";

    (void)state;
    gpu_copy_2d(s, to, 3, from, 4, 2, 2);
    assert_string_equal(to, "ab.ef...");
    gpu_copy_2d(s, to, 3, from, 4, 2, 0);
    gpu_fill(s, to + 6, 'z', 2);
    assert_string_equal(to, "ab.ef.zz");
    close_all(gpu, s);
}

/* --- events */

static bool is_readable(int fd, int timeout_ms) {
    struct pollfd p = {.fd = fd, .events = POLLIN};

    return poll(&p, 1, timeout_ms) == 1;
}

static uint64_t take_signal(int fd) {
    uint64_t n = 0;

    assert_true(is_readable(fd, PATIENCE_MS));
    assert_int_equal(read(fd, &n, sizeof(n)), sizeof(n));
    return n;
}

static void an_announced_event_makes_the_fd_readable(void **state) {
    struct gpu *gpu = opened();
    struct gpu_stream *s = stream_of(gpu);
    struct gpu_event *a = event_of(gpu), *b = event_of(gpu);
    int fd = gpu_event_fd(gpu);
    uint64_t n;

    (void)state;
    assert_true(fd >= 0);
    assert_int_equal(gpu_event_fd(gpu), fd);
    for (int turn = 0; turn < 50; turn++) {
        fake_cuda_hold();
        gpu_event_record(a, s);
        fake_cuda.clock_us += 1500;
        gpu_event_record(b, s);
        gpu_event_announce(a);
        gpu_event_announce(b);
        assert_false(is_readable(fd, 0));
        assert_int_equal(gpu_event_poll(a), ST_AGAIN);
        assert_int_equal(gpu_event_wait(a, 200), ST_TIMEOUT);
        fake_cuda_let_go();
        assert_int_equal(gpu_event_wait(a, UINT64_MAX), ST_OK);
        for (n = 0; n < 2;)
            n += take_signal(fd);
        assert_int_equal(gpu_event_poll(b), ST_OK);
    }
    assert_true(gpu_event_elapsed_us(a, b) == 1500.0);
    gpu_event_close(a);
    gpu_event_close(b);
    close_all(gpu, s);
}

static void an_event_may_be_closed_while_it_is_announced(void **state) {
    struct gpu *gpu = opened();
    struct gpu_stream *s = stream_of(gpu);
    int fd = gpu_event_fd(gpu);

    (void)state;
    for (int turn = 0; turn < 100; turn++) {
        struct gpu_event *a = event_of(gpu), *b = event_of(gpu), *c = event_of(gpu);

        gpu_event_record(a, s);
        gpu_event_record(b, s);
        gpu_event_announce(a);
        gpu_event_announce(b);
        gpu_event_announce(b); /* twice is once */
        gpu_event_announce(c);
        gpu_event_close(turn % 2 ? b : a);
        gpu_event_announce(c);
        (void)take_signal(fd);
        gpu_event_close(turn % 2 ? a : b);
        gpu_event_close(c);
    }
    close_all(gpu, s);
}

/* --- launches that overlap */

static bool overlaps(struct gpu_stream *s) {
    bool overlaps;

    (void)gpu_stream_launches(s, &overlaps);
    return overlaps;
}

static void a_kernel_overlaps_another_and_nothing_else(void **state) {
    struct gpu *gpu = opened();
    struct gpu_stream *s = stream_of(gpu);
    struct gpu_graph *g = NULL;
    struct gpu_event *e;
    char from[4] = "abc", to[4] = "---";

    (void)state;
    assert_int_equal(gpu_event_open(gpu, &e, NULL), ST_OK);
    assert_false(overlaps(NULL));
    assert_false(overlaps(s));
    assert_true(overlaps(s));
    gpu_copy(s, to, from, 2);
    assert_false(overlaps(s));
    gpu_fill(s, to, 1, 2);
    assert_false(overlaps(s));
    gpu_event_record(e, s);
    assert_false(overlaps(s));
    gpu_stream_wait_event(s, e);
    assert_false(overlaps(s));
    (void)gpu_stream_handle(s); /* for a library */
    assert_false(overlaps(s));
    gpu_capture_begin(s);
    assert_false(overlaps(s));
    assert_true(overlaps(s));
    assert_int_equal(gpu_capture_end(s, &g, NULL), ST_OK);
    assert_false(overlaps(s));
    gpu_graph_launch(g, s);
    assert_false(overlaps(s));
    assert_true(overlaps(s));
    gpu_graph_close(g);
    gpu_event_close(e);
    close_all(gpu, s);
}

/* Code for an older card runs on this one, and has no wait for the kernel before it. */
static void kernels_compiled_for_older_cards_overlap_nothing(void **state) {
    struct gpu *gpu;
    struct gpu_stream *s;

    (void)state;
    fake_cuda_reset();
    fake_cuda.ptx_version = 80;
    assert_int_equal(gpu_open(&gpu, 0, NULL), ST_OK);
    s = stream_of(gpu);
    assert_false(overlaps(s));
    assert_false(overlaps(s));
    close_all(gpu, s);
}

static void overlap_can_be_switched_off(void **state) {
    struct gpu *gpu;
    struct gpu_stream *s;

    (void)state;
    assert_int_equal(setenv("INCIPIT_CUDA_OVERLAP", "0", 1), 0);
    gpu = opened();
    s = stream_of(gpu);
    assert_false(overlaps(s));
    assert_false(overlaps(s));
    close_all(gpu, s);
    assert_int_equal(unsetenv("INCIPIT_CUDA_OVERLAP"), 0);
}

/* --- graphs */

static void recorded_work_runs_at_each_launch(void **state) {
    struct gpu *gpu = opened();
    struct gpu_stream *s = stream_of(gpu);
    struct gpu_graph *g = NULL;
    char from[4] = "abc", to[4] = "---";
    void *dst[2] = {to, to + 1};
    const void *src[2] = {from, from + 1};

    (void)state;
    gpu_capture_begin(s);
    gpu_copy_many(s, dst, src, 1, 2); /* one by one: a batch cannot be recorded everywhere */
    gpu_fill(s, to + 2, '!', 1);
    assert_int_equal(gpu_capture_end(s, &g, NULL), ST_OK);
    assert_string_equal(to, "---");
    gpu_graph_launch(g, s);
    assert_string_equal(to, "ab!");
    from[0] = 'x'; /* pointers are recorded, not contents */
    gpu_graph_launch(g, s);
    assert_string_equal(to, "xb!");
    assert_int_equal(fake_cuda.n_graph_launches, 2);
    gpu_graph_close(g);
    gpu_graph_close(NULL);
    close_all(gpu, s);
}

static void a_failed_recording_is_reported(void **state) {
    struct gpu *gpu = opened();
    struct gpu_stream *s = stream_of(gpu);
    struct gpu_graph *g = NULL;
    struct error err;

    (void)state;
    gpu_capture_begin(s);
    fake_cuda.capture_error = cudaErrorStreamCaptureUnsupported;
    assert_int_equal(gpu_capture_end(s, &g, &err), ST_CLOSED);
    assert_non_null(strstr(err.message, "making a graph"));
    assert_null(g);
    close_all(gpu, s);
}

/* The driver's answer to the end of a recording hides what went wrong in it. */
static void an_unrecordable_kernel_is_reported_first(void **state) {
    struct gpu *gpu = opened();
    struct gpu_stream *s = stream_of(gpu);
    struct gpu_graph *g = NULL;
    struct error err;

    (void)state;
    gpu_capture_begin(s);
    fake_cuda.launch_error = cudaErrorInvalidConfiguration;
    fake_cuda.capture_error = cudaErrorStreamCaptureInvalidated;
    assert_int_equal(gpu_capture_end(s, &g, &err), ST_CLOSED);
    assert_non_null(strstr(err.message, "recording a kernel"));
    close_all(gpu, s);
}

static void a_recording_without_room_is_no_fault_of_the_device(void **state) {
    struct gpu *gpu = opened();
    struct gpu_stream *s = stream_of(gpu);
    struct gpu_graph *g = NULL;
    struct error err;

    (void)state;
    gpu_capture_begin(s);
    fake_cuda.capture_error = cudaErrorMemoryAllocation;
    assert_int_equal(gpu_capture_end(s, &g, &err), ST_NOMEM);
    assert_non_null(strstr(err.message, "--gpu-memory-utilization"));
    assert_int_equal(gpu_status(gpu, NULL), ST_OK);
    close_all(gpu, s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_device_reaches_others_once_or_again_but_not_itself),
        cmocka_unit_test(each_way_to_have_no_gpu_has_its_sentence),
        cmocka_unit_test(a_busy_device_differs_from_a_missing_one),
        cmocka_unit_test(a_device_is_described),
        cmocka_unit_test(memory_that_is_refused_is_named_with_both_figures),
        cmocka_unit_test(freeing_an_unknown_pointer_fails_for_good),
        cmocka_unit_test(each_thread_uses_the_device_that_it_calls),
        cmocka_unit_test(the_first_mistake_sticks),
        cmocka_unit_test(a_kernel_that_was_not_launched_is_noticed),
        cmocka_unit_test(an_object_for_other_devices_names_the_remedy),
        cmocka_unit_test(many_copies_are_one_call_where_the_driver_can),
        cmocka_unit_test(rows_are_copied_with_their_pitches),
        cmocka_unit_test(an_announced_event_makes_the_fd_readable),
        cmocka_unit_test(an_event_may_be_closed_while_it_is_announced),
        cmocka_unit_test(a_kernel_overlaps_another_and_nothing_else),
        cmocka_unit_test(overlap_can_be_switched_off),
        cmocka_unit_test(kernels_compiled_for_older_cards_overlap_nothing),
        cmocka_unit_test(opening_a_device_loads_every_kernel),
        cmocka_unit_test(a_kernel_without_code_for_the_card_is_a_sentence),
        cmocka_unit_test(recorded_work_runs_at_each_launch),
        cmocka_unit_test(a_failed_recording_is_reported),
        cmocka_unit_test(an_unrecordable_kernel_is_reported_first),
        cmocka_unit_test(a_recording_without_room_is_no_fault_of_the_device),
    };

    list_kernels();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
