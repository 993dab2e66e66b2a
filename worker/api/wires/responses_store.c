/* worker/api/wires/responses_store.c - a map by id, and a list in the order of use. */
#include "worker/api/wires/responses_store.h"

#include <assert.h>

#include "common/base/list.h"
#include "common/base/map.h"
#include "common/base/mem.h"
#include "common/text/json.h"

#define ENTRY_BYTES 256 /* of bookkeeping, about */

struct entry {
    struct list link; /* longest unused first */
    uint64_t tenant, born_us;
    size_t n_bytes;
    /* The lengths of what `text` has, in order. */
    size_t n_id, n_previous, n_input, n_output, n_response;
    char *text;
};

struct responses_store {
    struct strmap by_id;
    struct list order;
    size_t max_bytes, n_bytes;
    uint64_t ttl_us, n_evicted;
};

struct responses_store *responses_store_create(size_t max_bytes, uint64_t ttl_us, uint64_t seed) {
    struct responses_store *s = mem_zalloc(sizeof(*s));

    strmap_init(&s->by_id, seed);
    list_init(&s->order);
    s->max_bytes = max_bytes;
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
    list_remove(&e->link);
    s->n_bytes -= e->n_bytes;
    mem_free(e->text);
    mem_free(e);
}

void responses_store_destroy(struct responses_store *s) {
    if (!s) return;
    LIST_FOR_EACH(it, &s->order) drop(s, LIST_ENTRY(it, struct entry, link));
    strmap_fini(&s->by_id);
    mem_free(s);
}

static struct entry *oldest(const struct responses_store *s) {
    return list_is_empty(&s->order) ? NULL : LIST_ENTRY(list_first(&s->order), struct entry, link);
}

static void evict(struct responses_store *s, struct entry *e) {
    s->n_evicted++;
    drop(s, e);
}

void responses_store_put(struct responses_store *s, const struct stored_response *r,
                         uint64_t now_us) {
    const struct str parts[] = {r->id, r->previous, r->input, r->output, r->response};
    struct entry *e, *before = strmap_find(&s->by_id, r->id);
    size_t n = 0;
    char *to;

    for (size_t i = 0; i < ARRAY_LEN(parts); i++)
        n += parts[i].len;
    if (before) drop(s, before);
    if (n + ENTRY_BYTES > s->max_bytes) return;
    while (s->n_bytes + n + ENTRY_BYTES > s->max_bytes)
        evict(s, oldest(s));
    e = mem_zalloc(sizeof(*e));
    *e = (struct entry){.tenant = r->tenant,
                        .born_us = now_us,
                        .n_bytes = n + ENTRY_BYTES,
                        .n_id = r->id.len,
                        .n_previous = r->previous.len,
                        .n_input = r->input.len,
                        .n_output = r->output.len,
                        .n_response = r->response.len,
                        .text = to = mem_try(n + 1)};
    if (!to) {
        mem_free(e);
        return;
    }
    for (size_t i = 0; i < ARRAY_LEN(parts); i++) {
        if (parts[i].len) memcpy(to, parts[i].ptr, parts[i].len);
        to += parts[i].len;
    }
    s->n_bytes += e->n_bytes;
    list_push_back(&s->order, &e->link);
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

static void use(struct responses_store *s, struct entry *e) {
    list_remove(&e->link);
    list_push_back(&s->order, &e->link);
}

bool responses_store_get(struct responses_store *s, struct str id, uint64_t tenant, uint64_t now_us,
                         struct stored_response *out) {
    struct entry *e = find(s, id, tenant, now_us);

    if (!e) return false;
    use(s, e);
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
        use(s, chain.entries[i]);
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
        .n = s->by_id.n, .bytes = s->n_bytes, .n_evicted = s->n_evicted};
}

void responses_store_check(const struct responses_store *s) {
    size_t n = 0, n_bytes = 0;

    strmap_check(&s->by_id);
    LIST_FOR_EACH(it, &s->order) {
        const struct entry *e = LIST_ENTRY(it, struct entry, link);

        assert(strmap_find(&s->by_id, shown(e).id) == e);
        n_bytes += e->n_bytes;
        n++;
    }
    assert(n == s->by_id.n && n_bytes == s->n_bytes && n_bytes <= s->max_bytes);
    (void)n;
    (void)n_bytes;
}
