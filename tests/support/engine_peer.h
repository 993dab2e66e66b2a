/* tests/support/engine_peer.h - an engine that gives its blocks to other workers and asks for
 * theirs, and the door by which they come. */
#ifndef TESTS_SUPPORT_ENGINE_PEER_H
#define TESTS_SUPPORT_ENGINE_PEER_H

#include <unistd.h>

#include "tests/support/engine_fixture.h"
#include "tests/support/peer_fixture.h"
#include "tests/support/support.h"

struct peer_worker {
    struct engine_fixture engine;
    struct tier_peer_config config;
    struct engine_tier_source tier;
    struct unit_codec_config form; /* of its units, without keys */
    struct tier *sink;             /* the engine's */
    struct peer_server *peers;
    struct peer_door door; /* its source: for the requests of others */
};

static inline enum status peer_worker_open_tier(void *arg, const struct unit_codec_config *codec,
                                                struct tier **out, struct error *err) {
    struct peer_worker *w = arg;
    enum status st;

    w->form = *codec;
    w->form.fleet_keys = NULL;
    w->form.n_fleet_keys = 0;
    w->config.codec = codec;
    st = tier_peer_open(out, &w->config, err);
    w->config.codec = NULL;
    if (st == ST_OK) w->sink = *out;
    return st;
}

/* The setup has neither a tier nor peers. generation: another one for each worker of a test.
 * patience_ms: of all that a source may be late with; 0: as the worker has it. */
static inline void peer_worker_open(struct peer_worker *w, const struct setup *setup,
                                    uint64_t generation, uint32_t patience_ms) {
    struct setup s = *setup;

    w->config = (struct tier_peer_config){.generation = generation,
                                          .connect_ms = patience_ms,
                                          .greet_ms = patience_ms,
                                          .ping_ms = patience_ms,
                                          .can_share = setup->shares_host_pool,
                                          .share_uid = geteuid(),
                                          .share_ms = patience_ms};
    w->tier = (struct engine_tier_source){peer_worker_open_tier, w};
    w->peers = peer_server_create(generation, NULL);
    s.tier = &w->tier;
    s.peers = w->peers;
    fixture_open(&w->engine, &s);
    peer_door_open(&w->door, w->peers);
}

static inline void peer_worker_close(struct peer_worker *w) {
    peer_door_close(&w->door);
    fixture_close(&w->engine);
    peer_server_destroy(w->peers);
}

/* No block of the device or of host memory has a user: all pins have ended. */
static inline void assert_at_rest(struct engine_fixture *w) {
    WAIT_UNTIL(stats_of(w).host_held == 0);
    assert_idle(w);
}

#endif
