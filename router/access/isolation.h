/* router/access/isolation.h - separates the prefix caches of tenants.
 *
 * A prefix hit is faster than a miss, so a tenant that shares a cache can learn by timing what
 * others have sent. With --isolate-by tenant each request gets a salt
 *
 *      HMAC-SHA256(secret, tenant, the client's own salt)            64 hexadecimal digits
 *
 * which enters the hash of the first KV block, and so of all later ones: equal prompts of two
 * tenants share nothing. The secret keeps a tenant from computing another's salt. Our own workers
 * that trust the router take the salt from a header; for all others it is put into the body, the
 * only rewrite of a request body:
 *
 *      {"prompt": ...}                     {"cache_salt":"9f..","prompt": ...}
 *      {"cache_salt": "mine", ...}         {"cache_salt": "9f..", ...}         its value is replaced
 *
 * A second key beside the client's would be ambiguous to JSON parsers, so the value is replaced;
 * the salt includes the client's. SGLang's /generate calls the field extra_key. Pure; any
 * thread. */
#ifndef ROUTER_ACCESS_ISOLATION_H
#define ROUTER_ACCESS_ISOLATION_H

#include "common/base/status.h"
#include "router/prompt/body_scan.h"

#define ISOLATION_SALT_CHARS 64
#define ISOLATION_SECRET_MIN 16 /* bytes of a configured secret */

struct isolation {
    uint8_t secret[32]; /* derived from the configured secret, or random */
    bool is_random;     /* no other router computes the same salts */
};

/* From a file (surrounding blanks are ignored), from text, or neither: a random one. */
MUST_USE enum status isolation_init(struct isolation *s, const char *file, const char *text,
                                    struct error *err);

/* Replaces a random secret by one derived from what routers share. */
void isolation_derive(struct isolation *s, const void *seed, size_t n);

/* `client_salt` as it stands in the body, or STR_NULL. */
void isolation_salt(const struct isolation *s, struct str tenant, struct str client_salt,
                    char out[ISOLATION_SALT_CHARS + 1]);

/* Body bytes [at, at + removed) become `text`. */
#define ISOLATION_SPLICE_MAX (ISOLATION_SALT_CHARS + 32)
struct isolation_splice {
    size_t at, removed, len;
    char text[ISOLATION_SPLICE_MAX];
};

/* `body` was scanned into `scan`; `is_generate`: SGLang's own call. */
void isolation_splice(struct isolation_splice *out, struct str body, const struct body_scan *scan,
                      bool is_generate, const char *salt);

#endif
