/* common/net/zmtp.c - see the header. */
#include "common/net/zmtp.h"

#include <endian.h>

#define GREETING_BYTES 64u
#define COMMAND_MAX    4096u /* bytes: READY has a few short properties */
#define PING_CONTEXT   16u   /* most bytes that a pong repeats */

enum { FLAG_MORE = 1, FLAG_LONG = 2, FLAG_COMMAND = 4 };

static const char *const socket_names[] = {[ZMTP_SUB] = "SUB", [ZMTP_DEALER] = "DEALER"};

/* --- writing ---------------------------------------------------------------------------------- */

static void put_head(struct buf *out, uint8_t flags, size_t n) {
    uint64_t n_big = htobe64(n);

    if (n <= UINT8_MAX) {
        buf_append_char(out, (char)flags);
        buf_append_char(out, (char)(uint8_t)n);
    } else {
        buf_append_char(out, (char)(flags | FLAG_LONG));
        buf_append(out, &n_big, sizeof(n_big));
    }
}

void zmtp_put_frame(struct buf *out, struct str body, bool has_more) {
    put_head(out, has_more ? FLAG_MORE : 0, body.len);
    buf_append_str(out, body);
}

static void put_command(struct buf *out, struct str name, struct str body) {
    put_head(out, FLAG_COMMAND, 1 + name.len + body.len);
    buf_append_char(out, (char)name.len);
    buf_append_str(out, name);
    buf_append_str(out, body);
}

static void put_property(struct buf *out, struct str name, struct str value) {
    uint32_t n_big = htobe32((uint32_t)value.len);

    buf_append_char(out, (char)name.len);
    buf_append_str(out, name);
    buf_append(out, &n_big, sizeof(n_big));
    buf_append_str(out, value);
}

void zmtp_put_greeting(const struct zmtp *z, struct buf *out) {
    static const char signature[] = "\xff\0\0\0\0\0\0\0\1\x7f\3\1NULL";
    char greeting[GREETING_BYTES] = {0};
    struct buf properties;

    memcpy(greeting, signature, sizeof(signature) - 1);
    buf_append(out, greeting, sizeof(greeting));
    buf_init(&properties, 0);
    put_property(&properties, STR("Socket-Type"), str_of(socket_names[z->socket]));
    put_property(&properties, STR("Identity"), STR(""));
    put_command(out, STR("READY"), buf_str(&properties));
    buf_fini(&properties);
}

/* As a message, which 3.0 and 3.1 take; 3.1 has a command for it, too. */
void zmtp_put_subscription(struct buf *out) {
    zmtp_put_frame(out, STR("\1"), false);
}

void zmtp_put_ping(struct buf *out) {
    put_command(out, STR("PING"), STR("\0\0")); /* no time to live */
}

void zmtp_put_pong(struct buf *out, struct str context) {
    context.len = MIN(context.len, PING_CONTEXT);
    put_command(out, STR("PONG"), context);
}

/* --- reading ---------------------------------------------------------------------------------- */

static enum status not_zmtp(struct str in, struct error *err) {
    return error_set(
        err, ST_INVALID,
        "the port does not speak ZMTP (its first byte is 0x%02x): name the port of the "
        "engine's KV event publisher",
        (uint8_t)in.ptr[0]);
}

static enum status read_greeting(struct zmtp *z, struct str in, struct zmtp_item *out,
                                 struct error *err) {
    static const char mechanism[20] = "NULL";

    if (in.len > 0 && (uint8_t)in.ptr[0] != 0xff) return not_zmtp(in, err);
    if (in.len > 9 && !((uint8_t)in.ptr[9] & 1)) return not_zmtp(in, err);
    if (in.len > 10 && (uint8_t)in.ptr[10] < 3) {
        return error_set(err, ST_INVALID,
                         "the publisher speaks ZMTP %u: it needs ZeroMQ 4 or later",
                         (uint8_t)in.ptr[10]);
    }
    out->wanted = GREETING_BYTES;
    if (in.len < GREETING_BYTES) return ST_OK;
    if (memcmp(in.ptr + 12, mechanism, sizeof(mechanism)) != 0) {
        return error_set(err, ST_INVALID,
                         "the publisher requires the security mechanism %.19s: only NULL is known",
                         in.ptr + 12);
    }
    z->has_greeting = true;
    z->may_ping = (uint8_t)in.ptr[10] > 3 || in.ptr[11] >= 1;
    out->n_taken = GREETING_BYTES;
    return ST_OK;
}

/* The value of a property; STR_NULL when there is none of that name, or they are malformed. */
static struct str property(struct str in, struct str name) {
    while (in.len > 0) {
        size_t n_name = (uint8_t)in.ptr[0], n_value;
        uint32_t n_big;

        if (in.len < 1 + n_name + 4) return STR_NULL;
        memcpy(&n_big, in.ptr + 1 + n_name, sizeof(n_big));
        n_value = be32toh(n_big);
        if (in.len - (1 + n_name + 4) < n_value) return STR_NULL;
        if (str_eq_nocase((struct str){in.ptr + 1, n_name}, name))
            return (struct str){in.ptr + 1 + n_name + 4, n_value};
        in = (struct str){in.ptr + 1 + n_name + 4 + n_value, in.len - (1 + n_name + 4 + n_value)};
    }
    return STR_NULL;
}

static bool fits(enum zmtp_socket ours, struct str peer) {
    if (ours == ZMTP_SUB) return str_eq(peer, STR("PUB")) || str_eq(peer, STR("XPUB"));
    return str_eq(peer, STR("ROUTER")) || str_eq(peer, STR("DEALER")) || str_eq(peer, STR("REP"));
}

static enum status read_ready(struct zmtp *z, struct str body, struct zmtp_item *out,
                              struct error *err) {
    struct str type = property(body, STR("Socket-Type"));

    if (!fits(z->socket, type)) {
        return error_set(err, ST_INVALID,
                         "the socket behind the port is of type \"%.*s\", which does not fit %s: "
                         "name the publisher's port and the replay port in their places",
                         (int)MIN(type.len, 12), type.len ? type.ptr : "", socket_names[z->socket]);
    }
    z->is_ready = true;
    out->kind = ZMTP_READY;
    return ST_OK;
}

static enum status read_command(struct zmtp *z, struct str body, struct zmtp_item *out,
                                struct error *err) {
    size_t n_name = body.len ? (uint8_t)body.ptr[0] : 0;
    struct str name, rest;

    if (n_name == 0 || body.len < 1 + n_name)
        return error_set(err, ST_INVALID, "the publisher sent a command without a name");
    name = (struct str){body.ptr + 1, n_name};
    rest = (struct str){name.ptr + n_name, body.len - 1 - n_name};
    out->kind = ZMTP_COMMAND;
    if (!z->is_ready) {
        if (str_eq(name, STR("READY"))) return read_ready(z, rest, out, err);
        return error_set(err, ST_INVALID, "the publisher refused the handshake: %.*s",
                         (int)MIN(rest.len, 80), rest.ptr);
    }
    if (str_eq(name, STR("PING")) && rest.len >= 2) {
        out->kind = ZMTP_PINGED;
        out->body = (struct str){rest.ptr + 2, rest.len - 2};
    }
    return ST_OK;
}

/* The size of a frame, and of its head; 0: there is more to come. */
static size_t read_head(struct str in, uint64_t *n) {
    if (in.len < 2) return 0;
    *n = (uint8_t)in.ptr[1];
    if (!((uint8_t)in.ptr[0] & FLAG_LONG)) return 2;
    if (in.len < 9) return 0;
    memcpy(n, in.ptr + 1, 8);
    *n = be64toh(*n);
    return 9;
}

static enum status read_frame(struct zmtp *z, struct str in, struct zmtp_item *out,
                              struct error *err) {
    uint8_t flags = in.len ? (uint8_t)in.ptr[0] : 0;
    bool is_command = flags & FLAG_COMMAND;
    uint64_t n, max = is_command ? COMMAND_MAX : z->max_frame_bytes;
    size_t n_head;

    if (flags > (FLAG_MORE | FLAG_LONG | FLAG_COMMAND) || (is_command && (flags & FLAG_MORE)) ||
        (in.len && !is_command && !z->is_ready)) {
        return error_set(err, ST_INVALID, "the publisher sent a frame with flags 0x%02x: not ZMTP",
                         flags);
    }
    n_head = read_head(in, &n);
    out->wanted = flags & FLAG_LONG ? 9 : 2;
    if (n_head == 0) return ST_OK;
    if (n > max) {
        return error_set(err, ST_TOO_LARGE, "a frame of %llu bytes is above the limit of %llu",
                         (unsigned long long)n, (unsigned long long)max);
    }
    out->wanted = n_head + n;
    if (in.len - n_head < n) return ST_OK;
    out->n_taken = n_head + n;
    out->body = (struct str){in.ptr + n_head, n};
    if (is_command) return read_command(z, out->body, out, err);
    out->kind = ZMTP_FRAME;
    out->has_more = z->has_more = flags & FLAG_MORE;
    return ST_OK;
}

enum status zmtp_read(struct zmtp *z, struct str in, struct zmtp_item *out, struct error *err) {
    *out = (struct zmtp_item){.kind = ZMTP_NONE};
    return z->has_greeting ? read_frame(z, in, out, err) : read_greeting(z, in, out, err);
}
