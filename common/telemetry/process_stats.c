/* common/telemetry/process_stats.c - /proc/self, read for each page of metrics. */
#include "common/telemetry/process_stats.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/base.h"

/* Fields of /proc/self/stat, counted from 0 behind the program's name: see proc(5). */
enum { STAT_UTIME = 11, STAT_STIME = 12, STAT_START = 19, STAT_VSIZE = 20, STAT_RSS = 21, STAT_N };

static size_t read_text(const char *path, char *out, size_t size) {
    FILE *f = fopen(path, "re");
    size_t n = f ? fread(out, 1, size - 1, f) : 0;

    out[n] = '\0';
    if (f) fclose(f);
    return n;
}

/* When the machine was started: seconds since 1970, or negative. */
static double boot_time_s(void) {
    double boot_s = -1;
    char line[256];
    FILE *f = fopen("/proc/stat", "re");

    while (f && fgets(line, sizeof(line), f)) {
        if (strncmp(line, "btime ", 6) == 0) boot_s = strtod(line + 6, NULL);
    }
    if (f) fclose(f);
    return boot_s;
}

static void read_stat(struct process_stats *out) {
    char text[1024], *at;
    double fields[STAT_N] = {0}, ticks = (double)sysconf(_SC_CLK_TCK), boot_s = boot_time_s();

    read_text("/proc/self/stat", text, sizeof(text));
    at = strrchr(text, ')'); /* the name before it may hold anything */
    if (!at || strlen(at) < 4) return;
    at += 3; /* the state is a letter, and counts as 0 */
    for (int i = 1; i < STAT_N; i++)
        fields[i] = strtod(at, &at);
    out->cpu_s = (fields[STAT_UTIME] + fields[STAT_STIME]) / ticks;
    out->virtual_bytes = fields[STAT_VSIZE];
    out->resident_bytes = fields[STAT_RSS] * (double)sysconf(_SC_PAGESIZE);
    if (boot_s >= 0) out->start_time_s = boot_s + fields[STAT_START] / ticks;
}

static double count_fds(void) {
    struct stat st;
    DIR *dir;
    int n = 0;

    if (stat("/proc/self/fd", &st) == 0 && st.st_size > 0) return (double)st.st_size;
    dir = opendir("/proc/self/fd");
    if (!dir) return -1;
    while (readdir(dir))
        n++;
    closedir(dir);
    return n - 3; /* ".", ".." and this one */
}

void process_stats_read(struct process_stats *out) {
    struct rlimit limit;

    *out = (struct process_stats){-1, -1, -1, -1, -1, -1};
    read_stat(out);
    out->open_fds = count_fds();
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0) out->max_fds = (double)limit.rlim_cur;
}

#define KIND_COUNTER "counter"
#define KIND_GAUGE   "gauge"

static void write_one(struct buf *out, const char *kind, const char *name, const char *help,
                      double value) {
    if (value < 0) return;
    buf_appendf(out, "# HELP %s %s\n# TYPE %s %s\n%s ", name, help, name, kind, name);
    buf_append_f64(out, value);
    buf_append_char(out, '\n');
}

void process_stats_write(struct buf *out) {
    struct process_stats stats, *s = &stats;

    process_stats_read(s);
#define WRITE(kind, name, help, value) write_one(out, KIND_##kind, #name, help, value);
    PROCESS_METRICS(WRITE)
#undef WRITE
}
