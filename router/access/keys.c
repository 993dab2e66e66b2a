/* router/access/keys.c - a table from the SHA-256 of a key to its limits and their use.
 *
 * A key is looked up by the first bytes of its digest, then compared whole in constant time: what
 * timing reveals of a digest does not reveal its key. A key object lives while it is in the table
 * or has open requests (`n_open`), so that a reload never frees one in use. Its tenant never
 * changes: a key that moves to another tenant is another object. */
#include "router/access/keys.h"

#include <assert.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/file.h"
#include "common/base/hash.h"
#include "common/base/map.h"
#include "common/base/mem.h"
#include "router/access/token_bucket.h"

#define FILE_BYTES_MAX ((size_t)16 << 20)
#define RATE_MAX       1e9
#define BUSY_WAIT_US   1000000 /* retry time when the wait is unknown */

struct key_limits {
    double requests_per_s, tokens_per_s; /* 0: any */
    uint32_t max_concurrent;             /* 0: any */
    int32_t priority;
    double weight, max_share; /* 0: not given */
};

struct key {
    uint8_t digest[SHA256_BYTES];
    char tenant[KEY_TENANT_MAX + 1];
    struct key_limits limits;
    struct token_bucket requests, tokens;
    uint32_t n_open;
    bool is_listed; /* in the table */
    bool is_named;  /* the file names its tenant */
    uint32_t line;  /* of the file; 0: from the environment */
};

struct keys {
    pthread_mutex_t lock;
    struct sha256 *sha; /* under the lock, as everything below */
    struct map map;     /* first 8 bytes of the digest -> key */
    char *file;
    uint8_t single[SHA256_BYTES]; /* digest of the key from the environment */
    bool has_single, are_needed;
};

struct keys_change {
    struct map map; /* to become that of `keys` */
    char *file;
    uint8_t single[SHA256_BYTES];
    bool has_single;
};

/* --- digests ---------------------------------------------------------------------------------- */

static void digest_of(struct sha256 *sha, struct str key, uint8_t out[SHA256_BYTES]) {
    sha256_begin(sha);
    sha256_add(sha, key.ptr, key.len);
    sha256_end(sha, out);
}

static uint64_t map_key(const uint8_t digest[SHA256_BYTES]) {
    uint64_t n;

    memcpy(&n, digest, sizeof(n));
    return n;
}

static struct key *find(const struct map *map, const uint8_t digest[SHA256_BYTES]) {
    struct key *key = map_find(map, map_key(digest));

    return key && hash_equal(key->digest, digest, SHA256_BYTES) ? key : NULL;
}

static struct key *find_by_text(struct keys *k, struct str text) {
    uint8_t digest[SHA256_BYTES];

    if (!text.len || text.len > KEY_BYTES_MAX) return NULL;
    digest_of(k->sha, text, digest);
    return find(&k->map, digest);
}

/* --- the file --------------------------------------------------------------------------------- */

struct reader {
    struct sha256 *sha; /* separate: the router loops continue meanwhile */
    struct map map;     /* keys of the file, to replace those of `keys` */
    struct map tenants; /* hash of a named tenant -> one of its keys */
    const char *name;
    uint32_t line;
    struct error *err;
};

static enum status wrong(struct reader *r, const char *what) {
    return error_set(r->err, ST_INVALID, "%s, line %u: %s", r->name, r->line, what);
}

static bool is_key(struct str s) {
    for (size_t i = 0; i < s.len; i++) {
        if (s.ptr[i] <= ' ' || s.ptr[i] > '~') return false;
    }
    return s.len > 0 && s.len <= KEY_BYTES_MAX;
}

/* The next word of the line; empty at its end, or where a comment begins. */
static struct str next_word(struct str *line) {
    size_t i = 0, start;

    while (i < line->len && (line->ptr[i] == ' ' || line->ptr[i] == '\t' || line->ptr[i] == '\r'))
        i++;
    start = i;
    while (i < line->len && line->ptr[i] != ' ' && line->ptr[i] != '\t' && line->ptr[i] != '\r')
        i++;
    struct str word = {line->ptr + start, i - start};

    if (word.len && word.ptr[0] == '#') word.len = 0;

    line->ptr += i;
    line->len -= i;
    return word;
}

/* A finite number in [least, most]. */
static bool to_number(struct str s, double least, double most, double *out) {
    char text[32], *end;

    if (s.len == 0 || s.len >= sizeof(text)) return false;
    memcpy(text, s.ptr, s.len);
    text[s.len] = '\0';
    *out = strtod(text, &end);
    return *end == '\0' && *out >= least && *out <= most;
}

static enum status read_tenant(struct reader *r, struct key *key, struct str value) {
    static const char extra[] = "._:@/-";

    if (value.len == 0 || value.len > KEY_TENANT_MAX) {
        return wrong(r, "the tenant's name is empty or too long: use 1 to 64 characters");
    }
    for (size_t i = 0; i < value.len; i++) {
        char c = value.ptr[i];

        if (!((c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
              memchr(extra, c, sizeof(extra) - 1))) {
            return wrong(
                r,
                "the tenant's name has an invalid character: use letters, digits and . _ : @ / -");
        }
    }
    memcpy(key->tenant, value.ptr, value.len);
    key->tenant[value.len] = '\0';
    return ST_OK;
}

static enum status read_setting(struct reader *r, struct key *key, struct str word) {
    const char *equals = memchr(word.ptr, '=', word.len);
    struct str name, value;
    double number;

    if (!equals)
        return wrong(r, "unexpected text after the key: use name=value, e.g. tenant=team-a");
    name = (struct str){word.ptr, (size_t)(equals - word.ptr)};
    value = (struct str){equals + 1, word.len - name.len - 1};
    if (str_eq(name, STR("tenant"))) return read_tenant(r, key, value);
    if (str_eq(name, STR("rps"))) {
        if (!to_number(value, 1e-6, RATE_MAX, &number)) {
            return wrong(r, "invalid rps: give a number of requests per second, e.g. rps=5");
        }
        key->limits.requests_per_s = number;
        return ST_OK;
    }
    if (str_eq(name, STR("tokens_per_s"))) {
        if (!to_number(value, 1e-6, RATE_MAX, &number)) {
            return wrong(
                r, "invalid tokens_per_s: give a number of prompt tokens per second, e.g. 20000");
        }
        key->limits.tokens_per_s = number;
        return ST_OK;
    }
    if (str_eq(name, STR("max_concurrent"))) {
        if (!to_number(value, 1, 1e6, &number) || number != floor(number)) {
            return wrong(r, "invalid max_concurrent: give a number of requests, 1 to 1000000");
        }
        key->limits.max_concurrent = (uint32_t)number;
        return ST_OK;
    }
    if (str_eq(name, STR("priority"))) {
        if (!to_number(value, -8, 7, &number) || number != floor(number)) {
            return wrong(r, "invalid priority: give a whole number, -8 (first) to 7 (last)");
        }
        key->limits.priority = (int32_t)number;
        return ST_OK;
    }
    if (str_eq(name, STR("weight"))) {
        if (!to_number(value, 0.01, 100, &number))
            return wrong(r, "invalid weight: give a number from 0.01 to 100, e.g. weight=2");
        key->limits.weight = number;
        return ST_OK;
    }
    if (str_eq(name, STR("max_share"))) {
        if (!to_number(value, 0, 1, &number) || number <= 0)
            return wrong(r, "invalid max_share: give a number above 0 and up to 1, e.g. 0.5");
        key->limits.max_share = number;
        return ST_OK;
    }
    return wrong(r, "unknown setting: use tenant, rps, tokens_per_s, max_concurrent, priority, "
                    "weight or max_share");
}

/* A key without a tenant is a tenant of its own, named after its digest. */
static void name_tenant(struct key *key) {
    key->is_named = key->tenant[0] != '\0';
    if (key->is_named) return;
    memcpy(key->tenant, "key-", 4);
    for (size_t i = 0; i < 16; i++)
        snprintf(key->tenant + 4 + 2 * i, 3, "%02x", key->digest[i]);
}

/* Weight and share are the tenant's, which has one of each. */
static enum status check_tenant(struct reader *r, struct key *key) {
    uint64_t name = hash_64(key->tenant, strlen(key->tenant), 0);
    const struct key *other;

    if (!key->is_named) return ST_OK;
    other = map_find(&r->tenants, name);
    if (!other) map_insert(&r->tenants, name, key);
    if (!other || (other->limits.weight == key->limits.weight &&
                   other->limits.max_share == key->limits.max_share))
        return ST_OK;
    return wrong(r, "another key of this tenant has another weight or max_share: give all keys of "
                    "a tenant the same");
}

static enum status enlist(struct reader *r, const struct key *like) {
    struct key *key;

    if (r->map.n == KEYS_MAX) return wrong(r, "more than 65536 keys: remove some");
    if (map_find(&r->map, map_key(like->digest))) {
        return wrong(r, "duplicate key: give each key one line");
    }
    key = mem_alloc(sizeof(*key));
    *key = *like;
    key->is_listed = true;
    name_tenant(key);
    map_insert(&r->map, map_key(key->digest), key);
    return check_tenant(r, key);
}

static enum status read_line(struct reader *r, struct str line) {
    struct key like = {0};
    struct str text, word;
    enum status st;

    text = next_word(&line);
    if (text.len == 0) return ST_OK;
    if (!is_key(text)) return wrong(r, "invalid key: use 1 to 256 visible characters");
    digest_of(r->sha, text, like.digest);
    like.line = r->line;
    while ((word = next_word(&line)).len) {
        st = read_setting(r, &like, word);
        if (st != ST_OK) return st;
    }
    return enlist(r, &like);
}

static enum status read_text(struct reader *r, struct str text) {
    size_t n_before = r->map.n;
    enum status st = ST_OK;

    while (text.len && st == ST_OK) {
        const char *end = memchr(text.ptr, '\n', text.len);
        struct str line = {text.ptr, end ? (size_t)(end - text.ptr) : text.len};
        size_t used = line.len + (end != NULL);

        r->line++;
        st = read_line(r, line);
        text.ptr += used;
        text.len -= used;
    }
    if (st == ST_OK && r->map.n == n_before) {
        st = error_set(
            r->err, ST_INVALID,
            "%s holds no key: add one, or omit the option to accept requests without a key",
            r->name);
    }
    return st;
}

/* --- the table -------------------------------------------------------------------------------- */

static void unlist(struct key *key) {
    key->is_listed = false;
    if (key->n_open == 0) mem_free(key);
}

static void free_map(struct map *map) {
    const struct map_slot *slot;

    for (size_t i = 0; (slot = map_next(map, &i)) != NULL;)
        unlist(slot->value);
    map_fini(map);
}

/* Copies the used amounts of keys that stay to the new table. */
static void install(struct keys *k, struct map *fresh) {
    const struct map_slot *slot;
    struct map old = k->map;

    for (size_t i = 0; (slot = map_next(&old, &i)) != NULL;) {
        struct key *key = slot->value, *now = find(fresh, key->digest);

        if (!now || strcmp(now->tenant, key->tenant) != 0) {
            unlist(key);
            continue;
        }
        key->limits = now->limits;
        key->line = now->line;
        map_insert(fresh, map_key(key->digest), key);
        mem_free(now);
    }
    map_fini(&old);
    k->map = *fresh;
}

/* Fills the change's table from its single key and the text. */
static enum status read_keys(struct keys_change *c, struct str text, const char *name,
                             struct error *err) {
    struct reader r = {.sha = sha256_create(), .map = c->map, .name = name, .err = err};
    enum status st = ST_OK;

    map_init(&r.tenants, 0);
    if (c->has_single) {
        struct key single = {0};

        memcpy(single.digest, c->single, sizeof(single.digest));
        st = enlist(&r, &single);
    }
    if (st == ST_OK && text.ptr) st = read_text(&r, text);
    sha256_destroy(r.sha);
    map_fini(&r.tenants);
    c->map = r.map;
    return st;
}

static enum status read_file(struct keys_change *c, struct error *err) {
    char *text;
    size_t n;
    enum status st = file_read(c->file, FILE_BYTES_MAX, &text, &n, err);

    if (st != ST_OK) return st;
    st = read_keys(c, (struct str){text, n}, c->file, err);
    explicit_bzero(text, n);
    mem_free(text);
    return st;
}

static struct keys_change *begin(const char *file) {
    struct keys_change *c = mem_zalloc(sizeof(*c));
    uint64_t seed;

    hash_random(&seed, sizeof(seed));
    map_init(&c->map, seed);
    c->file = mem_strdup(file);
    return c;
}

static struct keys_change *begin_with_same(const struct keys *k) {
    struct keys_change *c = begin(k->file);

    memcpy(c->single, k->single, sizeof(c->single));
    c->has_single = k->has_single;
    return c;
}

void keys_drop(struct keys_change *c) {
    if (!c) return;
    free_map(&c->map);
    mem_free(c->file);
    mem_free(c);
}

void keys_commit(struct keys *k, struct keys_change *c) {
    pthread_mutex_lock(&k->lock);
    install(k, &c->map);
    memcpy(k->single, c->single, sizeof(k->single));
    k->has_single = c->has_single;
    pthread_mutex_unlock(&k->lock);
    mem_free(k->file);
    k->file = c->file;
    mem_free(c);
}

static enum status finish(struct keys *k, struct keys_change *c, enum status st) {
    if (st == ST_OK) {
        keys_commit(k, c);
    } else {
        keys_drop(c);
    }
    return st;
}

enum status keys_load(struct keys *k, struct str text, const char *name, struct error *err) {
    struct keys_change *c = begin_with_same(k);

    return finish(k, c, read_keys(c, text, name, err));
}

enum status keys_reload(struct keys *k, struct error *err) {
    struct keys_change *c;

    if (!k->file) return ST_OK;
    c = begin_with_same(k);
    return finish(k, c, read_file(c, err));
}

static enum status check_need(const struct keys *k, bool are_given, struct error *err) {
    if (are_given == k->are_needed) return ST_OK;
    return error_set(
        err, ST_INVALID,
        are_given
            ? "the router was started without keys: restart it to require them"
            : "removing the last key would open the router to all clients: restart it to do so");
}

enum status keys_prepare(struct keys *k, const char *file, const char *single,
                         struct keys_change **out, struct error *err) {
    struct keys_change *c = begin(file);
    enum status st;

    c->has_single = single && single[0];
    st = check_need(k, c->file || c->has_single, err);
    if (st == ST_OK && c->has_single && !is_key(str_of(single)))
        st = error_set(err, ST_INVALID,
                       "the key of --api-key or --admin-api-key is invalid: use 1 to 256 visible "
                       "characters");
    if (st == ST_OK && c->has_single) {
        struct sha256 *sha = sha256_create();

        digest_of(sha, str_of(single), c->single);
        sha256_destroy(sha);
    }
    if (st == ST_OK) st = c->file ? read_file(c, err) : read_keys(c, STR_NULL, "", err);
    if (st == ST_OK) {
        *out = c;
    } else {
        keys_drop(c);
    }
    return st;
}

enum status keys_create(struct keys **out, const char *file, const char *single,
                        struct error *err) {
    struct keys *k = mem_zalloc(sizeof(*k));
    struct keys_change *c = NULL;
    enum status st;

    *out = NULL;
    pthread_mutex_init(&k->lock, NULL);
    k->sha = sha256_create();
    map_init(&k->map, 0);
    k->are_needed = file || (single && single[0]);
    st = keys_prepare(k, file, single, &c, err);
    if (st != ST_OK) {
        keys_destroy(k);
        return st;
    }
    keys_commit(k, c);
    *out = k;
    return ST_OK;
}

void keys_destroy(struct keys *k) {
    if (!k) return;
    free_map(&k->map);
    sha256_destroy(k->sha);
    mem_free(k->file);
    pthread_mutex_destroy(&k->lock);
    mem_free(k);
}

enum status keys_read_first(const char *path, char out[KEYS_TEXT_MAX], struct error *err) {
    char *text = NULL, *rest;
    size_t n;
    enum status st = file_read(path, FILE_BYTES_MAX, &text, &n, err);

    if (st != ST_OK) return st;
    out[0] = '\0';
    for (char *line = strtok_r(text, "\r\n", &rest); line && !out[0];
         line = strtok_r(NULL, "\r\n", &rest)) {
        line += strspn(line, " \t");
        if (*line != '#') snprintf(out, KEYS_TEXT_MAX, "%.*s", (int)strcspn(line, " \t#"), line);
    }
    mem_free(text);
    return out[0] ? ST_OK
                  : error_set(err, ST_INVALID, "%s holds no key: write one on a line of its own",
                              path);
}

/* --- who is there ----------------------------------------------------------------------------- */

bool keys_are_needed(const struct keys *k) {
    return k && k->are_needed;
}

uint32_t keys_count(struct keys *k) {
    uint32_t n;

    pthread_mutex_lock(&k->lock);
    n = (uint32_t)k->map.n;
    pthread_mutex_unlock(&k->lock);
    return n;
}

struct str keys_from_headers(struct str authorization, struct str x_api_key) {
    struct str scheme = STR("bearer ");

    if (authorization.len > scheme.len &&
        str_eq_nocase((struct str){authorization.ptr, scheme.len}, scheme)) {
        return str_trim(
            (struct str){authorization.ptr + scheme.len, authorization.len - scheme.len});
    }
    return authorization.len ? STR_NULL : x_api_key;
}

static enum status denied(struct str key, struct error *err) {
    return error_set(err, ST_DENIED,
                     key.len ? "unknown API key: check the header Authorization or x-api-key"
                             : "an API key is needed: send \"Authorization: Bearer KEY\", or "
                               "\"x-api-key: KEY\" without Authorization");
}

enum status keys_check(struct keys *k, struct str key, struct error *err) {
    bool is_known;

    if (!keys_are_needed(k)) return ST_OK;
    pthread_mutex_lock(&k->lock);
    is_known = find_by_text(k, key) != NULL;
    pthread_mutex_unlock(&k->lock);
    return is_known ? ST_OK : denied(key, err);
}

void keys_name(struct keys *k, struct str text, char out[KEY_NAME_MAX]) {
    const struct key *key;

    if (!keys_are_needed(k)) {
        snprintf(out, KEY_NAME_MAX, "none");
        return;
    }
    pthread_mutex_lock(&k->lock);
    key = find_by_text(k, text);
    if (!key) {
        snprintf(out, KEY_NAME_MAX, "unknown");
    } else if (key->is_named) {
        snprintf(out, KEY_NAME_MAX, "%s", key->tenant);
    } else if (key->line) {
        snprintf(out, KEY_NAME_MAX, "line %u", key->line);
    } else {
        snprintf(out, KEY_NAME_MAX, "environment");
    }
    pthread_mutex_unlock(&k->lock);
}

/* --- limits ----------------------------------------------------------------------------------- */

static enum status check_limits(struct key *key, double prompt_tokens, uint64_t now_us,
                                uint64_t *wait_us, struct error *err) {
    const struct key_limits *l = &key->limits;
    double rps = l->requests_per_s, tps = l->tokens_per_s;

    if (l->max_concurrent && key->n_open >= l->max_concurrent) {
        *wait_us = BUSY_WAIT_US;
        return error_set(err, ST_BUSY,
                         "%u requests of this API key are open, its limit (max_concurrent=%u): "
                         "retry when one has ended",
                         l->max_concurrent, l->max_concurrent);
    }
    if (rps > 0) {
        *wait_us = token_bucket_wait_us(&key->requests, rps, fmax(rps * KEY_BURST_S, 1), 1, now_us);
        if (*wait_us) {
            return error_set(
                err, ST_BUSY,
                "more than %g requests per second with this API key (rps=%g): retry in %.3f s", rps,
                rps, (double)*wait_us * 1e-6);
        }
    }
    if (tps > 0) {
        *wait_us =
            token_bucket_wait_us(&key->tokens, tps, tps * KEY_TOKEN_BURST, prompt_tokens, now_us);
        if (*wait_us) {
            return error_set(err, ST_BUSY,
                             "more than %g prompt tokens per second with this API key "
                             "(tokens_per_s=%g): retry in %.3f s",
                             tps, tps, (double)*wait_us * 1e-6);
        }
    }
    return ST_OK;
}

enum status keys_enter(struct keys *k, struct str text, double prompt_tokens, uint64_t now_us,
                       struct key_use *use, uint64_t *wait_us, struct error *err) {
    enum status st = ST_DENIED;
    struct key *key;

    *wait_us = 0;
    pthread_mutex_lock(&k->lock);
    key = find_by_text(k, text);
    if (key) st = check_limits(key, prompt_tokens, now_us, wait_us, err);
    if (st == ST_OK) {
        if (key->limits.requests_per_s > 0) token_bucket_take(&key->requests, 1);
        if (key->limits.tokens_per_s > 0) token_bucket_take(&key->tokens, prompt_tokens);
        key->n_open++;
        *use = (struct key_use){.key = key,
                                .tokens = prompt_tokens,
                                .priority = key->limits.priority,
                                .weight = key->limits.weight > 0 ? key->limits.weight : 1,
                                .max_share = key->limits.max_share > 0 ? key->limits.max_share : 1};
    }
    pthread_mutex_unlock(&k->lock);
    return key ? st : denied(text, err);
}

void keys_leave(struct keys *k, struct key_use *use, double prompt_tokens) {
    struct key *key = use->key;

    if (!key) return;
    pthread_mutex_lock(&k->lock);
    assert(key->n_open);
    key->n_open--;
    if (prompt_tokens >= 0 && key->limits.tokens_per_s > 0) {
        token_bucket_take(&key->tokens, prompt_tokens - use->tokens);
    }
    if (!key->is_listed && key->n_open == 0) mem_free(key);
    pthread_mutex_unlock(&k->lock);
    use->key = NULL;
}

struct str key_tenant(const struct key *key) {
    return str_of(key->tenant);
}

bool key_is_named(const struct key *key) {
    return key->is_named;
}

void keys_check_invariants(struct keys *k) {
    const struct map_slot *slot;

    pthread_mutex_lock(&k->lock);
    map_check(&k->map);
    for (size_t i = 0; (slot = map_next(&k->map, &i)) != NULL;) {
        const struct key *key = slot->value;

        assert(key->is_listed && key->tenant[0] && slot->key == map_key(key->digest));
        assert(key->requests.used >= 0 && key->tokens.used >= 0);
    }
    pthread_mutex_unlock(&k->lock);
}
