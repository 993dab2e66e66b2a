/* router/launch.c - see launch.h. */
#include "router/launch.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/buf.h"
#include "common/base/mem.h"
#include "common/telemetry/log.h"
#include "router/fleet/local_devices.h"

#define LIST_DEVICES_MS 60000 /* the driver takes seconds on a machine of eight GPUs */

/* The worker that was built or installed with this router. */
static void find_program(const struct router_options *o, char out[PATH_MAX]) {
    ssize_t n;
    char *slash;

    if (o->worker_program) {
        snprintf(out, PATH_MAX, "%s", o->worker_program);
        return;
    }
    n = readlink("/proc/self/exe", out, PATH_MAX - 32);
    out[n > 0 ? n : 0] = '\0';
    slash = strrchr(out, '/');
    snprintf(slash ? slash + 1 : out, 32, "incipit-worker");
}

/* NULL-terminated; free the array. */
static const char **worker_args(const struct router_options *o) {
    const char **args = mem_calloc(o->worker_args.n + 4, sizeof(*args));
    uint32_t n = 0;

    if (o->model) {
        args[n++] = "--model";
        args[n++] = o->model;
    }
    if (router_isolates(o)) args[n++] = "--trust-router";
    for (uint32_t i = 0; i < o->worker_args.n; i++)
        args[n++] = o->worker_args.items[i];
    return args;
}

/* The value of one of these options among the workers' arguments; NULL: absent. */
static const char *worker_arg(const struct router_options *o, const char *const *names) {
    const char *value = NULL;

    for (uint32_t i = 0; i < o->worker_args.n; i++) {
        const char *arg = o->worker_args.items[i];

        for (const char *const *name = names; *name; name++) {
            size_t n = strlen(*name);

            if (strncmp(arg, *name, n) != 0) continue;
            if (arg[n] == '=') value = arg + n + 1;
            if (arg[n] == '\0' && i + 1 < o->worker_args.n) value = o->worker_args.items[i + 1];
        }
    }
    return value;
}

/* GPUs that one worker divides its model over. */
static uint32_t devices_per_worker(const struct router_options *o) {
    static const char *const names[] = {"--tensor-parallel-size", "--tp-size", "--tp", NULL};
    const char *value = worker_arg(o, names);
    long n = value ? strtol(value, NULL, 10) : 1;

    return n >= 1 && n <= (long)LOCAL_DEVICES_MAX ? (uint32_t)n : 1; /* the worker reports it */
}

static enum status ask(struct local_devices *out, const struct router_options *o,
                       const char *program, struct error *err) {
    static const char *const names[] = {"--backend-library", NULL};
    const char *library = worker_arg(o, names);
    const char *const args[] = {"--backend-library", library, NULL}, *const none[] = {NULL};

    return local_devices_ask(out, program, library ? args : none, LIST_DEVICES_MS, err);
}

/* The devices of worker i, "id" or "id,id", at ids[i]; the text is written to `text`. There are
 * n_workers; where they outnumber the groups of devices, they take turns. */
static void share_out(const struct local_devices *found, uint32_t each, uint32_t n_workers,
                      struct buf *text, const char **ids) {
    uint32_t n_groups = found->n / each;
    size_t at[LOCAL_DEVICES_MAX];

    for (uint32_t i = 0; i < n_groups; i++) {
        at[i] = buf_len(text);
        for (uint32_t d = i * each; d < (i + 1) * each; d++)
            buf_appendf(text, "%s%s", d > i * each ? "," : "", found->device[d].id);
        buf_append_char(text, '\0');
    }
    for (uint32_t i = 0; i < n_workers; i++) /* the text no longer moves */
        ids[i] = buf_ptr(text) + at[i % n_groups];
}

/* True when the workers choose GPUs by themselves: no argument sets a device or backend. */
static bool looks_for_gpus(const struct router_options *o) {
    static const char *const device_names[] = {"--device", "--device-id", NULL};
    static const char *const backend_names[] = {"--backend", NULL};
    const char *backend = worker_arg(o, backend_names);

    if (worker_arg(o, device_names)) return false;
    return !backend || strcmp(backend, "auto") == 0 || strcmp(backend, "cuda") == 0;
}

/* An error when a device for all workers conflicts with one for each. */
static enum status check_devices(const struct router_options *o, struct error *err) {
    static const char *const names[] = {"--device", "--device-id", NULL};
    const char *device = worker_arg(o, names);

    if (!device) return ST_OK;
    return error_set(err, ST_INVALID,
                     "--launch auto gives each worker its own GPU, and --worker-arg sets --device "
                     "%s: remove one of them, or give the number of workers with --launch N",
                     device);
}

/* Logs the GPUs: the first n are used, the others are idle. */
static void say_gpus(const struct local_devices *found, uint32_t n, struct log *log) {
    for (uint32_t i = 0; i < found->n; i++) {
        const struct local_device *d = &found->device[i];

        if (i < n)
            log_event(log, LOG_INFO, "gpu_found", log_z("device", d->id), log_z("name", d->name));
        else
            log_event(log, LOG_WARN, "gpu_unused", log_z("device", d->id), log_z("name", d->name));
    }
}

/* The number of children, and the devices of each; none without a GPU. */
static enum status plan(struct supervisor_config *config, const struct router_options *o,
                        const struct local_devices *found, struct buf *text, const char **ids,
                        struct log *log, struct error *err) {
    bool is_auto = o->launch == LAUNCH_AUTO;
    uint32_t each = devices_per_worker(o), n_groups = found->n / each;

    config->n_children = is_auto ? MAX(n_groups, 1u) : o->launch;
    if (config->n_children + router_n_listed(o) > o->max_workers)
        return error_set(
            err, ST_INVALID,
            "--launch %u exceeds --max-workers %u: raise --max-workers or launch fewer",
            config->n_children + router_n_listed(o), o->max_workers);
    if (found->n == 0) return ST_OK;
    if (n_groups == 0)
        return error_set(err, ST_INVALID,
                         "--launch: a worker needs %u GPUs (--tensor-parallel-size) and %u are "
                         "present: lower --tensor-parallel-size",
                         each, found->n);
    say_gpus(found, MIN(n_groups, config->n_children) * each, log);
    share_out(found, each, config->n_children, text, ids);
    config->devices = ids;
    return ST_OK;
}

/* With a number, workers start even when their program cannot list devices. */
static enum status find_devices(struct local_devices *found, const struct router_options *o,
                                const char *program, struct log *log, struct error *err) {
    bool is_auto = o->launch == LAUNCH_AUTO;
    struct error why = {0};
    enum status st = is_auto ? check_devices(o, err) : ST_OK;

    if (st != ST_OK || !looks_for_gpus(o)) return st;
    st = ask(found, o, program, &why);
    if (st == ST_OK) return ST_OK;
    if (is_auto) return error_set(err, st, "--launch auto: %s", why.message);
    log_event(log, LOG_WARN, "gpu_query_failed", log_z("why", why.message));
    return ST_OK;
}

enum status launch_workers(struct supervisor **out, const struct router_options *o,
                           struct loop *loop, struct log *log, supervisor_fatal_fn *on_fatal,
                           void *arg, struct error *err) {
    const char **args = worker_args(o), *ids[LAUNCH_MAX];
    struct local_devices *found = mem_zalloc(sizeof(*found));
    char program[PATH_MAX];
    struct buf device_text;
    struct supervisor_config config = {.program = program,
                                       .args = args,
                                       .first_port = (uint16_t)o->worker_base_port,
                                       .n_threads = o->worker_threads,
                                       .backoff_min_us = 500000,
                                       .backoff_max_us = 30000000};
    enum status st;

    buf_init(&device_text, 0);
    find_program(o, program);
    st = find_devices(found, o, program, log, err);
    if (st == ST_OK) st = plan(&config, o, found, &device_text, ids, log, err);
    if (st == ST_OK) st = supervisor_create(out, loop, log, &config, on_fatal, arg, err);
    buf_fini(&device_text);
    mem_free(found);
    mem_free(args);
    return st;
}
