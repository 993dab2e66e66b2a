/* router/upgrade/index_restore.h - gives workers back what a snapshot knows of them, as they come.
 *
 * Each part of a snapshot waits until its worker has described itself, which engines that are not ours
 * do in two steps: their life has a name only once their metrics have been read. Then it is entered
 * piece by piece, so that requests which are routed meanwhile never wait for more than one piece. A
 * worker that is another one by now gets nothing. What nobody has come for after INDEX_RESTORE_TIMEOUT_US
 * is thrown away. The snapshot also says up to which of a
 * worker's request events it knows: those are followed from there, so that nothing is entered twice.
 * Thread: control. */
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
    bool is_serving; /* requests are routed already: pieces have pauses between them */
    bool
        trusts_unnamed; /* a worker whose life has no name is taken for the same: nothing was down */
};

/* Takes the snapshot. */
struct index_restore *index_restore_start(struct loop *loop,
                                          const struct index_restore_config *config,
                                          struct snapshot *snapshot);
void index_restore_stop(struct index_restore *r); /* NULL is fine */

/* From now on requests are routed. */
void index_restore_is_serving(struct index_restore *r);

/* Where the request events of a worker go on of which the snapshot knows what was before; 0: it does not. */
uint64_t index_restore_events_next(const struct index_restore *r, const char *url,
                                   const char *generation);

/* All that could be given back has been; NULL has nothing to give. */
bool index_restore_is_over(const struct index_restore *r);

#endif
