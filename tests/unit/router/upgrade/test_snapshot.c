/* tests/unit/router/upgrade/test_snapshot.c - what one router knew, another knows; and nothing that
 * is not so. */
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/mem.h"
#include "common/base/rng.h"
#include "common/net/loop.h"
#include "router/registry/registry_route.h"
#include "router/registry/registry_view.h"
#include "router/registry/registry_workers.h"
#include "router/upgrade/index_restore.h"
#include "tests/support/client.h"
#include "tests/support/cm.h"
#include "tests/support/registry_fixture.h"
#include "tests/support/routing_defaults.h"

#define SCHEME    UINT64_C(0xfeed)
#define N_WORKERS 3
#define N_CHAINS  60
#define CHAIN     16

static struct registry *create(void) {
    struct registry_config config = {0};
    struct registry *r = NULL;

    routing_options_default(&config.routing);
    config.routing.max_workers = 8;
    config.routing.max_index_bytes = 2 << 20;
    assert_int_equal(registry_create(&r, &config, NULL), ST_OK);
    return r;
}

static uint32_t add(struct registry *r, uint32_t i) {
    char url[64];
    uint32_t id;

    snprintf(url, sizeof(url), "http://127.0.0.1:%u", 4000 + i);
    assert_int_equal(registry_add(r, url, &id, NULL), ST_OK);
    return id;
}

static void describe(struct registry *r, uint32_t id, const char *generation, bool is_third_party) {
    struct wire_server_info info = {.wire = 1, .block_size = 16, .n_blocks = 1500, .model = "m"};

    snprintf(info.generation, sizeof(info.generation), "%s", generation);
    assert_int_equal(registry_describe(r, id, &info, is_third_party, NULL), ST_OK);
    registry_set_reason(r, id, WORKER_STARTING, false);
}

static void chain_of(uint64_t c, uint64_t chain[CHAIN]) {
    for (uint32_t i = 0; i < CHAIN; i++)
        chain[i] = rng_at(i < CHAIN / 2 ? c / 4 : 1000 + c, i) & ~UINT64_C(0xFFFF);
}

static void serve(struct registry *r, uint64_t c, uint64_t now_us) {
    struct route_ticket ticket = {0};
    struct registry_target target;
    uint64_t chain[CHAIN];
    struct route_request rq = {
        .chain = chain, .n_blocks = CHAIN, .prompt_bytes = CHAIN * 256, .now_us = now_us};
    struct route_end end = {
        .output_tokens = 40, .feedback = {CHAIN * 256 / 3, -1}, .now_us = now_us + 1000};

    chain_of(c, chain);
    assert_int_equal(registry_route(r, STR("m"), &rq, &ticket, &target, NULL), ST_OK);
    registry_ended(r, &target, &ticket, &end, OUTCOME_OK);
}

/* Tokens of chain c that the index has for each worker. */
static void matched(struct registry *r, uint64_t c, double out[N_WORKERS]) {
    struct registry_candidate candidates[N_WORKERS];
    uint64_t chain[CHAIN];
    struct route_request rq = {.chain = chain, .n_blocks = CHAIN, .prompt_bytes = CHAIN * 256};
    uint32_t n, choice;

    chain_of(c, chain);
    memset(out, 0, N_WORKERS * sizeof(*out));
    assert_int_equal(registry_explain(r, STR("m"), &rq, candidates, N_WORKERS, &n, &choice, NULL),
                     ST_OK);
    for (uint32_t i = 0; i < n; i++)
        out[candidates[i].worker] = candidates[i].term.matched_tokens;
}

static int write_file(struct registry *r) {
    int fd = memfd_create("snapshot", MFD_CLOEXEC);
    struct snapshot_writer *w =
        snapshot_writer_create(&(struct snapshot_source){.registry = r, .scheme = SCHEME}, fd);
    enum status st;

    while ((st = snapshot_writer_step(w, NULL)) == ST_AGAIN) {
    }
    assert_int_equal(st, ST_OK);
    snapshot_writer_destroy(w);
    return fd;
}

static struct registry *create_warm(void) {
    struct registry *r = create();

    for (uint32_t i = 0; i < N_WORKERS; i++)
        describe(r, add(r, i), "g1", false);
    for (uint64_t i = 0; i < 400; i++)
        serve(r, rng_at(3, i) % N_CHAINS, 1000000 + i * 20000);
    return r;
}

static struct index_restore *restore(struct loop *loop, struct registry *r, int fd,
                                     bool trusts_unnamed) {
    struct index_restore_config config = {.registry = r, .trusts_unnamed = trusts_unnamed};
    struct snapshot *s = NULL;

    assert_int_equal(snapshot_read_fd(&s, fd, SCHEME, NULL), ST_OK);
    return index_restore_start(loop, &config, s);
}

static void a_successor_restores_the_state_of_its_predecessor(void **state) {
    struct registry *old = create_warm(), *new = create();
    struct registry_view was, is;
    struct index_restore *restored;
    double a[N_WORKERS], b[N_WORKERS];
    struct loop *loop;
    struct registry_model_stats stats_a, stats_b;
    int fd = write_file(old);

    (void)state;
    assert_int_equal(loop_create(&loop, NULL), ST_OK);
    restored = restore(loop, new, fd, false);
    for (uint32_t i = 0; i < N_WORKERS; i++) /* in another order, under other ids */
        (void)add(new, N_WORKERS - 1 - i);
    for (uint32_t i = 0; i < N_WORKERS; i++) {
        for (int k = 0; k < 3; k++)
            loop_turn(loop, 2000);
        assert_false(index_restore_is_over(restored));
        index_restore_is_serving(restored);
        describe(new, i, "g1", false);
    }
    TURN_UNTIL(loop, index_restore_is_over(restored));
    for (uint32_t i = 0; i < N_WORKERS; i++) {
        assert_true(registry_get(old, i, &was));
        assert_true(registry_get(new, N_WORKERS - 1 - i, &is));
        assert_string_equal(was.url, is.url);
        assert_true(was.routing.n_held_blocks > 0);
        assert_int_equal(was.routing.n_held_blocks, is.routing.n_held_blocks);
    }
    for (uint64_t c = 0; c < N_CHAINS; c++) {
        matched(old, c, a);
        matched(new, c, b);
        for (uint32_t i = 0; i < N_WORKERS; i++)
            assert_true(a[i] == b[N_WORKERS - 1 - i]);
    }
    assert_true(registry_model_stats(old, 0, &stats_a));
    assert_true(registry_model_stats(new, 0, &stats_b));
    assert_true(stats_a.bytes_per_token == stats_b.bytes_per_token);
    index_restore_stop(restored);
    loop_destroy(loop);
    registry_destroy(old);
    registry_destroy(new);
    close(fd);
}

static void a_worker_that_is_another_gets_nothing(void **state) {
    struct registry *old = create_warm(), *new = create();
    struct registry_view view;
    struct index_restore *restored;
    struct loop *loop;
    int fd = write_file(old);

    (void)state;
    assert_int_equal(loop_create(&loop, NULL), ST_OK);
    restored = restore(loop, new, fd, false);
    for (uint32_t i = 0; i < N_WORKERS; i++)
        describe(new, add(new, i), i == 1 ? "g2" : "g1", false);
    TURN_UNTIL(loop, index_restore_is_over(restored));
    for (uint32_t i = 0; i < N_WORKERS; i++) {
        assert_true(registry_get(new, i, &view));
        assert_int_equal(view.routing.n_held_blocks == 0, i == 1);
    }
    index_restore_stop(restored);
    loop_destroy(loop);
    registry_destroy(old);
    registry_destroy(new);
    close(fd);
}

/* An engine that is not ours: its life has a name when its metrics have been read. */
static void a_foreign_worker_is_restored_once_its_start_time_is_known(void **state) {
    struct registry_report report = {.running = -1,
                                     .waiting = -1,
                                     .kv_usage = -1,
                                     .generation = "life 7",
                                     .counted = {-1, -1, -1, -1}};
    struct registry *old = create(), *new = create();
    struct registry_view view;
    struct index_restore *restored;
    struct loop *loop;
    int fd;

    (void)state;
    assert_int_equal(loop_create(&loop, NULL), ST_OK);
    describe(old, add(old, 0), "", true);
    registry_report(old, 0, &report);
    serve(old, 5, 1000000);
    fd = write_file(old);
    restored = restore(loop, new, fd, false);
    describe(new, add(new, 0), "", true);
    for (int k = 0; k < 3; k++)
        loop_turn(loop, 60000);
    assert_false(index_restore_is_over(restored));
    registry_report(new, 0, &report);
    TURN_UNTIL(loop, index_restore_is_over(restored));
    assert_true(registry_get(new, 0, &view));
    assert_true(view.routing.n_held_blocks >= CHAIN);
    index_restore_stop(restored);
    loop_destroy(loop);
    registry_destroy(old);
    registry_destroy(new);
    close(fd);
}

static char *bytes_of(int fd, size_t *n) {
    struct stat sb;
    char *bytes;

    assert_int_equal(fstat(fd, &sb), 0);
    *n = (size_t)sb.st_size;
    bytes = mem_alloc(*n + 1);
    assert_int_equal(pread(fd, bytes, *n, 0), *n);
    return bytes;
}

static void no_byte_may_be_missing_or_wrong(void **state) {
    struct registry *old = create();
    struct snapshot *s = NULL;
    struct error err;
    size_t n;
    char *bytes;
    int fd;

    (void)state;
    describe(old, add(old, 0), "g1", false);
    serve(old, 1, 1000000);
    serve(old, 2, 2000000);
    fd = write_file(old);
    bytes = bytes_of(fd, &n);
    for (size_t i = 0; i < n; i++) {
        error_init(&err);
        assert_int_equal(snapshot_read(&s, bytes, i, SCHEME, &err), ST_INVALID);
        assert_true(err.message[0]);
        bytes[i] = (char)(bytes[i] ^ 1 << i % 8);
        assert_int_equal(snapshot_read(&s, bytes, n, SCHEME, &err), ST_INVALID);
        bytes[i] = (char)(bytes[i] ^ 1 << i % 8);
    }
    error_init(&err);
    assert_int_equal(snapshot_read(&s, bytes, n, SCHEME + 1, &err), ST_INVALID);
    assert_non_null(strstr(err.message, "--prefix-hash-seed"));
    assert_int_equal(snapshot_read(&s, bytes, n, SCHEME, NULL), ST_OK);
    assert_int_equal(snapshot_n_workers(s), 1);
    assert_true(snapshot_n_items(s, 0) >= 2 * CHAIN - CHAIN / 2);
    snapshot_destroy(s);
    registry_destroy(old);
    close(fd);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_successor_restores_the_state_of_its_predecessor),
        cmocka_unit_test(a_worker_that_is_another_gets_nothing),
        cmocka_unit_test(a_foreign_worker_is_restored_once_its_start_time_is_known),
        cmocka_unit_test(no_byte_may_be_missing_or_wrong),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
