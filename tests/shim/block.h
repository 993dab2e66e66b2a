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
};

/* What is wrong with the launch, as the driver would find, or NULL. */
const char *shim_launch_fault(const struct shim_launch *launch);
/* All blocks of it, now. Aborts with a sentence when the kernel does what no kernel may. */
void shim_run(const struct shim_launch *launch);

#ifdef __cplusplus
}
#endif
#endif
