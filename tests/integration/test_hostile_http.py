"""What RFC 9112 forbids or leaves to guessing, through the real router, before an upstream that records every byte.

A request is refused, with its connection closed and nothing of it forwarded, or it is one of the five in ACCEPTED and
reaches the worker as exactly one request with exactly one length. Each hostile request is followed by another one that a
reader who framed it differently would see: /v1/smuggled must never arrive. Answers of workers get the same treatment.
"""
import re
import socket
import threading

import pytest

from conftest import PATIENCE_S, Router

BODY = b'{"model":"m","prompt":"x","max_tokens":1}'
N = len(BODY)
CHUNKED = b"%x\r\n%s\r\n0\r\n\r\n" % (N, BODY)
SMUGGLED = b"POST /v1/smuggled HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n%s" % (N, BODY)


def req(*lines, line=b"POST /v1/completions HTTP/1.1", host=b"Host: h", body=BODY, ends=b"\r\n"):
    return ends.join([line, *([host] if host else []), *lines, b"", b""]) + body


LENGTH = b"Content-Length: %d" % N
TE = b"Transfer-Encoding: chunked"


def length(value):
    return req(b"Content-Length: " + value)


def coding(*lines, body=CHUNKED):
    return req(*lines, body=body)


def chunks(body):
    return req(TE, body=body)


def first_chunk(line):
    return chunks(line + b"\r\n" + BODY + b"\r\n0\r\n\r\n")


# (section of RFC 9112 unless 9110 is named, what, bytes, status)
REFUSED = [
    # --- two framings in one message (6.1, 6.3)
    ("6.3 CL.TE", req(LENGTH, TE, body=CHUNKED), 400),
    ("6.3 TE.CL", req(TE, LENGTH, body=CHUNKED), 400),
    ("6.3 CL 0 and TE", req(b"Content-Length: 0", TE, body=CHUNKED), 400),
    ("6.3 TE on 1.0", req(TE, line=b"POST /v1/completions HTTP/1.0", body=CHUNKED), 400),
    ("6.1 TE.TE", coding(TE, TE), 400),
    ("6.1 TE, TE identity", coding(TE, b"Transfer-Encoding: identity"), 400),
    ("6.1 TE twice in a list", coding(b"Transfer-Encoding: chunked, chunked"), 501),
    ("6.1 TE with another last", coding(b"Transfer-Encoding: chunked, gzip"), 501),
    ("6.1 TE with another first", coding(b"Transfer-Encoding: gzip, chunked"), 501),
    ("6.1 TE identity", coding(b"Transfer-Encoding: identity"), 501),
    ("6.1 TE unknown", coding(b"Transfer-Encoding: xchunked"), 501),
    ("6.1 TE empty", coding(b"Transfer-Encoding:"), 400),
    ("6.1 TE quoted", coding(b'Transfer-Encoding: "chunked"'), 501),
    ("6.1 TE with a parameter", coding(b"Transfer-Encoding: chunked;q=1"), 501),
    ("6.1 TE behind a vertical tab", coding(b"Transfer-Encoding: \x0bchunked"), 400),
    ("6.1 TE behind a comma", coding(b"Transfer-Encoding: , chunked"), 501),
    ("6.1 TE with a NUL", coding(b"Transfer-Encoding: chunked\x00"), 400),
    ("5.1 TE with a space before the colon", coding(b"Transfer-Encoding : chunked"), 400),
    ("5.1 TE with a tab before the colon", coding(b"Transfer-Encoding\t: chunked"), 400),
    ("5.2 TE folded", coding(b"Transfer-Encoding:\r\n chunked"), 400),
    # --- lengths (6.2; 9110 8.6)
    ("6.3 two lengths that differ", req(b"Content-Length: 0", LENGTH), 400),
    ("6.3 two lengths that are equal", req(LENGTH, LENGTH), 400),
    ("9110 8.6 a list of equal lengths", length(b"%d, %d" % (N, N)), 400),
    ("9110 8.6 a list of lengths that differ", length(b"0, %d" % N), 400),
    ("9110 8.6 plus", length(b"+%d" % N), 400),
    ("9110 8.6 minus", length(b"-%d" % N), 400),
    ("9110 8.6 hexadecimal", length(b"0x%x" % N), 400),
    ("9110 8.6 a fraction", length(b"%d.0" % N), 400),
    ("9110 8.6 an exponent", length(b"4e1"), 400),
    ("9110 8.6 blank inside", length(b"4 1"), 400),
    ("9110 8.6 empty", length(b""), 400),
    ("9110 8.6 letters", length(b"abc"), 400),
    ("9110 8.6 trailing letters", length(b"%dx" % N), 400),
    ("9110 8.6 an underscore", length(b"4_1"), 400),
    ("9110 8.6 trailing comma", length(b"%d," % N), 400),
    ("9110 8.6 form feed before", length(b"\x0c%d" % N), 400),
    ("9110 8.6 2^64", length(b"18446744073709551616"), 400),
    ("9110 8.6 2^64 + N", length(b"%d" % (2**64 + N)), 400),
    ("9110 8.6 2^63", length(b"9223372036854775808"), 413),
    ("9110 8.6 above the limit", length(b"99999999999"), 413),
    ("9110 8.6 full-width digits", length("４１".encode()), 400),
    ("5.1 length with a space before the colon", req(b"Content-Length : %d" % N), 400),
    ("5.2 length folded", req(b"Content-Length:\r\n %d" % N), 400),
    # --- chunks (7.1)
    ("7.1 size 0x", first_chunk(b"0x%x" % N), 400),
    ("7.1 size plus", first_chunk(b"+%x" % N), 400),
    ("7.1 size minus", first_chunk(b"-%x" % N), 400),
    ("7.1 size behind a space", first_chunk(b" %x" % N), 400),
    ("7.1 size before a space", first_chunk(b"%x " % N), 400),
    ("7.1 size before a tab", first_chunk(b"%x\t" % N), 400),
    ("7.1 size empty", first_chunk(b""), 400),
    ("7.1 size of letters", first_chunk(b"xyz"), 400),
    ("7.1 size with an underscore", first_chunk(b"2_9"), 400),
    ("7.1 size above the limit", first_chunk(b"ffffffff"), 413),
    ("7.1 size of 64 bits", first_chunk(b"ffffffffffffffff"), 400),
    ("7.1 size that overflows", first_chunk(b"1000000000000%04x" % N), 400),
    ("7.1 size of 17 digits that wraps", first_chunk(b"1%016x" % N), 400),
    ("7.1 size with many zeros", first_chunk(b"0" * 40 + b"%x" % N), 400),
    ("7.1 size with a bare LF", chunks(b"%x\n%s\r\n0\r\n\r\n" % (N, BODY)), 400),
    ("7.1 size with a bare CR", chunks(b"%x\r%s\r\n0\r\n\r\n" % (N, BODY)), 400),
    ("7.1 data longer than its size", chunks(b"%x\r\n%s\r\n0\r\n\r\n" % (N - 2, BODY)), 400),
    ("7.1 data shorter than its size", chunks(b"%x\r\n%s\r\n0\r\n\r\n" % (N + 1, BODY)), 400),
    ("7.1 data without its CR LF", chunks(b"%x\r\n%s0\r\n\r\n" % (N, BODY)), 400),
    ("7.1 data ended by LF alone", chunks(b"%x\r\n%s\n0\r\n\r\n" % (N, BODY)), 400),
    ("7.1.1 extension with a bare CR", first_chunk(b"%x;a\rb" % N), 400),
    ("7.1.1 extension with a bare LF", chunks(b"%x;a\n%s\r\n0\r\n\r\n" % (N, BODY)), 400),
    ("7.1.1 extension with a quoted line end", first_chunk(b'%x;a="\r\n' % N), 400),
    ("7.1.1 extension with a NUL", first_chunk(b"%x;a=\x00" % N), 400),
    ("7.1.1 extension too long", first_chunk(b"%x;" % N + b"a" * 300), 400),
    ("7.1.1 extension behind a blank", first_chunk(b"%x ;a" % N), 400),
    ("7.1.2 trailer without a colon", chunks(b"%x\r\n%s\r\n0\r\nx\r\n\r\n" % (N, BODY)), 400),
    ("7.1.2 trailer with LF alone", chunks(b"%x\r\n%s\r\n0\r\nx: y\n\r\n" % (N, BODY)), 400),
    ("7.1.2 trailer folded", chunks(b"%x\r\n%s\r\n0\r\nx: y\r\n z\r\n\r\n" % (N, BODY)), 400),
    ("7.1.2 trailers too long", chunks(b"%x\r\n%s\r\n0\r\n%s\r\n" % (N, BODY, b"x: yyyyyyyyyy\r\n" * 400)), 400),
    # --- lines and bytes (2.2, 5)
    ("2.2 LF alone everywhere", req(LENGTH, ends=b"\n"), 400),
    ("2.2 LF alone after the request line", b"POST /v1/completions HTTP/1.1\nHost: h\r\n\r\n", 400),
    ("2.2 LF alone after a header", b"POST /v1/completions HTTP/1.1\r\nHost: h\nContent-Length: 0\r\n\r\n", 400),
    ("2.2 LF alone at the end of the head", b"POST /v1/completions HTTP/1.1\r\nHost: h\r\n\n", 400),
    ("2.2 CR alone in a value", req(LENGTH, b"X: a\rTransfer-Encoding: chunked"), 400),
    ("2.2 CR alone in the request line", req(LENGTH, line=b"POST /v1/completions HTTP/1.1\rX: y"), 400),
    ("2.2 blank before the first header", b"POST /v1/completions HTTP/1.1\r\n Host: h\r\n\r\n", 400),
    ("2.2 many empty lines first", b"\r\n" * 5 + req(LENGTH), 400),
    ("2.2 LF before the request line", b"\n" + req(LENGTH), 400),
    ("5.2 header folded", req(LENGTH, b"X: a\r\n b"), 400),
    ("5.2 header folded with a tab", req(LENGTH, b"X: a\r\n\tb"), 400),
    ("5.1 space before the colon", req(LENGTH, b"X : a"), 400),
    ("5.1 name empty", req(LENGTH, b": a"), 400),
    ("5.1 no colon", req(LENGTH, b"nonsense"), 400),
    ("5.1 control byte in a name", req(LENGTH, b"X\x01Y: a"), 400),
    ("5.1 NUL in a name", req(LENGTH, b"X\x00Y: a"), 400),
    ("5.1 byte above ASCII in a name", req(LENGTH, "Ü: a".encode()), 400),
    ("5.1 slash in a name", req(LENGTH, b"X/Y: a"), 400),
    ("5.5 NUL in a value", req(LENGTH, b"X: a\x00b"), 400),
    ("5.5 control byte in a value", req(LENGTH, b"X: a\x07b"), 400),
    ("5.5 DEL in a value", req(LENGTH, b"X: a\x7fb"), 400),
    ("5.4 more than 100 headers", req(LENGTH, *[b"X-%d: y" % i for i in range(110)]), 431),
    ("9110 7.6.1 many options in Connection", req(LENGTH, b"Connection: " + b"x," * 15000), 431),
    ("5.4 a huge head", req(LENGTH, b"X: " + b"y" * 40000), 431),
    ("5.4 a huge name", req(LENGTH, b"Y" * 40000 + b": y"), 431),
    # --- the request line (3)
    ("3 HTTP/0.9", b"POST /v1/completions\r\n\r\n", 400),
    ("3.1 method in lower case", req(LENGTH, line=b"post /v1/completions HTTP/1.1"), 400),
    ("3.1 method in mixed case", req(LENGTH, line=b"Post /v1/completions HTTP/1.1"), 400),
    ("3.1 method with a control byte", req(LENGTH, line=b"PO\x01ST /v1/completions HTTP/1.1"), 400),
    ("3.1 method too long", req(LENGTH, line=b"P" * 40 + b" /v1/completions HTTP/1.1"), 501),
    ("3.1 method missing", req(LENGTH, line=b" /v1/completions HTTP/1.1"), 400),
    ("3 two spaces", req(LENGTH, line=b"POST  /v1/completions HTTP/1.1"), 400),
    ("3 a tab for a space", req(LENGTH, line=b"POST\t/v1/completions HTTP/1.1"), 400),
    ("3 trailing space", req(LENGTH, line=b"POST /v1/completions HTTP/1.1 "), 400),
    ("3.2.2 absolute form", req(LENGTH, line=b"POST http://h/v1/completions HTTP/1.1"), 400),
    ("3.2.2 absolute form of another host", req(LENGTH, line=b"POST http://elsewhere/v1/completions HTTP/1.1"), 400),
    ("3.2.3 authority form", b"CONNECT h:80 HTTP/1.1\r\nHost: h:80\r\n\r\n", 501),
    ("3.2.3 authority form with POST", req(LENGTH, line=b"POST h:80 HTTP/1.1"), 400),
    ("3.2.4 asterisk form with POST", req(LENGTH, line=b"POST * HTTP/1.1"), 400),
    ("3.2 fragment", req(LENGTH, line=b"POST /v1/completions#x HTTP/1.1"), 400),
    ("3.2 NUL in the target", req(LENGTH, line=b"POST /v1/comp\x00letions HTTP/1.1"), 400),
    ("3.2 byte above ASCII in the target", req(LENGTH, line="POST /v1/ü HTTP/1.1".encode()), 400),
    ("3986 3.3 dots in the path", req(LENGTH, line=b"POST /v1/../flush_cache HTTP/1.1"), 400),
    ("3986 3.3 one dot", req(LENGTH, line=b"POST /v1/./completions HTTP/1.1"), 400),
    ("3986 3.3 dots at the end", req(LENGTH, line=b"POST /v1/x/..?q HTTP/1.1"), 400),
    ("3986 3.3 encoded dots", req(LENGTH, line=b"POST /v1/%2e%2E/flush_cache HTTP/1.1"), 400),
    ("3986 3.3 half encoded dots", req(LENGTH, line=b"POST /v1/.%2e/flush_cache HTTP/1.1"), 400),
    ("3986 3.3 dots, encoded slash", req(LENGTH, line=b"POST /v1/..%2freset_prefix_cache HTTP/1.1"), 400),
    ("3986 3.3 all encoded", req(LENGTH, line=b"POST /v1/%2e%2e%2fx HTTP/1.1"), 400),
    ("3986 3.3 dots, backslashes", req(LENGTH, line=b"POST /v1/\\..\\x HTTP/1.1"), 400),
    ("3.2 huge target", req(LENGTH, line=b"POST /v1/" + b"a" * 9000 + b" HTTP/1.1"), 414),
    ("2.3 HTTP/2.0", req(LENGTH, line=b"POST /v1/completions HTTP/2.0"), 505),
    ("2.3 HTTP/1.2", req(LENGTH, line=b"POST /v1/completions HTTP/1.2"), 505),
    ("2.3 HTTP/0.9 in words", req(LENGTH, line=b"POST /v1/completions HTTP/0.9"), 505),
    ("2.3 HTTP/1.10", req(LENGTH, line=b"POST /v1/completions HTTP/1.10"), 400),
    ("2.3 HTTP/1", req(LENGTH, line=b"POST /v1/completions HTTP/1"), 400),
    ("2.3 http in lower case", req(LENGTH, line=b"POST /v1/completions http/1.1"), 400),
    ("2.3 HTTP/01.1", req(LENGTH, line=b"POST /v1/completions HTTP/01.1"), 400),
    ("2.3 another protocol", req(LENGTH, line=b"POST /v1/completions ICAP/1.0"), 400),
    ("9113 3.4 the preface of HTTP/2", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
    # --- Host (3.2; 9110 7.2)
    ("3.2 no Host", req(LENGTH, host=None), 400),
    ("3.2 two Hosts", req(LENGTH, b"Host: other"), 400),
    ("3.2 two equal Hosts", req(LENGTH, b"Host: h"), 400),
    ("3.2 empty Host", req(LENGTH, host=b"Host:"), 400),
    ("3.2 Host with a path", req(LENGTH, host=b"Host: h/path"), 400),
    ("3.2 Host with a user", req(LENGTH, host=b"Host: user@h"), 400),
    ("3.2 Host with a blank", req(LENGTH, host=b"Host: a b"), 400),
    ("3.2 list of Hosts", req(LENGTH, host=b"Host: a, b"), 400),
    # --- credentials: the first would count here and the last behind (9110 5.3)
    ("9110 5.3 two Authorizations", req(LENGTH, b"Authorization: Bearer a", b"Authorization: Bearer b"), 400),
    ("9110 5.3 two equal Authorizations", req(LENGTH, b"Authorization: Bearer a", b"authorization: Bearer a"), 400),
    ("9110 5.3 two API keys", req(LENGTH, b"X-Api-Key: a", b"X: y", b"X-API-Key: b"), 400),
    # --- Expect (9110 10.1.1)
    ("9110 10.1.1 another expectation", req(LENGTH, b"Expect: 200-ok"), 417),
    ("9110 10.1.1 a list of expectations", req(LENGTH, b"Expect: 100-continue, x"), 417),
    ("9110 10.1.1 empty expectation", req(LENGTH, b"Expect:"), 417),
]

# Legal, and harmless: what the worker gets is the same plain request each time.
ACCEPTED = [
    ("2.2 an empty line before the request line SHOULD be ignored", b"\r\n" + req(LENGTH)),
    ("9110 5.5 blanks around a value are not part of it", req(b"Content-Length:\t %d \t" % N)),
    ("7.1.1 a chunk extension that is not known MUST be ignored", first_chunk(b'%x;a="b;c"' % N)),
    ("7.1.2 trailers MAY be discarded: these would change the framing",
     chunks(b"%x\r\n%s\r\n0\r\nContent-Length: 9\r\nTransfer-Encoding: x\r\nHost: other\r\n\r\n" % (N, BODY))),
    ("9110 7.6.1, 7.8 headers named by Connection end here, and so do upgrades",
     req(LENGTH, b"Connection: X-Secret, Content-Type, Upgrade, HTTP2-Settings", b"X-Secret: 1",
         b"Upgrade: h2c", b"HTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA", b"TE: trailers", b"Proxy-Connection: keep-alive",
         b"Keep-Alive: timeout=1")),
]


def test_the_tables_are_as_large_as_they_claim():
    assert len(REFUSED) >= 72 and len(ACCEPTED) <= 5
    assert len({name for name, *_ in REFUSED + ACCEPTED}) == len(REFUSED) + len(ACCEPTED)


# --- an upstream that records ------------------------------------------------------------------------

PLAIN = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"


class Upstream:
    """A raw worker. Probes get a foreign engine's answers; anything else is recorded and gets `answer`, which may be
    a function of the recorded request."""

    def __init__(self):
        self.answer, self.closes = PLAIN, False
        self.requests, self.connection_of = [], []
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.listener.getsockname()[1]}"
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        n = 0
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            n += 1
            threading.Thread(target=self.serve, args=(connection, n), daemon=True).start()

    def serve(self, c, n):
        data = b""
        with c:
            while True:
                try:
                    more = c.recv(65536)
                except OSError:
                    return
                if not more:
                    assert data == b"", "the router left a part of a request behind"
                    return
                data += more
                while b"\r\n\r\n" in data:
                    head, _, rest = data.partition(b"\r\n\r\n")
                    lengths = re.findall(rb"\r\ncontent-length:([^\r]*)", head.lower())
                    length = int(lengths[0]) if lengths else 0
                    if len(rest) < length:
                        break
                    data = rest[length:]
                    if head.startswith(b"GET "):
                        c.sendall(self.probe(head))
                        continue
                    self.requests.append((head, rest[:length]))
                    self.connection_of.append(n)
                    try:
                        c.sendall(self.answer(head) if callable(self.answer) else self.answer)
                    except OSError:
                        return
                    if self.closes:
                        return

    @staticmethod
    def probe(head):
        body = b'{"data":[{"id":"m","max_model_len":4096}]}' if b"/v1/models" in head else b""
        code = 404 if b"/server_info" in head else 200
        return b"HTTP/1.1 %d X\r\ncontent-length: %d\r\n\r\n%s" % (code, len(body), body)


def check_well_formed(head, body):
    """Exactly one request, framed in exactly one way, of visible lines."""
    lines = head.split(b"\r\n")
    assert re.fullmatch(rb"POST /v1/[!-~]+ HTTP/1\.1", lines[0]), lines[0]
    assert b"\n" not in head.replace(b"\r\n", b"") and b"\r" not in head.replace(b"\r\n", b"")
    fields = [line.partition(b":") for line in lines[1:]]
    assert all(re.fullmatch(rb"[a-zA-Z0-9!#$%&'*+.^_`|~-]+", name) for name, *_ in fields), head
    names = [name.lower() for name, *_ in fields]
    assert names.count(b"content-length") == 1 and names.count(b"host") == 1
    assert not {b"transfer-encoding", b"connection", b"upgrade", b"te", b"trailer", b"keep-alive", b"proxy-connection",
                b"http2-settings", b"expect", b"x-secret"} & set(names), head
    assert body == BODY


@pytest.fixture
def upstream():
    made = Upstream()
    yield made
    made.listener.close()


@pytest.fixture
def router(programs, upstream):
    return programs(Router, "--worker-urls", upstream.url, "--max-retries", 0, "--threads", 1,
                    "--max-body-bytes", "1MiB").ready(1)


class Client:
    def __init__(self, router):
        self.s = socket.create_connection(("127.0.0.1", int(router.url.rpartition(":")[2])), timeout=PATIENCE_S)
        self.s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.data = b""

    def send(self, data, piece=None):
        try:
            for at in range(0, len(data), piece or len(data)):
                self.s.sendall(data[at:at + (piece or len(data))])
        except OSError:
            pass  # refused already, and closed
        return self

    def until_closed(self):
        while True:
            try:
                more = self.s.recv(65536)
            except ConnectionResetError:
                raise AssertionError(f"a reset instead of an orderly end, after {self.data!r}")
            if not more:
                self.s.close()
                return self.data
            self.data += more

    def until(self, text, count=1):
        while self.data.count(text) < count:
            more = self.s.recv(65536)
            assert more, f"closed before {text!r}: {self.data!r}"
            self.data += more
        return self.data


def statuses(data):
    return [int(code) for code in re.findall(rb"HTTP/1\.1 (\d\d\d) ", data)]


# --- requests -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("piece", [None, 1], ids=["whole", "bytewise"])
def test_hostile_requests_are_refused_and_nothing_is_forwarded(router, upstream, piece):
    wrong = []
    for name, data, status in REFUSED:
        if piece and len(data) > 5000:
            continue
        upstream.requests.clear()
        client = Client(router).send(data + SMUGGLED, piece)
        got = statuses(client.until_closed())
        if got != [status] or upstream.requests:
            wrong.append((name, got, status, upstream.requests[:]))
    assert wrong == []
    assert Client(router).send(req(LENGTH)).until(b"{}")  # and it still serves


@pytest.mark.parametrize("piece", [None, 1], ids=["whole", "bytewise"])
def test_the_accepted_few_reach_the_worker_as_one_plain_request(router, upstream, piece):
    for name, data in ACCEPTED:
        upstream.requests.clear()
        client = Client(router).send(data, piece)
        assert statuses(client.until(b"{}")) == [200], name
        assert len(upstream.requests) == 1, name
        check_well_formed(*upstream.requests[0])
        client.send(req(LENGTH, b"Connection: close"))
        assert statuses(client.until_closed()) == [200, 200], name
        assert len(upstream.requests) == 2, name
        check_well_formed(*upstream.requests[1])


def test_a_client_that_waits_for_100_gets_it_once_and_its_expectation_ends_here(router, upstream):
    client = Client(router).send(req(LENGTH, b"Expect: 100-continue", body=b""))
    client.until(b"100 Continue\r\n\r\n")
    client.send(BODY)
    assert statuses(client.until(b"{}")) == [100, 200]
    check_well_formed(*upstream.requests[0])


def test_pipelined_requests_are_answered_in_order(router, upstream):
    upstream.answer = lambda head: (b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\n" +
                                    re.search(rb"\r\nX-N: (\d+)", head)[1].zfill(6))
    client = Client(router).send(b"".join(req(LENGTH, b"X-N: %d" % i) for i in range(50)))
    client.until(b"000049")
    assert re.findall(rb"\r\n\r\n(\d{6})", client.data) == [b"%06d" % i for i in range(50)]
    assert len(upstream.requests) == 50


def test_nothing_behind_a_refused_request_is_answered(router, upstream):
    client = Client(router).send(req(LENGTH) + req(LENGTH, LENGTH) + SMUGGLED + SMUGGLED)
    assert statuses(client.until_closed()) == [200, 400]
    assert len(upstream.requests) == 1


def test_an_unfinished_request_is_never_forwarded(router, upstream):
    for data in (req(LENGTH)[:-1], chunks(CHUNKED[:-1]), chunks(CHUNKED[:-2]), req(LENGTH, body=b"")):
        client = Client(router).send(data)
        client.s.shutdown(socket.SHUT_WR)
        assert 200 not in statuses(client.until_closed())
    assert upstream.requests == []


# --- answers ------------------------------------------------------------------------------------------

OK = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
SECOND = b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{\"no\": 1}"

# Answers that cannot be trusted: the client sees 502 and not a byte of them.
BAD_ANSWERS = [
    ("4 status line of words", b"hello world\r\n\r\n"),
    ("4 status of two digits", b"HTTP/1.1 20 OK\r\nContent-Length: 0\r\n\r\n"),
    ("4 status of four digits", b"HTTP/1.1 2000 OK\r\nContent-Length: 0\r\n\r\n"),
    ("4 status of letters", b"HTTP/1.1 abc OK\r\nContent-Length: 0\r\n\r\n"),
    ("4 status 099", b"HTTP/1.1 099 OK\r\nContent-Length: 0\r\n\r\n"),
    ("4 status 999", b"HTTP/1.1 999 OK\r\nContent-Length: 0\r\n\r\n"),
    ("4 status negative", b"HTTP/1.1 -20 OK\r\nContent-Length: 0\r\n\r\n"),
    ("2.3 version 2", b"HTTP/2 200 OK\r\nContent-Length: 0\r\n\r\n"),
    ("2.3 version 9.9", b"HTTP/9.9 200 OK\r\nContent-Length: 0\r\n\r\n"),
    ("2.2 LF alone", b"HTTP/1.1 200 OK\nContent-Length: 0\n\n"),
    ("2.2 CR alone in a value", OK + b"X: a\rb\r\nContent-Length: 0\r\n\r\n"),
    ("5.5 NUL in a value", OK + b"X: a\x00b\r\nContent-Length: 0\r\n\r\n"),
    ("5.1 space before the colon", OK + b"Content-Length : 2\r\n\r\n{}"),
    ("5.2 folded header", OK + b"X: a\r\n b\r\nContent-Length: 2\r\n\r\n{}"),
    ("6.3 CL and TE", OK + b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n"),
    ("6.3 two lengths that differ", OK + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n{} "),
    ("6.3 two lengths that are equal", OK + b"Content-Length: 2\r\nContent-Length: 2\r\n\r\n{}"),
    ("9110 8.6 negative length", OK + b"Content-Length: -2\r\n\r\n{}"),
    ("9110 8.6 length of 2^64", OK + b"Content-Length: 18446744073709551616\r\n\r\n{}"),
    ("9110 8.6 list of lengths", OK + b"Content-Length: 2, 2\r\n\r\n{}"),
    ("6.1 unknown coding", OK + b"Transfer-Encoding: gzip\r\n\r\n{}"),
    ("6.1 two codings", OK + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n"),
    ("7.1 first size of letters", OK + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n{}\r\n0\r\n\r\n"),
    ("7.1 first size 0x", OK + b"Transfer-Encoding: chunked\r\n\r\n0x2\r\n{}\r\n0\r\n\r\n"),
    ("7.1 first size negative", OK + b"Transfer-Encoding: chunked\r\n\r\n-2\r\n{}\r\n0\r\n\r\n"),
    ("7.1 first size of 64 bits", OK + b"Transfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n{}\r\n0\r\n\r\n"),
    ("5.4 huge head", OK + b"X: " + b"y" * 70000 + b"\r\n\r\n"),
    ("5.4 too many headers", OK + b"X: y\r\n" * 200 + b"\r\n"),
    ("9110 15.2.2 switching protocols unasked", b"HTTP/1.1 101 Yes\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n" + SECOND),
    ("9110 15.2 a flood of 1xx", b"HTTP/1.1 103 Early Hints\r\nLink: <x>\r\n\r\n" * 1000 + SECOND),
    ("8 closed within the head", OK + b"X: y"),
]

# Answers whose beginning has been passed on: they end visibly incomplete.
BROKEN_OFF = [
    ("7.1 later size of letters", OK + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\nzz\r\n"),
    ("7.1 data without CR LF", OK + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}xx0\r\n\r\n"),
    ("7.1 data longer than its size", OK + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}{}\r\n0\r\n\r\n"),
    ("7.1.2 bad trailer", OK + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\nx y\r\n\r\n"),
    ("8 closed within a chunk", OK + b"Transfer-Encoding: chunked\r\n\r\n9\r\n{}"),
    ("8 closed before the last chunk", OK + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n"),
    ("8 closed before its length", OK + b"Content-Length: 9\r\n\r\n{}"),
]

GOOD_ANSWERS = [
    ("9110 15.2 some 1xx", b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\n\r\n" + PLAIN),
    ("6.3 more bytes than announced", PLAIN + SECOND),
    ("6.3 chunked, and more behind", OK + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n" + SECOND),
]


def parse_answer(data):
    """(status, body, is_complete) as a strict client sees it; exactly one message."""
    head, _, rest = data.partition(b"\r\n\r\n")
    names = [line.partition(b":")[0].lower() for line in head.split(b"\r\n")[1:]]
    assert names.count(b"content-length") + names.count(b"transfer-encoding") == 1, head
    length = re.search(rb"\r\ncontent-length: (\d+)", head.lower())
    if length:
        return statuses(head)[0], rest, len(rest) == int(length[1])
    body = b""
    while True:
        match = re.match(rb"([0-9a-f]+)\r\n", rest)
        if not match:
            return statuses(head)[0], body, False
        n = int(match[1], 16)
        if n == 0:
            return statuses(head)[0], body, rest[match.end():] == b"\r\n"
        body, rest = body + rest[match.end():][:n], rest[match.end() + n + 2:]


def ask_and_close(router):
    return Client(router).send(req(LENGTH, b"Connection: close"))


def good(router, upstream):
    upstream.answer, upstream.closes = PLAIN, False
    assert parse_answer(ask_and_close(router).until_closed()) == (200, b"{}", True)


def test_answers_that_cannot_be_trusted_become_502(router, upstream):
    wrong = []
    for name, data in BAD_ANSWERS:
        upstream.answer, upstream.closes = data, True
        status, body, is_complete = parse_answer(ask_and_close(router).until_closed())
        if status != 502 or not is_complete or b"no worker answered" not in body:
            wrong.append((name, status, body))
        last = upstream.connection_of[-1]
        good(router, upstream)
        if upstream.connection_of[-1] == last:
            wrong.append((name, "its connection was used again"))
    assert wrong == []


def test_a_redirect_is_not_passed_on(router, upstream):
    for code in (300, 301, 302, 303, 304, 307, 308):
        end = b"\r\n" if code == 304 else b"Content-Length: 2\r\n\r\n{}"
        upstream.answer, upstream.closes = b"HTTP/1.1 %d Away\r\nLocation: http://elsewhere/v1/completions\r\n" % code + end, True
        data = ask_and_close(router).until_closed()
        status, body, is_complete = parse_answer(data)
        assert (status, is_complete) == (502, True) and b"elsewhere" not in data, data
        assert b"answered %d, a redirect" % code in body, body
    good(router, upstream)


def test_headers_of_a_workers_own_site_are_dropped(router, upstream):
    site = [b"Set-Cookie: a=b", b"Location: /x", b"Content-Location: /x", b"WWW-Authenticate: Basic", b"Authentication-Info: x",
            b"Alt-Svc: h2=\":1\"", b"Refresh: 0", b"Clear-Site-Data: *", b"Strict-Transport-Security: max-age=9", b"set-COOKIE: c=d"]
    for code in (b"200 OK", b"201 Created", b"401 Unauthorized"):
        upstream.answer = b"HTTP/1.1 %s\r\n%s\r\nX-Kept: 1\r\nContent-Length: 2\r\n\r\n{}" % (code, b"\r\n".join(site))
        upstream.closes = True
        data = ask_and_close(router).until_closed()
        assert parse_answer(data) == (int(code[:3]), b"{}", True)
        names = {line.partition(b":")[0].lower() for line in data.partition(b"\r\n\r\n")[0].split(b"\r\n")[1:]}
        assert b"x-kept" in names and not names & {line.partition(b":")[0].lower() for line in site}, names


def test_answers_that_turn_bad_end_visibly_incomplete(router, upstream):
    wrong = []
    for name, data in BROKEN_OFF:
        upstream.answer, upstream.closes = data, True
        client = ask_and_close(router)
        try:
            data = client.until_closed()
        except AssertionError:
            data = client.data  # a reset is as good a sign
        if data and (not data.startswith(b"HTTP/1.1 502") and parse_answer(data)[2]):
            wrong.append((name, data))
        good(router, upstream)
    assert wrong == []


def test_bytes_after_a_good_answer_are_dropped(router, upstream):
    for name, data in GOOD_ANSWERS:
        upstream.answer, upstream.closes = data, False
        assert parse_answer(ask_and_close(router).until_closed()) == (200, b"{}", True), name
        good(router, upstream)  # never the second answer of the first connection
