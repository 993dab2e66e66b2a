/* tests/unit/common/net/test_mailbox.c - order, completeness and rare wake-ups, with real
 * threads. */
#include <pthread.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/mem.h"
#include "common/net/loop.h"
#include "common/net/mailbox.h"
#include "tests/support/cm.h"

#define N_PRODUCERS 3
#define N_MAILS     20000u

struct letter {
    struct mail mail;
    uint32_t producer, number;
};

struct producer {
    struct mailbox *box;
    pthread_t thread;
    struct letter *letters;
    uint32_t id, n_found_empty;
};

static void *produce(void *arg) {
    struct producer *p = arg;

    for (uint32_t i = 0; i < N_MAILS; i++) {
        p->letters[i] = (struct letter){.producer = p->id, .number = i};
        if (mailbox_push(p->box, &p->letters[i].mail)) p->n_found_empty++;
        if (i % 1000 == 999) usleep(200); /* let it run empty now and then */
    }
    return NULL;
}

/* What one consumer has seen. */
struct reader {
    uint32_t next[N_PRODUCERS];
    uint32_t n_seen;
    struct loop *loop;
};

static void see(struct reader *r, struct mail *mail) {
    struct letter *l = CONTAINER_OF(mail, struct letter, mail);

    assert_int_equal(l->number, r->next[l->producer]); /* in the order of its producer */
    r->next[l->producer]++;
    if (++r->n_seen == N_PRODUCERS * N_MAILS && r->loop) loop_stop(r->loop);
}

static void on_mail(struct mail *mail, void *arg) {
    see(arg, mail);
}

static void start(struct producer *producers, struct mailbox *box) {
    for (uint32_t i = 0; i < N_PRODUCERS; i++) {
        producers[i] = (struct producer){
            .box = box, .id = i, .letters = mem_calloc(N_MAILS, sizeof(struct letter))};
        assert_int_equal(pthread_create(&producers[i].thread, NULL, produce, &producers[i]), 0);
    }
}

static uint32_t join(struct producer *producers) {
    uint32_t n_found_empty = 0;

    for (uint32_t i = 0; i < N_PRODUCERS; i++) {
        pthread_join(producers[i].thread, NULL);
        mem_free(producers[i].letters);
        n_found_empty += producers[i].n_found_empty;
    }
    return n_found_empty;
}

static void a_loop_gets_all_in_order(void **state) {
    struct producer producers[N_PRODUCERS];
    struct reader reader = {0};
    struct mailbox *box;

    (void)state;
    assert_int_equal(loop_create(&reader.loop, NULL), ST_OK);
    assert_int_equal(mailbox_open(&box, reader.loop, on_mail, &reader, NULL), ST_OK);
    start(producers, box);
    loop_run(reader.loop);
    assert_in_range(join(producers), 1, N_PRODUCERS * N_MAILS - 1);
    assert_int_equal(reader.n_seen, N_PRODUCERS * N_MAILS);
    mailbox_close(box);
    loop_destroy(reader.loop);
}

static void a_waiting_thread_gets_all_in_order(void **state) {
    struct mailbox *box = mailbox_open_waiting();
    struct producer producers[N_PRODUCERS];
    struct reader reader = {0};
    struct list taken, *link;

    (void)state;
    list_init(&taken);
    start(producers, box);
    while (reader.n_seen < N_PRODUCERS * N_MAILS) {
        size_t n = mailbox_wait(box, &taken, UINT64_MAX), n_linked = 0;

        while ((link = list_pop_front(&taken))) {
            see(&reader, mail_of(link));
            n_linked++;
        }
        assert_int_equal(n, n_linked);
    }
    join(producers);
    assert_int_equal(mailbox_take(box, &taken), 0);
    mailbox_close(box);
}

static void a_polling_thread_gets_all_in_order(void **state) {
    struct producer producers[N_PRODUCERS];
    struct reader reader = {0};
    struct list taken, *link;
    struct mailbox *box;

    (void)state;
    assert_int_equal(mailbox_open_polled(&box, NULL), ST_OK);
    list_init(&taken);
    start(producers, box);
    while (reader.n_seen < N_PRODUCERS * N_MAILS) {
        mailbox_wait_or(box, &taken, -1, reader.n_seen % 2 ? 0 : UINT64_MAX);
        while ((link = list_pop_front(&taken)))
            see(&reader, mail_of(link));
    }
    join(producers);
    assert_int_equal(mailbox_take(box, &taken), 0);
    mailbox_close(box);
}

static void polling_ends_when_the_other_is_ready(void **state) {
    struct letter a = {0};
    struct mailbox *box;
    struct list taken;
    int ends[2];

    (void)state;
    assert_int_equal(mailbox_open_polled(&box, NULL), ST_OK);
    assert_int_equal(pipe(ends), 0);
    list_init(&taken);
    assert_int_equal(mailbox_wait_or(box, &taken, ends[0], 1000), 0);
    assert_int_equal(write(ends[1], "x", 1), 1);
    assert_int_equal(mailbox_wait_or(box, &taken, ends[0], UINT64_MAX), 0);
    assert_true(mailbox_push(box, &a.mail)); /* no thread sleeps: no wake-up, and yet it is there */
    assert_int_equal(mailbox_wait_or(box, &taken, -1, UINT64_MAX), 1);
    assert_ptr_equal(list_pop_front(&taken), &a.mail.link);
    mailbox_close(box);
    close(ends[0]);
    close(ends[1]);
}

static void waiting_ends_in_time(void **state) {
    struct mailbox *box = mailbox_open_waiting();
    uint64_t began_us = clock_now_us(), took_us;
    struct letter a = {0}, b = {0};
    struct list taken;

    (void)state;
    list_init(&taken);
    assert_int_equal(mailbox_wait(box, &taken, 20000), 0);
    took_us = clock_now_us() - began_us;
    assert_in_range(took_us, 20000, 2000000);
    assert_true(mailbox_push(box, &a.mail));
    assert_false(mailbox_push(box, &b.mail));
    assert_int_equal(mailbox_wait(box, &taken, UINT64_MAX), 2);
    assert_ptr_equal(mail_of(list_first(&taken)), &a.mail);
    assert_ptr_equal(mail_of(list_last(&taken)), &b.mail);
    mailbox_close(box);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_loop_gets_all_in_order),
        cmocka_unit_test(a_waiting_thread_gets_all_in_order),
        cmocka_unit_test(a_polling_thread_gets_all_in_order),
        cmocka_unit_test(polling_ends_when_the_other_is_ready),
        cmocka_unit_test(waiting_ends_in_time),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
