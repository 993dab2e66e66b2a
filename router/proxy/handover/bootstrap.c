/* router/proxy/handover/bootstrap.c - SGLang in disaggregation mode.
 *
 *      router ─▶ P, D   the body at once, with bootstrap_host and _port (where D asks P's bootstrap
 *                       server) and bootstrap_room, a random number that joins the two
 *      P ─▶ D           KV, when both have the room
 *      D ─▶ router      the answer; P's has one token and is drained
 *
 * A batch of prompts has a room and an id for each. D waits 300 s for a P that never comes, so a
 * leg whose partner failed is ended with POST /abort_request, by an id that no other request has:
 * SGLang ends all requests whose ids begin with it. So a client's own rid does not count, nor does
 * its bootstrap_room: the router's stand behind them, and of two members with one name SGLang takes
 * the last.
 *
 * LIMITS: log probabilities of the prompt, which P alone has, are not in D's answer.
 * Follows: SGLang 0.5.23, disaggregation/. */
#include "router/prompt/raw_json.h"
#include "router/proxy/handover/handover.h"

/* Prompts of a batch; 0: a single one. */
static uint32_t n_batch(struct str body) {
    static const char *const names[] = {"prompt", "text", "input_ids"};
    struct str prompt = STR_NULL, item;
    struct raw_walk walk;
    uint32_t n = 0;

    for (size_t i = 0; !prompt.ptr && i < ARRAY_LEN(names); i++)
        prompt = handover_member(body, names[i]);
    if (!prompt.len || prompt.ptr[0] != '[') return 0;
    walk = raw_walk_of(prompt);
    while (raw_next_item(&walk, &item)) {
        if (item.ptr[0] != '"' && item.ptr[0] != '[') return 0; /* tokens of one prompt */
        n++;
    }
    return n;
}

static bool fits(struct str path, struct str body) {
    (void)body;
    return str_eq(path, STR("/v1/chat/completions")) || str_eq(path, STR("/v1/completions")) ||
           str_eq(path, STR("/generate"));
}

/* `n` times, in an array; 0: once, without. */
static void put_each(const struct handover *h, const char *name, uint32_t n, struct buf *out,
                     void (*put)(const struct handover *h, uint32_t i, struct buf *out)) {
    buf_appendf(out, ",\"%s\":%s", name, n ? "[" : "");
    for (uint32_t i = 0; i < MAX(n, 1u); i++) {
        if (i) buf_append_char(out, ',');
        put(h, i, out);
    }
    if (n) buf_append_char(out, ']');
}

static void put_host(const struct handover *h, uint32_t i, struct buf *out) {
    (void)i;
    buf_appendf(out, "\"" STR_FMT "\"", STR_ARG(h->host));
}

static void put_port(const struct handover *h, uint32_t i, struct buf *out) {
    (void)i;
    buf_append_u64(out, h->bootstrap_port);
}

static void put_room(const struct handover *h, uint32_t i, struct buf *out) {
    buf_append_u64(out, (h->room + i) & INT64_MAX);
}

/* Those of a batch begin alike: one call ends them all. */
static void put_rid(const struct handover *h, uint32_t i, struct buf *out) {
    buf_appendf(out, "\"%s-%u\"", h->rid, i);
}

static enum status second_members(const struct handover *h, struct str answer, struct buf *out) {
    uint32_t n = n_batch(h->body);

    (void)answer;
    put_each(h, "bootstrap_host", n, out, put_host);
    put_each(h, "bootstrap_port", n, out, put_port);
    put_each(h, "bootstrap_room", n, out, put_room);
    if (n) {
        put_each(h, "rid", n, out, put_rid);
    } else {
        buf_appendf(out, ",\"rid\":\"%s\"", h->rid);
    }
    return buf_status(out);
}

static void first_members(const struct handover *h, struct buf *out) {
    (void)!second_members(h, STR_NULL, out); /* only `out` can fail */
}

static void abort_body(const struct handover *h, struct buf *out) {
    buf_appendf(out, "{\"rid\":\"%s\"}", h->rid);
}

const struct handover_ops handover_bootstrap = {
    .name = "bootstrap",
    .is_at_once = true,
    .fits = fits,
    .first_members = first_members,
    .second_members = second_members,
    .abort_path = "/abort_request",
    .abort_body = abort_body,
};
