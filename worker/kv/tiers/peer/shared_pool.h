/* worker/kv/tiers/peer/shared_pool.h - host memory for KV that other processes of the host can map
 * and read, and never write.
 *
 *      | head: sizes | generations[n_blocks] | padding | blocks[n_blocks] |     a memfd
 *
 * The owner maps it to write, then seals it: no later map of it can be written to, its size is for
 * good, and so are the seals (F_SEAL_FUTURE_WRITE leaves the owner the map that it has). A reader
 * gets the descriptor and looks before it maps: memory that can shrink, or lack a page, ends who
 * reads it by a SIGBUS. So it takes a sealed file of tmpfs alone, with a size that fits what the
 * head has, and keeps the sizes, for the head is the owner's to write. After that all that the
 * owner does, and its end, changes at most the bytes that are read: each block is copied under its
 * number (tiers/generation.h), and verified.
 *
 * A reader's map costs address space, bounded by SHARED_POOL_MAX, and pages that are there anyway;
 * it keeps them there after the owner's end until shared_pool_close. */
#ifndef WORKER_KV_TIERS_PEER_SHARED_POOL_H
#define WORKER_KV_TIERS_PEER_SHARED_POOL_H

#include "common/base/status.h"
#include "worker/kv/tiers/generation.h"

#define SHARED_POOL_MAX (UINT64_C(4) << 40) /* bytes of one */

struct shared_pool {
    void *map; /* NULL: none */
    uint64_t map_bytes;
    struct generation *generations; /* (n_blocks) */
    uint8_t *blocks;                /* (n_blocks, block_bytes) */
    uint64_t block_bytes;
    uint32_t n_blocks;
    int fd; /* of the owner; else -1 */
};

/* Zeros, as much as there is memory for when they are touched. */
MUST_USE enum status shared_pool_create(struct shared_pool *out, uint32_t n_blocks,
                                        uint64_t block_bytes, struct error *err);

/* To read. `fd` stays the caller's, and need not stay open. ST_INVALID: it is no such memory, or
 * its blocks have another size; err has which. */
MUST_USE enum status shared_pool_open(struct shared_pool *out, int fd, uint64_t block_bytes,
                                      struct error *err);

void shared_pool_close(struct shared_pool *pool); /* zeroed, or closed, is fine */

#endif
