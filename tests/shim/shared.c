/* tests/shim/shared.c - see shared.h. */
#include "tests/shim/shared.h"

#include <stdlib.h>
#include <string.h>

#include "common/base/mem.h"

enum { TAIL_BYTES = 128, FIXED_BYTES = 2 * SHARED_UNASKED /* tails included */ };

static uint64_t with_tail(uint64_t n_bytes) {
    return ALIGN_UP(n_bytes, TAIL_BYTES) + TAIL_BYTES;
}

void shared_open(struct shared *m) {
    memset(m, 0, sizeof(*m));
    m->arena = mem_try_aligned(TAIL_BYTES, FIXED_BYTES + SHARED_MOST + 2 * TAIL_BYTES);
    if (!m->arena) abort();
}
void shared_close(struct shared *m) {
    mem_free(m->arena);
}
void shared_clear(struct shared *m, uint64_t dynamic_bytes) {
    m->n_arrays = m->fixed_bytes = 0;
    m->dynamic_bytes = dynamic_bytes;
}

void *shared_dynamic(const struct shared *m) {
    return m->arena + FIXED_BYTES;
}
void *shared_array(struct shared *m, const void *key, uint64_t n_bytes) {
    unsigned char *start = m->arena + m->fixed_bytes;

    for (uint32_t i = 0; i < m->n_arrays; i++)
        if (m->arrays[i].key == key) return m->arena + m->arrays[i].at;
    if (m->n_arrays == SHARED_ARRAYS || n_bytes > SHARED_UNASKED ||
        m->fixed_bytes + with_tail(n_bytes) > FIXED_BYTES)
        return NULL;
    m->arrays[m->n_arrays].key = key;
    m->arrays[m->n_arrays].at = m->fixed_bytes;
    m->arrays[m->n_arrays++].n_bytes = n_bytes;
    m->fixed_bytes += (uint32_t)with_tail(n_bytes);
    memset(start, 0xFF, with_tail(n_bytes));
    return start;
}
void shared_poison(struct shared *m) {
    memset(m->arena, 0xFF, m->fixed_bytes);
    memset(shared_dynamic(m), 0xFF, with_tail(m->dynamic_bytes));
}

static bool holds(const unsigned char *start, uint64_t n_bytes, const unsigned char *at) {
    return at >= start && at + 16 <= start + n_bytes;
}
bool shared_holds16(const struct shared *m, const void *p) {
    if (holds(shared_dynamic(m), m->dynamic_bytes, p)) return true;
    for (uint32_t i = 0; i < m->n_arrays; i++)
        if (holds(m->arena + m->arrays[i].at, m->arrays[i].n_bytes, p)) return true;
    return false;
}
static bool is_tail_written(const unsigned char *start, uint64_t n_bytes) {
    for (uint64_t i = n_bytes; i < with_tail(n_bytes); i++)
        if (start[i] != 0xFF) return true;
    return false;
}
bool shared_is_overrun(const struct shared *m, uint64_t *n_bytes) {
    *n_bytes = m->dynamic_bytes;
    if (is_tail_written(shared_dynamic(m), m->dynamic_bytes)) return true;
    for (uint32_t i = 0; i < m->n_arrays; i++) {
        *n_bytes = m->arrays[i].n_bytes;
        if (is_tail_written(m->arena + m->arrays[i].at, *n_bytes)) return true;
    }
    return false;
}
uint64_t shared_bytes(const struct shared *m) {
    uint64_t n = m->dynamic_bytes;

    for (uint32_t i = 0; i < m->n_arrays; i++)
        n += ALIGN_UP(m->arrays[i].n_bytes, 16);
    return n;
}
