"""--strip-client-noise: what a coding agent writes differently in each request costs no cache hit."""
import http.server
import json
import threading

from conftest import Router, Worker

SYSTEM = "You are a coding agent. " * 80


def header(i):
    return f"x-anthropic-billing-header: cc_version=2.1.{i}; cc_entrypoint=cli; cch={i * 7919:05x};"


def total(i):
    return f"<total_tokens>{190000 - 17 * i} tokens left</total_tokens>"


def chat(i):
    return {"max_tokens": 1, "messages": [{"role": "system", "content": f"{header(i)}\n{SYSTEM}{total(i)}"},
                                          {"role": "user", "content": "Hello"}]}


def cached(router, i):
    answer = router.post("/v1/chat/completions", chat(i))
    assert answer.code == 200, answer.body
    usage = answer.json["usage"]
    return usage["prompt_tokens_details"]["cached_tokens"] / usage["prompt_tokens"]


def test_changing_nonces_keep_the_cached_prefix(programs):
    worker = programs(Worker, "--backend", "sim", "--sim-speed", 20).ready()
    router = programs(Router, "--worker-urls", worker.url, "--strip-client-noise", "all").ready(1)
    assert cached(router, 1) < 0.1
    assert all(cached(router, i) > 0.9 for i in range(2, 5))
    for kind in ("billing_header", "total_tokens"):
        assert router.metric("incipit_client_noise_total", kind=kind) == 4
    kept = programs(Router, "--worker-urls", worker.url, "--strip-client-noise", "off").ready(1)
    assert cached(kept, 5) < 0.1 and cached(kept, 6) < 0.1


class Engine(http.server.BaseHTTPRequestHandler):
    """An engine with /v1/messages; it keeps the bodies that it gets, and fails the first."""
    protocol_version = "HTTP/1.1"

    def reply(self, code, data):
        self.send_response(code)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self):
        known = {"/health": {}, "/v1/models": {"data": [{"id": "m"}]}}.get(self.path)
        self.reply(404 if known is None else 200, json.dumps(known or {}).encode())

    def do_POST(self):
        self.server.bodies.append(self.rfile.read(int(self.headers["content-length"])))
        self.reply(500 if len(self.server.bodies) == 1 else 200, b'{"type":"message","content":[{"type":"text","text":"a"}]}')

    def log_message(self, *args):
        pass


def test_messages_are_sent_without_noise_also_when_retried(programs):
    engines = [http.server.ThreadingHTTPServer(("127.0.0.1", 0), Engine) for _ in range(2)]
    bodies = []
    for e in engines:
        e.bodies = bodies
        threading.Thread(target=e.serve_forever, daemon=True).start()
    router = programs(Router, "--worker-urls", *(f"http://127.0.0.1:{e.server_port}" for e in engines)).ready(2)
    text = lambda t: {"type": "text", "text": t}
    user = {"role": "user", "content": header(1) + "\n" + total(1)}
    sent = {"model": "m", "messages": [user], "system": [text(header(1)), text(SYSTEM), text("End." + total(1))], "max_tokens": 1}
    want = {**sent, "system": [text(SYSTEM), text("End.")]}
    assert router.post("/v1/messages", sent).code == 200
    assert bodies == [json.dumps(want).encode()] * 2  # the second is the retry; else byte by byte the same
    assert router.metric("incipit_client_noise_total", kind="billing_header") == 1
    bodies[:] = [b""]
    assert router.post("/v1/chat/completions", {"model": "m", **chat(2)}).code == 200
    assert json.loads(bodies[1])["messages"] == chat(2)["messages"]  # ignored in hashes alone
    for e in engines:
        e.shutdown()
        e.server_close()
