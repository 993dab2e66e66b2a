/* tests/support/fake_redis.h - AUTH, SELECT, TIME, XADD and XREAD of one stream, on the test's
 * loop.
 *
 * Entries have the ids 1000-1, 1000-2 ...; its clock stands at ten seconds after those. */
#ifndef TESTS_SUPPORT_FAKE_REDIS_H
#define TESTS_SUPPORT_FAKE_REDIS_H

#include "common/base/buf.h"
#include "common/net/loop.h"

#define FAKE_REDIS_CONNECTIONS 8
#define FAKE_REDIS_ENTRIES     1024

struct fake_redis;
struct fake_redis_peer {
    struct fake_redis *server;
    struct loop_fd watch;
    struct buf in;
    char waiting_from[48]; /* the id of a blocked XREAD */
    bool is_open, is_waiting;
};

struct fake_redis {
    struct loop *loop;
    struct loop_fd watch;
    struct fake_redis_peer peers[FAKE_REDIS_CONNECTIONS];
    uint16_t port;
    struct buf entries[FAKE_REDIS_ENTRIES];
    uint32_t n_entries, n_accepted;
    const char *password;   /* asked for */
    const char *odd_answer; /* to XREAD, once */
    bool is_full;           /* refuses XADD */
    char seen_max_entries[16];
    uint32_t seen_database;
};

void fake_redis_start(struct fake_redis *s, struct loop *loop);
void fake_redis_stop(struct fake_redis *s);
void fake_redis_cut(struct fake_redis *s); /* all connections */
void fake_redis_add(struct fake_redis *s, struct str bytes);

#endif
