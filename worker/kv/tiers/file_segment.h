/* worker/kv/tiers/file_segment.h - one file of the file tier: units one after the other, and when
 * it is full their summary.
 *
 *      seg-<owner>-<n>.kv
 *      | unit 0 | unit 1 | ... | rows: key, place, hits | zeros | trailer |
 *        each at a multiple of the stride, whole pages      ^ the file's last 64 bytes
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

struct segment_row {
    struct unit_key key;
    uint32_t place, hits;
};

#define SEGMENT_TRAILER_BYTES 64
#define SEGMENT_MAX_ROWS      (1u << 20) /* a summary may not ask for more memory than these */

/* Bytes of the summary of n units, whole pages. */
size_t segment_summary_bytes(uint32_t n);
/* How many units of a stride fit, with their summary. */
uint32_t segment_places(uint64_t segment_bytes, size_t stride);

/* Puts zeros and trailer behind the n rows that `summary` begins with; it has
 * segment_summary_bytes(n) and belongs at n * stride, the file's end. */
void segment_finish(void *summary, uint32_t n, size_t stride);

/* The rows of a file of `bytes`, *rows the caller's to mem_free. ST_NOT_FOUND: it has no summary,
 * or one that is not as it was written or of another stride; ST_IO, ST_NOMEM. */
MUST_USE enum status segment_read(const struct file_hook *hook, int fd, uint64_t bytes,
                                  size_t stride, struct segment_row **rows, uint32_t *n);

/* As segment_read of a file without summary: the units from the front, to the first header that
 * fails. At most `limit`. */
MUST_USE enum status segment_walk(const struct file_hook *hook, int fd,
                                  const struct unit_codec *codec, size_t stride, uint32_t limit,
                                  struct segment_row **rows, uint32_t *n);

#endif
