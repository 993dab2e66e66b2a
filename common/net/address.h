/* common/net/address.h - an address: its URL split, its name resolved, its network checked.
 *
 *      "http://gpu-7:8000/" --split--> gpu-7, 8000 --resolve--> 10.0.3.7:8000 --guard--> pinned
 *
 * A worker's name is resolved once, when it is added; probes and requests connect to that address
 * from then on.
 *
 * The guard is for workers added over the admin API. A caller who may add workers makes this
 * process connect to a host of their choice inside the network (server-side request forgery). So
 * the guard checks not the text of the URL but every address that it resolves to: each must lie in
 * a network that the operator allows. Link-local addresses, cloud metadata services, multicast and
 * the unspecified address are always refused. IPv4 addresses inside IPv6 ones (mapped, compatible,
 * NAT64, 6to4) are checked as IPv4. Workers from the command line and from files are not checked.
 *
 * Pure except address_resolve; any thread. */
#ifndef COMMON_NET_ADDRESS_H
#define COMMON_NET_ADDRESS_H

#include <sys/socket.h>

#include "common/base/base.h"
#include "common/base/buf.h"
#include "common/base/status.h"

#define ADDRESS_URL_MAX  256
#define ADDRESS_HOST_MAX (ADDRESS_URL_MAX - 20) /* leaves room for scheme, brackets and port */

struct address_url {
    char url[ADDRESS_URL_MAX];       /* "http://gpu-7:8000": lower case, nothing after the port */
    char authority[ADDRESS_URL_MAX]; /* "gpu-7:8000", "[::1]:8000" */
    char host[ADDRESS_HOST_MAX + 1]; /* "gpu-7", "::1" */
    uint16_t port;
    bool is_https;
};

/* "http://host:port" or "https://host:port", at most a slash behind it; no user, path or query. */
MUST_USE enum status address_split(struct str url, struct address_url *out, struct error *err);

struct address {
    struct sockaddr_storage addr;
    socklen_t len;
};

#define ADDRESS_TEXT_MAX 64
void address_text(const struct address *a, char out[ADDRESS_TEXT_MAX]); /* "[::1]:8000" */

struct address_guard;

/* Checks all addresses of the host against `guard` (NULL: none). *out is the first, an IPv4 one if
 * there is any, because engines listen on 0.0.0.0 more often than on ::. Looking up a name may
 * block for many seconds (resolver.h does not); numbers do not block. ST_NOT_FOUND: no such name;
 * ST_FORBIDDEN: the guard refused an address. */
MUST_USE enum status address_resolve(const struct address_url *url,
                                     const struct address_guard *guard, struct address *out,
                                     struct error *err);

/* As address_resolve for a numeric host; never blocks. ST_AGAIN: the host is a name. */
MUST_USE enum status address_resolve_number(const struct address_url *url,
                                            const struct address_guard *guard, struct address *out,
                                            struct error *err);

/* Every address of the host, at most `max`, unordered: only the IPv4 ones if there are any, since a
 * host with both kinds is one worker. May block. ST_NOT_FOUND. */
MUST_USE enum status address_resolve_all(const struct address_url *url, struct address *out,
                                         uint32_t max, uint32_t *n, struct error *err);

/* --- the guard -------------------------------------------------------------------------------- */

#define ADDRESS_GUARD_MAX 64

struct address_guard {
    struct address_net {
        uint8_t prefix[16]; /* IPv4 as ::ffff:a.b.c.d */
        uint8_t n_bits;
    } allowed[ADDRESS_GUARD_MAX];
    uint32_t n_allowed;
};

void address_guard_init(struct address_guard *g);        /* allows nothing */
void address_guard_allow_local(struct address_guard *g); /* loopback and private networks */

/* "10.0.0.0/8", "fd00::/8", or one address. ST_INVALID; ST_TOO_LARGE: more than
 * ADDRESS_GUARD_MAX. */
MUST_USE enum status address_guard_allow(struct address_guard *g, const char *cidr,
                                         struct error *err);

/* ST_FORBIDDEN: err names the address and the reason. */
MUST_USE enum status address_guard_check(const struct address_guard *g, const struct address *a,
                                         struct error *err);

#endif
