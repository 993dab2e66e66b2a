/* tests/unit/worker/kv/tiers/test_file_hold.c - held units stay in the folder, whatever else is
 * written, as long as no more are held than fit; and nothing that is written waits for them. */
#include "tests/support/file_tier_fixture.h"
#include "worker/kv/tiers/file_internal.h"

#define PLACES 15         /* units of a segment */
#define WHOLE  16u * 15u  /* units of the folder */
#define HELD   14u * 8u   /* most that are held of them */
#define LATER  1000000ull /* chains of other traffic */

static int setup(void **state) {
    struct file_desk *d = mem_alloc(sizeof(*d));

    file_desk_init(d, NULL);
    file_desk_open(d);
    *state = d;
    return 0;
}

static int teardown(void **state) {
    struct file_desk *d = *state;

    if (d->tier) tier_file_check(d->tier);
    file_desk_fini(d, true);
    mem_free(d);
    return 0;
}

/* Holds the first n units of a chain, or lets them go. */
static void hold(struct file_desk *d, uint64_t chain, uint32_t n, bool is_held) {
    struct file_batch *b = file_batch_make(d, TIER_LOAD, chain, 0, n);
    struct unit_key keys[TIER_JOB_UNITS];

    for (uint32_t i = 0; i < n; i++)
        keys[i] = b->job.units[i].id.key;
    d->tier->ops->hold(d->tier, keys, n, is_held);
    mem_free(b);
}

/* Writes n units that no job loads again, in jobs of `job`; all are written. */
static void pass_traffic(struct file_desk *d, uint32_t n, uint32_t job) {
    static uint64_t chain = LATER;

    for (uint32_t i = 0; i < n; i += job)
        assert_int_equal(file_desk_store(d, chain++, 0, job), job);
    tier_file_check(d->tier);
    assert_true(file_desk_stats(d).bytes <= d->config.max_bytes);
}

/* Case 99. */
static void held_units_survive_a_hundred_folders_of_traffic(void **state) {
    struct file_desk *d = *state;

    assert_int_equal(file_desk_stats(d).max_held, HELD);
    for (uint64_t chain = 0; chain < HELD / 8; chain++) {
        hold(d, chain, 8, true); /* before, or after they are there */
        assert_int_equal(file_desk_store(d, chain, 0, 10), 10);
    }
    assert_int_equal(file_desk_stats(d).n_held, HELD);
    pass_traffic(d, 100 * WHOLE, 12);
    assert_int_equal(file_desk_stats(d).n_held, HELD);
    for (uint64_t chain = 0; chain < HELD / 8; chain++) {
        assert_true(file_desk_find(d, chain, 10) >= 8); /* more where its segment stayed */
        assert_int_equal(file_desk_load(d, chain, 0, 8), 8);
    }
}

/* One of each chain: no segment is without held units. */
static void scattered_units_survive_too(void **state) {
    struct file_desk *d = *state;

    for (uint64_t chain = 0; chain < HELD; chain++) {
        assert_int_equal(file_desk_store(d, chain, 0, 2), 2);
        hold(d, chain, 1, true);
    }
    pass_traffic(d, 10 * WHOLE, 1);
    assert_int_equal(file_desk_stats(d).n_held, HELD);
    for (uint64_t chain = 0; chain < HELD; chain++)
        assert_int_equal(file_desk_load(d, chain, 0, 1), 1);
}

static void what_is_let_go_goes(void **state) {
    struct file_desk *d = *state;

    assert_int_equal(file_desk_store(d, 1, 0, 12), 12);
    hold(d, 1, 12, true);
    hold(d, 1, 8, true); /* by two */
    hold(d, 1, 12, false);
    assert_int_equal(file_desk_stats(d).n_held, 8);
    pass_traffic(d, 3 * WHOLE, 12);
    assert_int_equal(file_desk_find(d, 1, 12), 8);
    hold(d, 1, 8, false);
    assert_int_equal(file_desk_stats(d).n_held, 0);
    pass_traffic(d, 3 * WHOLE, 12);
    assert_int_equal(file_desk_find(d, 1, 12), 0);
}

/* Case 102: what is held beyond the bound may go, and everything is written. */
static void more_than_fits_stops_no_write(void **state) {
    struct file_desk *d = *state;

    for (uint64_t chain = 0; chain < 40; chain++) {
        hold(d, chain, 12, true);
        assert_int_equal(file_desk_store(d, chain, 0, 12), 12);
        tier_file_check(d->tier);
    }
    pass_traffic(d, 5 * WHOLE, 12);
    assert_true(file_desk_stats(d).n_held < WHOLE);
}

/* Case 101: a process that ended holds nothing, and what it wrote is there. */
static void the_next_process_finds_what_was_held(void **state) {
    struct file_desk *d = *state;

    assert_int_equal(file_desk_store(d, 1, 0, 8), 8);
    hold(d, 1, 8, true);
    pass_traffic(d, 3 * WHOLE, 12);
    file_desk_reopen(d);
    assert_int_equal(file_desk_stats(d).n_held, 0);
    assert_int_equal(file_desk_load(d, 1, 0, 8), 8);
    hold(d, 1, 8, true);
    pass_traffic(d, 10 * WHOLE, 12);
    assert_int_equal(file_desk_load(d, 1, 0, 8), 8);
}

static void a_worker_beside_leaves_what_is_held(void **state) {
    struct file_desk *d = *state;
    struct file_desk other;

    assert_int_equal(file_desk_store(d, 1, 0, PLACES), PLACES);
    assert_int_equal(file_desk_store(d, 2, 0, PLACES), PLACES);
    hold(d, 1, 8, true);
    /* As the scan of a later start does. */
    assert_true(file_space_enter((struct file_tier *)d->tier, 1000000));
    file_space_scan((struct file_tier *)d->tier);
    file_space_leave((struct file_tier *)d->tier);
    file_desk_init(&other, d->dir);
    file_desk_open(&other);
    for (uint64_t chain = 100; chain < 160; chain++)
        assert_int_equal(file_desk_store(&other, chain, 0, PLACES), PLACES);
    assert_int_equal(file_desk_load(d, 1, 0, 8), 8);
    assert_int_equal(file_desk_load(&other, 1, 0, 8), 8);
    file_desk_fini(&other, false);
}

/* The segment went, and the next one could not be made: its held units wait for one that can. */
static void a_failing_disk_loses_none(void **state) {
    struct file_desk *d = *state;
    struct file_tier *f;
    uint64_t chain = 100;

    d->config.max_bytes = 4 * d->config.segment_bytes;
    file_desk_reopen(d);
    f = (struct file_tier *)d->tier;
    assert_int_equal(file_desk_store(d, 1, 0, 3), 3);
    hold(d, 1, 3, true);
    pass_traffic(d, WHOLE, 12);
    do {
        file_desk_fail(d, FILE_CREATE, 1, (struct file_fault){.error = ENOSPC});
        while (atomic_load(&d->seen[FILE_CREATE]) < atomic_load(&d->n))
            file_desk_store(d, chain++, 0, 12);
        WAIT_UNTIL(file_desk_stats(d).can_write);
    } while (f->writer.hot.n < 3);
    assert_int_equal(file_desk_find(d, 1, 3), 0);
    pass_traffic(d, WHOLE, 12);
    assert_int_equal(file_desk_load(d, 1, 0, 3), 3);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(held_units_survive_a_hundred_folders_of_traffic, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(scattered_units_survive_too, setup, teardown),
        cmocka_unit_test_setup_teardown(what_is_let_go_goes, setup, teardown),
        cmocka_unit_test_setup_teardown(more_than_fits_stops_no_write, setup, teardown),
        cmocka_unit_test_setup_teardown(the_next_process_finds_what_was_held, setup, teardown),
        cmocka_unit_test_setup_teardown(a_worker_beside_leaves_what_is_held, setup, teardown),
        cmocka_unit_test_setup_teardown(a_failing_disk_loses_none, setup, teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
