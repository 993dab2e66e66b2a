/* router/admin.h - looking into a live router: health, workers, models, metrics.
 *
 * Read-only so far, so the same answers are given on the admin port and on the client port. Any
 * router thread may handle a request here: everything read is a copy made under the registry's lock. */
#ifndef ROUTER_ADMIN_H
#define ROUTER_ADMIN_H

#include "common/base.h"

struct http_request;
struct metrics;
struct registry;

struct admin {
    struct registry *registry;
    struct metrics *metrics;
    uint64_t started_wall_s;
    _Atomic bool is_draining; /* not ready any more, so that nothing new is sent here */
};

/* Answers it: one of ours, or 404 or 405. */
void admin_handle(const struct admin *admin, struct http_request *req);

#endif
