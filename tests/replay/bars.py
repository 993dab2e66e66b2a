#!/usr/bin/env python3
"""tests/replay/bars.py BINARY [trace FILE] [--quick]: routing quality against its bars (router/BENCHMARKS.md).

Fleets of N workers with CACHE tokens each at a load, seeds 1-5: the default policy beside oracles and other policies,
with a wrong capacity declared, and in the scenes of tests/replay/workload/generator.h. Prints each figure with its bar
and whether it holds; exits 1 when one does not. Without a trace: generated conversations, whose arrivals are less even,
so that at load 1.00 the bar is 3 s. --quick: seeds 1 and 2, no scenes.
`make replay-bars [TRACE=FILE] [QUICK=1]`
"""
import sys

from runs import mean, most, options

OURS = "prefix"
FLEETS = {  # workers, tokens of KV cache per worker, load
    "16 x 700k, 0.80": (16, 700_000, 0.8), "16 x 700k, 0.95": (16, 700_000, 0.95), "16 x 7M, 0.95": (16, 7_000_000, 0.95),
    "4 x 700k, 0.95": (4, 700_000, 0.95), "8 x 700k, 0.95": (8, 700_000, 0.95), "32 x 700k, 0.95": (32, 700_000, 0.95),
    "16 x 700k, 0.96": (16, 700_000, 0.96), "16 x 7M, 1.00": (16, 7_000_000, 1.0),
}
CALM, FULL, LARGE, SMALLEST, SMALL, WIDE, BRIM, BRIM_LARGE = FLEETS
SCENES = "few_shot samples chats tree tenants".split()


def rows(runs, seeds, is_quick):
    """(what, bar as text, figure, holds?, detail): all runs are asked for before the first is awaited."""
    out = []

    def at(fleet, policy, **more):
        workers, cache, load = FLEETS[fleet]
        return runs.at(seeds, workers=workers, cache=cache, load=load, policy=policy, **more)

    def ratio(what, column, a, b, bar, at_least=False):
        out.append((what, f"{'>=' if at_least else '<='} {bar:.2f}x", lambda: mean(a, column) / mean(b, column),
                    lambda x: x >= bar if at_least else x <= bar, lambda: f"{mean(a, column):.4g} / {mean(b, column):.4g}"))

    def absolute(what, column, a, bar, unit):
        out.append((what, f"<= {bar:g}{unit}", lambda: most(a, column), lambda x: x <= bar, lambda: ""))

    ours = {f: at(f, OURS) for f in FLEETS}
    oracle = {f: at(f, "oracle") for f in FLEETS if f not in (BRIM, BRIM_LARGE)}
    ratio(f"{CALM}: mean TTFT / oracle", "ttft_mean_s", ours[CALM], oracle[CALM], 1.02)
    ratio(f"{CALM}: p99 / round robin", "ttft_p99_s", ours[CALM], at(CALM, "round_robin"), 0.25)
    ratio(f"{CALM}: cached tokens / oracle", "cached", ours[CALM], oracle[CALM], 0.98, True)
    ratio(f"{CALM}: end to end / oracle", "e2e_mean_s", ours[CALM], oracle[CALM], 1.05)
    ratio(f"{FULL}: mean TTFT / oracle", "ttft_mean_s", ours[FULL], oracle[FULL], 1.06)
    ratio(f"{LARGE}: mean TTFT / oracle", "ttft_mean_s", ours[LARGE], oracle[LARGE], 1.02)
    ratio(f"{LARGE}: mean TTFT / prefix_scorer", "ttft_mean_s", ours[LARGE], at(LARGE, "prefix_scorer"), 0.68)
    for f in (SMALLEST, SMALL, WIDE):
        ratio(f"{f}: mean TTFT / oracle", "ttft_mean_s", ours[f], oracle[f], 1.08)
    absolute(f"{BRIM}: mean TTFT", "ttft_mean_s", ours[BRIM], 2, " s")
    absolute(f"{BRIM_LARGE}: mean TTFT", "ttft_mean_s", ours[BRIM_LARGE], 2 if runs.source else 3, " s")
    for f in (CALM,) if is_quick else (CALM, FULL, LARGE):
        for factor in (0.5, 8) if is_quick or f != CALM else (0.5, 2, 4, 8):
            ratio(f"{f}: capacity declared x{factor}", "ttft_mean_s", at(f, OURS, capacity=factor), ours[f], 1.15)
    for scene in () if is_quick else SCENES:
        a, b = (runs.want((), (1,), workload=scene, load=0, policy=p) for p in (OURS, "oracle_selfish"))
        ratio(f"{scene}: mean TTFT / oracle_selfish", "ttft_mean_s", a, b, 1.5)
        absolute(f"{scene}: prefill imbalance", "imbalance", a, 1.4, "")
    return out


def main():
    runs, is_quick = options(__doc__)
    seeds, failed = (1, 2) if is_quick else (1, 2, 3, 4, 5), 0
    print(f"{'fleet, load: what':44} {'bar':>9} {'figure':>8}  holds  seconds, or shares", flush=True)
    for what, bar, figure, holds, detail in rows(runs, seeds, is_quick):
        value = figure()
        failed += not holds(value)
        print(f"{what:44} {bar:>9} {value:8.3f}  {'yes' if holds(value) else 'NO':5}  {detail()}", flush=True)
    print(f"{'all hold' if not failed else f'{failed} do not hold'}; seeds {seeds[0]}-{seeds[-1]}")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
