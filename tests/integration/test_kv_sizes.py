"""deploy/kv_sizes.py: its one pass finds what caches of every size find that are really kept; it reads what a router writes."""
import collections
import importlib.util
import json
import random
import subprocess
import sys

import pytest

from conftest import ROOT, Router, Worker, wait_for

SCRIPT = ROOT / "deploy/kv_sizes.py"
spec = importlib.util.spec_from_file_location("kv_sizes", SCRIPT)
kv_sizes = importlib.util.module_from_spec(spec)
spec.loader.exec_module(kv_sizes)


class Cache:
    """The obvious one: least recent use, so many blocks, those kept that were met `from_times` times."""

    def __init__(self, size, from_times):
        self.size, self.from_times = size, from_times
        self.blocks, self.met = collections.OrderedDict(), collections.Counter()

    def request(self, blocks):
        present = [b in self.blocks for b in blocks]
        n = present.index(False) if False in present else len(present)
        assert not any(present[n:]), "what is found is a prefix"
        for block in reversed(blocks):
            self.met[block] += 1
            if self.met[block] >= self.from_times:
                self.blocks[block] = True
                self.blocks.move_to_end(block)
                while len(self.blocks) > self.size:
                    self.blocks.popitem(last=False)
        return n


def chains(rng, n):
    """Prompts that continue earlier ones, or branch off them."""
    known = [["root"]]
    for i in range(n):
        old = rng.choice(known)
        prompt = old[:rng.randrange(len(old) + 1)] + [f"{i}.{k}" for k in range(rng.randrange(6))]
        known.append(prompt)
        if rng.random() < 0.3:
            known.pop(rng.randrange(len(known)))
        yield prompt


@pytest.mark.parametrize("from_times", [1, 2])
@pytest.mark.parametrize("seed", range(4))
def test_one_pass_finds_what_a_cache_of_each_size_finds(seed, from_times):
    prompts = list(chains(random.Random(seed), 700))
    tier = kv_sizes.Tier(from_times)
    for prompt in prompts:
        tier.request(prompt)
    everything = len({b for p in prompts for b in p})
    for size in [*range(1, 40), 100, 300, everything]:
        cache = Cache(size, from_times)
        assert kv_sizes.found([tier], size) == sum(cache.request(p) for p in prompts), size
    assert tier.recency.now <= len(tier.recency.tree)


def test_the_least_size_is_the_least():
    tier = kv_sizes.Tier(1)
    for prompt in chains(random.Random(9), 500):
        tier.request(prompt)
    all_found = kv_sizes.found([tier], 10**9)
    size = kv_sizes.least([tier], 0.9 * all_found)
    assert kv_sizes.found([tier], size) >= 0.9 * all_found > kv_sizes.found([tier], size - 1)


def run(*args):
    return subprocess.run([sys.executable, SCRIPT, *map(str, args)], capture_output=True, text=True)


def test_the_log_of_a_router_is_read(programs, tmp_path):
    worker = programs(Worker, "--backend", "sim", "--sim-speed", 1000).ready()
    router = programs(Router, "--worker-urls", worker.url, "--decision-log", tmp_path / "log").ready(1)
    for i in range(12):
        router.post("/v1/completions", {"prompt": f"Table {i % 3}: " + "a row of the table. " * 60, "max_tokens": 1})
    wait_for(lambda: len((tmp_path / "log").read_text().splitlines()) == 12, "the lines")
    done = run(131072, tmp_path / "log")
    assert done.returncode == 0, done.stderr
    assert "12 requests" in done.stdout and "1 workers" in done.stdout
    blocks = [json.loads(line)["hashes"] for line in (tmp_path / "log").read_text().splitlines()]
    memory, file = (sum(len(b) for b in blocks[first:]) / sum(len(b) for b in blocks) for first in (3, 6))
    for name, share in (("memory", memory), ("file", file), ("store", file)):
        assert f"{name}: " in done.stdout and f"finds 90% of what any size would ({share:.1%})" in done.stdout


def test_another_file_is_refused(tmp_path):
    (tmp_path / "log").write_text("{}\n")
    assert "line 1 is not one of a decision log" in run(1, tmp_path / "log").stderr
    (tmp_path / "log").write_text("")
    assert "no request" in run(1, tmp_path / "log").stderr
