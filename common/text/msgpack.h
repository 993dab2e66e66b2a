/* common/text/msgpack.h - MessagePack: writing into a struct buf, reading one value at a time.
 *
 * Numbers and lengths are written in their shortest form, as the readers and writers of KV events
 * elsewhere do, so that equal events are equal bytes. Reading gives heads: of a container its
 * count, after which its elements follow; nothing is built in memory, and a peer's bytes can make
 * the reader neither recurse nor allocate. Extension types are not known and refused. */
#ifndef COMMON_TEXT_MSGPACK_H
#define COMMON_TEXT_MSGPACK_H

#include "common/base/base.h"
#include "common/base/buf.h"
#include "common/base/status.h"

/* --- writing: errors are the buf's, asked for once at the end --------------------------------- */
void msgpack_put_nil(struct buf *out);
void msgpack_put_bool(struct buf *out, bool v);
void msgpack_put_u64(struct buf *out, uint64_t v);
void msgpack_put_i64(struct buf *out, int64_t v);
void msgpack_put_f64(struct buf *out, double v);
void msgpack_put_str(struct buf *out, struct str s);
void msgpack_put_bin(struct buf *out, const void *data, size_t n);
void msgpack_begin_array(struct buf *out, uint32_t n); /* n values follow */
void msgpack_begin_map(struct buf *out, uint32_t n);   /* n pairs of values follow */
void msgpack_put_u32_array(struct buf *out, const uint32_t *values, uint32_t n); /* head and all */

/* --- reading ---------------------------------------------------------------------------------- */
enum msgpack_type {
    MSGPACK_NIL,
    MSGPACK_BOOL,
    MSGPACK_U64,
    MSGPACK_I64, /* negative */
    MSGPACK_F64, /* both float widths */
    MSGPACK_STR,
    MSGPACK_BIN,
    MSGPACK_ARRAY,
    MSGPACK_MAP,
};

struct msgpack_value {
    enum msgpack_type type;
    union {
        bool boolean;
        uint64_t u64;
        int64_t i64;
        double f64;
        struct str bytes; /* of STR and BIN: points into what is read */
        uint32_t n;       /* elements of an ARRAY, pairs of a MAP */
    };
};

struct msgpack_reader {
    const uint8_t *at, *end;
};

static inline struct msgpack_reader msgpack_reader_of(struct str bytes) {
    const uint8_t *p = (const uint8_t *)bytes.ptr;

    return (struct msgpack_reader){p, p + bytes.len};
}

/* The next value, or the head of a container. ST_INVALID at the end of the bytes, when they end
 * too soon, when a container announces more than the bytes can hold, or for a type not known. */
MUST_USE enum status msgpack_next(struct msgpack_reader *r, struct msgpack_value *out);

/* The next one, which must be of this type. */
MUST_USE enum status msgpack_expect(struct msgpack_reader *r, enum msgpack_type type,
                                    struct msgpack_value *out);

/* Steps over one whole value, containers included. */
MUST_USE enum status msgpack_skip(struct msgpack_reader *r);

#endif
