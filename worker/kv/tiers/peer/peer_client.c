/* worker/kv/tiers/peer/peer_client.c - the source's end of a connection: who asks, what is asked
 * for, and the units that are sent.
 *
 * One unit is on its way at a time. It is sealed into `out`, lent to the connection from there part
 * by part, and the next one waits until the kernel has all of it. A plain payload is not copied: it
 * is lent from its host block, which is pinned longer. The streams are served in the
 * order in which they came, for blocks are used from the front; one without credit is passed
 * over. */
#include <string.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/hash.h"
#include "common/base/mem.h"
#include "worker/kv/tiers/peer/peer_server_internal.h"

#define CLIENT_WANTS 32u        /* at a time */
#define PENDING_MAX  (1u << 20) /* unsent bytes beside a unit: it does not read */
#define STUCK_LOOKS  1u         /* the first may come before the bytes of its turn are sent */
#define IDLE_LOOKS   120u
#define INPUT_BYTES  4096u /* whole frames of a sink */

static void leave(struct peer_client *c, const char *why) {
    peer_count(&c->server->n_broken, 1);
    log_event(c->server->log, LOG_INFO, "kv_peer_cut_off", log_z("why", why));
    peer_client_close(c);
}

static void send_frame(struct peer_client *c, enum peer_type type, uint8_t flags, uint16_t stream,
                       const void *body, size_t n) {
    uint8_t head[PEER_HEAD_BYTES];
    struct iovec pieces[2] = {{head, sizeof(head)}, {(void *)(uintptr_t)body, n}};

    peer_frame_head(type, flags, stream, n, head);
    conn_writev(&c->conn, pieces, n ? 2 : 1);
}

static void send_number(struct peer_client *c, enum peer_type type, uint16_t stream, uint32_t x) {
    send_frame(c, type, 0, stream, &x, sizeof(x));
}

/* --- who asks --------------------------------------------------------------------------------- */

/* The socket is closed by a later look, when the frame has been read. */
static void refuse(struct peer_client *c, enum peer_refusal why) {
    peer_count(&c->server->n_refused, 1);
    send_number(c, PEER_REFUSE, 0, why);
    conn_flush(&c->conn);
    conn_shutdown_write(&c->conn);
    c->state = CLIENT_LEAVING;
    log_event(c->server->log, LOG_WARN, "kv_peer_refused", log_z("peer", "a sink"),
              log_z("differs", peer_refusal_name(why)));
}

static void on_hello(struct peer_client *c, const struct peer_frame *f) {
    struct peer_server *s = c->server;
    enum peer_refusal why;

    peer_read_hello(f, &c->sink);
    peer_hello_make(&s->form, s->generation, &c->mine);
    if (s->pool) c->mine.flags |= PEER_CAN_SHARE;
    why = peer_hello_compare(&c->mine, &c->sink);
    if (why != PEER_WELCOME) {
        refuse(c, why);
        return;
    }
    c->state = CLIENT_PROVING;
    send_frame(c, PEER_HELLO, 0, 0, &c->mine, sizeof(c->mine));
}

static void on_auth(struct peer_client *c, const struct peer_frame *f) {
    struct peer_server *s = c->server;
    const uint8_t *key = s->form.fleet_keys ? s->fleet_key[0] : NULL;
    uint8_t proof[PEER_PROOF_BYTES];

    peer_prove(key, false, &c->sink, &c->mine, proof);
    if (!hash_equal(proof, f->body.ptr, sizeof(proof))) {
        refuse(c, PEER_DIFFERS_KEY);
        return;
    }
    if (!c->out)
        c->out = mem_try_aligned(64, key ? ALIGN_UP(s->unit_bytes, 64) : unit_payload_at(s->codec));
    if (!c->out) {
        refuse(c, PEER_HAS_NO_ROOM);
        return;
    }
    peer_prove(key, true, &c->sink, &c->mine, proof);
    send_frame(c, PEER_AUTH, 0, 0, proof, sizeof(proof));
    c->state = CLIENT_UP;
    c->n_quiet = 0;
}

/* --- sending ---------------------------------------------------------------------------------- */

static void end_stream(struct peer_client *c, struct peer_want *w, enum tier_result result) {
    send_number(c, PEER_END, w->stream, result);
    peer_count(&c->server->ended[result], 1);
    peer_want_end(c->server, w);
}

/* The next part of the unit in `out`. */
static void send_part(struct peer_client *c) {
    size_t left = c->server->unit_bytes - c->out_at, n = MIN(left, PEER_PART_BYTES);
    size_t n_out = c->out_at < c->n_out ? MIN(n, c->n_out - c->out_at) : 0;
    uint8_t head[PEER_HEAD_BYTES];
    struct iovec pieces[3] = {{head, sizeof(head)}};
    int n_pieces = 1;

    peer_frame_head(PEER_UNIT, n < left ? PEER_FLAG_CONTINUES : 0, c->sending->stream, n, head);
    if (n_out > 0) pieces[n_pieces++] = (struct iovec){c->out + c->out_at, n_out};
    if (n > n_out)
        pieces[n_pieces++] = (struct iovec){
            (void *)(uintptr_t)(c->payload + c->out_at + n_out - c->n_out), n - n_out};
    c->out_at += n;
    conn_sendv_lent(&c->conn, pieces, n_pieces);
    if (n < left) return;
    peer_count(&c->server->sent_units, 1);
    peer_count(&c->server->sent_bytes, c->server->unit_bytes);
    c->sending = NULL;
}

static void begin_unit(struct peer_client *c, struct peer_want *w) {
    struct peer_server *s = c->server;
    const struct unit_identity *id = &w->found[w->n_sent].id;
    enum status st;

    c->payload = w->found[w->n_sent].payload;
    c->n_out = s->form.fleet_keys ? s->unit_bytes : unit_payload_at(s->codec);
    st = s->form.fleet_keys ? unit_seal(s->codec, id, c->payload, c->out)
                            : unit_seal_head(s->codec, id, c->payload, c->out);
    if (st != ST_OK) {
        w->n_found = w->n_sent; /* not of this form: it is no block of this server */
        return;
    }
    w->n_sent++;
    w->credit -= s->unit_bytes;
    c->sending = w;
    c->out_at = 0;
}

/* Ends w, or begins its next unit. False: it waits for credit. */
static bool serve(struct peer_client *c, struct peer_want *w) {
    if (w->is_cancelled) {
        end_stream(c, w, TIER_SKIPPED);
    } else if (w->n_sent == w->n_found) {
        end_stream(c, w, w->n_sent == w->asked.n ? TIER_OK : w->why);
    } else if (clock_now_us() > w->deadline_us) {
        end_stream(c, w, TIER_LATE);
    } else if (w->credit >= c->server->unit_bytes) {
        begin_unit(c, w);
    } else {
        return false;
    }
    return true;
}

/* False: there is nothing that may be sent now. */
static bool serve_next(struct peer_client *c) {
    struct list *it = c->wants.next, *next;

    for (; it != &c->wants; it = next) {
        struct peer_want *w = LIST_ENTRY(it, struct peer_want, of_client);

        next = it->next;
        if (w->is_found && serve(c, w)) return true;
    }
    return false;
}

static void pump(void *arg) {
    struct peer_client *c = arg;

    while (c->state == CLIENT_UP && conn_is_open(&c->conn)) {
        conn_flush(&c->conn); /* small frames, of this turn or of the last round */
        if (conn_pending(&c->conn) > 0) return;
        if (c->sending) {
            send_part(c);
        } else if (!serve_next(c)) {
            return;
        }
    }
}

static void pump_later(struct peer_client *c) {
    loop_defer(c->server->loop, &c->pump);
}

static void send_places(struct peer_client *c, struct peer_want *w) {
    uint8_t places[PEER_PLACES_BYTES(PEER_KEYS_MAX)];
    size_t n = peer_places_of(c, w, places);

    send_frame(c, PEER_PLACES, 0, w->stream, places, n);
    w->n_sent = w->n_found;
    peer_count(&c->server->placed_units, w->n_found);
}

void peer_client_on_found(struct peer_client *c, struct peer_want *w) {
    if (w->n_found > 0 && w->by_place) {
        send_places(c, w);
    } else if (w->n_found > 0) {
        send_number(c, PEER_HAVE, w->stream, w->n_found);
    }
    pump_later(c);
}

/* --- what is asked for ------------------------------------------------------------------------ */

static struct peer_want *find(const struct peer_client *c, uint16_t stream, uint32_t *n) {
    *n = 0;
    LIST_FOR_EACH(it, &c->wants) {
        struct peer_want *w = LIST_ENTRY(it, struct peer_want, of_client);

        if (w->stream == stream) return w;
        ++*n;
    }
    return NULL;
}

/* The frames of a stream that has ended may still come: its sink had not heard of the end. */
static bool take(struct peer_client *c, const struct peer_frame *f, struct error *err) {
    uint32_t n, credit;
    struct peer_want *w = find(c, f->stream, &n);
    struct peer_asked asked;
    bool by_place;

    switch (f->type) {
    case PEER_WANT:
        if (peer_read_asked(f, &asked, err) != ST_OK) return false;
        if (w) {
            error_set(err, ST_INVALID, "a second WANT on stream %u", f->stream);
            return false;
        }
        by_place = c->has_memory && (f->flags & PEER_FLAG_PLACES);
        if (n < CLIENT_WANTS && peer_want_begin(c, f->stream, &asked, by_place)) return true;
        send_number(c, PEER_END, f->stream, TIER_BUSY);
        peer_count(&c->server->ended[TIER_BUSY], 1);
        return true;
    case PEER_CREDIT:
        credit = peer_read_number(f);
        if (credit > PEER_CREDIT_MAX || (w && w->credit + credit > PEER_CREDIT_MAX)) {
            error_set(err, ST_INVALID, "credit beyond %u bytes", PEER_CREDIT_MAX);
            return false;
        }
        if (w) w->credit += credit;
        return true;
    case PEER_CANCEL:
        if (w) w->is_cancelled = true;
        return true;
    case PEER_PING:
        if (!(f->flags & PEER_FLAG_ANSWER))
            send_frame(c, PEER_PING, PEER_FLAG_ANSWER, f->stream, NULL, 0);
        return true;
    default: break;
    }
    error_set(err, ST_INVALID, "a frame of type %d from a sink", f->type);
    return false;
}

/* False: the connection is no use any more. */
static bool take_frame(struct peer_client *c, const struct peer_frame *f, struct error *err) {
    switch (c->state) {
    case CLIENT_NEW:
        if (f->type != PEER_HELLO) break;
        on_hello(c, f);
        return true;
    case CLIENT_PROVING:
        if (f->type != PEER_AUTH) break;
        on_auth(c, f);
        return true;
    case CLIENT_UP:
        if (conn_pending(&c->conn) > PENDING_MAX + c->server->unit_bytes) {
            error_set(err, ST_INVALID, "it asks and does not read");
            return false;
        }
        return take(c, f, err);
    default: return true; /* refused */
    }
    error_set(err, ST_INVALID, "a frame of type %d before the key was proved", f->type);
    return false;
}

static void on_data(struct conn *conn, void *owner) {
    struct peer_client *c = owner;
    struct conn_bytes in = conn_input(conn);
    size_t used = 0, wanted;
    struct error err = {0};
    struct peer_frame f;
    enum status st;

    while ((st = peer_frame_read((struct str){in.ptr + used, in.len - used}, &f, &wanted, &err)) ==
           ST_OK) {
        if (!take_frame(c, &f, &err)) {
            leave(c, err.message);
            return;
        }
        used += f.n_taken;
        if (c->state == CLIENT_UP) c->n_quiet = 0;
    }
    if (st == ST_AGAIN && wanted > INPUT_BYTES)
        st = error_set(&err, ST_INVALID, "a frame of %zu bytes from a sink", wanted);
    if (st != ST_AGAIN) {
        leave(c, err.message);
        return;
    }
    conn_consume(conn, used);
    pump_later(c);
}

/* --- the connection --------------------------------------------------------------------------- */

static void on_flushed(struct conn *conn, void *owner) {
    (void)conn;
    pump_later(owner);
}

static void on_closed(struct conn *conn, enum conn_end end, void *owner) {
    (void)conn;
    (void)end;
    peer_client_close(owner);
}

static const struct conn_events events = {
    .on_data = on_data,
    .on_flushed = on_flushed,
    .on_closed = on_closed,
};

void peer_client_init(struct peer_client *c, struct peer_server *s) {
    c->server = s;
    list_init(&c->wants);
    loop_task_init(&c->pump, pump, c);
}

void peer_client_open(struct peer_client *c, int fd) {
    c->state = CLIENT_NEW;
    c->n_quiet = 0;
    c->has_memory = false;
    c->seen_bytes = 0;
    c->n_stuck = 0;
    c->sending = NULL;
    conn_init(&c->conn, c->server->loop, fd, &events, c);
}

void peer_client_close(struct peer_client *c) {
    loop_defer_cancel(&c->pump);
    conn_fini(&c->conn);
    while (!list_is_empty(&c->wants))
        peer_want_end(c->server, LIST_ENTRY(list_first(&c->wants), struct peer_want, of_client));
    c->sending = NULL;
    c->state = CLIENT_FREE;
    atomic_fetch_sub(&c->server->n_sockets, 1);
}

/* A deadline passes without anything that comes. */
void peer_client_look(struct peer_client *c) {
    bool has_moved = conn_pending(&c->conn) == 0 || c->conn.sent_bytes != c->seen_bytes;

    c->seen_bytes = c->conn.sent_bytes;
    c->n_stuck = has_moved ? 0 : c->n_stuck + 1;
    c->n_quiet++;
    if (c->state == CLIENT_LEAVING) {
        peer_client_close(c);
    } else if (c->state != CLIENT_UP && c->n_quiet > c->server->proof_looks) {
        leave(c, "it has not proved the key in time");
    } else if (c->n_stuck > STUCK_LOOKS) {
        leave(c, "it does not read");
    } else if (list_is_empty(&c->wants) && c->n_quiet > IDLE_LOOKS) {
        peer_client_close(c);
    } else {
        pump_later(c);
    }
}
