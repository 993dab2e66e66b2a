/* tests/unit/cuda/device/fake_cuda.h - the CUDA runtime, cuBLASLt and NCCL as far as this project
 * calls them, on host memory: what gpu.c, gemm.c and comm.c do is seen where there is no GPU.
 *
 * Work on a stream is done during the call, unless it is recorded. Everything below may be set by a
 * test before the calls that it wants to see. */
#ifndef TESTS_UNIT_CUDA_DEVICE_FAKE_CUDA_H
#define TESTS_UNIT_CUDA_DEVICE_FAKE_CUDA_H

#include "common/base/base.h"

struct fake_cuda {
    /* what there is */
    int n_devices, count_error; /* error: what cudaGetDeviceCount answers */
    int driver;                 /* 0: no driver */
    int open_error;
    bool has_no_peers;      /* no device reaches another's memory */
    uint32_t peers_enabled; /* bits: that the current device reaches */
    uint64_t memory_bytes;
    /* what goes wrong */
    int copy_error;   /* of the next copy */
    int launch_error; /* what the next look at the last error finds */
    int batch_error;  /* of every copy of many */
    int capture_error;
    const void *foreign_kernel; /* has no code for the card */
    int ptx_version;            /* of kernels: what they were compiled for, 90 */
    /* what was done */
    uint32_t n_copies, n_batches, n_batched, n_graph_launches;
    uint64_t allocated_bytes;
    int allocated_on;  /* device of the last allocation */
    uint32_t n_loaded; /* kernels asked for by name */
    double clock_us;   /* the device's; only products of matrices take time */
    /* cuBLASLt and NCCL */
    bool has_cublaslt, has_nccl;
    size_t cublaslt_version;       /* 130100 unless set */
    int sm;                        /* the device's compute capability: 90 unless set */
    bool has_no_scale_modes;       /* their attributes are unknown */
    int product_error;             /* of every product */
    uint32_t refuse_set;           /* the nth attribute set from now on is refused; 0: none is */
    uint32_t n_refusals;           /* so many of the next products fail */
    uint32_t refused_algos;        /* bits: fail when they are run, from now on */
    bool is_fickle;                /* every algorithm is: see the table in fake_libraries.c */
    uint32_t n_products;           /* so far */
    uint32_t last_algo;            /* of the last one: see the table in fake_libraries.c */
    uint32_t preferred_reductions; /* from the caller's preference */
    uint64_t preferred_workspace;
    int n_nccl_ranks; /* communicators open now */
};
extern struct fake_cuda fake_cuda;

void fake_cuda_reset(void); /* one device, all well */
/* In the thread that calls it, NCCL is not there. */
void fake_nccl_hide(void);
/* Events that are recorded from now on do not come until fake_cuda_let_go. */
void fake_cuda_hold(void);
void fake_cuda_let_go(void);

#endif
