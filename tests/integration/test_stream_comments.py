"""Comments in streams that are silent: `: keep-alive` and `: queued position N`, retries behind them, and errors as
events. The workers here send what a test lets them send, when it does, so that no test depends on time."""
import json
import queue
import socket
import threading
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from conftest import PATIENCE_S, Router, Worker, events, http, wait_for
from test_hold import PATIENT

SOON = ["--sse-keepalive-s", 0.02]
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
END = b"0\r\n\r\n"
KEPT = ": keep-alive\n\n"


def chunk(text):
    return b"%x\r\n%s\r\n" % (len(text), text.encode())


def event(text):
    return chunk('data: {"choices":[{"text":"%s","index":0,"finish_reason":null}]}\n\n' % text)


def reply(code, body, kind="application/json", more=""):
    return f"HTTP/1.1 {code} X\r\ncontent-type: {kind}\r\n{more}content-length: {len(body)}\r\n\r\n{body}".encode()


class Scripted(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def do_GET(self):
        of = self.server.of
        info = json.dumps({"wire": 1, "model": "m", "backend": "sim", "block_size": 16, "n_blocks": 100000,
                           "generation": of.generation, "prefill_tokens_per_s": 10, "attn_context": 1e9,
                           "max_num_seqs": 64}).encode()
        self.wfile.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(info) + info)

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        script = queue.Queue()
        with self.server.of.lock:
            self.server.of.scripts.append((body["user"], script))
        while (piece := script.get()) is not None:
            self.wfile.write(piece)
            self.wfile.flush()
        self.close_connection = True
        self.connection.shutdown(socket.SHUT_RDWR)


class ScriptedWorker:
    def __init__(self):
        self.generation, self.lock, self.scripts = f"g{id(self)}", threading.Lock(), []
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Scripted)
        self.server.of = self
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def stop(self):
        for _, script in self.scripts:
            script.put(None)
        self.server.shutdown()
        self.server.server_close()


class Client:
    """A connection, and the bytes that have come on it; chunks are taken out of their frames."""

    def __init__(self, router, name, n_bytes=40, stream=True, version="1.1", path="/v1/completions", **headers):
        prompt = (name + " ") * max(1, n_bytes // (len(name) + 1))
        body = json.dumps({"model": "m", "prompt": prompt, "user": name, "max_tokens": 1, "stream": stream}).encode()
        lines = [f"POST {path} HTTP/{version}", "Host: a", "Content-Type: application/json", f"Content-Length: {len(body)}"]
        lines += [f"{k.replace('_', '-')}: {v}" for k, v in headers.items()]
        self.socket = socket.create_connection(("127.0.0.1", int(router.url.rsplit(":", 1)[1])))
        self.socket.settimeout(PATIENCE_S)
        self.socket.sendall("\r\n".join(lines).encode() + b"\r\n\r\n" + body)
        self.raw, self.is_over = b"", False

    @property
    def head(self):
        return self.raw.partition(b"\r\n\r\n")[0].decode()

    @property
    def text(self):
        head, _, rest = self.raw.partition(b"\r\n\r\n")
        if b"chunked" not in head:
            return rest.decode()
        text = b""
        while b"\r\n" in rest:
            size, _, rest = rest.partition(b"\r\n")
            text, rest = text + rest[:int(size, 16)], rest[int(size, 16) + 2:]
        return text.decode()

    @property
    def is_ended(self):
        return self.is_over or self.raw.endswith(END)

    def until(self, condition, what):
        while not condition():
            assert not self.is_over, f"waited in vain for {what}: {self.raw}"
            piece = self.socket.recv(65536)
            self.raw, self.is_over = self.raw + piece, not piece
        return self

    def expect(self, needle, times=1):
        return self.until(lambda: self.text.count(needle) >= times, needle)

    def end(self):
        return self.until(lambda: self.is_ended, "the end")

    def data(self):
        return [line[len("data: "):] for line in self.text.split("\n") if line.startswith("data: ")]

    def close(self):
        self.socket.close()


class Fleet:
    def __init__(self, router, workers):
        self.router, self.workers = router, workers

    def client(self, name, *args, **more):
        return Client(self.router, name, *args, **more)

    def script(self, n=1):
        """What the n-th request that reached a worker is answered from."""
        scripts = lambda: [s for w in self.workers for s in w.scripts]
        known = set(map(id, getattr(self, "seen", [])))
        found = wait_for(lambda: [s for s in scripts() if id(s) not in known], "a request at a worker")
        self.seen = getattr(self, "seen", []) + found[:1]
        return found[0][1]

    def comments(self, kind="keepalive"):
        return self.router.metric("incipit_stream_comments_total", kind=kind)

    def waiting(self, n):
        wait_for(lambda: self.router.metric("incipit_requests_waiting") == n, f"{n} to wait")


@pytest.fixture
def fleet(programs):
    workers = []

    def start(*args, n=1):
        workers.extend(ScriptedWorker() for _ in range(n))
        router = programs(Router, "--worker-urls", *[w.url for w in workers], "--explain-to-clients", *PATIENT,
                          *(args or SOON)).ready(n)
        return Fleet(router, workers)
    yield start
    for worker in workers:
        worker.stop()


# --- after the worker's head ------------------------------------------------------------------------

def test_a_stream_whose_worker_is_silent_gets_comments_between_its_events(fleet):
    fleet = fleet()
    client, script = fleet.client("a"), fleet.script()
    script.put(HEAD)
    client.expect(KEPT, 2)
    script.put(event("one"))
    client.expect("one")
    client.expect(KEPT, client.text.count(KEPT) + 1)
    script.put(event("two") + chunk("data: [DONE]\n\n") + END)
    client.end()
    assert client.text.replace(KEPT, "") == 'data: {"choices":[{"text":"one","index":0,"finish_reason":null}]}\n\n' \
        'data: {"choices":[{"text":"two","index":0,"finish_reason":null}]}\n\ndata: [DONE]\n\n'
    assert fleet.comments() >= 3 and "HTTP/1.1 200" in client.head
    assert fleet.router.metric("incipit_requests_total", path="/v1/completions", code="200") == 1


def test_no_comment_stands_within_an_event(fleet):
    fleet = fleet()
    client, script = fleet.client("a"), fleet.script()
    script.put(HEAD + chunk('data: {"choices":[{"text":"ha'))
    client.expect("ha")
    other, other_script = fleet.client("b"), fleet.script()
    other_script.put(HEAD)
    other.expect(KEPT, 5)  # in which time the first got none
    script.put(chunk('lf"}]}\n') + chunk("\n") + event("next") + END)
    client.end()
    assert 'data: {"choices":[{"text":"half"}]}\n\n' in client.text, client.text
    other.close()


def test_an_answer_that_is_not_streamed_gets_none(fleet):
    fleet = fleet()
    client, script = fleet.client("a", stream=False, x_incipit_queue_comments=1), fleet.script()
    stream, stream_script = fleet.client("b"), fleet.script()
    stream_script.put(HEAD)
    stream.expect(KEPT, 5)
    assert client.raw == b""
    script.put(reply(200, '{"choices":[{"text":"x"}]}'))
    client.expect('"x"')
    assert client.text == '{"choices":[{"text":"x"}]}' and "application/json" in client.head
    stream.close()


@pytest.mark.parametrize("more", ["content-encoding: gzip\r\n", "content-length: 500\r\n"])
def test_a_stream_that_leaves_no_room_gets_none(fleet, more):
    fleet = fleet()
    client, script = fleet.client("a"), fleet.script()
    framing = "" if "length" in more else "transfer-encoding: chunked\r\n"
    script.put(f"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n{framing}{more}\r\n".encode())
    stream, stream_script = fleet.client("b"), fleet.script()
    stream_script.put(HEAD)
    stream.expect(KEPT, 5)
    assert client.raw == b""
    client.close()
    stream.close()


def test_zero_adds_none_and_a_change_holds_at_once(fleet):
    fleet = fleet("--sse-keepalive-s", 0)
    client, script = fleet.client("a"), fleet.script()
    script.put(HEAD + event("one"))
    client.expect("one")
    assert fleet.router.process.poll() is None and KEPT not in client.text
    assert http(fleet.router.admin_url + "/config", {"sse-keepalive-s": 0.02}, method="PUT").code == 200
    client.expect(KEPT, 2)
    assert http(fleet.router.admin_url + "/config", {"sse-keepalive-s": -1}, method="PUT").code == 400
    client.close()


def test_a_client_of_http_1_0_gets_them_too(fleet):
    fleet = fleet()
    client, script = fleet.client("a", version="1.0"), fleet.script()
    script.put(HEAD)
    client.expect(KEPT, 2)
    script.put(event("one") + END)
    client.until(lambda: client.is_over, "the end")
    assert "chunked" not in client.head and client.data()[0].count("one") == 1


def test_a_client_that_leaves_between_comments_frees_its_worker(fleet):
    fleet = fleet()
    client, script = fleet.client("a"), fleet.script()
    script.put(HEAD)
    client.expect(KEPT)
    client.close()
    wait_for(lambda: fleet.router.metric("incipit_requests_total", path="/v1/completions", code="499") == 1, "the end")
    assert fleet.router.metric("incipit_requests_in_flight") == 0


# --- a worker's own comments, and retries -----------------------------------------------------------

def test_a_workers_comments_are_no_first_token_and_end_no_retries(fleet):
    fleet = fleet("--sse-keepalive-s", 0, n=2)
    client, script = fleet.client("a"), fleet.script()
    script.put(HEAD + chunk(": ping\n\n") + chunk(": pi"))
    client.expect(": pi", 2)
    assert fleet.router.metric("incipit_ttft_seconds_count") == 0
    script.put(None)  # the worker is lost, amid a comment
    other = fleet.script()
    other.put(HEAD + chunk(": here\n\n") + event("one") + chunk("data: [DONE]\n\n") + END)
    client.end()
    assert client.text.startswith(": ping\n\n: pi\n\n: here\n\ndata: {"), client.text
    assert len(client.data()) == 2 and fleet.router.metric("incipit_ttft_seconds_count") == 1
    assert fleet.router.metric("incipit_retries_total", reason="eof") + 0 == 1
    assert fleet.router.metric("incipit_requests_total", path="/v1/completions", code="200") == 1


def test_after_comments_a_refusal_by_every_worker_is_an_event(fleet):
    fleet = fleet(*SOON, "--max-retries", 1, n=2)
    client, script = fleet.client("a"), fleet.script()
    script.put(HEAD)
    client.expect(KEPT)
    script.put(None)
    fleet.script().put(reply(400, '{"error":{"message":"too\\nlong",\n"type":"BadRequestError","code":400}}'))
    client.end()
    assert json.loads(client.data()[0])["error"]["message"] == "too\nlong" and client.data()[1] == "[DONE]"
    assert fleet.router.metric("incipit_requests_total", path="/v1/completions", code="400") == 1
    assert fleet.router.metric("incipit_requests_in_flight") == 0


def test_after_comments_an_answer_of_no_use_is_an_event_that_names_it(fleet):
    fleet = fleet(*SOON, "--max-retries", 0)
    for body, kind in (("x" * 100000, "text/html"), ("{\r\ndata: x", "application/json")):
        client, script = fleet.client("a", x_incipit_queue_comments=1), fleet.script()
        client.expect(KEPT)
        script.put(reply(400, body, kind))
        client.end()
        script.put(None)
        assert "answered 400" in json.loads(client.data()[0])["error"]["message"], client.text
        assert client.data()[1:] == ["[DONE]"]


# --- before the worker's head -----------------------------------------------------------------------

def test_who_does_not_ask_gets_no_byte_before_the_workers_head(fleet):
    fleet = fleet()
    client, script = fleet.client("a"), fleet.script()
    asks, other = fleet.client("b", x_incipit_queue_comments=1), fleet.script()
    asks.expect(KEPT, 5)
    assert client.raw == b""
    script.put(reply(429, '{"error":{"message":"full"}}', more="retry-after: 3\r\n"))
    client.expect("full")
    assert "HTTP/1.1 429" in client.head
    asks.close()


def test_who_asks_gets_its_position_at_once_and_then_its_answer(fleet):
    fleet = fleet()
    first, script = fleet.client("first", 40000), fleet.script()
    script.put(HEAD)
    held = fleet.client("held", 4000, x_incipit_queue_comments=1, x_incipit_route=1)
    held.expect(": queued position 1\n\n", 2)
    behind = fleet.client("behind", 40000, x_incipit_queue_comments="true")
    behind.expect(": queued position 2\n\n")
    assert "HTTP/1.1 200" in held.head and "x-request-id" in held.head
    script.put(event("one") + END)
    first.end()
    script.put(None)
    script = fleet.script()
    held.expect(KEPT)
    script.put(HEAD + event("two") + chunk("data: [DONE]\n\n") + END)
    held.end()
    assert [d for d in held.data() if "two" in d] and held.data()[-1] == "[DONE]"
    assert ": x-incipit-route: worker=0 " in held.text and "held_by=backlog" in held.text
    assert fleet.comments("position") >= 3
    behind.close()
    fleet.waiting(0)


def test_a_refusal_behind_an_early_head_is_an_event(fleet):
    fleet = fleet(*SOON, "--queue-timeout", "1s")
    first, script = fleet.client("first", 40000), fleet.script()
    held = fleet.client("held", 4000, x_incipit_queue_comments=1)
    held.end()
    assert "HTTP/1.1 200" in held.head and json.loads(held.data()[0])["error"]["code"] == 503, held.text
    assert held.data()[1:] == ["[DONE]"]
    assert fleet.router.metric("incipit_requests_total", path="/v1/completions", code="503") == 1
    first.close()


def test_an_early_head_does_not_end_retries(fleet):
    fleet = fleet(*SOON, n=2)
    client = fleet.client("a", x_incipit_queue_comments=1)
    script = fleet.script()
    client.expect(KEPT)
    script.put(None)
    script = fleet.script()
    client.expect(KEPT, client.text.count(KEPT) + 2)
    script.put(HEAD + event("one") + END)
    client.end()
    assert client.text.replace(KEPT, "").startswith('data: {"choices"') and client.head.count("HTTP/1.1") == 1


def test_a_router_that_stops_ends_waiting_streams_with_an_event(fleet):
    fleet = fleet(*SOON, "--drain-timeout", "1s")
    client = fleet.client("a", x_incipit_queue_comments=1)
    fleet.script()
    client.expect(KEPT)
    fleet.router.process.terminate()
    client.end()
    assert "shutting down" in json.loads(client.data()[0])["error"]["message"]


def test_a_client_that_reads_nothing_does_not_pile_up_comments(fleet):
    fleet = fleet("--sse-keepalive-s", 0.01)
    slow, script = fleet.client("slow"), fleet.script()
    script.put(HEAD + b"".join(event("x" * 60000) for _ in range(200)))  # more than its socket takes
    other, other_script = fleet.client("b"), fleet.script()
    other_script.put(HEAD)
    other.expect(KEPT, 20)
    n = fleet.comments()
    other.expect(KEPT, 40)
    assert fleet.comments() - n <= other.text.count(KEPT)  # all are the other's
    script.put(END)
    slow.end()
    assert len(slow.data()) == 200
    other.close()


# --- our own worker ---------------------------------------------------------------------------------

PROMPT = {"prompt": "a long prompt about quinces " * 400, "max_tokens": 3, "stream": True, "ignore_eos": True}


@pytest.fixture
def slow_worker(programs):
    """Its prompt takes half a second at least, however fast the machine is."""
    return programs(Worker, "--backend", "sim", "--sim-speed", 1, *SOON).ready()


def lines_of(url, body):
    request = urllib.request.Request(url + "/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
        return answer.headers, [line.decode().rstrip("\n") for line in answer if line.strip()]


def test_a_worker_sends_comments_while_it_computes_a_prompt(slow_worker):
    headers, lines = lines_of(slow_worker.url, PROMPT)
    n = [line.startswith(":") for line in lines].index(False)
    assert n >= 2 and set(lines[:n - 1]) == {": keep-alive"}, lines
    numbers = json.loads(lines[n - 1][2:])
    assert numbers["prompt_tokens"] > 100 and numbers["cached_tokens"] == 0
    assert "x-incipit-load" in headers and "x-incipit-prompt-tokens" not in headers
    assert not any(line.startswith(":") for line in lines[n:]) and lines[-1] == "data: [DONE]"
    whole = slow_worker.post("/v1/completions", {**PROMPT, "stream": False})
    assert whole.json["usage"]["completion_tokens"] == 3 and "x-incipit-prompt-tokens" in whole.headers


def test_through_a_router_they_are_passed_on_and_the_tokens_learned(programs, slow_worker):
    router = programs(Router, "--worker-urls", slow_worker.url, "--sse-keepalive-s", 0).ready(1)
    _, lines = lines_of(router.url, PROMPT)
    assert lines[0] == ": keep-alive" and lines[-1] == "data: [DONE]"
    assert len([line for line in lines if line.startswith("data: ")]) >= 2
    wait_for(lambda: router.metric("incipit_requests_in_flight") == 0, "the end")
    assert router.metric("incipit_prompt_tokens_total") > 100 and router.metric("incipit_ttft_seconds_count") == 1
    assert "incipit_stream_comments_total{" not in router.metrics()  # all were the worker's
    assert list(events(router.url + "/v1/completions", PROMPT))[-1] == "[DONE]"  # now cached


def test_the_official_client_reads_streams_with_comments(programs, slow_worker):
    openai = pytest.importorskip("openai", reason="SKIPPED: the openai package is not installed: make deps-test")
    mute = programs(Worker, "--backend", "sim", "--sim-speed", 1, "--sse-keepalive-s", 0).ready()
    router = programs(Router, "--worker-urls", mute.url, *SOON).ready(1)
    for url in (slow_worker.url, router.url):
        with openai.OpenAI(base_url=url + "/v1", api_key="none", max_retries=0,
                           default_headers={"x-incipit-queue-comments": "1"}) as client:
            chunks = list(client.completions.create(model="synthetic", prompt=url + PROMPT["prompt"], max_tokens=3, stream=True,
                                                    extra_body={"ignore_eos": True}))
        assert chunks[-1].choices[0].finish_reason == "length" and all(c.choices[0].index == 0 for c in chunks)
    assert router.metric("incipit_stream_comments_total", kind="keepalive") > 0


def test_the_official_client_reports_an_error_behind_an_early_head(fleet):
    openai = pytest.importorskip("openai", reason="SKIPPED: the openai package is not installed: make deps-test")
    fleet = fleet(*SOON, "--queue-timeout", "1s")
    first, _ = fleet.client("first", 40000), fleet.script()
    with openai.OpenAI(base_url=fleet.router.url + "/v1", api_key="none", max_retries=0,
                       default_headers={"x-incipit-queue-comments": "1"}) as client:
        with pytest.raises(openai.APIError, match="queue-timeout"):
            list(client.completions.create(model="m", prompt="held " * 1000, user="held", stream=True))
    first.close()
