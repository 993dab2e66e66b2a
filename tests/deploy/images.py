"""Builds the images of deploy/docker without a daemon, runs them as they would run, and prints their sizes.

The Dockerfiles' own instructions, in order, in a Debian root made by debootstrap: what COPY may see is what
.dockerignore leaves. The result runs in namespaces of its own (mounts, processes, network) as the image's
user, on a read-only root where only /tmp and the state directory can be written, under the image's
ENTRYPOINT and ENV: it must answer --help, its own HEALTHCHECK, /livez and a request, listen on what it
EXPOSEs and nowhere else, and end with 0 on STOPSIGNAL as process 1.

Needs root, debootstrap and a Debian mirror (DEBIAN_MIRROR, else apt's own); what cannot be done is SKIPPED, loudly. `make images-check`;
ARGS="router worker-cpu" for some, --keep to take the builder's root of last time.
"""
import argparse
import contextlib
import fnmatch
import json
import os
import pathlib
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
from tests.support.bare_dev import mount_dev

WORK = ROOT / "build/images"
BUILD = ROOT / os.environ.get("INCIPIT_BUILD", "build/release")
VERSION = (ROOT / "VERSION").read_text().strip()
STATE = "/var/lib/incipit"
LIMIT_MB = {"router": 40, "worker-cpu": 60}
CUDA = pathlib.Path(os.environ.get("CUDA_HOME", "/usr/local/cuda"))


def skip(what):
    print(f"SKIPPED {what}", flush=True)


# --- Dockerfiles -------------------------------------------------------------------------------------

def instructions(path):
    """[(NAME, text)] of a Dockerfile: comments gone, continued lines joined."""
    text = "\n".join(line for line in path.read_text().splitlines() if not line.lstrip().startswith("#"))
    text = re.sub(r"\\\n\s*", " ", text)
    return [(line.split(None, 1)[0].upper(), line.split(None, 1)[1].strip())
            for line in text.splitlines() if line.strip()]


class Stage:
    """One FROM and what follows it."""

    def __init__(self, base, name):
        self.base, self.name, self.steps = base, name, []
        self.settings = {"ENV": {}, "EXPOSE": [], "LABEL": {}}


def expand(text, values):
    return re.sub(r"\$\{?(\w+)\}?", lambda m: values.get(m[1], ""), text)


def stages_of(path, arguments):
    """The stages of a Dockerfile, with the build arguments that each may see already put in."""
    stages, before, known = [], {}, {}
    for name, text in instructions(path):
        if name == "FROM":
            words = expand(text, before).split()
            stages.append(Stage(words[0], words[2] if len(words) == 3 and words[1].upper() == "AS" else None))
            known = {}
        elif name == "ARG":
            key, _, default = text.partition("=")
            (known if stages else before)[key] = arguments.get(key, default)
        elif name in ("COPY", "RUN", "WORKDIR"):
            stages[-1].steps.append((name, text if name == "RUN" else expand(text, known), dict(known)))
        else:
            settle(stages[-1].settings, name, expand(text, known))
        if name == "WORKDIR":
            stages[-1].settings["WORKDIR"] = text
    return stages


def settle(settings, name, text):
    if name in ("ENV", "LABEL"):
        settings[name].update(word.split("=", 1) for word in shlex.split(text))
    elif name == "EXPOSE":
        settings[name] += [int(port) for port in text.split()]
    elif name == "HEALTHCHECK":
        settings[name] = json.loads(text[text.index("CMD") + 3:])
    elif name == "ENTRYPOINT":
        settings[name] = json.loads(text)
    elif name in ("USER", "STOPSIGNAL"):
        settings[name] = text
    else:
        raise ValueError(f"{name}: an instruction that this script does not know")


def ignored(path, rules):
    """Whether .dockerignore leaves a path out; the last rule that matches it or a folder above it counts."""
    out = False
    parts = path.split("/")
    above = ["/".join(parts[:n + 1]) for n in range(len(parts))]
    for rule in rules:
        pattern = rule.lstrip("!").rstrip("/")
        names = [pattern, pattern[3:]] if pattern.startswith("**/") else [pattern]
        if any(fnmatch.fnmatchcase(a, n) and (pattern.startswith("**/") or a.count("/") == n.count("/"))
               for a in above for n in names):
            out = not rule.startswith("!")
    return out


def context():
    """What a daemon would be sent: paths below the repository's root."""
    rules = [line.strip() for line in (ROOT / ".dockerignore").read_text().splitlines()
             if line.strip() and not line.startswith("#")]
    files = []
    for folder, folders, names in os.walk(ROOT):
        at = os.path.relpath(folder, ROOT)
        folders[:] = [f for f in folders if at != "." or not ignored(f, rules)]
        files += [path for name in names
                  if not ignored(path := os.path.normpath(os.path.join(at, name)), rules)]
    return files


def copy(step, stage_roots, root, workdir, files):
    """COPY [--from=stage] [--chown=u:g] source destination"""
    words = step.split()
    flags = dict(w[2:].split("=", 1) for w in words if w.startswith("--"))
    source, to = [w for w in words if not w.startswith("--")]
    to_dir = pathlib.Path(str(root) + os.path.join(workdir, to))
    if "from" in flags:
        found = pathlib.Path(str(stage_roots[flags["from"]]) + source)
        assert found.exists(), f"COPY {step}: the builder made no {source}"
        to_dir.mkdir(parents=True, exist_ok=True)
        subprocess.run(["cp", "-a", f"{found}/.", to_dir], check=True)
    else:
        taken = [f for f in files if source == "." or f == source or f.startswith(source + "/")]
        assert taken, f"COPY {step}: there is no such source, or .dockerignore leaves it out"
        for f in taken:
            target = to_dir / f if source == "." or source != f else to_dir
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / f, target)
    if "chown" in flags:
        subprocess.run(["chown", "-R", flags["chown"], to_dir], check=True)


# --- building ----------------------------------------------------------------------------------------

def mirror():
    """[where this machine takes Debian's packages from]: DEBIAN_MIRROR, else what apt is configured with."""
    if os.environ.get("DEBIAN_MIRROR"):
        return [os.environ["DEBIAN_MIRROR"]]
    targets = subprocess.run(["apt-get", "indextargets", "--format", "$(REPO_URI) $(CODENAME) $(COMPONENT)",
                              "Created-By: Packages"], capture_output=True, text=True, check=False).stdout
    return [line.split()[0] for line in targets.splitlines() if line.split()[1:] == ["bookworm", "main"]][:1]


def debian(keep):
    """A root like debian:12-slim, fresh."""
    root = WORK / "debian"
    if keep and (root / "usr/bin/dpkg").exists():
        return root
    remove(root)
    log = open(WORK / "debootstrap.log", "w")
    if subprocess.run(["debootstrap", "--variant=minbase", "bookworm", str(root), *mirror()], stdout=log,
                      stderr=log).returncode != 0:
        return None
    return root


def remove(folder):
    assert WORK in folder.parents
    subprocess.run(["rm", "-rf", "--one-file-system", str(folder)], check=True)


def run_in(root, command, workdir, values, binds):
    """RUN: a shell in the root, with /proc and devices, in a mount namespace that ends with it."""
    mounts = "".join(f"mkdir -p {root}{b} && mount --rbind -o ro {b} {root}{b} && " for b in binds)
    script = (f"mount -t proc proc {root}/proc && {' && '.join(mount_dev(root))} && {mounts}"
              f"exec chroot {root} /bin/sh -c {shlex.quote(f'cd {workdir} && {command}')}")
    for name in ("resolv.conf", "hosts"):
        shutil.copy(f"/etc/{name}", root / "etc" / name)
    environment = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root",
                   "JOBS": os.environ.get("JOBS", ""), **values}
    for proxy in ("http_proxy", "https_proxy", "no_proxy"):
        if proxy in os.environ:
            environment[proxy] = os.environ[proxy]
    subprocess.run(["nice", "unshare", "--mount", "--propagation", "private", "sh", "-c", script],
                   check=True, env={k: v for k, v in environment.items() if v})


def build(image, base_root, binds, arguments):
    """Both stages of an image: its root, and its settings."""
    builder, final = stages_of(ROOT / f"deploy/docker/Dockerfile.{image}", {"VERSION": VERSION, **arguments})
    assert final.base == "scratch", final.base
    files = context()
    for folder in ("src", "image"):
        remove(base_root / folder)
    workdir = "/"
    for name, text, known in builder.steps:
        print(f"  {name} {text}", flush=True)
        if name == "WORKDIR":
            workdir = text
            (base_root / text.lstrip("/")).mkdir(parents=True, exist_ok=True)
        elif name == "COPY":
            copy(text, {}, base_root, workdir, files)
        else:
            run_in(base_root, text, workdir, known, binds)
    root = WORK / image
    remove(root)
    root.mkdir(parents=True)
    for name, text, _ in final.steps:
        print(f"  {name} {text}", flush=True)
        assert name in ("COPY", "WORKDIR"), f"{name}: nothing can run in an image without a shell"
        if name == "COPY":
            copy(text, {builder.name: base_root}, root, "/", files)
    return root, final.settings


# --- running -----------------------------------------------------------------------------------------

class Pod:
    """A network of its own, with loopback alone: images run in it on their own ports."""

    def __enter__(self):
        self.holder = subprocess.Popen(["unshare", "--net", "sh", "-c", "ip link set lo up && exec sleep 3600"])
        self.net = f"--net=/proc/{self.holder.pid}/ns/net"
        self.started = []
        wait_for(lambda: self.ask(["ip", "-o", "addr", "show", "up"]).stdout.strip(), "a network namespace", self.holder, 10)
        return self

    def ask(self, command, **more):
        return subprocess.run(["nsenter", self.net, *command], capture_output=True, text=True, **more)

    def curl(self, url, *more):
        return self.ask(["curl", "-s", "--max-time", "30", "-w", "\n%{http_code}", *more, url]).stdout

    def start(self, root, settings, args, environment=(), volumes=()):
        """The image as process 1, on a read-only root; volumes: {path in it: folder}."""
        user, group = settings["USER"].split(":")
        here = shlex.quote(str(root))
        for path in dict(volumes):  # as a runtime does, before the root is read-only
            os.makedirs(str(root) + path, exist_ok=True)
        script = (f"mount --bind {here} {here} && mount -o remount,bind,ro {here} && "
                  f"mount -t tmpfs -o mode=1777 tmpfs {here}/tmp && "
                  f"mount -t tmpfs -o mode=700,uid={user},gid={group} tmpfs {here}{STATE} && "
                  f"mount -t proc proc {here}/proc && "
                  + "".join(f"mount --bind {folder} {here}{path} && mount -o remount,bind,ro {here}{path} && "
                            for path, folder in dict(volumes).items()) +
                  f"exec chroot --userspec={user}:{group} --groups={group} {here} "
                  + shlex.join([*settings["ENTRYPOINT"], *args]))
        # Nothing of this process's environment: PATH only for the shell above.
        values = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", **settings["ENV"], **dict(environment)}
        process = subprocess.Popen(["nsenter", self.net, "unshare", "--mount", "--pid", "--ipc", "--uts", "--fork",
                                    "--propagation", "private", "sh", "-c", script],
                                   env=values, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.started.append(process)
        return process

    def one_shot(self, root, settings, args, environment=()):
        process = self.start(root, settings, args, environment)
        output, _ = process.communicate(timeout=60)
        return process.returncode, output

    def stop(self, process, signo):
        """As a container runtime does: to process 1 of the image's namespace. Its exit code."""
        children = pathlib.Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        os.kill(int(children[0]), signo)
        output, _ = process.communicate(timeout=60)
        return process.returncode, output

    def listening(self):
        """Ports that are listened on here, and on which address."""
        rows = self.ask(["cat", "/proc/net/tcp", "/proc/net/tcp6"]).stdout.splitlines()
        return {int(row.split()[1].split(":")[1], 16) for row in rows if row.split()[3] == "0A"}

    def __exit__(self, *_):
        for process in self.started:
            if process.poll() is None:
                with contextlib.suppress(OSError, IndexError):
                    children = pathlib.Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
                    os.kill(int(children[0]), signal.SIGKILL)
                process.wait()
        self.holder.kill()
        self.holder.wait()


def wait_for(condition, what, process, seconds=60):
    end = time.monotonic() + seconds
    while not condition():
        if process.poll() is not None:
            raise AssertionError(f"{what}: it ended with {process.returncode}:\n{process.stdout.read() if process.stdout else ''}")
        assert time.monotonic() < end, f"waited {seconds} s for {what}"
        time.sleep(0.02)


def healthy(pod, root, settings):
    word = settings["HEALTHCHECK"]
    assert word[0] == settings["ENTRYPOINT"][0], "HEALTHCHECK runs a program that is not the image's"
    return pod.one_shot(root, settings, word[1:])[0] == 0


def end(pod, process, settings, name):
    code, output = pod.stop(process, signal.Signals[settings["STOPSIGNAL"]])
    assert code == 0, f"{name} ended with {code} on {settings['STOPSIGNAL']}:\n{output}"
    assert "index_not_saved" not in output, f"{name} could not write its state:\n{output}"


def try_worker(pod, root, settings):
    """The demonstration model on the image's own port; the process."""
    code, output = pod.one_shot(root, settings, ["--help"])
    assert code == 0 and "incipit-worker" in output, output
    process = pod.start(root, settings, ["/usr/share/incipit/demo-model", "--kv-cache-memory-bytes", "64MiB"])
    wait_for(lambda: pod.curl("http://127.0.0.1:31000/livez").endswith("200"), "the worker's /livez", process)
    assert healthy(pod, root, settings)
    return process


def ask_for_completion(pod, port):
    answer = pod.curl(f"http://127.0.0.1:{port}/v1/completions", "-H", "content-type: application/json", "-d",
                      json.dumps({"model": "demo-model", "prompt": "The quick", "max_tokens": 4}))
    assert answer.endswith("200") and '"completion_tokens":4' in answer, answer


class Cluster:
    """The scripted API server of tests/support, over TLS, in a pod's network, and what a kubelet puts into a pod of it."""

    TOKEN = "token-of-this-check"

    def __init__(self, pod):
        self.process = subprocess.Popen(["nsenter", pod.net, BUILD / "tests/integration/api_server"], text=True,
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        pod.started.append(self.process)
        hello = json.loads(self.process.stdout.readline())
        self.command(do="tokens", tokens=[self.TOKEN])
        self.environment = {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": str(hello["port"])}
        self.account = WORK / "serviceaccount"
        self.account.mkdir(exist_ok=True)
        shutil.copy(pathlib.Path(hello["folder"]) / "ca.pem", self.account / "ca.crt")
        (self.account / "token").write_text(self.TOKEN)
        (self.account / "namespace").write_text("incipit")

    def command(self, **command):
        self.process.stdin.write(json.dumps(command) + "\n")
        self.process.stdin.flush()
        answer = json.loads(self.process.stdout.readline())
        assert answer.get("ok"), answer

    def put_worker(self, port):
        """A pod as deploy/kustomize/worker would be listed, with this machine's address."""
        labels = {"app.kubernetes.io/name": "incipit", "app.kubernetes.io/component": "worker"}
        self.command(do="put", object={
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": "w", "namespace": "incipit", "uid": "u-1", "labels": labels},
            "spec": {"containers": [{"name": "worker", "ports": [{"name": "http", "containerPort": port}]}]},
            "status": {"phase": "Running", "podIP": "127.0.0.1", "conditions": [{"type": "Ready", "status": "True"}]}})

    def stop(self):
        self.process.stdin.close()
        self.process.wait(20)
        self.process.stdout.close()


def try_in_cluster(pod, root, settings):
    """The router with the options of deploy/kustomize/base and a service account; it drains as its pod would."""
    cluster = Cluster(pod)
    cluster.put_worker(31000)
    options = WORK / "options"
    options.mkdir(exist_ok=True)
    shutil.copy(ROOT / "deploy/kustomize/base/router-options.yaml", options / "router.yaml")
    router = pod.start(root, settings, ["--config=/etc/incipit/router.yaml"],
                       {**cluster.environment, "INCIPIT_ADMIN_API_KEY": "k", "INCIPIT_PREFIX_HASH_SEED": "s"},
                       {"/etc/incipit": options, "/var/run/secrets/kubernetes.io/serviceaccount": cluster.account})
    wait_for(lambda: pod.curl("http://127.0.0.1:29000/readyz").endswith("200"), "a router that finds its worker", router)
    ask_for_completion(pod, 30000)
    children = pathlib.Path(f"/proc/{router.pid}/task/{router.pid}/children").read_text().split()
    os.kill(int(children[0]), signal.SIGTERM)
    wait_for(lambda: pod.curl("http://127.0.0.1:29000/readyz").endswith("503"), "a router that is not ready any more", router)
    assert pod.curl("http://127.0.0.1:29000/livez").endswith("200"), "a router that drains would be restarted"
    ask_for_completion(pod, 30000)
    output, _ = router.communicate(timeout=60)
    assert router.returncode == 0, output
    cluster.stop()


def try_images(built):
    with Pod() as pod:
        worker_root, worker_settings = built["worker-cpu"]
        worker = try_worker(pod, worker_root, worker_settings)
        assert pod.listening() == set(worker_settings["EXPOSE"]), pod.listening()
        ask_for_completion(pod, 31000)
        print("worker-cpu: --help, /livez, HEALTHCHECK, a completion, ports: as they should be", flush=True)
        if "router" in built:
            root, settings = built["router"]
            code, output = pod.one_shot(root, settings, ["--help"])
            assert code == 0 and "--policy" in output, output
            router = pod.start(root, settings, ["--worker-urls", "http://127.0.0.1:31000", "--drain-settle", "0",
                                                "--state-dir", STATE, "--share-redis", "redis://127.0.0.1:1"],
                               {"INCIPIT_ADMIN_HOST": "0.0.0.0", "INCIPIT_ADMIN_API_KEY": "k-of-this-check",
                                "INCIPIT_PREFIX_HASH_SEED": "s-of-this-check"})
            wait_for(lambda: pod.curl("http://127.0.0.1:29000/readyz").endswith("200"), "the router's /readyz", router)
            assert pod.curl("http://127.0.0.1:30000/livez").endswith("200") and healthy(pod, root, settings)
            assert pod.listening() - set(worker_settings["EXPOSE"]) == set(settings["EXPOSE"]), pod.listening()
            ask_for_completion(pod, 30000)
            end(pod, router, settings, "the router")
            assert not healthy(pod, root, settings), "HEALTHCHECK is content with a router that is gone"
            print("router: --help, /livez, /readyz, HEALTHCHECK, a completion, ports, SIGTERM as process 1: "
                  "as they should be", flush=True)
            try_in_cluster(pod, root, settings)
            print("router, in a pod's place: finds its worker by the service account's token, serves while it drains: "
                  "as it should be", flush=True)
        end(pod, worker, worker_settings, "the worker")


def size_of(root, image):
    """Bytes of files, as a registry counts them before compression."""
    seen, total = set(), 0
    for folder, _, names in os.walk(root):
        for name in names:
            status = os.lstat(os.path.join(folder, name))
            if (status.st_dev, status.st_ino) not in seen:
                seen.add((status.st_dev, status.st_ino))
                total += status.st_size
    shells = [p for p in ("bin/sh", "usr/bin/sh", "usr/bin/dash", "usr/bin/apt") if (root / p).exists()]
    assert not shells, f"{image} has {shells}"
    limit = LIMIT_MB.get(image)
    print(f"{image}: {total / 1e6:.1f} MB" + (f" (at most {limit})" if limit else ""), flush=True)
    assert not limit or total <= limit * 1e6


def try_cuda(root, settings):
    """Without a GPU: its backend must load, and report it."""
    with Pod() as pod:
        code, output = pod.one_shot(root, settings, ["devices"])
        assert code == 2 and "libcuda.so.1" in output, (code, output)
        for library in ("libcublasLt.so", "libnccl.so"):
            assert list((root / "usr/lib/incipit").glob(library + ".*")), f"no {library} in the image"
    print("worker-cuda: its backend loads and misses the driver alone; on a GPU: SKIPPED, there is none here")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("images", nargs="*", default=["router", "worker-cpu"])
    parser.add_argument("--keep", action="store_true", help="take the builder's root of last time")
    args = parser.parse_args()
    if os.geteuid() != 0:
        return skip("images-check: chroot and namespaces need root")
    for tool in ("debootstrap", "unshare", "nsenter", "chroot", "ip", "curl"):
        if not shutil.which(tool):
            return skip(f"images-check: {tool} is missing: install debootstrap, util-linux, iproute2 and curl")
    if subprocess.run(["unshare", "--mount", "--net", "--pid", "--fork", "true"], stderr=subprocess.DEVNULL).returncode:
        return skip("images-check: namespaces are not permitted here")
    WORK.mkdir(parents=True, exist_ok=True)
    base = debian(args.keep)
    if base is None:
        return skip(f"images-check: debootstrap could not make a root, see {WORK / 'debootstrap.log'}")
    built = {}
    for image in args.images:
        binds, arguments = [], {}
        if image == "worker-cuda":
            if not (CUDA / "bin/nvcc").exists():
                skip("worker-cuda: there is no nvcc here to stand for the toolkit's image")
                continue
            print(f"worker-cuda: {CUDA} stands for the toolkit's image, for one kind of GPU")
            binds, arguments = [os.path.realpath(CUDA), str(CUDA)], {"CUDA_ARCHS": "90"}
            run_in(base, "DEBIAN_FRONTEND=noninteractive apt-get install -y -qq g++ >/dev/null", "/", {}, [])
        print(f"Dockerfile.{image}:", flush=True)
        built[image] = build(image, base, binds, arguments)
        size_of(built[image][0], image)
    if "worker-cpu" in built:
        try_images(built)
    if "worker-cuda" in built:
        try_cuda(*built["worker-cuda"])
    else:
        skip("worker-cuda: not asked for (ARGS=\"router worker-cpu worker-cuda\"), for it takes long")


if __name__ == "__main__":
    sys.exit(main())
