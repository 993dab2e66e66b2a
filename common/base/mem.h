/* common/base/mem.h - allocation.
 *
 * `mem_alloc` and its variants are for small bookkeeping: they never return NULL; without memory
 * the process ends with a message. `mem_try` and its variants are for sizes that a peer chooses and
 * for large buffers (bodies, weights, KV): on NULL the caller returns ST_NOMEM. Tests make the n-th
 * `mem_try` fail (mem_fail_at) and so walk every error path. mem_free frees all of them. Any
 * thread. */
#ifndef COMMON_BASE_MEM_H
#define COMMON_BASE_MEM_H

#include "common/base/base.h"

void *mem_alloc(size_t size) MUST_USE;               /* never NULL; contents undefined */
void *mem_zalloc(size_t size) MUST_USE;              /* never NULL; zeroed */
void *mem_calloc(size_t n, size_t size) MUST_USE;    /* never NULL; zeroed; overflow-checked */
void *mem_realloc(void *ptr, size_t size) MUST_USE;  /* never NULL */
char *mem_strdup(const char *s) MUST_USE;            /* NULL gives NULL */
char *mem_strndup(const char *s, size_t n) MUST_USE; /* always terminated */

void *mem_try(size_t size) MUST_USE;                       /* NULL when refused */
void *mem_try_zalloc(size_t size) MUST_USE;                /* NULL when refused; zeroed */
void *mem_try_realloc(void *ptr, size_t size) MUST_USE;    /* NULL when refused, ptr still valid */
void *mem_try_aligned(size_t align, size_t size) MUST_USE; /* NULL when refused */

void mem_free(void *ptr); /* NULL is fine */

/* Whole pages for a large table, zeroed: resident once touched, or, from 128 MiB on, huge ones
 * where the system has them and resident at once. NULL when refused. Freed with the same size. */
void *mem_try_pages(size_t size) MUST_USE;
void mem_free_pages(void *ptr, size_t size); /* NULL is fine */

/* From `size` to `to` bytes, which are more; the pages may move, nothing is copied. NULL when
 * refused, ptr still valid. */
void *mem_try_grow_pages(void *ptr, size_t size, size_t to) MUST_USE;

/* Gives what the heap holds free back to the system. Walks the heap, a millisecond or so: for after
 * a burst. */
void mem_trim(void);

/* Tests only: the n-th (from 1) mem_try of this process fails, once; 0 turns it off. */
void mem_fail_at(uint64_t n);

/* An arena: many small things that die together. Embedded; one thread. */
struct arena_chunk;
struct arena {
    struct arena_chunk *chunks;
    size_t chunk_bytes;
};

void arena_init(struct arena *a, size_t chunk_bytes); /* 0 picks 16 KiB */
void arena_fini(struct arena *a);
void *arena_alloc(struct arena *a, size_t size) MUST_USE; /* never NULL; 16-byte aligned; zeroed */
char *arena_strndup(struct arena *a, const char *s, size_t n) MUST_USE;

#endif
