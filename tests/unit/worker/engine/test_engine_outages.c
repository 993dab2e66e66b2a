/* tests/unit/worker/engine/test_engine_outages.c - a worker or its store is killed, its disk is
 * full, read-only, broken or slow: every request gets the answer computed, and no block stays
 * anybody's.
 *
 * TRANSFERS=10000 is the number of blocks that go down and come up in each test of kills (300).
 * Nothing here has a limit in time: a request may wait for an hour, so one that ends was told of
 * the outage. */
#include <errno.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include "tests/support/support.h"
#include "tests/support/tier_place.h"
#include "tests/support/tier_prompts.h"

#define KILL_LAST 25u /* system calls of a folder */

static const struct machine machine = {.ops = &backend_cpu, .kv_dtype = DTYPE_BF16};

static struct round x;

static uint64_t n_transfers(void) {
    const char *s = getenv("TRANSFERS");

    return s ? (uint64_t)atoll(s) : 300;
}

/* Less room on the device and in host memory than the round has blocks: what is asked for again has
 * to come from below. */
static struct setup small_setup(const struct tier_place *place) {
    return (struct setup){.machine = machine,
                          .n_blocks = 30,
                          .host_blocks = 40,
                          .budget = 64,
                          .tier = tier_place_source(place)};
}

static uint64_t n_moved(const struct engine_stats *s) {
    return s->tiers[0].loads[TIER_OK] + s->tiers[0].stores[TIER_OK];
}

static void run_all(struct engine_fixture *w, struct answer *answers) {
    for (uint32_t i = 0; i < ROUND; i++) {
        struct request_params params = params_of(&x, i);

        submit(w, &params, &answers[i]);
    }
}

static void end_all(struct engine_fixture *w, const struct answer *answers, const char *how) {
    fixture_run(w);
    for (uint32_t i = 0; i < ROUND; i++)
        assert_same(&x.computed[i], &answers[i], how, i);
    WAIT_UNTIL(stats_of(w).host_held == 0);
    assert_idle(w);
}

static void answer_all(struct engine_fixture *w, const char *how) {
    static struct answer answers[ROUND];

    memset(answers, 0, sizeof(answers));
    run_all(w, answers);
    end_all(w, answers, how);
}

/* --- a worker ends ---------------------------------------------------------------------------- */

/* Shared with the children. */
struct ledger {
    atomic_ullong n_moved;
};

static atomic_uint n_calls;
static unsigned last_call;

static void count_down(void *arg, enum file_op op, uint64_t at, size_t n,
                       struct file_fault *fault) {
    (void)arg, (void)op, (void)at, (void)n, (void)fault;
    if (atomic_fetch_add(&n_calls, 1) + 1 >= last_call) kill(getpid(), SIGKILL);
}

static void live_and_die(struct tier_place *place, struct ledger *ledger, uint64_t seed) {
    static const struct file_hook hook = {.before = count_down};
    struct setup s = small_setup(place);
    struct engine_fixture w;
    uint64_t before = 0;
    struct rng rng;

    setenv("CMOCKA_TEST_ABORT", "1", 1); /* a failure here is no SIGKILL */
    rng_seed(&rng, seed);
    last_call = 1 + (unsigned)rng_below(&rng, KILL_LAST);
    place->file.hook = &hook;
    fixture_open(&w, &s);
    for (;;) {
        struct request_params params = params_of(&x, (uint32_t)rng_below(&rng, ROUND));
        struct answer answer = {.n = 0};
        struct engine_stats stats;

        submit(&w, &params, &answer);
        fixture_run(&w);
        assert_same(&x.computed[params.seed], &answer, "before the end", (uint32_t)params.seed);
        stats = stats_of(&w);
        atomic_fetch_add(&ledger->n_moved, n_moved(&stats) - before);
        before = n_moved(&stats);
    }
}

static void a_worker_killed_at_any_call_leaves_right_blocks(void **state) {
    struct ledger *ledger =
        mmap(NULL, sizeof(*ledger), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    struct tier_place place;
    uint32_t n_kills = 0;

    (void)state;
    assert_true(ledger != MAP_FAILED);
    assert_true(tier_place_init(&place, PLACE_FILE));
    draw_prompts(&x, &machine, support_seed());
    compute(&x);
    while (atomic_load(&ledger->n_moved) < n_transfers()) {
        struct setup s = small_setup(&place);
        struct engine_stats stats;
        struct engine_fixture w;
        pid_t child = fork();
        int status;

        if (child == 0) {
            live_and_die(&place, ledger, support_seed() * 1000003 + n_kills);
            _exit(1);
        }
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
        n_kills++;
        fixture_open(&w, &s);
        answer_all(&w, "after the end");
        stats = stats_of(&w);
        assert_int_equal(stats.tiers[0].loads[TIER_REJECTED], 0);
        assert_true(stats.tiers[0].can_write);
        atomic_fetch_add(&ledger->n_moved, n_moved(&stats));
        fixture_close(&w);
    }
    print_message("%u workers killed, %llu blocks transferred\n", n_kills,
                  atomic_load(&ledger->n_moved));
    munmap(ledger, sizeof(*ledger));
    tier_place_fini(&place);
}

/* --- a store ends ----------------------------------------------------------------------------- */

static void a_store_killed_at_any_time_fails_no_request(void **state) {
    static struct answer answers[ROUND];
    struct tier_place place;
    struct setup s;
    uint32_t n_kills = 0, n_met = 0;
    struct engine_fixture w;
    struct engine_stats stats;

    (void)state;
    if (!tier_place_init(&place, PLACE_STORE)) {
        print_message("SKIPPED a real Redis: make deps-test\n");
        return;
    }
    draw_prompts(&x, &machine, support_seed() + 1);
    compute(&x);
    s = small_setup(&place);
    fixture_open(&w, &s);
    do {
        uint64_t before;

        stats = stats_of(&w);
        before = n_moved(&stats);
        do {
            answer_all(&w, "before an outage");
            stats = stats_of(&w);
        } while (n_moved(&stats) < before + 20);
        before = stats.tiers[0].loads[TIER_IO];
        memset(answers, 0, sizeof(answers));
        run_all(&w, answers);
        loop_turn(w.loop, draw(&x, 3000));
        redis_server_kill(&place.server);
        end_all(&w, answers, "in an outage");
        stats = stats_of(&w);
        n_met += stats.tiers[0].loads[TIER_IO] > before;
        n_kills++;
        redis_server_restart(&place.server, NULL);
    } while (n_moved(&stats) < n_transfers());
    print_message("%u stores killed, %u of them in the middle of a load, %llu blocks transferred\n",
                  n_kills, n_met, (unsigned long long)n_moved(&stats));
    assert_int_equal(stats.tiers[0].loads[TIER_REJECTED], 0);
    fixture_close(&w);
    tier_place_fini(&place);
}

/* --- a disk fails ----------------------------------------------------------------------------- */

/* What becomes of calls from now on. */
struct trouble {
    atomic_uint ops; /* 1 << each that fails or waits */
    atomic_int error;
    atomic_uint delay_us;
};

static void trouble_before(void *arg, enum file_op op, uint64_t at, size_t n,
                           struct file_fault *fault) {
    struct trouble *t = arg;

    (void)at, (void)n;
    if (!(atomic_load(&t->ops) & 1u << op)) return;
    fault->error = atomic_load(&t->error);
    usleep(atomic_load(&t->delay_us));
}

static void a_failing_disk_fails_no_request(void **state) {
    static const struct {
        unsigned ops;
        int error;
    } rows[] = {
        {1u << FILE_WRITE | 1u << FILE_ALLOCATE, ENOSPC},
        {1u << FILE_WRITE, EDQUOT},
        {1u << FILE_WRITE | 1u << FILE_CREATE, EROFS},
        {1u << FILE_WRITE, EIO},
        {1u << FILE_READ, EIO},
        {1u << FILE_OPEN, EMFILE},
    };

    (void)state;
    draw_prompts(&x, &machine, support_seed() + 2);
    compute(&x);
    for (size_t i = 0; i < 2 * ARRAY_LEN(rows); i++) {
        struct trouble trouble = {.error = rows[i / 2].error};
        struct file_hook hook = {trouble_before, &trouble};
        struct tier_place place;
        struct engine_fixture w;
        struct setup s;

        assert_true(tier_place_init(&place, PLACE_FILE));
        s = small_setup(&place);
        place.file.hook = &hook;
        fixture_open(&w, &s);
        for (int round = 0; round < 4; round++) {
            if (round == 2 * (int)(i % 2)) atomic_store(&trouble.ops, rows[i / 2].ops);
            answer_all(&w, "with a failing disk");
        }
        fixture_close(&w);
        tier_place_fini(&place);
    }
}

/* Each call takes 100 ms, in which all of a round can be computed many times: computing is sooner,
 * and known to be after the first load. */
static void a_slow_disk_is_waited_for_once(void **state) {
    struct trouble trouble = {.delay_us = 100000};
    struct file_hook hook = {trouble_before, &trouble};
    struct tier_place place;
    struct engine_stats stats;
    struct engine_fixture w;
    struct setup s;
    uint64_t n_asked;

    (void)state;
    assert_true(tier_place_init(&place, PLACE_FILE));
    draw_prompts(&x, &machine, support_seed() + 3);
    compute(&x);
    s = small_setup(&place);
    s.host_blocks = 300; /* nothing is lost before it is written */
    fixture_open(&w, &s);
    run_each(&w, &x);
    run_each(&w, &x);
    WAIT_UNTIL(stats_of(&w).tiers[0].stores[TIER_OK] >= x.n_blocks);
    fixture_close(&w);
    place.file.hook = &hook;
    s = small_setup(&place);
    s.is_priced = true;
    fixture_open(&w, &s);
    atomic_store(&trouble.ops, 1u << FILE_READ);
    do {
        run_each(&w, &x);
        stats = stats_of(&w);
        n_asked = stats.tiers[0].n_awaited + stats.tiers[0].n_dearer;
    } while (n_asked < 600);
    print_message("%llu requests: %llu computed at once, %llu late\n", (unsigned long long)n_asked,
                  (unsigned long long)stats.tiers[0].n_dearer,
                  (unsigned long long)stats.tiers[0].n_late);
    assert_true(stats.tiers[0].n_late <= 2 + n_asked / 64);
    WAIT_UNTIL(stats_of(&w).host_held == 0);
    assert_idle(&w);
    fixture_close(&w);
    tier_place_fini(&place);
}

int main(void) {
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_worker_killed_at_any_call_leaves_right_blocks),
        cmocka_unit_test(a_store_killed_at_any_time_fails_no_request),
        cmocka_unit_test(a_failing_disk_fails_no_request),
        cmocka_unit_test(a_slow_disk_is_waited_for_once),
    };

    gate_init();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
