#!/usr/bin/env python3
"""tests/replay/replay.py BINARY [NAME VALUE]... [--quick]: every policy on the same fleet and requests, in a table.

`make replay` runs it: conversations from the generator on 16 workers of 700,000 tokens at load 0.8, or the requests of
TRACE=FILE. NAME VALUE are arguments of tests/replay/replay.c: ARGS="workers 8 load 0.95 workload tenants".
--quick: one seed of three.
"""
import pathlib
import re
import sys

from runs import Runs, mean

HEADER = pathlib.Path(__file__).parents[2] / "router/routing/policy.h"
POLICIES = re.findall(r"^ +X\((\w+)\)", HEADER.read_text(), re.M)
ORACLES = "oracle oracle_selfish".split()
LEGEND = """
cached      prompt tokens found in a worker's cache; one cache of the whole fleet's size would find {:.1f} %
TTFT        seconds to the first token; "/ best": by the best of the other policies, so below 1 is ahead of all of them
imbalance   prefill tokens of the busiest worker by the mean of all; 1 is even
oracles     see every worker's queue, batch and cache and decide request by request; they are limits, not policies"""


def row(name, futures, others):
    values = {c: mean(futures, c) for c in ("ttft_mean_s", "ttft_p99_s")}
    best = {c: min(mean(f, c) for f in others) for c in values}
    mean_s, p99_s = (f"{values[c]:9.3f} {values[c] / best[c]:7.2f}" for c in values)
    print(f"{name:15} {100 * mean(futures, 'cached'):6.1f} %  {mean_s}  {p99_s}  {mean(futures, 'imbalance'):9.2f}", flush=True)


def main():
    arguments = [a for a in sys.argv[1:] if a != "--quick"]
    if not arguments or len(arguments) % 2 == 0:
        sys.exit(__doc__)
    seeds = (1,) if "--quick" in sys.argv else (1, 2, 3)
    runs = Runs(arguments[0], arguments[1:])
    rows = {name: runs.at(seeds, policy=name) for name in POLICIES + ORACLES}
    print(f"{mean(rows['prefix'], 'requests'):.0f} requests after the warm-up; means over seeds {seeds[0]}-{seeds[-1]}")
    print(f"{'policy':15} {'cached':>8}  {'TTFT mean':>9} {'/ best':>7}  {'p99':>9} {'/ best':>7}  {'imbalance':>9}")
    for name in sorted(POLICIES, key=lambda p: mean(rows[p], "ttft_mean_s")) + ORACLES:
        row(name, rows[name], [rows[p] for p in POLICIES if p != name])
    print(LEGEND.format(100 * mean(rows["prefix"], "cached_pooled")))


if __name__ == "__main__":
    main()
