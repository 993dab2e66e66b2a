"""Whole sessions wait while the contexts of active ones fill the workers' caches (router/operating/sessions.md)."""
import copy
import json
import signal
from http.client import HTTPConnection

import pytest

from conftest import Router, Worker, events, http, wait_for
from test_admission import Asked, lower

BLOCKS = 512  # of 16 tokens: 0.9 x 8,192 tokens may be active
TEXT = "The quick brown fox jumps over the lazy dog. "


def turn(name, n_tokens=3000, **more):
    """A request of a session: its prompt is its own, and has about so many tokens, a byte each."""
    return {"prompt": f"{name}: " + TEXT * (n_tokens // len(TEXT)), "max_tokens": 1, **more}


class Fleet:
    def __init__(self, programs, *args, n=1):
        self.programs = programs
        self.workers = [self.worker() for _ in range(n)]
        self.router = programs(Router, "--worker-urls", ",".join(w.url for w in self.workers), *args).ready(n)

    def worker(self, port=0):
        return self.programs(Worker, "--backend", "sim", "--sim-speed", 20, "--num-gpu-blocks-override", BLOCKS, "--max-model-len",
                             4096, "--admin-api-key", "admin", "--schedule-policy", "fcfs", port=port).ready()

    def ask(self, session, final=False, body=None, **more):
        headers = {"x-incipit-session": session, **({"x-incipit-session-final": "true"} if final else {})}
        return self.router.post("/v1/completions", body or turn(session), headers=headers, **more)

    def begin(self, session):
        """Active and idle: the first turn passes by, the second makes it count."""
        for _ in range(2):
            assert self.ask(session).code == 200

    def turns(self, joined):
        return self.router.metric("incipit_session_turns_total", joined=joined)

    def held(self, session, **more):
        """A turn that is asked on the side."""
        return Asked(self.router, body=turn(session), headers={"x-incipit-session": session}, **more)

    def sessions(self, state):
        return self.router.metric("incipit_sessions", state=state)

    def wait_for_held(self, n=1):
        wait_for(lambda: self.router.metric("incipit_requests_waiting") == n, f"{n} that wait")


@pytest.fixture
def full(programs):
    """A fleet whose cache two active sessions fill."""
    def start(*args, **more):
        fleet = Fleet(programs, *args, **more)
        fleet.begin("first")
        fleet.begin("second")
        assert fleet.sessions("active") == 2
        assert fleet.ask("third").code == 200  # its first turn passes by
        return fleet
    return start


def test_a_session_waits_until_another_has_ended(full):
    fleet = full()
    third = fleet.held("third")
    fleet.wait_for_held()
    assert fleet.sessions("waiting") == 1 and fleet.router.metric("incipit_requests_held_total", reason="session") == 1
    assert fleet.ask("first").code == 200  # an active one goes on
    assert third.answer is None
    assert fleet.ask("second", final=True).code == 200
    third.join(30)
    assert third.answer.code == 200
    assert fleet.sessions("active") == 2 and fleet.sessions("waiting") == 0
    assert fleet.router.metric("incipit_sessions_paused_total", reason="final") == 1


def test_none_waits_while_little_is_repeated(programs):
    fleet = Fleet(programs)
    share = lambda: fleet.router.metric("incipit_session_repeated_ratio")
    assert share() == 1
    for i in range(60):
        assert fleet.ask(f"single {i}").code == 200
    assert share() < 0.5
    for session in "abc":  # more than fit
        fleet.begin(session)
    active = lambda: fleet.router.metric("incipit_session_tokens", kind="active")
    assert fleet.sessions("active") == 3 and active() > fleet.router.metric("incipit_session_tokens", kind="limit") and share() < 0.5
    assert fleet.ask("c", final=True).code == 200
    for _ in range(60):  # now much is
        assert fleet.ask("a").code == 200
    assert share() > 0.5
    assert fleet.ask("fourth").code == 200  # a first turn
    fourth = fleet.held("fourth")
    fleet.wait_for_held()
    assert fleet.ask("a", final=True).code == 200
    fourth.join(30)
    assert fourth.answer.code == 200


CLIENTS = [  # headers of a session, of another that belongs to it, of its last request
    ({"x-incipit-session": "1"}, {"x-incipit-session": "2", "x-incipit-session-parent": "1"}, {"x-incipit-session-final": "true"}),
    ({"x-dynamo-session-id": "3"}, {"x-dynamo-session-id": "4", "x-dynamo-parent-session-id": "3"}, {"x-dynamo-session-final": "true"}),
    ({"x-claude-code-session-id": "5"}, {"x-claude-code-session-id": "5", "x-claude-code-agent-id": "6"}, {}),
    ({"thread-id": "7", "session-id": "x"}, {"thread-id": "8", "session-id": "x", "x-codex-parent-thread-id": "7"}, {}),
    ({"session-id": "9"}, {"session-id": "10"}, {}),
    ({"x-session-id": "11"}, {"x-session-id": "12", "x-parent-session-id": "11"}, {}),
]


def test_each_client_names_its_sessions(programs):
    fleet = Fleet(programs)
    n_sessions = n_final = 0
    for session, other, final in CLIENTS:
        for headers in session, other:
            for word in "one", "two", "three":  # prompts that only the name joins
                more = final if word == "three" else {}
                assert fleet.router.post("/v1/completions", turn(f"{headers} {word}", 500), headers={**headers, **more}).code == 200
            n_sessions += 1
            n_final += bool(final)
            assert (fleet.turns("new"), fleet.turns("id")) == (n_sessions, 2 * n_sessions), headers
    assert fleet.router.metric("incipit_sessions_paused_total", reason="final") == n_final


def test_a_turn_without_a_name_is_joined_by_its_prompt(programs):
    fleet = Fleet(programs)
    prompt = turn("unnamed", 2000)["prompt"]
    for length in 1, 2:
        assert fleet.router.post("/v1/completions", {"prompt": prompt + TEXT * 5 * length, "max_tokens": 1}).code == 200
    metric = fleet.router.metric
    assert metric("incipit_session_turns_total", joined="new") == 1
    assert metric("incipit_session_turns_total", joined="end") + metric("incipit_session_turns_total", joined="anchor") == 1


def test_a_client_that_leaves_while_it_waits_frees_its_place(full):
    fleet = full()
    connection = HTTPConnection(fleet.router.url[len("http://"):])
    connection.request("POST", "/v1/completions", json.dumps(turn("third")),
                       {"Content-Type": "application/json", "x-incipit-session": "third"})
    fleet.wait_for_held()
    connection.close()
    wait_for(lambda: fleet.router.metric("incipit_requests_waiting") == 0, "no request to wait")
    assert fleet.sessions("waiting") == 0
    fleet.ask("first", final=True)
    assert fleet.ask("fourth").code == 200 and fleet.ask("fourth").code == 200


def test_a_session_that_waits_for_too_long_gets_503_and_is_told_when_to_retry(full):
    fleet = full("--session-timeout", "100ms", "--queue-timeout", "100ms")
    late = fleet.ask("third")
    assert late.code == 503 and "--session-timeout" in late.json["error"]["message"]
    assert "retry-after" in lower(late.headers)
    assert fleet.router.metric("incipit_requests_refused_total", limit="session-timeout") == 1
    assert fleet.sessions("waiting") == 0


def test_a_full_queue_refuses_sessions_too(full):
    fleet = full("--queue-size", "1")
    waits = fleet.held("third")
    fleet.wait_for_held()
    assert fleet.ask("fourth").code == 200  # a first turn
    refused = fleet.ask("fourth")
    assert refused.code == 429 and "--queue-size" in refused.json["error"]["message"]
    assert fleet.ask("first", final=True).code == 200
    waits.join(30)
    assert waits.answer.code == 200


def test_an_emptied_cache_lets_sessions_go(full):
    fleet = full()
    third = fleet.held("third")
    fleet.wait_for_held()
    n = fleet.sessions("active")
    assert http(fleet.router.admin_url + "/flush_cache", method="POST", body={}).code == 200
    third.join(30)
    assert third.answer.code == 200
    assert n == 2 and fleet.sessions("active") == 3  # the sessions stay


def test_a_worker_that_restarts_takes_the_contexts_and_not_the_sessions(programs):
    fleet = Fleet(programs)
    fleet.begin("a")
    tokens = lambda: fleet.router.metric("incipit_session_tokens", kind="active")
    assert tokens() > 0
    port = fleet.workers[0].url.rsplit(":", 1)[1]
    fleet.workers[0].stop(signal.SIGKILL)
    fleet.worker(port)
    wait_for(lambda: tokens() == 0, "no context left")
    wait_for(lambda: fleet.router.n_healthy() == 1, "the worker")
    assert fleet.sessions("active") == 1
    n = fleet.turns("id")
    assert fleet.ask("a").code == 200
    assert fleet.turns("id") == n + 1 and tokens() > 0


def test_sessions_that_wait_are_refused_when_the_last_worker_leaves(full):
    fleet = full()
    third = fleet.held("third")
    fleet.wait_for_held()
    assert http(fleet.router.admin_url + "/workers/0", method="DELETE").code in (200, 202)  # it drains, or is gone
    third.join(30)
    assert third.answer.code == 503


def test_a_router_that_stops_serves_or_refuses_the_sessions_that_wait(full):
    fleet = full("--drain-timeout", "2s")
    third = fleet.held("third")
    fleet.wait_for_held()
    fleet.router.stop(signal.SIGTERM)
    third.join(30)
    assert third.answer is None or third.answer.code in (200, 503)


def test_names_of_two_tenants_are_two_sessions(programs):
    fleet = Fleet(programs, "--trust-tenant-header", "--tenant-header-name", "x-tenant")
    for tenant in "a", "b":
        answer = fleet.router.post("/v1/completions", turn("shared"), headers={"x-session-id": "1", "x-tenant": tenant})
        assert answer.code == 200
    assert fleet.router.metric("incipit_session_turns_total", joined="new") == 2


class Pair:
    """Two routers before one fleet."""

    def __init__(self, programs):
        self.first = Fleet(programs)
        self.second = copy.copy(self.first)
        self.second.router = programs(Router, "--worker-urls", ",".join(w.url for w in self.first.workers), "--session-admission",
                                      "auto").ready(1)
        self.both = self.first, self.second
        self.n_sent = 0
        self.settle()

    def settle(self):
        """Until each has heard of what the other sent; of more, where a turn that waited ended meanwhile."""
        wait_for(lambda: all(f.router.metric("incipit_followed_workers") == 1 for f in self.both), "streams of events")
        wait_for(lambda: sum(f.router.metric("incipit_shared_events_total", kind="ended") for f in self.both) >= 2 * self.n_sent,
                 f"{self.n_sent} ends")  # each reads its own too

    def ask(self, fleet, session, **more):
        assert fleet.ask(session, **more).code == 200
        self.n_sent += 1
        self.settle()

    def begin(self, session):
        """Through both of them."""
        for fleet in self.both:
            self.ask(fleet, session)


@pytest.fixture
def pair(programs, monkeypatch):
    monkeypatch.setenv("INCIPIT_PREFIX_HASH_SEED", "the same on both")
    return Pair(programs)


def test_turns_through_two_routers_are_one_session(pair):
    pair.begin("named")
    prompt = turn("unnamed", 2000)["prompt"]
    for length, fleet in enumerate(pair.both):
        assert fleet.router.post("/v1/completions", {"prompt": prompt + TEXT * 5 * length, "max_tokens": 1}).code == 200
        pair.n_sent += 1
        pair.settle()
    joined = lambda fleet, *how: sum(fleet.router.metric("incipit_session_turns_total", joined=h) for h in how)
    assert joined(pair.first, "new") == 2 and joined(pair.second, "new") == 0
    assert joined(pair.second, "id") == 1 and joined(pair.second, "end", "anchor") == 1
    for fleet in pair.both:
        assert fleet.sessions("active") == 2


def test_two_routers_admit_together_what_the_caches_hold(pair):
    for session in "first", "second":
        pair.begin(session)
    for fleet in pair.both:
        assert fleet.sessions("active") == 2
    pair.ask(pair.first, "third")  # its first turn passes by
    third = pair.second.held("third")  # its next one comes through the other
    pair.second.wait_for_held()
    pair.ask(pair.second, "first")  # an active one goes on through any
    assert third.answer is None and pair.second.sessions("waiting") == 1
    pair.ask(pair.first, "second", final=True)
    third.join(30)
    assert third.answer.code == 200
    pair.n_sent += 1
    pair.settle()
    for fleet in pair.both:
        assert fleet.sessions("active") == 2 and fleet.sessions("waiting") == 0


def test_a_router_that_is_killed_leaves_no_turn_open(pair):
    for session in "first", "second":
        pair.begin(session)
    body = {**turn("first"), "max_tokens": 900, "ignore_eos": True, "stream": True}
    stream = events(pair.first.router.url + "/v1/completions", body, headers={"x-incipit-session": "first"})
    next(stream)
    wait_for(lambda: pair.second.router.metric("incipit_shared_requests_in_flight") == 1, "the other's turn")
    pair.first.router.stop(signal.SIGKILL)
    wait_for(lambda: pair.second.router.metric("incipit_shared_requests_in_flight") == 0, "its end")
    assert pair.second.sessions("active") == 2  # until their time is over
    assert pair.second.ask("first", final=True).code == 200
    assert pair.second.sessions("active") == 1


def test_off_holds_no_session(programs):
    fleet = Fleet(programs, "--session-admission", "off")
    for session in "abcd":
        fleet.begin(session)
    assert "incipit_sessions{" not in http(fleet.router.admin_url + "/metrics").body


def test_a_fleet_of_agents_keeps_its_caches(programs):
    """Six sessions on a cache for two, and nothing else that orders them: with admission far more is found cached."""
    shares = {}
    for mode in "auto", "off":
        fleet = Fleet(programs, "--session-admission", mode, "--hold-ms", 0)
        asked = [Agent(fleet, f"{mode}-{i}") for i in range(6)]
        for agent in asked:
            agent.join(120)
            assert agent.codes == [200] * Agent.TURNS
        shares[mode] = fleet.router.metric("incipit_cached_tokens_total") / fleet.router.metric("incipit_prompt_tokens_total")
    assert shares["auto"] > 1.5 * shares["off"], shares


class Agent(Asked):
    """A session: its turns come one after the other, each longer than the one before; the last is marked."""
    TURNS = 8

    def __init__(self, fleet, name):
        self.fleet, self.name_, self.codes = fleet, name, []
        super().__init__(fleet.router)

    def run(self):
        for i in range(self.TURNS):
            body = turn(self.name_, 2600 + 100 * i)
            self.codes.append(self.fleet.ask(self.name_, final=i + 1 == self.TURNS, body=body, timeout=120).code)
