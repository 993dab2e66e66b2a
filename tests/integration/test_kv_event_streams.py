"""KV events of vLLM and SGLang: what the router follows is what the engine holds, whatever happens between them.

The engines are tests/support/kv_engine.py: pyzmq and msgspec with the engines' own structures. A cache is
compared by the number of its blocks and the XOR of their hashes, so a phantom block shows.
"""
import contextlib
import pathlib
import re
import socket
import sys
import threading
import time

import pytest

pytest.importorskip("zmq", reason="tests/tools could not install pyzmq")
pytest.importorskip("msgspec", reason="tests/tools could not install msgspec")
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))

from conftest import Router, free_port, http, wait_for  # noqa: E402
from kv_engine import Engine  # noqa: E402


@pytest.fixture
def engines():
    started = []

    def start(**more):
        port = free_port()
        has_replay = more.pop("has_replay", True)
        started.append(Engine((port, port + 1 if has_replay else 0), **more))
        return started[-1]

    yield start
    for engine in started:
        engine.end()


@pytest.fixture
def follow(programs, tmp_path):
    """A router in front of engines, each with its settings."""
    def start(*engines, settings=None, args=()):
        lines = []
        for engine in engines:
            port, replay = engine.ports
            usual = f"kv_events={port}" + (f" kv_events_replay={replay}" if replay else "")
            lines.append(f"{engine.url} {usual if settings is None else settings}\n")
        file = tmp_path / "workers"
        file.write_text("".join(lines))
        return programs(Router, "--worker-file", file, "--log-level", "debug", *args).ready(len(engines))
    return start


def picture(router, i=0):
    return router.workers()["workers"][i].get("kv_events", {})


def is_right(router, engine, i=0):
    found = picture(router, i)
    return found.get("digest") == engine.digest and found["blocks"]["device"] == len(engine.cache) and found["is_complete"]


def wait_until_right(router, engine, i=0):
    try:
        wait_for(lambda: is_right(router, engine, i), f"the picture of the engine: {len(engine.cache)} blocks")
    except AssertionError as error:
        raise AssertionError(f"{error}, not {picture(router, i)}\n{router.log[-3000:]}") from None


def wait_until_connected(router, n=1):
    wait_for(lambda: router.metric("incipit_kv_event_streams") == n, f"{n} streams")


@pytest.mark.parametrize("kind,generation,is_bytes", [
    ("vllm", "arrays", False), ("vllm", "arrays", True), ("vllm", "maps", True), ("vllm", "all_maps", False),
    ("sglang", "arrays", False), ("sglang", "maps", False)])
def test_a_cache_is_followed_in_every_generation(engines, follow, kind, generation, is_bytes):
    engine = engines(kind=kind, generation=generation, is_bytes=is_bytes)
    engine.work(300)  # before the router: from the replay
    router = follow(engine)
    wait_until_right(router, engine)
    engine.work(1000)
    wait_until_right(router, engine)
    found = picture(router)
    assert found["tokens"]["device"] == len(engine.cache) * 16 and found["gaps"] == 0 and found["restarts"] == 0
    assert found["capacity_tokens"] == pytest.approx(500 * 16, rel=0.02)
    assert router.metric("incipit_kv_events_total", kind="ignored") == 0


def test_the_capacity_counted_is_the_one_routed_by(engines, follow):
    engine = engines(n_blocks=300)
    router = follow(engine)
    engine.work(500)
    wait_until_right(router, engine)
    wait_for(lambda: router.metric("incipit_worker_capacity_factor") != 1, "the factor")
    default = router.metric("incipit_worker_capacity_factor")
    assert 0 < default < 1  # of the size assumed for engines that report none
    assert router.metric("incipit_worker_kv_event_blocks") == 300


def test_lost_batches_are_replayed_in_both_framings(engines, follow):
    for has_topic in (False, True):
        engine = engines(has_topic=has_topic)
        router = follow(engine)
        wait_until_connected(router)
        engine.work(100)
        engine.work(30, is_sent=False)
        engine.work(5)
        wait_until_right(router, engine)
        assert picture(router)["gaps"] == 1 and router.metric("incipit_kv_events_total", kind="lost") == 0


def test_lost_batches_without_replay_leave_no_phantoms(engines, follow):
    engine = engines(has_replay=False, n_blocks=200)
    router = follow(engine)
    wait_until_connected(router)
    engine.work(100)
    wait_until_right(router, engine)
    engine.work(10, is_sent=False)
    engine.work(1)
    wait_for(lambda: router.metric("incipit_kv_events_total", kind="lost") == 1, "the loss")
    assert picture(router)["blocks"]["device"] <= 16 and not picture(router)["is_complete"]
    # The cache is turned over; blocks that were in use all the time are missing, and none is too much.
    for _ in range(50):
        engine.work(20)
        if picture(router)["is_complete"]:
            break
    wait_for(lambda: picture(router)["is_complete"], "a turn of the cache")
    wait_for(lambda: engine.publisher.queue.empty(), "the publisher")
    assert picture(router)["blocks"]["device"] <= len(engine.cache)


def test_a_restart_is_noticed_and_drops_the_index(engines, follow):
    engine = engines()
    router = follow(engine)
    engine.work(50)
    wait_until_right(router, engine)
    ask(router)
    wait_for(lambda: router.metric("incipit_worker_index_blocks") > 0, "the prompt in the index")
    engine.restart()
    engine.work(10)
    wait_until_right(router, engine)
    assert picture(router)["restarts"] == 1
    wait_for(lambda: router.metric("incipit_kv_events_total", kind="restart") == 1, "the count")
    assert router.metric("incipit_worker_index_blocks") == 0


def ask(router, prompt="a long question about quinces and medlars " * 40):
    answer = http(router.url + "/v1/completions", {"model": "m", "prompt": prompt, "max_tokens": 1})
    assert answer.code == 200, answer.body


def test_a_cleared_cache_drops_the_index(engines, follow):
    engine = engines()
    router = follow(engine, args=("--engine-metrics-interval", "0"))
    engine.work(50)
    wait_until_right(router, engine)
    ask(router)
    wait_for(lambda: router.metric("incipit_worker_index_blocks") > 0, "the prompt in the index")
    engine.clear()
    wait_until_right(router, engine)
    wait_for(lambda: router.metric("incipit_worker_index_blocks") == 0, "an empty index")
    wait_for(lambda: router.metric("incipit_kv_events_total", kind="cleared") == 1, "the count")


def expected(router, prompt):
    """Tokens of the prompt that the index expects, by the engine's URL."""
    answer = http(router.admin_url + "/debug/route", {"model": "m", "prompt": prompt})
    return {c["url"]: c["matched_tokens"] for c in answer.json["candidates"]}


def test_what_others_evict_is_not_expected_any_more_and_routed_around(engines, follow):
    """Requests that bypass the router fill the cache of one engine."""
    busy, idle = engines(n_blocks=4000), engines(n_blocks=4000)
    router = follow(busy, idle, args=("--engine-metrics-interval", "0"))
    wait_until_connected(router, 2)
    busy.work(400)  # its size becomes known: 64,000 tokens
    wait_until_right(router, busy)
    assert picture(router)["capacity_tokens"] > 0
    prompts = [f"prompt {i} " + f"is about {i} quinces and as many medlars. " * 40 for i in range(8)]
    for prompt in prompts:
        ask(router, prompt)
    home = {p: max(expected(router, p), key=expected(router, p).get) for p in prompts}
    at_busy = [p for p in prompts if home[p] == busy.url]
    assert at_busy and len(at_busy) < len(prompts)
    assert all(busy.holds(p) > 300 and expected(router, p)[busy.url] > 300 for p in at_busy)
    while any(busy.holds(p) for p in at_busy):
        busy.work(1, n_different=10**6)
    busy.work(50, n_different=10**6)
    wait_for(lambda: not any(expected(router, p)[busy.url] for p in at_busy), "the evicted prompts to leave the index")
    at_idle = [p for p in prompts if p not in at_busy]
    assert all(expected(router, p)[idle.url] > 300 for p in at_idle)


def test_a_router_that_comes_late_replays(engines, follow):
    engine = engines(kept=20)  # the replay begins in the middle
    engine.work(200)
    router = follow(engine)
    wait_until_connected(router)
    wait_for(lambda: picture(router).get("events"), "the replay")
    assert not picture(router)["is_complete"]
    engine.clear()
    engine.work(20)
    wait_until_right(router, engine)


def test_sglang_reports_its_port(engines, follow):
    engine = engines(kind="sglang")
    port, replay = engine.ports
    engine.info = {"kv_events_config": '{"publisher": "zmq", "topic": "kv-events", "endpoint": "tcp://*:%d", '
                                       '"replay_endpoint": "tcp://*:%d"}' % (port, replay)}
    router = follow(engine, settings="")
    engine.work(20)
    wait_until_right(router, engine)


def set_mode(router, mode):
    answer = http(router.admin_url + "/config", {"kv-events": mode}, method="PUT")
    assert answer.code == 200, answer.body


def test_modes_change_while_it_runs(engines, follow):
    engine = engines()
    router = follow(engine)
    engine.work(20)
    wait_until_right(router, engine)
    for mode, n in (("off", 0), ("auto", 1)):
        set_mode(router, mode)
        wait_until_connected(router, n)
    wait_until_right(router, engine)


def test_bad_settings_are_refused_by_name(programs, tmp_path):
    for setting, fault in (("kv_events=0", "kv_events=0: use a port"), ("kv_events=x", "kv_events=x: use a port"),
                           ("kv_events_ranks=17", "kv_events_ranks=17: use a number of ranks from 1 to 16")):
        file = tmp_path / "workers"
        file.write_text(f"http://127.0.0.1:1 {setting}\n")
        router = programs(Router, "--worker-file", file)
        assert router.process.wait(20) != 0
        wait_for(lambda: fault in router.log, fault)


# --- peers that are none


@contextlib.contextmanager
def peer(serve):
    """A port behind which serve(connection) runs."""
    listener = socket.create_server(("127.0.0.1", free_port()))
    connections = []

    def accept():
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listener.accept()
                connections.append(connection)
                threading.Thread(target=run, args=(connection,), daemon=True).start()

    def run(connection):
        with contextlib.suppress(OSError):
            serve(connection)

    threading.Thread(target=accept, daemon=True).start()
    yield listener.getsockname()[1]
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    for connection in connections:
        connection.close()


GREETING = b"\xff" + bytes(7) + b"\1\x7f\3\1NULL" + bytes(48)
READY = b"\4\x19\5READY\13Socket-Type\0\0\0\3PUB"


def drip(connection):
    """A frame of 8 MB, a byte at a time."""
    connection.sendall(GREETING + READY + b"\2" + (8_000_000).to_bytes(8, "big"))
    while True:
        connection.sendall(b"x")
        time.sleep(0.01)


@pytest.mark.parametrize("what,why", [
    ("http", "the port does not speak ZMTP"),
    ("huge", "above the limit"),
    ("garbage", "does not speak ZMTP"),
    ("parts", "more than 8 parts"),
    ("router", "is of type .*ROUTER"),
    ("silent", "no ZMTP handshake"),
])
def test_a_port_that_is_no_publisher_is_reported_once_and_harms_none(engines, follow, what, why):
    serve = {
        "http": lambda c: c.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n"),
        "huge": lambda c: c.sendall(GREETING + READY + b"\2" + b"\x7f" * 8),
        "garbage": lambda c: c.sendall(bytes(range(256)) * 100),
        "parts": lambda c: c.sendall(GREETING + READY + b"\1\1x" * 100),
        "router": lambda c: c.sendall(GREETING + b"\4\x1c\5READY\13Socket-Type\0\0\0\6ROUTER"),
        "silent": lambda c: c.recv(1000) and time.sleep(60),
    }[what]
    engine = engines()
    with peer(serve) as port:
        router = follow(engine, settings=f"kv_events={port}")
        wait_for(lambda: re.search(rf'kv_events_unusable.*{why}', router.log), why)
        ask(router)
        assert router.log.count("kv_events_unusable") == 1
        assert router.n_healthy() == 1


def test_frames_that_drip_and_sockets_that_die_leave_the_others_alone(engines, follow):
    good, bad = engines(), engines()
    with peer(drip) as port:
        bad.ports = (port, 0)
        router = follow(good, bad)
        good.work(200)
        wait_until_right(router, good)
    good.publisher.end()
    wait_for(lambda: router.metric("incipit_kv_event_streams") == 0, "the loss of both")
    assert router.n_healthy() == 2
    ask(router)
    good.restart()
    good.work(20)
    wait_until_right(router, good)


def test_unreadable_batches_are_counted_and_the_stream_goes_on(engines, follow):
    engine = engines()
    router = follow(engine)
    engine.work(20)
    wait_until_right(router, engine)
    for payload in (b"", b"\xc1", b"\x93\x00", b"\x92\x00\xdd\xff\xff\xff\xff", b"\x91" * 100_000):
        engine.publisher.queue.put((payload, True))
    engine.clear()
    engine.work(20)
    wait_until_right(router, engine)


def test_blocks_beyond_the_memory_are_refused_and_counted(engines, follow):
    engine = engines(n_blocks=100_000)
    router = follow(engine, args=("--kv-events-memory", "1MiB"))
    engine.work(400, n=64, n_different=50_000)
    wait_for(lambda: router.metric("incipit_kv_events_total", kind="refused") > 0, "refusals")
    assert router.metric("incipit_kv_event_bytes") <= 1 << 20
    assert not picture(router)["is_complete"]
    ask(router)
