/* tests/bench/bench_tier.c - the file tier beside the disk it lies on, and units beside memory.
 *
 * Reading: runs of KV blocks, 256 KiB each, at random through the tier and its four threads, beside
 * four threads that pread 256 KiB with O_DIRECT from a file of equal size. Both in turn, for a
 * second each; the median of the ratios counts payload, so a unit's head and padding are part of
 * what the tier costs. fio's words for the second: --rw=randread --bs=256k --ioengine=psync
 * --direct=1 --numjobs=4. The bar is 0.8.
 *
 * Units: sealing and opening, plain and encrypted, per second of one core. Index: opening a folder
 * with two million units in sealed segments, whose payload is holes. Arguments: a folder on the
 * disk to be measured (/var/tmp), MiB to read from (2048), rounds (5). */
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/mem.h"
#include "tests/support/unit_fixture.h"
#include "worker/kv/tiers/file.h"
#include "worker/kv/tiers/file_index.h"
#include "worker/kv/tiers/file_segment.h"

#define EXTENT    (256u << 10)
#define THREADS   4             /* so many reads in flight, of the tier and beside it */
#define IN_FLIGHT (2 * THREADS) /* jobs: a thread that ends one has the next */
#define ROUND_US  1000000
#define N_UNITS   2000000u

static void require(bool ok, const char *what) {
    if (ok) return;
    perror(what);
    exit(1);
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static double median(double *v, int n) {
    qsort(v, (size_t)n, sizeof(*v), by_value);
    return v[n / 2];
}

static void remove_tree(const char *path) {
    char command[300];

    snprintf(command, sizeof(command), "rm -rf '%s'", path);
    require(system(command) == 0, command);
}

/* --- units ------------------------------------------------------------------------------------ */

/* What this thread computed: a busy machine takes nothing away. */
static double core_us(void) {
    struct timespec at;

    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &at);
    return (double)at.tv_sec * 1e6 + (double)at.tv_nsec / 1e3;
}

static void bench_units(bool is_sealed, size_t block_bytes) {
    static const uint8_t keys[1][32] = {{1}};
    struct unit_codec_config c = {.block_tokens = UNIT_TEST_TOKENS, .block_bytes = block_bytes};
    size_t n_units = (256u << 20) / block_bytes; /* more than the caches hold */
    struct unit_codec *codec;
    struct unit_block b;
    uint8_t *units, *payloads;
    double t[3];

    if (is_sealed) c.fleet_keys = keys, c.n_fleet_keys = 1;
    require(unit_codec_create(&codec, &c, NULL) == ST_OK, "codec");
    units = mem_try(n_units * unit_bytes(codec));
    payloads = mem_try(n_units * block_bytes);
    require(units && payloads, "memory");
    memset(units, 1, n_units * unit_bytes(codec));
    memset(payloads, 1, n_units * block_bytes);
    unit_block_make(&b, is_sealed ? keys[0] : NULL, c.fingerprint, 1, 0);
    t[0] = core_us();
    for (size_t i = 0; i < n_units; i++)
        require(unit_seal(codec, &b.id, payloads + i * block_bytes,
                          units + i * unit_bytes(codec)) == ST_OK,
                "seal");
    t[1] = core_us();
    for (size_t i = 0; i < n_units; i++)
        require(unit_open(codec, &b.id, units + i * unit_bytes(codec), unit_bytes(codec),
                          payloads + i * block_bytes) == UNIT_FINE,
                "open");
    t[2] = core_us();
    printf("unit %-6s %7zu bytes: seal %5.2f GB/s of a core, open %5.2f\n",
           is_sealed ? "sealed" : "plain", block_bytes,
           (double)(n_units * block_bytes) / 1e3 / (t[1] - t[0]),
           (double)(n_units * block_bytes) / 1e3 / (t[2] - t[1]));
    mem_free(units);
    mem_free(payloads);
    unit_codec_destroy(codec);
}

/* --- the disk --------------------------------------------------------------------------------- */

struct reader {
    pthread_t thread;
    int fd;
    uint64_t n_extents, end_us, bytes;
    struct rng rng;
};

static void *read_extents(void *arg) {
    struct reader *r = arg;
    void *to = file_io_buffer(EXTENT);

    while (clock_now_us() < r->end_us) {
        off_t at = (off_t)(rng_below(&r->rng, r->n_extents) * EXTENT);

        require(pread(r->fd, to, EXTENT, at) == EXTENT, "pread");
        r->bytes += EXTENT;
    }
    mem_free(to);
    return NULL;
}

static double disk_rate(int fd, uint64_t bytes, uint64_t seed) {
    struct reader readers[THREADS];
    uint64_t began_us = clock_now_us(), sum = 0;

    for (int i = 0; i < THREADS; i++) {
        readers[i] =
            (struct reader){.fd = fd, .n_extents = bytes / EXTENT, .end_us = began_us + ROUND_US};
        rng_seed(&readers[i].rng, seed * THREADS + (uint64_t)i);
        require(pthread_create(&readers[i].thread, NULL, read_extents, &readers[i]) == 0, "thread");
    }
    for (int i = 0; i < THREADS; i++) {
        pthread_join(readers[i].thread, NULL);
        sum += readers[i].bytes;
    }
    return (double)sum / (double)(clock_now_us() - began_us);
}

static int make_file(const char *dir, uint64_t bytes) {
    uint8_t *chunk = file_io_buffer(EXTENT);
    char path[300];
    int fd;

    snprintf(path, sizeof(path), "%s/disk", dir);
    fd = open(path, O_RDWR | O_CREAT | O_DIRECT, 0600);
    require(fd >= 0 && chunk, path);
    for (uint64_t at = 0; at < bytes; at += EXTENT) {
        memset(chunk, (int)(at / EXTENT), EXTENT);
        require(pwrite(fd, chunk, EXTENT, (off_t)at) == EXTENT, path);
    }
    require(fsync(fd) == 0, path);
    mem_free(chunk);
    return fd;
}

/* --- the tier --------------------------------------------------------------------------------- */

struct chain_job {
    struct tier_job job;
    uint8_t *payloads;
};

struct bench {
    struct tier *tier;
    struct mailbox *box;
    size_t block_bytes;
    uint32_t n_blocks; /* of a job: an extent */
    uint64_t n_chains;
    struct unit_block *blocks; /* n_chains * n_blocks */
    struct chain_job jobs[IN_FLIGHT];
};

static void submit(struct bench *b, struct chain_job *j, enum tier_op op, uint64_t chain) {
    j->job.op = op;
    j->job.n = b->n_blocks;
    j->job.home = b->box;
    j->job.deadline_us = UINT64_MAX;
    j->job.submitted_us = clock_now_us();
    atomic_store(&j->job.is_cancelled, false);
    for (uint32_t i = 0; i < b->n_blocks; i++) {
        j->job.units[i].id = b->blocks[chain * b->n_blocks + i].id;
        j->job.units[i].payload = j->payloads + i * b->block_bytes;
    }
    b->tier->ops->submit(b->tier, &j->job);
}

/* The payload bytes per microsecond of jobs until `end_us` or `n` chains. */
static double run_jobs(struct bench *b, enum tier_op op, uint64_t n, uint64_t end_us,
                       uint64_t seed) {
    uint64_t began_us = clock_now_us(), begun = 0, done = 0;
    struct list mails;
    struct rng rng;

    list_init(&mails);
    rng_seed(&rng, seed);
    for (int i = 0; i < IN_FLIGHT; i++)
        submit(b, &b->jobs[i], op, op == TIER_STORE ? begun++ : rng_below(&rng, b->n_chains));
    for (int out = IN_FLIGHT; out > 0;) {
        struct list *link = list_pop_front(&mails);
        struct chain_job *j;

        if (!link) {
            mailbox_wait(b->box, &mails, UINT64_MAX);
            continue;
        }
        j = CONTAINER_OF(mail_of(link), struct chain_job, job.mail);
        for (uint32_t i = 0; i < b->n_blocks; i++)
            if (j->job.units[i].result != TIER_OK) {
                fprintf(stderr, "unit %u: result %d, cause %d\n", i, j->job.units[i].result,
                        j->job.units[i].cause);
                exit(1);
            }
        done++;
        if (op == TIER_STORE ? begun < n : clock_now_us() < end_us)
            submit(b, j, op, op == TIER_STORE ? begun++ : rng_below(&rng, b->n_chains));
        else
            out--;
    }
    return (double)(done * b->n_blocks * b->block_bytes) / (double)(clock_now_us() - began_us);
}

static void bench_reads(const char *dir, uint64_t bytes, int rounds, size_t block_bytes, int disk) {
    struct unit_codec_config codec = {.fingerprint = {(uint8_t)(block_bytes >> 12)},
                                      .block_tokens = UNIT_TEST_TOKENS,
                                      .block_bytes = block_bytes};
    struct tier_file_config config = {
        .dir = dir, .max_bytes = 4 * bytes, .codec = &codec, .n_threads = THREADS};
    struct bench b = {.block_bytes = block_bytes,
                      .n_blocks = (uint32_t)(EXTENT / block_bytes),
                      .n_chains = bytes / EXTENT};
    double ratios[99], ours[99], disks[99], stored;

    b.box = mailbox_open_waiting();
    require(tier_file_open(&b.tier, &config, NULL) == ST_OK, dir);
    b.blocks = mem_calloc(b.n_chains * b.n_blocks, sizeof(*b.blocks));
    for (uint64_t i = 0; i < b.n_chains * b.n_blocks; i++)
        unit_block_make(&b.blocks[i], NULL, codec.fingerprint, i, 0); /* neighbours, not a chain */
    for (int i = 0; i < IN_FLIGHT; i++)
        b.jobs[i].payloads = mem_zalloc(EXTENT);
    stored = run_jobs(&b, TIER_STORE, b.n_chains, 0, 1);
    for (int r = 0; r < rounds; r++) {
        disks[r] = disk_rate(disk, bytes, (uint64_t)r + 1);
        ours[r] = run_jobs(&b, TIER_LOAD, 0, clock_now_us() + ROUND_US, (uint64_t)r + 1);
        ratios[r] = ours[r] / disks[r];
    }
    printf("file %7zu bytes x %2u: store %5.0f MB/s, load %5.0f MB/s, disk %5.0f MB/s, "
           "load / disk %.2f (bar 0.80)\n",
           block_bytes, b.n_blocks, stored, median(ours, rounds), median(disks, rounds),
           median(ratios, rounds));
    b.tier->ops->destroy(b.tier);
    for (int i = 0; i < IN_FLIGHT; i++)
        mem_free(b.jobs[i].payloads);
    mem_free(b.blocks);
    mailbox_close(b.box);
}

/* --- the index -------------------------------------------------------------------------------- */

static uint64_t resident_bytes(void) {
    unsigned long size = 0, resident = 0;
    FILE *file = fopen("/proc/self/statm", "r");

    require(file && fscanf(file, "%lu %lu", &size, &resident) == 2, "statm");
    fclose(file);
    return resident * (uint64_t)sysconf(_SC_PAGESIZE);
}

/* 64 MiB of units, as holes, and their summary. */
static uint32_t make_segment(int dir_fd, uint32_t n, size_t step, void *summary) {
    uint32_t places = (uint32_t)((64u << 20) / step) - 3; /* room for the summary */
    uint64_t at = ALIGN_UP(places * step, FILE_PAGE);
    struct segment_row *rows = summary;
    char name[SEGMENT_NAME_MAX];
    int fd;

    for (uint32_t i = 0; i < places; i++) {
        uint64_t words[2] = {rng_at(n, 2 * i), rng_at(n, 2 * i + 1)};

        memcpy(&rows[i].key, words, sizeof(words));
        rows[i].place = (uint32_t)(i * step / SEGMENT_STEP);
        rows[i].hits = 0;
    }
    segment_finish(summary, places, at);
    segment_name((struct segment_id){1, n}, name);
    fd = openat(dir_fd, name, O_RDWR | O_CREAT, 0600);
    require(fd >= 0 && pwrite(fd, summary, segment_summary_bytes(places), (off_t)at) ==
                           (ssize_t)segment_summary_bytes(places),
            name);
    require(fsync(fd) == 0 && posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED) == 0, name);
    close(fd);
    return places;
}

static void bench_index(const char *dir, size_t block_bytes) {
    struct unit_codec_config codec = {.block_tokens = UNIT_TEST_TOKENS, .block_bytes = block_bytes};
    struct tier_file_config config = {.dir = dir, .max_bytes = 1ull << 42, .codec = &codec};
    size_t step = ALIGN_UP(block_bytes + UNIT_HEADER_BYTES + 64, SEGMENT_STEP);
    void *summary = file_io_buffer(segment_summary_bytes((64u << 20) / step));
    uint32_t n = 0;
    uint64_t before, began_us;
    double core;
    struct tier_stats stats;
    struct tier *tier;
    char folder[300];
    int fd;

    snprintf(folder, sizeof(folder), "%s/0000000000000000", dir);
    require(mkdir(folder, 0700) == 0 && (fd = open(folder, O_RDONLY | O_DIRECTORY)) >= 0, folder);
    for (uint32_t made = 0; made < N_UNITS; n++)
        made += make_segment(fd, n, step, summary);
    close(fd);
    mem_free(summary);
    before = resident_bytes();
    began_us = clock_now_us();
    core = core_us();
    require(tier_file_open(&tier, &config, NULL) == ST_OK, dir);
    core = core_us() - core;
    tier->ops->stats(tier, &stats);
    printf("index of %llu units in %u segments: %.2f s, %.2f s of a core, %.1f MiB\n",
           (unsigned long long)stats.n_units, n, (double)(clock_now_us() - began_us) / 1e6,
           core / 1e6, (double)(resident_bytes() - before) / (1 << 20));
    tier->ops->destroy(tier);
}

int main(int argc, char **argv) {
    const char *base = argc > 1 ? argv[1] : "/var/tmp";
    uint64_t bytes = (argc > 2 ? strtoull(argv[2], NULL, 10) : 2048) << 20;
    int rounds = argc > 3 ? atoi(argv[3]) : 5, disk;
    char dir[256], sub[280];

    require(rounds >= 1 && rounds <= 99 && bytes >= 64u << 20, "arguments");
    for (int s = 0; s < 2; s++)
        for (size_t n = 32 << 10; n <= 1 << 20; n *= 32)
            bench_units(s, n);
    snprintf(dir, sizeof(dir), "%s/incipit-tier-XXXXXX", base);
    require(mkdtemp(dir) != NULL, dir);
    disk = make_file(dir, bytes);
    for (size_t n = 32 << 10; n <= EXTENT; n *= 8) {
        snprintf(sub, sizeof(sub), "%s/%zu", dir, n);
        bench_reads(sub, bytes, rounds, n, disk);
        remove_tree(sub);
    }
    close(disk);
    snprintf(sub, sizeof(sub), "%s/index", dir);
    require(mkdir(sub, 0700) == 0, sub);
    bench_index(sub, 32 << 10);
    remove_tree(dir);
    return 0;
}
