/* worker/worker_kv.c - see the header. */
#include "worker/worker_kv.h"

#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/buf.h"
#include "common/base/file.h"
#include "common/base/hash.h"
#include "common/base/mem.h"
#include "common/net/cipher.h"
#include "common/telemetry/log.h"
#include "common/text/json.h"

#define DEFAULT_FILE_BYTES (UINT64_C(16) << 30)

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

static enum status open_store(void *arg, const struct unit_codec_config *codec, struct tier **out,
                              struct error *err) {
    struct tier_store_config c = *(const struct tier_store_config *)arg;
    enum status st;

    c.unit = *codec;
    st = tier_store_open(out, &c, err);
    return st == ST_OK ? ST_OK : error_prefix(err, "--kv-store");
}

static enum status open_peer(void *arg, const struct unit_codec_config *codec, struct tier **out,
                             struct error *err) {
    struct tier_peer_config c = *(const struct tier_peer_config *)arg;
    enum status st;

    c.codec = codec;
    st = tier_peer_open(out, &c, err);
    return st == ST_OK ? ST_OK : error_prefix(err, "--kv-peers");
}

/* 64 hexadecimal digits, and white space behind them. */
static bool read_digits(const char *text, size_t n, uint8_t key[32]) {
    while (n > 0 && strchr(" \t\r\n", text[n - 1]))
        n--;
    if (n != 64) return false;
    for (size_t i = 0; i < 32; i++) {
        int high = str_hex_value((unsigned char)text[2 * i]);
        int low = str_hex_value((unsigned char)text[2 * i + 1]);

        if (high < 0 || low < 0) return false;
        key[i] = (uint8_t)(high << 4 | low);
    }
    return true;
}

static void check_key_mode(const char *path, struct log *log) {
    struct stat s;

    if (stat(path, &s) != 0 || !(s.st_mode & S_IRWXO)) return;
    log_event(log, LOG_WARN, "kv_key_file_open", log_z("file", path));
}

static enum status read_key(const char *path, uint8_t key[32], struct error *err) {
    char *text = NULL;
    size_t n;
    enum status st = file_read(path, 1024, &text, &n, err);

    if (st == ST_OK && !read_digits(text, n, key))
        st = error_set(err, ST_INVALID,
                       "%s does not hold a key of 64 hexadecimal digits: make one with 'openssl "
                       "rand -hex 32'",
                       path);
    if (text) cipher_erase(text, n);
    mem_free(text);
    return st == ST_OK ? ST_OK : error_prefix(err, "--kv-key-file");
}

/* A password in a URL shows in the process list and in GET /config. */
static bool has_password(const char *urls) {
    const char *at = urls;

    while ((at = strstr(at, "://")) != NULL) {
        size_t n = strcspn(at += 3, "@/, ");

        if (at[n] == '@' && memchr(at, ':', n)) return true;
    }
    return false;
}

static enum status configure_peers(const struct worker_options *o, struct engine_options *engine,
                                   struct worker_kv *kv, struct error *err) {
    uint64_t generation;

    if (!o->kv_key_file && !o->kv_peer_plain)
        return error_set(err, ST_INVALID,
                         "--kv-peers sends prompts over the network: encrypt them with "
                         "--kv-key-file, or set --kv-peer-plain");
    if (o->ssl_certfile)
        return error_set(err, ST_INVALID,
                         "--kv-peers takes over connections of the port, which cannot be with TLS: "
                         "leave out --ssl-certfile; blocks are encrypted by --kv-key-file");
    hash_random(&generation, sizeof(generation));
    kv->peer = (struct tier_peer_config){.generation = generation,
                                         .log = engine->log,
                                         .can_share = o->kv_peer_shm,
                                         .share_uid = geteuid()};
    engine->shares_host_pool = o->kv_peer_shm;
    kv->peers = engine->peers = peer_server_create(generation, engine->log);
    engine->tiers[engine->n_tiers++] = (struct engine_tier_source){open_peer, &kv->peer};
    return ST_OK;
}

/* Without its tier an option has no effect, which its user would find out late. */
static enum status refuse_without_tier(const struct worker_options *o, struct error *err) {
    const bool has_tls = o->kv_store && strstr(o->kv_store, "rediss://");
    const struct {
        bool is_idle;
        const char *name, *needs;
    } rows[] = {
        {!o->kv_file && o->kv_file_bytes, "--kv-file-bytes", "--kv-file"},
        {!o->kv_store && o->kv_store_ttl_ms, "--kv-store-ttl", "--kv-store"},
        {!o->kv_store && o->kv_store_bytes, "--kv-store-bytes", "--kv-store"},
        {!o->kv_store && o->kv_store_plain, "--kv-store-plain", "--kv-store"},
        {!o->kv_store && o->kv_store_password_file, "--kv-store-password-file", "--kv-store"},
        {!has_tls && o->kv_store_ca_file, "--kv-store-ca-file", "--kv-store rediss://HOST"},
        {!o->kv_peers && o->kv_peer_plain, "--kv-peer-plain", "--kv-peers"},
        {!o->kv_peers && o->role, "--role", "--kv-peers"},
        {!o->kv_peers && !o->kv_peer_shm, "--no-kv-peer-shm", "--kv-peers"},
        {!o->kv_file && !o->kv_store && !o->kv_peers && o->kv_key_file, "--kv-key-file",
         "--kv-file, --kv-store or --kv-peers"},
    };

    for (size_t i = 0; i < ARRAY_LEN(rows); i++)
        if (rows[i].is_idle)
            return error_set(err, ST_INVALID, "%s has no effect without %s: set that, or remove %s",
                             rows[i].name, rows[i].needs, rows[i].name);
    return ST_OK;
}

/* The nearest first. */
static enum status configure_tiers(const struct worker_options *o, struct engine_options *engine,
                                   struct worker_kv *kv, struct error *err) {
    enum status st;

    *kv = (struct worker_kv){0};
    if ((st = refuse_without_tier(o, err)) != ST_OK) return st;
    if ((o->kv_file || o->kv_store || o->kv_peers) && engine->kv.no_host_cache)
        return error_set(err, ST_INVALID,
                         "KV cannot be kept below host memory: %s needs --kv-offload-bytes, for "
                         "contents pass through host memory",
                         o->kv_file    ? "--kv-file"
                         : o->kv_store ? "--kv-store"
                                       : "--kv-peers");
    if (o->kv_key_file) {
        if ((st = read_key(o->kv_key_file, kv->fleet_key[0], err)) != ST_OK) return st;
        check_key_mode(o->kv_key_file, engine->log);
        engine->fleet_key = kv->fleet_key;
    }
    if (o->kv_file) {
        /* Before the weights are read, which may take minutes. */
        if (tier_file_make_dir(o->kv_file, err) != ST_OK) return error_prefix(err, "--kv-file");
        kv->file = (struct tier_file_config){.dir = o->kv_file,
                                             .max_bytes = o->kv_file_bytes ? o->kv_file_bytes
                                                                           : DEFAULT_FILE_BYTES,
                                             .log = engine->log};
        engine->tiers[engine->n_tiers++] = (struct engine_tier_source){open_file, &kv->file};
    }
    if (o->kv_peers && (st = configure_peers(o, engine, kv, err)) != ST_OK) return st;
    if (!o->kv_store) return ST_OK;
    if (has_password(o->kv_store))
        return error_set(err, ST_INVALID,
                         "--kv-store has a password, which others can see: put it into a file, and "
                         "that into --kv-store-password-file");
    if (!o->kv_key_file && !o->kv_store_plain)
        return error_set(
            err, ST_INVALID,
            "--kv-store keeps prompts on a server: encrypt them with --kv-key-file, or "
            "set --kv-store-plain");
    kv->store = (struct tier_store_config){
        .urls = o->kv_store,
        .password_file = o->kv_store_password_file,
        .is_plain = o->kv_store_plain,
        .ttl_s = o->kv_store_ttl_ms / 1000,
        .max_bytes = o->kv_store_bytes,
        .tls_ca = o->kv_store_ca_file,
        .log = engine->log,
    };
    if (tier_store_check(&kv->store, err) != ST_OK) return error_prefix(err, "--kv-store");
    engine->tiers[engine->n_tiers++] = (struct engine_tier_source){open_store, &kv->store};
    return ST_OK;
}

enum status worker_kv_configure(const struct worker_options *o, struct engine_options *engine,
                                struct kv_event_log **log, struct worker_kv *kv,
                                struct error *err) {
    uint64_t offload = o->kv_offload_bytes;
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
    engine->host_kv_bytes = offload + o->swap_bytes;
    engine->kv.no_host_cache = offload == 0;
    engine->hold_bytes = o->hold_bytes;
    if ((st = configure_tiers(o, engine, kv, err)) != ST_OK) return st;
    if (!is_on) return ST_OK;
    describe_groups(&engine->kv, &c);
    st = kv_event_log_create(log, &c, err);
    if (st == ST_OK) engine->kv.events = *log;
    return st;
}
