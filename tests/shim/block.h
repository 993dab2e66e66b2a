/* tests/shim/block.h - one launch of a kernel on the shim, and how it is run.
 *
 * shim.h packs a launch, gpu_shim.c keeps it on a stream, block.c runs it. */
#ifndef TESTS_SHIM_BLOCK_H
#define TESTS_SHIM_BLOCK_H

#include "common/base/base.h"

#ifdef __cplusplus
extern "C" {
#endif

struct shim_size {
    unsigned x, y, z;
};

#define SHIM_MAX_ARGS 4096u /* bytes of a kernel's arguments, as on a GPU */

struct shim_launch {
    const char *name;                                     /* as written in LAUNCH */
    void (*kernel)(void);                                 /* its address, whatever its type */
    void (*call)(void (*kernel)(void), const void *args); /* one thread's run of it */
    struct shim_size grid, block;
    uint64_t shared_bytes;
    const void *args;
    uint64_t args_bytes;
    bool has_padding; /* the arguments: in some of their words half is whatever lay there */
    bool waits;       /* every thread calls simt_wait_for_primary */
    bool is_early;    /* may begin before what is before it on the stream has ended */
};

/* What a block that runs ahead of its primary does not see: see overlap.c. */
struct shim_veil;

/* What is wrong with the launch, as the driver would find, or NULL. */
const char *shim_launch_fault(const struct shim_launch *launch);
/* All blocks of it, now. Aborts with a sentence when the kernel does what no kernel may; false: it
 * has given up (simt_give_up). */
bool shim_run(const struct shim_launch *launch);
/* The same, each block up to its wait under the veil. */
bool shim_run_veiled(const struct shim_launch *launch, struct shim_veil *veil);

/* --- launches that run at the same time: gang.c. This thread has as many places for them as there
 * may be ranks, and runs them by turns. */
struct shim;
#define SHIM_MAX_RANKS 16u

struct shim *shim_member(uint32_t i);
/* `order`: of its blocks; the same for those that wait for each other, or they never meet. */
void shim_member_begin(struct shim *member, const struct shim_launch *launch, uint64_t order);
/* A turn of one warp. false: the launch has ended. */
bool shim_member_step(struct shim *member);
bool shim_member_pauses(const struct shim *member); /* it did nothing but wait in its last turn */
bool shim_member_has_given_up(const struct shim *member);

#ifdef __cplusplus
}
#endif
#endif
