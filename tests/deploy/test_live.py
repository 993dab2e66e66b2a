"""What is rendered, asked of live programs: probe paths, ports, scrape paths, and every metric that something scales on."""
import pathlib
import re
import shutil
import socket
import subprocess
import sys

import pytest
import yaml

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "integration"))
from conftest import programs  # noqa: E402, F401
from conftest import Router, Worker, http, metric, started_programs, wait_for  # noqa: E402

from kube_api import ApiServer, pod  # noqa: E402

from rendered import (KUSTOMIZE, ROOT, all_renders, container_of, named, of_kind, options_of,  # noqa: E402
                      our_workers, routers, workers_of)

RENDERS = all_renders()
each_render = pytest.mark.parametrize("objects", RENDERS.values(), ids=RENDERS.keys())
KEY = "a-key-of-this-test"


@pytest.fixture(scope="module")
def fleet(tmp_path_factory):
    """A worker with the arguments of a rendered one, and a router with rendered options in front of it, on loopback;
    {(component, port name): url}."""
    objects = RENDERS.get("kustomize/cpu") or RENDERS["helm/values-cpu"]
    with started_programs() as start:
        [worker_of] = our_workers(objects)
        args = [a.replace("/usr/share/incipit/demo-model", str(ROOT / "deploy/demo/model"))
                for a in container_of(worker_of)["args"] if not re.match("--(host|port|log-format)=", a)]
        worker = start(Worker, *args, "--host=127.0.0.1", "--kv-cache-memory-bytes=64MiB").ready()
        options = yaml.safe_load(options_of(objects, routers(objects)[0]))
        here = {k: v for k, v in options.items() if not re.match("k8s-|service-discovery|inference-pool", k)}
        here.update({"host": "127.0.0.1", "admin-host": "127.0.0.1", "worker-urls": [worker.url],
                     "log-format": "text", "state-dir": str(tmp_path_factory.mktemp("state"))})
        del here["port"], here["admin-port"]  # Router() lets the system choose
        file = tmp_path_factory.mktemp("router") / "router.yaml"
        file.write_text(yaml.safe_dump(here | {"admin-api-key": KEY, "prefix-hash-seed": "of-this-test"}))
        router = start(Router, "--config", file)
        urls = {(component, name): f"http://127.0.0.1:{router.field('router_listening', field)}"
                for component, name, field in (("router", "http", "port"), ("router", "admin", "admin_port"))}
        urls["worker", "http"] = worker.url
        wait_for(lambda: http(urls["router", "admin"] + "/readyz").code == 200, "a router that is ready")
        answer = http(urls["router", "http"] + "/v1/completions",
                      {"model": "incipit-demo", "prompt": "The quick brown fox", "max_tokens": 2})
        assert answer.code == 200, answer.body
        yield urls


@each_render
def test_every_probe_is_answered(objects, fleet):
    for component, workloads in (("router", routers(objects)), ("worker", our_workers(objects))):
        for d in workloads:
            for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
                asked = container_of(d)[probe]["httpGet"]
                assert http(fleet[component, asked["port"]] + asked["path"]).code == 200


@each_render
def test_every_scrape_finds_metrics_without_a_key(objects, fleet):
    for d in routers(objects) + our_workers(objects):
        component = d["metadata"]["labels"]["app.kubernetes.io/component"]
        annotations = d["spec"]["template"]["metadata"].get("annotations", {})
        if "prometheus.io/path" in annotations:
            [name] = [p["name"] for p in container_of(d)["ports"] if str(p["containerPort"]) == annotations["prometheus.io/port"]]
            assert "# TYPE" in http(fleet[component, name] + annotations["prometheus.io/path"]).body
    for monitor in of_kind(objects, "PodMonitor", "ServiceMonitor"):
        component = monitor["metadata"]["labels"]["app.kubernetes.io/component"]
        for endpoint in monitor["spec"].get("podMetricsEndpoints", []) + monitor["spec"].get("endpoints", []):
            assert "# TYPE" in http(fleet[component, endpoint["port"]] + endpoint["path"]).body


def test_the_admin_port_is_not_open_beyond_metrics_and_probes(fleet):
    assert http(fleet["router", "admin"] + "/workers").code == 401
    assert http(fleet["router", "admin"] + "/workers", headers={"authorization": f"Bearer {KEY}"}).code == 200


# --- events of the API server ----------------------------------------------------------------------

@pytest.fixture(scope="module")
def api():
    server = ApiServer("--plain")
    yield server
    server.stop()


@pytest.fixture(scope="module")
def sim():
    with started_programs() as start:
        yield start(Worker, "--backend", "sim").ready()


def pod_of(deployment, port, name):
    """A pod of a rendered deployment as the API server has it, on this machine; its http port is `port`."""
    template = deployment["spec"]["template"]
    made = pod(name, "127.0.0.1", labels=template["metadata"]["labels"], namespace="incipit", uid=name)
    made["metadata"]["labels"].pop("app")
    made["metadata"]["annotations"] = template["metadata"].get("annotations", {})
    ports = [{**p, "containerPort": port if p["name"] == "http" else p["containerPort"], "protocol": "TCP"}
             for p in container_of(deployment)["ports"]]
    made["spec"]["containers"][0]["ports"] = ports
    return made


@pytest.mark.parametrize("name", RENDERS)
def test_the_rendered_router_finds_the_rendered_workers_and_nothing_else(name, api, sim, programs, tmp_path):
    objects = RENDERS[name]
    options = yaml.safe_load(options_of(objects, routers(objects)[0]))
    workers = workers_of(objects)
    is_of_elsewhere = "inference-pool" in options or "app=vllm" in options.get("k8s-selector", [])
    if options.get("service-discovery") != "k8s" or not workers or is_of_elsewhere:
        pytest.skip("its workers are of elsewhere")
    api.put(*[pod_of(d, int(sim.url.rsplit(":", 1)[1]), d["metadata"]["name"]) for d in of_kind(objects, "Deployment")])
    options = {k: v for k, v in options.items() if not k.startswith(("tls-", "api-keys-file", "share-redis"))}
    file = tmp_path / "router.yaml"
    file.write_text(yaml.safe_dump(options | {"log-format": "text", "state-dir": str(tmp_path), "admin-api-key": KEY}))
    router = programs(Router, "--config", file, "--host=127.0.0.1", "--admin-host=127.0.0.1", "--k8s-api-server", api.url,
                      "--k8s-namespace=incipit")
    admin = f"http://127.0.0.1:{router.field('router_listening', 'admin_port')}"
    wait_for(lambda: http(admin + "/readyz").code == 200, "a router that found workers")
    listed = http(admin + "/workers", headers={"authorization": f"Bearer {KEY}"}).json["workers"]
    assert [w["url"] for w in listed] == [sim.url]  # one address, however many pods have it here
    for d in of_kind(objects, "Deployment"):
        api.command("force", resource="pods", namespace="incipit", name=d["metadata"]["name"])


def test_the_role_of_a_403_is_the_role_that_is_rendered(api, programs):
    api.command("forbid", verb="list", resource="pods", on=True)
    try:
        router = programs(Router, "--service-discovery", "k8s", "--k8s-namespace=incipit", "--k8s-selector=a=b",
                          "--k8s-api-server", api.url)
        found = wait_for(lambda: re.search(r'kube_forbidden .* role="(.*?)" binding', router.log), "the Role that is missing")
        wanted = yaml.safe_load(found[1])
        for objects in RENDERS.values():
            for role in of_kind(objects, "Role"):
                if role["rules"][0]["resources"] == ["endpointslices"]:
                    continue
                [pods] = [rule for rule in role["rules"] if rule["resources"] == ["pods"]]
                assert pods | {"verbs": pods["verbs"][:2]} == wanted["rules"][0]
    finally:
        api.command("forbid", verb="list", resource="pods", on=False)


def test_redis_takes_its_arguments(tmp_path):
    if not shutil.which("redis-server"):
        pytest.skip("redis-server is not installed")
    [redis] = named(RENDERS["kustomize/redis"], "Deployment", "incipit-redis")
    socket_path = tmp_path / "s"
    process = subprocess.Popen(["redis-server", *container_of(redis)["args"], "--port", "0", "--unixsocket", str(socket_path)],
                               cwd=tmp_path, stdout=subprocess.PIPE, text=True)
    try:
        wait_for(lambda: socket_path.exists() or process.poll() is not None, "its socket")
        assert process.poll() is None, process.stdout.read()
    finally:
        process.terminate()
        process.communicate(timeout=20)


def test_valkey_takes_its_arguments(tmp_path):
    """Of a Redis, whose arguments they are: with a certificate, and a password without which nothing is answered."""
    if not shutil.which("redis-server") or not shutil.which("openssl"):
        pytest.skip("redis-server or openssl is not installed")
    [valkey] = named(RENDERS["kustomize/cpu+valkey"], "Deployment", "incipit-valkey")
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2", "-subj",
                    "/CN=incipit-valkey", "-keyout", tmp_path / "tls.key", "-out", tmp_path / "tls.crt"], check=True, capture_output=True)
    shutil.copy(tmp_path / "tls.crt", tmp_path / "ca.crt")
    (tmp_path / "auth.conf").write_text("requirepass secret\n")
    args = [re.sub("^/etc/valkey(-tls)?/", f"{tmp_path}/", a) for a in container_of(valkey)["args"]]
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        args[args.index("--tls-port") + 1] = str(s.getsockname()[1])
    socket_path = tmp_path / "s"
    process = subprocess.Popen(["redis-server", *args, "--unixsocket", str(socket_path)], cwd=tmp_path, stdout=subprocess.PIPE, text=True)
    try:
        wait_for(lambda: socket_path.exists() or process.poll() is not None, "its socket")
        assert process.poll() is None, process.stdout.read()
        with socket.socket(socket.AF_UNIX) as s:
            s.connect(str(socket_path))
            s.sendall(b"GET a\r\n")
            assert s.recv(100).startswith(b"-NOAUTH")
    finally:
        process.terminate()
        process.communicate(timeout=20)


# --- what is scaled on -------------------------------------------------------------------------------

def queries(objects):
    """Every expression that an autoscaler asks."""
    for o in of_kind(objects, "ScaledObject"):
        yield from (t["metadata"]["query"] for t in o["spec"]["triggers"])
    for o in of_kind(objects, "HorizontalPodAutoscaler"):
        yield from (m["external"]["metric"]["name"] + "{}" for m in o["spec"]["metrics"] if m["type"] == "External")


def test_every_metric_that_something_scales_on_is_exported(fleet):
    pages = http(fleet["router", "admin"] + "/metrics").body + http(fleet["worker", "http"] + "/metrics").body
    asked = {q for objects in RENDERS.values() for q in queries(objects)}
    rules = yaml.safe_load((KUSTOMIZE / "components/hpa/prometheus-adapter.yaml").read_text())["rules"]["external"]
    asked |= {rule["seriesQuery"] for rule in rules}
    names = {name for q in asked for name in re.findall(r"([a-zA-Z_:]+)\{", q)}
    assert "incipit_saturation" in names and "vllm:num_requests_waiting" in names
    for name in names:
        if not name.startswith("sglang:"):  # another engine's own
            metric(pages, name)
    sglang = {name for name in names if name.startswith("sglang:")}
    assert all(f'"{name}"' in (ROOT / "router/fleet/engine_stats.c").read_text() for name in sglang)


def test_the_autoscaler_reads_the_model_that_the_router_serves(fleet):
    page = http(fleet["router", "admin"] + "/metrics").body
    assert 'incipit_saturation{model="incipit-demo"}' in page


def test_adapter_rules_serve_the_autoscalers_queries():
    rules = yaml.safe_load((KUSTOMIZE / "components/hpa/prometheus-adapter.yaml").read_text())["rules"]["external"]
    served = {rule["name"]["as"] for rule in rules}
    asked = {m["external"]["metric"]["name"] for objects in RENDERS.values()
             for o in of_kind(objects, "HorizontalPodAutoscaler") for m in o["spec"]["metrics"] if m["type"] == "External"}
    assert asked == served or not of_kind(sum(RENDERS.values(), []), "HorizontalPodAutoscaler")
