/* common/base/mem.c - allocation that aborts, allocation that may fail, and arenas. */
#include "common/base/mem.h"

#ifdef __GLIBC__
#include <malloc.h>
#endif
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define HUGE_TABLE_BYTES    (UINT64_C(128) << 20) /* smaller ones come page by page, as used */
#define ARENA_DEFAULT_CHUNK (16 * 1024)
#define ARENA_ALIGN         16

static atomic_uint_fast64_t tries_until_failure; /* 0: never; set by tests only */

static NORETURN void out_of_memory(size_t size) {
    fprintf(stderr, "incipit: out of memory: the system refused %zu bytes\n", size);
    abort();
}

static void *or_die(void *ptr, size_t size) {
    if (UNLIKELY(!ptr)) out_of_memory(size);
    return ptr;
}

void *mem_alloc(size_t size) {
    return or_die(malloc(size ? size : 1), size);
}

void *mem_zalloc(size_t size) {
    return or_die(calloc(1, size ? size : 1), size);
}

void *mem_calloc(size_t n, size_t size) {
    return or_die(calloc(n ? n : 1, size ? size : 1), n * size);
}

void *mem_realloc(void *ptr, size_t size) {
    return or_die(realloc(ptr, size ? size : 1), size);
}

char *mem_strndup(const char *s, size_t n) {
    char *copy = mem_alloc(n + 1);

    if (n) memcpy(copy, s, n);
    copy[n] = '\0';
    return copy;
}

char *mem_strdup(const char *s) {
    return s ? mem_strndup(s, strlen(s)) : NULL;
}

/* True when this is the try that a test asked to fail. */
static bool try_fails(void) {
    uint64_t left = atomic_load_explicit(&tries_until_failure, memory_order_relaxed);

    while (UNLIKELY(left > 0)) {
        if (atomic_compare_exchange_weak(&tries_until_failure, &left, left - 1)) return left == 1;
    }
    return false;
}

void mem_fail_at(uint64_t n) {
    atomic_store(&tries_until_failure, n);
}

void *mem_try(size_t size) {
    return try_fails() ? NULL : malloc(size ? size : 1);
}

void *mem_try_zalloc(size_t size) {
    return try_fails() ? NULL : calloc(1, size ? size : 1);
}

void *mem_try_realloc(void *ptr, size_t size) {
    return try_fails() ? NULL : realloc(ptr, size ? size : 1);
}

void *mem_try_aligned(size_t align, size_t size) {
    void *ptr = NULL;

    if (try_fails() || posix_memalign(&ptr, align, size ? size : 1) != 0) return NULL;
    return ptr;
}

void mem_free(void *ptr) {
    free(ptr);
}

/* Huge pages, all of them now: first use of one may cost 60 ms where memory is fragmented, since it
 * is found, and cleared, in the middle of whatever touched it. Advice: slower without, not
 * wrong. */
static void make_huge(void *ptr, size_t size) {
    (void)madvise(ptr, size, MADV_HUGEPAGE);
#ifdef MADV_POPULATE_WRITE
    (void)madvise(ptr, size, MADV_POPULATE_WRITE);
#endif
}

void *mem_try_pages(size_t size) {
    void *ptr = MAP_FAILED;

    if (!try_fails())
        ptr = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (ptr == MAP_FAILED) return NULL;
    if (size >= HUGE_TABLE_BYTES) make_huge(ptr, size);
    return ptr;
}

void *mem_try_grow_pages(void *ptr, size_t size, size_t to) {
    void *moved = try_fails() ? MAP_FAILED : mremap(ptr, size, to, MREMAP_MAYMOVE);

    return moved == MAP_FAILED ? NULL : moved;
}

void mem_free_pages(void *ptr, size_t size) {
    if (ptr) munmap(ptr, size);
}

void mem_trim(void) {
#ifdef __GLIBC__
    malloc_trim(0);
#endif
}

struct arena_chunk {
    struct arena_chunk *next;
    size_t used, size;
    _Alignas(ARENA_ALIGN) char data[];
};

void arena_init(struct arena *a, size_t chunk_bytes) {
    a->chunks = NULL;
    a->chunk_bytes = chunk_bytes ? chunk_bytes : ARENA_DEFAULT_CHUNK;
}

void arena_fini(struct arena *a) {
    struct arena_chunk *chunk, *next;

    for (chunk = a->chunks; chunk; chunk = next) {
        next = chunk->next;
        mem_free(chunk);
    }
    a->chunks = NULL;
}

void *arena_alloc(struct arena *a, size_t size) {
    struct arena_chunk *chunk = a->chunks;
    void *ptr;

    size = ALIGN_UP(size ? size : 1, ARENA_ALIGN);
    if (!chunk || chunk->size - chunk->used < size) {
        size_t room = MAX(size, a->chunk_bytes);

        chunk = mem_alloc(sizeof(*chunk) + room);
        chunk->next = a->chunks;
        chunk->used = 0;
        chunk->size = room;
        a->chunks = chunk;
    }
    ptr = chunk->data + chunk->used;
    chunk->used += size;
    return memset(ptr, 0, size);
}

char *arena_strndup(struct arena *a, const char *s, size_t n) {
    char *copy = arena_alloc(a, n + 1);

    if (n) memcpy(copy, s, n);
    return copy;
}
