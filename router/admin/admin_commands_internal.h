/* router/admin/admin_commands_internal.h - a call that changes the fleet, for the files of the
 * commands.
 *
 *   admin_commands.c   the way there and back; workers added, changed and removed
 *   admin_flush.c  asking every worker to empty its cache
 *   admin_config.c options seen and changed */
#ifndef ROUTER_ADMIN_ADMIN_COMMANDS_INTERNAL_H
#define ROUTER_ADMIN_ADMIN_COMMANDS_INTERNAL_H

#include "common/base/list.h"
#include "common/http/http_parse.h"
#include "common/net/address.h"
#include "common/net/mailbox.h"
#include "common/text/json.h"
#include "router/admin/admin_commands.h"

#define PATH_MAX_BYTES 640 /* a worker's URL, percent-encoded */
#define WORKER_ID_MAX  24

struct admin_commands {
    struct registry *registry;
    struct fleet *fleet;
    struct http_client *client;
    struct log *log;
    const struct admin_config *config; /* NULL: not yet */
    void (*put_holds)(void *arg, struct json_writer *w);
    void *holds;
    struct mailbox *box;
    struct list calls; /* calls in progress */
};

struct admin_call {
    struct mail mail;
    struct admin_commands *commands;
    struct mailbox *home;
    struct http_request *req; /* the home loop's; NULL once the client has gone */

    /* Asked. */
    enum http_method method;
    char path[PATH_MAX_BYTES], query[PATH_MAX_BYTES];
    struct buf body;
    struct admin_asker asker;
    char worker[ADDRESS_URL_MAX]; /* its subject; "": none, or unknown */

    /* Answered. */
    int code; /* 0: err */
    const char *content_type;
    struct error err;
    struct buf answer;
    char location[16 + WORKER_ID_MAX];

    struct list link; /* on commands->calls */
    bool is_legacy;   /* plain-text answers */

    /* Of a flush. */
    struct list asked; /* struct flush_one: workers that have not answered */
    struct json_writer writer;
    uint32_t n_asked, n_flushed;
};

/* Control loop: the call is done, its answer written. Frees it, or sends it home. */
void admin_call_done(struct admin_call *c, int code);
void admin_call_failed(struct admin_call *c); /* c->err has the reason */

void admin_config_answer(struct admin_call *c); /* GET and PUT /config */
void admin_flush(struct admin_call *c);
void admin_flush_drop(struct admin_call *c); /* cancels its open calls to workers */

#endif
