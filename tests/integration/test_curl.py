"""curl, straight at a worker and through a router: streams as they come, old and odd ways of HTTP."""
import json
import os
import shutil
import subprocess

import pytest

from conftest import PATIENCE_S, Worker, both_ways, in_front_of, wait_for

pytestmark = pytest.mark.skipif(not shutil.which("curl"), reason="curl is not installed")


def curl(*args, body=None):
    done = subprocess.run(["curl", "-sS", "--noproxy", "*", "-m", str(PATIENCE_S), *args], input=body, capture_output=True)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode(), done.stderr.decode()


def request(**more):
    return json.dumps({"prompt": "Once upon a time", "max_tokens": 8, "temperature": 0, **more})


@both_ways
def test_events_come_one_by_one(programs, way):
    """The first is here while the worker still works on the last; each read brings a few more."""
    worker = programs(Worker, "--backend", "sim", "--sim-speed", 1).ready()
    api = in_front_of(worker, programs, way)
    process = subprocess.Popen(["curl", "-sSN", "--noproxy", "*", api.url + "/v1/completions", "-d",
                                request(max_tokens=2000, stream=True, ignore_eos=True)], stdout=subprocess.PIPE)
    try:
        reads = [os.read(process.stdout.fileno(), 65536) for _ in range(3)]
        assert reads[0].startswith(b"data: {") and all(reads)
        assert worker.metric("vllm:num_requests_running") == 1
        assert b"".join(reads).count(b"data: ") < 2000
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
    wait_for(lambda: worker.metric("vllm:num_requests_running") == 0, "the worker to notice that curl is gone")


def test_a_whole_stream_ends_with_done(shared_api):
    out, _ = curl("-N", shared_api.url + "/v1/completions", "-d", request(stream=True))
    lines = [line for line in out.split("\n\n") if line]
    assert lines[-1] == "data: [DONE]"
    events = [json.loads(line[6:]) for line in lines[:-1]]  # a busy worker puts several tokens into one
    whole = json.loads(curl(shared_api.url + "/v1/completions", "-d", request())[0])["choices"][0]["text"]
    assert "".join(e["choices"][0]["text"] for e in events) == whole and len(events) >= 2


@pytest.mark.parametrize("stream", [False, True])
def test_http_1_0_gets_the_same_without_chunks(shared_api, stream):
    path = shared_api.url + "/v1/completions"
    old, head = curl("--http1.0", "-v", path, "-d", request(stream=stream))
    assert "transfer-encoding" not in head.lower()
    text = lambda out: "".join(json.loads(e[6:])["choices"][0]["text"] for e in out.split("\n\n")[:-2]) if stream else \
        json.loads(out)["choices"][0]["text"]
    assert text(old) == text(curl(path, "-d", request(stream=stream))[0]) and text(old)


def test_head_where_there_is_a_get(shared_api):
    for path in ("/health", "/v1/models"):
        head, _ = curl("-I", shared_api.url + path)
        assert head.startswith("HTTP/1.1 200") and "content-length" in head.lower()
    assert curl("-I", "-o", os.devnull, "-w", "%{http_code}", shared_api.url + "/v1/completions")[0] == "405"


def test_a_large_body_waits_for_100_continue(shared_api, tmp_path):
    body = tmp_path / "body.json"
    body.write_text(request(user="x" * (2 << 20)))
    out, trace = curl("-v", "-H", "Expect: 100-continue", "--expect100-timeout", str(PATIENCE_S),
                     shared_api.url + "/v1/completions", "--data-binary", f"@{body}")
    assert "HTTP/1.1 100" in trace and json.loads(out)["usage"]["completion_tokens"] == 8


def test_a_body_may_come_in_chunks(shared_api):
    out, trace = curl("-v", "-X", "POST", "-T", "-", "-H", "content-type: application/json",
                     shared_api.url + "/v1/completions", body=request(user="y" * 300000).encode())
    assert "transfer-encoding: chunked" in trace.lower() and json.loads(out)["usage"]["completion_tokens"] == 8


def test_two_requests_share_a_connection(shared_api):
    url = shared_api.url + "/v1/completions"
    out, _ = curl("-o", os.devnull, "-o", os.devnull, "-w", "%{http_code} %{num_connects}\n", "-d", request(), url, url)
    assert out.splitlines() == ["200 1", "200 0"]
