/* router/admin/admin.h - looking into a live router, and changing its fleet.
 *
 * One table of paths serves two ports. What is only looked at is answered on any thread, from copies
 * made under the registry's lock; what changes something goes to the control loop (admin_commands.h).
 *
 *                                    admin port           client port
 *      probes, models, version       open                 as for clients (API keys)
 *      metrics                       open                 admin key
 *      workers, loads: looking       admin key, if any    admin key
 *      workers: changing             admin key, if any    admin key, and only with --admin-on-main
 *
 * No API key is an admin key. Where there is no admin key the client port shows nothing of the fleet,
 * unless --admin-on-main opens it, which is refused beyond loopback and beside API keys. Without an
 * admin key the admin port stays on loopback, too (router_options_check.c sees to both), and there a web
 * page that a user of this machine has open is kept out: a browser says where its page came from. */
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
    struct keys *keys; /* of those who may change things; NULL or none: nobody is asked */
    struct admin_commands *commands;
    const struct worker_sources *sources; /* of workers; or NULL */
    bool (*is_synced)(
        const struct worker_sources *); /* not ready before; NULL: there is nothing to wait for */
    struct log *log;
    struct refusals *refusals; /* who was refused, and why; NULL: not counted */
    struct dry_run dry_run;    /* of /debug/route */
    uint64_t started_wall_s;
    const char *name;          /* this router's, for others that take it for a worker; or NULL */
    bool is_on_main;           /* --admin-on-main */
    _Atomic bool *wants_drain; /* set when somebody asks for the end; read by the control loop */
    _Atomic bool is_draining;  /* not ready any more, so that nothing new is sent here */
};

/* True for a request to the client port that an admin key opens, not an API key. */
bool admin_guards(const struct admin *admin, struct str path);

/* Whether it may be answered, from its head: ST_DENIED, ST_FORBIDDEN with a sentence. So that who may
 * not sends no body. `home` as below. */
MUST_USE enum status admin_check(const struct admin *admin, struct http_request *req,
                                 const struct mailbox *home, struct error *err);

/* Answers it: one of ours, 404 or 405, or 401 or 403 to who may not. `home` is where the loop of a client port hears what
 * admin_commands_reply is to be called with; NULL: the admin port, which is on the control loop. */
void admin_handle(const struct admin *admin, struct http_request *req, struct mailbox *home);

/* One worker as JSON. */
void admin_put_worker(struct json_writer *w, const struct registry_view *view);

#endif
