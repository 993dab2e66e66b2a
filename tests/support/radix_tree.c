/* tests/support/radix_tree.c - see the header. Nodes own copies of their tokens. */
#include "tests/support/radix_tree.h"

#include <assert.h>
#include <string.h>

#include "common/base/mem.h"

struct radix_node {
    struct radix_node *parent, *first_child, *next; /* children in order of arrival */
    uint32_t *tokens;                               /* (n_tokens) a multiple of the page */
    uint32_t n_tokens;
    uint32_t n_locks;
    uint64_t used_at; /* when a request with this path finished last */
};

static struct radix_node *node_create(const uint32_t *tokens, uint32_t n) {
    struct radix_node *node = mem_zalloc(sizeof(*node));

    node->tokens = mem_calloc(n + 1, sizeof(*tokens));
    if (n > 0) memcpy(node->tokens, tokens, n * sizeof(*tokens));
    node->n_tokens = n;
    return node;
}

static void node_destroy(struct radix_node *node) {
    mem_free(node->tokens);
    mem_free(node);
}

static struct radix_node **link_to(struct radix_node *node) {
    struct radix_node **link = &node->parent->first_child;

    while (*link != node)
        link = &(*link)->next;
    return link;
}

static void add_child(struct radix_node *parent, struct radix_node *child) {
    struct radix_node **link = &parent->first_child;

    while (*link)
        link = &(*link)->next;
    *link = child;
    child->parent = parent;
}

void radix_tree_init(struct radix_tree *t, uint32_t page, uint32_t capacity, bool whole_leaves) {
    *t = (struct radix_tree){.root = node_create(NULL, 0),
                             .page = page,
                             .capacity = capacity,
                             .whole_leaves = whole_leaves};
}

static void destroy_below(struct radix_node *node) {
    for (struct radix_node *c = node->first_child, *next; c; c = next) {
        next = c->next;
        destroy_below(c);
    }
    node_destroy(node);
}

void radix_tree_fini(struct radix_tree *t) {
    assert(t->root->n_locks == 0);
    destroy_below(t->root);
}

/* --- walking --------------------------------------------------------------------------------- */

/* The first n tokens of a node become its parent's; the rest stays, and keeps its claims. */
static void split(struct radix_node *node, uint32_t n) {
    struct radix_node *upper = node_create(node->tokens, n);
    struct radix_node **link = link_to(node);

    upper->parent = node->parent;
    upper->next = node->next;
    upper->n_locks = node->n_locks;
    upper->used_at = node->used_at;
    *link = upper;
    upper->first_child = node;
    node->parent = upper;
    node->next = NULL;
    node->n_tokens -= n;
    memmove(node->tokens, node->tokens + n, node->n_tokens * sizeof(*node->tokens));
}

/* Pages that a node and these n tokens have in common, in tokens. */
static uint32_t common(const struct radix_tree *t, const struct radix_node *node,
                       const uint32_t *tokens, uint32_t n) {
    uint32_t k = 0;

    while (k < n && k < node->n_tokens && tokens[k] == node->tokens[k])
        k++;
    return k / t->page * t->page;
}

/* The end of the longest match of at most n tokens, split so that it is a node's end. */
static struct radix_node *match(struct radix_tree *t, const uint32_t *tokens, uint32_t n,
                                uint32_t *n_matched) {
    struct radix_node *node = t->root, *child;

    *n_matched = 0;
    for (;;) {
        uint32_t k = 0;

        for (child = node->first_child; child; child = child->next) {
            k = common(t, child, tokens + *n_matched, n - *n_matched);
            if (k > 0) break;
        }
        if (!child) return node;
        *n_matched += k;
        if (k < child->n_tokens) {
            split(child, k);
            return child->parent;
        }
        node = child;
    }
}

static void lock(struct radix_node *node) {
    for (; node; node = node->parent)
        node->n_locks++;
}

static void unlock(struct radix_node *node) {
    for (; node; node = node->parent) {
        assert(node->n_locks > 0);
        node->n_locks--;
    }
}

/* --- eviction -------------------------------------------------------------------------------- */

static struct radix_node *coldest_leaf(struct radix_node *node) {
    struct radix_node *coldest = NULL;

    if (!node->first_child) return node->n_locks == 0 && node->parent ? node : NULL;
    for (struct radix_node *c = node->first_child; c; c = c->next) {
        struct radix_node *leaf = coldest_leaf(c);

        if (leaf && (!coldest || leaf->used_at < coldest->used_at)) coldest = leaf;
    }
    return coldest;
}

static void evict_once(struct radix_tree *t) {
    struct radix_node *leaf = coldest_leaf(t->root);
    uint32_t n = t->whole_leaves ? leaf->n_tokens : t->page;

    leaf->n_tokens -= n;
    t->n_used -= n / t->page;
    t->n_in_tree -= n / t->page;
    t->n_evicted += n / t->page;
    if (leaf->n_tokens > 0) return;
    *link_to(leaf) = leaf->next;
    node_destroy(leaf);
}

static uint32_t unlocked_pages(const struct radix_tree *t, const struct radix_node *node) {
    uint32_t n = node->n_locks ? 0 : node->n_tokens / t->page;

    for (const struct radix_node *c = node->first_child; c; c = c->next)
        n += unlocked_pages(t, c);
    return n;
}

static bool make_room(struct radix_tree *t, uint32_t n_pages) {
    if (t->capacity - t->n_used + unlocked_pages(t, t->root) < n_pages) return false;
    while (t->capacity - t->n_used < n_pages)
        evict_once(t);
    t->n_used += n_pages;
    return true;
}

/* --- requests -------------------------------------------------------------------------------- */

/* The full pages of tokens[0, n) belong to the tree now; those it had already are given back. */
static void insert(struct radix_tree *t, const uint32_t *tokens, uint32_t n,
                   struct radix_claim *claim) {
    uint32_t n_before = claim->n_tokens / t->page * t->page, n_full = n / t->page * t->page;
    uint32_t n_there;
    struct radix_node *end = match(t, tokens, n_full, &n_there);

    t->n_used -= (n_there - n_before) / t->page;
    if (n_full > n_there) {
        struct radix_node *node = node_create(tokens + n_there, n_full - n_there);

        node->used_at = t->now;
        t->n_in_tree += node->n_tokens / t->page;
        add_child(end, node);
        node->n_locks = 0;
        end = node;
    }
    lock(end);
    unlock(claim->last);
    *claim = (struct radix_claim){end, n};
}

bool radix_tree_grow(struct radix_tree *t, const uint32_t *tokens, uint32_t n,
                     struct radix_claim *claim) {
    uint32_t n_have = CEIL_DIV(claim->n_tokens, t->page);

    if (!make_room(t, CEIL_DIV(n, t->page) - n_have)) return false;
    insert(t, tokens, n, claim);
    return true;
}

bool radix_tree_admit(struct radix_tree *t, const uint32_t *tokens, uint32_t n,
                      struct radix_claim *claim, uint32_t *n_hit) {
    claim->last = match(t, tokens, n - 1, &claim->n_tokens);
    *n_hit = claim->n_tokens;
    lock(claim->last);
    if (radix_tree_grow(t, tokens, n, claim)) return true;
    unlock(claim->last);
    return false;
}

void radix_tree_finish(struct radix_tree *t, struct radix_claim *claim) {
    t->now++;
    for (struct radix_node *node = claim->last; node; node = node->parent)
        node->used_at = t->now;
    unlock(claim->last);
    t->n_used -= claim->n_tokens % t->page > 0; /* the partial page was never in the tree */
}

/* --- looking in ------------------------------------------------------------------------------ */

static size_t write_node(const struct radix_node *node, char *out) {
    size_t n = 0;

    for (const struct radix_node *c = node->first_child; c; c = c->next) {
        out[n++] = '(';
        for (uint32_t i = 0; i < c->n_tokens; i++)
            out[n++] = (char)c->tokens[i];
        n += write_node(c, out + n);
        out[n++] = ')';
    }
    return n;
}

const char *radix_tree_text(const struct radix_tree *t) {
    static char text[4096];

    text[write_node(t->root, text)] = '\0';
    return text;
}

static uint32_t check_node(const struct radix_tree *t, const struct radix_node *node) {
    uint32_t n = node->n_tokens / t->page;

    assert(node->n_tokens % t->page == 0);
    for (const struct radix_node *c = node->first_child; c; c = c->next) {
        assert(c->parent == node && c->n_tokens > 0 && c->n_locks <= node->n_locks);
        assert(node == t->root || c->used_at <= node->used_at || node->n_locks > 0);
        for (const struct radix_node *d = c->next; d; d = d->next)
            assert(memcmp(c->tokens, d->tokens, t->page * sizeof(*c->tokens)) != 0);
        n += check_node(t, c);
    }
    return n;
}

void radix_tree_check(const struct radix_tree *t) {
    assert(check_node(t, t->root) == t->n_in_tree);
    assert(t->n_in_tree <= t->n_used && t->n_used <= t->capacity);
}
