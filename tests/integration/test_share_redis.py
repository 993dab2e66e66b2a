"""Two routers in front of workers that are not ours, which share their requests through a real Redis."""
import shutil
import subprocess

import pytest

from conftest import ROOT, Router, Worker, free_port, http, wait_for
from test_foreign import foreign  # noqa: F401: a fixture

REDIS = shutil.which("redis-server") or shutil.which("valkey-server")
pytestmark = pytest.mark.skipif(not REDIS, reason="SKIPPED a real Redis: make deps-test")
WORKERS, PROMPTS = 4, 12


class Redis:
    def __init__(self):
        self.port = free_port()
        self.start()

    def start(self):
        self.process = subprocess.Popen([REDIS, "--port", str(self.port), "--bind", "127.0.0.1", "--save", "",
                                         "--appendonly", "no", "--dir", "/"], stdout=subprocess.DEVNULL)

    def stop(self):
        self.process.terminate()
        self.process.wait()


@pytest.fixture
def redis():
    server = Redis()
    yield server
    server.stop()


@pytest.fixture
def fleet(programs, foreign, redis, monkeypatch):  # noqa: F811
    """fleet(shared): two routers, and a function that counts the prompt tokens the workers have found."""
    monkeypatch.setenv("INCIPIT_PREFIX_HASH_SEED", "the same in all")

    def start(is_shared, *args):
        workers = [programs(Worker, "--backend", "sim", "--sim-speed", 20).ready() for _ in range(WORKERS)]
        urls = foreign("vllm", workers)
        more = ["--share-redis", f"redis://127.0.0.1:{redis.port}"] if is_shared else []
        routers = [programs(Router, "--worker-urls", *urls, *more, *args).ready(WORKERS) for _ in range(2)]
        if is_shared:
            for r in routers:
                wait_for(lambda r=r: r.metric("incipit_redis_connected") == 1, "a connection to Redis")
        return routers, lambda: sum(w.metric("vllm:prefix_cache_hits_total") for w in workers)
    return start


def ask(router, text):
    answer = router.post("/v1/completions", {"prompt": text, "max_tokens": 4})
    assert answer.code == 200, answer.body


def prompts():
    return [f"Chapter {i}. " + f"It was night number {i * 7919} in the city, and it rained. " * 40 for i in range(PROMPTS)]


def wait_received(router, n):
    """All that the other router has sent is in the books of this one."""
    wait_for(lambda: router.metric("incipit_redis_events_total") >= 2 * n, f"{n} requests of the other router")
    wait_for(lambda: router.metric("incipit_shared_requests_in_flight") == 0, "their ends")


def test_a_prompt_sent_by_one_router_hits_through_the_other(fleet):
    (first, second), hits = fleet(True)
    for text in prompts():
        ask(first, text)
    wait_received(second, PROMPTS)
    before = hits()
    for text in prompts():
        ask(second, text + "And then?")
    found = hits() - before
    per_prompt = len(prompts()[0]) * 0.9  # sim: a token is a byte
    assert found >= PROMPTS * per_prompt


def test_a_restarted_router_learns_it_again(fleet, programs, redis):
    (first, second), hits = fleet(True)
    for text in prompts():
        ask(first, text)
    urls = [w["url"] for w in first.workers()["workers"]]
    third = programs(Router, "--worker-urls", *urls, "--share-redis", f"redis://127.0.0.1:{redis.port}").ready(WORKERS)
    wait_received(third, PROMPTS)
    before = hits()
    for text in prompts():
        ask(third, text + "And then?")
    assert hits() - before >= PROMPTS * len(prompts()[0]) * 0.9


def test_turns_through_two_routers_are_one_session(fleet):
    (first, second), _ = fleet(True, "--session-admission", "auto")
    for i, (router, other) in enumerate(((first, second), (second, first)) * 2):
        before = other.metric("incipit_redis_events_total")
        answer = router.post("/v1/completions", {"prompt": prompts()[0] + "And then? " * i, "max_tokens": 4},
                             headers={"x-incipit-session": "one"})
        assert answer.code == 200, answer.body
        wait_for(lambda: other.metric("incipit_redis_events_total") >= before + 2, "the request")
        wait_for(lambda: other.metric("incipit_shared_requests_in_flight") == 0, "its end")
    assert [r.metric("incipit_session_turns_total", joined="new") for r in (first, second)] == [1, 0]
    assert [r.metric("incipit_session_turns_total", joined="id") for r in (first, second)] == [1, 2]
    assert [r.metric("incipit_sessions", state="active") for r in (first, second)] == [1, 1]


def test_without_its_server_nothing_fails(fleet, redis):
    (first, second), _ = fleet(True)
    ask(first, "one")
    wait_received(second, 1)
    redis.stop()
    for i in range(20):
        ask((first, second)[i % 2], f"number {i}")
    wait_for(lambda: first.metric("incipit_redis_connected") == 0, "the loss to be seen")
    assert "redis_lost" in first.log
    redis.start()
    wait_for(lambda: all(r.metric("incipit_redis_connected") == 1 for r in (first, second)), "both to be back", 60)
    events = second.metric("incipit_redis_events_total")
    ask(first, "again")
    wait_for(lambda: second.metric("incipit_redis_events_total") >= events + 2, "requests to arrive again")


def test_it_needs_the_same_secret(programs, monkeypatch):
    monkeypatch.delenv("INCIPIT_PREFIX_HASH_SEED", raising=False)
    router = programs(Router, "--worker-urls", "http://127.0.0.1:9", "--share-redis", "redis://127.0.0.1:9")
    assert wait_for(lambda: router.process.poll(), "its end") == 2
    wait_for(lambda: "INCIPIT_PREFIX_HASH_SEED" in router.log, "the remedy")
