/* common/text/msgpack.c - see the header. */
#include "common/text/msgpack.h"

#include <endian.h>
#include <string.h>

/* --- writing ----------------------------------------------------------------------------------*/

static void put_head(struct buf *out, uint8_t head, uint64_t value, size_t n_bytes) {
    uint64_t big_endian = htobe64(value);
    uint8_t bytes[9] = {head};

    memcpy(bytes + 1, (const uint8_t *)&big_endian + (8 - n_bytes), n_bytes);
    buf_append(out, bytes, 1 + n_bytes);
}

void msgpack_put_nil(struct buf *out) {
    buf_append_char(out, (char)0xc0);
}

void msgpack_put_bool(struct buf *out, bool v) {
    buf_append_char(out, (char)(v ? 0xc3 : 0xc2));
}

void msgpack_put_u64(struct buf *out, uint64_t v) {
    if (v < 0x80) {
        buf_append_char(out, (char)v);
    } else if (v <= UINT8_MAX) {
        put_head(out, 0xcc, v, 1);
    } else if (v <= UINT16_MAX) {
        put_head(out, 0xcd, v, 2);
    } else if (v <= UINT32_MAX) {
        put_head(out, 0xce, v, 4);
    } else {
        put_head(out, 0xcf, v, 8);
    }
}

void msgpack_put_i64(struct buf *out, int64_t v) {
    if (v >= 0) {
        msgpack_put_u64(out, (uint64_t)v);
    } else if (v >= -32) {
        buf_append_char(out, (char)v);
    } else if (v >= INT8_MIN) {
        put_head(out, 0xd0, (uint64_t)v, 1);
    } else if (v >= INT16_MIN) {
        put_head(out, 0xd1, (uint64_t)v, 2);
    } else if (v >= INT32_MIN) {
        put_head(out, 0xd2, (uint64_t)v, 4);
    } else {
        put_head(out, 0xd3, (uint64_t)v, 8);
    }
}

void msgpack_put_f64(struct buf *out, double v) {
    uint64_t bits;

    memcpy(&bits, &v, sizeof(bits));
    put_head(out, 0xcb, bits, 8);
}

/* A length in 8 (when there is such a form), 16 or 32 bits. */
static void put_length(struct buf *out, size_t n, uint8_t head8, uint8_t head16) {
    if (head8 && n <= UINT8_MAX) {
        put_head(out, head8, n, 1);
    } else if (n <= UINT16_MAX) {
        put_head(out, head16, n, 2);
    } else if (n <= UINT32_MAX) {
        put_head(out, (uint8_t)(head16 + 1), n, 4);
    } else {
        out->has_failed = true;
    }
}

void msgpack_put_str(struct buf *out, struct str s) {
    if (s.len < 32) {
        buf_append_char(out, (char)(0xa0 | s.len));
    } else {
        put_length(out, s.len, 0xd9, 0xda);
    }
    buf_append_str(out, s);
}

void msgpack_put_bin(struct buf *out, const void *data, size_t n) {
    put_length(out, n, 0xc4, 0xc5);
    buf_append(out, data, n);
}

void msgpack_begin_array(struct buf *out, uint32_t n) {
    if (n < 16) {
        buf_append_char(out, (char)(0x90 | n));
    } else {
        put_length(out, n, 0, 0xdc);
    }
}

void msgpack_begin_map(struct buf *out, uint32_t n) {
    if (n < 16) {
        buf_append_char(out, (char)(0x80 | n));
    } else {
        put_length(out, n, 0, 0xde);
    }
}

/* One number into memory that has room for it; returns its end. */
static uint8_t *write_u32(uint8_t *p, uint32_t v) {
    if (v < 0x80) {
        *p++ = (uint8_t)v;
    } else if (v <= UINT8_MAX) {
        *p++ = 0xcc;
        *p++ = (uint8_t)v;
    } else if (v <= UINT16_MAX) {
        *p++ = 0xcd;
        *p++ = (uint8_t)(v >> 8);
        *p++ = (uint8_t)v;
    } else {
        uint32_t big_endian = htobe32(v);

        *p++ = 0xce;
        memcpy(p, &big_endian, sizeof(big_endian));
        p += sizeof(big_endian);
    }
    return p;
}

void msgpack_put_u32_array(struct buf *out, const uint32_t *values, uint32_t n) {
    uint8_t *begin, *p;

    msgpack_begin_array(out, n);
    begin = p = (uint8_t *)buf_reserve(out, (size_t)n * 5);
    if (!begin) return;
    for (uint32_t i = 0; i < n; i++)
        p = write_u32(p, values[i]);
    buf_commit(out, (size_t)(p - begin));
}

/* --- reading ----------------------------------------------------------------------------------*/

static bool take(struct msgpack_reader *r, size_t n_bytes, uint64_t *out) {
    uint64_t v = 0;

    if ((size_t)(r->end - r->at) < n_bytes) return false;
    for (size_t i = 0; i < n_bytes; i++)
        v = v << 8 | r->at[i];
    r->at += n_bytes;
    *out = v;
    return true;
}

static enum status read_bytes(struct msgpack_reader *r, enum msgpack_type type, uint64_t n,
                              struct msgpack_value *out) {
    if (n > (uint64_t)(r->end - r->at)) return ST_INVALID;
    *out = (struct msgpack_value){.type = type, .bytes = {(const char *)r->at, (size_t)n}};
    r->at += n;
    return ST_OK;
}

/* Each element takes a byte at least, each pair two. */
static enum status read_container(const struct msgpack_reader *r, enum msgpack_type type,
                                  uint64_t n, struct msgpack_value *out) {
    if (n > (uint64_t)(r->end - r->at) / (type == MSGPACK_MAP ? 2 : 1)) return ST_INVALID;
    *out = (struct msgpack_value){.type = type, .n = (uint32_t)n};
    return ST_OK;
}

static struct msgpack_value signed_value(int64_t v) {
    if (v < 0) return (struct msgpack_value){.type = MSGPACK_I64, .i64 = v};
    return (struct msgpack_value){.type = MSGPACK_U64, .u64 = (uint64_t)v};
}

/* Reads what follows one of the heads c4..df, which give the width of their number. */
static enum status read_long(struct msgpack_reader *r, uint8_t head, struct msgpack_value *out) {
    static const uint8_t widths[32] = {
        [0x04] = 1, 2, 4,             /* bin */
        [0x0a] = 4, 8, 1, 2, 4, 8,    /* float, uint */
        [0x10] = 1, 2, 4, 8,          /* int */
        [0x19] = 1, 2, 4, 2, 4, 2, 4, /* str, array, map */
    };
    uint64_t v;
    uint32_t bits;
    float f;

    if (widths[head - 0xc0] == 0 || !take(r, widths[head - 0xc0], &v)) return ST_INVALID;
    switch (head) {
    case 0xc4:
    case 0xc5:
    case 0xc6: return read_bytes(r, MSGPACK_BIN, v, out);
    case 0xd9:
    case 0xda:
    case 0xdb: return read_bytes(r, MSGPACK_STR, v, out);
    case 0xdc:
    case 0xdd: return read_container(r, MSGPACK_ARRAY, v, out);
    case 0xde:
    case 0xdf: return read_container(r, MSGPACK_MAP, v, out);
    case 0xca:
        bits = (uint32_t)v;
        memcpy(&f, &bits, sizeof(f));
        *out = (struct msgpack_value){.type = MSGPACK_F64, .f64 = (double)f};
        return ST_OK;
    case 0xcb:
        *out = (struct msgpack_value){.type = MSGPACK_F64};
        memcpy(&out->f64, &v, sizeof(v));
        return ST_OK;
    case 0xd0: *out = signed_value((int8_t)v); return ST_OK;
    case 0xd1: *out = signed_value((int16_t)v); return ST_OK;
    case 0xd2: *out = signed_value((int32_t)v); return ST_OK;
    case 0xd3: *out = signed_value((int64_t)v); return ST_OK;
    default: *out = (struct msgpack_value){.type = MSGPACK_U64, .u64 = v}; return ST_OK;
    }
}

enum status msgpack_next(struct msgpack_reader *r, struct msgpack_value *out) {
    uint8_t head;

    if (r->at == r->end) return ST_INVALID;
    head = *r->at++;
    if (head < 0x80) {
        *out = (struct msgpack_value){.type = MSGPACK_U64, .u64 = head};
        return ST_OK;
    }
    if (head < 0x90) return read_container(r, MSGPACK_MAP, head & 0x0f, out);
    if (head < 0xa0) return read_container(r, MSGPACK_ARRAY, head & 0x0f, out);
    if (head < 0xc0) return read_bytes(r, MSGPACK_STR, head & 0x1f, out);
    if (head >= 0xe0) {
        *out = signed_value((int8_t)head);
        return ST_OK;
    }
    switch (head) {
    case 0xc0: *out = (struct msgpack_value){.type = MSGPACK_NIL}; return ST_OK;
    case 0xc2:
    case 0xc3:
        *out = (struct msgpack_value){.type = MSGPACK_BOOL, .boolean = head == 0xc3};
        return ST_OK;
    default: return read_long(r, head, out);
    }
}

enum status msgpack_expect(struct msgpack_reader *r, enum msgpack_type type,
                           struct msgpack_value *out) {
    struct msgpack_value v;
    enum status st = msgpack_next(r, &v);

    if (st != ST_OK) return st;
    if (v.type != type) return ST_INVALID;
    *out = v;
    return ST_OK;
}

enum status msgpack_skip(struct msgpack_reader *r) {
    uint64_t n_left = 1; /* values to step over; each takes a byte, so it cannot overflow */
    struct msgpack_value v;

    while (n_left-- > 0) {
        enum status st = msgpack_next(r, &v);

        if (st != ST_OK) return st;
        if (v.type == MSGPACK_ARRAY) n_left += v.n;
        if (v.type == MSGPACK_MAP) n_left += 2ull * v.n;
    }
    return ST_OK;
}
