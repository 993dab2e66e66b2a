"""Router and workers together: affinity, faults, drain."""
import concurrent.futures
import json
import os
import re
import signal
import socket
import subprocess
import threading
import time
from http.client import HTTPConnection

import pytest

from conftest import DEMO_MODEL, Router, Worker, events, free_port, http, metric, wait_for

PROMPT = "You are a careful assistant who answers in one sentence. " * 30


def worker_of(answer):
    return answer.headers["x-incipit-route"].split("worker=")[1].split()[0]


def test_one_prompt_stays_with_one_worker_and_others_spread(sim_fleet):
    router = sim_fleet("--explain-to-clients")
    ask = lambda text: worker_of(router.post("/v1/completions", {"prompt": text, "max_tokens": 1},
                                             headers={"x-incipit-route": "1"}))
    assert len({ask(PROMPT + "Now: " + str(i)) for i in range(10)}) == 1
    assert len({ask(str(i) * 300) for i in range(40)}) == 2


def test_round_robin_takes_turns(sim_fleet):
    router = sim_fleet("--policy", "round_robin", "--explain-to-clients")
    ask = lambda: worker_of(router.post("/v1/completions", {"prompt": PROMPT, "max_tokens": 1},
                                        headers={"x-incipit-route": "1"}))
    assert [ask() for _ in range(4)] in (["0", "1", "0", "1"], ["1", "0", "1", "0"])


def test_one_question_five_times_goes_to_one_worker(programs):
    """Two workers, block size 1. The first answer fills one cache, which attracts the other four."""
    args = ("--block-size", 1, DEMO_MODEL, "--kv-cache-memory-bytes", "16MiB") if (
        DEMO_MODEL / "model.safetensors").exists() else ("--block-size", 1, "--backend", "sim", "--sim-speed", 20)
    workers = [programs(Worker, *args) for _ in range(2)]
    urls = [w.ready().url for w in workers]
    router = programs(Router, "--worker-urls", *urls).ready(2)
    answers = [router.post("/generate", {"text": "What is the capital of France?",
                                         "sampling_params": {"temperature": 0}}) for _ in range(5)]
    assert all(a.code == 200 for a in answers)
    served = [w.metric("vllm:request_success_total") for w in workers]
    assert sorted(served) == [0, 5]
    busy = workers[served.index(5)]
    n = answers[0].json["meta_info"]["prompt_tokens"]
    assert [a.json["meta_info"]["cached_tokens"] for a in answers] == [0] + [n - 1] * 4
    batches = lambda: [line for line in busy.lines if " prefill_batch " in line]
    wait_for(lambda: len(batches()) == 5, "five lines about five prompts")
    assert all(f"cached_tokens={n - 1} " in line and "new_tokens=1 " in line for line in batches()[1:])
    assert len({a.json["text"] for a in answers}) == 1


def test_the_body_and_the_headers_reach_the_worker_as_they_should(programs):
    """A scripted worker that records what it was sent."""
    seen = []

    def serve(listener):
        while True:
            try:
                c, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=answer, args=(c,), daemon=True).start()

    def answer(c):
        data = b""
        while True:
            while b"\r\n\r\n" not in data:
                more = c.recv(65536)
                if not more:
                    return
                data += more
            head, _, data = data.partition(b"\r\n\r\n")
            length = next((int(l.split(b":")[1]) for l in head.lower().split(b"\r\n") if l.startswith(b"content-length")), 0)
            while len(data) < length:
                data += c.recv(65536)
            body, data = data[:length], data[length:]
            if head.startswith(b"POST"):
                seen.append((head, body))
                out = json.dumps({"ok": True}).encode()
            elif head.startswith(b"GET /v1/models"):
                out = b'{"data":[{"id":"foreign-model"}]}'
            elif head.startswith(b"GET /server_info"):
                c.sendall(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n")
                continue
            else:
                out = b""
            c.sendall(b"HTTP/1.1 200 OK\r\nconnection: x-secret\r\nx-secret: 1\r\nx-incipit-load: hidden\r\n"
                      b"x-kept: yes\r\ncontent-length: %d\r\n\r\n" % len(out) + out)

    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(64)
        threading.Thread(target=serve, args=(listener,), daemon=True).start()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        router = programs(Router, "--worker-urls", url).ready(1)
        raw = b'{ "prompt" : "caf\\u00e9 \\ud83d\\ude00",  "unknown":1.0e3 }'
        client = HTTPConnection(router.url[len("http://"):])
        client.request("POST", "/v1/completions", raw, {
            "Authorization": "Bearer k", "X-Incipit-Salt": "forged", "X-Request-Id": "abc-1",
            "Connection": "keep-alive, x-drop", "X-Drop": "1", "X-Mine": "2"})
        got = client.getresponse()
        headers = {name.lower(): value for name, value in got.getheaders()}
        assert json.loads(got.read()) == {"ok": True} and headers["x-request-id"] == "abc-1"
        client.close()
        assert headers["x-kept"] == "yes" and "x-secret" not in headers and "x-incipit-load" not in headers
        head, body = seen[-1]
        lines = head.decode().lower().split("\r\n")
        assert body == raw and "x-request-id: abc-1" in lines and "x-mine: 2" in lines
        assert f"host: {url[7:]}" in lines and "x-forwarded-for: 127.0.0.1" in lines
        for dropped in ("authorization", "x-incipit-salt", "x-drop", "connection", "expect"):
            assert not any(l.startswith(dropped + ":") for l in lines), dropped
        assert router.get("/v1/models").json["data"][0]["id"] == "foreign-model"


@pytest.mark.parametrize("body, words", [
    (b"", "is empty"), (b"{", ""), (b'{"prompt":"a","prompt":"b"}', "twice"), (b'{"prompt":"\x01"}', ""),
    (b'{"a":' * 80 + b"1" + b"}" * 80, "deep"), (b'{"prompt":"\xc0\xaf"}', "UTF-8"),
])
def test_bodies_that_no_worker_could_read_stop_at_the_router(sim_fleet, body, words):
    router = sim_fleet(n=1)
    answer = router.post("/v1/completions", body)
    assert answer.code == 400 and words.lower() in answer.json["error"]["message"].lower(), answer.body


def test_a_model_without_workers(sim_fleet):
    answer = sim_fleet(n=1).post("/v1/completions", {"prompt": "a", "model": "gpt-0"})
    assert answer.code == 404 and "synthetic" in answer.json["error"]["message"]


def test_a_body_over_the_limit(sim_fleet):
    answer = sim_fleet("--max-body-bytes", "10KiB", n=1).post("/v1/completions", {"prompt": "x" * 20000})
    assert answer.code == 413


def pids_of(router):
    return [int(line.split("pid=")[1].split()[0]) for line in router.lines if " worker_started " in line]


def alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as f:
            return f.read().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


def load_is_nothing(router):
    workers = router.workers()
    return workers["stats"]["total_load"] == 0 and all(w["load"] == 0 for w in workers["workers"])


def blocks_are_free(router):
    return all(http(w["url"] + "/metrics").body.count("vllm:kv_cache_usage_perc{") and
               " 0\n" in [l + "\n" for l in http(w["url"] + "/metrics").body.splitlines()
                          if l.startswith("vllm:kv_cache_usage_perc{")][0][-3:]
               for w in router.workers()["workers"])


def test_a_worker_is_killed_under_load(sim_fleet):
    """SOAK_SECONDS (default 5) of streams and whole answers; one worker is killed in the middle."""
    seconds = float(os.environ.get("SOAK_SECONDS", "5"))
    n_clients = int(os.environ.get("SOAK_CLIENTS", "32"))
    router = sim_fleet(speed=2)
    end = time.monotonic() + seconds
    results = {"stream_ok": 0, "stream_error": 0, "whole_ok": 0}
    failures, lock = [], threading.Lock()

    def count(what):
        with lock:
            results[what] += 1

    def stream(i):
        k = 0
        while time.monotonic() < end:
            k += 1
            seen = []
            try:
                seen.extend(events(router.url + "/v1/completions", {
                    "prompt": f"{PROMPT} client {i % 8} turn {k}", "max_tokens": 40, "stream": True,
                    "stream_options": {"include_usage": True}}))
            except Exception as error:  # noqa: BLE001 - whatever it is, it is a failure
                failures.append(f"stream {i}: {error!r} after {len(seen)} events")
                continue
            last = seen[-1] if seen else None
            if last == "[DONE]" and seen[-2]["usage"]["completion_tokens"] == 40:
                count("stream_ok")
            elif isinstance(last, dict) and last.get("error", {}).get("code") == "worker_lost":
                count("stream_error")
            else:
                failures.append(f"stream {i} ended with {last} after {len(seen)} events")

    def whole(i):
        while time.monotonic() < end:
            answer = router.post("/v1/completions", {"prompt": f"{PROMPT} other {i}", "max_tokens": 30})
            if answer.code == 200 and answer.json["usage"]["completion_tokens"] == 30:
                count("whole_ok")
            else:
                failures.append(f"whole {i}: {answer.code} {answer.body[:300]}")

    with concurrent.futures.ThreadPoolExecutor(n_clients + 8) as pool:
        jobs = [pool.submit(stream, i) for i in range(n_clients)] + [pool.submit(whole, i) for i in range(8)]
        time.sleep(seconds / 2)
        wait_for(lambda: router.workers()["workers"][0]["load"] > 2, "the victim to be busy")
        victim = pids_of(router)[0]
        os.kill(victim, signal.SIGKILL)
        for job in jobs:
            job.result()
    assert not failures, failures[:5]
    assert results["stream_ok"] > n_clients and results["whole_ok"] > 8, results
    # What was on the victim is chance: streams that had begun, or, on a slow machine, only what could be retried.
    assert results["stream_error"] > 0 or metric(http(router.admin_url + "/metrics").body, "incipit_retries_total") > 0
    wait_for(lambda: router.n_healthy() == 2, "the killed worker to come back")
    assert not alive(victim) and len(pids_of(router)) == 3
    wait_for(lambda: load_is_nothing(router), "the load to be given back")
    wait_for(lambda: blocks_are_free(router), "all blocks to be free")
    print(results)


def test_no_worker_outlives_the_router(sim_fleet):
    router = sim_fleet()
    pids = pids_of(router)
    assert len(pids) == 2 and all(alive(p) for p in pids)
    router.stop(signal.SIGKILL)
    wait_for(lambda: not any(alive(p) for p in pids), "the workers to end with the router")


def test_ctrl_c_ends_everything(sim_fleet):
    router = sim_fleet()
    pids = pids_of(router)
    assert router.stop(signal.SIGINT) == 0
    assert not any(alive(p) for p in pids)


def test_a_stopped_worker_is_taken_out_and_comes_back(programs):
    workers = [programs(Worker, "--backend", "sim", "--sim-speed", 20).ready() for _ in range(2)]
    router = programs(Router, "--worker-urls", *[w.url for w in workers], "--probe-interval", "50ms",
                      "--probe-timeout", "200ms").ready(2)
    os.kill(workers[0].process.pid, signal.SIGSTOP)
    try:
        wait_for(lambda: router.n_healthy() == 1, "the probes to miss it")
        assert router.post("/v1/completions", {"prompt": PROMPT, "max_tokens": 2}).code == 200
    finally:
        os.kill(workers[0].process.pid, signal.SIGCONT)
    wait_for(lambda: router.n_healthy() == 2, "it to come back")


def test_a_client_that_leaves_is_noticed_by_the_worker(sim_fleet):
    router = sim_fleet(speed=1, n=1)
    host, port = router.url[len("http://"):].split(":")
    body = json.dumps({"prompt": PROMPT, "max_tokens": 50000, "stream": True}).encode()
    with socket.create_connection((host, int(port))) as s:
        s.sendall(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
        assert s.recv(1000).startswith(b"HTTP/1.1 200")
    wait_for(lambda: load_is_nothing(router), "the router to let go")
    wait_for(lambda: blocks_are_free(router), "the worker to stop")
    assert router.metric("incipit_client_aborts_total") == 1


def begin_stream(router, max_tokens):
    """A client whose answer has begun; what it has received so far."""
    host, port = router.url[len("http://"):].split(":")
    body = json.dumps({"prompt": PROMPT, "max_tokens": max_tokens, "stream": True}).encode()
    client = socket.create_connection((host, int(port)), timeout=40)
    client.sendall(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
    return client, client.recv(1000)


def read_to_end(client):
    data = b""
    while more := client.recv(65536):
        data += more
    return data


def test_a_drain_finishes_open_requests_only(sim_fleet):
    router = sim_fleet("--threads", 2, speed=1)
    host, port = router.url[len("http://"):].split(":")
    idle = socket.create_connection((host, int(port)), timeout=40)
    idle.sendall(b"GET /livez HTTP/1.1\r\nhost: x\r\n\r\n")
    assert idle.recv(1000).startswith(b"HTTP/1.1 200")
    client, first = begin_stream(router, 300)
    assert first.startswith(b"HTTP/1.1 200")
    router.process.send_signal(signal.SIGTERM)
    assert idle.recv(1000) == b""
    assert http(router.admin_url + "/readyz").code == 503 and http(router.admin_url + "/livez").code == 200
    assert b"data: [DONE]" in read_to_end(client)
    assert router.process.wait(40) == 0
    for s in (idle, client):
        s.close()


def test_a_second_signal_does_not_wait(sim_fleet):
    router = sim_fleet(speed=1, n=1)
    pids = pids_of(router)
    client, first = begin_stream(router, 100000)
    assert first.startswith(b"HTTP/1.1 200")
    router.process.send_signal(signal.SIGTERM)
    wait_for(lambda: " router_draining" in router.log, "the drain to begin")
    assert router.stop(signal.SIGTERM) == 0
    wait_for(lambda: not any(alive(p) for p in pids), "the worker to end")
    client.close()


def test_two_routers_do_not_share_a_port(programs):
    args = ("--worker-urls", f"http://127.0.0.1:{free_port()}", "--threads", 2)
    first = programs(Router, *args)
    port = first.field("router_listening", "port")
    second = programs(Router, *args, port=port)
    assert second.process.wait(40) == 1 and second.stop() == 1
    assert f"--host, --port: port {port} is in use: choose another" in second.log


def test_a_taken_admin_port_is_named_by_its_option(programs):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        router = programs(Router, "--worker-urls", f"http://127.0.0.1:{free_port()}", "--admin-port", port)
        assert router.process.wait(40) == 1 and router.stop() == 1
        assert f"--admin-host, --admin-port: port {port} is in use: choose another" in router.log and " --port" not in router.log


def test_options_in_the_environment_are_the_routers_alone(programs, monkeypatch):
    monkeypatch.setenv("INCIPIT_MAX_MODEL_LEN", "nonsense")
    monkeypatch.setenv("INCIPIT_BLOCK_SIZE", "nonsense")
    programs(Router, "--launch", 1, "--worker-base-port", free_port(), "--worker-arg=--backend=sim").ready(1)


def test_no_worker_at_all_is_reported(programs):
    router = programs(Router, "--worker-urls", f"http://127.0.0.1:{free_port()}")
    router.url = f"http://127.0.0.1:{router.field('router_listening', 'port')}"
    answer = router.post("/v1/completions", {"prompt": "a"})
    assert answer.code == 503 and "worker" in answer.json["error"]["message"] and answer.headers["retry-after"] == "1"
    assert router.get("/livez").code == 200 and router.get("/readyz").code == 503


def test_metrics_add_up(sim_fleet):
    router = sim_fleet(n=1)
    for _ in range(3):
        router.post("/v1/completions", {"prompt": PROMPT, "max_tokens": 2})
    page = router.metrics()
    assert metric(page, "incipit_requests_total", code="200") == 3
    assert metric(page, "incipit_ttft_seconds_count") == 3 == metric(page, "incipit_request_duration_seconds_count")
    assert 0 < metric(page, "incipit_cached_tokens_total") < metric(page, "incipit_prompt_tokens_total")
    assert metric(page, "incipit_predicted_cached_tokens_total") > 0


def test_the_metrics_page_shows_the_estimated_cache_of_each_worker(programs):
    workers = [programs(Worker, "--backend", "sim", "--sim-speed", 20).ready() for _ in range(2)]
    router = programs(Router, "--worker-urls", *(w.url for w in workers)).ready(2)
    for i in range(3):
        router.post("/v1/completions", {"prompt": PROMPT + str(i), "max_tokens": 2})
    page = router.metrics()
    sent = [metric(page, "incipit_worker_requests_total", worker=w["url"]) for w in router.workers()["workers"]]
    assert sorted(sent) == [0, 3] and metric(page, "smg_worker_selection_total") == 3
    assert metric(page, "incipit_worker_in_flight") == 0 and metric(page, "incipit_worker_index_blocks") > 5
    assert metric(page, "incipit_matched_prefix_blocks_total") > 0.5 * metric(page, "incipit_prefix_blocks_total")
    assert metric(page, "incipit_prompts_hit_total") == 2 and metric(page, "sgl_router_cache_misses_total") == 1
    assert metric(page, "incipit_output_tokens_total") == 6
    assert metric(page, "incipit_decision_seconds_count") >= 1 and metric(page, "incipit_lock_wait_seconds_total") >= 0
    assert metric(page, "incipit_bytes_per_token") > 0.5
    assert page.count("incipit_worker_engine_running{") >= 1  # of the one that reported it in an answer; the other is scraped later
    names = [line.split()[2] for line in page.splitlines() if line.startswith("# TYPE")]
    assert len(names) == len(set(names))
    url = router.workers()["workers"][0]["url"]
    assert http(router.admin_url + f"/remove_worker?url={url}", method="POST", body=b"").code < 300
    wait_for(lambda: f'worker="{url}"' not in router.metrics(), "nothing of a worker that has gone")


def test_each_request_leaves_one_line_without_its_prompt(sim_fleet):
    router = sim_fleet()
    value = lambda v: float(v) if re.fullmatch(r"-?[0-9.e-]+", v) else v
    fields = lambda line: {k: value(v) for k, v in re.findall(r'(\w+)="?([^ "\n]*)', line)}
    secret = "Keep this out of every log."
    for i in range(2):
        router.post("/v1/completions", {"prompt": secret * 40, "max_tokens": 2, "model": "synthetic"},
                    headers={"x-request-id": f"id-{i}", "authorization": "Bearer sk-not-this"})
    router.post("/v1/completions", {"prompt": secret, "model": "synthetic", "stream": "oops"}, headers={"x-request-id": "id-2"})
    lines = wait_for(lambda: len(found := [fields(l) for l in router.lines if " request " in l]) == 3 and found, "three lines")
    assert [l["id"] for l in lines] == ["id-0", "id-1", "id-2"] and [l["code"] for l in lines] == [200, 200, 400]
    first, second, _ = lines
    assert first["path"] == "/v1/completions" and first["model"] == "synthetic" and first["attempts"] == 1
    assert first["cached_tokens"] == 0 and first["matched_blocks"] == 0 and first["output_tokens"] == 2
    assert second["worker"] == first["worker"] and second["cached_tokens"] > 1000 and second["matched_blocks"] == second["blocks"]
    assert second["body_bytes"] > len(secret) * 40 and second["answer_bytes"] > 100 and 0 < second["ttft_s"] <= second["duration_s"]
    assert "Keep this" not in router.log and "sk-not-this" not in router.log


def test_request_lines_can_be_turned_off_and_thinned_out(sim_fleet):
    for n, expected in ((0, 0), (3, 2)):
        router = sim_fleet("--log-requests", n, "--threads", 1, n=1)  # each loop counts its own
        for _ in range(6):
            router.post("/v1/completions", {"prompt": "a", "max_tokens": 1})
        assert router.stop() == 0
        assert len([l for l in router.lines if " request " in l]) == expected


def test_request_lines_have_a_rate_of_their_own_and_count_what_is_left_out(sim_fleet):
    router = sim_fleet("--log-rate", 1, n=1)
    for _ in range(60):  # in far less than the minute that one a second would take
        router.post("/v1/completions", {"prompt": "a", "max_tokens": 1})
    assert router.stop() == 0
    assert len([l for l in router.lines if " request " in l]) == 60
    router = sim_fleet("--log-requests-rate", 1, "--threads", 1, n=1)
    ask = lambda: router.post("/v1/completions", {"prompt": "a", "max_tokens": 1})
    written = lambda: [l for l in router.lines if " request " in l]
    skipped = lambda: sum(int(n) for n in re.findall(r" request .* skipped=(\d+)", router.log))
    n = len([ask() for _ in range(20)])
    while len(written()) + skipped() < 20:  # a line of a later second counts those that had none
        ask()
        n += 1
        time.sleep(0.3)
        assert n < 100, router.log
    assert len(written()) < n


def test_a_decision_explains_itself(sim_fleet):
    router = sim_fleet("--explain-to-clients")
    ask = lambda: router.post("/v1/completions", {"prompt": PROMPT, "max_tokens": 1}, headers={"x-incipit-route": "1"})
    dry = lambda: http(router.admin_url + "/debug/route", {"prompt": PROMPT})
    first, second = dry().json, dry().json
    assert first == second and [c["matched_tokens"] for c in first["candidates"]] == [0, 0] and first["blocks"] > 5
    fields = dict(f.split("=") for f in ask().headers["x-incipit-route"].split())
    assert int(fields["worker"]) == first["worker"] and fields["candidates"] == "2" and fields["why"] == "tie"
    assert float(fields["u_s"]) > 0 and float(fields["cost_s"]) >= float(fields["u_s"]) and fields["L"] == "0"
    fields = dict(f.split("=") for f in ask().headers["x-incipit-route"].split())
    assert fields["why"] == "cheapest" and float(fields["matched_tokens"]) > 0 == float(fields["next_matched_tokens"])
    assert int(fields["next"]) == 1 - int(fields["worker"]) and float(fields["next_cost_s"]) > float(fields["cost_s"])
    after = dry().json
    assert after["worker"] == first["worker"] and after["candidates"][0]["worker"] == first["worker"]
    assert after["candidates"][0]["matched_tokens"] > 0 and after["candidates"][0]["url"].startswith("http://")
    assert router.metric("incipit_worker_requests_total") == 2 and router.metric("incipit_requests_in_flight") == 0


def test_a_dry_run_uses_the_session(sim_fleet):
    router = sim_fleet("--policy", "session", "--explain-to-clients", n=4)
    for i in range(12):
        body, headers = {"prompt": "a", "max_tokens": 1}, {"x-incipit-route": "1"}
        if i % 2:
            headers["x-session-id"] = f"s{i}"
        else:
            body["session_id"] = f"s{i}"
        sent = router.post("/v1/completions", body, headers=headers).headers["x-incipit-route"]
        dry = http(router.admin_url + "/debug/route", body, headers=headers).json
        assert sent.startswith(f"worker={dry['worker']} "), i


@pytest.mark.parametrize("spelling", [r'"org\/name"', r'"\u006frg/name"', "null", '"org/name"', '"default"'])
def test_a_model_is_found_however_json_spells_it(sim_fleet, spelling):
    router = sim_fleet("--worker-arg=--served-model-name=org/name", n=1)
    body = f'{{"model":{spelling},"prompt":"a","max_tokens":1}}'.encode()
    assert router.post("/v1/completions", body).code == 200
    assert http(router.admin_url + "/debug/route", body).code == 200
    refused = router.post("/v1/completions", rb'{"model":"org\/other","prompt":"a"}')
    assert refused.code == 404 and "The model `org/other` does not exist" in json.loads(refused.body)["error"]["message"]


def test_an_unroutable_request_has_no_explanation(sim_fleet):
    router = sim_fleet(n=1)
    dry = lambda body: http(router.admin_url + "/debug/route", body)
    assert dry(b"{").code == 400 and dry({"model": "none", "prompt": "a"}).code == 404
    assert dry({"prompt": "x" * 200000}).json["prompt_bytes"] == 200002
    assert http(router.url + "/debug/route", {"prompt": "a"}).code == 403
    assert http(router.admin_url + "/debug/route").code == 405


def test_the_decision_log_has_hashes_and_costs_and_no_prompts(sim_fleet, tmp_path):
    path, secret = tmp_path / "decisions.jsonl", tmp_path / "secret"
    secret.write_bytes(b"0123456789abcdef")
    router = sim_fleet("--decision-log", path, "--decision-log-secret-file", secret)
    ask = lambda text, n=2: router.post("/v1/completions", {"prompt": text, "max_tokens": n, "model": "synthetic"})
    lines = lambda n, file=path: wait_for(lambda: len(found := file.read_text().splitlines()) == n and found, f"{n} lines")
    ask(PROMPT + "one"), ask(PROMPT + "two")
    first, second = map(json.loads, lines(2))
    assert first["blocks"] == len(first["hashes"]) == second["blocks"] and first["hashes"][:-1] == second["hashes"][:-1]
    assert first["hashes"][-1] != second["hashes"][-1] and second["matched_blocks"] == second["blocks"] - 1
    assert first["cached_tokens"] == 0 and second["cached_tokens"] > 1000 and second["output_tokens"] == 2
    assert second["candidates"] == 2 and second["top"][0]["worker"] == second["worker"] == first["worker"]
    assert second["top"][0]["cost_s"] < second["top"][1]["cost_s"] and 0 < second["ttft_s"] <= second["duration_s"]
    assert abs(second["t"] - time.time()) < 60 and second["model"] == "synthetic" and second["code"] == 200
    assert "careful" not in path.read_text() and path.stat().st_mode & 0o077 == 0
    path.rename(tmp_path / "old.jsonl")
    router.process.send_signal(signal.SIGHUP)
    wait_for(path.exists, "the file to be opened again")
    ask("three")
    lines(1)
    lines(2, tmp_path / "old.jsonl")
    assert router.stop() == 0


def test_an_unwritable_decision_log_is_an_error_at_start(programs, tmp_path):
    short = tmp_path / "short"
    short.write_text("abc")
    for args, words in ((("--decision-log", tmp_path / "none" / "x"), "cannot open the decision log"),
                        (("--decision-log", tmp_path / "x", "--decision-log-secret-file", short), "has 3 bytes")):
        router = programs(Router, "--worker-urls", "http://127.0.0.1:9", *args)
        assert router.process.wait(20) in (1, 2)
        wait_for(lambda: words in router.log, words)
