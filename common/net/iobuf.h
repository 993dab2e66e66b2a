/* common/net/iobuf.h - the input and output buffers of connections, lent by a slab of their loop.
 *
 * Most connections are idle most of the time, and an idle one should own no buffer. So a loop keeps
 * free buffers of a few sizes, last in first out (the one given back last is still in the cache),
 * and a connection holds one only while it has bytes in it. Limits are the caller's to check.
 *
 *      up to 64 KiB    eleven sizes, from the heap
 *      up to 4 MiB     three sizes, pages of their own: what was never touched takes no memory, so a
 *                      buffer may be as large as what its owner expects
 *      above           pages of their own, grown without copying, never kept
 *
 * Of free buffers a loop keeps 16 MiB at most, of all sizes together, and those that were not
 * wanted between two calls of iobuf_slab_trim not even so long.
 *
 *      data                start            end              cap
 *      |-- consumed --------|-- content -----|-- room --------|
 */
#ifndef COMMON_NET_IOBUF_H
#define COMMON_NET_IOBUF_H

#include "common/base/base.h"
#include "common/base/buf.h"

#define IOBUF_SMALL_BYTES 1024u      /* the least, */
#define IOBUF_LARGE_BYTES 65536u     /* and the most that comes from the heap */
#define IOBUF_HUGE_BYTES  (4u << 20) /* the most that the slab keeps */
#define IOBUF_KEEP_BYTES  (16u << 20)

struct iobuf_slab;

struct iobuf_slab *iobuf_slab_create(void);
void iobuf_slab_destroy(struct iobuf_slab *slab); /* all buffers given back; NULL is fine */
void iobuf_slab_check(const struct iobuf_slab *slab);

/* True while the slab keeps more than an idle loop should: then call iobuf_slab_trim at intervals;
 * it frees what was unused since its last call, and returns the same. */
#define IOBUF_IDLE_BYTES (256u << 10)
bool iobuf_slab_is_full(const struct iobuf_slab *slab);
bool iobuf_slab_trim(struct iobuf_slab *slab);

struct iobuf {
    char *data; /* NULL: holds no memory */
    uint32_t start, end, cap;
    uint8_t size; /* which of the slab's sizes */
};
#define IOBUF_MAX_BYTES (UINT32_MAX / 2) /* more is refused */

static inline size_t iobuf_len(const struct iobuf *b) {
    return b->end - b->start;
}

static inline size_t iobuf_room(const struct iobuf *b) {
    return b->cap - b->end;
}

static inline struct str iobuf_str(const struct iobuf *b) {
    return (struct str){b->data ? b->data + b->start : "", b->end - b->start};
}

/* Makes room for n more bytes after `end`; the content may move. ST_NOMEM leaves it as it was. */
MUST_USE enum status iobuf_reserve(struct iobuf *b, struct iobuf_slab *slab, size_t n);

MUST_USE enum status iobuf_append(struct iobuf *b, struct iobuf_slab *slab, const void *data,
                                  size_t n);

/* Drops n bytes from the front; when none is left the memory goes back. */
void iobuf_consume(struct iobuf *b, struct iobuf_slab *slab, size_t n);

/* A buffer with much room and at most 64 KiB in it is exchanged for one that holds what is in it
 * and `spare` bytes more. A larger one stays: what of it was never touched costs nothing. */
void iobuf_shrink(struct iobuf *b, struct iobuf_slab *slab, size_t spare);

void iobuf_release(struct iobuf *b, struct iobuf_slab *slab); /* drops all and gives back */

#endif
