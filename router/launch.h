/* router/launch.h - the workers that --launch starts: how many, of which program, on which devices.
 *
 * `--launch N` starts N workers, which share the machine's cores, and its GPUs where there are some:
 * worker i is pinned to the i-th by its UUID, so that one that is restarted comes back on the same;
 * more workers than GPUs take turns. `--launch auto` starts one for each GPU; on a machine without
 * GPUs, one on the CPU. With --tensor-parallel-size K among the workers' arguments each gets K. Who
 * says --device or another backend there has chosen already, and N workers are not told anything.
 * Thread: main. */
#ifndef ROUTER_LAUNCH_H
#define ROUTER_LAUNCH_H

#include "router/fleet/supervisor.h"
#include "router/options/router_options.h"

/* Starts them under a supervisor, which is the caller's. Blocks for as long as the worker program
 * takes to list the GPUs. */
MUST_USE enum status launch_workers(struct supervisor **out, const struct router_options *o,
                                    struct loop *loop, struct log *log,
                                    supervisor_fatal_fn *on_fatal, void *arg, struct error *err);

#endif
