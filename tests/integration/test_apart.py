"""One of our workers computes a prompt, another takes its KV over and answers: what is sent to each, what is counted, and every
way in which it fails. The scripted workers answer when the test lets them, and by what they publish a prompt takes minutes;
the simulated ones exchange blocks that they have."""
import concurrent.futures
import json
import re
import socket
import threading

import pytest

from conftest import DEMO_MODEL, NoSample, Router, Worker, events, wait_for
from test_hold import PATIENT, Slow, SlowWorker

LONG = "all of it " * 4000  # 1000 seconds of prefill
PREFILL, SOURCE = "x-incipit-prefill", "x-incipit-kv-source"


def tokens_of(text):
    return len(text) // 4


class Own(Slow):
    """A worker of ours of one role, as the router sees it: the first token is in its head, a stream waits for its gate."""

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        of, n = self.server.of, tokens_of(body.get("prompt") or json.dumps(body.get("messages")))
        is_leg = PREFILL in self.headers
        with of.lock:
            of.seen.append((self.path, body, {k.lower(): v for k, v in self.headers.items()}))
        if is_leg and of.fault:
            return self.fail(of.fault, n)
        if is_leg:
            return self.send({"object": "prefill", "prompt_tokens": n, "cached_tokens": of.cached},
                             [("x-incipit-prompt-tokens", n), ("x-incipit-cached-tokens", of.cached)])
        source = re.fullmatch(r"(\S+);tokens=(\d+)(?:;computed=(\d+))?", self.headers[SOURCE] or "")
        headers = [("x-incipit-prompt-tokens", n), ("x-incipit-cached-tokens", 0)]
        if source and not of.misses:
            hits = int(source[2]) - int(source[3] or 0)
            headers = [("x-incipit-prompt-tokens", n), ("x-incipit-cached-tokens", hits),
                       ("x-incipit-restored-tokens", int(source[2]) // 16 * 16), ("x-incipit-restore-us", 25000)]
        if body.get("stream"):
            return self.hold(headers)
        answer = json.dumps({"choices": [{"text": of.name, "index": 0, "finish_reason": "stop"}],
                             "usage": {"prompt_tokens": n, "completion_tokens": 1}}).encode()
        self.send_response(200)
        for name, value in (("Content-Type", "application/json"), ("Content-Length", len(answer)), *headers):
            self.send_header(name, str(value))
        self.end_headers()
        self.wfile.write(answer)

    def hold(self, headers):
        """A stream that ends with the gate."""
        self.send_response(200)
        for name, value in (("Content-Type", "text/event-stream"), ("Transfer-Encoding", "chunked"), *headers):
            self.send_header(name, str(value))
        self.end_headers()
        event = b'data: {"choices":[{"text":"x","index":0}]}\n\n'
        self.wfile.write(b"%x\r\n%s\r\n" % (len(event), event))
        self.server.of.gate.wait(60)
        self.wfile.write(b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n")

    def fail(self, fault, n):
        if fault == "stuck":
            self.server.of.gate.wait(60)
        if fault in ("die", "stuck"):
            self.close_connection = True
            return self.connection.shutdown(socket.SHUT_RDWR)
        if fault == "mute":
            return self.send({"object": "prefill"})
        if fault == "impossible":
            return self.send({"object": "prefill"}, [("x-incipit-prompt-tokens", n), ("x-incipit-cached-tokens", n + 1)])
        self.send_response(int(fault))
        self.send_header("Content-Length", "0")
        self.end_headers()


class OwnWorker(SlowWorker):
    handler = Own

    def __init__(self, name, published, fingerprint="00aa", **info):
        self.name, self.fault, self.misses, self.cached, self.seen, self.gate = name, None, False, 8, [], threading.Event()
        peer = {"generation": f"g{id(self)}", "fingerprint": fingerprint, "bytes_per_token": 2048, "is_encrypted": False}
        super().__init__(kv_peer=peer, role=published, **info)

    def stop(self):
        self.gate.set()
        super().stop()

    @property
    def authority(self):
        return self.url.removeprefix("http://")


class Fleet:
    """A worker that prefills and one that decodes, by default."""

    def __init__(self, router, workers):
        self.router, self.workers, self.pool = router, workers, concurrent.futures.ThreadPoolExecutor(16)
        self.held = None

    def __getitem__(self, name):
        return next(w for w in self.workers if w.name == name)

    def decoding(self):
        """From here on the worker that decodes has a sequence."""
        begun = threading.Event()

        def hold():
            for _ in events(self.router.url + "/v1/completions", {"model": "m", "prompt": "hold", "stream": True}):
                begun.set()

        self.held = self.pool.submit(hold)
        assert begun.wait(20), "its first token"
        assert self["decode1"].seen
        for worker in self.workers:
            worker.seen.clear()
        return self

    def ask(self, prompt=LONG, path="/v1/completions", headers=(), **more):
        body = {"model": "m", "prompt": prompt, "max_tokens": 1, **more}
        return self.router.post(path, body, headers={"x-incipit-route": "1", **dict(headers)})

    def count(self, name, **labels):
        try:
            return self.router.metric("incipit_" + name, **labels)
        except NoSample:
            return 0

    def assert_idle(self):
        for worker in self.workers:
            worker.gate.set()
        if self.held:
            self.held.result()
        wait_for(lambda: all(w["load"] == 0 for w in self.router.workers()["workers"]), "no request in flight")


@pytest.fixture
def fleet(programs):
    started = []

    def start(*roles, args=(), **info):
        roles = [r if isinstance(r, tuple) else (r, {}) for r in roles or ("prefill", "decode")]
        started.extend(OwnWorker(f"{role}{i}", **{"published": role, **more, **info}) for i, (role, more) in enumerate(roles))
        router = programs(Router, "--worker-urls", *[w.url for w in started], "--explain-to-clients", *PATIENT, *args)
        return Fleet(router.ready(len(roles)), started)
    yield start
    for worker in started:
        worker.stop()


def route_of(answer):
    assert answer.code == 200, answer.body
    return dict(field.split("=") for field in answer.headers["x-incipit-route"].split())


def test_a_long_prompt_is_computed_by_one_and_answered_by_the_other(fleet):
    f = fleet().decoding()
    answer = f.ask()
    assert answer.json["choices"][0]["text"] == "decode1"
    (path, first, head), = f["prefill0"].seen
    (_, second, second_head), = f["decode1"].seen
    n = tokens_of(LONG)
    assert path == "/v1/completions" and first == second and head[PREFILL] == "1" and PREFILL not in second_head
    assert SOURCE not in head and second_head[SOURCE] == f"{f['prefill0'].authority};tokens={n};computed={n - 8}"
    assert route_of(answer)["prefill_worker"] == "0" and route_of(answer)["fetch_from"] == "0"
    assert f.count("prefill_legs_total", outcome="handed") == 1 and f.count("prefill_choices_total", choice="apart") == 1
    assert f.count("kv_fetches_total") == 1 and f.count("kv_fetched_tokens_total") == n // 16 * 16
    assert f.count("cached_tokens_total") == 8  # of the first worker; what was fetched is no hit
    f.assert_idle()


def test_a_short_prompt_and_one_for_an_idle_worker_stay_together(fleet):
    f = fleet(prefill_tokens_per_s=1000)
    assert f.ask().code == 200  # nothing decodes there
    f.decoding()
    assert f.ask("hello").code == 200
    assert f.ask().code == 200  # cached
    assert not f["prefill0"].seen and f.count("prefill_choices_total", choice="together") == 4
    f.assert_idle()


@pytest.mark.parametrize("fault", ["die", "500", "400", "503", "mute", "impossible"])
def test_a_first_leg_that_fails_falls_back_to_the_plain_request(fleet, fault):
    f = fleet().decoding()
    f["prefill0"].fault = fault
    assert f.ask().json["choices"][0]["text"] == "decode1"
    assert len(f["prefill0"].seen) == 1
    (_, _, head), = f["decode1"].seen
    assert SOURCE not in head
    assert f.count("prefill_legs_total", outcome="failed") == 1 and f.count("prefill_legs_total", outcome="handed") == 0
    f.assert_idle()


def test_a_first_leg_that_takes_too_long_is_left(fleet):
    """By what is published it takes 0.2 s."""
    f = fleet(prefill_tokens_per_s=10000).decoding()
    f["prefill0"].fault = "stuck"
    assert f.ask("word " * 1600).json["choices"][0]["text"] == "decode1"
    assert f.router.field("prefill_leg_failed", "reason") == "leg_timeout"
    f.assert_idle()


def test_blocks_that_do_not_come_are_computed_and_counted_as_missed(fleet):
    f = fleet().decoding()
    f["decode1"].misses = True
    assert f.ask().code == 200
    assert f.count("kv_fetches_missed_total") == 1 and f.count("cached_tokens_total") == 0
    f.assert_idle()


@pytest.mark.parametrize("role, info", [("decode", {"fingerprint": "00ab"}), ("both", {}), ("", {})])
def test_workers_that_make_no_pair_answer_alone(fleet, role, info):
    """Other blocks; no role; a version that has none."""
    f = fleet("prefill", ("decode", {"published": role, **info})).decoding()
    assert f.ask().json["choices"][0]["text"] == "decode1"
    assert not f["prefill0"].seen and f.count("prefill_choices_total", choice="apart") == 0
    f.assert_idle()


@pytest.mark.parametrize("roles", [("prefill", "prefill"), ("decode", "decode"), ("prefill",)])
def test_workers_of_one_role_answer(fleet, roles):
    f = fleet(*roles)
    assert [f.ask(LONG + str(i)).code for i in range(4)] == [200] * 4
    assert all(PREFILL not in head and "computed" not in (head.get(SOURCE) or "") for w in f.workers for _, _, head in w.seen)
    f.assert_idle()


def test_a_clients_own_headers_are_not_passed_on(fleet):
    f = fleet()
    assert f.ask("hello", headers={PREFILL: "1", SOURCE: "10.0.0.1:80;tokens=5;computed=1"}).code == 200
    (_, _, head), = f["decode1"].seen
    assert PREFILL not in head and SOURCE not in head


@pytest.mark.parametrize("more", [{"n": 2}, {"prompt_logprobs": 1}, {"echo": True}])
def test_a_request_that_cannot_be_split_is_not(fleet, more):
    f = fleet().decoding()
    assert f.ask(**more).code == 200
    assert not f["prefill0"].seen and f.count("prefill_choices_total", choice="unfit") == 1
    f.assert_idle()


def test_a_client_that_leaves_releases_the_first_leg(fleet):
    f = fleet().decoding()
    f["prefill0"].fault = "stuck"
    with pytest.raises(TimeoutError):
        f.router.post("/v1/completions", {"model": "m", "prompt": LONG}, timeout=1)
    wait_for(lambda: f.count("prefill_legs_total", outcome="aborted") == 1, "the leg is over")
    assert not f["decode1"].seen
    f.assert_idle()


# --- simulated workers ----------------------------------------------------------------------------


# The demonstration model's shape, whose KV is small, on a device that computes 4,000 tokens a second.
SIM = (DEMO_MODEL, "--backend", "sim", "--sim-speed", 0.2, "--num-gpu-blocks-override", 1000, "--kv-offload-bytes", "64MiB", "--kv-peers",
       "--kv-peer-plain", "--served-model-name", "m")


@pytest.fixture
def pair(programs):
    """A worker that prefills and one that decodes, behind a router."""
    def start(*args):
        workers = [programs(Worker, *SIM, "--role", role, "--seed", 1, *args).ready() for role in ("prefill", "decode")]
        router = programs(Router, "--worker-urls", *[w.url for w in workers], "--expose-worker-headers").ready(2)
        return router, *workers
    return start


def text_of(n_bytes, name):
    return "".join(f"{name} {i} " for i in range(n_bytes))[:n_bytes]


def decode(router, ended):
    """A stream that goes on until `ended`; returns once its first token is there."""
    begun = threading.Event()

    def read():
        while not ended.is_set():
            for _ in events(router.url + "/v1/completions", {"model": "m", "prompt": "a story", "max_tokens": 3000, "stream": True,
                                                              "ignore_eos": True}):
                begun.set()
                if ended.is_set():
                    return
    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    assert begun.wait(30)
    return thread


def test_blocks_of_a_first_leg_are_taken_over_and_are_no_hit(pair):
    router, first, second = pair()
    assert first.get("/server_info").json["role"] == "prefill"
    ended = threading.Event()
    thread = decode(router, ended)
    body = {"model": "m", "prompt": text_of(3600, "prompt"), "max_tokens": 8, "temperature": 0}
    answer = router.post("/v1/completions", body)
    ended.set()
    assert answer.code == 200
    assert router.metric("incipit_prefill_legs_total", outcome="handed") == 1
    assert int(answer.headers["x-incipit-restored-tokens"]) > 0.9 * answer.json["usage"]["prompt_tokens"]
    assert answer.json["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    assert answer.headers["x-incipit-cached-tokens"] == "0"
    thread.join(30)
    again = second.post("/v1/completions", body)  # now it is one
    assert again.json["usage"]["prompt_tokens_details"]["cached_tokens"] > 0.9 * again.json["usage"]["prompt_tokens"]
    assert again.json["choices"][0]["text"] == answer.json["choices"][0]["text"]


@pytest.mark.parametrize("which", [0, 1])
def test_a_worker_that_is_killed_costs_no_answer(pair, which):
    """Of either role, while prompts are computed, waited for and handed over."""
    router, *workers = pair()
    ended = threading.Event()
    thread = decode(router, ended)
    bodies = [{"model": "m", "prompt": text_of(3600, f"prompt {i}"), "max_tokens": 8, "temperature": 0} for i in range(6)]
    with concurrent.futures.ThreadPoolExecutor(len(bodies)) as pool:
        answers = [pool.submit(router.post, "/v1/completions", body) for body in bodies]
        wait_for(lambda: "outcome=\"handed\"" in router.metrics(), "a prompt that is handed over")
        ended.set()
        workers[which].process.kill()
        answers = [a.result() for a in answers]
    assert [a.code for a in answers] == [200] * len(bodies), [a.body for a in answers]
    alone = [workers[1 - which].post("/v1/completions", body) for body in bodies]
    assert [a.json["choices"][0]["text"] for a in answers] == [a.json["choices"][0]["text"] for a in alone]
    thread.join(30)


@pytest.mark.parametrize("path, more", [
    ("/v1/completions", {"prompt": text_of(2000, "a")}),
    ("/v1/completions", {"prompt": text_of(2000, "b"), "n": 3, "best_of": 3, "logprobs": 2, "stream": True}),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": text_of(2000, "c")}], "stream": True, "logprobs": True,
                              "response_format": {"type": "json_object"}}),
    ("/v1/messages", {"messages": [{"role": "user", "content": text_of(2000, "d")}], "max_tokens": 50}),
    ("/v1/responses", {"input": text_of(2000, "e"), "store": True}),
    ("/generate", {"text": text_of(2000, "f"), "stream": True}),
])
def test_a_prompt_is_computed_and_not_answered(sim, path, more):
    """Whatever the call: its prompt is in the cache afterwards, and the answer has its tokens alone."""
    body = {"model": "synthetic", **more}
    leg = sim.post(path, body, headers={PREFILL: "1"})
    n = int(leg.headers["x-incipit-prompt-tokens"])
    assert leg.code == 200 and leg.json == {"object": "prefill", "model": "synthetic", "prompt_tokens": n, "cached_tokens": 0,
                                            "restored_tokens": 0, "restore_us": 0}
    again = sim.post(path, body, headers={PREFILL: "1"})
    assert again.json["cached_tokens"] >= n - 32 and again.headers["x-incipit-cached-tokens"] == str(again.json["cached_tokens"])
    assert sim.get("/metrics").code == 200 and sim.metric("incipit_responses_stored") == 0


def test_a_leg_with_an_error_is_refused_as_the_request_is(sim):
    answer = sim.post("/v1/completions", {"model": "synthetic", "prompt": "a", "temperature": -1}, headers={PREFILL: "1"})
    assert answer.code == 400 and "temperature" in answer.body


@pytest.mark.parametrize("args", [("--role", "prefill"), ("--role", "decode")])
def test_a_role_without_peers_is_refused(programs, args):
    worker = programs(Worker, "--backend", "sim", *args)
    worker.process.wait(60)
    assert worker.process.returncode != 0 and "--kv-peers" in worker.log
