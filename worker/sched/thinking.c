/* worker/sched/thinking.c - see thinking.h. */
#include "worker/sched/thinking.h"

#include <string.h>

static void enter(struct thinking *t, const struct thinking_limit *limit, int phase) {
    bool is_used = phase == THINKING_INSIDE && t->n_tokens >= limit->budget;

    t->phase = is_used ? THINKING_FORCED : phase;
    t->n_matched = t->n_spelt = 0;
}

static const struct thinking_run *forced_run(const struct thinking *t,
                                             const struct thinking_limit *limit) {
    if (t->phase == THINKING_ENDING) return &limit->end;
    return t->phase == THINKING_FORCED ? &limit->forced : NULL;
}

void thinking_init(struct thinking *t, const struct thinking_limit *limit) {
    *t = (struct thinking){.phase = THINKING_AFTER};
    if (limit->forced.n > 0) enter(t, limit, limit->is_open ? THINKING_INSIDE : THINKING_BEFORE);
}

bool thinking_forces(const struct thinking *t, const struct thinking_limit *limit,
                     uint32_t *token) {
    const struct thinking_run *run = forced_run(t, limit);

    if (run) *token = run->token[t->n_matched];
    return run != NULL;
}

/* The longest beginning of the marker that the output ends with, after one token more. It was
 * `n_matched` before: those tokens are the beginning of the marker itself. */
static uint32_t match(const uint32_t *marker, uint32_t n_matched, uint32_t token) {
    for (uint32_t n = n_matched + 1; n > 0; n--) {
        uint32_t i = 0;

        if (marker[n - 1] != token) continue;
        while (i + 1 < n && marker[i] == marker[n_matched + 1 - n + i])
            i++;
        if (i + 1 == n) return n;
    }
    return 0;
}

static bool is_blank(char c) {
    return c == ' ' || c == '\n' || c == '\r' || c == '\t';
}

/* The answer begins: only blanks may come before the marker. */
static void take_beginning(struct thinking *t, const struct thinking_limit *limit, uint32_t token) {
    struct str spelt = limit->bytes(limit->arg, token), marker = limit->begin_text;

    for (size_t i = 0; i < spelt.len; i++) {
        if (t->n_spelt == 0 && is_blank(spelt.ptr[i])) continue;
        if (spelt.ptr[i] != marker.ptr[t->n_spelt]) {
            enter(t, limit, THINKING_AFTER);
            return;
        }
        if (++t->n_spelt == marker.len) {
            enter(t, limit, THINKING_INSIDE);
            return;
        }
    }
}

/* The longest beginning of the marker that the text ends with, after one byte more. */
static uint32_t match_byte(struct str marker, uint32_t n_spelt, char c) {
    for (uint32_t n = n_spelt + 1; n > 0; n--) {
        if (marker.ptr[n - 1] == c && memcmp(marker.ptr, marker.ptr + n_spelt + 1 - n, n - 1) == 0)
            return n;
    }
    return 0;
}

/* Does the text of a token complete the end marker? */
static bool spells_end(struct thinking *t, const struct thinking_limit *limit, uint32_t token) {
    struct str spelt, marker = limit->end_text;

    if (marker.len == 0) return false;
    spelt = limit->bytes(limit->arg, token);
    for (size_t i = 0; i < spelt.len; i++) {
        t->n_spelt = match_byte(marker, t->n_spelt, spelt.ptr[i]);
        if (t->n_spelt == marker.len) return true;
    }
    return false;
}

static void take_inside(struct thinking *t, const struct thinking_limit *limit, uint32_t token) {
    t->n_tokens++;
    t->n_matched = match(limit->end.token, t->n_matched, token);
    if (spells_end(t, limit, token) || t->n_matched == limit->end.n ||
        (limit->has_other_end && token == limit->other_end)) {
        enter(t, limit, THINKING_AFTER);
    } else if (t->n_tokens >= limit->budget) {
        t->phase = t->n_matched > 0 ? THINKING_ENDING : THINKING_FORCED;
    }
}

void thinking_take(struct thinking *t, const struct thinking_limit *limit, uint32_t token) {
    switch (t->phase) {
    case THINKING_AFTER: break;
    case THINKING_BEFORE:
        if (limit->begin_text.len > 0) take_beginning(t, limit, token);
        if (limit->begin_text.len > 0 || limit->begin.n == 0) break;
        t->n_matched = match(limit->begin.token, t->n_matched, token);
        if (t->n_matched == limit->begin.n) enter(t, limit, THINKING_INSIDE);
        break;
    case THINKING_INSIDE: take_inside(t, limit, token); break;
    case THINKING_FORCED:
    case THINKING_ENDING:
        if (++t->n_matched == forced_run(t, limit)->n) enter(t, limit, THINKING_AFTER);
        break;
    }
}
