/* tests/bench/bench_snapshot.c - a million blocks written and entered again: how long, and for how
 * long at once the lock of the registry is held. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/mem.h"
#include "common/base/rng.h"
#include "router/registry/registry_route.h"
#include "router/registry/registry_workers.h"
#include "router/upgrade/snapshot.h"
#include "tests/support/registry_fixture.h"
#include "tests/support/routing_defaults.h"

#define N_WORKERS 64u
#define N_BLOCKS  1000000u
#define CHAIN     64u

static struct registry *create(void) {
    struct registry_config config = {0};
    struct registry *r = NULL;
    struct wire_server_info info = {
        .wire = 1, .block_size = 16, .n_blocks = 1u << 20, .model = "m"};

    routing_options_default(&config.routing);
    config.routing.policy = policy_find(STR("round_robin"));
    if (registry_create(&r, &config, NULL) != ST_OK) abort();
    for (uint32_t i = 0; i < N_WORKERS; i++) {
        char url[64];
        uint32_t id;

        snprintf(url, sizeof(url), "http://127.0.0.1:%u", 4000 + i);
        if (registry_add(r, url, &id, NULL) != ST_OK) abort();
        if (registry_describe(r, id, &info, false, NULL) != ST_OK) abort();
        registry_set_reason(r, id, WORKER_STARTING, false);
    }
    return r;
}

static void fill(struct registry *r) {
    for (uint32_t n = 0; n < N_BLOCKS; n += CHAIN) {
        struct route_ticket ticket = {0};
        struct registry_target target;
        uint64_t chain[CHAIN];
        struct route_request rq = {
            .chain = chain, .n_blocks = CHAIN, .prompt_bytes = CHAIN * 256, .now_us = n + 1};
        struct route_end end = {.output_tokens = 0, .feedback = {-1, -1}, .now_us = n + 2};

        for (uint32_t i = 0; i < CHAIN; i++)
            chain[i] = rng_at(1, n + i) & ~UINT64_C(0xFFFF);
        if (registry_route(r, STR("m"), &rq, &ticket, &target, NULL) != ST_OK) abort();
        registry_ended(r, &target, &ticket, &end, OUTCOME_OK);
    }
}

static double ms(uint64_t from_ns) {
    return (double)(clock_now_ns() - from_ns) * 1e-6;
}

static void enter(struct registry *r, const struct snapshot *s) {
    uint64_t items[SNAPSHOT_PIECE], began_ns = clock_now_ns();
    double longest = 0, all = 0;
    uint64_t n_taken = 0;

    for (uint32_t w = 0; w < snapshot_n_workers(s); w++) {
        const struct registry_memory *of = snapshot_worker(s, w);

        if (!registry_memory_set(r, w, of)) abort();
        for (uint64_t from = 0, n; (n = snapshot_items(s, w, from, items, SNAPSHOT_PIECE)) > 0;
             from += n) {
            uint64_t piece_ns = clock_now_ns();

            n_taken += registry_memory_restore(r, w, of, items, (uint32_t)n);
            longest = MAX(longest, ms(piece_ns));
        }
    }
    all = ms(began_ns);
    printf("entered: %.0f ms for %llu blocks, at most %.2f ms at once\n", all,
           (unsigned long long)n_taken, longest);
}

int main(void) {
    struct registry *old = create(), *new = create();
    int fd = memfd_create("snapshot", MFD_CLOEXEC);
    struct snapshot_writer *w;
    struct snapshot *s = NULL;
    uint64_t began_ns;
    double longest = 0;
    enum status st;

    fill(old);
    began_ns = clock_now_ns();
    w = snapshot_writer_create(&(struct snapshot_source){.registry = old, .scheme = 1}, fd);
    do {
        uint64_t step_ns = clock_now_ns();

        st = snapshot_writer_step(w, NULL);
        longest = MAX(longest, ms(step_ns));
    } while (st == ST_AGAIN);
    printf("written: %.0f ms for %llu blocks, %.1f MB; a step takes at most %.2f ms\n",
           ms(began_ns), (unsigned long long)snapshot_writer_n_items(w),
           (double)lseek(fd, 0, SEEK_END) * 1e-6, longest);
    snapshot_writer_destroy(w);
    began_ns = clock_now_ns();
    if (snapshot_read_fd(&s, fd, 1, NULL) != ST_OK) abort();
    printf("read and checked: %.0f ms\n", ms(began_ns));
    enter(new, s);
    snapshot_destroy(s);
    registry_destroy(old);
    registry_destroy(new);
    close(fd);
    return 0;
}
