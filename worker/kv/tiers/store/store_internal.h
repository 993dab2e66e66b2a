/* worker/kv/tiers/store/store_internal.h - what the files of the store share.
 *
 *      store ── nodes[] ── node: a server, its breaker, its memory
 *        │                  └── links[2] ── link: a connection; requests waiting, then sent
 *        ├── slots[]: node of each slot        (store_node.c)
 *        └── works[] ── work: a job of the engine, a request per unit   (store.c)
 *
 * A request is on one list: free, waiting of a link, or sent of a link; replies come in the order
 * of the sent ones. All belong to the store's thread, except what `lock` guards and the atomics,
 * which find reads. */
#ifndef WORKER_KV_TIERS_STORE_STORE_INTERNAL_H
#define WORKER_KV_TIERS_STORE_STORE_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>

#include "common/base/rng.h"
#include "common/net/conn.h"
#include "common/net/mailbox.h"
#include "common/net/resolver.h"
#include "common/net/tls.h"
#include "worker/kv/tiers/store/resp.h"
#include "worker/kv/tiers/store/store.h"
#include "worker/kv/tiers/store/store_beliefs.h"
#include "worker/kv/tiers/store/store_url.h"

#define STORE_SLOTS      16384
#define STORE_ASKS_MAX   1024     /* keys that wait to be asked for, or are */
#define STORE_NAME_BYTES 47u      /* "ic1:{12345678}:" and 32 digits */
#define STORE_FULL_US    1000000u /* no SET after an OOM or READONLY */
#define LINK_CONTROLS    16       /* commands of a link's own, at a time */
#define LINK_SENT_MAX    16       /* GETs or SETs: enough for any round trip with window bytes */
#define LINK_ASKED_MAX   256      /* EXISTS */

enum store_command {
    COMMAND_GET,
    COMMAND_SET,
    COMMAND_EXISTS,
    COMMAND_GREETING, /* AUTH, SELECT: must be answered with OK */
    COMMAND_SLOTS,
    COMMAND_MEMORY,
    COMMAND_ASKING,
};

struct store_work;

struct store_request {
    struct list link;
    enum store_command command;
    bool is_asking;          /* ASKING goes before it */
    uint8_t n_moves;         /* redirections followed */
    uint32_t unit;           /* of work */
    struct store_work *work; /* GET, SET */
    struct unit_key key;     /* GET, SET, EXISTS */
};

struct store_work {
    struct tier_job *job; /* NULL: free */
    uint32_t n_left;      /* units without a result */
    uint32_t first_bad;   /* of a load: units behind it are skipped */
    struct store_request requests[TIER_JOB_UNITS];
};

enum link_state { LINK_DOWN, LINK_LOOKING_UP, LINK_CONNECTING, LINK_GREETING, LINK_UP };

/* The range of a reply to CLUSTER SLOTS that is being read. */
struct slots_reader {
    uint32_t place; /* in the range: first, last, its master, replicas */
    int64_t first, last;
    char host[ADDRESS_HOST_MAX + 1]; /* of the master; "": that of the node that answers */
};

struct store_link {
    struct store_node *node;
    enum tier_op op;
    enum link_state state;
    struct conn conn;
    struct resp resp;
    struct list waiting, asking, sent; /* GETs or SETs; EXISTS, which go behind them; all */
    uint32_t n_data, n_asked;          /* sent GETs or SETs; EXISTS */
    uint32_t n_greetings;              /* sent and not answered */
    uint64_t seen_bytes;               /* conn.sent_bytes when `silence` was started */
    char *out; /* a SET, in one piece; lent to the connection until it is sent */
    struct loop_timer silence;
    struct loop_task pump;
    struct store_request controls[LINK_CONTROLS];
    struct list free_controls;
    struct slots_reader slots;
    struct tls_ticket *ticket;
};

struct store_node {
    struct tier_store *store;
    uint32_t index;
    struct store_url url;
    struct store_link links[2];    /* by enum tier_op */
    uint32_t n_failures;           /* in a row */
    const void *probe;             /* the job, or the asker, that is let through half open */
    struct loop_timer closed;      /* runs while the breaker is open */
    uint64_t full_until_us;        /* no SETs before */
    uint64_t used_bytes, asked_us; /* of its memory; when it was asked */
};

enum store_topology { TOPOLOGY_UNKNOWN, TOPOLOGY_PLAIN, TOPOLOGY_CLUSTER };

struct tier_store {
    struct tier tier; /* first */
    struct tier_store_config config;
    struct loop *loop;
    struct mailbox *inbox;
    struct mail wake, stop;
    struct resolver *resolver;
    struct tls *tls; /* NULL: no URL needs it */
    struct unit_codec *codec;
    struct rng rng;
    pthread_t thread;
    size_t unit_bytes;
    bool is_running, is_closing;

    struct store_node *nodes[STORE_NODES_MAX];
    uint32_t n_nodes;
    enum store_topology topology;
    uint64_t slots_us; /* when they were last asked for */

    struct store_work *works;
    struct store_request asks[STORE_ASKS_MAX];
    struct list free_asks;

    atomic_uint_least32_t n_jobs;
    _Atomic uint16_t slots[STORE_SLOTS]; /* index of a node */
    atomic_bool is_away[STORE_NODES_MAX];

    pthread_mutex_t lock; /* of the rest */
    struct beliefs *beliefs;
    uint32_t n_gone; /* values that were assumed present and did not come, since one came */
    struct unit_key wanted[STORE_ASKS_MAX]; /* to be asked for */
    uint32_t n_wanted;
    bool is_woken;
    uint64_t no_write_before_us;
    struct tier_stats base;
    struct tier_store_stats stats;
};

/* --- store.c ---------------------------------------------------------------------------------- */

/* A unit has its result; the last one ends the job. The request is free then. */
void store_unit_done(struct tier_store *s, struct store_request *r, enum tier_result result,
                     enum unit_cause cause);
/* Of a GET, SET or EXISTS that has no reply and will have none. */
void store_request_failed(struct tier_store *s, struct store_request *r, enum tier_result result);
/* Its key holds something that is no unit. */
void store_spoiled(struct tier_store *s, struct store_request *r);
/* An EXISTS is over. */
void store_ask_done(struct tier_store *s, struct store_request *r, enum belief belief);
void store_count(struct tier_store *s, uint64_t *counter); /* one more */
bool store_is_spoiled(struct tier_store *s, const struct unit_key *key);
void store_set_used(struct tier_store *s, struct store_node *n, uint64_t used_bytes);
/* A SET was written, or none fits: then for a second none is asked for. Not longer, for the next
 * one alone finds that there is room again. */
void store_set_writable(struct tier_store *s, bool can_write);

/* Whether a unit that waits need not be sent, and its result then. */
bool store_is_unwanted(struct tier_store *s, const struct store_request *r,
                       enum tier_result *result);

/* --- store_node.c ----------------------------------------------------------------------------- */

uint32_t store_slot(const struct unit_key *key);
void store_name(const struct unit_key *key, char out[STORE_NAME_BYTES + 1]); /* the server's key */

/* The node at that place, made if there is none. NULL: too many. */
struct store_node *store_node_get(struct tier_store *s, const struct store_url *url);
void store_nodes_shard(struct tier_store *s); /* the slots among the nodes there are */
void store_node_destroy(struct store_node *n);

/* Puts a request on a link of the node of its key, or ends it. */
void store_route(struct tier_store *s, struct store_request *r);
/* The same after an error that names another node. False: it names none that can be used. */
bool store_redirect(struct store_link *l, struct store_request *r, struct str error,
                    bool is_asking);

void store_node_failed(struct store_node *n, const char *why);
void store_node_worked(struct store_node *n);
void store_node_is_full(struct store_node *n); /* it has refused a SET */
/* Items of a reply to CLUSTER SLOTS, one after the other. */
void store_slots_item(struct store_link *l, const struct resp_item *item);
/* The slots may have moved: asks for them, once a second at most. */
void store_slots_refresh(struct store_link *l);

/* --- store_link.c ----------------------------------------------------------------------------- */

void store_link_init(struct store_link *l, struct store_node *n, enum tier_op op);
void store_link_fini(struct store_link *l);
void store_link_add(struct store_link *l,
                    struct store_request *r); /* sent at the end of the turn */
/* A command of its own; nothing when too many are under way, or it is not up. */
void store_link_control(struct store_link *l, enum store_command command);
/* The connection ends, and all its requests do: TIER_IO. */
void store_link_lost(struct store_link *l, const char *why);

/* --- store_reply.c ---------------------------------------------------------------------------- */

/* The next item of the reply to the first sent request. False: the link is lost. */
bool store_take_item(struct store_link *l, const struct resp_item *item);
/* What came is not RESP, or too large; a value that is too large is no unit. */
void store_reply_refused(struct store_link *l, enum status st);

/* --- store_config.c --------------------------------------------------------------------------- */

struct store_urls {
    struct store_url url[STORE_URLS_MAX]; /* (n) with the password of the file; erase it */
    uint32_t n;
    bool has_tls;
};

enum status store_urls_read(struct store_urls *out, const struct tier_store_config *c,
                            struct error *err);
enum status store_tls_open(struct tls **out, const struct tier_store_config *c, struct error *err);

#endif
