/* tests/unit/kernels/test_tp_group.c - ranks as threads: they meet, share and gather whatever their
 * delays, and a stop lets every one of them go. */
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <time.h>

#include "common/base/mem.h"
#include "common/base/rng.h"
#include "kernels/tp/group.h"
#include "tests/support/cm.h"
#include "tests/support/support.h"

#define ROUNDS 300u
#define WORDS  37u

struct stage {
    struct tp_group *group;
    uint64_t seed;
    atomic_uint n_inside, n_wrong, n_closed;
    uint32_t plain;   /* written by one rank between two meetings: the sanitizer looks at it */
    uint32_t stop_at; /* ROUNDS: never */
};

struct rank {
    struct stage *stage;
    uint32_t rank;
    pthread_t thread;
};

static void dawdle(struct rng *rng) {
    struct timespec t = {0, (long)rng_below(rng, 40000)};

    if (rng_below(rng, 4) == 0) nanosleep(&t, NULL);
}

static uint64_t word(uint64_t seed, uint32_t rank, uint32_t round, uint32_t i) {
    return rng_at(seed, ((uint64_t)rank << 40) + round * 1000ull + i);
}

/* No rank passes a barrier before all ranks have come to it. */
static enum status try_meet(struct stage *s, uint32_t rank, uint32_t round) {
    uint32_t size = s->group->size;
    enum status st;

    if (round % size == rank) s->plain = round;
    atomic_fetch_add(&s->n_inside, 1);
    if ((st = s->group->meet(s->group, rank)) != ST_OK) return st;
    if (atomic_load(&s->n_inside) < size * (round + 1)) s->n_wrong++;
    if (s->plain != round) s->n_wrong++;
    return s->group->meet(s->group, rank);
}

static enum status try_share(struct stage *s, uint32_t rank, uint32_t round) {
    uint64_t data[WORDS];
    enum status st;

    for (uint32_t i = 0; i < WORDS; i++)
        data[i] = word(s->seed, rank, round, i);
    st = s->group->share(s->group, rank, data, sizeof(data));
    for (uint32_t i = 0; i < WORDS && st == ST_OK; i++)
        if (data[i] != word(s->seed, 0, round, i)) s->n_wrong++;
    return st;
}

static enum status try_gather(struct stage *s, uint32_t rank, uint32_t round) {
    uint64_t mine[WORDS], all[TP_MAX_RANKS][WORDS];
    enum status st;

    for (uint32_t i = 0; i < WORDS; i++)
        mine[i] = word(s->seed, rank, round, i);
    st = s->group->gather(s->group, rank, mine, all, sizeof(mine));
    memset(mine, 0, sizeof(mine)); /* others have taken it, or never will */
    for (uint32_t r = 0; r < s->group->size && st == ST_OK; r++) {
        for (uint32_t i = 0; i < WORDS; i++)
            if (all[r][i] != word(s->seed, r, round, i)) s->n_wrong++;
    }
    return st;
}

static void *run_rank(void *arg) {
    struct rank *self = arg;
    struct stage *s = self->stage;
    struct rng rng;
    enum status st = ST_OK;

    rng_seed(&rng, s->seed + self->rank);
    for (uint32_t round = 0; round < ROUNDS && st == ST_OK; round++) {
        dawdle(&rng);
        if (round == s->stop_at && self->rank == s->seed % s->group->size) {
            tp_group_stop(s->group);
            break;
        }
        st = try_meet(s, self->rank, round);
        if (st == ST_OK) st = try_share(s, self->rank, round);
        if (st == ST_OK) st = try_gather(s, self->rank, round);
    }
    if (st == ST_CLOSED) atomic_fetch_add(&s->n_closed, 1);
    return NULL;
}

static void run_group(struct stage *s, uint32_t size) {
    struct rank ranks[TP_MAX_RANKS];

    s->group = tp_group_create(size);
    for (uint32_t r = 0; r < size; r++) {
        ranks[r] = (struct rank){.stage = s, .rank = r};
        assert_int_equal(pthread_create(&ranks[r].thread, NULL, run_rank, &ranks[r]), 0);
    }
    for (uint32_t r = 0; r < size; r++)
        pthread_join(ranks[r].thread, NULL);
}

static void ranks_meet_share_and_gather(void **state) {
    (void)state;
    for (uint32_t size = 1; size <= 5; size++) {
        struct stage s = {.seed = support_seed() + size, .stop_at = ROUNDS};

        run_group(&s, size);
        assert_int_equal(s.n_wrong, 0);
        assert_int_equal(s.n_closed, 0);
        tp_group_destroy(s.group);
    }
}

static void a_stop_lets_every_rank_go(void **state) {
    struct rng rng;

    (void)state;
    rng_seed(&rng, support_seed());
    for (uint32_t i = 0; i < 40; i++) {
        uint32_t size = 2 + i % 4;
        struct stage s = {.seed = rng_u64(&rng) >> 8, .stop_at = (uint32_t)rng_below(&rng, 20)};
        uint64_t word = 7;

        run_group(&s, size);
        assert_int_equal(s.n_wrong, 0);
        assert_int_equal(s.n_closed, size - 1);
        assert_int_equal(s.group->meet(s.group, 0), ST_CLOSED); /* ever after */
        assert_int_equal(s.group->share(s.group, 0, &word, sizeof(word)), ST_CLOSED);
        tp_group_destroy(s.group);
    }
}

/* The stop comes from outside, at any moment of a copy: all leave, and no rank reads the memory. */
static void a_stop_from_outside_at_any_moment(void **state) {
    struct rng rng;

    (void)state;
    rng_seed(&rng, support_seed());
    for (uint32_t i = 0; i < 40; i++) {
        struct stage s = {.seed = rng_u64(&rng) >> 8, .stop_at = ROUNDS};
        struct timespec pause = {0, (long)rng_below(&rng, 300000)};
        struct rank ranks[4];

        s.group = tp_group_create(4);
        for (uint32_t r = 0; r < 4; r++) {
            ranks[r] = (struct rank){.stage = &s, .rank = r};
            assert_int_equal(pthread_create(&ranks[r].thread, NULL, run_rank, &ranks[r]), 0);
        }
        nanosleep(&pause, NULL);
        tp_group_stop(s.group);
        for (uint32_t r = 0; r < 4; r++)
            pthread_join(ranks[r].thread, NULL);
        assert_int_equal(s.n_wrong, 0);
        tp_group_destroy(s.group);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_meet_share_and_gather),
        cmocka_unit_test(a_stop_lets_every_rank_go),
        cmocka_unit_test(a_stop_from_outside_at_any_moment),
    };

    return cmocka_run_group_tests_name("kernels/tp/group", tests, NULL, NULL);
}
