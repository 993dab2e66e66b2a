"""Which device a worker runs on: what is there, what is chosen, what is reported. The GPUs are those of
tests/integration/backends/fake_gpus.c: four of 24 GiB; others use one of them, and a model takes three beside its KV."""
import json
import os
import re
import shutil
import subprocess

import pytest

from conftest import BUILD, DEMO_MODEL, PATIENCE_S, Worker, events, metric

WORKER, OBJECT = BUILD / "incipit-worker", BUILD / "fake_gpus.so"
LIBRARY = ["--backend-library", OBJECT]
UUIDS = ["GPU-0a000000-0000-4000-8000-000000000000", "GPU-1b000000-0000-4000-8000-000000000001",
         "GPU-2c000000-0000-4000-8000-000000000002", "GPU-3d000000-0000-4000-8000-000000000003"]


def run(*args, program=WORKER, **env):
    return subprocess.run([str(program), *map(str, args)], capture_output=True, text=True, timeout=PATIENCE_S,
                          check=False, env={**os.environ, **env})


def test_devices_are_listed():
    result = run("devices", *LIBRARY)
    assert result.returncode == 0
    lines = result.stdout.splitlines()
    assert len(lines) == 4
    for i, line in enumerate(lines):
        assert line.startswith(f"{i}  Fake GPU {i}") and UUIDS[i] in line and "24576 MiB" in line


def test_the_object_may_be_named_by_the_environment():
    assert run("devices", INCIPIT_BACKEND_LIBRARY=str(OBJECT)).stdout == run("devices", *LIBRARY).stdout != ""


def test_devices_are_listed_for_programs():
    result = run("devices", "--json", *LIBRARY, INCIPIT_TEST_OLD_GPU="1")
    assert result.returncode == 0
    answer = json.loads(result.stdout)
    assert [d["uuid"] for d in answer["devices"]] == [UUIDS[0], *UUIDS[2:]]
    assert [d["index"] for d in answer["devices"]] == [0, 2, 3]
    assert answer["devices"][0]["memory_total"] == 24 << 30 and answer["devices"][0]["name"] == "Fake GPU 0"
    assert answer["unusable"] == [{"index": 1, "why": "GPU 1 is too old"}]


@pytest.mark.parametrize("args, env, words", [
    (LIBRARY, {"INCIPIT_TEST_NO_DRIVER": "1"}, "no driver"),
    (["--backend-library", "/no/such.so"], {}, "/no/such.so"),
])
def test_without_a_device_the_reason_is_printed_and_the_exit_code_is_set(args, env, words):
    for form in [], ["--json"]:
        result = run("devices", *form, *args, **env)
        assert result.returncode == 2 and words in result.stderr
        assert not form or json.loads(result.stdout)["devices"] == []


@pytest.mark.parametrize("args, index", [
    ([], 0), (["--device", "auto"], 0), (["--device", "cuda"], 0), (["--device", "cuda:3"], 3), (["--device", "1"], 1),
    (["--device", UUIDS[2]], 2), (["--device", "GPU-3d"], 3), (["--backend", "cuda", "--device", 2], 2),
])
def test_the_gpu_that_was_named_is_the_one(programs, args, index):
    worker = programs(Worker, DEMO_MODEL, *LIBRARY, *args).ready()
    info = worker.get("/server_info").json
    assert (info["backend"], info["uuid"], info["device"]) == ("cuda", UUIDS[index], f"Fake GPU {index}")
    assert info["path"] == "fake" and info["max_num_seqs"] == 256
    assert metric(worker.metrics(), "incipit_backend_info", backend="cuda", uuid=UUIDS[index], path="fake",
                  device=f"Fake GPU {index}") == 1
    assert worker.post("/v1/completions", {"prompt": "a", "max_tokens": 8, "ignore_eos": True}).code == 200
    page = worker.metrics()
    assert metric(page, "incipit_step_host_seconds_count") >= 8
    assert metric(page, "incipit_step_device_seconds_sum") > 0
    assert metric(page, "incipit_steps_in_flight") in (0, 1, 2)


def test_a_worker_without_a_gpu_uses_the_cpu_and_logs_the_reason(programs):
    os.environ["INCIPIT_TEST_NO_DRIVER"] = "1"
    try:
        worker = programs(Worker, DEMO_MODEL, *LIBRARY).ready()
    finally:
        del os.environ["INCIPIT_TEST_NO_DRIVER"]
    info = worker.get("/server_info").json
    assert info["backend"] == "cpu" and info["uuid"] == "" and info["max_num_seqs"] == 64
    assert len(re.findall("no driver", worker.log)) == 1
    assert worker.field("backend_chosen", "backend") == "cpu"


@pytest.mark.parametrize("args, env, words", [
    (["--device", "cuda"], {"INCIPIT_TEST_NO_DRIVER": "1"}, ["no driver"]),
    (["--backend", "cuda"], {"INCIPIT_TEST_NO_DRIVER": "1"}, ["no driver"]),
    (["--device", "cuda:4"], {}, ["no GPU 4", "4"]),
    (["--device", "GPU-ff"], {}, ["GPU-ff"]),
    (["--device", "tpu"], {}, ["--device tpu", "cuda:0", "UUID"]),
    (["--device", "cuda:x"], {}, ["--device cuda:x"]),
    (["--device", "cuda:1", "--backend", "cpu"], {}, ["--device cuda:1", "--backend cpu"]),
])
def test_a_device_that_cannot_be_had_is_refused(args, env, words):
    result = run(DEMO_MODEL, "--port", 0, *LIBRARY, *args, **env)
    assert result.returncode == 2
    for word in words:
        assert word in result.stderr, result.stderr


def test_a_default_batch_size_gives_way(programs):
    def n_seqs(*args):
        return programs(Worker, DEMO_MODEL, "--device", "cpu", *args).ready().get("/server_info").json["max_num_seqs"]
    assert n_seqs() == 64
    assert n_seqs("--max-num-batched-tokens", 16) == 16
    assert n_seqs("--max-num-seqs", 600) == 600  # more than the tokens of a step on a CPU


def test_cpu_and_sim_are_devices_too(programs):
    assert programs(Worker, DEMO_MODEL, *LIBRARY, "--device", "cpu").ready().get("/server_info").json["backend"] == "cpu"
    assert programs(Worker, "--device", "sim").ready().get("/server_info").json["backend"] == "sim"


def test_a_backend_object_at_the_installed_path_is_found(tmp_path):
    for place in "bin", "lib/incipit":
        root = tmp_path / place.replace("/", "-")
        (root / "bin").mkdir(parents=True)
        (root / place).mkdir(parents=True, exist_ok=True)
        shutil.copy(WORKER, root / "bin")
        shutil.copy(OBJECT, root / place / "incipit_cuda.so")
        result = run("devices", program=root / "bin" / "incipit-worker")
        assert result.returncode == 0 and len(result.stdout.splitlines()) == 4, result.stderr


def test_kv_gets_the_gpu_memory_that_the_model_leaves(programs):
    worker = programs(Worker, DEMO_MODEL, *LIBRARY, "--gpu-memory-utilization", 0.5).ready()
    expected = (12 - 4) << 30  # half of 24 GiB, less what others and the model have
    assert abs(int(worker.field("engine_ready", "kv_bytes")) - expected) < 1 << 20


def test_too_little_memory_names_the_longest_context_that_would_fit():
    result = run(DEMO_MODEL, "--port", 0, *LIBRARY, "--gpu-memory-utilization", 0.16687)
    assert result.returncode == 2 and "not enough memory for the KV cache" in result.stderr
    longest = int(re.search(r"longest that fits is (\d+)", result.stderr)[1])
    assert 16 <= longest < 4096, result.stderr
    result = run(DEMO_MODEL, "--port", 0, *LIBRARY, "--kv-cache-memory-bytes", "30GiB")
    assert result.returncode == 2 and "30.00 GiB" in result.stderr and "would fit" in result.stderr


def test_inspect_reports_the_device_and_whether_the_model_fits():
    result = run("inspect", DEMO_MODEL, *LIBRARY, "--device", "GPU-2c")
    assert result.returncode == 0
    assert re.search(rf"device +cuda: Fake GPU 2, fake, {UUIDS[2]}; memory 24.0 GiB, 23.0 free", result.stdout)
    assert re.search(r"fits +yes: 20\.\d+ GiB for KV", result.stdout)
    result = run("inspect", DEMO_MODEL, *LIBRARY, "--kv-cache-memory-bytes", "1MiB")
    assert re.search(r"fits +no: .*--max-model-len", result.stdout)


def test_a_lost_device_fails_every_request_with_its_sentence_and_ends_the_process(programs, monkeypatch):
    monkeypatch.setenv("INCIPIT_TEST_LOST_AFTER", "5")
    worker = programs(Worker, DEMO_MODEL, *LIBRARY, "--sim-speed", 20).ready()
    body = {"prompt": "a", "max_tokens": 200, "ignore_eos": True, "stream": True}
    errors = [e for e in events(worker.url + "/v1/completions", body) if "error" in e]
    assert len(errors) == 1 and "fallen off its bus" in errors[0]["error"]["message"], errors
    assert worker.process.wait(PATIENCE_S) == 1
    assert "the device was lost: the fake GPU has fallen off its bus" in worker.log


def test_a_second_step_is_queued_unless_disabled(programs):
    assert programs(Worker, "--backend", "sim").ready().field("worker_ready", "steps_in_flight") == "2"
    alone = programs(Worker, "--backend", "sim", "--no-async-scheduling").ready()
    assert alone.field("worker_ready", "steps_in_flight") == "1"
    assert programs(Worker, DEMO_MODEL, "--device", "cpu").ready().field("worker_ready", "steps_in_flight") == "1"
