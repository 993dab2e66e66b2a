"""Following a worker's cache from outside: every batch in order, cut and resumed by number, a snapshot for who comes too
late, a reason for a slow subscriber; and the state rebuilt from them equals the digest."""
import http.client
import json
import random
import socket
import struct
import threading
import urllib.parse

import pytest

from conftest import PATIENCE_S, Worker, wait_for

CONTROL = 2**64 - 1


# --- two readers ----------------------------------------------------------------------------------


class Stream:
    """GET /kv_events as server-sent events: (kind, id, data) each."""

    def __init__(self, worker, query="", headers=None):
        at = urllib.parse.urlsplit(worker.url)
        self.conn = http.client.HTTPConnection(at.hostname, at.port, timeout=PATIENCE_S)
        self.conn.request("GET", "/kv_events?digest=1&" + query, headers=headers or {})
        self.response = self.conn.getresponse()

    def __iter__(self):
        kind, number, data = "batch", None, None
        while line := self.response.readline():
            line = line.decode().rstrip("\n")
            if line.startswith("event: "):
                kind = line[7:]
            elif line.startswith("id: "):
                number = int(line[4:])
            elif line.startswith("data: "):
                data = json.loads(line[6:])
            elif data is not None:
                yield kind, number, data
                kind, number, data = "batch", None, None

    def close(self):
        self.conn.close()


def unpack(data, at=0):
    """One MessagePack value of those that events are made of; (value, where it ends)."""
    head = data[at]
    at += 1

    def number(form, n):
        return struct.unpack(">" + form, data[at:at + n])[0], at + n

    def values(n, at):
        out = []
        for _ in range(n):
            value, at = unpack(data, at)
            out.append(value)
        return out, at

    if head < 0x80:
        return head, at
    if head < 0x90:
        flat, at = values(2 * (head & 15), at)
        return dict(zip(flat[::2], flat[1::2])), at
    if head < 0xa0:
        return values(head & 15, at)
    if head < 0xc0:
        return data[at:at + (head & 31)].decode(), at + (head & 31)
    if head in (0xc0, 0xc2, 0xc3):
        return {0xc0: None, 0xc2: False, 0xc3: True}[head], at
    if head in (0xc4, 0xd9):
        n, at = number("B", 1)
        return (data[at:at + n] if head == 0xc4 else data[at:at + n].decode()), at + n
    if head in (0xc5, 0xda):
        n, at = number("H", 2)
        return (data[at:at + n] if head == 0xc5 else data[at:at + n].decode()), at + n
    if head in (0xdc, 0xdd):
        n, at = number("H", 2) if head == 0xdc else number("I", 4)
        return values(n, at)
    form, n = {0xcb: ("d", 8), 0xcc: ("B", 1), 0xcd: ("H", 2), 0xce: ("I", 4), 0xcf: ("Q", 8), 0xd0: ("b", 1)}[head]
    return number(form, n)


def frames(worker, query):
    """GET /kv_events as frames: (sequence, value) each."""
    at = urllib.parse.urlsplit(worker.url)
    conn = http.client.HTTPConnection(at.hostname, at.port, timeout=PATIENCE_S)
    conn.request("GET", "/kv_events?digest=1&" + query, headers={"Accept": "application/msgpack"})
    response = conn.getresponse()
    assert response.getheader("content-type") == "application/msgpack"
    while head := response.read(12):
        n, sequence = struct.unpack(">IQ", head)
        payload = response.read(n)
        value, end = unpack(payload)
        assert end == n
        yield sequence, value
    conn.close()


# --- a follower -----------------------------------------------------------------------------------


class Picture:
    def __init__(self):
        self.sets, self.next, self.n_snapshots = {}, 0, 0

    def batch(self, data):
        assert data["seq"] == self.next, "a batch is missing"
        self.next += 1
        for e in data["events"]:
            if e["type"] == "AllBlocksCleared":
                self.sets.clear()
                continue
            held = self.sets.setdefault((e["medium"], e["group_idx"]), set())
            if e["type"] == "BlockStored":
                held.update(e["block_hashes"])
                assert len(e["token_ids"]) in (0, len(e["block_hashes"]) * e["block_size"])
            else:
                assert held.issuperset(e["block_hashes"]), "removed what was never stored"
                held.difference_update(e["block_hashes"])

    def gap(self, data):
        self.sets.clear()
        self.next = data["resume"]
        self.n_snapshots += 1

    def check(self, digest):
        assert digest["sequence"] + 1 == self.next
        for s in digest["sets"]:
            held = self.sets.get((s["medium"], s["group_idx"]), set())
            xor = 0
            for h in held:
                xor ^= int(h, 16)
            assert len(held) == s["blocks"] and xor == int(s["xor"], 16), "the picture is wrong"


def follow(worker, picture, query, headers=None, until=None):
    """Reads until a digest that proves the picture of everything up to `until` batches."""
    stream = Stream(worker, query, headers)
    try:
        for kind, _, data in stream:
            if kind == "batch":
                picture.batch(data)
            elif kind == "gap":
                picture.gap(data)
            elif kind == "digest":
                picture.check(data)
                if data["next"] >= until:
                    return
            else:
                raise AssertionError(f"{kind}: {data}")
    finally:
        stream.close()
    raise AssertionError("the stream ended")


@pytest.fixture
def start(programs):
    def start_one(*args):
        return programs(Worker, "--backend", "sim", "--sim-speed", "1000", "--max-model-len", "4096", *args).ready()
    return start_one


def load(worker, n, seed=1):
    """Prompts that share beginnings of a few texts, more of them than fit."""
    draw = random.Random(seed)
    for _ in range(n):
        family, length = draw.randrange(5), draw.randrange(20, 900)
        prompt = (f"family {family} says the same thing at length. " * 30)[:length] + str(draw.random())
        assert worker.post("/v1/completions", {"prompt": prompt, "max_tokens": 3}).code == 200


def digest(worker):
    return worker.get("/kv_events/digest").json


def settled(worker):
    """The digest once the worker has published every event."""
    last = [None]

    def same():
        now = digest(worker)
        was, last[0] = last[0], now
        return was == now
    wait_for(same, "the events to arrive")
    return last[0]


def test_a_follower_has_the_workers_picture(start):
    worker = start("--kv-events", "--num-gpu-blocks-override", "300", "--kv-offload-bytes", "200MiB")
    load(worker, 120)
    d = settled(worker)
    picture = Picture()
    follow(worker, picture, "from=0", until=d["next"])
    assert picture.n_snapshots == 0 and d["oldest"] == 0
    assert len(picture.sets[("GPU", 0)]) > 100 and len(picture.sets[("CPU", 0)]) > 20
    assert worker.metric("vllm:external_prefix_cache_hits_total") > 0
    assert worker.metric("incipit_kv_moved_blocks_total", direction="in") > 0


def test_cut_and_resumed_by_number(start):
    worker = start("--kv-events", "--num-gpu-blocks-override", "300")
    picture = Picture()
    for round_ in range(4):
        load(worker, 15, seed=round_)
        d = settled(worker)
        if round_ % 2:
            follow(worker, picture, "", headers={"Last-Event-ID": str(picture.next - 1)}, until=d["next"])
        else:
            follow(worker, picture, f"from={picture.next}", until=d["next"])
    assert picture.n_snapshots == 0


def test_a_late_subscriber_gets_a_snapshot(start):
    worker = start("--kv-events", "--num-gpu-blocks-override", "300", "--kv-events-buffer-bytes", "64KiB")
    load(worker, 400)
    d = settled(worker)
    assert d["oldest"] > 0, "nothing was overwritten: the test tests nothing"
    for query in ("from=0", "from=snapshot", "", f"from={10**15}"):
        picture = Picture()
        follow(worker, picture, query, until=d["next"])
        assert picture.n_snapshots == 1


def test_a_reset_is_published(start):
    worker = start("--kv-events-config", '{"enable_kv_cache_events": true, "buffer_steps": 500}')
    load(worker, 5)
    assert worker.post("/reset_prefix_cache", {}).code == 200
    d = settled(worker)
    assert [s["blocks"] for s in d["sets"]] == [0, 0]
    picture = Picture()
    follow(worker, picture, "from=0", until=d["next"])


def test_live_events_arrive_as_they_happen(start):
    worker = start("--kv-events")
    seen = []
    stream = Stream(worker, "from=now")
    reader = threading.Thread(target=lambda: [seen.append(x) for x in stream], daemon=True)
    reader.start()
    load(worker, 3)
    wait_for(lambda: sum(kind == "batch" for kind, _, _ in seen) >= 3, "batches to arrive")
    worker.stop()
    wait_for(lambda: not reader.is_alive(), "the stream to end with the worker")
    assert seen[-1][0] == "closed" and "shutting down" in seen[-1][2]["reason"]


def test_frames_equal_events(start):
    worker = start("--kv-events", "--kv-events-int-hashes")
    load(worker, 4)
    d = settled(worker)
    as_json = {}
    for kind, number, data in Stream(worker, "from=0"):
        if kind == "digest":
            break
        as_json[number] = data
    for sequence, value in frames(worker, "from=0"):
        if sequence == CONTROL:
            assert json.loads(value["digest"])["next"] == d["next"]
            break
        ts, happened, rank = value
        batch = as_json.pop(sequence)
        assert ts == batch["ts"] and rank == 0
        for e, j in zip(happened, batch["events"], strict=True):
            assert e == list(j.values())
            assert all(isinstance(h, int) for h in e[1])
    assert not as_json


def test_a_slow_reader_is_cut_off_with_a_reason(start):
    worker = start("--kv-events", "--num-gpu-blocks-override", "300", "--kv-events-buffer-bytes", "64KiB")
    at = urllib.parse.urlsplit(worker.url)
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sock.connect((at.hostname, at.port))
    sock.settimeout(PATIENCE_S)
    sock.sendall(b"GET /kv_events?from=now HTTP/1.1\r\nHost: x\r\n\r\n")
    for i in range(400):  # some 8 MB, which no client reads: more than kernel and worker hold for it
        prompt = f"nothing like prompt {i} was ever seen. " * 25
        assert worker.post("/v1/completions", {"prompt": prompt, "max_tokens": 1}).code == 200
    got = b""
    while b"event: closed" not in got[-65536:]:
        part = sock.recv(1 << 20)
        assert part, "the stream ended without a word"
        got += part
    assert b"too slow" in got[-1000:]
    sock.close()
    load(worker, 2)
    picture = Picture()
    follow(worker, picture, "from=snapshot", until=settled(worker)["next"])


def test_limits_and_refusals(start):
    worker = start("--kv-events", "--kv-events-subscribers", "2")
    held = [Stream(worker, "from=now") for _ in range(2)]
    assert [s.response.status for s in held] == [200, 200]
    refused = worker.get("/kv_events")
    assert refused.code == 429 and "--kv-events-subscribers 2" in refused.json["error"]["message"]
    assert worker.get("/kv_events/digest").code == 200
    held[0].close()
    wait_for(lambda: Stream(worker, "from=now").response.status == 200, "the place to be free again")
    assert worker.get("/kv_events?from=x").code == 400
    off = start()
    assert off.get("/kv_events").code == 404 and "--kv-events" in off.get("/kv_events").json["error"]["message"]
    assert off.get("/kv_events/digest").code == 404
