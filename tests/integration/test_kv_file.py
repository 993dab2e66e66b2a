"""--kv-file: KV that outlives its worker. What a worker has computed twice, the next one reads, and answers the same;
what was damaged meanwhile is computed. Texts are for the demonstration model."""
import resource

import pytest
from conftest import DEMO_MODEL, Worker, wait_for

N_PROMPTS = 6
BLOCK = 16


@pytest.fixture
def keeping(programs, tmp_path):
    def start(*args, host="8MiB"):
        return programs(Worker, DEMO_MODEL, "--device", "cpu", "--threads", 1, "--kv-cache-memory-bytes", "4MiB",
                        "--max-model-len", 1024, "--kv-offload-bytes", host, "--kv-file", tmp_path / "kv",
                        "--kv-file-bytes", "64MiB", *args)
    return start


def prompt(i):
    return {"prompt": f"Table {i}. " + " ".join(f"Person number {k * 7 + i} lives in house {k + i}." for k in range(24)),
            "max_tokens": 12, "temperature": 0, "logprobs": 2}


def answers(worker):
    found = [worker.post("/v1/completions", prompt(i)) for i in range(N_PROMPTS)]
    assert all(a.code == 200 for a in found), [a.body for a in found]
    return [a.json for a in found]


def choices(found):
    return [a["choices"] for a in found]


def n_cached(found):
    return sum(a["usage"]["prompt_tokens_details"]["cached_tokens"] for a in found)


def n_whole_blocks(found):
    return sum((a["usage"]["prompt_tokens"] - 1) // BLOCK for a in found)


def fill(keeping):
    """A worker that has written all prompts and ended; its answers."""
    worker = keeping().ready()
    first = answers(worker)
    assert choices(answers(worker)) == choices(first)
    common = 1  # block that prompts share at most
    wait_for(lambda: worker.metric("incipit_kv_tier_stores_total", tier="file", result="ok") >=
             n_whole_blocks(first) - N_PROMPTS * common, "the blocks in the folder")
    assert worker.metric("incipit_kv_tier_blocks", tier="file") > 0
    assert worker.stop() == 0
    return first


def test_a_restarted_worker_reads_what_it_had_computed(keeping):
    first = fill(keeping)
    worker = keeping().ready()
    assert worker.metric("incipit_kv_tier_blocks", tier="file") > 0
    again = answers(worker)
    assert choices(again) == choices(first)
    # On a busy machine prompts may be computed at their deadline, and others because the first took long. What comes
    # late is kept.
    n_computed = sum(worker.metric("incipit_kv_tier_requests_total", tier="file", outcome=o) for o in ("late", "dearer"))
    assert n_cached(again) > 0 or n_computed == N_PROMPTS
    wait_for(lambda: worker.metric("incipit_kv_tier_restored_tokens_total", tier="file") > 0, "restored blocks")
    assert worker.metric("incipit_kv_tier_bytes_total", tier="file", direction="in") > 0


def test_a_worker_that_ends_leaves_what_it_had_computed_once(keeping):
    worker = keeping().ready()
    first = answers(worker)
    assert worker.stop() == 0
    assert "kv_written_down" in worker.log and "drain_timeout" not in worker.log
    worker = keeping().ready()
    assert worker.metric("incipit_kv_tier_blocks", tier="file") >= n_whole_blocks(first) - N_PROMPTS
    assert choices(answers(worker)) == choices(first)
    wait_for(lambda: worker.metric("incipit_kv_tier_restored_tokens_total", tier="file") > 0, "restored blocks")


def test_another_type_of_kv_finds_nothing(keeping):
    first = fill(keeping)
    worker = keeping("--kv-cache-dtype", "int8").ready()
    assert worker.metric("incipit_kv_tier_blocks", tier="file") == 0
    assert n_cached(answers(worker)[:1]) == 0
    assert n_whole_blocks(first) > 0


def test_damaged_blocks_are_computed(keeping, tmp_path):
    first = fill(keeping)
    segments = list((tmp_path / "kv").glob("*/seg-*.kv"))
    assert segments
    for path in segments:
        data = bytearray(path.read_bytes())
        for at in range(0, len(data), 3000):
            data[at] ^= 0x10
        path.write_bytes(bytes(data))
    worker = keeping().ready()
    assert choices(answers(worker)) == choices(first)
    assert worker.metric("incipit_kv_tier_restored_tokens_total", tier="file") == 0


@pytest.mark.parametrize("args, says", [
    (("--kv-offload-bytes", 0), "--kv-offload-bytes"),
    (("--no-enable-prefix-caching",), "prefix caching is off"),
    (("--tensor-parallel-size", 2), "have no address"),
])
def test_what_cannot_keep_kv_is_refused_by_name(keeping, args, says):
    worker = keeping(*args)
    worker.process.wait(60)
    assert worker.process.returncode != 0
    assert "KV cannot be kept below host memory" in worker.log and says in worker.log


@pytest.mark.parametrize("name, says", [
    ("absent/kv", "No such file or directory: make the folder that it is to be in"),
    ("file", "Not a directory: name a folder, not a file"),
])
def test_a_wrong_folder_is_named_before_the_weights_are_read(programs, tmp_path, name, says):
    (tmp_path / "file").write_text("")
    worker = programs(Worker, DEMO_MODEL, "--device", "cpu", "--kv-offload-bytes", "8MiB", "--kv-file", tmp_path / name)
    worker.process.wait(60)
    assert worker.process.returncode != 0
    assert f"--kv-file: cannot use the folder '{tmp_path / name}': {says}" in worker.log
    assert "weights" not in worker.log


@pytest.mark.parametrize("option, value, needs", [
    ("--kv-file-bytes", "1GiB", "--kv-file"), ("--kv-store-ttl", "1h", "--kv-store"), ("--kv-store-bytes", "1GiB", "--kv-store"),
    ("--kv-store-plain", None, "--kv-store"), ("--kv-store-password-file", "/none", "--kv-store"),
    ("--kv-store-ca-file", "/none", "--kv-store rediss://HOST"), ("--kv-key-file", "/none", "--kv-file, --kv-store or --kv-peers"),
    ("--kv-peer-plain", None, "--kv-peers"), ("--no-kv-peer-shm", None, "--kv-peers"),
])
def test_an_option_without_its_tier_is_refused(programs, option, value, needs):
    worker = programs(Worker, DEMO_MODEL, "--device", "cpu", "--kv-offload-bytes", "8MiB", option, *([value] if value else []))
    worker.process.wait(60)
    assert worker.process.returncode != 0
    assert f"{option} has no effect without {needs}: set that, or remove {option}" in worker.log


def test_a_limit_on_the_size_of_files_is_a_full_disk(keeping, tmp_path):
    """The system ends a process that writes more with SIGXFSZ, unless it is ignored."""
    worker = keeping().ready()
    resource.prlimit(worker.process.pid, resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
    first = answers(worker)
    assert choices(answers(worker)) == choices(first)
    wait_for(lambda: "kv_file_failed" in worker.log, "the failed write")
    assert choices(answers(worker)) == choices(first)
    assert worker.stop() == 0


def test_simulated_workers_move_bytes_too(programs, tmp_path):
    """Their blocks have a digest of the prefix: a row that meets another one than its own ends with an error."""
    def start():  # slow enough for a disk to be quicker than computing
        return programs(Worker, "--backend", "sim", "--sim-speed", 0.05, "--max-model-len", 2048, "--num-gpu-blocks-override", 160,
                        "--kv-offload-bytes", "256MiB", "--kv-file", tmp_path / "kv", "--kv-file-bytes", "512MiB").ready()
    body = {"prompt": "A rule of the house. " * 16, "max_tokens": 1, "temperature": 0}
    worker = start()
    first, _ = (worker.post("/v1/completions", body).json for _ in range(2))
    wait_for(lambda: worker.metric("incipit_kv_tier_stores_total", tier="file", result="ok") >= n_whole_blocks([first]),
             "the blocks in the folder")
    assert worker.stop() == 0
    worker = start()
    again = worker.post("/v1/completions", body).json
    assert choices([again]) == choices([first])
    late = worker.metric("incipit_kv_tier_requests_total", tier="file", outcome="late")
    assert n_cached([again]) > 0 or late == 1
    wait_for(lambda: worker.metric("incipit_kv_tier_restored_tokens_total", tier="file") > 0, "restored blocks")
