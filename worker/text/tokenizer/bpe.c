/* worker/text/tokenizer/bpe.c - the merge table and the two ways to run it. */
#include "worker/text/tokenizer/bpe.h"

#include <string.h>

#include "common/base/mem.h"

#define NO_RANK UINT32_MAX
#define NOWHERE UINT32_MAX

/* Above this many symbols the heap wins over looking for the smallest. */
#define SMALL 48

static inline uint32_t slot_of(const struct bpe *b, uint64_t pair) {
    return (uint32_t)((pair * 0x9E3779B97F4A7C15u) >> 32) & b->mask;
}

/* Rank of the pair, NO_RANK when it has no merge; *merged is then untouched. */
static inline uint32_t rank_of(const struct bpe *b, uint32_t left, uint32_t right,
                               uint32_t *merged) {
    uint64_t pair = (uint64_t)left << 32 | right;

    for (uint32_t i = slot_of(b, pair);; i = (i + 1) & b->mask) {
        const struct bpe_merge *m = &b->slots[i];

        if (m->pair == pair) {
            *merged = m->merged;
            return m->rank;
        }
        if (m->pair == BPE_NO_PAIR) return NO_RANK;
    }
}

enum status bpe_init(struct bpe *b, uint32_t max_merges) {
    uint64_t n_slots = 16;

    memset(b, 0, sizeof(*b));
    while (n_slots < (uint64_t)max_merges * 2)
        n_slots *= 2; /* at most half full */
    b->slots = mem_try(n_slots * sizeof(*b->slots));
    if (!b->slots) return ST_NOMEM;
    for (uint64_t i = 0; i < n_slots; i++)
        b->slots[i].pair = BPE_NO_PAIR;
    b->mask = (uint32_t)(n_slots - 1);
    b->max = max_merges;
    return ST_OK;
}

void bpe_fini(struct bpe *b) {
    mem_free(b->slots);
    memset(b, 0, sizeof(*b));
}

void bpe_add(struct bpe *b, uint32_t left, uint32_t right, uint32_t rank, uint32_t merged) {
    uint64_t pair = (uint64_t)left << 32 | right;
    uint32_t i = slot_of(b, pair);

    if (b->n == b->max) return;
    while (b->slots[i].pair != BPE_NO_PAIR) {
        if (b->slots[i].pair == pair) return;
        i = (i + 1) & b->mask;
    }
    b->slots[i] = (struct bpe_merge){pair, rank, merged};
    b->n++;
}

/* --- short pieces ------------------------------------------------------------------------------*/
static size_t run_small(const struct bpe *b, uint32_t *ids, size_t n) {
    uint32_t rank[SMALL], merged[SMALL]; /* of the pair (i, i + 1) */

    for (size_t i = 0; i + 1 < n; i++)
        rank[i] = rank_of(b, ids[i], ids[i + 1], &merged[i]);
    while (n > 1) {
        size_t best = 0;

        for (size_t i = 1; i + 1 < n; i++) {
            if (rank[i] < rank[best]) best = i;
        }
        if (rank[best] == NO_RANK) break;
        ids[best] = merged[best];
        n--;
        memmove(&ids[best + 1], &ids[best + 2], (n - best - 1) * sizeof(*ids));
        memmove(&rank[best], &rank[best + 1], (n - best - 1) * sizeof(*rank));
        memmove(&merged[best], &merged[best + 1], (n - best - 1) * sizeof(*merged));
        if (best + 1 < n) rank[best] = rank_of(b, ids[best], ids[best + 1], &merged[best]);
        if (best > 0) rank[best - 1] = rank_of(b, ids[best - 1], ids[best], &merged[best - 1]);
    }
    return n;
}

/* --- long pieces -------------------------------------------------------------------------------*/
/* Live symbols are chained by `next`/`prev`; a symbol merged into its left neighbour has next == at
 * itself. `heap` holds candidate merges of the symbol at `at` with the next one, as rank << 32 |
 * at, so that the order of numbers is the order of merging; four children per parent halve the
 * levels of a binary heap. A candidate is stale, and dropped when popped, if its pair has changed.
 * */
struct run {
    const struct bpe *bpe;
    uint32_t *ids, *next, *prev;
    uint64_t *heap;
    size_t n_heap;
    uint32_t n;
};

static void heap_push(struct run *r, uint64_t w) {
    size_t i = r->n_heap++;

    for (; i > 0 && w < r->heap[(i - 1) / 4]; i = (i - 1) / 4)
        r->heap[i] = r->heap[(i - 1) / 4];
    r->heap[i] = w;
}

static uint64_t heap_pop(struct run *r) {
    uint64_t top = r->heap[0], last = r->heap[--r->n_heap];
    size_t i = 0, child;

    while ((child = 4 * i + 1) < r->n_heap) {
        size_t end = MIN(child + 4, r->n_heap), least = child;

        for (size_t k = child + 1; k < end; k++) {
            if (r->heap[k] < r->heap[least]) least = k;
        }
        if (r->heap[least] >= last) break;
        r->heap[i] = r->heap[least];
        i = least;
    }
    r->heap[i] = last;
    return top;
}

static void push_merge(struct run *r, uint32_t at) {
    uint32_t merged, rank;

    if (at == NOWHERE || r->next[at] == r->n) return;
    rank = rank_of(r->bpe, r->ids[at], r->ids[r->next[at]], &merged);
    if (rank != NO_RANK) heap_push(r, (uint64_t)rank << 32 | at);
}

static void apply_merge(struct run *r, uint64_t w) {
    uint32_t at = (uint32_t)w, right = r->next[at], merged = 0;

    if (right == at || right == r->n) return; /* swallowed, or the last symbol by now */
    if (rank_of(r->bpe, r->ids[at], r->ids[right], &merged) != w >> 32) return;
    r->ids[at] = merged;
    r->next[at] = r->next[right];
    if (r->next[right] < r->n) r->prev[r->next[right]] = at;
    r->next[right] = right;
    push_merge(r, r->prev[at]);
    push_merge(r, at);
}

/* Merges between two checks of the pace: some milliseconds. */
#define CHECK_EVERY (1u << 14)

static bool may_continue(const struct bpe_pace *pace, uint64_t n_done) {
    return !pace || n_done % CHECK_EVERY || pace->may_continue(pace->arg);
}

static bool apply_all(struct run *r, const struct bpe_pace *pace) {
    for (uint32_t i = 0; i < r->n; i++) {
        push_merge(r, i);
        if (!may_continue(pace, i + 1ull)) return false;
    }
    for (uint64_t n_done = 1; r->n_heap; n_done++) {
        apply_merge(r, heap_pop(r));
        if (!may_continue(pace, n_done)) return false;
    }
    return true;
}

static size_t run_large(const struct bpe *b, uint32_t *ids, size_t n, const struct bpe_pace *pace) {
    struct run r = {.bpe = b, .ids = ids, .n = (uint32_t)n};
    size_t n_out = 0;

    if (n >= NOWHERE) return 0;
    /* Each merge pops one candidate and pushes two: never more than 2n at once. */
    r.heap = mem_try(2 * n * sizeof(*r.heap) + 2 * n * sizeof(uint32_t));
    if (!r.heap) return 0;
    r.next = (uint32_t *)(r.heap + 2 * n);
    r.prev = r.next + n;
    for (uint32_t i = 0; i < r.n; i++) {
        r.next[i] = i + 1;
        r.prev[i] = i ? i - 1 : NOWHERE;
    }
    for (uint32_t i = apply_all(&r, pace) ? 0 : r.n; i < r.n; i = r.next[i])
        ids[n_out++] = ids[i];
    mem_free(r.heap);
    return n_out;
}

size_t bpe_run_paced(const struct bpe *b, uint32_t *ids, size_t n, const struct bpe_pace *pace) {
    return n <= SMALL ? run_small(b, ids, n) : run_large(b, ids, n, pace);
}

size_t bpe_run(const struct bpe *b, uint32_t *ids, size_t n) {
    return bpe_run_paced(b, ids, n, NULL);
}
