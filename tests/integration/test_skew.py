"""Routers and workers of two versions side by side, as in the middle of an upgrade.

`make skew OTHER=DIR`, DIR being the build folder of the version before or after, runs it; without one
it is skipped.
"""
import os
import pathlib
import signal
import threading

import pytest

import conftest
from conftest import BUILD, Router, Worker, events, wait_for

OTHER = os.environ.get("INCIPIT_OTHER_BUILD")
pytestmark = pytest.mark.skipif(not OTHER, reason="SKIPPED two versions: make skew OTHER=build folder of the other")
PROMPT = "The house stands on a hill above the river, and everybody knows who built it. " * 40


@pytest.fixture
def version(monkeypatch):
    """version("this") or version("other"): what is started from now on."""
    monkeypatch.setenv("INCIPIT_PREFIX_HASH_SEED", "the same in all")

    def choose(name):
        monkeypatch.setattr(conftest, "BUILD", pathlib.Path(OTHER).resolve() if name == "other" else BUILD)
    return choose


@pytest.fixture
def fleet(programs, version):
    """Two sim workers and a router, each of a version."""
    def start(router, *workers):
        running = []
        for name in workers:
            version(name)
            running.append(programs(Worker, "--backend", "sim", "--sim-speed", 20).ready())
        version(router)
        urls = [w.url for w in running]
        return programs(Router, "--worker-urls", *urls).ready(len(urls)), running
    return start


pairs = pytest.mark.parametrize("router, workers", [("this", ("other", "other")), ("other", ("this", "this")),
                                                    ("this", ("this", "other")), ("other", ("this", "other"))])


@pairs
def test_prefixes_are_found_and_streams_are_whole(fleet, router, workers):
    router, running = fleet(router, *workers)
    model = router.get("/v1/models").json["data"][0]["id"]
    body = {"model": model, "prompt": PROMPT, "max_tokens": 8}
    for i in range(6):
        answer = router.post("/v1/completions", {**body, "prompt": PROMPT + f"Question {i}?"})
        assert answer.code == 200, answer.body
        found = answer.json["usage"]["prompt_tokens_details"]["cached_tokens"]
        assert (found > 0) == (i > 0)
    stream = list(events(router.url + "/v1/completions", {**body, "stream": True}))
    assert stream[-1] == "[DONE]" and len(stream) > 2
    assert sum(w.metric("vllm:request_success_total") for w in running) == 7


@pairs
def test_a_draining_worker_fails_no_request(fleet, router, workers):
    router, running = fleet(router, *workers)
    model = router.get("/v1/models").json["data"][0]["id"]
    codes, is_over = [], threading.Event()

    def keep_asking():
        while not is_over.is_set():
            codes.append(router.post("/v1/completions", {"model": model, "prompt": "x", "max_tokens": 40}).code)

    askers = [threading.Thread(target=keep_asking) for _ in range(4)]
    for asker in askers:
        asker.start()
    wait_for(lambda: len(codes) > 20, "answers before")
    running[0].process.send_signal(signal.SIGTERM)
    wait_for(lambda: running[0].process.poll() is not None, "the end of the worker")
    n = len(codes)
    wait_for(lambda: len(codes) > n + 20, "answers afterwards")
    is_over.set()
    for asker in askers:
        asker.join()
    assert set(codes) == {200}
    assert running[0].process.returncode == 0


def test_routers_of_two_versions_share_workers_of_both(fleet, programs, version):
    first, running = fleet("this", "this", "other")
    version("other")
    second = programs(Router, "--worker-urls", *[w.url for w in running]).ready(2)
    model = first.get("/v1/models").json["data"][0]["id"]
    for i in range(20):
        router = (first, second)[i % 2]
        answer = router.post("/v1/completions", {"model": model, "prompt": PROMPT + str(i), "max_tokens": 4})
        assert answer.code == 200, answer.body
    assert first.stop() == 0 and second.stop() == 0
