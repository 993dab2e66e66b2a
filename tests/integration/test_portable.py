"""The worker that takes nothing but the C library from its machine (make worker-portable)."""
import re
import subprocess

import pytest

from conftest import BUILD, DEMO_MODEL, PATIENCE_S, Program

PORTABLE = BUILD / "portable/incipit-worker"
pytestmark = pytest.mark.skipif(not PORTABLE.exists(), reason="SKIPPED: no static libraries to link it from")


class PortableWorker(Program):
    def __init__(self, *args):
        super().__init__("portable/incipit-worker", ["--port", 0, *args])

    def ready(self):
        self.url = f"http://127.0.0.1:{self.field('worker_ready', 'port')}"
        return self


def test_it_needs_the_c_library_alone():
    needed = subprocess.run(["objdump", "-p", str(PORTABLE)], capture_output=True, text=True, check=True).stdout
    names = set(re.findall(r"NEEDED\s+(\S+)", needed))
    assert names <= {"libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0", "librt.so.1", "ld-linux-x86-64.so.2"}


def test_it_runs_with_glibc_2_34():
    symbols = subprocess.run(["objdump", "-T", str(PORTABLE)], capture_output=True, text=True, check=True).stdout
    versions = {tuple(map(int, v.split("."))) for v in re.findall(r"GLIBC_(\d+\.\d+)", symbols)}
    assert max(versions) <= (2, 34)


@pytest.mark.parametrize("args", [["--backend", "sim"], ["--model", DEMO_MODEL, "--backend", "cpu"]])
def test_it_starts_and_answers(programs, args):
    worker = programs(PortableWorker, *args).ready()
    answer = worker.post("/v1/completions", {"model": worker.get("/v1/models").json["data"][0]["id"],
                                             "prompt": "the capital", "max_tokens": 4})
    assert answer.code == 200 and answer.json["usage"]["completion_tokens"] > 0


def test_a_model_of_a_hub_gets_a_sentence():
    result = subprocess.run([str(PORTABLE), "--model", "someone/something", "--port", "0"], capture_output=True, text=True,
                            timeout=PATIENCE_S, check=False)
    assert result.returncode != 0 and "libcurl" in result.stderr, result.stderr
