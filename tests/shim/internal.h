/* tests/shim/internal.h - what stands under shim.h, and what the files of the shim share. */
#ifndef TESTS_SHIM_INTERNAL_H
#define TESTS_SHIM_INTERNAL_H

#include "kernels/cuda/device/gpu.h"
#include "tests/shim/block.h"

#ifdef __cplusplus
extern "C" {
#endif

/* CUDA's, of the thread that runs. */
extern __thread struct shim_size threadIdx, blockIdx, blockDim, gridDim;

/* --- what a thread of a kernel calls; `line` is where it does. The first seven meet: they return
 * when all of the block, or of the warp, have come. */
void shim_sync_block(int line);
void shim_sync_warp(uint32_t mask, int line);
uint32_t shim_shuffle(uint32_t mask, uint32_t bits, uint32_t from_lane, int line);
uint32_t shim_ballot(uint32_t mask, bool vote, int line);
void shim_load_matrix4(uint32_t r[4], const void *row, bool is_transposed, int line);
void shim_multiply_add(float c[4], const uint32_t a[4], uint32_t b0, uint32_t b1, int line);
void shim_multiply_add_s8(int32_t c[4], const uint32_t a[4], uint32_t b0, uint32_t b1, int line);
/* The warp waits for what another launch does. */
void shim_pause(int line);
uint64_t shim_clock_ns(void); /* a pause takes a millisecond, all else nothing */
void shim_give_up(void);
/* What kernels of several ranks exchange, when shim_set_peer_fault has spoilt it: gang.c. */
extern volatile int shim_peer_fault;
uint32_t shim_faulty_load(const uint32_t *p);
void shim_faulty_store(uint32_t *p, uint32_t x);
const void *shim_faulty_line(const void *p); /* 16 bytes */
void shim_copy(void *shared, const void *global, int line);
void shim_copy_commit(void);
void shim_copy_wait(uint32_t n_left);
void shim_wait_for_primary(int line);
void shim_launch_dependents(int line);
/* The block's memory for the array that `key` is the name of; the same for all its threads. */
void *shim_shared(const void *key, uint64_t n_bytes);
void *shim_shared_dynamic(void);

/* --- what a launcher calls */
int shim_allow_shared(void (*kernel)(void), uint64_t n_bytes);
/* Puts the launch on the stream, args copied; a NULL stream runs it at once. */
void shim_launch_on(struct gpu_stream *s, const struct shim_launch *launch);
/* The same of a kernel that waits for the same one of `size` ranks: on streams they begin when all
 * have come, with a NULL stream when shim_ranks_run is called. */
void shim_launch_together(struct gpu_stream *s, const struct shim_launch *launch, const void *place,
                          uint32_t rank, uint32_t size);
extern const char *volatile shim_planted_name;

/* --- what block.c asks of overlap.c: a block begins, and all its threads have come to the wait */
void shim_veil_cover(struct shim_veil *veil);
/* What the block has done meanwhile and must not; NULL: nothing. */
const char *shim_veil_lift(struct shim_veil *veil);

/* --- what the device asks of block.c */
uint32_t shim_max_shared(void);
/* Ends the process with a sentence about the thread that runs. */
NORETURN void shim_fault_here(int line, const char *what);
uint64_t shim_chance(void);  /* the next number of this thread's schedule */
bool shim_is_shuffled(void); /* is there a seed? */

#ifdef __cplusplus
}
#endif
#endif
