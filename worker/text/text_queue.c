/* worker/text/text_queue.c - a heap by length beside a list by age. */
#include "worker/text/text_queue.h"

#include <assert.h>

static struct text_entry *entry_of(struct heap_link *link) {
    return link ? HEAP_ENTRY(link, struct text_entry, by_length) : NULL;
}

static bool is_before(const struct heap_link *a, const struct heap_link *b) {
    const struct text_entry *x = HEAP_ENTRY_CONST(a, struct text_entry, by_length);
    const struct text_entry *y = HEAP_ENTRY_CONST(b, struct text_entry, by_length);

    return x->n_bytes != y->n_bytes ? x->n_bytes < y->n_bytes : x->number < y->number;
}

void text_queue_init(struct text_queue *q) {
    *q = (struct text_queue){0};
    list_init(&q->by_age);
    heap_init(&q->by_length, is_before);
}

void text_queue_fini(struct text_queue *q) {
    assert(q->by_length.n == 0);
    heap_fini(&q->by_length);
}

void text_queue_push(struct text_queue *q, struct text_entry *e, size_t n_bytes) {
    *e = (struct text_entry){.n_bytes = n_bytes, .number = q->n_pushed++};
    list_push_back(&q->by_age, &e->by_age);
    heap_push(&q->by_length, &e->by_length);
    q->n_bytes += n_bytes;
}

void text_queue_remove(struct text_queue *q, struct text_entry *e) {
    list_remove(&e->by_age);
    heap_remove(&q->by_length, &e->by_length);
    q->n_bytes -= e->n_bytes;
}

struct text_entry *text_queue_pop_shortest(struct text_queue *q, size_t max_bytes) {
    struct text_entry *e = entry_of(heap_first(&q->by_length));

    if (!e || e->n_bytes > max_bytes) return NULL;
    text_queue_remove(q, e);
    return e;
}

struct text_entry *text_queue_pop(struct text_queue *q, size_t max_bytes) {
    struct list *first = list_first(&q->by_age);
    struct text_entry *oldest = first ? LIST_ENTRY(first, struct text_entry, by_age) : NULL, *e;

    if (oldest && q->n_shortest + 1 >= TEXT_QUEUE_TURNS && oldest->n_bytes <= max_bytes) {
        q->n_shortest = 0;
        text_queue_remove(q, oldest);
        return oldest;
    }
    e = text_queue_pop_shortest(q, max_bytes);
    if (e) q->n_shortest++;
    return e;
}

void text_queue_check(const struct text_queue *q) {
    uint64_t n_bytes = 0, number = 0;
    size_t n = 0;

    heap_check(&q->by_length);
    LIST_FOR_EACH(it, &q->by_age) {
        const struct text_entry *e = LIST_ENTRY(it, struct text_entry, by_age);

        assert(heap_is_linked(&e->by_length) && (n == 0 || e->number > number));
        number = e->number;
        n_bytes += e->n_bytes;
        n++;
    }
    assert(n == q->by_length.n && n_bytes == q->n_bytes);
    (void)number;
    (void)n_bytes;
}
