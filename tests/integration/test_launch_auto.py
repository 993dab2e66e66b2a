"""--launch auto: a worker on each GPU, each kept on its own. The GPUs are pretended (tests/integration/backends/fake_gpus.c)."""
import os
import re
import signal
import subprocess

import pytest
from conftest import BUILD, DEMO_MODEL, Router, free_port, http, wait_for

FAKE = BUILD / "fake_gpus.so"
UUIDS = ["GPU-0a000000-0000-4000-8000-000000000000", "GPU-1b000000-0000-4000-8000-000000000001",
         "GPU-2c000000-0000-4000-8000-000000000002", "GPU-3d000000-0000-4000-8000-000000000003"]

pytestmark = pytest.mark.skipif(not (DEMO_MODEL / "model.safetensors").exists(), reason="deploy/demo/model has no weights")


def launch(programs, *args):
    return programs(Router, "--launch", "auto", "--model", DEMO_MODEL, "--worker-base-port", free_port(),
                    "--worker-arg=--backend-library", f"--worker-arg={FAKE}", "--worker-arg=--num-gpu-blocks-override=300",
                    *args)


def devices(router):
    """The devices that each worker reports, by its URL."""
    return {w["url"]: http(w["url"] + "/server_info").json["uuid"] for w in router.workers()["workers"]}


def found_devices(router):
    """None while the router still counts on a worker that has just been killed."""
    try:
        return devices(router)
    except OSError:
        return None


def test_each_gpu_gets_a_worker_that_comes_back_on_it(programs):
    router = launch(programs).ready(4)
    before = devices(router)
    assert sorted(before.values()) == UUIDS
    started = [line for line in router.lines if " worker_started " in line]
    victim = next(line for line in started if UUIDS[2] in line)
    port, pid = (int(victim.split(f"{key}=")[1].split()[0]) for key in ("port", "pid"))
    with open(f"/proc/{pid}/cmdline") as f:
        assert f"--device\0{UUIDS[2]}\0" in f.read()
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: sum(" worker_started " in line for line in router.lines) == 5, "a fifth start")
    again = [line for line in router.lines if " worker_started " in line][-1]
    assert f"port={port} " in again and UUIDS[2] in again
    wait_for(lambda: found_devices(router) == before, "the same four devices again")
    wait_for(lambda: router.n_healthy() == 4, "four healthy workers again")
    answer = router.post("/v1/completions", {"prompt": "The table", "max_tokens": 4})
    assert answer.code == 200, answer.body
    assert router.stop() == 0


def test_a_model_over_two_gpus_gets_two_of_them(programs):
    """Two workers of two GPUs each: the router assigns them; the worker decides how to use them."""
    router = launch(programs, "--worker-arg=--tensor-parallel-size=2").ready(2)
    started = [line for line in router.lines if " worker_started " in line]
    assert [line.split("device=")[1].split()[0].strip('"') for line in started] == \
        [",".join(UUIDS[:2]), ",".join(UUIDS[2:])]
    assert router.stop() == 0


def test_a_number_of_workers_share_the_gpus_in_turn(programs):
    router = programs(Router, "--launch", 6, "--model", DEMO_MODEL, "--worker-base-port", free_port(),
                      f"--worker-arg=--backend-library={FAKE}", "--worker-arg=--num-gpu-blocks-override=300").ready(6)
    assert sorted(devices(router).values()) == sorted(UUIDS + UUIDS[:2])
    assert router.stop() == 0


def test_a_number_of_workers_starts_when_the_program_cannot_list_gpus(programs, tmp_path):
    program = tmp_path / "worker"
    program.write_text(f'#!/bin/sh\n[ "$1" = devices ] && exit 3\nexec {BUILD / "incipit-worker"} --backend=cpu "$@"\n')
    program.chmod(0o700)
    router = programs(Router, "--launch", 2, "--worker-program", program, "--model", DEMO_MODEL, "--worker-base-port",
                      free_port(), "--worker-arg=--kv-cache-memory-bytes=64MiB").ready(2)
    assert " gpu_query_failed " in router.log and "status 3" in router.log
    assert router.stop() == 0


def test_auto_is_accepted_and_256_is_the_largest_number(tmp_path):
    refused = subprocess.run([BUILD / "incipit-router", "--launch", "257", "--model", "m"], capture_output=True, text=True)
    assert refused.returncode == 2 and "256" in refused.stderr
    shown = subprocess.run([BUILD / "incipit-router", "--launch", "auto", "--model", "m", "--dump-config"],
                           capture_output=True, text=True, check=True).stdout
    assert re.search(r"^launch: auto\b", shown, re.M), shown


def test_workers_with_a_given_device_get_no_other(programs):
    router = programs(Router, "--launch", 2, "--model", DEMO_MODEL, "--worker-base-port", free_port(),
                      f"--worker-arg=--backend-library={FAKE}", "--worker-arg=--num-gpu-blocks-override=300",
                      "--worker-arg=--device=cuda:3").ready(2)
    assert list(devices(router).values()) == [UUIDS[3]] * 2
    assert router.stop() == 0


def test_more_gpus_wanted_by_a_worker_than_there_are(programs):
    router = launch(programs, "--worker-arg=--tensor-parallel-size=8")
    assert router.process.wait(30) != 0
    wait_for(lambda: "needs 8 GPUs" in router.log and "4 are present" in router.log, "the sentence")


def test_an_unused_gpu_is_reported(programs):
    """The worker then refuses, for the heads of its model do not divide by 3."""
    router = launch(programs, "--worker-arg=--tensor-parallel-size=3")
    assert router.process.wait(30) != 0
    wait_for(lambda: "gpu_unused" in router.log, "the line")
    assert [line.split("device=")[1].split()[0] for line in router.lines if " gpu_unused " in line] == [UUIDS[3]]
    assert sum(" gpu_found " in line for line in router.lines) == 3


def test_a_device_for_all_beside_one_for_each_is_refused(programs):
    router = launch(programs, "--worker-arg=--device=cuda:1")
    assert router.process.wait(30) != 0
    wait_for(lambda: "--device cuda:1" in router.log and "--launch N" in router.log, "the sentence")


def test_a_machine_without_gpus_gets_one_worker_on_the_cpu(programs):
    router = programs(Router, "--launch", "auto", "--model", DEMO_MODEL, "--worker-base-port", free_port(),
                      "--worker-arg=--backend-library", f"--worker-arg={BUILD / 'no-such-backend.so'}",
                      "--worker-arg=--backend=cpu", "--worker-arg=--kv-cache-memory-bytes=64MiB").ready(1)
    assert len(devices(router)) == 1
    assert router.stop() == 0
