#!/usr/bin/env python3
"""tests/replay/peers.py BINARY TRACE [--quick]: our versions of other routers' policies beside the
simulator's own versions of the same, which were written independently of them from the same sources.

Prints mean and p99 of the time to first token and the share of tokens hit, ours and theirs, and the
ratio of the means with the range that it must be in; exits 1 when one is not. Where the range is
not narrow, the last column says what is taken differently. Point G1 of cross.py.
"""
import sys

from cross import Runs, mean

PAIRS = [  # theirs, ours, least and most of ours / theirs, why
    ("random", "random", 0.9, 1.1, ""),
    ("rr", "round_robin", 0.99, 1.01, ""),
    ("lor", "least_load", 0.95, 1.05, ""),
    ("p2c", "power_of_two", 0.95, 1.05, ""),
    ("chwbl", "chwbl", 0.95, 1.05, ""),
    ("chwbl2k", "chwbl:key=8193", 0.9, 1.05, "key: the fifth block of 2,048 bytes"),
    ("trie", "hash_trie:tree=64", 0.99, 1.01, "never forgets, as there"),
    ("aibrix", "aibrix", 0.95, 1.05, ""),
    ("smg", "cache_aware:tree=16", 0.9, 1.05, "a tree per worker, as there"),
    ("smg", "cache_aware", 0.75, 1.05, "one tree of that size for all"),
    ("gaie", "prefix_scorer", 0.7, 1.05, "queue and KV use counted when sending, not scraped"),
]


def main():
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    seeds = (1,) if "--quick" in sys.argv else (1, 2, 3)
    runs = Runs(*sys.argv[1:3])
    rows = [(theirs, ours, low, high, why, runs.at("G1", theirs, seeds),
             runs.at("G1", "lib_" + ours, seeds)) for theirs, ours, low, high, why in PAIRS]
    failed = 0
    print(f"{'theirs':8} {'ours':19} {'mean s':>17} {'p99 s':>15} {'hit %':>11}  ratio  range")
    for theirs, ours, low, high, why, a, b in rows:
        ratio = mean(b, "mean") / mean(a, "mean")
        holds = low <= ratio <= high
        failed += not holds
        print(f"{theirs:8} {ours:19} {mean(a, 'mean'):8.5g} {mean(b, 'mean'):8.5g} "
              f"{mean(a, 'p99'):7.4g} {mean(b, 'p99'):7.4g} {mean(a, 'hit'):5.2f} {mean(b, 'hit'):5.2f}  "
              f"{ratio:5.3f}  {low:g}-{high:g} {'' if holds else 'NO '}{why}", flush=True)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
