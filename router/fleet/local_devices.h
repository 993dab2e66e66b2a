/* router/fleet/local_devices.h - the GPUs of this machine, as listed by the worker program
 * (--launch auto).
 *
 *      incipit-worker devices --json ARGS...
 *      {"devices":[{"index":0,"name":"NVIDIA H200","uuid":"GPU-8f3c...", ...}, ...]}
 *
 * The router itself has no code for GPUs. Blocks until the list is complete, at start only. Thread:
 * main. */
#ifndef ROUTER_FLEET_LOCAL_DEVICES_H
#define ROUTER_FLEET_LOCAL_DEVICES_H

#include "common/base/base.h"
#include "common/base/buf.h"
#include "common/base/status.h"

#define LOCAL_DEVICES_MAX 64u

struct local_devices {
    uint32_t n;
    struct local_device {
        char id[64]; /* its UUID, or its number where it has none: what --device takes */
        char name[96];
    } device[LOCAL_DEVICES_MAX];
};

/* `args` ends with NULL. An empty list is ST_OK with n = 0: the program has logged the reason to
 * stderr. Fails when it cannot be run, takes longer than timeout_ms, or prints something else. */
MUST_USE enum status local_devices_ask(struct local_devices *out, const char *program,
                                       const char *const *args, uint32_t timeout_ms,
                                       struct error *err);

/* Parses such a list. */
MUST_USE enum status local_devices_parse(struct local_devices *out, struct str text,
                                         struct error *err);

#endif
