/* router/admin/admin.h - inspecting a live router, and changing its fleet.
 *
 * One table of paths serves two ports. Read-only paths are answered on any thread, from copies made
 * under the registry's lock; changes go to the control loop (admin_commands.h).
 *
 *                                    admin port           client port
 *      probes, models, version       open                 as for clients (API keys)
 *      metrics                       open                 admin key
 *      workers, loads: reading       admin key, if any    admin key
 *      workers: changing             admin key, if any    admin key, and only with --admin-on-main
 *
 * No API key is an admin key. Without an admin key the client port shows nothing of the fleet,
 * unless --admin-on-main opens it, which is refused beyond loopback and together with API keys; and
 * the admin port stays on loopback (router_options_check.c enforces both). There, requests from web
 * pages of another origin are rejected by their Origin header. */
#ifndef ROUTER_ADMIN_ADMIN_H
#define ROUTER_ADMIN_ADMIN_H

#include "common/base/base.h"
#include "common/base/buf.h"
#include "common/base/status.h"
#include "router/registry/explain.h"

struct admin_commands;
struct http_request;
struct json_writer;
struct keys;
struct log;
struct mailbox;
struct metrics;
struct refusals;
struct registry;
struct registry_view;
struct worker_sources;

struct admin {
    struct registry *registry;
    struct metrics *metrics;
    struct keys *keys; /* admin keys; NULL or none: no key is required */
    struct admin_commands *commands;
    const struct worker_sources *sources;             /* of workers; or NULL */
    bool (*is_synced)(const struct worker_sources *); /* discovery has completed; NULL: always */
    struct log *log;
    struct refusals *refusals; /* counts refusals; NULL: not counted */
    struct dry_run dry_run;    /* of /debug/route */
    uint64_t started_wall_s;
    const char *name;          /* this router's, in /server_info; or NULL */
    bool is_on_main;           /* --admin-on-main */
    _Atomic bool *wants_drain; /* set by POST /drain; read by the control loop */
    _Atomic bool is_draining;  /* /readyz is 503, so that balancers send nothing new */
};

/* True for a request to the client port that needs an admin key, not an API key. */
bool admin_guards(const struct admin *admin, struct str path);

/* Checks access by the request's head, before its body is read: ST_DENIED, ST_FORBIDDEN with a
 * message. `home` as below. */
MUST_USE enum status admin_check(const struct admin *admin, struct http_request *req,
                                 const struct mailbox *home, struct error *err);

/* Answers it: one of its paths, 404 or 405, or 401 or 403. `home`: mailbox of the client port's
 * loop, which receives what admin_commands_reply is called with; NULL: the admin port, on the
 * control loop. */
void admin_handle(const struct admin *admin, struct http_request *req, struct mailbox *home);

/* One worker as JSON. */
void admin_put_worker(struct json_writer *w, const struct registry_view *view);

#endif
