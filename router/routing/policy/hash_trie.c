/* router/routing/policy/hash_trie.c - any worker among those that were sent the longest common
 * opening.
 *
 * Follows `prefixaware` of production-stack (src/vllm_router, HashTrie): chunks of 128 characters;
 * the walk goes on while a worker is left that was sent every chunk so far; one of the survivors
 * is drawn, and the prompt is entered for it, its last short chunk too. There is no load term.
 *
 * Constants: --prefix-min-match-length 0: a match shorter than that many bytes counts as none.
 * Differs: chunks are our blocks, of 256 bytes of the raw prompt. production-stack never forgets;
 * here the table holds --max-tree-size bytes of prompt text, and workers that leave or restart are
 * forgotten. Known weakness, kept: an opening shared by all requests sends all of them to one
 * worker. */
#include <string.h>

#include "common/base/mem.h"
#include "router/routing/policy/block_table.h"
#include "router/routing/policy/choose.h"

struct hash_trie {
    struct block_table *table;
    uint64_t min_match_bytes;
    uint32_t block_bytes;
    struct rng rng;
};

static void hash_trie_configure(void *self, const struct policy_options *options) {
    struct hash_trie *p = self;

    p->min_match_bytes = options->prefix_min_match;
}

static void *hash_trie_create(const struct policy_options *options, uint32_t n_workers) {
    struct hash_trie *p = mem_zalloc(sizeof(*p));
    uint64_t n_blocks = options->max_tree_bytes / options->block_bytes;

    hash_trie_configure(p, options);
    p->block_bytes = options->block_bytes;
    rng_seed(&p->rng, options->seed);
    p->table = block_table_create((uint32_t)MAX(n_blocks, 1), n_workers);
    if (p->table) return p;
    mem_free(p);
    return NULL;
}

static void hash_trie_destroy(void *self) {
    struct hash_trie *p = self;

    block_table_destroy(p->table);
    mem_free(p);
}

/* Narrows *set to the candidates that were sent the longest opening, which has n blocks. */
static uint32_t survivors(const struct hash_trie *p, const struct route_request *rq,
                          uint32_t n_words, struct worker_mask *set) {
    struct block_holders h;
    uint32_t n = 0;

    for (; n < rq->n_blocks && block_table_find(p->table, rq->chain[n], &h); n++) {
        uint64_t kept[WORKER_MASK_WORDS], any = 0;

        for (uint32_t i = 0; i < n_words; i++)
            any |= kept[i] = set->words[i] & h.mask[i];
        if (!any) break;
        memcpy(set->words, kept, n_words * sizeof(*kept));
    }
    return n;
}

static uint32_t hash_trie_pick(void *self, const struct route_request *rq,
                               const struct policy_view *view, struct policy_term *terms) {
    struct hash_trie *p = self;
    struct rng rng = p->rng;
    struct worker_mask set = {0};
    uint32_t n_words = view->load->n_words, n, w;

    memcpy(set.words, view->candidates, n_words * sizeof(*set.words));
    n = survivors(p, rq, n_words, &set);
    if ((uint64_t)n * p->block_bytes < p->min_match_bytes)
        memcpy(set.words, view->candidates, n_words * sizeof(*set.words));
    w = choose_random(view, set.words, &rng);
    choose_mark(view, terms);
    if (!terms) p->rng = rng;
    return w;
}

static void hash_trie_sent(void *self, const struct route_request *rq, uint32_t w) {
    struct hash_trie *p = self;

    for (uint32_t i = rq->n_blocks; i-- > 0;)
        block_table_put(p->table, rq->chain[i], w, rq->now_us);
}

static void hash_trie_worker_up(void *self, uint32_t w, const struct worker_spec *spec) {
    block_table_worker_up(((struct hash_trie *)self)->table, w, spec);
}

static void hash_trie_worker_down(void *self, uint32_t w) {
    block_table_worker_down(((struct hash_trie *)self)->table, w);
}

const struct policy_ops policy_hash_trie = {
    .name = "hash_trie",
    .create = hash_trie_create,
    .destroy = hash_trie_destroy,
    .configure = hash_trie_configure,
    .pick = hash_trie_pick,
    .sent = hash_trie_sent,
    .worker_up = hash_trie_worker_up,
    .worker_down = hash_trie_worker_down,
};
