#!/usr/bin/env python3
"""tests/replay/orders.py BINARY [trace FILE] [--quick]: order, late binding and unequal fleets against their bars.

A scene is a fleet, a load and what goes wrong; each is replayed without any order (first come, first served; requests
never wait in the router) and with it, by three draws of arrivals. The bars are of the Mooncake conversation trace; without
a trace conversations are generated, no bar is decided on, and agents are replayed all the same. Prints each figure with its
bar and, of mean times to first token, what nothing goes below (tests/replay/fleet_bound.h) and the best of the other
policies before the same workers; exits 1 when a bar does not hold. It takes more than an hour of a core; interrupted, it
goes on where it was (runs.py). --quick: one draw.
`make replay ARGS=all [TRACE=FILE] [QUICK=1]`, or `make replay-order`
"""
import sys

from runs import mean, most, options

DRAWS = 11, 12, 13
SCENES = {
    "G1 16 x 700k, 0.8": dict(workers=16, load=0.8), "G2 16 x 700k, 0.95": dict(workers=16, load=0.95),
    "G3 16 x 7M, 0.95": dict(workers=16, cache=7_000_000, load=0.95),
    "N4 4 x 700k, 0.95": dict(workers=4, load=0.95), "N8 8 x 700k, 0.95": dict(workers=8, load=0.95),
    "N4s 4 x 350k, 0.95": dict(workers=4, cache=350_000, load=0.95),
    "N32 32 x 700k, 0.95": dict(workers=32, load=0.95),
    "over 16 x 700k, 1.05": dict(workers=16, load=1.05), "burst 3x, 0.65": dict(workers=16, load=0.65, burst=3),
    "flash 0.3, 0.95": dict(workers=16, load=0.95, flash=0.3), "flood 0.6, 0.95": dict(workers=16, load=0.95, flood=0.6),
    "x2 odd workers, 0.95": dict(workers=16, load=0.95, slow=2), "x4 odd workers, 0.95": dict(workers=16, load=0.95, slow=4),
    "down 4 of 16, 0.95": dict(workers=16, load=0.95, crash=4), "calm 16 x 700k, 0.5": dict(workers=16, load=0.5),
    "fair 16 x 700k, 1.5": dict(workers=16, load=1.5),
}
SRPT = dict(order="srpt")
AWARE = dict(order="srpt", aware=1, price="on")
HOST = dict(order="srpt", host=7_000_000, restore=400_000)
LATE = dict(hold_ms=300)  # what --hold-ms auto is before such workers
LATE_AWARE = dict(**AWARE, hold_ms=1000)
LATE_SRPT = {**LATE_AWARE, "price": "off"}  # the default before our workers
SHARED = dict(routers=4, shared=1)
ADMIT = dict(sessions=1, admit=1)
PEERS = "prefix_scorer", "cache_aware", "least_load", "round_robin"  # before workers that compute in order of arrival
PLATEAU = 75  # sessions that eight workers of 700k tokens keep


class Table:
    def __init__(self, runs, n_draws):
        self.runs, self.draws, self.rows = runs, DRAWS[:n_draws], []

    def at(self, scene, **more):
        arguments = {**SCENES[next(s for s in SCENES if s.split()[0] == scene)], **more}
        return [self.runs.at((1,), draw=d, bound=1, **arguments)[0] for d in self.draws]

    def agents(self, n_live, workload="agents", **more):
        return self.runs.want((), self.draws, workload=workload, workers=8, rate=n_live, **more)

    def add(self, scene, what, bar, figure, holds=None, without=None, of_trace=True, beside=None):
        self.rows.append((scene, what, bar, figure, holds, without, of_trace, beside))

    def beside(self, scene, **workers):
        """A function: the bound of a scene, the best of the other policies there, and its name."""
        bounded = self.at(scene, **workers)
        peers = {name: self.at(scene, **workers, policy=name) for name in PEERS}

        def read():
            best = min(PEERS, key=lambda name: mean(peers[name], "ttft_mean_s"))
            return f"{mean(bounded, 'bound_s'):.3f}", f"{mean(peers[best], 'ttft_mean_s'):.3f} {best}"
        return read

    def agents_row(self, what, bar, figure, without=None, least=False):
        """At most the bar, or at least."""
        self.add("agents", what, f">= {bar:g}" if least else f"<= {bar:g}", figure,
                 (lambda x: x >= bar) if least else (lambda x: x <= bar), without, of_trace=False)

    def least(self, scene, what, bar, product, column="ttft_mean_s", without=None, workers=None):
        """`column` is at most `bar`, beside what it is `without`, and what peers have before such `workers`."""
        beside = self.beside(scene, **(workers or {})) if column == "ttft_mean_s" else None
        self.add(scene, what, f"<= {bar:g}", lambda: mean(product, column), lambda x: x <= bar,
                 without and (lambda: mean(without, column)), beside=beside)

    def ratio(self, scene, what, bar, product, without, column, of=mean):
        self.add(scene, what, f"<= {bar:.2f}x", lambda: of(product, column) / max(of(without, column), 1e-9),
                 lambda x: x <= bar, lambda: of(without, column))


def order_in_the_worker(t):
    bars = dict(G1=(0.95, 0.95), G2=(1.15, 1.09), G3=(0.89, 0.84), N4=(1.72, 1.54), N8=(1.40, 1.26), N32=(1.01, 0.98))
    for scene, (alone, aware) in bars.items():
        without, srpt, told = t.at(scene), t.at(scene, **SRPT), t.at(scene, **AWARE)
        t.least(scene, "srpt: TTFT mean", alone, srpt, without=without)
        t.ratio(scene, "srpt: p99", 1.08, srpt, without, "ttft_p99_s")
        t.ratio(scene, "srpt: end to end", 1.01, srpt, without, "e2e_mean_s")
        t.least(scene, "srpt, aware: TTFT mean", aware, told, without=without)
        t.ratio(scene, "srpt, aware: p99", 1, told, without, "ttft_p99_s")
        t.ratio(scene, "srpt, aware: end to end", 1.15 if scene in ("N4", "N8") else 1.1, told, without, "e2e_mean_s")
        for name, runs in ("srpt", srpt), ("srpt, aware", told):
            t.add(scene, f"{name}: goodput", "", lambda r=runs: mean(r, "good"), None, lambda w=without: mean(w, "good"))


def late_binding(t):
    for scene, bar in dict(G2=1.17, N4=1.88, burst=2.3, over=3.7, flash=1.5).items():
        without, late = t.at(scene), t.at(scene, **LATE)
        t.least(scene, "hold: TTFT mean", bar, late, without=without)
        t.ratio(scene, "hold: end to end", 1.07, late, without, "e2e_mean_s")
        t.ratio(scene, "hold: longest wait", 2, late, without, "ttft_max_s", most)
    for scene, bar in dict(over=3.5, burst=2.3, flash=1.45).items():
        t.least(scene, "srpt, aware, hold: TTFT mean", bar, t.at(scene, **LATE_AWARE), without=t.at(scene))
        for name, with_it in ("hold", LATE), ("srpt, hold", LATE_SRPT), ("srpt, aware, hold", LATE_AWARE):
            runs, without = t.at(scene, **with_it), t.at(scene)
            t.add(scene, f"{name}: goodput", "", lambda r=runs: mean(r, "good"), None, lambda w=without: mean(w, "good"))
        t.add(scene, "srpt, hold: TTFT mean", "", lambda r=t.at(scene, **LATE_SRPT): mean(r, "ttft_mean_s"))
    calm = t.at("calm", **LATE)
    t.least("calm", "hold: share held", 0.001, calm, "held")
    t.ratio("calm", "hold: TTFT mean", 1.01, calm, t.at("calm"), "ttft_mean_s")
    t.ratio("down", "hold: TTFT mean", 0.9, t.at("down", **LATE), t.at("down"), "ttft_mean_s")
    t.ratio("G2", "hold, reports 0.1 s late", 1.05, t.at("G2", **LATE, late_first_ms=100), t.at("G2", **LATE), "ttft_mean_s")
    for name, with_it, bar in ("hold", LATE, 1.15), ("srpt, hold", LATE_SRPT, 1.05), ("srpt, aware, hold", LATE_AWARE, 1.05):
        shared = t.at("G2", **with_it, **SHARED)
        t.ratio("G2", f"{name}, 4 routers: TTFT mean", bar, shared, t.at("G2", **with_it), "ttft_mean_s")


def tenants(t):
    without = t.at("flood")
    t.least("flood", "hold: worst other tenant", 1.4, t.at("flood", **LATE, tenants=1), "worst_tenant_ttft_s", without)
    t.least("flood", "srpt, hold: the same", 1.9, t.at("flood", **LATE_SRPT, tenants=1), "worst_tenant_ttft_s", without)
    t.least("flood", "srpt, aware, hold: the same", 1.9, t.at("flood", **LATE_AWARE, tenants=1), "worst_tenant_ttft_s", without)
    fair = t.at("fair", **LATE, tenants=1, weight=2)
    t.add("fair", "hold: prefill at weights 2:1", "1.9 to 2.1", lambda: mean(fair, "odd_by_even"), lambda x: 1.9 <= x <= 2.1)
    four = t.at("fair", **LATE, **SHARED, tenants=1, weight=2)
    t.add("fair", "hold, 4 routers: the same", "1.9 to 2.1", lambda: mean(four, "odd_by_even"), lambda x: 1.9 <= x <= 2.1)
    through_one, apart = ({**LATE, **SHARED, "tenants": 1, "weight": 2, "apart": 1, "marks": m} for m in (1, 0))
    through_one, apart = t.at("fair", **through_one), t.at("fair", **apart)
    t.add("fair", "the same, these through one each", "1.9 to 2.1", lambda: mean(through_one, "odd_by_even"),
          lambda x: 1.9 <= x <= 2.1, lambda: mean(apart, "odd_by_even"))
    t.least("flood", "hold, 4 routers: worst other", 1.9, t.at("flood", **LATE, **SHARED, tenants=1), "worst_tenant_ttft_s", without)


def deadlines(t):
    due = dict(**LATE, due=3, due_prefills=2)
    with_it, kept = t.at("over", **due), t.at("over", **due, never=1)
    t.add("over", "deadlines: in time", ">= 0.985", lambda: mean(with_it, "in_time"), lambda x: x >= 0.985,
          lambda: mean(kept, "in_time"))
    t.least("over", "deadlines: refused", 0.015, with_it, "refused")
    t.least("over", "deadlines: accepted and late", 0.005, with_it, "missed", kept)
    t.least("G1", "deadlines: refused", 0.001, t.at("G1", **due), "refused")
    again = t.at("over", **due, again=1)
    t.add("over", "deadlines: accepted when again", "", lambda: mean(again, "again"))


def unequal_fleets(t):
    for scene, bar in dict(x2=1.68, x4=2.05).items():
        t.least(scene, "speeds unknown: TTFT mean", bar, t.at(scene))
        t.least(scene, "speeds published: TTFT mean", bar, t.at(scene, told=1))
    for scene, bar in dict(G1=0.72, G2=0.745).items():
        t.least(scene, "srpt, host 10x: TTFT mean", bar, t.at(scene, **HOST), without=t.at(scene),
                workers={k: HOST[k] for k in ("host", "restore")})


def tiers(t):
    """Host memory that the router prices, beside one that it takes for as quick as the device."""
    for what, restore, bar in ("51 GB/s", 400_000, 1.005), ("5 GB/s", 40_000, 0.97), ("2.5 GB/s", 20_000, 0.92):
        host = dict(host=7_000_000, restore=restore)
        t.ratio("G2", f"host 10x at {what}: TTFT mean", bar, t.at("G2", **host), t.at("G2", **host, tiers=0), "ttft_mean_s")


def fetching(t):
    """Workers that bring KV from one another, 12.8 GB/s at 128 KiB a token; and choices replayed both ways."""
    for scene, bar in dict(G1=0.70, G2=0.73).items():
        t.least(scene, "srpt, host 10x, fetch: TTFT mean", bar, t.at(scene, **HOST, fetch=100_000), without=t.at(scene, **HOST))
    for gigabits in 0.1, 1, 10:
        runs = t.at("G1", **HOST, kv_bytes=8192, fetch=gigabits * 1e9 / 8 / 8192, judged=20)
        t.add("G1", f"choices right at {gigabits:g} Gb/s", ">= 0.95", lambda r=runs: mean(r, "fetches_right_5pc"), lambda x: x >= 0.95)


def agents(t):
    plateau = t.agents(PLATEAU)
    calm, at_once = t.agents(PLATEAU * 3 // 4, **ADMIT), t.agents(PLATEAU, **ADMIT)
    unnamed = t.agents(2 * PLATEAU, **{**ADMIT, "sessions": 2})
    t.agents_row("0.75x: turns held", 0, lambda: most(calm, "turns_held"))
    t.agents_row("1x: turns held", 0.03, lambda: mean(at_once, "turns_held"))
    t.agents_row("1x: turns/s by none held", 0.99, lambda: mean(at_once, "turns_per_s") / mean(plateau, "turns_per_s"), least=True)
    for times, bar in (2, 0.95), (3, 1.0):
        without, runs = t.agents(times * PLATEAU), t.agents(times * PLATEAU, **ADMIT)
        t.agents_row(f"{times}x: turns/s by 1x", bar, lambda r=runs: mean(r, "turns_per_s") / mean(plateau, "turns_per_s"),
                     lambda r=without: mean(r, "turns_per_s") / mean(plateau, "turns_per_s"), least=True)
        t.agents_row(f"{times}x: found of what is known", 0.88, lambda r=runs: mean(r, "cached_of_known"),
                     lambda r=without: mean(r, "cached_of_known"), least=True)
        t.agents_row(f"{times}x: longest hold by mean", 2.5, lambda r=runs: most(r, "turns_held_max_s") / mean(r, "turns_held_mean_s"))
        t.agents_row(f"{times}x: single chats, TTFT mean", 0.4, lambda r=runs: mean(r, "single_ttft_s"),
                     lambda r=without: mean(r, "single_ttft_s"))
    t.agents_row("2x: TTFT of >120k by <30k", 1, lambda: mean(t.agents(2 * PLATEAU, **ADMIT), "long_ttft_s")
                 / mean(t.agents(2 * PLATEAU, **ADMIT), "short_ttft_s"))
    t.agents_row("2x, no names: turns/s by 1x", 0.95, lambda: mean(unnamed, "turns_per_s") / mean(plateau, "turns_per_s"), least=True)
    t.agents_row("2x, no names: turns joined", 0.99, lambda: mean(unnamed, "turns_joined") / mean(unnamed, "turns_continued"), least=True)
    t.agents_row("2x, no names: joined falsely", 0, lambda: most(unnamed, "turns_joined_falsely"))
    one, four = t.agents(2 * PLATEAU, **ADMIT), t.agents(2 * PLATEAU, **ADMIT, **SHARED)
    alone = t.agents(2 * PLATEAU, **ADMIT, **SHARED, marks=0)
    t.agents_row("2x, 4 routers: turns/s by one", 0.93, lambda: mean(four, "turns_per_s") / mean(one, "turns_per_s"),
                 lambda: mean(alone, "turns_per_s") / mean(one, "turns_per_s"), least=True)
    t.agents_row("2x, 4 routers: longest hold by mean", 2.5, lambda: most(four, "turns_held_max_s") / mean(four, "turns_held_mean_s"))
    host = t.agents(2 * PLATEAU, host=5_600_000, restore=400_000, **ADMIT)
    t.agents_row("2x, host 8x: turns held", 0, lambda: most(host, "turns_held"))
    arriving = dict(workload="agent_arrivals", duration=3600)
    t.agents_row("0.12 arrive/s: turns/s by none held", 1.5, lambda: mean(t.agents(0.12, **arriving, **ADMIT), "turns_per_s")
                 / mean(t.agents(0.12, **arriving), "turns_per_s"), least=True)


def chats(t):
    """Of chats no session waits, however small the caches."""
    for scene in "G1", "G2", "G3", "N4", "N4s", "burst", "flash", "over":
        t.ratio(scene, "hold, sessions: TTFT mean", 1.01, t.at(scene, **LATE, sessions=2, admit=1), t.at(scene, **LATE), "ttft_mean_s")


def main():
    runs, is_quick = options(__doc__)
    table, failed = Table(runs, 1 if is_quick else 3), 0
    for part in order_in_the_worker, late_binding, tenants, deadlines, unequal_fleets, tiers, fetching, agents, chats:
        part(table)
    line = "{:8} {:32} {:>8} {:>20} {:>9} {:>8} {:>12}  {}"
    print(line.format("scene", "what", "bound", "best peer", "without", "product", "bar", "holds"), flush=True)
    for scene, what, bar, figure, holds, without, of_trace, beside in table.rows:
        value, decides = figure(), holds and (runs.source or not of_trace)
        failed += bool(decides) and not holds(value)
        print(line.format(scene, what, *(beside() if beside else ("", "")), f"{without():.3f}" if without else "", f"{value:.3f}", bar,
                          ("yes" if holds(value) else "NO") if decides else "").rstrip(), flush=True)
    print("all hold" if not failed else f"{failed} do not hold", f"; draws {table.draws[0]}-{table.draws[-1]}", sep="")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
