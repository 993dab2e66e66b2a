/* worker/engine/tiers/itl_guard.c - see the header. */
#include "worker/engine/tiers/itl_guard.h"

#include <stdlib.h>
#include <string.h>

#define MOST_LONGER    1.05
#define LEAST_QUIET    15u /* steps, before anything is compared */
#define PAUSE_FIRST_US (1000u * 1000)
#define PAUSE_MOST_US  (60u * 1000 * 1000)

void itl_guard_init(struct itl_guard *g) {
    *g = (struct itl_guard){0};
}

static uint32_t size_of(uint32_t n_rows) {
    uint32_t size = 0;

    while (n_rows > 1 && size < ITL_GUARD_SIZES - 1) {
        n_rows /= 2;
        size++;
    }
    return size;
}

static void add(struct itl_window *w, double s) {
    w->s[w->n_seen++ % ITL_GUARD_WINDOW] = (float)s;
}

static int by_value(const void *a, const void *b) {
    float x = *(const float *)a, y = *(const float *)b;

    return (x > y) - (x < y);
}

static double median(const struct itl_window *w) {
    uint32_t n = MIN(w->n_seen, ITL_GUARD_WINDOW);
    float s[ITL_GUARD_WINDOW];

    memcpy(s, w->s, n * sizeof(*s));
    qsort(s, n, sizeof(*s), by_value);
    return (double)s[n / 2];
}

static void pause_writing(struct itl_guard *g, uint64_t now_us) {
    g->pause_us = g->pause_us ? MIN(2 * g->pause_us, PAUSE_MOST_US) : PAUSE_FIRST_US;
    g->until_us = now_us + g->pause_us;
    g->n_pauses++;
}

void itl_guard_note(struct itl_guard *g, uint32_t n_rows, double step_s, bool is_writing,
                    uint64_t now_us) {
    uint32_t size = size_of(n_rows);
    struct itl_window *quiet = &g->quiet[size], *writing = &g->writing[size];

    if (!is_writing) {
        add(quiet, step_s);
        return;
    }
    if (itl_guard_is_paused(g, now_us)) return; /* the last job before the pause */
    add(writing, step_s);
    if (writing->n_seen < ITL_GUARD_WINDOW || quiet->n_seen < LEAST_QUIET) return;
    if (median(writing) > MOST_LONGER * median(quiet)) {
        pause_writing(g, now_us);
    } else {
        g->pause_us = 0;
    }
    writing->n_seen = 0; /* the next window is another one */
}

bool itl_guard_is_paused(const struct itl_guard *g, uint64_t now_us) {
    return now_us < g->until_us;
}
