/* router/upgrade/state_dir.h - the folder of state that outlives a router (--state-dir).
 *
 *      prefix-hash-seed   created at the first start unless --prefix-hash-seed is given
 *      index.snapshot     written at the end, read at the next start
 *
 * Both are readable by this user alone: the seed allows to construct prompts whose hashes collide.
 * One folder per router: a second router would overwrite the first one's state. Blocks: for start
 * and end. */
#ifndef ROUTER_UPGRADE_STATE_DIR_H
#define ROUTER_UPGRADE_STATE_DIR_H

#include "router/upgrade/snapshot.h"

/* Reads the seed, or creates one. ST_INVALID: the file holds none; ST_IO. */
MUST_USE enum status state_dir_seed(const char *dir, uint64_t *seed, struct error *err);

/* Writes the snapshot atomically. */
MUST_USE enum status state_dir_save(const char *dir, const struct snapshot_source *source,
                                    uint64_t *n_blocks, struct error *err);

/* Reads and removes it: after a crash it would be out of date. ST_NOT_FOUND: there is none. */
MUST_USE enum status state_dir_load(const char *dir, uint64_t scheme, struct snapshot **out,
                                    struct error *err);

#endif
