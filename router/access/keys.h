/* router/access/keys.h - API keys and their limits.
 *
 * Keys come from a file or from the environment, never from the command line, which every user of
 * the machine can read. Only their SHA-256 is kept. A line of the file is
 *
 *      KEY [tenant=NAME] [rps=N] [tokens_per_s=N] [max_concurrent=N] [priority=N] [weight=N]
 *          [max_share=N]                                                            # comment
 *
 * Keys of one tenant share a name, weight and share, and no limits; a key without a tenant is one
 * of its own.
 * `priority`: -8 to 7, smaller is served sooner, 0 is usual; a request may lower the priority of
 * its key, never raise it. `weight`, 0.01 to 100: the tenant's share of prefill in proportion to
 * others that wait, 1 if it has none. `max_share`, above 0 to 1: it gets at most so much of the
 * prefill while others wait. Both belong to the tenant: its keys have equal ones.
 *
 * The file is read again when it changes and on SIGHUP: a key that stays keeps what it has used; a
 * removed key is refused, and its open requests finish. An invalid file changes nothing.
 *
 * One mutex, taken once per request and only when there are keys; a leaf. Any thread. */
#ifndef ROUTER_ACCESS_KEYS_H
#define ROUTER_ACCESS_KEYS_H

#include "common/base/buf.h"
#include "common/base/status.h"

#define KEYS_MAX        65536
#define KEY_BYTES_MAX   256
#define KEY_TENANT_MAX  64
#define KEY_NAME_MAX    (KEY_TENANT_MAX + 1)
#define KEY_BURST_S     1.0  /* seconds' worth of requests that may come at once */
#define KEY_TOKEN_BURST 10.0 /* seconds' worth of prompt tokens at once: prompts differ more */

struct keys;
struct key;

/* `file` and `single` (a key without limits) may be NULL; with neither, no key is required. */
MUST_USE enum status keys_create(struct keys **out, const char *file, const char *single,
                                 struct error *err);
void keys_destroy(struct keys *k); /* no request may be open; NULL is fine */

/* Reads the file again, all or nothing. Blocks: control loop. Messages never quote a key. */
MUST_USE enum status keys_reload(struct keys *k, struct error *err);

/* Other keys, all or nothing: read and checked now, in force from keys_commit on, which takes the
 * change. Whether keys are needed does not change: ST_INVALID. Blocks: control loop. */
struct keys_change;
MUST_USE enum status keys_prepare(struct keys *k, const char *file, const char *single,
                                  struct keys_change **out, struct error *err);
void keys_commit(struct keys *k, struct keys_change *c);
void keys_drop(struct keys_change *c); /* NULL is fine */

/* keys_reload from text; `name` is its name in messages. For tests and fuzzing too. */
MUST_USE enum status keys_load(struct keys *k, struct str text, const char *name,
                               struct error *err);

/* False: no key is needed. Constant over the life of k; k may be NULL. */
bool keys_are_needed(const struct keys *k);
uint32_t keys_count(struct keys *k);

#define KEYS_TEXT_MAX 1024

/* The first key of a file of keys, which has a comment or one key on each line. */
MUST_USE enum status keys_read_first(const char *path, char out[KEYS_TEXT_MAX], struct error *err);

/* "Bearer KEY" or a bare x-api-key as a key; STR_NULL when it is neither. */
struct str keys_from_headers(struct str authorization, struct str x_api_key);

/* ST_DENIED with a message. For on_head, before a body is read, and for admin calls. */
MUST_USE enum status keys_check(struct keys *k, struct str key, struct error *err);

/* The owner of the key, for a log: the tenant of its line, or "line 3" of the file, "environment",
 * "unknown", or "none" where no key is required. Never a part of the key. */
void keys_name(struct keys *k, struct str key, char out[KEY_NAME_MAX]);

/* A request admitted by its key; zero before. */
struct key_use {
    struct key *key; /* NULL: not entered */
    double tokens;   /* charged */
    int32_t priority;
    double weight, max_share; /* of the tenant */
};

/* Counts a request against its key's limits. ST_DENIED; ST_BUSY: the message names the limit, and
 * *wait_us is the time until a retry. */
MUST_USE enum status keys_enter(struct keys *k, struct str key, double prompt_tokens,
                                uint64_t now_us, struct key_use *use, uint64_t *wait_us,
                                struct error *err);

/* Ends it, once for each ST_OK. `prompt_tokens`: actual number; negative: as predicted. */
void keys_leave(struct keys *k, struct key_use *use, double prompt_tokens);

/* Of an admitted request; valid until it ends. */
struct str key_tenant(const struct key *key);
bool key_is_named(
    const struct key *key); /* false: the tenant's name comes from the digest and is not for logs */

void keys_check_invariants(struct keys *k);

#endif
