"""Workers that come and go while the router runs: the admin API, files, keys."""
import http.server as servers
import json
import os
import signal
import socket
import subprocess
import threading
import urllib.parse

import pytest

from conftest import BUILD, PATIENCE_S, Router, Worker, events, http, wait_for

PROMPT = {"prompt": "Gallia est omnis divisa in partes tres", "max_tokens": 2}
KEY = {"Authorization": "Bearer open-sesame"}


class Scripted:
    """A worker with scripted answers. Requests wait while `gate` is closed."""

    def __init__(self, model="m"):
        self.load = "running=0 waiting=0 queued_tokens=0 kv_free=9 kv_total=9 draining=0"
        self.healthy, self.flushes, self.served = True, [], 0
        self.flush_path = "/flush_cache"
        self.gate = threading.Event()
        self.gate.set()
        me = self

        class Handler(servers.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def reply(self, code, body=b"", **headers):
                self.send_response(code)
                for name, value in headers.items():
                    self.send_header(name.replace("_", "-"), value)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def do_GET(self):
                if self.path == "/server_info":
                    self.reply(200, json.dumps({"wire": 1, "model": model, "backend": "scripted", "block_size": 16,
                                                "n_blocks": 1000, "generation": "g1"}).encode())
                else:
                    self.reply(200 if me.healthy else 503)

            def do_POST(self):
                self.rfile.read(int(self.headers.get("content-length", 0)))
                if self.path.startswith("/v1/"):
                    me.gate.wait(30)
                    me.served += 1
                    self.reply(200, b'{"ok":true}', x_incipit_load=me.load, x_incipit_prompt_tokens="9",
                               x_incipit_cached_tokens="0")
                elif self.path == me.flush_path:
                    me.flushes.append(self.path)
                    self.reply(200)
                else:
                    self.reply(404)

            def log_message(self, *_):
                pass

        class Server(servers.ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 128

        self.server = Server(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True).start()

    def close(self):
        self.gate.set()
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture
def scripted():
    started = []

    def start(n):
        new = [Scripted() for _ in range(n)]
        started.extend(new)
        return new

    yield start
    for worker in started:
        worker.close()


FAST = ("--probe-interval", "50ms")


def admin(router, path, body=None, **more):
    return http(router.admin_url + path, body, **more)


def urls(router):
    return sorted(admin(router, "/list_workers").json["urls"])


def nothing_is_left(router):
    wait_for(lambda: router.workers()["stats"]["total_load"] == 0, "the load to be given back")


def refused_start(*args, env=None):
    done = subprocess.run([str(BUILD / "incipit-router"), "--port", "0", "--admin-port", "0", *args],
                          capture_output=True, text=True, timeout=40, env={**os.environ, **(env or {})})
    assert done.returncode == 2, done.stderr
    return done.stderr


def test_workers_are_added_looked_at_changed_and_removed(programs, scripted):
    a, b = scripted(2)
    router = programs(Router, "--worker-urls", a.url, *FAST).ready(1)
    added = admin(router, "/workers", {"url": b.url + "/", "labels": {"zone": "x"}, "max_in_flight": 7,
                                       "worker_type": "regular", "priority": 50})
    assert added.code == 202 and added.json["url"] == b.url
    where = added.headers["location"]
    assert where == added.json["location"] == "/workers/" + added.json["worker_id"]
    assert admin(router, "/workers", {"url": b.url}).code == 409
    wait_for(lambda: admin(router, where).json["is_healthy"], "the new worker to describe itself")
    one = admin(router, where).json
    assert one["labels"] == {"zone": "x"} and one["max_in_flight"] == 7 and one["status"] == "ready"
    assert admin(router, "/workers/" + urllib.parse.quote(b.url, safe="")).json == one
    assert admin(router, f"/workers/{one['id']}").json == one

    changed = admin(router, where, {"draining": True, "labels": {"zone": "y"}}, method="PATCH")
    assert changed.code == 202
    one = admin(router, where).json
    assert one["status"] == "draining" and one["labels"] == {"zone": "y"} and one["max_in_flight"] == 7
    for _ in range(4):
        assert router.post("/v1/completions", PROMPT).code == 200
    assert b.served == 0 and a.served == 4
    assert admin(router, where, {"draining": False}, method="PUT").code == 202
    assert admin(router, where).json["status"] == "ready"

    gone = admin(router, where, method="DELETE")
    assert gone.code == 202 and gone.json["status"] == "draining"
    wait_for(lambda: urls(router) == [a.url], "the worker to go")
    assert admin(router, where).code == 404 and admin(router, where, method="DELETE").code == 404
    again = admin(router, "/workers", {"url": b.url}).json["worker_id"]
    assert again != added.json["worker_id"], "an id names one worker, not its successor"
    assert admin(router, where, method="DELETE").code == 404
    nothing_is_left(router)


def test_a_removed_worker_finishes_its_requests(programs, scripted):
    a, b = scripted(2)
    router = programs(Router, "--worker-urls", a.url, b.url, "--policy", "round_robin", *FAST).ready(2)
    a.gate.clear()
    b.gate.clear()
    answers = []
    clients = [threading.Thread(target=lambda: answers.append(router.post("/v1/completions", PROMPT).code))
               for _ in range(4)]
    for client in clients:
        client.start()
    wait_for(lambda: router.workers()["stats"]["total_load"] == 4, "four requests to be under way")
    assert admin(router, "/workers/0", method="DELETE").json["message"] == "2 requests in flight may finish"
    assert router.n_healthy() == 1 and len(urls(router)) == 2
    b.gate.set()
    for _ in range(3):
        assert router.post("/v1/completions", PROMPT).code == 200
    assert a.served == 0
    a.gate.set()
    for client in clients:
        client.join()
    assert answers == [200] * 4 and a.served == 2
    wait_for(lambda: urls(router) == [b.url], "the worker to go")
    nothing_is_left(router)


def test_forced_removal_does_not_wait(programs, scripted):
    a, b = scripted(2)
    router = programs(Router, "--worker-urls", a.url, b.url, "--policy", "round_robin", *FAST).ready(2)
    a.gate.clear()
    answers = []
    clients = [threading.Thread(target=lambda: answers.append(router.post("/v1/completions", PROMPT).code))
               for _ in range(2)]
    for client in clients:
        client.start()
    wait_for(lambda: router.workers()["workers"][0]["load"] == 1, "it to be busy")
    assert admin(router, "/workers/0?force=true", method="DELETE").json["status"] == "removed"
    assert urls(router) == [b.url]
    a.gate.set()
    for client in clients:
        client.join()
    assert answers == [200] * 2
    nothing_is_left(router)


def test_the_calls_of_sglang_router(programs, scripted):
    a, b = scripted(2)
    router = programs(Router, "--worker-urls", a.url, "--admin-on-main", *FAST).ready(1)
    answer = http(router.url + "/add_worker?url=" + urllib.parse.quote(b.url, safe=""), b"", method="POST")
    assert answer.code == 200 and answer.body == f"Successfully added worker: {b.url}"
    wait_for(lambda: router.n_healthy() == 2, "both")
    assert sorted(router.get("/list_workers").json["urls"]) == sorted([a.url, b.url])
    loads = router.get("/get_loads").json
    assert [w["worker"] for w in loads["workers"]] == [a.url, b.url] and loads["workers"][0]["load"] == 0
    answer = http(router.url + "/remove_worker?url=" + a.url, b"", method="POST")
    assert answer.code == 200 and a.url in answer.body
    wait_for(lambda: urls(router) == [b.url], "it to go")
    assert http(router.url + "/remove_worker?url=" + a.url, b"", method="POST").code == 404
    assert http(router.url + "/add_worker", b"", method="POST").code == 400
    assert http(router.url + "/add_worker?url=" + b.url).code == 405
    assert router.get("/health_generate").code == 200
    assert router.get("/get_model_info").json["model_path"] == "m"


@pytest.mark.parametrize("body, code, words", [
    (b"", 400, "JSON"), (b"[]", 400, "http://host:port"), ({}, 400, "url"), ({"url": 3}, 400, "url"),
    ({"url": "127.0.0.1:1"}, 400, "http://host:port"), ({"url": "http://a@127.0.0.1:1"}, 400, "http://host:port"),
    ({"url": "http://127.0.0.1:1/x"}, 400, "http://host:port"),
    ({"url": "http://169.254.169.254:80"}, 403, "metadata"), ({"url": "http://2852039166:80"}, 403, "metadata"),
    ({"url": "http://[::ffff:169.254.169.254]:80"}, 403, "metadata"), ({"url": "http://8.8.8.8:80"}, 403, "--worker-allow-cidr"),
    ({"url": "http://no-such-host.invalid:80"}, 400, "no-such-host.invalid"),
    ({"url": "http://127.0.0.1:1", "worker_type": "encode"}, 501, "prefill"),
    ({"url": "http://127.0.0.1:1", "worker_type": "prefill", "bootstrap_port": 65536}, 400, "bootstrap_port"),
    ({"url": "http://127.0.0.1:1", "worker_type": "prefill", "kv_connector": "a b"}, 400, "kv_connector=a b"),
    ({"url": "http://127.0.0.1:1", "connection_mode": "grpc"}, 501, "http"),
    ({"url": "http://127.0.0.1:1", "labels": 5}, 400, "labels"),
    ({"url": "http://127.0.0.1:1", "labels": {"a": 1}}, 400, "string"),
    ({"url": "http://127.0.0.1:1", "labels": {"a b": "1"}}, 400, "key=value"),
    ({"url": "http://127.0.0.1:1", "labels": {"a": "b" * 300}}, 413, "have room for"),
    ({"url": "http://127.0.0.1:1", "max_in_flight": -1}, 400, "max_in_flight"),
])
def test_a_faulty_new_worker_is_reported_with_the_reason(programs, scripted, body, code, words):
    (a,) = scripted(1)
    router = programs(Router, "--worker-urls", a.url).ready(1)
    answer = admin(router, "/workers", body)
    assert answer.code == code and words in answer.json["error"]["message"], answer.body
    assert urls(router) == [a.url]


def test_networks_are_opened_by_name(programs, scripted):
    a, b = scripted(2)
    router = programs(Router, "--worker-urls", a.url, "--worker-allow-cidr", "10.0.0.0/8", "203.0.113.0/24").ready(1)
    assert admin(router, "/workers", {"url": b.url}).code == 403
    assert admin(router, "/workers", {"url": "http://203.0.113.9:80"}).code == 202
    assert "10.0.0.0/8" in refused_start("--worker-urls", a.url, "--worker-allow-cidr", "10.0.0")


def test_a_redirect_is_not_followed(programs, scripted):
    """A worker that sends probes elsewhere is not described by what is there."""
    (a,) = scripted(1)
    seen = []

    class Handler(servers.BaseHTTPRequestHandler):
        def do_GET(self):
            seen.append(self.path)
            self.send_response(302)
            self.send_header("location", a.url + self.path)
            self.end_headers()

        def log_message(self, *_):
            pass

    server = servers.HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    try:
        router = programs(Router, "--worker-urls", a.url, *FAST).ready(1)
        where = admin(router, "/workers", {"url": f"http://127.0.0.1:{server.server_address[1]}"}).headers["location"]
        wait_for(lambda: len(seen) >= 3, "three probes")
        assert admin(router, where).json["status"] == "pending" and router.n_healthy() == 1
    finally:
        server.shutdown()
        server.server_close()


def test_a_cache_is_flushed_everywhere(programs, scripted):
    a, b, c = scripted(3)
    b.flush_path = "/reset_prefix_cache"
    router = programs(Router, "--worker-urls", a.url, b.url, *FAST).ready(2)
    for _ in range(4):
        router.post("/v1/completions", PROMPT)
    assert router.workers()["stats"]["index_entries"] > 0
    answer = admin(router, "/flush_cache", b"")
    assert answer.code == 200 and answer.json["workers_flushed"] == 2, answer.body
    assert a.flushes == ["/flush_cache"] and b.flushes == ["/reset_prefix_cache"]
    assert router.workers()["stats"]["index_entries"] == 0
    c.flush_path = "/never"
    admin(router, "/workers", {"url": c.url})
    answer = admin(router, "/flush_cache", b"")
    assert answer.code == 207 and answer.json["status"] == "partial_success"
    assert [w["why"] for w in answer.json["workers"] if not w["flushed"]] == ["it answered 404"]


def test_a_file_is_followed(programs, scripted, tmp_path):
    a, b, c = scripted(3)
    path = tmp_path / "workers"
    path.write_text(f"{a.url}  zone=a\n{b.url}  # the second\n")
    router = programs(Router, "--worker-file", path, *FAST).ready(2)
    assert router.workers()["workers"][0]["labels"] == {"zone": "a"}
    answer = admin(router, "/workers/0", method="DELETE")
    assert answer.code == 409 and "--worker-file" in answer.json["error"]["message"]

    path.write_text(f"{b.url}\n{c.url} max_in_flight=3\n")
    router.process.send_signal(signal.SIGHUP)
    wait_for(lambda: urls(router) == sorted([b.url, c.url]), "the signal to be followed")
    wait_for(lambda: router.n_healthy() == 2, "the new one to be ready")

    path.write_text(f"{b.url}\nrubbish\n")
    router.process.send_signal(signal.SIGHUP)
    wait_for(lambda: " worker_file_refused " in router.log, "the complaint")
    assert f"{path} line 2" in router.log and "mend the file" in router.log
    assert urls(router) == sorted([b.url, c.url])

    other = tmp_path / "new"
    other.write_text(f"{c.url}\n")
    other.rename(path)
    wait_for(lambda: urls(router) == [c.url], "the renamed file to be noticed")
    assert router.post("/v1/completions", PROMPT).code == 200
    nothing_is_left(router)


def test_workers_come_and_go_under_load(programs, scripted, tmp_path):
    workers = scripted(4)
    path = tmp_path / "workers"
    path.write_text(workers[0].url + "\n")
    router = programs(Router, "--worker-file", path, "--policy", "round_robin", "--threads", 2, *FAST).ready(1)
    codes, stop = [], threading.Event()

    def client():
        while not stop.is_set():
            codes.append(router.post("/v1/completions", PROMPT).code)

    clients = [threading.Thread(target=client) for _ in range(6)]
    for each in clients:
        each.start()
    try:
        for chosen in ([0, 1], [1, 2, 3], [3], [0, 1, 2, 3], [2]):
            path.write_text("".join(workers[i].url + "\n" for i in chosen))
            router.process.send_signal(signal.SIGHUP)
            wait_for(lambda: urls(router) == sorted(workers[i].url for i in chosen), f"{chosen}")
            wait_for(lambda: router.n_healthy() == len(chosen), f"{chosen} to be healthy")
    finally:
        stop.set()
        for each in clients:
            each.join()
    assert set(codes) == {200}, {code: codes.count(code) for code in set(codes)}
    nothing_is_left(router)


# --- silence, and the end ------------------------------------------------------------------------------


def test_requests_waiting_for_a_stopped_worker_are_answered_by_another(programs, scripted):
    (a,) = scripted(1)
    stopped = programs(Worker, "--backend", "sim", "--sim-speed", 20, "--served-model-name", "m").ready()
    router = programs(Router, "--worker-urls", stopped.url, "--policy", "round_robin", "--probe-interval", "50ms",
                      "--probe-timeout", "100ms").ready(1)
    assert router.post("/v1/completions", PROMPT).code == 200
    os.kill(stopped.process.pid, signal.SIGSTOP)
    try:
        answers = []
        clients = [threading.Thread(target=lambda: answers.append(router.post("/v1/completions", PROMPT).code))
                   for _ in range(12)]
        for client in clients:
            client.start()
        admin(router, "/workers", {"url": a.url})
        for client in clients:
            client.join()
        assert answers == [200] * 12 and a.served == 12
    finally:
        os.kill(stopped.process.pid, signal.SIGCONT)
    wait_for(lambda: router.n_healthy() == 2, "it to come back")
    nothing_is_left(router)


def test_a_worker_that_reports_draining_gets_no_requests(programs, scripted):
    a, b = scripted(2)
    router = programs(Router, "--worker-urls", a.url, b.url, "--policy", "round_robin", "--probe-interval", "1h").ready(2)
    a.load = a.load.replace("draining=0", "draining=1")
    wait_for(lambda: router.post("/v1/completions", PROMPT).code == 200 and a.served, "it to be asked")
    assert [w["status"] for w in router.workers()["workers"]] == ["draining", "ready"]
    assert router.workers()["workers"][0]["reported"]["draining"] is True
    served = a.served
    for _ in range(6):
        assert router.post("/v1/completions", PROMPT).code == 200
    assert a.served == served
    nothing_is_left(router)


def test_on_sigterm_it_still_serves_for_a_while(programs, scripted):
    (a,) = scripted(1)
    router = programs(Router, "--worker-urls", a.url, "--drain-settle", "10m").ready(1)
    router.process.send_signal(signal.SIGTERM)
    wait_for(lambda: http(router.admin_url + "/readyz").code == 503, "it to report that it drains")
    for _ in range(3):
        answer = router.post("/v1/completions", PROMPT)
        assert answer.code == 200 and answer.headers["connection"] == "close"
    assert router.stop(signal.SIGTERM) == 0


def test_streams_that_outlast_the_drain_get_an_error(programs):
    worker = programs(Worker, "--backend", "sim", "--sim-speed", 0.2).ready()
    router = programs(Router, "--worker-urls", worker.url, "--drain-timeout", "200ms").ready(1)
    seen = []
    for event in events(router.url + "/v1/completions", {"prompt": "a", "max_tokens": 10000, "stream": True}):
        if not seen:
            router.process.send_signal(signal.SIGTERM)
        seen.append(event)
    assert seen[-1]["error"]["code"] == "shutting_down"
    assert router.process.wait(40) == 0


# --- who may ------------------------------------------------------------------------------------------


def test_an_admin_key_is_required_for_changes_and_reports(programs, scripted, tmp_path, monkeypatch):
    (a,) = scripted(1)
    keys = tmp_path / "keys"
    keys.write_text("open-sesame\n")
    keys.chmod(0o644)
    monkeypatch.setenv("INCIPIT_ADMIN_API_KEY", "from-the-environment")
    router = programs(Router, "--worker-urls", a.url, "--admin-api-key-file", keys, "--admin-on-main")
    router.url = f"http://127.0.0.1:{router.field('router_listening', 'port')}"
    router.admin_url = f"http://127.0.0.1:{router.field('router_listening', 'admin_port')}"
    wait_for(lambda: router.get("/readyz").code == 200, "the worker")
    assert "key_file_is_world_readable" in router.log and "chmod 600" in router.log
    for base in (router.url, router.admin_url):
        for path in ("/readyz", "/livez", "/health", "/version", "/v1/models", "/health_generate"):
            assert http(base + path).code == 200, path
        for path in ("/workers", "/list_workers", "/get_loads", "/workers/0", "/workers/9"):
            assert http(base + path).code == 401, path
            assert http(base + path, headers={"Authorization": "Bearer nonsense"}).code == 401
        for method, path in (("POST", "/workers"), ("POST", "/flush_cache"), ("DELETE", "/workers/0"),
                             ("PATCH", "/workers/0"), ("POST", "/add_worker?url=" + a.url)):
            answer = http(base + path, b"{}", method=method)
            assert answer.code == 401 and answer.headers["www-authenticate"] == "Bearer", path
            assert "admin key" in answer.json["error"]["message"]
        assert http(base + "/workers", headers=KEY).code == 200
        assert http(base + "/workers", headers={"x-api-key": "from-the-environment"}).code == 200
        assert http(base + "/flush_cache", b"", headers=KEY).code == 200
    assert http(router.admin_url + "/metrics").code == 200 and router.get("/metrics").code == 401
    assert router.get("/metrics", headers=KEY).code == 200
    assert "open-sesame" not in router.log and "from-the-environment" not in router.log
    keys.write_text("another\n")
    router.process.send_signal(signal.SIGHUP)
    wait_for(lambda: http(router.admin_url + "/workers", headers=KEY).code == 401, "the key to be withdrawn")
    assert http(router.admin_url + "/workers", headers={"Authorization": "Bearer another"}).code == 200


def test_an_api_key_is_no_admin_key(programs, scripted, monkeypatch):
    (a,) = scripted(1)
    monkeypatch.setenv("INCIPIT_API_KEY", "client")
    monkeypatch.setenv("INCIPIT_ADMIN_API_KEY", "admin")
    router = programs(Router, "--worker-urls", a.url, "--admin-on-main")
    router.url = f"http://127.0.0.1:{router.field('router_listening', 'port')}"
    wait_for(lambda: router.get("/readyz").code == 200, "the worker")
    client, boss = ({"Authorization": "Bearer " + key} for key in ("client", "admin"))
    assert router.post("/v1/completions", PROMPT, headers=client).code == 200
    assert router.post("/v1/completions", PROMPT, headers=boss).code == 401
    assert router.get("/workers", headers=client).code == 401
    assert router.get("/workers", headers=boss).code == 200


def test_the_client_port_changes_nothing_unless_allowed(programs, scripted):
    a, b = scripted(2)
    router = programs(Router, "--worker-urls", a.url).ready(1)
    for method, path in (("POST", "/workers"), ("DELETE", "/workers/0"), ("POST", "/flush_cache"),
                         ("POST", "/add_worker?url=" + b.url)):
        answer = http(router.url + path, b"{}", method=method)
        assert answer.code == 403 and "--admin-on-main" in answer.json["error"]["message"], path
    assert router.workers()["total"] == 1 and http(router.admin_url + "/workers/0").json["url"] == a.url


def test_the_client_port_shows_nothing_of_the_fleet(programs, scripted, tmp_path):
    (a,) = scripted(1)
    (tmp_path / "keys").write_text("sk-one\nsk-two\n")
    client = {"Authorization": "Bearer sk-one"}
    for args in ((), ("--api-keys-file", tmp_path / "keys")):
        router = programs(Router, "--worker-urls", a.url, *args).ready(1)
        for path in ("/workers", "/workers/0", "/list_workers", "/get_loads", "/metrics", "/ui", "/config", "/debug/route", "/debug/x"):
            answer = router.get(path, headers=client)
            assert answer.code == 403 and "admin port" in answer.json["error"]["message"], path
            assert a.url not in answer.body and http(router.admin_url + path).code in (200, 404, 405), path
        assert router.post("/debug/route", {"prompt": "a"}, headers=client).code == 403
        assert router.get("/get_server_info", headers=client).code == 404
    open_to_all = programs(Router, "--worker-urls", a.url, "--admin-on-main").ready(1)
    for path in ("/workers", "/workers/0", "/list_workers", "/get_loads", "/metrics"):
        assert open_to_all.get(path).code == 200, path


def test_an_unauthorized_request_is_refused_before_its_body(programs, scripted, monkeypatch):
    (a,) = scripted(1)
    monkeypatch.setenv("INCIPIT_API_KEY", "client")
    monkeypatch.setenv("INCIPIT_ADMIN_API_KEY", "admin")
    router = programs(Router, "--worker-urls", a.url, "--admin-on-main")
    for name in ("port", "admin_port"):
        with socket.create_connection(("127.0.0.1", int(router.field("router_listening", name))), PATIENCE_S) as s:
            s.sendall(b"POST /workers HTTP/1.1\r\nHost: a\r\nContent-Length: 30000000\r\n\r\n{")
            assert s.recv(65536).startswith(b"HTTP/1.1 401 "), name


def test_a_web_page_cannot_change_the_fleet(programs, scripted):
    a, b = scripted(2)
    router = programs(Router, "--worker-urls", a.url).ready(1)
    for origin in ("http://evil.example", "null", router.admin_url.replace("http", "https") + "0"):
        assert admin(router, "/add_worker?url=" + b.url, b"", headers={"Origin": origin}).code == 403
    port = router.admin_url.rsplit(":", 1)[1]
    for name, code in (("evil.example", 403), ("localhost", 409), ("127.0.0.1", 409)):  # whose name may point here
        headers = {"Origin": f"http://{name}:{port}", "Host": f"{name}:{port}"}
        assert admin(router, "/add_worker?url=" + a.url, b"", headers=headers).code == code, name
    assert urls(router) == [a.url]
    assert admin(router, "/add_worker?url=" + b.url, b"", headers={"Origin": router.admin_url}).code == 200


@pytest.mark.parametrize("args, words", [
    ((), "--worker-urls http://host:port"),
    (("--worker-urls", "127.0.0.1:1"), "http://host:port"),
    (("--worker-urls", "http://127.0.0.1:1", "http://127.0.0.1:1"), "twice"),
    (("--worker-urls", "http://127.0.0.1:1", "--admin-host", "0.0.0.0"), "INCIPIT_ADMIN_API_KEY"),
    (("--worker-urls", "http://127.0.0.1:1", "--admin-on-main", "--host", "0.0.0.0"), "INCIPIT_ADMIN_API_KEY"),
    (("--worker-urls", "http://127.0.0.1:1", "--admin-api-key", "secret"), "INCIPIT_ADMIN_API_KEY"),
    (("--worker-urls", "http://127.0.0.1:1", "--admin-api-key-file", "/nonexistent"), "/nonexistent"),
    (("--worker-file", "/nonexistent"), "/nonexistent"),
    (("--worker-urls", "http://127.0.0.1:1", "--probe-path", "health"), "is not a path"),
])
def test_starts_that_are_refused(args, words):
    errors = refused_start(*args)
    assert words in errors, errors
    assert "secret" not in errors.replace("is a secret", ""), errors


def test_admin_on_main_is_no_way_around_api_keys():
    errors = refused_start("--worker-urls", "http://127.0.0.1:1", "--admin-on-main", env={"INCIPIT_API_KEY": "k"})
    assert "INCIPIT_ADMIN_API_KEY" in errors


def test_with_an_admin_key_a_fleet_may_begin_empty(programs, scripted, monkeypatch):
    (a,) = scripted(1)
    monkeypatch.setenv("INCIPIT_ADMIN_API_KEY", "open-sesame")
    router = programs(Router, *FAST)
    router.url = f"http://127.0.0.1:{router.field('router_listening', 'port')}"
    router.admin_url = f"http://127.0.0.1:{router.field('router_listening', 'admin_port')}"
    assert router.post("/v1/completions", PROMPT).code == 503
    assert admin(router, "/workers", {"url": a.url}, headers=KEY).code == 202
    wait_for(lambda: router.get("/readyz").code == 200, "the worker")
    assert router.post("/v1/completions", PROMPT).code == 200
