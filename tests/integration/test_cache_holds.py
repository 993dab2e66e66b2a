"""Prefixes that clients hold: they outlive a hundred caches of other traffic, within budgets, for their owners alone."""
import concurrent.futures

import pytest

from conftest import ROOT, Worker, http, wait_for

N_BLOCKS = 100
PROMPT = [7] * 161  # ten full blocks, and a token
PLACES = {"host": ("--kv-offload-bytes", "4MiB"), "device": ()}


def start(programs, *args, blocks=N_BLOCKS):
    return programs(Worker, str(ROOT / "deploy/demo/model"), "--backend", "sim", "--sim-speed", 10000, "--max-model-len", 1024,
                    "--num-gpu-blocks-override", blocks, *args).ready()


def call(worker, path, body=None, **headers):
    return http(worker.url + path, body, headers={k.replace("_", "-"): v for k, v in headers.items()})


def hold(worker, prompt=PROMPT, **fields):
    answer = worker.post("/cache/hold", {"prompt": prompt, **fields})
    assert answer.code == 200, answer.body
    return answer.json


def cached(worker, prompt=PROMPT, **fields):
    answer = worker.post("/v1/completions", {"prompt": prompt, "max_tokens": 1, **fields})
    assert answer.code == 200, answer.body
    return answer.json["usage"]["prompt_tokens_details"]["cached_tokens"]


def fill(worker, n_blocks, first=1000):
    """Other prompts of that many blocks in all."""
    for i in range(0, n_blocks, 8 * 60):
        prompts = [[*divmod(first + i + k, 1000)] + [5] * 958 for k in range(8)]
        assert worker.post("/v1/completions", {"prompt": prompts, "max_tokens": 1}).code == 200


@pytest.mark.parametrize("place", PLACES)
def test_hold_outlives_a_hundred_caches_of_other_traffic(programs, place):
    worker = start(programs, *PLACES[place])
    held = hold(worker)
    page = worker.get("/cache").json
    n_all = N_BLOCKS + (page["max_bytes"] * 4 // (held["bytes"] // 10) if place == "host" else 0)
    assert page["place"] == place and held["tokens"] == 160
    assert cached(worker, [8] * 161) == 0
    fill(worker, 100 * n_all)
    assert cached(worker, [8] * 161) == 0
    assert cached(worker) == 160
    page = worker.get("/cache").json
    assert page["hits"] == 1 and page["saved_tokens"] == 160 and page["saved_s"] > 0
    assert [h["id"] for h in page["holds"]] == [held["id"]] and page["holds"][0]["hits"] == 1


@pytest.mark.parametrize("place", PLACES)
def test_released_hold_is_evicted_like_others(programs, place):
    worker = start(programs, *PLACES[place])
    held = hold(worker, ttl=60)  # shorter than the shortest mark
    assert hold(worker, ttl=120)["id"] == held["id"]  # of the same blocks: renewed
    released = worker.post("/cache/release", {"id": held["id"]})
    assert released.code == 200 and released.json == {"object": "cache.release", "id": held["id"]}
    again = worker.post("/cache/release", {"id": held["id"]})
    assert again.code == 404 and again.json["error"]["param"] == "id"
    assert worker.get("/cache").json["holds"] == []
    fill(worker, 10 * N_BLOCKS)
    assert cached(worker) == 0


@pytest.mark.parametrize("place", PLACES)
def test_reset_ends_holds(programs, place):
    worker = start(programs, *PLACES[place])
    held = hold(worker)
    assert worker.post("/reset_prefix_cache", {}).code == 200
    assert cached(worker) == 0
    page = worker.get("/cache").json
    assert page["holds"] == [] and page["held_bytes"] == page["charged_bytes"] == 0
    assert worker.post("/cache/release", {"id": held["id"]}).code == 404
    assert worker.metric("incipit_kv_holds_ended_total", outcome="reset") == 1


def test_hold_expires_unused_and_begins_again_when_used(programs):
    worker = start(programs, *PLACES["host"])
    hold(worker, ttl=1)
    kept = hold(worker, [9] * 161, ttl=3600)
    expires = kept["expires"]
    wait_for(lambda: len(worker.get("/cache").json["holds"]) == 1, "one of two holds to expire")
    assert worker.metric("incipit_kv_holds_ended_total", outcome="expired") == 1
    assert cached(worker, [9] * 161) == 160
    assert worker.get("/cache").json["holds"][0]["expires"] > expires


def test_budget_is_refused_beyond_and_counts_what_is_shared_once(programs):
    worker = start(programs, "--hold-bytes", 20 * 32768, *PLACES["host"])
    longer = hold(worker, PROMPT + [9] * 32)
    hold(worker, PROMPT[:97])
    page = worker.get("/cache").json
    block = longer["bytes"] // 12
    assert block == 32768 and page["max_bytes"] == 20 * block
    assert page["charged_bytes"] == 18 * block == sum(h["bytes"] for h in page["holds"]) and page["held_bytes"] == 12 * block
    assert worker.metric("incipit_kv_held_blocks") == 12 and worker.metric("incipit_kv_held_blocks_limit") == 20
    refused = worker.post("/cache/hold", {"prompt": [3] * 49})
    error = refused.json["error"]
    assert refused.code == 429 and error["param"] == "hold_quota" and "18 of the 20 blocks" in error["message"] and refused.headers["retry-after"]
    assert worker.metric("incipit_kv_holds_refused_total") == 1
    assert worker.post("/cache/release", {"id": longer["id"]}).code == 200
    hold(worker, [3] * 49)


def test_hold_is_its_owners_alone(programs):
    worker = start(programs, "--api-key", "a", "b", "--hold-bytes", 40 * 32768, *PLACES["host"])
    key = {name: {"authorization": f"Bearer {name}"} for name in "ab"}
    held = call(worker, "/cache/hold", {"prompt": PROMPT, "cache_salt": "s"}, **key["a"])
    assert held.code == 200
    body = {"id": held.json["id"], "cache_salt": "s"}
    assert call(worker, "/cache/release", body).code == 401
    assert call(worker, "/cache/release", body, **key["b"]).code == 404
    assert call(worker, "/cache/release", {"id": body["id"]}, **key["a"]).code == 404
    rows = {name: call(worker, "/cache", **key[name]).json["holds"] for name in "ab"}
    assert rows["a"][0]["id"] == rows["b"][0]["id"] == body["id"]  # of no use to b: see above
    assert rows["a"][0]["holder"] == rows["b"][0]["holder"] is not None
    full = call(worker, "/cache/hold", {"prompt": [9] * 193}, **key["a"])  # a key has half of the budget
    assert full.code == 429 and "of one holder" in full.json["error"]["message"]
    assert call(worker, "/cache/hold", {"prompt": [9] * 193}, **key["b"]).code == 200
    assert call(worker, "/cache/hold", {"prompt": [9] * 17}, **key["a"], origin="http://elsewhere.example").code == 403
    assert call(worker, "/cache/release", body, **key["a"]).code == 200


def test_no_salt_makes_one_key_another(programs):
    worker = start(programs, "--api-key", "a-4356", "key-b", "--hold-bytes", 40 * 32768, *PLACES["host"])
    key = {name: {"authorization": f"Bearer {name}"} for name in ("a-4356", "key-b")}
    held = call(worker, "/cache/hold", {"prompt": PROMPT}, **key["a-4356"])
    assert held.code == 200
    # XXH3 of this salt, with XXH3 of the second key as its seed, is XXH3 of the first key.
    body = {"id": held.json["id"], "cache_salt": "72m<sY):"}
    assert call(worker, "/cache/release", body, **key["key-b"]).code == 404
    assert call(worker, "/cache/release", {"id": held.json["id"]}, **key["a-4356"]).code == 200


@pytest.mark.parametrize("place", PLACES)
def test_holds_stop_no_request(programs, place):
    worker = start(programs, *PLACES[place])
    held = hold(worker, [7] * 385)
    answers = worker.post("/v1/completions", {"prompt": [[i] + [5] * 950 for i in range(4)], "max_tokens": 64, "ignore_eos": True})
    assert answers.code == 200 and answers.json["usage"]["completion_tokens"] == 4 * 64
    big = start(programs, blocks=65)  # all of the device for one request
    held = hold(big, [7] * 17)
    assert cached(big, [3] * 1020) == 0
    assert big.get("/cache").json["holds"] == [] and held["tokens"] == 16
    assert big.metric("incipit_kv_holds_ended_total", outcome="evicted") == 1


def test_hold_of_a_chat_serves_its_system_prompt(programs):
    worker = start(programs, *PLACES["host"])
    system = {"role": "system", "content": "You are a careful assistant that reads long texts before it answers. " * 6}
    held = worker.post("/cache/hold", {"messages": [system, {"role": "user", "content": ""}], "ttl": "30m", "stream": True, "max_tokens": 9})
    assert held.code == 200 and held.json["ttl_s"] == 1800 and held.json["tokens"] > 100
    fill(worker, 10 * N_BLOCKS)
    answer = worker.post("/v1/chat/completions", {"messages": [system, {"role": "user", "content": "Hello?"}], "max_tokens": 1})
    assert answer.json["usage"]["prompt_tokens_details"]["cached_tokens"] >= held.json["tokens"] - 32
    row = worker.get("/cache").json["holds"][0]
    assert row["hits"] == 1 and row["value"] > 0.99


@pytest.mark.parametrize("path, body, param", [
    ("/cache/hold", {"prompt": "a", "ttl": 86401}, "ttl"), ("/cache/hold", {"prompt": "a", "ttl": "2h"}, "ttl"),
    ("/cache/hold", {"prompt": "a", "ttl": 0}, "ttl"), ("/cache/hold", {"prompt": ["a", "b"]}, "prompt"), ("/cache/hold", {}, "prompt"),
    ("/cache/release", {}, "id"), ("/cache/release", {"id": "hold-1"}, "id"), ("/cache/release", {"id": "hold-000000000000000g"}, "id")])
def test_wrong_calls_are_refused(programs, path, body, param):
    answer = start(programs).post(path, body)
    assert answer.code == 400 and answer.json["error"]["param"] == param


def test_prefix_positions_bound_what_is_held(programs):
    worker = start(programs)
    assert hold(worker, prefix_pos=100)["tokens"] == 96
    assert hold(worker, [8] * 161, prefix_pos=[32, 64])["tokens"] == 64
    assert hold(worker, [9] * 161, prefix_pos=5000)["tokens"] == 160
    for ttl in (0, 86401, 1.5):  # the error names the value
        assert f"not {ttl}" in worker.post("/cache/hold", {"prompt": PROMPT, "ttl": ttl}).json["error"]["message"]
    for wrong in (0, "a", [], [1, 2, 3, 4, 5], [0], {}):
        answer = worker.post("/v1/completions", {"prompt": PROMPT, "prefix_pos": wrong})
        assert answer.code == 400 and answer.json["error"]["param"] == "prefix_pos"


def test_prefix_position_is_a_message_of_a_chat(programs):
    worker = start(programs, "--kv-offload-bytes", "16MiB")
    messages = [{"role": "system", "content": "You are a careful assistant that reads long texts before it answers. " * 4},
                {"role": "user", "content": "Who lives in the house at the end of the road? " * 4}, {"role": "user", "content": "And then? " * 20}]

    def hold_to(pos):
        answer = worker.post("/cache/hold", {"messages": messages, "prefix_pos": pos})
        assert answer.code == 200, answer.body
        return answer.json["tokens"]

    alone = [worker.post("/tokenize", {"messages": messages[:n], "add_generation_prompt": False}).json["count"] for n in (1, 2, 3)]
    assert [hold_to({"message": n}) // 16 for n in range(3)] == [n // 16 for n in alone]
    assert hold_to([{"message": 0}, 16, {"message": 1}]) // 16 == alone[1] // 16
    for wrong in ({"message": 3}, {"message": -1}, {"message": 1, "token": 2}, [{"message": "a"}]):
        refused = worker.post("/cache/hold", {"messages": messages, "prefix_pos": wrong})
        assert refused.code == 400 and refused.json["error"]["param"] == "prefix_pos", wrong
    refused = worker.post("/cache/hold", {"prompt": PROMPT, "prefix_pos": {"message": 0}})
    assert refused.code == 400 and "names a message" in refused.json["error"]["message"]


def test_fields_of_a_router_are_named(programs):
    worker = start(programs)
    assert hold(worker, copies=2)["ignored"] == ["copies"] and "ignored" not in hold(worker)
    assert worker.post("/cache/prewarm", {"prompt": PROMPT, "workers": 2}).json["ignored"] == ["workers"]


def tiers(worker):
    return {t["tier"]: t for t in worker.get("/cache").json["tiers"]}


def test_holds_beyond_host_memory_are_in_the_folder(programs, tmp_path):
    """Held once each: a restart finds all of them by an ordinary lookup, and traffic through the folder takes none."""
    n, args = 9, ("--kv-file", tmp_path / "kv", "--kv-file-bytes", "12MiB", "--hold-bytes", 32 * 32768, *PLACES["host"])
    worker = start(programs, *args)
    for i in range(n):
        held = hold(worker, [10 + i] * 161)
        wait_for(lambda: worker.get("/cache").json["holds"][-1]["tiers"]["file"] == held["bytes"], "the hold in the folder")
    page, of = worker.get("/cache").json, tiers(worker)
    assert len(page["holds"]) == n and worker.metric("incipit_kv_holds_left_total") == n - 3
    assert of["file"]["charged_bytes"] == of["file"]["held_bytes"] == n * held["bytes"] <= of["file"]["max_bytes"] <= 6 << 20
    assert of["host"]["charged_bytes"] == of["host"]["held_bytes"] == sum(h["tiers"]["host"] for h in page["holds"]) == 3 * held["bytes"]
    assert worker.metric("incipit_kv_held_below_blocks") == n * 10 and page["held_byte_s"] > 0
    for first in range(0, 800, 8):  # twice each: what was met once is not written
        for _ in range(2):
            fill(worker, 1, first=1000 + first)
    wait_for(lambda: worker.metric("incipit_kv_tier_stores_total", tier="file", result="ok") > 3 * 384, "traffic through the folder")
    assert tiers(worker)["file"]["held_bytes"] == n * held["bytes"]
    assert worker.stop() == 0
    worker = start(programs, *args)
    assert tiers(worker)["file"]["held_bytes"] == 0
    for i in range(n):  # as a router repeats them: found there, not written again
        hold(worker, [10 + i] * 161)
        wait_for(lambda: tiers(worker)["file"]["held_bytes"] == (i + 1) * held["bytes"], "the repeated hold in the folder")
    assert worker.metric("incipit_kv_tier_stores_total", tier="file", result="ok") == 0


@pytest.mark.parametrize("path", ["/cache/prewarm", "/cache/hold"])
def test_equal_prompts_at_once_are_computed_once(programs, path):
    worker = programs(Worker, str(ROOT / "deploy/demo/model"), "--backend", "sim", "--sim-speed", 2, "--max-num-batched-tokens", 512,
                      "--long-prefill-token-threshold", 64, "--max-num-seqs", 64, "--max-model-len", 4096).ready()
    body = {"prompt": [7] * 3000, "max_tokens": 0}
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda _: worker.post(path, body), range(4)))
    assert [a.code for a in answers] == [200] * 4
    assert sorted(a.json["cached_tokens"] for a in answers) == [0] + 3 * [2992]
    assert worker.metric("vllm:request_prefill_kv_computed_tokens_sum") == 3000 + 3 * 8
    assert cached(worker, [7] * 3000) == 2992
    if path == "/cache/hold":
        assert len({a.json["id"] for a in answers}) == 1


def test_held_prompt_is_in_the_folder_after_a_restart(programs, tmp_path):
    args = ("--kv-file", tmp_path / "kv", "--kv-file-bytes", 1 << 20, *PLACES["host"])
    worker = start(programs, *args)
    hold(worker)
    wait_for(lambda: worker.metric("incipit_kv_tier_blocks", tier="file") >= 10, "the blocks of the hold to be written")
    fill(worker, 10 * N_BLOCKS)
    assert worker.stop() == 0
    again = start(programs, *args)
    wait_for(lambda: hold(again)["cached_tokens"] > 0, "the prompt to come from the folder")


def test_what_cannot_be_held_is_refused(programs):
    worker = start(programs)
    short = worker.post("/cache/hold", {"prompt": [7] * 15})
    assert short.code == 400 and "full blocks of 16 tokens" in short.json["error"]["message"]
    off = start(programs, "--no-enable-prefix-caching")
    assert off.post("/cache/hold", {"prompt": PROMPT}).code == 501
    failed = programs(Worker, str(ROOT / "deploy/demo/model"), "--backend", "sim", "--max-model-len", 1024, "--num-gpu-blocks-override", 100,
                      "--hold-bytes", "4MiB")
    assert failed.process.wait(30) != 0 and "hold-bytes" in failed.log
