"""The scripted Kubernetes API server itself: it must be what it pretends to be, or the tests upon it prove nothing.

What is seen here is seen by clients that are not ours: a few lines over ssl.MemoryBIO that see each TLS record, kubectl,
and the Python Kubernetes client where they are installed.
"""
import contextlib
import json
import os
import shutil
import socket
import ssl
import subprocess
import threading

import pytest

from conftest import wait_for
from kube_api import ApiServer, LiveSet, kubeconfig, pod

PODS = "/api/v1/namespaces/default/pods"


@pytest.fixture
def api():
    server = ApiServer()
    yield server
    server.stop()


class Wire:
    """One TLS connection, seen record by record: `records` are their sizes, `text` what was in them."""

    def __init__(self, server):
        self.raw = socket.create_connection(("127.0.0.1", server.port), timeout=10)
        context = ssl.create_default_context(cafile=server.ca)
        self.incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = context.wrap_bio(self.incoming, self.outgoing, server_hostname="127.0.0.1")
        self.bytes, self.text, self.records, self.end = b"", b"", [], None
        while True:
            try:
                self.tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                self._flush()
                self._more()
        self._flush()

    def _flush(self):
        self.raw.sendall(self.outgoing.read())

    def _more(self):
        try:
            got = self.raw.recv(65536)
        except ConnectionResetError:
            self.end = "reset"
            return
        if not got:
            self.end = "eof"
        self.bytes += got
        while len(self.bytes) >= 5 and len(self.bytes) >= 5 + int.from_bytes(self.bytes[3:5], "big"):
            size = int.from_bytes(self.bytes[3:5], "big")
            if self.bytes[0] == 23:  # application data
                self.records.append(size)
            self.incoming.write(self.bytes[:5 + size])
            self.bytes = self.bytes[5 + size:]

    def ask(self, target, token=""):
        self.records.clear()
        self.text = b""
        self.tls.write(f"GET {target} HTTP/1.1\r\nHost: x\r\n{token and f'Authorization: Bearer {token}'}\r\n\r\n"
                       .replace("\r\n\r\n\r\n", "\r\n\r\n").encode())
        self._flush()
        return self

    def until(self, done):
        """Reads until done(text) or the end; the text."""
        while not done(self.text) and not self.end:
            try:
                got = self.tls.read(65536)
                if not got:
                    self.end = "close_notify"
                self.text += got
            except ssl.SSLWantReadError:
                self._more()
            except ssl.SSLEOFError:
                self.end = "eof"
        return self.text

    def answer(self):
        """Code, headers and JSON of an answer that ends."""
        def whole(text):
            head, split, body = text.partition(b"\r\n\r\n")
            if not split:
                return False
            if b"chunked" in head:
                return body.endswith(b"0\r\n\r\n")
            return len(body) >= int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
        head, _, body = self.until(whole).partition(b"\r\n\r\n")
        if b"chunked" in head:
            body = b"".join(chunks(body))
        return int(head.split()[1]), head.decode(), json.loads(body)


def chunks(body):
    """The chunks of a body, as far as they are whole."""
    out = []
    while b"\r\n" in body:
        size, _, rest = body.partition(b"\r\n")
        n = int(size, 16)
        if n == 0 or len(rest) < n + 2:
            break
        out.append(rest[:n])
        body = rest[n + 2:]
    return out


def test_an_event_is_cut_into_chunks_of_2_kib_and_records_of_4_kib_that_end_anywhere(api):
    wire = Wire(api)
    rv = api.command("put", object=pod("first", "127.0.0.2"))["rv"]
    wire.ask(f"{PODS}?watch=true&resourceVersion={rv}").until(lambda text: b"\r\n\r\n" in text)
    api.put(pod("big", "127.0.0.3", annotations={"note": "x" * 20000}))
    body = wire.until(lambda text: text.endswith(b"}\n\r\n")).partition(b"\r\n\r\n")[2]
    sizes = [len(chunk) for chunk in chunks(body)]
    assert sizes[:-1] == [2048] * (len(sizes) - 1) and len(sizes) > 10
    assert b"".join(chunks(body)).count(b"\n") == 1
    overhead = 22  # of a record of TLS 1.3: the type, the tag, and 5 bytes of its head not counted
    assert 4096 <= max(wire.records) <= 4096 + overhead
    assert json.loads(b"".join(chunks(body)))["object"]["metadata"]["name"] == "big"


def test_a_list_goes_on_at_the_version_of_its_first_page_and_an_expired_continue_is_410(api):
    api.put(*(pod(f"p-{i}") for i in range(7)))
    wire = Wire(api)
    code, head, page = wire.ask(f"{PODS}?limit=3").answer()
    assert code == 200 and page["metadata"]["remainingItemCount"] == 4 and len(page["items"]) == 3
    api.command("force", name="p-5")
    code, _, second = wire.ask(f"{PODS}?limit=3&continue={page['metadata']['continue']}").answer()
    assert [p["metadata"]["name"] for p in second["items"]] == ["p-3", "p-4", "p-5"]
    assert second["metadata"]["resourceVersion"] == page["metadata"]["resourceVersion"]
    api.command("compact")
    code, _, status = wire.ask(f"{PODS}?limit=3&continue={second['metadata']['continue']}").answer()
    assert (code, status["code"], status["reason"]) == (410, 410, "Expired")
    code, _, cached = wire.ask(f"{PODS}?limit=3&resourceVersion=0").answer()
    assert len(cached["items"]) == 6, "a list from the cache knows no limit"


def test_an_expired_version_is_reported_inside_a_200_that_ends_in_order(api):
    api.put(pod("a"))
    api.command("compact")
    code, _, event = Wire(api).ask(f"{PODS}?watch=true&resourceVersion=1").answer()
    assert code == 200 and event["type"] == "ERROR"
    assert (event["object"]["code"], event["object"]["reason"]) == (410, "Expired")


def test_a_version_of_the_future_is_504_after_3_s_for_a_list_and_silence_for_a_watch(api):
    rv = api.command("put", object=pod("a"))["rv"]
    code, head, status = Wire(api).ask(f"{PODS}?resourceVersion={rv + 100}").answer()
    assert code == 504 and "Retry-After: 1\r\n" in head
    assert status["details"]["causes"][0]["reason"] == "ResourceVersionTooLarge"
    api.command("set", max_watch_ms=500)
    wire = Wire(api).ask(f"{PODS}?watch=true&allowWatchBookmarks=true&resourceVersion={rv + 100}")
    wait_for(lambda: api.stats()["open_watches"], "the watch")
    api.put(pod("b"))
    body = wire.until(lambda text: text.endswith(b"\r\n0\r\n\r\n")).partition(b"\r\n\r\n")[2]
    assert body == b"0\r\n\r\n" and not wire.end


def test_a_watch_is_bookmarked_before_its_end_and_its_connection_stays(api):
    rv = api.command("put", object=pod("a"))["rv"]
    api.command("set", bookmark_before_end_ms=800)
    wire = Wire(api)
    code, _, event = wire.ask(f"{PODS}?watch=1&allowWatchBookmarks=1&timeoutSeconds=1&resourceVersion={rv}").answer()
    assert code == 200 and event["type"] == "BOOKMARK" and event["object"]["kind"] == "Pod"
    assert event["object"]["metadata"]["resourceVersion"] == str(rv) and event["object"]["spec"] == {"containers": None}
    assert wire.ask("/version").answer()[0] == 200


def test_a_removed_label_is_a_deletion_for_its_selector_and_a_change_for_others(api):
    rv = api.command("put", object=pod("a"))["rv"]
    some = Wire(api).ask(f"{PODS}?watch=1&labelSelector=app%3Dincipit-worker&resourceVersion={rv}")
    every = Wire(api).ask(f"{PODS}?watch=1&resourceVersion={rv}")
    wait_for(lambda: api.stats()["open_watches"] == 2, "the watches")
    api.command("patch", name="a", patch={"metadata": {"labels": {"app": None}}})
    api.command("patch", name="a", patch={"metadata": {"labels": {"app": "incipit-worker"}}})
    api.command("force", name="a")

    def kinds(wire, n):
        def count(text):
            return len(b"".join(chunks(text.partition(b"\r\n\r\n")[2])).splitlines()) >= n
        text = b"".join(chunks(wire.until(count).partition(b"\r\n\r\n")[2]))
        return [json.loads(line)["type"] for line in text.splitlines()]
    assert kinds(some, 4) == ["DELETED", "ADDED", "MODIFIED", "DELETED"]
    assert kinds(every, 4) == ["MODIFIED", "MODIFIED", "MODIFIED", "DELETED"]


def test_a_killed_server_ends_in_mid_chunk_without_close_notify_and_then_refuses(api):
    rv = api.command("put", object=pod("a"))["rv"]
    wire = Wire(api).ask(f"{PODS}?watch=1&resourceVersion={rv}")
    wait_for(lambda: api.stats()["open_watches"], "the watch")
    api.command("die")
    wire.until(lambda text: False)
    assert wire.end == "eof" and wire.text.endswith(b'"meta')
    with pytest.raises(ConnectionRefusedError):
        Wire(api)
    api.command("listen", on=True)
    assert Wire(api).ask("/version").answer()[0] == 200


def test_only_its_tokens_are_let_in_and_a_verb_may_be_forbidden(api):
    api.command("tokens", tokens=["good"])
    assert Wire(api).ask(PODS, "bad").answer()[0] == 401
    assert Wire(api).ask(PODS, "good").answer()[0] == 200
    api.command("forbid", verb="list", resource="pods")
    code, _, status = Wire(api).ask(PODS, "good").answer()
    assert code == 403 and 'cannot list resource "pods" in API group "" in the namespace "default"' in status["message"]


# --- others' clients: they must take it for a real one, and see what it holds -------------------------------------


def script_of_changes(api):
    """What happens in a cluster in a bad minute: every kind of change, every kind of end of a watch."""
    for i in range(20):
        api.put(pod(f"w-{i}", f"127.0.1.{i + 1}"))
        if i == 5:
            api.command("watches", act="end")
        if i == 9:
            api.command("compact")
            api.command("watches", act="cut")
    for i in range(0, 20, 3):
        api.command("delete", name=f"w-{i}")
    for i in range(0, 20, 6):
        api.command("forget", name=f"w-{i}")
    api.command("force", name="w-1")
    api.command("patch", name="w-2", patch={"metadata": {"labels": {"app": None}}})
    api.command("watches", act="repeat", n=4)
    api.put(pod("w-0", "127.0.1.1"), pod("late", "127.0.1.99"))


def names_of_workers(api):
    return set(api.names(labels="app=incipit-worker"))


def test_kubectl_lists_the_servers_objects(api, tmp_path):
    if not shutil.which("kubectl"):
        pytest.skip("kubectl is not installed: apt-get install kubernetes-client")
    env = {**os.environ, "KUBECONFIG": str(kubeconfig(api, tmp_path)), "HOME": str(tmp_path)}
    command = ["kubectl", "get", "pods", "-l", "app=incipit-worker"]
    api.command("tokens", tokens=["secret"])
    api.put(pod("before", "127.0.1.200"), pod("other", labels={"app": "other"}))
    with LiveSet([*command, "--watch", "--output-watch-events", "-o", "json"], env) as seen:
        wait_for(lambda: api.stats()["open_watches"], "kubectl's watch")
        api.command("set", chunk_bytes=100, record_bytes=50)
        for i in range(12):
            api.put(pod(f"w-{i}", f"127.0.1.{i + 1}"))
        api.command("force", name="w-3")
        api.command("patch", name="w-4", patch={"metadata": {"labels": {"app": None}}})
        wait_for(lambda: seen.names == names_of_workers(api), "the same pods")
    api.command("set", chunk_bytes=2048, record_bytes=4096)
    script_of_changes(api)
    listed = subprocess.run([*command, "-o", "name", "--chunk-size=4"], env=env, capture_output=True, text=True, check=True)
    assert {line.removeprefix("pod/") for line in listed.stdout.split()} == names_of_workers(api)


def test_the_python_client_lists_the_servers_objects(api, tmp_path):
    client = pytest.importorskip("kubernetes", reason="python3-kubernetes is not installed")
    urllib3 = pytest.importorskip("urllib3")
    core = client.client.CoreV1Api(client.config.new_client_from_config(str(kubeconfig(api, tmp_path))))
    api.command("tokens", tokens=["secret"])
    api.put(pod("before", "127.0.1.200"))
    selector = "app=incipit-worker"
    names = set()

    def follow(stop):
        while not stop.is_set():  # list and watch, as its documentation has it
            listed = core.list_namespaced_pod("default", label_selector=selector, limit=500)
            names.clear()
            names.update(p.metadata.name for p in listed.items)
            with contextlib.suppress(client.client.ApiException, urllib3.exceptions.HTTPError):
                for event in client.watch.Watch().stream(core.list_namespaced_pod, "default", label_selector=selector,
                                                         resource_version=listed.metadata.resource_version):
                    if event["type"] == "ERROR":
                        break
                    change = names.discard if event["type"] == "DELETED" else names.add
                    change(event["object"].metadata.name)
                    if stop.is_set():
                        return

    stop = threading.Event()
    thread = threading.Thread(target=follow, args=(stop,), daemon=True)
    thread.start()
    wait_for(lambda: api.stats()["open_watches"], "its watch")
    script_of_changes(api)
    wait_for(lambda: names == names_of_workers(api), "the same pods")
    stop.set()
    api.put(pod("stop", "127.0.1.100"))
    thread.join(10)
    assert not thread.is_alive()
