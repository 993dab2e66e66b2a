"""Workers that come and go all the time in a Kubernetes API server, under load.

Half of what changes are pods that are asked to end: they drain, stop listening and are forgotten; the other half are new
pods, most of them at addresses where others were before. At the end the router must have exactly the workers that the
server has, and no request may have failed. `make bench-churn` is the same with a thousand workers for a minute, and
reports how long the data path stood still.
"""
import json
import os
import random
import re
import subprocess
import threading
import time

import pytest

from conftest import BUILD, SANITIZER, Router, wait_for
from kube_api import ApiServer, Herd, pod

SECONDS = float(os.environ.get("CHURN_SECONDS", 8))
N = int(os.environ.get("CHURN_WORKERS", 60 if SANITIZER else 250))
RATE = float(os.environ.get("CHURN_RATE", 10 if SANITIZER else 50))  # of joins, and of leaves, a second
RPS = int(os.environ.get("CHURN_RPS", 50 if SANITIZER else 200))
SELECTOR = "app=incipit-worker"


class Churn:
    """Nine tenths of the addresses have a pod; `step` ends one of them and begins another."""

    def __init__(self, seed=1):
        self.rng = random.Random(seed)
        self.api, self.herd = ApiServer(), Herd(5)
        self.here, self.away, self.ending = [], [], []
        self.n_lives = self.n_joined = self.n_left = 0
        self.over, self.thread = threading.Event(), threading.Thread(target=self._run, daemon=True)
        ips = [f"127.{2 + i // 60000}.{i // 250}.{i % 250 + 1}" for i in range(N)]
        self.herd.send_lines(*(f"up {ip}" for ip in ips[:N * 9 // 10]))
        pods = [self._pod(ip) for ip in ips[:N * 9 // 10]]
        for i in range(0, len(pods), 250):
            self.api.put(*pods[i:i + 250])
        self.away = ips[N * 9 // 10:]

    def _pod(self, ip):
        self.n_lives += 1
        name = f"w-{ip.replace('.', '-')}-{self.n_lives}"
        self.here.append((ip, name))
        return pod(name, ip, port=self.herd.port)

    def step(self):
        """One is asked to end, one that was asked 0.3 s ago does, one begins."""
        ip, name = self.here.pop(self.rng.randrange(len(self.here)))
        self.api.command("delete", name=name)
        self.ending.append((time.monotonic() + 0.3, ip, name))
        self.finish(time.monotonic())
        if self.away:
            ip = self.away.pop(self.rng.randrange(len(self.away)))
            self.herd.up(ip)
            self.api.put(self._pod(ip))
            self.n_joined += 1

    def finish(self, now):
        while self.ending and self.ending[0][0] <= now:
            _, ip, name = self.ending.pop(0)
            self.herd.leave(ip)
            self.api.command("forget", name=name)
            self.away.append(ip)
            self.n_left += 1

    def _run(self):
        began, n = time.monotonic(), 0
        while not self.over.wait(max(0, began + n / RATE - time.monotonic())):
            self.step()
            n += 1
        self.finish(time.monotonic() + 1)

    def start(self):
        """At RATE from now on, on a thread of its own; late steps are made up for."""
        self.thread.start()

    def rest(self):
        self.over.set()
        if self.thread.ident:
            self.thread.join(30)

    def urls(self):
        return {f"http://{ip}:{self.herd.port}" for ip, _ in self.here}

    def stop(self):
        self.rest()
        self.herd.stop()
        self.api.stop()


@pytest.fixture
def churn():
    made = Churn()
    yield made
    made.stop()


def buckets(text, loop):
    """{upper bound in seconds: how many were at most that}"""
    found = re.findall(rf'^incipit_loop_turn_seconds_bucket{{loop="{loop}",le="([^"]+)"}} (\d+)', text, re.M)
    assert found
    return {float(bound): int(n) for bound, n in found}


def longest(before, after):
    """Which bucket the longest turn between the two is in, and how many there were beyond 5 ms."""
    counts = {bound: after[bound] - before[bound] for bound in after}
    total = counts[float("inf")]
    bound = min(b for b, n in counts.items() if n == total)
    return bound, total - counts[0.005], total


def load(url, seconds):
    done = subprocess.run([str(BUILD / "incipit-bench"), url, "--path", "/v1/completions", "--rps", str(RPS), "--duration",
                           f"{round(seconds * 1000)}ms", "--traffic", "shared-prefix", "--model", "herd", "--max-tokens", "1"],
                          stdout=subprocess.PIPE, check=True, timeout=seconds + 120)
    return json.loads(done.stdout)


class Threads:
    """The kernel's accounts of the router's threads, fifty times a second: how long each computed in that time, which no
    stall of its own making can have exceeded, and how long it waited for a processor, which is the machine's doing."""
    EVERY_S = 0.02

    def __init__(self, pid):
        self.tasks = {int(tid): f"/proc/{pid}/task/{tid}/schedstat" for tid in os.listdir(f"/proc/{pid}/task")}
        self.control = pid
        self.most = {}  # (control or proxy, computed or waited): milliseconds
        self.over = threading.Event()
        self.thread = threading.Thread(target=self._look, daemon=True)
        self.thread.start()

    def _now(self):
        return {tid: [int(n) / 1e6 for n in open(task).read().split()] for tid, task in self.tasks.items()}

    def _look(self):
        last = self._now()
        while not self.over.wait(self.EVERY_S):
            now = self._now()
            for tid in now:
                loop = "control" if tid == self.control else "proxy"
                for i, what in enumerate(("computed", "waited for a processor")):
                    self.most[loop, what] = max(self.most.get((loop, what), 0), now[tid][i] - last[tid][i])
            last = now

    def stop(self):
        self.over.set()
        self.thread.join(5)
        return ", ".join(f"a {loop} loop {what} at most {ms:.1f} ms" for (loop, what), ms in self.most.items())


def measured(router, what, seconds):
    """The report of the load, with the loops' turns meanwhile, printed."""
    before, threads = router.metrics(), Threads(router.process.pid)
    report = load(router.url, seconds)
    after = router.metrics()
    print(f"{what}: in any {Threads.EVERY_S * 1e3:g} ms {threads.stop()}")
    for loop in ("proxy", "control"):
        bound, beyond, total = longest(buckets(before, loop), buckets(after, loop))
        print(f"{what}: longest turn of the {loop} loops at most {bound * 1e3:g} ms, beyond 5 ms in {beyond} of {total} "
              f"tenths of a second")
    waits = [sum(float(n) for n in re.findall(r"^incipit_lock_wait_seconds_total (\S+)", text, re.M))
             for text in (before, after)]
    print(f"{what}: {report['ok']} of {report['requests']} answered, mean {report['e2e_s']['mean'] * 1e3:.1f} ms, "
          f"p99 {report['e2e_s'].get('p99', 0) * 1e3:.1f} ms, longest {report['e2e_s'].get('max', 0) * 1e3:.1f} ms; "
          f"waits for the registry's lock {(waits[1] - waits[0]) * 1e3:.1f} ms in all; {report['outcomes']}")
    return report


def test_workers_that_come_and_go_all_the_time_are_those_of_the_server_and_no_request_fails(churn, programs, tmp_path):
    token = tmp_path / "token"
    token.write_text("any")
    router = programs(Router, "--service-discovery", "k8s", "--k8s-api-server", churn.api.url, "--k8s-ca-file", churn.api.ca,
                      "--k8s-token-file", token, "--k8s-namespace", "default", "--k8s-selector", SELECTOR,
                      "--max-workers", 1024, "--log-requests", 0)
    router.ready(len(churn.here))
    if SECONDS >= 30:
        measured(router, f"{len(churn.here)} workers that stay", SECONDS / 4)
    began = time.monotonic()
    churn.start()
    report = measured(router, f"{N} workers: {RATE:g} a second come and as many go", SECONDS)
    churn.rest()
    rate = churn.n_joined / (time.monotonic() - began)
    ended = time.monotonic()

    def used():
        return {w["url"] for w in router.workers()["workers"] if w["status"] == "ready"}
    wait_for(lambda: used() == churn.urls(), "the workers of the server")
    print(f"{churn.n_joined} joined and {churn.n_left} left, {rate:.1f} of each a second; the router had it right "
          f"{time.monotonic() - ended:.2f} s after the last")
    assert {name for _, name in churn.here} == set(churn.api.names())
    wait_for(lambda: router.workers()["total"] == len(churn.here), "those that left to be forgotten")
    assert report["failed"] == 0 and report["ok"] == report["requests"] > SECONDS * RPS / 2, report
    assert churn.n_joined > SECONDS * RATE / 4
    assert "kube_watch_lost" not in router.log
