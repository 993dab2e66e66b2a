/* router/upgrade/state_dir.h - the folder in which a router keeps what should outlive it (--state-dir).
 *
 *      prefix-hash-seed   made at the first start unless --prefix-hash-seed is given
 *      index.snapshot     written at the end, read at the next start
 *
 * Both are for this user alone: who knows the seed can find prompts that collide. One router, one
 * folder: a second one would overwrite what the first has written. Blocks: for start and end. */
#ifndef ROUTER_UPGRADE_STATE_DIR_H
#define ROUTER_UPGRADE_STATE_DIR_H

#include "router/upgrade/snapshot.h"

/* Reads the seed, or makes one. ST_INVALID: the file does not hold one; ST_IO. */
MUST_USE enum status state_dir_seed(const char *dir, uint64_t *seed, struct error *err);

/* Writes the snapshot, complete or not at all. */
MUST_USE enum status state_dir_save(const char *dir, const struct snapshot_source *source,
                                    uint64_t *n_blocks, struct error *err);

/* Reads it, and removes it: after a crash it would tell of times long past. ST_NOT_FOUND: there is
 * none. */
MUST_USE enum status state_dir_load(const char *dir, uint64_t scheme, struct snapshot **out,
                                    struct error *err);

#endif
