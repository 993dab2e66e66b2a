/* worker/api/stores/prompt_history.c - a map by id, the tenants' shares, and hashes. */
#include "worker/api/stores/prompt_history.h"

#include <assert.h>
#include <string.h>

#include "common/base/hash.h"
#include "common/base/map.h"
#include "common/base/mem.h"
#include "common/text/json.h"
#include "worker/api/stores/shares.h"

#define ENTRY_BYTES 256 /* of bookkeeping, about */

/* The parts of a body that a prompt is made of. */
struct parts {
    uint64_t system, tools, effort, settings;
    uint64_t messages; /* that are not the system's, which comes first */
    uint32_t n_messages;
};

struct entry {
    struct share_entry share;
    char *key;
    size_t n_key;
    struct parts parts;
    uint32_t n_blocks;
    uint64_t blocks[]; /* (n_blocks) each of all tokens up to its last */
};

struct prompt_history {
    struct strmap by_key;
    struct shares shares;
    uint64_t seed;
};

const char *prompt_change_name(enum prompt_change change) {
    static const char *const names[] = {"not_compared", "not_found", "reused",   "system",
                                        "tools",        "effort",    "settings", "messages",
                                        "template",     "evicted"};

    return names[change];
}

struct prompt_history *prompt_history_create(size_t max_bytes, uint64_t seed) {
    struct prompt_history *h = mem_zalloc(sizeof(*h));

    strmap_init(&h->by_key, seed);
    shares_init(&h->shares, max_bytes, seed);
    h->seed = seed;
    return h;
}

static struct entry *entry_of(struct share_entry *share) {
    return CONTAINER_OF(share, struct entry, share);
}

static struct str key_of(const struct entry *e) {
    return (struct str){e->key, e->n_key};
}

static void drop(struct prompt_history *h, struct entry *e) {
    (void)strmap_erase(&h->by_key, key_of(e));
    shares_remove(&h->shares, &e->share);
    mem_free(e->key);
    mem_free(e);
}

void prompt_history_destroy(struct prompt_history *h) {
    struct share_entry *it;

    if (!h) return;
    while ((it = shares_any(&h->shares)) != NULL)
        drop(h, entry_of(it));
    strmap_fini(&h->by_key);
    shares_fini(&h->shares);
    mem_free(h);
}

/* --- hashes ----------------------------------------------------------------------------------- */

/* Of a value with its key, behind what has the hash `before`. Null is like absent. */
static uint64_t hash_value(const struct json *v, uint64_t before) {
    struct str key, text = STR_NULL;
    uint64_t h, n = 0;
    double number = 0;
    bool is_true = false;

    if (json_is_null(v)) return before + 1;
    key = json_key(v);
    h = hash_64(key.ptr, key.len, before + (uint64_t)json_type(v));
    switch (json_type(v)) {
    case JSON_STRING: (void)!json_to_str(v, &text); return hash_64(text.ptr, text.len, h);
    case JSON_NUMBER: (void)!json_to_f64(v, &number); return hash_64(&number, sizeof(number), h);
    case JSON_BOOL: (void)!json_to_bool(v, &is_true); return h + is_true;
    case JSON_ARRAY:
    case JSON_OBJECT: break;
    case JSON_ABSENT:
    case JSON_NULL: break;
    }
    JSON_FOR_EACH(it, v) {
        h = hash_value(it, h);
        n++;
    }
    return hash_64(&n, sizeof(n), h); /* it ends here: [[1], 2] is not [[1, 2]] */
}

static bool is_of_system(const struct json *message) {
    struct str role = STR_NULL;

    (void)!json_to_str(json_get(message, "role"), &role);
    return str_eq(role, STR("system")) || str_eq(role, STR("developer"));
}

/* *at: the messages' hash behind the first `n` of them; 0: there are fewer. */
static struct parts parts_of(const struct prompt_history *h, const struct json *chat, uint32_t n,
                             uint64_t *at) {
    struct parts p = {.system = h->seed, .messages = h->seed};

    *at = n == 0 ? h->seed : 0;
    p.tools = hash_value(json_get(chat, "tools"), h->seed);
    p.effort = hash_value(json_get(chat, "reasoning_effort"), h->seed);
    p.settings = hash_value(json_get(chat, "chat_template_kwargs"), h->seed);
    p.settings = hash_value(json_get(chat, "documents"), p.settings);
    JSON_FOR_EACH(it, json_get(chat, "messages")) {
        if (p.n_messages == 0 && is_of_system(it)) {
            p.system = hash_value(it, p.system);
            continue;
        }
        p.messages = hash_value(it, p.messages);
        if (++p.n_messages == n) *at = p.messages;
    }
    return p;
}

static void hash_blocks(const struct prompt_history *h, const struct prompt_seen *seen, uint32_t n,
                        uint64_t *out) {
    size_t bs = seen->block_size;
    uint64_t before = h->seed;

    for (uint32_t i = 0; i < n; i++)
        out[i] = before = hash_64(seen->tokens + i * bs, bs * sizeof(*seen->tokens), before);
}

/* --- comparing -------------------------------------------------------------------------------- */

/* The part of the body for which the tokens differ. */
static enum prompt_change change_of(const struct parts *before, const struct parts *now,
                                    uint64_t messages_at) {
    if (before->system != now->system) return PROMPT_SYSTEM;
    if (before->tools != now->tools) return PROMPT_TOOLS;
    if (before->effort != now->effort) return PROMPT_EFFORT;
    if (before->settings != now->settings) return PROMPT_SETTINGS;
    return before->messages == messages_at ? PROMPT_TEMPLATE : PROMPT_MESSAGES;
}

/* The last token of a prompt is computed in any case: a block that ends in it cannot be found. */
static uint32_t n_findable(const struct prompt_seen *seen) {
    return seen->n_tokens > 0 ? (seen->n_tokens - 1) / seen->block_size : 0;
}

static struct prompt_diagnosis compare(const struct entry *before, const struct entry *now,
                                       const struct prompt_seen *seen, uint64_t messages_at) {
    uint32_t n_shared = MIN(before->n_blocks, n_findable(seen)), n_equal = 0;
    uint64_t bs = seen->block_size;
    struct prompt_diagnosis d = {.change = PROMPT_REUSED};

    while (n_equal < n_shared && before->blocks[n_equal] == now->blocks[n_equal])
        n_equal++;
    d.n_equal = n_equal * bs;
    if (seen->n_cached >= n_shared * bs) return d;
    d.n_missed = n_shared * bs - seen->n_cached;
    d.change =
        n_equal < n_shared ? change_of(&before->parts, &now->parts, messages_at) : PROMPT_EVICTED;
    return d;
}

/* Clients choose ids: equal ones of two owners are two requests. */
static char *make_key(struct str id, uint64_t owner, size_t *n_key) {
    char *key = mem_alloc(sizeof(owner) + id.len);

    memcpy(key, &owner, sizeof(owner));
    if (id.len) memcpy(key + sizeof(owner), id.ptr, id.len);
    *n_key = sizeof(owner) + id.len;
    return key;
}

static struct entry *find(struct prompt_history *h, struct str id, uint64_t owner) {
    struct entry *e;
    size_t n_key;
    char *key;

    if (id.len == 0) return NULL;
    key = make_key(id, owner, &n_key);
    e = strmap_find(&h->by_key, (struct str){key, n_key});
    mem_free(key);
    if (e) shares_use(&e->share);
    return e;
}

/* --- remembering ------------------------------------------------------------------------------ */

/* Takes the entry, which has its key. */
static void keep(struct prompt_history *h, struct entry *e, uint64_t tenant, size_t n_bytes) {
    struct entry *before = strmap_find(&h->by_key, key_of(e));
    struct share_entry *loser;

    if (before) drop(h, before);
    while (!shares_has_room(&h->shares, n_bytes) &&
           (loser = shares_loser(&h->shares, tenant, n_bytes)) != NULL)
        drop(h, entry_of(loser));
    if (!shares_has_room(&h->shares, n_bytes)) {
        mem_free(e->key);
        mem_free(e);
        return;
    }
    shares_add(&h->shares, tenant, &e->share, n_bytes);
    (void)strmap_insert(&h->by_key, key_of(e), e);
}

struct prompt_diagnosis prompt_history_add(struct prompt_history *h, struct str id,
                                           struct str earlier, uint64_t owner,
                                           const struct prompt_seen *seen) {
    struct prompt_diagnosis d = {.change = earlier.len ? PROMPT_NOT_FOUND : PROMPT_NOT_COMPARED};
    const struct entry *before = find(h, earlier, owner);
    uint32_t n_blocks = seen->n_tokens / seen->block_size;
    size_t n_bytes = sizeof(struct entry) + n_blocks * sizeof(uint64_t);
    struct entry *e = mem_try_zalloc(n_bytes);
    uint64_t messages_at;

    if (!e) return d;
    e->n_blocks = n_blocks;
    e->parts = parts_of(h, seen->chat, before ? before->parts.n_messages : 0, &messages_at);
    hash_blocks(h, seen, n_blocks, e->blocks);
    if (before) d = compare(before, e, seen, messages_at);
    e->key = make_key(id, owner, &e->n_key);
    keep(h, e, seen->tenant, n_bytes + id.len + ENTRY_BYTES);
    return d;
}

void prompt_history_check(const struct prompt_history *h) {
    size_t n = shares_check(&h->shares);

    strmap_check(&h->by_key);
    assert(n == h->by_key.n);
    (void)n;
}
