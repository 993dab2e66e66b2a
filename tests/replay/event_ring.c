/* tests/replay/event_ring.c - frames by sequence; the oldest go when the bytes are too many. */
#include "tests/replay/event_ring.h"

#include <stdlib.h>

#include "common/base/mem.h"

struct frame {
    uint64_t t_us;
    bool is_accepted;
    struct buf bytes;
};

struct event_ring {
    struct frame *frames; /* by sequence, up to cap */
    uint64_t oldest, next, cap;
    size_t n_bytes, max_bytes;
};

struct event_ring *event_ring_create(size_t max_bytes) {
    struct event_ring *ring = mem_zalloc(sizeof(*ring));

    ring->max_bytes = max_bytes;
    return ring;
}

void event_ring_destroy(struct event_ring *ring) {
    if (!ring) return;
    for (; ring->oldest < ring->next; ring->oldest++)
        buf_fini(&ring->frames[ring->oldest].bytes);
    mem_free(ring->frames);
    mem_free(ring);
}

void event_ring_put(struct event_ring *ring, const struct request_event *e) {
    struct frame *f;

    if (ring->next == ring->cap) {
        ring->cap = ring->cap ? ring->cap * 2 : 1024;
        ring->frames = mem_realloc(ring->frames, ring->cap * sizeof(*ring->frames));
    }
    f = &ring->frames[ring->next];
    f->t_us = e->t_us;
    f->is_accepted = e->kind == REQUEST_ACCEPTED;
    buf_init(&f->bytes, 0);
    request_event_put(&f->bytes, ring->next++, e);
    ring->n_bytes += buf_len(&f->bytes);
    while (ring->n_bytes > ring->max_bytes) {
        struct frame *old = &ring->frames[ring->oldest++];

        ring->n_bytes -= buf_len(&old->bytes);
        buf_fini(&old->bytes);
    }
}

uint64_t event_ring_oldest(const struct event_ring *ring) {
    return ring->oldest;
}

uint64_t event_ring_sent(const struct event_ring *ring, uint64_t from, uint64_t now_us,
                         uint64_t accepted_us, uint64_t other_us) {
    uint64_t end = from;

    for (uint64_t at = MAX(from, ring->oldest); at < ring->next; at++) {
        const struct frame *f = &ring->frames[at];

        if (f->t_us + (f->is_accepted ? accepted_us : other_us) <= now_us) end = at + 1;
    }
    return end;
}

bool event_ring_next(const struct event_ring *ring, uint64_t *sequence, uint64_t end,
                     uint64_t *blocks, struct request_event *e) {
    uint64_t at = MAX(*sequence, ring->oldest), found;
    size_t used;

    if (at >= MIN(ring->next, end)) return false;
    if (request_event_read(buf_str(&ring->frames[at].bytes), blocks, e, &found, &used, NULL) !=
            ST_OK ||
        found != at || used != buf_len(&ring->frames[at].bytes))
        abort();
    *sequence = at + 1;
    return true;
}
