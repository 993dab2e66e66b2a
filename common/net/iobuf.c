/* common/net/iobuf.c - free lists of buffers of a few sizes, and the buffer that is lent from them.
 *
 * A free buffer's first bytes are the link to the next one. What the lists hold together is
 * bounded, so that a burst of connections does not pin its peak for ever. A buffer that comes back
 * to full lists takes the place of those of the size that holds most: what is wanted now is kept.
 *
 * Each list knows the fewest buffers that it held since the last trim: so many were not wanted, and
 * a trim frees them, until little is left. */
#include "common/net/iobuf.h"

#include <assert.h>

#include "common/base/mem.h"

/* One event of a stream fits the least. What lies in buffers for long is requests, of any length:
 * from 4 KiB on there are two sizes to an octave, or a third of that memory would be air. */
#define KIB UINT32_C(1024)
static const uint32_t sizes[] = {IOBUF_SMALL_BYTES, 2 * KIB,         4 * KIB,           6 * KIB,
                                 8 * KIB,           12 * KIB,        16 * KIB,          24 * KIB,
                                 32 * KIB,          48 * KIB,        IOBUF_LARGE_BYTES, 256 * KIB,
                                 1024 * KIB,        IOBUF_HUGE_BYTES};
#define N_SIZES ARRAY_LEN(sizes)
#define NO_SIZE N_SIZES /* pages that are not kept */

struct free_buffer {
    struct free_buffer *next;
};

struct free_list {
    struct free_buffer *top;
    size_t n, bytes; /* buffers, and the size of each */
    size_t n_unused; /* the fewest that were here since the last trim */
};

struct iobuf_slab {
    struct free_list lists[N_SIZES];
    size_t kept_bytes; /* in all of them */
};

struct iobuf_slab *iobuf_slab_create(void) {
    struct iobuf_slab *slab = mem_zalloc(sizeof(*slab));

    for (uint32_t i = 0; i < N_SIZES; i++)
        slab->lists[i].bytes = sizes[i];
    return slab;
}

static void *get_memory(size_t cap) {
    return cap > IOBUF_LARGE_BYTES ? mem_try_pages(cap) : mem_try(cap);
}

static void free_memory(void *data, size_t cap) {
    if (cap > IOBUF_LARGE_BYTES) {
        mem_free_pages(data, cap);
    } else {
        mem_free(data);
    }
}

/* NULL: it is empty. */
static void *pop(struct iobuf_slab *slab, struct free_list *list) {
    struct free_buffer *top = list->top;

    if (!top) return NULL;
    list->top = top->next;
    list->n--;
    list->n_unused = MIN(list->n_unused, list->n);
    slab->kept_bytes -= list->bytes;
    return top;
}

/* Returns how many bytes went back to the heap, which may keep them. */
static size_t drop(struct iobuf_slab *slab, struct free_list *list) {
    free_memory(pop(slab, list), list->bytes);
    return list->bytes > IOBUF_LARGE_BYTES ? 0 : list->bytes;
}

static struct free_list *fullest(struct iobuf_slab *slab) {
    struct free_list *most = &slab->lists[0];

    for (uint32_t i = 1; i < N_SIZES; i++) {
        struct free_list *list = &slab->lists[i];

        if (list->n * list->bytes > most->n * most->bytes) most = list;
    }
    return most;
}

static void push(struct iobuf_slab *slab, struct free_list *list, void *data) {
    struct free_buffer *top = data;

    while (UNLIKELY(slab->kept_bytes + list->bytes > IOBUF_KEEP_BYTES))
        drop(slab, fullest(slab));
    top->next = list->top;
    list->top = top;
    list->n++;
    slab->kept_bytes += list->bytes;
}

void iobuf_slab_destroy(struct iobuf_slab *slab) {
    if (!slab) return;
    while (slab->kept_bytes)
        drop(slab, fullest(slab));
    mem_free(slab);
}

bool iobuf_slab_trim(struct iobuf_slab *slab) {
    size_t to_heap = 0;

    for (uint32_t i = N_SIZES; i-- > 0;) { /* the largest first: the idle keep the small ones */
        struct free_list *list = &slab->lists[i];

        for (size_t n = list->n_unused; n && slab->kept_bytes > IOBUF_IDLE_BYTES; n--)
            to_heap += drop(slab, list);
        list->n_unused = list->n;
    }
    if (to_heap >= IOBUF_IDLE_BYTES) mem_trim();
    return iobuf_slab_is_full(slab);
}

bool iobuf_slab_is_full(const struct iobuf_slab *slab) {
    return slab->kept_bytes > IOBUF_IDLE_BYTES;
}

void iobuf_slab_check(const struct iobuf_slab *slab) {
    size_t kept_bytes = 0;

    for (uint32_t i = 0; i < N_SIZES; i++) {
        size_t n = 0;

        for (const struct free_buffer *it = slab->lists[i].top; it; it = it->next)
            n++;
        assert(n == slab->lists[i].n);
        kept_bytes += n * slab->lists[i].bytes;
    }
    assert(kept_bytes == slab->kept_bytes && kept_bytes <= IOBUF_KEEP_BYTES);
}

/* The first of `sizes` that holds n, or NO_SIZE. */
static uint32_t size_for(size_t n) {
    uint32_t i = n > sizes[5] ? 6 : 0; /* the search begins in the middle: most are short */

    while (i < N_SIZES && sizes[i] < n)
        i++;
    return i;
}

static void give_back(struct iobuf_slab *slab, const struct iobuf *b) {
    if (!b->data) return;
    if (b->size < N_SIZES) {
        push(slab, &slab->lists[b->size], b->data);
    } else {
        free_memory(b->data, b->cap);
    }
}

/* The pages move, and what is in them with them. */
static enum status grow_pages(struct iobuf *b, size_t cap) {
    char *data = mem_try_grow_pages(b->data, b->cap, cap);

    if (!data) return ST_NOMEM;
    b->data = data;
    b->cap = (uint32_t)cap;
    return ST_OK;
}

/* Moves the content into a new buffer of that size, or, for NO_SIZE, of `cap` bytes. */
static enum status exchange(struct iobuf *b, struct iobuf_slab *slab, uint32_t size, size_t cap) {
    size_t len = iobuf_len(b);
    char *data = NULL;

    if (size < N_SIZES) {
        cap = sizes[size];
        data = pop(slab, &slab->lists[size]);
    }
    if (!data) data = get_memory(cap);
    if (!data) return ST_NOMEM;
    if (len) memcpy(data, b->data + b->start, len);
    give_back(slab, b);
    *b = (struct iobuf){
        .data = data, .end = (uint32_t)len, .cap = (uint32_t)cap, .size = (uint8_t)size};
    return ST_OK;
}

/* Of more than the slab keeps: by half at least. */
static enum status grow_large(struct iobuf *b, struct iobuf_slab *slab, size_t need) {
    size_t grown = MAX(need, MIN((size_t)b->cap + b->cap / 2, (size_t)IOBUF_MAX_BYTES));

    if (!b->data || b->size < N_SIZES || b->start >= iobuf_len(b) ||
        b->start + grown > IOBUF_MAX_BYTES)
        return exchange(b, slab, NO_SIZE, ALIGN_UP(grown, 4 * KIB));
    return grow_pages(b, ALIGN_UP(b->start + grown, 4 * KIB));
}

enum status iobuf_reserve(struct iobuf *b, struct iobuf_slab *slab, size_t n) {
    size_t len = iobuf_len(b);
    uint32_t size;

    if (b->data && iobuf_room(b) >= n) return ST_OK;
    if (n > IOBUF_MAX_BYTES - len) return ST_NOMEM;
    if (b->data && b->cap - len >= n && b->start >= len) { /* cheap: at least half was consumed */
        memcpy(b->data, b->data + b->start, len);
        b->start = 0;
        b->end = (uint32_t)len;
        return ST_OK;
    }
    size = size_for(len + n);
    return size < N_SIZES ? exchange(b, slab, size, 0) : grow_large(b, slab, len + n);
}

enum status iobuf_append(struct iobuf *b, struct iobuf_slab *slab, const void *data, size_t n) {
    if (n == 0) return ST_OK;
    if (iobuf_reserve(b, slab, n) != ST_OK) return ST_NOMEM;
    memcpy(b->data + b->end, data, n);
    b->end += (uint32_t)n;
    return ST_OK;
}

void iobuf_consume(struct iobuf *b, struct iobuf_slab *slab, size_t n) {
    assert(n <= iobuf_len(b));
    b->start += (uint32_t)n;
    if (b->start == b->end) iobuf_release(b, slab);
}

void iobuf_shrink(struct iobuf *b, struct iobuf_slab *slab, size_t spare) {
    size_t need = iobuf_len(b) + spare;

    if (!b->data || need > IOBUF_LARGE_BYTES || sizes[size_for(need)] >= b->cap) return;
    if (exchange(b, slab, size_for(need), 0) != ST_OK) return; /* then it stays as it is */
}

void iobuf_release(struct iobuf *b, struct iobuf_slab *slab) {
    give_back(slab, b);
    *b = (struct iobuf){0};
}
