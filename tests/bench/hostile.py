#!/usr/bin/env python3
"""What clients that take memory and connections cost the others: make bench-hostile

A router in a control group of 256 MiB, where the system lets one be made, before a simulated worker. Small requests
come at a steady rate, first alone, then while 500 clients hold unfinished bodies of 32 MiB, 2,000 connections are silent and
64 prompts of 30 MiB of spaces come; from one address, then from many. Printed: how many of the others failed, their p99, the
admin port's slowest answer, and the memory before, at its most, and 5 s after. The attackers run at the lowest priority, but the copies
that the system makes for them take this machine's processors and caches all the same, as they would not from elsewhere. So a second
router, which is not attacked, stands before the same worker and gets the same requests at the same time: what its p99 rises by is the
machine's, and the rest is the attack's.
"""
import collections
import concurrent.futures
import contextlib
import json
import os
import pathlib
import re
import resource
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request

from fleet import wait_for

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = ROOT / os.environ.get("INCIPIT_BUILD", "build/release")
LIMIT = 256 << 20
REQUESTS, RPS = 10000, 250
ATTACK = ["--bodies", "500", "--silent", "2000", "--prompts", "64"]


@contextlib.contextmanager
def control_group():
    """The folder of a group with the limit, or None."""
    for base, file in (("/sys/fs/cgroup/memory", "memory.limit_in_bytes"), ("/sys/fs/cgroup", "memory.max")):
        path = pathlib.Path(base) / f"incipit_hostile_{os.getpid()}"
        try:
            path.mkdir()
        except OSError:
            continue
        try:
            (path / file).write_text(str(LIMIT))
            yield path
            return
        except OSError:
            pass
        finally:
            with contextlib.suppress(OSError):
                path.rmdir()
    yield None


def start(program, *args, group=None):
    def enter():
        resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
        if group:
            (group / "cgroup.procs").write_text(str(os.getpid()))
    log = tempfile.NamedTemporaryFile("w+", delete=False)
    process = subprocess.Popen([BUILD / program, *map(str, args)], stdout=subprocess.DEVNULL, stderr=log, preexec_fn=enter)
    process.log_path = log.name
    return process


def field(process, event, name):
    found = lambda: re.search(rf" {event} .*?\b{name}=(\S+)", pathlib.Path(process.log_path).read_text())
    wait_for(found, f"{event} in {process.log_path}")
    return found()[1]


def memory(process, name):
    text = pathlib.Path(f"/proc/{process.pid}/status").read_text()
    return int(re.search(rf"{name}:\s+(\d+) kB", text)[1]) / 1024


class Admin(threading.Thread):
    """Asks the admin port again and again; `slowest_s`."""

    def __init__(self, port):
        super().__init__(daemon=True)
        self.url, self.slowest_s, self.n, self.failed, self.is_over = f"http://127.0.0.1:{port}/livez", 0, 0, 0, False
        self.start()

    def run(self):
        while not self.is_over:
            began = time.monotonic()
            try:
                urllib.request.urlopen(self.url, timeout=10).read()
            except OSError:
                self.failed += 1
            self.n += 1
            self.slowest_s = max(self.slowest_s, time.monotonic() - began)
            time.sleep(0.02)

    def end(self):
        self.is_over = True
        self.join()
        return self


def others(port):
    """10,000 requests of 1 KB: the names and rows of their record."""
    with tempfile.NamedTemporaryFile() as records:
        subprocess.run([BUILD / "incipit-bench", f"http://127.0.0.1:{port}", "--rps", str(RPS), "--requests", str(REQUESTS),
                        "--duration", "10m", "--max-tokens", "1", "--timeout", "30s", "--records", records.name],
                       stdout=subprocess.DEVNULL, check=False)
        lines = pathlib.Path(records.name).read_text().splitlines()
    head, rows = lines[0].split(","), [line.split(",") for line in lines[1:]]
    return head, rows


def summary(head, rows):
    at = {name: i for i, name in enumerate(head)}
    good = sorted(int(r[at["end_us"]]) - int(r[at["due_us"]]) for r in rows if r[at["code"]] == "200" and r[at["outcome"]] == "ok")
    lost = collections.Counter(f"{r[at['outcome']]} {r[at['code']]}" for r in rows if r[at["code"]] != "200" or r[at["outcome"]] != "ok")
    failed = f"{REQUESTS - len(good)} failed" + (f" ({dict(lost)})" if lost else "")
    return failed, good[len(good) * 99 // 100] / 1000 if good else float("nan")


def main():
    with control_group() as group:
        print(f"memory: a control group of {LIMIT >> 20} MiB" if group else "memory: no control group can be made here: unlimited")
        for addresses in (1, 200):
            worker = start("incipit-worker", "--backend", "sim", "--sim-speed", "100", "--port", "0")
            args = ["--port", "0", "--admin-port", "0", "--worker-urls", f"http://127.0.0.1:{field(worker, 'worker_ready', 'port')}",
                    "--log-requests", "0", *sys.argv[1:]]
            router, beside = start("incipit-router", *args, group=group), start("incipit-router", *args)
            try:
                run(router, beside, addresses)
            finally:
                for process in (router, beside, worker):
                    process.terminate()
                    process.wait()


def ready_ports(router):
    port, admin = field(router, "router_listening", "port"), field(router, "router_listening", "admin_port")
    workers = lambda: urllib.request.urlopen(f"http://127.0.0.1:{admin}/workers").read().replace(b" ", b"")
    wait_for(lambda: b'"healthy_workers":1' in workers(), "a healthy worker")
    return port, admin


def run(router, beside, addresses):
    (port, admin), (port_beside, _) = ready_ports(router), ready_ports(beside)

    def both():
        with concurrent.futures.ThreadPoolExecutor() as pool:
            return [summary(*rows) for rows in pool.map(others, (port, port_beside))]
    alone, alone_beside = both()
    before = memory(router, "VmRSS")
    attack = subprocess.Popen([sys.executable, ROOT / "tests/support/hostile.py", str(port), *ATTACK, "--addresses", str(addresses),
                               "--seconds", "600"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                              preexec_fn=lambda: os.nice(19))
    attack.stdout.readline()
    watch = Admin(admin)
    under, under_beside = both()
    watch.end()
    most = memory(router, "VmHWM")
    attack.stdin.close()
    outcomes = json.loads(attack.stdout.readline() or "{}")
    attack.wait()
    time.sleep(5)
    print(f"from {addresses} address{'es' if addresses > 1 else ''}: of {REQUESTS} others alone {alone[0]}, p99 {alone[1]:.1f} ms; under attack "
          f"{under[0]}, p99 {under[1]:.1f} ms, of the router beside {alone_beside[1]:.1f} and {under_beside[1]:.1f} ms: "
          f"{under[1] / under_beside[1]:.2f} x; admin slowest {watch.slowest_s * 1000:.1f} ms of {watch.n}, {watch.failed} failed; "
          f"RSS {before:.1f} MiB before, {most:.1f} at most, {memory(router, 'VmRSS'):.1f} after 5 s; attackers {outcomes}")
    print("  " + "\n  ".join(line for line in urllib.request.urlopen(f"http://127.0.0.1:{admin}/metrics").read().decode().splitlines()
                             if line.startswith("incipit_http") and not line.endswith(" 0")))


if __name__ == "__main__":
    main()
