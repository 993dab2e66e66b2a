"""Deadlines of first tokens: a request that would miss its own is refused at once, or as soon as that is known. The
workers here publish that they prefill ten tokens a second, and answer when a test lets them, so that no test depends on
time; the last ones are of the sim backend."""
import concurrent.futures
import time

import pytest

from conftest import Router, Worker, wait_for
from test_hold import LONG, MIDDLE, SHORT, fleet, route_of, slow  # noqa: F401

TTFT, OURS = "x-slo-ttft-ms", "x-incipit-deadline-ms"
MINUTE = 60_000


def outcomes(router, outcome):
    return sum(float(line.rsplit(" ", 1)[1]) for line in router.metrics().splitlines()
               if line.startswith(f'incipit_deadlines_total{{outcome="{outcome}"}}'))


def release_all(worker, n):
    for i in range(n):
        wait_for(lambda: len(worker.started) > i, f"another after {worker.started}")
        worker.release(worker.started[i])


@pytest.mark.parametrize("name", [TTFT, OURS])
@pytest.mark.parametrize("value", ["", "0", "-5", "3s", "1e3", "0x10", "1.5", "86400001", "9" * 40, "soon"])
def test_a_value_that_is_no_time_is_answered_400_with_a_remedy(fleet, name, value):
    clients, worker = fleet()
    answer = clients.router.post("/v1/completions", {"model": "m", "prompt": "a", "user": "a"}, headers={name: value})
    error = answer.json["error"]
    assert answer.code == 400 and error["param"] == name and "milliseconds from 1 to 86400000" in error["message"], answer.body
    assert worker.started == []
    worker.release("b")  # a call without a first token
    assert clients.router.post("/tokenize", {"model": "m", "prompt": "a", "user": "b"}, headers={name: value}).code == 200


def test_a_request_that_is_longer_than_its_deadline_is_refused_at_once(fleet):
    clients, worker = fleet()
    answer = clients.send("hopeless", LONG, x_slo_ttft_ms=5 * MINUTE).result()  # 1000 s of prefill
    assert answer.code == 429 and worker.started == [], answer.body
    assert int(answer.headers["retry-after"]) >= 1 and int(answer.headers["retry-after-ms"]) >= 1000
    assert "deadline is in 300.0 s" in answer.json["error"]["message"]
    worker.release("fits")
    route = route_of(clients.send("fits", LONG, x_slo_ttft_ms=50 * MINUTE).result())
    assert route["deadline_ms"] == str(50 * MINUTE)
    router = clients.router
    assert outcomes(router, "refused") == outcomes(router, "met") == 1
    assert router.metric("incipit_requests_refused_total", limit="deadline") == 1
    wait_for(lambda: " request_refused reason=deadline " in router.log and "deadline_ms=300000" in router.log, "the log")


def test_of_two_deadlines_the_smaller_one_applies(fleet):
    clients, worker = fleet()
    for headers in ({TTFT: 50 * MINUTE, OURS: 5 * MINUTE}, {TTFT: 5 * MINUTE, OURS: 50 * MINUTE}):
        assert clients.send("a", LONG, **headers).result().code == 429
    assert worker.started == []


def test_what_waits_and_is_shorter_counts_and_what_is_longer_does_not(fleet):
    clients, worker = fleet()
    answers = [clients.send("first", SHORT)]
    worker.wait_for("first")
    for i in range(4):  # 150 s of prefill each
        answers.append(clients.send(f"held{i}", MIDDLE))
        clients.waiting(i + 1)
    refused = clients.send("longer", 2 * MIDDLE, x_slo_ttft_ms=10 * MINUTE).result()
    assert refused.code == 429 and 400 <= int(refused.headers["retry-after"]) <= 720, refused.headers
    answers.append(clients.send("shorter", SHORT, x_slo_ttft_ms=10 * MINUTE))
    clients.waiting(5)
    release_all(worker, 6)
    assert [a.result().code for a in answers] == [200] * 6
    assert worker.started[:2] == ["first", "shorter"]
    worker.release("again")
    assert clients.send("again", 2 * MIDDLE, x_slo_ttft_ms=10 * MINUTE).result().code == 200  # nothing waits now


def test_one_that_waits_is_refused_as_soon_as_it_cannot_make_it(fleet):
    clients, worker = fleet()
    answers = []
    for name in ("a", "first"):  # 0.1 s that pass, and 10 s behind them, which do not
        answers.append(clients.send(name, {"a": 4, "first": 400}[name]))
        wait_for(lambda: worker.started[-1:] == [name], f"{name} after {worker.started}")
    refused = clients.send("late", 1480, x_incipit_deadline_ms=40000).result()  # 37 s: too late after 3 s, and the wait is 10 s
    assert refused.code == 429 and "within the 40.0 s of its deadline" in refused.body, refused.body
    for answer, name in zip(answers, ("a", "first")):
        worker.release(name)
        assert answer.result().code == 200
    assert worker.started == ["a", "first"]
    assert clients.router.metric("incipit_requests_waiting") == 0 and outcomes(clients.router, "refused") == 1


def test_the_deadline_of_a_held_request_ends_its_wait_also_without_late_binding(fleet):
    clients, worker = fleet("--hold-ms", 0, "--max-worker-requests", 1)
    first = clients.send("first", SHORT // 20)
    worker.wait_for("first")
    refused = clients.send("held", SHORT // 40, x_slo_ttft_ms=2500).result()
    assert refused.code == 429 and "deadline" in refused.body
    worker.release("first")
    assert first.result().code == 200 and worker.started == ["first"]


def test_a_flood_of_another_tenant_refuses_no_one_else(fleet, tmp_path):
    (tmp_path / "keys").write_text("sk-flood tenant=flood\nsk-other tenant=other\n")
    clients, worker = fleet("--api-keys-file", tmp_path / "keys")
    key = lambda name: {"authorization": f"Bearer sk-{name}"}
    answers = [clients.send("first", SHORT, **key("flood"))]
    worker.wait_for("first")
    answers += [clients.send(f"flood{i}", SHORT, **key("flood")) for i in range(20)]
    clients.waiting(20)
    assert clients.send("own", 2 * SHORT, x_slo_ttft_ms=5 * MINUTE, **key("flood")).result().code == 429
    answers.append(clients.send("other", 2 * SHORT, x_slo_ttft_ms=5 * MINUTE, **key("other")))
    clients.waiting(21)
    release_all(worker, len(answers))
    assert [a.result().code for a in answers] == [200] * len(answers)


def test_over_retries_the_deadline_counts_from_the_first_arrival(fleet):
    clients, one, two = fleet("--slow-start", 0, n=2)
    lost = clients.send("lost", 1120, x_slo_ttft_ms=30000)  # 28 s of prefill
    wait_for(lambda: len(one.started + two.started) == 1, "it to be sent")
    sent_s = time.monotonic()
    bad, good = (one, two) if one.started else (two, one)
    wait_for(lambda: time.monotonic() > sent_s + 2.1, "its time to pass")
    bad.broken.add("lost")
    bad.server.shutdown()
    bad.server.server_close()
    bad.release("lost")
    answer = lost.result()
    assert answer.code == 429 and "deadline" in answer.body, answer.body
    assert good.started == [] and clients.router.metric("incipit_requests_in_flight") == 0


def test_a_retry_that_obeys_is_accepted_by_workers_that_simulate(programs):
    """One worker, and more than it can do: refused requests come again when the router asks for it."""
    worker = programs(Worker, "--backend", "sim", "--sim-speed", 20).ready()
    router = programs(Router, "--worker-urls", worker.url).ready(1)
    prompt = lambda i: f"{i} quinces and medlars " * 4000

    def ask(i):
        body = {"prompt": prompt(i), "max_tokens": 1}
        answer = router.post("/v1/completions", body, headers={TTFT: "1"})
        if answer.code == 200:
            return 200, 0
        assert answer.code == 429 and answer.headers["retry-after"], answer.body
        time.sleep(int(answer.headers["retry-after-ms"]) * 1e-3)
        return router.post("/v1/completions", body, headers={TTFT: str(MINUTE)}).code, 1
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        results = list(pool.map(ask, range(16)))
    assert [code for code, _ in results] == [200] * 16
    assert sum(n for _, n in results) == outcomes(router, "refused") > 0
    assert router.metric("incipit_requests_waiting") == 0
