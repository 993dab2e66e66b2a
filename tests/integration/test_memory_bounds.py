"""Clients that take memory, connections and descriptors, and what is left for the others.

The attackers are a process of their own (tests/support/hostile.py), on loopback, from one address or many. The full size
of the attack, in a control group of 256 MiB, is `make bench-hostile`.
"""
import contextlib
import http.client
import json
import os
import re
import socket
import subprocess
import sys

import pytest

from conftest import PATIENCE_S, ROOT, SANITIZER, Router, Worker, http as ask, in_front_of, wait_for

MIB = 1 << 20
CALL = {"model": "synthetic", "prompt": "hello", "max_tokens": 1}
NEVER = ("--idle-timeout", "1h", "--head-timeout", "10m")  # what only a timeout would end is not waited for


def port_of(program):
    return int(program.url.rsplit(":", 1)[1])


@contextlib.contextmanager
def attack(program, *args):
    """Under way inside the block; afterwards ended, with .outcomes."""
    process = subprocess.Popen([sys.executable, ROOT / "tests/support/hostile.py", str(port_of(program)), *map(str, args),
                                "--seconds", str(PATIENCE_S)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout.readline() == "under way\n"
        yield process
        process.stdin.close()
        process.outcomes = json.loads(process.stdout.readline())
        assert process.wait(PATIENCE_S) == 0
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        process.stdout.close()


def memory(program, name):
    with open(f"/proc/{program.process.pid}/status", encoding="ascii") as status:
        return int(re.search(rf"{name}:\s+(\d+) kB", status.read())[1]) * 1024


def descriptors(program):
    return len(list(os.scandir(f"/proc/{program.process.pid}/fd")))


def call(connection):
    connection.request("POST", "/v1/completions", json.dumps(CALL), {"Content-Type": "application/json"})
    answer = connection.getresponse()
    answer.read()
    return answer.status


def long_call(url, n):
    """A complete body of n bytes, most of it blanks outside of the prompt; its status."""
    body = json.dumps(CALL).encode()[:-1] + b" " * n + b"}"
    return ask(url + "/v1/completions", body).code


# --- descriptors and connections ----------------------------------------------------------------------


def test_idle_connections_leave_descriptors_for_the_others(programs, sim):
    router = programs(Router, "--worker-urls", sim.url, "--threads", 2, *NEVER, descriptors=256).ready(1)
    established = http.client.HTTPConnection("127.0.0.1", port_of(router), timeout=PATIENCE_S)
    assert call(established) == 200
    with attack(router, "--silent", 400):
        wait_for(lambda: router.metric("incipit_http_connections_total", port="client") > 300, "silent connections")
        assert ask(router.admin_url + "/livez").code == 200
        assert call(established) == 200
        assert ask(router.url + "/v1/completions", CALL).code == 200  # a new one
        assert descriptors(router) < 200  # some are kept for workers
        page = ask(router.admin_url + "/metrics").body
    assert re.search(r'incipit_http_closed_total\{port="client",reason="room"\} [1-9]', page)
    assert re.search(r'incipit_http_connections\{port="client"\} \d', page)
    assert "connections_limited" in router.log and "http_closed port=client reason=room" in router.log


def test_idle_connections_to_the_admin_port_do_not_close_it(programs, sim):
    router = programs(Router, "--worker-urls", sim.url, "--threads", 1, *NEVER, descriptors=256).ready(1)
    admin = int(router.admin_url.rsplit(":", 1)[1])
    silent = [socket.create_connection(("127.0.0.1", admin)) for _ in range(300)]
    assert ask(router.admin_url + "/readyz").code == 200
    assert ask(router.url + "/v1/completions", CALL).code == 200
    assert router.metric("incipit_http_closed_total", port="admin", reason="room") > 100
    for s in silent:
        s.close()


@pytest.mark.parametrize("way", ["worker", "router"])
def test_idle_connections_do_not_make_the_next_request_wait(programs, way):
    worker = programs(Worker, "--backend", "sim", "--sim-speed", 20, "--max-connections", 100).ready()
    server = worker if way == "worker" else \
        programs(Router, "--worker-urls", worker.url, "--threads", 1, "--max-connections", 100, *NEVER).ready(1)
    idle = [http.client.HTTPConnection("127.0.0.1", port_of(server), timeout=PATIENCE_S) for _ in range(130)]
    for connection in idle:
        connection.request("GET", "/version")
        assert connection.getresponse().read()
    assert server.post("/v1/completions", CALL).code == 200
    for connection in idle:
        connection.close()


# --- bodies -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["worker", "router"])
@pytest.mark.parametrize("addresses", [1, 40])
def test_unfinished_bodies_are_bounded_together(programs, way, addresses):
    bound = ("--max-body-memory", "32MiB")
    worker = programs(Worker, "--backend", "sim", "--sim-speed", 100, *(bound if way == "worker" else ())).ready()
    server = worker if way == "worker" else programs(Router, "--worker-urls", worker.url, "--threads", 2, *bound).ready(1)
    for _ in range(20):
        assert server.post("/v1/completions", CALL).code == 200
    before = memory(server, "VmRSS")
    with attack(server, "--bodies", 40, "--silent", 200, "--prompts", 8, "--body-bytes", 12 * MIB, "--prompt-bytes", 10 * MIB,
                "--addresses", addresses):
        connection = http.client.HTTPConnection("127.0.0.1", port_of(server), timeout=PATIENCE_S)
        for _ in range(200):
            assert call(connection) == 200  # what is short loses nothing
        connection.close()
        wait_for(lambda: server.metric("incipit_http_refused_total", port="client", reason="body_slow") > 0, "bodies that stand still to end")
        if addresses == 1:  # the other half is for others
            assert long_call(server.url, 2 * MIB) == 200
        page = server.metrics()
    assert server.metric("incipit_http_body_limit_bytes") == 32 * MIB
    assert re.search(r'incipit_http_body_waits_total\{.*port="client"\} [1-9]', page)
    assert "http_refused port=client reason=body_" in server.log
    if not SANITIZER:  # 480 MiB were sent; a body is copied while its buffer grows, and for the worker
        assert memory(server, "VmHWM") - before < 120 * MIB
    wait_for(lambda: server.metric("incipit_http_body_bytes", size="long") == 0, "the bodies to be forgotten")
    assert long_call(server.url, 20 * MIB) == 200  # and all is there for the next one
