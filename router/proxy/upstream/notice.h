/* router/proxy/upstream/notice.h - short calls to workers whose answers are not read.
 *
 * For what a worker would notice by itself some time later: that a request is over. So a notice for
 * which there is no room, no memory or no connection is left out. Thread: the router loop. */
#ifndef ROUTER_PROXY_UPSTREAM_NOTICE_H
#define ROUTER_PROXY_UPSTREAM_NOTICE_H

#include "common/base/buf.h"
#include "common/base/list.h"
#include "router/proxy/upstream/upstream.h"

#define NOTICES_MAX 64 /* at a time */

struct loop;

struct notices {
    struct loop *loop;
    struct upstream_pool *pool;
    struct list open;
    uint32_t n;
};

void notices_init(struct notices *all, struct loop *loop, struct upstream_pool *pool);

/* POST `json`, which is copied, to `path`, with `key` as a bearer token unless it is empty. */
void notices_send(struct notices *all, const struct registry_target *target, const char *path,
                  struct str key, struct str json);
void notices_fini(struct notices *all); /* before the pool */

#endif
