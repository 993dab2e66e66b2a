#!/usr/bin/env python3
"""tests/replay/replay_http_shared.py TRACE [--requests N] [--speed X] [--load L]: two routers through HTTP.

The first N requests of the trace (2,500), at their times, stretched to load L (0.6) of eight simulated
workers of 700,000 tokens and sped up like their clocks, in four runs of the real programs:

    one         one router
    shared      two routers, each request to one of them at random
    restarted   the same, one of them killed at half time and another one started in its place
    apart       two routers that do not share what they know (--share none)

Shown is what was found in caches, as a share of what one LRU cache of the whole fleet would have
found, and the mean time to the first token, as the routers measure them; and both for the second half,
which is after the restart. Exits 1 when a request fails (those that the kill cut off are sent again, as
a balancer would), when two routers find less than 0.95 of what one finds, or take more than 1.15 times
as long to the first token, or when less than 0.97 of the share survives the restart. Times mean little
on a busy machine; and the 2 and 20 ms that a worker waits before it sends are as many times longer here
as its clock is faster. `make replay-http-shared TRACE=FILE`.
"""
import argparse
import collections
import http.client
import json
import os
import pathlib
import random
import re
import sys
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "integration"))
from conftest import Router, Worker, wait_for  # noqa: E402
from replay_http import BLOCK, KV_BLOCK, text_of  # noqa: E402

N_WORKERS = 8
CACHE_TOKENS = 700_000
STRETCH_AT_1 = 7.55 * 0.5  # of time, for one worker at load 1 (replay_http.py)
KINDS = ("one", "shared", "restarted", "apart")


def read(path, n):
    """(seconds, block ids, prompt tokens, output tokens): equal stamps spread evenly up to the next."""
    with open(path) as f:
        lines = [json.loads(line) for _, line in zip(range(n + 50), f)]
    stamps = sorted({q["timestamp"] for q in lines})
    following = dict(zip(stamps, stamps[1:] + [stamps[-1] + 1000]))
    same, out = collections.Counter(q["timestamp"] for q in lines), []
    nth = collections.Counter()
    for q in lines[:n]:
        t = q["timestamp"]
        out.append(((t + (following[t] - t) * nth[t] / same[t]) / 1000, q["hash_ids"], q["input_length"],
                    max(q["output_length"], 1)))
        nth[t] += 1
    return out


def pooled(requests):
    """Tokens that each request would find in one LRU cache of the whole fleet."""
    cache, found = collections.OrderedDict(), []
    for _, ids, n_in, _ in requests:
        n = 0
        while n < len(ids) and ids[n] in cache:
            n += 1
        found.append(min(n * BLOCK, n_in - 1))
        for block in reversed(ids):  # the deepest goes first
            cache[block] = True
            cache.move_to_end(block)
        while len(cache) > N_WORKERS * CACHE_TOKENS // BLOCK:
            cache.popitem(last=False)
    return found


class Client(threading.Thread):
    """One request, sent again to another router when its connection is lost."""

    def __init__(self, fleet, request):
        super().__init__(daemon=True)
        self.fleet, self.error, self.n_lost, self.cached = fleet, "not answered", 0, 0
        _, ids, n_in, n_out = request
        self.body = json.dumps({"model": "synthetic", "prompt": text_of(ids, n_in), "max_tokens": n_out,
                                "ignore_eos": True, "temperature": 0})
        self.start()

    def run(self):
        while self.n_lost < 3:
            try:
                connection = http.client.HTTPConnection(self.fleet.pick(), timeout=300)
                connection.request("POST", "/v1/completions", self.body,
                                   {"Content-Type": "application/json", "x-incipit-route": "1"})
                response = connection.getresponse()
                body = response.read()
                reported = re.search(r"\bcached_tokens=(\d+)", response.getheader("x-incipit-route") or "")
                self.error = None if response.status == 200 and reported else f"{response.status} {body[:200]}"
                self.cached = int(reported[1]) if reported else 0
                connection.close()
                return
            except (OSError, http.client.HTTPException) as error:
                self.error = repr(error)
                self.n_lost += 1


class Fleet:
    def __init__(self, kind, speed):
        self.kind, self.chance, self.past = kind, random.Random(1), collections.Counter()
        self.programs = [Worker("--backend", "sim", "--sim-speed", speed, "--block-size", KV_BLOCK,
                                "--num-gpu-blocks-override", CACHE_TOKENS // KV_BLOCK) for _ in range(N_WORKERS)]
        self.urls = [w.ready().url for w in self.programs]
        self.routers = [self.start() for _ in range(1 if kind == "one" else 2)]

    def start(self):
        shares = self.kind != "apart"
        router = Router("--worker-urls", *self.urls, "--slow-start", 0, "--log-requests", 0, "--explain-to-clients", "--threads", 1,
                        *([] if shares else ["--share", "none"]))
        self.programs.append(router)
        return router.ready(N_WORKERS)

    def pick(self):
        return self.chance.choice(self.routers).url.removeprefix("http://")

    def counts(self):
        """Seconds to first tokens, and how many: of all routers that there were."""
        return sum((self.counts_of(router) for router in self.routers), collections.Counter(self.past))

    @staticmethod
    def counts_of(router):
        names = ("ttft_seconds_sum", "ttft_seconds_count")
        return collections.Counter({name: router.metric("incipit_" + name) for name in names})

    def restart_one(self):
        old = self.routers.pop()
        self.past += self.counts_of(old)
        old.process.kill()
        old.process.wait()
        began = time.monotonic()
        new = self.start()
        wait_for(lambda: new.metric("incipit_followed_workers") == N_WORKERS, "its streams")
        print(f"    a new router had caught up after {time.monotonic() - began:.2f} s", flush=True)
        self.routers.append(new)

    def stop(self):
        for program in self.programs:
            if program.process.poll() is None:
                program.process.kill()
                program.process.wait()


def replay(kind, requests, found, args):
    fleet, clients = Fleet(kind, args.speed), []
    half = len(requests) // 2
    try:
        began = time.monotonic()
        for i, request in enumerate(requests):
            time.sleep(max(0, began + request[0] * args.stretch / args.speed - time.monotonic()))
            if i == half:
                middle = fleet.counts()
                if kind == "restarted":
                    at = time.monotonic()
                    fleet.restart_one()
                    began += time.monotonic() - at  # no request arrives meanwhile
            clients.append(Client(fleet, request))
        for client in clients:
            client.join(300)
        end = fleet.counts()
    finally:
        fleet.stop()
    for client in [c for c in clients if c.error][:3]:
        print("  failed:", client.error)
    late = end - middle
    cached = [c.cached for c in clients]
    result = {"share": sum(cached) / sum(found),
              "ttft": end["ttft_seconds_sum"] / end["ttft_seconds_count"] * args.speed,
              "late_share": sum(cached[half:]) / sum(found[half:]),
              "late_ttft": late["ttft_seconds_sum"] / late["ttft_seconds_count"] * args.speed,
              "failed": sum(c.error is not None for c in clients), "again": sum(c.n_lost > 0 for c in clients)}
    print(f"  {kind:10} share {result['share']:6.1%}  TTFT mean {result['ttft']:6.3f} s   second half "
          f"{result['late_share']:6.1%}  {result['late_ttft']:6.3f} s   {result['failed']} failed, "
          f"{result['again']} sent again", flush=True)
    return result


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("trace")
    parser.add_argument("--requests", type=int, default=2500)
    parser.add_argument("--speed", type=float, default=10)
    parser.add_argument("--load", type=float, default=0.6)
    parser.add_argument("--kinds", default=",".join(KINDS))
    args = parser.parse_args()
    args.stretch = STRETCH_AT_1 / args.load / N_WORKERS
    os.environ["INCIPIT_PREFIX_HASH_SEED"] = "the same on all of them"
    requests = read(args.trace, args.requests)
    found = pooled(requests)
    print(f"replay-http-shared: {len(requests)} requests, {N_WORKERS} workers of {CACHE_TOKENS} tokens, load "
          f"{args.load}, {args.speed:g} times as fast; one cache of them all would find "
          f"{sum(found) / sum(q[2] for q in requests):.1%} of the tokens; times are the simulated workers'")
    runs = {kind: replay(kind, requests, found, args) for kind in args.kinds.split(",")}
    goals = [("no request failed", all(r["failed"] == 0 for r in runs.values()))]
    if {"one", "shared"} <= runs.keys():
        one, two = runs["one"], runs["shared"]
        goals += [(f"two routers find {two['share'] / one['share']:.3f} of what one finds (>= 0.95)",
                   two["share"] >= 0.95 * one["share"]),
                  (f"and take {two['ttft'] / one['ttft']:.2f} times as long (<= 1.15)",
                   two["ttft"] <= 1.15 * one["ttft"])]
    if {"restarted", "shared"} <= runs.keys():
        kept = runs["restarted"]["late_share"] / runs["shared"]["late_share"]
        goals.append((f"after the restart {kept:.3f} of the share (>= 0.97)", kept >= 0.97))
    for text, holds in goals:
        print(f"  {'yes' if holds else 'NO ':3}  {text}")
    sys.exit(not all(holds for _, holds in goals))


if __name__ == "__main__":
    main()
