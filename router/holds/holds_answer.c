/* router/holds/holds_answer.c - what clients get: nothing of the fleet but numbers. */
#include <stdio.h>

#include "common/base/clock.h"
#include "common/text/json.h"
#include "router/holds/holds_internal.h"

static void put_id(struct json_writer *w, uint64_t id) {
    char text[HOLD_ID_MAX];

    snprintf(text, sizeof(text), "hold-%016llx", (unsigned long long)id);
    json_field_z(w, "id", text);
}

static const struct hold_copy *largest(const struct hold_entry *e) {
    const struct hold_copy *best = &e->copies[0];

    for (uint32_t i = 1; i < e->n_copies; i++)
        if (e->copies[i].tokens > best->tokens) best = &e->copies[i];
    return best;
}

static void put_entry(struct json_writer *w, const struct hold_entry *e, uint64_t now_us) {
    uint64_t left_us = e->expires_us - MIN(e->expires_us, now_us), bytes = 0;

    for (uint32_t i = 0; i < e->n_copies; i++)
        bytes += e->copies[i].bytes;
    put_id(w, e->id);
    json_field_z(w, "model", e->model[0] ? e->model : e->served);
    json_field_u64(w, "copies", e->n_copies);
    json_field_u64(w, "tokens", e->n_copies ? largest(e)->tokens : 0);
    json_field_u64(w, "bytes", bytes);
    json_field_u64(w, "ttl_s", e->ttl_s);
    json_field_u64(w, "expires", (clock_wall_us() + left_us) / 1000000);
}

/* Of the worker that had least of it cached. */
static void put_computed(struct json_writer *w, const struct holds_call *c) {
    const struct holds_leg *least = NULL;

    for (uint32_t i = 0; i < c->n_legs; i++) {
        const struct holds_leg *leg = &c->legs[i];

        if (leg->is_ok && (!least || leg->cached_tokens < least->cached_tokens)) least = leg;
    }
    json_field_u64(w, "prompt_tokens", least ? least->prompt_tokens : 0);
    json_field_u64(w, "cached_tokens", least ? least->cached_tokens : 0);
}

void holds_put_hold(struct holds_call *c, const struct hold_entry *e) {
    struct json_writer w;

    buf_clear(&c->answer);
    json_writer_init(&w, &c->answer);
    json_begin_object(&w);
    json_field_z(&w, "object", "cache.hold");
    put_entry(&w, e, holds_now_us(c));
    put_computed(&w, c);
    json_end_object(&w);
}

void holds_put_prewarm(struct holds_call *c) {
    const char *model = "";
    uint32_t n = 0;
    struct json_writer w;

    for (uint32_t i = 0; i < c->n_legs; i++) {
        n += c->legs[i].is_ok;
        if (c->legs[i].is_ok && !model[0]) model = c->legs[i].model;
    }
    buf_clear(&c->answer);
    json_writer_init(&w, &c->answer);
    json_begin_object(&w);
    json_field_z(&w, "object", "cache.prewarm");
    json_field_str(&w, "model", c->scan.model.len ? c->scan.model : str_of(model));
    json_field_u64(&w, "workers", n);
    put_computed(&w, c);
    json_field_u64(&w, "ttl_s", c->ttl_s);
    json_end_object(&w);
}

void holds_put_release(struct holds_call *c, uint64_t id) {
    struct json_writer w;

    json_writer_init(&w, &c->answer);
    json_begin_object(&w);
    json_field_z(&w, "object", "cache.release");
    put_id(&w, id);
    json_end_object(&w);
}

static void put_use(struct json_writer *w, const struct hold_entry *e) {
    uint64_t hits = 0, saved_tokens = 0;
    double saved_s = 0;

    for (uint32_t i = 0; i < e->n_copies; i++) {
        hits += e->copies[i].hits;
        saved_tokens += e->copies[i].saved_tokens;
        saved_s += e->copies[i].saved_s;
    }
    json_field_u64(w, "hits", hits);
    json_field_u64(w, "saved_tokens", saved_tokens);
    json_field_f64(w, "saved_s", saved_s);
}

void holds_put_list(struct holds_call *c) {
    struct hold_table *table = c->holds->table;
    struct json_writer w;

    json_writer_init(&w, &c->answer);
    json_begin_object(&w);
    json_field_z(&w, "object", "cache");
    json_put_key(&w, "holds");
    json_begin_array(&w);
    for (uint32_t i = 0; i < hold_table_n(table); i++) {
        const struct hold_entry *e = hold_table_at(table, i);

        if (e->tenant != holds_tenant_of(c)) continue;
        json_begin_object(&w);
        put_entry(&w, e, holds_now_us(c));
        json_field_z(&w, "holder", e->holder);
        put_use(&w, e);
        json_end_object(&w);
    }
    json_end_array(&w);
    json_end_object(&w);
}
