/* router/holds/hold_table.h - which workers hold which prefix, whose it is, and how to hold it
 * elsewhere.
 *
 *      entry    id, owner, model, body ── copies ──▶ worker 3-1, its id "hold-8f.."
 *                                                    worker 5-0, its id "hold-1c.."
 *
 * An entry lives until it is released, until it was not used for its time, or until its workers
 * have ended all of its copies. Bounded by entries and by bytes of bodies; a tenant has at
 * most half of both. Pure: time and ids are arguments. Thread: the caller's. */
#ifndef ROUTER_HOLDS_HOLD_TABLE_H
#define ROUTER_HOLDS_HOLD_TABLE_H

#include "common/base/base.h"
#include "common/base/status.h"
#include "common/protocol/wire.h"
#include "router/access/keys.h"

#define HOLD_TABLE_MAX       1024u
#define HOLD_TABLE_MAX_BYTES (32u << 20)
#define HOLD_COPIES_MAX      8u
#define HOLD_ID_MAX          24 /* of a worker: "hold-" and 16 digits */

struct hold_copy {
    uint32_t worker, incarnation;
    char generation[WIRE_GENERATION_MAX]; /* of that worker: another one holds nothing */
    char id[HOLD_ID_MAX];                 /* the worker's */
    uint64_t tokens, bytes, hits, saved_tokens;
    double saved_s, byte_s; /* seconds of prefill; bytes held times seconds */
    uint64_t made_us;       /* when the worker's answer came */
    uint32_t n_missed;      /* looks in a row at which the worker was out of service */
};

struct hold_entry {
    uint64_t id, owner;
    uint64_t tenant; /* 0: no tenant's */
    char tenant_name[KEY_TENANT_MAX + 1];
    char holder[KEY_NAME_MAX];   /* for people */
    char model[WIRE_MODEL_MAX];  /* as the request named it; "": it did not */
    char served[WIRE_MODEL_MAX]; /* as its worker named it */
    char *body;                  /* (body_len) owned; its ttl is the hold's */
    size_t body_len;
    uint32_t ttl_s;
    uint64_t expires_us;
    uint32_t n_wanted, n_copies;
    struct hold_copy copies[HOLD_COPIES_MAX];
    bool is_repeating;  /* a copy is on its way */
    uint64_t repeat_us; /* none before: the last one failed */
};

struct hold_table;

struct hold_table *hold_table_create(void);
void hold_table_destroy(struct hold_table *t); /* NULL is fine */

/* Is there room for one more of that tenant with a body of that length? ST_BUSY with the
 * figures. */
MUST_USE enum status hold_table_check_room(const struct hold_table *t, uint64_t tenant,
                                           size_t body_len, struct error *err);

/* Copies `like` and its body; after hold_table_check_room. ST_NOMEM. */
MUST_USE enum status hold_table_insert(struct hold_table *t, const struct hold_entry *like,
                                       struct hold_entry **out);
void hold_table_erase(struct hold_table *t, struct hold_entry *e);

struct hold_entry *hold_table_find(struct hold_table *t, uint64_t id);
/* The owner's entry that has this copy, or NULL. */
struct hold_entry *hold_table_find_copy(struct hold_table *t, uint64_t owner,
                                        const struct hold_copy *copy);
/* The owner's entry that was made with these bytes, or NULL. */
struct hold_entry *hold_table_find_body(struct hold_table *t, uint64_t owner, struct str body);

/* Entries 0 to n - 1; erasing one puts the last in its place. */
uint32_t hold_table_n(const struct hold_table *t);
struct hold_entry *hold_table_at(struct hold_table *t, uint32_t i);

/* A copy of that worker is replaced; with HOLD_COPIES_MAX others, nothing. */
void hold_entry_add(struct hold_entry *e, const struct hold_copy *copy);
void hold_entry_drop(struct hold_entry *e, uint32_t i);

size_t hold_table_bytes(const struct hold_table *t);
void hold_table_check(const struct hold_table *t); /* asserts the invariants */

#endif
