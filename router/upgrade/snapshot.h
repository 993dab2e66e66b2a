/* router/upgrade/snapshot.h - the prefix index of a router as a file, for its successor.
 *
 * Without it a restarted router would send each conversation anywhere until it has seen it again.
 * The snapshot has, per worker, the blocks it holds, youngest first, and what was learned of it. A
 * worker's part is valid while the worker is the same process: it is used when a worker with the
 * same URL, model and generation is described (index_restore.h).
 *
 *      head      magic, version, scheme, time                                     checksum
 *      section   kind, bytes of meta, items, checksum | meta: JSON | items: u64 each
 *      section   ...
 *      end       kind 0, sections before it
 *
 * Blocks below a worker's device are the oldest: that order has both lists, and a router that
 * knows of one reads the same file. All numbers are little-endian. A reader skips unknown sections
 * and members, so that neighbouring versions work together. A damaged or truncated file, one of a
 * later format or of another scheme is rejected whole: the router starts with an empty index.
 *
 * Writing takes the registry's lock for SNAPSHOT_PIECE blocks at a time. Thread: control. */
#ifndef ROUTER_UPGRADE_SNAPSHOT_H
#define ROUTER_UPGRADE_SNAPSHOT_H

#include "router/registry/registry_state.h"
#include "router/routing/prefix_lru.h"

struct follow;

#define SNAPSHOT_PIECE     1024u /* blocks under one lock: some 0.1 ms */
#define SNAPSHOT_BYTES_MAX (UINT64_C(2) << 30)

/* --- writing ---------------------------------------------------------------------------------- */

struct snapshot_writer;

struct snapshot_source {
    struct registry *registry;
    const struct follow *follow; /* the event that each worker's index covers; NULL: unknown */
    uint64_t scheme;             /* hash scheme, equal for routers with comparable hashes */
};

/* Writes to `fd` from its current offset; the caller owns it. */
struct snapshot_writer *snapshot_writer_create(const struct snapshot_source *source, int fd);
void snapshot_writer_destroy(struct snapshot_writer *w); /* NULL is fine */

/* Writes one piece. ST_AGAIN: more is left; ST_OK: complete; else failed. */
MUST_USE enum status snapshot_writer_step(struct snapshot_writer *w, struct error *err);
uint64_t snapshot_writer_n_items(const struct snapshot_writer *w);

/* --- reading ---------------------------------------------------------------------------------- */

struct snapshot;

/* Takes `bytes` (of mem_alloc) on success. ST_INVALID: err has the reason. */
MUST_USE enum status snapshot_read(struct snapshot **out, char *bytes, size_t n, uint64_t scheme,
                                   struct error *err);
/* Reads a file from its beginning, at most SNAPSHOT_BYTES_MAX. */
MUST_USE enum status snapshot_read_fd(struct snapshot **out, int fd, uint64_t scheme,
                                      struct error *err);
void snapshot_destroy(struct snapshot *s); /* NULL is fine */

uint32_t snapshot_n_workers(const struct snapshot *s);
uint64_t snapshot_saved_wall_s(const struct snapshot *s);
const struct registry_memory *snapshot_worker(const struct snapshot *s, uint32_t i);
uint64_t snapshot_n_items(const struct snapshot *s, uint32_t i);

/* Copies items [from, from + max) of worker i, as far as they exist; returns how many. */
uint32_t snapshot_items(const struct snapshot *s, uint32_t i, uint64_t from, uint64_t *items,
                        uint32_t max);

#endif
