/* worker/kv/tiers/peer/peer_share.c - the sink's use of a source's memory: how it is asked for, and
 * how blocks are copied from it.
 *
 * WHY A COPY IS RIGHT. The source has proved the fleet's key over these places, this stream and the
 * whole identities that the request expects, token ids included: no other block is meant. While the
 * block has its number, its bytes are those that it was published with (tiers/generation.h); what
 * was copied under a number that has changed is thrown away. And the sum of what has arrived is the
 * sum that the source made of the block: a place that was computed wrongly, or memory that was
 * written to by mistake, on either side, is found as it would be in a unit. The source makes the
 * sum once for each number, so that a block that is asked for often is read by those who ask alone.
 *
 * What cannot be used is no failure of the source: the rest of the run is asked for as units. A sum
 * that differs ends the use of this memory until the next connection. */
#include <string.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/hash.h"
#include "worker/kv/tiers/peer/peer_internal.h"
#include "worker/kv/tiers/peer/peer_pass.h"

/* --- the memory ------------------------------------------------------------------------------- */

static void stop_waiting(struct peer_source *s) {
    if (s->pass_fd < 0) return;
    loop_fd_fini(&s->pass);
    close(s->pass_fd);
    s->pass_fd = -1;
}

void peer_share_end(struct peer_source *s) {
    stop_waiting(s);
    shared_pool_close(&s->pool);
}

static void report_not_shared(struct peer_source *s, const char *why) {
    log_event(s->tier->config.log, LOG_WARN, "kv_peer_not_shared", log_z("peer", s->at.authority),
              log_z("why", why));
}

static void map(struct peer_source *s, const struct peer_pass *p) {
    struct tier_peer *t = s->tier;
    uint8_t proof[PEER_PROOF_BYTES];
    struct error err = {0};

    peer_prove_pass(peer_key(t), true, &s->mine, &s->theirs, proof);
    if (p->uid != t->config.share_uid) {
        report_not_shared(s, "it is of another user");
    } else if (!hash_equal(proof, p->text.proof, sizeof(proof))) {
        report_not_shared(s, "it has not proved the key");
    } else if (p->fd < 0) {
        report_not_shared(s, "it refused");
    } else if (shared_pool_open(&s->pool, p->fd, t->form.block_bytes, &err) != ST_OK) {
        report_not_shared(s, err.message);
    } else {
        peer_count_stat(t, &t->stats.n_shared, 1);
    }
}

static void on_pass(unsigned ready, void *arg) {
    struct peer_source *s = arg;
    struct peer_pass p;
    enum status st = peer_pass_receive(s->pass_fd, s->tier->config.share_uid, &p);

    (void)ready;
    if (st == ST_AGAIN) return;
    stop_waiting(s);
    if (st == ST_OK) {
        map(s, &p);
        if (p.fd >= 0) close(p.fd);
    } else {
        report_not_shared(s, "it sent no descriptor");
    }
    peer_link_ready(s);
}

bool peer_share_begin(struct peer_source *s) {
    struct tier_peer *t = s->tier;
    struct peer_pass_text text;

    if (!t->config.can_share || !(s->theirs.flags & PEER_CAN_SHARE)) return false;
    if (peer_pass_dial(s->theirs.generation, &s->pass_fd, NULL) != ST_OK) return false;
    memcpy(text.nonce, s->mine.nonce, sizeof(text.nonce));
    peer_prove_pass(peer_key(t), false, &s->mine, &s->theirs, text.proof);
    loop_fd_init(&s->pass, t->loop, s->pass_fd, on_pass, s);
    if (peer_pass_send(s->pass_fd, &text, -1, NULL) != ST_OK) {
        stop_waiting(s);
        return false;
    }
    loop_fd_watch(&s->pass, LOOP_READ);
    return true;
}

/* --- blocks ----------------------------------------------------------------------------------- */

/* That these n places are of the blocks that w expects next. */
static bool is_proved(struct peer_source *s, const struct peer_work *w, uint32_t n,
                      const uint8_t proof[PEER_PROOF_BYTES]) {
    struct tier_peer *t = s->tier;
    uint8_t identities[UNIT_DIGEST_BYTES], expected[PEER_PROOF_BYTES];

    sha256_begin(t->digest);
    for (uint32_t i = 0; i < n; i++)
        unit_add_identity(t->codec, &w->job->units[w->n_come + i].id, t->digest);
    sha256_end(t->digest, identities);
    peer_prove_places(peer_key(t), &s->mine, &s->theirs, w->stream, s->places, n, identities,
                      expected);
    return hash_equal(expected, proof, sizeof(expected));
}

enum copied { COPIED, SLIPPED, DIFFERS };

static enum copied copy(const struct shared_pool *pool, const struct peer_place *place, void *to) {
    struct generation *g;
    struct hash128 sum;

    if (place->block >= pool->n_blocks) return DIFFERS;
    g = &pool->generations[place->block];
    if (!generation_is(g, place->number)) return SLIPPED;
    sum = hash_128_copy(to, pool->blocks + place->block * pool->block_bytes, pool->block_bytes);
    if (!generation_is(g, place->number)) return SLIPPED;
    return memcmp(&sum, place->sum, sizeof(sum)) == 0 ? COPIED : DIFFERS;
}

/* False: this one, and what is behind it, is not to be had so. */
static bool land(struct peer_source *s, struct peer_work *w, const struct peer_place *place) {
    struct tier_peer *t = s->tier;
    struct tier_unit *u = &w->job->units[w->n_come];
    enum copied how = copy(&s->pool, place, u->payload);

    if (how != COPIED) {
        memset(u->payload, 0, t->form.block_bytes);
        peer_count_stat(t, how == SLIPPED ? &t->stats.n_slipped : &t->stats.n_differing, 1);
        if (how == DIFFERS) {
            report_not_shared(s, "a block differs from its sum");
            peer_share_end(s);
        }
        return false;
    }
    u->cause = UNIT_FINE;
    u->result = TIER_OK;
    w->n_come++;
    peer_count_stat(t, &t->stats.shared_units, 1);
    peer_count_stat(t, &t->base.loaded_bytes, t->form.block_bytes);
    return true;
}

const char *peer_share_take(struct peer_source *s, struct peer_work *w,
                            const struct peer_frame *f) {
    uint8_t proof[PEER_PROOF_BYTES];
    uint32_t n;

    if (!w->by_place || w->n_have > w->n_come || w->is_lost)
        return "places that were not asked for";
    if (peer_read_places(f, s->places, &n, proof, NULL) != ST_OK || n > w->job->n - w->n_come)
        return "places that were not asked for";
    w->n_have += n;
    if (!w->have_us) w->have_us = clock_now_us();
    peer_work_begin(s, w);
    if (!s->pool.map || !is_proved(s, w, n, proof)) w->is_lost = true;
    for (uint32_t i = 0; i < n && !w->is_lost; i++)
        w->is_lost = atomic_load_explicit(&w->job->is_cancelled, memory_order_relaxed) ||
                     !land(s, w, &s->places[i]);
    return NULL;
}
