/* common/options/process_limits.c - see the header. Control groups of version 2, and of version 1,
 * where a group's folder is either the one that /proc/self/cgroup names or, in a container, the
 * root. */
#include "common/options/process_limits.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#define MAX_PATH 1024

/* The number after `name` in a file's first line that has it; 0: none ("max" is none). */
static uint64_t number_in(const char *path, const char *name) {
    uint64_t value = 0;
    char line[256];
    FILE *f = fopen(path, "re");

    while (f && fgets(line, sizeof(line), f)) {
        if (strncmp(line, name, strlen(name)) == 0 &&
            sscanf(line + strlen(name), " %" SCNu64, &value) == 1)
            break;
    }
    if (f) fclose(f);
    return value;
}

/* The least limit of a group and its parents, the root last. */
static uint64_t least_in(const char *root, const char *hierarchy, char *group, const char *file) {
    uint64_t least = UINT64_MAX;
    char path[2 * MAX_PATH];

    for (;;) {
        char *slash = strrchr(group, '/');
        uint64_t limit;

        snprintf(path, sizeof(path), "%s/sys/fs/cgroup%s%s/%s", root, hierarchy, group, file);
        limit = number_in(path, "");
        if (limit) least = MIN(least, limit);
        if (!slash) return least;
        *slash = '\0';
    }
}

uint64_t process_memory_limit(const char *root) {
    char path[MAX_PATH], line[MAX_PATH];
    uint64_t least;
    FILE *f;

    snprintf(path, sizeof(path), "%s/proc/meminfo", root);
    least = number_in(path, "MemTotal:") * 1024;
    if (!least) least = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
    snprintf(path, sizeof(path), "%s/proc/self/cgroup", root);
    f = fopen(path, "re");
    while (f && fgets(line, sizeof(line), f)) { /* "4:memory:/a/b", "0::/a/b" */
        char *controllers = strchr(line, ':'), *group;
        uint64_t of_group = UINT64_MAX;

        line[strcspn(line, "\n")] = '\0';
        group = controllers ? strchr(controllers + 1, ':') : NULL;
        if (!group) continue;
        *group++ = '\0';
        if (strcmp(controllers + 1, "") == 0)
            of_group = least_in(root, "", group, "memory.max");
        else if (strcmp(controllers + 1, "memory") == 0)
            of_group = least_in(root, "/memory", group, "memory.limit_in_bytes");
        least = MIN(least, of_group);
    }
    if (f) fclose(f);
    return least;
}

uint32_t process_descriptors(void) {
    struct rlimit limit;

    if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return 256;
    return (uint32_t)MIN(limit.rlim_cur, UINT32_MAX);
}

uint32_t process_raise_descriptors(void) {
    struct rlimit limit;

    if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
        limit.rlim_cur = limit.rlim_max;
        setrlimit(RLIMIT_NOFILE, &limit);
    }
    return process_descriptors();
}
