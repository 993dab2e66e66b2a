/* tests/support/tier_place.h - where an engine keeps KV below the device: host memory alone, a
 * folder, or a real Redis. What one engine wrote there, the next one finds. */
#ifndef TESTS_SUPPORT_TIER_PLACE_H
#define TESTS_SUPPORT_TIER_PLACE_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/support/cm.h"
#include "tests/support/redis_server.h"
#include "worker/engine/engine.h"
#include "worker/kv/tiers/file.h"
#include "worker/kv/tiers/store/store.h"

enum tier_place_kind { PLACE_HOST, PLACE_FILE, PLACE_STORE, N_TIER_PLACES };

/* Patience, not a limit: of servers on a busy machine. */
#define TIER_PLACE_PATIENT_MS 60000u

static const char *const tier_place_names[] = {"host", "file", "store"};

struct tier_place {
    enum tier_place_kind kind;
    char dir[64], url[128];
    struct redis_server server;
    struct tier_file_config file; /* may be changed between two engines, as may store */
    struct tier_store_config store;
    struct engine_tier_source source;
};

static inline enum status tier_place_open_file(void *arg, const struct unit_codec_config *codec,
                                               struct tier **out, struct error *err) {
    struct tier_place *p = arg;

    p->file.codec = codec;
    return tier_file_open(out, &p->file, err);
}

static inline enum status tier_place_open_store(void *arg, const struct unit_codec_config *codec,
                                                struct tier **out, struct error *err) {
    struct tier_place *p = arg;

    p->store.unit = *codec;
    return tier_store_open(out, &p->store, err);
}

/* False: no Redis is installed. Nothing is open yet: an engine opens `source`. */
static inline bool tier_place_init(struct tier_place *p, enum tier_place_kind kind) {
    memset(p, 0, sizeof(*p));
    p->kind = kind;
    if (kind == PLACE_FILE) {
        strcpy(p->dir, "/tmp/incipit-place-XXXXXX");
        assert_non_null(mkdtemp(p->dir));
        p->file = (struct tier_file_config){
            .dir = p->dir, .max_bytes = 256u << 20, .n_threads = 2, .segment_bytes = 4u << 20};
        p->source = (struct engine_tier_source){tier_place_open_file, p};
    }
    if (kind == PLACE_STORE) {
        if (!redis_server_start(&p->server, NULL)) return false;
        snprintf(p->url, sizeof(p->url), "unix://%s", p->server.path);
        p->store = (struct tier_store_config){.urls = p->url,
                                              .is_plain = true,
                                              .connect_ms = TIER_PLACE_PATIENT_MS,
                                              .silence_ms = TIER_PLACE_PATIENT_MS};
        p->source = (struct engine_tier_source){tier_place_open_store, p};
    }
    return true;
}

/* For a fixture's setup. */
static inline const struct engine_tier_source *tier_place_source(const struct tier_place *p) {
    return p->kind == PLACE_HOST ? NULL : &p->source;
}

/* Nothing is kept there any more. */
static inline void tier_place_empty(struct tier_place *p) {
    char command[128];

    snprintf(command, sizeof(command), "rm -rf %s/*", p->dir);
    if (p->kind == PLACE_FILE) assert_int_equal(system(command), 0);
    if (p->kind == PLACE_STORE) redis_server_command(&p->server, "FLUSHALL");
}

static inline void tier_place_fini(struct tier_place *p) {
    tier_place_empty(p);
    if (p->kind == PLACE_FILE) assert_int_equal(rmdir(p->dir), 0);
    if (p->kind == PLACE_STORE) redis_server_stop(&p->server);
}

#endif
