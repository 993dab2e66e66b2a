/* tests/replay/workload/scenes.c - shapes of sharing that a chat service does not have.
 *
 * A text grows by tokens; each block that becomes full gets a name of its own, so texts that grew
 * from one share its full blocks and nothing else. */
#include <math.h>
#include <string.h>

#include "tests/replay/workload/generator_internal.h"

#define TEXT_TOKENS_MAX 16000

struct text {
    const uint64_t *chain; /* (n_tokens / block_tokens), the workload's */
    uint32_t n_tokens;
};

struct scene {
    struct workload *w;
    struct rng *r;
    double duration_s;
    struct text texts[ZIPF_MAX]; /* templates or system prompts */
    uint32_t n_texts;
    struct zipf popularity; /* of them */
};

static struct text grow(struct scene *s, struct text from, uint32_t n_tokens) {
    uint32_t bt = s->w->block_tokens, n_before = from.n_tokens / bt;
    uint32_t n = (from.n_tokens + n_tokens) / bt;
    uint64_t *chain = workload_new_chain(s->w, n);

    if (n_before) memcpy(chain, from.chain, n_before * sizeof(*chain));
    for (uint32_t i = n_before; i < n; i++)
        chain[i] = workload_name(rng_u64(s->r));
    return (struct text){chain, from.n_tokens + n_tokens};
}

static void request(struct scene *s, double at_s, struct text prompt, uint32_t n_output,
                    uint64_t session) {
    uint32_t n_blocks = prompt.n_tokens / s->w->block_tokens;

    if (at_s >= s->duration_s) return;
    workload_add(s->w, (struct workload_request){.arrival_s = at_s,
                                                 .session = session | 1,
                                                 .n_prompt = prompt.n_tokens,
                                                 .n_output = MAX(n_output, 1u),
                                                 .n_blocks = n_blocks,
                                                 .n_names = n_blocks,
                                                 .chain = prompt.chain});
}

static void open_scene(struct scene *s, struct workload *w, struct rng *r, double duration_s) {
    *s = (struct scene){.w = w, .r = r, .duration_s = duration_s};
}

/* Begins with the block that all texts share. */
static void add_text(struct scene *s, struct text head, uint32_t n_tokens) {
    s->texts[s->n_texts++] = grow(s, head, n_tokens);
}

static struct text head_of_all(struct scene *s) {
    return grow(s, (struct text){0}, s->w->block_tokens);
}

static void add_uniform_texts(struct scene *s, uint32_t n, uint32_t least, uint32_t most,
                              double exponent) {
    struct text head = head_of_all(s);

    while (s->n_texts < n)
        add_text(s, head, draw_between(s->r, least, most));
    zipf_init(&s->popularity, n, exponent);
}

static void add_lognormal_texts(struct scene *s, uint32_t n, double median, double sigma,
                                double exponent) {
    struct text head = head_of_all(s);

    while (s->n_texts < n)
        add_text(s, head, (uint32_t)fmin(draw_lognormal(s->r, median, sigma), TEXT_TOKENS_MAX));
    zipf_init(&s->popularity, n, exponent);
}

static struct text draw_text(struct scene *s) {
    return s->texts[zipf_draw(&s->popularity, s->r)];
}

static double next_s(struct scene *s, double rate) {
    return draw_exponential(s->r, 1 / rate);
}

void make_few_shot(struct workload *w, struct rng *r, double duration_s, double rate) {
    struct scene s;

    open_scene(&s, w, r, duration_s);
    add_uniform_texts(&s, 256, 1000, 4000, 1);
    for (double at_s = next_s(&s, rate); at_s < duration_s; at_s += next_s(&s, rate)) {
        struct text prompt = grow(&s, draw_text(&s), draw_between(r, 40, 300));

        request(&s, at_s, prompt, draw_between(r, 8, 160), rng_u64(r));
    }
}

void make_samples(struct workload *w, struct rng *r, double duration_s, double rate) {
    struct scene s;

    open_scene(&s, w, r, duration_s);
    add_uniform_texts(&s, 32, 800, 2500, 0.8);
    for (double at_s = next_s(&s, rate / 20); at_s < duration_s; at_s += next_s(&s, rate / 20)) {
        struct text prompt = grow(&s, draw_text(&s), draw_between(r, 100, 1200));
        uint32_t n = draw_between(r, 8, 32);
        uint64_t session = rng_u64(r);

        request(&s, at_s, prompt, draw_between(r, 100, 500), session);
        for (uint32_t i = 1; i < n; i++)
            request(&s, at_s + 0.5 * rng_f64(r), prompt, draw_between(r, 100, 500), session);
    }
}

static void chat(struct scene *s, double at_s) {
    struct text prompt = draw_text(s);
    uint64_t session = rng_u64(s->r);

    do {
        uint32_t n_output = (uint32_t)draw_lognormal(s->r, 220, 0.7) + 4;

        prompt = grow(s, prompt, (uint32_t)draw_lognormal(s->r, 120, 1.2) + 8);
        request(s, at_s, prompt, n_output, session);
        prompt = grow(s, prompt, n_output);
        at_s += 2 + n_output * 0.03 + draw_lognormal(s->r, 25, 0.8);
    } while (rng_f64(s->r) < 5.0 / 6 && prompt.n_tokens < 24000);
}

void make_chats(struct workload *w, struct rng *r, double duration_s, double rate) {
    struct scene s;

    open_scene(&s, w, r, duration_s);
    add_lognormal_texts(&s, 64, 600, 0.8, 1);
    for (double at_s = next_s(&s, rate / 6); at_s < duration_s; at_s += next_s(&s, rate / 6))
        chat(&s, at_s);
}

/* Five drafts of each thought that was kept. Returns the time of the next level. */
static double search_level(struct scene *s, struct text *kept, uint32_t *n_kept, double at_s,
                           uint64_t session) {
    struct text drafts[10];
    uint32_t n = 0, longest = 0, first, second;

    for (uint32_t i = 0; i < 5 * *n_kept; i++) {
        uint32_t n_output = draw_between(s->r, 60, 260);

        longest = MAX(longest, n_output);
        request(s, at_s + 0.02 * n, kept[i / 5], n_output, session);
        drafts[n++] = grow(s, kept[i / 5], n_output);
    }
    at_s += 1.5 + longest * 0.03;
    for (uint32_t i = 0; i < n; i++)
        request(s, at_s + 0.02 * i, drafts[i], 4, session);
    first = (uint32_t)rng_below(s->r, n);
    second = (first + 1 + (uint32_t)rng_below(s->r, n - 1)) % n;
    kept[0] = drafts[first];
    kept[1] = drafts[second];
    *n_kept = 2;
    return at_s + 1.5;
}

void make_tree(struct workload *w, struct rng *r, double duration_s, double rate) {
    struct scene s;

    open_scene(&s, w, r, duration_s);
    add_uniform_texts(&s, 16, 400, 1500, 0);
    for (double at_s = next_s(&s, rate / 35); at_s < duration_s; at_s += next_s(&s, rate / 35)) {
        struct text kept[2] = {grow(&s, draw_text(&s), draw_between(r, 150, 600))};
        uint64_t session = rng_u64(r);
        uint32_t n_kept = 1;
        double level_s = at_s;

        for (uint32_t level = 0; level < 4; level++)
            level_s = search_level(&s, kept, &n_kept, level_s, session);
    }
}

void make_tenants(struct workload *w, struct rng *r, double duration_s, double rate) {
    struct scene s;

    open_scene(&s, w, r, duration_s);
    add_lognormal_texts(&s, 500, 2500, 0.7, 1.1);
    for (double at_s = next_s(&s, rate); at_s < duration_s; at_s += next_s(&s, rate)) {
        double question = fmin(draw_lognormal(r, 200, 1), 6000);
        double n_output = fmin(draw_lognormal(r, 150, 0.8), 1500);

        request(&s, at_s, grow(&s, draw_text(&s), (uint32_t)question + 5), (uint32_t)n_output + 1,
                rng_u64(r));
    }
}
