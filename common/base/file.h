/* common/base/file.h - a whole small file in memory. Blocks: for start-up and text threads. */
#ifndef COMMON_BASE_FILE_H
#define COMMON_BASE_FILE_H

#include "common/base/base.h"
#include "common/base/status.h"

/* Reads a regular file of at most max_bytes. *out is terminated by a NUL that *n does not count,
 * and is the caller's to mem_free. ST_NOT_FOUND, ST_TOO_LARGE, ST_IO, ST_NOMEM. */
MUST_USE enum status file_read(const char *path, size_t max_bytes, char **out, size_t *n,
                               struct error *err);

bool file_exists(const char *path); /* and is a regular file */

#endif
