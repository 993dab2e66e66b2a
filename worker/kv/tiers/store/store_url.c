/* worker/kv/tiers/store/store_url.c - from the ends inwards: scheme, then database, then secrets,
 * and what is left is the host. */
#include "worker/kv/tiers/store/store_url.h"

#include <stdio.h>

#define DATABASE_MAX 1023

static struct str after(struct str s, size_t n) {
    return (struct str){s.ptr + n, s.len - n};
}

static struct str before(struct str s, const char *end) {
    return (struct str){s.ptr, (size_t)(end - s.ptr)};
}

static const char *last(struct str s, char c) {
    return s.len ? memrchr(s.ptr, c, s.len) : NULL;
}

static enum status read_database(struct str text, uint32_t *out) {
    uint64_t n;

    if (text.len == 0) return ST_OK;
    if (str_to_u64(text, &n) != ST_OK || n > DATABASE_MAX) return ST_INVALID;
    *out = (uint32_t)n;
    return ST_OK;
}

/* "USER:PASSWORD", either of them empty; without a colon it is a user. */
static enum status read_secrets(struct str s, struct store_url *out) {
    const char *colon = s.len ? memchr(s.ptr, ':', s.len) : NULL;
    struct str user = colon ? before(s, colon) : s;
    struct str password = colon ? after(s, user.len + 1) : STR("");

    if (str_percent_decode(user, out->user, sizeof(out->user)) != ST_OK) return ST_INVALID;
    return str_percent_decode(password, out->password, sizeof(out->password));
}

/* Reads "HOST:PORT" as a worker's address is read. */
static enum status read_host(struct str s, bool is_tls, struct address_url *out) {
    const char *colon = last(s, ':'), *bracket = last(s, ']');
    char as_http[ADDRESS_URL_MAX], url[ADDRESS_URL_MAX];
    enum status st;
    int n;

    if (s.len > ADDRESS_HOST_MAX) return ST_INVALID;
    if (colon && colon > bracket) {
        snprintf(as_http, sizeof(as_http), "http://" STR_FMT, STR_ARG(s));
    } else {
        snprintf(as_http, sizeof(as_http), "http://" STR_FMT ":%d", STR_ARG(s), STORE_PORT);
    }
    st = address_split(str_of(as_http), out, NULL);
    if (st != ST_OK) return st;
    if (strlen(out->authority) > ADDRESS_HOST_MAX) return ST_INVALID; /* its name is read again */
    n = snprintf(url, sizeof(url), "%s://%s", is_tls ? "rediss" : "redis", out->authority);
    if (n < 0 || (size_t)n >= sizeof(url)) return ST_INVALID;
    memcpy(out->url, url, (size_t)n + 1);
    return ST_OK;
}

static enum status read_network(struct str rest, struct store_url *out) {
    const char *at = last(rest, '@'), *slash;

    if (at) {
        struct str secrets = before(rest, at);

        if (read_secrets(secrets, out) != ST_OK) return ST_INVALID;
        rest = after(rest, secrets.len + 1);
    }
    slash = rest.len ? memchr(rest.ptr, '/', rest.len) : NULL;
    if (slash) {
        struct str host = before(rest, slash);

        if (read_database(after(rest, host.len + 1), &out->database) != ST_OK) return ST_INVALID;
        rest = host;
    }
    return read_host(rest, out->is_tls, &out->at);
}

static enum status read_unix(struct str rest, struct store_url *out) {
    const char *query = rest.len ? memchr(rest.ptr, '?', rest.len) : NULL;

    if (query) {
        struct str path = before(rest, query), text = after(rest, path.len + 1);

        if (!str_starts(text, STR("db=")) || read_database(after(text, 3), &out->database) != ST_OK)
            return ST_INVALID;
        rest = path;
    }
    if (rest.len < 2 || rest.ptr[0] != '/' || rest.len >= sizeof(out->path)) return ST_INVALID;
    memcpy(out->path, rest.ptr, rest.len);
    snprintf(out->at.url, sizeof(out->at.url), "unix://%s", out->path);
    return ST_OK;
}

enum status store_url_parse(struct str url, struct store_url *out, struct error *err) {
    struct store_url u = {0};
    enum status st = ST_INVALID;

    if (str_starts(url, STR("redis://"))) {
        st = read_network(after(url, 8), &u);
    } else if (str_starts(url, STR("rediss://"))) {
        u.is_tls = true;
        st = read_network(after(url, 9), &u);
    } else if (str_starts(url, STR("unix://"))) {
        st = read_unix(after(url, 7), &u);
    }
    if (st != ST_OK) {
        return error_set(err, ST_INVALID,
                         "invalid URL of a store: use redis://[USER@]HOST[:PORT][/DATABASE], "
                         "rediss:// for TLS, or unix:///PATH[?db=DATABASE], with USER "
                         "percent-encoded");
    }
    *out = u;
    return ST_OK;
}

const char *store_url_name(const struct store_url *url) {
    return url->at.url;
}

enum status store_url_sibling(const struct store_url *like, struct str host, uint16_t port,
                              struct store_url *out) {
    char authority[ADDRESS_URL_MAX];
    bool is_ipv6 = host.len && memchr(host.ptr, ':', host.len);
    struct store_url u = *like;

    if (host.len == 0 || host.len > ADDRESS_HOST_MAX - 8) return ST_INVALID;
    snprintf(authority, sizeof(authority), is_ipv6 ? "[" STR_FMT "]:%u" : STR_FMT ":%u",
             STR_ARG(host), port);
    u.path[0] = '\0';
    if (read_host(str_of(authority), u.is_tls, &u.at) != ST_OK) return ST_INVALID;
    *out = u;
    return ST_OK;
}
