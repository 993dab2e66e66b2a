/* router/drain_command.h - `incipit-router drain`: asks the router on this machine to end, and waits.
 *
 * For a preStop hook, or for whoever has no pid: POST /drain on its admin port does what SIGTERM does,
 * and returns at once; this waits until nobody answers there any more. A SIGTERM that comes meanwhile
 * changes nothing. Blocks. */
#ifndef ROUTER_DRAIN_COMMAND_H
#define ROUTER_DRAIN_COMMAND_H

#include "router/options/router_options.h"

/* By the options that the router has: its admin address and key, and how long it may take. */
MUST_USE enum status drain_command(const struct router_options *o, struct error *err);

#endif
