/* router/kv/kv_stream.c - see the header. */
#include "router/kv/kv_stream.h"

#include <endian.h>
#include <string.h>

#define CONNECT_US   UINT64_C(2000000)
#define HANDSHAKE_US UINT64_C(5000000)
#define PING_US      UINT64_C(10000000)
#define SILENCE_US   UINT64_C(30000000)
#define PARTS_MAX    8u     /* of a message */
#define SMALL_FRAME  65536u /* what a connection may hold anyway */

static void set_room(struct kv_stream *s, uint64_t bytes) {
    s->room->used += bytes - s->charged;
    s->charged = bytes;
}

void kv_stream_close(struct kv_stream *s) {
    if (!s->is_open) return;
    s->is_open = false;
    loop_timer_stop(&s->timer);
    loop_defer_cancel(&s->connect);
    conn_fini(&s->conn);
    set_room(s, 0);
}

static void lose(struct kv_stream *s, const char *why, bool is_wrong) {
    kv_stream_close(s);
    s->events->on_lost(why, is_wrong, s->arg);
}

/* --- out -------------------------------------------------------------------------------------- */

static void send_all(struct kv_stream *s, struct buf *bytes) {
    conn_write(&s->conn, buf_ptr(bytes), buf_len(bytes));
    buf_fini(bytes);
}

static void greet(struct kv_stream *s) {
    struct buf out;

    buf_init(&out, 0);
    zmtp_put_greeting(&s->zmtp, &out);
    send_all(s, &out);
}

static void subscribe_or_ask(struct kv_stream *s) {
    uint64_t from = htobe64(s->from);
    struct buf out;

    buf_init(&out, 0);
    if (s->zmtp.socket == ZMTP_SUB) {
        zmtp_put_subscription(&out);
    } else {
        zmtp_put_frame(&out, STR(""), true);
        zmtp_put_frame(&out, (struct str){(const char *)&from, sizeof(from)}, false);
    }
    send_all(s, &out);
}

static void pong(struct kv_stream *s, struct str context) {
    struct buf out;

    if (conn_pending(&s->conn) > SMALL_FRAME) return; /* it pings and does not read */
    buf_init(&out, 0);
    zmtp_put_pong(&out, context);
    send_all(s, &out);
}

/* --- in --------------------------------------------------------------------------------------- */

static void take_part(struct kv_stream *s, const struct zmtp_item *item) {
    bool had_number = s->has_number;
    uint64_t number = s->number;

    s->n_parts++;
    s->has_number = item->has_more && item->body.len == 8;
    if (s->has_number) {
        memcpy(&s->number, item->body.ptr, 8);
        s->number = be64toh(s->number);
    }
    if (item->has_more) return;
    s->n_parts = 0;
    if (had_number) s->events->on_batch(number, item->body, s->arg);
}

static void take_item(struct kv_stream *s, const struct zmtp_item *item) {
    switch (item->kind) {
    case ZMTP_READY:
        subscribe_or_ask(s);
        loop_timer_start(&s->timer, PING_US);
        s->events->on_up(s->arg);
        return;
    case ZMTP_FRAME: take_part(s, item); return;
    case ZMTP_PINGED: pong(s, item->body); return;
    default: return;
    }
}

/* Makes room for the rest of a frame; false: there is none. */
static bool want(struct kv_stream *s, uint64_t bytes) {
    uint64_t charge = bytes > SMALL_FRAME ? bytes : 0;

    if (charge > s->charged && charge - s->charged > s->room->max - s->room->used) return false;
    if (charge == s->charged) return true;
    set_room(s, charge);
    conn_want_input(&s->conn, charge);
    return true;
}

static void on_data(struct conn *c, void *owner) {
    struct kv_stream *s = owner;
    uint32_t n_opened = s->n_opened;

    for (;;) {
        struct conn_bytes in = conn_input(c);
        struct zmtp_item item;
        struct error err = {0};

        if (zmtp_read(&s->zmtp, (struct str){in.ptr, in.len}, &item, &err) != ST_OK) {
            lose(s, err.message, true);
            return;
        }
        if (item.n_taken == 0) {
            if (!want(s, item.wanted)) lose(s, "too many large batches at once", false);
            return;
        }
        s->heard_us = loop_now_us(s->loop);
        take_item(s, &item);
        if (!s->is_open || s->n_opened != n_opened) return;
        if (s->n_parts > PARTS_MAX) {
            lose(s, "a message of more than 8 parts", true);
            return;
        }
        conn_consume(c, item.n_taken);
        want(s, 0);
    }
}

static void on_closed(struct conn *c, enum conn_end end, void *owner) {
    struct kv_stream *s = owner;

    (void)c;
    if (s->is_open) lose(s, conn_end_name(end), false);
}

static const struct conn_events conn_events = {.on_data = on_data, .on_closed = on_closed};

static void on_timer(void *arg) {
    struct kv_stream *s = arg;
    uint64_t now_us = loop_now_us(s->loop);
    bool is_amid = conn_input(&s->conn).len > 0;
    struct buf out;

    if (!s->zmtp.is_ready) {
        lose(s, "no ZMTP handshake within 5 s", true);
        return;
    }
    if (now_us - s->heard_us >= SILENCE_US && (s->zmtp.may_ping || is_amid)) {
        lose(s, "silent for 30 s", false);
        return;
    }
    if (s->zmtp.may_ping) {
        buf_init(&out, 0);
        zmtp_put_ping(&out);
        send_all(s, &out);
    }
    loop_timer_start(&s->timer, PING_US);
}

/* --- open and close --------------------------------------------------------------------------- */

static void connect_now(void *arg) {
    struct kv_stream *s = arg;
    const struct sockaddr *addr = (const struct sockaddr *)&s->to.addr;
    struct error err = {0};

    if (conn_connect(&s->conn, s->loop, addr, s->to.len, CONNECT_US, &conn_events, s, &err) !=
        ST_OK) {
        lose(s, err.message, false);
        return;
    }
    conn_receive_much(&s->conn);
    greet(s);
}

void kv_stream_init(struct kv_stream *s, struct loop *loop, struct kv_stream_room *room,
                    const struct kv_stream_events *events, void *arg) {
    *s = (struct kv_stream){.events = events, .arg = arg, .loop = loop, .room = room};
    loop_timer_init(&s->timer, loop, on_timer, s);
    loop_task_init(&s->connect, connect_now, s);
}

void kv_stream_fini(struct kv_stream *s) {
    kv_stream_close(s);
    loop_timer_fini(&s->timer);
}

void kv_stream_open(struct kv_stream *s, enum zmtp_socket socket, const struct address *to,
                    uint64_t from) {
    kv_stream_close(s);
    s->zmtp = (struct zmtp){.socket = socket, .max_frame_bytes = KV_STREAM_FRAME_MAX};
    s->to = *to;
    s->from = from;
    s->n_parts = 0;
    s->has_number = false;
    s->is_open = true;
    s->n_opened++;
    s->heard_us = loop_now_us(s->loop);
    loop_timer_start(&s->timer, HANDSHAKE_US);
    loop_defer(s->loop, &s->connect);
}
