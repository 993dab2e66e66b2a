/* kernels/cpu/processors.c - see processors.h. Control groups of version 2, and of version 1 where
 * the container sees its own group as the root, as container runtimes arrange it. */
#include "kernels/cpu/processors.h"

#include <sched.h>
#include <stdio.h>
#include <string.h>

#include "kernels/host/host_memory.h"

#define MAX_PATH 1024

/* Two numbers from a file, or from two; false when they are absent or mean "no limit". */
static bool read_quota(const char *path, const char *period_path, long long *quota,
                       long long *period) {
    FILE *f = fopen(path, "re");
    int n = 0;

    if (!f) return false;
    n = fscanf(f, "%lld %lld", quota, period); /* "max 100000" or "150000 100000" */
    fclose(f);
    if (period_path && n == 1 && (f = fopen(period_path, "re"))) {
        n += fscanf(f, "%lld", period) == 1;
        fclose(f);
    }
    return n == 2 && *quota > 0 && *period > 0;
}

static uint32_t least(uint32_t n, long long quota, long long period) {
    long long whole = quota / period + (quota % period != 0);

    return whole < (long long)n ? (uint32_t)whole : n;
}

uint32_t cpu_processors(const char *root) {
    char group[MAX_PATH], path[2 * MAX_PATH + 64], period_path[MAX_PATH];
    long long quota, period;
    cpu_set_t set;
    uint32_t n = 1;

    if (sched_getaffinity(0, sizeof(set), &set) == 0) n = (uint32_t)CPU_COUNT(&set);
    host_control_group(root, group, sizeof(group));
    for (;;) { /* the group, then its parents, the root last */
        char *slash = strrchr(group, '/');

        snprintf(path, sizeof(path), "%s/sys/fs/cgroup%s/cpu.max", root, group);
        if (read_quota(path, NULL, &quota, &period)) n = least(n, quota, period);
        if (!slash) break;
        *slash = 0;
    }
    snprintf(path, sizeof(path), "%s/sys/fs/cgroup/cpu/cpu.cfs_quota_us", root);
    snprintf(period_path, sizeof(period_path), "%s/sys/fs/cgroup/cpu/cpu.cfs_period_us", root);
    if (read_quota(path, period_path, &quota, &period)) n = least(n, quota, period);
    return MAX(n, 1u);
}
