/* router/holds/holds.c - what each call does, and what is done on its own: expiring, repeating
 * elsewhere, asking workers. */
#include "router/holds/holds.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "common/base/hash.h"
#include "common/base/mem.h"
#include "common/telemetry/log.h"
#include "common/text/json.h"
#include "router/holds/holds_internal.h"
#include "router/poison/poison.h"

#define BODY_MAX        (4u << 20) /* parsed and kept; a million tokens of text */
#define TENANT_SEED     5
#define DEFAULT_S       3600u
#define REPEATS_MAX     4u /* at a time */
#define REPEAT_AGAIN_US (30u * 1000 * 1000)
#define CODE_LEFT       499 /* for the log: the client did not wait for the answer */

const char *const holds_op_names[] = {"hold", "release", "prewarm", "list", "repeat", "poll"};

/* --- a call's life ---------------------------------------------------------------------------- */

struct holds_call *holds_call_create(struct holds *h, enum holds_op op) {
    struct holds_call *c = mem_zalloc(sizeof(*c));

    c->holds = h;
    c->op = op;
    c->n_refs = 1;
    c->max_lost = POISON_LOST;
    buf_init(&c->body, 0);
    buf_init(&c->sent, 0);
    buf_init(&c->answer, 0);
    return c;
}

static void call_unref(struct holds_call *c) {
    if (atomic_fetch_sub(&c->n_refs, 1) > 1) return;
    buf_fini(&c->body);
    buf_fini(&c->sent);
    buf_fini(&c->answer);
    mem_free(c->chain);
    mem_free(c->legs);
    mem_free(c);
}

void holds_call_free(struct holds_call *c) {
    if (c->key.key) keys_leave(c->holds->config.keys, &c->key, -1);
    if (c->home) atomic_fetch_sub(&c->holds->n_calls, 1);
    call_unref(c);
}

static void begin_call(struct holds_call *c) {
    list_push_back(&c->holds->calls, &c->link);
    c->is_under_way = true;
}

void holds_call_done(struct holds_call *c, int code) {
    c->code = code;
    c->is_under_way = false;
    list_remove(&c->link);
    if (c->home) {
        mailbox_push(c->home, &c->mail);
    } else {
        holds_call_free(c);
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

/* Two workers were lost on it: not a third, and for a while not again. */
static bool is_poison(struct holds_call *c) {
    if (c->n_lost < c->max_lost) return false;
    poison_add(c->holds->config.poison, str_of(c->client), buf_str(&c->body), holds_now_us(c));
    log_event(c->holds->config.log, LOG_ERROR, "poison_suspected",
              log_z("id", holds_op_names[c->op]), log_u64("body_bytes", buf_len(&c->body)),
              log_u64("lost", c->n_lost));
    return true;
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

/* The entry of a hold that was made: the one that has its copies already, the one that the same
 * call made before, whose workers may have gone, or a new one. */
static struct hold_entry *remember(struct holds_call *c) {
    struct hold_table *table = c->holds->table;
    struct hold_entry like = {.owner = c->owner,
                              .tenant = holds_tenant_of(c),
                              .body = buf_ptr(&c->body),
                              .body_len = buf_len(&c->body)};
    struct hold_entry *e = NULL;

    for (uint32_t i = 0; i < c->n_legs && !e; i++)
        if (c->legs[i].is_ok) e = hold_table_find_copy(table, c->owner, &c->legs[i].copy);
    if (!e) e = hold_table_find_body(table, c->owner, buf_str(&c->body));
    if (!e) {
        snprintf(like.holder, sizeof(like.holder), "%s", c->holder);
        snprintf(like.model, sizeof(like.model), STR_FMT, STR_ARG(c->scan.model));
        snprintf(like.tenant_name, sizeof(like.tenant_name), "%s", c->tenant);
        snprintf(like.served, sizeof(like.served), "%s", first_ok(c)->model);
        hash_random(&like.id, sizeof(like.id)); /* not to be guessed from others */
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
    if (is_poison(c)) {
        error_set(&c->err, ST_UNAVAILABLE, "%s", POISON_MESSAGE);
        fail(c);
        return;
    }
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
        bool is_over = !first_ok(c) && is_poison(c);

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
        if (is_over) hold_table_erase(c->holds->table, e);
    }
    holds_call_done(c, 200);
}

static void start_repeat(struct holds *h, struct hold_entry *e) {
    struct holds_call *c = holds_call_create(h, HOLDS_REPEAT);

    begin_call(c);
    c->id = e->id;
    e->is_repeating = true;
    buf_append_str(&c->body, (struct str){e->body, e->body_len});
    snprintf(c->tenant, sizeof(c->tenant), "%s", e->tenant_name);
    snprintf(c->client, sizeof(c->client), "%s", e->tenant_name);
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
    c = holds_call_create(h, HOLDS_POLL);
    begin_call(c);
    holds_start_polls(c);
    if (c->n_open == 0) end_poll(c);
}

static void on_look(void *arg) {
    struct holds *h = arg;
    uint64_t now_us = loop_now_us(h->config.loop);

    poll_workers(h, now_us);
    look_at_entries(h, now_us);
    holds_set_metrics(h);
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

    (void)arg;
    begin_call(c);
    if (c->has_left) {
        holds_call_done(c, CODE_LEFT);
        return;
    }
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

/* No client waits for it: workers see that, and end what they compute. What one has made already is
 * remembered. */
static void on_left(struct mail *mail, void *arg) {
    struct holds_call *c = CONTAINER_OF(mail, struct holds_call, leave);

    (void)arg;
    c->has_left = true;
    if (c->is_under_way && c->op != HOLDS_RELEASE) {
        holds_cancel(c);
        c->code = CODE_LEFT;
        holds_call_ended(c);
    }
    call_unref(c);
}

/* --- life ------------------------------------------------------------------------------------- */

enum status holds_create(struct holds **out, const struct holds_config *config, struct error *err) {
    struct holds *h = mem_zalloc(sizeof(*h));
    enum status st = mailbox_open(&h->box, config->loop, on_mail, h, err);

    if (st == ST_OK) st = mailbox_open(&h->left, config->loop, on_left, h, err);
    if (st != ST_OK) {
        mailbox_close(h->box);
        mem_free(h);
        return st;
    }
    h->config = *config;
    h->table = hold_table_create();
    h->candidates = mem_calloc(config->max_workers, sizeof(*h->candidates));
    list_init(&h->calls);
    loop_timer_init(&h->look, config->loop, on_look, h);
    loop_timer_start(&h->look, HOLDS_LOOK_US);
    *out = h;
    return ST_OK;
}

void holds_destroy(struct holds *h) {
    struct list unread, *link;

    if (!h) return;
    list_init(&unread);
    mailbox_take(h->left, &unread);
    while ((link = list_pop_front(&unread)) != NULL)
        call_unref(CONTAINER_OF(mail_of(link), struct holds_call, leave));
    mailbox_take(h->box, &unread);
    while ((link = list_pop_front(&unread)) != NULL)
        holds_drop(mail_of(link));
    while ((link = list_pop_front(&h->calls)) != NULL) {
        struct holds_call *c = LIST_ENTRY(link, struct holds_call, link);

        holds_cancel(c);
        holds_call_free(c);
    }
    mailbox_close(h->box);
    mailbox_close(h->left);
    loop_timer_fini(&h->look);
    hold_table_destroy(h->table);
    mem_free(h->candidates);
    mem_free(h);
}
