/* worker/kv/kv_moves.c - an array that is emptied once per step. */
#include "worker/kv/kv_moves.h"

#include <assert.h>

#include "common/base/mem.h"

void kv_moves_init(struct kv_moves *m, uint32_t capacity) {
    *m = (struct kv_moves){.list = mem_calloc(capacity, sizeof(*m->list)), .capacity = capacity};
}

void kv_moves_fini(struct kv_moves *m) {
    mem_free(m->list);
    *m = (struct kv_moves){0};
}

void kv_moves_push(struct kv_moves *m, enum kv_move_kind kind, uint32_t src, uint32_t dst) {
    assert(m->n < m->capacity);
    m->list[m->n++] = (struct kv_move){kind, src, dst};
}
