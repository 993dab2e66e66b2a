/* router/upgrade/handover_wire.h - one packet of a handover: JSON, and descriptors beside it. For
 * handover.c and takeover_client.c alone. */
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
    uint32_t n_fds; /* handover_packet_fini closes those not set to -1 */
};

/* ST_INVALID: the path is empty or too long for a socket. */
MUST_USE enum status handover_address(const char *path, struct sockaddr_un *addr,
                                      struct error *err);

/* ST_AGAIN: no message (within the socket's timeout); ST_UNAVAILABLE: the peer closed; ST_INVALID:
 * malformed. Only ST_OK leaves a packet to fini. */
MUST_USE enum status handover_receive(int fd, struct handover_packet *p, struct error *err);
void handover_packet_fini(struct handover_packet *p);

/* False: the peer closed or does not read. */
bool handover_send(int fd, struct str json, const int *fds, uint32_t n_fds) MUST_USE;
bool handover_say(int fd, const char *type) MUST_USE; /* {"type":...} */

#endif
