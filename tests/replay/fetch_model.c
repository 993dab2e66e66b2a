/* tests/replay/fetch_model.c - transfers one after another at each worker, and how choices
 * fared. */
#include "tests/replay/fetch_model.h"

#include <math.h>

#include "common/base/mem.h"

#define CLOSE    1.05
#define ROUNDING 1e-6 /* blocks: by which a whole quotient may be too small */

struct fetch_model {
    struct fetch_model_options options;
    struct worker_model *workers;
    double *busy_until_s; /* by worker */
    uint32_t n_choices;
    struct fetch_judgement judgement;
};

struct fetch_model *fetch_model_create(const struct fetch_model_options *options,
                                       struct worker_model *workers) {
    struct fetch_model *m = mem_zalloc(sizeof(*m));

    m->options = *options;
    m->workers = workers;
    m->busy_until_s = mem_calloc(options->n_workers, sizeof(*m->busy_until_s));
    return m;
}

void fetch_model_destroy(struct fetch_model *m) {
    if (!m) return;
    mem_free(m->busy_until_s);
    mem_free(m);
}

static double held_tokens(struct fetch_model *m, uint32_t w, struct model_request *q) {
    struct worker_model *worker = &m->workers[w];

    return (double)worker_model_cached(worker, q) * worker->block_tokens;
}

/* The worker that holds more of the prompt than q's own, and most; of equals the first free. */
static struct fetch_offer best_offer(struct fetch_model *m, struct model_request *q) {
    struct fetch_offer best = {.source = WORKER_NONE, .tokens = held_tokens(m, q->worker, q)};

    for (uint32_t w = 0; w < m->options.n_workers; w++) {
        double tokens = w == q->worker ? 0 : held_tokens(m, w, q);
        bool is_as_good = best.source != WORKER_NONE && tokens == best.tokens &&
                          m->busy_until_s[w] < m->busy_until_s[best.source];

        if (tokens > best.tokens || is_as_good) best = (struct fetch_offer){w, tokens};
    }
    return best;
}

bool fetch_model_is_judged(struct fetch_model *m, struct model_request *q,
                           const struct fetch_offer *chosen, struct fetch_offer *other) {
    if (!m->options.judged) return false;
    *other = chosen->source != WORKER_NONE ? *chosen : best_offer(m, q);
    return other->source != WORKER_NONE && m->n_choices++ % m->options.judged == 0;
}

void fetch_model_judge(struct fetch_model *m, enum fetch_way chosen,
                       const double seconds[FETCH_N_WAYS]) {
    double other_s = seconds[FETCH_N_WAYS - 1 - (int)chosen];

    m->judgement.n++;
    m->judgement.n_right += seconds[chosen] <= other_s;
    m->judgement.n_right_5pc += seconds[chosen] <= other_s * CLOSE;
}

struct fetch_judgement fetch_model_judgement(const struct fetch_model *m) {
    return m->judgement;
}

void fetch_model_begin(struct fetch_model *m, struct model_request *q,
                       const struct fetch_offer *offer, double now_s) {
    const struct worker_model *sink = &m->workers[q->worker];
    double tokens, own, begin_s, end_s, due_s, *source_s, *sink_s = &m->busy_until_s[q->worker];

    if (offer->source == WORKER_NONE) return;
    own = held_tokens(m, q->worker, q);
    tokens = fmin(offer->tokens, held_tokens(m, offer->source, q));
    if (tokens <= own) return;
    source_s = &m->busy_until_s[offer->source];
    begin_s = fmax(now_s, fmax(*source_s, *sink_s));
    end_s = begin_s + m->options.latency_s + (tokens - own) / m->options.tokens_per_s;
    due_s = now_s + sink->options.slow * worker_prefill_s(own, tokens);
    if (end_s > due_s) { /* what is there by then is kept */
        tokens = own + fmax(due_s - begin_s - m->options.latency_s, 0) * m->options.tokens_per_s;
        end_s = due_s;
    }
    *source_s = fmax(*source_s, end_s);
    *sink_s = fmax(*sink_s, end_s);
    q->fetch_to = (uint32_t)(tokens / sink->block_tokens + ROUNDING) * sink->block_tokens;
    q->ready_s = end_s;
}
