"""Routers side by side whose queues are one: each charges tenants for what the others have sent.

The workers answer when the test lets them, and publish their requests as ours do, so that no test depends on time."""
import queue
import struct
import time

import pytest

from conftest import Router, wait_for
from test_hold import LONG, PATIENT, SHORT, Clients, Slow, SlowWorker

N = 30


def packed(*values):
    """An array of MessagePack: numbers, -1, truths, texts and bytes."""
    out = bytes([0x90 + len(values)])
    for v in values:
        if isinstance(v, bool):
            out += b"\xc3" if v else b"\xc2"
        elif isinstance(v, str):
            out += bytes([0xa0 + len(v)]) + v.encode()
        elif isinstance(v, bytes):
            out += b"\xc5" + struct.pack(">H", len(v)) + v
        else:
            out += b"\xff" if v == -1 else b"\xcf" + struct.pack(">Q", v)
    return out


class Publishing(Slow):
    def do_GET(self):
        if not self.path.startswith("/request_events"):
            return super().do_GET()
        events = self.server.of.follow()
        self.send_response(200)
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True
        while (frame := self.next_frame(events)) is not None:
            self.wfile.write(frame)

    def next_frame(self, events):
        while True:
            try:
                return events.get(timeout=1)
            except queue.Empty:
                self.server.of.publish(4, 0, 0, 0, 0, 0, False)  # silence would be a fault

    def do_POST(self):
        of = self.server.of
        _, origin, scheme, n_bytes, *words = self.headers["x-incipit-chain"].split(" ")
        mark = [int(words[1], 16), int(words[2], 16), int(words[3]), int(words[4])]  # behind the chain, which the test needs not
        number = of.publish(1, None, int(n_bytes), int(origin, 16), int(scheme, 16), b"", *mark)
        super().do_POST()
        of.publish(2, number, -1, -1)
        of.publish(3, number, 1, False)


class PublishingWorker(SlowWorker):
    handler = Publishing

    def __init__(self, **info):
        self.followers, self.n_events = [], 0
        super().__init__(request_events=1, **info)

    def frame(self, sequence, *values):
        payload = packed(*values)
        return struct.pack(">IQ", len(payload), sequence) + payload

    def follow(self):
        with self.lock:
            events = queue.Queue()
            n = self.n_events + 1
            events.put(self.frame(2 ** 64 - 1, 100, time.monotonic_ns() // 1000, self.generation, n, n, False))
            self.followers.append(events)
            return events

    def publish(self, kind, number, *values):
        with self.lock:
            self.n_events += 1
            number = self.n_events if number is None else number
            for events in self.followers:
                events.put(self.frame(self.n_events, kind, time.monotonic_ns() // 1000, number, *values))
            return number

    def stop(self):
        with self.lock:
            for events in self.followers:
                events.put(None)
        super().stop()


@pytest.fixture
def publishing():
    workers = [PublishingWorker() for _ in range(2)]
    yield workers
    for worker in workers:
        worker.stop()


@pytest.mark.parametrize("is_one", [True, False])
def test_a_tenant_that_comes_through_all_routers_has_one_share(programs, publishing, tmp_path, monkeypatch, is_one):
    """The first router has a flood, the second the flood and another tenant."""
    (tmp_path / "keys").write_text("sk-flood tenant=flood\nsk-other tenant=other\n")
    clients = []
    for i in range(2):
        monkeypatch.setenv("INCIPIT_PREFIX_HASH_SEED", "the same" if is_one else f"another {i}")
        router = programs(Router, "--worker-urls", *[w.url for w in publishing], "--api-keys-file", tmp_path / "keys", "--isolate-by", "none",
                          "--explain-to-clients", *PATIENT).ready(2)
        wait_for(lambda r=router: r.metric("incipit_followed_workers") == 2, "streams of events")
        clients.append(Clients(router))

    def send(i, tenant, name, size):
        names.append(f"{tenant}-{name}")
        return clients[i].send(names[-1], size, authorization=f"Bearer sk-{tenant}")
    answers, names, released = [], [], set()
    started = lambda: [name for w in publishing for name in w.started]

    def is_known():
        """Each worker has something to do, and both routers know what."""
        n_open = {w.url: len([name for name in w.started if name not in released]) for w in publishing}
        return all(n and c.router.metric("incipit_worker_in_flight", worker=url) == n for c in clients for url, n in n_open.items())
    for i in range(2):  # on one worker each
        answers.append(send(i, "flood", f"first{i}", LONG))
        wait_for(lambda: len(started()) == i + 1 and sum(c.router.metric("incipit_worker_in_flight") for c in clients) == 2 * (i + 1),
                 "it to be sent, and known to both")
    for i, tenant in (0, "flood"), (1, "flood"), (1, "other"):
        answers += [send(i, tenant, f"{i}-{k}", SHORT) for k in range(N)]
    clients[0].waiting(N)
    clients[1].waiting(2 * N)
    order = []
    for step in range(N):
        worker = publishing[step % 2]
        n, known = len(started()), set(started())
        for name in list(worker.started):  # more than one, where both routers saw it idle
            released.add(name)
            worker.release(name)
        wait_for(lambda: len(started()) > n and is_known(), f"another after {started()}, and both routers to know it")
        order += [name for name in started() if name not in known]
    share = sum(name.startswith("other") for name in order) / len(order)
    assert share >= 0.36 if is_one else share <= 0.3, order
    for name in names:
        for worker in publishing:
            worker.release(name)
    assert [answer.result().code for answer in answers] == [200] * len(answers)
