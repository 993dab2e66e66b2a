"""What the benchmarks of routers share: programs on free loopback ports, pinned and measured.

A proxy is measured from outside and all alike: CPU by the scheduler's own account of its tasks
(/proc/PID/task/*/schedstat, nanoseconds), memory by its proportional set size.
"""
import contextlib
import json
import os
import pathlib
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
BUILD = ROOT / os.environ.get("INCIPIT_BUILD", "build/release")
LOAD = BUILD / "incipit-bench"
PATIENCE_S = 30


def skip(what, why):
    """A part that cannot be measured here is reported, never left out silently."""
    print(f"SKIPPED: {what}: {why}", flush=True)


def find_program(name):
    """nginx and haproxy live where only root's PATH looks."""
    return shutil.which(name, path=os.environ.get("PATH", "") + ":/usr/sbin:/usr/local/sbin")


def free_ports(n):
    """Below the range from which connections take theirs, so that none is taken meanwhile."""
    found = []
    while len(found) < n:
        port = random.randrange(20000, 32000)
        with contextlib.closing(socket.socket()) as s, contextlib.suppress(OSError):
            s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            s.bind(("127.0.0.1", port))
            if port not in found:
                found.append(port)
    return found


def get(url, timeout=2.0):
    """Code and text; None without an answer."""
    try:
        with urllib.request.urlopen(url, timeout=timeout) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, ""
    except OSError:
        return None


def post(url, body, timeout=10.0):
    request = urllib.request.Request(url, json.dumps(body).encode(), {"content-type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=timeout) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return None


def wait_for(condition, what, patience_s=PATIENCE_S):
    end = time.monotonic() + patience_s
    while not condition():
        if time.monotonic() > end:
            raise RuntimeError(f"waited {patience_s} s in vain for {what}")
        time.sleep(0.02)


class Process:
    """A program in its own group, with its output in a file; `cpus` pins it."""

    def __init__(self, args, cpus=None, env=None):
        self.args = [str(a) for a in args]
        self.log = tempfile.TemporaryFile()
        self.process = subprocess.Popen(
            self.args, stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log, start_new_session=True,
            env=env, preexec_fn=(lambda: os.sched_setaffinity(0, cpus)) if cpus else None)

    @property
    def pid(self):
        return self.process.pid

    def pids(self):
        """Itself and its children: nginx works in those."""
        found, queue = [], [self.pid]
        while queue:
            pid = queue.pop()
            found.append(pid)
            with contextlib.suppress(OSError):
                for task in os.listdir(f"/proc/{pid}/task"):
                    queue += map(int, pathlib.Path(f"/proc/{pid}/task/{task}/children").read_text().split())
        return found

    def cpu_ns(self):
        total = 0
        for pid in self.pids():
            with contextlib.suppress(OSError):
                for task in os.listdir(f"/proc/{pid}/task"):
                    total += int(pathlib.Path(f"/proc/{pid}/task/{task}/schedstat").read_text().split()[0])
        return total

    def _sum_kib(self, file, key):
        total = 0
        for pid in self.pids():
            with contextlib.suppress(OSError):
                for line in pathlib.Path(f"/proc/{pid}/{file}").read_text().splitlines():
                    if line.startswith(key):
                        total += int(line.split()[1])
        return total

    def pss_bytes(self):
        return self._sum_kib("smaps_rollup", "Pss:") * 1024

    def anonymous_bytes(self):
        """Without what other processes have mapped too, whose share changes with them."""
        return self._sum_kib("smaps_rollup", "Pss_Anon:") * 1024

    def peak_rss_bytes(self):
        return self._sum_kib("status", "VmHWM:") * 1024

    def is_serving(self, url):
        if self.process.poll() is not None:
            raise RuntimeError(f"{self.args[0]} ended:\n{self.text()}")
        return (get(url) or (None,))[0] == 200

    def text(self):
        self.log.seek(0)
        return self.log.read().decode(errors="replace")

    def stop(self, signo=signal.SIGTERM):
        if self.process.poll() is None:
            self.process.send_signal(signo)
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                os.killpg(self.pid, signal.SIGKILL)
                self.process.wait()
        self.log.close()


class Fleet(contextlib.ExitStack):
    """Starts programs and ends them all, whatever happens; has a folder for their files."""

    def __init__(self):
        super().__init__()
        self.dir = pathlib.Path(self.enter_context(tempfile.TemporaryDirectory(prefix="incipit-bench-")))

    def start(self, args, **more):
        process = Process(args, **more)
        self.callback(process.stop)
        return process

    def certificate(self):
        """For TLS on the loopback: paths of a certificate, its key, and both in one file."""
        cert, key, both = (self.dir / f"bench.{kind}" for kind in ("crt", "key", "pem"))
        if not both.exists():
            subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1",
                            "-nodes", "-subj", "/CN=bench", "-days", "2", "-keyout", key, "-out", cert],
                           check=True, stderr=subprocess.DEVNULL)
            both.write_text(cert.read_text() + key.read_text())
        return cert, key, both

    def file(self, name, template, **values):
        text = pathlib.Path(template).read_text()
        for key, value in values.items():
            text = text.replace(f"@{key.upper()}@", str(value))
        path = self.dir / name
        path.write_text(text)
        return path


def start_nginx(fleet, urls, threads=1, cpus=None):
    port, sse, tls = free_ports(3)
    servers = " ".join(f"server {u.split('//')[1]} max_fails=0;" for u in urls)
    work = fleet.dir / f"nginx-{port}"
    work.mkdir()
    for path in fleet.certificate()[:2]:
        shutil.copy(path, work)
    conf = fleet.file(f"nginx-{port}.conf", HERE / "router/nginx.conf", port=port, sse=sse, tls=tls, servers=servers,
                      threads=threads, dir=work)
    proxy = fleet.start([find_program("nginx"), "-c", conf, "-e", work / "error.log"], cpus=cpus)
    proxy.url, proxy.sse_url = f"http://127.0.0.1:{port}", f"http://127.0.0.1:{sse}"
    proxy.tls_url = f"https://127.0.0.1:{tls}"
    return proxy


def start_haproxy(fleet, urls, threads=1, cpus=None, balance="roundrobin", bufsize=16384):
    port, tls = free_ports(2)
    servers = "\n    ".join(f"server w{i} {u.split('//')[1]} maxconn 8000" for i, u in enumerate(urls))
    conf = fleet.file(f"haproxy-{port}.cfg", HERE / "router/haproxy.cfg", port=port, servers=servers, threads=threads,
                      balance=balance, bufsize=bufsize, tls=tls, cert=fleet.certificate()[2])
    proxy = fleet.start([find_program("haproxy"), "-db", "-f", conf], cpus=cpus)
    proxy.url = proxy.sse_url = f"http://127.0.0.1:{port}"
    proxy.tls_url = f"https://127.0.0.1:{tls}"
    return proxy


def start_forwarder(fleet, urls, cpus=None):
    (port,) = free_ports(1)
    proxy = fleet.start([BUILD / "tests/bench/router/forwarder", port, *(u.rsplit(":", 1)[1] for u in urls)], cpus=cpus)
    proxy.url = proxy.sse_url = f"http://127.0.0.1:{port}"
    return proxy


def start_router(fleet, urls, threads=1, cpus=None, args=()):
    port, admin = free_ports(2)
    proxy = fleet.start([BUILD / "incipit-router", "--port", port, "--admin-port", admin, "--threads", threads,
                         *args, "--worker-urls", *urls], cpus=cpus)
    proxy.url = proxy.sse_url = f"http://127.0.0.1:{port}"
    proxy.admin_url = f"http://127.0.0.1:{admin}"

    def all_healthy():
        if proxy.process.poll() is not None:
            raise RuntimeError(f"incipit-router ended:\n{proxy.text()}")
        answer = get(proxy.admin_url + "/workers")
        return answer and answer[0] == 200 and json.loads(answer[1])["stats"]["healthy_workers"] == len(urls)
    wait_for(all_healthy, "healthy workers")
    return proxy


def wait_until_serving(proxy, model):
    body = {"model": model, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 1}

    def serves():
        if proxy.process.poll() is not None:
            raise RuntimeError(f"{proxy.args[0]} ended:\n{proxy.text()}")
        return post(proxy.url + "/v1/chat/completions", body) == 200
    wait_for(serves, f"an answer through {proxy.args[0]}")


def load(url, *args, cpus=None, timeout=600):
    """Runs the load generator to its end; its report."""
    done = subprocess.run([str(LOAD), url, *map(str, args)], stdout=subprocess.PIPE, timeout=timeout, check=True,
                          preexec_fn=(lambda: os.sched_setaffinity(0, cpus)) if cpus else None)
    return json.loads(done.stdout)


def metric(text, name):
    """The sum of a metric's samples."""
    total = 0.0
    for line in text.splitlines():
        head = line.split("{")[0].split(" ")[0]
        if head == name:
            total += float(line.rsplit(" ", 1)[1])
    return total


def median(values):
    values = sorted(values)
    n = len(values)
    return (values[n // 2] + values[(n - 1) // 2]) / 2 if n else float("nan")
