"""Why a prompt was not found in the cache, as clients and operators read it."""
import pytest

from conftest import Worker

TEXT = "The quick brown fox jumps over the lazy dog, and does it again. " * 8


@pytest.fixture
def start(programs):
    return lambda *args, level="position": programs(Worker, "--backend", "sim", "--sim-speed", "1000", "--max-model-len", "4096",
                                                    *(("--cache-explain", level) if level else ()), *args).ready()


def explained(answer):
    assert answer.code == 200, answer.body
    return answer.json["usage"]["prompt_tokens_details"]["cache_explain"]


def complete(worker, prompt, **more):
    return worker.post("/v1/completions", {"prompt": prompt, "max_tokens": 2, "cache_explain": True, **more})


def dry(worker, **body):
    answer = worker.post("/cache/explain", body)
    assert answer.code == 200, answer.body
    return answer.json["cache_explain"]


def test_each_cause_has_its_position(start):
    worker = start("--num-gpu-blocks-override", "300")
    assert explained(complete(worker, TEXT))["cause"] == "never_seen"
    assert explained(complete(worker, TEXT))["cause"] == "none"

    at = 200
    edited = TEXT[:at] + "\u00fc" + TEXT[at + 1:]
    for x in (dry(worker, prompt=edited), explained(complete(worker, edited))):
        assert x["cause"] == "differs" and x["text_offset"] == at and x["token"] == at and x["block"] == at // 16
        assert x["cached_tokens"] == at // 16 * 16 and x["text"].startswith("\u00fc") or x["text"][0] == "\ufffd"
        assert "cached_text" not in x

    for x in (explained(complete(worker, TEXT, cache_salt="s")), dry(worker, prompt=TEXT, cache_salt="t")):
        assert x["cause"] == "never_seen" and x["token"] == 0 and "tokens_under_other_key" not in x
    assert dry(worker, prompt="short")["cause"] == "shorter_than_block"
    assert explained(complete(worker, TEXT, prompt_logprobs=0))["cause"] == "prompt_logprobs"

    while dry(worker, prompt=TEXT)["cause"] == "none":
        complete(worker, str(worker) + TEXT[::-1] * 5 + str(id(object())))
        complete(worker, "another " * 300)
    x = dry(worker, prompt=TEXT)
    assert x["cause"] == "evicted" and 0 <= x["evicted_s_ago"] < 60

    for cause, n in (("never_seen", 1), ("none", 1), ("differs", 1), ("salt", 1), ("prompt_logprobs", 1)):
        assert worker.metric("incipit_prefix_miss_total", cause=cause) >= n, cause


def test_a_dry_run_changes_nothing(start):
    worker = start()
    complete(worker, TEXT)
    before = worker.metrics().count("\n"), worker.metric("vllm:prefix_cache_queries_total")
    for _ in range(3):
        assert dry(worker, prompt=TEXT)["cached_tokens"] == (len(TEXT) - 1) // 16 * 16
        assert dry(worker, prompt=TEXT[5:])["cause"] == "never_seen"
    assert (worker.metrics().count("\n"), worker.metric("vllm:prefix_cache_queries_total")) == before
    assert worker.metric("vllm:request_success_total", finished_reason="length") == 1


def test_chat_lists_and_streams(start):
    worker = start()
    messages = [{"role": "user", "content": TEXT}]
    answer = worker.post("/v1/chat/completions", {"messages": messages, "max_tokens": 2, "cache_explain": True})
    assert explained(answer)["cause"] == "never_seen"
    assert dry(worker, messages=messages)["cause"] == "none"
    several = dry(worker, prompt=[TEXT, "short", TEXT])
    assert [x["cause"] for x in several] == ["never_seen", "shorter_than_block", "never_seen"]
    x = explained(complete(worker, [TEXT + "a", TEXT + "b"]))
    assert [type(part) for part in x] == [dict, dict]


def test_request_without_a_salt_is_refused_by_default(start):
    worker = start(level=None)
    worker.post("/v1/completions", {"prompt": TEXT, "max_tokens": 1})
    messages = [{"role": "user", "content": TEXT}]
    for path, body in (("/v1/completions", {"prompt": TEXT[:40], "max_tokens": 1, "cache_explain": True}),
                       ("/v1/completions", {"prompt": [TEXT, TEXT[:40]], "max_tokens": 1, "cache_explain": True}),
                       ("/v1/completions", {"prompt": TEXT, "max_tokens": 1, "n": 2, "cache_explain": True, "cache_salt": None}),
                       ("/v1/completions", {"prompt": TEXT, "max_tokens": 1, "stream": True, "cache_explain": True}),
                       ("/v1/chat/completions", {"messages": messages, "max_tokens": 1, "cache_explain": True}),
                       ("/cache/explain", {"prompt": TEXT}), ("/cache/explain", {"messages": messages}),
                       ("/cache/explain", {"prompt": [TEXT, TEXT]})):
        answer = worker.post(path, body)
        assert answer.code == 400 and "--cache-explain position" in answer.json["error"]["message"], (path, body, answer.body)
    assert worker.metric("vllm:request_success_total", finished_reason="length") == 1


def test_a_request_with_a_salt_is_explained_by_the_cache_of_that_salt(start):
    worker = start(level=None)
    worker.post("/v1/completions", {"prompt": TEXT, "max_tokens": 1})
    worker.post("/v1/completions", {"prompt": TEXT, "max_tokens": 1, "cache_salt": "theirs"})
    for at in (100, 50):  # the second finds what the first has left, and no more
        edited = TEXT[:at] + "#" + TEXT[at + 1:]
        x = explained(complete(worker, edited, cache_salt="mine"))
        assert x["cause"] == ("never_seen" if at == 100 else "differs") and x["token"] == (0 if at == 100 else 50)
    assert dry(worker, prompt=TEXT, cache_salt="mine")["token"] == 100
    assert dry(worker, prompt=TEXT, cache_salt="theirs")["cause"] == "none"


def test_the_operator_chooses_what_is_explained(start):
    off, full = start(level="off"), start(level="full")
    refused = complete(off, TEXT)
    assert refused.code == 400 and "--cache-explain" in refused.json["error"]["message"]
    assert off.post("/cache/explain", {"prompt": TEXT}).code == 400
    complete(full, TEXT)
    x = dry(full, prompt=TEXT[:100] + "#" + TEXT[101:])
    assert x["cached_text"] == TEXT[100]


def test_samples_and_beams_are_explained_by_their_prompt(start):
    worker = start("--num-gpu-blocks-override", "300")
    beams = {"n": 2, "best_of": 4, "use_beam_search": True}
    for prompt, more in ((TEXT, {"n": 3}), (TEXT[1:], beams)):
        assert explained(complete(worker, prompt, **more))["cause"] == "never_seen"
        assert explained(complete(worker, prompt, **more))["cause"] == "none"


def test_other_tenants_prompts_are_not_revealed(start):
    worker = start("--trust-router", level=None)
    salt = {"x-incipit-salt": "ab" * 32}
    worker.post("/v1/completions", {"prompt": TEXT, "max_tokens": 1}, headers=salt)
    mine = {"x-incipit-salt": "cd" * 32}
    x = worker.post("/cache/explain", {"prompt": TEXT}, headers=mine).json["cache_explain"]
    assert x["cause"] == "never_seen" and "tokens_under_other_key" not in x
    near = TEXT[:5] + "#" + TEXT[6:]  # the answer is what it were if the others' prompt did not exist
    worker.post("/v1/completions", {"prompt": near, "max_tokens": 1}, headers=mine)
    x = worker.post("/cache/explain", {"prompt": TEXT}, headers=mine).json["cache_explain"]
    assert x["cause"] == "differs" and x["token"] == x["text_offset"] == 5
    x = worker.post("/cache/explain", {"prompt": TEXT}, headers=salt).json["cache_explain"]
    assert x["cause"] == "none"


def test_bad_bodies_are_refused_like_those_of_a_completion(start):
    worker = start()
    assert worker.post("/cache/explain", {}).code == 400
    assert worker.post("/cache/explain", {"prompt": []}).code == 400
    assert worker.post("/cache/explain", {"prompt": TEXT, "cache_salt": 5}).code == 400
    assert worker.post("/cache/explain", {"prompt": "x" * 5000}).code == 400
