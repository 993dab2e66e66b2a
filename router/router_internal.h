/* router/router_internal.h - shared by the files of the router.
 *
 *   router.c        its life: begins, serves, reads files again, is succeeded, drains, ends
 *   router_build.c  its parts, as the options want them, and want them later */
#ifndef ROUTER_ROUTER_INTERNAL_H
#define ROUTER_ROUTER_INTERNAL_H

#include "common/net/loop.h"
#include "common/telemetry/loop_lag.h"
#include "router/access/isolation.h"
#include "router/access/keys.h"
#include "router/admin/admin.h"
#include "router/admin/admin_config.h"
#include "router/fleet/health.h"
#include "router/fleet/scrape.h"
#include "router/router.h"

/* What a change of options has opened until it is committed. */
struct router_change {
    struct keys_change *keys, *admin_keys;
    char worker_key[KEYS_TEXT_MAX];
    bool has_worker_key;
};

struct router {
    const struct router_options
        *options; /* control loop; other threads may read what is not live */
    struct loop *loop;
    struct mailbox *box;
    struct log *log;
    struct metrics *metrics;
    struct registry *registry;
    struct keys *keys, *admin_keys;
    struct isolation isolation;
    struct certificates *certificates;
    struct file_watch *secrets; /* certificates and keys: read again when one changes */
    struct http_client *client;
    char worker_key[KEYS_TEXT_MAX]; /* "": workers need none */
    struct health *health;
    struct scrape *scrape;
    struct kv_events *kv_events;
    struct follow *follow;          /* NULL: nothing is shared */
    struct share *share;            /* NULL: no --share-redis */
    struct decision_log *decisions; /* NULL: not kept */
    struct fleet *fleet;
    struct poison *poison;
    struct refusals *refusals;
    struct worker_sources *sources;
    struct body_budget *bodies; /* what request bodies may hold, on all ports together */
    struct http_server *admin_server;
    struct admin admin;
    struct admin_config config;
    struct router_change change;
    struct admin_commands *commands;
    struct holds *holds;
    struct supervisor *supervisor;
    struct frontend **frontends;
    uint32_t n_frontends, n_running, n_ready;
    struct takeover *takeover;
    struct loop_timer tick, deadline;
    uint64_t hash_secret; /* of prompts */
    char name[32];        /* in Via and /server_info, new at each start: "incipit-1f..." */
    uint64_t origin;      /* ours, for other routers; 0: not shared */
    struct loop_lag loop_lag;
    struct error fatal;
    uint64_t started_us, n_restarts_counted;
    uint32_t n_signals; /* to end */
    _Atomic bool wants_drain;
    bool is_stopping, is_hurried, has_announced;
};

/* The hash scheme, equal for routers with comparable hashes. */
uint64_t router_hash_scheme(const struct router *r);
/* The origin for other routers, new at each start; 0: not shared. */
uint64_t router_choose_origin(const struct router_options *options);

/* Called in this order; each uses the parts before it. */
MUST_USE enum status router_build_registry(struct router *r, struct error *err);
MUST_USE enum status router_build_sharing(struct router *r, struct error *err);
MUST_USE enum status router_build_fleet(struct router *r, struct error *err);
MUST_USE enum status router_build_frontends(struct router *r, struct error *err);
MUST_USE enum status router_build_admin(struct router *r, struct error *err);

struct health_config router_health_config(const struct router *r); /* without on_hung */
struct scrape_config router_scrape_config(const struct router *r);

/* "": none. */
MUST_USE enum status router_read_worker_key(const struct router_options *o, char out[KEYS_TEXT_MAX],
                                            struct error *err);
void router_use_worker_key(struct router *r, const char *key);
void router_watch_secrets(struct router *r); /* the files of the options, from now on */
void router_reload_secrets(void *router);    /* reads them */

/* Options that change while the router runs: see admin_config.h. */
void router_prepare_change(struct options_change *c, void *router);
void router_finish_change(const struct options_change *c, bool is_committed, void *router);

/* The predecessor's admin socket is listened on from now on. */
void router_take_admin_socket(struct router *r);

#endif
