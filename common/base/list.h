/* common/base/list.h - an intrusive doubly linked ring.
 *
 * The head is a link whose neighbours are the first and the last element; an empty list is a head
 * that points at itself. An element on no list has NULL links, which makes membership testable.
 *
 *      head <-> a <-> b <-> c <-> head        O(1) everywhere, no allocation */
#ifndef COMMON_BASE_LIST_H
#define COMMON_BASE_LIST_H

#include "common/base/base.h"

struct list {
    struct list *prev, *next;
};

#define LIST_ENTRY(link, type, member) CONTAINER_OF(link, type, member)

/* Visits each link; the body may remove `it`. */
#define LIST_FOR_EACH(it, head)                                                                    \
    for (struct list *it = (head)->next, *it##_next = it->next; it != (head);                      \
         it = it##_next, it##_next = it->next)

static inline void list_init(struct list *head) {
    head->prev = head->next = head;
}

static inline bool list_is_empty(const struct list *head) {
    return head->next == head;
}

static inline bool list_is_linked(const struct list *link) {
    return link->next != NULL;
}

static inline void list_insert_before(struct list *pos, struct list *link) {
    link->prev = pos->prev;
    link->next = pos;
    pos->prev->next = link;
    pos->prev = link;
}

static inline void list_push_back(struct list *head, struct list *link) {
    list_insert_before(head, link);
}

static inline void list_push_front(struct list *head, struct list *link) {
    list_insert_before(head->next, link);
}

static inline void list_remove(struct list *link) {
    link->prev->next = link->next;
    link->next->prev = link->prev;
    link->prev = link->next = NULL;
}

/* The first link taken off, or NULL. */
static inline struct list *list_pop_front(struct list *head) {
    struct list *link = head->next;

    if (link == head) return NULL;
    list_remove(link);
    return link;
}

static inline struct list *list_first(const struct list *head) {
    return head->next == head ? NULL : head->next;
}

static inline struct list *list_last(const struct list *head) {
    return head->prev == head ? NULL : head->prev;
}

/* Moves all of `from` to the end of `to`; `from` is empty afterwards. */
static inline void list_splice_back(struct list *to, struct list *from) {
    if (list_is_empty(from)) return;
    from->next->prev = to->prev;
    to->prev->next = from->next;
    from->prev->next = to;
    to->prev = from->prev;
    list_init(from);
}

#endif
