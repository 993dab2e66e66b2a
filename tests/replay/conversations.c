/* tests/replay/conversations.c - drawn chat by chat, then put in order of arrival. */
#include "tests/replay/conversations.h"

#include "common/base/mem.h"
#include "common/base/rng.h"

#include <math.h>
#include <stdlib.h>

#define PROMPT_MIN 894
#define PROMPT_MAX 126195
#define OUTPUT_MAX 2000
#define TURNS_MAX  32
#define ADDED_MAX  40000.0

/* Medians and sigmas of the lognormals. */
#define FIRST_MEDIAN  5264.0
#define FIRST_SIGMA   1.2
#define ADDED_MEDIAN  900.0 /* of a turn: the last answer and the next question */
#define ADDED_SIGMA   1.6
#define PAUSE_MEDIAN  123.0
#define PAUSE_SIGMA   1.0
#define OUTPUT_MEDIAN 370.0
#define OUTPUT_SIGMA  0.45
#define SHORT_SHARE   0.15
#define SHORT_MEDIAN  20.0
#define SHORT_SIGMA   1.0

/* One more turn after this many. */
static const double goes_on[] = {0, 0.31, 0.42, 0.51, 0.59, 0.62};

static double lognormal(struct rng *r, double median, double sigma) {
    double radius = sqrt(-2 * log(1 - rng_f64(r)));

    return median * exp(sigma * radius * cos(2 * M_PI * rng_f64(r)));
}

static uint32_t draw_output(struct rng *r) {
    double n = rng_f64(r) < SHORT_SHARE ? lognormal(r, SHORT_MEDIAN, SHORT_SIGMA)
                                        : lognormal(r, OUTPUT_MEDIAN, OUTPUT_SIGMA);

    return (uint32_t)fmin(fmax(n, 1), OUTPUT_MAX);
}

static void add(struct conversations *c, uint32_t *n_max, struct conversation_request q) {
    if (c->n == *n_max) {
        *n_max = MAX(2 * *n_max, 1024u);
        c->requests = mem_realloc(c->requests, *n_max * sizeof(*c->requests));
    }
    c->requests[c->n++] = q;
}

static void make_chat(struct conversations *c, uint32_t *n_max, struct rng *r, double at_s,
                      double end_s) {
    double prompt = fmax(lognormal(r, FIRST_MEDIAN, FIRST_SIGMA), PROMPT_MIN);
    uint32_t first = c->n, n_blocks_max = 0;
    uint64_t seed = rng_u64(r), *chain;

    for (uint32_t turn = 1; turn <= TURNS_MAX && at_s < end_s; turn++) {
        struct conversation_request q = {
            .arrival_s = at_s, .session = seed | 1, .n_output = draw_output(r)};

        q.n_prompt = (uint32_t)fmin(prompt, PROMPT_MAX);
        q.n_blocks = q.n_prompt / CONVERSATION_BLOCK;
        n_blocks_max = q.n_blocks; /* prompts only grow */
        add(c, n_max, q);
        if (rng_f64(r) >= goes_on[MIN(turn, ARRAY_LEN(goes_on) - 1)]) break;
        prompt += fmin(lognormal(r, ADDED_MEDIAN, ADDED_SIGMA), ADDED_MAX);
        at_s += lognormal(r, PAUSE_MEDIAN, PAUSE_SIGMA);
    }
    chain = mem_calloc((size_t)n_blocks_max + 1, sizeof(*chain));
    for (uint32_t i = 0; i < n_blocks_max; i++)
        chain[i] = i ? rng_at(seed, i) : 1;
    for (uint32_t i = first; i < c->n; i++)
        c->requests[i].chain = chain;
    c->chains[c->n_chats++] = chain;
}

static int by_arrival(const void *a, const void *b) {
    const struct conversation_request *x = a, *y = b;

    return (x->arrival_s > y->arrival_s) - (x->arrival_s < y->arrival_s);
}

void conversations_make(struct conversations *c, uint64_t seed, double duration_s,
                        double chats_per_s) {
    uint32_t n_max = 0, n_chats_max = 0;
    struct rng r;

    *c = (struct conversations){0};
    rng_seed(&r, seed);
    for (double at_s = 0;;) {
        at_s -= log(1 - rng_f64(&r)) / chats_per_s;
        if (at_s >= duration_s) break;
        if (c->n_chats == n_chats_max) {
            n_chats_max = MAX(2 * n_chats_max, 1024u);
            c->chains = mem_realloc(c->chains, n_chats_max * sizeof(*c->chains));
        }
        make_chat(c, &n_max, &r, at_s, duration_s);
    }
    qsort(c->requests, c->n, sizeof(*c->requests), by_arrival);
}

#define DOCUMENT_MIN   60000
#define DOCUMENT_RANGE 80000
#define QUESTION_RANGE 2000

void documents_make(struct conversations *c, uint64_t seed, double duration_s,
                    double questions_per_s, uint32_t n_documents) {
    uint32_t n_max = (uint32_t)(duration_s * questions_per_s * 1.5) + 100, n_added = 0;
    double at_s = 0, weights = 0;
    struct rng r;

    *c = (struct conversations){.chains = mem_calloc(n_max, sizeof(*c->chains))};
    rng_seed(&r, seed);
    for (uint32_t k = 0; k < n_documents; k++)
        weights += 1.0 / (k + 1);
    while ((at_s -= log(1 - rng_f64(&r)) / questions_per_s) < duration_s && c->n_chats < n_max) {
        double lot = rng_f64(&r) * weights;
        uint32_t k = 0, n_shared;
        uint64_t *chain, own = rng_u64(&r), text;

        while (k + 1 < n_documents && (lot -= 1.0 / (k + 1)) > 0)
            k++;
        text = rng_at(seed, k);
        n_shared = (DOCUMENT_MIN + (uint32_t)(text % DOCUMENT_RANGE)) / CONVERSATION_BLOCK;
        struct conversation_request q = {
            .arrival_s = at_s, .session = own | 1, .n_output = draw_output(&r)};

        q.n_prompt = n_shared * CONVERSATION_BLOCK + 50 + (uint32_t)rng_below(&r, QUESTION_RANGE);
        q.n_blocks = q.n_prompt / CONVERSATION_BLOCK;
        q.chain = chain = mem_calloc((size_t)q.n_blocks + 1, sizeof(*chain));
        for (uint32_t i = 0; i < q.n_blocks; i++)
            chain[i] = rng_at(i < n_shared ? text : own, i);
        c->chains[c->n_chats++] = chain;
        add(c, &n_added, q);
    }
}

void conversations_free(struct conversations *c) {
    for (uint32_t i = 0; i < c->n_chats; i++)
        mem_free(c->chains[i]);
    mem_free(c->chains);
    mem_free(c->requests);
    *c = (struct conversations){0};
}
