/* worker/kv/tiers/store/store_node.c - servers: which one has a key, whether it may be asked, how
 * full it is.
 *
 *      key ── group ── CRC-16 ── slot ── slots[] ── node
 *
 * A plain server is a cluster of one, several URLs are one whose slots are dealt by rendezvous
 * hashing, and a real cluster sends its own. So one table leads to the node whatever the store is.
 *
 * A node's breaker: closed, with fewer than FAILURES_MAX failures in a row; open, while `closed`
 * runs; then half open, and `probe` is the one job that is let through. Nodes are never removed:
 * find reads is_away of the ones that slots name. */
#include <stdio.h>
#include <string.h>

#include "common/base/hash.h"
#include "common/base/mem.h"
#include "common/telemetry/log.h"
#include "worker/kv/tiers/store/store_internal.h"

#define FAILURES_MAX     3
#define BACKOFF_FIRST_US 250000u
#define BACKOFF_MAX_US   30000000u
#define MEMORY_US        1000000u /* between two looks at a server's memory */
#define SLOTS_US         1000000u /* between two questions for the slots */
#define MOVES_MAX        3        /* redirections of one request */

/* --- keys ------------------------------------------------------------------------------------- */

static char *put_hex(char *to, const uint8_t *bytes, size_t n) {
    static const char digits[] = "0123456789abcdef";

    for (size_t i = 0; i < n; i++) {
        *to++ = digits[bytes[i] >> 4];
        *to++ = digits[bytes[i] & 15];
    }
    return to;
}

void store_name(const struct unit_key *key, char out[STORE_NAME_BYTES + 1]) {
    char *to = stpcpy(out, "ic1:{");

    to = put_hex(to, key->bytes + UNIT_GROUP_AT, UNIT_GROUP_BYTES);
    to = stpcpy(to, "}:");
    *put_hex(to, key->bytes, UNIT_KEY_BYTES) = '\0';
}

/* CRC-16 of XMODEM over what is between the braces, as a cluster takes it. */
uint32_t store_slot(const struct unit_key *key) {
    char tag[UNIT_GROUP_BYTES * 2];
    uint32_t crc = 0;

    put_hex(tag, key->bytes + UNIT_GROUP_AT, UNIT_GROUP_BYTES);
    for (size_t i = 0; i < sizeof(tag); i++) {
        crc ^= (uint32_t)(uint8_t)tag[i] << 8;
        for (int bit = 0; bit < 8; bit++)
            crc = crc & 0x8000 ? crc << 1 ^ 0x1021 : crc << 1;
    }
    return (crc & 0xffff) % STORE_SLOTS;
}

/* --- nodes ------------------------------------------------------------------------------------ */

static void on_half_open(void *arg) {
    struct store_node *n = arg;

    atomic_store_explicit(&n->store->is_away[n->index], false, memory_order_relaxed);
}

struct store_node *store_node_get(struct tier_store *s, const struct store_url *url) {
    struct store_node *n;

    for (uint32_t i = 0; i < s->n_nodes; i++)
        if (strcmp(store_url_name(&s->nodes[i]->url), store_url_name(url)) == 0) return s->nodes[i];
    if (s->n_nodes == STORE_NODES_MAX) return NULL;
    n = mem_zalloc(sizeof(*n));
    n->store = s;
    n->index = s->n_nodes;
    n->url = *url;
    loop_timer_init(&n->closed, s->loop, on_half_open, n);
    store_link_init(&n->links[TIER_LOAD], n, TIER_LOAD);
    store_link_init(&n->links[TIER_STORE], n, TIER_STORE);
    s->nodes[s->n_nodes++] = n;
    store_count(s, &s->stats.n_nodes);
    return n;
}

void store_node_destroy(struct store_node *n) {
    store_link_fini(&n->links[TIER_LOAD]);
    store_link_fini(&n->links[TIER_STORE]);
    loop_timer_fini(&n->closed);
    mem_free(n);
}

void store_nodes_shard(struct tier_store *s) {
    for (uint32_t slot = 0; slot < STORE_SLOTS; slot++) {
        uint64_t best = 0;
        uint32_t chosen = 0;

        for (uint32_t i = 0; i < s->n_nodes; i++) {
            const char *name = store_url_name(&s->nodes[i]->url);
            uint64_t weight = hash_64(name, strlen(name), slot);

            if (i > 0 && weight <= best) continue;
            best = weight;
            chosen = i;
        }
        atomic_store_explicit(&s->slots[slot], (uint16_t)chosen, memory_order_relaxed);
    }
}

/* --- the breaker ------------------------------------------------------------------------------ */

/* Further failures of an open one are those of requests that were under way. */
void store_node_failed(struct store_node *n, const char *why) {
    struct tier_store *s = n->store;
    uint64_t pause_us;

    if (s->is_closing || loop_timer_is_running(&n->closed)) return;
    n->probe = NULL;
    if (++n->n_failures < FAILURES_MAX) return;
    if (n->n_failures == FAILURES_MAX)
        log_event(s->config.log, LOG_WARN, "kv_store_away",
                  log_z("server", store_url_name(&n->url)), log_z("why", why));
    pause_us = (uint64_t)BACKOFF_FIRST_US << MIN(n->n_failures - FAILURES_MAX, 10u);
    pause_us = MIN(pause_us, BACKOFF_MAX_US);
    loop_timer_start(&n->closed, pause_us - rng_below(&s->rng, pause_us / 4));
    atomic_store_explicit(&s->is_away[n->index], true, memory_order_relaxed);
}

void store_node_worked(struct store_node *n) {
    struct tier_store *s = n->store;

    if (n->n_failures == 0) return;
    if (n->n_failures >= FAILURES_MAX)
        log_event(s->config.log, LOG_INFO, "kv_store_back",
                  log_z("server", store_url_name(&n->url)));
    n->n_failures = 0;
    n->probe = NULL;
    loop_timer_stop(&n->closed);
    atomic_store_explicit(&s->is_away[n->index], false, memory_order_relaxed);
}

static bool admits(struct store_node *n, const void *who) {
    if (n->n_failures < FAILURES_MAX) return true;
    if (loop_timer_is_running(&n->closed)) return false;
    if (!n->probe) n->probe = who;
    return n->probe == who;
}

/* --- how full it is --------------------------------------------------------------------------- */

void store_node_is_full(struct store_node *n) {
    n->full_until_us = loop_now_us(n->store->loop) + STORE_FULL_US;
}

static bool is_full(struct store_node *n) {
    struct tier_store *s = n->store;
    uint64_t now_us = loop_now_us(s->loop), used_bytes = 0;

    if (now_us < n->full_until_us) return true;
    if (!s->config.max_bytes) return false;
    if (now_us - n->asked_us >= MEMORY_US) {
        n->asked_us = now_us;
        store_link_control(&n->links[TIER_STORE], COMMAND_MEMORY);
    }
    for (uint32_t i = 0; i < s->n_nodes; i++)
        used_bytes += s->nodes[i]->used_bytes;
    return used_bytes >= s->config.max_bytes;
}

/* --- the way to a node ------------------------------------------------------------------------ */

static void send_to(struct store_node *n, struct store_request *r) {
    struct tier_store *s = n->store;
    bool is_set = r->command == COMMAND_SET;

    if (!admits(n, r->work ? (const void *)r->work : s)) {
        store_request_failed(s, r, TIER_BUSY);
    } else if (is_set && is_full(n)) {
        store_count(s, &s->stats.n_full);
        store_set_writable(s, false);
        store_request_failed(s, r, TIER_BUSY);
    } else {
        store_link_add(&n->links[is_set ? TIER_STORE : TIER_LOAD], r);
    }
}

void store_route(struct tier_store *s, struct store_request *r) {
    uint32_t slot = store_slot(&r->key);

    send_to(s->nodes[atomic_load_explicit(&s->slots[slot], memory_order_relaxed)], r);
}

/* "MOVED 3999 127.0.0.1:6381"; no host is that of the node that answered. */
static struct store_node *read_target(struct store_node *from, struct str error, uint64_t *slot) {
    const char *end = error.ptr + error.len, *number, *place, *colon;
    struct store_url url;
    struct str host;
    uint64_t port;

    number = memchr(error.ptr, ' ', error.len);
    place = number ? memchr(number + 1, ' ', (size_t)(end - number - 1)) : NULL;
    colon = place ? memrchr(place, ':', (size_t)(end - place)) : NULL;
    if (!colon) return NULL;
    if (str_to_u64((struct str){number + 1, (size_t)(place - number - 1)}, slot) != ST_OK)
        return NULL;
    if (str_to_u64((struct str){colon + 1, (size_t)(end - colon - 1)}, &port) != ST_OK) return NULL;
    if (*slot >= STORE_SLOTS || port == 0 || port > 65535) return NULL;
    host = (struct str){place + 1, (size_t)(colon - place - 1)};
    if (host.len == 0) host = str_of(from->url.at.host);
    if (store_url_sibling(&from->url, host, (uint16_t)port, &url) != ST_OK) return NULL;
    return store_node_get(from->store, &url);
}

bool store_redirect(struct store_link *l, struct store_request *r, struct str error,
                    bool is_asking) {
    struct tier_store *s = l->node->store;
    struct store_node *to;
    uint64_t slot;

    to = r->n_moves < MOVES_MAX && !r->is_asking ? read_target(l->node, error, &slot) : NULL;
    if (!to) return false;
    if (!is_asking) {
        atomic_store_explicit(&s->slots[slot], (uint16_t)to->index, memory_order_relaxed);
        store_slots_refresh(l);
    }
    r->n_moves++;
    r->is_asking = is_asking;
    send_to(to, r);
    return true;
}

/* --- the slots of a cluster ------------------------------------------------------------------- */

void store_slots_refresh(struct store_link *l) {
    struct tier_store *s = l->node->store;
    uint64_t now_us = loop_now_us(s->loop);

    if (s->slots_us && now_us - s->slots_us < SLOTS_US) return;
    s->slots_us = now_us;
    store_link_control(l, COMMAND_SLOTS);
}

/* [first, last, [host, port, ...], replicas ...]: the range that was read is `port`'s. */
static void take_range(struct store_link *l, int64_t port) {
    const struct slots_reader *range = &l->slots;
    struct tier_store *s = l->node->store;
    struct str host = str_of(range->host[0] ? range->host : l->node->url.at.host);
    struct store_node *n;
    struct store_url url;

    if (range->first < 0 || range->last >= STORE_SLOTS || port < 1 || port > 65535) return;
    if (store_url_sibling(&l->node->url, host, (uint16_t)port, &url) != ST_OK) return;
    n = store_node_get(s, &url);
    for (int64_t i = range->first; n && i <= range->last; i++)
        atomic_store_explicit(&s->slots[i], (uint16_t)n->index, memory_order_relaxed);
    s->topology = TOPOLOGY_CLUSTER;
}

void store_slots_item(struct store_link *l, const struct resp_item *item) {
    struct slots_reader *range = &l->slots;
    struct tier_store *s = l->node->store;

    if (item->depth == 0 && item->kind != RESP_ARRAY && s->topology == TOPOLOGY_UNKNOWN)
        s->topology = TOPOLOGY_PLAIN;
    if (item->depth == 2) {
        range->place = item->index;
        if (item->index == 0) range->first = item->kind == RESP_INTEGER ? item->number : -1;
        if (item->index == 1) range->last = item->kind == RESP_INTEGER ? item->number : STORE_SLOTS;
    }
    if (item->depth != 3 || range->place != 2) return;
    if (item->index == 0) {
        size_t n = item->kind == RESP_BULK ? MIN(item->text.len, sizeof(range->host) - 1) : 0;

        if (n) memcpy(range->host, item->text.ptr, n);
        range->host[n] = '\0';
    } else if (item->index == 1 && item->kind == RESP_INTEGER) {
        take_range(l, item->number);
    }
}
