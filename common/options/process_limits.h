/* common/options/process_limits.h - how much this process may take: memory, descriptors.
 *
 * Memory is the least of what the machine has and of what the limits of this process's control
 * group and of that group's parents allow: a container's 1 GiB on a machine of 256 is 1 GiB. */
#ifndef COMMON_OPTIONS_PROCESS_LIMITS_H
#define COMMON_OPTIONS_PROCESS_LIMITS_H

#include "common/base/base.h"

/* In bytes. Files are looked for under `root`: "" but in tests. */
uint64_t process_memory_limit(const char *root);

/* Raises the limit of open files as far as it may be raised; returns what it is then. */
uint32_t process_raise_descriptors(void);
uint32_t process_descriptors(void); /* the limit */

#endif
