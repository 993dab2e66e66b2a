#!/usr/bin/env python3
"""tests/replay/shared.py BINARY TRACE [--quick]: several routers, and one that is restarted.

In the simulator of cross.py, with requests spread over R routers at random. `shared` routers hear of
each other's requests from the workers' logs, through the real codec, 5 ms after a request was accepted
and 25 ms after anything else (a worker waits for 2 and 20, request_feed.c), and each keeps books of its
own; `apart` each knows what it sent. A restart loses the router's state at half time; a shared one
replays what the workers' logs of 16 MiB still hold. Shares are of what one LRU cache of the whole fleet
would have held. Prints each goal with its bar; exits 1 when one does not hold. --quick: one seed of
three, and fewer routers.
"""
import sys

from cross import COLUMNS, Runs, mean

ALONE, SHARED = "lib_prefix", "lib_prefix:share=1,delay_ms=5,late_ms=25"
COLUMNS += ["window_share", "window_ttft"]  # of the five minutes after a restart
CAPS = {"700k": 700_000, "7M": 7_000_000}


def main():
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    runs, is_quick = Runs(*sys.argv[1:3]), "--quick" in sys.argv
    seeds, failed = (1,) if is_quick else (1, 2, 3), 0

    def at(policy, cap, *more):
        return [runs.want("--trace", runs.trace, "--policy", policy, "--n", 16, "--cap", CAPS[cap],
                          "--load", 0.8, "--learn", 1, "--seed", s, *more) for s in seeds]

    def show(goal, bar, value, holds, detail):
        nonlocal failed
        failed += not holds
        print(f"{goal:44} {bar:>8} {value:8.3f}  {'yes' if holds else 'NO':5}  {detail}", flush=True)

    print(f"{'goal':44} {'bar':>8} {'figure':>8}  holds", flush=True)
    fleets = [(r, at(SHARED, "700k", "--replicas", r), at(ALONE, "700k", "--replicas", r))
              for r in ((4,) if is_quick else (2, 4, 8))]
    far = at("lib_prefix:share=1,delay_ms=20,late_ms=40", "700k", "--replicas", 4)
    lives = [(cap, policy, at(policy, cap, "--restart", 1.5), at(policy, cap, "--restart", 0.5))
             for cap in CAPS for policy in (SHARED, ALONE)]
    one = at(ALONE, "700k")
    share, ttft = mean(one, "of_pool"), mean(one, "mean")
    print(f"{'one router':44} {'':8} {'':8}         share {share:.1f} %, TTFT mean {ttft:.3f} s")
    for r, shared, alone in fleets:
        apart = f"(apart: {mean(alone, 'of_pool'):.1f} %, {mean(alone, 'mean'):.3f} s)"
        ratio, percent = mean(shared, "mean") / ttft, mean(shared, "of_pool")
        show(f"G5 {r} routers, mean TTFT / one router's", "<= 1.10x", ratio, ratio <= 1.1,
             f"{mean(shared, 'mean'):.3f} s, p99 {mean(shared, 'p99'):.2f} s {apart}")
        show(f"G5 {r} routers, share %", ">= 86", percent, percent >= 86, "")
    print(f"{'   4 routers, 20 ms later':44} {'':8} {mean(far, 'mean') / ttft:8.3f}         "
          f"share {mean(far, 'of_pool'):.1f} %")
    for cap, policy, whole, restarted in lives:
        kept = mean(restarted, "window_share") / mean(whole, "window_share")
        detail = (f"{mean(whole, 'window_share'):.1f} -> {mean(restarted, 'window_share'):.1f} %, TTFT "
                  f"{mean(whole, 'window_ttft'):.3f} -> {mean(restarted, 'window_ttft'):.3f} s")
        if policy == SHARED:
            show(f"G6 {cap}, restart with resync, share kept", ">= 0.97", kept, kept >= 0.97, detail)
        else:
            print(f"{f'   {cap}, restart without':44} {'':8} {kept:8.3f}         {detail}")
    print("all hold" if not failed else f"{failed} do not hold", f"; seeds {seeds[0]}-{seeds[-1]}", sep="")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
