/* router/frontend.h - one router loop: its listener, its requests, its proxy.
 *
 * The process has one per core, all on the same port (SO_REUSEPORT); they share the registry and
 * nothing else. A frontend runs on a thread of its own; the control loop sends it mail. */
#ifndef ROUTER_FRONTEND_H
#define ROUTER_FRONTEND_H

#include "common/http/http_server.h"
#include "router/proxy/proxy.h"

struct admin;
struct frontend;
struct holds;
struct mailbox;
struct tls;

struct frontend_config {
    const char *host;
    uint16_t port; /* 0: the first frontend's choice, see frontend_port */
    bool share_port;
    const int *sockets; /* already listening: used instead of host and port */
    uint32_t n_sockets;
    struct tls *tls;           /* NULL: plain HTTP */
    struct http_limits limits; /* with the budget of bodies, which all loops share */
    struct proxy_config proxy;
    struct holds *holds;     /* answers the paths of holds.h */
    struct mailbox *control; /* receives one mail, to be freed, when the thread has ended */
};

/* Listens at once, so that a port in use is reported before anything else starts. */
MUST_USE enum status frontend_create(struct frontend **out, const struct frontend_config *config,
                                     struct registry *registry, struct metrics *metrics,
                                     struct log *log, const struct admin *admin, struct error *err);
uint16_t frontend_port(const struct frontend *f);

/* Its listening sockets, which it still owns; before it is started. */
uint32_t frontend_sockets(const struct frontend *f, int *fds, uint32_t max);

MUST_USE enum status frontend_start(struct frontend *f, struct error *err); /* its thread */

/* From the control thread: other limits, and other values of proxy (proxy_configure), for what
 * comes once the loop has taken them. Both are copied, and so is the worker key. */
void frontend_configure(struct frontend *f, const struct http_limits *limits,
                        const struct proxy_config *proxy);

/* From the control thread: the worker takes requests and answers none (proxy_worker_hung), or does
 * so no longer (proxy_worker_answers). */
void frontend_worker_hung(struct frontend *f, uint32_t worker, uint32_t incarnation, bool is_hung);

/* From the control thread: serves for settle_us more, ending each connection with its next answer;
 * then stops listening, finishes open requests within timeout_us, and ends the thread. A second
 * call may shorten both. */
void frontend_drain(struct frontend *f, uint64_t settle_us, uint64_t timeout_us);

/* As frontend_drain when another process accepts from the same sockets: stops accepting at once. */
void frontend_leave(struct frontend *f, uint64_t settle_us, uint64_t timeout_us);
void frontend_destroy(struct frontend *f); /* waits for the thread; NULL is fine */

#endif
