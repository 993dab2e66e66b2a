"""What is refused is counted by reason and seen in the log, however much of it there is; and who changed what."""
import re
import signal
import socket
import threading

import pytest

from conftest import PATIENCE_S, Router, http, metric, wait_for
from test_fleet import FAST, Scripted

KEY = "sk-alpha-3b1f9c5d"
BODY = {"prompt": "an unmistakable sentence about quinces", "max_tokens": 1}
LINE = re.compile(r" warn request_refused reason=(\S+) count=(\d+) seconds=(\d+) clients=\"(.*?)\" more_clients=(\w+)")


@pytest.fixture
def keyed(programs, sim, tmp_path):
    def start(*args):
        path = tmp_path / "keys"
        path.write_text(KEY + " rps=0.01\n")
        path.chmod(0o600)
        router = programs(Router, "--worker-urls", sim.url, "--api-keys-file", path, *args)
        router.url = f"http://127.0.0.1:{router.field('router_listening', 'port')}"
        router.admin_url = f"http://127.0.0.1:{router.field('router_listening', 'admin_port')}"
        wait_for(lambda: router.get("/readyz").code == 200, "the worker")
        return router
    return start


def refused(router, limit):
    return metric(http(router.admin_url + "/metrics").body, "incipit_requests_refused_total", limit=limit)


def lines(router):
    return [m.groups() for m in map(LINE.search, router.lines) if m]


def guess_keys(router, n, clients):
    """Each on one connection of its own, as fast as they are answered; from 127.0.0.2 and on."""
    port = int(router.url.rsplit(":", 1)[1])

    def guess(who):
        sent = 0
        while sent < n // clients:
            with socket.create_connection(("127.0.0.1", port), PATIENCE_S, source_address=(f"127.0.0.{who + 2}", 0)) as s:
                s.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer guess%d\r\nContent-Length: 2\r\n\r\n{}" % sent)
                answer = s.recv(65536)
                assert answer.startswith(b"HTTP/1.1 401 "), answer
            sent += 1

    threads = [threading.Thread(target=guess, args=(who,)) for who in range(clients)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()


def test_refused_forwards_are_counted_by_reason(keyed):
    router = keyed()
    headers = {"Authorization": f"Bearer {KEY}"}
    ask = lambda path, body: http(router.url + path, body, headers).code
    assert ask("/v1/things", b'{"prompt": "a"}') == 404
    assert ask("/v1/completions", b'{"prompt": "a", "kv_transfer_params": {}}') == 403
    assert ask("/v1/completions", b'{"prompt": "a", "cache_explain": true}') == 403
    counts = {limit: refused(router, limit) for limit in ("path", "forbidden", "model", "memory")}
    assert counts == {"path": 1, "forbidden": 2, "model": 0, "memory": 0}


def test_three_thousand_wrong_keys_are_counted_and_leave_few_lines_with_addresses(keyed):
    router = keyed()
    assert refused(router, "key-unknown") == 0
    guess_keys(router, 3000, 3)
    assert refused(router, "key-unknown") == 3000
    assert router.stop() == 0  # what has no line yet gets one
    found = [(int(count), clients) for reason, count, _, clients, _ in lines(router) if reason == "key-unknown"]
    assert sum(count for count, _ in found) == 3000 and 2 <= len(found) < 20
    assert found[0][0] == 1 and all(f"127.0.0.{who} (" in found[-1][1] or len(found) > 2 for who in (2, 3, 4))
    assert "guess" not in router.log


def test_each_reason_is_counted_by_its_name_and_has_a_line(keyed, monkeypatch):
    monkeypatch.setenv("INCIPIT_ADMIN_API_KEY", "boss")
    router = keyed()
    key, boss = {"Authorization": "Bearer " + KEY}, {"Authorization": "Bearer boss"}
    post = lambda body, headers, path="/v1/completions": router.post(path, body, headers=headers).code
    assert post(BODY, {}) == 401 and post(BODY, {"Authorization": "Bearer no"}) == 401
    assert post({"prompt": "a", "model": "nobody's"}, key) == 404 and post(BODY, key) == 429
    assert http(router.admin_url + "/workers").code == 401
    assert http(router.admin_url + "/workers", headers={"Authorization": "Bearer no"}).code == 401
    assert http(router.url + "/flush_cache", b"", headers=boss).code == 403
    assert http(router.admin_url + "/no/such/path", headers=boss).code == 404
    assert post(b"{", {"Authorization": "Bearer " + KEY, "x-other": "1"}) == 400
    reasons = {"key-missing", "key-unknown", "model", "key", "admin-key-missing", "admin-key-unknown", "admin-port", "path", "body"}
    for reason in reasons:
        assert refused(router, reason) == 1, reason
    assert {reason for reason, *_ in lines(router)} == reasons
    for reason, count, seconds, clients, more in lines(router):
        assert (count, seconds, clients, more) == ("1", "0", "127.0.0.1 (1)", "false"), reason


@pytest.fixture
def two_workers():
    workers = [Scripted() for _ in range(2)]
    yield workers
    for worker in workers:
        worker.close()


CHANGE = re.compile(r' info admin_change call="?([^"=]*?)"? worker="?(\S*?)"? code=(\d+) key="?([^"=]*?)"? client=(\S+)')


def changes(router):
    return [m.groups() for m in map(CHANGE.search, router.lines) if m]


def test_admin_changes_are_logged_with_key_and_address(programs, two_workers, tmp_path):
    a, b = two_workers
    keys = tmp_path / "admin-keys"
    keys.write_text("named tenant=ops\nplain\n")
    keys.chmod(0o600)
    router = programs(Router, "--worker-urls", a.url, "--admin-api-key-file", keys, "--admin-on-main", *FAST)
    router.url = f"http://127.0.0.1:{router.field('router_listening', 'port')}"
    admin = f"http://127.0.0.1:{router.field('router_listening', 'admin_port')}"
    ops, plain = ({"Authorization": "Bearer " + key} for key in ("named", "plain"))
    wait_for(lambda: http(admin + "/readyz").code == 200, "the worker")
    added = http(admin + "/workers", {"url": b.url}, headers=ops)
    where = added.json["location"]
    wait_for(lambda: http(admin + where, headers=ops).json["is_healthy"], "the new worker")
    assert http(router.url + where, {"draining": True}, headers=plain, method="PATCH").code == 202
    assert http(router.url + "/flush_cache", b"", headers=plain).code == 200
    assert http(admin + where, headers=ops, method="DELETE").code == 202
    assert http(admin + "/remove_worker?url=http://127.0.0.1:1", b"", headers=plain).code == 404
    assert http(admin + where, headers={"Authorization": "Bearer wrong"}, method="DELETE").code == 401
    router.process.send_signal(signal.SIGHUP)
    assert http(admin + "/drain", b"", headers=ops).code == 202
    assert router.process.wait(PATIENCE_S) == 0
    wait_for(lambda: len(changes(router)) >= 7, "a line for each change")
    assert sorted(changes(router)) == sorted([
        ("POST /workers", b.url, "202", "ops", "127.0.0.1"),
        ("PATCH " + where, b.url, "202", "line 2", "127.0.0.1"),
        ("POST /flush_cache", "", "200", "line 2", "127.0.0.1"),
        ("DELETE " + where, b.url, "202", "ops", "127.0.0.1"),
        ("POST /remove_worker", "", "404", "line 2", "127.0.0.1"),
        ("SIGHUP", "", "0", "none", "signal"),
        ("POST /drain", "", "202", "ops", "127.0.0.1")])
    assert "plain" not in router.log and "named" not in router.log


def test_admin_changes_are_never_left_out(programs, two_workers):
    a, b = two_workers
    router = programs(Router, "--worker-urls", a.url, "--log-rate", 1, *FAST).ready(1)
    for _ in range(10):
        assert http(router.admin_url + f"/add_worker?url={b.url}", b"").code == 200
        assert http(router.admin_url + f"/remove_worker?url={b.url}", b"").code == 200
        wait_for(lambda: http(router.admin_url + "/list_workers").json["urls"] == [a.url], "the worker to go")
    assert router.stop() == 0
    found = [c for c in changes(router) if c[0] != "SIGTERM"]
    assert len(found) == 20 and all(c[1:] == (b.url, "200", "none", "127.0.0.1") for c in found)
