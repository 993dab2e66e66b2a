#!/usr/bin/env python3
"""Restarts under load: no client may notice.

    make rolling                 4 workers and 2 routers, one after the other, at 500 requests/s
    make upgrades                ten times another router in the same place, by handover, at 500 requests/s

Open loop, event streams over kept-alive connections. Workers are simulated ones with real prefix caches. In `rolling`
clients choose among the routers as those of a Kubernetes Service do: /readyz is polled every second, new connections
go to a ready router, open ones stay. A request that was sent again counts as failed, since not every client does
that; so does a connection that was reset, whatever was on it. In `upgrades` the share of prompt tokens found in the
workers' caches must be as it was before: at least 97 % of that after each upgrade and after the last.
"""
import argparse
import csv
import json
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from fleet import BUILD, LOAD, Fleet, free_ports, get, wait_for  # noqa: E402

PATIENCE_S = 60
failures = []


def row(what, figure, bar, holds):
    if not holds:
        failures.append(what)
    print(f"  {'ok ' if holds else 'NOT'} {what}: {figure} (bar: {bar})", flush=True)


class Program:
    """One that is restarted in its place: the same ports, the same options."""

    def __init__(self, fleet, args, port):
        self.fleet, self.args, self.port = fleet, args, port
        self.url = f"http://127.0.0.1:{port}"
        self.running = None

    def start(self):
        self.running = self.fleet.start(self.args)

    def end(self):
        """Asks it to end, and waits; seconds that it took."""
        began = time.monotonic()
        self.running.process.send_signal(signal.SIGTERM)
        wait_for(lambda: self.running.process.poll() is not None, f"{self.args[0]} to end", PATIENCE_S * 3)
        if self.running.process.returncode != 0:
            raise RuntimeError(f"{self.args[0]} ended with {self.running.process.returncode}:\n{self.running.text()}")
        return time.monotonic() - began


class Worker(Program):
    def __init__(self, fleet, port, speed):
        super().__init__(fleet, [BUILD / "incipit-worker", "--backend", "sim", "--sim-speed", speed, "--port", port,
                                 "--log-level", "warn"], port)

    def start(self):
        super().start()
        wait_for(lambda: (get(self.url + "/health") or [0])[0] == 200, f"worker on {self.port}", PATIENCE_S)


class Router(Program):
    def __init__(self, fleet, port, admin_port, workers, args):
        super().__init__(fleet, [BUILD / "incipit-router", "--port", port, "--admin-port", admin_port, "--log-level",
                                 "warn", "--queue-size", 10000, *args, "--worker-urls", *(w.url for w in workers)], port)
        self.admin_url = f"http://127.0.0.1:{admin_port}"
        self.n_workers = len(workers)

    def is_ready(self):
        return (get(self.admin_url + "/readyz") or [0])[0] == 200

    def n_healthy(self):
        answer = get(self.admin_url + "/workers")
        return json.loads(answer[1])["stats"]["healthy_workers"] if answer and answer[0] == 200 else 0

    def wait(self):
        if self.running.process.poll() is not None:
            raise RuntimeError(f"the router ended:\n{self.running.text()}")
        wait_for(lambda: self.n_healthy() == self.n_workers, f"router on {self.port} to know its workers", PATIENCE_S)


class Service(threading.Thread):
    """Polls the routers' readiness, and writes down who is ready."""

    def __init__(self, routers, path, period_s):
        super().__init__(daemon=True)
        self.routers, self.path, self.period_s = routers, path, period_s
        self.over, self.listed = threading.Event(), None
        self.look()

    def look(self):
        ready = [r.url for r in self.routers if r.is_ready()]
        if ready and ready != self.listed:
            fresh = self.path.with_suffix(".new")
            fresh.write_text("\n".join(ready) + "\n")
            os.replace(fresh, self.path)
            self.listed = ready

    def run(self):
        while not self.over.wait(self.period_s):
            self.look()


class Load:
    """The load generator; `report` ends it when it is done."""

    def __init__(self, fleet, url, rps, seconds, *args):
        self.records = fleet.dir / "records.csv"
        self.began = time.monotonic()
        self.process = subprocess.Popen(
            [str(LOAD), url, "--rps", str(rps), "--duration", f"{seconds * 1000:.0f}ms", "--stream", "--timeout", "60s",
             "--records", str(self.records), *map(str, args)], stdout=subprocess.PIPE, text=True)

    def at(self):
        return time.monotonic() - self.began

    def wait_until(self, second):
        time.sleep(max(0.0, self.began + second - time.monotonic()))

    def report(self):
        text, _ = self.process.communicate(timeout=PATIENCE_S * 10)
        return json.loads(text)


def judge(report, n_wanted):
    n = report["ok"] + report["failed"]
    print(f"  ended with {report['codes']}; time to first token p50 {report['ttft_s']['p50'] * 1e3:.0f} ms, p99 "
          f"{report['ttft_s']['p99'] * 1e3:.0f} ms")
    outcomes = {k: v for k, v in report["outcomes"].items() if k != "ok" and v}
    row("requests that failed", f"{report['failed']} of {n} {outcomes or ''}", "0", report["failed"] == 0)
    row("requests that were offered", n, f">= {n_wanted}", n >= n_wanted)
    row("connections that were reset", report["resets"], "0", report["resets"] == 0)
    row("requests that were sent again", report["resent"], "0", report["resent"] == 0)


def rolling(fleet, o):
    n_workers, n_routers = (4, 2) if not o.quick else (2, 2)
    ports = free_ports(n_workers + 2 * n_routers)
    workers = [Worker(fleet, ports.pop(), o.speed) for _ in range(n_workers)]
    for w in workers:
        w.start()
    routers = [Router(fleet, ports.pop(), ports.pop(), workers, ("--drain-settle", f"{o.settle * 1000:.0f}ms"))
               for _ in range(n_routers)]
    for r in routers:
        r.start()
    for r in routers:
        r.wait()
    service = Service(routers, fleet.dir / "endpoints", o.settle / 3)
    service.start()
    load = Load(fleet, routers[0].url, o.rps, o.seconds, "--endpoints", service.path, "--body-bytes", "512",
                "--max-tokens", o.tokens)
    took = {"worker": [], "router": []}
    for i, program in enumerate([*workers, *routers]):
        load.wait_until(o.seconds * (0.04 + 0.9 * i / (n_workers + n_routers)))
        kind = "worker" if isinstance(program, Worker) else "router"
        took[kind].append(program.end())
        program.start()
        for r in routers:
            r.wait()
        if kind == "router":
            wait_for(lambda: program.url in service.listed, "the service to list it again", PATIENCE_S)
    last = load.at()
    report = load.report()
    service.over.set()
    print(f"  {n_workers} workers ended within {max(took['worker']):.1f} s, {n_routers} routers within "
          f"{max(took['router']):.1f} s; all restarted {last:.0f} s after the load began")
    row("the load lasted longer than the restarts", f"{last:.0f} of {o.seconds:.0f} s", "yes", last < o.seconds)
    judge(report, int(o.rps * o.seconds * 0.97))


def share(records, from_s, until_s):
    """Of the prompt tokens of requests due then, how many were found in a cache."""
    found = prompt = 0
    for r in records:
        if from_s * 1e6 <= int(r["due_us"]) < until_s * 1e6 and int(r["prompt_tokens"]) > 0:
            prompt += int(r["prompt_tokens"])
            found += max(0, int(r["cached_tokens"]))
    return found / prompt if prompt else 0.0


def upgrades(fleet, o):
    n_workers, n_upgrades, warm_s = (4, 10, 60.0) if not o.quick else (2, 2, 3.0)
    pause_s = (o.seconds - 2 * warm_s) / n_upgrades
    *ports, port, admin_port = free_ports(n_workers + 2)
    workers = [Worker(fleet, p, o.speed) for p in ports]
    for w in workers:
        w.start()
    (fleet.dir / "own").mkdir(mode=0o700)
    router = Router(fleet, port, admin_port, workers,
                    ("--drain-settle", f"{o.settle * 1000:.0f}ms", "--handover", fleet.dir / "own" / "router", *o.router))
    router.start()
    router.wait()
    load = Load(fleet, router.url, o.rps, o.seconds, "--traffic", "conversation", "--max-tokens", o.tokens, "--pause",
                "3s", "--turns", "5", "--first-turn-bytes", "1200", "--turn-bytes", "300", "--system-bytes", "800")
    moments, took = [], []
    for i in range(n_upgrades):
        load.wait_until(warm_s + i * pause_s)
        before, began = router.running, time.monotonic()
        router.start()
        moments.append(load.at())
        wait_for(lambda: before.process.poll() is not None, "the one before to leave", PATIENCE_S * 3)
        took.append(time.monotonic() - began)
        if before.process.returncode != 0:
            raise RuntimeError(f"it ended with {before.process.returncode}:\n{before.text()}")
    report = load.report()
    with open(load.records, newline="") as file:
        records = list(csv.DictReader(file))
    before = share(records, warm_s / 2, warm_s)
    each = [share(records, at, min(at + 60, o.seconds)) for at in moments]
    print(f"  {n_upgrades} upgrades; the longest took {max(took):.1f} s, drain included")
    judge(report, int(o.rps * o.seconds * 0.97))
    print("  cached share in the minutes after each: " + " ".join(f"{x:.4f}" for x in each))
    bar = 0.97 if not o.quick else 0.9
    row("cached share in the minute after the worst upgrade", f"{min(each):.4f}, {before:.4f} before ({min(each) / before:.1%})",
        f">= {bar:.0%}", min(each) >= bar * before)
    row("cached share after the last", f"{each[-1]:.4f} ({each[-1] / before:.1%})", f">= {bar:.0%}",
        each[-1] >= bar * before)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("scenario", choices=["rolling", "upgrades"])
    parser.add_argument("--quick", action="store_true", help="a small one, for the tests")
    parser.add_argument("--rps", type=float, default=500)
    parser.add_argument("--seconds", type=float)
    parser.add_argument("--settle", type=float, default=3, help="--drain-settle of the routers")
    parser.add_argument("--speed", type=float, help="--sim-speed of the workers")
    parser.add_argument("--tokens", type=int, help="of an answer")
    parser.add_argument("--router", nargs="*", default=[], help="more options of the routers, e.g. -- --share none")
    o = parser.parse_args()
    o.seconds = o.seconds or {"rolling": 70.0, "upgrades": 240.0}[o.scenario]
    o.speed = o.speed or {"rolling": 2.5, "upgrades": 20}[o.scenario]
    o.tokens = o.tokens or {"rolling": 32, "upgrades": 12}[o.scenario]
    print(f"{o.scenario}: {o.rps:.0f} requests/s for {o.seconds:.0f} s", flush=True)
    with Fleet() as fleet:
        {"rolling": rolling, "upgrades": upgrades}[o.scenario](fleet, o)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
