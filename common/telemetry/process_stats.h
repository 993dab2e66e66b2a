/* common/telemetry/process_stats.h - the kernel's figures of this process, under the names of
 * Prometheus' own clients, so that generic dashboards and rules apply.
 *
 * Any thread; reads files below /proc, for tens of microseconds. Kernels before 6.2 do not count
 * open descriptors: there they are counted one by one, a microsecond each. */
#ifndef COMMON_TELEMETRY_PROCESS_STATS_H
#define COMMON_TELEMETRY_PROCESS_STATS_H

#include "common/base/buf.h"

struct process_stats { /* negative: not known */
    double cpu_s, start_time_s;
    double open_fds, max_fds;
    double resident_bytes, virtual_bytes;
};

/* kind, name, help, value of `s` */
#define PROCESS_METRICS(X)                                                                         \
    X(COUNTER, process_cpu_seconds_total, "Processor time of the process, user and system.",       \
      s->cpu_s)                                                                                    \
    X(GAUGE, process_open_fds, "Open file descriptors; each connection is one.", s->open_fds)      \
    X(GAUGE, process_max_fds, "Limit of open file descriptors.", s->max_fds)                       \
    X(GAUGE, process_resident_memory_bytes, "Resident memory of the process.", s->resident_bytes)  \
    X(GAUGE, process_virtual_memory_bytes, "Virtual memory of the process.", s->virtual_bytes)     \
    X(GAUGE, process_start_time_seconds, "Start of the process, in seconds since 1970.",           \
      s->start_time_s)

void process_stats_read(struct process_stats *out);

/* Appends them to a page of metrics; what is not known is left out. */
void process_stats_write(struct buf *out);

#endif
