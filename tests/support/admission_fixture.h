/* tests/support/admission_fixture.h - queues that are filled and emptied, and tickets of models. */
#ifndef TESTS_SUPPORT_ADMISSION_FIXTURE_H
#define TESTS_SUPPORT_ADMISSION_FIXTURE_H

#include "router/queue/admission.h"
#include "tests/support/cm.h"

static inline struct admission *make(uint32_t queue_size, uint64_t max_wait_us) {
    return admission_create(
        &(struct admission_options){.queue_size = queue_size, .max_wait_us = max_wait_us});
}

static const struct worker_mask everywhere = {{UINT64_MAX}};

static inline enum admission_verdict try_push(struct admission *a, struct admission_ticket *t,
                                              uint64_t tenant, int32_t priority, double work_s,
                                              uint64_t *wait_us,
                                              struct admission_ticket **displaced) {
    struct admission_claim claim = {
        .tenant = tenant, .priority = priority, .work_s = work_s, .home = WORKER_NONE};

    return admission_push(a, t, &claim, wait_us, displaced);
}

static inline enum admission_verdict push(struct admission *a, struct admission_ticket *t,
                                          uint64_t tenant, int32_t priority, double work_s) {
    struct admission_ticket *displaced;
    uint64_t wait_us;
    enum admission_verdict v = try_push(a, t, tenant, priority, work_s, &wait_us, &displaced);

    assert_null(displaced);
    return v;
}

static inline void empty(struct admission *a) {
    while (admission_pop(a, &everywhere, 1)) {
    }
    admission_check(a);
    admission_destroy(a);
}

/* --- of the models ---------------------------------------------------------------------------- */

struct model_ticket {
    struct admission_ticket t; /* first: they are cast */
    uint32_t tenant;
    int32_t priority;
    uint64_t order;
    double work_s;
    uint32_t home, n_passed;
    bool is_in, is_off; /* waits; not in its place */
};

/* Flows that are often longer than what is looked at of one. */
enum { TENANTS = 6, BANDS = 3, FLOWS = BANDS * TENANTS, LONG_QUEUE = 160, N_LONG = 500 };

static inline uint32_t flow_index(const struct model_ticket *m) {
    return (uint32_t)(m->priority + 1) * TENANTS + m->tenant;
}

#endif
