"""--kv-peers: what one worker has computed, another takes from its memory when a request names it, and answers the same; a
source that is gone, stopped, or of another key costs no answer. Texts are for the demonstration model."""
import os
import signal

import pytest
from conftest import DEMO_MODEL, Worker, wait_for
from test_kv_file import N_PROMPTS, answers, choices, prompt

SOURCE = "x-incipit-kv-source"


@pytest.fixture
def peer(programs, tmp_path):
    def start(*args, key="5a" * 32):
        path = tmp_path / f"{key[:4]}.key"
        path.write_text(key + "\n")
        return programs(Worker, DEMO_MODEL, "--device", "cpu", "--threads", 1, "--kv-cache-memory-bytes", "4MiB",
                        "--max-model-len", 1024, "--kv-offload-bytes", "8MiB", "--kv-peers", "--kv-key-file", path, *args)
    return start


def named(other, n_tokens=1024):
    return {SOURCE: f"{other.url.removeprefix('http://')};tokens={n_tokens}"}


def asked(worker, other, **more):
    """The prompts' answers of a worker that may ask another for their KV."""
    found = [worker.post("/v1/completions", prompt(i), headers=named(other, **more)) for i in range(N_PROMPTS)]
    assert all(a.code == 200 for a in found), [a.body for a in found]
    return found


def restored(worker):
    return worker.metric("incipit_kv_tier_restored_tokens_total", tier="peer")


def test_another_worker_answers_from_the_blocks_of_the_first(peer):
    source, sink = peer().ready(), peer().ready()
    info = source.get("/server_info").json["kv_peer"]
    other = sink.get("/server_info").json["kv_peer"]
    assert info["fingerprint"] == other["fingerprint"] and len(info["fingerprint"]) == 64
    assert info["generation"] != other["generation"]
    assert info["is_encrypted"] and info["bytes_per_token"] > 0
    first = answers(source)
    second = asked(sink, source)
    assert choices(a.json for a in second) == choices(first)
    # On a busy machine a prompt may be computed at its deadline, or at once because the one before took long.
    wait_for(lambda: restored(sink) > 0, "restored blocks")
    assert sink.metric("incipit_kv_tier_loads_total", tier="peer", result="rejected") == 0
    # On a busy machine the memory may come too late to be used.
    assert source.metric("incipit_kv_peer_placed_bytes_total") + source.metric("incipit_kv_peer_served_bytes_total") > 0
    assert "kv_peer_not_shared" not in source.log + sink.log
    for answer in second:
        n = int(answer.headers.get("x-incipit-restored-tokens", 0))
        assert n <= answer.json["usage"]["prompt_tokens_details"]["cached_tokens"]
        assert (n > 0) == ("x-incipit-restore-us" in answer.headers)


def test_without_shared_memory_blocks_are_sent(peer):
    source, sink = peer("--no-kv-peer-shm").ready(), peer().ready()
    first = answers(source)
    assert choices(a.json for a in asked(sink, source)) == choices(first)
    assert "kv_peer_not_shared" not in source.log + sink.log
    assert source.metric("incipit_kv_peer_placed_bytes_total") == 0


def test_a_source_of_another_key_gives_nothing(peer):
    source, sink = peer().ready(), peer(key="a5" * 32).ready()
    first = answers(source)
    assert choices(a.json for a in asked(sink, source)) == choices(first) and restored(sink) == 0
    assert "kv_peer_refused" in sink.log and "differs=key" in sink.log


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_a_source_that_is_gone_or_stopped_costs_no_answer(peer, how):
    source, sink = peer().ready(), peer().ready()
    first = answers(source)
    asked(sink, source)[0]
    assert sink.post("/reset_prefix_cache", {}).code == 200
    source.process.send_signal(how)
    try:
        assert choices(a.json for a in asked(sink, source)) == choices(first)
        assert choices(answers(sink)) == choices(first)
    finally:
        os.kill(source.process.pid, signal.SIGCONT) if how == signal.SIGSTOP else None


def test_a_request_that_names_itself_or_nobody_is_computed(peer):
    worker = peer().ready()
    first = choices(a.json for a in asked(worker, worker))
    assert first == choices(answers(worker)) and restored(worker) == 0
    refused = worker.post("/v1/completions", prompt(0), headers={SOURCE: "nowhere"})
    assert refused.code == 400 and "HOST:PORT;tokens=N" in refused.body


def test_blocks_are_given_to_those_who_ask_for_them_as_they_should(peer, programs):
    worker = peer("--api-key", "secret").ready()
    assert worker.get("/kv/blocks").code == 400
    assert worker.get("/kv/blocks", headers={"upgrade": "websocket", "connection": "upgrade"}).code == 400
    without = programs(Worker, DEMO_MODEL, "--device", "cpu", "--threads", 1, "--max-model-len", 1024).ready()
    assert without.get("/kv/blocks", headers={"upgrade": "incipit-kv/1"}).code == 404
    assert "kv_peer" not in without.get("/server_info").json


@pytest.mark.parametrize("args, names", [
    (("--kv-offload-bytes", "8MiB", "--kv-peers"), "--kv-peer-plain"),
    (("--kv-peers", "--kv-peer-plain"), "--kv-offload-bytes"),
    (("--kv-offload-bytes", "8MiB", "--kv-peers", "--kv-peer-plain", "--ssl-certfile", "x"), "--ssl-certfile"),
])
def test_what_is_missing_is_named(programs, args, names):
    worker = programs(Worker, DEMO_MODEL, "--device", "cpu", *args)
    worker.process.wait(60)
    assert worker.process.returncode != 0 and names in worker.log
