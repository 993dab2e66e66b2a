"""A model over several devices of one worker: the same answers as from one, and errors with the numbers."""
import subprocess

import pytest

from conftest import BUILD, DEMO_MODEL, PATIENCE_S, Worker, started_programs

CALLS = [
    {"prompt": "Once upon a time", "max_tokens": 40, "temperature": 0, "logprobs": 3},
    {"prompt": "The moon", "max_tokens": 40, "temperature": 0.9, "top_p": 0.9, "seed": 7, "logprobs": 1,
     "presence_penalty": 0.5, "n": 2},
    {"prompt": "There was " * 60, "max_tokens": 24, "temperature": 0, "logprobs": 2},
    {"prompt": "There was " * 60 + "a", "max_tokens": 24, "temperature": 1.2, "seed": 3, "top_k": 20, "logprobs": 1},
]


def answers(worker):
    replies = [worker.post("/v1/completions", call) for call in CALLS]
    assert [r.code for r in replies] == [200] * len(CALLS)
    return [[(c["text"], c["finish_reason"], c["logprobs"]) for c in r.json["choices"]] for r in replies]


@pytest.fixture(scope="module")
def one():
    with started_programs() as start:
        yield answers(start(Worker, DEMO_MODEL, "--backend", "cpu", "--threads", 1).ready())


@pytest.mark.parametrize("backend, size", [("cpu", 2), ("cpu", 4)])
def test_the_answers_are_those_of_one_device_to_the_last_digit(programs, one, backend, size):
    worker = programs(Worker, DEMO_MODEL, "--backend", backend, "--threads", size, "--tensor-parallel-size",
                      size).ready()
    info = worker.get("/server_info").json
    assert (info["backend"], info["tensor_parallel_size"]) == (backend, size)
    assert info["device"].startswith(f"{size} x ")
    assert worker.field("worker_ready", "ranks") == str(size)
    assert worker.get("/get_server_info").json["tp_size"] == size
    assert answers(worker) == one
    assert answers(worker) == one  # from the cache


def refusal(*args):
    result = subprocess.run([str(BUILD / "incipit-worker"), *map(str, args)], capture_output=True, text=True,
                            timeout=PATIENCE_S, check=False)
    assert result.returncode == 2
    return result.stderr


@pytest.mark.parametrize("args, words", [
    (["--backend", "cpu", "--tp", 3], ["attention heads do not divide over 3 ranks", "--tensor-parallel-size"]),
    (["--backend", "sim", "--tp-size", 2], ["is not supported by the sim backend"]),
    (["--backend", "cpu", "--tensor-parallel-size", 17], ["tensor-parallel-size"]),
])
def test_an_indivisible_model_is_refused(args, words):
    error = refusal(DEMO_MODEL, "--port", 0, *args)
    for word in words:
        assert word in error, error


@pytest.mark.parametrize("args, words", [
    (["--tp", 2, "--device", "cuda:3"], ["2 ranks from device 3 on", "4 devices"]),
    (["--tp", 2, "--device", "0,7"], ["no GPU 7"]),
    (["--tp", 3, "--device", "GPU-0a,GPU-1b"], ["name one for each"]),
    (["--device", "0,1"], ["--device 0,1 names several devices", "--tensor-parallel-size"]),
])
def test_devices_of_ranks_that_are_not_there_are_refused(args, words):
    error = refusal(DEMO_MODEL, "--port", 0, "--backend-library", BUILD / "fake_gpus.so", *args)
    for word in words:
        assert word in error, error
