/* router/upgrade/service_manager.h - the two protocols of service managers such as systemd, without
 * its library.
 *
 *      NOTIFY_SOCKET                        READY=1, STOPPING=1, RELOADING=1, MAINPID=, WATCHDOG=1
 *      LISTEN_PID, LISTEN_FDS, LISTEN_FDNAMES   listening sockets that are held open over a restart
 *
 * Without these variables each call does nothing. Thread: control. */
#ifndef ROUTER_UPGRADE_SERVICE_MANAGER_H
#define ROUTER_UPGRADE_SERVICE_MANAGER_H

#include "common/base/status.h"

struct loop;
struct service_manager;

struct service_manager *service_manager_open(struct loop *loop); /* starts the watchdog messages */
void service_manager_close(struct service_manager *m);           /* NULL is fine */

void service_manager_ready(struct service_manager *m);
void service_manager_succeeding(struct service_manager *m); /* ready, as the successor of another */
void service_manager_reloading(struct service_manager *m);  /* until ready again */
void service_manager_stopping(struct service_manager *m);

#define SERVICE_SOCKETS_MAX 64

/* The sockets passed to this process: those named "admin", and all others for clients. The caller
 * owns them. ST_INVALID: one is not a listening TCP socket. Removes the variables from the
 * environment, so that children do not use them. */
struct service_sockets {
    int client[SERVICE_SOCKETS_MAX], admin[SERVICE_SOCKETS_MAX];
    uint32_t n_client, n_admin;
};
MUST_USE enum status service_manager_sockets(struct service_sockets *out, struct error *err);

/* True when the descriptor listens; then makes it non-blocking and close-on-exec. */
MUST_USE enum status service_socket_check(int fd, struct error *err);

#endif
