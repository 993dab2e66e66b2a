/* tests/unit/worker/kv/tiers/test_file_kill.c - a process is killed at any system call of the file
 * tier, or in the middle of a write; the next one has every unit that was stored, and no other
 * bytes than it had. Cases 45 and 55.
 *
 * KILLS=1000 kills as often (50). A child does what its seed determines, and is killed by its own
 * hook: nothing here depends on time. */
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include "tests/support/file_tier_fixture.h"

#define CHAINS    24
#define DEPTH     20
#define KILL_LAST 150 /* calls */

/* What the children of a folder stored: shared with them. */
struct ledger {
    atomic_bool is_stored[CHAINS][DEPTH];
};

/* In the child: the call at which it ends. */
static atomic_uint n_calls;
static unsigned last_call;
static size_t torn_bytes; /* of a write; 0: it is not begun */

static void count_down(void *arg, enum file_op op, uint64_t at, size_t n,
                       struct file_fault *fault) {
    unsigned call = atomic_fetch_add(&n_calls, 1) + 1;

    (void)arg;
    (void)at;
    if (call == last_call && op == FILE_WRITE && torn_bytes > 0 && torn_bytes < n)
        fault->most = torn_bytes; /* and the next call is the last */
    else if (call >= last_call)
        kill(getpid(), SIGKILL);
}

static void live_and_die(const char *dir, const struct file_desk *like, struct ledger *ledger,
                         uint64_t seed) {
    struct file_desk *d = mem_alloc(sizeof(*d));
    struct rng rng;

    setenv("CMOCKA_TEST_ABORT", "1", 1); /* a failure here is no SIGKILL */
    rng_seed(&rng, seed);
    file_desk_init(d, dir);
    d->config.max_bytes = like->config.max_bytes;
    d->codec.block_bytes = like->codec.block_bytes;
    last_call = 1 + (unsigned)rng_below(&rng, KILL_LAST);
    torn_bytes = rng_below(&rng, 2) ? FILE_PAGE * rng_below(&rng, 8) : 0;
    d->hook.before = count_down;
    file_desk_open(d);
    for (;;) {
        uint64_t chain = rng_below(&rng, CHAINS);
        uint32_t n = 1 + (uint32_t)rng_below(&rng, DEPTH), n_fine;

        n_fine = file_desk_store(d, chain, 0, n);
        for (uint32_t i = 0; i < n_fine; i++)
            atomic_store(&ledger->is_stored[chain][i], true);
        file_desk_load(d, rng_below(&rng, CHAINS), 0, DEPTH);
        if (rng_below(&rng, 20) == 0) file_desk_reopen(d);
    }
}

static int n_kills(void) {
    const char *s = getenv("KILLS");

    return s ? atoi(s) : 50;
}

static void kill_again_and_again(uint64_t max_bytes, uint64_t block_bytes, bool is_exact) {
    struct ledger *ledger =
        mmap(NULL, sizeof(*ledger), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    struct file_desk *d = mem_alloc(sizeof(*d));
    uint32_t n_loaded = 0;

    assert_true(ledger != MAP_FAILED);
    file_desk_init(d, NULL);
    d->config.max_bytes = max_bytes;
    d->codec.block_bytes = block_bytes;
    for (int k = 0; k < n_kills(); k++) {
        int status;
        pid_t child = fork();

        if (child == 0) {
            live_and_die(d->dir, d, ledger, support_seed() * 1000003 + (uint64_t)k);
            _exit(1);
        }
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);

        file_desk_open(d);
        tier_file_check(d->tier);
        assert_true(file_desk_stats(d).can_write);
        assert_true(file_desk_stats(d).bytes <= max_bytes);
        for (uint64_t chain = 0; chain < CHAINS; chain++) {
            uint32_t held = 0, n_fine = file_desk_load(d, chain, 0, DEPTH); /* checks the bytes */

            while (held < DEPTH && atomic_load(&ledger->is_stored[chain][held]))
                held++;
            if (is_exact && n_fine < held)
                fail_msg("kill %d: chain %d had %u units, has %u", k, (int)chain, held, n_fine);
            n_loaded += n_fine;
        }
        tier_file_check(d->tier);
        file_desk_close(d);
    }
    assert_true(n_loaded > 0);
    file_desk_fini(d, true);
    mem_free(d);
    munmap(ledger, sizeof(*ledger));
}

static void what_was_stored_survives_kill_9(void **state) {
    (void)state;
    kill_again_and_again(64 << 20, 5000, true);
}

static void what_survives_kill_9_while_evicting_is_right(void **state) {
    (void)state;
    kill_again_and_again(6 * 128 * 1024, FILE_DESK_BLOCK, false);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_was_stored_survives_kill_9),
        cmocka_unit_test(what_survives_kill_9_while_evicting_is_right),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
