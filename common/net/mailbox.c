/* common/net/mailbox.c - a locked list, and a bell that rings when it stops being empty.
 *
 * The bell is an eventfd on the consumer's loop, a condition variable, or an eventfd that is rung
 * only while the consumer polls it. It is rung inside the lock: then a consumer that has taken the
 * last message knows that its producer touches the box no more once it has left mailbox_push's
 * lock, and rings are rare enough not to matter. */
#include "common/net/mailbox.h"

#include <assert.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "common/base/mem.h"
#include "common/net/loop.h"

struct mailbox {
    pthread_mutex_t lock;
    pthread_cond_t bell; /* waiting form */
    struct list mails;   /* under the lock, like n_mails */
    size_t n_mails;
    struct loop_fd watch; /* callback form: the eventfd; -1 otherwise */
    mailbox_fn *on_mail;
    void *arg;
    int polled_bell;   /* polled form: the eventfd; -1 otherwise */
    bool is_polled;    /* polled form: the consumer sleeps; under the lock, like is_bell_rung */
    bool is_bell_rung; /* and not taken yet */
};

static struct mailbox *create(void) {
    struct mailbox *box = mem_zalloc(sizeof(*box));
    pthread_condattr_t attr;

    pthread_mutex_init(&box->lock, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&box->bell, &attr);
    pthread_condattr_destroy(&attr);
    list_init(&box->mails);
    box->watch.fd = box->polled_bell = -1;
    return box;
}

static void bell_rang(unsigned ready, void *arg) {
    struct mailbox *box = arg;
    struct list taken, *link;
    uint64_t count;

    (void)ready;
    (void)!read(box->watch.fd, &count, sizeof(count)); /* before the take: a later ring is kept */
    list_init(&taken);
    mailbox_take(box, &taken);
    while ((link = list_pop_front(&taken)))
        box->on_mail(mail_of(link), box->arg);
}

enum status mailbox_open(struct mailbox **out, struct loop *loop, mailbox_fn *on_mail, void *arg,
                         struct error *err) {
    int fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    struct mailbox *box;

    if (fd < 0) return error_set(err, ST_IO, "cannot make a mailbox: %s", strerror(errno));
    box = create();
    box->on_mail = on_mail;
    box->arg = arg;
    loop_fd_init(&box->watch, loop, fd, bell_rang, box);
    loop_fd_watch(&box->watch, LOOP_READ);
    *out = box;
    return ST_OK;
}

struct mailbox *mailbox_open_waiting(void) {
    return create();
}

enum status mailbox_open_polled(struct mailbox **out, struct error *err) {
    int fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);

    if (fd < 0) return error_set(err, ST_IO, "cannot make a mailbox: %s", strerror(errno));
    *out = create();
    (*out)->polled_bell = fd;
    return ST_OK;
}

void mailbox_close(struct mailbox *box) {
    if (!box) return;
    pthread_mutex_lock(&box->lock); /* the last producer has left */
    assert(list_is_empty(&box->mails));
    pthread_mutex_unlock(&box->lock);
    if (box->watch.fd >= 0) {
        loop_fd_fini(&box->watch);
        close(box->watch.fd);
    }
    if (box->polled_bell >= 0) close(box->polled_bell);
    pthread_cond_destroy(&box->bell);
    pthread_mutex_destroy(&box->lock);
    mem_free(box);
}

/* Under the lock. */
static void ring(struct mailbox *box) {
    const uint64_t one = 1;

    if (box->watch.fd >= 0) {
        (void)!write(box->watch.fd, &one, sizeof(one)); /* cannot fill up: one ring per take */
    } else if (box->polled_bell < 0) {
        pthread_cond_signal(&box->bell);
    } else if (box->is_polled && !box->is_bell_rung) {
        box->is_bell_rung = true;
        (void)!write(box->polled_bell, &one, sizeof(one));
    }
}

bool mailbox_push(struct mailbox *box, struct mail *mail) {
    bool was_empty;

    pthread_mutex_lock(&box->lock);
    was_empty = list_is_empty(&box->mails);
    list_push_back(&box->mails, &mail->link);
    box->n_mails++;
    if (was_empty) ring(box);
    pthread_mutex_unlock(&box->lock);
    return was_empty;
}

static size_t take_locked(struct mailbox *box, struct list *out) {
    size_t n = box->n_mails;

    list_splice_back(out, &box->mails);
    box->n_mails = 0;
    return n;
}

size_t mailbox_take(struct mailbox *box, struct list *out) {
    size_t n;

    pthread_mutex_lock(&box->lock);
    n = take_locked(box, out);
    pthread_mutex_unlock(&box->lock);
    return n;
}

static void poll_bell(const struct mailbox *box, int fd, uint64_t timeout_us) {
    struct pollfd wanted[2] = {{.fd = box->polled_bell, .events = POLLIN},
                               {.fd = fd, .events = POLLIN}}; /* -1 is never ready */
    struct timespec timeout = {.tv_sec = (time_t)(timeout_us / 1000000u),
                               .tv_nsec = (long)(timeout_us % 1000000u) * 1000};

    (void)ppoll(wanted, ARRAY_LEN(wanted), timeout_us == UINT64_MAX ? NULL : &timeout, NULL);
}

size_t mailbox_wait_or(struct mailbox *box, struct list *out, int fd, uint64_t timeout_us) {
    uint64_t count;
    size_t n;

    pthread_mutex_lock(&box->lock);
    box->is_polled = list_is_empty(&box->mails) && timeout_us > 0;
    if (box->is_polled) {
        pthread_mutex_unlock(&box->lock);
        poll_bell(box, fd, timeout_us);
        pthread_mutex_lock(&box->lock);
        box->is_polled = false;
    }
    if (box->is_bell_rung) (void)!read(box->polled_bell, &count, sizeof(count));
    box->is_bell_rung = false;
    n = take_locked(box, out);
    pthread_mutex_unlock(&box->lock);
    return n;
}

static struct timespec deadline_after(uint64_t timeout_us) {
    struct timespec ts;

    clock_gettime(CLOCK_MONOTONIC, &ts); /* what the condition variable compares with */
    ts.tv_sec += (time_t)(timeout_us / 1000000u);
    ts.tv_nsec += (long)(timeout_us % 1000000u) * 1000;
    if (ts.tv_nsec >= 1000000000) {
        ts.tv_sec++;
        ts.tv_nsec -= 1000000000;
    }
    return ts;
}

size_t mailbox_wait(struct mailbox *box, struct list *out, uint64_t timeout_us) {
    bool for_ever = timeout_us == UINT64_MAX;
    struct timespec until = deadline_after(for_ever ? 0 : timeout_us);
    size_t n;
    int rc = 0;

    pthread_mutex_lock(&box->lock);
    while (list_is_empty(&box->mails) && rc == 0) {
        rc = for_ever ? pthread_cond_wait(&box->bell, &box->lock)
                      : pthread_cond_timedwait(&box->bell, &box->lock, &until);
    }
    n = take_locked(box, out);
    pthread_mutex_unlock(&box->lock);
    return n;
}
