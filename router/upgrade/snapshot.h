/* router/upgrade/snapshot.h - what a router knows of its workers' caches, as bytes: for its successor.
 *
 * A restarted router would send every conversation anywhere until it had seen it again. So the prefix
 * index outlives it: per worker the blocks it holds, youngest first, and what was learned of it. They
 * are true as long as the worker is the same process, so each worker's part is used when that worker
 * has described itself under the same URL, model and generation, and not otherwise (index_restore.h).
 *
 *      head      magic, version, scheme, time                                     checksum
 *      section   kind, bytes of meta, items, checksum | meta: JSON | items: u64 each
 *      section   ...
 *      end       kind 0, sections before it
 *
 * All numbers are little-endian. A reader passes over sections and members that it does not know, so
 * that neighbouring versions understand each other; a file that is damaged, cut short, of a later format
 * or of another scheme is refused whole, with a sentence, and nothing is lost but warmth.
 *
 * Writing takes the registry's lock for SNAPSHOT_PIECE blocks at a time. Thread: control. */
#ifndef ROUTER_UPGRADE_SNAPSHOT_H
#define ROUTER_UPGRADE_SNAPSHOT_H

#include "router/registry/registry_state.h"
#include "router/routing/prefix_lru.h"

struct follow;

#define SNAPSHOT_PIECE     1024u /* blocks under one lock: some 0.1 ms */
#define SNAPSHOT_BYTES_MAX (UINT64_C(2) << 30)

/* --- writing ----------------------------------------------------------------------------------- */

struct snapshot_writer;

struct snapshot_source {
    struct registry *registry;
    const struct follow
        *follow;     /* how far each worker's events are in the index; NULL: not at all */
    uint64_t scheme; /* what must be equal for two routers' hashes to mean the same */
};

/* Writes to `fd`, which stays the caller's, from where it is. */
struct snapshot_writer *snapshot_writer_create(const struct snapshot_source *source, int fd);
void snapshot_writer_destroy(struct snapshot_writer *w); /* NULL is fine */

/* A piece more. ST_AGAIN: there is more to write; ST_OK: all is written; else it has failed. */
MUST_USE enum status snapshot_writer_step(struct snapshot_writer *w, struct error *err);
uint64_t snapshot_writer_n_items(const struct snapshot_writer *w);

/* --- reading ----------------------------------------------------------------------------------- */

struct snapshot;

/* Takes `bytes` (of mem_alloc) when it succeeds. ST_INVALID says what is wrong. */
MUST_USE enum status snapshot_read(struct snapshot **out, char *bytes, size_t n, uint64_t scheme,
                                   struct error *err);
/* From a file's beginning; at most SNAPSHOT_BYTES_MAX. */
MUST_USE enum status snapshot_read_fd(struct snapshot **out, int fd, uint64_t scheme,
                                      struct error *err);
void snapshot_destroy(struct snapshot *s); /* NULL is fine */

uint32_t snapshot_n_workers(const struct snapshot *s);
uint64_t snapshot_saved_wall_s(const struct snapshot *s);
const struct registry_memory *snapshot_worker(const struct snapshot *s, uint32_t i);
uint64_t snapshot_n_items(const struct snapshot *s, uint32_t i);

/* Copies items [from, from + max) of worker i, as far as there are; returns how many. */
uint32_t snapshot_items(const struct snapshot *s, uint32_t i, uint64_t from, uint64_t *items,
                        uint32_t max);

#endif
