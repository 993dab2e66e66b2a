"""The real programs, started on loopback ports that the system chooses, and ended by pid.

Tests wait on conditions, never for a time to pass, and look at metrics as well as at answers.
INCIPIT_BUILD names the build folder; INCIPIT_SAN the sanitizer it was built with, if any.
"""
import contextlib
import itertools
import json
import os
import pathlib
import random
import re
import signal
import socket
import socketserver
import subprocess
import threading
import time
import urllib.error
import urllib.request

import pytest

# Of servers that tests write: with Python's 5 the kernel drops connections of a busy moment, and their workers look unreachable.
socketserver.TCPServer.request_queue_size = 128

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = ROOT / os.environ.get("INCIPIT_BUILD", "build/release")
SANITIZER = os.environ.get("INCIPIT_SAN", "")
DEMO_MODEL = ROOT / "deploy/demo/model"
os.environ["CUDA_VISIBLE_DEVICES"] = ""  # on a GPU machine, too, a worker that may choose takes the CPU
PATIENCE_S = 120 if SANITIZER else 40  # for conditions that come in a moment


class NoSample(AssertionError):
    """A metric has no sample with these labels: nothing was counted there yet, or it is misspelt."""


def wait_for(condition, what, patience_s=PATIENCE_S):
    """Polls until condition() is true; its last value. A metric that has no sample yet is not true."""
    end = time.monotonic() + patience_s
    while True:
        value, missing = None, ""
        try:
            value = condition()
        except NoSample as e:
            missing = f": {e}"
        if value:
            return value
        if time.monotonic() > end:
            raise AssertionError(f"waited {patience_s} s in vain for {what}{missing}")
        time.sleep(0.02)


class Answer:
    def __init__(self, code, headers, body):
        self.code, self.headers, self.body = code, headers, body

    @property
    def json(self):
        return json.loads(self.body)


def http(url, body=None, headers=None, method=None, timeout=PATIENCE_S):
    """One request; never raises for a status code."""
    data = None
    if body is not None:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
    request = urllib.request.Request(url, data, headers or {}, method=method)
    if data is not None and "Content-type" not in request.headers:
        request.add_header("Content-Type", "application/json")
    try:
        with urllib.request.urlopen(request, timeout=timeout) as response:
            return Answer(response.status, dict(response.headers.items()), response.read().decode())
    except urllib.error.HTTPError as error:
        return Answer(error.code, dict(error.headers.items()), error.read().decode())


def events(url, body, headers=None, timeout=PATIENCE_S):
    """The data of each server-sent event, as it comes; [DONE] is the string."""
    request = urllib.request.Request(url, json.dumps(body).encode(),
                                     {"Content-Type": "application/json", **(headers or {})})
    with urllib.request.urlopen(request, timeout=timeout) as response:
        for line in response:
            line = line.decode().rstrip("\n")
            if line.startswith("data: "):
                data = line[len("data: "):]
                yield data if data == "[DONE]" else json.loads(data)


def metric(text, name, **labels):
    """The sum of a metric's samples whose labels include these."""
    total, found = 0.0, False
    for line in text.splitlines():
        match = re.match(r"([^ {#]+)(?:\{(.*)\})? (\S+)$", line)
        if match and match[1] == name and all(f'{k}="{v}"' in (match[2] or "") for k, v in labels.items()):
            total, found = total + float(match[3]), True
    if not found:
        raise NoSample(f"no sample of {name} {labels}")
    return total


class Program:
    """A running incipit-router or incipit-worker; `log` is its stderr so far. `descriptors`: most open files."""

    def __init__(self, name, args, descriptors=None):
        self.lines, self.out = [], []
        limited = ["sh", "-c", f'ulimit -n {descriptors}; exec "$@"', "sh"] if descriptors else []
        self.process = subprocess.Popen([*limited, str(BUILD / name), *map(str, args)], stdout=subprocess.PIPE,
                                        stderr=subprocess.PIPE, text=True, errors="replace")
        self.readers = [threading.Thread(target=self._read, args=(pipe, lines), daemon=True)
                        for pipe, lines in ((self.process.stderr, self.lines), (self.process.stdout, self.out))]
        for reader in self.readers:
            reader.start()

    @staticmethod
    def _read(pipe, lines):
        for line in pipe:
            lines.append(line)

    def _written(self, lines):
        """Of a program that has ended: all it wrote, which may not have been read yet."""
        if self.process.poll() is not None:
            for reader in self.readers:
                reader.join(5)
        return "".join(lines)

    @property
    def log(self):
        return self._written(self.lines)

    @property
    def output(self):
        return self._written(self.out)

    def field(self, event, name, patience_s=PATIENCE_S):
        """The value of a field in the first log line of that event."""
        def look():
            if self.process.poll() is not None:
                raise AssertionError(f"it ended with {self.process.returncode}:\n{self.log}")
            return re.search(rf" {event} .*?\b{name}=(\S+)", self.log)
        return wait_for(look, f"{event} in the log of {self.process.args[0]}", patience_s)[1]

    def get(self, path, **more):
        return http(self.url + path, **more)

    def post(self, path, body, **more):
        return http(self.url + path, body, **more)

    def metrics(self):
        return self.get("/metrics").body

    def metric(self, name, **labels):
        return metric(self.metrics(), name, **labels)

    def stop(self, signo=signal.SIGTERM):
        """Asks it to end; its exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signo)
            try:
                self.process.wait(PATIENCE_S)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
                raise AssertionError(f"{self.process.args[0]} did not end:\n{self.log[-3000:]}")
        for reader in self.readers:
            reader.join(5)
        return self.process.returncode


class Worker(Program):
    def __init__(self, *args, port=0, **more):
        super().__init__("incipit-worker", ["--port", port, *args], **more)

    def ready(self):
        self.url = f"http://127.0.0.1:{self.field('worker_ready', 'port')}"
        return self


class Router(Program):
    def __init__(self, *args, port=0, **more):
        super().__init__("incipit-router", ["--port", port, "--admin-port", 0, "--drain-settle", 0, *args], **more)

    def ready(self, n_workers):
        self.url = f"http://127.0.0.1:{self.field('router_listening', 'port')}"
        self.admin_url = f"http://127.0.0.1:{self.field('router_listening', 'admin_port')}"
        wait_for(lambda: self.n_healthy() == n_workers, f"{n_workers} healthy workers")
        return self

    def metrics(self):
        return http(self.admin_url + "/metrics").body

    def workers(self):
        return http(self.admin_url + "/workers").json

    def n_healthy(self):
        return self.workers()["stats"]["healthy_workers"]


class Api:
    """A worker as its clients see it: straight, or through a router in front of it. What is asked goes that way;
    the metrics are the worker's."""

    def __init__(self, worker, router=None):
        self.worker, self.url = worker, (router or worker).url
        self.get, self.post = (router or worker).get, (router or worker).post
        self.metrics, self.metric = worker.metrics, worker.metric


def in_front_of(worker, start, way, *args):
    """The API of that worker, by way of "worker" or "router"; the router is start()ed, with these options."""
    if way == "worker":
        return Api(worker)
    return Api(worker, start(Router, "--worker-urls", worker.url, "--expose-worker-headers", *args).ready(1))


both_ways = pytest.mark.parametrize("way", ["worker", "router"])


@contextlib.contextmanager
def started_programs():
    """Starts programs and, whatever happens, ends them: programs(Worker, "--backend", "sim")."""
    started = []

    def start(kind, *args, **more):
        program = kind(*args, **more)
        started.append(program)
        return program

    yield start
    for program in reversed(started):
        if program.process.poll() is None:
            program.process.kill()
            program.process.wait()
    for program in started:
        for reader in program.readers:
            reader.join(5)
        assert "ERROR: AddressSanitizer" not in program.log and "ERROR: LeakSanitizer" not in program.log \
            and "runtime error:" not in program.log and "WARNING: ThreadSanitizer" not in program.log, program.log[-6000:]


@pytest.fixture
def programs():
    with started_programs() as start:
        yield start


@pytest.fixture
def sim(programs):
    """A simulated worker, fast enough for tests."""
    return programs(Worker, "--backend", "sim", "--sim-speed", 20).ready()


@pytest.fixture(params=["worker", "router"])
def api(request, sim, programs):
    """A simulated worker of the test's own, asked straight and through a router: what holds for one holds for both."""
    return in_front_of(sim, programs, request.param)


@pytest.fixture(scope="session", params=["worker", "router"])
def shared_api(request):
    """The same for tests that leave nothing behind, all of them on one worker."""
    with started_programs() as start:
        yield in_front_of(start(Worker, "--backend", "sim", "--sim-speed", 20).ready(), start, request.param)


@pytest.fixture
def sim_fleet(programs):
    """A router with two launched simulated workers."""
    def start(*args, n=2, speed=20):
        base = free_port()
        return programs(Router, "--launch", n, "--worker-base-port", base, "--worker-arg=--backend=sim",
                        f"--worker-arg=--sim-speed={speed}", *args).ready(n)
    return start


# Ports that the system does not choose by itself (it begins at 32768), a range for each pytest that runs beside others.
PORTS_OF_A_RUN = 8
RANGE = 12000 // int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")) // PORTS_OF_A_RUN * PORTS_OF_A_RUN
_first = 20000 + RANGE * int(os.environ.get("PYTEST_XDIST_WORKER", "gw0")[2:])
_bases = itertools.cycle(random.sample(range(_first, _first + RANGE, PORTS_OF_A_RUN), RANGE // PORTS_OF_A_RUN))


def is_free(port):
    with contextlib.closing(socket.socket()) as s:
        try:
            s.bind(("", port))
            return True
        except OSError:
            return False


def free_port():
    """A port where nothing listens, nor on the seven after it; each call has another."""
    return next(base for base in _bases if all(map(is_free, range(base, base + PORTS_OF_A_RUN))))


@pytest.fixture(scope="session")
def demo_worker():
    """One CPU worker on the demonstration model, shared by the tests that only ask."""
    if not (DEMO_MODEL / "model.safetensors").exists():
        pytest.skip("deploy/demo/model has no weights")
    worker = Worker(DEMO_MODEL, "--kv-cache-memory-bytes", "64MiB").ready()
    yield worker
    assert worker.stop() == 0, worker.log


@pytest.fixture(scope="session", params=["worker", "router"])
def demo_api(request, demo_worker):
    """That worker, straight and through a router."""
    with started_programs() as start:
        yield in_front_of(demo_worker, start, request.param)
