/* tests/bench/bench_store.c - the shared store beside redis-benchmark: the same server, value size,
 * pipeline and number of keys, in turn; medians of the ratios.
 *
 *      bench_store [rounds] [tcp|unix]
 *
 * redis-benchmark has one connection, as the store has for each direction, and neither looks at its
 * values nor keeps them; the store seals or sums each unit, and verifies it into a block of its
 * own. Keys are spread over KEYS for both, and a SET always meets an empty server: values get fresh
 * memory, as those of a cache do. Needs a redis-server or valkey-server, and redis-benchmark: make
 * deps-test. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/mem.h"
#include "tests/support/redis_server.h"
#include "tests/support/unit_fixture.h"
#include "worker/kv/tiers/store/store.h"

#define BYTES_OF_KEYS (64u << 20)
#define GET_PASSES    2 /* over all keys, in one measurement */
#define FILL_PASSES   8 /* SETs of random keys after which one in 3,000 is missing */
#define JOBS          4 /* under way */
#define ROUNDS_MAX    101

struct bench {
    struct redis_server server;
    struct tier *tier;
    struct mailbox *home;
    struct unit_block *blocks;
    uint8_t *payloads;
    struct tier_job jobs[JOBS];
    uint32_t n_blocks;
    size_t block_bytes, value_bytes;
    bool is_unix;
};

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static double median(double *v, int n) {
    qsort(v, (size_t)n, sizeof(*v), by_value);
    return v[n / 2];
}

static void fail(const char *what) {
    fprintf(stderr, "bench_store: %s\n", what);
    exit(1);
}

/* --- ours ------------------------------------------------------------------------------------- */

static void submit(struct bench *b, struct tier_job *job, enum tier_op op, uint32_t first) {
    memset(job, 0, sizeof(*job));
    job->home = b->home;
    job->op = op;
    job->n = MIN((uint32_t)TIER_JOB_UNITS, b->n_blocks - first);
    job->deadline_us = UINT64_MAX;
    for (uint32_t i = 0; i < job->n; i++) {
        job->units[i].id = b->blocks[first + i].id;
        job->units[i].payload = b->payloads + (first + i) * b->block_bytes;
    }
    b->tier->ops->submit(b->tier, job);
}

/* All blocks once, JOBS jobs at a time. */
static void pass(struct bench *b, enum tier_op op) {
    struct tier_job *idle[JOBS];
    uint32_t n_idle = JOBS, next = 0;
    struct list mails, *link;

    for (int i = 0; i < JOBS; i++)
        idle[i] = &b->jobs[i];
    list_init(&mails);
    while (next < b->n_blocks || n_idle < JOBS) {
        for (; n_idle && next < b->n_blocks; next += TIER_JOB_UNITS)
            submit(b, idle[--n_idle], op, next);
        mailbox_wait(b->home, &mails, UINT64_MAX);
        while ((link = list_pop_front(&mails)) != NULL) {
            struct tier_job *job = CONTAINER_OF(mail_of(link), struct tier_job, mail);

            for (uint32_t i = 0; i < job->n; i++)
                if (job->units[i].result != TIER_OK) fail("a unit has failed");
            idle[n_idle++] = job;
        }
    }
}

/* What a measurement has found. */
struct figure {
    double gb_per_s, cpu_s_per_gb; /* of the client's side alone */
};

static double cpu_s(int who) {
    struct rusage usage;

    getrusage(who, &usage);
    return (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
           (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) * 1e-6;
}

static double gb_of(const struct bench *b, uint32_t passes) {
    return (double)b->value_bytes * b->n_blocks * passes / 1e9;
}

static struct figure run_ours(struct bench *b, enum tier_op op) {
    uint32_t passes = op == TIER_LOAD ? GET_PASSES : 1;
    double begun_cpu_s = cpu_s(RUSAGE_SELF), gb = gb_of(b, passes);
    uint64_t begun_us = clock_now_us();

    for (uint32_t i = 0; i < passes; i++)
        pass(b, op);
    return (struct figure){gb / ((double)(clock_now_us() - begun_us) * 1e-6),
                           (cpu_s(RUSAGE_SELF) - begun_cpu_s) / gb};
}

/* --- theirs ----------------------------------------------------------------------------------- */

static struct figure run_theirs(struct bench *b, enum tier_op op, uint32_t passes) {
    const char *name = op == TIER_LOAD ? "get" : "set";
    char command[512], line[512];
    double per_s = 0, begun_cpu_s = cpu_s(RUSAGE_CHILDREN);
    FILE *out;

    snprintf(command, sizeof(command),
             "redis-benchmark %s %s -c 1 -P %d -t %s -d %zu -r %u -n %u --csv 2>/dev/null",
             b->is_unix ? "-s" : "-p", b->is_unix ? b->server.path : b->server.port_text,
             op == TIER_LOAD ? 16 : 4, name, b->value_bytes, b->n_blocks, b->n_blocks * passes);
    out = popen(command, "r");
    while (out && fgets(line, sizeof(line), out))
        if (strncasecmp(line + 1, name, 3) == 0) per_s = atof(strchr(line, ',') + 2);
    if (!out || pclose(out) != 0 || per_s == 0) fail("redis-benchmark has failed");
    return (struct figure){per_s * (double)b->value_bytes / 1e9,
                           (cpu_s(RUSAGE_CHILDREN) - begun_cpu_s) / gb_of(b, passes)};
}

/* --- the comparison --------------------------------------------------------------------------- */

static void begin(struct bench *b, size_t block_bytes, bool is_sealed) {
    static const uint8_t keys[1][32] = {{1}};
    struct tier_store_config config = {
        .unit = {.block_tokens = UNIT_TEST_TOKENS, .block_bytes = block_bytes},
        .is_plain = !is_sealed,
        .silence_ms = 60000,
        .max_jobs = JOBS,
    };
    struct error err = {0};
    char url[256];

    if (is_sealed) {
        config.unit.fleet_keys = keys;
        config.unit.n_fleet_keys = 1;
    }
    snprintf(url, sizeof(url), b->is_unix ? "unix://%s" : "redis://127.0.0.1:%s",
             b->is_unix ? b->server.path : b->server.port_text);
    config.urls = url;
    if (tier_store_open(&b->tier, &config, &err) != ST_OK) fail(err.message);
    b->home = mailbox_open_waiting();
    b->block_bytes = block_bytes;
    b->value_bytes = block_bytes + UNIT_HEADER_BYTES + UNIT_TEST_TOKENS * sizeof(uint32_t);
    b->n_blocks = (uint32_t)(BYTES_OF_KEYS / block_bytes);
    b->payloads = mem_try_pages(b->n_blocks * block_bytes);
    b->blocks = mem_calloc(b->n_blocks, sizeof(*b->blocks));
    if (!b->payloads) fail("no memory");
    for (uint32_t i = 0; i < b->n_blocks; i++) {
        unit_block_make(&b->blocks[i], is_sealed ? keys[0] : NULL, config.unit.fingerprint, i, 0);
        unit_block_fill(&b->blocks[i], b->payloads + i * block_bytes, block_bytes);
    }
}

static void end(struct bench *b) {
    b->tier->ops->destroy(b->tier);
    mailbox_close(b->home);
    mem_free_pages(b->payloads, b->n_blocks * b->block_bytes);
    mem_free(b->blocks);
    redis_server_command(&b->server, "FLUSHALL");
}

static struct figure run(struct bench *b, enum tier_op op, bool is_ours) {
    if (op == TIER_STORE) redis_server_command(&b->server, "FLUSHALL");
    return is_ours ? run_ours(b, op) : run_theirs(b, op, op == TIER_LOAD ? GET_PASSES : 1);
}

static void compare(struct bench *b, enum tier_op op, int rounds) {
    double speed[2][ROUNDS_MAX], cpu[2][ROUNDS_MAX], ratios[ROUNDS_MAX];

    if (op == TIER_LOAD) { /* both sets of keys side by side */
        redis_server_command(&b->server, "FLUSHALL");
        run_theirs(b, TIER_STORE, FILL_PASSES);
        run_ours(b, TIER_STORE);
    }
    for (int i = 0; i < rounds; i++) {
        for (int turn = 0; turn < 2; turn++) {
            bool is_ours = turn == i % 2;
            struct figure f = run(b, op, is_ours);

            speed[is_ours][i] = f.gb_per_s;
            cpu[is_ours][i] = f.cpu_s_per_gb;
        }
        ratios[i] = speed[1][i] / speed[0][i];
    }
    printf(
        "  %s %5.2f GB/s, redis-benchmark %5.2f, ratio %.2f; CPU of the client %.2f s/GB, %.2f\n",
        op == TIER_LOAD ? "GET" : "SET", median(speed[1], rounds), median(speed[0], rounds),
        median(ratios, rounds), median(cpu[1], rounds), median(cpu[0], rounds));
    fflush(stdout);
}

int main(int argc, char **argv) {
    static const size_t sizes[] = {64u << 10, 256u << 10};
    int rounds = argc > 1 ? atoi(argv[1]) : 7;
    struct bench b = {.is_unix = argc > 2 && strcmp(argv[2], "unix") == 0};

    signal(SIGPIPE, SIG_IGN);
    if (rounds < 1 || rounds > ROUNDS_MAX) fail("usage: bench_store [rounds, 1 to 101] [tcp|unix]");
    if (!redis_server_start(&b.server, NULL)) fail("no redis-server: make deps-test");
    for (size_t i = 0; i < ARRAY_LEN(sizes); i++) {
        for (int is_sealed = 0; is_sealed < 2; is_sealed++) {
            begin(&b, sizes[i], is_sealed);
            printf("%zu KiB, %s, %s:\n", sizes[i] >> 10,
                   is_sealed ? "AES-256-GCM" : "plain, summed", b.is_unix ? "unix" : "tcp");
            compare(&b, TIER_LOAD, rounds);
            compare(&b, TIER_STORE, rounds);
            end(&b);
        }
    }
    redis_server_stop(&b.server);
    return 0;
}
