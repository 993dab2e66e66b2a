/* common/net/file_watch.h - a callback when one of a few files has changed.
 *
 * Calls stat(2) once a second: it follows links, so that a renamed file and a mounted Kubernetes
 * Secret or ConfigMap, which is a link that is replaced, are noticed alike, however they were
 * changed. A change is reported when all files have looked the same twice, so that a half-written
 * file is not read. Thread: the loop's. */
#ifndef COMMON_NET_FILE_WATCH_H
#define COMMON_NET_FILE_WATCH_H

#include <stddef.h>

#define FILE_WATCH_MAX 8 /* files of one watch */

struct file_watch;
struct loop;

typedef void file_watch_fn(void *arg);

/* Ignores paths that are NULL or ""; copies the others. Changes count from now on. While a file is
 * missing nothing is reported. */
struct file_watch *file_watch_create(struct loop *loop, const char *const *paths, size_t n,
                                     file_watch_fn *fn, void *arg);
void file_watch_destroy(struct file_watch *w); /* NULL is fine; not from its own call */

/* Before they are read for another reason: as they are now is known. NULL is fine. */
void file_watch_know(struct file_watch *w);

#endif
