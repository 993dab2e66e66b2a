"""A router that is named as a worker: another, or itself. It is recognised, and a request never goes round."""
import json
import threading
from http import server as http_server

import pytest

from conftest import Router, free_port, http, metric, wait_for

FAST = ["--probe-interval", "50ms", "--health-success-threshold", 1]
BODY = {"prompt": "a b c", "max_tokens": 1}


def refused(router):
    return metric(router.metrics(), "incipit_routers_refused_total")


def started(router):
    router.url, router.admin_url = (f"http://127.0.0.1:{router.field('router_listening', name)}" for name in ("port", "admin_port"))
    wait_for(lambda: router.get("/readyz").code == 200, "a worker")
    return router


@pytest.mark.parametrize("keys", [False, True])
def test_a_router_among_the_workers_is_not_used(programs, sim, tmp_path, keys):
    (tmp_path / "keys").write_text("sk\n")
    inner = programs(Router, "--worker-urls", sim.url, *(["--api-keys-file", tmp_path / "keys"] if keys else [])).ready(1)
    outer = started(programs(Router, "--worker-urls", sim.url, inner.url, *FAST))
    wait_for(lambda: refused(outer) == 1, "the inner router to be recognised")
    wait_for(lambda: "worker_is_a_router" in outer.log, "the line")
    for _ in range(20):
        assert outer.post("/v1/completions", BODY).code == 200
    assert metric(inner.metrics(), "incipit_worker_requests_total") == 0
    assert outer.n_healthy() == 1 and refused(outer) == 1
    assert http(outer.admin_url + "/workers/1").json["status"] == "pending"


def test_a_router_among_its_own_workers_is_not_used(programs, sim):
    port = free_port()
    router = started(programs(Router, "--worker-urls", sim.url, f"http://127.0.0.1:{port}", *FAST, port=port))
    wait_for(lambda: refused(router) == 1, "it to recognise itself")
    for _ in range(20):
        assert router.post("/v1/completions", BODY).code == 200
    assert sim.metric("vllm:request_success_total", finished_reason="length") == 20
    assert metric(router.metrics(), "incipit_worker_requests_total", worker=f"http://127.0.0.1:{port}") == 0


class Mirror:
    """Between a router and itself: reports to be an engine, and sends requests back where they come from."""

    def __init__(self):
        mirror = self

        class Handler(http_server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *args):
                pass

            def answer(self, code, body):
                self.send_response(code)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def do_GET(self):
                models = json.dumps({"data": [{"id": "m"}]}).encode()
                self.answer(*{"/health": (200, b""), "/v1/models": (200, models)}.get(self.path, (404, b"")))

            def do_POST(self):
                body = self.rfile.read(int(self.headers["content-length"]))
                mirror.n_requests += 1
                mirror.via.append(self.headers.get_all("via"))
                reply = http(mirror.back + self.path, body, headers={"via": ", ".join(self.headers.get_all("via") or [])})
                self.answer(reply.code, reply.body.encode())

        self.n_requests, self.via, self.back = 0, [], None
        self.server = http_server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


@pytest.fixture
def mirror():
    made = Mirror()
    yield made
    made.server.shutdown()
    made.server.server_close()


def test_a_request_that_comes_back_is_refused_at_once(programs, mirror):
    router = programs(Router, "--worker-urls", mirror.url, "--max-retries", 0, *FAST).ready(1)
    mirror.back = router.url
    answer = router.post("/v1/completions", BODY)
    assert answer.code == 508 and answer.json["error"]["type"] == "LoopDetectedError", answer.body
    assert "come back" in answer.json["error"]["message"] and mirror.n_requests == 1
    assert metric(router.metrics(), "incipit_requests_forbidden_total", why="loop") == 1


def test_via_of_others_is_passed_on_and_no_loop(programs, mirror, sim):
    router = programs(Router, "--worker-urls", mirror.url, *FAST).ready(1)
    mirror.back = sim.url
    answer = router.post("/v1/completions", BODY, headers={"Via": "1.1 gateway, 1.1 incipit-0000000000000000"})
    assert answer.code == 200, answer.body
    theirs, ours = mirror.via[0]
    assert theirs == "1.1 gateway, 1.1 incipit-0000000000000000" and ours == "1.1 " + router.get("/server_info").json["router"]
