#!/usr/bin/env python3
"""tests/replay/shared.py BINARY [trace FILE] [--quick]: several routers, and one that is restarted.

Requests are spread over R routers at random. Shared routers read each other's requests from the workers' logs, through
the real codec, 5 ms after a request was accepted and 25 ms after anything else (a worker waits for 2 and 20,
request_feed.c), and each keeps books of its own; routers apart know what they sent. A restart loses the router's state
at half time; a shared one replays what the workers' logs of 16 MiB still hold. Shares are of what one LRU cache of the
whole fleet would have held. Prints each figure with its bar; exits 1 when one does not hold. Without a trace: generated
conversations. --quick: one seed of three, and fewer routers. `make replay-shared [TRACE=FILE] [QUICK=1]`
"""
import sys

from runs import mean, options

CACHES = {"700k": 700_000, "7M": 7_000_000}
WINDOW = 0.5


def main():
    runs, is_quick = options(__doc__)
    seeds, failed = (1,) if is_quick else (1, 2, 3), 0

    def at(cache="700k", **more):
        return runs.at(seeds, workers=16, cache=CACHES[cache], load=0.8, **more)

    def share(futures):
        return 100 * mean(futures, "cached") / mean(futures, "cached_pooled")

    def show(what, bar, value, holds, detail):
        nonlocal failed
        failed += not holds
        print(f"{what:44} {bar:>8} {value:8.3f}  {'yes' if holds else 'NO':5}  {detail}", flush=True)

    print(f"{'what':44} {'bar':>8} {'figure':>8}  holds", flush=True)
    fleets = [(r, at(routers=r, shared=1), at(routers=r)) for r in ((4,) if is_quick else (2, 4, 8))]
    late = at(routers=4, shared=1, delay_ms=20, late_ms=40)
    restarts = [(cache, shared, *(at(cache, shared=shared, window=WINDOW, restart=r) for r in (0, 1)))
                for cache in CACHES for shared in (1, 0)]
    one = at()
    ttft = mean(one, "ttft_mean_s")
    print(f"{'one router':44} {'':8} {'':8}         share {share(one):.1f} %, TTFT mean {ttft:.3f} s")
    for r, shared, apart in fleets:
        ratio, percent = mean(shared, "ttft_mean_s") / ttft, share(shared)
        show(f"{r} routers, mean TTFT / one router's", "<= 1.10x", ratio, ratio <= 1.1,
             f"{mean(shared, 'ttft_mean_s'):.3f} s, p99 {mean(shared, 'ttft_p99_s'):.2f} s "
             f"(apart: {share(apart):.1f} %, {mean(apart, 'ttft_mean_s'):.3f} s)")
        show(f"{r} routers, share %", ">= 86", percent, percent >= 86, "")
    print(f"{'   4 routers, logs read 20 and 40 ms later':44} {'':8} {mean(late, 'ttft_mean_s') / ttft:8.3f}         "
          f"share {share(late):.1f} %")
    for cache, shared, whole, restarted in restarts:
        kept = mean(restarted, "window_share") / mean(whole, "window_share")
        detail = (f"{100 * mean(whole, 'window_share'):.1f} -> {100 * mean(restarted, 'window_share'):.1f} %, TTFT "
                  f"{mean(whole, 'window_ttft_s'):.3f} -> {mean(restarted, 'window_ttft_s'):.3f} s")
        if shared:
            show(f"{cache}, restart with resync, share kept", ">= 0.97", kept, kept >= 0.97, detail)
        else:
            print(f"{f'   {cache}, restart without':44} {'':8} {kept:8.3f}         {detail}")
    print("all hold" if not failed else f"{failed} do not hold", f"; seeds {seeds[0]}-{seeds[-1]}", sep="")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
