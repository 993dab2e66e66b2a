/* tests/unit/worker/engine/test_engine_choices.c - a worker fetches a prefix when that is quicker
 * than to compute it: its own choices, by what it has learned of a source and of its device, beside
 * both ways played.
 *
 * The device is simulated, at two speeds, and the source is behind a wire of 0.1, 1 or 10 Gb/s and
 * two delays. Three sinks get each prompt in turn: one chooses, one fetches always, one computes
 * always. What each took is real time, so shares are printed, and asserted only where CHOICES=200
 * asks for that many prompts of each scene (3), on a machine that has nothing else to do. The
 * answers are right and every choice is counted in any case. */
#include <math.h>
#include <stdlib.h>

#define ENGINE_FIXTURE_SHAPE
#include "tests/support/tiny_model.h"

/* 2 KiB of KV a token. */
static const struct tiny_shape shape = {.n_layers = 4,
                                        .d_model = 32,
                                        .n_heads = 2,
                                        .n_kv_heads = 2,
                                        .head_dim = 64,
                                        .d_ff = 48,
                                        .vocab = 131,
                                        .max_context = 2048,
                                        .weight_dtype = DTYPE_BF16,
                                        .kv_dtype = DTYPE_BF16};

#include "common/base/clock.h"
#include "tests/support/engine_peer.h"
#include "tests/support/peer_wire.h"

#define SHORTEST  32.0
#define LONGEST   1600.0
#define SHARE     0.95 /* that is right, */
#define CLOSE     1.05 /* or takes so much longer than the other way */
#define N_SETTLES 8u   /* prompts before, which are fetched: what is not known is no choice */

enum way { WAY_FETCH, WAY_COMPUTE, N_OF_WAYS };

struct scene {
    double gbits, delay_us, speed;
};

struct play {
    struct peer_worker source, chooser, fetcher;
    struct engine_fixture computer;
    struct peer_wire wires[2]; /* to the chooser, to the fetcher */
    struct rng rng;
    uint32_t prompt[2048], n;
    uint32_t n_choices, n_right, n_close, n_fetched;
    struct answer right;
};

static uint32_t n_choices(void) {
    const char *s = getenv("CHOICES");

    return s ? (uint32_t)atoi(s) : 3;
}

static struct setup setup_of(double speed) {
    return (struct setup){.machine = {.ops = &backend_sim},
                          .sim_speed = speed,
                          .budget = 2048,
                          .n_blocks = 300,
                          .host_blocks = 1200};
}

static void open_wire(struct play *p, int at, const struct scene *scene) {
    p->wires[at] = (struct peer_wire){.behind = &p->source.door.source,
                                      .bytes_per_s = scene->gbits * 1e9 / 8,
                                      .delay_us = (uint64_t)scene->delay_us};
    peer_wire_open(&p->wires[at]);
}

static void open_play(struct play *p, const struct scene *scene) {
    struct setup s = setup_of(0);

    memset(p, 0, sizeof(*p));
    rng_seed(&p->rng, support_seed());
    peer_worker_open(&p->source, &s, 1, PEER_TEST_PATIENT);
    open_wire(p, 0, scene);
    open_wire(p, 1, scene);
    s = setup_of(scene->speed);
    fixture_open(&p->computer, &s);
    peer_worker_open(&p->fetcher, &s, 2, PEER_TEST_PATIENT);
    s.is_priced = true;
    peer_worker_open(&p->chooser, &s, 3, PEER_TEST_PATIENT);
}

static void close_play(struct play *p) {
    peer_worker_close(&p->chooser);
    peer_worker_close(&p->fetcher);
    fixture_close(&p->computer);
    peer_wire_close(&p->wires[0]);
    peer_wire_close(&p->wires[1]);
    peer_worker_close(&p->source);
}

/* Of any length: as many between n and 2n for each n. */
static void draw_prompt(struct play *p) {
    p->n = (uint32_t)(SHORTEST * pow(LONGEST / SHORTEST, rng_f64(&p->rng)));
    for (uint32_t i = 0; i < p->n; i++)
        p->prompt[i] = (uint32_t)rng_below(&p->rng, 130);
}

/* Seconds to the one token of its answer. */
static double run(struct play *p, struct engine_fixture *w, const struct tier_source *source,
                  struct answer *answer) {
    struct request_params params = request_params_default;
    uint64_t began_us;

    memset(answer, 0, sizeof(*answer));
    params.prompt = p->prompt;
    params.n_prompt = p->n;
    params.max_tokens = 1;
    params.ignore_eos = true;
    if (source) params.kv_source = *source;
    if (source) params.kv_source.n_tokens = p->n;
    began_us = clock_now_us();
    submit(w, &params, answer);
    fixture_run(w);
    return 1e-6 * (double)(clock_now_us() - began_us);
}

static double run_right(struct play *p, struct engine_fixture *w,
                        const struct tier_source *source) {
    static struct answer answer;
    double s = run(p, w, source, &answer);

    assert_same(&p->right, &answer, "a choice", p->n_choices);
    return s;
}

static enum way choose(struct play *p) {
    struct lower_stats before = stats_of(&p->chooser.engine).tiers[0], after;

    run_right(p, &p->chooser.engine, &p->wires[0].source);
    after = stats_of(&p->chooser.engine).tiers[0];
    assert_int_equal(after.n_awaited + after.n_dearer, before.n_awaited + before.n_dearer + 1);
    return after.n_dearer > before.n_dearer ? WAY_COMPUTE : WAY_FETCH;
}

static void play_prompt(struct play *p, bool is_judged) {
    double seconds[N_OF_WAYS];
    enum way chosen;

    draw_prompt(p);
    run(p, &p->source.engine, NULL, &p->right);
    chosen = choose(p);
    seconds[WAY_FETCH] = run_right(p, &p->fetcher.engine, &p->wires[1].source);
    seconds[WAY_COMPUTE] = run_right(p, &p->computer, NULL);
    if (getenv("CHOICES_SHOWN"))
        print_message("%u %d %.2f %.2f\n", p->n, chosen, 1e3 * seconds[0], 1e3 * seconds[1]);
    if (!is_judged) return;
    p->n_choices++;
    p->n_fetched += chosen == WAY_FETCH;
    p->n_right += seconds[chosen] <= seconds[!chosen];
    p->n_close += seconds[chosen] <= seconds[!chosen] * CLOSE;
}

static void play_scene(const struct scene *scene, uint32_t *n_all, uint32_t *n_close) {
    static struct play p;
    uint32_t n = n_choices();

    open_play(&p, scene);
    for (uint32_t i = 0; i < n + MIN(n, N_SETTLES); i++)
        play_prompt(&p, i >= MIN(n, N_SETTLES));
    assert_at_rest(&p.source.engine);
    print_message(
        "%4g Gb/s, %4g us, speed %4g: %3.0f%% fetched, %5.1f%% right, %5.1f%% within 5%%\n",
        scene->gbits, scene->delay_us, scene->speed, 100.0 * p.n_fetched / p.n_choices,
        100.0 * p.n_right / p.n_choices, 100.0 * p.n_close / p.n_choices);
    *n_all += p.n_choices;
    *n_close += p.n_close;
    close_play(&p);
}

static void play_rate(double gbits) {
    uint32_t n_all = 0, n_close = 0;

    for (int i = 0; i < 4; i++)
        play_scene(&(struct scene){gbits, i % 2 ? 2500 : 100, i / 2 ? 1 : 0.25}, &n_all, &n_close);
    if (getenv("CHOICES")) assert_true(n_close >= SHARE * n_all);
}

static void at_a_tenth_of_a_gigabit_choices_are_right(void **state) {
    (void)state;
    play_rate(0.1);
}

static void at_a_gigabit_choices_are_right(void **state) {
    (void)state;
    play_rate(1);
}

static void at_ten_gigabits_choices_are_right(void **state) {
    (void)state;
    play_rate(10);
}

int main(void) {
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(at_a_tenth_of_a_gigabit_choices_are_right),
        cmocka_unit_test(at_a_gigabit_choices_are_right),
        cmocka_unit_test(at_ten_gigabits_choices_are_right),
    };

    gate_init();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
