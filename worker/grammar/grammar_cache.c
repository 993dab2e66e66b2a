/* worker/grammar/grammar_cache.c - a map, and a list in the order of use. */
#include "worker/grammar/grammar_cache.h"

#include <assert.h>

#include "common/base/mem.h"

#define FINDS_PER_TRIM 8u /* a sum over all grammars, for what a few requests have added */

struct cache_entry {
    struct list link;
    struct hash128 key;
    struct grammar *grammar;
};

static struct cache_entry *entry_of(struct list *link) {
    return LIST_ENTRY(link, struct cache_entry, link);
}

struct hash128 grammar_cache_key(const struct grammar_spec *spec) {
    uint64_t part[5];
    struct hash128 text = hash_128(spec->text.ptr, spec->text.len);

    part[0] = text.lo;
    part[1] = text.hi;
    part[2] = hash_64(spec->spaces_pattern.ptr, spec->spaces_pattern.len, 0);
    part[3] = (uint64_t)spec->kind << 32 | (uint64_t)spec->spaces << 8 | spec->is_closed;
    part[4] = spec->text.len;
    return hash_128(part, sizeof(part));
}

void grammar_cache_init(struct grammar_cache *c, size_t max_bytes) {
    map_init(&c->entries, 0);
    list_init(&c->by_use);
    c->max_bytes = max_bytes;
    c->n = c->n_found = 0;
}

static void drop(struct grammar_cache *c, struct cache_entry *e) {
    map_erase(&c->entries, e->key.lo);
    list_remove(&e->link);
    grammar_unref(e->grammar);
    mem_free(e);
    c->n--;
}

void grammar_cache_fini(struct grammar_cache *c) {
    LIST_FOR_EACH(it, &c->by_use) {
        drop(c, entry_of(it));
    }
    map_fini(&c->entries);
}

size_t grammar_cache_bytes(const struct grammar_cache *c) {
    size_t n_bytes = 0;

    LIST_FOR_EACH(it, &c->by_use) {
        n_bytes += grammar_bytes(entry_of(it)->grammar);
    }
    return n_bytes;
}

/* Grammars in use grow while they are summed. */
static void trim(struct grammar_cache *c) {
    size_t n_bytes = grammar_cache_bytes(c);

    while (c->n > 1 && n_bytes > c->max_bytes) {
        struct cache_entry *e = entry_of(list_last(&c->by_use));

        n_bytes -= MIN(n_bytes, grammar_bytes(e->grammar));
        drop(c, e);
    }
}

struct grammar *grammar_cache_find(struct grammar_cache *c, struct hash128 key) {
    struct cache_entry *e = map_find(&c->entries, key.lo);
    struct grammar *g;

    if (!e || e->key.hi != key.hi) return NULL;
    g = grammar_ref(e->grammar);
    list_remove(&e->link);
    list_push_front(&c->by_use, &e->link);
    if (++c->n_found % FINDS_PER_TRIM == 0) trim(c);
    return g;
}

void grammar_cache_insert(struct grammar_cache *c, struct hash128 key, struct grammar *g) {
    struct cache_entry *e = map_find(&c->entries, key.lo);

    if (e) drop(c, e);
    e = mem_zalloc(sizeof(*e));
    e->key = key;
    e->grammar = grammar_ref(g);
    map_insert(&c->entries, key.lo, e);
    list_push_front(&c->by_use, &e->link);
    c->n++;
    trim(c);
}

void grammar_cache_check(const struct grammar_cache *c) {
    uint32_t n = 0;

    LIST_FOR_EACH(it, &c->by_use) {
        assert(map_find(&c->entries, entry_of(it)->key.lo) == entry_of(it));
        n++;
    }
    assert(n == c->n);
    map_check(&c->entries);
}
