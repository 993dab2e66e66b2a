/* router/launch.c - see launch.h. */
#include "router/launch.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "common/log.h"
#include "common/mem.h"
#include "router/local_devices.h"

#define LIST_DEVICES_MS 60000 /* the driver alone may take seconds on a machine of eight GPUs */

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
    if (o->isolate_by == ISOLATE_TENANT) args[n++] = "--trust-router";
    for (uint32_t i = 0; i < o->worker_args.n; i++)
        args[n++] = o->worker_args.items[i];
    return args;
}

/* One child for each GPU; one with none of them when there is none. */
static enum status plan_auto(struct supervisor_config *config, struct local_devices *found,
                             const char **ids, uint32_t max_workers, struct log *log,
                             struct error *err) {
    enum status st = local_devices_ask(found, config->program, config->args, LIST_DEVICES_MS, err);

    if (st != ST_OK) return error_prefix(err, "--launch auto"), st;
    if (found->n > max_workers)
        return error_set(err, ST_INVALID, "--launch auto finds %u GPUs, more than --max-workers %u",
                         found->n, max_workers);
    for (uint32_t i = 0; i < found->n; i++) {
        ids[i] = found->device[i].id;
        log_event(log, LOG_INFO, "gpu_found", log_z("device", ids[i]),
                  log_z("name", found->device[i].name));
    }
    config->n_children = MAX(found->n, 1u);
    config->devices = found->n > 0 ? ids : NULL;
    return ST_OK;
}

enum status launch_workers(struct supervisor **out, const struct router_options *o,
                           struct loop *loop, struct log *log, supervisor_fatal_fn *on_fatal,
                           void *arg, struct error *err) {
    const char **args = worker_args(o), *ids[LOCAL_DEVICES_MAX];
    char program[PATH_MAX];
    struct local_devices *found = mem_zalloc(sizeof(*found));
    struct supervisor_config config = {.program = program,
                                       .args = args,
                                       .n_children = o->launch,
                                       .first_port = (uint16_t)o->worker_base_port,
                                       .n_threads = o->worker_threads,
                                       .backoff_min_us = 500000,
                                       .backoff_max_us = 30000000};
    enum status st = ST_OK;

    find_program(o, program);
    if (o->launch == LAUNCH_AUTO) st = plan_auto(&config, found, ids, o->max_workers, log, err);
    if (st == ST_OK) st = supervisor_create(out, loop, log, &config, on_fatal, arg, err);
    mem_free(found);
    mem_free(args);
    return st;
}
