/* tests/unit/router/queue/test_admission.c - order by turn, fairness, bounds; random steps against
 * plain lists. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/mem.h"
#include "common/base/rng.h"
#include "tests/support/admission_fixture.h"
#include "tests/support/support.h"

static void one_tenant_is_served_in_order(void **state) {
    struct admission *a = make(10, 0);
    struct admission_ticket t[5] = {{{0}}};

    (void)state;
    for (int i = 0; i < 5; i++)
        assert_int_equal(push(a, &t[i], 7, 0, i), ADMISSION_WAITS);
    admission_remove(a, &t[2]);
    assert_false(admission_is_waiting(&t[2]));
    admission_check(a);
    assert_ptr_equal(admission_pop(a, &everywhere, 1), &t[0]);
    assert_ptr_equal(admission_pop(a, &everywhere, 1), &t[1]);
    assert_ptr_equal(admission_pop(a, &everywhere, 1), &t[3]);
    assert_int_equal(admission_n_waiting(a), 1);
    assert_ptr_equal(admission_pop(a, &everywhere, 1), &t[4]);
    assert_null(admission_pop(a, &everywhere, 1));
    empty(a);
}

static void a_smaller_priority_is_always_first(void **state) {
    struct admission *a = make(10, 0);
    struct admission_ticket t[4] = {{{0}}};

    (void)state;
    push(a, &t[0], 1, 1000, 1); /* clamped, like the next */
    push(a, &t[1], 1, 7, 1);
    push(a, &t[2], 2, 0, 1);
    push(a, &t[3], 3, -1, 1);
    assert_ptr_equal(admission_pop(a, &everywhere, 1), &t[3]);
    assert_ptr_equal(admission_pop(a, &everywhere, 1), &t[2]);
    assert_ptr_equal(admission_pop(a, &everywhere, 1), &t[0]);
    assert_ptr_equal(admission_pop(a, &everywhere, 1), &t[1]);
    empty(a);
}

/* Tenant 1 sends long prompts, tenant 2 short ones, 3 one at a time: equal shares of work. */
static void tenants_get_equal_work_for_any_mix(void **state) {
    enum { N = 3000 };
    static const double work_s[] = {0, 2.0, 0.25, 1.0};
    struct admission *a = make(1000, 0);
    struct admission_ticket *t = mem_calloc(N, sizeof(*t)), *got;
    uint8_t *tenant = mem_calloc(N, 1);
    double served[4] = {0};
    uint32_t n = 0, n_waiting[4] = {0};

    (void)state;
    while (n < N - 4) {
        for (uint8_t who = 1; who <= 3; who++) {
            uint32_t most = who == 3 ? 1 : 20;

            while (n < N && n_waiting[who] < most) {
                tenant[n] = who;
                assert_int_equal(push(a, &t[n++], who, 0, work_s[who]), ADMISSION_WAITS);
                n_waiting[who]++;
            }
        }
        got = admission_pop(a, &everywhere, 1);
        n_waiting[tenant[got - t]]--;
        served[tenant[got - t]] += got->work_s;
        for (int x = 1; x <= 3; x++) {
            for (int y = 1; y <= 3; y++)
                assert_true(served[x] - served[y] <= 2 * 2.0 + 1e-6);
        }
    }
    assert_true(served[3] > 100);
    empty(a);
    mem_free(tenant);
    mem_free(t);
}

static void a_full_queue_displaces_the_tenant_with_most(void **state) {
    struct admission *a = make(4, 0);
    struct admission_ticket t[4] = {{{0}}}, more = {{0}}, other = {{0}}, *displaced;
    uint64_t wait_us;

    (void)state;
    for (int i = 0; i < 4; i++)
        push(a, &t[i], 1, 0, 1);
    assert_int_equal(push(a, &more, 1, 0, 1), ADMISSION_FULL);
    assert_int_equal(push(a, &more, 2, 1, 1), ADMISSION_FULL); /* comes after them */
    assert_int_equal(try_push(a, &other, 2, 0, 1, &wait_us, &displaced), ADMISSION_WAITS);
    assert_ptr_equal(displaced, &t[3]);
    assert_false(admission_is_waiting(&t[3]));
    admission_check(a);
    assert_int_equal(try_push(a, &more, 2, 0, 1, &wait_us, &displaced), ADMISSION_WAITS);
    assert_ptr_equal(displaced, &t[2]); /* two each: even */
    assert_int_equal(push(a, &t[3], 1, 0, 1), ADMISSION_FULL);
    assert_int_equal(try_push(a, &t[3], 1, -1, 1, &wait_us, &displaced), ADMISSION_WAITS);
    assert_non_null(displaced); /* what is urgent needs no excuse */
    empty(a);
}

static void no_queue_is_a_choice(void **state) {
    struct admission *a = make(0, 0);
    struct admission_ticket t = {{0}};

    (void)state;
    assert_int_equal(push(a, &t, 1, 0, 1), ADMISSION_FULL);
    assert_int_equal(push(a, &t, 1, -5, 1), ADMISSION_FULL);
    empty(a);
}

static void a_wait_beyond_the_limit_is_refused_at_once(void **state) {
    struct admission *a = make(100, 1000000); /* a second */
    struct admission_ticket t[40] = {{{0}}}, *displaced;
    uint64_t now_us = 1, wait_us = 0;
    int n = 0;

    (void)state;
    for (; n < 20; n++)
        assert_int_equal(push(a, &t[n], 1, 0, 1), ADMISSION_WAITS); /* no pace is known yet */
    for (int i = 0; i < 15; i++, now_us += 100000)                  /* ten a second */
        assert_non_null(admission_pop(a, &everywhere, now_us));
    for (; n < 25; n++) { /* the sixth to the tenth */
        assert_int_equal(try_push(a, &t[n], 1, 0, 1, &wait_us, &displaced), ADMISSION_WAITS);
    }
    assert_int_equal(wait_us, 1000000);
    assert_int_equal(try_push(a, &t[n], 1, 0, 1, &wait_us, &displaced), ADMISSION_TOO_LONG);
    assert_int_equal(wait_us, 1100000);
    /* Another tenant takes turns with the first; an urgent one is next. */
    assert_int_equal(try_push(a, &t[n++], 2, 0, 1, &wait_us, &displaced), ADMISSION_WAITS);
    assert_int_equal(wait_us, 200000);
    assert_int_equal(try_push(a, &t[n++], 1, -1, 1, &wait_us, &displaced), ADMISSION_WAITS);
    assert_int_equal(wait_us, 100000);
    empty(a);
}

static void a_request_with_a_free_home_worker_may_pass_a_few_times(void **state) {
    enum { N = 2 * ADMISSION_PASSED + 8 };
    struct admission *a = make(N, 0);
    struct admission_ticket t[N] = {{{0}}}, *displaced;
    struct worker_mask room = {{UINT64_C(1) << 5}};
    uint64_t wait_us;

    (void)state;
    for (uint32_t i = 0; i < N; i++) { /* every other is at home on 5, the rest on 6 */
        struct admission_claim claim = {.tenant = 1, .work_s = 1, .home = i % 2 ? 5 : 6};

        assert_int_equal(admission_push(a, &t[i], &claim, &wait_us, &displaced), ADMISSION_WAITS);
    }
    for (uint32_t i = 0; i < ADMISSION_PASSED; i++)
        assert_ptr_equal(admission_pop(a, &room, 1), &t[1 + 2 * i]);
    assert_ptr_equal(admission_pop(a, &room, 1), &t[0]); /* passed often enough */
    assert_ptr_equal(admission_pop(a, &room, 1), &t[1 + 2 * ADMISSION_PASSED]);
    assert_ptr_equal(admission_pop(a, &room, 1), &t[2]);
    worker_mask_add(room.words, 6);
    assert_ptr_equal(admission_pop(a, &room, 1), &t[4]); /* both have room: the order of arrival */
    admission_check(a);
    empty(a);
}

/* --- against the obvious model ---------------------------------------------------------------- */

enum { N_TICKETS = 200, QUEUE = 32 };

static uint32_t count(const struct model_ticket *all, int32_t priority, int64_t tenant) {
    uint32_t n = 0;

    for (int i = 0; i < N_TICKETS; i++)
        n += all[i].is_in && all[i].priority == priority &&
             (tenant < 0 || all[i].tenant == (uint64_t)tenant);
    return n;
}

/* Best priority of all that wait, and the oldest of its tenant. */
static void check_popped(const struct model_ticket *all, const struct model_ticket *got) {
    for (int i = 0; i < N_TICKETS; i++) {
        if (!all[i].is_in || &all[i] == got) continue;
        assert_true(all[i].priority >= got->priority);
        assert_false(all[i].priority == got->priority && all[i].tenant == got->tenant &&
                     all[i].order < got->order);
    }
}

static void check_displaced(const struct model_ticket *all, const struct model_ticket *newcomer,
                            const struct model_ticket *gone) {
    uint32_t n_gone = count(all, gone->priority, gone->tenant);

    assert_true(gone->priority >= newcomer->priority);
    if (gone->priority == newcomer->priority)
        assert_true(n_gone > count(all, newcomer->priority, newcomer->tenant) + 1);
    for (uint32_t tenant = 0; tenant < TENANTS; tenant++)
        assert_true(count(all, gone->priority, tenant) <= n_gone);
    for (int i = 0; i < N_TICKETS; i++) {
        if (!all[i].is_in || &all[i] == gone) continue;
        assert_true(all[i].priority <= gone->priority);
        if (all[i].priority == gone->priority && all[i].tenant == gone->tenant)
            assert_true(all[i].order < gone->order);
    }
}

static void random_steps_keep_every_rule(void **state) {
    struct admission *a = make(QUEUE, 0);
    struct model_ticket *all = mem_calloc(N_TICKETS, sizeof(*all));
    uint32_t n = 0, n_displaced = 0, n_full = 0;
    struct rng rng;

    (void)state;
    rng_seed(&rng, support_seed());
    for (uint64_t step = 1; step < 60000; step++) {
        struct model_ticket *m = &all[rng_below(&rng, N_TICKETS)];
        uint64_t busy = (step / 2000) % 2, dice = rng_below(&rng, 10), wait_us;

        if (dice < (busy ? 6u : 3u)) {
            struct admission_ticket *displaced;
            enum admission_verdict v;

            if (m->is_in) continue;
            m->tenant = (uint32_t)rng_below(&rng, TENANTS) * (uint32_t)rng_below(&rng, 2);
            m->priority = (int32_t)rng_below(&rng, 3) - 1;
            m->order = step;
            v = try_push(a, &m->t, m->tenant, m->priority, (double)rng_below(&rng, 100) * 0.01,
                         &wait_us, &displaced);
            assert_true(v != ADMISSION_TOO_LONG);
            if (displaced) {
                struct model_ticket *gone = (struct model_ticket *)displaced;

                assert_true(v == ADMISSION_WAITS && n == QUEUE && gone->is_in);
                check_displaced(all, m, gone);
                gone->is_in = false;
                n--;
                n_displaced++;
            }
            assert_int_equal(v == ADMISSION_FULL, n == QUEUE);
            n_full += v == ADMISSION_FULL;
            m->is_in = v == ADMISSION_WAITS;
            n += m->is_in;
        } else if (dice < 8) {
            struct model_ticket *got = (struct model_ticket *)admission_pop(a, &everywhere, step);

            assert_int_equal(got != NULL, n > 0);
            if (!got) continue;
            assert_true(got->is_in);
            check_popped(all, got);
            got->is_in = false;
            n--;
        } else if (m->is_in) {
            admission_remove(a, &m->t);
            m->is_in = false;
            n--;
        }
        assert_int_equal(admission_n_waiting(a), n);
        for (int i = 0; i < N_TICKETS; i++)
            assert_int_equal(admission_is_waiting(&all[i].t), all[i].is_in);
        if (step % 7 == 0) admission_check(a);
    }
    assert_true(n_displaced > 100 && n_full > 100);
    empty(a);
    mem_free(all);
}

/* --- against the definition, line by line ----------------------------------------------------- */

enum { HOMES = 4 };

/* Everything that waits in the order in which it came; whatever is asked, all of it is looked
 * at. */
struct linear {
    struct model_ticket *waiting[LONG_QUEUE];
    uint32_t n;
    struct linear_flow {
        double start;
        uint64_t since;
        uint32_t n;
    } flows[FLOWS]; /* by band, then tenant; those that are empty keep their start */
    double now[BANDS];
    uint32_t n_passings, n_had_enough; /* popped before the first of its flow; no longer so */
    uint32_t n_beyond; /* would have passed, but was too far behind to be looked at */
};

static void linear_remove(struct linear *l, const struct model_ticket *m) {
    uint32_t i = 0;

    while (l->waiting[i] != m)
        i++;
    memmove(&l->waiting[i], &l->waiting[i + 1], (--l->n - i) * sizeof(l->waiting[0]));
    l->flows[flow_index(m)].n--;
}

/* Who goes for m: the last of the longest flow of the last band; of equals, of the latest. */
static struct model_ticket *linear_displaced(const struct linear *l, const struct model_ticket *m) {
    struct model_ticket *gone = NULL;

    for (uint32_t i = 0; i < l->n; i++) {
        struct model_ticket *t = l->waiting[i];
        const struct linear_flow *f = &l->flows[flow_index(t)], *g;

        g = gone ? &l->flows[flow_index(gone)] : NULL;
        if (!g || t->priority > gone->priority ||
            (t->priority == gone->priority &&
             (f->n > g->n || (f->n == g->n && f->since >= g->since))))
            gone = t;
    }
    if (!gone || gone->priority < m->priority) return NULL;
    if (gone->priority > m->priority) return gone;
    return l->flows[flow_index(gone)].n > l->flows[flow_index(m)].n + 1 ? gone : NULL;
}

static void linear_push(struct linear *l, struct model_ticket *m) {
    struct linear_flow *f = &l->flows[flow_index(m)];
    double now = l->now[m->priority + 1];

    if (f->n++ == 0) {
        f->start = f->start > now ? f->start : now;
        f->since = m->order;
    }
    l->waiting[l->n++] = m;
}

/* Of the flow of `first` the first to have a place, or none in particular; n: how many are
 * before. */
static struct model_ticket *linear_at_home(const struct linear *l, const struct model_ticket *first,
                                           const struct worker_mask *room, uint32_t *n) {
    *n = 0;
    for (uint32_t i = 0; i < l->n; i++) {
        struct model_ticket *t = l->waiting[i];

        if (flow_index(t) != flow_index(first)) continue;
        if (t->home == WORKER_NONE || worker_mask_has(room->words, t->home)) return t;
        ++*n;
    }
    return NULL;
}

static struct model_ticket *linear_first(struct linear *l, const struct worker_mask *room) {
    struct model_ticket *first = NULL, *chosen;
    uint32_t n;

    for (uint32_t i = 0; i < l->n; i++) {
        struct model_ticket *t = l->waiting[i];
        const struct linear_flow *f = &l->flows[flow_index(t)], *g;

        g = first ? &l->flows[flow_index(first)] : NULL;
        if (!g || t->priority < first->priority ||
            (t->priority == first->priority &&
             (f->start < g->start || (f->start == g->start && f->since < g->since))))
            first = t; /* of its flow the oldest, which comes first here */
    }
    if (!first) return NULL;
    chosen = linear_at_home(l, first, room, &n);
    if (!chosen || chosen == first) return first;
    if (first->n_passed >= ADMISSION_PASSED || n >= ADMISSION_LOOK) {
        l->n_had_enough += first->n_passed >= ADMISSION_PASSED;
        l->n_beyond += n >= ADMISSION_LOOK;
        return first;
    }
    l->n_passings++;
    for (uint32_t i = 0; l->waiting[i] != chosen; i++)
        l->waiting[i]->n_passed += flow_index(l->waiting[i]) == flow_index(first);
    return chosen;
}

static struct model_ticket *linear_pop(struct linear *l, const struct worker_mask *room) {
    struct model_ticket *t = linear_first(l, room);
    struct linear_flow *f;

    if (!t) return NULL;
    f = &l->flows[flow_index(t)];
    l->now[t->priority + 1] = f->start;
    f->start += t->work_s > 0.001 ? t->work_s : 0.001;
    linear_remove(l, t);
    return t;
}

static void random_steps_are_those_of_the_definition(void **state) {
    struct admission *a = make(LONG_QUEUE, 0);
    struct model_ticket *all = mem_calloc(N_LONG, sizeof(*all)), *other;
    struct worker_mask room = {{0}};
    struct linear l = {0};
    uint32_t n_displaced = 0;
    struct rng rng;

    (void)state;
    rng_seed(&rng, support_seed());
    for (uint64_t step = 1; step < 60000; step++) {
        struct model_ticket *m = &all[rng_below(&rng, N_LONG)];
        uint64_t is_busy = (step / 2000) % 2, dice = rng_below(&rng, 10), wait_us;

        if (step % 50 == 0) room.words[0] = UINT64_C(1) << rng_below(&rng, HOMES); /* for a while */
        if (dice < (is_busy ? 7u : 3u) && !m->is_in) {
            struct admission_ticket *displaced;
            enum admission_verdict v;

            m->tenant = (uint32_t)rng_below(&rng, 3) * (uint32_t)rng_below(&rng, 2);
            m->priority = (int32_t)rng_below(&rng, BANDS) - 1;
            m->order = step;
            m->work_s = (double)rng_below(&rng, 4) * 0.25; /* often equal */
            m->home = rng_below(&rng, 100) ? (uint32_t)rng_below(&rng, HOMES) : WORKER_NONE;
            m->n_passed = 0;
            other = l.n == LONG_QUEUE ? linear_displaced(&l, m) : NULL;
            v = admission_push(a, &m->t,
                               &(struct admission_claim){.tenant = m->tenant,
                                                         .priority = m->priority,
                                                         .work_s = m->work_s,
                                                         .home = m->home},
                               &wait_us, &displaced);
            assert_ptr_equal(displaced, other);
            assert_int_equal(v, l.n == LONG_QUEUE && !other ? ADMISSION_FULL : ADMISSION_WAITS);
            if (other) {
                linear_remove(&l, other);
                other->is_in = false;
                n_displaced++;
            }
            m->is_in = v == ADMISSION_WAITS;
            if (m->is_in) linear_push(&l, m);
        } else if (dice < 8) {
            other = linear_pop(&l, &room);
            assert_ptr_equal(admission_pop(a, &room, step), other);
            if (!other) continue;
            other->is_in = false;
        } else if (m->is_in) {
            admission_remove(a, &m->t);
            linear_remove(&l, m);
            m->is_in = false;
        }
        assert_int_equal(admission_n_waiting(a), l.n);
        if (step % 7 == 0) admission_check(a);
    }
    assert_true(n_displaced > 100 && l.n_passings > 100);
    assert_true(l.n_had_enough > 100 && l.n_beyond > 50);
    empty(a);
    mem_free(all);
}

/* More tenants than are remembered come and go. */
static void tenants_without_number_need_no_memory(void **state) {
    struct admission *a = make(8, 0);
    struct admission_ticket t[8] = {{{0}}}, *displaced;
    uint64_t wait_us;

    (void)state;
    for (uint64_t i = 0; i < 5000; i++) {
        try_push(a, &t[i % 8], i, 0, 1, &wait_us, &displaced);
        if (i % 8 == 7) {
            admission_check(a);
            for (int k = 0; k < 8; k++)
                assert_non_null(admission_pop(a, &everywhere, i));
        }
    }
    empty(a);
}

static void a_new_size_applies_at_once_and_keeps_waiting_requests(void **state) {
    struct admission *a = make(4, 0);
    struct admission_options options = {.queue_size = 2};
    struct admission_ticket t[300] = {{{0}}};

    (void)state;
    for (int i = 0; i < 4; i++)
        assert_int_equal(push(a, &t[i], 1, 0, 1), ADMISSION_WAITS);
    admission_configure(a, &options);
    admission_check(a);
    assert_int_equal(admission_n_waiting(a), 4);
    assert_int_equal(push(a, &t[4], 1, 0, 1), ADMISSION_FULL);
    options.queue_size = 299;
    admission_configure(a, &options);
    for (uint64_t i = 4; i < 299; i++) /* more tenants than there were flows */
        assert_int_equal(push(a, &t[i], i, 0, 1), ADMISSION_WAITS);
    assert_int_equal(push(a, &t[299], 1, 0, 1), ADMISSION_FULL);
    admission_check(a);
    options.queue_size = 0;
    admission_configure(a, &options);
    assert_ptr_equal(admission_pop(a, &everywhere, 1), &t[0]);
    assert_int_equal(admission_n_waiting(a), 298);
    empty(a);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_tenant_is_served_in_order),
        cmocka_unit_test(a_smaller_priority_is_always_first),
        cmocka_unit_test(tenants_get_equal_work_for_any_mix),
        cmocka_unit_test(a_full_queue_displaces_the_tenant_with_most),
        cmocka_unit_test(no_queue_is_a_choice),
        cmocka_unit_test(a_wait_beyond_the_limit_is_refused_at_once),
        cmocka_unit_test(a_request_with_a_free_home_worker_may_pass_a_few_times),
        cmocka_unit_test(random_steps_keep_every_rule),
        cmocka_unit_test(random_steps_are_those_of_the_definition),
        cmocka_unit_test(tenants_without_number_need_no_memory),
        cmocka_unit_test(a_new_size_applies_at_once_and_keeps_waiting_requests),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
