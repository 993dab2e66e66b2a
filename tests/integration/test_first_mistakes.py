"""What people get wrong in their first minute gets a sentence and a non-zero exit."""
import socket
import subprocess

import pytest

from conftest import BUILD, DEMO_MODEL, PATIENCE_S, ROOT


def run(program, *args):
    if program == "incipit-worker" and "--port" not in args:
        args = (*args, "--port", 0)  # whatever runs on this machine
    return subprocess.run([str(BUILD / program), *map(str, args)], capture_output=True, text=True,
                          timeout=PATIENCE_S, check=False)


@pytest.fixture
def busy_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        s.listen()
        yield s.getsockname()[1]


@pytest.mark.parametrize("program, args, words", [
    ("incipit-worker", [], ["no model", "folder"]),
    ("incipit-worker", ["/no/such/folder"], ["/no/such/folder"]),
    ("incipit-worker", ["--blok-size", "16"], ["--blok-size", "--block-size"]),
    ("incipit-worker", ["--backend", "sim", "--kv-events-subscribers", "4000"], ["kv-events-subscribers", "4000", "1024"]),
    ("incipit-worker", ["--backend", "sim", "--hash-block-size", "5"], ["hash-block-size 5", "block-size 16"]),
    ("incipit-worker", ["--backend", "gpu"], ["backend", "gpu", "cuda"]),
    ("incipit-worker", ["--backend", "cuda", "--backend-library", "/no/such.so"], ["/no/such.so"]),
    ("incipit-worker", ["--backend", "sim", "--host", "nowhere"], ["nowhere"]),
    ("incipit-router", [], ["--worker-urls", "--launch"]),
    ("incipit-router", ["--wurker-urls", "x"], ["--wurker-urls", "--worker-urls"]),
    ("incipit-router", ["--worker-urls", "127.0.0.1:1"], ["127.0.0.1:1", "http://"]),
    ("incipit-router", ["--worker-urls", "http://127.0.0.1:1", "--policy", "magic"], ["magic", "prefix", "round_robin"]),
    ("incipit-router", ["--launch", "2"], ["--model"]),
    ("incipit-router", ["--worker-urls", "http://127.0.0.1:1", "--admin-host", "0.0.0.0"], ["loopback"]),
])
def test_a_sentence_and_a_nonzero_exit(program, args, words):
    result = run(program, *args)
    assert result.returncode != 0
    for word in words:
        assert word in result.stderr, result.stderr


def test_a_launched_worker_that_cannot_start_ends_the_router():
    result = run("incipit-router", "--port", 0, "--admin-port", 0, "--launch", 2, "--model", "/no/such/folder")
    assert result.returncode != 0 and "/no/such/folder" in result.stderr


def test_a_folder_without_a_model_is_refused_with_what_one_holds(tmp_path):
    result = run("incipit-worker", tmp_path)
    assert result.returncode == 2 and "config.json" in result.stderr and "safetensors" in result.stderr


def test_ports_in_use(busy_port):
    worker = run("incipit-worker", "--backend", "sim", "--port", busy_port)
    router = run("incipit-router", "--worker-urls", "http://127.0.0.1:1", "--port", busy_port, "--admin-port", 0)
    admin = run("incipit-router", "--worker-urls", "http://127.0.0.1:1", "--port", 0, "--admin-port", busy_port)
    for result in (worker, router, admin):
        assert result.returncode != 0 and f"{busy_port} is in use" in result.stderr, result.stderr


@pytest.mark.skipif(not (DEMO_MODEL / "model.safetensors").exists(), reason="deploy/demo/model has no weights")
@pytest.mark.parametrize("args, words", [
    (["--path", "sse9"], ["sse9", "plain"]),
    (["--kv-cache-memory-bytes", "100000T"], ["memory"]),
    (["--num-gpu-blocks-override", "8"], ["max-model-len"]),
    (["--max-model-len", "100000"], ["4096"]),
])
def test_options_beyond_machine_or_model_are_refused(args, words):
    result = run("incipit-worker", DEMO_MODEL, "--port", 0, *args)
    assert result.returncode == 2, result.stderr
    for word in words:
        assert word in result.stderr, result.stderr


def test_a_missing_library_is_named_before_anything_is_compiled():
    result = subprocess.run(["make", "-C", str(ROOT), "B=build/missing", "PACKAGES=libnosuch", "build/missing/flags"],
                            capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert result.returncode != 0 and "libnosuch" in result.stderr and "make deps" in result.stderr


def test_help_teaches():
    for program in ("incipit-router", "incipit-worker"):
        result = run(program, "--help")
        assert result.returncode == 0 and "Usage" in result.stdout and "Examples" in result.stdout
        assert 40 < len(result.stdout.splitlines()) <= 64
        assert len(run(program, "--help-all").stdout.splitlines()) > 300
        assert run(program, "--version").stdout.strip()
        assert "block-size:" in run("incipit-worker", "--backend", "sim", "--dump-config").stdout
