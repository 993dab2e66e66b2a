/* router/sharing/remote_requests.c - see the header. A remote request is one allocation: its
 * ticket, its chain, and the places of its blocks in the index. */
#include "router/sharing/remote_requests.h"

#include <assert.h>
#include <string.h>

#include "common/base/hash.h"
#include "common/base/mem.h"
#include "common/net/loop.h"
#include "common/protocol/request_events.h"
#include "common/telemetry/log.h"
#include "router/registry/registry_remote.h"

#define PROMPT_MAX (UINT64_C(1) << 30) /* bytes of a prompt; more are capped */

struct remote_request {
    struct registry_remote entry;
    size_t n_bytes;   /* of the allocation */
    uint64_t chain[]; /* then the guesses */
};

void remote_requests_init(struct remote_requests *m, struct loop *loop, struct registry *registry,
                          struct log *log, const struct remote_requests_config *config) {
    assert(config->block_bytes);
    *m =
        (struct remote_requests){.loop = loop, .registry = registry, .log = log, .config = *config};
    if (!m->config.max_bytes) m->config.max_bytes = REMOTE_REQUESTS_BYTES_MAX;
}

void remote_set_init(struct remote_set *s, struct remote_requests *of, uint32_t max_open) {
    uint64_t seed;

    hash_random(&seed, sizeof(seed));
    *s = (struct remote_set){.of = of, .max_open = max_open};
    map_init(&s->requests, seed);
}

void remote_set_fini(struct remote_set *s) {
    remote_set_close_all(s);
    map_fini(&s->requests);
}

/* --- a request begins ------------------------------------------------------------------------- */

static void warn_of_scheme(struct remote_requests *m, uint64_t scheme) {
    for (uint32_t i = 0; i < m->n_schemes; i++) {
        if (m->schemes[i] == scheme) return;
    }
    if (m->n_schemes == REMOTE_REQUESTS_SCHEMES_MAX) return;
    m->schemes[m->n_schemes++] = scheme;
    log_event(m->log, LOG_WARN, "shared_hashes_differ",
              log_z("why", "another router hashes prompts in another way: its load counts, what it "
                           "leaves in caches does not. Give all routers the same "
                           "--prefix-hash-seed and --prefix-block-bytes, and one version"));
}

/* Usable blocks of the chain: none of another scheme, at most what the prompt's bytes allow. */
static uint32_t believed_blocks(const struct remote_requests *m,
                                const struct request_chain *chain) {
    uint64_t n = chain->prompt_bytes / m->config.block_bytes + 1;

    return chain->scheme == m->config.scheme ? (uint32_t)MIN(n, (uint64_t)chain->n_blocks) : 0;
}

static size_t bytes_of(uint32_t n_blocks) {
    return sizeof(struct remote_request) + n_blocks * sizeof(uint64_t) +
           (n_blocks + 1) * sizeof(uint32_t);
}

/* NULL: no room even without blocks; *n_blocks is 0 when the blocks do not fit. */
static struct remote_request *make(struct remote_requests *m, uint32_t *n_blocks) {
    uint64_t left = m->config.max_bytes - MIN(m->n_bytes, m->config.max_bytes);
    struct remote_request *q;

    if (bytes_of(*n_blocks) > left) *n_blocks = 0;
    if (bytes_of(*n_blocks) > left) return NULL;
    q = mem_try(bytes_of(*n_blocks));
    if (!q) return NULL;
    q->n_bytes = bytes_of(*n_blocks);
    m->n_bytes += q->n_bytes;
    return q;
}

static void drop(struct remote_requests *m, struct remote_request *q) {
    m->n_bytes -= q->n_bytes;
    mem_free(q);
}

void remote_set_accepted(struct remote_set *s, uint32_t worker, uint32_t incarnation,
                         const struct request_event *e, uint64_t t_us, bool is_past) {
    struct remote_requests *m = s->of;
    const struct request_chain *chain = &e->chain;
    uint32_t n = believed_blocks(m, chain);
    struct route_request rq = {.prompt_bytes = MIN(chain->prompt_bytes, PROMPT_MAX),
                               .now_us = t_us};
    bool is_known = chain->scheme == m->config.scheme && e->mark.tenant;
    const struct request_mark *mark = is_known ? &e->mark : NULL;
    struct remote_request *q;

    if (s->requests.n >= s->max_open || map_find(&s->requests, e->request)) return;
    if (chain->scheme != m->config.scheme && chain->n_blocks && !is_past)
        warn_of_scheme(m, chain->scheme);
    q = make(m, &n);
    if (!q) return;
    if (n) memcpy(q->chain, chain->blocks, n * sizeof(*q->chain));
    rq.n_blocks = n;
    rq.chain = q->chain;
    rq.guesses = (uint32_t *)(q->chain + n);
    if (registry_add_remote(m->registry, worker, incarnation, &rq, mark, loop_now_us(m->loop),
                            &q->entry) == ST_OK)
        map_insert(&s->requests, e->request, q);
    else
        drop(m, q);
}

/* The cached tokens, at most as predicted: earlier requests may be unknown to us. */
static int64_t cached_as_foreseen(const struct route_ticket *t, const struct request_event *e) {
    double share = t->cached_tokens / t->prompt_tokens;

    return MIN(e->cached_tokens, (int64_t)(share * (double)e->prompt_tokens));
}

void remote_set_first_token(struct remote_set *s, const struct request_event *e, uint64_t t_us,
                            bool is_past) {
    struct route_feedback feedback = {.prompt_tokens = e->prompt_tokens,
                                      .cached_tokens = e->cached_tokens,
                                      .below_tokens = MAX(e->below_tokens, 0),
                                      .has_below = e->below_tokens >= 0 &&
                                                   e->below_tokens <= e->cached_tokens};
    struct remote_request *q = map_find(&s->requests, e->request);

    if (!q) return;
    if (is_past) {
        feedback.cached_tokens = cached_as_foreseen(&q->entry.ticket, e);
        feedback.has_below = false; /* of more than is foreseen */
    }
    registry_remote_first_token(s->of->registry, &q->entry, &feedback, t_us);
}

/* --- and ends --------------------------------------------------------------------------------- */

static void end(struct remote_requests *m, struct remote_request *q, const struct route_end *how) {
    registry_remote_ended(m->registry, &q->entry, how, loop_now_us(m->loop));
    drop(m, q);
}

void remote_set_ended(struct remote_set *s, const struct request_event *e, uint64_t t_us) {
    struct remote_request *q = map_erase(&s->requests, e->request);
    struct route_end how = {.is_aborted = e->is_aborted,
                            .output_tokens = e->output_tokens,
                            .feedback = {-1, -1},
                            .now_us = t_us};

    if (!q) return;
    if (t_us == 0 && !how.is_aborted) { /* computed, in unknown time */
        registry_remote_first_token(s->of->registry, &q->entry, NULL, t_us);
        how.is_aborted = true;
    }
    end(s->of, q, &how);
}

void remote_set_close_all(struct remote_set *s) {
    const struct route_end how = {.is_aborted = true,
                                  .output_tokens = -1,
                                  .feedback = {-1, -1},
                                  .now_us = loop_now_us(s->of->loop)};
    const struct map_slot *slot;

    for (size_t i = 0; (slot = map_next(&s->requests, &i));)
        end(s->of, slot->value, &how);
    map_clear(&s->requests);
}

void remote_set_check(const struct remote_set *s) {
    map_check(&s->requests);
    assert(s->requests.n <= s->max_open);
    assert(s->requests.n * bytes_of(0) <= s->of->n_bytes);
}
