#!/usr/bin/env python3
"""tests/replay/cross.py BINARY TRACE [--quick]: routing quality in an independent simulator.

Runs the cells of the table below, seeds 1-5, on all cores, and prints each goal with its bar, the
figure and whether it holds; exits 1 when one does not. `make replay-cross` builds the binary: the
simulator, its own policies, and ours as lib_NAME (simroute_adapter.c).

Every run is deterministic, so results are kept beside the binary: those of the simulator's own
policies until its sources change, ours until the library does. --quick runs seeds 1 and 2 and
leaves the scenes out.
"""
import concurrent.futures
import hashlib
import json
import os
import subprocess
import sys

OURS = "lib_prefix"
COLUMNS = ("policy n cap load copies reqs hit inf pool of_pool mean p50 p99 slo e2e tpot drain busy "
           "imbalance imbalance_requests").split()
POINTS = {  # name: workers, tokens of KV cache per worker, load
    "G1": (16, 700_000, 0.8), "G2": (16, 700_000, 0.95), "G3": (16, 7_000_000, 0.95),
    "N=4": (4, 700_000, 0.95), "N=8": (8, 700_000, 0.95), "N=32": (32, 700_000, 0.95),
    "G4 700k": (16, 700_000, 0.96), "G4 7M": (16, 7_000_000, 1.0),
}
SCENES = {"fewshot": 400, "selfcons": 280, "chat": 110, "tot": 320, "tenants": 180}  # requests/s
SCENE_SECONDS = 600


class Runs:
    """Simulator runs by their arguments, each done once."""

    def __init__(self, binary, trace):
        self.binary, self.folder = binary, os.path.dirname(os.path.abspath(binary))
        self.trace, self.pool = trace, concurrent.futures.ThreadPoolExecutor(os.cpu_count())
        self.futures, self.scenes = {}, {}
        self.stamp_theirs = self.read("simulator.stamp") + str(os.stat(trace).st_size)
        with open(binary, "rb") as f:
            self.stamp_ours = hashlib.sha256(f.read()).hexdigest()

    def read(self, name):
        with open(os.path.join(self.folder, name)) as f:
            return f.read()

    def run(self, args):
        is_ours = any(a.startswith("lib_") for a in args)
        stamp = self.stamp_ours if is_ours else self.stamp_theirs
        key = hashlib.sha256(json.dumps([stamp, args]).encode()).hexdigest()[:24]
        path = os.path.join(self.folder, "cache", key)
        if not os.path.exists(path):
            done = subprocess.run(["nice", "-n", "15", self.binary, *args], capture_output=True,
                                  text=True)
            if done.returncode:
                sys.exit(f"simroute {' '.join(args)}: exit {done.returncode}\n{done.stderr}")
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path + f".{os.getpid()}", "w") as f:
                f.write(done.stdout)
            os.rename(f.name, path)
        with open(path) as f:
            values = [v for v in f.read().split() if not v.startswith("window_")]
        return {c: v if c in ("policy", "cap") else float(v) for c, v in zip(COLUMNS, values)}

    def want(self, *args):
        args = tuple(str(a) for a in args)
        if args not in self.futures:
            self.futures[args] = self.pool.submit(self.run, args)
        return self.futures[args]

    def at(self, point, policy, seeds, *more):
        n, cap, load = POINTS[point]
        more += ("--learn", 1) if policy.startswith("lib_") else ()
        return [self.want("--trace", self.trace, "--policy", policy, "--n", n, "--cap", cap,
                          "--load", load, "--seed", s, *more) for s in seeds]

    def in_scene(self, scene, policy, seed):
        path = os.path.join(self.folder, f"{scene}.{seed}.jsonl")
        if not os.path.exists(path):
            with open(path + ".part", "w") as f:
                subprocess.run([self.binary, "gen", "--scene", scene, "--n",
                                str(SCENES[scene] * SCENE_SECONDS), "--rate", str(SCENES[scene]),
                                "--seed", str(seed), "--block", "64"], stdout=f, check=True)
            os.rename(f.name, path)
        more = ("--learn", 1) if policy == OURS else ()
        return [self.want("--trace", path, "--policy", policy, "--n", 16, "--cap", 700_000,
                          "--block", 64, "--copies", 1, "--scale", 1, "--warm", 0.4,
                          "--seed", seed, *more)]


def mean(futures, column):
    return sum(f.result()[column] for f in futures) / len(futures)


def rows(runs, seeds, is_quick):
    """(goal, bar as text, holds?, figure): all runs are asked for before the first is awaited."""
    out = []

    def ratio(goal, column, a, b, bar, at_least=False):
        out.append((goal, f"{'>=' if at_least else '<='} {bar:.2f}x",
                    lambda: mean(a, column) / mean(b, column),
                    lambda x: x >= bar if at_least else x <= bar,
                    lambda: f"{mean(a, column):.3f} / {mean(b, column):.3f}"))

    def absolute(goal, column, a, bar, unit):
        out.append((goal, f"<= {bar:g}{unit}", lambda: max(f.result()[column] for f in a),
                    lambda x: x <= bar, lambda: ""))

    ours = {p: runs.at(p, OURS, seeds) for p in POINTS}
    social = {p: runs.at(p, "oracle_s", seeds) for p in POINTS if not p.startswith("G4")}
    ratio("G1 mean TTFT / oracle_s", "mean", ours["G1"], social["G1"], 1.02)
    ratio("G1 p99 / round robin", "p99", ours["G1"], runs.at("G1", "rr", seeds), 0.25)
    ratio("G1 hit tokens / oracle_s", "hit", ours["G1"], social["G1"], 0.98, True)
    ratio("G1 end to end / oracle_s", "e2e", ours["G1"], social["G1"], 1.05)
    ratio("G2 mean TTFT / oracle_s", "mean", ours["G2"], social["G2"], 1.06)
    ratio("G3 mean TTFT / oracle_s", "mean", ours["G3"], social["G3"], 1.02)
    ratio("G3 mean TTFT / gaie", "mean", ours["G3"], runs.at("G3", "gaie", seeds), 0.62)
    for p in ("N=4", "N=8", "N=32"):
        ratio(f"{p} mean TTFT / oracle_s", "mean", ours[p], social[p], 1.08)
    absolute("G4 mean TTFT, 700k at load 0.96", "mean", ours["G4 700k"], 2, " s")
    absolute("G4 mean TTFT, 7M at load 1.00", "mean", ours["G4 7M"], 2, " s")
    for p in ("G1",) if is_quick else ("G1", "G2", "G3"):
        for factor in (0.5, 8) if is_quick or p != "G1" else (0.5, 2, 4, 8):
            ratio(f"G7 {p}, capacity declared x{factor}", "mean",
                  runs.at(p, OURS, seeds, "--capfac", factor), ours[p], 1.15)
    for scene in () if is_quick else SCENES:
        a, b = runs.in_scene(scene, OURS, 1), runs.in_scene(scene, "oracle", 1)
        ratio(f"G7 {scene} mean TTFT / oracle", "mean", a, b, 1.5)
        absolute(f"G7 {scene} prefill imbalance", "imbalance", a, 1.4, "")
    return out


def main():
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    is_quick = "--quick" in sys.argv
    seeds = (1, 2) if is_quick else (1, 2, 3, 4, 5)
    failed = 0
    print(f"{'goal':38} {'bar':>9} {'figure':>8}  holds  seconds, or %", flush=True)
    for goal, bar, figure, holds, detail in rows(Runs(*sys.argv[1:3]), seeds, is_quick):
        value = figure()
        failed += not holds(value)
        print(f"{goal:38} {bar:>9} {value:8.3f}  {'yes' if holds(value) else 'NO':5}  {detail()}",
              flush=True)
    print(f"{'all hold' if not failed else f'{failed} do not hold'}; seeds {seeds[0]}-{seeds[-1]}")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
