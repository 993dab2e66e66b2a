/* worker/worker_kv.c - see the header. */
#include "worker/worker_kv.h"

#include "common/text/json.h"

#define BARE_GIB_MAX 1024 /* a size without a unit up to this is GiB, as other engines have it */

static uint64_t size_of(uint64_t given) {
    return given <= BARE_GIB_MAX ? given << 30 : given;
}

/* vLLM's JSON; members for other transports are ignored. */
static enum status read_config(const char *text, bool *is_on, uint32_t *n_batches,
                               struct error *err) {
    struct json *root = NULL;
    enum status st;

    if (!text) return ST_OK;
    st = json_parse(&root, str_of(text), NULL, err);
    if (st == ST_OK && json_type(root) != JSON_OBJECT) {
        st =
            error_set(err, ST_INVALID, "the value must be an object, not %s", json_type_name(root));
    }
    if (st == ST_OK) st = json_get_bool(root, "enable_kv_cache_events", is_on, NULL, err);
    if (st == ST_OK) {
        st = json_get_u32(root, "buffer_steps", 1, 10000000, n_batches, NULL, err);
    }
    json_destroy(root);
    return st == ST_OK ? ST_OK : error_prefix(err, "--kv-events-config");
}

static const char *kind_name(enum kv_attention kind) {
    switch (kind) {
    case KV_FULL: return "full_attention";
    case KV_SLIDING: return "sliding_window";
    case KV_CHUNKED: return "chunked_local_attention";
    case KV_REFERENCE: break;
    }
    return "reference_sliding_window";
}

static void describe_groups(const struct kv_manager_config *kv, struct kv_event_config *c) {
    c->n_groups = MAX(kv->n_groups, 1u);
    c->groups[0] = (struct kv_event_group){kind_name(KV_FULL), 0};
    for (uint32_t g = 0; g < kv->n_groups; g++) {
        c->groups[g].kind = kind_name(kv->group[g].kind);
        c->groups[g].window = kv->group[g].kind == KV_FULL ? 0 : kv->group[g].window;
    }
}

static enum status open_file(void *arg, const struct unit_codec_config *codec, struct tier **out,
                             struct error *err) {
    struct tier_file_config c = *(const struct tier_file_config *)arg;
    enum status st;

    c.codec = codec;
    st = tier_file_open(out, &c, err);
    return st == ST_OK ? ST_OK : error_prefix(err, "--kv-file");
}

enum status worker_kv_configure(const struct worker_options *o, struct engine_options *engine,
                                struct kv_event_log **log, struct tier_file_config *file,
                                struct error *err) {
    uint64_t offload = size_of(o->kv_offload_bytes);
    struct kv_event_config c = {
        .max_batches = o->kv_event_batches,
        .max_bytes = o->kv_event_bytes,
        .block_size = engine->block_size,
        .hash_bytes = engine->kv.hash_algo == BLOCK_HASH_SHA256_CBOR ? 32 : 16,
        .has_number_hashes = o->kv_event_number_hashes,
    };
    bool is_on = o->kv_events;
    enum status st = read_config(o->kv_events_config, &is_on, &c.max_batches, err);

    if (st != ST_OK) return st;
    engine->host_kv_bytes = offload + size_of(o->swap_bytes);
    engine->kv.no_host_cache = offload == 0;
    if (o->kv_file) {
        *file = (struct tier_file_config){
            .dir = o->kv_file, .max_bytes = size_of(o->kv_file_bytes), .log = engine->log};
        engine->tiers[engine->n_tiers++] = (struct engine_tier_source){open_file, file};
    }
    if (!is_on) return ST_OK;
    describe_groups(&engine->kv, &c);
    st = kv_event_log_create(log, &c, err);
    if (st == ST_OK) engine->kv.events = *log;
    return st;
}
