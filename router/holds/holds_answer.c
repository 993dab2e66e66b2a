/* router/holds/holds_answer.c - what clients get: nothing of the fleet but numbers. */
#include <stdio.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/telemetry/metrics.h"
#include "common/text/json.h"
#include "router/holds/holds_internal.h"
#include "router/metrics/router_metrics.h"

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

/* What holds take and save. */
struct use {
    uint64_t n_holds, bytes, hits, saved_tokens;
    double saved_s, byte_s;
};

static void add_use(struct use *u, const struct hold_entry *e) {
    u->n_holds++;
    for (uint32_t i = 0; i < e->n_copies; i++) {
        u->bytes += e->copies[i].bytes;
        u->hits += e->copies[i].hits;
        u->saved_tokens += e->copies[i].saved_tokens;
        u->saved_s += e->copies[i].saved_s;
        u->byte_s += e->copies[i].byte_s;
    }
}

static void put_use(struct json_writer *w, const struct use *u) {
    json_field_u64(w, "hits", u->hits);
    json_field_u64(w, "saved_tokens", u->saved_tokens);
    json_field_f64(w, "saved_s", u->saved_s);
    json_field_f64(w, "held_byte_s", u->byte_s);
}

static void put_row(struct json_writer *w, const struct hold_entry *e, uint64_t now_us) {
    struct use use = {0};

    add_use(&use, e);
    put_entry(w, e, now_us);
    json_field_z(w, "holder", e->holder);
    put_use(w, &use);
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
        put_row(&w, e, holds_now_us(c));
        json_end_object(&w);
    }
    json_end_array(&w);
    json_end_object(&w);
}

/* --- for an operator -------------------------------------------------------------------------- */

static void put_workers(struct json_writer *w, struct registry *registry,
                        const struct hold_entry *e) {
    struct registry_view view;

    json_put_key(w, "workers");
    json_begin_array(w);
    for (uint32_t i = 0; i < e->n_copies; i++)
        if (registry_get(registry, e->copies[i].worker, &view)) json_put_str(w, str_of(view.url));
    json_end_array(w);
}

static bool is_same_holder(const struct hold_entry *a, const struct hold_entry *b) {
    return a->tenant == b->tenant && strcmp(a->holder, b->holder) == 0;
}

/* The holder of entry i and all of its holds, once: with its first. */
static void put_holder(struct json_writer *w, struct hold_table *table, uint32_t i) {
    const struct hold_entry *e = hold_table_at(table, i);
    struct use use = {0};

    for (uint32_t k = 0; k < i; k++)
        if (is_same_holder(hold_table_at(table, k), e)) return;
    for (uint32_t k = i; k < hold_table_n(table); k++)
        if (is_same_holder(hold_table_at(table, k), e)) add_use(&use, hold_table_at(table, k));
    json_begin_object(w);
    json_field_z(w, "tenant", e->tenant_name);
    json_field_z(w, "holder", e->holder);
    json_field_u64(w, "holds", use.n_holds);
    json_field_u64(w, "bytes", use.bytes);
    put_use(w, &use);
    json_end_object(w);
}

void holds_put_all(void *holds, struct json_writer *w) {
    struct holds *h = holds;

    json_begin_object(w);
    json_field_z(w, "object", "cache.holds");
    json_put_key(w, "holders");
    json_begin_array(w);
    for (uint32_t i = 0; i < hold_table_n(h->table); i++)
        put_holder(w, h->table, i);
    json_end_array(w);
    json_put_key(w, "holds");
    json_begin_array(w);
    for (uint32_t i = 0; i < hold_table_n(h->table); i++) {
        const struct hold_entry *e = hold_table_at(h->table, i);

        json_begin_object(w);
        json_field_z(w, "tenant", e->tenant_name);
        put_row(w, e, loop_now_us(h->config.loop));
        put_workers(w, h->config.registry, e);
        json_end_object(w);
    }
    json_end_array(w);
    json_end_object(w);
}

void holds_set_metrics(const struct holds *h) {
    struct use use = {0};

    for (uint32_t i = 0; i < hold_table_n(h->table); i++)
        add_use(&use, hold_table_at(h->table, i));
    metric_set(metrics_at(h->config.metrics, ROUTER_holds), (double)use.n_holds);
    metric_set(metrics_at(h->config.metrics, ROUTER_held_bytes), (double)use.bytes);
    metric_set(metrics_at(h->config.metrics, ROUTER_held_byte_seconds), use.byte_s);
    metric_set(metrics_at(h->config.metrics, ROUTER_holds_saved_seconds), use.saved_s);
}
