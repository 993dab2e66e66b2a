#!/usr/bin/env python3
"""make bench-scenes: burst, flood and agents over HTTP: the product beside its own --hold-ms 0 before workers that prefill
first come, first served, and beside smg, sglang-router, haproxy and nginx.

Four simulated workers of 700,000 tokens (incipit-worker --backend sim: real scheduler, real KV manager, played device) are
started for every row; each router gets the same requests at the same times, as event streams. All rows of a scene run at once:
simulated workers sleep while their device computes, so the rows share the machine, and each has the same share of whatever
disturbs it. The modelled fleet of tests/replay gives the requests, and the time to first token that the row should have:

  burst   load 0.65, of which each ten minutes begin with a minute at three times the mean rate
  flood   load 0.95; after half time 60 % of the requests are one tenant's, 20,000 tokens each
  agents  twice the coding agents' sessions that the fleet's KV memory keeps, in a closed loop
  cpu     bursts of three times the mean rate before two CPU workers that compute the demonstration model, one thread each;
          one row after the other, and no modelled fleet beside it

A router that others publish has two rows: before workers that prefill in order of arrival, as vLLM and SGLang do by default,
and before workers that prefill the shortest prompt first, so that the product is not credited with its worker alone.

A gain is the mean time to first token without order by that with it; of agents, of turns a second. The first fifth is not
counted, and times are of all but the flood's own requests.

With `--speed` X the clock runs X times as fast as the workers', and all figures are in the workers' seconds. The router's
options that are seconds are divided by X; its constants are not (what a tenant may be ahead, and how soon a tenant in debt is
held), so that a flood needs X = 1. Where the machine is busy for more than BUSY of the time, times are the machine's and not
the routers'.

    bench_scenes.py [quick] [--scene NAME] [--rows NAME;...] [--speed X] [--seconds S] [trace FILE]
"""
import argparse
import concurrent.futures
import json
import math
import pathlib
import random
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent), str(HERE.parent / "peers")]
import bench_peers as P  # noqa: E402
import fleet as F  # noqa: E402
import play  # noqa: E402

N_WORKERS, CACHE_TOKENS, KV_BLOCK = 4, 700_000, 16
MAX_LEN = 1 << 18
SECONDS, WARM = 600, 0.2
BUSY = 0.85
FLOOD_TENANT = 999  # tests/replay/workload/crowd.h
SESSIONS = 75       # twice what four workers keep


class Scene:
    """What happens from `since` on, in the modelled fleet's hour; a closed loop begins at its beginning."""
    model, is_modelled, at_once = "synthetic", True, 16

    def __init__(self, *arguments, since=0, column="ttft", has_trace=True):
        self.arguments, self.since, self.column, self.has_trace = [str(a) for a in arguments], since, column, has_trace

    def timing(self, o):
        """How many times as fast as the clock, and how long."""
        return o.speed, o.seconds or SECONDS / (2 if "quick" in o.words else 1)

    def workers(self, speed):
        return [["--backend", "sim", "--sim-speed", speed, "--block-size", KV_BLOCK, "--num-gpu-blocks-override", CACHE_TOKENS // KV_BLOCK,
                 "--max-num-seqs", 256, "--max-num-batched-tokens", 2048, "--max-model-len", MAX_LEN]] * N_WORKERS

    def requests(self, trace, draw, seconds, fleet):
        path = fleet.dir / "requests.jsonl"
        replay(self, trace, draw, seconds, "write", path)
        return [json.loads(line) for line in path.read_text().splitlines()]


class CpuScene:
    """Prompts of log-normal length; a quarter open with one of eight beginnings."""
    model, is_modelled, column, at_once = "incipit-demo", False, "ttft", 1
    BYTES_MEDIAN, BYTES_MAX, N_OUTPUT = 1200, 3900, 16  # a byte is about a token here, and the model takes 4,096
    PERIOD_S, BURST_S, BURST = 20, 4, 3

    def timing(self, o):
        return 1, 25 if "quick" in o.words else 50

    def workers(self, speed):
        return [[F.ROOT / "deploy/demo/model", "--backend", "cpu", "--threads", 1, "--served-model-name", self.model]] * 2

    def prompts_per_s(self):
        """What both workers compute, by one that is asked for one prompt after the other."""
        with F.Fleet() as fleet:
            url = start_workers(fleet, self.workers(1)[:1])[0]
            requests = [dict(self.request(random.Random(i), i), timestamp=0) for i in range(40)]
            answers = play.play(url, self.model, requests, 1, 0)
            return 2 * len(answers) / max(a.end_s for a in answers)

    def request(self, chance, number):
        n = int(min(chance.lognormvariate(math.log(self.BYTES_MEDIAN), 0.8), self.BYTES_MAX))
        names = [number * 1000 + i for i in range(n // play.BLOCK)]
        if names and chance.random() < 0.25:
            names[0] = chance.randrange(8)
        return {"input_length": n, "output_length": self.N_OUTPUT, "tenant": 0, "hash_ids": names}

    def requests(self, trace, draw, seconds, fleet):
        chance, at_s, out, rate = random.Random(17), 0.0, [], 0.65 * self.prompts_per_s()
        calm = (self.PERIOD_S - self.BURST * self.BURST_S) / (self.PERIOD_S - self.BURST_S)
        while at_s < seconds:
            out.append(dict(self.request(chance, len(out) + 1), timestamp=at_s * 1000))
            at_s += chance.expovariate(rate * (self.BURST if at_s % self.PERIOD_S < self.BURST_S else calm))
        return out


SCENES = {
    "burst": Scene("load", 0.65, "burst", 3, since=360),
    "flood": Scene("load", 0.95, "flood", 0.6, "tenants", 1, since=1740, column="others"),
    "agents": Scene("workload", "agents", "rate", SESSIONS, column="turns", has_trace=False),
    "cpu": CpuScene(),
}


class Row:
    """A router before workers of an order: `hold_s` of the product's, and what the modelled fleet has for it."""

    def __init__(self, router, order, model="", hold_s=None, more=(), scene=None):
        self.router, self.order, self.hold_s, self.more, self.scene = router, order, hold_s, more, scene
        self.model = (f"{model} order {order}" + (f" aware 1 hold_ms {hold_s * 1000:g}" if hold_s is not None else "")).split()

    def options(self, speed):
        """--hold-ms auto and --cost-batch-slot, which are seconds. Nothing is refused, as by the others."""
        return ["--hold-ms", round(self.hold_s * 1000 / speed), "--cost-batch-slot", 0.005 / speed, "--queue-timeout", "1h", *self.more]


OURS, WITHOUT = "incipit", "incipit, no order"
NO_SESSIONS = ["--session-admission", "off"]
ROWS = {
    OURS: Row("incipit", "srpt", "sessions 2 admit 1", hold_s=1),
    "incipit, fcfs workers": Row("incipit", "fcfs", "sessions 2 admit 1", hold_s=0.3),
    "incipit, no sessions": Row("incipit", "srpt", hold_s=1, more=NO_SESSIONS, scene="agents"),
    WITHOUT: Row("incipit", "fcfs", hold_s=0, more=NO_SESSIONS),
}
PEERS = {"smg": "policy cache_aware", "sglang-router": "policy cache_aware", "haproxy": "policy least_load", "nginx": "policy round_robin"}
for peer, policy in PEERS.items():
    ROWS[peer] = Row(peer, "fcfs", policy)
    ROWS[peer + ", srpt workers"] = Row(peer, "srpt", policy)


# --- requests --------------------------------------------------------------------------------------------------------

def replay(scene, trace, draw, seconds, *more):
    source = [*(["trace", trace] if trace else []), "draw", draw] if scene.has_trace else []
    done = subprocess.run([F.BUILD / "tests/replay/replay", *map(str, source), *scene.arguments, "workers", str(N_WORKERS), "cache", str(CACHE_TOKENS),
                           "since", str(scene.since), "until", str(scene.since + seconds), *map(str, more)], stdout=subprocess.PIPE, check=True, text=True)
    return done.stdout


# --- one run ---------------------------------------------------------------------------------------------------------

def start_workers(fleet, workers, more=()):
    ports = F.free_ports(len(workers))
    started = [fleet.start([F.BUILD / "incipit-worker", *args, *more, "--port", port, "--log-level", "warn"])
               for port, args in zip(ports, workers)]
    urls = [f"http://127.0.0.1:{port}" for port in ports]
    for url, worker in zip(urls, started):
        F.wait_for(lambda: worker.is_serving(url + "/health"), f"the worker at {url}")
    return urls


def start_router(row, fleet, urls, speed, wheels, model):
    if row.router in PEERS:
        return P.start_router(row.router, fleet, urls, wheels, model)
    proxy = F.start_router(fleet, urls, threads=2, args=[
        "--log-level", "warn", "--trust-tenant-header", "--isolate-by", "none", *row.options(speed)])
    F.wait_until_serving(proxy, model)
    return proxy


def machine_s():
    """Since it started: busy seconds of its CPUs, and all."""
    ticks = [int(x) for x in pathlib.Path("/proc/stat").read_text().split("\n")[0].split()[1:9]]
    return sum(ticks) - ticks[3] - ticks[4], sum(ticks)


def mean(values):
    return sum(values) / len(values) if values else float("nan")


def quantile(values, share):
    return sorted(values)[min(int(len(values) * share), len(values) - 1)] if values else float("nan")


def worst_tenant(answers):
    """The mean of the tenant that waits longest."""
    tenants = {}
    for a in answers:
        tenants.setdefault(a.request["tenant"], []).append(a.ttft_s)
    return max(map(mean, tenants.values()), default=float("nan"))


def summary(answers, proxy, cpu_ns, seconds):
    counted = [a for a in answers if a.due_s >= WARM * seconds]
    good = [a for a in counted if not a.error and a.request["tenant"] != FLOOD_TENANT]
    ended = [a for a in answers if not a.error and WARM * seconds <= a.end_s <= seconds]
    ttft = [a.ttft_s for a in good]
    return {"ttft": mean(ttft), "p99": quantile(ttft, 0.99), "others": worst_tenant(good), "e2e": mean([a.end_s - a.due_s for a in good]),
            "turns": len(ended) / (seconds * (1 - WARM)),
            "cached": 100 * sum(a.cached for a in good) / max(sum(a.request["input_length"] for a in good), 1),
            "cpu": cpu_ns / 1e3 / max(len(answers), 1), "failed": sum(bool(a.error) for a in counted), "n": len(counted)}


def measure(names, scene, requests, timing, wheels):
    """The rows of these names, at once. Each has its load in a process of its own."""
    speed, seconds = timing
    with F.Fleet() as fleet, concurrent.futures.ProcessPoolExecutor(len(names)) as loads:
        proxies = {}
        for name in names:
            urls = start_workers(fleet, scene.workers(speed), ["--schedule-policy", ROWS[name].order])
            proxies[name] = start_router(ROWS[name], fleet, urls, speed, wheels, scene.model)
        cpu, before = {n: p.cpu_ns() for n, p in proxies.items()}, machine_s()
        plays = {n: loads.submit(play.play, p.sse_url, scene.model, requests, speed, seconds) for n, p in proxies.items()}
        for name, answers in ((n, p.result()) for n, p in plays.items()):
            busy, total = (b - a for a, b in zip(before, machine_s()))
            for error in sorted({a.error for a in answers if a.error})[:2]:
                print(f"    {name}: {error}", file=sys.stderr)
            yield name, {**summary(answers, proxies[name], proxies[name].cpu_ns() - cpu[name], seconds), "busy": 100 * busy / max(total, 1)}


def modelled(row, scene, trace, draw, seconds):
    if not scene.is_modelled:
        return {"modelled": float("nan")}
    r = json.loads(replay(scene, trace, draw, seconds, *row.model))
    return {"modelled": r["worst_tenant_ttft_s"] if scene.column == "others" else r["ttft_mean_s"], "modelled turns": r["turns_per_s"]}


# --- the table -------------------------------------------------------------------------------------------------------

COLUMNS = [("ttft", "TTFT mean, s"), ("p99", "p99, s"), ("others", "worst tenant"), ("modelled", "modelled"), ("x mean", "mean / ours"),
           ("x p99", "p99 / ours"), ("e2e", "end to end, s"), ("turns", "answers/s"), ("cached", "cached, %"), ("cpu", "CPU, us"),
           ("busy", "machine, %"), ("failed", "failed")]


def show(title, results):
    ours = results.get(OURS)
    print(f"\n{title}\n  {'':<27}" + "".join(f"{label:>14}" for _, label in COLUMNS))
    for name, values in results.items():
        if ours:
            values = {**values, "x mean": values["ttft"] / ours["ttft"], "x p99": values["p99"] / ours["p99"]}
        print(f"  {name:<27}" + "".join(f"{values.get(c, float('nan')):>14.2f}" for c, _ in COLUMNS))
    for name, values in results.items():
        if values["busy"] > 100 * BUSY:
            print(f"  BUSY: the machine was busy for {values['busy']:.0f} % of {name}: run it alone, give fewer --rows or a lower --speed")


def judge(results):
    """Ahead of all in mean and p99?"""
    for order, label in ("fcfs", "in order of arrival"), ("srpt", "the shortest first"):
        others = [n for n in results if (ROWS[n].router in PEERS or n == WITHOUT) and ROWS[n].order == order]
        for column in ("ttft", "p99") if others else ():
            best = min(others, key=lambda n: results[n][column])
            ours, theirs = results[OURS][column], results[best][column]
            print(f"  {column:<5} before workers that prefill {label:<20} {ours:8.2f} against {theirs:8.2f} of {best:<30} "
                  f"{'ahead' if ours < theirs else 'BEHIND'}")


def gain(scene, values, without, of=""):
    """Measured; of "modelled", the modelled fleet's."""
    if scene.column == "turns":
        return values[(of + " turns").strip()] / without[(of + " turns").strip()]
    return without[of or scene.column] / values[of or scene.column]


def show_gains(scene, results):
    without = results.get(WITHOUT)
    for name in results if without and scene.is_modelled else ():
        if ROWS[name].hold_s:
            got, expected = gain(scene, results[name], without), gain(scene, results[name], without, "modelled")
            print(f"  gain of {name:<22} {got:5.2f}x; the modelled fleet's {expected:5.2f}x; {got / expected:4.0%} of it"
                  f"{'' if 0.75 <= got / expected else '  LESS THAN 75 %'}")


def available(names, wheels):
    for name in names:
        router = ROWS[name].router
        if router in ("nginx", "haproxy") and not F.find_program(router):
            F.skip(name, "not installed (make deps-bench)")
        elif router not in P.PYTHON_ROUTERS or wheels:
            yield name


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="*", help="quick: half the time; trace FILE: its requests, else generated ones")
    parser.add_argument("--scene", choices=list(SCENES), help="one alone; default: each in turn")
    parser.add_argument("--rows", default=";".join(ROWS), help="by name, with ; between them")
    parser.add_argument("--draw", type=int, default=11, help="of arrivals: a burst's p99 is of 14 requests, and differs by a third between draws")
    parser.add_argument("--speed", type=float, default=1)
    parser.add_argument("--seconds", type=float, help="of each scene, in the workers' time")
    o = parser.parse_args()
    trace = o.words[o.words.index("trace") + 1] if "trace" in o.words else None
    names = o.rows.split(";")
    if unknown := set(names) - set(ROWS):
        parser.error(f"no rows {sorted(unknown)}: there are {list(ROWS)}")
    wheels = P.fetch_wheels() if {ROWS[n].router for n in names} & set(P.PYTHON_ROUTERS) else None
    for name, scene in SCENES.items():
        if o.scene not in (None, name):
            continue
        speed, seconds = timing = scene.timing(o)
        with F.Fleet() as files:
            requests = scene.requests(trace, o.draw, seconds, files)
        results, rows = {}, list(available([n for n in names if ROWS[n].scene in (None, name)], wheels))
        for i in range(0, len(rows), scene.at_once):
            for row, values in measure(rows[i:i + scene.at_once], scene, requests, timing, wheels):
                results[row] = {**values, **modelled(ROWS[row], scene, trace, o.draw, seconds)}
                print(f"  {name}, {row}: " + " ".join(f"{k}={v:.2f}" for k, v in results[row].items()), file=sys.stderr, flush=True)
        show(f"{name}: {seconds:g} s at {speed:g} times the clock, {len(scene.workers(speed))} workers", results)
        if OURS in results:
            judge(results)
        show_gains(scene, results)
    return 0


if __name__ == "__main__":
    sys.exit(main())
