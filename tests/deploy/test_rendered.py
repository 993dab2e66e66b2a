"""Everything that deploy/ renders is real: its objects fit each other, the programs, and Kubernetes."""
import json
import os
import pathlib
import re
import subprocess

import pytest
import yaml

from rendered import (BUILD, CHART, KUSTOMIZE, ROOT, VERSION, all_renders, container_of, helm, matches, named, of_kind,
                      options_of, our_workers, routers, workers_of)

RENDERS = all_renders()
each_render = pytest.mark.parametrize("objects", RENDERS.values(), ids=RENDERS.keys())
TYPES = json.loads((pathlib.Path(__file__).parent / "custom_types.json").read_text())


# --- Kubernetes --------------------------------------------------------------------------------------

@pytest.mark.parametrize("version", ["1.27", "1.35"])
@each_render
def test_objects_match_the_schemas_of_kubernetes(objects, version):
    validate = pytest.importorskip("kubernetes_validate", reason="SKIPPED: pip cannot install kubernetes-validate")
    for o in objects:
        if o["apiVersion"] not in TYPES:
            validate.validate(o, version, strict=True)


@each_render
def test_objects_of_operators_match_their_schemas(objects):
    jsonschema = pytest.importorskip("jsonschema")
    for o in objects:
        if o["apiVersion"] in TYPES:
            jsonschema.validate(o, TYPES[o["apiVersion"]][o["kind"]])


@each_render
def test_names_are_unique_and_labels_are_labels(objects):
    seen = [(o["kind"], o["metadata"].get("namespace"), o["metadata"]["name"]) for o in objects]
    assert len(set(seen)) == len(seen)
    for o in objects:
        assert re.fullmatch(r"[a-z0-9]([-a-z0-9.]{0,61}[a-z0-9])?", o["metadata"]["name"]), o["metadata"]["name"]
        for value in o["metadata"].get("labels", {}).values():
            assert re.fullmatch(r"([A-Za-z0-9][-A-Za-z0-9_.]{0,61}[A-Za-z0-9]|[A-Za-z0-9])?", value), value


def restricted(pod):
    """The Pod Security Standard `restricted`, and a root that cannot be written."""
    security = pod["securityContext"]
    assert security["runAsNonRoot"] is True and security["runAsUser"] == 65532
    assert security["seccompProfile"]["type"] == "RuntimeDefault"
    for container in pod["containers"]:
        own = container["securityContext"]
        assert own["allowPrivilegeEscalation"] is False and own["capabilities"] == {"drop": ["ALL"]}
        assert own["readOnlyRootFilesystem"] is True
    kinds = {"configMap", "emptyDir", "secret", "persistentVolumeClaim", "ephemeral"}
    assert all(set(v) & kinds or v["name"] == "kv" and set(v) & {"hostPath"} for v in pod["volumes"])


@each_render
def test_pods_of_ours_are_restricted_and_get_no_service_links(objects):
    for deployment in of_kind(objects, "Deployment"):
        # A service called incipit sets INCIPIT_PORT=tcp://..., which is an option.
        assert deployment["spec"]["template"]["spec"]["enableServiceLinks"] is False
    for deployment in routers(objects) + our_workers(objects):
        restricted(deployment["spec"]["template"]["spec"])


@each_render
def test_images_of_ours_have_a_dockerfile_and_this_version(objects):
    for deployment in routers(objects) + our_workers(objects):
        name, tag = container_of(deployment)["image"].rsplit(":", 1)
        assert tag == VERSION
        assert (ROOT / "deploy/docker" / f"Dockerfile.{name.removeprefix('incipit-')}").exists()


# --- objects and each other --------------------------------------------------------------------------

def pods(objects):
    return {d["metadata"]["name"]: d["spec"]["template"]["metadata"]["labels"] for d in of_kind(objects, "Deployment")}


def selectors(objects):
    """(who, selector) of everything that must find pods."""
    for o in objects:
        spec, name = o.get("spec", {}), f"{o['kind']} {o['metadata']['name']}"
        if o["kind"] == "Service":
            yield name, spec["selector"]
        elif o["kind"] in ("PodDisruptionBudget", "PodMonitor"):
            yield name, spec["selector"]["matchLabels"]
        elif o["kind"] == "NetworkPolicy":
            yield name, spec["podSelector"]["matchLabels"]
            for rule in spec.get("ingress", []) + spec.get("egress", []):
                for peer in (rule or {}).get("from", []) + (rule or {}).get("to", []):
                    if "podSelector" in peer:
                        yield name, peer["podSelector"]["matchLabels"]
        elif o["kind"] == "Deployment":
            for constraint in spec["template"]["spec"].get("topologySpreadConstraints", []):
                yield name, constraint["labelSelector"]["matchLabels"]


@each_render
def test_every_selector_finds_pods(objects):
    for name, selector in selectors(objects):
        found = [p for p, labels in pods(objects).items() if matches(selector, labels)]
        assert found, f"{name}: no pod has {selector}"


@each_render
def test_a_deployment_selects_its_own_pods_and_no_others(objects):
    for d in of_kind(objects, "Deployment"):
        found = [p for p, labels in pods(objects).items() if matches(d["spec"]["selector"]["matchLabels"], labels)]
        assert found == [d["metadata"]["name"]]


@each_render
def test_routers_look_for_the_workers_of_the_same_render(objects):
    for router in routers(objects):
        options = yaml.safe_load(options_of(objects, router))
        workers = workers_of(objects)
        selector = dict(pair.split("=", 1) for pair in options.get("k8s-selector", []))
        if not workers or not selector or "app" in selector:  # workers of elsewhere
            continue
        for worker in workers:
            assert matches(selector, worker["spec"]["template"]["metadata"]["labels"])
            names = [p["name"] for p in container_of(worker)["ports"]]
            assert names == ["http"], "the router takes the container port called http"
        assert not matches(selector, router["spec"]["template"]["metadata"]["labels"])


@each_render
def test_service_monitors_find_services_of_the_same_render(objects):
    for monitor in of_kind(objects, "ServiceMonitor"):
        found = [s for s in of_kind(objects, "Service")
                 if matches(monitor["spec"]["selector"]["matchLabels"], s["metadata"]["labels"])]
        assert len(found) == 1
        assert {e["port"] for e in monitor["spec"]["endpoints"]} <= {p["name"] for p in found[0]["spec"]["ports"]}


@each_render
def test_alerts_use_the_job_names_of_routers_and_workers(objects):
    for monitor in of_kind(objects, "ServiceMonitor", "PodMonitor"):
        spec, component = monitor["spec"], monitor["metadata"]["labels"]["app.kubernetes.io/component"]
        for endpoint in spec.get("endpoints", []) + spec.get("podMetricsEndpoints", []):
            named_by = [r["replacement"] for r in endpoint.get("relabelings", []) if r["targetLabel"] == "job"]
            [job] = named_by or [f"incipit/{monitor['metadata']['name']}"]  # an operator's own: NAMESPACE/NAME
            assert f"incipit-{component}" in job, job
    rules = (ROOT / "deploy/prometheus/rules.yaml").read_text()
    assert set(re.findall(r'job=~"([^"]*)"', rules)) <= {".*incipit.*", ".*incipit-router.*"}


@each_render
def test_a_new_chart_restarts_no_worker(objects):
    """Its caches would go: a pod's template must not change with the chart's version alone."""
    for d in of_kind(objects, "Deployment"):
        assert not {"helm.sh/chart", "app.kubernetes.io/version"} & set(d["spec"]["template"]["metadata"]["labels"])


@each_render
def test_every_named_object_exists(objects):
    """Config maps, secrets, claims and accounts; a secret of the user's is named in values, or optional."""
    given = {"cert", "keys", "huggingface", "incipit-valkey-tls", "store-password", "store-ca", "kv-key"}
    for d in of_kind(objects, "Deployment"):
        pod, container = d["spec"]["template"]["spec"], container_of(d)
        assert named(objects, "ServiceAccount", pod["serviceAccountName"])
        for volume in pod["volumes"]:
            if "configMap" in volume:
                assert named(objects, "ConfigMap", volume["configMap"]["name"])
            if "persistentVolumeClaim" in volume:
                assert named(objects, "PersistentVolumeClaim", volume["persistentVolumeClaim"]["claimName"])
            if "secret" in volume:
                assert volume["secret"]["secretName"] in given or named(objects, "Secret", volume["secret"]["secretName"])
        assert {m["name"] for m in container["volumeMounts"]} == {v["name"] for v in pod["volumes"]}
        for source in container.get("envFrom", []):
            assert named(objects, "Secret", source["secretRef"]["name"])
        for variable in container.get("env", []):
            ref = variable.get("valueFrom", {}).get("secretKeyRef")
            assert not ref or ref.get("optional") or ref["name"] in given or named(objects, "Secret", ref["name"])
    for target in of_kind(objects, "HorizontalPodAutoscaler", "ScaledObject"):
        [deployment] = named(objects, "Deployment", target["spec"]["scaleTargetRef"]["name"])
        assert "replicas" not in deployment["spec"], "each rollout would undo what the autoscaler did"
    for binding in of_kind(objects, "RoleBinding", "ClusterRoleBinding"):
        assert named(objects, binding["roleRef"]["kind"], binding["roleRef"]["name"])
        for subject in binding["subjects"]:
            assert named(objects, "ServiceAccount", subject["name"])
            assert subject["namespace"] == "incipit"


def port_of(container, name):
    [port] = [p["containerPort"] for p in container["ports"] if p["name"] == name]
    return port


@each_render
def test_a_url_in_the_options_is_a_service_of_the_render(objects):
    for router in routers(objects):
        url = yaml.safe_load(options_of(objects, router)).get("share-redis")
        if url and of_kind(objects, "Namespace"):  # the chart's is the user's
            name, port = re.fullmatch(r"redis://([a-z-]+):(\d+)", url).groups()
            [service] = named(objects, "Service", name)
            assert int(port) in [p["port"] for p in service["spec"]["ports"]]


@each_render
def test_ports_named_anywhere_are_ports_of_the_pods(objects):
    deployments = of_kind(objects, "Deployment")

    def of(selector):
        return [container_of(d) for d in deployments if matches(selector, d["spec"]["template"]["metadata"]["labels"])]

    for service in of_kind(objects, "Service"):
        for port in service["spec"]["ports"]:
            assert all(port_of(c, port["targetPort"]) for c in of(service["spec"]["selector"]))
    for policy in of_kind(objects, "NetworkPolicy"):
        open_ports = {p["port"] for rule in policy["spec"]["ingress"] for p in rule.get("ports", [])}
        for c in of(policy["spec"]["podSelector"]["matchLabels"]):
            assert open_ports == {p["name"] for p in c["ports"]}
    for monitor in of_kind(objects, "PodMonitor"):
        for endpoint in monitor["spec"]["podMetricsEndpoints"]:
            assert all(port_of(c, endpoint["port"]) for c in of(monitor["spec"]["selector"]["matchLabels"]))
    for d in deployments:
        c, annotations = container_of(d), d["spec"]["template"]["metadata"].get("annotations", {})
        for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
            assert port_of(c, (c[probe].get("httpGet") or c[probe]["tcpSocket"])["port"])
        if "prometheus.io/port" in annotations:
            assert int(annotations["prometheus.io/port"]) in [p["containerPort"] for p in c["ports"]]
    for ingress in of_kind(objects, "Ingress"):
        for rule in ingress["spec"]["rules"]:
            for path in rule["http"]["paths"]:
                [service] = named(objects, "Service", path["backend"]["service"]["name"])
                assert path["backend"]["service"]["port"]["name"] in [p["name"] for p in service["spec"]["ports"]]


# --- objects and programs ----------------------------------------------------------------------------

def effective(program, args, environment=None):
    """What the program understands: its --dump-config, as a dictionary."""
    done = subprocess.run([BUILD / program, *map(str, args), "--dump-config"], capture_output=True, text=True,
                          env={"PATH": os.environ["PATH"], **(environment or {})})
    assert done.returncode == 0, done.stderr
    assert not done.stderr, done.stderr  # nothing was passed over
    return yaml.safe_load(done.stdout)


def seconds(duration):
    number, unit = re.fullmatch(r"(\d+)(ms|s|m|h)", str(duration)).groups()
    return int(number) * {"ms": 0.001, "s": 1, "m": 60, "h": 3600}[unit]


@each_render
def test_the_router_takes_its_options_and_listens_at_the_given_port(objects, tmp_path):
    for router in routers(objects):
        file, c = tmp_path / "router.yaml", container_of(router)
        file.write_text(options_of(objects, router))
        [flag] = [a for a in c["args"] if a.startswith("--config=")]
        mounts = {m["name"]: m["mountPath"] for m in c["volumeMounts"]}
        assert flag == f"--config={mounts['options']}/router.yaml"
        options = effective("incipit-router", [f"--config={file}", *[a for a in c["args"] if a != flag]])
        assert options["host"] == options["admin-host"] == "0.0.0.0"
        assert (options["port"], options["admin-port"]) == (port_of(c, "http"), port_of(c, "admin"))
        for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
            assert c[probe]["httpGet"].get("scheme", "HTTP") == ("HTTPS" if options.get("tls-cert-path") else "HTTP")
        for name in ("tls-cert-path", "tls-key-path", "api-keys-file"):
            path = options.get(name)
            assert not path or os.path.dirname(path) in mounts.values()
        assert options["state-dir"] == mounts["state"]
        grace = router["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]
        assert grace == seconds(options["drain-settle"]) + seconds(options["drain-timeout"]) + 10


@each_render
def test_the_secret_has_the_routers_variables(objects):
    for router in routers(objects):
        [source] = container_of(router)["envFrom"]
        [secret] = named(objects, "Secret", source["secretRef"]["name"])
        assert {"INCIPIT_PREFIX_HASH_SEED", "INCIPIT_ADMIN_API_KEY"} <= set(secret["data"])
        known = subprocess.run([BUILD / "incipit-router", "--dump-config"], capture_output=True, text=True,
                               env={name: "a-text-of-this-test" for name in secret["data"]}).stdout
        for name in secret["data"]:
            assert re.search(f"^# {name[8:].lower().replace('_', '-')}: [*]+  # environment$", known, re.M), name


@each_render
def test_workers_take_their_arguments_and_listen_at_the_given_port(objects):
    for worker in our_workers(objects):
        c = container_of(worker)
        options = effective("incipit-worker", c["args"])
        assert options["host"] == "0.0.0.0" and options["port"] == port_of(c, "http")
        assert options["model"] == "/usr/share/incipit/demo-model" or re.fullmatch(r"[\w.-]+/[\w.-]+", options["model"])
        grace = worker["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]
        assert grace == seconds(options["drain-timeout"]) + 10
        assert options["trust-router"] is bool(of_kind(objects, "NetworkPolicy"))
        [mount] = [m["mountPath"] for m in c["volumeMounts"] if m["name"] == "models"]
        [home] = [e["value"] for e in c.get("env", []) if e["name"] == "HF_HOME"] or [mount + "/huggingface"]
        assert home.startswith(mount)


def tiered(objects):
    """(worker, its options) of those that keep KV below host memory."""
    found = [(w, effective("incipit-worker", container_of(w)["args"])) for w in our_workers(objects)]
    return [(w, o) for w, o in found if "kv-file" in o or "kv-store" in o or o["kv-peers"]]


def gib(size):
    number, unit = re.fullmatch(r"(\d+)(MiB|GiB|TiB|Mi|Gi|Ti)", str(size)).groups()
    return int(number) * {"M": 1 / 1024, "G": 1, "T": 1024}[unit[0]]


def parent(path):
    return os.path.dirname(path)


@each_render
def test_kv_below_host_memory_has_its_place(objects):
    """Folders are mounts that can be written, within the volume and the container's memory; files are mounts of secrets
    that the worker's group can read, and nobody else."""
    for worker, options in tiered(objects):
        pod, c = worker["spec"]["template"]["spec"], container_of(worker)
        mounts = {m["mountPath"]: m for m in c["volumeMounts"]}
        volumes = {v["name"]: v for v in pod["volumes"]}
        assert 0 < gib(options["kv-offload-bytes"]) < gib(c["resources"]["limits"]["memory"])
        assert pod["securityContext"]["fsGroup"] == pod["securityContext"]["runAsGroup"]
        if "kv-file" in options:
            mount = mounts.get(options["kv-file"]) or mounts[parent(options["kv-file"])]
            volume = volumes[mount["name"]]
            assert not mount.get("readOnly")
            if "ephemeral" in volume:
                spec = volume["ephemeral"]["volumeClaimTemplate"]["spec"]
                assert gib(options["kv-file-bytes"]) <= 0.9 * gib(spec["resources"]["requests"]["storage"])
                assert mount["mountPath"] == parent(options["kv-file"]), "the root of a volume has lost+found, and is its owner's"
            else:
                assert volume["hostPath"]["type"] == "Directory", "one that the kubelet makes is root's"
        for name in ("kv-store-password-file", "kv-store-ca-file", "kv-key-file"):
            assert name not in options or mounts[parent(options[name])]["readOnly"]
        if "kv-key-file" in options:
            secret = volumes[mounts[parent(options["kv-key-file"])]["name"]]["secret"]
            assert secret["defaultMode"] == 0o440


@each_render
def test_peers_prove_themselves_and_reach_each_other(objects):
    for worker, options in tiered(objects):
        if not options["kv-peers"]:
            continue
        assert options["kv-key-file"] and not options["kv-peer-plain"]
        assert not options["hold-bytes"] or gib(options["hold-bytes"]) <= gib(options["kv-offload-bytes"]) / 2
        labels = worker["spec"]["template"]["metadata"]["labels"]
        policies = [p["spec"] for p in of_kind(objects, "NetworkPolicy") if matches(p["spec"]["podSelector"]["matchLabels"], labels)]
        for way, end in (("ingress", "from"), ("egress", "to")):
            assert not policies or any(matches(peer["podSelector"]["matchLabels"], labels) for policy in policies
                                       for rule in policy.get(way, []) for peer in rule.get(end, []) if "podSelector" in peer), way


@each_render
def test_a_store_is_encrypted_and_can_be_reached(objects):
    for worker, options in tiered(objects):
        if "kv-store" not in options:
            continue
        assert options["kv-store"].startswith("rediss://") and options["kv-key-file"] and not options["kv-store-plain"]
        host, port = re.fullmatch(r"rediss://([\w.-]+):(\d+)", options["kv-store"]).groups()
        policies = [p for p in of_kind(objects, "NetworkPolicy")
                    if matches(p["spec"]["podSelector"]["matchLabels"], worker["spec"]["template"]["metadata"]["labels"])]
        assert not policies or any(int(port) in [p["port"] for p in rule.get("ports", [])]
                                   for policy in policies for rule in policy["spec"]["egress"])
        for service in named(objects, "Service", host):
            assert int(port) in [p["port"] for p in service["spec"]["ports"]]
            [store] = named(objects, "Deployment", host)
            args = container_of(store)["args"]
            given = dict(zip(args, args[1:]))
            assert given["--maxmemory-policy"] == "allkeys-lru" and given["--port"] == "0" and given["--tls-port"] == port
            assert float(given["--maxmemory"].removesuffix("gb")) <= 0.8 * gib(container_of(store)["resources"]["limits"]["memory"])


def environment(container):
    return {e["name"]: e for e in container.get("env", [])}


@each_render
def test_workers_apart_have_partners_that_they_can_reach(objects):
    """Roles are labels that the router reads; both have one model and connector, and no port between them is closed."""
    own = {container_of(d)["image"] for d in our_workers(objects)}
    apart = {}
    for worker in workers_of(objects):
        labels, c = worker["spec"]["template"]["metadata"]["labels"], container_of(worker)
        if "incipit.dev/role" in labels:
            apart.setdefault(labels["incipit.dev/role"], []).append((labels, c, " ".join(c["args"])))
    if not apart:
        return
    assert set(apart) == {"prefill", "decode"}
    assert len({re.search(r"(?:--model(?:-path)?=)?(\S+)", args)[1] for found in apart.values() for _, _, args in found}) == 1
    for role, found in apart.items():
        for labels, c, args in found:
            for policy in of_kind(objects, "NetworkPolicy"):
                if not matches(policy["spec"]["podSelector"]["matchLabels"], labels):
                    continue
                for way, peers in (("ingress", "from"), ("egress", "to")):
                    assert any((c["image"] in own or "ports" not in rule) and matches(peer["podSelector"]["matchLabels"], labels)
                               for rule in policy["spec"][way] for peer in rule.get(peers, []) if "podSelector" in peer)
            if c["image"] in own:
                options = effective("incipit-worker", c["args"])
                assert options["role"] == role and options["kv-peers"] and options["kv-key-file"] and options["kv-offload-bytes"]
                continue
            if "sglang" in c["image"]:
                assert f"--disaggregation-mode={role}" in args
                continue
            transfer = json.loads(re.search(r"--kv-transfer-config=(\{.*?\})", args)[1])
            connector = labels.get("incipit.dev/kv-connector", "NixlConnector")
            roles = {"NixlConnector": ("kv_both", "kv_both"), "MooncakeConnector": ("kv_producer", "kv_consumer")}
            assert transfer == {"kv_connector": connector, "kv_role": roles[connector][role == "decode"]}
            assert environment(c)["VLLM_NIXL_SIDE_CHANNEL_HOST"]["valueFrom"]["fieldRef"]["fieldPath"] == "status.podIP"


@each_render
def test_a_rule_without_ports_is_for_workers_and_routers_alone(objects):
    for policy in of_kind(objects, "NetworkPolicy"):
        for rule in policy["spec"]["ingress"]:
            assert "ports" in rule or {p["podSelector"]["matchLabels"]["app.kubernetes.io/component"]
                                       for p in rule["from"]} == {"worker", "router"}


@each_render
def test_a_draining_pod_is_not_restarted(objects):
    for d in routers(objects) + our_workers(objects):
        c = container_of(d)
        assert c["livenessProbe"]["httpGet"]["path"] == c["startupProbe"]["httpGet"]["path"] == "/livez"
        assert c["readinessProbe"]["httpGet"]["path"] == "/readyz"
        assert c["readinessProbe"].get("failureThreshold", 3) >= 3, "one probe that comes late empties a Service"


@each_render
def test_the_role_equals_the_routers_requests(objects):
    for router in routers(objects):
        options = yaml.safe_load(options_of(objects, router))
        roles = of_kind(objects, "Role", "ClusterRole")
        if options.get("service-discovery") != "k8s":
            assert not roles
            continue
        verbs = ["list", "watch"] + ["patch"] * bool(options.get("k8s-write-deletion-cost"))
        wanted = [{"apiGroups": [""], "resources": ["pods"], "verbs": verbs}]
        if options.get("k8s-resource") == "endpointslices":
            wanted = [{"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": verbs}]
        if "inference-pool" in options:
            groups = ["inference.networking.k8s.io", "inference.networking.x-k8s.io"]  # clusters may have the older alone
            wanted.append({"apiGroups": groups, "resources": ["inferencepools"], "verbs": ["list", "watch"]})
        [role] = roles
        assert role["rules"] == wanted
        assert role["kind"] == ("ClusterRole" if options.get("k8s-all-namespaces") else "Role")


# --- the chart's values ------------------------------------------------------------------------------

VALUES = yaml.safe_load((CHART / "values.yaml").read_text())
SCHEMA = json.loads((CHART / "values.schema.json").read_text())


def leaves(value, path=()):
    if isinstance(value, dict) and value:
        for key, below in value.items():
            yield from leaves(below, path + (key,))
    elif path[0] != "workers":
        yield path, value


LEAVES = list(leaves(VALUES))
# Another value for what has none, or where not every value is one.
OTHER = {
    "policy": "chwbl", "pullPolicy": "Always", "level": "debug", "type": "LoadBalancer",
    "engine": "vllm", "role": "decode", "kvConnector": "MooncakeConnector", "accessMode": "ReadWriteOnce",
    "selector": {"app": "x"}, "workerUrls": ["http://10.1.1.1:8000"], "shareRedis": "redis://cache:6380",
    "extraArgs": ["--log-level=debug"],
    "extraEnv": [{"name": "A", "value": "b"}], "options": {"slow-start": "30s"},
    "hosts": [{"host": "b.example"}],
    "tls": [{"hosts": ["b.example"]}], "imagePullSecrets": [{"name": "pull"}], "tolerations": [{"operator": "Exists"}],
    "topologySpreadConstraints": [{"maxSkew": 2, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}],
    "hostMemory": "2GiB", "holdBytes": "512MiB", "bytes": "7GiB", "hostPath": "/x", "url": "rediss://b:6380",
    "apiServerPorts": [16443], "endpoint": "/ready", "interval": "60s", "size": "7Gi", "shmSize": "7Gi",
    "saturation": "0.6", "waiting": "9", "maxPayloadSize": "64MiB", "weight": 0, "key": "k", "values": ["v"],
    "matchExpressions": [], "preferredDuringSchedulingIgnoredDuringExecution": [],
}
# What must be so for a value to matter.
WITH = {
    ("router", "replicas"): {}, ("router", "autoscaling"): {"router": {"autoscaling": {"enabled": True}}},
    ("router", "ingress", "hosts"): {"router": {"ingress": {"enabled": True}}},
    ("router", "ingress"): {"router": {"ingress": {"enabled": True, "hosts": [{"host": "a.example"}]}}},
    ("router", "metrics", "serviceMonitor"): {"router": {"metrics": {"serviceMonitor": {"enabled": True}}}},
    ("metrics",): {"metrics": {"podMonitor": {"enabled": True}}}, ("keda",): {"keda": {"enabled": True}},
    ("prometheusRule",): {"prometheusRule": {"enabled": True}},
    ("grafana",): {"grafana": {"dashboard": {"enabled": True}}},
    ("workerDefaults", "storage"): {"workerDefaults": {"storage": {"size": "9Gi"}}},
    ("workerDefaults", "kv", "file", "hostPath"): {"workerDefaults": {"kv": {"hostMemory": "1GiB"}}},
    ("workerDefaults", "kv", "file"): {"workerDefaults": {"kv": {"hostMemory": "1GiB", "file": {"size": "9Gi"}}}},
    ("workerDefaults", "kv"): {"workerDefaults": {"kv": {"hostMemory": "1GiB", "keySecret": "k", "store": {"url": "rediss://a:6379"}}}},
    ("workerDefaults", "autoscaling"): {"keda": {"enabled": True}},
    ("workerDefaults", "role"): {"workerDefaults": {"kv": {"hostMemory": "1GiB", "keySecret": "k"}}},
    ("workerDefaults", "kvConnector"): {"workerDefaults": {"engine": "vllm", "role": "prefill"}},
    ("workerDefaults", "model"): {"workers": [{"name": "demo"}], "workerDefaults": {"model": "org/name"}},
    ("workerDefaults", "servedModelName"): {"workers": [{"name": "demo", "model": "org/name"}]},
    ("workerDefaults", "extraArgs"): {"workers": [{"name": "demo", "model": "org/name"}]},
}


def other(path, value):
    if path[-1] in OTHER and value != OTHER[path[-1]]:
        return OTHER[path[-1]]
    if isinstance(value, bool):
        return not value
    if isinstance(value, dict):
        return {"a.example/b": "c"}
    if value is None:
        return 1
    return value + 1 if isinstance(value, int) else "other"


def nested(path, value):
    for key in reversed(path):
        value = {key: value}
    return value


def without_chance(objects):
    """Two renders have other random keys; that is not a difference."""
    for secret in of_kind(objects, "Secret"):
        for name, value in secret["data"].items():
            if len(value) == 64:
                secret["data"][name] = "random"
    return objects


@pytest.mark.skipif("helm/default" not in RENDERS, reason="SKIPPED: there is no Go to render the chart with")
@pytest.mark.parametrize("path,value", LEAVES, ids=[".".join(p) for p, _ in LEAVES])
def test_every_value_of_the_chart_matters_and_is_in_its_schema(path, value):
    jsonschema = pytest.importorskip("jsonschema")
    base = next((v for p, v in WITH.items() if path[:len(p)] == p and path[-1] != "enabled"), {})
    changed = nested(path, other(path, value))
    jsonschema.validate(changed, SCHEMA)
    before, after = helm(base), helm(base, changed)
    is_the_same = without_chance(before[0]) == without_chance(after[0]) and before[1] == after[1]
    assert not is_the_same, f"{changed} changes nothing"


@pytest.mark.skipif("helm/default" not in RENDERS, reason="SKIPPED: there is no Go to render the chart with")
@pytest.mark.parametrize("path,value", [(p, v) for p, v in LEAVES if p[0] == "workerDefaults"],
                         ids=lambda p: ".".join(p[1:]) if isinstance(p, tuple) else "")
def test_an_entry_of_workers_overrides_each_default(path, value):
    """Also where it is false, or absent."""
    changed, entry = nested(path, other(path, value)), {"name": "demo", "model": "org/name"}
    base = next((v for p, v in WITH.items() if path[:len(p)] == p and ("keda" in v or path[1] in ("kv", "role"))), {})
    if path[1] == "model":
        entry.pop("model")
    from_defaults = helm(base, changed | {"workers": [entry]})[0]
    from_entry = helm(base, {"workers": [{**entry, **changed["workerDefaults"]}]})[0]
    assert without_chance(from_defaults) == without_chance(from_entry)


@pytest.mark.skipif("helm/default" not in RENDERS, reason="SKIPPED: there is no Go to render the chart with")
@pytest.mark.parametrize("values,word", [
    ({"workers": [{"name": "a"}]}, "has no model"),
    ({"workers": [{"name": "a", "model": "m"}, {"name": "a", "model": "n"}]}, "another one called a"),
    ({"workers": [{"name": "a", "model": "m", "kv": {"file": {"size": "9Gi"}}}]}, "need engine incipit and kv.hostMemory"),
    ({"workers": [{"name": "a", "model": "m", "kv": {"hostMemory": "1GiB", "store": {"url": "redis://b"}}}]}, "kv.keySecret"),
    ({"workers": [{"name": "a", "model": "m", "role": "decode", "kv": {"hostMemory": "1GiB"}}]}, "kv.keySecret"),
    ({"workers": [{"name": "a", "model": "m", "kv": {"hostMemory": "1GiB", "peers": True}}]}, "kv.keySecret"),
    ({"workers": [{"name": "a", "model": "m", "kv": {"hostMemory": "1GiB", "file": {"size": "9Gi", "hostPath": "/x"}}}]}, "exclude"),
])
def test_workers_that_cannot_be_are_refused(values, word):
    with pytest.raises(AssertionError, match=word):
        helm(values)


@pytest.mark.skipif("helm/default" not in RENDERS, reason="SKIPPED: there is no Go to render the chart with")
def test_a_single_router_does_not_keep_its_node_from_being_drained():
    budgets = of_kind(helm({"router": {"replicas": 1}})[0], "PodDisruptionBudget")
    assert [b["metadata"]["name"] for b in budgets] == ["incipit-demo"]


@pytest.mark.parametrize("values,word", [
    ({"router": {"replica": 2}}, "replica"), ({"router": {"policy": "best"}}, "best"),
    ({"workers": [{"model": "a/b"}]}, "name"), ({"workers": [{"name": "a", "gpus": 1}]}, "gpus"),
    ({"router": {"port": 0}}, "0"), ({"router": {"extraArgs": ["x"]}}, "x"), ({"history": {}}, "history"),
])
def test_an_unknown_value_is_refused_by_name(values, word):
    jsonschema = pytest.importorskip("jsonschema")
    with pytest.raises(jsonschema.ValidationError, match=word):
        jsonschema.validate(values, SCHEMA)


@pytest.mark.parametrize("path", sorted((CHART / "examples").glob("*.yaml")) + [CHART / "values.yaml"], ids=lambda p: p.name)
def test_values_that_we_ship_are_in_the_schema(path):
    jsonschema = pytest.importorskip("jsonschema")
    jsonschema.Draft7Validator.check_schema(SCHEMA)
    jsonschema.validate(yaml.safe_load(path.read_text()), SCHEMA)


def test_versions_agree():
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["version"] == chart["appVersion"] == VERSION
    for path in KUSTOMIZE.rglob("kustomization.yaml"):
        for image in yaml.safe_load(path.read_text()).get("images", []):
            assert image["newTag"] == VERSION, path


@pytest.mark.skipif("helm/default" not in RENDERS, reason="SKIPPED: there is no Go to render the chart with")
def test_a_new_key_of_clients_restarts_routers():
    """They read it from the environment, once."""
    def template(key):
        [router] = routers(helm({"auth": {"apiKey": key}})[0])
        return router["spec"]["template"]

    assert template("a") != template("b")
    assert template("a") == template("a")


@each_render
def test_a_rollout_waits_as_long_as_a_worker_may_start(objects):
    for d in of_kind(objects, "Deployment"):
        probe = container_of(d)["startupProbe"]
        assert d["spec"].get("progressDeadlineSeconds", 600) > probe["periodSeconds"] * probe["failureThreshold"]


# --- what answers reveal ---------------------------------------------------------------------------------------------

REVEALING = {"explain-to-clients", "expose-worker-headers", "isolate-by", "forward-path", "forward-field", "admin-on-main",
             "cache-explain", "kv-events", "forward-authorization"}


@each_render
def test_no_default_reveals_more_than_the_programs_do(objects):
    for router in routers(objects):
        options = yaml.safe_load(options_of(objects, router))
        assert not REVEALING & set(options), options
    for deployment in routers(objects) + our_workers(objects):
        flags = {a.split("=")[0].removeprefix("--") for a in container_of(deployment).get("args", [])}
        assert not REVEALING & flags, flags


@each_render
def test_no_router_is_selected_as_a_worker(objects):
    for router in routers(objects):
        options = yaml.safe_load(options_of(objects, router))
        selector = dict(pair.split("=", 1) for pair in options.get("k8s-selector", []))
        labels = [r["spec"]["template"]["metadata"]["labels"] for r in routers(objects)]
        assert not selector or not any(matches(selector, one) for one in labels), selector
