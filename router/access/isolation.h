/* router/access/isolation.h - keeping the prefix caches of tenants apart.
 *
 * A prefix hit is faster than a miss, so whoever shares a cache can learn by the clock what others
 * have sent. With --isolate-by tenant each request gets a salt
 *
 *      HMAC-SHA256(secret, tenant, the client's own salt)            64 hexadecimal digits
 *
 * which enters the hash of the first KV block, and with it of all that follow: equal prompts of two
 * tenants share nothing. Without the secret nobody can make another's salt. Workers of ours that
 * trust the router take it from a header; for all others it is put into the body, the one rewrite
 * that is made of a request:
 *
 *      {"prompt": ...}                     {"cache_salt":"9f..","prompt": ...}
 *      {"cache_salt": "mine", ...}         {"cache_salt": "9f..", ...}         its value is replaced
 *
 * A second key beside the client's would mean whatever the engine's parser makes of it; so the value
 * is replaced, and nothing is lost by that, since the salt has the client's in it. SGLang's /generate
 * calls the field extra_key. Pure; any thread. */
#ifndef ROUTER_ACCESS_ISOLATION_H
#define ROUTER_ACCESS_ISOLATION_H

#include "common/base/status.h"
#include "router/prompt/body_scan.h"

#define ISOLATION_SALT_CHARS 64
#define ISOLATION_SECRET_MIN 16 /* bytes of a secret that is given */

struct isolation {
    uint8_t secret[32]; /* of what was given, or random */
    bool is_random;     /* no other router makes the same salts */
};

/* From a file (blanks around it do not count), from text, or neither: a random one. */
MUST_USE enum status isolation_init(struct isolation *s, const char *file, const char *text,
                                    struct error *err);

/* A random secret becomes one that is made from what routers have in common already. */
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

/* `body` was scanned into `scan`; `is_generate`: for SGLang's own call. */
void isolation_splice(struct isolation_splice *out, struct str body, const struct body_scan *scan,
                      bool is_generate, const char *salt);

#endif
