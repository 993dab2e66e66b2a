/* worker/api/cache_hold.c - POST /cache/prewarm, /cache/hold and /cache/release, GET /cache:
 * prompts that are computed before their clients come, and prefixes that clients hold.
 *
 * A prompt is prewarmed by a request of one token, which is not shown, behind all others where
 * priorities count; its blocks are kept like those of a prompt that its client marks. A second call
 * finds them, computes the last block at most, and starts the time again; one that comes while the
 * first is computed waits for it. A hold is prewarmed, and then held by what the cache has of it:
 *
 *      POST /cache/hold ──▶ call, one token ──▶ computed ──▶ engine: hold ──▶ 200 with an id, or 429
 *
 * The id is of use to its owner alone: the same key or router's salt, and the same cache_salt. For
 * all others the hold does not exist. */
#include <stdio.h>

#include "common/base/clock.h"
#include "common/base/hash.h"
#include "common/base/mem.h"
#include "common/http/http_server.h"
#include "common/protocol/openai.h"
#include "common/text/json.h"
#include "worker/api/body.h"
#include "worker/api/call_internal.h"
#include "worker/api/fields/cache_control.h"
#include "worker/api/handlers.h"

#define ID_PREFIX  "hold-"
#define ID_CHARS   (sizeof(ID_PREFIX) - 1 + 16)
#define DEFAULT_S  3600u
#define SALT_CHARS 1024

/* --- POST /cache/prewarm ---------------------------------------------------------------------- */

/* Those of a router. */
static bool asks_for(const struct json *root, const char *field) {
    return !json_is_null(json_get(root, field));
}

static void put_ignored(struct json_writer *w, bool copies, bool workers) {
    if (!copies && !workers) return;
    json_put_key(w, "ignored");
    json_begin_array(w);
    if (copies) json_put_str(w, STR("copies"));
    if (workers) json_put_str(w, STR("workers"));
    json_end_array(w);
}

static void put_prewarmed(struct call *c, struct buf *out) {
    struct json_writer w;

    json_writer_init(&w, out);
    json_begin_object(&w);
    json_field_z(&w, "object", "cache.prewarm");
    call_put_computed(&w, c);
    json_field_u64(&w, "ttl_s", c->keep[0].ttl_s);
    put_ignored(&w, asks_for(c->json, "copies"), asks_for(c->json, "workers"));
    json_end_object(&w);
}

static const struct call_shape prewarm_shape = {
    .id_prefix = "prewarm-",
    .prompt_field = "prompt",
    .length_field = "max_tokens",
    .is_prewarm = true,
    .body = put_prewarmed,
};

/* One token of the most likely answer, and nothing else that an answer could have. */
static void set_params(struct call *c, uint32_t ttl_s) {
    call_show_nothing(c);
    c->params.request.is_for_cache = true;
    if (engine_info(c->api->engine)->is_by_priority) c->params.request.priority = INT32_MAX;
    c->keep[0] = (struct call_keep){SIZE_MAX, ttl_s};
    c->n_keep = retention_of_seconds(ttl_s) != RETAIN_NONE;
}

static enum status read_prompt(struct call *c, const struct json *root, uint32_t ttl_s,
                               struct error *err) {
    enum status st = json_is_null(json_get(root, "messages")) ? completions_read(c, root, err)
                                                              : chat_read(c, root, err);

    if (st != ST_OK) return st;
    if (c->n_prompts > 1) {
        return error_set_param(err, ST_INVALID, "prompt",
                               "the request has %u prompts: send them one by one", c->n_prompts);
    }
    set_params(c, ttl_s);
    return ST_OK;
}

static enum status prewarm_read(struct call *c, const struct json *root, struct error *err) {
    uint32_t ttl_s = 3600;
    enum status st = cache_control_read_time(root, &ttl_s, err);

    return st == ST_OK ? read_prompt(c, root, ttl_s, err) : st;
}

void cache_prewarm_post(struct http_request *req, void *arg) {
    struct call *c = call_open(arg, req, &prewarm_shape, prewarm_read);

    if (c) call_start(c);
}

/* --- a call to the engine --------------------------------------------------------------------- */

/* One call of the engine about holds. */
struct hold_call {
    struct engine_hold_call engine;
    struct api *api;
    struct http_request *req; /* NULL when the client left */
    struct call_usage usage;  /* of its prompt */
    bool asks_for_copies, asks_for_workers;
};

static void on_abort(struct http_request *req) {
    ((struct hold_call *)req->user)->req = NULL;
}

static struct hold_call *open_call(struct api *api, struct http_request *req,
                                   enum engine_hold_op op,
                                   void (*on_done)(struct engine_hold_call *)) {
    struct hold_call *h = mem_zalloc(sizeof(*h));

    h->engine.op = op;
    h->engine.on_done = on_done;
    h->api = api;
    h->req = req;
    req->user = h;
    req->on_abort = on_abort;
    return h;
}

static void close_call(struct hold_call *h) {
    if (h->engine.request) request_unref(h->engine.request);
    mem_free(h->engine.holds);
    mem_free(h);
}

/* NULL: the client has left, and the call is closed. */
static struct hold_call *take_answered(struct engine_hold_call *engine) {
    struct hold_call *h = CONTAINER_OF(engine, struct hold_call, engine);

    if (h->req) return h;
    close_call(h);
    return NULL;
}

static void reply_error(struct hold_call *h) {
    api_add_retry(h->api, h->req, h->engine.status);
    http_reply_error(h->req, h->engine.status, &h->engine.err);
}

static void reply(struct hold_call *h, struct buf *body) {
    http_reply(h->req, 200, OPENAI_JSON, buf_str(body));
    buf_fini(body);
}

/* --- what answers have in them ---------------------------------------------------------------- */

static void put_id(struct json_writer *w, uint64_t id) {
    char text[ID_CHARS + 1];

    snprintf(text, sizeof(text), ID_PREFIX "%016llx", (unsigned long long)id);
    json_field_z(w, "id", text);
}

static void put_size(struct json_writer *w, const struct engine_hold *hold) {
    json_field_u64(w, "tokens", hold->n_tokens);
    json_field_u64(w, "bytes", hold->n_bytes);
    json_field_u64(w, "ttl_s", hold->ask.ttl_s);
    json_field_u64(w, "expires",
                   clock_wall_us() / 1000000 + (uint64_t)(hold->left_s > 0 ? hold->left_s : 0));
    json_field_f64(w, "left_s", hold->left_s > 0 ? hold->left_s : 0);
}

/* Who holds it: some digits of a digest; a holder recognises its own. */
static void put_holder(struct json_writer *w, uint64_t holder) {
    char text[9];

    if (holder == 0) {
        json_field_null(w, "holder");
        return;
    }
    snprintf(text, sizeof(text), "%08x", (unsigned)(holder >> 32));
    json_field_z(w, "holder", text);
}

/* --- POST /cache/hold ------------------------------------------------------------------------- */

static void on_forgotten(struct engine_hold_call *engine) {
    close_call(CONTAINER_OF(engine, struct hold_call, engine));
}

/* No one else has its id. */
static void forget_hold(struct hold_call *h) {
    h->engine.op = ENGINE_RELEASE;
    h->engine.on_done = on_forgotten;
    engine_call_hold(h->api->engine, &h->engine);
}

static void on_held(struct engine_hold_call *engine) {
    struct hold_call *h = CONTAINER_OF(engine, struct hold_call, engine);
    struct json_writer w;
    struct buf body;

    if (!h->req && engine->status == ST_OK) {
        forget_hold(h);
        return;
    }
    if (!take_answered(engine)) return;
    if (engine->status != ST_OK) {
        reply_error(h);
        close_call(h);
        return;
    }
    buf_init(&body, 0);
    json_writer_init(&w, &body);
    json_begin_object(&w);
    json_field_z(&w, "object", "cache.hold");
    put_id(&w, engine->hold.ask.id);
    json_field_z(&w, "model", h->api->model_name);
    call_put_counts(&w, &h->usage);
    put_size(&w, &engine->hold);
    put_ignored(&w, h->asks_for_copies, h->asks_for_workers);
    json_end_object(&w);
    reply(h, &body);
    close_call(h);
}

/* A client that has seen other ids cannot guess it. */
static uint64_t new_id(void) {
    uint64_t id;

    hash_random(&id, sizeof(id));
    return id;
}

static void computed(struct call *c) {
    struct hold_call *h = open_call(c->api, c->req, ENGINE_HOLD, on_held);
    const struct request_params *p = &c->params.request;
    struct request *r = c->choices[0].request;
    struct str salt = STR_NULL;

    (void)!json_get_str(c->json, "cache_salt", SALT_CHARS, &salt, NULL, NULL);
    h->engine.request = request_ref(r);
    h->engine.n_tokens = p->prefix_tokens ? MIN(p->prefix_tokens, r->n_prompt) : r->n_prompt;
    h->engine.hold.ask = (struct kv_hold){
        .id = new_id(),
        .owner = call_owner_of(c->api, c->req, salt),
        .holder = p->tenant,
        .ttl_s = c->keep[0].ttl_s,
    };
    h->usage = call_usage(c);
    h->asks_for_copies = asks_for(c->json, "copies");
    h->asks_for_workers = asks_for(c->json, "workers");
    c->is_whole = true;
    call_release(c);
    engine_call_hold(h->api->engine, &h->engine);
}

static const struct call_shape shape = {
    .id_prefix = "hold-",
    .prompt_field = "prompt",
    .length_field = "max_tokens",
    .is_prewarm = true,
    .computed = computed,
};

static enum status read_ttl(const struct json *root, uint32_t *ttl_s, struct error *err) {
    if (json_type(json_get(root, "ttl")) != JSON_NUMBER)
        return cache_control_read_time(root, ttl_s, err);
    return json_get_u32(root, "ttl", 1, BLOCK_HOLDS_MAX_S, ttl_s, NULL, err);
}

static enum status hold_read(struct call *c, const struct json *root, struct error *err) {
    uint32_t ttl_s = DEFAULT_S;
    enum status st = read_ttl(root, &ttl_s, err);

    return st == ST_OK ? read_prompt(c, root, ttl_s, err) : st;
}

void cache_hold_post(struct http_request *req, void *arg) {
    struct call *c = call_open(arg, req, &shape, hold_read);

    if (c) call_start(c);
}

/* --- POST /cache/release ---------------------------------------------------------------------- */

static void on_released(struct engine_hold_call *engine) {
    struct hold_call *h = take_answered(engine);
    struct json_writer w;
    struct buf body;

    if (!h) return;
    if (engine->status != ST_OK) {
        if (engine->status == ST_NOT_FOUND)
            error_set_param(&engine->err, ST_NOT_FOUND, "id",
                            "there is no such hold of this key and cache_salt: it was released, "
                            "has expired, or the cache was reset");
        reply_error(h);
        close_call(h);
        return;
    }
    buf_init(&body, 0);
    json_writer_init(&w, &body);
    json_begin_object(&w);
    json_field_z(&w, "object", "cache.release");
    put_id(&w, engine->hold.ask.id);
    json_end_object(&w);
    reply(h, &body);
    close_call(h);
}

static enum status read_id(const struct json *root, uint64_t *id, struct error *err) {
    struct str text = STR_NULL;
    size_t n = sizeof(ID_PREFIX) - 1;
    uint64_t x = 0;
    enum status st = json_get_str(root, "id", 256, &text, NULL, err);

    if (st != ST_OK) return st;
    if (text.len != ID_CHARS || !str_starts(text, STR(ID_PREFIX))) n = text.len + 1;
    for (; n < text.len; n++) {
        int digit = str_hex_value((unsigned char)text.ptr[n]);

        if (digit < 0) break;
        x = x << 4 | (uint64_t)digit;
    }
    if (n != text.len)
        return error_set_param(err, ST_INVALID, "id",
                               "id must be that of an answer of /cache/hold: \"" ID_PREFIX
                               "\" and 16 hexadecimal digits");
    *id = x;
    return ST_OK;
}

void cache_release_post(struct http_request *req, void *arg) {
    struct api *api = arg;
    struct str salt = STR_NULL;
    struct error err = {0};
    struct json *root;
    struct hold_call *h;
    uint64_t id = 0;
    enum status st = body_parse(&root, api, req, &err);

    if (st == ST_OK) st = read_id(root, &id, &err);
    if (st == ST_OK) st = json_get_str(root, "cache_salt", SALT_CHARS, &salt, NULL, &err);
    if (st == ST_OK) {
        h = open_call(api, req, ENGINE_RELEASE, on_released);
        h->engine.hold.ask = (struct kv_hold){.id = id, .owner = call_owner_of(api, req, salt)};
        engine_call_hold(api->engine, &h->engine);
    } else {
        http_reply_error(req, st, &err);
    }
    json_destroy(root);
}

/* --- GET /cache ------------------------------------------------------------------------------- */

static const char *place_of(const struct engine_holds *t) {
    return t->is_on_host ? "host" : "device";
}

/* Ids are of use to owners alone, so that a router, which follows holds of several, may see all. */
static void put_hold(struct json_writer *w, const struct hold_call *h,
                     const struct engine_hold *hold) {
    json_begin_object(w);
    put_id(w, hold->ask.id);
    put_holder(w, hold->ask.holder);
    put_size(w, hold);
    json_field_f64(w, "value", hold->value);
    json_field_u64(w, "hits", hold->n_hits);
    json_field_u64(w, "saved_tokens", hold->saved_tokens);
    json_field_f64(w, "saved_s", hold->saved_s);
    json_field_f64(w, "held_byte_s", hold->byte_s);
    json_put_key(w, "tiers");
    json_begin_object(w);
    json_field_u64(w, place_of(&h->engine.totals), hold->is_here ? hold->n_bytes : 0);
    if (h->engine.totals.below) json_field_u64(w, h->engine.totals.below, hold->n_below_bytes);
    json_end_object(w);
    json_end_object(w);
}

static void put_tier(struct json_writer *w, const char *name, uint64_t max_bytes,
                     uint64_t charged_bytes, uint64_t held_bytes) {
    json_begin_object(w);
    json_field_z(w, "tier", name);
    json_field_u64(w, "max_bytes", max_bytes);
    json_field_u64(w, "charged_bytes", charged_bytes);
    json_field_u64(w, "held_bytes", held_bytes);
    json_end_object(w);
}

static void put_tiers(struct json_writer *w, const struct engine_holds *t, uint64_t block_bytes) {
    json_put_key(w, "tiers");
    json_begin_array(w);
    put_tier(w, place_of(t), t->max_bytes, t->table.n_charged[HOLD_HERE] * block_bytes, t->n_bytes);
    if (t->below)
        put_tier(w, t->below, t->max_below_blocks * block_bytes,
                 t->table.n_charged[HOLD_BELOW] * block_bytes, t->n_below_blocks * block_bytes);
    json_end_array(w);
}

static void on_listed(struct engine_hold_call *engine) {
    struct hold_call *h = take_answered(engine);
    const struct engine_holds *t = &engine->totals;
    uint64_t block_bytes;
    struct json_writer w;
    struct buf body;

    if (!h) return;
    if (engine->status != ST_OK) {
        reply_error(h);
        close_call(h);
        return;
    }
    block_bytes = engine_info(h->api->engine)->block_bytes;
    buf_init(&body, 0);
    json_writer_init(&w, &body);
    json_begin_object(&w);
    json_field_z(&w, "object", "cache");
    json_field_z(&w, "model", h->api->model_name);
    json_field_z(&w, "place", place_of(t));
    json_field_u64(&w, "max_bytes", t->max_bytes);
    json_field_u64(&w, "charged_bytes", t->table.n_charged[HOLD_HERE] * block_bytes);
    json_field_u64(&w, "held_bytes", t->n_bytes);
    json_field_u64(&w, "hits", t->table.n_hits);
    json_field_u64(&w, "saved_tokens", t->saved_tokens);
    json_field_f64(&w, "saved_s", t->saved_s);
    json_field_f64(&w, "held_byte_s", t->byte_s);
    put_tiers(&w, t, block_bytes);
    json_put_key(&w, "holds");
    json_begin_array(&w);
    for (uint32_t i = 0; i < engine->n_holds; i++)
        put_hold(&w, h, &engine->holds[i]);
    json_end_array(&w);
    json_end_object(&w);
    reply(h, &body);
    close_call(h);
}

void cache_get(struct http_request *req, void *arg) {
    struct api *api = arg;
    struct hold_call *h = open_call(api, req, ENGINE_LIST, on_listed);

    h->engine.holds = mem_calloc(BLOCK_HOLDS_MAX, sizeof(*h->engine.holds));
    engine_call_hold(api->engine, &h->engine);
}
