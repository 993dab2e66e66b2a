/* router/fleet/local_devices.h - the GPUs of this machine, as a worker program sees them (--launch auto).
 *
 * The router knows nothing of GPUs. It asks the program that it is about to launch:
 *
 *      incipit-worker devices --json ARGS...
 *      {"devices":[{"index":0,"name":"NVIDIA H200","uuid":"GPU-8f3c...", ...}, ...]}
 *
 * Blocks until the answer is there, at start only. Thread: main. */
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

/* `args` ends with NULL. No device is an answer, n = 0: the program has said on stderr why. Fails
 * when it cannot be run, takes longer than timeout_ms, or answers something else. */
MUST_USE enum status local_devices_ask(struct local_devices *out, const char *program,
                                       const char *const *args, uint32_t timeout_ms,
                                       struct error *err);

/* Reads such an answer. */
MUST_USE enum status local_devices_parse(struct local_devices *out, struct str text,
                                         struct error *err);

#endif
