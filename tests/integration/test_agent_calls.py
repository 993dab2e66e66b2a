"""What coding agents send: /v1/messages, /v1/messages/count_tokens and /v1/responses through the router. The workers
here answer what a test has them answer, so that no test depends on time."""
import http.client
import json
import re
import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from conftest import PATIENCE_S, Router, http as http_to, wait_for

MARKS = ("0123456789ab", "ba9876543210")
PATHS = ("/v1/messages", "/v1/responses")


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def reply(self, code, body, kind="application/json", **more):
        self.send_response(code)
        for name, value in {"content-type": kind, "content-length": len(body), **more}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        worker = self.server.worker
        if self.path.startswith("/v1/responses"):
            self.do_POST()
            return
        self.reply(200, json.dumps({"wire": 1, "model": "m", "backend": "sim", "block_size": 16, "n_blocks": 100000,
                                    "generation": f"g{id(worker)}", "response_mark": worker.mark,
                                    "trusts_router": worker.trusts_router,
                                    "prefill_tokens_per_s": 10000, "attn_context": 1e9}).encode())

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))) or b"null")
        worker = self.server.worker
        worker.seen.append((self.path.split("?")[0], dict(self.headers.items()), body))
        worker.answer(self, body)

    do_DELETE = do_POST


class FakeWorker:
    def __init__(self, mark=""):
        self.mark, self.trusts_router, self.seen = mark, False, []
        self.answer = lambda handler, body: handler.reply(200, b'{"type":"message","id":"x"}')
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.worker, self.server.daemon_threads = self, True
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def stop(self):
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture
def workers():
    pair = [FakeWorker(mark) for mark in MARKS]
    yield pair
    for worker in pair:
        worker.stop()


def start(programs, workers, *args):
    return programs(Router, "--worker-urls", *(w.url for w in workers), *args).ready(len(workers))


def named(events):
    """Server-sent events of (name, data)."""
    return "".join(f"event: {name}\ndata: {json.dumps({'type': name, **data})}\n\n" for name, data in events).encode()


MESSAGE = named([
    ("message_start", {"message": {"id": "msg_1", "usage": {"input_tokens": 12, "cache_read_input_tokens": 800,
                                                            "cache_creation_input_tokens": 0, "output_tokens": 1}}}),
    ("content_block_start", {"index": 0, "content_block": {"type": "text", "text": ""}}),
    ("content_block_delta", {"index": 0, "delta": {"type": "text_delta", "text": "a"}}),
    ("content_block_stop", {"index": 0}),
    ("message_delta", {"delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 41}}),
    ("message_stop", {})])
RESPONSE = named([
    ("response.created", {"sequence_number": 0, "response": {"id": "resp_1", "usage": None}}),
    ("response.output_text.delta", {"sequence_number": 1, "delta": "a"}),
    ("response.completed", {"sequence_number": 2, "response": {"id": "resp_1", "usage": {
        "input_tokens": 812, "input_tokens_details": {"cached_tokens": 800}, "output_tokens": 41}}})])
STREAMS = {"/v1/messages": MESSAGE, "/v1/responses": RESPONSE}


def body_of(path, text="Hello", **more):
    if path == "/v1/responses":
        return {"model": "m", "input": text, **more}
    return {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": text}], **more}


def stream_to(handler, pieces):
    """An open stream: bytes, or an event to wait for. It ends with the connection."""
    handler.send_response(200)
    handler.send_header("content-type", "text/event-stream")
    handler.send_header("connection", "close")
    handler.end_headers()
    for piece in pieces:
        if isinstance(piece, bytes):
            handler.wfile.write(piece)
            handler.wfile.flush()
        else:
            assert piece.wait(PATIENCE_S)
    handler.close_connection = True


# --- a conversation stays where its prefix is ---


SYSTEM = "You are a coding agent with many rules. " * 100


def says(i):
    return f"Question {i}: " + f"what about part {i} of the code? " * 40


def messages_turn(n):
    """As Claude Code: a nonce in `system`, a marker on the last message, a late message of the system."""
    marker = {"cache_control": {"type": "ephemeral"}}
    text = lambda t, **more: {"type": "text", "text": t, **more}
    turns = []
    for i in range(n + 1):
        turns.append({"role": "user", "content": [text(says(i), **marker)] if i == n else says(i)})
        if i < n:
            turns.append({"role": "assistant", "content": [{"type": "tool_use", "id": f"t{i}", "name": "f", "input": {}}]})
            turns.append({"role": "user", "content": [{"type": "tool_result", "tool_use_id": f"t{i}", "content": says(-i)}]})
            turns.append({"role": "system", "content": f"<total_tokens>{9000 - i} tokens left</total_tokens>"})
    return {"model": "m", "max_tokens": 9, "metadata": {"user_id": "u"}, "system": [
        text(f"x-anthropic-billing-header: cc_version=2.1; cch={n * 7919:05x};"), text(SYSTEM, **marker)], "messages": turns}


def responses_turn(n):
    """As Codex and the Agents SDK: the whole transcript each time, the first input a string."""
    items = []
    for i in range(n + 1):
        items.append({"role": "user", "content": says(i)})
        if i < n:
            items.append({"type": "function_call", "call_id": f"t{i}", "name": "f", "arguments": "{}"})
            items.append({"type": "function_call_output", "call_id": f"t{i}", "output": says(-i)})
    return {"model": "m", "instructions": SYSTEM, "input": items if n else says(0), "store": False}


def chat_turn(n):
    turns = [{"role": "system", "content": SYSTEM}]
    for i in range(n + 1):
        turns.append({"role": "user", "content": says(i)})
        if i < n:
            call = {"id": f"t{i}", "type": "function", "function": {"name": "f", "arguments": "{}"}}
            turns.append({"role": "assistant", "content": None, "tool_calls": [call]})
            turns.append({"role": "tool", "tool_call_id": f"t{i}", "content": says(-i)})
    return {"model": "m", "messages": turns}


def hit_share(router, path, turn):
    """Of the blocks of the later turns of a conversation, those that its worker had; and its workers."""
    n_matched = n_all = 0
    seen = set()
    for n in range(8):
        answer = router.post(path, turn(n), headers={"x-incipit-route": "1"})
        assert answer.code == 200, answer.body
        route = next(v for k, v in answer.headers.items() if k.lower() == "x-incipit-route")
        found = {k: int(v) for k, v in re.findall(r"\b(worker|blocks|matched)=(\d+)", route)}
        seen.add(found["worker"])
        n_all += found["blocks"] if n else 0
        n_matched += found["matched"] if n else 0
    return n_matched / n_all, seen


def test_conversations_of_agents_hit_as_chats_do(programs, workers):
    for worker in workers:
        worker.answer = lambda handler, body: handler.reply(200, b'{"choices":[{}]}', x_incipit_prompt_tokens=2000,
                                                            x_incipit_cached_tokens=0)
    router = start(programs, workers, "--explain-to-clients")
    chat, chat_workers = hit_share(router, "/v1/chat/completions", chat_turn)
    assert chat > 0.7 and len(chat_workers) == 1
    for path, turn in (("/v1/messages", messages_turn), ("/v1/responses", responses_turn)):
        share, seen = hit_share(router, path, turn)
        assert len(seen) == 1
        assert share == pytest.approx(chat, abs=0.01)


# --- what is learned of an answer ---


@pytest.mark.parametrize("path", PATHS)
def test_the_usage_of_a_stream_is_counted(programs, workers, path):
    workers[0].answer = lambda handler, body: stream_to(handler, [STREAMS[path]])
    router = start(programs, workers[:1])
    answer = router.post(path, body_of(path, stream=True))
    assert answer.body == STREAMS[path].decode()
    wait_for(lambda: router.metric("incipit_output_tokens_total") == 41, "the end of the answer")
    assert router.metric("incipit_prompt_tokens_total") == 812
    assert router.metric("incipit_cached_tokens_total") == 800
    assert router.metric("incipit_requests_total", path=path, code="200") == 1


def test_the_first_token_is_a_delta_and_not_the_start_of_a_message(programs, workers):
    """While its answer has begun and has no token, a request is one of the worker's prefills."""
    begun, delta = named([("message_start", {"message": {"usage": {"input_tokens": 5}}})]), threading.Event()
    workers[0].answer = lambda handler, body: stream_to(handler, [begun, delta, MESSAGE[MESSAGE.index(b"event: content"):]])
    router = start(programs, workers[:1])
    connection = http.client.HTTPConnection(router.url.removeprefix("http://"), timeout=PATIENCE_S)
    connection.request("POST", "/v1/messages", json.dumps(body_of("/v1/messages", stream=True)))
    response = connection.getresponse()
    assert response.read(len(begun)) == begun
    assert router.metric("incipit_ttft_seconds_count") == 0
    delta.set()
    assert b"message_stop" in response.read()
    wait_for(lambda: router.metric("incipit_ttft_seconds_count") == 1, "the first token")


# --- errors ---


def test_errors_have_the_form_of_their_api(programs, workers, tmp_path):
    keys, worker_key = tmp_path / "keys", tmp_path / "worker_key"
    keys.write_text("secret tenant=a\n")
    worker_key.write_text("upstream\n")
    router = start(programs, workers, "--api-keys-file", keys, "--worker-api-key-file", worker_key)
    key = {"x-api-key": "secret", "anthropic-version": "2023-06-01"}
    cases = [(401, "authentication_error", {}, body_of("/v1/messages")),
             (401, "authentication_error", {"x-api-key": "wrong"}, body_of("/v1/messages")),
             (404, "not_found_error", key, {**body_of("/v1/messages"), "model": "none"}),
             (400, "invalid_request_error", key, b"{"),
             (403, "permission_error", key, {**body_of("/v1/messages"), "kv_transfer_params": {}})]
    for path in ("/v1/messages", "/v1/messages/count_tokens"):
        for code, kind, headers, body in cases:
            answer = router.post(path, body, headers=headers)
            assert (answer.code, answer.json["type"], answer.json["error"]["type"]) == (code, "error", kind)
            assert answer.json["error"]["message"]
    answer = router.post("/v1/responses", {**body_of("/v1/responses"), "model": "none"}, headers=key)
    assert (answer.code, answer.json["error"]["code"]) == (404, 404)
    assert not workers[0].seen and not workers[1].seen
    assert router.post("/v1/messages?beta=true", body_of("/v1/messages"), headers=key).code == 200
    path, headers, _ = (workers[0].seen + workers[1].seen)[0]
    sent = {k.lower(): v for k, v in headers.items()}
    assert sent["authorization"] == "Bearer upstream" and "x-api-key" not in sent
    assert sent["anthropic-version"] == "2023-06-01"


@pytest.mark.parametrize("path", PATHS)
def test_a_stream_whose_worker_is_lost_ends_with_an_error_event(programs, workers, path):
    lose = threading.Event()
    start_of = STREAMS[path][:STREAMS[path].index(b"delta\ndata") + 20]

    def answer(handler, body):
        handler.wfile.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
        handler.wfile.write(b"%x\r\n%s\r\n" % (len(start_of), start_of))
        handler.wfile.flush()
        lose.wait(PATIENCE_S)
        handler.close_connection = True
        handler.connection.shutdown(socket.SHUT_RDWR)

    workers[0].answer = answer
    router = start(programs, workers[:1])
    lose.set()
    text = router.post(path, body_of(path, stream=True)).body
    assert text.startswith(start_of.decode() + "\n\n")
    name, data = re.fullmatch(r"event: (\S+)\ndata: (.*)\n\n", text[len(start_of) + 2:]).groups()
    data = json.loads(data)
    if path == "/v1/messages":
        assert name == data["type"] == "error" and data["error"]["type"] == "api_error"
        assert "lost" in data["error"]["message"]
    else:
        assert name == data["type"] == "response.failed"
        assert data["sequence_number"] == (2 if b'"sequence_number": 1' in start_of else 1)
        assert data["response"]["id"] == "resp_1" and data["response"]["status"] == "failed"
        assert data["response"]["error"]["code"] == "server_error"


@pytest.mark.parametrize("path", PATHS)
def test_an_error_behind_comments_is_an_event(programs, workers, path):
    """The client has a head with status 200 already; the worker's error is in OpenAI's form or in its API's."""
    errors = {"/v1/messages": {"type": "error", "error": {"type": "invalid_request_error", "message": "no such tool"}},
              "/v1/responses": {"error": {"message": "no such tool", "type": "BadRequestError", "param": None, "code": 400}}}
    go_on = threading.Event()

    def answer(handler, body):
        assert go_on.wait(PATIENCE_S)
        handler.reply(400, json.dumps(errors[path]).encode())

    workers[0].answer = answer
    router = start(programs, workers[:1], "--sse-keepalive-s", 0.02)
    connection = http.client.HTTPConnection(router.url.removeprefix("http://"), timeout=PATIENCE_S)
    connection.request("POST", path, json.dumps(body_of(path, stream=True)), {"x-incipit-queue-comments": "1"})
    response = connection.getresponse()
    assert response.status == 200 and response.readline() == b": keep-alive\n"
    go_on.set()
    text = response.read().decode()
    name, data = re.search(r"event: (\S+)\ndata: (.*)\n\n$", text).groups()
    error = json.loads(data)["error"] if path == "/v1/messages" else json.loads(data)["response"]["error"]
    assert name == ("error" if path == "/v1/messages" else "response.failed")
    assert error["message"] == "no such tool"


# --- places ---


def test_tokens_are_counted_while_every_worker_is_full(programs, workers):
    finish = threading.Event()

    def answer(handler, body):
        if handler.path == "/v1/messages/count_tokens":
            handler.reply(200, b'{"input_tokens":7}')
        else:
            stream_to(handler, [finish, MESSAGE])

    workers[0].answer = answer
    router = start(programs, workers[:1], "--max-worker-requests", 1)
    asked = [threading.Thread(target=router.post, args=("/v1/messages", body_of("/v1/messages", stream=True)))
             for _ in range(2)]
    for thread in asked:
        thread.start()
    wait_for(lambda: router.metric("incipit_requests_waiting") == 1, "a request that waits")
    for _ in range(3):
        answer = router.post("/v1/messages/count_tokens", body_of("/v1/messages"))
        assert (answer.code, answer.json) == (200, {"input_tokens": 7})
    assert router.metric("incipit_requests_waiting") == 1
    finish.set()
    for thread in asked:
        thread.join()
    assert [path for path, _, _ in workers[0].seen].count("/v1/messages") == 2


# --- stored responses ---


def test_a_stored_response_is_continued_at_its_worker(programs, workers):
    """By every router, and those that have never seen it."""
    routers = [start(programs, workers) for _ in range(2)]
    for i in range(12):
        mark = MARKS[i % 2]
        before = [len(w.seen) for w in workers]
        body = body_of("/v1/responses", f"{i} " * 100, previous_response_id=f"resp_{mark}{i:08x}")
        assert routers[i // 3 % 2].post("/v1/responses", body).code == 200
        got = [len(w.seen) - n for w, n in zip(workers, before)]
        assert got == [mark == m for m in MARKS]


def test_a_lost_response_is_the_workers_to_refuse(programs, workers):
    lost = json.dumps({"error": {"message": "send the whole input", "type": "NotFoundError", "param": None, "code": 404}})
    for worker in workers:
        worker.answer = lambda handler, body: handler.reply(404, lost.encode())
    router = start(programs, workers)
    for id in ("resp_ffffffffffff0001", "resp_1", "other"):
        answer = router.post("/v1/responses", body_of("/v1/responses", previous_response_id=id))
        assert (answer.code, answer.json["error"]["message"]) == (404, "send the whole input")
    assert sum(len(w.seen) for w in workers) == 3


def stored(mark, rest="00ff", tail=""):
    return f"/v1/responses/resp_{mark}{rest}{tail}"


@pytest.mark.parametrize("method, tail", [("GET", ""), ("GET", "/input_items"), ("DELETE", "")])
def test_a_stored_response_is_looked_up_at_its_worker(programs, workers, method, tail):
    """Even while the worker is full; what is read there is no work and no token."""
    text = '{"object":"response","error":null,"usage":{"input_tokens":812,"output_tokens":41,"total_tokens":853}}'
    finish = threading.Event()

    def answer(handler, body):
        if handler.command == "POST":
            stream_to(handler, [finish, RESPONSE])
        else:
            handler.reply(200, text.encode(), x_method=handler.command)

    for worker in workers:
        worker.answer = answer
    router = start(programs, workers, "--max-worker-requests", 1)
    asked = [threading.Thread(target=router.post, args=("/v1/responses", body_of("/v1/responses", f"{i} " * 99, stream=True)))
             for i in range(3)]
    for thread in asked:
        thread.start()
    wait_for(lambda: [len(w.seen) for w in workers] == [1, 1], "a request at each worker")
    wait_for(lambda: router.metric("incipit_requests_waiting") == 1, "a request that waits")
    for i in range(6):
        before = [len(w.seen) for w in workers]
        got = http_to(router.url + stored(MARKS[i % 2], f"{i}", tail) + "?include=x", b"{}" if method == "DELETE" else None,
                      method=method)
        assert (got.code, got.body, got.headers["x-method"]) == (200, text, method)
        assert [len(w.seen) - n for w, n in zip(workers, before)] == [MARKS[i % 2] == m for m in MARKS]
        path, _, body = workers[i % 2].seen[-1]
        assert (path, body) == (stored(MARKS[i % 2], f"{i}", tail), None)
    assert router.metric("incipit_requests_waiting") == 1
    assert router.metric("incipit_requests_total", path="/v1/responses/*", code="200") == 6
    assert router.metric("incipit_prompt_tokens_total") == router.metric("incipit_output_tokens_total") == 0
    finish.set()
    for thread in asked:
        thread.join()


def test_a_response_that_no_worker_has_is_not_found(programs, workers):
    router = start(programs, workers)
    for method in ("GET", "DELETE"):
        for id in ("resp_ffffffffffff0001", "resp_1", "other", f"resp_{MARKS[0]}"):
            answer = http_to(f"{router.url}/v1/responses/{id}", method=method)
            assert (answer.code, answer.json["error"]["code"]) == (404, 404)
            assert f"'{id}'" in answer.json["error"]["message"] and "send the whole input" in answer.json["error"]["message"]
    assert http_to(router.url + stored(MARKS[0], tail="/input_items"), method="DELETE").code == 404
    assert router.post(stored(MARKS[0], tail="/cancel"), {}).code == 404
    assert not workers[0].seen and not workers[1].seen


@pytest.mark.parametrize("code", [404, 429, 500, 503])
def test_a_lookup_goes_to_no_other_worker(programs, workers, code):
    """The worker's error is passed on: no other worker can know better."""
    workers[0].answer = lambda handler, body: handler.reply(code, b'{"error":{"message":"mine"}}')
    router = start(programs, workers)
    answer = router.get(stored(MARKS[0]))
    assert (answer.code, answer.json["error"]["message"]) == (code, "mine")
    assert (len(workers[0].seen), len(workers[1].seen)) == (1, 0)


def test_a_lookup_fails_with_its_worker(programs, workers):
    def lose(handler, body):
        handler.close_connection = True
        handler.connection.shutdown(socket.SHUT_RDWR)

    workers[0].answer = lose
    router = start(programs, workers)
    answer = router.get(stored(MARKS[0]))
    assert answer.code == 502 and "stored this response" in answer.json["error"]["message"]
    assert not workers[1].seen
    assert router.metric("incipit_worker_failures_total") == 1


def test_a_tenant_looks_up_with_its_own_salt(programs, workers, tmp_path):
    """The salt that its POST has: by it the worker keeps responses of tenants apart."""
    keys = tmp_path / "keys"
    keys.write_text("one tenant=a\ntwo tenant=b\n")
    workers[0].trusts_router = True
    router = start(programs, workers, "--api-keys-file", keys)
    salts = {}
    for key in ("one", "two"):
        headers = {"authorization": f"Bearer {key}", "x-incipit-salt": "0" * 64}
        body = body_of("/v1/responses", previous_response_id=f"resp_{MARKS[0]}01")
        assert router.post("/v1/responses", body, headers=headers).code == 200
        for method in ("GET", "DELETE"):
            assert http_to(router.url + stored(MARKS[0]), headers=headers, method=method).code == 200
        sent = [{k.lower(): v for k, v in h.items()} for _, h, _ in workers[0].seen]
        assert all("authorization" not in h for h in sent)
        salts[key] = {h["x-incipit-salt"] for h in sent}
        workers[0].seen.clear()
    assert len(salts["one"]) == len(salts["two"]) == 1 and not salts["one"] & salts["two"]
    assert router.get(stored(MARKS[0])).code == 401 and not workers[0].seen
    refused = router.get(stored(MARKS[1]), headers={"authorization": "Bearer one"})  # this worker reads no salt
    assert refused.code == 403 and "--trust-router" in refused.json["error"]["message"] and not workers[1].seen


# --- sessions ---


@pytest.mark.parametrize("name", ["x-claude-code-session-id", "thread-id", "session-id", "prompt_cache_key", "user_id"])
def test_a_session_has_a_home_whatever_its_client_calls_it(programs, workers, name):
    router = start(programs, workers, "--policy", "session")
    path = "/v1/messages" if name in ("x-claude-code-session-id", "user_id") else "/v1/responses"
    for session in range(6):
        headers = {name: f"s{session}"} if "-" in name else {}
        more = {"user_id": {"metadata": {"a": 1, "user_id": f"s{session}"}}, "prompt_cache_key": {name: f"s{session}"}}.get(name, {})
        before = [len(w.seen) for w in workers]
        for turn in range(4):
            assert router.post(path, body_of(path, f"{turn} {session} " * 50, **more), headers=headers).code == 200
        assert sorted(len(w.seen) - n for w, n in zip(workers, before)) == [0, 4]
