"""Fields whose meaning clients know from vLLM and OpenAI: what is in the answer, and in which chunk."""
import json

import pytest

from conftest import http, in_front_of, Worker

HELLO = [{"role": "user", "content": "Hello"}]


def events_of(answer):
    lines = [line[6:] for line in answer.body.splitlines() if line.startswith("data: ")]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


def stream(api, path, body):
    answer = api.post(path, {**body, "stream": True})
    assert answer.code == 200, answer.body
    return events_of(answer)


# --- logprobs ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [0, 1, 3])
def test_the_sampled_token_is_among_the_alternatives_of_a_completion(demo_api, n):
    request = {"prompt": "The age of", "max_tokens": 12, "temperature": 3, "logprobs": n, "seed": 5}
    lp = demo_api.post("/v1/completions", request).json["choices"][0]["logprobs"]
    for token, logprob, top in zip(lp["tokens"], lp["token_logprobs"], lp["top_logprobs"]):
        assert top[token] == logprob and n <= len(top) <= n + 1
    assert any(len(top) == n + 1 for top in lp["top_logprobs"])  # at this temperature some are unlikely


def test_alternatives_of_the_same_text_are_one_key_with_the_likeliest(demo_api):
    request = {"prompt": list("ghé漢😀".encode()), "max_tokens": 0, "echo": True, "logprobs": 20}  # its tokens are bytes
    answer = demo_api.post("/v1/completions", request)
    assert answer.code == 200, answer.body
    ids = json.loads(demo_api.post("/v1/completions", {**request, "return_tokens_as_token_ids": True}).body)
    repeated = []

    def object_of(pairs):
        repeated.extend(key for i, (key, _) in enumerate(pairs) if key in dict(pairs[:i]))
        return dict(pairs)

    lp = json.loads(answer.body, object_pairs_hook=object_of)["choices"][0]["logprobs"]
    assert repeated == []
    named = ids["choices"][0]["logprobs"]["top_logprobs"]
    assert any(len(top) < len(all_of_it) for top, all_of_it in zip(lp["top_logprobs"][1:], named[1:]))
    assert [max(top.values()) for top in lp["top_logprobs"][1:]] == [max(top.values()) for top in named[1:]]


def test_the_sampled_token_is_among_the_alternatives_of_a_chat(demo_api):
    request = {"messages": HELLO, "max_tokens": 12, "temperature": 3, "logprobs": True, "top_logprobs": 2, "seed": 5}
    content = demo_api.post("/v1/chat/completions", request).json["choices"][0]["logprobs"]["content"]
    for entry in content:
        tops = entry["top_logprobs"]
        assert len(tops) == 2 and (entry["token"], entry["logprob"]) in [(t["token"], t["logprob"]) for t in tops]
        assert tops[0]["logprob"] >= tops[1]["logprob"]


def test_a_chat_that_asks_for_no_alternatives_gets_none(demo_api):
    request = {"messages": HELLO, "max_tokens": 3, "logprobs": True}
    content = demo_api.post("/v1/chat/completions", request).json["choices"][0]["logprobs"]["content"]
    assert [entry["top_logprobs"] for entry in content] == [[]] * 3


# --- prompts ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("side, kept", [(None, "cdef"), ("left", "cdef"), ("right", "abcd")])
def test_a_prompt_is_cut_on_the_side_that_was_asked_for(shared_api, side, kept):
    request = {"prompt": "abcdef", "truncate_prompt_tokens": 4, "max_tokens": 1, "echo": True}
    if side:
        request["truncation_side"] = side
    answer = shared_api.post("/v1/completions", request).json
    assert answer["usage"]["prompt_tokens"] == 4 and answer["choices"][0]["text"][:4] == kept


def test_an_unknown_side_is_named(shared_api):
    answer = shared_api.post("/v1/completions", {"prompt": "a", "truncation_side": "middle"})
    assert answer.code == 400 and answer.json["error"]["param"] == "truncation_side" and "middle" in answer.body


def test_the_prompt_s_token_ids_are_returned_with_the_answer_s(shared_api):
    ids = shared_api.post("/tokenize", {"prompt": "Hello"}).json["tokens"]
    request = {"prompt": "Hello", "max_tokens": 3, "return_token_ids": True, "temperature": 0}
    choice = shared_api.post("/v1/completions", request).json["choices"][0]
    assert choice["prompt_token_ids"] == ids and len(choice["token_ids"]) == 3
    chunks = [e["choices"][0] for e in stream(shared_api, "/v1/completions", request)]
    assert chunks[0]["prompt_token_ids"] == ids
    assert not any(c.get("prompt_token_ids") for c in chunks[1:])
    assert [t for c in chunks for t in c["token_ids"]] == choice["token_ids"]


def test_a_chat_returns_the_prompt_s_token_ids_once(shared_api):
    request = {"messages": HELLO, "max_tokens": 3, "return_token_ids": True, "temperature": 0}
    whole = shared_api.post("/v1/chat/completions", request).json
    assert len(whole["prompt_token_ids"]) == whole["usage"]["prompt_tokens"]
    first, *rest = stream(shared_api, "/v1/chat/completions", request)
    assert first["prompt_token_ids"] == whole["prompt_token_ids"]
    assert not any("prompt_token_ids" in e for e in rest)


# --- names ------------------------------------------------------------------------------------------------


def test_a_request_s_name_is_in_the_answer_and_its_head(sim):
    answer = sim.post("/v1/completions", {"prompt": "a", "max_tokens": 1}, headers={"x-request-id": "order-66"})
    assert answer.json["id"] == "cmpl-order-66" and answer.headers["x-request-id"] == "order-66"
    refused = sim.post("/v1/completions", {"prompt": "a", "max_tokens": -1}, headers={"x-request-id": "order-67"})
    assert refused.code == 400 and refused.headers["x-request-id"] == "order-67"
    named = sim.post("/v1/completions", {"prompt": "a", "max_tokens": 1, "request_id": "mine"},
                     headers={"x-request-id": "order-68"})
    assert named.json["id"] == "cmpl-mine"


def test_a_name_that_is_no_name_is_ignored(sim):
    answer = sim.post("/v1/completions", {"prompt": "a", "max_tokens": 1}, headers={"x-request-id": "a" * 129})
    assert "a" * 129 not in answer.body and "x-request-id" not in answer.headers


def test_a_request_has_one_name_behind_a_router(sim, programs):
    api = in_front_of(sim, programs, "router")
    answer = api.post("/v1/completions", {"prompt": "a", "max_tokens": 1}, headers={"x-request-id": "order-66"})
    assert answer.json["id"] == "cmpl-order-66"
    assert [v for k, v in answer.headers.items() if k.lower() == "x-request-id"] == ["order-66"]


# --- streams ----------------------------------------------------------------------------------------------


def test_the_first_chunk_of_a_chat_is_the_role_alone(shared_api):
    events = stream(shared_api, "/v1/chat/completions", {"messages": HELLO, "max_tokens": 3, "n": 2})
    opening, rest = [e["choices"][0] for e in events[:2]], [e["choices"][0] for e in events[2:]]
    assert [c["index"] for c in opening] == [0, 1]
    assert all(c["delta"] == {"role": "assistant", "content": ""} and c["finish_reason"] is None for c in opening)
    assert not any("role" in c["delta"] for c in rest)


@pytest.mark.parametrize("options, n_with", [
    ({"include_usage": False, "continuous_usage_stats": True}, "none"),
    ({"include_usage": True, "continuous_usage_stats": True}, "all"),
    ({"include_usage": True}, "last"),
])
def test_usage_comes_when_it_was_asked_for(shared_api, options, n_with):
    events = stream(shared_api, "/v1/chat/completions", {"messages": HELLO, "max_tokens": 3, "stream_options": options})
    has = [bool(e.get("usage")) for e in events]
    assert {"none": not any(has), "all": all(has), "last": has[-1] and not any(has[:-1])}[n_with]


# --- chats ------------------------------------------------------------------------------------------------


def test_an_echo_continues_the_assistant_s_message(demo_api):
    request = {"messages": [*HELLO, {"role": "assistant", "content": "The age"}], "max_tokens": 3, "temperature": 0,
               "add_generation_prompt": False, "continue_final_message": True}
    plain = demo_api.post("/v1/chat/completions", request).json["choices"][0]["message"]
    echoed = demo_api.post("/v1/chat/completions", {**request, "echo": True}).json["choices"][0]["message"]
    assert echoed == {**plain, "content": "The age" + plain["content"]}
    events = stream(demo_api, "/v1/chat/completions", {**request, "echo": True})
    assert "".join(e["choices"][0]["delta"].get("content", "") for e in events) == echoed["content"]


def test_an_echo_of_another_message_changes_nothing(shared_api):
    request = {"messages": HELLO, "max_tokens": 3, "temperature": 0}
    plain = shared_api.post("/v1/chat/completions", request).json["choices"][0]["message"]
    assert shared_api.post("/v1/chat/completions", {**request, "echo": True}).json["choices"][0]["message"] == plain


@pytest.mark.parametrize("field, value", [
    ("tool_choice", "auto"), ("tool_choice", "required"), ("audio", {"voice": "alloy"}), ("function_call", {"name": "f"}),
    ("kv_transfer_params", {"do_remote_decode": True}), ("lora_request", {"lora_name": "a"}),
])
def test_fields_that_would_change_the_answer_are_refused(shared_api, field, value):
    answer = shared_api.worker.post("/v1/chat/completions", {"messages": HELLO, "max_tokens": 1, field: value})
    assert answer.code == 400 and answer.json["error"]["param"] == field, answer.body


@pytest.mark.parametrize("field, value", [
    ("tool_choice", "none"), ("tool_choice", None), ("audio", None), ("function_call", "auto"), ("kv_transfer_params", None),
])
def test_fields_without_effect_are_accepted(shared_api, field, value):
    assert shared_api.post("/v1/chat/completions", {"messages": HELLO, "max_tokens": 1, field: value}).code == 200


# --- stops and biases ---------------------------------------------------------------------------------------


def test_a_stop_string_that_straddles_min_tokens_is_found(sim):
    whole = sim.post("/v1/completions", {"prompt": "Stop", "max_tokens": 24, "temperature": 0}).json["choices"][0]["text"]
    stop = whole[7:10]
    first = whole.find(stop)
    answer = sim.post("/v1/completions", {"prompt": "Stop", "max_tokens": 24, "temperature": 0, "stop": [stop],
                                          "min_tokens": first + 2}).json["choices"][0]
    assert answer["text"] == whole[:first] and answer["stop_reason"] == stop


def test_hits_are_counted_once_for_the_samples_of_a_prompt(programs):
    worker = programs(Worker, "--backend", "sim", "--sim-speed", 20).ready()
    prompt = "What all samples share. " * 20
    usages = [worker.post("/v1/completions", {"prompt": prompt, "max_tokens": 2, "n": n}).json["usage"] for n in (1, 4, 1)]
    asked = sum(u["prompt_tokens"] for u in usages)
    found = sum(u["prompt_tokens_details"]["cached_tokens"] for u in usages)
    assert found > 0
    assert worker.metric("vllm:prefix_cache_queries_total") == asked
    assert worker.metric("vllm:prefix_cache_hits_total") == found


def test_a_bias_comes_before_the_penalties(demo_api):
    """A token of the prompt, biased to a logit far above zero, is divided by the repetition penalty: 100 / 1e4 loses
    to any other token with a logit above it; added after the penalty it would win."""
    ids = http(demo_api.url + "/tokenize", {"prompt": "age"}).json["tokens"]
    request = {"prompt": "age", "max_tokens": 1, "temperature": 0, "return_token_ids": True,
               "logit_bias": {str(ids[0]): 100}}
    plain = demo_api.post("/v1/completions", request).json["choices"][0]["token_ids"]
    penalised = demo_api.post("/v1/completions", {**request, "repetition_penalty": 100}).json["choices"][0]["token_ids"]
    assert plain == [ids[0]] and penalised != [ids[0]]
