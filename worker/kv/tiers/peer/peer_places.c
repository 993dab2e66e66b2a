/* worker/kv/tiers/peer/peer_places.c - the source's memory for sinks of its host: who gets it, and
 * where in it the blocks lie that they ask for.
 *
 * A sum is made of a block while it is pinned, so of what it holds under its number, and kept for
 * as long as it has that. All of a run's sums are made in one go, on the server's thread: some
 * milliseconds where none is known. */
#include <assert.h>
#include <string.h>
#include <unistd.h>

#include "common/base/hash.h"
#include "common/base/mem.h"
#include "worker/kv/tiers/peer/peer_pass.h"
#include "worker/kv/tiers/peer/peer_server_internal.h"

#define PASSES_MOST 8u /* in a turn; others wait for the next */

static const uint8_t *key_of(const struct peer_server *s) {
    return s->form.fleet_keys ? s->fleet_key[0] : NULL;
}

/* --- the memory ------------------------------------------------------------------------------- */

static struct peer_client *find(struct peer_server *s, const uint8_t *nonce) {
    for (uint32_t i = 0; i < PEER_CLIENTS_MAX; i++) {
        struct peer_client *c = &s->clients[i];

        if (c->state == CLIENT_UP && (c->sink.flags & PEER_CAN_SHARE) &&
            memcmp(c->sink.nonce, nonce, sizeof(c->sink.nonce)) == 0)
            return c;
    }
    return NULL;
}

static bool has_proved(const struct peer_server *s, const struct peer_client *c,
                       const struct peer_pass *p) {
    uint8_t proof[PEER_PROOF_BYTES];

    peer_prove_pass(key_of(s), false, &c->sink, &c->mine, proof);
    return hash_equal(proof, p->text.proof, sizeof(proof));
}

/* One who has no connection here, or another key, gets no answer. One of another user gets an
 * answer without a descriptor, and does not wait. */
static void answer(struct peer_server *s, const struct peer_pass *p) {
    struct peer_client *c = find(s, p->text.nonce);
    bool is_ours = p->uid == s->share_uid;
    struct peer_pass_text text = {.nonce = {0}};

    if (!c || c->has_memory || !has_proved(s, c, p)) return;
    memcpy(text.nonce, c->sink.nonce, sizeof(text.nonce));
    peer_prove_pass(key_of(s), true, &c->sink, &c->mine, text.proof);
    if (peer_pass_send(s->pass_fd, &text, is_ours ? s->pool->fd : -1, p) != ST_OK || !is_ours)
        return;
    c->has_memory = true;
    peer_count(&s->n_sharing, 1);
}

static void on_pass(unsigned ready, void *arg) {
    struct peer_server *s = arg;

    (void)ready;
    for (uint32_t i = 0; i < PASSES_MOST; i++) {
        struct peer_pass p;
        enum status st = peer_pass_receive(s->pass_fd, PEER_PASS_NOBODY, &p);

        if (st == ST_AGAIN) return;
        if (st == ST_OK) answer(s, &p);
    }
}

void peer_places_begin(struct peer_server *s, const struct peer_server_config *config) {
    struct error err = {0};

    if (!config->pool) return;
    if (peer_pass_listen(s->generation, &s->pass_fd, &err) != ST_OK) {
        log_event(s->log, LOG_WARN, "kv_peer_not_shared", log_z("peer", "all"),
                  log_z("why", err.message));
        return;
    }
    s->pool = config->pool;
    s->share_uid = config->share_uid;
    s->sums = mem_calloc(s->pool->n_blocks, sizeof(*s->sums));
    s->digest = sha256_create();
    loop_fd_init(&s->pass, s->loop, s->pass_fd, on_pass, s);
    loop_fd_watch(&s->pass, LOOP_READ);
}

void peer_places_end(struct peer_server *s) {
    if (!s->pool) return;
    loop_fd_fini(&s->pass);
    close(s->pass_fd);
    s->pass_fd = -1;
    s->pool = NULL;
    mem_free(s->sums);
    sha256_destroy(s->digest);
}

/* --- places ----------------------------------------------------------------------------------- */

static void place_of(const struct peer_server *s, uint32_t block, struct peer_place *out) {
    const struct shared_pool *pool = s->pool;
    struct peer_sum *known = &s->sums[block];

    *out = (struct peer_place){.number = atomic_load(&pool->generations[block].number),
                               .block = block};
    if (!known->is_known || known->number != out->number) {
        struct hash128 sum = hash_128(pool->blocks + block * pool->block_bytes, pool->block_bytes);

        memcpy(known->sum, &sum, sizeof(known->sum));
        known->number = out->number;
        known->is_known = true;
    }
    memcpy(out->sum, known->sum, sizeof(out->sum));
}

size_t peer_places_of(const struct peer_client *c, const struct peer_want *w,
                      uint8_t out[PEER_PLACES_BYTES(PEER_KEYS_MAX)]) {
    const struct peer_server *s = c->server;
    uint8_t identities[UNIT_DIGEST_BYTES];
    struct peer_place places[PEER_KEYS_MAX];
    size_t n_bytes = w->n_found * sizeof(places[0]);

    sha256_begin(s->digest);
    for (uint32_t i = 0; i < w->n_found; i++) {
        assert(w->found[i].payload == s->pool->blocks + w->found[i].block * s->pool->block_bytes);
        unit_add_identity(s->codec, &w->found[i].id, s->digest);
        place_of(s, w->found[i].block, &places[i]);
    }
    sha256_end(s->digest, identities);
    memcpy(out, places, n_bytes);
    peer_prove_places(key_of(s), &c->sink, &c->mine, w->stream, places, w->n_found, identities,
                      out + n_bytes);
    return n_bytes + PEER_PROOF_BYTES;
}
