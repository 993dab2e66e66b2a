/* worker/api/stores/responses_store.c - a map by id, and the tenants' shares. */
#include "worker/api/stores/responses_store.h"

#include <assert.h>

#include "common/base/map.h"
#include "common/base/mem.h"
#include "common/text/json.h"
#include "worker/api/stores/shares.h"

#define ENTRY_BYTES 256 /* of bookkeeping, about */

struct entry {
    struct share_entry share;
    uint64_t tenant, born_us;
    /* The lengths of what `text` has, in order. */
    size_t n_id, n_previous, n_input, n_output, n_response;
    char *text;
};

struct responses_store {
    struct strmap by_id;
    struct shares shares;
    uint64_t ttl_us, n_evicted;
};

struct responses_store *responses_store_create(size_t max_bytes, uint64_t ttl_us, uint64_t seed) {
    struct responses_store *s = mem_zalloc(sizeof(*s));

    strmap_init(&s->by_id, seed);
    shares_init(&s->shares, max_bytes, seed);
    s->ttl_us = ttl_us;
    return s;
}

static struct stored_response shown(const struct entry *e) {
    const char *at = e->text;
    struct stored_response r = {.tenant = e->tenant, .id = {at, e->n_id}};

    r.previous = (struct str){at += e->n_id, e->n_previous};
    r.input = (struct str){at += e->n_previous, e->n_input};
    r.output = (struct str){at += e->n_input, e->n_output};
    r.response = (struct str){at + e->n_output, e->n_response};
    return r;
}

static void drop(struct responses_store *s, struct entry *e) {
    (void)strmap_erase(&s->by_id, shown(e).id);
    shares_remove(&s->shares, &e->share);
    mem_free(e->text);
    mem_free(e);
}

static struct entry *entry_of(struct share_entry *share) {
    return CONTAINER_OF(share, struct entry, share);
}

void responses_store_destroy(struct responses_store *s) {
    struct share_entry *it;

    if (!s) return;
    while ((it = shares_any(&s->shares)) != NULL)
        drop(s, entry_of(it));
    strmap_fini(&s->by_id);
    shares_fini(&s->shares);
    mem_free(s);
}

static void evict(struct responses_store *s, struct entry *e) {
    s->n_evicted++;
    drop(s, e);
}

static bool make_room(struct responses_store *s, uint64_t holder, size_t n_bytes) {
    while (!shares_has_room(&s->shares, n_bytes)) {
        struct share_entry *loser = shares_loser(&s->shares, holder, n_bytes);

        if (!loser) return false;
        evict(s, entry_of(loser));
    }
    return true;
}

void responses_store_put(struct responses_store *s, const struct stored_response *r,
                         uint64_t now_us) {
    const struct str parts[] = {r->id, r->previous, r->input, r->output, r->response};
    struct entry *e, *before = strmap_find(&s->by_id, r->id);
    size_t n = ENTRY_BYTES;
    char *to;

    for (size_t i = 0; i < ARRAY_LEN(parts); i++)
        n += parts[i].len;
    if (before) drop(s, before);
    to = make_room(s, r->holder, n) ? mem_try(n - ENTRY_BYTES + 1) : NULL;
    if (!to) return;
    e = mem_zalloc(sizeof(*e));
    *e = (struct entry){.tenant = r->tenant,
                        .born_us = now_us,
                        .n_id = r->id.len,
                        .n_previous = r->previous.len,
                        .n_input = r->input.len,
                        .n_output = r->output.len,
                        .n_response = r->response.len,
                        .text = to};
    for (size_t i = 0; i < ARRAY_LEN(parts); i++) {
        if (parts[i].len) memcpy(to, parts[i].ptr, parts[i].len);
        to += parts[i].len;
    }
    shares_add(&s->shares, r->holder, &e->share, n);
    (void)strmap_insert(&s->by_id, r->id, e);
}

/* Of that tenant, and young enough; one that is too old goes. */
static struct entry *find(struct responses_store *s, struct str id, uint64_t tenant,
                          uint64_t now_us) {
    struct entry *e = strmap_find(&s->by_id, id);

    if (!e || e->tenant != tenant) return NULL;
    if (now_us < e->born_us + s->ttl_us) return e;
    evict(s, e);
    return NULL;
}

bool responses_store_get(struct responses_store *s, struct str id, uint64_t tenant, uint64_t now_us,
                         struct stored_response *out) {
    struct entry *e = find(s, id, tenant, now_us);

    if (!e) return false;
    shares_use(&e->share);
    *out = shown(e);
    return true;
}

bool responses_store_erase(struct responses_store *s, struct str id, uint64_t tenant,
                           uint64_t now_us) {
    struct entry *e = find(s, id, tenant, now_us);

    if (e) drop(s, e);
    return e != NULL;
}

/* --- a chain ---------------------------------------------------------------------------------- */

struct chain {
    struct entry **entries; /* newest first */
    size_t n, cap;
};

/* An entry never continues one that came after it, unless a client had its id before: the number of
 * entries ends the walk. */
static enum status walk(struct responses_store *s, struct str id, uint64_t tenant, uint64_t now_us,
                        struct chain *out) {
    while (id.len) {
        struct entry *e = find(s, id, tenant, now_us);

        if (!e || out->n > s->by_id.n) return ST_NOT_FOUND;
        if (out->n == out->cap) {
            out->cap = out->cap ? 2 * out->cap : 16;
            out->entries = mem_realloc(out->entries, out->cap * sizeof(*out->entries));
        }
        out->entries[out->n++] = e;
        id = shown(e).previous;
    }
    return ST_OK;
}

enum status responses_store_items(struct responses_store *s, struct str id, uint64_t tenant,
                                  uint64_t now_us, struct buf *out) {
    struct chain chain = {0};
    struct json_writer w;
    enum status st = walk(s, id, tenant, now_us, &chain);

    json_writer_init(&w, out);
    json_begin_array(&w);
    for (size_t i = 0; i < chain.n && st == ST_OK; i++) /* the oldest last: it goes last */
        shares_use(&chain.entries[i]->share);
    for (size_t i = chain.n; i-- > 0 && st == ST_OK;) {
        struct stored_response r = shown(chain.entries[i]);

        if (r.input.len) json_put_raw(&w, r.input);
        if (r.output.len) json_put_raw(&w, r.output);
    }
    json_end_array(&w);
    mem_free(chain.entries);
    return st == ST_OK ? buf_status(out) : st;
}

struct responses_store_stats responses_store_stats(const struct responses_store *s) {
    return (struct responses_store_stats){
        .n = s->by_id.n, .bytes = s->shares.n_bytes, .n_evicted = s->n_evicted};
}

void responses_store_check(const struct responses_store *s) {
    size_t n = shares_check(&s->shares);

    strmap_check(&s->by_id);
    assert(n == s->by_id.n);
    (void)n;
}
