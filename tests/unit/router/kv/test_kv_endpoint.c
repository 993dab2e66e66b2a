/* tests/unit/router/kv/test_kv_endpoint.c - ports, from labels and from SGLang's page. */
#include "router/kv/kv_endpoint.h"
#include "tests/support/cm.h"

static void labels_name_ports_and_ranks(void **state) {
    static const struct {
        const char *labels;
        uint16_t port, replay_port, n_ranks; /* port 0: none */
    } cases[] = {
        {"kv_events=5557", 5557, 0, 1},
        {"zone=a kv_events_replay=5600 kv_events=5557 kv_events_ranks=4 rack=7", 5557, 5600, 4},
        {"", 0, 0, 0},
        {"zone=kv_events", 0, 0, 0},
        {"kv_events_replay=5558", 0, 0, 0},
        {"my_kv_events=5557", 0, 0, 0},
        {"kv_events=0", 0, 0, 0},
        {"kv_events=65530", 0, 0, 0}, /* not for every rank */
        {"kv_events=5557x", 0, 0, 0},
        {"kv_events=5557 kv_events_ranks=17", 5557, 0, 1},
        {"kv_events=5557 kv_events_replay=65535", 5557, 0, 1},
    };

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct kv_endpoint e = {0};

        assert_int_equal(kv_endpoint_of_labels(&e, cases[i].labels), cases[i].port > 0);
        assert_int_equal(e.port, cases[i].port);
        assert_int_equal(e.replay_port, cases[i].replay_port);
        assert_int_equal(e.n_ranks, cases[i].n_ranks);
    }
}

#define PAGE(config) "{\"dp_size\": 2, \"kv_events_config\": " config ", \"x\": [1]}"

/* Whatever host the page names, only its port is used. */
static void sglangs_page_names_ports(void **state) {
    static const struct {
        const char *page;
        uint16_t port, replay_port;
    } cases[] = {
        {PAGE("\"{\\\"publisher\\\": \\\"zmq\\\", \\\"endpoint\\\": \\\"tcp://*:6000\\\", "
              "\\\"replay_endpoint\\\": \\\"tcp://10.9.9.9:6010\\\"}\""),
         6000, 6010},
        {PAGE("\"{\\\"publisher\\\": \\\"zmq\\\"}\""), 5557, 0},
        {PAGE("\"{\\\"publisher\\\": \\\"zmq\\\", \\\"endpoint\\\": \\\"ipc:///tmp/x\\\"}\""), 0,
         0},
        {PAGE("\"{\\\"publisher\\\": \\\"zmq\\\", \\\"endpoint\\\": \\\"tcp://[::1]:x\\\"}\""), 0,
         0},
        {PAGE("\"{\\\"publisher\\\": \\\"null\\\", \\\"endpoint\\\": \\\"tcp://*:6000\\\"}\""), 0,
         0},
        {PAGE("\"{\\\"endpoint\\\": \\\"tcp://*:6000\\\"}\""), 0, 0},
        {PAGE("\"not json\""), 0, 0},
        {PAGE("null"), 0, 0},
        {PAGE("7"), 0, 0},
        {"[]", 0, 0},
        {"", 0, 0},
    };

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct kv_endpoint e = {0};

        assert_int_equal(kv_endpoint_of_info(&e, str_of(cases[i].page)), cases[i].port > 0);
        assert_int_equal(e.port, cases[i].port);
        assert_int_equal(e.replay_port, cases[i].replay_port);
        assert_int_equal(e.n_ranks, cases[i].port ? 2 : 0);
    }
}

int main(void) {
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(labels_name_ports_and_ranks),
        cmocka_unit_test(sglangs_page_names_ports),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
