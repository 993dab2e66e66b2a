#!/usr/bin/env python3
"""Overload: what is left of the goodput when clients ask for twice what the fleet can give.

    make bench-overload            ratios, and how soon a request beyond capacity is refused
    make bench-overload ARGS=60    seconds that are counted of each run (20)

Goodput is the answers per second that are complete and whose first token came within the SLO, counted
from the moment the request was due. Its peak is the best of open-loop rates that rise, from what a
closed loop gets, until the fleet no longer keeps up; the overload is twice that peak. Requests are short conversations, so that prefixes matter: a fleet
that has them cached serves half as many again as one that has not. Each run has prefixes of its own, so
each, the closed loop too, first warms the caches with its own traffic for as long as it is counted.
"""
import csv
import os
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from fleet import BUILD, Fleet, free_ports, get, load, median, metric, start_router, wait_for  # noqa: E402

N_WORKERS, SEQS, SPEED = 4, 8, 0.5
SLO_S, PATIENCE_MS = 4.0, 2000
STEP, MAX_STEPS = 1.15, 8
SECONDS = int(sys.argv[1]) if len(sys.argv) > 1 else 20
TRAFFIC = ("--traffic", "shared-prefix", "--groups", 64, "--prefix-bytes", 2048, "--question-bytes", 256,
           "--max-tokens", 32, "--stream")


def start_workers(fleet, extra=()):
    ports = free_ports(N_WORKERS)
    for port in ports:
        fleet.start([BUILD / "incipit-worker", "--backend", "sim", "--sim-speed", SPEED, "--port", port,
                     "--max-num-seqs", SEQS, "--log-level", "error", *extra])
    urls = [f"http://127.0.0.1:{port}" for port in ports]
    for url in urls:
        wait_for(lambda u=url: (get(u + "/health") or [0])[0] == 200, url)
    return urls


def percentile(values, q):
    values = sorted(values)
    return values[min(len(values) - 1, int(q * len(values)))] if values else float("nan")


class Run:
    """One open loop at a rate, twice as long as it is counted; the records of its second half."""

    def __init__(self, fleet, router, rps, seed):
        path = fleet.dir / "records.csv"
        load(router.url, "--mode", "open", "--rps", rps, "--duration", f"{2 * SECONDS}s", "--timeout", "30s",
             "--seed", seed, "--records", path, *TRAFFIC)
        rows = list(csv.DictReader(path.open()))
        us = lambda row, name: int(row[name])
        warm_us = min(us(r, "due_us") for r in rows) + SECONDS * 1e6
        rows = [r for r in rows if warm_us <= us(r, "due_us") < warm_us + SECONDS * 1e6]
        answered = [r for r in rows if r["code"] == "200" and r["outcome"] == "ok"]
        self.ttft_s = [(us(r, "first_us") - us(r, "due_us")) * 1e-6 for r in answered]
        self.goodput = sum(t <= SLO_S for t in self.ttft_s) / SECONDS
        self.refused_ms = [(us(r, "end_us") - us(r, "due_us")) * 1e-3 for r in rows if r["code"] == "429"]
        self.n, self.n_late = len(rows), sum(r["code"] == "503" for r in rows)
        self.n_failed = len(rows) - len(answered) - len(self.refused_ms) - self.n_late
        self.rps = rps

    def keeps_up(self):
        return self.goodput >= 0.95 * self.n / SECONDS

    def show(self):
        print(f"  {self.rps:6.1f}/s offered: goodput {self.goodput:6.1f}/s, TTFT p50 {percentile(self.ttft_s, .5):.3f} s "
              f"p99 {percentile(self.ttft_s, .99):.3f} s; {len(self.refused_ms)} of {self.n} refused at once "
              f"(p50 {percentile(self.refused_ms, .5):.2f} ms, p99 {percentile(self.refused_ms, .99):.2f} ms), "
              f"{self.n_late} after waiting, {self.n_failed} failed", flush=True)


def measure(fleet, title, args):
    router = start_router(fleet, start_workers(fleet), args=("--log-level", "error", *args))
    report = load(router.url, "--mode", "closed", "--connections", N_WORKERS * SEQS, "--duration", f"{2 * SECONDS}s",
                  "--warmup", f"{SECONDS}s", *TRAFFIC)
    rps = report["completed_per_s"]
    print(f"{title}: {rps:.1f} answers/s in a closed loop that just fills the workers", flush=True)
    runs = []
    while not runs or (runs[-1].keeps_up() and len(runs) < MAX_STEPS):
        runs.append(Run(fleet, router, rps * STEP ** len(runs), seed=len(runs) + 1))
        runs[-1].show()
    peak = max(run.goodput for run in runs)
    over = [Run(fleet, router, 2 * peak, seed=MAX_STEPS + i) for i in (1, 2, 3)]
    for run in over:
        run.show()
    share = median([run.goodput for run in over]) / peak
    refusal_ms = median([percentile(run.refused_ms, .99) for run in over])
    print(f"  2x overload keeps {share:.1%} of the peak goodput (bar: 95 %); refusals arrive within "
          f"{refusal_ms:.2f} ms at the 99th percentile (bar: 10 ms)", flush=True)
    router.stop()
    return share, refusal_ms


def main():
    with Fleet() as fleet:
        print(f"{N_WORKERS} simulated workers of {SEQS} sequences; SLO: first token within {SLO_S:g} s; "
              f"--queue-timeout {PATIENCE_MS}ms; {os.cpu_count()} cores for everything")
        share, refusal_ms = measure(fleet, "incipit-router", ("--queue-timeout", f"{PATIENCE_MS}ms"))
    return 0 if share >= 0.95 and refusal_ms <= 10 else 1


if __name__ == "__main__":
    sys.exit(main())
