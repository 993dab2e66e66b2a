"""The scripted Kubernetes API server (api_server.c, its commands are in tests/support/api_server.h) as tests use it,
and objects as a cluster would have made them."""
import contextlib
import json
import pathlib
import subprocess
import threading

from conftest import BUILD, free_port


class ApiServer:
    """Running until its input is closed. command(do=..., ...) asks and checks; the answer is a dictionary."""

    def __init__(self, *args):
        self.process = subprocess.Popen([str(BUILD / "tests/integration/api_server"), *args], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, text=True)
        hello = json.loads(self.process.stdout.readline())
        self.lock = threading.Lock()
        self.port, self.folder = hello["port"], pathlib.Path(hello["folder"])
        self.url = f"{'http' if '--plain' in args else 'https'}://127.0.0.1:{self.port}"
        self.ca = self.folder / "ca.pem"

    def ask(self, **command):
        """The answer, whatever it is."""
        with self.lock:
            self.process.stdin.write(json.dumps(command) + "\n")
            self.process.stdin.flush()
            return json.loads(self.process.stdout.readline())

    def command(self, do, **more):
        answer = self.ask(do=do, **more)
        assert answer.get("ok"), f"{do}: {answer}"
        return answer

    def put(self, *objects):
        self.command("put", objects=list(objects))

    def names(self, resource="pods", **more):
        return self.command("show", resource=resource, **more)["names"]

    def stats(self):
        return self.command("stats")

    def stop(self):
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        self.process.wait(20)
        self.process.stdout.close()
        assert self.process.returncode == 0


def pod(name, ip="", labels=None, annotations=None, uid=None, ready=True, phase="Running", port=8000, namespace="default"):
    """A pod as the kubelet reports it; without an address it is pending."""
    conditions = [{"type": t, "status": s, "lastProbeTime": None, "lastTransitionTime": "2026-01-01T00:00:05Z"}
                  for t, s in (("Initialized", "True"), ("Ready", str(ready)), ("ContainersReady", str(ready)),
                               ("PodScheduled", "True"))]
    meta = {"name": name, "namespace": namespace, "generateName": name.rsplit("-", 1)[0] + "-",
            "labels": {"app": "incipit-worker", **(labels or {})},
            "ownerReferences": [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "workers-7c9d",
                                 "uid": "6f1c1c59-0000-4000-8000-000000000000", "controller": True,
                                 "blockOwnerDeletion": True}]}
    if annotations:
        meta["annotations"] = annotations
    if uid:
        meta["uid"] = uid
    status = {"phase": phase if ip else "Pending", "qosClass": "Burstable", "startTime": "2026-01-01T00:00:00Z",
              "conditions": conditions}
    if ip:
        status |= {"podIP": ip, "podIPs": [{"ip": ip}], "hostIP": "127.0.0.1",
                   "containerStatuses": [{"name": "worker", "ready": ready, "restartCount": 0, "image": "incipit-worker",
                                          "imageID": "", "started": True,
                                          "state": {"running": {"startedAt": "2026-01-01T00:00:03Z"}}}]}
    return {"kind": "Pod", "apiVersion": "v1", "metadata": meta,
            "spec": {"containers": [{"name": "worker", "image": "incipit-worker",
                                     "args": ["--model", "/models/\"quoted\" \\ and {braced}"],
                                     "ports": [{"name": "http", "containerPort": port, "protocol": "TCP"}],
                                     "resources": {"limits": {"memory": "8Gi"}, "requests": {"cpu": "2"}}}],
                     "nodeName": "node-1", "restartPolicy": "Always", "dnsPolicy": "ClusterFirst"},
            "status": status}


def slice_of(service, name, endpoints, port):
    """An EndpointSlice; an endpoint is {"ip":, "uid":} and conditions."""
    def endpoint(e):
        conditions = {k: e[k] for k in ("ready", "serving", "terminating") if k in e} or {"ready": True}
        return {"addresses": [e["ip"]], "conditions": conditions, "nodeName": "node-1",
                "targetRef": {"kind": "Pod", "namespace": "default", "name": f"pod-{e['uid']}", "uid": e["uid"]}}
    return {"kind": "EndpointSlice", "apiVersion": "discovery.k8s.io/v1", "addressType": "IPv4",
            "metadata": {"name": name, "namespace": "default", "labels": {"kubernetes.io/service-name": service}},
            "endpoints": [endpoint(e) for e in endpoints],
            "ports": [{"name": "http", "port": port, "protocol": "TCP"}]}


class Herd:
    """Very many workers that compute nothing (herd.c), at addresses of 127.0.0.0/8 and one port."""

    def __init__(self, service_ms, port=None):
        self.port = port or free_port()
        self.lock = threading.Lock()
        self.process = subprocess.Popen([str(BUILD / "tests/integration/herd"), str(self.port), str(service_ms)],
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def send_lines(self, *lines):
        """Each is answered; the answers, or an AssertionError."""
        with self.lock:
            self.process.stdin.write("".join(line + "\n" for line in lines))
            self.process.stdin.flush()
            answers = [self.process.stdout.readline() for _ in lines]
        assert all("ok " in answer for answer in answers), answers
        return answers

    def up(self, ip):
        self.send_lines(f"up {ip}")

    def leave(self, ip):
        self.send_lines(f"leave {ip}")

    def stop(self):
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        self.process.wait(20)
        self.process.stdout.close()
        assert self.process.returncode == 0

    close = stop


def kubeconfig(api, folder, token="secret"):
    """The path of a kubeconfig for that server. Without a token a client certificate is shown."""
    user = {"token": token} if token else {"client-certificate": str(api.folder / "client.pem"),
                                           "client-key": str(api.folder / "client.key")}
    path = pathlib.Path(folder) / "kubeconfig"
    path.write_text(json.dumps({
        "apiVersion": "v1", "kind": "Config", "current-context": "test",
        "clusters": [{"name": "c", "cluster": {"server": api.url, "certificate-authority": str(api.ca)}}],
        "users": [{"name": "u", "user": user}],
        "contexts": [{"name": "test", "context": {"cluster": "c", "user": "u", "namespace": "default"}}]}))
    return path


class LiveSet:
    """The names that `kubectl get --watch --output-watch-events -o json` has printed so far."""

    def __init__(self, command, env):
        self.names = set()
        self.process = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        self.thread = threading.Thread(target=self._read, daemon=True)
        self.thread.start()

    def _read(self):
        text = ""
        for line in self.process.stdout:
            text += line
            try:
                event = json.loads(text)
            except ValueError:
                continue  # some versions print it over many lines
            text = ""
            name = event["object"]["metadata"].get("name")
            self.names = self.names - {name} if event["type"] == "DELETED" else self.names | {name}

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        self.thread.join(5)
        self.process.stdout.close()
