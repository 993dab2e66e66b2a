/* kernels/host/host_memory.h - how much memory this process may still take.
 *
 * The least of what the machine has available and of what the limits of its control group and of
 * that group's parents leave: a container's 2 GiB on a machine of 256 are 2 GiB, and who takes more
 * is killed. Cached files that have not been looked at lately count as free, as for the kubelet. */
#ifndef KERNELS_HOST_HOST_MEMORY_H
#define KERNELS_HOST_HOST_MEMORY_H

#include "common/base/base.h"

/* In bytes. Files are looked for under `root`: "" but in tests. */
uint64_t host_memory_available(const char *root);

/* "/a/b" of "0::/a/b" in /proc/self/cgroup, the group of version 2; "" is none, or the root. */
void host_control_group(const char *root, char *group, size_t size);

#endif
