/* kernels/host/host_memory.c - see host_memory.h. Control groups of version 2, and of version 1
 * where the container sees its own group as the root, as container runtimes arrange it. */
#include "kernels/host/host_memory.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define MAX_PATH 1024

void host_control_group(const char *root, char *group, size_t size) {
    char path[MAX_PATH], line[MAX_PATH];
    FILE *f;

    group[0] = '\0';
    snprintf(path, sizeof(path), "%s/proc/self/cgroup", root);
    f = fopen(path, "re");
    while (f && fgets(line, sizeof(line), f)) {
        if (strncmp(line, "0::/", 4) != 0) continue;
        line[strcspn(line, "\n")] = '\0';
        snprintf(group, size, "%s", line + 3);
        break;
    }
    if (f) fclose(f);
}

/* The number in a line "name 123 ...", or of a file that is one number, with name "". 0: not
 * there. */
static uint64_t number_in(const char *folder, const char *file, const char *name) {
    char path[2 * MAX_PATH + 96], line[256];
    size_t n = strlen(name);
    uint64_t value = 0;
    FILE *f;

    snprintf(path, sizeof(path), "%s/%s", folder, file);
    f = fopen(path, "re");
    while (f && fgets(line, sizeof(line), f)) {
        if (strncmp(line, name, n) == 0 && sscanf(line + n, " %" SCNu64, &value) == 1) break;
    }
    if (f) fclose(f);
    return value;
}

/* What a limit leaves; without one ("max", or no such file) all there is. */
static uint64_t left(uint64_t limit, uint64_t used, uint64_t cached) {
    used -= MIN(cached, used);
    return limit ? limit - MIN(used, limit) : UINT64_MAX;
}

uint64_t host_memory_available(const char *root) {
    char group[MAX_PATH], folder[2 * MAX_PATH + 64];
    uint64_t least;

    snprintf(folder, sizeof(folder), "%s/proc", root);
    least = number_in(folder, "meminfo", "MemAvailable:") * 1024;
    if (!least) least = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
    host_control_group(root, group, sizeof(group));
    for (;;) { /* the group, then its parents, the root last */
        char *slash = strrchr(group, '/');

        snprintf(folder, sizeof(folder), "%s/sys/fs/cgroup%s", root, group);
        least = MIN(least, left(number_in(folder, "memory.max", ""),
                                number_in(folder, "memory.current", ""),
                                number_in(folder, "memory.stat", "inactive_file ")));
        if (!slash) break;
        *slash = '\0';
    }
    snprintf(folder, sizeof(folder), "%s/sys/fs/cgroup/memory", root);
    return MIN(least, left(number_in(folder, "memory.limit_in_bytes", ""),
                           number_in(folder, "memory.usage_in_bytes", ""),
                           number_in(folder, "memory.stat", "total_inactive_file ")));
}
