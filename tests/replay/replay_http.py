#!/usr/bin/env python3
"""tests/replay/replay_http.py TRACE [--requests N] [--speed X]: the router's books through HTTP.

One simulated worker of 700,000 tokens behind the real router, and the first N requests of the trace
(1,000) at their times, stretched to about half of what the worker can do and sped up like its clock.
On a busy machine steps take longer than they should; so that the queue stays shorter than the cache
(what was there at a dispatch may else be gone at its turn), a request waits here while prompts of
half the cache are under way. The text of a prompt is made from its block ids, one byte per token,
since the simulated worker speaks in bytes: equal ids from the start are equal bytes. Each answer
has in x-incipit-route what the router predicted to be cached and what the worker found.

Three short prompts of other text go before, from which the router learns that a token is a byte.

Exits 1 when the prediction is off by more than 3 % in total, or by more than 256 bytes and 16 tokens
for a request. `make replay-http TRACE=FILE`.
"""
import argparse
import hashlib
import http.client
import json
import pathlib
import re
import sys
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "integration"))
from conftest import Router, Worker  # noqa: E402

BLOCK = 512             # tokens of a block of the trace
CACHE_TOKENS = 700_000
KV_BLOCK = 16
STRETCH = 10.0          # of time; 7.55 is one worker at load 0.5 as `make replay-engine` computes it
UNDER_WAY = CACHE_TOKENS // 2
SHARE, EACH = 0.03, 256 + 16
LESSONS = 3             # short prompts of other text, which teach the router tokens per byte


def text_of(ids, n):
    blocks = []
    for block in ids:
        seed = hashlib.shake_128(str(block).encode()).hexdigest(BLOCK // 2)
        blocks.append(seed)
    return "".join(blocks)[:n]


def read(path, n):
    """(seconds, prompt, output tokens): equal stamps spread evenly up to the next one."""
    with open(path) as f:
        lines = [json.loads(line) for _, line in zip(range(n + 50), f)]
    out, i = [], 0
    while i < len(lines):
        j = i
        while j < len(lines) and lines[j]["timestamp"] == lines[i]["timestamp"]:
            j += 1
        gap = (lines[j]["timestamp"] if j < len(lines) else lines[i]["timestamp"] + 1000) - lines[i]["timestamp"]
        for k in range(i, j):
            q = lines[k]
            out.append(((q["timestamp"] + gap * (k - i) / (j - i)) / 1000,
                        text_of(q["hash_ids"], q["input_length"]), max(q["output_length"], 1)))
        i = j
    return out[:n]


class Client(threading.Thread):
    """One request on a connection of its own; predicted and actual tokens, or an error."""

    def __init__(self, router, prompt, n_output):
        super().__init__(daemon=True)
        self.address = router.url.removeprefix("http://")
        self.prompt, self.n_output, self.error = prompt, n_output, None
        self.start()

    def run(self):
        try:
            connection = http.client.HTTPConnection(self.address, timeout=300)
            connection.request("POST", "/v1/completions", json.dumps(
                {"model": "synthetic", "prompt": self.prompt, "max_tokens": self.n_output,
                 "ignore_eos": True, "temperature": 0}),
                {"Content-Type": "application/json", "x-incipit-route": "1"})
            response = connection.getresponse()
            body = response.read()
            route = response.getheader("x-incipit-route") or ""
            found = re.search(r"predicted_cached_tokens=(\d+) cached_tokens=(-?\d+)", route)
            if response.status != 200 or not found:
                self.error = f"{response.status} {body[:300]} {route}"
            else:
                self.predicted, self.cached = int(found[1]), int(found[2])
            connection.close()
        except OSError as error:
            self.error = repr(error)


def replay(router, requests, speed):
    clients, began = [], time.monotonic()
    for at_s, prompt, n_output in requests:
        time.sleep(max(0, began + at_s * STRETCH / speed - time.monotonic()))
        while sum(len(c.prompt) for c in clients if c.is_alive()) > UNDER_WAY:
            time.sleep(0.005)
        clients.append(Client(router, prompt, n_output))
    for client in clients:
        client.join(300)
    return clients


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("trace")
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--speed", type=float, default=20)
    args = parser.parse_args()
    requests = read(args.trace, args.requests)
    worker = Worker("--backend", "sim", "--sim-speed", args.speed, "--block-size", KV_BLOCK,
                    "--num-gpu-blocks-override", CACHE_TOKENS // KV_BLOCK, "--max-num-seqs", 256)
    router = None
    try:
        worker.ready()
        router = Router("--worker-urls", worker.url, "--explain-to-clients").ready(1)
        for i in range(LESSONS):
            Client(router, text_of([f"lesson {i}"] * 20, 4000), 1).join(60)
        clients = replay(router, requests, args.speed)
    finally:
        for program in (router, worker):
            if program and program.process.poll() is None:
                program.process.kill()
                program.process.wait()
    failed = [c for c in clients if c.error]
    for client in failed[:3]:
        print("replay-http: failed:", client.error)
    done = [c for c in clients if not c.error]
    predicted, cached = sum(c.predicted for c in done), sum(c.cached for c in done)
    off = [c.predicted - c.cached for c in done]
    share, n_off = predicted / max(cached, 1) - 1, sum(abs(x) > EACH for x in off)
    print(f"replay-http: {len(done)} requests, {len(failed)} failed; cached {cached} of "
          f"{sum(len(c.prompt) for c in done)} tokens, predicted {predicted}: {share:+.2%}")
    print(f"  off by more than {EACH} tokens: {n_off}; worst {max(off, key=abs, default=0):+d}; "
          f"at: {[(i, x) for i, x in enumerate(off) if abs(x) > EACH][:12]}")
    sys.exit(bool(failed) or n_off > 0 or abs(share) > SHARE)


if __name__ == "__main__":
    main()
