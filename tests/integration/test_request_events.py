"""The request events that a worker publishes to every router: all of them, in order, each request ended exactly once
for every outcome; replayed by number; and how a worker drains, which its followers see."""
import http.client
import json
import random
import signal
import socket
import subprocess
import threading
import urllib.parse

import pytest

from conftest import BUILD, PATIENCE_S, Worker, events, wait_for
from test_kv_events import CONTROL, unpack

CHAIN = "1 0000000000000abc 000000000000002a 20 AQIDBAUG__79_Pv6"
PROMPT = "one and two and three and four"


class Follower:
    """GET /request_events as people read it; `seen` has what came so far, hellos among it."""

    def __init__(self, worker, query="from=oldest"):
        at = urllib.parse.urlsplit(worker.url)
        self.conn = http.client.HTTPConnection(at.hostname, at.port, timeout=PATIENCE_S)
        self.conn.request("GET", "/request_events?format=json&" + query)
        self.response = self.conn.getresponse()
        assert self.response.status == 200, self.response.read()
        self.seen, self.is_over = [], False
        self.thread = threading.Thread(target=self._read, daemon=True)
        self.thread.start()

    def _read(self):
        number = None
        try:
            while line := self.response.readline():
                if line.startswith(b"id: "):
                    number = int(line[4:])
                elif line.startswith(b"data: "):
                    self.seen.append({"seq": number, **json.loads(line[6:])})
                    number = None
            self.is_over = True  # with the last chunk: a cut would raise
        except (OSError, http.client.HTTPException, ValueError, AttributeError):
            pass

    def of(self, kind):
        return [e for e in self.seen if e["event"] == kind]

    def wait(self, kind, n=1):
        wait_for(lambda: len(self.of(kind)) >= n, f"{n} {kind}")
        return self.of(kind)[n - 1]

    def close(self):
        sock = self.conn.sock or self.response.fp.raw._sock
        sock.shutdown(socket.SHUT_RDWR)
        self.thread.join(PATIENCE_S)
        self.conn.close()


def frames(worker, query, rcvbuf=None):
    """The same as frames: (sequence, array) each."""
    at = urllib.parse.urlsplit(worker.url)
    conn = http.client.HTTPConnection(at.hostname, at.port, timeout=PATIENCE_S)
    if rcvbuf:
        conn.sock = socket.socket()
        conn.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, rcvbuf)
        conn.sock.settimeout(PATIENCE_S)
        conn.sock.connect((at.hostname, at.port))
    conn.request("GET", "/request_events?" + query)
    response = conn.getresponse()
    assert response.getheader("content-type") == "application/vnd.incipit.request-events"
    while head := response.read(12):
        payload = response.read(int.from_bytes(head[:4], "big"))
        value, end = unpack(payload)
        assert end == len(payload)
        yield int.from_bytes(head[4:], "big"), value
    conn.close()


def check_events(seen, is_over=True):
    """Numbers without holes; each request accepted once, then at most one first token, then one end."""
    open_ones, accepted, numbers = {}, set(), [e["seq"] for e in seen if e["event"] != "hello"]
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
    for e in seen:
        if e["event"] == "accepted":
            assert e["request"] not in accepted
            accepted.add(e["request"])
            open_ones[e["request"]] = False
        elif e["event"] == "first":
            assert open_ones[e["request"]] is False
            assert 0 <= e["cached_tokens"] <= e["prompt_tokens"]
            open_ones[e["request"]] = True
        elif e["event"] == "ended":
            has_begun = open_ones.pop(e["request"])  # accepted, and not ended before
            assert has_begun or e["is_aborted"]
    assert not open_ones or not is_over
    return accepted


# --- one request ----------------------------------------------------------------------------------


def test_events_follow_a_request_from_start_to_end(sim):
    follower = Follower(sim, "from=now")
    hello = follower.wait("hello")
    assert not hello["is_gap"] and hello["generation"] == sim.get("/server_info").json["generation"]
    assert sim.get("/server_info").json["request_events"] == 1
    for header in (CHAIN, None, "1 broken"):
        sim.post("/v1/completions", {"prompt": PROMPT, "max_tokens": 7, "n": 2},
                 headers={"x-incipit-chain": header} if header else {})
    follower.wait("ended", 3)
    routed, direct, broken = follower.of("accepted")
    assert (routed["origin"], routed["scheme"], routed["blocks"]) == ("0000000000000abc", "000000000000002a", 2)
    assert routed["prompt_bytes"] == 20
    for other in (direct, broken):
        assert other["blocks"] == 0 and other["prompt_bytes"] == len(PROMPT) and int(other["origin"], 16) == 0
    assert [e["prompt_tokens"] for e in follower.of("first")] == [len(PROMPT)] * 3
    assert follower.of("first")[0]["cached_tokens"] == 0 and follower.of("first")[1]["cached_tokens"] == 16
    assert [(e["output_tokens"], e["is_aborted"]) for e in follower.of("ended")] == [(14, False)] * 3
    check_events(follower.seen)
    sim.post("/flush_cache", {})
    follower.wait("cleared")
    stream = frames(sim, "from=oldest")
    number, value = next(stream)
    assert number == CONTROL and value[2] == hello["generation"]
    accepted = next(value for _, value in stream if value[0] == 1)
    assert accepted[3:] == [20, 0xabc, 42, bytes([1, 2, 3, 4, 5, 6, 255, 254, 253, 252, 251, 250])]


def test_the_mark_of_a_header_is_passed_on_and_one_that_is_not_whole_is_left_out(sim):
    follower = Follower(sim, "from=now")
    marks = " 0000000000000def 0000000000000077 3 133", " 0000000000000def 0000000000000000 3 129", " 0000000000000def 77", " x=1"
    for mark in marks:
        sim.post("/v1/completions", {"prompt": PROMPT, "max_tokens": 1}, headers={"x-incipit-chain": CHAIN + mark})
    follower.wait("ended", 4)
    whole, unnamed, *others = follower.of("accepted")
    assert (whole["tenant"], whole["session"], whole["has_waited"]) == ("0000000000000def", "0000000000000077", True)
    assert unnamed["tenant"] == "0000000000000def" and "session" not in unnamed and not unnamed["has_waited"]
    assert all("tenant" not in other and other["blocks"] == 2 for other in others)
    stream = frames(sim, "from=oldest")
    accepted = [next(value for _, value in stream if value[0] == 1) for _ in marks]
    assert [value[7:] for value in accepted] == [[0xdef, 0x77, 3, 133], [0xdef, 0, 3, 129], [], []]


def test_a_header_cannot_claim_more_than_its_body_could_hold(sim):
    follower = Follower(sim)
    chain = "1 0000000000000abc 000000000000002a 99999999999999 " + "AQIDBAUG" * 2000
    body = json.dumps({"prompt": "a", "max_tokens": 1}).encode()
    sim.post("/v1/completions", body, headers={"x-incipit-chain": chain})
    accepted = follower.wait("accepted")
    assert accepted["prompt_bytes"] == accepted["blocks"] == len(body)


def test_a_prompt_is_counted_whole(sim):
    follower = Follower(sim)
    for path, body in (("/v1/completions", {"prompt": ["ab", "cde"], "max_tokens": 1}),
                       ("/v1/completions", {"prompt": [[97, 98], [99]], "max_tokens": 1}),
                       ("/generate", {"text": "abcd", "sampling_params": {"max_new_tokens": 1}})):
        assert sim.post(path, body).code == 200
    follower.wait("ended", 3)
    assert [e["prompt_bytes"] for e in follower.of("accepted")] == [5, 12, 4]
    assert [e["prompt_tokens"] for e in follower.of("first")] == [5, 3, 4]


# --- every end ------------------------------------------------------------------------------------


def leave(worker, rng, body):
    """Sends a request and closes the connection, before or after some of the answer."""
    host, port = worker.url[len("http://"):].split(":")
    data = json.dumps(body).encode()
    with socket.create_connection((host, int(port)), timeout=PATIENCE_S) as s:
        s.sendall(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(data) + data)
        if rng.random() < 0.7:
            s.recv(rng.choice([1, 5000]))


def some_request(worker, rng, i):
    stream, n = rng.random() < 0.5, rng.choice([1, 1, 3])
    body = {"prompt": rng.choice([PROMPT, "word " * 3000, ["a", "b"], [[97, 98], [99]]]), "stream": stream, "n": n,
            "max_tokens": rng.choice([1, 20, 200])}
    match rng.randrange(8):
        case 0:
            leave(worker, rng, body | {"max_tokens": 3000, "stream": True})
        case 1:  # refused after it was accepted: too long
            assert worker.post("/v1/completions", body | {"prompt": "a" * 3000, "max_tokens": 10 ** 6}).code == 400
        case 2:  # before
            assert worker.post("/v1/completions", body | {"temperature": -1}).code == 400
        case 3:
            name = f"r{i}"
            thread = threading.Thread(target=worker.post, args=("/v1/completions", body | {
                "max_tokens": 5000, "request_id": name}))
            thread.start()
            wait_for(lambda: worker.post("/abort_request", {"rid": "cmpl-" + name}).json["aborted"] or
                     not thread.is_alive(), "it to be there")
            thread.join(PATIENCE_S)
        case 4:
            worker.post("/v1/chat/completions", {"messages": [{"role": "user", "content": PROMPT}], "max_tokens": 5,
                                                 "stop": ["e"], "stream": stream})
        case 5:
            worker.post("/generate", {"text": PROMPT, "sampling_params": {"max_new_tokens": 9, "n": n}, "stream": stream})
        case 6:
            worker.post("/cache/explain", {"prompt": PROMPT})
        case _:
            worker.post("/v1/completions", body)


def test_every_request_ends_once(programs):
    worker = programs(Worker, "--backend", "sim", "--sim-speed", 20, "--max-waiting", 12, "--max-num-seqs", 6).ready()
    follower = Follower(worker)

    def ask(seed):
        rng = random.Random(seed)
        for i in range(25):
            some_request(worker, rng, f"{seed}-{i}")

    threads = [threading.Thread(target=ask, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(5 * PATIENCE_S)
        assert not thread.is_alive()
    wait_for(lambda: len(follower.of("accepted")) == len(follower.of("ended")), "all to end")
    numbers = check_events(follower.seen)
    assert len(numbers) > 80 and any(e["is_aborted"] for e in follower.of("ended"))
    late = Follower(worker)
    wait_for(lambda: len(late.of("ended")) == len(numbers), "the same to be replayed")
    n = min(len(late.seen), len(follower.seen))
    strip = lambda seen: [e for e in seen[:n] if e["event"] != "hello"]
    assert strip(late.seen) == strip(follower.seen)
    assert worker.metric("incipit_request_events_subscribers") == 2
    assert worker.metric("incipit_request_events_gaps_total") == 0
    assert worker.metric("incipit_request_events_total") >= 2 * len(numbers)
    assert worker.metric("incipit_request_events_sent_bytes_total") > 0
    for f in (follower, late):
        f.close()
    wait_for(lambda: worker.metric("incipit_request_events_subscribers") == 0, "the followers to be missed")


def test_a_lost_worker_ends_its_requests(programs):
    """A second signal does not wait: followers still receive every end, and then the end of the stream."""
    worker = programs(Worker, "--backend", "sim", "--sim-speed", 1).ready()
    follower = Follower(worker)
    streams = [events(worker.url + "/v1/completions", {"prompt": "a", "max_tokens": 50000, "stream": True}) for _ in range(5)]
    for stream in streams:
        next(stream)
    worker.process.send_signal(signal.SIGTERM)
    wait_for(lambda: "worker_draining" in worker.log, "the first signal")
    assert worker.stop() == 0
    follower.thread.join(PATIENCE_S)
    assert follower.is_over and len(check_events(follower.seen)) == 5
    assert all(e["is_aborted"] for e in follower.of("ended"))


# --- coming back ----------------------------------------------------------------------------------


def test_a_follower_goes_on_where_it_was(sim):
    first = Follower(sim)
    for _ in range(3):
        sim.post("/v1/completions", {"prompt": PROMPT, "max_tokens": 1})
    first.wait("ended", 3)
    first.close()
    numbers = [e["seq"] for e in first.seen if e["seq"]]
    generation, at = first.seen[0]["generation"], numbers[len(numbers) // 2]
    sim.post("/v1/completions", {"prompt": PROMPT, "max_tokens": 1})
    again = Follower(sim, f"from={at}&generation={generation}")
    again.wait("ended")
    wait_for(lambda: [e["seq"] for e in again.seen if e["event"] == "ended"][-1] > numbers[-1], "what was missed")
    assert not again.seen[0]["is_gap"] and again.seen[1]["seq"] == at
    kept = {e["seq"]: e for e in first.seen}
    assert all(kept[e["seq"]] == e for e in again.seen if e["seq"] and e["seq"] in kept)
    for query in (f"from={at}&generation=0123456789abcdef", "from=1000000", "from=0"):
        other = Follower(sim, query)
        other.wait("ended", 4)
        assert other.seen[0]["is_gap"] and other.seen[1]["seq"] == other.seen[0]["oldest"] == 1
        check_events(other.seen)
    now = Follower(sim, "from=now")
    assert now.wait("load")["seq"] >= now.seen[0]["next"]
    for query in ("from=x", "from=-1", "from=1.5"):
        answer = sim.get("/request_events?" + query)
        assert answer.code == 400 and answer.json["error"]["param"] == "from"


def test_a_follower_that_does_not_read_is_overtaken_and_restarts(programs):
    worker = programs(Worker, "--backend", "sim", "--sim-speed", 1000, "--request-events-buffer-bytes", "64KiB").ready()
    slow = frames(worker, "from=oldest", rcvbuf=4096)
    assert next(slow)[1][5] is False
    chain = {"x-incipit-chain": "1 0000000000000abc 000000000000002a 999999 " + "AQIDBAUG" * 2000}
    body = json.dumps({"prompt": "word " * 1000, "max_tokens": 1}).encode()
    n = 0
    # 12 KB each: until what the system and the worker keep for it is full, and the ring has gone round.
    while worker.metric("incipit_request_events_sent_bytes_total") > (n - 20) * 12000:
        for _ in range(10):
            assert worker.post("/v1/completions", body, headers=chain).code == 200
        n += 10
        assert n < 2000
    assert worker.metric("incipit_request_events_kept_bytes") <= 65536
    seen = []
    while not seen or seen[-1][0] != CONTROL:
        seen.append(next(slow))
    numbers = [number for number, _ in seen[:-1]]
    assert numbers == list(range(1, len(numbers) + 1))
    hello = seen[-1][1]
    assert hello[5] is True and next(slow)[0] == hello[4] > numbers[-1] + 1
    assert worker.metric("incipit_request_events_gaps_total") == 1


def test_too_many_followers_are_refused_with_the_limit(programs):
    worker = programs(Worker, "--backend", "sim", "--request-events-subscribers", 2).ready()
    followers = [Follower(worker), Follower(worker)]
    for f in followers:
        f.wait("hello")
    answer = worker.get("/request_events")
    assert answer.code == 503 and "raise --request-events-subscribers 2" in answer.json["error"]["message"]
    followers[0].close()
    wait_for(lambda: worker.metric("incipit_request_events_subscribers") == 1, "it to be missed")
    Follower(worker).wait("hello")


def test_it_can_be_switched_off(programs):
    worker = programs(Worker, "--backend", "sim", "--request-events-buffer-bytes", 0).ready()
    answer = worker.get("/request_events")
    assert answer.code == 404 and "--request-events-buffer-bytes" in answer.json["error"]["message"]
    assert worker.get("/server_info").json["request_events"] == 0
    assert worker.post("/v1/completions", {"prompt": "a", "max_tokens": 1}, headers={"x-incipit-chain": CHAIN}).code == 200
    assert worker.post("/flush_cache", {}).code == 200
    assert worker.stop() == 0


# --- load -----------------------------------------------------------------------------------------


def test_load_is_published_on_change_and_periodically(programs):
    worker = programs(Worker, "--backend", "sim", "--sim-speed", 1).ready()
    follower = Follower(worker, "from=now")
    wait_for(lambda: len(follower.of("load")) >= 2, "two while nothing happens")
    a, b = follower.of("load")[:2]
    assert b["t_us"] - a["t_us"] >= 5e6 and {**a, "seq": 0, "t_us": 0} == {**b, "seq": 0, "t_us": 0}
    stream = events(worker.url + "/v1/completions", {"prompt": "a", "max_tokens": 50000, "stream": True})
    next(stream)
    wait_for(lambda: follower.of("load")[-1]["running"] == 1, "the change")
    stream.close()
    wait_for(lambda: follower.of("load")[-1]["running"] == 0, "the change back")
    times = [e["t_us"] for e in follower.of("load")]
    assert all(y - x >= 1e5 for x, y in zip(times[1:], times[2:]))


# --- drain ----------------------------------------------------------------------------------------


def ask_to_drain(worker, how):
    if how == "signal":
        worker.process.send_signal(signal.SIGTERM)
        return
    if how == "word":
        port = worker.url.rsplit(":", 1)[1]
        asked = subprocess.run([BUILD / "incipit-worker", "drain", "--port", port], capture_output=True, text=True)
        assert asked.returncode == 0, asked.stderr
        return
    for _ in range(2):  # asking again changes nothing
        answer = worker.post("/admin/drain", {})
        assert answer.code == 202 and answer.json["draining"] is True and answer.json["running"] == 4


@pytest.mark.parametrize("how", ["signal", "admin", "word"])
def test_a_drain_finishes_open_requests_and_refuses_the_rest(programs, how):
    worker = programs(Worker, "--backend", "sim", "--sim-speed", 5).ready()
    follower = Follower(worker)
    body = {"prompt": PROMPT, "max_tokens": 1500, "stream": True, "ignore_eos": True,
            "stream_options": {"include_usage": True}}
    streams = [events(worker.url + "/v1/completions", body) for _ in range(4)]
    for stream in streams:
        next(stream)
    ask_to_drain(worker, how)
    draining = wait_for(lambda: [e for e in follower.of("load") if e["draining"]], "followers to receive it")[0]
    assert draining["running"] == 4
    for path, asked in (("/v1/completions", {"prompt": "a"}), ("/generate", {"text": "a"}), ("/v1/completions", {"bad": 1}),
                        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}]})):
        answer = worker.post(path, asked)
        assert answer.code == 503 and answer.json["error"]["code"] == 503, (path, answer.body)
        assert answer.headers["x-incipit-reason"] == "draining" and answer.headers["retry-after"] == "0"
    assert worker.get("/health").code == 503 and worker.get("/health_generate").code == 503
    rest = [list(stream) for stream in streams]
    assert all(r[-1] == "[DONE]" and r[-2]["usage"]["completion_tokens"] == 1500 for r in rest)
    assert worker.process.wait(PATIENCE_S) == 0
    follower.thread.join(PATIENCE_S)
    assert follower.is_over and len(check_events(follower.seen)) == 4 and not any(
        e["is_aborted"] for e in follower.of("ended"))


def test_the_port_is_open_until_the_last_answer_is_sent(programs):
    """However slowly it is read: no other connection is refused meanwhile."""
    worker = programs(Worker, "--backend", "sim", "--sim-speed", 1000).ready()
    follower = Follower(worker)
    at = urllib.parse.urlsplit(worker.url)
    conn = http.client.HTTPConnection(at.hostname, at.port, timeout=PATIENCE_S)
    conn.sock = socket.socket()
    conn.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    conn.sock.settimeout(PATIENCE_S)
    conn.sock.connect((at.hostname, at.port))
    conn.request("POST", "/v1/completions", json.dumps(
        {"prompt": PROMPT, "max_tokens": 1500, "n": 32, "logprobs": 5, "ignore_eos": True}))
    follower.wait("ended")  # answered, in more bytes than the system takes
    worker.process.send_signal(signal.SIGTERM)
    follower.thread.join(PATIENCE_S)
    assert follower.is_over
    for _ in range(50):
        assert worker.get("/health").code == 503
        assert worker.post("/v1/completions", {"prompt": "a"}).headers["x-incipit-reason"] == "draining"
    answer = json.loads(conn.getresponse().read())
    assert answer["usage"]["completion_tokens"] == 32 * 1500 and len(answer["choices"]) == 32
    assert worker.process.wait(PATIENCE_S) == 0


def test_a_drain_finishes_requests_being_tokenized(programs):
    worker = programs(Worker, "--backend", "sim", "--sim-speed", 1000).ready()
    follower, answers = Follower(worker), []
    ask = lambda: answers.append(worker.post("/v1/completions", {"prompt": "word " * 25000, "max_tokens": 2}))
    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    follower.wait("accepted", 4)
    assert worker.stop() == 0
    for thread in threads:
        thread.join(PATIENCE_S)
    assert [a.code for a in answers] == [200] * 4, answers[0].body
    follower.thread.join(PATIENCE_S)
    assert follower.is_over and len(check_events(follower.seen)) == 4
