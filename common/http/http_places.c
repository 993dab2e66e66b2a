/* common/http/http_places.c - closes connections when all are taken and another one arrives.
 *
 * Connections with a request in flight are never closed for another. First those that never sent a
 * byte, then those idle between requests, then those whose head has been arriving for long; of each
 * kind those of the address with the most connections, oldest first. So one address cannot displace
 * others, and behind a balancer, where all have one address, age decides.
 *
 * Closing scans a whole list, so it frees several places at a time where there are many. An IPv6
 * address counts by its first 64 bits, the usual size of one client's network. */
#include <netinet/in.h>

#include "common/base/hash.h"
#include "common/base/mem.h"
#include "common/http/http_server_internal.h"

#define PLACES_PART 64 /* of max_connections, made free at a time */
#define HEAD_AGE_US 1000000u

void places_enter(struct peer *p, const struct sockaddr_storage *addr) {
    const struct sockaddr_in6 *v6 = (const struct sockaddr_in6 *)addr;
    const struct sockaddr_in *v4 = (const struct sockaddr_in *)addr;
    struct map *addresses = &p->server->addresses;
    uint64_t id = addr->ss_family == AF_INET6
                      ? hash_64(&v6->sin6_addr, 8, addresses->seed)
                      : hash_64(&v4->sin_addr, sizeof(v4->sin_addr), addresses->seed);

    if (addr->ss_family == AF_INET6 && IN6_IS_ADDR_V4MAPPED(&v6->sin6_addr))
        id = hash_64(&v6->sin6_addr.s6_addr[12], 4, addresses->seed);
    id |= 1; /* 0 is none */
    p->address = map_find(addresses, id);
    if (!p->address) {
        p->address = mem_zalloc(sizeof(*p->address));
        p->address->id = id;
        map_insert(addresses, id, p->address);
    }
    p->address->n_connections++;
}

void places_leave(struct peer *p) {
    if (--p->address->n_connections == 0)
        mem_free(map_erase(&p->server->addresses, p->address->id));
    p->address = NULL;
}

static bool may_go(struct peer *p, uint64_t now_us) {
    if (p->state == PEER_HEAD) return now_us - p->since_us > HEAD_AGE_US;
    conn_flush(&p->conn); /* its last answer may wait for the end of this turn */
    return conn_pending(&p->conn) == 0 && conn_input(&p->conn).len == 0 &&
           !conn_has_unread(&p->conn);
}

static uint32_t most_of_an_address(const struct http_server *server, enum peer_state state) {
    uint32_t most = 0;

    LIST_FOR_EACH(it, &server->peers[state]) {
        most = MAX(most, LIST_ENTRY(it, struct peer, link)->address->n_connections);
    }
    return most;
}

/* Closes up to n in one state whose address has at least `most`; returns how many. */
static uint32_t close_some(struct http_server *server, enum peer_state state, uint32_t most,
                           uint32_t n) {
    uint64_t now_us = loop_now_us(server->loop);
    uint32_t n_closed = 0;

    LIST_FOR_EACH(it, &server->peers[state]) {
        struct peer *p = LIST_ENTRY(it, struct peer, link);

        if (n_closed == n) break;
        if (p->address->n_connections + n_closed < most || !may_go(p, now_us)) continue;
        report_closed(server, HTTP_CLOSED_ROOM, p);
        peer_close(p);
        n_closed++;
    }
    return n_closed;
}

bool places_make_room(struct http_server *server) {
    static const enum peer_state order[] = {PEER_NEW, PEER_HANDSHAKE, PEER_IDLE, PEER_HEAD};
    uint32_t n = MAX(1, server->limits.max_connections / PLACES_PART);

    for (size_t i = 0; i < ARRAY_LEN(order); i++) {
        uint32_t most = most_of_an_address(server, order[i]);

        if (close_some(server, order[i], most, n) || close_some(server, order[i], 0, n))
            return true;
    }
    return false;
}
