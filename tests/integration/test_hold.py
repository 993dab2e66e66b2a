"""Late binding: requests wait in the router until a worker can start them. The workers here answer when the test lets
them; by what they publish, a prompt takes minutes, so that no test depends on time."""
import concurrent.futures
import json
import signal
import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from conftest import PATIENCE_S, Router, http, wait_for

RATE = 10  # prompt tokens a second, as the workers publish
LONG, MIDDLE, SHORT = 40000, 6000, 800  # bytes of a prompt: 1000, 150 and 20 seconds of prefill
# A worker here is never given up for being slow, and all clients may connect to it at once: either would hold requests.
PATIENT = "--probe-timeout", "1m", "--connect-timeout", "1m"


class Slow(BaseHTTPRequestHandler):
    """A worker of ours as the router sees it."""
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def send(self, body, headers=()):
        data = json.dumps(body).encode()
        self.send_response(200)
        for name, value in (("Content-Type", "application/json"), ("Content-Length", len(data)), *headers):
            self.send_header(name, str(value))
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self):
        of = self.server.of
        self.send({"wire": 1, "model": "m", "backend": "sim", "block_size": 16, "n_blocks": 100000, "generation": of.generation,
                   "prefill_tokens_per_s": RATE, "attn_context": 1e9, "max_num_seqs": 64, **of.info})

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        of, name = self.server.of, body["user"]
        with of.lock:
            of.started.append(name)
            gate = of.gates.setdefault(name, threading.Event())
        gate.wait(60)
        if name in of.broken:
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)
            return
        n = len(body["prompt"]) // 4
        self.send({"choices": [{"text": "x", "index": 0, "finish_reason": "stop"}],
                   "usage": {"prompt_tokens": n, "completion_tokens": 1}},
                  [("x-incipit-prompt-tokens", n), ("x-incipit-cached-tokens", 0)])


class SlowWorker:
    handler = Slow

    def __init__(self, **info):
        self.info, self.generation, self.lock = info, f"g{id(self)}", threading.Lock()
        self.started, self.gates, self.broken = [], {}, set()
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), self.handler)
        self.server.of = self
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def release(self, name):
        with self.lock:
            self.gates.setdefault(name, threading.Event()).set()

    def wait_for(self, *names):
        wait_for(lambda: self.started == list(names), f"{names}, and there is {self.started}")

    def stop(self):
        for gate in self.gates.values():
            gate.set()
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture
def slow():
    workers = []

    def start(**info):
        workers.append(SlowWorker(**info))
        return workers[-1]
    yield start
    for worker in workers:
        worker.stop()


class Clients:
    """Requests that are under way, each known by its name."""

    def __init__(self, router):
        self.router, self.pool = router, concurrent.futures.ThreadPoolExecutor(200)

    def send(self, name, n_bytes, **headers):
        prompt = (name + " ") * (n_bytes // (len(name) + 1))
        body = {"model": "m", "prompt": prompt, "user": name, "max_tokens": 1}
        return self.pool.submit(self.router.post, "/v1/completions", body,
                                headers={"x-incipit-route": "1", **{k.replace("_", "-"): str(v) for k, v in headers.items()}})

    def waiting(self, n):
        wait_for(lambda: self.router.metric("incipit_requests_waiting") == n,
                 f"{n} to wait, and {self.router.metric('incipit_requests_waiting')} do")


@pytest.fixture
def fleet(programs, slow):
    def start(*args, n=1, **info):
        workers = [slow(**info) for _ in range(n)]
        router = programs(Router, "--worker-urls", *[w.url for w in workers], "--explain-to-clients", *PATIENT, *args).ready(n)
        return Clients(router), *workers
    return start


def route_of(answer):
    assert answer.code == 200, answer.body
    return dict(field.split("=") for field in answer.headers["x-incipit-route"].split())


def test_a_request_waits_for_its_worker_and_the_shortest_goes_first(fleet):
    clients, worker = fleet()
    first = clients.send("first", LONG)
    worker.wait_for("first")
    long = clients.send("long", LONG)
    clients.waiting(1)
    middle = clients.send("middle", MIDDLE)
    clients.waiting(2)
    short = clients.send("short", SHORT)
    clients.waiting(3)
    assert worker.started == ["first"]
    for name, answer in (("first", first), ("short", short), ("middle", middle), ("long", long)):
        worker.release(name)
        route = route_of(answer.result())
        assert ("held_by" in route) == (name != "first"), route
        if name != "first":
            assert route["held_by"] == ("backlog" if name == "long" else "behind") and route["position"] == "1", route
    assert worker.started == ["first", "short", "middle", "long"]
    router = clients.router
    assert router.metric("incipit_requests_held_total", reason="backlog") == 1
    assert router.metric("incipit_requests_held_total", reason="behind") == 2
    assert router.metric("incipit_queue_wait_seconds_count") == 3
    lines = lambda: [line for line in router.log.splitlines() if " request " in line and "held_by=backlog" in line]
    held = wait_for(lines, "the line of the one that was held")
    assert len(held) == 1 and "position=1" in held[0], router.log


def test_an_idle_fleet_holds_nothing(fleet):
    clients, *workers = fleet(n=4)
    for i in range(20):
        for worker in workers:
            worker.release(f"r{i}")
        route = route_of(clients.send(f"r{i}", MIDDLE).result())
        assert "held_by" not in route, f"{route} {clients.router.log}"
    assert clients.router.metric("incipit_queue_wait_seconds_count") == 0


def test_a_hold_of_zero_sends_everything_at_once(fleet):
    clients, worker = fleet("--hold-ms", 0)
    answers = [clients.send(f"r{i}", LONG) for i in range(10)]
    wait_for(lambda: len(worker.started) == 10, "all to be sent")
    for i, answer in enumerate(answers):
        worker.release(f"r{i}")
        route = route_of(answer.result())
        assert "held_by" not in route, f"{route} {clients.router.log}"


def test_before_workers_that_publish_srpt_more_is_sent(fleet):
    for order, is_held in (("fcfs", True), ("srpt", False)):
        clients, worker = fleet(schedule_policy=order)
        answers = {}
        for name in ("a", "first"):  # 0.1 s that pass, and 0.7 s behind them, which do not: more than 0.4, less than 1
            answers[name] = clients.send(name, {"a": 4, "first": 28}[name])
            wait_for(lambda: worker.started[-1:] == [name], f"{name} after {worker.started}")
        answers["second"] = clients.send("second", 40)
        wait_for(lambda: clients.router.metric("incipit_requests_waiting") == is_held and
                 len(worker.started) == 3 - is_held, "the second to wait, or to be sent")
        for name in answers:
            worker.release(name)
        held = {name: "held_by" in route_of(answer.result()) for name, answer in answers.items()}
        assert held == {"a": False, "first": False, "second": is_held}


def test_tenants_take_turns_and_priorities_go_first(fleet, tmp_path):
    (tmp_path / "keys").write_text("sk-flood tenant=flood\nsk-other tenant=other\n")
    clients, worker = fleet("--api-keys-file", tmp_path / "keys")
    key = lambda name: {"authorization": f"Bearer sk-{name}"}
    answers = [clients.send("first", LONG, **key("flood"))]
    worker.wait_for("first")
    for i in range(4):
        answers.append(clients.send(f"flood{i}", SHORT, **key("flood")))
        clients.waiting(i + 1)
    answers.append(clients.send("other", MIDDLE, **key("other")))
    clients.waiting(5)
    answers.append(clients.send("late", SHORT // 4, x_incipit_priority=3, **key("other")))
    clients.waiting(6)
    for i in range(7):
        wait_for(lambda: len(worker.started) == i + 1, f"another after {worker.started}")
        worker.release(worker.started[-1])
    assert [a.result().code for a in answers] == [200] * 7
    # Cheaper than the other tenant's by far, until their own has been served more: by a walk that looks at the worker then, or the next.
    flood = [name for name in worker.started if name.startswith("flood")]
    assert flood == ["flood0", "flood1", "flood2", "flood3"] and worker.started[0] == "first" and worker.started[-1] == "late"
    assert worker.started.index("other") in (2, 3), worker.started


def test_weights_of_keys_divide_what_is_served_and_change_with_the_file(fleet, tmp_path):
    path, n = tmp_path / "keys", 24
    write = lambda a, b: path.write_text(f"sk-a tenant=a {a}\nsk-b tenant=b {b}\nsk-c tenant=c\n")
    write("weight=0.5", "")
    clients, worker = fleet("--api-keys-file", path)
    key = lambda name: {"authorization": f"Bearer sk-{name}"}
    for a, b, share in (("weight=3", "", 0.75), ("", "max_share=0.2", 0.8)):
        write(a, b)
        before = clients.router.log.count(" keys_reloaded ")
        clients.router.process.send_signal(signal.SIGHUP)
        wait_for(lambda: clients.router.log.count(" keys_reloaded ") > before, "the new keys")
        start = len(worker.started)
        answers = [clients.send(f"first{start}", LONG, **key("c"))]
        wait_for(lambda: len(worker.started) == start + 1, "the first")
        for i in range(n):
            answers += [clients.send(f"{t}{start}-{i}", SHORT, **key(t)) for t in "ab"]
        clients.waiting(2 * n)
        for i in range(len(answers)):
            wait_for(lambda: len(worker.started) == start + i + 1, f"another after {worker.started}")
            worker.release(worker.started[-1])
        assert [answer.result().code for answer in answers] == [200] * len(answers)
        served = [name[0] for name in worker.started[start + 1:start + 1 + n]]
        assert abs(served.count("a") / n - share) <= 0.13, served


def test_a_client_that_leaves_is_out_of_the_queue_at_once(fleet):
    clients, worker = fleet()
    first = clients.send("first", LONG)
    worker.wait_for("first")
    port = int(clients.router.url.rsplit(":", 1)[1])
    body = json.dumps({"model": "m", "prompt": "gone " * 5000, "user": "gone"}).encode()
    leaves = socket.create_connection(("127.0.0.1", port))
    leaves.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"
                   b"Content-Length: %d\r\n\r\n" % len(body) + body)
    clients.waiting(1)
    stays = clients.send("stays", LONG)
    clients.waiting(2)
    leaves.close()
    clients.waiting(1)
    for name in ("first", "stays"):
        worker.release(name)
    assert first.result().code == stays.result().code == 200
    assert worker.started == ["first", "stays"]
    assert clients.router.metric("incipit_requests_waiting") == 0


def test_a_request_whose_worker_is_lost_waits_again_in_its_old_place(fleet):
    clients, one, two = fleet("--slow-start", 0, n=2)
    lost = clients.send("lost", MIDDLE)
    wait_for(lambda: len(one.started + two.started) == 1, "the first to be sent")
    bad, good = (one, two) if one.started else (two, one)
    other = clients.send("other", LONG)
    good.wait_for("other")
    equal = clients.send("equal", MIDDLE)  # came later, costs as much
    clients.waiting(1)
    bad.broken.add("lost")
    bad.server.shutdown()
    bad.server.server_close()
    bad.release("lost")
    clients.waiting(2)
    good.release("other")
    wait_for(lambda: len(good.started) == 2, "the next")
    assert good.started == ["other", "lost"]
    for name in ("lost", "equal"):
        good.release(name)
    route = route_of(lost.result())
    assert route["attempts"] == "2" and "held_by" in route, route
    assert equal.result().code == other.result().code == 200
    assert good.started == ["other", "lost", "equal"]


def test_when_all_workers_leave_for_good_waiting_requests_get_503(fleet):
    clients, worker = fleet()
    first = clients.send("first", LONG)
    worker.wait_for("first")
    held = [clients.send(f"held{i}", LONG) for i in range(3)]
    clients.waiting(3)
    assert http(clients.router.admin_url + "/workers/0", {"draining": True}, method="PATCH").code == 202
    for answer in held:
        refused = answer.result()
        assert refused.code == 503 and int(refused.headers["retry-after"]) > 0 and "draining" in refused.body
    worker.release("first")
    assert first.result().code == 200
    assert clients.router.metric("incipit_requests_waiting") == 0


def test_a_router_that_stops_still_serves_what_it_holds(fleet):
    clients, worker = fleet()
    first = clients.send("first", LONG)
    worker.wait_for("first")
    held = [clients.send(f"held{i}", LONG) for i in range(3)]
    clients.waiting(3)
    clients.router.process.send_signal(signal.SIGTERM)
    wait_for(lambda: " draining" in clients.router.log or "drain" in clients.router.log, "the drain")
    for name in ("first", "held0", "held1", "held2"):
        worker.release(name)
    assert [a.result().code for a in [first, *held]] == [200] * 4
    assert clients.router.process.wait(PATIENCE_S) == 0


def test_a_router_that_cannot_wait_refuses_what_it_holds(fleet):
    clients, worker = fleet("--drain-timeout", "1s")
    first = clients.send("first", LONG)
    worker.wait_for("first")
    held = [clients.send(f"held{i}", LONG) for i in range(3)]
    clients.waiting(3)
    clients.router.process.send_signal(signal.SIGTERM)
    for answer in held:
        try:
            assert answer.result().code in (502, 503)
        except OSError:
            pass  # its connection ended
    first.exception()
    assert clients.router.process.wait(PATIENCE_S) in (0, 1)


@pytest.mark.parametrize("hold", ["0", "1h"])
def test_another_hold_lets_waiting_requests_go(fleet, hold):
    clients, worker = fleet()
    answers = [clients.send("first", LONG)]
    worker.wait_for("first")
    answers.append(clients.send("held", MIDDLE))
    clients.waiting(1)
    assert http(clients.router.admin_url + "/config", {"hold-ms": hold}, method="PUT").code == 200
    wait_for(lambda: len(worker.started) == 2, "the held one to go")
    answers.append(clients.send("next", MIDDLE))
    wait_for(lambda: len(worker.started) == 3, "the next one to go")
    for name in ("first", "held", "next"):
        worker.release(name)
    assert [a.result().code for a in answers] == [200] * 3
    assert http(clients.router.admin_url + "/config", {"hold-ms": None}, method="PUT").code == 200


def test_a_router_that_is_killed_loses_its_own_requests_alone(programs, slow):
    worker = slow()
    routers = [programs(Router, "--worker-urls", worker.url, "--explain-to-clients", *PATIENT).ready(1) for _ in range(2)]
    one, two = map(Clients, routers)
    firsts = [c.send(f"first{i}", LONG) for i, c in enumerate((one, two))]
    wait_for(lambda: len(worker.started) == 2, "one of each")
    n = 100
    held = [c.send(f"held{i}-{k}", SHORT) for i, c in enumerate((one, two)) for k in range(n)]
    one.waiting(n)
    two.waiting(n)
    one.router.process.kill()
    for answer in held[:n]:
        with pytest.raises(OSError):
            answer.result()
    for name in ["first0", "first1"] + [f"held1-{k}" for k in range(n)]:
        worker.release(name)
    assert [a.result().code for a in held[n:]] == [200] * n
    assert firsts[1].result().code == 200
    firsts[0].exception()
    assert not any(name.startswith("held0") for name in worker.started)
