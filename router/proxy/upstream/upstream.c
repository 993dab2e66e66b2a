/* router/proxy/upstream/upstream.c - a stack of idle connections per worker. */
#include "router/proxy/upstream/upstream.h"

#include <string.h>

#include "common/base/mem.h"
#include "common/net/tls.h"
#include "router/registry/registry.h"
#include "router/registry/registry_route.h"

#define SWEEP_US 5000000u /* how often idle connections are looked at for age */

struct upstream_pool {
    struct loop *loop;
    struct upstream_pool_config config;
    struct loop_timer sweep;
    struct idle_stack {
        struct list top; /* front: used last */
        uint32_t n;
        struct tls_ticket *ticket; /* of the last handshake with it */
    } * stacks;                    /* by worker */
    uint32_t n_idle;
};

static void leave_stack(struct upstream *up) {
    if (!list_is_linked(&up->link)) return;
    list_remove(&up->link);
    up->pool->stacks[up->worker].n--;
    up->pool->n_idle--;
}

void upstream_discard(struct upstream *up) {
    if (!up) return;
    leave_stack(up);
    up->user = NULL;
    conn_fini(&up->conn);
    loop_defer(up->pool->loop, &up->reap); /* its callbacks may still be on the stack */
}

static void on_data(struct conn *c, void *owner) {
    struct upstream *up = owner;

    (void)c;
    if (up->user) {
        up->user->on_data(up->arg);
    } else {
        upstream_discard(up); /* bytes without a request */
    }
}

static void on_connected(struct conn *c, void *owner) {
    struct upstream *up = owner;

    (void)c;
    if (up->user && up->user->on_connected) up->user->on_connected(up->arg);
}

static void on_closed(struct conn *c, enum conn_end end, void *owner) {
    struct upstream *up = owner;

    (void)c;
    if (up->user) {
        up->user->on_closed(end, up->arg);
    } else {
        upstream_discard(up);
    }
}

static const struct conn_events events = {
    .on_data = on_data, .on_connected = on_connected, .on_closed = on_closed};

static void on_sweep(void *arg) {
    struct upstream_pool *pool = arg;
    uint64_t now_us = loop_now_us(pool->loop);

    for (uint32_t w = 0; w < pool->config.max_workers; w++) {
        struct list *top = &pool->stacks[w].top, *last;

        while ((last = list_last(top)) != NULL) {
            struct upstream *up = LIST_ENTRY(last, struct upstream, link);

            if (now_us - up->idle_since_us < pool->config.idle_timeout_us) break;
            upstream_discard(up);
        }
    }
    loop_timer_start(&pool->sweep, SWEEP_US);
}

struct upstream_pool *upstream_pool_create(struct loop *loop,
                                           const struct upstream_pool_config *config) {
    struct upstream_pool *pool = mem_zalloc(sizeof(*pool));

    pool->loop = loop;
    pool->config = *config;
    pool->stacks = mem_calloc(config->max_workers, sizeof(*pool->stacks));
    for (uint32_t w = 0; w < config->max_workers; w++)
        list_init(&pool->stacks[w].top);
    loop_timer_init(&pool->sweep, loop, on_sweep, pool);
    loop_timer_start(&pool->sweep, SWEEP_US);
    return pool;
}

void upstream_pool_drop(struct upstream_pool *pool, uint32_t worker) {
    LIST_FOR_EACH(it, &pool->stacks[worker].top) {
        upstream_discard(LIST_ENTRY(it, struct upstream, link));
    }
}

void upstream_pool_set_connect_timeout(struct upstream_pool *pool, uint64_t timeout_us) {
    pool->config.connect_timeout_us = timeout_us;
}

void upstream_pool_destroy(struct upstream_pool *pool) {
    if (!pool) return;
    for (uint32_t w = 0; w < pool->config.max_workers; w++) {
        upstream_pool_drop(pool, w);
        tls_ticket_forget(&pool->stacks[w].ticket);
    }
    loop_timer_fini(&pool->sweep);
    mem_free(pool->stacks);
    mem_free(pool);
}

/* The id may belong to another worker since the connection was made. */
static struct upstream *take_idle(struct upstream_pool *pool,
                                  const struct registry_target *target) {
    struct list *top;

    while ((top = list_first(&pool->stacks[target->worker].top)) != NULL) {
        struct upstream *up = LIST_ENTRY(top, struct upstream, link);

        if (up->incarnation == target->incarnation) {
            leave_stack(up);
            up->is_reused = true;
            return up;
        }
        upstream_discard(up);
    }
    return NULL;
}

/* The certificate must be for the host of the URL: "host:port", "[::1]:port". */
static void secure(struct upstream *up, const struct registry_target *target) {
    char name[REGISTRY_URL_MAX];
    struct str host = str_of(target->authority);

    while (host.len && host.ptr[host.len - 1] != ':')
        host.len--;
    if (host.len) host.len--;
    if (host.len > 2 && host.ptr[0] == '[') host = (struct str){host.ptr + 1, host.len - 2};
    memcpy(name, host.ptr, host.len);
    name[host.len] = '\0';
    tls_connect(&up->conn, up->pool->config.tls, name, &up->pool->stacks[up->worker].ticket);
}

static enum status open_fresh(struct upstream_pool *pool, const struct registry_target *target,
                              struct upstream **out, struct error *err) {
    struct upstream *up = mem_try_zalloc(sizeof(*up));
    enum status st;

    if (!up) return error_set(err, ST_NOMEM, "out of memory for a connection to a worker");
    up->pool = pool;
    up->worker = target->worker;
    up->incarnation = target->incarnation;
    loop_task_init(&up->reap, mem_free, up);
    st = conn_connect(&up->conn, pool->loop, (const struct sockaddr *)&target->addr,
                      target->addr_len, pool->config.connect_timeout_us, &events, up, err);
    if (st != ST_OK) {
        mem_free(up);
        return st;
    }
    if (target->is_tls) secure(up, target);
    *out = up;
    return ST_OK;
}

enum status upstream_acquire(struct upstream_pool *pool, const struct registry_target *target,
                             bool is_fresh, const struct upstream_user *user, void *arg,
                             struct upstream **out, struct error *err) {
    struct upstream *up = is_fresh ? NULL : take_idle(pool, target);

    if (!up) {
        enum status st = open_fresh(pool, target, &up, err);

        if (st != ST_OK) return st;
    }
    up->user = user;
    up->arg = arg;
    *out = up;
    return ST_OK;
}

void upstream_release(struct upstream *up) {
    struct idle_stack *stack = &up->pool->stacks[up->worker];

    if (!conn_is_open(&up->conn) || conn_input(&up->conn).len > 0 ||
        stack->n >= up->pool->config.max_idle_per_worker) {
        upstream_discard(up);
        return;
    }
    up->user = NULL;
    up->idle_since_us = loop_now_us(up->pool->loop);
    list_push_front(&stack->top, &up->link);
    stack->n++;
    up->pool->n_idle++;
}

uint32_t upstream_pool_n_idle(const struct upstream_pool *pool) {
    return pool->n_idle;
}
