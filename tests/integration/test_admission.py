"""When every worker is at its limit: who waits, who is refused, and how soon."""
import json
import threading
import time
from http.client import HTTPConnection

import pytest

from conftest import Router, Worker, http, metric, wait_for

LONG = {"prompt": "a long answer", "max_tokens": 4000, "stream": True, "ignore_eos": True}
SHORT = {"prompt": "a short answer", "max_tokens": 1}


class Stream:
    """An answer that keeps a place at its worker until it is closed."""

    def __init__(self, router, body=LONG, headers=None):
        self.connection = HTTPConnection(router.url[len("http://"):])
        self.connection.request("POST", "/v1/completions", json.dumps(body),
                                {"Content-Type": "application/json", **(headers or {})})
        self.answer = self.connection.getresponse()
        assert self.answer.status == 200

    def close(self):
        self.answer.close()
        self.connection.close()


class Asked(threading.Thread):
    """A request whose answer is awaited on the side."""

    def __init__(self, router, order=None, body=SHORT, **more):
        super().__init__(daemon=True)
        self.router, self.order, self.body, self.more, self.answer = router, order, body, more, None
        self.start()

    def run(self):
        self.answer = self.router.post("/v1/completions", self.body, **self.more)
        if self.order is not None:
            self.order.append(self)


@pytest.fixture
def narrow(programs):
    """A router before one slow simulated worker that takes one request at a time."""
    def start(*args, speed=1):
        worker = programs(Worker, "--backend", "sim", "--sim-speed", speed).ready()
        router = programs(Router, "--worker-urls", worker.url, "--max-worker-requests", 1, *args).ready(1)
        router.waiting = lambda: http(router.admin_url + "/metrics").body.split("\nincipit_requests_waiting ")[1].split()[0]
        router.refused = lambda limit: metric(http(router.admin_url + "/metrics").body, "incipit_requests_refused_total",
                                              limit=limit)
        return router
    return start


def lower(headers):
    return {name.lower(): value for name, value in headers.items()}


def test_a_request_without_a_slot_waits_for_one(narrow):
    router = narrow()
    first = Stream(router)
    waits = [Asked(router) for _ in range(3)]
    wait_for(lambda: router.waiting() == "3", "three that wait")
    assert all(w.answer is None for w in waits)
    first.close()
    for w in waits:
        w.join(30)
        assert w.answer.code == 200
    assert router.waiting() == "0"
    assert http(router.admin_url + "/metrics").body.count("incipit_queue_wait_seconds_count 3") == 1


def test_a_full_queue_refuses_at_once_and_by_name(narrow):
    router = narrow("--queue-size", 1)
    first = Stream(router)
    waits = Asked(router)
    wait_for(lambda: router.waiting() == "1", "one that waits")
    began = time.monotonic()
    refused = router.post("/v1/completions", SHORT)
    took_s = time.monotonic() - began
    assert refused.code == 429 and "--queue-size" in refused.json["error"]["message"] and "of 1 " in refused.body
    assert int(lower(refused.headers)["retry-after"]) >= 1 and router.refused("queue-size") == 1
    print(f"\nrefused after {took_s * 1e3:.2f} ms")
    first.close()
    waits.join(30)
    assert waits.answer.code == 200


def test_while_the_last_worker_is_away_requests_wait_and_the_router_stays_ready(programs):
    worker = programs(Worker, "--backend", "sim", "--sim-speed", 20).ready()
    port = worker.url.rsplit(":", 1)[1]
    router = programs(Router, "--worker-urls", worker.url, "--probe-interval", "50ms", "--probe-misses", 1).ready(1)
    worker.process.kill()
    wait_for(lambda: router.n_healthy() == 0, "the worker to be missed")
    assert http(router.admin_url + "/readyz").code == 200 and router.get("/readyz").code == 200
    waits = Asked(router)
    wait_for(lambda: metric(http(router.admin_url + "/metrics").body, "incipit_requests_waiting") == 1, "one that waits")
    programs(Worker, "--backend", "sim", "--sim-speed", 20, port=port).ready()
    waits.join(30)
    assert waits.answer.code == 200


def test_once_the_last_worker_is_away_for_longer_than_requests_may_wait_the_router_is_not_ready(programs):
    worker = programs(Worker, "--backend", "sim").ready()
    router = programs(Router, "--worker-urls", worker.url, "--probe-interval", "50ms", "--probe-misses", 1,
                      "--queue-timeout", "300ms").ready(1)
    worker.process.kill()
    wait_for(lambda: http(router.admin_url + "/readyz").code == 503, "it to give up")
    refused = router.post("/v1/completions", SHORT)
    assert refused.code == 503 and "no worker is available" in refused.json["error"]["message"] and "retry-after" in lower(refused.headers)


def test_patience_has_an_end(narrow):
    router = narrow("--queue-timeout", "100ms")
    first = Stream(router)
    late = router.post("/v1/completions", SHORT)
    assert late.code == 503 and "--queue-timeout" in late.json["error"]["message"] and "0.1 s" in late.body
    assert "retry-after" in lower(late.headers) and router.refused("queue-timeout") == 1 and router.waiting() == "0"
    first.close()
    assert router.post("/v1/completions", SHORT).code == 200


def test_a_client_that_leaves_is_out_of_the_queue(narrow):
    router = narrow()
    first = Stream(router)
    connection = HTTPConnection(router.url[len("http://"):])
    connection.request("POST", "/v1/completions", json.dumps(SHORT), {"Content-Type": "application/json"})
    wait_for(lambda: router.waiting() == "1", "one that waits")
    connection.close()
    wait_for(lambda: router.waiting() == "0", "the queue without it")
    first.close()
    assert router.post("/v1/completions", SHORT).code == 200


def test_the_urgent_go_first_where_their_key_allows_it(narrow, tmp_path):
    (tmp_path / "keys").write_text("sk-usual tenant=a\nsk-urgent tenant=a priority=-2\n")
    router = narrow("--api-keys-file", tmp_path / "keys")
    ask = lambda key, **more: {"Authorization": "Bearer " + key, **more}
    first = Stream(router, headers=ask("sk-usual"))
    order, asked = [], []
    for n, headers in enumerate([ask("sk-usual", **{"x-incipit-priority": "3"}), ask("sk-usual"),
                                 ask("sk-usual", **{"x-smg-priority": "-8"}), ask("sk-urgent")]):
        asked.append(Asked(router, order, headers=headers))
        wait_for(lambda: router.waiting() == str(n + 1), "it to wait")
    first.close()
    wait_for(lambda: len(order) == 4, "all answers")
    assert [asked.index(a) for a in order] == [3, 1, 2, 0]


def test_a_flood_of_one_tenant_leaves_the_other_its_turn(narrow, tmp_path):
    (tmp_path / "keys").write_text("sk-flood\nsk-calm\n")
    router = narrow("--api-keys-file", tmp_path / "keys", "--queue-size", 8, "--threads", 2, "--hold-ms", 0)
    first = Stream(router, headers={"Authorization": "Bearer sk-flood"})
    order = []
    flood = [Asked(router, order, headers={"Authorization": "Bearer sk-flood"}) for _ in range(12)]
    wait_for(lambda: router.waiting() == "8" and sum(f.answer is not None for f in flood) == 4, "a full queue")
    calm = [Asked(router, order, headers={"Authorization": "Bearer sk-calm"}) for _ in range(2)]
    wait_for(lambda: sum(f.answer is not None for f in flood) == 6, "two that made room")
    first.close()
    wait_for(lambda: all(a.answer is not None for a in flood + calm), "all answers")
    assert [c.answer.code for c in calm] == [200, 200]
    assert sorted(f.answer.code for f in flood) == [200] * 6 + [429] * 6
    served = [a for a in order if a.answer.code == 200]
    assert max(served.index(c) for c in calm) <= 5


def test_a_worker_reports_its_capacity(programs):
    worker = programs(Worker, "--backend", "sim", "--sim-speed", 1, "--max-num-seqs", 2).ready()
    assert worker.get("/server_info").json["max_num_seqs"] == 2
    router = programs(Router, "--worker-urls", worker.url, "--queue-size", 0).ready(1)
    open_ones = [Stream(router) for _ in range(2)]
    extra = Asked(router)  # one beyond its batch, so that it never idles
    wait_for(lambda: router.workers()["workers"][0]["load"] == 3, "three in flight")
    assert router.post("/v1/completions", SHORT).code == 429
    for s in open_ones:
        s.close()
    extra.join(30)
    assert extra.answer.code == 200


def test_a_drain_serves_waiting_requests(narrow):
    router = narrow()
    first = Stream(router)
    waits = Asked(router)
    wait_for(lambda: router.waiting() == "1", "one that waits")
    router.process.terminate()
    wait_for(lambda: "router_draining" in router.log, "the drain")
    first.close()
    waits.join(30)
    assert waits.answer.code == 200 and router.process.wait(30) == 0
