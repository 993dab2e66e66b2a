"""A prompt that has left the device for host memory: what the worker and the router report of it."""
import pytest
from conftest import Router, Worker, wait_for

N_CHATS = 8  # of 800 tokens at least, where the device has room for some 2,500


@pytest.fixture
def tiered(programs):
    def start(*args):
        return programs(Worker, "--backend", "sim", "--sim-speed", 1000, "--max-model-len", 2048,
                        "--num-gpu-blocks-override", 160, *args).ready()
    return start


def chat(i):
    return {"prompt": f"You are assistant number {i}, and these are the rules of number {i}. " * 16, "max_tokens": 1}


def details(answer):
    assert answer.code == 200, answer.body
    return answer.json["usage"]["prompt_tokens_details"]


def turn_over(at):
    for i in range(N_CHATS):
        details(at.post("/v1/completions", chat(i)))


def test_usage_has_what_came_from_host_memory(tiered):
    worker = tiered("--kv-offload-bytes", "1GiB")
    turn_over(worker)
    first, again = (worker.post("/v1/completions", chat(0)) for _ in range(2))
    found = details(first)
    assert 0 < found["host_tokens"] <= found["cached_tokens"]
    assert first.headers["x-incipit-cached-tiers"] == f"host={found['host_tokens']}"
    assert details(again)["host_tokens"] == 0 and details(again)["cached_tokens"] >= found["cached_tokens"]
    assert again.headers["x-incipit-cached-tiers"] == "host=0"
    info = worker.get("/server_info").json
    tier, = info["tiers"]
    assert tier["medium"] == "host" and tier["inclusive"]
    assert tier["capacity_tokens"] == tier["n_blocks"] * info["block_size"] > 0
    assert tier["restore_tokens_per_s"] >= 0 and info["kv_bytes_per_token"] > 0


def test_without_host_memory_nothing_is_reported_of_it(tiered):
    worker = tiered()
    answer = worker.post("/v1/completions", chat(0))
    assert "host_tokens" not in details(answer) and "x-incipit-cached-tiers" not in answer.headers
    assert worker.get("/server_info").json["tiers"] == []


def test_the_router_expects_and_counts_what_is_below_the_device(tiered, programs):
    worker = tiered("--kv-offload-bytes", "1GiB")
    router = programs(Router, "--worker-urls", worker.url, "--explain-to-clients").ready(1)
    turn_over(router)
    answer = router.post("/v1/completions", chat(0), headers={"x-incipit-route": "1"})
    route = dict(field.split("=", 1) for field in answer.headers["x-incipit-route"].split())
    assert int(route["below_tokens"]) == details(answer)["host_tokens"] > 0
    assert float(route["predicted_below_tokens"]) > 0
    wait_for(lambda: router.metric("incipit_cached_below_tokens_total") >= int(route["below_tokens"]), "the count")
    assert router.metric("incipit_predicted_below_tokens_total") > 0
    assert router.metric("incipit_worker_index_below_blocks") > 0
