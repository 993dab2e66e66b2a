"""One worker of four is bad, in every way that we could think of: its clients hardly notice, it loses its share of
the traffic, a metric and the log give the reason, and it returns once repaired.

The workers are scripted HTTP servers in this process, of no engine's kind: what a foreign engine shows is all that
the router has to go by. Closed-loop clients, a short probe interval, no slow start; nothing waits for a time to pass.
"""
import asyncio
import collections
import contextlib
import http.client
import itertools
import json
import socket
import struct
import threading

import pytest

from conftest import Router, wait_for

N_WORKERS, CLIENTS, BATCH = 4, 8, 64
BAD = 1
GOOD_DELAY_S = 0.01  # of a good answer: a bad one that is quicker looks the least loaded

HEAD = "HTTP/1.1 {} X\r\ncontent-type: {}\r\n"
JSON, SSE = "application/json", "text/event-stream"
WHOLE = {"id": "x", "object": "chat.completion", "model": "m", "usage": {"prompt_tokens": 9, "completion_tokens": 2},
         "choices": [{"index": 0, "message": {"role": "assistant", "content": "ok"}, "finish_reason": "stop"}]}
ERROR = {"error": {"message": "CUDA error: an illegal memory access", "type": "InternalServerError", "code": 500}}
EVENT = 'data: {"choices":[{"index":0,"delta":{"content":"a"}}]}\n\n'
DONE = "data: [DONE]\n\n"


def whole(text, code=200, kind=JSON):
    return (HEAD.format(code, kind) + f"content-length: {len(text)}\r\n\r\n" + text).encode()


def stream(text, code=200):
    """Chunks of an event stream, and their end."""
    return (HEAD.format(code, SSE) + f"transfer-encoding: chunked\r\n\r\n{len(text):x}\r\n{text}\r\n0\r\n\r\n").encode()


def good(is_stream):
    return stream(EVENT * 3 + DONE) if is_stream else whole(json.dumps(WHOLE))


def part(is_stream):
    """The first half of an answer."""
    return good(is_stream).replace(b"0\r\n\r\n", b"") if is_stream else good(False)[:-20]


def lying(is_stream):
    usage = {"prompt_tokens": 2000000000, "completion_tokens": -5, "prompt_tokens_details": {"cached_tokens": 4000000000}}
    if is_stream:
        return stream(EVENT * 3 + f'data: {{"choices":[],"usage":{json.dumps(usage)}}}\n\n' + DONE)
    return whole(json.dumps({**WHOLE, "usage": usage}))


HANG, CLOSE, RESET = "hang", "close", "reset"
# What it answers; what comes after; the reason it is ejected for (None: it is not); whether clients may see some of it.
Kind = collections.namedtuple("Kind", "answer then reason is_seen", defaults=(None, "errors", False))
KINDS = {
    "500": Kind(lambda s: whole(json.dumps(ERROR), 500)),
    "502": Kind(lambda s: whole("<html>502</html>", 502, "text/html")),
    "503": Kind(lambda s: whole("no healthy upstream", 503, "text/plain")),
    "504": Kind(lambda s: whole("", 504, "text/plain")),
    "no body": Kind(lambda s: whole("", kind=SSE if s else JSON), reason="empty"),
    "error with status 200": Kind(lambda s: whole(json.dumps(ERROR)), reason="empty"),
    "no choices": Kind(lambda s: whole('{"status": "ok"}'), reason="empty"),
    "cut JSON": Kind(lambda s: whole(json.dumps(WHOLE)[:-40]), reason="empty"),
    "done at once": Kind(lambda s: stream(DONE), reason="empty"),
    "error event": Kind(lambda s: stream(f"data: {json.dumps(ERROR)}\n\n" + DONE), reason="empty"),
    "head, then hang": Kind(lambda s: good(s).split(b"\r\n\r\n")[0] + b"\r\n\r\n", HANG, "lost"),
    "hang": Kind(lambda s: b"", HANG, "lost"),
    "reset": Kind(lambda s: b"", RESET, "lost"),
    "not HTTP": Kind(lambda s: b"220 smtp.example ready\r\n", CLOSE, "lost"),
    "half, then close": Kind(part, CLOSE, "lost", True),
    "half, then hang": Kind(part, HANG, "lost", True),
    "error in mid-stream": Kind(lambda s: stream(EVENT + f"data: {json.dumps(ERROR)}\n\n"), reason="empty", is_seen=True),
    "lies in usage": Kind(lying, reason=None),
}
STREAMED_ONLY = {"done at once", "error event", "error in mid-stream"}
WHOLE_ONLY = {"no choices", "cut JSON"}


class Engine:
    """A scripted worker: `kind` None is a good one."""

    def __init__(self):
        self.kind, self.delay_s, self.n_asked, self.is_deaf = None, GOOD_DELAY_S, 0, False
        self.refuses = lambda body: None  # the answer to a body that it refuses
        self.paths = {"/health": whole("", kind="text/plain"),
                      "/v1/models": whole(json.dumps({"data": [{"id": "m", "max_model_len": 65536}]}))}
        self.server, self.open = None, set()

    async def listen(self, port=0):
        self.server = await asyncio.start_server(self.serve, "127.0.0.1", port, reuse_address=True)
        self.port = self.server.sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"

    async def close(self):
        self.server.close()
        for writer in list(self.open):
            writer.transport.abort()

    async def serve(self, reader, writer):
        self.open.add(writer)
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            while await self.answer(reader, writer):
                pass
        self.open.discard(writer)
        writer.close()

    async def answer(self, reader, writer):
        head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        path, headers = head[0].split(" ")[1], dict(h.lower().split(": ", 1) for h in head[1:] if ": " in h)
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        if not head[0].startswith("POST"):
            writer.write(self.paths.get(path, whole("", 404, "text/plain")))
            return True
        self.n_asked += 1
        is_stream, kind = b'"stream": true' in body, self.kind
        refusal = self.refuses(body)
        if kind is None or refusal:
            await asyncio.sleep(self.delay_s)
            writer.write(refusal or good(is_stream))
            return True
        writer.write(kind.answer(is_stream))
        await writer.drain()
        if kind.then == HANG:
            await reader.read(1)  # until the router has had enough
        if kind.then == RESET:
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        return kind.then is None


@pytest.fixture(scope="module")
def background():
    """Runs a coroutine on the loop of the engines; its result."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    yield lambda coroutine: asyncio.run_coroutine_threadsafe(coroutine, loop).result(30)
    loop.call_soon_threadsafe(loop.stop)
    thread.join()


@pytest.fixture
def engines(background):
    found = [Engine() for _ in range(N_WORKERS)]
    for engine in found:
        background(engine.listen())
    yield found
    for engine in found:
        background(engine.close())


@pytest.fixture
def fleet(engines, programs):
    def start(*args, n=N_WORKERS):
        return programs(Router, "--worker-urls", *(e.url for e in engines), "--probe-interval", "100ms", "--slow-start", 0,
                        "--threads", 1,
                        "--max-index-bytes", "1MiB", *args).ready(n)
    return start


numbers = itertools.count()


def ask(connection, is_stream, text="hi", path="/v1/chat/completions"):
    """Code and body; an exception when the answer is cut."""
    body = {"model": "m", "stream": is_stream, "messages": [{"role": "user", "content": f"{next(numbers)} {text}"}]}
    connection.request("POST", path, json.dumps(body), {"content-type": JSON})
    answer = connection.getresponse()
    return answer.status, answer.read().decode()


def is_whole(code, text, is_stream):
    if code != 200 or "error" in text:
        return False
    return text.endswith(DONE) and EVENT[:-2] in text if is_stream else json.loads(text)["choices"] == WHOLE["choices"]


def batch(router, is_stream, n=BATCH):
    """n requests of a few clients: how many failed."""
    host, left, failed = router.url.split("//")[1], iter(range(n)), []

    def client():
        connection = http.client.HTTPConnection(host, timeout=30)
        for _ in left:
            try:
                code, text = ask(connection, is_stream)
                if not is_whole(code, text, is_stream):
                    failed.append((code, text))
            except (OSError, ValueError, http.client.HTTPException) as error:
                failed.append((type(error), str(error)))
                connection.close()
        connection.close()

    threads = [threading.Thread(target=client) for _ in range(CLIENTS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return failed


def cases():
    for name in KINDS:
        for is_stream in (False, True):
            if not (is_stream and name in WHOLE_ONLY or not is_stream and name in STREAMED_ONLY):
                yield pytest.param(name, is_stream, id=f"{name}, {'streamed' if is_stream else 'whole'}")


@pytest.mark.parametrize("name,is_stream", list(cases()))
def test_a_bad_worker_is_left_out_until_it_is_mended(engines, fleet, name, is_stream):
    bad, kind = engines[BAD], KINDS[name]
    timeout = "200ms" if kind.then == HANG else "30s"
    router = fleet("--first-byte-timeout", timeout, "--stream-idle-timeout", timeout)
    assert batch(router, is_stream, 16) == []
    bad.kind = kind
    failed = batch(router, is_stream)
    # what a client has seen a part of cannot be sent again: as many as it takes to find out
    assert len(failed) <= (BATCH / 4 if kind.is_seen else 0), failed[:3]
    if kind.reason:
        n_before = bad.n_asked
        wait_for(lambda: router_ejections(router, bad, kind.reason) >= 1, "an ejection")
        n_failed = len(batch(router, is_stream))
        assert n_failed <= (2 if kind.is_seen else 0)
        # in turn it would be a quarter; and as the least loaded nearly all
        assert bad.n_asked - n_before <= BATCH / 8
        wait_for(lambda: f"reason={kind.reason}" in router.log, "the ejection in the log")
    if kind.then == HANG and name != "hang":
        return  # twenty times that timeout later: once is enough
    bad.kind = None
    served = bad.n_asked

    def is_back():
        assert len(batch(router, is_stream, 8)) == 0
        return bad.n_asked > served + 2
    wait_for(is_back, "the mended worker to be asked again")
    assert router.metric("incipit_requests_in_flight") == 0


def router_ejections(router, engine, reason):
    from conftest import http as get, metric
    return metric(get(router.admin_url + "/metrics").body, "incipit_worker_ejections_total", worker=engine.url, reason=reason)


def test_a_slow_worker_gets_less_and_is_not_blamed(engines, fleet):
    router, slow = fleet(), engines[BAD]
    slow.delay_s = 20 * GOOD_DELAY_S
    assert batch(router, False, 2 * BATCH) == []
    assert slow.n_asked < 2 * BATCH / N_WORKERS
    assert router.n_healthy() == N_WORKERS


@pytest.mark.parametrize("code", [400, 404, 413, 422, 429])
def test_a_refused_request_is_nobodys_fault(engines, fleet, code):
    router = fleet()
    for engine in engines:
        engine.refuses = lambda body: whole(json.dumps({"error": {"code": code}}), code) if b"refuse" in body else None
    connection = http.client.HTTPConnection(router.url.split("//")[1], timeout=30)
    for _ in range(20):
        assert ask(connection, False, "refuse me")[0] == code
    assert router.n_healthy() == N_WORKERS and "worker_ejected" not in router.log
    connection.close()


@pytest.mark.parametrize("retries", [0, 2])
def test_a_request_that_every_worker_fails_on_ejects_none_and_its_error_is_passed_on(engines, fleet, retries):
    router = fleet("--max-retries", retries, "--probe-misses", 100)  # errors alone eject
    for engine in engines:
        engine.refuses = lambda body: whole(json.dumps(ERROR), 500) if b"poison" in body else None
    connection = http.client.HTTPConnection(router.url.split("//")[1], timeout=30)
    for i in range(40):
        code, text = ask(connection, False, "poison")
        assert (code, json.loads(text)) == (500, ERROR)
        assert ask(connection, False)[0] == 200
    connection.close()
    if retries:
        assert router.n_healthy() == N_WORKERS
        assert sum(router_ejections(router, e, "errors") for e in engines) == 0
    else:  # nothing shows that others would fail too: but never more than half
        assert router.n_healthy() >= N_WORKERS / 2


def test_more_bad_requests_than_can_be_retried_leave_every_worker_in_service(engines, programs, background):
    router = programs(Router, "--worker-urls", *(e.url for e in engines), "--threads", 1, "--probe-interval", "30s",
                      "--connect-timeout", "30s").ready(N_WORKERS)
    for engine in engines:
        engine.refuses = lambda body: whole(json.dumps(ERROR), 500) if b"poison" in body else None
    assert batch(router, False) == []  # good answers, beside which errors stand out

    async def send(n):
        body = json.dumps({"model": "m", "messages": [{"role": "user", "content": f"{n} poison"}]})
        reader, writer = await asyncio.open_connection("127.0.0.1", int(router.url.rsplit(":", 1)[1]))
        writer.write(f"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode())
        answer = await reader.read()
        writer.close()
        return answer.split(b" ", 2)[1]

    async def send_all():
        return await asyncio.gather(*(send(n) for n in range(200)))

    assert set(background(send_all())) == {b"500"}
    assert router.metric("incipit_retry_budget_exhausted_total", outcome="passed_on") > 0
    assert router.n_healthy() == N_WORKERS


def test_only_the_failures_that_are_named_are_retried(engines, fleet):
    router = fleet("--retry-on", "connect,reset,502")
    for engine in engines:
        engine.kind = KINDS["500"]
    connection = http.client.HTTPConnection(router.url.split("//")[1], timeout=30)
    assert ask(connection, False)[0] == 500
    assert sum(e.n_asked for e in engines) == 1
    for engine in engines:
        engine.kind = KINDS["502"]
    assert ask(connection, False)[0] == 502
    assert sum(e.n_asked for e in engines) == 1 + 3
    connection.close()


def test_a_request_that_may_leave_something_behind_is_sent_once(engines, fleet):
    router = fleet("--forward-path", "/v1/files")
    for engine in engines:
        engine.kind = KINDS["500"]
    connection = http.client.HTTPConnection(router.url.split("//")[1], timeout=30)
    ask(connection, False, path="/v1/files")
    assert sum(e.n_asked for e in engines) == 1
    connection.close()


def test_false_usage_is_not_charged_to_a_key(engines, fleet, tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("sk-one tenant=a tokens_per_s=5000\n")
    keys.chmod(0o600)
    router = fleet("--api-keys-file", keys)
    for engine in engines:
        engine.kind = KINDS["lies in usage"]
    connection = http.client.HTTPConnection(router.url.split("//")[1], timeout=30)
    for i in range(20):
        body = {"model": "m", "messages": [{"role": "user", "content": f"{i}"}]}
        connection.request("POST", "/v1/chat/completions", json.dumps(body), {"authorization": "Bearer sk-one"})
        answer = connection.getresponse()
        assert answer.read() and answer.status == 200
    connection.close()


def test_all_workers_down_and_back_loses_no_request(engines, fleet, background):
    """Requests that find no worker wait for the first that comes back."""
    router = fleet("--queue-size", 1000)
    assert batch(router, False, 16) == []
    for engine in engines:
        background(engine.close())
    failed = []
    threads = [threading.Thread(target=lambda: failed.extend(batch(router, False, 8))) for _ in range(4)]
    for thread in threads:
        thread.start()
    wait_for(lambda: router.metric("incipit_requests_waiting") >= 32, "requests that wait")
    assert router.n_healthy() == 0
    for engine in engines:
        background(engine.listen(engine.port))
    for thread in threads:
        thread.join()
    assert failed == []
    wait_for(lambda: router.n_healthy() == N_WORKERS, "all to be back")
    assert batch(router, False) == []


def test_a_server_that_describes_nothing_serves_any_model(engines, fleet):
    """Neither /server_info nor /v1/models, nor /health."""
    for engine in engines:
        engine.paths = {}
    router = fleet()
    assert batch(router, False, 16) == [] and batch(router, True, 16) == []
    assert {w["model_id"] if "model_id" in w else w["model"] for w in router.workers()["workers"]} == {"unknown"}
    assert "worker_of_unknown_model" in router.log
