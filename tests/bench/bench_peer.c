/* tests/bench/bench_peer.c - KV blocks from another worker, over TCP on loopback beside plain
 * sockets that carry as many bytes, and through shared memory beside memcpy of the same blocks.
 *
 * A source and a sink in one process, each with its own thread, runs of TIER_JOB_UNITS blocks, two
 * at a time; a thread stands for the source's engine, which finds all. Beside them one thread
 * writes 256 KiB at a time to a socket and one reads, and verifies nothing; or one copies all
 * blocks from one map of the memory. Both in turn, for a second each; the median of the ratios, and
 * of the bytes of payload in a second. The bars are 2 GB/s for plain blocks over TCP, and 12 GB/s
 * through shared memory, where what is measured is a source that has the sums of its blocks.
 * Arguments: rounds (5). */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/mem.h"
#include "tests/support/peer_fixture.h"

#define ROUND_US 1000000
#define JOBS     2u /* of PEER_TEST_BLOCKS / 2 blocks each */
#define PIECE    (256u << 10)

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static double median(double *v, int n) {
    qsort(v, (size_t)n, sizeof(*v), by_value);
    return v[n / 2];
}

static double process_s(void) {
    struct timespec at;

    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &at);
    return (double)at.tv_sec + (double)at.tv_nsec * 1e-9;
}

/* --- plain sockets ---------------------------------------------------------------------------- */

struct writer {
    int fd;
    uint64_t end_us;
};

static void *write_all(void *arg) {
    struct writer *w = arg;
    char *bytes = mem_zalloc(PIECE);

    while (clock_now_us() < w->end_us)
        if (send(w->fd, bytes, PIECE, MSG_NOSIGNAL) < 0) break;
    shutdown(w->fd, SHUT_WR);
    mem_free(bytes);
    return NULL;
}

static double socket_rate(void) {
    struct tier_source at;
    int listener = peer_listen(&at);
    struct writer w = {.end_us = clock_now_us() + ROUND_US};
    uint64_t began_us = clock_now_us(), n_bytes = 0;
    char *bytes = mem_zalloc(PIECE);
    pthread_t thread;
    ssize_t n;
    int fd;

    w.fd = peer_dial(&at);
    fd = accept(listener, NULL, NULL);
    pthread_create(&thread, NULL, write_all, &w);
    while ((n = recv(fd, bytes, PIECE, 0)) > 0)
        n_bytes += (uint64_t)n;
    pthread_join(thread, NULL);
    close(fd);
    close(w.fd);
    close(listener);
    mem_free(bytes);
    return (double)n_bytes / 1e3 / (double)(clock_now_us() - began_us);
}

/* --- blocks ----------------------------------------------------------------------------------- */

static double block_rate(struct peer_desk *d, double *cpu_s_per_gb) {
    static struct tier_job jobs[JOBS];
    uint64_t began_us = clock_now_us(), n_bytes = 0;
    double began_s = process_s();

    while (clock_now_us() < began_us + ROUND_US) {
        uint32_t n_before = d->n_mails;

        for (uint32_t j = 0; j < JOBS; j++)
            peer_job_submit(d, &jobs[j], j * TIER_JOB_UNITS, TIER_JOB_UNITS);
        peer_desk_await(d, n_before + JOBS);
        for (uint32_t j = 0; j < JOBS; j++)
            n_bytes += peer_job_count(&jobs[j], TIER_OK) * d->block_bytes;
    }
    *cpu_s_per_gb = (process_s() - began_s) / ((double)n_bytes * 1e-9);
    return (double)n_bytes / 1e3 / (double)(clock_now_us() - began_us);
}

/* --- memcpy ----------------------------------------------------------------------------------- */

static double copy_rate(const struct peer_desk *d) {
    uint64_t began_us = clock_now_us(), n_bytes = 0;

    while (clock_now_us() < began_us + ROUND_US) {
        for (uint32_t i = 0; i < JOBS * TIER_JOB_UNITS; i++)
            memcpy(d->ours + i * d->block_bytes, d->theirs + i * d->block_bytes, d->block_bytes);
        n_bytes += JOBS * TIER_JOB_UNITS * d->block_bytes;
    }
    return (double)n_bytes / 1e3 / (double)(clock_now_us() - began_us);
}

/* --- all -------------------------------------------------------------------------------------- */

enum way { PLAIN, SEALED, SHARED, N_WAYS };

static void bench(enum way way, size_t block_bytes, int n_rounds) {
    static const char *const names[] = {"plain", "sealed", "shared"};
    static struct peer_desk desk;
    double *rates = mem_calloc((size_t)n_rounds, sizeof(*rates));
    double *ratios = mem_calloc((size_t)n_rounds, sizeof(*ratios)), cpu_s = 0, beside;
    struct tier_peer_stats stats;

    peer_desk_begin(&desk, way == SEALED, block_bytes);
    if (way == SHARED) peer_desk_share(&desk);
    desk.is_bench = true;
    peer_desk_open_server(&desk, 0, 0);
    peer_desk_open_sink(&desk);
    (void)block_rate(&desk, &cpu_s); /* sums are made, and pages come */
    for (int i = 0; i < n_rounds; i++) {
        rates[i] = block_rate(&desk, &cpu_s);
        beside = way == SHARED ? copy_rate(&desk) : socket_rate();
        ratios[i] = rates[i] / beside;
    }
    tier_peer_stats(desk.tier, &stats);
    if ((way == SHARED) != (stats.shared_units > 0)) abort();
    printf("%-6s %8zu bytes: %5.2f GB/s, %4.2f of %s, %4.2f core-s per GB\n", names[way],
           block_bytes, median(rates, n_rounds), median(ratios, n_rounds),
           way == SHARED ? "memcpy" : "plain sockets", cpu_s);
    peer_desk_end(&desk);
    mem_free(rates);
    mem_free(ratios);
}

int main(int argc, char **argv) {
    static const size_t sizes[] = {32u << 10, 256u << 10, 2u << 20};
    int n_rounds = argc > 1 ? atoi(argv[1]) : 5;

    for (size_t i = 0; i < ARRAY_LEN(sizes); i++)
        for (int way = 0; way < N_WAYS; way++)
            bench((enum way)way, sizes[i], n_rounds);
    return 0;
}
