/* tests/bench/bench_admission.c - what it costs to wait: 100,000 do, of few or of many tenants.
 *
 * `turn` is one popped and one that enters, `leave` one that gives up somewhere in the queue and
 * one that enters, `displace` one that enters a full queue in another's place. Best of seven rounds
 * (of three, for the last). */
#include <stdio.h>
#include <stdlib.h>

#include "common/base/clock.h"
#include "common/base/mem.h"
#include "common/base/rng.h"
#include "router/queue/admission.h"

#define N_WAITING   100000
#define N_ROUNDS    7
#define N_PER_ROUND 20000

static const struct worker_mask everywhere = {{UINT64_MAX}};

static void enter(struct admission *a, struct admission_ticket *t, uint64_t tenant,
                  int32_t priority, struct admission_ticket **displaced) {
    struct admission_claim claim = {
        .tenant = tenant, .priority = priority, .work_s = 0.1, .home = WORKER_NONE};
    uint64_t wait_us;

    if (admission_push(a, t, &claim, &wait_us, displaced) != ADMISSION_WAITS) abort();
}

static double ns_each(uint64_t began_us) {
    return (double)(clock_now_us() - began_us) * 1e3 / N_PER_ROUND;
}

static void bench(uint64_t n_tenants) {
    struct admission *a =
        admission_create(&(struct admission_options){.queue_size = N_WAITING, .max_wait_us = 0});
    struct admission_ticket *tickets = mem_calloc(N_WAITING + 1, sizeof(*tickets));
    struct admission_ticket *spare = &tickets[N_WAITING], *gone;
    double turn = 1e9, leave = 1e9, displace = 1e9;
    struct rng rng;
    uint64_t began_us;

    rng_seed(&rng, n_tenants);
    for (uint32_t i = 0; i < N_WAITING; i++)
        enter(a, &tickets[i], rng_below(&rng, n_tenants), 0, &gone);
    for (int round = 0; round < N_ROUNDS; round++) {
        began_us = clock_now_us();
        for (uint32_t i = 0; i < N_PER_ROUND; i++)
            enter(a, admission_pop(a, &everywhere, 1), rng_below(&rng, n_tenants), 0, &gone);
        turn = MIN(turn, ns_each(began_us));
        began_us = clock_now_us();
        for (uint32_t i = 0; i < N_PER_ROUND; i++) {
            struct admission_ticket *t = &tickets[rng_below(&rng, N_WAITING + 1)];

            if (t == spare) continue;
            admission_remove(a, t);
            enter(a, t, rng_below(&rng, n_tenants), 0, &gone);
        }
        leave = MIN(leave, ns_each(began_us));
    }
    for (int round = 0; round < N_ROUNDS / 2; round++) { /* while the usual band has enough */
        began_us = clock_now_us();
        for (uint32_t i = 0; i < N_PER_ROUND; i++) {
            enter(a, spare, n_tenants + rng_below(&rng, 16), -1, &gone);
            spare = gone;
        }
        displace = MIN(displace, ns_each(began_us));
    }
    printf("%d waiting, %6llu tenants: turn %.0f ns, leave %.0f, displace %.0f\n", N_WAITING,
           (unsigned long long)n_tenants, turn, leave, displace);
    while (admission_pop(a, &everywhere, 1)) {
    }
    admission_destroy(a);
    mem_free(tickets);
}

int main(void) {
    static const uint64_t tenants[] = {1, 1000, 100000};

    for (size_t i = 0; i < ARRAY_LEN(tenants); i++)
        bench(tenants[i]);
    return 0;
}
