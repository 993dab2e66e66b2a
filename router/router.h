/* router/router.h - the router process: its objects, start and end. */
#ifndef ROUTER_ROUTER_H
#define ROUTER_ROUTER_H

#include "common/base/status.h"

struct options;
struct router;
struct router_options;

/* Builds everything, listens on both ports, then starts the launched workers. `live` fills
 * *options, and is changed while the router runs. */
MUST_USE enum status router_create(struct router **out, const struct router_options *options,
                                   struct options *live, struct error *err);

/* Serves until SIGTERM or SIGINT and all open requests have finished; a second signal does not
 * wait. Not ST_OK when a launched worker rejected its configuration. */
MUST_USE enum status router_run(struct router *r, struct error *err);
void router_destroy(struct router *r); /* ends the launched workers too; NULL is fine */

#endif
