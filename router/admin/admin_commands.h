/* router/admin/admin_commands.h - changes of the fleet over HTTP, run on the control loop.
 *
 * With --admin-on-main a change may arrive on any router loop, while the fleet belongs to the
 * control loop. So a copy of the call goes there by mailbox and returns with its answer to the loop
 * that has the client. The loop that holds the call owns it. When the client disconnects meanwhile,
 * the change is made all the same.
 *
 *      home loop:     take --copy--> [mail] ................................ [mail] --> reply, free
 *      control loop:                    +--> look up, add, drain, call workers --+
 *
 * The paths and answers are those of smg and sglang-router:
 *
 *      POST   /workers                {"url", "max_in_flight", "labels", "worker_type",
 *                                      "bootstrap_port", "kv_connector"}  202 and Location; 409
 *      GET    /workers/ID             ID: "3-1" (place and incarnation), "3", or a URL
 *      PUT, PATCH /workers/ID         {"draining", "max_in_flight", "labels"}
 *      DELETE /workers/ID[?force=true]   drains, then removes; 202
 *      POST   /add_worker?url=        200
 *      POST   /remove_worker?url=     200
 *      GET, PUT /config               see admin_config.h
 *      GET    /cache/holds            what clients hold on workers: holds.h
 *      POST   /flush_cache            asks every worker to empty its cache; forgets it here */
#ifndef ROUTER_ADMIN_ADMIN_COMMANDS_H
#define ROUTER_ADMIN_ADMIN_COMMANDS_H

#include "common/base/base.h"
#include "common/base/buf.h"
#include "common/base/status.h"
#include "common/http/http_server.h"
#include "router/access/keys.h"

struct admin_commands;
struct fleet;
struct http_client;
struct http_request;
struct log;
struct loop;
struct mail;
struct mailbox;
struct registry;

/* Control loop. The parts outlive it; router.c orders their callbacks. */
MUST_USE enum status admin_commands_create(struct admin_commands **out, struct loop *loop,
                                           struct registry *registry, struct fleet *fleet,
                                           struct http_client *client, struct log *log,
                                           struct error *err);

/* For /config, from now on; outlives the calls. */
struct admin_config;
void admin_commands_set_config(struct admin_commands *commands, const struct admin_config *config);

/* For /cache/holds, from now on: `put` writes one object. */
struct json_writer;
void admin_commands_set_holds(struct admin_commands *commands,
                              void (*put)(void *arg, struct json_writer *w), void *arg);

/* All loops that took requests have ended, or have none of them open. NULL is fine. */
void admin_commands_destroy(struct admin_commands *commands);

/* The caller of a change, for the log. */
struct admin_asker {
    char name[KEY_NAME_MAX]; /* keys_name */
    char address[HTTP_ADDRESS_MAX];
};

/* Logs one line, admin_change, at any level and rate. `call`: "POST /drain"; `worker`: its URL, or
 * "". */
void admin_log_change(struct log *log, const struct admin_asker *asker, const char *call,
                      const char *worker, int code);

/* Any loop: takes a request for one of the paths above and answers it. `home`: mailbox of this loop
 * for answers, each given to admin_commands_reply. NULL: the control loop itself. */
void admin_commands_take(struct admin_commands *commands, struct http_request *req,
                         const struct admin_asker *asker, struct mailbox *home);
void admin_commands_reply(struct mail *mail); /* frees the call */
void admin_commands_drop(struct mail *mail);  /* frees it unanswered: its loop has ended */

#endif
