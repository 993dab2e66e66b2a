/* tests/unit/router/registry/test_worker_part.c - labels win, then what the engine publishes. */
#include <stdio.h>

#include "router/registry/worker_part.h"
#include "tests/support/cm.h"

static void assert_part(enum worker_kind kind, const char *labels, struct worker_part published,
                        struct worker_part want) {
    struct worker_part got = worker_part_of(kind, labels, &published, HANDOVER_NIXL);

    assert_int_equal(got.role, want.role);
    assert_int_equal(got.handover, want.handover);
    assert_int_equal(got.bootstrap_port, want.bootstrap_port);
}

#define PART(role, handover, port)                                                                 \
    (struct worker_part) {                                                                         \
        WORKER_##role, HANDOVER_##handover, port                                                   \
    }

static void labels_win_over_what_the_engine_publishes(void **state) {
    struct worker_part none = {0}, fed = PART(DECODE, NONE, 9001);

    (void)state;
    assert_part(WORKER_VLLM, "", none, PART(BOTH, NONE, 8998));
    assert_part(WORKER_VLLM, "zone=a role=prefill", none, PART(PREFILL, NIXL, 8998));
    assert_part(WORKER_VLLM, "kv_connector=NixlConnector", none, PART(BOTH, NIXL, 8998));
    assert_part(WORKER_VLLM, "role=decode kv_connector=none", none, PART(DECODE, NONE, 8998));
    assert_part(WORKER_VLLM, "role=decode kv_connector=MooncakeConnector", none,
                PART(DECODE, MOONCAKE, 8998));
    assert_part(WORKER_VLLM, "role=decode kv_connector=AnotherConnector", none,
                PART(DECODE, NONE, 8998));
    assert_part(WORKER_VLLM, "role=worker xrole=prefill", none, PART(BOTH, NONE, 8998));
    assert_part(WORKER_SGLANG, "", fed, PART(DECODE, BOOTSTRAP, 9001));
    assert_part(WORKER_SGLANG, "role=both", fed, PART(BOTH, NONE, 9001));
    assert_part(WORKER_SGLANG, "role=prefill bootstrap_port=77", none,
                PART(PREFILL, BOOTSTRAP, 77));
    assert_part(WORKER_SGLANG, "role=prefill bootstrap_port=99999", none,
                PART(PREFILL, BOOTSTRAP, 8998));
    assert_part(WORKER_OURS, "role=prefill", none, PART(PREFILL, NONE, 8998));
}

static void a_connector_of_all_is_that_of_vllm_workers_with_a_role(void **state) {
    struct worker_part none = {0};

    (void)state;
    assert_int_equal(worker_part_of(WORKER_VLLM, "role=decode", &none, HANDOVER_MOONCAKE).handover,
                     HANDOVER_MOONCAKE);
    assert_int_equal(worker_part_of(WORKER_VLLM, "", &none, HANDOVER_MOONCAKE).handover,
                     HANDOVER_NONE);
    assert_int_equal(
        worker_part_of(WORKER_SGLANG, "role=decode", &none, HANDOVER_MOONCAKE).handover,
        HANDOVER_BOOTSTRAP);
}

static struct worker_part published(const char *role, const char *fingerprint) {
    struct wire_server_info info = {0};

    snprintf(info.role, sizeof(info.role), "%s", role);
    snprintf(info.kv_peer.fingerprint, sizeof(info.kv_peer.fingerprint), "%s", fingerprint);
    return worker_part_published(&info);
}

static void workers_of_ours_publish_a_role_and_exchange_blocks(void **state) {
    (void)state;
    assert_part(WORKER_OURS, "", published("prefill", "aa"), PART(PREFILL, PEER, 8998));
    assert_part(WORKER_OURS, "", published("both", "aa"), PART(BOTH, NONE, 8998));
    assert_part(WORKER_OURS, "role=decode", published("both", "aa"), PART(DECODE, PEER, 8998));
    assert_part(WORKER_OURS, "kv_connector=none", published("decode", "aa"),
                PART(DECODE, NONE, 8998));
    assert_part(WORKER_OURS, "", published("prefill", ""), PART(PREFILL, NONE, 8998));
    assert_part(WORKER_OURS, "role=prefill", published("", "aa"), PART(PREFILL, NONE, 8998));
    assert_part(WORKER_OURS, "", published("else", "aa"), PART(BOTH, NONE, 8998));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(labels_win_over_what_the_engine_publishes),
        cmocka_unit_test(a_connector_of_all_is_that_of_vllm_workers_with_a_role),
        cmocka_unit_test(workers_of_ours_publish_a_role_and_exchange_blocks),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
