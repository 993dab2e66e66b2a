/* tests/replay/workload/agents.c - coding agents: sessions that grow turn by turn and return soon.
 *
 * A closed loop: each turn comes a gap after the end of the one before, so a fleet that is slow is
 * asked less often. Either a place has one session after another, and there are as many places as
 * sessions are live at a time; or sessions arrive at random. A turn's prompt opens with the prompt
 * and the answer of the turn before, and a session opens with one of a few system prompts. When a
 * context is full it is compacted: what follows the system prompt is new. Some turns start a
 * sub-agent, a session of its own that runs before the next turn. Chats of one request come at
 * random beside all that. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/mem.h"
#include "tests/replay/workload/generator_internal.h"

#define TURNS_MEDIAN   33.0
#define TURNS_SIGMA    0.9
#define TURNS_MAX      300
#define TURNS_MEAN     50.0 /* of a session, with those of its sub-agents */
#define GAP_MEDIAN_S   2.1
#define GAP_SIGMA      1.957
#define GAP_MAX_S      900.0
#define ANSWER_MEDIAN  350.0
#define ANSWER_SIGMA   0.9
#define ANSWER_MIN     20.0
#define ANSWER_MAX     8000.0
#define RESULTS_MEDIAN 2000.0 /* of tools, that a turn adds */
#define RESULTS_SIGMA  1.0
#define RESULTS_MAX    40000.0
#define CONTEXT_MAX    180000 /* compacted then, */
#define CONTEXT_KEPT   8000   /* to the system prompt and so much */
#define NAMES_MAX      230000 /* tokens of a context that have names */
#define BEGIN_S        60.0   /* all places begin within */
#define PAUSE_S        20.0   /* between two sessions of a place, at most */

#define SUB_SHARE       0.04 /* of turns start a sub-agent */
#define SUB_TURNS       8.0
#define SUB_TURNS_SIGMA 0.6
#define SUB_TURNS_MAX   60
#define SUB_GAP_SIGMA   1.5
#define SUB_GAP_MAX_S   200.0

#define N_SYSTEM     4 /* system prompts of agents, then those of sub-agents */
#define N_SUB_SYSTEM 8

#define SINGLE_SHARE 0.1  /* of all requests are chats of one, */
#define TURN_S       26.0 /* when each session has a turn in so many seconds */
#define SINGLE_MAX   30000.0

struct agents {
    struct workload *w;
    struct rng *r;
    double duration_s;
    uint64_t names[N_SYSTEM + N_SUB_SYSTEM];    /* seeds of the names of system prompts */
    uint32_t n_system[N_SYSTEM + N_SUB_SYSTEM]; /* blocks of them */
    uint32_t tenant;
    uint32_t last;  /* request of this place before, plus one; 0: none yet */
    double clock_s; /* if answers took no time */
    double begin_s; /* of a session that arrives by itself; 0: soon */
};

/* A session as far as it has gone. */
struct session {
    uint64_t key, parent, *chain;
    uint32_t system, n_named, n_known; /* blocks that have a name; that were sent or answered */
    double context;                    /* tokens of the next prompt */
};

static double draw_within(struct rng *r, double median, double sigma, double least, double most) {
    return fmin(fmax(draw_lognormal(r, median, sigma), least), most);
}

static uint32_t draw_answer(struct rng *r) {
    return (uint32_t)draw_within(r, ANSWER_MEDIAN, ANSWER_SIGMA, ANSWER_MIN, ANSWER_MAX);
}

/* The system prompt, and nothing behind it. */
static void begin_context(struct agents *a, struct session *s) {
    uint32_t n = a->n_system[s->system];

    s->chain = workload_new_chain(a->w, NAMES_MAX / a->w->block_tokens + 1);
    for (uint32_t i = 0; i < n; i++)
        s->chain[i] = workload_name(rng_at(a->names[s->system], i));
    s->n_named = s->n_known = n;
}

static void begin_session(struct agents *a, struct session *s, uint32_t system, double own) {
    *s = (struct session){.key = rng_u64(a->r) | 1, .system = system};
    begin_context(a, s);
    s->context = a->n_system[system] * a->w->block_tokens + 1000 + own * rng_f64(a->r);
}

static void compact(struct agents *a, struct session *s) {
    begin_context(a, s);
    s->context = a->n_system[s->system] * a->w->block_tokens + CONTEXT_KEPT;
}

static struct workload_request describe(struct agents *a, struct session *s, uint32_t n_output) {
    uint32_t bt = a->w->block_tokens, n_prompt = (uint32_t)s->context;
    uint32_t n_blocks = n_prompt / bt, n_after = (n_prompt + n_output) / bt;

    for (; s->n_named < n_after; s->n_named++)
        s->chain[s->n_named] = workload_name(rng_u64(a->r));
    return (struct workload_request){.arrival_s = INFINITY,
                                     .session = s->key,
                                     .parent = s->parent,
                                     .tenant = a->tenant,
                                     .n_prompt = n_prompt,
                                     .n_output = n_output,
                                     .n_blocks = n_blocks,
                                     .n_names = n_blocks,
                                     .n_after = n_after,
                                     .n_known = MIN(s->n_known, (n_prompt - 1) / bt),
                                     .n_system = a->n_system[s->system],
                                     .chain = s->chain};
}

/* Sends the next turn; the one after it comes gap_s later. */
static void send_turn(struct agents *a, struct workload_request q, double gap_s) {
    q.gap_s = gap_s;
    if (a->last)
        a->w->requests[a->last - 1].next = a->w->n + 1;
    else
        q.arrival_s = a->begin_s > 0 ? a->begin_s : BEGIN_S * rng_f64(a->r);
    workload_add(a->w, q);
    a->last = a->w->n;
    a->clock_s += gap_s;
}

static void grow(struct agents *a, struct session *s, const struct workload_request *q) {
    s->n_known = q->n_after;
    s->context +=
        q->n_output + fmin(draw_lognormal(a->r, RESULTS_MEDIAN, RESULTS_SIGMA), RESULTS_MAX);
}

/* The earlier of n system prompts more often. */
static uint32_t draw_system(struct rng *r, uint32_t n) {
    return (uint32_t)(n * rng_f64(r) * rng_f64(r));
}

static void sub_agent(struct agents *a, uint64_t parent) {
    uint32_t n = (uint32_t)draw_within(a->r, SUB_TURNS, SUB_TURNS_SIGMA, 1, SUB_TURNS_MAX);
    struct session s;

    begin_session(a, &s, N_SYSTEM + draw_system(a->r, N_SUB_SYSTEM), 2000);
    s.parent = parent;
    for (uint32_t turn = 0; turn < n && s.context < CONTEXT_MAX; turn++) {
        struct workload_request q = describe(a, &s, draw_answer(a->r));

        send_turn(a, q, draw_within(a->r, GAP_MEDIAN_S, SUB_GAP_SIGMA, 0, SUB_GAP_MAX_S));
        grow(a, &s, &q);
    }
}

/* The first `skipped` turns were before the beginning. */
static void one_session(struct agents *a, uint32_t n_turns, uint32_t skipped) {
    struct session s;

    begin_session(a, &s, draw_system(a->r, N_SYSTEM), 5000);
    for (uint32_t turn = 0; turn < n_turns; turn++) {
        bool is_last = turn + 1 == n_turns;
        double gap_s = is_last ? 1 + PAUSE_S * rng_f64(a->r)
                               : draw_within(a->r, GAP_MEDIAN_S, GAP_SIGMA, 0, GAP_MAX_S);
        struct workload_request q;

        if (s.context > CONTEXT_MAX) compact(a, &s);
        q = describe(a, &s, draw_answer(a->r));
        if (turn == skipped && skipped) q.n_known = a->n_system[s.system];
        q.is_final = is_last;
        if (turn >= skipped) send_turn(a, q, gap_s);
        grow(a, &s, &q);
        if (turn >= skipped && !is_last && rng_f64(a->r) < SUB_SHARE) sub_agent(a, s.key);
    }
}

static void fill_place(struct agents *a, uint32_t place) {
    a->tenant = place % 8;
    a->last = 0;
    for (a->clock_s = 0; a->clock_s < a->duration_s;) {
        uint32_t n = (uint32_t)draw_within(a->r, TURNS_MEDIAN, TURNS_SIGMA, 2, TURNS_MAX);

        one_session(a, n, a->last ? 0 : (uint32_t)rng_below(a->r, n));
    }
}

static void add_singles(struct agents *a, double n_sessions) {
    double mean_s = TURN_S / n_sessions * (1 - SINGLE_SHARE) / SINGLE_SHARE, at_s = 0;

    while ((at_s += draw_exponential(a->r, mean_s)) < a->duration_s) {
        struct workload_request q = {.arrival_s = at_s, .tenant = 9};
        uint64_t *chain;

        q.n_prompt = (uint32_t)fmin(draw_lognormal(a->r, 1500, 1) + 50, SINGLE_MAX);
        q.n_output = (uint32_t)draw_lognormal(a->r, 250, 0.8) + 1;
        q.n_blocks = q.n_names = q.n_after = q.n_prompt / a->w->block_tokens;
        q.chain = chain = workload_new_chain(a->w, q.n_blocks);
        for (uint32_t i = 0; i < q.n_blocks; i++)
            chain[i] = workload_name(rng_u64(a->r));
        workload_add(a->w, q);
    }
}

/* --- order ----------------------------------------------------------------------------------- */

struct placed {
    double arrival_s;
    uint32_t number;
};

static int by_arrival(const void *a, const void *b) {
    const struct placed *x = a, *y = b;

    if (x->arrival_s != y->arrival_s) return x->arrival_s < y->arrival_s ? -1 : 1;
    return (x->number > y->number) - (x->number < y->number);
}

/* Requests that come at a time of their own first; `next` follows them. */
static void sort_linked(struct workload *w) {
    struct placed *order = mem_calloc(w->n + 1, sizeof(*order));
    uint32_t *place = mem_calloc(w->n + 1, sizeof(*place));
    struct workload_request *old = mem_calloc(w->n + 1, sizeof(*old));

    memcpy(old, w->requests, w->n * sizeof(*old));
    for (uint32_t i = 0; i < w->n; i++)
        order[i] = (struct placed){old[i].arrival_s, i};
    qsort(order, w->n, sizeof(*order), by_arrival);
    for (uint32_t i = 0; i < w->n; i++)
        place[order[i].number] = i;
    for (uint32_t i = 0; i < w->n; i++) {
        w->requests[i] = old[order[i].number];
        if (w->requests[i].next) w->requests[i].next = place[w->requests[i].next - 1] + 1;
    }
    mem_free(old);
    mem_free(place);
    mem_free(order);
}

static void draw_systems(struct agents *a) {
    for (uint32_t i = 0; i < N_SYSTEM + N_SUB_SYSTEM; i++) {
        uint32_t n =
            i < N_SYSTEM ? draw_between(a->r, 8000, 14000) : draw_between(a->r, 10000, 20000);

        a->names[i] = rng_u64(a->r);
        a->n_system[i] = n / a->w->block_tokens;
    }
}

/* `rate`: sessions that are live at a time. */
void make_agents(struct workload *w, struct rng *r, double duration_s, double rate) {
    struct agents a = {.w = w, .r = r, .duration_s = duration_s};

    draw_systems(&a);
    for (uint32_t place = 0; place < (uint32_t)rate; place++)
        fill_place(&a, place);
    add_singles(&a, rate);
    sort_linked(w);
    w->end_s = duration_s;
}

/* `rate`: sessions that arrive in a second. */
void make_agent_arrivals(struct workload *w, struct rng *r, double duration_s, double rate) {
    struct agents a = {.w = w, .r = r, .duration_s = duration_s};

    draw_systems(&a);
    while ((a.begin_s += draw_exponential(r, 1 / rate)) < duration_s) {
        a.tenant = (uint32_t)rng_below(r, 8);
        a.last = 0;
        one_session(&a, (uint32_t)draw_within(r, TURNS_MEDIAN, TURNS_SIGMA, 2, TURNS_MAX), 0);
    }
    add_singles(&a, rate * TURNS_MEAN * TURN_S);
    sort_linked(w);
    w->end_s = duration_s;
}
