#!/usr/bin/env python3
"""make bench-router: what a proxied request costs here, beside nginx and haproxy.

All stand before the same two workers (upstream.c), one loop each, pinned to core 0; workers and load
are on core 1. The forwarder (forwarder.c) does nothing to a request but pass it on once it is whole:
it is the floor of this machine, and the ratio to it is what can be compared between machines. Each repetition measures all proxies one after the other, in an order that rotates;
a ratio is taken inside a repetition, and the table gives the median of these ratios, because
absolute times drift with whatever else the machine does. nginx and haproxy route nothing and log
nothing; incipit scans, hashes and routes each request with its default policy, and logs warnings
only, except in the row "request log on".

    bench_router.py [quick] [--reps N] [--seconds S] [--only ROW,...]
"""
import argparse
import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import fleet as F  # noqa: E402

MODEL = "bench"
PROXY_CPUS, LOAD_CPUS = ({0}, {1}) if os.cpu_count() >= 2 else (None, None)
QUIET = ["--log-level", "warn", "--probe-timeout", "10s"]  # a busy machine is no reason to lose a worker
SCENES = {
    "1 KB": ["--connections", 64, "--body-bytes", 1024],
    "32 KB": ["--connections", 64, "--body-bytes", 32768],
    "200 KB": ["--connections", 64, "--body-bytes", 204800],
    "SSE": ["--connections", 256, "--body-bytes", 1024, "--stream"],
}
TLS_SCENES = {f"TLS {name}": SCENES[name] for name in ("1 KB", "200 KB")}


def start(kind, fleet, urls, threads=1, cpus=PROXY_CPUS):
    if kind == "nginx":
        proxy = F.start_nginx(fleet, urls, threads, cpus)
    elif kind == "haproxy":
        proxy = F.start_haproxy(fleet, urls, threads, cpus)
    elif kind == "forwarder":
        proxy = F.start_forwarder(fleet, urls, cpus)
    elif kind == "tls":
        cert, key, _ = fleet.certificate()
        proxy = F.start_router(fleet, urls, threads, cpus, [*QUIET, "--tls-cert-path", cert, "--tls-key-path", key])
        proxy.tls_url = proxy.url = proxy.url.replace("http:", "https:")
        return proxy
    else:
        proxy = F.start_router(fleet, urls, threads, cpus, ["--log-level", "info", *QUIET[2:]] if kind == "logging" else QUIET)
    F.wait_until_serving(proxy, MODEL)
    return proxy


def offer(proxy, scene, seconds, cpus=LOAD_CPUS):
    """Closed loop for some seconds: (CPU microseconds of the proxy per request, report)."""
    url = proxy.sse_url if scene == "SSE" else proxy.tls_url if scene in TLS_SCENES else proxy.url
    before = proxy.cpu_ns()
    report = F.load(url, "--mode", "closed", "--model", MODEL, "--duration", f"{int(seconds * 1000)}ms",
                    *{**SCENES, **TLS_SCENES}[scene], cpus=cpus)
    spent = proxy.cpu_ns() - before
    if report["failed"]:
        print(f"  {proxy.args[0]}, {scene}: not all were answered: {report['outcomes']} {report['codes']}", flush=True)
    if report["failed"] > 0.01 * report["requests"]:
        raise RuntimeError("too many failures for a comparison: see the line above")
    return spent / 1e3 / report["ok"], report


class Table:
    def __init__(self):
        self.n_missed = 0

    def head(self, text):
        print(f"\n{text}")

    def line(self, name, value, bar=None, unit="", form=".2f", note=""):
        verdict = ""
        if bar is not None:
            met = value <= bar
            self.n_missed += not met
            verdict = f"bar {bar:{form}}{unit}  {'met' if met else 'MISSED'}"
        print(f"  {name:<44} {value:>10{form}}{unit:<4} {verdict:<24} {note}", flush=True)


def rotate(items, by):
    by %= len(items)
    return items[by:] + items[:by]


def measure_cpu(o, table, kinds, urls, scenes=SCENES):
    """CPU per request of each kind and scene, by repetition."""
    cost = {scene: {kind: [] for kind in kinds} for scene in scenes}
    rate = {scene: {kind: [] for kind in kinds} for scene in scenes}
    for rep in range(o.reps):
        with F.Fleet() as fleet:
            proxies = {kind: start(kind, fleet, urls) for kind in kinds}
            for scene in scenes:
                for kind in kinds:  # caches, connections, branch history
                    offer(proxies[kind], scene, 0.3)
                for kind in rotate(kinds, rep):
                    us, report = offer(proxies[kind], scene, o.seconds)
                    cost[scene][kind].append(us)
                    rate[scene][kind].append(report["completed_per_s"])
        print(f"  repetition {rep + 1} of {o.reps} done", file=sys.stderr, flush=True)
    table.head(f"CPU of the proxy per request, us (median of {o.reps}; requests per second in brackets)")
    for scene in scenes:
        print(f"  {scene:<10}" + "".join(f"{kind:>10} {F.median(cost[scene][kind]):7.2f} ({F.median(rate[scene][kind]):6.0f})"
                                         for kind in kinds))
    return cost


def paired(cost, scene, kind, other):
    return F.median([a / b for a, b in zip(cost[scene][kind], cost[scene][other])])


def spread(cost, scene, kind, other):
    ratios = sorted(a / b for a, b in zip(cost[scene][kind], cost[scene][other]))
    return f"({ratios[0]:.2f}-{ratios[-1]:.2f})"


BARS = [("1 KB", "nginx", 0.75), ("1 KB", "haproxy", 0.85), ("1 KB", "forwarder", 1.08),
        ("32 KB", "nginx", 1.00), ("32 KB", "haproxy", 0.90), ("32 KB", "forwarder", 1.25),
        ("200 KB", "nginx", 1.00), ("200 KB", "haproxy", 0.85), ("200 KB", "forwarder", 1.40),
        ("SSE", "nginx", 0.85), ("SSE", "haproxy", 1.00), ("SSE", "forwarder", None)]
TLS_BARS = [(scene, other, None) for scene in TLS_SCENES for other in ("nginx", "haproxy")]


def compare_cpu(table, cost, kinds, bars, ours="incipit"):
    table.head(f"{ours}, medians of paired ratios (lowest-highest)")
    for scene, other, bar in bars:
        if other in kinds:
            table.line(f"CPU, {scene}, against {other}", paired(cost, scene, ours, other), bar, "x",
                       note=spread(cost, scene, ours, other))
    if "logging" in kinds:
        table.line("request log on (50 lines/s at most), 1 KB", paired(cost, "1 KB", "logging", "incipit"), None, "x",
                   note="against log warnings only")


def measure_latency(o, table, kinds, urls, upstream_url):
    """What a proxy adds to the median of one connection."""
    kinds = [k for k in kinds if k not in ("logging", "forwarder")]
    p50 = {kind: [] for kind in kinds}
    p99 = {kind: [] for kind in kinds}
    with F.Fleet() as fleet:
        proxies = {kind: start(kind, fleet, urls) for kind in kinds}
        for rep in range(o.reps):
            report = F.load(upstream_url, "--mode", "closed", "--connections", 1, "--duration", "500ms", cpus=LOAD_CPUS)
            direct = report["e2e_s"]["p50"]
            for kind in rotate(kinds, rep):
                args = ["--mode", "closed", "--model", MODEL, "--duration", f"{int(o.seconds * 500)}ms"]
                report = F.load(proxies[kind].url, *args, "--connections", 1, cpus=LOAD_CPUS)
                p50[kind].append((report["e2e_s"]["p50"] - direct) * 1e6)
                report = F.load(proxies[kind].url, *args, "--connections", 8, cpus=LOAD_CPUS)
                p99[kind].append(report["e2e_s"]["p99"] * 1e6)
    table.head("latency, 1 KB")
    print("  added p50, 1 connection, us  " + "".join(f"{k:>10} {F.median(p50[k]):7.1f}" for k in kinds))
    print("  p99, 8 connections, us       " + "".join(f"{k:>10} {F.median(p99[k]):7.0f}" for k in kinds))
    if "nginx" in kinds:
        table.line("added p50 against nginx", F.median([a / b for a, b in zip(p50["incipit"], p50["nginx"])]), 1.0, "x")
        table.line("p99 at 8 connections against nginx", F.median([a / b for a, b in zip(p99["incipit"], p99["nginx"])]),
                   None, "x", note="mostly core 1's scheduler")


def ask_and_stay(url, body_bytes):
    """A connection that has had one request answered and is kept."""
    host, port = url.split("//")[1].split(":")
    body = json.dumps({"model": MODEL, "messages": [{"role": "user", "content": "x" * (body_bytes - 70)}]}).encode()
    s = socket.create_connection((host, int(port)))
    s.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: bench\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
    got = b""
    while not got.endswith(b"}"):
        more = s.recv(65536)
        if not more:
            raise RuntimeError(f"{url} closed a connection")
        got += more
    return s


def measure_idle(table, kinds, urls):
    """User memory of an idle kept-alive connection that has had one request answered."""
    n = 2000
    table.head(f"user memory of an idle client connection, {n} of them, bytes")
    for scene, size in (("1 KB", 1024), ("32 KB", 32768), ("200 KB", 204800)):
        cost = {}
        for kind in [k for k in kinds if k not in ("logging", "forwarder")]:
            with F.Fleet() as fleet, contextlib.ExitStack() as held:
                proxy = start(kind, fleet, urls)
                offer(proxy, scene, 0.5)  # what requests leave behind is not the connections'
                for _ in range(50):
                    held.enter_context(contextlib.closing(ask_and_stay(proxy.url, size)))
                before = proxy.anonymous_bytes()
                for _ in range(n):
                    held.enter_context(contextlib.closing(ask_and_stay(proxy.url, size)))
                cost[kind] = (proxy.anonymous_bytes() - before) / n
        print(f"  after {scene:<6}" + "".join(f"{k:>10} {v:7.0f}" for k, v in cost.items()))
        table.line(f"idle connection, {scene} before", cost["incipit"], 600, " B", ".0f")


def count_syscalls(fleet, proxy, scene, n):
    """Per request, by name; None when strace may not attach."""
    offer(proxy, scene, 0.3)
    out = fleet.dir / "strace"
    tracer = subprocess.Popen(["strace", "-c", "-f", "-o", str(out)] +
                              [x for pid in proxy.pids() for x in ("-p", str(pid))], stderr=subprocess.DEVNULL)
    time.sleep(0.5)
    report = F.load(proxy.url, "--mode", "closed", "--model", MODEL, "--requests", n, "--duration", "60s", *SCENES[scene],
                    cpus=LOAD_CPUS)
    tracer.send_signal(signal.SIGINT)
    tracer.wait()
    calls = {}
    for line in out.read_text().splitlines():
        found = re.match(r"\s*[\d.]+\s+[\d.]+\s+\d+\s+(\d+)\s+(?:\d+\s+)?(\w+)$", line)
        if found and found[2] != "total":
            calls[found[2]] = int(found[1]) / report["ok"]
    return calls


def measure_syscalls(table, kinds, urls):
    if not shutil.which("strace"):
        F.skip("syscalls per request", "strace is not installed (make deps-bench)")
        return
    for scene, n in (("1 KB", 20000), ("200 KB", 4000)):
        table.head(f"syscalls per {scene} request, 64 connections, under strace")
        for kind in [k for k in kinds if k != "logging"]:
            with F.Fleet() as fleet:
                calls = count_syscalls(fleet, start(kind, fleet, urls), scene, n)
            if not calls:
                F.skip(f"syscalls of {kind}", "strace may not attach here")
                continue
            note = ", ".join(f"{n} {v:.2f}" for n, v in sorted(calls.items(), key=lambda c: -c[1]) if v >= 0.01)
            table.line(f"syscalls, {kind}", sum(calls.values()), 4.5 if kind == "incipit" else None, "", note=note)


def measure_loops(o, table, urls):
    """One loop against two, on both cores together with the load, as both would run."""
    if os.cpu_count() < 2:
        F.skip("two loops", "one core")
        return
    ratios, rates, waits = [], [], []
    for rep in range(o.reps):
        cost, rate = {}, {}
        for threads in (1, 2) if rep % 2 == 0 else (2, 1):
            with F.Fleet() as fleet:
                proxy = start("incipit", fleet, urls, threads, cpus=None)
                offer(proxy, "1 KB", 0.3, cpus=None)
                before, waited = proxy.cpu_ns(), lock_wait_s(proxy)
                cost[threads], report = offer(proxy, "1 KB", o.seconds, cpus=None)
                rate[threads] = report["completed_per_s"]
                if threads == 2 and waited is not None:
                    waits.append((lock_wait_s(proxy) - waited) * 1e9 / (proxy.cpu_ns() - before))
        ratios.append(cost[2] / cost[1])
        rates.append(rate[2] / rate[1])
    table.head("two loops against one, 1 KB, unpinned, load on the same cores")
    table.line("CPU per request, 2 loops / 1", F.median(ratios), 1.05, "x")
    table.line("requests per second, 2 loops / 1", F.median(rates), None, "x")
    if waits:
        table.line("lock wait, share of CPU, 2 loops", F.median(waits) * 100, 2.0, " %")
    else:
        F.skip("lock wait", "the router has no such metric")


def lock_wait_s(proxy):
    answer = F.get(proxy.admin_url + "/metrics")
    name = "incipit_lock_wait_seconds_total"
    return F.metric(answer[1], name) if answer and name in answer[1] else None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("quick", nargs="?", choices=["quick"], help="2 repetitions of half a second")
    parser.add_argument("--reps", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2)
    parser.add_argument("--only", default="cpu,tls,latency,idle,syscalls,loops")
    o = parser.parse_args()
    if o.quick:
        o.reps, o.seconds = 2, 0.5
    kinds = ["incipit", "logging", "forwarder"]
    for name in ("nginx", "haproxy"):
        if F.find_program(name):
            kinds.append(name)
        else:
            F.skip(name, "not installed (make deps-bench)")
    table = Table()
    with F.Fleet() as fleet:
        ports = F.free_ports(2)
        fleet.start([F.BUILD / "tests/bench/router/upstream", *ports], cpus=LOAD_CPUS)
        urls = [f"http://127.0.0.1:{p}" for p in ports]
        F.wait_for(lambda: F.get(urls[1] + "/health"), "the workers")
        only = o.only.split(",")
        if "cpu" in only:
            compare_cpu(table, measure_cpu(o, table, kinds, urls), kinds, BARS)
        if "tls" in only and not shutil.which("openssl"):
            F.skip("TLS", "openssl is not installed")
        elif "tls" in only:
            others = ["tls", *(k for k in kinds if k in ("nginx", "haproxy"))]
            compare_cpu(table, measure_cpu(o, table, others, urls, TLS_SCENES), others, TLS_BARS, "tls")
        if "latency" in only:
            measure_latency(o, table, kinds, urls, urls[0])
        if "idle" in only:
            measure_idle(table, kinds, urls)
        if "syscalls" in only:
            measure_syscalls(table, kinds, urls)
        if "loops" in only:
            measure_loops(o, table, urls)
    print(f"\n{'all bars met' if not table.n_missed else f'{table.n_missed} bars missed'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
