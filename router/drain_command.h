/* router/drain_command.h - `incipit-router drain`: drains the router on this machine, and waits.
 *
 * For preStop hooks and other callers without a pid: POST /drain on the admin port acts as SIGTERM
 * and returns at once; this waits until the port refuses connections. A later SIGTERM changes
 * nothing. Blocks. */
#ifndef ROUTER_DRAIN_COMMAND_H
#define ROUTER_DRAIN_COMMAND_H

#include "router/options/router_options.h"

/* Uses the router's own options: admin address, key and drain times. */
MUST_USE enum status drain_command(const struct router_options *o, struct error *err);

#endif
