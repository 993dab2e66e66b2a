#!/usr/bin/env python3
"""What clients see while workers fail: open-loop load through incipit-router, one fault at a time.

    make faults                  all scenarios, some five minutes
    make faults ARGS="kill stop" those named; ARGS=list names them

Workers are simulated ones, four of them. What is calibrated is the length of the answers: so that they
take SERVICE_MS at the load that each worker has while one of them is down, for the slowest percent of
`kill` are answers of that time. With all four up they take a little less. The scenarios that haproxy
knows a remedy for are run before haproxy too, tuned for failures, right after ours. After each
scenario the router must be as it was: nothing in flight, no client's connection left, none half
closed, memory steady. Times count from the moment a request was due, so a stalled router cannot hide.
"""
import contextlib
import json
import os
import pathlib
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from fleet import (BUILD, LOAD, PATIENCE_S, Fleet, find_program, free_ports, get, load, metric, post, skip,  # noqa: E402
                   start_router, wait_for)

HERE = pathlib.Path(__file__).resolve().parent
RPS, N_WORKERS, SERVICE_MS = 500, 4, 97
SPEED = 2.5  # steps of 2.4 ms: fewer cost the workers less CPU; much longer ones, and a token is too coarse a measure
MODEL = "synthetic"
REQUEST = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 8}
OPTIONS = ("--log-level", "error", "--max-index-bytes", "4MiB")  # an index that is soon full: growth is a leak
rows = []


def row(scenario, what, figure, bar, holds):
    rows.append((scenario, what, figure, bar, holds))
    print(f"  {'ok ' if holds else 'NOT'} {what}: {figure} (bar: {bar})", flush=True)


class Workers:
    """Simulated workers on fixed ports, so that one can come back where it was."""

    def __init__(self, fleet, n=N_WORKERS, args=()):
        self.fleet, self.args = fleet, args
        self.ports = free_ports(n)
        self.urls = [f"http://127.0.0.1:{port}" for port in self.ports]
        self.processes = [self.spawn(i) for i in range(n)]
        for i in range(n):
            self.wait(i)

    def spawn(self, i):
        return self.fleet.start([BUILD / "incipit-worker", "--backend", "sim", "--sim-speed", SPEED,
                                 "--port", self.ports[i], "--log-level", "warn", *self.args])

    def wait(self, i):
        wait_for(lambda: (get(self.urls[i] + "/health") or [0])[0] == 200, f"worker {i}")

    def restart(self, i):
        self.processes[i] = self.spawn(i)
        self.wait(i)


class Engines:
    """Foreign engines (engine.py): all that a router has to go by is what their answers show."""

    def __init__(self, fleet, kind="errors", n=N_WORKERS):
        self.fleet, self.kind = fleet, kind
        self.ports = free_ports(n)
        self.urls = [f"http://127.0.0.1:{port}" for port in self.ports]
        self.processes = [self.spawn(i) for i in range(n)]
        for i in range(n):
            self.wait(i)

    def spawn(self, i):
        return self.fleet.start([sys.executable, HERE / "engine.py", self.ports[i], self.kind])

    def wait(self, i):
        """Until it listens; when that was."""
        end = time.monotonic() + PATIENCE_S
        while time.monotonic() < end:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.ports[i]), timeout=1):
                return time.monotonic()
            time.sleep(0.001)  # finer than wait_for: the time is a result
        raise RuntimeError(f"waited {PATIENCE_S} s in vain for port {self.ports[i]}")


class Load:
    """The load generator in the background; `report` waits for its end."""

    def __init__(self, url, *args, duration_s=10.0, rps=RPS, tokens=None):
        self.began = time.monotonic()
        self.process = subprocess.Popen(
            [str(LOAD), url, "--rps", str(rps), "--duration", f"{duration_s}s", "--body-bytes", "256",
             "--timeout", "20s", "--max-tokens", str(tokens or tokens_of_service), *map(str, args)],
            stdout=subprocess.PIPE)

    def at(self, second):
        time.sleep(max(0, self.began + second - time.monotonic()))

    def report(self):
        return json.loads(self.process.communicate(timeout=120)[0])

    def failures(self, path):
        """Of the records at `path`, those of failed requests: when each ended."""
        lines = [line.split(",") for line in pathlib.Path(path).read_text().splitlines()[1:]]
        return [self.began + int(line[3]) / 1e6 for line in lines if line[4] != "ok"]


tokens_of_service = 40


def calibrate(workers):
    """Tokens that take about SERVICE_MS while all workers are as busy as three are for four."""
    global tokens_of_service
    ms = 0
    for _ in range(3):
        loads = [Load(url, rps=RPS / (N_WORKERS - 1), duration_s=2) for url in workers.urls]
        ms = sum(l.report()["e2e_s"]["p50"] for l in loads) / len(loads) * 1000
        tokens_of_service = max(1, round(tokens_of_service * SERVICE_MS / ms))
    print(f"{N_WORKERS} simulated workers, answers of {tokens_of_service} tokens; with one down and {RPS} requests/s they "
          f"take {ms:.0f} ms",
          flush=True)


def start_haproxy(fleet, urls, observe="layer4"):
    (port,) = free_ports(1)
    servers = "\n    ".join(f"server w{i} {u.split('//')[1]}" for i, u in enumerate(urls))
    conf = fleet.file(f"haproxy-{port}.cfg", HERE / "haproxy.cfg", port=port, servers=servers, observe=observe)
    proxy = fleet.start([find_program("haproxy"), "-db", "-f", conf])
    proxy.url = f"http://127.0.0.1:{port}"
    wait_for(lambda: (get(proxy.url + "/health") or [0])[0] == 200, "haproxy")
    return proxy


def start_ours(fleet, urls, *args):
    router = start_router(fleet, urls, args=(*OPTIONS, *args))
    router.ports = [int(u.rsplit(":", 1)[1]) for u in (router.url, router.admin_url)]
    return router


def metrics_of(router):
    return get(router.admin_url + "/metrics")[1]


def tcp_states(port):
    """States of the sockets of a local port, by count."""
    states = {}
    for line in pathlib.Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if int(fields[1].split(":")[1], 16) == port:
            states[fields[3]] = states.get(fields[3], 0) + 1
    return states


def rss_mib(router):
    return router._sum_kib("status", "VmRSS:") / 1024


def is_clean(scenario, router, rss_before):
    """Nothing is left behind."""
    def settled():
        states = tcp_states(router.ports[0])
        return (metric(metrics_of(router), "incipit_requests_in_flight") == 0
                and not states.get("01") and not states.get("08"))
    try:
        wait_for(settled, "the router to be as it was", 5)
        left = "nothing"
    except RuntimeError:
        left = f"{metric(metrics_of(router), 'incipit_requests_in_flight'):.0f} in flight, sockets {tcp_states(router.ports[0])}"
    growth = rss_mib(router) - rss_before
    row(scenario, "left behind", f"{left}; memory {growth:+.1f} MiB", "nothing; < 16 MiB", left == "nothing" and growth < 16)


def figures(report):
    e2e = report["e2e_s"]
    return f"{report['failed']} of {report['requests']} failed, p99 {e2e['p99'] * 1000:.0f} ms, max {e2e['max'] * 1000:.0f} ms"


def both(scenario, workers, fault, judge, seconds=10, router_args=()):
    """The same fault before ours and before haproxy. `fault(load)` runs beside the load."""
    with Fleet() as fleet:
        router = start_ours(fleet, workers.urls, *router_args)
        Load(router.url, duration_s=2).report()
        rss = rss_mib(router)
        run = Load(router.url, duration_s=seconds)
        fault(run)
        report = run.report()
        judge(report)
        is_clean(scenario, router, rss)
    if not find_program("haproxy"):
        skip(f"{scenario} before haproxy", "haproxy is not installed: make deps-bench")
        return
    with Fleet() as fleet:
        proxy = start_haproxy(fleet, workers.urls)
        Load(proxy.url, duration_s=2).report()
        run = Load(proxy.url, duration_s=seconds)
        fault(run)
        print(f"      haproxy, tuned: {figures(run.report())}", flush=True)


def no_fault(workers):
    """none: the same load and no fault."""
    def judge(report):
        row("none", "no fault", figures(report), "0 failed", report["failed"] == 0)
    both("none", workers, lambda run: None, judge, 6)


def kill(workers):
    """kill: SIGKILL of one of four workers under load, and its return."""
    def fault(run):
        run.at(3)
        workers.processes[1].process.kill()
        run.at(6)
        workers.restart(1)

    def judge(report):
        e2e = report["e2e_s"]
        row("kill", "kill -9", figures(report), "0 failed, p99 <= 105 ms, max <= 220 ms",
            report["failed"] == 0 and e2e["p99"] <= 0.105 and e2e["max"] <= 0.220)
    both("kill", workers, fault, judge)


def stop(workers):
    """stop: SIGSTOP of one of four workers for three seconds."""
    def fault(run):
        run.at(3)
        workers.processes[1].process.send_signal(signal.SIGSTOP)
        run.at(6)
        workers.processes[1].process.send_signal(signal.SIGCONT)

    def judge(report):
        row("stop", "SIGSTOP for 3 s", figures(report), "0 failed, max <= 1700 ms",
            report["failed"] == 0 and report["e2e_s"]["max"] <= 1.7)
    both("stop", workers, fault, judge, 12)


def rolling(workers):
    """rolling: every worker restarted in turn, SIGTERM and drain, 30,000 requests."""
    def fault(run):
        for i in range(N_WORKERS):
            run.at(4 + 13 * i)
            workers.processes[i].process.send_signal(signal.SIGTERM)
            workers.processes[i].process.wait(60)
            workers.restart(i)

    def judge(report):
        row("rolling", "rolling restart", figures(report), "0 of 30,000 failed",
            report["failed"] == 0 and report["requests"] >= 29000)
    both("rolling", workers, fault, judge, 60)


def n_unanswered(path):
    """Requests that failed, or were answered with 200 and no body, which the load generator does not mind."""
    lines = [line.split(",") for line in pathlib.Path(path).read_text().splitlines()[1:]]
    return sum(line[4] != "ok" or int(line[11]) == 0 for line in lines)


def bad_answers(scenario, kind):
    """The same before ours and before haproxy, which looks at answers (observe layer7) as we do."""
    def fault(run):
        run.at(2)
        engines.processes[1].process.send_signal(signal.SIGUSR1)

    with Fleet() as fleet:
        engines = Engines(fleet, kind)
        router = start_ours(fleet, engines.urls)
        records = fleet.dir / "records.csv"
        run = Load(router.url, "--records", records, duration_s=60)
        fault(run)
        report = run.report()
        share = n_unanswered(records) / report["requests"]
        page = metrics_of(router)
        sent = metric("\n".join(l for l in page.splitlines() if engines.urls[1] in l), "incipit_worker_requests_total")
        row(scenario, f"one of four is {kind}", f"{figures(report)}, {n_unanswered(records)} not answered; it was sent {sent:.0f}", "<= 0.5 % of 30,000 failed",
            share <= 0.005 and report["requests"] >= 29000)
        engines.processes[1].process.send_signal(signal.SIGUSR2)
        mended = time.monotonic()
        run = Load(router.url, duration_s=3, rps=50)
        wait_for(lambda: json.loads(get(router.admin_url + "/workers")[1])["stats"]["healthy_workers"] == N_WORKERS,
                 "the mended worker", 10)
        row(scenario, "back when it is mended", f"{time.monotonic() - mended:.2f} s", "<= a probe period and a request: 0.8 s",
            time.monotonic() - mended <= 0.8)
        run.report()
    if not find_program("haproxy"):
        skip(f"{scenario} before haproxy", "haproxy is not installed: make deps-bench")
        return
    with Fleet() as fleet:
        engines = Engines(fleet, kind)
        proxy = start_haproxy(fleet, engines.urls, observe="layer7")
        records = fleet.dir / "records.csv"
        run = Load(proxy.url, "--records", records, duration_s=20)
        fault(run)
        print(f"      haproxy, observe layer7, 20 s: {figures(run.report())}, {n_unanswered(records)} not answered", flush=True)


def errors(workers):
    """errors: one of four foreign engines answers 500 at once."""
    bad_answers("errors", "errors")


def empty(workers):
    """empty: one of four foreign engines answers 200 with an empty body at once."""
    bad_answers("empty", "empty")


def down(workers):
    """down: all four foreign engines are killed, and are back two seconds later."""
    def run_before(name, start, fleet):
        engines = Engines(fleet)
        proxy = start(fleet, engines.urls)
        Load(proxy.url, duration_s=1).report()
        records = fleet.dir / f"{name}.csv"
        run = Load(proxy.url, "--records", records, duration_s=8)
        run.at(2)
        for p in engines.processes:
            p.process.kill()
        run.at(4)
        engines.processes = [engines.spawn(i) for i in range(N_WORKERS)]
        back = min(engines.wait(i) for i in range(N_WORKERS))
        report = run.report()
        failed = run.failures(records)
        late = [t - back for t in failed if t > back + 0.05]
        return proxy, report, f"{figures(report)}; {len(late)} failed later than 50 ms after the first was back" + (
            f", the last {max(late) * 1000:.0f} ms after" if late else ""), late

    with Fleet() as fleet:
        router, report, text, late = run_before("ours", start_ours, fleet)
        row("down", "all workers down for 2 s", text, "0 later than 50 ms", not late)
    if find_program("haproxy"):
        with Fleet() as fleet:
            print(f"      haproxy, tuned: {run_before('haproxy', start_haproxy, fleet)[2]}", flush=True)


def refused(workers):
    """refused: one of five addresses refuses connections from the start."""
    (port,) = free_ports(1)
    with Fleet() as fleet:
        fleet_urls = [*workers.urls, f"http://127.0.0.1:{port}"]
        router = start_ours_unready(fleet, fleet_urls, len(workers.urls))
        rss = rss_mib(router)
        report = Load(router.url, duration_s=5).report()
        row("refused", "a port that refuses", figures(report), "0 failed", report["failed"] == 0)
        is_clean("refused", router, rss)


def start_ours_unready(fleet, urls, n_healthy, *args):
    port, admin = free_ports(2)
    router = fleet.start([BUILD / "incipit-router", "--port", port, "--admin-port", admin, "--threads", 1,
                          *OPTIONS, *args, "--worker-urls", *urls])
    router.url, router.admin_url = f"http://127.0.0.1:{port}", f"http://127.0.0.1:{admin}"
    router.ports = [port, admin]

    def enough():
        if router.process.poll() is not None:
            raise RuntimeError(f"incipit-router ended:\n{router.text()}")
        answer = get(router.admin_url + "/workers")
        return answer and json.loads(answer[1])["stats"]["healthy_workers"] >= n_healthy
    wait_for(enough, "healthy workers")
    return router


class Namespace:
    """A network of its own for one worker, so that its packets can be lost. Needs root."""

    def __init__(self, stack):
        self.name = f"incipit-{os.getpid()}"
        here, there = f"ic{os.getpid() % 100000}a", f"ic{os.getpid() % 100000}b"
        self.link, self.address = here, "10.213.77.2"
        for command in (f"ip netns add {self.name}", f"ip link add {here} type veth peer name {there}",
                        f"ip link set {there} netns {self.name}", f"ip addr add 10.213.77.1/30 dev {here}",
                        f"ip link set {here} up", f"ip netns exec {self.name} ip addr add {self.address}/30 dev {there}",
                        f"ip netns exec {self.name} ip link set {there} up",
                        f"ip netns exec {self.name} ip link set lo up"):
            subprocess.run(command.split(), check=True, stderr=subprocess.PIPE)
            if command.startswith("ip netns add"):
                stack.callback(subprocess.run, ["ip", "netns", "del", self.name])

    def cut(self, is_cut):
        """Packets vanish both ways: each side knows a wrong hardware address of the other."""
        for prefix, dev, other in (([], self.link, self.address),
                                   (["ip", "netns", "exec", self.name], self.link[:-1] + "b", "10.213.77.1")):
            how = ["replace", other, "lladdr", "02:00:00:00:00:99", "nud", "permanent"] if is_cut else ["del", other]
            subprocess.run([*prefix, "ip", "neigh", *how, "dev", dev], check=True, stderr=subprocess.PIPE)


def half_open(workers):
    """half-open: a worker's packets vanish both ways, with requests and a stream open on it."""
    with contextlib.ExitStack() as stack:
        try:
            net = Namespace(stack)
        except (OSError, subprocess.CalledProcessError) as error:
            skip("half-open", f"needs root and ip netns ({error})")
            return
        fleet = stack.enter_context(Fleet())
        (port,) = free_ports(1)
        far = fleet.start(["ip", "netns", "exec", net.name, BUILD / "incipit-worker", "--backend", "sim",
                           "--sim-speed", SPEED, "--host", net.address, "--port", port, "--log-level", "error"])
        wait_for(lambda: (get(f"http://{net.address}:{port}/health") or [0])[0] == 200, "the far worker")
        router = start_ours(fleet, [*workers.urls, f"http://{net.address}:{port}"])
        rss = rss_mib(router)
        run = Load(router.url, duration_s=12)
        run.at(3)
        net.cut(True)
        report = run.report()
        row("half-open", "packets vanish", figures(report), "0 failed, max <= 1700 ms",
            report["failed"] == 0 and report["e2e_s"]["max"] <= 1.7)
        net.cut(False)
        wait_for(lambda: json.loads(get(router.admin_url + "/workers")[1])["stats"]["healthy_workers"] == N_WORKERS + 1,
                 "the far worker to return", 20)
        is_clean("half-open", router, rss)
        assert far.process.poll() is None


def raw_request(url, body, receive_buffer=None):
    """A connection with one request sent; the caller closes it."""
    host, port = url.split("//")[1].split(":")
    s = socket.socket()
    s.settimeout(30)
    if receive_buffer:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    s.connect((host, int(port)))
    text = json.dumps(body)
    s.sendall(f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(text)}\r\n\r\n{text}".encode())
    return s


def ends_whole(s):
    """Reads a stream to its end and closes it: did it end as it should?"""
    s.settimeout(60)
    data = b""
    while b"[DONE]" not in data[-100:]:
        piece = s.recv(262144)
        if not piece:
            break
        data = data[-100:] + piece
    s.close()
    return b"[DONE]" in data


def slow_reader(workers):
    """slow-reader: 200 clients ask for long streams and read nothing for a while."""
    with Fleet() as fleet:
        router = start_ours(fleet, workers.urls)
        Load(router.url, duration_s=2).report()
        rss = rss_mib(router)
        body = {**REQUEST, "stream": True, "max_tokens": 3000}
        clients = [raw_request(router.url, body, receive_buffer=4096) for _ in range(200)]
        time.sleep(6)
        report = Load(router.url, duration_s=3, rps=100).report()
        grown = rss_mib(router) - rss
        row("slow-reader", "200 unread streams", f"{grown:.1f} MiB", "<= 200 x 320 KiB = 62.5 MiB", grown <= 62.5)
        row("slow-reader", "others meanwhile", figures(report), "0 failed", report["failed"] == 0)
        done = sum(ends_whole(s) for s in clients)
        row("slow-reader", "then read to the end", f"{done} of 200 complete", "all", done == 200)
        is_clean("slow-reader", router, rss + 40)


def idle(workers):
    """idle: 10,000 idle connections beside the load."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 11000:
        skip("idle", f"needs 11,000 descriptors, the limit is {hard}")
        return
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with Fleet() as fleet:
        router = start_ours(fleet, workers.urls)
        Load(router.url, duration_s=2).report()
        rss, pss = rss_mib(router), router.pss_bytes()
        before = Load(router.url, duration_s=3).report()
        clients = []
        host, port = router.url.split("//")[1].split(":")
        for _ in range(10000):
            clients.append(socket.create_connection((host, int(port)), timeout=10))
        wait_for(lambda: tcp_states(router.ports[0]).get("01", 0) >= 10000, "10,000 connections")
        each = (router.pss_bytes() - pss) / 10000
        report = Load(router.url, duration_s=5).report()
        row("idle", "memory of an idle connection", f"{each:.0f} B", "<= 700 B", each <= 700)
        row("idle", "load beside 10,000", figures(report) + f" (without: p99 {before['e2e_s']['p99'] * 1000:.0f} ms)",
            "0 failed", report["failed"] == 0)
        for s in clients:
            s.close()
        is_clean("idle", router, rss)


def leave(workers):
    """leave: 1,000 clients leave, half before the first byte, half in the middle of a stream."""
    with Fleet() as fleet:
        router = start_ours(fleet, workers.urls)
        Load(router.url, duration_s=2).report()
        rss = rss_mib(router)
        slowest = 0.0
        for kind in ("before the first byte", "mid-stream"):
            for _ in range(10):
                body = {**REQUEST, "stream": True, "max_tokens": 8000}
                if kind == "before the first byte":
                    body = {**REQUEST, "max_tokens": 8000}
                clients = [raw_request(router.url, body) for _ in range(50)]
                running = lambda: sum(metric(get(u + "/metrics")[1], "vllm:num_requests_running") for u in workers.urls)
                wait_for(lambda: running() == 50, "50 running requests", 10)
                if kind == "mid-stream":
                    for s in clients:
                        s.recv(10)
                for s in clients:
                    s.close()
                left = time.monotonic()
                wait_for(lambda: running() == 0, "the workers to be free", 5)
                slowest = max(slowest, time.monotonic() - left)
        row("leave", "workers free after 50 clients left, slowest of 20 times", f"{slowest * 1000:.0f} ms",
            "<= 150 ms, this script's polling included", slowest <= 0.15)
        used = sum(metric(get(u + "/metrics")[1], "vllm:kv_cache_usage_perc") for u in workers.urls)
        row("leave", "KV blocks in use", f"{used:g}", "0", used == 0)
        is_clean("leave", router, rss)


class Scripted(threading.Thread):
    """A worker with scripted answers: `answer(body)` gives raw bytes, None closes at once."""

    def __init__(self, stack, answer):
        super().__init__(daemon=True)
        self.answer, self.n_requests = answer, 0
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=512)
        self.url = f"http://127.0.0.1:{self.listener.getsockname()[1]}"
        stack.callback(self.listener.close)
        self.start()

    def run(self):
        with contextlib.suppress(OSError):
            while True:
                s, _ = self.listener.accept()
                threading.Thread(target=self.serve, args=(s,), daemon=True).start()

    def serve(self, s):
        with contextlib.suppress(OSError), s:
            data = b""
            while True:
                while b"\r\n\r\n" not in data:
                    piece = s.recv(65536)
                    if not piece:
                        return
                    data += piece
                head, data = data.split(b"\r\n\r\n", 1)
                length = 0
                for line in head.lower().split(b"\r\n"):
                    if line.startswith(b"content-length:"):
                        length = int(line.split(b":")[1])
                while len(data) < length:
                    data += s.recv(65536)
                body, data = data[:length], data[length:]
                path = head.split(b" ")[1]
                if path == b"/v1/models":
                    text = json.dumps({"object": "list", "data": [{"id": MODEL, "max_model_len": 65536}]})
                    s.sendall(f"HTTP/1.1 200 OK\r\ncontent-length: {len(text)}\r\n\r\n{text}".encode())
                elif path == b"/health":
                    s.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
                elif path.startswith(b"/v1/"):
                    self.n_requests += 1
                    answer = self.answer(body)
                    if not answer:
                        return
                    s.sendall(answer)
                    if b"close" in answer[:200]:
                        return
                else:
                    s.sendall(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n")


WHOLE = json.dumps({"id": "x", "object": "chat.completion", "model": MODEL, "choices": [
    {"index": 0, "message": {"role": "assistant", "content": "ok"}, "finish_reason": "stop"}]}).encode()


def garbage(workers):
    """garbage: one worker of five answers with what is not HTTP, or lies about lengths."""
    kinds = {
        "not HTTP": (b"220 smtp.example ready\r\n", True),
        "two lengths": (b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\ncontent-length: 5\r\n\r\nabc", True),
        "closes unanswered": (None, True),
        "bad chunk size": (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\nabc", True),
        "chunk cut off": (b"HTTP/1.1 200 OK\r\nconnection: close\r\ntransfer-encoding: chunked\r\n\r\n40\r\n{\"id\":", False),
        "body too short": (b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 400\r\n\r\n{\"id\":", False),
        "body too long": (b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%s and more" % (len(WHOLE), WHOLE), True),
    }
    for kind, (answer, is_invisible) in kinds.items():
        with Fleet() as fleet:
            bad = Scripted(fleet, lambda body, answer=answer: answer)
            # in turn: by cost, an unknown worker would be the last to be chosen
            router = start_ours_unready(fleet, [*workers.urls, bad.url], N_WORKERS + 1, "--policy", "round_robin")
            rss = rss_mib(router)
            report = Load(router.url, duration_s=3, rps=200).report()
            if bad.n_requests == 0:
                row("garbage", kind, "the scripted worker got no request", "some", False)
            elif is_invisible:
                row("garbage", kind, f"{figures(report)}; {bad.n_requests} met it", "0 failed", report["failed"] == 0)
            else:  # bytes had gone to the client: it must see the break, and no other client must
                broken = report["outcomes"].get("broken", 0)
                row("garbage", kind, f"{broken} broken of {bad.n_requests} that met it, {report['failed']} failed",
                    "each visibly broken, no other", broken == report["failed"] == bad.n_requests)
            is_clean("garbage", router, rss)


def poison(workers):
    """poison: a request that kills each worker that gets it."""
    with Fleet() as fleet:
        def answer(body):
            if b"poison" in body:
                return None
            return b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%s" % (len(WHOLE), WHOLE)
        scripted = [Scripted(fleet, answer) for _ in range(6)]
        router = start_ours_unready(fleet, [w.url for w in scripted], 6)
        rss = rss_mib(router)
        run = Load(router.url, duration_s=4, rps=100)
        run.at(1)
        code = post(router.url + "/v1/chat/completions", {**REQUEST, "messages": [{"role": "user", "content": "poison"}]})
        met = sum(w.n_requests for w in scripted)
        again = post(router.url + "/v1/chat/completions", {**REQUEST, "messages": [{"role": "user", "content": "poison"}]})
        report = run.report()
        row("poison", "the request that kills", f"{code}, then {again}", "502 or 503 after two workers, not sent again",
            code in (502, 503) and again in (502, 503))
        row("poison", "others meanwhile", figures(report), "0 failed", report["failed"] == 0 and met > 0)
        is_clean("poison", router, rss)


def reload(workers):
    """reload: SIGHUP five times, and a worker added and removed, under load."""
    with Fleet() as fleet:
        router = start_ours(fleet, workers.urls[:-1])
        Load(router.url, duration_s=2).report()
        rss = rss_mib(router)
        run = Load(router.url, duration_s=10)
        for i in range(5):
            run.at(1 + i * 0.5)
            router.process.send_signal(signal.SIGHUP)
        for i in range(3):
            run.at(4 + i * 2)
            added = post(router.admin_url + "/workers", {"url": workers.urls[-1]})
            run.at(5 + i * 2)
            listed = json.loads(get(router.admin_url + "/workers")[1])["workers"]
            ids = [w["id"] for w in listed if w["url"] == workers.urls[-1]]
            for id_ in ids:
                request = urllib.request.Request(f"{router.admin_url}/workers/{id_}", method="DELETE")
                urllib.request.urlopen(request, timeout=5).read()
        report = run.report()
        row("reload", "SIGHUP, add, remove", figures(report) + f"; POST /workers: {added}", "0 failed, 202",
            report["failed"] == 0 and added == 202)
        is_clean("reload", router, rss)


def drain(workers):
    """drain: SIGTERM of the router with 200 streams open."""
    with Fleet() as fleet:
        router = start_ours(fleet, workers.urls)
        run = Load(router.url, "--stream", duration_s=3, rps=100, tokens=tokens_of_service * 20)
        run.at(3.2)  # the last has been sent; they take two seconds each
        router.process.send_signal(signal.SIGTERM)
        report = run.report()
        code = router.process.wait(30)
        row("drain", "SIGTERM", f"{report['failed']} of {report['requests']} failed, exit code {code}",
            "0 failed, exit code 0", report["failed"] == 0 and code == 0)


def descriptors(workers):
    """descriptors: the router may open 64 files; 200 clients come."""
    with Fleet() as fleet:
        port, admin = free_ports(2)
        router = fleet.start(["sh", "-c", 'ulimit -n 64; exec "$0" "$@"', BUILD / "incipit-router", "--port", port,
                              "--admin-port", admin, "--threads", 1, *OPTIONS, "--worker-urls", *workers.urls])
        router.url, router.admin_url, router.ports = f"http://127.0.0.1:{port}", f"http://127.0.0.1:{admin}", [port, admin]
        wait_for(lambda: (get(router.url + "/readyz") or [0])[0] == 200, "a ready router")
        body = {**REQUEST, "stream": True, "max_tokens": 2500}
        streams = [raw_request(router.url, body) for _ in range(5)]
        for s in streams:
            s.recv(10)
        crowd = [socket.create_connection(("127.0.0.1", port), timeout=5) for _ in range(200)]
        time.sleep(0.5)
        cpu = router.cpu_ns()
        time.sleep(1)
        busy = (router.cpu_ns() - cpu) / 1e9
        alive = sum(ends_whole(s) for s in streams)
        for s in crowd:
            s.close()
        began = time.monotonic()
        wait_for(lambda: post(router.url + "/v1/chat/completions", REQUEST, timeout=1) == 200, "service again", 10)
        row("descriptors", "open streams live on", f"{alive} of 5", "all", alive == 5)
        row("descriptors", "CPU while full", f"{busy * 100:.0f} % of a core", "no spinning: <= 25 %, streams included", busy <= 0.25)
        row("descriptors", "service again after the crowd has left", f"{time.monotonic() - began:.2f} s", "<= 1 s",
            time.monotonic() - began <= 1)


SCENARIOS = {"none": no_fault, "kill": kill, "errors": errors, "empty": empty, "down": down, "stop": stop, "rolling": rolling, "refused": refused,
             "half-open": half_open, "slow-reader": slow_reader, "idle": idle, "leave": leave, "garbage": garbage,
             "poison": poison, "reload": reload, "drain": drain, "descriptors": descriptors}


def main(names):
    if names == ["list"]:
        print("\n".join(f.__doc__ for f in SCENARIOS.values()))
        return 0
    unknown = [n for n in names if n not in SCENARIOS]
    if unknown:
        print(f"faults: no scenario '{unknown[0]}': use {', '.join(SCENARIOS)}", file=sys.stderr)
        return 2
    with Fleet() as fleet:
        workers = Workers(fleet)
        calibrate(workers)
        for name in names or SCENARIOS:
            print(SCENARIOS[name].__doc__, flush=True)
            SCENARIOS[name](workers)
    n_missed = sum(not row[4] for row in rows)
    print(f"\n{len(rows) - n_missed} of {len(rows)} bars hold")
    for scenario, what, figure, bar, holds in rows:
        if not holds:
            print(f"  missed: {scenario}: {what}: {figure} (bar: {bar})")
    return 1 if n_missed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
