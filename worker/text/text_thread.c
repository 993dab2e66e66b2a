/* worker/text/text_thread.c - one thread, two mailboxes. */
#include "worker/text/text_thread.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#include "common/mem.h"

struct text_thread {
    const struct tokenizer *tokenizer;
    struct mailbox *todo, *done;
    struct mail stop;
    pthread_t thread;
    bool is_started;
    atomic_bool is_stopping; /* what is still to do will not be done */
};

static void encode(struct text_thread *t, struct text_job *job) {
    job->status = tokenizer_encode(t->tokenizer, job->text, job->flags, &job->tokens, &job->err);
}

static void *run(void *arg) {
    struct text_thread *t = arg;
    struct list todo, *link;

    list_init(&todo);
    for (;;) {
        mailbox_wait(t->todo, &todo, UINT64_MAX);
        while ((link = list_pop_front(&todo)) != NULL) {
            struct mail *mail = mail_of(link);

            if (mail == &t->stop) return NULL;
            if (!atomic_load(&t->is_stopping)) {
                encode(t, CONTAINER_OF(mail, struct text_job, mail));
            }
            mailbox_push(t->done, mail);
        }
    }
}

/* On the loop, also for what text_thread_stop found. */
static void on_done(struct mail *mail, void *arg) {
    struct text_job *job = CONTAINER_OF(mail, struct text_job, mail);

    (void)arg;
    job->on_done(job);
}

enum status text_thread_start(struct text_thread **out, struct loop *loop,
                              const struct tokenizer *tokenizer, struct error *err) {
    struct text_thread *t = mem_zalloc(sizeof(*t));
    enum status st;
    int code;

    *out = NULL;
    t->tokenizer = tokenizer;
    t->todo = mailbox_open_waiting();
    st = mailbox_open(&t->done, loop, on_done, t, err);
    if (st != ST_OK) goto fail;
    code = pthread_create(&t->thread, NULL, run, t);
    if (code != 0) {
        st = error_set(err, ST_IO, "cannot start the text thread: %s", strerror(code));
        goto fail;
    }
    t->is_started = true;
    *out = t;
    return ST_OK;
fail:
    text_thread_stop(t);
    return st;
}

void text_thread_stop(struct text_thread *t) {
    struct list left, *link;

    if (!t) return;
    if (t->is_started) {
        atomic_store(&t->is_stopping, true);
        mailbox_push(t->todo, &t->stop);
        pthread_join(t->thread, NULL);
    }
    list_init(&left);
    if (t->done) mailbox_take(t->done, &left);
    while ((link = list_pop_front(&left)) != NULL)
        on_done(mail_of(link), t);
    mailbox_close(t->todo);
    mailbox_close(t->done);
    mem_free(t);
}

void text_thread_submit(struct text_thread *t, struct text_job *job) {
    memset(&job->tokens, 0, sizeof(job->tokens));
    memset(&job->mail, 0, sizeof(job->mail));
    job->status = error_set(&job->err, ST_CLOSED, "the worker is stopping: send the text again");
    if (job->text.len > TEXT_THREAD_INLINE_BYTES) {
        mailbox_push(t->todo, &job->mail);
        return;
    }
    encode(t, job);
    job->on_done(job);
}
