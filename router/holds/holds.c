/* router/holds/holds.c - the way there and back, what each call does, and what is done on its own:
 * expiring, asking workers, repeating elsewhere. */
#include "router/holds/holds.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "common/base/hash.h"
#include "common/base/mem.h"
#include "common/http/http_server.h"
#include "common/protocol/openai.h"
#include "common/telemetry/log.h"
#include "common/text/json.h"
#include "router/holds/holds_internal.h"

#define BODY_MAX        (4u << 20) /* parsed and kept; a million tokens of text */
#define TENANT_SEED     5
#define DEFAULT_S       3600u
#define REPEATS_MAX     4u /* at a time */
#define REPEAT_AGAIN_US (30u * 1000 * 1000)
#define BYTES_PER_TOKEN 4.0

static const struct {
    enum http_method method;
    struct str path;
    enum holds_op op;
} paths[] = {
    {HTTP_POST, STR("/cache/hold"), HOLDS_HOLD},
    {HTTP_POST, STR("/cache/release"), HOLDS_RELEASE},
    {HTTP_POST, STR("/cache/prewarm"), HOLDS_PREWARM},
    {HTTP_GET, STR("/cache"), HOLDS_LIST},
};

static const char *const op_names[] = {"hold", "release", "prewarm", "list", "repeat", "poll"};

static bool find_op(const struct http_request *req, enum holds_op *op) {
    for (size_t i = 0; i < ARRAY_LEN(paths); i++) {
        if (req->method != paths[i].method || !str_eq(req->path, paths[i].path)) continue;
        *op = paths[i].op;
        return true;
    }
    return false;
}

bool holds_serves(const struct http_request *req) {
    enum holds_op op;

    return find_op(req, &op);
}

/* --- a call's life ---------------------------------------------------------------------------- */

static struct holds_call *call_create(struct holds *h, enum holds_op op) {
    struct holds_call *c = mem_zalloc(sizeof(*c));

    c->holds = h;
    c->op = op;
    buf_init(&c->body, 0);
    buf_init(&c->sent, 0);
    buf_init(&c->answer, 0);
    return c;
}

static void call_free(struct holds_call *c) {
    if (c->key.key) keys_leave(c->holds->config.keys, &c->key, -1);
    if (c->home) atomic_fetch_sub(&c->holds->n_calls, 1);
    buf_fini(&c->body);
    buf_fini(&c->sent);
    buf_fini(&c->answer);
    mem_free(c->chain);
    mem_free(c->legs);
    mem_free(c);
}

void holds_call_done(struct holds_call *c, int code) {
    c->code = code;
    list_remove(&c->link);
    if (c->home) {
        mailbox_push(c->home, &c->mail);
    } else {
        call_free(c);
    }
}

static void fail(struct holds_call *c) {
    assert(c->err.status != ST_OK);
    holds_call_done(c, 0);
}

uint64_t holds_tenant_of(const struct holds_call *c) {
    return c->tenant[0] ? hash_64(c->tenant, strlen(c->tenant), TENANT_SEED) : 0;
}

/* --- hold and prewarm ------------------------------------------------------------------------- */

/* Seconds, or "5m", "1h" and so on. What is neither, the worker refuses. */
static uint32_t read_ttl(const struct json *root) {
    const struct json *ttl = json_get(root, "ttl");
    struct str text;
    uint64_t n;

    if (json_to_u64(ttl, &n) == ST_OK) return (uint32_t)MIN(n, UINT32_MAX);
    if (json_to_str(ttl, &text) != ST_OK || text.len < 2) return DEFAULT_S;
    if (str_to_u64((struct str){text.ptr, text.len - 1}, &n) != ST_OK || n > 24 * 60)
        return DEFAULT_S;
    return (uint32_t)n * (text.ptr[text.len - 1] == 'h' ? 3600 : 60);
}

static enum status read_prompt(struct holds_call *c) {
    const struct json_limits limits = {.max_bytes = BODY_MAX, .max_depth = BODY_DEPTH_MAX};
    const char *field = c->op == HOLDS_HOLD ? "copies" : "workers";
    struct json *root = NULL;
    enum status st;

    c->n_wanted = 1;
    if (buf_len(&c->body) > BODY_MAX)
        return error_set(&c->err, ST_TOO_LARGE,
                         "the body has %zu bytes: send at most %u bytes to hold or prewarm",
                         buf_len(&c->body), BODY_MAX);
    st = json_parse(&root, buf_str(&c->body), &limits, &c->err);
    if (st == ST_OK && json_type(root) != JSON_OBJECT)
        st = error_set(&c->err, ST_INVALID, "the body must be a JSON object, not %s",
                       json_type_name(root));
    if (st == ST_OK)
        st = json_get_u32(root, field, 1, HOLD_COPIES_MAX, &c->n_wanted, NULL, &c->err);
    if (st == ST_OK) c->ttl_s = read_ttl(root);
    json_destroy(root);
    return st == ST_OK ? holds_prepare(c) : st;
}

static void start_prompts(struct holds_call *c) {
    enum status st = read_prompt(c);

    if (st == ST_OK && c->op == HOLDS_HOLD)
        st = hold_table_check_room(c->holds->table, holds_tenant_of(c), buf_len(&c->body), &c->err);
    if (st == ST_OK) {
        holds_start_prompts(c, c->n_wanted);
        if (c->n_open > 0) return;
        if (c->err.status == ST_OK)
            error_set(&c->err, ST_UNAVAILABLE,
                      "no worker of this model can hold or prewarm a prompt now: retry later");
    }
    fail(c);
}

static const struct holds_leg *first_ok(const struct holds_call *c) {
    for (uint32_t i = 0; i < c->n_legs; i++)
        if (c->legs[i].is_ok) return &c->legs[i];
    return NULL;
}

static void add_copies(const struct holds_call *c, struct hold_entry *e) {
    for (uint32_t i = 0; i < c->n_legs; i++)
        if (c->legs[i].is_ok) hold_entry_add(e, &c->legs[i].copy);
}

/* The entry of a hold that was made: a new one, or the one that has its copies already. */
static struct hold_entry *remember(struct holds_call *c) {
    struct hold_table *table = c->holds->table;
    struct hold_entry like = {.id = rng_u64(&c->holds->rng),
                              .owner = c->owner,
                              .tenant = holds_tenant_of(c),
                              .body = buf_ptr(&c->body),
                              .body_len = buf_len(&c->body)};
    struct hold_entry *e = NULL;

    for (uint32_t i = 0; i < c->n_legs && !e; i++)
        if (c->legs[i].is_ok) e = hold_table_find_copy(table, c->owner, &c->legs[i].copy);
    if (!e) {
        snprintf(like.holder, sizeof(like.holder), "%s", c->holder);
        snprintf(like.model, sizeof(like.model), STR_FMT, STR_ARG(c->scan.model));
        snprintf(like.tenant_name, sizeof(like.tenant_name), "%s", c->tenant);
        if (hold_table_check_room(table, like.tenant, like.body_len, &c->err) != ST_OK) return NULL;
        if (hold_table_insert(table, &like, &e) != ST_OK) {
            error_set(&c->err, ST_NOMEM, "out of memory for the body of a hold: retry later");
            return NULL;
        }
    }
    e->ttl_s = c->ttl_s;
    e->expires_us = holds_now_us(c) + (uint64_t)c->ttl_s * 1000000;
    e->n_wanted = MAX(e->n_wanted, c->n_wanted);
    add_copies(c, e);
    return e;
}

/* No worker did it: the first one's answer goes to the client as it is. */
static void pass_on(struct holds_call *c) {
    if (c->code) {
        holds_call_done(c, c->code);
        return;
    }
    error_set(&c->err, ST_BAD_GATEWAY, "no worker answered: try again later");
    fail(c);
}

static void end_hold(struct holds_call *c) {
    struct hold_entry *e;

    if (!first_ok(c)) {
        pass_on(c);
        return;
    }
    e = remember(c);
    if (!e) {
        fail(c);
        return;
    }
    holds_put_hold(c, e);
    holds_call_done(c, 200);
}

static void end_prewarm(struct holds_call *c) {
    if (!first_ok(c)) {
        pass_on(c);
        return;
    }
    holds_put_prewarm(c);
    holds_call_done(c, 200);
}

/* --- release ---------------------------------------------------------------------------------- */

static enum status read_id(struct holds_call *c) {
    static const struct json_limits limits = {.max_bytes = 65536, .max_depth = 8};
    struct str text = STR_NULL;
    struct json *root = NULL;
    enum status st = json_parse(&root, buf_str(&c->body), &limits, &c->err);
    size_t n = sizeof("hold-") - 1;

    if (st == ST_OK) st = json_get_str(root, "id", HOLD_ID_MAX, &text, NULL, &c->err);
    if (st == ST_OK && (text.len != HOLD_ID_MAX - 3 || !str_starts(text, STR("hold-"))))
        n = text.len + 1;
    for (c->id = 0; st == ST_OK && n < text.len; n++) {
        int digit = str_hex_value((unsigned char)text.ptr[n]);

        if (digit < 0) break;
        c->id = c->id << 4 | (uint64_t)digit;
    }
    if (st == ST_OK && n != text.len)
        st = error_set_param(&c->err, ST_INVALID, "id",
                             "id must be that of an answer of /cache/hold: \"hold-\" and 16 "
                             "hexadecimal digits");
    json_destroy(root);
    return st == ST_OK ? holds_prepare(c) : st;
}

/* Unknown from here on, whatever its workers answer. */
static void start_release(struct holds_call *c) {
    struct hold_entry *e;

    if (read_id(c) != ST_OK) {
        fail(c);
        return;
    }
    e = hold_table_find(c->holds->table, c->id);
    if (!e || e->owner != c->owner) {
        error_set_param(&c->err, ST_NOT_FOUND, "id",
                        "there is no such hold of this key and cache_salt: it was released, has "
                        "expired, or was made through another router");
        fail(c);
        return;
    }
    holds_start_releases(c, e);
    hold_table_erase(c->holds->table, e);
    if (c->n_open == 0) holds_call_ended(c);
}

/* --- on its own ------------------------------------------------------------------------------- */

static struct hold_entry *repeated(const struct holds_call *c) {
    return hold_table_find(c->holds->table, c->id);
}

static void end_repeat(struct holds_call *c) {
    struct hold_entry *e = repeated(c);
    struct log *log = c->holds->config.log;

    if (e) {
        e->is_repeating = false;
        e->repeat_us = holds_now_us(c) + (first_ok(c) ? 0 : REPEAT_AGAIN_US);
        add_copies(c, e);
        if (first_ok(c))
            log_event(log, LOG_INFO, "hold_repeated", log_z("holder", e->holder),
                      log_z("model", e->model), log_u64("copies", e->n_copies),
                      log_u64("wanted", e->n_wanted));
        else
            log_event(log, LOG_WARN, "hold_not_repeated", log_z("holder", e->holder),
                      log_z("model", e->model), log_u64("copies", e->n_copies),
                      log_u64("wanted", e->n_wanted));
    }
    holds_call_done(c, 200);
}

static void start_repeat(struct holds *h, struct hold_entry *e) {
    struct holds_call *c = call_create(h, HOLDS_REPEAT);

    list_push_back(&h->calls, &c->link);
    c->id = e->id;
    e->is_repeating = true;
    buf_append_str(&c->body, (struct str){e->body, e->body_len});
    snprintf(c->tenant, sizeof(c->tenant), "%s", e->tenant_name);
    if (holds_prepare(c) == ST_OK) {
        for (uint32_t i = 0; i < e->n_copies; i++)
            c->tried[c->n_tried++] = e->copies[i].worker;
        holds_start_prompts(c, e->n_wanted - e->n_copies);
    }
    if (c->n_open == 0) end_repeat(c);
}

/* False: the worker holds nothing any more, or not for long. */
static bool look_at(struct holds *h, struct hold_copy *copy) {
    struct registry_view view;

    if (!registry_get(h->config.registry, copy->worker, &view) ||
        view.incarnation != copy->incarnation)
        return false;
    if (view.is_described && strcmp(view.info.generation, copy->generation) != 0) return false;
    copy->n_missed = view.is_described && view.reasons == 0 ? 0 : copy->n_missed + 1;
    return copy->n_missed < HOLDS_MISSED;
}

static uint32_t count_repeats(const struct holds *h) {
    uint32_t n = 0;

    for (uint32_t i = 0; i < hold_table_n(h->table); i++)
        n += hold_table_at(h->table, i)->is_repeating;
    return n;
}

/* Entries that are over go. */
static void look_at_entries(struct holds *h, uint64_t now_us) {
    uint32_t n_repeats = count_repeats(h);

    for (uint32_t i = hold_table_n(h->table); i-- > 0;) {
        struct hold_entry *e = hold_table_at(h->table, i);

        for (uint32_t k = e->n_copies; k-- > 0;)
            if (!look_at(h, &e->copies[k])) hold_entry_drop(e, k);
        if (now_us >= e->expires_us || e->n_wanted == 0) {
            hold_table_erase(h->table, e);
        } else if (e->n_copies < e->n_wanted && !e->is_repeating && now_us >= e->repeat_us &&
                   n_repeats < REPEATS_MAX) {
            n_repeats++;
            start_repeat(h, e);
        }
    }
}

static void end_poll(struct holds_call *c) {
    c->holds->is_polling = false;
    holds_call_done(c, 200);
}

static void poll_workers(struct holds *h, uint64_t now_us) {
    struct holds_call *c;

    if (h->is_polling || hold_table_n(h->table) == 0 || now_us - h->polled_us < HOLDS_POLL_US)
        return;
    h->polled_us = now_us;
    h->is_polling = true;
    c = call_create(h, HOLDS_POLL);
    list_push_back(&h->calls, &c->link);
    holds_start_polls(c);
    if (c->n_open == 0) end_poll(c);
}

static void on_look(void *arg) {
    struct holds *h = arg;
    uint64_t now_us = loop_now_us(h->config.loop);

    poll_workers(h, now_us);
    look_at_entries(h, now_us);
    loop_timer_start(&h->look, HOLDS_LOOK_US);
}

/* --- there and back --------------------------------------------------------------------------- */

static void end_list(struct holds_call *c) {
    holds_put_list(c);
    holds_call_done(c, 200);
}

static void end_release(struct holds_call *c) {
    holds_put_release(c, c->id);
    holds_call_done(c, 200);
}

void holds_call_ended(struct holds_call *c) {
    switch (c->op) {
    case HOLDS_HOLD: end_hold(c); return;
    case HOLDS_RELEASE: end_release(c); return;
    case HOLDS_PREWARM: end_prewarm(c); return;
    case HOLDS_LIST: end_list(c); return;
    case HOLDS_REPEAT: end_repeat(c); return;
    case HOLDS_POLL: end_poll(c); return;
    }
}

static void on_mail(struct mail *mail, void *arg) {
    struct holds_call *c = CONTAINER_OF(mail, struct holds_call, mail);
    struct holds *h = arg;

    list_push_back(&h->calls, &c->link);
    switch (c->op) {
    case HOLDS_HOLD:
    case HOLDS_PREWARM: start_prompts(c); return;
    case HOLDS_RELEASE: start_release(c); return;
    case HOLDS_LIST:
        holds_start_polls(c);
        if (c->n_open == 0) end_list(c);
        return;
    case HOLDS_REPEAT:
    case HOLDS_POLL: break;
    }
    assert(!"a call of a client");
}

static void on_abort(struct http_request *req) {
    ((struct holds_call *)req->user)->req = NULL;
}

static enum status read_tenant(struct holds_call *c, const struct http_request *req,
                               struct error *err) {
    const char *name = c->holds->config.tenant_header;
    struct str value = name ? http_request_header(req, str_of(name)) : STR_NULL;
    uint32_t n = 0;

    for (uint16_t i = 0; name && i < req->n_headers; i++)
        n += str_eq_nocase(http_request_header_at(req, i).name, str_of(name));
    if (n > 1)
        return error_set(err, ST_INVALID, "header %s appears more than once: send it once", name);
    if (value.len > KEY_TENANT_MAX)
        return error_set(err, ST_INVALID,
                         "header %s has %zu bytes: use at most %d for a tenant's name", name,
                         value.len, KEY_TENANT_MAX);
    snprintf(c->tenant, sizeof(c->tenant), STR_FMT, STR_ARG(value));
    snprintf(c->holder, sizeof(c->holder), STR_FMT, STR_ARG(value));
    return ST_OK;
}

/* Charges the key, as for any prompt. */
static enum status admit(struct holds_call *c, struct http_request *req, struct error *err) {
    struct keys *keys = c->holds->config.keys;
    struct str key = keys_from_headers(http_request_header(req, STR("authorization")),
                                       http_request_header(req, STR("x-api-key")));
    uint64_t wait_us = 0;
    enum status st;

    if (http_is_from_another_page(req) && req->method != HTTP_GET)
        return error_set(err, ST_FORBIDDEN,
                         STR_FMT " is not accepted from a web page of another origin: send the "
                                 "request without the header Origin",
                         STR_ARG(req->path));
    if (!keys_are_needed(keys)) return read_tenant(c, req, err);
    st = keys_enter(keys, key, (double)req->body.len / BYTES_PER_TOKEN,
                    loop_now_us(http_request_loop(req)), &c->key, &wait_us, err);
    if (st != ST_OK) return st;
    snprintf(c->tenant, sizeof(c->tenant), STR_FMT, STR_ARG(key_tenant(c->key.key)));
    keys_name(keys, key, c->holder);
    return ST_OK;
}

static void reply_error(struct http_request *req, const struct error *err) {
    if (err->status == ST_BUSY || err->status == ST_UNAVAILABLE)
        http_add_header(req, STR("retry-after"), STR("1"));
    http_reply_error(req, err->status, err);
}

void holds_take(struct holds *h, struct http_request *req, struct mailbox *home) {
    struct error err = {0};
    struct holds_call *c;
    enum holds_op op;

    if (!find_op(req, &op)) return;
    c = call_create(h, op);
    c->home = home;
    if (atomic_fetch_add(&h->n_calls, 1) >= HOLDS_CALLS_MAX) {
        error_set(&err, ST_BUSY, "%u calls of /cache are open, the most of a router: retry later",
                  HOLDS_CALLS_MAX);
    } else if (admit(c, req, &err) == ST_OK) {
        buf_append_str(&c->body, req->body);
        if (buf_status(&c->body) != ST_OK)
            error_set(&err, ST_NOMEM, "out of memory for the body: retry later");
    }
    if (err.status != ST_OK) {
        call_free(c);
        reply_error(req, &err);
        return;
    }
    c->req = req;
    req->user = c;
    req->on_abort = on_abort;
    mailbox_push(h->box, &c->mail);
}

void holds_reply(struct mail *mail) {
    struct holds_call *c = CONTAINER_OF(mail, struct holds_call, mail);
    struct http_request *req = c->req;

    if (req && !c->code) {
        reply_error(req, &c->err);
    } else if (req) {
        if (c->code == 429 || c->code == 503) http_add_header(req, STR("retry-after"), STR("1"));
        http_reply(req, c->code, OPENAI_JSON, buf_str(&c->answer));
    }
    log_event(c->holds->config.log, LOG_INFO, "cache_call", log_z("call", op_names[c->op]),
              log_z("holder", c->holder),
              log_i64("code", c->code ? c->code : status_http_code(c->err.status)));
    call_free(c);
}

void holds_drop(struct mail *mail) {
    call_free(CONTAINER_OF(mail, struct holds_call, mail));
}

/* --- life ------------------------------------------------------------------------------------- */

enum status holds_create(struct holds **out, const struct holds_config *config, struct error *err) {
    struct holds *h = mem_zalloc(sizeof(*h));
    enum status st = mailbox_open(&h->box, config->loop, on_mail, h, err);
    uint64_t seed;

    if (st != ST_OK) {
        mem_free(h);
        return st;
    }
    h->config = *config;
    h->table = hold_table_create();
    h->candidates = mem_calloc(config->max_workers, sizeof(*h->candidates));
    list_init(&h->calls);
    hash_random(&seed, sizeof(seed));
    rng_seed(&h->rng, seed);
    loop_timer_init(&h->look, config->loop, on_look, h);
    loop_timer_start(&h->look, HOLDS_LOOK_US);
    *out = h;
    return ST_OK;
}

void holds_destroy(struct holds *h) {
    struct list unread, *link;

    if (!h) return;
    list_init(&unread);
    mailbox_take(h->box, &unread);
    while ((link = list_pop_front(&unread)) != NULL)
        holds_drop(mail_of(link));
    while ((link = list_pop_front(&h->calls)) != NULL) {
        struct holds_call *c = LIST_ENTRY(link, struct holds_call, link);

        holds_cancel(c);
        call_free(c);
    }
    mailbox_close(h->box);
    loop_timer_fini(&h->look);
    hold_table_destroy(h->table);
    mem_free(h->candidates);
    mem_free(h);
}
