/* tests/unit/worker/kv/tiers/test_damage.c - a folder and a store whose units are damaged, replaced
 * or replayed behind the tier's back: not one of them comes up, and each is counted by its cause.
 *
 * DAMAGED=100000 is the number of units (3000) for each of folder and store, plain and sealed. The
 * tables say what was done and what it was refused for. */
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/support/fake_store.h"
#include "tests/support/store_fixture.h"
#include "tests/support/support.h"
#include "tests/support/unit_damage.h"
#include "worker/kv/tiers/file.h"

#define BLOCK_BYTES 2000u
#define UNIT_BYTES  (UNIT_HEADER_BYTES + UNIT_TEST_TOKENS * sizeof(uint32_t) + BLOCK_BYTES)
#define N           STORE_TEST_BLOCKS

struct fixture {
    struct store_desk desk;
    struct fake_store server;
    bool is_file;
    char dir[64];
    uint8_t units[N][UNIT_BYTES]; /* as they are kept */
    enum unit_damage damage[N];
    bool is_changed[N];
    struct tier_job jobs[N];
    struct unit_damages damages;
};

/* --- places ----------------------------------------------------------------------------------- */

static void name_in_store(const struct unit_key *key, char name[64]) {
    const uint8_t *b = key->bytes;
    int n = snprintf(name, 64, "ic1:{%02x%02x%02x%02x}:", b[12], b[13], b[14], b[15]);

    for (int k = 0; k < UNIT_KEY_BYTES; k++)
        n += snprintf(name + n, 64 - (size_t)n, "%02x", b[k]);
}

static void open_place(struct fixture *f, bool is_file, bool is_sealed) {
    struct error err = {0};

    memset(f, 0, sizeof(*f));
    store_desk_begin(&f->desk, is_sealed, BLOCK_BYTES);
    f->is_file = is_file;
    f->damages.form = &f->desk.config.unit;
    f->damages.blocks = f->desk.blocks;
    rng_seed(&f->damages.rng, support_seed());
    if (is_file) {
        struct tier_file_config c = {.dir = f->dir,
                                     .max_bytes = 8u << 20,
                                     .segment_bytes = 1u << 20,
                                     .n_threads = 2,
                                     .codec = &f->desk.config.unit};

        strcpy(f->dir, "/tmp/incipit-damage-XXXXXX");
        assert_non_null(mkdtemp(f->dir));
        if (tier_file_open(&f->desk.tier, &c, &err) != ST_OK) fail_msg("%s", err.message);
    } else {
        char url[64];

        fake_store_init(&f->server, f->desk.loop);
        fake_store_start(&f->server);
        snprintf(url, sizeof(url), "redis://127.0.0.1:%u", f->server.port);
        f->desk.config.max_jobs = N;
        store_desk_open(&f->desk, url);
        f->desk.config.urls = NULL;
    }
}

static void close_place(struct fixture *f) {
    char command[128];

    f->desk.tier->ops->destroy(f->desk.tier);
    f->desk.tier = NULL;
    snprintf(command, sizeof(command), "rm -rf %s", f->dir);
    if (f->is_file)
        assert_int_equal(system(command), 0);
    else
        fake_store_fini(&f->server);
    store_desk_end(&f->desk);
}

/* --- units in files --------------------------------------------------------------------------- */

static uint32_t block_with_key(const struct fixture *f, const uint8_t *key) {
    uint32_t i = 0;

    while (i < N && memcmp(&f->desk.keys[i], key, UNIT_KEY_BYTES) != 0)
        i++;
    return i;
}

/* Reads the chain's units out of a segment, or writes them back; how many were there. */
static uint32_t exchange_with_segment(struct fixture *f, const char *path, bool is_read) {
    static const char magic[8] = "ICPTKV1";
    int fd = open(path, O_RDWR | O_CLOEXEC);
    struct stat st;
    uint32_t n = 0;
    uint8_t *bytes;

    assert_true(fd >= 0 && fstat(fd, &st) == 0);
    bytes = mem_alloc((size_t)st.st_size);
    assert_int_equal(pread(fd, bytes, (size_t)st.st_size, 0), st.st_size);
    for (size_t at = 0; at + UNIT_BYTES <= (size_t)st.st_size; at += 8) {
        uint32_t i;

        if (memcmp(bytes + at, magic, sizeof(magic)) != 0) continue;
        i = block_with_key(f, bytes + at + 48);
        if (i == N) continue;
        n++;
        if (is_read)
            memcpy(f->units[i], bytes + at, UNIT_BYTES);
        else
            assert_int_equal(pwrite(fd, f->units[i], UNIT_BYTES, (off_t)at), UNIT_BYTES);
    }
    mem_free(bytes);
    close(fd);
    return n;
}

static void exchange_with_folder(struct fixture *f, bool is_read) {
    char folder[128], path[512];
    struct dirent **names;
    uint32_t n_units = 0;
    int n;

    snprintf(folder, sizeof(folder), "%s/0100000000000000", f->dir);
    n = scandir(folder, &names, NULL, NULL);
    assert_true(n > 0);
    for (int i = 0; i < n; i++) {
        snprintf(path, sizeof(path), "%s/%s", folder, names[i]->d_name);
        if (strncmp(names[i]->d_name, "seg-", 4) == 0)
            n_units += exchange_with_segment(f, path, is_read);
        free(names[i]);
    }
    free(names);
    assert_true(n_units >= N); /* a job that was refused in part came again */
}

static void exchange_with_store(struct fixture *f, bool is_read) {
    for (uint32_t i = 0; i < N; i++) {
        size_t n = UNIT_BYTES;
        struct buf *value;
        char name[64];

        name_in_store(&f->desk.keys[i], name);
        value = fake_store_find(&f->server, name);
        assert_non_null(value);
        if (is_read) {
            assert_int_equal(buf_len(value), UNIT_BYTES);
            memcpy(f->units[i], buf_str(value).ptr, UNIT_BYTES);
            continue;
        }
        while (f->damage[i] == DAMAGE_CUT && n > 0 && f->units[i][n - 1] == 0)
            n--;
        fake_store_put(&f->server, name, (struct str){(const char *)f->units[i], n});
        f->is_changed[i] |= n < UNIT_BYTES;
    }
}

static void exchange(struct fixture *f, bool is_read) {
    if (f->is_file)
        exchange_with_folder(f, is_read);
    else
        exchange_with_store(f, is_read);
}

/* --- damage ----------------------------------------------------------------------------------- */

static void damage_unit(struct fixture *f, uint32_t i, const uint8_t (*kept)[UNIT_BYTES]) {
    uint32_t other = (i + 1 + (uint32_t)rng_below(&f->damages.rng, N - 1)) % N;

    f->damage[i] = (enum unit_damage)rng_below(&f->damages.rng, N_DAMAGES);
    unit_damage(&f->damages, f->damage[i], i, kept[other], f->units[i]);
    f->is_changed[i] = memcmp(f->units[i], kept[i], UNIT_BYTES) != 0;
}

static void damage_all(struct fixture *f) {
    static uint8_t kept[N][UNIT_BYTES];

    exchange(f, true);
    memcpy(kept, f->units, sizeof(kept));
    for (uint32_t i = 0; i < N; i++)
        damage_unit(f, i, (const uint8_t(*)[UNIT_BYTES])kept);
    exchange(f, false);
}

/* --- what comes up ---------------------------------------------------------------------------- */

static void judge(struct fixture *f, uint32_t i) {
    const struct tier_unit *u = &f->jobs[i].units[0];

    store_job_check(&f->desk, &f->jobs[i]); /* the bytes */
    unit_damage_judge(&f->damages, f->damage[i], f->is_changed[i], u);
}

/* Each block is asked for by itself: what follows one that failed would be skipped. */
static void load_each(struct fixture *f) {
    uint32_t n_mails = f->desk.n_mails;

    for (uint32_t i = 0; i < N; i++) {
        store_job_make(&f->desk, &f->jobs[i], TIER_LOAD, i, 1);
        f->desk.tier->ops->submit(f->desk.tier, &f->jobs[i]);
    }
    STORE_UNTIL(&f->desk, store_desk_harvest(&f->desk) == n_mails + N);
    for (uint32_t i = 0; i < N; i++)
        judge(f, i);
}

static void damage_again_and_again(bool is_file, bool is_sealed) {
    static struct fixture f;
    struct tier_job job;
    uint64_t n = 0;

    open_place(&f, is_file, is_sealed);
    for (; n < unit_damages_wanted(); n += N) {
        store_desk_make_chain(&f.desk, ++f.damages.chain);
        store_desk_run_until_ok(&f.desk, &job, TIER_STORE, 0, N);
        damage_all(&f);
        load_each(&f);
        if (!is_file) fake_store_flush(&f.server);
    }
    unit_damages_report(&f.damages, is_file ? "folder" : "store", n);
    if (is_file) tier_file_check(f.desk.tier);
    close_place(&f);
}

static void a_damaged_folder_gives_no_wrong_block(void **state) {
    (void)state;
    damage_again_and_again(true, false);
}

static void a_damaged_sealed_folder_gives_no_wrong_block(void **state) {
    (void)state;
    damage_again_and_again(true, true);
}

static void a_damaged_store_gives_no_wrong_block(void **state) {
    (void)state;
    damage_again_and_again(false, false);
}

static void a_damaged_sealed_store_gives_no_wrong_block(void **state) {
    (void)state;
    damage_again_and_again(false, true);
}

int main(void) {
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_damaged_folder_gives_no_wrong_block),
        cmocka_unit_test(a_damaged_sealed_folder_gives_no_wrong_block),
        cmocka_unit_test(a_damaged_store_gives_no_wrong_block),
        cmocka_unit_test(a_damaged_sealed_store_gives_no_wrong_block),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
