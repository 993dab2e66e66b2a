/* common/telemetry/line_sink.h - lines written to a descriptor by a thread of their own.
 *
 *      put ─ append ─▶ filling ─ swap ─▶ flushing ─ write(2) ─▶ fd
 *      any thread           (one short lock)      the sink's thread
 *
 * A caller that puts a line never waits for the disk or for a reader: when the buffer is full the
 * line is dropped and counted. The thread is woken by a first line only and then waits a moment for
 * more, so that a busy program pays one wake-up and one write for many lines. Writes end with a
 * line and, unless a line is longer, are no larger than a pipe takes in one piece.
 *
 * A file that ends amid a line, because the disk was full or the machine went down, gets a line
 * break first: what is torn spoils no other line.
 *
 * LIMITS. Lines of the last milliseconds are lost in a crash. */
#ifndef COMMON_TELEMETRY_LINE_SINK_H
#define COMMON_TELEMETRY_LINE_SINK_H

#include "common/base/buf.h"

struct line_sink;

/* `owns_fd`: it is closed at the end. NULL when there can be no thread; then fd stays the
 * caller's. */
struct line_sink *line_sink_create(int fd, bool owns_fd, size_t buffer_bytes);

/* Writes what is buffered, unless that takes longer than a second. NULL is fine. */
void line_sink_destroy(struct line_sink *s);

/* `line` ends with \n. False: dropped. Never blocks. */
bool line_sink_put(struct line_sink *s, struct str line);

/* What is put from now on goes to `fd`, which it takes, and so may what was put just before; the
 * old one is closed if it is owned. */
void line_sink_reopen(struct line_sink *s, int fd);

/* For want of room here, or where they are written: a full disk. */
uint64_t line_sink_n_dropped(struct line_sink *s);

#endif
