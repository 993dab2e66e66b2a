/* worker/loading.c - see loading.h. */
#include "worker/loading.h"

#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/telemetry/log.h"
#include "worker/model/hub.h"
#include "worker/worker_options.h"

#define TERMINAL_INTERVAL_US 1000000u
#define LOG_INTERVAL_US      10000000u
#define MIB                  (1024.0 * 1024.0)

void loading_init(struct loading *l, struct log *log) {
    *l = (struct loading){.log = log,
                          .interval_us = isatty(2) ? TERMINAL_INTERVAL_US : LOG_INTERVAL_US};
}

static void begin(struct loading *l, uint64_t first_bytes) {
    l->began_us = l->reported_us = clock_now_us();
    l->first_bytes = first_bytes;
}

/* The line, when it is time for it. */
static void report(struct loading *l, const char *event, const char *file, uint64_t done,
                   uint64_t total) {
    uint64_t now_us = clock_now_us();
    double seconds = (double)(now_us - l->began_us) * 1e-6, rate;

    if (now_us - l->reported_us < l->interval_us) return;
    l->reported_us = now_us;
    rate =
        done > l->first_bytes && seconds > 0 ? (double)(done - l->first_bytes) / MIB / seconds : 0;
    log_event(l->log, LOG_INFO, event, log_z("file", file), log_u64("done_mib", done >> 20),
              log_u64("total_mib", total >> 20),
              log_f64("percent", total ? (double)(done * 1000 / total) / 10 : 0),
              log_u64("mib_per_s", (uint64_t)(rate + 0.5)),
              log_u64("seconds_left",
                      rate > 0 ? (uint64_t)((double)(total - done) / MIB / rate + 0.5) : 0));
}

/* --- fetching --------------------------------------------------------------------------------- */
static void on_begin(void *arg, const char *name, uint64_t total, uint64_t present) {
    struct loading *l = arg;

    begin(l, present);
    log_event(l->log, LOG_INFO, "download_started", log_z("model", name),
              log_u64("total_mib", total >> 20), log_u64("present_mib", present >> 20));
}

static void on_bytes(void *arg, const char *file, uint64_t done, uint64_t total) {
    report(arg, "downloading", file, done, total);
}

static void on_trouble(void *arg, const char *why, const char *instead) {
    struct loading *l = arg;

    log_event(l->log, LOG_WARN, "download_delayed", log_z("why", why), log_z("instead", instead));
}

static bool is_there(const char *path) {
    struct stat sb;

    return stat(path, &sb) == 0;
}

enum status loading_find(struct loading *l, const struct worker_options *o, const char *name,
                         char folder[HUB_PATH_MAX], bool *is_hubs, struct error *err) {
    struct hub_config config = {
        .cache_folder = o->download_dir,
        .revision = o->revision,
        .is_offline = o->offline,
        .events = {.on_begin = on_begin, .on_bytes = on_bytes, .on_trouble = on_trouble, .arg = l}};
    enum status st;

    *is_hubs = !is_there(name) && hub_is_model_name(name);
    if (!*is_hubs) {
        snprintf(folder, HUB_PATH_MAX, "%s", name); /* model_open reports its faults */
        return ST_OK;
    }
    st = hub_open(name, &config, folder, err);
    if (st == ST_OK)
        log_event(l->log, LOG_INFO, "model_found", log_z("model", name), log_z("folder", folder));
    return st;
}

/* --- weights ---------------------------------------------------------------------------------- */
void loading_begin_weights(struct loading *l) {
    begin(l, 0);
}

void loading_on_weights(void *arg, uint64_t done, uint64_t total) {
    report(arg, "loading", "weights", done, total);
}
