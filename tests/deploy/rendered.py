"""deploy/kustomize and deploy/helm, rendered: lists of objects, by name. For tests/deploy."""
import atexit
import functools
import os
import pathlib
import shutil
import subprocess
import tempfile

import yaml

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = ROOT / os.environ.get("INCIPIT_BUILD", "build/release")
WORK = ROOT / "build/deploy"
CHART = ROOT / "deploy/helm/incipit"
KUSTOMIZE = ROOT / "deploy/kustomize"
VERSION = (ROOT / "VERSION").read_text().strip()
RENDER = WORK / "render"

TIERS = ("ssd", "hostpath", "valkey", "peers")  # components for workers of ours alone

# Beside the examples: what they leave out.
MORE_VALUES = {
    "none": {"workers": [], "router": {"workerUrls": ["http://10.0.0.7:8000"], "serviceDiscovery": {"enabled": False}}},
    "sglang": {"workers": [{"name": "sg", "engine": "sglang", "model": "org/name", "gpu": {"count": 4}, "shmSize": "8Gi"}]},
    "sglangApart": {"workers": [{"name": n, "engine": "sglang", "model": "org/name", "role": n} for n in ("prefill", "decode")]},
    "mooncake": {"workers": [{"name": n, "engine": "vllm", "model": "org/name", "role": n, "kvConnector": "MooncakeConnector"}
                             for n in ("prefill", "decode")]},
    "ownApart": {"workers": [{"name": n, "model": "org/name", "role": n, "kv": {"hostMemory": "1GiB", "keySecret": "kv-key"}}
                             for n in ("prefill", "decode")]},
    "wide": {"router": {"serviceDiscovery": {"clusterWide": True, "selector": {"app": "vllm"}, "writeDeletionCost": True,
                                             "port": 8000}}},
    "slices": {"workers": [], "router": {"serviceDiscovery": {"namespace": "models"},
                                         "options": {"k8s-resource": "endpointslices", "k8s-service": "vllm"}}},
    "pool": {"router": {"serviceDiscovery": {"inferencePool": "pool", "namespace": "models"}}},
    # As smg's chart has them: whole numbers, not "32MiB".
    "numbers": {"router": {"maxPayloadSize": 536870912, "maxConcurrentRequests": 2000000, "requestTimeoutSecs": 1800,
                           "cacheThreshold": 0.3, "options": {"max-index-bytes": 67108864}}},
    "called": {"fullnameOverride": "llm", "router": {"metrics": {"serviceMonitor": {"enabled": True}}},
               "metrics": {"podMonitor": {"enabled": True}}},
    "node": {"workers": [{"name": "a", "model": "org/name", "kv": {"hostMemory": "512MiB", "keySecret": "kv-key", "file": {
        "hostPath": "/mnt/disks/ssd0/incipit-kv", "bytes": "300GiB"}}}]},
    "peers": {"workers": [{"name": "a", "model": "org/name", "kv": {"hostMemory": "512MiB", "keySecret": "kv-key", "peers": True,
                                                                    "holdBytes": "128MiB"}}]},
    "all": {"router": {"autoscaling": {"enabled": True}, "tls": {"secretName": "cert"},
                       "metrics": {"serviceMonitor": {"enabled": True}},
                       "ingress": {"enabled": True, "hosts": [{"host": "a.example"}], "tls": [{"hosts": ["a.example"]}]}},
            "metrics": {"podMonitor": {"enabled": True}}, "prometheusRule": {"enabled": True},
            "grafana": {"dashboard": {"enabled": True}}, "keda": {"enabled": True},
            "auth": {"apiKey": "k", "keysSecret": "keys"}, "huggingface": {"token": "t"}},
}


def helm(*values, release="incipit"):
    """Objects of the chart, with values files or dictionaries over its own."""
    with tempfile.TemporaryDirectory() as folder:
        paths = []
        for i, one in enumerate(values):
            if isinstance(one, dict):
                path = pathlib.Path(folder) / f"{i}.yaml"
                path.write_text(yaml.safe_dump(one))
                one = path
            paths.append(str(one))
        done = subprocess.run([RENDER, CHART, *paths], capture_output=True, text=True,
                              env={**os.environ, "RELEASE": release})
    assert done.returncode == 0, done.stderr
    return [o for o in yaml.safe_load_all(done.stdout) if o], done.stderr


@functools.lru_cache
def sources():
    """A copy of deploy/kustomize with secrets of its own, so that nothing is written beside the sources."""
    copy = pathlib.Path(tempfile.mkdtemp(prefix="incipit-kustomize-"))
    atexit.register(shutil.rmtree, copy)
    shutil.copytree(KUSTOMIZE, copy / "k", ignore=shutil.ignore_patterns("secrets.env"))
    subprocess.run([copy / "k/make-secrets"], check=True, capture_output=True)
    return copy / "k"


def kustomize(folder):
    done = subprocess.run(["kubectl", "kustomize", str(folder)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "deprecated" not in done.stderr, done.stderr
    return [o for o in yaml.safe_load_all(done.stdout) if o]


def overlay_with(component, overlay):
    """An overlay with one more component, as a user would add it."""
    folder = sources() / "overlays" / f"{overlay}-{component}"
    folder.mkdir(exist_ok=True)
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(
        {"apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization",
         "resources": [f"../{overlay}"], "components": [f"../../components/{component}"]}))
    return folder


@functools.lru_cache
def all_renders():
    """{name: objects} of everything that can be rendered here."""
    found = {}
    if shutil.which("kubectl"):
        for folder in sorted((KUSTOMIZE / "overlays").iterdir()):
            if (folder / "kustomization.yaml").exists():
                found[f"kustomize/{folder.name}"] = kustomize(sources() / "overlays" / folder.name)
        for component in sorted((KUSTOMIZE / "components").iterdir()):
            for overlay in ("cpu", "gpu") if component.name in TIERS else ("cpu", "gpu", "vllm", "redis"):
                found[f"kustomize/{overlay}+{component.name}"] = kustomize(overlay_with(component.name, overlay))
    if RENDER.exists():
        found["helm/default"] = helm()[0]
        for path in sorted((CHART / "examples").glob("*.yaml")):
            found[f"helm/{path.stem}"] = helm(path)[0]
        for name, values in MORE_VALUES.items():
            found[f"helm/{name}"] = helm(values)[0]
    return found


# --- reading objects ---------------------------------------------------------------------------------

def of_kind(objects, *kinds):
    return [o for o in objects if o["kind"] in kinds]


def named(objects, kind, name):
    return [o for o in of_kind(objects, kind) if o["metadata"]["name"] == name]


def container_of(workload):
    [container] = workload["spec"]["template"]["spec"]["containers"]
    return container


def routers(objects):
    return [d for d in of_kind(objects, "Deployment") if container_of(d)["name"] == "router"]


def our_workers(objects):
    return [d for d in of_kind(objects, "Deployment") if "incipit-worker" in container_of(d)["image"]]


def workers_of(objects):
    """Ours and others'."""
    return [d for d in of_kind(objects, "Deployment") if d["metadata"]["labels"]["app.kubernetes.io/component"] == "worker"]


def options_of(objects, router):
    """The options in the ConfigMap that a router mounts as its --config."""
    [volume] = [v for v in router["spec"]["template"]["spec"]["volumes"] if v["name"] == "options"]
    [config] = named(objects, "ConfigMap", volume["configMap"]["name"])
    return config["data"]["router.yaml"]


def matches(selector, labels):
    return all(labels.get(k) == v for k, v in selector.items())
