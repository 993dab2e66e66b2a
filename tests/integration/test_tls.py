"""TLS on both sides of the router: streams, keep-alive, certificates that change under load."""
import contextlib
import http.client
import json
import re
import shutil
import signal
import socket
import ssl
import subprocess
import threading
import time

import pytest

from conftest import PATIENCE_S, Router, Worker, http as plain_http, metric, wait_for

BODY = {"prompt": "What is written over TLS stays between us. " * 20, "max_tokens": 8}


class Certs:
    """One authority and what it signed, as files."""

    def __init__(self, folder):
        self.folder = folder
        self.make("ca", "-addext", "basicConstraints=critical,CA:TRUE", signed=False)

    def __getattr__(self, name):  # certs.ca -> FOLDER/ca.pem, certs.ca_key -> FOLDER/ca.key
        name, _, key = name.partition("_key")
        return str(self.folder / name) + (".key" if name + "_key" == name + _ else ".pem")

    def make(self, name, *more, signed=True):
        san = () if name == "ca" else ("-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost",
                                       "-addext", "basicConstraints=CA:FALSE")
        ca = ("-CA", f"{self.folder}/ca.pem", "-CAkey", f"{self.folder}/ca.key") if signed else ()
        subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes",
                        "-days", "30", "-subj", f"/CN={name}", "-keyout", f"{self.folder}/{name}.key",
                        "-out", f"{self.folder}/{name}.pem", *ca, *san, *more], check=True, capture_output=True)

    def copy(self, source, to):
        for ending in (".pem", ".key"):
            shutil.copy(f"{self.folder}/{source}{ending}", f"{self.folder}/{to}{ending}.new")
            (self.folder / f"{to}{ending}.new").rename(self.folder / f"{to}{ending}")


@pytest.fixture(scope="module")
def certs(tmp_path_factory):
    if not shutil.which("openssl"):
        pytest.skip("the openssl program is not installed")
    made = Certs(tmp_path_factory.mktemp("certs"))
    for name in ("one", "two", "worker", "client"):
        made.make(name)
    made.make("other", signed=False)
    return made


class Caller(http.client.HTTPSConnection):
    """A client that verifies its server."""

    def __init__(self, router, certs):
        port = int(router.field("router_listening", "port"))
        super().__init__("127.0.0.1", port, timeout=PATIENCE_S, context=ssl.create_default_context(cafile=certs.ca))

    def ask(self, **more):
        self.request("POST", "/v1/completions", json.dumps({**BODY, **more}), {"content-type": "application/json"})
        response = self.getresponse()
        body = response.read().decode()
        assert response.status == 200, body
        return body

    def whose(self):
        """The common name in the certificate that was shown."""
        if not self.sock:
            self.connect()
        return subject(self.sock)


def tls_worker(programs, certs, *args):
    worker = programs(Worker, "--backend", "sim", "--sim-speed", 20, "--ssl-certfile", certs.worker,
                      "--ssl-keyfile", certs.worker_key, *args)
    return worker, f"https://127.0.0.1:{worker.field('worker_ready', 'port')}"


def tls_router(programs, certs, url, *args, cert="one"):
    return programs(Router, "--tls-cert-path", f"{certs.folder}/{cert}.pem", "--tls-key-path",
                    f"{certs.folder}/{cert}.key", "--worker-ca", certs.ca, "--worker-urls", url, *args)


def test_requests_and_streams_over_tls_on_both_sides(programs, certs):
    worker, url = tls_worker(programs, certs)
    router = tls_router(programs, certs, url).ready(1)
    caller = Caller(router, certs)
    assert caller.whose() == "one"
    assert caller.sock.version() == "TLSv1.3"
    for _ in range(3):
        assert json.loads(caller.ask())["usage"]["completion_tokens"] == 8
    stream = caller.ask(stream=True)
    assert stream.count("data: ") > 2 and stream.endswith("data: [DONE]\n\n")
    caller.request("GET", "/health")
    assert caller.getresponse().read() is not None
    assert router.stop() == 0
    assert worker.stop() == 0


def test_large_bodies_go_through(programs, certs):
    """Bytes are counted by a scripted worker: the echo is what the client sent."""
    with Scripted(certs, echo) as worker:
        router = tls_router(programs, certs, worker.url).ready(1)
        caller = Caller(router, certs)
        prompt = "".join(chr(97 + i * 7 % 26) for i in range(2_000_000))
        assert json.loads(caller.ask(prompt=prompt))["prompt"] == prompt
        assert "x-forwarded-proto: https" in worker.heads[-1]
        assert len(worker.connections) <= 3  # probes and one for both requests
        assert json.loads(caller.ask(prompt="again"))["prompt"] == "again"
        assert router.stop() == 0


def test_certificates_change_under_load_without_a_request_lost(programs, certs):
    certs.copy("one", "live")
    _, url = tls_worker(programs, certs)
    router = tls_router(programs, certs, url, cert="live").ready(1)
    old = Caller(router, certs)
    assert old.whose() == "one"
    done, failures, ended = [0], [], threading.Event()

    def load(keep):
        caller = Caller(router, certs)
        while not ended.is_set():
            try:
                caller.ask(stream=keep)
                done[0] += 1
                if not keep:
                    caller.close()
            except Exception as error:
                failures.append(error)
                return

    threads = [threading.Thread(target=load, args=(i % 2 == 0,)) for i in range(6)]
    for thread in threads:
        thread.start()
    try:
        for name in ("two", "one", "two"):
            before = done[0]
            wait_for(lambda: done[0] > before + 10 or failures, "some requests")
            n = router.log.count("certificates_reloaded")
            certs.copy(name, "live")
            router.process.send_signal(signal.SIGHUP)
            wait_for(lambda: router.log.count("certificates_reloaded") == n + 2, "the reload")  # both sides
            with contextlib.closing(Caller(router, certs)) as fresh:
                assert fresh.whose() == name
        left_s = metric(plain_http(router.admin_url + "/metrics").body,
                        "incipit_tls_certificate_expiry_timestamp_seconds", side="clients") - time.time()
        assert 29 * 86400 < left_s < 31 * 86400
        n = router.log.count("certificates_reloaded")
        certs.copy("two", "live")  # renewed, without a signal
        wait_for(lambda: router.log.count("certificates_reloaded") == n + 2, "the reload")
        old.ask()  # still speaks with the first certificate
        assert old.whose() == "one"
        shutil.copy(certs.one_key, f"{certs.folder}/live.key")  # does not belong to the certificate
        router.process.send_signal(signal.SIGHUP)
        wait_for(lambda: "does not belong to certificate" in router.log, "a sentence about the key")
        with contextlib.closing(Caller(router, certs)) as fresh:
            assert fresh.whose() == "two"
            fresh.ask()
        old.ask()
    finally:
        ended.set()
        for thread in threads:
            thread.join()
    assert failures == []
    assert router.stop() == 0


def subject(sock):
    return dict(item[0] for item in sock.getpeercert()["subject"])["commonName"]


def test_a_worker_reads_its_certificate_again_too(programs, certs):
    certs.copy("one", "worker_live")
    worker = programs(Worker, "--backend", "sim", "--ssl-certfile", f"{certs.folder}/worker_live.pem", "--ssl-keyfile",
                      f"{certs.folder}/worker_live.key")
    address = ("127.0.0.1", int(worker.field("worker_ready", "port")))
    context = ssl.create_default_context(cafile=certs.ca)
    ask = lambda s: (s.sendall(b"GET /health HTTP/1.1\r\nhost: h\r\n\r\n"), s.recv(4096))[1]
    with context.wrap_socket(socket.create_connection(address), server_hostname="localhost") as old:
        assert subject(old) == "one" and ask(old).startswith(b"HTTP/1.1 200")
        certs.copy("two", "worker_live")
        worker.process.send_signal(signal.SIGHUP)
        wait_for(lambda: "certificates_reloaded" in worker.log, "the reload")
        with context.wrap_socket(socket.create_connection(address), server_hostname="localhost") as new:
            assert subject(new) == "two" and ask(new).startswith(b"HTTP/1.1 200")
        assert ask(old).startswith(b"HTTP/1.1 200")
    assert worker.stop() == 0


def test_a_ticket_of_one_loop_is_valid_at_all_loops(programs, certs):
    router = tls_router(programs, certs, "https://127.0.0.1:1", "--threads", 4)
    address = ("127.0.0.1", int(router.field("router_listening", "port")))
    context = ssl.create_default_context(cafile=certs.ca)
    session = None
    for i in range(12):
        with context.wrap_socket(socket.create_connection(address), server_hostname="localhost", session=session) as s:
            assert s.session_reused == (i > 0)
            s.sendall(b"GET /livez HTTP/1.1\r\nhost: h\r\n\r\n")
            assert s.recv(4096)
            session = s.session


def test_a_worker_that_wants_a_certificate_gets_one_or_gets_nothing(programs, certs):
    worker, url = tls_worker(programs, certs, "--ssl-ca-certs", certs.ca)
    router = tls_router(programs, certs, url, "--worker-cert", certs.client, "--worker-key", certs.client_key).ready(1)
    Caller(router, certs).ask()
    refused = tls_router(programs, certs, url, "--probe-interval", "50ms")
    refused.admin_url = f"http://127.0.0.1:{refused.field('router_listening', 'admin_port')}"
    wait_for(lambda: "worker_not_ready" in refused.log, "the reason")
    assert refused.n_healthy() == 0
    assert worker.process.poll() is None


@pytest.mark.parametrize("extra, healthy", [((), 0), (("--worker-tls-insecure",), 1)])
def test_a_worker_of_another_authority_is_rejected_unless_allowed(programs, certs, extra, healthy):
    worker = programs(Worker, "--backend", "sim", "--ssl-certfile", certs.other, "--ssl-keyfile", certs.other_key)
    url = f"https://127.0.0.1:{worker.field('worker_ready', 'port')}"
    router = tls_router(programs, certs, url, "--probe-interval", "50ms", *extra)
    router.admin_url = f"http://127.0.0.1:{router.field('router_listening', 'admin_port')}"
    if healthy:
        router.ready(1)
        Caller(router, certs).ask()
    else:
        wait_for(lambda: re.search(r"worker_not_ready .*certificate", router.log), "the reason")
        assert router.n_healthy() == 0
    assert ("workers_not_verified" in router.log) == bool(healthy)


def test_plain_http_on_the_tls_port_gets_a_clear_error(programs, certs):
    _, url = tls_worker(programs, certs)
    router = tls_router(programs, certs, url).ready(1)
    answer = plain_http(router.url + "/v1/completions", BODY)
    assert answer.code == 400 and "https://" in answer.json["error"]["message"]


def test_the_admin_port_has_the_certificate_when_others_can_reach_it(programs, certs, tmp_path):
    (tmp_path / "key").write_text("a-key-for-admins-alone")
    router = tls_router(programs, certs, "https://127.0.0.1:1", "--admin-host", "0.0.0.0", "--admin-api-key-file",
                        tmp_path / "key")
    port = int(router.field("router_listening", "admin_port"))
    assert plain_http(f"http://127.0.0.1:{port}/workers").code == 400
    admin = http.client.HTTPSConnection("127.0.0.1", port, timeout=PATIENCE_S,
                                        context=ssl.create_default_context(cafile=certs.ca))
    admin.request("GET", "/workers", headers={"authorization": "Bearer a-key-for-admins-alone"})
    assert admin.getresponse().status == 200


def test_files_that_cannot_be_used_end_the_start_with_a_sentence(programs, certs):
    for args, sentence in [
            (("--tls-cert-path", certs.one), "a certificate without its key"),
            (("--tls-cert-path", certs.one, "--tls-key-path", certs.two_key), "does not belong to certificate"),
            (("--worker-ca", "/nowhere"), "cannot read authorities /nowhere"),
            (("--worker-cert", certs.one), "a certificate without its key")]:
        router = programs(Router, "--worker-urls", "http://127.0.0.1:1", *args)
        assert router.process.wait(PATIENCE_S) != 0
        for reader in router.readers:
            reader.join(5)
        assert sentence in router.log and args[0] in router.log


# --- a scripted worker that speaks TLS -------------------------------------------------------------


class Scripted:
    """Answers probes as a foreign engine, and POSTs with `script(connection, head, body)`."""

    def __init__(self, certs, script):
        self.script, self.heads, self.connections = script, [], []
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.load_cert_chain(certs.worker, certs.worker_key)
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"https://127.0.0.1:{self.listener.getsockname()[1]}"
        threading.Thread(target=self.accept, daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.listener.close()

    def accept(self):
        while True:
            try:
                raw, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self.serve, args=(raw,), daemon=True).start()

    def serve(self, raw):
        with contextlib.suppress(OSError), self.context.wrap_socket(raw, server_side=True) as c:
            self.connections.append(c)
            data = b""
            while True:
                while b"\r\n\r\n" not in data:
                    more = c.recv(65536)
                    if not more:
                        return
                    data += more
                head, _, data = data.partition(b"\r\n\r\n")
                head = head.decode().lower()
                length = next((int(line[15:]) for line in head.split("\r\n") if line.startswith("content-length:")), 0)
                while len(data) < length:
                    data += c.recv(65536)
                body, data = data[:length], data[length:]
                if head.startswith("post"):
                    self.heads.append(head)
                    if self.script(c, head, body) is False:
                        return
                elif "/v1/models" in head:
                    answer(c, b'{"data":[{"id":"m","max_model_len":4096}]}')
                elif "/health" in head:
                    answer(c, b"")
                else:
                    answer(c, b"", 404)


def answer(c, body, code=200):
    c.sendall(b"HTTP/1.1 %d X\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%s" % (code, len(body), body))


def echo(c, head, body):
    answer(c, body)


def until_close_notify(c, head, body):
    c.sendall(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n" + body)
    c.unwrap()
    return False


def until_cut(c, head, body):
    c.sendall(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n" + body)
    socket.socket(fileno=c.detach()).close()  # FIN without close_notify: anyone on the path could do that
    return False


@pytest.mark.parametrize("script, is_whole", [(until_close_notify, True), (until_cut, False)])
def test_an_answer_that_ends_by_closing_is_whole_only_with_close_notify(programs, certs, script, is_whole):
    with Scripted(certs, script) as worker:
        router = tls_router(programs, certs, worker.url, "--max-retries", 0).ready(1)
        caller = Caller(router, certs)
        if is_whole:
            assert json.loads(caller.ask())["prompt"] == BODY["prompt"]
        else:
            with pytest.raises((http.client.HTTPException, OSError, AssertionError)):
                caller.ask()
