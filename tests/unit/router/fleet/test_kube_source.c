/* tests/unit/router/fleet/test_kube_source.c - the source of pods over a watch that is ours to
 * play. */
#include <stdio.h>

#include "common/base/clock.h"
#include "common/base/mem.h"
#include "common/net/loop.h"
#include "router/fleet/discovery.h"
#include "router/fleet/discovery/kube_client.h"
#include "router/fleet/discovery/kube_costs.h"
#include "router/fleet/discovery/kube_store.h"
#include "router/fleet/discovery/kube_watch.h"
#include "tests/support/client.h"
#include "tests/support/cm.h"
#include "tests/support/pods.h"

/* --- what is played: a client that answers on command, and watches that do nothing ----------*/

#define MAX_WATCHES 8

struct kube_watch {
    struct kube_watch_config config;
    char path[256], selector[256], field[256];
    bool is_new; /* it has delivered no list yet */
};

struct kube_client {
    int unused;
};

static struct {
    struct kube_client client;
    struct kube_watch *watches[MAX_WATCHES]; /* in the order of creation; destroyed ones are NULL */
    int n_watches;
    double stale_s; /* of watches that are synced */
    bool are_new;   /* watches that are created from now on */
    uint32_t n_calls, n_open;
    char path[512], body[512];
    http_client_fn *fn;
    void *arg;
} played;

enum status kube_client_create(struct kube_client **out, struct loop *loop, struct log *log,
                               const struct kube_config *config, struct error *err) {
    (void)loop, (void)log, (void)err;
    if (config->context && strcmp(config->context, "missing") == 0)
        return error_set(err, ST_INVALID, "no such context");
    *out = &played.client;
    return ST_OK;
}

void kube_client_destroy(struct kube_client *c) {
    (void)c;
}

const char *kube_client_namespace(const struct kube_client *c) {
    (void)c;
    return "llm";
}

enum status kube_client_call(struct kube_client *c, const char *method, const char *path,
                             const char *content_type, struct str body, http_client_fn *fn,
                             void *arg, struct http_call **call, struct error *err) {
    (void)c, (void)err;
    *call = (struct http_call *)&played; /* never looked into: it is answered before the end */
    assert_string_equal(method, "PATCH");
    assert_string_equal(content_type, "application/merge-patch+json");
    snprintf(played.path, sizeof(played.path), "%s", path);
    snprintf(played.body, sizeof(played.body), "%.*s", STR_ARG(body));
    played.fn = fn;
    played.arg = arg;
    played.n_calls++;
    played.n_open++;
    return ST_OK;
}

enum status kube_watch_create(struct kube_watch **out, struct kube_client *client,
                              const struct kube_watch_config *config, struct error *err) {
    struct kube_watch *w = mem_zalloc(sizeof(*w));

    (void)client, (void)err;
    assert_true(played.n_watches < MAX_WATCHES);
    w->config = *config;
    w->is_new = played.are_new;
    snprintf(w->path, sizeof(w->path), "%s", config->path);
    snprintf(w->selector, sizeof(w->selector), "%s", config->selector);
    snprintf(w->field, sizeof(w->field), "%s", config->field_selector);
    played.watches[played.n_watches++] = w;
    *out = w;
    return ST_OK;
}

void kube_watch_destroy(struct kube_watch *w) {
    for (int i = 0; w && i < played.n_watches; i++)
        if (played.watches[i] == w) played.watches[i] = NULL;
    mem_free(w);
}

double kube_watch_stale_s(const struct kube_watch *w) {
    return w->is_new ? 0 : played.stale_s;
}

bool kube_watch_is_synced(const struct kube_watch *w) {
    return !w->is_new;
}

static void answer(int code) {
    struct http_client_response response = {.status = ST_OK, .code = code};

    played.n_open--;
    played.fn(&response, played.arg);
}

/* --- the source, and what it reports ---------------------------------------------------------- */

struct fixture {
    struct loop *loop;
    struct discovery *source;
    int n_updates;
    char reported[512];
    double value;
};

static void on_set(const struct discovery_set *set, void *arg) {
    struct fixture *fx = arg;
    size_t n = 0;

    fx->n_updates++;
    fx->reported[0] = '\0';
    for (uint32_t i = 0; i < set->n; i++)
        n += (size_t)snprintf(fx->reported + n, sizeof(fx->reported) - n, "%s%s", i ? " " : "",
                              set->workers[i].url.authority);
}

static double value_of(const char *url, void *arg) {
    struct fixture *fx = arg;

    (void)url;
    return fx->value;
}

static void start(struct fixture *fx, struct discovery_kube_config config) {
    struct kube_config server = {0};
    struct error err = {0};

    memset(fx, 0, sizeof(*fx));
    memset(&played, 0, sizeof(played));
    config.server = &server;
    config.role_label = "incipit.dev/role";
    config.max_workers = 100;
    assert_int_equal(loop_create(&fx->loop, NULL), ST_OK);
    if (discovery_kube_create(&fx->source, &config, fx->loop, NULL, on_set, fx, &err) != ST_OK)
        fail_msg("%s", err.message);
}

static void finish(struct fixture *fx) {
    discovery_destroy(fx->source);
    for (int i = 0; i < played.n_watches; i++)
        assert_null(played.watches[i]);
    loop_destroy(fx->loop);
}

static void turn(struct fixture *fx) {
    for (int i = 0; i < 3; i++)
        loop_turn(fx->loop, 2000);
}

static const struct kube_watch_events *events_of(int i) {
    assert_true(i < played.n_watches && played.watches[i]);
    return played.watches[i]->config.events;
}

static void *arg_of(int i) {
    return played.watches[i]->config.arg;
}

static void pod(int watch, const char *name, const char *ip, bool is_gone) {
    struct buf json;

    buf_init(&json, 0);
    pod_text_write(&json, &(struct pod_text){.name = name, .ip = ip, .created = name});
    (is_gone ? events_of(watch)->gone : events_of(watch)->object)(buf_str(&json), arg_of(watch));
    buf_fini(&json);
}

static void change(int watch) {
    if (events_of(watch)->change) events_of(watch)->change(arg_of(watch));
}

static struct discovery_stats stats_of(struct fixture *fx) {
    struct discovery_stats stats;

    discovery_stats(fx->source, &stats);
    return stats;
}

static void nothing_is_reported_before_the_first_complete_list(void **state) {
    struct fixture fx;

    (void)state;
    start(&fx, (struct discovery_kube_config){.selector = "app=engine"});
    assert_int_equal(played.n_watches, 1);
    assert_string_equal(played.watches[0]->path, "/api/v1/namespaces/llm/pods");
    assert_string_equal(played.watches[0]->selector, "app=engine");
    events_of(0)->begin(arg_of(0));
    pod(0, "a", "10.0.0.1", false);
    change(0);
    turn(&fx);
    assert_int_equal(fx.n_updates, 0);
    assert_false(stats_of(&fx).is_synced);
    pod(0, "b", "10.0.0.2", false);
    events_of(0)->end(arg_of(0));
    change(0);
    turn(&fx);
    assert_int_equal(fx.n_updates, 1);
    assert_string_equal(fx.reported, "10.0.0.1:8000 10.0.0.2:8000");
    assert_true(stats_of(&fx).is_synced);
    assert_int_equal(stats_of(&fx).n_used, 2);
    played.stale_s = 7;
    assert_true(stats_of(&fx).stale_s == 7);
    finish(&fx);
}

static void the_events_of_a_turn_are_one_set_in_that_turn(void **state) {
    struct fixture fx;

    (void)state;
    start(&fx, (struct discovery_kube_config){.selector = "app=engine"});
    events_of(0)->begin(arg_of(0));
    events_of(0)->end(arg_of(0));
    turn(&fx);
    assert_string_equal(fx.reported, "");
    assert_int_equal(fx.n_updates, 1);
    pod(0, "a", "10.0.0.1", false);
    change(0);
    pod(0, "b", "10.0.0.2", false);
    pod(0, "c", "10.0.0.3", false);
    change(0);
    pod(0, "a", "10.0.0.1", true);
    change(0);
    loop_turn(fx.loop, 0);
    assert_int_equal(fx.n_updates, 2);
    assert_string_equal(fx.reported, "10.0.0.2:8000 10.0.0.3:8000");
    events_of(0)->object(STR("{\"kind\":\"Pod\"}"), arg_of(0)); /* it changes nothing */
    change(0);
    turn(&fx);
    assert_string_equal(fx.reported, "10.0.0.2:8000 10.0.0.3:8000");
    assert_int_equal(stats_of(&fx).n_refused, 1);
    finish(&fx);
}

static void slices_go_by_their_older_name_where_the_newer_is_unknown(void **state) {
    struct fixture fx;

    (void)state;
    start(&fx, (struct discovery_kube_config){
                   .resource = KUBE_ENDPOINTSLICES, .service = "w", .is_everywhere = true});
    assert_string_equal(played.watches[0]->path, "/apis/discovery.k8s.io/v1/endpointslices");
    assert_string_equal(played.watches[0]->selector, "kubernetes.io/service-name=w");
    assert_false(events_of(0)->missing(arg_of(0)));
    turn(&fx);
    assert_null(played.watches[0]);
    assert_string_equal(played.watches[1]->path, "/apis/discovery.k8s.io/v1beta1/endpointslices");
    assert_false(events_of(1)->missing(arg_of(1)));
    turn(&fx);
    assert_int_equal(played.n_watches, 2); /* neither: not at once again */
    finish(&fx);
}

static void a_pool_goes_by_its_older_group_where_the_newer_is_unknown_or_forbidden(void **state) {
    struct fixture fx;

    (void)state;
    for (int is_forbidden = 0; is_forbidden < 2; is_forbidden++) {
        start(&fx, (struct discovery_kube_config){.pool = "p"});
        assert_string_equal(played.watches[0]->config.group, "inference.networking.k8s.io");
        if (is_forbidden) {
            assert_false(events_of(0)->forbidden(arg_of(0)));
        } else {
            assert_false(events_of(0)->missing(arg_of(0)));
        }
        turn(&fx);
        assert_int_equal(played.n_watches, 2);
        assert_string_equal(
            played.watches[1]->path,
            "/apis/inference.networking.x-k8s.io/v1alpha2/namespaces/llm/inferencepools");
        assert_string_equal(played.watches[1]->config.older_group, "inference.networking.x-k8s.io");
        finish(&fx);
    }
}

/* A server that begins has no definitions of its own for a while. */
static void a_pool_unknown_by_both_names_is_requested_again_soon(void **state) {
    struct fixture fx;

    (void)state;
    start(&fx, (struct discovery_kube_config){.pool = "p"});
    for (int i = 0; i < 2; i++) {
        assert_false(events_of(i)->missing(arg_of(i)));
        turn(&fx);
    }
    assert_int_equal(played.n_watches, 2);
    TURN_UNTIL(fx.loop, played.n_watches == 3);
    assert_string_equal(played.watches[2]->path,
                        "/apis/inference.networking.k8s.io/v1/namespaces/llm/inferencepools");
    finish(&fx);
}

/* Each watch knows only since when it asks itself. */
static void a_stale_source_stays_stale_when_the_watch_restarts(void **state) {
    struct fixture fx;

    (void)state;
    start(&fx, (struct discovery_kube_config){.resource = KUBE_ENDPOINTSLICES, .service = "w"});
    played.stale_s = 100;
    assert_true(stats_of(&fx).stale_s == 100);
    assert_false(events_of(0)->missing(arg_of(0)));
    played.are_new = true;
    turn(&fx);
    assert_int_equal(played.n_watches, 2);
    assert_true(stats_of(&fx).stale_s >= 100);
    assert_false(events_of(1)->missing(arg_of(1)));
    turn(&fx);
    assert_true(stats_of(&fx).stale_s >= 100);
    played.watches[1]->is_new = false;
    played.stale_s = 0;
    assert_true(stats_of(&fx).stale_s == 0);
    finish(&fx);
}

static void pool(const char *selector, const char *ports) {
    char text[512];

    snprintf(
        text, sizeof(text),
        "{\"kind\":\"InferencePool\",\"spec\":{\"selector\":{\"matchLabels\":{\"app\":\"%s\"}},"
        "\"targetPorts\":[%s]}}",
        selector, ports);
    events_of(0)->object(str_of(text), arg_of(0));
}

static void a_pool_selects_pods_and_ports(void **state) {
    struct fixture fx;

    (void)state;
    start(&fx, (struct discovery_kube_config){.pool = "p"});
    assert_string_equal(played.watches[0]->path,
                        "/apis/inference.networking.k8s.io/v1/namespaces/llm/inferencepools");
    assert_string_equal(played.watches[0]->field, "metadata.name=p");
    events_of(0)->begin(arg_of(0));
    events_of(0)->end(arg_of(0));
    turn(&fx);
    assert_int_equal(played.n_watches, 1); /* there is none yet */
    pool("x", "{\"number\":9000}");
    turn(&fx);
    assert_int_equal(played.n_watches, 2);
    assert_string_equal(played.watches[1]->selector, "app=x");
    events_of(1)->begin(arg_of(1));
    pod(1, "a", "10.0.0.1", false);
    events_of(1)->end(arg_of(1));
    turn(&fx);
    assert_string_equal(fx.reported, "10.0.0.1:9000");

    pool("x", "{\"number\":9000},{\"number\":9001}");
    turn(&fx);
    assert_string_equal(fx.reported, "10.0.0.1:9000 10.0.0.1:9001");
    assert_int_equal(played.n_watches, 2);

    pool("y", "{\"number\":1}"); /* others: the former stay until they are known */
    turn(&fx);
    assert_null(played.watches[1]);
    assert_string_equal(played.watches[2]->selector, "app=y");
    assert_string_equal(fx.reported, "10.0.0.1:1");
    events_of(2)->begin(arg_of(2));
    pod(2, "b", "10.0.0.2", false);
    events_of(2)->end(arg_of(2));
    turn(&fx);
    assert_string_equal(fx.reported, "10.0.0.2:1");

    events_of(0)->gone(STR("{}"), arg_of(0));
    turn(&fx);
    assert_string_equal(fx.reported, "10.0.0.2:1");
    finish(&fx);
}

static void configuration_errors_are_reported(void **state) {
    struct kube_config server = {.context = "missing"};
    struct discovery_kube_config config = {.server = &server, .role_label = "r"};
    struct discovery *source = NULL;
    struct error err = {0};
    struct loop *loop;

    (void)state;
    assert_int_equal(loop_create(&loop, NULL), ST_OK);
    assert_int_equal(discovery_kube_create(&source, &config, loop, NULL, on_set, NULL, &err),
                     ST_INVALID);
    assert_null(source);
    loop_destroy(loop);
}

/* --- deletion costs --------------------------------------------------------------------------- */

static void a_cost_is_written_when_it_has_changed_by_much(void **state) {
    struct fixture fx = {.value = 5000};
    struct buf json;
    struct kube_store *store = kube_store_create(KUBE_PODS, "r");
    struct kube_costs *costs;

    (void)state;
    memset(&played, 0, sizeof(played));
    assert_int_equal(loop_create(&fx.loop, NULL), ST_OK);
    buf_init(&json, 0);
    pod_text_write(&json, &(struct pod_text){.name = "w-0",
                                             .ip = "10.0.0.1",
                                             .annotations = "\"incipit.dev/ports\":\"1,2\""});
    assert_int_equal(kube_store_object(store, buf_str(&json), NULL), ST_OK);
    costs = kube_costs_create(fx.loop, NULL, &played.client, store, 1000, value_of, &fx);
    TURN_UNTIL(fx.loop, played.n_calls == 1);
    assert_string_equal(played.path, "/api/v1/namespaces/llm/pods/w-0");
    assert_string_equal(played.body, "{\"metadata\":{\"annotations\":{\"controller.kubernetes.io/"
                                     "pod-deletion-cost\":\"10000\"}}}"); /* of both its workers */
    turn(&fx);
    assert_int_equal(played.n_calls, 1); /* one at a time */
    answer(200);
    fx.value = 5400;
    for (int i = 0; i < 20; i++)
        turn(&fx);
    assert_int_equal(played.n_calls, 1);
    fx.value = 6000;
    TURN_UNTIL(fx.loop, played.n_calls == 2);
    assert_non_null(strstr(played.body, "\"12000\""));
    answer(500); /* tried again */
    TURN_UNTIL(fx.loop, played.n_calls == 3);
    answer(403);
    fx.value = -1; /* the value is unknown now */
    for (int i = 0; i < 20; i++)
        turn(&fx);
    assert_int_equal(played.n_open, 0);
    kube_costs_destroy(costs);
    kube_store_destroy(store);
    buf_fini(&json);
    loop_destroy(fx.loop);
}

static void small_changes_of_cost_are_not_reported(void **state) {
    (void)state;
    assert_false(kube_costs_differ(0, 0));
    assert_false(kube_costs_differ(0, 255));
    assert_true(kube_costs_differ(0, 256));
    assert_true(kube_costs_differ(256, 0));
    assert_false(kube_costs_differ(100000, 109999));
    assert_true(kube_costs_differ(100000, 120000));
    assert_true(kube_costs_differ(INT32_MAX, 0));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nothing_is_reported_before_the_first_complete_list),
        cmocka_unit_test(a_pool_goes_by_its_older_group_where_the_newer_is_unknown_or_forbidden),
        cmocka_unit_test(a_pool_unknown_by_both_names_is_requested_again_soon),
        cmocka_unit_test(the_events_of_a_turn_are_one_set_in_that_turn),
        cmocka_unit_test(slices_go_by_their_older_name_where_the_newer_is_unknown),
        cmocka_unit_test(a_stale_source_stays_stale_when_the_watch_restarts),
        cmocka_unit_test(a_pool_selects_pods_and_ports),
        cmocka_unit_test(configuration_errors_are_reported),
        cmocka_unit_test(a_cost_is_written_when_it_has_changed_by_much),
        cmocka_unit_test(small_changes_of_cost_are_not_reported),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
