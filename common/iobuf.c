/* common/iobuf.c - two free lists of fixed-size buffers, and the buffer that is lent from them.
 *
 * A free buffer's first bytes are the link to the next one. The lists are bounded, so that a burst
 * of connections does not pin its peak for ever. */
#include "common/iobuf.h"

#include "common/mem.h"

#include <assert.h>

#define KEEP_SMALL 4096u /* free buffers kept: 16 MiB and 16 MiB at most */
#define KEEP_LARGE 256u

struct free_buffer {
    struct free_buffer *next;
};

struct free_list {
    struct free_buffer *top;
    uint32_t n, most;
    size_t bytes;
};

struct iobuf_slab {
    struct free_list small, large;
};

struct iobuf_slab *iobuf_slab_create(void) {
    struct iobuf_slab *slab = mem_zalloc(sizeof(*slab));

    slab->small = (struct free_list){.most = KEEP_SMALL, .bytes = IOBUF_SMALL_BYTES};
    slab->large = (struct free_list){.most = KEEP_LARGE, .bytes = IOBUF_LARGE_BYTES};
    return slab;
}

static void free_list_clear(struct free_list *list) {
    while (list->top) {
        struct free_buffer *next = list->top->next;

        mem_free(list->top);
        list->top = next;
    }
}

void iobuf_slab_destroy(struct iobuf_slab *slab) {
    if (!slab) return;
    free_list_clear(&slab->small);
    free_list_clear(&slab->large);
    mem_free(slab);
}

static void *free_list_pop(struct free_list *list) {
    struct free_buffer *top = list->top;

    if (!top) return mem_try(list->bytes);
    list->top = top->next;
    list->n--;
    return top;
}

static void free_list_push(struct free_list *list, void *data) {
    struct free_buffer *top = data;

    if (list->n == list->most) {
        mem_free(data);
        return;
    }
    top->next = list->top;
    list->top = top;
    list->n++;
}

/* The list for buffers of exactly this capacity, or NULL for the heap's. */
static struct free_list *list_of(struct iobuf_slab *slab, size_t cap) {
    if (cap == IOBUF_SMALL_BYTES) return &slab->small;
    if (cap == IOBUF_LARGE_BYTES) return &slab->large;
    return NULL;
}

static void give_back(struct iobuf_slab *slab, char *data, size_t cap) {
    struct free_list *list = list_of(slab, cap);

    if (!data) return;
    if (list) {
        free_list_push(list, data);
    } else {
        mem_free(data);
    }
}

/* Moves the content into a new buffer of that capacity. */
static enum status exchange(struct iobuf *b, struct iobuf_slab *slab, size_t cap) {
    struct free_list *list = list_of(slab, cap);
    char *data = list ? free_list_pop(list) : mem_try(cap);
    size_t len = iobuf_len(b);

    if (!data) return ST_NOMEM;
    if (len) memcpy(data, b->data + b->start, len);
    give_back(slab, b->data, b->cap);
    *b = (struct iobuf){.data = data, .end = len, .cap = cap};
    return ST_OK;
}

enum status iobuf_reserve(struct iobuf *b, struct iobuf_slab *slab, size_t n) {
    size_t len = iobuf_len(b), need;

    if (b->data && iobuf_room(b) >= n) return ST_OK;
    if (n > SIZE_MAX / 4) return ST_NOMEM;
    if (b->data && b->cap - len >= n && b->start >= len) { /* cheap: at least half was consumed */
        memcpy(b->data, b->data + b->start, len);
        b->start = 0;
        b->end = len;
        return ST_OK;
    }
    need = len + n;
    if (need <= IOBUF_SMALL_BYTES) return exchange(b, slab, IOBUF_SMALL_BYTES);
    if (need <= IOBUF_LARGE_BYTES) return exchange(b, slab, IOBUF_LARGE_BYTES);
    return exchange(b, slab, MAX(need, b->cap + b->cap / 2));
}

enum status iobuf_append(struct iobuf *b, struct iobuf_slab *slab, const void *data, size_t n) {
    if (n == 0) return ST_OK;
    if (iobuf_reserve(b, slab, n) != ST_OK) return ST_NOMEM;
    memcpy(b->data + b->end, data, n);
    b->end += n;
    return ST_OK;
}

void iobuf_consume(struct iobuf *b, struct iobuf_slab *slab, size_t n) {
    assert(n <= iobuf_len(b));
    b->start += n;
    if (b->start == b->end) iobuf_release(b, slab);
}

void iobuf_shrink(struct iobuf *b, struct iobuf_slab *slab) {
    if (!b->data || b->cap == IOBUF_SMALL_BYTES || iobuf_len(b) > IOBUF_SMALL_BYTES) return;
    if (exchange(b, slab, IOBUF_SMALL_BYTES) != ST_OK) return; /* then it stays as it is */
}

void iobuf_release(struct iobuf *b, struct iobuf_slab *slab) {
    give_back(slab, b->data, b->cap);
    *b = (struct iobuf){0};
}
