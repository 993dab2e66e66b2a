/* router/launch.h - the workers that --launch starts: how many, of which program, on which devices.
 *
 * `--launch N` starts N workers, which share the machine's cores. `--launch auto` starts one for each
 * GPU, pinned to it by its UUID, so that a worker that is restarted comes back on the same one; on a
 * machine without GPUs, one on the CPU. Thread: main. */
#ifndef ROUTER_LAUNCH_H
#define ROUTER_LAUNCH_H

#include "router/router_options.h"
#include "router/supervisor.h"

/* Starts them under a supervisor, which is the caller's. Blocks for as long as the worker program
 * takes to list the GPUs. */
MUST_USE enum status launch_workers(struct supervisor **out, const struct router_options *o,
                                    struct loop *loop, struct log *log,
                                    supervisor_fatal_fn *on_fatal, void *arg, struct error *err);

#endif
