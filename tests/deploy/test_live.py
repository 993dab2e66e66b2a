"""What is rendered, asked of live programs: probe paths, ports, scrape paths, and every metric that something scales on."""
import pathlib
import re
import sys

import pytest
import yaml

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "integration"))
from conftest import Router, Worker, http, metric, started_programs, wait_for  # noqa: E402

from rendered import (KUSTOMIZE, ROOT, all_renders, container_of, of_kind, options_of,  # noqa: E402
                      our_workers, routers)

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
                     "log-format": "text"})
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
    assert all(f'"{name}"' in (ROOT / "router/engine_stats.c").read_text() for name in sglang)


def test_the_model_that_is_scaled_on_is_the_one_that_the_router_knows(fleet):
    page = http(fleet["router", "admin"] + "/metrics").body
    assert 'incipit_saturation{model="incipit-demo"}' in page


def test_adapter_rules_serve_what_the_autoscaler_asks():
    rules = yaml.safe_load((KUSTOMIZE / "components/hpa/prometheus-adapter.yaml").read_text())["rules"]["external"]
    served = {rule["name"]["as"] for rule in rules}
    asked = {m["external"]["metric"]["name"] for objects in RENDERS.values()
             for o in of_kind(objects, "HorizontalPodAutoscaler") for m in o["spec"]["metrics"] if m["type"] == "External"}
    assert asked == served or not of_kind(sum(RENDERS.values(), []), "HorizontalPodAutoscaler")
