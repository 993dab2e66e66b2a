/* tests/unit/worker/kv/block/test_block_ages.c - the times of a block's life, to the
 * microsecond. */
#include "common/base/rng.h"
#include "tests/support/cm.h"
#include "tests/support/kv_fixture.h"
#include "tests/support/support.h"
#include "worker/kv/block/block_ages.h"

enum { AGES_MAX = 64 };

struct age_report {
    enum block_age age;
    uint64_t us;
};

/* Reports since the last look. */
struct ages_seen {
    struct age_report age_report[AGES_MAX];
    uint32_t n, n_all;
};

static void on_age(void *arg, enum block_age age, uint64_t us) {
    struct ages_seen *ages_seen = arg;

    ages_seen->n_all++;
    if (ages_seen->n < AGES_MAX)
        ages_seen->age_report[ages_seen->n++] = (struct age_report){age, us};
}

static void assert_reported(struct ages_seen *ages_seen, const struct age_report *want,
                            uint32_t n) {
    assert_int_equal(ages_seen->n, n);
    for (uint32_t i = 0; i < n; i++) {
        assert_int_equal(ages_seen->age_report[i].age, want[i].age);
        assert_int_equal(ages_seen->age_report[i].us, want[i].us);
    }
    ages_seen->n = 0;
}

static struct block_ages *make(struct ages_seen *ages_seen, uint32_t n_blocks, double share) {
    return block_ages_create(
        n_blocks, &(struct block_ages_config){.share = share, .on_age = on_age, .arg = ages_seen});
}

static void ages_are_reported_as_they_occur(void **state) {
    struct ages_seen ages_seen = {0};
    struct block_ages *ages = make(&ages_seen, 4, 1.0);

    (void)state;
    block_ages_set_now(ages, 1000);
    block_ages_acquired(ages, 3);
    block_ages_set_now(ages, 1500);
    block_ages_hit(ages, 3); /* the first: nothing to measure from */
    assert_reported(&ages_seen, NULL, 0);
    block_ages_set_now(ages, 1700);
    block_ages_hit(ages, 3);
    assert_reported(&ages_seen, (struct age_report[]){{BLOCK_AGE_REUSE_GAP, 200}}, 1);
    block_ages_set_now(ages, 2700);
    block_ages_hit(ages, 3);
    assert_reported(&ages_seen, (struct age_report[]){{BLOCK_AGE_REUSE_GAP, 1000}}, 1);
    block_ages_set_now(ages, 3000);
    block_ages_evicted(ages, 3);
    assert_reported(&ages_seen,
                    (struct age_report[]){{BLOCK_AGE_LIFETIME, 2000}, {BLOCK_AGE_IDLE, 300}}, 2);
    block_ages_evicted(ages, 3); /* a block is evicted once in its life */
    assert_reported(&ages_seen, NULL, 0);
    block_ages_destroy(ages);
}

static void a_block_without_hits_was_idle_since_its_allocation(void **state) {
    struct ages_seen ages_seen = {0};
    struct block_ages *ages = make(&ages_seen, 2, 1.0);

    (void)state;
    block_ages_set_now(ages, 10);
    block_ages_acquired(ages, 1);
    block_ages_set_now(ages, 52);
    block_ages_evicted(ages, 1);
    assert_reported(&ages_seen,
                    (struct age_report[]){{BLOCK_AGE_LIFETIME, 42}, {BLOCK_AGE_IDLE, 42}}, 2);
    block_ages_destroy(ages);
}

static void a_new_allocation_keeps_no_age_of_the_last(void **state) {
    struct ages_seen ages_seen = {0};
    struct block_ages *ages = make(&ages_seen, 2, 1.0);

    (void)state;
    block_ages_acquired(ages, 1);
    block_ages_hit(ages, 1);
    block_ages_set_now(ages, 100);
    block_ages_acquired(ages, 1); /* freed blank: no eviction */
    block_ages_hit(ages, 1);
    assert_reported(&ages_seen, NULL, 0);
    block_ages_set_now(ages, 130);
    block_ages_reset(ages);
    block_ages_hit(ages, 1);
    block_ages_evicted(ages, 1);
    assert_reported(&ages_seen, NULL, 0);
    block_ages_destroy(ages);
}

/* The share is met, by the same lives each time. */
static void the_sample_depends_on_block_and_allocation_alone(void **state) {
    enum { BLOCKS = 1000, LIVES = 100 };
    struct ages_seen first = {0}, again = {0};
    struct block_ages *a = make(&first, BLOCKS, 0.01), *b = make(&again, BLOCKS, 0.01);

    (void)state;
    for (uint32_t life = 0; life < LIVES; life++) {
        for (uint32_t i = 0; i < BLOCKS; i++) {
            uint32_t j = BLOCKS - 1 - i, seen[2] = {first.n_all, again.n_all};

            block_ages_acquired(a, i);
            block_ages_evicted(a, i);
            block_ages_acquired(b, j);
            block_ages_evicted(b, j);
            assert_true(first.n_all - seen[0] == 0 || first.n_all - seen[0] == 2);
            assert_true(again.n_all - seen[1] == 0 || again.n_all - seen[1] == 2);
        }
        assert_int_equal(first.n_all, again.n_all);
    }
    assert_int_equal(first.n_all / 2, 1023); /* of 100,000: whatever the hash gives, always that */
    block_ages_destroy(a);
    block_ages_destroy(b);
}

/* What happened to each block of late, from which every report can be computed. */
static void random_histories_match_a_diary(void **state) {
    enum { BLOCKS = 7, STEPS = 20000 };
    struct {
        uint64_t born_us, hit_us[2]; /* the last two hits; 0: none */
        bool is_alive;
    } diary[BLOCKS] = {0};
    struct ages_seen ages_seen = {0};
    struct block_ages *ages = make(&ages_seen, BLOCKS, 1.0);
    uint64_t now_us = 1;
    struct rng rng;

    (void)state;
    rng_seed(&rng, support_seed());
    for (int i = 0; i < STEPS; i++) {
        uint32_t b = (uint32_t)rng_below(&rng, BLOCKS);
        uint64_t last_us = diary[b].hit_us[1] ? diary[b].hit_us[1] : diary[b].born_us;

        now_us += rng_below(&rng, 1000);
        block_ages_set_now(ages, now_us);
        switch (rng_below(&rng, 8)) {
        case 0:
            block_ages_acquired(ages, b);
            diary[b].born_us = now_us;
            diary[b].hit_us[0] = diary[b].hit_us[1] = 0;
            diary[b].is_alive = true;
            assert_reported(&ages_seen, NULL, 0);
            break;
        case 1:
            block_ages_evicted(ages, b);
            assert_reported(&ages_seen,
                            (struct age_report[]){{BLOCK_AGE_LIFETIME, now_us - diary[b].born_us},
                                                  {BLOCK_AGE_IDLE, now_us - last_us}},
                            diary[b].is_alive ? 2 : 0);
            diary[b].is_alive = false;
            break;
        case 2:
            if (rng_below(&rng, 20) > 0) break;
            block_ages_reset(ages);
            for (int k = 0; k < BLOCKS; k++)
                diary[k].is_alive = false;
            break;
        default:
            block_ages_hit(ages, b);
            diary[b].hit_us[0] = diary[b].hit_us[1];
            diary[b].hit_us[1] = now_us;
            assert_reported(
                &ages_seen,
                (struct age_report[]){{BLOCK_AGE_REUSE_GAP, now_us - diary[b].hit_us[0]}},
                diary[b].is_alive && diary[b].hit_us[0] > 0);
        }
    }
    block_ages_destroy(ages);
}

static void publish(struct block_pool *pool, block_id id, uint32_t token) {
    struct block_hash hash = {{(uint8_t)token}};
    struct prefix_key key = {&hash, PREFIX_ROOT, &token, NULL, 0};

    block_pool_publish(pool, id, &key, 0);
}

static void the_pool_reports_ages_of_its_blocks(void **state) {
    struct ages_seen ages_seen = {0};
    struct block_ages *ages = make(&ages_seen, 3, 1.0);
    struct block_pool *pool = block_pool_create(&(struct block_pool_config){
        .n_blocks = 3, .block_size = 1, .order = FREE_ORDER_FRESH_FIRST, .ages = ages});
    block_id ids[2];

    (void)state;
    block_ages_set_now(ages, 1000);
    assert_int_equal(block_pool_acquire(pool, ids, 2), ST_OK);
    publish(pool, ids[0], 7); /* the other stays blank */
    block_pool_release(pool, ids, 2);
    block_ages_set_now(ages, 2000);
    block_pool_touch(pool, ids, 1);
    block_ages_set_now(ages, 5000);
    block_pool_touch(pool, ids, 1);
    assert_reported(&ages_seen, (struct age_report[]){{BLOCK_AGE_REUSE_GAP, 3000}}, 1);
    block_pool_release(pool, ids, 1);
    block_pool_release(pool, ids, 1);
    block_ages_set_now(ages, 9000);
    assert_int_equal(block_pool_acquire(pool, ids, 2), ST_OK); /* the blank one, then the cached */
    assert_reported(&ages_seen,
                    (struct age_report[]){{BLOCK_AGE_LIFETIME, 8000}, {BLOCK_AGE_IDLE, 4000}}, 2);
    publish(pool, ids[0], 8);
    block_pool_release(pool, ids, 2);
    assert_int_equal(block_pool_reset(pool), ST_OK);
    assert_int_equal(block_pool_acquire(pool, ids, 2), ST_OK);
    assert_reported(&ages_seen, NULL, 0);
    block_pool_release(pool, ids, 2);
    block_pool_destroy(pool);
    block_ages_destroy(ages);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ages_are_reported_as_they_occur),
        cmocka_unit_test(a_block_without_hits_was_idle_since_its_allocation),
        cmocka_unit_test(a_new_allocation_keeps_no_age_of_the_last),
        cmocka_unit_test(the_sample_depends_on_block_and_allocation_alone),
        cmocka_unit_test(random_histories_match_a_diary),
        cmocka_unit_test(the_pool_reports_ages_of_its_blocks),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
