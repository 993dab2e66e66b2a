/* router/launch.h - the workers that --launch starts: how many, from which program, on which
 * devices.
 *
 * `--launch N` starts N workers, which share the machine's cores and GPUs: worker i is pinned to
 * the i-th GPU by its UUID, so that a restart uses the same; more workers than GPUs take turns.
 * `--launch auto` starts one per GPU, or one on the CPU where there is none. With
 * --tensor-parallel-size K among the workers' arguments each gets K GPUs. A --device or another
 * backend among those arguments disables the pinning of N workers. Thread: main. */
#ifndef ROUTER_LAUNCH_H
#define ROUTER_LAUNCH_H

#include "router/fleet/supervisor.h"
#include "router/options/router_options.h"

/* Starts them under a supervisor, which the caller owns. Blocks while the worker program lists the
 * GPUs. */
MUST_USE enum status launch_workers(struct supervisor **out, const struct router_options *o,
                                    struct loop *loop, struct log *log,
                                    supervisor_fatal_fn *on_fatal, void *arg, struct error *err);

#endif
