/* worker/text/text_queue.h - which text is tokenized next.
 *
 * The shortest goes first, so that a prompt of a page does not wait for a book; a text of several
 * hundred times its size would keep it for seconds. Against starvation, every fourth choice is the
 * text that has waited longest. Pure; callers that share a queue lock it. */
#ifndef WORKER_TEXT_TEXT_QUEUE_H
#define WORKER_TEXT_TEXT_QUEUE_H

#include "common/base/base.h"
#include "common/base/heap.h"
#include "common/base/list.h"

struct text_entry { /* embedded in what waits */
    struct list by_age;
    struct heap_link by_length; /* linked: it waits */
    size_t n_bytes;
    uint64_t number; /* in the order of arrival */
};

struct text_queue {
    struct list by_age;    /* oldest first */
    struct heap by_length; /* the shortest first; the older of two that are equal */
    uint64_t n_bytes, n_pushed;
    uint32_t n_shortest; /* choices since the oldest was one */
};

#define TEXT_QUEUE_TURNS 4 /* every n-th choice is the oldest */

void text_queue_init(struct text_queue *q);
void text_queue_fini(struct text_queue *q); /* nothing may wait */

void text_queue_push(struct text_queue *q, struct text_entry *e, size_t n_bytes);
void text_queue_remove(struct text_queue *q, struct text_entry *e);

/* Takes the shortest if it has at most max_bytes; else NULL. */
struct text_entry *text_queue_pop_shortest(struct text_queue *q, size_t max_bytes);

/* Takes the next: the oldest when that is due and it has at most max_bytes, else as above. */
struct text_entry *text_queue_pop(struct text_queue *q, size_t max_bytes);

void text_queue_check(const struct text_queue *q); /* asserts every invariant; for tests */

#endif
