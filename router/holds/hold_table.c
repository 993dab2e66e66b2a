/* router/holds/hold_table.c - an array of entries: a thousand are read in microseconds. */
#include "router/holds/hold_table.h"

#include <assert.h>
#include <string.h>

#include "common/base/mem.h"

struct hold_table {
    struct hold_entry *entries[HOLD_TABLE_MAX];
    uint32_t n;
    size_t n_bytes;
};

struct hold_table *hold_table_create(void) {
    return mem_zalloc(sizeof(struct hold_table));
}

static void entry_free(struct hold_entry *e) {
    mem_free(e->body);
    mem_free(e);
}

void hold_table_destroy(struct hold_table *t) {
    if (!t) return;
    for (uint32_t i = 0; i < t->n; i++)
        entry_free(t->entries[i]);
    mem_free(t);
}

static enum status check_share(uint32_t n, size_t n_bytes, size_t body_len, uint32_t max,
                               size_t max_bytes, const char *whose, struct error *err) {
    if (n < max && n_bytes + body_len <= max_bytes) return ST_OK;
    return error_set_param(err, ST_BUSY, "hold_quota",
                           "%s %u holds with bodies of %zu bytes, and a body of %zu bytes more "
                           "exceeds %u holds or %zu bytes: release a hold",
                           whose, n, n_bytes, body_len, max, max_bytes);
}

enum status hold_table_check_room(const struct hold_table *t, uint64_t tenant, size_t body_len,
                                  struct error *err) {
    size_t n_bytes = 0;
    uint32_t n = 0;
    enum status st;

    for (uint32_t i = 0; i < t->n; i++) {
        if (t->entries[i]->tenant != tenant) continue;
        n++;
        n_bytes += t->entries[i]->body_len;
    }
    st = check_share(t->n, t->n_bytes, body_len, HOLD_TABLE_MAX, HOLD_TABLE_MAX_BYTES,
                     "this router has", err);
    if (st != ST_OK || tenant == 0) return st;
    return check_share(n, n_bytes, body_len, HOLD_TABLE_MAX / 2, HOLD_TABLE_MAX_BYTES / 2,
                       "this tenant has", err);
}

enum status hold_table_insert(struct hold_table *t, const struct hold_entry *like,
                              struct hold_entry **out) {
    struct hold_entry *e = mem_zalloc(sizeof(*e));

    assert(t->n < HOLD_TABLE_MAX && !hold_table_find(t, like->id));
    *e = *like;
    e->body = mem_try(MAX(like->body_len, 1u));
    if (!e->body) {
        mem_free(e);
        return ST_NOMEM;
    }
    memcpy(e->body, like->body, like->body_len);
    t->entries[t->n++] = e;
    t->n_bytes += e->body_len;
    *out = e;
    return ST_OK;
}

void hold_table_erase(struct hold_table *t, struct hold_entry *e) {
    for (uint32_t i = 0; i < t->n; i++) {
        if (t->entries[i] != e) continue;
        t->n_bytes -= e->body_len;
        t->entries[i] = t->entries[--t->n];
        entry_free(e);
        return;
    }
    assert(!"an entry of the table");
}

struct hold_entry *hold_table_find(struct hold_table *t, uint64_t id) {
    for (uint32_t i = 0; i < t->n; i++)
        if (t->entries[i]->id == id) return t->entries[i];
    return NULL;
}

static bool has_copy(const struct hold_entry *e, const struct hold_copy *copy) {
    for (uint32_t i = 0; i < e->n_copies; i++) {
        const struct hold_copy *c = &e->copies[i];

        if (c->worker == copy->worker && c->incarnation == copy->incarnation &&
            strcmp(c->id, copy->id) == 0)
            return true;
    }
    return false;
}

struct hold_entry *hold_table_find_copy(struct hold_table *t, uint64_t owner,
                                        const struct hold_copy *copy) {
    for (uint32_t i = 0; i < t->n; i++)
        if (t->entries[i]->owner == owner && has_copy(t->entries[i], copy)) return t->entries[i];
    return NULL;
}

struct hold_entry *hold_table_find_body(struct hold_table *t, uint64_t owner, struct str body) {
    for (uint32_t i = 0; i < t->n; i++) {
        const struct hold_entry *e = t->entries[i];

        if (e->owner == owner && str_eq((struct str){e->body, e->body_len}, body))
            return t->entries[i];
    }
    return NULL;
}

uint32_t hold_table_n(const struct hold_table *t) {
    return t->n;
}

struct hold_entry *hold_table_at(struct hold_table *t, uint32_t i) {
    assert(i < t->n);
    return t->entries[i];
}

void hold_entry_add(struct hold_entry *e, const struct hold_copy *copy) {
    for (uint32_t i = 0; i < e->n_copies; i++) {
        if (e->copies[i].worker != copy->worker) continue;
        e->copies[i] = *copy;
        return;
    }
    if (e->n_copies < HOLD_COPIES_MAX) e->copies[e->n_copies++] = *copy;
}

void hold_entry_drop(struct hold_entry *e, uint32_t i) {
    assert(i < e->n_copies);
    e->copies[i] = e->copies[--e->n_copies];
}

size_t hold_table_bytes(const struct hold_table *t) {
    return t->n_bytes;
}

void hold_table_check(const struct hold_table *t) {
    size_t n_bytes = 0;

    for (uint32_t i = 0; i < t->n; i++) {
        const struct hold_entry *e = t->entries[i];

        n_bytes += e->body_len;
        assert(e->n_copies <= HOLD_COPIES_MAX && e->n_wanted <= HOLD_COPIES_MAX);
        for (uint32_t k = 0; k < i; k++)
            assert(t->entries[k]->id != e->id);
        for (uint32_t k = 1; k < e->n_copies; k++)
            for (uint32_t j = 0; j < k; j++)
                assert(e->copies[k].worker != e->copies[j].worker);
    }
    assert(n_bytes == t->n_bytes && t->n <= HOLD_TABLE_MAX && n_bytes <= HOLD_TABLE_MAX_BYTES);
    (void)n_bytes;
}
