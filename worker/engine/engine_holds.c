/* worker/engine/engine_holds.c - prefixes that clients hold: made, released and listed, on the
 * engine's thread, between two steps. */
#include "common/base/clock.h"
#include "worker/engine/engine_internal.h"

static void describe(const struct engine *e, const struct block_hold *hold,
                     struct engine_hold *out) {
    const struct block_holds *holds = kv_manager_holds(e->kv);
    uint64_t block_size = e->info.block_size, now_us = clock_now_us();
    double rate = scheduler_prefill_rate(e->sched);

    *out = (struct engine_hold){
        .ask = {.id = hold->id, .owner = hold->owner, .holder = hold->holder, .ttl_s = hold->ttl_s},
        .n_tokens = hold->n_blocks * block_size,
        .n_bytes = hold->n_blocks * e->info.block_bytes,
        .is_here = hold->is_in[HOLD_HERE],
        .n_below_bytes = block_holds_n_below(holds, hold) * e->info.block_bytes,
        .left_s = (double)hold->ttl_s - 1e-6 * (double)(now_us - hold->used_us),
        .value = block_holds_value(holds, hold),
        .n_hits = hold->n_hits,
        .saved_tokens = hold->n_saved * block_size,
        .saved_s = rate > 0 ? (double)(hold->n_saved * block_size) / rate : 0,
        .byte_s = 1e-6 * (double)(now_us - hold->made_us) *
                  (double)(hold->n_blocks * e->info.block_bytes),
    };
}

static void list_holds(const struct engine *e, struct engine_hold_call *call) {
    const struct block_holds *holds = kv_manager_holds(e->kv);

    call->totals = e->totals.holds;
    for (uint32_t i = 0; i < call->totals.table.n_holds; i++)
        describe(e, block_holds_at(holds, i), &call->holds[call->n_holds++]);
}

static void make_hold(struct engine *e, struct engine_hold_call *call) {
    struct request *r = call->request;
    const struct block_hold *hold;

    call->status = kv_manager_hold(e->kv, &r->kv, r->tokens, call->n_tokens, &call->hold.ask, &hold,
                                   &call->err);
    if (call->status == ST_OK) describe(e, hold, &call->hold);
}

static void count_below(const struct engine *e, struct engine_holds *t) {
    t->below = NULL;
    for (uint32_t i = 0; e->lower && i < lower_n_tiers(e->lower); i++) {
        struct lower_stats s;

        lower_stats(e->lower, i, &s);
        if (s.max_held == 0) continue;
        t->below = s.name;
        t->n_below_blocks = s.n_held;
        t->max_below_blocks = s.max_held;
        return;
    }
}

void engine_count_holds(struct engine *e) {
    const struct block_holds *holds = kv_manager_holds(e->kv);
    struct engine_holds *t = &e->totals.holds;
    double rate = scheduler_prefill_rate(e->sched);

    if (!holds) return;
    t->table = block_holds_stats(holds);
    t->is_on_host = kv_manager_holds_on_host(e->kv);
    t->n_bytes = t->table.n_blocks * e->info.block_bytes;
    t->max_bytes = t->table.max_blocks[HOLD_HERE] * e->info.block_bytes;
    t->byte_s = t->table.block_s * (double)e->info.block_bytes;
    count_below(e, t);
    t->saved_tokens = t->table.n_saved * e->info.block_size;
    t->saved_s = rate > 0 ? (double)t->saved_tokens / rate : 0;
}

void engine_on_hold(struct engine *e, struct engine_hold_call *call) {
    kv_manager_set_now(e->kv, clock_now_us());
    switch (call->op) {
    case ENGINE_HOLD: make_hold(e, call); break;
    case ENGINE_RELEASE:
        call->status = kv_manager_release_hold(e->kv, call->hold.ask.id, call->hold.ask.owner);
        break;
    case ENGINE_LIST: break;
    }
    engine_update_stats(e); /* before the answer, whose reader may look at them */
    if (call->op == ENGINE_LIST) list_holds(e, call);
    engine_send(e->outbox, &call->mail, MAIL_HOLD);
}

void engine_call_hold(struct engine *e, struct engine_hold_call *call) {
    engine_send(e->inbox, &call->mail, MAIL_HOLD);
}
