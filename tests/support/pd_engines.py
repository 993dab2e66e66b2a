"""Engines that prefill and decode apart, as far as a router sees them: vLLM with NixlConnector, SGLang.

They follow vLLM 0.33 (kv_transfer_params, NixlConnector protocol 15) and SGLang 0.5.23 (disaggregation mode): what
they accept, refuse, hold and wait for. A prompt's "KV" is its text. `Fleet` is what the engines of a test share.

An engine's `faults` are names: die (the connection breaks before the answer), 500, 400, mute (the answer has no
kv_transfer_params), late_die (half an answer, then the connection breaks), fetch (what was handed over cannot be
fetched), recompute (then, the prompt is computed: vLLM's kv_load_failure_policy; else the request fails), stuck (no
answer, until the client leaves), giant (an answer of 1 GiB), endless (chunks without an end), garbage (a broken chunk),
redirect, interim (interim answers without an end).
"""
import json
import select
import socket
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Fleet:
    """Rooms and held blocks, by which two engines find each other."""

    def __init__(self):
        self.lock = threading.Condition()
        self.held = {}   # (engine id, request id) -> the prompt
        self.rooms = {}  # bootstrap room -> the prompt


def prompt_of(body):
    return json.dumps(body.get("messages", body.get("prompt", body.get("text"))))


class Engine:
    def __init__(self, fleet, name, kind, mode="both", host="127.0.0.1", port=0):
        self.fleet, self.name, self.kind, self.mode, self.host = fleet, name, kind, mode, host
        self.faults, self.seen, self.aborted, self.left = set(), [], [], 0
        self.gate = threading.Event()  # answers of clients that ask for "hold" wait for it
        self.gate.set()
        engine = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_):
                pass

            def do_GET(self):
                engine.get(self)

            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers.get("content-length", 0))))
                try:
                    engine.post(self, body)
                except (ConnectionError, TimeoutError):
                    self.close_connection = True

        class Server(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, *_):
                pass

        self.server = Server((host, port), Handler)
        self.port = self.server.server_address[1]
        self.url = f"http://{host}:{self.port}"
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()

    def stop(self):
        self.server.shutdown()
        self.server.server_close()

    # --- what every engine has ---

    def get(self, handler):
        if handler.path == "/v1/models":
            self.reply(handler, 200, {"data": [{"id": "m", "owned_by": self.kind, "max_model_len": 131072}]})
        elif handler.path == "/get_server_info" and self.kind == "sglang":
            self.reply(handler, 200, {"disaggregation_mode": {"both": "null"}.get(self.mode, self.mode),
                                      "disaggregation_bootstrap_port": 8998, "max_total_num_tokens": 1 << 20, "page_size": 1})
        elif handler.path == "/metrics" and self.kind == "sglang":
            self.text(handler, 200, 'sglang:num_running_reqs{model_name="m"} 0\n', "text/plain")
        else:
            self.reply(handler, 200 if handler.path == "/health" else 404, {})

    @staticmethod
    def text(handler, code, text, kind):
        handler.send_response(code)
        handler.send_header("content-type", kind)
        handler.send_header("content-length", str(len(text.encode())))
        handler.end_headers()
        handler.wfile.write(text.encode())

    def reply(self, handler, code, answer):
        self.text(handler, code, answer if isinstance(answer, str) else json.dumps(answer), "application/json")

    def error(self, handler, code, text):
        self.reply(handler, code, {"error": {"message": text, "type": "x", "code": code}})

    @staticmethod
    def die(handler):
        handler.connection.shutdown(socket.SHUT_RDWR)
        raise ConnectionError

    def is_gone(self, handler):
        """The client has closed its connection."""
        ready, _, _ = select.select([handler.connection], [], [], 0)
        return bool(ready) and handler.connection.recv(1, socket.MSG_PEEK) == b""

    def wait(self, handler, condition):
        """As engines do: until it holds, or the client leaves, or the request is aborted."""
        while not condition():
            if self.is_gone(handler):
                self.left += 1
                raise ConnectionError
            time.sleep(0.005)

    def post(self, handler, body):
        if handler.path == "/abort_request":
            self.aborted.append(body["rid"])  # and all whose ids begin so
            self.reply(handler, 200, {})
            return
        self.seen.append((body, dict((k.lower(), v) for k, v in handler.headers.items())))
        if "stuck" in self.faults:
            self.wait(handler, lambda: "stuck" not in self.faults)
        if "die" in self.faults:
            self.die(handler)
        for code in (400, 500):
            if str(code) in self.faults:
                self.error(handler, code, f"{self.name} has failed")
                return
        if self.faults & self.RAW.keys():
            self.raw(handler, *self.RAW[min(self.faults & self.RAW.keys())])
        (self.vllm if self.kind == "vllm" else self.sglang)(handler, body)

    # What it sends, and what it repeats until the router closes.
    RAW = {
        "giant": (b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 1073741824\r\n\r\n", b" " * 65536),
        "endless": (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n", b"4000\r\n" + b" " * 0x4000 + b"\r\n"),
        "garbage": (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n{}", b""),
        "redirect": (b"HTTP/1.1 307 Temporary Redirect\r\nlocation: http://127.0.0.1:1/\r\ncontent-length: 0\r\n\r\n", b""),
        "interim": (b"", b"HTTP/1.1 103 Early Hints\r\n\r\n"),
    }

    def raw(self, handler, first, again):
        """The connection is of no use afterwards."""
        handler.wfile.write(first)
        for _ in range(1 << 16 if again else 0):
            handler.wfile.write(again)
        self.wait(handler, lambda: False)

    # --- vLLM ---

    def vllm(self, handler, body):
        params, request = body.get("kv_transfer_params"), handler.headers["x-request-id"]
        if not params:
            self.answer(handler, body, 0)
        elif params.get("do_remote_decode"):
            self.prefill(handler, body, request)
        elif "fetch" in self.faults:
            self.load_failed(handler, body)
        else:
            with self.fleet.lock:
                kv = self.fleet.held.pop((params["remote_engine_id"], params["remote_request_id"]), None)
            if kv != prompt_of(body):
                self.load_failed(handler, body)
            else:
                self.answer(handler, body, 32)

    def load_failed(self, handler, body):
        """By the engine's policy; a stream has its head already."""
        if "recompute" in self.faults:
            self.answer(handler, body, 0)
        elif not body.get("stream"):
            self.error(handler, 500, "KV load failure")
        else:
            error = {"error": {"message": "KV load failure", "type": "InternalServerError", "code": 500}}
            self.text(handler, 200, f"data: {json.dumps(error)}\n\ndata: [DONE]\n\n", "text/event-stream")

    def prefill(self, handler, body, request):
        if body.get("max_tokens") != 1 or body.get("stream") or "stream_options" in body:
            self.error(handler, 400, "a prefill has one token and no stream")
            return
        with self.fleet.lock:
            self.fleet.held[self.name, request] = prompt_of(body)
        # Members in no particular order, some of them unknown, and blanks: relayed as they are.
        params = ('{"do_remote_prefill":true, "do_remote_decode": false,"remote_block_ids":[[1, 2],[3]],'
                  f'"remote_engine_id":"{self.name}","remote_request_id":"{request}","remote_host":"{self.host}",'
                  '"remote_port":5600,"tp_size":1,"a member of the future":{"x":[1.50,"\\u00e9"]},"transfer_mode":"pull"}')
        usage = '{"prompt_tokens":40,"completion_tokens":1,"total_tokens":41,"prompt_tokens_details":{"cached_tokens":8}}'
        self.params = params
        if "mute" in self.faults:
            params = "null"
        answer = ('{"id":"x","object":"chat.completion","choices":[{"index":0,"message":{"role":"assistant","content":'
                  f'"PREFILL"}},"finish_reason":"length"}}],"usage":{usage},"kv_transfer_params":{params}}}')
        if "late_die" in self.faults:
            handler.send_response(200)
            handler.send_header("content-type", "application/json")
            handler.send_header("content-length", str(len(answer)))
            handler.end_headers()
            handler.wfile.write(answer[:100].encode())
            self.die(handler)
        self.reply(handler, 200, answer)

    # --- SGLang ---

    def sglang(self, handler, body):
        if self.mode == "both":
            self.answer(handler, body, 0)
            return
        if "bootstrap_room" not in body:
            self.error(handler, 400, "Disaggregated request received without bootstrap room id")
            return
        rooms = body["bootstrap_room"] if isinstance(body["bootstrap_room"], list) else [body["bootstrap_room"]]
        rids = body["rid"] if isinstance(body["bootstrap_room"], list) else [body.get("rid")]
        assert len(rids) == len(rooms), "a batch has an id for each prompt"
        if self.mode == "prefill":
            with self.fleet.lock:
                for room in rooms:
                    assert room not in self.fleet.rooms, "rooms are unique"
                    self.fleet.rooms[room] = prompt_of(body)
            self.answer(handler, body, 8)
            return
        self.wait(handler, lambda: all(r in self.fleet.rooms for r in rooms) or self.is_aborted(rids))
        if self.is_aborted(rids):
            self.error(handler, 500, "aborted")
            return
        self.answer(handler, body, 40)

    def is_aborted(self, rids):
        return any(rid and rid.startswith(start) for rid in rids for start in self.aborted)

    # --- answers ---

    def answer(self, handler, body, cached):
        """Of `n` tokens; "hold" in the prompt waits for the gate before the second."""
        n = body.get("max_tokens") or 4
        holds = "hold" in prompt_of(body)
        usage = {"prompt_tokens": 40, "completion_tokens": n, "total_tokens": 40 + n,
                 "prompt_tokens_details": {"cached_tokens": cached}}
        choices = [{"index": i, "message": {"role": "assistant", "content": self.name + " " * n}, "text": self.name,
                    "finish_reason": "stop"} for i in range(body.get("n") or 1)]
        if not body.get("stream"):
            if holds:
                self.wait(handler, self.gate.is_set)
            self.reply(handler, 200, {"id": "x", "object": "chat.completion", "choices": choices, "usage": usage})
            return
        handler.send_response(200)
        handler.send_header("content-type", "text/event-stream")
        handler.send_header("transfer-encoding", "chunked")
        handler.end_headers()

        def event(text):
            data = f"data: {text}\n\n".encode()
            handler.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))

        for i in range(n):
            if i == 1 and holds:
                self.wait(handler, self.gate.is_set)
            if i == 1 and "late_die" in self.faults:
                self.die(handler)
            event(json.dumps({"id": "x", "choices": [{"index": 0, "delta": {"content": self.name}}]}))
        event(json.dumps({"id": "x", "choices": [], "usage": usage}))
        event("[DONE]")
        handler.wfile.write(b"0\r\n\r\n")
