/* tests/unit/worker/engine/test_engine_peer_outages.c - a source or a sink is killed or stopped at
 * any point of a transfer: every request gets the answer computed, and no block of the one that is
 * left stays anybody's.
 *
 * The other worker is a process of its own. TRANSFERS=10000 is the number of blocks that are sent
 * in each test (300). Nothing is waited for with a limit in time that a slow machine could reach:
 * where waits matter, requests that waited are counted, and the longest wait is printed. */
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include "tests/support/engine_peer.h"
#include "tests/support/tier_prompts.h"

#define N_ASKED 200u /* requests that name a source that is stopped */

static const struct machine cpu = {.ops = &backend_cpu, .kv_dtype = DTYPE_BF16};
static const struct machine simulated = {.ops = &backend_sim};
static const uint8_t fleet_key[1][32] = {{3}};

static struct round x;
static bool is_sealed; /* of this round */
static struct answer answers[ROUND];
static struct request *requests[ROUND];

/* Shared with the children. */
struct ledger {
    struct tier_source source;     /* with is_ready */
    atomic_bool is_ready, is_over; /* a sink in a child has all its answers */
};

static struct ledger *ledger;

static uint64_t n_transfers(void) {
    const char *s = getenv("TRANSFERS");

    return s ? (uint64_t)atoll(s) : 300;
}

static void open_round(uint64_t salt, const struct machine *machine) {
    if (!ledger)
        ledger =
            mmap(NULL, sizeof(*ledger), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(ledger != MAP_FAILED);
    draw_prompts(&x, machine, support_seed() + salt);
    compute(&x);
}

static struct setup setup_of(bool is_sink) {
    return (struct setup){.machine = x.machine,
                          .n_blocks = 30,
                          .host_blocks = is_sink ? 80 : 300,
                          .budget = 64,
                          .fleet_key = is_sealed ? fleet_key : NULL};
}

static void open_worker(struct peer_worker *w, uint64_t generation, bool is_sink) {
    struct setup s = setup_of(is_sink);

    peer_worker_open(w, &s, generation, PEER_TEST_PATIENT);
}

/* --- requests --------------------------------------------------------------------------------- */

static void ask(struct engine_fixture *w, uint32_t i, const struct tier_source *source) {
    struct request_params params = params_of(&x, i);

    memset(&answers[i], 0, sizeof(answers[i]));
    params.kv_source = *source;
    params.kv_source.n_tokens = x.n[i];
    w->lets_go = true;
    requests[i] = submit(w, &params, &answers[i]);
}

static void ask_all(struct engine_fixture *w, const struct tier_source *source) {
    for (uint32_t i = 0; i < ROUND; i++)
        ask(w, i, source);
}

/* *longest_us: the most that a request has waited for a source, until now. */
static void end_all(struct engine_fixture *w, const char *how, uint64_t *longest_us) {
    fixture_run(w);
    for (uint32_t i = 0; i < ROUND; i++) {
        assert_same(&x.computed[i], &answers[i], how, i);
        *longest_us = MAX(*longest_us, requests[i]->restore_us);
        request_unref(requests[i]);
    }
}

/* --- the other process ------------------------------------------------------------------------ */

static void publish(const struct tier_source *source) {
    ledger->source = *source;
    atomic_store(&ledger->is_ready, true);
}

/* Gives its blocks, and sends itself the signal behind so many units. */
static void give_and_end(uint32_t n_units, int signal_number) {
    static struct peer_worker w;
    struct peer_server_stats stats;

    open_worker(&w, 1, false);
    run_each(&w.engine, &x);
    publish(&w.door.source);
    for (;;) {
        peer_server_stats(w.peers, &stats);
        if (stats.sent_units >= n_units) kill(getpid(), signal_number);
        usleep(20);
    }
}

static void take_and_wait(void) {
    static struct peer_worker w;
    uint64_t longest_us = 0;

    while (!atomic_load(&ledger->is_ready))
        usleep(100);
    open_worker(&w, 2, true);
    ask_all(&w.engine, &ledger->source);
    end_all(&w.engine, "of a sink that is to be killed", &longest_us);
    atomic_store(&ledger->is_over, true);
    for (;;)
        pause();
}

/* While this process has one thread. */
static pid_t begin_child(void) {
    pid_t child;

    is_sealed = draw(&x, 2);
    atomic_store(&ledger->is_ready, false);
    atomic_store(&ledger->is_over, false);
    child = fork();
    assert_true(child >= 0);
    if (child == 0) setenv("CMOCKA_TEST_ABORT", "1", 1); /* a failure there is no SIGKILL */
    return child;
}

static pid_t begin_source(uint32_t n_units, int signal_number) {
    pid_t child = begin_child();

    if (child == 0) give_and_end(n_units, signal_number);
    return child;
}

static pid_t begin_sink(void) {
    pid_t child = begin_child();

    if (child == 0) take_and_wait();
    return child;
}

static void end_child(pid_t child) {
    int status;

    kill(child, SIGKILL);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
}

static void report(const char *what, uint32_t n, uint32_t n_met, uint64_t n_sent, uint64_t us) {
    print_message("%u %s, %u of them in a load, %llu blocks sent, longest wait %.1f ms\n", n, what,
                  n_met, (unsigned long long)n_sent, 1e-3 * (double)us);
}

/* --- a source ends ---------------------------------------------------------------------------- */

static void a_source_killed_at_any_unit_fails_no_request(void **state) {
    uint64_t n_sent = 0, longest_us = 0;
    uint32_t n_kills = 0, n_met = 0;

    (void)state;
    open_round(1, &cpu);
    for (; n_sent < n_transfers(); n_kills++) {
        pid_t child = begin_source(draw(&x, x.n_blocks), SIGKILL);
        static struct peer_worker sink;
        struct engine_stats stats;

        open_worker(&sink, 2, true);
        WAIT_UNTIL(atomic_load(&ledger->is_ready));
        ask_all(&sink.engine, &ledger->source);
        end_all(&sink.engine, "while its source was killed", &longest_us);
        assert_at_rest(&sink.engine);
        stats = stats_of(&sink.engine);
        n_sent += stats.tiers[0].loads[TIER_OK];
        n_met += stats.tiers[0].loads[TIER_IO] > 0;
        assert_int_equal(stats.tiers[0].loads[TIER_REJECTED], 0);
        peer_worker_close(&sink);
        end_child(child);
    }
    report("sources killed", n_kills, n_met, n_sent, longest_us);
}

/* The first requests wait until their deadline, by which they could have been computed; then those
 * of one batch do, each time that the source is tried again. */
static void a_stopped_source_is_waited_for_by_few(void **state) {
    uint64_t n_sent = 0, longest_us = 0, n_late = 0;
    uint32_t n_stops = 0, n_met = 0;

    (void)state;
    open_round(2, &simulated);
    for (; n_stops < MAX(n_transfers() / 100, 1); n_stops++) {
        pid_t child = begin_source(draw(&x, x.n_blocks), SIGSTOP);
        static struct peer_worker sink;
        struct setup s = setup_of(true);
        struct engine_stats first, last;
        struct tier_peer_stats links;

        s.is_priced = true;
        s.sim_speed = 2; /* a prompt takes milliseconds: to fetch it is worth a try */
        peer_worker_open(&sink, &s, 2, 0);
        WAIT_UNTIL(atomic_load(&ledger->is_ready));
        ask_all(&sink.engine, &ledger->source);
        end_all(&sink.engine, "while its source was stopped", &longest_us);
        kill(child, SIGSTOP); /* so few were fetched that it has not stopped itself */
        first = stats_of(&sink.engine);
        for (uint32_t n = 0; n < N_ASKED; n += ROUND) {
            reset_cache(&sink.engine, 0);
            ask_all(&sink.engine, &ledger->source);
            end_all(&sink.engine, "behind a source that is stopped", &longest_us);
        }
        last = stats_of(&sink.engine);
        assert_int_equal(last.tiers[0].restored_tokens, first.tiers[0].restored_tokens);
        assert_at_rest(&sink.engine); /* its jobs end when the source is given up */
        tier_peer_stats(sink.sink, &links);
        assert_true(last.tiers[0].n_awaited <= ROUND * (links.n_lost + 2));
        n_sent += first.tiers[0].loads[TIER_OK];
        n_met += last.tiers[0].n_late > 0;
        n_late += last.tiers[0].n_late;
        peer_worker_close(&sink);
        end_child(child);
    }
    report("sources stopped", n_stops, n_met, n_sent, longest_us);
    print_message("%llu requests were late\n", (unsigned long long)n_late);
}

/* --- a sink ends ------------------------------------------------------------------------------ */

static uint64_t sent_units(const struct peer_worker *w) {
    struct peer_server_stats stats;

    peer_server_stats(w->peers, &stats);
    return stats.sent_units;
}

static void a_sink_killed_at_any_unit_leaves_no_block_pinned(void **state) {
    uint64_t n_sent = 0, longest_us = 0;
    uint32_t n_kills = 0, n_met = 0;

    (void)state;
    open_round(3, &cpu);
    for (; n_sent < n_transfers(); n_kills++) {
        pid_t child = begin_sink();
        static struct peer_worker source, next;
        uint32_t n_units = draw(&x, x.n_blocks);

        open_worker(&source, 1, false);
        run_each(&source.engine, &x);
        publish(&source.door.source);
        WAIT_UNTIL(sent_units(&source) >= n_units || atomic_load(&ledger->is_over));
        n_met += !atomic_load(&ledger->is_over);
        end_child(child);
        assert_at_rest(&source.engine);
        n_sent += sent_units(&source);
        open_worker(&next, 3, true);
        ask_all(&next.engine, &source.door.source);
        end_all(&next.engine, "behind a sink that was killed", &longest_us);
        assert_at_rest(&next.engine);
        assert_true(stats_of(&next.engine).tiers[0].restored_tokens > 0);
        peer_worker_close(&next);
        assert_at_rest(&source.engine);
        peer_worker_close(&source);
    }
    report("sinks killed", n_kills, n_met, n_sent, longest_us);
}

int main(void) {
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_source_killed_at_any_unit_fails_no_request),
        cmocka_unit_test(a_stopped_source_is_waited_for_by_few),
        cmocka_unit_test(a_sink_killed_at_any_unit_leaves_no_block_pinned),
    };

    gate_init();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
