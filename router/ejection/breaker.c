/* router/ejection/breaker.c - four states, six events. */
#include "router/ejection/breaker.h"

const char *const breaker_cause_names[BREAKER_N_CAUSES] = {
    [BREAKER_UNREACHED] = "unreachable",
    [BREAKER_LOST] = "lost",
    [BREAKER_ERRORS] = "errors",
    [BREAKER_EMPTY] = "empty",
};

static uint64_t choose_pause(const struct breaker *b, const struct breaker_failure *f) {
    uint64_t cost_us = MIN(f->cost_us, BREAKER_MAX_US) * BREAKER_COST;
    uint64_t pause_us = MAX(f->min_us, cost_us);

    if (f->is_seen) pause_us = MAX(pause_us, BREAKER_MIN_US << MIN(b->n_seen, 6u));
    return MIN(pause_us, BREAKER_MAX_US);
}

void breaker_failed(struct breaker *b, const struct breaker_failure *f, uint64_t now_us) {
    if (b->state == BREAKER_OPEN) return; /* others that were under way fail too: one event */
    b->state = BREAKER_OPEN;
    b->cause = f->cause;
    b->pause_us = choose_pause(b, f);
    b->until_us = now_us + b->pause_us;
    b->n_seen += f->is_seen;
}

void breaker_close(struct breaker *b) {
    b->state = BREAKER_CLOSED;
    b->n_seen = 0;
}

void breaker_succeeded(struct breaker *b) {
    if (b->state != BREAKER_OPEN) breaker_close(b); /* else an answer from before the failure */
}

void breaker_undecided(struct breaker *b) {
    if (b->state == BREAKER_TRYING) b->state = BREAKER_HALF_OPEN;
}

void breaker_sent(struct breaker *b) {
    if (b->state == BREAKER_HALF_OPEN) b->state = BREAKER_TRYING;
}

void breaker_tick(struct breaker *b, uint64_t now_us) {
    if (b->state == BREAKER_OPEN && now_us >= b->until_us) b->state = BREAKER_HALF_OPEN;
}

bool breaker_probed(struct breaker *b, bool was_away) {
    bool is_back = b->cause == BREAKER_UNREACHED || (b->cause == BREAKER_LOST && was_away);

    if (b->state == BREAKER_CLOSED || !is_back) return false;
    breaker_close(b);
    return true;
}
