/* router/sessions/repeats.c - see repeats.h. */
#include "router/sessions/repeats.h"

#include <assert.h>

void repeats_init(struct repeats *r) {
    *r = (struct repeats){REPEATS_FIRST, REPEATS_FIRST};
}

void repeats_add(struct repeats *r, double all, double repeated) {
    assert(repeated >= 0 && repeated <= all);
    r->all += all;
    r->repeated += repeated;
    if (r->all < REPEATS_MOST) return;
    r->all /= 2;
    r->repeated /= 2;
}

double repeats_share(const struct repeats *r) {
    return r->repeated / r->all;
}
