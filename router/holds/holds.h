/* router/holds/holds.h - prefixes that clients hold or prewarm through the router.
 *
 *      router loop:   holds_take --copy--> [mail] ................................ [mail] --> reply
 *      control loop:                          +--> choose workers, ask them, remember --+
 *
 *      POST /cache/hold      {prompt or messages, "ttl", "copies"}    one worker or several hold it
 *      POST /cache/release   {"id"}                                   all of them release it
 *      POST /cache/prewarm   {prompt or messages, "ttl", "workers"}   one or several compute it
 *      GET  /cache           what this client holds, and what that saves
 *
 * The first worker is the one that the policy chooses. Ids are the router's own and of use to their
 * owner alone: the tenant of a key, of one cache_salt. When a worker of a hold leaves, has
 * restarted, or is out of service for HOLDS_MISSED looks, another one gets the hold.
 *
 * A prompt on which two workers were lost is not sent to a third (router/poison/poison.h), and a
 * hold that costs two workers is not repeated again. The call of a client that leaves ends.
 *
 * LIMITS. The memory is this process's: a successor knows none of it, and several routers have each
 * their own. A call goes to workers of ours alone. */
#ifndef ROUTER_HOLDS_HOLDS_H
#define ROUTER_HOLDS_HOLDS_H

#include "common/base/base.h"
#include "common/base/buf.h"
#include "common/base/status.h"

struct holds;
struct http_client;
struct http_request;
struct isolation;
struct json_writer;
struct keys;
struct log;
struct loop;
struct mail;
struct mailbox;
struct metrics;
struct poison;
struct registry;

#define HOLDS_LOOK_US   1000000u /* between two looks at the workers of all holds */
#define HOLDS_POLL_US   5000000u /* between two questions to them what they hold */
#define HOLDS_MISSED    3u
#define HOLDS_CALLS_MAX 64u /* of clients, at a time */

struct holds_config {
    struct loop *loop; /* control */
    struct registry *registry;
    struct http_client *client;
    struct log *log;
    struct metrics *metrics;
    struct keys *keys;                 /* NULL: none is needed */
    const struct isolation *isolation; /* NULL: tenants share caches */
    const char *tenant_header;         /* names the tenant of a request without a key; NULL: none */
    uint32_t prefix_block_bytes, max_prefix_blocks, max_workers;
    uint64_t hash_secret;
    struct poison *poison; /* NULL: no request is remembered that killed workers */
    uint32_t timeout_ms;   /* of a call that computes a prompt */
};

MUST_USE enum status holds_create(struct holds **out, const struct holds_config *config,
                                  struct error *err);
/* No loop takes requests any more; before the client's end. NULL is fine. */
void holds_destroy(struct holds *h);

/* Is it one of the paths above? */
bool holds_serves(struct str path);

/* Any loop: answers the request, with 405 if its path has another method. `home`: mailbox of this
 * loop, each of whose mails is given to holds_reply, or at its end to holds_drop. */
void holds_take(struct holds *h, struct http_request *req, struct mailbox *home);
void holds_reply(struct mail *mail);
void holds_drop(struct mail *mail);

/* Control loop, for an operator: who holds how much, where, and what it saves, as of the last
 * question to workers. One object; `holds` is a struct holds. */
void holds_put_all(void *holds, struct json_writer *w);

#endif
