/* tests/support/radix_tree.h - a prefix cache as a radix tree, to compare the block pool with.
 *
 * The other school of prefix caching: edges hold runs of tokens, a match may split one, running
 * requests lock their path, and the least recently used unlocked leaf is evicted. It knows nothing
 * of blocks, hashes or free queues, so where both answer alike, neither is right by accident.
 *
 *      (sys: (hi-o (secondturn-one)) (other-ch))
 *
 * Two ways to evict: a whole leaf at once (RadixAttention, SGLang), or the last page of one. The
 * second is what a free queue of blocks does, page by page the same. */
#ifndef TESTS_SUPPORT_RADIX_TREE_H
#define TESTS_SUPPORT_RADIX_TREE_H

#include "common/base/base.h"

struct radix_node;

struct radix_tree {
    struct radix_node *root;
    uint32_t page;     /* tokens; matches end on multiples of it */
    uint32_t capacity; /* pages */
    uint32_t n_used;   /* pages: the tree's, and partial ones that requests hold beside it */
    uint32_t n_in_tree;
    uint64_t n_evicted; /* pages */
    uint64_t now;       /* finished requests */
    bool whole_leaves;
};

/* What a running request holds. */
struct radix_claim {
    struct radix_node *last; /* end of the locked path */
    uint32_t n_tokens;       /* that it has pages for */
};

void radix_tree_init(struct radix_tree *t, uint32_t page, uint32_t capacity, bool whole_leaves);
void radix_tree_fini(struct radix_tree *t); /* no claims may be open */

/* Takes pages for n tokens; all but the last token may be found in the tree. False, and nothing
 * evicted, when even without the unlocked leaves there is no room. */
bool radix_tree_admit(struct radix_tree *t, const uint32_t *tokens, uint32_t n,
                      struct radix_claim *claim, uint32_t *n_hit);
/* The same for more tokens of a running request; n is all of them. */
bool radix_tree_grow(struct radix_tree *t, const uint32_t *tokens, uint32_t n,
                     struct radix_claim *claim);
void radix_tree_finish(struct radix_tree *t, struct radix_claim *claim);

/* "(ab(cd)(ef))", tokens as characters. Valid until the next call. */
const char *radix_tree_text(const struct radix_tree *t);

void radix_tree_check(const struct radix_tree *t);

#endif
