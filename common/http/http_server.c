/* common/http/http_server.c - listeners, connection lists, timeouts, draining.
 *
 * Timeouts cost nothing per request: each connection is on the list of its state, in the order in
 * which it got there, and one timer sweeps the lists. Where one limit holds for a whole list only
 * its front is looked at. */
#include "common/http/http_server.h"

#include <arpa/inet.h>
#include <assert.h>
#include <errno.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/hash.h"
#include "common/base/mem.h"
#include "common/http/http_server_internal.h"

#define LISTEN_BACKLOG      1024
#define ACCEPTS_PER_TURN    16      /* so that a burst of clients does not starve the others */
#define ENDS_PER_TURN       32u     /* nor do those that are due to be ended */
#define REST_SWEEP_US       1000u   /* until the next of these */
#define ACCEPT_PAUSE_US     100000u /* without descriptors: wait for some to be closed */
#define LINGER_US           1000000u
#define MAX_SPARE_EXCHANGES 256u
#define DATE_MAX_AGE_US     500000u
#define DRAIN_SWEEP_US      50000u /* reports the end of a drain */

struct listener {
    struct list link;
    struct http_server *server;
    struct tls *tls; /* NULL: plain */
    struct loop_fd watch;
    struct loop_timer retry; /* runs while accepting pauses for want of descriptors */
    uint16_t port;
};

static void sweep(void *arg);
static void report_drained(void *arg);

static void fill_limits(struct http_limits *l) {
    const struct http_limits defaults = {
        .max_connections = 16384,
        .max_body_bytes = 32u << 20,
        .handshake_timeout_ms = 5000,
        .head_timeout_ms = 10000,
        .body_grace_ms = 10000,
        .body_min_bytes_per_s = 1024,
        .body_wait_ms = 10000,
        .idle_timeout_ms = 75000,
        .write_stall_timeout_ms = 60000,
    };

    if (!l->max_connections) l->max_connections = defaults.max_connections;
    if (!l->max_body_bytes) l->max_body_bytes = defaults.max_body_bytes;
    if (!l->handshake_timeout_ms) l->handshake_timeout_ms = defaults.handshake_timeout_ms;
    if (!l->head_timeout_ms) l->head_timeout_ms = defaults.head_timeout_ms;
    if (!l->body_grace_ms) l->body_grace_ms = defaults.body_grace_ms;
    if (!l->body_min_bytes_per_s) l->body_min_bytes_per_s = defaults.body_min_bytes_per_s;
    if (!l->body_wait_ms) l->body_wait_ms = defaults.body_wait_ms;
    if (!l->idle_timeout_ms) l->idle_timeout_ms = defaults.idle_timeout_ms;
    if (!l->write_stall_timeout_ms) l->write_stall_timeout_ms = defaults.write_stall_timeout_ms;
}

/* A quarter of the shortest timeout, between 10 ms and 1 s. */
static uint64_t sweep_interval_us(const struct http_limits *l) {
    uint32_t shortest = MIN(MIN(l->head_timeout_ms, l->body_grace_ms),
                            MIN(l->idle_timeout_ms, l->write_stall_timeout_ms));

    shortest = MIN(shortest, l->handshake_timeout_ms);

    return MIN(MAX((uint64_t)shortest * 250, 10000u), 1000000u);
}

/* No body can be longer than all of them together. */
static void fit_to_budget(struct http_limits *l) {
    uint64_t largest = body_budget_largest(l->budget), head = 2 * HTTP_MAX_HEAD_BYTES;

    l->max_body_bytes = MIN(l->max_body_bytes, largest > head ? largest - head : 0);
}

struct http_server *http_server_create(struct loop *loop, const struct http_limits *limits,
                                       const struct http_server_events *events, void *arg) {
    struct http_server *server = mem_zalloc(sizeof(*server));
    uint64_t seed;

    server->loop = loop;
    if (limits) server->limits = *limits;
    fill_limits(&server->limits);
    if (server->limits.budget) {
        server->pool = body_pool_open(server->limits.budget);
        fit_to_budget(&server->limits);
        seed = body_budget_seed(server->limits.budget);
    } else {
        hash_random(&seed, sizeof(seed));
    }
    map_init(&server->addresses, seed);
    list_init(&server->waiting);
    loop_timer_init(&server->pulse, loop, memory_pulse, server);
    server->events = *events;
    server->arg = arg;
    for (int i = 0; i < PEER_N_STATES; i++)
        list_init(&server->peers[i]);
    list_init(&server->spares);
    list_init(&server->listeners);
    buf_init(&server->scratch, 0);
    loop_timer_init(&server->sweep, loop, sweep, server);
    loop_task_init(&server->drained, report_drained, server);
    server->sweep_us = sweep_interval_us(&server->limits);
    return server;
}

static void listener_close(struct listener *l) {
    list_remove(&l->link);
    loop_fd_fini(&l->watch);
    loop_timer_fini(&l->retry);
    close(l->watch.fd);
    mem_free(l);
}

static bool accept_one(struct listener *l);

/* Connections that wait to be accepted would be reset. */
static void accept_the_last(struct http_server *server) {
    LIST_FOR_EACH(it, &server->listeners) {
        struct listener *l = LIST_ENTRY(it, struct listener, link);

        for (int i = 0; i < LISTEN_BACKLOG && accept_one(l); i++) {
        }
    }
}

static void close_listeners(struct http_server *server) {
    LIST_FOR_EACH(it, &server->listeners) listener_close(LIST_ENTRY(it, struct listener, link));
}

void http_server_destroy(struct http_server *server) {
    struct list *link;

    if (!server) return;
    close_listeners(server);
    server->is_draining = true;
    for (int i = 0; i < PEER_N_STATES; i++) {
        while ((link = list_first(&server->peers[i]))) {
            peer_abort(LIST_ENTRY(link, struct peer, link));
        }
    }
    while ((link = list_pop_front(&server->spares))) {
        mem_free(LIST_ENTRY(link, struct exchange, link));
    }
    loop_timer_fini(&server->sweep);
    loop_timer_fini(&server->pulse);
    map_fini(&server->addresses);
    loop_defer_cancel(&server->drained);
    buf_fini(&server->scratch);
    mem_free(server);
}

/* --- listening -------------------------------------------------------------------------------- */

static bool is_at_capacity(const struct http_server *server) {
    return server->stats.open_connections >= server->limits.max_connections;
}

static void watch_listeners(struct http_server *server) {
    LIST_FOR_EACH(it, &server->listeners) {
        struct listener *l = LIST_ENTRY(it, struct listener, link);

        loop_fd_watch(&l->watch,
                      server->is_full || loop_timer_is_running(&l->retry) ? 0 : LOOP_READ);
    }
}

static void accept_again(void *arg) {
    struct listener *l = arg;

    watch_listeners(l->server);
}

static bool is_out_of_descriptors(int error) {
    return error == EMFILE || error == ENFILE || error == ENOBUFS || error == ENOMEM;
}

/* False: no pending connection, or no descriptor (see errno). */
static bool accept_one(struct listener *l) {
    struct http_server *server = l->server;
    struct sockaddr_storage addr;
    socklen_t n = sizeof(addr);
    int fd = accept4(l->watch.fd, (struct sockaddr *)&addr, &n, SOCK_NONBLOCK | SOCK_CLOEXEC);

    if (fd < 0) return errno == ECONNABORTED || errno == EINTR;
    peer_open(server, l->tls, fd, &addr);
    if (!loop_timer_is_running(&server->sweep)) loop_timer_start(&server->sweep, server->sweep_us);
    return true;
}

static void accept_some(unsigned ready, void *arg) {
    struct listener *l = arg;
    struct http_server *server = l->server;

    (void)ready;
    for (int i = 0; i < ACCEPTS_PER_TURN; i++) {
        if (is_at_capacity(server) && i > 0) return; /* whether another one waits is not known */
        if (is_at_capacity(server) && !places_make_room(server)) {
            report_pause(server, HTTP_PAUSE_CONNECTIONS);
            server->is_full = true;
            watch_listeners(server);
            return;
        }
        if (accept_one(l)) continue;
        if (!is_out_of_descriptors(errno)) return;
        if (i == 0 && places_make_room(server)) continue;
        report_pause(server, HTTP_PAUSE_DESCRIPTORS);
        loop_timer_start(&l->retry, ACCEPT_PAUSE_US);
        watch_listeners(server);
        return;
    }
}

static enum status parse_address(const char *host, uint16_t port, struct sockaddr_storage *addr,
                                 socklen_t *n) {
    struct sockaddr_in *v4 = (struct sockaddr_in *)addr;
    struct sockaddr_in6 *v6 = (struct sockaddr_in6 *)addr;

    memset(addr, 0, sizeof(*addr));
    if (inet_pton(AF_INET, host, &v4->sin_addr) == 1) {
        v4->sin_family = AF_INET;
        v4->sin_port = htons(port);
        *n = sizeof(*v4);
        return ST_OK;
    }
    if (inet_pton(AF_INET6, host, &v6->sin6_addr) == 1) {
        v6->sin6_family = AF_INET6;
        v6->sin6_port = htons(port);
        *n = sizeof(*v6);
        return ST_OK;
    }
    return ST_INVALID;
}

static uint16_t bound_port(int fd) {
    struct sockaddr_storage addr;
    socklen_t n = sizeof(addr);

    if (getsockname(fd, (struct sockaddr *)&addr, &n) != 0) return 0;
    return ntohs(addr.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&addr)->sin6_port
                                            : ((struct sockaddr_in *)&addr)->sin_port);
}

static enum status listen_failed(const char *host, uint16_t port, int error, struct error *err) {
    if (error == EADDRINUSE) {
        return error_set(err, ST_IO, "port %u is in use: choose another", port);
    }
    if (error == EADDRNOTAVAIL) {
        return error_set(err, ST_IO,
                         "address %s does not belong to this machine: use 127.0.0.1, 0.0.0.0 or "
                         "one of its addresses",
                         host);
    }
    if (error == EACCES) {
        return error_set(err, ST_IO, "port %u needs privileges: choose a port above 1023", port);
    }
    return error_set(err, ST_IO, "cannot listen on %s port %u: %s", host, port, strerror(error));
}

enum status http_server_listen(struct http_server *server, const char *host, uint16_t port,
                               bool share, struct error *err) {
    return http_server_listen_tls(server, NULL, host, port, share, err);
}

enum status http_server_listen_tls(struct http_server *server, struct tls *tls, const char *host,
                                   uint16_t port, bool share, struct error *err) {
    struct sockaddr_storage addr;
    socklen_t n;
    const int on = 1;
    int fd, error;

    if (parse_address(host, port, &addr, &n) != ST_OK) {
        return error_set(err, ST_INVALID, "invalid address '%s': use e.g. 127.0.0.1 or 0.0.0.0",
                         host);
    }
    fd = socket(addr.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0) return listen_failed(host, port, errno, err);
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    if (share) setsockopt(fd, SOL_SOCKET, SO_REUSEPORT, &on, sizeof(on));
    if (bind(fd, (struct sockaddr *)&addr, n) != 0 || listen(fd, LISTEN_BACKLOG) != 0) {
        error = errno;
        close(fd);
        return listen_failed(host, port, error, err);
    }
    http_server_take_socket(server, tls, fd);
    return ST_OK;
}

void http_server_take_socket(struct http_server *server, struct tls *tls, int fd) {
    struct listener *l = mem_zalloc(sizeof(*l));

    l->server = server;
    l->tls = tls;
    l->port = bound_port(fd);
    loop_fd_init(&l->watch, server->loop, fd, accept_some, l);
    loop_timer_init(&l->retry, server->loop, accept_again, l);
    list_push_back(&server->listeners, &l->link);
    watch_listeners(server);
}

uint32_t http_server_sockets(const struct http_server *server, int *fds, uint32_t max) {
    uint32_t n = 0;

    LIST_FOR_EACH(it, &server->listeners) {
        if (n < max) fds[n++] = LIST_ENTRY(it, struct listener, link)->watch.fd;
    }
    return n;
}

void http_server_leave_sockets(struct http_server *server) {
    close_listeners(server);
}

uint16_t http_server_port(const struct http_server *server) {
    struct list *first = list_first(&server->listeners);

    return first ? LIST_ENTRY(first, struct listener, link)->port : 0;
}

/* --- timeouts --------------------------------------------------------------------------------- */

/* One look for what is due. A connection that ends costs its socket, and many may be due at once: a
 * turn of the loop ends a few. */
struct sweep {
    uint64_t now_us;
    uint32_t n_left;
};

/* The one that has been in this state for longest, if that is longer than `age_us`. */
static struct peer *next_older_than(struct http_server *server, enum peer_state state,
                                    uint64_t age_us, struct sweep *sweep) {
    struct list *link = list_first(&server->peers[state]);
    struct peer *p = link ? LIST_ENTRY(link, struct peer, link) : NULL;

    if (!p || sweep->n_left == 0 || sweep->now_us - p->since_us <= age_us) return NULL;
    sweep->n_left--;
    return p;
}

static struct peer *find_stalled(struct http_server *server, enum peer_state state,
                                 uint64_t now_us) {
    uint64_t most_us = (uint64_t)server->limits.write_stall_timeout_ms * 1000;

    LIST_FOR_EACH(it, &server->peers[state]) {
        struct peer *p = LIST_ENTRY(it, struct peer, link);

        peer_check_stall(p, now_us);
        if (now_us - p->stall_since_us > most_us) return p;
    }
    return NULL;
}

/* An idle peer's last answer may still be on its way: the turn has not sent it yet, or the client
 * has not read it. It gets that first. A request that has come is answered; one that meets our FIN
 * finds a connection that was closed in order, not a reset: that is read off while we linger. */
static void leave_idle(struct peer *p) {
    if (conn_input(&p->conn).len || conn_has_unread(&p->conn)) {
        peer_set_state(
            p, (enum peer_state)p->state); /* its time begins again, at the end of the list */
        return;
    }
    report_closed(p->server, p->state == PEER_NEW ? HTTP_CLOSED_SILENT : HTTP_CLOSED_IDLE, p);
    peer_end(p);
}

/* The current idle limit of a connection whose configured one is this. */
static uint64_t idle_limit_us(const struct http_server *server, uint32_t limit_ms,
                              uint64_t now_us) {
    uint64_t limit_us = (uint64_t)limit_ms * 1000;
    bool is_late = server->is_draining && now_us - server->announced_us >= server->drain_idle_us;

    return is_late ? MIN(limit_us, server->drain_idle_us) : limit_us;
}

static void sweep_in(struct http_server *server, uint64_t us) {
    loop_timer_start(&server->sweep, server->is_draining ? MIN(us, DRAIN_SWEEP_US) : us);
}

/* Handlers may answer other requests while one is aborted, so no list is walked across a call. */
static void sweep(void *arg) {
    struct http_server *server = arg;
    const struct http_limits *l = &server->limits;
    uint64_t now_us = loop_now_us(server->loop);
    struct sweep due = {now_us, ENDS_PER_TURN};
    struct peer *p;

    while ((p = next_older_than(server, PEER_IDLE,
                                idle_limit_us(server, l->idle_timeout_ms, now_us), &due)))
        leave_idle(p);
    while ((p = next_older_than(server, PEER_NEW, idle_limit_us(server, l->head_timeout_ms, now_us),
                                &due)))
        leave_idle(p);
    while ((p = next_older_than(server, PEER_HANDSHAKE, (uint64_t)l->handshake_timeout_ms * 1000,
                                &due))) {
        server->stats.timeouts_total++;
        report_handshake_failed(server);
        peer_close(p);
    }
    while ((p = next_older_than(server, PEER_HEAD, (uint64_t)l->head_timeout_ms * 1000, &due))) {
        peer_timed_out(p);
    }
    while ((p = next_older_than(server, PEER_LINGERING, LINGER_US, &due)))
        peer_close(p);
    if (due.n_left == 0) { /* the walks over all that are open wait for the last of these */
        sweep_in(server, REST_SWEEP_US);
        return;
    }
    memory_sweep(server);
    while ((p = find_stalled(server, PEER_ANSWERING, now_us)) ||
           (p = find_stalled(server, PEER_FLUSHING, now_us))) {
        server->stats.timeouts_total++;
        report_closed(server, HTTP_CLOSED_STALLED, p);
        peer_abort(p);
    }
    if (server->stats.open_connections) sweep_in(server, server->sweep_us);
}

void http_server_set_limits(struct http_server *server, const struct http_limits *limits) {
    struct http_limits *l = &server->limits;

    l->max_connections = limits->max_connections;
    l->max_body_bytes = limits->max_body_bytes;
    l->head_timeout_ms = limits->head_timeout_ms;
    l->idle_timeout_ms = limits->idle_timeout_ms;
    fill_limits(l);
    if (l->budget) fit_to_budget(l);
    server->sweep_us = sweep_interval_us(l);
    if (loop_timer_is_running(&server->sweep)) sweep_in(server, server->sweep_us);
    watch_listeners(server);
}

/* --- draining --------------------------------------------------------------------------------- */

static void report_drained(void *arg) {
    struct http_server *server = arg;

    if (server->on_drained) server->on_drained(server->drained_arg);
}

void server_has_room(struct http_server *server) {
    server->is_full = false;
    watch_listeners(server);
}

void server_peer_gone(struct http_server *server) {
    if (server->is_full && !is_at_capacity(server)) server_has_room(server);
    if (server->is_draining && server->stats.open_connections == 0) {
        loop_defer(server->loop, &server->drained);
    }
}

void http_server_announce_close(struct http_server *server) {
    if (!server->is_closing) server->announced_us = loop_now_us(server->loop);
    server->is_closing = true;
}

static void end_all_in(struct http_server *server, enum peer_state state) {
    struct list *last = list_last(&server->peers[state]), *link;

    while (last && (link = list_first(&server->peers[state])) != NULL) { /* each once */
        leave_idle(LIST_ENTRY(link, struct peer, link));
        if (link == last) break;
    }
}

static void end_idle_now(struct http_server *server) {
    struct list *link;

    end_all_in(server, PEER_IDLE);
    end_all_in(server, PEER_NEW);
    while ((link = list_first(&server->peers[PEER_HANDSHAKE])))
        peer_close(LIST_ENTRY(link, struct peer, link));
}

void http_server_drain_idle(struct http_server *server, uint64_t idle_us,
                            void (*on_drained)(void *arg), void *arg) {
    http_server_announce_close(server);
    accept_the_last(server);
    close_listeners(server);
    server->is_draining = true;
    server->drain_idle_us = idle_us;
    server->on_drained = on_drained;
    server->drained_arg = arg;
    if (idle_us == 0) end_idle_now(server);
    if (server->stats.open_connections == 0) {
        loop_defer(server->loop, &server->drained);
    } else {
        sweep_in(server, server->sweep_us);
    }
}

void http_server_drain(struct http_server *server, void (*on_drained)(void *arg), void *arg) {
    http_server_drain_idle(server, 0, on_drained, arg);
}

bool http_server_is_sending(const struct http_server *server) {
    if (!list_is_empty(&server->peers[PEER_ANSWERING])) return true;
    if (!list_is_empty(&server->peers[PEER_FLUSHING])) return true;
    LIST_FOR_EACH(it, &server->peers[PEER_IDLE]) { /* between requests, the last answer half sent */
        if (conn_pending(&LIST_ENTRY(it, struct peer, link)->conn) > 0) return true;
    }
    return false;
}

struct http_server_stats http_server_stats(const struct http_server *server) {
    return server->stats;
}

/* --- small shared things ---------------------------------------------------------------------- */

struct str server_date(struct http_server *server) {
    uint64_t now_us = loop_now_us(server->loop);

    if (!server->date[0] || now_us - server->date_at_us > DATE_MAX_AGE_US) {
        time_t wall = (time_t)(clock_wall_us() / 1000000u);
        struct tm tm;

        gmtime_r(&wall, &tm);
        strftime(server->date, sizeof(server->date), "%a, %d %b %Y %H:%M:%S GMT", &tm);
        server->date_at_us = now_us;
    }
    return str_of(server->date);
}

struct exchange *server_lend_exchange(struct http_server *server) {
    struct list *link = list_pop_front(&server->spares);
    struct exchange *x = link ? LIST_ENTRY(link, struct exchange, link) : mem_alloc(sizeof(*x));

    if (link) server->n_spares--;
    memset(&x->req, 0, sizeof(x->req));
    x->link = (struct list){NULL, NULL};
    http_request_init(&x->head);
    x->body_len = x->total_len = 0;
    buf_init(&x->fields, HTTP_MAX_HEAD_BYTES);
    x->answer = ANSWER_NONE;
    x->is_chunked = x->is_refused = x->is_whole = false;
    x->pooled_bytes = 0;
    x->claim = (struct body_claim){0};
    x->came_bytes = 0;
    return x;
}

void server_take_back(struct http_server *server, struct exchange *x) {
    memory_release(x);
    buf_fini(&x->fields);
    if (server->n_spares == MAX_SPARE_EXCHANGES) {
        mem_free(x);
        return;
    }
    list_push_front(&server->spares, &x->link);
    server->n_spares++;
}
