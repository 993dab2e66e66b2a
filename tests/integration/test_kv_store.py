"""--kv-store: what one worker has computed twice, another reads from a real server, and answers the same; a server that
is away, or has other keys, costs no answer. Texts are for the demonstration model."""
import pytest
from conftest import DEMO_MODEL, ROOT, Worker, wait_for
from test_kv_file import N_PROMPTS, answers, choices, n_whole_blocks
from test_share_redis import REDIS, redis  # noqa: F401: a fixture

pytestmark = pytest.mark.skipif(not REDIS, reason="SKIPPED a real Redis: make deps-test")


@pytest.fixture
def sharing(programs, redis, tmp_path):  # noqa: F811
    def start(*args, key="5a" * 32):
        path = tmp_path / f"{key[:4]}.key"
        path.write_text(key + "\n")
        return programs(Worker, DEMO_MODEL, "--device", "cpu", "--threads", 1, "--kv-cache-memory-bytes", "4MiB",
                        "--max-model-len", 1024, "--kv-offload-bytes", "8MiB", "--kv-store", f"redis://127.0.0.1:{redis.port}",
                        "--kv-key-file", path, *args)
    return start


def fill(worker):
    first = answers(worker)
    assert choices(answers(worker)) == choices(first)
    wait_for(lambda: worker.metric("incipit_kv_tier_stores_total", tier="store", result="ok") >=
             n_whole_blocks(first) - N_PROMPTS, "the blocks in the store")
    return first


def restored(worker):
    return worker.metric("incipit_kv_tier_restored_tokens_total", tier="store")


def test_another_worker_reads_what_one_has_computed(sharing):
    first = fill(sharing().ready())
    other = sharing().ready()
    assert choices(answers(other)) == choices(first)
    wait_for(lambda: restored(other) > 0, "restored blocks")  # on a busy machine behind the deadline
    assert other.metric("incipit_kv_tier_loads_total", tier="store", result="rejected") == 0


def test_another_key_finds_nothing_and_a_lost_server_costs_nothing(sharing, redis):  # noqa: F811
    first = fill(sharing().ready())
    other = sharing(key="a5" * 32).ready()
    assert choices(answers(other)) == choices(first) and restored(other) == 0
    redis.stop()
    assert choices(answers(other)) == choices(first)
    assert other.stop() == 0 and "drain_timeout" not in other.log  # what it cannot write is not waited for
    late = sharing().ready()
    assert choices(answers(late)) == choices(first)
    assert late.stop() == 0 and "drain_timeout" not in late.log
    redis.start()


def test_a_server_without_tls_is_named(sharing, redis):  # noqa: F811
    worker = sharing("--kv-store", f"rediss://127.0.0.1:{redis.port}").ready()
    answers(worker), answers(worker)
    wait_for(lambda: "kv_store_away" in worker.log, "three failures")
    assert "before TLS was up: if the server has no TLS on this port, use redis://" in worker.log


def test_a_key_that_all_can_read_is_reported(sharing, tmp_path):
    path = tmp_path / "own.key"
    path.write_text("5a" * 32)
    path.chmod(0o640)
    assert "kv_key_file_open" not in sharing("--kv-key-file", path).ready().log
    path.chmod(0o644)
    assert "kv_key_file_open" in sharing("--kv-key-file", path).ready().log


@pytest.mark.parametrize("args, says", [
    (("--kv-store", "redis://:secret@127.0.0.1"), "--kv-store-password-file"),
    (("--kv-store", "http://127.0.0.1"), "--kv-store: invalid URL"),
    (("--kv-key-file", ROOT / "VERSION"), "openssl rand -hex 32"),
    (("--kv-key-file", "/none"), "--kv-key-file"),
    (("--kv-store-password-file", "/none"), "--kv-store: cannot open /none"),
    (("--kv-store", "rediss://127.0.0.1", "--kv-store-ca-file", "/none"), "/none"),
    (("--kv-store-ca-file", ROOT / "VERSION"), "--kv-store-ca-file has no effect without --kv-store rediss://HOST"),
    (("--kv-offload-bytes", 0), "--kv-offload-bytes"),
])
def test_what_is_wrong_is_named(sharing, args, says):
    worker = sharing(*args)
    worker.process.wait(60)
    assert worker.process.returncode != 0 and says in worker.log and "secret@" not in worker.log
    assert "weights" not in worker.log


def test_a_store_without_a_key_is_refused(programs):
    worker = programs(Worker, DEMO_MODEL, "--kv-offload-bytes", "8MiB", "--kv-store", "redis://127.0.0.1")
    worker.process.wait(60)
    assert worker.process.returncode != 0 and "--kv-store-plain" in worker.log
