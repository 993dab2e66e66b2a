/* tests/conformance/test_explain.c - a hundred planted misses, each named by its cause and place.
 *
 * Each planting is a prompt of its own that is cached, then something that must keep a second
 * prompt from hitting it: one other token at a random place, another salt, another adapter, or
 * room made for others. What the manager counts at admission must be what it explains. */
#include <stdio.h>
#include <string.h>

#include "common/base/rng.h"
#include "tests/support/cm.h"
#include "tests/support/kv_fixture.h"
#include "tests/support/support.h"

#define BLOCK_SIZE  16
#define N_BLOCKS    80
#define N_PLANTINGS 100
#define EDITED      900000
#define STEP_US     (1u << 14) /* what times of eviction are rounded to */

static const struct block_extras plain, salt_a = {.cache_salt = STR("a")},
                                        salt_b = {.cache_salt = STR("b")},
                                        lora_a = {.lora = STR("a")}, lora_b = {.lora = STR("b")};

struct planting {
    struct kv_manager *mgr;
    struct rng rng;
    uint32_t first_token, n_tokens; /* of the cached prompt */
    uint64_t now_us;
};

static void run(struct kv_req *r) {
    assert_int_equal(kv_req_admit(r), ST_OK);
    kv_manager_clear_moves(r->mgr);
}

/* A prompt that nothing else resembles, cached under `extras`. */
static void plant(struct planting *p, const struct block_extras *extras) {
    struct kv_req r;

    p->first_token += 1000;
    p->n_tokens = 3 * BLOCK_SIZE + 1 + (uint32_t)rng_below(&p->rng, 12 * BLOCK_SIZE);
    kv_req_init(&r, p->mgr, extras, false);
    kv_req_append_run(&r, p->first_token, p->n_tokens);
    run(&r);
    kv_req_done(&r);
}

static void ask(struct planting *p, const struct block_extras *extras, struct kv_req *r) {
    kv_req_init(r, p->mgr, extras, false);
    kv_req_append_run(r, p->first_token, p->n_tokens);
}

/* Explains it without admitting, then admits it: both must agree, and count once. `counted`: the
 * operators' metric, which also has the cause of prompts cached under another salt. */
static struct kv_explanation explain_counted(struct planting *p, struct kv_req *r,
                                             enum kv_miss counted) {
    struct kv_explanation dry, live;
    uint64_t before[KV_MISS_COUNT];
    struct kv_hit hit = kv_manager_lookup(p->mgr, &r->seq, r->tokens, r->n_tokens);

    kv_manager_explain(p->mgr, &r->seq, r->tokens, r->n_tokens, &hit, &dry);
    memcpy(before, kv_manager_stats(p->mgr)->misses, sizeof(before));
    r->seq.explanation = &live;
    run(r);
    assert_memory_equal(&dry, &live, sizeof(dry));
    for (int c = 0; c < KV_MISS_COUNT; c++)
        assert_int_equal(kv_manager_stats(p->mgr)->misses[c],
                         before[c] + (c == (int)(counted == KV_MISS_COUNT ? dry.cause : counted)));
    kv_manager_check(p->mgr);
    kv_req_done(r);
    return dry;
}

static struct kv_explanation explain(struct planting *p, struct kv_req *r) {
    return explain_counted(p, r, KV_MISS_COUNT);
}

/* One token is another, at any place that a hit could have reached. */
static void check_edit(struct planting *p) {
    uint32_t n_full, at;
    struct kv_explanation x;
    struct kv_req r;

    plant(p, rng_below(&p->rng, 2) ? &plain : &salt_a);
    plant(p, &plain);
    n_full = (p->n_tokens - 1) / BLOCK_SIZE;
    at = (uint32_t)rng_below(&p->rng, n_full * BLOCK_SIZE);
    ask(p, &plain, &r);
    r.tokens[at] = EDITED;
    x = explain(p, &r);
    assert_int_equal(x.cause, at == 0 ? KV_MISS_NEVER_SEEN : KV_MISS_DIFFERS);
    assert_int_equal(x.n_hit_tokens, at / BLOCK_SIZE * BLOCK_SIZE);
    assert_int_equal(x.block, at / BLOCK_SIZE);
    assert_int_equal(x.token, at);
    if (at > 0) assert_int_equal(x.cached_token_id, p->first_token + at);
}

/* What is cached under another salt is counted, and explained as if it did not exist. */
static void check_other_salt(struct planting *p, const struct block_extras *cached,
                             const struct block_extras *asked) {
    struct kv_explanation x, alone;
    struct kv_req r;

    p->first_token += 1000;
    p->n_tokens = 5 * BLOCK_SIZE;
    ask(p, asked, &r);
    alone = explain(p, &r);
    assert_int_equal(alone.cause, KV_MISS_NEVER_SEEN);
    plant(p, cached);
    ask(p, asked, &r);
    x = explain_counted(p, &r, KV_MISS_SALT);
    assert_int_equal(x.cause, KV_MISS_NEVER_SEEN);
    assert_int_equal(x.token, alone.token);
    assert_int_equal(x.n_hit_tokens, 0);
    assert_int_equal(x.n_other_tokens, 0);
}

static void check_other_key(struct planting *p, const struct block_extras *cached,
                            const struct block_extras *asked, enum kv_miss cause) {
    struct kv_explanation x;
    struct kv_req r;

    plant(p, cached);
    ask(p, asked, &r);
    x = explain(p, &r);
    assert_int_equal(x.cause, cause);
    assert_int_equal(x.n_hit_tokens, 0);
    assert_int_equal(x.n_other_tokens, (p->n_tokens - 1) / BLOCK_SIZE * BLOCK_SIZE);
}

static void check_eviction(struct planting *p) {
    uint32_t first, n, n_full;
    struct kv_explanation x;
    struct kv_req r;

    plant(p, &plain);
    first = p->first_token;
    n = p->n_tokens;
    n_full = (n - 1) / BLOCK_SIZE;
    do { /* others come until something of it has gone */
        plant(p, &plain);
        p->now_us += STEP_US;
        kv_manager_set_now(p->mgr, p->now_us);
        kv_req_init(&r, p->mgr, NULL, false);
        kv_req_append_run(&r, first, n);
        x.n_hit_tokens = kv_manager_lookup(p->mgr, &r.seq, r.tokens, n).n_tokens;
        kv_req_done(&r);
    } while (x.n_hit_tokens == n_full * BLOCK_SIZE);
    kv_req_init(&r, p->mgr, NULL, false);
    kv_req_append_run(&r, first, n);
    x = explain(p, &r);
    assert_int_equal(x.cause, KV_MISS_EVICTED);
    assert_int_equal(x.block, x.n_hit_tokens / BLOCK_SIZE);
    assert_int_equal(x.evicted_us, p->now_us - STEP_US); /* the clock went on after it */
    assert_int_equal(x.now_us, p->now_us);
}

static void a_hundred_planted_misses_are_named(void **state) {
    struct kv_manager_config config = kv_fixture_config(N_BLOCKS, BLOCK_SIZE);
    struct planting p = {.now_us = 10 * STEP_US};
    const struct block_extras *salts[] = {&plain, &salt_a, &salt_b};

    (void)state;
    config.order = FREE_ORDER_FRESH_FIRST;
    p.mgr = kv_manager_create(&config);
    rng_seed(&p.rng, support_seed());
    kv_manager_set_now(p.mgr, p.now_us);
    for (int i = 0; i < N_PLANTINGS; i++) {
        switch (i % 5) {
        case 0:
        case 1: check_edit(&p); break;
        case 2: check_other_salt(&p, salts[i / 5 % 3], salts[(i / 5 + 1) % 3]); break;
        case 3: check_other_key(&p, i % 2 ? &lora_a : &plain, &lora_b, KV_MISS_ADAPTER); break;
        default: check_eviction(&p);
        }
    }
    kv_manager_destroy(p.mgr);
}

static enum kv_miss cause_of(struct kv_req *r) {
    struct kv_hit hit = kv_manager_lookup(r->mgr, &r->seq, r->tokens, r->n_tokens);
    struct kv_explanation x;

    kv_manager_explain(r->mgr, &r->seq, r->tokens, r->n_tokens, &hit, &x);
    kv_req_done(r);
    return x.cause;
}

static void causes_that_need_no_cache(void **state) {
    struct kv_manager_config config = kv_fixture_config(N_BLOCKS, BLOCK_SIZE);
    struct kv_manager *mgr = kv_manager_create(&config);
    struct kv_req r;

    (void)state;
    kv_req_init(&r, mgr, NULL, false);
    kv_req_append_run(&r, 0, BLOCK_SIZE); /* its last token is computed in any case */
    assert_int_equal(cause_of(&r), KV_MISS_SHORT);
    kv_req_init(&r, mgr, NULL, true);
    kv_req_append_run(&r, 0, 100);
    assert_int_equal(cause_of(&r), KV_MISS_LOGPROBS);
    kv_req_init(&r, mgr, NULL, false);
    kv_req_append_run(&r, 0, 100);
    assert_int_equal(cause_of(&r), KV_MISS_NEVER_SEEN);
    kv_manager_destroy(mgr);

    config.no_caching = true;
    mgr = kv_manager_create(&config);
    kv_req_init(&r, mgr, NULL, false);
    kv_req_append_run(&r, 0, 100);
    assert_int_equal(cause_of(&r), KV_MISS_OFF);
    kv_manager_destroy(mgr);
}

/* The nearest of several is named, not the newest. */
static void the_nearest_prompt_is_compared_with(void **state) {
    struct kv_manager_config config = kv_fixture_config(N_BLOCKS, BLOCK_SIZE);
    struct planting p = {.mgr = kv_manager_create(&config)};
    struct kv_explanation x;
    struct kv_req r;

    (void)state;
    for (uint32_t other = 0; other < 3; other++) { /* equal up to token 17 + 5, then 9, then 2 */
        kv_req_init(&r, p.mgr, NULL, false);
        kv_req_append_run(&r, 0, 40);
        r.tokens[16 + (uint32_t[]){6, 10, 3}[other]] = EDITED + other;
        run(&r);
        kv_req_done(&r);
    }
    kv_req_init(&r, p.mgr, NULL, false);
    kv_req_append_run(&r, 0, 40);
    x = explain(&p, &r);
    assert_int_equal(x.cause, KV_MISS_DIFFERS);
    assert_int_equal(x.token, 26);
    assert_int_equal(x.cached_token_id, EDITED + 1);
    kv_manager_destroy(p.mgr);
}

static void a_reset_is_an_eviction(void **state) {
    struct kv_manager_config config = kv_fixture_config(N_BLOCKS, BLOCK_SIZE);
    struct planting p = {.mgr = kv_manager_create(&config)};
    struct kv_explanation x;
    struct kv_req r;

    (void)state;
    plant(&p, &plain);
    kv_manager_set_now(p.mgr, 7 * STEP_US);
    assert_int_equal(kv_manager_reset_prefix_cache(p.mgr), ST_OK);
    ask(&p, &plain, &r);
    x = explain(&p, &r);
    assert_int_equal(x.cause, KV_MISS_EVICTED);
    assert_int_equal(x.evicted_us, 7 * STEP_US);
    kv_manager_destroy(p.mgr);
}

int main(void) {
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_hundred_planted_misses_are_named),
        cmocka_unit_test(causes_that_need_no_cache),
        cmocka_unit_test(the_nearest_prompt_is_compared_with),
        cmocka_unit_test(a_reset_is_an_eviction),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
