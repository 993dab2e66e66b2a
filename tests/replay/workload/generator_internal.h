/* tests/replay/workload/generator_internal.h - what the generators draw with. */
#ifndef TESTS_REPLAY_WORKLOAD_GENERATOR_INTERNAL_H
#define TESTS_REPLAY_WORKLOAD_GENERATOR_INTERNAL_H

#include "tests/replay/workload/generator.h"

double draw_exponential(struct rng *r, double mean);
double draw_lognormal(struct rng *r, double median, double sigma);
uint32_t draw_between(struct rng *r, uint32_t least, uint32_t most); /* both included */

/* Ranks below n <= ZIPF_MAX, rank k as likely as (k + 1) ^ -exponent. */
#define ZIPF_MAX 512
struct zipf {
    double sums[ZIPF_MAX];
    uint32_t n;
};
void zipf_init(struct zipf *z, uint32_t n, double exponent);
uint32_t zipf_draw(const struct zipf *z, struct rng *r);

void make_conversations(struct workload *w, struct rng *r, double duration_s, double rate);
void make_documents(struct workload *w, struct rng *r, double duration_s, double rate);
void make_few_shot(struct workload *w, struct rng *r, double duration_s, double rate);
void make_samples(struct workload *w, struct rng *r, double duration_s, double rate);
void make_chats(struct workload *w, struct rng *r, double duration_s, double rate);
void make_tree(struct workload *w, struct rng *r, double duration_s, double rate);
void make_tenants(struct workload *w, struct rng *r, double duration_s, double rate);
void make_agents(struct workload *w, struct rng *r, double duration_s, double rate);
void make_agent_arrivals(struct workload *w, struct rng *r, double duration_s, double rate);

#endif
