/* router/ejection/outcomes.c - two halves of a window, and one comparison. */
#include "router/ejection/outcomes.h"

/* Moves the window on. */
static void turn(struct outcomes *o, uint64_t now_us) {
    uint64_t age_us = now_us > o->began_us ? now_us - o->began_us : 0;

    if (age_us < OUTCOMES_HALF_US) return;
    o->n_good_before = age_us < 2 * OUTCOMES_HALF_US ? o->n_good : 0;
    o->n_bad_before = age_us < 2 * OUTCOMES_HALF_US ? o->n_bad : 0;
    o->n_good = o->n_bad = 0;
    o->began_us = now_us;
}

void outcomes_add(struct outcomes *o, bool is_good, uint64_t now_us) {
    turn(o, now_us);
    if (is_good) {
        o->n_good++;
        o->n_bad_in_a_row = 0;
    } else {
        o->n_bad++;
        o->n_bad_in_a_row++;
    }
}

void outcomes_pardon(struct outcomes *o) {
    if (o->n_bad > 0) {
        o->n_bad--;
    } else if (o->n_bad_before > 0) {
        o->n_bad_before--;
    }
    if (o->n_bad_in_a_row > 0) o->n_bad_in_a_row--;
}

struct outcomes_sum outcomes_sum(struct outcomes *o, uint64_t now_us) {
    turn(o, now_us);
    return (struct outcomes_sum){o->n_good + o->n_good_before, o->n_bad + o->n_bad_before};
}

bool outcomes_stand_out(struct outcomes *o, struct outcomes_sum peers, uint64_t now_us) {
    struct outcomes_sum own = outcomes_sum(o, now_us);
    uint64_t n_peers = (uint64_t)peers.n_good + peers.n_bad;

    if (own.n_bad < OUTCOMES_IN_A_ROW) return false;
    if (o->n_bad_in_a_row >= OUTCOMES_IN_A_ROW) {
        own.n_good = 0; /* successes from before the fault do not count */
    } else if (own.n_bad < own.n_good) {
        return false;
    }
    return 2 * (uint64_t)peers.n_bad * (own.n_good + own.n_bad) <= own.n_bad * n_peers;
}
