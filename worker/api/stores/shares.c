/* worker/api/stores/shares.c - tenants by their bytes in a heap, entries in lists. */
#include "worker/api/stores/shares.h"

#include <assert.h>

#include "common/base/mem.h"

struct share_tenant {
    struct heap_link by_bytes;
    uint64_t id;
    struct list entries; /* longest unused first */
    size_t n_bytes;
};

static bool is_larger(const struct heap_link *a, const struct heap_link *b) {
    return HEAP_ENTRY_CONST(a, struct share_tenant, by_bytes)->n_bytes >
           HEAP_ENTRY_CONST(b, struct share_tenant, by_bytes)->n_bytes;
}

void shares_init(struct shares *s, size_t max_bytes, uint64_t seed) {
    *s = (struct shares){.max_bytes = max_bytes};
    map_init(&s->tenants, seed);
    heap_init(&s->largest, is_larger);
}

void shares_fini(struct shares *s) {
    assert(s->n_bytes == 0);
    map_fini(&s->tenants);
    heap_fini(&s->largest);
}

bool shares_has_room(const struct shares *s, size_t n_bytes) {
    return n_bytes <= s->max_bytes && s->n_bytes <= s->max_bytes - n_bytes;
}

static struct share_tenant *largest(const struct shares *s) {
    struct heap_link *top = heap_first(&s->largest);

    return top ? HEAP_ENTRY(top, struct share_tenant, by_bytes) : NULL;
}

static struct share_entry *oldest(const struct share_tenant *t) {
    return LIST_ENTRY(list_first(&t->entries), struct share_entry, link);
}

struct share_entry *shares_loser(const struct shares *s, uint64_t tenant, size_t n_bytes) {
    const struct share_tenant *own = map_find(&s->tenants, tenant), *top = largest(s);

    if (!top || n_bytes > s->max_bytes) return NULL;
    if (own && own->n_bytes + n_bytes >= top->n_bytes) return oldest(own);
    return n_bytes <= s->max_bytes / SHARES_NEWCOMER ? oldest(top) : NULL;
}

static void charge(struct shares *s, struct share_tenant *t, size_t n_bytes) {
    t->n_bytes += n_bytes;
    s->n_bytes += n_bytes;
    heap_update(&s->largest, &t->by_bytes);
}

static struct share_tenant *tenant_of(struct shares *s, uint64_t id) {
    struct share_tenant *t = map_find(&s->tenants, id);

    if (t) return t;
    t = mem_zalloc(sizeof(*t));
    t->id = id;
    list_init(&t->entries);
    heap_push(&s->largest, &t->by_bytes);
    (void)map_insert(&s->tenants, id, t);
    return t;
}

void shares_add(struct shares *s, uint64_t tenant, struct share_entry *e, size_t n_bytes) {
    assert(shares_has_room(s, n_bytes));
    e->tenant = tenant_of(s, tenant);
    e->n_bytes = n_bytes;
    charge(s, e->tenant, n_bytes);
    list_push_back(&e->tenant->entries, &e->link);
}

void shares_use(struct share_entry *e) {
    list_remove(&e->link);
    list_push_back(&e->tenant->entries, &e->link);
}

void shares_remove(struct shares *s, struct share_entry *e) {
    struct share_tenant *t = e->tenant;

    list_remove(&e->link);
    charge(s, t, (size_t)0 - e->n_bytes);
    if (!list_is_empty(&t->entries)) return;
    heap_remove(&s->largest, &t->by_bytes);
    (void)map_erase(&s->tenants, t->id);
    mem_free(t);
}

struct share_entry *shares_any(const struct shares *s) {
    const struct share_tenant *top = largest(s);

    return top ? oldest(top) : NULL;
}

size_t shares_check(const struct shares *s) {
    size_t n = 0, n_bytes = 0;

    map_check(&s->tenants);
    heap_check(&s->largest);
    assert(s->tenants.n == s->largest.n);
    for (size_t i = 0; i < s->largest.n; i++) {
        const struct share_tenant *t =
            HEAP_ENTRY_CONST(s->largest.items[i], struct share_tenant, by_bytes);
        size_t n_own = 0;

        assert(map_find(&s->tenants, t->id) == t && !list_is_empty(&t->entries));
        LIST_FOR_EACH(it, &t->entries) {
            const struct share_entry *e = LIST_ENTRY(it, struct share_entry, link);

            assert(e->tenant == t);
            n_own += e->n_bytes;
            n++;
        }
        assert(n_own == t->n_bytes);
        n_bytes += n_own;
    }
    assert(n_bytes == s->n_bytes && n_bytes <= s->max_bytes);
    (void)n_bytes;
    return n;
}
