/* tests/support/fake_store.h - a server of Redis' GET, SET, EXISTS, AUTH, SELECT, INFO, CLUSTER
 * SLOTS and ASKING, on the test's loop, that fails where it is told to. */
#ifndef TESTS_SUPPORT_FAKE_STORE_H
#define TESTS_SUPPORT_FAKE_STORE_H

#include "common/base/map.h"
#include "common/net/conn.h"
#include "worker/kv/tiers/store/resp.h"

struct tls;

#define FAKE_STORE_PEERS 16
#define FAKE_STORE_ARGS  8

enum fake_fault {
    FAULT_NONE,
    FAULT_ERROR,  /* answers `text` */
    FAULT_CUT,    /* resets the connection */
    FAULT_HALF,   /* sends half of the reply, then nothing more */
    FAULT_SPLIT,  /* sends split_at bytes of the reply, and the rest in a later turn */
    FAULT_HOLD,   /* sends this reply and those behind it when fake_store_release is called */
    FAULT_LONGER, /* announces a byte more than there is, then goes on */
    FAULT_HUGE,   /* announces 600 MB */
};

struct fake_store;
struct fake_store_peer {
    struct fake_store *server;
    struct conn conn;
    struct resp resp;
    struct buf args[FAKE_STORE_ARGS];
    uint32_t n_args, n_wanted;
    struct buf rest; /* of a reply that was split */
    struct loop_task later;
    bool is_open, is_known, is_stuck;
};

struct fake_store {
    struct loop *loop;
    struct loop_fd watch;
    uint16_t port;   /* kept by a server that is stopped and started again */
    struct tls *tls; /* borrowed; NULL: plain */
    struct fake_store_peer peers[FAKE_STORE_PEERS];
    struct strmap values; /* of struct buf * */
    const char *password; /* asked for */
    const char *slots;    /* answer to CLUSTER SLOTS; NULL: an error */
    uint64_t used_bytes;  /* answer to INFO; 0: the values' */

    /* The fault comes at the n-th of these commands from now on, or at each from the n-th on. */
    enum fake_fault fault;
    const char *fault_command; /* NULL: GET, SET or EXISTS */
    uint32_t fault_at;
    bool fault_lasts;
    const char *fault_text; /* with its sign and without its end: "-LOADING ..." */
    size_t split_at;

    uint32_t n_unanswered; /* commands that came after FAULT_HALF */
    uint32_t n_accepted, n_gets, n_sets, n_asks, n_asking;
    char last_set[8][64]; /* the arguments of the last SET, except its value */
};

void fake_store_init(struct fake_store *s, struct loop *loop);
void fake_store_start(struct fake_store *s); /* listens; keeps the values it had */
void fake_store_stop(struct fake_store *s);  /* resets all connections and listens no more */
void fake_store_fini(struct fake_store *s);

void fake_store_fail(struct fake_store *s, enum fake_fault fault, const char *command, uint32_t at);
void fake_store_release(struct fake_store *s);
struct buf *fake_store_find(struct fake_store *s, const char *name); /* NULL: absent */
void fake_store_put(struct fake_store *s, const char *name, struct str value);
void fake_store_flush(struct fake_store *s);

#endif
