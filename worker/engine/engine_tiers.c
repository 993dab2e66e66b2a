/* worker/engine/engine_tiers.c - tiers below host memory: opened and closed with the pool, with a
 * fingerprint of all that their blocks depend on, and kept from host blocks that the device moves.
 *
 * The fingerprint is what must be equal for KV to be equal bits: the weights, the shape, the RoPE
 * table, the types, and who computes: backend, instruction path and BACKEND_NUMERICS. */
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "common/base/buf.h"
#include "common/base/clock.h"
#include "common/base/hash.h"
#include "common/base/mem.h"
#include "common/telemetry/log.h"
#include "kernels/tp/tp.h"
#include "worker/engine/engine_internal.h"

/* --- the weights' digest ---------------------------------------------------------------------- */

static void *make_digest(void *arg) {
    struct engine_digest *d = arg;
    const struct engine_options *o = &d->engine->options;

    d->st = o->digest_weights(o->digest_arg, d->weights, &d->err);
    return NULL;
}

/* Hashing takes about as long as loading, and a core. */
void engine_begin_digest(struct engine *e) {
    struct engine_digest *d = &e->digest;

    if (e->options.n_tiers == 0 || !e->options.digest_weights) return;
    d->engine = e;
    d->is_under_way = pthread_create(&d->thread, NULL, make_digest, d) == 0;
    if (!d->is_under_way) make_digest(d);
}

static void await_digest(struct engine *e) {
    if (e->digest.is_under_way) pthread_join(e->digest.thread, NULL);
    e->digest.is_under_way = false;
}

/* --- the fingerprint -------------------------------------------------------------------------- */

static void add(struct sha256 *ctx, const char *name, const void *data, size_t n) {
    uint64_t size = n;

    sha256_add(ctx, name, strlen(name) + 1);
    sha256_add(ctx, &size, sizeof(size));
    sha256_add(ctx, data, n);
}

static void add_u64(struct sha256 *ctx, const char *name, uint64_t x) {
    add(ctx, name, &x, sizeof(x));
}

static void add_z(struct sha256 *ctx, const char *name, const char *text) {
    add(ctx, name, text, strlen(text));
}

static void add_geometry(struct sha256 *ctx, const struct geometry *g) {
    add_u64(ctx, "n_layers", g->n_layers);
    add_u64(ctx, "d_model", g->d_model);
    add_u64(ctx, "n_heads", g->n_heads);
    add_u64(ctx, "n_kv_heads", g->n_kv_heads);
    add_u64(ctx, "head_dim", g->head_dim);
    add_u64(ctx, "d_ff", g->d_ff);
    add_u64(ctx, "vocab", g->vocab);
    add(ctx, "rms_eps", &g->rms_eps, sizeof(g->rms_eps));
    add(ctx, "inv_freq", g->inv_freq, g->head_dim / 2 * sizeof(*g->inv_freq));
    add(ctx, "rope_scale", &g->rope_scale, sizeof(g->rope_scale));
    add_u64(ctx, "weight_dtype", g->weight_dtype);
    add_u64(ctx, "kv_dtype", g->kv_dtype);
    add_u64(ctx, "quant_types", g->quant_types);
    add_u64(ctx, "biases",
            g->has_qkv_bias | g->has_o_bias << 1 | g->has_qk_norm << 2 | g->is_tied << 3);
    add_u64(ctx, "window", g->sliding_window);
    add(ctx, "layer_kind", g->layer_kind, g->layer_kind ? g->n_layers : 0);
}

static enum status make_fingerprint(struct engine *e, uint8_t out[UNIT_DIGEST_BYTES],
                                    struct error *err) {
    const struct backend_ops *ops = e->options.backend;
    const struct engine_digest *d = &e->digest;
    struct backend_info info;
    struct sha256 *ctx;

    await_digest(e);
    if (d->st != ST_OK) return error_set(err, d->st, "%s", d->err.message);
    ops->info(e->dev, &info);
    ctx = sha256_create();
    sha256_begin(ctx);
    add_u64(ctx, "version", 1);
    add(ctx, "weights", d->weights, sizeof(d->weights));
    add_geometry(ctx, &e->options.geometry);
    add_u64(ctx, "block_size", e->options.block_size);
    add_z(ctx, "layout", "LKHTD1");
    add_z(ctx, "backend", tp_computing(ops, &e->options.device)->name);
    add_z(ctx, "path", info.path);
    add_u64(ctx, "numerics", BACKEND_NUMERICS);
    add_u64(ctx, "is_deterministic", e->limits.is_deterministic);
    sha256_end(ctx, out);
    sha256_destroy(ctx);
    return ST_OK;
}

/* --- opening and closing ---------------------------------------------------------------------- */

static enum status check_tiers(const struct engine *e, const struct backend_kv_info *kv,
                               struct error *err) {
    const struct kv_manager_config *c = &e->options.kv;
    const char *why = NULL;

    if (kv->n_host_blocks == 0 || c->no_host_cache)
        why = "contents pass through host memory: set --kv-offload-bytes";
    else if (c->no_caching)
        why = "prefix caching is off";
    else if (c->n_groups > 1 || (c->n_groups == 1 && c->group[0].kind != KV_FULL))
        why = "every layer of this model has a sliding window, whose KV host memory does not cache";
    else if (!kv->host_pool)
        why = "blocks in host memory have no address with --tensor-parallel-size above 1";
    else if (!e->options.digest_weights)
        why = "the digest of its weights is not known";
    if (!why) return ST_OK;
    return error_set(err, ST_UNSUPPORTED, "KV cannot be kept below host memory: %s", why);
}

enum status engine_open_tiers(struct engine *e, const struct backend_kv_info *kv,
                              struct error *err) {
    struct engine_options *o = &e->options;
    struct lower_config c = {
        .home = e->inbox,
        .host_pool = kv->host_pool,
        .block_bytes = kv->block_bytes,
        .n_host_blocks = kv->n_host_blocks,
        .block_size = o->block_size,
        .longest = CEIL_DIV(o->max_model_len, o->block_size),
        .fleet_key = o->fleet_key ? *o->fleet_key : NULL,
        .always_wait_us = o->restores_always ? o->tier_wait_us : 0,
    };
    struct unit_codec_config codec = {.block_tokens = o->block_size,
                                      .block_bytes = kv->block_bytes,
                                      .fleet_keys = o->fleet_key,
                                      .n_fleet_keys = o->fleet_key != NULL};
    enum status st;

    if (o->n_tiers == 0) return ST_OK;
    if ((st = check_tiers(e, kv, err)) != ST_OK) return st;
    if ((st = make_fingerprint(e, c.fingerprint, err)) != ST_OK) return st;
    memcpy(codec.fingerprint, c.fingerprint, sizeof(codec.fingerprint));
    memcpy(e->info.kv_fingerprint, c.fingerprint, sizeof(e->info.kv_fingerprint));
    for (; c.n_tiers < o->n_tiers; c.n_tiers++) {
        const struct engine_tier_source *source = &o->tiers[c.n_tiers];

        if ((st = source->open(source->arg, &codec, &c.tiers[c.n_tiers], err)) != ST_OK) goto fail;
    }
    if (o->peers) {
        const struct peer_server_config serve = {.codec = &codec,
                                                 .engine = e->inbox,
                                                 .pool = e->shared.map ? &e->shared : NULL,
                                                 .share_uid = geteuid()};

        if ((st = peer_server_start(o->peers, &serve, err)) != ST_OK) goto fail;
        c.server = o->peers;
    }
    e->lower = lower_create(&c);
    o->kv.names = lower_names(e->lower);
    o->kv.max_reserved = lower_max_reserved(kv->n_host_blocks);
    o->scheduler.connector = lower_connector(e->lower);
    return ST_OK;
fail:
    while (c.n_tiers-- > 0)
        c.tiers[c.n_tiers]->ops->destroy(c.tiers[c.n_tiers]);
    return st;
}

/* The tiers return all jobs. What is not theirs stays in the inbox, for engine_destroy. */
static void take_last_jobs(struct engine *e) {
    struct list mails, *link;

    list_init(&mails);
    mailbox_take(e->inbox, &mails);
    while ((link = list_pop_front(&mails)) != NULL) {
        struct mail *mail = mail_of(link);

        if (lower_owns(e->lower, mail)) {
            lower_on_mail(e->lower, mail);
        } else {
            mailbox_push(e->inbox, mail);
        }
    }
}

void engine_close_tiers(struct engine *e) {
    await_digest(e); /* a load may have failed meanwhile */
    if (!e->lower) return;
    lower_stop(e->lower);
    if (e->sched) take_last_jobs(e);
    lower_destroy(e->lower);
    e->lower = NULL;
}

/* --- moves of host blocks --------------------------------------------------------------------- */

void engine_note_moves(struct engine *e, backend_fence out, backend_fence in) {
    if (!e->lower) return;
    e->last_moves.step = kv_host_step(kv_manager_host(e->kv));
    if (out) e->last_moves.out = out;
    if (in) e->last_moves.in = in;
}

static bool is_done(struct engine *e, backend_fence f) {
    return f == 0 || e->options.backend->poll(e->dev, f) == ST_OK;
}

/* Fences of one direction come in order; a set of both is polled for until it is done, then the
 * latest, so that none has to be kept in between. */
static void settle(struct engine *e) {
    struct kv_host *host = kv_manager_host(e->kv);

    for (;;) {
        if (!is_done(e, e->settling.out) || !is_done(e, e->settling.in)) return;
        if (e->settling.step > 0) kv_host_settle(host, e->settling.step);
        if (e->settling.step == e->last_moves.step) return;
        e->settling = e->last_moves;
    }
}

/* --- one turn --------------------------------------------------------------------------------- */

void engine_turn_tiers(struct engine *e, uint64_t now_us) {
    if (!e->lower) return;
    if (!e->is_failed) settle(e);
    lower_turn(e->lower, now_us);
}

static void log_drained(const struct engine *e) {
    uint64_t n_stored, us;

    lower_drain_stats(e->lower, &n_stored, &us);
    log_event(e->options.log, LOG_INFO, "kv_written_down", log_u64("blocks", n_stored),
              log_u64("ms", us / 1000));
}

bool engine_drain_tiers(struct engine *e, uint64_t now_us) {
    if (!e->lower || e->is_failed) return true;
    lower_drain(e->lower, now_us);
    if (!lower_is_drained(e->lower)) return false;
    if (!e->is_drained_sent) log_drained(e);
    return true;
}

uint64_t engine_tiers_sleep_us(const struct engine *e, uint64_t now_us) {
    uint64_t due_us = e->lower ? lower_due_us(e->lower) : UINT64_MAX;

    if (due_us == UINT64_MAX || e->is_failed) return UINT64_MAX;
    return due_us > now_us ? due_us - now_us : 0;
}
