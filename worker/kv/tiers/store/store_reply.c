/* worker/kv/tiers/store/store_reply.c - what a server answers, and what follows from it.
 *
 *      value    verified into the host block: TIER_OK or TIER_REJECTED
 *      nil      of a GET: TIER_ABSENT; of a SET: the key was there
 *      error    another node; or the server is not fit, a failure of its node; or it is full
 *
 * Anything else is no reply to the command, and ends the connection. */
#include <stdlib.h>
#include <string.h>

#include "worker/kv/tiers/store/store_internal.h"

/* --- errors ----------------------------------------------------------------------------------- */

static enum store_error kind_of(struct str text) {
    static const struct {
        const char *word;
        enum store_error error;
    } rows[] = {
        {"LOADING", STORE_LOADING},
        {"BUSY", STORE_LOADING},
        {"TRYAGAIN", STORE_LOADING},
        {"MASTERDOWN", STORE_LOADING},
        {"OOM", STORE_OOM},
        {"READONLY", STORE_READONLY},
        {"NOAUTH", STORE_NOAUTH},
        {"WRONGPASS", STORE_NOAUTH},
        {"NOPERM", STORE_NOAUTH},
        {"WRONGTYPE", STORE_WRONGTYPE},
        {"MOVED", STORE_MOVED},
        {"ASK", STORE_ASK},
        {"CLUSTERDOWN", STORE_CLUSTERDOWN},
    };
    struct str word = resp_error_kind(text);

    for (size_t i = 0; i < ARRAY_LEN(rows); i++)
        if (str_eq(word, str_of(rows[i].word))) return rows[i].error;
    return STORE_OTHER;
}

/* For log lines: the beginning of what the server wrote. */
static void copy_text(char to[128], struct str text) {
    size_t n = MIN(text.len, (size_t)127);

    memcpy(to, text.ptr, n);
    to[n] = '\0';
}

static void unfit(struct store_link *l, struct store_request *r, struct str text) {
    char why[128];

    copy_text(why, text);
    store_node_failed(l->node, why);
    store_request_failed(l->node->store, r, TIER_IO);
}

static void no_room(struct store_link *l, struct store_request *r) {
    struct tier_store *s = l->node->store;

    store_node_is_full(l->node);
    store_set_writable(s, false);
    store_request_failed(s, r, TIER_BUSY);
}

/* To a GET, SET or EXISTS. */
static void take_error(struct store_link *l, struct store_request *r, struct str text) {
    struct tier_store *s = l->node->store;
    enum store_error error = kind_of(text);

    store_count(s, &s->stats.n_errors[error]);
    switch (error) {
    case STORE_MOVED:
    case STORE_ASK:
        if (!store_redirect(l, r, text, error == STORE_ASK)) unfit(l, r, text);
        break;
    case STORE_READONLY: /* it was a master once */
        if (s->topology == TOPOLOGY_CLUSTER) store_slots_refresh(l);
        no_room(l, r);
        break;
    case STORE_OOM: no_room(l, r); break;
    case STORE_NOAUTH: /* it has forgotten the user: the next greeting names one */
        unfit(l, r, text);
        conn_fail(&l->conn, CONN_RESET);
        break;
    case STORE_WRONGTYPE:
        store_node_worked(l->node);
        store_spoiled(s, r);
        break;
    default: unfit(l, r, text); break;
    }
}

/* --- replies ---------------------------------------------------------------------------------- */

static void take_value(struct store_link *l, struct store_request *r, struct str value) {
    struct tier_store *s = l->node->store;
    struct tier_unit *unit = &r->work->job->units[r->unit];
    enum tier_result result;
    enum unit_cause cause;

    store_node_worked(l->node);
    if (store_is_unwanted(s, r, &result) && result == TIER_SKIPPED) {
        store_unit_done(s, r, TIER_SKIPPED, UNIT_FINE);
        return;
    }
    cause = unit_open(s->codec, &unit->id, value.ptr, value.len, unit->payload);
    store_unit_done(s, r, cause == UNIT_FINE ? TIER_OK : TIER_REJECTED, cause);
}

static void take_set(struct store_link *l, struct store_request *r, bool is_existing) {
    struct tier_store *s = l->node->store;

    store_node_worked(l->node);
    store_set_writable(s, true);
    if (is_existing) store_count(s, &s->stats.n_existing);
    if (!is_existing && s->config.max_bytes)
        store_set_used(s, l->node, l->node->used_bytes + s->unit_bytes);
    store_unit_done(s, r, TIER_OK, UNIT_FINE);
}

/* "used_memory:1044848" of INFO memory. */
static void take_memory(struct store_link *l, struct str text) {
    struct str name = STR("\r\nused_memory:"), digits;
    ptrdiff_t at = str_find(text, name);
    uint64_t used_bytes;

    if (at < 0) return;
    digits = (struct str){text.ptr + at + name.len, 0};
    while (digits.ptr + digits.len < text.ptr + text.len && digits.ptr[digits.len] >= '0' &&
           digits.ptr[digits.len] <= '9')
        digits.len++;
    if (str_to_u64(digits, &used_bytes) == ST_OK)
        store_set_used(l->node->store, l->node, used_bytes);
}

/* A greeting is answered with OK, or the connection is of no use. */
static bool take_greeting(struct store_link *l, const struct resp_item *item) {
    struct tier_store *s = l->node->store;
    char why[128];

    if (item->kind == RESP_STATUS) return true;
    copy_text(why, item->kind == RESP_ERROR ? item->text : STR("no answer to AUTH or SELECT"));
    if (item->kind == RESP_ERROR) store_count(s, &s->stats.n_errors[kind_of(item->text)]);
    store_link_lost(l, why);
    return false;
}

/* A whole reply of one item. False: it is none to that command. */
static bool take_reply(struct store_link *l, struct store_request *r,
                       const struct resp_item *item) {
    struct tier_store *s = l->node->store;

    if (item->kind == RESP_ERROR) {
        take_error(l, r, item->text);
    } else if (r->command == COMMAND_GET && item->kind == RESP_BULK) {
        take_value(l, r, item->text);
    } else if (r->command == COMMAND_GET && item->kind == RESP_NIL) {
        store_node_worked(l->node);
        store_unit_done(s, r, TIER_ABSENT, UNIT_FINE);
    } else if (r->command == COMMAND_SET && (item->kind == RESP_STATUS || item->kind == RESP_NIL)) {
        take_set(l, r, item->kind == RESP_NIL);
    } else if (r->command == COMMAND_EXISTS && item->kind == RESP_INTEGER) {
        store_node_worked(l->node);
        store_ask_done(s, r, item->number > 0 ? BELIEF_PRESENT : BELIEF_ABSENT);
    } else {
        return false;
    }
    return true;
}

static bool take_control(struct store_link *l, struct store_request *r,
                         const struct resp_item *item) {
    enum store_command command = r->command;

    if (command == COMMAND_SLOTS) store_slots_item(l, item);
    if (!item->ends_reply) return true;
    list_remove(&r->link);
    list_push_back(&l->free_controls, &r->link);
    l->n_greetings -= l->state == LINK_GREETING;
    if (command == COMMAND_MEMORY && item->kind == RESP_BULK) take_memory(l, item->text);
    return command != COMMAND_GREETING || take_greeting(l, item);
}

bool store_take_item(struct store_link *l, const struct resp_item *item) {
    struct list *first = list_first(&l->sent);
    struct store_request *r;

    if (!first) {
        store_link_lost(l, "a reply that nothing was sent for");
        return false;
    }
    r = LIST_ENTRY(first, struct store_request, link);
    if (r->command > COMMAND_EXISTS) return take_control(l, r, item);
    list_remove(&r->link);
    --*(r->command == COMMAND_EXISTS ? &l->n_asked : &l->n_data);
    if (take_reply(l, r, item)) return true;
    store_request_failed(l->node->store, r, TIER_IO);
    store_link_lost(l, "a reply that is none to the command sent");
    return false;
}

void store_reply_refused(struct store_link *l, enum status st) {
    struct list *first = list_first(&l->sent);
    struct store_request *r = first ? LIST_ENTRY(first, struct store_request, link) : NULL;

    if (!r || r->command != COMMAND_GET || st != ST_TOO_LARGE) return;
    list_remove(first);
    l->n_data--;
    store_unit_done(l->node->store, r, TIER_REJECTED, UNIT_SIZE);
}
