/* tests/shim/lanes.h - the 32 lanes of a warp, and what an instruction does to all of them.
 *
 * A lane that comes to an instruction which a warp executes together leaves a note of what it
 * brings and where it wants the result. When all 32 have come, lanes_meet does what PTX defines.
 * Pure. */
#ifndef TESTS_SHIM_LANES_H
#define TESTS_SHIM_LANES_H

#include "tests/shim/block.h"

enum { WARP = 32 };

/* What the 32 lanes of a warp do together. */
enum meeting { SYNC_WARP, SHUFFLE, BALLOT, MATRIX, MATRIX_TRANSPOSED, PRODUCT, PRODUCT_S8 };

enum place { AT_START, AT_BLOCK_BARRIER, AT_MEETING, AT_PAUSE, AT_WAIT, AT_END };

/* A lane's note of what it waits for. */
struct lane {
    enum place place;
    bool has_waited; /* for the kernel before */
    int line;
    enum meeting meeting;
    uint32_t bits, from; /* shuffle, ballot: what it gives, and whose it wants */
    uint32_t result;
    uint32_t *r; /* load_matrix4: where to, from where */
    const void *row;
    float *c; /* multiply_add */
    int32_t *c_s8;
    const uint32_t *a;
    uint32_t b0, b1;
    struct shim_size index;
};

/* All 32 notes are of the same meeting. */
void lanes_meet(struct lane warp[WARP]);
/* How many passes over the banks the four phases of a matrix load take beyond one each. */
uint32_t lanes_conflicts(const struct lane warp[WARP]);

#endif
