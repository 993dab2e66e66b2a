"""What routing loses when workers do not report what they found in their caches.

The same conversation-shaped load goes through the router to the same simulated workers: once as they
are, and once each behind a proxy that makes them answer as stock vLLM or as SGLang does
(tests/support/foreign_engine.py). Compared: the tokens that the fleet found in its caches, as the
workers themselves count them. `make replay-foreign` is this at a larger size, and with an engine that
reports nothing at all.
"""
import json
import os
import subprocess
import sys

import pytest

from conftest import BUILD, ROOT, Router, Worker, http, wait_for

REQUESTS = int(os.environ.get("FOREIGN_REQUESTS", 400))
SEEDS = range(1, 1 + int(os.environ.get("FOREIGN_SEEDS", 1)))
KINDS = os.environ.get("FOREIGN_KINDS", "vllm,sglang").split(",")
WORKERS = 4


class Shim:
    """Foreign engines in front of workers; `urls` in their order."""

    def __init__(self, kind, workers):
        ports = [w.url.rsplit(":", 1)[1] for w in workers]
        self.process = subprocess.Popen([sys.executable, str(ROOT / "tests/support/foreign_engine.py"), kind, *ports],
                                        stdout=subprocess.PIPE, text=True)
        self.urls = [f"http://127.0.0.1:{self.process.stdout.readline().strip()}" for _ in ports]

    def stop(self):
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()


@pytest.fixture
def foreign():
    started = []

    def start(kind, workers):
        started.append(Shim(kind, workers))
        return started[-1].urls

    yield start
    for shim in started:
        shim.stop()


def fleet_hits(kind, seed, programs, foreign):
    """Prompt tokens found in the caches, and all of them, in a run of its own."""
    workers = [programs(Worker, "--backend", "sim", "--sim-speed", 5, "--max-model-len", 16384,
                        "--num-gpu-blocks-override", 4000) for _ in range(WORKERS)]
    urls = [w.ready().url for w in workers]
    if kind != "headers":
        urls = foreign(kind, workers)
    router = programs(Router, "--worker-urls", *urls).ready(WORKERS)
    if kind in ("vllm", "sglang"):
        wait_for(lambda: all(w["n_blocks"] > 0 for w in router.workers()["workers"]), "the sizes of the workers")
    subprocess.run([BUILD / "incipit-bench", router.url, "--traffic", "conversation", "--stream", "--rps", "60",
                    "--requests", str(REQUESTS), "--duration", "10m", "--seed", str(seed), "--max-tokens", "16",
                    "--first-turn-bytes", "2000", "--pause", "2s"], check=True, stdout=subprocess.PIPE)
    found = [sum(w.metric(f"vllm:prefix_cache_{name}_total") for w in workers) for name in ("hits", "queries")]
    for p in (router, *workers):
        p.process.kill()
    return found


def test_a_fleet_without_reports_finds_nearly_as_much(programs, foreign):
    hits = dict.fromkeys(["headers", *KINDS], 0)
    for seed in SEEDS:
        for kind in hits:
            found, asked = fleet_hits(kind, seed, programs, foreign)
            hits[kind] += found
            print(f"\nseed {seed}: {kind:8} found {found:10.0f} of {asked:10.0f} prompt tokens, {found / asked:.1%}", end="")
    for kind in KINDS:
        print(f"\n{kind:8} {hits[kind] / hits['headers']:.3f} of the tokens found with our headers", end="")
        assert hits[kind] >= 0.9 * hits["headers"]


def test_the_size_of_a_foreign_worker_is_read_from_its_pages(sim, programs, foreign):
    blocks = http(sim.url + "/server_info").json["n_blocks"]
    for kind in ("vllm", "sglang"):
        router = programs(Router, "--worker-urls", *foreign(kind, [sim]), "--engine-metrics-interval", "50ms").ready(1)
        wait_for(lambda: router.workers()["workers"][0]["n_blocks"] == blocks, f"the size of a {kind}")
        found = router.workers()["workers"][0]
        assert found["is_third_party"] and found["is_foreign"] and router.field("engine_metrics", "kind") == kind
