/* router/routing/policy/chwbl.c - the opening of the prompt has a home on a hash ring, unless that
 * is busy.
 *
 * Follows PrefixHash of KubeAI, internal/loadbalancer/balance_chwbl.go: consistent hashing with
 * bounded loads, key = adapter and the first 100 characters, 256 points a worker, and a worker may
 * take a request while it has at most 1.25 x (total + 1) / workers in flight. smg's `prefix_hash`
 * is the same with a longer key (256 tokens), 150 points, and the least loaded as the way out.
 *
 * Constants: --prefix-hash-load-factor 1.25, --chwbl-replication 256, --chwbl-prefix-bytes 100.
 * Differs: KubeAI takes the first *user* message and skips the system prompt. Here the key is the
 * hash chain up to the block in which the 100th byte of the raw prompt lies (block 0 of 256
 * bytes), roles and system prompt included; model, adapter, tools and salt are in the chain's
 * seed. So behind a shared system prompt every request has the same key, and only the load bound
 * spreads them: raise --chwbl-prefix-bytes beyond it. Draining and failing workers are passed over
 * on the ring, not taken off it. */
#include "common/base/mem.h"
#include "router/routing/policy/choose.h"
#include "router/routing/policy/hash_ring.h"

struct chwbl {
    struct hash_ring *ring;
    double bounded_load;
    uint32_t key_block;
};

static void chwbl_configure(void *self, const struct policy_options *options) {
    struct chwbl *p = self;

    p->bounded_load = options->bounded_load;
    p->key_block = CEIL_DIV(MAX(options->chwbl_prefix_bytes, 1u), options->block_bytes) - 1;
}

static void *chwbl_create(const struct policy_options *options, uint32_t n_workers) {
    struct chwbl *p = mem_zalloc(sizeof(*p));

    chwbl_configure(p, options);
    p->ring = hash_ring_create(n_workers, options->ring_replication);
    if (p->ring) return p;
    mem_free(p);
    return NULL;
}

static void chwbl_destroy(void *self) {
    struct chwbl *p = self;

    hash_ring_destroy(p->ring);
    mem_free(p);
}

static uint32_t chwbl_pick(void *self, const struct route_request *rq,
                           const struct policy_view *view, struct policy_term *terms) {
    struct chwbl *p = self;
    uint64_t key = rq->n_blocks ? rq->chain[MIN(p->key_block, rq->n_blocks - 1)] : rq->session_key;

    choose_mark(view, terms);
    return hash_ring_find(p->ring, key, view, p->bounded_load);
}

static void chwbl_worker_up(void *self, uint32_t w, const struct worker_spec *spec) {
    hash_ring_add(((struct chwbl *)self)->ring, w, spec->identity);
}

static void chwbl_worker_down(void *self, uint32_t w) {
    hash_ring_remove(((struct chwbl *)self)->ring, w);
}

const struct policy_ops policy_chwbl = {
    .name = "chwbl",
    .create = chwbl_create,
    .destroy = chwbl_destroy,
    .configure = chwbl_configure,
    .pick = chwbl_pick,
    .worker_up = chwbl_worker_up,
    .worker_down = chwbl_worker_down,
};
