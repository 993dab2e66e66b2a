"""Workers that exchange KV: the router names a worker to fetch a prefix from, and learns from what comes of it. The workers
answer when the test lets them; by what they publish a prompt takes minutes, and a fetch an instant."""
import concurrent.futures
import json
import re
import threading

import pytest

from conftest import Router, http, wait_for
from test_hold import PATIENT, RATE, Slow, SlowWorker

PREFIX = "all of it " * 4000  # 1000 seconds of prefill


class Peer(Slow):
    """Reports that it restored what it was told where to fetch, unless it is to miss."""

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        of, name, n = self.server.of, body["user"], len(body["prompt"]) // 4
        source = self.headers["x-incipit-kv-source"]
        restored = int(source.split("tokens=")[1]) if source and not of.misses else 0
        with of.lock:
            of.started.append(name)
            of.sources[name] = source
            gate = of.gates.setdefault(name, threading.Event())
        gate.wait(60)
        if self.path.startswith("/cache/"):
            self.send({"id": "hold-0123456789abcdef", "prompt_tokens": n, "cached_tokens": restored, "tokens": n, "bytes": n,
                       "restored_tokens": restored, "restore_us": 25000})
            return
        headers = [("x-incipit-prompt-tokens", n), ("x-incipit-cached-tokens", restored)]
        if restored:
            headers += [("x-incipit-restored-tokens", restored), ("x-incipit-restore-us", 25000)]
        self.send({"choices": [{"text": "x", "index": 0, "finish_reason": "stop"}],
                   "usage": {"prompt_tokens": n, "completion_tokens": 1}}, headers)


class PeerWorker(SlowWorker):
    handler = Peer

    def __init__(self, fingerprint="00aa", **info):
        self.sources, self.misses = {}, False
        peer = {"generation": f"g{id(self)}", "fingerprint": fingerprint, "bytes_per_token": 2048, "is_encrypted": False}
        super().__init__(**({"kv_peer": peer} if fingerprint else {}), **info)

    @property
    def authority(self):
        return self.url.removeprefix("http://")


class Fleet:
    """Two workers. After hold() one of them has PREFIX cached and minutes of other work."""

    def __init__(self, router, workers):
        self.router, self.workers, self.pool = router, workers, concurrent.futures.ThreadPoolExecutor(8)

    def send(self, name, prompt, path="/v1/completions", fields={}, **headers):
        body = {"model": "m", "prompt": prompt, "user": name, "max_tokens": 1, **fields}
        return self.pool.submit(self.router.post, path, body,
                                headers={k.replace("_", "-"): v for k, v in headers.items()})

    def who_started(self, name):
        return wait_for(lambda: next((w for w in self.workers if name in w.started), None), f"{name} to start")

    def answered(self, name, sent):
        self.who_started(name).release(name)
        answer = sent.result()
        assert answer.code == 200, answer.body
        return answer

    def hold(self):
        """(who has it, who does not)"""
        self.answered("first", self.send("first", PREFIX))
        holder = self.who_started("first")
        self.busy = self.send("busy", PREFIX + "and more " * 2000)
        assert self.who_started("busy") is holder
        return holder, next(w for w in self.workers if w is not holder)


@pytest.fixture
def fleet(programs):
    started = []

    def start(*args, fingerprints=("00aa", "00aa"), **info):
        workers = [PeerWorker(f, **info) for f in fingerprints]
        started.extend(workers)
        router = programs(Router, "--worker-urls", *[w.url for w in workers], "--explain-to-clients", *PATIENT, *args)
        return Fleet(router.ready(len(workers)), workers)
    yield start
    for worker in started:
        worker.stop()


def route_of(answer):
    return dict(field.split("=") for field in answer.headers["x-incipit-route"].split())


def test_a_busy_holder_is_named_to_the_worker_that_takes_the_request(fleet, tmp_path):
    decisions = tmp_path / "decisions"
    f = fleet("--decision-log", decisions)
    holder, other = f.hold()
    sent = f.send("next", PREFIX + "something else", x_incipit_route="1")
    assert f.who_started("next") is other
    authority, tokens = re.fullmatch(r"(.*);tokens=(\d+)", other.sources["next"]).groups()
    assert authority == holder.authority and 9900 < int(tokens) <= 10000
    answer = f.answered("next", sent)
    route = route_of(answer)
    assert route["fetch_from"] == str(f.workers.index(holder)) and route["worker"] == str(f.workers.index(other))
    assert route["fetch_tokens"] == route["restored_tokens"] == tokens and float(route["restore_s"]) == 0.025
    assert 0 < float(route["fetch_s"]) < 1000 / RATE
    assert not [name for name in answer.headers if name.lower() in ("x-incipit-restored-tokens", "x-incipit-restore-us")]
    assert f.router.metric("incipit_kv_fetches_total") == 1
    assert f.router.metric("incipit_kv_fetches_missed_total") == 0
    assert f.router.metric("incipit_kv_fetched_tokens_total") == int(tokens)
    assert f.router.metric("incipit_kv_fetch_seconds_count") == 1
    line = wait_for(lambda: next((d for d in map(json.loads, decisions.read_text().splitlines()) if "fetch_from" in d), None),
                    "the decision")
    assert line["fetch_from"] == f.workers.index(holder) and line["restored_tokens"] == int(tokens)
    assert line["restore_s"] == 0.025 and any(c.get("fetch_tokens") == int(tokens) for c in line["top"])
    assert holder.sources["busy"] is None
    f.answered("busy", f.busy)


def test_a_fetch_that_brings_nothing_is_counted_as_missed(fleet):
    f = fleet()
    _, other = f.hold()
    other.misses = True
    f.answered("next", f.send("next", PREFIX + "something else"))
    assert other.sources["next"]
    assert f.router.metric("incipit_kv_fetches_total") == 1
    assert f.router.metric("incipit_kv_fetches_missed_total") == 1
    assert f.router.metric("incipit_kv_fetched_tokens_total") == 0
    assert f.router.metric("incipit_kv_fetch_predicted_tokens_total") > 9900


@pytest.mark.parametrize("path", ["/cache/prewarm", "/cache/hold"])
def test_a_prompt_that_is_prewarmed_or_held_is_fetched_too(fleet, path):
    f = fleet()
    holder, other = f.hold()
    f.answered("kept", f.send("kept", PREFIX + "something else", path))
    assert other.sources["kept"].startswith(holder.authority + ";tokens=")


@pytest.mark.parametrize("path, field", [("/cache/hold", "copies"), ("/cache/prewarm", "workers")])
def test_what_two_workers_are_to_have_is_computed_by_one_and_fetched_by_the_other(fleet, path, field):
    f = fleet()
    sent = f.send("copied", PREFIX, path, {field: 2})
    first = f.who_started("copied")
    first.release("copied")
    other = next(w for w in f.workers if w is not first)
    wait_for(lambda: "copied" in other.sources, "the second call")
    other.release("copied")
    assert sent.result().json[field] == 2
    assert first.sources["copied"] is None and other.sources["copied"].startswith(first.authority + ";tokens=")


@pytest.mark.parametrize("fingerprints", [("00aa", "00ab"), ("00aa", None), (None, None)])
def test_nothing_is_fetched_between_workers_whose_blocks_differ(fleet, fingerprints):
    f = fleet(fingerprints=fingerprints)
    f.answered("first", f.send("first", PREFIX))
    f.answered("second", f.send("second", PREFIX + "something else"))
    assert f.who_started("first") is f.who_started("second")  # computed nowhere else
    assert all(source is None for w in f.workers for source in w.sources.values())
    assert f.router.metric("incipit_kv_fetches_total") == 0


def test_a_source_of_the_clients_is_not_passed_on(fleet):
    f = fleet()
    f.answered("forged", f.send("forged", "hello", x_incipit_kv_source="10.0.0.1:80;tokens=5"))
    assert f.who_started("forged").sources["forged"] is None


def test_a_dry_run_shows_what_each_worker_would_fetch(fleet):
    f = fleet()
    holder, other = map(f.workers.index, f.hold())
    answer = http(f.router.admin_url + "/debug/route", {"model": "m", "prompt": PREFIX + "something else"}).json
    by_worker = {c["worker"]: c for c in answer["candidates"]}
    assert answer["worker"] == other and by_worker[other]["fetch_from"] == holder and by_worker[other]["fetch_tokens"] > 9900
    assert "fetch_from" not in by_worker[holder]
    f.answered("busy", f.busy)
