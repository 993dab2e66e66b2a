#!/usr/bin/env python3
"""make bench-peers: incipit-router beside smg, sglang-router, haproxy and nginx, before the same workers.

Eight simulated workers (incipit-worker --backend sim: real scheduler, real KV manager, played
device) are started afresh for every run; each router in turn gets the same arrivals and the same
bodies, from the same seeds, as event streams. Cached tokens are what the workers counted. Two loads:

  conversation   open loop; sessions of about four turns that send their whole history
  shared-prefix  open loop at 4/5 of what round robin can do, then as fast as the workers go (closed
                 loop): 64 system prompts of 2,048 tokens that do not all fit one worker

sglang-router and smg, which succeeded it, come from PyPI, pinned (requirements.txt), with their
defaults (policy cache_aware); haproxy balances by leastconn, nginx by round robin, both tuned (../router). Every router is free
to use both cores; so are workers and load, so that throughput also pays for a dear router.

    bench_peers.py [quick] [--seeds N] [--load NAME] [--routers NAME,...]
"""
import argparse
import os
import pathlib
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import fleet as F  # noqa: E402

HERE = pathlib.Path(__file__).resolve().parent
WHEELS = F.ROOT / "build/peers"
MODEL = "synthetic"
N_WORKERS = 8
PYTHON_ROUTERS = {"sglang-router": "sglang_router", "smg": "smg"}  # and the packages they are


class Load:
    def __init__(self, name, workers, traffic, rps, seconds, warmup_s, connections, saturated_s):
        self.name, self.workers, self.traffic = name, workers, traffic
        self.rps, self.seconds, self.warmup_s = rps, seconds, warmup_s
        self.connections, self.saturated_s = connections, saturated_s


LOADS = [
    Load("conversation",
         ["--sim-speed", 4, "--num-gpu-blocks-override", 20000, "--max-num-batched-tokens", 2048],
         ["--traffic", "conversation", "--max-tokens", 100, "--pause", "3s"],
         rps=120, seconds=15, warmup_s=4, connections=256, saturated_s=8),
    Load("shared-prefix",
         ["--sim-speed", 1, "--num-gpu-blocks-override", 1800, "--max-num-seqs", 16, "--max-num-batched-tokens", 2048,
          "--max-model-len", 8192],
         ["--traffic", "shared-prefix", "--groups", 64, "--prefix-bytes", 2048, "--question-bytes", 128,
          "--max-tokens", 32],
         rps=65, seconds=15, warmup_s=4, connections=192, saturated_s=10),
]


def fetch_wheels():
    """The folder of the unpacked wheels, or None, with the reason printed."""
    target = WHEELS / "wheels"
    if not all((target / package).is_dir() for package in PYTHON_ROUTERS.values()):
        done = subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--require-hashes",
                               "--only-binary", ":all:", "-t", target, "-r", HERE / "requirements.txt"],
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if done.returncode:
            F.skip(" and ".join(PYTHON_ROUTERS), "pip could not install them: " + done.stdout.strip().splitlines()[-1])
            return None
    return target


def start_python_router(name, fleet, urls, wheels):
    port, metrics = F.free_ports(2)
    proxy = fleet.start([sys.executable, HERE / "python_router.py", wheels, PYTHON_ROUTERS[name], "--worker-urls", *urls, "--host", "127.0.0.1",
                         "--port", port, "--prometheus-port", metrics, "--policy", "cache_aware", "--log-level", "warn"])
    proxy.url = proxy.sse_url = f"http://127.0.0.1:{port}"
    return proxy


def start_router(name, fleet, urls, wheels, model=MODEL):
    if name == "nginx":
        proxy = F.start_nginx(fleet, urls, threads=2)
    elif name == "haproxy":
        proxy = F.start_haproxy(fleet, urls, threads=2, balance="leastconn")
    elif name in PYTHON_ROUTERS:
        proxy = start_python_router(name, fleet, urls, wheels)
    else:
        proxy = F.start_router(fleet, urls, threads=2, args=["--log-level", "warn"])
    F.wait_until_serving(proxy, model)
    return proxy


def start_workers(fleet, args):
    ports = F.free_ports(N_WORKERS)
    workers = [fleet.start([F.BUILD / "incipit-worker", "--backend", "sim", "--port", port, "--log-level", "warn", *args])
               for port in ports]
    urls = [f"http://127.0.0.1:{port}" for port in ports]
    for url, worker in zip(urls, workers):
        F.wait_for(lambda: worker.is_serving(url + "/health"), f"the worker at {url}")
    return urls


def cached_tokens(urls):
    """Looked up and found, as the workers counted them."""
    pages = [F.get(url + "/metrics")[1] for url in urls]
    return [sum(F.metric(page, f"vllm:{name}_total") for page in pages)
            for name in ("prefix_cache_queries", "prefix_cache_hits")]


def measure(router, load, seed, saturated, wheels):
    """One run of one router before fresh workers."""
    with F.Fleet() as fleet:
        urls = start_workers(fleet, load.workers)
        proxy = start_router(router, fleet, urls, wheels)
        before, cpu = cached_tokens(urls), proxy.cpu_ns()
        args = ["--stream", "--model", MODEL, "--seed", seed, *load.traffic]
        if saturated:
            args += ["--mode", "closed", "--connections", load.connections, "--duration", f"{load.saturated_s}s",
                     "--warmup", f"{load.saturated_s // 3}s"]
        else:
            args += ["--rps", load.rps, "--duration", f"{load.seconds}s", "--warmup", f"{load.warmup_s}s"]
        report = F.load(proxy.sse_url, *args)
        cpu, after = proxy.cpu_ns() - cpu, cached_tokens(urls)
        answered = report["ok"] * load.seconds / (load.seconds - load.warmup_s) if not saturated else \
            report["ok"] * load.saturated_s / (load.saturated_s - load.saturated_s // 3)
        return {
            "ttft mean": report["ttft_s"]["mean"] * 1e3, "ttft p99": report["ttft_s"]["p99"] * 1e3,
            "hit": (after[1] - before[1]) / max(after[0] - before[0], 1) * 100,
            "rate": report["completed_per_s"], "cpu": cpu / 1e3 / max(answered, 1),
            "rss": proxy.peak_rss_bytes() / 2**20, "failed": report["failed"],
        }


OPEN = [("ttft mean", "TTFT mean, ms", -1), ("ttft p99", "TTFT p99, ms", -1), ("hit", "cached tokens, %", 1),
        ("cpu", "router CPU/request, us", -1), ("rss", "peak RSS, MiB", -1), ("failed", "failed", 0)]
SATURATED = [("rate", "requests/s", 1), ("hit", "cached tokens, %", 1), ("ttft mean", "TTFT mean, ms", -1),
             ("cpu", "router CPU/request, us", -1), ("rss", "peak RSS, MiB", -1), ("failed", "failed", 0)]


def show(title, columns, results):
    """Means over the seeds; then where ours stands against the best of the others."""
    mean = {r: {c: sum(run[c] for run in runs) / len(runs) for c, _, _ in columns} for r, runs in results.items()}
    print(f"\n{title}")
    print(f"  {'':<15}" + "".join(f"{label:>24}" for _, label, _ in columns))
    for router, values in mean.items():
        print(f"  {router:<15}" + "".join(f"{values[c]:>24.1f}" for c, _, _ in columns))
    others = [r for r in mean if r != "incipit"]
    if "incipit" in mean and others:
        for c, label, sign in columns:
            if not sign:
                continue
            best = (max if sign > 0 else min)(others, key=lambda r: mean[r][c])
            ours, theirs = mean["incipit"][c], mean[best][c]
            ahead = ours >= theirs if sign > 0 else ours <= theirs
            print(f"  {label:<24} {ours:10.1f} against {theirs:10.1f} of {best:<14} {'ahead' if ahead else 'BEHIND'}")
    sys.stdout.flush()
    return mean


def judge_shared_prefix(mean):
    """1.9x the throughput and 3.8x the hit rate of round robin, or 1.1x what the better of smg and sglang-router reaches."""
    if "incipit" not in mean or "nginx" not in mean:
        return
    print()
    for c, label, bar in (("rate", "throughput", 1.9), ("hit", "hit rate", 3.8)):
        base = mean["nginx"][c]
        ours = mean["incipit"][c] / base
        theirs = max((mean[name][c] / base for name in PYTHON_ROUTERS if name in mean), default=None)
        met = ours >= bar or (theirs is not None and ours >= 1.1 * theirs)
        print(f"  {label} against round robin: {ours:.2f}x (bar {bar}x" +
              (f", or 1.1 x a peer's {theirs:.2f}x" if theirs else "") + f")  {'met' if met else 'MISSED'}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("quick", nargs="?", choices=["quick"], help="one seed")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--load", choices=[load.name for load in LOADS])
    parser.add_argument("--routers", default="nginx,haproxy,sglang-router,smg,incipit")
    o = parser.parse_args()
    seeds = range(1, (1 if o.quick else o.seeds) + 1)
    wheels = fetch_wheels() if set(o.routers.split(",")) & set(PYTHON_ROUTERS) else None
    routers = []
    for name in o.routers.split(","):
        if name in ("nginx", "haproxy") and not F.find_program(name):
            F.skip(name, "not installed (make deps-bench)")
        elif name not in PYTHON_ROUTERS or wheels:
            routers.append(name)
    for load in LOADS:
        if o.load and load.name != o.load:
            continue
        for saturated in (False, True):
            what = f"{load.name}, " + (f"closed loop of {load.connections}" if saturated else f"{load.rps} requests/s")
            results = {name: [] for name in routers}
            for seed in seeds:
                for i in range(len(routers)):  # each is first once
                    name = routers[(i + seed) % len(routers)]
                    results[name].append(measure(name, load, seed, saturated, wheels))
                    print(f"  {what}: seed {seed}, {name}: " + " ".join(f"{k}={v:.1f}" for k, v in results[name][-1].items()),
                          file=sys.stderr, flush=True)
            mean = show(f"{what}; {len(seeds)} seeds, {N_WORKERS} workers", SATURATED if saturated else OPEN, results)
            if saturated and load.name == "shared-prefix":
                judge_shared_prefix(mean)
    return 0


if __name__ == "__main__":
    sys.exit(main())
