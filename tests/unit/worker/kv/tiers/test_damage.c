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
#include "worker/kv/tiers/file.h"

#define BLOCK_BYTES 2000u
#define UNIT_BYTES  (UNIT_HEADER_BYTES + UNIT_TEST_TOKENS * sizeof(uint32_t) + BLOCK_BYTES)
#define N           STORE_TEST_BLOCKS

enum damage {
    DAMAGE_FLIP,   /* one bit */
    DAMAGE_CUT,    /* it ends early; in a file what follows is zeros */
    DAMAGE_SWAP,   /* another block of the chain */
    DAMAGE_STALE,  /* what another chain has at this place */
    DAMAGE_MODEL,  /* this block, of another model */
    DAMAGE_KEY,    /* this block, under the key of another fleet */
    DAMAGE_OPEN,   /* this block, plain where it should be sealed and the reverse */
    DAMAGE_SALT,   /* this block's tokens behind another salt */
    DAMAGE_RENAME, /* the same with the names of this block */
    DAMAGE_EXTRAS, /* this block, of an adapter */
    N_DAMAGES,
};

static const struct {
    const char *name;
    uint32_t causes; /* 1 << each that it may be refused for */
} damages[N_DAMAGES] = {
    {"flipped", ~(1u << UNIT_FINE)},
    {"truncated", 1u << UNIT_MAGIC | 1u << UNIT_VERSION | 1u << UNIT_TORN | 1u << UNIT_SIZE |
                      1u << UNIT_CHECKSUM | 1u << UNIT_AUTH},
    {"swapped", 1u << UNIT_POSITION},
    {"stale", 1u << UNIT_TOKENS | 1u << UNIT_PARENT},
    {"other model", 1u << UNIT_FINGERPRINT},
    {"other key", 1u << UNIT_AUTH},
    {"plain or sealed", 1u << UNIT_AUTH},
    {"other salt", 1u << UNIT_PARENT | 1u << UNIT_SALT},
    {"salt, renamed", 1u << UNIT_SALT},
    {"adapter", 1u << UNIT_EXTRAS},
};

struct fixture {
    struct store_desk desk;
    struct fake_store server;
    bool is_file, is_sealed;
    char dir[64];
    uint64_t chain;
    uint8_t units[N][UNIT_BYTES]; /* as they are kept */
    enum damage damage[N];
    bool is_changed[N];
    struct tier_job jobs[N];
    struct rng rng;
    uint64_t counts[N_DAMAGES][UNIT_N_CAUSES], n_fine, n_absent;
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
    f->is_sealed = is_sealed;
    rng_seed(&f->rng, support_seed());
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

/* What another writer would seal. */
static void forge(const struct fixture *f, uint8_t model, const uint8_t (*keys)[32],
                  const struct unit_identity *id, uint8_t *unit) {
    struct unit_codec_config c = f->desk.config.unit;
    uint8_t payload[BLOCK_BYTES];
    struct unit_codec *codec;

    memset(payload, 0x77, sizeof(payload));
    c.fingerprint[0] = model;
    c.fleet_keys = keys;
    c.n_fleet_keys = keys != NULL;
    assert_int_equal(unit_codec_create(&codec, &c, NULL), ST_OK);
    assert_int_equal(unit_bytes(codec), UNIT_BYTES);
    assert_int_equal(unit_seal(codec, id, payload, unit), ST_OK);
    unit_codec_destroy(codec);
}

/* The names that the chain has behind this salt. */
static void rename_by_salt(const struct fixture *f, const uint8_t (*keys)[32], uint32_t i,
                           struct unit_identity *id) {
    const uint8_t *key = keys ? keys[0] : NULL;

    unit_chain_root(key, f->desk.config.unit.fingerprint, id->salt, &id->key);
    for (uint32_t k = 0; k <= i; k++) {
        id->parent = id->key;
        unit_chain_next(key, &id->parent, f->desk.blocks[k].tokens, UNIT_TEST_TOKENS, id->extras,
                        &id->key);
    }
}

static void damage_unit(struct fixture *f, uint32_t i, const uint8_t (*kept)[UNIT_BYTES]) {
    static const uint8_t others[1][32] = {{99}};
    const uint8_t(*ours)[32] = f->desk.config.unit.fleet_keys;
    struct unit_identity id = f->desk.blocks[i].id;
    uint64_t at = rng_below(&f->rng, UNIT_BYTES * 8);
    uint8_t *unit = f->units[i];
    struct unit_block stale;

    switch (f->damage[i]) {
    case DAMAGE_FLIP: unit[at / 8] ^= (uint8_t)(1u << at % 8); break;
    case DAMAGE_CUT: memset(unit + at / 8, 0, UNIT_BYTES - at / 8); break;
    case DAMAGE_SWAP: memcpy(unit, kept[(i + 1 + at % (N - 1)) % N], UNIT_BYTES); break;
    case DAMAGE_STALE:
        unit_block_make(&stale, ours ? ours[0] : NULL, f->desk.config.unit.fingerprint,
                        f->chain + 1 + at, i);
        forge(f, 1, ours, &stale.id, unit);
        break;
    case DAMAGE_MODEL: forge(f, 2, ours, &id, unit); break;
    case DAMAGE_KEY: forge(f, 1, others, &id, unit); break;
    case DAMAGE_OPEN: forge(f, 1, ours ? NULL : store_test_keys, &id, unit); break;
    case DAMAGE_SALT:
        id.salt[0] = (uint8_t)(1 + at % 255);
        rename_by_salt(f, ours, i, &id);
        forge(f, 1, ours, &id, unit);
        break;
    case DAMAGE_RENAME:
        id.salt[0] = (uint8_t)(1 + at % 255);
        forge(f, 1, ours, &id, unit);
        break;
    case DAMAGE_EXTRAS:
        id.extras[at % UNIT_DIGEST_BYTES] = 1;
        forge(f, 1, ours, &id, unit);
        break;
    default: break;
    }
    f->is_changed[i] = memcmp(unit, kept[i], UNIT_BYTES) != 0;
}

static void damage_all(struct fixture *f) {
    static uint8_t kept[N][UNIT_BYTES];

    exchange(f, true);
    memcpy(kept, f->units, sizeof(kept));
    for (uint32_t i = 0; i < N; i++) {
        f->damage[i] = (enum damage)rng_below(&f->rng, N_DAMAGES);
        damage_unit(f, i, (const uint8_t(*)[UNIT_BYTES])kept);
    }
    exchange(f, false);
}

/* --- what comes up ---------------------------------------------------------------------------- */

static void judge(struct fixture *f, uint32_t i) {
    const struct tier_unit *u = &f->jobs[i].units[0];
    enum damage damage = f->damage[i];

    store_job_check(&f->desk, &f->jobs[i]); /* the bytes */
    if (!f->is_changed[i]) {
        assert_int_equal(u->result, TIER_OK);
        f->n_fine++;
    } else if (u->result == TIER_REJECTED) {
        if (!(damages[damage].causes & 1u << u->cause))
            fail_msg("%s: refused for %s", damages[damage].name, unit_cause_name(u->cause));
        f->counts[damage][u->cause]++;
    } else {
        assert_int_equal(u->result, TIER_ABSENT);
        f->n_absent++;
    }
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

static void print_table(const struct fixture *f, uint64_t n) {
    print_message("%s, %s: %llu units, %llu unchanged, %llu absent\n",
                  f->is_file ? "folder" : "store", f->is_sealed ? "sealed" : "plain",
                  (unsigned long long)n, (unsigned long long)f->n_fine,
                  (unsigned long long)f->n_absent);
    for (int d = 0; d < N_DAMAGES; d++) {
        print_message("  %-16s", damages[d].name);
        for (int c = 0; c < UNIT_N_CAUSES; c++)
            if (f->counts[d][c])
                print_message(" %s %llu", unit_cause_name((enum unit_cause)c),
                              (unsigned long long)f->counts[d][c]);
        print_message("\n");
    }
}

static uint64_t n_damaged(void) {
    const char *s = getenv("DAMAGED");

    return s ? (uint64_t)atoll(s) : 3000;
}

static void damage_again_and_again(bool is_file, bool is_sealed) {
    static struct fixture f;
    struct tier_job job;
    uint64_t n = 0;

    open_place(&f, is_file, is_sealed);
    for (; n < n_damaged(); n += N) {
        store_desk_make_chain(&f.desk, ++f.chain);
        store_desk_run_until_ok(&f.desk, &job, TIER_STORE, 0, N);
        damage_all(&f);
        load_each(&f);
        if (!is_file) fake_store_flush(&f.server);
    }
    print_table(&f, n);
    for (int d = 0; d < N_DAMAGES; d++) {
        uint64_t n_refused = 0;

        for (int c = 0; c < UNIT_N_CAUSES; c++)
            n_refused += f.counts[d][c];
        assert_true(n_refused > 0);
    }
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
