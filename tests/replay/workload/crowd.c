/* tests/replay/workload/crowd.c - bursts, a flash crowd and a flood made of other requests. */
#include "tests/replay/workload/crowd.h"

#include <math.h>

#define CROWD_TOKENS 20000 /* of the crowd's prefix, and of the flood's prompts */
#define FLOOD_REST   17    /* tokens in the last block of these prompts */
#define FLASH_OWN    3     /* blocks at most behind the prefix */
#define BURST_S      60.0
#define PERIOD_S     600.0

#define NAMES_HOT   (UINT64_C(99) << 50)
#define NAMES_OWN   (UINT64_C(77) << 50)
#define NAMES_FLOOD (UINT64_C(78) << 50)

/* n_hot blocks named from `hot` on, then n_own named after the request. */
static void rename_prompt(struct workload *w, struct workload_request *q, uint32_t number,
                          uint64_t hot, uint32_t n_hot, uint32_t n_own) {
    uint64_t *chain = workload_new_chain(w, n_hot + n_own);

    for (uint32_t i = 0; i < n_hot + n_own; i++)
        chain[i] =
            workload_name(i < n_hot ? hot + i : NAMES_OWN + (uint64_t)number * 8 + i - n_hot);
    q->chain = chain;
    q->n_blocks = q->n_names = n_hot + n_own;
    q->session = 0;
}

static void join_flash(struct workload *w, struct workload_request *q, uint32_t number) {
    uint32_t bt = w->block_tokens, n_hot = CROWD_TOKENS / bt, n_own = MIN(q->n_blocks, FLASH_OWN);

    q->n_prompt = (n_hot + n_own) * bt + q->n_prompt % bt;
    q->tenant = TENANT_FLASH;
    rename_prompt(w, q, number, NAMES_HOT, n_hot, n_own);
}

static void join_flood(struct workload *w, struct workload_request *q, uint32_t number) {
    uint32_t n = CROWD_TOKENS / w->block_tokens;

    q->n_prompt = n * w->block_tokens + FLOOD_REST;
    q->tenant = TENANT_FLOOD;
    rename_prompt(w, q, number, NAMES_FLOOD + (uint64_t)number * n, n, 0);
}

void crowd_replace(struct workload *w, uint32_t first, uint32_t n, double half_s,
                   const struct crowd *crowd, uint64_t *lots) {
    for (uint32_t i = first; i < first + n; i++) {
        struct workload_request *q = &w->requests[i];

        if (q->arrival_s <= half_s) continue;
        if (crowd->flash > 0 && crowd_lot(lots) < crowd->flash)
            join_flash(w, q, i);
        else if (crowd->flood > 0 && crowd_lot(lots) < crowd->flood)
            join_flood(w, q, i);
    }
}

/* The first `busy` of each period is what BURST_S then has room for. */
void crowd_burst(struct workload *w, const struct crowd *crowd) {
    double busy = crowd->burst * BURST_S / PERIOD_S, slow = (1 - busy) / (1 - BURST_S / PERIOD_S);

    if (!(crowd->burst > 0)) return;
    for (uint32_t i = 0; i < w->n; i++) {
        double *t = &w->requests[i].arrival_s, base_s = floor(*t / PERIOD_S) * PERIOD_S;
        double x = (*t - base_s) / PERIOD_S;

        x = x < busy ? x / crowd->burst : BURST_S / PERIOD_S + (x - busy) / slow;
        *t = base_s + x * PERIOD_S;
    }
    workload_sort(w);
}
