/* router/upgrade/index_restore.h - restores the index of workers from a snapshot, as they appear.
 *
 * Each part of a snapshot waits until its worker is described; a third-party engine has a
 * generation only once its metrics have been read. Then the part is entered piece by piece, so that
 * requests routed meanwhile wait for one piece at most. A worker with another generation gets
 * nothing. Parts whose worker has not appeared after INDEX_RESTORE_TIMEOUT_US are dropped. The
 * snapshot also has the next request event of each worker: events are followed from there, so that
 * no request is entered twice. Thread: control. */
#ifndef ROUTER_UPGRADE_INDEX_RESTORE_H
#define ROUTER_UPGRADE_INDEX_RESTORE_H

#include "router/upgrade/snapshot.h"

#define INDEX_RESTORE_TIMEOUT_US (600 * UINT64_C(1000000))

struct log;
struct loop;
struct index_restore;

struct index_restore_config {
    struct registry *registry;
    struct log *log;
    bool is_serving;     /* requests are being routed: pauses between pieces */
    bool trusts_unnamed; /* accepts workers without a generation: nothing was down */
};

/* Takes the snapshot. */
struct index_restore *index_restore_start(struct loop *loop,
                                          const struct index_restore_config *config,
                                          struct snapshot *snapshot);
void index_restore_stop(struct index_restore *r); /* NULL is fine */

/* Requests are routed from now on. */
void index_restore_is_serving(struct index_restore *r);

/* The next request event of a worker after the snapshot; 0: unknown. */
uint64_t index_restore_events_next(const struct index_restore *r, const char *url,
                                   const char *generation);

/* True when nothing is left to restore; NULL has nothing. */
bool index_restore_is_over(const struct index_restore *r);

#endif
