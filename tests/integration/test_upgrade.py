"""One router takes the place of another: by handover, by sockets that are held open, by what it left on disk."""
import os
import signal
import socket
import subprocess
import sys
from http.client import HTTPConnection

import pytest

from conftest import BUILD, PATIENCE_S, ROOT, SANITIZER, Router, Worker, events, free_port, http, wait_for

PROMPT = "You are a careful assistant who answers in one sentence. " * 40


@pytest.fixture
def workers(programs):
    return [programs(Worker, "--backend", "sim", "--sim-speed", 20).ready() for _ in range(2)]


def options(workers, *more, share="none"):
    return ("--worker-urls", *[w.url for w in workers], "--share", share, *more)


def predicted(router):
    return router.metric("incipit_predicted_cached_tokens_total")


def known_on(router, texts):
    """How many predicted tokens the router adds when it is asked for each of these."""
    before = predicted(router)
    for text in texts:
        assert router.post("/v1/completions", {"prompt": text, "max_tokens": 1}).code == 200
    return predicted(router) - before


TEXTS = [f"Conversation {i}: " + PROMPT for i in range(8)]


@pytest.mark.parametrize("share", ["none", "workers"])
def test_a_restarted_router_restores_the_index_of_its_workers(programs, workers, tmp_path, share):
    """What the snapshot has is not taken from the workers' events as well: that would count what they hold twice."""
    args = options(workers, "--state-dir", tmp_path, share=share)
    entries = lambda router: router.workers()["stats"]["index_entries"]
    first = programs(Router, *args).ready(2)
    assert known_on(first, TEXTS) == 0
    warm = known_on(first, TEXTS)
    assert warm > 0
    n_entries = entries(first)
    assert first.stop() == 0 and "index_saved" in first.log
    assert {p.name for p in tmp_path.iterdir()} == {"prefix-hash-seed", "index.snapshot"}
    assert all(p.stat().st_mode & 0o777 == 0o600 for p in tmp_path.iterdir())
    second = programs(Router, *args).ready(2)
    assert second.field("index_restored", "workers") == "2"
    if share == "workers":
        wait_for(lambda: second.metric("incipit_followed_workers") == 2, "their events to be followed")
    assert 0.9 * n_entries <= entries(second) <= 1.05 * n_entries
    assert known_on(second, TEXTS) >= 0.97 * warm


def test_a_restarted_worker_has_an_empty_index(programs, tmp_path):
    port = free_port()
    worker = programs(Worker, "--backend", "sim", "--sim-speed", 20, port=port).ready()
    args = options([worker], "--state-dir", tmp_path)
    first = programs(Router, *args).ready(1)
    known_on(first, TEXTS)
    assert first.stop() == 0 and worker.stop() == 0
    programs(Worker, "--backend", "sim", "--sim-speed", 20, port=port).ready()
    second = programs(Router, *args).ready(1)
    assert second.field("index_restored", "workers") == "0"
    assert known_on(second, TEXTS) == 0


@pytest.mark.parametrize("damage", [lambda b: b[:-1], lambda b: b[:100] + b"\xff" + b[101:], lambda b: b"", lambda b: b"x" * 500])
def test_a_broken_snapshot_is_reported_and_ignored(programs, workers, tmp_path, damage):
    args = options(workers, "--state-dir", tmp_path)
    first = programs(Router, *args).ready(2)
    known_on(first, TEXTS)
    assert first.stop() == 0
    path = tmp_path / "index.snapshot"
    path.write_bytes(damage(path.read_bytes()))
    second = programs(Router, *args).ready(2)
    assert "index_restore_failed" in second.log and str(path) in second.log
    assert known_on(second, TEXTS) == 0


def test_a_successor_takes_over_the_whole_state(programs, workers, tmp_path):
    """The client's connections end in order, streams end whole, and what was cached is known."""
    os.chmod(tmp_path, 0o700)
    args = options(workers, "--handover", tmp_path / "router", "--threads", 2, "--drain-settle", "2s")
    first = programs(Router, *args).ready(2)
    host, port = "127.0.0.1", int(first.url.rsplit(":", 1)[1])
    admin_port = int(first.admin_url.rsplit(":", 1)[1])
    known_on(first, TEXTS)
    warm = known_on(first, TEXTS)
    kept = HTTPConnection(host, port, timeout=PATIENCE_S)
    kept.request("GET", "/v1/models")
    assert kept.getresponse().read()
    stream = iter(events(first.url + "/v1/completions",
                         {"prompt": "x", "max_tokens": 3000, "stream": True, "ignore_eos": True}))
    next(stream)
    second = programs(Router, *args, "--threads", 3, "--admin-port", admin_port, port=port)
    second.field("router_listening", "port")
    wait_for(lambda: " router_replaced" in first.log, "the first to be replaced")
    second.ready(2)
    assert second.url == first.url and second.admin_url == first.admin_url
    assert http(second.admin_url + "/readyz").code == 200
    kept.request("GET", "/v1/models")  # the first still answers, and closes
    answer = kept.getresponse()
    assert answer.status == 200 and answer.getheader("connection") == "close" and answer.read()
    assert known_on(second, TEXTS) >= 0.97 * warm
    assert list(stream)[-1] == "[DONE]"
    assert first.process.wait(PATIENCE_S) == 0
    assert "index_restored" in second.log and "handover_is_incomplete" not in second.log
    third = programs(Router, *args, "--threads", 1, port=port)  # fewer loops than sockets
    third.field("router_listening", "port")
    wait_for(lambda: " router_replaced" in second.log, "the second to be replaced")
    third.ready(2)
    for _ in range(20):
        assert third.get("/v1/models").code == 200
    assert known_on(third, TEXTS) >= 0.97 * warm
    assert second.process.wait(PATIENCE_S) == 0
    assert third.stop() == 0 and not (tmp_path / "router").exists()


def test_a_successor_that_cannot_serve_changes_nothing(programs, workers, tmp_path):
    os.chmod(tmp_path, 0o700)
    args = options(workers, "--handover", tmp_path / "router")
    first = programs(Router, *args).ready(2)
    port = int(first.url.rsplit(":", 1)[1])
    absent = f"http://127.0.0.1:{free_port()}"
    for bad, why in ((("--worker-urls", absent, "--handover-wait", "300ms"), "the running router continues"),
                     (options(workers, "--admin-port", free_port()), "start this router with the same ports")):
        second = programs(Router, *bad, "--handover", tmp_path / "router", port=port)
        assert second.process.wait(PATIENCE_S) != 0 and second.stop() != 0
        assert why in second.log
    killed = programs(Router, "--worker-urls", absent, "--handover", tmp_path / "router", port=port)
    wait_for(lambda: first.log.count(" handover_begun") == 3, "the third to ask")
    killed.process.kill()
    wait_for(lambda: first.log.count(" handover_failed") == 3, "the first to see that it is gone")
    assert first.get("/v1/models").code == 200 and http(first.admin_url + "/readyz").code == 200
    good = programs(Router, *args, port=port)
    good.field("router_listening", "port")
    assert first.process.wait(PATIENCE_S) == 0
    assert good.ready(2).get("/v1/models").code == 200


def test_a_successor_whose_predecessor_dies_goes_on_alone(programs, workers, tmp_path):
    os.chmod(tmp_path, 0o700)
    args = options(workers, "--handover", tmp_path / "router")
    first = programs(Router, *args).ready(2)
    port = int(first.url.rsplit(":", 1)[1])
    second = programs(Router, "--worker-urls", *[w.url for w in workers], f"http://127.0.0.1:{free_port()}", "--handover",
                      tmp_path / "router", "--handover-wait", "2s", port=port)
    wait_for(lambda: " handover_begun" in first.log, "the second to ask")
    first.process.kill()
    second.field("router_listening", "port")
    assert "handover_is_incomplete" in second.log
    assert second.ready(2).get("/v1/models").code == 200
    third = programs(Router, *args, port=port)  # finds the second at the same place
    third.field("router_listening", "port")
    assert second.process.wait(PATIENCE_S) == 0 and third.ready(2).get("/v1/models").code == 200


def test_a_router_starts_its_own_successor(programs, workers, tmp_path):
    os.chmod(tmp_path, 0o700)
    port, admin = free_port(), free_port()
    args = options(workers, "--handover", tmp_path / "router", "--admin-port", admin)
    first = programs(Router, *args, port=port).ready(2)
    first.process.send_signal(signal.SIGUSR2)
    child = int(first.field("successor_started", "pid"))
    try:
        assert first.process.wait(PATIENCE_S) == 0
        assert http(f"http://127.0.0.1:{port}/v1/models").code == 200
        assert http(f"http://127.0.0.1:{admin}/readyz").code == 200
    finally:
        os.kill(child, signal.SIGTERM)
    wait_for(lambda: not os.path.exists(f"/proc/{child}") or "\nState:\tZ" in open(f"/proc/{child}/status").read(),
             "the successor to end")


def test_takeover_is_refused_in_a_shared_folder_and_with_launch(programs, workers, tmp_path):
    os.chmod(tmp_path, 0o777)
    router = programs(Router, *options(workers, "--handover", tmp_path / "router"))
    assert router.process.wait(PATIENCE_S) == 2 and router.stop() == 2
    assert "other users may write to" in router.log
    launched = programs(Router, "--launch", 1, "--worker-arg=--backend=sim", "--handover", tmp_path / "router")
    assert launched.process.wait(PATIENCE_S) == 2 and launched.stop() == 2
    assert "--handover excludes --launch" in launched.log


@pytest.mark.skipif(SANITIZER != "", reason="a sanitizer is too slow for this load")
@pytest.mark.parametrize("scenario", ["rolling", "upgrades"])
def test_no_client_notices_a_restart(scenario):
    """make rolling and make upgrades, in small."""
    done = subprocess.run([sys.executable, ROOT / "tests/bench/rolling.py", scenario, "--quick", "--rps", "50", "--settle",
                           "0.6", "--seconds", "9"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


# A service manager in a few lines: sockets from descriptor 3 on, and a socket for its notifications.
LAUNCHER = """
import os, sys
n, names = int(sys.argv[1]), sys.argv[2]
os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS=str(n), LISTEN_FDNAMES=names)
os.execv(sys.argv[3], sys.argv[3:])
"""


def test_sockets_of_a_service_manager_are_listened_on(workers, tmp_path):
    client, admin = socket.create_server(("127.0.0.1", 0)), socket.create_server(("127.0.0.1", 0))
    notify = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    notify.bind(str(tmp_path / "notify"))
    notify.settimeout(PATIENCE_S)
    url = f"http://127.0.0.1:{client.getsockname()[1]}"

    def start():
        def pass_sockets():
            fds = [os.dup(client.fileno()), os.dup(admin.fileno())]
            high = [os.dup2(fd, 50 + i) for i, fd in enumerate(fds)]
            for i, fd in enumerate(high):
                os.dup2(fd, 3 + i)
                os.set_inheritable(3 + i, True)
        return subprocess.Popen(
            [sys.executable, "-c", LAUNCHER, "2", "clients:admin", str(BUILD / "incipit-router"), "--drain-settle", "0",
             "--threads", "2", *options(workers)], preexec_fn=pass_sockets, close_fds=False, stderr=subprocess.DEVNULL,
            env={**os.environ, "NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "200000"})

    for _ in range(2):  # between the two processes connections wait; none is refused
        held = socket.create_connection(client.getsockname(), timeout=PATIENCE_S)
        held.sendall(b"GET /livez HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        process = start()
        try:
            messages = []
            while "READY=1" not in messages:
                messages.append(notify.recv(1000).decode())
            assert held.recv(1000).startswith(b"HTTP/1.1 200")
            held.close()
            admin_url = f"http://127.0.0.1:{admin.getsockname()[1]}"
            wait_for(lambda: http(admin_url + "/readyz").code == 200, "workers")
            assert http(url + "/v1/models").code == 200
            messages.clear()
            while "WATCHDOG=1" not in messages:
                messages.append(notify.recv(1000).decode())
            process.send_signal(signal.SIGHUP)
            while not any(m.startswith("RELOADING=1\nMONOTONIC_USEC=") for m in messages):
                messages.append(notify.recv(1000).decode())
            process.send_signal(signal.SIGTERM)
            while "STOPPING=1" not in messages:
                messages.append(notify.recv(1000).decode())
            assert process.wait(PATIENCE_S) == 0
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
    for s in (client, admin, notify):
        s.close()


# --- going away ---------------------------------------------------------------------------------------------------


def test_a_drain_is_the_choreography_that_is_promised(programs, workers):
    """Not ready at once, but serving; connection: close in each answer; streams finish; the port is closed; exit code 0."""
    router = programs(Router, *options(workers, "--drain-settle", "1s")).ready(2)
    stream = iter(events(router.url + "/v1/completions",
                         {"prompt": "x", "max_tokens": 5000, "stream": True, "ignore_eos": True}))
    next(stream)
    drain = subprocess.Popen([BUILD / "incipit-router", "drain", "--admin-port", router.admin_url.rsplit(":", 1)[1]])
    wait_for(lambda: " router_draining" in router.log, "the drain to begin")
    assert http(router.admin_url + "/readyz").code == 503 and router.get("/readyz").code == 503
    assert router.get("/livez").code == 200
    answer = router.post("/v1/completions", {"prompt": "a", "max_tokens": 1})
    assert answer.code == 200 and answer.headers["connection"] == "close"
    router.process.send_signal(signal.SIGTERM)  # of a kubelet whose hook was slow: it is asked once, not twice

    def is_closed():
        with socket.socket() as s:
            return s.connect_ex(("127.0.0.1", int(router.url.rsplit(":", 1)[1]))) != 0
    wait_for(is_closed, "the listener to close")
    assert router.process.poll() is None
    assert list(stream)[-1] == "[DONE]"
    assert router.process.wait(PATIENCE_S) == 0 and drain.wait(PATIENCE_S) == 0


def test_a_second_signal_ends_streams_with_an_error(programs, workers):
    router = programs(Router, *options(workers)).ready(2)
    stream = iter(events(router.url + "/v1/completions",
                         {"prompt": "x", "max_tokens": 100000, "stream": True, "ignore_eos": True}))
    next(stream)
    router.process.send_signal(signal.SIGTERM)
    wait_for(lambda: " router_draining" in router.log, "the drain to begin")
    assert router.stop(signal.SIGTERM) == 0
    assert list(stream)[-1]["error"]["code"] == "shutting_down"


def test_only_the_admin_key_may_end_it(programs, workers, tmp_path):
    (tmp_path / "keys").write_text("# of operators\nsecret\n")
    router = programs(Router, *options(workers, "--admin-api-key-file", tmp_path / "keys"))
    router.admin_url = f"http://127.0.0.1:{router.field('router_listening', 'admin_port')}"
    assert http(router.admin_url + "/drain", b"").code == 401
    ask = [BUILD / "incipit-router", "drain", "--admin-port", router.admin_url.rsplit(":", 1)[1]]
    denied = subprocess.run(ask, capture_output=True, text=True)
    assert denied.returncode == 1 and "401" in denied.stderr
    assert subprocess.run([*ask, "--admin-api-key-file", tmp_path / "keys"]).returncode == 0
    assert router.process.wait(PATIENCE_S) == 0


def test_a_draining_worker_costs_no_client_an_error(programs, workers):
    """Only its answers show it: probes are rare, nothing is shared, nothing is tried again."""
    router = programs(Router, *options(workers, "--max-retries", 0, "--probe-interval", "1h", "--policy", "round_robin"))
    router.ready(2)
    streams = [iter(events(router.url + "/v1/completions",
                           {"prompt": str(i), "max_tokens": 3000, "stream": True, "ignore_eos": True})) for i in range(2)]
    for stream in streams:
        next(stream)
    assert workers[0].post("/admin/drain", b"").code in (200, 202)
    for i in range(10):
        assert router.post("/v1/completions", {"prompt": str(i), "max_tokens": 1}).code == 200
    assert router.metric("incipit_retries_total", reason="worker_draining") == 1
    assert [w["failures_total"] for w in router.workers()["workers"]] == [0, 0]
    assert [list(stream)[-1] for stream in streams] == ["[DONE]"] * 2
    assert workers[0].process.wait(PATIENCE_S) == 0
