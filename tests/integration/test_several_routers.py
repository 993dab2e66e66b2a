"""Routers side by side in front of the same workers, which publish every request to all of them."""
import contextlib
import re
import signal
import socket
import threading

import pytest
from conftest import Router, Worker, events, free_port, wait_for

SLOW = {"prompt": "a long answer", "max_tokens": 4000, "stream": True, "ignore_eos": True}


@pytest.fixture(autouse=True)
def seed(monkeypatch):
    monkeypatch.setenv("INCIPIT_PREFIX_HASH_SEED", "the same on all of them")


@pytest.fixture
def workers(programs):
    return [programs(Worker, "--backend", "sim", "--sim-speed", 20) for _ in range(3)]


def urls(workers):
    return [w.ready().url for w in workers]


def in_front(programs, urls, *args, n_followed=None):
    """A router that has caught up with all of them."""
    router = programs(Router, "--worker-urls", *urls, "--explain-to-clients", *args).ready(len(urls))
    wait_for(lambda: router.metric("incipit_followed_workers") == (len(urls) if n_followed is None else n_followed),
             "streams of events")
    return router


def prompt(i, tail=""):
    return f"You are assistant number {i}, and these are your rules. " * 40 + tail


def ask(router, text, **more):
    """(worker, predicted cached tokens, cached tokens) of one request."""
    answer = router.post("/v1/completions", {"model": "synthetic", "prompt": text, "max_tokens": 2, **more},
                         headers={"x-incipit-route": "1"})
    assert answer.code == 200, answer.body
    route = answer.headers["x-incipit-route"]
    return tuple(int(re.search(rf"\b{name}=(-?\d+)", route)[1])
                 for name in ("worker", "predicted_cached_tokens", "cached_tokens"))


def n_received(router, kind="ended"):
    return router.metric("incipit_shared_events_total", kind=kind)


def wait_received(routers, n, kind="ended"):
    wait_for(lambda: all(n_received(r, kind) >= n for r in routers), f"{n} times {kind}")


@contextlib.contextmanager
def answering(router, body=SLOW):
    """A stream through that router, for as long as it is needed."""
    stream = events(router.url + "/v1/completions", {"model": "synthetic", **body})
    next(stream)
    try:
        yield
    finally:
        stream.close()


def test_equal_openings_end_at_the_same_worker_through_any_router(programs, workers):
    routers = [in_front(programs, urls(workers)) for _ in range(2)]
    homes = set()
    for i in range(8):
        home, predicted, cached = ask(routers[i % 2], prompt(i, "first"))
        assert predicted == 0
        wait_received(routers, 2 * i + 1)
        there, predicted, cached = ask(routers[1 - i % 2], prompt(i, "second"))
        assert there == home and predicted > 1000 and cached > 1000
        wait_received(routers, 2 * i + 2)
        homes.add(home)
    assert len(homes) > 1
    for router in routers:
        assert router.metric("incipit_shared_gaps_total") == 0
        assert router.metric("incipit_worker_requests_total") == 8
        assert router.metric("incipit_requests_total", code="200") == 8


def test_routers_that_share_nothing_choose_apart(programs, workers):
    first, second = [in_front(programs, urls(workers), "--share", "none", n_followed=0) for _ in range(2)]
    ask(first, prompt(1))
    assert ask(second, prompt(1))[1] == 0
    assert sum(w.metric("incipit_request_events_subscribers") for w in workers) == 0


def test_requests_of_another_router_count_as_load(programs, workers):
    first, second = [in_front(programs, urls(workers)) for _ in range(2)]
    with answering(first):
        wait_for(lambda: second.metric("incipit_shared_requests_in_flight") == 1, "the other's request")
        assert second.metric("incipit_requests_in_flight") == 0
        assert second.metric("incipit_worker_in_flight") == 1 and first.metric("incipit_worker_in_flight") == 1
        assert first.metric("incipit_shared_requests_in_flight") == 0
        loads = [w["load"] for w in second.workers()["workers"]]
        assert sorted(loads) == [0, 0, 1] and loads == [w["load"] for w in first.workers()["workers"]]
        assert [w["shared_load"] for w in second.workers()["workers"]] == loads
    wait_for(lambda: second.metric("incipit_worker_in_flight") == 0, "its end")


def test_limits_hold_for_all_routers_together(programs):
    worker = programs(Worker, "--backend", "sim", "--sim-speed", 20).ready()
    first, second = [in_front(programs, [worker.url], "--max-worker-requests", 1) for _ in range(2)]
    answers = []
    with answering(first):
        wait_for(lambda: second.metric("incipit_shared_requests_in_flight") == 1, "the other's request")
        waiting = threading.Thread(target=lambda: answers.append(ask(second, prompt(1))))
        waiting.start()
        wait_for(lambda: second.metric("incipit_requests_waiting") == 1, "a request in the queue")
        assert not answers
    waiting.join(40)
    assert len(answers) == 1


def test_a_restarted_router_restores_its_predecessors_index(programs, workers):
    addresses = urls(workers)
    first = in_front(programs, addresses)
    homes = [ask(first, prompt(i))[0] for i in range(6)]
    with answering(first):
        second = in_front(programs, addresses)  # while it takes over, the old one's requests run on
        wait_for(lambda: second.metric("incipit_shared_requests_in_flight") == 1, "what the old one has open")
        first.stop(signal.SIGKILL)
        wait_for(lambda: second.metric("incipit_shared_requests_in_flight") == 0, "its end")
    for i, home in enumerate(homes):
        there, predicted, cached = ask(second, prompt(i, "and on"))
        assert there == home and predicted > 1000 and cached > 1000


def test_direct_clients_of_a_worker_are_load_too(programs, workers):
    router = in_front(programs, urls(workers))
    with answering(workers[1]):
        wait_for(lambda: router.metric("incipit_shared_requests_in_flight") == 1, "a request of a lost router")
        assert router.metric("incipit_worker_in_flight", worker=workers[1].url) == 1


def test_routers_that_hash_in_another_way_share_load_alone(programs, workers, monkeypatch):
    addresses = urls(workers)
    first = in_front(programs, addresses)
    monkeypatch.setenv("INCIPIT_PREFIX_HASH_SEED", "another one")
    second = in_front(programs, addresses)
    ask(first, prompt(1))
    ask(first, prompt(2))
    wait_received([second], 2)
    assert ask(second, prompt(1))[1] == 0
    assert second.log.count("shared_hashes_differ") == 1 and "--prefix-hash-seed" in second.log
    with answering(first):
        wait_for(lambda: second.metric("incipit_shared_requests_in_flight") == 1, "its load")


def test_workers_without_request_events_are_routed_to(programs):
    plain = [programs(Worker, "--backend", "sim", "--sim-speed", 20, "--request-events-buffer-bytes", 0).ready()
             for _ in range(2)]
    router = in_front(programs, [w.url for w in plain], n_followed=0)
    home, predicted, _ = ask(router, prompt(1))
    assert predicted == 0
    assert ask(router, prompt(1))[0] == home
    assert router.metric("incipit_worker_followed") == 0


def test_a_restarted_worker_is_followed(programs):
    port = free_port()
    old = programs(Worker, "--backend", "sim", "--sim-speed", 20, port=port).ready()
    routers = [in_front(programs, [old.url]) for _ in range(2)]
    ask(routers[0], prompt(1))
    wait_received(routers, 1)
    old.stop(signal.SIGKILL)
    wait_for(lambda: all(r.metric("incipit_followed_workers") == 0 for r in routers), "the loss")
    programs(Worker, "--backend", "sim", "--sim-speed", 20, port=port).ready()
    wait_for(lambda: all(r.n_healthy() == 1 and r.metric("incipit_followed_workers") == 1 for r in routers),
             "its new life")
    assert ask(routers[1], prompt(1))[1:] == (0, 0)  # the index of the old one is empty
    wait_received(routers, 2)
    assert ask(routers[0], prompt(1))[1] > 1000


class Wire:
    """A TCP relay in front of a worker that distinguishes what goes through: the stream of events can be cut or
    stalled while requests pass."""

    def __init__(self, target):
        self.target = target.removeprefix("http://").split(":")
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.listener.getsockname()[1]}"
        self.is_cut, self.flows, self.streams = False, threading.Event(), []
        self.flows.set()
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            try:
                near, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self.carry, args=(near,), daemon=True).start()

    def carry(self, near):
        with contextlib.suppress(OSError), contextlib.closing(near):
            with socket.create_connection(self.target) as far:
                threading.Thread(target=self.back, args=(far, near), daemon=True).start()
                while data := near.recv(65536):
                    if data.startswith(b"GET /request_events"):  # maybe after others
                        if self.is_cut:
                            return
                        self.streams.append(near)
                    far.sendall(data)

    def back(self, far, near):
        with contextlib.suppress(OSError):
            while data := far.recv(65536):
                if near in self.streams:
                    self.flows.wait()
                near.sendall(data)
            near.shutdown(socket.SHUT_RDWR)

    def cut(self):
        self.is_cut = True
        for near in self.streams:
            with contextlib.suppress(OSError):
                near.shutdown(socket.SHUT_RDWR)

    def close(self):
        self.flows.set()
        self.cut()
        self.listener.close()


@pytest.fixture
def wires(workers):
    made = [Wire(url) for url in urls(workers)]
    yield made
    for wire in made:
        wire.close()


def test_a_partition_costs_precision_and_no_request(programs, workers, wires):
    near = in_front(programs, urls(workers))
    far = in_front(programs, [wire.url for wire in wires])
    home = {}
    for wire in wires:
        wire.cut()
    wait_for(lambda: far.metric("incipit_followed_workers") == 0, "the loss of all streams")
    for i in range(6):
        home[i] = ask(near, prompt(i))[0]
        ask(far, prompt(100 + i))  # served, and not knowing of the others
    assert far.metric("incipit_requests_total", code="200") == 6
    assert n_received(far) == 0
    for wire in wires:
        wire.is_cut = False
    wait_received([far], 12)  # from where it had been: nothing is lost
    assert far.metric("incipit_shared_gaps_total") == 0
    wait_for(lambda: far.metric("incipit_followed_workers") == 3, "the streams")
    for i in range(6):
        there, predicted, cached = ask(far, prompt(i, "after"))
        assert there == home[i] and predicted > 1000 and cached > 1000


def test_a_stalled_stream_holds_up_no_request(programs, workers, wires):
    near = in_front(programs, urls(workers))
    far = in_front(programs, [wire.url for wire in wires])
    for wire in wires:
        wire.flows.clear()
    with answering(near):
        for i in range(6):
            ask(far, prompt(i))
        assert far.metric("incipit_shared_requests_in_flight") == 0
        for wire in wires:
            wire.flows.set()
        wait_for(lambda: far.metric("incipit_shared_requests_in_flight") == 1, "what was held up")
    wait_received([far], 7)
