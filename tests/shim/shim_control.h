/* tests/shim/shim_control.h - how a test drives the shim.
 *
 * A kernel whose threads are badly synchronised is right under some schedules and wrong under
 * others, so a test runs it under several: seeds x {late, early} copies. A seed sets in which order
 * blocks, warps and lanes run and when a warp is withheld; 0 runs all in order. All of this is this
 * thread's, and what threads started later begin with. */
#ifndef TESTS_SHIM_SHIM_CONTROL_H
#define TESTS_SHIM_SHIM_CONTROL_H

#include "common/base/base.h"

#ifdef __cplusplus
extern "C" {
#endif

/* When an asynchronous copy to shared memory is done: both ends of what the hardware may do. Late
 * shows a wait that is missing, early shows a buffer that is refilled while it is still read. */
enum shim_copies { SHIM_COPIES_LATE, SHIM_COPIES_EARLY };

void shim_set(uint64_t seed, enum shim_copies copies);

/* What the kernels of this thread have done since shim_stats_clear. */
struct shim_stats {
    uint64_t n_launches, n_blocks;
    uint64_t n_meetings;       /* of a warp: shuffles, products, matrix loads, barriers of a warp */
    uint64_t n_matrix_phases;  /* eight rows of 16 bytes each: one pass over the banks at best */
    uint64_t n_bank_conflicts; /* passes more than that */
    uint64_t max_shared_bytes; /* of one block, SHARED and SHARED_DYNAMIC together */
};

/* The sum over the kernels whose name, as LAUNCH was given it, contains `name`. */
void shim_stats(const char *name, struct shim_stats *out);
void shim_stats_clear(void);

/* Switches one planted bug on, in all threads; NULL switches it off. A kernel writes
 * PLANTED(no_mask) where it can be made wrong, and its test shows that the wrong one is caught.
 * `name` must outlive the plant. */
void shim_plant(const char *name);

/* Kernels on a NULL stream may be handed any memory, the stack too: for tests of the shim alone.
 * Else a launch whose argument points to memory that a GPU cannot read ends the process. */
void shim_allow_host_memory(bool is_allowed);

/* What a block of the pretended device may have: 232,448 bytes unless set (an H100's). This
 * thread. */
void shim_set_max_shared(uint32_t n_bytes);

/* Kernels of several ranks that wait for each other (LAUNCH_TOGETHER) and have no stream are kept
 * from shim_ranks_begin on. shim_ranks_run runs them: a rank's one after the other, the ranks
 * interleaved as the seed has it. false: a kernel has given up waiting. */
void shim_ranks_begin(void);
bool shim_ranks_run(void);

/* --- the devices of tests/shim/gpu_shim.c, in all threads */

void shim_set_devices(uint32_t n);     /* 1 unless set */
void shim_set_peers(bool are_reached); /* a device's memory by the others: they are, unless set */
/* What becomes of the memory that devices seem to reach. */
enum shim_peer_fault {
    SHIM_PEERS_SOUND,
    SHIM_PEERS_LOST,  /* words stored for other ranks never arrive, */
    SHIM_PEERS_LATE,  /* or a minute later by the device's clock */
    SHIM_PEERS_STALE, /* what was read once is read again, whatever was written since */
};
void shim_set_peer_fault(enum shim_peer_fault fault);
void shim_set_sm(uint32_t sm);          /* compute capability: 90 unless set */
void shim_set_memory(uint64_t n_bytes); /* of devices opened from now on: 256 MiB unless set */
/* Whether gemm.h finds a library of products, in what is opened from now on: it does unless set. */
void shim_set_library(bool is_there);
/* The library refuses, or takes again, products of codes in service. */
void shim_refuse_codes(bool are_refused);
/* It has no algorithm for scales of rows: what is tuned from now on. */
void shim_refuse_row_scales(bool are_refused);
/* On that clock, a kernel whose name, as LAUNCH was given it, begins so takes so many microseconds;
 * NULL: none does. */
void shim_set_kernel_us(const char *name, uint32_t us);
/* The nth product from now on is refused by the library, in any thread; 0: none is. */
void shim_refuse_product(uint64_t nth);
/* The device's clock, of devices opened from now on: a kernel or a copy takes 10 us, a product of
 * gemm.h so many. 0, unless set: the host's time passes, which is no measure of speed. */
void shim_set_product_us(uint32_t us);
/* Kernels that LAUNCH puts behind another kernel may begin before that has ended (from sm_90 on):
 * under a seed one of eight does, after this all. */
void shim_set_overlap(bool is_always);
/* What the host has put on streams, in calls, since shim_calls_clear: all threads. */
struct shim_calls {
    uint64_t n_kernels, n_products, n_copies, n_events, n_graphs;
    uint64_t n_nodes; /* of the graphs: kernels, products and copies */
};
void shim_calls(struct shim_calls *out);
void shim_calls_clear(void);
/* The nth kernel from now on, counted as they run, fails and its device with it; 0: none does. */
void shim_fail_launch(uint64_t nth);
/* The nth call from now on that opens, allocates or ends a recording is refused; 0: none is. */
void shim_fail_call(uint64_t nth);

#ifdef __cplusplus
}
#endif
#endif
