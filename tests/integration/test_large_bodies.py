"""What large request bodies leave behind in the router."""
import contextlib
import pathlib
import socket
import threading

from conftest import Router, wait_for

N, TEXT_BYTES = 12, 30 << 20


def rss_bytes(program):
    text = pathlib.Path(f"/proc/{program.process.pid}/status").read_text()
    return int(text.split("VmRSS:")[1].split()[0]) * 1024


class Sink:
    """A worker that reads no body until it may."""

    def __init__(self):
        self.may_read = threading.Event()
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.url = "http://127.0.0.1:%d" % self.listener.getsockname()[1]
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            c, _ = self.listener.accept()
            threading.Thread(target=self.serve, args=(c,), daemon=True).start()

    def serve(self, c):
        data = b""
        while True:
            while b"\r\n\r\n" not in data:
                more = c.recv(65536)
                if not more:
                    return
                data += more
            head, _, data = data.partition(b"\r\n\r\n")
            if head.startswith(b"POST"):
                self.may_read.wait(30)
                left = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0]) - len(data)
                while left > 0:
                    left -= len(c.recv(min(left, 1 << 20)))
                data = b""
            body = b'{"data":[{"id":"m"}]}'
            c.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s"
                      % (len(body), body))


def ask(url, all_sent, answers):
    """Sends a large body and waits for the others; one that is refused for want of room is an answer."""
    head, tail = b'{"model":"m","prompt":"', b'"}'
    with socket.create_connection(("127.0.0.1", int(url.rsplit(":", 1)[1]))) as s:
        with contextlib.suppress(OSError):
            s.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n%s"
                      % (len(head) + TEXT_BYTES + len(tail), head))
            for _ in range(TEXT_BYTES >> 20):
                s.sendall(b"x" * (1 << 20))
            s.sendall(tail)
        all_sent.wait(30)
        with contextlib.suppress(OSError):
            answers.append(s.recv(1 << 16))


def test_bodies_are_answered_and_their_memory_is_given_back(programs):
    """All are in the router at once, and their worker is slow to take them."""
    worker, answers, all_sent = Sink(), [], threading.Barrier(N + 1)
    router = programs(Router, "--worker-urls", worker.url).ready(1)
    before = rss_bytes(router)
    clients = [threading.Thread(target=ask, args=(router.url, all_sent, answers)) for _ in range(N)]
    for c in clients:
        c.start()
    all_sent.wait(30)
    worker.may_read.set()
    for c in clients:
        c.join()
    assert any(a.startswith(b"HTTP/1.1 200") for a in answers)
    wait_for(lambda: rss_bytes(router) < before * 1.2, "its memory back at what it was", patience_s=5)
