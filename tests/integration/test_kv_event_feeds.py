"""KV events of our own workers over HTTP: what the router counts is what the worker's digest says, whatever
happens between them."""
import contextlib
import http.server
import json
import random
import re
import struct
import threading
import time
import urllib.parse

import pytest

msgspec = pytest.importorskip("msgspec", reason="tests/tools could not install msgspec")

from conftest import Router, Worker, http as call, wait_for  # noqa: E402


def picture(router, i=0):
    return router.workers()["workers"][i].get("kv_events", {})


def set_mode(router, mode, n_streams):
    assert call(router.admin_url + "/config", {"kv-events": mode}, method="PUT").code == 200
    wait_for(lambda: router.metric("incipit_kv_event_streams") == n_streams, f"{n_streams} streams")


@pytest.fixture
def ours(programs, tmp_path):
    """A worker whose cache is small, and a router that follows it."""
    def start(*worker_args, n_blocks=300, args=()):
        worker = programs(Worker, "--backend", "sim", "--sim-speed", "1000", "--max-model-len", "4096",
                          "--num-gpu-blocks-override", n_blocks, *worker_args).ready()
        router = programs(Router, "--worker-urls", worker.url, "--kv-events", "on", "--log-level", "debug", *args)
        return router.ready(1), worker
    return start


def load(target, n, seed=1):
    """Prompts that share beginnings of a few texts, more of them than fit."""
    draw = random.Random(seed)
    for _ in range(n):
        family, length = draw.randrange(5), draw.randrange(20, 900)
        prompt = (f"family {family} says the same thing at length. " * 30)[:length] + str(draw.random())
        assert target.post("/v1/completions", {"prompt": prompt, "max_tokens": 3}).code == 200


def is_as_the_digest(router, worker, i=0):
    found = picture(router, i)
    sets = {s["medium"]: s for s in worker.get("/kv_events/digest").json["sets"] if s["group_idx"] == 0}
    device, host = sets["GPU"], sets.get("CPU", {"blocks": 0})
    return (found.get("is_complete") and found["blocks"]["device"] == device["blocks"] and
            found["blocks"]["host"] == host["blocks"] and device["xor"].endswith(found["digest"]))


def wait_for_digest(router, worker, i=0):
    try:
        wait_for(lambda: is_as_the_digest(router, worker, i), "the worker's own digest")
    except AssertionError as error:
        own = worker.get("/kv_events/digest").body
        raise AssertionError(f"{error}: {own}, not {picture(router, i)}\n{router.log[-3000:]}") from None


@pytest.mark.parametrize("hashes", [(), ("--kv-events-int-hashes",), ("--prefix-caching-hash-algo", "xxhash")])
def test_a_worker_of_ours_is_followed(ours, hashes):
    router, worker = ours("--kv-events", "--kv-offload-bytes", "200MiB", *hashes)
    load(worker, 60)  # past the router: it learns of these from events alone
    load(router, 60, seed=2)
    wait_for_digest(router, worker)
    found = picture(router)
    assert found["blocks"]["device"] > 100 and found["blocks"]["host"] > 20
    assert found["gaps"] == 0 and found["restarts"] == 0
    assert router.metric("incipit_kv_event_streams") == 1
    assert worker.post("/reset_prefix_cache", {}).code == 200
    wait_for(lambda: picture(router)["blocks"]["device"] == 0, "the empty cache")
    wait_for_digest(router, worker)


def test_workers_of_several_block_sizes_are_followed_at_once(programs):
    sizes = (8, 16, 32)
    workers = [programs(Worker, "--backend", "sim", "--sim-speed", "1000", "--max-model-len", "4096", "--block-size", size,
                        "--num-gpu-blocks-override", 4800 // size, "--kv-events").ready() for size in sizes]
    router = programs(Router, "--worker-urls", ",".join(w.url for w in workers), "--kv-events", "on").ready(len(sizes))
    of_url = {w["url"]: i for i, w in enumerate(router.workers()["workers"])}
    for worker, size in zip(workers, sizes):
        load(worker, 30, seed=size)
    for worker, size in zip(workers, sizes):
        i = of_url[worker.url]
        wait_for_digest(router, worker, i)
        assert picture(router, i)["tokens"]["device"] == size * picture(router, i)["blocks"]["device"]


def test_a_router_that_comes_late_to_ours_gets_a_snapshot(ours):
    router, worker = ours("--kv-events", "--kv-events-buffer-bytes", "64KiB")
    set_mode(router, "off", 0)
    load(worker, 500)
    assert worker.get("/kv_events/digest").json["oldest"] > 0, "nothing was overwritten: the test tests nothing"
    set_mode(router, "on", 1)
    wait_for_digest(router, worker)
    assert re.search(r"kv_events_reset .*begun_late", router.log)


def test_a_worker_of_ours_that_restarts_is_counted_from_the_beginning(ours, programs):
    router, worker = ours("--kv-events")
    load(router, 30)
    wait_for_digest(router, worker)
    port = int(worker.url.rsplit(":", 1)[1])
    worker.stop()
    again = programs(Worker, "--backend", "sim", "--sim-speed", "1000", "--max-model-len", "4096",
                     "--num-gpu-blocks-override", "300", "--kv-events", port=port).ready()
    load(again, 40, seed=2)  # more batches than before: their numbers alone would not show it
    wait_for_digest(router, again)
    wait_for(lambda: picture(router)["restarts"] == 1, "the restart")


def test_a_worker_of_ours_without_events_is_reported_once_and_served(ours):
    router, worker = ours()
    wait_for(lambda: re.search(r"kv_events_unusable.*start it with --kv-events", router.log), "the report")
    load(router, 5)
    assert router.log.count("kv_events_unusable") == 1 and "kv_events" not in router.workers()["workers"][0]


def test_blocks_of_ours_beyond_the_memory_are_refused_without_asking_again(ours):
    router, worker = ours("--kv-events", n_blocks=70_000, args=("--kv-events-memory", "1MiB"))
    for i in range(1000):
        assert worker.post("/v1/completions", {"prompt": f"prompt {i} is like no other. " * 130, "max_tokens": 1}).code == 200
        if router.metric("incipit_kv_events_total", kind="refused") > 0:
            break
    wait_for(lambda: router.metric("incipit_kv_events_total", kind="refused") > 0, "refusals")
    assert not picture(router)["is_complete"] and router.metric("incipit_kv_events_total", kind="lost") == 0


# --- scripted workers of ours: what no real one does


class Scripted:
    """A worker of ours as far as a router asks. `serve(connection number, query, write)` is its /kv_events."""

    def __init__(self, serve):
        self.queries, scripted = [], self

        class Handler(http.server.BaseHTTPRequestHandler):
            def answer(self, code, body=b"{}"):
                self.send_response(code)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def do_GET(self):
                path, _, query = self.path.partition("?")
                if path == "/kv_events":
                    scripted.queries.append(dict(urllib.parse.parse_qsl(query)))
                    self.send_response(200)
                    self.send_header("Content-Type", "application/msgpack")
                    self.end_headers()
                    with contextlib.suppress(OSError):
                        serve(len(scripted.queries), self.wfile.write)
                elif path == "/server_info":
                    self.answer(200, json.dumps({"wire": 1, "model": "m", "block_size": 16, "n_blocks": 100, "generation": "a1"})
                                .encode())
                else:
                    self.answer(200 if path == "/health" else 404)

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


@pytest.fixture
def scripted(programs):
    started = []

    def start(serve):
        started.append(Scripted(serve))
        worker = started[-1]
        return programs(Router, "--worker-urls", worker.url, "--kv-events", "on").ready(1), worker
    yield start
    for worker in started:
        worker.server.shutdown()
        worker.server.server_close()


def frame(number, payload):
    return struct.pack(">IQ", len(payload), number) + payload


def batch(number, *events):
    return frame(number, msgspec.msgpack.encode([1.5, list(events), 0]))


def stored(*hashes):
    return ["BlockStored", [bytes(24) + h.to_bytes(8, "big") for h in hashes], None, [], 16, None, "GPU", None, None, 0,
            "full_attention"]


def control(name, **fields):
    return frame(2**64 - 1, msgspec.msgpack.encode({name: json.dumps(fields)}))


def digest_of(next_, *hashes, generation="a1"):
    total = 0
    for h in hashes:
        total ^= h
    return control("digest", next=next_, generation=generation,
                   sets=[{"medium": "GPU", "group_idx": 0, "blocks": len(hashes), "xor": f"{total:064x}"}])


def hold_open():
    time.sleep(60)


def test_a_digest_that_differs_makes_the_router_ask_for_all_again(scripted):
    def serve(n, write):
        if n == 1:
            write(batch(0, stored(1, 2)) + digest_of(1, 1, 2, 3))  # a block was never announced
        else:
            write(control("gap", asked=None, resume=7, generation="a1", reason="x") + batch(7, stored(1, 2, 3)) +
                  digest_of(8, 1, 2, 3))
        hold_open()
    router, worker = scripted(serve)
    wait_for(lambda: picture(router).get("is_complete") and picture(router)["blocks"]["device"] == 3, "the blocks")
    assert [q["from"] for q in worker.queries] == ["0", "snapshot"]
    assert picture(router)["gaps"] == 0 and picture(router)["restarts"] == 0
    wait_for(lambda: router.metric("incipit_kv_events_total", kind="lost") == 1, "the count")


def test_a_connection_cut_inside_a_frame_is_resumed_behind_the_last_batch(scripted):
    def serve(n, write):
        if n == 1:
            write(digest_of(0) + batch(0, stored(1)) + digest_of(1, 1) + batch(1, stored(2))[:-1])
        else:
            write(batch(1, stored(2)) + digest_of(2, 1, 2))
            hold_open()
    router, worker = scripted(serve)
    wait_for(lambda: picture(router).get("is_complete") and picture(router)["blocks"]["device"] == 2, "both blocks")
    assert [(q["from"], q.get("generation")) for q in worker.queries] == [("0", None), ("1", "a1")]


def test_another_run_of_a_worker_is_counted_from_the_beginning(scripted):
    def serve(n, write):
        if n == 1:
            return write(batch(0, stored(1, 2)) + digest_of(1, 1, 2) + control("closed", reason="too slow", next=1))
        write(control("gap", asked=1, resume=5, generation="b2", reason="x") + batch(5, stored(9)) +
              digest_of(6, 9, generation="b2"))
        hold_open()
    router, worker = scripted(serve)
    wait_for(lambda: picture(router).get("restarts") == 1 and picture(router)["is_complete"], "the other run")
    assert picture(router)["blocks"]["device"] == 1 and picture(router)["gaps"] == 0
    assert [(q["from"], q.get("generation")) for q in worker.queries] == [("0", None), ("1", "a1")]


@pytest.mark.parametrize("what,why", [
    (b"HTTP/1.1 200 OK" * 9, "is above the limit"),
    (frame(2**64 - 1, b"\x01"), "not the stream of /kv_events"),
    (control("digest", next=0, generation="a b&from=0", sets=[]), "'generation' is no name"),
])
def test_a_feed_that_is_none_is_reported_once(scripted, what, why):
    def serve(n, write):
        write(what)
        hold_open()
    router, worker = scripted(serve)
    wait_for(lambda: re.search(rf"kv_events_unusable.*{why}", router.log), why)
    assert router.log.count("kv_events_unusable") == 1 and len(worker.queries) == 1 and router.n_healthy() == 1
