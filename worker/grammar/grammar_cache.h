/* worker/grammar/grammar_cache.h - compiled grammars by their spec, the latest used first.
 *
 * Agents send the same tools and schemas every turn: what was compiled for one request, and every
 * mask that its answers have needed, serves the next. The cache holds a reference to each; one that
 * is dropped lives on until its last request ends. Equal specs are found by a hash of 128 bits.
 *
 * Bounded by the memory of the grammars, which grows while they are used: it is looked at again
 * with every insertion and every few finds. One thread (the loop that submits requests). */
#ifndef WORKER_GRAMMAR_GRAMMAR_CACHE_H
#define WORKER_GRAMMAR_GRAMMAR_CACHE_H

#include "common/base/hash.h"
#include "common/base/list.h"
#include "common/base/map.h"
#include "worker/grammar/grammar.h"

struct grammar_cache {  /* embedded */
    struct map entries; /* by the key's lower half */
    struct list by_use; /* the latest first */
    size_t max_bytes;
    uint32_t n, n_found;
};

struct hash128 grammar_cache_key(const struct grammar_spec *spec);

void grammar_cache_init(struct grammar_cache *c, size_t max_bytes);
void grammar_cache_fini(struct grammar_cache *c);

/* A reference for the caller, or NULL. May drop others. */
struct grammar *grammar_cache_find(struct grammar_cache *c, struct hash128 key);

/* Keeps a reference of its own, and drops the least used ones beyond max_bytes. */
void grammar_cache_insert(struct grammar_cache *c, struct hash128 key, struct grammar *g);

size_t grammar_cache_bytes(const struct grammar_cache *c); /* of all that it holds, now */
void grammar_cache_check(const struct grammar_cache *c);   /* asserts the invariants; for tests */

#endif
