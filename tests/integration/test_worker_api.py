"""The API as clients see it: shapes, fields, errors; straight at a worker and, where nothing of the worker's own is
asked, through a router as well (fixtures *api). On the simulated backend: text is nonsense, the rest is not."""
import http.client as http_client
import json
import signal
import socket
import threading

import pytest

from conftest import PATIENCE_S, Worker, both_ways, events, in_front_of, metric, wait_for

PROMPT = "The quick brown fox jumps over the lazy dog. " * 4


def test_a_completion_has_the_shape_that_clients_expect(api):
    answer = api.post("/v1/completions", {"prompt": PROMPT, "max_tokens": 5, "model": "synthetic"})
    body = answer.json
    assert answer.code == 200 and body["object"] == "text_completion" and body["id"].startswith("cmpl-")
    assert body["choices"][0]["finish_reason"] == "length" and body["choices"][0]["logprobs"] is None
    usage = body["usage"]
    assert usage["completion_tokens"] == 5 and usage["total_tokens"] == usage["prompt_tokens"] + 5
    assert usage["prompt_tokens_details"] == {"cached_tokens": 0}
    assert answer.headers["x-incipit-cached-tokens"] == "0"
    assert int(answer.headers["x-incipit-prompt-tokens"]) == usage["prompt_tokens"]
    assert "kv_total=" in answer.headers["x-incipit-load"]


def test_the_same_prompt_again_is_cached_except_its_last_block(api):
    first = api.post("/v1/completions", {"prompt": PROMPT, "max_tokens": 1}).json["usage"]
    again = api.post("/v1/completions", {"prompt": PROMPT, "max_tokens": 1}).json["usage"]
    n = first["prompt_tokens"]
    assert again["prompt_tokens_details"]["cached_tokens"] == (n - 1) // 16 * 16 > 0


def test_a_salt_keeps_caches_apart(api):
    ask = lambda **salt: api.post("/v1/completions", {"prompt": PROMPT, "max_tokens": 1, **salt}).json[
        "usage"]["prompt_tokens_details"]["cached_tokens"]
    assert ask() == 0 and ask(cache_salt="a") == 0 and ask(cache_salt="b") == 0
    assert ask() > 0 and ask(cache_salt="a") > 0


def test_a_stream_is_events_that_join_to_the_whole(api):
    request = {"prompt": PROMPT, "max_tokens": 12, "temperature": 0}
    whole = api.post("/v1/completions", request).json["choices"][0]["text"]
    seen = list(events(api.url + "/v1/completions",
                       {**request, "stream": True, "stream_options": {"include_usage": True}}))
    assert seen[-1] == "[DONE]" and seen[-2]["choices"] == []
    assert seen[-2]["usage"]["completion_tokens"] == 12
    assert "".join(e["choices"][0]["text"] for e in seen[:-2]) == whole
    assert seen[-3]["choices"][0]["finish_reason"] == "length"


def test_chat_streams_role_then_content_then_reason(api):
    request = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 6, "stream": True}
    seen = list(events(api.url + "/v1/chat/completions", request))
    deltas = [e["choices"][0]["delta"] for e in seen[:-1]]
    assert deltas[0]["role"] == "assistant" and all("role" not in d for d in deltas[1:])
    assert seen[-2]["choices"][0]["finish_reason"] == "length" and seen[0]["object"] == "chat.completion.chunk"
    assert len("".join(d.get("content", "") for d in deltas)) > 0


def test_chat_content_may_come_in_parts(api):
    ask = lambda content: api.post("/v1/chat/completions", {
        "messages": [{"role": "user", "content": content}], "max_tokens": 2}).json["usage"]["prompt_tokens"]
    parts = [{"type": "text", "text": "Hello "}, {"type": "text", "text": "there"}]
    assert ask(parts) == ask("Hello \nthere")  # joined by line breaks, as elsewhere


def test_generate_answers_as_sglang(api):
    body = api.post("/generate", {"text": "Hello", "sampling_params": {"max_new_tokens": 4}}).json
    assert len(body["output_ids"]) == 4 and body["meta_info"]["finish_reason"] == {"type": "length", "length": 4}
    several = api.post("/generate", {"text": ["a", "b"], "sampling_params": {"max_new_tokens": 2}}).json
    assert [len(a["output_ids"]) for a in several] == [2, 2]
    stream = list(events(api.url + "/generate", {"text": "x", "stream": True,
                                                 "sampling_params": {"max_new_tokens": 3}}))
    texts = [e["text"] for e in stream[:-1]]
    assert stream[-1] == "[DONE]" and all(b.startswith(a) for a, b in zip(texts, texts[1:]))
    assert api.post("/generate", {"text": "Hello"}).json["meta_info"]["completion_tokens"] == 128


def test_samples_and_prompts_are_numbered_prompt_first(api):
    body = api.post("/v1/completions", {"prompt": ["one", "two"], "n": 2, "max_tokens": 3, "seed": 7}).json
    assert [c["index"] for c in body["choices"]] == [0, 1, 2, 3]
    assert body["usage"]["completion_tokens"] == 12


def test_token_ids_are_a_prompt_too(api):
    ids = api.post("/tokenize", {"prompt": "Hello"}).json
    assert ids["count"] == len(ids["tokens"]) == 5
    assert api.post("/detokenize", {"tokens": ids["tokens"]}).json["prompt"] == "Hello"
    by_ids = api.post("/v1/completions", {"prompt": ids["tokens"], "max_tokens": 4, "temperature": 0}).json
    by_text = api.post("/v1/completions", {"prompt": "Hello", "max_tokens": 4, "temperature": 0}).json
    assert by_ids["choices"][0]["text"] == by_text["choices"][0]["text"]


def test_logprobs_have_one_entry_per_token(demo_api):
    request = {"prompt": "Question:", "max_tokens": 5, "temperature": 0}
    lp = demo_api.post("/v1/completions", {**request, "logprobs": 3, "echo": True}).json["choices"][0]["logprobs"]
    assert len(lp["tokens"]) == len(lp["token_logprobs"]) == len(lp["top_logprobs"]) == len(lp["text_offset"])
    assert lp["token_logprobs"][0] is None and all(p <= 0 for p in lp["token_logprobs"][1:])
    chat = demo_api.post("/v1/chat/completions", {
        "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4, "logprobs": True, "top_logprobs": 2,
        "temperature": 0}).json["choices"][0]["logprobs"]["content"]
    assert all(len(t["top_logprobs"]) == 2 and t["logprob"] <= 0 for t in chat)
    assert all(t["top_logprobs"][0]["token"] == t["token"] for t in chat)


def test_the_same_seed_gives_the_same_answer(demo_api):
    ask = lambda seed: demo_api.post("/v1/completions", {
        "prompt": "Once", "max_tokens": 12, "temperature": 1.5, "seed": seed}).json["choices"][0]["text"]
    assert ask(3) == ask(3) and len({ask(seed) for seed in range(6)}) > 1


def test_a_stop_string_ends_the_text_before_it(api):
    request = {"prompt": PROMPT, "max_tokens": 60, "temperature": 0}
    text = api.post("/v1/completions", request).json["choices"][0]["text"]
    stop = text[20:23]
    cut = api.post("/v1/completions", {**request, "stop": stop}).json["choices"][0]
    assert cut["text"] == text[:text.index(stop)] and cut["finish_reason"] == "stop" and cut["stop_reason"] == stop
    kept = api.post("/v1/completions", {**request, "stop": [stop], "include_stop_str_in_output": True}).json
    assert kept["choices"][0]["text"] == text[:text.index(stop)] + stop


@pytest.mark.parametrize("path, body, code, param, words", [
    ("/v1/completions", b"", 400, None, "empty"),
    ("/v1/completions", b"{", 400, None, "expected a key"),
    ("/v1/completions", b'{"prompt":"a","prompt":"b"}', 400, "prompt", "twice"),
    ("/v1/completions", b'{"prompt":"\xff"}', 400, None, "UTF-8"),
    ("/v1/completions", b"[1]", 400, None, "object"),
    ("/v1/completions", {}, 400, "prompt", "required"),
    ("/v1/completions", {"prompt": 5}, 400, "prompt", "string"),
    ("/v1/completions", {"prompt": [1, "a"]}, 400, "prompt", "token ids"),
    ("/v1/completions", {"prompt": "a", "model": "other"}, 404, "model", "does not exist"),
    ("/v1/completions", {"prompt": "a", "temperature": -1}, 400, "temperature", "temperature"),
    ("/v1/completions", {"prompt": "a", "temperature": "hot"}, 400, "temperature", "number"),
    ("/v1/completions", {"prompt": "a", "top_p": 0}, 400, "top_p", "top_p"),
    ("/v1/completions", {"prompt": "a", "max_tokens": 0}, 400, "max_tokens", "max_tokens"),
    ("/v1/completions", {"prompt": "a", "max_tokens": 10**7}, 400, "max_tokens", "this model's maximum context length is"),
    ("/v1/completions", {"prompt": "a", "n": 1000}, 400, "n", "128"),
    ("/v1/completions", {"prompt": "a", "stop": ["a", 1]}, 400, "stop", "stop"),
    ("/v1/completions", {"prompt": "a", "cache_salt": ""}, 400, "cache_salt", "non-empty"),
    ("/v1/completions", {"prompt": "a", "logprobs": 99}, 400, "logprobs", "20"),
    ("/v1/completions", {"prompt": "a", "stream_options": {"include_usage": True}}, 400, "stream_options", "stream"),
    ("/v1/completions", {"prompt": "a", "logit_bias": {"x": 1}}, 400, "logit_bias", "token id"),
    ("/v1/completions", {"prompt": "a", "suffix": "b"}, 400, "suffix", "not supported"),
    ("/v1/chat/completions", {"messages": []}, 400, "messages", "at least one"),
    ("/v1/chat/completions", {"messages": ["x"]}, 400, "messages", "role"),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}],
                              "response_format": {"type": "xml"}}, 400, "response_format", "unsupported"),
    ("/v1/completions", {"prompt": ""}, 400, "prompt", "no tokens"),
    ("/v1/completions", {"prompt": []}, 400, "prompt", "required"),
    ("/v1/completions", {"prompt": ["a", ""]}, 400, "prompt", "no tokens"),
    ("/v1/completions", {"prompt": [[1], []]}, 400, "prompt", "no tokens"),
    ("/v1/completions", {"prompt": [512]}, 400, "prompt", "below 512"),
    ("/v1/completions", {"prompt": ["a"] * 257}, 400, "prompt", "256"),
    ("/v1/completions", {"prompt": ["a"] * 250, "n": 100}, 400, "n", "25000"),
    ("/v1/completions", {"prompt": "a", "prompt_logprobs": 1, "stream": True}, 400, "prompt_logprobs", "stream"),
    ("/v1/completions", {"prompt": "a", "prompt_logprobs": -1}, 400, "prompt_logprobs", "at most 20"),
    ("/v1/completions", {"prompt": "a", "allowed_token_ids": []}, 400, "allowed_token_ids", "leave it out"),
    ("/v1/completions", {"prompt": "a", "bad_words": [""]}, 400, "bad_words", "strings"),
    ("/v1/completions", {"prompt": "a", "prompt_embeds": "QQ=="}, 400, "prompt_embeds", "not supported"),
    ("/v1/completions", {"prompt": "a", "logprobs": -2}, 400, "logprobs", "0 to 20"),
    ("/v1/completions", {"prompt": "a", "logprobs": "many"}, 400, "logprobs", "integer"),
    ("/v1/completions", {"prompt": "a", "cache_salt": 7}, 400, "cache_salt", "string"),
    ("/v1/completions", {"prompt": "a", "response_format": {"type": "json_schema"}}, 400, "response_format", "json_schema"),
    ("/v1/completions", {"prompt": "a", "guided_json": {"a": 1}, "guided_regex": "x"}, 400, "guided_regex", "both"),
    ("/v1/completions", {"prompt": "a", "n": 4, "best_of": 3}, 400, "best_of", "below n"),
    ("/v1/completions", {"prompt": "a", "best_of": 3, "stream": True}, 400, "best_of", "streamed"),
    ("/v1/completions", {"prompt": "a", "use_beam_search": True, "stream": True}, 400, "stream", "beam search"),
    ("/v1/completions", {"prompt": "a", "use_beam_search": True, "stop": "x"}, 400, "stop", "stop_token_ids"),
    ("/v1/completions", {"prompt": "a", "use_beam_search": True, "top_p": 0.5}, 400, "top_p", "beam search"),
    ("/v1/completions", {"prompt": "a", "use_beam_search": True, "early_stopping": 3}, 400, "early_stopping", "never"),
    ("/v1/completions", {"prompt": "a", "use_beam_search": True, "presence_penalty": 1}, 400, "presence_penalty",
     "logprobs"),
    ("/v1/chat/completions", {}, 400, "messages", "required"),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}], "logprobs": 3}, 400, "logprobs", "true"),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}], "top_logprobs": 3},
     400, "top_logprobs", "logprobs"),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}], "tool_choice": "required"},
     400, "tool_choice", "tools"),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}], "tool_choice": "required",
                              "tools": [{"type": "function", "function": {"name": "f"}}]}, 400, "tool_choice", "auto"),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}], "continue_final_message": True,
                              "add_generation_prompt": True}, 400, "continue_final_message", "both"),
    ("/tokenize", {}, 400, "prompt", "messages"),
    ("/tokenize", {"prompt": 5}, 400, "prompt", "string"),
    ("/detokenize", {}, 400, "tokens", "required"),
    ("/detokenize", {"tokens": [512]}, 400, "tokens", "below 512"),
    ("/generate", {"text": ["a", 5]}, 400, "text", "text[1]"),
    ("/generate", {"input_ids": [[1], 2]}, 400, "input_ids", "input_ids[1]"),
    ("/generate", {"text": "a", "sampling_params": []}, 400, "sampling_params", "object"),
    ("/generate", {}, 400, "text", "required"),
    ("/generate", {"text": "a", "input_ids": [1]}, 400, "text", "either"),
    ("/v1/nothing", {}, 404, None, "/v1/nothing"),
])
def test_a_wrong_request_is_refused_with_the_remedy(shared_api, path, body, code, param, words):
    answer = shared_api.post(path, body)
    error = answer.json["error"]
    assert answer.code == code == error["code"] and error["param"] == param, answer.body
    assert words.lower() in error["message"].lower()


def test_a_wrong_method_names_the_right_one(api):
    answer = api.get("/v1/completions")
    assert answer.code == 405 and "POST" in answer.headers["allow"]


def test_head_gets_the_head_and_options_the_methods(api):
    assert api.get("/health", method="HEAD").code == 200
    head = api.get("/v1/models", method="HEAD")
    assert head.code == 200 and head.body == "" and int(head.headers["content-length"]) > 0
    assert api.get("/v1/nothing", method="HEAD").code == 404
    assert api.get("/v1/completions", method="OPTIONS").headers["allow"] == "POST"


def test_a_body_beyond_the_limit_is_refused_at_once(programs):
    worker = programs(Worker, "--backend", "sim", "--max-body-bytes", "2KiB").ready()
    answer = worker.post("/v1/completions", {"prompt": "a" * 3000})
    assert answer.code == 413 and "limit of 2048" in answer.json["error"]["message"]
    assert worker.post("/v1/completions", {"prompt": "a" * 1000, "max_tokens": 1}).code == 200


def test_max_tokens_has_a_default_of_its_own_in_each_call(api):
    n_prompt = api.post("/tokenize", {"messages": [{"role": "user", "content": "Hi"}]}).json["count"]
    assert api.post("/v1/completions", {"prompt": "a", "max_tokens": None}).json["usage"]["completion_tokens"] == 16
    limit = api.worker.get("/server_info").json["max_model_len"]
    chat = {"messages": [{"role": "user", "content": "Hi"}], "stream": True, "ignore_eos": True}
    for event in events(api.url + "/v1/chat/completions", {**chat, "max_tokens": limit - n_prompt}):
        break # it was accepted
    error = api.post("/v1/chat/completions", {**chat, "stream": False, "max_tokens": limit - n_prompt + 1}).json["error"]
    assert error["param"] == "max_tokens" and str(limit) in error["message"] and str(n_prompt) in error["message"]


@both_ways
def test_chat_without_max_tokens_takes_all_that_is_left(programs, way):
    worker = programs(Worker, "--backend", "sim", "--sim-speed", 50, "--max-model-len", 80).ready()
    api = in_front_of(worker, programs, way)
    usage = api.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hi"}],
                                                 "ignore_eos": True}).json["usage"]
    assert usage["total_tokens"] == 80
    # SGLang's 128 are a wish as well, unless they were asked for.
    assert api.post("/generate", {"text": "a" * 60, "sampling_params": {"ignore_eos": True}}).json[
        "meta_info"]["completion_tokens"] == 20
    assert api.post("/generate", {"text": "a" * 60, "sampling_params": {"max_new_tokens": 128}}).code == 400


def test_nothing_follows_an_echo_of_no_tokens(api):
    body = api.post("/v1/completions", {"prompt": "Hello", "max_tokens": 0, "echo": True, "logprobs": 0}).json
    choice = body["choices"][0]
    assert choice["text"] == "Hello" and choice["finish_reason"] == "length"
    assert "".join(choice["logprobs"]["tokens"]) == "Hello" and choice["logprobs"]["token_logprobs"][0] is None
    assert body["usage"]["completion_tokens"] == 0
    stream = list(events(api.url + "/v1/completions", {"prompt": "Hello", "max_tokens": 0, "echo": True, "stream": True}))
    assert [e["choices"][0]["text"] for e in stream[:-1]] == ["Hello"]


@pytest.mark.parametrize("echo", [False, True])
def test_logprobs_of_a_stream_are_those_of_the_whole(api, echo):
    """Also where text is held back, because a stop string might begin there."""
    request = {"prompt": "Größe: ", "max_tokens": 40, "temperature": 0, "logprobs": 1, "echo": echo}
    text = api.post("/v1/completions", request).json["choices"][0]["text"]
    request["stop"] = [text[-12:-6] + "\x01", "never"]
    whole = api.post("/v1/completions", request).json["choices"][0]
    stream = list(events(api.url + "/v1/completions", {**request, "stream": True}))[:-1]
    for column in ("tokens", "token_logprobs", "text_offset", "top_logprobs"):
        joined = [x for e in stream for x in e["choices"][0]["logprobs"][column]]
        assert joined == whole["logprobs"][column], column
    assert "".join(e["choices"][0]["text"] for e in stream) == whole["text"]
    tokens, offsets = whole["logprobs"]["tokens"], whole["logprobs"]["text_offset"]
    assert len(tokens) == 40 + (len("Größe: ".encode()) if echo else 0)
    for token, offset in zip(tokens, offsets):
        if token.isascii():
            assert whole["text"][offset:offset + len(token)] == token


def test_a_stop_string_is_not_looked_for_before_min_tokens(api):
    request = {"prompt": PROMPT, "max_tokens": 60, "temperature": 0}
    text = api.post("/v1/completions", request).json["choices"][0]["text"]
    answer = api.post("/v1/completions", {**request, "stop": text[0], "min_tokens": 5}).json["choices"][0]
    assert answer["text"].startswith(text[:5]) and text[0] not in answer["text"][5:]
    none = api.post("/v1/completions", {**request, "stop": text[0], "min_tokens": 60}).json["choices"][0]
    assert none["text"] == text and none["finish_reason"] == "length" and none["stop_reason"] is None


def test_a_stop_id_ends_and_is_hidden_unless_requested(api):
    request = {"prompt": PROMPT, "max_tokens": 30, "temperature": 0, "return_token_ids": True}
    whole = api.post("/v1/completions", request).json["choices"][0]
    stop = whole["token_ids"][6]
    at = whole["token_ids"].index(stop)
    cut = api.post("/v1/completions", {**request, "stop_token_ids": [stop]}).json
    choice = cut["choices"][0]
    assert choice["finish_reason"] == "stop" and choice["stop_reason"] == stop
    assert choice["text"] == whole["text"][:at] and cut["usage"]["completion_tokens"] == at + 1
    kept = api.post("/v1/completions", {**request, "stop_token_ids": [stop], "include_stop_str_in_output": True}).json
    assert kept["choices"][0]["text"] == whole["text"][:at + 1]


def test_each_sample_stops_for_itself_and_counts_as_stopped(api):
    request = {"prompt": "Say something", "max_tokens": 50, "n": 4, "seed": 5, "temperature": 1, "ignore_eos": True}
    texts = [c["text"] for c in api.post("/v1/completions", request).json["choices"]]
    stop = texts[2][10:12]
    choices = api.post("/v1/completions", {**request, "stop": stop}).json["choices"]
    for text, choice in zip(texts, choices):
        has_stop = stop in text
        assert choice["text"] == (text[:text.index(stop)] if has_stop else text)
        assert choice["finish_reason"] == ("stop" if has_stop else "length")
    wait_for(lambda: api.metric("vllm:num_requests_running") == 0, "the samples to leave the engine")
    assert api.metric("vllm:request_success_total", finished_reason="stop") == sum(stop in t for t in texts)
    assert api.metric("vllm:request_success_total", finished_reason="abort") == 0


def test_samples_differ_and_a_seed_repeats_them(api):
    ask = lambda **more: [c["text"] for c in api.post("/v1/completions", {
        "prompt": "Once", "max_tokens": 20, "temperature": 1, "n": 3, **more}).json["choices"]]
    assert len(set(ask(seed=3))) == 3 and ask(seed=3) == ask(seed=3) != ask(seed=4)
    # In a list of equal prompts a seed gives each the same answer, no seed gives each its own.
    seeded = ask(prompt=["Once", "Once"], n=1, seed=3)
    assert seeded[0] == seeded[1] == ask(seed=3)[0]
    assert len(set(ask(prompt=["Once", "Once"], n=2))) == 4


def test_usage_comes_with_every_chunk_when_asked(api):
    for path, prompt in (("/v1/completions", {"prompt": "a"}),
                         ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}]})):
        request = {**prompt, "max_tokens": 4, "stream": True, "ignore_eos": True}
        plain = list(events(api.url + path, {**request, "stream_options": {"include_usage": True}}))
        assert all(e["usage"] is None for e in plain[:-2]) and plain[-2]["usage"]["completion_tokens"] == 4
        stats = list(events(api.url + path, {**request, "stream_options": {"include_usage": True,
                                                                           "continuous_usage_stats": True}}))
        counts = [e["usage"]["completion_tokens"] for e in stats[:-1]]
        assert counts == sorted(counts) and counts[-1] == 4 and counts[0] >= 1
        assert all("usage" not in e for e in list(events(api.url + path, request))[:-1])


@both_ways
def test_the_head_comes_with_the_first_token(programs, way):
    """Of a worker's JSON answer too, long before its body. A router holds that one: it can still ask another worker."""
    worker = programs(Worker, "--backend", "sim", "--sim-speed", 0.5).ready()
    api = in_front_of(worker, programs, way)
    host, port = api.url[len("http://"):].split(":")
    for stream in (False, True) if way == "worker" else (True,):
        body = json.dumps({"prompt": PROMPT, "max_tokens": 20000, "stream": stream, "ignore_eos": True}).encode()
        with socket.create_connection((host, int(port))) as s:
            s.sendall(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
            s.settimeout(PATIENCE_S)
            head = b""
            while b"\r\n\r\n" not in head:
                head += s.recv(4096)
            assert b"x-incipit-cached-tokens: " in head and b"x-incipit-load: running=1 " in head
            assert b"x-incipit-prompt-tokens: %d\r\n" % len(PROMPT) in head
            assert (b"\r\n\r\n" in head and head.endswith(b"\r\n\r\n")) or stream
        wait_for(lambda: worker.metric("vllm:num_requests_running") == 0, "the abort")


def test_sglangs_lists_ids_and_streams(api):
    params = {"max_new_tokens": 3, "temperature": 0, "ignore_eos": True}
    ids = api.post("/tokenize", {"prompt": "Hello"}).json["tokens"]
    by_text = api.post("/generate", {"text": "Hello", "sampling_params": params, "rid": "my-id"}).json
    assert by_text["meta_info"]["id"] == "my-id" and by_text["meta_info"]["prompt_tokens"] == 5
    assert api.post("/generate", {"input_ids": ids, "sampling_params": params}).json["output_ids"] == by_text["output_ids"]
    both = api.post("/generate", {"input_ids": [ids, ids], "sampling_params": params}).json
    assert [a["output_ids"] for a in both] == [by_text["output_ids"]] * 2
    one = api.post("/generate", {"text": ["Hello"], "sampling_params": params}).json
    assert isinstance(one, list) and len(one) == 1
    lp = api.post("/generate", {"text": "Hello", "sampling_params": params, "return_logprob": True,
                                "top_logprobs_num": 2}).json["meta_info"]
    assert [t[1] for t in lp["output_token_logprobs"]] == by_text["output_ids"]
    assert [len(t) for t in lp["output_top_logprobs"]] == [2, 2, 2]
    stream = list(events(api.url + "/generate", {"text": "Hello", "stream": True, "sampling_params": params}))
    assert stream[-2]["output_ids"] == by_text["output_ids"] and stream[-2]["text"] == by_text["text"]
    assert stream[-2]["meta_info"]["finish_reason"] == {"type": "length", "length": 3}
    assert all(e["meta_info"]["finish_reason"] is None for e in stream[:-2])
    stop = by_text["text"][1]
    cut = api.post("/generate", {"text": "Hello", "sampling_params": {**params, "stop": stop}}).json
    assert cut["meta_info"]["finish_reason"] == {"type": "stop", "matched": stop}


def test_a_long_text_is_tokenized_off_the_loop(api):
    text = "Grüße " * 20000
    tokens = api.post("/tokenize", {"prompt": text, "return_token_strs": True}).json
    assert tokens["count"] == len(text.encode()) == len(tokens["token_strs"])
    assert api.post("/detokenize", {"tokens": tokens["tokens"]}).json["prompt"] == text


def test_too_many_waiting_requests_get_retry_after(programs):
    worker = programs(Worker, "--backend", "sim", "--sim-speed", 0.5, "--max-waiting", 2, "--max-num-seqs", 1).ready()
    slow = {"prompt": PROMPT, "max_tokens": 20000, "stream": True, "ignore_eos": True}
    threads = [threading.Thread(target=worker.post, args=("/v1/completions", slow)) for _ in range(3)]
    for n_waiting, thread in enumerate(threads):
        thread.start()
        wait_for(lambda n=n_waiting: worker.metric("vllm:num_requests_waiting") == n and
                 worker.metric("vllm:num_requests_running") == 1, f"{n_waiting} to wait")
    answer = worker.post("/v1/completions", slow)
    assert answer.code == 429 and answer.headers["retry-after"] == "1"
    assert "limit is 2" in answer.json["error"]["message"]
    worker.process.send_signal(signal.SIGTERM)
    wait_for(lambda: "worker_draining" in worker.log, "the first signal")
    assert worker.stop() == 0
    for thread in threads:
        thread.join(PATIENCE_S)


@both_ways
@pytest.mark.parametrize("when", ["tokenizing", "waiting", "running", "answered"])
def test_a_client_may_leave_at_any_time(programs, when, way):
    args = ["--max-num-seqs", 1] if when == "waiting" else []
    worker = programs(Worker, "--backend", "sim", "--sim-speed", 1, *args).ready()
    api = in_front_of(worker, programs, way, "--max-worker-requests", 1000)
    host, port = api.url[len("http://"):].split(":")
    long = "word " * 400000 if when == "tokenizing" else PROMPT
    body = json.dumps({"prompt": long, "max_tokens": 1 if when == "answered" else 10000, "n": 2}).encode()
    clients = []
    for _ in range(3):
        s = socket.create_connection((host, int(port)))
        s.sendall(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
        clients.append(s)
    if when == "waiting":
        wait_for(lambda: worker.metric("vllm:num_requests_waiting") == 5, "five to wait")
    if when == "running":
        wait_for(lambda: worker.metric("vllm:num_requests_running") == 6, "six to run")
    for s in clients:
        s.close()
    wait_for(lambda: worker.metric("vllm:num_requests_running") + worker.metric("vllm:num_requests_waiting") == 0,
             "the engine to be idle")
    assert worker.metric("vllm:kv_cache_usage_perc") == 0
    assert worker.metric("incipit_kv_waste_ratio") == 0  # no block in use
    assert api.post("/v1/completions", {"prompt": "a", "max_tokens": 1}).code == 200
    assert worker.stop() == 0


def test_nothing_is_lost_when_it_is_stopped_at_once(programs):
    """Calls in every state: none hangs, and a sanitizer finds nothing that was forgotten."""
    worker = programs(Worker, "--backend", "sim", "--sim-speed", 1, "--max-num-seqs", 2).ready()
    host, port = worker.url[len("http://"):].split(":")
    gone = json.dumps({"prompt": PROMPT, "max_tokens": 10000}).encode()
    for _ in range(3):
        with socket.create_connection((host, int(port))) as s:
            s.sendall(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(gone) + gone)
    requests = [("/v1/completions", {"prompt": PROMPT, "max_tokens": 10000, "ignore_eos": True, **more})
                for more in ({}, {"n": 2}, {"stream": True}, {"stream": True, "stop": "\x01\x02"})]
    answers = []

    def ask(path, body):
        try:
            answers.append(worker.post(path, body))
        except OSError as error:
            answers.append(error)
        except http_client.IncompleteRead as error:
            answers.append(error)

    threads = [threading.Thread(target=ask, args=r) for r in requests]
    for thread in threads:
        thread.start()
    wait_for(lambda: worker.metric("vllm:num_requests_waiting") >= 3, "some to wait")
    threads += [threading.Thread(target=ask, args=("/tokenize", {"prompt": "word " * 400000})) for _ in range(3)]
    threads += [threading.Thread(target=ask, args=("/v1/completions", {"prompt": "word " * 20000})) for _ in range(3)]
    for thread in threads[len(requests):]:
        thread.start()
    worker.process.send_signal(signal.SIGTERM)
    wait_for(lambda: "worker_draining" in worker.log, "the first signal")
    assert worker.stop() == 0, worker.log[-3000:]
    for thread in threads:
        thread.join(PATIENCE_S)
        assert not thread.is_alive()
    whole = [a for a in answers if not isinstance(a, Exception)]
    for answer in whole:
        assert answer.code in (200, 503), answer.body
        if answer.code == 503:
            assert answer.headers["retry-after"] == "0" and answer.headers["x-incipit-reason"] == "draining"
        elif '"text"' in answer.body:
            assert answer.body.rstrip().endswith("data: [DONE]") and "shutting down" in answer.body


@both_ways
def test_a_client_that_leaves_frees_its_blocks(programs, way):
    worker = programs(Worker, "--backend", "sim", "--sim-speed", 1).ready()
    api = in_front_of(worker, programs, way)
    host, port = api.url[len("http://"):].split(":")
    body = json.dumps({"prompt": PROMPT, "max_tokens": 100000, "stream": True}).encode()
    for _ in range(5):
        with socket.create_connection((host, int(port))) as s:
            s.sendall(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
            assert s.recv(1000).startswith(b"HTTP/1.1 200")
    wait_for(lambda: worker.metric("vllm:num_requests_running") == 0, "the engine to drop the lost request")
    assert worker.metric("vllm:kv_cache_usage_perc") == 0
    assert worker.metric("vllm:request_success_total", finished_reason="abort") == 5


def test_a_long_prompt_is_read_on_the_text_thread(api):
    usage = api.post("/v1/completions", {"prompt": "word " * 20000, "max_tokens": 1}).json["usage"]
    assert usage["prompt_tokens"] == 100000


def test_forgetting_the_prefix_cache(sim):
    ask = lambda: sim.post("/v1/completions", {"prompt": PROMPT, "max_tokens": 1}).json[
        "usage"]["prompt_tokens_details"]["cached_tokens"]
    assert ask() == 0 and ask() > 0
    assert sim.post("/reset_prefix_cache", {}).code == 200
    assert ask() == 0


def test_version_and_models_describe_the_worker(sim):
    info = sim.get("/server_info").json
    assert info["wire"] == 1 and info["backend"] == "sim" and info["n_blocks"] > 0 and info["generation"]
    model = sim.get("/v1/models").json["data"][0]
    assert model["id"] == info["model"] and model["max_model_len"] == info["max_model_len"]
    assert sim.get("/health").code == 200 and sim.get("/version").json["version"]


def test_sigterm_lets_open_requests_finish(programs):
    worker = programs(Worker, "--backend", "sim", "--sim-speed", 2).ready()
    seen, first = [], threading.Event()

    def read():
        for event in events(worker.url + "/v1/completions", {
                "prompt": "a", "max_tokens": 100, "stream": True, "stream_options": {"include_usage": True}}):
            seen.append(event)
            first.set()

    reader = threading.Thread(target=read)
    reader.start()
    assert first.wait(20)
    assert worker.stop() == 0
    reader.join(20)
    assert seen[-1] == "[DONE]" and seen[-2]["usage"]["completion_tokens"] == 100


def test_a_draining_worker_reports_it_and_refuses_new_requests(programs):
    worker = programs(Worker, "--backend", "sim", "--sim-speed", 1).ready()
    stream = events(worker.url + "/v1/completions", {"prompt": "a", "max_tokens": 10000, "stream": True, "ignore_eos": True})
    next(stream)
    worker.process.send_signal(signal.SIGTERM)
    health = wait_for(lambda: (a := worker.get("/health")).code == 503 and a, "the signal")
    assert "draining" in health.json["error"]["message"]
    answer = worker.post("/v1/completions", {"prompt": "a"})
    assert answer.code == 503 and answer.headers["retry-after"] == "0" and answer.json["error"]["code"] == 503
    assert answer.headers["x-incipit-reason"] == "draining"
    assert worker.metric("vllm:num_requests_running") == 1
    assert next(stream)["choices"]
    assert worker.stop() == 0 # the second signal does not wait
    rest = list(stream)
    assert rest[-1] == "[DONE]" and rest[-2]["error"]["code"] == 503


@pytest.mark.parametrize("path", ["/admin/drain", "/reset_prefix_cache", "/flush_cache", "/abort_request"])
def test_a_web_page_cannot_change_the_worker(programs, path):
    worker = programs(Worker, "--backend", "sim").ready()
    port, body = worker.url.rsplit(":", 1)[1], {"abort_all": True}
    for name, origin in (("127.0.0.1", "http://evil.example"), ("127.0.0.1", "null"), ("evil.example", f"http://evil.example:{port}")):
        answer = worker.post(path, body, headers={"Origin": origin, "Host": f"{name}:{port}"})
        assert answer.code == 403 and "web page" in answer.json["error"]["message"], origin
    assert worker.get("/health").code == 200
    wait_for(lambda: "web_page_refused" in worker.log, "the line in the log")
    assert worker.post(path, body, headers={"Origin": worker.url}).code in (200, 202)


def test_samples_of_a_call_are_counted(api):
    api.post("/v1/completions", {"prompt": PROMPT, "max_tokens": 3, "n": 2})
    page = api.metrics()
    assert metric(page, "vllm:generation_tokens_total") == 6
    assert metric(page, "vllm:request_params_n_sum") == 2 and metric(page, "vllm:request_params_n_count") == 1
    assert metric(page, "vllm:e2e_request_latency_seconds_count") == 2


def test_prefix_caching_can_be_turned_off(programs):
    for flag in ("--no-enable-prefix-caching", "--disable-radix-cache"):
        worker = programs(Worker, "--backend", "sim", "--sim-speed", 20, flag).ready()
        for _ in range(2):
            usage = worker.post("/v1/completions", {"prompt": PROMPT, "max_tokens": 1}).json["usage"]
            assert usage["prompt_tokens_details"]["cached_tokens"] == 0
        assert worker.metric("vllm:cache_config_info", enable_prefix_caching="False") == 1


def test_blocks_in_use_prevent_a_flush_unless_forced(programs):
    worker = programs(Worker, "--backend", "sim", "--sim-speed", 1).ready()
    stream = events(worker.url + "/v1/completions", {"prompt": PROMPT, "max_tokens": 5000, "stream": True, "ignore_eos": True})
    next(stream)
    refusal = worker.post("/reset_prefix_cache", {})
    assert refusal.code == 429 and "reset_running_requests" in refusal.json["error"]["message"]
    assert worker.post("/reset_prefix_cache?reset_running_requests=true", {}).code == 200
    assert next(stream)["choices"] # it goes on
    stream.close()


def test_a_hangup_without_certificates_is_logged_and_no_more(programs):
    worker = programs(Worker, "--backend", "sim").ready()
    worker.process.send_signal(signal.SIGHUP)
    wait_for(lambda: "reload_ignored" in worker.log, "the hangup is logged")
    assert worker.post("/v1/completions", {"prompt": "a", "max_tokens": 1}).code == 200
    assert worker.stop() == 0


def test_a_cache_is_flushed_by_post_alone_and_the_log_names_the_peer(sim):
    refused = sim.get("/flush_cache")
    assert refused.code == 405 and refused.headers["allow"] == "POST" and "use POST" in refused.json["error"]["message"]
    assert sim.post("/flush_cache", {}).code == 200
    wait_for(lambda: " info admin_change call=reset_prefix_cache code=200 client=127.0.0.1" in sim.log, "the line")
    assert sim.log.count("admin_change") == 1
