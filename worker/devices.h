/* worker/devices.h - `incipit-worker devices`: which GPUs a worker could use here. */
#ifndef WORKER_DEVICES_H
#define WORKER_DEVICES_H

#include "common/base/status.h"

struct worker_options;

/* A line for each on stdout, or with --json one object: {"backend", "devices": [{"index", "name",
 * "uuid", "path", "memory_total", "memory_free"}], "unusable": [{"index", "why"}]}. Without a
 * usable device the list is empty and the status is ST_NOT_FOUND or ST_UNSUPPORTED. */
MUST_USE enum status list_devices(struct worker_options *o, struct error *err);

#endif
