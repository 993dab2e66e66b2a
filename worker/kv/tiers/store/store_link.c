/* worker/kv/tiers/store/store_link.c - a connection to a server: requests that wait, those that
 * were sent, and their order.
 *
 *      DOWN ──request──▶ LOOKING_UP ──▶ CONNECTING ──▶ GREETING ──▶ UP ──ended──▶ DOWN
 *                             └──────────────┴─────failed──┴───▶ DOWN, all requests TIER_IO
 *
 * What is sent at a time is limited by the window (GET, SET) and LINK_ASKED_MAX (EXISTS). A SET is
 * built in `out`, where unit_seal puts the unit, and lent to the connection: the next one waits
 * until it is with the kernel. Between two jobs a link is idle; a server that closes it then is no
 * failure.
 *
 * `silence` runs while something is due: a name, a connection, a reply. */
#include <stdio.h>
#include <string.h>
#include <sys/un.h>

#include "common/base/clock.h"
#include "common/base/mem.h"
#include "worker/kv/tiers/store/store_internal.h"

#define OUT_HEAD_BYTES 128u /* of a SET, before the unit, which begins at a cache line */
#define OUT_TAIL_BYTES 64u
#define PENDING_MAX    65536u      /* unsent bytes of GETs: the server does not read */
#define OTHER_BULK_MAX (64u << 10) /* of replies that are no units */
#define SET_WINDOW     4u          /* large SETs collapse: fresh pages, growing query buffers */

static struct tier_store *store_of(const struct store_link *l) {
    return l->node->store;
}

static void link_up(struct store_link *l);
static void pump(void *arg);

/* --- its own commands ------------------------------------------------------------------------- */

static bool has_room(const struct store_link *l) {
    return !list_is_empty(&l->free_controls);
}

/* Writes a command of strings up to NULL, and expects its reply. */
static void send_control(struct store_link *l, enum store_command command,
                         const char *const *words) {
    struct store_request *r;
    uint32_t n = 0;
    struct buf out;

    if (!has_room(l)) return;
    r = LIST_ENTRY(list_pop_front(&l->free_controls), struct store_request, link);
    *r = (struct store_request){.command = command};
    while (words[n])
        n++;
    buf_init(&out, 0);
    resp_put_command(&out, n);
    for (uint32_t i = 0; i < n; i++)
        resp_put_argument(&out, str_of(words[i]));
    conn_write(&l->conn, buf_ptr(&out), buf_len(&out));
    buf_fini(&out);
    l->n_greetings += l->state == LINK_GREETING;
    list_push_back(&l->sent, &r->link);
}

void store_link_control(struct store_link *l, enum store_command command) {
    static const char *const slots[] = {"CLUSTER", "SLOTS", NULL};
    static const char *const memory[] = {"INFO", "memory", NULL};
    static const char *const asking[] = {"ASKING", NULL};

    if (l->state == LINK_DOWN) {
        link_up(l); /* the greeting asks for all */
    } else if (l->state == LINK_GREETING || l->state == LINK_UP) {
        send_control(l, command,
                     command == COMMAND_SLOTS    ? slots
                     : command == COMMAND_MEMORY ? memory
                                                 : asking);
        loop_defer(store_of(l)->loop, &l->pump);
    }
}

static void greet(struct store_link *l) {
    const struct store_url *url = &l->node->url;
    const char *const auth[] = {"AUTH", url->user[0] ? url->user : url->password,
                                url->user[0] ? url->password : NULL, NULL};
    struct tier_store *s = store_of(l);
    char database[16];
    const char *const select[] = {"SELECT", database, NULL};

    l->state = LINK_GREETING;
    snprintf(database, sizeof(database), "%u", url->database);
    if (url->user[0] || url->password[0]) send_control(l, COMMAND_GREETING, auth);
    if (url->database) send_control(l, COMMAND_GREETING, select);
    if (s->topology == TOPOLOGY_UNKNOWN) store_link_control(l, COMMAND_SLOTS);
    if (s->config.max_bytes && l->op == TIER_STORE) store_link_control(l, COMMAND_MEMORY);
    if (l->n_greetings == 0) l->state = LINK_UP;
    loop_defer(s->loop, &l->pump);
}

/* --- the end ---------------------------------------------------------------------------------- */

static void end_request(struct store_link *l, struct store_request *r, enum tier_result result) {
    if (r->command <= COMMAND_EXISTS) {
        store_request_failed(store_of(l), r, result);
    } else {
        list_push_back(&l->free_controls, &r->link);
    }
}

static void end_requests(struct store_link *l, struct list *requests, enum tier_result result) {
    struct list ended, *link;

    list_init(&ended);
    list_splice_back(&ended, requests);
    while ((link = list_pop_front(&ended)) != NULL)
        end_request(l, LIST_ENTRY(link, struct store_request, link), result);
}

static void close_link(struct store_link *l) {
    conn_fini(&l->conn);
    loop_timer_stop(&l->silence);
    l->state = LINK_DOWN;
    l->n_data = l->n_asked = l->n_greetings = 0;
    l->resp = (struct resp){.max_bulk_bytes = MAX(store_of(l)->unit_bytes, OTHER_BULK_MAX)};
}

void store_link_lost(struct store_link *l, const char *why) {
    struct tier_store *s = store_of(l);

    close_link(l);
    if (!s->is_closing) {
        store_count(s, &s->stats.n_lost);
        store_node_failed(l->node, why);
    }
    end_requests(l, &l->sent, TIER_IO);
    end_requests(l, &l->waiting, s->is_closing ? TIER_SKIPPED : TIER_IO);
    end_requests(l, &l->asking, TIER_IO);
}

static void on_silence(void *arg) {
    struct store_link *l = arg;

    if (l->state == LINK_UP && l->conn.sent_bytes != l->seen_bytes) {
        l->seen_bytes = l->conn.sent_bytes;
        loop_timer_start(&l->silence, (uint64_t)store_of(l)->config.silence_ms * 1000u);
        return;
    }
    store_link_lost(l, l->state == LINK_LOOKING_UP ? "its name was not found in time"
                                                   : "it has not answered in time");
}

/* --- sending ---------------------------------------------------------------------------------- */

static uint32_t window(const struct store_link *l) {
    uint32_t most = l->op == TIER_LOAD ? LINK_SENT_MAX : SET_WINDOW;

    return MAX(MIN(most, (uint32_t)(STORE_WINDOW_BYTES / store_of(l)->unit_bytes)), 1u);
}

/* GET and EXISTS. */
static void send_name(struct store_link *l, const struct store_request *r) {
    char name[STORE_NAME_BYTES + 1], command[128];
    int n;

    store_name(&r->key, name);
    n = r->command == COMMAND_GET
            ? snprintf(command, sizeof(command), "*2\r\n$3\r\nGET\r\n$%u\r\n%s\r\n",
                       STORE_NAME_BYTES, name)
            : snprintf(command, sizeof(command), "*2\r\n$6\r\nEXISTS\r\n$%u\r\n%s\r\n",
                       STORE_NAME_BYTES, name);
    conn_write(&l->conn, command, (size_t)n);
}

/* SET name unit PX ttl NX; a value that is no unit is overwritten. */
static enum status send_set(struct store_link *l, const struct store_request *r) {
    const struct tier_unit *unit = &r->work->job->units[r->unit];
    struct tier_store *s = store_of(l);
    bool is_new = !store_is_spoiled(s, &r->key);
    char name[STORE_NAME_BYTES + 1], head[OUT_HEAD_BYTES], ttl_ms[24];
    char *at = l->out + OUT_HEAD_BYTES, *end;
    struct iovec piece;
    size_t n;

    if (unit_seal(s->codec, &unit->id, unit->payload, at) != ST_OK) return ST_INVALID;
    store_name(&r->key, name);
    n = (size_t)snprintf(head, sizeof(head), "*%d\r\n$3\r\nSET\r\n$%u\r\n%s\r\n$%zu\r\n",
                         is_new ? 6 : 5, STORE_NAME_BYTES, name, s->unit_bytes);
    memcpy(at - n, head, n);
    end = at + s->unit_bytes;
    snprintf(ttl_ms, sizeof(ttl_ms), "%llu", (unsigned long long)s->config.ttl_s * 1000u);
    end += snprintf(end, OUT_TAIL_BYTES, "\r\n$2\r\nPX\r\n$%zu\r\n%s\r\n%s", strlen(ttl_ms), ttl_ms,
                    is_new ? "$2\r\nNX\r\n" : "");
    piece = (struct iovec){at - n, (size_t)(end - at) + n};
    conn_sendv_lent(&l->conn, &piece, 1);
    return ST_OK;
}

static enum status make_out(struct store_link *l) {
    if (l->op == TIER_STORE && !l->out) {
        l->out = mem_try_aligned(64, OUT_HEAD_BYTES + ALIGN_UP(store_of(l)->unit_bytes, 64) +
                                         OUT_TAIL_BYTES);
        if (!l->out) return ST_NOMEM;
    }
    return ST_OK;
}

static void send_unit(struct store_link *l, struct store_request *r) {
    struct tier_store *s = store_of(l);
    struct tier_job *job = r->work->job;

    if (r->is_asking) store_link_control(l, COMMAND_ASKING);
    if (!job->began_us) job->began_us = clock_now_us();
    if (l->op == TIER_LOAD) {
        send_name(l, r);
    } else if (make_out(l) != ST_OK || send_set(l, r) != ST_OK) {
        store_unit_done(s, r, TIER_IO, UNIT_FINE);
        return;
    }
    list_push_back(&l->sent, &r->link);
    l->n_data++;
}

static bool may_send(const struct store_link *l) {
    return l->n_data < window(l) && conn_is_open(&l->conn) && has_room(l) &&
           conn_pending(&l->conn) <= (l->op == TIER_LOAD ? PENDING_MAX : 0);
}

static void pump(void *arg) {
    struct store_link *l = arg;
    struct tier_store *s = store_of(l);
    struct list *link;

    if (l->state == LINK_DOWN && (!list_is_empty(&l->waiting) || !list_is_empty(&l->asking)))
        link_up(l);
    if (l->state == LINK_UP) {
        while (!list_is_empty(&l->waiting) && may_send(l)) {
            struct store_request *r =
                LIST_ENTRY(list_pop_front(&l->waiting), struct store_request, link);
            enum tier_result result;

            if (store_is_unwanted(s, r, &result)) {
                store_unit_done(s, r, result, UNIT_FINE);
            } else {
                send_unit(l, r);
            }
        }
        while (l->n_asked < LINK_ASKED_MAX && conn_pending(&l->conn) <= PENDING_MAX &&
               (link = list_pop_front(&l->asking)) != NULL) {
            send_name(l, LIST_ENTRY(link, struct store_request, link));
            list_push_back(&l->sent, link);
            l->n_asked++;
        }
    }
    if (!list_is_empty(&l->sent) && !loop_timer_is_running(&l->silence))
        loop_timer_start(&l->silence, (uint64_t)s->config.silence_ms * 1000u);
}

void store_link_add(struct store_link *l, struct store_request *r) {
    list_push_back(r->command == COMMAND_EXISTS ? &l->asking : &l->waiting, &r->link);
    loop_defer(store_of(l)->loop, &l->pump);
}

/* --- the connection --------------------------------------------------------------------------- */

static void on_connected(struct conn *c, void *owner) {
    struct store_link *l = owner;
    struct tier_store *s = store_of(l);

    loop_timer_stop(&l->silence);
    if (l->op == TIER_LOAD) conn_receive_much(c);
    store_count(s, &s->stats.n_connections);
    greet(l);
}

static void on_flushed(struct conn *c, void *owner) {
    struct store_link *l = owner;

    (void)c;
    loop_defer(store_of(l)->loop, &l->pump);
}

/* An idle server's end is none of ours: what waits goes over another connection. */
static void on_closed(struct conn *c, enum conn_end end, void *owner) {
    struct store_link *l = owner;
    const char *why = end == CONN_TLS ? tls_failure(c) : conn_end_name(end);
    char text[128];

    if (l->state == LINK_CONNECTING && l->node->url.is_tls && end != CONN_TLS &&
        end != CONN_REFUSED) { /* a server without TLS awaits the end of a line */
        snprintf(text, sizeof(text),
                 "%s before TLS was up: if the server has no TLS on this port, use redis://", why);
        why = text;
    }
    if (l->state == LINK_UP && list_is_empty(&l->sent)) {
        close_link(l);
        loop_defer(store_of(l)->loop, &l->pump);
    } else {
        store_link_lost(l, why);
    }
}

/* Takes what has come, item by item. False: the link is lost. */
static bool take_items(struct store_link *l, struct str in, size_t *n_taken, size_t *wanted) {
    struct error err = {0};
    struct resp_item item;

    for (*n_taken = 0;; *n_taken += item.n_taken) {
        struct str rest = {in.ptr + *n_taken, in.len - *n_taken};

        if (resp_read(&l->resp, rest, &item, &err) != ST_OK) {
            store_reply_refused(l, err.status);
            store_link_lost(l, err.message);
            return false;
        }
        if (item.kind == RESP_NONE) break;
        if (!store_take_item(l, &item)) return false;
    }
    *wanted = item.wanted;
    return true;
}

static void on_data(struct conn *c, void *owner) {
    struct store_link *l = owner;
    struct tier_store *s = store_of(l);
    struct conn_bytes in = conn_input(c);
    size_t n_taken, wanted;

    if (!take_items(l, (struct str){in.ptr, in.len}, &n_taken, &wanted)) return;
    conn_consume(c, n_taken);
    conn_want_input(c, wanted > IOBUF_LARGE_BYTES ? wanted : 0);
    loop_timer_stop(&l->silence);
    if (l->state == LINK_GREETING && l->n_greetings == 0) l->state = LINK_UP;
    if (!list_is_empty(&l->sent))
        loop_timer_start(&l->silence, (uint64_t)s->config.silence_ms * 1000u);
    loop_defer(s->loop, &l->pump);
}

static const struct conn_events events = {
    .on_data = on_data,
    .on_connected = on_connected,
    .on_flushed = on_flushed,
    .on_closed = on_closed,
};

static void connect_to(struct store_link *l, const struct sockaddr *addr, socklen_t addr_len) {
    struct tier_store *s = store_of(l);
    struct error err = {0};
    uint64_t timeout_us = (uint64_t)s->config.connect_ms * 1000u;

    l->state = LINK_CONNECTING;
    l->seen_bytes = 0;
    loop_timer_stop(&l->silence); /* the connection has a limit of its own */
    if (conn_connect(&l->conn, s->loop, addr, addr_len, timeout_us, &events, l, &err) != ST_OK) {
        store_link_lost(l, err.message);
    } else if (l->node->url.is_tls) {
        tls_connect(&l->conn, s->tls, l->node->url.at.host, &l->ticket);
    }
}

/* One that comes after its time is as good as the next. */
static void on_found(enum status st, const struct address *found, const struct error *err,
                     void *arg) {
    struct store_link *l = arg;

    if (l->state != LINK_LOOKING_UP) return;
    if (st == ST_OK) {
        connect_to(l, (const struct sockaddr *)&found->addr, found->len);
    } else {
        store_link_lost(l, err->message);
    }
}

static void connect_to_path(struct store_link *l) {
    struct sockaddr_un addr = {.sun_family = AF_UNIX};

    memcpy(addr.sun_path, l->node->url.path, sizeof(addr.sun_path));
    connect_to(l, (const struct sockaddr *)&addr, sizeof(addr));
}

static void link_up(struct store_link *l) {
    const struct address_url *at = &l->node->url.at;
    struct tier_store *s = store_of(l);
    struct error err = {0};
    struct address address;
    enum status st;

    if (l->node->url.path[0]) {
        connect_to_path(l);
        return;
    }
    l->state = LINK_LOOKING_UP;
    st = address_resolve_number(at, NULL, &address, &err);
    if (st == ST_AGAIN) {
        st = resolver_start(s->resolver, at, NULL, on_found, l, &err);
        if (st == ST_OK) {
            loop_timer_start(&l->silence, (uint64_t)s->config.silence_ms * 1000u);
            return;
        }
    }
    on_found(st, &address, &err, l);
}

void store_link_init(struct store_link *l, struct store_node *n, enum tier_op op) {
    l->node = n;
    l->op = op;
    list_init(&l->waiting);
    list_init(&l->asking);
    list_init(&l->sent);
    list_init(&l->free_controls);
    for (int i = 0; i < LINK_CONTROLS; i++)
        list_push_back(&l->free_controls, &l->controls[i].link);
    loop_timer_init(&l->silence, n->store->loop, on_silence, l);
    loop_task_init(&l->pump, pump, l);
    close_link(l);
}

void store_link_fini(struct store_link *l) {
    loop_defer_cancel(&l->pump);
    conn_fini(&l->conn);
    loop_timer_fini(&l->silence);
    tls_ticket_forget(&l->ticket);
    mem_free(l->out);
}
