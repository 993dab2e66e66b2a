/* worker/kv/tiers/file_segment.h - one file of the file tier: units one after the other, and when
 * it is full their summary.
 *
 *      seg-<owner>-<n>.kv
 *      | unit unit unit 0 | unit unit 0 | ... | rows: key, place, hits | 0 | trailer |
 *        ^ a write, at a page; its units at steps of 64 bytes               ^ the last 64 bytes
 *
 * One process writes a segment, front to back, once. A summary leads to places, it proves nothing:
 * units prove themselves. A segment without one (its writer was killed) is walked by headers.
 * Nothing here but the file has a state; any thread. */
#ifndef WORKER_KV_TIERS_FILE_SEGMENT_H
#define WORKER_KV_TIERS_FILE_SEGMENT_H

#include "common/base/status.h"
#include "worker/kv/tiers/file_io.h"
#include "worker/kv/tiers/unit.h"

struct segment_id {
    uint64_t owner; /* a random number of the process that wrote it */
    uint32_t n;     /* its n-th */
};

#define SEGMENT_NAME_MAX 40

void segment_name(struct segment_id id, char out[SEGMENT_NAME_MAX]);
bool segment_name_parse(const char *name, struct segment_id *out); /* exactly as segment_name */

#define SEGMENT_STEP 64

struct segment_row {
    struct unit_key key;
    uint32_t place; /* of the unit, in steps of SEGMENT_STEP */
    uint32_t hits;
};

#define SEGMENT_TRAILER_BYTES 64

/* Bytes of the summary of n units, whole pages. */
size_t segment_summary_bytes(uint32_t n);

/* Puts zeros and trailer behind the n rows that `summary` begins with; it has
 * segment_summary_bytes(n) and belongs at `at`, a page behind the last unit, the file's end. */
void segment_finish(void *summary, uint32_t n, uint64_t at);

/* The rows of a file of `bytes`, *rows the caller's to mem_free. ST_NOT_FOUND: it has no summary,
 * or one that is not as it was written; ST_IO, ST_NOMEM. */
MUST_USE enum status segment_read(const struct file_hook *hook, int fd, uint64_t bytes,
                                  struct segment_row **rows, uint32_t *n);

/* As segment_read of a file without summary: the units from the front, to the first header that
 * fails where a write could have begun. */
MUST_USE enum status segment_walk(const struct file_hook *hook, int fd, uint64_t bytes,
                                  const struct unit_codec *codec, struct segment_row **rows,
                                  uint32_t *n);

#endif
