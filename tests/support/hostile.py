#!/usr/bin/env python3
"""Clients that take memory and connections, all on loopback: hostile.py PORT [options]

bodies announce a body of --body-bytes, send all of it but a byte, and keep silent; silent ones connect and send nothing;
prompts are complete requests of --prompt-bytes of spaces. A body or a silent connection that is ended begins again, until
the time is up or standard input closes. They come from `--addresses` source addresses, 127.0.1.1 and on. Prints "under way" when
nine in ten are connected, and at the end what they were answered, as JSON.
"""
import argparse
import collections
import errno
import json
import selectors
import socket
import sys
import time

PIECE = memoryview(b" " * (1 << 20))
AGAIN_S = 1


class Client:
    def __init__(self, attack, kind, source):
        self.attack, self.kind, self.source = attack, kind, source
        self.begin()

    def begin(self):
        self.sock = socket.socket()
        self.sock.setblocking(False)
        self.sock.setsockopt(socket.SOL_IP, 24, 1)  # IP_BIND_ADDRESS_NO_PORT
        self.sock.bind((self.source, 0))
        self.got, self.pending = b"", []
        if self.kind == "body":
            self.pending = [b"POST /v1/completions HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\n"
                            b"Content-Length: %d\r\n\r\n" % self.attack.body_bytes]
            self.left = self.attack.body_bytes - 1
        elif self.kind == "prompt":
            start, end = b'{"model":"synthetic","max_tokens":1,"prompt":"', b'"}'
            self.pending = [b"POST /v1/completions HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\n"
                            b"Content-Length: %d\r\n\r\n" % (self.attack.prompt_bytes + len(start) + len(end)) + start]
            self.left, self.end = self.attack.prompt_bytes, end
        else:
            self.left = 0
        try:
            self.sock.connect(("127.0.0.1", self.attack.port))
        except OSError as e:
            if e.errno != errno.EINPROGRESS:
                self.over(errno.errorcode[e.errno])
                return
        self.attack.selector.register(self.sock, selectors.EVENT_READ | selectors.EVENT_WRITE, self)

    def over(self, outcome):
        self.attack.outcomes[self.kind + " " + outcome] += 1
        try:
            self.attack.selector.unregister(self.sock)
        except (KeyError, ValueError):
            pass
        self.sock.close()
        self.attack.tried.add(self)
        if self.kind != "prompt":
            self.attack.again.append((time.monotonic() + AGAIN_S, self))

    def write(self):
        try:
            while self.pending or self.left:
                if not self.pending:
                    self.pending = [PIECE[:min(self.left, len(PIECE))]]
                    self.left -= len(self.pending[0])
                    if self.left == 0 and self.kind == "prompt":
                        self.pending.append(self.end)
                n = self.sock.send(self.pending[0])
                rest = memoryview(self.pending[0])[n:]
                self.pending[:1] = [rest] if len(rest) else []
        except BlockingIOError:
            return
        self.attack.selector.modify(self.sock, selectors.EVENT_READ, self)

    def read(self):
        data = self.sock.recv(65536)
        self.got = (self.got + data)[:4096]
        if not data or b"\r\n" in self.got:
            self.over(self.got[9:12].decode() if self.got else "closed")

    def on_ready(self, mask):
        self.attack.tried.add(self)
        try:
            if mask & selectors.EVENT_READ:
                self.read()
            elif mask & selectors.EVENT_WRITE:
                self.write()
        except BlockingIOError:
            pass
        except OSError as e:
            self.over(errno.errorcode.get(e.errno, "error"))


class Attack:
    def __init__(self, args):
        self.body_bytes, self.prompt_bytes = args.body_bytes, args.prompt_bytes
        self.port, self.outcomes, self.again = args.port, collections.Counter(), collections.deque()
        self.selector, self.tried = selectors.DefaultSelector(), set()
        kinds = ["silent"] * args.silent + ["body"] * args.bodies + ["prompt"] * args.prompts
        self.clients = [Client(self, kind, f"127.0.1.{i % args.addresses + 1}") for i, kind in enumerate(kinds)]

    def run(self, seconds):
        end, is_notified = time.monotonic() + seconds, False
        self.selector.register(sys.stdin, selectors.EVENT_READ, None)
        while time.monotonic() < end:
            for key, mask in self.selector.select(0.05):
                if key.data is None:
                    return
                key.data.on_ready(mask)
            while self.again and self.again[0][0] < time.monotonic():
                self.again.popleft()[1].begin()
            if not is_notified and len(self.tried) >= 0.9 * len(self.clients):
                is_notified = True
                print("under way", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("port", type=int)
    for name in ("bodies", "silent", "prompts"):
        parser.add_argument("--" + name, type=int, default=0)
    parser.add_argument("--body-bytes", type=int, default=32 << 20)
    parser.add_argument("--prompt-bytes", type=int, default=30 << 20)
    parser.add_argument("--addresses", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=60)
    args = parser.parse_args()
    attack = Attack(args)
    attack.run(args.seconds)
    print(json.dumps(attack.outcomes), flush=True)


if __name__ == "__main__":
    main()
