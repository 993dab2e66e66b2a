/* worker/kv/kv_moves.h - what the device must copy before a step writes.
 *
 * One ordered list: a block may be the target of one move and the source of the next. The engine
 * hands the list to the device before it submits the step, and clears it. Callers reserve room
 * before they change anything, so a full list refuses the call as a whole. Thread: engine. */
#ifndef WORKER_KV_KV_MOVES_H
#define WORKER_KV_KV_MOVES_H

#include "common/base/base.h"

enum kv_move_kind {
    KV_MOVE_COPY, /* device block to device block */
    KV_MOVE_OUT,  /* device block to host block */
    KV_MOVE_IN,   /* host block to device block */
};
struct kv_move {
    enum kv_move_kind kind;
    uint32_t src, dst;
};

struct kv_moves {
    struct kv_move *list; /* (capacity) */
    uint32_t n, capacity;
};

void kv_moves_init(struct kv_moves *m, uint32_t capacity);
void kv_moves_fini(struct kv_moves *m);

static inline uint32_t kv_moves_room(const struct kv_moves *m) {
    return m->capacity - m->n;
}
void kv_moves_push(struct kv_moves *m, enum kv_move_kind kind, uint32_t src, uint32_t dst);

#endif
