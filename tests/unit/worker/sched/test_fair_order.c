/* tests/unit/worker/sched/test_fair_order.c - the order of prompts against a model that sorts:
 * every debt is computed from the definition, the least served by a walk over all tenants. */
#include <math.h>
#include <string.h>

#include "common/base/rng.h"
#include "tests/support/cm.h"
#include "tests/support/support.h"
#include "worker/sched/fair_order.h"

#define MAX_TURNS   60
#define MAX_TENANTS 12

struct model {
    struct fair_order order;
    struct rng rng;
    struct fair_turn turn[MAX_TURNS];
    uint32_t tenant[MAX_TURNS];
    bool has_joined[MAX_TURNS], waits[MAX_TURNS];
    double served[MAX_TENANTS], virtual_s;
    uint32_t n_active[MAX_TENANTS];
    uint64_t n_added;
};

static double least(const struct model *m) {
    double s = INFINITY;

    for (uint32_t i = 0; i < MAX_TENANTS; i++)
        if (m->n_active[i] > 0) s = MIN(s, m->served[i]);
    return isinf(s) ? m->virtual_s : s;
}

static void activate(struct model *m, uint32_t tenant) {
    if (m->n_active[tenant]++ > 0) return;
    m->n_active[tenant]--;
    m->virtual_s = MAX(m->virtual_s, least(m));
    m->n_active[tenant]++;
    m->served[tenant] = MAX(m->served[tenant], m->virtual_s);
}

static void deactivate(struct model *m, uint32_t tenant) {
    bool is_any = false;

    if (m->n_active[tenant] == 1) m->virtual_s = MAX(m->virtual_s, least(m));
    if (--m->n_active[tenant] > 0) return;
    for (uint32_t i = 0; i < MAX_TENANTS; i++)
        is_any |= m->n_active[i] > 0;
    if (is_any) return;
    m->virtual_s = 0;
    memset(m->served, 0, sizeof(m->served));
}

static double debt(const struct model *m, uint32_t tenant) {
    return m->n_active[tenant] == 0
               ? 0
               : FAIR_WEIGHT * MAX(0, m->served[tenant] - least(m) - FAIR_QUANTUM_S);
}

static bool goes_before(const struct model *m, uint32_t i, uint32_t j) {
    const struct fair_turn *a = &m->turn[i], *b = &m->turn[j];
    double x = a->key + debt(m, m->tenant[i]), y = b->key + debt(m, m->tenant[j]);

    if (a->band != b->band) return a->band < b->band;
    if (a->has_begun || b->has_begun) return a->has_begun && (!b->has_begun || a->seq < b->seq);
    if (x < y || x > y) return x < y;
    if (a->is_resumed != b->is_resumed) return a->is_resumed;
    return a->seq < b->seq;
}

static void check_first(struct model *m) {
    uint32_t first = MAX_TURNS;

    for (uint32_t i = 0; i < MAX_TURNS; i++)
        if (m->waits[i] && (first == MAX_TURNS || goes_before(m, i, first))) first = i;
    assert_ptr_equal(fair_order_first(&m->order), first == MAX_TURNS ? NULL : &m->turn[first]);
    for (uint32_t i = 0; i < MAX_TURNS; i++) {
        uint32_t j = (uint32_t)rng_below(&m->rng, MAX_TURNS);

        if (i == j || !m->has_joined[i] || !m->has_joined[j]) continue;
        assert_int_equal(fair_order_before(&m->order, &m->turn[i], &m->turn[j]),
                         goes_before(m, i, j));
    }
    fair_order_check(&m->order);
}

/* Multiples of 1/4: sums are exact, and ties happen. */
static void draw_key(struct model *m, struct fair_turn *t) {
    t->key = 0.25 * (double)rng_below(&m->rng, 60);
    t->band = rng_below(&m->rng, 8) ? 0 : (int32_t)rng_below(&m->rng, 3) - 1;
    t->has_begun = rng_below(&m->rng, 12) == 0;
    t->is_resumed = rng_below(&m->rng, 4) == 0;
}

static void join(struct model *m, uint32_t i) {
    m->turn[i] = (struct fair_turn){.seq = m->n_added++};
    m->tenant[i] = (uint32_t)rng_below(&m->rng, MAX_TENANTS);
    m->has_joined[i] = true;
    fair_order_join(&m->order, &m->turn[i], m->tenant[i]);
}

static void begin(struct model *m, uint32_t i) {
    bool is_new = !m->turn[i].is_in_progress;

    fair_order_begin(&m->order, &m->turn[i]);
    if (is_new) activate(m, m->tenant[i]);
}

static void end(struct model *m, uint32_t i) {
    bool was = m->turn[i].is_in_progress;

    fair_order_end(&m->order, &m->turn[i]);
    if (was) deactivate(m, m->tenant[i]);
}

static void push(struct model *m, uint32_t i) {
    draw_key(m, &m->turn[i]);
    fair_order_push(&m->order, &m->turn[i]);
    m->waits[i] = true;
    activate(m, m->tenant[i]);
}

static void take_out(struct model *m, uint32_t i) {
    fair_order_remove(&m->order, &m->turn[i]);
    if (m->waits[i]) deactivate(m, m->tenant[i]);
    m->waits[i] = false;
}

static void leave(struct model *m, uint32_t i) {
    take_out(m, i);
    end(m, i);
    fair_order_leave(&m->order, &m->turn[i]);
    m->has_joined[i] = false;
}

static void charge(struct model *m, uint32_t i) {
    double s = 0.25 * (double)rng_below(&m->rng, 12);
    bool is_any = false;

    for (uint32_t k = 0; k < MAX_TENANTS; k++)
        is_any |= m->n_active[k] > 0;
    if (!is_any || m->n_active[m->tenant[i]] == 0) return; /* checked by a test of its own */
    fair_order_charge(&m->order, &m->turn[i], s);
    m->served[m->tenant[i]] += s;
}

static void change_one(struct model *m) {
    uint32_t i = (uint32_t)rng_below(&m->rng, MAX_TURNS);

    if (!m->has_joined[i]) {
        join(m, i);
        return;
    }
    switch (rng_below(&m->rng, 8)) {
    case 0: begin(m, i); break;
    case 1: end(m, i); break;
    case 2: leave(m, i); break;
    case 3: take_out(m, i); break;
    case 4: charge(m, i); break;
    default:
        if (!m->waits[i]) {
            push(m, i);
        } else {
            draw_key(m, &m->turn[i]);
            fair_order_update(&m->order, &m->turn[i]);
        }
    }
}

static void the_first_is_the_one_that_sorting_gives(void **state) {
    static struct model m;

    (void)state;
    for (uint64_t run = 0; run < 40; run++) {
        memset(&m, 0, sizeof(m));
        rng_seed(&m.rng, support_seed() * 100 + run);
        fair_order_init(&m.order);
        for (uint32_t i = 0; i < 3000; i++) {
            change_one(&m);
            check_first(&m);
        }
        for (uint32_t i = 0; i < MAX_TURNS; i++)
            if (m.has_joined[i]) leave(&m, i);
        fair_order_fini(&m.order);
    }
}

static void add(struct fair_order *o, struct fair_turn *t, uint64_t tenant, double key) {
    static uint64_t seq;

    *t = (struct fair_turn){.seq = seq++, .key = key};
    fair_order_join(o, t, tenant);
    fair_order_push(o, t);
}

/* 36 */
static void order_36_neither_savings_nor_debts_outlive_a_quiet_time(void **state) {
    struct fair_order o;
    struct fair_turn a, b, c;

    (void)state;
    fair_order_init(&o);
    add(&o, &a, 1, 1);
    add(&o, &b, 2, 5);
    fair_order_charge(&o, &a, 10);
    assert_true(fair_order_debt(&o, &a) == FAIR_WEIGHT * (10 - FAIR_QUANTUM_S));
    assert_ptr_equal(fair_order_first(&o), &b);
    fair_order_charge(&o, &b, 9);
    add(&o, &c, 3, 4.5); /* begins where the least served is: with no savings */
    assert_true(fair_order_debt(&o, &a) == 0 && fair_order_debt(&o, &b) == 0);
    fair_order_charge(&o, &c, 1.5);
    assert_true(fair_order_debt(&o, &c) == 0);
    fair_order_leave(&o, &a);
    fair_order_leave(&o, &b);
    fair_order_leave(&o, &c);
    add(&o, &a, 1, 1); /* nothing waited: its debt is gone */
    add(&o, &b, 2, 0.5);
    assert_true(fair_order_debt(&o, &a) == 0);
    fair_order_charge(&o, &b, 1);
    assert_true(fair_order_debt(&o, &a) == 0);
    fair_order_leave(&o, &a);
    fair_order_leave(&o, &b);
    fair_order_fini(&o);
}

/* 37 */
static void order_37_what_does_not_wait_is_charged_too(void **state) {
    struct fair_order o;
    struct fair_turn a, b;

    (void)state;
    fair_order_init(&o);
    add(&o, &b, 2, 5);
    add(&o, &a, 1, 1);
    fair_order_remove(&o, &a); /* computed at once: not in progress after its step */
    fair_order_charge(&o, &a, 6);
    fair_order_push(&o, &a);
    assert_true(fair_order_debt(&o, &a) == FAIR_WEIGHT * (6 - FAIR_QUANTUM_S));
    assert_ptr_equal(fair_order_first(&o), &b);
    fair_order_leave(&o, &a);
    fair_order_leave(&o, &b);
    fair_order_fini(&o);
}

/* 39: with a tenant that waits all the time, so that no quiet time forgets them. */
static void order_39_ten_thousand_tenants_take_bounded_memory(void **state) {
    enum { N = 10000 };
    static struct fair_turn turn[N];
    struct fair_order o;
    struct fair_turn waiting;

    (void)state;
    fair_order_init(&o);
    add(&o, &waiting, 1, 1e9);
    for (uint64_t i = 0; i < N; i++) {
        add(&o, &turn[i], 100 + i, 1);
        fair_order_charge(&o, &turn[i], 1 + (double)(i % 7));
        assert_ptr_not_equal(fair_order_first(&o), NULL);
        fair_order_leave(&o, &turn[i]);
        assert_true(fair_order_n_tenants(&o) <= FAIR_IDLE_MAX + 2);
    }
    fair_order_check(&o);
    for (uint64_t i = 0; i < N; i++)
        add(&o, &turn[i], 100 + i, (double)(i % 50));
    assert_true(fair_order_n_tenants(&o) >= N);
    for (uint64_t i = 0; i < N; i++)
        fair_order_leave(&o, &turn[i]);
    fair_order_charge(&o, &waiting, 100); /* all have caught up: they are as unknown ones */
    add(&o, &turn[0], 5, 1);
    fair_order_leave(&o, &turn[0]);
    fair_order_leave(&o, &waiting);
    assert_int_equal(fair_order_n_tenants(&o), 0);
    fair_order_fini(&o);
}

/* Two that always wait, with equal keys: each gets half of the device whatever its prompts are. */
static void tenants_share_the_device_equally(void **state) {
    struct fair_order o;
    struct fair_turn turn[2][4];
    double served[2] = {0};

    (void)state;
    fair_order_init(&o);
    for (uint32_t i = 0; i < 2; i++)
        for (uint32_t k = 0; k < 4; k++)
            add(&o, &turn[i][k], i, i ? 8 : 0.5);
    for (uint32_t n = 0; n < 2000; n++) {
        struct fair_turn *t = fair_order_first(&o);
        uint32_t who = t >= turn[1] ? 1 : 0;
        double s = who ? 8 : 0.5;

        served[who] += s;
        fair_order_charge(&o, t, s);
    }
    assert_true(fabs(served[0] - served[1]) < 8 + 2 * FAIR_QUANTUM_S);
    for (uint32_t i = 0; i < 2; i++)
        for (uint32_t k = 0; k < 4; k++)
            fair_order_leave(&o, &turn[i][k]);
    fair_order_fini(&o);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_first_is_the_one_that_sorting_gives),
        cmocka_unit_test(order_36_neither_savings_nor_debts_outlive_a_quiet_time),
        cmocka_unit_test(order_37_what_does_not_wait_is_charged_too),
        cmocka_unit_test(order_39_ten_thousand_tenants_take_bounded_memory),
        cmocka_unit_test(tenants_share_the_device_equally),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
