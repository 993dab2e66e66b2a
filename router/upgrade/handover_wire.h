/* router/upgrade/handover_wire.h - one packet of a handover: JSON, and descriptors beside it. For handover.c and
 * takeover_client.c alone. */
#ifndef ROUTER_UPGRADE_HANDOVER_WIRE_H
#define ROUTER_UPGRADE_HANDOVER_WIRE_H

#include <sys/socket.h>
#include <sys/un.h>

#include "common/base/buf.h"
#include "common/text/json.h"
#include "router/upgrade/handover.h"

#define HANDOVER_PACKET_FDS 64u /* the system takes no more than 253 at once */

struct handover_packet {
    struct json *json;
    char type[32]; /* its member "type", or "" */
    int fds[HANDOVER_PACKET_FDS];
    uint32_t n_fds; /* closed by handover_packet_fini but for those that were taken: -1 */
};

/* ST_INVALID: the path is empty or longer than the system takes. */
MUST_USE enum status handover_address(const char *path, struct sockaddr_un *addr,
                                      struct error *err);

/* ST_AGAIN: nothing is there (or not within the socket's patience); ST_UNAVAILABLE: the other side has
 * gone; ST_INVALID: what it said cannot be read. Only ST_OK leaves something to fini. */
MUST_USE enum status handover_receive(int fd, struct handover_packet *p, struct error *err);
void handover_packet_fini(struct handover_packet *p);

/* False: the other side has gone, or does not read. */
bool handover_send(int fd, struct str json, const int *fds, uint32_t n_fds) MUST_USE;
bool handover_say(int fd, const char *type) MUST_USE; /* {"type":...} */

#endif
