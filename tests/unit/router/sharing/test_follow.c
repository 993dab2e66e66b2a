/* tests/unit/router/sharing/test_follow.c - workers that publish request events, and a router that
 * follows them, on one loop. */
#include <stdio.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/mem.h"
#include "common/base/rng.h"
#include "common/http/http_client.h"
#include "common/http/http_server.h"
#include "common/net/loop.h"
#include "common/protocol/request_events.h"
#include "router/metrics/router_metrics.h"
#include "router/prompt/prompt_hash.h"
#include "router/registry/registry_internal.h"
#include "router/sharing/follow.h"
#include "tests/support/client.h"
#include "tests/support/cm.h"
#include "tests/support/registry_fixture.h"
#include "tests/support/routing_defaults.h"
#include "tests/support/support.h"

#define LOG_MAX     20000
#define BLOCK_BYTES 256
#define CHAIN_MAX   40
#define OURS        7 /* origins */
#define THEIRS      9

/* A worker's log as a real one keeps it, and its one reader. */
struct publisher {
    struct loop *loop;
    struct http_server *server;
    uint16_t port;
    uint32_t id;
    const char *generation;
    struct buf frames[LOG_MAX];
    uint64_t oldest, next; /* sequences; the first is 1 */
    struct http_request *reader;
    uint32_t n_connections, n_from_oldest;
    int code;          /* other than 200: refused */
    uint64_t ahead_us; /* of its clock, before ours */
};

struct fixture {
    struct loop *loop;
    struct registry *registry;
    struct http_client *client;
    struct metrics *metrics;
    struct follow *follow;
    struct publisher *publishers;
    uint32_t n, silence_ms;
};

/* --- the worker ------------------------------------------------------------------------------- */

static void publish_hello(struct publisher *t, bool is_gap) {
    struct request_event e = {.kind = REQUEST_HELLO,
                              .t_us = loop_now_us(t->loop) + t->ahead_us,
                              .next = t->next,
                              .oldest = t->oldest,
                              .is_gap = is_gap};
    struct buf out;

    snprintf(e.generation, sizeof(e.generation), "%s", t->generation);
    buf_init(&out, 0);
    request_event_put(&out, REQUEST_EVENT_CONTROL, &e);
    http_stream_write(t->reader, buf_str(&out));
    buf_fini(&out);
}

static void reader_left(struct http_request *req) {
    struct publisher *t = req->user;

    if (t->reader == req) t->reader = NULL;
}

static void on_request(struct http_request *req, void *arg) {
    struct publisher *t = arg;
    char query[64];
    unsigned long long from;

    if (t->code != 200) {
        http_reply(req, t->code, NULL, STR(""));
        return;
    }
    assert_true(str_eq(req->path, STR(REQUEST_EVENTS_PATH)));
    assert_null(t->reader);
    assert_true(str_starts(req->query, STR("origin=0000000000000007&")));
    snprintf(query, sizeof(query), "%.*s", (int)req->query.len - 24, req->query.ptr + 24);
    t->n_connections++;
    t->reader = req;
    req->user = t;
    req->on_abort = reader_left;
    http_stream_begin(req, 200, "application/octet-stream");
    if (strcmp(query, "from=oldest") == 0) {
        t->n_from_oldest++;
        from = t->oldest;
        publish_hello(t, false);
    } else {
        assert_int_equal(sscanf(query, "from=%llu&generation=", &from), 1);
        assert_non_null(strstr(query, "&generation=g"));
        publish_hello(t, from < t->oldest || from > t->next);
        if (from < t->oldest || from > t->next) from = t->oldest;
    }
    for (; from < t->next; from++)
        http_stream_write(req, buf_str(&t->frames[from]));
}

static void cut(struct publisher *t) {
    struct http_request *req = t->reader;

    t->reader = NULL;
    if (req) http_stream_break(req);
}

static void publish(struct publisher *t, struct request_event e) {
    struct buf *frame = &t->frames[t->next];

    assert_true(t->next < LOG_MAX - 1);
    if (!e.t_us) e.t_us = loop_now_us(t->loop);
    buf_fini(frame); /* of an earlier life */
    buf_init(frame, 0);
    request_event_put(frame, t->next, &e);
    t->next++;
    if (t->reader) http_stream_write(t->reader, buf_str(frame));
}

static uint64_t scheme(void) {
    return prompt_hash_scheme(1, BLOCK_BYTES);
}

static void publish_accepted_at(struct publisher *t, uint64_t t_us, uint64_t request,
                                uint64_t origin, uint64_t prompt, uint32_t n_blocks) {
    uint64_t chain[CHAIN_MAX];

    for (uint32_t i = 0; i < n_blocks; i++)
        chain[i] = rng_at(prompt, i) & PROMPT_HASH_MASK;
    publish(t, (struct request_event){.kind = REQUEST_ACCEPTED,
                                      .t_us = t_us,
                                      .request = request,
                                      .chain = {.origin = origin,
                                                .scheme = scheme(),
                                                .prompt_bytes = (uint64_t)n_blocks * BLOCK_BYTES,
                                                .n_blocks = n_blocks,
                                                .blocks = chain}});
}

static void publish_accepted(struct publisher *t, uint64_t request, uint64_t origin,
                             uint64_t prompt, uint32_t n_blocks) {
    publish_accepted_at(t, 0, request, origin, prompt, n_blocks);
}

static void publish_first(struct publisher *t, uint64_t request, int64_t prompt_tokens) {
    publish(t, (struct request_event){.kind = REQUEST_FIRST,
                                      .request = request,
                                      .prompt_tokens = prompt_tokens,
                                      .cached_tokens = 0});
}

static void publish_ended(struct publisher *t, uint64_t request, bool is_aborted) {
    publish(t, (struct request_event){.kind = REQUEST_ENDED,
                                      .request = request,
                                      .output_tokens = 10,
                                      .is_aborted = is_aborted});
}

static void open_worker(struct publisher *t) {
    static const struct http_server_events events = {.on_request = on_request};

    t->server = http_server_create(t->loop, NULL, &events, t);
    assert_int_equal(http_server_listen(t->server, "127.0.0.1", t->port, false, NULL), ST_OK);
    t->port = http_server_port(t->server);
}

static void close_worker(struct publisher *t) {
    t->reader = NULL;
    http_server_destroy(t->server);
    t->server = NULL;
}

/* --- the router ------------------------------------------------------------------------------- */

static struct registry *create_registry(uint32_t max_in_flight) {
    struct registry_config config = {.max_worker_requests = max_in_flight,
                                     .hold = {.queue_size = 8, .max_wait_us = 60000000}};
    struct registry *r;

    routing_options_default(&config.routing);
    config.routing.policy = policy_find(STR("prefix"));
    config.routing.max_workers = 8;
    config.routing.max_index_bytes = 1 << 20;
    config.routing.prefix_block_bytes = BLOCK_BYTES;
    assert_int_equal(registry_create(&r, &config, NULL), ST_OK);
    return r;
}

static void describe(struct registry *r, const struct publisher *t, bool has_events) {
    struct wire_server_info info = {.wire = 1,
                                    .model = "m",
                                    .block_size = 16,
                                    .n_blocks = 4000,
                                    .publishes_events = has_events,
                                    .prefill_tokens_per_s = 10000};

    snprintf(info.generation, sizeof(info.generation), "%s", t->generation);
    assert_int_equal(registry_describe(r, t->id, &info, false, NULL), ST_OK);
    registry_set_reason(r, t->id, WORKER_STARTING, false);
}

static void add(struct registry *r, struct publisher *t) {
    char url[64];

    snprintf(url, sizeof(url), "http://127.0.0.1:%u", t->port);
    assert_int_equal(registry_add(r, url, &t->id, NULL), ST_OK);
    describe(r, t, true);
}

static void follow_start(struct fixture *fx, uint64_t silence_us) {
    struct follow_config config = {.origin = OURS,
                                   .scheme = scheme(),
                                   .block_bytes = BLOCK_BYTES,
                                   .max_workers = 8,
                                   .silence_ms = fx->silence_ms,
                                   .silence_us = silence_us};

    fx->follow = follow_create(fx->loop, fx->client, fx->registry, fx->metrics, NULL, &config);
}

static void start_with(struct fixture *fx, uint32_t n, uint32_t max_in_flight,
                       uint64_t silence_us) {
    memset(fx, 0, sizeof(*fx));
    fx->n = n;
    fx->silence_ms = 60000;
    assert_int_equal(loop_create(&fx->loop, NULL), ST_OK);
    assert_int_equal(http_client_create(&fx->client, fx->loop, NULL), ST_OK);
    fx->registry = create_registry(max_in_flight);
    fx->metrics = router_metrics_create();
    fx->publishers = mem_calloc(n, sizeof(*fx->publishers));
    for (uint32_t i = 0; i < n; i++) {
        fx->publishers[i] = (struct publisher){
            .loop = fx->loop, .generation = "g1", .oldest = 1, .next = 1, .code = 200};
        open_worker(&fx->publishers[i]);
        add(fx->registry, &fx->publishers[i]);
    }
    follow_start(fx, silence_us);
}

static void start(struct fixture *fx, uint32_t n) {
    start_with(fx, n, 0, 60000000);
}

static struct registry_totals totals(struct fixture *fx) {
    struct registry_totals t;

    registry_totals(fx->registry, &t);
    return t;
}

static struct registry_view look(struct fixture *fx, uint32_t id) {
    struct registry_view view;

    assert_true(registry_get(fx->registry, id, &view));
    return view;
}

static void finish(struct fixture *fx) {
    follow_check(fx->follow);
    registry_check(fx->registry);
    follow_destroy(fx->follow);
    assert_int_equal(totals(fx).n_remote, 0);
    registry_check(fx->registry);
    http_client_destroy(fx->client);
    for (uint32_t i = 0; i < fx->n; i++) {
        struct publisher *t = &fx->publishers[i];

        t->reader = NULL;
        http_server_destroy(t->server);
        for (uint32_t k = 0; k < LOG_MAX; k++)
            buf_fini(&t->frames[k]);
    }
    mem_free(fx->publishers);
    registry_destroy(fx->registry);
    metrics_destroy(fx->metrics);
    loop_destroy(fx->loop);
}

static double events(struct fixture *fx, const char *kind) {
    return metric_value(METRICS_GET(fx->metrics, ROUTER_shared_events_total, kind));
}

static double gaps(struct fixture *fx) {
    return metric_value(metrics_at(fx->metrics, ROUTER_shared_gaps_total));
}

/* Where a prompt would go, and how many of its tokens the index has there. */
static uint32_t home_of(struct fixture *fx, uint64_t prompt, uint32_t n_blocks, double *cached) {
    struct registry_candidate all[8];
    uint64_t chain[CHAIN_MAX];
    struct route_request rq = {.chain = chain,
                               .n_blocks = n_blocks,
                               .prompt_bytes = (uint64_t)n_blocks * BLOCK_BYTES,
                               .now_us = loop_now_us(fx->loop)};
    uint32_t n, choice;

    for (uint32_t i = 0; i < n_blocks; i++)
        chain[i] = rng_at(prompt, i) & PROMPT_HASH_MASK;
    assert_int_equal(registry_explain(fx->registry, STR("m"), &rq, all, 8, &n, &choice, NULL),
                     ST_OK);
    for (uint32_t i = 0; i < n; i++) {
        if (all[i].worker == choice) *cached = all[i].term.matched_tokens;
    }
    return choice;
}

/* --- scenarios -------------------------------------------------------------------------------- */

static void requests_of_others_count_as_load_and_then_as_content(void **state) {
    struct fixture fx;
    double cached = 0;
    (void)state;

    start(&fx, 2);
    TURN_UNTIL(fx.loop, totals(&fx).n_followed == 2);
    publish_accepted(&fx.publishers[1], 1, THEIRS, 5, 20);
    TURN_UNTIL(fx.loop, totals(&fx).n_remote == 1);
    assert_int_equal(look(&fx, 1).in_flight, 1);
    assert_int_equal(look(&fx, 1).n_pending, 1);
    assert_int_equal(totals(&fx).n_open, 0); /* none of ours */
    registry_check(fx.registry);
    publish_first(&fx.publishers[1], 1, 20 * 64);
    TURN_UNTIL(fx.loop, look(&fx, 1).n_pending == 0);
    publish_ended(&fx.publishers[1], 1, false);
    TURN_UNTIL(fx.loop, totals(&fx).n_remote == 0);
    assert_int_equal(home_of(&fx, 5, 20, &cached), 1);
    assert_true(cached > 1000);
    assert_int_equal(metric_count(metrics_at(fx.metrics, ROUTER_shared_lag_seconds)), 3);
    finish(&fx);
}

static void our_own_are_passed_over(void **state) {
    struct fixture fx;
    (void)state;

    start(&fx, 1);
    publish_accepted(&fx.publishers[0], 1, OURS, 5, 20);
    publish_first(&fx.publishers[0], 1, 100);
    publish_accepted(&fx.publishers[0], 2, THEIRS, 6, 20);
    publish_ended(&fx.publishers[0], 1, false);
    TURN_UNTIL(fx.loop, events(&fx, "ended") == 1);
    assert_int_equal(totals(&fx).n_remote, 1);
    assert_int_equal(look(&fx, 0).n_sent, 0);
    finish(&fx);
}

/* A router that starts has in the end what one has that was always there. */
static void a_replay_gives_the_books_back(void **state) {
    struct fixture fx;
    struct publisher *t;
    struct registry_totals then;
    (void)state;

    start(&fx, 1);
    t = &fx.publishers[0];
    for (uint64_t i = 1; i <= 500; i++) {
        publish_accepted(t, i, THEIRS, i % 50, 1 + i % CHAIN_MAX);
        publish_first(t, i, (int64_t)(1 + i % CHAIN_MAX) * 64);
        if (i <= 490) publish_ended(t, i, i % 9 == 0);
    }
    TURN_UNTIL(fx.loop, events(&fx, "accepted") == 500 && totals(&fx).n_remote == 10);
    then = totals(&fx);
    follow_destroy(fx.follow);
    registry_destroy(fx.registry);
    cut(t);
    fx.registry = create_registry(0);
    add(fx.registry, t);
    follow_start(&fx, 60000000);
    TURN_UNTIL(fx.loop, events(&fx, "accepted") == 1000 && totals(&fx).n_remote == 10);
    assert_int_equal(totals(&fx).n_entries, then.n_entries);
    assert_int_equal(totals(&fx).n_blocks, then.n_blocks);
    assert_int_equal(t->n_from_oldest, 2);
    finish(&fx);
}

static void a_lost_stream_goes_on_where_it_ended(void **state) {
    struct fixture fx;
    struct publisher *t;
    (void)state;

    start(&fx, 1);
    t = &fx.publishers[0];
    publish_accepted(t, 1, THEIRS, 1, 10);
    TURN_UNTIL(fx.loop, totals(&fx).n_remote == 1);
    cut(t);
    publish_accepted(t, 2, THEIRS, 2, 10);
    publish_ended(t, 1, false);
    TURN_UNTIL(fx.loop, events(&fx, "ended") == 1);
    assert_int_equal(totals(&fx).n_remote, 1);
    assert_int_equal(events(&fx, "accepted"), 2);
    assert_int_equal(t->n_connections, 2);
    assert_int_equal(t->n_from_oldest, 1);
    assert_int_equal(gaps(&fx), 0);
    finish(&fx);
}

static void without_a_stream_open_requests_are_closed(void **state) {
    struct fixture fx;
    struct publisher *t;
    (void)state;

    start_with(&fx, 1, 0, 1000);
    t = &fx.publishers[0];
    publish_accepted(t, 1, THEIRS, 1, 10);
    TURN_UNTIL(fx.loop, totals(&fx).n_remote == 1);
    t->code = 404;
    cut(t);
    TURN_UNTIL(fx.loop, totals(&fx).n_remote == 0);
    assert_int_equal(totals(&fx).n_followed, 0);
    t->code = 200;
    publish_ended(t, 1, false); /* of one that is not known any more */
    publish_accepted(t, 2, THEIRS, 1, 10);
    TURN_UNTIL(fx.loop, totals(&fx).n_remote == 1);
    finish(&fx);
}

static void a_follower_too_far_behind_resumes_at_the_oldest(void **state) {
    struct fixture fx;
    struct publisher *t;
    double cached = 0;
    (void)state;

    start(&fx, 2);
    t = &fx.publishers[0];
    publish_accepted(t, 1, THEIRS, 1, 30);
    publish_first(t, 1, 30 * 64);
    publish_ended(t, 1, false);
    publish_accepted(t, 2, THEIRS, 2, 10);
    TURN_UNTIL(fx.loop, totals(&fx).n_remote == 1 && events(&fx, "ended") == 1);
    cut(t);
    publish_ended(t, 2, false);
    publish_accepted(t, 3, THEIRS, 3, 10);
    publish_accepted(t, 4, THEIRS, 4, 10);
    t->oldest = t->next - 1; /* all but the last are gone */
    TURN_UNTIL(fx.loop, gaps(&fx) == 1 && totals(&fx).n_remote == 1);
    assert_int_equal(events(&fx, "accepted"), 3); /* 1, 2 and 4 */
    assert_int_equal(home_of(&fx, 1, 30, &cached), 0);
    assert_true(cached > 1000); /* what was known of its cache is not worse for that */
    finish(&fx);
}

static void a_gap_on_the_way_is_reported_by_a_hello(void **state) {
    struct fixture fx;
    struct publisher *t;
    (void)state;

    start(&fx, 1);
    t = &fx.publishers[0];
    publish_accepted(t, 1, THEIRS, 1, 10);
    TURN_UNTIL(fx.loop, totals(&fx).n_remote == 1);
    t->next += 100;
    t->oldest = t->next;
    publish_hello(t, true);
    publish_accepted(t, 2, THEIRS, 2, 10);
    publish_accepted(t, 3, THEIRS, 3, 10);
    TURN_UNTIL(fx.loop, events(&fx, "accepted") == 3);
    assert_int_equal(totals(&fx).n_remote, 2);
    assert_int_equal(gaps(&fx), 1);
    assert_int_equal(t->n_connections, 1);
    finish(&fx);
}

static void a_restarted_worker_is_replayed_once_it_is_described(void **state) {
    struct fixture fx;
    struct publisher *t;
    (void)state;

    start(&fx, 1);
    t = &fx.publishers[0];
    publish_accepted(t, 1, THEIRS, 1, 10);
    TURN_UNTIL(fx.loop, totals(&fx).n_remote == 1);
    close_worker(t);
    t->generation = "g2";
    t->oldest = t->next = 1;
    publish_accepted(t, 1, THEIRS, 3, 10);
    publish_accepted(t, 2, THEIRS, 4, 10);
    open_worker(t);
    TURN_UNTIL(fx.loop, registry_take_suspicion(fx.registry, t->id));
    assert_int_equal(totals(&fx).n_remote, 0); /* they went with their worker */
    describe(fx.registry, t, true);
    TURN_UNTIL(fx.loop, totals(&fx).n_remote == 2);
    assert_int_equal(events(&fx, "accepted"), 3);
    finish(&fx);
}

/* Its probe may see that before its stream does. */
static void the_stream_of_a_former_start_is_dropped(void **state) {
    struct fixture fx;
    struct publisher *t;
    (void)state;

    start(&fx, 1);
    t = &fx.publishers[0];
    publish_accepted(t, 1, THEIRS, 1, 10);
    publish_accepted(t, 2, THEIRS, 1, 10);
    TURN_UNTIL(fx.loop, totals(&fx).n_remote == 2);
    t->generation = "g2";
    describe(fx.registry, t, true);
    t->oldest = 2;
    t->code = 404;
    TURN_UNTIL(fx.loop, totals(&fx).n_remote == 0);
    TURN_UNTIL(fx.loop, !t->reader);
    t->code = 200;
    TURN_UNTIL(fx.loop, totals(&fx).n_remote == 1);
    assert_int_equal(t->n_from_oldest, 2);
    finish(&fx);
}

static void workers_that_leave_take_theirs_along(void **state) {
    struct fixture fx;
    (void)state;

    start(&fx, 2);
    publish_accepted(&fx.publishers[0], 1, THEIRS, 1, 10);
    publish_accepted(&fx.publishers[1], 1, THEIRS, 2, 10);
    TURN_UNTIL(fx.loop, totals(&fx).n_remote == 2);
    assert_int_equal(registry_remove(fx.registry, 0), ST_OK);
    TURN_UNTIL(fx.loop, totals(&fx).n_remote == 1);
    TURN_UNTIL(fx.loop, !fx.publishers[0].reader); /* it is not listened to any more */
    add(fx.registry, &fx.publishers[0]); /* as it was: another incarnation, from the oldest */
    assert_int_equal(fx.publishers[0].id, 0);
    TURN_UNTIL(fx.loop, totals(&fx).n_remote == 2);
    finish(&fx);
}

static void a_worker_without_request_events_is_not_followed(void **state) {
    struct fixture fx;
    (void)state;

    start(&fx, 2);
    TURN_UNTIL(fx.loop, totals(&fx).n_followed == 2);
    describe(fx.registry, &fx.publishers[0], false); /* an older one took its place */
    TURN_UNTIL(fx.loop, !fx.publishers[0].reader);
    assert_int_equal(totals(&fx).n_followed, 1);
    finish(&fx);
}

/* The worker's machine has been up for longer than ours: an old event is from before our clock
 * began. It fills the index all the same, and no prefill counts as having taken no time. */
static void events_before_our_clock_have_no_duration(void **state) {
    struct fixture fx;
    struct publisher *t;
    double before_s, cached = 0;
    (void)state;

    start(&fx, 1);
    before_s = routing_load(fx.registry->models[0].routing)->mean_decode_s;
    t = &fx.publishers[0];
    t->ahead_us = 1000000;
    for (uint64_t i = 1; i <= 200; i++) {
        struct request_event e = {
            .kind = REQUEST_FIRST, .request = i, .prompt_tokens = 640, .cached_tokens = -1};

        publish_accepted_at(t, 2 * i, i, THEIRS, i % 4, 10);
        e.t_us = 2 * i;
        publish(t, e);
        e.kind = REQUEST_ENDED;
        e.output_tokens = 100;
        publish(t, e);
    }
    TURN_UNTIL(fx.loop, events(&fx, "ended") == 200);
    assert_float_equal(routing_load(fx.registry->models[0].routing)->mean_decode_s, before_s, 1e-9);
    home_of(&fx, 1, 10, &cached);
    assert_true(cached > 500);
    finish(&fx);
}

/* What a worker had cached before the first event received is no evidence of its size. */
static void a_replay_teaches_no_capacity(void **state) {
    struct routing_learned learned;
    struct fixture fx;
    struct publisher *t;
    (void)state;

    start(&fx, 1);
    t = &fx.publishers[0];
    for (uint64_t i = 1; i <= 200; i++) {
        publish_accepted(t, i, THEIRS, i, 10);
        publish(t, (struct request_event){.kind = REQUEST_FIRST,
                                          .request = i,
                                          .prompt_tokens = 640,
                                          .cached_tokens = 600});
        publish_ended(t, i, false);
    }
    TURN_UNTIL(fx.loop, events(&fx, "ended") == 200);
    routing_get_learned(fx.registry->models[0].routing, 0, &learned);
    assert_float_equal(learned.capacity_factor, 1, 1e-9);
    finish(&fx);
}

static void foreign_hashes_count_as_load_alone(void **state) {
    struct fixture fx;
    struct publisher *t;
    uint64_t blocks[2] = {1 << 20, 1 << 21};
    (void)state;

    start(&fx, 1);
    t = &fx.publishers[0];
    publish(t, (struct request_event){.kind = REQUEST_ACCEPTED,
                                      .request = 1,
                                      .chain = {.origin = THEIRS,
                                                .scheme = scheme() + 2,
                                                .prompt_bytes = 512,
                                                .n_blocks = 2,
                                                .blocks = blocks}});
    publish(t,
            (struct request_event){.kind = REQUEST_ACCEPTED, .request = 2}); /* a direct client */
    TURN_UNTIL(fx.loop, totals(&fx).n_remote == 2);
    assert_int_equal(totals(&fx).n_entries, 0);
    assert_int_equal(look(&fx, 0).in_flight, 2);
    finish(&fx);
}

static void load_reported_before_the_follower_came_is_old(void **state) {
    struct fixture fx;
    struct publisher *t;
    (void)state;

    start(&fx, 1);
    t = &fx.publishers[0];
    publish(t,
            (struct request_event){.kind = REQUEST_LOAD, .load = {.running = 3, .draining = true}});
    publish_accepted(t, 1, THEIRS, 1, 30);
    TURN_UNTIL(fx.loop, totals(&fx).n_remote == 1);
    assert_int_equal(look(&fx, 0).reasons, 0);
    assert_false(look(&fx, 0).has_load);
    finish(&fx);
}

static void load_and_flushes_are_applied(void **state) {
    struct fixture fx;
    struct publisher *t;
    double cached = 0;
    (void)state;

    start(&fx, 1);
    t = &fx.publishers[0];
    publish_accepted(t, 1, THEIRS, 1, 30);
    publish_first(t, 1, 30 * 64);
    publish_ended(t, 1, false);
    TURN_UNTIL(fx.loop, events(&fx, "ended") == 1);
    (void)home_of(&fx, 1, 30, &cached);
    assert_true(cached > 1000);
    publish(t, (struct request_event){.kind = REQUEST_CLEARED});
    TURN_UNTIL(fx.loop, events(&fx, "cleared") == 1);
    (void)home_of(&fx, 1, 30, &cached);
    assert_true(cached == 0);
    publish(t,
            (struct request_event){.kind = REQUEST_LOAD, .load = {.running = 3, .draining = true}});
    TURN_UNTIL(fx.loop, look(&fx, 0).reasons == WORKER_DRAINING);
    assert_int_equal(look(&fx, 0).load.running, 3);
    finish(&fx);
}

struct waiting {
    struct mailbox *box;
    int n_mails;
    bool is_granted;
};

static void on_mail(struct mail *mail, void *arg) {
    struct waiting *w = arg;

    w->n_mails++;
    w->is_granted = CONTAINER_OF(mail, struct registry_waiter, mail)->is_granted;
}

static void limits_count_remote_requests_and_their_ends_free_slots(void **state) {
    struct fixture fx;
    struct waiting waiting = {0};
    uint64_t chain[1] = {1 << 20};
    struct route_request rq = {.chain = chain, .n_blocks = 1, .prompt_bytes = 100};
    struct route_ticket ticket = {0};
    struct registry_target target;
    struct registry_waiter waiter = {0};
    struct route_end end = {.output_tokens = 1, .feedback = {-1, -1}};
    (void)state;

    start_with(&fx, 1, 2, 60000000);
    assert_int_equal(mailbox_open(&waiting.box, fx.loop, on_mail, &waiting, NULL), ST_OK);
    waiter.box = waiting.box;
    publish_accepted(&fx.publishers[0], 1, THEIRS, 1, 10);
    publish_accepted(&fx.publishers[0], 2, THEIRS, 2, 10);
    TURN_UNTIL(fx.loop, totals(&fx).n_remote == 2);
    rq.now_us = loop_now_us(fx.loop);
    assert_int_equal(registry_enter(fx.registry, STR("m"), &rq, &ticket, &target, &waiter, NULL),
                     ST_AGAIN);
    publish_ended(&fx.publishers[0], 2, true);
    TURN_UNTIL(fx.loop, waiting.n_mails == 1);
    assert_true(waiting.is_granted);
    assert_int_equal(look(&fx, 0).in_flight, 2);
    assert_int_equal(totals(&fx).n_open, 1);
    registry_check(fx.registry);
    registry_ended(fx.registry, &target, &ticket, &end, OUTCOME_OK);
    mailbox_close(waiting.box);
    finish(&fx);
}

static void a_stalled_stream_is_restarted(void **state) {
    struct fixture fx;
    struct publisher *t;
    (void)state;

    start(&fx, 1);
    t = &fx.publishers[0];
    publish_accepted(t, 1, THEIRS, 1, 10);
    TURN_UNTIL(fx.loop, totals(&fx).n_remote == 1);
    follow_destroy(fx.follow);
    assert_int_equal(totals(&fx).n_remote, 0);
    TURN_UNTIL(fx.loop, !t->reader);
    fx.silence_ms = 20;
    follow_start(&fx, 60000000);
    TURN_UNTIL(fx.loop, t->n_connections >= 3);
    assert_int_equal(t->n_from_oldest, 2); /* and then from where it was */
    assert_int_equal(totals(&fx).n_remote, 1);
    finish(&fx);
}

static void nonsense_ends_the_stream_and_nothing_else(void **state) {
    struct fixture fx;
    struct publisher *t;
    (void)state;

    start(&fx, 1);
    t = &fx.publishers[0];
    TURN_UNTIL(fx.loop, totals(&fx).n_followed == 1);
    http_stream_write(t->reader, STR("HTTP/1.1 200 OK\r\n\r\nthis is not a frame, whatever it is"));
    TURN_UNTIL(fx.loop, !t->reader);
    assert_int_equal(totals(&fx).n_followed, 0);
    publish_accepted(t, 1, THEIRS, 1, 10);
    TURN_UNTIL(fx.loop, totals(&fx).n_remote == 1); /* a new one works */
    finish(&fx);
}

/* One that opens more than the limit. */
static void a_worker_may_not_fill_our_memory(void **state) {
    struct fixture fx;
    (void)state;

    start(&fx, 1);
    for (uint64_t i = 1; i <= 5000; i++)
        publish_accepted(&fx.publishers[0], i, THEIRS, i, 1);
    TURN_UNTIL(fx.loop, events(&fx, "accepted") == 5000);
    assert_int_equal(totals(&fx).n_remote, 4096);
    finish(&fx);
}

/* Two routers, A with all requests and B that follows them: after any traffic and any cuts that are
 * mended in time, B's books are A's. */
static void after_any_cuts_the_books_are_those_of_the_sender(void **state) {
    struct fixture fx;
    struct registry *a = create_registry(0);
    static struct own {
        uint64_t chain[CHAIN_MAX];
        struct route_ticket ticket;
        struct registry_target target;
        uint64_t number;
        bool is_open;
    } q[60];
    struct registry_totals ta, tb;
    uint64_t n_requests = 0;
    struct rng rng;
    (void)state;

    memset(q, 0, sizeof(q));
    rng_seed(&rng, support_seed());
    start(&fx, 3);
    for (uint32_t i = 0; i < fx.n; i++)
        add(a, &fx.publishers[i]);
    for (uint32_t step = 0; step < 6000; step++) {
        struct own *o = &q[rng_below(&rng, ARRAY_LEN(q))];
        struct publisher *t = &fx.publishers[o->is_open ? o->target.worker : 0];

        if (rng_below(&rng, 100) == 0) cut(&fx.publishers[rng_below(&rng, fx.n)]);
        if (rng_below(&rng, 20) == 0) loop_turn(fx.loop, 0);
        if (!o->is_open) {
            uint64_t prompt = rng_below(&rng, 30);
            struct route_request rq = {.chain = o->chain,
                                       .n_blocks = 1 + (uint32_t)rng_below(&rng, CHAIN_MAX),
                                       .now_us = loop_now_us(fx.loop)};

            rq.prompt_bytes = (uint64_t)rq.n_blocks * BLOCK_BYTES;
            for (uint32_t i = 0; i < rq.n_blocks; i++)
                o->chain[i] = rng_at(prompt, i) & PROMPT_HASH_MASK;
            assert_int_equal(registry_route(a, STR("m"), &rq, &o->ticket, &o->target, NULL), ST_OK);
            o->is_open = true;
            o->number = ++n_requests;
            publish_accepted(&fx.publishers[o->target.worker], o->number, THEIRS, prompt,
                             rq.n_blocks);
        } else if (rng_below(&rng, 2)) {
            struct route_feedback f = {(int64_t)o->ticket.n_blocks * 64, 0};

            registry_first_token(a, &o->target, &o->ticket, &f, loop_now_us(fx.loop));
            publish_first(t, o->number, f.prompt_tokens);
        } else {
            struct route_end end = {.is_aborted = rng_below(&rng, 5) == 0,
                                    .output_tokens = 10,
                                    .feedback = {-1, -1},
                                    .now_us = loop_now_us(fx.loop)};

            registry_ended(a, &o->target, &o->ticket, &end, OUTCOME_OK);
            o->is_open = false;
            publish_ended(t, o->number, end.is_aborted);
        }
        if (step % 500 == 0) {
            follow_check(fx.follow);
            registry_check(fx.registry);
        }
    }
    TURN_UNTIL(fx.loop,
               events(&fx, "accepted") == (double)n_requests && totals(&fx).n_followed == fx.n);
    for (uint32_t i = 0; i < fx.n; i++)
        publish(&fx.publishers[i], (struct request_event){.kind = REQUEST_LOAD});
    TURN_UNTIL(fx.loop, events(&fx, "load") == fx.n);
    registry_totals(a, &ta);
    tb = totals(&fx);
    assert_int_equal(tb.n_remote, ta.n_open);
    assert_int_equal(tb.n_entries, ta.n_entries);
    assert_int_equal(tb.n_blocks, ta.n_blocks);
    for (uint32_t id = 0; id < fx.n; id++) {
        struct registry_view va;

        assert_true(registry_get(a, id, &va));
        assert_int_equal(look(&fx, id).in_flight, va.in_flight);
        assert_int_equal(look(&fx, id).n_pending, va.n_pending);
    }
    for (uint32_t i = 0; i < ARRAY_LEN(q); i++) {
        struct route_end end = {.is_aborted = true, .output_tokens = -1, .feedback = {-1, -1}};

        if (q[i].is_open) registry_ended(a, &q[i].target, &q[i].ticket, &end, OUTCOME_OK);
    }
    registry_destroy(a);
    finish(&fx);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(requests_of_others_count_as_load_and_then_as_content),
        cmocka_unit_test(our_own_are_passed_over),
        cmocka_unit_test(a_replay_gives_the_books_back),
        cmocka_unit_test(a_lost_stream_goes_on_where_it_ended),
        cmocka_unit_test(without_a_stream_open_requests_are_closed),
        cmocka_unit_test(a_follower_too_far_behind_resumes_at_the_oldest),
        cmocka_unit_test(a_gap_on_the_way_is_reported_by_a_hello),
        cmocka_unit_test(a_restarted_worker_is_replayed_once_it_is_described),
        cmocka_unit_test(the_stream_of_a_former_start_is_dropped),
        cmocka_unit_test(workers_that_leave_take_theirs_along),
        cmocka_unit_test(a_worker_without_request_events_is_not_followed),
        cmocka_unit_test(events_before_our_clock_have_no_duration),
        cmocka_unit_test(a_replay_teaches_no_capacity),
        cmocka_unit_test(foreign_hashes_count_as_load_alone),
        cmocka_unit_test(load_reported_before_the_follower_came_is_old),
        cmocka_unit_test(load_and_flushes_are_applied),
        cmocka_unit_test(limits_count_remote_requests_and_their_ends_free_slots),
        cmocka_unit_test(a_stalled_stream_is_restarted),
        cmocka_unit_test(nonsense_ends_the_stream_and_nothing_else),
        cmocka_unit_test(a_worker_may_not_fill_our_memory),
        cmocka_unit_test(after_any_cuts_the_books_are_those_of_the_sender),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
