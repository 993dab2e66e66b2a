/* tests/unit/router/sharing/test_remote_requests.c - requests of other routers in the load table,
 * after any events. */
#include <string.h>

#include "common/base/rng.h"
#include "common/net/loop.h"
#include "common/protocol/request_events.h"
#include "router/registry/registry.h"
#include "router/registry/registry_view.h"
#include "router/registry/registry_workers.h"
#include "router/sharing/remote_requests.h"
#include "tests/support/cm.h"
#include "tests/support/registry_fixture.h"
#include "tests/support/routing_defaults.h"
#include "tests/support/support.h"

#define BLOCK_BYTES 256
#define N_BLOCKS    100
#define SCHEME      5

struct books {
    struct loop *loop;
    struct registry *registry;
    struct remote_requests remote;
    struct remote_set set;
    uint32_t worker, incarnation;
};

static void begin(struct books *b, uint64_t max_bytes, uint32_t max_open) {
    static const struct wire_server_info info = {
        .wire = 1, .model = "m", .block_size = 16, .n_blocks = 4000};
    const struct remote_requests_config remote = {
        .scheme = SCHEME, .block_bytes = BLOCK_BYTES, .max_bytes = max_bytes};
    struct registry_config config = {0};
    struct registry_view view;

    routing_options_default(&config.routing);
    config.routing.max_workers = 8;
    config.routing.max_index_bytes = 1 << 20;
    config.routing.prefix_block_bytes = BLOCK_BYTES;
    assert_int_equal(loop_create(&b->loop, NULL), ST_OK);
    assert_int_equal(registry_create(&b->registry, &config, NULL), ST_OK);
    assert_int_equal(registry_add(b->registry, "http://127.0.0.1:20001", &b->worker, NULL), ST_OK);
    assert_int_equal(registry_describe(b->registry, b->worker, &info, false, NULL), ST_OK);
    assert_true(registry_get(b->registry, b->worker, &view));
    b->incarnation = view.incarnation;
    remote_requests_init(&b->remote, b->loop, b->registry, NULL, &remote);
    remote_set_init(&b->set, &b->remote, max_open);
}

static void end(struct books *b) {
    remote_set_fini(&b->set);
    assert_int_equal(b->remote.n_bytes, 0);
    registry_check(b->registry);
    registry_destroy(b->registry);
    loop_destroy(b->loop);
}

static struct registry_totals totals(const struct books *b) {
    struct registry_totals t;

    registry_totals(b->registry, &t);
    return t;
}

static void accept_one(struct books *b, uint64_t request, uint64_t prompt, uint64_t t_us) {
    uint64_t blocks[N_BLOCKS];
    const struct request_event e = {.kind = REQUEST_ACCEPTED,
                                    .request = request,
                                    .chain = {.scheme = SCHEME,
                                              .prompt_bytes = N_BLOCKS * BLOCK_BYTES,
                                              .n_blocks = N_BLOCKS,
                                              .blocks = blocks}};

    for (uint32_t i = 0; i < N_BLOCKS; i++)
        blocks[i] = rng_at(prompt, i) & ~UINT64_C(0xffff);
    remote_set_accepted(&b->set, b->worker, b->incarnation, &e, t_us, false);
}

static void kept_requests_are_bounded(void **state) {
    struct books b;
    (void)state;

    begin(&b, 12000, 1000);
    accept_one(&b, 1, 1, 10);
    assert_int_equal(totals(&b).n_entries, N_BLOCKS);
    for (uint64_t i = 2; i < 1000; i++) /* one of them more has room for its blocks, at the most */
        accept_one(&b, i, i, 10);
    assert_in_range(totals(&b).n_entries, N_BLOCKS, 9 * N_BLOCKS);
    assert_in_range(totals(&b).n_remote, 8, 60);
    assert_true(b.remote.n_bytes <= 12000);
    remote_set_check(&b.set);
    remote_set_close_all(&b.set);
    assert_int_equal(totals(&b).n_remote, 0);
    assert_int_equal(b.remote.n_bytes, 0);
    end(&b);
}

/* Any events in any order, of a worker that comes and goes: what is open in the set is on the
 * books. */
static void any_events_keep_the_books_right(void **state) {
    struct books b;
    struct rng rng;
    (void)state;

    begin(&b, 40000, 20);
    rng_seed(&rng, support_seed());
    for (uint32_t step = 0; step < 20000; step++) {
        struct request_event e = {.request = rng_below(&rng, 60),
                                  .prompt_tokens = (int64_t)rng_below(&rng, 9000) - 1,
                                  .cached_tokens = (int64_t)rng_below(&rng, 9000) - 1,
                                  .output_tokens = (int64_t)rng_below(&rng, 100) - 1,
                                  .is_aborted = rng_below(&rng, 3) == 0};
        uint64_t t_us = rng_below(&rng, 4) ? rng_below(&rng, 1u << 30) : 0;

        switch (rng_below(&rng, 4)) {
        case 0: accept_one(&b, e.request, rng_below(&rng, 10), t_us); break;
        case 1: remote_set_first_token(&b.set, &e, t_us, rng_below(&rng, 2)); break;
        case 2: remote_set_ended(&b.set, &e, t_us); break;
        default:
            if (rng_below(&rng, 200) == 0) remote_set_close_all(&b.set);
            if (rng_below(&rng, 200) == 0) b.incarnation ^= 1; /* there is no such worker */
        }
        assert_int_equal(totals(&b).n_remote, b.set.requests.n);
        if (step % 100 == 0) {
            remote_set_check(&b.set);
            registry_check(b.registry);
        }
    }
    end(&b);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(kept_requests_are_bounded),
        cmocka_unit_test(any_events_keep_the_books_right),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
