#!/usr/bin/env python3
"""make bench-scenes: burst, flood and agents over HTTP: the product beside its own --hold-ms 0 before workers that prefill
first come, first served, and beside smg, sglang-router, haproxy and nginx.

Four simulated workers of 700,000 tokens (incipit-worker --backend sim: real scheduler, real KV manager, played device) are
started afresh for every run; each router gets the same requests at the same times, as event streams. The modelled fleet of
tests/replay gives the requests, and says what the product should gain:

  burst   load 0.65, of which each ten minutes begin with a minute at three times the mean rate
  flood   load 0.95; after half time 60 % of the requests are one tenant's, 20,000 tokens each
  agents  twice the coding agents' sessions that the fleet's KV memory keeps, in a closed loop
  cpu     bursts of three times the mean rate before two CPU workers that compute the demonstration model, one thread each;
          real time, and no modelled fleet beside it

The clock runs `--speed` times as fast as the workers' and all figures are in the workers' seconds. The first fifth is not
counted, and times are of all but the flood's own requests. A gain is the mean time to first token without order by that with it; of agents, of turns a second. Peers are before
workers with their defaults.

    bench_scenes.py [quick] [--scene NAME] [--routers NAME,...] [--speed X] [--seconds S] [trace FILE]
"""
import argparse
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
SECONDS, WARM = 1200, 0.2
FLOOD_TENANT = 999  # tests/replay/workload/crowd.h
SESSIONS = 75       # twice what four workers keep


class Scene:
    """What happens from `since` on, in the modelled fleet's hour; a closed loop begins at its beginning."""
    model, is_modelled = "synthetic", True

    def __init__(self, *arguments, since=0, column="ttft", has_trace=True):
        self.arguments, self.since, self.column, self.has_trace = [str(a) for a in arguments], since, column, has_trace

    def timing(self, o):
        """How many times as fast as the clock, and how long."""
        return o.speed, o.seconds or SECONDS / (2 if "quick" in o.words else 1)

    def workers(self, speed):
        return [["--backend", "sim", "--sim-speed", speed, "--block-size", KV_BLOCK, "--num-gpu-blocks-override", CACHE_TOKENS // KV_BLOCK,
                 "--max-num-seqs", 256, "--max-num-batched-tokens", 2048, "--max-model-len", MAX_LEN]] * N_WORKERS

    def requests(self, trace, seconds, fleet):
        path = fleet.dir / "requests.jsonl"
        replay(self, trace, seconds, "write", path)
        return [json.loads(line) for line in path.read_text().splitlines()]


class CpuScene:
    """Prompts of log-normal length; a quarter open with one of eight beginnings."""
    model, is_modelled, column = "incipit-demo", False, "ttft"
    BYTES_MEDIAN, BYTES_MAX, N_OUTPUT = 1200, 3900, 16  # a byte is about a token here, and the model takes 4,096
    PERIOD_S, BURST_S, BURST = 20, 4, 3

    def timing(self, o):
        return 1, 40 if "quick" in o.words else 100

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

    def requests(self, trace, seconds, fleet):
        chance, at_s, out, rate = random.Random(17), 0.0, [], 0.65 * self.prompts_per_s()
        calm = (self.PERIOD_S - self.BURST * self.BURST_S) / (self.PERIOD_S - self.BURST_S)
        while at_s < seconds:
            out.append(dict(self.request(chance, len(out) + 1), timestamp=at_s * 1000))
            at_s += chance.expovariate(rate * (self.BURST if at_s % self.PERIOD_S < self.BURST_S else calm))
        return out


SCENES = {
    "burst": Scene("load", 0.65, "burst", 3, "draw", 11, since=360),
    "flood": Scene("load", 0.95, "flood", 0.6, "tenants", 1, "draw", 11, since=1740, column="others"),
    "agents": Scene("workload", "agents", "rate", SESSIONS, column="turns", has_trace=False),  # not admitted: that rule counts seconds of the clock
    "cpu": CpuScene(),
}


class Product:
    """A way to run the product, and the arguments that tests/replay/replay takes for it."""

    def __init__(self, model, router=(), workers=()):
        self.model, self.router, self.workers = model.split(), list(router), list(workers)


WITHOUT = "incipit, no order"
PRODUCTS = {
    "incipit": Product("order srpt aware 1 hold_ms 1000", workers=["--schedule-policy", "srpt"]),
    "incipit, fcfs workers": Product("hold_ms 400", workers=["--schedule-policy", "fcfs"]),
    WITHOUT: Product("", router=["--hold-ms", 0], workers=["--schedule-policy", "fcfs"]),
}
ROUTERS = [*PRODUCTS, "smg", "sglang-router", "haproxy", "nginx"]


# --- requests --------------------------------------------------------------------------------------------------------

def replay(scene, trace, seconds, *more):
    source = ["trace", trace] if trace and scene.has_trace else []
    done = subprocess.run([F.BUILD / "tests/replay/replay", *source, *scene.arguments, "workers", str(N_WORKERS), "cache", str(CACHE_TOKENS),
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


def start_router(name, fleet, urls, wheels, model):
    if name not in PRODUCTS:
        return P.start_router(name, fleet, urls, wheels, model)
    proxy = F.start_router(fleet, urls, threads=2, args=[
        "--log-level", "warn", "--trust-tenant-header", "--isolate-by", "none", *PRODUCTS[name].router])
    F.wait_until_serving(proxy, model)
    return proxy


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


def measure(name, scene, requests, timing, wheels):
    speed, seconds = timing
    with F.Fleet() as fleet:
        urls = start_workers(fleet, scene.workers(speed), PRODUCTS[name].workers if name in PRODUCTS else [])
        proxy = start_router(name, fleet, urls, wheels, scene.model)
        cpu = proxy.cpu_ns()
        answers = play.play(proxy.sse_url, scene.model, requests, speed, seconds)
        for error in sorted({a.error for a in answers if a.error})[:2]:
            print(f"    {name}: {error}", file=sys.stderr)
        return summary(answers, proxy, proxy.cpu_ns() - cpu, seconds)


# --- the table -------------------------------------------------------------------------------------------------------

COLUMNS = [("ttft", "TTFT mean, s"), ("p99", "p99, s"), ("others", "worst tenant, s"), ("e2e", "end to end, s"), ("turns", "answers/s"),
           ("cached", "cached, %"), ("cpu", "CPU, us"), ("failed", "failed")]


def show(title, results):
    print(f"\n{title}\n  {'':<24}" + "".join(f"{label:>17}" for _, label in COLUMNS))
    for name, values in results.items():
        print(f"  {name:<24}" + "".join(f"{values[c]:>17.2f}" for c, _ in COLUMNS))


def judge(name, results):
    """Ahead of all in mean and p99 of what the scene is about?"""
    ours, others = results["incipit"], {n: v for n, v in results.items() if n not in ("incipit", "incipit, fcfs workers")}
    for column, label in ("ttft", "TTFT mean"), ("p99", "TTFT p99"):
        if others:
            best = min(others, key=lambda n: others[n][column])
            print(f"  {label:<12} {ours[column]:8.2f} against {others[best][column]:8.2f} of {best:<20} "
                  f"{'ahead' if ours[column] < others[best][column] else 'BEHIND'}")


def gain(scene, values, without):
    c = scene.column
    return values[c] / without[c] if c == "turns" else without[c] / values[c]


def modelled(scene, trace, seconds, product):
    r = json.loads(replay(scene, trace, seconds, *product.model))
    return {"ttft": r["ttft_mean_s"], "others": r["worst_tenant_ttft_s"], "turns": r["turns_per_s"]}


def show_gains(scene, trace, seconds, results):
    if WITHOUT not in results or not scene.is_modelled:
        return
    base = modelled(scene, trace, seconds, PRODUCTS[WITHOUT])
    for name in PRODUCTS:
        if name != WITHOUT and name in results:
            expected = gain(scene, modelled(scene, trace, seconds, PRODUCTS[name]), base)
            got = gain(scene, results[name], results[WITHOUT])
            print(f"  gain of {name:<22} {got:5.2f}x; the modelled fleet's {expected:5.2f}x; {got / expected:4.0%} of it"
                  f"{'' if 0.75 <= got / expected else '  LESS THAN 75 %'}")


def available(names, wheels):
    for name in names:
        if name in ("nginx", "haproxy") and not F.find_program(name):
            F.skip(name, "not installed (make deps-bench)")
        elif name not in P.PYTHON_ROUTERS or wheels:
            yield name


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="*", help="quick: half the time; trace FILE: its requests, else generated ones")
    parser.add_argument("--scene", choices=list(SCENES))
    parser.add_argument("--routers", default=";".join(ROUTERS), help="by name, with ; between them")
    parser.add_argument("--speed", type=float, default=12)
    parser.add_argument("--seconds", type=float, help="of each scene, in the workers' time")
    o = parser.parse_args()
    trace = o.words[o.words.index("trace") + 1] if "trace" in o.words else None
    names = o.routers.split(";")
    wheels = P.fetch_wheels() if set(names) & set(P.PYTHON_ROUTERS) else None
    for name, scene in SCENES.items():
        if o.scene not in (None, name):
            continue
        speed, seconds = timing = scene.timing(o)
        with F.Fleet() as files:
            requests = scene.requests(trace, seconds, files)
        results = {}
        for router in available(names, wheels):
            results[router] = measure(router, scene, requests, timing, wheels)
            print(f"  {name}, {router}: " + " ".join(f"{k}={v:.2f}" for k, v in results[router].items()), file=sys.stderr, flush=True)
        show(f"{name}: {seconds:g} s at {speed:g} times the clock, {len(scene.workers(speed))} workers", results)
        if "incipit" in results:
            judge(name, results)
        show_gains(scene, trace, seconds, results)
    return 0


if __name__ == "__main__":
    sys.exit(main())
