/* tests/unit/router/fleet/test_kube_objects.c - pods, slices and pools: what is read, and what is
 * refused. */
#include <stdio.h>

#include "router/fleet/discovery/kube_objects.h"
#include "tests/support/cm.h"
#include "tests/support/pods.h"

#define ROLE "incipit.dev/role"

static struct kube_object read_pod(const struct pod_text *text) {
    struct kube_object o;
    struct error err = {0};
    struct buf json;

    buf_init(&json, 0);
    pod_text_write(&json, text);
    if (kube_pod_read(&o, buf_str(&json), ROLE, &err) != ST_OK) fail_msg("%s", err.message);
    assert_int_equal(o.n_pods, 1);
    buf_fini(&json);
    return o;
}

static enum kube_use use_of(const struct pod_text *text) {
    struct kube_object o = read_pod(text);
    enum kube_use use = o.pods->use;

    kube_object_fini(&o);
    return use;
}

/* "8000 8001", or of the usual port "(8000)". */
static const char *ports_of(const struct pod_text *text) {
    static char out[512];
    struct kube_object o = read_pod(text);
    size_t n = 0;

    out[0] = '\0';
    for (uint32_t i = 0; i < o.pods->n_ports; i++)
        n += (size_t)snprintf(out + n, sizeof(out) - n, "%s%u", i ? " " : "", o.pods->ports[i]);
    if (!o.pods->n_ports) snprintf(out, sizeof(out), "(%u)", o.pods->usual_port);
    kube_object_fini(&o);
    return out;
}

static void every_field_of_a_pod_is_read(void **state) {
    struct kube_object o =
        read_pod(&(struct pod_text){.ip = "10.1.2.3",
                                    .version = 18446744073709551614u,
                                    .annotations = "\"incipit.dev/model\":\"org/m\""});
    const struct kube_pod *p = o.pods;

    (void)state;
    assert_string_equal(o.key, "uid-w-0");
    assert_true(o.version == 18446744073709551614u);
    assert_string_equal(p->uid, "uid-w-0");
    assert_string_equal(p->name, "w-0");
    assert_string_equal(p->namespace, "llm");
    assert_string_equal(p->host, "10.1.2.3");
    assert_string_equal(p->created, "2026-11-21T01:02:03Z");
    assert_string_equal(p->labels, "pod=w-0 namespace=llm node=gpu-1 model=org/m");
    assert_int_equal(p->use, KUBE_USE);
    assert_int_equal(p->usual_port, 8000);
    kube_object_fini(&o);
}

static void ports_of_kv_events_become_labels(void **state) {
    static const struct {
        const char *annotations, *labels, *words;
    } rows[] = {
        {"\"incipit.dev/kv-events\":\"6000\",\"incipit.dev/kv-events-replay\":\"6010\","
         "\"incipit.dev/kv-events-ranks\":\"2\"",
         NULL, "kv_events=6000 kv_events_replay=6010 kv_events_ranks=2 pod=w-0"},
        {NULL, "\"model.aibrix.ai/kv-events-enabled\":\"true\"", "kv_events=5557 pod=w-0"},
        {NULL, "\"model.aibrix.ai/kv-events-enabled\":\"false\"", "pod=w-0"},
        {"\"incipit.dev/kv-events\":\"99999\"", NULL, "pod=w-0"}, /* no port */
    };

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        struct kube_object o = read_pod(&(struct pod_text){
            .ip = "10.1.2.3", .annotations = rows[i].annotations, .labels = rows[i].labels});

        assert_int_equal(str_find(str_of(o.pods->labels), str_of(rows[i].words)), 0);
        kube_object_fini(&o);
    }
}

static void phase_and_conditions_decide_readiness(void **state) {
    static const struct {
        struct pod_text text;
        enum kube_use use;
    } rows[] = {
        {{.ip = "10.1.2.3"}, KUBE_USE},
        {{.ip = "fd00::3"}, KUBE_USE},
        {{.ip = NULL}, KUBE_UNUSED},
        {{.ip = ""}, KUBE_UNUSED},
        {{.ip = "gpu-1"}, KUBE_UNUSED},
        {{.ip = "10.1.2.3", .ready = "False"}, KUBE_DRAIN},
        {{.ip = "10.1.2.3", .ready = "Unknown"}, KUBE_DRAIN},
        {{.ip = "10.1.2.3", .ready = ""}, KUBE_DRAIN},
        {{.ip = "10.1.2.3", .phase = "Pending", .ready = ""}, KUBE_DRAIN},
        {{.ip = "10.1.2.3", .phase = "Failed"}, KUBE_UNUSED},
        {{.ip = "10.1.2.3", .phase = "Succeeded"}, KUBE_UNUSED},
        {{.ip = "10.1.2.3", .is_deleted = true}, KUBE_DRAIN},
        {{.ip = "10.1.2.3", .is_deleted = true, .phase = "Failed"}, KUBE_UNUSED},
        {{.ip = "10.1.2.3", .annotations = "\"incipit.dev/weight\":\"0\""}, KUBE_DRAIN},
        {{.ip = "10.1.2.3", .annotations = "\"incipit.dev/weight\":\"50\""}, KUBE_USE},
        {{.ip = "10.1.2.3", .annotations = "\"incipit.dev/weight\":\"none\""}, KUBE_USE},
        {{.ip = "10.1.2.3", .labels = "\"sleeping\":\"true\""}, KUBE_DRAIN},
        {{.ip = "10.1.2.3", .labels = "\"sleeping\":\"false\""}, KUBE_USE},
    };

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(rows); i++)
        if (use_of(&rows[i].text) != rows[i].use) fail_msg("row %zu", i);
}

static void ports_are_named_in_the_ways_of_several_routers(void **state) {
    static const struct {
        struct pod_text text;
        const char *ports;
    } rows[] = {
        {{.ip = "10.1.2.3"}, "(8000)"},
        {{.annotations = "\"incipit.dev/ports\":\"8001\""}, "8001"},
        {{.annotations = "\"smg.ai/worker-ports\":\"30000, 30001,30000\""}, "30000 30001"},
        {{.annotations = "\"smg.ai/worker-ports\":\"1\",\"incipit.dev/ports\":\"2,3\""}, "2 3"},
        {{.labels = "\"model.aibrix.ai/port\":\"9000\""}, "9000"},
        {{.annotations = "\"model-pod-port\":\"7000\""}, "7000"},
        {{.annotations = "\"incipit.dev/ports\":\"\""}, "(8000)"},
        {{.annotations = "\"incipit.dev/ports\":\"0\""}, "(8000)"},
        {{.annotations = "\"incipit.dev/ports\":\"65536\""}, "(8000)"},
        {{.annotations = "\"incipit.dev/ports\":\"80,\""}, "80"},
        {{.annotations = "\"incipit.dev/ports\":\"80,,81\""}, "(8000)"},
        {{.annotations = "\"incipit.dev/ports\":\"-80\""}, "(8000)"},
        {{.annotations = "\"incipit.dev/ports\":8000"}, "(8000)"},
        {{.containers = "[]"}, "(0)"},
        {{.containers = "[{\"name\":\"a\"},{\"ports\":[{\"containerPort\":53,\"protocol\":\"UDP\"},"
                        "{\"containerPort\":70000},{\"containerPort\":81}]}]"},
         "(81)"},
    };
    char many[KUBE_PORTS_MAX * 8 + 64], *at = many;

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(rows); i++)
        assert_string_equal(ports_of(&rows[i].text), rows[i].ports);
    at += sprintf(at, "\"incipit.dev/ports\":\"1");
    for (int i = 2; i <= KUBE_PORTS_MAX + 1; i++)
        at += sprintf(at, ",%d", i);
    strcpy(at, "\"");
    assert_string_equal(ports_of(&(struct pod_text){.annotations = many}), "(8000)");
}

static void encoders_are_left_out(void **state) {
    static const struct {
        const char *labels, *role;
    } rows[] = {
        {NULL, ""},
        {"\"incipit.dev/role\":\"mixed\"", ""},
        {"\"incipit.dev/role\":\"prefill\"", ""},
        {"\"incipit.dev/role\":\"encode\",\"llm-d.ai/role\":\"both\"", "encode"},
        {"\"incipit.dev/role\":\"mixed\",\"llm-d.ai/role\":\"encode\"", ""},
        {"\"llm-d.ai/role\":\"encode-prefill\"", "encode-prefill"},
        {"\"storm-service-name\":\"s\",\"role-name\":\"encoder\"", "encoder"},
        {"\"role-name\":\"encoder\"", ""},
    };

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        struct kube_object o =
            read_pod(&(struct pod_text){.ip = "10.1.2.3", .labels = rows[i].labels});

        assert_string_equal(o.pods->left_out_as, rows[i].role);
        assert_int_equal(o.pods->use, rows[i].role[0] ? KUBE_UNUSED : KUBE_USE);
        kube_object_fini(&o);
    }
}

/* They come before all others, which may not fit. */
static void part_of_a_pod_is_in_its_labels(void **state) {
    static const struct {
        const char *labels, *annotations, *want;
    } rows[] = {
        {NULL, NULL, ""},
        {"\"incipit.dev/role\":\"prefill\"", NULL, "role=prefill "},
        {"\"llm-d.ai/role\":\"decode\"", NULL, "role=decode "},
        {"\"llm-d.ai/role\":\"both\"", NULL, "role=both "},
        {"\"llm-d.ai/role\":\"prefill-decode\"", NULL, "role=both "},
        {"\"incipit.dev/role\":\"mixed\",\"llm-d.ai/role\":\"decode\"", NULL, "role=mixed "},
        {"\"storm-service-name\":\"s\",\"role-name\":\"prefill\"", NULL, "role=prefill "},
        {"\"role-name\":\"prefill\"", NULL, ""},
        {"\"llm-d.ai/role\":\"prefill\",\"incipit.dev/kv-connector\":\"MooncakeConnector\"",
         "\"incipit.dev/bootstrap-port\":\"9001\",\"sglang.ai/bootstrap-port\":\"9002\"",
         "role=prefill kv_connector=MooncakeConnector bootstrap_port=9001 "},
        {"\"llm-d.ai/role\":\"prefill\"",
         "\"incipit.dev/bootstrap-port\":\"0\",\"sglang.ai/bootstrap-port\":\" 9002 \"",
         "role=prefill bootstrap_port=9002 "},
    };

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        struct kube_object o = read_pod(&(struct pod_text){
            .ip = "10.1.2.3", .labels = rows[i].labels, .annotations = rows[i].annotations});
        const char *pod = strstr(o.pods->labels, "pod=");

        assert_non_null(pod);
        assert_int_equal(pod - o.pods->labels, strlen(rows[i].want));
        assert_memory_equal(o.pods->labels, rows[i].want, strlen(rows[i].want));
        kube_object_fini(&o);
    }
}

static void without_a_uid_the_name_is_the_key(void **state) {
    struct kube_object o = read_pod(&(struct pod_text){.uid = ""});

    (void)state;
    assert_string_equal(o.key, "llm/w-0");
    assert_int_equal(o.version, 0);
    kube_object_fini(&o);
}

static void an_object_that_is_no_pod_is_refused(void **state) {
    static const char *const texts[] = {
        "",
        "null",
        "[]",
        "{}",
        "{\"kind\":\"Pod\",\"metadata\":{}}",
        "{\"kind\":\"Pod\",\"metadata\":[]}",
        "{\"kind\":\"Node\",\"metadata\":{\"name\":\"a\"}}",
        "{\"kind\":\"Pod\",\"metadata\":{\"name\":\"a\",\"name\":\"b\"}}",
        "{\"kind\":\"Pod\",\"metadata\":{\"name\":\"a\"}",
        "{\"kind\":\"Pod\",\"metadata\":{\"name\":\"a\"},\"status\":7}",
    };

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(texts); i++) {
        struct kube_object o;
        struct error err = {0};

        if (kube_pod_read(&o, str_of(texts[i]), ROLE, &err) == ST_OK)
            fail_msg("accepted %s", texts[i]);
        assert_true(err.message[0]);
        assert_int_equal(o.n_pods, 0);
    }
}

/* --- slices ----------------------------------------------------------------------------------- */

static const char slice[] =
    "{\"kind\":\"EndpointSlice\",\"metadata\":{\"name\":\"w-abc\",\"namespace\":\"llm\",\"uid\":"
    "\"s-1\","
    "\"resourceVersion\":\"7\",\"labels\":{\"kubernetes.io/service-name\":\"w\"}},"
    "\"addressType\":\"IPv4\",\"endpoints\":["
    "{\"addresses\":[\"10.0.0.1\"],\"conditions\":{\"ready\":true,\"serving\":true,\"terminating\":"
    "false},"
    "\"targetRef\":{\"kind\":\"Pod\",\"namespace\":\"llm\",\"name\":\"w-0\",\"uid\":\"u-0\"},"
    "\"nodeName\":\"n-0\",\"zone\":\"a\"},"
    "{\"addresses\":[\"10.0.0.2\",\"10.9.9.9\"],\"conditions\":{}},"
    "{\"addresses\":[\"10.0.0.3\"],\"conditions\":{\"ready\":false,\"serving\":true,"
    "\"terminating\":true}},"
    "{\"addresses\":[\"10.0.0.4\"],\"conditions\":{\"ready\":false,\"serving\":false,"
    "\"terminating\":true}},"
    "{\"addresses\":[\"10.0.0.5\"],\"conditions\":{\"ready\":false}},"
    "{\"addresses\":[\"10.0.0.6\"],\"conditions\":{\"ready\":null}},"
    "{\"addresses\":[]},"
    "{\"addresses\":[\"example.org\"]},"
    "{\"addresses\":[\"10.0.0.9\"],\"topology\":{\"kubernetes.io/hostname\":\"n-9\"}}],"
    "\"ports\":[{\"name\":\"grpc\",\"port\":9000,\"protocol\":\"TCP\"},"
    "{\"name\":\"http\",\"port\":8080,\"protocol\":\"TCP\"}]}";

static void endpoints_are_ready_unless_marked(void **state) {
    static const enum kube_use uses[] = {KUBE_USE,    KUBE_USE,    KUBE_DRAIN,
                                         KUBE_UNUSED, KUBE_UNUSED, KUBE_USE,
                                         KUBE_UNUSED, KUBE_UNUSED, KUBE_USE};
    struct kube_object o;

    (void)state;
    assert_int_equal(kube_slice_read(&o, str_of(slice), NULL), ST_OK);
    assert_string_equal(o.key, "s-1");
    assert_int_equal(o.n_pods, ARRAY_LEN(uses));
    for (size_t i = 0; i < ARRAY_LEN(uses); i++) {
        if (o.pods[i].use != uses[i]) fail_msg("endpoint %zu", i);
        assert_int_equal(o.pods[i].usual_port, 8080);
    }
    assert_string_equal(o.pods[0].uid, "u-0");
    assert_string_equal(o.pods[0].labels, "pod=w-0 namespace=llm node=n-0 zone=a");
    assert_string_equal(o.pods[1].host, "10.0.0.2");
    assert_string_equal(o.pods[8].labels, "namespace=llm node=n-9");
    kube_object_fini(&o);
}

static void a_slice_may_be_empty(void **state) {
    struct kube_object o;

    (void)state;
    assert_int_equal(kube_slice_read(&o,
                                     STR("{\"metadata\":{\"uid\":\"s\"},\"endpoints\":null,"
                                         "\"ports\":null}"),
                                     NULL),
                     ST_OK);
    assert_int_equal(o.n_pods, 0);
    kube_object_fini(&o);
}

/* --- pools ------------------------------------------------------------------------------------ */

static void both_versions_of_a_pool_select(void **state) {
    static const char v1[] =
        "{\"apiVersion\":\"inference.networking.k8s.io/"
        "v1\",\"kind\":\"InferencePool\",\"metadata\":{"
        "\"name\":\"p\"},\"spec\":{\"endpointPickerRef\":{\"name\":\"epp\",\"port\":{\"number\":"
        "9002}},"
        "\"selector\":{\"matchLabels\":{\"app\":\"vllm\",\"x.io/tier\":\"gpu\"}},"
        "\"targetPorts\":[{\"number\":8000},{\"number\":8001}]}}";
    static const char v1alpha2[] =
        "{\"kind\":\"InferencePool\",\"metadata\":{\"name\":\"p\"},\"spec\":{\"extensionRef\":{"
        "\"name\":\"epp\"},\"selector\":{\"app\":\"vllm\"},\"targetPortNumber\":8000}}";
    struct kube_pool p;

    (void)state;
    assert_int_equal(kube_pool_read(&p, str_of(v1), NULL), ST_OK);
    assert_string_equal(p.selector, "app=vllm,x.io/tier=gpu");
    assert_int_equal(p.n_ports, 2);
    assert_int_equal(p.ports[1], 8001);
    assert_int_equal(kube_pool_read(&p, str_of(v1alpha2), NULL), ST_OK);
    assert_string_equal(p.selector, "app=vllm");
    assert_int_equal(p.n_ports, 1);
    assert_int_equal(p.ports[0], 8000);
}

static void a_pool_that_would_select_anything_is_refused(void **state) {
    static const char *const specs[] = {
        "{}",
        "{\"selector\":{}}",
        "{\"selector\":{\"matchLabels\":{}}}",
        "{\"selector\":{\"matchLabels\":{\"app\":7}}}",
        "{\"selector\":{\"matchLabels\":{\"app\":\"a,b\"}}}",
        "{\"selector\":{\"matchLabels\":{\"a in (b)\":\"c\"}}}",
        "{\"selector\":{\"matchLabels\":{\"a\":\"b\"}},\"targetPorts\":[{\"number\":0}]}",
        "{\"selector\":{\"matchLabels\":{\"a\":\"b\"}},\"targetPorts\":[{},{}]}",
        "{\"selector\":{\"matchLabels\":{\"a\":\"b\"}},\"targetPorts\":[{\"number\":1},{\"number\":"
        "2},"
        "{\"number\":3},{\"number\":4},{\"number\":5},{\"number\":6},{\"number\":7},{\"number\":8},"
        "{\"number\":9}]}",
    };

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(specs); i++) {
        struct kube_pool p = {.n_ports = 7};
        char text[512];

        snprintf(text, sizeof(text), "{\"kind\":\"InferencePool\",\"spec\":%s}", specs[i]);
        if (kube_pool_read(&p, str_of(text), NULL) == ST_OK) fail_msg("accepted %s", specs[i]);
        assert_int_equal(p.n_ports, 7);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_field_of_a_pod_is_read),
        cmocka_unit_test(ports_of_kv_events_become_labels),
        cmocka_unit_test(phase_and_conditions_decide_readiness),
        cmocka_unit_test(ports_are_named_in_the_ways_of_several_routers),
        cmocka_unit_test(encoders_are_left_out),
        cmocka_unit_test(part_of_a_pod_is_in_its_labels),
        cmocka_unit_test(without_a_uid_the_name_is_the_key),
        cmocka_unit_test(an_object_that_is_no_pod_is_refused),
        cmocka_unit_test(endpoints_are_ready_unless_marked),
        cmocka_unit_test(a_slice_may_be_empty),
        cmocka_unit_test(both_versions_of_a_pool_select),
        cmocka_unit_test(a_pool_that_would_select_anything_is_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
