/* common/net/address.c - one spelling for all addresses: sixteen bytes, IPv4 as
 * ::ffff:a.b.c.d. */
#include "common/net/address.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>

/* --- the URL -----------------------------------------------------------------------------------*/

static bool is_host_byte(char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-' || c == '.' || c == '_';
}

static bool is_ipv6_byte(char c) {
    return (c >= 'a' && c <= 'f') || (c >= '0' && c <= '9') || c == ':' || c == '.';
}

static char lower(char c) {
    return c >= 'A' && c <= 'Z' ? (char)(c - 'A' + 'a') : c;
}

/* Copies in lower case; false when it is empty, too long, or holds a byte that no host has. */
static bool take_host(struct str s, bool is_ipv6, char out[ADDRESS_HOST_MAX + 1]) {
    if (s.len == 0 || s.len > ADDRESS_HOST_MAX) return false;
    for (size_t i = 0; i < s.len; i++) {
        out[i] = lower(s.ptr[i]);
        if (!(is_ipv6 ? is_ipv6_byte(out[i]) : is_host_byte(out[i]))) return false;
    }
    out[s.len] = '\0';
    return true;
}

/* "host:port" or "[v6]:port" */
static bool split_authority(struct str s, struct address_url *u) {
    const char *colon = s.len ? memrchr(s.ptr, ':', s.len) : NULL;
    bool is_ipv6 = s.len && s.ptr[0] == '[';
    struct str host, port;
    uint64_t number;

    if (!colon) return false;
    host = (struct str){s.ptr, (size_t)(colon - s.ptr)};
    port = (struct str){colon + 1, s.len - host.len - 1};
    if (port.len > 5 || str_to_u64(port, &number) != ST_OK) return false;
    if (number == 0 || number > 65535) return false;
    if (is_ipv6) {
        if (host.len < 2 || host.ptr[host.len - 1] != ']') return false;
        host = (struct str){host.ptr + 1, host.len - 2};
    }
    u->port = (uint16_t)number;
    return take_host(host, is_ipv6, u->host);
}

enum status address_split(struct str url, struct address_url *out, struct error *err) {
    struct address_url u = {0};
    struct str rest = url;

    if (str_starts(rest, STR("https://"))) {
        u.is_https = true;
        rest = (struct str){rest.ptr + 8, rest.len - 8};
    } else if (str_starts(rest, STR("http://"))) {
        rest = (struct str){rest.ptr + 7, rest.len - 7};
    } else {
        goto fail;
    }
    if (rest.len && rest.ptr[rest.len - 1] == '/') rest.len--;
    if (!split_authority(rest, &u)) goto fail;
    snprintf(u.authority, sizeof(u.authority), strchr(u.host, ':') ? "[%s]:%u" : "%s:%u", u.host,
             (unsigned)u.port);
    snprintf(u.url, sizeof(u.url), "%s://%.*s", u.is_https ? "https" : "http", ADDRESS_HOST_MAX + 8,
             u.authority);
    *out = u;
    return ST_OK;
fail:
    return error_set_param(err, ST_INVALID, "url",
                           "worker URL \"%.*s\" is not of the form http://host:port",
                           (int)MIN(url.len, 200), url.ptr ? url.ptr : "");
}

/* --- addresses as sixteen bytes ----------------------------------------------------------------*/

static const uint8_t mapped_prefix[12] = {[10] = 0xff, [11] = 0xff};

static void map_ipv4(uint8_t out[16], const void *ipv4) {
    memcpy(out, mapped_prefix, 12);
    memcpy(out + 12, ipv4, 4);
}

static bool to_bytes(const struct address *a, uint8_t out[16]) {
    if (a->addr.ss_family == AF_INET) {
        map_ipv4(out, &((const struct sockaddr_in *)&a->addr)->sin_addr);
        return true;
    }
    if (a->addr.ss_family != AF_INET6) return false;
    memcpy(out, &((const struct sockaddr_in6 *)&a->addr)->sin6_addr, 16);
    return true;
}

void address_text(const struct address *a, char out[ADDRESS_TEXT_MAX]) {
    char host[INET6_ADDRSTRLEN] = "?";

    if (a->addr.ss_family == AF_INET6) {
        const struct sockaddr_in6 *in6 = (const struct sockaddr_in6 *)&a->addr;

        inet_ntop(AF_INET6, &in6->sin6_addr, host, sizeof(host));
        snprintf(out, ADDRESS_TEXT_MAX, "[%s]:%u", host, (unsigned)ntohs(in6->sin6_port));
    } else {
        const struct sockaddr_in *in = (const struct sockaddr_in *)&a->addr;

        inet_ntop(AF_INET, &in->sin_addr, host, sizeof(host));
        snprintf(out, ADDRESS_TEXT_MAX, "%s:%u", host, (unsigned)ntohs(in->sin_port));
    }
}

static bool net_has(const struct address_net *net, const uint8_t bytes[16]) {
    uint32_t n_whole = net->n_bits / 8, rest = net->n_bits % 8;

    if (memcmp(net->prefix, bytes, n_whole) != 0) return false;
    return rest == 0 || ((net->prefix[n_whole] ^ bytes[n_whole]) >> (8 - rest)) == 0;
}

static bool parse_net(const char *cidr, struct address_net *out) {
    const char *slash = strchr(cidr, '/');
    size_t n = slash ? (size_t)(slash - cidr) : strlen(cidr);
    uint64_t n_bits, offset = 0, most = 128;
    char host[INET6_ADDRSTRLEN];
    struct in_addr ipv4;

    if (n >= sizeof(host)) return false;
    memcpy(host, cidr, n);
    host[n] = '\0';
    if (inet_pton(AF_INET, host, &ipv4) == 1) {
        map_ipv4(out->prefix, &ipv4);
        offset = 96;
        most = 32;
    } else if (inet_pton(AF_INET6, host, out->prefix) != 1) {
        return false;
    }
    n_bits = most;
    if (slash && (str_to_u64(str_of(slash + 1), &n_bits) != ST_OK || n_bits > most)) return false;
    out->n_bits = (uint8_t)(offset + n_bits);
    return true;
}

/* --- the guard ---------------------------------------------------------------------------------*/

/* Networks that no worker may be in, whatever is allowed: link-local, metadata services,
 * multicast. */
static const struct {
    const char *cidr, *what;
} never[] = {
    {"169.254.0.0/16", "link-local, where clouds keep their metadata service"},
    {"fe80::/10", "link-local"},
    {"fd00:ec2::254", "a cloud's metadata service"},
    {"100.100.100.200", "a cloud's metadata service"},
    {"168.63.129.16", "a cloud's metadata service"},
    {"192.0.0.192", "a cloud's metadata service"},
    {"0.0.0.0/8", "unspecified"},
    {"::", "unspecified"},
    {"224.0.0.0/4", "multicast"},
    {"ff00::/8", "multicast"},
    {"240.0.0.0/4", "reserved or broadcast"},
};

/* The IPv4 address that an IPv6 one is translated to, if any. */
static bool find_embedded(const uint8_t bytes[16], uint8_t out[16]) {
    static const uint8_t nat64[12] = {0x00, 0x64, 0xff, 0x9b}, zero[12];

    if (memcmp(bytes, nat64, 12) == 0) {
        map_ipv4(out, bytes + 12);
        return true;
    }
    if (memcmp(bytes, zero, 12) == 0 && (bytes[12] | bytes[13])) { /* ::a.b.c.d, not ::1 */
        map_ipv4(out, bytes + 12);
        return true;
    }
    if (bytes[0] == 0x20 && bytes[1] == 0x02) { /* 6to4 */
        map_ipv4(out, bytes + 2);
        return true;
    }
    return false;
}

static const char *find_reason(const uint8_t bytes[16]) {
    struct address_net net;

    for (size_t i = 0; i < ARRAY_LEN(never); i++) {
        if (parse_net(never[i].cidr, &net) && net_has(&net, bytes)) return never[i].what;
    }
    return NULL;
}

void address_guard_init(struct address_guard *g) {
    g->n_allowed = 0;
}

enum status address_guard_allow(struct address_guard *g, const char *cidr, struct error *err) {
    struct address_net net;

    if (!parse_net(cidr, &net)) {
        return error_set(err, ST_INVALID,
                         "invalid network \"%.80s\": use 10.0.0.0/8, fd00::/8 or one address",
                         cidr);
    }
    if (g->n_allowed == ADDRESS_GUARD_MAX) {
        return error_set(err, ST_TOO_LARGE, "more than %d networks, at \"%.80s\": give fewer",
                         ADDRESS_GUARD_MAX, cidr);
    }
    g->allowed[g->n_allowed++] = net;
    return ST_OK;
}

void address_guard_allow_local(struct address_guard *g) {
    static const char *const local[] = {"127.0.0.0/8",    "::1",     "10.0.0.0/8", "172.16.0.0/12",
                                        "192.168.0.0/16", "fc00::/7"};

    for (size_t i = 0; i < ARRAY_LEN(local) && g->n_allowed < ADDRESS_GUARD_MAX; i++) {
        if (parse_net(local[i], &g->allowed[g->n_allowed])) g->n_allowed++;
    }
}

enum status address_guard_check(const struct address_guard *g, const struct address *a,
                                struct error *err) {
    char text[ADDRESS_TEXT_MAX];
    uint8_t bytes[16], embedded[16];
    const char *why;

    address_text(a, text);
    if (!to_bytes(a, bytes)) {
        return error_set_param(err, ST_FORBIDDEN, "url", "the address is neither IPv4 nor IPv6");
    }
    why = find_reason(bytes);
    if (!why && find_embedded(bytes, embedded)) {
        why = find_reason(embedded);
        memcpy(bytes, embedded, sizeof(bytes));
    }
    if (why) {
        return error_set_param(
            err, ST_FORBIDDEN, "url",
            "%s is %s: no worker may be there unless --worker-urls or --worker-file names it", text,
            why);
    }
    for (uint32_t i = 0; i < g->n_allowed; i++) {
        if (net_has(&g->allowed[i], bytes)) return ST_OK;
    }
    return error_set_param(err, ST_FORBIDDEN, "url",
                           "%s is in no network that --worker-allow-cidr allows: add its network "
                           "there, or name the worker with --worker-urls or --worker-file",
                           text);
}

/* --- names -------------------------------------------------------------------------------------*/

/* The caller frees *found. ST_AGAIN: the host is a name, and `flags` require a number. */
static enum status look_up(const struct address_url *url, int flags, struct addrinfo **found,
                           struct error *err) {
    struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM, .ai_flags = flags};
    char port[8];
    int code;

    snprintf(port, sizeof(port), "%u", (unsigned)url->port);
    code = getaddrinfo(url->host, port, &hints, found);
    if (code == EAI_NONAME && (flags & AI_NUMERICHOST)) return ST_AGAIN;
    if (code == 0 && *found) return ST_OK;
    return error_set_param(err, ST_NOT_FOUND, "url", "%s: cannot look up %s: %s", url->url,
                           url->host, gai_strerror(code));
}

static struct address address_of(const struct addrinfo *info) {
    struct address a = {.len = info->ai_addrlen};

    memcpy(&a.addr, info->ai_addr, info->ai_addrlen);
    return a;
}

static enum status resolve(const struct address_url *url, int flags,
                           const struct address_guard *guard, struct address *out,
                           struct error *err) {
    struct addrinfo *found = NULL;
    struct address chosen = {0};
    enum status st = look_up(url, flags, &found, err);

    if (st != ST_OK) return st;
    for (const struct addrinfo *it = found; it && st == ST_OK; it = it->ai_next) {
        struct address a = address_of(it);

        if (guard) st = address_guard_check(guard, &a, err);
        if (!chosen.len || (chosen.addr.ss_family != AF_INET && it->ai_family == AF_INET)) {
            chosen = a;
        }
    }
    freeaddrinfo(found);
    if (st == ST_OK) *out = chosen;
    return st;
}

enum status address_resolve(const struct address_url *url, const struct address_guard *guard,
                            struct address *out, struct error *err) {
    return resolve(url, 0, guard, out, err);
}

enum status address_resolve_number(const struct address_url *url, const struct address_guard *guard,
                                   struct address *out, struct error *err) {
    return resolve(url, AI_NUMERICHOST, guard, out, err);
}

enum status address_resolve_all(const struct address_url *url, struct address *out, uint32_t max,
                                uint32_t *n, struct error *err) {
    struct addrinfo *found = NULL;
    enum status st = look_up(url, 0, &found, err);
    int family = AF_INET6;

    if (st != ST_OK) return st;
    for (const struct addrinfo *it = found; it; it = it->ai_next)
        if (it->ai_family == AF_INET) family = AF_INET;
    *n = 0;
    for (const struct addrinfo *it = found; it && *n < max; it = it->ai_next)
        if (it->ai_family == family) out[(*n)++] = address_of(it);
    freeaddrinfo(found);
    return ST_OK;
}
