/* common/net/mailbox.h - messages between threads: many producers, one consumer.
 *
 * A message is a struct of the caller's with a `struct mail` in it; the mailbox links it and
 * allocates nothing. Ownership goes with the message: producer until push, consumer after.
 *
 *      producer --push--> [ a <-> b <-> c ] --on_mail / wait--> consumer
 *
 * Messages of one producer arrive in the order they were pushed. Only the push into an empty box
 * wakes the consumer, so a burst costs one wake-up. Three forms: a consumer that has a loop gets a
 * callback; one without waits on a condition variable; one that also waits for something else (the
 * engine thread, for its device) polls both, or looks in between steps. */
#ifndef COMMON_NET_MAILBOX_H
#define COMMON_NET_MAILBOX_H

#include "common/base/list.h"
#include "common/base/status.h"

struct loop;
struct mailbox;

struct mail {
    struct list link;
};

/* Called on the consumer's loop for each message, oldest first; it owns the message. */
typedef void mailbox_fn(struct mail *mail, void *arg);

/* The callback form. Create and destroy on the loop's thread. */
MUST_USE enum status mailbox_open(struct mailbox **out, struct loop *loop, mailbox_fn *on_mail,
                                  void *arg, struct error *err);

/* The form for a consumer without a loop. */
struct mailbox *mailbox_open_waiting(void);

/* The form for a consumer without a loop that has another file descriptor to wait for. A push costs
 * a system call only while the consumer sleeps. */
MUST_USE enum status mailbox_open_polled(struct mailbox **out, struct error *err);

/* Producers must have stopped. Messages still inside are the caller's: mailbox_take them first. */
void mailbox_close(struct mailbox *box); /* NULL is fine */

/* Any thread; never blocks for longer than the lock. True when the box was empty before. */
bool mailbox_push(struct mailbox *box, struct mail *mail);

/* Consumer only: appends all that is there to `out` (links of struct mail), oldest first; returns
 * how many. Does not wait. */
size_t mailbox_take(struct mailbox *box, struct list *out);

/* Waiting form only: mailbox_take that waits up to timeout_us for the first mail (UINT64_MAX: for
 * ever). */
size_t mailbox_wait(struct mailbox *box, struct list *out, uint64_t timeout_us);

/* Polled form only: as mailbox_wait, and returns with nothing when `fd` is readable (-1: none), and
 * occasionally without a reason. */
size_t mailbox_wait_or(struct mailbox *box, struct list *out, int fd, uint64_t timeout_us);

static inline struct mail *mail_of(struct list *link) {
    return CONTAINER_OF(link, struct mail, link);
}

#endif
