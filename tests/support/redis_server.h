/* tests/support/redis_server.h - a real redis-server or valkey-server of the test's own, in a
 * folder of its own, that writes nothing to disk. */
#ifndef TESTS_SUPPORT_REDIS_SERVER_H
#define TESTS_SUPPORT_REDIS_SERVER_H

#include <sys/types.h>

#include "common/base/base.h"

struct redis_server {
    pid_t pid;
    uint16_t port;                           /* over TLS if there are arguments for it */
    char port_text[8], folder[64], path[96]; /* path: of its unix socket */
};

/* Waits until it answers. `more`: arguments after the usual ones, NULL at the end; a port given as
 * "PORT" is this server's. False: none is installed. */
bool redis_server_start(struct redis_server *s, const char *const *more);
/* Empty, on its socket, and on its port if that is still free. */
void redis_server_restart(struct redis_server *s, const char *const *more);
void redis_server_kill(struct redis_server *s); /* kill -9 */
void redis_server_stop(struct redis_server *s); /* and removes the folder */

/* Over the unix socket, with blanks between the words; fails the test on an error. */
void redis_server_command(struct redis_server *s, const char *command);

#endif
