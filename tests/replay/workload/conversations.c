/* tests/replay/workload/conversations.c - a chat service, and questions about documents. */
#include <math.h>

#include "tests/replay/workload/generator_internal.h"

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

/* Chats begin so long before the first request that counts: by then as many go on as later. */
#define LEAD_S 1800.0

#define N_DOCUMENTS    100
#define DOCUMENT_MIN   60000
#define DOCUMENT_RANGE 80000
#define QUESTION_MIN   50
#define QUESTION_RANGE 2000

/* One more turn after this many. */
static const double goes_on[] = {0, 0.31, 0.42, 0.51, 0.59, 0.62};

static uint32_t draw_output(struct rng *r) {
    double n = rng_f64(r) < SHORT_SHARE ? draw_lognormal(r, SHORT_MEDIAN, SHORT_SIGMA)
                                        : draw_lognormal(r, OUTPUT_MEDIAN, OUTPUT_SIGMA);

    return (uint32_t)fmin(fmax(n, 1), OUTPUT_MAX);
}

/* Every chat begins with the same block; prompts only grow, so the last one's chain serves all. */
static void name_chat(struct workload *w, uint32_t first, uint64_t seed) {
    uint32_t n = w->n > first ? w->requests[w->n - 1].n_names : 0;
    uint64_t *chain = n ? workload_new_chain(w, n) : NULL;

    for (uint32_t i = 0; i < n; i++)
        chain[i] = workload_name(i ? rng_at(seed, i) : 1);
    for (uint32_t i = first; i < w->n; i++)
        w->requests[i].chain = chain;
}

static void make_chat(struct workload *w, struct rng *r, double at_s, double end_s) {
    double prompt = fmax(draw_lognormal(r, FIRST_MEDIAN, FIRST_SIGMA), PROMPT_MIN);
    uint64_t seed = rng_u64(r);
    uint32_t first = w->n;

    for (uint32_t turn = 1; turn <= TURNS_MAX && at_s < end_s; turn++) {
        struct workload_request q = {
            .arrival_s = at_s, .session = seed | 1, .n_output = draw_output(r)};

        q.n_prompt = (uint32_t)fmin(prompt, PROMPT_MAX);
        q.n_blocks = q.n_prompt / w->block_tokens;
        q.n_names = CEIL_DIV(q.n_prompt, w->block_tokens);
        if (at_s >= 0) workload_add(w, q);
        if (rng_f64(r) >= goes_on[MIN(turn, ARRAY_LEN(goes_on) - 1)]) break;
        prompt += fmin(draw_lognormal(r, ADDED_MEDIAN, ADDED_SIGMA), ADDED_MAX);
        at_s += draw_lognormal(r, PAUSE_MEDIAN, PAUSE_SIGMA);
    }
    name_chat(w, first, seed);
}

void make_conversations(struct workload *w, struct rng *r, double duration_s, double rate) {
    for (double at_s = draw_exponential(r, 1 / rate) - LEAD_S; at_s < duration_s;
         at_s += draw_exponential(r, 1 / rate))
        make_chat(w, r, at_s, duration_s);
}

/* One document's blocks, then the question's own. */
static void ask(struct workload *w, struct rng *r, uint64_t text, double at_s) {
    uint32_t n_shared = (DOCUMENT_MIN + (uint32_t)(text % DOCUMENT_RANGE)) / w->block_tokens;
    uint64_t *chain, own = rng_u64(r);
    struct workload_request q = {.arrival_s = at_s, .session = own | 1, .n_output = draw_output(r)};

    q.n_prompt = n_shared * w->block_tokens + QUESTION_MIN + (uint32_t)rng_below(r, QUESTION_RANGE);
    q.n_names = q.n_blocks = q.n_prompt / w->block_tokens;
    q.chain = chain = workload_new_chain(w, q.n_blocks);
    for (uint32_t i = 0; i < q.n_blocks; i++)
        chain[i] = workload_name(rng_at(i < n_shared ? text : own, i));
    workload_add(w, q);
}

void make_documents(struct workload *w, struct rng *r, double duration_s, double rate) {
    uint64_t seed = rng_u64(r);
    struct zipf z;

    zipf_init(&z, N_DOCUMENTS, 1);
    for (double at_s = draw_exponential(r, 1 / rate); at_s < duration_s;
         at_s += draw_exponential(r, 1 / rate))
        ask(w, r, rng_at(seed, zipf_draw(&z, r)), at_s);
}
