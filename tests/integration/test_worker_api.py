"""The worker's API: shapes, fields, errors. On the simulated backend: text is nonsense, the rest is not."""
import json
import socket
import threading

import pytest

from conftest import events, http, wait_for

PROMPT = "The quick brown fox jumps over the lazy dog. " * 4


def test_a_completion_has_the_shape_that_clients_know(sim):
    answer = sim.post("/v1/completions", {"prompt": PROMPT, "max_tokens": 5, "model": "synthetic"})
    body = answer.json
    assert answer.code == 200 and body["object"] == "text_completion" and body["id"].startswith("cmpl-")
    assert body["choices"][0]["finish_reason"] == "length" and body["choices"][0]["logprobs"] is None
    usage = body["usage"]
    assert usage["completion_tokens"] == 5 and usage["total_tokens"] == usage["prompt_tokens"] + 5
    assert usage["prompt_tokens_details"] == {"cached_tokens": 0}
    assert answer.headers["x-incipit-cached-tokens"] == "0"
    assert int(answer.headers["x-incipit-prompt-tokens"]) == usage["prompt_tokens"]
    assert "kv_total=" in answer.headers["x-incipit-load"]


def test_the_same_prompt_again_is_cached_but_for_its_last_block(sim):
    first = sim.post("/v1/completions", {"prompt": PROMPT, "max_tokens": 1}).json["usage"]
    again = sim.post("/v1/completions", {"prompt": PROMPT, "max_tokens": 1}).json["usage"]
    n = first["prompt_tokens"]
    assert again["prompt_tokens_details"]["cached_tokens"] == (n - 1) // 16 * 16 > 0


def test_a_salt_keeps_caches_apart(sim):
    ask = lambda **salt: sim.post("/v1/completions", {"prompt": PROMPT, "max_tokens": 1, **salt}).json[
        "usage"]["prompt_tokens_details"]["cached_tokens"]
    assert ask() == 0 and ask(cache_salt="a") == 0 and ask(cache_salt="b") == 0
    assert ask() > 0 and ask(cache_salt="a") > 0


def test_a_stream_is_events_that_join_to_the_whole(sim):
    request = {"prompt": PROMPT, "max_tokens": 12, "temperature": 0}
    whole = sim.post("/v1/completions", request).json["choices"][0]["text"]
    seen = list(events(sim.url + "/v1/completions",
                       {**request, "stream": True, "stream_options": {"include_usage": True}}))
    assert seen[-1] == "[DONE]" and seen[-2]["choices"] == []
    assert seen[-2]["usage"]["completion_tokens"] == 12
    assert "".join(e["choices"][0]["text"] for e in seen[:-2]) == whole
    assert seen[-3]["choices"][0]["finish_reason"] == "length"


def test_chat_streams_role_then_content_then_reason(sim):
    request = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 6, "stream": True}
    seen = list(events(sim.url + "/v1/chat/completions", request))
    deltas = [e["choices"][0]["delta"] for e in seen[:-1]]
    assert deltas[0]["role"] == "assistant" and all("role" not in d for d in deltas[1:])
    assert seen[-2]["choices"][0]["finish_reason"] == "length" and seen[0]["object"] == "chat.completion.chunk"
    assert len("".join(d.get("content", "") for d in deltas)) > 0


def test_chat_content_may_come_in_parts(sim):
    ask = lambda content: sim.post("/v1/chat/completions", {
        "messages": [{"role": "user", "content": content}], "max_tokens": 2}).json["usage"]["prompt_tokens"]
    parts = [{"type": "text", "text": "Hello "}, {"type": "text", "text": "there"}]
    assert ask(parts) == ask("Hello \nthere")  # joined by line breaks, as elsewhere


def test_generate_speaks_as_sglang(sim):
    body = sim.post("/generate", {"text": "Hello", "sampling_params": {"max_new_tokens": 4}}).json
    assert len(body["output_ids"]) == 4 and body["meta_info"]["finish_reason"] == {"type": "length", "length": 4}
    several = sim.post("/generate", {"text": ["a", "b"], "sampling_params": {"max_new_tokens": 2}}).json
    assert [len(a["output_ids"]) for a in several] == [2, 2]
    stream = list(events(sim.url + "/generate", {"text": "x", "stream": True,
                                                 "sampling_params": {"max_new_tokens": 3}}))
    texts = [e["text"] for e in stream[:-1]]
    assert stream[-1] == "[DONE]" and all(b.startswith(a) for a, b in zip(texts, texts[1:]))
    assert sim.post("/generate", {"text": "Hello"}).json["meta_info"]["completion_tokens"] == 128


def test_samples_and_prompts_are_numbered_prompt_first(sim):
    body = sim.post("/v1/completions", {"prompt": ["one", "two"], "n": 2, "max_tokens": 3, "seed": 7}).json
    assert [c["index"] for c in body["choices"]] == [0, 1, 2, 3]
    assert body["usage"]["completion_tokens"] == 12


def test_token_ids_are_a_prompt_too(sim):
    ids = sim.post("/tokenize", {"prompt": "Hello"}).json
    assert ids["count"] == len(ids["tokens"]) == 5
    assert sim.post("/detokenize", {"tokens": ids["tokens"]}).json["prompt"] == "Hello"
    by_ids = sim.post("/v1/completions", {"prompt": ids["tokens"], "max_tokens": 4, "temperature": 0}).json
    by_text = sim.post("/v1/completions", {"prompt": "Hello", "max_tokens": 4, "temperature": 0}).json
    assert by_ids["choices"][0]["text"] == by_text["choices"][0]["text"]


def test_logprobs_have_one_entry_per_token(demo_worker):
    request = {"prompt": "Question:", "max_tokens": 5, "temperature": 0}
    lp = demo_worker.post("/v1/completions", {**request, "logprobs": 3, "echo": True}).json["choices"][0]["logprobs"]
    assert len(lp["tokens"]) == len(lp["token_logprobs"]) == len(lp["top_logprobs"]) == len(lp["text_offset"])
    assert lp["token_logprobs"][0] is None and all(p <= 0 for p in lp["token_logprobs"][1:])
    chat = demo_worker.post("/v1/chat/completions", {
        "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4, "logprobs": True, "top_logprobs": 2,
        "temperature": 0}).json["choices"][0]["logprobs"]["content"]
    assert all(len(t["top_logprobs"]) == 2 and t["logprob"] <= 0 for t in chat)
    assert all(t["top_logprobs"][0]["token"] == t["token"] for t in chat)


def test_the_same_seed_gives_the_same_answer(demo_worker):
    ask = lambda seed: demo_worker.post("/v1/completions", {
        "prompt": "Once", "max_tokens": 12, "temperature": 1.5, "seed": seed}).json["choices"][0]["text"]
    assert ask(3) == ask(3) and len({ask(seed) for seed in range(6)}) > 1


def test_a_stop_string_ends_the_text_before_it(sim):
    request = {"prompt": PROMPT, "max_tokens": 60, "temperature": 0}
    text = sim.post("/v1/completions", request).json["choices"][0]["text"]
    stop = text[20:23]
    cut = sim.post("/v1/completions", {**request, "stop": stop}).json["choices"][0]
    assert cut["text"] == text[:text.index(stop)] and cut["finish_reason"] == "stop" and cut["stop_reason"] == stop
    kept = sim.post("/v1/completions", {**request, "stop": [stop], "include_stop_str_in_output": True}).json
    assert kept["choices"][0]["text"] == text[:text.index(stop)] + stop


@pytest.mark.parametrize("path, body, code, param, words", [
    ("/v1/completions", b"", 400, None, "empty"),
    ("/v1/completions", b"{", 400, None, "line 1"),
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
    ("/v1/completions", {"prompt": "a", "max_tokens": 10**7}, 400, "max_tokens", "model's length"),
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
                              "response_format": {"type": "json_schema"}}, 400, "response_format", "not supported"),
    ("/generate", {}, 400, "text", "required"),
    ("/generate", {"text": "a", "input_ids": [1]}, 400, "text", "either"),
    ("/v1/nothing", {}, 404, None, "/v1/nothing"),
])
def test_a_wrong_request_is_told_what_to_do(sim, path, body, code, param, words):
    answer = sim.post(path, body)
    error = answer.json["error"]
    assert answer.code == code == error["code"] and error["param"] == param, answer.body
    assert words.lower() in error["message"].lower()


def test_a_wrong_method_names_the_right_one(sim):
    answer = sim.get("/v1/completions")
    assert answer.code == 405 and "POST" in answer.headers["allow"]


def test_a_client_that_leaves_frees_its_blocks(programs):
    from conftest import Worker
    worker = programs(Worker, "--backend", "sim", "--sim-speed", 1).ready()
    host, port = worker.url[len("http://"):].split(":")
    body = json.dumps({"prompt": PROMPT, "max_tokens": 100000, "stream": True}).encode()
    for _ in range(5):
        with socket.create_connection((host, int(port))) as s:
            s.sendall(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
            assert s.recv(1000).startswith(b"HTTP/1.1 200")
    wait_for(lambda: worker.metric("vllm:num_requests_running") == 0, "the engine to stop working for nobody")
    assert worker.metric("vllm:kv_cache_usage_perc") == 0
    assert worker.metric("vllm:request_success_total", finished_reason="abort") == 5


def test_a_long_prompt_is_read_on_the_text_thread(sim):
    usage = sim.post("/v1/completions", {"prompt": "word " * 20000, "max_tokens": 1}).json["usage"]
    assert usage["prompt_tokens"] == 100000


def test_forgetting_the_prefix_cache(sim):
    ask = lambda: sim.post("/v1/completions", {"prompt": PROMPT, "max_tokens": 1}).json[
        "usage"]["prompt_tokens_details"]["cached_tokens"]
    assert ask() == 0 and ask() > 0
    assert sim.post("/reset_prefix_cache", {}).code == 200
    assert ask() == 0


def test_what_it_says_about_itself(sim):
    info = sim.get("/server_info").json
    assert info["wire"] == 1 and info["backend"] == "sim" and info["n_blocks"] > 0 and info["generation"]
    model = sim.get("/v1/models").json["data"][0]
    assert model["id"] == info["model"] and model["max_model_len"] == info["max_model_len"]
    assert sim.get("/health").code == 200 and sim.get("/version").json["version"]


def test_sigterm_lets_open_requests_finish(programs):
    from conftest import Worker
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


def test_the_official_client_understands_us(demo_worker):
    openai = pytest.importorskip("openai", reason="the openai package is not installed")
    client = openai.OpenAI(base_url=demo_worker.url + "/v1", api_key="none")
    answer = client.chat.completions.create(model="model", messages=[{"role": "user", "content": "Hello"}],
                                            max_tokens=24, temperature=0)
    assert answer.choices[0].message.content and answer.usage.prompt_tokens_details.cached_tokens >= 0
    stream = client.chat.completions.create(model="model", messages=[{"role": "user", "content": "Hello"}],
                                            max_tokens=24, temperature=0, stream=True)
    assert "".join(c.choices[0].delta.content or "" for c in stream) == answer.choices[0].message.content
    with pytest.raises(openai.NotFoundError):
        client.completions.create(model="other", prompt="x")
