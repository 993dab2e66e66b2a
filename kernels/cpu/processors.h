/* kernels/cpu/processors.h - how many processors this process may keep busy.
 *
 * The least of what its affinity mask allows and of the quotas of its control group and of that
 * group's parents, in whole processors, rounded up: a quota of 1.5 is worth a second thread for
 * half of the time. Both may change while the process runs, so the answer is for now. Costs some
 * file reads, about 20 us. */
#ifndef KERNELS_CPU_PROCESSORS_H
#define KERNELS_CPU_PROCESSORS_H

#include "common/base/base.h"

/* At least 1. Files are looked for under `root`: "" but in tests. */
uint32_t cpu_processors(const char *root);

#endif
