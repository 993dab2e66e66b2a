/* worker/api/stores/responses_store.c - a map by id, and a list of each tenant's in the order of
 * use.
 *
 * A heap has the tenants by their bytes. A tenant is here exactly while it has responses, or is
 * about to have its first. */
#include "worker/api/stores/responses_store.h"

#include <assert.h>

#include "common/base/heap.h"
#include "common/base/list.h"
#include "common/base/map.h"
#include "common/base/mem.h"
#include "common/text/json.h"

#define ENTRY_BYTES 256 /* of bookkeeping, about */

struct owner {
    struct heap_link by_bytes;
    uint64_t tenant;
    struct list entries; /* longest unused first */
    size_t n_bytes;
    size_t n_coming; /* of the response that is being put */
};

struct entry {
    struct list link;
    struct owner *owner;
    uint64_t born_us;
    size_t n_bytes;
    /* The lengths of what `text` has, in order. */
    size_t n_id, n_previous, n_input, n_output, n_response;
    char *text;
};

struct responses_store {
    struct strmap by_id;
    struct map owners; /* by tenant */
    struct heap largest;
    size_t max_bytes, n_bytes;
    uint64_t ttl_us, n_evicted;
};

static bool is_larger(const struct heap_link *a, const struct heap_link *b) {
    return HEAP_ENTRY_CONST(a, struct owner, by_bytes)->n_bytes >
           HEAP_ENTRY_CONST(b, struct owner, by_bytes)->n_bytes;
}

struct responses_store *responses_store_create(size_t max_bytes, uint64_t ttl_us, uint64_t seed) {
    struct responses_store *s = mem_zalloc(sizeof(*s));

    strmap_init(&s->by_id, seed);
    map_init(&s->owners, seed);
    heap_init(&s->largest, is_larger);
    s->max_bytes = max_bytes;
    s->ttl_us = ttl_us;
    return s;
}

static struct stored_response shown(const struct entry *e) {
    const char *at = e->text;
    struct stored_response r = {.tenant = e->owner->tenant, .id = {at, e->n_id}};

    r.previous = (struct str){at += e->n_id, e->n_previous};
    r.input = (struct str){at += e->n_previous, e->n_input};
    r.output = (struct str){at += e->n_input, e->n_output};
    r.response = (struct str){at + e->n_output, e->n_response};
    return r;
}

static struct owner *owner_of(struct responses_store *s, uint64_t tenant) {
    struct owner *o = map_find(&s->owners, tenant);

    if (o) return o;
    o = mem_zalloc(sizeof(*o));
    o->tenant = tenant;
    list_init(&o->entries);
    heap_push(&s->largest, &o->by_bytes);
    (void)map_insert(&s->owners, tenant, o);
    return o;
}

static void charge(struct responses_store *s, struct owner *o, size_t n_bytes) {
    o->n_bytes += n_bytes;
    s->n_bytes += n_bytes;
    heap_update(&s->largest, &o->by_bytes);
}

static void forget_if_empty(struct responses_store *s, struct owner *o) {
    if (o->n_bytes + o->n_coming > 0) return;
    heap_remove(&s->largest, &o->by_bytes);
    (void)map_erase(&s->owners, o->tenant);
    mem_free(o);
}

static void drop(struct responses_store *s, struct entry *e) {
    (void)strmap_erase(&s->by_id, shown(e).id);
    list_remove(&e->link);
    charge(s, e->owner, (size_t)0 - e->n_bytes);
    forget_if_empty(s, e->owner);
    mem_free(e->text);
    mem_free(e);
}

void responses_store_destroy(struct responses_store *s) {
    struct heap_link *top;

    if (!s) return;
    while ((top = heap_first(&s->largest)) != NULL)
        drop(s, LIST_ENTRY(list_first(&HEAP_ENTRY(top, struct owner, by_bytes)->entries),
                           struct entry, link));
    strmap_fini(&s->by_id);
    map_fini(&s->owners);
    heap_fini(&s->largest);
    mem_free(s);
}

static void evict(struct responses_store *s, struct entry *e) {
    s->n_evicted++;
    drop(s, e);
}

/* Who loses a response for the one that comes to `o`; NULL: none. */
static struct owner *payer(const struct responses_store *s, struct owner *o) {
    struct owner *top = HEAP_ENTRY(heap_first(&s->largest), struct owner, by_bytes);

    if (o->n_bytes > 0 && o->n_bytes + o->n_coming >= top->n_bytes) return o;
    return o->n_coming <= s->max_bytes / RESPONSES_STORE_SHARE ? top : NULL;
}

static bool make_room(struct responses_store *s, struct owner *o) {
    while (s->n_bytes + o->n_coming > s->max_bytes) {
        struct owner *loser = payer(s, o);

        if (!loser) return false;
        evict(s, LIST_ENTRY(list_first(&loser->entries), struct entry, link));
    }
    return true;
}

void responses_store_put(struct responses_store *s, const struct stored_response *r,
                         uint64_t now_us) {
    const struct str parts[] = {r->id, r->previous, r->input, r->output, r->response};
    struct entry *e, *before = strmap_find(&s->by_id, r->id);
    size_t n = ENTRY_BYTES;
    struct owner *owner;
    char *to;

    for (size_t i = 0; i < ARRAY_LEN(parts); i++)
        n += parts[i].len;
    if (before) drop(s, before);
    if (n > s->max_bytes) return;
    owner = owner_of(s, r->tenant);
    owner->n_coming = n;
    to = make_room(s, owner) ? mem_try(n - ENTRY_BYTES + 1) : NULL;
    owner->n_coming = 0;
    if (!to) {
        forget_if_empty(s, owner);
        return;
    }
    e = mem_zalloc(sizeof(*e));
    *e = (struct entry){.owner = owner,
                        .born_us = now_us,
                        .n_bytes = n,
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
    charge(s, owner, n);
    list_push_back(&owner->entries, &e->link);
    (void)strmap_insert(&s->by_id, r->id, e);
}

/* Of that tenant, and young enough; one that is too old goes. */
static struct entry *find(struct responses_store *s, struct str id, uint64_t tenant,
                          uint64_t now_us) {
    struct entry *e = strmap_find(&s->by_id, id);

    if (!e || e->owner->tenant != tenant) return NULL;
    if (now_us < e->born_us + s->ttl_us) return e;
    evict(s, e);
    return NULL;
}

static void use(struct entry *e) {
    list_remove(&e->link);
    list_push_back(&e->owner->entries, &e->link);
}

bool responses_store_get(struct responses_store *s, struct str id, uint64_t tenant, uint64_t now_us,
                         struct stored_response *out) {
    struct entry *e = find(s, id, tenant, now_us);

    if (!e) return false;
    use(e);
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
        use(chain.entries[i]);
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
    map_check(&s->owners);
    heap_check(&s->largest);
    assert(s->owners.n == s->largest.n);
    for (size_t i = 0; i < s->largest.n; i++) {
        const struct owner *o = HEAP_ENTRY_CONST(s->largest.items[i], struct owner, by_bytes);
        size_t n_own = 0;

        assert(map_find(&s->owners, o->tenant) == o && !list_is_empty(&o->entries));
        LIST_FOR_EACH(it, &o->entries) {
            const struct entry *e = LIST_ENTRY(it, struct entry, link);

            assert(e->owner == o && strmap_find(&s->by_id, shown(e).id) == e);
            n_own += e->n_bytes;
            n++;
        }
        assert(n_own == o->n_bytes);
        n_bytes += n_own;
    }
    assert(n == s->by_id.n && n_bytes == s->n_bytes && n_bytes <= s->max_bytes);
    (void)n;
    (void)n_bytes;
}
