"""Prompts as coding agents send them, and workers with a second tier: what the router predicts is what they find."""
import json
import random

from conftest import Router, Worker, http, metric

N_TOKENS = 120_000  # a character each, and six bytes of the body: 720 KB, as long as 180,000 tokens of most models


def words(seed, n):
    return "".join(random.Random(seed).choices("abcdefghijklmnop ", k=n))


def complete(url, prompt, is_escaped=False):
    body = json.dumps({"model": "synthetic", "max_tokens": 1, "prompt": "?"})
    text = "".join(f"\\u{ord(c):04x}" for c in prompt) if is_escaped else prompt
    answer = http(url + "/v1/completions", body.replace("?", text).encode())
    assert answer.code == 200, answer.body
    return answer.json["usage"]["prompt_tokens_details"]["cached_tokens"]


def counts(router):
    return [router.metric(name) for name in ("incipit_predicted_cached_tokens_total", "incipit_cached_tokens_total")]


def test_a_prompt_of_hundreds_of_kilobytes_is_predicted_to_its_end(programs):
    w = programs(Worker, "--backend", "sim", "--sim-speed", 1000, "--num-gpu-blocks-override", 20_000).ready()
    r = programs(Router, "--worker-urls", w.url).ready(1)
    opening = words(1, N_TOKENS)
    complete(r.url, opening, is_escaped=True)
    before = counts(r)
    cached_tokens = sum(complete(r.url, opening + words(i, 400), is_escaped=True) for i in range(2, 12))
    predicted, cached = (b - a for a, b in zip(before, counts(r)))
    assert cached == cached_tokens > 0.95 * 10 * N_TOKENS
    assert abs(predicted - cached_tokens) < 0.02 * cached_tokens
    factor = metric(http(r.admin_url + "/metrics").body, "incipit_worker_capacity_factor")
    assert 0.9 <= factor <= 1.1


def test_blocks_in_host_memory_are_in_the_books(programs):
    """Eight prompts of 600 tokens fit the host tier and not the device: all are found, and all were predicted."""
    w = programs(Worker, "--backend", "sim", "--sim-speed", 1000, "--num-gpu-blocks-override", 60, "--kv-offload-bytes", "1GiB",
               "--max-model-len", 800).ready()
    info = http(w.url + "/server_info").json
    host = next(t for t in info["tiers"] if t["name"] == "host")
    assert host["n_blocks"] > 5 * info["n_blocks"]
    r = programs(Router, "--worker-urls", w.url).ready(1)
    assert r.workers()["workers"][0]["tiers"] == info["tiers"]
    prompts = [words(i, 600) for i in range(8)]
    assert max(complete(r.url, p) for p in prompts) < 32
    before = counts(r)
    found = [complete(r.url, p) for p in prompts]
    assert min(found) > 560
    predicted, cached = (b - a for a, b in zip(before, counts(r)))
    assert cached == sum(found) and abs(predicted - cached) < 0.15 * cached  # the router counts in blocks of 256 bytes
    page = http(r.admin_url + "/metrics").body
    assert metric(page, "incipit_worker_cache_tokens") == (info["n_blocks"] + host["n_blocks"]) * info["block_size"]
    assert 0.9 <= metric(page, "incipit_worker_capacity_factor") <= 1.1
