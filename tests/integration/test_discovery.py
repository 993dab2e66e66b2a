"""Workers that are found: a real router before the scripted API server, and before a name."""
import time

import pytest

from conftest import Router, Worker, http, wait_for
from kube_api import ApiServer, Herd, kubeconfig, pod, slice_of

SELECTOR = ("--k8s-selector", "app=incipit-worker")


@pytest.fixture
def api():
    server = ApiServer()
    yield server
    server.stop()


@pytest.fixture
def herd():
    workers = Herd(5)
    yield workers
    workers.stop()


def begun(router):
    """Listening; ready or not."""
    router.url = f"http://127.0.0.1:{router.field('router_listening', 'port')}"
    router.admin_url = f"http://127.0.0.1:{router.field('router_listening', 'admin_port')}"
    return router


@pytest.fixture
def discover(programs, api, tmp_path):
    def start(*args):
        return begun(programs(Router, *args, "--kubeconfig", kubeconfig(api, tmp_path), "--slow-start", 0,
                              "--probe-interval", "100ms"))
    return start


def states(router):
    """{"127.0.0.1": "ready"} of the workers there are."""
    return {w["url"].split("//")[1].rsplit(":", 1)[0]: w["status"] for w in router.workers()["workers"]}


def reaches(router, wanted, what):
    wait_for(lambda: states(router) == wanted, f"{what}: {wanted}")


def counts(router, state, n):
    line = f'incipit_discovery_workers{{source="kubernetes",state="{state}"}} {n}\n'
    wait_for(lambda: line in router.metrics(), line)


def readiness(router):
    return http(router.admin_url + "/readyz").code


def ask(router):
    return router.post("/v1/completions", {"prompt": "Once", "max_tokens": 1}).code


def test_pods_come_drain_and_go(discover, api, herd):
    for ip in ("127.0.1.1", "127.0.1.2"):
        herd.up(ip)
    api.put(pod("w-1", "127.0.1.1", uid="u-1", port=herd.port), pod("w-2", "", uid="u-2", port=herd.port))
    router = discover("--service-discovery", "k8s", *SELECTOR)
    reaches(router, {"127.0.1.1": "ready"}, "the pod that has an address")
    assert readiness(router) == 200 and ask(router) == 200
    api.put(pod("w-2", "127.0.1.2", uid="u-2", ready=False, port=herd.port))
    counts(router, "draining", 1)
    assert states(router) == {"127.0.1.1": "ready"}, "a pod that is not ready is not wanted yet"
    api.put(pod("w-2", "127.0.1.2", uid="u-2", port=herd.port))
    reaches(router, {"127.0.1.1": "ready", "127.0.1.2": "ready"}, "both")
    api.put(pod("w-2", "127.0.1.2", uid="u-2", ready=False, port=herd.port))
    reaches(router, {"127.0.1.1": "ready", "127.0.1.2": "draining"}, "one that is not ready any more")
    api.put(pod("w-2", "127.0.1.2", uid="u-2", port=herd.port))
    reaches(router, {"127.0.1.1": "ready", "127.0.1.2": "ready"}, "it to be back")
    api.command("delete", resource="pods", name="w-2", grace=30)
    reaches(router, {"127.0.1.1": "ready", "127.0.1.2": "draining"}, "a graceful deletion")
    api.command("forget", resource="pods", name="w-2")
    reaches(router, {"127.0.1.1": "ready"}, "its end")
    assert router.metric("incipit_discovery_stale_seconds", source="kubernetes") < 1
    counts(router, "used", 1)


def test_from_an_event_to_its_effect_in_less_than_50_ms(discover, api, herd):
    herd.up("127.0.1.1")
    api.put(pod("w-1", "127.0.1.1", uid="u-1", port=herd.port))
    router = discover("--service-discovery", "k8s", *SELECTOR)
    reaches(router, {"127.0.1.1": "ready"}, "the pod")
    took_s = []
    for ready in (False, True) * 10:
        began_s = time.monotonic()
        api.put(pod("w-1", "127.0.1.1", uid="u-1", ready=ready, port=herd.port))
        while states(router)["127.0.1.1"] != ("ready" if ready else "draining"):
            assert time.monotonic() - began_s < 5
        took_s.append(time.monotonic() - began_s)
    print(f"event to effect: median {sorted(took_s)[10] * 1e3:.1f} ms, most {max(took_s) * 1e3:.1f} ms")


def test_not_ready_before_the_first_list_and_ready_ever_after(discover, api, herd):
    herd.up("127.0.1.1")
    api.put(pod("w-1", "127.0.1.1", uid="u-1", port=herd.port))
    api.command("listen", on=False)
    router = discover("--service-discovery", "k8s", *SELECTOR)
    assert readiness(router) == 503
    assert "discovery has not completed" in http(router.admin_url + "/readyz").body
    api.command("listen", on=True)
    wait_for(lambda: readiness(router) == 200, "the first list")
    api.command("die")
    wait_for(lambda: router.metric("incipit_discovery_stale_seconds", source="kubernetes") > 0.5, "it to be noticed")
    assert readiness(router) == 200 and states(router) == {"127.0.1.1": "ready"} and ask(router) == 200


def test_another_pod_at_the_same_address_is_another_worker(discover, api, herd):
    herd.up("127.0.1.1")
    api.put(pod("w-1", "127.0.1.1", uid="u-1", port=herd.port))
    router = discover("--service-discovery", "k8s", *SELECTOR)
    reaches(router, {"127.0.1.1": "ready"}, "the first")
    for _ in range(3):
        assert ask(router) == 200
    before = router.workers()["workers"][0]["worker_id"]
    api.put(pod("w-2", "127.0.1.1", uid="u-2", port=herd.port))
    api.command("force", resource="pods", name="w-1")
    wait_for(lambda: router.workers()["workers"][0]["worker_id"] not in (before, None), "another incarnation")
    reaches(router, {"127.0.1.1": "ready"}, "the second")
    assert router.workers()["workers"][0]["worker_id"].split("-")[0] == before.split("-")[0], "the place is the same"
    assert "worker_replaced" in router.log and "worker_removed" not in router.log
    assert ask(router) == 200


def test_flags_annotations_and_labels_of_other_routers(discover, api, herd):
    """smg's start script, its annotation; llm-d's roles; AIBrix's port."""
    for i in range(1, 5):
        herd.up(f"127.0.1.{i}")
    here = str(herd.port)
    api.put(pod("w-1", "127.0.1.1", annotations={"smg.ai/worker-ports": f"{here}, {here}"}, labels={"tier": "a"}, port=1),
            pod("w-2", "127.0.1.2", labels={"tier": "a", "llm-d.ai/role": "encode"}),
            pod("w-3", "127.0.1.3", labels={"tier": "a", "model.aibrix.ai/port": here}, port=1),
            pod("w-4", "127.0.1.4", labels={"tier": "b"}))
    router = discover("--service-discovery", "--selector", "app=incipit-worker", "tier=a", "--service-discovery-port", 1)
    reaches(router, {"127.0.1.1": "ready", "127.0.1.3": "ready"}, "the two that are meant")
    wait_for(lambda: "kube_role_left_out pod=w-2 role=encode" in router.log, "the line")
    counts(router, "left_out", 1)


def test_pods_of_a_role_are_workers_of_that_role(discover, api, herd):
    for i in range(1, 5):
        herd.up(f"127.0.1.{i}")
    api.put(pod("w-1", "127.0.1.1", labels={"llm-d.ai/role": "prefill", "incipit.dev/kv-connector": "MooncakeConnector"},
                annotations={"incipit.dev/bootstrap-port": "9001"}, port=herd.port),
            pod("w-2", "127.0.1.2", labels={"incipit.dev/role": "decode"}, port=herd.port),
            pod("w-3", "127.0.1.3", labels={"llm-d.ai/role": "prefill-decode"}, port=herd.port),
            pod("w-4", "127.0.1.4", port=herd.port))
    router = discover("--service-discovery", "k8s", *SELECTOR)

    def types():
        return {w["labels"]["pod"]: w["worker_type"] for w in router.workers()["workers"] if w["status"] == "ready"}

    wait_for(lambda: types() == {"w-1": "prefill", "w-2": "decode", "w-3": "regular", "w-4": "regular"}, "their roles")
    [labels] = [w["labels"] for w in router.workers()["workers"] if w["labels"]["pod"] == "w-1"]
    assert (labels["role"], labels["kv_connector"], labels["bootstrap_port"]) == ("prefill", "MooncakeConnector", "9001")
    counts(router, "left_out", 0)
    api.put(pod("w-2", "127.0.1.2", labels={"incipit.dev/role": "prefill"}, port=herd.port))
    wait_for(lambda: types()["w-2"] == "prefill", "a pod's label has changed")
    assert ask(router) == 200


def test_the_slices_of_a_service(discover, api, herd):
    for i in (1, 2):
        herd.up(f"127.0.1.{i}")
    api.put(slice_of("w", "w-a", [{"ip": "127.0.1.1", "uid": "u-1"}], herd.port),
            slice_of("w", "w-b", [{"ip": "127.0.1.2", "uid": "u-2"}], herd.port),
            slice_of("other", "o-a", [{"ip": "127.0.1.3", "uid": "u-3"}], herd.port))
    router = discover("--service-discovery", "k8s", "--k8s-resource", "endpointslices", "--k8s-service", "w")
    reaches(router, {"127.0.1.1": "ready", "127.0.1.2": "ready"}, "both slices")
    api.put(slice_of("w", "w-b", [{"ip": "127.0.1.2", "uid": "u-2", "ready": False, "serving": True, "terminating": True}],
                     herd.port))
    reaches(router, {"127.0.1.1": "ready", "127.0.1.2": "draining"}, "one that is terminating")
    api.put(slice_of("w", "w-b", [], herd.port))
    reaches(router, {"127.0.1.1": "ready"}, "one that is gone")


def test_a_name_of_several_addresses(programs):
    """localhost is the one name that every machine has; a name that is not found changes nothing."""
    worker = programs(Worker, "--backend", "sim").ready()
    port = worker.url.rsplit(":", 1)[1]
    router = programs(Router, "--worker-dns", f"localhost:{port}", "--slow-start", 0, "--probe-interval", "100ms").ready(1)
    assert states(router) == {"127.0.0.1": "ready"} and readiness(router) == 200
    assert router.workers()["workers"][0]["labels"] == {"dns": "localhost"}
    other = programs(Router, "--service-discovery", "dns", "--worker-dns", "no-such-name.invalid:80")
    begun(other)
    wait_for(lambda: "dns_failed" in other.log, "the name not to be found")
    assert readiness(other) == 503


@pytest.mark.parametrize("args, words", [
    (["--service-discovery", "k8s"], "--k8s-selector"),
    (["--k8s-selector", "a=b"], "--service-discovery k8s"),
    (["--service-discovery", "dns"], "--worker-dns NAME:PORT"),
    (["--worker-dns", "name"], "NAME:PORT"),
    (["--inference-pool", "p", "--k8s-selector", "a=b"], "--inference-pool"),
    (["--service-discovery", "k8s", "--k8s-service", "w"], "endpointslices"),
    (["--service-discovery", "k8s", "--k8s-service-discovery-type", "service-name", "--selector", "a=b"], "endpointslices"),
])
def test_conflicting_options_are_refused_with_a_remedy(programs, args, words):
    router = programs(Router, *args)
    assert router.process.wait(10) != 0
    wait_for(lambda: words in router.log, f"{words} in {router.log}")
