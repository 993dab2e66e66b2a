/* worker/kv/tiers/file.h - the file tier: KV blocks in a folder of this machine.
 *
 *      DIR/evict.lock                                 taken by who removes, adopts or counts
 *      DIR/held.lock                                  bytes of it locked: segments with held units
 *      DIR/<fingerprint, 16 hex>/owner-<id>.lock      held (flock) while its process lives
 *      DIR/<fingerprint, 16 hex>/seg-<id>-<n>.kv      64 MiB, written once, front to back
 *
 * A log: units are appended, runs of a chain contiguously, and the coldest whole segment goes when
 * the folder is full; units of it that were loaded are appended again, a quarter of it at most, and
 * those that clients hold, half of it at most: while no more than max_held are held, all stay.
 * Where units lie is known from an index in memory, rebuilt at start from the segments' summaries.
 * Nothing is written in place and nothing needs fsync to be right: after a crash a unit is whole or
 * fails to open. A unit is in the index after its write returned.
 *
 * Workers of one host share a folder without a daemon. Each writes segments of its own; those of
 * others are read once they are sealed, found by a scan every few seconds; those of a process that
 * died belong to all. One budget of bytes holds for the folder, whatever models are in it; models
 * that no process runs go first.
 *
 *      engine            io threads                       keeper
 *      submit ─▶ queue ─▶ loads: pread, unit_open          scan, adopt, evict over budget
 *      mailbox ◀───────── one store at a time: append, seal, evict for room
 *
 * A failing disk is never a failing request: reads that fail are units that are absent, writes
 * pause (1 s after ENOSPC or ENOENT, 30 s after EROFS, EDQUOT and others, for good after three EIO
 * in a minute), and jobs meanwhile are TIER_BUSY.
 *
 * LIMITS. Two processes that write at once exceed the budget by what both write between two scans.
 * A worker stopped (not killed) while it holds evict.lock keeps others from writing, not from
 * reading. */
#ifndef WORKER_KV_TIERS_FILE_H
#define WORKER_KV_TIERS_FILE_H

#include "common/telemetry/log.h"
#include "worker/kv/tiers/file_io.h"
#include "worker/kv/tiers/tier.h"

#define TIER_FILE_MAX_THREADS 16

struct tier_file_config {
    const char *dir;                       /* created, 0700, if its parent is there */
    uint64_t max_bytes;                    /* of the whole folder; less where the disk has less */
    const struct unit_codec_config *codec; /* read by tier_file_open alone */
    uint32_t n_threads;                    /* 2 to TIER_FILE_MAX_THREADS; 0: 4 */
    uint32_t max_jobs;                     /* waiting; 0: 256 */
    bool is_buffered;                      /* through the page cache, not O_DIRECT */
    struct log *log;                       /* may be NULL */
    /* 0: 64 MiB, or an eighth of the budget; and 3 s. */
    uint64_t segment_bytes;
    uint64_t scan_us;
    uint64_t room_bytes;          /* what the disk has for the folder; 0: asked */
    const struct file_hook *hook; /* NULL outside tests */
};

/* Makes the folder if it is not there; for who has long work to do before tier_file_open.
 * ST_IO: the error has what to do. */
MUST_USE enum status tier_file_make_dir(const char *dir, struct error *err);

/* Reads all summaries: a second for two million units. ST_INVALID: max_bytes below two segments, or
 * a segment below one unit; ST_IO: the folder is not to be made, or its own folder is a link or
 * another user's. A folder that can be read and not written is fine. */
MUST_USE enum status tier_file_open(struct tier **out, const struct tier_file_config *c,
                                    struct error *err);

/* Asserts the invariants of index and segments; O(units). For tests. */
void tier_file_check(struct tier *t);

#endif
