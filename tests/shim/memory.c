/* tests/shim/memory.c - see memory.h. Under AddressSanitizer the guard zones are its own, exact to
 * the byte, also for kernels that only read. */
#include "tests/shim/memory.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "common/base/mem.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#define HAS_ASAN true
#else
#define HAS_ASAN                        false
#define ASAN_POISON_MEMORY_REGION(p, n) ((void)(p), (void)(n))
#define ASAN_UNPOISON_MEMORY_REGION     ASAN_POISON_MEMORY_REGION
#endif

enum {
    ALIGNMENT = 256,
    GUARD_BYTES = 256,
    FRESH = 0xFF, /* a NaN in every type */
    GUARD = 0xFE  /* huge in every type: not what a NaN, passed on, would write */
};

struct memory_range {
    struct memory_range *next;
    unsigned char *start;
    uint64_t n_bytes;
    char what[64];
};

static uint64_t with_guard(uint64_t n_bytes) {
    return ALIGN_UP(n_bytes, ALIGNMENT) + GUARD_BYTES;
}

bool memory_open(struct memory *m, uint64_t size) {
    memset(m, 0, sizeof(*m));
    m->size = size;
    m->map_bytes = ALIGN_UP(size + size / 4 + (64u << 20), 1u << 20); /* guards, and some slack */
    m->base = mmap(NULL, m->map_bytes, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (m->base == MAP_FAILED) {
        m->base = NULL;
        return false;
    }
    return true;
}
void memory_close(struct memory *m) {
    memory_unlock(m);
    while (m->ranges)
        memory_free(m, m->ranges->start);
    ASAN_UNPOISON_MEMORY_REGION(m->base, m->map_bytes);
    if (m->base) munmap(m->base, m->map_bytes);
    m->base = NULL;
}

void memory_unlock(struct memory *m) {
    if (m->is_locked && mprotect(m->base, m->map_bytes, PROT_READ | PROT_WRITE)) abort();
    m->is_locked = false;
}
void memory_lock(struct memory *m) {
    if (!m->is_locked && mprotect(m->base, m->map_bytes, PROT_NONE)) abort();
    m->is_locked = true;
}

void *memory_alloc(struct memory *m, uint64_t n_bytes, const char *what) {
    struct memory_range *r, **link = &m->ranges;
    unsigned char *at = m->base;

    if (n_bytes > m->size || ALIGN_UP(n_bytes, ALIGNMENT) > m->size - m->used) return NULL;
    for (; *link; link = &(*link)->next) { /* the first gap that is wide enough */
        if ((uint64_t)((*link)->start - at) >= with_guard(n_bytes)) break;
        at = (*link)->start + with_guard((*link)->n_bytes);
    }
    if (with_guard(n_bytes) > (uint64_t)(m->base + m->map_bytes - at)) return NULL;
    r = mem_zalloc(sizeof(*r));
    r->next = *link;
    r->start = at;
    r->n_bytes = n_bytes;
    snprintf(r->what, sizeof(r->what), "%s", what);
    *link = r;
    m->used += ALIGN_UP(n_bytes, ALIGNMENT);
    memory_unlock(m);
    ASAN_UNPOISON_MEMORY_REGION(at, with_guard(n_bytes));
    memset(at, FRESH, n_bytes);
    memset(at + n_bytes, GUARD, with_guard(n_bytes) - n_bytes);
    ASAN_POISON_MEMORY_REGION(at + n_bytes, with_guard(n_bytes) - n_bytes);
    return at;
}

static void check_guard(const struct memory_range *r) {
    for (uint64_t i = r->n_bytes; !HAS_ASAN && i < with_guard(r->n_bytes); i++)
        if (r->start[i] != GUARD) {
            fprintf(stderr, "shim: byte %llu behind the end of '%s' (%llu bytes) was written\n",
                    (unsigned long long)(i - r->n_bytes), r->what, (unsigned long long)r->n_bytes);
            abort();
        }
}
bool memory_free(struct memory *m, void *p) {
    struct memory_range *r, **link = &m->ranges;

    while (*link && (*link)->start != p)
        link = &(*link)->next;
    if (!*link) return false;
    r = *link;
    memory_unlock(m);
    check_guard(r);
    memset(r->start, FRESH, r->n_bytes);
    ASAN_POISON_MEMORY_REGION(r->start, r->n_bytes);
    m->used -= ALIGN_UP(r->n_bytes, ALIGNMENT);
    *link = r->next;
    mem_free(r);
    return true;
}

bool memory_holds(const struct memory *m, const void *p, uint64_t n_bytes) {
    const unsigned char *at = p;

    for (const struct memory_range *r = m->ranges; r && r->start <= at; r = r->next)
        if (at < r->start + r->n_bytes) return n_bytes <= (uint64_t)(r->start + r->n_bytes - at);
    return false;
}

const struct memory_range *memory_next(const struct memory *m, const struct memory_range *r,
                                       unsigned char **start, uint64_t *n_bytes) {
    r = r ? r->next : m->ranges;
    if (!r) return NULL;
    *start = r->start;
    *n_bytes = r->n_bytes;
    return r;
}
