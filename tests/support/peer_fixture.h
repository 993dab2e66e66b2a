/* tests/support/peer_fixture.h - a source with blocks of one chain and a thread that stands for its
 * engine, a door in front of it, and a sink whose jobs are waited for. And the two ends of a
 * connection that a test speaks on itself. */
#ifndef TESTS_SUPPORT_PEER_FIXTURE_H
#define TESTS_SUPPORT_PEER_FIXTURE_H

#include <pthread.h>
#include <stdatomic.h>

#include "common/base/list.h"
#include "common/net/mailbox.h"
#include "tests/support/unit_fixture.h"
#include "worker/kv/tiers/peer/peer.h"
#include "worker/kv/tiers/peer/peer_server.h"

#define PEER_TEST_BLOCKS  128
#define PEER_TEST_PATIENT 60000u /* ms; no test expects it to pass */

/* Lets sinks in, as the worker's port does. */
struct peer_door {
    struct peer_server *server;
    struct tier_source source; /* its address */
    pthread_t thread;
    int listener;
};
void peer_door_open(struct peer_door *door, struct peer_server *server);
void peer_door_close(struct peer_door *door); /* before the server stops */

struct peer_desk {
    struct unit_codec_config form;
    struct unit_block blocks[PEER_TEST_BLOCKS];
    size_t block_bytes;
    uint8_t *theirs, *ours; /* (PEER_TEST_BLOCKS, block_bytes) of the source, of the sink */
    struct peer_server *server;
    struct tier_peer_config config; /* of the sink */
    struct tier *tier;
    struct mailbox *home;
    struct tier_source source;
    uint32_t n_mails;
    bool is_bench;        /* payloads of jobs are left as they are */
    uint64_t patience_us; /* of jobs, until their deadline; 0: they have none */

    struct peer_door door;

    /* The engine's. */
    struct mailbox *engine;
    uid_t share_uid;         /* whom the source gives its memory to */
    struct shared_pool pool; /* with peer_desk_share: `theirs` lies in it */
    atomic_bool reuses;      /* a run that is let go is overwritten at once, and filled anew */
    struct mail stop;
    pthread_t engine_thread;
    atomic_bool has[PEER_TEST_BLOCKS];         /* blocks that the source's engine finds */
    atomic_int n_pinned, most_pinned, n_keeps; /* n_keeps > 0: answers to so many wants are kept */
    pthread_mutex_t lock;                      /* of the next */
    struct list kept;
};

void peer_desk_begin(struct peer_desk *d, bool is_sealed, size_t block_bytes);
void peer_desk_end(struct peer_desk *d);
/* From now on the source's blocks lie in shared memory, and both sides share it. */
void peer_desk_share(struct peer_desk *d);
void peer_desk_open_server(struct peer_desk *d, uint64_t look_us, uint32_t proof_looks);
void peer_desk_close_server(struct peer_desk *d); /* the door stays, and shuts in everyone's face */
void peer_desk_open_sink(struct peer_desk *d);

/* Lets the oldest answer that was kept go. */
void peer_desk_release(struct peer_desk *d);

/* A job on blocks [first, first + n), on its way. */
void peer_job_submit(struct peer_desk *d, struct tier_job *job, uint32_t first, uint32_t n);
/* Waits until so many jobs in all have come home. */
void peer_desk_await(struct peer_desk *d, uint32_t n_mails);
void peer_desk_run(struct peer_desk *d, struct tier_job *job, uint32_t first, uint32_t n);
uint32_t peer_job_count(const struct tier_job *job, enum tier_result result);
/* The units that are TIER_OK are right, and no other has bytes that came from anywhere. */
void peer_job_check(const struct peer_desk *d, const struct tier_job *job);

/* --- ends of a connection, which block -------------------------------------------------------- */

int peer_listen(struct tier_source *source);     /* a listener, whose address is in *source */
int peer_accept(int listener);                   /* behind its 101 */
int peer_dial(const struct tier_source *source); /* connected, and no more */
int peer_connect(const struct peer_desk *d);     /* to the door, behind its 101 */

void peer_write(int fd, enum peer_type type, uint16_t stream, const void *body, size_t n);
/* The next frame; its body in `body`, of at most PEER_FRAME_MAX. False: the end. */
bool peer_read(int fd, struct peer_frame *f, uint8_t *body);
/* HELLO and AUTH as the one who asks, or is asked. The form is the desk's. */
void peer_greet_as_sink(const struct peer_desk *d, int fd);
void peer_greet_as_source(const struct peer_desk *d, int fd);
/* The same, of one who shares its memory. Generations are 77 and 78. */
struct peer_greeting {
    struct peer_hello sink, source;
};
void peer_greet(const struct peer_desk *d, int fd, bool as_source, uint32_t flags,
                struct peer_greeting *out);

#define PEER_UNTIL(condition)                                                                      \
    for (uint64_t until_us_ = clock_now_us() + 60000000u; !(condition);) {                         \
        usleep(200);                                                                               \
        if (clock_now_us() > until_us_) fail_msg("never: %s", #condition);                         \
    }

#endif
