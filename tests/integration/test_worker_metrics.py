"""The worker's page of metrics: every name that dashboards of this field know, of its kind, with its buckets and
labels; and what moves them."""
import re

import pytest

from conftest import Worker, metric, wait_for

TTFT = "0.001 0.005 0.01 0.02 0.04 0.06 0.08 0.1 0.25 0.5 0.75 1 2.5 5 7.5 10 20 40 80 160 640 2560"
LATENCY = "0.3 0.5 0.8 1 1.5 2 2.5 5 10 15 20 30 40 50 60 120 240 480 960 1920 7680"
INTER_TOKEN = "0.01 0.025 0.05 0.075 0.1 0.15 0.2 0.3 0.4 0.5 0.75 1 2.5 5 7.5 10 20 40 80"
TOKENS = " ".join(str(m * 10 ** e) for e in range(6) for m in (1, 2, 5)) + " 1000000"
STEP = "1 8 16 32 64 128 256 512 1024 2048 4096 8192 16384"
AGE = "0.001 0.002 0.005 0.01 0.02 0.05 0.1 0.2 0.5 1 2 5 10 20 30 60 120 300 600 1200 1800"

# The names of vLLM that concern what this worker does. Not here: adapters and drafts.
GAUGES = """num_requests_running num_requests_waiting num_requests_swapped kv_cache_usage_perc gpu_cache_usage_perc
    cache_config_info""".split()
COUNTERS = """prefix_cache_queries_total prefix_cache_hits_total gpu_prefix_cache_queries_total
    gpu_prefix_cache_hits_total external_prefix_cache_queries_total external_prefix_cache_hits_total
    num_preemptions_total prompt_tokens_total prompt_tokens_cached_total
    generation_tokens_total request_success_total""".split()
HISTOGRAMS = {
    "time_to_first_token_seconds": TTFT,
    **dict.fromkeys(["inter_token_latency_seconds", "time_per_output_token_seconds",
                     "request_time_per_output_token_seconds"], INTER_TOKEN),
    **dict.fromkeys(["e2e_request_latency_seconds", "request_queue_time_seconds", "request_prefill_time_seconds",
                     "request_decode_time_seconds", "request_inference_time_seconds"], LATENCY),
    **dict.fromkeys(["request_prompt_tokens", "request_generation_tokens", "request_max_num_generation_tokens",
                     "request_params_max_tokens", "request_prefill_kv_computed_tokens"], TOKENS),
    "request_params_n": "1 2 5 10 20",
    "iteration_tokens_total": STEP,
    **dict.fromkeys(["kv_block_lifetime_seconds", "kv_block_idle_before_evict_seconds", "kv_block_reuse_gap_seconds"],
                    AGE),
}


@pytest.fixture(scope="module")
def page():
    worker = Worker("--backend", "sim", "--sim-speed", 20).ready()
    assert worker.post("/v1/completions", {"prompt": "a b c", "max_tokens": 3, "n": 2}).code == 200
    text = worker.metrics()
    assert worker.stop() == 0
    return text


@pytest.mark.parametrize("kind, name", [("gauge", n) for n in GAUGES] + [("counter", n) for n in COUNTERS] +
                         [("histogram", n) for n in HISTOGRAMS])
def test_a_name_is_there_and_of_its_kind(page, kind, name):
    name = "vllm:" + name
    assert f"# TYPE {name} {kind}\n" in page and f"# HELP {name} " in page
    metric(page, name + ("_count" if kind == "histogram" else ""), model_name="synthetic", engine="0")


@pytest.mark.parametrize("name", HISTOGRAMS)
def test_a_histogram_has_the_buckets_that_dashboards_expect(page, name):
    bounds = re.findall(rf'(?m)^vllm:{name}_bucket{{.*le="([^"]+)"', page)
    assert [float(b) for b in bounds] == [float(b) for b in HISTOGRAMS[name].split()] + [float("inf")]


def test_nothing_of_the_page_is_missing_here(page):
    """A new metric is described here."""
    names = set(re.findall(r"(?m)^# TYPE vllm:(\S+)", page))
    assert names == {*GAUGES, *COUNTERS, *HISTOGRAMS}


def test_a_reason_is_a_label(page):
    for reason in ("stop", "length", "abort", "error"):
        assert metric(page, "vllm:request_success_total", finished_reason=reason) == (2 if reason == "length" else 0)


def test_each_gap_between_tokens_is_counted(sim):
    for n, tokens in ((1, 7), (3, 4), (1, 1)):
        before = sim.metric("vllm:inter_token_latency_seconds_count"), \
            sim.metric("vllm:request_time_per_output_token_seconds_count")
        sim.post("/v1/completions", {"prompt": "a", "max_tokens": tokens, "n": n, "ignore_eos": True})
        wait_for(lambda: sim.metric("vllm:num_requests_running") == 0, "the end")
        assert sim.metric("vllm:inter_token_latency_seconds_count") - before[0] == n * (tokens - 1)
        assert sim.metric("vllm:request_time_per_output_token_seconds_count") - before[1] == n * (tokens > 1)


def ages(worker):
    return [worker.metric(f"vllm:kv_block_{name}_seconds_count")
            for name in ("lifetime", "idle_before_evict", "reuse_gap")]


def test_ages_of_blocks_are_exported_when_enabled(programs):
    """A cache of 20 blocks of 16 tokens; prompts of 8 full blocks."""
    args = ["--backend", "sim", "--sim-speed", 50, "--num-gpu-blocks-override", 20, "--max-model-len", 256]
    quiet = programs(Worker, *args).ready()
    asked = programs(Worker, *args, "--kv-cache-metrics", "--kv-cache-metrics-sample", 1).ready()
    for worker in (quiet, asked):
        ask = lambda letter: worker.post("/v1/completions", {"prompt": letter * 129, "max_tokens": 1}).code
        assert [ask("a") for _ in range(4)] == [200] * 4
        assert ages(worker) == ([0, 0, 0] if worker is quiet else [0, 0, 2 * 8]), "of three hits, two gaps"
        assert [ask(letter) for letter in "bcd"] == [200] * 3
    lifetimes, idles, gaps = ages(asked)
    assert lifetimes == idles >= 8 and gaps == 16 and ages(quiet) == [0, 0, 0]


def test_a_share_out_of_range_is_refused(programs):
    worker = programs(Worker, "--backend", "sim", "--kv-cache-metrics-sample", "2")
    assert worker.process.wait(20) != 0
    assert "kv-cache-metrics-sample" in worker.log
