/* tests/support/store_fixture.h - a store tier, blocks of one chain, and jobs that are waited for
 * while a server on the test's loop is turned. */
#ifndef TESTS_SUPPORT_STORE_FIXTURE_H
#define TESTS_SUPPORT_STORE_FIXTURE_H

#include <string.h>

#include "common/base/clock.h"
#include "common/base/mem.h"
#include "common/net/loop.h"
#include "common/net/mailbox.h"
#include "tests/support/cm.h"
#include "tests/support/unit_fixture.h"
#include "worker/kv/tiers/store/store.h"

#define STORE_TEST_BLOCKS 64

/* Patience, not a limit: no test expects one of these to pass. */
#define STORE_TEST_PATIENT_MS 60000u

static const uint8_t store_test_keys[2][32] = {{7}, {8}};

struct store_desk {
    struct loop *loop;
    struct mailbox *home;
    struct tier_store_config config;
    struct tier *tier;
    struct unit_block blocks[STORE_TEST_BLOCKS];
    struct unit_key keys[STORE_TEST_BLOCKS];
    uint8_t *payloads; /* what the jobs read and write, of each block */
    size_t block_bytes;
    uint32_t n_mails;
};

static inline void store_desk_make_chain(struct store_desk *d, uint64_t chain) {
    for (uint32_t i = 0; i < STORE_TEST_BLOCKS; i++) {
        unit_block_make(&d->blocks[i], d->config.unit.fleet_keys ? store_test_keys[0] : NULL,
                        d->config.unit.fingerprint, chain, i);
        d->keys[i] = d->blocks[i].id.key;
    }
}

static inline void store_desk_begin(struct store_desk *d, bool is_sealed, size_t block_bytes) {
    struct error err = {0};

    memset(d, 0, sizeof(*d));
    assert_int_equal(loop_create(&d->loop, &err), ST_OK);
    d->home = mailbox_open_waiting();
    d->block_bytes = block_bytes;
    d->payloads = mem_alloc(STORE_TEST_BLOCKS * block_bytes);
    d->config = (struct tier_store_config){
        .unit = {.fingerprint = {1}, .block_tokens = UNIT_TEST_TOKENS, .block_bytes = block_bytes},
        .is_plain = !is_sealed,
        .connect_ms = STORE_TEST_PATIENT_MS,
        .silence_ms = STORE_TEST_PATIENT_MS,
        .max_keys = 4096,
    };
    if (is_sealed) {
        d->config.unit.fleet_keys = store_test_keys;
        d->config.unit.n_fleet_keys = 2;
    }
    store_desk_make_chain(d, 1);
}

static inline void store_desk_open(struct store_desk *d, const char *urls) {
    struct error err = {0};

    d->config.urls = urls;
    if (tier_store_open(&d->tier, &d->config, &err) != ST_OK) fail_msg("%s", err.message);
}

/* As another process would find the store. */
static inline void store_desk_reopen(struct store_desk *d) {
    d->tier->ops->destroy(d->tier);
    store_desk_open(d, d->config.urls);
}

static inline void store_desk_end(struct store_desk *d) {
    if (d->tier) d->tier->ops->destroy(d->tier);
    mailbox_close(d->home);
    loop_destroy(d->loop);
    mem_free(d->payloads);
}

#define STORE_UNTIL(d, condition)                                                                  \
    for (uint64_t until_us_ = clock_now_us() + 60000000u; !(condition);) {                         \
        loop_turn((d)->loop, 500);                                                                 \
        if (clock_now_us() > until_us_) fail_msg("never: %s", #condition);                         \
    }

static inline uint8_t *store_desk_payload(struct store_desk *d, uint32_t block) {
    return d->payloads + block * d->block_bytes;
}

static inline void store_job_make(struct store_desk *d, struct tier_job *job, enum tier_op op,
                                  uint32_t first, uint32_t n) {
    memset(job, 0, sizeof(*job));
    job->home = d->home;
    job->op = op;
    job->n = n;
    job->deadline_us = UINT64_MAX;
    for (uint32_t i = 0; i < n; i++) {
        uint8_t *payload = store_desk_payload(d, first + i);

        job->units[i] = (struct tier_unit){
            .id = d->blocks[first + i].id, .payload = payload, .result = TIER_N_RESULTS};
        if (op == TIER_STORE) {
            unit_block_fill(&d->blocks[first + i], payload, d->block_bytes);
        } else {
            memset(payload, 0xee, d->block_bytes);
        }
    }
}

/* Takes what has come home; all of it must be jobs. */
static inline uint32_t store_desk_harvest(struct store_desk *d) {
    struct list mails;
    uint32_t n = 0;

    list_init(&mails);
    mailbox_take(d->home, &mails);
    while (list_pop_front(&mails))
        n++;
    d->n_mails += n;
    return d->n_mails;
}

/* A unit that is OK has its bytes, and no other has bytes that came from anywhere. */
static inline void store_job_check(struct store_desk *d, const struct tier_job *job) {
    uint8_t *expected = mem_alloc(d->block_bytes), *untouched = mem_alloc(d->block_bytes);
    uint8_t *zeros = mem_zalloc(d->block_bytes);

    memset(untouched, 0xee, d->block_bytes);
    for (uint32_t i = 0; i < job->n; i++) {
        const struct tier_unit *u = &job->units[i];
        const struct unit_block *b =
            (const struct unit_block *)((uintptr_t)u->id.tokens -
                                        offsetof(struct unit_block, tokens));

        assert_true(u->result < TIER_N_RESULTS);
        unit_block_fill(b, expected, d->block_bytes);
        if (u->result == TIER_OK || job->op == TIER_STORE) {
            assert_memory_equal(u->payload, expected, d->block_bytes);
        } else {
            assert_true(memcmp(u->payload, untouched, d->block_bytes) == 0 ||
                        memcmp(u->payload, zeros, d->block_bytes) == 0);
        }
    }
    mem_free(expected);
    mem_free(untouched);
    mem_free(zeros);
}

/* Runs a job on blocks [first, first + n) of the chain to its end. */
static inline void store_desk_run(struct store_desk *d, struct tier_job *job, enum tier_op op,
                                  uint32_t first, uint32_t n) {
    uint32_t n_mails = d->n_mails;

    store_job_make(d, job, op, first, n);
    d->tier->ops->submit(d->tier, job);
    STORE_UNTIL(d, store_desk_harvest(d) > n_mails);
    assert_int_equal(d->n_mails, n_mails + 1);
    store_job_check(d, job);
}

static inline uint32_t store_job_count(const struct tier_job *job, enum tier_result result) {
    uint32_t n = 0;

    for (uint32_t i = 0; i < job->n; i++)
        n += job->units[i].result == result;
    return n;
}

/* Until the store has forgiven what a test did to it. */
static inline void store_desk_run_until_ok(struct store_desk *d, struct tier_job *job,
                                           enum tier_op op, uint32_t first, uint32_t n) {
    uint64_t until_us = clock_now_us() + 60000000u;

    do {
        if (clock_now_us() > until_us) fail_msg("never again: op %d", op);
        store_desk_run(d, job, op, first, n);
    } while (store_job_count(job, TIER_OK) < n);
}

static inline uint32_t store_desk_find(struct store_desk *d, uint32_t first, uint32_t n) {
    return d->tier->ops->find(d->tier, d->keys + first, n);
}

static inline struct tier_store_stats store_desk_stats(struct store_desk *d) {
    struct tier_store_stats stats;

    tier_store_stats(d->tier, &stats);
    return stats;
}

#endif
