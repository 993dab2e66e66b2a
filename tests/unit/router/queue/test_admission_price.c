/* tests/unit/router/queue/test_admission_price.c - order by price, debts of tenants here and at
 * other routers; random steps against the definition. */
#include <math.h>

#include "common/base/mem.h"
#include "common/base/rng.h"
#include "tests/support/admission_fixture.h"
#include "tests/support/support.h"

static struct admission *make_priced(uint32_t queue_size) {
    return admission_create(
        &(struct admission_options){.queue_size = queue_size, .order = ADMISSION_BY_PRICE});
}

static void enter(struct admission *a, struct admission_ticket *t, uint64_t tenant, double price_s,
                  double since_s) {
    struct admission_claim claim = {.tenant = tenant,
                                    .work_s = price_s,
                                    .home = WORKER_NONE,
                                    .since_us = (uint64_t)(since_s * 1e6)};
    struct admission_ticket *displaced;
    uint64_t wait_us;

    assert_int_equal(admission_push(a, t, &claim, &wait_us, &displaced), ADMISSION_WAITS);
    assert_null(displaced);
    admission_check(a);
}

/* Takes the first off its place. */
static struct admission_ticket *take_first(struct admission *a) {
    struct admission_ticket *t = admission_first(a);

    if (t) admission_take_off(a, t);
    return t;
}

/* The next is placed. */
static struct admission_ticket *serve(struct admission *a) {
    struct admission_ticket *t = take_first(a);

    if (t) admission_take(a, t, t->work_s, 1);
    admission_check(a);
    return t;
}

static void serve_all(struct admission *a) {
    while (serve(a)) {
    }
    admission_destroy(a);
}

static void the_least_price_is_first_and_equals_by_arrival(void **state) {
    struct admission *a = make_priced(10);
    struct admission_ticket t[4] = {{{0}}};

    (void)state;
    enter(a, &t[0], 1, 0.5, 1);
    enter(a, &t[1], 1, 0.2, 1);
    enter(a, &t[2], 1, 0.2, 1);
    enter(a, &t[3], 1, 0.1, 1);
    assert_ptr_equal(serve(a), &t[3]);
    assert_ptr_equal(serve(a), &t[1]);
    assert_ptr_equal(serve(a), &t[2]);
    assert_ptr_equal(serve(a), &t[0]);
    serve_all(a);
}

static void ten_seconds_are_level_with_one_after_three_minutes(void **state) {
    for (int later = 0; later < 2; later++) {
        struct admission *a = make_priced(10);
        struct admission_ticket t[2] = {{{0}}};

        (void)state;
        enter(a, &t[0], 1, 10, 1000);
        enter(a, &t[1], 1, 1, later ? 1180.1 : 1179.9);
        assert_ptr_equal(serve(a), &t[later ? 0 : 1]);
        serve_all(a);
    }
}

static void a_tenant_in_debt_is_behind_others(void **state) {
    struct admission *a = make_priced(100);
    struct admission_ticket t[10] = {{{0}}}, other[2] = {{{0}}};

    (void)state;
    for (int i = 0; i < 8; i++)
        enter(a, &t[i], 1, 0.4, 1);
    enter(a, &other[0], 2, 3, 1);
    for (int i = 0; i < 3; i++) /* 0.4 + 0.4 + 0.4: beyond the free second */
        assert_ptr_equal(serve(a), &t[i]);
    assert_true(admission_in_debt(&t[3]));
    assert_false(admission_in_debt(&other[0]));
    /* 0.4 + 10 x 0.2 is still less than 3; the next is 6.4. */
    assert_ptr_equal(serve(a), &t[3]);
    assert_ptr_equal(serve(a), &other[0]);
    assert_true(admission_in_debt(&t[4])); /* to newcomers */
    enter(a, &other[1], 2, 0.1, 1);        /* served 3, the first tenant 1.6 */
    assert_true(admission_in_debt(&other[1]));
    assert_ptr_equal(serve(a), &t[4]);
    serve_all(a);
}

static void weights_divide_what_is_charged(void **state) {
    struct admission *a = make_priced(1000);
    struct admission_ticket t[2][200] = {{{{0}}}};
    double served[2] = {0};
    uint64_t wait_us;

    (void)state;
    for (uint64_t i = 0; i < 400; i++) {
        struct admission_claim claim = {
            .tenant = i % 2, .work_s = 0.5, .weight = i % 2 ? 1 : 2, .since_us = i};
        struct admission_ticket *displaced;

        assert_int_equal(admission_push(a, &t[i % 2][i / 2], &claim, &wait_us, &displaced),
                         ADMISSION_WAITS);
    }
    for (int i = 0; i < 240; i++) {
        struct admission_ticket *got = serve(a);

        served[got >= t[1]] += got->work_s;
    }
    assert_true(fabs(served[0] / served[1] - 2) < 0.1);
    serve_all(a);
}

static double share_of_first(enum admission_order order, double max_share, double weight,
                             uint64_t n_tenants) {
    struct admission *a =
        admission_create(&(struct admission_options){.queue_size = 1000, .order = order});
    struct admission_ticket t[4][100] = {{{{0}}}}, *displaced;
    struct worker_mask room = {0};
    double served[4] = {0}, all = 0;
    uint64_t wait_us;

    for (uint64_t i = 0; i < 100 * n_tenants; i++) {
        struct admission_claim claim = {.tenant = i % n_tenants,
                                        .work_s = 0.5,
                                        .weight = i % n_tenants ? 1 : weight,
                                        .max_share = i % n_tenants ? 0 : max_share,
                                        .home = WORKER_NONE};

        assert_int_equal(
            admission_push(a, &t[i % n_tenants][i / n_tenants], &claim, &wait_us, &displaced),
            ADMISSION_WAITS);
    }
    for (uint64_t i = 0; i < 80 * n_tenants; i++) {
        struct admission_ticket *got =
            order == ADMISSION_BY_TURN ? admission_pop(a, &room, i) : serve(a);

        served[(got - t[0]) / 100] += got->work_s;
        all += got->work_s;
        admission_check(a);
    }
    while (admission_n_waiting(a))
        (void)(order == ADMISSION_BY_TURN ? admission_pop(a, &room, 0) : serve(a));
    admission_destroy(a);
    return served[0] / all;
}

static void a_share_is_bounded_while_others_wait(void **state) {
    static const enum admission_order orders[] = {ADMISSION_BY_TURN, ADMISSION_BY_PRICE};

    (void)state;
    for (int i = 0; i < 2; i++) {
        assert_true(fabs(share_of_first(orders[i], 0, 1, 4) - 0.25) < 0.02);
        assert_true(fabs(share_of_first(orders[i], 0.1, 1, 4) - 0.1) < 0.02);
        assert_true(fabs(share_of_first(orders[i], 0.1, 50, 4) - 0.1) < 0.02);
        assert_true(fabs(share_of_first(orders[i], 0.5, 1, 4) - 0.25) < 0.02); /* above its turn */
        assert_true(share_of_first(orders[i], 0.1, 1, 1) == 1);                /* alone: no bound */
    }
}

/* Savings and debts do not outlive the queue; nor does a tenant that was away come with either. */
static void an_empty_queue_makes_all_equal(void **state) {
    struct admission *a = make_priced(100);
    struct admission_ticket t[20] = {{{0}}}, other[2] = {{{0}}};

    (void)state;
    for (int i = 0; i < 10; i++)
        enter(a, &t[i], 1, 2, 1);
    for (int i = 0; i < 10; i++)
        assert_non_null(serve(a));
    enter(a, &t[10], 1, 2, 1);
    enter(a, &other[0], 2, 5, 1);
    assert_false(admission_in_debt(&t[10]));
    assert_ptr_equal(serve(a), &t[10]);
    enter(a, &t[11], 1, 0.1, 1); /* now it was served 2, and the other waits */
    assert_true(admission_in_debt(&t[11]));
    enter(a, &other[1], 3, 9, 1); /* new: no more savings than tenant 2 has */
    assert_ptr_equal(serve(a), &other[0]);
    assert_ptr_equal(serve(a), &other[1]);
    serve_all(a);
}

static void a_ticket_that_leaves_charges_nothing(void **state) {
    struct admission *a = make_priced(10);
    struct admission_ticket t[3] = {{{0}}}, other = {{0}};

    (void)state;
    enter(a, &other, 2, 1, 1);
    for (int i = 0; i < 3; i++)
        enter(a, &t[i], 1, 5, 1);
    admission_remove(a, &t[0]);
    admission_remove(a, &t[1]);
    admission_check(a);
    assert_false(admission_in_debt(&t[2]));
    serve_all(a);
}

static void a_try_that_fails_keeps_the_place_at_the_new_price(void **state) {
    struct admission *a = make_priced(10);
    struct admission_ticket t[3] = {{{0}}};

    (void)state;
    enter(a, &t[0], 1, 0.1, 1);
    enter(a, &t[1], 1, 0.2, 1);
    enter(a, &t[2], 2, 0.3, 1);
    assert_ptr_equal(take_first(a), &t[0]);
    assert_ptr_equal(admission_first(a), &t[1]);
    assert_true(admission_precedes(a, &t[0], &t[1]));
    admission_reprice(a, &t[0], 0.25); /* its prefix was evicted */
    assert_true(admission_precedes(a, &t[1], &t[0]));
    assert_ptr_equal(take_first(a), &t[1]);
    assert_ptr_equal(take_first(a), &t[2]);
    assert_null(admission_first(a));
    assert_int_equal(admission_n_waiting(a), 3);
    admission_check(a);
    admission_put_back(a, &t[2]);
    admission_put_back(a, &t[1]);
    admission_put_back(a, &t[0]);
    admission_check(a);
    assert_ptr_equal(serve(a), &t[1]);
    assert_ptr_equal(serve(a), &t[0]);
    serve_all(a);
}

/* Another router has sent a request of the tenant. */
static void elsewhere(struct admission *a, uint64_t tenant, double work_s, bool has_waited,
                      uint64_t now_us) {
    const struct admission_claim claim = {.tenant = tenant, .work_s = work_s, .weight = 1};

    admission_served(a, &claim, has_waited, now_us);
    admission_check(a);
}

static void what_other_routers_send_is_charged(void **state) {
    struct admission *a = make_priced(100);
    struct admission_ticket t[4] = {{{0}}}, other[2] = {{{0}}};

    (void)state;
    elsewhere(a, 1, 50, true, 1); /* nothing waits: all are equal */
    enter(a, &t[0], 1, 1, 1);
    enter(a, &other[0], 2, 9, 1);
    assert_false(admission_in_debt(&t[0]));
    elsewhere(a, 1, 3, true, 1);
    assert_true(admission_in_debt(&t[0]));
    assert_ptr_equal(serve(a), &other[0]); /* 9 is less than 1 + 10 x 2 */
    elsewhere(a, 2, 3, true, 1);           /* while tenant 2 has nothing here */
    enter(a, &other[1], 2, 0.1, 1);
    assert_true(admission_in_debt(&other[1])); /* served 12, and the first 3 */
    assert_ptr_equal(serve(a), &t[0]);
    serve_all(a);
}

/* Each of two routers has one tenant's queue, and knows what the other's was given. */
static void a_tenant_that_waits_elsewhere_is_owed_for_a_while(void **state) {
    struct admission *a = make_priced(100);
    struct admission_ticket t[20] = {{{0}}};

    (void)state;
    for (int i = 0; i < 20; i++)
        enter(a, &t[i], 1, 1, 1);
    elsewhere(a, 2, 0.5, false, 1); /* it did not have to wait */
    for (int i = 0; i < 3; i++)
        assert_ptr_equal(serve(a), &t[i]);
    assert_false(admission_in_debt(&t[3]));
    elsewhere(a, 2, 0.5, true, 2);
    for (int i = 3; i < 6; i++) /* served 3 more, and the other 0.5 */
        assert_ptr_equal(serve(a), &t[i]);
    assert_true(admission_in_debt(&t[6]));
    elsewhere(a, 2, 2, true, 3);
    elsewhere(a, 2, 0.1, true, 3);
    assert_false(admission_in_debt(&t[6]));
    assert_ptr_equal(serve(a), &t[6]);
    assert_true(admission_in_debt(&t[7]));
    assert_ptr_equal(admission_first(a), &t[7]);
    admission_take_off(a, &t[7]);
    admission_take(a, &t[7], 1, 4 + ADMISSION_GUEST_US); /* it has not been heard of since */
    assert_false(admission_in_debt(&t[8]));
    serve_all(a);
}

/* Whatever is reported, a tenant has its turn when the others were served so much. */
static void false_reports_delay_a_tenant_and_no_more(void **state) {
    struct admission *a = make_priced(1000);
    struct admission_ticket t = {{0}}, others[200] = {{{0}}};
    uint32_t n = 0;

    (void)state;
    enter(a, &t, 1, 1, 1);
    for (int i = 0; i < 200; i++)
        enter(a, &others[i], 2, 1, 1);
    for (uint64_t i = 0; i < 1000; i++) {
        elsewhere(a, 1, 1e9, true, i);
        elsewhere(a, 1000 + i, 1e9, true, i);
    }
    while (serve(a) != &t)
        n++;
    assert_in_range(n, ADMISSION_AHEAD_S - 2, ADMISSION_AHEAD_S + 2);
    serve_all(a);
}

/* By turn: a flow's start is all that counts. */
static void by_turn_others_requests_count_too(void **state) {
    struct admission *a = make(100, 0);
    struct admission_ticket t[2][2] = {{{{0}}}};

    (void)state;
    for (uint64_t i = 0; i < 4; i++)
        assert_int_equal(push(a, &t[i / 2][i % 2], i / 2, 0, 1), ADMISSION_WAITS);
    elsewhere(a, 0, 1.5, true, 1);
    assert_ptr_equal(admission_pop(a, &everywhere, 1), &t[1][0]);
    assert_ptr_equal(admission_pop(a, &everywhere, 1), &t[1][1]);
    assert_ptr_equal(admission_pop(a, &everywhere, 1), &t[0][0]);
    empty(a);
}

/* Tenants of all routers, and two that stand in different queues: shares by weight. */
static void shares_hold_over_routers(void **state) {
    enum { ROUTERS = 4, EACH = 400 };
    struct admission *a[ROUTERS];
    struct admission_ticket(*t)[2][EACH] = mem_calloc(ROUTERS, sizeof(*t)), *displaced;
    double served[2] = {0};
    uint64_t wait_us;
    struct rng rng;

    (void)state;
    rng_seed(&rng, 3);
    for (uint32_t r = 0; r < ROUTERS; r++) {
        a[r] = make_priced(ROUTERS * EACH);
        for (uint32_t i = 0; i < 2 * EACH; i++) { /* tenant 1 comes through the first router */
            struct admission_claim claim = {
                .tenant = i % 2, .work_s = 0.5, .weight = i % 2 ? 2 : 1, .since_us = 1};

            if (i % 2 && r) continue;
            assert_int_equal(
                admission_push(a[r], &t[r][i % 2][i / 2], &claim, &wait_us, &displaced),
                ADMISSION_WAITS);
        }
    }
    for (uint64_t now_us = 1; now_us < 600; now_us++) { /* a place becomes free somewhere */
        bool is_owed = false;
        uint32_t r, tenant;
        struct admission_ticket *got;

        do { /* whose request is in debt lets others go first, as hold.h does */
            r = (uint32_t)rng_below(&rng, ROUTERS);
            got = admission_first(a[r]);
            is_owed = admission_in_debt(got) && rng_below(&rng, 10);
        } while (is_owed);
        admission_take_off(a[r], got);
        admission_take(a[r], got, 0.5, now_us);
        tenant = got >= &t[r][1][0];
        served[tenant] += 0.5;
        for (uint32_t other = 0; other < ROUTERS; other++)
            if (other != r) {
                struct admission_claim claim = {
                    .tenant = tenant, .work_s = 0.5, .weight = tenant ? 2 : 1};

                admission_served(a[other], &claim, true, now_us);
            }
    }
    assert_true(fabs(served[1] / served[0] - 2) < 0.1);
    for (uint32_t r = 0; r < ROUTERS; r++)
        serve_all(a[r]);
    mem_free(t);
}

#define STEP_US 1000000 /* of a random step: sharing lapses now and then */

/* A flood that waits alone is in debt to those who will come, until none has for a while. */
static void a_tenant_alone_is_in_debt_while_others_come(void **state) {
    struct admission *a = make_priced(100);
    struct admission_ticket t[10] = {{{0}}}, other[2] = {{{0}}};

    (void)state;
    for (int i = 0; i < 4; i++)
        enter(a, &t[i], 1, 2, 1);
    assert_ptr_equal(serve(a), &t[0]);
    assert_false(admission_in_debt(&t[1])); /* no other was ever here */
    enter(a, &other[0], 2, 0.1, 1);
    assert_ptr_equal(serve(a), &other[0]);
    assert_ptr_equal(serve(a), &t[1]);
    assert_true(admission_in_debt(&t[2]));
    enter(a, &other[1], 2, 9, 1);
    assert_false(admission_in_debt(&other[1]));
    assert_ptr_equal(serve(a), &other[1]);
    assert_ptr_equal(take_first(a), &t[2]);
    admission_take(a, &t[2], 2, 1000000 + ADMISSION_ALONE_US); /* enough time has passed */
    assert_false(admission_in_debt(&t[3]));
    serve_all(a);
}

/* The definition, line by line: everything is looked at each time. */
struct priced { /* by band, then tenant */
    double served[FLOWS], now[BANDS], most[BANDS];
    uint32_t n[FLOWS];
    uint32_t last[BANDS]; /* flow + 1 that began to wait last */
    uint64_t shared_us[BANDS];
    bool is_shared[BANDS];
    uint64_t
        guest_us[FLOWS];   /* has no tickets and was last served elsewhere, after waiting; or 0 */
    double weights[FLOWS]; /* of its tickets here; 0: had none */
    double told[FLOWS];    /* by others; 0: 1 */
};

static bool in_band(const struct model_ticket *m, int32_t priority) {
    return m->is_in && m->priority == priority;
}

static double least_served(const struct priced *p, int32_t priority, uint64_t now_us) {
    double least = HUGE_VAL;

    for (uint32_t i = 0; i < TENANTS; i++) {
        uint32_t f = (uint32_t)(priority + 1) * TENANTS + i;
        bool is_guest = p->guest_us[f] && now_us <= p->guest_us[f] + ADMISSION_GUEST_US;

        if (p->n[f] || is_guest) least = fmin(least, p->served[f]);
    }
    return least;
}

static double priced_debt(const struct priced *p, const struct model_ticket *m) {
    double over = p->served[flow_index(m)] - p->now[m->priority + 1] - ADMISSION_FREE_S;

    return p->is_shared[m->priority + 1] ? ADMISSION_DEBT * fmax(over, 0) : 0;
}

static double priced_key(const struct priced *p, const struct model_ticket *m) {
    return priced_debt(p, m) + m->work_s + ADMISSION_AGING * (double)m->t.since_us * 1e-6;
}

static struct model_ticket *priced_first(const struct priced *p, struct model_ticket *all) {
    struct model_ticket *first = NULL;
    double least = 0;

    for (int i = 0; i < N_LONG; i++) {
        double key;

        if (!all[i].is_in || all[i].is_off || (first && all[i].priority > first->priority))
            continue;
        key = priced_key(p, &all[i]);
        /* Keys are sums of several terms: equal ones differ by rounding. */
        if (!first || all[i].priority < first->priority || key < least - 1e-9 ||
            (key < least + 1e-9 && all[i].order < first->order)) {
            first = &all[i];
            least = key;
        }
    }
    return first;
}

static void priced_leave(struct priced *p, const struct model_ticket *all, struct model_ticket *m) {
    bool is_empty = true;

    m->is_in = false;
    p->n[flow_index(m)]--;
    for (int i = 0; i < N_LONG; i++)
        is_empty = is_empty && !in_band(&all[i], m->priority);
    if (is_empty) p->now[m->priority + 1] = p->most[m->priority + 1];
}

static void priced_note(struct priced *p, uint32_t f, uint64_t now_us) {
    uint32_t band = f / TENANTS;

    if (p->last[band] && p->last[band] != f + 1) {
        p->shared_us[band] = now_us;
        p->is_shared[band] = true;
    }
    p->last[band] = f + 1;
}

static void priced_enter(struct priced *p, const struct model_ticket *m, double weight) {
    uint32_t f = flow_index(m);

    p->guest_us[f] = 0;
    p->weights[f] = weight;
    if (p->n[f]++) return;
    p->served[f] = fmax(p->served[f], p->now[f / TENANTS]);
    priced_note(p, f, m->t.since_us);
}

static void priced_pass(struct priced *p, uint32_t band, uint64_t now_us) {
    uint32_t n_flows = 0;

    for (uint32_t i = 0; i < TENANTS; i++)
        n_flows += p->n[band * TENANTS + i] > 0;
    p->is_shared[band] =
        n_flows > 1 || (p->shared_us[band] && now_us < p->shared_us[band] + ADMISSION_ALONE_US);
    p->now[band] = fmax(p->now[band], least_served(p, (int32_t)band - 1, now_us));
}

static void priced_elsewhere(struct priced *p, uint32_t f, double price_s, double weight,
                             bool has_waited, uint64_t now_us) {
    uint32_t band = f / TENANTS, n = 0;
    double most;

    for (uint32_t i = 0; i < TENANTS; i++)
        n += p->n[band * TENANTS + i];
    if (!n) return;
    if (has_waited) priced_note(p, f, now_us);
    priced_pass(p, band, now_us);
    p->served[f] = fmax(p->served[f], p->now[band]);
    most = fmax(p->served[f], p->now[band] + ADMISSION_AHEAD_S);
    if (weight > 0) p->told[f] = weight;
    weight = p->weights[f] > 0 ? p->weights[f] : p->told[f] > 0 ? p->told[f] : 1;
    p->served[f] += fmax(price_s, 0.001) / weight;
    p->served[f] = fmin(p->served[f], most);
    p->most[band] = fmax(p->most[band], p->served[f]);
    if (has_waited && !p->n[f]) p->guest_us[f] = now_us;
}

static void priced_serve(struct priced *p, const struct model_ticket *all, struct model_ticket *m,
                         double price_s, double weight, uint64_t now_us) {
    uint32_t f = flow_index(m), band = (uint32_t)(m->priority + 1);

    priced_pass(p, band, now_us);
    p->served[f] += fmax(price_s, 0.001) / weight;
    p->most[band] = fmax(p->most[band], p->served[f]);
    priced_leave(p, all, m);
}

static void random_steps_by_price_are_those_of_the_definition(void **state) {
    static const double weights[TENANTS] = {1, 1, 2, 1, 0.5, 4};
    struct admission *a = make_priced(LONG_QUEUE);
    struct model_ticket *all = mem_calloc(N_LONG, sizeof(*all));
    struct priced p = {{0}};
    uint32_t n = 0, n_in_debt = 0, n_served = 0, n_left_off = 0;
    struct rng rng;

    (void)state;
    rng_seed(&rng, support_seed());
    for (uint64_t step = 1; step < 60000; step++) {
        struct model_ticket *m = &all[rng_below(&rng, N_LONG)], *other;
        uint64_t is_busy = (step / 2000) % 2, dice = rng_below(&rng, 12), wait_us;
        struct admission_ticket *t, *displaced;

        if (dice < (is_busy ? 6u : 3u) && !m->is_in && n < LONG_QUEUE) {
            m->tenant = (uint32_t)rng_below(&rng, TENANTS) * (uint32_t)rng_below(&rng, 2);
            m->priority = (int32_t)rng_below(&rng, BANDS) - 1;
            m->order = step;
            m->work_s = 0.001 + (double)rng_below(&rng, 20) * 0.25;
            assert_int_equal(admission_push(a, &m->t,
                                            &(struct admission_claim){
                                                .tenant = m->tenant,
                                                .priority = m->priority,
                                                .work_s = m->work_s,
                                                .weight = weights[m->tenant],
                                                .since_us = step * STEP_US - rng_below(&rng, 1000)},
                                            &wait_us, &displaced),
                             ADMISSION_WAITS);
            m->is_in = true;
            n++;
            priced_enter(&p, m, weights[m->tenant]);
        } else if (dice < 8) {
            double price_s = (double)rng_below(&rng, 20) * 0.25;

            t = admission_first(a);
            other = priced_first(&p, all);
            assert_ptr_equal(t, other);
            if (!t) continue;
            if (m->is_in && !m->is_off && &m->t != t)
                assert_true(admission_precedes(a, t, &m->t) && !admission_precedes(a, &m->t, t));
            admission_take_off(a, t);
            n_in_debt += admission_in_debt(t);
            assert_int_equal(admission_in_debt(t), priced_debt(&p, other) > 0);
            if (rng_below(&rng, 3) == 0) {
                admission_reprice(a, t, price_s);
                other->work_s = fmax(price_s, 0.001);
                other->is_off = rng_below(&rng, 2);
                if (!other->is_off) admission_put_back(a, t);
            } else {
                admission_take(a, t, price_s, step * STEP_US);
                priced_serve(&p, all, other, price_s, weights[other->tenant], step * STEP_US);
                n--;
                n_served++;
            }
        } else if (dice < 10) { /* another router has sent one */
            struct admission_claim claim = {.tenant = rng_below(&rng, TENANTS),
                                            .priority = (int32_t)rng_below(&rng, BANDS) - 1,
                                            .weight = (double)rng_below(&rng, 3),
                                            .work_s = (double)rng_below(&rng, 20) * 0.25};
            bool has_waited = rng_below(&rng, 2);

            if (rng_below(&rng, 50) == 0) claim.work_s = 1e9; /* false */
            admission_served(a, &claim, has_waited, step * STEP_US);
            priced_elsewhere(&p, (uint32_t)(claim.priority + 1) * TENANTS + (uint32_t)claim.tenant,
                             claim.work_s, claim.weight, has_waited, step * STEP_US);
        } else if (m->is_in && m->is_off && rng_below(&rng, 4)) {
            admission_put_back(a, &m->t);
            m->is_off = false;
        } else if (m->is_in) {
            n_left_off += m->is_off;
            m->is_off = false;
            admission_remove(a, &m->t);
            priced_leave(&p, all, m);
            n--;
        }
        assert_int_equal(admission_n_waiting(a), n);
        if (step % 7 == 0) admission_check(a);
    }
    assert_true(n_served > 3000 && n_in_debt > 100 && n_left_off > 20);
    for (int i = 0; i < N_LONG; i++) {
        if (all[i].is_in && all[i].is_off) admission_put_back(a, &all[i].t);
    }
    serve_all(a);
    mem_free(all);
}

static void a_new_order_applies_to_those_that_wait(void **state) {
    struct admission_options options = {.queue_size = 100};
    struct admission *a = admission_create(&options);
    struct admission_ticket t[60] = {{{0}}};
    uint32_t n;

    (void)state;
    for (uint64_t i = 0; i < 60; i++) {
        enter(a, &t[i], i % 3, 0.1 * (double)(60 - i), 1);
        if (i % 4 == 0) assert_non_null(admission_pop(a, &everywhere, 1));
    }
    for (int i = 0; i < 6; i++) {
        options.order = i % 2 ? ADMISSION_BY_TURN : ADMISSION_BY_PRICE;
        admission_configure(a, &options);
        admission_check(a);
        assert_non_null(i % 2 ? admission_pop(a, &everywhere, 1) : serve(a));
    }
    options.order = ADMISSION_BY_PRICE;
    admission_configure(a, &options);
    admission_check(a);
    n = admission_n_waiting(a);
    assert_int_equal(n, 60 - 15 - 6);
    while (n--)
        assert_non_null(serve(a));
    serve_all(a);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_least_price_is_first_and_equals_by_arrival),
        cmocka_unit_test(ten_seconds_are_level_with_one_after_three_minutes),
        cmocka_unit_test(a_tenant_in_debt_is_behind_others),
        cmocka_unit_test(a_tenant_alone_is_in_debt_while_others_come),
        cmocka_unit_test(weights_divide_what_is_charged),
        cmocka_unit_test(a_share_is_bounded_while_others_wait),
        cmocka_unit_test(an_empty_queue_makes_all_equal),
        cmocka_unit_test(a_ticket_that_leaves_charges_nothing),
        cmocka_unit_test(a_try_that_fails_keeps_the_place_at_the_new_price),
        cmocka_unit_test(what_other_routers_send_is_charged),
        cmocka_unit_test(a_tenant_that_waits_elsewhere_is_owed_for_a_while),
        cmocka_unit_test(false_reports_delay_a_tenant_and_no_more),
        cmocka_unit_test(by_turn_others_requests_count_too),
        cmocka_unit_test(shares_hold_over_routers),
        cmocka_unit_test(random_steps_by_price_are_those_of_the_definition),
        cmocka_unit_test(a_new_order_applies_to_those_that_wait),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
