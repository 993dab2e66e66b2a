/* tests/unit/worker/kv/tiers/test_file_faults.c - disks that fail, fill, lie and are slow, files
 * that are not ours: never a wrong block, never a job without its mail, and the tier comes back.
 *
 * Loads check their bytes (file_batch_fine), so each load here is also a test of that. */
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "tests/support/file_tier_fixture.h"

#define PLACES 15

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

#define FAULT(...) ((struct file_fault){__VA_ARGS__})

static void log_to(struct file_desk *d) {
    d->log_fd = memfd_create("log", 0);
    assert_true(d->log_fd >= 0);
    d->config.log = log_create(&(struct log_config){.fd = d->log_fd});
}

static int n_logged(struct file_desk *d, const char *event) {
    char text[16384];
    ssize_t got = pread(d->log_fd, text, sizeof(text) - 1, 0);
    int n = 0;

    assert_true(got >= 0);
    text[got] = '\0';
    for (const char *at = text; (at = strstr(at, event)); at++)
        n++;
    return n;
}

/* --- calls that fail -------------------------------------------------------------------------- */

/* Each call of each kind fails, the n-th first: what was stored before is right, what was not is
 * absent, and after the next start all is well. */
static void any_call_may_fail(void **state) {
    static const int errors[] = {EIO, ENOSPC, EROFS, EDQUOT, EMFILE, EPERM};
    struct file_desk *d = *state;

    for (int op = FILE_OPEN; op <= FILE_UNLINK; op++) {
        for (unsigned nth = 0; nth < 12; nth++) {
            unsigned before = atomic_load(&d->seen[op]);

            file_desk_fail(d, op, 1 + nth % 2, FAULT(.error = errors[(nth + op) % 6]));
            atomic_fetch_add(&d->n, nth);
            for (uint64_t chain = 0; chain < 3; chain++) {
                file_desk_store(d, 1000u * (unsigned)op + 10 * nth + chain, 0, 20);
                file_desk_load(d, 1000u * (unsigned)op + 10 * nth + chain, 0, 20);
                file_desk_load(d, chain, 0, 20);
            }
            tier_file_check(d->tier);
            if (nth == 3) assert_true(atomic_load(&d->seen[op]) > before || op == FILE_UNLINK);
            file_desk_reopen(d); /* the fault may still be there */
            atomic_store(&d->n, 0);
            file_desk_reopen(d);
            assert_true(file_desk_stats(d).can_write);
            assert_int_equal(file_desk_store(d, nth, 0, 20), 20);
            assert_int_equal(file_desk_load(d, nth, 0, 20), 20);
        }
    }
}

/* Case 47. */
static void a_full_disk_pauses_and_recovers(void **state) {
    struct file_desk *d = *state;
    enum tier_result then;

    assert_int_equal(file_desk_store(d, 1, 0, 20), 20);
    file_desk_fail(d, FILE_WRITE, UINT32_MAX, FAULT(.error = ENOSPC));
    assert_int_equal(file_desk_run(d, TIER_STORE, 2, 0, 5, &then), 0);
    assert_int_equal(then, TIER_IO);
    assert_int_equal(file_desk_run(d, TIER_STORE, 3, 0, 5, &then), 0);
    assert_true(then == TIER_BUSY || then == TIER_IO); /* or the pause is over already */
    /* A segment went, so that there is room; the rest is still read. */
    assert_int_equal(file_desk_find(d, 1, 20), 0);
    assert_int_equal(file_desk_load(d, 1, PLACES, 20 - PLACES), 20 - PLACES);
    atomic_store(&d->n, 0);
    WAIT_UNTIL(file_desk_store(d, 2, 0, 5) == 5);
    assert_int_equal(file_desk_load(d, 2, 0, 5), 5);
}

/* Case 48. */
static void a_disk_with_errors_becomes_read_only(void **state) {
    struct file_desk *d = *state;
    enum tier_result then;

    for (uint64_t chain = 0; chain < 5; chain++)
        assert_int_equal(file_desk_store(d, chain, 0, 5), 5);
    for (uint64_t chain = 0; chain < 3; chain++) {
        file_desk_fail(d, FILE_READ, 1, FAULT(.error = EIO));
        assert_int_equal(file_desk_run(d, TIER_LOAD, chain, 0, 5, &then), 0);
        assert_int_equal(then, TIER_IO);
        assert_int_equal(file_desk_find(d, chain, 5), 0);
        assert_int_equal(file_desk_stats(d).can_write, chain < 2);
    }
    assert_int_equal(file_desk_load(d, 3, 0, 5), 5);
    assert_int_equal(file_desk_run(d, TIER_STORE, 9, 0, 5, &then), 0);
    assert_int_equal(then, TIER_BUSY);
}

/* Case 49. */
static void a_read_only_disk_is_read(void **state) {
    struct file_desk *d = *state;

    assert_int_equal(file_desk_store(d, 1, 0, 20), 20);
    file_desk_fail(d, FILE_CREATE, UINT32_MAX, FAULT(.error = EROFS));
    file_desk_close(d);
    file_desk_open(d);
    assert_false(file_desk_stats(d).can_write);
    assert_int_equal(file_desk_load(d, 1, 0, 20), 20);
    assert_int_equal(file_desk_store(d, 2, 0, 20), 0);
}

/* Calls that carry less than they were asked to go on until all is there. */
static void short_calls_are_continued(void **state) {
    struct file_desk *d = *state;

    file_desk_fail(d, FILE_WRITE, 5, FAULT(.most = 4096));
    assert_int_equal(file_desk_store(d, 1, 0, PLACES), PLACES);
    file_desk_fail(d, FILE_READ, 5, FAULT(.most = 8192));
    assert_int_equal(file_desk_load(d, 1, 0, PLACES), PLACES);
}

/* A write that ends in the middle of a unit leaves nothing that is found, not even later. */
static void a_write_cut_by_an_error_leaves_nothing(void **state) {
    struct file_desk *d = *state;
    char path[256];

    assert_int_equal(file_desk_store(d, 1, 0, 2), 2);
    d->is_cut = true; /* one call carries a unit and a half, the next fails */
    file_desk_fail(d, FILE_WRITE, 2, FAULT(.most = 3 * 4096));
    assert_int_equal(file_desk_store(d, 2, 0, 4), 0);
    assert_int_equal(file_desk_find(d, 2, 4), 0);
    assert_int_equal(file_desk_load(d, 1, 0, 2), 2);
    assert_int_equal(file_desk_segment(d, 0, path), 1);
    file_desk_reopen(d);
    assert_int_equal(file_desk_load(d, 1, 0, 2), 2);
    assert_int_equal(file_desk_load(d, 2, 0, 4), 0);
}

/* --- bytes that change ------------------------------------------------------------------------ */

static void a_flipped_byte_is_rejected_and_forgotten(void **state) {
    struct file_desk *d = *state;
    enum tier_result then;
    struct rng rng;

    rng_seed(&rng, support_seed());
    d->config.segment_bytes = 2 << 20; /* a run lies in one segment */
    d->config.max_bytes = 16 << 20;
    file_desk_reopen(d);
    for (uint64_t chain = 0; chain < 40; chain++) {
        bool on_read = chain & 1;
        size_t flip_at = rng_below(&rng, 4 * 8192);
        uint32_t n;

        if (!on_read)
            file_desk_fail(d, FILE_WRITE, 1, FAULT(.is_flipped = true, .flip_at = flip_at));
        assert_int_equal(file_desk_store(d, chain, 0, 4), 4);
        if (on_read) file_desk_fail(d, FILE_READ, 1, FAULT(.is_flipped = true, .flip_at = flip_at));
        n = file_desk_run(d, TIER_LOAD, chain, 0, 4, &then);
        assert_int_equal(n, flip_at / 8192);
        assert_int_equal(then, TIER_REJECTED);
        assert_int_equal(file_desk_find(d, chain, 4), n); /* not asked for again */
        assert_int_equal(file_desk_store(d, chain, 0, 4), 4);
        assert_int_equal(file_desk_load(d, chain, 0, 4), 4);
    }
}

static void damage(const char *path, off_t at, const void *bytes, size_t n) {
    int fd = open(path, O_WRONLY);

    assert_true(fd >= 0);
    assert_int_equal(pwrite(fd, bytes, n, at), (ssize_t)n);
    close(fd);
}

/* Case 60: a summary that leads to the wrong places, its sum made right. */
static void a_summary_that_lies_gives_no_wrong_block(void **state) {
    struct file_desk *d = *state;
    struct segment_row rows[171] = {{{{0}}, 0, 0}}, row;
    enum tier_result then;
    char path[256];
    int fd;

    assert_int_equal(file_desk_store(d, 1, 0, PLACES), PLACES);
    file_desk_close(d);
    assert_int_equal(file_desk_segment(d, 0, path), 1);
    fd = open(path, O_RDWR);
    assert_int_equal(pread(fd, rows, FILE_PAGE, PLACES * 8192), FILE_PAGE);
    row = rows[0];
    rows[0].key = rows[1].key; /* two keys exchanged, and one that leads behind the end */
    rows[1].key = row.key;
    rows[2].place = 1u << 23;
    rows[3].place = UINT32_MAX;
    segment_finish(rows, PLACES, PLACES * 8192);
    assert_int_equal(pwrite(fd, rows, FILE_PAGE, PLACES * 8192), FILE_PAGE);
    close(fd);
    file_desk_open(d);
    assert_int_equal(file_desk_find(d, 1, 4), 2);
    assert_int_equal(file_desk_run(d, TIER_LOAD, 1, 0, 2, &then), 0);
    assert_int_equal(then, TIER_REJECTED);
    assert_int_equal(file_desk_load(d, 1, 4, PLACES - 4), PLACES - 4);
}

/* A summary with a flipped bit is none; the units in front of it are found by their headers. */
static void a_damaged_summary_is_walked_around(void **state) {
    struct file_desk *d = *state;
    char path[256];

    for (int at = 0; at < 4096; at += 97) {
        assert_int_equal(file_desk_store(d, 1, 0, PLACES), PLACES);
        file_desk_close(d);
        assert_int_equal(file_desk_segment(d, 0, path), 1);
        damage(path, PLACES * 8192 + at, "\xff\xfe\xfd", 3);
        file_desk_open(d);
        assert_int_equal(file_desk_load(d, 1, 0, PLACES), PLACES);
    }
}

/* Case 46: after a power failure any page that was not synced may be missing, or be what the disk
 * had there before: a page of another unit. */
static void lost_pages_are_absent_units(void **state) {
    struct file_desk *d = *state;
    uint8_t page[FILE_PAGE];
    char path[256];
    struct stat st;
    struct rng rng;

    rng_seed(&rng, support_seed());
    file_desk_close(d);
    d->codec.block_bytes = 5000;
    file_desk_open(d);
    for (int round = 0; round < 30; round++) {
        uint32_t n_fine = 0;

        for (uint64_t chain = 0; chain < 6; chain++)
            assert_int_equal(file_desk_store(d, chain, 0, 20), 20);
        file_desk_close(d);
        for (int k = 0; k < file_desk_segment(d, -1, NULL); k++) {
            int fd;

            file_desk_segment(d, k, path);
            fd = open(path, O_RDWR);
            assert_int_equal(fstat(fd, &st), 0);
            for (off_t at = 0; at < st.st_size; at += FILE_PAGE) {
                uint64_t from = rng_below(&rng, (uint64_t)st.st_size / FILE_PAGE) * FILE_PAGE;

                if (rng_below(&rng, 8) != 0) continue;
                memset(page, 0, sizeof(page));
                if (rng_below(&rng, 2))
                    assert_int_equal(pread(fd, page, FILE_PAGE, (off_t)from), FILE_PAGE);
                assert_int_equal(pwrite(fd, page, FILE_PAGE, at), FILE_PAGE);
            }
            close(fd);
        }
        file_desk_open(d);
        for (uint64_t chain = 0; chain < 6; chain++)
            for (uint32_t at = 0; at < 20; at++)
                n_fine += file_desk_load(d, chain, at, 1); /* checks the bytes */
        assert_true(n_fine < 120);
        tier_file_check(d->tier);
    }
}

static void a_truncated_segment_is_what_is_left(void **state) {
    struct file_desk *d = *state;
    char path[256];
    struct stat st;

    assert_int_equal(file_desk_store(d, 1, 0, PLACES), PLACES);
    file_desk_close(d);
    file_desk_segment(d, 0, path);
    assert_int_equal(stat(path, &st), 0);
    for (off_t size = st.st_size - 512; size > 0; size -= 5 * 512) {
        assert_int_equal(file_desk_segment(d, 0, path), 1);
        assert_int_equal(truncate(path, size), 0);
        file_desk_open(d);
        /* Whole units, and one of which only padding is missing. */
        assert_true(file_desk_load(d, 1, 0, PLACES) >= MIN(size / 8192, PLACES));
        tier_file_check(d->tier);
        file_desk_close(d);
        assert_int_equal(file_desk_segment(d, 0, path), 1);
    }
    file_desk_open(d);
}

/* --- files that go, or are not ours ----------------------------------------------------------- */

/* Case 51. */
static void a_removed_folder_is_made_again(void **state) {
    struct file_desk *d = *state;
    char command[160];

    assert_int_equal(file_desk_store(d, 1, 0, 20), 20);
    d->config.scan_us = 20000;
    file_desk_reopen(d);
    assert_int_equal(file_desk_store(d, 2, 0, 4), 4);
    snprintf(command, sizeof(command), "rm -rf %s 2>&1", d->dir);
    WAIT_UNTIL(system(command) == 0); /* a scan may put a file there meanwhile */
    WAIT_UNTIL(file_desk_load(d, 1, 0, 20) == 0 && file_desk_stats(d).can_write &&
               file_desk_segment(d, 0, NULL) == 0);
    WAIT_UNTIL(file_desk_store(d, 3, 0, 4) == 4 && file_desk_segment(d, 0, NULL) == 1);
    assert_int_equal(file_desk_load(d, 3, 0, 4), 4);
    assert_int_equal(file_desk_load(d, 2, 0, 4), 0);
}

/* Case 53. */
static void a_removed_segment_is_absent(void **state) {
    struct file_desk *d = *state;
    enum tier_result then;
    char path[256];

    assert_int_equal(file_desk_store(d, 1, 0, 40), 40);
    file_desk_segment(d, 0, path);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(file_desk_run(d, TIER_LOAD, 1, 0, 40, &then), 0);
    assert_int_equal(then, TIER_ABSENT);
    assert_int_equal(file_desk_find(d, 1, 40), 0);
    assert_int_equal(file_desk_load(d, 1, PLACES, PLACES), PLACES);
    tier_file_check(d->tier);
    assert_int_equal(file_desk_store(d, 1, 0, 40), 40);
    assert_int_equal(file_desk_load(d, 1, 0, 40), 40);
}

/* Case 61: a link may lead to any file of this user; another name may still be written to. */
static void links_are_refused(void **state) {
    struct file_desk *d = *state;
    char path[256], aside[256], folder[128];

    for (int is_hard = 0; is_hard < 2; is_hard++) {
        assert_int_equal(file_desk_store(d, 1, 0, PLACES), PLACES);
        file_desk_close(d);
        assert_int_equal(file_desk_segment(d, 0, path), 1);
        snprintf(aside, sizeof(aside), "%s/aside", d->dir);
        assert_int_equal(rename(path, aside), 0);
        assert_int_equal(is_hard ? link(aside, path) : symlink(aside, path), 0);
        file_desk_open(d);
        assert_int_equal(file_desk_find(d, 1, 1), 0);
        assert_int_equal(unlink(path), 0);
        assert_int_equal(unlink(aside), 0);
        file_desk_reopen(d);
    }
    /* A link in place of a segment that is known. */
    assert_int_equal(file_desk_store(d, 1, 0, PLACES + 1), PLACES + 1);
    file_desk_segment(d, 0, path);
    assert_int_equal(rename(path, aside), 0);
    assert_int_equal(symlink(aside, path), 0);
    assert_int_equal(file_desk_load(d, 1, 0, PLACES), 0);
    assert_int_equal(unlink(aside), 0);
    file_desk_close(d);

    /* The folder itself. */
    snprintf(folder, sizeof(folder), "%s/0100000000000000", d->dir);
    snprintf(aside, sizeof(aside), "%s/elsewhere", d->dir);
    assert_int_equal(rename(folder, aside), 0);
    assert_int_equal(symlink(aside, folder), 0);
    {
        struct error err;

        error_init(&err);
        assert_int_equal(tier_file_open(&d->tier, &d->config, &err), ST_IO);
        assert_non_null(strstr(err.message, "0100000000000000"));
    }
    assert_int_equal(unlink(folder), 0);
    file_desk_open(d);
}

static void names_of_no_segment_are_left_alone(void **state) {
    static const char *const names[] = {"seg-1-2.kv", "seg-00000000000000010-00000001.kv", "notes",
                                        "seg-000000000000000g-00000001.kv", "owner-1.lock"};
    struct file_desk *d = *state;
    char path[256];

    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        snprintf(path, sizeof(path), "%s/0100000000000000/%s", d->dir, names[i]);
        close(open(path, O_CREAT | O_WRONLY, 0600));
    }
    file_desk_reopen(d);
    assert_int_equal(file_desk_store(d, 1, 0, 20), 20);
    file_desk_reopen(d);
    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        snprintf(path, sizeof(path), "%s/0100000000000000/%s", d->dir, names[i]);
        assert_int_equal(access(path, F_OK), 0);
    }
}

/* What cannot be mended is not logged at each scan. */
static void lasting_faults_are_logged_once(void **state) {
    struct file_desk *d = *state;
    char path[256];
    unsigned scans, creates;

    file_desk_close(d);
    log_to(d);
    creates = atomic_load(&d->seen[FILE_CREATE]);
    d->config.scan_us = 2000;
    snprintf(path, sizeof(path), "%s/0100000000000000/seg-0000000000000007-00000001.kv", d->dir);
    assert_int_equal(symlink("/etc/passwd", path), 0);
    file_desk_fail(d, FILE_CREATE, UINT32_MAX, FAULT(.error = EROFS)); /* no owner */
    file_desk_open(d);
    scans = atomic_load(&d->seen[FILE_OPEN]); /* one of the link at each */
    WAIT_UNTIL(atomic_load(&d->seen[FILE_OPEN]) > scans + 20);
    assert_int_equal(n_logged(d, "kv_file_refused"), 1);
    file_desk_close(d);
    creates = atomic_load(&d->seen[FILE_CREATE]) - creates; /* 1 in 30 s */
    assert_true(creates >= 1 && creates < 20);
    assert_int_equal(n_logged(d, "kv_file_failed"), creates);
    log_destroy(d->config.log);
    d->config.log = NULL;
    d->config.scan_us = 3600000000u;
    file_desk_open(d);
}

/* --- direct I/O, and starting ----------------------------------------------------------------- */

/* Case 57. */
static void without_direct_io_the_page_cache_serves(void **state) {
    struct file_desk *d = *state;

    file_desk_close(d);
    d->config.scan_us = 2000;
    log_to(d);
    file_desk_fail(d, FILE_WRITE, 1, FAULT(.error = EINVAL)); /* the probe's */
    file_desk_open(d);
    assert_int_equal(file_desk_store(d, 1, 0, 40), 40);
    assert_int_equal(file_desk_load(d, 1, 0, 40), 40);
    assert_int_equal(n_logged(d, "kv_file_buffered"), 1);
    assert_int_equal(n_logged(d, "kv_file_opened"), 1);
    file_desk_reopen(d);
    assert_int_equal(file_desk_load(d, 1, 0, 40), 40);
    file_desk_close(d);
    log_destroy(d->config.log);
    d->config.log = NULL;
    file_desk_open(d);
}

static void what_cannot_work_is_refused_at_the_start(void **state) {
    struct file_desk *d = *state;
    struct tier_file_config good = d->config;
    struct tier *tier = NULL;
    struct error err;

    for (int i = 0; i < 5; i++) {
        struct tier_file_config c = good;
        struct unit_codec_config codec = *good.codec;

        c.codec = &codec;
        if (i == 0) c.max_bytes = c.segment_bytes;
        if (i == 1) c.segment_bytes = 8192;
        if (i == 2) c.n_threads = 1;
        if (i == 3) codec.block_tokens = 0;
        if (i == 4) c.dir = "/tmp/incipit-no/such/parent";
        error_init(&err);
        assert_int_equal(tier_file_open(&tier, &c, &err), i == 4 ? ST_IO : ST_INVALID);
        assert_null(tier);
        assert_true(err.message[0] != '\0');
    }
}

/* The disk is smaller than the budget, and than a segment of 64 MiB; or has no room at all. */
static void a_small_disk_bounds_the_budget(void **state) {
    struct file_desk *d = *state;
    struct tier_stats s;

    file_desk_close(d);
    log_to(d);
    d->config.max_bytes = 16ull << 30;
    d->config.segment_bytes = 0;
    d->config.room_bytes = 8 << 20;
    file_desk_open(d);
    assert_int_equal(n_logged(d, "kv_file_limited"), 1);
    for (uint64_t chain = 0; chain < 60; chain++)
        assert_int_equal(file_desk_store(d, chain, 0, 20), 20);
    s = file_desk_stats(d);
    assert_int_equal(s.max_bytes, (8 << 20) - (8 << 20) / 16);
    assert_true(s.n_units > 400 && s.bytes <= s.max_bytes);
    assert_int_equal(file_desk_load(d, 59, 0, 20), 20);
    d->config.room_bytes = 1;
    file_desk_reopen(d);
    assert_int_equal(n_logged(d, "kv_file_limited"), 2);
    d->config.room_bytes = 17ull << 30;
    d->config.max_bytes = 15ull << 30;
    file_desk_reopen(d);
    assert_int_equal(n_logged(d, "kv_file_limited"), 2);
    assert_int_equal(file_desk_stats(d).max_bytes, 15ull << 30);
}

static void no_memory_is_refused_at_the_start(void **state) {
    struct file_desk *d = *state;
    struct tier *tier = NULL;
    enum status st = ST_NOMEM;
    struct error err;

    assert_int_equal(file_desk_store(d, 1, 0, 20), 20);
    file_desk_close(d);
    for (uint64_t n = 1; st == ST_NOMEM; n++) {
        error_init(&err);
        mem_fail_at(n);
        st = tier_file_open(&tier, &d->config, &err);
        mem_fail_at(0);
    }
    assert_int_equal(st, ST_OK);
    d->tier = tier;
    file_desk_reopen(d);
    assert_int_equal(file_desk_load(d, 1, 0, 20), 20);
}

#define CASE(f)                                                                                    \
    { #f, f, setup, teardown, NULL }

int main(void) {
    const struct CMUnitTest tests[] = {
        CASE(any_call_may_fail),
        CASE(a_full_disk_pauses_and_recovers),
        CASE(a_disk_with_errors_becomes_read_only),
        CASE(a_read_only_disk_is_read),
        CASE(short_calls_are_continued),
        CASE(a_write_cut_by_an_error_leaves_nothing),
        CASE(a_flipped_byte_is_rejected_and_forgotten),
        CASE(a_summary_that_lies_gives_no_wrong_block),
        CASE(a_damaged_summary_is_walked_around),
        CASE(lost_pages_are_absent_units),
        CASE(a_truncated_segment_is_what_is_left),
        CASE(a_removed_folder_is_made_again),
        CASE(a_removed_segment_is_absent),
        CASE(links_are_refused),
        CASE(names_of_no_segment_are_left_alone),
        CASE(lasting_faults_are_logged_once),
        CASE(without_direct_io_the_page_cache_serves),
        CASE(what_cannot_work_is_refused_at_the_start),
        CASE(a_small_disk_bounds_the_budget),
        CASE(no_memory_is_refused_at_the_start),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
