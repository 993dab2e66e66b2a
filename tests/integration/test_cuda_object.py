"""incipit_cuda.so where there is no driver: it loads, reports why it cannot run, and the worker obeys --device."""
import os
import re
import subprocess

import pytest

from conftest import BUILD, DEMO_MODEL, PATIENCE_S, Worker

OBJECT = BUILD / "incipit_cuda.so"
NO_DRIVER = "no CUDA driver is installed"


def has_driver():
    return any(os.path.exists(path) for path in ("/proc/driver/nvidia/version", "/dev/nvidiactl"))


pytestmark = [
    pytest.mark.skipif(not OBJECT.exists(), reason="SKIPPED: no incipit_cuda.so was built (make cuda needs nvcc)"),
    pytest.mark.skipif(has_driver(), reason="SKIPPED: this machine has NVIDIA's driver"),
]


def run(*args):
    return subprocess.run([str(a) for a in args], capture_output=True, text=True, timeout=PATIENCE_S, check=False)


def test_it_exports_one_symbol_and_needs_the_c_library_alone():
    symbols = run("nm", "-D", "--defined-only", OBJECT).stdout.split("\n")
    assert [s.split()[-1] for s in symbols if s] == ["incipit_backend"]
    needed = set(re.findall(r"NEEDED\s+(\S+)", run("objdump", "-p", OBJECT).stdout))
    assert needed <= {"libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0", "librt.so.1", "ld-linux-x86-64.so.2"}


def test_it_reports_at_once_why_it_cannot_run():
    took = []
    for _ in range(3):  # the quickest counts: others use this machine too
        answer = run(BUILD / "tests/integration/backend_probe", OBJECT)
        status, loaded_us, asked_us, sentence = answer.stdout.split(" ", 3)
        assert status == "unsupported" and NO_DRIVER in sentence and "install" in sentence, answer
        took.append(float(loaded_us) + float(asked_us))
    assert min(took) < 1000000  # at once: not after a driver's time-out


def test_a_worker_that_must_use_cuda_reports_why_not_and_ends():
    result = run(BUILD / "incipit-worker", "--model", DEMO_MODEL, "--backend", "cuda", "--port", 0)
    assert result.returncode != 0 and NO_DRIVER in result.stderr, result.stderr


def test_a_worker_that_may_choose_takes_the_cpu_and_logs_why(programs):
    worker = programs(Worker, "--model", DEMO_MODEL, "--backend", "auto").ready()
    assert worker.post("/v1/completions", {"prompt": "the", "max_tokens": 2}).code == 200
    assert NO_DRIVER in worker.log
