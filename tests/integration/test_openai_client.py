"""The official Python client, straight at a worker and through a router: what holds for one holds for both.

The package `openai` comes with `make deps-test`, under build/; where it could not be had, this is skipped.
"""
import asyncio
import http.server
import json
import threading

import pytest

from conftest import Router, Worker, both_ways, in_front_of, wait_for

openai = pytest.importorskip("openai", reason="SKIPPED: the openai package is not installed: make deps-test")

HELLO = [{"role": "user", "content": "Hello"}]


def client_of(api, **more):
    return openai.OpenAI(**{"base_url": api.url + "/v1", "api_key": "none", "max_retries": 0, **more})


@pytest.fixture
def client(shared_api):
    with client_of(shared_api) as c:
        yield c


def test_models_are_listed(client):
    models = client.models.list().data
    assert [(m.id, m.object) for m in models] == [("synthetic", "model")]


def test_a_model_is_retrieved_by_its_name(client):
    assert client.models.retrieve("synthetic").id == "synthetic"
    with pytest.raises(openai.NotFoundError, match="org%2Fother' does not exist"):
        client.models.retrieve("org/other")


def test_a_completion(client):
    answer = client.completions.create(model="synthetic", prompt="Once", max_tokens=7, temperature=0, n=1)
    assert answer.object == "text_completion" and answer.choices[0].finish_reason == "length"
    assert answer.usage.completion_tokens == 7
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + 7
    assert answer.usage.prompt_tokens_details.cached_tokens >= 0


def test_cached_tokens_are_in_the_usage(client):
    prompt = "A long opening that no other test in this file uses. " * 20
    ask = lambda: client.completions.create(model="synthetic", prompt=prompt, max_tokens=1).usage
    first, again = ask(), ask()
    assert first.prompt_tokens_details.cached_tokens == 0
    assert again.prompt_tokens_details.cached_tokens > 0.9 * again.prompt_tokens


def test_a_chat_and_its_stream_are_equal(client):
    request = {"model": "synthetic", "messages": HELLO, "max_tokens": 24, "temperature": 0}
    whole = client.chat.completions.create(**request).choices[0].message
    assert whole.role == "assistant" and whole.content
    with client.chat.completions.create(**request, stream=True) as stream:
        chunks = list(stream)
    assert "".join(c.choices[0].delta.content or "" for c in chunks) == whole.content
    assert chunks[0].choices[0].delta.role == "assistant" and chunks[-1].choices[0].finish_reason == "length"
    assert len({c.id for c in chunks}) == 1


def test_a_stream_ends_with_its_usage_when_asked(client):
    chunks = list(client.chat.completions.create(model="synthetic", messages=HELLO, max_tokens=5, stream=True,
                                                 stream_options={"include_usage": True}))
    assert chunks[-1].choices == [] and chunks[-1].usage.completion_tokens == 5
    assert all(c.usage is None for c in chunks[:-1])


def test_the_helper_for_streams_collects_the_whole(client):
    request = {"model": "synthetic", "messages": HELLO, "max_tokens": 40, "temperature": 0}
    stop = client.chat.completions.create(**request).choices[0].message.content[20:22]
    with client.chat.completions.stream(**request, stop=stop) as stream:
        text = "".join(e.delta for e in stream if e.type == "content.delta")
        final = stream.get_final_completion().choices[0]
    assert final.message.content == text and text and final.finish_reason == "stop"


def test_samples_stop_and_logprobs(client):
    request = {"model": "synthetic", "messages": HELLO, "max_tokens": 40, "temperature": 0}
    several = client.chat.completions.create(**{**request, "n": 3, "seed": 4, "temperature": 1})
    assert [c.index for c in several.choices] == [0, 1, 2]
    assert len({c.message.content for c in several.choices}) == 3
    text = client.chat.completions.create(**request).choices[0].message.content
    stop = text[12:15]
    cut = client.chat.completions.create(**request, stop=[stop]).choices[0]
    assert cut.finish_reason == "stop" and cut.message.content == text[:text.index(stop)]
    tokens = client.chat.completions.create(**request, logprobs=True, top_logprobs=2).choices[0].logprobs.content
    assert len(tokens) == 40 and all(len(t.top_logprobs) == 2 and t.logprob <= 0 for t in tokens)
    old = client.completions.create(model="synthetic", prompt="a", max_tokens=3, logprobs=2).choices[0].logprobs
    assert len(old.tokens) == len(old.token_logprobs) == len(old.top_logprobs) == 3


def text_of(answer):
    return [c.text for c in answer.choices]


def joined(chunks):
    """The text of each choice of a stream, by its index."""
    texts = {}
    for chunk in chunks:
        for choice in chunk.choices:
            part = choice.text if hasattr(choice, "text") else choice.delta.content or ""
            texts[choice.index] = texts.get(choice.index, "") + part
    return [texts[i] for i in range(len(texts))]


@pytest.mark.parametrize("more", [{}, {"n": 3}, {"n": 2, "top_p": 0.9, "presence_penalty": 0.5}])
def test_the_same_seed_is_the_same_answer_streamed_or_not(client, more):
    request = {"model": "synthetic", "prompt": "Draw lots", "max_tokens": 24, "temperature": 1, "seed": 11, **more}
    once = text_of(client.completions.create(**request))
    assert len(set(once)) == more.get("n", 1)
    assert text_of(client.completions.create(**request)) == once
    assert joined(client.completions.create(**request, stream=True)) == once
    assert text_of(client.completions.create(**{**request, "seed": 12})) != once


def test_samples_of_a_chat_are_streamed_side_by_side(client):
    request = {"model": "synthetic", "messages": HELLO, "max_tokens": 20, "temperature": 1, "seed": 3, "n": 3}
    whole = client.chat.completions.create(**request)
    chunks = list(client.chat.completions.create(**request, stream=True, stream_options={"include_usage": True}))
    assert joined(chunks) == [c.message.content for c in whole.choices]
    for i in range(3):
        of_one = [c.choices[0] for c in chunks if c.choices and c.choices[0].index == i]
        assert of_one[0].delta.role == "assistant" and [c.finish_reason for c in of_one[:-1]] == [None] * len(of_one[:-1])
        assert of_one[-1].finish_reason == "length"
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens == 60
    assert chunks[-1].usage.prompt_tokens == whole.usage.prompt_tokens, "the prompt counts once"


def test_the_best_of_several_samples_are_those_with_the_best_logprobs(client):
    request = {"model": "synthetic", "prompt": "Choose", "max_tokens": 8, "temperature": 1, "seed": 5, "logprobs": 0}
    score = lambda choice: sum(choice.logprobs.token_logprobs) / len(choice.logprobs.token_logprobs)
    every = client.completions.create(**request, n=6)
    best = client.completions.create(**request, n=2, best_of=6)
    assert [c.index for c in best.choices] == [0, 1] and best.usage.completion_tokens == 48
    assert text_of(best) == [c.text for c in sorted(every.choices, key=score, reverse=True)[:2]]
    with pytest.raises(openai.BadRequestError, match="best_of 1 is below n 2") as caught:
        client.completions.create(**request, n=2, best_of=1)
    assert caught.value.param == "best_of"


def test_prompts_may_be_several_and_token_ids(client):
    request = {"model": "synthetic", "max_tokens": 10, "temperature": 0}
    ask = lambda prompt, **more: client.completions.create(**request, prompt=prompt, **more)
    one, two = text_of(ask("One"))[0], text_of(ask("Two and more"))[0]
    ids = lambda text: client.post("/../tokenize", body={"prompt": text}, cast_to=dict)["tokens"]
    several = ask(["One", "Two and more"])
    assert text_of(several) == [one, two] and [c.index for c in several.choices] == [0, 1]
    assert several.usage.completion_tokens == 20
    assert text_of(ask(ids("One"))) == [one]
    assert text_of(ask([ids("One"), ids("Two and more")])) == [one, two]
    assert joined(ask(["One", "Two and more"], stream=True)) == [one, two]
    assert text_of(ask(["One", "Two and more"], n=2)) == [one, one, two, two], "prompt by prompt"
    for wrong in ([], [[]], [10 ** 9], ""):
        with pytest.raises(openai.BadRequestError) as caught:
            ask(wrong)
        assert caught.value.param == "prompt", wrong


def test_echo_gives_the_prompt_and_its_logprobs(client):
    request = {"model": "synthetic", "prompt": "Hello", "echo": True, "logprobs": 1, "temperature": 0}
    only = client.completions.create(**request, max_tokens=0)
    more = client.completions.create(**request, max_tokens=3)
    assert only.choices[0].text == "Hello" and more.choices[0].text.startswith("Hello")
    assert only.usage.completion_tokens == 0 and only.choices[0].finish_reason == "length"
    short, long = only.choices[0].logprobs, more.choices[0].logprobs
    assert short.token_logprobs[0] is None and all(p <= 0 for p in short.token_logprobs[1:])
    assert long.token_logprobs[:len(short.tokens)] == short.token_logprobs and len(long.tokens) == len(short.tokens) + 3
    assert short.text_offset == [0, 1, 2, 3, 4]


def test_logprobs_of_a_streamed_chat_are_those_of_the_whole(client):
    request = {"model": "synthetic", "messages": HELLO, "max_tokens": 12, "temperature": 0, "logprobs": True,
               "top_logprobs": 3}
    whole = client.chat.completions.create(**request).choices[0].logprobs.content
    first, *chunks = client.chat.completions.create(**request, stream=True)
    assert first.choices[0].delta.content == "" and first.choices[0].logprobs is None
    streamed = [t for c in chunks for t in c.choices[0].logprobs.content]
    assert streamed == whole and len(whole) == 12
    assert all(t.top_logprobs[0].logprob >= t.logprob and bytes(t.bytes) for t in whole)


def test_a_stop_string_is_named_and_cut_in_a_stream_too(client):
    request = {"model": "synthetic", "prompt": "Once", "max_tokens": 60, "temperature": 0}
    text = text_of(client.completions.create(**request))[0]
    stop = ["never there, I hope", text[30:33]]
    cut = client.completions.create(**request, stop=stop).choices[0]
    assert cut.text == text[:text.index(stop[1])] and cut.finish_reason == "stop" and cut.stop_reason == stop[1]
    assert joined(client.completions.create(**request, stop=stop, stream=True)) == [cut.text]
    kept = client.completions.create(**request, stop=stop, extra_body={"include_stop_str_in_output": True}).choices[0]
    assert kept.text == cut.text + stop[1]


def test_a_beam_search_by_the_extra_body(client):
    request = {"model": "synthetic", "prompt": "Search", "max_tokens": 8}
    beams = client.completions.create(**request, n=2, best_of=4, extra_body={"use_beam_search": True})
    assert len(set(text_of(beams))) == 2
    with pytest.raises(openai.BadRequestError, match="a beam search cannot be streamed"):
        client.completions.create(**request, stream=True, extra_body={"use_beam_search": True})


def test_unsupported_fields_are_refused_and_harmless_ones_accepted(client):
    request = {"model": "synthetic", "messages": HELLO, "max_tokens": 1}
    for field, value in {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {"not": {}}}}, "tool_choice": "required", "top_logprobs": 2,
                         "logit_bias": {"x": 1}}.items():
        with pytest.raises(openai.BadRequestError) as caught:
            client.chat.completions.create(**request, **{field: value})
        assert caught.value.param == field
    assert client.chat.completions.create(**request, user="somebody", metadata={"a": "b"}, store=False,
                                          response_format={"type": "text"}, parallel_tool_calls=True).choices
    assert client.chat.completions.create(**{**request, "max_tokens": None}, max_completion_tokens=4
                                          ).usage.completion_tokens == 4


@both_ways
def test_a_task_that_is_cancelled_ends_the_work(programs, way):
    worker = programs(Worker, "--backend", "sim", "--sim-speed", 0.5).ready()
    api = in_front_of(worker, programs, way)

    async def ask_and_cancel():
        async with openai.AsyncOpenAI(base_url=api.url + "/v1", api_key="none", max_retries=0) as client:
            tasks = [asyncio.create_task(client.chat.completions.create(
                model="synthetic", messages=HELLO, max_tokens=4000, n=2, extra_body={"ignore_eos": True}))
                for _ in range(3)]
            while await asyncio.to_thread(worker.metric, "vllm:num_requests_running") < 6:
                await asyncio.sleep(0.02)
            for task in tasks:
                task.cancel()
            return await asyncio.gather(*tasks, return_exceptions=True)

    assert all(isinstance(e, asyncio.CancelledError) for e in asyncio.run(ask_and_cancel()))
    wait_for(lambda: worker.metric("vllm:request_success_total", finished_reason="abort") == 6, "the aborts")
    assert worker.metric("vllm:kv_cache_usage_perc") == 0


def test_the_router_keeps_the_clients_id_or_makes_one(sim, programs):
    with client_of(programs(Router, "--worker-urls", sim.url).ready(1)) as client:
        ask = lambda **headers: client.chat.completions.with_raw_response.create(
            model="synthetic", messages=HELLO, max_tokens=1, extra_headers=headers)
        assert ask(**{"x-request-id": "mine-1"}).headers["x-request-id"] == "mine-1"
        answer = ask()
        assert answer.status_code == 200 and answer.parse()._request_id == answer.headers["x-request-id"] != ""


@pytest.mark.parametrize("kind, code, param, words, request_", [
    ("BadRequestError", 400, "temperature", "temperature", {"temperature": -1}),
    ("BadRequestError", 400, "max_tokens", "this model's maximum context length is", {"max_tokens": 10**7}),
    ("BadRequestError", 400, "messages", "at least one", {"messages": []}),
    ("NotFoundError", 404, "model", "does not exist", {"model": "gpt-0"}),
])
def test_errors_are_the_classes_of_the_client(client, kind, code, param, words, request_):
    for stream in (False, True):
        with pytest.raises(getattr(openai, kind)) as caught:
            client.chat.completions.create(**{"model": "synthetic", "messages": HELLO, "stream": stream, **request_})
        error = caught.value
        assert error.status_code == code and error.param == param and words in error.message


def test_a_closed_port_is_a_connection_error(programs):
    worker = programs(Worker, "--backend", "sim").ready()
    client = client_of(worker)
    worker.stop()
    with pytest.raises(openai.APIConnectionError):
        client.models.list()


@both_ways
def test_a_timeout_of_the_client_ends_the_work(programs, way):
    worker = programs(Worker, "--backend", "sim", "--sim-speed", 0.5).ready()
    api = in_front_of(worker, programs, way)
    with client_of(api, timeout=1) as client:
        with pytest.raises(openai.APITimeoutError):
            client.completions.create(model="synthetic", prompt="a", max_tokens=4000, extra_body={"ignore_eos": True})
    wait_for(lambda: worker.metric("vllm:request_success_total", finished_reason="abort") == 1, "the abort")


@both_ways
def test_a_stream_that_is_closed_early_ends_the_work(programs, way):
    worker = programs(Worker, "--backend", "sim", "--sim-speed", 0.5).ready()
    with client_of(in_front_of(worker, programs, way)) as client:
        stream = client.completions.create(model="synthetic", prompt="a", max_tokens=4000, stream=True,
                                           extra_body={"ignore_eos": True})
        assert next(iter(stream)).choices
        stream.close()
        wait_for(lambda: worker.metric("vllm:request_success_total", finished_reason="abort") == 1, "the abort")


@both_ways
def test_many_at_once_from_the_asynchronous_client(programs, way):
    api = in_front_of(programs(Worker, "--backend", "sim", "--sim-speed", 5).ready(), programs, way)

    async def one(client, i, stream):
        request = {"model": "synthetic", "prompt": f"number {i}", "max_tokens": 20, "temperature": 0}
        if not stream:
            return (await client.completions.create(**request)).choices[0].text
        return "".join([c.choices[0].text async for c in await client.completions.create(**request, stream=True)])

    async def all_of_them():
        async with openai.AsyncOpenAI(base_url=api.url + "/v1", api_key="none", max_retries=0) as client:
            return [await asyncio.gather(*(one(client, i, stream) for i in range(16))) for stream in (False, True)]

    whole, streamed = asyncio.run(all_of_them())
    assert whole == streamed and len(set(whole)) == 16


class Busy(http.server.BaseHTTPRequestHandler):
    """A worker that refuses with `code` until it was asked `n_busy` times."""
    protocol_version = "HTTP/1.1"

    def reply(self, code, body, **headers):
        data = json.dumps(body).encode()
        self.send_response(code)
        for name, value in {"content-type": "application/json", "content-length": str(len(data)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self):
        known = self.path in ("/health", "/v1/models")
        self.reply(200 if known else 404, {"object": "list", "data": [{"id": "m", "object": "model"}]})

    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        server = self.server
        server.asked.append(self.headers.get("x-stainless-retry-count"))
        if len(server.asked) < server.n_busy:
            self.reply(server.code, {"error": {"message": "not now", "type": "t", "param": None, "code": server.code}},
                       retry_after_ms="5", retry_after="30")
        else:
            self.reply(200, {"id": "c", "object": "text_completion", "created": 1, "model": "m",
                             "choices": [{"index": 0, "text": "at last", "finish_reason": "stop", "logprobs": None}]})

    def log_message(self, *args):
        pass


@pytest.fixture
def busy():
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Busy)
    server.daemon_threads = True
    server.asked, server.n_busy, server.code = [], 3, 429
    server.url = f"http://127.0.0.1:{server.server_address[1]}"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


@both_ways
def test_the_client_retries_after_retry_after(programs, busy, way):
    """Retry-After arrives as the worker sent it: 30 s would be too long for this test, 5 ms are not."""
    api = busy if way == "worker" else programs(Router, "--worker-urls", busy.url).ready(1)
    with client_of(api, max_retries=3) as client:
        assert client.completions.create(model="m", prompt="a").choices[0].text == "at last"
    assert busy.asked == ["0", "1", "2"]


@both_ways
def test_a_client_without_retries_gets_the_reason(programs, busy, way):
    api = busy if way == "worker" else programs(Router, "--worker-urls", busy.url).ready(1)
    with client_of(api) as client, pytest.raises(openai.RateLimitError) as caught:
        client.completions.create(model="m", prompt="a")
    assert "not now" in caught.value.message and caught.value.response.headers["retry-after"] == "30"


def test_a_router_that_is_full_is_waited_for(sim, programs):
    """The router's own 429: it has Retry-After, the client waits and is served."""
    router = programs(Router, "--worker-urls", sim.url, "--max-concurrent-requests", 1, "--queue-size", 0).ready(1)
    with client_of(router) as impatient, client_of(router, max_retries=20) as client:
        stream = client.completions.create(model="synthetic", prompt="a", max_tokens=5000, stream=True,
                                           extra_body={"ignore_eos": True})
        next(iter(stream))
        with pytest.raises((openai.RateLimitError, openai.InternalServerError)) as caught:
            impatient.completions.create(model="synthetic", prompt="b", max_tokens=1)
        assert int(caught.value.response.headers["retry-after"]) >= 1
        ended = threading.Timer(0.3, stream.close)
        ended.start()
        assert client.completions.create(model="synthetic", prompt="c", max_tokens=1).usage.completion_tokens == 1
        ended.join()


def test_keys_of_the_router_are_the_clients_errors(sim, programs, tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("sk-one tenant=a\n")
    keys.chmod(0o600)
    router = programs(Router, "--worker-urls", sim.url, "--api-keys-file", keys).ready(1)
    with client_of(router) as stranger, pytest.raises(openai.AuthenticationError):
        stranger.completions.create(model="synthetic", prompt="a", max_tokens=1)
    with client_of(router, api_key="sk-one") as known:
        assert known.completions.create(model="synthetic", prompt="a", max_tokens=1).choices


def test_a_stream_whose_worker_is_lost_raises(programs):
    worker = programs(Worker, "--backend", "sim", "--sim-speed", 1).ready()
    router = programs(Router, "--worker-urls", worker.url).ready(1)
    with client_of(router) as client:
        stream = client.completions.create(model="synthetic", prompt="a", max_tokens=4000, stream=True,
                                           extra_body={"ignore_eos": True})
        chunks = iter(stream)
        assert next(chunks).choices
        worker.process.kill()
        with pytest.raises(openai.APIError, match="worker that was answering was lost"):
            for _ in chunks:
                pass
