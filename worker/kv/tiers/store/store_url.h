/* worker/kv/tiers/store/store_url.h - where a shared store is.
 *
 *      redis://[USER[:PASSWORD]@]HOST[:PORT][/DATABASE]      rediss:// the same over TLS
 *      unix:///PATH[?db=DATABASE]
 *
 * USER and PASSWORD are percent-encoded. No message shows a password. Pure. */
#ifndef WORKER_KV_TIERS_STORE_STORE_URL_H
#define WORKER_KV_TIERS_STORE_STORE_URL_H

#include "common/base/buf.h"
#include "common/net/address.h"

#define STORE_URL_MAX    1024
#define STORE_SECRET_MAX 256
#define STORE_PATH_MAX   108 /* sun_path */
#define STORE_PORT       6379

struct store_url {
    struct address_url at;     /* url, host, port; not of a unix socket */
    char path[STORE_PATH_MAX]; /* of a unix socket; "": none */
    char user[STORE_SECRET_MAX], password[STORE_SECRET_MAX]; /* "": none */
    uint32_t database;
    bool is_tls;
};

/* ST_INVALID: err has the form that is expected. */
MUST_USE enum status store_url_parse(struct str url, struct store_url *out, struct error *err);

/* "redis://host:port", "unix:///path": what names the server, for people and for hashing. */
const char *store_url_name(const struct store_url *url);

/* An address of the same scheme as *like, with its user, password and database. ST_INVALID: it is
 * no host, or too long. */
MUST_USE enum status store_url_sibling(const struct store_url *like, struct str host, uint16_t port,
                                       struct store_url *out);

#endif
