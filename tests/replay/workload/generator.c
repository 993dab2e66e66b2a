/* tests/replay/workload/generator.c - the table of generators, and their distributions. */
#include <math.h>
#include <string.h>

#include "tests/replay/workload/generator_internal.h"

const struct generator generators[] = {
    {"conversations", TRACE_BLOCK, 7, 3600, 0.2, make_conversations},
    {"documents", TRACE_BLOCK, 3, 1800, 0.2, make_documents},
    {"few_shot", 64, 400, 600, 0.4, make_few_shot},
    {"samples", 64, 280, 600, 0.4, make_samples},
    {"chats", 64, 110, 600, 0.4, make_chats},
    {"tree", 64, 320, 600, 0.4, make_tree},
    {"tenants", 64, 180, 600, 0.4, make_tenants},
    {"agents", TRACE_BLOCK, 150, 2400, 0.3, make_agents},
    {"agent_arrivals", TRACE_BLOCK, 0.24, 2400, 0.3, make_agent_arrivals},
    {0},
};

const struct generator *generator_find(const char *name) {
    for (const struct generator *g = generators; g->name; g++) {
        if (strcmp(g->name, name) == 0) return g;
    }
    return NULL;
}

void generate(struct workload *w, const struct generator *g, uint64_t seed, double duration_s,
              double rate) {
    struct rng r;

    *w = (struct workload){.block_tokens = g->block_tokens};
    rng_seed(&r, seed);
    g->make(w, &r, duration_s, rate);
    if (!(w->end_s > 0)) workload_sort(w);
}

double draw_exponential(struct rng *r, double mean) {
    return -mean * log(1 - rng_f64(r));
}

double draw_lognormal(struct rng *r, double median, double sigma) {
    double radius = sqrt(-2 * log(1 - rng_f64(r)));

    return median * exp(sigma * radius * cos(2 * M_PI * rng_f64(r)));
}

uint32_t draw_between(struct rng *r, uint32_t least, uint32_t most) {
    return least + (uint32_t)rng_below(r, (uint64_t)most - least + 1);
}

void zipf_init(struct zipf *z, uint32_t n, double exponent) {
    double sum = 0;

    z->n = n;
    for (uint32_t k = 0; k < n; k++)
        z->sums[k] = sum += pow(k + 1, -exponent);
}

uint32_t zipf_draw(const struct zipf *z, struct rng *r) {
    double lot = rng_f64(r) * z->sums[z->n - 1];
    uint32_t least = 0, most = z->n - 1;

    while (least < most) {
        uint32_t middle = (least + most) / 2;

        if (z->sums[middle] < lot)
            least = middle + 1;
        else
            most = middle;
    }
    return least;
}
