/* tests/gpu/on_device.c - see on_device.h: mapped host memory, the runner of tests, and a shim that
 * skips.
 *
 * Memory is pinned host memory, which a kernel reads over the bus under the same address. It needs
 * no page faults of the device, as managed memory would, and the arrays of tests are small. */
#include "tests/gpu/on_device.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cuda_runtime_api.h>

#include "tests/gpu/cmocka/cmocka.h"
#include "tests/shim/shim_control.h"

#undef free /* what was allocated elsewhere */

jmp_buf cm_end;

void *device_room(size_t n_bytes) {
    void *p = NULL;
    cudaError_t code =
        cudaHostAlloc(&p, n_bytes ? n_bytes : 1, cudaHostAllocMapped | cudaHostAllocPortable);

    if (code != cudaSuccess) {
        fprintf(stderr, "no mapped host memory: %s\n", cudaGetErrorString(code));
        exit(1);
    }
    memset(p, 0, n_bytes);
    return p;
}

void device_release(void *p) {
    struct cudaPointerAttributes a;

    if (!p) return;
    if (cudaPointerGetAttributes(&a, p) == cudaSuccess && a.type == cudaMemoryTypeHost)
        (void)cudaFreeHost(p);
    else
        free(p);
}

/* --- tests ------------------------------------------------------------------------------------ */

int cm_run(const struct CMUnitTest *tests, size_t n) {
    volatile size_t n_failed = 0, i;

    for (i = 0; i < n; i++) {
        int how = setjmp(cm_end);
        void *state = NULL;

        if (how == 0) tests[i].test(&state);
        if (how != CM_SKIPPED && (cudaDeviceSynchronize() != cudaSuccess || cudaGetLastError()))
            how = CM_FAILED;
        n_failed += how == CM_FAILED;
        printf("%-8s %s\n",
               how == 0            ? "ok"
               : how == CM_SKIPPED ? "skipped"
                                   : "FAILED",
               tests[i].name);
    }
    if (n_failed) fprintf(stderr, "%zu of %zu tests failed\n", n_failed, n);
    return n_failed ? 1 : 0;
}

/* --- what only the shim can do ---------------------------------------------------------------- */

static NORETURN void skip(void) {
    longjmp(cm_end, CM_SKIPPED);
}

void shim_set(uint64_t seed, enum shim_copies copies) {
    (void)seed, (void)copies; /* the device has its own schedules */
}

void shim_allow_host_memory(bool is_allowed) {
    (void)is_allowed; /* the device reads what it can read */
}

void shim_plant(const char *name) {
    if (name) skip();
}

void shim_stats(const char *name, struct shim_stats *out) {
    (void)name, (void)out;
    skip();
}

void shim_stats_clear(void) {
}

void shim_ranks_begin(void) {
    skip(); /* kernels that wait for each other, on one device */
}

bool shim_ranks_run(void) {
    skip();
}

void shim_set_memory(uint64_t n_bytes) {
    (void)n_bytes;
    skip();
}

void shim_set_max_shared(uint32_t n_bytes) {
    (void)n_bytes;
    skip();
}

void shim_set_devices(uint32_t n) {
    (void)n;
    skip();
}

void shim_refuse_product(uint64_t nth) {
    (void)nth;
    skip();
}

void shim_set_peer_fault(enum shim_peer_fault fault) {
    (void)fault;
    skip();
}

void shim_set_peers(bool are_reached) {
    (void)are_reached;
    skip();
}

void shim_set_sm(uint32_t sm) {
    (void)sm;
    skip();
}

void shim_set_library(bool is_there) {
    (void)is_there;
    skip();
}

void shim_refuse_codes(bool are_refused) {
    (void)are_refused;
    skip();
}

void shim_refuse_row_scales(bool are_refused) {
    (void)are_refused;
    skip();
}

void shim_set_kernel_us(const char *name, uint32_t us) {
    (void)name, (void)us;
    skip();
}

void shim_set_overlap(bool is_always) {
    (void)is_always;
    skip();
}

void shim_calls(struct shim_calls *out) {
    (void)out;
    skip();
}

void shim_calls_clear(void) {
}

void shim_set_product_us(uint32_t us) {
    (void)us;
    skip();
}

void shim_fail_call(uint64_t n) {
    (void)n;
    skip();
}

void shim_fail_launch(uint64_t n) {
    (void)n;
    skip();
}
