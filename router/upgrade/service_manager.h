/* router/upgrade/service_manager.h - what a service manager such as systemd is told, and gives: its two
 * protocols of environment variables, without its library.
 *
 *      NOTIFY_SOCKET                        READY=1, STOPPING=1, RELOADING=1, MAINPID=, WATCHDOG=1
 *      LISTEN_PID, LISTEN_FDS, LISTEN_FDNAMES   listening sockets that are held open over a restart
 *
 * Without them every call does nothing. Thread: control. */
#ifndef ROUTER_UPGRADE_SERVICE_MANAGER_H
#define ROUTER_UPGRADE_SERVICE_MANAGER_H

#include "common/base/status.h"

struct loop;
struct service_manager;

struct service_manager *service_manager_open(struct loop *loop); /* begins to feed the watchdog */
void service_manager_close(struct service_manager *m);           /* NULL is fine */

void service_manager_ready(struct service_manager *m);
void service_manager_succeeding(struct service_manager *m); /* ready, in the place of another */
void service_manager_reloading(struct service_manager *m);  /* until ready again */
void service_manager_stopping(struct service_manager *m);

#define SERVICE_SOCKETS_MAX 64

/* The sockets that were passed to this process: those named "admin" apart, all others for clients.
 * They are the caller's. ST_INVALID: one is not a listening TCP socket. Takes the variables out of the
 * environment, so that no child believes they are its own. */
struct service_sockets {
    int client[SERVICE_SOCKETS_MAX], admin[SERVICE_SOCKETS_MAX];
    uint32_t n_client, n_admin;
};
MUST_USE enum status service_manager_sockets(struct service_sockets *out, struct error *err);

/* Whether it listens; and then it is made fit for a loop. For all that comes from outside. */
MUST_USE enum status service_socket_check(int fd, struct error *err);

#endif
